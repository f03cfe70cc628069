/*
 * quants.c - GGUF's block formats, as written down in the gguf package (gguf/quants.py): each type
 * as integers with scales, and so as float32. Plain C for any host; the tests compare every type
 * with that package.
 *
 * Products with the block scale are rounded once, sums with the minimum once more, in the order of
 * the definition, so that every user of a weight sees the same float32 value.
 */
#include "kernels/core/core_internal.h"
#include "kernels/core/quants_bits.h"

#include <math.h>
#include <string.h>

const int8_t quants_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                      1,    13,   25,  38,  53,  69,  89,  113};
const int8_t quants_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static float half_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, sizeof h);
    return f16_to_f32(h);
}

/* ------------------------------------------------------------------------------- blocks --- */

/* A function for each type of blocks: the `n` integers of part `sub` of the block at p, which share
 * a scale, the scale and, where the type has them, the minimum. */
#define PART(type, n)                                                                              \
    enum { PART_##type = (n) };                                                                    \
    static inline void part_##type(const uint8_t *p, __attribute__((unused)) int sub, int8_t *q,   \
                                   float *scale, __attribute__((unused)) float *min)

/* 16 bytes: low nibbles are elements 0..15, high ones 16..31. */
static void nibbles(const uint8_t *p, int8_t q[32])
{
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)(p[i] & 15);
        q[i + 16] = (int8_t)(p[i] >> 4);
    }
}

/* 32 fifth bits, which stand together. */
static void fifth_bits(const uint8_t *p, int8_t q[32])
{
    uint32_t high;
    memcpy(&high, p, sizeof high);
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)(q[i] | (high >> i & 1) << 4);
}

static void subtract(int8_t q[32], int offset)
{
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)(q[i] - offset);
}

/* Nibbles that are the numbers of values. */
static void nibble_values(const int8_t values[16], const uint8_t *p, int8_t q[32])
{
    for (int i = 0; i < 16; i++) {
        q[i] = values[p[i] & 15];
        q[i + 16] = values[p[i] >> 4];
    }
}

/* f16 d; nibbles, 8 too much */
PART(Q4_0, 32)
{
    *scale = half_at(p);
    nibbles(p + 2, q);
    subtract(q, 8);
}

/* f16 d, f16 m; nibbles */
PART(Q4_1, 32)
{
    *scale = half_at(p);
    *min = half_at(p + 2);
    nibbles(p + 4, q);
}

/* f16 d; fifth bits; nibbles; 16 too much */
PART(Q5_0, 32)
{
    *scale = half_at(p);
    nibbles(p + 6, q);
    fifth_bits(p + 2, q);
    subtract(q, 16);
}

/* f16 d, f16 m; fifth bits; nibbles */
PART(Q5_1, 32)
{
    *scale = half_at(p);
    *min = half_at(p + 2);
    nibbles(p + 8, q);
    fifth_bits(p + 4, q);
}

PART(Q8_0, 32)
{
    *scale = half_at(p);
    memcpy(q, p + 2, 32);
}

/* f16 d; nibbles, each the number of a value */
PART(IQ4_NL, 32)
{
    *scale = half_at(p);
    nibble_values(quants_iq4_values, p + 2, q);
}

/* e8m0 d, that is 2^(byte - 128); nibbles as IQ4_NL: the values are twice those of e2m1 */
PART(MXFP4, 32)
{
    *scale = ldexpf(1, p[0] - 128);
    nibble_values(quants_mxfp4_values, p + 1, q);
}

/* f16 d, dmin; 12 bytes of scales; Q5_K: 32 bytes of fifth bits; 128 bytes: sub-blocks 2i and
 * 2i + 1 are the low and high nibbles of the i-th 32 bytes */
