/*
 * op_costs.c - shapes of operators, how they may be cut, and what a run of one costs, all from the
 * rows of their kinds.
 */
#include "kernels/op_row.h"
#include "kernels/sums.h"

#include <math.h>

bool op_has_experts(const struct oato_op *op)
{
    return op_kind_row(op->kind)->traffic == EXPERTS;
}

uint64_t op_kv_bytes(const struct oato_op *op, oato_dtype dtype)
{
    size_t k, v = 0;
    if (!dtype_row_bytes(dtype, (int64_t)op->kv_heads * op->head_dim, &k) ||
        (!op->v_in_k && !dtype_row_bytes(dtype, (int64_t)op->kv_heads * op_v_dim(op), &v)))
        return 0;
    return (uint64_t)k + v;
}

uint64_t op_kv_filed_bytes(const struct oato_op *op, oato_dtype dtype)
{
    return size_align(op_kv_bytes(op, dtype) * KV_PAGE_POSITIONS, READ_ALIGN);
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
    return op_kind_row(op->kind)->traffic >= KV_WRITTEN;
}

int op_in_count(const struct oato_op *op)
{
    const struct op_kind_row *row = op_kind_row(op->kind);
    int n = 0;
    while (n < (int)ARRAY_LEN(row->in) && row->in[n] != W_NONE &&
           ((row->in[n] != W_STEPS && row->in[n] != W_LISTED) || op_width(op, row->in[n])))
        n++;
    return row->merges ? OP_ANY : n;
}

int64_t op_in_width(const struct oato_op *op, int i)
{
    const struct op_kind_row *row = op_kind_row(op->kind);
    return op_width(op, row->in[row->merges ? 0 : i]);
}

int32_t op_out_width(const struct oato_op *op, int i)
{
    const struct op_kind_row *row = op_kind_row(op->kind);
    return i < (int)ARRAY_LEN(row->out) ? (int32_t)op_width(op, row->out[i]) : 0;
}

/* Ids are whole numbers beyond what F16 has exactly. */
static bool has_ids(const struct oato_op *op, enum width in)
{
    return in ? in == W_CHOICE || in == W_LISTED
              : op->kind == OP_ROUTE || op->kind == OP_ACTIVE || op->kind == OP_TOP_K;
}

oato_dtype value_type_in(const struct value_types *device, const struct oato_op *op, int i)
{
    const struct op_kind_row *row = op_kind_row(op->kind);
    const int at = row->merges ? 0 : i;
    if (op->kind == OP_CONVERT)
        return op->dtype == DT_F16 ? DT_F32 : DT_F16;
    return !device || at >= OP_INPUTS || has_ids(op, (enum width)row->in[at])
               ? DT_F32
               : (oato_dtype)device[op->kind].in[at];
}

oato_dtype value_type_out(const struct value_types *device, const struct oato_op *op, int i)
{
    if (op->kind == OP_CONVERT)
        return (oato_dtype)op->dtype;
    return !device || i >= OP_OUTPUTS || has_ids(op, W_NONE) ? DT_F32
                                                             : (oato_dtype)device[op->kind].out[i];
}

bool value_types_halve(const struct value_types *device, const struct oato_op *op)
{
    bool halves = false;
    for (int i = 0; i < OP_INPUTS; i++)
        halves = halves || value_type_in(device, op, i) == DT_F16;
    for (int i = 0; i < OP_OUTPUTS; i++)
        halves = halves || value_type_out(device, op, i) == DT_F16;
    return halves;
}

int op_weight_count(const struct oato_op *op)
{
    const struct op_kind_row *row = op_kind_row(op->kind);
    int n = 0;
    for (; n < (int)ARRAY_LEN(row->weight) && row->weight[n].n != W_NONE; n++)
        if (row->weight[n].n >= W_WEIGHTED && !op_width(op, row->weight[n].n))
            break;
    return n;
}

int op_weight_least(const struct oato_op *op)
{
    return op_weight_count(op) - (op->divides ? 0 : op_kind_row(op->kind)->optional);
}

bool op_weight_shape(const struct oato_op *op, int i, int64_t *n, int64_t *k)
{
    const struct op_kind_row *row = op_kind_row(op->kind);
    if (i < 0 || i >= op_weight_count(op))
        return false;
    *n = op_width(op, row->weight[i].n);
    if (row->traffic == EXPERTS && i < op_weight_least(op))
        *n *= op->expert_slots > 0 ? op->expert_slots : op_experts_held(op);
    *k = op_width(op, row->weight[i].k);
    return true;
}

