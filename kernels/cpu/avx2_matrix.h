/*
 * avx2_matrix.h - matrix times T > 1 columns, for avx2.c and avxvnni.c.
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each 252 columns                               their sums rest in 64 KiB of L2
 *       for each 256 of k                                weights of the panel -> int16, 32 KiB in
 *                                                        L1/L2, once
 *         for each 3 columns                             their 512 bytes each stay in L1
 *           for each 4 groups of 8 rows                  12 int32 accumulators in registers
 *
 * An instruction multiplies 16 int16 pairs, and unpacking, scales and loads are shared by the
 * columns. Each 32 k end in a conversion, a multiplication of the scales and one multiply-add of
 * the float32 sums in L1: storing loses nothing, so each row is the same chain of fused
 * multiply-adds in order of k as in avx2_vector.h. The sums are not in y before the end, because
 * its columns may lie in few sets of the caches.
 * Measured at T = 512 on a Zen 5 core: 81 % of the peak of vpmaddwd and vpaddd, or of vpdpwssd;
 * float32 weights, in panels of 4 groups and 6 columns, 82 % of that of the multiply-adds.
 */
#ifndef OATO_AVX2_MATRIX_H
#define OATO_AVX2_MATRIX_H

#include "kernels/cpu/avx2_vector.h"

#include <string.h>

enum {
    PANEL_GROUPS = MATRIX_ROWS / AVX2_LANES,
    CHUNK = 256,
    SCALES = CHUNK / 16,
    TILE_GROUPS = 4,
    TILE_COLUMNS = 3,       /* int16: 12 sums, an input, weights, a product of 16 registers */
    COLUMN_BLOCK = 252,     /* 84 tiles */
    TILE_COLUMNS_FLOAT = 6, /* float32: 12 sums, 2 weights, an input */
    FLOAT_GROUPS = 4,       /* or 3 columns of 4 groups */
};

/* Weights of one group and chunk, ready for the tile. */
struct group_panel {
    int16_t pair[CHUNK / 2][AVX2_LANES][2];
    float scale[SCALES][AVX2_LANES]; /* one for 32 k; for 16 with Q6_K */
    float min[SCALES / 2][AVX2_LANES];
};

struct panel_scratch {
    struct group_panel panel[PANEL_GROUPS];
    float y[COLUMN_BLOCK][MATRIX_ROWS];
};

struct float_panel {
    float k[CHUNK][AVX2_LANES];
};

static uint64_t matrix_bytes(oato_dtype dtype, int64_t rows, int64_t k)
{
    return lanes_matrix_bytes(AVX2_LANES, dtype, rows, k);
}

static void matrix_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                           int64_t end)
{
    lanes_matrix_prepare(AVX2_LANES, s, w, begin, end);
}

static bool matrix_row(const struct oato_weight *w, int64_t row, float *out)
{
    return lanes_matrix_row(AVX2_LANES, w, row, out);
}

static uint64_t matrix_scratch(oato_dtype dtype, int64_t k)
{
    (void)k;
    if (dtype == DT_F32)
        return 0;
    return lanes_format_of(dtype) ? sizeof(struct panel_scratch)
                                  : PANEL_GROUPS * sizeof(struct float_panel);
}

/* ---------------------------------------------------------------------------------- panel - */

/* 32 k to pairs `pair`, `pair` + 1, ... */
AVX2_INLINE void unpack_32(const struct lanes_format *f, const uint8_t *body,
                           struct group_panel *panel, int pair)
{
    __m256i x = _mm256_setzero_si256(), high = x;
#pragma GCC unroll 16
    for (int p = 0; p < 16; p++) {
        __m256i words = avx2_pair_words(f, body, p, &x, &high);
        words = _mm256_sub_epi16(words, _mm256_set1_epi16((int16_t)f->offset));
        _mm256_storeu_si256((__m256i *)panel->pair[pair + p], words);
    }
}

