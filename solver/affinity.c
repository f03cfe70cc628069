/*
 * affinity.c - Algorithm 1 of the OATO paper. A unit's affinity to a device is the time it saves
 * there per byte it takes; units are taken in order of affinity while they fit. Each
 * iteration adds the cost of the copies that a move would cause under the last placement and sorts
 * again, until the order or the placement repeats; the best placement seen is the result.
 *
 * The paper scales affinities to [0, 1]; that changes no order and is left out. With several
 * accelerators the order is over (unit, device) pairs. A unit that can be split has a chain of
 * steps per device, from none of it to all: the affinity of a step is its gain over the previous
 * step, and steps that a longer one beats are dropped, so that affinity falls along a chain.
 */
#include "solver/solver.h"

#include <stdlib.h>
#include <string.h>

struct step {
    double affinity;
    int32_t unit, device, option;
    int32_t before; /* the option that must have been taken; -1: the unit is still on the host */
};

struct candidate {
    int64_t gain_ns;
    uint64_t bytes;
    int32_t option;
};

struct search {
    const struct instance *in;
    struct step *steps, *last;
    int32_t n_steps, n_last;
    struct candidate *candidates; /* scratch, one for each option of a unit */
    int32_t *edge_first, *edges;  /* edges of unit u: edges[edge_first[u] .. edge_first[u + 1]) */
    int32_t *place, *trial;
    int32_t *seen; /* placements of all rounds, n_units each */
    int32_t n_seen;
    struct affinity_round *trace;
    int32_t n_trace;
};

static int compare_steps(const void *x, const void *y)
{
    const struct step *a = x, *b = y;
    int c = order_f64(b->affinity, a->affinity);
    c = c ? c : order_i64(a->unit, b->unit);
    c = c ? c : order_i64(a->device, b->device);
    return c ? c : order_i64(a->option, b->option);
}

static void index_edges(struct search *s)
{
    const struct instance *in = s->in;
    int32_t *first = s->edge_first; /* counts, then ends, which filling moves to the beginnings */
    for (int32_t i = 0; i < in->n_edges; i++)
        first[in->edges[i].producer]++;
    for (int32_t r = 0; r < in->n_readers; r++)
        first[in->readers[r]]++;
    for (int32_t u = 1; u <= in->n_units; u++)
        first[u] += first[u - 1];
    for (int32_t i = 0; i < in->n_edges; i++) {
        const struct edge *e = &in->edges[i];
        s->edges[--first[e->producer]] = i;
        for (int32_t r = 0; r < e->n_readers; r++)
            s->edges[--first[in->readers[e->first_reader + r]]] = i;
    }
}

static int64_t copies_around(const struct search *s, int32_t unit)
{
    int64_t sum = 0;
    for (int32_t i = s->edge_first[unit]; i < s->edge_first[unit + 1]; i++)
        sum = ns_add(sum, edge_price(s->in, &s->in->edges[s->edges[i]], s->trial).objective_ns);
    return sum;
}

/* What copies cost more when the unit runs in another way than on the host, all else as placed:
 * only where it reads and writes counts. */
static int64_t copies_caused(const struct search *s, int32_t unit, int32_t option)
{
    int32_t was = s->trial[unit];
    s->trial[unit] = option;
    int64_t there = copies_around(s, unit);
    s->trial[unit] = s->in->host;
    int64_t here = copies_around(s, unit);
    s->trial[unit] = was;
    return there - here;
}

/* May the option be a step of the unit's chain to the device? */
static bool leads_to(const struct instance *in, int32_t unit, int32_t option, int32_t device)
{
    const struct option *o = &in->units[unit].options[option];
    uint32_t others = o->uses & ~(1u << device) & ~(1u << in->host);
    return o->uses >> device & 1 && !others && o->stream < 0 && instance_allows(in, unit, option);
}

static int compare_candidates(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;
    int c = order_i64(a->bytes, b->bytes);
    c = c ? c : order_i64(b->gain_ns, a->gain_ns);
    return c ? c : order_i64(a->option, b->option);
}

static double slope(const struct candidate *from, const struct candidate *to)
{
    uint64_t bytes = to->bytes - from->bytes;
    return (double)(to->gain_ns - from->gain_ns) / (double)(bytes ? bytes : 1);
}

