/*
 * neon.c - the neon table: 64-bit ARM with the dot products of ARMv8.2-A. Products with Q4_0, Q4_1
 * and Q8_0 (neon_matrix.c) are in class u8b32 of the x86 levels, with their bits, for decode and
 * prefill; other types and attention are those of ref.c. Here: weights and inputs as the products
 * want them.
 */
#include "kernels/cpu/neon_internal.h"

#include <float.h>
#include <math.h>

/* ---------------------------------------------------------------------------- preparation - */

static uint64_t matrix_bytes(int lanes, oato_dtype dtype, int64_t rows, int64_t k)
{
    const struct neon_format *f = neon_format_of(dtype);
    if (!f)
        return cpu_kernels_ref.layout->bytes(lanes, dtype, rows, k);
    return (uint64_t)((rows + lanes - 1) / lanes) * (uint64_t)neon_group_bytes(f, k);
}

static void put_row(const struct neon_format *f, const uint8_t *row, int64_t k, uint8_t *out,
                    int lane)
{
    const int quads = f->body / 4;
    for (int64_t b = 0; b < k / 32; b++, row += f->head + f->body) {
        for (int i = 0; i < f->head; i += 2)
            memcpy(out + i * NEON_ROWS + 2 * lane, row + i, 2);
        uint8_t *to = out + f->head * NEON_ROWS + lane / 4 * quads * 16 + lane % 4 * 4;
        for (int j = 0; j < quads; j++) {
            uint32_t quad;
            memcpy(&quad, row + f->head + 4 * j, 4);
            quad ^= f->flip;
            memcpy(to + 16 * j, &quad, 4);
        }
        out += NEON_ROWS * (f->head + f->body);
    }
}

static void matrix_prepare(int lanes, const struct weight_source *s, struct oato_weight *w,
                           int64_t begin, int64_t end)
{
    const struct neon_format *f = neon_format_of(s->dtype);
    if (!f) {
        cpu_kernels_ref.layout->prepare(lanes, s, w, begin, end);
        return;
    }
    const int64_t bytes = neon_group_bytes(f, s->k);
    for (int64_t g = begin; g < end; g += NEON_ROWS) {
        uint8_t *out = (uint8_t *)w->data + g / NEON_ROWS * bytes;
        if (end - g < NEON_ROWS)
            memset(out, 0, (size_t)bytes);
        for (int lane = 0; lane < NEON_ROWS && g + lane < end; lane++)
            put_row(f, weight_source_row(s, g + lane), s->k, out, lane);
    }
}

/* ---------------------------------------------------------------------------------- input - */

/* An odd number of lines, so that columns begin in different sets of the caches. */
uint64_t neon_pack_bytes(int64_t k)
{
    return size_align((size_t)(k / 32) * sizeof(struct neon_bytes), 64) | 64;
}

void neon_pack(int64_t k, const float *x, uint8_t *out)
{
    struct neon_bytes *to = (struct neon_bytes *)(void *)out;
    for (int64_t b = 0; b < k / 32; b++, x += 32, to++) {
        float32x4_t v[8];
        uint32x4_t ordered = vdupq_n_u32(UINT32_MAX);
        for (int i = 0; i < 8; i++) {
            v[i] = vld1q_f32(x + 4 * i);
            ordered = vandq_u32(ordered, vceqq_f32(v[i], v[i])); /* a NaN is not itself */
        }
        float32x4_t low = v[0], high = v[0];
        for (int i = 1; i < 8; i++) {
            low = vminq_f32(low, v[i]);
            high = vmaxq_f32(high, v[i]);
        }
        const float lowest = vminvq_f32(low), range = vmaxvq_f32(high) - lowest;
        /* Integers have no infinities and no NaN: step and minimum say it for the whole block. */
        const bool finite = vminvq_u32(ordered) && range <= FLT_MAX;
        /* Below this the reciprocal would overflow: all are the minimum. */
        const bool flat = !(range > 1e-30f);
        const float32x4_t from = vdupq_n_f32(finite ? lowest : 0);
        const float factor = flat || !finite ? 0 : 255.0f / range;
        int32x4_t n[8], total = vdupq_n_s32(0);
        for (int i = 0; i < 8; i++) {
            n[i] = vcvtnq_s32_f32(vmulq_n_f32(vsubq_f32(v[i], from), factor));
            n[i] = finite ? n[i] : vdupq_n_s32(0);
            total = vaddq_s32(total, n[i]);
        }
        for (int i = 0; i < 4; i++) {
            const int16x8_t q = vcombine_s16(vqmovn_s32(n[2 * i]), vqmovn_s32(n[2 * i + 1]));
            const uint8x8_t bytes = veor_u8(vqmovun_s16(q), vdup_n_u8(128));
            vst1_s8(to->q + 8 * i, vreinterpret_s8_u8(bytes));
        }
        to->step = !finite ? NAN : flat ? 0 : range / 255.0f;
        to->min = !finite ? NAN : lowest;
        to->sum = fmaf(to->step, (float)vaddvq_s32(total), 32 * to->min);
    }
}

/* ---------------------------------------------------------------------------------- table - */

static void rows_panel(int lanes, const struct oato_weight *w, const struct rows_list *rows,
                       struct oato_weight *panel)
{
    weight_rows_panel(matrix_prepare, lanes, w, rows->list, rows->n, panel);
}

static const struct matrix_layout layout = {
    .lanes = NEON_ROWS,
    .bytes = matrix_bytes,
    .prepare = matrix_prepare,
    .rows_stride = weight_rows_stride,
    .rows_prepare = weight_rows_copy,
    .rows_panel = rows_panel,
};

static const struct matrix_class *matrix_of(oato_dtype dtype, enum numerics_choice choice)
{
    return neon_format_of(dtype) ? &neon_bytes : cpu_kernels_ref.matrix(dtype, choice);
}

const struct cpu_kernels cpu_kernels_neon = {
    .name = "neon",
    .layout = &layout,
    .matrix = matrix_of,
    .attention = &ref_attention,
    .rows = &neon_rows,
    .state = &ref_state,
    .columns = &ref_columns,
};
