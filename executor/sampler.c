/*
 * sampler.c - picks the next token: repeat penalty, then top-k, top-p, min-p on the sorted
 * candidates, then temperature and one random number, in llama.cpp's order. Where options keep only
 * the first k tokens of a row, a device's candidates replace the row. Ties fall to the smaller id,
 * and the generator is PCG32 (O'Neill 2014), so that the same seed and logits give the same token
 * on any machine.
 */
#include "executor/executor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    float logit;
    int32_t id;
};

struct sampler {
    struct sampler_options options;
    int32_t vocab;
    uint64_t state;
    struct candidate *candidates; /* vocab */
    int32_t *recent;              /* ring of options.repeat_last */
    int32_t n_recent, at;
    uint8_t *penalised; /* per id, scratch */
};

static uint32_t pcg32(uint64_t *state)
{
    uint64_t old = *state;
    *state = old * 6364136223846793005u + 1442695040888963407u;
    uint32_t x = (uint32_t)(((old >> 18) ^ old) >> 27), rotate = (uint32_t)(old >> 59);
    return x >> rotate | x << (-rotate & 31);
}

struct sampler *sampler_create(const struct sampler_options *o, int32_t vocab)
{
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->options = *o;
    s->vocab = vocab;
    s->state = o->seed * 2 + 1;
    pcg32(&s->state);
    s->state += o->seed;
    pcg32(&s->state);
    int32_t last = o->repeat_last > 0 ? o->repeat_last : 1;
    s->candidates = malloc((size_t)vocab * sizeof *s->candidates);
    s->recent = malloc((size_t)last * sizeof *s->recent);
    s->penalised = calloc((size_t)vocab, 1);
    if (!s->candidates || !s->recent || !s->penalised) {
        sampler_free(s);
        return NULL;
    }
    return s;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->candidates);
    free(s->recent);
    free(s->penalised);
    free(s);
}

void sampler_accept(struct sampler *s, int32_t id)
{
    if (s->options.repeat_last <= 0 || id < 0 || id >= s->vocab)
        return;
    s->recent[s->at] = id;
    s->at = (s->at + 1) % s->options.repeat_last;
    if (s->n_recent < s->options.repeat_last)
        s->n_recent++;
}

static float penalty(float logit, float by)
{
    return logit > 0 ? logit / by : logit * by;
}

/* NaN last, ties by smaller id: the same order as OP_TOP_K, so that host and device pick the same
 * candidates. */
static int by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->logit > y->logit || (isnan(y->logit) && !isnan(x->logit)))
        return -1;
    if (x->logit < y->logit || (isnan(x->logit) && !isnan(y->logit)))
        return 1;
    return x->id < y->id ? -1 : 1;
}

static int32_t most_likely(const struct candidate *c, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (by_logit(&c[i], &c[best]) < 0)
            best = i;
    return c[best].id;
}

/* Moves the k largest to the front, unordered, with a heap whose root is the smallest one kept. */
static void keep_largest(struct candidate *c, int32_t n, int32_t k)
{
    for (int32_t i = 1; i < n; i++) {
        struct candidate x = c[i];
        int32_t at = i;
        if (i >= k) {
            if (by_logit(&x, &c[0]) > 0)
                continue;
            at = 0; /* sift down from the root */
            for (int32_t child; (child = 2 * at + 1) < k; at = child) {
                if (child + 1 < k && by_logit(&c[child + 1], &c[child]) > 0)
                    child++;
                if (by_logit(&c[child], &x) < 0)
                    break;
                c[at] = c[child];
            }
        } else {
            for (; at > 0 && by_logit(&x, &c[(at - 1) / 2]) > 0; at = (at - 1) / 2)
                c[at] = c[(at - 1) / 2];
        }
        c[at] = x;
    }
}

/* Sets or clears the mark of each recent token. */
static void mark_recent(struct sampler *s, bool mark)
{
    for (int32_t i = 0; i < s->n_recent; i++)
        s->penalised[s->recent[i]] = mark;
}

static bool penalises(const struct sampler_options *o)
{
    return o->repeat_penalty != 1 && o->repeat_last > 0;
}

/* Picks among the first n candidates. */
static int32_t pick(struct sampler *s, int32_t n)
{
    const struct sampler_options *o = &s->options;
    struct candidate *c = s->candidates;
    if (o->temperature <= 0)
        return most_likely(c, n);
    if (o->top_k > 0 && o->top_k < n) {
        keep_largest(c, n, o->top_k);
        n = o->top_k;
    }
    qsort(c, (size_t)n, sizeof *c, by_logit);
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)c[i].logit - c[0].logit);
    double mass = 0;
    int32_t kept = 0;
    for (; kept < n; kept++) { /* both rules keep the first one */
        double p = exp((double)c[kept].logit - c[0].logit);
        if (kept && ((o->top_p < 1 && mass >= o->top_p * sum) || p < o->min_p))
            break;
        mass += p;
    }
    sum = 0;
    for (int32_t i = 0; i < kept; i++)
        sum += exp(((double)c[i].logit - c[0].logit) / o->temperature);
    double left = (double)pcg32(&s->state) * 0x1p-32 * sum;
    for (int32_t i = 0; i < kept; i++) {
        left -= exp(((double)c[i].logit - c[0].logit) / o->temperature);
        if (left < 0)
            return c[i].id;
    }
    return c[kept - 1].id;
}

/* Picks among the first n candidates, after the penalty. */
static int32_t penalise_and_pick(struct sampler *s, int32_t n)
{
    if (!penalises(&s->options))
        return pick(s, n);
    mark_recent(s, true);
    for (int32_t i = 0; i < n; i++)
        if (s->penalised[s->candidates[i].id])
            s->candidates[i].logit = penalty(s->candidates[i].logit, s->options.repeat_penalty);
    mark_recent(s, false);
    return pick(s, n);
}

int32_t sampler_next(struct sampler *s, const float *logits)
{
    for (int32_t i = 0; i < s->vocab; i++)
        s->candidates[i] = (struct candidate){logits[i], i};
    return penalise_and_pick(s, s->vocab);
}

/* A penalty above 1 only moves recent tokens back, so a token in the top k afterwards was preceded
 * by at most k - 1 others plus the recent ones. A penalty below 1 may bring tokens forward from
 * anywhere, and without top-k every token counts; both need the whole row. */
int32_t sampler_candidates(const struct sampler_options *o, int32_t vocab)
{
    const int64_t taken = o->temperature <= 0 ? 1 : o->top_k;
    const int64_t most = taken + (penalises(o) ? o->repeat_last : 0);
    const bool forward = penalises(o) && !(o->repeat_penalty > 1);
    return taken <= 0 || forward || most >= vocab ? 0 : (int32_t)most;
}

int32_t sampler_next_of(struct sampler *s, const float *candidates, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        s->candidates[i] = (struct candidate){candidates[n + i], (int32_t)candidates[i]};
    return penalise_and_pick(s, n);
}
