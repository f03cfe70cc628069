/*
 * lanes_attention.h - attention on vectors: the one algorithm of avx2_attention.c and
 * avx512_attention.c, which are compiled for its vectors.
 *
 *   for each up to 48 queries: tokens x heads that share the KV head
 *     for each segment of 256 positions
 *       for each block of 64 positions                  16 KiB of F16 at 64 dimensions: in L1
 *         scores = Q K: tiles of 6 queries x 64 (avx2: 16) positions, sums in registers over all
 *                  dimensions; K is dimension-major, so that no lanes are added up
 *         softmax:      weights of each query, its largest score, the shrinking of its sums
 *         values += P V: the same tiles, 6 queries x 64 (16) dimensions, over all positions
 *       segments are merged, in order
 *
 * K and V are converted as they are loaded, 4 conversions to 24 multiply-adds (2 to 12), which is
 * free on Zen 5; the first tile of a block prefetches the next block. Each score is one chain of
 * multiply-adds along the dimensions and each value one along the positions, so that bits depend
 * neither on the companions nor on the level. Positions beyond a query's own are not multiplied.
 */
#ifndef OATO_LANES_ATTENTION_H
#define OATO_LANES_ATTENTION_H

#include "kernels/cpu/lanes_turn.h"

#include <float.h>
#include <string.h>

enum {
    TILE_QUERIES = 6,
    TILE_VECTORS = LANES / 4,
    QUERIES = ATTENTION_QUERIES,
    HALVES = 16 / LANES
};

/* Scratch of a thread: this, then the rows that it points to. */
struct pass {
    const float *q[QUERIES];
    float *out[QUERIES];
    int64_t position[QUERIES];
    float slope[QUERIES];   /* of ALiBi */
    int64_t count[QUERIES]; /* of the block's positions that a query sees */
    float m[QUERIES], l[QUERIES], shrink[QUERIES];
    float total_m[QUERIES], total_l[QUERIES]; /* of the segments before */
    int64_t head[QUERIES];                    /* among those of the KV head */
    float *p;                                 /* [QUERIES][64] scores, then weights */
    float *acc, *total;                       /* [QUERIES][row]: the segment, those before */
    uint8_t *turned;                          /* a block of values that lie in K */
    int64_t row;
    int n;
};

static uint64_t pass_bytes(void)
{
    return size_align(sizeof(struct pass), 64);
}

static uint64_t attention_scratch(const struct oato_op *op)
{
    const uint64_t row = (uint64_t)attention_row_floats(op_v_dim(op));
    return pass_bytes() + QUERIES * (ATTENTION_BLOCK + 2 * row) * sizeof(float) +
           (op->v_in_k ? turned_bytes(op->v_in_k) : 0);
}

static struct pass *pass_at(uint8_t *scratch, int64_t v_dim)
{
    struct pass *s = (struct pass *)(void *)scratch;
    s->row = attention_row_floats(v_dim);
    s->p = floats(scratch + pass_bytes());
    s->acc = s->p + QUERIES * ATTENTION_BLOCK;
    s->total = s->acc + QUERIES * s->row;
    s->turned = (uint8_t *)(s->total + QUERIES * s->row);
    return s;
}

/* ---------------------------------------------------------------------------------- tiles - */

/* Queries times a block: sums over i of a[query][i] * b[i][lane]. */
struct tile {
    const float *a[TILE_QUERIES];
    int64_t count[TILE_QUERIES]; /* values: positions of each query, .. */
    int64_t steps, most;         /* .. the fewest and the most of them */
    const uint8_t *b;
    int64_t b_stride;      /* bytes from i to the next */
    const uint8_t *ahead;  /* of the next block, or NULL */
    const uint8_t *scales; /* of the lanes of K in Q8_0 */
    bool adds;             /* scores: to those of the dimensions before */
    float *c[TILE_QUERIES];
    float shrink[TILE_QUERIES];
};

AVX2_INLINE vec load_lanes(oato_dtype dtype, const uint8_t *p)
{
    return dtype == DT_F32    ? vec_load(const_floats(p))
           : dtype == DT_Q8_0 ? vec_load_i8(p)
                              : vec_load_f16(p);
}

