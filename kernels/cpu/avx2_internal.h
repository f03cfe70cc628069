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

/* The bytes of quad i of 32 elements of 8 rows, plus the offset; see lanes_layout.c. */
AVX2_INLINE __m256i avx2_quad_bytes(const struct lanes_format *f, const uint8_t *body, int i)
{
    const int low = f->body / 4 - f->high; /* bits */
    const int p = i / 2 * 4 + i % 2;       /* the quad's first pair */
    if (low == 8)
        return avx2_vector_at(body, i);
    __m256i x = avx2_vector_at(body, i * low / 8);
    x = _mm256_srli_epi16(x, low == 4 ? i % 2 * 4 : lanes_plane_bit(p, 2));
    x = _mm256_and_si256(x, _mm256_set1_epi8((char)((1 << low) - 1)));
    if (f->values) {
        const __m128i table = _mm_loadu_si128((const __m128i *)f->values);
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), x);
    }
    if (!f->high)
        return x;
    const int bit = lanes_plane_bit(p, f->high);
    __m256i high = avx2_vector_at(body, low + p * f->high / 16);
    high = bit < low ? _mm256_slli_epi16(high, low - bit) : _mm256_srli_epi16(high, bit - low);
    const __m256i mask = _mm256_set1_epi8((char)(((1 << f->high) - 1) << low));
    return _mm256_or_si256(x, _mm256_and_si256(high, mask));
}

/* Eight powers of two from their exponents, 2^(byte - 128); those of 0 and 1 are subnormal. */
AVX2_INLINE __m256 avx2_load_e8m0(const uint8_t *p)
{
    const __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i tiny = _mm256_sllv_epi32(_mm256_set1_epi32(1 << 21), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(tiny, normal, _mm256_cmpgt_epi32(e, one)));
}

AVX2_INLINE __m128i avx2_load_8(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)p);
}

AVX2_INLINE __m256 avx2_unsigned_ps(__m128i bytes)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}

/* The scales of a block's 8 rows; sub-block scales are multiples of them. */
AVX2_INLINE __m256 avx2_block_scale(const struct lanes_format *f, const uint8_t *head)
{
    return f->dtype == DT_MXFP4 ? avx2_load_e8m0(head) : avx2_load_f16((const uint16_t *)head);
}

/* The scales of the minima of a block of 256. */
AVX2_INLINE __m256 avx2_block_min(const uint8_t *head)
{
    return _mm256_mul_ps(avx2_load_f16((const uint16_t *)head + 8), _mm256_set1_ps(-1));
}

enum { AVX2_LANES = 8 }; /* rows of a group */

/* The sub-blocks' scales of a block of 256, a byte per row, then their minima; for Q2_K one byte
 * holds nibbles of both. Those of Q4_K and Q5_K, six bits as in the GGUF, are unpacked to room. */
enum { AVX2_SUBS = 16 * AVX2_LANES };
AVX2_INLINE const uint8_t *avx2_subs(const struct lanes_format *f, const uint8_t *head,
                                     uint8_t room[AVX2_SUBS])
{
    if (!f->has_min || f->sub != 32)
        return head + AVX2_LANES * (f->has_min ? 4 : 2);
    const __m256i six = _mm256_set1_epi8(63), four = _mm256_set1_epi8(15);
    const __m256i *p = (const __m256i *)(head + 4 * AVX2_LANES);
    __m256i *to = (__m256i *)room;
    const __m256i nibbles = _mm256_loadu_si256(p + 2);
    for (int i = 0; i < 2; i++) { /* scales, minima */
        const __m256i x = _mm256_loadu_si256(p + i);
        const __m256i low = i ? _mm256_srli_epi16(nibbles, 4) : nibbles;
        const __m256i high = _mm256_andnot_si256(four, _mm256_srli_epi16(x, 2));
        _mm256_storeu_si256(to + 2 * i, _mm256_and_si256(x, six));
        _mm256_storeu_si256(to + 2 * i + 1, _mm256_or_si256(_mm256_and_si256(low, four),
                                                            _mm256_and_si256(high, six)));
    }
    return room;
}

/* Scale and minimum multiples of sub-block i, from these bytes. */
AVX2_INLINE __m256 avx2_sub_scale(const struct lanes_format *f, const uint8_t *subs, int i)
{
    const __m128i x = avx2_load_8(subs + AVX2_LANES * i);
    if (!f->has_min)
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
    return avx2_unsigned_ps(f->sub == 32 ? x : _mm_and_si128(x, _mm_set1_epi8(15)));
}

AVX2_INLINE __m256 avx2_sub_min(const struct lanes_format *f, const uint8_t *subs, int i)
{
    if (f->sub == 32)
        return avx2_unsigned_ps(avx2_load_8(subs + AVX2_LANES * (8 + i)));
    const __m128i x = _mm_srli_epi16(avx2_load_8(subs + AVX2_LANES * i), 4);
    return avx2_unsigned_ps(_mm_and_si128(x, _mm_set1_epi8(15)));
}

/* avx2_rows.c */
void avx2_rms_norm(float *y, const float *x, const float *w, int64_t n, float eps);
void avx2_add(float *y, const float *a, const float *b, int64_t n);
void avx2_swiglu(float *y, const float *gate, const float *up, int64_t n);
void avx2_to_f16(uint16_t *y, const float *x, int64_t n);

/* avx2_attention.c */
uint64_t avx2_attention_scratch(const struct oato_op *op);
void avx2_attention(const struct attention_job *j, uint8_t *scratch);
void avx2_attention_merge(const float *partial, int64_t stride, int64_t n, int32_t heads,
                          int32_t head_dim, float *out);

#endif
