/*
 * avx512_columns.c - the sparse MUL_MAT with 512-bit vectors and VNNI: see lanes_columns.h. The
 * dwords of a vector are 16 rows in order, four vectors a tile.
 */
#include "kernels/cpu/avx512_internal.h"
#include "kernels/cpu/lanes_columns.h"

#include <float.h>

enum { VECTORS = TILE / LANES, PAIR_TOKENS = 2 /* whose sums of two tiles are in registers */ };

/* The integers of a column's tile. */
AVX2_INLINE __m512i tile_load(const uint8_t *p, int bits)
{
    if (bits == 8)
        return _mm512_loadu_si512(p);
    const __m512i twice =
        _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)p));
    const __m512i shift = _mm512_setr_epi64(0, 0, 0, 0, 4, 4, 4, 4);
    return _mm512_and_si512(_mm512_srlv_epi64(twice, shift), _mm512_set1_epi8(15));
}

/* Bytes of four columns to dwords of a byte of each. */
AVX2_INLINE void quad_turn(const __m512i r[4], __m512i out[VECTORS])
{
    UNROLLED (i, 2) {
        const __m512i ab = i ? _mm512_unpackhi_epi8(r[0], r[1]) : _mm512_unpacklo_epi8(r[0], r[1]);
        const __m512i cd = i ? _mm512_unpackhi_epi8(r[2], r[3]) : _mm512_unpacklo_epi8(r[2], r[3]);
        out[2 * i] = _mm512_unpacklo_epi16(ab, cd);
        out[2 * i + 1] = _mm512_unpackhi_epi16(ab, cd);
    }
}

/* Four columns, from byte `at` on. */
AVX2_INLINE void tile_quad(const uint8_t *const *p, int64_t at, int bits, __m512i out[VECTORS])
{
    __m512i r[4];
    UNROLLED (i, 4)
        r[i] = tile_load(p[i] + at, bits);
    quad_turn(r, out);
}

AVX2_INLINE vec scale_load(const struct columns_form *f, const uint8_t *p, int64_t row)
{
    return f->half ? vec_load_f16(p + 2 * row) : vec_load(const_floats(p) + row);
}

/* The sums of a tile of one block, times their scales, to the results. whole: all its rows are the
 * thread's. */
AVX2_INLINE void tile_add(const struct columns_work *w, const struct block_list *l,
                          const struct block_group *g, float *const *y, int64_t row,
                          __m512i sum[GROUP][VECTORS], int tokens, bool whole)
{
    const struct columns *c = &w->c;
    UNROLLED (v, VECTORS) {
        const __mmask16 mask = whole ? 0xffff : avx512_mask(max_i64(w->end - row - LANES * v, 0));
        const vec scale = scale_load(c->form, l->p, row + LANES * v);
        const vec min =
            c->form->has_min ? scale_load(c->form, l->p + c->scales / 2, row + LANES * v) : scale;
        UNROLLED (t, tokens) {
            float *to = y[t] + row + LANES * v;
            const vec step = vec_set(g->step[t]);
            vec acc = _mm512_maskz_loadu_ps(mask, to);
            acc = _mm512_fmadd_ps(step * scale, _mm512_cvtepi32_ps(sum[t][v]), acc);
            if (c->form->has_min)
                acc = _mm512_fmadd_ps(step * vec_set((float)g->sum[t]), min, acc);
            _mm512_mask_storeu_ps(to, mask, acc);
        }
    }
}

/* A tile of one block for a group of tokens, whose number the compiler knows. */
AVX2_INLINE void block_tile(const struct columns_work *w, const struct block_list *l,
                            const struct block_group *g, float *const *y,
                            const struct lists_ahead *next, int64_t row, int bits, int tokens,
                            bool whole)
{
    __m512i sum[GROUP][VECTORS];
    const struct tile_ahead ahead = tile_ahead(w, next, row, TILE, bits);
    UNROLLED (t, tokens)
        UNROLLED (v, VECTORS)
            sum[t][v] = _mm512_set1_epi32(-w->c.form->offset * g->sum[t]);
    for (int i = 0; i < g->columns; i += 4) {
        __m512i q[VECTORS];
        tile_prefetch(&ahead, i, bits);
        tile_quad(g->p + i, row * bits / 8, bits, q);
        UNROLLED (t, tokens) {
            const __m512i x = avx512_pair_at(g->x[t] + i);
            UNROLLED (v, VECTORS)
                sum[t][v] = _mm512_dpbusd_epi32(sum[t][v], q[v], x);
        }
    }
    for (int i = g->columns; i < ahead.columns; i += 4)
        tile_prefetch(&ahead, i, bits);
    tile_add(w, l, g, y, row, sum, tokens, whole);
}

