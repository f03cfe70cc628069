/*
 * memory.c - what devices keep in their memory: rows of the model's file that become weights, and
 * the pages of KV; and the failures that tests have it meet.
 */
#include "kernels/core/core_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

uint64_t weight_source_stride(const struct weight_source *source)
{
    size_t row = 0;
    if (source->row_stride)
        return source->row_stride;
    if (!dtype_row_bytes(source->dtype, source->k, &row))
        return 0;
    return row;
}

/* Of long rows an odd number of cache lines: of several rows the same elements, which are read
 * together, lie in different sets of a cache. */
enum { LONG_ROW = 1024 /* bytes */ };
uint64_t weight_rows_stride(oato_dtype dtype, int64_t k)
{
    size_t row = 0;
    dtype_row_bytes(dtype, k, &row);
    return size_align(row, 64) | (row < LONG_ROW ? 0 : 64);
}

void weight_rows_copy(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                      int64_t end)
{
    const uint64_t step = weight_rows_stride(s->dtype, s->k);
    size_t row = 0;
    dtype_row_bytes(s->dtype, s->k, &row);
    for (int64_t r = begin; r < end; r++) {
        uint8_t *to = (uint8_t *)(uintptr_t)w->data + (uint64_t)r * step;
        memcpy(to, weight_source_row(s, r), row);
        memset(to + row, 0, step - row);
    }
}

void weight_rows_panel(void (*prepare)(int lanes, const struct weight_source *s,
                                       struct oato_weight *w, int64_t begin, int64_t end),
                       int lanes, const struct oato_weight *w, const int32_t *list, int64_t n,
                       struct oato_weight *panel)
{
    const struct weight_source source = {.data = w->data,
                                         .dtype = w->dtype,
                                         .k = w->k,
                                         .n = n,
                                         .row_end = n,
                                         .row_stride = weight_rows_stride(w->dtype, w->k),
                                         .use = WEIGHT_MATRIX,
                                         .list = list};
    prepare(lanes, &source, panel, 0, n);
}

static bool list_good(const struct weight_source *s)
{
    const struct dtype_info *type = dtype_info((int)s->dtype);
    const bool columns = s->use == WEIGHT_COLUMNS;
    const int64_t n = columns ? s->k : s->row_end;
    /* columns of a row; how many rows the tensor has, only the caller knows */
    const int64_t end =
        columns ? (int64_t)(s->row_stride / (uint64_t)type->block_bytes) * type->block_elems
                : INT64_MAX;
    for (int64_t i = columns ? 0 : s->row_begin; i < n; i++)
        if (s->list[i] < 0 || s->list[i] >= end || (columns && i && s->list[i] <= s->list[i - 1]))
            return false;
    return s->use != WEIGHT_LOOKUP;
}

bool weight_source_good(const struct weight_source *s)
{
    size_t row = 0;
    const bool listed = s->list && s->use == WEIGHT_COLUMNS;
    return quants_known(s->dtype) && (listed || dtype_row_bytes(s->dtype, s->k, &row)) &&
           s->row_begin >= 0 && s->row_end >= s->row_begin && s->row_end <= s->n &&
           (!s->row_stride || (s->row_stride >= row && s->use != WEIGHT_LOOKUP)) &&
           (!s->list || list_good(s));
}

oato_status weight_source_fail(const struct weight_source *s, const char *device,
                               oato_status status, struct oato_error *err)
{
    return oato_fail(err, status,
                     "%s: cannot prepare rows %" PRId64 "..%" PRId64 " of %" PRId64 " x %" PRId64
                     " %s: the rows must exist and be whole blocks of a supported type",
                     device, s->row_begin, s->row_end, s->n, s->k, dtype_name(s->dtype));
}

void weight_source_release(const struct weight_source *s, int64_t begin, int64_t end)
{
    const size_t stride = weight_source_stride(s);
    size_t row = 0;
    if (!s->file || begin >= end)
        return;
    if (!dtype_row_bytes(s->dtype, s->k, &row) || s->list)
        row = 0; /* of columns less than all that was read, and of rows none in between */
    if (s->list && s->use != WEIGHT_COLUMNS)
        return;
    file_release(s->file,
                 (size_t)((const uint8_t *)s->data - s->file->data) +
                     (size_t)(s->row_begin + begin) * stride,
                 (size_t)(end - begin - 1) * stride + row);
}

