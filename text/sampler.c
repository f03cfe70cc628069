/*
 * sampler.c - picks the next token: biases, what a constraint allows, penalties, DRY, top-n-sigma,
 * then top-k, typical, top-p, min-p and XTC on the sorted candidates, then temperature and one
 * random number, in llama.cpp's order. Mirostat takes the place of all cuts. Where options keep
 * only the first k tokens of a row, a device's candidates replace the row. Ties fall to the smaller
 * id, and the generator is PCG32 (O'Neill 2014), so that the same seed and logits give the same
 * token on any machine.
 */
#include "text/dry.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    float logit;
    int32_t id;
};

/* For each id of the vocabulary; counts and lost are zeros between two picks. */
struct sampler_scratch {
    struct candidate *candidates, *nearest;
    int32_t *counts; /* occurrences among the recent tokens */
    float *lost;     /* DRY's penalties */
};

struct sampler {
    struct sampler_options options;
    int32_t vocab;
    uint64_t state;
    struct sampler_scratch *own, *scratch; /* own: NULL where it is borrowed */
    struct candidate *candidates;          /* of the scratch, as is counts */
    int32_t *recent;                       /* ring of options.repeat_last */
    int32_t n_recent, at;
    int32_t *counts;
    struct dry *dry;                      /* NULL: off */
    double mu;                            /* of Mirostat: the most surprise, in bits */
    double surprise;                      /* of the token that was picked last */
    struct sampler_constraint constraint; /* none: allows is NULL */
    float *row;                           /* vocab: what is picked from later; NULL: not needed */
    struct token_prob *probs;             /* 1 + options.top_logprobs */
    int32_t n_probs;
};

static uint32_t pcg32(uint64_t *state)
{
    uint64_t old = *state;
    *state = old * 6364136223846793005u + 1442695040888963407u;
    uint32_t x = (uint32_t)(((old >> 18) ^ old) >> 27), rotate = (uint32_t)(old >> 59);
    return x >> rotate | x << (-rotate & 31);
}

struct sampler_scratch *sampler_scratch_create(int32_t vocab)
{
    struct sampler_scratch *s = calloc(1, sizeof *s);
    const size_t n = (size_t)vocab;
    if (!s)
        return NULL;
    s->candidates = malloc(n * sizeof *s->candidates);
    s->nearest = malloc(n * sizeof *s->nearest);
    s->counts = calloc(n, sizeof *s->counts);
    s->lost = calloc(n, sizeof *s->lost);
    if (s->candidates && s->nearest && s->counts && s->lost)
        return s;
    sampler_scratch_free(s);
    return NULL;
}

void sampler_scratch_free(struct sampler_scratch *s)
{
    if (!s)
        return;
    free(s->candidates);
    free(s->nearest);
    free(s->counts);
    free(s->lost);
    free(s);
}

void sampler_bound(struct sampler_options *o, int32_t context)
{
    int32_t *const last[] = {&o->repeat_last, &o->dry.last};
    for (size_t i = 0; i < ARRAY_LEN(last); i++)
        if (*last[i] < 0 || *last[i] > context)
            *last[i] = context;
    if (o->top_k < 0)
        o->top_k = 0;
}

size_t sampler_bytes(const struct sampler_options *o)
{
    const size_t recent = (size_t)max_i64(o->repeat_last, 1) * sizeof(int32_t);
    const size_t probs = (1 + (size_t)max_i64(o->top_logprobs, 0)) * sizeof(struct token_prob);
    const size_t dry = dry_is_on(&o->dry) ? (size_t)o->dry.last * 3 * sizeof(int32_t) : 0;
    return sizeof(struct sampler) + recent + probs + dry;
}

