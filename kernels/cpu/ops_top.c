/*
 * ops_top.c - the candidates of rows of logits: the largest of each in falling order, kept sorted
 * while the row is read once. Hardly any logit is among the best of those before it, so a list that
 * is moved along to insert one is all it takes.
 *
 * Logits are compared by their bits: threads that compute flush small numbers to zero, and would
 * take different ones for equal.
 */
#include "kernels/cpu/record_internal.h"

#include <string.h>

/* Rises with the logit; both zeros are alike, and below all numbers is what is none. */
static uint32_t rank_of(float logit)
{
    uint32_t bits;
    memcpy(&bits, &logit, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0;
    if (bits == 0x80000000)
        bits = 0;
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

/* Ids come in rising order: an equal one stays behind those that are there. */
void top_k_row(const struct run *x, int64_t t)
{
    const int32_t n = x->op->k, wanted = x->op->n / 2;
    const float *logits = input(x, 0) + t * n;
    float *ids = output(x, 0) + t * x->op->n, *best = ids + wanted;
    int32_t kept = 0;
    uint32_t least = 0; /* rank of the last one, once there are enough */
    for (int32_t id = 0; id < n; id++) {
        const uint32_t rank = rank_of(logits[id]);
        if (kept == wanted && rank <= least)
            continue;
        int32_t at = kept < wanted ? kept++ : wanted - 1;
        for (; at > 0 && rank_of(best[at - 1]) < rank; at--) {
            ids[at] = ids[at - 1];
            best[at] = best[at - 1];
        }
        ids[at] = (float)(x->op->first + id);
        best[at] = logits[id];
        least = rank_of(best[kept - 1]);
    }
}
