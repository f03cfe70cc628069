/*
 * op_quant.c - products with quantised weights, and experts: WeightQuantBatchMatmulV2,
 * GroupedMatmulV3 and V4, MoeGatingTopKSoftmax.
 *
 * An integer weight is (w + offset) * scale, rounded to the type of the activations; sums are in
 * F32, the result in the type of the activations.
 */
#include "tests/ascend/op.h"

#include <math.h>
#include <string.h>

#define SIZE_ARGS uint64_t *bytes, aclOpExecutor **executor

enum { MOST_AXIS = 65535, MOST_LIST = 128, MOST_GROUPS = 1024 };

static bool is_dense(struct stand_view v)
{
    int64_t step = 1;
    for (int i = v.rank - 1; i >= 0; step *= v.dims[i--])
        if (v.dims[i] != 1 && v.strides[i] != step)
            return false;
    return true;
}

/* Dense, or dense after its last two axes are exchanged: the only strides these operators take. */
static bool plain_or_transposed(struct stand_view v)
{
    return is_dense(v) || (v.rank >= 2 && is_dense(stand_swap(v, v.rank - 2, v.rank - 1)));
}

/* ------------------------------------------------------------------ WeightQuantBatchMatmulV2 ----
 */

struct quant_op {
    struct stand_view x, weight, scale, offset, bias, y;
    int64_t group;
};

static void run_quant(struct stand_run *run, const void *state)
{
    const struct quant_op *op = state;
    int64_t m = op->x.dims[0], k = op->weight.dims[0], n = op->weight.dims[1];
    int64_t groups = (k + op->group - 1) / op->group;
    struct stand_view like = op->weight;
    like.dims[0] = groups;
    struct op_weight w = {.operands = op->x.type, .group = op->group};
    w.scale = stand_read_floats(run, stand_expand(op->scale, like));
    if (op->offset.given)
        w.offset = stand_read_floats(run, stand_expand(op->offset, like));
    if (!op_weight_open(run, &w, op->weight))
        return;
    float *x = stand_read_floats(run, op->x);
    float *bias = op->bias.given ? stand_read_floats(run, op->bias) : NULL;
    float *y = stand_scratch(run, (size_t)(m * n) * sizeof *y);
    op_weight_multiply(run, &w, x, m, bias, op->y.type, y);
    stand_write_floats(run, op->y, y);
}

/* One scale, one a column, or one for `group` rows of each column. */
static void check_scales(struct stand_call *call, struct quant_op *op, int64_t group)
{
    int64_t k = op->weight.dims[0], n = op->weight.dims[1];
    const struct stand_view *s = &op->scale;
    if (group) {
        stand_require(call, group >= 32 && group <= k - 1 && group % 32 == 0,
                      "antiquantGroupSize is %lld: 0, or a multiple of 32 from 32 to k - 1",
                      (long long)group);
        int64_t shape[] = {group > 0 ? (k + group - 1) / group : 0, n};
        stand_shape(call, s, 2, shape);
        op->group = group > 0 ? group : 1;
    } else {
        bool all = stand_elements(*s) == 1;
        bool columns = stand_elements(*s) == n && (s->rank == 1 || s->dims[0] == 1);
        stand_require(call, s->rank <= 2 && (all || columns),
                      "antiquantScale is neither one value nor one a column");
        op->group = k ? k : 1;
    }
}

static void check_matrix(struct stand_call *call, struct stand_view v, const char *name)
{
    stand_require(call, !v.given || plain_or_transposed(v),
                  "%s is neither contiguous nor a transposed matrix", name);
}

