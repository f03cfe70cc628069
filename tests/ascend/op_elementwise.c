/*
 * op_elementwise.c - operators that compute each element by itself: of one tensor, of a tensor and
 * a scalar, of two tensors; comparisons; fills, casts and copies.
 *
 * Each operator is a row: its function, the types that the documentation lists for it, its chips.
 * Values are computed in double and rounded once, to the type in which the operands meet.
 */
#include "tests/ascend/op.h"

#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------ one tensor, scalars ---- */

enum out_rule {
    OUT_EXACT,  /* the type of the input */
    OUT_SAME,   /* the type of the input, or one that it converts to */
    OUT_REAL,   /* of integers: F32 */
    OUT_LOGICAL /* 0 or 1, as BOOL or as a number */
};

/* y = f(x, p): p are the operator's scalars in the order of its arguments. */
struct map_row {
    const char *name;
    double (*f)(double x, const double *p);
    uint32_t types;
    enum out_rule rule;
    unsigned chips;
};

#define MAP(id, expression)                                                                        \
    static double id(double x, const double *p)                                                    \
    {                                                                                              \
        (void)x, (void)p;                                                                          \
        return expression;                                                                         \
    }
MAP(map_abs, fabs(x))
MAP(map_neg, -x)
MAP(map_exp, exp(x))
MAP(map_log, log(x))
MAP(map_sqrt, sqrt(x))
MAP(map_rsqrt, 1 / sqrt(x))
MAP(map_reciprocal, 1 / x)
MAP(map_sin, sin(x))
MAP(map_cos, cos(x))
MAP(map_tanh, tanh(x))
MAP(map_sigmoid, 1 / (1 + exp(-x)))
MAP(map_relu, x < 0 ? 0 : x)
MAP(map_silu, op_silu(x))
MAP(map_gelu, op_gelu(x, true))
MAP(map_gelu_v2, op_gelu(x, p[0] != 0))
MAP(map_fast_gelu, x / (1 + exp(-1.702 * fabs(x))) * exp(0.851 * (x - fabs(x))))
MAP(map_hardsigmoid, fmin(1, fmax(0, x / 6 + 0.5)))
MAP(map_hardswish, x *fmin(1, fmax(0, x / 6 + 0.5)))
MAP(map_sign, isnan(x) ? x : (x > 0) - (x < 0))
MAP(map_floor, floor(x))
MAP(map_ceil, ceil(x))
MAP(map_round, nearbyint(x))
MAP(map_trunc, trunc(x))
MAP(map_not, x == 0)
MAP(map_zero, 0)
MAP(map_one, 1)
MAP(map_fill, p[0])
MAP(map_leaky, x > 0 ? x : x * p[0])
MAP(map_elu, x > 0 ? p[1] * x : p[1] * p[0] * (exp(x * p[2]) - 1))
MAP(map_softplus, x *p[0] > p[1] ? x : log1p(exp(x * p[0])) / p[0])
MAP(map_threshold, x > p[0] ? x : p[1])
MAP(map_clamp, x<p[0] ? p[0] : x> p[1] ? p[1] : x)
MAP(map_clamp_min, x < p[0] ? p[0] : x)
MAP(map_clamp_max, x > p[0] ? p[0] : x)
MAP(map_adds, x + p[0] * p[1])
MAP(map_subs, x - p[0] * p[1])
MAP(map_muls, x *p[0])
MAP(map_divs, x / p[0])
MAP(map_pow, pow(x, p[0]))
MAP(map_pow_base, pow(p[0], x))
MAP(map_eq, x == p[0])
MAP(map_ne, x != p[0])
MAP(map_gt, x > p[0])
MAP(map_ge, x >= p[0])
MAP(map_lt, x < p[0])
MAP(map_le, x <= p[0])

