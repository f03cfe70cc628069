/*
 * avx2_float.c - F32, F16 and BF16 weights times columns.
 *
 * Up to 6 columns share the weights as they stream by, prefetched: up to 12 accumulators in
 * registers, of 4 groups of 8 rows for 1 and 2 columns, of 2 groups for more. Many columns share a
 * panel:
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each up to 516 columns                         their sums rest in 129 KiB of L2
 *       for each 256 of k                                weights -> float32 in L1/L2 (64 KiB), once
 *         for each 6 columns                             their 256 inputs stay in L1
 *           for each 2 groups of 8 rows                  12 accumulators in registers
 *
 * Each row is one chain of fused multiply-adds in order of k, whatever T. Columns of the input and
 * of the results may lie in few sets of the caches: inputs of the next 6 are prefetched, and sums
 * are not in y before the end.
 */
#include "kernels/cpu/lanes_vector.h"

enum {
    PANEL_GROUPS = MATRIX_ROWS / LANES,
    CHUNK = 256,               /* k of a panel */
    FLOAT_COLUMNS = 6,         /* 12 sums, 2 weights, an input */
    FLOAT_GROUPS = 4,          /* of 1 or 2 columns */
    FLOAT_STREAM_COLUMNS = 24, /* four passes; beyond, a panel pays */
    FLOAT_PREFETCH = 2048,     /* bytes of each group */
    FLOAT_BLOCK = 516,         /* 86 tiles */
};

struct float_panel {
    float y[FLOAT_BLOCK][MATRIX_ROWS];
    float k[PANEL_GROUPS][CHUNK][LANES]; /* not of F32 */
};

/* --------------------------------------------------------------------------- few columns -- */

typedef __m256 float_sums[FLOAT_COLUMNS][FLOAT_GROUPS];

AVX2_INLINE void stream_step(oato_dtype dtype, const uint8_t *w, int64_t stride, int64_t i,
                             const float *const *x, int groups, int columns, float_sums acc)
{
    const int64_t bytes = LANES * (dtype == DT_F32 ? 4 : 2);
    __m256 v[FLOAT_GROUPS];
    UNROLLED (g, groups)
        v[g] = vec_load_float(dtype, w + g * stride + i * bytes);
    UNROLLED (c, columns) {
        const __m256 input = _mm256_set1_ps(x[c][i]);
        UNROLLED (g, groups) {
            acc[c][g] = _mm256_fmadd_ps(v[g], input, acc[c][g]);
            /* Without this gcc computes sums in the registers of factors, and spills. */
            __asm__("" : "+x"(acc[c][g]));
        }
    }
}

/* The groups from row r on and columns from c0 on, both numbers known to the compiler. */
AVX2_INLINE void stream_groups(oato_dtype dtype, const struct matrix_job *j, int64_t r, int64_t end,
                               int64_t c0, int groups, int columns)
{
    const int64_t k = j->w->k, bytes = dtype == DT_F32 ? 32 : 16, line = 64 / bytes;
    const uint8_t *w = j->w->data + r / LANES * k * bytes;
    const float *x[FLOAT_COLUMNS];
    float_sums acc;
    UNROLLED (c, columns) {
        x[c] = j->x + (c0 + c) * k;
        UNROLLED (g, groups)
            acc[c][g] = _mm256_setzero_ps();
    }
    int64_t i = 0;
    for (; i + line <= k; i += line) {
        UNROLLED (g, groups)
            _mm_prefetch((const char *)w + (g * k + i) * bytes + FLOAT_PREFETCH, _MM_HINT_T0);
        UNROLLED (n, line)
            stream_step(dtype, w, k * bytes, i + n, x, groups, columns, acc);
    }
    for (; i < k; i++)
        stream_step(dtype, w, k * bytes, i, x, groups, columns, acc);
    UNROLLED (c, columns)
        UNROLLED (g, groups) {
            const int64_t row = r + g * LANES;
            _mm256_maskstore_ps(j->y + (c0 + c) * j->y_stride + row, avx2_mask(end - row),
                                acc[c][g]);
        }
}

