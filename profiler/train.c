/*
 * train.c - trains a predictor of active neurons: two products with a ReLU between them, by AdamW
 * on binary cross-entropy, in batches on OpenBLAS.
 *
 *   z = down x;  a = relu(z);  l = up a + bias;  p = sigmoid(l)
 *   loss = -sum of y log p + (mean(y) + 0.005) (1 - y) log(1 - p), y: the neuron is active
 *
 * The small weight of silent neurons (Deja Vu) says that a missed neuron costs quality, one
 * predicted in vain only time. After each epoch the held-out text gives the threshold at which the
 * wanted share of the active neurons' mass is found, and the number of neurons predicted there: of
 * all epochs and ranks the cheapest is kept.
 */
#include "profiler/training_internal.h"

#include <cblas.h>
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = 128,
    LEAST_TOKENS = 256,
    RANK_STEP = 32, /* Q8_0's block: a row of `up` is whole blocks */
    PATIENCE = 3,   /* epochs without a gain */
    BINS = 4096     /* of held-out logits */
};
static const float RATE = 3e-3f, DECAY = 1e-2f, BETA_1 = 0.9f, BETA_2 = 0.999f;
static const float BINS_END = 16; /* logits beyond it are in the outermost bins */

/* OpenBLAS is opened for training only: it starts its threads when it is loaded, and other runs of
 * the program time the machine. */
struct blas {
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(openblas_set_num_threads) *set_threads;
};

/* A matrix in training: its value, gradient and the moments of AdamW. */
struct weight {
    float *value, *gradient, *first, *second;
    int64_t n;
};

struct trainer {
    const struct training_samples *samples;
    const struct training_options *options;
    training_report_fn *report;
    void *user;
    struct blas blas;
    int64_t train, held; /* tokens */
    int32_t rank;
    int64_t steps, steps_all; /* of AdamW so far, of all epochs */
    float silent_weight;
    double active, top; /* shares: of active neurons; of activations that the first fifth has */
    struct weight down, up, bias;
    int32_t *order; /* of the training tokens */
    float *x, *z, *l, *dz;
    struct arena arena; /* of a rank */
};