AVX2_INLINE __m256 half_lanes(const uint8_t *p)
{
    return avx2_load_f16((const uint16_t *)p);
}

AVX2_INLINE __m256 byte_lanes(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

AVX2_INLINE __m256 signed_byte_lanes(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* Blocks of 32 along k: `blocks` of them, at most CHUNK / 32. */
AVX2_INLINE void unpack_small(const struct lanes_format *f, const uint8_t *w, int blocks,
                              struct group_panel *p)
{
    const int head = 8 * f->head, body = 8 * f->body;
    for (int b = 0; b < blocks; b++, w += head + body) {
        _mm256_storeu_ps(p->scale[b], half_lanes(w));
        if (f->has_min)
            _mm256_storeu_ps(p->min[b], half_lanes(w + 16));
        unpack_32(f, w + head, p, b * 16);
    }
}

/* One block of 256 along k. */
AVX2_INLINE void unpack_k(const struct lanes_format *f, const uint8_t *w, struct group_panel *p)
{
    const __m256 d = half_lanes(w);
    if (f->dtype == DT_Q6_K) {
        for (int s = 0; s < 16; s++)
            _mm256_storeu_ps(p->scale[s], _mm256_mul_ps(d, signed_byte_lanes(w + 16 + 8 * s)));
    } else {
        const __m256 dmin = half_lanes(w + 16), zero = _mm256_setzero_ps();
        for (int s = 0; s < 8; s++) {
            __m256 min = _mm256_mul_ps(dmin, byte_lanes(w + 96 + 8 * s));
            _mm256_storeu_ps(p->scale[s], _mm256_mul_ps(d, byte_lanes(w + 32 + 8 * s)));
            _mm256_storeu_ps(p->min[s], _mm256_sub_ps(zero, min));
        }
    }
    for (int s = 0; s < 8; s++)
        unpack_32(f, w + 8 * (f->head + s * f->body), p, s * 16);
}

static void unpack(oato_dtype dtype, const uint8_t *w, int blocks, struct group_panel *p)
{
    switch (dtype) {
    case DT_Q4_0: unpack_small(&lanes_formats[FORMAT_Q4_0], w, blocks, p); break;
    case DT_Q4_1: unpack_small(&lanes_formats[FORMAT_Q4_1], w, blocks, p); break;
    case DT_Q5_0: unpack_small(&lanes_formats[FORMAT_Q5_0], w, blocks, p); break;
    case DT_Q5_1: unpack_small(&lanes_formats[FORMAT_Q5_1], w, blocks, p); break;
    case DT_Q8_0: unpack_small(&lanes_formats[FORMAT_Q8_0], w, blocks, p); break;
    case DT_Q4_K: unpack_k(&lanes_formats[FORMAT_Q4_K], w, p); break;
    case DT_Q5_K: unpack_k(&lanes_formats[FORMAT_Q5_K], w, p); break;
    default: unpack_k(&lanes_formats[FORMAT_Q6_K], w, p);
    }
}

/* ---------------------------------------------------------------------------------- tiles - */

/* Up to 4 groups and 3 columns: their weights, inputs and sums. */
struct tile {
    const struct group_panel *panel; /* of the first group */
    int blocks;                      /* of 32 k */
    const uint8_t *q;                /* inputs of the chunk, int16 */
    int64_t stride;                  /* bytes from a column to the next */
    int64_t scale_at, sum_at;        /* bytes from q to the scale of the chunk's first block, and
                                        to scale * sum */
    float *y;                        /* [column][MATRIX_ROWS] */
};

AVX2_INLINE __m256 float_at(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return _mm256_set1_ps(x);
}

/* Without this gcc turns the chain of exact additions into a tree, whose leaves are more than there
 * are registers. */
AVX2_INLINE void keep_chain(__m256i *sum)
{
    __asm__("" : "+x"(*sum));
}

/* groups x columns x 8 sums over all blocks. sub: elements that share a scale. */
AVX2_INLINE void tile(const struct tile *t, int groups, int columns, int sub, bool has_min)
{
    const struct group_panel *p = t->panel;
    for (int b = 0; b < t->blocks * (32 / sub); b++) {
        const uint8_t *q = t->q + 2 * sub * b, *block = t->q + 4 * (b * sub / 32);
        __m256i sum[TILE_COLUMNS][TILE_GROUPS];
#pragma GCC unroll 16
        for (int i = 0; i < sub / 2; i++) {
            __m256i w[TILE_GROUPS];
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++)
                w[g] = _mm256_loadu_si256((const __m256i *)p[g].pair[b * (sub / 2) + i]);
#pragma GCC unroll 3
            for (int c = 0; c < columns; c++) {
                __m256i x = avx2_pair_at(q + c * t->stride + 4 * i);
#pragma GCC unroll 4
                for (int g = 0; g < groups; g++) {
                    sum[c][g] = avx2_dot(i ? sum[c][g] : _mm256_setzero_si256(), w[g], x);
                    keep_chain(&sum[c][g]);
                }
            }
        }
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) {
            const __m256 input_scale = float_at(block + c * t->stride + t->scale_at);
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++) {
                float *y = t->y + c * MATRIX_ROWS + g * AVX2_LANES;
                __m256 s = _mm256_mul_ps(_mm256_loadu_ps(p[g].scale[b]), input_scale);
                __m256 acc = _mm256_fmadd_ps(s, _mm256_cvtepi32_ps(sum[c][g]), _mm256_loadu_ps(y));
                if (has_min)
                    acc = _mm256_fmadd_ps(_mm256_loadu_ps(p[g].min[b]),
                                          float_at(block + c * t->stride + t->sum_at), acc);
                _mm256_storeu_ps(y, acc);
            }
        }
    }
}

