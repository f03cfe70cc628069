/*
 * avx2_rows.c - element-wise kernels of the levels with vectors of 8 floats or more, in those of 8.
 */
#include "kernels/cpu/lanes_vector.h"

#include <math.h>
#include <string.h>

AVX2_INLINE vec vec_load_below(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, avx2_mask(n));
}

AVX2_INLINE void vec_store_below(float *p, vec x, int64_t n)
{
    _mm256_maskstore_ps(p, avx2_mask(n), x);
}

AVX2_INLINE vec vec_keep_below(vec x, int64_t n)
{
    return _mm256_and_ps(_mm256_castsi256_ps(avx2_mask(n)), x);
}

#define vec_sum avx2_sum
#include "kernels/cpu/vector_rows.h"

static void to_f16(uint16_t *y, const float *x, int64_t n)
{
    const __m256 most = _mm256_set1_ps(F16_MOST), least = _mm256_set1_ps(-F16_MOST);
    const __m256 sign = _mm256_set1_ps(-0.0f), infinity = _mm256_set1_ps(INFINITY);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        const __m256 finite = _mm256_cmp_ps(_mm256_andnot_ps(sign, v), infinity, _CMP_LT_OQ);
        const __m256 near = _mm256_max_ps(least, _mm256_min_ps(most, v));
        _mm_storeu_si128((__m128i *)(y + i), _mm256_cvtps_ph(_mm256_blendv_ps(v, near, finite),
                                                             _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < n; i++)
        y[i] = f32_to_finite_f16(x[i]);
}

/* Most eights have none. */
static int64_t above(float *list, const float *x, const float *bias, int64_t n, float threshold)
{
    const __m256 least = _mm256_set1_ps(threshold);
    int64_t found = 0;
    for (int64_t i = 0; i < n; i += 8) {
        const __m256i mask = avx2_mask(n - i);
        __m256 v = _mm256_maskload_ps(x + i, mask);
        if (bias)
            v = _mm256_add_ps(v, _mm256_maskload_ps(bias + i, mask));
        const __m256 is =
            _mm256_and_ps(_mm256_cmp_ps(v, least, _CMP_GT_OQ), _mm256_castsi256_ps(mask));
        for (unsigned bits = (unsigned)_mm256_movemask_ps(is); bits; bits &= bits - 1)
            list[found++] = (float)(i + __builtin_ctz(bits));
    }
    return found;
}

/* y += factor * scale * q of eight integers. */
AVX2_INLINE void add_integers(float *y, __m256 factor, __m256 scale, __m256i q)
{
    const __m256 w = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(q));
    _mm256_storeu_ps(y, _mm256_fmadd_ps(factor, w, _mm256_loadu_ps(y)));
}

AVX2_INLINE __m256 block_scale(const uint8_t *block)
{
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return _mm256_set1_ps(_cvtsh_ss(half));
}

static void add_q8_0(float *y, __m256 factor, const uint8_t *from, int64_t n)
{
    for (int64_t i = 0; i < n; i += 32, from += 34) {
        const __m256 scale = block_scale(from);
        for (int j = 0; j < 32; j += 8) {
            const __m128i q = _mm_loadl_epi64((const __m128i *)(const void *)(from + 2 + j));
            add_integers(y + i + j, factor, scale, _mm256_cvtepi8_epi32(q));
        }
    }
}

static void add_q4_0(float *y, __m256 factor, const uint8_t *from, int64_t n)
{
    const __m128i low = _mm_set1_epi8(15);
    const __m256i eight = _mm256_set1_epi32(8);
    for (int64_t i = 0; i < n; i += 32, from += 18) {
        const __m256 scale = block_scale(from);
        const __m128i all = _mm_loadu_si128((const __m128i *)(const void *)(from + 2));
        const __m128i half[2] = {_mm_and_si128(all, low),
                                 _mm_and_si128(_mm_srli_epi16(all, 4), low)};
        for (int h = 0; h < 2; h++) {
            const __m256i a = _mm256_cvtepu8_epi32(half[h]);
            const __m256i b = _mm256_cvtepu8_epi32(_mm_srli_si128(half[h], 8));
            add_integers(y + i + 16 * h, factor, scale, _mm256_sub_epi32(a, eight));
            add_integers(y + i + 16 * h + 8, factor, scale, _mm256_sub_epi32(b, eight));
        }
    }
}

/* Eight elements of float types. */
AVX2_INLINE __m256 eight_of(oato_dtype dtype, const uint8_t *from)
{
    const __m128i half = _mm_loadu_si128((const __m128i *)(const void *)from);
    return dtype == DT_F32 ? _mm256_loadu_ps(const_floats(from))
           : dtype == DT_F16
               ? _mm256_cvtph_ps(half)
               : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

static void add_scaled(float *y, float factor, oato_dtype dtype, const uint8_t *from, int64_t n,
                       float *room)
{
    const __m256 f = _mm256_set1_ps(factor);
    if (dtype == DT_Q8_0 || dtype == DT_Q4_0) {
        (dtype == DT_Q8_0 ? add_q8_0 : add_q4_0)(y, f, from, n);
        return;
    }
    if (dtype != DT_F32 && dtype != DT_F16 && dtype != DT_BF16) {
        quants_row(dtype, from, n, room);
        dtype = DT_F32;
        from = (const uint8_t *)room;
    }
    const int64_t bytes = dtype == DT_F32 ? 4 : 2;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(
            y + i, _mm256_fmadd_ps(f, eight_of(dtype, from + i * bytes), _mm256_loadu_ps(y + i)));
    if (i == n)
        return;
    float rest[8] = {0}; /* the last elements, widened where nothing is read behind them */
    quants_row(dtype, from + i * bytes, n - i, rest);
    const __m256i mask = avx2_mask(n - i);
    const __m256 sum = _mm256_fmadd_ps(f, _mm256_loadu_ps(rest), _mm256_maskload_ps(y + i, mask));
    _mm256_maskstore_ps(y + i, mask, sum);
}

const struct row_kernels avx2_rows = {
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .add = add,
    .gate = gate_any,
    .to_f16 = to_f16,
    .above = above,
    .add_scaled = add_scaled,
};
