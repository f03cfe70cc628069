/*
 * op_norm.c - norms, softmax, gated activations and rotary positions.
 *
 * Inputs of any float type are computed on in F32 and better and rounded once, as the documentation
 * describes these operators.
 */
#include "aclnnop/aclnn_rotary_position_embedding.h"
#include "tests/ascend/op.h"

#include <math.h>
#include <string.h>

#define SIZE_ARGS uint64_t *bytes, aclOpExecutor **executor

/* -------------------------------------------------------------------------------- norms ---- */

struct norm_op {
    struct stand_view x, x2, gamma, beta, y, sum, mean, rstd;
    int64_t n;          /* elements of a normalised row */
    int64_t group_rows; /* GroupNorm: rows of one batch element, 0: another norm */
    double eps;
    bool centred;
};

/* The scale of element j of row i: GroupNorm has one a channel, the others one an element. */
static double weight_of(const struct norm_op *op, const double *w, double none, int64_t i,
                        int64_t j)
{
    if (!w)
        return none;
    if (!op->group_rows)
        return w[j];
    int64_t channels = stand_elements(op->gamma.given ? op->gamma : op->beta) / op->group_rows;
    return w[i % op->group_rows * channels + j / (op->n / channels)];
}

static void run_norm(struct stand_run *run, const void *state)
{
    const struct norm_op *op = state;
    if (op_empty(op->x, op->x))
        return;
    int64_t total = stand_elements(op->x), rows = total / op->n;
    double *x = stand_read_doubles(run, op->x);
    double *gamma = op->gamma.given ? stand_read_doubles(run, op->gamma) : NULL;
    double *beta = op->beta.given ? stand_read_doubles(run, op->beta) : NULL;
    double *means = stand_scratch(run, (size_t)rows * sizeof *means);
    double *rstds = stand_scratch(run, (size_t)rows * sizeof *rstds);
    if (op->x2.given) {
        double *x2 = stand_read_doubles(run, op->x2);
        for (int64_t i = 0; i < total; i++)
            x[i] = op_round(x[i] + x2[i], op->x.type);
        if (op->sum.given)
            stand_write_doubles(run, op->sum, x);
    }
    for (int64_t i = 0; i < rows; i++) {
        double *row = x + i * op->n, sum = 0, squares = 0;
        for (int64_t j = 0; op->centred && j < op->n; j++)
            sum += row[j];
        means[i] = sum / (double)op->n;
        for (int64_t j = 0; j < op->n; j++)
            squares += (row[j] - means[i]) * (row[j] - means[i]);
        rstds[i] = 1 / sqrt(squares / (double)op->n + op->eps);
        for (int64_t j = 0; j < op->n; j++)
            row[j] = (row[j] - means[i]) * rstds[i] * weight_of(op, gamma, 1, i, j) +
                     weight_of(op, beta, 0, i, j);
    }
    stand_write_doubles(run, op->y, x);
    if (op->mean.given)
        stand_write_doubles(run, op->mean, means);
    if (op->rstd.given)
        stand_write_doubles(run, op->rstd, rstds);
}

/* gamma has the last dimensions of x; `stat`, of x's rank, has 1 there. llama.cpp leaves the ones
 * out. */
static void check_last(struct stand_call *call, const struct stand_view *x,
                       const struct stand_view *gamma, const struct stand_view *stat)
{
    if (!stand_holds(call) || !stand_require(call, gamma->rank >= 1 && gamma->rank <= x->rank,
                                             "gamma has %d dimensions, x %d", gamma->rank, x->rank))
        return;
    int first = x->rank - gamma->rank;
    stand_shape(call, gamma, gamma->rank, x->dims + first);
    int64_t shape[STAND_RANK];
    for (int i = 0; i < x->rank; i++)
        shape[i] = i < first ? x->dims[i] : 1;
    bool without_ones = stand_is_loose() && stat->rank == first;
    stand_shape(call, stat, without_ones ? first : x->rank, shape);
}

