/*
 * avx2_float.h - F32, F16 and BF16 weights times columns, for avx2.c and avxvnni.c. One column
 * takes the weights as they stream by, more share them:
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each 256 of k                                  weights -> float32 in L1/L2 (64 KiB), once
 *       for each 6 columns                               their 256 inputs stay in L1
 *         for each 2 groups of 8 rows                    12 accumulators in registers
 *
 * Between chunks of k the sums rest in y: each row is one chain of fused multiply-adds in order of
 * k, whatever T.
 */
#ifndef OATO_AVX2_FLOAT_H
#define OATO_AVX2_FLOAT_H

#include "kernels/cpu/avx2_panel.h"

enum {
    TILE_COLUMNS_FLOAT = 6, /* 12 sums, 2 weights, an input */
    FLOAT_GROUPS = 4,       /* or 3 columns of 4 groups */
};

struct float_panel {
    float k[CHUNK][AVX2_LANES];
};

AVX2_INLINE __m256 load_lanes(oato_dtype dtype, const uint8_t *w, int64_t i)
{
    if (dtype == DT_F32)
        return _mm256_loadu_ps(const_floats(w) + 8 * i);
    if (dtype == DT_F16)
        return avx2_load_f16((const uint16_t *)w + 8 * i);
    return avx2_load_bf16((const uint16_t *)w + 8 * i);
}

/* One chain of multiply-adds along k for each row; four groups hide its latency. */
AVX2_INLINE void groups_float(oato_dtype dtype, const uint8_t *w, int64_t stride, int64_t k,
                              const float *x, int groups, __m256 *out)
{
    __m256 acc[4];
    for (int g = 0; g < groups; g++)
        acc[g] = _mm256_setzero_ps();
    for (int64_t i = 0; i < k; i++) {
        __m256 v = _mm256_set1_ps(x[i]);
        for (int g = 0; g < groups; g++)
            acc[g] = _mm256_fmadd_ps(load_lanes(dtype, w + g * stride, i), v, acc[g]);
    }
    for (int g = 0; g < groups; g++)
        out[g] = acc[g];
}

static void float_1(oato_dtype dtype, const uint8_t *w, int64_t stride, int64_t k, const float *x,
                    __m256 *out)
{
    switch (dtype) {
    case DT_F32: groups_float(DT_F32, w, stride, k, x, 1, out); break;
    case DT_F16: groups_float(DT_F16, w, stride, k, x, 1, out); break;
    default: groups_float(DT_BF16, w, stride, k, x, 1, out);
    }
}

static void float_4(oato_dtype dtype, const uint8_t *w, int64_t stride, int64_t k, const float *x,
                    __m256 *out)
{
    switch (dtype) {
    case DT_F32: groups_float(DT_F32, w, stride, k, x, 4, out); break;
    case DT_F16: groups_float(DT_F16, w, stride, k, x, 4, out); break;
    default: groups_float(DT_BF16, w, stride, k, x, 4, out);
    }
}

static void vector_float(const struct matrix_job *j, int64_t begin, int64_t end)
{
    const oato_dtype dtype = j->w->dtype;
    const int64_t k = j->w->k,
                  stride = (int64_t)lanes_matrix_bytes(AVX2_LANES, dtype, AVX2_LANES, k);
    for (int64_t r = begin; r < end;) {
        const uint8_t *w = j->w->data + r / AVX2_LANES * stride;
        const int groups = end - r >= 4 * AVX2_LANES ? 4 : 1;
        __m256 y[4];
        (groups == 4 ? float_4 : float_1)(dtype, w, stride, k, j->x, y);
        for (int g = 0; g < groups; g++, r += AVX2_LANES)
            _mm256_maskstore_ps(j->y + r, avx2_mask(end - r), y[g]);
    }
}

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
    const int64_t group_bytes = (int64_t)lanes_matrix_bytes(AVX2_LANES, j->w->dtype, AVX2_LANES, k);
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

#endif
