/*
 * weights.c - what one table of kernels can do and what it needs: support, numerics classes,
 * bytes of prepared weights, preparation by rows, and the layout of the paged KV cache. Shared by
 * the cpu device and by sim.
 */
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

static bool matrix_fits(oato_dtype dtype, int64_t rows, int64_t k)
{
    size_t row, all;
    return quants_known(dtype) && rows >= 0 && k > 0 && dtype_row_bytes(dtype, k, &row) &&
           size_mul(row, (size_t)rows, &all) && all < SIZE_MAX / 16;
}

static bool kv_fits(const struct oato_op *op)
{
    size_t row;
    const oato_dtype dtype = (oato_dtype)op->dtype;
    return kv_dtype_known(dtype) && dtype_row_bytes(dtype, op->head_dim, &row);
}

static bool experts_fit(const struct oato_op *op)
{
    const int64_t widest = max_i64(op->k, op->n);
    return op->experts > 0 && op->experts <= EXPERTS_MAX && op->experts_used > 0 &&
           op->experts_used <= op->experts && widest * op->experts_used <= INT32_MAX &&
           op->expert_first >= 0 && op->experts_held >= 0 &&
           op_experts_held(op) <= op->experts - op->expert_first;
}

bool cpu_supports(const struct cpu_kernels *k, const struct oato_op *op)
{
    (void)k; /* every table is complete */
    if (op->k < 0 || op->n < 0 || op->n2 < 0)
        return false;
    switch (op->kind) {
    case OP_EMBED:
    case OP_MUL_MAT:
    case OP_QKV:
    case OP_GATE_UP: return matrix_fits((oato_dtype)op->dtype, op->n, op->k);
    case OP_KV_STORE:
        return kv_fits(op) && op->kv_heads > 0 && op->head_dim > 0 && op->head_dim <= HEAD_DIM_MAX;
    case OP_ATTENTION:
        return kv_fits(op) && op->kv_heads > 0 && op->heads >= op->kv_heads &&
               op->heads % op->kv_heads == 0 && op->head_dim > 0 && op->head_dim <= HEAD_DIM_MAX &&
               (int64_t)op->heads * op->head_dim == op->n;
    case OP_ROPE:
        return op->heads > 0 && op->head_dim > 0 && op->head_dim <= HEAD_DIM_MAX &&
               op->rope_dims >= 0 && op->rope_dims % 2 == 0 && op->rope_dims <= op->head_dim &&
               (int64_t)op->heads * op->head_dim == op->n &&
               (op->rope_pairing == ROPE_ADJACENT || op->rope_pairing == ROPE_HALVES);
    case OP_HEAD_NORM:
        return op->heads > 0 && op->head_dim > 0 && (int64_t)op->heads * op->head_dim == op->n;
    case OP_ROUTE: return experts_fit(op) && op->k == op->experts && op->n == 2 * op->experts_used;
    case OP_TOP_K:
        return op->k <= TOP_K_LOGITS_MOST && op->n > 0 && op->n % 2 == 0 && op->n / 2 <= op->k &&
               op->n / 2 <= TOP_K_MOST;
    case OP_EXPERT_GATE_UP:
    case OP_EXPERT_DOWN:
        return experts_fit(op) && op->n > 0 &&
               matrix_fits((oato_dtype)op->dtype, (int64_t)op_experts_held(op) * op->n, op->k);
    case OP_RMS_NORM:
    case OP_BIAS:
    case OP_SCALE:
    case OP_ADD:
    case OP_SWIGLU:
    case OP_SELECT:
    case OP_ADD_NORM:
    case OP_MERGE:
    case OP_MERGE_SUM:
    case OP_KV_COPY: return true;
    case OP_SLICE: return op->first >= 0 && op->n > 0 && op->n <= op->k - op->first;
    default: return false;
    }
}

const char *cpu_numerics(const struct cpu_kernels *k, const struct oato_op *op,
                         enum numerics_choice choice)
{
    switch (op->kind) {
    case OP_MUL_MAT:
    case OP_QKV:
    case OP_GATE_UP:
    case OP_EXPERT_GATE_UP:
    case OP_EXPERT_DOWN: return cpu_matrix_class(k, choice)->numerics((oato_dtype)op->dtype);
    default: return "f32";
    }
}

uint64_t cpu_prepared_bytes(const struct cpu_kernels *k, oato_dtype dtype, int64_t rows,
                            int64_t cols, enum weight_use use)
{
    if (use == WEIGHT_VECTOR)
        return (uint64_t)rows * (uint64_t)cols * sizeof(float);
    if (use == WEIGHT_MATRIX)
        return k->matrix_bytes(dtype, rows, cols);
    size_t row = 0;
    dtype_row_bytes(dtype, cols, &row);
    return (uint64_t)rows * row;
}

void cpu_prepare_rows(const struct cpu_kernels *k, const struct weight_source *source,
                      struct oato_weight *w, int64_t begin, int64_t end)
{
    if (begin >= end)
        return;
    if (source->use == WEIGHT_MATRIX) {
        k->matrix_prepare(source, w, begin, end);
        return;
    }
    const size_t stride = weight_source_stride(source);
    const uint8_t *from =
        (const uint8_t *)source->data + (size_t)(source->row_begin + begin) * stride;
    uint8_t *to = (uint8_t *)w->data;
    if (source->use == WEIGHT_LOOKUP) {
        memcpy(to + (size_t)begin * stride, from, (size_t)(end - begin) * stride);
        return;
    }
    float *out = floats(to) + begin * source->k;
    for (int64_t r = begin; r < end; r++, from += stride, out += source->k)
        quants_row(source->dtype, from, source->k, out);
}

bool cpu_source_good(const struct weight_source *s)
{
    size_t row;
    return quants_known(s->dtype) && dtype_row_bytes(s->dtype, s->k, &row) && s->row_begin >= 0 &&
           s->row_end >= s->row_begin && s->row_end <= s->n &&
           (!s->row_stride || (s->row_stride >= row && s->use != WEIGHT_LOOKUP));
}

void cpu_source_release(const struct weight_source *s, int64_t begin, int64_t end)
{
    const size_t stride = weight_source_stride(s);
    size_t row = 0;
    if (!s->file || begin >= end || !dtype_row_bytes(s->dtype, s->k, &row))
        return;
    file_release(s->file,
                 (size_t)((const uint8_t *)s->data - s->file->data) +
                     (size_t)(s->row_begin + begin) * stride,
                 (size_t)(end - begin - 1) * stride + row);
}

bool kv_cache_layout(struct kv_cache *kv, uint64_t *bytes)
{
    size_t total = 0;
    if (kv->pages < 0)
        return false;
    for (int32_t l = 0; l < kv->n_layers; l++) {
        size_t layer = 0;
        if (kv->layers[l].kv_heads < 0 ||
            !dtype_row_bytes(kv->dtype, kv->layers[l].head_dim, &layer) ||
            !size_mul(layer, 2 * KV_PAGE_POSITIONS, &layer) ||
            !size_mul(layer, (size_t)kv->layers[l].kv_heads, &layer) ||
            !size_mul(layer, (size_t)kv->pages, &layer))
            return false;
        kv->layer_offset[l] = total;
        if (!size_add(total, layer, &total))
            return false;
    }
    *bytes = total + KV_PADDING;
    return total <= SIZE_MAX - KV_PADDING;
}
