/*
 * weights.c - what one table of kernels can do and what it needs: support, numerics classes,
 * bytes of prepared weights, preparation by rows, and the layout of the paged KV cache. Shared by
 * the cpu device and by sim.
 */
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

const char *cpu_numerics(const struct cpu_kernels *k, const struct oato_op *op,
                         enum numerics_choice choice)
{
    return op_weight_use(op) == WEIGHT_MATRIX
               ? cpu_matrix_class(k, choice)->numerics((oato_dtype)op->dtype)
               : "f32";
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