AVX2_INLINE int64_t dtype_bytes(oato_dtype dtype)
{
    return dtype == DT_F32 ? 4 : dtype == DT_Q8_0 ? 1 : 2;
}

/* One step of all sums, or of those of queries that see position i. */
AVX2_INLINE void tile_step(oato_dtype dtype, const struct tile *t, int64_t i, bool all, int queries,
                           int vectors, vec c[TILE_QUERIES][TILE_VECTORS])
{
    const int64_t bytes = LANES * dtype_bytes(dtype);
    const uint8_t *b = t->b + i * t->b_stride;
    vec w[TILE_VECTORS];
    UNROLLED (v, vectors)
        w[v] = load_lanes(dtype, b + v * bytes);
    UNROLLED (q, queries) {
        if (!all && i >= t->count[q])
            continue;
        vec x = vec_set(t->a[q][i]);
        UNROLLED (v, vectors)
            c[q][v] = MM(fmadd_ps)(w[v], x, c[q][v]);
    }
}

AVX2_INLINE void tile_steps(oato_dtype dtype, const struct tile *t, int queries, int vectors,
                            vec c[TILE_QUERIES][TILE_VECTORS])
{
    const int64_t bytes = vectors * LANES * dtype_bytes(dtype);
    if (!t->ahead) {
        for (int64_t i = 0; i < t->steps; i++)
            tile_step(dtype, t, i, true, queries, vectors, c);
        return;
    }
    for (int64_t i = 0; i < t->steps; i++) {
        UNROLL
        for (int64_t at = 0; at < bytes; at += 64)
            _mm_prefetch((const char *)t->ahead + i * t->b_stride + at, _MM_HINT_T0);
        tile_step(dtype, t, i, true, queries, vectors, c);
    }
}

AVX2_INLINE void score_tile(oato_dtype dtype, const struct tile *t, int queries, int vectors)
{
    vec c[TILE_QUERIES][TILE_VECTORS];
    UNROLLED (q, queries)
        UNROLLED (v, vectors)
            c[q][v] = MM(setzero_ps)();
    tile_steps(dtype, t, queries, vectors, c);
    for (int v = 0; dtype == DT_Q8_0 && v < vectors; v++) {
        const vec scale = vec_load_f16(t->scales + 2 * v * LANES);
        UNROLLED (q, queries) {
            vec before = t->adds ? vec_load(t->c[q] + v * LANES) : MM(setzero_ps)();
            c[q][v] = MM(fmadd_ps)(scale, c[q][v], before);
        }
    }
    UNROLLED (q, queries)
        UNROLLED (v, vectors)
            vec_store(t->c[q] + v * LANES, c[q][v]);
}

AVX2_INLINE void value_tile(oato_dtype dtype, const struct tile *t, int queries, int vectors)
{
    vec c[TILE_QUERIES][TILE_VECTORS];
    UNROLLED (q, queries)
        UNROLLED (v, vectors)
            c[q][v] = vec_load(t->c[q] + v * LANES) * vec_set(t->shrink[q]);
    tile_steps(dtype, t, queries, vectors, c);
    for (int64_t i = t->steps; i < t->most; i++)
        tile_step(dtype, t, i, false, queries, vectors, c);
    UNROLLED (q, queries)
        UNROLLED (v, vectors)
            vec_store(t->c[q] + v * LANES, c[q][v]);
}

AVX2_INLINE void tile_shaped(oato_dtype dtype, bool is_value, const struct tile *t, int queries,
                             int vectors)
{
    if (is_value)
        value_tile(dtype, t, queries, vectors);
    else
        score_tile(dtype, t, queries, vectors);
}

/* The tile with its shape known to the compiler. */
AVX2_INLINE void tile_of(oato_dtype dtype, bool is_value, const struct tile *t, int queries,
                         int vectors)
{
    switch (queries) {
    case 6: tile_shaped(dtype, is_value, t, 6, vectors); break;
    case 5: tile_shaped(dtype, is_value, t, 5, vectors); break;
    case 4: tile_shaped(dtype, is_value, t, 4, vectors); break;
    case 3: tile_shaped(dtype, is_value, t, 3, vectors); break;
    case 2: tile_shaped(dtype, is_value, t, 2, vectors); break;
    default: tile_shaped(dtype, is_value, t, 1, vectors);
    }
}

