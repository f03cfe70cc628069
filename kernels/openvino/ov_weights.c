/*
 * ov_weights.c - weights as inputs of functions: GGUF's own numbers in tensors that OpenVINO reads
 * where they lie, so that nothing is copied and layers of one shape share a function.
 *
 *   F32 F16 BF16   rows x k
 *   others         integers (i4, u4 or i8) rows x k / b x b, b elements sharing a scale;
 *                  scales rows x k / b x 1 and, where the type has them, minima: F16, or float32
 *                  where the type's own are products (as in core/columns.c)
 *   vectors        float32
 *
 * An element is scale * integer + minimum. Of two 4-bit integers the first one is the low half of
 * its byte. Tensors follow each other at multiples of OV_ALIGN.
 */
#include "kernels/openvino/ov_internal.h"

#include <string.h>

static void add_tensor(struct ov_form *f, enum ov_type type, int bits, int rank,
                       const int64_t *shape)
{
    struct ov_tensor_form *t = &f->tensor[f->n++];
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= t->shape[i] = shape[i];
    t->type = type;
    t->rank = rank;
    t->offset = f->bytes;
    t->bytes = (uint64_t)n * (uint64_t)bits / 8;
    f->bytes = size_align(t->offset + t->bytes, OV_ALIGN);
}

static enum ov_type float_type(oato_dtype dtype)
{
    return dtype == DT_F32 ? OV_F32 : dtype == DT_F16 ? OV_F16 : OV_BF16;
}

struct ov_form ov_form_of(oato_dtype dtype, int64_t rows, int64_t k, enum weight_use use)
{
    struct ov_form f = {0};
    size_t row;
    const bool known = quants_known(dtype) && rows > 0 && dtype_row_bytes(dtype, k, &row);
    if (use == WEIGHT_VECTOR && known)
        add_tensor(&f, OV_F32, 32, 2, (const int64_t[]){rows, k});
    if (use != WEIGHT_MATRIX || !known)
        return f;
    const struct columns_form *c = columns_form_of(dtype);
    if (!c->bits) {
        const enum ov_type type = float_type(dtype);
        add_tensor(&f, type, type == OV_F32 ? 32 : 16, 2, (const int64_t[]){rows, k});
        return f;
    }
    const int64_t numbers[3] = {rows, k / c->block, c->block}, blocks[3] = {rows, k / c->block, 1};
    const enum ov_type scale = c->half ? OV_F16 : OV_F32;
    add_tensor(&f, c->bits == 8 ? OV_I8 : c->offset ? OV_I4 : OV_U4, c->bits, 3, numbers);
    for (int i = 0; i <= c->has_min; i++)
        add_tensor(&f, scale, c->half ? 16 : 32, 3, blocks);
    return f;
}

const char *ov_layout(const struct oato_device *d)
{
    (void)d;
    return "openvino1";
}

uint64_t ov_bytes(const struct oato_device *d, const struct weight_source *s)
{
    (void)d;
    return ov_form_of(s->dtype, s->row_end - s->row_begin, s->k, s->use).bytes;
}

static void put_scale(const struct ov_tensor_form *t, uint8_t *to, int64_t at, float value)
{
    if (t->type == OV_F16)
        ((uint16_t *)(void *)to)[at] = f32_to_f16(value);
    else
        floats(to)[at] = value;
}

static void convert_blocks(const struct ov_form *f, const struct columns_form *c, oato_dtype dtype,
                           const uint8_t *row, int64_t r, int64_t k, uint8_t *to)
{
    const struct dtype_info *type = dtype_info((int)dtype);
    const int subs = type->block_elems / c->block, b = c->block;
    int8_t q[32];
    for (int64_t i = 0; i < k / b; i++) {
        const int64_t at = r * (k / b) + i;
        float scale = 0, min = 0;
        uint8_t *numbers = to + (uint64_t)(at * b * c->bits / 8);
        quants_integers(dtype, row + (uint64_t)(i / subs) * type->block_bytes, (int)(i % subs), q,
                        &scale, &min);
        if (c->bits == 8)
            memcpy(numbers, q, (size_t)b);
        for (int j = 0; c->bits == 4 && j < b; j += 2)
            numbers[j / 2] = (uint8_t)((q[j] & 15) | (q[j + 1] & 15) << 4);
        put_scale(&f->tensor[1], to + f->tensor[1].offset, at, scale);
        if (c->has_min)
            put_scale(&f->tensor[2], to + f->tensor[2].offset, at, min);
    }
}

void ov_convert_rows(const struct oato_device *d, const struct weight_source *s, int64_t begin,
                     int64_t end, void *to)
{
    const struct ov_form f = ov_form_of(s->dtype, s->row_end - s->row_begin, s->k, s->use);
    const struct columns_form *c = columns_form_of(s->dtype);
    size_t bytes = 0;
    (void)d;
    dtype_row_bytes(s->dtype, s->k, &bytes);
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *row = weight_source_row(s, r);
        if (s->use == WEIGHT_VECTOR)
            quants_row(s->dtype, row, s->k, floats(to) + r * s->k);
        else if (c->bits)
            convert_blocks(&f, c, s->dtype, row, r, s->k, to);
        else
            memcpy((uint8_t *)to + (uint64_t)r * bytes, row, bytes);
    }
}

struct ov_node ov_weight_node(struct ov_ir *ir, const struct ov_form *f, int64_t rows, int64_t k)
{
    const enum ov_type middle = ir->half ? OV_F16 : OV_F32;
    struct ov_node part[OV_TENSORS];
    for (int i = 0; i < f->n; i++) {
        const struct ov_tensor_form *t = &f->tensor[i];
        const enum ov_type wanted = f->n == 1 ? OV_F32 : middle;
        part[i] = ov_parameter(ir, t->type, t->rank, t->shape);
        if (t->type != wanted)
            part[i] = ov_convert(ir, wanted, part[i]);
    }
    if (f->n == 1)
        return part[0];
    struct ov_node w = ov_binary(ir, "Multiply", part[0], part[1]);
    if (f->n > 2)
        w = ov_binary(ir, "Add", w, part[2]);
    w = ov_reshape(ir, w, 2, (const int64_t[]){rows, k});
    return middle == OV_F32 ? w : ov_convert(ir, OV_F32, w);
}
