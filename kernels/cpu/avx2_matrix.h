/*
 * avx2_matrix.h - quantised matrix times many columns, and which kernel serves which T, for avx2.c
 * and avxvnni.c.
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each 252 columns                               their sums rest in 64 KiB of L2
 *       for each 256 of k                                weights of the panel -> int16, 32 KiB, or
 *                                                        int8, 16 KiB of L1/L2, once
 *         for each 3 columns                             their 512 or 384 bytes each stay in L1
 *           for each 4 groups of 8 rows                  12 integer accumulators in registers
 *
 * Unpacking, scales and loads are shared by the columns. Each 32 k end in a conversion, a
 * multiplication of the scales and one to three multiply-adds of the float32 sums in L1: storing
 * loses nothing, so each row is the same chain of fused multiply-adds in order of k as in
 * avx2_vector.h. The sums are not in y before the end, because its columns may lie in few sets of
 * the caches.
 *
 * Class i16b32: vpmaddwd and vpaddd, or vpdpwssd. Class u8b32: vpdpbusd, or vpmaddubsw, whose
 * products of bytes by weights of 4, 5 and 6 bits are added up in 16 bits by 8, 4 and 2: no sum of
 * 2 * 255 * 8 * 8 overflows. Weights of 8 bits would, so they are multiplied as words.
 * Measured at T = 512 on a Zen 5 core, where multiplications and multiply-adds share two pipes:
 * i16b32 81 % of the peak of its instructions; u8b32 275 GOP/s for Q4_0 (of 332 that the pipes
 * allow), with VNNI 291 (of 363).
 */
#ifndef OATO_AVX2_MATRIX_H
#define OATO_AVX2_MATRIX_H

#include "kernels/cpu/avx2_float.h"
#include "kernels/cpu/avx2_panel.h"
#include "kernels/cpu/avx2_vector.h"

enum {
    TILE_GROUPS = 4,
    TILE_COLUMNS = 3,   /* 12 sums, an input, weights, a product of 16 registers */
    COLUMN_BLOCK = 252, /* 84 tiles */
};

/* Pairs or quads of a tile's loop at once: all, but sanitizers check each access in lines that take
 * minutes to compile. */
#ifdef __SANITIZE_ADDRESS__
enum { TILE_UNROLL = 1 };
#else
enum { TILE_UNROLL = 16 };
#endif

struct panel_scratch {
    struct group_panel panel[PANEL_GROUPS];
    float y[COLUMN_BLOCK][MATRIX_ROWS];
    int16_t words[TILE_COLUMNS][CHUNK]; /* inputs of PANEL_BYTE_PAIRS */
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
    if (lanes_format_of(dtype))
        return sizeof(struct panel_scratch);
    return dtype == DT_F32 ? 0 : PANEL_GROUPS * sizeof(struct float_panel);
}

/* ---------------------------------------------------------------------------------- tiles - */

/* Up to 4 groups and 3 columns: their weights, inputs and sums. */
struct tile {
    const struct group_panel *panel; /* of the first group */
    int blocks;                      /* of 32 k */
    const uint8_t *x;                /* packed inputs of the chunk: int16, or lanes_bytes */
    int64_t stride;                  /* bytes from a column to the next */
    int64_t scale_at, sum_at;        /* int16: bytes from x to the scale of the chunk's first block,
                                        and to scale * sum or, for minima of 16, to -8 * sum */
    const int16_t *words;            /* PANEL_BYTE_PAIRS: the bytes, [column][CHUNK] */
    float *y;                        /* [column][MATRIX_ROWS] */
};

/* What a tile computes; constants for the compiler. */
struct tile_kind {
    bool fast; /* class u8b32 */
    enum panel_form form;
    int sub;    /* elements that share a scale */
    int fit;    /* quads whose products add up in 16 bits */
    int centre; /* what was taken from the weights */
    bool has_min;
};

typedef __m256i tile_sums[TILE_COLUMNS][TILE_GROUPS];

