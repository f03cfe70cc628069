/*
 * inputs.c - divides the share of inputs to skip among the matrices of each layer (TEAL, Liu et al.
 * 2024): where a matrix minds least, more of its inputs are skipped.
 *
 * The model runs over the beginning of the text, each matrix in turn without 10, 20 .. 90 % of its
 * inputs, the other matrices of its layer whole. What the layer hands on is compared with what it
 * does otherwise, and then replaced by that, so that one run serves all layers at once. Then shares
 * are raised greedily, always that which costs the least error for a weight that is not read.
 */
#include "lowering/lowering.h"
#include "profiler/counting_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    TOKENS = 256,  /* of the text */
    FIRST = 1,     /* token that counts: inputs of the one before all are of another size */
    STEPS = 10,    /* of a matrix's share, of which the last one would leave nothing */
    MATRICES = 16, /* of a layer, at most */
};
#define BYTES_MOST ((uint64_t)1 << 30) /* of what layers hand on */

struct matrix {
    int32_t op;
    double weights;
    double error[STEPS]; /* of the layer, without so many tenths of its inputs */
    const struct neurons_magnitudes *inputs;
};

struct layer {
    int32_t last, width; /* the operator that makes what it hands on */
    float *whole;        /* that, of each token, where nothing is skipped */
    struct matrix matrix[MATRICES];
    int32_t n;
};

struct search {
    const struct model *model;
    struct neurons *neurons;
    struct engine *engine;
    struct layer *layers;
    int32_t n_layers, tokens;
    int32_t trial, step; /* the matrix of each layer that skips inputs, and how many tenths */
    struct progress progress;
};

/* -------------------------------------------------------------------------------- finding - */

/* The layer's matrices that something is known of, and its last operator. */
static oato_status layers_find(struct search *s, struct oato_error *err)
{
    const struct graph *g = &s->model->graph;
    int32_t before = -1;
    s->layers = calloc((size_t)s->n_layers + 1, sizeof *s->layers);
    if (!s->layers)
        return oato_fail_memory(err, (size_t)s->n_layers * sizeof *s->layers, "layers");
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        if (o->layer < 0 || o->layer >= s->n_layers)
            continue;
        struct layer *l = &s->layers[o->layer];
        if (o->layer < before)
            return oato_fail(err, OATO_EUSAGE,
                             "--inputs: this model runs through its layers more than once; use "
                             "oato-run --sparse input=S without it");
        before = o->layer;
        if (o->n_out && g->values[o->out[0]].rows == ROWS_TOKENS) {
            l->last = i;
            l->width = g->values[o->out[0]].width;
        }
        const struct neurons_magnitudes *m =
            sparse_takes_inputs(o) ? sparse_inputs(o, s->neurons) : NULL;
        if (m && l->n < MATRICES)
            l->matrix[l->n++] =
                (struct matrix){.op = i, .weights = (double)o->op.k * (double)o->op.n, .inputs = m};
    }
    return OATO_OK;
}

static oato_status layers_allocate(struct search *s, struct oato_error *err)
{
    uint64_t row = 0;
    for (int32_t i = 0; i < s->n_layers; i++)
        row += (uint64_t)s->layers[i].width * sizeof(float);
    if (row * (uint64_t)s->tokens > BYTES_MOST)
        s->tokens = (int32_t)(BYTES_MOST / row);
    for (int32_t i = 0; i < s->n_layers; i++) {
        struct layer *l = &s->layers[i];
        l->whole = calloc((size_t)s->tokens * (size_t)l->width + 1, sizeof *l->whole);
        if (!l->whole)
            return oato_fail_memory(err, row * (uint64_t)s->tokens, "what layers hand on");
    }
    return OATO_OK;
}

/* -------------------------------------------------------------------------------- running - */

