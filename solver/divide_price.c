/*
 * divide_price.c - the price of a split unit over the request. A share of an operator is priced in
 * proportion to the whole at the same share of active neurons and is always marked as an estimate;
 * activity comes from the neurons sidecar, and without one every neuron is active and experts are
 * chosen uniformly.
 */
#include "solver/dividing_internal.h"

#include <math.h>
#include <string.h>

struct share divide_share(const struct instance *in, const uint16_t *groups)
{
    struct share s = {{0}, {0}};
    int32_t at = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t d = 0; d < in->n_devices; d++) {
            if (in->is_host[d] != (pass == 1))
                continue;
            s.begin[d] = at;
            s.end[d] = at += groups[d];
        }
    return s;
}

/* The share of the whole, dense operator that a device computes in a step of kind k; what is left
 * over behind the last group is the last device's. */
static double part_of(const struct dividing *x, const struct share *s, int32_t d, int32_t k)
{
    double part = x->active[k][s->end[d]] - x->active[k][s->begin[d]];
    int32_t rest = x->extent - x->groups * x->group;
    if (s->end[d] == x->groups && s->begin[d] < x->groups && rest)
        part += (double)rest / x->extent * x->active[k][x->groups] /
                ((double)x->groups * x->group / x->extent);
    return part;
}

/* The table's time at that density. */
static double at_density(const double *table, double density)
{
    const double at = fmin(fmax(density, 0), 1) * DENSITIES;
    const int below = at < DENSITIES ? (int)at : DENSITIES - 1;
    return table[below] + (table[below + 1] - table[below]) * (at - below);
}

/* A share of the neurons by a list, and the list. Prefill has none. */
static double listed_ns(const struct dividing *x, int32_t k, int32_t d, double share, double part)
{
    const bool lists = k == x->n_kinds - 1;
    const double density = part / share * (lists ? x->list_work : 1);
    const double common = x->list[d] - x->list_by_neurons[d];
    return at_density(x->by_list[k][d], density) * share +
           (lists ? common + x->list_by_neurons[d] * share : 0);
}

double divide_op_ns(const struct dividing *x, int32_t k, int32_t i, int32_t d, double share,
                    double part, bool divided, enum sparse_mode mode)
{
    const double record = cost_device(x->p->cost, x->p->device[d]).record_ns;
    const double whole = x->whole[k][i][d] - record, *sparse = x->sparse[k][i][d];
    if (x->skips && mode != SPARSE_OFF && share <= 0)
        return 0;
    if (x->skips && mode == SPARSE_PREDICT && i == 0)
        return listed_ns(x, k, d, share, part);
    if (x->skips && mode != SPARSE_OFF)
        return at_density(sparse, part / share) * share;
    if (divided && x->columns && i == 1 && x->tabled[i][d])
        return sparse[DENSITIES] * share;
    return whole * (x->skips ? share : part);
}

static double compute_ns(const struct dividing *x, int32_t k, int32_t d, double share, double part,
                         int records, enum sparse_mode mode)
{
    double ns = 0;
    for (int32_t i = 0; i < x->n_ops; i++)
        ns += divide_op_ns(x, k, i, d, share, part, share < 1, mode) +
              cost_device(x->p->cost, x->p->device[d]).record_ns * records;
    return ns;
}

/* The share of the unit's neurons, experts or rows that the device has. */
static double share_of(const struct dividing *x, const struct share *s, int32_t d)
{
    const int32_t end = s->end[d] == x->groups ? x->extent : s->end[d] * x->group;
    return (double)(end - s->begin[d] * x->group) / x->extent;
}

static enum sparse_mode mode_of(const struct option *o, int32_t d)
{
    return o->dense >> d & 1 ? SPARSE_OFF : o->predicts ? SPARSE_PREDICT : SPARSE_ABOVE;
}