struct sampler *sampler_create(const struct sampler_options *o, int32_t vocab)
{
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->options = *o;
    s->options.top_logprobs = (int32_t)min_i64(max_i64(o->top_logprobs, 0), vocab);
    s->vocab = vocab;
    s->state = o->seed * 2 + 1;
    pcg32(&s->state);
    s->state += o->seed;
    pcg32(&s->state);
    const size_t last = o->repeat_last > 0 ? (size_t)o->repeat_last : 1;
    s->own = o->scratch ? NULL : sampler_scratch_create(vocab);
    s->scratch = o->scratch ? o->scratch : s->own;
    s->candidates = s->scratch ? s->scratch->candidates : NULL;
    s->counts = s->scratch ? s->scratch->counts : NULL;
    s->recent = malloc(last * sizeof *s->recent);
    s->probs = malloc((1 + (size_t)s->options.top_logprobs) * sizeof *s->probs);
    s->mu = 2.0 * o->mirostat_tau;
    const bool dry = dry_is_on(&o->dry);
    s->dry = dry ? dry_create(&o->dry) : NULL;
    if ((dry && !s->dry) || !s->scratch || !s->recent || !s->probs) {
        sampler_free(s);
        return NULL;
    }
    return s;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    sampler_scratch_free(s->own);
    free(s->row);
    free(s->recent);
    free(s->probs);
    dry_free(s->dry);
    free(s);
}

void sampler_constrain(struct sampler *s, const struct sampler_constraint *c)
{
    s->constraint = c ? *c : (struct sampler_constraint){0};
}

void sampler_accept(struct sampler *s, int32_t id)
{
    if (id < 0 || id >= s->vocab)
        return;
    if (s->dry)
        dry_accept(s->dry, id);
    if (s->options.repeat_last <= 0)
        return;
    s->recent[s->at] = id;
    s->at = (s->at + 1) % s->options.repeat_last;
    if (s->n_recent < s->options.repeat_last)
        s->n_recent++;
}

static float penalty(const struct sampler_options *o, float logit, int32_t count)
{
    logit = logit > 0 ? logit / o->repeat_penalty : logit * o->repeat_penalty;
    return logit - ((float)count * o->frequency_penalty + o->presence_penalty);
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

static bool penalises(const struct sampler_options *o)
{
    return o->repeat_last > 0 &&
           (o->repeat_penalty != 1 || o->presence_penalty != 0 || o->frequency_penalty != 0);
}

/* Among the first n candidates. */
static void penalise(struct sampler *s, int32_t n)
{
    struct candidate *c = s->candidates;
    for (int32_t i = 0; i < s->n_recent; i++)
        s->counts[s->recent[i]]++;
    for (int32_t i = 0; i < n; i++)
        if (s->counts[c[i].id])
            c[i].logit = penalty(&s->options, c[i].logit, s->counts[c[i].id]);
    for (int32_t i = 0; i < s->n_recent; i++)
        s->counts[s->recent[i]] = 0;
}

static void penalise_repetitions(struct sampler *s, int32_t n)
{
    const float *by = s->scratch->lost;
    dry_penalties(s->dry, s->scratch->lost);
    for (int32_t i = 0; i < n; i++)
        s->candidates[i].logit -= by[s->candidates[i].id];
    dry_clear(s->dry, s->scratch->lost);
}

static double weight(const struct candidate *c, int32_t i, double temperature)
{
    return exp(((double)c[i].logit - c[0].logit) / temperature);
}

static double weights(const struct candidate *c, int32_t n, double temperature)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += weight(c, i, temperature);
    return sum;
}

static double random_share(struct sampler *s)
{
    return (double)pcg32(&s->state) * 0x1p-32;
}

/* The probabilities of n sorted candidates, whose weights at temperature t have this sum. */
static void note_final(struct sampler *s, const struct candidate *c, int32_t n, int32_t picked,
                       double t, double sum)
{
    s->n_probs = 0;
    for (int32_t k = -1; k < n && s->n_probs <= s->options.top_logprobs; k++) {
        const int32_t i = k < 0 ? picked : k;
        const double p = weight(c, i, t) / sum;
        if (p > 0 || k < 0)
            s->probs[s->n_probs++] = (struct token_prob){c[i].id, (float)log(p)};
    }
}

/* Keeps logits at most so many standard deviations below the largest (Tang et al. 2024). Infinite
 * ones do not count. */