/* `lanes` lanes, or more: those of up to TILE_VECTORS vectors, a power of two. Returns how many. */
AVX2_INLINE int tile_lanes(oato_dtype dtype, bool is_value, const struct tile *t, int queries,
                           int64_t lanes)
{
    if (TILE_VECTORS == 4 && lanes > 2 * LANES) {
        tile_of(dtype, is_value, t, queries, TILE_VECTORS);
        return TILE_VECTORS * LANES;
    }
    if (lanes > LANES) {
        tile_of(dtype, is_value, t, queries, 2);
        return 2 * LANES;
    }
    tile_of(dtype, is_value, t, queries, 1);
    return LANES;
}

/* Scores of queries [first, first + n) of the pass: as many positions as the last of them sees,
 * and perhaps some more. */
AVX2_INLINE void scores(oato_dtype dtype, const struct pass *s, int first, int n, int64_t d,
                        const uint8_t *k, const uint8_t *ahead)
{
    const int64_t bytes = dtype_bytes(dtype), row = ATTENTION_BLOCK * bytes;
    const int64_t piece = dtype == DT_Q8_0 ? 32 : d; /* of dimensions, with one scale */
    struct tile t = {.steps = piece, .b_stride = row};
    int64_t most = 0;
    for (int i = 0; i < n; i++)
        most = max_i64(most, s->count[first + i]);
    for (int64_t e = 0; e < d; e += piece) {
        t.adds = e > 0;
        for (int64_t at = 0; at < most;) {
            t.b = k + e * row + at * bytes;
            t.ahead = ahead && at * bytes % 64 == 0 ? ahead + e * row + at * bytes : NULL;
            t.scales = k + ATTENTION_BLOCK * (d + e / 32 * 2) + 2 * at;
            for (int i = 0; i < n; i++) {
                t.a[i] = s->q[first + i] + e;
                t.c[i] = s->p + (first + i) * ATTENTION_BLOCK + at;
            }
            at += tile_lanes(dtype, false, &t, n, most - at);
        }
    }
}

/* Weights times the scales of 32 dimensions of V. */
AVX2_INLINE void weights_scale(const struct tile *t, int n, const uint8_t *scales,
                               float scaled[TILE_QUERIES][ATTENTION_BLOCK])
{
    for (int64_t i = 0; i < t->most; i += LANES) {
        const vec scale = vec_load_f16(scales + 2 * i);
        for (int q = 0; q < n; q++)
            vec_store(scaled[q] + i, vec_load(t->a[q] + i) * scale);
    }
}

AVX2_INLINE void values(oato_dtype dtype, const struct pass *s, int first, int n, int64_t d,
                        const uint8_t *v, const uint8_t *ahead)
{
    const int64_t bytes = dtype_bytes(dtype);
    struct tile t = {.steps = ATTENTION_BLOCK, .b = v, .b_stride = d * bytes, .ahead = ahead};
    for (int i = 0; i < n; i++) {
        t.a[i] = s->p + (first + i) * ATTENTION_BLOCK;
        t.c[i] = s->acc + (first + i) * s->row;
        t.shrink[i] = s->shrink[first + i];
        t.count[i] = s->count[first + i];
        t.steps = min_i64(t.steps, t.count[i]);
        t.most = max_i64(t.most, t.count[i]);
    }
    float scaled[TILE_QUERIES][ATTENTION_BLOCK];
    for (int64_t at = 0; at < d && t.most;) {
        int64_t wide = d - at;
        if (TILE_VECTORS == 4 && (dtype == DT_Q8_0 || (wide > 2 * LANES && wide <= 3 * LANES)))
            wide = min_i64(wide, 2 * LANES);
        if (dtype == DT_Q8_0 && at % 32 == 0) {
            for (int i = 0; i < n; i++)
                t.a[i] = s->p + (first + i) * ATTENTION_BLOCK;
            weights_scale(&t, n, v + ATTENTION_BLOCK * (d + at / 32 * 2), scaled);
            for (int i = 0; i < n; i++)
                t.a[i] = scaled[i];
        }
        /* the last vector may reach into the next row, or the padding: lanes that nobody reads */
        const int lanes = tile_lanes(dtype, true, &t, n, wide);
        at += lanes;
        t.b += lanes * bytes;
        t.ahead = ahead && at * bytes % 64 == 0 ? ahead + at * bytes : NULL;
        for (int i = 0; i < n; i++)
            t.c[i] += lanes;
    }
}

