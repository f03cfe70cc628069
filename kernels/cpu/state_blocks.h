/*
 * state_blocks.h - the recurrent mixers, written once in the vectors of the level that includes
 * this, which in the definition are one lane wide. A block is some channels of a convolution, or
 * some columns of one head's state, which do not depend on the other columns. It goes through its
 * tokens one by one, in order, so that chunks, batches and threads leave a token's bits alone. Sums
 * over a state's rows stay in registers, the rows in the L1.
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

enum {
    SUMS = 16,
    VECTORS = STATE_COLUMNS / LANES, /* of a block's row */
    PIECE_BLOCKS = LANES == 16 ? 2 : 1,
    PIECE_VECTORS = PIECE_BLOCKS * VECTORS,
    PIECE_COLUMNS = PIECE_BLOCKS * STATE_COLUMNS
};

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
static void begin_state(const struct state_job *j, float *s, int64_t rows, int64_t stride,
                        int64_t width)
{
    for (int64_t i = 0; j->fresh && i < rows; i++)
        memset(s + i * stride, 0, (size_t)width * sizeof *s);
}

/* A block of a head's columns, or of a group's channels; or more of them side by side. */
struct piece {
    int64_t head, column;
    int blocks, width; /* columns: whole blocks, but for the head's last */
};

static struct piece piece_of(const struct state_job *j, int64_t block, int64_t end, int most)
{
    const int64_t d = state_columns(j->op), of_head = (d + STATE_COLUMNS - 1) / STATE_COLUMNS;
    struct piece p = {.head = block / of_head, .column = block % of_head * STATE_COLUMNS};
    p.blocks = (int)min_i64(min_i64(most, end - block), of_head - block % of_head);
    p.width = (int)min_i64(d - p.column, p.blocks * STATE_COLUMNS);
    return p;
}

/* A piece of a state, of whole vectors and without gaps between its rows, which in their place lie
 * in few sets of the L1. For a few tokens it is used where it is. */
enum { IN_PLACE_TOKENS = 4 };

struct rows {
    float *at, *home;
    int64_t n, stride, home_stride;
    float copy[HEAD_DIM_MAX * PIECE_COLUMNS];
};

static void rows_enter(struct rows *r, const struct piece *p, float *s, int64_t n, int64_t stride,
                       int64_t tokens)
{
    const int64_t columns = p->blocks * STATE_COLUMNS;
    r->home = s;
    r->n = n;
    r->home_stride = stride;
    const bool in_place = p->width == columns && (stride == columns || tokens <= IN_PLACE_TOKENS);
    r->at = in_place ? s : r->copy;
    r->stride = in_place ? stride : columns;
    for (int64_t i = 0; !in_place && i < n; i++) {
        float *to = r->copy + i * columns;
        memcpy(to, s + i * stride, (size_t)p->width * sizeof *s);
        memset(to + p->width, 0, (size_t)(columns - p->width) * sizeof *s);
    }
}

static void rows_leave(const struct rows *r, const struct piece *p)
{
    for (int64_t i = 0; r->at == r->copy && i < r->n; i++)
        memcpy(r->home + i * r->home_stride, r->at + i * r->stride,
               (size_t)p->width * sizeof *r->home);
}

/* A token's numbers for the columns of a piece, with zeros behind them. */
static inline __attribute__((always_inline)) void columns_load(vec *x, const float *from, int width,
                                                               const int vectors)
{
    float all[PIECE_COLUMNS] = {0};
    if (width < vectors * LANES)
        from = memcpy(all, from, (size_t)width * sizeof *from);
    UNROLLED (v, vectors)
        x[v] = vec_load(from + v * LANES);
}

static inline __attribute__((always_inline)) void columns_store(float *to, const vec *x, int width,
                                                                const int vectors)
{
    float some[PIECE_COLUMNS], *all = width < vectors * LANES ? some : to;
    UNROLLED (v, vectors)
        vec_store(all + v * LANES, x[v]);
    if (all != to)
        memcpy(to, all, (size_t)width * sizeof *to);
}

/* ----------------------------------------------------------------------------- convolution */

enum { CONV_BLOCKS = 8 }; /* at a time, so that of a token's row there is more than a cache line */