/* What the unit may do on the device, by bytes. */
static int32_t list_candidates(struct search *s, int32_t unit, int32_t d, bool charge_copies)
{
    const struct instance *in = s->in;
    const struct unit *u = &in->units[unit];
    int64_t caused[SOLVER_DEVICES][SOLVER_DEVICES];
    bool known[SOLVER_DEVICES][SOLVER_DEVICES] = {{false}};
    int32_t n = 0;
    for (int32_t i = 0; i < u->n_options; i++) {
        const struct option *o = &u->options[i];
        if (!leads_to(in, unit, i, d))
            continue;
        int64_t gain = u->options[in->host].price.objective_ns - o->price.objective_ns;
        const int16_t reads = o->in[PHASE_DECODE],
                      writes = o->out[PHASE_DECODE]; /* in both phases */
        if (charge_copies && !known[reads][writes]) {
            caused[reads][writes] = copies_caused(s, unit, i);
            known[reads][writes] = true;
        }
        if (charge_copies)
            gain -= caused[reads][writes];
        s->candidates[n++] = (struct candidate){gain, o->bytes[d], i};
    }
    qsort(s->candidates, (size_t)n, sizeof *s->candidates, compare_candidates);
    return n;
}

/* The chain of a unit to a device: the upper hull of gain over bytes, from (0, 0). */
static void add_chain(struct search *s, int32_t unit, int32_t d, bool charge_copies)
{
    const struct candidate origin = {0, 0, -1};
    struct candidate *hull = s->candidates; /* grows no faster than it is read */
    int32_t n = list_candidates(s, unit, d, charge_copies), kept = 0;
    bool stuck = !instance_allows(s->in, unit, s->in->host);
    for (int32_t i = 0; i < n; i++) {
        struct candidate c = s->candidates[i];
        while (kept) {
            const struct candidate *top = &hull[kept - 1];
            const struct candidate *below = kept > 1 ? &hull[kept - 2] : &origin;
            if (c.bytes == top->bytes || slope(top, &c) < slope(below, top))
                break;
            kept--;
        }
        if (!kept || (c.bytes > hull[kept - 1].bytes && c.gain_ns > hull[kept - 1].gain_ns))
            hull[kept++] = c;
    }
    for (int32_t i = 0; i < kept; i++)
        s->steps[s->n_steps++] = (struct step){
            .affinity = stuck && !i ? 1e300 /* it must leave the host */
                                    : slope(i ? &hull[i - 1] : &origin, &hull[i]),
            .unit = unit,
            .device = d,
            .option = hull[i].option,
            .before = i ? hull[i - 1].option : -1,
        };
}

static void order_steps(struct search *s, bool charge_copies)
{
    const struct instance *in = s->in;
    memcpy(s->trial, s->place, sizeof(int32_t) * (size_t)in->n_units);
    s->n_steps = 0;
    for (int32_t u = 0; u < in->n_units; u++)
        for (int32_t d = 0; d < in->n_devices; d++)
            if (d != in->host)
                add_chain(s, u, d, charge_copies);
    qsort(s->steps, (size_t)s->n_steps, sizeof *s->steps, compare_steps);
}

/* Takes steps in order while they gain and fit; beyond that only while the host is too full. */
static bool fill(struct search *s)
{
    const struct instance *in = s->in;
    uint64_t used[SOLVER_DEVICES] = {0};
    for (int32_t u = 0; u < in->n_units; u++) {
        s->place[u] = in->host;
        used[in->host] += in->units[u].options[in->host].bytes[in->host];
    }
    for (int32_t i = 0; i < s->n_steps; i++) {
        const struct step *p = &s->steps[i];
        const struct option *from = &in->units[p->unit].options[s->place[p->unit]];
        const struct option *to = &in->units[p->unit].options[p->option];
        if (p->affinity <= 0 && used[in->host] <= in->capacity[in->host])
            break;
        if (s->place[p->unit] != (p->before < 0 ? in->host : p->before) ||
            used[p->device] - from->bytes[p->device] + to->bytes[p->device] >
                in->capacity[p->device])
            continue;
        for (int32_t d = 0; d < in->n_devices; d++)
            used[d] += to->bytes[d] - from->bytes[d];
        s->place[p->unit] = p->option;
    }
    return instance_fits(in, s->place, NULL);
}

