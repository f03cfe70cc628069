/*
 * quants_codes.c - GGUF's types with codebooks: IQ1, IQ2, IQ3. A block of any of them is taken
 * apart to the same parts (struct quants_codes), which the rows of a GGUF and the layouts of
 * devices are made of.
 *
 * Every element is d * (2 s + 1) * factor * value: F16 times six bits and a power of two times at
 * most six bits, exact in float32 in any order. IQ1's value is eight times a digit -1, 0, 1 shifted
 * by an eighth up or down; the eighth is in the factor.
 */
#include "kernels/core/core_internal.h"

#include <string.h>

/* Three magnitudes, eight in steps; then their opposites. */
const int8_t quants_iq2_values[16] = {8, 25, 43, 0, 0, 0, 0, 0, -8, -25, -43};
const int8_t quants_iq3_xxs_values[16] = {4,  12,  20,  28,  36,  44,  52,  62,
                                          -4, -12, -20, -28, -36, -44, -52, -62};
const int8_t quants_iq3_s_values[16] = {1,  3,  5,  7,  9,  11,  13,  15,
                                        -1, -3, -5, -7, -9, -11, -13, -15};
const int8_t quants_iq1_values[16] = {-7, 1, 9, 0, 0, 0, 0, 0, -9, -1, 7};

