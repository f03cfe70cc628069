/*
 * op_move.c - operators that only move elements: each element of the result is one element of the
 * input, or a constant.
 *
 * Each operator is a map from coordinates of the result to coordinates of the input, with the
 * numbers that it needs; one kernel walks the result.
 */
#include "tests/ascend/op.h"

#include <string.h>

struct move_op {
    struct stand_view in, out;
    /* False: the element is `fill`. `from` begins as `at`, the coordinates in the result. */
    bool (*map)(const struct move_op *op, const int64_t *at, int64_t *from);
    struct stand_ints list, list2;
    int axis;
    int64_t first, step;
    double fill;
};

static void run_move(struct stand_run *run, const void *state)
{
    const struct move_op *op = state;
    if (op_empty(op->out, op->out))
        return;
    bool exact = op_is_integer(op->in.type);
    int64_t *ints = exact ? stand_read_ints(run, op->in) : NULL;
    double *reals = exact ? NULL : stand_read_doubles(run, op->in);
    int64_t n = stand_elements(op->out), at[STAND_RANK] = {0}, from[STAND_RANK] = {0};
    int64_t *to_ints = exact ? stand_scratch(run, (size_t)n * sizeof *ints) : NULL;
    double *to_reals = exact ? NULL : stand_scratch(run, (size_t)n * sizeof *reals);
    for (int64_t i = 0; i < n; i++) {
        memcpy(from, at, sizeof from);
        int64_t source = -1;
        if (op->map(op, at, from)) {
            source = 0;
            for (int j = 0; j < op->in.rank; j++)
                source = source * op->in.dims[j] + from[j];
        }
        if (exact)
            to_ints[i] = source < 0 ? (int64_t)op->fill : ints[source];
        else
            to_reals[i] = source < 0 ? op->fill : reals[source];
        for (int j = op->out.rank - 1; j >= 0 && ++at[j] == op->out.dims[j]; j--)
            at[j] = 0;
    }
    if (exact)
        stand_write_ints(run, op->out, to_ints);
    else
        stand_write_doubles(run, op->out, to_reals);
}

#define SIZE_ARGS uint64_t *bytes, aclOpExecutor **executor

static aclnnStatus plan_move(struct stand_call *call, struct move_op *op)
{
    stand_types(call, &op->in, TYPE_NUMBER);
    stand_same_type(call, &op->in, &op->out);
    return stand_plan(call, run_move, op, sizeof *op, 0);
}

/* ------------------------------------------------------------------ permute, repeat, roll ---- */

static bool map_permute(const struct move_op *op, const int64_t *at, int64_t *from)
{
    for (int i = 0; i < op->in.rank; i++)
        from[op->list.values[i] < 0 ? op->list.values[i] + op->in.rank : op->list.values[i]] =
            at[i];
    return true;
}

aclnnStatus aclnnPermuteGetWorkspaceSize(const aclTensor *self, const aclIntArray *dims,
                                         aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnPermute", bytes, executor);
    struct move_op op = {stand_in(call, "self", self), stand_out(call, "out", out), map_permute,
                         .list = stand_ints(call, "dims", dims)};
    if (stand_holds(call) &&
        stand_require(call, op.list.n == op.in.rank, "dims has %lld entries, self %d dimensions",
                      (long long)op.list.n, op.in.rank)) {
        int64_t shape[STAND_RANK];
        unsigned seen = 0;
        for (int i = 0; i < op.in.rank; i++) {
            int axis = stand_axis(call, &op.in, op.list.values[i]);
            seen |= 1u << axis;
            shape[i] = op.in.dims[axis];
        }
        stand_require(call, seen == (1u << op.in.rank) - 1, "dims names an axis twice");
        stand_shape(call, &op.out, op.in.rank, shape);
    }
    return plan_move(call, &op);
}
STAND_SECOND_PHASE(aclnnPermute)

/* The result has at least as many dimensions as the input, whose are the last. */
static bool map_repeat(const struct move_op *op, const int64_t *at, int64_t *from)
{
    int more = op->out.rank - op->in.rank;
    for (int i = 0; i < op->in.rank; i++)
        from[i] = at[i + more] % op->in.dims[i];
    return true;
}