AVX2_INLINE void stream_dtype(oato_dtype dtype, const struct matrix_job *j, int64_t begin,
                              int64_t end)
{
    const int64_t passes = (j->T + FLOAT_COLUMNS - 1) / FLOAT_COLUMNS;
    const int most = j->T > 2 ? 2 : FLOAT_GROUPS;
    for (int64_t r = begin, groups; r < end; r += groups * LANES) {
        groups = end - r > (most - 1) * LANES ? most : 1;
        if (end - r <= groups * LANES)
            avx2_prefetch_next(j, FLOAT_PREFETCH);
        for (int64_t i = 0; i < passes; i++) {
            const int64_t c0 = j->T * i / passes;
            switch (10 * groups + j->T * (i + 1) / passes - c0) {
            case 11: stream_groups(dtype, j, r, end, c0, 1, 1); break;
            case 12: stream_groups(dtype, j, r, end, c0, 1, 2); break;
            case 13: stream_groups(dtype, j, r, end, c0, 1, 3); break;
            case 14: stream_groups(dtype, j, r, end, c0, 1, 4); break;
            case 15: stream_groups(dtype, j, r, end, c0, 1, 5); break;
            case 16: stream_groups(dtype, j, r, end, c0, 1, 6); break;
            case 23: stream_groups(dtype, j, r, end, c0, 2, 3); break;
            case 24: stream_groups(dtype, j, r, end, c0, 2, 4); break;
            case 25: stream_groups(dtype, j, r, end, c0, 2, 5); break;
            case 26: stream_groups(dtype, j, r, end, c0, 2, 6); break;
            case 41: stream_groups(dtype, j, r, end, c0, 4, 1); break;
            default: stream_groups(dtype, j, r, end, c0, 4, 2);
            }
        }
    }
}

static void stream_float(const struct matrix_job *j, int64_t begin, int64_t end)
{
#define STREAM(type, ...)                                                                          \
    case DT_##type: stream_dtype(DT_##type, j, begin, end); break;
    switch ((int)j->w->dtype) {
        FLOAT_TYPES(STREAM)
    }
#undef STREAM
}

/* --------------------------------------------------------------------------------- panels - */

/* n of k of 1 or 2 groups and up to 6 columns, k floats apart; y: [column][MATRIX_ROWS]. */
AVX2_INLINE void float_tile(const float *w, int64_t stride, const float *x, int64_t k, float *y,
                            int64_t n, int groups, int columns)
{
    float_sums acc;
    const float *at[FLOAT_COLUMNS];
    UNROLLED (c, columns) {
        at[c] = x + c * k;
        UNROLLED (g, groups)
            acc[c][g] = _mm256_loadu_ps(y + c * MATRIX_ROWS + g * LANES);
    }
    for (int64_t i = 0; i < n; i++)
        stream_step(DT_F32, (const uint8_t *)w, stride * (int64_t)sizeof *w, i, at, groups, columns,
                    acc);
    UNROLLED (c, columns)
        UNROLLED (g, groups)
            _mm256_storeu_ps(y + c * MATRIX_ROWS + g * LANES, acc[c][g]);
}

/* A tile with its shape known to the compiler. More than FLOAT_STREAM_COLUMNS columns, divided into
 * tiles of at most 6, make tiles of 5 and 6. */
static void float_tile_shapes(const float *w, int64_t stride, const float *x, int64_t k, float *y,
                              int64_t n, int groups, int columns)
{
    switch (10 * groups + columns) {
    case 26: float_tile(w, stride, x, k, y, n, 2, 6); break;
    case 25: float_tile(w, stride, x, k, y, n, 2, 5); break;
    case 16: float_tile(w, stride, x, k, y, n, 1, 6); break;
    default: float_tile(w, stride, x, k, y, n, 1, 5);
    }
}

