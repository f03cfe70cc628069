/*
 * op_image.c - convolution and what goes with images and sound: windows as columns, pools.
 *
 * All of them walk windows: element i of the result sees the inputs at i * stride - pad + tap *
 * dilation. Images of one axis (sound) count as images of one row.
 */
#include "tests/ascend/op.h"

#include <math.h>
#include <string.h>

#define SIZE_ARGS uint64_t *bytes, aclOpExecutor **executor

/* One spatial axis of a window. */
struct window {
    int64_t in, out, taps, stride, pad, dilation;
};

/* The input that tap `t` of result `i` sees; -1: the padding. */
static int64_t seen(const struct window *w, int64_t i, int64_t t)
{
    int64_t at = i * w->stride - w->pad + t * w->dilation;
    return at >= 0 && at < w->in ? at : -1;
}

/* Results along the axis with `pads` on both sides together. */
static int64_t windows(const struct window *w, int64_t pads, bool ceiling)
{
    int64_t span = w->in + pads - w->dilation * (w->taps - 1) - 1;
    if (span < 0)
        return 0;
    int64_t n = (span + (ceiling ? w->stride - 1 : 0)) / w->stride + 1;
    /* A last window must begin inside the input or the padding before it. */
    return ceiling && (n - 1) * w->stride >= w->in + w->pad ? n - 1 : n;
}

/* N, C, H, W of a view of 3 (no height, or no batch) or 4 axes. */
static struct stand_view as_image(struct stand_view v, bool no_batch)
{
    if (v.rank != 3)
        return v;
    int at = no_batch ? 0 : 2;
    for (int i = 3; i > at; i--)
        v.dims[i] = v.dims[i - 1], v.strides[i] = v.strides[i - 1];
    v.dims[at] = 1;
    v.strides[at] = 0;
    v.rank = 4;
    return v;
}

/* Value i of a list for `n` axes: one value stands for all, the added axis of sound has `none`. */
static int64_t axis_value(struct stand_ints list, int axis, int n, int64_t none)
{
    if (!list.n)
        return none;
    if (n == 1)
        return axis == 0 ? none : list.values[0];
    return list.values[list.n == 1 ? 0 : axis];
}

static bool check_list(struct stand_call *call, struct stand_ints list, int n, int64_t least,
                       const char *name)
{
    bool fits = list.n == n || list.n == 1;
    for (int64_t i = 0; i < list.n; i++)
        fits &= list.values[i] >= least;
    return stand_require(call, fits, "%s does not fit %d axes", name, n);
}

/* -------------------------------------------------------------------------- convolution ---- */

struct conv_op {
    struct stand_view in, weight, bias, out;
    struct window w[2];
    int64_t groups;
    bool transposed, hf32;
    aclDataType operands;
};

/* Adds to the sums of one image what each input, channel and tap gives. Of a transposed
 * convolution input and result change places in the windows. */
static void convolve(const struct conv_op *op, const float *x, const float *f, float *sums)
{
    int64_t cin = op->in.dims[1] / op->groups, cout = op->out.dims[1] / op->groups;
    int64_t hi = op->in.dims[2], wi = op->in.dims[3], ho = op->out.dims[2], wo = op->out.dims[3];
    int64_t kh = op->w[0].taps, kw = op->w[1].taps;
    int64_t walk_h = op->transposed ? hi : ho, walk_w = op->transposed ? wi : wo;
    for (int64_t g = 0; g < op->groups; g++)
        for (int64_t c = 0; c < cin * cout; c++) {
            int64_t ci = c / cout, co = c % cout;
            const float *taps = op->transposed ? f + ((g * cin + ci) * cout + co) * kh * kw
                                               : f + ((g * cout + co) * cin + ci) * kh * kw;
            const float *from = x + (g * cin + ci) * hi * wi;
            float *to = sums + (g * cout + co) * ho * wo;
            for (int64_t i = 0; i < walk_h * walk_w * kh * kw; i++) {
                int64_t tap = i % (kh * kw), at = i / (kh * kw);
                int64_t h = seen(&op->w[0], at / walk_w, tap / kw);
                int64_t w = seen(&op->w[1], at % walk_w, tap % kw);
                if (h < 0 || w < 0)
                    continue;
                if (op->transposed)
                    to[h * wo + w] += from[at] * taps[tap];
                else
                    to[at] += from[h * wi + w] * taps[tap];
            }
        }
}

