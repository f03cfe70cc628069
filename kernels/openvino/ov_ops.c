/*
 * ov_ops.c - operators as layers of OpenVINO: a row for each kind that computes every row of its
 * values by itself, without state and without the step's tables. Values are rows x width, float32.
 */
#include "kernels/openvino/ov_internal.h"

/* An operator that is being written. */
struct writing {
    struct ov_ir *ir;
    const struct oato_op *op;
    int64_t rows;
    int n_in, n_weights;
    const struct ov_node *in, *weight;
    struct ov_node *out;
};

static struct ov_node multiply(struct ov_ir *ir, struct ov_node a, struct ov_node b)
{
    return ov_binary(ir, "Multiply", a, b);
}

static struct ov_node clamp(struct ov_ir *ir, struct ov_node x, double low, double high)
{
    char data[96];
    snprintf(data, sizeof data, "min=\"%.9g\" max=\"%.9g\"", low, high);
    return ov_layer(ir, "Clamp", "opset1", data, 1, &x);
}

static struct ov_node silu(struct ov_ir *ir, struct ov_node x)
{
    return ov_layer(ir, "Swish", "opset4", NULL, 1, &x);
}

static const double LEAST = -3e38; /* of a float32, nearly */

/* As activation.c defines them. */
static struct ov_node activation(const struct writing *w, struct ov_node x)
{
    struct ov_ir *ir = w->ir;
    const double scale = (double)w->op->scale;
    switch ((enum activation)w->op->activation) {
    case ACT_SILU: return silu(ir, x);
    case ACT_GELU:
        return ov_layer(ir, "Gelu", "opset7", "approximation_mode=\"TANH\"", 1, &x);
    case ACT_RELU: return ov_unary(ir, "ReLU", x);
    case ACT_RELU_SQUARED:
        x = ov_unary(ir, "ReLU", x);
        return multiply(ir, x, x);
    case ACT_SIGMOID: return ov_unary(ir, "Sigmoid", x);
    case ACT_SOFT_CAP:
        x = ov_unary(ir, "Tanh", ov_binary(ir, "Divide", x, ov_number(ir, scale)));
        return multiply(ir, x, ov_number(ir, scale));
    case ACT_CLAMPED:
        x = clamp(ir, x, LEAST, 7);
        return multiply(ir, x,
                        ov_unary(ir, "Sigmoid", multiply(ir, x, ov_number(ir, (double)1.702f))));
    case ACT_CLAMP: return clamp(ir, x, -scale, scale);
    case ACT_CLAMPED_SILU: return silu(ir, clamp(ir, x, LEAST, scale));
    case ACT_SOFTPLUS: return ov_layer(ir, "SoftPlus", "opset4", NULL, 1, &x);
    case ACT_SILU_CLAMPED: return clamp(ir, silu(ir, x), LEAST, scale);
    case ACT_NONE:
    case ACT_COUNT: break;
    }
    return x;
}

static struct ov_node gated(const struct writing *w, struct ov_node gate, struct ov_node up)
{
    const double scale = (double)w->op->scale;
    const int a = w->op->activation;
    if (a == ACT_CLAMPED)
        up = ov_binary(w->ir, "Add", clamp(w->ir, up, -7, 7), ov_number(w->ir, 1));
    if (a == ACT_CLAMPED_SILU || a == ACT_SILU_CLAMPED)
        up = clamp(w->ir, up, -scale, scale);
    return multiply(w->ir, activation(w, gate), up);
}

static struct ov_node product(const struct writing *w, struct ov_node x, struct ov_node weight)
{
    const struct ov_node in[2] = {x, weight};
    return ov_layer(w->ir, "MatMul", "opset1", "transpose_a=\"false\" transpose_b=\"true\"", 2, in);
}

/* Of the last of so many dimensions. */
static struct ov_node mean(struct ov_ir *ir, struct ov_node x, int rank)
{
    const int64_t axis = rank - 1;
    const struct ov_node in[2] = {x, ov_integers(ir, 1, &axis)};
    return ov_layer(ir, "ReduceMean", "opset1", "keep_dims=\"true\"", 2, in);
}

static struct ov_node normed(const struct writing *w, struct ov_node x, int rank)
{
    struct ov_ir *ir = w->ir;
    if (w->op->norm & NORM_CENTRED)
        x = ov_binary(ir, "Subtract", x, mean(ir, x, rank));
    struct ov_node squares = mean(ir, multiply(ir, x, x), rank);
    squares = ov_binary(ir, "Add", squares, ov_number(ir, (double)w->op->eps));
    return ov_binary(ir, "Divide", x, ov_unary(ir, "Sqrt", squares));
}

/* ---------------------------------------------------------------------------- the kinds --- */

static void write_mul_mat(const struct writing *w)
{
    w->out[0] = product(w, w->in[0], w->weight[0]);
}

static void write_qkv(const struct writing *w)
{
    for (int i = 0; i < 3; i++)
        w->out[i] = product(w, w->in[0], w->weight[i]);
}

static void write_gate_up(const struct writing *w)
{
    w->out[0] =
        gated(w, product(w, w->in[0], w->weight[0]), product(w, w->in[0], w->weight[1]));
}

static void write_swiglu(const struct writing *w)
{
    w->out[0] = gated(w, w->in[0], w->in[1]);
}

static void write_activate(const struct writing *w)
{
    w->out[0] = activation(w, w->in[0]);
}

