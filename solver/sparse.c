/*
 * sparse.c - in which layers neurons may be skipped that do not fire, and what the operators cost
 * then. Profiles have their times at several shares of active neurons. Without those rows times
 * follow from the bytes that are read: gate's rows are all read, up's and down's are those of
 * active neurons. Which parts of a layer do skip is an option of its unit (divide_price.c).
 */
#include "solver/planning_internal.h"

#include <math.h>

/* Scattered rows are read more slowly than a matrix. */
static const double SLOWER = 1.15;
/* Steps of more tokens compute every neuron: together they need most of them. */
enum { TOKENS_MOST = NUMERICS_DECODE_ROWS };

static bool has_zeros(const struct oato_op *op)
{
    return op->activation == ACT_RELU || op->activation == ACT_RELU_SQUARED;
}

/* The time of an operator with a `share` of its neurons, of which those of `active` are expected to
 * work, in units of the dense operator's. */
static double work_of(const struct oato_op *op, double share, double active)
{
    const double part = op->kind == OP_GATE_UP ? (share + active) / 2 : active;
    return part * SLOWER < share ? part * SLOWER : share;
}

struct op_cost sparse_cost(const struct cost_model *c, int32_t device, const struct oato_op *op,
                           const struct op_size *size, double share, double active)
{
    struct oato_op dense = *op, skipping = *op;
    struct op_size some = *size;
    struct op_cost r;
    dense.sparse = SKIP_NOTHING;
    skipping.sparse = SKIP_ZEROS;
    if (share > 0 && cost_measured(c, device, &skipping)) {
        some.active = (int32_t)fmax(lround(active / share * op_neurons(op)), 1);
        r = cost_of_op(c, device, &skipping, &some);
        r.ns *= share;
        return r;
    }
    const bool skips = cost_supports(c, device, &skipping);
    r = cost_of_op(c, device, &dense, size);
    r.ns *= skips ? work_of(op, share, active) : share;
    r.estimate = r.estimate || skips;
    return r;
}

bool sparse_measured(const struct problem *p)
{
    bool measured = true;
    for (int32_t i = 0; i + 1 < p->graph.n_ops; i++) {
        struct oato_op op = p->graph.ops[i].op;
        op.sparse = SKIP_ZEROS;
        for (int32_t d = 0; d < p->n_devices && op.kind == OP_GATE_UP; d++)
            measured = measured && (cost_measured(p->cost, p->device[d], &op) ||
                                    !cost_supports(p->cost, p->device[d], &op));
    }
    return measured;
}

double sparse_active(bool skips, double frequency, int32_t tokens)
{
    return skips && tokens <= TOKENS_MOST ? 1 - pow(1 - frequency, tokens) : 1;
}

/* The mean share of neurons that fire; 1: unknown. */
static double layer_frequency(const struct neurons *n, const struct graph_op *o)
{
    const struct neurons_layer *l = n ? neurons_layer(n, o->layer) : NULL;
    double sum = 0;
    if (!l || !l->ffn_freq || l->n_ff != o->op.n)
        return 1;
    for (int32_t i = 0; i < l->n_ff; i++)
        sum += (double)l->ffn_freq[i];
    return sum / l->n_ff;
}

oato_status sparse_choose(struct problem *p, enum planner_sparse how, struct oato_error *err)
{
    const struct graph *g = &p->graph;
    if (how == PLANNER_SPARSE_OFF)
        return OATO_OK;
    p->sparse_given = how == PLANNER_SPARSE_EXACT;
    p->sparse = arena_alloc(&p->arena, (size_t)g->n_layers + 1, sizeof *p->sparse);
    if (!p->sparse)
        return oato_fail_memory(err, (size_t)g->n_layers * sizeof *p->sparse, "sparse layers");
    for (int32_t i = 0; i + 1 < g->n_ops; i++)
        if (g->ops[i].op.kind == OP_GATE_UP && has_zeros(&g->ops[i].op) && divide_pair(g, i) &&
            !plan_skips(p->sparse, p->n_sparse, g->ops[i].layer) &&
            (how == PLANNER_SPARSE_EXACT || layer_frequency(p->neurons, &g->ops[i]) < 1))
            p->sparse[p->n_sparse++] = (struct plan_sparse){.layer = g->ops[i].layer};
    if (how == PLANNER_SPARSE_EXACT && !p->n_sparse)
        return oato_fail(err, OATO_EUSAGE,
                         "--sparse exact: no feed-forward block of this model has activations with "
                         "exact zeros (ReLU); use --sparse off");
    return OATO_OK;
}
