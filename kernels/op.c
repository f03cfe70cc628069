/*
 * op.c - the operator description. All that is true of a kind of operator is its row of op_kinds:
 * its key, its inputs, outputs and weights, how it may be cut, what it costs and which shapes can
 * be computed. A new kind is a number in op.h, a row here and a kernel for each device.
 *
 * A key's fields are printed and read in the order of the row, so that a key has exactly one
 * spelling and oato_op_parse gives back what oato_op_key was given.
 */
#include "kernels/op.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* A number of a key: its letters, where it is kept and what is allowed. */
struct key_field {
    char letter;
    size_t offset;
    int32_t least, most;
    bool optional; /* left out where it is 0 */
};

enum field_id {
    F_END,
    F_K,
    F_N,
    F_N2,
    F_HEADS,
    F_KV_HEADS,
    F_HEAD_DIM,
    F_ROPE_DIMS,
    F_PAIRING,
    F_EXPERTS,
    F_USED,
    F_STATE,
    F_CHANNELS,
    F_V_DIM,
    F_V_IN_K,
    F_K_TAIL
};

/* Their ids and the widths that they multiply stay exact in float32 and within int32. */
enum { EXPERTS_MOST = 1 << 16 };

#define FIELD(letter, member, least, most)                                                         \
    {                                                                                              \
        letter, offsetof(struct oato_op, member), least, most, false                               \
    }
#define OPTIONAL(letter, member)                                                                   \
    {                                                                                              \
        letter, offsetof(struct oato_op, member), 1, INT32_MAX, true                               \
    }
static const struct key_field key_fields[] = {
    [F_K] = FIELD('k', k, 1, INT32_MAX),
    [F_N] = FIELD('n', n, 1, INT32_MAX),
    [F_N2] = FIELD('m', n2, 1, INT32_MAX),
    [F_HEADS] = FIELD('h', heads, 1, INT32_MAX),
    [F_KV_HEADS] = FIELD('g', kv_heads, 1, INT32_MAX),
    [F_HEAD_DIM] = FIELD('d', head_dim, 1, INT32_MAX),
    [F_ROPE_DIMS] = FIELD('r', rope_dims, 1, INT32_MAX),
    [F_PAIRING] = FIELD('p', rope_pairing, ROPE_ADJACENT, ROPE_HALVES),
    [F_EXPERTS] = FIELD('e', experts, 1, EXPERTS_MOST),
    [F_USED] = FIELD('u', experts_used, 1, EXPERTS_MOST),
    [F_STATE] = FIELD('s', state, 1, INT32_MAX),
    [F_CHANNELS] = FIELD('c', per_channel, 0, 1),
    [F_V_DIM] = OPTIONAL('v', v_dim),
    [F_V_IN_K] = OPTIONAL('c', v_in_k),
    [F_K_TAIL] = OPTIONAL('x', k_tail),
};
#undef OPTIONAL
#undef FIELD

/* Widths of values and weights in terms of the operator's fields. */
enum width {
    W_NONE, /* there is no such value or weight; of a key: it names this width itself */
    W_ANY,
    W_ONE,
    W_K,
    W_N,
    W_GATE_N, /* rows of an expert in the tensor of its gate */
    W_N2,
    W_HEAD,     /* one head */
    W_HEADS,    /* all of them */
    W_KV_HEADS, /* those of K */
    W_STORED,   /* what KV_STORE stores: all of K, or what heads do not share and V */
    W_STORED_2, /* V, or what heads share */
    W_VALUES,   /* of attention's heads */
    W_ATTENDED, /* q and values of all heads */
    W_MATRICES, /* rows of one matrix for each head */
    W_PRODUCTS, /* of HEAD_MUL_MAT */
    W_PAIRS,    /* that ROPE turns in a head */
    W_ROTATED,  /* dimensions that it turns in all heads */
    W_EXPERTS,
    W_CHOICE, /* of a token: ids and weights of its experts */
    W_GATES,
    W_CHOSEN_K, /* of these a row of k each */
    W_CHOSEN_N,
    W_WEIGHTED, /* rows of a norm's weight: one, or one a head; none if it is plain */
    W_BIASED,   /* and of its bias */
    W_FACTORS,  /* of SCALE: one, or one for each column */
    W_ADDED,    /* by MERGE_SUM to the first summand */
    W_TAPS,     /* of all channels */
    W_BY_HEAD,
    W_QKV,    /* q and k of kv_heads, v of heads */
    W_DECAYS, /* one for each head, or for each row of its state */
    W_XBC,    /* x of all heads, B and C of all groups */
    W_STATE   /* of a sequence */
};

