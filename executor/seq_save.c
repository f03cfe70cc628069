/*
 * seq_save.c - sequences in host memory: what a sequence holds on every device is copied out, and
 * into the pages of a new sequence later. The copy is layer by layer, and within a layer in order
 * of positions, so that it does not depend on page ids; nor, since pages are in the shared layout,
 * on a device's own. Pages that follow each other are one piece.
 * A few copies that were freed are kept: memory that was used before takes the next one several
 * times faster. It is page-locked where a device copies faster with such memory.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>

enum { SPARES = 8, SPARE_FACTOR = 4 };

struct engine_saved {
    struct engine *engine;
    struct engine_saved *next; /* while it is spare */
    struct kv_seq seq;         /* without its pages */
    struct engine_seq_size size;
    uint64_t room; /* bytes of data */
    uint8_t *data;
    struct oato_device *pinned_by; /* whose host_alloc data is from; NULL: malloc */
};

static bool data_alloc(struct engine *e, struct engine_saved *s, uint64_t bytes)
{
    s->room = bytes;
    for (int32_t i = 0; i < e->n_devices && !s->data; i++) {
        struct oato_device *d = e->device[i].device;
        if (e->device[i].kv && d->ops->host_alloc &&
            (s->data = d->ops->host_alloc(d, bytes, false)))
            s->pinned_by = d;
    }
    if (!s->data)
        s->data = malloc(bytes ? bytes : 1);
    return s->data;
}

static void saved_delete(struct engine_saved *s)
{
    if (s->pinned_by)
        s->pinned_by->ops->host_free(s->pinned_by, s->data);
    else
        free(s->data);
    free(s);
}

/* One with room for so many bytes, not much more. NULL: memory is short. */
static struct engine_saved *saved_create(struct engine *e, uint64_t bytes)
{
    for (struct engine_saved **at = &e->spare, *s; (s = *at) != NULL; at = &s->next) {
        if (s->room < bytes || s->room / SPARE_FACTOR > bytes)
            continue;
        *at = s->next;
        e->n_spare--;
        return s;
    }
    struct engine_saved *s = calloc(1, sizeof *s);
    if (s && !data_alloc(e, s, bytes)) {
        free(s);
        return NULL;
    }
    return s;
}

void spares_free(struct engine *e)
{
    for (struct engine_saved *s; (s = e->spare) != NULL;) {
        e->spare = s->next;
        saved_delete(s);
    }
}

/* Pages [from, ..) of the table that follow each other; returns where they end. */
static int32_t run_end(const struct kv_table *t, int32_t from)
{
    int32_t end = from + 1;
    while (end < t->n && t->pages[end] == t->pages[end - 1] + 1)
        end++;
    return end;
}

void seq_sizes_init(struct engine *e)
{
    for (int32_t i = 0; i < e->n_devices; i++) {
        const struct engine_device *d = &e->device[i];
        for (int32_t layer = 0; d->kv && layer < d->lowered->n_kv; layer++) {
            const struct kv_layer_shape *shape = &d->lowered->kv_shapes[layer];
            if (shape->staged)
                continue;
            struct kv_layers *of = &e->kv_layers[shape->state    ? KV_KINDS
                                                 : shape->window ? KV_WINDOW
                                                                 : KV_ALL];
            of->n++;
            of->page_bytes += kv_cache_place(d->kv, layer, 0).bytes;
        }
    }
}

static void size_add_pages(struct engine_seq_size *size, const struct kv_layers *of, int32_t pages,
                           int32_t runs)
{
    size->bytes += (uint64_t)pages * of->page_bytes;
    size->extents += runs * of->n;
}

struct engine_seq_size engine_seq_size(const struct engine *e, int32_t seq)
{
    struct oato_error ignored;
    struct engine_seq_size size = {0};
    if (engine_seq_check(e, seq, &ignored))
        return size;
    const struct kv_seq *s = &e->pool.seqs[seq];
    size.length = s->length;
    for (int kind = 0; kind < KV_KINDS; kind++) {
        const struct kv_table *t = &s->table[kind];
        int32_t runs = 0;
        for (int32_t i = t->first; i < t->n; i = run_end(t, i))
            runs++;
        for (int32_t i = t->first; i < t->n && kind == KV_ALL; i++)
            size.pages += e->pool.pages[kind].references[t->pages[i]] == 1;
        size_add_pages(&size, &e->kv_layers[kind], t->n - t->first, runs);
    }
    if (s->state >= 0)
        size_add_pages(&size, &e->kv_layers[KV_KINDS], 1, 1);
    return size;
}

/* A copy under way: `at` is the next byte in host memory. */
struct copying {
    uint8_t *at;
    bool out;
};

/* Queues a copy; kv_copy waits for all. */
static oato_status piece_copy(struct copying *c, struct oato_device *d, struct kv_place place,
                              struct oato_error *err)
{
    uint64_t value;
    uint8_t *host = c->at;
    c->at += place.bytes;
    return c->out ? d->ops->download(d, host, place.data, place.offset, place.bytes, &value, err)
                  : d->ops->upload(d, place.data, place.offset, host, place.bytes, &value, err);
}

