/*
 * columns.c - weights of WEIGHT_COLUMNS: a matrix whose columns (the neurons of an FFN) are read
 * one by one, so that those with a zero for input can be left out. On every device:
 *
 *   int32 blocks, start[blocks + 1]       up to a multiple of 64 bytes
 *   for each block:  scale[n], and min[n] where the type has minima: F16, or float32 where the
 * type's own scales are products for each column of the block: n integers
 *
 * n is the number of rows, up to a multiple of 64; behind a long column is a gap of zeros. A block
 * has the columns that share a scale, 32 or 16 of the original matrix, or those of them that the
 * source's list names: start[b] is the number of its first one. Weights keep their values: scale *
 * (integer - offset) + min. Integers of 64 rows lie so that four columns, interleaved byte by byte
 * and then word by word with the unpack instructions of x86, give the rows in order in dwords: row
 * 16 v + 4 l + d is number 16 l + 4 v + d. As nibbles, numbers 0 to 31 are the low ones of 32 bytes
 * and 32 to 63 the high ones. Float types have no blocks: each column is n elements of the type in
 * order.
 */
#include "kernels/core/core_internal.h"

#include <string.h>

enum { LONG_COLUMN = 1024 }; /* bytes */

#define FLOATS                                                                                     \
    {                                                                                              \
        .block = 1                                                                                 \
    }
#define INTEGERS(bits, offset, block, has_min, half)                                               \
    {                                                                                              \
        bits, offset, block, has_min, half                                                         \
    }
static const struct columns_form forms[DT_COUNT] = {
    [DT_F32] = FLOATS,
    [DT_F16] = FLOATS,
    [DT_BF16] = FLOATS,
    [DT_Q4_0] = INTEGERS(4, 8, 32, false, true),
    [DT_Q4_1] = INTEGERS(4, 0, 32, true, true),
    [DT_Q5_0] = INTEGERS(8, 128, 32, false, true),
    [DT_Q5_1] = INTEGERS(8, 128, 32, true, true),
    [DT_Q8_0] = INTEGERS(8, 128, 32, false, true),
    [DT_Q2_K] = INTEGERS(4, 0, 16, true, false),
    [DT_Q3_K] = INTEGERS(4, 4, 16, false, false),
    [DT_Q4_K] = INTEGERS(4, 0, 32, true, false),
    [DT_Q5_K] = INTEGERS(8, 128, 32, true, false),
    [DT_Q6_K] = INTEGERS(8, 128, 16, false, false),
    [DT_IQ4_NL] = INTEGERS(8, 128, 32, false, true),
    [DT_IQ4_XS] = INTEGERS(8, 128, 32, false, false),
    [DT_MXFP4] = INTEGERS(8, 128, 32, false, false),
    [DT_IQ2_XXS] = INTEGERS(8, 128, 32, false, false),
    [DT_IQ2_XS] = INTEGERS(8, 128, 16, false, false),
    [DT_IQ3_XXS] = INTEGERS(8, 128, 32, false, false),
    [DT_IQ1_S] = INTEGERS(8, 128, 32, false, false),
    [DT_IQ3_S] = INTEGERS(8, 128, 32, false, false),
    [DT_IQ2_S] = INTEGERS(8, 128, 16, false, false),
    [DT_IQ1_M] = INTEGERS(8, 128, 16, false, false),
    [DT_TQ1_0] = INTEGERS(4, 1, 32, false, true),
    [DT_TQ2_0] = INTEGERS(4, 1, 32, false, true),
    [DT_NVFP4] = INTEGERS(8, 128, 16, false, false),
};
#undef INTEGERS
#undef FLOATS
const struct columns_form *columns_form_of(oato_dtype dtype)
{
    return &forms[dtype];
}

/* Bytes of n rows of one column. */
static uint64_t used_bytes(oato_dtype dtype, int64_t n)
{
    const struct columns_form *f = &forms[dtype];
    return (uint64_t)columns_rows(n) *
           (f->bits ? (uint64_t)f->bits : 8 * (uint64_t)dtype_info((int)dtype)->block_bytes) / 8;
}

