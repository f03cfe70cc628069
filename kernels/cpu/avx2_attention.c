/*
 * avx2_attention.c - attention of a few tokens and the query heads that share one KV head.
 *
 * A block of 64 positions of K and V is converted to float32 once (16 KiB each at 64 dimensions,
 * in L1/L2) and serves all these queries. Scores: 8 positions at a time in registers, lanes along
 * the head; values: 64 dimensions at a time in registers, one chain along the positions. A query
 * does the same operations in the same order whatever its companions, so its bits depend on
 * nothing but itself. Heads that are no multiple of 8 go the reference way.
 */
#include "kernels/cpu/avx2_internal.h"

#include <math.h>
#include <string.h>

enum { QUERIES = 32 }; /* of a pass over the context */

/* Scratch of a thread: [K][V] blocks, then these for the queries of the pass. */
struct pass {
    float *k, *v;                             /* [64][head_dim] */
    float *p;                                 /* [64] scores, then weights */
    float *acc;                               /* [QUERIES][head_dim] of the segment */
    float m[QUERIES], l[QUERIES];             /* of the segment */
    float total_m[QUERIES], total_l[QUERIES]; /* of the segments before; values are in out */
};

static uint64_t pass_bytes(void)
{
    return size_align(sizeof(struct pass), 64);
}

uint64_t avx2_attention_scratch(const struct oato_op *op)
{
    if (op->head_dim % 8)
        return cpu_kernels_ref.attention_scratch_bytes(op);
    uint64_t rows = 2 * ATTENTION_BLOCK + QUERIES;
    return pass_bytes() + (rows * (uint64_t)op->head_dim + ATTENTION_BLOCK) * sizeof(float);
}

static struct pass *pass_at(uint8_t *scratch, int32_t d)
{
    struct pass *s = (struct pass *)scratch;
    s->k = floats(scratch + pass_bytes());
    s->v = s->k + (int64_t)ATTENTION_BLOCK * d;
    s->acc = s->v + (int64_t)ATTENTION_BLOCK * d;
    s->p = s->acc + (int64_t)QUERIES * d;
    return s;
}

/* `count` rows of K (which 0) or V (1) of a page as float32. */
static const float *load_block(const struct attention_job *j, int which, int32_t page,
                               int64_t count, float *converted)
{
    const struct kv_cache *kv = j->kv;
    const int64_t d = j->op->head_dim;
    const int64_t head =
        ((int64_t)page * 2 + which) * kv->layers[j->kv_layer].kv_heads + j->kv_head;
    const int64_t at = head * KV_PAGE_POSITIONS * d;
    const uint8_t *base = kv->data + kv->layer_offset[j->kv_layer];
    if (kv->dtype == DT_F32)
        return const_floats(base) + at;
    const uint16_t *from = (const uint16_t *)base + at;
    for (int64_t i = 0; i < count * d; i += 8)
        _mm256_storeu_ps(converted + i, avx2_load_f16(from + i));
    return converted;
}

/* Lane i: the sum of the lanes of a[i]. */
AVX2_INLINE __m256 sum_each(const __m256 a[8])
{
    __m256 t0 = _mm256_hadd_ps(_mm256_hadd_ps(a[0], a[1]), _mm256_hadd_ps(a[2], a[3]));
    __m256 t1 = _mm256_hadd_ps(_mm256_hadd_ps(a[4], a[5]), _mm256_hadd_ps(a[6], a[7]));
    return _mm256_add_ps(_mm256_permute2f128_ps(t0, t1, 0x20),
                         _mm256_permute2f128_ps(t0, t1, 0x31));
}

/* p[i] = scale * q . k[i], -inf from count to the next multiple of 8; returns the largest. Rows
 * beyond count are read but not used. */
