/*
 * avx512_internal.h - shared by the files of the avx512 table: inline helpers. Included only by
 * files compiled with -mavx512f and its bw, dq, vl and vnni parts.
 */
#ifndef OATO_AVX512_INTERNAL_H
#define OATO_AVX512_INTERNAL_H

#include "kernels/cpu/avx2_internal.h"

#include <string.h>

enum { AVX512_LANES = 16 }; /* rows of a group */

/* Lanes below n (n >= 16: all). */
AVX2_INLINE __mmask16 avx512_mask(int64_t n)
{
    return n >= AVX512_LANES ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}

/* The steps of avx2_exp: the same bits. */
AVX2_INLINE __m512 avx512_exp(__m512 x)
{
    const __m512 lowest = _mm512_set1_ps(-87.0f);
    const __mmask16 under = _mm512_cmp_ps_mask(x, lowest, _CMP_LT_OQ);
    x = _mm512_min_ps(_mm512_set1_ps(88.0f), _mm512_max_ps(lowest, x));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 p = _mm512_set1_ps(1.9875691500e-4f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3981999507e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(8.3334519073e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(4.1665795894e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.6666665459e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.0000001201e-1f));
    p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
    const __m512i power = _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23);
    p = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), power));
    return _mm512_maskz_mov_ps(_knot_mask16(under), p);
}

AVX2_INLINE __m512 avx512_load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