/* From one column to the next: of long ones an odd number of cache lines, so that the same rows of
 * a block's columns lie in different sets of a cache. */
static uint64_t column_bytes(oato_dtype dtype, int64_t n)
{
    const uint64_t used = used_bytes(dtype, n);
    return used < LONG_COLUMN ? used : size_align((size_t)used, 64) | 64;
}

/* Of the scales of one block. */

static uint64_t scales_bytes(oato_dtype dtype, int64_t n)
{
    const struct columns_form *f = &forms[dtype];
    return f->bits ? (uint64_t)columns_rows(n) * (f->half ? 2 : 4) * (f->has_min ? 2 : 1) : 0;
}

static uint64_t head_bytes(int64_t blocks)
{
    return size_align((size_t)(blocks + 2) * sizeof(int32_t), 64);
}

uint64_t columns_bytes(oato_dtype dtype, int64_t n, int64_t k, int64_t blocks)
{
    return head_bytes(blocks) + (uint64_t)blocks * scales_bytes(dtype, n) +
           (uint64_t)k * column_bytes(dtype, n);
}

int64_t columns_blocks(oato_dtype dtype, const int32_t *list, int64_t k)
{
    const struct columns_form *f = &forms[dtype];
    int64_t blocks = 0;
    if (!f->bits)
        return 0;
    if (!list)
        return (k + f->block - 1) / f->block;
    for (int64_t i = 0; i < k; i++)
        blocks += !i || list[i] / f->block != list[i - 1] / f->block;
    return blocks;
}

struct columns columns_at(const struct oato_weight *w, int64_t blocks)
{
    return (struct columns){.form = &forms[w->dtype],
                            .blocks = blocks,
                            .start = (const int32_t *)(const void *)w->data + 1,
                            .scales = scales_bytes(w->dtype, w->rows),
                            .column = column_bytes(w->dtype, w->rows),
                            .data = w->data + head_bytes(blocks)};
}

struct columns columns_of(const struct oato_weight *w)
{
    return columns_at(w, *(const int32_t *)(const void *)w->data);
}

/* -------------------------------------------------------------------------------- prepare - */

/* The column after the last one that is in the block of column i. */
static int64_t block_end(const struct weight_source *s, int64_t i)
{
    const int64_t block = forms[s->dtype].block;
    int64_t end = i + 1;
    if (!s->list)
        return min_i64(s->k, (i / block + 1) * block);
    while (end < s->k && s->list[end] / block == s->list[i] / block)
        end++;
    return end;
}

static void head_prepare(const struct weight_source *s, const struct columns *c, int32_t *head)
{
    int32_t *start = head + 1;
    memset(head, 0, head_bytes(c->blocks));
    head[0] = (int32_t)c->blocks;
    for (int64_t i = 0; c->blocks && i < s->k; i = block_end(s, i))
        *start++ = (int32_t)i;
    *start = (int32_t)s->k;
}

static void scale_put(const struct columns_form *f, uint8_t *to, int64_t row, float x)
{
    const uint16_t half = f->half ? f32_to_f16(x) : 0;
    if (f->half)
        memcpy(to + 2 * row, &half, sizeof half);
    else
        memcpy(to + 4 * row, &x, sizeof x);
}

/* Where the rows of a block's columns are in the tensor. */
struct block_source {
    const uint8_t *from; /* the first of 64 rows or fewer */
    uint64_t stride;
    int64_t rows;
    int sub;     /* of the GGUF's block */
    int members; /* columns, and which of the block's they are: */
    uint8_t member[32];
};

