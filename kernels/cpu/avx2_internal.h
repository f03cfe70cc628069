/*
 * avx2_internal.h - between the files of the avx2 table: small helpers that must be inlined, and
 * the functions that fill the table. Included only by files compiled with -mavx2 -mfma -mf16c.
 */
#ifndef OATO_AVX2_INTERNAL_H
#define OATO_AVX2_INTERNAL_H

#include "kernels/cpu/cpu_internal.h"

#include <immintrin.h>

#define AVX2_INLINE static inline __attribute__((always_inline))

/* Lanes below n (n >= 8: all). */
AVX2_INLINE __m256i avx2_mask(int64_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)(n < 8 ? n : 8)), lane);
}

/* Lanes added in a fixed order. */
AVX2_INLINE float avx2_sum(__m256 x)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

AVX2_INLINE float avx2_max(__m256 x)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

/* e^x within 2 ulp; 0 below -87, at most e^88. x = n ln 2 + r with |r| <= ln 2 / 2, and the minimax
 * polynomial of Cephes' expf for e^r. NaN stays NaN. */
AVX2_INLINE __m256 avx2_exp(__m256 x)
{
    const __m256 lowest = _mm256_set1_ps(-87.0f);
    __m256 under = _mm256_cmp_ps(x, lowest, _CMP_LT_OQ);
    x = _mm256_min_ps(_mm256_set1_ps(88.0f), _mm256_max_ps(lowest, x));
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693359375f), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(-2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    p = _mm256_fmadd_ps(_mm256_mul_ps(r, r), p, _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
    __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    p = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), power));
    return _mm256_andnot_ps(under, p);
}

/* Eight float32 from eight F16 or BF16. */
AVX2_INLINE __m256 avx2_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

AVX2_INLINE __m256 avx2_load_bf16(const uint16_t *p)
{
    __m256i x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}

/* avx2_layout.c */
const char *avx2_matrix_numerics(oato_dtype dtype);
uint64_t avx2_matrix_bytes(oato_dtype dtype, int64_t rows, int64_t k);
void avx2_matrix_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                         int64_t end);
uint64_t avx2_pack_bytes(oato_dtype dtype, int64_t k);
void avx2_pack(int64_t k, const float *x, uint8_t *out);

enum { AVX2_LANES = 8 }; /* rows of a group */

/* How a block of AVX2_LANES rows lies in memory: a head, then 32 k after 32 k the weights. */
struct avx2_format {
    oato_dtype dtype;
    int32_t block; /* elements along k, as in the GGUF */
    int32_t head;  /* bytes */
    int32_t body;  /* bytes of 32 elements of all rows: 128 nibbles or 256 bytes */
};
/* NULL for the float types. */
const struct avx2_format *avx2_format_of(oato_dtype dtype);

/* The packed input: k int16, then for each 32 of them the scale, scale * sum and -8 * sum. */
struct avx2_packed {
    const int16_t *q;
    const float *scale, *scaled_sum;
    const int32_t *minus8_sum;
};
AVX2_INLINE struct avx2_packed avx2_packed_at(const uint8_t *p, int64_t k)
{
    struct avx2_packed a = {.q = (const int16_t *)p};
    a.scale = const_floats(p + 2 * k);
    a.scaled_sum = a.scale + k / 32;
    a.minus8_sum = (const int32_t *)(p + 2 * k + 8 * (k / 32));
    return a;
}

/* avx2_matrix.c: T > 1; avx2_vector.c: T = 1 */
uint64_t avx2_matrix_scratch(oato_dtype dtype, int64_t k);
void avx2_matrix_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch);
void avx2_matrix_vector(const struct matrix_job *j, int64_t begin, int64_t end);

/* avx2_attention.c */
uint64_t avx2_attention_scratch(const struct oato_op *op);
void avx2_attention(const struct attention_job *j, uint8_t *scratch);
void avx2_attention_merge(const float *partial, int64_t n, int32_t heads, int32_t head_dim,
                          float *out);

#endif