AVX2_INLINE float float_at(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* Without this gcc turns the chain of exact additions into a tree, whose leaves are more than there
 * are registers. */
AVX2_INLINE void keep_chain(__m256i *sum)
{
    __asm__("" : "+x"(*sum));
}

/* `sub` elements of int16 from element `at` of the chunk on. */
AVX2_INLINE void dot_pairs(const struct tile *t, int at, int groups, int columns,
                           const struct tile_kind *kind, tile_sums sum)
{
    const bool bytes = kind->form == PANEL_BYTE_PAIRS;
    const int64_t stride = bytes ? CHUNK * (int64_t)sizeof(int16_t) : t->stride;
    const uint8_t *x = (bytes ? (const uint8_t *)t->words : t->x) + 2 * at;
#pragma GCC unroll TILE_UNROLL
    for (int i = 0; i < kind->sub / 2; i++) {
        __m256i w[TILE_GROUPS];
#pragma GCC unroll 4
        for (int g = 0; g < groups; g++)
            w[g] = _mm256_loadu_si256((const __m256i *)t->panel[g].pair[at / 2 + i]);
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) {
            __m256i v = avx2_pair_at(x + c * stride + 4 * i);
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++) {
                sum[c][g] = avx2_dot(i ? sum[c][g] : _mm256_setzero_si256(), w[g], v);
                keep_chain(&sum[c][g]);
            }
        }
    }
}

/* The sums of one quad, or of `fit` of them from quad i on. */
AVX2_INLINE void dot_quads(const struct tile *t, int at, int groups, int columns,
                           const struct tile_kind *kind, tile_sums sum)
{
    const uint8_t *x = t->x + at / 32 * (int)sizeof(struct lanes_bytes) + at % 32;
#ifndef __AVXVNNI__
    const __m256i ones = _mm256_set1_epi16(1);
    tile_sums words;
#endif
#pragma GCC unroll TILE_UNROLL
    for (int i = 0; i < kind->sub / 4; i++) {
        __m256i w[TILE_GROUPS];
#pragma GCC unroll 4
        for (int g = 0; g < groups; g++)
            w[g] = _mm256_loadu_si256((const __m256i *)t->panel[g].quad[at / 4 + i]);
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) {
            __m256i v = avx2_pair_at(x + c * t->stride + 4 * i);
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++) {
#ifdef __AVXVNNI__
                sum[c][g] =
                    _mm256_dpbusd_avx_epi32(i ? sum[c][g] : _mm256_setzero_si256(), v, w[g]);
                keep_chain(&sum[c][g]);
#else
                const int part = i % kind->fit;
                __m256i product = _mm256_maddubs_epi16(v, w[g]);
                words[c][g] = part ? _mm256_add_epi16(words[c][g], product) : product;
                keep_chain(&words[c][g]);
                if (part == kind->fit - 1) {
                    product = _mm256_madd_epi16(words[c][g], ones);
                    sum[c][g] = i < kind->fit ? product : _mm256_add_epi32(sum[c][g], product);
                }
#endif
            }
        }
    }
    if (kind->centre) {
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) {
            __m256i total = avx2_pair_at(x + c * t->stride + offsetof(struct lanes_bytes, total));
            total = _mm256_slli_epi32(total, kind->centre == 8 ? 3 : 4);
#pragma GCC unroll 4
            for (int g = 0; g < groups; g++)
                sum[c][g] = _mm256_add_epi32(sum[c][g], total);
        }
    }
}

/* What an input of int16 brings for minimum s: scale * sum, or scale * (-8 * sum of 16). */
AVX2_INLINE float min_input(const struct tile *t, const uint8_t *x, int s, int sub)
{
    int32_t minus8_sum;
    if (sub == 32)
        return float_at(x + t->sum_at + 4 * s);
    memcpy(&minus8_sum, x + t->sum_at + 4 * s, sizeof minus8_sum);
    return float_at(x + t->scale_at + 4 * (s / 2)) * (float)minus8_sum;
}

