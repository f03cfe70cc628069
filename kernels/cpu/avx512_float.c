/*
 * avx512_float.c - F32, F16 and BF16 matrix times any number of columns.
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each 252 columns                               their results rest in 64 KiB of L2
 *       for each 192 of k (F32: 96)                      24 KiB of weights in L1
 *         for each up to 12 columns                      their inputs, copied side by side, in L1
 *           for each 2 groups of 16 rows                 24 accumulators in registers
 *           (up to 6 columns: all 4 groups)
 *
 * Weights are converted as they are loaded: two conversions to 24 multiply-adds. Up to 24 columns
 * there is one chunk of k: memory is the limit, and the groups are streams, prefetched. Each result
 * is one chain of multiply-adds in order of k, the same whatever T; between chunks it rests in the
 * scratch.
 */
#include "kernels/cpu/avx512_internal.h"

enum {
    CHUNK = 192,
    PANEL_GROUPS = MATRIX_ROWS / AVX512_LANES,
    COLUMNS_2 = 12, /* with two groups */
    COLUMNS_4 = 6,  /* with four */
    FEW_TILES = 2,  /* of columns: all of k at once */
    COLUMN_BLOCK = 252,
    PREFETCH_BYTES = 2048,
};

struct float_scratch {
    float x[COLUMNS_2][CHUNK + AVX512_LANES]; /* columns begin in different sets of L1 */
    float y[COLUMN_BLOCK][MATRIX_ROWS];
};

uint64_t avx512_float_scratch(void)
{
    return sizeof(struct float_scratch);
}

/* One tile: inputs and results of its columns, weights of its first group. */
struct float_tile {
    const uint8_t *w;
    int64_t group_bytes; /* to the next group */
    int64_t n;           /* of k */
    bool first;          /* k begins here */
    bool cold;           /* weights come from memory */
    const float *x[COLUMNS_2];
    const float *from[COLUMNS_2]; /* results so far */
    float *to[COLUMNS_2];
    __mmask16 mask[PANEL_GROUPS];
};

AVX2_INLINE __m512 load_lanes(oato_dtype dtype, const uint8_t *w)
{
    if (dtype == DT_F32)
        return _mm512_loadu_ps(w);
    return dtype == DT_F16 ? avx512_load_f16(w) : avx512_load_bf16(w);
}

AVX2_INLINE void tile(oato_dtype dtype, const struct float_tile *t, int groups, int columns)
{
    const bool cold = t->cold;
    const int64_t bytes = AVX512_LANES * (dtype == DT_F32 ? 4 : 2);
    __m512 acc[COLUMNS_2][PANEL_GROUPS];
#pragma GCC unroll 12
    for (int c = 0; c < columns; c++)
#pragma GCC unroll 4
        for (int g = 0; g < groups; g++)
            acc[c][g] = t->first ? _mm512_setzero_ps()
                                 : _mm512_maskz_loadu_ps(t->mask[g], t->from[c] + AVX512_LANES * g);
    const uint8_t *w = t->w;
    for (int64_t i = 0; i < t->n; i++, w += bytes) {
        __m512 v[PANEL_GROUPS];
#pragma GCC unroll 4
        for (int g = 0; g < groups; g++) {
            v[g] = load_lanes(dtype, w + g * t->group_bytes);
            if (cold && (dtype == DT_F32 || i % 2 == 0))
                _mm_prefetch((const char *)w + g * t->group_bytes + PREFETCH_BYTES, _MM_HINT_T0);
        }
#pragma GCC unroll 12
        for (int c = 0; c < columns; c++) {
            __m512 x = _mm512_set1_ps(t->x[c][i]);
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++)
                acc[c][g] = _mm512_fmadd_ps(v[g], x, acc[c][g]);
        }
    }
#pragma GCC unroll 12
    for (int c = 0; c < columns; c++)
#pragma GCC unroll 4
        for (int g = 0; g < groups; g++)
            _mm512_mask_storeu_ps(t->to[c] + AVX512_LANES * g, t->mask[g], acc[c][g]);
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
    switch (dtype) {
    case DT_F32: tile_shapes(DT_F32, t, groups, columns); break;
    case DT_F16: tile_shapes(DT_F16, t, groups, columns); break;
    default: tile_shapes(DT_BF16, t, groups, columns);
    }
}

