/*
 * search.c - which problems the ILP solves, in which order, within one deadline.
 *
 * Streaming weights to a device takes memory there, so each subset of devices to stream to is a
 * problem of its own. With one accelerator so are rooms of a few sizes: a smaller one is for
 * smaller records only, and leaves more for weights. So is each with rooms for KV of the host, and
 * without. Of identical devices only the first ones are streamed to. All problems are relaxed
 * first, the one without streams before the others; then they are solved in equal shares of the
 * time, the most promising first, except those that their relaxation shows to be no better. That
 * gives good placements; rooms.c then searches rooms of all sizes, from which the bound follows,
 * and what is read from a file.
 *
 * From three accelerators on those of a kind are searched as one (kinds.c), which gives a bound and
 * a good placement soon. Where that leaves something to gain, or all differ, the search grows: from
 * the largest alone to all of them, each step starting from the best placement so far, so that a
 * deadline too short for all devices still gives a plan for some. The bound is that of the problem
 * with all devices; there is none if a part of it stays unsolved. All of that is done without teams
 * of accelerators (heads.c) first, then with them.
 */
#include "solver/ilp/search_internal.h"

#include <stdlib.h>
#include <string.h>

enum { SETS = 64 }; /* of devices to stream to that are tried in a step */

/* Sizes of staging: for all records, for those of half the largest one's bytes, of a quarter. */
enum { ROOMS = 3 };

const struct instance *search_instance(const struct search *s)
{
    return s->kinds ? &s->kinds->in : &s->p->instance;
}

/* What is unknown is no promise. */
static int by_promise(const void *x, const void *y)
{
    const struct streaming *a = x, *b = y;
    int c = order_i64(!a->bound_ns, !b->bound_ns);
    c = c ? c : order_i64(a->bound_ns, b->bound_ns);
    return c ? c : order_i64(a->in.streams, b->in.streams);
}

uint32_t search_like_before(const struct problem *p, int32_t d)
{
    uint32_t like = 0;
    for (int32_t i = 0; i < d; i++)
        if (p->instance.capacity[i] == p->instance.capacity[d] && kinds_alike(p, i, d))
            like |= 1u << i;
    return like;
}

/* ------------------------------------------------------------------------------ a step ----- */

/* The sets of devices that weights may be streamed to, those of fewer first. *all: they are all
 * there are. */
static int32_t list_streams(const struct search *s, uint32_t *streams, bool *all)
{
    const struct instance *in = search_instance(s);
    uint32_t able = 0, before[SOLVER_DEVICES] = {0};
    int32_t n = 0, wide = 0;
    for (int32_t d = 0; d < in->n_devices; d++) {
        able |= in->staging[d] || in->rooms[d] ? 1u << d : 0;
        wide += in->staging[d] || in->rooms[d];
        before[d] = s->kinds ? 0 : search_like_before(s->p, d);
    }
    *all = 1u << wide <= SETS;
    for (int32_t d = 0; d <= in->n_devices && !*all; d++) /* too many: the first so many devices */
        if (!d || able >> (d - 1) & 1)
            streams[n++] = able & ((1u << d) - 1);
    for (uint32_t set = 0; set <= able && *all; set++) {
        bool first = !(set & ~able);
        for (int32_t d = 0; d < in->n_devices; d++)
            first = first && (!(set >> d & 1) || (before[d] & set) == before[d]);
        if (first)
            streams[n++] = set;
    }
    return n;
}

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

int64_t search_enough_ns(const struct search *s)
{
    const int64_t best_ns = s->known ? s->result->objective_ns : 0;
    return best_ns && (!s->enough_ns || best_ns < s->enough_ns) ? best_ns : s->enough_ns;
}

bool search_settles(const struct search *s, int64_t bound_ns)
{
    const double best_ns = (double)search_enough_ns(s);
    return best_ns > 0 && best_ns - (double)bound_ns <= s->options.gap * best_ns;
}

void search_take(struct search *s, int64_t objective_ns)
{
    if (s->known && objective_ns >= s->result->objective_ns)
        return;
    memcpy(s->best, s->scratch, sizeof *s->best * (size_t)s->p->instance.n_units);
    s->result->objective_ns = objective_ns;
    s->known = true;
}

/* The devices of these kinds, all or only the first ones. */
static uint32_t members_of(const struct kinds *k, uint32_t kinds, bool all)
{
    uint32_t devices = 0;
    for (int32_t kind = 0; kind < k->n; kind++)
        for (int32_t i = 0; i < (all ? k->n_members[kind] : 1) && kinds >> kind & 1; i++)
            devices |= 1u << k->member[kind][i];
    return devices;
}

/* Deals a solution of kinds to their devices, and keeps what is better. True: and something was
 * lost on full devices, lost[kind] bytes. */