static const struct map_row maps[] = {
    {"Abs", map_abs, TYPE_NUMBER, OUT_SAME, CHIP_ALL},
    {"Neg", map_neg, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"Exp", map_exp, TYPE_NUMBER, OUT_REAL, CHIP_ALL},
    {"Log", map_log, TYPE_NUMBER, OUT_REAL, CHIP_ALL},
    {"Sqrt", map_sqrt, TYPE_NUMBER, OUT_REAL, CHIP_ALL},
    {"Rsqrt", map_rsqrt, TYPE_NUMBER, OUT_REAL, CHIP_ALL},
    {"Reciprocal", map_reciprocal, TYPE_NUMBER, OUT_REAL, CHIP_ALL},
    {"Sin", map_sin, TYPE_NUMBER, OUT_REAL, CHIP_ALL},
    {"Cos", map_cos, TYPE_NUMBER, OUT_REAL, CHIP_ALL},
    {"Tanh", map_tanh, TYPE_NUMBER, OUT_REAL, CHIP_ALL},
    {"Sigmoid", map_sigmoid, TYPE_NUMBER, OUT_REAL, CHIP_ALL},
    {"Relu", map_relu, STAND_FLOATS | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"Silu", map_silu, STAND_FLOATS, OUT_SAME, CHIP_ALL},
    {"Gelu", map_gelu, STAND_FLOATS, OUT_EXACT, CHIP_BIG},
    {"GeluV2", map_gelu_v2, STAND_FLOATS, OUT_EXACT, CHIP_BIG},
    {"FastGelu", map_fast_gelu, STAND_FLOATS, OUT_EXACT, CHIP_BIG},
    {"Hardsigmoid", map_hardsigmoid, STAND_FLOATS | STAND_TYPE(ACL_INT32), OUT_SAME, CHIP_ALL},
    {"Hardswish", map_hardswish, STAND_FLOATS, OUT_SAME, CHIP_ALL},
    {"Sign", map_sign, TYPE_NUMBER, OUT_SAME, CHIP_ALL},
    {"Floor", map_floor, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"Ceil", map_ceil, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"Round", map_round, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"Trunc", map_trunc, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"LogicalNot", map_not, TYPE_NUMBER, OUT_LOGICAL, CHIP_ALL},
    {"Zero", map_zero, TYPE_NUMBER, OUT_SAME, CHIP_ALL},
    {"One", map_one, TYPE_NUMBER, OUT_SAME, CHIP_ALL},
    {"FillScalar", map_fill, TYPE_NUMBER, OUT_SAME, CHIP_ALL},
    {"LeakyRelu", map_leaky, TYPE_REAL, OUT_SAME, CHIP_ALL},
    {"Elu", map_elu, STAND_FLOATS, OUT_SAME, CHIP_ALL},
    {"Softplus", map_softplus, STAND_FLOATS, OUT_SAME, CHIP_ALL},
    {"Threshold", map_threshold, STAND_FLOATS | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"Clamp", map_clamp, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"ClampMin", map_clamp_min, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"ClampMax", map_clamp_max, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"Adds", map_adds, TYPE_NUMBER, OUT_SAME, CHIP_ALL},
    {"Subs", map_subs, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"Muls", map_muls, TYPE_NUMBER, OUT_SAME, CHIP_ALL},
    {"Divs", map_divs, TYPE_NUMBER, OUT_REAL, CHIP_ALL},
    {"PowTensorScalar", map_pow, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"PowScalarTensor", map_pow_base, TYPE_REAL | STAND_INTEGERS, OUT_SAME, CHIP_ALL},
    {"EqScalar", map_eq, TYPE_NUMBER, OUT_LOGICAL, CHIP_ALL},
    {"NeScalar", map_ne, TYPE_NUMBER, OUT_LOGICAL, CHIP_ALL},
    {"GtScalar", map_gt, TYPE_NUMBER, OUT_LOGICAL, CHIP_ALL},
    {"GeScalar", map_ge, TYPE_NUMBER, OUT_LOGICAL, CHIP_ALL},
    {"LtScalar", map_lt, TYPE_NUMBER, OUT_LOGICAL, CHIP_ALL},
    {"LeScalar", map_le, TYPE_NUMBER, OUT_LOGICAL, CHIP_ALL},
};

struct map_op {
    const struct map_row *row;
    struct stand_view in, out;
    aclDataType type; /* in which the result is rounded */
    double p[4];
};

