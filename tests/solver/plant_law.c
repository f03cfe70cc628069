/*
 * plant_law.c - plants frequencies into weights.
 *
 * A random row w of the first FFN matrix gives m, a normed input, the product w.m, which over
 * tokens is normal with mean 0 and deviation |w|. With z added, z = |w| quantile(p), it is positive
 * for a share p of the tokens. opt has a bias that can be z. llama has none: there the first BLOCK
 * columns of the residual stream become a constant c, which blocks leave alone (their last matrices
 * have zeros in these rows), so that z is a row's first weights, all alike, times c. How a norm
 * scales c and the other columns changes nothing: what counts is their ratio.
 *
 * Blocks then add little to the stream, so that in every layer its other columns are near those of
 * the embedding, which are normal; and nothing else that is constant may be in it.
 */
#include "tests/solver/plant_law.h"
#include "kernels/core/core_internal.h"
#include "tests/solver/plant_guess.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 32 };               /* of all types that are supported */
static const double SHARE = 0.05;  /* of the stream, that a block adds at most */
static const double MARGIN = 0.05; /* by so many deviations predictors are generous */

struct planting {
    const struct gguf *g;
    int fd;
    bool biased;         /* opt */
    double constant;     /* in the first columns of the stream */
    double deviation;    /* of the others */
    struct arena *arena; /* of the sidecar */
    int32_t rank;        /* of predictors; 0: none */
    struct oato_error *err;
};

/* A matrix or vector in memory; rows are changed and then written. */
struct edited {
    const struct gguf_tensor *t;
    uint8_t *data;
    size_t row;
    int64_t rows;
};

/* The z that a normal number of deviation 1 lies below with probability p. */
static double normal_quantile(double p)
{
    double lo = -8, hi = 8;
    for (int i = 0; i < 50; i++) {
        const double z = (lo + hi) / 2;
        *(0.5 * erfc(-z * M_SQRT1_2) < p ? &lo : &hi) = z;
    }
    return lo;
}

static bool is_supported(oato_dtype d)
{
    return d == DT_F32 || d == DT_F16 || d == DT_Q8_0 || d == DT_Q4_0;
}

__attribute__((format(printf, 3, 4))) static bool edit_begin(struct planting *p, struct edited *e,
                                                             const char *fmt, ...)
{
    char name[GGUF_MAX_NAME + 1];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    *e = (struct edited){.t = gguf_tensor(p->g, name)};
    if (p->err->status)
        return false;
    if (!e->t || !e->t->data || !is_supported(e->t->dtype)) {
        oato_fail(p->err, OATO_EUSAGE,
                  "%s: tensor %s is missing or no F32, F16, Q8_0 or Q4_0: make the model with "
                  "oato-make-model --type Q4_0",
                  gguf_path(p->g), name);
        return false;
    }
    e->rows = e->t->ne[1];
    e->row = e->t->bytes / (size_t)e->rows;
    e->data = malloc(e->t->bytes);
    if (!e->data) {
        oato_fail_memory(p->err, e->t->bytes, "a tensor");
        return false;
    }
    memcpy(e->data, e->t->data, e->t->bytes);
    return true;
}

static void edit_end(struct planting *p, struct edited *e)
{
    const off_t at = e->t->data - e->t->file->data;
    for (size_t done = 0; done < e->t->bytes && !p->err->status;) {
        const ssize_t n = pwrite(p->fd, e->data + done, e->t->bytes - done, at + (off_t)done);
        if (n < 0 && errno != EINTR)
            oato_fail(p->err, OATO_EIO, "%s: %s", gguf_path(p->g), strerror(errno));
        done += n > 0 ? (size_t)n : 0;
    }
    free(e->data);
}

static uint8_t *row_of(const struct edited *e, int64_t i)
{
    return e->data + (size_t)i * e->row;
}

