/*
 * rooms.c - what the ILP cannot say: the memory of rooms depends on all that goes through them.
 * Those are the staging room of each accelerator, which holds two of the largest record that is
 * streamed to it, its rooms for streamed KV, and in the host's memory the rings and KV rooms of
 * what is read from a file.
 *
 * So this is a branch and bound over their sizes. A *range* is all placements whose rooms lie
 * between two sizes each. Its relaxation takes the least of them out of the devices' memory and
 * allows all that may be in the range: it has more placements than really fit and lacks none, so
 * that the least bound of all ranges is a bound of everything. A placement is looked for with the
 * most of them taken out, where every one fits; of rings, whose most is far too much, with what the
 * placements found before take. The range with the least bound is divided next.
 *
 * What lies outside of this bound: caches of experts, which are added to finished plans (caches.c),
 * and what options are made of (divide.c, cover.c).
 */
#include "solver/ilp/search_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    RANGES_MOST = 100,
    FRUITLESS = 6,
    FRUITLESS_FILES = 12,
    RETRIES = 3,
    WALKS = 2,
    CLOSING = 3
};

/* From where weights are streamed to an accelerator: not from both (lowering). */
enum mode { FROM_ANY, FROM_HOST, FROM_FILE };

/* Rooms: the staging room of each accelerator, and its room for KV; what the largest matrix of the
 * host takes that is in the file, and what KV takes. */
enum { ROOM_HISTORY = SOLVER_DEVICES, ROOM_MATRICES = 2 * SOLVER_DEVICES, ROOM_KV, ROOMS };

struct range {
    uint64_t lo[ROOMS], hi[ROOMS]; /* their sizes, which occur; 0: nothing goes through it */
    enum mode mode[SOLVER_DEVICES];
    bool searched; /* that is: the same problem was, as another range */
    int64_t bound_ns;
};

struct rooms {
    struct search *s;
    struct instance in; /* all of it: anything may be streamed, rooms take nothing */
    bool stored;        /* some options read from a file; */
    bool both;          /* others of accelerators from the host */
    uint32_t like_before[SOLVER_DEVICES];
    struct range *ranges;
    int32_t n_ranges;
    int32_t fruitless, patience; /* searches in turn that found nothing better; as many as may */
    int64_t done_ns;             /* the least bound of ranges that are closed */
};

/* ------------------------------------------------------------------------------- sizes ----- */

/* The size nearest to one: the largest up to it, or the least above. There is one. */
static uint64_t size_near(const struct rooms *r, int32_t room, uint64_t at, bool above)
{
    uint64_t found = above ? UINT64_MAX : 0;
    const bool staging = room < ROOM_HISTORY;
    const struct problem *p = r->s->p;
    for (int32_t u = 0; u < r->in.n_units && room < ROOM_MATRICES; u++)
        for (int32_t i = r->in.n_devices; i < r->in.units[u].n_options; i++) {
            const struct option *o = &r->in.units[u].options[i];
            const uint64_t size = staging ? 2 * o->staged : o->rooms;
            if (o->stream == room % SOLVER_DEVICES && (size > at) == above)
                found = (size < found) == above ? size : found;
        }
    for (int32_t i = 0; i < p->graph.n_ops && room >= ROOM_MATRICES && r->stored; i++) {
        const bool kv = p->graph.ops[i].op.kind == OP_KV_STORE;
        const uint64_t size =
            storage_takes(p, i) && kv == (room == ROOM_KV) ? storage_room(p, i, r->in.host) : 0;
        if ((size > at) == above)
            found = (size < found) == above ? size : found;
    }
    return found;
}

/* A range with all sizes. */
static struct range whole_of(struct rooms *r)
{
    struct range x = {.mode = {FROM_ANY}};
    bool host = false;
    for (int32_t u = 0; u < r->in.n_units; u++)
        for (int32_t i = r->in.n_devices; i < r->in.units[u].n_options; i++) {
            const struct option *o = &r->in.units[u].options[i];
            r->stored = r->stored || o->stores;
            host = host || (o->stream >= 0 && !o->filed);
        }
    r->both = host && r->stored;
    r->patience = r->stored ? FRUITLESS_FILES : FRUITLESS;
    for (int32_t k = 0; k < ROOMS; k++)
        if (k >= ROOM_MATRICES || r->in.usable[k % SOLVER_DEVICES])
            x.hi[k] = size_near(r, k, UINT64_MAX - 1, false);
    return x;
}

