/*
 * lanes_rows.h - the layout of WEIGHT_ROWS, see lanes_rows.c: shared by what makes groups of listed
 * rows.
 */
#ifndef OATO_LANES_ROWS_H
#define OATO_LANES_ROWS_H

#include "kernels/cpu/avx2_internal.h"

enum { LINE = 64 };

/* A type whose rows are taken apart; else NULL. */
static inline const struct lanes_format *rows_format(oato_dtype dtype)
{
    const struct lanes_format *f = lanes_format_of(dtype);
    return f && !f->grid ? f : NULL;
}

/* Bytes of a row's heads; dwords of its bodies, which follow. */
static inline int64_t rows_heads(const struct lanes_format *f, int64_t k)
{
    return (int64_t)size_align((size_t)(k / f->block * f->head), LINE);
}

static inline int64_t rows_dwords(const struct lanes_format *f, int64_t k)
{
    return k / 32 * f->body / 4;
}

/* How many of a row's dwords lie so that each 8 of them are of 8 blocks: nibbles at 8 lanes. */
static inline int64_t rows_mixed(const struct lanes_format *f, int lanes, int64_t k)
{
    return lanes == 8 && f->body == LANES_NIBBLES ? k / 256 * 32 : 0;
}

/* F16 numbers of a head; bytes follow. */
static inline int rows_halves(const struct lanes_format *f)
{
    return f->dtype == DT_MXFP4 || f->dtype == DT_NVFP4 ? 0 : f->has_min ? 2 : 1;
}

/* Between a row's head and its lane of a group's. */
AVX2_INLINE void rows_head_copy(const struct lanes_format *f, uint8_t *row, uint8_t *group,
                                int lane, int lanes, bool to_row)
{
    const int halves = rows_halves(f);
    for (int i = 0; i < halves; i++) {
        uint8_t *in = group + 2 * (lanes * i + lane);
        memcpy(to_row ? row + 2 * i : in, to_row ? in : row + 2 * i, 2);
    }
    for (int i = 2 * halves; i < f->head; i++) {
        uint8_t *in = group + lanes * i + lane;
        *(to_row ? row + i : in) = to_row ? *in : row[i];
    }
}

/* Dwords of eight rows become vectors of a dword of each. */
AVX2_INLINE void lanes_dwords_turn(__m256i x[8])
{
    __m256i pair[8], four[8];
    UNROLLED (i, 4) {
        pair[i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);     /* dwords 0 1 | 4 5 */
        pair[4 + i] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]); /* 2 3 | 6 7 */
    }
    UNROLLED (i, 4) { /* rows 0..3 of dword i | i + 4, then rows 4..7 */
        const __m256i *p = pair + i / 2 * 4;
        four[i] = i % 2 ? _mm256_unpackhi_epi64(p[0], p[1]) : _mm256_unpacklo_epi64(p[0], p[1]);
        four[4 + i] = i % 2 ? _mm256_unpackhi_epi64(p[2], p[3]) : _mm256_unpacklo_epi64(p[2], p[3]);
    }
    UNROLLED (i, 4) {
        x[i] = _mm256_permute2x128_si256(four[i], four[4 + i], 0x20);
        x[4 + i] = _mm256_permute2x128_si256(four[i], four[4 + i], 0x31);
    }
}

/* Words of eight rows, eight of each, become vectors of a word of each. */
AVX2_INLINE void lanes_words_turn(__m128i x[8])
{
    __m128i pair[8], four[8];
    UNROLLED (i, 4) {
        pair[i] = _mm_unpacklo_epi16(x[2 * i], x[2 * i + 1]);     /* words 0..3 */
        pair[4 + i] = _mm_unpackhi_epi16(x[2 * i], x[2 * i + 1]); /* 4..7 */
    }
    UNROLLED (i, 4) { /* words 0 1, 2 3 of rows 0..3, of rows 4..7; then words 4 5, 6 7 */
        const __m128i *p = pair + i / 2 * 4 + i % 2 * 2;
        four[2 * i] = _mm_unpacklo_epi32(p[0], p[1]);
        four[2 * i + 1] = _mm_unpackhi_epi32(p[0], p[1]);
    }
    UNROLLED (i, 4) {
        const __m128i *p = four + i / 2 * 4 + i % 2;
        x[2 * i] = _mm_unpacklo_epi64(p[0], p[2]);
        x[2 * i + 1] = _mm_unpackhi_epi64(p[0], p[2]);
    }
}

/* The rows of a group, and of the one after it. */
struct rows_group {
    const uint8_t *at[LANES_MAX], *next[LANES_MAX];
    int64_t bytes; /* of a row */
};

/* `lanes` rows of the list from number i on, and those `step` later; a last group repeats its last
 * row. */
static inline struct rows_group rows_group(const struct oato_weight *w, const struct rows_list *l,
                                           int64_t i, int lanes, int64_t step)
{
    struct rows_group g = {.bytes = (int64_t)lanes_rows_stride(w->dtype, w->k)};
    for (int r = 0; r < LANES_MAX; r++) {
        const int64_t at = i + r % lanes;
        g.at[r] = w->data + l->list[min_i64(at, l->n - 1)] * g.bytes;
        g.next[r] = w->data + l->list[min_i64(at + step, l->n + l->after - 1)] * g.bytes;
    }
    return g;
}

#endif