/* It stays open: its threads cannot be ended safely. */
static oato_status blas_open(struct blas *b, int threads, struct oato_error *err)
{
    void *lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    *(void **)&b->sgemm = lib ? dlsym(lib, "cblas_sgemm") : NULL;
    *(void **)&b->set_threads = lib ? dlsym(lib, "openblas_set_num_threads") : NULL;
    if (!b->sgemm || !b->set_threads)
        return oato_fail(err, OATO_EFILE,
                         "training needs OpenBLAS, which cannot be opened (%s); install "
                         "libopenblas0",
                         dlerror());
    b->set_threads(threads);
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ numbers ---- */

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static float next_normal(uint64_t *state)
{
    const double u = (double)((next_random(state) >> 11) + 1) * 0x1p-53;
    const double v = (double)(next_random(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

static void shuffle(int32_t *order, int64_t n, uint64_t *state)
{
    for (int64_t i = n - 1; i > 0; i--) {
        const int64_t j = (int64_t)(next_random(state) % (uint64_t)(i + 1));
        const int32_t t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}

/* To what Q8_0 can hold: integers of 32 with one F16 scale. */
static void round_to_q8(float *x, int64_t n)
{
    for (; n > 0; n -= 32, x += 32) {
        float top = 0;
        for (int i = 0; i < 32; i++)
            top = fmaxf(top, fabsf(x[i]));
        const float scale = f16_to_f32(f32_to_f16(top / 127)), inverse = scale > 0 ? 1 / scale : 0;
        for (int i = 0; i < 32; i++)
            x[i] = scale * fminf(fmaxf(roundf(x[i] * inverse), -127), 127);
    }
}

/* ------------------------------------------------------------------------------ passes ----- */

/* The inputs of n tokens, `order` NULL: from `first` on. */
static void gather_inputs(const struct trainer *t, const int32_t *order, int64_t first, int64_t n)
{
    const int64_t k = t->samples->k;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t *from = t->samples->input + (order ? order[first + i] : first + i) * k;
        for (int64_t j = 0; j < k; j++)
            t->x[i * k + j] = f16_to_f32(from[j]);
    }
}

/* l = up relu(down x) + bias for n tokens; z keeps relu(down x). */
static void forward(const struct trainer *t, const float *down, const float *up, const float *bias,
                    int64_t n)
{
    const int k = t->samples->k, neurons = t->samples->neurons, rank = t->rank, rows = (int)n;
    t->blas.sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, rank, k, 1, t->x, k, down, k, 0,
                  t->z, rank);
    for (int64_t i = 0; i < n * rank; i++)
        t->z[i] = fmaxf(t->z[i], 0);
    for (int64_t i = 0; i < n; i++)
        memcpy(t->l + i * neurons, bias, (size_t)neurons * sizeof *bias);
    t->blas.sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, neurons, rank, 1, t->z, rank, up,
                  rank, 1, t->l, neurons);
}

/* Puts the loss's derivative by the logits in their place. */
static void derive(const struct trainer *t, const int32_t *order, int64_t n)
{
    const int64_t neurons = t->samples->neurons;
    const float share = 1 / (float)n;
    for (int64_t i = 0; i < n; i++) {
        const uint16_t *mass = t->samples->mass + order[i] * neurons;
        float *l = t->l + i * neurons;
        for (int64_t j = 0; j < neurons; j++) {
            const float p = 1 / (1 + expf(-l[j]));
            l[j] = share * (mass[j] ? p - 1 : t->silent_weight * p);
        }
    }
}

static void backward(struct trainer *t, int64_t n)
{
    const int k = t->samples->k, neurons = t->samples->neurons, rank = t->rank, rows = (int)n;
    t->blas.sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, neurons, rank, rows, 1, t->l, neurons,
                  t->z, rank, 0, t->up.gradient, rank);
    memset(t->bias.gradient, 0, (size_t)neurons * sizeof(float));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < neurons; j++)
            t->bias.gradient[j] += t->l[i * neurons + j];
    t->blas.sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, rank, neurons, 1, t->l, neurons,
                  t->up.value, rank, 0, t->dz, rank);
    for (int64_t i = 0; i < n * rank; i++)
        t->dz[i] = t->z[i] > 0 ? t->dz[i] : 0;
    t->blas.sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, rank, k, rows, 1, t->dz, rank, t->x, k,
                  0, t->down.gradient, k);
}

/* AdamW (Loshchilov and Hutter, algorithm 2); the rate falls to 0 as a cosine. */
static void update(const struct trainer *t, struct weight *w, float decay)
{
    const double done = (double)t->steps / (double)t->steps_all;
    const float rate = RATE * (float)(0.5 + 0.5 * cos(3.141592653589793 * done));
    const float c1 = 1 / (1 - powf(BETA_1, (float)(t->steps + 1)));
    const float c2 = 1 / (1 - powf(BETA_2, (float)(t->steps + 1)));
    for (int64_t i = 0; i < w->n; i++) {
        const float g = w->gradient[i];
        w->first[i] = BETA_1 * w->first[i] + (1 - BETA_1) * g;
        w->second[i] = BETA_2 * w->second[i] + (1 - BETA_2) * g * g;
        const float step = w->first[i] * c1 / (sqrtf(w->second[i] * c2) + 1e-8f);
        w->value[i] -= rate * (step + decay * w->value[i]);
    }
}

static bool train_epoch(struct trainer *t)
{
    for (int64_t first = 0; first + BATCH <= t->train || first == 0; first += BATCH) {
        const int64_t n = min_i64(BATCH, t->train - first);
        if (oato_interrupted)
            return false;
        gather_inputs(t, t->order, first, n);
        forward(t, t->down.value, t->up.value, t->bias.value, n);
        derive(t, t->order + first, n);
        backward(t, n);
        update(t, &t->down, DECAY);
        update(t, &t->up, DECAY);
        update(t, &t->bias, 0);
        t->steps++;
    }
    return true;
}