/* ------------------------------------------------------------------------ what is allowed -- */

/* True if the host's share of the option that is in the file is within the range's rooms. */
static bool stores_within(const struct rooms *r, const struct range *x, int32_t unit,
                          const struct option *o)
{
    const struct problem *p = r->s->p;
    int32_t ops[STORES_MAX];
    const int32_t n = storage_of_unit(p, unit, ops);
    for (int32_t k = 0; k < n; k++) {
        const bool kv = p->graph.ops[ops[k]].op.kind == OP_KV_STORE;
        if (o->stores >> k & 1 &&
            storage_room(p, ops[k], r->in.host) > x->hi[kv ? ROOM_KV : ROOM_MATRICES])
            return false;
    }
    return true;
}

/* `x` NULL: everything. */
static void allow(const struct rooms *r, const struct range *x)
{
    for (int32_t u = 0; u < r->in.n_units && r->stored; u++)
        for (int32_t i = r->in.n_devices; i < r->in.units[u].n_options; i++) {
            struct option *o = &r->in.units[u].options[i];
            if (!o->stores && o->stream < 0)
                continue;
            if (!x)
                o->allowed = true;
            else if (o->stream < 0)
                o->allowed = stores_within(r, x, u, o);
            else
                o->allowed =
                    x->mode[o->stream] == FROM_ANY || o->filed == (x->mode[o->stream] == FROM_FILE);
        }
}

/* The range's instance: rooms of these sizes, and so much of the host's memory for others. False:
 * that does not fit. */
static bool range_instance(const struct rooms *r, const struct range *x, const uint64_t *sizes,
                           uint64_t host, struct instance *out)
{
    *out = r->in;
    out->streams = 0;
    for (int32_t d = 0; d < out->n_devices; d++) {
        const uint64_t room = sizes[d] + sizes[ROOM_HISTORY + d];
        out->streams |= x->hi[d] || x->hi[ROOM_HISTORY + d] ? 1u << d : 0;
        out->staging[d] = x->hi[d];
        out->rooms[d] = x->hi[ROOM_HISTORY + d];
        if (room > out->capacity[d])
            return false;
        out->capacity[d] -= room;
    }
    if (host > out->capacity[out->host])
        return false;
    out->capacity[out->host] -= host;
    return true;
}

/* What rings and KV rooms take at least. */
static uint64_t host_least(const struct rooms *r, const struct range *x)
{
    uint64_t sum = x->lo[ROOM_MATRICES] + x->lo[ROOM_KV];
    for (int32_t d = 0; d < r->in.n_devices; d++)
        if (x->mode[d] == FROM_FILE)
            sum += x->lo[d]; /* its ring is as large as its staging room, at least */
    return sum;
}

/* True when exchanging equal devices makes another range of it. */
static bool range_mirrors(const struct rooms *r, const struct range *x)
{
    for (int32_t d = 0; d < r->in.n_devices; d++)
        for (int32_t e = 0; e < d; e++)
            if (r->like_before[d] >> e & 1 && x->hi[e] < x->lo[d])
                return true;
    return false;
}

/* ------------------------------------------------------------------------------- solving --- */

/* Keeps what was found where some is read from a file, if it fits and is better; *host: what its
 * rings and KV rooms take. */
static oato_status take_stored(struct rooms *r, uint64_t *host, bool *fits, struct oato_error *err)
{
    struct problem *p = r->s->p;
    const struct instance was = p->instance;
    if (storage_refine(p, r->s->scratch, fits, err))
        return err->status;
    *host = p->ring_bytes;
    storage_unset(p);
    p->instance = was;
    if (*fits)
        search_take(r->s, instance_price(&was, r->s->scratch).objective_ns);
    return OATO_OK;
}