/* The sums of what shares scale s to the results of column c: see the classes. */
AVX2_INLINE void apply_exact(const struct tile *t, int s, int c, int groups,
                             const struct tile_kind *kind, const __m256i *sum)
{
    const uint8_t *x = t->x + c * t->stride;
    const __m256 input_scale = _mm256_set1_ps(float_at(x + t->scale_at + 4 * (s * kind->sub / 32)));
    const __m256 sums = _mm256_set1_ps(kind->has_min ? min_input(t, x, s, kind->sub) : 0);
#pragma GCC unroll 4
    for (int g = 0; g < groups; g++) {
        float *y = t->y + c * MATRIX_ROWS + g * AVX2_LANES;
        __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(t->panel[g].scale[s]), input_scale);
        __m256 acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[g]), _mm256_loadu_ps(y));
        if (kind->has_min)
            acc = _mm256_fmadd_ps(_mm256_loadu_ps(t->panel[g].min[s]), sums, acc);
        _mm256_storeu_ps(y, acc);
    }
}

AVX2_INLINE void apply_fast(const struct tile *t, int s, int c, int groups,
                            const struct tile_kind *kind, const __m256i *sum)
{
    const struct lanes_bytes *in =
        (const struct lanes_bytes *)(t->x + c * t->stride) + s * kind->sub / 32;
    const __m256 step = _mm256_set1_ps(in->step), min = _mm256_set1_ps(in->min);
    const __m256 sums = _mm256_set1_ps(!kind->has_min    ? 0
                                       : kind->sub == 32 ? in->sum
                                                         : lanes_bytes_half(in, s % 2));
#pragma GCC unroll 4
    for (int g = 0; g < groups; g++) {
        float *y = t->y + c * MATRIX_ROWS + g * AVX2_LANES;
        __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(t->panel[g].scale[s]), step);
        __m256 acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[g]), _mm256_loadu_ps(y));
        acc = _mm256_fmadd_ps(min, _mm256_loadu_ps(t->panel[g].scaled_sum[s]), acc);
        if (kind->has_min)
            acc = _mm256_fmadd_ps(_mm256_loadu_ps(t->panel[g].min[s]), sums, acc);
        _mm256_storeu_ps(y, acc);
    }
}

/* groups x columns x 8 sums over all blocks. */
AVX2_INLINE void tile(const struct tile *t, int groups, int columns, const struct tile_kind *kind)
{
    for (int s = 0; s < t->blocks * (32 / kind->sub); s++) {
        tile_sums sum;
        if (kind->form == PANEL_QUADS)
            dot_quads(t, s * kind->sub, groups, columns, kind, sum);
        else
            dot_pairs(t, s * kind->sub, groups, columns, kind, sum);
#pragma GCC unroll 3
        for (int c = 0; c < columns; c++) {
            if (kind->fast)
                apply_fast(t, s, c, groups, kind, sum[c]);
            else
                apply_exact(t, s, c, groups, kind, sum[c]);
        }
    }
}

/* The tile with its shape known to the compiler; groups: 4 or 1. */
AVX2_INLINE void tile_shapes(const struct tile *t, int groups, int columns, struct tile_kind kind)
{
    switch (groups == TILE_GROUPS ? 3 + columns : columns) {
    case 6: tile(t, 4, 3, &kind); break;
    case 5: tile(t, 4, 2, &kind); break;
    case 4: tile(t, 4, 1, &kind); break;
    case 3: tile(t, 1, 3, &kind); break;
    case 2: tile(t, 1, 2, &kind); break;
    default: tile(t, 1, 1, &kind);
    }
}

typedef void tile_fn(const struct tile *t, int groups, int columns);

static void exact_32(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){false, PANEL_PAIRS, 32, 0, 0, false});
}

static void exact_32_min(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){false, PANEL_PAIRS, 32, 0, 0, true});
}

static void exact_16(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){false, PANEL_PAIRS, 16, 0, 0, false});
}

static void exact_16_min(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){false, PANEL_PAIRS, 16, 0, 0, true});
}

static void fast_2_min(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){true, PANEL_QUADS, 16, 4, 0, true});
}

static void fast_3(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){true, PANEL_QUADS, 16, 4, 0, false});
}

static void fast_4(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){true, PANEL_QUADS, 32, 8, 0, false});
}

static void fast_4_min(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){true, PANEL_QUADS, 32, 8, CENTRE_4, true});
}

static void fast_6(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){true, PANEL_QUADS, 16, 2, 0, false});
}

