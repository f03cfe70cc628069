/*
 * avx2_listed.c - products of listed rows of WEIGHT_ROWS (gate and up of a sparse FFN) with one
 * column, where memory is the limit; weights of 4 bits.
 *
 *   for each 8 listed rows
 *     for each 4096 of k                   2 KiB of a row
 *       for each row                       from its begin to its end
 *         for each 256 of k                the products of 32 and their weights' sum: 8 dwords
 *       for each 256 of k                  turned to a lane for each row, as the scales are
 *         multiply-adds in order of k      as in avx2_vector.h, with the same bits
 *
 * Rows are turned to lanes when their integers are summed up, an eighth of the shuffles that
 * turning the weights takes. Lines are prefetched in the order and at the pace in which they are
 * read: as many in bursts, between groups, took a third longer.
 */
#include "kernels/cpu/lanes_rows.h"
#include "kernels/cpu/lanes_vector.h"

enum {
    PIECE = 4096, /* elements */
    EIGHT = 256,  /* of 8 blocks of 32 */
    BODIES = 128, /* their bytes */
    SUM_BIT = 17, /* the products of 32 elements are less than 2^17, the sum of weights than 2^9 */
    AHEAD = 2560, /* bytes that are prefetched */
};

/* The input of 8 blocks as vectors of one of their quads each. */
struct eight_inputs {
    __m256i quad[8];
};

static void inputs_turn(const struct lanes_bytes *x, int64_t blocks, struct eight_inputs *to)
{
    for (int64_t b = 0; b < blocks; b += 8, x += 8, to++) {
        for (int i = 0; i < 8; i++)
            to->quad[i] = b + i < blocks ? avx2_vector_at(x[i].q, 0) : _mm256_setzero_si256();
        lanes_dwords_turn(to->quad);
    }
}

/* Of 8 blocks the products, and from SUM_BIT on the sum of the weights. */
AVX2_INLINE __m256i eight_sums(const uint8_t *body, const struct eight_inputs *x)
{
    const __m256i low = _mm256_set1_epi8(15), start = _mm256_set1_epi32(1 << 16);
    const __m256i eights = _mm256_set1_epi8(1 << (SUM_BIT - 14)), most = _mm256_set1_epi16(1 << 14);
    __m256i words = _mm256_set1_epi16(-32768), bytes = _mm256_setzero_si256();
    UNROLLED (i, 8) {
        const __m256i w = avx2_vector_at(body, i / 2);
        const __m256i nibbles = _mm256_and_si256(i % 2 ? _mm256_srli_epi16(w, 4) : w, low);
        words = _mm256_add_epi16(words, _mm256_maddubs_epi16(x->quad[i], nibbles));
        bytes = _mm256_add_epi8(bytes, nibbles);
    }
    const __m256i products = _mm256_madd_epi16(words, _mm256_set1_epi16(1));
    const __m256i weights = _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, eights), most);
    return _mm256_add_epi32(_mm256_add_epi32(products, start), weights);
}

/* Of the last blocks, n bytes of bodies that are not mixed. */
static __m256i rest_sums(const uint8_t *body, int64_t n, const struct eight_inputs *x)
{
    uint8_t mixed[BODIES] = {0};
    for (int64_t i = 0; i < n; i += 4)
        memcpy(mixed + i % 16 * 8 + i / 16 * 4, body + i, 4);
    return eight_sums(mixed, x);
}

/* A group of 8 rows of the list, or of what is left. */
struct listed {
    const struct matrix_job *j;
    const struct rows_list *l;
    int64_t stride; /* of rows */
    int64_t i;      /* the first one's place in the list */
    int rows;
    int64_t next; /* the row that is prefetched, in the list, and what is left of it */
    const uint8_t *line, *end;
    int64_t turned; /* the element that x begins with, or -1 */
    struct eight_inputs x[PIECE / EIGHT];
};

AVX2_INLINE const uint8_t *listed_row(const struct listed *g, int64_t i)
{
    const int64_t last = g->l->n + g->l->after - 1;
    return g->j->w->data + g->l->list[min_i64(i, last)] * g->stride;
}

/* The next n lines, row by row. */
AVX2_INLINE void lines_prefetch(struct listed *g, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        _mm_prefetch((const char *)g->line, _MM_HINT_T0);
        g->line += LINE;
        if (g->line == g->end) {
            g->line = listed_row(g, ++g->next);
            g->end = g->line + g->stride;
        }
    }
}

/* From there on, counted from the list's first row. */
static void prefetch_from(struct listed *g, int64_t bytes)
{
    g->next = bytes / g->stride;
    g->line = listed_row(g, g->next);
    g->end = g->line + g->stride;
    g->line += bytes % g->stride / LINE * LINE;
}