/* A step of kind k with the parts at the same time, read and written on `base`. */
static double parallel_ns(const struct dividing *x, const struct share *s, int32_t base, int32_t k,
                          const struct option *o)
{
    const int32_t host = x->p->instance.host;
    double slowest = 0, own = 0, last = 0;
    int parts = 0, others = 0;
    for (int32_t d = 0; d < x->p->n_devices; d++) {
        if (s->begin[d] == s->end[d])
            continue;
        double ns = compute_ns(x, k, d, share_of(x, s, d), part_of(x, s, d, k), 1, mode_of(o, d));
        parts++;
        ns += x->enter[k][base][d] + x->leave[k][d][base];
        slowest = fmax(slowest, ns);
        own = d == base ? ns : own;
        if (d == base || d == host || x->p->instance.direct[d][base])
            continue;
        others++;
        last = x->leave[k][host][base];
    }
    /* what comes from several by way of the host comes one after the other */
    if (others > 1)
        slowest += last * (others - 1);
    /* an accelerator's own queue makes its copies: it sends before it computes, and fetches after
     */
    if (base != host && s->begin[host] < s->end[host])
        slowest = fmax(slowest, x->enter[k][base][host] + own + x->leave[k][host][base]);
    return slowest + (parts - 1) * x->merge[k][base];
}

/* The link works on while the layer's other operators compute: what of their time is the unit's. */
static double hidden_ns(const struct dividing *x, int32_t k)
{
    const struct problem *p = x->p;
    const struct layer_flow *f = &p->flow[p->graph.ops[x->op[0]].layer + 1];
    const double tokens = request_prefill_total(&p->request).tokens;
    return f->matrix_bytes ? (double)f->other_ns * x->kind[k].tokens / tokens *
                                 ((double)x->file_bytes / (double)f->matrix_bytes)
                           : 0;
}

/* A prefill step where device d computes all, the host's share streamed to it. */
static double streamed_ns(const struct dividing *x, const struct share *s, int32_t d, int32_t k)
{
    const struct problem *p = x->p;
    int32_t host = p->instance.host;
    double share = 1, part = 1;
    if (s) {
        share = (double)(s->end[host] - s->begin[host]) / x->groups;
        part = x->active[k][x->groups];
    }
    double link =
        cost_of_stream(p->cost, p->device[host], p->device[d], (double)x->file_bytes * share);
    double ns = compute_ns(x, k, d, 1, part, s && share < 1 ? 2 : 1, SPARSE_OFF);
    return fmax(ns, link - hidden_ns(x, k));
}

/* The devices whose part of a unit costs no less over the request when it skips. Both phases do the
 * same, because weights are kept for one mode. */
static uint32_t dense_devices(const struct dividing *x, const struct share *s, int32_t stream,
                              bool predicts)
{
    const enum sparse_mode modes[2] = {predicts ? SPARSE_PREDICT : SPARSE_ABOVE, SPARSE_OFF};
    const struct problem *p = x->p;
    uint32_t dense = 0;
    if (!x->skips)
        return 0;
    if (p->sparse_given)
        return x->skips->dense;
    for (int32_t d = 0; d < p->n_devices; d++) {
        double ns[2][2] = {{0}}; /* [dense][decode] */
        if (s->begin[d] == s->end[d])
            continue;
        for (int32_t k = stream >= 0 ? x->n_kinds - 1 : 0; k < x->n_kinds; k++)
            for (int m = 0; m < 2; m++)
                ns[m][k == x->n_kinds - 1] +=
                    compute_ns(x, k, d, share_of(x, s, d), part_of(x, s, d, k), 1, modes[m]) *
                    (k == x->n_kinds - 1 ? 1 : x->kind[k].times);
        struct price price[2];
        for (int m = 0; m < 2; m++)
            price[m] = request_price(&p->request, whole_ns(ns[m][0]), whole_ns(ns[m][1]));
        if (price[1].objective_ns <= price[0].objective_ns)
            dense |= 1u << d;
    }
    return dense;
}

/* The price of an option; not divided: s is not used. */
static struct price price_of(const struct dividing *x, const struct option *o,
                             const struct share *s, bool divided, int32_t base, int32_t stream)
{
    double prefill = 0, decode = 0;
    for (int32_t k = 0; k < x->n_kinds; k++) {
        bool is_decode = k == x->n_kinds - 1;
        double ns = stream >= 0 && !is_decode ? streamed_ns(x, divided ? s : NULL, stream, k)
                    : divided                 ? parallel_ns(x, s, base, k, o)
                                              : compute_ns(x, k, base, 1, 1, 1, SPARSE_OFF);
        *(is_decode ? &decode : &prefill) += ns * (is_decode ? 1 : x->kind[k].times);
    }
    return request_price(&x->p->request, whole_ns(prefill), whole_ns(decode));
}