/* The input `back` steps before the sequence's t-th token. */
static const float *earlier(const struct state_job *j, int64_t t, int64_t back)
{
    const int64_t k = j->op->k, before = j->op->state;
    return t >= back ? j->in[0] + (t - back) * k : j->state + (t - back + before) * k;
}

/* A token's sums for the channels from c on. */
static inline __attribute__((always_inline)) void
conv_block(const struct state_job *j, const float *const row[CONV_STATE_MAX + 1], const float *w,
           int64_t t, int64_t c, const int width)
{
    vec sum[VECTORS] = {0};
    for (int64_t i = 0; i <= j->op->state; i++) {
        vec x[VECTORS];
        columns_load(x, row[i] + c, width, VECTORS);
        UNROLLED (v, VECTORS)
            sum[v] += vec_load(w + i * STATE_COLUMNS + v * LANES) * x[v];
    }
    columns_store(j->out + t * j->op->k + c, sum, width, VECTORS);
}

static void conv_channels(const struct state_job *j, int64_t c, int64_t end)
{
    const int64_t k = j->op->k, before = j->op->state, taps = before + 1;
    float w[CONV_BLOCKS * (CONV_STATE_MAX + 1) * STATE_COLUMNS]; /* by block, tap and channel */
    for (int64_t e = 0; e < end - c; e++)
        for (int64_t i = 0; i < taps; i++)
            w[(e / STATE_COLUMNS * taps + i) * STATE_COLUMNS + e % STATE_COLUMNS] =
                j->weight[0][(c + e) * taps + i];
    begin_state(j, j->state + c, before, k, end - c);
    for (int64_t t = 0; t < j->T; t++) {
        const float *row[CONV_STATE_MAX + 1];
        for (int64_t i = 0; i < taps; i++)
            row[i] = earlier(j, t, before - i);
        int64_t at = c;
        for (; at + STATE_COLUMNS <= end; at += STATE_COLUMNS)
            conv_block(j, row, w + (at - c) * taps, t, at, STATE_COLUMNS);
        if (at < end)
            conv_block(j, row, w + (at - c) * taps, t, at, (int)(end - at));
    }
    for (int64_t i = 0; i < before; i++) /* the oldest first: none is overwritten before it moved */
        memmove(j->state + i * k + c, earlier(j, j->T - 1, before - 1 - i) + c,
                (size_t)(end - c) * sizeof(float));
}

static void conv(const struct state_job *j, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i += CONV_BLOCKS)
        conv_channels(j, i * STATE_COLUMNS,
                      min_i64(j->op->k, min_i64(end, i + CONV_BLOCKS) * STATE_COLUMNS));
}

/* -------------------------------------------------------------------------- the delta rule */

/* Tokens as a head's state sees them. */
enum { DELTA_TOKENS = 32, DELTA_FLOATS = 4096 };

struct delta_tokens {
    int64_t first, n;
    const float *q[DELTA_TOKENS], *k[DELTA_TOKENS];
    float q_factor[DELTA_TOKENS], k_factor[DELTA_TOKENS], b[DELTA_TOKENS];
    /* of rows of the state, head_dim for each token: decays, and what the sum over the rows as they
     * were before the token multiplies them with */
    float decay[DELTA_FLOATS], factor[DELTA_FLOATS];
};

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

/* As many tokens from the first on as there is room for. */
static void delta_enter(struct delta_tokens *x, const struct state_job *j, int64_t first,
                        int64_t head)
{
    const struct oato_op *op = j->op;
    const int64_t d = op->head_dim;
    const int64_t kv_head = op->cyclic ? head % op->kv_heads : head / (op->heads / op->kv_heads);
    x->first = first;
    x->n = min_i64(j->T - first, min_i64(DELTA_TOKENS, DELTA_FLOATS / d));
    for (int64_t i = 0; i < x->n; i++) {
        const int64_t t = first + i;
        const float *q = j->in[0] + t * op->k + kv_head * d, *k = q + op->kv_heads * d;
        x->q[i] = q;
        x->k[i] = k;
        x->q_factor[i] = 1 / sqrtf((square_sum(q, d) + op->eps) * (float)d);
        x->k_factor[i] = 1 / sqrtf(square_sum(k, d) + op->eps);
        x->b[i] = sigmoid(j->in[2][t * op->heads + head]);
        delta_decays(j, t, head, x->decay + i * d);
        for (int64_t c = 0; c < d; c++)
            x->factor[i * d + c] = k[c] * x->decay[i * d + c];
    }
}

