/*
 * op_kinds.c - the kinds of operators, a row each, and the widths that rows name. A new kind is a
 * number in op.h, a row here and a kernel for each device.
 */
#include "kernels/op_row.h"
#include "kernels/sums.h"

#include <string.h>

bool op_kv_dtype(oato_dtype dtype)
{
    return dtype == DT_F16 || dtype == DT_F32 || dtype == DT_Q8_0;
}

int32_t op_experts_held(const struct oato_op *op)
{
    return op->experts_held ? op->experts_held : op->experts;
}

int32_t op_v_dim(const struct oato_op *op)
{
    return op->v_in_k ? op->v_in_k : op->v_dim ? op->v_dim : op->head_dim;
}

static bool kv_fits(const struct oato_op *op)
{
    size_t row;
    return op_kv_dtype((oato_dtype)op->dtype) && op->kv_heads > 0 && op->head_dim > 0 &&
           op->head_dim <= HEAD_DIM_MAX && op->v_dim >= 0 && op->v_dim <= HEAD_DIM_MAX &&
           op->v_in_k >= 0 && op->v_in_k <= op->head_dim && !(op->v_dim && op->v_in_k) &&
           dtype_row_bytes((oato_dtype)op->dtype, op->head_dim, &row) &&
           dtype_row_bytes((oato_dtype)op->dtype, op_v_dim(op), &row);
}

static bool store_fits(const struct oato_op *op)
{
    return kv_fits(op) && op->k_tail >= 0 && op->k_tail <= op->head_dim &&
           (op->k_tail || !op->v_in_k);
}

static bool heads_fit(const struct oato_op *op)
{
    return op->heads > 0 && op->head_dim > 0 && (int64_t)op->heads * op->head_dim == op->n;
}

static bool attention_fits(const struct oato_op *op)
{
    return kv_fits(op) && op->heads > 0 && (int64_t)op->heads * op->head_dim == op->k &&
           (int64_t)op->heads * op_v_dim(op) == op->n && op->heads % op->kv_heads == 0 &&
           op->window >= 0 &&
           (op->alibi == 0 || (op->first >= 0 && op->heads <= op->alibi_heads - op->first));
}

static bool convert_fits(const struct oato_op *op)
{
    return op->dtype == DT_F32 || op->dtype == DT_F16;
}

static bool sum_fits(const struct oato_op *op)
{
    return sum_wire_ok((oato_dtype)op->dtype, op->n);
}

static bool norm_fits(const struct oato_op *op)
{
    const int32_t most = NORM_CENTRED | NORM_BIASED | NORM_PLAIN;
    return !(op->norm & ~most) && !(op->norm & NORM_BIASED && op->norm & NORM_PLAIN);
}

static bool head_norm_fits(const struct oato_op *op)
{
    const int32_t weights = NORM_PLAIN | NORM_OWN_HEADS | NORM_HEAD_GAINS, w = op->norm & weights;
    return heads_fit(op) && !(op->norm & ~(NORM_CENTRED | weights)) && !(w & (w - 1));
}

static bool rope_fits(const struct oato_op *op)
{
    return heads_fit(op) && op->head_dim <= HEAD_DIM_MAX && op->rope_dims >= 0 &&
           op->rope_dims % 2 == 0 && op->first >= 0 && op->rope_dims <= op->head_dim - op->first &&
           (op->rope_pairing == ROPE_ADJACENT || op->rope_pairing == ROPE_HALVES);
}

static bool head_products_fit(const struct oato_op *op)
{
    return op->heads > 0 && op->k > 0 && op->n > 0 && op->k <= op->head_dim &&
           max_i64(op->head_dim, (int64_t)op->n + op->head_dim - op->k) * op->heads <= INT32_MAX &&
           (int64_t)op->heads * op->n <= INT32_MAX;
}

static bool activation_fits(const struct oato_op *op)
{
    return op->activation >= 0 && op->activation < ACT_COUNT;
}

static bool sparse_fits(const struct oato_op *op)
{
    return op->sparse >= SPARSE_OFF && op->sparse <= SPARSE_BY_ROWS &&
           (op->sparse != SPARSE_PREDICT || op->n < LIST_MOST);
}