static void scores_any(oato_dtype dtype, const struct pass *s, int first, int n, int64_t d,
                       const uint8_t *k, const uint8_t *ahead)
{
    if (dtype == DT_F32)
        scores(DT_F32, s, first, n, d, k, ahead);
    else if (dtype == DT_Q8_0)
        scores(DT_Q8_0, s, first, n, d, k, ahead);
    else
        scores(DT_F16, s, first, n, d, k, ahead);
}

static void values_any(oato_dtype dtype, const struct pass *s, int first, int n, int64_t d,
                       const uint8_t *v, const uint8_t *ahead)
{
    if (dtype == DT_F32)
        values(DT_F32, s, first, n, d, v, ahead);
    else if (dtype == DT_Q8_0)
        values(DT_Q8_0, s, first, n, d, v, ahead);
    else
        values(DT_F16, s, first, n, d, v, ahead);
}

/* -------------------------------------------------------------------------------- softmax - */

/* Weights of one query: p = e^(scale p - the largest so far), which goes to *top; zeros beyond
 * count. Returns their sum. */
static float weigh(float *p, int64_t count, float scale, float m, float *top)
{
    enum { VECTORS = ATTENTION_BLOCK / LANES };
    const vec factor = vec_set(scale);
    vec s[VECTORS], largest = vec_set(m);
    UNROLLED (i, VECTORS) {
        s[i] = vec_below(vec_load(p + i * LANES) * factor, count - i * LANES);
        largest = MM(max_ps)(largest, s[i]);
    }
    *top = vec_top(largest);
    const vec minus = vec_set(*top);
    vec sum[HALVES];
    UNROLLED (i, VECTORS) {
        vec e = vec_exp(s[i] - minus);
        vec_store(p + i * LANES, e);
        sum[i % HALVES] = i < HALVES ? e : MM(add_ps)(sum[i % HALVES], e);
    }
    return vec_sum_16(sum);
}

/* Scores within +-cap: tanh x = 2 / (1 + e^-2x) - 1. */
static void cap_scores(float *p, float scale, float cap)
{
    const vec one = vec_set(1), two = vec_set(2), factor = vec_set(-2 * scale / cap);
    for (int i = 0; i < ATTENTION_BLOCK; i += LANES) {
        const vec e = vec_exp(vec_load(p + i) * factor);
        vec_store(p + i, vec_set(cap) * (two / (one + e) - one));
    }
}

/* p = scale p - slope (ago - i), of a block that begins `ago` positions before the query's. */
static void slope_scores(float *p, float scale, float slope, int64_t ago)
{
    for (int i = 0; i < ATTENTION_BLOCK; i++)
        p[i] = p[i] * scale - slope * (float)(ago - i);
}

/* `begin`: the block's first position. */
static void softmax(const struct oato_op *op, int64_t begin, struct pass *s)
{
    float top[QUERIES], sum[QUERIES];
    for (int i = 0; i < QUERIES; i++) {
        float *p = s->p + i * ATTENTION_BLOCK;
        top[i] = s->m[i];
        sum[i] = 0;
        if (i >= s->n || !s->count[i])
            continue;
        if (op->soft_cap != 0)
            cap_scores(p, op->scale, op->soft_cap);
        const float scale = op->soft_cap != 0 ? 1 : op->scale;
        if (op->alibi != 0)
            slope_scores(p, scale, s->slope[i], s->position[i] - begin);
        for (int64_t at = attention_first(op, s->position[i]) - begin; at > 0; at--)
            p[at - 1] = -INFINITY; /* before the window */
        sum[i] = weigh(p, s->count[i], op->alibi != 0 ? 1 : scale, s->m[i], &top[i]);
    }
    for (int i = 0; i < s->n; i += LANES) {
        vec shrink = vec_exp(vec_load(s->m + i) - vec_load(top + i));
        vec_store(s->shrink + i, shrink);
        vec_store(s->l + i, MM(fmadd_ps)(vec_load(s->l + i), shrink, vec_load(sum + i)));
        vec_store(s->m + i, vec_load(top + i));
    }
}

