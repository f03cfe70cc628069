/*
 * op_binary.c - operators that compute each element from two tensors, which broadcast to each
 * other: arithmetic, comparisons, choices; and casts, copies and ranges.
 *
 * The operands meet in one type (op_promote), in which the result is rounded before it goes into
 * `out`.
 */
#include "tests/ascend/op.h"

#include <math.h>
#include <string.h>

struct pair_row {
    const char *name;
    double (*f)(double a, double b, double alpha);
    uint32_t types;
    bool real, logical; /* the result: F32 for integers, 0 or 1 */
};

#define PAIR(id, expression)                                                                       \
    static double id(double a, double b, double alpha)                                             \
    {                                                                                              \
        (void)alpha;                                                                               \
        return expression;                                                                         \
    }
PAIR(pair_add, a + alpha * b)
PAIR(pair_sub, a - alpha * b)
PAIR(pair_mul, a *b)
PAIR(pair_div, a / b)
PAIR(pair_max, isnan(a) || a > b ? a : b)
PAIR(pair_min, isnan(a) || a < b ? a : b)
PAIR(pair_pow, pow(a, b))
PAIR(pair_eq, a == b)
PAIR(pair_ne, a != b)
PAIR(pair_gt, a > b)
PAIR(pair_ge, a >= b)
PAIR(pair_lt, a < b)
PAIR(pair_le, a <= b)

static const struct pair_row pairs[] = {
    {"Add", pair_add, TYPE_NUMBER, false, false},
    {"Sub", pair_sub, TYPE_REAL | STAND_INTEGERS, false, false},
    {"Mul", pair_mul, TYPE_NUMBER, false, false},
    {"Div", pair_div, TYPE_NUMBER, true, false},
    {"Maximum", pair_max, TYPE_NUMBER, false, false},
    {"Minimum", pair_min, TYPE_NUMBER, false, false},
    {"PowTensorTensor", pair_pow, TYPE_REAL | STAND_INTEGERS, false, false},
    {"EqTensor", pair_eq, TYPE_NUMBER, false, true},
    {"NeTensor", pair_ne, TYPE_NUMBER, false, true},
    {"GtTensor", pair_gt, TYPE_NUMBER, false, true},
    {"GeTensor", pair_ge, TYPE_NUMBER, false, true},
    {"LtTensor", pair_lt, TYPE_NUMBER, false, true},
    {"LeTensor", pair_le, TYPE_NUMBER, false, true},
};

struct pair_op {
    const struct pair_row *row;
    struct stand_view a, b, out;
    aclDataType type;
    double alpha;
};

static void run_pair(struct stand_run *run, const void *state)
{
    const struct pair_op *op = state;
    if (op_empty(op->out, op->out))
        return;
    double *a = stand_read_doubles(run, stand_expand(op->a, op->out));
    double *b = stand_read_doubles(run, stand_expand(op->b, op->out));
    for (int64_t i = 0; i < stand_elements(op->out); i++)
        a[i] = op_round(op->row->f(a[i], b[i], op->alpha), op->type);
    stand_write_doubles(run, op->out, a);
}

static const struct pair_row *pair_named(const char *name)
{
    const char *plain = name + strlen("aclnn");
    if (!strncmp(plain, "Inplace", strlen("Inplace")))
        plain += strlen("Inplace");
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
        if (!strcmp(pairs[i].name, plain))
            return &pairs[i];
    return NULL;
}

/* out == NULL with `inplace`: the first operand is the result. has_alpha: Add and Sub, whose scalar
 * may not be left out. */
static aclnnStatus pair(const char *name, const aclTensor *self, const aclTensor *other,
                        bool has_alpha, const aclScalar *alpha, bool inplace, const aclTensor *out,
                        uint64_t *bytes, aclOpExecutor **executor)
{
    struct stand_call *call = stand_begin(name, bytes, executor);
    struct pair_op op = {.row = pair_named(name), .alpha = 1};
    op.a = inplace ? stand_inout(call, "selfRef", self) : stand_in(call, "self", self);
    op.b = stand_in(call, "other", other);
    if (has_alpha)
        op.alpha = stand_scalar(call, "alpha", alpha);
    op.out = inplace ? op.a : stand_out(call, "out", out);
    stand_types(call, &op.a, op.row->types);
    stand_types(call, &op.b, op.row->types);
    stand_broadcasts(call, &op.a, &op.b, &op.out);
    op.type = op_promote(op.a.type, op.b.type);
    if (op.row->real && !op_is_real(op.type))
        op.type = ACL_FLOAT;
    if (op.row->logical) {
        op.type = ACL_DOUBLE;
        stand_types(call, &op.out, TYPE_NUMBER);
    } else {
        op_holds(call, op.type, &op.out);
    }
    bool casts = op.a.type != op.b.type || op.out.type != op.a.type;
    return stand_plan(call, run_pair, &op, sizeof op,
                      casts ? (uint64_t)stand_elements(op.out) * 8 + 64 : 0);
}