aclnnStatus aclnnWeightQuantBatchMatmulV2GetWorkspaceSize(
    const aclTensor *x, const aclTensor *weight, const aclTensor *antiquantScale,
    const aclTensor *antiquantOffsetOptional, const aclTensor *quantScaleOptional,
    const aclTensor *quantOffsetOptional, const aclTensor *biasOptional, int antiquantGroupSize,
    const aclTensor *y, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnWeightQuantBatchMatmulV2", bytes, executor);
    struct quant_op op = {.x = stand_in(call, "x", x),
                          .weight = stand_in(call, "weight", weight),
                          .scale = stand_in(call, "antiquantScale", antiquantScale),
                          .offset =
                              stand_in_optional(call, "antiquantOffset", antiquantOffsetOptional),
                          .bias = stand_in_optional(call, "bias", biasOptional),
                          .y = stand_out(call, "y", y)};
    stand_chip_has(call, stand_chip()->quantised_matmul, "products with quantised weights");
    op_chips(call, CHIP_BIG);
    stand_require(call, !quantScaleOptional && !quantOffsetOptional,
                  "quantised results are not in this stand-in");
    stand_types(call, &op.x, TYPE_F16 | STAND_TYPE(ACL_BF16));
    stand_types(call, &op.weight, STAND_TYPE(ACL_INT8) | STAND_TYPE(ACL_INT4));
    stand_same_type(call, &op.x, &op.scale);
    stand_same_type(call, &op.scale, &op.offset);
    stand_same_type(call, &op.x, &op.y);
    stand_types(call, &op.bias, op.x.type == ACL_FLOAT16 ? TYPE_F16 : TYPE_F32);
    stand_rank(call, &op.x, 2, 2);
    stand_rank(call, &op.weight, 2, 2);
    stand_format(call, &op.weight, ACL_FORMAT_ND);
    stand_same_shape(call, &op.scale, &op.offset);
    check_matrix(call, op.x, "x");
    check_matrix(call, op.weight, "weight");
    check_matrix(call, op.scale, "antiquantScale");
    check_matrix(call, op.offset, "antiquantOffset");
    stand_dense(call, &op.y);
    if (stand_holds(call)) {
        int64_t m = op.x.dims[0], k = op.x.dims[1], n = op.weight.dims[1], shape[] = {m, n};
        stand_require(call, op.weight.dims[0] == k, "x has %lld columns, weight %lld rows",
                      (long long)k, (long long)op.weight.dims[0]);
        stand_require(call, k >= 1 && k <= MOST_AXIS && n >= 1 && n <= MOST_AXIS,
                      "k is %lld and n %lld: 1 to 65535", (long long)k, (long long)n);
        stand_require(call, m >= 1 && (is_dense(op.x) || m <= MOST_AXIS), "m is %lld",
                      (long long)m);
        /* A single column is as well one as the other; llama.cpp gives it as a transpose. */
        bool transposed = !is_dense(op.weight) || n == 1;
        stand_require(call,
                      op.weight.type != ACL_INT4 || (op.weight.dims[transposed ? 0 : 1] % 2 == 0 &&
                                                     op.weight.offset % 2 == 0),
                      "the inner axis of an INT4 weight is odd");
        stand_shape(call, &op.y, 2, shape);
        stand_require(call,
                      !op.bias.given || (op.bias.rank <= 2 && op.bias.dims[op.bias.rank - 1] == n &&
                                         stand_elements(op.bias) == n),
                      "bias is not (n) or (1, n)");
        check_scales(call, &op, antiquantGroupSize);
    }
    return stand_plan(call, run_quant, &op, sizeof op, WORKSPACE);
}
STAND_SECOND_PHASE(aclnnWeightQuantBatchMatmulV2)

/* ----------------------------------------------------------------------------- experts ---- */

/* Group i takes the rows of x that groupList gives it and its own weight. Lists of one tensor hold
 * all groups; otherwise there is a tensor a group. */
struct grouped_op {
    struct stand_view rows, x, weight, scale, bias, y; /* lists of one */
    int64_t groups, lists;                             /* lists: tensors in the longest list */
    bool counts;                                       /* groupList has sizes, not ends */
    struct grouped_part {
        struct stand_view x, weight, scale, bias, y;
    } part[MOST_LIST];
};

static struct stand_view group_of(struct stand_view one, struct stand_view part, int64_t i)
{
    return one.given ? stand_select(one, 0, i) : part;
}

