/*
 * avx512_matrix.c - matrix times many columns with products of int16: class i16b32 of quantised
 * weights, and for prefill class i14b32 of float ones, twice as fast as multiply-adds of float32.
 *
 *   for each panel of 64 rows                            (a unit of the threads)
 *     for each 256 columns                               their results rest in 64 KiB of L2
 *       for each 256 of k                                weights of the panel -> int16, 34 KiB of
 *                                                        L1, while the next are prefetched
 *         for each up to 6 columns                       their 512 bytes each stay in L1
 *           for each 2 groups of 16 rows                 12 int32 and 12 float32 accumulators in
 *                                                        registers
 *
 * The inner loop is 12 vpdpwssd, two loads of weights and six broadcasts from L1 for a pair of k:
 * multiplying is its limit (two a cycle where the loads are two too). Each 32 k end in a
 * conversion, a multiplication of the scales and one multiply-add a result. Between chunks of k
 * the sums rest in the scratch, not in y, whose columns may lie in few sets of the caches. Storing
 * loses nothing: a row is the same chain of multiply-adds in order of k as in avx512_vector.c.
 * Measured at T = 512 on a Zen 5 core: 65-74 % of the vpdpwssd peak.
 */
#include "kernels/cpu/avx512_internal.h"

enum {
    PANEL_GROUPS = MATRIX_ROWS / AVX512_LANES,
    CHUNK = 256,
    SCALES = CHUNK / 16,
    TILE_GROUPS = 2,
    TILE_COLUMNS = 6,
    COLUMN_BLOCK = 252, /* 42 tiles */
};

/* Weights of one group and chunk, ready for the tile. */
struct group_panel {
    int16_t pair[CHUNK / 2][AVX512_LANES][2];
    float scale[SCALES][AVX512_LANES]; /* one for 32 or 16 k */
    float min[SCALES][AVX512_LANES];
};

struct panel_scratch {
    struct group_panel panel[PANEL_GROUPS];
    float y[COLUMN_BLOCK][MATRIX_ROWS];
};

uint64_t avx512_matrix_scratch(oato_dtype dtype, int64_t k)
{
    (void)k;
    return lanes_format_of(dtype) ? sizeof(struct panel_scratch) : 0;
}

/* ---------------------------------------------------------------------------------- panel - */

/* 32 k to pairs `pair`, `pair` + 1, ... */
AVX2_INLINE void unpack_32(const struct lanes_format *f, const uint8_t *body,
                           struct group_panel *panel, int pair)
{
    __m512i x = _mm512_setzero_si512(), high = x;
#pragma GCC unroll 16
    for (int p = 0; p < 16; p++) {
        __m512i words = avx512_pair_words(f, body, p, &x, &high);
        words = _mm512_sub_epi16(words, _mm512_set1_epi16((int16_t)f->offset));
        _mm512_storeu_si512(panel->pair[pair + p], words);
    }
}

/* Blocks of 32 along k: `blocks` of them, at most CHUNK / 32. */
AVX2_INLINE void unpack_small(const struct lanes_format *f, const uint8_t *w, int blocks,
                              struct group_panel *p)
{
    const int head = AVX512_LANES * f->head, body = AVX512_LANES * f->body;
    for (int b = 0; b < blocks; b++, w += head + body) {
        _mm512_storeu_ps(p->scale[b], avx512_block_scale(f, w));
        if (f->has_min)
            _mm512_storeu_ps(p->min[b], avx512_load_f16(w + 32));
        unpack_32(f, w + head, p, b * 16);
    }
}

/* One block of 256 along k. */
AVX2_INLINE void unpack_256(const struct lanes_format *f, const uint8_t *w, struct group_panel *p)
{
    const __m512 d = avx512_block_scale(f, w), dmin = f->has_min ? avx512_block_min(f, w) : d;
    for (int i = 0; i < 256 / f->sub; i++) {
        _mm512_storeu_ps(p->scale[i], _mm512_mul_ps(d, avx512_sub_scale(f, w, i)));
        if (f->has_min)
            _mm512_storeu_ps(p->min[i], _mm512_mul_ps(dmin, avx512_sub_min(f, w, i)));
    }
    for (int s = 0; s < 8; s++)
        unpack_32(f, w + AVX512_LANES * (f->head + s * f->body), p, s * 16);
}

