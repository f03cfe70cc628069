/*
 * asc_weights.c - weights as CANN's products read them. Floats are rows one behind the other. Q8_0
 * and Q4_0 keep their own numbers, so that nothing is quantised again and GGUF's blocks can be had
 * back: all integers, row after row, and then all scales, an F16 for each 32 elements. Nibbles of
 * Q4_0 become two's complement, and neighbours share a byte, the even one low.
 *
 * Vectors are always float32. What CANN has no products for (K-quants and their like) becomes Q8_0
 * on a device that was opened to requantise; how far off that is, is summed up.
 */
#include "kernels/ascend/asc_internal.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK_SCALE = 2, /* bytes of the F16 that a block of GGUF's begins with */
    BLOCK_MOST = 256 /* elements of a block */
};

enum asc_form asc_form_of(const struct asc_device *d, oato_dtype dtype, enum weight_use use)
{
    const struct asc_chip *chip = d->chip;
    const bool matrix = use == WEIGHT_MATRIX;
    if (use == WEIGHT_VECTOR)
        return quants_known(dtype) ? ASC_FORM_F32 : ASC_FORM_NONE;
    if (!matrix && use != WEIGHT_LOOKUP)
        return ASC_FORM_NONE;
    if (dtype == DT_F32)
        return matrix && !chip->f32 ? ASC_FORM_F16 : ASC_FORM_F32;
    if (dtype == DT_F16)
        return ASC_FORM_F16;
    if (dtype == DT_BF16 && chip->bf16)
        return ASC_FORM_BF16;
    if (!matrix || !chip->quantised)
        return ASC_FORM_NONE;
    if (dtype == DT_Q8_0 || asc_requantises(d, dtype))
        return ASC_FORM_Q8;
    return dtype == DT_Q4_0 ? ASC_FORM_Q4 : ASC_FORM_NONE;
}

bool asc_requantises(const struct asc_device *d, oato_dtype dtype)
{
    return d->requantises && quants_known(dtype) && dtype_info(dtype)->block_elems > 1 &&
           dtype != DT_Q8_0 && dtype != DT_Q4_0;
}

enum asc_type asc_form_type(enum asc_form form)
{
    switch (form) {
    case ASC_FORM_F16: return ASC_F16;
    case ASC_FORM_BF16: return ASC_BF16;
    case ASC_FORM_Q8: return ASC_I8;
    case ASC_FORM_Q4: return ASC_I4;
    case ASC_FORM_NONE:
    case ASC_FORM_F32: break;
    }
    return ASC_F32;
}

uint64_t asc_form_row(enum asc_form form, int64_t k)
{
    static const uint8_t bits[] = {[ASC_FORM_NONE] = 0,  [ASC_FORM_F32] = 32, [ASC_FORM_F16] = 16,
                                   [ASC_FORM_BF16] = 16, [ASC_FORM_Q8] = 8,   [ASC_FORM_Q4] = 4};
    return (uint64_t)k * bits[form] / 8;
}

static bool has_scales(enum asc_form form)
{
    return form == ASC_FORM_Q8 || form == ASC_FORM_Q4;
}

uint64_t asc_scales_at(enum asc_form form, int64_t rows, int64_t k)
{
    return size_align((uint64_t)rows * asc_form_row(form, k), ASC_ALIGN);
}

static uint64_t scales_row(enum asc_form form, int64_t k)
{
    return has_scales(form) ? (uint64_t)(k / ASC_GROUP) * sizeof(uint16_t) : 0;
}

const char *asc_layout(const struct oato_device *base)
{
    return asc_of(base)->chip->f32 ? "ascend1" : "ascend1h"; /* F32 matrices are F16 */
}

uint64_t asc_bytes(const struct oato_device *base, const struct weight_source *s)
{
    const enum asc_form form = asc_form_of(asc_of(base), s->dtype, s->use);
    const int64_t rows = s->row_end - s->row_begin;
    if (form == ASC_FORM_NONE || !weight_source_stride(s) || (has_scales(form) && s->k % ASC_GROUP))
        return 0;
    return asc_scales_at(form, rows, s->k) + (uint64_t)rows * scales_row(form, s->k);
}

bool asc_planes(const struct oato_device *base, const struct weight_source *s,
                struct weight_plane plane[WEIGHT_PLANES])
{
    const enum asc_form form = asc_form_of(asc_of(base), s->dtype, s->use);
    const int64_t rows = s->row_end - s->row_begin;
    memset(plane, 0, WEIGHT_PLANES * sizeof *plane);
    plane[0].row_bytes = asc_form_row(form, s->k);
    plane[1] = (struct weight_plane){asc_scales_at(form, rows, s->k), scales_row(form, s->k)};
    return form != ASC_FORM_NONE;
}

/* 16 bytes of a block of Q4_0, whose byte j has elements j and j + 16, and back. */
static void nibbles_pair(const uint8_t *from, uint8_t *to)
{
    for (int j = 0; j < 8; j++) {
        to[j] = (uint8_t)((from[2 * j] & 15) | (from[2 * j + 1] & 15) << 4) ^ 0x88;
        to[8 + j] = (uint8_t)(from[2 * j] >> 4 | (from[2 * j + 1] & 0xf0)) ^ 0x88;
    }
}

static void nibbles_part(const uint8_t *from, uint8_t *to)
{
    for (int j = 0; j < 8; j++) {
        const unsigned low = from[j] ^ 0x88u, high = from[8 + j] ^ 0x88u;
        to[2 * j] = (uint8_t)((low & 15) | (high & 15) << 4);
        to[2 * j + 1] = (uint8_t)(low >> 4 | (high & 0xf0));
    }
}

