/*
 * lanes_rows.h - the layout of WEIGHT_ROWS, see lanes_rows.c: shared by what makes groups of listed
 * rows.
 */
#ifndef OATO_LANES_ROWS_H
#define OATO_LANES_ROWS_H

#include "kernels/cpu/lanes_internal.h"

enum { LINE = 64 };

/* A type whose rows are taken apart; else NULL. */
static inline const struct lanes_format *rows_format(oato_dtype dtype)
{
    const struct lanes_format *f = lanes_format_of(dtype);
    return f && !f->grid ? f : NULL;
}

/* Bytes of a row's heads; dwords of its bodies, which follow. */
static inline int64_t rows_heads(const struct lanes_format *f, int64_t k)
{
    return (int64_t)size_align((size_t)(k / f->block * f->head), LINE);
}

static inline int64_t rows_dwords(const struct lanes_format *f, int64_t k)
{
    return k / 32 * f->body / 4;
}

/* F16 numbers of a head; bytes follow. */
static inline int rows_halves(const struct lanes_format *f)
{
    return f->dtype == DT_MXFP4 || f->dtype == DT_NVFP4 ? 0 : f->has_min ? 2 : 1;
}

/* The rows of a group, and of the one after it. */
struct rows_group {
    const uint8_t *at[LANES_MAX], *next[LANES_MAX];
    int64_t bytes; /* of a row */
};

/* `lanes` rows of the list from number i on, and those `step` later; a last group repeats its last
 * row. */
static inline struct rows_group rows_group(const struct oato_weight *w, const struct rows_list *l,
                                           int64_t i, int lanes, int64_t step)
{
    struct rows_group g = {.bytes = (int64_t)lanes_rows_stride(w->dtype, w->k)};
    for (int r = 0; r < LANES_MAX; r++) {
        const int64_t at = i + r % lanes;
        g.at[r] = w->data + l->list[min_i64(at, l->n - 1)] * g.bytes;
        g.next[r] = w->data + l->list[min_i64(at + step, l->n + l->after - 1)] * g.bytes;
    }
    return g;
}

#endif