static bool deal(struct search *s, uint32_t streams, uint64_t *lost)
{
    uint64_t sum = 0;
    for (int i = 0; i < 2 * DEAL_WAYS; i++) {
        uint64_t other[SOLVER_DEVICES] = {0};
        const enum deal_way way = (enum deal_way)(i % DEAL_WAYS);
        const bool all = i < DEAL_WAYS;
        if ((!all && !streams) ||
            !kinds_deal(s->kinds, members_of(s->kinds, streams, all), way, s->folded, s->scratch,
                        all && way == DEAL_UNITS ? lost : other))
            continue;
        const struct instance *in = &s->p->instance;
        struct instance with;
        uint64_t staging[SOLVER_DEVICES], rooms[SOLVER_DEVICES];
        if (!instance_with_streams(in, instance_streams(in, s->scratch, staging, rooms), &with) ||
            !instance_fits(&with, s->scratch, NULL))
            continue;
        struct ilp_clock clock = {.deadline_ns = s->options.deadline_ns};
        kinds_polish(&with, &clock, s->scratch);
        s->result->timed_out = s->result->timed_out || clock.ended;
        search_take(s, instance_price(in, s->scratch).objective_ns);
    }
    for (int32_t kind = 0; kind < s->kinds->n; kind++)
        sum += lost[kind];
    return sum > 0;
}

enum { DEALS = 4 };

/* Solves the problem of kinds. A solution that does not pack into the devices is made anew with
 * what was lost taken away. */
static oato_status attempt_kinds(struct search *s, struct streaming *x,
                                 const struct ilp_options *options, struct ilp_result *r,
                                 struct oato_error *err)
{
    struct instance in = x->in;
    oato_status status = solve_ilp(&in, options, NULL, s->folded, r, err);
    for (int i = 1; !status; i++) {
        struct ilp_options again = *options;
        struct ilp_result other;
        uint64_t lost[SOLVER_DEVICES] = {0};
        if (!deal(s, in.streams, lost) || i == DEALS)
            break;
        for (int32_t kind = 0; kind < in.n_devices; kind++)
            in.capacity[kind] -= lost[kind] < in.capacity[kind] ? lost[kind] : in.capacity[kind];
        again.enough_ns = search_enough_ns(s);
        status = solve_ilp(&in, &again, NULL, s->folded, &other, err);
        r->timed_out = r->timed_out || other.timed_out;
    }
    return status;
}

oato_status search_attempt(struct search *s, struct streaming *x, struct ilp_options options,
                           struct oato_error *err)
{
    struct ilp_result r = {0};
    oato_status status;
    options.enough_ns = search_enough_ns(s);
    if (s->kinds) {
        status = attempt_kinds(s, x, &options, &r, err);
    } else {
        const bool fits = s->known && instance_fits(&x->in, s->best, NULL);
        status = solve_ilp(&x->in, &options, fits ? s->best : NULL, s->scratch, &r, err);
        if (!status)
            search_take(s, r.objective_ns);
    }
    s->result->timed_out = s->result->timed_out || r.timed_out;
    x->bound_ns = max_i64(x->bound_ns, r.bound_ns);
    return status == OATO_NEGATIVE ? OATO_OK : status;
}

/* The problems of a step, relaxed, the most promising first. Half of the time is for solving them:
 * what is not relaxed by then has no bound, 0. With several accelerators the first, without
 * streams, is looked through at once, without branch and bound: mostly that gives a good placement,
 * soon. Where it leaves nothing to gain, one bound for all others may settle them. Returns how
 * many; -1: memory is short. *rest_ns: the bound of problems that are not listed. */
static int32_t list_problems(struct search *s, int64_t *rest_ns, struct oato_error *err)
{
    uint32_t streams[SETS];
    bool listed;
    const int32_t sets = list_streams(s, streams, &listed);
    const uint64_t deadline_ns = ilp_share(s->options.deadline_ns, 2);
    const struct ilp_options quick = {
        .gap = s->options.gap, .deadline_ns = deadline_ns, .no_search = true};
    const struct ilp_options relaxed = {
        .gap = s->options.gap, .deadline_ns = deadline_ns, .relax_only = true};
    int64_t all_ns = 0; /* bound of all problems: any device may be streamed to, for no memory */
    int32_t n = 0;
    const int rooms = sets == 2 ? ROOMS : 1;
    for (int32_t j = 0; j < sets * rooms * 2; j++) {
        struct streaming *x = &s->all[n];
        const int32_t i = j / 2 / rooms, level = j / 2 % rooms;
        const bool without = j % 2; /* rooms for KV */
        struct instance in = *search_instance(s);
        if ((!streams[i] && level) || (without && !has_rooms(&in, streams[i])))
            continue;
        if (without)
            memset(in.rooms, 0, sizeof in.rooms);
        if (!less_staging(&in, level) || !instance_with_streams(&in, streams[i], &x->in))
            continue;
        x->bound_ns = all_ns;
        const bool first = !i && sets > 2;
        if ((first || !search_settles(s, all_ns)) &&
            search_attempt(s, x, first ? quick : relaxed, err))
            return -1;
        n++;
        if (!first || (listed && !search_settles(s, x->bound_ns)))
            continue;
        struct streaming all = {.in = x->in};
        all.in.streams = streams[sets - 1];
        if (search_attempt(s, &all, relaxed, err))
            return -1;
        all_ns = all.bound_ns;
    }
    *rest_ns = listed ? INT64_MAX : all_ns;
    qsort(s->all, (size_t)n, sizeof *s->all, by_promise);
    return n;
}

