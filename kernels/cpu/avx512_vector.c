/*
 * avx512_vector.c - quantised matrix times up to 16 columns: decode, alone or batched. Memory is
 * the limit: a thread reads one stream of weights once, prefetched; it unpacks 32 k of 16 rows in
 * registers and uses them for up to 8 columns.
 *
 *   for each group of 16 rows
 *     for each 32 of k (or 16)
 *       for each pair of k             a vector of weights, in a register
 *         for each column              vpdpwssd with the input's pair broadcast from L1
 *       for each column                one multiply-add of the scaled integer to the result
 *
 * Offsets of the weights are the start value of the integers, from sums that the input brings.
 * Integers are exact and end in the same chain of multiply-adds in order of k as in
 * avx512_matrix.c and in the avx2 kernels: a row has the same bits everywhere.
 */
#include "kernels/cpu/avx512_internal.h"

/* Ahead of the loads; about what memory delivers during its own latency. */
enum { PREFETCH_BYTES = 4096 };

/* Of a pass: 8 int32 and 8 float32 accumulators, and what the unpacking needs. */
enum { PASS_COLUMNS = 8 };

AVX2_INLINE void prefetch(const uint8_t *p, int bytes)
{
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)p + PREFETCH_BYTES + i, _MM_HINT_T0);
}

/* The integers of a column. Up to 4 columns have two sums each, of even and of odd pairs: alone
 * they are too few to hide the latency of vpdpwssd. */
struct sums {
    __m512i part[2];
};
enum { SPLIT_COLUMNS = 4 };

AVX2_INLINE struct sums sums_begin(__m512i start)
{
    return (struct sums){{start, _mm512_setzero_si512()}};
}

AVX2_INLINE __m512i sums_end(const struct sums *s, int columns)
{
    return columns > SPLIT_COLUMNS ? s->part[0] : _mm512_add_epi32(s->part[0], s->part[1]);
}

/* sum[c] += the products of pairs [first, last) of the 32 elements from `at` on. */
AVX2_INLINE void pairs_dot(const struct lanes_format *f, const uint8_t *body,
                           const struct lanes_packed *a, int64_t at, int first, int last,
                           struct sums *sum, int columns)
{
    __m512i x = _mm512_setzero_si512(), high = x;
#pragma GCC unroll 16
    for (int p = first; p < last; p++) {
        __m512i words = avx512_pair_words(f, body, p, &x, &high);
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++) {
            __m512i *s = &sum[c].part[columns > SPLIT_COLUMNS ? 0 : p % 2];
            *s = _mm512_dpwssd_epi32(*s, words, avx512_pair_at(a[c].q + at + 2 * p));
        }
    }
}

/* -offset * the sum of 16 elements of the input, from -8 * that sum. */
AVX2_INLINE __m512i offset_start(const struct lanes_format *f, const int32_t *minus8_sum)
{
    if (!f->offset)
        return _mm512_setzero_si512();
    const __m512i start = _mm512_set1_epi32(*minus8_sum);
    if (f->offset < 8)
        return _mm512_srai_epi32(start, 1);
    return _mm512_slli_epi32(start, f->offset == 32 ? 2 : f->offset == 16 ? 1 : 0);
}

/* What the input brings for a minimum: scale * sum of 32, or scale * (-8 * sum) of 16 number i. */
AVX2_INLINE __m512 min_input(const struct lanes_format *f, const struct lanes_packed *a, int64_t i)
{
    if (f->sub == 32)
        return _mm512_set1_ps(a->scaled_sum[i / 2]);
    return _mm512_set1_ps(a->scale[i / 2] * (float)a->minus8_sum[i]);
}

AVX2_INLINE __m512 apply(__m512 acc, __m512 weight_scale, float input_scale, __m512i sum)
{
    __m512 s = _mm512_mul_ps(weight_scale, _mm512_set1_ps(input_scale));
    return _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(sum), acc);
}

/* Types with a scale, and for some a minimum, for each 32. */
AVX2_INLINE void group_32(const struct lanes_format *f, const uint8_t *w, int64_t k,
                          const struct lanes_packed *a, __m512 *acc, int columns)
{
    const int head = AVX512_LANES * f->head, body = AVX512_LANES * f->body;
    for (int64_t b = 0; b < k / 32; b++, w += head + body) {
        struct sums sum[PASS_COLUMNS];
        prefetch(w, head + body);
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++)
            sum[c] = sums_begin(_mm512_add_epi32(offset_start(f, &a[c].minus8_sum[2 * b]),
                                                 offset_start(f, &a[c].minus8_sum[2 * b + 1])));
        pairs_dot(f, w + head, a, 32 * b, 0, 16, sum, columns);
        const __m512 scale = avx512_block_scale(f, w);
#pragma GCC unroll 8
        for (int c = 0; c < columns; c++) {
            acc[c] = apply(acc[c], scale, a[c].scale[b], sums_end(&sum[c], columns));
            if (f->has_min)
                acc[c] = _mm512_fmadd_ps(avx512_load_f16(w + 32),
                                         _mm512_set1_ps(a[c].scaled_sum[b]), acc[c]);
        }
    }
}

