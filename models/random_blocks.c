/*
 * random_blocks.c - weights drawn directly in quantised form, at about the speed of memory: the
 * quants are raw random bits, uniform over their range, and the scales are chosen so that a weight
 * has mean 0 and the wanted standard deviation. Layouts as in the gguf package (gguf.quants).
 */
#include "models/models.h"

#include <math.h>
#include <string.h>

enum { NORMALS = 4096 }; /* entries of the table that float types are drawn from */

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void fill_bits(uint64_t *state, uint8_t *p, size_t n)
{
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t r = next(state);
        memcpy(p, &r, 8);
    }
    uint64_t r = next(state);
    memcpy(p, &r, n);
}

static void put_f16(uint8_t *p, double v)
{
    uint16_t h = f32_to_f16((float)v);
    memcpy(p, &h, sizeof h);
}

/* A factor from 0.75 to 1.25: scales differ from block to block as real ones do. */
static double vary(uint64_t *state)
{
    return 0.75 + (double)(next(state) >> 11) * 0x1p-54;
}

/* For formats whose quants lean to one side by half a step, so that the mean of many is 0. */
static double vary_signed(uint64_t *state)
{
    double v = vary(state);
    return next(state) & 1 ? -v : v;
}

/* Standard deviation of an integer that is uniform over n values. */
static double uniform_deviation(int n)
{
    return sqrt(((double)n * n - 1) / 12);
}

/* d and m in front, 2^bits levels: Q4_0, Q5_0 without m, Q4_1, Q5_1 with. */
static void fill_simple(uint8_t *block, int bits, bool has_min, double deviation, uint64_t *state)
{
    int levels = 1 << bits;
    double d = deviation / uniform_deviation(levels);
    d *= has_min ? vary(state) : vary_signed(state);
    put_f16(block, d);
    if (has_min)
        put_f16(block + 2, -d * (levels - 1) / 2);
    size_t head = has_min ? 4 : 2;
    fill_bits(state, block + head, (size_t)bits * 32 / 8); /* high bits and nibbles alike */
}

static void fill_q8_0(uint8_t *block, double deviation, uint64_t *state)
{
    put_f16(block, deviation / uniform_deviation(255) * vary(state));
    fill_bits(state, block + 2, 32);
    for (int i = 2; i < 34; i++)
        block[i] = block[i] == 0x80 ? 0x81 : block[i]; /* quantisers never write -128 */
}

/* Q4_K, Q5_K: d, dmin, 12 bytes of eight 6-bit scales and mins, quants. With mins equal to the
 * scales and dmin = d (levels - 1) / 2 the mean is 0. */
static void fill_k(uint8_t *block, int bits, double deviation, uint64_t *state)
{
    int levels = 1 << bits;
    double d = deviation / (uniform_deviation(levels) * 40) * vary(state);
    put_f16(block, d);
    put_f16(block + 2, d * (levels - 1) / 2);
    uint8_t scale[8], *packed = block + 4;
    uint64_t r = next(state);
    for (int i = 0; i < 8; i++, r >>= 8)
        scale[i] = (uint8_t)(24 + (r & 31)); /* about 40 */
    for (int i = 0; i < 4; i++) {
        uint8_t high = (uint8_t)(scale[i + 4] >> 4), low = scale[i + 4] & 15;
        packed[i] = packed[i + 4] = (uint8_t)(scale[i] | high << 6);
        packed[i + 8] = (uint8_t)(low | low << 4);
    }
    fill_bits(state, block + 16, (size_t)bits * 256 / 8);
}

/* sixteen bytes of 4-bit scales and mins, quants, d, dmin: mean 0 as above. */
static void fill_q2_k(uint8_t *block, double deviation, uint64_t *state)
{
    fill_bits(state, block, 16 + 64);
    for (int i = 0; i < 16; i++) {
        int s = 8 | (block[i] & 7); /* 8 to 15 */
        block[i] = (uint8_t)(s | s << 4);
    }
    double d = deviation / (uniform_deviation(4) * 11.7) * vary(state);
    put_f16(block + 80, d);
    put_f16(block + 82, d * 3 / 2);
}

