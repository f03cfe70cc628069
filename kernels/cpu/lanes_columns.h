/*
 * lanes_columns.h - the sparse MUL_MAT at the levels with vectors: what does not depend on the
 * width of vectors. avx2_columns.c and avx512_columns.c define block_tokens and float_tokens and
 * then include lanes_columns_run.h.
 *
 *   for each 16 tokens                                    their inputs, packed by each thread
 *     for each block of 32 columns with anything active
 *       for each 4 tokens                                 the union of their active columns
 *         for each 64 rows of the thread                  sums of integers in registers
 *           for each 4 columns                            interleaved, a product of dwords
 *           one multiply-add to the rows' results, which rest in L1
 *
 * Class s8b32 (s8b16 where 16 columns share a scale): inputs are int8 with one scale for a block,
 * so that 0 is exact, the integers of a block are exact and end in one multiply-add, blocks in
 * order: the same bits whether a zero is multiplied or left out. Float types are class f32:
 * multiply-adds in order of the columns.
 *
 * What is to come is prefetched by its list, tile by tile, as many bytes ahead as memory delivers
 * during its own latency: columns are short runs that no hardware foresees. More at a time would
 * leave L1 before it is used, and wait in line before the loads at hand.
 */
#ifndef OATO_LANES_COLUMNS_H
#define OATO_LANES_COLUMNS_H

#include "kernels/cpu/lanes_vector.h"

#include <float.h>

enum {
    BLOCK = 32,  /* columns, at most */
    GROUP = 4,   /* tokens whose sums are in registers */
    TOKENS = 16, /* that are packed together */
    PENDING = 8, /* blocks whose lists are known */
    AHEAD_BYTES = 12288,
    FLOATS_AHEAD = 8192,
    TILE = 64,  /* rows */
    FLOATS = 8, /* columns of float weights that are added in one go */
};

/* What some tokens have in a block: columns where one of them is not 0, in order and filled up to a
 * multiple of 4, and the integers there. */
struct block_group {
    int columns;
    const uint8_t *p[BLOCK]; /* the columns */
    int8_t x[GROUP][BLOCK];
    int32_t sum[GROUP];
    float step[GROUP];
};

struct block_list {
    const uint8_t *p; /* the block */
    int columns;      /* of any token, to prefetch; filled up as a group's */
    const uint8_t *const *column;
    const uint8_t *of_all[BLOCK]; /* `column` of more than one group */
    struct block_group group[TOKENS / GROUP];
};

/* One step of float weights: the columns, and the inputs of each token there. */
struct float_list {
    int columns, later; /* later: columns of the next step */
    const uint8_t *p[FLOATS], *next[FLOATS];
    float x[TOKENS][FLOATS];
};

/* The thread's work on up to TOKENS tokens. */
struct columns_work {
    const struct columns_job *j;
    struct columns c;
    int64_t begin, end, T;
    const float *x;
    float *y;
    int8_t *q; /* T rows, q_stride apart */
    float *step;
    int64_t q_stride, step_stride;
};

/* What is prefetched meanwhile: the tile that lies `rows` rows on in the first list, and what is
 * beyond the thread's rows in the second. NULL: there is no such list. */
struct lists_ahead {
    const struct block_list *list[2];
    int64_t rows;
};

/* A tile to prefetch. */
struct tile_ahead {
    const struct block_list *list;
    int64_t row;
    int columns; /* 0: they are there */
};

/* While one tile or two at `row` are computed; the scales of as many are asked for at once. */
AVX2_INLINE struct tile_ahead tile_ahead(const struct columns_work *w, const struct lists_ahead *a,
                                         int64_t row, int64_t rows, int bits)
{
    const int64_t whole = columns_rows(w->end - w->begin), at = row + a->rows;
    const bool beyond = at >= w->begin + whole;
    const struct columns *c = &w->c;
    const int scale = c->form->half ? 2 : 4;
    struct tile_ahead t = {.list = a->list[beyond], .row = beyond ? at - whole : at};
    if (!t.list)
        return t;
    for (int i = 0; i < rows * scale; i += 64) {
        _mm_prefetch((const char *)t.list->p + t.row * scale + i, _MM_HINT_T0);
        if (c->form->has_min)
            _mm_prefetch((const char *)t.list->p + c->scales / 2 + t.row * scale + i, _MM_HINT_T0);
    }
    /* an odd tile of nibbles lies in the line of the tile before */
    if (bits == 8 || rows > TILE || t.row / TILE % 2 == 0 || t.row == w->begin)
        t.columns = t.list->columns;
    return t;
}

