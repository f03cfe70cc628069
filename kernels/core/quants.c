/*
 * quants.c - GGUF's block formats, as written down in the gguf package (gguf/quants.py): a row of
 * each type to float32. Plain C for any host; the tests compare every type with that package.
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

/* f16 d; 16 bytes: low nibbles are elements 0..15, high ones 16..31 */
static void row_Q4_0(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 32; b++, p += 18, out += 32) {
        float d = half_at(p);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)((p[2 + i] & 15) - 8);
            out[i + 16] = d * (float)((p[2 + i] >> 4) - 8);
        }
    }
}

/* f16 d, f16 m; nibbles as Q4_0 */
static void row_Q4_1(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 32; b++, p += 20, out += 32) {
        float d = half_at(p), m = half_at(p + 2);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)(p[4 + i] & 15) + m;
            out[i + 16] = d * (float)(p[4 + i] >> 4) + m;
        }
    }
}

/* The 32 fifth bits of a block stand together in front of the nibbles. */
static void row_q5(const uint8_t *p, int64_t k, float *out, bool has_min)
{
    int head = has_min ? 4 : 2;
    for (int64_t b = 0; b < k / 32; b++, p += head + 20, out += 32) {
        float d = half_at(p), m = has_min ? half_at(p + 2) : 0;
        int offset = has_min ? 0 : 16;
        uint32_t high;
        memcpy(&high, p + head, sizeof high);
        const uint8_t *q = p + head + 4;
        for (int i = 0; i < 16; i++) {
            int lo = (q[i] & 15) | (int)(high >> i & 1) << 4;
            int hi = (q[i] >> 4) | (int)(high >> (i + 16) & 1) << 4;
            out[i] = d * (float)(lo - offset) + m;
            out[i + 16] = d * (float)(hi - offset) + m;
        }
    }
}

static void row_Q5_0(const uint8_t *p, int64_t k, float *out)
{
    row_q5(p, k, out, false);
}

static void row_Q5_1(const uint8_t *p, int64_t k, float *out)
{
    row_q5(p, k, out, true);
}

static void row_Q8_0(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 32; b++, p += 34, out += 32) {
        float d = half_at(p);
        for (int i = 0; i < 32; i++)
            out[i] = d * (float)(int8_t)p[2 + i];
    }
}

void quants_k_scales(const uint8_t *p, uint8_t scale[8], uint8_t min[8])
{
    bits_k_scales(p, scale, min, 1);
}

/* f16 d, dmin; 12 bytes of scales; Q5: 32 bytes of fifth bits; 128 bytes: sub-blocks 2i and 2i + 1
 * are the low and high nibbles of the i-th 32 bytes */
static void row_k45(const uint8_t *p, int64_t k, float *out, bool five)
{
    for (int64_t b = 0; b < k / 256; b++, p += five ? 176 : 144, out += 256) {
        float d = half_at(p), dmin = half_at(p + 2);
        uint8_t scale[8], min[8];
        quants_k_scales(p + 4, scale, min);
        const uint8_t *high = p + 16, *q = five ? p + 48 : p + 16;
        for (int s = 0; s < 8; s++) {
            float ds = d * (float)scale[s], ms = dmin * (float)min[s];
            for (int i = 0; i < 32; i++) {
                int v = q[s / 2 * 32 + i] >> s % 2 * 4 & 15;
                if (five)
                    v |= (high[i] >> s & 1) << 4;
                out[s * 32 + i] = ds * (float)v - ms;
            }
        }
    }
}

static void row_Q4_K(const uint8_t *p, int64_t k, float *out)
{
    row_k45(p, k, out, false);
}

static void row_Q5_K(const uint8_t *p, int64_t k, float *out)
{
    row_k45(p, k, out, true);
}

int quants_q6_k_value(const uint8_t *block, int i)
{
    int half = i / 128, j = i % 128;
    int low = block[half * 64 + j % 64] >> j / 64 * 4 & 15;
    int high = block[128 + half * 32 + j % 32] >> j / 32 * 2 & 3;
    return (low | high << 4) - 32;
}

