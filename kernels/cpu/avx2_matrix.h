/*
 * avx2_matrix.h - quantised matrix times many columns, class u8b32, and which kernel serves which
 * T, for avx2.c and avxvnni.c.
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each up to 516 columns                         their sums rest in 129 KiB of L2
 *       for each 256 of k                                weights of the panel -> int8, 16 KiB of
 *                                                        L1/L2, once
 *         for each 6 columns                             their 384 bytes each stay in L1
 *           for each 2 groups of 8 rows                  12 integer accumulators in registers
 *
 * Unpacking, scales and loads are shared by the columns. Each 32 k end in a conversion, a
 * multiplication of the scales and two or three multiply-adds of the float32 sums in L1: storing
 * loses nothing, so each row is the same chain of fused multiply-adds in order of k as in
 * avx2_vector.h. The sums are not in y before the end, because its columns may lie in few sets of
 * the caches.
 *
 * Products are vpdpbusd, or vpmaddubsw, whose products of bytes by weights of 4, 5 and 6 bits are
 * added up in 16 bits by 8, 4 and 2: no sum of 2 * 255 * 8 * 8 overflows. With weights of 8 bits it
 * would, so these are multiplied by the halves of the input's bytes, 4 bits each: see
 * avx2_vector.h. Where columns have two such sums there are 3 of them at once.
 * Measured at T = 512 on a Zen 5 core, where multiplications and multiply-adds share two pipes:
 * 277 GOP/s for Q4_0 (of 332 that the pipes allow) and 155 for Q8_0 (of 187), with VNNI 328 for
 * both (of 363).
 */
#ifndef OATO_AVX2_MATRIX_H
#define OATO_AVX2_MATRIX_H

#include "kernels/cpu/avx2_panel.h"
#include "kernels/cpu/avx2_vector.h"

enum {
    TILE_GROUPS = 2,
    TILE_COLUMNS = 6,   /* 12 sums, 2 of weights, an input, a product of 16 registers */
    COLUMN_BLOCK = 516, /* 86 tiles */
    STREAM_COLUMNS = 8, /* with more columns, unpacking to a panel is faster */
    STREAM_GRID = 4,    /* with a codebook: a second pass looks up again */
};

/* How far a tile's loop over pairs or quads is unrolled: fully, but less under sanitizers, which
 * would take minutes to compile. */
#ifdef __SANITIZE_ADDRESS__
enum { TILE_UNROLL = 1 };
#else
enum { TILE_UNROLL = 16 };
#endif

struct panel_scratch {
    struct group_panel panel[PANEL_GROUPS];
    float y[COLUMN_BLOCK][MATRIX_ROWS];
#ifndef __AVXVNNI__
    struct input_halves halves[TILE_COLUMNS];
#endif
};

/* ---------------------------------------------------------------------------------- tiles - */

/* Two groups and up to 6 columns: their weights, inputs and sums. */
struct tile {
    const struct group_panel *panel[TILE_GROUPS];
    int blocks;       /* of 32 k */
    const uint8_t *x; /* lanes_bytes of the chunk */
    int64_t stride;   /* bytes from a column to the next */
    float *y;         /* [column][MATRIX_ROWS] */
#ifndef __AVXVNNI__
    struct input_halves *halves; /* for weights of 8 bits */
#endif
};

/* What a tile computes; constants for the compiler. */
struct tile_kind {
    int sub;    /* elements that share a scale */
    int fit;    /* quads whose products add up in 16 bits */
    int centre; /* what was taken from the weights */
    bool has_min;
    bool halves; /* the input is low + 16 * high: neither's products with 8 bits overflow */
    int columns; /* at once: 6, or half of them where there are two sums for each */
};

typedef __m256i tile_sums[TILE_COLUMNS][TILE_GROUPS];