/* The memory that a run reads or writes beside the operator's values. */
enum traffic { NONE, VECTOR, TABLE_ROWS, MATRICES, EXPERTS, STATE, KV_WRITTEN, KV_READ };

enum {
    ROWS = 1 << AXIS_ROWS,
    K = 1 << AXIS_K,
    HEADS = 1 << AXIS_HEADS,
    BY_EXPERT = 1 << AXIS_EXPERTS
};

struct op_kind_row {
    const char *name;
    bool typed; /* the dtype is part of the key; else it is F32 */
    uint8_t fields[7];
    uint8_t k, n; /* enum width: what they are when the key does not name them */
    bool merges;  /* takes any number of inputs, all of width in[0] */
    uint8_t in[3], out[3];
    struct {
        uint8_t n, k;
    } weight[6];      /* EXPERTS: demanded ones of one expert */
    uint8_t optional; /* the last so many weights may be absent; they are vectors */
    enum traffic traffic;
    /* Operations beside those of matrices: so many for each element of a width, exp counts as two;
     * for each row, expert chosen, or position that KV_READ reads. */
    uint8_t flops, flops_of;
    uint8_t axes;
    bool (*fits)(const struct oato_op *op); /* what a kernel demands beside; NULL: nothing */
};

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

static bool experts_fit(const struct oato_op *op)
{
    return op->experts > 0 && op->experts <= EXPERTS_MAX && op->experts_used > 0 &&
           op->experts_used <= op->experts && op->n > 0 &&
           max_i64(op->k, op->n) * op->experts_used <= INT32_MAX && op->expert_first >= 0 &&
           op->experts_held >= 0 && op_experts_held(op) <= op->experts - op->expert_first &&
           activation_fits(op);
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
    return experts_fit(op) && op->k == op->experts && op->n == 2 * op->experts_used &&
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

static bool conv_fits(const struct oato_op *op)
{
    return op->state > 0 && op->state <= CONV_STATE_MAX;
}

static bool scan_fits(const struct oato_op *op)
{
    return op->heads > 0 && op->kv_heads > 0 && op->heads % op->kv_heads == 0 && op->head_dim > 0 &&
           op->head_dim <= HEAD_DIM_MAX &&
           (op->kind == OP_DELTA || (op->state > 0 && op->state <= HEAD_DIM_MAX &&
                                     (!op->per_channel || op->head_dim == 1)));
}

/* clang-format off */
static const struct op_kind_row op_kinds[OP_KIND_COUNT] = {
    [OP_EMBED] = {"embed", true, {F_K, F_N}, .out = {W_K}, .weight = {{W_N, W_K}},
        .traffic = TABLE_ROWS, .flops = 1, .flops_of = W_K},
    [OP_RMS_NORM] = {"rms_norm", false, {F_K}, .n = W_K, .in = {W_K}, .out = {W_N},
        .weight = {{W_WEIGHTED, W_K}, {W_BIASED, W_K}}, .traffic = VECTOR,
        .flops = 4, .flops_of = W_K, .fits = norm_fits}, /* square and add, scale, weight */
    [OP_MUL_MAT] = {"mul_mat", true, {F_K, F_N}, .in = {W_K}, .out = {W_N}, .weight = {{W_N, W_K}},
        .traffic = MATRICES, .axes = ROWS | K},
    [OP_BIAS] = {"bias", false, {F_K}, .n = W_K, .in = {W_K}, .out = {W_N},
        .weight = {{W_ONE, W_K}}, .traffic = VECTOR, .flops = 1, .flops_of = W_K},
    [OP_SCALE] = {"scale", false, {F_K}, .n = W_K, .in = {W_K}, .out = {W_N},
        .weight = {{W_ONE, W_FACTORS}}, .optional = 1, .flops = 1, .flops_of = W_K},
    [OP_ROPE] = {"rope", false, {F_HEADS, F_HEAD_DIM, F_ROPE_DIMS, F_PAIRING}, .k = W_HEADS,
        .n = W_HEADS, .in = {W_HEADS}, .out = {W_N}, .weight = {{W_ONE, W_PAIRS}},
        .optional = 1, .flops = 3, .flops_of = W_ROTATED, .fits = rope_fits},
    [OP_KV_STORE] = {"kv_store", true, {F_KV_HEADS, F_HEAD_DIM, F_V_DIM, F_V_IN_K, F_K_TAIL},
        .k = W_KV_HEADS, .n = W_KV_HEADS, .in = {W_STORED, W_STORED_2}, .traffic = KV_WRITTEN,
        .flops = 2, .flops_of = W_KV_HEADS, .axes = HEADS, .fits = store_fits},
    [OP_ATTENTION] = {"attention", true, {F_HEADS, F_KV_HEADS, F_HEAD_DIM, F_V_DIM, F_V_IN_K},
        .k = W_HEADS, .n = W_VALUES, .in = {W_HEADS}, .out = {W_N},
        .weight = {{W_ONE, W_GATES}}, .optional = 1, .traffic = KV_READ,
        .flops = 2, .flops_of = W_ATTENDED, /* q.K and its sum with V */
        .axes = HEADS, .fits = attention_fits},
    [OP_ADD] = {"add", false, {F_K}, .n = W_K, .in = {W_K, W_K}, .out = {W_N},
        .flops = 1, .flops_of = W_K},
    [OP_SWIGLU] = {"swiglu", false, {F_K}, .n = W_K, .in = {W_K, W_K}, .out = {W_N},
        .flops = 5, .flops_of = W_K, .fits = activation_fits},
    [OP_ACTIVATE] = {"activate", false, {F_K}, .n = W_K, .in = {W_K}, .out = {W_N},
        .flops = 4, .flops_of = W_K, .fits = activation_fits},
    [OP_SELECT] = {"select", false, {F_K}, .n = W_K, .in = {W_K}, .out = {W_N}},
    [OP_HEAD_NORM] = {"head_norm", false, {F_HEADS, F_HEAD_DIM}, .k = W_HEADS, .n = W_HEADS,
        .in = {W_HEADS}, .out = {W_N}, .weight = {{W_WEIGHTED, W_HEAD}}, .traffic = VECTOR,
        .flops = 4, .flops_of = W_K, .fits = head_norm_fits},
    [OP_ROUTE] = {"route", false, {F_EXPERTS, F_USED}, .k = W_EXPERTS, .n = W_CHOICE, .in = {W_K},
        .out = {W_N}, .weight = {{W_ONE, W_EXPERTS}}, .optional = 1,
        .flops = 5, .flops_of = W_K, .fits = route_fits},
    [OP_EXPERT_GATE_UP] = {"expert_gate_up", true, {F_K, F_N, F_EXPERTS, F_USED},
        .in = {W_K, W_CHOICE}, .out = {W_CHOSEN_N},
        .weight = {{W_GATE_N, W_K}, {W_GATE_N, W_K}, {W_ONE, W_EXPERTS}, {W_ONE, W_EXPERTS}, {W_EXPERTS, W_N},
            {W_EXPERTS, W_N}}, .optional = 4, .traffic = EXPERTS, .flops = 5, .flops_of = W_N, .axes = BY_EXPERT, .fits = experts_fit},
    [OP_EXPERT_DOWN] = {"expert_down", true, {F_K, F_N, F_EXPERTS, F_USED},
        .in = {W_CHOSEN_K, W_CHOICE}, .out = {W_N},
        .weight = {{W_N, W_K}, {W_ONE, W_EXPERTS}, {W_EXPERTS, W_N}}, .optional = 2,
        .traffic = EXPERTS, .flops = 2, .flops_of = W_N, .axes = BY_EXPERT, .fits = experts_fit},
    [OP_QKV] = {"qkv", true, {F_K, F_N, F_N2}, .in = {W_K}, .out = {W_N, W_N2, W_N2},
        .weight = {{W_N, W_K}, {W_N2, W_K}, {W_N2, W_K}}, .traffic = MATRICES},
    [OP_GATE_UP] = {"gate_up", true, {F_K, F_N}, .in = {W_K}, .out = {W_N},
        .weight = {{W_N, W_K}, {W_N, W_K}}, .traffic = MATRICES,
        .flops = 5, .flops_of = W_N, .axes = ROWS, .fits = activation_fits},
    [OP_ADD_NORM] = {"add_norm", false, {F_K}, .n = W_K, .in = {W_K, W_K}, .out = {W_N, W_N},
        .weight = {{W_WEIGHTED, W_K}, {W_BIASED, W_K}}, .traffic = VECTOR,
        .flops = 5, .flops_of = W_K, .fits = norm_fits},
    [OP_MERGE] = {"merge", false, {F_N}, .k = W_N, .merges = true, .in = {W_ANY}, .out = {W_N}},
    [OP_MERGE_SUM] = {"merge_sum", false, {F_K, F_N}, .merges = true, .in = {W_N}, .out = {W_N},
        .flops = 1, .flops_of = W_ADDED},
    [OP_SLICE] = {"slice", false, {F_K, F_N}, .in = {W_K}, .out = {W_N}, .fits = slice_fits},
    [OP_CONV] = {"conv", false, {F_K, F_STATE}, .n = W_K, .in = {W_K}, .out = {W_N},
        .weight = {{W_ONE, W_TAPS}}, .traffic = STATE, .flops = 2, .flops_of = W_TAPS,
        .fits = conv_fits},
    [OP_DELTA] = {"delta", false, {F_HEADS, F_KV_HEADS, F_HEAD_DIM, F_CHANNELS}, .k = W_QKV,
        .n = W_HEADS, .in = {W_QKV, W_DECAYS, W_BY_HEAD}, .out = {W_N},
        .weight = {{W_ONE, W_BY_HEAD}}, .traffic = STATE,
        .flops = 7, .flops_of = W_STATE, /* S'k, decay, sum, S'q */
        .fits = scan_fits},
    [OP_SSM] = {"ssm", false, {F_HEADS, F_KV_HEADS, F_HEAD_DIM, F_STATE, F_CHANNELS}, .k = W_XBC,
        .n = W_HEADS, .in = {W_XBC, W_BY_HEAD}, .out = {W_N},
        .weight = {{W_ONE, W_DECAYS}, {W_ONE, W_BY_HEAD}}, .traffic = STATE,
        .flops = 5, .flops_of = W_STATE, .fits = scan_fits},
    [OP_HEAD_MUL_MAT] = {"head_mul_mat", true, {F_K, F_N, F_HEADS, F_HEAD_DIM}, .in = {W_HEADS},
        .out = {W_PRODUCTS}, .weight = {{W_MATRICES, W_K}}, .traffic = MATRICES,
        .fits = head_products_fit},
    [OP_GATE] = {"gate", false, {F_K, F_HEADS}, .n = W_K, .in = {W_K, W_GATES}, .out = {W_N},
        .flops = 4, .flops_of = W_K, .fits = gate_fits},
    [OP_KV_COPY] = {"kv_copy", false, {F_END}},
    [OP_TOP_K] = {"top_k", false, {F_K, F_N}, .in = {W_K}, .out = {W_N},
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

/* Of a kind that nobody knows the empty row of OP_NONE. */
static const struct op_kind_row *kind_row(int kind)
{
    return &op_kinds[kind > OP_NONE && kind < OP_KIND_COUNT ? kind : OP_NONE];
}

/* Of one head's state. */
static int32_t state_rows(const struct oato_op *op)
{
    return op->kind == OP_DELTA ? op->head_dim : op->state;
}

int64_t op_state_floats(const struct oato_op *op)
{
    if (kind_row(op->kind)->traffic != STATE)
        return 0;
    return op->kind == OP_CONV ? (int64_t)op->state * op->k
                               : (int64_t)op->heads * op->head_dim * state_rows(op);
}

static int64_t width_of(const struct oato_op *op, enum width width)
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
    case W_CHOICE: return 2 * (int64_t)op->experts_used;
    case W_GATES: return op->heads;
    case W_CHOSEN_K: return (int64_t)op->experts_used * op->k;
    case W_CHOSEN_N: return (int64_t)op->experts_used * op->n;
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
    case W_STATE: return op_state_floats(op);
    }
    return 0;
}

const char *op_kind_name(int kind)
{
    const char *name = kind_row(kind)->name;
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

/* -------------------------------------------------------------------------------- keys ---- */

static int32_t *field_of(struct oato_op *op, const struct key_field *f)
{
    return (int32_t *)(void *)((char *)op + f->offset);
}

static int32_t field_value(const struct oato_op *op, const struct key_field *f)
{
    int32_t v;
    memcpy(&v, (const char *)op + f->offset, sizeof v);
    return v;
}

bool op_has_seqs(int kind)
{
    return kind == OP_ATTENTION || kind_row(kind)->traffic == STATE;
}

char *oato_op_key(const struct oato_op *op, const struct op_size *size, char out[OP_KEY_SIZE])
{
    const struct op_kind_row *row = kind_row(op->kind);
    int n = snprintf(out, OP_KEY_SIZE, "%s", op_kind_name(op->kind));
    if (!row->name)
        return out;
    if (row->typed)
        n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/%s", dtype_name((oato_dtype)op->dtype));
    for (const uint8_t *id = row->fields; *id; id++) {
        const int32_t v = field_value(op, &key_fields[*id]);
        if (v || !key_fields[*id].optional)
            n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/%c%" PRId32, key_fields[*id].letter,
                          v);
    }
    /* at most 15 + 8 + 4 * 13 bytes so far, and no kind with as many has all of what follows */
    if (size)
        n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/t%" PRId32, size->rows);
    if (size && op_has_seqs(op->kind) && n < OP_KEY_SIZE)
        n += snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/s%" PRId32,
                      (size->seqs > 1 ? size->seqs : 1));
    if (size && op->kind == OP_ATTENTION && n < OP_KEY_SIZE)
        snprintf(out + n, OP_KEY_SIZE - (size_t)n, "/kv%" PRId64, size->kv_positions);
    return out;
}