/* Four columns from number i on. */
AVX2_INLINE void tile_prefetch(const struct tile_ahead *t, int i, int bits)
{
    if (i < t->columns)
        UNROLLED (j, 4)
            _mm_prefetch((const char *)t->list->column[i + j] + t->row * bits / 8, _MM_HINT_T0);
}

/* ---------------------------------------------------------------------------------- inputs - */

static int64_t pack_stride(int64_t k)
{
    return (k + 2 * BLOCK + 63) / 64 * 64;
}

/* At most as many blocks as columns. */
static uint64_t columns_scratch_bytes(oato_dtype dtype, int64_t k, int64_t T)
{
    const uint64_t stride = (uint64_t)pack_stride(k);
    return columns_form_of(dtype)->bits ? (uint64_t)min_i64(T, TOKENS) * stride * 5 : stride * 4;
}

/* n of a block's elements to q, of which 32 bytes are written. Returns the step. */
static float block_pack(const float *x, int n, float threshold, int8_t *q)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), limit = _mm256_set1_ps(threshold);
    __m256 v[4], top = _mm256_setzero_ps(), nan = top;
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_maskload_ps(x + 8 * i, avx2_mask(n - 8 * i));
        const __m256 size = _mm256_andnot_ps(sign, v[i]);
        if (threshold >= 0)
            v[i] = _mm256_and_ps(v[i], _mm256_cmp_ps(size, limit, _CMP_NLE_UQ));
        top = _mm256_max_ps(top, _mm256_andnot_ps(sign, v[i]));
        nan = _mm256_or_ps(nan, _mm256_cmp_ps(v[i], v[i], _CMP_UNORD_Q));
    }
    const float largest = avx2_max(top);
    const bool zero = !(largest > 1e-30f); /* else the factor overflows */
    const bool infinite = _mm256_movemask_ps(nan) || largest > FLT_MAX;
    const __m256 factor = _mm256_set1_ps(zero || infinite ? 0 : 127 / largest);
    const __m256i keep = _mm256_set1_epi32(infinite ? 0 : -1);
    __m256i w[4];
    for (int i = 0; i < 4; i++)
        w[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v[i], factor)), keep);
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(w[0], w[1]), _mm256_packs_epi32(w[2], w[3]));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(bytes, order));
    return infinite ? NAN : zero ? 0 : largest / 127;
}

static void work_pack(const struct columns_work *w)
{
    for (int64_t t = 0; t < w->T; t++)
        for (int64_t b = 0; b < w->c.blocks; b++) {
            const int32_t from = w->c.start[b];
            w->step[t * w->step_stride + b] =
                block_pack(w->x + t * w->j->w->k + from, w->c.start[b + 1] - from, w->j->threshold,
                           w->q + t * w->q_stride + from);
        }
}

/* ----------------------------------------------------------------------------------- lists - */

/* Columns of a block that are not 0, one bit each. */
AVX2_INLINE uint32_t nonzeros(const int8_t *q)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)q);
    return ~(uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(x, _mm256_setzero_si256()));
}

/* The columns of block b whose bits are set; then the first of them, up to a multiple of 4. */
static int columns_list(const struct columns *c, int64_t b, uint32_t bits,
                        const uint8_t *out[BLOCK])
{
    const uint8_t *first = columns_block(c, b) + c->scales;
    int n = 0;
    for (; bits; bits &= bits - 1)
        out[n++] = first + (uint64_t)__builtin_ctz(bits) * c->column;
    for (; n % 4; n++)
        out[n] = out[0];
    return n;
}

/* Columns of block b that are not 0 in some token, or all, one bit each. */
static uint32_t columns_active(const struct columns_work *w, int64_t b, int64_t t, int tokens)
{
    const int32_t from = w->c.start[b], n = w->c.start[b + 1] - from;
    const uint32_t all = n == 32 ? UINT32_MAX : (1u << n) - 1;
    uint32_t bits = w->j->threshold < 0 ? all : 0;
    for (int i = 0; i < tokens; i++)
        bits |= nonzeros(w->q + (t + i) * w->q_stride + from) & all;
    return bits;
}