static bool layer_size(const struct kv_cache *kv, const struct kv_layer_shape *s, size_t *out)
{
    size_t layer = 0, v = 0;
    const int64_t v_dim = s->v_dim ? s->v_dim : s->head_dim;
    if (s->state)
        return s->state > 0 && s->slots > 0 && !s->filed &&
               size_mul((size_t)s->state, (size_t)s->slots * sizeof(float), &layer) &&
               size_add(layer, KV_PADDING, out);
    const bool page =
        s->kv_heads >= 0 && s->pages >= 0 && dtype_row_bytes(kv->dtype, s->head_dim, &layer) &&
        (s->v_in_k || dtype_row_bytes(kv->dtype, v_dim, &v)) && size_add(layer, v, &layer) &&
        size_mul(layer, KV_PAGE_POSITIONS, &layer) && size_mul(layer, (size_t)s->kv_heads, &layer);
    if (s->filed)
        layer = size_align(layer, READ_ALIGN);
    return page && size_mul(layer, (size_t)(s->pages ? s->pages : kv->pages), out);
}

bool kv_cache_layout(struct kv_cache *kv, uint64_t *bytes)
{
    size_t total = 0, layer, rooms;
    if (kv->pages < 0)
        return false;
    for (int32_t l = 0; l < kv->n_layers; l++) {
        if (!layer_size(kv, &kv->layers[l], &layer))
            return false;
        if (kv->layers[l].filed && layer > kv->room_bytes)
            kv->room_bytes = layer;
    }
    if (!size_mul(kv->room_bytes, KV_ROOMS, &rooms))
        return false;
    for (int32_t l = 0; l < kv->n_layers; l++) {
        const struct kv_layer_shape *s = &kv->layers[l];
        kv->windows = kv->windows || s->window;
        kv->layer_offset[l] =
            s->filed ? (uint64_t)(kv->n_filed++ % KV_ROOMS) * kv->room_bytes : rooms + total;
        if (!layer_size(kv, s, &layer) ||
            (!s->filed && !size_add(total, layer / KV_PADDING * KV_PADDING, &total)))
            return false;
    }
    return size_add(total, rooms, &total) && size_add(total, KV_PADDING, bytes);
}

bool kv_history_next(const struct kv_cache *kv, int32_t layer, const struct step *step,
                     struct kv_history *h)
{
    for (; h->seq < step->n_seqs; h->seq++, h->at = 0) {
        const struct step_seq *s = &step->seq[h->seq];
        const int64_t length = s->kv_len - s->query_len, pages = kv_pages_of(length);
        const int32_t *table = kv_table(kv, layer, s), window = kv->layers[layer].window;
        if (window)
            h->at = max_i64(h->at, (length + 1 - window) / KV_PAGE_POSITIONS);
        if (h->at >= pages)
            continue;
        h->page = table[h->at];
        for (h->n = 0; h->at < pages && table[h->at] == h->page + h->n; h->n++)
            h->at++;
        return true;
    }
    return false;
}

struct kv_place kv_cache_place(const struct kv_cache *kv, int32_t layer, int32_t page)
{
    const int64_t state = kv->layers[layer].state;
    const uint64_t bytes = state ? (uint64_t)state * sizeof(float) : kv_page_bytes(kv, layer);
    return (struct kv_place){kv->data, kv->layer_offset[layer] + (uint64_t)page * bytes, bytes};
}

oato_status kv_cache_new(const char *device, const struct kv_layer_shape *layers, int n,
                         oato_dtype dtype, int32_t pages, struct kv_cache **out,
                         struct oato_error *err)
{
    const size_t count = n > 0 ? (size_t)n : 0;
    const size_t bytes = sizeof **out + count * (sizeof *(*out)->layer_offset + sizeof *layers);
    struct kv_cache *kv = calloc(1, bytes);
    if (!kv)
        return oato_fail_memory(err, bytes, "a KV cache");
    *kv = (struct kv_cache){.n_layers = n, .pages = pages, .dtype = dtype};
    kv->layer_offset = (uint64_t *)(void *)(kv + 1);
    kv->layers = (struct kv_layer_shape *)(void *)(kv->layer_offset + count);
    if (count)
        memcpy(kv->layers, layers, count * sizeof *layers);
    if (!op_kv_dtype(dtype) || !kv_cache_layout(kv, &kv->bytes)) {
        free(kv);
        return oato_fail(
            err, OATO_EFIT,
            "%s: cannot make a KV cache of %d layers and %d pages of type %s; use F16, F32 or "
            "(head size a multiple of 32) Q8_0, and a size that fits in memory",
            device, n, (int)pages, dtype_name(dtype));
    }
    *out = kv;
    return OATO_OK;
}

oato_status inject_error(const char *device, const char *what, _Atomic int64_t *records,
                         int64_t *allocations, struct oato_error *err)
{
    int64_t n;
    if (!strncmp(what, "record=", 7) && parse_i64(what + 7, 1, INT32_MAX, &n))
        *records = n;
    else if (!strncmp(what, "alloc=", 6) && parse_i64(what + 6, 1, INT32_MAX, &n))
        *allocations = n;
    else
        return oato_fail(err, OATO_EUSAGE, "%s: cannot inject '%s'; known: record=N, alloc=N",
                         device, what);
    return OATO_OK;
}