/* Solves or relaxes a range's instance. *fits: what was found, or that nothing was. */
static oato_status range_solve(struct rooms *r, const struct range *x, struct streaming *t,
                               struct ilp_options o, uint64_t *host, bool *fits,
                               struct oato_error *err)
{
    struct search *s = r->s;
    struct ilp_result found = {0};
    *fits = true;
    o.gap = s->options.gap;
    o.deadline_ns = s->options.deadline_ns;
    if (!r->stored)
        return search_attempt(s, t, o, err);
    o.enough_ns = search_enough_ns(s);
    allow(r, x);
    const oato_status status = solve_ilp(&t->in, &o, NULL, s->scratch, &found, err);
    allow(r, NULL);
    s->result->timed_out = s->result->timed_out || found.timed_out;
    t->bound_ns = max_i64(t->bound_ns, found.bound_ns);
    if (!status)
        return take_stored(r, host, fits, err);
    return status == OATO_NEGATIVE ? OATO_OK : status;
}

/* Adds a range of one with that bound, unless nothing is in it. */
static oato_status range_add(struct rooms *r, struct range x, struct oato_error *err)
{
    struct streaming t = {.bound_ns = x.bound_ns};
    uint64_t host = host_least(r, &x);
    bool fits;
    if (range_mirrors(r, &x) || !range_instance(r, &x, x.lo, host, &t.in))
        return OATO_OK;
    if (range_solve(r, &x, &t, (struct ilp_options){.relax_only = true}, &host, &fits, err))
        return err->status;
    x.bound_ns = t.bound_ns;
    if (x.bound_ns < INT64_MAX)
        r->ranges[r->n_ranges++] = x;
    return OATO_OK;
}

/* Divides a range in two or three, where its rooms differ most; false: they are known. */
static oato_status range_divide(struct rooms *r, struct range x, bool *divided,
                                struct oato_error *err)
{
    int32_t widest = 0, d;
    for (int32_t k = 0; k < ROOMS; k++)
        if (x.hi[k] - x.lo[k] > x.hi[widest] - x.lo[widest])
            widest = k;
    *divided = x.hi[widest] > x.lo[widest];
    if (!*divided)
        return OATO_OK;
    struct range low = x, high = x;
    low.searched = false;
    d = widest % SOLVER_DEVICES;
    high.searched = x.searched && widest < ROOM_MATRICES && x.mode[d] != FROM_FILE;
    const uint64_t at = x.lo[widest] ? x.lo[widest] + (x.hi[widest] - x.lo[widest]) / 2 : 0;
    low.hi[widest] = size_near(r, widest, at, false);
    high.lo[widest] = size_near(r, widest, at, true);
    if (range_add(r, low, err))
        return err->status;
    if (widest >= ROOM_HISTORY || x.mode[d] != FROM_ANY || !r->both)
        return range_add(r, high, err);
    high.searched = false;
    high.mode[d] = FROM_FILE;
    if (range_add(r, high, err))
        return err->status;
    high.mode[d] = FROM_HOST;
    return range_add(r, high, err);
}

/* Looks for a better placement in a range. */
static oato_status range_search(struct rooms *r, const struct range *x, struct oato_error *err)
{
    const struct search *s = r->s;
    uint64_t host = host_least(r, x);
    bool fits = false;
    const int64_t before_ns = s->known ? s->result->objective_ns : INT64_MAX;
    r->fruitless++;
    for (int i = 0; i < RETRIES && !fits; i++) {
        struct streaming t = {.bound_ns = 0};
        if (!range_instance(r, x, x->hi, host, &t.in))
            return OATO_OK;
        if (range_solve(r, x, &t, (struct ilp_options){.no_search = true, .walks = WALKS}, &host,
                        &fits, err))
            return err->status;
    }
    if (s->known && s->result->objective_ns < before_ns)
        r->fruitless = 0;
    return OATO_OK;
}

/* One that is not divided further: searched to the end if nothing may be left open, so that small
 * problems are solved exactly; else what is left would take long, for little. */
