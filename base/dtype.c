/*
 * dtype.c - the element types of GGUF as a table, and the two 16-bit float formats.
 */
#include "base/base.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#define ROW(name, number, elems, bytes) [number] = {#name, elems, bytes},
static const struct dtype_info table[DT_COUNT] = {WEIGHT_TYPES(ROW) OTHER_TYPES(ROW)};
#undef ROW

const struct dtype_info *dtype_info(int dtype)
{
    if (dtype < 0 || dtype >= DT_COUNT || !table[dtype].name)
        return NULL;
    return &table[dtype];
}

const char *dtype_name(oato_dtype dtype)
{
    const struct dtype_info *d = dtype_info((int)dtype);
    return d ? d->name : "?";
}

bool dtype_parse(const char *name, oato_dtype *out)
{
    for (int i = 0; i < DT_COUNT; i++) {
        if (table[i].name && !strcmp(table[i].name, name)) {
            *out = (oato_dtype)i;
            return true;
        }
    }
    return false;
}

bool dtype_parse_kv(const char *name, oato_dtype *out)
{
    static const oato_dtype types[] = {DT_F16, DT_Q8_0, DT_F32};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        if (!strcasecmp(name, dtype_name(types[i]))) {
            *out = types[i];
            return true;
        }
    }
    return false;
}

bool dtype_is_weight(oato_dtype dtype)
{
    return dtype_info((int)dtype) && (dtype < DT_I8 || dtype > DT_F64);
}

bool dtype_row_bytes(oato_dtype dtype, int64_t k, size_t *out)
{
    const struct dtype_info *d = dtype_info((int)dtype);
    if (!d || k < 0 || k % d->block_elems)
        return false;
    return size_mul((size_t)(k / d->block_elems), (size_t)d->block_bytes, out);
}

static float f32_from_bits(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static uint32_t f32_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31)
        return f32_from_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent)
        return f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    float tiny = (float)mantissa * 0x1p-24f; /* subnormal or zero, exact */
    return sign ? -tiny : tiny;
}

uint16_t f32_to_f16(float f)
{
    uint32_t u = f32_bits(f);
    uint16_t sign = (uint16_t)(u >> 16 & 0x8000);
    u &= 0x7fffffff;
    if (u > 0x7f800000)
        return sign | 0x7e00;
    if (u >= 0x477ff000) /* rounds to 65536 or more */
        return sign | 0x7c00;
    if (u < 0x38800000) { /* below 2^-14: let float addition round to multiples of 2^-24 */
        float r = f32_from_bits(u) + 0.5f;
        return sign | (uint16_t)(f32_bits(r) - 0x3f000000);
    }
    u += 0xfff + (u >> 13 & 1);
    return sign | (uint16_t)((u - 0x38000000) >> 13);
}

uint16_t f32_to_finite_f16(float f)
{
    const uint16_t h = f32_to_f16(f);
    return (h & 0x7fff) == 0x7c00 && fabsf(f) <= FLT_MAX ? h - 1 : h;
}

float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}

uint16_t f32_to_bf16(float f)
{
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
