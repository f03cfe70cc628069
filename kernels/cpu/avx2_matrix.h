/*
 * avx2_matrix.h - matrix times T > 1 columns, for avx2.c and avxvnni.c.
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each 256 of k                                  weights of the panel -> int16 / float32
 *                                                        in L1/L2 (32 or 64 KiB), once
 *       for each 4 (float: 6) columns                    their 256 inputs stay in L1
 *         for each 2 groups of 8 rows                    accumulators stay in registers
 *
 * An instruction multiplies 16 int16 pairs, and unpacking, scales and loads are shared by the
 * columns, so that two of three instructions of the inner loop are multiply and add. Between
 * chunks of k the float32 sums rest in y: storing loses nothing, so each row is the same chain of
 * fused multiply-adds in order of k as in avx2_vector.h.
 */
#ifndef OATO_AVX2_MATRIX_H
#define OATO_AVX2_MATRIX_H

#include "kernels/cpu/avx2_vector.h"

#include <string.h>

enum {
    PANEL_GROUPS = MATRIX_ROWS / AVX2_LANES,
    CHUNK = 256,
    SCALES = CHUNK / 16,
    TILE_GROUPS = 2,
    TILE_COLUMNS = 4,       /* int16: 8 sums, 2 weights, an input, a product of 16 registers */
    TILE_COLUMNS_FLOAT = 6, /* float32: 12 sums, 2 weights, an input */
    FLOAT_GROUPS = 4,       /* or 3 columns of 4 groups */
};