/* The same for pages of a device that has a layout of its own. */
static oato_status pages_convert(struct copying *c, const struct engine_device *d, int32_t layer,
                                 int32_t n, struct kv_place place, struct oato_error *err)
{
    const struct kv_layout *own = device_kv_layout(d->device);
    const struct device_ops *ops = d->device->ops;
    uint8_t *shared = c->at, *pages = malloc(place.bytes ? place.bytes : 1);
    oato_status status = OATO_OK;
    if (!pages)
        return oato_fail_memory(err, place.bytes, "pages of KV");
    c->at += place.bytes;
    if (c->out) {
        status = ops->download(d->device, pages, place.data, place.offset, place.bytes, NULL, err);
        if (!status)
            own->to_shared(d->kv, layer, n, shared, pages);
    } else {
        own->from_shared(d->kv, layer, n, pages, shared);
        status = ops->upload(d->device, place.data, place.offset, pages, place.bytes, NULL, err);
    }
    free(pages);
    return status;
}

static oato_status layer_copy(struct copying *c, const struct engine_device *d, int32_t layer,
                              const struct kv_seq *s, struct oato_error *err)
{
    const struct kv_layer_shape *shape = &d->lowered->kv_shapes[layer];
    const struct kv_table *t = &s->table[shape->window ? KV_WINDOW : KV_ALL];
    oato_status status = OATO_OK;
    if (shape->staged)
        return OATO_OK;
    if (shape->state)
        return s->state < 0 ? OATO_OK
                            : piece_copy(c, d->device, kv_cache_place(d->kv, layer, s->state), err);
    for (int32_t i = t->first, end; i < t->n && !status; i = end) {
        struct kv_place place = kv_cache_place(d->kv, layer, t->pages[i]);
        end = run_end(t, i);
        place.bytes *= (uint64_t)(end - i);
        status = device_kv_layout(d->device) ? pages_convert(c, d, layer, end - i, place, err)
                                             : piece_copy(c, d->device, place, err);
    }
    return status;
}

oato_status kv_copy(struct engine *e, const struct kv_seq *s, uint8_t *data, bool out,
                    struct oato_error *err)
{
    struct copying c = {data, out};
    struct oato_error late = {0};
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < e->n_devices; i++)
        for (int32_t layer = 0; e->device[i].kv && layer < e->device[i].lowered->n_kv && !status;
             layer++)
            status = layer_copy(&c, &e->device[i], layer, s, err);
    for (int32_t i = 0; i < e->n_devices; i++) { /* all of them: they use `data` */
        struct oato_device *d = e->device[i].device;
        if (e->device[i].kv && d->ops->finish(d, &late) && !status) {
            *err = late;
            status = late.status;
        }
    }
    e->failed = e->failed || status;
    return status;
}

oato_status engine_seq_save(struct engine *e, int32_t seq, struct engine_saved **out,
                            struct oato_error *err)
{
    *out = NULL;
    if (e->ranks)
        return oato_fail(err, OATO_EUSAGE, "sequences that ranks share cannot be saved");
    if (e->kv_filed)
        return oato_fail(err, OATO_EUSAGE, "sequences whose KV stays in a file cannot be saved");
    if (engine_seq_check(e, seq, err))
        return err->status;
    const struct engine_seq_size size = engine_seq_size(e, seq);
    struct engine_saved *s = saved_create(e, size.bytes);
    if (!s)
        return oato_fail_memory(err, size.bytes, "a saved sequence");
    s->engine = e;
    s->seq = e->pool.seqs[seq];
    s->size = size;
    s->size.pages = s->seq.table[KV_ALL].n; /* restored, it shares none */
    const oato_status status = kv_copy(e, &e->pool.seqs[seq], s->data, true, err);
    if (status)
        engine_saved_free(s);
    else
        *out = s;
    return status;
}

oato_status engine_seq_restore(struct engine *e, const struct engine_saved *s, int32_t *seq,
                               struct oato_error *err)
{
    oato_status status = engine_seq_create(e, seq, err);
    if (status)
        return status;
    status = kv_take(&e->pool, *seq, &s->seq, err);
    if (!status)
        status = kv_copy(e, &e->pool.seqs[*seq], s->data, false, err);
    if (status)
        engine_seq_free(e, *seq);
    return status;
}

void engine_kv_devices(const struct engine *e, struct text *out)
{
    const char *between = "";
    for (int32_t i = 0; i < e->n_devices; i++) {
        if (!e->device[i].kv)
            continue;
        text_printf(out, "%s%s", between, e->device[i].info.id);
        between = " ";
    }
}

struct engine_seq_size engine_saved_size(const struct engine_saved *s)
{
    return s->size;
}

void engine_saved_free(struct engine_saved *s)
{
    if (!s)
        return;
    struct engine *e = s->engine;
    s->next = e->spare;
    e->spare = s;
    if (++e->n_spare <= SPARES)
        return;
    struct engine_saved **at = &e->spare; /* the oldest goes */
    while ((*at)->next)
        at = &(*at)->next;
    saved_delete(*at);
    *at = NULL;
    e->n_spare--;
}