/* 128 bytes of low nibbles, 64 of high bit pairs, 16 int8 scales of 16 elements, f16 d */
static void row_Q6_K(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 256; b++, p += 210, out += 256) {
        float d = half_at(p + 208);
        for (int s = 0; s < 16; s++) {
            float ds = d * (float)(int8_t)p[192 + s];
            for (int i = s * 16; i < s * 16 + 16; i++)
                out[i] = ds * (float)quants_q6_k_value(p, i);
        }
    }
}

static void row_of_values(const uint8_t *q, float d, const int8_t values[16], float *out)
{
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)values[q[i] & 15];
        out[i + 16] = d * (float)values[q[i] >> 4];
    }
}

/* f16 d; nibbles as Q4_0, each the number of a value */
static void row_IQ4_NL(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 32; b++, p += 18, out += 32)
        row_of_values(p + 2, half_at(p), quants_iq4_values, out);
}

/* e8m0 d, that is 2^(byte - 128); nibbles as IQ4_NL: the values are twice those of e2m1 */
static void row_MXFP4(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 32; b++, p += 17, out += 32)
        row_of_values(p + 1, ldexpf(1, p[0] - 128), quants_mxfp4_values, out);
}

void quants_iq4_xs_scales(const uint8_t *block, int8_t scale[8])
{
    bits_iq4_xs_scales(block, scale);
}

/* f16 d; eight bit pairs and eight nibbles of scales; sub-blocks of 32 as IQ4_NL */
static void row_IQ4_XS(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 256; b++, p += 136) {
        int8_t scale[8];
        quants_iq4_xs_scales(p, scale);
        for (int s = 0; s < 8; s++, out += 32)
            row_of_values(p + 8 + 16 * s, half_at(p) * (float)scale[s], quants_iq4_values, out);
    }
}

/* Element i of 256 pairs of bits: 32 bytes hold elements j, j + 32, j + 64 and j + 96 of 128. */
static int pair_of_bits(const uint8_t *q, int i)
{
    return q[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

int quants_q2_k_value(const uint8_t *block, int i)
{
    return pair_of_bits(block + 16, i);
}

/* 16 bytes: low nibble the scale, high one the minimum of 16 elements; 64 bytes; f16 d, dmin */
static void row_Q2_K(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 256; b++, p += 84, out += 256) {
        float d = half_at(p + 80), dmin = half_at(p + 82);
        for (int s = 0; s < 16; s++) {
            float ds = d * (float)(p[s] & 15), ms = dmin * (float)(p[s] >> 4);
            for (int i = s * 16; i < s * 16 + 16; i++)
                out[i] = ds * (float)quants_q2_k_value(p, i) - ms;
        }
    }
}

void quants_q3_k_scales(const uint8_t *block, int8_t scale[16])
{
    bits_q3_k_scales(block + 96, scale);
}

int quants_q3_k_value(const uint8_t *block, int i)
{
    return pair_of_bits(block + 32, i) + (block[i % 32] >> i / 32 & 1) * 4 - 4;
}

/* 32 bytes of third bits; 64 bytes of pairs; 12 bytes of scales of 16 elements; f16 d */
static void row_Q3_K(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 256; b++, p += 110, out += 256) {
        int8_t scale[16];
        quants_q3_k_scales(p, scale);
        for (int s = 0; s < 16; s++) {
            float ds = half_at(p + 108) * (float)scale[s];
            for (int i = s * 16; i < s * 16 + 16; i++)
                out[i] = ds * (float)quants_q3_k_value(p, i);
        }
    }
}

int quants_tq1_value(const uint8_t *block, int i)
{
    uint32_t power;
    const int at = bits_tq1_at(i, &power);
    return (int)bits_tq1_digit(block[at], power);
}

int quants_tq2_value(const uint8_t *block, int i)
{
    return pair_of_bits(block, i);
}

