/*
 * state_blocks.h - the recurrent mixers, written once in loops over a constant number of columns
 * that the compiler turns into the vectors of the level that includes this. A block is one thread's
 * piece of one sequence: some channels of a convolution, or some columns of one head's state, which
 * do not depend on the other columns. A block goes through its tokens one by one, in order, so that
 * chunks, batches and threads leave a token's bits alone. Its state (a few KiB) stays in the L1.
 *
 * Mamba's scan of single channels has an exponential for each element of its state, for which the
 * compiler has no vectors: it is written in the vectors of lanes_vector.h, which in the definition
 * are one lane wide.
 */
#include "kernels/cpu/kernels_internal.h"

#include <math.h>
#include <string.h>

#ifdef __AVX2__
#include "kernels/cpu/lanes_vector.h"
#else
enum { LANES = 1 };
typedef float vec;

static inline vec vec_set(float x)
{
    return x;
}

static inline vec vec_load(const float *p)
{
    return *p;
}

static inline void vec_store(float *p, vec x)
{
    *p = x;
}

static inline vec vec_exp(vec x)
{
    return expf(x);
}

static inline vec vec_softplus(vec x)
{
    return softplus(x);
}
#endif

enum { SUMS = 16 };

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* Sums in an order that no vector width changes. */
static float square_sum(const float *x, int64_t n)
{
    float part[SUMS] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + SUMS <= n; i += SUMS)
        for (int j = 0; j < SUMS; j++)
            part[j] += x[i + j] * x[i + j];
    for (; i < n; i++)
        part[0] += x[i] * x[i];
    for (int j = 0; j < SUMS; j++)
        sum += part[j];
    return sum;
}

/* Rows of `width` columns of a state, `stride` apart, are zero if the sequence begins. */
static void begin(const struct state_job *j, float *s, int64_t rows, int64_t stride, int64_t width)
{
    for (int64_t i = 0; j->fresh && i < rows; i++)
        memset(s + i * stride, 0, (size_t)width * sizeof *s);
}

/* A block of a head's columns, or of a group's channels. */
struct piece {
    int64_t head, column;
    int width; /* STATE_COLUMNS, but for the head's last */
};

static struct piece piece_of(const struct state_job *j, int64_t block)
{
    const int64_t d = state_columns(j->op), pieces = (d + STATE_COLUMNS - 1) / STATE_COLUMNS;
    const int64_t column = block % pieces * STATE_COLUMNS;
    return (struct piece){block / pieces, column, (int)min_i64(d - column, STATE_COLUMNS)};
}

/* ----------------------------------------------------------------------------- convolution */

/* The input `back` steps before the sequence's t-th token, for channels from c on. */
static const float *earlier(const struct state_job *j, int64_t t, int64_t back, int64_t c)
{
    const int64_t k = j->op->k, before = j->op->state;
    return t >= back ? j->in[0] + (t - back) * k + c : j->state + (t - back + before) * k + c;
}

static inline __attribute__((always_inline)) void conv_tokens(const struct state_job *j, int64_t c,
                                                              const int width)
{
    const int64_t k = j->op->k, before = j->op->state;
    float w[(CONV_STATE_MAX + 1) * STATE_COLUMNS];
    for (int64_t i = 0; i <= before; i++)
        for (int e = 0; e < width; e++)
            w[i * STATE_COLUMNS + e] = j->weight[0][(c + e) * (before + 1) + i];
    begin(j, j->state + c, before, k, width);
    for (int64_t t = 0; t < j->T; t++) {
        float sum[STATE_COLUMNS] = {0};
        for (int64_t i = 0; i <= before; i++) {
            const float *x = earlier(j, t, before - i, c);
            for (int e = 0; e < width; e++)
                sum[e] += w[i * STATE_COLUMNS + e] * x[e];
        }
        memcpy(j->out + t * k + c, sum, (size_t)width * sizeof *sum);
    }
    for (int64_t i = 0; i < before; i++) /* the oldest first: none is overwritten before it moved */
        memmove(j->state + i * k + c, earlier(j, j->T - 1, before - 1 - i, c),
                (size_t)width * sizeof(float));
}

static void conv(const struct state_job *j, int64_t block)
{
    const int64_t c = block * STATE_COLUMNS, width = j->op->k - c;
    if (width >= STATE_COLUMNS)
        conv_tokens(j, c, STATE_COLUMNS);
    else
        conv_tokens(j, c, (int)width);
}