/* Solves one problem, unless its bound says that it is no better, in its share of the time. */
static oato_status solve_one(struct search *s, struct streaming *x, int32_t left,
                             struct oato_error *err)
{
    struct ilp_options options = s->options;
    if (x->bound_ns == INT64_MAX || search_settles(s, x->bound_ns))
        return OATO_OK;
    options.deadline_ns = ilp_share(options.deadline_ns, left);
    return search_attempt(s, x, options, err);
}

/* A bound of all problems of a step at once: any device may be streamed to, for no memory. */
static oato_status bound_step(struct search *s, struct oato_error *err)
{
    struct streaming all = {.bound_ns = 0};
    uint32_t streams[SETS];
    bool listed;
    if (s->p->stored)
        return search_rooms(s, 0, &s->result->bound_ns, err);
    const int32_t sets = list_streams(s, streams, &listed);
    if (!instance_with_streams(search_instance(s), 0, &all.in))
        return OATO_OK;
    for (int32_t i = 0; i < sets; i++)
        all.in.streams |= streams[i];
    const oato_status status = search_attempt(s, &all, s->options, err);
    s->result->bound_ns = all.bound_ns;
    return status;
}

/* Solves the problems that are listed: rooms of a few sizes. *bound_ns: of these, and of those that
 * the list leaves out. Returns how many; -1: memory is short. */
static int32_t step_listed(struct search *s, int64_t *bound_ns, struct oato_error *err)
{
    const int32_t n = list_problems(s, bound_ns, err);
    for (int32_t i = 0; i < n; i++) {
        if (solve_one(s, &s->all[i], n - i, err))
            return -1;
        *bound_ns = min_i64(*bound_ns, s->all[i].bound_ns);
    }
    return n;
}

/* One step of the climb: sets the bound to that of its problem. */
static oato_status step(struct search *s, struct oato_error *err)
{
    const uint64_t deadline_ns = s->options.deadline_ns;
    const bool all_rooms = !s->rough && !s->options.no_search;
    int64_t bound_ns = 0;
    int32_t n = 0;
    if (s->options.relax_only)
        return bound_step(s, err);
    s->options.deadline_ns = all_rooms ? ilp_most(deadline_ns) : deadline_ns;
    if (!s->p->stored)
        n = step_listed(s, &bound_ns, err);
    s->options.deadline_ns = deadline_ns;
    if (n < 0)
        return err->status;
    if (s->known && s->roomy) {
        memcpy(s->roomy, s->best, sizeof *s->best * (size_t)s->p->instance.n_units);
        s->result->roomy_ns = s->result->objective_ns;
    }
    if (all_rooms && search_rooms(s, n, &bound_ns, err))
        return err->status;
    s->result->bound_ns = s->known ? min_i64(bound_ns, s->result->objective_ns) : bound_ns;
    return OATO_OK;
}