#ifdef __AVXVNNI__
AVX2_INLINE void dot_quads(const struct tile *t, int at, int columns, const struct tile_kind *kind,
                           tile_sums sum)
{
    const uint8_t *x = t->x + at / 32 * (int)sizeof(struct lanes_bytes) + at % 32;
    UNROLLED (i, kind->sub / 4) {
        __m256i w[TILE_GROUPS];
        UNROLLED (g, TILE_GROUPS)
            w[g] = _mm256_loadu_si256((const __m256i *)t->panel[g]->quad[at / 4 + i]);
        UNROLLED (c, columns) {
            __m256i v = avx2_quad_at(x + c * t->stride + 4 * i);
            UNROLLED (g, TILE_GROUPS) {
                sum[c][g] =
                    _mm256_dpbusd_avx_epi32(i ? sum[c][g] : _mm256_setzero_si256(), v, w[g]);
                keep_chain(&sum[c][g]);
            }
        }
    }
}
#else
/* Adds up `fit` quads from number `quad` on; x is there for the first column. */
AVX2_INLINE void dot_words(const struct tile *t, int quad, const uint8_t *x, int columns, int fit,
                           tile_sums words)
{
    UNROLLED (i, fit) {
        __m256i w[TILE_GROUPS];
        UNROLLED (g, TILE_GROUPS)
            w[g] = _mm256_loadu_si256((const __m256i *)t->panel[g]->quad[quad + i]);
        UNROLLED (c, columns) {
            __m256i v = avx2_quad_at(x + c * t->stride + 4 * i);
            UNROLLED (g, TILE_GROUPS) {
                __m256i product = _mm256_maddubs_epi16(v, w[g]);
                words[c][g] = i ? _mm256_add_epi16(words[c][g], product) : product;
                keep_chain(&words[c][g]);
            }
        }
    }
}

/* The same for n quads with the halves of the input. */
AVX2_INLINE void dot_halves(const struct tile *t, int quad, int n, int columns, tile_sums low,
                            tile_sums high)
{
    UNROLLED (i, n) {
        __m256i w[TILE_GROUPS];
        UNROLLED (g, TILE_GROUPS)
            w[g] = _mm256_loadu_si256((const __m256i *)t->panel[g]->quad[quad + i]);
        UNROLLED (c, columns) {
            UNROLLED (h, 2) {
                __m256i v = avx2_quad_at(t->halves[c].q[quad / 8][h] + 4 * (quad % 8 + i));
                __m256i(*words)[TILE_GROUPS] = h ? high : low;
                UNROLLED (g, TILE_GROUPS) {
                    __m256i product = _mm256_maddubs_epi16(v, w[g]);
                    words[c][g] = i ? _mm256_add_epi16(words[c][g], product) : product;
                    keep_chain(&words[c][g]);
                }
            }
        }
    }
}

/* `sub` elements from element `at` of the chunk on. */
AVX2_INLINE void dot_quads(const struct tile *t, int at, int columns, const struct tile_kind *kind,
                           tile_sums sum)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const uint8_t *x = t->x + at / 32 * (int)sizeof(struct lanes_bytes) + at % 32;
    const int steps = kind->halves ? 1 : kind->sub / 4 / kind->fit;
    UNROLLED (s, steps) {
        tile_sums words, high;
        if (kind->halves)
            dot_halves(t, at / 4, kind->sub / 4, columns, words, high);
        else
            dot_words(t, at / 4 + s * kind->fit, x + 4 * s * kind->fit, columns, kind->fit, words);
        UNROLLED (c, columns)
            UNROLLED (g, TILE_GROUPS) {
                const __m256i n = _mm256_madd_epi16(words[c][g], ones);
                sum[c][g] = s ? _mm256_add_epi32(sum[c][g], n) : n;
                if (kind->halves)
                    sum[c][g] =
                        _mm256_add_epi32(n, _mm256_madd_epi16(high[c][g], _mm256_set1_epi16(16)));
            }
    }
    if (kind->centre) {
        UNROLLED (c, columns) {
            __m256i total = avx2_quad_at(x + c * t->stride + offsetof(struct lanes_bytes, total));
            total = _mm256_slli_epi32(total, kind->centre == 8 ? 3 : 4);
            UNROLLED (g, TILE_GROUPS)
                sum[c][g] = _mm256_add_epi32(sum[c][g], total);
        }
    }
}
#endif

