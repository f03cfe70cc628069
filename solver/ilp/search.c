/*
 * search.c - which problems the ILP solves, in which order, within one deadline.
 *
 * Streaming weights to a device takes memory there, so each subset of devices to stream to is a
 * problem of its own. With one accelerator so are rooms of several sizes, unless weights come from
 * a file: a smaller one is for smaller records only, and leaves more for weights. So is each with
 * rooms for KV of the host, and without. Of identical
 * devices only the first ones are streamed to. All problems are relaxed first, the one without
 * streams before the others; then they are solved in equal shares of the time, the most promising
 * first, except those that their relaxation shows to be no better.
 *
 * With several accelerators the search grows: from the largest alone to all of them, each step
 * starting from the best placement so far, so that a deadline too short for all devices still gives
 * a plan for some. The bound is that of the last step; there is none if it leaves a problem
 * unsolved.
 */
#include "solver/planning_internal.h"

#include <stdlib.h>
#include <string.h>

struct streaming {
    struct instance in;
    int64_t bound_ns;
};

struct search {
    const struct problem *p;
    struct ilp_options options;
    struct ilp_result *result; /* of all */
    struct streaming *all;     /* the problems of a step */
    int32_t *best, *scratch;   /* placements */
    bool known;                /* there is a best one, of result.objective_ns */
};

/* What is unknown is no promise. */
static int by_promise(const void *x, const void *y)
{
    const struct streaming *a = x, *b = y;
    int c = order_i64(!a->bound_ns, !b->bound_ns);
    c = c ? c : order_i64(a->bound_ns, b->bound_ns);
    return c ? c : order_i64(a->in.streams, b->in.streams);
}

/* ------------------------------------------------------------------------ equal devices ---- */

static bool same_whole(const struct unit *u, int32_t a, int32_t b)
{
    const struct option *x = &u->options[a], *y = &u->options[b];
    return x->allowed == y->allowed && x->bytes[a] == y->bytes[b] &&
           price_equal(&x->price, &y->price);
}

static bool same_ways(const struct instance *in, const struct edge *e, int32_t a, int32_t b)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        if (!price_equal(&e->leave[phase][a], &e->leave[phase][b]) ||
            !price_equal(&e->enter[phase][a], &e->enter[phase][b]))
            return false;
        for (int32_t d = 0; d < in->n_devices && e->direct; d++) {
            const int32_t other = d == a ? b : d == b ? a : d; /* as b sees it */
            if (!price_equal(&e->direct[phase][a][d], &e->direct[phase][b][other]) ||
                !price_equal(&e->direct[phase][d][a], &e->direct[phase][other][b]))
                return false;
        }
    }
    return true;
}

/* True when exchanging the two accelerators changes no price and no memory. */
static bool alike(const struct problem *p, int32_t a, int32_t b)
{
    const struct instance *in = &p->instance;
    const int32_t host = p->device[in->host];
    bool same = in->usable[a] == in->usable[b] && in->capacity[a] == in->capacity[b] &&
                in->staging[a] == in->staging[b] && in->filing[a] == in->filing[b] &&
                in->rooms[a] == in->rooms[b] && price_equal(&in->fixed[a], &in->fixed[b]) &&
                cost_of_stream(p->cost, host, p->device[a], 1e9) ==
                    cost_of_stream(p->cost, host, p->device[b], 1e9);
    for (int32_t d = 0; d < in->n_devices && same; d++)
        if (d != a && d != b)
            same = in->direct[a][d] == in->direct[b][d] && in->direct[d][a] == in->direct[d][b];
    for (int32_t u = 0; u < in->n_units && same; u++)
        same = same_whole(&in->units[u], a, b);
    for (int32_t e = 0; e < in->n_edges && same; e++)
        same = same_ways(in, &in->edges[e], a, b);
    return same && in->direct[a][b] == in->direct[b][a];
}

/* The devices before d that are like it, a bit each. */
static uint32_t like_before(const struct problem *p, int32_t d)
{
    uint32_t like = 0;
    for (int32_t i = 0; i < d; i++)
        if (!p->instance.is_host[i] && !p->instance.is_host[d] && alike(p, i, d))
            like |= 1u << i;
    return like;
}

/* ------------------------------------------------------------------------------ a step ----- */

/* The sets of these devices that weights may be streamed to, those of fewer first. */
static int32_t list_streams(const struct search *s, uint32_t devices, uint32_t *streams)
{
    const struct instance *in = &s->p->instance;
    uint32_t able = 0, before[SOLVER_DEVICES] = {0};
    int32_t n = 0;
    for (int32_t d = 0; d < in->n_devices; d++) {
        able |= (in->staging[d] || in->rooms[d]) && devices >> d & 1 ? 1u << d : 0;
        before[d] = like_before(s->p, d) & devices;
    }
    for (uint32_t set = 0; set <= able; set++) {
        bool first = !(set & ~able);
        for (int32_t d = 0; d < in->n_devices; d++)
            first = first && (!(set >> d & 1) || (before[d] & set) == before[d]);
        if (first)
            streams[n++] = set;
    }
    return n;
}

