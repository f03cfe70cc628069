/*
 * avx2_vector.c - matrix times one vector. Memory is the limit: one stream of weights a thread,
 * prefetched, read once; everything else sits in registers and L1.
 *
 * In registers: the 8 rows' float32 results, their int32 sums of 32 k, one vector of weights. The
 * input is broadcast pair by pair from L1. Integers are exact; each 32 k (16 of Q6_K) end in one
 * fused multiply-add per row, in order of k: the same chain as in avx2_matrix.c, so that a row has
 * the same bits for every T.
 */
#include "kernels/cpu/avx2_internal.h"

#include <string.h>

/* Ahead of the loads; about what memory delivers during its own latency. */
enum { PREFETCH_BYTES = 2048 };

AVX2_INLINE void prefetch(const uint8_t *p, int bytes)
{
    for (int i = 0; i < bytes; i += 64)
        _mm_prefetch((const char *)p + PREFETCH_BYTES + i, _MM_HINT_T0);
}

AVX2_INLINE __m256i pair_at(const int16_t *q)
{
    int32_t pair;
    memcpy(&pair, q, sizeof pair);
    return _mm256_set1_epi32(pair);
}

AVX2_INLINE __m256i nibbles_dot(const uint8_t *w, const int16_t *q, __m256i sum)
{
    const __m256i low = _mm256_set1_epi16(15);
    __m256i odd = _mm256_setzero_si256();
    for (int j = 0; j < 4; j++, w += 32, q += 8) {
        __m256i x = _mm256_loadu_si256((const __m256i *)w);
        __m256i x1 = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
        __m256i x2 = _mm256_and_si256(_mm256_srli_epi16(x, 8), low);
        __m256i x3 = _mm256_srli_epi16(x, 12);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_and_si256(x, low), pair_at(q)));
        odd = _mm256_add_epi32(odd, _mm256_madd_epi16(x1, pair_at(q + 2)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x2, pair_at(q + 4)));
        odd = _mm256_add_epi32(odd, _mm256_madd_epi16(x3, pair_at(q + 6)));
    }
    return _mm256_add_epi32(sum, odd);
}

AVX2_INLINE __m256i bytes_dot(const uint8_t *w, const int16_t *q, int pairs)
{
    __m256i sum = _mm256_setzero_si256(), odd = sum;
    for (int i = 0; i < pairs; i += 2, w += 32, q += 4) {
        __m256i x0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)w));
        __m256i x1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(w + 16)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x0, pair_at(q)));
        odd = _mm256_add_epi32(odd, _mm256_madd_epi16(x1, pair_at(q + 2)));
    }
    return _mm256_add_epi32(sum, odd);
}

AVX2_INLINE __m256 apply(__m256 acc, __m256 weight_scale, float input_scale, __m256i sum)
{
    __m256 s = _mm256_mul_ps(weight_scale, _mm256_set1_ps(input_scale));
    return _mm256_fmadd_ps(s, _mm256_cvtepi32_ps(sum), acc);
}

AVX2_INLINE __m256 bytes_to_float(const uint8_t *p, bool is_signed)
{
    __m128i x = _mm_loadl_epi64((const __m128i *)p);
    return _mm256_cvtepi32_ps(is_signed ? _mm256_cvtepi8_epi32(x) : _mm256_cvtepu8_epi32(x));
}

/* Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: a scale, and for some a minimum, for each 32. */
AVX2_INLINE __m256 group_32(const uint8_t *w, int64_t k, struct avx2_packed a, bool nibbles,
                            bool has_min)
{
    __m256 acc = _mm256_setzero_ps();
    const int head = has_min ? 32 : 16, body = nibbles ? 128 : 256;
    for (int64_t b = 0; b < k / 32; b++, w += head + body) {
        prefetch(w, head + body);
        __m256i start = _mm256_setzero_si256();
        if (nibbles && !has_min)
            start = _mm256_set1_epi32(a.minus8_sum[b]); /* Q4_0 keeps q + 8 */
        __m256i sum = nibbles ? nibbles_dot(w + head, a.q + 32 * b, start)
                              : bytes_dot(w + head, a.q + 32 * b, 16);
        acc = apply(acc, avx2_load_f16((const uint16_t *)w), a.scale[b], sum);
        if (has_min)
            acc = _mm256_fmadd_ps(avx2_load_f16((const uint16_t *)w + 8),
                                  _mm256_set1_ps(a.scaled_sum[b]), acc);
    }
    return acc;
}

AVX2_INLINE __m256 group_k45(const uint8_t *w, int64_t k, struct avx2_packed a, bool nibbles)
{
    __m256 acc = _mm256_setzero_ps();
    const int body = nibbles ? 128 : 256;
    for (int64_t b = 0; b < k / 32; w += 160 + 8 * body) {
        __m256 d = avx2_load_f16((const uint16_t *)w);
        __m256 dmin = avx2_load_f16((const uint16_t *)w + 8);
        prefetch(w, 160);
        for (int s = 0; s < 8; s++, b++) {
            const uint8_t *q = w + 160 + s * body;
            prefetch(q, body);
            __m256i sum = nibbles ? nibbles_dot(q, a.q + 32 * b, _mm256_setzero_si256())
                                  : bytes_dot(q, a.q + 32 * b, 16);
            __m256 scale = _mm256_mul_ps(d, bytes_to_float(w + 32 + 8 * s, false));
            __m256 min = _mm256_mul_ps(dmin, bytes_to_float(w + 96 + 8 * s, false));
            acc = apply(acc, scale, a.scale[b], sum);
            acc = _mm256_fnmadd_ps(min, _mm256_set1_ps(a.scaled_sum[b]), acc);
        }
    }
    return acc;
}

AVX2_INLINE __m256 group_q6_k(const uint8_t *w, int64_t k, struct avx2_packed a)
{
    __m256 acc = _mm256_setzero_ps();
    for (int64_t b = 0; b < k / 16; w += 144 + 8 * 256) {
        __m256 d = avx2_load_f16((const uint16_t *)w);
        prefetch(w, 144);
        for (int s = 0; s < 16; s++, b++) {
            const uint8_t *q = w + 144 + s * 128;
            prefetch(q, 128);
            __m256 scale = _mm256_mul_ps(d, bytes_to_float(w + 16 + 8 * s, true));
            acc = apply(acc, scale, a.scale[b / 2], bytes_dot(q, a.q + 16 * b, 8));
        }
    }
    return acc;
}

static __m256 group_quantised(oato_dtype dtype, const uint8_t *w, int64_t k, struct avx2_packed a)
{
    switch (dtype) {
    case DT_Q4_0: return group_32(w, k, a, true, false);
    case DT_Q4_1: return group_32(w, k, a, true, true);
    case DT_Q5_1: return group_32(w, k, a, false, true);
    case DT_Q4_K: return group_k45(w, k, a, true);
    case DT_Q5_K: return group_k45(w, k, a, false);
    case DT_Q6_K: return group_q6_k(w, k, a);
    default: return group_32(w, k, a, false, false); /* Q5_0, Q8_0 */
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

void avx2_matrix_vector(const struct matrix_job *j, int64_t begin, int64_t end)
{
    const oato_dtype dtype = j->w->dtype;
    const int64_t k = j->w->k, stride = (int64_t)avx2_matrix_bytes(dtype, AVX2_LANES, k);
    const bool is_float = !avx2_format_of(dtype);
    const struct avx2_packed a = avx2_packed_at(j->packed, k);
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
