/*
 * avx512_words.c - float weights times many columns with products of int16, for prefill: class
 * i14b32, twice as fast as multiply-adds of float32.
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each 512 columns                               their results rest in 128 KiB of L2
 *       for each 256 of k                                weights of the panel -> int16, 33 KiB of
 *                                                        L1, while the next are prefetched
 *         for each up to 6 columns                       their 512 bytes each stay in L1
 *           for each 2 groups of 16 rows                 12 int32 and 12 float32 accumulators in
 *                                                        registers
 *
 * The inner loop is 12 vpdpwssd, two loads of weights and six broadcasts from L1 for a pair of k:
 * multiplying is its limit (two a cycle where the loads are two too). Each 32 k end in a
 * conversion, a multiplication of the scales and one multiply-add a result. Between chunks of k
 * the sums rest in the scratch, not in y, whose columns may lie in few sets of the caches. Storing
 * loses nothing: a row is one chain of multiply-adds in order of k, whatever T. Each block of a
 * tile fetches the block of the next one: asked for all at once, they stall the loads of the sums.
 * Measured at T = 512 on a Zen 5 core: 75 % of the vpdpwssd peak.
 */
#include "kernels/cpu/avx512_internal.h"

enum {
    PANEL_GROUPS = MATRIX_ROWS / LANES,
    CHUNK = 256,
    TILE_GROUPS = 2,
    TILE_COLUMNS = 6,
    COLUMN_BLOCK = 516, /* 86 tiles */
};

/* Weights of one group and chunk, ready for the tile. */
struct group_panel {
    int16_t pair[CHUNK / 2][LANES][2];
    float scale[CHUNK / 32][LANES];
};

struct panel_scratch {
    struct group_panel panel[PANEL_GROUPS];
    float y[COLUMN_BLOCK][MATRIX_ROWS];
};

/* ---------------------------------------------------------------------------------- panel - */

/* 32 k of float weights, of which n are there, as int16 of 14 bits with the scale of their largest
 * magnitude. What is not finite ends in the scale: magnitudes are compared as integers. */