/* --------------------------------------------------------------------------- held out ------ */

/* What a predictor does on the held-out text at its best threshold. */
struct verdict {
    double recall, predicted;
    float threshold;
};

/* The largest threshold that finds the wanted share of mass. */
static struct verdict judge(struct trainer *t, const float *down, const float *up)
{
    const double per_logit = BINS / (2 * (double)BINS_END);
    const int64_t neurons = t->samples->neurons;
    double mass[BINS] = {0}, count[BINS] = {0}, all = 0;
    for (int64_t first = t->train; first < t->train + t->held; first += BATCH) {
        const int64_t n = min_i64(BATCH, t->train + t->held - first);
        gather_inputs(t, NULL, first, n);
        forward(t, down, up, t->bias.value, n);
        for (int64_t i = 0; i < n * neurons; i++) {
            const double at = ((double)t->l[i] + (double)BINS_END) * per_logit;
            const int bin = at >= BINS ? BINS - 1 : at > 0 ? (int)at : 0; /* NaN: 0 */
            const float m = f16_to_f32(t->samples->mass[first * neurons + i]);
            mass[bin] += (double)m;
            count[bin]++;
            all += (double)m;
        }
    }
    double found = 0, predicted = 0;
    int bin = BINS;
    while (bin > 0 && found < t->options->recall * all) {
        found += mass[--bin];
        predicted += count[bin];
    }
    return (struct verdict){found / all, predicted / ((double)t->held * (double)neurons),
                            bin ? (float)(bin / per_logit) - BINS_END : -INFINITY};
}

/* ------------------------------------------------------------------------------- ranks ----- */

static int64_t predictor_weights(const struct training_samples *s, int32_t rank)
{
    return (int64_t)rank * (s->k + s->neurons);
}

static int64_t block_weights(const struct trainer *t)
{
    return (int64_t)t->samples->k * t->samples->neurons * (t->options->gated ? 3 : 2);
}

/* Weights that a token reads, as a share of the block's: the predictor, the first matrix for all
 * neurons predicted, and the others for those of them that are active. */
static double cost_of(const struct trainer *t, int32_t rank, const struct verdict *v)
{
    const double matrices = t->options->gated ? 3 : 2;
    return (double)predictor_weights(t->samples, rank) / (double)block_weights(t) +
           (v->predicted + (matrices - 1) * fmin(t->active, v->predicted)) / matrices;
}

static bool weight_alloc(struct trainer *t, struct weight *w, int64_t n)
{
    w->n = n;
    float **const all[] = {&w->value, &w->gradient, &w->first, &w->second};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(*all[i] = arena_alloc(&t->arena, (size_t)n, sizeof(float))))
            return false;
    return true;
}

static bool rank_alloc(struct trainer *t)
{
    const int64_t k = t->samples->k, neurons = t->samples->neurons, rank = t->rank;
    arena_init(&t->arena);
    return weight_alloc(t, &t->down, rank * k) && weight_alloc(t, &t->up, neurons * rank) &&
           weight_alloc(t, &t->bias, neurons) &&
           (t->order = arena_alloc(&t->arena, (size_t)t->train, sizeof *t->order)) &&
           (t->x = arena_alloc(&t->arena, (size_t)(BATCH * k), sizeof *t->x)) &&
           (t->z = arena_alloc(&t->arena, (size_t)(BATCH * rank), sizeof *t->z)) &&
           (t->dz = arena_alloc(&t->arena, (size_t)(BATCH * rank), sizeof *t->dz)) &&
           (t->l = arena_alloc(&t->arena, (size_t)(BATCH * neurons), sizeof *t->l));
}

/* Biases begin as each neuron's own log-odds: what is left to learn is the difference that x makes.
 */