static uint16_t u16_at(const uint8_t *p)
{
    uint16_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

static uint32_t u32_at(const uint8_t *p)
{
    uint32_t x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Seven signs are stored: their number, with the eighth, is even. */
static uint8_t eight_signs(uint32_t seven)
{
    seven &= 127;
    return (uint8_t)(seven | (uint32_t)__builtin_parity(seven) << 7);
}

static void scales_of_nibbles(const uint8_t *p, int elements, struct quants_codes *c)
{
    for (int i = 0; i < 16; i++) {
        const int s = i * 16 / elements;
        c->scale[i] = p[s / 2] >> s % 2 * 4 & 15;
    }
}

/* Four times seven signs and a scale of 32 elements each. */
static void signs_and_scales(const uint8_t *p, struct quants_codes *c)
{
    for (int b = 0; b < 8; b++) {
        const uint32_t x = u32_at(p + 4 * b);
        for (int g = 0; g < 4; g++)
            c->high[4 * b + g] = eight_signs(x >> 7 * g);
        c->scale[2 * b] = c->scale[2 * b + 1] = (uint8_t)(x >> 28);
    }
}

/* f16 d; of each 32 elements four indices, then signs and scale */
static void read_IQ2_XXS(const uint8_t *p, struct quants_codes *c)
{
    uint8_t second[32];
    for (int b = 0; b < 8; b++) {
        for (int g = 0; g < 4; g++)
            c->index[4 * b + g] = p[2 + 8 * b + g];
        memcpy(second + 4 * b, p + 2 + 8 * b + 4, 4);
    }
    signs_and_scales(second, c);
    c->d = u16_at(p);
}

/* f16 d; words of 9 bits of index, 7 signs; nibbles of scales of 16 elements */
static void read_IQ2_XS(const uint8_t *p, struct quants_codes *c)
{
    c->d = u16_at(p);
    for (int g = 0; g < 32; g++) {
        const uint16_t x = u16_at(p + 2 + 2 * g);
        c->index[g] = x & 511;
        c->high[g] = eight_signs(x >> 9);
    }
    scales_of_nibbles(p + 66, 16, c);
}

/* f16 d; bytes of indices, of signs; bits 8, 9 of four indices each; scales as IQ2_XS */
static void read_IQ2_S(const uint8_t *p, struct quants_codes *c)
{
    c->d = u16_at(p);
    for (int g = 0; g < 32; g++)
        c->index[g] = (uint16_t)(p[2 + g] | (p[66 + g / 4] >> g % 4 * 2 & 3) << 8);
    memcpy(c->high, p + 34, 32);
    scales_of_nibbles(p + 74, 16, c);
}

/* f16 d; bytes of indices; signs and scales */
static void read_IQ3_XXS(const uint8_t *p, struct quants_codes *c)
{
    c->d = u16_at(p);
    for (int g = 0; g < 64; g++)
        c->index[g] = p[2 + g];
    signs_and_scales(p + 66, c);
}

/* f16 d; bytes of indices; bit 8 of eight each; signs; nibbles of scales of 32 elements */
static void read_IQ3_S(const uint8_t *p, struct quants_codes *c)
{
    c->d = u16_at(p);
    for (int g = 0; g < 64; g++)
        c->index[g] = (uint16_t)(p[2 + g] | (p[66 + g / 8] >> g % 8 & 1) << 8);
    memcpy(c->high, p + 74, 32);
    scales_of_nibbles(p + 106, 32, c);
}

/* f16 d; bytes of indices; words: 3 more bits of four indices, scale, whether the shift is down */
static void read_IQ1_S(const uint8_t *p, struct quants_codes *c)
{
    c->d = u16_at(p);
    for (int b = 0; b < 8; b++) {
        const uint16_t x = u16_at(p + 34 + 2 * b);
        for (int g = 0; g < 4; g++) {
            c->index[4 * b + g] = (uint16_t)(p[2 + 4 * b + g] | (x >> 3 * g & 7) << 8);
            c->high[4 * b + g] = x >> 15 ? 0xff : 0;
        }
        c->scale[2 * b] = c->scale[2 * b + 1] = x >> 12 & 7;
    }
}

/* bytes of indices; nibbles: 3 more bits of one and its shift; four words of four scales of 16
 * elements, 3 bits each, whose upper nibbles are the f16 d */
static void read_IQ1_M(const uint8_t *p, struct quants_codes *c)
{
    c->d = 0;
    for (int w = 0; w < 4; w++)
        c->d = (uint16_t)(c->d | u16_at(p + 48 + 2 * w) >> 12 << 4 * w);
    for (int g = 0; g < 32; g++) {
        const int x = p[32 + g / 2] >> g % 2 * 4;
        c->index[g] = (uint16_t)(p[g] | (x & 7) << 8);
        c->high[g] = x & 8 ? 0xff : 0;
    }
    for (int s = 0; s < 16; s++)
        c->scale[s] = u16_at(p + 48 + s / 4 * 2) >> s % 4 * 3 & 7;
}

/* What the parts mean. */
static const struct codebook {
    void (*read)(const uint8_t *block, struct quants_codes *c);
    const uint16_t *grid;
    const int8_t *values;
    int32_t group; /* elements of a word */
    float factor;
} codebooks[DT_COUNT] = {
    [DT_IQ1_S] = {read_IQ1_S, quants_iq1_grid, quants_iq1_values, 8, 0.125f},
    [DT_IQ1_M] = {read_IQ1_M, quants_iq1_grid, quants_iq1_values, 8, 0.125f},
    [DT_IQ2_XXS] = {read_IQ2_XXS, quants_iq2_xxs_grid, quants_iq2_values, 8, 0.125f},
    [DT_IQ2_XS] = {read_IQ2_XS, quants_iq2_xs_grid, quants_iq2_values, 8, 0.125f},
    [DT_IQ2_S] = {read_IQ2_S, quants_iq2_s_grid, quants_iq2_values, 8, 0.125f},
    [DT_IQ3_XXS] = {read_IQ3_XXS, quants_iq3_xxs_grid, quants_iq3_xxs_values, 4, 0.25f},
    [DT_IQ3_S] = {read_IQ3_S, quants_iq3_s_grid, quants_iq3_s_values, 4, 1},
};

bool quants_has_codes(oato_dtype dtype)
{
    return codebooks[dtype].read;
}

void quants_codes_read(oato_dtype dtype, const uint8_t *block, struct quants_codes *c)
{
    codebooks[dtype].read(block, c);
}

static float scale_at(const struct codebook *b, const struct quants_codes *c, int i)
{
    const int sub = i / 16;
    return f16_to_f32(c->d) * b->factor * (float)(2 * c->scale[sub] + 1);
}

static int8_t value_at(const struct codebook *b, const struct quants_codes *c, int i)
{
    static const uint8_t bit_of_four[4] = {0, 8, 4, 12};
    const int in = i % b->group, word = b->grid[c->index[i / b->group]];
    const int code = b->group == 8 ? word >> 2 * in & 3 : word >> bit_of_four[in] & 7;
    return b->values[code | (c->high[i / 8] >> i % 8 & 1) << 3];
}

void quants_codes_integers(oato_dtype dtype, const struct quants_codes *c, int from, int n,
                           int8_t *q, float *scale)
{
    const struct codebook *b = &codebooks[dtype];
    *scale = scale_at(b, c, from);
    for (int i = 0; i < n; i++)
        q[i] = value_at(b, c, from + i);
}