/* The chunk as float32; F32 weights stay where they are. */
static const float *float_chunk(const struct oato_weight *w, const uint8_t *from,
                                int64_t group_bytes, int groups, int64_t n,
                                struct float_panel *panel, int64_t *stride)
{
    if (w->dtype == DT_F32) {
        *stride = group_bytes / (int64_t)sizeof(float);
        return const_floats(from);
    }
    for (int g = 0; g < groups; g++)
        for (int64_t i = 0; i < n; i++)
            vec_store(panel->k[g][i],
                      vec_load_float(w->dtype, from + g * group_bytes + i * 2 * LANES));
    *stride = (int64_t)(sizeof panel->k[0] / sizeof(float));
    return &panel->k[0][0][0];
}

/* A chunk for columns [c0, c0 + columns), whose sums begin at panel->y. */
static void float_columns(const struct matrix_job *j, const float *w, int64_t stride, int groups,
                          int64_t c0, int64_t columns, int64_t k0, int64_t n,
                          struct float_panel *panel)
{
    const int64_t k = j->w->k, tiles = (columns + FLOAT_COLUMNS - 1) / FLOAT_COLUMNS;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t from = columns * i / tiles;
        const int width = (int)(columns * (i + 1) / tiles - from);
        const float *x = j->x + (c0 + from) * k + k0;
        for (int c = 0; i + 1 < tiles && c < width; c++) /* the next tile's inputs */
            for (int64_t e = 0; e < n; e += 16)
                _mm_prefetch((const char *)(x + (width + c) * k + e), _MM_HINT_T0);
        for (int g = 0; g < groups; g += 2)
            float_tile_shapes(w + g * stride, stride, x, k, panel->y[from] + g * LANES, n,
                              groups - g > 1 ? 2 : 1, width);
    }
}

/* Rows [begin, end), at most MATRIX_ROWS, of more than FLOAT_STREAM_COLUMNS columns. */
static void panel_float(const struct matrix_job *j, int64_t begin, int64_t end,
                        struct float_panel *panel)
{
    const int64_t k = j->w->k, elem = j->w->dtype == DT_F32 ? 4 : 2;
    const int64_t group_bytes = (int64_t)lanes_matrix_bytes(LANES, j->w->dtype, LANES, k);
    const int groups = (int)((end - begin + LANES - 1) / LANES);
    const int64_t blocks = (j->T + FLOAT_BLOCK - 1) / FLOAT_BLOCK;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t c0 = j->T * b / blocks, columns = j->T * (b + 1) / blocks - c0;
        memset(panel->y, 0, (size_t)columns * sizeof panel->y[0]);
        for (int64_t k0 = 0; k0 < k; k0 += CHUNK) {
            const int64_t n = min_i64(CHUNK, k - k0);
            const uint8_t *from = j->w->data + begin / LANES * group_bytes + k0 * LANES * elem;
            int64_t stride;
            const float *w = float_chunk(j->w, from, group_bytes, groups, n, panel, &stride);
            float_columns(j, w, stride, groups, c0, columns, k0, n, panel);
        }
        for (int64_t c = 0; c < columns; c++)
            memcpy(j->y + (c0 + c) * j->y_stride + begin, panel->y[c],
                   (size_t)(end - begin) * sizeof(float));
    }
}

static void float_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (j->T <= FLOAT_STREAM_COLUMNS)
        stream_float(j, begin, end);
    else
        for (int64_t r = begin; r < end; r += MATRIX_ROWS)
            panel_float(j, r, min_i64(end, r + MATRIX_ROWS), (struct float_panel *)scratch);
}

const struct matrix_class avx2_matrix_float = {
    .numerics = "f32",
    .scratch_bytes = sizeof(struct float_panel),
    .rows = float_rows,
};
