/*
 * predictors.c - neurons that predictors list before gate, in decode: how many the lists name. What
 * making a list costs is in price.c.
 */
#include "solver/planning_internal.h"

#include "lowering/lowering.h"

#include <math.h>

/* A predictor that finds less of what its layer hands on is used only when asked for. */
static const float RECALL_LEAST = 0.95f;

bool predictor_offered(const struct neurons *n, int32_t layer)
{
    const struct neurons_predictor *p = n ? neurons_predictor(n, layer) : NULL;
    return p && p->recall >= RECALL_LEAST;
}

double predictor_lists(const struct plan_sparse *s, const struct neurons *n)
{
    const double active = sparse_frequency(n, s->layer);
    const struct neurons_predictor *p = n ? neurons_predictor(n, s->layer) : NULL;
    return active >= 1 ? 1 : p && p->predicted > 0 ? (double)p->predicted : active;
}

double predictor_work(const struct plan_sparse *s, const struct neurons *n,
                      const struct oato_op *op)
{
    const double active = fmax(sparse_frequency(n, s->layer), 1e-9);
    const double listed = predictor_lists(s, n) / active;
    return op->kind == OP_GATE_UP ? (listed + 1) / 2 : listed;
}
