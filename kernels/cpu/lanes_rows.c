/*
 * lanes_rows.c - WEIGHT_ROWS at the levels with vectors: rows that are read one by one and become
 * groups of the layout of lanes_layout.c on every use, so that the products of a few rows are those
 * of a matrix.
 *
 * A row has what it would have as a lane, heads of all blocks first, up to a multiple of 64 bytes,
 * then the dwords of all bodies: interleaving is a transpose of dwords, about 2.5 instructions for
 * 32 elements, where from the GGUF's blocks it would be ten. At 8 lanes nibbles of each 8 blocks
 * are mixed, the first dwords of all of them, then the second ones: a vector has one of each block,
 * as avx2_listed.c adds them up. Rows of float types, and of those with
 * a codebook, are the GGUF's.
 *
 * The rows of a list are short streams in memory, which no hardware foresees: AHEAD lines of each
 * row of a group are prefetched, those of the next group behind them.
 */
#include "kernels/cpu/lanes_rows.h"

#include <string.h>

enum { ROWS = 8, PIECE = 256 /* elements */, AHEAD = 6 * LINE };

uint64_t lanes_rows_stride(oato_dtype dtype, int64_t k)
{
    const struct lanes_format *f = rows_format(dtype);
    return f ? (uint64_t)rows_heads(f, k) + size_align((size_t)rows_dwords(f, k) * 4, LINE)
             : weight_rows_stride(dtype, k);
}

/* ---------------------------------------------------------------------------------- to rows */

/* n elements of a group of 8 to row `lane`, of which they are those from `at` on. */
static void row_put(const struct lanes_format *f, int lanes, uint8_t *group, int lane, int64_t at,
                    int64_t n, int64_t k, uint8_t *row)
{
    const int64_t mixed = rows_mixed(f, lanes, k);
    uint8_t *bodies = row + rows_heads(f, k);
    int64_t d = rows_dwords(f, at);
    for (int64_t e = 0; e < n; e += f->block, group += ROWS * lanes_block_bytes(f)) {
        rows_head_copy(f, row + (at + e) / f->block * f->head, group, lane, ROWS, true);
        for (int64_t i = 0; i < rows_dwords(f, f->block); i++, d++) {
            const int64_t to = d < mixed ? d / 32 * 32 + d % 4 * 8 + d % 32 / 4 : d;
            memcpy(bodies + 4 * to, group + ROWS * f->head + (i * ROWS + lane) * 4, 4);
        }
    }
}

static void rows_prepare(int lanes, const struct weight_source *s, struct oato_weight *w,
                         int64_t begin, int64_t end)
{
    const struct lanes_format *f = rows_format(s->dtype);
    const struct dtype_info *type = dtype_info((int)s->dtype);
    const uint64_t stride = lanes_rows_stride(s->dtype, s->k);
    uint8_t group[ROWS * PIECE * 2];
    if (!f) {
        weight_rows_copy(s, w, begin, end);
        return;
    }
    struct weight_source piece = *s;
    struct oato_weight part = {.dtype = s->dtype, .use = WEIGHT_MATRIX, .data = group};
    piece.row_stride = weight_source_stride(s);
    for (int64_t r = begin; r < end; r += ROWS) {
        const int64_t rows = min_i64(ROWS, end - r);
        uint8_t *to = (uint8_t *)(uintptr_t)w->data + (uint64_t)r * stride;
        memset(to, 0, (uint64_t)rows * stride);
        piece.row_begin = s->row_begin + r;
        for (int64_t at = 0; at < s->k; at += piece.k) {
            piece.k = min_i64(PIECE, s->k - at);
            piece.data = (const uint8_t *)s->data + at / type->block_elems * type->block_bytes;
            part.k = piece.k;
            lanes_matrix_prepare(ROWS, &piece, &part, 0, rows);
            for (int lane = 0; lane < rows; lane++)
                row_put(f, lanes, group, lane, at, piece.k, s->k, to + (uint64_t)lane * stride);
        }
    }
}

void lanes8_rows_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                         int64_t end)
{
    rows_prepare(8, s, w, begin, end);
}

void lanes16_rows_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                          int64_t end)
{
    rows_prepare(16, s, w, begin, end);
}

/* -------------------------------------------------------------------------------- to groups */

/* Those AHEAD of byte p of all rows. */
AVX2_INLINE void group_prefetch(const struct rows_group *g, int lanes, int64_t p)
{
    const bool here = p + AHEAD < g->bytes;
    const int64_t at = p + AHEAD - (here ? 0 : g->bytes);
    for (int r = 0; r < lanes; r++)
        _mm_prefetch((const char *)(here ? g->at[r] : g->next[r]) + at, _MM_HINT_T0);
}

/* Vector j of 8 dwords of each row, from number i on, to where the group of a matrix has it. */
AVX2_INLINE void mixed_store(const struct lanes_format *f, int64_t i, int j, __m256i x,
                             uint8_t *out)
{
    const int64_t b = i / 32 * 8 + j, in = f->block / 32;
    const int64_t at = b / in * 8 * lanes_block_bytes(f) + 8 * f->head + b % in * 8 * f->body;
    _mm256_storeu_si256((__m256i *)(void *)(out + at + i % 32 / 8 * 32), x);
}