static bool seen_before(struct search *s)
{
    size_t n = (size_t)s->in->n_units;
    for (int32_t i = 0; i < s->n_seen; i++)
        if (!memcmp(s->seen + (size_t)i * n, s->place, n * sizeof(int32_t)))
            return true;
    memcpy(s->seen + (size_t)s->n_seen++ * n, s->place, n * sizeof(int32_t));
    return false;
}

static bool same_order(const struct search *s)
{
    if (s->n_steps != s->n_last)
        return false;
    for (int32_t i = 0; i < s->n_steps; i++)
        if (s->steps[i].unit != s->last[i].unit || s->steps[i].option != s->last[i].option)
            return false;
    return true;
}

static void note_round(struct search *s, int64_t ns, bool fits)
{
    if (!s->trace)
        return;
    struct affinity_round *r = &s->trace[s->n_trace++];
    *r = (struct affinity_round){.objective_ns = ns, .fits = fits};
    for (int32_t u = 0; u < s->in->n_units; u++)
        r->moved += s->place[u] != s->trial[u]; /* trial: as the round found it */
    for (int32_t u = 0; u < s->in->n_units; u++)
        r->on_accelerators += s->place[u] != s->in->host;
}

static bool iterate(struct search *s, bool single_shot, int32_t *best)
{
    size_t bytes = sizeof(int32_t) * (size_t)s->in->n_units;
    bool found = !single_shot && solve_cpu(s->in, best);
    int64_t best_ns = found ? instance_price(s->in, best).objective_ns : INT64_MAX;
    for (int round = 0; round < AFFINITY_ROUNDS; round++) {
        order_steps(s, round > 0);
        if (round && same_order(s))
            break;
        bool fits = fill(s);
        int64_t ns = instance_price(s->in, s->place).objective_ns;
        note_round(s, ns, fits);
        if (fits && ns < best_ns) {
            best_ns = ns;
            memcpy(best, s->place, bytes);
            found = true;
        }
        if (single_shot || seen_before(s))
            break;
        memcpy(s->last, s->steps, sizeof *s->steps * (size_t)s->n_steps);
        s->n_last = s->n_steps;
    }
    return found;
}

oato_status solve_affinity(const struct instance *in, bool single_shot, int32_t *place,
                           struct affinity_round *trace, int32_t *n_trace, struct oato_error *err)
{
    size_t n = (size_t)in->n_units, options = 0, most = 0;
    struct arena a;
    arena_init(&a);
    struct search s = {.in = in, .trace = trace};
    for (size_t u = 0; u < n; u++) {
        size_t here = (size_t)in->units[u].n_options;
        options += here;
        most = here > most ? here : most;
    }
    options *= (size_t)in->n_devices;
    s.candidates = arena_alloc(&a, most + 1, sizeof *s.candidates);
    s.steps = arena_alloc(&a, options + 1, sizeof *s.steps);
    s.last = arena_alloc(&a, options + 1, sizeof *s.last);
    s.edge_first = arena_alloc(&a, n + 2, sizeof(int32_t));
    s.edges = arena_alloc(&a, (size_t)in->n_edges + (size_t)in->n_readers + 1, sizeof(int32_t));
    s.place = arena_alloc(&a, n + 1, sizeof(int32_t));
    s.trial = arena_alloc(&a, n + 1, sizeof(int32_t));
    s.seen = arena_alloc(&a, n * AFFINITY_ROUNDS + 1, sizeof(int32_t));
    oato_status status = OATO_OK;
    if (!s.candidates || !s.steps || !s.last || !s.edge_first || !s.edges || !s.place || !s.trial ||
        !s.seen) {
        status =
            oato_fail_memory(err, n * AFFINITY_ROUNDS * sizeof(int32_t), "the affinity search");
        goto out;
    }
    for (size_t u = 0; u < n; u++)
        s.place[u] = in->host;
    index_edges(&s);
    if (!iterate(&s, single_shot, place))
        status = oato_fail(err, OATO_NEGATIVE, "affinity found no placement that fits");
out:
    if (trace)
        *n_trace = s.n_trace;
    arena_free(&a);
    return status;
}