AVX2_INLINE void unpack_float_32(oato_dtype dtype, const uint8_t *w, int n, struct group_panel *p,
                                 int block)
{
    const int bytes = LANES * (dtype == DT_F32 ? 4 : 2);
    const __m512i magnitude = _mm512_set1_epi32(INT32_MAX);
    const __m512 largest = _mm512_set1_ps(LANES_WORDS_LARGEST);
    __m512i top = _mm512_setzero_si512();
    for (int i = 0; i < n; i++) {
        __m512i v = _mm512_castps_si512(vec_load_float(dtype, w + i * bytes));
        top = _mm512_max_epi32(top, _mm512_and_si512(v, magnitude));
    }
    /* As with inputs: below this the reciprocal would overflow. */
    const __m512i tiny = _mm512_castps_si512(_mm512_set1_ps(1e-30f));
    const __mmask16 some = _mm512_cmpgt_epi32_mask(top, tiny);
    const __m512 factor = _mm512_maskz_div_ps(some, largest, _mm512_castsi512_ps(top));
    _mm512_storeu_ps(p->scale[block], _mm512_maskz_div_ps(some, _mm512_castsi512_ps(top), largest));
    for (int i = 0; i < 32; i += 2, w += 2 * bytes) {
        __m512i pair[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        for (int e = 0; e < 2 && i + e < n; e++) {
            __m512 v = vec_load_float(dtype, w + e * bytes);
            pair[e] = _mm512_cvtps_epi32(_mm512_mul_ps(v, factor));
        }
        const __m512i second = _mm512_slli_epi32(pair[1], 16);
        _mm512_storeu_si512(p->pair[16 * block + i / 2],
                            _mm512_mask_blend_epi16(0xaaaaaaaa, pair[0], second));
    }
}

AVX2_INLINE void unpack_floats(oato_dtype dtype, const uint8_t *w, int64_t n, struct group_panel *p)
{
    const int64_t bytes = LANES * (dtype == DT_F32 ? 4 : 2);
    for (int b = 0; 32 * b < n; b++, w += 32 * bytes) {
        if (n - 32 * b >= 32)
            unpack_float_32(dtype, w, 32, p, b);
        else
            unpack_float_32(dtype, w, (int)(n - 32 * b), p, b);
    }
}

/* n of k from w on; `next` is what this group or panel needs after them. */
static void unpack(oato_dtype dtype, const uint8_t *w, int64_t n, struct group_panel *p,
                   const uint8_t *next, int64_t next_bytes)
{
    for (int64_t i = 0; i < next_bytes; i += 64)
        _mm_prefetch((const char *)next + i, _MM_HINT_T1);
#define UNPACK(type, ...)                                                                          \
    case DT_##type: unpack_floats(DT_##type, w, n, p); break;
    switch ((int)dtype) {
        FLOAT_TYPES(UNPACK)
    }
#undef UNPACK
}

/* ---------------------------------------------------------------------------------- tiles - */

/* Columns of a tile: their packed inputs from the chunk on, and where their sums are. */
struct tile_columns {
    const uint8_t *q[TILE_COLUMNS];  /* int16 */
    int64_t scale_at;                /* bytes from there to the scale of the first 32 */
    const float *from[TILE_COLUMNS]; /* results so far */
    float *to[TILE_COLUMNS];
    __mmask16 mask[TILE_GROUPS];
    uint64_t ahead; /* bytes from q to the next tile's */
    int blocks;     /* 32 of k each */
    bool first;
};

/* groups x columns of sums. */
AVX2_INLINE void tile(const struct group_panel *p, const struct tile_columns *t, int groups,
                      int columns)
{
    __m512 acc[TILE_COLUMNS][TILE_GROUPS];
    UNROLLED (c, columns)
        UNROLLED (g, groups)
            acc[c][g] = t->first ? _mm512_setzero_ps()
                                 : _mm512_maskz_loadu_ps(t->mask[g], t->from[c] + LANES * g);
    for (int b = 0; b < t->blocks; b++) {
        UNROLLED (c, columns)
            _mm_prefetch((const char *)t->q[c] + 64 * b + t->ahead, _MM_HINT_T0);
        __m512i sum[TILE_COLUMNS][TILE_GROUPS];
        UNROLLED (c, columns)
            UNROLLED (g, groups)
                sum[c][g] = _mm512_setzero_si512();
        UNROLLED (i, 16) {
            __m512i w[TILE_GROUPS];
            UNROLLED (g, groups)
                w[g] = _mm512_loadu_si512(p[g].pair[b * 16 + i]);
            UNROLLED (c, columns) {
                __m512i x = avx512_pair_at(t->q[c] + 64 * b + 4 * i);
                UNROLLED (g, groups)
                    sum[c][g] = _mm512_dpwssd_epi32(sum[c][g], w[g], x);
            }
        }
        UNROLLED (c, columns) {
            const __m512 scale = avx512_float_at(t->q[c] + t->scale_at + 4 * b);
            UNROLLED (g, groups) {
                __m512 s = _mm512_mul_ps(_mm512_loadu_ps(p[g].scale[b]), scale);
                acc[c][g] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(sum[c][g]), acc[c][g]);
            }
        }
    }
    UNROLLED (c, columns)
        UNROLLED (g, groups)
            _mm512_mask_storeu_ps(t->to[c] + LANES * g, t->mask[g], acc[c][g]);
}

/* The tile with its shape known to the compiler. */
static void tile_run(const struct group_panel *p, const struct tile_columns *t, int groups,
                     int columns)
{
    switch (columns * 2 + groups - 1) {
    case 13: tile(p, t, 2, 6); break;
    case 12: tile(p, t, 1, 6); break;
    case 11: tile(p, t, 2, 5); break;
    case 10: tile(p, t, 1, 5); break;
    case 9: tile(p, t, 2, 4); break;
    case 8: tile(p, t, 1, 4); break;
    case 7: tile(p, t, 2, 3); break;
    case 6: tile(p, t, 1, 3); break;
    case 5: tile(p, t, 2, 2); break;
    case 4: tile(p, t, 1, 2); break;
    case 3: tile(p, t, 2, 1); break;
    default: tile(p, t, 1, 1);
    }
}

