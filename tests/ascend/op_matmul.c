/*
 * op_matmul.c - products of matrices: Mm, Matmul, BatchMatMul, Mv, Ger; the weight's FRACTAL_NZ
 * format; the triangular solve.
 *
 * What the cube unit computes in follows cubeMathType, and so does the rounding of the result:
 * products of F16 have sums in F32 and a result in F16, which is then cast to out's type. Only F32
 * operands have results in F32, of operands cut to 11 bits of mantissa (HF32) unless the type is to
 * be kept.
 */
#include "tests/ascend/op.h"

#include <string.h>

#define SIZE_ARGS uint64_t *bytes, aclOpExecutor **executor

enum { KEEP_DTYPE, ALLOW_DOWN_PRECISION, USE_FP16, USE_HF32, USE_FP32_ADD };

/* The views have equal ranks >= 2; batches of a and b may be 1. */
struct product_op {
    struct stand_view a, b, out;
    aclDataType operands, result; /* what they are rounded to; HF32 is ACL_FLOAT with hf32 */
    bool hf32;
};

/* ------------------------------------------------------------------------------- products ---- */

/* One batch: out (m x n) = a (m x k) . b (k x n). */
static void multiply(struct stand_run *run, const struct product_op *op, struct stand_view a,
                     struct stand_view b, struct stand_view out)
{
    int64_t m = a.dims[0], k = a.dims[1], n = b.dims[1];
    struct op_weight w = {.operands = op->operands, .hf32 = op->hf32};
    if (!op_weight_open(run, &w, b))
        return;
    float *x = stand_read_floats(run, a);
    op_narrow(x, m * k, op->operands, op->hf32);
    float *y = stand_scratch(run, (size_t)(m * n) * sizeof *y);
    op_weight_multiply(run, &w, x, m, NULL, op->result, y);
    stand_write_floats(run, out, y);
}

static void run_product(struct stand_run *run, const void *state)
{
    const struct product_op *op = state;
    int64_t k = op->a.dims[op->a.rank - 1], batches = 1;
    if (op_empty(op->out, op->out))
        return;
    if (!k) {
        stand_write_floats(run, op->out,
                           stand_scratch(run, (size_t)stand_elements(op->out) * sizeof(float)));
        return;
    }
    for (int i = 0; i < op->out.rank - 2; i++)
        batches *= op->out.dims[i];
    for (int64_t i = 0; i < batches; i++) {
        struct stand_view a = op->a, b = op->b, out = op->out;
        int64_t rest = i;
        for (int axis = op->out.rank - 3; axis >= 0; axis--) {
            int64_t at = rest % op->out.dims[axis];
            rest /= op->out.dims[axis];
            a = stand_select(a, axis, a.dims[axis] == 1 ? 0 : at);
            b = stand_select(b, axis, b.dims[axis] == 1 ? 0 : at);
            out = stand_select(out, axis, at);
        }
        multiply(run, op, a, b, out);
    }
}

/* Fills in what the chip computes in; see the head of this file. */
static void set_types(struct stand_call *call, struct product_op *op, int8_t mode)
{
    aclDataType both = op_promote(op->a.type, op->b.type);
    stand_types(call, &op->a, STAND_FLOATS);
    stand_types(call, &op->b, STAND_FLOATS);
    stand_types(call, &op->out, STAND_FLOATS);
    stand_require(call, mode >= KEEP_DTYPE && mode <= USE_FP32_ADD, "cubeMathType is %d", mode);
    bool bf16 = op->a.type == ACL_BF16 || op->b.type == ACL_BF16;
    op->operands = op->result = both;
    if (op_chip() == CHIP_310P) {
        stand_require(call, mode != USE_HF32 && (mode != KEEP_DTYPE || both != ACL_FLOAT),
                      "cubeMathType %d: the 310P multiplies F16 only", mode);
        op->operands = ACL_FLOAT16;
    } else if (mode == USE_FP16) {
        /* Chips warn, and convert. */
        stand_require(call, !bf16 || stand_is_loose(), "cubeMathType 2 does not take BF16");
        op->operands = op->result = ACL_FLOAT16;
    } else {
        stand_require(call, mode != USE_HF32 || both == ACL_FLOAT, "cubeMathType 3 takes F32 only");
        op->hf32 = both == ACL_FLOAT && (mode == ALLOW_DOWN_PRECISION || mode == USE_HF32);
    }
}