/* The work on one panel of rows and chunk of k. */
struct float_part {
    const struct matrix_job *j;
    int64_t begin, end; /* rows */
    int64_t k0, n;
    struct float_scratch *s;
};

/* `groups` groups of rows from `row` on; t has the inputs. Column `at` of the scratch is column
 * `c0` of the matrix. */
static void part_rows(const struct float_part *p, struct float_tile *t, int64_t row, int groups,
                      int64_t c0, int64_t at, int columns)
{
    const struct matrix_job *j = p->j;
    const int64_t elem = j->w->dtype == DT_F32 ? 4 : 2;
    t->group_bytes = AVX512_LANES * elem * j->w->k;
    t->w = j->w->data + row / AVX512_LANES * t->group_bytes + p->k0 * AVX512_LANES * elem;
    t->n = p->n;
    t->first = p->k0 == 0;
    for (int g = 0; g < groups; g++)
        t->mask[g] = avx512_mask(p->end - row - g * AVX512_LANES);
    for (int c = 0; c < columns; c++) {
        t->from[c] = t->to[c] = p->s->y[at + c] + (row - p->begin);
        if (p->k0 + p->n == j->w->k)
            t->to[c] = j->y + (c0 + c) * j->y_stride + row;
    }
    tile_run(j->w->dtype, t, groups, columns);
}

/* At most 12 columns: all rows of the panel. */
static void part_columns(const struct float_part *p, int64_t c0, int64_t at, int columns, bool few)
{
    const int64_t groups = (p->end - p->begin + AVX512_LANES - 1) / AVX512_LANES;
    struct float_tile t = {.cold = few && at == 0};
    for (int c = 0; c < columns; c++) {
        t.x[c] = p->j->x + (c0 + c) * p->j->w->k + p->k0;
        if (!few)
            t.x[c] = memcpy(p->s->x[c], t.x[c], (size_t)p->n * sizeof(float));
    }
    if (groups == PANEL_GROUPS && columns <= COLUMNS_4) {
        part_rows(p, &t, p->begin, 4, c0, at, columns);
        return;
    }
    int64_t row = p->begin;
    if (columns > COLUMNS_4)
        for (; p->end - row > AVX512_LANES; row += 2 * AVX512_LANES)
            part_rows(p, &t, row, 2, c0, at, columns);
    for (; row < p->end; row += AVX512_LANES) {
        struct float_tile some = t;
        for (int c = 0; c < columns; c += COLUMNS_4) {
            const int n = (int)min_i64(COLUMNS_4, columns - c);
            for (int i = 0; i < n; i++)
                some.x[i] = t.x[c + i];
            part_rows(p, &some, row, 1, c0 + c, at + c, n);
        }
    }
}

/* Rows [begin, end), at most MATRIX_ROWS, and columns [c0, c0 + columns), at most COLUMN_BLOCK. */
static void panel_float(const struct matrix_job *j, int64_t begin, int64_t end, int64_t c0,
                        int64_t columns, struct float_scratch *s)
{
    const int64_t tiles = (columns + COLUMNS_2 - 1) / COLUMNS_2, k = j->w->k;
    const bool few = tiles <= FEW_TILES;
    const int64_t chunk = few ? k : j->w->dtype == DT_F32 ? CHUNK / 2 : CHUNK;
    struct float_part p = {.j = j, .begin = begin, .end = end, .s = s};
    for (p.k0 = 0; p.k0 < k; p.k0 += chunk) {
        p.n = min_i64(chunk, k - p.k0);
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t at = columns * i / tiles;
            part_columns(&p, c0 + at, at, (int)(columns * (i + 1) / tiles - at), few);
        }
    }
}

void avx512_matrix_float(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    const int64_t blocks = (j->T + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
    for (int64_t r = begin; r < end; r += MATRIX_ROWS)
        for (int64_t i = 0; i < blocks; i++)
            panel_float(j, r, min_i64(end, r + MATRIX_ROWS), j->T * i / blocks,
                        j->T * (i + 1) / blocks - j->T * i / blocks,
                        (struct float_scratch *)scratch);
}