/* The sums of what shares scale s to the results of column c: see the class. */
AVX2_INLINE void apply(const struct tile *t, int s, int c, const struct tile_kind *kind,
                       const __m256i *sum)
{
    const struct lanes_bytes *in =
        (const struct lanes_bytes *)(t->x + c * t->stride) + s * kind->sub / 32;
    const __m256 step = _mm256_set1_ps(in->step), min = _mm256_set1_ps(in->min);
    const __m256 sums = _mm256_set1_ps(!kind->has_min    ? 0
                                       : kind->sub == 32 ? in->sum
                                                         : lanes_bytes_half(in, s % 2));
    UNROLLED (g, TILE_GROUPS) {
        float *y = t->y + c * MATRIX_ROWS + g * LANES;
        __m256 scale = _mm256_mul_ps(_mm256_loadu_ps(t->panel[g]->scale[s]), step);
        __m256 acc = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(sum[g]), _mm256_loadu_ps(y));
        acc = _mm256_fmadd_ps(min, _mm256_loadu_ps(t->panel[g]->scaled_sum[s]), acc);
        if (kind->has_min)
            acc = _mm256_fmadd_ps(_mm256_loadu_ps(t->panel[g]->min[s]), sums, acc);
        _mm256_storeu_ps(y, acc);
    }
}

/* groups x columns x 8 sums over all blocks. */
AVX2_INLINE void tile(const struct tile *all, int columns, const struct tile_kind *kind)
{
    struct tile t = *all; /* a local copy, which stores to y cannot alias */
    for (int s = 0; s < t.blocks * (32 / kind->sub); s++) {
        UNROLL
        for (int c0 = 0; c0 < columns; c0 += kind->columns) {
            const int n = columns - c0 < kind->columns ? columns - c0 : kind->columns;
            tile_sums sum;
            t.x = all->x + c0 * t.stride;
            t.y = all->y + c0 * MATRIX_ROWS;
#ifndef __AVXVNNI__
            t.halves = all->halves + c0;
#endif
            dot_quads(&t, s * kind->sub, n, kind, sum);
            UNROLLED (c, n)
                apply(&t, s, c, kind, sum[c]);
        }
    }
}

/* The tile with its width known to the compiler. */
AVX2_INLINE void tile_widths(const struct tile *t, int columns, struct tile_kind kind)
{
    switch (columns) {
    case 6: tile(t, 6, &kind); break;
    case 5: tile(t, 5, &kind); break;
    case 4: tile(t, 4, &kind); break;
    case 3: tile(t, 3, &kind); break;
    case 2: tile(t, 2, &kind); break;
    default: tile(t, 1, &kind);
    }
}

#ifdef __AVXVNNI__
enum { FEW = TILE_COLUMNS };
#else
enum { FEW = TILE_COLUMNS / 2 };
#endif

/* Of a format's integers. */
static void tile_run(enum lanes_tile kind, const struct tile *t, int columns)
{
#define TILE(...) tile_widths(t, columns, (struct tile_kind){__VA_ARGS__})
    switch (kind) {
    case TILE_2: TILE(16, 4, 0, true, false, 6); break;
    case TILE_3: TILE(16, 4, 0, false, false, 6); break;
    case TILE_4: TILE(32, 8, 0, false, false, 6); break;
    case TILE_4_MIN: TILE(32, 8, CENTRE_4, true, false, 6); break;
    case TILE_5: TILE(32, 4, 0, false, false, 6); break;
    case TILE_5_MIN: TILE(32, 4, CENTRE_5, true, false, 6); break;
    case TILE_6: TILE(16, 2, 0, false, false, FEW); break;
    case TILE_8: TILE(32, 0, 0, false, true, FEW); break;
    case TILE_8_SUB: TILE(16, 0, 0, false, true, FEW); break;
    }
#undef TILE
}

/* ---------------------------------------------------------------------------------- loops - */

/* The work on one panel of rows and block of columns. */
struct panel_job {
    const struct matrix_job *j;
    const struct lanes_format *f;
    struct panel_scratch *s;
    int groups;
    int64_t c0, columns; /* the block; its sums begin at s->y */
    int64_t k0, n;       /* the chunk */
};

