/*
 * lanes_grid.h - weights with a codebook (IQ1, IQ2, IQ3) in registers: each lane's indices become
 * words of the codebook, and these the nibbles of codes that types with values have anyway.
 *
 * With AVX-512 a codebook is looked up in registers and L1 by permutations of 64 words each, for 32
 * indices at once. With AVX2 words are loaded one by one, which is faster than gathers are on
 * Zen 5. Both would be slow for the 2048 words of IQ1: its groups are kept as numbers to the base
 * of 3.
 */
#ifndef OATO_LANES_GRID_H
#define OATO_LANES_GRID_H

#include "kernels/cpu/lanes_vector.h"

#ifdef __AVX512F__
enum { GRID_PERMUTED_BITS = 10 };
#else
enum { GRID_PERMUTED_BITS = 0 };
#endif
enum { GRID_WORDS = 2 * LANES };

/* Of two groups of each lane: their words; then the nibbles of the group or pair at hand. And the
 * signs of all. */
struct grid_words {
    ivec words, nibbles, signs;
};

#ifdef __AVX512F__
AVX2_INLINE ivec words_of_bytes(const uint8_t *p)
{
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)p));
}

/* Pairs of tables of 32 words, then halves chosen by one more bit each. */
AVX2_INLINE ivec grid_permuted(const uint16_t *grid, int bits, ivec index)
{
    ivec x[1 << (GRID_PERMUTED_BITS - 6)];
    UNROLLED (i, 1 << (bits - 6))
        x[i] = _mm512_permutex2var_epi16(_mm512_load_si512(grid + 64 * i), index,
                                         _mm512_load_si512(grid + 64 * i + 32));
    UNROLLED (b, bits - 6) {
        const __mmask32 upper =
            _mm512_test_epi16_mask(index, _mm512_set1_epi16((int16_t)(64 << b)));
        UNROLLED (i, 1 << (bits - 7 - b))
            x[i] = _mm512_mask_mov_epi16(x[2 * i], upper, x[2 * i + 1]);
    }
    return x[0];
}

/* In each dword bytes by their numbers, which are those of a byte each. */
AVX2_INLINE ivec dword_bytes(ivec x, int order)
{
    const int step = 0x04040404;
    return _mm512_shuffle_epi8(
        x, _mm512_set4_epi32(order + 3 * step, order + 2 * step, order + step, order));
}

/* Of 512 words; bits 28 + n and 29 + n are the ninth bits of the indices of groups n and n + 1. */
AVX2_INLINE ivec grid_halves(const uint16_t *grid, ivec index, ivec bits, int n)
{
    const ivec top = dword_bytes(bits, 0x03030303), own = _mm512_set1_epi32(0x00200010 << n);
    const ivec upper = grid_permuted(grid + 256, 8, index);
    return _mm512_mask_mov_epi16(grid_permuted(grid, 8, index), _mm512_test_epi16_mask(top, own),
                                 upper);
}

/* Odd words shifted right by two bits. */
AVX2_INLINE ivec odd_words_shifted(ivec x)
{
    return _mm512_srlv_epi16(x, _mm512_set1_epi32(2 << 16));
}
#else
AVX2_INLINE ivec words_of_bytes(const uint8_t *p)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
}

AVX2_INLINE ivec grid_permuted(const uint16_t *grid, int bits, ivec index)
{
    (void)grid;
    (void)bits;
    return index; /* never called */
}

AVX2_INLINE ivec grid_halves(const uint16_t *grid, ivec index, ivec bits, int n)
{
    (void)n;
    return grid_permuted(grid, 9, index | bits); /* never called */
}

AVX2_INLINE ivec dword_bytes(ivec x, int order)
{
    const int step = 0x04040404;
    const __m128i one = _mm_set_epi32(order + 3 * step, order + 2 * step, order + step, order);
    return _mm256_shuffle_epi8(x, _mm256_broadcastsi128_si256(one));
}

AVX2_INLINE ivec odd_words_shifted(ivec x)
{
    return _mm256_blend_epi16(x, _mm256_srli_epi16(x, 2), 0xaa);
}
#endif

/* Three digits to the base of 3, two bits each. */
static const uint8_t grid_three_digits[32] = {0,  1,  2,  4,  5,  6,  8,  9,  10, 16, 17,
                                              18, 20, 21, 22, 24, 25, 26, 32, 33, 34, 36,
                                              37, 38, 40, 41, 42, 0,  0,  0,  0,  0};

#ifdef __AVX512F__
/* As the last three codes of words; each word has their number. */
AVX2_INLINE ivec three_digits(ivec numbers)
{
    return _mm512_slli_epi16(_mm512_permutexvar_epi16(numbers, words_of_bytes(grid_three_digits)),
                             10);
}
#else
AVX2_INLINE ivec three_digits(ivec numbers)
{
    const __m256i few =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)grid_three_digits));
    const __m256i many =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(grid_three_digits + 16)));
    const __m256i is_many = _mm256_cmpgt_epi8(numbers, _mm256_set1_epi8(15));
    return _mm256_slli_epi16(_mm256_blendv_epi8(_mm256_shuffle_epi8(few, numbers),
                                                _mm256_shuffle_epi8(many, numbers), is_many),
                             10);
}
#endif

/* A dword of two groups, whose indices are 16 bits or, where all bits are in one, bytes. */
AVX2_INLINE int grid_pair(const struct lanes_format *f, const uint8_t *bytes, const uint16_t *at,
                          int lane)
{
    const uint32_t first = f->grid[f->index_bits > 8 ? at[2 * lane] : bytes[2 * lane]];
    const uint32_t second = f->grid[f->index_bits > 8 ? at[2 * lane + 1] : bytes[2 * lane + 1]];
    int both = (int)(first | second << 16);
    /* gcc would make vectors of single words, and spill these as words that it loads as dwords. */
    __asm__("" : "+r"(both));
    return both;
}