aclnnStatus aclnnRepeatGetWorkspaceSize(const aclTensor *self, const aclIntArray *repeats,
                                        aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnRepeat", bytes, executor);
    struct move_op op = {stand_in(call, "self", self), stand_out(call, "out", out), map_repeat,
                         .list = stand_ints(call, "repeats", repeats)};
    if (stand_holds(call) && stand_require(call, op.list.n >= op.in.rank && op.list.n <= STAND_RANK,
                                           "repeats has %lld entries, self %d dimensions",
                                           (long long)op.list.n, op.in.rank)) {
        int64_t shape[STAND_RANK];
        int more = (int)op.list.n - op.in.rank;
        for (int i = 0; i < op.list.n; i++) {
            stand_require(call, op.list.values[i] >= 0, "a repeat is negative");
            shape[i] = op.list.values[i] * (i < more ? 1 : op.in.dims[i - more]);
        }
        stand_shape(call, &op.out, (int)op.list.n, shape);
    }
    return plan_move(call, &op);
}
STAND_SECOND_PHASE(aclnnRepeat)

static bool map_interleave(const struct move_op *op, const int64_t *at, int64_t *from)
{
    from[op->axis] = at[op->axis] / op->step;
    return true;
}

aclnnStatus aclnnRepeatInterleaveIntWithDimGetWorkspaceSize(const aclTensor *self, int64_t repeats,
                                                            int64_t dim, int64_t outputSize,
                                                            aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnRepeatInterleaveIntWithDim", bytes, executor);
    struct move_op op = {stand_in(call, "self", self), stand_out(call, "out", out), map_interleave,
                         .step = repeats};
    op.axis = stand_axis(call, &op.in, dim);
    stand_require(call, repeats > 0, "repeats is %lld", (long long)repeats);
    if (stand_holds(call)) {
        int64_t shape[STAND_RANK];
        memcpy(shape, op.in.dims, sizeof shape);
        shape[op.axis] *= repeats;
        stand_require(call, outputSize == shape[op.axis], "outputSize is %lld, not %lld",
                      (long long)outputSize, (long long)shape[op.axis]);
        stand_shape(call, &op.out, op.in.rank, shape);
    }
    return plan_move(call, &op);
}
STAND_SECOND_PHASE(aclnnRepeatInterleaveIntWithDim)

static bool map_roll(const struct move_op *op, const int64_t *at, int64_t *from)
{
    for (int64_t i = 0; i < op->list2.n; i++) {
        int64_t axis = op->list2.values[i];
        axis += axis < 0 ? op->in.rank : 0;
        int64_t n = op->in.dims[axis];
        from[axis] = ((from[axis] - op->list.values[i]) % n + n) % n;
    }
    (void)at;
    return true;
}

aclnnStatus aclnnRollGetWorkspaceSize(const aclTensor *x, const aclIntArray *shifts,
                                      const aclIntArray *dims, aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnRoll", bytes, executor);
    struct move_op op = {stand_in(call, "x", x), stand_out(call, "out", out), map_roll,
                         .list = stand_ints(call, "shifts", shifts),
                         .list2 = stand_ints(call, "dims", dims)};
    stand_same_shape(call, &op.in, &op.out);
    stand_require(call, op.list.n == op.list2.n && op.list.n > 0, "%lld shifts for %lld dims",
                  (long long)op.list.n, (long long)op.list2.n);
    for (int64_t i = 0; stand_holds(call) && i < op.list2.n; i++)
        stand_axis(call, &op.in, op.list2.values[i]);
    return plan_move(call, &op);
}
STAND_SECOND_PHASE(aclnnRoll)

/* ------------------------------------------------------------------ slices, triangles, pads ----
 */

static bool map_slice(const struct move_op *op, const int64_t *at, int64_t *from)
{
    from[op->axis] = op->first + at[op->axis] * op->step;
    return true;
}

static int64_t clamped(int64_t at, int64_t n)
{
    at += at < 0 ? n : 0;
    return at < 0 ? 0 : at > n ? n : at;
}