/* Two whole tiles of nibbles: a vector has a column's low or high ones of both. */
AVX2_INLINE void nibble_tiles(const struct columns_work *w, const struct block_list *l,
                              const struct block_group *g, float *const *y,
                              const struct lists_ahead *next, int64_t row, int tokens)
{
    const __m512i low = _mm512_set1_epi8(15);
    __m512i half[2][PAIR_TOKENS][VECTORS], sum[GROUP][VECTORS];
    const struct tile_ahead ahead = tile_ahead(w, next, row, 2 * TILE, 4);
    UNROLLED (t, tokens)
        UNROLLED (v, VECTORS)
            half[0][t][v] = half[1][t][v] = _mm512_set1_epi32(-w->c.form->offset * g->sum[t]);
    for (int i = 0; i < g->columns; i += 4) {
        __m512i r[4], q[VECTORS];
        tile_prefetch(&ahead, i, 4);
        UNROLLED (j, 4)
            r[j] = _mm512_loadu_si512(g->p[i + j] + row / 2);
        UNROLLED (h, 2) {
            __m512i nibble[4];
            UNROLLED (j, 4)
                nibble[j] = _mm512_and_si512(h ? _mm512_srli_epi16(r[j], 4) : r[j], low);
            quad_turn(nibble, q);
            UNROLLED (t, tokens) {
                const __m512i x = avx512_pair_at(g->x[t] + i);
                UNROLLED (v, VECTORS)
                    half[h][t][v] = _mm512_dpbusd_epi32(half[h][t][v], q[v], x);
            }
        }
    }
    for (int i = g->columns; i < ahead.columns; i += 4)
        tile_prefetch(&ahead, i, 4);
    UNROLLED (tile, 2) {
        UNROLLED (t, tokens)
            UNROLLED (v, VECTORS)
                sum[t][v] = tile ? _mm512_shuffle_i32x4(half[0][t][v], half[1][t][v], 0xee)
                                 : _mm512_shuffle_i32x4(half[0][t][v], half[1][t][v], 0x44);
        tile_add(w, l, g, y, row + TILE * tile, sum, tokens, true);
    }
}

AVX2_INLINE void block_rows(const struct columns_work *w, const struct block_list *l,
                            const struct block_group *g, float *const *y,
                            const struct lists_ahead *next, int bits, int tokens)
{
    int64_t row = w->begin;
    if (bits == 4 && tokens <= PAIR_TOKENS) {
        if (row / TILE % 2 && row + TILE <= w->end) { /* up to a cache line's begin */
            block_tile(w, l, g, y, next, row, bits, tokens, true);
            row += TILE;
        }
        for (; row + 2 * TILE <= w->end; row += 2 * TILE)
            nibble_tiles(w, l, g, y, next, row, tokens);
    }
    for (; row + TILE <= w->end; row += TILE)
        block_tile(w, l, g, y, next, row, bits, tokens, true);
    if (row < w->end)
        block_tile(w, l, g, y, next, row, bits, tokens, false);
}

AVX2_INLINE void block_tokens(const struct columns_work *w, const struct block_list *l,
                              const struct block_group *g, float *const *y,
                              const struct lists_ahead *next, int bits, int tokens)
{
    switch (tokens) {
    case 1: block_rows(w, l, g, y, next, bits, 1); break;
    case 2: block_rows(w, l, g, y, next, bits, 2); break;
    case 3: block_rows(w, l, g, y, next, bits, 3); break;
    default: block_rows(w, l, g, y, next, bits, 4);
    }
}

AVX2_INLINE void float_rows(oato_dtype dtype, const struct columns_work *w,
                            const struct float_list *l, int64_t first, bool prefetches, int tokens)
{
    const int64_t elem = dtype == DT_F32 ? 4 : 2;
    for (int64_t row = w->begin; row < w->end; row += TILE) {
        vec acc[GROUP][VECTORS];
        __mmask16 mask[VECTORS];
        UNROLLED (v, VECTORS) {
            mask[v] = avx512_mask(max_i64(w->end - row - LANES * v, 0));
            UNROLLED (t, tokens)
                acc[t][v] = _mm512_maskz_loadu_ps(mask[v], w->y + (first + t) * w->j->y_stride +
                                                               row + LANES * v);
        }
        if (prefetches)
            floats_prefetch(w, l, row, TILE, elem);
        for (int i = 0; i < l->columns; i++) {
            vec q[VECTORS];
            UNROLLED (v, VECTORS)
                q[v] = vec_load_float(dtype, l->p[i] + (row + LANES * v) * elem);
            UNROLLED (t, tokens) {
                const vec x = vec_set(l->x[first + t][i]);
                UNROLLED (v, VECTORS)
                    acc[t][v] = _mm512_fmadd_ps(q[v], x, acc[t][v]);
            }
        }
        UNROLLED (v, VECTORS)
            UNROLLED (t, tokens)
                _mm512_mask_storeu_ps(w->y + (first + t) * w->j->y_stride + row + LANES * v,
                                      mask[v], acc[t][v]);
    }
}

AVX2_INLINE void float_tokens(oato_dtype dtype, const struct columns_work *w,
                              const struct float_list *l, int64_t first, bool prefetches)
{
    switch (w->T - first) {
    case 1: float_rows(dtype, w, l, first, prefetches, 1); break;
    case 2: float_rows(dtype, w, l, first, prefetches, 2); break;
    case 3: float_rows(dtype, w, l, first, prefetches, 3); break;
    default: float_rows(dtype, w, l, first, prefetches, 4);
    }
}

#include "kernels/cpu/lanes_columns_run.h"

const struct columns_kernels avx512_columns = {
    .numerics = columns_numerics, .scratch_bytes = columns_scratch_bytes, .run = columns_run};