static float scores(const float *q, const float *k, int64_t d, int64_t count, float scale, float *p)
{
    const __m256 nothing = _mm256_set1_ps(-INFINITY);
    __m256 top = nothing;
    for (int64_t i = 0; i < count; i += 8, k += 8 * d) {
        __m256 a[8];
        for (int r = 0; r < 8; r++)
            a[r] = _mm256_setzero_ps();
        for (int64_t e = 0; e < d; e += 8) {
            __m256 x = _mm256_loadu_ps(q + e);
            for (int r = 0; r < 8; r++)
                a[r] = _mm256_fmadd_ps(x, _mm256_loadu_ps(k + r * d + e), a[r]);
        }
        __m256 s = _mm256_mul_ps(sum_each(a), _mm256_set1_ps(scale));
        s = _mm256_blendv_ps(nothing, s, _mm256_castsi256_ps(avx2_mask(count - i)));
        _mm256_storeu_ps(p + i, s);
        top = _mm256_max_ps(top, s);
    }
    return avx2_max(top);
}

/* acc = acc * shrink + sum of p[i] v[i], `vectors` times 8 dimensions. */
AVX2_INLINE void add_values(float *acc, const float *v, int64_t d, const float *p, int64_t count,
                            float shrink, int vectors)
{
    __m256 a[8];
    for (int i = 0; i < vectors; i++)
        a[i] = _mm256_mul_ps(_mm256_loadu_ps(acc + 8 * i), _mm256_set1_ps(shrink));
    for (int64_t r = 0; r < count; r++, v += d) {
        __m256 w = _mm256_set1_ps(p[r]);
        for (int i = 0; i < vectors; i++)
            a[i] = _mm256_fmadd_ps(w, _mm256_loadu_ps(v + 8 * i), a[i]);
    }
    for (int i = 0; i < vectors; i++)
        _mm256_storeu_ps(acc + 8 * i, a[i]);
}

static float exp_one(float x)
{
    return _mm256_cvtss_f32(avx2_exp(_mm256_set1_ps(x)));
}

/* One query and `count` positions of a block. */
static void attend(const struct attention_job *j, const float *q, const float *k, const float *v,
                   int64_t count, float *p, float *m, float *l, float *acc)
{
    const int64_t d = j->op->head_dim;
    float top = scores(q, k, d, count, j->op->scale, p);
    top = top > *m ? top : *m;
    __m256 sum = _mm256_setzero_ps();
    for (int64_t i = 0; i < count; i += 8) {
        __m256 e = avx2_exp(_mm256_sub_ps(_mm256_loadu_ps(p + i), _mm256_set1_ps(top)));
        _mm256_storeu_ps(p + i, e);
        sum = _mm256_add_ps(sum, e);
    }
    float shrink = exp_one(*m - top);
    *m = top;
    *l = *l * shrink + avx2_sum(sum);
    int64_t e = 0;
    for (; e + 64 <= d; e += 64)
        add_values(acc + e, v + e, d, p, count, shrink, 8);
    for (; e + 32 <= d; e += 32)
        add_values(acc + e, v + e, d, p, count, shrink, 4);
    for (; e < d; e += 8)
        add_values(acc + e, v + e, d, p, count, shrink, 1);
}

static void merge_segment(float *total_m, float *total_l, float *total, float m, float l,
                          const float *acc, int64_t d)
{
    float top = m > *total_m ? m : *total_m;
    float old = exp_one(*total_m - top), new = exp_one(m - top);
    *total_m = top;
    *total_l = *total_l * old + l * new;
    for (int64_t e = 0; e < d; e += 8) {
        __m256 t = _mm256_mul_ps(_mm256_loadu_ps(total + e), _mm256_set1_ps(old));
        t = _mm256_fmadd_ps(_mm256_loadu_ps(acc + e), _mm256_set1_ps(new), t);
        _mm256_storeu_ps(total + e, t);
    }
}

static void divide(float *out, float l, int64_t d)
{
    for (int64_t e = 0; e < d; e += 8)
        _mm256_storeu_ps(out + e, _mm256_div_ps(_mm256_loadu_ps(out + e), _mm256_set1_ps(l)));
}

/* Queries are numbered token by token, head by head of the group. */
static int64_t query_at(const struct attention_job *j, int64_t query, int64_t *position)
{
    const int64_t group = j->op->heads / j->op->kv_heads;
    const int64_t token = j->token_begin + query / group;
    *position = j->token_position[token];
    return token * j->op->n + (j->kv_head * group + query % group) * j->op->head_dim;
}