/* ------------------------------------------------------------------------------- segments - */

static float exp_one(float x)
{
    float lanes[LANES];
    vec_store(lanes, vec_exp(vec_set(x)));
    return lanes[0];
}

static void merge_segment(float *total_m, float *total_l, float *total, float m, float l,
                          const float *acc, int64_t row)
{
    const float top = m > *total_m ? m : *total_m;
    const float old = exp_one(*total_m - top), new = exp_one(m - top);
    *total_m = top;
    *total_l = *total_l * old + l * new;
    for (int64_t e = 0; e < row; e += LANES) {
        vec t = vec_load(total + e) * vec_set(old);
        vec_store(total + e, MM(fmadd_ps)(vec_load(acc + e), vec_set(new), t));
    }
}

/* A sink's exponential, relative to the largest score: enough to make the result 0 where the sink
 * is far larger. */
static float sink_weight(const float *sinks, int64_t head, float m)
{
    return sinks ? exp_one(sinks[head] - m) : 0;
}

/* out = total / l */
static void divide(float *out, const float *total, float l, int64_t d)
{
    int64_t e = 0;
    for (; e + LANES <= d; e += LANES)
        vec_store(out + e, vec_load(total + e) / vec_set(l));
    for (; e < d; e++)
        out[e] = total[e] / l;
}

/* Queries [first, first + n) of the job. */
static void pass_begin(const struct attention_job *j, int64_t first, int64_t n, struct pass *s)
{
    const int64_t d = j->op->head_dim, group = j->op->heads / j->op->kv_heads;
    s->n = (int)n;
    for (int64_t i = 0; i < n; i++) {
        const int64_t token = j->token_begin + (first + i) / group;
        const int64_t head = j->kv_head * group + (first + i) % group;
        s->position[i] = j->token_position[token];
        s->head[i] = (first + i) % group;
        s->q[i] = j->q + token * j->op->k + head * d;
        s->out[i] = j->out + token * j->op->n + head * op_v_dim(j->op);
        s->slope[i] = j->op->alibi != 0 ? op_slope(j->op, (int32_t)head) : 0;
    }
}

static void block(const struct attention_job *j, int64_t begin, int64_t last, struct pass *s)
{
    const int64_t d = j->op->head_dim;
    const int32_t *page = kv_table(j->kv, j->kv_layer, j->seq) + begin / ATTENTION_BLOCK;
    const bool more = begin + ATTENTION_BLOCK <= last, turns = j->op->v_in_k;
    const uint8_t *data[2] = {NULL, s->turned}, *ahead[2] = {NULL, NULL};
    for (int which = 0; which < 2 - turns; which++) {
        data[which] = kv_block(j->kv, j->kv_layer, page[0], which, j->kv_head);
        if (more)
            ahead[which] = kv_block(j->kv, j->kv_layer, page[1], which, j->kv_head);
    }
    for (int i = 0; i < s->n; i++) {
        const int64_t count = min_i64(ATTENTION_BLOCK, s->position[i] + 1 - begin);
        s->count[i] =
            count > attention_first(j->op, s->position[i]) - begin ? max_i64(0, count) : 0;
    }
    const int tiles = (s->n + TILE_QUERIES - 1) / TILE_QUERIES;
    for (int i = 0; i < tiles; i++) {
        const int from = s->n * i / tiles, to = s->n * (i + 1) / tiles;
        scores_any(j->kv->dtype, s, from, to - from, d, data[0], i ? NULL : ahead[0]);
    }
    softmax(j->op, begin, s);
    if (turns)
        values_turn(j->kv->dtype, data[0], d, j->op->v_in_k, s->turned);
    for (int i = 0; i < tiles; i++) {
        const int from = s->n * i / tiles, to = s->n * (i + 1) / tiles;
        values_any(j->kv->dtype, s, from, to - from, op_v_dim(j->op), data[1], i ? NULL : ahead[1]);
    }
}

