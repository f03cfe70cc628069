/*
 * op_reduce.c - operators that make one value, or an order, of many: sums, means, maxima, norms,
 * running sums, positions and sorts.
 *
 * Sums run in double and are rounded once: a real chip adds in F32 in an order of its own.
 */
#include "tests/ascend/op.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SIZE_ARGS uint64_t *bytes, aclOpExecutor **executor

struct reduce_row {
    double start;
    double (*step)(double sum, double x, double p);
    double (*finish)(double sum, double count, double p);
};

static double step_sum(double sum, double x, double p)
{
    (void)p;
    return sum + x;
}

static double step_max(double most, double x, double p)
{
    (void)p;
    return isnan(most) || most > x ? most : x;
}

static double step_norm(double sum, double x, double p)
{
    return isinf(p) ? fmax(sum, fabs(x)) : p == 0 ? sum + (x != 0) : sum + pow(fabs(x), p);
}

static double finish_sum(double sum, double count, double p)
{
    (void)count, (void)p;
    return sum;
}

static double finish_mean(double sum, double count, double p)
{
    (void)p;
    return sum / count;
}

static double finish_norm(double sum, double count, double p)
{
    (void)count;
    return isinf(p) || p == 0 ? sum : pow(sum, 1 / p);
}

static const struct reduce_row reduce_sum = {0, step_sum, finish_sum};
static const struct reduce_row reduce_mean = {0, step_sum, finish_mean};
static const struct reduce_row reduce_max = {-INFINITY, step_max, finish_sum};
static const struct reduce_row reduce_norm = {0, step_norm, finish_norm};

struct reduce_op {
    const struct reduce_row *row;
    struct stand_view in, out;
    unsigned axes; /* bit i: axis i is summed over */
    double p;
};

static void run_reduce(struct stand_run *run, const void *state)
{
    const struct reduce_op *op = state;
    int64_t n = stand_elements(op->in), results = stand_elements(op->out);
    double *sums = stand_scratch(run, (size_t)(results ? results : 1) * sizeof *sums);
    for (int64_t i = 0; i < results; i++)
        sums[i] = op->row->start;
    double *x = n ? stand_read_doubles(run, op->in) : NULL;
    int64_t at[STAND_RANK] = {0};
    for (int64_t i = 0; i < n; i++) {
        int64_t to = 0;
        for (int j = 0; j < op->in.rank; j++)
            if (!(op->axes >> j & 1))
                to = to * op->in.dims[j] + at[j];
        sums[to] = op->row->step(sums[to], x[i], op->p);
        for (int j = op->in.rank - 1; j >= 0 && ++at[j] == op->in.dims[j]; j--)
            at[j] = 0;
    }
    for (int64_t i = 0; i < results; i++)
        sums[i] = op->row->finish(sums[i], (double)n / (double)results, op->p);
    if (results)
        stand_write_doubles(run, op->out, sums);
}

/* No dims: all of them. */
static aclnnStatus plan_reduce(struct stand_call *call, struct reduce_op *op,
                               const aclIntArray *dims, bool keep)
{
    struct stand_ints list = stand_ints(call, "dim", dims);
    for (int64_t i = 0; stand_holds(call) && i < list.n; i++) {
        unsigned bit = 1u << stand_axis(call, &op->in, list.values[i]);
        stand_require(call, !(op->axes & bit), "dim names an axis twice");
        op->axes |= bit;
    }
    if (!list.n)
        op->axes = (1u << op->in.rank) - 1;
    int64_t shape[STAND_RANK];
    int rank = 0;
    for (int i = 0; i < op->in.rank; i++) {
        if (!(op->axes >> i & 1))
            shape[rank++] = op->in.dims[i];
        else if (keep)
            shape[rank++] = 1;
    }
    if (rank == 0 && op->out.rank == 1) /* a scalar may have a dimension of 1 */
        shape[rank++] = 1;
    if (stand_holds(call))
        stand_shape(call, &op->out, rank, shape);
    return stand_plan(call, run_reduce, op, sizeof *op,
                      (uint64_t)stand_elements(op->in) * op_bytes(op->in.type) + 4096);
}

static void check_dtype(struct stand_call *call, const struct stand_view *out, aclDataType dtype)
{
    stand_require(call, !out->given || out->type == dtype, "dtype %d is not that of out, %d",
                  (int)dtype, (int)out->type);
}

aclnnStatus aclnnReduceSumGetWorkspaceSize(const aclTensor *self, const aclIntArray *dims,
                                           bool keepDims, aclDataType dtype, aclTensor *out,
                                           SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnReduceSum", bytes, executor);
    struct reduce_op op = {&reduce_sum, stand_in(call, "self", self), stand_out(call, "out", out),
                           0, 0};
    stand_types(call, &op.in, TYPE_NUMBER);
    stand_types(call, &op.out, TYPE_NUMBER);
    check_dtype(call, &op.out, dtype);
    return plan_reduce(call, &op, dims, keepDims);
}
STAND_SECOND_PHASE(aclnnReduceSum)