static oato_status range_close(struct rooms *r, const struct range *x, struct oato_error *err)
{
    struct streaming t = {.bound_ns = x->bound_ns};
    uint64_t host = host_least(r, x);
    bool fits;
    const bool exact = !(r->s->options.gap > 0);
    if (!range_instance(r, x, x->lo, host, &t.in))
        return OATO_OK;
    const oato_status status = range_solve(
        r, x, &t, (struct ilp_options){.no_search = !exact, .walks = exact ? 0 : CLOSING}, &host,
        &fits, err);
    r->done_ns = min_i64(r->done_ns, t.bound_ns);
    return status;
}

/* ------------------------------------------------------------------------------ all of it -- */

/* Raises the bound of a range of one size each to that of the same problem where it was solved. */
static void range_known(const struct rooms *r, int32_t n, struct range *x)
{
    for (int32_t i = 0; i < n && !r->stored; i++) {
        const struct instance *in = &r->s->all[i].in;
        bool same = true;
        for (int32_t d = 0; d < in->n_devices && same; d++) {
            const bool streams = in->streams >> d & 1;
            const uint64_t staging = streams ? in->staging[d] : 0,
                           rooms = streams ? in->rooms[d] : 0;
            same = x->lo[d] >= staging && x->hi[d] <= staging && x->lo[ROOM_HISTORY + d] >= rooms &&
                   x->hi[ROOM_HISTORY + d] <= rooms;
        }
        if (same)
            x->bound_ns = max_i64(x->bound_ns, r->s->all[i].bound_ns);
    }
}

static int32_t least_of(const struct rooms *r)
{
    int32_t least = 0;
    for (int32_t i = 1; i < r->n_ranges; i++)
        if (r->ranges[i].bound_ns < r->ranges[least].bound_ns)
            least = i;
    return least;
}

static oato_status climb(struct rooms *r, int32_t n, struct ilp_clock *clock,
                         struct oato_error *err)
{
    const int32_t most = r->s->options.relax_only ? 0 : RANGES_MOST;
    oato_status status = range_add(r, whole_of(r), err);
    for (int32_t some = 0; !status && r->n_ranges && some < most; some += 3) {
        const int32_t at = least_of(r);
        struct range x = r->ranges[at];
        bool divided;
        range_known(r, n, &x);
        r->ranges[at].bound_ns = x.bound_ns;
        if (at != least_of(r))
            continue;
        if (search_settles(r->s, x.bound_ns) || ilp_late(clock))
            break;
        if (x.bound_ns >= r->done_ns && r->fruitless >= r->patience)
            break; /* no more to prove, nor to find */
        r->ranges[at] = r->ranges[--r->n_ranges];
        if (!x.searched && r->fruitless < r->patience)
            status = range_search(r, &x, err);
        x.searched = true;
        if (!status)
            status = range_divide(r, x, &divided, err);
        if (!status && !divided)
            status = range_close(r, &x, err);
    }
    return status;
}

oato_status search_rooms(struct search *s, int32_t n, int64_t *bound_ns, struct oato_error *err)
{
    struct rooms r = {.s = s, .in = *search_instance(s), .done_ns = INT64_MAX};
    struct ilp_clock clock = {.deadline_ns = s->options.deadline_ns};
    r.ranges = malloc(2 * RANGES_MOST * sizeof *r.ranges);
    if (!r.ranges)
        return oato_fail_memory(err, 2 * RANGES_MOST * sizeof *r.ranges, "rooms for weights");
    for (int32_t d = 0; d < r.in.n_devices && !s->kinds; d++)
        r.like_before[d] = search_like_before(s->p, d);
    const oato_status status = climb(&r, n, &clock, err);
    *bound_ns = r.done_ns;
    for (int32_t i = 0; i < r.n_ranges; i++)
        *bound_ns = min_i64(*bound_ns, r.ranges[i].bound_ns);
    s->result->timed_out = s->result->timed_out || clock.ended;
    free(r.ranges);
    return status;
}
