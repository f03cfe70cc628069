/*
 * op_weight.c - weights as the cube unit reads them: any strides, FRACTAL_NZ, integers with scales.
 * A column is unpacked once and multiplied with every row of the activations.
 */
#include "tests/ascend/op.h"

#include <string.h>

int64_t op_nz_width(aclDataType type)
{
    return 32 / (int64_t)op_bytes(type);
}

int64_t op_nz_at(int64_t rows, int64_t width, int64_t r, int64_t c)
{
    return c / width * ((rows + 15) / 16 * 16 * width) + r * width + c % width;
}

uint64_t op_nz_bytes(int64_t rows, int64_t columns, aclDataType type)
{
    int64_t width = op_nz_width(type);
    return (uint64_t)((columns + width - 1) / width * ((rows + 15) / 16 * 16)) * 32;
}

bool op_weight_open(struct stand_run *run, struct op_weight *w, struct stand_view view)
{
    int64_t k = view.dims[0], n = view.dims[1], bytes = (int64_t)op_bytes(view.type);
    w->view = view;
    w->nz = view.format == ACL_FORMAT_FRACTAL_NZ;
    w->rows_are_n = view.strides[0] == 1 && view.strides[1] != 1;
    int64_t elements = (k - 1) * view.strides[0] + (n - 1) * view.strides[1] + 1;
    int64_t first = view.offset * bytes;
    size_t size = (size_t)(elements * bytes);
    if (view.type == ACL_INT4) {
        first = view.offset / 2;
        size = (size_t)(elements + 1) / 2;
    } else if (w->nz) {
        size = op_nz_bytes(w->rows_are_n ? n : k, w->rows_are_n ? k : n, view.type);
    }
    w->data = stand_bytes(run, &view, first, size);
    return w->data != NULL;
}

static float value_at(const uint8_t *data, int64_t at, aclDataType type)
{
    uint16_t half;
    float value;
    switch ((int)type) {
    case ACL_INT4: {
        int nibble = data[at / 2] >> (at % 2 ? 4 : 0) & 15;
        return (float)(nibble < 8 ? nibble : nibble - 16);
    }
    case ACL_INT8: return (float)(int8_t)data[at];
    case ACL_FLOAT: memcpy(&value, data + 4 * at, sizeof value); return value;
    default:
        memcpy(&half, data + 2 * at, sizeof half);
        return type == ACL_FLOAT16 ? stand_from_f16(half) : stand_from_bf16(half);
    }
}

/* An integer weight is (w + offset) * scale, rounded to the type of the activations. */
static void scale_column(const struct op_weight *w, int64_t n, float *column)
{
    int64_t k = w->view.dims[0], columns = w->view.dims[1];
    for (int64_t i = 0; i < k; i++) {
        int64_t at = i / w->group * columns + n;
        float offset = w->offset ? w->offset[at] : 0;
        column[i] = op_narrow((column[i] + offset) * w->scale[at], w->operands, w->hf32);
    }
}

void op_weight_column(const struct op_weight *w, int64_t n, float *column)
{
    const struct stand_view *v = &w->view;
    int64_t width = w->nz ? op_nz_width(v->type) : 0, k = v->dims[0];
    if (!w->nz) {
        int64_t step = v->strides[0], at = n * v->strides[1];
        for (int64_t i = 0; i < k; i++)
            column[i] = value_at(w->data, at + i * step, v->type);
    } else {
        for (int64_t i = 0; i < k; i++)
            column[i] = value_at(w->data,
                                 w->rows_are_n ? op_nz_at(v->dims[1], width, n, i)
                                               : op_nz_at(k, width, i, n),
                                 v->type);
    }
    if (w->scale)
        scale_column(w, n, column);
    else if (w->hf32 || (w->operands != v->type && w->operands != ACL_FLOAT))
        for (int64_t i = 0; i < k; i++)
            column[i] = op_narrow(column[i], w->operands, w->hf32);
}

void op_weight_multiply(struct stand_run *run, const struct op_weight *w, const float *x, int64_t m,
                        const float *bias, aclDataType result, float *out)
{
    int64_t k = w->view.dims[0], n = w->view.dims[1];
    float *column = stand_scratch(run, (size_t)k * sizeof *column);
    for (int64_t j = 0; j < n; j++) {
        op_weight_column(w, j, column);
        for (int64_t i = 0; i < m; i++)
            out[i * n + j] =
                op_narrow(op_dot(x + i * k, column, k) + (bias ? bias[j] : 0), result, false);
    }
}