aclnnStatus aclnnMeanGetWorkspaceSize(const aclTensor *self, const aclIntArray *dim, bool keepDim,
                                      aclDataType dtype, aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnMean", bytes, executor);
    struct reduce_op op = {&reduce_mean, stand_in(call, "self", self), stand_out(call, "out", out),
                           0, 0};
    stand_types(call, &op.in, TYPE_NUMBER);
    stand_types(call, &op.out, TYPE_REAL);
    check_dtype(call, &op.out, dtype);
    return plan_reduce(call, &op, dim, keepDim);
}
STAND_SECOND_PHASE(aclnnMean)

aclnnStatus aclnnAmaxGetWorkspaceSize(const aclTensor *self, const aclIntArray *dim, bool keepDim,
                                      aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnAmax", bytes, executor);
    struct reduce_op op = {&reduce_max, stand_in(call, "self", self), stand_out(call, "out", out),
                           0, 0};
    stand_types(call, &op.in, TYPE_NUMBER);
    stand_same_type(call, &op.in, &op.out);
    stand_require(call, !op.in.given || stand_elements(op.in) > 0, "self is empty");
    return plan_reduce(call, &op, dim, keepDim);
}
STAND_SECOND_PHASE(aclnnAmax)

aclnnStatus aclnnNormGetWorkspaceSize(const aclTensor *self, const aclScalar *pScalar,
                                      const aclIntArray *dim, bool keepDim, aclTensor *out,
                                      SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnNorm", bytes, executor);
    struct reduce_op op = {&reduce_norm, stand_in(call, "self", self), stand_out(call, "out", out),
                           0, stand_scalar(call, "pScalar", pScalar)};
    stand_types(call, &op.in, STAND_FLOATS);
    stand_types(call, &op.out, STAND_FLOATS);
    return plan_reduce(call, &op, dim, keepDim);
}
STAND_SECOND_PHASE(aclnnNorm)

/* ------------------------------------------------------------------------- along an axis ---- */

struct line_op {
    struct stand_view in, out, out2; /* their last axis is the line */
    int64_t k;
    bool descending;
};

static void run_cumsum(struct stand_run *run, const void *state)
{
    const struct line_op *op = state;
    if (op_empty(op->in, op->in))
        return;
    double *x = stand_read_doubles(run, op->in);
    int64_t n = op->in.dims[op->in.rank - 1];
    for (int64_t i = 0; i < stand_elements(op->in); i++)
        x[i] += i % n ? x[i - 1] : 0;
    stand_write_doubles(run, op->out, x);
}