/* -------------------------------------------------------------------------- the delta rule */

/* What a token's row of a head's state is multiplied with before anything is added. */
static void delta_decays(const struct state_job *j, int64_t t, int64_t head, float *decay)
{
    const struct oato_op *op = j->op;
    const float a = j->weight[0][head];
    const int64_t n = op->per_channel ? op->head_dim : 1;
    const float *x = j->in[1] + (t * op->heads + head) * n;
    for (int64_t i = 0; i < n; i++)
        decay[i] = expf(op->scale != 0 ? op->scale * sigmoid(a * x[i]) : a * softplus(x[i]));
    for (int64_t i = n; i < op->head_dim; i++)
        decay[i] = decay[0];
}

static inline __attribute__((always_inline)) void
delta_tokens(const struct state_job *j, int64_t head, int64_t c, const int width)
{
    const struct oato_op *op = j->op;
    const int64_t d = op->head_dim;
    const int64_t kv_head = op->cyclic ? head % op->kv_heads : head / (op->heads / op->kv_heads);
    float *s = j->state + head * d * d + c, decay[HEAD_DIM_MAX];
    begin(j, s, d, d, width);
    for (int64_t t = 0; t < j->T; t++) {
        const float *q = j->in[0] + t * op->k + kv_head * d, *k = q + op->kv_heads * d;
        const float *v = j->in[0] + t * op->k + (2 * op->kv_heads + head) * d + c;
        const float q_factor = 1 / sqrtf((square_sum(q, d) + op->eps) * (float)d);
        const float k_factor = 1 / sqrtf(square_sum(k, d) + op->eps);
        const float b = sigmoid(j->in[2][t * op->heads + head]);
        float seen[STATE_COLUMNS] = {0}, sum[STATE_COLUMNS] = {0}, change[STATE_COLUMNS];
        delta_decays(j, t, head, decay);
        for (int64_t i = 0; i < d; i++) {
            const float factor = k[i] * decay[i];
            for (int e = 0; e < width; e++)
                seen[e] += factor * s[i * d + e];
        }
        for (int e = 0; e < width; e++)
            change[e] = b * (v[e] - k_factor * seen[e]) * k_factor;
        for (int64_t i = 0; i < d; i++) {
            for (int e = 0; e < width; e++) {
                s[i * d + e] = decay[i] * s[i * d + e] + k[i] * change[e];
                sum[e] += q[i] * s[i * d + e];
            }
        }
        float *out = j->out + t * op->n + head * d + c;
        for (int e = 0; e < width; e++)
            out[e] = q_factor * sum[e];
    }
}

static void delta(const struct state_job *j, int64_t block)
{
    const struct piece p = piece_of(j, block);
    if (p.width == STATE_COLUMNS)
        delta_tokens(j, p.head, p.column, STATE_COLUMNS);
    else
        delta_tokens(j, p.head, p.column, p.width);
}

/* ------------------------------------------------------------------------- Mamba's scan --- */

static inline __attribute__((always_inline)) void
ssm_tokens(const struct state_job *j, int64_t head, int64_t c, const int width)
{
    const struct oato_op *op = j->op;
    const int64_t d = op->head_dim, rows = op->state;
    const int64_t group = head / (op->heads / op->kv_heads);
    const bool constant = op->alibi != 0;
    const float kept = constant ? expf(-op->scale * op_slope(op, (int32_t)head)) : 0;
    float *s = j->state + head * rows * d + c;
    begin(j, s, rows, d, width);
    for (int64_t t = 0; t < j->T; t++) {
        const float *x = j->in[0] + t * op->k + head * d + c;
        const float *B = j->in[0] + t * op->k + op->n + group * rows, *C = B + op->kv_heads * rows;
        const float dt = constant ? 1 : softplus(j->in[1][t * op->heads + head]);
        const float decay = constant ? kept : expf(dt * j->weight[0][head]);
        float sum[STATE_COLUMNS] = {0}, added[STATE_COLUMNS];
        for (int e = 0; e < width; e++)
            added[e] = dt * x[e];
        for (int64_t i = 0; i < rows; i++) {
            for (int e = 0; e < width; e++) {
                s[i * d + e] = decay * s[i * d + e] + B[i] * added[e];
                sum[e] += C[i] * s[i * d + e];
            }
        }
        float *out = j->out + t * op->n + head * d + c;
        for (int e = 0; e < width; e++)
            out[e] = constant ? sum[e] : sum[e] + j->weight[1][head] * x[e];
    }
}

