/*
 * predictors.c - trains predictors of active neurons into a neurons sidecar whose counting is done:
 * runs the model over a sample of the text, keeps what each feed-forward block read and what its
 * neurons handed on, and trains each layer alone (train.c). The file is written after each layer,
 * so that a run that was stopped goes on with the layers that have no predictor yet; the result
 * does not depend on where it was stopped.
 */
#include "profiler/counting_internal.h"
#include "profiler/profiler_internal.h"
#include "profiler/training_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    CHUNK = 128,
    EPOCHS = 20,
    SEED = 1,
    SAMPLES_MOST = 1 << 14, /* tokens */
};
#define SAMPLES_BYTES ((uint64_t)1 << 30) /* of the layers that are recorded in one pass */
#define RECALL        0.96 /* above the 95 % that is wanted: other text differs by some tenths */
#define MOST_SHARE    0.1

/* A feed-forward block, and what it did at each token of the sample. */
struct block {
    struct ffn_count *ffn;
    int32_t first, last; /* operators: of a product that reads x; that makes what down reads */
    int32_t k;
    bool gated;
    uint16_t *input, *mass;
    int64_t inputs, masses; /* tokens so far */
};

struct maker {
    const struct sample_text *text;
    struct counts *counts;
    const struct calibrate_options *options;
    const char *path;
    struct neurons *neurons;
    struct block *blocks;
    int32_t n_blocks, recorded_from, recorded_to; /* the blocks of this pass */
    int64_t *windows;                             /* of the sample, ascending */
    int64_t n_windows, tokens;
    bool finite;
    struct progress progress;
    int32_t trained; /* blocks done */
    struct predictors_report *report;
};

/* ------------------------------------------------------------------------------- finding */

/* The product that the value comes from, up to a bias, a factor or a part of it. */
static int32_t product_of(const struct graph *g, int32_t value)
{
    int32_t op = g->values[value].producer;
    while (op >= 0 && (g->ops[op].op.kind == OP_BIAS || g->ops[op].op.kind == OP_SCALE ||
                       g->ops[op].op.kind == OP_SLICE))
        op = g->values[g->ops[op].in[0]].producer;
    return op >= 0 && g->ops[op].op.kind == OP_MUL_MAT ? op : -1;
}

static void blocks_find(struct maker *m)
{
    const struct graph *g = &m->counts->model->graph;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const int32_t ffn = m->counts->ops[i].ffn;
        struct ffn_count *f = ffn < 0 ? NULL : &m->counts->ffns[ffn];
        const int32_t first = f ? product_of(g, g->ops[i].in[0]) : -1;
        if (first < 0 || f->runs != 1 || neurons_predictor(m->neurons, f->layer))
            continue;
        m->blocks[m->n_blocks++] = (struct block){.ffn = f,
                                                  .first = first,
                                                  .last = i,
                                                  .k = g->ops[first].op.k,
                                                  .gated = g->ops[i].op.kind == OP_SWIGLU};
    }
}

/* --------------------------------------------------------------------------------- sample */

/* Windows chosen at random, each set of as many with the same chance (Knuth, algorithm 3.4.2 S). */
static void windows_choose(struct maker *m)
{
    const struct sample_text *t = m->text;
    const int64_t all = t->n_windows, tokens = t->begins[all];
    int64_t wanted = all * SAMPLES_MOST / max_i64(tokens, 1);
    uint64_t random = SEED;
    wanted = wanted > all ? all : wanted < 1 ? 1 : wanted;
    for (int64_t w = 0; w < all; w++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        if ((int64_t)((random >> 33) % (uint64_t)(all - w)) >= wanted - m->n_windows)
            continue;
        m->windows[m->n_windows++] = w;
        m->tokens += t->begins[w + 1] - t->begins[w];
    }
}

static void to_halves(const float *x, int64_t n, uint16_t *out, bool *finite)
{
    for (int64_t i = 0; i < n; i++) {
        *finite = *finite && isfinite(x[i]);
        out[i] = f32_to_f16(fminf(fmaxf(x[i], -65504), 65504));
    }
}

/* An engine_observer. */
static void record(void *user, int32_t op, int32_t rows, const float *const *in, float *const *out)
{
    struct maker *m = user;
    for (int32_t i = m->recorded_from; i < m->recorded_to; i++) {
        struct block *b = &m->blocks[i];
        const int32_t n = b->ffn->n;
        if (op == b->first && b->inputs + rows <= m->tokens) {
            to_halves(in[0], (int64_t)rows * b->k, b->input + b->inputs * b->k, &m->finite);
            b->inputs += rows;
        }
        if (op == b->last && b->masses + rows <= m->tokens) {
            uint16_t *mass = b->mass + b->masses * n;
            to_halves(out[0], (int64_t)rows * n, mass, &m->finite);
            for (int64_t j = 0; j < (int64_t)rows * n; j++)
                mass[j] &= 0x7fff;
            b->masses += rows;
        }
    }
}

