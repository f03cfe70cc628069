/*
 * ov_ops.c - the operators as layers: a row for each kind whose rows of values depend on nothing
 * but themselves and weights. What reads KV, state, positions, experts or lists has none and stays
 * on the host. Values are rows x width.
 */
#include "kernels/openvino/ov_parts.h"

#include <string.h>

/* -------------------------------------------------------------------------------- pieces -- */

static struct ov_node times(struct ov_ir *ir, struct ov_node a, struct ov_node b)
{
    return ov_ir_2(ir, "Multiply", a, b);
}

static struct ov_node at_most(struct ov_ir *ir, struct ov_node a, float most)
{
    return ov_ir_2(ir, "Minimum", a, ov_ir_number(ir, most));
}

static struct ov_node between(struct ov_ir *ir, struct ov_node a, float bound)
{
    return ov_ir_2(ir, "Maximum", at_most(ir, a, bound), ov_ir_number(ir, -bound));
}

static struct ov_node silu(struct ov_ir *ir, struct ov_node a)
{
    return ov_ir_layer(ir, "Swish", 4, "", 1, &a);
}

/* activation_of */
static struct ov_node activated(struct ov_ir *ir, const struct oato_op *op, struct ov_node a)
{
    const float scale = op->scale;
    struct ov_node b;
    switch ((enum activation)op->activation) {
    case ACT_SILU: return silu(ir, a);
    case ACT_GELU: return ov_ir_layer(ir, "Gelu", 7, "approximation_mode=\"TANH\"", 1, &a);
    case ACT_RELU: return ov_ir_1(ir, "ReLU", a);
    case ACT_RELU_SQUARED: b = ov_ir_1(ir, "ReLU", a); return times(ir, b, b);
    case ACT_SIGMOID: return ov_ir_1(ir, "Sigmoid", a);
    case ACT_SOFT_CAP:
        b = ov_ir_1(ir, "Tanh", ov_ir_2(ir, "Divide", a, ov_ir_number(ir, scale)));
        return times(ir, b, ov_ir_number(ir, scale));
    case ACT_CLAMPED:
        a = at_most(ir, a, 7);
        b = ov_ir_1(ir, "Sigmoid", times(ir, a, ov_ir_number(ir, 1.702f)));
        return times(ir, a, b);
    case ACT_CLAMP: return between(ir, a, scale);
    case ACT_NONE: return times(ir, a, ov_ir_number(ir, 1));
    case ACT_CLAMPED_SILU: return silu(ir, at_most(ir, a, scale));
    case ACT_SOFTPLUS: return ov_ir_layer(ir, "SoftPlus", 4, "", 1, &a);
    case ACT_SILU_CLAMPED: return at_most(ir, silu(ir, a), scale);
    case ACT_COUNT: break;
    }
    return a;
}

static struct ov_node gated(struct ov_ir *ir, const struct oato_op *op, struct ov_node gate,
                            struct ov_node up)
{
    if (op->activation == ACT_CLAMPED)
        up = ov_ir_2(ir, "Add", between(ir, up, 7), ov_ir_number(ir, 1));
    if (op->activation == ACT_CLAMPED_SILU || op->activation == ACT_SILU_CLAMPED)
        up = between(ir, up, op->scale);
    return times(ir, activated(ir, op, gate), up);
}

static struct ov_node mean(struct ov_ir *ir, struct ov_node a)
{
    const struct ov_node axis = ov_ir_whole(ir, 1, (const int64_t[]){-1});
    return ov_ir_layer(ir, "ReduceMean", 1, "keep_dims=\"true\"", 2, (struct ov_node[]){a, axis});
}