/* Blocks of 256 whose sub-blocks of 32 or 16 have scales, and for some minima, of their own. */
AVX2_INLINE void group_256(const struct lanes_format *f, const uint8_t *w, int64_t k,
                           const struct lanes_packed *a, __m512 *acc, int columns)
{
    const int head = AVX512_LANES * f->head, body = AVX512_LANES * f->body, pairs = f->sub / 2;
    for (int64_t b = 0; b < k / 32; w += head + 8 * body) {
        const __m512 d = avx512_block_scale(f, w);
        const __m512 dmin = f->has_min ? avx512_block_min(f, w) : d;
        prefetch(w, head);
        for (int s = 0; s < 8; s++, b++) {
            const uint8_t *q = w + head + s * body;
            prefetch(q, body);
#pragma GCC unroll 2
            for (int half = 0; half < 32 / f->sub; half++) {
                const int i = s * (32 / f->sub) + half;
                struct sums sum[PASS_COLUMNS];
#pragma GCC unroll 8
                for (int c = 0; c < columns; c++)
                    sum[c] = sums_begin(offset_start(f, &a[c].minus8_sum[2 * b + half]));
                pairs_dot(f, q, a, 32 * b, pairs * half, pairs * (half + 1), sum, columns);
                const __m512 scale = _mm512_mul_ps(d, avx512_sub_scale(f, w, i));
                const __m512 min = f->has_min ? _mm512_mul_ps(dmin, avx512_sub_min(f, w, i)) : d;
#pragma GCC unroll 8
                for (int c = 0; c < columns; c++) {
                    acc[c] = apply(acc[c], scale, a[c].scale[b], sums_end(&sum[c], columns));
                    if (f->has_min)
                        acc[c] = _mm512_fmadd_ps(min, min_input(f, &a[c], 2 * b + half), acc[c]);
                }
            }
        }
    }
}

/* One group from row r on, columns [c0, c0 + columns): `columns` is known to the compiler. */
AVX2_INLINE void group(const struct lanes_format *f, const struct matrix_job *j, int64_t r,
                       int64_t end, int64_t c0, int columns)
{
    const int64_t k = j->w->k;
    const uint8_t *w = j->w->data + r * (k / f->block * lanes_block_bytes(f));
    struct lanes_packed a[PASS_COLUMNS];
    __m512 acc[PASS_COLUMNS];
    for (int c = 0; c < columns; c++) {
        a[c] = lanes_packed_at(j->packed + (uint64_t)(c0 + c) * j->pack_stride, k);
        acc[c] = _mm512_setzero_ps();
    }
    if (f->block == 32)
        group_32(f, w, k, a, acc, columns);
    else
        group_256(f, w, k, a, acc, columns);
    for (int c = 0; c < columns; c++)
        _mm512_mask_storeu_ps(j->y + (c0 + c) * j->y_stride + r, avx512_mask(end - r), acc[c]);
}

/* More columns than fit in registers pass one after the other while the group is in L1. */
AVX2_INLINE void groups(const struct lanes_format *f, const struct matrix_job *j, int64_t begin,
                        int64_t end)
{
    const int64_t passes = (j->T + PASS_COLUMNS - 1) / PASS_COLUMNS;
    for (int64_t r = begin; r < end; r += AVX512_LANES) {
        for (int64_t i = 0; i < passes; i++) {
            const int64_t c0 = j->T * i / passes;
            switch (j->T * (i + 1) / passes - c0) {
            case 1: group(f, j, r, end, c0, 1); break;
            case 2: group(f, j, r, end, c0, 2); break;
            case 3: group(f, j, r, end, c0, 3); break;
            case 4: group(f, j, r, end, c0, 4); break;
            case 5: group(f, j, r, end, c0, 5); break;
            case 6: group(f, j, r, end, c0, 6); break;
            case 7: group(f, j, r, end, c0, 7); break;
            default: group(f, j, r, end, c0, 8);
            }
        }
    }
}

void avx512_matrix_stream(const struct matrix_job *j, int64_t begin, int64_t end)
{
    switch (j->w->dtype) {
    case DT_Q4_0: groups(&lanes_formats[FORMAT_Q4_0], j, begin, end); break;
    case DT_Q4_1: groups(&lanes_formats[FORMAT_Q4_1], j, begin, end); break;
    case DT_Q5_0: groups(&lanes_formats[FORMAT_Q5_0], j, begin, end); break;
    case DT_Q5_1: groups(&lanes_formats[FORMAT_Q5_1], j, begin, end); break;
    case DT_Q8_0: groups(&lanes_formats[FORMAT_Q8_0], j, begin, end); break;
    case DT_Q4_K: groups(&lanes_formats[FORMAT_Q4_K], j, begin, end); break;
    case DT_Q5_K: groups(&lanes_formats[FORMAT_Q5_K], j, begin, end); break;
    case DT_Q6_K: groups(&lanes_formats[FORMAT_Q6_K], j, begin, end); break;
    case DT_Q2_K: groups(&lanes_formats[FORMAT_Q2_K], j, begin, end); break;
    case DT_Q3_K: groups(&lanes_formats[FORMAT_Q3_K], j, begin, end); break;
    case DT_IQ4_NL: groups(&lanes_formats[FORMAT_IQ4_NL], j, begin, end); break;
    case DT_IQ4_XS: groups(&lanes_formats[FORMAT_IQ4_XS], j, begin, end); break;
    default: groups(&lanes_formats[FORMAT_MXFP4], j, begin, end);
    }
}
