/*
 * avx2_attention.c - attention with vectors of 8 floats: tiles of 6 queries x 16 positions or
 * dimensions, 12 sums in the 16 registers. The algorithm is in lanes_attention.h.
 */
#include "kernels/cpu/avx2_internal.h"

#include <math.h>

enum { LANES = 8, TILE_VECTORS = 2 };
typedef __m256 vec;

AVX2_INLINE vec vec_zero(void)
{
    return _mm256_setzero_ps();
}
AVX2_INLINE vec vec_set(float x)
{
    return _mm256_set1_ps(x);
}
AVX2_INLINE vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
AVX2_INLINE void vec_store(float *p, vec x)
{
    _mm256_storeu_ps(p, x);
}
AVX2_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
AVX2_INLINE vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
AVX2_INLINE vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
AVX2_INLINE vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
AVX2_INLINE vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
AVX2_INLINE vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
AVX2_INLINE vec vec_exp(vec x)
{
    return avx2_exp(x);
}
AVX2_INLINE vec vec_load_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
AVX2_INLINE vec vec_load_i8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
AVX2_INLINE vec vec_below(vec x, int64_t n)
{
    const vec nothing = _mm256_set1_ps(-INFINITY);
    return _mm256_blendv_ps(nothing, x, _mm256_castsi256_ps(avx2_mask(n)));
}
AVX2_INLINE float vec_top(vec x)
{
    return avx2_max(x);
}
AVX2_INLINE float vec_sum_16(const vec x[2])
{
    return avx2_sum(_mm256_add_ps(x[0], x[1]));
}

#include "kernels/cpu/lanes_attention.h"

uint64_t avx2_attention_scratch(const struct oato_op *op)
{
    return attention_scratch(op);
}

void avx2_attention(const struct attention_job *j, uint8_t *scratch)
{
    attention_run(j, scratch);
}

void avx2_attention_merge(const float *partial, int64_t stride, int64_t n, int32_t heads,
                          int32_t head_dim, float *out)
{
    attention_merge(partial, stride, n, heads, head_dim, out);
}