AVX2_INLINE __m512 avx512_load_bf16(const uint8_t *p)
{
    __m512i x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

/* One element of a float type of 16 rows. */
AVX2_INLINE __m512 avx512_load_lanes(oato_dtype dtype, const uint8_t *w)
{
    if (dtype == DT_F32)
        return _mm512_loadu_ps(w);
    return dtype == DT_F16 ? avx512_load_f16(w) : avx512_load_bf16(w);
}

AVX2_INLINE __m128i avx512_load_16(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

/* Sixteen float32 from signed bytes, and from unsigned ones. */
AVX2_INLINE __m512 avx512_load_i8(const uint8_t *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(avx512_load_16(p)));
}

AVX2_INLINE __m512 avx512_unsigned_ps(__m128i bytes)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

/* A pair of words of the input for all lanes; folds into the instruction that uses it. */
AVX2_INLINE __m512i avx512_pair_at(const void *q)
{
    int32_t pair;
    memcpy(&pair, q, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* The format's values as words, twice. */
AVX2_INLINE __m512i avx512_value_words(const struct lanes_format *f)
{
    const __m128i values = _mm_loadu_si128((const __m128i *)f->values);
    return _mm512_broadcast_i64x4(_mm256_cvtepi8_epi16(values));
}

/* The words of pair p of 32 elements of 16 rows, plus the offset; see lanes_layout.c. Calls are in
 * order of p from a multiple of 8, and x and high keep vectors between them. */
AVX2_INLINE __m512i avx512_pair_words(const struct lanes_format *f, const uint8_t *body, int p,
                                      __m512i *x, __m512i *high)
{
    const int low = f->body / 4 - f->high; /* bits */
    __m512i words;
    if (low == 8) {
        __m512i bytes = _mm512_loadu_si512(body + 64 * (p / 4 * 2 + p % 2));
        return _mm512_srai_epi16(p % 4 < 2 ? _mm512_slli_epi16(bytes, 8) : bytes, 8);
    }
    if (low == 4) {
        *x = p % 4 ? _mm512_srli_epi16(*x, 4) : _mm512_loadu_si512(body + 64 * (p / 4));
        if (f->values) /* twice, as vpermw looks at one bit more than the nibble's */
            return _mm512_permutexvar_epi16(*x, avx512_value_words(f));
        words = p % 4 == 3 ? *x : _mm512_and_si512(*x, _mm512_set1_epi16(15));
    } else {
        const unsigned bit = (unsigned)lanes_plane_bit(p, 2);
        *x = p % 8 ? *x : _mm512_loadu_si512(body + 64 * (p / 8));
        words = _mm512_and_si512(_mm512_srli_epi16(*x, bit), _mm512_set1_epi16(3));
    }
    if (!f->high)
        return words;
    const int bit = lanes_plane_bit(p, f->high);
    if (p % 8 == 0)
        *high = _mm512_loadu_si512(body + 64 * (low + p * f->high / 16));
    __m512i bits = bit < low ? _mm512_slli_epi16(*high, (unsigned)(low - bit))
                             : _mm512_srli_epi16(*high, (unsigned)(bit - low));
    const __m512i mask = _mm512_set1_epi16((int16_t)(((1 << f->high) - 1) << low));
    return _mm512_ternarylogic_epi32(words, bits, mask, 0xf8); /* words | (bits & mask) */
}

/* Quad i of 32 elements of 16 rows, plus the offset; see lanes_layout.c. Calls are in order of i
 * from the first of those that share a scale, and x and high keep vectors between them. */
AVX2_INLINE __m512i avx512_quad_bytes(const struct lanes_format *f, const uint8_t *body, int i,
                                      __m512i *x, __m512i *high)
{
    const int low = f->body / 4 - f->high; /* bits */
    const int pair = i / 2 * 4 + i % 2;    /* the quad's first */
    if (i % (8 / low) == 0)
        *x = _mm512_loadu_si512(body + 64 * (i * low / 8));
    if (low == 8)
        return *x;
    const unsigned shift = (unsigned)(low == 4 ? i % 2 * 4 : lanes_plane_bit(pair, 2));
    const __m512i mask = _mm512_set1_epi8((char)((1 << low) - 1));
    const __m512i bytes = _mm512_and_si512(_mm512_srli_epi16(*x, shift), mask);
    if (f->values) {
        const __m128i values = _mm_loadu_si128((const __m128i *)f->values);
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), bytes);
    }
    if (!f->high)
        return bytes;
    const int bit = lanes_plane_bit(pair, f->high); /* of each byte */
    if (i % (8 / f->high) == 0 || i % (f->sub / 4) == 0)
        *high = _mm512_loadu_si512(body + 64 * (low + i * f->high / 8));
    const __m512i bits = bit < low ? _mm512_slli_epi16(*high, (unsigned)(low - bit))
                                   : _mm512_srli_epi16(*high, (unsigned)(bit - low));
    const __m512i taken = _mm512_set1_epi8((char)(((1 << f->high) - 1) << low));
    return _mm512_ternarylogic_epi32(bytes, bits, taken, 0xf8); /* bytes | (bits & taken) */
}

/* Of a packed input of bytes, for all lanes. */
AVX2_INLINE __m512 avx512_float_at(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return _mm512_set1_ps(x);
}

/* The sum of `sub` dequantised elements of an input block. */
AVX2_INLINE __m512 avx512_total_at(const uint8_t *block, int part, int sub)
{
    if (sub == 32)
        return avx512_float_at(block + offsetof(struct lanes_bytes, sum));
    return _mm512_set1_ps(lanes_bytes_half((const struct lanes_bytes *)block, part));
}

/* Sixteen powers of two from their exponents, 2^(byte - 128); those of 0 and 1 are subnormal. */
AVX2_INLINE __m512 avx512_load_e8m0(const uint8_t *p)
{
    const __m512i e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
    const __m512i one = _mm512_set1_epi32(1);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    const __mmask16 tiny = _mm512_cmple_epi32_mask(e, one);
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, tiny, _mm512_set1_epi32(1 << 21), e));
}

/* The scales of a block's 16 rows; sub-block scales are multiples of them. */
AVX2_INLINE __m512 avx512_block_scale(const struct lanes_format *f, const uint8_t *head)
{
    return f->dtype == DT_MXFP4 ? avx512_load_e8m0(head) : avx512_load_f16(head);
}

