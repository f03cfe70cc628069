/*
 * avx512_float.c - F32, F16 and BF16 matrix times any number of columns.
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each up to 12 columns
 *       for each 2 groups of 16 rows                     24 accumulators in registers
 *       (up to 6 columns: all 4 groups)
 *         for all k
 *
 * Weights are converted as they are loaded: two conversions to 24 multiply-adds. The first columns
 * take a panel from memory, the groups being streams that are prefetched; the others find it in
 * L2. Nothing rests outside the registers, and each result is one chain of multiply-adds in order
 * of k, the same whatever T. Measured: 89 % of the multiply peak at T = 512 with F16, all of the
 * bandwidth up to 6 columns.
 */
#include "kernels/cpu/avx512_internal.h"

enum {
    PANEL_GROUPS = MATRIX_ROWS / LANES,
    COLUMNS_2 = 12, /* with two groups */
    COLUMNS_4 = 6,  /* with four */
    PREFETCH_BYTES = 2048,
};

/* One tile: inputs and results of its columns, weights of its first group. */
struct float_tile {
    const uint8_t *w;
    int64_t group_bytes; /* to the next group */
    int64_t k;
    bool cold; /* weights come from memory */
    const float *x[COLUMNS_2];
    float *y[COLUMNS_2];
    __mmask16 mask[PANEL_GROUPS];
};

AVX2_INLINE void tile(oato_dtype dtype, const struct float_tile *t, int groups, int columns)
{
    const bool cold = t->cold;
    const int64_t bytes = LANES * (dtype == DT_F32 ? 4 : 2);
    __m512 acc[COLUMNS_2][PANEL_GROUPS];
    UNROLLED (c, columns)
        UNROLLED (g, groups)
            acc[c][g] = _mm512_setzero_ps();
    const uint8_t *w = t->w;
    for (int64_t i = 0; i < t->k; i++, w += bytes) {
        __m512 v[PANEL_GROUPS];
        UNROLLED (g, groups) {
            v[g] = vec_load_float(dtype, w + g * t->group_bytes);
            if (cold && (dtype == DT_F32 || i % 2 == 0))
                _mm_prefetch((const char *)w + g * t->group_bytes + PREFETCH_BYTES, _MM_HINT_T0);
        }
        UNROLLED (c, columns) {
            __m512 x = _mm512_set1_ps(t->x[c][i]);
            UNROLLED (g, groups)
                acc[c][g] = _mm512_fmadd_ps(v[g], x, acc[c][g]);
        }
    }
    UNROLLED (c, columns)
        UNROLLED (g, groups)
            _mm512_mask_storeu_ps(t->y[c] + LANES * g, t->mask[g], acc[c][g]);
}

/* The tile with its shape known to the compiler: 1 or 4 groups and up to 6 columns, or 2 and more
 * than 6. */
AVX2_INLINE void tile_shapes(oato_dtype dtype, const struct float_tile *t, int groups, int columns)
{
    switch (columns * 2 + (groups == 1)) {
    case 24: tile(dtype, t, 2, 12); break;
    case 22: tile(dtype, t, 2, 11); break;
    case 20: tile(dtype, t, 2, 10); break;
    case 18: tile(dtype, t, 2, 9); break;
    case 16: tile(dtype, t, 2, 8); break;
    case 14: tile(dtype, t, 2, 7); break;
    case 13: tile(dtype, t, 1, 6); break;
    case 12: tile(dtype, t, 4, 6); break;
    case 11: tile(dtype, t, 1, 5); break;
    case 10: tile(dtype, t, 4, 5); break;
    case 9: tile(dtype, t, 1, 4); break;
    case 8: tile(dtype, t, 4, 4); break;
    case 7: tile(dtype, t, 1, 3); break;
    case 6: tile(dtype, t, 4, 3); break;
    case 5: tile(dtype, t, 1, 2); break;
    case 4: tile(dtype, t, 4, 2); break;
    case 3: tile(dtype, t, 1, 1); break;
    default: tile(dtype, t, 4, 1);
    }
}

static void tile_run(oato_dtype dtype, const struct float_tile *t, int groups, int columns)
{
#define TILE(type, ...)                                                                            \
    case DT_##type: tile_shapes(DT_##type, t, groups, columns); break;
    switch ((int)dtype) {
        FLOAT_TYPES(TILE)
    }
#undef TILE
}

/* `groups` groups of rows from `row` on and columns [c0, c0 + columns). */
static void part(const struct matrix_job *j, int64_t row, int64_t end, int groups, int64_t c0,
                 int columns)
{
    const int64_t elem = j->w->dtype == DT_F32 ? 4 : 2;
    struct float_tile t = {.group_bytes = LANES * elem * j->w->k, .k = j->w->k, .cold = c0 == 0};
    t.w = j->w->data + row / LANES * t.group_bytes;
    for (int g = 0; g < groups; g++)
        t.mask[g] = avx512_mask(end - row - g * LANES);
    for (int c = 0; c < columns; c++) {
        t.x[c] = j->x + (c0 + c) * j->w->k;
        t.y[c] = j->y + (c0 + c) * j->y_stride + row;
    }
    tile_run(j->w->dtype, &t, groups, columns);
}

/* Rows [begin, end), at most MATRIX_ROWS, and at most 12 columns. */
static void panel(const struct matrix_job *j, int64_t begin, int64_t end, int64_t c0, int columns)
{
    if (end - begin > (PANEL_GROUPS - 1) * LANES && columns <= COLUMNS_4) {
        part(j, begin, end, PANEL_GROUPS, c0, columns);
        return;
    }
    int64_t row = begin;
    if (columns > COLUMNS_4)
        for (; end - row > LANES; row += 2 * LANES)
            part(j, row, end, 2, c0, columns);
    for (; row < end; row += LANES)
        for (int c = 0; c < columns; c += COLUMNS_4)
            part(j, row, end, 1, c0 + c, (int)min_i64(COLUMNS_4, columns - c));
}

static void matrix_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    (void)scratch;
    const int64_t tiles = (j->T + COLUMNS_2 - 1) / COLUMNS_2;
    for (int64_t r = begin; r < end; r += MATRIX_ROWS)
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t c0 = j->T * i / tiles;
            panel(j, r, min_i64(end, r + MATRIX_ROWS), c0, (int)(j->T * (i + 1) / tiles - c0));
        }
}

const struct matrix_class avx512_float = {
    .numerics = "f32",
    .rows = matrix_rows,
    .listed = avx512_float_listed,
};