#define SIZE_ARGS uint64_t *bytes, aclOpExecutor **executor
#define TWO(name)                                                                                  \
    aclnnStatus aclnn##name##GetWorkspaceSize(const aclTensor *self, const aclTensor *other,       \
                                              aclTensor *out, SIZE_ARGS)                           \
    {                                                                                              \
        return pair("aclnn" #name, self, other, false, NULL, false, out, bytes, executor);         \
    }                                                                                              \
    STAND_SECOND_PHASE(aclnn##name)
#define TWO_INPLACE(name)                                                                          \
    aclnnStatus aclnnInplace##name##GetWorkspaceSize(aclTensor *self, const aclTensor *other,      \
                                                     SIZE_ARGS)                                    \
    {                                                                                              \
        return pair("aclnnInplace" #name, self, other, false, NULL, true, NULL, bytes, executor);  \
    }                                                                                              \
    STAND_SECOND_PHASE(aclnnInplace##name)
#define TWO_ALPHA(name)                                                                            \
    aclnnStatus aclnn##name##GetWorkspaceSize(const aclTensor *self, const aclTensor *other,       \
                                              const aclScalar *alpha, aclTensor *out, SIZE_ARGS)   \
    {                                                                                              \
        return pair("aclnn" #name, self, other, true, alpha, false, out, bytes, executor);         \
    }                                                                                              \
    STAND_SECOND_PHASE(aclnn##name)                                                                \
    aclnnStatus aclnnInplace##name##GetWorkspaceSize(aclTensor *self, const aclTensor *other,      \
                                                     const aclScalar *alpha, SIZE_ARGS)            \
    {                                                                                              \
        return pair("aclnnInplace" #name, self, other, true, alpha, true, NULL, bytes, executor);  \
    }                                                                                              \
    STAND_SECOND_PHASE(aclnnInplace##name)

TWO_ALPHA(Add)
TWO_ALPHA(Sub)
TWO(Mul)
TWO(Div)
TWO(Maximum)
TWO(Minimum)
TWO(PowTensorTensor)
TWO_INPLACE(Mul)
TWO_INPLACE(Div)
TWO_INPLACE(PowTensorTensor)
TWO(EqTensor)
TWO(NeTensor)
TWO(GtTensor)
TWO(GeTensor)
TWO(LtTensor)
TWO(LeTensor)

/* ------------------------------------------------------------------------------ choices ---- */

struct choice_op {
    struct stand_view mask, yes, no, out;
    double value; /* where `yes` is not given */
};

static void run_choice(struct stand_run *run, const void *state)
{
    const struct choice_op *op = state;
    if (op_empty(op->out, op->out))
        return;
    int64_t *mask = stand_read_ints(run, stand_expand(op->mask, op->out));
    double *no = stand_read_doubles(run, stand_expand(op->no, op->out));
    double *yes = op->yes.given ? stand_read_doubles(run, stand_expand(op->yes, op->out)) : NULL;
    for (int64_t i = 0; i < stand_elements(op->out); i++)
        if (mask[i])
            no[i] = yes ? yes[i] : op->value;
    stand_write_doubles(run, op->out, no);
}

aclnnStatus aclnnInplaceMaskedFillScalarGetWorkspaceSize(aclTensor *selfRef, const aclTensor *mask,
                                                         const aclScalar *value, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnInplaceMaskedFillScalar", bytes, executor);
    struct choice_op op = {.out = stand_inout(call, "selfRef", selfRef),
                           .mask = stand_in(call, "mask", mask),
                           .value = stand_scalar(call, "value", value)};
    op.no = op.out;
    stand_types(call, &op.out, TYPE_NUMBER);
    stand_types(call, &op.mask, TYPE_BOOL);
    stand_broadcasts(call, &op.mask, &op.out, &op.out);
    return stand_plan(call, run_choice, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnInplaceMaskedFillScalar)

aclnnStatus aclnnSWhereGetWorkspaceSize(const aclTensor *condition, const aclTensor *self,
                                        const aclTensor *other, aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnSWhere", bytes, executor);
    struct choice_op op = {.mask = stand_in(call, "condition", condition),
                           .yes = stand_in(call, "self", self),
                           .no = stand_in(call, "other", other),
                           .out = stand_out(call, "out", out)};
    stand_types(call, &op.mask, TYPE_BOOL | STAND_TYPE(ACL_UINT8));
    stand_types(call, &op.yes, TYPE_NUMBER);
    stand_types(call, &op.no, TYPE_NUMBER);
    op_holds(call, op_promote(op.yes.type, op.no.type), &op.out);
    if (stand_holds(call)) {
        /* What two of the three broadcast to, the third may widen. */
        struct stand_view wide = op.out;
        for (int i = 0; i < wide.rank; i++)
            wide.strides[i] = 0;
        stand_broadcasts(call, &op.yes, &wide, &op.out);
        stand_broadcasts(call, &op.no, &wide, &op.out);
        stand_broadcasts(call, &op.mask, &wide, &op.out);
    }
    return stand_plan(call, run_choice, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnSWhere)

/* ------------------------------------------------------------------- casts, copies, ranges ---- */

struct copy_op {
    struct stand_view src, dst;
};

static void run_copy(struct stand_run *run, const void *state)
{
    const struct copy_op *op = state;
    op_copy(run, op->dst, stand_expand(op->src, op->dst));
}

aclnnStatus aclnnCastGetWorkspaceSize(const aclTensor *self, const aclDataType dtype,
                                      aclTensor *out, SIZE_ARGS)
{
    const uint32_t types = TYPE_NUMBER | STAND_TYPE(ACL_UINT16) | STAND_TYPE(ACL_UINT32) |
                           STAND_TYPE(ACL_UINT64) | STAND_TYPE(ACL_INT4);
    struct stand_call *call = stand_begin("aclnnCast", bytes, executor);
    struct copy_op op = {stand_in(call, "self", self), stand_out(call, "out", out)};
    stand_types(call, &op.src, types);
    stand_types(call, &op.dst, types);
    stand_require(call, !op.dst.given || op.dst.type == dtype, "dtype %d is not that of out, %d",
                  (int)dtype, (int)op.dst.type);
    stand_same_shape(call, &op.src, &op.dst);
    return stand_plan(call, run_copy, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnCast)

aclnnStatus aclnnInplaceCopyGetWorkspaceSize(aclTensor *selfRef, const aclTensor *src, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnInplaceCopy", bytes, executor);
    struct copy_op op = {.src = stand_in(call, "src", src),
                         .dst = stand_out(call, "selfRef", selfRef)};
    stand_types(call, &op.src, TYPE_NUMBER);
    stand_types(call, &op.dst, TYPE_NUMBER);
    stand_broadcasts(call, &op.src, &op.dst, &op.dst);
    return stand_plan(call, run_copy, &op, sizeof op,
                      op.src.type == op.dst.type ? 0 : (uint64_t)stand_elements(op.dst) * 8);
}
STAND_SECOND_PHASE(aclnnInplaceCopy)

struct range_op {
    struct stand_view out;
    double start, step;
};

static void run_range(struct stand_run *run, const void *state)
{
    const struct range_op *op = state;
    double *values = stand_scratch(run, (size_t)stand_elements(op->out) * sizeof *values);
    for (int64_t i = 0; i < stand_elements(op->out); i++)
        values[i] = op->start + (double)i * op->step;
    stand_write_doubles(run, op->out, values);
}

aclnnStatus aclnnArangeGetWorkspaceSize(const aclScalar *start, const aclScalar *end,
                                        const aclScalar *step, aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnArange", bytes, executor);
    struct range_op op = {.start = stand_scalar(call, "start", start),
                          .step = stand_scalar(call, "step", step)};
    double last = stand_scalar(call, "end", end);
    op.out = stand_out(call, "out", out);
    stand_types(call, &op.out, TYPE_REAL | STAND_INTEGERS);
    stand_rank(call, &op.out, 1, stand_is_loose() ? STAND_RANK : 1);
    stand_require(call, op.step != 0, "step is 0");
    stand_require(call, (last - op.start) * op.step >= 0, "step leads away from end");
    if (stand_holds(call)) {
        double count = ceil((last - op.start) / op.step);
        int64_t elements = stand_elements(op.out);
        stand_require(call, count == (double)elements, "out has %lld elements, not %.0f",
                      (long long)elements, count);
    }
    return stand_plan(call, run_range, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnArange)
