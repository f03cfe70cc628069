/*
 * quants_bits.h - integers in GGUF's blocks whose bits are spread: plain C for the host and, with
 * QUANTS_INLINE defined, for device code.
 */
#ifndef OATO_CORE_QUANTS_BITS_H
#define OATO_CORE_QUANTS_BITS_H

#include <stdint.h>

#ifndef QUANTS_INLINE
#define QUANTS_INLINE static inline
#endif

/* The eight 6-bit scales and minima of a Q4_K or Q5_K block from its 12 packed bytes; scale i goes
 * to out[i * step]. */
QUANTS_INLINE void bits_k_scales(const uint8_t *p, uint8_t *scale, uint8_t *min, int step)
{
    for (int i = 0; i < 4; i++) {
        scale[i * step] = p[i] & 63;
        min[i * step] = p[4 + i] & 63;
        scale[(i + 4) * step] = (uint8_t)((p[8 + i] & 15) | (p[i] >> 6) << 4);
        min[(i + 4) * step] = (uint8_t)((p[8 + i] >> 4) | (p[4 + i] >> 6) << 4);
    }
}

/* The signed scales of a Q3_K block from its 12 packed bytes. */
QUANTS_INLINE void bits_q3_k_scales(const uint8_t *p, int8_t scale[16])
{
    for (int i = 0; i < 16; i++) {
        const int low = p[i % 8] >> i / 8 * 4 & 15, high = p[8 + i % 4] >> i / 4 * 2 & 3;
        scale[i] = (int8_t)((low | high << 4) - 32);
    }
}

/* Of an IQ4_XS block: eight bit pairs and eight nibbles. */
QUANTS_INLINE void bits_iq4_xs_scales(const uint8_t *block, int8_t scale[8])
{
    for (int i = 0; i < 8; i++) {
        const int low = block[4 + i / 2] >> i % 2 * 4 & 15,
                  high = block[2 + i / 4] >> i % 4 * 2 & 3;
        scale[i] = (int8_t)((low | high << 4) - 32);
    }
}

/* Where the digit of element i of a TQ1_0 block is: bytes of five digits: 32, then 16; four of four
 * digits. Digit n is the integer part of three times the fraction that 3^n times the byte leaves.
 */
QUANTS_INLINE int bits_tq1_at(int i, uint32_t *power)
{
    const int from = i < 160 ? 0 : i < 240 ? 160 : 240, in = i - from;
    const int width = i < 160 ? 32 : i < 240 ? 16 : 4, at = i < 160 ? 0 : i < 240 ? 32 : 48;
    const int n = in / width;
    *power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
    return at + in % width;
}
QUANTS_INLINE uint32_t bits_tq1_digit(uint8_t byte, uint32_t power)
{
    return (byte * power & 255) * 3 >> 8;
}

#endif
