/*
 * avx2_columns.c - the sparse MUL_MAT with 256-bit vectors: see lanes_columns.h. Two halves of a
 * tile, the numbers 0 to 31 and 32 to 63, have four vectors of 8 rows each. Products of nibbles are
 * pairs added in 16 bits (vpmaddubsw), exact for 16 columns; bytes are widened to 16 bits.
 */
#include "kernels/cpu/lanes_columns.h"

#include <float.h>

enum { HALVES = 2, VECTORS = 4, WORDS_COLUMNS = 16 };

/* Half h of a column's tile: of integers of 4 bits as they are, of 8 bits signed. */
AVX2_INLINE __m256i half_load(const uint8_t *p, int bits, int h)
{
    if (bits == 8)
        return _mm256_xor_si256(avx2_vector_at(p, h), _mm256_set1_epi8((char)128));
    const __m256i x = avx2_vector_at(p, 0);
    return _mm256_and_si256(h ? _mm256_srli_epi16(x, 4) : x, _mm256_set1_epi8(15));
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

/* Columns [from, to) of the group, at most WORDS_COLUMNS, times nibbles. */
AVX2_INLINE void nibbles_dot(const struct block_group *g, int64_t at, int from, int to, int h,
                             int tokens, __m256i sum[GROUP][VECTORS])
{
    __m256i words[GROUP][2];
    UNROLLED (t, tokens)
        words[t][0] = words[t][1] = _mm256_setzero_si256();
    for (int i = from; i < to; i += 2) {
        const __m256i a = half_load(g->p[i] + at, 4, h);
        const __m256i b = half_load(g->p[i + 1] + at, 4, h);
        const __m256i pair[2] = {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
        UNROLLED (t, tokens) {
            int16_t two;
            memcpy(&two, g->x[t] + i, sizeof two);
            const __m256i x = _mm256_set1_epi16(two);
            UNROLLED (k, 2)
                words[t][k] = _mm256_add_epi16(words[t][k], _mm256_maddubs_epi16(pair[k], x));
        }
    }
    UNROLLED (t, tokens)
        words_add(words[t], sum[t]);
}

AVX2_INLINE void bytes_dot(const struct block_group *g, int64_t at, int h, int tokens,
                           __m256i sum[GROUP][VECTORS])
{
    for (int i = 0; i < g->columns; i += 2) {
        const __m256i a = half_load(g->p[i] + at, 8, h);
        const __m256i b = half_load(g->p[i + 1] + at, 8, h);
        UNROLLED (k, 2) {
            const __m256i pair = k ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b);
            const __m256i sign = _mm256_cmpgt_epi8(_mm256_setzero_si256(), pair);
            const __m256i low = _mm256_unpacklo_epi8(pair, sign);
            const __m256i high = _mm256_unpackhi_epi8(pair, sign);
            UNROLLED (t, tokens) {
                const uint32_t first = (uint16_t)g->x[t][i], second = (uint16_t)g->x[t][i + 1];
                const __m256i x = _mm256_set1_epi32((int32_t)(first | second << 16));
                sum[t][2 * k] = _mm256_add_epi32(sum[t][2 * k], _mm256_madd_epi16(low, x));
                sum[t][2 * k + 1] = _mm256_add_epi32(sum[t][2 * k + 1], _mm256_madd_epi16(high, x));
            }
        }
    }
}

AVX2_INLINE vec scale_load(const struct columns_form *f, const uint8_t *p, int64_t row)
{
    return f->half ? vec_load_f16(p + 2 * row) : vec_load(const_floats(p) + row);
}

/* Half a tile of one block for a group of tokens, whose number the compiler knows. */
AVX2_INLINE void block_half(const struct columns_work *w, const struct block_list *l,
                            const struct block_group *g, float *const *y, int64_t row, int bits,
                            int h, int tokens)
{
    const struct columns *c = &w->c;
    const int64_t at = row * bits / 8;
    __m256i sum[GROUP][VECTORS];
    UNROLLED (t, tokens)
        UNROLLED (v, VECTORS)
            sum[t][v] = _mm256_set1_epi32(bits == 8 ? 0 : -c->form->offset * g->sum[t]);
    if (bits == 8)
        bytes_dot(g, at, h, tokens, sum);
    for (int i = 0; bits == 4 && i < g->columns; i += WORDS_COLUMNS)
        nibbles_dot(g, at, i, i + WORDS_COLUMNS < g->columns ? i + WORDS_COLUMNS : g->columns, h,
                    tokens, sum);
    UNROLLED (v, VECTORS) {
        const int64_t r = row + 16 * v + LANES * h;
        const __m256i mask = avx2_mask(max_i64(w->end - r, 0));
        const vec scale = scale_load(c->form, l->p, r);
        const vec min = c->form->has_min ? scale_load(c->form, l->p + c->scales / 2, r) : scale;
        UNROLLED (t, tokens) {
            const vec step = vec_set(g->step[t]);
            vec acc = _mm256_maskload_ps(y[t] + r, mask);
            acc = _mm256_fmadd_ps(step * scale, _mm256_cvtepi32_ps(sum[t][v]), acc);
            if (c->form->has_min)
                acc = _mm256_fmadd_ps(step * vec_set((float)g->sum[t]), min, acc);
            _mm256_maskstore_ps(y[t] + r, mask, acc);
        }
    }
}

AVX2_INLINE void block_rows(const struct columns_work *w, const struct block_list *l,
                            const struct block_group *g, float *const *y,
                            const struct lists_ahead *next, int bits, int tokens)
{
    for (int64_t row = w->begin; row < w->end; row += TILE) {
        const struct tile_ahead ahead = tile_ahead(w, next, row, TILE, bits);
        for (int i = 0; i < ahead.columns; i += 4)
            tile_prefetch(&ahead, i, bits);
        UNROLLED (h, HALVES)
            block_half(w, l, g, y, row, bits, h, tokens);
    }
}

static void integers_rows(const struct columns_work *w, const struct block_list *l,
                          const struct block_group *g, int64_t t, const struct lists_ahead *next)
{
    float *y[GROUP];
    for (int i = 0; i < GROUP; i++)
        y[i] = w->y + (t + i) * w->j->y_stride;
    const bool nibbles = w->c.form->bits == 4;
    switch (min_i64(GROUP, w->T - t)) {
    case 1:
        nibbles ? block_rows(w, l, g, y, next, 4, 1) : block_rows(w, l, g, y, next, 8, 1);
        break;
    case 2:
        nibbles ? block_rows(w, l, g, y, next, 4, 2) : block_rows(w, l, g, y, next, 8, 2);
        break;
    case 3:
        nibbles ? block_rows(w, l, g, y, next, 4, 3) : block_rows(w, l, g, y, next, 8, 3);
        break;
    default: nibbles ? block_rows(w, l, g, y, next, 4, 4) : block_rows(w, l, g, y, next, 8, 4);
    }
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
