/*
 * avx512_bytes_vector.c - quantised matrix times up to 16 columns of bytes, class u8b32: decode,
 * alone or batched, and the tails of prompts. Memory is the limit for one and two columns, and a
 * thread reads one stream of weights once, prefetched; for more arithmetic is, and two groups of 16
 * rows share what is loaded of an input.
 *
 *   for each one or two groups
 *     for each up to 4 columns         of several passes all but the first find the groups in L2
 *       for each 32 of k
 *         for each 4 of these          unpacked to bytes, in registers
 *           for each column            a vpdpbusd per group with the input's quad, broadcast
 *         for each column              multiply-adds of the scaled integers to the results
 *
 * Offsets of the weights are the start value of the integers, where the input brings the sum that
 * they need. Integers are exact and end in the same multiply-adds, in order of k, as in
 * avx512_bytes.c: a row has the same bits whatever T.
 */
#include "kernels/cpu/avx512_internal.h"

enum {
    PREFETCH_BYTES = 6144, /* about what memory delivers during its own latency, and half again */
    MOST_GROUPS = 2,
    PASS_COLUMNS = 4,  /* 8 int32 and 8 float32 accumulators */
    ALONE_COLUMNS = 2, /* up to so many one group at a time is the faster stream */
    SPLIT_COLUMNS = 2, /* up to so many have two sums: one alone waits for vpdpbusd */
};

/* Where the columns of a pass are, and their results so far. */
struct pass {
    const uint8_t *x[PASS_COLUMNS]; /* struct lanes_bytes of the 32 k at hand */
    __m512 acc[PASS_COLUMNS][MOST_GROUPS];
};

/* The sum of a lane's four bytes, added to x. */
AVX2_INLINE __m512i bytes_sum(const struct lanes_format *f, __m512i x, __m512i bytes)
{
    const __m512i ones = _mm512_set1_epi8(1);
    const bool is_unsigned =
        lanes_sums_fit_bytes(f) && f->sub == 32; /* the offset is still in it */
    return is_unsigned ? _mm512_dpbusd_epi32(x, bytes, ones) : _mm512_dpbusd_epi32(x, ones, bytes);
}

/* n bytes so far ahead of each group's w. */
AVX2_INLINE void prefetch(const uint8_t *const *w, int64_t ahead, int n, int groups)
{
    UNROLLED (g, groups)
        for (int i = 0; i < n; i += 64)
            _mm_prefetch((const char *)w[g] + ahead + i, _MM_HINT_T0);
}

/* The elements of 32 that share scale (and min) number `part`. */
AVX2_INLINE void part_dot(const struct lanes_format *f, const uint8_t *const *body, int part,
                          const __m512 *scale, const __m512 *min, struct pass *p, int groups,
                          int columns, struct grid_words *grid)
{
    const int quads = f->sub / 4, first = part * quads;
    const bool starts = lanes_offset_in_sums(f);
    __m512i sum[PASS_COLUMNS][MOST_GROUPS][2], weights[MOST_GROUPS], bytes[MOST_GROUPS],
        low[MOST_GROUPS], high[MOST_GROUPS];
    UNROLLED (c, columns) {
        const struct lanes_bytes *x = (const struct lanes_bytes *)p->x[c];
        const __m512i zero = _mm512_setzero_si512();
        const __m512i start = starts ? _mm512_set1_epi32(-f->offset * x->total) : zero;
        UNROLLED (g, groups) {
            sum[c][g][0] = start;
            sum[c][g][1] = zero;
        }
    }
    UNROLLED (g, groups)
        weights[g] = starts ? _mm512_set1_epi32(-32 * f->offset) : _mm512_setzero_si512();
    UNROLL
    for (int i = first; i < first + quads; i++) {
        __m512i w[MOST_GROUPS];
        UNROLLED (g, groups) {
            w[g] = avx512_quad_bytes(f, body[g], i, &low[g], &high[g], &grid[g]);
            if (f->offset && !starts)
                w[g] = _mm512_sub_epi8(w[g], _mm512_set1_epi8((char)f->offset));
            if (!lanes_sums_fit_bytes(f))
                weights[g] = bytes_sum(f, weights[g], w[g]);
            else
                bytes[g] = i == first ? w[g] : _mm512_add_epi8(bytes[g], w[g]);
        }
        UNROLLED (c, columns) {
            const __m512i q = avx512_pair_at(p->x[c] + 4 * i);
            UNROLLED (g, groups) {
                __m512i *s = &sum[c][g][columns > SPLIT_COLUMNS ? 0 : i % 2];
                *s = _mm512_dpbusd_epi32(*s, q, w[g]);
            }
        }
    }
    __m512 scaled_sum[MOST_GROUPS];
    UNROLLED (g, groups) {
        if (lanes_sums_fit_bytes(f))
            weights[g] = bytes_sum(f, weights[g], bytes[g]);
        scaled_sum[g] = _mm512_mul_ps(scale[g], _mm512_cvtepi32_ps(weights[g]));
    }
    UNROLLED (c, columns) {
        const uint8_t *x = p->x[c];
        const __m512 step = avx512_float_at(x + offsetof(struct lanes_bytes, step));
        const __m512 from = avx512_float_at(x + offsetof(struct lanes_bytes, min));
        const __m512 total = f->has_min ? avx512_total_at(x, part, f->sub) : from;
        UNROLLED (g, groups) {
            const __m512i n = columns > SPLIT_COLUMNS
                                  ? sum[c][g][0]
                                  : _mm512_add_epi32(sum[c][g][0], sum[c][g][1]);
            __m512 *acc = &p->acc[c][g];
            *acc = _mm512_fmadd_ps(_mm512_mul_ps(step, scale[g]), _mm512_cvtepi32_ps(n), *acc);
            *acc = _mm512_fmadd_ps(from, scaled_sum[g], *acc);
            if (f->has_min)
                *acc = _mm512_fmadd_ps(total, min[g], *acc);
        }
    }
}