/* The same with these accelerators only, those of a kind as one, or apart. */
static oato_status step_kinds(struct search *s, uint32_t devices, bool apart, int32_t most,
                              struct oato_error *err)
{
    struct kinds k;
    oato_status status = kinds_fold(&k, s->p, devices, apart, err);
    s->kinds = k.origin ? &k : NULL;
    s->result->bound_ns = 0;
    if (!status && k.n <= most)
        status = step(s, err);
    s->kinds = NULL;
    kinds_free(&k);
    return status;
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

enum {
    SHARES = 3, /* few devices get more of the time: most of the gain comes early */
    FEW_KINDS = 4,
    FEW_DEVICES = 2, /* accelerators that are told apart, though they are of a kind */
};

/* From the largest accelerator alone to all but one, while that gains. */
static oato_status climb(struct search *s, const int32_t *accelerators, int32_t n,
                         struct oato_error *err)
{
    const uint64_t deadline_ns = s->options.deadline_ns;
    const bool rough = s->rough;
    uint32_t devices = 0;
    oato_status status = OATO_OK;
    s->rough = true; /* the bounds of these steps say nothing of all devices */
    for (int32_t i = 0; i < n - 1 && !status; i++) {
        const int64_t before_ns = s->known ? s->result->objective_ns : INT64_MAX;
        devices |= 1u << accelerators[i];
        s->options.deadline_ns = ilp_share(deadline_ns, n - i < SHARES ? n - i : SHARES);
        status = step_kinds(s, devices, i < FEW_DEVICES, SOLVER_DEVICES, err);
        if (i && s->known && s->result->objective_ns == before_ns &&
            kinds_alike(s->p, accelerators[i - 1], accelerators[i]))
            break; /* the second of a kind gained nothing: nor will a third */
    }
    s->rough = rough;
    s->options.deadline_ns = deadline_ns;
    return status;
}

/* All accelerators, those of a kind as one, if that is a smaller problem than without. */
static oato_status search_kinds(struct search *s, uint32_t devices, int32_t n,
                                struct oato_error *err)
{
    const uint64_t deadline_ns = s->options.deadline_ns;
    s->options.deadline_ns = ilp_share(deadline_ns, 2);
    const oato_status status = step_kinds(s, devices, false, n < FEW_KINDS ? n : FEW_KINDS, err);
    s->options.deadline_ns = deadline_ns;
    return status;
}

static oato_status search(struct search *s, struct oato_error *err)
{
    const struct instance *in = &s->p->instance;
    int32_t accelerators[SOLVER_DEVICES];
    /* where files are read rooms.c does it all */
    const int32_t n = s->p->stored ? 0 : list_accelerators(in, accelerators);
    uint32_t devices = 0;
    int64_t bound_ns = 0;
    oato_status status = OATO_OK;
    for (int32_t d = 0; d < in->n_devices; d++)
        devices |= 1u << d;
    if (n > FEW_DEVICES) {
        status = search_kinds(s, devices, n, err);
        bound_ns = s->result->bound_ns;
    }
    if (status || (bound_ns && search_settles(s, bound_ns)) ||
        (n > FEW_DEVICES && s->options.relax_only))
        return status;
    if (!s->options.relax_only)
        status = climb(s, accelerators, n, err);
    s->result->bound_ns = 0;
    if (!status && !bound_ns) /* else there are too many devices to tell apart */
        status = step(s, err);
    s->result->bound_ns = max_i64(bound_ns, s->result->bound_ns);
    return status;
}

/* Teams of accelerators make problems larger, and where memory is short they seldom gain: so a
 * search without them comes first. The bound is that of the second one, which therefore has the
 * rooms of all sizes, too, unless files are read. */
static oato_status search_teams(struct search *s, struct oato_error *err)
{
    struct problem *p = s->p;
    const uint64_t deadline_ns = s->options.deadline_ns;
    struct problem without = *p;
    oato_status status = OATO_OK;
    without.instance.n_teams = 0;
    if (p->instance.n_teams && !s->options.relax_only) {
        s->p = &without;
        s->rough = !p->stored;
        s->options.deadline_ns = ilp_most(deadline_ns);
        status = search(s, err);
        s->p = p;
        s->rough = false;
        s->options.deadline_ns = deadline_ns;
        s->result->bound_ns = 0;
    }
    return status ? status : search(s, err);
}

oato_status search_placement(struct problem *p, const struct ilp_options *o, const int32_t *warm,
                             int32_t *place, int32_t *roomy, struct ilp_result *result,
                             struct oato_error *err)
{
    const size_t units = (size_t)p->instance.n_units + 1;
    struct search s = {.p = p,
                       .options = *o,
                       .result = result,
                       .best = place,
                       .roomy = roomy,
                       .enough_ns = o->enough_ns};
    oato_status status = OATO_OK;
    memset(result, 0, sizeof *result);
    s.scratch = malloc(units * sizeof *s.scratch);
    s.folded = malloc(units * sizeof *s.folded);
    s.all = calloc(2 * (SETS + ROOMS), sizeof *s.all);
    if (warm) {
        memmove(place, warm, sizeof *place * (size_t)p->instance.n_units);
        result->objective_ns = instance_price(&p->instance, warm).objective_ns;
        s.known = true;
    }
    if (!s.scratch || !s.folded || !s.all)
        status = oato_fail_memory(err, units * sizeof *s.scratch, "a placement");
    else
        status = search_teams(&s, err);
    free(s.scratch);
    free(s.folded);
    free(s.all);
    if (!status && !s.known)
        status = oato_fail(err, OATO_NEGATIVE, "no placement was found");
    return status;
}
