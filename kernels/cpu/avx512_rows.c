/*
 * avx512_rows.c - products of listed rows of WEIGHT_ROWS (up of a sparse FFN) for one or two
 * columns, where memory is the limit:
 *
 *   for each 16 listed rows                (float types: 32)
 *     for each 256 of k                    (float types: 64 bytes)
 *       their bytes become a group of the layout of matrices, 4 KiB of L1
 *       its products, by the code and with the bits of the dense kernels
 *
 * Rows are short streams that no hardware foresees: while a piece is computed, its share of lines
 * is prefetched further on in each row, and of the rows of the next group behind their ends. Memory
 * is then asked evenly, where a whole group gathered first would leave it idle for the products.
 * Turning rows to lanes is 64 shuffles a KiB, a third of what the products are.
 */
#include "kernels/cpu/avx512_dot.h"
#include "kernels/cpu/lanes_rows.h"

enum {
    PIECE = 256,        /* elements */
    PIECE_DWORDS = 64,  /* of a row, at most */
    PIECE_HEADS = 32,   /* bytes of a row, at most */
    AHEAD_LINES = 6,    /* of bodies; heads come first in a row */
    LISTED_COLUMNS = 2, /* beyond, a panel is used more often than it is made */
    FLOAT_GROUPS = 2,   /* one chain of multiply-adds alone would wait for itself */
    FLOAT_AHEAD = 6 * LINE,
};

/* The first n dwords, at most 16, from byte `at` of 16 rows become vectors of one of each. */
AVX2_INLINE void dwords_turn(const uint8_t *const *row, int64_t at, __mmask64 bytes,
                             __m512i out[LANES])
{
    __m512i a[LANES], b[LANES];
    UNROLLED (i, LANES)
        b[i] = _mm512_maskz_loadu_epi8(bytes, row[i] + at);
    UNROLLED (i, LANES / 2) { /* dwords 0 1, 2 3 of each quarter, of two rows */
        a[2 * i] = _mm512_unpacklo_epi32(b[2 * i], b[2 * i + 1]);
        a[2 * i + 1] = _mm512_unpackhi_epi32(b[2 * i], b[2 * i + 1]);
    }
    UNROLLED (i, LANES / 2) { /* b[4 j + c]: dword c of each quarter, of rows 4 j to 4 j + 3 */
        const int from = i / 2 * 4 + i % 2;
        b[2 * i] = _mm512_unpacklo_epi64(a[from], a[from + 2]);
        b[2 * i + 1] = _mm512_unpackhi_epi64(a[from], a[from + 2]);
    }
    UNROLLED (c, 4) { /* quarters to rows */
        const __m512i p = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88);
        const __m512i q = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88);
        const __m512i r = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
        const __m512i s = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        out[c] = _mm512_shuffle_i32x4(p, q, 0x88);
        out[4 + c] = _mm512_shuffle_i32x4(r, s, 0x88);
        out[8 + c] = _mm512_shuffle_i32x4(p, q, 0xdd);
        out[12 + c] = _mm512_shuffle_i32x4(r, s, 0xdd);
    }
}

/* ---------------------------------------------------------------------------------- blocks */

/* A piece of 16 rows as groups of the layout have it, but heads and bodies apart; and what the last
 * stores reach beyond. */
struct rows_piece {
    _Alignas(64) uint8_t body[(PIECE_DWORDS + LANES) * 4 * LANES];
    _Alignas(64) uint8_t head[(PIECE_HEADS + 16) * LANES];
};

/* 16 bytes of 16 rows become vectors of a byte of each: four times two halves are interleaved. */
AVX2_INLINE void bytes_turn(const uint8_t *const *row, int64_t at, uint8_t *out)
{
    __m128i a[LANES], b[LANES];
    UNROLLED (i, LANES)
        a[i] = _mm_loadu_si128((const __m128i *)(const void *)(row[i] + at));
    UNROLLED (twice, 2) {
        UNROLLED (i, LANES / 2) {
            b[2 * i] = _mm_unpacklo_epi8(a[i], a[i + LANES / 2]);
            b[2 * i + 1] = _mm_unpackhi_epi8(a[i], a[i + LANES / 2]);
        }
        UNROLLED (i, LANES / 2) {
            a[2 * i] = _mm_unpacklo_epi8(b[i], b[i + LANES / 2]);
            a[2 * i + 1] = _mm_unpackhi_epi8(b[i], b[i + LANES / 2]);
        }
    }
    UNROLLED (i, LANES)
        _mm_storeu_si128((__m128i *)(void *)(out + LANES * i), a[i]);
}

