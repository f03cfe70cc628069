/*
 * price.c - what one record costs in a step. This is the one place where a price is composed:
 * requests (request.c), parts of divided units (divide.c) and the virtual clock (simulate_step.c)
 * say which part of an operator runs where, and sum up what part_cost answers:
 *
 *   size      of the operator in the step
 *   silence   the share of its neurons, inputs or experts that is at work, and the list of them
 *   cost      of the operator of that size; of a part of it in proportion
 *   join      what the record saves because it goes on where its neighbours ended
 *   record    what the device takes for every record
 *
 * Profiles have times of operators that skip at several shares of active neurons. Without those
 * rows times follow from the bytes that are read: gate's rows are all read, up's and down's are
 * those of active neurons.
 */
#include "solver/planning_internal.h"

#include <math.h>

/* Scattered rows are read more slowly than a matrix. */
static const double SLOWER = 1.15;
/* Steps of more tokens compute every neuron: together they need most of them. */
enum { TOKENS_MOST = NUMERICS_DECODE_ROWS };

/* ------------------------------------------------------------------------------ silence --- */

double sparse_active(bool skips, double frequency, int32_t tokens)
{
    return skips && tokens <= TOKENS_MOST ? 1 - pow(1 - frequency, tokens) : 1;
}

struct activity activity_of(const struct graph_op *first, const struct neurons *n,
                            const struct plan_sparse *skips)
{
    const struct neurons_layer *l = n ? neurons_layer(n, first->layer) : NULL;
    const bool experts = first->op.kind == OP_EXPERT_GATE_UP;
    struct activity a = {.op = &first->op, .rate = sparse_rate(skips, n, first->layer)};
    if (l) {
        a.order = experts ? l->exp_order : l->ffn_order;
        a.freq = !a.order ? NULL : experts ? l->exp_freq : l->ffn_freq;
    }
    return a;
}

double activity_share(const struct activity *a, int64_t begin, int64_t end, int32_t tokens,
                      bool skips)
{
    const bool experts = a->op->kind == OP_EXPERT_GATE_UP;
    const double all = experts ? fmax(op_experts_read(a->op, tokens), 1e-9) : a->op->n;
    const double each = experts ? (double)a->op->experts_used / a->op->experts : 1;
    double sum = 0;
    for (int64_t i = begin; i < end; i++) {
        const double once = fmin(a->freq ? (double)a->freq[a->order[i]] * a->rate : each, 1);
        sum += experts ? 1 - pow(1 - once, tokens) : sparse_active(skips, once, tokens);
    }
    return sum / all;
}

void part_silence(struct part *p, const struct silence *s, const struct neurons *n, int32_t tokens)
{
    p->active = p->share * sparse_active(true, 1 - s->share, tokens);
    if (!(p->active < p->share))
        return;
    p->op.sparse = s->list ? SPARSE_PREDICT : SPARSE_ABOVE;
    p->list = s->list;
    p->neurons = n;
    p->joins = false;
}

/* --------------------------------------------------------------------------------- cost --- */

/* The time of an operator with a `share` of its neurons, of which those of `active` are expected to
 * work, in units of the dense operator's. */
static double work_of(const struct oato_op *op, double share, double active)
{
    const bool whole_gate = op->kind == OP_GATE_UP && op->sparse != SPARSE_PREDICT;
    const double part = whole_gate ? (share + active) / 2 : active;
    return part * SLOWER < share ? part * SLOWER : share;
}

/* What of it has times: rows that nothing lists take those of a matrix. */
static enum sparse_mode skip_of(const struct cost_source *c, int32_t device,
                                const struct oato_op *op)
{
    if (op->sparse != SPARSE_BY_ROWS)
        return (enum sparse_mode)op->sparse;
    return cost_measured(c, device, op) ? SPARSE_BY_ROWS
           : op->kind == OP_GATE_UP     ? SPARSE_ABOVE
                                        : SPARSE_OFF;
}