static aclnnStatus plan_norm(struct stand_call *call, struct norm_op *op)
{
    return stand_plan(call, run_norm, op, sizeof *op, 4096);
}

aclnnStatus aclnnRmsNormGetWorkspaceSize(const aclTensor *x, const aclTensor *gamma, double epsilon,
                                         const aclTensor *yOut, const aclTensor *rstdOut, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnRmsNorm", bytes, executor);
    struct norm_op op = {.x = stand_in(call, "x", x),
                         .gamma = stand_in(call, "gamma", gamma),
                         .y = stand_out(call, "yOut", yOut),
                         .rstd = stand_out(call, "rstdOut", rstdOut),
                         .eps = epsilon};
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.x, STAND_FLOATS);
    stand_types(call, &op.gamma, STAND_FLOATS);
    stand_types(call, &op.rstd, TYPE_F32);
    stand_same_type(call, &op.x, &op.y);
    stand_require(
        call, op.gamma.type == op.x.type || (op.gamma.type == ACL_FLOAT && op_chip() == CHIP_910B),
        "gamma has type %d, x %d", (int)op.gamma.type, (int)op.x.type);
    stand_tiling(call);
    stand_same_shape(call, &op.x, &op.y);
    check_last(call, &op.x, &op.gamma, &op.rstd);
    op.n = stand_elements(op.gamma);
    stand_require(call, op_chip() != CHIP_310P || op.n * (int64_t)op_bytes(op.gamma.type) >= 32,
                  "gamma has fewer than 32 bytes");
    return plan_norm(call, &op);
}
STAND_SECOND_PHASE(aclnnRmsNorm)

aclnnStatus aclnnAddRmsNormGetWorkspaceSize(const aclTensor *x1, const aclTensor *x2,
                                            const aclTensor *gamma, double epsilon, aclTensor *yOut,
                                            aclTensor *rstdOut, aclTensor *xOut, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnAddRmsNorm", bytes, executor);
    struct norm_op op = {.x = stand_in(call, "x1", x1),
                         .x2 = stand_in(call, "x2", x2),
                         .gamma = stand_in(call, "gamma", gamma),
                         .y = stand_out(call, "yOut", yOut),
                         .rstd = stand_out_optional(call, "rstdOut", rstdOut),
                         .sum = rstdOut ? stand_out(call, "xOut", xOut)
                                        : stand_out_optional(call, "xOut", xOut),
                         .eps = epsilon};
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.x, STAND_FLOATS);
    stand_same_type(call, &op.x, &op.x2);
    stand_same_type(call, &op.x, &op.gamma);
    stand_same_type(call, &op.x, &op.y);
    stand_same_type(call, &op.x, &op.sum);
    stand_types(call, &op.rstd, TYPE_F32);
    stand_same_shape(call, &op.x, &op.x2);
    stand_same_shape(call, &op.x, &op.y);
    stand_same_shape(call, &op.x, &op.sum);
    stand_require(call, epsilon >= 0, "epsilon is negative");
    if (!op.rstd.given && stand_holds(call)) {
        stand_require(call, op.x.type != ACL_FLOAT, "F32 needs rstdOut");
        int64_t shape[] = {1, op.x.rank ? op.x.dims[op.x.rank - 1] : 1};
        stand_shape(call, &op.gamma, 2, shape);
    } else {
        check_last(call, &op.x, &op.gamma, &op.rstd);
    }
    op.n = stand_elements(op.gamma);
    return plan_norm(call, &op);
}
STAND_SECOND_PHASE(aclnnAddRmsNorm)

