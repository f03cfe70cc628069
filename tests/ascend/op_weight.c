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

static float float_of_f16(uint16_t half)
{
    uint32_t bits = (half & 0x7fffu) << 13;
    float value;
    memcpy(&value, &bits, sizeof value);
    value *= 0x1p112f; /* the exponent's other bias; numbers below the normal ones too */
    memcpy(&bits, &value, sizeof bits);
    bits |= (half & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0;
    bits |= (half & 0x8000u) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float float_of_int4(int nibble)
{
    return (float)((nibble ^ 8) - 8);
}

/* n elements from element `at` on, `step` apart, as floats. Neighbours are by far the most, and
 * their loops are such that compilers make vectors of them. */
static void unpack(const uint8_t *data, aclDataType type, int64_t at, int64_t step, int64_t n,
                   float *to)
{
    enum { PART = 64 };
    uint16_t halves[PART];
    if (type == ACL_INT4 && step == 1 && at % 2 == 0) {
        for (int64_t i = 0; i < n / 2; i++) {
            to[2 * i] = float_of_int4(data[at / 2 + i] & 15);
            to[2 * i + 1] = float_of_int4(data[at / 2 + i] >> 4);
        }
        at += n / 2 * 2, to += n / 2 * 2, n %= 2;
    }
    for (; type == ACL_FLOAT16 && step == 1 && n >= PART; at += PART, to += PART, n -= PART) {
        memcpy(halves, data + 2 * at, sizeof halves);
        for (int i = 0; i < PART; i++)
            to[i] = float_of_f16(halves[i]);
    }
    for (int64_t i = 0; i < n; i++, at += step)
        switch ((int)type) {
        case ACL_INT4: to[i] = float_of_int4(data[at / 2] >> (at % 2 ? 4 : 0) & 15); break;
        case ACL_INT8: to[i] = (float)(int8_t)data[at]; break;
        case ACL_FLOAT: memcpy(to + i, data + 4 * at, sizeof *to); break;
        default:
            memcpy(halves, data + 2 * at, sizeof *halves);
            to[i] = type == ACL_FLOAT16 ? float_of_f16(*halves) : stand_from_bf16(*halves);
        }
}

/* An integer weight is (w + offset) * scale, rounded to the type of the activations. */
static void scale_column(const struct op_weight *w, int64_t n, float *column)
{
    int64_t k = w->view.dims[0], columns = w->view.dims[1];
    for (int64_t first = 0; first < k; first += w->group) {
        int64_t at = first / w->group * columns + n, end = first + w->group;
        float scale = w->scale[at], offset = w->offset ? w->offset[at] : 0;
        for (int64_t i = first; i < (end < k ? end : k); i++)
            column[i] = (column[i] + offset) * scale;
    }
}

void op_weight_column(const struct op_weight *w, int64_t n, float *column)
{
    const struct stand_view *v = &w->view;
    int64_t width = w->nz ? op_nz_width(v->type) : 0, k = v->dims[0];
    if (!w->nz)
        unpack(w->data, v->type, n * v->strides[1], v->strides[0], k, column);
    else if (!w->rows_are_n)
        unpack(w->data, v->type, op_nz_at(k, width, 0, n), width, k, column);
    else
        for (int64_t i = 0; i < k; i += width)
            unpack(w->data, v->type, op_nz_at(v->dims[1], width, n, i), 1,
                   k - i < width ? k - i : width, column + i);
    if (w->scale)
        scale_column(w, n, column);
    if (w->scale || w->hf32 || w->operands != v->type)
        op_narrow(column, k, w->operands, w->hf32);
}

void op_weight_multiply(struct stand_run *run, const struct op_weight *w, const float *x, int64_t m,
                        const float *bias, aclDataType result, float *out)
{
    int64_t k = w->view.dims[0], n = w->view.dims[1];
    float *column = stand_scratch(run, (size_t)k * sizeof *column);
    for (int64_t j = 0; j < n; j++) {
        op_weight_column(w, j, column);
        for (int64_t i = 0; i < m; i++)
            out[i * n + j] = op_dot(x + i * k, column, k) + (bias ? bias[j] : 0);
    }
    op_narrow(out, m * n, result, false);
}