static void part_k45(bool five, const uint8_t *p, int sub, int8_t q[32], float *scale, float *min)
{
    uint8_t times, minus;
    bits_k_scale(p + 4, sub, &times, &minus);
    *scale = half_at(p) * (float)times;
    *min = -(half_at(p + 2) * (float)minus);
    const uint8_t *low = p + (five ? 48 : 16) + sub / 2 * 32;
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)((low[i] >> sub % 2 * 4 & 15) | (five ? (p[16 + i] >> sub & 1) << 4 : 0));
}

PART(Q4_K, 32)
{
    part_k45(false, p, sub, q, scale, min);
}

PART(Q5_K, 32)
{
    part_k45(true, p, sub, q, scale, min);
}

/* 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales of 16 elements, f16 d */
PART(Q6_K, 16)
{
    const int half = sub / 8, in = sub % 8 * 16; /* of 128 elements */
    const uint8_t *low = p + half * 64 + in % 64, *high = p + 128 + half * 32 + in % 32;
    *scale = half_at(p + 208) * (float)(int8_t)p[192 + sub];
    for (int i = 0; i < 16; i++)
        q[i] = (int8_t)(((low[i] >> in / 64 * 4 & 15) | (high[i] >> in / 32 * 2 & 3) << 4) - 32);
}

/* f16 d; eight bit pairs and eight nibbles of scales; sub-blocks of 32 as IQ4_NL */
PART(IQ4_XS, 32)
{
    *scale = half_at(p) * (float)bits_iq4_xs_scale(p, sub);
    nibble_values(quants_iq4_values, p + 8 + 16 * sub, q);
}

/* Elements [first, first + n) of 256 pairs of bits: 32 bytes hold elements j, j + 32, j + 64 and
 * j + 96 of 128. */
static void pairs_of_bits(const uint8_t *p, int first, int n, int8_t *q)
{
    p += first / 128 * 32 + first % 32;
    for (int i = 0; i < n; i++)
        q[i] = (int8_t)(p[i] >> first % 128 / 32 * 2 & 3);
}

/* 16 bytes: low nibble the scale, high one the minimum of 16 elements; 64 bytes; f16 d, dmin */
PART(Q2_K, 16)
{
    *scale = half_at(p + 80) * (float)(p[sub] & 15);
    *min = -(half_at(p + 82) * (float)(p[sub] >> 4));
    pairs_of_bits(p + 16, 16 * sub, 16, q);
}

/* 32 bytes of third bits; 64 bytes of pairs; 12 bytes of scales of 16 elements; f16 d */
PART(Q3_K, 16)
{
    *scale = half_at(p + 108) * (float)bits_q3_k_scale(p + 96, sub);
    pairs_of_bits(p + 32, 16 * sub, 16, q);
    for (int i = 0; i < 16; i++)
        q[i] = (int8_t)(q[i] + (p[sub % 2 * 16 + i] >> sub / 2 & 1) * 4 - 4);
}

/* 48 bytes of five digits, four of four, f16 d */
PART(TQ1_0, 32)
{
    *scale = half_at(p + 52);
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)(bits_tq1(p, 32 * sub + i) - 1);
}

/* 64 bytes of pairs, f16 d */
PART(TQ2_0, 32)
{
    *scale = half_at(p + 64);
    pairs_of_bits(p, 32 * sub, 32, q);
    subtract(q, 1);
}

/* Half of an unsigned e4m3: the top bit means nothing, and 0x7f is 0. */
static float half_ue4m3(uint8_t byte)
{
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    if (byte == 0x7f)
        return 0;
    return exponent ? ldexpf((float)(8 + mantissa), exponent - 11) : ldexpf((float)mantissa, -10);
}

/* four scales of 16 elements each; of 16 the low nibbles of eight bytes, then the high ones */
PART(NVFP4, 16)
{
    *scale = half_ue4m3(p[sub]);
    for (int i = 0; i < 16; i++)
        q[i] = quants_mxfp4_values[p[4 + 8 * sub + i % 8] >> i / 8 * 4 & 15];
}