aclnnStatus aclnnLayerNormGetWorkspaceSize(const aclTensor *input,
                                           const aclIntArray *normalizedShape,
                                           const aclTensor *weightOptional,
                                           const aclTensor *biasOptional, double eps,
                                           aclTensor *out, aclTensor *meanOutOptional,
                                           aclTensor *rstdOutOptional, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnLayerNorm", bytes, executor);
    struct stand_ints shape = stand_ints(call, "normalizedShape", normalizedShape);
    struct norm_op op = {.x = stand_in(call, "input", input),
                         .gamma = stand_in_optional(call, "weight", weightOptional),
                         .beta = stand_in_optional(call, "bias", biasOptional),
                         .y = stand_out(call, "out", out),
                         .mean = stand_out_optional(call, "meanOut", meanOutOptional),
                         .rstd = stand_out_optional(call, "rstdOut", rstdOutOptional),
                         .eps = eps,
                         .centred = true};
    stand_types(call, &op.x, STAND_FLOATS);
    stand_types(call, &op.y, STAND_FLOATS);
    stand_types(call, &op.gamma, STAND_FLOATS);
    stand_types(call, &op.beta, STAND_FLOATS);
    stand_types(call, &op.mean, STAND_FLOATS);
    stand_types(call, &op.rstd, STAND_FLOATS);
    stand_same_shape(call, &op.x, &op.y);
    if (stand_holds(call) && stand_require(call, shape.n >= 1 && shape.n <= op.x.rank,
                                           "normalizedShape has %lld entries, input %d dimensions",
                                           (long long)shape.n, op.x.rank)) {
        struct stand_view normal = op.x;
        normal.rank = (int)shape.n;
        for (int i = 0; i < shape.n; i++)
            normal.dims[i] = op.x.dims[op.x.rank - shape.n + i];
        stand_shape(call, &normal, (int)shape.n, shape.values);
        check_last(call, &op.x, &normal, &op.mean);
        check_last(call, &op.x, &normal, &op.rstd);
        stand_same_shape(call, &op.gamma, &normal);
        stand_same_shape(call, &op.beta, &normal);
        op.n = stand_elements(normal);
    }
    return plan_norm(call, &op);
}
STAND_SECOND_PHASE(aclnnLayerNorm)

aclnnStatus aclnnGroupNormGetWorkspaceSize(const aclTensor *self, const aclTensor *gammaOptional,
                                           const aclTensor *betaOptional, int64_t N, int64_t C,
                                           int64_t HxW, int64_t group, double eps, aclTensor *out,
                                           aclTensor *meanOut, aclTensor *rstdOut, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnGroupNorm", bytes, executor);
    struct norm_op op = {.x = stand_in(call, "self", self),
                         .gamma = stand_in_optional(call, "gamma", gammaOptional),
                         .beta = stand_in_optional(call, "beta", betaOptional),
                         .y = stand_out(call, "out", out),
                         .mean = stand_out(call, "meanOut", meanOut),
                         .rstd = stand_out(call, "rstdOut", rstdOut),
                         .group_rows = group,
                         .eps = eps,
                         .centred = true};
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.x, STAND_FLOATS);
    stand_same_type(call, &op.x, &op.y);
    stand_same_type(call, &op.x, &op.mean);
    stand_same_type(call, &op.x, &op.rstd);
    stand_same_shape(call, &op.x, &op.y);
    stand_rank(call, &op.x, 2, STAND_RANK);
    if (stand_holds(call) &&
        stand_require(call, N > 0 && C > 0 && HxW > 0 && group > 0 && C % group == 0,
                      "%lld channels in %lld groups", (long long)C, (long long)group) &&
        stand_require(call, stand_elements(op.x) == N * C * HxW, "self has not N*C*HxW elements")) {
        int64_t stat[] = {N, group}, channels[] = {C};
        stand_shape(call, &op.mean, 2, stat);
        stand_shape(call, &op.rstd, 2, stat);
        stand_shape(call, &op.gamma, 1, channels);
        stand_shape(call, &op.beta, 1, channels);
        op.n = C / group * HxW;
    }
    return plan_norm(call, &op);
}
STAND_SECOND_PHASE(aclnnGroupNorm)