static bool gate_up_fits(const struct oato_op *op)
{
    return activation_fits(op) && sparse_fits(op);
}

static bool is_of_blocks(int32_t dtype)
{
    const struct dtype_info *d = dtype_info(dtype);
    return d && dtype_is_weight((oato_dtype)dtype) && d->block_elems > 1;
}

/* One input is packed for both matrices. */
static bool up_fits(const struct oato_op *op)
{
    return !op->up_dtype || (op->kind == OP_EXPERT_GATE_UP && !op->one_tensor && !op->single &&
                             is_of_blocks(op->dtype) && is_of_blocks(op->up_dtype) &&
                             op->k % dtype_info(op->up_dtype)->block_elems == 0);
}

static bool experts_fit(const struct oato_op *op)
{
    return op->experts > 0 && op->experts <= EXPERTS_MAX && op->experts_used > 0 &&
           op->experts_used <= op->experts && op->n > 0 &&
           max_i64(op->k, op->n) * op->experts_used <= INT32_MAX && op->expert_first >= 0 &&
           op->experts_held >= 0 && op_experts_held(op) <= op->experts - op->expert_first &&
           op->expert_slots >= -1 && op->expert_slots <= op_experts_held(op) &&
           activation_fits(op) && !(op->single && op->one_tensor) && up_fits(op);
}

static bool groups_fit(const struct oato_op *op)
{
    const int32_t groups = op->route_groups, used = op->route_groups_used;
    return !groups ? !used
                   : groups > 0 && used > 0 && used <= groups && op->experts % groups == 0 &&
                         op->experts_used <= op->experts / groups * used;
}

static bool route_fits(const struct oato_op *op)
{
    return experts_fit(op) && op->k == op_width(op, W_SCORES) && op->k <= EXPERTS_MAX &&
           op->n == 2 * op->experts_used && !(op->route_share && op->route_groups) &&
           op->route_score >= 0 && op->route_score < ROUTE_SCORE_COUNT && groups_fit(op);
}

static bool gate_fits(const struct oato_op *op)
{
    return activation_fits(op) && op->heads > 0 && op->k % op->heads == 0 && op->n == op->k;
}

static bool top_k_fits(const struct oato_op *op)
{
    return op->k <= TOP_K_LOGITS_MOST && op->n > 0 && op->n % 2 == 0 && op->n / 2 <= op->k &&
           op->n / 2 <= TOP_K_MOST;
}

static bool slice_fits(const struct oato_op *op)
{
    const int32_t heads = op->heads ? op->heads : 1;
    return heads > 0 && op->k % heads == 0 && op->n % heads == 0 && op->first >= 0 && op->n > 0 &&
           op->n / heads <= op->k / heads - op->first;
}

/* Numbers of a list are exact in float32. */
static bool list_fits(const struct oato_op *op)
{
    return op->k <= LIST_MOST;
}

static bool conv_fits(const struct oato_op *op)
{
    return op->state > 0 && op->state <= CONV_STATE_MAX;
}

static bool scan_fits(const struct oato_op *op)
{
    return op->heads > 0 && op->kv_heads > 0 && op->heads % op->kv_heads == 0 && op->head_dim > 0 &&
           op->head_dim <= HEAD_DIM_MAX && (op->alibi == 0 || op->heads <= op->alibi_heads) &&
           (op->kind == OP_DELTA || (op->state > 0 && op->state <= HEAD_DIM_MAX &&
                                     (!op->per_channel || (op->head_dim == 1 && op->alibi == 0))));
}