static void run_map(struct stand_run *run, const void *state)
{
    const struct map_op *op = state;
    if (op_empty(op->in, op->out))
        return;
    double *x = stand_read_doubles(run, op->in);
    for (int64_t i = 0; i < stand_elements(op->in); i++)
        x[i] = op_round(op->row->f(x[i], op->p), op->type);
    stand_write_doubles(run, op->out, x);
}

/* The arguments of a map: a NULL tensor or scalar is found out here. */
struct map_call {
    struct stand_call *call;
    struct map_op op;
    bool real_scalar;
    int scalars;
};

static const struct map_row *map_named(const char *name)
{
    const char *plain = name + strlen("aclnn");
    if (!strncmp(plain, "Inplace", strlen("Inplace")))
        plain += strlen("Inplace");
    for (size_t i = 0; i < sizeof maps / sizeof maps[0]; i++)
        if (!strcmp(maps[i].name, plain))
            return &maps[i];
    return NULL;
}

static struct map_call map_begin(const char *name, uint64_t *bytes, aclOpExecutor **executor)
{
    return (struct map_call){.call = stand_begin(name, bytes, executor),
                             .op = {.row = map_named(name)}};
}

static void map_scalar(struct map_call *m, const char *name, const aclScalar *scalar)
{
    m->real_scalar |= op_is_real(stand_scalar_type(scalar));
    m->op.p[m->scalars++] = stand_scalar(m->call, name, scalar);
}

static aclnnStatus map_plan(struct map_call *m)
{
    const struct map_row *row = m->op.row;
    struct map_op *op = &m->op;
    op_chips(m->call, row->chips);
    stand_types(m->call, &op->in, row->types);
    stand_same_shape(m->call, &op->in, &op->out);
    aclDataType type = op->in.type;
    if (!op_is_real(type) && (m->real_scalar || row->rule == OUT_REAL))
        type = ACL_FLOAT;
    op->type = row->rule == OUT_LOGICAL ? ACL_DOUBLE : type;
    if (row->rule == OUT_EXACT)
        stand_same_type(m->call, &op->in, &op->out);
    else if (row->rule == OUT_LOGICAL)
        stand_types(m->call, &op->out, TYPE_NUMBER);
    else
        op_holds(m->call, type, &op->out);
    /* A scalar takes part in the tensor's type; a comparison's does not. */
    if (op_is_real(type) && row->rule != OUT_LOGICAL)
        for (int i = 0; i < m->scalars; i++)
            op->p[i] = op_round(op->p[i], type);
    return stand_plan(m->call, run_map, op, sizeof *op,
                      row->rule == OUT_REAL && op->in.type != op->out.type ? 4096 : 0);
}

static aclnnStatus map_tensor(const char *name, const aclTensor *self, const aclTensor *out,
                              uint64_t *bytes, aclOpExecutor **executor)
{
    struct map_call m = map_begin(name, bytes, executor);
    m.op.in = stand_in(m.call, "self", self);
    m.op.out = stand_out(m.call, "out", out);
    return map_plan(&m);
}

static aclnnStatus map_inplace(const char *name, const aclTensor *self, uint64_t *bytes,
                               aclOpExecutor **executor)
{
    struct map_call m = map_begin(name, bytes, executor);
    m.op.in = m.op.out = stand_inout(m.call, "selfRef", self);
    return map_plan(&m);
}

static aclnnStatus map_scalars(const char *name, const aclTensor *self, const aclTensor *out,
                               int count, const aclScalar *const *scalars, uint64_t *bytes,
                               aclOpExecutor **executor)
{
    struct map_call m = map_begin(name, bytes, executor);
    if (out) {
        m.op.in = stand_in(m.call, "self", self);
        m.op.out = stand_out(m.call, "out", out);
    } else {
        m.op.in = m.op.out = stand_inout(m.call, "selfRef", self);
    }
    for (int i = 0; i < count; i++)
        map_scalar(&m, "scalar", scalars[i]);
    return map_plan(&m);
}

