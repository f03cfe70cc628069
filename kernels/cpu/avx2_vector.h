/*
 * avx2_vector.h - matrix times one vector, for avx2.c and avxvnni.c. Memory is the limit: one
 * stream of weights a thread, prefetched, read once; everything else sits in registers and L1.
 *
 * In registers: the 8 rows' float32 results, their int32 sums of 32 k, one vector of weights. The
 * input is broadcast pair by pair from L1. Integers are exact; each 32 k (16 of Q6_K) end in one
 * fused multiply-add per row, in order of k: the same chain as in avx2_matrix.h, so that a row has
 * the same bits for every T.
 */
#ifndef OATO_AVX2_VECTOR_H
#define OATO_AVX2_VECTOR_H

#include "kernels/cpu/avx2_internal.h"

/* Ahead of the loads; about what memory delivers during its own latency. */
enum { PREFETCH_BYTES = 2048 };

AVX2_INLINE void prefetch(const uint8_t *p, int bytes)
{
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)p + PREFETCH_BYTES + i, _MM_HINT_T0);
}

/* start + the products of pairs [first, last) of 32 elements, in integers: exact in any order. */
AVX2_INLINE __m256i pairs_dot(const struct lanes_format *f, const uint8_t *body, const int16_t *q,
                              int first, int last, __m256i start)
{
    __m256i sum[2] = {start, _mm256_setzero_si256()}, x = sum[1], high = sum[1];
#pragma GCC unroll 16
    for (int p = first; p < last; p++) {
        __m256i words = avx2_pair_words(f, body, p, &x, &high);
        sum[p % 2] = avx2_dot(sum[p % 2], words, avx2_pair_at(q + 2 * p));
    }
    return _mm256_add_epi32(sum[0], sum[1]);
}

/* -offset * the sum of 16 elements of the input, from -8 * that sum. */
AVX2_INLINE __m256i offset_start(const struct lanes_format *f, int32_t minus8_sum)
{
    return f->offset ? _mm256_set1_epi32(minus8_sum / 4 * (f->offset / 2)) : _mm256_setzero_si256();
}

AVX2_INLINE __m256 apply(__m256 acc, __m256 weight_scale, float input_scale, __m256i sum)
{
    __m256 s = _mm256_mul_ps(weight_scale, _mm256_set1_ps(input_scale));
    return _mm256_fmadd_ps(s, _mm256_cvtepi32_ps(sum), acc);
}

/* Types with a scale, and for some a minimum, for each 32. */
AVX2_INLINE __m256 group_32(const struct lanes_format *f, const uint8_t *w, int64_t k,
                            struct lanes_packed a)
{
    __m256 acc = _mm256_setzero_ps();
    const int head = 8 * f->head, body = 8 * f->body;
    for (int64_t b = 0; b < k / 32; b++, w += head + body) {
        prefetch(w, head + body);
        __m256i start = offset_start(f, a.minus8_sum[2 * b] + a.minus8_sum[2 * b + 1]);
        __m256i sum = pairs_dot(f, w + head, a.q + 32 * b, 0, 16, start);
        acc = apply(acc, avx2_block_scale(f, w), a.scale[b], sum);
        if (f->has_min)
            acc = _mm256_fmadd_ps(avx2_load_f16((const uint16_t *)w + 8),
                                  _mm256_set1_ps(a.scaled_sum[b]), acc);
    }
    return acc;
}

/* Blocks of 256 whose sub-blocks of 32 or 16 have scales, and for some minima, of their own. */
AVX2_INLINE __m256 group_256(const struct lanes_format *f, const uint8_t *w, int64_t k,
                             struct lanes_packed a)
{
    __m256 acc = _mm256_setzero_ps();
    const int head = 8 * f->head, body = 8 * f->body, pairs = f->sub / 2;
    for (int64_t b = 0; b < k / 32; w += head + 8 * body) {
        const __m256 d = avx2_block_scale(f, w);
        const __m256 dmin = f->has_min ? avx2_block_min(f, w) : d;
        prefetch(w, head);
        for (int s = 0; s < 8; s++, b++) {
            const uint8_t *q = w + head + s * body;
            prefetch(q, body);
            for (int half = 0; half < 32 / f->sub; half++) {
                const int i = s * (32 / f->sub) + half;
                const int32_t minus8_sum = a.minus8_sum[2 * b + half];
                const __m256 scale = _mm256_mul_ps(d, avx2_sub_scale(f, w, i));
                const __m256i start = offset_start(f, minus8_sum);
                __m256i sum =
                    pairs_dot(f, q, a.q + 32 * b, pairs * half, pairs * (half + 1), start);
                acc = apply(acc, scale, a.scale[b], sum);
                if (f->has_min) {
                    const __m256 min = _mm256_mul_ps(dmin, avx2_sub_min(f, w, i));
                    const float input =
                        f->sub == 32 ? a.scaled_sum[b] : a.scale[b] * (float)minus8_sum;
                    acc = _mm256_fmadd_ps(min, _mm256_set1_ps(input), acc);
                }
            }
        }
    }
    return acc;
}