aclnnStatus aclnnSliceGetWorkspaceSize(const aclTensor *self, int64_t dim, int64_t start,
                                       int64_t end, int64_t step, aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnSlice", bytes, executor);
    struct move_op op = {stand_in(call, "self", self), stand_out(call, "out", out), map_slice,
                         .step = step};
    op.axis = stand_axis(call, &op.in, dim);
    stand_require(call, step > 0, "step is %lld", (long long)step);
    if (stand_holds(call)) {
        int64_t shape[STAND_RANK], n = op.in.dims[op.axis];
        memcpy(shape, op.in.dims, sizeof shape);
        op.first = clamped(start, n);
        int64_t last = clamped(end, n);
        shape[op.axis] = last > op.first ? (last - op.first + step - 1) / step : 0;
        stand_shape(call, &op.out, op.in.rank, shape);
    }
    return plan_move(call, &op);
}
STAND_SECOND_PHASE(aclnnSlice)

/* step 1: the upper triangle is kept, -1: the lower; `first` is the diagonal. */
static bool map_triangle(const struct move_op *op, const int64_t *at, int64_t *from)
{
    (void)from;
    int64_t distance = at[op->in.rank - 1] - at[op->in.rank - 2] - op->first;
    return distance * op->step >= 0;
}

static aclnnStatus triangle(const char *name, const aclTensor *self, int64_t diagonal, bool inplace,
                            const aclTensor *out, int64_t side, uint64_t *bytes,
                            aclOpExecutor **executor)
{
    struct stand_call *call = stand_begin(name, bytes, executor);
    struct move_op op = {.map = map_triangle, .first = diagonal, .step = side};
    op.in = inplace ? stand_inout(call, "selfRef", self) : stand_in(call, "self", self);
    op.out = inplace ? op.in : stand_out(call, "out", out);
    stand_rank(call, &op.in, 2, STAND_RANK);
    stand_same_shape(call, &op.in, &op.out);
    return plan_move(call, &op);
}

