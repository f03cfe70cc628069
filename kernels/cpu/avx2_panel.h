/*
 * avx2_panel.h - a panel of quantised weights unpacked for the tiles of avx2_matrix.h: 256 k of up
 * to 8 groups of 8 rows, as quads of int8 with a float32 scale for 32 or 16 k. It is done once for
 * all columns; see lanes_layout.c for what is read.
 */
#ifndef OATO_AVX2_PANEL_H
#define OATO_AVX2_PANEL_H

#include "kernels/cpu/avx2_quads.h"

enum {
    PANEL_GROUPS = MATRIX_ROWS / LANES,
    CHUNK = 256,
    SCALES = CHUNK / 16,
};

/* Weights of one group and chunk, ready for the tile. */
struct group_panel {
    int8_t quad[CHUNK / 4][LANES][4]; /* in the order of lanes_bytes.q */
    float scale[SCALES][LANES];
    float scaled_sum[SCALES][LANES]; /* scale * the sum of the weights */
    float min[SCALES][LANES];
};

AVX2_INLINE void put_scaled_sum(struct group_panel *panel, int s, __m256i sum16, int more)
{
    __m256i sum = _mm256_madd_epi16(sum16, _mm256_set1_epi16(1));
    sum = _mm256_add_epi32(sum, _mm256_set1_epi32(more));
    __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(panel->scale[s]), _mm256_cvtepi32_ps(sum));
    _mm256_storeu_ps(panel->scaled_sum[s], scaled);
}

/* 32 k to the quads from 8 * b on; their scale is there. */
AVX2_INLINE void unpack_32(const struct lanes_format *f, int centre, const uint8_t *body,
                           struct group_panel *panel, int b)
{
    const __m256i ones = _mm256_set1_epi8(1);
    __m256i sum = _mm256_setzero_si256();
    struct grid_words grid = {sum, sum, sum};
    UNROLLED (i, 8) {
        __m256i q = avx2_quad_bytes(f, body, i, &grid);
        q = _mm256_sub_epi8(q, _mm256_set1_epi8((char)(f->offset + centre)));
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, q));
        _mm256_storeu_si256((__m256i *)panel->quad[8 * b + i], q);
        if ((i + 1) * 4 % f->sub == 0) {
            put_scaled_sum(panel, (8 * b + i) * 4 / f->sub, sum, f->sub * centre);
            sum = _mm256_setzero_si256();
        }
    }
}

/* A block along k, whose first 32 are number b of the panel. */
AVX2_INLINE void unpack_block(const struct lanes_format *f, int centre, const uint8_t *w,
                              struct group_panel *p, int b)
{
    uint8_t room[SUBS_BYTES];
    const struct block_head head = block_head(f, w, room);
    const int first = b * (32 / f->sub);
    for (int i = 0; i < f->block / f->sub; i++) {
        vec_store(p->scale[first + i], sub_scale(f, &head, i));
        if (f->has_min)
            vec_store(p->min[first + i], sub_min(f, &head, i));
    }
    for (int i = 0; i < f->block / 32; i++)
        unpack_32(f, centre, w + LANES * (f->head + i * f->body), p, b + i);
}

/* What is taken from unsigned weights, and given back to the sums, so that more products add up in
 * 16 bits. VNNI takes them as they are. */
#ifdef __AVXVNNI__
enum { CENTRE_4 = 0, CENTRE_5 = 0 };
#else
enum { CENTRE_4 = 8, CENTRE_5 = 16 };
#endif

AVX2_INLINE void unpack_as(const struct lanes_format *f, const uint8_t *w, int blocks,
                           struct group_panel *p)
{
    const int centre = !f->has_min || f->sub == 16 ? 0 : f->high ? CENTRE_5 : CENTRE_4;
    const int64_t bytes = LANES * lanes_block_bytes(f);
    for (int b = 0; b < blocks; b += f->block / 32, w += bytes)
        unpack_block(f, centre, w, p, b);
}

/* The chunk of a group at w. */
static void panel_unpack(oato_dtype dtype, const uint8_t *w, int blocks, struct group_panel *p)
{
#define UNPACK(type, ...)                                                                          \
    case DT_##type: unpack_as(&lanes_##type, w, blocks, p); break;
    switch ((int)dtype) {
        BLOCK_TYPES(UNPACK)
    }
#undef UNPACK
}

#endif
