/*
 * affinity.c - Algorithm 1 of the OATO paper. A unit's affinity to a device is the time it saves
 * there per byte it takes; units are taken in order of affinity while they fit. The iteration
 * charges each unit with the copies that its move would cause under the last placement and orders
 * again, until the order or the placement repeats; the best placement seen is the result.
 *
 * The paper scales affinities to [0, 1]; that changes no order and is left out. With several
 * accelerators the order is over (unit, device) pairs.
 */
#include "solver/solver.h"

#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 64 };

struct pair {
    double affinity;
    int32_t unit, device;
};

struct search {
    const struct instance *in;
    struct pair *pairs, *last;
    int32_t n_pairs;
    int32_t *edge_first, *edges; /* edges of unit u: edges[edge_first[u] .. edge_first[u + 1]) */
    int32_t *place, *trial;
    int32_t *seen; /* placements of all rounds, n_units each */
    int32_t n_seen;
};

static int compare_pairs(const void *x, const void *y)
{
    const struct pair *a = x, *b = y;
    if (a->affinity != b->affinity)
        return a->affinity > b->affinity ? -1 : 1;
    if (a->unit != b->unit)
        return a->unit < b->unit ? -1 : 1;
    return (a->device > b->device) - (a->device < b->device);
}

static void index_edges(struct search *s)
{
    const struct instance *in = s->in;
    int32_t *count = s->edge_first + 1;
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < in->n_edges; i++) {
            const struct edge *e = &in->edges[i];
            for (int32_t r = -1; r < e->n_readers; r++) {
                int32_t u = r < 0 ? e->producer : in->readers[e->first_reader + r];
                if (pass)
                    s->edges[s->edge_first[u]++] = i;
                else
                    count[u]++;
            }
        }
        if (!pass) {
            for (int32_t u = 0; u < in->n_units; u++)
                s->edge_first[u + 1] += s->edge_first[u];
        } else { /* filling moved every begin to its end */
            memmove(s->edge_first + 1, s->edge_first, sizeof(int32_t) * (size_t)in->n_units);
            s->edge_first[0] = 0;
        }
    }
}

static int64_t copies_around(const struct search *s, int32_t unit)
{
    int64_t sum = 0;
    for (int32_t i = s->edge_first[unit]; i < s->edge_first[unit + 1]; i++)
        sum += edge_price(s->in, &s->in->edges[s->edges[i]], s->trial).objective_ns;
    return sum;
}

/* What copies cost more when the unit is on the device instead of the host, all else as placed. */
static int64_t copies_caused(const struct search *s, int32_t unit, int32_t device)
{
    int32_t was = s->trial[unit];
    s->trial[unit] = device;
    int64_t there = copies_around(s, unit);
    s->trial[unit] = s->in->host;
    int64_t here = copies_around(s, unit);
    s->trial[unit] = was;
    return there - here;
}

static void order_pairs(struct search *s, bool charge_copies)
{
    const struct instance *in = s->in;
    memcpy(s->trial, s->place, sizeof(int32_t) * (size_t)in->n_units);
    s->n_pairs = 0;
    for (int32_t u = 0; u < in->n_units; u++) {
        const struct unit *unit = &in->units[u];
        for (int32_t d = 0; d < in->n_devices; d++) {
            if (d == in->host || !instance_allows(in, u, d))
                continue;
            struct pair *p = &s->pairs[s->n_pairs++];
            p->unit = u;
            p->device = d;
            if (!instance_allows(in, u, in->host)) {
                p->affinity = 1e300; /* it must leave the host */
                continue;
            }
            int64_t gain = unit->price[in->host].objective_ns - unit->price[d].objective_ns;
            if (charge_copies)
                gain -= copies_caused(s, u, d);
            p->affinity = (double)gain / (double)(unit->bytes[d] ? unit->bytes[d] : 1);
        }
    }
    qsort(s->pairs, (size_t)s->n_pairs, sizeof *s->pairs, compare_pairs);
}

/* Takes pairs in order while they gain and fit; beyond that only while the host is too full. */
static bool fill(struct search *s)
{
    const struct instance *in = s->in;
    uint64_t used[SOLVER_DEVICES] = {0};
    for (int32_t u = 0; u < in->n_units; u++) {
        s->place[u] = in->host;
        used[in->host] += in->units[u].bytes[in->host];
    }
    for (int32_t i = 0; i < s->n_pairs; i++) {
        const struct pair *p = &s->pairs[i];
        const struct unit *u = &in->units[p->unit];
        if (p->affinity <= 0 && used[in->host] <= in->capacity[in->host])
            break;
        if (s->place[p->unit] != in->host ||
            used[p->device] + u->bytes[p->device] > in->capacity[p->device])
            continue;
        used[in->host] -= u->bytes[in->host];
        used[p->device] += u->bytes[p->device];
        s->place[p->unit] = p->device;
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
    for (int32_t i = 0; i < s->n_pairs; i++)
        if (s->pairs[i].unit != s->last[i].unit || s->pairs[i].device != s->last[i].device)
            return false;
    return true;
}

static bool iterate(struct search *s, bool single_shot, int32_t *best)
{
    size_t bytes = sizeof(int32_t) * (size_t)s->in->n_units;
    bool found = !single_shot && solve_cpu(s->in, best);
    int64_t best_ns = found ? instance_price(s->in, best).objective_ns : INT64_MAX;
    for (int round = 0; round < ROUNDS_MAX; round++) {
        order_pairs(s, round > 0);
        if (round && same_order(s))
            break;
        bool fits = fill(s);
        int64_t ns = instance_price(s->in, s->place).objective_ns;
        if (fits && ns < best_ns) {
            best_ns = ns;
            memcpy(best, s->place, bytes);
            found = true;
        }
        if (single_shot || seen_before(s))
            break;
        memcpy(s->last, s->pairs, sizeof *s->pairs * (size_t)s->n_pairs);
    }
    return found;
}

oato_status solve_affinity(const struct instance *in, bool single_shot, int32_t *place,
                           struct oato_error *err)
{
    size_t n = (size_t)in->n_units;
    struct arena a;
    arena_init(&a);
    struct search s = {.in = in};
    s.pairs = arena_alloc(&a, n * SOLVER_DEVICES + 1, sizeof *s.pairs);
    s.last = arena_alloc(&a, n * SOLVER_DEVICES + 1, sizeof *s.last);
    s.edge_first = arena_alloc(&a, n + 2, sizeof(int32_t));
    s.edges = arena_alloc(&a, (size_t)in->n_edges + (size_t)in->n_readers + 1, sizeof(int32_t));
    s.place = arena_alloc(&a, n + 1, sizeof(int32_t));
    s.trial = arena_alloc(&a, n + 1, sizeof(int32_t));
    s.seen = arena_alloc(&a, n * ROUNDS_MAX + 1, sizeof(int32_t));
    oato_status status = OATO_OK;
    if (!s.pairs || !s.last || !s.edge_first || !s.edges || !s.place || !s.trial || !s.seen) {
        status = oato_fail_memory(err, n * ROUNDS_MAX * sizeof(int32_t), "the affinity search");
        goto out;
    }
    for (size_t u = 0; u < n; u++)
        s.place[u] = in->host;
    index_edges(&s);
    if (!iterate(&s, single_shot, place))
        status = oato_fail(err, OATO_NEGATIVE, "affinity found no placement that fits");
out:
    arena_free(&a);
    return status;
}