/* Reads "/" and the letters, then a number as printf writes it; *p moves behind it. */
static bool read_field(const char **p, const char *letters, int64_t least, int64_t most,
                       int64_t *out)
{
    size_t n = strlen(letters);
    const char *s = *p;
    if (*s != '/' || strncmp(s + 1, letters, n) != 0)
        return false;
    s += 1 + n;
    if (*s < '0' || *s > '9' || (s[0] == '0' && s[1] >= '0' && s[1] <= '9'))
        return false;
    int64_t v = 0;
    for (; *s >= '0' && *s <= '9'; s++) {
        if (v > (INT64_MAX - 9) / 10)
            return false;
        v = v * 10 + (*s - '0');
    }
    if (v < least || v > most)
        return false;
    *p = s;
    *out = v;
    return true;
}

/* The part of s up to the next '/' or the end, as a word; NULL when it is too long. */
static const char *read_word(const char **s, char *word, size_t size)
{
    size_t n = strcspn(*s, "/");
    if (n >= size)
        return NULL;
    memcpy(word, *s, n);
    word[n] = 0;
    *s += n;
    return word;
}

/* Sets a width that the key leaves out; false when it overflows. */
static bool set_implied(struct oato_op *op, enum width width, int32_t *out)
{
    const int64_t v = width == W_NONE ? *out : width_of(op, width);
    *out = (int32_t)v;
    return v <= INT32_MAX;
}

