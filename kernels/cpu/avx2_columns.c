/*
 * avx2_columns.c - the sparse MUL_MAT with 256-bit vectors: see lanes_columns.h. Two halves of a
 * tile, the numbers 0 to 31 and 32 to 63, have four vectors of 8 rows each. Products of nibbles are
 * pairs added in 16 bits (vpmaddubsw), exact for 16 columns; bytes are widened to 16 bits.
 */
#include "kernels/cpu/lanes_columns.h"

#include <float.h>

enum { HALVES = 2, VECTORS = 4, WORDS_COLUMNS = 16 };

/* What the compiler knows of a block's work: the type's form, and how many tokens there are. */
struct block_kind {
    int bits, tokens;
    bool half, has_min;
};

/* Half h of a column's tile, signed. */
AVX2_INLINE __m256i bytes_load(const uint8_t *p, int h)
{
    return _mm256_xor_si256(avx2_vector_at(p, h), _mm256_set1_epi8((char)128));
}

/* Words of two vectors to dwords in order, added. */
AVX2_INLINE void words_add(const __m256i words[2], __m256i sum[VECTORS])
{
    UNROLLED (i, 2) {
        const __m256i sign = _mm256_srai_epi16(words[i], 15);
        sum[2 * i] = _mm256_add_epi32(sum[2 * i], _mm256_unpacklo_epi16(words[i], sign));
        sum[2 * i + 1] = _mm256_add_epi32(sum[2 * i + 1], _mm256_unpackhi_epi16(words[i], sign));
    }
}

/* Columns [from, to) of the group, at most WORDS_COLUMNS, times the nibbles of halves [h0, h1). */
AVX2_INLINE void nibbles_dot(const struct block_group *g, int64_t at, int from, int to, int h0,
                             int h1, int tokens, __m256i sum[GROUP][HALVES][VECTORS])
{
    const __m256i low = _mm256_set1_epi8(15);
    __m256i words[GROUP][HALVES][2];
    UNROLLED (t, tokens)
        for (int h = h0; h < h1; h++)
            words[t][h][0] = words[t][h][1] = _mm256_setzero_si256();
    for (int i = from; i < to; i += 2) {
        const __m256i a = avx2_vector_at(g->p[i] + at, 0), b = avx2_vector_at(g->p[i + 1] + at, 0);
        const __m256i both[2] = {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
        for (int h = h0; h < h1; h++)
            UNROLLED (k, 2) {
                const __m256i nibble = h ? _mm256_srli_epi16(both[k], 4) : both[k];
                const __m256i pair = _mm256_and_si256(nibble, low);
                UNROLLED (t, tokens) {
                    int16_t two;
                    memcpy(&two, g->x[t] + i, sizeof two);
                    const __m256i n = _mm256_maddubs_epi16(pair, _mm256_set1_epi16(two));
                    words[t][h][k] = _mm256_add_epi16(words[t][h][k], n);
                }
            }
    }
    UNROLLED (t, tokens)
        for (int h = h0; h < h1; h++)
            words_add(words[t][h], sum[t][h]);
}

AVX2_INLINE void bytes_dot(const struct block_group *g, int64_t at, int h, int tokens,
                           __m256i sum[GROUP][HALVES][VECTORS])
{
    for (int i = 0; i < g->columns; i += 2) {
        const __m256i a = bytes_load(g->p[i] + at, h), b = bytes_load(g->p[i + 1] + at, h);
        UNROLLED (k, 2) {
            const __m256i pair = k ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b);
            const __m256i sign = _mm256_cmpgt_epi8(_mm256_setzero_si256(), pair);
            const __m256i low = _mm256_unpacklo_epi8(pair, sign);
            const __m256i high = _mm256_unpackhi_epi8(pair, sign);
            UNROLLED (t, tokens) {
                const uint32_t first = (uint16_t)g->x[t][i], second = (uint16_t)g->x[t][i + 1];
                const __m256i x = _mm256_set1_epi32((int32_t)(first | second << 16));
                __m256i *n = sum[t][h] + 2 * k;
                n[0] = _mm256_add_epi32(n[0], _mm256_madd_epi16(low, x));
                n[1] = _mm256_add_epi32(n[1], _mm256_madd_epi16(high, x));
            }
        }
    }
}

AVX2_INLINE vec scale_load(bool half, const uint8_t *p, int64_t row)
{
    return half ? vec_load_f16(p + 2 * row) : vec_load(const_floats(p) + row);
}

/* Half a tile's sums to the results. Of the tile after which the thread's rows end, vectors are
 * masked: a masked store is tens of operations on some machines. */
AVX2_INLINE void half_add(const struct columns_work *w, const struct block_list *l,
                          const struct block_group *g, float *const *y, int64_t row,
                          struct block_kind kind, bool whole, __m256i sum[GROUP][HALVES][VECTORS],
                          int h)
{
    UNROLLED (v, VECTORS) {
        const int64_t r = row + 16 * v + LANES * h;
        const __m256i mask = whole ? _mm256_setzero_si256() : avx2_mask(max_i64(w->end - r, 0));
        const vec scale = scale_load(kind.half, l->p, r);
        const vec min = kind.has_min ? scale_load(kind.half, l->p + w->c.scales / 2, r) : scale;
        UNROLLED (t, kind.tokens) {
            const vec step = vec_set(g->step[t]);
            vec acc = whole ? vec_load(y[t] + r) : _mm256_maskload_ps(y[t] + r, mask);
            acc = _mm256_fmadd_ps(step * scale, _mm256_cvtepi32_ps(sum[t][h][v]), acc);
            if (kind.has_min)
                acc = _mm256_fmadd_ps(step * vec_set((float)g->sum[t]), min, acc);
            if (whole)
                vec_store(y[t] + r, acc);
            else
                _mm256_maskstore_ps(y[t] + r, mask, acc);
        }
    }
}