static oato_status windows_feed(struct maker *m, struct engine *e, struct oato_error *err)
{
    const struct sample_text *t = m->text;
    int32_t seq;
    oato_status status = engine_seq_create(e, &seq, err);
    for (int64_t w = 0; w < m->n_windows && !status; w++) {
        const int64_t begin = t->begins[m->windows[w]], end = t->begins[m->windows[w] + 1];
        status = engine_seq_truncate(e, seq, 0, err);
        for (int64_t at = begin; at < end && !status; at += CHUNK) {
            const int32_t now = (int32_t)min_i64(CHUNK, end - at);
            const struct engine_input in = {seq, t->ids + at, now, LOGITS_NONE, true};
            status = oato_interrupted ? oato_fail(err, OATO_NEGATIVE, "interrupted")
                                      : engine_step(e, &in, 1, err);
        }
        progress_update(&m->progress, m->trained, "running the model over a sample of the text");
    }
    if (!status && !m->finite)
        status = oato_fail(err, OATO_EFILE, "values are not finite for this text");
    return status;
}

static uint64_t block_bytes(const struct maker *m, const struct block *b)
{
    return (uint64_t)m->tokens * (uint64_t)(b->k + b->ffn->n) * sizeof(uint16_t);
}

static void blocks_release(struct maker *m)
{
    for (int32_t i = m->recorded_from; i < m->recorded_to; i++) {
        free(m->blocks[i].input);
        free(m->blocks[i].mass);
        m->blocks[i].input = m->blocks[i].mass = NULL;
    }
}

/* Records as many of the next blocks as memory is meant for. */
static oato_status blocks_record(struct maker *m, struct oato_error *err)
{
    const int32_t window = m->text->window;
    const struct engine_options options = {.devices = "cpu",
                                           .threads = m->options->threads,
                                           .context = window,
                                           .ubatch = window < CHUNK ? window : CHUNK,
                                           .seqs = 1,
                                           .kv = DT_F32,
                                           .kv_given = true,
                                           .observe = record,
                                           .observe_user = m};
    struct engine *e = NULL;
    uint64_t bytes = 0;
    m->recorded_from = m->recorded_to;
    while (m->recorded_to < m->n_blocks) {
        struct block *b = &m->blocks[m->recorded_to];
        bytes += block_bytes(m, b);
        if (bytes > SAMPLES_BYTES && m->recorded_to > m->recorded_from)
            break;
        m->recorded_to++;
        b->input = calloc((size_t)m->tokens, (size_t)b->k * sizeof *b->input);
        b->mass = calloc((size_t)m->tokens, (size_t)b->ffn->n * sizeof *b->mass);
        if (!b->input || !b->mass)
            return oato_fail_memory(err, block_bytes(m, b), "a sample of activations");
    }
    m->finite = true;
    oato_status status = engine_open(m->counts->model, NULL, &options, NULL, NULL, &e, err);
    if (!status)
        status = windows_feed(m, e, err);
    engine_close(e);
    return status;
}

/* ------------------------------------------------------------------------------- training */

/* Blocks of 32 as Q8_0 has them; training made the numbers such that nothing is lost. */
static void to_q8(const float *x, int64_t n, uint8_t *out)
{
    for (; n > 0; n -= 32, x += 32) {
        float top = 0;
        for (int i = 0; i < 32; i++)
            top = fmaxf(top, fabsf(x[i]));
        const uint16_t scale = f32_to_f16(top / 127);
        const float inverse = f16_to_f32(scale) > 0 ? 1 / f16_to_f32(scale) : 0;
        memcpy(out, &scale, sizeof scale);
        out += sizeof scale;
        for (int i = 0; i < 32; i++)
            *out++ = (uint8_t)(int8_t)fminf(fmaxf(roundf(x[i] * inverse), -127), 127);
    }
}

/* A tensor of n rows of k numbers in the sidecar's arena; NULL: memory is short. */
static struct gguf_tensor *tensor_of(struct arena *a, oato_dtype dtype, int64_t k, int64_t n,
                                     const float *x)
{
    size_t row = 0;
    dtype_row_bytes(dtype, k, &row);
    struct gguf_tensor *t = arena_alloc(a, 1, sizeof *t);
    uint8_t *data = arena_alloc(a, (size_t)n, row);
    if (!t || !data)
        return NULL;
    if (dtype == DT_Q8_0)
        to_q8(x, n * k, data);
    else
        memcpy(data, x, row * (size_t)n);
    *t = (struct gguf_tensor){.dtype = dtype,
                              .n_dims = n > 1 ? 2 : 1,
                              .ne = {k, n, 1, 1},
                              .data = data,
                              .bytes = row * (size_t)n};
    return t;
}