static void fast_5(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){true, PANEL_QUADS, 32, 4, 0, false});
}

static void fast_5_min(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){true, PANEL_QUADS, 32, 4, CENTRE_5, true});
}

static void fast_8(const struct tile *t, int groups, int columns)
{
    tile_shapes(t, groups, columns, (struct tile_kind){true, form_8, 32, 0, 0, false});
}

static const struct {
    tile_fn *exact, *fast;
} tiles_of[FORMAT_COUNT] = {
    [FORMAT_Q4_0] = {exact_32, fast_4},         [FORMAT_Q4_1] = {exact_32_min, fast_4_min},
    [FORMAT_Q5_0] = {exact_32, fast_5},         [FORMAT_Q5_1] = {exact_32_min, fast_5_min},
    [FORMAT_Q8_0] = {exact_32, fast_8},         [FORMAT_Q4_K] = {exact_32_min, fast_4_min},
    [FORMAT_Q5_K] = {exact_32_min, fast_5_min}, [FORMAT_Q6_K] = {exact_16, fast_6},
    [FORMAT_Q2_K] = {exact_16_min, fast_2_min}, [FORMAT_Q3_K] = {exact_16, fast_3},
    [FORMAT_IQ4_NL] = {exact_32, fast_8},       [FORMAT_IQ4_XS] = {exact_32, fast_8},
    [FORMAT_MXFP4] = {exact_32, fast_5},
};

/* ---------------------------------------------------------------------------------- loops - */

/* The work on one panel of rows and block of columns. */
struct panel_job {
    const struct matrix_job *j;
    const struct lanes_format *f;
    struct panel_scratch *s;
    bool fast;
    int groups;
    int64_t c0, columns; /* the block; its sums begin at s->y */
    int64_t k0, n;       /* the chunk */
};

/* The tile's bytes as the words of PANEL_BYTE_PAIRS. */
static void words_of_bytes(const struct tile *t, int columns, int16_t (*out)[CHUNK])
{
    const __m256i low = _mm256_set1_epi16(255);
    for (int c = 0; c < columns; c++) {
        const struct lanes_bytes *in = (const struct lanes_bytes *)(t->x + c * t->stride);
        for (int b = 0; b < t->blocks; b++) {
            __m256i q = _mm256_loadu_si256((const __m256i *)in[b].q);
            _mm256_storeu_si256((__m256i *)(out[c] + 32 * b), _mm256_and_si256(q, low));
            _mm256_storeu_si256((__m256i *)(out[c] + 32 * b + 16), _mm256_srli_epi16(q, 8));
        }
    }
}

/* The chunk for the columns of the block. Tiles are about equally wide. */
static void panel_columns(const struct panel_job *p)
{
    const int64_t k = p->j->w->k, tiles = (p->columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const int64_t block_bytes = p->fast ? (int64_t)sizeof(struct lanes_bytes) : 64;
    const bool wide = p->f->body == LANES_BYTES || p->f->values == quants_iq4_values;
    const bool words = p->fast && wide && form_8 == PANEL_BYTE_PAIRS;
    const int format = (int)(p->f - lanes_formats);
    tile_fn *const run = p->fast ? tiles_of[format].fast : tiles_of[format].exact;
    struct tile t = {.blocks = (int)(p->n / 32),
                     .stride = (int64_t)p->j->pack_stride,
                     .scale_at = 2 * (k - p->k0) + p->k0 / 8,
                     .words = p->s->words[0]};
    t.sum_at = p->f->sub == 16 ? 2 * (k - p->k0) + k / 4 + p->k0 / 4 : t.scale_at + k / 8;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t from = p->columns * i / tiles;
        const int columns = (int)(p->columns * (i + 1) / tiles - from);
        t.x = p->j->packed + (p->c0 + from) * t.stride + p->k0 / 32 * block_bytes;
        for (int c = 0; i + 1 < tiles && c < columns; c++) /* the next tile's inputs */
            for (int64_t b = 0; b < p->n / 32 * block_bytes; b += 64)
                _mm_prefetch((const char *)t.x + (columns + c) * t.stride + b, _MM_HINT_T0);
        if (words)
            words_of_bytes(&t, columns, p->s->words);
        for (int g = 0; g < p->groups;) {
            const int width = p->groups - g >= TILE_GROUPS ? TILE_GROUPS : 1;
            t.panel = p->s->panel + g;
            t.y = p->s->y[from] + g * AVX2_LANES;
            run(&t, width, columns);
            g += width;
        }
    }
}