/* 32 k of float weights, of which n are there, as int16 of 14 bits with the scale of their largest
 * magnitude. What is not finite ends in the scale: magnitudes are compared as integers. */
AVX2_INLINE void unpack_float_32(oato_dtype dtype, const uint8_t *w, int n, struct group_panel *p,
                                 int block)
{
    const int bytes = AVX512_LANES * (dtype == DT_F32 ? 4 : 2);
    const __m512i magnitude = _mm512_set1_epi32(INT32_MAX);
    const __m512 largest = _mm512_set1_ps(LANES_WORDS_LARGEST);
    __m512i top = _mm512_setzero_si512();
    for (int i = 0; i < n; i++) {
        __m512i v = _mm512_castps_si512(avx512_load_lanes(dtype, w + i * bytes));
        top = _mm512_max_epi32(top, _mm512_and_si512(v, magnitude));
    }
    /* As with inputs: below this the reciprocal would overflow. */
    const __m512i tiny = _mm512_castps_si512(_mm512_set1_ps(1e-30f));
    const __mmask16 some = _mm512_cmpgt_epi32_mask(top, tiny);
    const __m512 factor = _mm512_maskz_div_ps(some, largest, _mm512_castsi512_ps(top));
    _mm512_storeu_ps(p->scale[block], _mm512_maskz_div_ps(some, _mm512_castsi512_ps(top), largest));
    for (int i = 0; i < 32; i += 2, w += 2 * bytes) {
        __m512i pair[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        for (int e = 0; e < 2 && i + e < n; e++) {
            __m512 v = avx512_load_lanes(dtype, w + e * bytes);
            pair[e] = _mm512_cvtps_epi32(_mm512_mul_ps(v, factor));
        }
        const __m512i second = _mm512_slli_epi32(pair[1], 16);
        _mm512_storeu_si512(p->pair[16 * block + i / 2],
                            _mm512_mask_blend_epi16(0xaaaaaaaa, pair[0], second));
    }
}

AVX2_INLINE void unpack_floats(oato_dtype dtype, const uint8_t *w, int64_t n, struct group_panel *p)
{
    const int64_t bytes = AVX512_LANES * (dtype == DT_F32 ? 4 : 2);
    for (int b = 0; 32 * b < n; b++, w += 32 * bytes) {
        if (n - 32 * b >= 32)
            unpack_float_32(dtype, w, 32, p, b);
        else
            unpack_float_32(dtype, w, (int)(n - 32 * b), p, b);
    }
}

/* The chunk at w; `next` is the one that this group or panel needs after it. */
static void unpack(oato_dtype dtype, const uint8_t *w, int64_t n, struct group_panel *p,
                   const uint8_t *next, int64_t next_bytes)
{
    const int blocks = (int)(n / 32);
    for (int64_t i = 0; i < next_bytes; i += 64)
        _mm_prefetch((const char *)next + i, _MM_HINT_T1);
    switch (dtype) {
    case DT_Q4_0: unpack_small(&lanes_formats[FORMAT_Q4_0], w, blocks, p); break;
    case DT_Q4_1: unpack_small(&lanes_formats[FORMAT_Q4_1], w, blocks, p); break;
    case DT_Q5_0: unpack_small(&lanes_formats[FORMAT_Q5_0], w, blocks, p); break;
    case DT_Q5_1: unpack_small(&lanes_formats[FORMAT_Q5_1], w, blocks, p); break;
    case DT_Q8_0: unpack_small(&lanes_formats[FORMAT_Q8_0], w, blocks, p); break;
    case DT_Q4_K: unpack_256(&lanes_formats[FORMAT_Q4_K], w, p); break;
    case DT_Q5_K: unpack_256(&lanes_formats[FORMAT_Q5_K], w, p); break;
    case DT_Q6_K: unpack_256(&lanes_formats[FORMAT_Q6_K], w, p); break;
    case DT_Q2_K: unpack_256(&lanes_formats[FORMAT_Q2_K], w, p); break;
    case DT_Q3_K: unpack_256(&lanes_formats[FORMAT_Q3_K], w, p); break;
    case DT_IQ4_NL: unpack_small(&lanes_formats[FORMAT_IQ4_NL], w, blocks, p); break;
    case DT_IQ4_XS: unpack_256(&lanes_formats[FORMAT_IQ4_XS], w, p); break;
    case DT_MXFP4: unpack_small(&lanes_formats[FORMAT_MXFP4], w, blocks, p); break;
    case DT_F32: unpack_floats(DT_F32, w, n, p); break;
    case DT_F16: unpack_floats(DT_F16, w, n, p); break;
    default: unpack_floats(DT_BF16, w, n, p);
    }
}

/* ---------------------------------------------------------------------------------- tiles - */

/* Columns of a tile: their packed inputs from the chunk on, and where their sums are. */
struct tile_columns {
    const uint8_t *q[TILE_COLUMNS];  /* int16 */
    int64_t scale_at, sum_at;        /* bytes from there to the scale of the first block, and to
                                        scale * sum or, for minima of 16 k, to -8 * sum */
    const float *from[TILE_COLUMNS]; /* results so far */
    float *to[TILE_COLUMNS];
};

AVX2_INLINE float float_at(const uint8_t *p)
{
    float x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* What column c brings for the minimum of block b: scale * sum, or scale * (-8 * sum of 16). */
AVX2_INLINE __m512 min_input(const struct tile_columns *t, int c, int b, int sub)
{
    int32_t minus8_sum;
    const uint8_t *at = t->q[c] + t->sum_at + 4 * b;
    if (sub == 32)
        return _mm512_set1_ps(float_at(at));
    memcpy(&minus8_sum, at, sizeof minus8_sum);
    return _mm512_set1_ps(float_at(t->q[c] + t->scale_at + 4 * (b / 2)) * (float)minus8_sum);
}

/* groups x columns x 16 sums over `blocks` times 32 of k. sub: elements that share a scale. */
AVX2_INLINE void tile(const struct group_panel *p, const struct tile_columns *t, int blocks,
                      bool first, const __mmask16 *mask, int groups, int columns, int sub,
                      bool has_min)
{
    __m512 acc[TILE_COLUMNS][TILE_GROUPS];
#pragma GCC unroll 6
    for (int c = 0; c < columns; c++)
#pragma GCC unroll 2
        for (int g = 0; g < groups; g++)
            acc[c][g] = first ? _mm512_setzero_ps()
                              : _mm512_maskz_loadu_ps(mask[g], t->from[c] + AVX512_LANES * g);
    for (int b = 0; b < blocks * (32 / sub); b++) {
        const int64_t q_at = 2 * sub * b, block = b * sub / 32;
        __m512i sum[TILE_COLUMNS][TILE_GROUPS];
#pragma GCC unroll 6
        for (int c = 0; c < columns; c++)
#pragma GCC unroll 2
            for (int g = 0; g < groups; g++)
                sum[c][g] = _mm512_setzero_si512();
#pragma GCC unroll 16
        for (int i = 0; i < sub / 2; i++) {
            __m512i w[TILE_GROUPS];
#pragma GCC unroll 2
            for (int g = 0; g < groups; g++)
                w[g] = _mm512_loadu_si512(p[g].pair[b * (sub / 2) + i]);
#pragma GCC unroll 6
            for (int c = 0; c < columns; c++) {
                __m512i x = avx512_pair_at(t->q[c] + q_at + 4 * i);
#pragma GCC unroll 2
                for (int g = 0; g < groups; g++)
                    sum[c][g] = _mm512_dpwssd_epi32(sum[c][g], w[g], x);
            }
        }
        __m512 scale[TILE_GROUPS], min[TILE_GROUPS];
#pragma GCC unroll 2
        for (int g = 0; g < groups; g++) {
            scale[g] = _mm512_loadu_ps(p[g].scale[b]);
            min[g] = has_min ? _mm512_loadu_ps(p[g].min[b]) : scale[g];
        }
#pragma GCC unroll 6
        for (int c = 0; c < columns; c++) {
            const uint8_t *at = t->q[c] + 4 * block;
            const __m512 input_scale = _mm512_set1_ps(float_at(at + t->scale_at));
#pragma GCC unroll 2
            for (int g = 0; g < groups; g++) {
                __m512 s = _mm512_mul_ps(scale[g], input_scale);
                acc[c][g] = _mm512_fmadd_ps(s, _mm512_cvtepi32_ps(sum[c][g]), acc[c][g]);
                if (has_min)
                    acc[c][g] = _mm512_fmadd_ps(min[g], min_input(t, c, b, sub), acc[c][g]);
            }
        }
    }
#pragma GCC unroll 6
    for (int c = 0; c < columns; c++)
#pragma GCC unroll 2
        for (int g = 0; g < groups; g++)
            _mm512_mask_storeu_ps(t->to[c] + AVX512_LANES * g, mask[g], acc[c][g]);
}

/* The tile with its shape known to the compiler. */
AVX2_INLINE void tile_shapes(const struct group_panel *p, const struct tile_columns *t, int blocks,
                             bool first, const __mmask16 *mask, int groups, int columns, int sub,
                             bool has_min)
{
    switch (columns * 2 + groups - 1) {
    case 13: tile(p, t, blocks, first, mask, 2, 6, sub, has_min); break;
    case 12: tile(p, t, blocks, first, mask, 1, 6, sub, has_min); break;
    case 11: tile(p, t, blocks, first, mask, 2, 5, sub, has_min); break;
    case 10: tile(p, t, blocks, first, mask, 1, 5, sub, has_min); break;
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
                     bool first, const __mmask16 *mask, int groups, int columns);

static void tile_scale_32(const struct group_panel *p, const struct tile_columns *t, int blocks,
                          bool first, const __mmask16 *mask, int groups, int columns)
{
    tile_shapes(p, t, blocks, first, mask, groups, columns, 32, false);
}

static void tile_min_32(const struct group_panel *p, const struct tile_columns *t, int blocks,
                        bool first, const __mmask16 *mask, int groups, int columns)
{
    tile_shapes(p, t, blocks, first, mask, groups, columns, 32, true);
}

static void tile_scale_16(const struct group_panel *p, const struct tile_columns *t, int blocks,
                          bool first, const __mmask16 *mask, int groups, int columns)
{
    tile_shapes(p, t, blocks, first, mask, groups, columns, 16, false);
}

static void tile_min_16(const struct group_panel *p, const struct tile_columns *t, int blocks,
                        bool first, const __mmask16 *mask, int groups, int columns)
{
    tile_shapes(p, t, blocks, first, mask, groups, columns, 16, true);
}

/* f: NULL for float weights */
static tile_fn *tile_of(const struct lanes_format *f)
{
    if (f && f->has_min)
        return f->sub == 16 ? tile_min_16 : tile_min_32;
    return f && f->sub == 16 ? tile_scale_16 : tile_scale_32;
}

/* The shape of the work on one panel of rows and block of columns. */
struct panel_job {
    const struct matrix_job *j;
    const struct lanes_format *f; /* NULL: floats */
    int64_t k;                    /* of the packed inputs */
    int64_t begin, end;           /* rows */
    int64_t c0, columns;          /* the block */
    int64_t k0;                   /* the chunk */
    struct panel_scratch *s;
};

/* One chunk of k of the panel for the columns of the block. Tiles are about equally wide: none has
 * fewer than 3 columns unless there are only 1 or 2. */
static void panel_columns(const struct panel_job *x)
{
    const struct lanes_format *f = x->f;
    tile_fn *const run = tile_of(f);
    const int64_t k = x->k, n = min_i64(CHUNK, k - x->k0);
    const int groups = (int)((x->end - x->begin + AVX512_LANES - 1) / AVX512_LANES);
    const int64_t tiles = (x->columns + TILE_COLUMNS - 1) / TILE_COLUMNS;
    const bool first = x->k0 == 0, last = x->k0 + n == k;
    struct tile_columns t = {.scale_at = 2 * (k - x->k0) + x->k0 / 8};
    t.sum_at = f && f->sub == 16 ? 2 * (k - x->k0) + k / 4 + x->k0 / 4 : t.scale_at + k / 8;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t from = x->columns * i / tiles;
        const int columns = (int)(x->columns * (i + 1) / tiles - from);
        for (int c = 0; c < columns; c++) {
            t.q[c] = x->j->packed + (uint64_t)(x->c0 + from + c) * x->j->pack_stride + 2 * x->k0;
            if (i + 1 < tiles) /* the next tile's inputs */
                for (int64_t b = 0; b < 2 * n; b += 64)
                    _mm_prefetch((const char *)t.q[c] + (uint64_t)columns * x->j->pack_stride + b,
                                 _MM_HINT_T0);
        }
        for (int g = 0; g < groups; g += TILE_GROUPS) {
            const int64_t row = g * AVX512_LANES, left = x->end - x->begin - row;
            const __mmask16 mask[] = {avx512_mask(left),
                                      left > AVX512_LANES ? avx512_mask(left - AVX512_LANES) : 0};
            for (int c = 0; c < columns; c++) {
                t.from[c] = t.to[c] = x->s->y[from + c] + row;
                if (last)
                    t.to[c] = x->j->y + (x->c0 + from + c) * x->j->y_stride + x->begin + row;
            }
            run(x->s->panel + g, &t, (int)(n / 32), first, mask,
                (int)min_i64(TILE_GROUPS, groups - g), columns);
        }
    }
}

/* Rows [begin, end), at most MATRIX_ROWS. */
static void panel_matrix(const struct matrix_job *j, int64_t begin, int64_t end,
                         struct panel_scratch *s)
{
    struct panel_job x = {
        .j = j, .f = lanes_format_of(j->w->dtype), .begin = begin, .end = end, .s = s};
    const oato_dtype dtype = j->w->dtype;
    const int64_t k = j->w->k, block = x.f ? x.f->block : 1;
    const int64_t block_bytes = (int64_t)lanes_matrix_bytes(AVX512_LANES, dtype, 1, block);
    const int64_t stride = k / block * block_bytes;
    x.k = x.f ? k : lanes_words_k(k);
    const int64_t blocks = (j->T + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
    for (int64_t i = 0; i < blocks; i++) {
        x.c0 = j->T * i / blocks;
        x.columns = j->T * (i + 1) / blocks - x.c0;
        for (x.k0 = 0; x.k0 < k; x.k0 += CHUNK) {
            const int64_t n = min_i64(CHUNK, k - x.k0), next = min_i64(CHUNK, k - x.k0 - n);
            for (int64_t r = begin; r < end; r += AVX512_LANES) {
                const uint8_t *w =
                    j->w->data + r / AVX512_LANES * stride + x.k0 / block * block_bytes;
                const uint8_t *after = w + n / block * block_bytes;
                int64_t bytes = next / block * block_bytes;
                if (!next && i + 1 == blocks) { /* the panel behind this one begins with: */
                    after += (MATRIX_ROWS / AVX512_LANES - 1) * stride;
                    bytes = min_i64(CHUNK, k) / block * block_bytes;
                }
                unpack(dtype, w, n, &s->panel[(r - begin) / AVX512_LANES], after, bytes);
            }
            panel_columns(&x);
        }
    }
}

void avx512_panel_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    for (int64_t r = begin; r < end; r += MATRIX_ROWS)
        panel_matrix(j, r, min_i64(end, r + MATRIX_ROWS), (struct panel_scratch *)scratch);
}

void avx512_matrix_rows(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch)
{
    if (!lanes_format_of(j->w->dtype)) {
        avx512_matrix_float(j, begin, end);
    } else if (j->T <= AVX512_STREAM) {
        if (j->T > 0)
            avx512_matrix_stream(j, begin, end);
    } else {
        avx512_panel_rows(j, begin, end, scratch);
    }
}