/* One segment for queries [first, first + n). */
static void segment_pass(const struct attention_job *j, int64_t first, int n, int64_t segment,
                         struct pass *s)
{
    const int64_t d = j->op->head_dim;
    int64_t last_position = 0, position;
    for (int i = 0; i < n; i++) {
        query_at(j, first + i, &position);
        last_position = max_i64(last_position, position);
        s->m[i] = -INFINITY;
        s->l[i] = 0;
    }
    memset(s->acc, 0, (size_t)(n * d) * sizeof *s->acc);
    for (int64_t begin = segment * ATTENTION_SEGMENT;
         begin < (segment + 1) * ATTENTION_SEGMENT && begin <= last_position;
         begin += ATTENTION_BLOCK) {
        const int32_t page = j->seq->pages[begin / ATTENTION_BLOCK];
        const int64_t seen = min_i64(ATTENTION_BLOCK, last_position + 1 - begin);
        const float *k = load_block(j, 0, page, seen, s->k);
        const float *v = load_block(j, 1, page, seen, s->v);
        for (int i = 0; i < n; i++) {
            int64_t at = query_at(j, first + i, &position);
            int64_t count = min_i64(ATTENTION_BLOCK, position + 1 - begin);
            if (count > 0)
                attend(j, j->q + at, k, v, count, s->p, &s->m[i], &s->l[i], s->acc + i * d);
        }
    }
}

static void attention_partial(const struct attention_job *j, struct pass *s)
{
    const int64_t d = j->op->head_dim, group = j->op->heads / j->op->kv_heads;
    for (int64_t segment = j->segment_begin; segment < j->segment_end; segment++) {
        for (int64_t first = 0; first < group; first += QUERIES) {
            const int n = (int)min_i64(QUERIES, group - first);
            segment_pass(j, first, n, segment, s);
            for (int i = 0; i < n; i++) {
                float *part =
                    j->partial + ((segment - j->segment_begin) * group + first + i) * (d + 2);
                part[0] = s->m[i];
                part[1] = s->l[i];
                memcpy(part + 2, s->acc + i * d, (size_t)d * sizeof *part);
            }
        }
    }
}

void avx2_attention(const struct attention_job *j, uint8_t *scratch)
{
    const int64_t d = j->op->head_dim, group = j->op->heads / j->op->kv_heads;
    if (d % 8) {
        cpu_kernels_ref.attention(j, scratch);
        return;
    }
    struct pass *s = pass_at(scratch, (int32_t)d);
    if (j->partial) {
        attention_partial(j, s);
        return;
    }
    const int64_t queries = (j->token_end - j->token_begin) * group;
    for (int64_t first = 0; first < queries; first += QUERIES) {
        const int n = (int)min_i64(QUERIES, queries - first);
        int64_t last_position = 0, position;
        for (int i = 0; i < n; i++) {
            memset(j->out + query_at(j, first + i, &position), 0, (size_t)d * sizeof(float));
            s->total_m[i] = -INFINITY;
            s->total_l[i] = 0;
            last_position = max_i64(last_position, position);
        }
        for (int64_t segment = 0; segment * ATTENTION_SEGMENT <= last_position; segment++) {
            segment_pass(j, first, n, segment, s);
            for (int i = 0; i < n; i++) {
                float *out = j->out + query_at(j, first + i, &position);
                if (segment * ATTENTION_SEGMENT <= position)
                    merge_segment(&s->total_m[i], &s->total_l[i], out, s->m[i], s->l[i],
                                  s->acc + i * d, d);
            }
        }
        for (int i = 0; i < n; i++)
            divide(j->out + query_at(j, first + i, &position), s->total_l[i], d);
    }
}

void avx2_attention_merge(const float *partial, int64_t n, int32_t heads, int32_t head_dim,
                          float *out)
{
    if (head_dim % 8) {
        cpu_kernels_ref.attention_merge(partial, n, heads, head_dim, out);
        return;
    }
    for (int32_t h = 0; h < heads; h++) {
        float m = -INFINITY, l = 0, *o = out + (int64_t)h * head_dim;
        memset(o, 0, (size_t)head_dim * sizeof *o);
        for (int64_t s = 0; s < n; s++) {
            const float *part = partial + (s * heads + h) * (int64_t)(head_dim + 2);
            merge_segment(&m, &l, o, part[0], part[1], part + 2, head_dim);
        }
        divide(o, l, head_dim);
    }
}
