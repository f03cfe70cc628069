/*
 * probs.c - a row of logits made small: the log probability of one token and the most likely ones.
 * By the softmax of the logits as the model gave them.
 */
#include "text/sampler.h"

#include <math.h>
#include <stdlib.h>

double logits_log_sum(const float *logits, int32_t vocab)
{
    float max = logits[0];
    double sum = 0;
    for (int32_t i = 1; i < vocab; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int32_t i = 0; i < vocab; i++)
        sum += exp((double)logits[i] - max);
    // cppcheck-suppress invalidFunctionArg ; the largest logit alone adds 1
    return max + log(sum);
}

double logits_divergence(const float *logits, double log_sum, const float *other,
                         double other_log_sum, int32_t vocab)
{
    double divergence = 0;
    for (int32_t i = 0; i < vocab; i++) {
        const double p = (double)logits[i] - log_sum;
        divergence += exp(p) * (p - ((double)other[i] - other_log_sum));
    }
    return divergence;
}

int32_t logits_likeliest(const float *logits, int32_t vocab)
{
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

/* What is no number comes last, and ties go to the smaller id, as in OP_TOP_K. */
static int by_logit(const void *a, const void *b)
{
    const struct token_prob *x = a, *y = b;
    if (x->logprob > y->logprob || (isnan(y->logprob) && !isnan(x->logprob)))
        return -1;
    if (x->logprob < y->logprob || (isnan(x->logprob) && !isnan(y->logprob)))
        return 1;
    return x->id < y->id ? -1 : 1;
}

/* Replaces the root, the last one of a heap in which parents come after their children. */
static void root_replace(struct token_prob *heap, int32_t n, struct token_prob x)
{
    int32_t at = 0;
    for (int32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && by_logit(&heap[child + 1], &heap[child]) > 0)
            child++;
        if (by_logit(&heap[child], &x) < 0)
            break;
        heap[at] = heap[child];
    }
    heap[at] = x;
}

static void push(struct token_prob *heap, int32_t n, struct token_prob x)
{
    int32_t at = n;
    for (; at > 0 && by_logit(&x, &heap[(at - 1) / 2]) > 0; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = x;
}

int32_t logits_probs(const float *logits, int32_t vocab, int32_t id, int32_t top,
                     struct token_prob *out)
{
    const double sum = logits_log_sum(logits, vocab);
    struct token_prob *heap = out + 1;
    top = top < vocab ? top : vocab;
    for (int32_t i = 0; i < vocab && top > 0; i++) {
        const struct token_prob x = {i, logits[i]};
        if (i < top)
            push(heap, i, x);
        else if (by_logit(&x, &heap[0]) < 0)
            root_replace(heap, top, x);
    }
    if (top > 0)
        qsort(heap, (size_t)top, sizeof *heap, by_logit);
    out[0] = (struct token_prob){id, logits[id]};
    for (int32_t i = 0; i <= top; i++)
        out[i].logprob = (float)(out[i].logprob - sum);
    return 1 + top;
}