static bool is_transposed_matrix(struct stand_view v)
{
    int last = v.rank - 1;
    return v.strides[last - 1] == 1 || v.dims[last - 1] == 1;
}

/* The views have equal ranks; out's shape must be what follows from a's and b's. */
static aclnnStatus plan_product(struct stand_call *call, struct product_op *op, int8_t mode)
{
    op_chips(call, CHIP_BIG);
    set_types(call, op, mode);
    if (stand_holds(call)) {
        int last = op->a.rank - 1;
        int64_t shape[STAND_RANK];
        stand_require(call, op->a.dims[last] == op->b.dims[last - 1], "%lld columns meet %lld rows",
                      (long long)op->a.dims[last], (long long)op->b.dims[last - 1]);
        for (int i = 0; i < last - 1; i++) {
            int64_t a = op->a.dims[i], b = op->b.dims[i];
            stand_require(call, a == b || a == 1 || b == 1, "batches of %lld and %lld",
                          (long long)a, (long long)b);
            shape[i] = a == 1 ? b : a;
        }
        shape[last - 1] = op->a.dims[last - 1];
        shape[last] = op->b.dims[last];
        stand_shape(call, &op->out, last + 1, shape);
        stand_require(call,
                      op->b.format != ACL_FORMAT_FRACTAL_NZ || op->b.strides[last] == 1 ||
                          is_transposed_matrix(op->b),
                      "a FRACTAL_NZ weight is dense or transposed");
        stand_require(call, op->a.format != ACL_FORMAT_FRACTAL_NZ, "self must be ND");
    }
    /* What is cast or made contiguous first. */
    uint64_t copies = (uint64_t)stand_elements(op->a) * 4 + (uint64_t)stand_elements(op->out) * 4;
    return stand_plan(call, run_product, op, sizeof *op, WORKSPACE + copies);
}

static aclnnStatus product(const char *name, int rank, const aclTensor *self, const aclTensor *mat2,
                           const aclTensor *out, int8_t mode, uint64_t *bytes,
                           aclOpExecutor **executor)
{
    struct stand_call *call = stand_begin(name, bytes, executor);
    struct product_op op = {.a = stand_in(call, "self", self),
                            .b = stand_in(call, "mat2", mat2),
                            .out = stand_out(call, "out", out)};
    stand_rank(call, &op.a, rank, rank);
    stand_rank(call, &op.b, rank, rank);
    stand_rank(call, &op.out, rank, rank);
    return plan_product(call, &op, mode);
}

aclnnStatus aclnnMmGetWorkspaceSize(const aclTensor *self, const aclTensor *mat2, aclTensor *out,
                                    int8_t cubeMathType, SIZE_ARGS)
{
    return product("aclnnMm", 2, self, mat2, out, cubeMathType, bytes, executor);
}
STAND_SECOND_PHASE(aclnnMm)

aclnnStatus aclnnBatchMatMulGetWorkspaceSize(const aclTensor *self, const aclTensor *mat2,
                                             aclTensor *out, int8_t cubeMathType, SIZE_ARGS)
{
    return product("aclnnBatchMatMul", 3, self, mat2, out, cubeMathType, bytes, executor);
}
STAND_SECOND_PHASE(aclnnBatchMatMul)

/* The view with `n` axes of one element in front of axis `at`. */
static struct stand_view widened(struct stand_view v, int at, int n)
{
    if (v.rank + n > STAND_RANK)
        return v;
    for (int i = v.rank - 1; i >= at; i--) {
        v.dims[i + n] = v.dims[i];
        v.strides[i + n] = v.strides[i];
    }
    for (int i = at; i < at + n; i++) {
        v.dims[i] = 1;
        v.strides[i] = i + n < v.rank + n ? v.dims[i + n] * v.strides[i + n] : 1;
    }
    v.rank += n;
    return v;
}