static oato_status predictor_keep(struct maker *m, const struct block *b, const struct predictor *p,
                                  struct oato_error *err)
{
    struct arena *a = &m->neurons->arena;
    struct neurons_predictor *out = arena_alloc(a, 1, sizeof *out);
    if (out) {
        *out = (struct neurons_predictor){
            .down = tensor_of(a, DT_Q8_0, p->k, p->rank, p->down),
            .up = tensor_of(a, DT_Q8_0, p->rank, p->neurons, p->up),
            .bias = tensor_of(a, DT_F32, p->neurons, 1, p->bias),
            .recall = (float)p->recall,
            .predicted = (float)p->predicted,
            .active = (float)p->active,
        };
    }
    if (!out || !out->down || !out->up || !out->bias)
        return oato_fail_memory(err, (size_t)p->neurons * sizeof *p->bias, "a predictor");
    m->neurons->layers[b->ffn->layer].predictor = out;
    return neurons_save(m->neurons, m->path, err);
}

static bool on_epoch(void *user, int32_t rank, int epoch, double recall, double predicted)
{
    struct maker *m = user;
    char what[96];
    snprintf(what, sizeof what, "rank %d, epoch %d: %.1f %% of mass in %.1f %% of neurons", rank,
             epoch + 1, 100 * recall, 100 * predicted);
    progress_update(&m->progress, m->trained, what);
    return !oato_interrupted;
}

/* A layer that nothing can be predicted of has no predictor; the report says why. */
static oato_status block_train(struct maker *m, const struct block *b, struct oato_error *err)
{
    const struct training_samples samples = {
        .tokens = m->tokens, .k = b->k, .neurons = b->ffn->n, .input = b->input, .mass = b->mass};
    const struct training_options options = {.threads = m->options->threads,
                                             .seed = SEED,
                                             .epochs = EPOCHS,
                                             .recall = RECALL,
                                             .most_share = MOST_SHARE,
                                             .gated = b->gated};
    struct predictor p = {0};
    oato_status status = predictor_train(&samples, &options, on_epoch, m, &p, err);
    if (status == OATO_EUSAGE) {
        m->report->without++;
        snprintf(m->report->why, sizeof m->report->why, "layer %d: %.200s", b->ffn->layer,
                 err->text);
        err->status = OATO_OK;
        return OATO_OK;
    }
    if (!status)
        status = predictor_keep(m, b, &p, err);
    predictor_free(&p);
    return status;
}

static oato_status blocks_train(struct maker *m, struct oato_error *err)
{
    oato_status status = OATO_OK;
    progress_begin(&m->progress, "predictors", m->n_blocks);
    while (m->recorded_to < m->n_blocks && !status) {
        status = blocks_record(m, err);
        for (int32_t i = m->recorded_from; i < m->recorded_to && !status; i++, m->trained++)
            status = block_train(m, &m->blocks[i], err);
        blocks_release(m);
    }
    progress_end(&m->progress);
    if (status == OATO_NEGATIVE)
        return oato_fail(err, OATO_NEGATIVE,
                         "interrupted: predictors of %d more layers are in %s; the same command "
                         "goes on with it",
                         m->trained, m->path);
    return status;
}

/* What they cost, with the layers around them. */
static oato_status share_measure(const struct maker *m, struct oato_error *err)
{
    struct rig rig = {.cache_bytes = 1};
    const struct device_options options = {.threads = m->options->threads};
    oato_status status = device_open("cpu", 0, &options, &rig.device, err);
    if (status)
        return status;
    rig.device->ops->info(rig.device, &rig.info);
    status = layers_predict_share(&rig, m->counts->model, m->neurons, &m->report->share, err);
    rig.device->ops->close(rig.device);
    return status;
}

oato_status predictors_make(struct counts *counts, const struct sample_text *text,
                            const struct calibrate_options *o, const char *path,
                            struct predictors_report *report, struct oato_error *err)
{
    struct neurons n;
    struct maker m = {.text = text,
                      .counts = counts,
                      .options = o,
                      .path = path,
                      .neurons = &n,
                      .report = report};
    if (!counts->has_zeros || !counts->n_ffns)
        return oato_fail(err, OATO_EUSAGE,
                         "--predictors: neurons of this model are never silent (its activation is "
                         "no ReLU); use oato-run --sparse threshold=S");
    oato_status status = neurons_load(path, &n, err);
    m.blocks = calloc((size_t)counts->n_ffns + 1, sizeof *m.blocks);
    m.windows = calloc((size_t)text->n_windows + 1, sizeof *m.windows);
    if (!status && (!m.blocks || !m.windows)) {
        status = oato_fail_memory(err, (size_t)text->n_windows * sizeof *m.windows, "a sample");
    } else if (!status) {
        blocks_find(&m);
        windows_choose(&m);
        status = blocks_train(&m, err);
    }
    for (int32_t i = 0; !status && i < n.n_layers; i++)
        report->layers += neurons_predictor(&n, i) != NULL;
    if (!status && report->layers)
        status = share_measure(&m, err);
    free(m.windows);
    free(m.blocks);
    neurons_free(&n);
    return status;
}
