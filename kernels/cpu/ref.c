/*
 * ref.c - the definition of every kernel, in plain C: weights are dequantised to float32 and
 * multiplied in float32. All other instruction sets are compared with this file.
 *
 * A dot product keeps 16 partial sums, element i in sum i mod 16, added up as a tree: the bits of
 * a result depend on its row and column alone, not on T, threads or chunks, and the compiler may
 * use vectors of any width. A dequantised row serves all T columns.
 */
#include "kernels/cpu/kernels_internal.h"

#include <math.h>
#include <string.h>

enum { LANES = 16 };

static float lanes_sum(float s[LANES])
{
    for (int w = LANES / 2; w > 0; w /= 2)
        for (int i = 0; i < w; i++)
            s[i] += s[i + w];
    return s[0];
}

/* Four vectors of four: as many registers as the smallest x86-64 has to spare. */
typedef float f32x4 __attribute__((vector_size(16), aligned(4)));

static float dot(const float *a, const float *b, int64_t k)
{
    f32x4 s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    const int64_t whole = k - k % LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        s0 += *(const f32x4 *)(a + i) * *(const f32x4 *)(b + i);
        s1 += *(const f32x4 *)(a + i + 4) * *(const f32x4 *)(b + i + 4);
        s2 += *(const f32x4 *)(a + i + 8) * *(const f32x4 *)(b + i + 8);
        s3 += *(const f32x4 *)(a + i + 12) * *(const f32x4 *)(b + i + 12);
    }
    float s[LANES];
    memcpy(s, &s0, sizeof s0);
    memcpy(s + 4, &s1, sizeof s1);
    memcpy(s + 8, &s2, sizeof s2);
    memcpy(s + 12, &s3, sizeof s3);
    for (int64_t i = whole; i < k; i++)
        s[i - whole] += a[i] * b[i];
    return lanes_sum(s);
}

/* ------------------------------------------------------------------------ matrix products - */

static uint64_t row_bytes_of(oato_dtype dtype, int64_t k)
{
    size_t bytes = 0;
    dtype_row_bytes(dtype, k, &bytes);
    return bytes;
}

/* The layout is the GGUF's own. */
static uint64_t ref_matrix_bytes(int lanes, oato_dtype dtype, int64_t rows, int64_t k)
{
    (void)lanes;
    return (uint64_t)rows * row_bytes_of(dtype, k);
}

static void ref_prepare(int lanes, const struct weight_source *s, struct oato_weight *w,
                        int64_t begin, int64_t end)
{
    (void)lanes;
    const uint64_t row = row_bytes_of(s->dtype, s->k);
    uint8_t *to = (uint8_t *)w->data + (uint64_t)begin * row;
    for (int64_t r = begin; r < end; r++, to += row)
        memcpy(to, weight_source_row(s, r), row);
}

static uint64_t ref_scratch_bytes(oato_dtype dtype, int64_t k)
{
    return dtype == DT_F32 ? 0 : (uint64_t)k * sizeof(float);
}

static void ref_matrix_rows(const struct matrix_job *j, int64_t begin, int64_t end,
                            uint8_t *scratch)
{
    const int64_t k = j->w->k;
    const uint64_t row = row_bytes_of(j->w->dtype, k);
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *from = j->w->data + (uint64_t)r * row;
        const float *w = const_floats(from);
        if (j->w->dtype != DT_F32) {
            quants_row(j->w->dtype, from, k, floats(scratch));
            w = const_floats(scratch);
        }
        for (int64_t t = 0; t < j->T; t++)
            j->y[t * j->y_stride + r] = dot(w, j->x + t * k, k);
    }
}

/* -------------------------------------------------------------------------------- vectors - */