/* How far y is from x, relative to what x is. */
static double error_of(const float *y, const float *x, int32_t n)
{
    double error = 0, size = 1e-30;
    for (int32_t i = 0; i < n; i++) {
        const double d = (double)y[i] - (double)x[i];
        error += d * d;
        size += (double)x[i] * (double)x[i];
    }
    return error / size;
}

/* An engine_observer. The first run is that of trial -1. */
static void layer_see(void *user, int32_t op, int32_t rows, const float *const *in,
                      float *const *out)
{
    struct search *s = user;
    const int32_t number = s->model->graph.ops[op].layer;
    (void)in;
    if (number < 0 || number >= s->n_layers || s->layers[number].last != op || rows != s->tokens)
        return;
    struct layer *l = &s->layers[number];
    const size_t bytes = (size_t)rows * (size_t)l->width * sizeof *l->whole;
    if (s->trial < 0) {
        memcpy(l->whole, out[0], bytes);
        return;
    }
    for (int32_t t = FIRST; t < rows && s->trial < l->n; t++)
        l->matrix[s->trial].error[s->step] += error_of(
            out[0] + (ptrdiff_t)t * l->width, l->whole + (ptrdiff_t)t * l->width, l->width);
    memcpy(out[0], l->whole, bytes);
}

/* Has the tried matrix of each layer skip so many tenths; 0: none. */
static void trial_set(const struct search *s, int32_t step)
{
    for (int32_t i = 0; i < s->n_layers; i++) {
        const struct layer *l = &s->layers[i];
        if (s->trial >= l->n)
            continue;
        const struct matrix *m = &l->matrix[s->trial];
        engine_threshold(s->engine, m->op,
                         step ? m->inputs->quantiles[step * (NEURONS_QUANTILES - 1) / STEPS] : -1);
    }
}

static oato_status text_run(struct search *s, const int32_t *ids, int32_t seq,
                            struct oato_error *err)
{
    const struct engine_input in = {seq, ids, s->tokens, LOGITS_NONE, true};
    if (oato_interrupted)
        return oato_fail(err, OATO_NEGATIVE,
                         "interrupted: what was counted is kept, and the same command begins with "
                         "--inputs again");
    const oato_status status = engine_seq_truncate(s->engine, seq, 0, err);
    return status ? status : engine_step(s->engine, &in, 1, err);
}

/* The errors of all matrices. */
static oato_status trials_run(struct search *s, const int32_t *ids, struct oato_error *err)
{
    int32_t seq, most = 0;
    oato_status status = engine_seq_create(s->engine, &seq, err);
    for (int32_t i = 0; i < s->n_layers; i++)
        most = s->layers[i].n > most ? s->layers[i].n : most;
    for (s->trial = 0; s->trial < most; s->trial++)
        trial_set(s, 0);
    s->trial = -1;
    if (!status)
        status = text_run(s, ids, seq, err);
    progress_begin(&s->progress, "inputs", most * (STEPS - 1.0));
    for (s->trial = 0; s->trial < most && !status; s->trial++) {
        for (s->step = 1; s->step < STEPS && !status; s->step++) {
            trial_set(s, s->step);
            status = text_run(s, ids, seq, err);
            progress_update(&s->progress, s->trial * (STEPS - 1.0) + s->step, NULL);
        }
        trial_set(s, 0);
    }
    progress_end(&s->progress);
    return status;
}

/* --------------------------------------------------------------------------------- sharing - */

/* The matrix whose next step costs the least error for a weight; -1: all have taken theirs. */
static int32_t cheapest(const struct layer *l, const int *taken)
{
    int32_t best = -1;
    double least = INFINITY;
    for (int32_t i = 0; i < l->n; i++) {
        const struct matrix *m = &l->matrix[i];
        if (taken[i] == STEPS)
            continue;
        /* the last step takes what is left, and comes last */
        const double cost = taken[i] == STEPS - 1
                                ? 1e30
                                : (m->error[taken[i] + 1] - m->error[taken[i]]) / m->weights;
        if (best < 0 || cost < least) {
            best = i;
            least = cost;
        }
    }
    return best;
}