#define TRIANGLE(name, side)                                                                       \
    aclnnStatus aclnn##name##GetWorkspaceSize(const aclTensor *self, int64_t diagonal,             \
                                              aclTensor *out, SIZE_ARGS)                           \
    {                                                                                              \
        return triangle("aclnn" #name, self, diagonal, false, out, side, bytes, executor);         \
    }                                                                                              \
    STAND_SECOND_PHASE(aclnn##name)                                                                \
    aclnnStatus aclnnInplace##name##GetWorkspaceSize(aclTensor *self, int64_t diagonal, SIZE_ARGS) \
    {                                                                                              \
        return triangle("aclnnInplace" #name, self, diagonal, true, NULL, side, bytes, executor);  \
    }                                                                                              \
    STAND_SECOND_PHASE(aclnnInplace##name)
TRIANGLE(Tril, -1)
TRIANGLE(Triu, 1)

/* The pads come in pairs (before, after) from the last axis on. */
static bool map_pad(const struct move_op *op, const int64_t *at, int64_t *from)
{
    (void)at;
    for (int i = 0; i < op->in.rank; i++) {
        int64_t pair = op->in.rank - 1 - i;
        from[i] -= 2 * pair < op->list.n ? op->list.values[2 * pair] : 0;
        if (from[i] < 0 || from[i] >= op->in.dims[i])
            return false;
    }
    return true;
}

static bool map_reflect(const struct move_op *op, const int64_t *at, int64_t *from)
{
    int last = op->in.rank - 1;
    int64_t n = op->in.dims[last], i = at[last] - op->list.values[0];
    from[last] = i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
    return true;
}

static void check_padded(struct stand_call *call, const struct move_op *op)
{
    int64_t shape[STAND_RANK];
    if (!stand_holds(call) ||
        !stand_require(call, op->list.n % 2 == 0 && op->list.n <= 2 * op->in.rank,
                       "%lld pads for %d dimensions", (long long)op->list.n, op->in.rank))
        return;
    memcpy(shape, op->in.dims, sizeof shape);
    for (int64_t i = 0; i < op->list.n; i++)
        shape[op->in.rank - 1 - i / 2] += op->list.values[i];
    stand_shape(call, &op->out, op->in.rank, shape);
}

aclnnStatus aclnnConstantPadNdGetWorkspaceSize(const aclTensor *self, const aclIntArray *pad,
                                               const aclScalar *value, aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnConstantPadNd", bytes, executor);
    struct move_op op = {stand_in(call, "self", self), stand_out(call, "out", out), map_pad,
                         .list = stand_ints(call, "pad", pad),
                         .fill = stand_scalar(call, "value", value)};
    check_padded(call, &op);
    return plan_move(call, &op);
}
STAND_SECOND_PHASE(aclnnConstantPadNd)

aclnnStatus aclnnReflectionPad1dGetWorkspaceSize(const aclTensor *self, const aclIntArray *padding,
                                                 aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnReflectionPad1d", bytes, executor);
    struct move_op op = {stand_in(call, "self", self), stand_out(call, "out", out), map_reflect,
                         .list = stand_ints(call, "padding", padding)};
    op_chips(call, CHIP_BIG);
    stand_rank(call, &op.in, 2, 3);
    stand_require(call, op.list.n == 2, "padding has %lld entries", (long long)op.list.n);
    for (int i = 0; stand_holds(call) && i < 2; i++)
        stand_require(call,
                      op.list.values[i] >= 0 && op.list.values[i] < op.in.dims[op.in.rank - 1],
                      "a padding reflects more than the input has");
    check_padded(call, &op);
    return plan_move(call, &op);
}
STAND_SECOND_PHASE(aclnnReflectionPad1d)

static bool map_nearest(const struct move_op *op, const int64_t *at, int64_t *from)
{
    for (int i = 2; i < 4; i++)
        from[i] = at[i] * op->in.dims[i] / op->out.dims[i];
    return true;
}

aclnnStatus aclnnUpsampleNearest2dGetWorkspaceSize(const aclTensor *self,
                                                   const aclIntArray *outputSize, aclTensor *out,
                                                   SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnUpsampleNearest2d", bytes, executor);
    struct move_op op = {stand_in(call, "self", self), stand_out(call, "out", out), map_nearest,
                         .list = stand_ints(call, "outputSize", outputSize)};
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.in, TYPE_REAL | STAND_TYPE(ACL_UINT8));
    stand_rank(call, &op.in, 4, 4);
    stand_require(call, !op.in.given || op.in.format == ACL_FORMAT_NCHW,
                  "self has format %d: NCHW only", (int)op.in.format);
    stand_require(call, op.list.n == 2, "outputSize has %lld entries", (long long)op.list.n);
    if (stand_holds(call)) {
        int64_t shape[] = {op.in.dims[0], op.in.dims[1], op.list.values[0], op.list.values[1]};
        stand_shape(call, &op.out, 4, shape);
    }
    return plan_move(call, &op);
}
STAND_SECOND_PHASE(aclnnUpsampleNearest2d)

/* -------------------------------------------------------------------------------- cat ---- */

struct cat_op {
    int64_t n;
    int axis;
    struct stand_view out;
    struct stand_view in[128];
};

static void run_cat(struct stand_run *run, const void *state)
{
    const struct cat_op *op = state;
    int64_t at = 0;
    for (int64_t i = 0; i < op->n; i++) {
        int64_t n = op->in[i].dims[op->axis];
        op_copy(run, stand_slice(op->out, op->axis, at, n), op->in[i]);
        at += n;
    }
}

aclnnStatus aclnnCatGetWorkspaceSize(const aclTensorList *tensors, int64_t dim, aclTensor *out,
                                     SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnCat", bytes, executor);
    struct cat_op op = {.n = stand_list(call, "tensors", tensors)};
    stand_require(call, op.n <= 128, "%lld tensors", (long long)op.n);
    op.out = stand_out(call, "out", out);
    stand_types(call, &op.out, TYPE_NUMBER);
    op.axis = stand_axis(call, &op.out, dim);
    int64_t total = 0;
    for (int64_t i = 0; stand_holds(call) && i < op.n; i++) {
        op.in[i] = stand_list_in(call, "tensors", tensors, i);
        op_holds(call, op.in[i].type, &op.out);
        int64_t shape[STAND_RANK];
        memcpy(shape, op.out.dims, sizeof shape);
        if (stand_holds(call))
            total += shape[op.axis] = op.in[i].dims[op.axis];
        stand_shape(call, &op.in[i], op.out.rank, shape);
    }
    stand_require(call, !stand_holds(call) || total == op.out.dims[op.axis],
                  "the tensors have %lld along the axis, out not", (long long)total);
    return stand_plan(call, run_cat, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnCat)