static void run_group(struct stand_run *run, struct stand_view x, struct stand_view weight,
                      struct stand_view scale, struct stand_view bias, struct stand_view y)
{
    int64_t m = stand_elements(x) / x.dims[x.rank - 1], n = weight.dims[1];
    if (!m || !n)
        return;
    struct op_weight w = {.operands = x.type};
    if (scale.given) {
        struct stand_view like = weight;
        like.dims[0] = scale.rank == 2 ? scale.dims[0] : 1;
        w.group = weight.dims[0] / like.dims[0];
        w.scale = stand_read_floats(run, stand_expand(scale, like));
    }
    if (!op_weight_open(run, &w, weight))
        return;
    float *out = stand_scratch(run, (size_t)(m * n) * sizeof *out);
    op_weight_multiply(run, &w, stand_read_floats(run, x), m,
                       bias.given ? stand_read_floats(run, bias) : NULL, y.type, out);
    stand_write_floats(run, y, out);
}

static void run_grouped(struct stand_run *run, const void *state)
{
    const struct grouped_op *op = state;
    int64_t *list = op->rows.given ? stand_read_ints(run, op->rows) : NULL, at = 0;
    for (int64_t i = 0; i < op->groups; i++) {
        const struct grouped_part *part = &op->part[i % MOST_LIST];
        struct stand_view x = part->x, y = part->y;
        if (list) {
            int64_t n = op->counts ? list[i] : list[i] - at;
            int64_t end = at + n;
            if (n < 0 || end > op->x.dims[0]) {
                stand_fail(run, "groupList gives group %lld the rows %lld to %lld of %lld",
                           (long long)i, (long long)at, (long long)end, (long long)op->x.dims[0]);
                return;
            }
            x = stand_slice(op->x, 0, at, n);
            y = stand_slice(op->y, 0, at, n);
            at = end;
        }
        run_group(run, x, group_of(op->weight, part->weight, i),
                  group_of(op->scale, part->scale, i), group_of(op->bias, part->bias, i), y);
    }
}

/* What one group multiplies: types, shapes, contiguity. F32 is not taken in lists of weights. */
static void check_group(struct stand_call *call, struct stand_view x, struct stand_view weight,
                        struct stand_view scale, struct stand_view bias, struct stand_view y,
                        bool lists)
{
    if (!stand_holds(call))
        return;
    bool quantised = weight.type == ACL_INT8 || weight.type == ACL_INT4;
    int64_t k = weight.dims[0], n = weight.dims[1];
    stand_types(call, &x, (lists || quantised ? 0 : TYPE_F32) | TYPE_F16 | STAND_TYPE(ACL_BF16));
    stand_require(call, op_chip() != CHIP_310P || x.type == ACL_FLOAT16, "the 310P takes F16 only");
    stand_same_type(call, &x, &y);
    stand_require(call, quantised || weight.type == x.type, "weight has type %d, x %d",
                  (int)weight.type, (int)x.type);
    stand_types(call, &bias, x.type == ACL_FLOAT16 ? TYPE_F16 : TYPE_F32);
    stand_require(call, quantised == scale.given, "antiquantScale is for integer weights only");
    stand_same_type(call, &x, &scale);
    stand_require(call, x.rank && x.dims[x.rank - 1] == k, "x has another k than weight");
    stand_require(call, y.rank && y.dims[y.rank - 1] == n, "y has another n than weight");
    stand_require(call, is_dense(x) && is_dense(y), "x and y must be contiguous");
    stand_require(call, plain_or_transposed(weight), "weight is neither contiguous nor transposed");
    stand_require(call,
                  x.dims[x.rank - 1] <= MOST_AXIS && weight.dims[1] <= MOST_AXIS && k <= MOST_AXIS,
                  "an axis is longer than 65535");
    stand_require(call, op_chip() != CHIP_310P || n % 16 == 0, "n is no multiple of 16");
    stand_require(call, !bias.given || (bias.rank == 1 && bias.dims[0] == n), "bias is not (n)");
    if (scale.given) {
        int64_t groups = scale.rank == 2 ? scale.dims[0] : 1;
        stand_require(call, scale.dims[scale.rank - 1] == n && groups > 0 && k % groups == 0,
                      "antiquantScale is not (n) or (G, n) with G dividing k");
        stand_require(call, weight.type == ACL_INT4 || groups == 1,
                      "INT8 weights have one scale a column");
        stand_require(call,
                      weight.type == ACL_INT8 || weight.dims[is_dense(weight) ? 1 : 0] % 2 == 0,
                      "the inner axis of an INT4 weight is odd");
    }
}

