/*
 * neon_matrix.c - matrix products of the neon table.
 *
 * sdot adds four products of bytes to each int32, and takes the second factor from a lane: weights
 * of 4 rows x 4 k times one quad of the input. An int16 of the input is two bytes, q = 256 high +
 * low: two dot products for 16 products, where widening and smlal would be six instructions. As
 * low is 0 .. 255 and there is no instruction for unsigned x signed, unsigned weights (nibbles)
 * take udot; for signed ones either the weights or low are flipped by 128, and 128 times the sum
 * of the other side starts the sum.
 *
 *   one column           weights are read once, straight from memory; 8 rows in registers
 *   more, or bytes       for each panel of 64 rows, for each 256 of k: weights -> int8 and scales,
 *                        24 KiB of L1; then for each 4 columns (1.4 or 2.5 KiB, from L2 once a
 *                        panel), for each 8 rows: 8 or 16 int32 sums in registers
 *
 * Of the instructions of a loop 45 % (4 columns of int16) and 37 % (bytes) are dot products. Speed
 * on ARM hardware has not been measured: what is tested runs under qemu.
 */
#include "kernels/cpu/neon_internal.h"

enum {
    PANEL_GROUPS = MATRIX_ROWS / NEON_ROWS,
    CHUNK = 256,
    TILE_COLUMNS = 4,
};

/* ----------------------------------------------------------------------------- one column - */

/* sum + 4 rows x 16 k times 16 elements of the input. Lanes must be constants. */
NEON_INLINE int32x4_t dot_16(int32x4_t sum, const int8x16_t w[4], int8x16_t x)
{
    sum = vdotq_laneq_s32(sum, w[0], x, 0);
    sum = vdotq_laneq_s32(sum, w[1], x, 1);
    sum = vdotq_laneq_s32(sum, w[2], x, 2);
    return vdotq_laneq_s32(sum, w[3], x, 3);
}

NEON_INLINE uint32x4_t dot_16_unsigned(uint32x4_t sum, const uint8x16_t w[4], uint8x16_t x)
{
    sum = vdotq_laneq_u32(sum, w[0], x, 0);
    sum = vdotq_laneq_u32(sum, w[1], x, 1);
    sum = vdotq_laneq_u32(sum, w[2], x, 2);
    return vdotq_laneq_u32(sum, w[3], x, 3);
}

/* Quads 4 half .. 4 half + 3 of 4 rows, as they are kept. */
NEON_INLINE void load_quads(const struct neon_format *f, const uint8_t *body, int half,
                            uint8x16_t w[4])
{
    for (int i = 0; i < 4; i++) {
        if (f->body == 32) {
            w[i] = vld1q_u8(body + 16 * (4 * half + i));
        } else {
            uint8x16_t x = vld1q_u8(body + 16 * i);
            w[i] = half ? vshrq_n_u8(x, 4) : vandq_u8(x, vdupq_n_u8(15));
        }
    }
}