static int32_t cut_sigma(struct candidate *c, int32_t n, float sigmas)
{
    double sum = 0, squares = 0, max = -INFINITY;
    int32_t finite = 0, kept = 0;
    for (int32_t i = 0; i < n; i++) {
        if (!isfinite(c[i].logit))
            continue;
        sum += c[i].logit;
        squares += (double)c[i].logit * c[i].logit;
        max = c[i].logit > max ? c[i].logit : max;
        finite++;
    }
    if (finite < 2)
        return n;
    const double mean = sum / finite, variance = squares / finite - mean * mean;
    const double least = max - sigmas * sqrt(variance > 0 ? variance : 0);
    for (int32_t i = 0; i < n; i++)
        if (c[i].logit >= least)
            c[kept++] = c[i];
    return kept;
}

static double entropy(const struct candidate *c, int32_t n)
{
    const double sum = weights(c, n, 1);
    double h = 0;
    for (int32_t i = 0; i < n; i++) {
        const double p = weight(c, i, 1) / sum;
        h -= p > 0 ? p * log(p) : 0;
    }
    return h;
}

/* Keeps the tokens whose surprise is nearest to the expected one, up to a total probability
 * (Meister et al. 2022). Their order stays. */
static int32_t cut_typical(struct candidate *c, struct candidate *by, int32_t n, float total)
{
    const double h = entropy(c, n), sum = weights(c, n, 1);
    double mass = 0;
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) /* nearest first where sorted as logits are */
        by[i] = (struct candidate){(float)-fabs(log(weight(c, i, 1) / sum) + h), i};
    qsort(by, (size_t)n, sizeof *by, by_logit);
    while (kept < n && mass <= total)
        mass += weight(c, by[kept++].id, 1) / sum;
    for (int32_t i = 0; i < kept; i++)
        by[i] = c[by[i].id];
    memcpy(c, by, (size_t)kept * sizeof *c);
    qsort(c, (size_t)kept, sizeof *c, by_logit);
    return kept;
}

/* Drops all tokens of at least a probability but the least likely of them; returns how many of the
 * first are dropped. */
static int32_t cut_top(struct sampler *s, const struct candidate *c, int32_t n)
{
    const struct sampler_options *o = &s->options;
    if (!(o->xtc_probability > 0) || o->xtc_threshold > 0.5f ||
        random_share(s) >= o->xtc_probability)
        return 0;
    const double least = o->xtc_threshold * weights(c, n, 1);
    int32_t above = 0;
    while (above < n && weight(c, above, 1) >= least)
        above++;
    return above > 1 ? above - 1 : 0;
}

/* Within temperature_range of the temperature, by the share of the possible entropy. */
static double temperature(const struct sampler_options *o, const struct candidate *c, int32_t n)
{
    if (!(o->temperature_range > 0) || n < 2)
        return o->temperature;
    const double low = o->temperature > o->temperature_range
                           ? (double)o->temperature - o->temperature_range
                           : 0,
                 high = (double)o->temperature + o->temperature_range;
    const double share = entropy(c, n) / log(n);
    return low + (high - low) * pow(share, o->temperature_exponent);
}

/* top-p and min-p on sorted candidates; both keep the first one. */
static int32_t cut_tail(const struct sampler_options *o, const struct candidate *c, int32_t n)
{
    const double sum = weights(c, n, 1);
    double mass = 0;
    int32_t kept = 0;
    for (; kept < n; kept++) {
        const double p = weight(c, kept, 1);
        if (kept && ((o->top_p < 1 && mass >= o->top_p * sum) || p < o->min_p))
            break;
        mass += p;
    }
    return kept;
}

/* Draws one of n sorted candidates, tells which, at a temperature; 0: the first. */
static int32_t draw(struct sampler *s, const struct candidate *c, int32_t n, double t)
{
    const int32_t left = t > 0 ? n : 1;
    const double sum = t > 0 ? weights(c, n, t) : 1;
    double share = t > 0 ? random_share(s) * sum : 0;
    int32_t i = 0;
    while (i < left - 1 && (share -= weight(c, i, t)) >= 0)
        i++;
    if (s->options.logprobs && s->options.final_probs)
        note_final(s, c, left, i, t > 0 ? t : 1, sum);
    return i;
}