/* Types with codebooks. */
#define CODES_PART(type, n)                                                                        \
    PART(type, n)                                                                                  \
    {                                                                                              \
        struct quants_codes c;                                                                     \
        quants_codes_read(DT_##type, p, &c);                                                       \
        quants_codes_integers(DT_##type, &c, PART_##type *sub, PART_##type, q, scale);             \
    }
CODES_PART(IQ1_S, 32)
CODES_PART(IQ1_M, 16)
CODES_PART(IQ2_XXS, 32)
CODES_PART(IQ2_XS, 16)
CODES_PART(IQ2_S, 16)
CODES_PART(IQ3_XXS, 32)
CODES_PART(IQ3_S, 32)
#undef CODES_PART
#undef PART

#define ROW(type, ...) [DT_##type] = part_##type,
static void (*const part_of[DT_COUNT])(const uint8_t *p, int sub, int8_t q[32], float *scale,
                                       float *min) = {BLOCK_TYPES(ROW)};
#undef ROW

void quants_integers(oato_dtype dtype, const uint8_t *block, int sub, int8_t q[32], float *scale,
                     float *min)
{
    part_of[dtype](block, sub, q, scale, min);
}

/* --------------------------------------------------------------------------------- rows --- */

static void row_F32(const uint8_t *p, int64_t k, float *out)
{
    memcpy(out, p, (size_t)k * sizeof *out);
}

static void row_F16(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t i = 0; i < k; i++)
        out[i] = half_at(p + 2 * i);
}

static void row_BF16(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t i = 0; i < k; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, sizeof h);
        out[i] = bf16_to_f32(h);
    }
}

/* Parts in order, by a function that the compiler knows. */
static inline __attribute__((always_inline)) void
row_of_parts(void (*part)(const uint8_t *p, int sub, int8_t *q, float *scale, float *min), int n,
             int elements, int bytes, bool has_min, const uint8_t *p, int64_t k,
             float *restrict out)
{
    for (int64_t b = 0; b < k / elements; b++, p += bytes)
        for (int sub = 0; sub < elements / n; sub++, out += n) {
            float scale, min = 0;
            int8_t q[32];
            part(p, sub, q, &scale, &min);
            for (int i = 0; i < n; i++)
                out[i] = has_min ? scale * (float)q[i] + min : scale * (float)q[i];
        }
}

/* A block with codes is read once for all its parts. */
static void row_of_codes(oato_dtype dtype, int n, int bytes, const uint8_t *p, int64_t k,
                         float *out)
{
    struct quants_codes c;
    for (int64_t b = 0; b < k / 256; b++, p += bytes) {
        quants_codes_read(dtype, p, &c);
        for (int at = 0; at < 256; at += n, out += n) {
            float scale;
            int8_t q[32];
            quants_codes_integers(dtype, &c, at, n, q, &scale);
            for (int i = 0; i < n; i++)
                out[i] = scale * (float)q[i];
        }
    }
}

#define ROW(type, number, elements, bytes)                                                         \
    static void row_##type(const uint8_t *p, int64_t k, float *out)                                \
    {                                                                                              \
        if (quants_has_codes(DT_##type))                                                           \
            row_of_codes(DT_##type, PART_##type, bytes, p, k, out);                                \
        else                                                                                       \
            row_of_parts(part_##type, PART_##type, elements, bytes,                                \
                         columns_form_of(DT_##type)->has_min, p, k, out);                          \
    }
BLOCK_TYPES(ROW)
#undef ROW
#define ROW(type, ...) [DT_##type] = row_##type,
static void (*const row_of[DT_COUNT])(const uint8_t *p, int64_t k,
                                      float *out) = {WEIGHT_TYPES(ROW)};
#undef ROW

bool quants_known(oato_dtype dtype)
{
    return (int)dtype >= 0 && dtype < DT_COUNT && row_of[dtype];
}

void quants_row(oato_dtype dtype, const uint8_t *row, int64_t k, float *out)
{
    row_of[dtype](row, k, out);
}
