/*
 * guess.c - neurons that decode guesses before gate, by predictors: what making their lists costs,
 * and how many the lists name. The records are those that lowering makes.
 */
#include "solver/planning_internal.h"

#include "lowering/lowering.h"

#include <math.h>

/* A predictor that finds less of what its layer hands on is used only when asked for. */
static const float RECALL_LEAST = 0.95f;

bool guess_offered(const struct neurons *n, int32_t layer)
{
    const struct neurons_predictor *p = n ? neurons_predictor(n, layer) : NULL;
    return p && p->recall >= RECALL_LEAST;
}

double guess_listed(const struct plan_sparse *s, const struct neurons *n)
{
    const double active = sparse_frequency(n, s->layer);
    const struct neurons_predictor *p = n ? neurons_predictor(n, s->layer) : NULL;
    return active >= 1 ? 1 : p && p->predicted > 0 ? (double)p->predicted : active;
}

double guess_work(const struct plan_sparse *s, const struct neurons *n, const struct oato_op *op)
{
    const double active = fmax(sparse_frequency(n, s->layer), 1e-9);
    const double listed = guess_listed(s, n) / active;
    return op->kind == OP_GATE_UP ? (listed + 1) / 2 : listed;
}

struct op_cost guess_cost(const struct cost_model *c, int32_t device, const struct plan_sparse *s,
                          const struct neurons *n, const struct oato_op *op,
                          const struct op_size *size, double record_ns, double *by_neurons_ns)
{
    const struct neurons_predictor *p = n ? neurons_predictor(n, s->layer) : NULL;
    struct oato_op ops[LIST_OPS], listed = *op;
    struct op_cost sum = {0};
    listed.sparse = SPARSE_PREDICT;
    *by_neurons_ns = 0;
    if (!p || !cost_supports(c, device, &listed))
        return sum;
    list_ops(p, op, ops);
    for (int i = 0; i < LIST_OPS; i++) {
        const struct op_cost one = cost_of_op(c, device, &ops[i], size);
        sum.ns += one.ns + record_ns;
        sum.estimate = sum.estimate || one.estimate;
        *by_neurons_ns += i >= LIST_OPS - LIST_BY_NEURONS ? one.ns : 0;
    }
    return sum;
}