/* Sizes of staging: for all records, for those of half the largest one's bytes, of a quarter. */
enum { ROOMS = 3 };

/* Makes room for records up to the largest one's bytes >> level. False: that is the room of another
 * level. */
static bool less_staging(struct instance *in, int level)
{
    bool differs = !level;
    for (int32_t d = 0; d < in->n_devices && level; d++) {
        const uint64_t most = in->staging[d] >> level;
        uint64_t room = 0;
        for (int32_t u = 0; u < in->n_units; u++)
            for (int32_t i = in->n_devices; i < in->units[u].n_options; i++) {
                const struct option *o = &in->units[u].options[i];
                if (o->stream == d && 2 * o->staged <= most && 2 * o->staged > room)
                    room = 2 * o->staged;
            }
        differs = differs || room > (level < ROOMS - 1 ? most / 2 : 0);
        in->staging[d] = room;
    }
    return differs;
}

/* Whether KV can be streamed to one of the devices. */
static bool has_rooms(const struct instance *in, uint32_t devices)
{
    bool has = false;
    for (int32_t d = 0; d < in->n_devices; d++)
        has = has || (devices >> d & 1 && in->rooms[d]);
    return has;
}

/* The instance without the other devices. */
static void keep_devices(struct instance *in, uint32_t devices)
{
    for (int32_t d = 0; d < in->n_devices; d++)
        in->usable[d] = in->usable[d] && devices >> d & 1;
}

/* True when nothing within this bound is better than the best by more than the gap. */
static bool settles(const struct search *s, int64_t bound_ns)
{
    const double best_ns = (double)s->result->objective_ns;
    return s->known && best_ns - (double)bound_ns <= s->options.gap * best_ns;
}

static void take(struct search *s, const struct ilp_result *r)
{
    if (s->known && r->objective_ns >= s->result->objective_ns)
        return;
    memcpy(s->best, s->scratch, sizeof *s->best * (size_t)s->p->instance.n_units);
    s->result->objective_ns = r->objective_ns;
    s->known = true;
}

/* Solves (or only relaxes) one problem from the best placement so far, if that fits, and keeps what
 * is better. */
static oato_status attempt(struct search *s, struct streaming *x, struct ilp_options options,
                           struct oato_error *err)
{
    struct ilp_result r = {0};
    const bool fits = s->known && instance_fits(&x->in, s->best, NULL);
    options.enough_ns = s->known ? s->result->objective_ns : 0;
    const oato_status status =
        solve_ilp(&x->in, &options, fits ? s->best : NULL, s->scratch, &r, err);
    s->result->timed_out = s->result->timed_out || r.timed_out;
    x->bound_ns = max_i64(x->bound_ns, r.bound_ns);
    if (!status)
        take(s, &r);
    return status == OATO_NEGATIVE ? OATO_OK : status;
}

/* The problems of a step, relaxed, the most promising first. Half of the time is for solving them:
 * what is not relaxed by then has no bound, 0. With several accelerators the first, without
 * streams, is looked through at once, without branch and bound: mostly that gives a good placement,
 * soon. Where it leaves nothing to gain, one bound for all others may settle them. Returns how
 * many; -1: memory is short. */
static int32_t list_problems(struct search *s, uint32_t devices, struct oato_error *err)
{
    uint32_t streams[1u << SOLVER_DEVICES];
    const int32_t sets = list_streams(s, devices, streams);
    const uint64_t deadline_ns = ilp_share(s->options.deadline_ns, 2);
    const struct ilp_options quick = {
        .gap = s->options.gap, .deadline_ns = deadline_ns, .no_search = true};
    const struct ilp_options relaxed = {
        .gap = s->options.gap, .deadline_ns = deadline_ns, .relax_only = true};
    int64_t all_ns = 0; /* bound of all problems: any device may be streamed to, for no memory */
    int32_t n = 0;
    const int rooms = sets == 2 && !s->p->stored ? ROOMS : 1;
    for (int32_t j = 0; j < sets * rooms * 2; j++) {
        struct streaming *x = &s->all[n];
        const int32_t i = j / 2 / rooms, level = j / 2 % rooms;
        const bool without = j % 2; /* rooms for KV */
        struct instance in = s->p->instance;
        if ((!streams[i] && level) || (without && !has_rooms(&in, streams[i])))
            continue;
        if (without)
            memset(in.rooms, 0, sizeof in.rooms);
        if (!less_staging(&in, level) || !instance_with_streams(&in, streams[i], &x->in))
            continue;
        keep_devices(&x->in, devices);
        x->bound_ns = all_ns;
        const bool first = !i && sets > 2;
        if ((first || !settles(s, all_ns)) && attempt(s, x, first ? quick : relaxed, err))
            return -1;
        n++;
        if (!first || !settles(s, x->bound_ns))
            continue;
        struct streaming all = {.in = x->in};
        all.in.streams = streams[sets - 1];
        if (attempt(s, &all, relaxed, err))
            return -1;
        all_ns = all.bound_ns;
    }
    qsort(s->all, (size_t)n, sizeof *s->all, by_promise);
    return n;
}

