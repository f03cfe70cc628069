/*
 * asc_kv.h - how pages of KV lie on an NPU: F16, position by position, K of all heads of the page's
 * 64 positions and then V. Calls reach rows of one width only, so where heads of K and of V differ
 * a position is as many units of their greatest common width.
 */
#ifndef OATO_ASC_KV_H
#define OATO_ASC_KV_H

#include "kernels/ascend/asc_device.h"

struct asc_kv_shape {
    int64_t kv_heads, k_dim, v_dim; /* of a head; v_dim 0: V lies in K */
    int64_t unit;                   /* elements of a head in a unit */
    int64_t k_units, v_units;       /* of a position */
};
struct asc_kv_shape asc_kv_shape(const struct oato_op *op);
/* Of a page, in all heads. */
static inline int64_t asc_kv_page_units(const struct asc_kv_shape *s)
{
    return KV_PAGE_POSITIONS * (s->k_units + s->v_units);
}

#endif