/* The pass begun, in one segment of positions up to `last`. */
static void segment_run(const struct attention_job *j, int64_t segment, int64_t last,
                        struct pass *s)
{
    for (int i = 0; i < QUERIES; i++) {
        s->m[i] = -FLT_MAX; /* not -inf: differences stay numbers */
        s->l[i] = 0;
    }
    memset(s->acc, 0, (size_t)(s->n * s->row) * sizeof *s->acc);
    const int64_t begin = segment * ATTENTION_SEGMENT;
    const int64_t seen = attention_first(j->op, s->position[0]) / ATTENTION_BLOCK * ATTENTION_BLOCK;
    for (int64_t at = max_i64(begin, seen); at < begin + ATTENTION_SEGMENT && at <= last;
         at += ATTENTION_BLOCK)
        block(j, at, last, s);
}

static void partial_run(const struct attention_job *j, int64_t first, int64_t queries, int64_t last,
                        struct pass *s)
{
    const int64_t one = attention_partial_floats(op_v_dim(j->op));
    for (int64_t segment = j->segment_begin; segment < j->segment_end; segment++) {
        segment_run(j, segment, last, s);
        float *part = j->partial + ((segment - j->segment_begin) * queries + first) * one;
        for (int i = 0; i < s->n; i++, part += one) {
            part[0] = s->m[i];
            part[1] = s->l[i];
            memcpy(part + 2, s->acc + i * s->row, (size_t)s->row * sizeof *part);
        }
    }
}

static void whole_run(const struct attention_job *j, int64_t last, struct pass *s)
{
    memset(s->total, 0, (size_t)(s->n * s->row) * sizeof *s->total);
    for (int i = 0; i < s->n; i++) {
        s->total_m[i] = -FLT_MAX;
        s->total_l[i] = 0;
    }
    for (int64_t segment = 0; segment * ATTENTION_SEGMENT <= last; segment++) {
        segment_run(j, segment, last, s);
        for (int i = 0; i < s->n; i++)
            if (segment * ATTENTION_SEGMENT <= s->position[i])
                merge_segment(&s->total_m[i], &s->total_l[i], s->total + i * s->row, s->m[i],
                              s->l[i], s->acc + i * s->row, s->row);
    }
    for (int i = 0; i < s->n; i++)
        divide(s->out[i], s->total + i * s->row,
               s->total_l[i] + sink_weight(j->sinks, s->head[i], s->total_m[i]), op_v_dim(j->op));
}

static void attention_run(const struct attention_job *j, uint8_t *scratch)
{
    const int64_t group = j->op->heads / j->op->kv_heads;
    const int64_t queries = (j->token_end - j->token_begin) * group;
    const int64_t passes = (queries + QUERIES - 1) / QUERIES;
    struct pass *s = pass_at(scratch, op_v_dim(j->op));
    for (int64_t i = 0; i < passes; i++) {
        const int64_t first = queries * i / passes, end = queries * (i + 1) / passes;
        pass_begin(j, first, end - first, s);
        const int64_t last = s->position[s->n - 1];
        if (j->partial)
            partial_run(j, first, queries, last, s);
        else
            whole_run(j, last, s);
    }
}

static void attention_merge(const float *partial, int64_t stride, int64_t n, int32_t heads,
                            int32_t v_dim, const float *sinks, float *out)
{
    const int64_t row = attention_row_floats(v_dim), one = attention_partial_floats(v_dim);
    float total[HEAD_DIM_MAX];
    for (int32_t h = 0; h < heads; h++, out += v_dim, partial += one) {
        float m = -FLT_MAX, l = 0;
        memset(total, 0, (size_t)row * sizeof *total);
        for (int64_t s = 0; s < n; s++) {
            const float *part = partial + s * stride;
            merge_segment(&m, &l, total, part[0], part[1], part + 2, row);
        }
        divide(out, total, l + sink_weight(sinks, h, m), v_dim);
    }
}

#endif