/* Solves one problem, unless its bound says that it is no better, in its share of the time. */
static oato_status solve_one(struct search *s, struct streaming *x, int32_t left,
                             struct oato_error *err)
{
    struct ilp_options options = s->options;
    if (x->bound_ns == INT64_MAX || settles(s, x->bound_ns))
        return OATO_OK;
    options.deadline_ns = ilp_share(options.deadline_ns, left);
    return attempt(s, x, options, err);
}

/* One step of the climb: sets the bound to that of these devices. */
static oato_status step(struct search *s, uint32_t devices, struct oato_error *err)
{
    const int32_t n = list_problems(s, devices, err);
    int64_t bound_ns = INT64_MAX;
    if (n < 0)
        return err->status;
    for (int32_t i = 0; i < n; i++) {
        if (solve_one(s, &s->all[i], n - i, err))
            return err->status;
        bound_ns = min_i64(bound_ns, s->all[i].bound_ns);
    }
    s->result->bound_ns = s->known ? min_i64(bound_ns, s->result->objective_ns) : bound_ns;
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ the climb -- */

/* Accelerators that can be used, the largest first. */
static int32_t list_accelerators(const struct instance *in, int32_t *list)
{
    int32_t n = 0;
    for (int32_t d = 0; d < in->n_devices; d++) {
        if (in->is_host[d] || !in->usable[d])
            continue;
        int32_t at = n++;
        for (; at && in->capacity[list[at - 1]] < in->capacity[d]; at--)
            list[at] = list[at - 1];
        list[at] = d;
    }
    return n;
}

enum { SHARES = 3 }; /* few devices get more of the time: most of the gain comes early */

static oato_status climb(struct search *s, struct oato_error *err)
{
    const struct instance *in = &s->p->instance;
    int32_t accelerators[SOLVER_DEVICES];
    const int32_t n = list_accelerators(in, accelerators);
    const uint64_t deadline_ns = s->options.deadline_ns;
    uint32_t devices = 0;
    oato_status status = OATO_OK;
    for (int32_t d = 0; d < in->n_devices; d++)
        devices |= in->is_host[d] ? 1u << d : 0;
    for (int32_t i = 0; i < n - 1 && !status; i++) {
        const int64_t before_ns = s->known ? s->result->objective_ns : INT64_MAX;
        devices |= 1u << accelerators[i];
        s->options.deadline_ns = ilp_share(deadline_ns, n - i < SHARES ? n - i : SHARES);
        status = step(s, devices, err);
        if (i && s->known && s->result->objective_ns == before_ns &&
            alike(s->p, accelerators[i - 1], accelerators[i]))
            break; /* the second of a kind gained nothing: nor will a third */
    }
    s->options.deadline_ns = deadline_ns;
    return status ? status : step(s, UINT32_MAX, err);
}

oato_status search_placement(const struct problem *p, const struct ilp_options *o,
                             const int32_t *warm, int32_t *place, struct ilp_result *result,
                             struct oato_error *err)
{
    const size_t units = (size_t)p->instance.n_units + 1;
    struct search s = {.p = p, .options = *o, .result = result, .best = place};
    oato_status status = OATO_OK;
    memset(result, 0, sizeof *result);
    s.scratch = malloc(units * sizeof *s.scratch);
    s.all = calloc(1u << SOLVER_DEVICES, sizeof *s.all);
    if (warm) {
        memcpy(place, warm, sizeof *place * (size_t)p->instance.n_units);
        result->objective_ns = instance_price(&p->instance, warm).objective_ns;
        s.known = true;
    }
    if (!s.scratch || !s.all)
        status = oato_fail_memory(err, units * sizeof *s.scratch, "a placement");
    else
        status = climb(&s, err);
    free(s.scratch);
    free(s.all);
    if (!status && !s.known)
        status = oato_fail(err, OATO_NEGATIVE, "no placement was found");
    return status;
}