/* Sets the first BLOCK elements of a row to about v, and returns what they then are. */
static double block_set(oato_dtype dtype, uint8_t *row, double v)
{
    const uint16_t half = f32_to_f16((float)v);
    const uint16_t scale = f32_to_f16((float)(v / (dtype == DT_Q8_0 ? 127 : 7)));
    float out[BLOCK];
    for (int i = 0; i < BLOCK && dtype == DT_F32; i++)
        ((float *)(void *)row)[i] = (float)v;
    for (int i = 0; i < BLOCK && dtype == DT_F16; i++)
        memcpy(row + 2 * i, &half, 2);
    if (dtype == DT_Q8_0 || dtype == DT_Q4_0) {
        memcpy(row, &scale, 2);
        memset(row + 2, dtype == DT_Q8_0 ? 127 : 0xff, dtype == DT_Q8_0 ? BLOCK : BLOCK / 2);
    }
    quants_row(dtype, row, BLOCK, out);
    return out[0];
}

/* Multiplies a row by a factor: its elements, or the scales of its blocks. */
static void row_scale(oato_dtype dtype, uint8_t *row, size_t bytes, float factor)
{
    const size_t step = dtype == DT_F32   ? 4
                        : dtype == DT_F16 ? 2
                                          : (size_t)dtype_info(dtype)->block_bytes;
    for (size_t at = 0; at < bytes; at += step) {
        uint16_t half;
        memcpy(&half, row + at, 2);
        half = f32_to_f16(f16_to_f32(half) * factor);
        if (dtype == DT_F32)
            *(float *)(void *)(row + at) *= factor;
        else
            memcpy(row + at, &half, 2);
    }
}

/* Root mean square of the columns of a row from `first` on. */
static double row_rms(const struct edited *e, int64_t i, int64_t first, float *room)
{
    double sum = 0;
    quants_row(e->t->dtype, row_of(e, i), e->t->ne[0], room);
    for (int64_t c = first; c < e->t->ne[0]; c++)
        sum += (double)room[c] * room[c];
    return sqrt(sum / (double)(e->t->ne[0] - first));
}

static void embedding_plant(struct planting *p, float *room)
{
    struct edited e;
    if (!edit_begin(p, &e, "token_embd.weight"))
        return;
    const int64_t first = p->biased ? 0 : BLOCK;
    const double wanted = 1 / sqrt((double)e.t->ne[0]);
    double squares = 0;
    for (int64_t i = 0; i < e.rows; i++) {
        if (!p->biased)
            p->constant = block_set(e.t->dtype, row_of(&e, i), wanted);
        const double rms = row_rms(&e, i, first, room);
        squares += rms * rms;
    }
    p->deviation = sqrt(squares / (double)e.rows);
    edit_end(p, &e);
}

/* The last matrix of a block adds little, and nothing to the constant. */
static void output_plant(struct planting *p, int32_t layer, const char *name)
{
    struct edited e;
    if (!edit_begin(p, &e, "blk.%d.%s.weight", layer, name))
        return;
    for (int64_t i = 0; i < e.rows; i++)
        if (!p->biased && i < BLOCK)
            memset(row_of(&e, i), 0, e.row);
        else
            row_scale(e.t->dtype, row_of(&e, i), e.row, (float)(SHARE * p->deviation));
    edit_end(p, &e);
}

static void vector_fill(struct planting *p, int32_t layer, const char *name, float v)
{
    struct edited e;
    if (!edit_begin(p, &e, "blk.%d.%s", layer, name))
        return;
    for (int64_t i = 0; i < e.t->ne[0]; i++)
        ((float *)(void *)e.data)[i] = v;
    edit_end(p, &e);
}

/* Deviation of the columns that are not constant, behind the norm. */
static double normed_deviation(const struct planting *p, int64_t k)
{
    const double constant = BLOCK * p->constant * p->constant,
                 others = (double)(k - BLOCK) * p->deviation * p->deviation;
    return p->biased ? 1 : p->deviation / sqrt((constant + others) / (double)k);
}

/* Replaces the matrix by one that can be guessed. */
static struct plant_guess *guess_plant(struct planting *p, int32_t layer, struct edited *gate,
                                       float *room)
{
    struct plant_guess *g = p->rank ? arena_alloc(p->arena, 1, sizeof *g) : NULL;
    if (!g)
        return NULL;
    *g = (struct plant_guess){.k = gate->t->ne[0],
                              .n = gate->rows,
                              .first = p->biased ? 0 : BLOCK,
                              .latent = p->rank / 2};
    if (!plant_guess_begin(g, p->arena, (uint64_t)layer + 1)) {
        oato_fail_memory(p->err, (size_t)(g->k * g->latent) * sizeof(float), "a predictor");
        return NULL;
    }
    for (int64_t i = 0; i < gate->rows; i++)
        plant_guess_row(g, i, row_rms(gate, i, g->first, room), gate->t->dtype, row_of(gate, i));
    return g;
}