static void blocks_convert(enum asc_form form, const uint8_t *from, int64_t k, uint8_t *values,
                           uint8_t *scales)
{
    const size_t bytes = form == ASC_FORM_Q8 ? ASC_GROUP : ASC_GROUP / 2;
    for (int64_t g = 0; g < k / ASC_GROUP; g++, from += BLOCK_SCALE + bytes, values += bytes) {
        memcpy(scales + g * BLOCK_SCALE, from, BLOCK_SCALE);
        if (form == ASC_FORM_Q8)
            memcpy(values, from + BLOCK_SCALE, bytes);
        else
            nibbles_pair(from + BLOCK_SCALE, values);
    }
}

/* One group as Q8_0: its largest number is 127 scales. Adds squares to sum[0], and those of what is
 * lost to sum[1]. */
static void group_requantise(const float *x, uint8_t *values, uint8_t *scale, double sum[2])
{
    float most = 0;
    for (int i = 0; i < ASC_GROUP; i++)
        most = fmaxf(most, fabsf(x[i]));
    const uint16_t half = f32_to_f16(most / 127);
    const float d = f16_to_f32(half);
    memcpy(scale, &half, sizeof half);
    for (int i = 0; i < ASC_GROUP; i++) {
        const float q = d > 0 ? fminf(fmaxf(roundf(x[i] / d), -127), 127) : 0;
        values[i] = (uint8_t)(int8_t)q;
        sum[0] += (double)x[i] * (double)x[i];
        sum[1] += (double)(x[i] - q * d) * (double)(x[i] - q * d);
    }
}

static void row_requantise(oato_dtype dtype, const uint8_t *from, int64_t k, uint8_t *values,
                           uint8_t *scales, double sum[2])
{
    const struct dtype_info *info = dtype_info(dtype);
    float block[BLOCK_MOST];
    for (int64_t i = 0; i < k; i += info->block_elems, from += info->block_bytes) {
        quants_row(dtype, from, info->block_elems, block);
        for (int64_t g = 0; g < info->block_elems; g += ASC_GROUP)
            group_requantise(block + g, values + i + g, scales + (i + g) / ASC_GROUP * BLOCK_SCALE,
                             sum);
    }
}

static void halves_convert(const uint8_t *from, int64_t k, uint8_t *to)
{
    for (int64_t i = 0; i < k; i++) {
        float x;
        memcpy(&x, from + 4 * i, sizeof x);
        const uint16_t half = f32_to_f16(x);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

void asc_convert(const struct oato_device *base, const struct weight_source *s, int64_t begin,
                 int64_t end, void *to)
{
    struct asc_device *d = asc_of(base);
    const enum asc_form form = asc_form_of(d, s->dtype, s->use);
    const bool requantises = form == ASC_FORM_Q8 && asc_requantises(d, s->dtype);
    double sum[2] = {0, 0};
    const uint64_t row = asc_form_row(form, s->k), scale = scales_row(form, s->k);
    uint8_t *all = to, *scales = all + asc_scales_at(form, s->row_end - s->row_begin, s->k);
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *from = weight_source_row(s, r);
        uint8_t *values = all + (uint64_t)r * row;
        if (s->use == WEIGHT_VECTOR)
            quants_row(s->dtype, from, s->k, floats(values));
        else if (requantises)
            row_requantise(s->dtype, from, s->k, values, scales + (uint64_t)r * scale, sum);
        else if (has_scales(form))
            blocks_convert(form, from, s->k, values, scales + (uint64_t)r * scale);
        else if (form == ASC_FORM_F16 && s->dtype == DT_F32)
            halves_convert(from, s->k, values);
        else
            memcpy(values, from, row);
    }
    if (!requantises)
        return;
    pthread_mutex_lock(&d->pools.lock);
    d->requantised[0] += sum[0];
    d->requantised[1] += sum[1];
    pthread_mutex_unlock(&d->pools.lock);
}

void asc_together(struct oato_device *base, void (*share)(void *arg, int threads), void *arg)
{
    struct asc_device *d = asc_of(base);
    if (!d->has_crew)
        crew_open(&d->crew);
    d->has_crew = true;
    crew_run(&d->crew, share, arg);
}

bool asc_restore(const struct weight_source *s, enum asc_form form, const void *from, int64_t begin,
                 int64_t end, void *to)
{
    static const enum asc_form own[DT_COUNT] = {[DT_F32] = ASC_FORM_F32,
                                                [DT_F16] = ASC_FORM_F16,
                                                [DT_BF16] = ASC_FORM_BF16,
                                                [DT_Q8_0] = ASC_FORM_Q8,
                                                [DT_Q4_0] = ASC_FORM_Q4};
    const uint64_t row = asc_form_row(form, s->k), scale = scales_row(form, s->k);
    const size_t bytes = form == ASC_FORM_Q8 ? ASC_GROUP : ASC_GROUP / 2;
    const uint8_t *all = from, *scales = all + asc_scales_at(form, s->row_end - s->row_begin, s->k);
    uint8_t *out = to;
    if (form == ASC_FORM_NONE || own[s->dtype] != form)
        return false;
    for (int64_t r = begin; r < end; r++, out += row + scale) {
        const uint8_t *values = all + (uint64_t)r * row;
        if (!has_scales(form))
            memcpy(out, values, row);
        for (int64_t g = 0; has_scales(form) && g < s->k / ASC_GROUP; g++) {
            uint8_t *block = out + (uint64_t)g * (BLOCK_SCALE + bytes);
            memcpy(block, scales + (uint64_t)r * scale + g * BLOCK_SCALE, BLOCK_SCALE);
            if (form == ASC_FORM_Q8)
                memcpy(block + BLOCK_SCALE, values + (uint64_t)g * bytes, bytes);
            else
                nibbles_part(values + (uint64_t)g * bytes, block + BLOCK_SCALE);
        }
    }
    return true;
}
