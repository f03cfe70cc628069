/*
 * avx2_quads.h - weights of 8 rows as quads of bytes in registers: what the products of avx2 and
 * avxvnni begin with.
 */
#ifndef OATO_AVX2_QUADS_H
#define OATO_AVX2_QUADS_H

#include "kernels/cpu/lanes_grid.h"

/* The bytes of quad i of 32 elements of 8 rows, plus the offset; see lanes_layout.c. Calls are in
 * order of i, and `grid` keeps what codebooks gave between them. */
AVX2_INLINE __m256i avx2_quad_bytes(const struct lanes_format *f, const uint8_t *body, int i,
                                    struct grid_words *grid)
{
    if (f->grid) {
        const __m256i codes = grid_codes(f, body, i, grid);
        const __m128i table = _mm_loadu_si128((const __m128i *)f->values);
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes);
    }
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

#endif