/* Tokens from t on in block b. False: they need nothing of it. */
static bool group_fill(const struct columns_work *w, int64_t b, int64_t t, struct block_group *g,
                       uint32_t *bits)
{
    const int tokens = (int)min_i64(GROUP, w->T - t);
    const int32_t from = w->c.start[b];
    bool needed = false;
    *bits = columns_active(w, b, t, tokens);
    for (int i = 0; i < tokens; i++) {
        g->step[i] = w->step[(t + i) * w->step_stride + b];
        needed = needed || isnan(g->step[i]);
    }
    g->columns = columns_list(&w->c, b, *bits, g->p);
    for (int i = 0; i < tokens; i++) {
        const int8_t *q = w->q + (t + i) * w->q_stride + from;
        int e = 0;
        memset(g->x[i], 0, sizeof g->x[i]);
        g->sum[i] = 0;
        for (uint32_t left = *bits; left; left &= left - 1, e++) {
            g->x[i][e] = q[__builtin_ctz(left)];
            g->sum[i] += g->x[i][e];
        }
    }
    return needed || g->columns;
}

/* The next block from *b on that is needed. False: there is none. */
static bool list_fill(const struct columns_work *w, int64_t *b, struct block_list *l)
{
    for (; *b < w->c.blocks; ++*b) {
        uint32_t bits, all = 0;
        bool needed = false;
        for (int64_t t = 0; t < w->T; t += GROUP) {
            needed = group_fill(w, *b, t, &l->group[t / GROUP], &bits) || needed;
            all |= bits;
        }
        if (!needed)
            continue;
        l->columns = w->T > GROUP ? columns_list(&w->c, *b, all, l->of_all) : l->group[0].columns;
        l->column = w->T > GROUP ? l->of_all : l->group[0].p;
        l->p = columns_block(&w->c, (*b)++);
        return true;
    }
    return false;
}

/* The active columns, whatever the token; n of them. */
static int64_t floats_list(const struct columns_work *w, int32_t *list)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), limit = _mm256_set1_ps(w->j->threshold);
    const int64_t k = w->j->w->k;
    int64_t n = 0;
    for (int64_t i = 0; i < k; i += 8) {
        const __m256i mask = avx2_mask(k - i);
        unsigned bits = 0;
        for (int64_t t = 0; t < w->T && w->j->threshold >= 0; t++) {
            const __m256 x = _mm256_maskload_ps(w->x + t * k + i, mask);
            const __m256 active = _mm256_cmp_ps(_mm256_andnot_ps(sign, x), limit, _CMP_NLE_UQ);
            bits |= (unsigned)_mm256_movemask_ps(active);
        }
        if (w->j->threshold < 0)
            bits = 255;
        bits &= k - i < 8 ? (1u << (k - i)) - 1 : 255;
        for (; bits; bits &= bits - 1)
            list[n++] = (int32_t)i + __builtin_ctz(bits);
    }
    return n;
}

static void float_list_fill(const struct columns_work *w, const int32_t *list, int64_t n,
                            struct float_list *l)
{
    l->columns = (int)min_i64(FLOATS, n);
    l->later = (int)min_i64(FLOATS, n - l->columns);
    for (int i = 0; i < l->columns; i++) {
        l->p[i] = w->c.data + (uint64_t)list[i] * w->c.column;
        for (int64_t t = 0; t < w->T; t++) {
            const float x = w->x[t * w->j->w->k + list[i]];
            l->x[t][i] = is_active(x, w->j->threshold) ? x : 0;
        }
    }
    for (int i = 0; i < l->later; i++)
        l->next[i] = w->c.data + (uint64_t)list[l->columns + i] * w->c.column;
}

/* While `rows` rows from `row` on are computed, as many of each column, FLOATS_AHEAD bytes of all
 * columns further on; behind the thread's rows those of the next step. */
AVX2_INLINE void floats_prefetch(const struct columns_work *w, const struct float_list *l,
                                 int64_t row, int64_t rows, int64_t elem)
{
    const int64_t whole = columns_rows(w->end - w->begin);
    const int64_t at = row + min_i64(whole, FLOATS_AHEAD / (FLOATS * elem));
    const bool beyond = at >= w->begin + whole;
    const uint8_t *const *p = beyond ? l->next : l->p;
    for (int i = 0; i < (beyond ? l->later : l->columns); i++)
        for (int64_t b = 0; b < rows * elem; b += 64)
            _mm_prefetch((const char *)p[i] + (beyond ? at - whole : at) * elem + b, _MM_HINT_T0);
}

#endif
