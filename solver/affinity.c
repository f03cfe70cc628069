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

/* The options by which a unit may move to each accelerator. Equal units share one. */
struct leading {
    const struct option *of;
    int32_t *list, first[SOLVER_DEVICES + 1]; /* to device d: list[first[d] .. first[d + 1]) */
};

struct search {
    const struct instance *in;
    struct ilp_clock *clock;
    struct step *steps, *last; /* malloc */
    int32_t n_steps, n_last;
    size_t steps_cap, last_cap;
    bool failed;                  /* memory was short */
    struct candidate *candidates; /* scratch, one for each option of a unit */
    struct leading *leading;
    int32_t *leading_of; /* per unit */
    struct edges_around around;
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

/* What copies cost more when the unit runs in another way than on the host, all else as placed:
 * only where it reads and writes counts. */
static int64_t copies_caused(const struct search *s, int32_t unit, int32_t option)
{
    int32_t was = s->trial[unit];
    s->trial[unit] = option;
    int64_t there = edges_around_ns(s->in, &s->around, unit, s->trial);
    s->trial[unit] = s->in->host;
    int64_t here = edges_around_ns(s->in, &s->around, unit, s->trial);
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

/* Lists what leads to each accelerator, once for all units that share their options. */
static bool list_leading(struct search *s, struct arena *a)
{
    const struct instance *in = s->in;
    int32_t n = 0;
    for (int32_t u = 0; u < in->n_units; u++) {
        const struct unit *unit = &in->units[u];
        int32_t at = n - 1, count = 0;
        while (at >= 0 && s->leading[at].of != unit->options)
            at--;
        s->leading_of[u] = at < 0 ? n : at;
        if (at >= 0)
            continue;
        struct leading *x = &s->leading[n++];
        x->of = unit->options;
        for (int pass = 0; pass < 2; pass++) {
            count = 0;
            for (int32_t d = 0; d < in->n_devices; d++) {
                x->first[d] = count;
                for (int32_t i = 0; d != in->host && i < unit->n_options; i++)
                    if (leads_to(in, u, i, d)) {
                        if (pass)
                            x->list[count] = i;
                        count++;
                    }
            }
            x->first[in->n_devices] = count;
            if (!pass && !(x->list = arena_alloc(a, (size_t)count + 1, sizeof *x->list)))
                return false;
        }
    }
    return true;
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
    const struct leading *x = &s->leading[s->leading_of[unit]];
    int32_t n = 0;
    for (int32_t k = x->first[d]; k < x->first[d + 1]; k++) {
        const int32_t i = x->list[k];
        const struct option *o = &u->options[i];
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
    for (int32_t i = 0; i < kept; i++) {
        struct step *more =
            array_room(s->steps, (size_t)s->n_steps, &s->steps_cap, sizeof *s->steps);
        s->failed = s->failed || !more;
        if (!more)
            return;
        s->steps = more;
        s->steps[s->n_steps++] = (struct step){
            .affinity = stuck && !i ? 1e300 /* it must leave the host */
                                    : slope(i ? &hull[i - 1] : &origin, &hull[i]),
            .unit = unit,
            .device = d,
            .option = hull[i].option,
            .before = i ? hull[i - 1].option : -1,
        };
    }
}

static void order_steps(struct search *s, bool charge_copies)
{
    const struct instance *in = s->in;
    memcpy(s->trial, s->place, sizeof(int32_t) * (size_t)in->n_units);
    s->n_steps = 0;
    for (int32_t u = 0; u < in->n_units && !ilp_late(s->clock); u++)
        for (int32_t d = 0; d < in->n_devices; d++)
            if (d != in->host)
                add_chain(s, u, d, charge_copies);
    if (s->n_steps)
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
        if (s->failed || ilp_late(s->clock) || (round && same_order(s)))
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
        struct step *const was = s->last; /* the next round's room */
        const size_t cap = s->last_cap;
        s->last = s->steps;
        s->last_cap = s->steps_cap;
        s->n_last = s->n_steps;
        s->steps = was;
        s->steps_cap = cap;
    }
    return found;
}

oato_status solve_affinity(const struct instance *in, bool single_shot, struct ilp_clock *clock,
                           int32_t *place, struct affinity_round *trace, int32_t *n_trace,
                           struct oato_error *err)
{
    size_t n = (size_t)in->n_units, most = 0;
    struct arena a;
    struct ilp_clock none = {0};
    arena_init(&a);
    struct search s = {.in = in, .clock = clock ? clock : &none, .trace = trace};
    for (size_t u = 0; u < n; u++) {
        size_t here = (size_t)in->units[u].n_options;
        most = here > most ? here : most;
    }
    s.candidates = arena_alloc(&a, most + 1, sizeof *s.candidates);
    s.leading = arena_alloc(&a, n + 1, sizeof *s.leading);
    s.leading_of = arena_alloc(&a, n + 1, sizeof(int32_t));
    s.place = arena_alloc(&a, n + 1, sizeof(int32_t));
    s.trial = arena_alloc(&a, n + 1, sizeof(int32_t));
    s.seen = arena_alloc(&a, n * AFFINITY_ROUNDS + 1, sizeof(int32_t));
    oato_status status = OATO_OK;
    if (!s.candidates || !s.leading || !s.leading_of || !s.place || !s.trial || !s.seen ||
        !edges_around_find(in, &a, &s.around) || !list_leading(&s, &a)) {
        status =
            oato_fail_memory(err, n * AFFINITY_ROUNDS * sizeof(int32_t), "the affinity search");
        goto out;
    }
    for (size_t u = 0; u < n; u++)
        s.place[u] = in->host;
    const bool found = iterate(&s, single_shot, place);
    if (s.failed)
        status = oato_fail_memory(err, s.steps_cap * sizeof *s.steps, "the affinity search");
    else if (!found)
        status = oato_fail(err, OATO_NEGATIVE, "affinity found no placement that fits");
out:
    if (trace)
        *n_trace = s.n_trace;
    free(s.steps);
    free(s.last);
    arena_free(&a);
    return status;
}