aclnnStatus aclnnCumsumGetWorkspaceSize(const aclTensor *self, int64_t dim, aclDataType dtype,
                                        aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnCumsum", bytes, executor);
    struct line_op op = {.in = stand_in(call, "self", self), .out = stand_out(call, "out", out)};
    stand_types(call, &op.in, TYPE_REAL | STAND_INTEGERS);
    stand_types(call, &op.out, TYPE_REAL | STAND_INTEGERS);
    check_dtype(call, &op.out, dtype);
    stand_same_shape(call, &op.in, &op.out);
    stand_rank(call, &op.in, 1, STAND_RANK);
    int axis = stand_axis(call, &op.in, dim);
    op.in = op_last(op.in, axis);
    op.out = op_last(op.out, axis);
    return stand_plan(call, run_cumsum, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnCumsum)

static void run_argmax(struct stand_run *run, const void *state)
{
    const struct line_op *op = state;
    int64_t n = op->in.dims[op->in.rank - 1], lines = stand_elements(op->out);
    double *x = stand_read_doubles(run, op->in);
    int64_t *at = stand_scratch(run, (size_t)(lines ? lines : 1) * sizeof *at);
    for (int64_t i = 0; i < lines; i++)
        for (int64_t j = 1; j < n; j++)
            if (x[i * n + j] > x[i * n + at[i]])
                at[i] = j;
    if (lines)
        stand_write_ints(run, op->out, at);
}

aclnnStatus aclnnArgMaxGetWorkspaceSize(const aclTensor *self, const int64_t dim,
                                        const bool keepdim, aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnArgMax", bytes, executor);
    struct line_op op = {.in = stand_in(call, "self", self), .out = stand_out(call, "out", out)};
    stand_types(call, &op.in, TYPE_REAL | STAND_INTEGERS);
    stand_types(call, &op.out, STAND_INDICES);
    stand_rank(call, &op.in, 1, STAND_RANK);
    int axis = stand_axis(call, &op.in, dim);
    int64_t shape[STAND_RANK];
    int rank = 0;
    for (int i = 0; i < op.in.rank; i++)
        if (i != axis || keepdim)
            shape[rank++] = i == axis ? 1 : op.in.dims[i];
    if (stand_holds(call) && stand_require(call, op.in.dims[axis] > 0, "self is empty along dim"))
        stand_shape(call, &op.out, rank, shape);
    op.in = op_last(op.in, axis);
    return stand_plan(call, run_argmax, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnArgMax)

struct placed {
    double value;
    int64_t at;
};

/* NaN counts as the largest; equal values stay in their order. */
static int by_value(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    if (isnan(x->value) != isnan(y->value))
        return isnan(x->value) ? 1 : -1;
    if (x->value != y->value && !isnan(x->value))
        return x->value < y->value ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static int by_value_down(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    bool equal = x->value == y->value || (isnan(x->value) && isnan(y->value));
    return equal ? by_value(a, b) : -by_value(a, b);
}

/* Values and indices of the first k of each line in order. `out` (the values) may be left out. */
static void run_sort(struct stand_run *run, const void *state)
{
    const struct line_op *op = state;
    if (op_empty(op->in, op->in))
        return;
    int64_t n = op->in.dims[op->in.rank - 1], lines = stand_elements(op->in) / n;
    double *x = stand_read_doubles(run, op->in);
    struct placed *line = stand_scratch(run, (size_t)n * sizeof *line);
    double *values = stand_scratch(run, (size_t)(lines * op->k + 1) * sizeof *values);
    int64_t *indices = stand_scratch(run, (size_t)(lines * op->k + 1) * sizeof *indices);
    for (int64_t i = 0; i < lines; i++) {
        for (int64_t j = 0; j < n; j++)
            line[j] = (struct placed){x[i * n + j], j};
        qsort(line, (size_t)n, sizeof *line, op->descending ? by_value_down : by_value);
        for (int64_t j = 0; j < op->k; j++) {
            values[i * op->k + j] = line[j].value;
            indices[i * op->k + j] = line[j].at;
        }
    }
    if (op->out.given && op->k)
        stand_write_doubles(run, op->out, values);
    if (op->k)
        stand_write_ints(run, op->out2, indices);
}

/* k < 0: the whole line. */
static aclnnStatus plan_sort(struct stand_call *call, struct line_op *op, int64_t dim, int64_t k)
{
    stand_types(call, &op->in, TYPE_REAL | STAND_INTEGERS);
    stand_same_type(call, &op->in, &op->out);
    stand_types(call, &op->out2, STAND_TYPE(ACL_INT64));
    stand_rank(call, &op->in, 1, STAND_RANK);
    int axis = stand_axis(call, &op->in, dim);
    if (stand_holds(call)) {
        int64_t n = op->in.dims[axis], shape[STAND_RANK];
        op->k = k < 0 ? n : k;
        stand_require(call, op->k <= n, "k is %lld of %lld", (long long)k, (long long)n);
        memcpy(shape, op->in.dims, sizeof shape);
        shape[axis] = op->k;
        stand_shape(call, &op->out, op->in.rank, shape);
        stand_shape(call, &op->out2, op->in.rank, shape);
    }
    uint64_t bytes = (uint64_t)stand_elements(op->in) * (op_bytes(op->in.type) + 8);
    op->in = op_last(op->in, axis);
    if (op->out.given)
        op->out = op_last(op->out, axis);
    op->out2 = op_last(op->out2, axis);
    return stand_plan(call, run_sort, op, sizeof *op, bytes);
}

aclnnStatus aclnnArgsortGetWorkspaceSize(const aclTensor *self, int64_t dim, bool descending,
                                         aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnArgsort", bytes, executor);
    struct line_op op = {.in = stand_in(call, "self", self),
                         .out2 = stand_out(call, "out", out),
                         .descending = descending};
    return plan_sort(call, &op, dim, -1);
}
STAND_SECOND_PHASE(aclnnArgsort)

aclnnStatus aclnnSortGetWorkspaceSize(const aclTensor *self, bool stable, int64_t dim,
                                      bool descending, aclTensor *valuesOut, aclTensor *indicesOut,
                                      SIZE_ARGS)
{
    (void)stable; /* this sort always is */
    struct stand_call *call = stand_begin("aclnnSort", bytes, executor);
    struct line_op op = {.in = stand_in(call, "self", self),
                         .out = stand_out(call, "valuesOut", valuesOut),
                         .out2 = stand_out(call, "indicesOut", indicesOut),
                         .descending = descending};
    return plan_sort(call, &op, dim, -1);
}
STAND_SECOND_PHASE(aclnnSort)

aclnnStatus aclnnTopkGetWorkspaceSize(const aclTensor *self, int64_t k, int64_t dim, bool largest,
                                      bool sorted, aclTensor *valuesOut, aclTensor *indicesOut,
                                      SIZE_ARGS)
{
    (void)sorted; /* what need not be sorted may be */
    struct stand_call *call = stand_begin("aclnnTopk", bytes, executor);
    struct line_op op = {.in = stand_in(call, "self", self),
                         .out = stand_out(call, "valuesOut", valuesOut),
                         .out2 = stand_out(call, "indicesOut", indicesOut),
                         .descending = largest};
    stand_require(call, k >= 0, "k is %lld", (long long)k);
    return plan_sort(call, &op, dim, k < 0 ? 0 : k);
}
STAND_SECOND_PHASE(aclnnTopk)