NEON_INLINE float32x4_t halves_at(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

/* 8 rows times one column. */
NEON_INLINE void group_vector(const struct neon_format *f, const uint8_t *w, int64_t k,
                              const struct neon_words *x, float32x4_t y[2])
{
    const int head = f->head * NEON_ROWS, body = f->body * NEON_ROWS;
    const bool nibbles = f->body == 16;
    y[0] = y[1] = vdupq_n_f32(0);
    for (int64_t b = 0; b < k / 32; b++, x++, w += head + body) {
        const int32x4_t start = vdupq_n_s32(nibbles ? -f->offset * x->sum : -128 * x->low_sum);
        for (int h = 0; h < 2; h++) {
            int32x4_t high = vdupq_n_s32(0);
            uint32x4_t low = vreinterpretq_u32_s32(start);
            for (int half = 0; half < 2; half++) {
                uint8x16_t q[4];
                int8x16_t signed_q[4];
                load_quads(f, w + head + h * body / 2, half, q);
                for (int i = 0; i < 4; i++) {
                    signed_q[i] = vreinterpretq_s8_u8(q[i]);
                    if (!nibbles)
                        q[i] = veorq_u8(q[i], vdupq_n_u8(128));
                }
                const uint8x16_t low_x = vreinterpretq_u8_s8(vld1q_s8(x->low + 16 * half));
                high = dot_16(high, signed_q, vld1q_s8(x->high + 16 * half));
                low = dot_16_unsigned(low, q, veorq_u8(low_x, vdupq_n_u8(128)));
            }
            const int32x4_t sum = vaddq_s32(vshlq_n_s32(high, 8), vreinterpretq_s32_u32(low));
            const float32x4_t scale = vmulq_n_f32(halves_at(w + 8 * h), x->scale);
            y[h] = vfmaq_f32(y[h], scale, vcvtq_f32_s32(sum));
            if (f->has_min)
                y[h] = vfmaq_n_f32(y[h], halves_at(w + 16 + 8 * h), x->scaled_sum);
        }
    }
}

static void matrix_vector(const struct matrix_job *j, int64_t begin, int64_t end)
{
    const int64_t k = j->w->k, bytes = neon_group_bytes(neon_format_of(j->w->dtype), k);
    const struct neon_words *x = (const struct neon_words *)(const void *)j->packed;
    for (int64_t r = begin; r < end; r += NEON_ROWS) {
        const uint8_t *w = j->w->data + r / NEON_ROWS * bytes;
        float32x4_t y[2];
        switch (j->w->dtype) {
        case DT_Q4_0: group_vector(&neon_formats[FORMAT_Q4_0], w, k, x, y); break;
        case DT_Q4_1: group_vector(&neon_formats[FORMAT_Q4_1], w, k, x, y); break;
        default: group_vector(&neon_formats[FORMAT_Q8_0], w, k, x, y);
        }
        neon_store(j->y + r, y[0], end - r);
        neon_store(j->y + r + 4, y[1], end - r - 4);
    }
}

/* ---------------------------------------------------------------------------------- tiles - */

/* 32 k of a group ready for the tile: start is 128 * sum of the weights, scaled_sum scale * sum. */
struct group_panel {
    int8_t quad[2][8][16]; /* [4 rows][4 k] */
    int32_t start[NEON_ROWS];
    float scale[NEON_ROWS], scaled_sum[NEON_ROWS], min[NEON_ROWS];
};

uint64_t neon_matrix_scratch(oato_dtype dtype, int64_t k)
{
    if (!neon_format_of(dtype))
        return cpu_kernels_ref.matrix[NUMERICS_DECODE]->scratch_bytes(dtype, k);
    return sizeof(struct group_panel[CHUNK / 32][PANEL_GROUPS]);
}

NEON_INLINE void unpack_block(const struct neon_format *f, const uint8_t *w, struct group_panel *to)
{
    for (int h = 0; h < 2; h++) {
        const uint8_t *body = w + f->head * NEON_ROWS + h * f->body * NEON_ROWS / 2;
        int32x4_t sum = vdupq_n_s32(0);
        for (int half = 0; half < 2; half++) {
            uint8x16_t q[4];
            load_quads(f, body, half, q);
            for (int i = 0; i < 4; i++) {
                int8x16_t x = vsubq_s8(vreinterpretq_s8_u8(q[i]), vdupq_n_s8((int8_t)f->offset));
                sum = vdotq_s32(sum, x, vdupq_n_s8(1));
                vst1q_s8(to->quad[h][4 * half + i], x);
            }
        }
        const float32x4_t scale = halves_at(w + 8 * h);
        vst1q_s32(to->start + 4 * h, vshlq_n_s32(sum, 7));
        vst1q_f32(to->scale + 4 * h, scale);
        vst1q_f32(to->scaled_sum + 4 * h, vmulq_f32(scale, vcvtq_f32_s32(sum)));
        if (f->has_min)
            vst1q_f32(to->min + 4 * h, halves_at(w + 16 + 8 * h));
    }
}

/* `blocks` times 32 k of a group from w on. */
static void unpack(const struct neon_format *f, const uint8_t *w, int blocks,
                   struct group_panel *to)
{
    for (int b = 0; b < blocks; b++, to += PANEL_GROUPS) {
        switch (f->dtype) {
        case DT_Q4_0: unpack_block(&neon_formats[FORMAT_Q4_0], w, to); break;
        case DT_Q4_1: unpack_block(&neon_formats[FORMAT_Q4_1], w, to); break;
        default: unpack_block(&neon_formats[FORMAT_Q8_0], w, to);
        }
        w += NEON_ROWS * (f->head + f->body);
    }
}

/* Columns of a tile: their packed inputs from the chunk on, and the 8 results of each. */
struct tile_columns {
    const uint8_t *x[TILE_COLUMNS];
    float *y[TILE_COLUMNS];
    int blocks;
    bool first;
};

/* 8 rows x `columns`; words: of class i16b32, else u8b32. */
NEON_INLINE void tile(const struct group_panel *p, const struct tile_columns *t, int columns,
                      bool words, bool has_min)
{
    float32x4_t acc[TILE_COLUMNS][2];
    for (int c = 0; c < columns; c++)
        for (int h = 0; h < 2; h++)
            acc[c][h] = t->first ? vdupq_n_f32(0) : vld1q_f32(t->y[c] + 4 * h);
    for (int b = 0; b < t->blocks; b++, p += PANEL_GROUPS) {
        const struct neon_words *word[TILE_COLUMNS];
        const struct neon_bytes *byte[TILE_COLUMNS];
        int32x4_t low[TILE_COLUMNS][2], high[TILE_COLUMNS][2];
        for (int c = 0; c < columns; c++) {
            word[c] = (const struct neon_words *)(const void *)t->x[c] + b;
            byte[c] = (const struct neon_bytes *)(const void *)t->x[c] + b;
            for (int h = 0; h < 2; h++) {
                low[c][h] = vld1q_s32(p->start + 4 * h);
                high[c][h] = vdupq_n_s32(0);
            }
        }
        for (int half = 0; half < 2; half++) {
            for (int h = 0; h < 2; h++) {
                int8x16_t w[4];
                for (int i = 0; i < 4; i++)
                    w[i] = vld1q_s8(p->quad[h][4 * half + i]);
                for (int c = 0; c < columns; c++) {
                    const int8_t *q = words ? word[c]->low : byte[c]->q;
                    low[c][h] = dot_16(low[c][h], w, vld1q_s8(q + 16 * half));
                    if (words)
                        high[c][h] = dot_16(high[c][h], w, vld1q_s8(word[c]->high + 16 * half));
                }
            }
        }
        for (int c = 0; c < columns; c++) {
            for (int h = 0; h < 2; h++) {
                int32x4_t sum =
                    words ? vaddq_s32(vshlq_n_s32(high[c][h], 8), low[c][h]) : low[c][h];
                float32x4_t scale = vld1q_f32(p->scale + 4 * h);
                scale = vmulq_n_f32(scale, words ? word[c]->scale : byte[c]->step);
                acc[c][h] = vfmaq_f32(acc[c][h], scale, vcvtq_f32_s32(sum));
                if (!words)
                    acc[c][h] =
                        vfmaq_n_f32(acc[c][h], vld1q_f32(p->scaled_sum + 4 * h), byte[c]->min);
                if (has_min)
                    acc[c][h] = vfmaq_n_f32(acc[c][h], vld1q_f32(p->min + 4 * h),
                                            words ? word[c]->scaled_sum : byte[c]->sum);
            }
        }
    }
    for (int c = 0; c < columns; c++)
        for (int h = 0; h < 2; h++)
            vst1q_f32(t->y[c] + 4 * h, acc[c][h]);
}

/* The tile with its width known to the compiler. */
NEON_INLINE void tile_widths(const struct group_panel *p, const struct tile_columns *t, int columns,
                             bool words, bool has_min)
{
    switch (columns) {
    case 1: tile(p, t, 1, words, has_min); break;
    case 2: tile(p, t, 2, words, has_min); break;
    case 3: tile(p, t, 3, words, has_min); break;
    default: tile(p, t, 4, words, has_min);
    }
}

typedef void tile_fn(const struct group_panel *p, const struct tile_columns *t, int columns);

static void tile_words(const struct group_panel *p, const struct tile_columns *t, int columns)
{
    tile_widths(p, t, columns, true, false);
}

static void tile_words_min(const struct group_panel *p, const struct tile_columns *t, int columns)
{
    tile_widths(p, t, columns, true, true);
}

static void tile_bytes(const struct group_panel *p, const struct tile_columns *t, int columns)
{
    tile_widths(p, t, columns, false, false);
}

static void tile_bytes_min(const struct group_panel *p, const struct tile_columns *t, int columns)
{
    tile_widths(p, t, columns, false, true);
}

/* A group of fewer than 8 rows: the tile writes them all, so they have a place of their own. */
static void partial_group(const struct group_panel *p, const struct tile_columns *t, int columns,
                          int64_t rows, tile_fn *run)
{
    float y[TILE_COLUMNS][NEON_ROWS] = {{0}};
    struct tile_columns own = *t;
    for (int c = 0; c < columns; c++) {
        own.y[c] = y[c];
        if (!t->first)
            memcpy(y[c], t->y[c], (size_t)rows * sizeof(float));
    }
    run(p, &own, columns);
    for (int c = 0; c < columns; c++)
        memcpy(t->y[c], y[c], (size_t)rows * sizeof(float));
}

/* Rows [begin, end), at most 64, of all columns. */
static void panel_rows(const struct matrix_job *j, int64_t begin, int64_t end, bool words,
                       uint8_t *scratch)
{
    struct group_panel(*panel)[PANEL_GROUPS] = (void *)scratch;
    const struct neon_format *f = neon_format_of(j->w->dtype);
    const int64_t k = j->w->k, bytes = neon_group_bytes(f, k);
    const size_t block = words ? sizeof(struct neon_words) : sizeof(struct neon_bytes);
    tile_fn *const run = words        ? f->has_min ? tile_words_min : tile_words
                         : f->has_min ? tile_bytes_min
                                      : tile_bytes;
    for (int64_t k0 = 0; k0 < k; k0 += CHUNK) {
        struct tile_columns t = {.blocks = (int)min_i64(CHUNK, k - k0) / 32, .first = k0 == 0};
        for (int64_t r = begin; r < end; r += NEON_ROWS)
            unpack(f, j->w->data + r / NEON_ROWS * bytes + neon_group_bytes(f, k0), t.blocks,
                   &panel[0][(r - begin) / NEON_ROWS]);
        for (int64_t c0 = 0; c0 < j->T; c0 += TILE_COLUMNS) {
            const int columns = (int)min_i64(TILE_COLUMNS, j->T - c0);
            for (int c = 0; c < columns; c++)
                t.x[c] = j->packed + (uint64_t)(c0 + c) * j->pack_stride + (size_t)k0 / 32 * block;
            for (int64_t r = begin; r < end; r += NEON_ROWS) {
                for (int c = 0; c < columns; c++)
                    t.y[c] = j->y + (c0 + c) * j->y_stride + r;
                if (end - r < NEON_ROWS)
                    partial_group(&panel[0][(r - begin) / NEON_ROWS], &t, columns, end - r, run);
                else
                    run(&panel[0][(r - begin) / NEON_ROWS], &t, columns);
            }
        }
    }
}

void neon_words_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (!neon_format_of(j->w->dtype)) {
        cpu_kernels_ref.matrix[NUMERICS_DECODE]->rows(j, begin, end, scratch);
    } else if (j->T == 1) {
        matrix_vector(j, begin, end);
    } else {
        for (int64_t r = begin; r < end; r += MATRIX_ROWS)
            panel_rows(j, r, min_i64(end, r + MATRIX_ROWS), true, scratch);
    }
}

void neon_bytes_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (!neon_format_of(j->w->dtype)) {
        cpu_kernels_ref.matrix[NUMERICS_DECODE]->rows(j, begin, end, scratch);
        return;
    }
    for (int64_t r = begin; r < end; r += MATRIX_ROWS)
        panel_rows(j, r, min_i64(end, r + MATRIX_ROWS), false, scratch);
}