/* The arguments that V3 and V4 share. */
struct grouped_args {
    const aclTensorList *x, *weight, *bias, *antiquant_scale, *y;
    const aclTensor *group_list;
    int64_t split_item, group_type, list_type;
};

static void one_or_list(struct stand_call *call, const char *name, const aclTensorList *list,
                        int64_t n, bool one, bool write, struct stand_view *whole,
                        struct stand_view *part, size_t stride)
{
    for (int64_t i = 0; i < n && i < MOST_LIST; i++) {
        struct stand_view v =
            write ? stand_list_out(call, name, list, i) : stand_list_in(call, name, list, i);
        if (one)
            *whole = v;
        else
            memcpy((char *)part + (size_t)i * stride, &v, sizeof v);
    }
}

static aclnnStatus grouped(struct stand_call *call, const struct grouped_args *a)
{
    struct grouped_op op = {.counts = a->list_type == 1};
    int64_t xs = stand_list(call, "x", a->x), weights = stand_list(call, "weight", a->weight);
    int64_t ys = stand_list(call, "y", a->y);
    int64_t biases = stand_list_optional(call, "bias", a->bias);
    int64_t scales = stand_list_optional(call, "antiquantScale", a->antiquant_scale);
    bool rows = a->group_type == 0, single = rows && weights == 1;
    stand_chip_has(call, stand_chip()->grouped_matmul, "grouped products");
    stand_require(call, a->group_type == 0 || a->group_type == -1,
                  "groupType %lld is not in this stand-in", (long long)a->group_type);
    stand_require(call, a->list_type == 0 || a->list_type == 1, "groupListType is %lld",
                  (long long)a->list_type);
    stand_require(call, xs <= MOST_LIST && weights <= MOST_LIST, "more than 128 tensors");
    stand_require(call, !biases || biases == weights, "bias has another length than weight");
    stand_require(call, !scales || scales == weights,
                  "antiquantScale has another length than weight");
    stand_require(call,
                  rows ? (a->split_item == 2 || a->split_item == 3) && xs == 1 && ys == 1
                       : (a->split_item == 0 || a->split_item == 1) && xs == weights &&
                             ys == weights && !a->group_list,
                  "splitItem %lld does not go with lists of %lld, %lld and %lld",
                  (long long)a->split_item, (long long)xs, (long long)weights, (long long)ys);
    if (stand_holds(call)) {
        size_t stride = sizeof op.part[0];
        one_or_list(call, "x", a->x, xs, rows, false, &op.x, &op.part[0].x, stride);
        one_or_list(call, "weight", a->weight, weights, single, false, &op.weight,
                    &op.part[0].weight, stride);
        one_or_list(call, "bias", a->bias, biases, single, false, &op.bias, &op.part[0].bias,
                    stride);
        one_or_list(call, "antiquantScale", a->antiquant_scale, scales, single, false, &op.scale,
                    &op.part[0].scale, stride);
        one_or_list(call, "y", a->y, ys, rows, true, &op.y, &op.part[0].y, stride);
        op.rows = rows ? stand_in(call, "groupList", a->group_list)
                       : stand_in_optional(call, "groupList", NULL);
        stand_types(call, &op.rows, STAND_TYPE(ACL_INT64));
        stand_rank(call, &op.rows, 1, 1);
    }
    if (stand_holds(call) && single) {
        stand_rank(call, &op.weight, 3, 3);
        stand_require(call, op.weight.dims[0] <= MOST_GROUPS, "more than 1024 groups");
    }
    if (stand_holds(call) && rows) {
        stand_rank(call, &op.x, 2, 2);
        stand_rank(call, &op.y, 2, 2);
        stand_require(call, op.y.rank && op.y.dims[0] == op.x.dims[0], "y has another m than x");
    }
    if (stand_holds(call)) {
        op.groups = single ? op.weight.dims[0] : weights;
        int64_t n[] = {op.groups};
        stand_shape(call, &op.rows, 1, n);
        stand_require(call,
                      !single || ((!op.bias.given || op.bias.dims[0] == op.groups) &&
                                  (!op.scale.given || op.scale.dims[0] == op.groups)),
                      "bias or antiquantScale has another number of groups than weight");
    }
    for (int64_t i = 0; stand_holds(call) && i < op.groups; i++) {
        struct grouped_part *part = &op.part[single ? 0 : i];
        struct stand_view weight = group_of(op.weight, part->weight, i);
        stand_rank(call, &weight, 2, 2);
        check_group(call, rows ? op.x : part->x, weight, group_of(op.scale, part->scale, i),
                    group_of(op.bias, part->bias, i), rows ? op.y : part->y, !single);
    }
    return stand_plan(call, run_grouped, &op, sizeof op, WORKSPACE);
}