/* Of a part that skips: an estimate where the profile has no times at several densities; where the
 * device cannot skip, all of it works. */
static struct op_cost skipping_cost(const struct cost_source *c, const struct part *p,
                                    const struct op_size *size)
{
    struct oato_op dense = p->op, skipping = p->op;
    struct op_size some = *size;
    struct op_cost r;
    dense.sparse = SPARSE_OFF;
    skipping.sparse = skip_of(c, p->device, &p->op);
    const double active = skipping.sparse ? p->active : p->share;
    if (p->share > 0 && skipping.sparse && cost_measured(c, p->device, &skipping)) {
        some.active = (int32_t)fmax(lround(active / p->share * op_neurons(&p->op)), 1);
        r = cost_of_op(c, p->device, &skipping, &some);
        r.ns *= p->share;
        return r;
    }
    const bool skips = cost_supports(c, p->device, &skipping);
    r = cost_of_op(c, p->device, &dense, size);
    r.ns *= skips ? work_of(&skipping, p->share, active) : p->share;
    r.estimate = r.estimate || skips;
    return r;
}

static struct op_size size_of(const struct part *p, const struct request_step *s)
{
    return graph_op_size(p->graph, p->index, s->tokens, s->rows, s->seqs, s->kv_positions);
}

struct op_cost list_cost(const struct cost_source *c, const struct part *p,
                         const struct request_step *s, double *by_neurons_ns)
{
    const struct op_size size = size_of(p, s);
    const struct neurons_predictor *predictor =
        p->neurons ? neurons_predictor(p->neurons, p->list->layer) : NULL;
    struct oato_op ops[LIST_OPS], listed = p->op;
    struct op_cost sum = {0};
    listed.sparse = SPARSE_PREDICT;
    *by_neurons_ns = 0;
    if (!predictor || !cost_supports(c, p->device, &listed))
        return sum;
    list_ops(predictor, &p->op, ops);
    for (int i = 0; i < LIST_OPS; i++) {
        const struct op_cost one = cost_of_op(c, p->device, &ops[i], &size);
        sum.ns += one.ns + cost_device(c, p->device).record_ns;
        sum.estimate = sum.estimate || one.estimate;
        *by_neurons_ns += i >= LIST_OPS - LIST_BY_NEURONS ? one.ns : 0;
    }
    return sum;
}

double cost_of_join(const struct cost_source *c, int32_t device, const struct graph *g,
                    int32_t index, int32_t tokens, int32_t *first)
{
    const enum op_join join =
        tokens <= NUMERICS_DECODE_ROWS ? graph_join(g, index, first) : JOIN_NONE;
    return join == JOIN_NONE ? 0 : cost_device(c, device).join_ns[join];
}

struct op_cost part_cost(const struct cost_source *c, const struct part *p,
                         const struct request_step *s)
{
    const struct op_size size = size_of(p, s);
    struct op_cost r =
        p->op.sparse ? skipping_cost(c, p, &size) : cost_of_op(c, p->device, &p->op, &size);
    if (!p->op.sparse)
        r.ns *= p->active;
    if (p->list) {
        double ignored;
        const struct op_cost list = list_cost(c, p, s, &ignored);
        r.ns += list.ns;
        r.estimate = r.estimate || list.estimate;
    }
    int32_t first;
    if (p->joins)
        r.ns = fmax(r.ns - cost_of_join(c, p->device, p->graph, p->index, s->tokens, &first) *
                               p->active,
                    0);
    r.ns += p->bare ? 0 : cost_device(c, p->device).record_ns;
    return r;
}

double unit_cost(const struct cost_source *c, int32_t device, int32_t rows)
{
    const struct cost_device d = cost_device(c, device);
    return d.spans ? d.unit_ns * row_calls(row_steps(d.rows, rows)) : 0;
}

double copy_cost(const struct cost_source *c, int32_t from, int32_t to, int32_t by, double bytes)
{
    return fmax(cost_of_copy(c, from, to, bytes), 0) + cost_device(c, by).record_ns;
}