/* How many of n sorted candidates Mirostat 1 keeps (Basu et al. 2021, Algorithm 1): as many as have
 * the expected surprise mu, where probabilities follow Zipf's law with the exponent that the first
 * 100 show. */
static int32_t cut_zipf(const struct candidate *c, int32_t n, double t, double mu)
{
    double tb = 0, tt = 0;
    for (int32_t i = 0; i + 1 < n && i + 1 < 100; i++) {
        const double rank = log((i + 2.0) / (i + 1.0));
        const double fall = ((double)c[i].logit - c[i + 1].logit) / t;
        if (!isfinite(fall))
            break;
        tb += rank * fall;
        tt += rank * rank;
    }
    const double s = tt > 0 ? tb / tt : 0, e = s - 1;
    const double share = fabs(e) > 1e-9 ? e / (1 - pow(n, -e)) : 1 / log(n);
    const double k = s > 0 ? pow(share * exp2(mu), 1 / s) : n;
    return k >= n ? n : k >= 1 ? (int32_t)k : 1;
}

/* Mirostat 2 keeps those of at most the surprise mu. */
static int32_t cut_surprising(const struct candidate *c, int32_t n, double t, double sum, double mu)
{
    int32_t kept = 1;
    while (kept < n && -log2(weight(c, kept, t) / sum) <= mu)
        kept++;
    return kept;
}

static int32_t pick_mirostat(struct sampler *s, int32_t n)
{
    const struct sampler_options *o = &s->options;
    struct candidate *c = s->candidates;
    qsort(c, (size_t)n, sizeof *c, by_logit);
    const double t = o->temperature, sum = weights(c, n, t);
    const int32_t kept =
        o->mirostat == 1 ? cut_zipf(c, n, t, s->mu) : cut_surprising(c, n, t, sum, s->mu);
    const int32_t i = draw(s, c, kept, t);
    s->surprise = -log2(weight(c, i, t) / sum);
    return c[i].id;
}

/* Picks among the first n candidates. */
static int32_t pick(struct sampler *s, int32_t n)
{
    const struct sampler_options *o = &s->options;
    struct candidate *c = s->candidates;
    if (o->temperature <= 0) {
        const struct candidate best = {0, most_likely(c, n)};
        draw(s, &best, 1, 0);
        return best.id;
    }
    if (o->mirostat)
        return pick_mirostat(s, n);
    if (o->top_n_sigma > 0)
        n = cut_sigma(c, n, o->top_n_sigma);
    if (o->top_k > 0 && o->top_k < n) {
        keep_largest(c, n, o->top_k);
        n = o->top_k;
    }
    qsort(c, (size_t)n, sizeof *c, by_logit);
    if (o->typical_p > 0 && o->typical_p < 1)
        n = cut_typical(c, s->scratch->nearest, n, o->typical_p);
    n = cut_tail(o, c, n);
    const int32_t dropped = cut_top(s, c, n);
    c += dropped;
    n -= dropped;
    return c[draw(s, c, n, temperature(o, c, n))].id;
}

/* Picks among the first n candidates, after the penalties. */
static int32_t penalise_and_pick(struct sampler *s, int32_t n)
{
    if (penalises(&s->options))
        penalise(s, n);
    if (s->dry)
        penalise_repetitions(s, n);
    return pick(s, n);
}

static void take_row(struct sampler *s, const float *logits)
{
    for (int32_t i = 0; i < s->vocab; i++)
        s->candidates[i] = (struct candidate){logits[i], i};
}

/* Picks from a row: among the tokens of the mask; NULL: among all. */
static int32_t pick_of_row(struct sampler *s, const float *logits, const uint64_t *mask)
{
    int32_t n = 0;
    take_row(s, logits);
    for (int32_t i = 0; i < s->options.n_bias; i++)
        if (s->options.bias[i].id >= 0 && s->options.bias[i].id < s->vocab)
            s->candidates[s->options.bias[i].id].logit += s->options.bias[i].bias;
    for (int32_t i = 0; i < s->vocab && mask; i++)
        if (mask[i / 64] >> (i % 64) & 1)
            s->candidates[n++] = s->candidates[i];
    if (!mask)
        n = s->vocab;
    return n ? penalise_and_pick(s, n) : -1;
}

