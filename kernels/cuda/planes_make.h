/*
 * planes_make.h - how GGUF's blocks become the planes of cuda_layout.h, for the host
 * (cuda_layout.c) and for the GPU (planes_make.cu) alike: one row of the list for each type says
 * which planes it has and where a block has what goes there. The codes of 32 elements are taken
 * apart as bytes, four in a word, and packed again; scales are copied, or taken apart. Of types
 * with a codebook pieces of a block go to the planes as they are.
 *
 * Plain C, little-endian, which device code reads with QUANTS_INLINE defined.
 */
#ifndef OATO_CUDA_PLANES_MAKE_H
#define OATO_CUDA_PLANES_MAKE_H

#include "kernels/core/quants_bits.h"

/* Bytes of a block that are copied to a plane. */
struct planes_piece {
    uint8_t plane, at, bytes;
};
enum { PLANES_PIECES = 6 }; /* the last one is empty */

enum planes_codes {
    CODES_NONE, /* rows are kept as they are, or in pieces */
    CODES_NIBBLES,
    CODES_FIFTHS,
    CODES_BYTES,
    CODES_K_NIBBLES,
    CODES_Q5_K,
    CODES_Q6_K,
    CODES_PAIRS,
    CODES_Q3_K,
    CODES_IQ4_XS,
    CODES_TQ1_0,
    CODES_NVFP4
};
enum planes_scales { SCALES_COPIED, SCALES_K45, SCALES_Q3_K, SCALES_IQ4_XS, SCALES_NVFP4 };

struct planes_format {
    enum planes_codes codes;
    enum planes_scales scales;
    int16_t codes_at, scales_at, super_at;    /* in a GGUF block */
    uint8_t bits, more_bits;                  /* of an element in planes 0 and 1 */
    uint8_t scale_bytes, super_bytes;         /* of 32 elements in plane 2, of a block in plane 3 */
    uint8_t flip;                             /* what makes two's complement of a code */
    uint8_t looked_up;                        /* the order of 4-bit codes, see cuda_layout.h */
    struct planes_piece piece[PLANES_PIECES]; /* in which blocks of 256 are copied */
};

/* X(type, its struct planes_format) */
#define PLANES_OF_CODES(X)                                                                         \
    X(Q4_0, {CODES_NIBBLES, SCALES_COPIED, 2, 0, 0, 4, 0, 2, 0, 8, 0, {{0, 0, 0}}})                \
    X(Q4_1, {CODES_NIBBLES, SCALES_COPIED, 4, 0, 0, 4, 0, 4, 0, 0, 0, {{0, 0, 0}}})                \
    X(Q5_0, {CODES_FIFTHS, SCALES_COPIED, 2, 0, 0, 4, 1, 2, 0, 16, 0, {{0, 0, 0}}})                \
    X(Q5_1, {CODES_FIFTHS, SCALES_COPIED, 4, 0, 0, 4, 1, 4, 0, 0, 0, {{0, 0, 0}}})                 \
    X(Q8_0, {CODES_BYTES, SCALES_COPIED, 2, 0, 0, 8, 0, 2, 0, 0, 0, {{0, 0, 0}}})                  \
    X(Q2_K, {CODES_PAIRS, SCALES_COPIED, 16, 0, 80, 2, 0, 2, 4, 0, 0, {{0, 0, 0}}})                \
    X(Q3_K, {CODES_Q3_K, SCALES_Q3_K, 0, 96, 108, 2, 1, 2, 2, 4, 0, {{0, 0, 0}}})                  \
    X(Q4_K, {CODES_K_NIBBLES, SCALES_K45, 16, 4, 0, 4, 0, 2, 4, 0, 0, {{0, 0, 0}}})                \
    X(Q5_K, {CODES_Q5_K, SCALES_K45, 0, 4, 0, 4, 1, 2, 4, 0, 0, {{0, 0, 0}}})                      \
    X(Q6_K, {CODES_Q6_K, SCALES_COPIED, 0, 192, 208, 4, 2, 2, 2, 32, 0, {{0, 0, 0}}})              \
    X(IQ4_NL, {CODES_NIBBLES, SCALES_COPIED, 2, 0, 0, 4, 0, 2, 0, 0, 1, {{0, 0, 0}}})              \
    X(IQ4_XS, {CODES_IQ4_XS, SCALES_IQ4_XS, 8, 0, 0, 4, 0, 1, 2, 0, 1, {{0, 0, 0}}})               \
    X(MXFP4, {CODES_NIBBLES, SCALES_COPIED, 1, 0, 0, 4, 0, 1, 0, 0, 1, {{0, 0, 0}}})               \
    X(NVFP4, {CODES_NVFP4, SCALES_NVFP4, 4, 0, 0, 4, 0, 2, 0, 0, 1, {{0, 0, 0}}})                  \
    X(TQ1_0, {CODES_TQ1_0, SCALES_COPIED, 0, 0, 52, 2, 0, 0, 2, 0, 0, {{0, 0, 0}}})                \
    X(TQ2_0, {CODES_PAIRS, SCALES_COPIED, 0, 0, 64, 2, 0, 0, 2, 0, 0, {{0, 0, 0}}})

