/*
 * avx512_attention.c - attention with vectors of 16 floats: tiles of 6 queries x 64 positions or
 * dimensions, 24 sums in registers. The algorithm is in lanes_attention.h.
 */
#include "kernels/cpu/avx512_internal.h"

#include <math.h>

enum { LANES = AVX512_LANES, TILE_VECTORS = 4 };
typedef __m512 vec;

AVX2_INLINE vec vec_zero(void)
{
    return _mm512_setzero_ps();
}
AVX2_INLINE vec vec_set(float x)
{
    return _mm512_set1_ps(x);
}
AVX2_INLINE vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
AVX2_INLINE void vec_store(float *p, vec x)
{
    _mm512_storeu_ps(p, x);
}
AVX2_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
AVX2_INLINE vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
AVX2_INLINE vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
AVX2_INLINE vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
AVX2_INLINE vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
AVX2_INLINE vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
AVX2_INLINE vec vec_exp(vec x)
{
    return avx512_exp(x);
}
AVX2_INLINE vec vec_load_f16(const uint8_t *p)
{
    return avx512_load_f16(p);
}
AVX2_INLINE vec vec_load_i8(const uint8_t *p)
{
    return avx512_load_i8(p);
}
AVX2_INLINE vec vec_below(vec x, int64_t n)
{
    return _mm512_mask_blend_ps(avx512_mask(n < 0 ? 0 : n), _mm512_set1_ps(-INFINITY), x);
}
AVX2_INLINE float vec_top(vec x)
{
    return avx2_max(_mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)));
}
AVX2_INLINE float vec_sum_16(const vec x[1])
{
    return avx2_sum(_mm256_add_ps(_mm512_castps512_ps256(x[0]), _mm512_extractf32x8_ps(x[0], 1)));
}

#include "kernels/cpu/lanes_attention.h"

uint64_t avx512_attention_scratch(const struct oato_op *op)
{
    return attention_scratch(op);
}

void avx512_attention(const struct attention_job *j, uint8_t *scratch)
{
    attention_run(j, scratch);
}

void avx512_attention_merge(const float *partial, int64_t stride, int64_t n, int32_t heads,
                            int32_t head_dim, float *out)
{
    attention_merge(partial, stride, n, heads, head_dim, out);
}
