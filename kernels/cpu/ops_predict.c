/*
 * ops_predict.c - which neurons a token will need, guessed before their products are computed:
 * signs of products from the signs of their factors, and the list of scores above a threshold.
 */
#include "kernels/cpu/record_internal.h"

#include <math.h>
#include <string.h>

enum { SIGNS_AT_ONCE = 4096 }; /* elements of an input whose signs a thread keeps */

void signs_pack(const float *x, int64_t k, uint64_t *out)
{
    for (int64_t i = 0; i < k; i += 64) {
        uint64_t word = 0;
        for (int64_t j = i; j < min_i64(k, i + 64); j++)
            word |= (uint64_t)(signbit(x[j]) != 0) << (j - i);
        *out++ = word;
    }
}

void signs_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin, int64_t end)
{
    const struct dtype_info *type = dtype_info((int)s->dtype);
    const uint64_t stride = signs_stride(s->k);
    float part[SIGNS_AT_ONCE];
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *row = weight_source_row(s, r);
        uint64_t *to = (uint64_t *)(void *)((uint8_t *)(uintptr_t)w->data + (uint64_t)r * stride);
        for (int64_t i = 0; i < s->k; i += SIGNS_AT_ONCE, to += SIGNS_AT_ONCE / 64) {
            const int64_t n = min_i64(SIGNS_AT_ONCE, s->k - i);
            quants_row(s->dtype, row + i / type->block_elems * type->block_bytes, n, part);
            signs_pack(part, n, to);
        }
    }
}

void run_signs(const struct run *x)
{
    const struct oato_weight *w = weight(x, 0);
    const int64_t k = x->op->k, n = x->op->n,
                  stride = (int64_t)(signs_stride(k) / sizeof(uint64_t));
    const int64_t begin = n * x->thread / x->n_threads, end = n * (x->thread + 1) / x->n_threads;
    const uint64_t *rows = (const uint64_t *)(const void *)w->data;
    for (int64_t t = 0; t < x->T; t++) {
        const float *in = input(x, 0) + t * k;
        float *out = output(x, 0) + t * n;
        for (int64_t i = 0; i < k; i += SIGNS_AT_ONCE) {
            const int64_t part = min_i64(SIGNS_AT_ONCE, k - i);
            uint64_t signs[SIGNS_AT_ONCE / 64];
            signs_pack(in + i, part, signs);
            for (int64_t r = begin; r < end; r++) {
                const int64_t apart =
                    x->k->rows->differ(signs, rows + r * stride + i / 64, (part + 63) / 64);
                out[r] = (i ? out[r] : 0) + (float)(part - 2 * apart);
            }
        }
    }
}

void active_row(const struct run *x, int64_t t)
{
    const int32_t n = x->op->k;
    const float *score = input(x, 0) + t * n;
    float *list = output(x, 0) + t * x->op->n;
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++) { /* the place behind the last one is overwritten or ignored */
        list[1 + count] = (float)i;
        count += score[i] > x->op->threshold;
    }
    list[0] = (float)count;
}
