/*
 * guess.c - neurons that decode guesses before gate, by predictors or by signs: how many the lists
 * name. What making a list costs is in price.c.
 */
#include "solver/planning_internal.h"

#include "lowering/lowering.h"

#include <math.h>

/* A predictor that finds less of what its layer hands on is used only when asked for. */
static const float RECALL_LEAST = 0.95f;
/* The correlation of a product of normal variables with its sign, and so of sums of them: E|x|
 * squared. Lists by signs are predicted from it, for sidecars count none. */
static const double BY_SIGN = 0.6366197723675814;

bool guess_offered(const struct neurons *n, int32_t layer)
{
    const struct neurons_predictor *p = n ? neurons_predictor(n, layer) : NULL;
    return p && p->recall >= RECALL_LEAST;
}

static double normal_above(double x)
{
    return erfc(x / sqrt(2)) / 2;
}

/* What a normal variable is above with probability p. */
static double normal_quantile(double p)
{
    double low = -8, high = 8;
    for (int i = 0; i < 50; i++) {
        const double middle = (low + high) / 2;
        *(normal_above(middle) > p ? &low : &high) = middle;
    }
    return low;
}

double guess_listed(const struct plan_sparse *s, const struct neurons *n, int32_t k)
{
    const double active = sparse_frequency(n, s->layer);
    const struct neurons_predictor *p = n ? neurons_predictor(n, s->layer) : NULL;
    if (active >= 1)
        return 1;
    if (s->guess == PLAN_GUESS_SIGNS)
        return normal_above(BY_SIGN * normal_quantile(active) + (double)s->threshold * sqrt(k));
    return p && p->predicted > 0 ? (double)p->predicted : active;
}

double guess_work(const struct plan_sparse *s, const struct neurons *n, const struct oato_op *op)
{
    const double active = fmax(sparse_frequency(n, s->layer), 1e-9);
    const double listed = guess_listed(s, n, op->k) / active;
    return op->kind == OP_GATE_UP ? (listed + 1) / 2 : listed;
}