/* The chunk for the columns of the block. Tiles are about equally wide. */
static void panel_columns(const struct panel_job *p)
{
    const int64_t tiles = (p->columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const int64_t block_bytes = sizeof(struct lanes_bytes);
    struct tile t = {.blocks = (int)(p->n / 32), .stride = (int64_t)p->j->pack_stride};
#ifndef __AVXVNNI__
    t.halves = p->s->halves;
#endif
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t from = p->columns * i / tiles;
        const int columns = (int)(p->columns * (i + 1) / tiles - from);
        t.x = p->j->packed + (p->c0 + from) * t.stride + p->k0 / 32 * block_bytes;
        for (int c = 0; i + 1 < tiles && c < columns; c++) /* the next tile's inputs */
            for (int64_t b = 0; b < p->n / 32 * block_bytes; b += 64)
                _mm_prefetch((const char *)t.x + (columns + c) * t.stride + b, _MM_HINT_T0);
#ifndef __AVXVNNI__
        if (p->f->tile == TILE_8 || p->f->tile == TILE_8_SUB)
            for (int c = 0; c < columns; c++)
                halves_fill(t.halves + c, t.x + c * t.stride, t.blocks);
#endif
        for (int g = 0; g < p->groups; g += TILE_GROUPS) {
            t.panel[0] = t.panel[1] = p->s->panel + g;
            if (g + 1 < p->groups) /* else the last one is duplicated; y has room */
                t.panel[1]++;
            t.y = p->s->y[from] + g * LANES;
            tile_run(p->f->tile, &t, columns);
        }
    }
}

/* The weights of the chunk, while those of the next one are fetched. */
static void panel_fill(const struct panel_job *p, int64_t begin)
{
    const int64_t k = p->j->w->k, block_bytes = LANES * lanes_block_bytes(p->f);
    const int64_t stride = k / p->f->block * block_bytes, bytes = p->n / p->f->block * block_bytes;
    const uint8_t *w = p->j->w->data + begin / LANES * stride + p->k0 / p->f->block * block_bytes;
    const int64_t next = min_i64(CHUNK, k - p->k0 - p->n) / p->f->block * block_bytes;
    for (int g = 0; g < p->groups; g++, w += stride) {
        for (int64_t i = 0; i < next; i += 64)
            _mm_prefetch((const char *)w + bytes + i, _MM_HINT_T1);
        panel_unpack(p->f->dtype, w, (int)(p->n / 32), &p->s->panel[g]);
    }
}

/* Rows [begin, end), at most MATRIX_ROWS. */
static void panel_quantised(const struct matrix_job *j, int64_t begin, int64_t end,
                            struct panel_scratch *s)
{
    struct panel_job p = {.j = j, .f = lanes_format_of(j->w->dtype), .s = s};
    p.groups = (int)((end - begin + LANES - 1) / LANES);
    const int64_t blocks = (j->T + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
    for (int64_t i = 0; i < blocks; i++) {
        p.c0 = j->T * i / blocks;
        p.columns = j->T * (i + 1) / blocks - p.c0;
        memset(s->y, 0, (size_t)p.columns * sizeof s->y[0]);
        for (p.k0 = 0; p.k0 < j->w->k; p.k0 += CHUNK) {
            p.n = min_i64(CHUNK, j->w->k - p.k0);
            panel_fill(&p, begin);
            panel_columns(&p);
        }
        for (int64_t c = 0; c < p.columns; c++)
            memcpy(j->y + (p.c0 + c) * j->y_stride + begin, s->y[c],
                   (size_t)(end - begin) * sizeof(float));
    }
}

static void quantised_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (j->T <= (lanes_format_of(j->w->dtype)->grid ? STREAM_GRID : STREAM_COLUMNS))
        matrix_stream(j, begin, end);
    else
        for (int64_t r = begin; r < end; r += MATRIX_ROWS)
            panel_quantised(j, r, min_i64(end, r + MATRIX_ROWS), (struct panel_scratch *)scratch);
}

static const struct matrix_class matrix_quantised = {
    .numerics = "u8b32",
    .pack_bytes = lanes_bytes_pack_bytes,
    .pack = lanes_bytes_pack,
    .scratch_bytes = sizeof(struct panel_scratch),
    .rows = quantised_rows,
    .listed = avx2_bytes_listed,
};

static const struct matrix_class *matrix_of(oato_dtype dtype, enum numerics_choice choice)
{
    (void)choice;
    return lanes_format_of(dtype) ? &matrix_quantised : &avx2_matrix_float;
}

#endif