/* Elements [at, at + n) of all rows. */
AVX2_INLINE void piece_sums(const struct lanes_format *f, struct listed *g, int64_t at, int64_t n,
                            __m256i (*sums)[8])
{
    const int64_t heads = rows_heads(f, g->j->w->k), bytes = 4 * rows_dwords(f, n);
    for (int r = 0; r < g->rows; r++) {
        const uint8_t *row = listed_row(g, g->i + r) + heads + 4 * rows_dwords(f, at);
        const struct eight_inputs *x = g->x;
        int64_t b = 0;
        if (at == 0)
            lines_prefetch(g, heads / LINE);
        for (; b + BODIES <= bytes; b += BODIES, x++) {
            lines_prefetch(g, BODIES / LINE);
            sums[b / BODIES][r] = eight_sums(row + b, x);
        }
        if (b < bytes) {
            lines_prefetch(g, (bytes - b + LINE - 1) / LINE);
            sums[b / BODIES][r] = rest_sums(row + b, bytes - b, x);
        }
    }
}

/* Heads of up to 8 blocks of 32, or of one of 256, from element `at` of each row on. */
AVX2_INLINE void heads_turn(const struct lanes_format *f, const struct listed *g, int64_t at,
                            int64_t n, uint8_t *out)
{
    const int64_t from = at / f->block * f->head;
    if (f->head == 2) {
        __m128i x[8];
        UNROLLED (r, 8)
            x[r] = _mm_loadu_si128((const __m128i *)(const void *)(listed_row(g, g->i + r) + from));
        lanes_words_turn(x);
        UNROLLED (b, 8)
            _mm_storeu_si128((__m128i *)(void *)(out + 16 * b), x[b]);
        return;
    }
    for (int64_t b = 0; b < n / f->block; b++)
        for (int r = 0; r < 8; r++)
            rows_head_copy(f, (uint8_t *)(uintptr_t)listed_row(g, g->i + r) + from + b * f->head,
                           out + b * 8 * f->head, r, 8, false);
}

/* 256 elements, or what is left, of all rows. */
AVX2_INLINE __m256 eight_add(const struct lanes_format *f, const struct lanes_bytes *x, int64_t n,
                             const uint8_t *heads, __m256i *sums, __m256 acc)
{
    const __m256i products = _mm256_set1_epi32((1 << SUM_BIT) - 1);
    const __m256i all = _mm256_set1_epi32(32 * f->offset);
    uint8_t room[SUBS_BYTES];
    struct block_head head;
    lanes_dwords_turn(sums);
    UNROLLED (b, 8) {
        if (32 * b >= n)
            break;
        if (f->block == 32 || b == 0)
            head = block_head(f, heads + b * LANES * f->head, room);
        const __m256i both = sums[b];
        const __m256 scale = sub_scale(f, &head, b);
        const __m256i total = _mm256_set1_epi32(f->offset * x[b].total);
        const __m256i dot = _mm256_sub_epi32(_mm256_and_si256(both, products), total);
        const __m256i weights = _mm256_sub_epi32(_mm256_srli_epi32(both, SUM_BIT), all);
        const __m256 sum = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(weights));
        acc = _mm256_fmadd_ps(_mm256_mul_ps(_mm256_set1_ps(x[b].step), scale),
                              _mm256_cvtepi32_ps(dot), acc);
        acc = _mm256_fmadd_ps(_mm256_set1_ps(x[b].min), sum, acc);
        if (f->has_min)
            acc = _mm256_fmadd_ps(_mm256_set1_ps(x[b].sum), sub_min(f, &head, b), acc);
    }
    return acc;
}

AVX2_INLINE void group_dot(const struct lanes_format *f, struct listed *g, float *y)
{
    const int64_t k = g->j->w->k;
    __m256i sums[PIECE / EIGHT][8];
    __m256 acc = _mm256_setzero_ps();
    if (g->rows < 8)
        memset(sums, 0, sizeof sums);
    for (int64_t at = 0; at < k; at += PIECE) {
        const int64_t n = min_i64(PIECE, k - at);
        const struct lanes_bytes *in = (const struct lanes_bytes *)g->j->packed + at / 32;
        if (g->turned != at)
            inputs_turn(in, n / 32, g->x);
        g->turned = at;
        piece_sums(f, g, at, n, sums);
        for (int64_t e = 0; e < n; e += EIGHT) {
            uint8_t heads[LANES * EIGHT / 32 * 4];
            heads_turn(f, g, at + e, min_i64(EIGHT, n - e), heads);
            acc = eight_add(f, in + e / 32, n - e, heads, sums[e / EIGHT], acc);
        }
    }
    _mm256_maskstore_ps(y, avx2_mask(g->rows), acc);
}

bool avx2_bytes_listed(const struct matrix_job *j, const struct rows_list *rows)
{
    struct listed g;
    if (j->T > 1)
        return false;
    g.j = j;
    g.l = rows;
    g.stride = (int64_t)lanes_rows_stride(j->w->dtype, j->w->k);
    g.turned = -1;
    prefetch_from(&g, 0);
    if (rows->first)
        lines_prefetch(&g, AHEAD / LINE);
    prefetch_from(&g, AHEAD);
    for (g.i = 0; g.i < rows->n; g.i += 8) {
        g.rows = (int)min_i64(8, rows->n - g.i);
        switch ((int)j->w->dtype) {
        case DT_Q4_0: group_dot(&lanes_Q4_0, &g, j->y + g.i); break;
        case DT_Q4_1: group_dot(&lanes_Q4_1, &g, j->y + g.i); break;
        case DT_Q4_K: group_dot(&lanes_Q4_K, &g, j->y + g.i); break;
        default: return false;
        }
    }
    return true;
}
