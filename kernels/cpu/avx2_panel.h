/*
 * avx2_panel.h - a panel of quantised weights unpacked for the tiles of avx2_matrix.h: 256 k of up
 * to 8 groups of 8 rows, as pairs of int16 (class i16b32) or quads of int8 (class u8b32), with a
 * float32 scale for 32 or 16 k. It is done once for all columns; see lanes_layout.c for what
 * is read.
 */
#ifndef OATO_AVX2_PANEL_H
#define OATO_AVX2_PANEL_H

#include "kernels/cpu/avx2_internal.h"

enum {
    PANEL_GROUPS = MATRIX_ROWS / AVX2_LANES,
    CHUNK = 256,
    SCALES = CHUNK / 16,
};

/* What the integers of a panel are. */
enum panel_form {
    PANEL_PAIRS,      /* int16, in order of k */
    PANEL_QUADS,      /* int8, in the order of lanes_bytes.q */
    PANEL_BYTE_PAIRS, /* int16: the first and third bytes of the 8 quads of 32 k, then the others */
};

/* Weights of one group and chunk, ready for the tile. */
struct group_panel {
    union {
        int16_t pair[CHUNK / 2][AVX2_LANES][2];
        int8_t quad[CHUNK / 4][AVX2_LANES][4];
    };
    float scale[SCALES][AVX2_LANES];
    float scaled_sum[SCALES][AVX2_LANES]; /* scale * the sum of the weights; not of PANEL_PAIRS */
    float min[SCALES][AVX2_LANES];
};

/* How a format is unpacked; constants for the compiler. */
struct panel_kind {
    const struct lanes_format *format;
    enum panel_form form;
    int centre; /* quads are this less than the weights, so that more products add up in 16 bits */
};

/* 32 k to the pairs from 16 * b on, or the quads from 8 * b; their scale is there. */
AVX2_INLINE void unpack_pairs(const struct lanes_format *f, const uint8_t *body,
                              struct group_panel *panel, int b)
{
    __m256i x = _mm256_setzero_si256(), high = x;
#pragma GCC unroll 16
    for (int p = 0; p < 16; p++) {
        __m256i words = avx2_pair_words(f, body, p, &x, &high);
        words = _mm256_sub_epi16(words, _mm256_set1_epi16((int16_t)f->offset));
        _mm256_storeu_si256((__m256i *)panel->pair[16 * b + p], words);
    }
}

AVX2_INLINE void put_scaled_sum(struct group_panel *panel, int s, __m256i sum16, int more)
{
    __m256i sum = _mm256_madd_epi16(sum16, _mm256_set1_epi16(1));
    sum = _mm256_add_epi32(sum, _mm256_set1_epi32(more));
    __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(panel->scale[s]), _mm256_cvtepi32_ps(sum));
    _mm256_storeu_ps(panel->scaled_sum[s], scaled);
}

AVX2_INLINE void unpack_quads(const struct panel_kind *kind, const uint8_t *body,
                              struct group_panel *panel, int b)
{
    const struct lanes_format *f = kind->format;
    const __m256i ones = _mm256_set1_epi8(1);
    __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        __m256i q = avx2_quad_bytes(f, body, i);
        q = _mm256_sub_epi8(q, _mm256_set1_epi8((char)(f->offset + kind->centre)));
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(ones, q));
        if (kind->form == PANEL_QUADS) {
            _mm256_storeu_si256((__m256i *)panel->quad[8 * b + i], q);
        } else {
            __m256i first = _mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8);
            _mm256_storeu_si256((__m256i *)panel->pair[16 * b + i], first);
            _mm256_storeu_si256((__m256i *)panel->pair[16 * b + 8 + i], _mm256_srai_epi16(q, 8));
        }
        if ((i + 1) * 4 % f->sub == 0) {
            put_scaled_sum(panel, (8 * b + i) * 4 / f->sub, sum, f->sub * kind->centre);
            sum = _mm256_setzero_si256();
        }
    }
}

AVX2_INLINE void unpack_32(const struct panel_kind *kind, const uint8_t *body,
                           struct group_panel *panel, int b)
{
    if (kind->form == PANEL_PAIRS)
        unpack_pairs(kind->format, body, panel, b);
    else
        unpack_quads(kind, body, panel, b);
}

/* Blocks of 32 along k: `blocks` of them, at most CHUNK / 32. */
AVX2_INLINE void unpack_small(const struct panel_kind *kind, const uint8_t *w, int blocks,
                              struct group_panel *p)
{
    const struct lanes_format *f = kind->format;
    const int head = 8 * f->head, body = 8 * f->body;
    for (int b = 0; b < blocks; b++, w += head + body) {
        _mm256_storeu_ps(p->scale[b], avx2_block_scale(f, w));
        if (f->has_min)
            _mm256_storeu_ps(p->min[b], avx2_load_f16((const uint16_t *)w + 8));
        unpack_32(kind, w + head, p, b);
    }
}

/* One block of 256 along k. Minima of the classes are for other sums: see avx2_block_min. */
AVX2_INLINE void unpack_256(const struct panel_kind *kind, const uint8_t *w, struct group_panel *p)
{
    const struct lanes_format *f = kind->format;
    const __m256 d = avx2_block_scale(f, w), sign = _mm256_set1_ps(-1);
    __m256 dmin = d;
    if (f->has_min)
        dmin = kind->form == PANEL_PAIRS
                   ? avx2_block_min(f, w)
                   : _mm256_mul_ps(avx2_load_f16((const uint16_t *)w + 8), sign);
    for (int i = 0; i < 256 / f->sub; i++) {
        _mm256_storeu_ps(p->scale[i], _mm256_mul_ps(d, avx2_sub_scale(f, w, i)));
        if (f->has_min)
            _mm256_storeu_ps(p->min[i], _mm256_mul_ps(dmin, avx2_sub_min(f, w, i)));
    }
    for (int b = 0; b < 8; b++)
        unpack_32(kind, w + 8 * (f->head + b * f->body), p, b);
}

