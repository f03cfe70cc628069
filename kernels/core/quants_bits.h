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

/* Scale and minimum i of eight, 6 bits each, of a Q4_K or Q5_K block from its 12 packed bytes. */
QUANTS_INLINE void bits_k_scale(const uint8_t *p, int i, uint8_t *scale, uint8_t *min)
{
    *scale = (uint8_t)(i < 4 ? p[i] & 63 : (p[i + 4] & 15) | (p[i - 4] >> 6) << 4);
    *min = (uint8_t)(i < 4 ? p[4 + i] & 63 : (p[i + 4] >> 4) | (p[i] >> 6) << 4);
}

/* Signed scale i of 16 of a Q3_K block from its 12 packed bytes. */
QUANTS_INLINE int8_t bits_q3_k_scale(const uint8_t *p, int i)
{
    const int low = p[i % 8] >> i / 8 * 4 & 15, high = p[8 + i % 4] >> i / 4 * 2 & 3;
    return (int8_t)((low | high << 4) - 32);
}

/* Signed scale i of 8 of an IQ4_XS block: bit pairs and nibbles. */
QUANTS_INLINE int8_t bits_iq4_xs_scale(const uint8_t *block, int i)
{
    const int low = block[4 + i / 2] >> i % 2 * 4 & 15, high = block[2 + i / 4] >> i % 4 * 2 & 3;
    return (int8_t)((low | high << 4) - 32);
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
QUANTS_INLINE uint8_t bits_tq1(const uint8_t *block, int i)
{
    uint32_t power;
    const int at = bits_tq1_at(i, &power);
    return (uint8_t)bits_tq1_digit(block[at], power);
}

#endif