/* Third bits, pairs of bits, sixteen 6-bit scales that hold 32 more, d. */
static void fill_q3_k(uint8_t *block, double deviation, uint64_t *state)
{
    fill_bits(state, block, 32 + 64 + 12);
    for (int i = 0; i < 4; i++) { /* the upper two bits: 0 or 3, that is -32 to -17 or 16 to 31 */
        uint8_t *high = block + 96 + 8 + i;
        *high = (uint8_t)((*high & 0x55) * 3);
    }
    put_f16(block + 108, deviation / (uniform_deviation(8) * 24.5) * vary(state));
}

/* Nibbles that number 16 values, their root mean square 67.4. */
static void fill_iq4_nl(uint8_t *block, double deviation, uint64_t *state)
{
    put_f16(block, deviation / 67.4 * vary_signed(state));
    fill_bits(state, block + 2, 16);
}

/* d, eight 6-bit scales as those of Q3_K, quants as those of IQ4_NL. */
static void fill_iq4_xs(uint8_t *block, double deviation, uint64_t *state)
{
    put_f16(block, deviation / (67.4 * 24.5) * vary(state));
    fill_bits(state, block + 2, 2 + 4 + 128);
    for (int i = 2; i < 4; i++)
        block[i] = (uint8_t)((block[i] & 0x55) * 3);
}

/* A power of two and nibbles that number 16 values, their root mean square 5.85. Of the powers
 * around the wanted scale each is as frequent as gives the mean square. */
static void fill_mxfp4(uint8_t *block, double deviation, uint64_t *state)
{
    int exponent;
    double part = frexp(deviation / 5.85, &exponent) * 2; /* 1 to 2, times 2^(exponent - 1) */
    bool upper = (double)(next(state) >> 11) * 0x1p-53 < (part * part - 1) / 3;
    block[0] = (uint8_t)(exponent - 1 + upper + 128);
    fill_bits(state, block + 1, 16);
}

/* Codebooks: every index and sign is as good as another; `rms` is of the values of all words. The
 * scales of 16 or 32 elements are random, too: 2 s + 1 of n steps. */
static void fill_codes(uint8_t *block, size_t bytes, double rms, int n, double deviation,
                       uint64_t *state)
{
    const double steps = sqrt((4.0 * n * n - 1) / 3); /* root mean square of 1, 3 .. 2 n - 1 */
    fill_bits(state, block, bytes);
    put_f16(block, deviation / (rms * steps) * vary_signed(state));
}

/* The same, whose d is the upper nibbles of four words at the end. */
static void fill_iq1_m(uint8_t *block, double deviation, uint64_t *state)
{
    uint8_t d[2];
    fill_bits(state, block, 56);
    put_f16(d, deviation / (6.25 / 8 * 9.22) * vary_signed(state));
    for (int i = 0; i < 4; i++) {
        uint8_t *top = block + 49 + 2 * i;
        *top = (uint8_t)((*top & 15) | (d[i / 2] >> i % 2 * 4 & 15) << 4);
    }
}

/* Digits, then d. A byte's five digits are nearly uniform; of pairs of bits 3 becomes 2. */
static void fill_ternary(uint8_t *block, size_t bytes, bool pairs, double deviation,
                         uint64_t *state)
{
    fill_bits(state, block, bytes - 2);
    for (size_t i = 0; pairs && i < bytes - 2; i++)
        block[i] = (uint8_t)(block[i] & ~(block[i] >> 1 & 0x55));
    put_f16(block + bytes - 2, deviation / (pairs ? 0.866 : 0.816) * vary_signed(state));
}

/* Scales in e4m3, three bits of mantissa, nibbles as MXFP4's: what lies outside of the scales is
 * cut off. */
static void fill_nvfp4(uint8_t *block, double deviation, uint64_t *state)
{
    fill_bits(state, block, 36);
    for (int i = 0; i < 4; i++) {
        int exponent;
        const double wanted = deviation / 5.85 * 2 * vary(state);
        const double part = frexp(wanted, &exponent); /* 0.5 to 1 */
        const double dither = (double)(next(state) >> 11) * 0x1p-53;
        const int e = exponent + 6, m = (int)(part * 16) - 8;
        block[i] = e < 1    ? (uint8_t)(wanted * 512 + dither) /* steps of 2^-9 */
                   : e > 14 ? 14 << 3
                            : (uint8_t)(e << 3 | m);
    }
}