/* Single channels: the columns of a block are channels of one group, and each element of their
 * states decays by itself. A block's state is rows of its channels. Row by row goes through a few
 * tokens, so that it is read and written once for them. */
enum { CHANNEL_TOKENS = 16, CHANNEL_VECTORS = STATE_COLUMNS / LANES };

struct channel_token {
    float dt[STATE_COLUMNS], added[STATE_COLUMNS], sum[STATE_COLUMNS];
    float B, C; /* of the row in work */
};

/* a, s: the row's logarithms of decays, and its state. */
static void channels_row(struct channel_token *token, int64_t n, const float *a, float *s)
{
    vec state[CHANNEL_VECTORS];
    for (int v = 0; v < CHANNEL_VECTORS; v++)
        state[v] = vec_load(s + v * LANES);
    for (struct channel_token *t = token; t < token + n; t++) {
        UNROLL
        for (int v = 0; v < CHANNEL_VECTORS; v++) {
            const vec decay = vec_exp(vec_load(t->dt + v * LANES) * vec_load(a + v * LANES));
            state[v] = decay * state[v] + vec_set(t->B) * vec_load(t->added + v * LANES);
            vec_store(t->sum + v * LANES, vec_load(t->sum + v * LANES) + vec_set(t->C) * state[v]);
        }
    }
    for (int v = 0; v < CHANNEL_VECTORS; v++)
        vec_store(s + v * LANES, state[v]);
}

/* dt and x are at the block's first channel. */
static void channels_enter(struct channel_token *t, const float *dt, const float *x, int width)
{
    memset(t, 0, sizeof *t);
    memcpy(t->dt, dt, (size_t)width * sizeof *dt);
    memcpy(t->added, x, (size_t)width * sizeof *x);
    for (int e = 0; e < STATE_COLUMNS; e += LANES) {
        const vec step = vec_softplus(vec_load(t->dt + e));
        vec_store(t->dt + e, step);
        vec_store(t->added + e, step * vec_load(t->added + e));
    }
}

static void ssm_channels(const struct state_job *j, struct piece p)
{
    const struct oato_op *op = j->op;
    const int64_t rows = op->state, first = p.head * state_columns(op) + p.column;
    float *s = j->state + first * rows;
    struct channel_token token[CHANNEL_TOKENS];
    begin(j, s, rows, p.width, p.width);
    for (int64_t t = 0, n; t < j->T; t += n) {
        n = min_i64(j->T - t, CHANNEL_TOKENS);
        const float *x = j->in[0] + t * op->k, *B = x + op->n + p.head * rows;
        for (int64_t u = 0; u < n; u++)
            channels_enter(&token[u], j->in[1] + (t + u) * op->heads + first, x + u * op->k + first,
                           p.width);
        for (int64_t i = 0; i < rows; i++) {
            float a[STATE_COLUMNS] = {0}, row[STATE_COLUMNS] = {0};
            for (int64_t u = 0; u < n; u++) {
                token[u].B = B[u * op->k + i];
                token[u].C = B[u * op->k + op->kv_heads * rows + i];
            }
            for (int e = 0; e < p.width; e++)
                a[e] = j->weight[0][(first + e) * rows + i];
            memcpy(row, s + i * p.width, (size_t)p.width * sizeof *row);
            channels_row(token, n, a, row);
            memcpy(s + i * p.width, row, (size_t)p.width * sizeof *row);
        }
        for (int64_t u = 0; u < n; u++)
            for (int e = 0; e < p.width; e++)
                j->out[(t + u) * op->n + first + e] =
                    token[u].sum[e] + j->weight[1][first + e] * x[u * op->k + first + e];
    }
}

static void ssm(const struct state_job *j, int64_t block)
{
    const struct piece p = piece_of(j, block);
    if (j->op->per_channel)
        ssm_channels(j, p);
    else if (p.width == STATE_COLUMNS)
        ssm_tokens(j, p.head, p.column, STATE_COLUMNS);
    else
        ssm_tokens(j, p.head, p.column, p.width);
}