/* 48 bytes of five digits, four of four, f16 d */
static void row_TQ1_0(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 256; b++, p += 54, out += 256)
        for (int i = 0; i < 256; i++)
            out[i] = half_at(p + 52) * (float)(quants_tq1_value(p, i) - 1);
}

/* 64 bytes of pairs, f16 d */
static void row_TQ2_0(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 256; b++, p += 66, out += 256)
        for (int i = 0; i < 256; i++)
            out[i] = half_at(p + 64) * (float)(quants_tq2_value(p, i) - 1);
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
static void row_NVFP4(const uint8_t *p, int64_t k, float *out)
{
    for (int64_t b = 0; b < k / 64; b++, p += 36) {
        for (int s = 0; s < 4; s++, out += 16) {
            const float d = half_ue4m3(p[s]);
            const uint8_t *q = p + 4 + 8 * s;
            for (int i = 0; i < 8; i++) {
                out[i] = d * (float)quants_mxfp4_values[q[i] & 15];
                out[i + 8] = d * (float)quants_mxfp4_values[q[i] >> 4];
            }
        }
    }
}

static void codes_row(oato_dtype dtype, const uint8_t *p, int64_t k, float *out)
{
    const int64_t bytes = dtype_info((int)dtype)->block_bytes;
    struct quants_codes c;
    for (int64_t b = 0; b < k / 256; b++, p += bytes, out += 256) {
        quants_codes_read(dtype, p, &c);
        quants_codes_row(dtype, &c, out);
    }
}

