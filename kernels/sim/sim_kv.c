/*
 * sim_kv.c - pages of KV that a simulated device keeps in a layout of its own (kv=rows): a head's K
 * is [64][head_dim], as V is, instead of [head_dim][64]. The kernels are the CPU's, which know the
 * shared layout only: they run on a second cache, to which pages are converted before a record and
 * from which what it stored comes back.
 */
#include "kernels/sim/sim_internal.h"

#include <string.h>

/* The K of each head, rows of `columns` halves to columns; V as it is. */
static void transpose(const struct kv_cache *kv, int32_t layer, int32_t n, uint8_t *to,
                      const uint8_t *from, bool to_shared)
{
    const struct kv_layer_shape *s = &kv->layers[layer];
    const size_t k = kv_layer_block_bytes(kv, layer, 0), page = kv_page_bytes(kv, layer);
    const int32_t rows = to_shared ? KV_PAGE_POSITIONS : s->head_dim,
                  columns = to_shared ? s->head_dim : KV_PAGE_POSITIONS;
    for (int32_t p = 0; p < n; p++, to += page, from += page) {
        memcpy(to, from, page);
        for (int32_t h = 0; h < s->kv_heads; h++)
            for (int32_t r = 0; r < rows; r++)
                for (int32_t c = 0; c < columns; c++)
                    memcpy(to + (size_t)h * k + 2 * ((size_t)c * (size_t)rows + (size_t)r),
                           from + (size_t)h * k + 2 * ((size_t)r * (size_t)columns + (size_t)c), 2);
    }
}

static void from_shared(const struct kv_cache *kv, int32_t layer, int32_t n, void *to,
                        const void *from)
{
    transpose(kv, layer, n, to, from, false);
}

static void to_shared(const struct kv_cache *kv, int32_t layer, int32_t n, void *to,
                      const void *from)
{
    transpose(kv, layer, n, to, from, true);
}

const struct kv_layout sim_kv_rows = {"rows", from_shared, to_shared};

oato_status sim_kv_open(const struct sim_device *s, struct compiled *c, struct oato_error *err)
{
    if (!c->program->kv || !s->spec.kv_rows)
        return OATO_OK;
    c->shared = c->kv;
    c->shared.data = pages_alloc(c->kv.bytes);
    return c->shared.data ? OATO_OK : oato_fail_memory(err, c->kv.bytes, "pages of KV");
}

void sim_kv_convert(const struct kv_cache *from, const struct kv_cache *to, int32_t layer,
                    const struct step *step, bool to_shared_layout, bool written)
{
    const int32_t window = from->layers[layer].window;
    for (int32_t i = 0; i < step->n_seqs; i++) {
        const struct step_seq *s = &step->seq[i];
        const int64_t before = s->kv_len - s->query_len;
        int64_t page = written  ? before / KV_PAGE_POSITIONS
                       : window ? max_i64(before + 1 - window, 0) / KV_PAGE_POSITIONS
                                : 0;
        for (; page < kv_pages_of(s->kv_len); page++) {
            const int32_t id = kv_table(from, layer, s)[page];
            transpose(from, layer, 1, kv_block(to, layer, id, 0, 0),
                      kv_block(from, layer, id, 0, 0), to_shared_layout);
        }
    }
}
