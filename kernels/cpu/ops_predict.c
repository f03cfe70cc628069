/*
 * ops_predict.c - which neurons a token will need, guessed before their products are computed:
 * signs of products from the signs of their factors, and the list of scores above a threshold.
 */
#include "kernels/cpu/record_internal.h"

#include <math.h>
#include <string.h>

enum { SIGNS_AT_ONCE = 4096 }; /* elements of an input whose signs a thread keeps */

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
    const struct oato_weight *bias = weight(x, 0);
    const int64_t n = x->op->k;
    float *list = output(x, 0) + t * x->op->n;
    list[0] = (float)x->k->rows->above(list + 1, input(x, 0) + t * n,
                                       bias ? const_floats(bias->data) : NULL, n, x->op->threshold);
}
