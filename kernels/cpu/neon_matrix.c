/*
 * neon_matrix.c - matrix products of the neon table, class u8b32 whatever T.
 *
 * sdot adds four products of bytes to each int32, and takes the second factor from a lane: weights
 * of 4 rows x 4 k times one quad of the input. There is no instruction for unsigned x signed: the
 * uint8 of the input are kept less 128, and 128 times the sum of the weights, which the class needs
 * anyway, starts the sum. Integers are exact and end in the same multiply-adds, in order of k: a
 * row has the same bits whatever T.
 *
 *   up to 4 columns      decode: for each 8 rows, for each 32 of k: weights -> int8 and scales, in
 *                        registers, straight from memory, which is read once; then each column
 *   more                 for each panel of 64 rows, for each 256 of k: the same, but to L1, 24 KiB;
 *                        then for each 4 columns (1.4 KiB, from L2 once a panel), for each 8 rows
 *
 * Of the instructions of a loop 36 to 48 % are dot products. Speed on ARM hardware has not been
 * measured: what is tested runs under qemu.
 */
#include "kernels/cpu/neon_internal.h"

enum {
    PANEL_GROUPS = MATRIX_ROWS / NEON_ROWS,
    CHUNK = 256,
    TILE_COLUMNS = 4,
};

/* 32 k of 4 rows ready for the dot products: w[i] has elements 4i .. 4i+3 of each row, 16 times as
 * large where nibbles have a sign; start is 128 * their sum, scaled_sum that of d * q. */
struct quads {
    int8x16_t w[8];
    int32x4_t start;
    float32x4_t scale, scaled_sum, min;
};

/* sum + 4 rows x 16 k times 16 elements of the input. Lanes must be constants. */
NEON_INLINE int32x4_t dot_16(int32x4_t sum, const int8x16_t w[4], int8x16_t x)
{
    sum = vdotq_laneq_s32(sum, w[0], x, 0);
    sum = vdotq_laneq_s32(sum, w[1], x, 1);
    sum = vdotq_laneq_s32(sum, w[2], x, 2);
    return vdotq_laneq_s32(sum, w[3], x, 3);
}

/* Of sums of what struct quads holds; the conversion divides by 16 for nothing. */
NEON_INLINE float32x4_t sum_to_float(const struct neon_format *f, int32x4_t sum)
{
    return f->flip ? vcvtq_n_f32_s32(sum, 4) : vcvtq_f32_s32(sum);
}