/* Heads of `blocks` blocks from byte `at` of each row on. */
AVX2_INLINE void heads_turn(const struct lanes_format *f, const uint8_t *const *row, int64_t at,
                            int64_t blocks, uint8_t *out)
{
    const int halves = rows_halves(f);
    const int64_t bytes = blocks * f->head;
    uint8_t byte[PIECE_HEADS][LANES];
    int64_t done = 0;
    do {
        /* the last ones again rather than what is not a head */
        const int64_t from = done && done + 16 > bytes ? bytes - 16 : done;
        bytes_turn(row, at + from, byte[from]);
        done = from + 16;
    } while (done < bytes);
    for (int64_t b = 0; b < blocks; b++, out += LANES * f->head) {
        UNROLLED (i, f->head) {
            const int64_t n = b * f->head + i;
            const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)byte[n]);
            if (i >= 2 * halves) {
                _mm_storeu_si128((__m128i *)(void *)(out + LANES * i), x);
            } else if (i % 2 == 0) {
                const __m128i y = _mm_loadu_si128((const __m128i *)(const void *)byte[n + 1]);
                _mm_storeu_si128((__m128i *)(void *)(out + LANES * i), _mm_unpacklo_epi8(x, y));
                _mm_storeu_si128((__m128i *)(void *)(out + LANES * (i + 1)),
                                 _mm_unpackhi_epi8(x, y));
            }
        }
    }
}

/* k of the rows, from element `from` on. */
AVX2_INLINE void piece_turn(const struct lanes_format *f, const struct rows_group *g, int64_t k,
                            int64_t from, int64_t n, struct rows_piece *p)
{
    const int64_t dwords = rows_dwords(f, n), at = rows_heads(f, k) + 4 * rows_dwords(f, from);
    heads_turn(f, g->at, from / f->block * f->head, n / f->block, p->head);
    for (int64_t i = 0; i < dwords; i += LANES) {
        __m512i x[LANES];
        const int left = 4 * (int)min_i64(LANES, dwords - i);
        dwords_turn(g->at, at + 4 * i, UINT64_MAX >> (64 - left), x);
        UNROLLED (j, LANES)
            _mm512_store_si512(p->body + 4 * LANES * (i + j), x[j]);
    }
}

/* Lines [from, to) of each row, counted on through the rows of the next group. */
AVX2_INLINE void lines_prefetch(const struct rows_group *g, int64_t from, int64_t to)
{
    const int64_t lines = g->bytes / LINE;
    for (int64_t i = from; i < to; i++) {
        const uint8_t *const *row = i < lines ? g->at : g->next;
        const int64_t at = (i < lines ? i : i - lines) * LINE;
        UNROLLED (r, LANES)
            _mm_prefetch((const char *)row[r] + at, _MM_HINT_T0);
    }
}

/* 16 rows, of which the mask's are wanted, and `columns` columns, to y. */
AVX2_INLINE void group_dot(const struct lanes_format *f, const struct matrix_job *j,
                           const struct rows_group *g, bool first, float *y, __mmask16 mask,
                           int columns)
{
    const int64_t k = j->w->k, lines = g->bytes / LINE;
    const int64_t ahead = min_i64(lines, rows_heads(f, k) / LINE + AHEAD_LINES);
    struct rows_piece piece;
    struct pass p;
    UNROLLED (c, columns) {
        p.x[c] = j->packed + (uint64_t)c * j->pack_stride;
        p.acc[c][0] = _mm512_setzero_ps();
    }
    if (first)
        lines_prefetch(g, 0, ahead);
    for (int64_t at = 0; at < k; at += PIECE) {
        const int64_t n = min_i64(PIECE, k - at);
        lines_prefetch(g, ahead + lines * at / k, ahead + lines * (at + n) / k);
        piece_turn(f, g, k, at, n, &piece);
        const uint8_t *head = piece.head, *body = piece.body;
        for (int64_t e = 0; e < n; e += f->block) {
            block_dot(f, &head, &body, 0, &p, 1, columns);
            head += LANES * f->head;
            body += LANES * f->body * (f->block / 32);
        }
    }
    UNROLLED (c, columns)
        _mm512_mask_storeu_ps(y + c * j->y_stride, mask, p.acc[c][0]);
}

typedef void group_fn(const struct matrix_job *j, const struct rows_group *g, bool first, float *y,
                      __mmask16 mask);