/* A block of each group. */
AVX2_INLINE void block_dot(const struct lanes_format *f, const uint8_t *const *w, int64_t ahead,
                           struct pass *p, int groups, int columns)
{
    const uint8_t *body[MOST_GROUPS];
    uint8_t room[MOST_GROUPS][SUBS_BYTES];
    struct block_head head[MOST_GROUPS];
    vec scale[MOST_GROUPS], min[MOST_GROUPS];
    UNROLLED (g, groups) {
        body[g] = w[g] + LANES * f->head;
        head[g] = block_head(f, w[g], room[g]);
    }
    prefetch(w, ahead, LANES * (f->block == 32 ? f->head + f->body : f->head), groups);
    for (int s = 0; s < f->block / 32; s++) {
        if (f->block != 32)
            prefetch(body, ahead, LANES * f->body, groups);
        struct grid_words grid[MOST_GROUPS]; /* of both parts */
        UNROLLED (part, 32 / f->sub) {
            UNROLLED (g, groups) {
                scale[g] = sub_scale(f, &head[g], s * (32 / f->sub) + part);
                min[g] = sub_min(f, &head[g], s * (32 / f->sub) + part);
            }
            part_dot(f, body, part, scale, min, p, groups, columns, grid);
        }
        UNROLLED (g, groups)
            body[g] += LANES * f->body;
        UNROLLED (c, columns)
            p->x[c] += sizeof(struct lanes_bytes);
    }
}

/* `groups` groups from row r on, columns [c0, c0 + columns): both known to the compiler. */
AVX2_INLINE void pass_run(const struct lanes_format *f, const struct matrix_job *j, int64_t r,
                          int64_t end, int64_t c0, int groups, int columns)
{
    const int64_t block = LANES * lanes_block_bytes(f), group = j->w->k / f->block * block;
    const bool twice = groups == 2 && end - r <= LANES; /* there is no second group */
    const uint8_t *w[MOST_GROUPS];
    struct pass p;
    UNROLLED (g, groups)
        w[g] = j->w->data + (r / LANES + (twice ? 0 : g)) * group;
    UNROLLED (c, columns) {
        p.x[c] = j->packed + (uint64_t)(c0 + c) * j->pack_stride;
        UNROLLED (g, groups)
            p.acc[c][g] = _mm512_setzero_ps();
    }
    for (int64_t left = group; left > 0; left -= block) {
        /* A group ends where the next one begins: of several, where the other already is. */
        const int64_t ahead = PREFETCH_BYTES + (left > PREFETCH_BYTES ? 0 : (groups - 1) * group);
        block_dot(f, w, ahead, &p, groups, columns);
        UNROLLED (g, groups)
            w[g] += block;
    }
    UNROLLED (c, columns)
        UNROLLED (g, groups) {
            const int64_t row = r + LANES * g;
            _mm512_mask_storeu_ps(j->y + (c0 + c) * j->y_stride + row,
                                  avx512_mask(max_i64(end - row, 0)), p.acc[c][g]);
        }
}

typedef void pass_fn(const struct matrix_job *j, int64_t r, int64_t end, int64_t c0);

/* The passes of a type, by groups and columns. */
struct type_passes {
    pass_fn *run[MOST_GROUPS + 1][PASS_COLUMNS + 1];
};

/* A function for each: of a larger one the compiler keeps too little in registers. */
#define PASS(type, groups, columns)                                                                \
    __attribute__((noinline)) static void pass_##type##_##groups##columns(                         \
        const struct matrix_job *j, int64_t r, int64_t end, int64_t c0)                            \
    {                                                                                              \
        pass_run(&lanes_##type, j, r, end, c0, groups, columns);                                   \
    }
#define PASSES(type, ...)                                                                          \
    PASS(type, 1, 1)                                                                               \
    PASS(type, 1, 2)                                                                               \
    PASS(type, 2, 2)                                                                               \
    PASS(type, 2, 3)                                                                               \
    PASS(type, 2, 4)                                                                               \
    static const struct type_passes passes_##type = {                                              \
        {{NULL},                                                                                   \
         {NULL, pass_##type##_11, pass_##type##_12},                                               \
         {NULL, NULL, pass_##type##_22, pass_##type##_23, pass_##type##_24}}};
BLOCK_TYPES(PASSES)
#undef PASSES
#undef PASS

static const struct type_passes *passes_of(oato_dtype dtype)
{
#define PASSES(type, ...)                                                                          \
    case DT_##type: return &passes_##type;
    switch ((int)dtype) {
        BLOCK_TYPES(PASSES)
    }
#undef PASSES
    return NULL;
}

void avx512_bytes_stream(const struct matrix_job *j, int64_t begin, int64_t end)
{
    const struct type_passes *passes = passes_of(j->w->dtype);
    const int64_t n = (j->T + PASS_COLUMNS - 1) / PASS_COLUMNS;
    const int groups = j->T > ALONE_COLUMNS ? 2 : 1;
    for (int64_t r = begin; r < end; r += LANES * groups) {
        if (r + LANES * groups >= end)
            avx2_prefetch_next(j, PREFETCH_BYTES);
        for (int64_t i = 0; i < n; i++) {
            const int64_t c0 = j->T * i / n;
            passes->run[groups][j->T * (i + 1) / n - c0](j, r, end, c0);
        }
    }
}