NEON_INLINE float32x4_t halves_at(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

/* Rows 4h .. 4h+3 of the block at w. */
NEON_INLINE struct quads unpack(const struct neon_format *f, const uint8_t *w, int h)
{
    const uint8_t *body = w + NEON_ROWS * f->head + h * NEON_ROWS / 2 * f->body;
    struct quads to;
    for (int i = 0; i < f->body / 4; i++) {
        const uint8x16_t x = vld1q_u8(body + 16 * i);
        if (f->body == 32) {
            to.w[i] = vreinterpretq_s8_u8(x);
        } else {
            const uint8x16_t low = f->flip ? vshlq_n_u8(x, 4) : vandq_u8(x, vdupq_n_u8(15));
            const uint8x16_t high = f->flip ? vandq_u8(x, vdupq_n_u8(240)) : vshrq_n_u8(x, 4);
            to.w[i] = vreinterpretq_s8_u8(low);
            to.w[i + 4] = vreinterpretq_s8_u8(high);
        }
    }
    int32x4_t sum = vdupq_n_s32(0);
    for (int i = 0; i < 8; i++)
        sum = vdotq_s32(sum, to.w[i], vdupq_n_s8(1));
    to.start = vshlq_n_s32(sum, 7);
    to.scale = halves_at(w + 8 * h);
    to.scaled_sum = vmulq_f32(to.scale, sum_to_float(f, sum));
    to.min = f->has_min ? halves_at(w + 16 + 8 * h) : vdupq_n_f32(0);
    return to;
}

/* A group of 8 rows, of which `rows` exist, times columns. */
struct tile {
    const uint8_t *w;          /* its blocks, */
    const struct quads *panel; /* or what they are unpacked to, of PANEL_GROUPS groups in turns */
    int64_t blocks;
    const uint8_t *x; /* of the first column, where the blocks begin */
    uint64_t x_stride;
    float *y;
    int64_t y_stride, rows;
    bool first; /* y is not to be added to */
};

NEON_INLINE void tile_run(const struct neon_format *f, const struct tile *t, int columns,
                          bool stream)
{
    const struct neon_bytes *x[TILE_COLUMNS];
    float32x4_t acc[TILE_COLUMNS][2];
    for (int c = 0; c < columns; c++) {
        x[c] = (const struct neon_bytes *)(const void *)(t->x + (uint64_t)c * t->x_stride);
        for (int h = 0; h < 2; h++)
            acc[c][h] = t->first ? vdupq_n_f32(0)
                                 : neon_load(t->y + c * t->y_stride + 4 * h, t->rows - 4 * h);
    }
    for (int64_t b = 0; b < t->blocks; b++) {
        for (int h = 0; h < 2; h++) {
            const struct quads q = stream ? unpack(f, t->w + b * NEON_ROWS * (f->head + f->body), h)
                                          : t->panel[b * PANEL_GROUPS * 2 + h];
            for (int c = 0; c < columns; c++) {
                int32x4_t sum = dot_16(q.start, q.w, vld1q_s8(x[c][b].q));
                sum = dot_16(sum, q.w + 4, vld1q_s8(x[c][b].q + 16));
                const float32x4_t scale = vmulq_n_f32(q.scale, x[c][b].step);
                acc[c][h] = vfmaq_f32(acc[c][h], scale, sum_to_float(f, sum));
                acc[c][h] = vfmaq_n_f32(acc[c][h], q.scaled_sum, x[c][b].min);
                if (f->has_min)
                    acc[c][h] = vfmaq_n_f32(acc[c][h], q.min, x[c][b].sum);
            }
        }
    }
    for (int c = 0; c < columns; c++)
        for (int h = 0; h < 2; h++)
            neon_store(t->y + c * t->y_stride + 4 * h, acc[c][h], t->rows - 4 * h);
}

/* The tile with its width known to the compiler. */
NEON_INLINE void tile_widths(const struct neon_format *f, const struct tile *t, int64_t columns,
                             bool stream)
{
    switch (columns) {
    case 1: tile_run(f, t, 1, stream); break;
    case 2: tile_run(f, t, 2, stream); break;
    case 3: tile_run(f, t, 3, stream); break;
    default: tile_run(f, t, 4, stream);
    }
}

NEON_INLINE void stream_rows(const struct neon_format *f, const struct matrix_job *j, int64_t begin,
                             int64_t end)
{
    const int64_t k = j->w->k;
    struct tile t = {.blocks = k / 32,
                     .x = j->packed,
                     .x_stride = j->pack_stride,
                     .y_stride = j->y_stride,
                     .first = true};
    for (int64_t r = begin; r < end; r += NEON_ROWS) {
        t.w = j->w->data + r / NEON_ROWS * neon_group_bytes(f, k);
        t.y = j->y + r;
        t.rows = end - r;
        tile_widths(f, &t, j->T, true);
    }
}

/* Rows [begin, end), at most 64. */
NEON_INLINE void panel_rows(const struct neon_format *f, const struct matrix_job *j, int64_t begin,
                            int64_t end, struct quads *panel)
{
    const int64_t k = j->w->k;
    struct tile t = {.x_stride = j->pack_stride, .y_stride = j->y_stride};
    for (int64_t k0 = 0; k0 < k; k0 += CHUNK) {
        t.blocks = min_i64(CHUNK, k - k0) / 32;
        t.first = k0 == 0;
        for (int64_t r = begin; r < end; r += NEON_ROWS) {
            const uint8_t *w = j->w->data + r / NEON_ROWS * neon_group_bytes(f, k);
            struct quads *to = panel + (r - begin) / NEON_ROWS * 2;
            for (int64_t b = 0; b < t.blocks; b++, to += PANEL_GROUPS * 2)
                for (int h = 0; h < 2; h++)
                    to[h] = unpack(f, w + neon_group_bytes(f, k0 + 32 * b), h);
        }
        for (int64_t c = 0; c < j->T; c += TILE_COLUMNS) {
            t.x = j->packed + (uint64_t)c * j->pack_stride +
                  (uint64_t)(k0 / 32) * sizeof(struct neon_bytes);
            for (int64_t r = begin; r < end; r += NEON_ROWS) {
                t.panel = panel + (r - begin) / NEON_ROWS * 2;
                t.y = j->y + c * j->y_stride + r;
                t.rows = end - r;
                tile_widths(f, &t, j->T - c, false);
            }
        }
    }
}

NEON_INLINE void format_rows(const struct neon_format *f, const struct matrix_job *j, int64_t begin,
                             int64_t end, uint8_t *scratch)
{
    if (j->T <= TILE_COLUMNS)
        stream_rows(f, j, begin, end);
    else
        for (int64_t r = begin; r < end; r += MATRIX_ROWS)
            panel_rows(f, j, r, min_i64(end, r + MATRIX_ROWS), (void *)scratch);
}

static void matrix_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
#define ROWS(type, ...)                                                                            \
    case DT_##type: format_rows(&neon_##type, j, begin, end, scratch); break;
    switch ((int)j->w->dtype) {
        NEON_TYPES(ROWS)
    }
#undef ROWS
}

const struct matrix_class neon_bytes = {
    .numerics = "u8b32",
    .pack_bytes = neon_pack_bytes,
    .pack = neon_pack,
    .scratch_bytes = sizeof(struct quads[CHUNK / 32][PANEL_GROUPS][2]),
    .rows = matrix_rows,
};
