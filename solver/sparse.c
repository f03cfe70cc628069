/*
 * sparse.c - in which layers neurons are skipped that do not fire, and what that saves. Nobody has
 * measured the operators that skip at every density, so their time follows from the bytes that they
 * read: gate's rows are all read, up's and down's are those of active neurons.
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

double sparse_work(const struct graph_op *o, bool skips, double share, double active)
{
    if (op_has_experts(&o->op) || !skips)
        return active;
    const double part = o->op.kind == OP_GATE_UP ? (share + active) / 2 : active;
    return part * SLOWER < share ? part * SLOWER : share;
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

/* Gate and up are two thirds of the block. */
static bool pays(const struct problem *p, int32_t op)
{
    const struct graph_op *gate_up = &p->graph.ops[op];
    const double active =
        sparse_active(true, layer_frequency(p->neurons, gate_up), p->request.batch);
    return 2 * sparse_work(gate_up, true, 1, active) + sparse_work(gate_up + 1, true, 1, active) <
           3;
}

oato_status sparse_choose(struct problem *p, enum planner_sparse how, struct oato_error *err)
{
    const struct graph *g = &p->graph;
    if (how == PLANNER_SPARSE_OFF)
        return OATO_OK;
    p->sparse = arena_alloc(&p->arena, (size_t)g->n_layers + 1, sizeof *p->sparse);
    if (!p->sparse)
        return oato_fail_memory(err, (size_t)g->n_layers * sizeof *p->sparse, "sparse layers");
    for (int32_t i = 0; i + 1 < g->n_ops; i++)
        if (g->ops[i].op.kind == OP_GATE_UP && has_zeros(&g->ops[i].op) && divide_pair(g, i) &&
            !plan_skips(p->sparse, p->n_sparse, g->ops[i].layer) &&
            (how == PLANNER_SPARSE_EXACT || pays(p, i)))
            p->sparse[p->n_sparse++] = (struct plan_sparse){.layer = g->ops[i].layer};
    if (how == PLANNER_SPARSE_EXACT && !p->n_sparse)
        return oato_fail(err, OATO_EUSAGE,
                         "--sparse exact: no feed-forward block of this model has activations with "
                         "exact zeros (ReLU); use --sparse off");
    return OATO_OK;
}