static void block_prepare(oato_dtype dtype, const struct block_source *s, int64_t n, uint8_t *to,
                          int64_t first_row)
{
    const struct columns_form *f = &forms[dtype];
    const uint64_t column = column_bytes(dtype, n), half = scales_bytes(dtype, n) / 2;
    uint8_t integers[32][64];
    memset(integers, 0, sizeof integers);
    for (int64_t r = 0; r < 64; r++) {
        float scale = 0, min = 0;
        int8_t q[32] = {0};
        if (r < s->rows)
            quants_integers(dtype, s->from + (uint64_t)r * s->stride, s->sub, q, &scale, &min);
        scale_put(f, to, first_row + r, scale);
        if (f->has_min)
            scale_put(f, to + half, first_row + r, min);
        for (int m = 0; m < s->members; m++)
            integers[m][columns_place((int)r)] = (uint8_t)(q[s->member[m]] + f->offset);
    }
    to += scales_bytes(dtype, n) + (uint64_t)first_row * f->bits / 8;
    for (int m = 0; m < s->members; m++, to += column)
        for (int i = 0; i < 8 * f->bits; i++)
            to[i] = f->bits == 8 ? integers[m][i]
                                 : (uint8_t)(integers[m][i] | integers[m][i + 32] << 4);
}

static void integers_prepare(const struct weight_source *s, const struct columns *c, int64_t n,
                             int64_t begin, int64_t end)
{
    const struct columns_form *f = c->form;
    const struct dtype_info *type = dtype_info((int)s->dtype);
    struct block_source from = {.stride = weight_source_stride(s)};
    for (int64_t r = begin; r < end; r += 64) {
        const uint8_t *row = (const uint8_t *)s->data + (uint64_t)(s->row_begin + r) * from.stride;
        uint8_t *to = (uint8_t *)(uintptr_t)c->data;
        from.rows = min_i64(64, end - r);
        for (int64_t i = 0, stop; i < s->k; i = stop) {
            stop = block_end(s, i);
            const int64_t element = (s->list ? s->list[i] : i) / f->block * f->block;
            from.members = (int)(stop - i);
            for (int m = 0; m < from.members; m++)
                from.member[m] = (uint8_t)((s->list ? s->list[i + m] : i + m) - element);
            from.from = row + element / type->block_elems * type->block_bytes;
            from.sub = (int)(element % type->block_elems / f->block);
            block_prepare(s->dtype, &from, n, to, r);
            to += c->scales + (uint64_t)from.members * c->column;
        }
    }
}

static void floats_prepare(const struct weight_source *s, const struct columns *c, int64_t n,
                           int64_t begin, int64_t end)
{
    const uint64_t elem = (uint64_t)dtype_info((int)s->dtype)->block_bytes;
    const uint64_t stride = weight_source_stride(s);
    const int64_t stop = end == n ? columns_rows(n) : end;
    for (int64_t r = begin; r < stop; r++) {
        const uint8_t *row = (const uint8_t *)s->data + (uint64_t)(s->row_begin + r) * stride;
        uint8_t *to = (uint8_t *)(uintptr_t)c->data + (uint64_t)r * elem;
        for (int64_t i = 0; i < s->k; i++, to += c->column) {
            if (r < end)
                memcpy(to, row + elem * (uint64_t)(s->list ? s->list[i] : i), elem);
            else
                memset(to, 0, elem);
        }
    }
}

/* What lies between columns. */
static void gaps_clear(const struct weight_source *s, const struct columns *c, int64_t n)
{
    const uint64_t used = used_bytes(s->dtype, n);
    uint8_t *to = (uint8_t *)(uintptr_t)c->data;
    for (int64_t i = 0, next = 0; i < s->k; i++, to += c->column) {
        if (i == next && c->form->bits) {
            to += c->scales;
            next = block_end(s, i);
        }
        memset(to + used, 0, c->column - used);
    }
}

void columns_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                     int64_t end)
{
    const int64_t blocks = columns_blocks(s->dtype, s->list, s->k);
    const struct columns c = columns_at(w, blocks);
    if (begin == 0) {
        head_prepare(s, &c, (int32_t *)(void *)(uintptr_t)w->data);
        gaps_clear(s, &c, w->rows);
    }
    (c.form->bits ? integers_prepare : floats_prepare)(s, &c, w->rows, begin, end);
}
