/*
 * numbers.c - elements of every type as floats, doubles and integers, and F16 and BF16 as the chip
 * rounds them: to the nearest, ties to even.
 */
#include "meta.h"

#include <math.h>
#include <string.h>

int type_bits(aclDataType type)
{
    switch ((int)type) {
    case ACL_INT4: return 4;
    case ACL_INT8:
    case ACL_UINT8:
    case ACL_BOOL: return 8;
    case ACL_FLOAT16:
    case ACL_BF16:
    case ACL_INT16:
    case ACL_UINT16: return 16;
    case ACL_FLOAT:
    case ACL_INT32:
    case ACL_UINT32: return 32;
    case ACL_INT64:
    case ACL_UINT64:
    case ACL_DOUBLE: return 64;
    default: return 0;
    }
}

const char *type_name(aclDataType type)
{
    switch ((int)type) {
    case ACL_FLOAT: return "FLOAT";
    case ACL_FLOAT16: return "FLOAT16";
    case ACL_BF16: return "BF16";
    case ACL_DOUBLE: return "DOUBLE";
    case ACL_INT4: return "INT4";
    case ACL_INT8: return "INT8";
    case ACL_INT16: return "INT16";
    case ACL_INT32: return "INT32";
    case ACL_INT64: return "INT64";
    case ACL_UINT8: return "UINT8";
    case ACL_UINT16: return "UINT16";
    case ACL_UINT32: return "UINT32";
    case ACL_UINT64: return "UINT64";
    case ACL_BOOL: return "BOOL";
    default: return "of no known type";
    }
}

/* A magnitude in a float format of `bits` of fraction and the given lowest exponent; the exponent's
 * bits begin right above the fraction's. */
static uint32_t round_to(double a, int fraction, int lowest)
{
    int e = a > 0 ? ilogb(a) : lowest;
    if (e < lowest)
        e = lowest;
    double units = rint(ldexp(a, fraction - e)); /* subnormal: below 1 << fraction */
    uint32_t one = UINT32_C(1) << fraction;
    return (uint32_t)(e - lowest) * one + (uint32_t)units;
}

uint16_t stand_to_f16(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    if (isnan(x))
        return 0x7e00;
    return (uint16_t)(sign | (a >= 65520 ? 0x7c00 : round_to(a, 10, -14)));
}

uint16_t stand_to_bf16(double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double a = fabs(x);
    if (isnan(x))
        return 0x7fc0;
    return (uint16_t)(sign | (a >= 0x1.ffp127 ? 0x7f80 : round_to(a, 7, -126)));
}

float stand_from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

float stand_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, e = h >> 10 & 31, m = h & 1023, bits;
    float f;
    if (e == 31) {
        bits = sign | 0x7f800000 | m << 13;
    } else if (e) {
        bits = sign | (e + 112) << 23 | m << 13;
    } else {
        f = (float)m * 0x1p-24f;
        return sign ? -f : f;
    }
    memcpy(&f, &bits, sizeof f);
    return f;
}

aclFloat16 aclFloatToFloat16(float value)
{
    if (isnan(value) || fabsf(value) > 65504)
        return signbit(value) && !isnan(value) ? 0xfbff : 0x7bff;
    return stand_to_f16(value);
}

float aclFloat16ToFloat(aclFloat16 value)
{
    return stand_from_f16(value);
}

size_t aclDataTypeSize(aclDataType type)
{
    return (size_t)type_bits(type) / 8;
}

static int nibble(const uint8_t *from, int64_t i)
{
    int n = from[i / 2] >> (i % 2 * 4) & 15;
    return n < 8 ? n : n - 16;
}

