/*
 * lanes_vector.h - the vectors of a level, a lane for each interleaved row: 16 where the file is
 * compiled for AVX-512, else 8. What differs between the two comes first; the rest is written once
 * and has the same bits at both widths.
 */
#ifndef OATO_LANES_VECTOR_H
#define OATO_LANES_VECTOR_H

#include "kernels/cpu/avx2_internal.h"

#ifdef __AVX512F__
enum { LANES = 16 };
typedef __m512 vec;
typedef __m512i ivec;
#define MM(name) _mm512_##name /* the intrinsic for vectors of this width */

/* Lanes below n (n >= 16: all). */
AVX2_INLINE __mmask16 avx512_mask(int64_t n)
{
    return n >= LANES ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

AVX2_INLINE __m128i bytes_at(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

AVX2_INLINE __m256i words_at(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

AVX2_INLINE ivec ivec_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

AVX2_INLINE void ivec_store(uint8_t *p, ivec x)
{
    _mm512_storeu_si512(p, x);
}

AVX2_INLINE vec vec_round(vec x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* x, but 0 where `compared` is less than the limit. */
AVX2_INLINE vec vec_zero_less(vec x, vec compared, vec limit)
{
    const __mmask16 less = _mm512_cmp_ps_mask(compared, limit, _CMP_LT_OQ);
    return _mm512_maskz_mov_ps(_knot_mask16(less), x);
}

/* Lanes below n, the others -inf. */
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
#else
enum { LANES = 8 };
typedef __m256 vec;
typedef __m256i ivec;
#define MM(name) _mm256_##name

AVX2_INLINE __m128i bytes_at(const uint8_t *p)
{
    return _mm_loadl_epi64((const __m128i *)p);
}

AVX2_INLINE __m128i words_at(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

AVX2_INLINE ivec ivec_load(const uint8_t *p)
{
    return _mm256_loadu_si256((const ivec *)p);
}

AVX2_INLINE void ivec_store(uint8_t *p, ivec x)
{
    _mm256_storeu_si256((ivec *)p, x);
}

AVX2_INLINE vec vec_round(vec x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

AVX2_INLINE vec vec_zero_less(vec x, vec compared, vec limit)
{
    return _mm256_andnot_ps(_mm256_cmp_ps(compared, limit, _CMP_LT_OQ), x);
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

/* The sum of 16 floats, in an order that both widths share. */
AVX2_INLINE float vec_sum_16(const vec x[2])
{
    return avx2_sum(_mm256_add_ps(x[0], x[1]));
}
#endif

AVX2_INLINE vec vec_set(float x)
{
    return MM(set1_ps)(x);
}

AVX2_INLINE vec vec_load(const float *p)
{
    return MM(loadu_ps)(p);
}

AVX2_INLINE void vec_store(float *p, vec x)
{
    MM(storeu_ps)(p, x);
}

AVX2_INLINE vec vec_load_f16(const uint8_t *p)
{
    return MM(cvtph_ps)(words_at(p));
}

/* From signed bytes, and from unsigned ones. */
AVX2_INLINE vec vec_load_i8(const uint8_t *p)
{
    return MM(cvtepi32_ps)(MM(cvtepi8_epi32)(bytes_at(p)));
}

AVX2_INLINE vec vec_of_u8(__m128i bytes)
{
    return MM(cvtepi32_ps)(MM(cvtepu8_epi32)(bytes));
}

/* One element of a float type of each row. */
AVX2_INLINE vec vec_load_float(oato_dtype dtype, const uint8_t *w)
{
    if (dtype == DT_F32)
        return vec_load(const_floats(w));
    if (dtype == DT_F16)
        return vec_load_f16(w);
    return (vec)MM(slli_epi32)(MM(cvtepu16_epi32)(words_at(w)), 16); /* BF16 */
}

#define vec_fma  MM(fmadd_ps)
#define vec_fnma MM(fnmadd_ps)
#define vec_min  MM(min_ps)
#define vec_max  MM(max_ps)

AVX2_INLINE vec vec_scaled(vec x, vec n)
{
    return (vec)MM(add_epi32)((ivec)x, MM(slli_epi32)(MM(cvtps_epi32)(n), 23));
}

#include "kernels/cpu/vector_exp.h"

/* log(1 + e^x) within a few ulp: the larger of x and 0, plus log(1 + z) of z = e^-|x|, which is
 * 2 atanh(z / (2 + z)), of at most 1 / 3: its series ends after eight terms. NaN stays NaN. */
AVX2_INLINE vec vec_softplus(vec x)
{
    const vec zero = vec_set(0), z = vec_exp(MM(min_ps)(zero - x, x));
    const vec s = z / (z + vec_set(2)), square = s * s;
    vec p = vec_set(1.0f / 15);
    UNROLL
    for (int i = 13; i > 0; i -= 2)
        p = MM(fmadd_ps)(p, square, vec_set(1.0f / (float)i));
    return MM(fmadd_ps)(s + s, p, MM(max_ps)(zero, x));
}

/* ------------------------------------------------------------------- scales of a block -- */

/* Powers of two from their exponents, 2^(byte - 128); those of 0 and 1 are subnormal. */
AVX2_INLINE vec vec_load_e8m0(const uint8_t *p)
{
    const ivec e = MM(cvtepu8_epi32)(bytes_at(p)), one = MM(set1_epi32)(1);
    const ivec normal = MM(slli_epi32)(MM(sub_epi32)(e, one), 23);
    const ivec tiny = MM(sllv_epi32)(MM(set1_epi32)(1 << 21), MM(min_epi32)(e, one));
    return (vec)MM(max_epi32)(normal, tiny);
}

/* Half of unsigned e4m3, of which the exponent and mantissa are those of a 16-bit float. */
AVX2_INLINE vec vec_load_ue4m3(const uint8_t *p)
{
#ifdef __AVX512F__
    const __m256i half = _mm256_slli_epi16(_mm256_cvtepu8_epi16(bytes_at(p)), 7);
    const vec x = _mm512_cvtph_ps(_mm256_and_si256(half, _mm256_set1_epi16(0x3f80)));
#else
    const __m128i half = _mm_slli_epi16(_mm_cvtepu8_epi16(bytes_at(p)), 7);
    const vec x = _mm256_cvtph_ps(_mm_and_si128(half, _mm_set1_epi16(0x3f80)));
#endif
    return x * vec_set(128);
}

/* What the head of a block says of its rows: scale and minimum, of which those of sub-blocks are
 * multiples. */
struct block_head {
    vec scale, min;
    const uint8_t *subs; /* of 256: the multiples, a byte per row, of scales, then of minima; for
                            Q2_K one byte holds nibbles of both, for codebooks of two scales; for
                            NVFP4 the scales themselves */
};
enum { SUBS_BYTES = 16 * LANES };

/* The multiples of Q4_K and Q5_K, six bits as in the GGUF, are unpacked to room. */
AVX2_INLINE const uint8_t *block_subs(const struct lanes_format *f, const uint8_t *head,
                                      uint8_t room[SUBS_BYTES])
{
    if (!f->has_min || f->sub != 32)
        return head + LANES * (f->has_min ? 4 : 2);
    const ivec six = MM(set1_epi8)(63), four = MM(set1_epi8)(15);
    const uint8_t *p = head + 4 * LANES;
    const ivec nibbles = ivec_load(p + 8 * LANES);
    for (int i = 0; i < 2; i++) { /* scales, minima */
        const ivec x = ivec_load(p + 4 * LANES * i);
        const ivec low = i ? MM(srli_epi16)(nibbles, 4) : nibbles;
        const ivec high = MM(srli_epi16)(x, 2) & MM(set1_epi8)(48);
        ivec_store(room + 8 * LANES * i, x & six);
        ivec_store(room + 8 * LANES * i + 4 * LANES, (low & four) | high);
    }
    return room;
}

AVX2_INLINE struct block_head block_head(const struct lanes_format *f, const uint8_t *w,
                                         uint8_t room[SUBS_BYTES])
{
    struct block_head h;
    if (f->dtype == DT_NVFP4) {
        h.scale = h.min = vec_set(1);
        h.subs = w;
        return h;
    }
    h.scale = f->dtype == DT_MXFP4 ? vec_load_e8m0(w) : vec_load_f16(w);
    h.min = f->has_min ? vec_load_f16(w + 2 * LANES) : h.scale;
    h.subs = NULL;
    if (f->block != 32) {
        if (f->has_min)
            h.min *= vec_set(-1);
        h.subs = block_subs(f, w, room);
        if (f->grid)
            h.scale *= vec_set(f->factor);
    }
    return h;
}

/* Of sub-block i; of the block when it has no others. */
AVX2_INLINE vec sub_scale(const struct lanes_format *f, const struct block_head *h, int i)
{
    if (f->block == 32 || f->head == 2)
        return h->scale;
    const uint8_t *at = h->subs + LANES * i;
    if (f->dtype == DT_NVFP4)
        return vec_load_ue4m3(at);
    if (f->grid) { /* 2 s + 1 */
        __m128i s = bytes_at(h->subs + LANES * (i / 2));
        s = _mm_and_si128(i % 2 ? _mm_srli_epi16(s, 3) : _mm_slli_epi16(s, 1), _mm_set1_epi8(30));
        return h->scale * vec_of_u8(_mm_or_si128(s, _mm_set1_epi8(1)));
    }
    if (!f->has_min)
        return h->scale * vec_load_i8(at);
    const __m128i x = bytes_at(at);
    return h->scale * vec_of_u8(f->sub == 32 ? x : _mm_and_si128(x, _mm_set1_epi8(15)));
}

AVX2_INLINE vec sub_min(const struct lanes_format *f, const struct block_head *h, int i)
{
    if (f->block == 32 || !f->has_min)
        return h->min;
    if (f->sub == 32)
        return h->min * vec_of_u8(bytes_at(h->subs + LANES * (8 + i)));
    const __m128i x = _mm_srli_epi16(bytes_at(h->subs + LANES * i), 4);
    return h->min * vec_of_u8(_mm_and_si128(x, _mm_set1_epi8(15)));
}

#endif