#define SIZE_ARGS uint64_t *bytes, aclOpExecutor **executor
#define UNARY(name)                                                                                \
    aclnnStatus aclnn##name##GetWorkspaceSize(const aclTensor *self, aclTensor *out, SIZE_ARGS)    \
    {                                                                                              \
        return map_tensor("aclnn" #name, self, out, bytes, executor);                              \
    }                                                                                              \
    STAND_SECOND_PHASE(aclnn##name)
#define INPLACE(name)                                                                              \
    aclnnStatus aclnnInplace##name##GetWorkspaceSize(aclTensor *selfRef, SIZE_ARGS)                \
    {                                                                                              \
        return map_inplace("aclnnInplace" #name, selfRef, bytes, executor);                        \
    }                                                                                              \
    STAND_SECOND_PHASE(aclnnInplace##name)
#define SCALARS(...)                                                                               \
    (const aclScalar *const[])                                                                     \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
/* An operator that gives a tensor must be given one, so that map_scalars may read NULL as "in
 * place". */
#define MAPPED(name, count, scalars, ...)                                                          \
    aclnnStatus aclnn##name##GetWorkspaceSize(const aclTensor *self, __VA_ARGS__, aclTensor *out,  \
                                              SIZE_ARGS)                                           \
    {                                                                                              \
        return out ? map_scalars("aclnn" #name, self, out, count, scalars, bytes, executor)        \
                   : map_tensor("aclnn" #name, self, NULL, bytes, executor);                       \
    }                                                                                              \
    STAND_SECOND_PHASE(aclnn##name)
#define MAPPED_INPLACE(name, count, scalars, ...)                                                  \
    aclnnStatus aclnnInplace##name##GetWorkspaceSize(aclTensor *selfRef, __VA_ARGS__, SIZE_ARGS)   \
    {                                                                                              \
        return map_scalars("aclnnInplace" #name, selfRef, NULL, count, scalars, bytes, executor);  \
    }                                                                                              \
    STAND_SECOND_PHASE(aclnnInplace##name)

UNARY(Abs)
UNARY(Neg)
UNARY(Exp)
UNARY(Log)
UNARY(Sqrt)
UNARY(Rsqrt)
UNARY(Reciprocal)
UNARY(Sin)
UNARY(Cos)
UNARY(Tanh)
UNARY(Sigmoid)
UNARY(Relu)
UNARY(Silu)
UNARY(Gelu)
UNARY(FastGelu)
UNARY(Hardsigmoid)
UNARY(Hardswish)
UNARY(Sign)
UNARY(Floor)
UNARY(Ceil)
UNARY(Round)
UNARY(Trunc)
UNARY(LogicalNot)
INPLACE(Neg)
INPLACE(Exp)
INPLACE(Log)
INPLACE(Sqrt)
INPLACE(Rsqrt)
INPLACE(Reciprocal)
INPLACE(Sin)
INPLACE(Cos)
INPLACE(Tanh)
INPLACE(Sigmoid)
INPLACE(Relu)
INPLACE(Floor)
INPLACE(Ceil)
INPLACE(Round)
INPLACE(Trunc)
INPLACE(Zero)
INPLACE(One)
MAPPED_INPLACE(FillScalar, 1, SCALARS(value), const aclScalar *value)
MAPPED(LeakyRelu, 1, SCALARS(slope), const aclScalar *slope)
MAPPED(Elu, 3, SCALARS(alpha, scale, inputScale), const aclScalar *alpha, const aclScalar *scale,
       const aclScalar *inputScale)
MAPPED(Softplus, 2, SCALARS(beta, threshold), const aclScalar *beta, const aclScalar *threshold)
MAPPED(Threshold, 2, SCALARS(threshold, value), const aclScalar *threshold, const aclScalar *value)
MAPPED_INPLACE(Threshold, 2, SCALARS(threshold, value), const aclScalar *threshold,
               const aclScalar *value)
MAPPED(ClampMin, 1, SCALARS(least), const aclScalar *least)
MAPPED(ClampMax, 1, SCALARS(most), const aclScalar *most)
MAPPED_INPLACE(ClampMin, 1, SCALARS(least), const aclScalar *least)
MAPPED_INPLACE(ClampMax, 1, SCALARS(most), const aclScalar *most)
MAPPED(Adds, 2, SCALARS(other, alpha), const aclScalar *other, const aclScalar *alpha)
MAPPED(Subs, 2, SCALARS(other, alpha), const aclScalar *other, const aclScalar *alpha)
MAPPED(Muls, 1, SCALARS(other), const aclScalar *other)
MAPPED(Divs, 1, SCALARS(other), const aclScalar *other)
MAPPED_INPLACE(Adds, 2, SCALARS(other, alpha), const aclScalar *other, const aclScalar *alpha)
MAPPED_INPLACE(Subs, 2, SCALARS(other, alpha), const aclScalar *other, const aclScalar *alpha)
MAPPED_INPLACE(Muls, 1, SCALARS(other), const aclScalar *other)
MAPPED_INPLACE(Divs, 1, SCALARS(other), const aclScalar *other)
MAPPED(EqScalar, 1, SCALARS(other), const aclScalar *other)
MAPPED(NeScalar, 1, SCALARS(other), const aclScalar *other)
MAPPED(GtScalar, 1, SCALARS(other), const aclScalar *other)
MAPPED(GeScalar, 1, SCALARS(other), const aclScalar *other)
MAPPED(LtScalar, 1, SCALARS(other), const aclScalar *other)
MAPPED(LeScalar, 1, SCALARS(other), const aclScalar *other)

/* Either bound may be left out, not both. */
aclnnStatus aclnnClampGetWorkspaceSize(const aclTensor *self, const aclScalar *least,
                                       const aclScalar *most, aclTensor *out, SIZE_ARGS)
{
    struct map_call m = map_begin("aclnnClamp", bytes, executor);
    m.op.in = stand_in(m.call, "self", self);
    m.op.out = stand_out(m.call, "out", out);
    m.op.p[0] = -INFINITY;
    m.op.p[1] = INFINITY;
    if (least || !most)
        map_scalar(&m, "clipValueMin", least);
    m.scalars = 1;
    if (most)
        map_scalar(&m, "clipValueMax", most);
    return map_plan(&m);
}
STAND_SECOND_PHASE(aclnnClamp)

aclnnStatus aclnnGeluV2GetWorkspaceSize(const aclTensor *x, int64_t approximate, aclTensor *y,
                                        SIZE_ARGS)
{
    struct map_call m = map_begin("aclnnGeluV2", bytes, executor);
    m.op.in = stand_in(m.call, "x", x);
    m.op.out = stand_out(m.call, "y", y);
    stand_require(m.call, approximate == 0 || approximate == 1, "approximate is 0 or 1");
    m.op.p[0] = (double)approximate;
    return map_plan(&m);
}
STAND_SECOND_PHASE(aclnnGeluV2)

aclnnStatus aclnnPowTensorScalarGetWorkspaceSize(const aclTensor *self, const aclScalar *exponent,
                                                 const aclTensor *out, SIZE_ARGS)
{
    struct map_call m = map_begin("aclnnPowTensorScalar", bytes, executor);
    m.op.in = stand_in(m.call, "self", self);
    m.op.out = stand_out(m.call, "out", out);
    map_scalar(&m, "exponent", exponent);
    return map_plan(&m);
}
STAND_SECOND_PHASE(aclnnPowTensorScalar)

aclnnStatus aclnnInplacePowTensorScalarGetWorkspaceSize(const aclTensor *self,
                                                        const aclScalar *exponent, SIZE_ARGS)
{
    struct map_call m = map_begin("aclnnInplacePowTensorScalar", bytes, executor);
    m.op.in = m.op.out = stand_inout(m.call, "self", self);
    map_scalar(&m, "exponent", exponent);
    return map_plan(&m);
}
STAND_SECOND_PHASE(aclnnInplacePowTensorScalar)

aclnnStatus aclnnPowScalarTensorGetWorkspaceSize(const aclScalar *self, const aclTensor *exponent,
                                                 const aclTensor *out, SIZE_ARGS)
{
    struct map_call m = map_begin("aclnnPowScalarTensor", bytes, executor);
    m.op.in = stand_in(m.call, "exponent", exponent);
    m.op.out = stand_out(m.call, "out", out);
    map_scalar(&m, "self", self);
    return map_plan(&m);
}
STAND_SECOND_PHASE(aclnnPowScalarTensor)