/* Skips neurons as costs least. */
static void choose_mode(const struct dividing *x, struct option *o, const struct share *s,
                        int32_t base, int32_t stream)
{
    const bool must = x->p->sparse_given && x->predicted.predicts;
    o->predicts = must;
    o->dense = dense_devices(x, s, stream, must);
    o->price = price_of(x, o, s, true, base, stream);
    if (must || !x->predicted.predicts)
        return;
    struct option other = *o;
    other.predicts = true;
    other.dense = dense_devices(x, s, stream, true);
    other.price = price_of(x, &other, s, true, base, stream);
    if (other.price.objective_ns < o->price.objective_ns)
        *o = other;
}

/* What the largest of the unit's records streams to a device, as lowering stages it: of a share of
 * each operator its weights one behind the other. A part's layout may be padded beyond its share.
 */
static uint64_t staged_bytes(const struct dividing *x, int32_t stream, double share)
{
    enum { PART_PADDING = 4 * STAGING_ALIGN };
    const struct problem *p = x->p;
    uint64_t most = 0;
    for (int32_t i = 0; i < x->n_ops; i++) {
        const uint64_t whole = p->price[x->op[i] * p->n_devices + stream].weight_bytes;
        const uint64_t n = (uint64_t)p->graph.ops[x->op[i]].n_weights;
        const uint64_t each = share < 1 ? STAGING_ALIGN + PART_PADDING : STAGING_ALIGN;
        const uint64_t bytes = (uint64_t)ceil((double)whole * share) + n * each;
        most = bytes > most ? bytes : most;
    }
    return most;
}

void divide_add(struct dividing *x, const uint16_t *groups, int32_t base, int32_t stream)
{
    const struct problem *p = x->p;
    struct option *o = x->out;
    x->n++;
    if (!o)
        return;
    struct share s = {{0}, {0}};
    *o = (struct option){.stream = (int16_t)stream, .allowed = true, .uses = 1u << base};
    option_lie(o, base, base);
    if (stream >= 0)
        o->in[PHASE_PREFILL] = o->out[PHASE_PREFILL] = (int16_t)stream;
    if (groups) {
        memcpy(o->share, groups, sizeof o->share);
        s = divide_share(&p->instance, groups);
        choose_mode(x, o, &s, base, stream);
    } else {
        o->dense = UINT32_MAX;
        o->price = price_of(x, o, &s, false, base, stream);
    }
    for (int32_t d = 0; d < p->n_devices; d++) {
        double part = groups ? (double)groups[d] / x->groups : d == base;
        if (part <= 0)
            continue;
        o->uses |= 1u << d;
        for (int32_t i = 0; i < x->n_ops; i++)
            o->bytes[d] +=
                (uint64_t)ceil((double)p->price[x->op[i] * p->n_devices + d].weight_bytes * part);
    }
    if (stream >= 0) {
        o->uses |= 1u << stream;
        o->staged = staged_bytes(x, stream, groups ? share_of(x, &s, p->instance.host) : 1);
    }
    x->out++;
}

/* ------------------------------------------------------------------------- what is said ---- */

void divide_range(const struct problem *p, int32_t unit, const struct option *o, int32_t d,
                  int64_t *begin, int64_t *end)
{
    const struct division *v = &p->division[unit];
    if (!option_divided(o)) {
        int64_t all = v->groups ? v->extent : p->graph.ops[p->first_op[unit]].op.n;
        *begin = 0;
        *end = d == o->in[PHASE_DECODE] ? all : 0;
        return;
    }
    struct share s = divide_share(&p->instance, o->share);
    *begin = (int64_t)s.begin[d] * v->group;
    *end =
        s.end[d] == v->groups && s.begin[d] < s.end[d] ? v->extent : (int64_t)s.end[d] * v->group;
}

double option_share(const struct problem *p, int32_t op, const struct option *o, int32_t d)
{
    const int32_t unit = p->unit_of[op];
    int64_t begin, end;
    if (o->team) {
        const enum op_axis axis = heads_range(p, op, o, d, &begin, &end);
        return part_share(&p->graph.ops[op].op, axis, begin, end);
    }
    if (!option_divided(o))
        return d == problem_op_device(p, op, o, PHASE_DECODE);
    divide_range(p, unit, o, d, &begin, &end);
    return (double)(end - begin) / p->division[unit].extent;
}