aclnnStatus aclnnGroupedMatmulV3GetWorkspaceSize(
    const aclTensorList *x, const aclTensorList *weight, const aclTensorList *biasOptional,
    const aclTensorList *scaleOptional, const aclTensorList *offsetOptional,
    const aclTensorList *antiquantScaleOptional, const aclTensorList *antiquantOffsetOptional,
    const aclTensor *groupListOptional, int64_t splitItem, int64_t groupType,
    const aclTensorList *y, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnGroupedMatmulV3", bytes, executor);
    stand_require(call, !scaleOptional && !offsetOptional && !antiquantOffsetOptional,
                  "quantised activations are not in this stand-in");
    return grouped(call, &(struct grouped_args){x, weight, biasOptional, antiquantScaleOptional, y,
                                                groupListOptional, splitItem, groupType, 0});
}
STAND_SECOND_PHASE(aclnnGroupedMatmulV3)

aclnnStatus aclnnGroupedMatmulV4GetWorkspaceSize(
    const aclTensorList *x, const aclTensorList *weight, const aclTensorList *biasOptional,
    const aclTensorList *scaleOptional, const aclTensorList *offsetOptional,
    const aclTensorList *antiquantScaleOptional, const aclTensorList *antiquantOffsetOptional,
    const aclTensorList *perTokenScaleOptional, const aclTensor *groupListOptional,
    const aclTensorList *activationInputOptional, const aclTensorList *activationQuantScaleOptional,
    const aclTensorList *activationQuantOffsetOptional, int64_t splitItem, int64_t groupType,
    int64_t groupListType, int64_t actType, aclTensorList *out,
    aclTensorList *activationFeatureOutOptional, aclTensorList *dynQuantScaleOutOptional, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnGroupedMatmulV4", bytes, executor);
    stand_require(call,
                  !scaleOptional && !offsetOptional && !antiquantOffsetOptional &&
                      !perTokenScaleOptional,
                  "quantised activations are not in this stand-in");
    stand_require(call,
                  !activationInputOptional && !activationQuantScaleOptional &&
                      !activationQuantOffsetOptional && !activationFeatureOutOptional &&
                      !dynQuantScaleOutOptional,
                  "only nullptr is supported for the activation's tensors");
    stand_require(call, actType == 0, "actType %lld is for quantised activations",
                  (long long)actType);
    return grouped(call,
                   &(struct grouped_args){x, weight, biasOptional, antiquantScaleOptional, out,
                                          groupListOptional, splitItem, groupType, groupListType});
}
STAND_SECOND_PHASE(aclnnGroupedMatmulV4)

/* ------------------------------------------------------------------------------- gating ---- */

struct gating_op {
    struct stand_view x, finished, y, expert, row;
    int64_t k;
};