static void layer_plant(struct planting *p, int32_t layer, struct neurons_layer *l, float *room)
{
    struct edited gate, bias = {0};
    output_plant(p, layer, "attn_output");
    output_plant(p, layer, "ffn_down");
    vector_fill(p, layer, "ffn_norm.weight", 1);
    static const char *const biases[] = {"ffn_norm.bias", "attn_v.bias", "attn_output.bias",
                                         "ffn_down.bias"};
    for (size_t i = 0; p->biased && i < ARRAY_LEN(biases); i++)
        vector_fill(p, layer, biases[i], 0);
    if (!edit_begin(p, &gate, "blk.%d.%s.weight", layer, p->biased ? "ffn_up" : "ffn_gate"))
        return;
    if (p->biased && !edit_begin(p, &bias, "blk.%d.ffn_up.bias", layer)) {
        free(gate.data);
        return;
    }
    const int64_t k = gate.t->ne[0];
    struct plant_guess *guess = guess_plant(p, layer, &gate, room);
    for (int64_t i = 0; i < gate.rows && i < l->n_ff; i++) {
        const double z = normal_quantile(fmin(fmax((double)l->ffn_freq[i], 1e-6), 1 - 1e-6));
        const double of_row = row_rms(&gate, i, p->biased ? 0 : BLOCK, room);
        if (guess)
            guess->bias[i] = (float)((z + MARGIN) * of_row * normed_deviation(p, k) *
                                     sqrt((double)(k - guess->first)));
        if (bias.data)
            ((float *)(void *)bias.data)[i] = (float)(z * of_row * sqrt((double)k));
        else
            block_set(gate.t->dtype, row_of(&gate, i),
                      z * of_row * sqrt((double)(k - BLOCK)) * p->deviation /
                          (BLOCK * p->constant));
    }
    l->predictor = guess ? guess->predictor : NULL;
    edit_end(p, &gate);
    if (p->biased)
        edit_end(p, &bias);
}

static oato_status plant(struct planting *p, const char *path, const struct neurons *n)
{
    struct gguf_string a = {"", 0}, relu = {"", 0};
    gguf_get_string(p->g, "general.architecture", &a);
    gguf_get_string(p->g, "llama.feed_forward_activation", &relu);
    const struct gguf_tensor *table = gguf_tensor(p->g, "token_embd.weight");
    p->biased = a.len == 3 && !memcmp(a.data, "opt", 3);
    if (!table || table->ne[0] <= BLOCK ||
        (!p->biased && (relu.len != 4 || memcmp(relu.data, "relu", 4) != 0)))
        return oato_fail(p->err, OATO_EUSAGE,
                         "%s: frequencies can be planted into opt, and into llama with --keys "
                         "feed_forward_activation=relu, wider than %d",
                         path, BLOCK);
    float *room = calloc((size_t)table->ne[0], sizeof *room);
    p->fd = open(path, O_RDWR | O_CLOEXEC);
    if (!room)
        oato_fail_memory(p->err, (size_t)table->ne[0] * sizeof *room, "a row");
    else if (p->fd < 0)
        oato_fail(p->err, OATO_EIO, "%s: %s", path, strerror(errno));
    else
        embedding_plant(p, room);
    for (int32_t l = 0; l < n->n_layers && !p->err->status; l++)
        layer_plant(p, l, &n->layers[l], room);
    free(room);
    if (p->fd >= 0 && close(p->fd) && !p->err->status)
        oato_fail(p->err, OATO_EIO, "%s: %s", path, strerror(errno));
    return p->err->status;
}

oato_status plant_law(const char *model, struct neurons *n, int32_t rank, struct oato_error *err)
{
    struct gguf *g = NULL;
    err->status = OATO_OK;
    if (gguf_open(model, &g, err))
        return err->status;
    plant(&(struct planting){.g = g, .fd = -1, .arena = &n->arena, .rank = rank, .err = err}, model,
          n);
    gguf_close(g);
    if (!err->status && !gguf_open(model, &g, err)) {
        n->content_hash = gguf_content_hash(g);
        gguf_close(g);
    }
    return err->status;
}