enum weight_use op_weight_use(const struct oato_op *op)
{
    const enum traffic traffic = op_kind_row(op->kind)->traffic;
    const bool rows = traffic == TABLE_ROWS || traffic == TRANSPOSED;
    return rows                                        ? WEIGHT_LOOKUP
           : traffic == MATRICES || traffic == EXPERTS ? WEIGHT_MATRIX
                                                       : WEIGHT_VECTOR;
}

enum weight_use op_weight_use_at(const struct oato_op *op, int i)
{
    if (op_by_columns(op))
        return WEIGHT_COLUMNS;
    if (op->sparse && i >= (op->sparse == SPARSE_ABOVE ? 1 : 0))
        return WEIGHT_ROWS;
    return i < op_weight_least(op) ? op_weight_use(op) : WEIGHT_VECTOR;
}

oato_dtype op_weight_dtype(const struct oato_op *op, int i)
{
    return (oato_dtype)(i == 1 && op->up_dtype ? op->up_dtype : op->dtype);
}

const char *const op_axis_name[AXIS_COUNT] = {"rows", "k", "heads", "experts"};
const char *const sum_way_name[SUM_WAYS] = {"tree", "allreduce", "reduce", "accelerators"};

bool sum_wire_ok(oato_dtype wire, int64_t n)
{
    return wire == DT_F32 || wire == DT_F16 || (wire == DT_Q8_0 && n % WIRE_BLOCK == 0);
}

bool op_divides(const struct oato_op *op, enum op_axis axis)
{
    /* no cut of such heads, nor of gains that each head has for itself */
    const bool unequal =
        op->v_dim || op->v_in_k || op->k_tail ||
        (op->kind == OP_QKV && (op->n2 <= 0 || op->n % op->n2)) ||
        (op->kind == OP_HEAD_NORM && op->norm & (NORM_OWN_HEADS | NORM_HEAD_GAINS));
    return op_kind_row(op->kind)->axes >> axis & 1 && !(axis == AXIS_HEADS && unequal);
}

bool op_reads_columns(const struct oato_op *op, enum op_axis axis)
{
    return axis == AXIS_K || (axis == AXIS_HEADS && op->kind != OP_QKV) ||
           (axis == AXIS_ROWS && op->kind == OP_BIAS);
}

int64_t op_axis_extent(const struct oato_op *op, enum op_axis axis)
{
    const bool by_head = op->kind == OP_ROPE || op->kind == OP_HEAD_NORM;
    const int64_t heads = op->kind == OP_QKV ? op->n2 : by_head ? op->heads : op->kv_heads;
    const int64_t extent[AXIS_COUNT] = {
        [AXIS_ROWS] = op->n, [AXIS_K] = op->k, [AXIS_HEADS] = heads, [AXIS_EXPERTS] = op->experts};
    return axis == AXIS_ROWS || op_divides(op, axis) ? extent[axis] : 0;
}

static bool matrices_fit(const struct oato_op *op)
{
    int64_t n, k;
    size_t row, all;
    if (!op_weight_shape(op, 0, &n, &k) || !dtype_is_weight((oato_dtype)op->dtype) || k <= 0)
        return false;
    const int64_t block = dtype_info(op->dtype)->block_elems;
    if (op_by_columns(op)) /* a part may have any columns of a block */
        k = (k + block - 1) / block * block;
    return dtype_row_bytes((oato_dtype)op->dtype, k, &row) && size_mul(row, (size_t)n, &all) &&
           all < SIZE_MAX / 16;
}

uint64_t op_attention_partial_bytes(const struct oato_op *op, const struct op_size *size)
{
    if (size->rows > ATTENTION_SPLIT_TOKENS)
        return 0;
    /* a token's last segment and that of its last neighbour */
    const int64_t segments =
        (size->kv_positions + ATTENTION_SEGMENT - 1) / ATTENTION_SEGMENT + 2 * (int64_t)size->rows;
    return (uint64_t)segments * (uint64_t)op->heads *
           (uint64_t)attention_partial_floats(op_v_dim(op)) * sizeof(float);
}

/* Beyond the file's bytes, in units of 1/64: codebook formats get aligned words for each block, and
 * scales that are packed there are bytes here. Rows are whole groups of 16. */