AVX2_INLINE void unpack_as(const struct lanes_format *f, enum panel_form form, int centre,
                           const uint8_t *w, int blocks, struct group_panel *p)
{
    const struct panel_kind kind = {f, form, centre};
    if (f->block == 32)
        unpack_small(&kind, w, blocks, p);
    else
        unpack_256(&kind, w, p);
}

typedef void unpack_fn(oato_dtype dtype, const uint8_t *w, int blocks, struct group_panel *p);

/* The chunk of a group at w to a panel of class i16b32. */
static void unpack_exact(oato_dtype dtype, const uint8_t *w, int blocks, struct group_panel *p)
{
    const enum panel_form form = PANEL_PAIRS;
    switch (dtype) {
    case DT_Q4_0: unpack_as(&lanes_formats[FORMAT_Q4_0], form, 0, w, blocks, p); break;
    case DT_Q4_1: unpack_as(&lanes_formats[FORMAT_Q4_1], form, 0, w, blocks, p); break;
    case DT_Q5_0: unpack_as(&lanes_formats[FORMAT_Q5_0], form, 0, w, blocks, p); break;
    case DT_Q5_1: unpack_as(&lanes_formats[FORMAT_Q5_1], form, 0, w, blocks, p); break;
    case DT_Q8_0: unpack_as(&lanes_formats[FORMAT_Q8_0], form, 0, w, blocks, p); break;
    case DT_Q4_K: unpack_as(&lanes_formats[FORMAT_Q4_K], form, 0, w, blocks, p); break;
    case DT_Q5_K: unpack_as(&lanes_formats[FORMAT_Q5_K], form, 0, w, blocks, p); break;
    case DT_Q6_K: unpack_as(&lanes_formats[FORMAT_Q6_K], form, 0, w, blocks, p); break;
    case DT_Q2_K: unpack_as(&lanes_formats[FORMAT_Q2_K], form, 0, w, blocks, p); break;
    case DT_Q3_K: unpack_as(&lanes_formats[FORMAT_Q3_K], form, 0, w, blocks, p); break;
    case DT_IQ4_NL: unpack_as(&lanes_formats[FORMAT_IQ4_NL], form, 0, w, blocks, p); break;
    case DT_IQ4_XS: unpack_as(&lanes_formats[FORMAT_IQ4_XS], form, 0, w, blocks, p); break;
    default: unpack_as(&lanes_formats[FORMAT_MXFP4], form, 0, w, blocks, p);
    }
}

/* Of class u8b32. vpmaddubsw adds in 16 bits: unsigned weights are centred, and those of 8 bits
 * become pairs. VNNI takes them as they are. */
#ifdef __AVXVNNI__
enum { CENTRE_4 = 0, CENTRE_5 = 0 };
static const enum panel_form form_8 = PANEL_QUADS;
#else
enum { CENTRE_4 = 8, CENTRE_5 = 16 };
static const enum panel_form form_8 = PANEL_BYTE_PAIRS;
#endif

static void unpack_fast(oato_dtype dtype, const uint8_t *w, int blocks, struct group_panel *p)
{
    const enum panel_form form = PANEL_QUADS;
    switch (dtype) {
    case DT_Q4_0: unpack_as(&lanes_formats[FORMAT_Q4_0], form, 0, w, blocks, p); break;
    case DT_Q4_1: unpack_as(&lanes_formats[FORMAT_Q4_1], form, CENTRE_4, w, blocks, p); break;
    case DT_Q5_0: unpack_as(&lanes_formats[FORMAT_Q5_0], form, 0, w, blocks, p); break;
    case DT_Q5_1: unpack_as(&lanes_formats[FORMAT_Q5_1], form, CENTRE_5, w, blocks, p); break;
    case DT_Q8_0: unpack_as(&lanes_formats[FORMAT_Q8_0], form_8, 0, w, blocks, p); break;
    case DT_Q4_K: unpack_as(&lanes_formats[FORMAT_Q4_K], form, CENTRE_4, w, blocks, p); break;
    case DT_Q5_K: unpack_as(&lanes_formats[FORMAT_Q5_K], form, CENTRE_5, w, blocks, p); break;
    case DT_Q6_K: unpack_as(&lanes_formats[FORMAT_Q6_K], form, 0, w, blocks, p); break;
    case DT_Q2_K: unpack_as(&lanes_formats[FORMAT_Q2_K], form, 0, w, blocks, p); break;
    case DT_Q3_K: unpack_as(&lanes_formats[FORMAT_Q3_K], form, 0, w, blocks, p); break;
    case DT_IQ4_NL: unpack_as(&lanes_formats[FORMAT_IQ4_NL], form_8, 0, w, blocks, p); break;
    case DT_IQ4_XS: unpack_as(&lanes_formats[FORMAT_IQ4_XS], form_8, 0, w, blocks, p); break;
    default: unpack_as(&lanes_formats[FORMAT_MXFP4], form, 0, w, blocks, p);
    }
}

#endif
