/*
 * avx512_internal.h - shared by the files of the avx512 table: inline helpers. Included only by
 * files compiled with -mavx512f and its bw, dq, vl and vnni parts.
 */
#ifndef OATO_AVX512_INTERNAL_H
#define OATO_AVX512_INTERNAL_H

#include "kernels/cpu/lanes_grid.h"

/* A pair of words of the input for all lanes; folds into the instruction that uses it. */
AVX2_INLINE __m512i avx512_pair_at(const void *q)
{
    int32_t pair;
    memcpy(&pair, q, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* Quad i of 32 elements of 16 rows, plus the offset; see lanes_layout.c. Calls are in order of i
 * from the first of those that share a scale, and x and high keep vectors between them; with a
 * codebook from the first of all, and so does grid. */
AVX2_INLINE __m512i avx512_quad_bytes(const struct lanes_format *f, const uint8_t *body, int i,
                                      __m512i *x, __m512i *high, struct grid_words *grid)
{
    if (f->grid) {
        const __m128i values = _mm_loadu_si128((const __m128i *)f->values);
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), grid_codes(f, body, i, grid));
    }
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

/* avx512_float.c: class f32 of float weights, any T */
extern const struct matrix_class avx512_float;
/* avx512_bytes_vector.c: class u8b32, at most AVX512_STREAM_MOST columns */
enum { AVX512_STREAM = 16 };      /* beyond, unpacking to a panel pays, */
enum { AVX512_STREAM_MOST = 24 }; /* of plain nibbles and bytes, which every pass unpacks cheaply */
enum { AVX512_STREAM_GRID = 4 };  /* with a codebook: each further pass looks up again */
void avx512_bytes_stream(const struct matrix_job *j, int64_t begin, int64_t end);
/* avx512_bytes.c: class u8b32, any T */
extern const struct matrix_class avx512_bytes;
/* avx512_rows.c: matrix_class.listed of both */
bool avx512_bytes_listed(const struct matrix_job *j, const struct rows_list *rows);
bool avx512_float_listed(const struct matrix_job *j, const struct rows_list *rows);
/* avx512_words.c: class i14b32 of float weights */
extern const struct matrix_class avx512_words;
/* avx512.c: the classes of decode, shared with amx */
const struct matrix_class *avx512_decode(oato_dtype dtype);

extern const struct attention_kernels avx512_attention;
extern const struct columns_kernels avx512_columns;

#endif
