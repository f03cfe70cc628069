/*
 * ov_weights.c - weights as compiled functions take them: planes one behind the other, each at a
 * multiple of 64 bytes.
 *
 *   matrix of a float type    rows x k elements of the type, as in the GGUF
 *   matrix of blocks          rows x k integers, i4 or u4 (the first of a pair in the low bits) or
 *                             i8; then a scale of each group of 32 or 16; then, where the type has
 *                             minima, a minimum likewise: F16, or float32 where the type's own
 *                             scales are products
 *   vector                    float32
 *
 * A weight is scale * integer + minimum: the GGUF's own number. The groups, and which types have
 * minima, are those of struct columns_form.
 */
#include "kernels/openvino/ov_parts.h"

#include <string.h>

const char *ov_layout(void)
{
    return "ov-planes-1";
}

static void plane_add(struct ov_planes *p, enum ov_element element, int64_t groups, int64_t each)
{
    static const uint8_t bits[OV_ELEMENT_COUNT] = {
        [OV_F32] = 32, [OV_F16] = 16, [OV_BF16] = 16, [OV_I8] = 8, [OV_I4] = 4, [OV_U4] = 4};
    struct ov_plane *plane = &p->plane[p->n++];
    *plane = (struct ov_plane){.element = element,
                               .groups = groups,
                               .each = each,
                               .offset = p->bytes,
                               .row_bytes = (uint64_t)(groups * each) * bits[element] / 8};
    p->bytes += (plane->row_bytes * (uint64_t)p->rows + 63) / 64 * 64;
}

struct ov_planes ov_planes_of(oato_dtype dtype, enum weight_use use, int64_t rows, int64_t k)
{
    struct ov_planes p = {.rows = rows, .k = k, .form = columns_form_of(dtype)};
    const enum ov_element scale = p.form->half ? OV_F16 : OV_F32;
    if (use == WEIGHT_VECTOR) {
        plane_add(&p, OV_F32, 1, k);
    } else if (use == WEIGHT_MATRIX && !p.form->bits) {
        plane_add(&p, dtype == DT_F32 ? OV_F32 : dtype == DT_F16 ? OV_F16 : OV_BF16, 1, k);
    } else if (use == WEIGHT_MATRIX && k % p.form->block == 0) {
        const int64_t groups = k / p.form->block;
        plane_add(&p,
                  p.form->bits == 8 ? OV_I8
                  : p.form->offset  ? OV_I4
                                    : OV_U4,
                  groups, p.form->block);
        plane_add(&p, scale, groups, 1);
        if (p.form->has_min)
            plane_add(&p, scale, groups, 1);
    }
    return p;
}

uint64_t ov_bytes(const struct weight_source *s)
{
    return dtype_is_weight(s->dtype) && weight_source_stride(s)
               ? ov_planes_of(s->dtype, s->use, s->row_end - s->row_begin, s->k).bytes
               : 0;
}

static void scale_put(const struct ov_plane *plane, uint8_t *row, int64_t group, float x)
{
    const uint16_t half = plane->element == OV_F16 ? f32_to_f16(x) : 0;
    if (plane->element == OV_F16)
        memcpy(row + 2 * group, &half, sizeof half);
    else
        memcpy(row + 4 * group, &x, sizeof x);
}

/* One row of blocks to the row r of each plane. */
static void blocks_convert(const struct ov_planes *p, const struct dtype_info *type,
                           oato_dtype dtype, const uint8_t *from, int64_t r, uint8_t *to)
{
    uint8_t *row[OV_PLANES];
    for (int i = 0; i < p->n; i++)
        row[i] = to + p->plane[i].offset + (uint64_t)r * p->plane[i].row_bytes;
    const int block = p->form->block, subs = (int)type->block_elems / block;
    for (int64_t g = 0; g < p->plane[0].groups; g++) {
        float scale = 0, min = 0;
        int8_t q[32];
        quants_integers(dtype, from + (uint64_t)(g / subs) * type->block_bytes, (int)(g % subs), q,
                        &scale, &min);
        if (p->form->bits == 8) {
            memcpy(row[0] + g * block, q, (size_t)block);
        } else {
            for (int i = 0; i < block; i += 2)
                row[0][(g * block + i) / 2] = (uint8_t)((q[i] & 15) | (q[i + 1] & 15) << 4);
        }
        scale_put(&p->plane[1], row[1], g, scale);
        if (p->n > 2)
            scale_put(&p->plane[2], row[2], g, min);
    }
}

void ov_convert_rows(const struct weight_source *s, int64_t begin, int64_t end, void *to)
{
    const struct ov_planes p = ov_planes_of(s->dtype, s->use, s->row_end - s->row_begin, s->k);
    const struct dtype_info *type = dtype_info((int)s->dtype);
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *from = weight_source_row(s, r);
        uint8_t *row = (uint8_t *)to + p.plane[0].offset + (uint64_t)r * p.plane[0].row_bytes;
        if (s->use == WEIGHT_VECTOR)
            quants_row(s->dtype, from, s->k, floats(row));
        else if (!p.form->bits)
            memcpy(row, from, (size_t)p.plane[0].row_bytes);
        else
            blocks_convert(&p, type, s->dtype, from, r, to);
    }
}

static float number_at(const struct ov_plane *plane, const uint8_t *row, int64_t i)
{
    uint16_t half;
    float x = 0;
    switch (plane->element) {
    case OV_F32: memcpy(&x, row + 4 * i, sizeof x); return x;
    case OV_F16:
    case OV_BF16:
        memcpy(&half, row + 2 * i, sizeof half);
        return plane->element == OV_F16 ? f16_to_f32(half) : bf16_to_f32(half);
    case OV_I8: return (float)(int8_t)row[i];
    case OV_U4: return (float)(row[i / 2] >> i % 2 * 4 & 15);
    case OV_I4: return (float)(((row[i / 2] >> i % 2 * 4 & 15) ^ 8) - 8);
    case OV_U8:
    case OV_ELEMENT_COUNT: break;
    }
    return 0;
}

/* Row r of a plane. */
static const uint8_t *plane_row(const struct ov_plane *plane, const void *weight, int64_t r)
{
    return (const uint8_t *)weight + plane->offset + (uint64_t)r * plane->row_bytes;
}

void ov_planes_row(const struct ov_planes *p, const void *weight, int64_t r, float *out)
{
    const struct ov_plane *numbers = &p->plane[0], *scales = &p->plane[1], *mins = &p->plane[2];
    const uint8_t *row = plane_row(numbers, weight, r);
    const uint8_t *scale_row = plane_row(scales, weight, r), *min_row = plane_row(mins, weight, r);
    for (int64_t g = 0, at = 0; g < numbers->groups; g++) {
        const float scale = p->n > 1 ? number_at(scales, scale_row, g) : 1;
        const float min = p->n > 2 ? number_at(mins, min_row, g) : 0;
        for (int64_t i = 0; i < numbers->each; i++, at++)
            out[at] = scale * number_at(numbers, row, at) + min;
    }
}
