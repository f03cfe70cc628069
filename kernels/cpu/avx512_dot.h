/*
 * avx512_dot.h - one block along k of one or two groups of 16 rows times some columns of bytes,
 * class u8b32: of avx512_bytes_vector.c, which reads groups as they are prepared, and of
 * avx512_rows.c, which makes them of listed rows.
 */
#ifndef OATO_AVX512_DOT_H
#define OATO_AVX512_DOT_H

#include "kernels/cpu/avx512_internal.h"

enum {
    MOST_GROUPS = 2,
    PASS_COLUMNS = 4,  /* 8 int32 and 8 float32 accumulators */
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

/* A block of each group: head and body. ahead: of all but types of 32 k the bodies so far ahead are
 * prefetched; 0: nothing is. */
AVX2_INLINE void block_dot(const struct lanes_format *f, const uint8_t *const *w,
                           const uint8_t *const *bodies, int64_t ahead, struct pass *p, int groups,
                           int columns)
{
    const uint8_t *body[MOST_GROUPS];
    uint8_t room[MOST_GROUPS][SUBS_BYTES];
    struct block_head head[MOST_GROUPS];
    vec scale[MOST_GROUPS], min[MOST_GROUPS];
    UNROLLED (g, groups) {
        body[g] = bodies[g];
        head[g] = block_head(f, w[g], room[g]);
    }
    for (int s = 0; s < f->block / 32; s++) {
        UNROLLED (g, groups)
            for (int i = 0; ahead && i < LANES * f->body; i += 64)
                _mm_prefetch((const char *)body[g] + ahead + i, _MM_HINT_T0);
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

#endif