/* Of the last dimension, in the order of layers that the library makes one of. */
static struct ov_node normed(const struct ov_record *x, struct ov_node a)
{
    struct ov_ir *ir = x->ir;
    const struct oato_op *op = &x->r->op;
    if (op->norm & NORM_CENTRED)
        a = ov_ir_2(ir, "Subtract", a, mean(ir, a));
    struct ov_node s = mean(ir, ov_ir_2(ir, "Power", a, ov_ir_number(ir, 2)));
    s = ov_ir_1(ir, "Sqrt", ov_ir_2(ir, "Add", s, ov_ir_number(ir, op->eps)));
    a = times(ir, a, ov_ir_2(ir, "Divide", ov_ir_number(ir, 1), s));
    if (x->has[0])
        a = times(ir, a, x->weight[0]);
    return x->has[1] ? ov_ir_2(ir, "Add", a, x->weight[1]) : a;
}

static struct ov_node product(const struct ov_record *x, int weight)
{
    return ov_ir_layer(x->ir, "MatMul", 1, "transpose_a=\"false\" transpose_b=\"true\"", 2,
                       (struct ov_node[]){x->in[0], x->weight[weight]});
}

/* ----------------------------------------------------------------------------- operators -- */

static void write_products(struct ov_record *x)
{
    for (int i = 0; i < op_weight_count(&x->r->op); i++)
        x->out[i] = product(x, i);
}

static void write_gate_up(struct ov_record *x)
{
    x->out[0] = gated(x->ir, &x->r->op, product(x, 0), product(x, 1));
}

static void write_norm(struct ov_record *x)
{
    x->out[0] = normed(x, x->in[0]);
}

static void write_add_norm(struct ov_record *x)
{
    x->out[0] = ov_ir_2(x->ir, "Add", x->in[0], x->in[1]);
    x->out[1] = normed(x, x->out[0]);
}

static struct ov_node in_heads(const struct ov_record *x, struct ov_node a, int64_t width)
{
    const int64_t heads = x->r->op.heads;
    return ov_ir_reshape(x->ir, a, 3, (const int64_t[]){x->rows, heads, width / heads});
}

static struct ov_node in_rows(const struct ov_record *x, struct ov_node a, int64_t width)
{
    return ov_ir_reshape(x->ir, a, 2, (const int64_t[]){x->rows, width});
}

static void write_head_norm(struct ov_record *x)
{
    const struct oato_op *op = &x->r->op;
    x->out[0] = in_rows(x, normed(x, in_heads(x, x->in[0], op->n)), op->n);
}

static void write_gate(struct ov_record *x)
{
    const struct oato_op *op = &x->r->op;
    if (op->heads == op->n) {
        x->out[0] = gated(x->ir, op, x->in[1], x->in[0]);
        return;
    }
    const struct ov_node gate = in_heads(x, activated(x->ir, op, x->in[1]), op->heads);
    x->out[0] = in_rows(x, times(x->ir, in_heads(x, x->in[0], op->n), gate), op->n);
}

static void write_bias(struct ov_record *x)
{
    x->out[0] = ov_ir_2(x->ir, "Add", x->in[0], x->weight[0]);
}

static void write_scale(struct ov_record *x)
{
    const struct oato_op *op = &x->r->op;
    const struct ov_node by = x->has[0] ? x->weight[0] : ov_ir_number(x->ir, op->scale);
    x->out[0] = ov_ir_2(x->ir, op->divides && x->has[0] ? "Divide" : "Multiply", x->in[0], by);
}

static void write_sum(struct ov_record *x)
{
    x->out[0] = x->r->n_in == 1 ? times(x->ir, x->in[0], ov_ir_number(x->ir, 1)) : x->in[0];
    for (int i = 1; i < x->r->n_in; i++)
        x->out[0] = ov_ir_2(x->ir, "Add", x->out[0], x->in[i]);
}

static void write_swiglu(struct ov_record *x)
{
    x->out[0] = gated(x->ir, &x->r->op, x->in[0], x->in[1]);
}

static void write_activate(struct ov_record *x)
{
    x->out[0] = activated(x->ir, &x->r->op, x->in[0]);
}

static void write_merge(struct ov_record *x)
{
    x->out[0] = ov_ir_layer(x->ir, "Concat", 1, "axis=\"1\"", x->r->n_in, x->in);
}