#define PLANES_PIECEWISE(...)                                                                      \
    {                                                                                              \
        CODES_NONE, SCALES_COPIED, 0, 0, 0, 0, 0, 0, 0, 0, 0,                                      \
        {                                                                                          \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define PLANES_OF_PIECES(X)                                                                        \
    X(IQ1_S, PLANES_PIECEWISE({0, 2, 32}, {1, 34, 16}, {3, 0, 2}))                                 \
    X(IQ1_M, PLANES_PIECEWISE({0, 0, 32}, {1, 32, 16}, {3, 48, 8}))                                \
    X(IQ2_XXS, PLANES_PIECEWISE({0, 2, 64}, {3, 0, 2}))                                            \
    X(IQ2_XS, PLANES_PIECEWISE({0, 2, 64}, {3, 0, 2}, {3, 66, 8}))                                 \
    X(IQ2_S, PLANES_PIECEWISE({0, 2, 32}, {1, 34, 32}, {3, 0, 2}, {3, 66, 16}))                    \
    X(IQ3_XXS, PLANES_PIECEWISE({0, 2, 64}, {1, 66, 32}, {3, 0, 2}))                               \
    X(IQ3_S, PLANES_PIECEWISE({0, 2, 64}, {1, 74, 32}, {3, 0, 2}, {3, 66, 8}, {3, 106, 4}))

/* -------------------------------------------------------------- a GGUF block taken apart -- */

QUANTS_INLINE uint32_t planes_word(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Elements 0 .. 15 are the low halves of 16 bytes, 16 .. 31 the high ones. */
QUANTS_INLINE void planes_nibbles(const uint8_t *q, uint32_t w[8])
{
    for (int i = 0; i < 4; i++) {
        w[i] = planes_word(q + 4 * i) & 0x0f0f0f0f;
        w[i + 4] = planes_word(q + 4 * i) >> 4 & 0x0f0f0f0f;
    }
}

/* Those of a byte each, low or high, or pairs, from bit `shift` on of 32 bytes. */
QUANTS_INLINE void planes_bits(const uint8_t *q, int shift, uint32_t mask, uint32_t w[8])
{
    for (int i = 0; i < 8; i++)
        w[i] = planes_word(q + 4 * i) >> shift & mask;
}

/* One or two bits more of each, above those that there are. */
QUANTS_INLINE void planes_more(const uint8_t *q, int shift, uint32_t mask, int above, uint32_t w[8])
{
    for (int i = 0; i < 8; i++)
        w[i] |= (planes_word(q + 4 * i) >> shift & mask) << above;
}

/* Two groups of 8 bytes, each as planes_nibbles has 16. */
QUANTS_INLINE void planes_nvfp4(const uint8_t *q, uint32_t w[8])
{
    for (int i = 0; i < 4; i++) {
        const int at = i / 2 * 4 + i % 2;
        w[at] = planes_word(q + 4 * i) & 0x0f0f0f0f;
        w[at + 2] = planes_word(q + 4 * i) >> 4 & 0x0f0f0f0f;
    }
}

/* Four neighbours have the same digit of four neighbours. */
QUANTS_INLINE void planes_tq1(const uint8_t *p, int first, uint32_t w[8])
{
    for (int i = 0; i < 8; i++) {
        uint32_t power;
        const uint8_t *at = p + bits_tq1_at(first + 4 * i, &power);
        w[i] = 0;
        for (int j = 0; j < 4; j++)
            w[i] |= bits_tq1_digit(at[j], power) << 8 * j;
    }
}

/* The codes of elements 32 s .. 32 s + 31 of a block. */
QUANTS_INLINE void planes_codes(const struct planes_format *f, const uint8_t *block, int s,
                                uint32_t w[8])
{
    const uint8_t *p = block + f->codes_at;
    switch (f->codes) {
    case CODES_NONE: break;
    case CODES_NIBBLES: planes_nibbles(p, w); break;
    case CODES_FIFTHS:
        planes_nibbles(p + 4, w);
        for (int i = 0; i < 8; i++) /* the product puts bit j into byte j */
            w[i] |= ((planes_word(p) >> 4 * i & 15) * 0x00204081 & 0x01010101) << 4;
        break;
    case CODES_BYTES: planes_bits(p, 0, 0xffffffff, w); break;
    case CODES_K_NIBBLES: /* of 32 bytes the low halves, then the high ones */
        planes_bits(p + s / 2 * 32, s % 2 * 4, 0x0f0f0f0f, w);
        break;
    case CODES_Q5_K:
        planes_bits(p + 48 + s / 2 * 32, s % 2 * 4, 0x0f0f0f0f, w);
        planes_more(p + 16, s, 0x01010101, 4, w);
        break;
    case CODES_Q6_K:
        planes_bits(p + s / 4 * 64 + s % 2 * 32, s % 4 / 2 * 4, 0x0f0f0f0f, w);
        planes_more(p + 128 + s / 4 * 32, s % 4 * 2, 0x03030303, 4, w);
        break;
    case CODES_PAIRS: planes_bits(p + s / 4 * 32, s % 4 * 2, 0x03030303, w); break;
    case CODES_Q3_K:
        planes_bits(p + 32 + s / 4 * 32, s % 4 * 2, 0x03030303, w);
        planes_more(p, s, 0x01010101, 2, w);
        break;
    case CODES_IQ4_XS: planes_nibbles(p + s * 16, w); break;
    case CODES_TQ1_0: planes_tq1(p, 32 * s, w); break;
    case CODES_NVFP4: planes_nvfp4(p + s * 16, w); break;
    }
}

/* What plane 2 has of a block of `subs` times 32 elements: `subs` times scale_bytes, 16 at most. */
QUANTS_INLINE void planes_scales(const struct planes_format *f, const uint8_t *block, int subs,
                                 uint8_t *out)
{
    const uint8_t *p = block + f->scales_at;
    switch (f->scales) {
    case SCALES_COPIED:
        for (int i = 0; i < subs * f->scale_bytes; i++)
            out[i] = p[i];
        break;
    case SCALES_K45:
        for (int i = 0; i < 8; i++)
            bits_k_scale(p, i, &out[2 * i], &out[2 * i + 1]);
        break;
    case SCALES_Q3_K:
        for (int i = 0; i < 16; i++)
            out[i] = (uint8_t)bits_q3_k_scale(p, i);
        break;
    case SCALES_IQ4_XS:
        for (int i = 0; i < 8; i++)
            out[i] = (uint8_t)bits_iq4_xs_scale(p, i);
        break;
    case SCALES_NVFP4: /* e4m3 without a sign; what would be none is 0 */
        for (int i = 0; i < 4; i++)
            out[i] = p[i] == 0x7f ? 0 : p[i];
        break;
    }
}

/* ------------------------------------------------------------------- codes packed again --- */

/* One or two bits of each code, from `shift` on: bit pair i of byte j of a word is element 4i + j.
 */
QUANTS_INLINE void planes_pack_bits(const uint32_t w[8], int shift, int bits, uint32_t *out)
{
    const int per_word = 8 / bits;
    for (int i = 0; i < bits; i++) {
        uint32_t word = 0;
        for (int j = 0; j < per_word; j++)
            word |= (w[i * per_word + j] >> shift & (bits == 1 ? 0x01010101 : 0x03030303))
                    << j * bits;
        out[i] = word;
    }
}

QUANTS_INLINE uint32_t planes_four(uint32_t w)
{
    w = (w | w >> 4) & 0x00ff00ff;
    return (w | w >> 8) & 0xffff;
}

/* Codes of 32 elements to f->bits words of plane 0 and f->more_bits of plane 1. */
QUANTS_INLINE void planes_pack(const struct planes_format *f, uint32_t w[8], uint32_t out[8],
                               uint32_t more[2])
{
    for (int i = 0; i < 8; i++)
        w[i] ^= f->flip * 0x01010101u;
    if (f->bits == 8)
        for (int i = 0; i < 8; i++)
            out[i] = w[i];
    else if (f->bits == 2)
        planes_pack_bits(w, 0, 2, out);
    else if (f->looked_up)
        for (int i = 0; i < 4; i++)
            out[i] = planes_four(w[i]) | planes_four(w[i + 4]) << 16;
    else
        for (int i = 0; i < 4; i++)
            out[i] = (w[i] & 0x0f0f0f0f) | (w[i + 4] & 0x0f0f0f0f) << 4;
    if (f->more_bits)
        planes_pack_bits(w, f->bits, f->more_bits, more);
}

#endif