static void run_conv(struct stand_run *run, const void *state)
{
    const struct conv_op *op = state;
    if (op_empty(op->out, op->out))
        return;
    float *f = stand_read_floats(run, op->weight);
    float *bias = op->bias.given ? stand_read_floats(run, op->bias) : NULL;
    op_narrow(f, stand_elements(op->weight), op->operands, op->hf32);
    int64_t n = stand_elements(op->out) / op->out.dims[0], area = n / op->out.dims[1];
    float *sums = stand_scratch(run, (size_t)n * sizeof *sums);
    for (int64_t batch = 0; batch < op->out.dims[0]; batch++) {
        struct stand_view one = stand_select(op->in, 0, batch);
        float *x = stand_read_floats(run, one);
        op_narrow(x, stand_elements(one), op->operands, op->hf32);
        for (int64_t i = 0; i < n; i++)
            sums[i] = bias ? bias[i / area] : 0;
        convolve(op, x, f, sums);
        stand_write_floats(run, stand_select(op->out, 0, batch), sums);
    }
}

aclnnStatus aclnnConvolutionGetWorkspaceSize(const aclTensor *input, const aclTensor *weight,
                                             const aclTensor *bias, const aclIntArray *stride,
                                             const aclIntArray *padding,
                                             const aclIntArray *dilation, bool transposed,
                                             const aclIntArray *outputPadding, const int64_t groups,
                                             aclTensor *output, int8_t cubeMathType, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnConvolution", bytes, executor);
    struct conv_op op = {.in = stand_in(call, "input", input),
                         .weight = stand_in(call, "weight", weight),
                         .bias = stand_in_optional(call, "bias", bias),
                         .out = stand_out(call, "output", output),
                         .groups = groups,
                         .transposed = transposed};
    struct stand_ints strides = stand_ints(call, "stride", stride);
    struct stand_ints pads = stand_ints(call, "padding", padding);
    struct stand_ints dilations = stand_ints(call, "dilation", dilation);
    struct stand_ints more = transposed ? stand_ints(call, "outputPadding", outputPadding)
                                        : stand_ints_optional(call, "outputPadding", NULL);
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.in, STAND_FLOATS);
    stand_types(call, &op.weight, STAND_FLOATS);
    stand_types(call, &op.bias, STAND_FLOATS);
    stand_types(call, &op.out, STAND_FLOATS);
    stand_rank(call, &op.in, 3, 4);
    stand_rank(call, &op.weight, op.in.rank, op.in.rank);
    stand_rank(call, &op.out, op.in.rank, op.in.rank);
    int axes = op.in.rank - 2;
    aclDataType both = op_promote(op.in.type, op.weight.type);
    bool p = op_chip() == CHIP_310P, fp16 = p || cubeMathType == 2;
    stand_require(call, cubeMathType >= 0 && cubeMathType <= 3 && !(p && cubeMathType == 3),
                  "cubeMathType is %d", cubeMathType);
    stand_require(call, !p || both != ACL_FLOAT || cubeMathType != 0,
                  "the 310P multiplies F16 only");
    op.operands = fp16 && both != ACL_BF16 ? ACL_FLOAT16 : both;
    op.hf32 = !fp16 && both == ACL_FLOAT && (cubeMathType == 1 || cubeMathType == 3);
    check_list(call, strides, axes, 1, "stride");
    check_list(call, pads, axes, 0, "padding");
    check_list(call, dilations, axes, 1, "dilation");
    stand_require(call, groups > 0, "groups is %lld", (long long)groups);
    if (stand_holds(call)) {
        struct stand_view in = as_image(op.in, false), w = as_image(op.weight, false);
        op.in = in, op.weight = w, op.out = as_image(op.out, false);
        int64_t cin = in.dims[1], cout = transposed ? w.dims[1] * groups : w.dims[0];
        stand_require(call,
                      cin % groups == 0 && cout % groups == 0 &&
                          (transposed ? w.dims[0] == cin : w.dims[1] * groups == cin),
                      "%lld channels do not meet the weight", (long long)cin);
        int64_t shape[] = {in.dims[0], cout, 0, 0}, channels[] = {cout};
        for (int i = 0; i < 2; i++) {
            struct window *v = &op.w[i];
            *v = (struct window){.in = transposed ? op.out.dims[2 + i] : in.dims[2 + i],
                                 .taps = w.dims[2 + i],
                                 .stride = axis_value(strides, i, axes, 1),
                                 .pad = axis_value(pads, i, axes, 0),
                                 .dilation = axis_value(dilations, i, axes, 1)};
            shape[2 + i] = transposed
                               ? (in.dims[2 + i] - 1) * v->stride - 2 * v->pad +
                                     v->dilation * (v->taps - 1) + axis_value(more, i, axes, 0) + 1
                               : windows(v, 2 * v->pad, false);
        }
        stand_shape(call, &op.out, 4, shape);
        stand_shape(call, &op.bias, 1, channels);
    }
    return stand_plan(call, run_conv, &op, sizeof op, WORKSPACE);
}
STAND_SECOND_PHASE(aclnnConvolution)