static void write_slice(struct ov_record *x)
{
    const struct oato_op *op = &x->r->op;
    const int64_t heads = op->heads ? op->heads : 1, first = op->first;
    struct ov_node in =
        ov_ir_reshape(x->ir, x->in[0], 3, (const int64_t[]){x->rows, heads, op->k / heads});
    in = ov_ir_layer(
        x->ir, "Slice", 8, "", 5,
        (struct ov_node[]){in, ov_ir_whole(x->ir, 1, &first),
                           ov_ir_whole(x->ir, 1, (const int64_t[]){first + op->n / heads}),
                           ov_ir_whole(x->ir, 1, (const int64_t[]){1}),
                           ov_ir_whole(x->ir, 1, (const int64_t[]){2})});
    x->out[0] = in_rows(x, in, op->n);
}

static bool is_dense(const struct oato_op *op)
{
    return !op->sparse && (op->kind == OP_MUL_MAT || op->kind == OP_QKV || op->kind == OP_GATE_UP);
}

/* That activation is one of pairs. */
static bool is_single(const struct oato_op *op)
{
    return op->activation != ACT_CLAMPED || (op->kind == OP_GATE && op->heads == op->n);
}

static bool is_even(const struct oato_op *op) /* the same for all positions */
{
    return op->temperature == 0;
}

static bool is_f32(const struct oato_op *op)
{
    return op->dtype == DT_F32;
}

static const struct {
    void (*write)(struct ov_record *x);
    bool (*fits)(const struct oato_op *op); /* NULL: always */
} kinds[OP_KIND_COUNT] = {
    [OP_MUL_MAT] = {write_products, is_dense},
    [OP_QKV] = {write_products, is_dense},
    [OP_GATE_UP] = {write_gate_up, is_dense},
    [OP_RMS_NORM] = {write_norm, NULL},
    [OP_HEAD_NORM] = {write_head_norm, NULL},
    [OP_ADD_NORM] = {write_add_norm, NULL},
    [OP_BIAS] = {write_bias, NULL},
    [OP_SCALE] = {write_scale, is_even},
    [OP_ADD] = {write_sum, NULL},
    [OP_SWIGLU] = {write_swiglu, NULL},
    [OP_ACTIVATE] = {write_activate, is_single},
    [OP_GATE] = {write_gate, is_single},
    [OP_MERGE] = {write_merge, NULL},
    [OP_MERGE_SUM] = {write_sum, is_f32},
    [OP_SLICE] = {write_slice, NULL},
};

bool ov_op_known(const struct oato_op *op)
{
    if (op->kind >= OP_KIND_COUNT || !kinds[op->kind].write ||
        (kinds[op->kind].fits && !kinds[op->kind].fits(op)))
        return false;
    for (int i = 0; i < op_weight_least(op); i++)
        if (!ov_op_planes(op, i).n)
            return false;
    return true;
}

void ov_op_write(struct ov_record *x)
{
    kinds[x->r->op.kind].write(x);
}

struct ov_planes ov_op_planes(const struct oato_op *op, int i)
{
    int64_t rows = 0, k = 0;
    if (!op_weight_shape(op, i, &rows, &k))
        return (struct ov_planes){0};
    return ov_planes_of(op_weight_dtype(op, i), op_weight_use_at(op, i), rows, k);
}

struct ov_node ov_weight_write(struct ov_ir *ir, const struct ov_planes *p,
                               const struct ov_node plane[OV_PLANES], enum ov_element mid)
{
    if (p->n == 1)
        return p->plane[0].element == OV_F32 ? plane[0] : ov_ir_convert(ir, plane[0], OV_F32);
    struct ov_node w = ov_ir_convert(ir, plane[0], mid), s = plane[1], m = plane[2];
    w = times(ir, w, p->plane[1].element == mid ? s : ov_ir_convert(ir, s, mid));
    if (p->n > 2)
        w = ov_ir_2(ir, "Add", w, p->plane[2].element == mid ? m : ov_ir_convert(ir, m, mid));
    w = ov_ir_reshape(ir, w, 2, (const int64_t[]){p->rows, p->k});
    return mid == OV_F32 ? w : ov_ir_convert(ir, w, OV_F32);
}