/* Puts the shares of a layer's matrices into the sidecar: greedily step by step, and in between in
 * proportion. */
static oato_status layer_share(const struct search *s, const struct layer *l,
                               struct oato_error *err)
{
    float *shares[MATRICES];
    int taken[MATRICES] = {0};
    double all = 0, done = 0;
    int at = 0;
    for (int32_t i = 0; i < l->n; i++) {
        all += l->matrix[i].weights;
        shares[i] = arena_alloc(&s->neurons->arena, NEURONS_QUANTILES, sizeof *shares[i]);
        if (!shares[i])
            return oato_fail_memory(err, NEURONS_QUANTILES * sizeof *shares[i], "shares");
    }
    for (int32_t next; (next = cheapest(l, taken)) >= 0; taken[next]++) {
        const double part = l->matrix[next].weights / all / STEPS;
        for (; at < NEURONS_QUANTILES && at / (NEURONS_QUANTILES - 1.0) <= done + part; at++)
            for (int32_t i = 0; i < l->n; i++) {
                const double within =
                    i == next ? (at / (NEURONS_QUANTILES - 1.0) - done) / part : 0;
                shares[i][at] = (float)((taken[i] + fmin(fmax(within, 0), 1)) / STEPS);
            }
        done += part;
    }
    for (; l->n && at < NEURONS_QUANTILES; at++) /* sums of parts may end a little below 1 */
        for (int32_t i = 0; i < l->n; i++)
            shares[i][at] = 1;
    for (int32_t i = 0; i < l->n; i++)
        ((struct neurons_magnitudes *)(uintptr_t)l->matrix[i].inputs)->shares = shares[i];
    return OATO_OK;
}

static oato_status search_run(struct search *s, const struct sample_text *text, int32_t threads,
                              struct oato_error *err)
{
    const struct engine_options options = {.devices = "cpu",
                                           .threads = threads,
                                           .context = s->tokens,
                                           .ubatch = s->tokens,
                                           .seqs = 1,
                                           .kv = DT_F32,
                                           .kv_given = true,
                                           .sparse = "input=0",
                                           .neurons = s->neurons,
                                           .observe = layer_see,
                                           .observe_user = s};
    oato_status status = engine_open(s->model, NULL, &options, NULL, NULL, &s->engine, err);
    if (!status)
        status = trials_run(s, text->ids, err);
    engine_close(s->engine);
    for (int32_t i = 0; i < s->n_layers && !status; i++)
        status = layer_share(s, &s->layers[i], err);
    return status;
}

static bool lacks_shares(const struct search *s)
{
    for (int32_t i = 0; i < s->n_layers; i++)
        for (int32_t j = 0; j < s->layers[i].n; j++)
            if (!s->layers[i].matrix[j].inputs->shares)
                return true;
    return false;
}

oato_status inputs_share(const struct model *m, const struct sample_text *text,
                         const struct calibrate_options *o, const char *path,
                         struct oato_error *err)
{
    struct neurons n;
    const int64_t first = text->begins[1];
    struct search s = {.model = m, .neurons = &n, .n_layers = m->graph.n_layers};
    s.tokens = (int32_t)min_i64(TOKENS, first);
    oato_status status = neurons_load(path, &n, err);
    if (!status && s.tokens <= FIRST)
        status = oato_fail(err, OATO_EUSAGE, "--inputs: the text is too short");
    if (!status)
        status = layers_find(&s, err);
    if (!status)
        status = layers_allocate(&s, err);
    const bool missing = !status && lacks_shares(&s);
    if (missing)
        status = search_run(&s, text, o->threads, err);
    if (missing && !status)
        status = neurons_save(&n, path, err);
    for (int32_t i = 0; s.layers && i < s.n_layers; i++)
        free(s.layers[i].whole);
    free(s.layers);
    neurons_free(&n);
    return status;
}
