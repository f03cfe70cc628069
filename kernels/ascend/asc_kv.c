/*
 * asc_kv.c - the cache of KV of an NPU and its layout of pages (asc_kv.h). States are as
 * everywhere. A new cache is all zeros: attention reads whole pages, and what it
 * masks must be numbers.
 */
#include "kernels/ascend/asc_kv.h"
#include "kernels/ascend/asc_internal.h"

#include <stdlib.h>
#include <string.h>

static int64_t common(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

struct asc_kv_shape asc_kv_shape(const struct oato_op *op)
{
    struct asc_kv_shape s = {.kv_heads = op->kv_heads, .k_dim = op->head_dim};
    s.v_dim = op->v_in_k ? 0 : op_v_dim(op);
    s.unit = common(s.k_dim, s.v_dim);
    s.k_units = s.k_dim / s.unit;
    s.v_units = s.v_dim / s.unit;
    return s;
}

/* ---------------------------------------------------------------------------------- cache - */

oato_status asc_kv_create(struct oato_device *base, const struct kv_layer_shape *layers, int n,
                          oato_dtype dtype, int32_t pages, struct kv_cache **out,
                          struct oato_error *err)
{
    bool pages_here = false;
    for (int i = 0; i < n; i++)
        pages_here = pages_here || !layers[i].state;
    if (pages_here && dtype != DT_F16)
        return oato_fail(err, OATO_EUSAGE, "%s keeps KV of F16 only, not of %s; run with --kv f16",
                         far_of(base)->id, dtype_name(dtype));
    return far_kv_create(base, layers, n, dtype, pages, out, err);
}

/* --------------------------------------------------------------------------------- layout - */

/* What a page of the layer has of K (which 0) and V (1): elements of a position. */
static int64_t width_of(const struct kv_layer_shape *s, int which)
{
    if (!which)
        return s->head_dim;
    return s->v_in_k ? 0 : s->v_dim ? s->v_dim : s->head_dim;
}

/* Element e of a position of a head in the shared layout, K by dimensions and V by positions, and
 * in this one. */
static void convert(const struct kv_cache *kv, int32_t layer, int32_t n, uint16_t *to,
                    const uint16_t *from, bool to_shared)
{
    const struct kv_layer_shape *s = &kv->layers[layer];
    for (int32_t page = 0; page < n; page++)
        for (int which = 0; which < 2; which++) {
            const int64_t d = width_of(s, which), row = s->kv_heads * d;
            for (int64_t h = 0; h < s->kv_heads; h++)
                for (int64_t i = 0; i < KV_PAGE_POSITIONS; i++)
                    for (int64_t e = 0; e < d; e++) {
                        const int64_t shared = h * KV_PAGE_POSITIONS * d +
                                               (which ? i * d + e : e * KV_PAGE_POSITIONS + i);
                        const int64_t own = i * row + h * d + e;
                        to[to_shared ? shared : own] = from[to_shared ? own : shared];
                    }
            to += KV_PAGE_POSITIONS * row;
            from += KV_PAGE_POSITIONS * row;
        }
}

static void from_shared(const struct kv_cache *kv, int32_t layer, int32_t n, void *to,
                        const void *from)
{
    convert(kv, layer, n, to, from, false);
}

static void to_shared(const struct kv_cache *kv, int32_t layer, int32_t n, void *to,
                      const void *from)
{
    convert(kv, layer, n, to, from, true);
}

const struct kv_layout *asc_kv_layout(const struct oato_device *base)
{
    static const struct kv_layout layout = {"rows.1", from_shared, to_shared};
    (void)base;
    return &layout;
}