static void ref_rms_norm(float *y, const float *x, const float *w, int64_t n, float eps)
{
    float s[LANES] = {0};
    for (int64_t i = 0; i < n; i++)
        s[i % LANES] += x[i] * x[i];
    float scale = 1.0f / sqrtf(lanes_sum(s) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}

static void ref_layer_norm(float *y, const float *x, const float *w, const float *bias, int64_t n,
                           float eps, bool centred)
{
    float sum[LANES] = {0}, squares[LANES] = {0};
    for (int64_t i = 0; i < n; i++)
        sum[i % LANES] += x[i];
    const float mean = centred ? lanes_sum(sum) / (float)n : 0;
    for (int64_t i = 0; i < n; i++)
        squares[i % LANES] += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / sqrtf(lanes_sum(squares) / (float)n + eps);
    for (int64_t i = 0; i < n; i++)
        y[i] = (x[i] - mean) * scale * (w ? w[i] : 1) + (bias ? bias[i] : 0);
}

static void ref_add(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

static void ref_gate(enum activation a, float scale, float *y, const float *gate, const float *up,
                     int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float u = up ? up[i] : 1;
        if (a == ACT_CLAMPED)
            u = 1 + (u < -7 ? -7 : u > 7 ? 7 : u);
        if ((a == ACT_CLAMPED_SILU || a == ACT_SILU_CLAMPED) && up)
            u = u < -scale ? -scale : u > scale ? scale : u;
        y[i] = activation_of(a, scale, gate[i]) * u;
    }
}

static void ref_to_f16(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = f32_to_finite_f16(x[i]);
}

void ref_add_scaled(float *y, float factor, oato_dtype dtype, const uint8_t *from, int64_t n,
                    float *room)
{
    const float *w = const_floats(from);
    if (dtype != DT_F32) {
        quants_row(dtype, from, n, room);
        w = room;
    }
    for (int64_t i = 0; i < n; i++)
        y[i] += factor * w[i];
}

/* ------------------------------------------------------------------------------ attention - */

/* Of a query: the largest score so far, the sum of exponentials relative to it, and the values
 * weighted by them; for the segment at hand and for those before. */
struct softmax {
    float m, l, total_m, total_l;
};

/* Scratch of a thread: a block of K and of V as float32, its scores, and the state of all queries
 * of a job. */
struct attention_room {
    float *k, *v, *p;
    float *acc; /* [queries][values] of the segment */
    struct softmax *softmax;
};

static int64_t job_queries(const struct oato_op *op)
{
    return max_i64(ATTENTION_QUERIES, op->heads / op->kv_heads);
}

static uint64_t ref_attention_scratch(const struct oato_op *op)
{
    uint64_t d = (uint64_t)op->head_dim, v = (uint64_t)op_v_dim(op);
    uint64_t queries = (uint64_t)job_queries(op);
    return (ATTENTION_BLOCK * (d + v) + queries * v + ATTENTION_BLOCK) * sizeof(float) +
           queries * sizeof(struct softmax);
}

static struct attention_room attention_room(const struct oato_op *op, uint8_t *scratch)
{
    struct attention_room room = {.softmax = (struct softmax *)(void *)scratch};
    room.p = floats(room.softmax + job_queries(op));
    room.k = room.p + ATTENTION_BLOCK;
    room.v = room.k + (int64_t)ATTENTION_BLOCK * op->head_dim;
    room.acc = room.v + (int64_t)ATTENTION_BLOCK * op_v_dim(op);
    return room;
}

/* Element i of a block; Q8_0: of which the scale is number s behind the bytes. */
static float element(const uint8_t *block, oato_dtype dtype, int64_t d, int64_t i, int64_t s)
{
    const uint16_t *half = (const uint16_t *)(const void *)block;
    if (dtype == DT_F32)
        return const_floats(block)[i];
    if (dtype == DT_F16)
        return f16_to_f32(half[i]);
    return (float)(int8_t)block[i] * f16_to_f32(half[KV_PAGE_POSITIONS * d / 2 + s]);
}

/* Positions [0, count) of K (which 0) or V (1) of a page, row after row. */
static void load_block(const struct attention_job *j, int which, int32_t page, int64_t count,
                       float *out)
{
    const int64_t n = which ? op_v_dim(j->op) : j->op->head_dim;
    if (j->op->v_in_k)
        which = 0;
    const int64_t d = which ? n : j->op->head_dim;
    const uint8_t *block = kv_block(j->kv, j->kv_layer, page, which, j->kv_head);
    for (int64_t i = 0; i < count; i++)
        for (int64_t e = 0; e < n; e++)
            *out++ = element(block, j->kv->dtype, d, which ? i * d + e : e * KV_PAGE_POSITIONS + i,
                             e / 32 * KV_PAGE_POSITIONS + i);
}

/* One query and positions [first, count) of a block, which begins `ago` positions before the
 * query's: the online softmax. slope: of ALiBi. */
static void attend(const struct oato_op *op, float slope, int64_t ago, const float *q,
                   const float *k, const float *v, int64_t first, int64_t count, float *p,
                   struct softmax *s, float *acc)
{
    const int32_t d = op->head_dim, values = op_v_dim(op);
    float top = s->m;
    for (int64_t i = first; i < count; i++) {
        p[i] = dot(q, k + i * d, d) * op->scale;
        if (op->soft_cap != 0)
            p[i] = op->soft_cap * tanhf(p[i] / op->soft_cap);
        if (op->alibi != 0)
            p[i] -= slope * (float)(ago - i);
        top = p[i] > top ? p[i] : top;
    }
    float shrink = expf(s->m - top);
    s->m = top;
    s->l *= shrink;
    for (int32_t e = 0; e < values; e++)
        acc[e] *= shrink;
    v += first * values;
    for (int64_t i = first; i < count; i++, v += values) {
        float weight = expf(p[i] - top);
        s->l += weight;
        for (int32_t e = 0; e < values; e++)
            acc[e] += weight * v[e];
    }
}

static void merge_segment(float *total_m, float *total_l, float *total, float m, float l,
                          const float *acc, int32_t d)
{
    float top = m > *total_m ? m : *total_m;
    float old = expf(*total_m - top), new = expf(m - top);
    *total_m = top;
    *total_l = *total_l * old + l * new;
    for (int32_t e = 0; e < d; e++)
        total[e] = total[e] * old + acc[e] * new;
}

/* A sink's exponential, relative to the largest score. Infinite where the sink is far larger: then
 * the result is 0, as it should be. */
static float sink_weight(const float *sinks, int64_t head, float m)
{
    return sinks ? expf(sinks[head] - m) : 0;
}

/* Query i of the job, token by token and head by head; its position, and its number in the step. */
static int64_t query_at(const struct attention_job *j, int64_t i, int64_t *position)
{
    const int64_t group = j->op->heads / j->op->kv_heads, token = j->token_begin + i / group;
    *position = j->token_position[token];
    return token * j->op->heads + j->kv_head * group + i % group;
}

static float query_slope(const struct attention_job *j, int64_t i)
{
    const int64_t group = j->op->heads / j->op->kv_heads;
    return j->op->alibi != 0 ? op_slope(j->op, (int32_t)(j->kv_head * group + i % group)) : 0;
}

static void attend_segment(const struct attention_job *j, int64_t queries, int64_t segment,
                           const struct attention_room *room)
{
    const int64_t d = op_v_dim(j->op);
    int64_t last = 0, position = 0; /* of the last token: the largest */
    query_at(j, 0, &position);
    const int64_t seen = attention_first(j->op, position) / ATTENTION_BLOCK * ATTENTION_BLOCK;
    query_at(j, queries - 1, &last);
    for (int64_t i = 0; i < queries; i++) {
        room->softmax[i].m = -INFINITY;
        room->softmax[i].l = 0;
    }
    memset(room->acc, 0, (size_t)(queries * d) * sizeof *room->acc);
    const int64_t end = min_i64(last + 1, (segment + 1) * ATTENTION_SEGMENT);
    for (int64_t begin = max_i64(segment * ATTENTION_SEGMENT, seen); begin < end;
         begin += ATTENTION_BLOCK) {
        const int32_t page = kv_table(j->kv, j->kv_layer, j->seq)[begin / ATTENTION_BLOCK];
        const int64_t n = min_i64(ATTENTION_BLOCK, end - begin);
        load_block(j, 0, page, n, room->k);
        load_block(j, 1, page, n, room->v);
        for (int64_t i = 0; i < queries; i++) {
            int64_t at = query_at(j, i, &position);
            int64_t first = max_i64(0, attention_first(j->op, position) - begin);
            int64_t count = min_i64(ATTENTION_BLOCK, position + 1 - begin);
            if (count > first)
                attend(j->op, query_slope(j, i), position - begin, j->q + at * j->op->head_dim,
                       room->k, room->v, first, count, room->p, &room->softmax[i],
                       room->acc + i * d);
        }
    }
}

/* Segments are summed up one by one: splitting them among threads changes no bit. */
static void attention(const struct attention_job *j, uint8_t *scratch)
{
    const struct oato_op *op = j->op;
    const int32_t d = op_v_dim(op);
    const struct attention_room room = attention_room(op, scratch);
    const int64_t group = op->heads / op->kv_heads;
    const int64_t queries = (j->token_end - j->token_begin) * group;
    int64_t position;
    for (int64_t s = j->segment_begin; j->partial && s < j->segment_end; s++) {
        attend_segment(j, queries, s, &room);
        float *part = j->partial + (s - j->segment_begin) * queries * attention_partial_floats(d);
        for (int64_t i = 0; i < queries; i++, part += attention_partial_floats(d)) {
            part[0] = room.softmax[i].m;
            part[1] = room.softmax[i].l;
            memcpy(part + 2, room.acc + i * d, (size_t)d * sizeof *part);
        }
    }
    if (j->partial)
        return;
    int64_t last = 0;
    query_at(j, queries - 1, &last);
    for (int64_t i = 0; i < queries; i++) {
        int64_t at = query_at(j, i, &position);
        memset(j->out + at * d, 0, (size_t)d * sizeof(float));
        room.softmax[i].total_m = -INFINITY;
        room.softmax[i].total_l = 0;
    }
    for (int64_t s = 0; s * ATTENTION_SEGMENT <= last; s++) {
        attend_segment(j, queries, s, &room);
        for (int64_t i = 0; i < queries; i++) {
            struct softmax *x = &room.softmax[i];
            int64_t at = query_at(j, i, &position);
            if (s * ATTENTION_SEGMENT <= position && x->m != -INFINITY)
                merge_segment(&x->total_m, &x->total_l, j->out + at * d, x->m, x->l,
                              room.acc + i * d, d);
        }
    }
    for (int64_t i = 0; i < queries; i++) {
        const struct softmax *x = &room.softmax[i];
        const float sum = x->total_l + sink_weight(j->sinks, i % group, x->total_m);
        float *out = j->out + query_at(j, i, &position) * d;
        for (int32_t e = 0; e < d; e++)
            out[e] /= sum;
    }
}

static void ref_attention_merge(const float *partial, int64_t stride, int64_t n, int32_t heads,
                                int32_t v_dim, const float *sinks, float *out)
{
    for (int32_t h = 0; h < heads; h++, partial += attention_partial_floats(v_dim)) {
        float m = -INFINITY, l = 0, *o = out + (int64_t)h * v_dim;
        memset(o, 0, (size_t)v_dim * sizeof *o);
        for (int64_t s = 0; s < n; s++) {
            const float *part = partial + s * stride;
            if (part[0] != -INFINITY) /* a segment before the window */
                merge_segment(&m, &l, o, part[0], part[1], part + 2, v_dim);
        }
        l += sink_weight(sinks, h, m);
        for (int32_t e = 0; e < v_dim; e++)
            o[e] /= l;
    }
}

static void ref_rows_panel(int lanes, const struct oato_weight *w, const struct rows_list *rows,
                           struct oato_weight *panel)
{
    weight_rows_panel(ref_prepare, lanes, w, rows->list, rows->n, panel);
}

static const struct matrix_layout layout = {
    .id = "ref.1",
    .bytes = ref_matrix_bytes,
    .prepare = ref_prepare,
    .rows_stride = weight_rows_stride,
    .rows_prepare = weight_rows_copy,
    .rows_panel = ref_rows_panel,
};

static const struct matrix_class matrix = {
    .numerics = "f32",
    .scratch_bytes_of = ref_scratch_bytes,
    .rows = ref_matrix_rows,
};

static const struct matrix_class *matrix_of(oato_dtype dtype, enum numerics_choice choice)
{
    (void)dtype;
    (void)choice;
    return &matrix;
}

const struct attention_kernels ref_attention = {
    .scratch_bytes = ref_attention_scratch,
    .run = attention,
    .merge = ref_attention_merge,
};

int64_t ref_above(float *list, const float *x, const float *bias, int64_t n, float threshold)
{
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        const bool above = (bias ? x[i] + bias[i] : x[i]) > threshold;
        if (above)
            list[found++] = (float)i;
    }
    return found;
}

static const struct row_kernels rows = {
    .rms_norm = ref_rms_norm,
    .layer_norm = ref_layer_norm,
    .add = ref_add,
    .gate = ref_gate,
    .to_f16 = ref_to_f16,
    .above = ref_above,
    .add_scaled = ref_add_scaled,
};

const struct cpu_kernels cpu_kernels_ref = {
    .name = "ref",
    .layout = &layout,
    .matrix = matrix_of,
    .attention = &ref_attention,
    .rows = &rows,
    .state = &ref_state,
    .columns = &ref_columns,
};