static void run_gating(struct stand_run *run, const void *state)
{
    const struct gating_op *op = state;
    int64_t experts = op->x.dims[op->x.rank - 1], k = op->k;
    int64_t rows = stand_elements(op->x) / experts;
    if (!rows || !k)
        return;
    double *x = stand_read_doubles(run, op->x);
    int64_t *finished = op->finished.given ? stand_read_ints(run, op->finished) : NULL;
    double *y = stand_scratch(run, (size_t)(rows * k) * sizeof *y);
    int64_t *expert = stand_scratch(run, (size_t)(rows * k) * sizeof *expert);
    int64_t *row = stand_scratch(run, (size_t)(rows * k) * sizeof *row);
    for (int64_t i = 0; i < rows; i++) {
        double *line = x + i * experts, most = line[0], sum = 0;
        for (int64_t j = 1; j < experts; j++)
            most = line[j] > most ? line[j] : most;
        for (int64_t j = 0; j < experts; j++)
            sum += line[j] = exp(line[j] - most);
        for (int64_t s = 0; s < k; s++) {
            int64_t best = 0;
            for (int64_t j = 1; j < experts; j++)
                best = line[j] > line[best] ? j : best;
            y[i * k + s] = line[best] / sum;
            expert[i * k + s] = finished && finished[i] ? experts : best;
            row[i * k + s] = op_chip() == CHIP_310P ? 0 : s * rows + i;
            line[best] = -1;
        }
    }
    stand_write_doubles(run, op->y, y);
    stand_write_ints(run, op->expert, expert);
    stand_write_ints(run, op->row, row);
}

aclnnStatus aclnnMoeGatingTopKSoftmaxGetWorkspaceSize(const aclTensor *x,
                                                      const aclTensor *finishedOptional, int64_t k,
                                                      const aclTensor *yOut,
                                                      const aclTensor *expertIdxOut,
                                                      const aclTensor *rowIdxOut, SIZE_ARGS)
{
    struct stand_call *call = stand_begin("aclnnMoeGatingTopKSoftmax", bytes, executor);
    struct gating_op op = {stand_in(call, "x", x),
                           stand_in_optional(call, "finished", finishedOptional),
                           stand_out(call, "yOut", yOut),
                           stand_out(call, "expertIdxOut", expertIdxOut),
                           stand_out(call, "rowIdxOut", rowIdxOut),
                           k};
    bool p = op_chip() == CHIP_310P;
    op_chips(call, CHIP_BIG);
    stand_types(call, &op.x, p ? TYPE_F16 : STAND_FLOATS);
    stand_same_type(call, &op.x, &op.y);
    stand_types(call, &op.expert, STAND_TYPE(ACL_INT32));
    stand_types(call, &op.row, STAND_TYPE(ACL_INT32));
    stand_types(call, &op.finished, TYPE_BOOL);
    stand_rank(call, &op.x, 2, p ? 2 : 3);
    stand_dense(call, &op.y);
    stand_dense(call, &op.expert);
    stand_dense(call, &op.row);
    stand_tiling(call);
    if (stand_holds(call)) {
        int last = op.x.rank - 1;
        int64_t shape[STAND_RANK], experts = op.x.dims[last];
        memcpy(shape, op.x.dims, sizeof shape);
        shape[last] = k;
        stand_require(call, k >= 0 && k <= experts && k <= 1024, "k is %lld of %lld experts",
                      (long long)k, (long long)experts);
        stand_require(call, !p || (experts % 16 == 0 && experts <= 256 && !op.finished.given),
                      "the 310P takes a multiple of 16 experts, at most 256, without finished");
        stand_shape(call, &op.finished, last, shape);
        stand_shape(call, &op.y, last + 1, shape);
        stand_shape(call, &op.expert, last + 1, shape);
        stand_shape(call, &op.row, last + 1, shape);
    }
    return stand_plan(call, run_gating, &op, sizeof op, 4096);
}
STAND_SECOND_PHASE(aclnnMoeGatingTopKSoftmax)