/* The tile with its shape known to the compiler. */
AVX2_INLINE void tile_shapes(const struct tile *t, int groups, int columns, int sub, bool has_min)
{
    switch (groups == TILE_GROUPS ? 3 + columns : columns) {
    case 6: tile(t, 4, 3, sub, has_min); break;
    case 5: tile(t, 4, 2, sub, has_min); break;
    case 4: tile(t, 4, 1, sub, has_min); break;
    case 3: tile(t, 1, 3, sub, has_min); break;
    case 2: tile(t, 1, 2, sub, has_min); break;
    default: tile(t, 1, 1, sub, has_min);
    }
}

/* groups: 4 or 1. */
typedef void tile_fn(const struct tile *t, int groups, int columns);

static void tile_scale_32(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, 32, false);
}

static void tile_min_32(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, 32, true);
}

static void tile_scale_16(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, 16, false);
}

static tile_fn *tile_of(const struct lanes_format *f)
{
    if (f->has_min)
        return tile_min_32;
    return f->sub == 16 ? tile_scale_16 : tile_scale_32;
}

/* The chunk of k at k0 for the columns [c0, c0 + n), whose sums begin at s->y. Tiles are about
 * equally wide. */
static void panel_columns(const struct matrix_job *j, struct panel_scratch *s, int groups,
                          int64_t k0, int64_t c0, int64_t n)
{
    const struct lanes_format *f = lanes_format_of(j->w->dtype);
    tile_fn *const run = tile_of(f);
    const int64_t k = j->w->k, chunk = min_i64(CHUNK, k - k0);
    const int64_t tiles = (n + TILE_COLUMNS - 1) / TILE_COLUMNS;
    struct tile t = {.blocks = (int)(chunk / 32), .stride = (int64_t)j->pack_stride};
    t.scale_at = 2 * (k - k0) + k0 / 8;
    t.sum_at = t.scale_at + k / 8;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t from = n * i / tiles;
        const int columns = (int)(n * (i + 1) / tiles - from);
        t.q = j->packed + (c0 + from) * t.stride + 2 * k0;
        for (int c = 0; i + 1 < tiles && c < columns; c++) /* the next tile's inputs */
            for (int64_t b = 0; b < 2 * chunk; b += 64)
                _mm_prefetch((const char *)t.q + (columns + c) * t.stride + b, _MM_HINT_T0);
        for (int g = 0; g < groups;) {
            const int width = groups - g >= TILE_GROUPS ? TILE_GROUPS : 1;
            t.panel = s->panel + g;
            t.y = s->y[from] + g * AVX2_LANES;
            run(&t, width, columns);
            g += width;
        }
    }
}

