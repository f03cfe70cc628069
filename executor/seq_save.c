/*
 * seq_save.c - sequences in host memory: what a sequence holds on every device is copied out, and
 * into the pages of a new sequence later. The copy is layer by layer, and within a layer in order
 * of positions, so that it does not depend on page ids. Pages that follow each other are one piece.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>

struct engine_saved {
    struct kv_seq seq; /* without its pages */
    struct engine_seq_size size;
    uint8_t *data;
};

/* Gets each piece of what a sequence holds: of a layer of a device, so many bytes. */
typedef oato_status piece_fn(void *user, struct oato_device *d, struct kv_place place,
                             struct oato_error *err);

/* Pages [from, ..) of the table that follow each other; returns where they end. */
static int32_t run_end(const struct kv_table *t, int32_t from)
{
    int32_t end = from + 1;
    while (end < t->n && t->pages[end] == t->pages[end - 1] + 1)
        end++;
    return end;
}

static oato_status layer_walk(const struct engine_device *d, int32_t layer, const struct kv_seq *s,
                              piece_fn *piece, void *user, struct oato_error *err)
{
    const struct kv_layer_shape *shape = &d->lowered->kv_shapes[layer];
    const struct kv_table *t = &s->table[shape->window ? KV_WINDOW : KV_ALL];
    oato_status status = OATO_OK;
    if (shape->state)
        return s->state < 0 ? OATO_OK
                            : piece(user, d->device, kv_cache_place(d->kv, layer, s->state), err);
    for (int32_t i = t->first, end; i < t->n && !status; i = end) {
        struct kv_place place = kv_cache_place(d->kv, layer, t->pages[i]);
        end = run_end(t, i);
        place.bytes *= (uint64_t)(end - i);
        status = piece(user, d->device, place, err);
    }
    return status;
}

static oato_status walk(const struct engine *e, const struct kv_seq *s, piece_fn *piece, void *user,
                        struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (int32_t i = 0; i < e->n_devices; i++)
        for (int32_t layer = 0; e->device[i].kv && layer < e->device[i].lowered->n_kv && !status;
             layer++)
            status = layer_walk(&e->device[i], layer, s, piece, user, err);
    return status;
}

static oato_status piece_count(void *user, struct oato_device *d, struct kv_place place,
                               struct oato_error *err)
{
    struct engine_seq_size *size = user;
    (void)d;
    (void)err;
    size->extents++;
    size->bytes += place.bytes;
    return OATO_OK;
}

struct engine_seq_size engine_seq_size(const struct engine *e, int32_t seq)
{
    struct oato_error ignored;
    struct engine_seq_size size = {0};
    if (engine_seq_check(e, seq, &ignored))
        return size;
    const struct kv_seq *s = &e->pool.seqs[seq];
    const struct kv_table *t = &s->table[KV_ALL];
    size.length = s->length;
    for (int32_t i = t->first; i < t->n; i++)
        size.pages += e->pool.pages[KV_ALL].references[t->pages[i]] == 1;
    walk(e, s, piece_count, &size, &ignored);
    return size;
}

/* A copy under way: `at` is the next byte in host memory. */
struct copying {
    uint8_t *at;
    bool out;
};

static oato_status piece_copy(void *user, struct oato_device *d, struct kv_place place,
                              struct oato_error *err)
{
    struct copying *c = user;
    uint64_t value; /* queued: copy() waits for all */
    uint8_t *host = c->at;
    c->at += place.bytes;
    return c->out ? d->ops->download(d, host, place.data, place.offset, place.bytes, &value, err)
                  : d->ops->upload(d, place.data, place.offset, host, place.bytes, &value, err);
}

static oato_status copy(struct engine *e, const struct kv_seq *s, uint8_t *data, bool out,
                        struct oato_error *err)
{
    struct copying c = {data, out};
    struct oato_error late = {0};
    oato_status status = walk(e, s, piece_copy, &c, err);
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
    if (engine_seq_check(e, seq, err))
        return err->status;
    struct engine_saved *s = calloc(1, sizeof *s);
    if (!s)
        return oato_fail_memory(err, sizeof *s, "a saved sequence");
    s->seq = e->pool.seqs[seq];
    s->size = engine_seq_size(e, seq);
    s->size.pages = s->seq.table[KV_ALL].n; /* restored, it shares none */
    oato_status status = OATO_OK;
    s->data = s->size.bytes ? malloc(s->size.bytes) : NULL;
    if (s->size.bytes && !s->data)
        status = oato_fail_memory(err, s->size.bytes, "a saved sequence");
    else
        status = copy(e, &e->pool.seqs[seq], s->data, true, err);
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
        status = copy(e, &e->pool.seqs[*seq], s->data, false, err);
    if (status)
        engine_seq_free(e, *seq);
    return status;
}

struct engine_seq_size engine_saved_size(const struct engine_saved *s)
{
    return s->size;
}

void engine_saved_free(struct engine_saved *s)
{
    if (!s)
        return;
    free(s->data);
    free(s);
}