static void rank_begin(struct trainer *t, uint64_t *random)
{
    const int64_t neurons = t->samples->neurons;
    for (int64_t i = 0; i < t->down.n; i++)
        t->down.value[i] = next_normal(random) * sqrtf(2 / (float)t->samples->k);
    for (int64_t i = 0; i < t->up.n; i++)
        t->up.value[i] = next_normal(random) * 0.1f / sqrtf((float)t->rank);
    for (int64_t i = 0; i < t->train; i++) {
        t->order[i] = (int32_t)i;
        for (int64_t j = 0; j < neurons; j++)
            t->bias.value[j] += t->samples->mass[i * neurons + j] != 0;
    }
    for (int64_t j = 0; j < neurons; j++) {
        const float share = (t->bias.value[j] + 0.5f) / ((float)t->train + 1);
        t->bias.value[j] = logf(share / (1 - share));
    }
}

/* Keeps the trainer's weights, rounded, with a verdict's threshold. */
static void keep(const struct trainer *t, const struct verdict *v, const float *down,
                 const float *up, struct predictor *out)
{
    out->rank = t->rank;
    out->recall = v->recall;
    out->predicted = v->predicted;
    memcpy(out->down, down, (size_t)t->down.n * sizeof *down);
    memcpy(out->up, up, (size_t)t->up.n * sizeof *up);
    for (int64_t j = 0; j < t->bias.n; j++)
        out->bias[j] = t->bias.value[j] - v->threshold;
}

/* Trains one rank; what is cheaper than *best goes to out. */
static oato_status rank_train(struct trainer *t, double *best, struct predictor *out,
                              struct oato_error *err)
{
    uint64_t random = t->options->seed ^ (uint64_t)t->rank;
    float *down, *up;
    if (!rank_alloc(t) || !(down = arena_alloc(&t->arena, (size_t)t->down.n, sizeof *down)) ||
        !(up = arena_alloc(&t->arena, (size_t)t->up.n, sizeof *up)))
        return oato_fail(err, OATO_EFIT, "not enough memory to train a predictor of rank %d",
                         t->rank);
    rank_begin(t, &random);
    t->steps = 0;
    t->steps_all = max_i64(1, t->train / BATCH) * t->options->epochs;
    double least = INFINITY;
    for (int epoch = 0, idle = 0; epoch < t->options->epochs && idle <= PATIENCE; epoch++) {
        shuffle(t->order, t->train, &random);
        if (!train_epoch(t))
            return oato_fail(err, OATO_NEGATIVE, "interrupted");
        memcpy(down, t->down.value, (size_t)t->down.n * sizeof *down);
        memcpy(up, t->up.value, (size_t)t->up.n * sizeof *up);
        round_to_q8(down, t->down.n);
        round_to_q8(up, t->up.n);
        const struct verdict v = judge(t, down, up);
        const double cost = cost_of(t, t->rank, &v);
        idle = cost < least ? 0 : idle + 1;
        least = fmin(least, cost);
        if (cost < *best) {
            *best = cost;
            keep(t, &v, down, up, out);
        }
        if (t->report && !t->report(t->user, t->rank, epoch, v.recall, v.predicted))
            return oato_fail(err, OATO_NEGATIVE, "interrupted");
    }
    return OATO_OK;
}

int32_t training_first_rank(int32_t k, double active, double top)
{
    const double rank = k / 4.0 * sqrt(fmin(active, 0.5) / 0.5) * (1.2 - fmin(top, 1));
    return (int32_t)fmax(RANK_STEP, round(rank / RANK_STEP) * RANK_STEP);
}