/* Rows [begin, end), at most MATRIX_ROWS. */
static void panel_quantised(const struct matrix_job *j, int64_t begin, int64_t end,
                            struct panel_scratch *s)
{
    const struct lanes_format *f = lanes_format_of(j->w->dtype);
    const int64_t k = j->w->k, stride = (int64_t)matrix_bytes(f->dtype, AVX2_LANES, k);
    const int64_t block_bytes = AVX2_LANES * lanes_block_bytes(f);
    const int groups = (int)((end - begin + AVX2_LANES - 1) / AVX2_LANES);
    const int64_t column_blocks = (j->T + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
    for (int64_t i = 0; i < column_blocks; i++) {
        const int64_t c0 = j->T * i / column_blocks, n = j->T * (i + 1) / column_blocks - c0;
        memset(s->y, 0, (size_t)n * sizeof s->y[0]);
        for (int64_t k0 = 0; k0 < k; k0 += CHUNK) {
            const uint8_t *w =
                j->w->data + begin / AVX2_LANES * stride + k0 / f->block * block_bytes;
            for (int g = 0; g < groups; g++)
                unpack(f->dtype, w + g * stride, (int)min_i64(CHUNK, k - k0) / 32, &s->panel[g]);
            panel_columns(j, s, groups, k0, c0, n);
        }
        for (int64_t c = 0; c < n; c++)
            memcpy(j->y + (c0 + c) * j->y_stride + begin, s->y[c],
                   (size_t)(end - begin) * sizeof(float));
    }
}

/* -------------------------------------------------------------------------- float weights - */

AVX2_INLINE void float_tile(const float *w, int64_t stride, const float *const *x, float *const *y,
                            int64_t n, bool first, const __m256i *mask, int groups, int columns)
{
    __m256 acc[TILE_COLUMNS_FLOAT][FLOAT_GROUPS];
    for (int c = 0; c < columns; c++)
        for (int g = 0; g < groups; g++)
            acc[c][g] = first ? _mm256_setzero_ps() : _mm256_maskload_ps(y[c] + 8 * g, mask[g]);
    for (int64_t i = 0; i < n; i++) {
        __m256 v[FLOAT_GROUPS];
        for (int g = 0; g < groups; g++)
            v[g] = _mm256_loadu_ps(w + g * stride + i * AVX2_LANES);
        for (int c = 0; c < columns; c++) {
            __m256 input = _mm256_set1_ps(x[c][i]);
            for (int g = 0; g < groups; g++)
                acc[c][g] = _mm256_fmadd_ps(v[g], input, acc[c][g]);
        }
    }
    for (int c = 0; c < columns; c++)
        for (int g = 0; g < groups; g++)
            _mm256_maskstore_ps(y[c] + 8 * g, mask[g], acc[c][g]);
}

/* Twelve sums hide the latency of the multiply-adds: 2 groups x 6 columns, or 4 x 3 when there are
 * few columns. */
static void float_tile_shapes(const float *w, int64_t stride, const float *const *x,
                              float *const *y, int64_t n, bool first, const __m256i *mask,
                              int groups, int columns)
{
    if (groups == FLOAT_GROUPS && columns <= 3) {
        switch (columns) {
        case 3: float_tile(w, stride, x, y, n, first, mask, 4, 3); break;
        case 2: float_tile(w, stride, x, y, n, first, mask, 4, 2); break;
        default: float_tile(w, stride, x, y, n, first, mask, 4, 1);
        }
        return;
    }
    for (int g = 0; g < groups; g += 2) {
        float *at[TILE_COLUMNS_FLOAT];
        const bool two = g + 1 < groups;
        for (int c = 0; c < columns; c++)
            at[c] = y[c] + 8 * g;
        switch (two ? columns : 0) {
        case 6: float_tile(w + g * stride, stride, x, at, n, first, mask + g, 2, 6); break;
        case 5: float_tile(w + g * stride, stride, x, at, n, first, mask + g, 2, 5); break;
        case 4: float_tile(w + g * stride, stride, x, at, n, first, mask + g, 2, 4); break;
        default:
            for (int c = 0; c < columns; c++) {
                if (two)
                    float_tile(w + g * stride, stride, x + c, at + c, n, first, mask + g, 2, 1);
                else
                    float_tile(w + g * stride, stride, x + c, at + c, n, first, mask + g, 1, 1);
            }
        }
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
    for (int g = 0; g < groups; g++) {
        const uint16_t *p = (const uint16_t *)(from + g * group_bytes);
        for (int64_t i = 0; i < n; i++, p += AVX2_LANES)
            _mm256_storeu_ps(panel[g].k[i],
                             w->dtype == DT_F16 ? avx2_load_f16(p) : avx2_load_bf16(p));
    }
    *stride = (int64_t)(sizeof *panel / sizeof(float));
    return &panel[0].k[0][0];
}

static void panel_float(const struct matrix_job *j, int64_t begin, int64_t end,
                        struct float_panel *panel)
{
    const int64_t k = j->w->k, elem = j->w->dtype == DT_F32 ? 4 : 2;
    const int64_t group_bytes = (int64_t)matrix_bytes(j->w->dtype, AVX2_LANES, k);
    const int groups = (int)((end - begin + AVX2_LANES - 1) / AVX2_LANES);
    for (int64_t k0 = 0; k0 < k; k0 += CHUNK) {
        const int64_t n = min_i64(CHUNK, k - k0);
        const uint8_t *from =
            j->w->data + begin / AVX2_LANES * group_bytes + k0 * AVX2_LANES * elem;
        int64_t stride;
        const float *w = float_chunk(j->w, from, group_bytes, groups, n, panel, &stride);
        for (int64_t c0 = 0; c0 < j->T; c0 += TILE_COLUMNS_FLOAT) {
            const int columns = (int)min_i64(TILE_COLUMNS_FLOAT, j->T - c0);
            for (int g = 0; g < groups; g += FLOAT_GROUPS) {
                const int64_t row = begin + g * AVX2_LANES;
                __m256i mask[FLOAT_GROUPS];
                for (int i = 0; i < FLOAT_GROUPS; i++)
                    mask[i] = avx2_mask(end - row - i * AVX2_LANES);
                const float *x[TILE_COLUMNS_FLOAT];
                float *y[TILE_COLUMNS_FLOAT];
                for (int c = 0; c < columns; c++) {
                    x[c] = j->x + (c0 + c) * k + k0;
                    y[c] = j->y + (c0 + c) * j->y_stride + row;
                }
                float_tile_shapes(w + g * stride, stride, x, y, n, k0 == 0, mask,
                                  (int)min_i64(FLOAT_GROUPS, groups - g), columns);
            }
        }
    }
}

static void matrix_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (j->T == 1) {
        matrix_vector(j, begin, end);
        return;
    }
    for (int64_t r = begin; r < end; r += MATRIX_ROWS) {
        int64_t stop = min_i64(end, r + MATRIX_ROWS);
        if (lanes_format_of(j->w->dtype))
            panel_quantised(j, r, stop, (struct panel_scratch *)scratch);
        else
            panel_float(j, r, stop, (struct float_panel *)scratch);
    }
}

static const struct matrix_class matrix_exact = {
    .numerics = lanes_matrix_numerics,
    .pack_bytes = lanes_pack_bytes,
    .pack = lanes_pack,
    .scratch_bytes = matrix_scratch,
    .rows = matrix_rows,
};

#endif