/* A pass over the rows: token `now` changes them and reads `sum`, then `next` looks at the result.
 */
static inline __attribute__((always_inline)) void
delta_rows(const struct rows *r, const struct delta_tokens *x, int64_t now, int64_t next,
           const vec *change, vec *sum, vec *seen, const bool changes, const bool looks,
           const int vectors)
{
    const int64_t d = r->n, stride = r->stride;
    const float *q = x->q[now], *k = x->k[now], *decay = x->decay + now * d;
    const float *factor = x->factor + next * d;
    float *row = r->at;
    for (int64_t i = 0; i < d; i++, row += stride) {
        vec s[PIECE_VECTORS];
        UNROLLED (v, vectors)
            s[v] = vec_load(row + v * LANES);
        if (changes) {
            const vec a = vec_set(decay[i]), b = vec_set(k[i]), c = vec_set(q[i]);
            UNROLLED (v, vectors) {
                s[v] = a * s[v] + b * change[v];
                sum[v] += c * s[v];
                vec_store(row + v * LANES, s[v]);
            }
        }
        if (looks) {
            const vec a = vec_set(factor[i]);
            UNROLLED (v, vectors)
                seen[v] += a * s[v];
        }
    }
}

static inline __attribute__((always_inline)) void
delta_piece(const struct state_job *j, const struct delta_tokens *x, const struct piece *p,
            const struct rows *r, const int vectors)
{
    const struct oato_op *op = j->op;
    const float *in = j->in[0] + x->first * op->k;
    const float *value = in + (2 * op->kv_heads + p->head) * op->head_dim + p->column;
    float *out = j->out + x->first * op->n + p->head * op->head_dim + p->column;
    vec seen[PIECE_VECTORS] = {0};
    delta_rows(r, x, 0, 0, NULL, NULL, seen, false, true, vectors);
    for (int64_t t = 0; t < x->n; t++, value += op->k, out += op->n) {
        const vec b = vec_set(x->b[t]), factor = vec_set(x->k_factor[t]);
        vec change[PIECE_VECTORS], sum[PIECE_VECTORS] = {0};
        columns_load(change, value, p->width, vectors);
        UNROLLED (v, vectors) {
            change[v] = b * (change[v] - factor * seen[v]) * factor;
            seen[v] = vec_set(0);
        }
        if (t + 1 < x->n)
            delta_rows(r, x, t, t + 1, change, sum, seen, true, true, vectors);
        else
            delta_rows(r, x, t, t, change, sum, seen, true, false, vectors);
        UNROLLED (v, vectors)
            sum[v] *= vec_set(x->q_factor[t]);
        columns_store(out, sum, p->width, vectors);
    }
}

/* The blocks [begin, end) of one head. */
static void delta_head(const struct state_job *j, int64_t begin, int64_t end)
{
    const int64_t d = j->op->head_dim;
    struct delta_tokens x;
    struct rows r;
    struct piece p = piece_of(j, begin, end, PIECE_BLOCKS);
    for (int64_t t = 0; t < j->T; t += x.n) {
        delta_enter(&x, j, t, p.head);
        for (int64_t i = begin; i < end; i += p.blocks) {
            p = piece_of(j, i, end, PIECE_BLOCKS);
            float *s = j->state + p.head * d * d + p.column;
            if (t == 0)
                begin_state(j, s, d, d, p.width);
            rows_enter(&r, &p, s, d, d, x.n);
            if (p.blocks == PIECE_BLOCKS)
                delta_piece(j, &x, &p, &r, PIECE_VECTORS);
            else
                delta_piece(j, &x, &p, &r, VECTORS);
            rows_leave(&r, &p);
        }
    }
}