/* ------------------------------------------------------------------- windows and pools ---- */

enum pool { POOL_COLUMNS, POOL_AVERAGE, POOL_MAX };

struct pool_op {
    struct stand_view in, out; /* in: N, C, H, W */
    struct window w[2];
    enum pool pool;
    int64_t divisor, pads_after[2];
    bool count_padding;
};

/* How many of the taps of result i lie in the input or in its padding. */
static int64_t padded_taps(const struct window *w, int64_t after, int64_t i)
{
    int64_t n = 0;
    for (int64_t t = 0; t < w->taps; t++) {
        int64_t at = i * w->stride - w->pad + t * w->dilation;
        n += at < w->in + after;
    }
    return n;
}

static void run_pool(struct stand_run *run, const void *state)
{
    const struct pool_op *op = state;
    if (op_empty(op->out, op->out))
        return;
    const struct window *h = &op->w[0], *w = &op->w[1];
    int64_t planes = op->in.dims[0] * op->in.dims[1], area = h->out * w->out;
    int64_t taps = h->taps * w->taps;
    double *x = stand_read_doubles(run, op->in);
    double *y = stand_scratch(run, (size_t)stand_elements(op->out) * sizeof *y);
    for (int64_t i = 0; i < planes * area; i++) {
        const double *plane = x + i / area * h->in * w->in;
        int64_t row = i % area / w->out, column = i % w->out, inside = 0;
        double sum = 0, most = -INFINITY;
        for (int64_t t = 0; t < taps; t++) {
            int64_t r = seen(h, row, t / w->taps), c = seen(w, column, t % w->taps);
            bool in = r >= 0 && c >= 0;
            double value = in ? plane[r * w->in + c] : 0;
            if (op->pool == POOL_COLUMNS)
                y[(i / area * taps + t) * area + i % area] = value;
            sum += value;
            most = in && value > most ? value : most;
            inside += in;
        }
        int64_t count = op->divisor         ? op->divisor
                        : op->count_padding ? padded_taps(h, op->pads_after[0], row) *
                                                  padded_taps(w, op->pads_after[1], column)
                                            : inside;
        if (op->pool != POOL_COLUMNS)
            y[i] = op->pool == POOL_MAX ? most : count ? sum / (double)count : 0;
    }
    stand_write_doubles(run, op->out, y);
}

/* Sets the windows; pads holds one value, one an axis, or four: before and after of each axis, or
 * (ends_last, MaxPool) before both axes, then after both. No strides: the kernel's size, of MaxPool
 * 1. */
static void set_windows(struct stand_call *call, struct pool_op *op, struct stand_ints kernel,
                        struct stand_ints strides, struct stand_ints pads,
                        struct stand_ints dilations, bool ceiling, bool ends_last)
{
    check_list(call, kernel, 2, 1, "kernel");
    if (strides.n)
        check_list(call, strides, 2, 1, "strides");
    if (dilations.n)
        check_list(call, dilations, 2, 1, "dilations");
    stand_require(call, pads.n == 1 || pads.n == 2 || pads.n == 4, "%lld paddings",
                  (long long)pads.n);
    for (int i = 0; stand_holds(call) && i < 2; i++) {
        struct window *w = &op->w[i];
        bool sides = pads.n == 4;
        *w = (struct window){
            .in = op->in.dims[2 + i],
            .taps = axis_value(kernel, i, 2, 1),
            .stride = axis_value(strides.n || ends_last ? strides : kernel, i, 2, 1),
            .pad = sides ? pads.values[ends_last ? i : 2 * i] : axis_value(pads, i, 2, 0),
            .dilation = axis_value(dilations, i, 2, 1)};
        op->pads_after[i] = sides ? pads.values[ends_last ? 2 + i : 2 * i + 1] : w->pad;
        stand_require(call, w->pad >= 0 && op->pads_after[i] >= 0, "a padding is negative");
        w->out = windows(w, w->pad + op->pads_after[i], ceiling);
    }
}