/* Weights of one group and chunk, ready for the tile. */
struct group_panel {
    int16_t pair[CHUNK / 2][AVX2_LANES][2];
    float scale[SCALES][AVX2_LANES]; /* one for 32 k; for 16 with Q6_K */
    float min[SCALES / 2][AVX2_LANES];
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

static uint64_t matrix_scratch(oato_dtype dtype, int64_t k)
{
    (void)k;
    if (dtype == DT_F32)
        return 0;
    return PANEL_GROUPS *
           (lanes_format_of(dtype) ? sizeof(struct group_panel) : sizeof(struct float_panel));
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

/* Columns of a tile: their packed inputs from the chunk on, and where their sums are. */
struct tile_columns {
    struct lanes_packed a[TILE_COLUMNS];
    float *y[TILE_COLUMNS];
};

/* groups x columns x 8 sums over `blocks` times 32 of k. sub: elements that share a scale. */
AVX2_INLINE void tile(const struct group_panel *p, const struct tile_columns *t, int blocks,
                      bool first, const __m256i *mask, int groups, int columns, int sub,
                      bool has_min)
{
    __m256 acc[TILE_COLUMNS][TILE_GROUPS];
    for (int c = 0; c < columns; c++)
        for (int g = 0; g < groups; g++)
            acc[c][g] = first ? _mm256_setzero_ps() : _mm256_maskload_ps(t->y[c] + 8 * g, mask[g]);
    for (int b = 0; b < blocks * (32 / sub); b++) {
        __m256i sum[TILE_COLUMNS][TILE_GROUPS];
        for (int c = 0; c < columns; c++)
            for (int g = 0; g < groups; g++)
                sum[c][g] = _mm256_setzero_si256();
        const int pair = b * (sub / 2); /* the first of the block */
        const int16_t *x[TILE_COLUMNS];
        for (int c = 0; c < columns; c++)
            x[c] = t->a[c].q + 2 * pair;
#pragma GCC unroll AVX2_UNROLL
        for (int i = 0; i < sub / 2; i++) {
            __m256i w[TILE_GROUPS];
            for (int g = 0; g < groups; g++)
                w[g] = _mm256_loadu_si256((const __m256i *)p[g].pair[pair + i]);
            for (int c = 0; c < columns; c++) {
                int32_t input;
                memcpy(&input, x[c] + 2 * i, sizeof input);
                __m256i v = _mm256_set1_epi32(input);
                for (int g = 0; g < groups; g++)
                    sum[c][g] = avx2_dot(sum[c][g], w[g], v);
            }
        }
        for (int c = 0; c < columns; c++) {
            const int block = b * sub / 32;
            __m256 scale = _mm256_set1_ps(t->a[c].scale[block]);
            __m256 scaled_sum = _mm256_set1_ps(t->a[c].scaled_sum[block]);
            for (int g = 0; g < groups; g++) {
                __m256 s = _mm256_mul_ps(_mm256_loadu_ps(p[g].scale[b]), scale);
                acc[c][g] = _mm256_fmadd_ps(s, _mm256_cvtepi32_ps(sum[c][g]), acc[c][g]);
                if (has_min)
                    acc[c][g] =
                        _mm256_fmadd_ps(_mm256_loadu_ps(p[g].min[b]), scaled_sum, acc[c][g]);
            }
        }
    }
    for (int c = 0; c < columns; c++)
        for (int g = 0; g < groups; g++)
            _mm256_maskstore_ps(t->y[c] + 8 * g, mask[g], acc[c][g]);
}

/* The tile with its shape known to the compiler. */
AVX2_INLINE void tile_shapes(const struct group_panel *p, const struct tile_columns *t, int blocks,
                             bool first, const __m256i *mask, int groups, int columns, int sub,
                             bool has_min)
{
    switch (columns * 2 + groups - 1) {
    case 9: tile(p, t, blocks, first, mask, 2, 4, sub, has_min); break;
    case 8: tile(p, t, blocks, first, mask, 1, 4, sub, has_min); break;
    case 7: tile(p, t, blocks, first, mask, 2, 3, sub, has_min); break;
    case 6: tile(p, t, blocks, first, mask, 1, 3, sub, has_min); break;
    case 5: tile(p, t, blocks, first, mask, 2, 2, sub, has_min); break;
    case 4: tile(p, t, blocks, first, mask, 1, 2, sub, has_min); break;
    case 3: tile(p, t, blocks, first, mask, 2, 1, sub, has_min); break;
    default: tile(p, t, blocks, first, mask, 1, 1, sub, has_min);
    }
}

typedef void tile_fn(const struct group_panel *p, const struct tile_columns *t, int blocks,
                     bool first, const __m256i *mask, int groups, int columns);

static void tile_scale_32(const struct group_panel *p, const struct tile_columns *t, int blocks,
                          bool first, const __m256i *mask, int groups, int columns)
{
    tile_shapes(p, t, blocks, first, mask, groups, columns, 32, false);
}

static void tile_min_32(const struct group_panel *p, const struct tile_columns *t, int blocks,
                        bool first, const __m256i *mask, int groups, int columns)
{
    tile_shapes(p, t, blocks, first, mask, groups, columns, 32, true);
}

static void tile_scale_16(const struct group_panel *p, const struct tile_columns *t, int blocks,
                          bool first, const __m256i *mask, int groups, int columns)
{
    tile_shapes(p, t, blocks, first, mask, groups, columns, 16, false);
}

static tile_fn *tile_of(const struct lanes_format *f)
{
    if (f->has_min)
        return tile_min_32;
    return f->sub == 16 ? tile_scale_16 : tile_scale_32;
}

/* Rows [begin, end), at most MATRIX_ROWS. */
static void panel_quantised(const struct matrix_job *j, int64_t begin, int64_t end,
                            struct group_panel *panel)
{
    const struct lanes_format *f = lanes_format_of(j->w->dtype);
    const int64_t k = j->w->k, stride = (int64_t)matrix_bytes(f->dtype, AVX2_LANES, k);
    const int64_t block_bytes = AVX2_LANES * lanes_block_bytes(f);
    const int groups = (int)((end - begin + AVX2_LANES - 1) / AVX2_LANES);
    tile_fn *const run = tile_of(f);
    for (int64_t k0 = 0; k0 < k; k0 += CHUNK) {
        const int blocks = (int)min_i64(CHUNK, k - k0) / 32;
        for (int g = 0; g < groups; g++) {
            const uint8_t *w =
                j->w->data + (begin / AVX2_LANES + g) * stride + k0 / f->block * block_bytes;
            unpack(f->dtype, w, blocks, &panel[g]);
        }
        for (int64_t c0 = 0; c0 < j->T; c0 += TILE_COLUMNS) {
            const int columns = (int)min_i64(TILE_COLUMNS, j->T - c0);
            struct tile_columns t;
            for (int c = 0; c < columns; c++) {
                t.a[c] = lanes_packed_at(j->packed + (uint64_t)(c0 + c) * j->pack_stride, k);
                t.a[c].q += k0;
                t.a[c].scale += k0 / 32;
                t.a[c].scaled_sum += k0 / 32;
            }
            for (int g = 0; g < groups; g += TILE_GROUPS) {
                const int64_t row = begin + g * AVX2_LANES;
                const __m256i mask[] = {avx2_mask(end - row), avx2_mask(end - row - AVX2_LANES)};
                for (int c = 0; c < columns; c++)
                    t.y[c] = j->y + (c0 + c) * j->y_stride + row;
                run(panel + g, &t, blocks, k0 == 0, mask, (int)min_i64(TILE_GROUPS, groups - g),
                    columns);
            }
        }
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
            panel_quantised(j, r, stop, (struct group_panel *)scratch);
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