/* ------------------------------------------------------------------------------ softmax ---- */

struct softmax_op {
    struct stand_view in, labels, out, loss;
    bool logarithm;
};

static void run_softmax(struct stand_run *run, const void *state)
{
    const struct softmax_op *op = state;
    if (op_empty(op->in, op->in))
        return;
    int64_t n = op->in.rank ? op->in.dims[op->in.rank - 1] : 1, rows = stand_elements(op->in) / n;
    double *x = stand_read_doubles(run, op->in);
    double *labels = op->labels.given ? stand_read_doubles(run, op->labels) : NULL;
    double *losses = stand_scratch(run, (size_t)rows * sizeof *losses);
    for (int64_t i = 0; i < rows; i++) {
        double *row = x + i * n, most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n; j++)
            most = isnan(row[j]) || row[j] > most ? row[j] : most;
        for (int64_t j = 0; j < n; j++)
            sum += exp(row[j] - most);
        double log_sum = most + (sum > 0 ? log(sum) : 0);
        for (int64_t j = 0; j < n; j++) {
            double value = row[j] - log_sum;
            losses[i] -= labels && labels[i * n + j] != 0 ? labels[i * n + j] * value : 0;
            row[j] = op->logarithm ? value : exp(row[j] - most) / sum;
            row[j] -= labels ? labels[i * n + j] : 0;
        }
    }
    stand_write_doubles(run, op->out, x);
    if (op->loss.given)
        stand_write_doubles(run, op->loss, losses);
}

static aclnnStatus softmax(const char *name, bool logarithm, const aclTensor *self, int64_t dim,
                           const aclTensor *out, uint64_t *bytes, aclOpExecutor **executor)
{
    struct stand_call *call = stand_begin(name, bytes, executor);
    struct softmax_op op = {.in = stand_in(call, "self", self),
                            .out = stand_out(call, "out", out),
                            .logarithm = logarithm};
    stand_types(call, &op.in, TYPE_REAL);
    stand_types(call, &op.out, TYPE_REAL);
    stand_same_shape(call, &op.in, &op.out);
    if (op.in.rank || !stand_holds(call)) {
        int axis = stand_axis(call, &op.in, dim);
        op.in = op_last(op.in, axis);
        op.out = op_last(op.out, axis);
    }
    return stand_plan(call, run_softmax, &op, sizeof op, 0);
}

aclnnStatus aclnnSoftmaxGetWorkspaceSize(const aclTensor *self, int64_t dim, aclTensor *out,
                                         SIZE_ARGS)
{
    return softmax("aclnnSoftmax", false, self, dim, out, bytes, executor);
}
STAND_SECOND_PHASE(aclnnSoftmax)

aclnnStatus aclnnLogSoftmaxGetWorkspaceSize(const aclTensor *self, int64_t dim, aclTensor *out,
                                            SIZE_ARGS)
{
    return softmax("aclnnLogSoftmax", true, self, dim, out, bytes, executor);
}
STAND_SECOND_PHASE(aclnnLogSoftmax)

aclnnStatus aclnnSoftmaxCrossEntropyWithLogitsGetWorkspaceSize(const aclTensor *features,
                                                               aclTensor *labels, aclTensor *loss,
                                                               aclTensor *backprop, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnSoftmaxCrossEntropyWithLogits", bytes, executor);
    struct softmax_op op = {.in = stand_in(call, "features", features),
                            .labels = stand_in(call, "labels", labels),
                            .loss = stand_out(call, "loss", loss),
                            .out = stand_out(call, "backprop", backprop)};
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.in, STAND_FLOATS);
    stand_same_type(call, &op.in, &op.labels);
    stand_same_type(call, &op.in, &op.loss);
    stand_same_type(call, &op.in, &op.out);
    stand_rank(call, &op.in, 2, 2);
    stand_same_shape(call, &op.in, &op.labels);
    stand_same_shape(call, &op.in, &op.out);
    if (stand_holds(call))
        stand_shape(call, &op.loss, 1, op.in.dims);
    return stand_plan(call, run_softmax, &op, sizeof op, 4096);
}
STAND_SECOND_PHASE(aclnnSoftmaxCrossEntropyWithLogits)