/* clang-format off */
static const struct op_kind_row op_kinds[OP_KIND_COUNT] = {
    [OP_EMBED] = {"embed", true, {F_K, F_N}, .example = "k4096/n4096", .out = {W_K}, .weight = {{W_N, W_K}},
        .traffic = TABLE_ROWS, .flops = 1, .flops_of = W_K},
    [OP_RMS_NORM] = {"rms_norm", false, {F_K}, .spans = true, .example = "k4096", .n = W_K, .in = {W_K}, .out = {W_N},
        .weight = {{W_WEIGHTED, W_K}, {W_BIASED, W_K}}, .traffic = VECTOR,
        .flops = 4, .flops_of = W_K, .fits = norm_fits}, /* square and add, scale, weight */
    [OP_MUL_MAT] = {"mul_mat", true, {F_K, F_N, F_SPARSE}, .spans = true, .example = "k4096/n4096", .in = {W_K, W_LISTED}, .out = {W_N}, .weight = {{W_N, W_K}},
        .traffic = MATRICES, .axes = ROWS | K, .fits = sparse_fits},
    [OP_BIAS] = {"bias", false, {F_K}, .spans = true, .example = "k4096", .n = W_K, .in = {W_K}, .out = {W_N},
        .weight = {{W_ONE, W_K}}, .traffic = VECTOR, .flops = 1, .flops_of = W_K, .axes = ROWS},
    [OP_SCALE] = {"scale", false, {F_K}, .spans = true, .example = "k4096", .n = W_K, .in = {W_K}, .out = {W_N},
        .weight = {{W_ONE, W_FACTORS}}, .optional = 1, .flops = 1, .flops_of = W_K},
    [OP_ROPE] = {"rope", false, {F_HEADS, F_HEAD_DIM, F_ROPE_DIMS, F_PAIRING}, .example = "h32/d128/r128/p0", .k = W_HEADS,
        .n = W_HEADS, .in = {W_HEADS}, .out = {W_N}, .weight = {{W_ONE, W_PAIRS}},
        .optional = 1, .flops = 3, .flops_of = W_ROTATED, .axes = HEADS, .fits = rope_fits},
    [OP_KV_STORE] = {"kv_store", true, {F_KV_HEADS, F_HEAD_DIM, F_V_DIM, F_V_IN_K, F_K_TAIL}, .example = "g8/d128",
        .k = W_KV_HEADS, .n = W_KV_HEADS, .in = {W_STORED, W_STORED_2}, .traffic = KV_WRITTEN,
        .flops = 2, .flops_of = W_KV_HEADS, .axes = HEADS, .fits = store_fits},
    [OP_ATTENTION] = {"attention", true, {F_HEADS, F_KV_HEADS, F_HEAD_DIM, F_V_DIM, F_V_IN_K}, .example = "h32/g8/d128",
        .k = W_HEADS, .n = W_VALUES, .in = {W_HEADS}, .out = {W_N},
        .weight = {{W_ONE, W_GATES}}, .optional = 1, .traffic = KV_READ,
        .flops = 2, .flops_of = W_ATTENDED, /* q.K and its sum with V */
        .axes = HEADS, .fits = attention_fits},
    [OP_ADD] = {"add", false, {F_K}, .spans = true, .example = "k4096", .n = W_K, .in = {W_K, W_K}, .out = {W_N},
        .flops = 1, .flops_of = W_K},
    [OP_SWIGLU] = {"swiglu", false, {F_K}, .spans = true, .example = "k4096", .n = W_K, .in = {W_K, W_K}, .out = {W_N},
        .flops = 5, .flops_of = W_K, .fits = activation_fits},
    [OP_ACTIVATE] = {"activate", false, {F_K}, .spans = true, .example = "k4096", .n = W_K, .in = {W_K}, .out = {W_N},
        .flops = 4, .flops_of = W_K, .fits = activation_fits},
    [OP_SELECT] = {"select", false, {F_K}, .example = "k4096", .n = W_K, .in = {W_K}, .out = {W_N}},
    [OP_HEAD_NORM] = {"head_norm", false, {F_HEADS, F_HEAD_DIM}, .spans = true, .example = "h32/d128", .k = W_HEADS, .n = W_HEADS,
        .in = {W_HEADS}, .out = {W_N}, .weight = {{W_WEIGHTED, W_HEAD}}, .traffic = VECTOR,
        .flops = 4, .flops_of = W_K, .axes = HEADS, .fits = head_norm_fits},
    [OP_ROUTE] = {"route", false, {F_EXPERTS, F_USED, F_SHARE}, .example = "e64/u8", .k = W_SCORES, .n = W_CHOICE, .in = {W_K},
        .out = {W_N}, .weight = {{W_ONE, W_SCORES}, {W_ONE, W_EXPERTS}}, .optional = 2,
        .flops = 5, .flops_of = W_K, .fits = route_fits},
    [OP_EXPERT_GATE_UP] = {"expert_gate_up", true, {F_K, F_N, F_EXPERTS, F_USED, F_SINGLE, F_UP_DTYPE}, .example = "k4096/n1024/e64/u8",
        .in = {W_K, W_CHOICE}, .out = {W_CHOSEN_N},
        .weight = {{W_GATE_N, W_K}, {W_GATE_N, W_K}, {W_ONE, W_EXPERTS}, {W_ONE, W_EXPERTS}, {W_EXPERTS, W_N},
            {W_EXPERTS, W_N}}, .optional = 4, .traffic = EXPERTS, .flops = 5, .flops_of = W_N, .axes = BY_EXPERT, .fits = experts_fit},
    [OP_EXPERT_DOWN] = {"expert_down", true, {F_K, F_N, F_EXPERTS, F_USED}, .example = "k1024/n4096/e64/u8",
        .in = {W_CHOSEN_K, W_CHOICE}, .out = {W_DOWN_N},
        .weight = {{W_N, W_K}, {W_ONE, W_EXPERTS}, {W_EXPERTS, W_N}}, .optional = 2,
        .traffic = EXPERTS, .flops = 2, .flops_of = W_N, .axes = BY_EXPERT, .fits = experts_fit},
    [OP_EXPERT_SUM] = {"expert_sum", false, {F_N, F_EXPERTS, F_USED}, .example = "n4096/e64/u8", .k = W_N,
        .in = {W_CHOICE, W_CHOSEN_N, W_CHOSEN_N}, .out = {W_N},
        .flops = 2, .flops_of = W_CHOSEN_N, .fits = experts_fit},
    [OP_QKV] = {"qkv", true, {F_K, F_N, F_N2}, .spans = true, .example = "k4096/n4096/m1024", .in = {W_K}, .out = {W_N, W_N2, W_N2},
        .weight = {{W_N, W_K}, {W_N2, W_K}, {W_N2, W_K}}, .traffic = MATRICES, .axes = HEADS},
    [OP_GATE_UP] = {"gate_up", true, {F_K, F_N, F_SPARSE}, .spans = true, .example = "k4096/n4096", .in = {W_K, W_LISTED}, .out = {W_N},
        .weight = {{W_N, W_K}, {W_N, W_K}}, .traffic = MATRICES,
        .flops = 5, .flops_of = W_N, .axes = ROWS, .fits = gate_up_fits},
    [OP_ADD_NORM] = {"add_norm", false, {F_K}, .spans = true, .example = "k4096", .n = W_K, .in = {W_K, W_K}, .out = {W_N, W_N},
        .weight = {{W_WEIGHTED, W_K}, {W_BIASED, W_K}}, .traffic = VECTOR,
        .flops = 5, .flops_of = W_K, .fits = norm_fits},
    [OP_MERGE] = {"merge", false, {F_N}, .spans = true, .example = "n4096", .k = W_N, .merges = true, .in = {W_ANY}, .out = {W_N}},
    [OP_MERGE_SUM] = {"merge_sum", false, {F_K, F_N}, .spans = true, .example = "k8192/n4096", .merges = true, .in = {W_N}, .out = {W_N},
        .flops = 1, .flops_of = W_ADDED, .fits = sum_fits},
    [OP_SLICE] = {"slice", false, {F_K, F_N}, .spans = true, .example = "k8192/n4096", .in = {W_K}, .out = {W_N}, .fits = slice_fits},
    [OP_CONV] = {"conv", false, {F_K, F_STATE}, .example = "k4096/s3", .n = W_K, .in = {W_K}, .out = {W_N},
        .weight = {{W_ONE, W_TAPS}}, .traffic = STATE, .flops = 2, .flops_of = W_TAPS,
        .fits = conv_fits},
    [OP_DELTA] = {"delta", false, {F_HEADS, F_KV_HEADS, F_HEAD_DIM, F_CHANNELS}, .example = "h32/g16/d128/c0", .k = W_QKV,
        .n = W_HEADS, .in = {W_QKV, W_DECAYS, W_BY_HEAD}, .out = {W_N},
        .weight = {{W_ONE, W_BY_HEAD}}, .traffic = STATE,
        .flops = 7, .flops_of = W_STATE, /* S'k, decay, sum, S'q */
        .fits = scan_fits},
    [OP_SSM] = {"ssm", false, {F_HEADS, F_KV_HEADS, F_HEAD_DIM, F_STATE, F_CHANNELS}, .example = "h64/g8/d64/s128/c0", .k = W_XBC,
        .n = W_HEADS, .in = {W_XBC, W_STEPS}, .out = {W_N},
        .weight = {{W_DECAYED, W_DECAYS}, {W_DECAYED, W_BY_HEAD}}, .traffic = STATE,
        .flops = 5, .flops_of = W_STATE, .fits = scan_fits},
    [OP_HEAD_MUL_MAT] = {"head_mul_mat", true, {F_K, F_N, F_HEADS, F_HEAD_DIM}, .spans = true, .example = "k512/n512/h16/d576", .in = {W_HEADS},
        .out = {W_PRODUCTS}, .weight = {{W_MATRICES, W_K}}, .traffic = MATRICES,
        .fits = head_products_fit},
    [OP_MUL_MAT_T] = {"mul_mat_t", true, {F_K, F_N}, .spans = true, .example = "k4096/n4096", .in = {W_K}, .out = {W_N}, .weight = {{W_K, W_N}},
        .traffic = TRANSPOSED},
    [OP_GATE] = {"gate", false, {F_K, F_HEADS}, .spans = true, .example = "k4096/h32", .n = W_K, .in = {W_K, W_GATES}, .out = {W_N},
        .flops = 4, .flops_of = W_K, .fits = gate_fits},
    [OP_ACTIVE] = {"active", false, {F_K}, .example = "k4096", .n = W_LIST, .in = {W_K}, .out = {W_N},
        .weight = {{W_ONE, W_K}}, .optional = 1, .flops = 1, .flops_of = W_K, .fits = list_fits},
    [OP_CONVERT] = {"convert", true, {F_K}, .example = "k4096", .n = W_K, .in = {W_K}, .out = {W_N},
        .flops = 1, .flops_of = W_K, .fits = convert_fits},
    [OP_KV_COPY] = {"kv_copy", false, {F_END}, .example = ""},
    [OP_TOP_K] = {"top_k", false, {F_K, F_N}, .example = "k4096/n80", .in = {W_K}, .out = {W_N},
        .flops = 1, .flops_of = W_K, /* a comparison each */
        .fits = top_k_fits},
};
/* clang-format on */