static void delta(const struct state_job *j, int64_t begin, int64_t end)
{
    const int64_t of_head = (j->op->head_dim + STATE_COLUMNS - 1) / STATE_COLUMNS;
    for (int64_t i = begin, last; i < end; i = last) {
        last = min_i64(end, (i / of_head + 1) * of_head);
        delta_head(j, i, last);
    }
}

/* ------------------------------------------------------------------------- Mamba's scan --- */

static inline __attribute__((always_inline)) void
ssm_piece(const struct state_job *j, const struct piece *p, const struct rows *r, const int vectors)
{
    const struct oato_op *op = j->op;
    const int64_t rows = r->n, stride = r->stride, head = p->head;
    const int64_t group = head / (op->heads / op->kv_heads);
    const bool constant = op->alibi != 0;
    const float kept = constant ? expf(-op->scale * op_slope(op, (int32_t)head)) : 0;
    const float *in = j->in[0] + head * op->head_dim + p->column;
    for (int64_t t = 0; t < j->T; t++, in += op->k) {
        const float *B = j->in[0] + t * op->k + op->n + group * rows, *C = B + op->kv_heads * rows;
        const float dt = constant ? 1 : softplus(j->in[1][t * op->heads + head]);
        const vec decay = vec_set(constant ? kept : expf(dt * j->weight[0][head]));
        vec x[PIECE_VECTORS], added[PIECE_VECTORS], sum[PIECE_VECTORS] = {0};
        columns_load(x, in, p->width, vectors);
        UNROLLED (v, vectors)
            added[v] = vec_set(dt) * x[v];
        float *row = r->at;
        for (int64_t i = 0; i < rows; i++, row += stride) {
            const vec b = vec_set(B[i]), c = vec_set(C[i]);
            UNROLLED (v, vectors) {
                const vec s = decay * vec_load(row + v * LANES) + b * added[v];
                sum[v] += c * s;
                vec_store(row + v * LANES, s);
            }
        }
        if (!constant)
            UNROLLED (v, vectors)
                sum[v] += vec_set(j->weight[1][head]) * x[v];
        columns_store(j->out + t * op->n + head * op->head_dim + p->column, sum, p->width, vectors);
    }
}

/* Single channels: the columns of a block are channels of one group, and each element of their
 * states decays by itself. A block's state is rows of its channels. Row by row goes through a few
 * tokens, so that it is read and written once for them. */
enum { CHANNEL_TOKENS = 16 };

struct channel_token {
    float dt[STATE_COLUMNS], added[STATE_COLUMNS], sum[STATE_COLUMNS];
    float B, C; /* of the row in work */
};

/* a, s: the row's logarithms of decays, and its state. */
static void channels_row(struct channel_token *token, int64_t n, const float *a, float *s)
{
    vec state[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        state[v] = vec_load(s + v * LANES);
    for (struct channel_token *t = token; t < token + n; t++) {
        UNROLL
        for (int v = 0; v < VECTORS; v++) {
            const vec decay = vec_exp(vec_load(t->dt + v * LANES) * vec_load(a + v * LANES));
            state[v] = decay * state[v] + vec_set(t->B) * vec_load(t->added + v * LANES);
            vec_store(t->sum + v * LANES, vec_load(t->sum + v * LANES) + vec_set(t->C) * state[v]);
        }
    }
    for (int v = 0; v < VECTORS; v++)
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
    begin_state(j, s, rows, p.width, p.width);
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

static void ssm(const struct state_job *j, int64_t begin, int64_t end)
{
    const int64_t d = j->op->head_dim, n = j->op->state;
    struct rows r;
    struct piece p;
    for (int64_t i = begin; i < end; i += p.blocks) {
        p = piece_of(j, i, end, j->op->per_channel ? 1 : PIECE_BLOCKS);
        if (j->op->per_channel) {
            ssm_channels(j, p);
            continue;
        }
        float *s = j->state + p.head * n * d + p.column;
        begin_state(j, s, n, d, p.width);
        rows_enter(&r, &p, s, n, d, j->T);
        if (p.blocks == PIECE_BLOCKS)
            ssm_piece(j, &p, &r, PIECE_VECTORS);
        else
            ssm_piece(j, &p, &r, VECTORS);
        rows_leave(&r, &p);
    }
}