/* -------------------------------------------------------------------- gated activations ---- */

enum gate { GATE_SILU, GATE_GELU, GATE_GELU_TANH };

struct gate_op {
    struct stand_view in, out, activated;
    int axis;
    enum gate gate;
    bool left; /* the first half is activated */
};

static void run_gate(struct stand_run *run, const void *state)
{
    const struct gate_op *op = state;
    if (op_empty(op->out, op->out))
        return;
    int64_t half = op->out.dims[op->axis];
    struct stand_view first = stand_slice(op->in, op->axis, 0, half);
    struct stand_view second = stand_slice(op->in, op->axis, half, half);
    double *a = stand_read_doubles(run, op->left ? first : second);
    double *b = stand_read_doubles(run, op->left ? second : first);
    for (int64_t i = 0; i < stand_elements(op->out); i++) {
        a[i] = op->gate == GATE_SILU ? op_silu(a[i]) : op_gelu(a[i], op->gate == GATE_GELU_TANH);
        b[i] *= a[i];
    }
    stand_write_doubles(run, op->out, b);
    if (op->activated.given)
        stand_write_doubles(run, op->activated, a);
}

static aclnnStatus plan_gate(struct stand_call *call, struct gate_op *op, int64_t dim)
{
    op_chips(call, CHIP_BIG);
    stand_types(call, &op->in, STAND_FLOATS);
    stand_same_type(call, &op->in, &op->out);
    stand_same_type(call, &op->in, &op->activated);
    stand_rank(call, &op->in, 1, STAND_RANK);
    op->axis = stand_axis(call, &op->in, dim);
    if (stand_holds(call) &&
        stand_require(call, op->in.dims[op->axis] % 2 == 0, "%lld elements cannot be halved",
                      (long long)op->in.dims[op->axis])) {
        int64_t shape[STAND_RANK];
        memcpy(shape, op->in.dims, sizeof shape);
        shape[op->axis] /= 2;
        stand_shape(call, &op->out, op->in.rank, shape);
        stand_shape(call, &op->activated, op->in.rank, shape);
    }
    return stand_plan(call, run_gate, op, sizeof *op, 0);
}

aclnnStatus aclnnSwiGluGetWorkspaceSize(const aclTensor *x, int64_t dim, const aclTensor *out,
                                        SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnSwiGlu", bytes, executor);
    struct gate_op op = {.in = stand_in(call, "x", x),
                         .out = stand_out(call, "out", out),
                         .gate = GATE_SILU,
                         .left = true};
    if (!stand_is_loose())
        stand_dense(call, &op.in);
    stand_dense(call, &op.out);
    stand_require(call,
                  op_chip() != CHIP_310P || !stand_holds(call) || !op.out.rank ||
                      op.out.dims[op.out.rank - 1] * (int64_t)op_bytes(op.out.type) % 64 == 0,
                  "a row of the result is no multiple of 64 bytes");
    return plan_gate(call, &op, dim);
}
STAND_SECOND_PHASE(aclnnSwiGlu)

aclnnStatus aclnnGeGluV3GetWorkspaceSize(const aclTensor *self, int64_t dim, int64_t approximate,
                                         bool activateLeft, aclTensor *out, aclTensor *outGelu,
                                         SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnGeGluV3", bytes, executor);
    struct gate_op op = {.in = stand_in(call, "self", self),
                         .out = stand_out(call, "out", out),
                         .activated = stand_out(call, "outGelu", outGelu),
                         .gate = approximate ? GATE_GELU_TANH : GATE_GELU,
                         .left = activateLeft};
    stand_require(call, approximate == 0 || approximate == 1, "approximate is 0 or 1");
    return plan_gate(call, &op, dim);
}
STAND_SECOND_PHASE(aclnnGeGluV3)