/* A token chooses no expert twice, and what all its experts give is one row. */
static bool choice_fits(const struct oato_op *op)
{
    int32_t widest = op->k > op->n ? op->k : op->n, row;
    return op->experts_used <= op->experts &&
           !__builtin_mul_overflow(widest, op->experts_used, &row);
}

static bool read_size(const char **p, enum op_kind kind, struct op_size *size)
{
    int64_t v;
    if (!read_field(p, "t", 1, INT32_MAX, &v))
        return false;
    size->rows = (int32_t)v;
    if (!op_has_seqs(kind))
        return true;
    if (!read_field(p, "s", 1, INT32_MAX, &v))
        return false;
    size->seqs = (int32_t)v;
    return kind != OP_ATTENTION || read_field(p, "kv", 0, INT64_MAX, &size->kv_positions);
}

bool oato_op_parse(const char *key, struct oato_op *op, struct op_size *size)
{
    char word[16];
    const char *p = key;
    enum op_kind kind;
    struct oato_op o = {.dtype = DT_F32};
    struct op_size z = {.seqs = 1};
    if (!read_word(&p, word, sizeof word) || !op_kind_parse(word, &kind))
        return false;
    const struct op_kind_row *row = &op_kinds[kind];
    o.kind = (uint16_t)kind;
    if (row->typed) {
        oato_dtype dtype;
        if (*p++ != '/' || !read_word(&p, word, sizeof word) || !dtype_parse(word, &dtype))
            return false;
        o.dtype = (uint16_t)dtype;
    }
    for (const uint8_t *id = row->fields; *id; id++) {
        const struct key_field *f = &key_fields[*id];
        int64_t v;
        if (f->optional && (p[0] != '/' || p[1] != f->letter))
            continue;
        if (!read_field(&p, (char[]){f->letter, 0}, f->least, f->most, &v))
            return false;
        *field_of(&o, f) = (int32_t)v;
    }
    if (!set_implied(&o, row->k, &o.k) || !set_implied(&o, row->n, &o.n) || !choice_fits(&o) ||
        (*p && !read_size(&p, kind, &z)) || *p)
        return false;
    *op = o;
    *size = z;
    return true;
}

bool oato_op_same(const struct oato_op *a, const struct oato_op *b)
{
    const struct op_kind_row *row = kind_row(a->kind);
    if (a->kind != b->kind || !row->name || (row->typed && a->dtype != b->dtype))
        return false;
    for (const uint8_t *id = row->fields; *id; id++)
        if (field_value(a, &key_fields[*id]) != field_value(b, &key_fields[*id]))
            return false;
    return true;
}

/* -------------------------------------------------------------------- shapes and costs ---- */

int32_t op_experts_held(const struct oato_op *op)
{
    return op->experts_held ? op->experts_held : op->experts;
}

bool op_has_experts(const struct oato_op *op)
{
    return kind_row(op->kind)->traffic == EXPERTS;
}

bool op_kv_dtype(oato_dtype dtype)
{
    return dtype == DT_F16 || dtype == DT_F32 || dtype == DT_Q8_0;
}

int32_t op_v_dim(const struct oato_op *op)
{
    return op->v_in_k ? op->v_in_k : op->v_dim ? op->v_dim : op->head_dim;
}

uint64_t op_kv_bytes(const struct oato_op *op, oato_dtype dtype)
{
    size_t k, v = 0;
    if (!dtype_row_bytes(dtype, (int64_t)op->kv_heads * op->head_dim, &k) ||
        (!op->v_in_k && !dtype_row_bytes(dtype, (int64_t)op->kv_heads * op_v_dim(op), &v)))
        return 0;
    return (uint64_t)k + v;
}

/* Of H heads, the largest power of two of them, N, has a sequence of its own. */
float op_slope(const struct oato_op *op, int32_t head)
{
    const int32_t h = op->first + head;
    int32_t n = 1;
    while (n <= op->alibi_heads / 2)
        n *= 2;
    return h < n ? exp2f(-op->alibi * (float)(h + 1) / (float)n)
                 : exp2f(-op->alibi / 2 * (float)(2 * (h - n) + 1) / (float)n);
}

bool op_has_kv(const struct oato_op *op)
{
    return kind_row(op->kind)->traffic >= KV_WRITTEN;
}

int op_in_count(const struct oato_op *op)
{
    const struct op_kind_row *row = kind_row(op->kind);
    return row->merges ? OP_ANY
                       : (row->in[0] != W_NONE) + (row->in[1] != W_NONE) + (row->in[2] != W_NONE);
}

int64_t op_in_width(const struct oato_op *op, int i)
{
    const struct op_kind_row *row = kind_row(op->kind);
    return width_of(op, row->in[row->merges ? 0 : i]);
}

int32_t op_out_width(const struct oato_op *op, int i)
{
    const struct op_kind_row *row = kind_row(op->kind);
    return i < (int)ARRAY_LEN(row->out) ? (int32_t)width_of(op, row->out[i]) : 0;
}

int op_weight_count(const struct oato_op *op)
{
    const struct op_kind_row *row = kind_row(op->kind);
    int n = 0;
    for (; n < (int)ARRAY_LEN(row->weight) && row->weight[n].n != W_NONE; n++)
        if (row->weight[n].n >= W_WEIGHTED && !width_of(op, row->weight[n].n))
            break;
    return n;
}

int op_weight_least(const struct oato_op *op)
{
    return op_weight_count(op) - (op->divides ? 0 : kind_row(op->kind)->optional);
}

bool op_weight_shape(const struct oato_op *op, int i, int64_t *n, int64_t *k)
{
    const struct op_kind_row *row = kind_row(op->kind);
    if (i < 0 || i >= op_weight_count(op))
        return false;
    *n = width_of(op, row->weight[i].n);
    if (row->traffic == EXPERTS && i < op_weight_least(op))
        *n *= op_experts_held(op);
    *k = width_of(op, row->weight[i].k);
    return true;
}

enum weight_use op_weight_use(const struct oato_op *op)
{
    const enum traffic traffic = kind_row(op->kind)->traffic;
    return traffic == TABLE_ROWS                       ? WEIGHT_LOOKUP
           : traffic == MATRICES || traffic == EXPERTS ? WEIGHT_MATRIX
                                                       : WEIGHT_VECTOR;
}

enum weight_use op_weight_use_at(const struct oato_op *op, int i)
{
    return i < op_weight_least(op) ? op_weight_use(op) : WEIGHT_VECTOR;
}

const char *const op_axis_name[AXIS_COUNT] = {"rows", "k", "heads", "experts"};

bool op_divides(const struct oato_op *op, enum op_axis axis)
{
    const bool unequal = op->v_dim || op->v_in_k || op->k_tail; /* no cut of such heads */
    return kind_row(op->kind)->axes >> axis & 1 && !(axis == AXIS_HEADS && unequal);
}

int64_t op_axis_extent(const struct oato_op *op, enum op_axis axis)
{
    const int64_t extent[AXIS_COUNT] = {[AXIS_ROWS] = op->n,
                                        [AXIS_K] = op->k,
                                        [AXIS_HEADS] = op->kv_heads,
                                        [AXIS_EXPERTS] = op->experts};
    return axis == AXIS_ROWS || op_divides(op, axis) ? extent[axis] : 0;
}

static bool matrices_fit(const struct oato_op *op)
{
    int64_t n, k;
    size_t row, all;
    return op_weight_shape(op, 0, &n, &k) && dtype_is_weight((oato_dtype)op->dtype) && k > 0 &&
           dtype_row_bytes((oato_dtype)op->dtype, k, &row) && size_mul(row, (size_t)n, &all) &&
           all < SIZE_MAX / 16;
}

bool op_valid(const struct oato_op *op)
{
    const struct op_kind_row *row = kind_row(op->kind);
    return row->name && op->k >= 0 && op->n >= 0 && op->n2 >= 0 && (!row->fits || row->fits(op)) &&
           (op_weight_use(op) == WEIGHT_VECTOR || matrices_fit(op));
}

/* The share of the chosen experts that the weights are expected to be of. */
static double share_held(const struct oato_op *op)
{
    return op_has_experts(op) ? (double)op_experts_held(op) / op->experts : 1;
}

/* Rows of the operator's matrices, of experts those of one. */
static double matrix_rows(const struct oato_op *op, const struct op_kind_row *row)
{
    int64_t n = 0;
    for (int i = 0; i < op_weight_least(op) - op->one_tensor; i++)
        n += width_of(op, row->weight[i].n);
    return (double)n;
}

double op_flops(const struct oato_op *op, const struct op_size *size)
{
    const struct op_kind_row *row = kind_row(op->kind);
    double times = row->traffic == KV_READ ? (double)size->kv_positions : size->rows;
    double each = row->flops * (double)width_of(op, row->flops_of);
    if (row->traffic == EXPERTS)
        times *= op->experts_used * share_held(op);
    if (op_weight_use(op) == WEIGHT_MATRIX)
        each += 2 * matrix_rows(op, row) * op->k;
    return times * each;
}

static double row_bytes(const struct oato_op *op, double elements)
{
    const struct dtype_info *d = dtype_info(op->dtype);
    return d ? elements * d->block_bytes / d->block_elems : 4 * elements;
}

/* Positions of KV in all sequences together. A row reads its sequence up to itself, so the last of
 * q rows reads (q - 1) / 2 more than they do on average; q = T / S when sequences are alike. */
static double kv_positions_once(const struct op_size *size)
{
    double t = size->rows, s = size->seqs > 1 ? size->seqs : 1;
    if (t <= 0)
        return 0;
    if (s > t)
        s = t;
    double positions = (double)size->kv_positions / t * s + (t - s) / 2;
    return positions < (double)size->kv_positions ? positions : (double)size->kv_positions;
}

/* By squaring: the same bits everywhere, which no libm promises. */
double op_experts_read(const struct oato_op *op, int32_t tokens)
{
    if (!op_has_experts(op))
        return 0;
    double all = op->experts, missed = 1, power = 1 - op->experts_used / all;
    for (int32_t t = tokens; t > 0; t /= 2, power *= power)
        if (t % 2)
            missed *= power;
    return op_experts_held(op) * (1 - missed);
}

double op_bytes(const struct oato_op *op, const struct op_size *size)
{
    const struct op_kind_row *row = kind_row(op->kind);
    const double rows = matrix_rows(op, row), bytes = row_bytes(op, op->k);
    const double v_dim = op->v_in_k ? 0 : op_v_dim(op);
    const double kv =
        row_bytes(op, (double)width_of(op, W_KV_HEADS)) + row_bytes(op, op->kv_heads * v_dim);
    const double vectors = 4 * (double)width_of(op, row->weight[0].k);
    switch (row->traffic) {
    case NONE: return 0;
    case VECTOR: return vectors;
    case TABLE_ROWS: return size->rows * bytes;
    case MATRICES: return rows * bytes;
    case EXPERTS: return op_experts_read(op, size->rows) * rows * bytes;
    case STATE:
        return 8.0 * (double)op_state_floats(op) * (size->seqs > 1 ? size->seqs : 1) + vectors;
    case KV_WRITTEN: return size->rows * kv;
    case KV_READ: return kv_positions_once(size) * kv;
    }
    return 0;
}