uint64_t op_matrix_bytes_most(oato_dtype dtype, int64_t rows, int64_t k)
{
    static const uint8_t more[DT_COUNT] = {
        [DT_Q3_K] = 3,   [DT_Q4_K] = 2,   [DT_Q5_K] = 2,   [DT_IQ2_XXS] = 4, [DT_IQ3_XXS] = 3,
        [DT_IQ1_S] = 16, [DT_IQ1_M] = 12, [DT_IQ4_XS] = 1, [DT_TQ1_0] = 15};
    size_t row = 0;
    dtype_row_bytes(dtype, k, &row);
    const uint64_t bytes = (uint64_t)((rows + 15) / 16 * 16) * row;
    return bytes + (bytes * more[dtype] + 63) / 64 + 1024; /* planes begin at multiples of 256 */
}

bool op_valid(const struct oato_op *op)
{
    const struct op_kind_row *row = op_kind_row(op->kind);
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
    for (int i = 0; i < op_weight_least(op) - (op->one_tensor || op->single); i++)
        n += op_width(op, row->weight[i].n);
    return (double)n;
}

int32_t op_neurons(const struct oato_op *op)
{
    return op_by_columns(op) ? op->k : op->n;
}

/* The share of a sparse operator's products that are not skipped: of gate all are computed. */
static double share_computed(const struct oato_op *op, const struct op_size *size)
{
    const double all = op_neurons(op);
    if (!op->sparse || size->active <= 0 || size->active >= all)
        return 1;
    const double share = size->active / all;
    return op->kind == OP_GATE_UP && op->sparse != SPARSE_PREDICT ? (1 + share) / 2 : share;
}

double op_flops(const struct oato_op *op, const struct op_size *size)
{
    const struct op_kind_row *row = op_kind_row(op->kind);
    double times = row->traffic == KV_READ ? (double)size->kv_positions : size->rows;
    double each = row->flops * (double)op_width(op, row->flops_of);
    if (row->traffic == EXPERTS)
        times *= op->experts_used * share_held(op);
    if (op_weight_use(op) == WEIGHT_MATRIX)
        each += 2 * matrix_rows(op, row) * op->k * share_computed(op, size);
    if (row->traffic == TRANSPOSED)
        each += 2.0 * op->k * op->n;
    return times * each;
}

static double elements_bytes(int dtype, double elements)
{
    const struct dtype_info *d = dtype_info(dtype);
    return d ? elements * d->block_bytes / d->block_elems : 4 * elements;
}

static double row_bytes(const struct oato_op *op, double elements)
{
    return elements_bytes(op->dtype, elements);
}

/* Of the operator's matrices; where gate and up differ, on average. */
static double matrix_row_bytes(const struct oato_op *op)
{
    const double bytes = row_bytes(op, op->k);
    return op->up_dtype ? (bytes + elements_bytes(op->up_dtype, op->k)) / 2 : bytes;
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
    const struct op_kind_row *row = op_kind_row(op->kind);
    const double rows = matrix_rows(op, row), bytes = matrix_row_bytes(op);
    const double v_dim = op->v_in_k ? 0 : op_v_dim(op);
    const double kv =
        row_bytes(op, (double)op_width(op, W_KV_HEADS)) + row_bytes(op, op->kv_heads * v_dim);
    const double vectors = 4 * (double)op_width(op, row->weight[0].k);
    switch (row->traffic) {
    case NONE: return 0;
    case VECTOR: return vectors;
    case TABLE_ROWS: return size->rows * bytes;
    case TRANSPOSED: return op->k * row_bytes(op, op->n);
    case MATRICES: return rows * bytes * share_computed(op, size);
    case EXPERTS: return op_experts_read(op, size->rows) * rows * bytes;
    case STATE:
        return 8.0 * (double)op_state_floats(op) * (size->seqs > 1 ? size->seqs : 1) + vectors;
    case KV_WRITTEN: return size->rows * kv;
    case KV_READ: return kv_positions_once(size) * kv;
    }
    return 0;
}

struct row_steps row_steps(const int32_t rows[DEVICE_ROWS], int32_t T)
{
    struct row_steps s = {.rest = T};
    for (int i = 0; i < DEVICE_ROWS && rows[i]; i++)
        s.largest = rows[i];
    if (!s.largest)
        return s;
    s.whole = T / s.largest;
    s.rest = 0;
    for (int i = 0; T % s.largest && s.rest < T % s.largest; i++)
        s.rest = rows[i];
    return s;
}