/* --------------------------------------------------------------------- rotary positions ---- */

struct rotary_op {
    struct stand_view x, cos, sin, y;
    bool interleaved;
};

static void run_rotary(struct stand_run *run, const void *state)
{
    const struct rotary_op *op = state;
    if (op_empty(op->x, op->x))
        return;
    int64_t d = op->x.dims[op->x.rank - 1], n = stand_elements(op->x);
    double *x = stand_read_doubles(run, op->x);
    double *cosine = stand_read_doubles(run, stand_expand(op->cos, op->x));
    double *sine = stand_read_doubles(run, stand_expand(op->sin, op->x));
    double *y = stand_scratch(run, (size_t)n * sizeof *y);
    for (int64_t i = 0; i < n; i++) {
        int64_t j = i % d;
        bool first = op->interleaved ? j % 2 == 0 : j < d / 2;
        int64_t step = op->interleaved ? 1 : d / 2;
        double turned = first ? -x[i + step] : x[i - step];
        y[i] = x[i] * cosine[i] + turned * sine[i];
    }
    stand_write_doubles(run, op->y, y);
}

/* cos and sin may leave out the axes of heads (and, for halves, of batches): which axes are 1 tells
 * the layout. At most two leading axes are 1 where x's are not. */
static void check_rotary(struct stand_call *call, const struct rotary_op *op)
{
    const struct stand_view *x = &op->x, *c = &op->cos;
    int last = x->rank - 1;
    int64_t d = x->dims[last], ones = 0;
    if (!stand_require(call, c->rank == x->rank && c->dims[last] == d,
                       "cos and sin have another rank or D than x"))
        return;
    for (int i = 0; i < last; i++) {
        stand_require(call, c->dims[i] == x->dims[i] || c->dims[i] == 1,
                      "cos does not broadcast to x");
        ones += c->dims[i] == 1;
    }
    bool p = op_chip() == CHIP_310P;
    stand_require(call, d % 2 == 0 && d < 896, "D is %lld: even and below 896", (long long)d);
    stand_require(call, !p || (d <= 128 && d % 32 == 0), "D is %lld: a multiple of 32, at most 128",
                  (long long)d);
    /* interleaved: 11SD, 1S1D, S11D or T1D, no others */
    stand_require(call, !op->interleaved || ones >= x->rank - 2,
                  "interleaved pairs need cos of one head and one batch");
    int64_t heads = 1;
    for (int i = 0; i < last; i++)
        heads *= c->dims[i] == 1 ? x->dims[i] : 1;
    stand_require(call, heads < (op->interleaved ? 1000 : 1000 * 1000), "%lld heads and batches",
                  (long long)heads);
}

aclnnStatus aclnnRotaryPositionEmbeddingGetWorkspaceSize(const aclTensor *x, const aclTensor *cos,
                                                         const aclTensor *sin, int64_t mode,
                                                         aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnRotaryPositionEmbedding", bytes, executor);
    struct rotary_op op = {stand_in(call, "x", x), stand_in(call, "cos", cos),
                           stand_in(call, "sin", sin), stand_out(call, "out", out), mode == 1};
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.x, STAND_FLOATS);
    stand_same_type(call, &op.x, &op.cos);
    stand_same_type(call, &op.x, &op.sin);
    stand_same_type(call, &op.x, &op.y);
    stand_rank(call, &op.x, 3, 4);
    stand_same_shape(call, &op.x, &op.y);
    stand_same_shape(call, &op.cos, &op.sin);
    stand_dense(call, &op.y);
    stand_require(call, mode == 0 || (mode == 1 && op_chip() != CHIP_310P),
                  "mode %lld is not on this chip", (long long)mode);
    if (stand_holds(call))
        check_rotary(call, &op);
    return stand_plan(call, run_rotary, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnRotaryPositionEmbedding)
