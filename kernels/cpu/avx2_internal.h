/*
 * avx2_internal.h - shared by the files of the avx2 table: small inline helpers and the functions
 * that fill the table. Included only by files compiled with -mavx2 -mfma -mf16c.
 */
#ifndef OATO_AVX2_INTERNAL_H
#define OATO_AVX2_INTERNAL_H

#include "kernels/cpu/lanes_internal.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

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

/* The sum of the first or second 16 dequantised elements of an input block. */
AVX2_INLINE float lanes_bytes_half(const struct lanes_bytes *a, int half)
{
    const __m128i q = _mm_loadu_si128((const __m128i *)(a->q + 16 * half));
    const __m128i sum = _mm_sad_epu8(q, _mm_setzero_si128());
    const int total = _mm_cvtsi128_si32(_mm_add_epi64(sum, _mm_unpackhi_epi64(sum, sum)));
    return fmaf(a->step, (float)total, 16 * a->min);
}

/* Prefetches the first bytes that the thread reads after the job's weights. */
AVX2_INLINE void avx2_prefetch_next(const struct matrix_job *j, int64_t bytes)
{
    for (int64_t i = 0; j->next && i < bytes; i += 64)
        _mm_prefetch((const char *)j->next + i, _MM_HINT_T0);
}

/* A quad of bytes of the input, or an int32, for all lanes. */
AVX2_INLINE __m256i avx2_quad_at(const void *q)
{
    int32_t quad;
    memcpy(&quad, q, sizeof quad);
    return _mm256_set1_epi32(quad);
}

AVX2_INLINE __m256i avx2_vector_at(const uint8_t *p, int i)
{
    return _mm256_loadu_si256((const __m256i *)p + i);
}

extern const struct row_kernels avx2_rows;
extern const struct attention_kernels avx2_attention;
extern const struct columns_kernels avx2_columns;
extern const struct matrix_class avx2_matrix_float;
/* avx2_listed.c */
bool avx2_bytes_listed(const struct matrix_job *j, const struct rows_list *rows);

#endif