/* Dwords go from register to register: loading a vector of what was stored in pieces would wait. */
AVX2_INLINE ivec grid_loaded(const struct lanes_format *f, const uint8_t *bytes, ivec index)
{
    _Alignas(64) uint16_t at[GRID_WORDS];
    if (f->index_bits > 8)
        ivec_store((uint8_t *)at, index);
#define PAIR(lane) grid_pair(f, bytes, at, (lane))
#define EIGHT(lane)                                                                                \
    _mm256_setr_epi32(PAIR((lane)), PAIR((lane) + 1), PAIR((lane) + 2), PAIR((lane) + 3),          \
                      PAIR((lane) + 4), PAIR((lane) + 5), PAIR((lane) + 6), PAIR((lane) + 7))
#ifdef __AVX512F__
    return _mm512_inserti64x4(_mm512_castsi256_si512(EIGHT(0)), EIGHT(8), 1);
#else
    return EIGHT(0);
#endif
#undef EIGHT
#undef PAIR
}

/* Of a byte b of each lane the bits from `first` on and those from `second` on, each from bit `to`
 * of a word on, with others around them. */
AVX2_INLINE ivec byte_to_words(const uint8_t *bytes, int first, int second, int to)
{
    const ivec x = MM(cvtepu8_epi32)(bytes_at(bytes));
    return MM(slli_epi32)(x, (unsigned)(to - first)) |
           MM(slli_epi32)(x, (unsigned)(16 + to - second));
}

/* The words of groups n and n + 1, n even. */
AVX2_INLINE ivec grid_words(const struct lanes_format *f, const uint8_t *body, int n)
{
    const uint8_t *high = body + LANES * lanes_grid_high_at(f), *low = body + LANES * n;
    ivec index = words_of_bytes(low);
    if (f->high && lanes_grid_has_signs(f)) {
        const int at = n * f->high % 8, more = (1 << (f->index_bits - 8)) - 1;
        const ivec x = byte_to_words(high + LANES * (n * f->high / 8), at, at + f->high, 8);
        index |= x & MM(set1_epi16)((int16_t)(more << 8));
    }
    if (lanes_grid_signs_even(f)) {
        const ivec x = ivec_load(body + LANES * lanes_grid_signs_at(f));
        if (f->index_bits <= GRID_PERMUTED_BITS)
            return grid_halves(f->grid, index, x, n);
        const ivec first = MM(srli_epi32)(x, (unsigned)(20 + n));
        index |= (first | MM(slli_epi32)(first, 15)) & MM(set1_epi32)(0x01000100);
    }
    const ivec words = f->index_bits <= GRID_PERMUTED_BITS
                           ? grid_permuted(f->grid, f->index_bits, index)
                           : grid_loaded(f, low, index);
    if (lanes_grid_has_signs(f))
        return words;
    const ivec lower = byte_to_words(high + LANES * (n / 2), 0, 4, 0) & MM(set1_epi16)(7);
    const ivec upper = byte_to_words(high + LANES * 2, 2 * n, 2 * n + 2, 8) & MM(set1_epi16)(0x300);
    return words | three_digits(lower | MM(srli_epi16)(upper, 5));
}

/* Bit j of nibbles: the signs of vector j. Those that are left out make an even number. */
AVX2_INLINE ivec grid_signs_all(const struct lanes_format *f, const uint8_t *body)
{
    const ivec x = ivec_load(body + LANES * lanes_grid_signs_at(f));
    if (!lanes_grid_signs_even(f))
        return x;
    ivec odd = x ^ MM(slli_epi32)(x, 16);
    odd ^= MM(slli_epi32)(odd, 8);
    odd ^= MM(slli_epi32)(odd, 4);
    return x ^ (odd & MM(set1_epi32)((int)0xf0000000)); /* odd has the ninth bits, too */
}

/* Bit 3 of each nibble of vector j. */
AVX2_INLINE ivec grid_signs(const struct lanes_format *f, const uint8_t *body, int j, ivec signs)
{
    const ivec top = MM(set1_epi8)((char)0x88);
    if (lanes_grid_has_signs(f))
        return MM(slli_epi32)(signs, (unsigned)(3 - j)) & top;
    const ivec x = MM(cvtepu8_epi32)(bytes_at(body + LANES * (lanes_grid_high_at(f) + j / 2)));
    return MM(srai_epi32)(MM(slli_epi32)(x, (unsigned)(28 - j % 2 * 4)), 31) & top;
}

/* Quad i of 32 elements as bytes that number the format's values. Calls are in order of i. */
AVX2_INLINE ivec grid_codes(const struct lanes_format *f, const uint8_t *body, int i,
                            struct grid_words *w)
{
    const int j = i / 2;
    if (i == 0 && lanes_grid_has_signs(f))
        w->signs = grid_signs_all(f, body);
    if (f->group == 4 && i % 2 == 0) {
        const ivec x = dword_bytes(grid_words(f, body, 2 * j), 0x03010200);
        w->nibbles = x | grid_signs(f, body, j, w->signs);
    }
    if (f->group == 8 && i % 4 == 0)
        w->words = grid_words(f, body, j);
    if (f->group == 8 && i % 2 == 0) {
        const ivec twice = dword_bytes(w->words, j % 2 ? 0x03020302 : 0x01000100);
        const ivec x = odd_words_shifted(twice) & MM(set1_epi8)(0x33);
        w->nibbles = x | grid_signs(f, body, j, w->signs);
    }
    return MM(srli_epi16)(w->nibbles, (unsigned)(i % 2 * 4)) & MM(set1_epi8)(15);
}

#endif