/* A function for each type and number of columns, as in avx512_bytes_vector.c. */
#define GROUP(type, columns)                                                                       \
    __attribute__((noinline)) static void group_##type##_##columns(                                \
        const struct matrix_job *j, const struct rows_group *g, bool first, float *y,              \
        __mmask16 mask)                                                                            \
    {                                                                                              \
        if (!lanes_##type.grid)                                                                    \
            group_dot(&lanes_##type, j, g, first, y, mask, columns);                               \
    }
#define GROUPS(type, ...) GROUP(type, 1) GROUP(type, 2)
BLOCK_TYPES(GROUPS)
#undef GROUPS
#undef GROUP

static group_fn *group_of(oato_dtype dtype, int64_t columns)
{
#define GROUPS(type, ...)                                                                          \
    case DT_##type: return columns == 1 ? group_##type##_1 : group_##type##_2;
    switch ((int)dtype) {
        BLOCK_TYPES(GROUPS)
    }
#undef GROUPS
    return NULL;
}

bool avx512_bytes_listed(const struct matrix_job *j, const struct rows_list *rows)
{
    if (!rows_format(j->w->dtype) || j->T > LISTED_COLUMNS)
        return false;
    group_fn *run = group_of(j->w->dtype, j->T);
    for (int64_t i = 0; i < rows->n; i += LANES) {
        const struct rows_group g = rows_group(j->w, rows, i, LANES, LANES);
        run(j, &g, rows->first && !i, j->y + i, avx512_mask(rows->n - i));
    }
    return true;
}

/* ---------------------------------------------------------------------------------- floats */

/* Element i of 16 rows, whose dwords are at p. */
AVX2_INLINE __m512 element(oato_dtype dtype, const __m512i *p, int i)
{
    if (dtype == DT_F32)
        return (__m512)p[i];
    const __m512i pair = p[i / 2];
    if (dtype == DT_BF16)
        return (__m512)(i % 2 ? _mm512_and_si512(pair, _mm512_set1_epi32((int)0xffff0000))
                              : _mm512_slli_epi32(pair, 16));
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(i % 2 ? _mm512_srli_epi32(pair, 16) : pair));
}

/* 16 rows for each group and `columns` columns, to y. */
AVX2_INLINE void floats_dot(oato_dtype dtype, const struct matrix_job *j,
                            const struct rows_group *g, bool first, float *y, int64_t rows,
                            int groups, int columns)
{
    const int bytes = dtype == DT_F32 ? 4 : 2, most = LINE / bytes;
    const int64_t k = j->w->k;
    __m512 acc[LISTED_COLUMNS][FLOAT_GROUPS];
    UNROLLED (c, columns)
        UNROLLED (n, groups)
            acc[c][n] = _mm512_setzero_ps();
    for (int i = 0; first && i < groups; i++)
        lines_prefetch(g + i, 0, min_i64(g->bytes, FLOAT_AHEAD) / LINE);
    for (int64_t at = 0; at < k; at += most) {
        const int n = (int)min_i64(most, k - at);
        __m512i x[FLOAT_GROUPS][LANES];
        for (int i = 0; i < groups; i++) {
            const int64_t line = (at * bytes + FLOAT_AHEAD) / LINE;
            lines_prefetch(g + i, line, line + 1);
            dwords_turn(g[i].at, at * bytes, UINT64_MAX >> (64 - n * bytes), x[i]);
        }
        UNROLL
        for (int e = 0; e < most; e++) {
            if (e >= n)
                break;
            UNROLLED (c, columns) {
                const __m512 of = _mm512_set1_ps(j->x[c * k + at + e]);
                UNROLLED (i, groups)
                    acc[c][i] = _mm512_fmadd_ps(element(dtype, x[i], e), of, acc[c][i]);
            }
        }
    }
    UNROLLED (c, columns)
        UNROLLED (i, groups)
            _mm512_mask_storeu_ps(y + c * j->y_stride + LANES * i, avx512_mask(rows - LANES * i),
                                  acc[c][i]);
}

AVX2_INLINE void floats_shapes(oato_dtype dtype, const struct matrix_job *j,
                               const struct rows_group *g, bool first, float *y, int64_t rows)
{
    switch (2 * (rows > LANES) + j->T) {
    case 1: floats_dot(dtype, j, g, first, y, rows, 1, 1); break;
    case 2: floats_dot(dtype, j, g, first, y, rows, 1, 2); break;
    case 3: floats_dot(dtype, j, g, first, y, rows, 2, 1); break;
    default: floats_dot(dtype, j, g, first, y, rows, 2, 2);
    }
}

bool avx512_float_listed(const struct matrix_job *j, const struct rows_list *rows)
{
    const int step = FLOAT_GROUPS * LANES;
    if (j->T > LISTED_COLUMNS)
        return false;
    for (int64_t i = 0; i < rows->n; i += step) {
        struct rows_group g[FLOAT_GROUPS];
        for (int n = 0; n < FLOAT_GROUPS; n++)
            g[n] = rows_group(j->w, rows, i + n * LANES, LANES, step);
        const bool first = rows->first && !i;
#define FLOATS(type, ...)                                                                          \
    case DT_##type: floats_shapes(DT_##type, j, g, first, j->y + i, rows->n - i); break;
        switch ((int)j->w->dtype) {
            FLOAT_TYPES(FLOATS)
        }
#undef FLOATS
    }
    return true;
}
