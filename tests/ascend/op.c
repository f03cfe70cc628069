/*
 * op.c - types, chips and copies that the operators of the stand-in share.
 */
#include "tests/ascend/op.h"

#include <math.h>
#include <string.h>

unsigned op_chip(void)
{
    const char *soc = stand_chip()->soc;
    return strstr(soc, "310P") ? CHIP_310P : strstr(soc, "310B") ? CHIP_310B : CHIP_910B;
}

bool op_chips(struct stand_call *call, unsigned chips)
{
    return stand_chip_has(call, (chips & op_chip()) != 0, "a kernel for this operator");
}

bool op_is_real(aclDataType type)
{
    return type >= 0 && (TYPE_REAL & STAND_TYPE(type)) != 0;
}

bool op_is_integer(aclDataType type)
{
    return type == ACL_INT8 || type == ACL_UINT8 || type == ACL_INT16 || type == ACL_UINT16 ||
           type == ACL_INT32 || type == ACL_UINT32 || type == ACL_INT64 || type == ACL_UINT64;
}

size_t op_bytes(aclDataType type)
{
    size_t bytes = aclDataTypeSize(type);
    return bytes ? bytes : 1;
}

/* Of promotion, see op_promote. */
static int rank_of(aclDataType type)
{
    if (op_is_real(type))
        return type == ACL_DOUBLE ? 14 : type == ACL_FLOAT ? 13 : 12;
    return op_is_integer(type) ? (int)op_bytes(type) : 0;
}

aclDataType op_promote(aclDataType a, aclDataType b)
{
    if (a != b && rank_of(a) == 12 && rank_of(b) == 12)
        return ACL_FLOAT;
    return rank_of(b) > rank_of(a) ? b : a;
}

double op_round(double value, aclDataType type)
{
    if (type == ACL_FLOAT16)
        return (double)stand_from_f16(stand_to_f16(value));
    if (type == ACL_BF16)
        return (double)stand_from_bf16(stand_to_bf16(value));
    return type == ACL_FLOAT ? (double)(float)value : value;
}

float op_hf32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7f800000u) != 0x7f800000u)
        bits = (bits + 0x7ffu + (bits >> 12 & 1u)) & ~0xfffu;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* By whole numbers alone, which compilers make vectors of, as this runs for every weight: 10 bits
 * of mantissa are kept, or multiples of 2^-24 where F16 has no normal numbers; beyond its range is
 * infinity. */
static float to_f16(float value)
{
    const float big = 0x1.8p23f; /* adding it leaves whole numbers */
    const int32_t least_normal = 0x38800000, infinity = 0x7f800000, most = 0x477fe000;
    float small = (fabsf(value) * 0x1p24f + big - big) * 0x1p-24f;
    int32_t bits, size, small_bits;
    memcpy(&bits, &value, sizeof bits);
    memcpy(&small_bits, &small, sizeof small_bits);
    size = bits & 0x7fffffff;
    int32_t kept = (int32_t)(((uint32_t)size + 0xfffu + (size >> 13 & 1)) & ~0x1fffu);
    kept = kept > most ? infinity : kept;
    kept = size < least_normal ? small_bits : kept;
    kept = size > infinity ? size : kept;
    kept |= bits & INT32_MIN;
    memcpy(&value, &kept, sizeof value);
    return value;
}

void op_narrow(float *values, int64_t n, aclDataType type, bool hf32)
{
    if (hf32)
        for (int64_t i = 0; i < n; i++)
            values[i] = op_hf32(values[i]);
    else if (type == ACL_FLOAT16)
        for (int64_t i = 0; i < n; i++)
            values[i] = to_f16(values[i]);
    else if (type == ACL_BF16)
        for (int64_t i = 0; i < n; i++)
            values[i] = stand_from_bf16(stand_to_bf16((double)values[i]));
}

bool op_holds(struct stand_call *call, aclDataType from, const struct stand_view *out)
{
    bool fits = from == out->type || (op_is_real(from) && op_is_real(out->type)) ||
                (!op_is_real(from) && out->type != ACL_BOOL);
    return stand_require(call, !out->given || fits, "a result of type %d does not convert to %d",
                         (int)from, (int)out->type);
}

bool op_empty(struct stand_view a, struct stand_view b)
{
    return (a.given && stand_elements(a) == 0) || (b.given && stand_elements(b) == 0);
}

struct stand_view op_last(struct stand_view v, int axis)
{
    for (; axis + 1 < v.rank; axis++)
        v = stand_swap(v, axis, axis + 1);
    return v;
}

int64_t op_tail(struct stand_view v, int n)
{
    int64_t product = 1;
    for (int i = v.rank - n; i < v.rank; i++)
        product *= v.dims[i];
    return product;
}

void op_copy(struct stand_run *run, struct stand_view dst, struct stand_view src)
{
    if (op_empty(dst, src))
        return;
    if (op_is_integer(dst.type) && op_is_integer(src.type)) {
        stand_write_ints(run, dst, stand_read_ints(run, src));
        return;
    }
    double *values = stand_read_doubles(run, src);
    if (dst.type == ACL_BOOL)
        for (int64_t i = 0; i < stand_elements(dst); i++)
            values[i] = values[i] != 0;
    stand_write_doubles(run, dst, values);
}

int64_t *op_indices(struct stand_run *run, struct stand_view index, int64_t limit)
{
    int64_t *at = stand_read_ints(run, index);
    for (int64_t i = 0; i < stand_elements(index); i++)
        if (at[i] < 0 || at[i] >= limit) {
            stand_fail(run, "index %lld is not in [0, %lld)", (long long)at[i], (long long)limit);
            return NULL;
        }
    return at;
}

double op_gelu(double x, bool tanh_form)
{
    const double root_half = 0.70710678118654752440, root_2_over_pi = 0.79788456080286535588;
    return 0.5 * x *
           (1 +
            (tanh_form ? tanh(root_2_over_pi * (x + 0.044715 * x * x * x)) : erf(x * root_half)));
}

double op_silu(double x)
{
    return x / (1 + exp(-x));
}

float op_dot(const float *a, const float *b, int64_t n)
{
    float sums[16] = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            sums[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        sums[0] += a[i] * b[i];
    for (int half = 8; half > 0; half /= 2)
        for (int j = 0; j < half; j++)
            sums[j] += sums[j + half];
    return sums[0];
}