/* Vectors count as matrices of one row or column, and missing batches as 1. */
aclnnStatus aclnnMatmulGetWorkspaceSize(const aclTensor *self, const aclTensor *mat2,
                                        aclTensor *out, int8_t cubeMathType, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnMatmul", bytes, executor);
    struct product_op op = {.a = stand_in(call, "self", self),
                            .b = stand_in(call, "mat2", mat2),
                            .out = stand_out(call, "out", out)};
    stand_rank(call, &op.a, 1, 6);
    stand_rank(call, &op.b, 1, 6);
    if (stand_holds(call)) {
        bool vector_a = op.a.rank == 1, vector_b = op.b.rank == 1;
        if (vector_a)
            op.a = widened(op.a, 0, 1);
        if (vector_b)
            op.b = widened(op.b, 1, 1);
        int rank = op.a.rank > op.b.rank ? op.a.rank : op.b.rank;
        op.a = widened(op.a, 0, rank - op.a.rank);
        op.b = widened(op.b, 0, rank - op.b.rank);
        if (vector_b)
            op.out = widened(op.out, op.out.rank, 1);
        if (vector_a)
            op.out = widened(op.out, op.out.rank ? op.out.rank - 1 : 0, 1);
    }
    return plan_product(call, &op, cubeMathType);
}
STAND_SECOND_PHASE(aclnnMatmul)

aclnnStatus aclnnMvGetWorkspaceSize(const aclTensor *self, const aclTensor *vec, aclTensor *out,
                                    int8_t cubeMathType, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnMv", bytes, executor);
    struct product_op op = {.a = stand_in(call, "self", self),
                            .b = stand_in(call, "vec", vec),
                            .out = stand_out(call, "out", out)};
    stand_rank(call, &op.a, 2, 2);
    stand_rank(call, &op.b, 1, 1);
    stand_rank(call, &op.out, 1, 1);
    if (stand_holds(call)) {
        op.b = widened(op.b, 1, 1);
        op.out = widened(op.out, 1, 1);
    }
    return plan_product(call, &op, cubeMathType);
}
STAND_SECOND_PHASE(aclnnMv)

static void run_outer(struct stand_run *run, const void *state)
{
    const struct product_op *op = state;
    if (op_empty(op->out, op->out))
        return;
    double *a = stand_read_doubles(run, op->a), *b = stand_read_doubles(run, op->b);
    int64_t m = op->out.dims[0], n = op->out.dims[1];
    double *y = stand_scratch(run, (size_t)(m * n) * sizeof *y);
    for (int64_t i = 0; i < m * n; i++)
        y[i] = op_round(a[i / n] * b[i % n], op->result);
    stand_write_doubles(run, op->out, y);
}

aclnnStatus aclnnGerGetWorkspaceSize(const aclTensor *self, const aclTensor *vec2, aclTensor *out,
                                     SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnGer", bytes, executor);
    struct product_op op = {.a = stand_in(call, "self", self),
                            .b = stand_in(call, "vec2", vec2),
                            .out = stand_out(call, "out", out)};
    stand_types(call, &op.a, TYPE_NUMBER);
    stand_types(call, &op.b, TYPE_NUMBER);
    stand_rank(call, &op.a, 1, 1);
    stand_rank(call, &op.b, 1, 1);
    op.result = op_promote(op.a.type, op.b.type);
    op_holds(call, op.result, &op.out);
    if (stand_holds(call)) {
        int64_t shape[] = {op.a.dims[0], op.b.dims[0]};
        stand_shape(call, &op.out, 2, shape);
    }
    return stand_plan(call, run_outer, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnGer)

/* -------------------------------------------------------------------- weights' own format ---- */

struct nz_op {
    struct stand_view weight;
};

static void run_nz(struct stand_run *run, const void *state)
{
    const struct nz_op *op = state;
    const struct stand_view *w = &op->weight;
    size_t bytes = op_bytes(w->type);
    int64_t rows = w->dims[0], columns = w->dims[1];
    size_t size = op_nz_bytes(rows, columns, w->type);
    uint8_t *data = stand_bytes(run, w, w->offset * (int64_t)bytes, size);
    if (!data)
        return;
    uint8_t *nz = stand_scratch(run, size);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(nz + (size_t)op_nz_at(rows, op_nz_width(w->type), r, c) * bytes,
                   data + (size_t)(r * columns + c) * bytes, bytes);
    memcpy(data, nz, size);
}

/* In place: the allocation must have the bytes that aclnnCalculateMatmulWeightSizeV2 gives. */
aclnnStatus aclnnTransMatmulWeightGetWorkspaceSize(aclTensor *mmWeightRef, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnTransMatmulWeight", bytes, executor);
    struct nz_op op = {stand_inout(call, "mmWeightRef", mmWeightRef)};
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.weight, STAND_FLOATS | STAND_TYPE(ACL_INT8));
    stand_rank(call, &op.weight, 2, 2);
    stand_dense(call, &op.weight);
    uint64_t copy = 0;
    if (stand_holds(call))
        copy = op_nz_bytes(op.weight.dims[0], op.weight.dims[1], op.weight.type);
    return stand_plan(call, run_nz, &op, sizeof op, copy);
}
STAND_SECOND_PHASE(aclnnTransMatmulWeight)