/* The scales of the minima of a block of 256. */
AVX2_INLINE __m512 avx512_block_min(const uint8_t *head)
{
    return _mm512_mul_ps(avx512_load_f16(head + 32), _mm512_set1_ps(-1));
}

/* The sub-blocks' scales of a block of 256, a byte per row, then their minima; for Q2_K one byte
 * holds nibbles of both. Those of Q4_K and Q5_K, six bits as in the GGUF, are unpacked to room. */
enum { AVX512_SUBS = 16 * AVX512_LANES };
AVX2_INLINE const uint8_t *avx512_subs(const struct lanes_format *f, const uint8_t *head,
                                       uint8_t room[AVX512_SUBS])
{
    if (!f->has_min || f->sub != 32)
        return head + AVX512_LANES * (f->has_min ? 4 : 2);
    const __m512i six = _mm512_set1_epi8(63), four = _mm512_set1_epi8(15);
    const uint8_t *p = head + 4 * AVX512_LANES;
    const __m512i nibbles = _mm512_loadu_si512(p + 128);
    for (int i = 0; i < 2; i++) { /* scales, minima */
        const __m512i x = _mm512_loadu_si512(p + 64 * i);
        const __m512i low = i ? _mm512_srli_epi16(nibbles, 4) : nibbles;
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(x, 2), six);
        _mm512_storeu_si512(room + 128 * i, _mm512_and_si512(x, six));
        /* the low four bits of `low`, the rest of `high` */
        _mm512_storeu_si512(room + 128 * i + 64, _mm512_ternarylogic_epi32(four, low, high, 0xca));
    }
    return room;
}

/* Scale and minimum multiples of sub-block i, from these bytes. */
AVX2_INLINE __m512 avx512_sub_scale(const struct lanes_format *f, const uint8_t *subs, int i)
{
    if (!f->has_min)
        return avx512_load_i8(subs + AVX512_LANES * i);
    const __m128i x = avx512_load_16(subs + AVX512_LANES * i);
    return avx512_unsigned_ps(f->sub == 32 ? x : _mm_and_si128(x, _mm_set1_epi8(15)));
}

AVX2_INLINE __m512 avx512_sub_min(const struct lanes_format *f, const uint8_t *subs, int i)
{
    if (f->sub == 32)
        return avx512_unsigned_ps(avx512_load_16(subs + AVX512_LANES * (8 + i)));
    const __m128i x = _mm_srli_epi16(avx512_load_16(subs + AVX512_LANES * i), 4);
    return avx512_unsigned_ps(_mm_and_si128(x, _mm_set1_epi8(15)));
}

/* avx512_float.c: float weights, any T */
void avx512_matrix_float(const struct matrix_job *j, int64_t begin, int64_t end);
/* avx512_bytes_vector.c: class u8b32, at most AVX512_STREAM columns */
enum { AVX512_STREAM = 16 }; /* beyond, unpacking to a panel pays */
void avx512_bytes_stream(const struct matrix_job *j, int64_t begin, int64_t end);
/* avx512_bytes.c: class u8b32, any T */
uint64_t avx512_bytes_scratch(void);
void avx512_bytes_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch);
/* avx512_words.c: class i14b32 of float weights */
uint64_t avx512_words_scratch(void);
void avx512_words_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch);

/* avx512.c: shared with amx */
extern const struct matrix_class avx512_decode;
uint64_t avx512_matrix_bytes(oato_dtype dtype, int64_t rows, int64_t k);
void avx512_matrix_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                           int64_t end);
bool avx512_matrix_row(const struct oato_weight *w, int64_t row, float *out);

/* avx512_attention.c */
uint64_t avx512_attention_scratch(const struct oato_op *op);
void avx512_attention(const struct attention_job *j, uint8_t *scratch);
void avx512_attention_merge(const float *partial, int64_t stride, int64_t n, int32_t heads,
                            int32_t head_dim, float *out);

#endif