static int by_count(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* How sparse and how skewed the layer is. */
static oato_status look(struct trainer *t, struct oato_error *err)
{
    const int64_t neurons = t->samples->neurons, tokens = t->samples->tokens;
    double *count = calloc((size_t)neurons, sizeof *count), all = 0, first = 0;
    if (!count)
        return oato_fail(err, OATO_EFIT, "not enough memory to train a predictor");
    for (int64_t i = 0; i < tokens * neurons; i++)
        count[i % neurons] += t->samples->mass[i] != 0;
    qsort(count, (size_t)neurons, sizeof *count, by_count);
    for (int64_t j = 0; j < neurons; j++) {
        all += count[j];
        first += j < neurons / 5 ? count[j] : 0;
    }
    free(count);
    t->active = all / ((double)tokens * (double)neurons);
    t->top = all > 0 ? first / all : 0;
    t->silent_weight = (float)t->active + 0.005f;
    return all > 0 ? OATO_OK
                   : oato_fail(err, OATO_EUSAGE,
                               "no neuron is active at any token: there is nothing to predict");
}

/* Whether a rank is cheaper than the best so far, which it then replaces. */
static oato_status try_rank(struct trainer *t, int32_t rank, double *best, bool *gained,
                            struct predictor *out, struct oato_error *err)
{
    const double before = *best;
    t->rank = rank;
    const oato_status status = rank_train(t, best, out, err);
    arena_free(&t->arena);
    *gained = *best < before;
    return status;
}

/* Ranks from the first one on, doubled as long as that is cheaper; if that gains nothing, halved as
 * long. */
static oato_status search(struct trainer *t, int32_t most, struct predictor *out,
                          struct oato_error *err)
{
    double best = INFINITY;
    bool gained = true;
    oato_status status = OATO_OK;
    int32_t first = training_first_rank(t->samples->k, t->active, t->top);
    first = first < most ? first : most;
    for (int32_t rank = first; !status && gained && rank <= most; rank *= 2)
        status = try_rank(t, rank, &best, &gained, out, err);
    gained = out->rank == first;
    for (int32_t rank = first / 2 / RANK_STEP * RANK_STEP; !status && gained && rank > 0;
         rank = rank / 2 / RANK_STEP * RANK_STEP)
        status = try_rank(t, rank, &best, &gained, out, err);
    return status;
}

oato_status predictor_train(const struct training_samples *samples,
                            const struct training_options *options, training_report_fn *report,
                            void *user, struct predictor *out, struct oato_error *err)
{
    struct trainer t = {.samples = samples, .options = options, .report = report, .user = user};
    *out = (struct predictor){.k = samples->k, .neurons = samples->neurons};
    if (samples->tokens < LEAST_TOKENS)
        return oato_fail(err, OATO_EUSAGE,
                         "a predictor needs at least %d tokens to learn from, not %lld",
                         LEAST_TOKENS, (long long)samples->tokens);
    t.held = samples->tokens / 10;
    t.train = samples->tokens - t.held;
    const int32_t most = (int32_t)(options->most_share * (double)block_weights(&t) /
                                   (samples->k + samples->neurons)) /
                         RANK_STEP * RANK_STEP;
    if (most < RANK_STEP)
        return oato_fail(err, OATO_EUSAGE,
                         "a block of %d x %d weights is too small for a predictor of %.0f %% of it",
                         samples->k, samples->neurons, 100 * options->most_share);
    oato_status status = look(&t, err);
    if (status)
        return status;
    out->active = t.active;
    status = blas_open(&t.blas, options->threads, err);
    if (status)
        return status;
    out->down = calloc((size_t)most * (size_t)samples->k, sizeof *out->down);
    out->up = calloc((size_t)most * (size_t)samples->neurons, sizeof *out->up);
    out->bias = calloc((size_t)samples->neurons, sizeof *out->bias);
    status = out->down && out->up && out->bias
                 ? search(&t, most, out, err)
                 : oato_fail(err, OATO_EFIT, "not enough memory to train a predictor");
    if (status)
        predictor_free(out);
    return status;
}

void predictor_free(struct predictor *p)
{
    free(p->down);
    free(p->up);
    free(p->bias);
    *p = (struct predictor){0};
}