/* The weights of the chunk, while those of the next one are fetched. */
static void panel_unpack(const struct panel_job *p, int64_t begin)
{
    const int64_t k = p->j->w->k, block_bytes = AVX2_LANES * lanes_block_bytes(p->f);
    const int64_t stride = k / p->f->block * block_bytes, bytes = p->n / p->f->block * block_bytes;
    const uint8_t *w =
        p->j->w->data + begin / AVX2_LANES * stride + p->k0 / p->f->block * block_bytes;
    const int64_t next = min_i64(CHUNK, k - p->k0 - p->n) / p->f->block * block_bytes;
    unpack_fn *const unpack = p->fast ? unpack_fast : unpack_exact;
    for (int g = 0; g < p->groups; g++, w += stride) {
        for (int64_t i = 0; i < next; i += 64)
            _mm_prefetch((const char *)w + bytes + i, _MM_HINT_T1);
        unpack(p->f->dtype, w, (int)(p->n / 32), &p->s->panel[g]);
    }
}

/* Rows [begin, end), at most MATRIX_ROWS. */
static void panel_quantised(const struct matrix_job *j, bool fast, int64_t begin, int64_t end,
                            struct panel_scratch *s)
{
    struct panel_job p = {.j = j, .f = lanes_format_of(j->w->dtype), .s = s, .fast = fast};
    p.groups = (int)((end - begin + AVX2_LANES - 1) / AVX2_LANES);
    const int64_t blocks = (j->T + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
    for (int64_t i = 0; i < blocks; i++) {
        p.c0 = j->T * i / blocks;
        p.columns = j->T * (i + 1) / blocks - p.c0;
        memset(s->y, 0, (size_t)p.columns * sizeof s->y[0]);
        for (p.k0 = 0; p.k0 < j->w->k; p.k0 += CHUNK) {
            p.n = min_i64(CHUNK, j->w->k - p.k0);
            panel_unpack(&p, begin);
            panel_columns(&p);
        }
        for (int64_t c = 0; c < p.columns; c++)
            memcpy(j->y + (p.c0 + c) * j->y_stride + begin, s->y[c],
                   (size_t)(end - begin) * sizeof(float));
    }
}

static void rows_float(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (j->T == 1) {
        matrix_vector(j, begin, end);
        return;
    }
    for (int64_t r = begin; r < end; r += MATRIX_ROWS)
        panel_float(j, r, min_i64(end, r + MATRIX_ROWS), (struct float_panel *)scratch);
}

static void rows_quantised(const struct matrix_job *j, bool fast, int64_t begin, int64_t end,
                           uint8_t *scratch)
{
    for (int64_t r = begin; r < end; r += MATRIX_ROWS)
        panel_quantised(j, fast, r, min_i64(end, r + MATRIX_ROWS), (struct panel_scratch *)scratch);
}

static void rows_exact(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (!lanes_format_of(j->w->dtype))
        rows_float(j, begin, end, scratch);
    else if (j->T == 1)
        matrix_vector(j, begin, end);
    else
        rows_quantised(j, false, begin, end, scratch);
}

static void rows_fast(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (!lanes_format_of(j->w->dtype))
        rows_float(j, begin, end, scratch);
    else
        rows_quantised(j, true, begin, end, scratch);
}

static const struct matrix_class matrix_decode = {
    .numerics = lanes_matrix_numerics,
    .pack_bytes = lanes_pack_bytes,
    .pack = lanes_pack,
    .scratch_bytes = matrix_scratch,
    .rows = rows_exact,
};

static const struct matrix_class matrix_prefill = {
    .numerics = lanes_bytes_numerics,
    .pack_bytes = lanes_bytes_pack_bytes,
    .pack = lanes_bytes_pack,
    .scratch_bytes = matrix_scratch,
    .rows = rows_fast,
};

#endif