static struct ov_node weighted(const struct writing *w, struct ov_node x)
{
    int i = 0;
    if (!(w->op->norm & NORM_PLAIN))
        x = multiply(w->ir, x, w->weight[i++]);
    return w->op->norm & NORM_BIASED ? ov_binary(w->ir, "Add", x, w->weight[i]) : x;
}

static void write_rms_norm(const struct writing *w)
{
    w->out[0] = weighted(w, normed(w, w->in[0], 2));
}

static void write_add_norm(const struct writing *w)
{
    w->out[0] = ov_binary(w->ir, "Add", w->in[0], w->in[1]);
    w->out[1] = weighted(w, normed(w, w->out[0], 2));
}

static void write_head_norm(const struct writing *w)
{
    const struct oato_op *op = w->op;
    const int64_t heads[3] = {w->rows, op->heads, op->head_dim}, row[2] = {w->rows, op->n};
    struct ov_node x = normed(w, ov_reshape(w->ir, w->in[0], 3, heads), 3);
    if (!(op->norm & NORM_PLAIN)) /* heads x head_dim, or one of the two */
        x = multiply(w->ir, x, w->weight[0]);
    w->out[0] = ov_reshape(w->ir, x, 2, row);
}

static void write_bias(const struct writing *w)
{
    w->out[0] = ov_binary(w->ir, "Add", w->in[0], w->weight[0]);
}

static void write_scale(const struct writing *w)
{
    w->out[0] = ov_binary(w->ir, w->op->divides ? "Divide" : "Multiply", w->in[0],
                          w->n_weights ? w->weight[0] : ov_number(w->ir, (double)w->op->scale));
}

static void write_add(const struct writing *w)
{
    w->out[0] = ov_binary(w->ir, "Add", w->in[0], w->in[1]);
}

static void write_merge(const struct writing *w)
{
    w->out[0] = w->n_in == 1 ? w->in[0]
                             : ov_layer(w->ir, "Concat", "opset1", "axis=\"1\"", w->n_in, w->in);
}

static void write_merge_sum(const struct writing *w)
{
    w->out[0] = w->in[0];
    for (int i = 1; i < w->n_in; i++)
        w->out[0] = ov_binary(w->ir, "Add", w->out[0], w->in[i]);
}

static void write_slice(const struct writing *w)
{
    const struct oato_op *op = w->op;
    const int64_t heads = op->heads ? op->heads : 1, axis = 2, step = 1, first = op->first;
    const int64_t end = first + op->n / heads, row[2] = {w->rows, op->n};
    const struct ov_node in[5] = {
        ov_reshape(w->ir, w->in[0], 3, (const int64_t[]){w->rows, heads, op->k / heads}),
        ov_integers(w->ir, 1, &first), ov_integers(w->ir, 1, &end), ov_integers(w->ir, 1, &step),
        ov_integers(w->ir, 1, &axis)};
    w->out[0] = ov_reshape(w->ir, ov_layer(w->ir, "Slice", "opset8", NULL, 5, in), 2, row);
}

static void write_gate(const struct writing *w)
{
    const struct oato_op *op = w->op;
    const int64_t heads[3] = {w->rows, op->heads, op->k / op->heads}, row[2] = {w->rows, op->n};
    const int64_t gates[3] = {w->rows, op->heads, 1};
    const struct ov_node gate = ov_reshape(w->ir, activation(w, w->in[1]), 3, gates);
    const struct ov_node x = multiply(w->ir, ov_reshape(w->ir, w->in[0], 3, heads), gate);
    w->out[0] = ov_reshape(w->ir, x, 2, row);
}

static void (*const written[OP_KIND_COUNT])(const struct writing *w) = {
    [OP_RMS_NORM] = write_rms_norm, [OP_MUL_MAT] = write_mul_mat,   [OP_BIAS] = write_bias,
    [OP_SCALE] = write_scale,       [OP_ADD] = write_add,           [OP_SWIGLU] = write_swiglu,
    [OP_ACTIVATE] = write_activate, [OP_HEAD_NORM] = write_head_norm, [OP_QKV] = write_qkv,
    [OP_GATE_UP] = write_gate_up,   [OP_ADD_NORM] = write_add_norm, [OP_MERGE] = write_merge,
    [OP_MERGE_SUM] = write_merge_sum, [OP_SLICE] = write_slice,     [OP_GATE] = write_gate,
};

bool ov_supports(const struct oato_op *op)
{
    int64_t n, k;
    if (op->kind >= OP_KIND_COUNT || !written[op->kind] || op->sparse || op->temperature != 0 ||
        (op->kind == OP_MERGE_SUM && op->dtype != DT_F32) ||
        ((op->kind == OP_ACTIVATE || op->kind == OP_GATE) && op->activation == ACT_CLAMPED))
        return false;
    for (int i = 0; i < op_weight_count(op); i++)
        if (op_weight_shape(op, i, &n, &k) &&
            !ov_form_of(i < op_weight_least(op) ? op_weight_dtype(op, i) : DT_F32, n, k,
                        op_weight_use_at(op, i))
                 .bytes)
            return false;
    return true;
}

void ov_op(struct ov_ir *ir, const struct oato_op *op, int64_t rows, int n_in,
           const struct ov_node *in, int n_weights, const struct ov_node *weight,
           struct ov_node *out)
{
    const struct writing w = {ir, op, rows, n_in, n_weights, in, weight, out};
    written[op->kind](&w);
}