static aclnnStatus plan_pool(struct stand_call *call, struct pool_op *op, bool no_batch)
{
    if (stand_holds(call)) {
        int64_t shape[] = {op->in.dims[0], op->in.dims[1], op->w[0].out, op->w[1].out};
        stand_shape(call, &op->out, no_batch ? 3 : 4, shape + no_batch);
    }
    return stand_plan(call, run_pool, op, sizeof *op, 4096);
}

static struct pool_op begin_pool(struct stand_call *call, enum pool pool, const aclTensor *self,
                                 const aclTensor *out, bool *no_batch)
{
    struct pool_op op = {
        .in = stand_in(call, "self", self), .out = stand_out(call, "out", out), .pool = pool};
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.in, STAND_FLOATS);
    stand_same_type(call, &op.in, &op.out);
    stand_rank(call, &op.in, 3, 4);
    *no_batch = op.in.rank == 3;
    op.in = as_image(op.in, true);
    return op;
}

aclnnStatus aclnnIm2colGetWorkspaceSize(const aclTensor *self, const aclIntArray *kernelSize,
                                        const aclIntArray *dilation, const aclIntArray *padding,
                                        const aclIntArray *stride, aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnIm2col", bytes, executor);
    bool no_batch;
    struct pool_op op = begin_pool(call, POOL_COLUMNS, self, out, &no_batch);
    set_windows(call, &op, stand_ints(call, "kernelSize", kernelSize),
                stand_ints(call, "stride", stride), stand_ints(call, "padding", padding),
                stand_ints(call, "dilation", dilation), false, false);
    if (stand_holds(call)) {
        int64_t shape[] = {op.in.dims[0], op.in.dims[1] * op.w[0].taps * op.w[1].taps,
                           op.w[0].out * op.w[1].out};
        stand_shape(call, &op.out, no_batch ? 2 : 3, shape + no_batch);
    }
    return stand_plan(call, run_pool, &op, sizeof op, 0);
}
STAND_SECOND_PHASE(aclnnIm2col)

aclnnStatus aclnnAvgPool2dGetWorkspaceSize(const aclTensor *self, const aclIntArray *kernelSize,
                                           const aclIntArray *strides, const aclIntArray *paddings,
                                           const bool ceilMode, const bool countIncludePad,
                                           const int64_t divisorOverride, const int8_t cubeMathType,
                                           aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnAvgPool2d", bytes, executor);
    bool no_batch;
    struct pool_op op = begin_pool(call, POOL_AVERAGE, self, out, &no_batch);
    op.count_padding = countIncludePad;
    op.divisor = divisorOverride;
    stand_require(call, divisorOverride >= 0 && divisorOverride <= 255, "divisorOverride is %lld",
                  (long long)divisorOverride);
    stand_require(call, cubeMathType >= 0 && cubeMathType <= 3, "cubeMathType is %d", cubeMathType);
    set_windows(call, &op, stand_ints(call, "kernelSize", kernelSize),
                stand_ints(call, "strides", strides), stand_ints(call, "paddings", paddings),
                stand_ints_optional(call, "dilations", NULL), ceilMode, false);
    return plan_pool(call, &op, no_batch);
}
STAND_SECOND_PHASE(aclnnAvgPool2d)

aclnnStatus aclnnMaxPoolGetWorkspaceSize(const aclTensor *self, const aclIntArray *kernelShape,
                                         const aclIntArray *strides, const int64_t autoPad,
                                         const aclIntArray *pads, const aclIntArray *dilations,
                                         const int64_t ceilMode, aclTensor *out, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnMaxPool", bytes, executor);
    bool no_batch;
    struct pool_op op = begin_pool(call, POOL_MAX, self, out, &no_batch);
    op_chips(call, CHIP_910B);
    stand_types(call, &op.in, TYPE_F32 | TYPE_F16);
    stand_require(call, autoPad == 0, "autoPad %lld: only 0 is supported", (long long)autoPad);
    set_windows(call, &op, stand_ints(call, "kernelShape", kernelShape),
                stand_ints(call, "strides", strides), stand_ints(call, "pads", pads),
                stand_ints(call, "dilations", dilations), ceilMode != 0, true);
    for (int i = 0; i < 2; i++)
        stand_require(call, op.w[i].dilation <= 1 && op.w[i].pad + op.pads_after[i] <= op.w[i].taps,
                      "dilations are 1, and the paddings of an axis no larger than the window");
    return plan_pool(call, &op, no_batch);
}
STAND_SECOND_PHASE(aclnnMaxPool)