/* The token that was picked from the row, if any. */
static int32_t picked(struct sampler *s, const float *logits, int32_t id)
{
    const struct sampler_constraint *c = &s->constraint;
    if (id < 0) {
        s->n_probs = 0;
        return id;
    }
    if (c->allows)
        c->take(c->user, id);
    if (s->options.mirostat && s->options.temperature > 0)
        s->mu -= s->options.mirostat_eta * (s->surprise - s->options.mirostat_tau);
    if (s->options.logprobs && !s->options.final_probs)
        s->n_probs = logits_probs(logits, s->vocab, id, s->options.top_logprobs, s->probs);
    return id;
}

/* Among the tokens of the mask, when it is made. */
static int32_t pick_allowed(struct sampler *s, const float *logits, uint64_t steps)
{
    const struct sampler_constraint *c = &s->constraint;
    const uint64_t *mask;
    enum sampler_mask state = c->mask(c->user, steps, &mask);
    if (state == MASK_MORE && logits != s->row) {
        s->row = s->row ? s->row : calloc((size_t)s->vocab + 1, sizeof *s->row);
        if (s->row)
            memcpy(s->row, logits, (size_t)s->vocab * sizeof *s->row);
        else /* there is no later */
            state = c->mask(c->user, UINT64_MAX, &mask);
    }
    return state == MASK_READY  ? picked(s, logits, pick_of_row(s, logits, mask))
           : state == MASK_MORE ? SAMPLER_MORE
                                : SAMPLER_FAILED;
}

int32_t sampler_begin(struct sampler *s, const float *logits, uint64_t steps)
{
    const struct sampler_constraint *c = &s->constraint;
    const int32_t id = pick_of_row(s, logits, NULL);
    return c->allows && !c->allows(c->user, id) ? pick_allowed(s, logits, steps)
                                                : picked(s, logits, id);
}

int32_t sampler_go_on(struct sampler *s, uint64_t steps)
{
    return pick_allowed(s, s->row, steps);
}

int32_t sampler_next(struct sampler *s, const float *logits)
{
    return sampler_begin(s, logits, UINT64_MAX);
}

const struct token_prob *sampler_probs(const struct sampler *s, int32_t *n)
{
    *n = s->n_probs;
    return s->probs;
}

/* Biases may move any token, and probabilities and deviations need all logits. A penalty that
 * lowers logits only moves recent tokens back, so a token in the top k afterwards was preceded by
 * at most k - 1 others plus the recent ones. One that raises them may bring tokens forward from
 * anywhere, and without top-k every token counts; both need the whole row. */
int32_t sampler_candidates(const struct sampler_options *o, int32_t vocab)
{
    const int64_t taken = o->temperature <= 0 ? 1 : o->top_k;
    const int64_t most =
        taken + max_i64(penalises(o) ? o->repeat_last : 0, dry_is_on(&o->dry) ? o->dry.last : 0);
    const bool lowers =
        o->repeat_penalty >= 1 && o->presence_penalty >= 0 && o->frequency_penalty >= 0;
    const bool whole = o->temperature > 0 && (o->top_n_sigma > 0 || o->mirostat);
    const bool all = o->n_bias > 0 || o->logprobs || whole || (penalises(o) && !lowers);
    return taken <= 0 || all || most >= vocab ? 0 : (int32_t)most;
}

int32_t sampler_needs(const struct sampler *s)
{
    return s->constraint.allows ? 0 : sampler_candidates(&s->options, s->vocab);
}

int32_t sampler_next_of(struct sampler *s, const float *candidates, int32_t n)
{
    assert(!s->constraint.allows && !s->options.logprobs && s->options.n_bias <= 0);
    for (int32_t i = 0; i < n; i++)
        s->candidates[i] = (struct candidate){candidates[n + i], (int32_t)candidates[i]};
    return penalise_and_pick(s, n);
}