/* The shape of the work on one panel of rows and block of columns. */
struct panel_job {
    const struct matrix_job *j;
    int64_t k;           /* of the packed inputs */
    int64_t begin, end;  /* rows */
    int64_t c0, columns; /* the block */
    int64_t k0;          /* the chunk */
    struct panel_scratch *s;
};

/* One chunk of k of the panel for the columns of the block. Tiles are about equally wide: none has
 * fewer than 3 columns unless there are only 1 or 2. */
static void panel_columns(const struct panel_job *x)
{
    const int64_t k = x->k, n = min_i64(CHUNK, k - x->k0);
    const int groups = (int)((x->end - x->begin + LANES - 1) / LANES);
    const int64_t tiles = (x->columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const bool last = x->k0 + n == k;
    struct tile_columns t = {
        .scale_at = 2 * (k - x->k0) + x->k0 / 8, .blocks = (int)(n / 32), .first = x->k0 == 0};
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t from = x->columns * i / tiles;
        const int columns = (int)max_i64(1, x->columns * (i + 1) / tiles - from);
        for (int c = 0; c < columns; c++)
            t.q[c] = x->j->packed + (uint64_t)(x->c0 + from + c) * x->j->pack_stride + 2 * x->k0;
        t.ahead = (uint64_t)columns * x->j->pack_stride;
        for (int g = 0; g < groups; g += TILE_GROUPS) {
            const int64_t row = g * LANES, left = x->end - x->begin - row;
            t.mask[0] = avx512_mask(left);
            t.mask[1] = avx512_mask(max_i64(left - LANES, 0));
            for (int c = 0; c < columns; c++) {
                t.from[c] = t.to[c] = x->s->y[from + c] + row;
                if (last)
                    t.to[c] = x->j->y + (x->c0 + from + c) * x->j->y_stride + x->begin + row;
            }
            tile_run(x->s->panel + g, &t, (int)min_i64(TILE_GROUPS, groups - g), columns);
        }
    }
}

/* Rows [begin, end), at most MATRIX_ROWS. */
static void panel_matrix(const struct matrix_job *j, int64_t begin, int64_t end,
                         struct panel_scratch *s)
{
    const int64_t k = j->w->k, element = LANES * (j->w->dtype == DT_F32 ? 4 : 2);
    const int64_t blocks = (j->T + COLUMN_BLOCK - 1) / COLUMN_BLOCK, stride = k * element;
    struct panel_job x = {.j = j, .k = lanes_words_k(k), .begin = begin, .end = end, .s = s};
    for (int64_t i = 0; i < blocks; i++) {
        x.c0 = j->T * i / blocks;
        x.columns = j->T * (i + 1) / blocks - x.c0;
        for (x.k0 = 0; x.k0 < k; x.k0 += CHUNK) {
            const int64_t n = min_i64(CHUNK, k - x.k0), next = min_i64(CHUNK, k - x.k0 - n);
            for (int64_t r = begin; r < end; r += LANES) {
                const uint8_t *w = j->w->data + r / LANES * stride + x.k0 * element;
                const uint8_t *after = w + n * element;
                int64_t bytes = next * element;
                if (!next && i + 1 == blocks) { /* the panel behind this one begins with: */
                    after += (MATRIX_ROWS / LANES - 1) * stride;
                    bytes = min_i64(CHUNK, k) * element;
                }
                unpack(j->w->dtype, w, n, &s->panel[(r - begin) / LANES], after, bytes);
            }
            panel_columns(&x);
        }
    }
}

static void matrix_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    for (int64_t r = begin; r < end; r += MATRIX_ROWS)
        panel_matrix(j, r, min_i64(end, r + MATRIX_ROWS), (struct panel_scratch *)scratch);
}

const struct matrix_class avx512_words = {
    .numerics = "i14b32",
    .pack_bytes = lanes_words_pack_bytes,
    .pack = lanes_words_pack,
    .scratch_bytes = sizeof(struct panel_scratch),
    .rows = matrix_rows,
};