const struct op_fusion op_fusions[] = {
    {"qkv", "kv", OP_QKV, 3, {OP_MUL_MAT, OP_MUL_MAT, OP_MUL_MAT}},
    {"gate_up", "_up", OP_GATE_UP, 3, {OP_MUL_MAT, OP_MUL_MAT, OP_SWIGLU}},
    {"add_norm", "_norm", OP_ADD_NORM, 2, {OP_ADD, OP_RMS_NORM}},
};
const int op_fusion_count = ARRAY_LEN(op_fusions);

const char *const op_join_names[JOIN_COUNT] = {"norm + product", "attention + product",
                                               "product + add", "rope + kv_store"};

const struct op_kind_row *op_kind_row(int kind)
{
    return &op_kinds[kind > OP_NONE && kind < OP_KIND_COUNT ? kind : OP_NONE];
}

/* Of one head's state. */
static int32_t state_rows(const struct oato_op *op)
{
    return op->kind == OP_DELTA ? op->head_dim : op->state;
}

bool op_spans(const struct oato_op *op)
{
    return op_kind_row(op->kind)->spans && !op->sparse && op->temperature == 0;
}

int64_t op_state_floats(const struct oato_op *op)
{
    if (op_kind_row(op->kind)->traffic != STATE)
        return 0;
    return op->kind == OP_CONV ? (int64_t)op->state * op->k
                               : (int64_t)op->heads * op->head_dim * state_rows(op);
}