aclnnStatus aclnnCalculateMatmulWeightSizeV2(const aclIntArray *tensorShape, aclDataType dtype,
                                             uint64_t *weightTensorSize)
{
    uint64_t bytes = 0;
    aclOpExecutor *unused = NULL;
    if (!weightTensorSize)
        return ACLNN_ERR_PARAM_NULLPTR;
    struct stand_call *call = stand_begin("aclnnCalculateMatmulWeightSizeV2", &bytes, &unused);
    struct stand_ints shape = stand_ints(call, "tensorShape", tensorShape);
    stand_require(call, shape.n == 2 && op_bytes(dtype) <= 4, "a matrix of F16, F32 or INT8 only");
    if (stand_holds(call))
        *weightTensorSize = op_nz_bytes(shape.values[0], shape.values[1], dtype);
    aclnnStatus status =
        stand_plan(call, run_nz, &(struct nz_op){.weight.given = false}, sizeof(struct nz_op), 0);
    if (!status)
        aclDestroyAclOpExecutor(unused);
    return status;
}

/* ------------------------------------------------------------------------ triangular solve ---- */

struct solve_op {
    struct stand_view b, a, x, copy;
    bool upper, transpose, unit;
};

static void run_solve(struct stand_run *run, const void *state)
{
    const struct solve_op *op = state;
    if (op_empty(op->x, op->a))
        return;
    int64_t n = op->a.dims[op->a.rank - 1], m = op->x.dims[op->x.rank - 1];
    double *a = stand_read_doubles(run, op->a), *x = stand_read_doubles(run, op->b);
    for (int64_t batch = 0; batch < stand_elements(op->a) / (n * n); batch++) {
        const double *A = a + batch * n * n;
        double *X = x + batch * n * m;
        /* The transpose of a lower triangle is solved like an upper one. */
        bool down = op->upper == op->transpose;
        for (int64_t s = 0; s < n; s++) {
            int64_t i = down ? s : n - 1 - s;
            for (int64_t column = 0; column < m; column++) {
                double sum = X[i * m + column];
                for (int64_t t = 0; t < s; t++) {
                    int64_t j = down ? t : n - 1 - t;
                    sum -= (op->transpose ? A[j * n + i] : A[i * n + j]) * X[j * m + column];
                }
                X[i * m + column] = op->unit ? sum : sum / A[i * n + i];
            }
        }
    }
    stand_write_doubles(run, op->x, x);
    stand_write_doubles(run, op->copy, a);
}

aclnnStatus aclnnTriangularSolveGetWorkspaceSize(const aclTensor *self, const aclTensor *A,
                                                 bool upper, bool transpose, bool unitriangular,
                                                 aclTensor *xOut, aclTensor *mOut, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnTriangularSolve", bytes, executor);
    struct solve_op op = {stand_in(call, "self", self),
                          stand_in(call, "A", A),
                          stand_out(call, "xOut", xOut),
                          stand_out(call, "mOut", mOut),
                          upper,
                          transpose,
                          unitriangular};
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.b, TYPE_F32 | TYPE_DOUBLE);
    stand_same_type(call, &op.b, &op.a);
    stand_same_type(call, &op.b, &op.x);
    stand_same_type(call, &op.b, &op.copy);
    stand_rank(call, &op.b, 2, STAND_RANK);
    stand_same_shape(call, &op.b, &op.x);
    stand_same_shape(call, &op.a, &op.copy);
    if (stand_holds(call)) {
        int64_t shape[STAND_RANK];
        memcpy(shape, op.b.dims, sizeof shape);
        shape[op.b.rank - 1] = shape[op.b.rank - 2];
        stand_shape(call, &op.a, op.b.rank, shape);
    }
    return stand_plan(call, run_solve, &op, sizeof op, 4096);
}
STAND_SECOND_PHASE(aclnnTriangularSolve)