int64_t load_int(const uint8_t *from, aclDataType type, int64_t i)
{
    union {
        uint8_t u8;
        int8_t i8;
        int16_t i16;
        uint16_t u16;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
    } x;
    if (type == ACL_INT4)
        return nibble(from, i);
    size_t bytes = (size_t)type_bits(type) / 8;
    memcpy(&x, from + (size_t)i * bytes, bytes);
    switch ((int)type) {
    case ACL_INT8: return x.i8;
    case ACL_UINT8: return x.u8;
    case ACL_BOOL: return x.u8 != 0;
    case ACL_INT16: return x.i16;
    case ACL_UINT16: return x.u16;
    case ACL_INT32: return x.i32;
    case ACL_UINT32: return x.u32;
    case ACL_INT64:
    case ACL_UINT64: return x.i64;
    default: {
        double d = load_double(from, type, i);
        return isnan(d) ? 0 : d >= 0x1p63 ? INT64_MAX : d < -0x1p63 ? INT64_MIN : (int64_t)d;
    }
    }
}

double load_double(const uint8_t *from, aclDataType type, int64_t i)
{
    float f;
    double d;
    uint16_t h;
    switch ((int)type) {
    case ACL_FLOAT: memcpy(&f, from + 4 * (size_t)i, 4); return f;
    case ACL_DOUBLE: memcpy(&d, from + 8 * (size_t)i, 8); return d;
    case ACL_FLOAT16: memcpy(&h, from + 2 * (size_t)i, 2); return stand_from_f16(h);
    case ACL_BF16: memcpy(&h, from + 2 * (size_t)i, 2); return stand_from_bf16(h);
    default: return (double)load_int(from, type, i);
    }
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

void store_int(uint8_t *to, aclDataType type, int64_t i, int64_t x)
{
    uint8_t *at = to + (size_t)i * ((size_t)type_bits(type) / 8);
    switch ((int)type) {
    case ACL_INT4: {
        uint8_t n = (uint8_t)(clamp(x, -8, 7) & 15);
        to[i / 2] = (uint8_t)(i % 2 ? (to[i / 2] & 15) | n << 4 : (to[i / 2] & 0xf0) | n);
        break;
    }
    case ACL_BOOL: *at = x != 0; break;
    case ACL_INT8: *at = (uint8_t)clamp(x, INT8_MIN, INT8_MAX); break;
    case ACL_UINT8: *at = (uint8_t)clamp(x, 0, UINT8_MAX); break;
    case ACL_INT16: memcpy(at, &(int16_t){(int16_t)clamp(x, INT16_MIN, INT16_MAX)}, 2); break;
    case ACL_UINT16: memcpy(at, &(uint16_t){(uint16_t)clamp(x, 0, UINT16_MAX)}, 2); break;
    case ACL_INT32: memcpy(at, &(int32_t){(int32_t)clamp(x, INT32_MIN, INT32_MAX)}, 4); break;
    case ACL_UINT32: memcpy(at, &(uint32_t){(uint32_t)clamp(x, 0, UINT32_MAX)}, 4); break;
    case ACL_INT64:
    case ACL_UINT64: memcpy(at, &x, 8); break;
    default: store_double(to, type, i, (double)x); break;
    }
}

void store_double(uint8_t *to, aclDataType type, int64_t i, double x)
{
    uint16_t h;
    switch ((int)type) {
    case ACL_FLOAT: memcpy(to + 4 * (size_t)i, &(float){(float)x}, 4); break;
    case ACL_DOUBLE: memcpy(to + 8 * (size_t)i, &x, 8); break;
    case ACL_FLOAT16:
        h = stand_to_f16(x);
        memcpy(to + 2 * (size_t)i, &h, 2);
        break;
    case ACL_BF16:
        h = stand_to_bf16(x);
        memcpy(to + 2 * (size_t)i, &h, 2);
        break;
    case ACL_BOOL: to[i] = x != 0; break;
    default:
        store_int(to, type, i,
                  isnan(x)      ? 0
                  : x >= 0x1p63 ? INT64_MAX
                  : x < -0x1p63 ? INT64_MIN
                                : (int64_t)x);
        break;
    }
}
