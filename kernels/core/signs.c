/*
 * signs.c - weights of WEIGHT_SIGNS, of which only the signs are kept: on every device a bit for
 * each element, set if it is negative, in rows of whole uint64.
 */
#include "kernels/core/core_internal.h"

enum { AT_ONCE = 4096 }; /* elements of a row that are converted together */

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
    float part[AT_ONCE];
    for (int64_t r = begin; r < end; r++) {
        const uint8_t *row = weight_source_row(s, r);
        uint64_t *to = (uint64_t *)(void *)((uint8_t *)(uintptr_t)w->data + (uint64_t)r * stride);
        for (int64_t i = 0; i < s->k; i += AT_ONCE, to += AT_ONCE / 64) {
            const int64_t n = min_i64(AT_ONCE, s->k - i);
            quants_row(s->dtype, row + i / type->block_elems * type->block_bytes, n, part);
            signs_pack(part, n, to);
        }
    }
}