int64_t op_width(const struct oato_op *op, enum width width)
{
    switch (width) {
    case W_NONE: return 0;
    case W_ANY: return OP_ANY;
    case W_ONE: return 1;
    case W_K: return op->k;
    case W_N: return op->n;
    case W_GATE_N: return (int64_t)op->n * (op->one_tensor ? 2 : 1);
    case W_N2: return op->n2;
    case W_HEAD: return op->norm & NORM_HEAD_GAINS ? 1 : op->head_dim;
    case W_HEADS: return (int64_t)op->heads * op->head_dim;
    case W_KV_HEADS: return (int64_t)op->kv_heads * op->head_dim;
    case W_STORED:
        return (int64_t)op->kv_heads *
               (op->head_dim - op->k_tail + (op->k_tail && !op->v_in_k ? op_v_dim(op) : 0));
    case W_STORED_2: return op->k_tail ? op->k_tail : (int64_t)op->kv_heads * op_v_dim(op);
    case W_VALUES: return (int64_t)op->heads * op_v_dim(op);
    case W_ATTENDED: return (int64_t)op->heads * ((int64_t)op->head_dim + op_v_dim(op));
    case W_MATRICES: return (int64_t)op->heads * op->n;
    case W_PRODUCTS: return (int64_t)op->heads * ((int64_t)op->n + op->head_dim - op->k);
    case W_PAIRS: return op->rope_dims / 2;
    case W_ROTATED: return (int64_t)op->heads * op->rope_dims;
    case W_EXPERTS: return op->experts;
    case W_SCORES: return (int64_t)op->experts * (op->route_share ? op->route_share : 1);
    case W_CHOICE: return 2 * (int64_t)op->experts_used;
    case W_GATES: return op->heads;
    case W_CHOSEN_K: return (int64_t)op->experts_used * op->k;
    case W_CHOSEN_N: return (int64_t)op->experts_used * op->n;
    case W_DOWN_N: return (int64_t)op->n * (op->expert_slots ? op->experts_used : 1);
    case W_WEIGHTED:
        return op->norm & NORM_PLAIN                           ? 0
               : op->norm & (NORM_OWN_HEADS | NORM_HEAD_GAINS) ? op->heads
                                                               : 1;
    case W_BIASED: return op->norm & NORM_BIASED ? 1 : 0;
    case W_FACTORS: return op->divides ? op->k : 1;
    case W_ADDED: return (int64_t)op->k - op->n;
    case W_TAPS: return (int64_t)op->k * (op->state + 1);
    case W_BY_HEAD: return op->heads;
    case W_QKV: return ((int64_t)op->heads + 2 * (int64_t)op->kv_heads) * op->head_dim;
    case W_DECAYS: return op->per_channel ? op->heads * (int64_t)state_rows(op) : op->heads;
    case W_XBC: return (int64_t)op->heads * op->head_dim + 2 * (int64_t)op->kv_heads * op->state;
    case W_STEPS: return op->alibi != 0 ? 0 : op->heads;
    case W_DECAYED: return op->alibi != 0 ? 0 : 1;
    case W_STATE: return op_state_floats(op);
    case W_LIST: return (int64_t)op->k + 1;
    case W_LISTED: return op->sparse == SPARSE_PREDICT ? (int64_t)op->n + 1 : 0;
    }
    return 0;
}

const char *op_kind_name(int kind)
{
    const char *name = op_kind_row(kind)->name;
    return name ? name : "?";
}

bool op_kind_parse(const char *name, enum op_kind *out)
{
    for (int i = OP_NONE + 1; i < OP_KIND_COUNT; i++) {
        if (!strcmp(op_kinds[i].name, name)) {
            *out = (enum op_kind)i;
            return true;
        }
    }
    return false;
}

bool op_has_seqs(int kind)
{
    return kind == OP_ATTENTION || op_kind_row(kind)->traffic == STATE;
}