/* Halves [h0, h1) of a tile of one block for a group of tokens. */
AVX2_INLINE void block_halves(const struct columns_work *w, const struct block_list *l,
                              const struct block_group *g, float *const *y, int64_t row, int h0,
                              int h1, struct block_kind kind, bool whole)
{
    const int64_t at = row * kind.bits / 8;
    __m256i sum[GROUP][HALVES][VECTORS];
    UNROLLED (t, kind.tokens)
        UNROLLED (v, VECTORS)
            for (int h = h0; h < h1; h++)
                sum[t][h][v] =
                    _mm256_set1_epi32(kind.bits == 8 ? 0 : -w->c.form->offset * g->sum[t]);
    for (int i = 0; kind.bits == 4 && i < g->columns; i += WORDS_COLUMNS)
        nibbles_dot(g, at, i, i + WORDS_COLUMNS < g->columns ? i + WORDS_COLUMNS : g->columns, h0,
                    h1, kind.tokens, sum);
    for (int h = h0; h < h1; h++) {
        if (kind.bits == 8)
            bytes_dot(g, at, h, kind.tokens, sum);
        half_add(w, l, g, y, row, kind, whole, sum, h);
    }
}

/* Nibbles of both halves are in the same bytes, but the sums of more tokens are too many for the
 * registers. */
AVX2_INLINE void block_tile(const struct columns_work *w, const struct block_list *l,
                            const struct block_group *g, float *const *y, int64_t row,
                            struct block_kind kind, bool whole)
{
    if (kind.bits == 4 && kind.tokens == 1) {
        block_halves(w, l, g, y, row, 0, HALVES, kind, whole);
        return;
    }
    UNROLLED (h, HALVES)
        block_halves(w, l, g, y, row, h, h + 1, kind, whole);
}

AVX2_INLINE void block_rows(const struct columns_work *w, const struct block_list *l,
                            const struct block_group *g, float *const *y,
                            const struct lists_ahead *next, struct block_kind kind)
{
    int64_t row = w->begin;
    for (; row + TILE <= w->end; row += TILE) {
        const struct tile_ahead ahead = tile_ahead(w, next, row, TILE, kind.bits);
        for (int i = 0; i < ahead.columns; i += 4)
            tile_prefetch(&ahead, i, kind.bits);
        block_tile(w, l, g, y, row, kind, true);
    }
    if (row < w->end)
        block_tile(w, l, g, y, row, kind, false);
}

/* Which form of scales a type has is known to the compiler where it counts, for one token. */
AVX2_INLINE void block_tokens(const struct columns_work *w, const struct block_list *l,
                              const struct block_group *g, float *const *y,
                              const struct lists_ahead *next, int bits, int tokens)
{
    const struct columns_form *f = w->c.form;
#define ROWS(tokens, half, has_min)                                                                \
    block_rows(w, l, g, y, next, (struct block_kind){bits, tokens, half, has_min})
    switch (tokens) {
    case 1:
        if (f->half)
            f->has_min ? ROWS(1, true, true) : ROWS(1, true, false);
        else
            f->has_min ? ROWS(1, false, true) : ROWS(1, false, false);
        break;
    case 2: ROWS(2, f->half, f->has_min); break;
    case 3: ROWS(3, f->half, f->has_min); break;
    default: ROWS(4, f->half, f->has_min);
    }
#undef ROWS
}

/* 32 rows of some columns for one token. */
AVX2_INLINE void float_rows(oato_dtype dtype, const struct columns_work *w,
                            const struct float_list *l, int64_t token, int64_t row)
{
    const int64_t elem = dtype == DT_F32 ? 4 : 2;
    float *y = w->y + token * w->j->y_stride + row;
    vec acc[VECTORS];
    __m256i mask[VECTORS];
    UNROLLED (v, VECTORS) {
        mask[v] = avx2_mask(max_i64(w->end - row - LANES * v, 0));
        acc[v] = _mm256_maskload_ps(y + LANES * v, mask[v]);
    }
    for (int i = 0; i < l->columns; i++) {
        const vec x = vec_set(l->x[token][i]);
        UNROLLED (v, VECTORS)
            acc[v] = _mm256_fmadd_ps(vec_load_float(dtype, l->p[i] + (row + LANES * v) * elem), x,
                                     acc[v]);
    }
    UNROLLED (v, VECTORS)
        _mm256_maskstore_ps(y + LANES * v, mask[v], acc[v]);
}

AVX2_INLINE void float_tokens(oato_dtype dtype, const struct columns_work *w,
                              const struct float_list *l, int64_t first, bool prefetches)
{
    const int64_t elem = dtype == DT_F32 ? 4 : 2, last = min_i64(w->T, first + GROUP);
    for (int64_t row = w->begin; row < w->end; row += TILE / 2) {
        if (prefetches)
            floats_prefetch(w, l, row, TILE / 2, elem);
        for (int64_t t = first; t < last; t++)
            float_rows(dtype, w, l, t, row);
    }
}

#include "kernels/cpu/lanes_columns_run.h"

const struct columns_kernels avx2_columns = {
    .numerics = columns_numerics, .scratch_bytes = columns_scratch_bytes, .run = columns_run};