#define CODES_ROW(type)                                                                            \
    static void row_##type(const uint8_t *p, int64_t k, float *out)                                \
    {                                                                                              \
        codes_row(DT_##type, p, k, out);                                                           \
    }
CODES_ROW(IQ1_S)
CODES_ROW(IQ1_M)
CODES_ROW(IQ2_XXS)
CODES_ROW(IQ2_XS)
CODES_ROW(IQ2_S)
CODES_ROW(IQ3_XXS)
CODES_ROW(IQ3_S)
#undef CODES_ROW

#define ROW(type, ...) [DT_##type] = row_##type,
static void (*const row_of[DT_COUNT])(const uint8_t *p, int64_t k,
                                      float *out) = {WEIGHT_TYPES(ROW)};
#undef ROW

/* ------------------------------------------------------------------------------- integers - */

/* Elements of 32 whose low nibbles come first. */
static int nibble_at(const uint8_t *q, int i)
{
    return q[i % 16] >> i / 16 * 4 & 15;
}

/* Types of blocks of 32. */
static void integers_32(oato_dtype dtype, const uint8_t *p, int8_t q[32], float *scale, float *min)
{
    const bool mins = dtype == DT_Q4_1 || dtype == DT_Q5_1,
               fifth = dtype == DT_Q5_0 || dtype == DT_Q5_1;
    const int head = dtype == DT_MXFP4 ? 1 : mins ? 4 : 2;
    const int offset = dtype == DT_Q4_0 ? 8 : dtype == DT_Q5_0 ? 16 : 0;
    const int8_t *values = dtype == DT_IQ4_NL  ? quants_iq4_values
                           : dtype == DT_MXFP4 ? quants_mxfp4_values
                                               : NULL;
    uint32_t high = 0;
    *scale = dtype == DT_MXFP4 ? ldexpf(1, p[0] - 128) : half_at(p);
    if (mins)
        *min = half_at(p + 2);
    p += head;
    if (fifth) {
        memcpy(&high, p, sizeof high);
        p += sizeof high;
    }
    for (int i = 0; i < 32; i++) {
        const int x = nibble_at(p, i);
        q[i] = (int8_t)(values ? values[x] : (x | (int)(high >> i & 1) << 4) - offset);
    }
}

static void integers_k45(bool five, const uint8_t *p, int sub, int8_t q[32], float *scale,
                         float *min)
{
    uint8_t scales[8], mins[8];
    quants_k_scales(p + 4, scales, mins);
    *scale = half_at(p) * (float)scales[sub];
    *min = -(half_at(p + 2) * (float)mins[sub]);
    const uint8_t *low = (five ? p + 48 : p + 16) + sub / 2 * 32;
    for (int i = 0; i < 32; i++)
        q[i] = (int8_t)((low[i] >> sub % 2 * 4 & 15) | (five ? (p[16 + i] >> sub & 1) << 4 : 0));
}

/* Other types of blocks of 256 and 64. */
static void integers_small(oato_dtype dtype, const uint8_t *p, int sub, int8_t q[32], float *scale,
                           float *min)
{
    int8_t scales[16];
    if (dtype == DT_Q6_K) {
        *scale = half_at(p + 208) * (float)(int8_t)p[192 + sub];
        for (int i = 0; i < 16; i++)
            q[i] = (int8_t)quants_q6_k_value(p, 16 * sub + i);
    } else if (dtype == DT_Q2_K) {
        *scale = half_at(p + 80) * (float)(p[sub] & 15);
        *min = -(half_at(p + 82) * (float)(p[sub] >> 4));
        for (int i = 0; i < 16; i++)
            q[i] = (int8_t)quants_q2_k_value(p, 16 * sub + i);
    } else if (dtype == DT_Q3_K) {
        quants_q3_k_scales(p, scales);
        *scale = half_at(p + 108) * (float)scales[sub];
        for (int i = 0; i < 16; i++)
            q[i] = (int8_t)quants_q3_k_value(p, 16 * sub + i);
    } else if (dtype == DT_IQ4_XS) {
        quants_iq4_xs_scales(p, scales);
        *scale = half_at(p) * (float)scales[sub];
        for (int i = 0; i < 32; i++)
            q[i] = quants_iq4_values[nibble_at(p + 8 + 16 * sub, i)];
    } else if (dtype == DT_NVFP4) {
        *scale = half_ue4m3(p[sub]);
        for (int i = 0; i < 16; i++)
            q[i] = quants_mxfp4_values[p[4 + 8 * sub + i % 8] >> i / 8 * 4 & 15];
    } else {
        const int from = sub % 8 * 32; /* of 256 */
        *scale = half_at(p + (dtype == DT_TQ1_0 ? 52 : 64));
        for (int i = from; i < from + 32; i++)
            q[i - from] =
                (int8_t)((dtype == DT_TQ1_0 ? quants_tq1_value(p, i) : quants_tq2_value(p, i)) - 1);
    }
}

static void integers_codes(oato_dtype dtype, const uint8_t *p, int sub, int8_t q[32], float *scale)
{
    const int n = columns_form_of(dtype)->block;
    struct quants_codes c;
    quants_codes_read(dtype, p, &c);
    quants_codes_integers(dtype, &c, n * sub, n, q, scale);
}

void quants_integers(oato_dtype dtype, const uint8_t *block, int sub, int8_t q[32], float *scale,
                     float *min)
{
    switch ((int)dtype) {
    case DT_Q4_0:
    case DT_Q4_1:
    case DT_Q5_0:
    case DT_Q5_1:
    case DT_IQ4_NL:
    case DT_MXFP4: integers_32(dtype, block, q, scale, min); break;
    case DT_Q8_0:
        *scale = half_at(block);
        memcpy(q, block + 2, 32);
        break;
    case DT_Q4_K: integers_k45(false, block, sub, q, scale, min); break;
    case DT_Q5_K: integers_k45(true, block, sub, q, scale, min); break;
    case DT_IQ1_S:
    case DT_IQ1_M:
    case DT_IQ2_XXS:
    case DT_IQ2_XS:
    case DT_IQ2_S:
    case DT_IQ3_XXS:
    case DT_IQ3_S: integers_codes(dtype, block, sub, q, scale); break;
    default: integers_small(dtype, block, sub, q, scale, min);
    }
}

bool quants_known(oato_dtype dtype)
{
    return (int)dtype >= 0 && dtype < DT_COUNT && row_of[dtype];
}

void quants_row(oato_dtype dtype, const uint8_t *row, int64_t k, float *out)
{
    row_of[dtype](row, k, out);
}