AVX2_INLINE void bodies_turn(const struct lanes_format *f, const struct rows_group *g, int lanes,
                             int64_t k, uint8_t *out)
{
    const int64_t heads = rows_heads(f, k), dwords = rows_dwords(f, k);
    const int64_t block = lanes * lanes_block_bytes(f), each = rows_dwords(f, f->block);
    const int64_t mixed = rows_mixed(f, lanes, k);
    uint8_t *to = out + mixed / each * block + lanes * f->head; /* the body at hand */
    int64_t in_block = 0;
    for (int64_t i = 0; i < dwords; i += 8) {
        const int n = (int)min_i64(8, dwords - i);
        __m256i x[2][ROWS];
        if (i % 16 == 0)
            group_prefetch(g, lanes, heads + 4 * i);
        UNROLLED (h, lanes / 8) {
            UNROLLED (r, ROWS)
                x[h][r] = _mm256_loadu_si256(
                    (const __m256i *)(const void *)(g->at[8 * h + r] + heads + 4 * i));
            lanes_dwords_turn(x[h]);
        }
        UNROLLED (j, 8) {
            if (i < mixed) {
                mixed_store(f, i, j, x[0][j], out);
            } else if (j < n) {
                UNROLLED (h, lanes / 8)
                    _mm256_storeu_si256((__m256i *)(void *)(to + in_block * 4 * lanes + 32 * h),
                                        x[h][j]);
                if (++in_block == each) {
                    in_block = 0;
                    to += block;
                }
            }
        }
    }
}

/* Heads of one word, which rows have up to a multiple of 64 bytes. */
AVX2_INLINE void words_put(const struct rows_group *g, int lanes, int64_t blocks, int64_t block,
                           uint8_t *out)
{
    for (int64_t b = 0; b < blocks; b += 8) {
        if (b % 32 == 0)
            group_prefetch(g, lanes, 2 * b);
        UNROLLED (h, lanes / 8) {
            __m128i x[ROWS];
            UNROLLED (r, ROWS)
                x[r] = _mm_loadu_si128((const __m128i *)(const void *)(g->at[8 * h + r] + 2 * b));
            lanes_words_turn(x);
            for (int64_t i = 0; i < min_i64(8, blocks - b); i++)
                _mm_storeu_si128((__m128i *)(void *)(out + (b + i) * block + 16 * h), x[i]);
        }
    }
}

AVX2_INLINE void group_turn(const struct lanes_format *f, const struct rows_group *g, int lanes,
                            int64_t k, uint8_t *out)
{
    const int64_t block = lanes * lanes_block_bytes(f), per_line = max_i64(1, LINE / f->head);
    const int64_t blocks = k / f->block;
    if (f->head == 2)
        words_put(g, lanes, blocks, block, out);
    for (int64_t b = 0; f->head != 2 && b < blocks; b++) {
        if (b % per_line == 0)
            group_prefetch(g, lanes, b * f->head / LINE * LINE);
        for (int lane = 0; lane < lanes; lane++)
            rows_head_copy(f, (uint8_t *)(uintptr_t)g->at[lane] + b * f->head, out + b * block,
                           lane, lanes, false);
    }
    bodies_turn(f, g, lanes, k, out);
}

/* Heads of the commonest forms and the number of lanes are known to the compiler. */
static void group_put(const struct lanes_format *f, const struct rows_group *g, int lanes,
                      int64_t k, uint8_t *out)
{
    if (lanes == 8)
        group_turn(f, g, 8, k, out);
    else if (f->dtype == DT_Q4_0)
        group_turn(&lanes_Q4_0, g, 16, k, out);
    else if (f->dtype == DT_Q8_0)
        group_turn(&lanes_Q8_0, g, 16, k, out);
    else if (f->dtype == DT_Q4_K)
        group_turn(&lanes_Q4_K, g, 16, k, out);
    else
        group_turn(f, g, 16, k, out);
}

void lanes_rows_panel(int lanes, const struct oato_weight *w, const struct rows_list *rows,
                      struct oato_weight *panel)
{
    const struct lanes_format *f = rows_format(w->dtype);
    if (!f) {
        weight_rows_panel(lanes_matrix_prepare, lanes, w, rows->list, rows->n, panel);
        return;
    }
    uint8_t *out = (uint8_t *)(uintptr_t)panel->data;
    for (int64_t i = 0; i < rows->n; i += lanes) {
        const struct rows_group g = rows_group(w, rows, i, lanes, lanes);
        for (int64_t p = -AHEAD; rows->first && !i && p < 0; p += LINE)
            group_prefetch(&g, lanes, p);
        group_put(f, &g, lanes, w->k, out);
        out += lanes_matrix_bytes(lanes, w->dtype, lanes, w->k);
    }
}