static __m256 group_quantised(oato_dtype dtype, const uint8_t *w, int64_t k, struct lanes_packed a)
{
    switch (dtype) {
    case DT_Q4_0: return group_32(&lanes_formats[FORMAT_Q4_0], w, k, a);
    case DT_Q4_1: return group_32(&lanes_formats[FORMAT_Q4_1], w, k, a);
    case DT_Q5_0: return group_32(&lanes_formats[FORMAT_Q5_0], w, k, a);
    case DT_Q5_1: return group_32(&lanes_formats[FORMAT_Q5_1], w, k, a);
    case DT_Q8_0: return group_32(&lanes_formats[FORMAT_Q8_0], w, k, a);
    case DT_Q4_K: return group_256(&lanes_formats[FORMAT_Q4_K], w, k, a);
    case DT_Q5_K: return group_256(&lanes_formats[FORMAT_Q5_K], w, k, a);
    case DT_Q6_K: return group_256(&lanes_formats[FORMAT_Q6_K], w, k, a);
    case DT_Q2_K: return group_256(&lanes_formats[FORMAT_Q2_K], w, k, a);
    case DT_Q3_K: return group_256(&lanes_formats[FORMAT_Q3_K], w, k, a);
    case DT_IQ4_NL: return group_32(&lanes_formats[FORMAT_IQ4_NL], w, k, a);
    case DT_IQ4_XS: return group_256(&lanes_formats[FORMAT_IQ4_XS], w, k, a);
    default: return group_32(&lanes_formats[FORMAT_MXFP4], w, k, a);
    }
}

AVX2_INLINE __m256 load_lanes(oato_dtype dtype, const uint8_t *w, int64_t i)
{
    if (dtype == DT_F32)
        return _mm256_loadu_ps(const_floats(w) + 8 * i);
    if (dtype == DT_F16)
        return avx2_load_f16((const uint16_t *)w + 8 * i);
    return avx2_load_bf16((const uint16_t *)w + 8 * i);
}

/* One chain of multiply-adds along k for each row; four groups hide its latency. */
AVX2_INLINE void groups_float(oato_dtype dtype, const uint8_t *w, int64_t stride, int64_t k,
                              const float *x, int groups, __m256 *out)
{
    __m256 acc[4];
    for (int g = 0; g < groups; g++)
        acc[g] = _mm256_setzero_ps();
    for (int64_t i = 0; i < k; i++) {
        __m256 v = _mm256_set1_ps(x[i]);
        for (int g = 0; g < groups; g++)
            acc[g] = _mm256_fmadd_ps(load_lanes(dtype, w + g * stride, i), v, acc[g]);
    }
    for (int g = 0; g < groups; g++)
        out[g] = acc[g];
}

static void float_1(oato_dtype dtype, const uint8_t *w, int64_t stride, int64_t k, const float *x,
                    __m256 *out)
{
    switch (dtype) {
    case DT_F32: groups_float(DT_F32, w, stride, k, x, 1, out); break;
    case DT_F16: groups_float(DT_F16, w, stride, k, x, 1, out); break;
    default: groups_float(DT_BF16, w, stride, k, x, 1, out);
    }
}

static void float_4(oato_dtype dtype, const uint8_t *w, int64_t stride, int64_t k, const float *x,
                    __m256 *out)
{
    switch (dtype) {
    case DT_F32: groups_float(DT_F32, w, stride, k, x, 4, out); break;
    case DT_F16: groups_float(DT_F16, w, stride, k, x, 4, out); break;
    default: groups_float(DT_BF16, w, stride, k, x, 4, out);
    }
}

static void matrix_vector(const struct matrix_job *j, int64_t begin, int64_t end)
{
    const oato_dtype dtype = j->w->dtype;
    const int64_t k = j->w->k,
                  stride = (int64_t)lanes_matrix_bytes(AVX2_LANES, dtype, AVX2_LANES, k);
    const bool is_float = !lanes_format_of(dtype);
    const struct lanes_packed a = lanes_packed_at(j->packed, k);
    for (int64_t r = begin; r < end;) {
        const uint8_t *w = j->w->data + r / AVX2_LANES * stride;
        __m256 y[4];
        int groups = 1;
        if (is_float && end - r >= 4 * AVX2_LANES) {
            groups = 4;
            float_4(dtype, w, stride, k, j->x, y);
        } else if (is_float) {
            float_1(dtype, w, stride, k, j->x, y);
        } else {
            y[0] = group_quantised(dtype, w, k, a);
        }
        for (int g = 0; g < groups; g++, r += AVX2_LANES)
            _mm256_maskstore_ps(j->y + r, avx2_mask(end - r), y[g]);
    }
}

#endif