/* ql, qh, sixteen int8 scales, d. */
static void fill_q6_k(uint8_t *block, double deviation, uint64_t *state)
{
    fill_bits(state, block, 128 + 64 + 16);
    for (int i = 0; i < 16; i++) {
        int s = 64 + (block[192 + i] & 63); /* 64 to 127, about 96 */
        block[192 + i] = (uint8_t)(block[192 + i] & 64 ? -s : s);
    }
    put_f16(block + 208, deviation / (uniform_deviation(64) * 97) * vary(state));
}

static void fill_floats(oato_dtype dtype, uint8_t *out, size_t n, double mean, double deviation,
                        uint64_t *state)
{
    float wide[NORMALS];
    uint16_t narrow[NORMALS];
    for (int i = 0; i < NORMALS; i += 2) {
        double sum = -6; /* twelve uniform numbers: close to normal */
        for (int j = 0; j < 12; j++)
            sum += (double)(next(state) >> 11) * 0x1p-53;
        wide[i] = (float)(mean + deviation * sum);
        wide[i + 1] = (float)(mean - deviation * sum); /* so that the mean is exact */
    }
    for (int i = 0; i < NORMALS; i++)
        narrow[i] = dtype == DT_F16 ? f32_to_f16(wide[i]) : f32_to_bf16(wide[i]);
    uint64_t r = 0;
    for (size_t i = 0; i < n; i++, r >>= 12) {
        if (i % 5 == 0)
            r = next(state);
        if (dtype == DT_F32)
            memcpy(out + 4 * i, &wide[r % NORMALS], 4);
        else
            memcpy(out + 2 * i, &narrow[r % NORMALS], 2);
    }
}

void random_blocks_fill(oato_dtype dtype, void *data, size_t bytes, double mean, double deviation,
                        uint64_t seed)
{
    const struct dtype_info *info = dtype_info((int)dtype);
    size_t block = (size_t)info->block_bytes;
    uint64_t state = seed;
    uint8_t *p = data;
    if (info->block_elems == 1) {
        fill_floats(dtype, p, bytes / block, mean, deviation, &state);
        return;
    }
    for (uint8_t *end = p + bytes; p < end; p += block) {
        switch (dtype) {
        case DT_Q4_0: fill_simple(p, 4, false, deviation, &state); break;
        case DT_Q4_1: fill_simple(p, 4, true, deviation, &state); break;
        case DT_Q5_0: fill_simple(p, 5, false, deviation, &state); break;
        case DT_Q5_1: fill_simple(p, 5, true, deviation, &state); break;
        case DT_Q8_0: fill_q8_0(p, deviation, &state); break;
        case DT_Q4_K: fill_k(p, 4, deviation, &state); break;
        case DT_Q5_K: fill_k(p, 5, deviation, &state); break;
        case DT_Q6_K: fill_q6_k(p, deviation, &state); break;
        case DT_Q2_K: fill_q2_k(p, deviation, &state); break;
        case DT_Q3_K: fill_q3_k(p, deviation, &state); break;
        case DT_IQ4_NL: fill_iq4_nl(p, deviation, &state); break;
        case DT_IQ4_XS: fill_iq4_xs(p, deviation, &state); break;
        case DT_MXFP4: fill_mxfp4(p, deviation, &state); break;
        case DT_IQ1_S: fill_codes(p, block, 6.25 / 8, 8, deviation, &state); break;
        case DT_IQ1_M: fill_iq1_m(p, deviation, &state); break;
        case DT_IQ2_XXS: fill_codes(p, block, 23.1 / 8, 16, deviation, &state); break;
        case DT_IQ2_XS: fill_codes(p, block, 24.2 / 8, 16, deviation, &state); break;
        case DT_IQ2_S: fill_codes(p, block, 24.4 / 8, 16, deviation, &state); break;
        case DT_IQ3_XXS: fill_codes(p, block, 30.8 / 4, 16, deviation, &state); break;
        case DT_IQ3_S: fill_codes(p, block, 7.59, 16, deviation, &state); break;
        case DT_TQ1_0: fill_ternary(p, block, false, deviation, &state); break;
        case DT_TQ2_0: fill_ternary(p, block, true, deviation, &state); break;
        case DT_NVFP4: fill_nvfp4(p, deviation, &state); break;
#define NO_BLOCK(type, ...) case DT_##type:
            FLOAT_TYPES(NO_BLOCK) OTHER_TYPES(NO_BLOCK) case DT_COUNT : break;
#undef NO_BLOCK
        }
    }
}
