/*
 * far_device.c - see far_device.h. Freeing memory waits for the queue.
 */
#include "kernels/core/far_device.h"

#include "kernels/core/weights.h"

#include <inttypes.h>
#include <stdlib.h>

void far_name(struct far_device *d, const struct device_ops *ops, int index)
{
    d->base.ops = ops;
    snprintf(d->id, sizeof d->id, "%s:%d", ops->kind, index);
    d->queue.id = d->id;
    d->memory.queue = &d->queue;
    timeline_init(&d->queue.timeline);
}

/* What keeps the device from running the record; NULL: nothing. */
static const char *refusal(const struct far_device *d, const struct program *p,
                           const struct program_record *r, char text[OP_KEY_SIZE + 32])
{
    const struct device_ops *ops = d->base.ops;
    char key[OP_KEY_SIZE];
    if (r->kind == RECORD_SWAP && !ops->join)
        return "it cannot join other ranks";
    if (record_is_peer(r->kind) && !ops->reaches)
        return "it cannot reach other devices";
    if (r->kind == RECORD_STREAM && !ops->streams)
        return "it cannot stream";
    for (int i = 0; r->kind == RECORD_STREAM && i < r->n_weights; i++)
        if (!weight_is_streamed(p->weights[r->weight[i]])) {
            snprintf(text, OP_KEY_SIZE + 32, "weight %" PRIu32 " is streamed but already resident",
                     r->weight[i]);
            return text;
        }
    if (r->kind != RECORD_RUN || ops->supports(&d->base, &r->op))
        return NULL;
    snprintf(text, OP_KEY_SIZE + 32, "cannot run %s", oato_op_key(&r->op, NULL, key));
    return text;
}

oato_status far_check(struct far_device *d, const struct program *p, int self, uint8_t **arena,
                      struct oato_error *err)
{
    char text[OP_KEY_SIZE + 32];
    if (far_memory_check(&d->memory, p, device_values(&d->base), self, arena, err))
        return err->status;
    for (uint32_t i = 0; i < p->n_records; i++) {
        const char *why = refusal(d, p, &p->records[i], text);
        if (why)
            return oato_fail(err, OATO_EUSAGE, "%s: record %" PRIu32 ": %s", d->id, i, why);
    }
    return OATO_OK;
}

/* -------------------------------------------------------------------------------- memory -- */

oato_status far_alloc(struct oato_device *d, uint64_t bytes, void **out, struct oato_error *err)
{
    return far_memory_give(&far_of(d)->memory, bytes, "buffers", out, err);
}

void far_free(struct oato_device *d, void *p, uint64_t bytes)
{
    (void)bytes;
    far_memory_return(&far_of(d)->memory, p);
}

oato_status far_upload(struct oato_device *d, void *to, uint64_t offset, const void *from,
                       uint64_t bytes, uint64_t *value, struct oato_error *err)
{
    const struct job job = {.from = from, .bytes = bytes};
    return far_memory_copy(&far_of(d)->memory, job, to, offset, value, err);
}

oato_status far_download(struct oato_device *d, void *to, const void *from, uint64_t offset,
                         uint64_t bytes, uint64_t *value, struct oato_error *err)
{
    const struct job job = {.to = to, .bytes = bytes, .download = true};
    return far_memory_copy(&far_of(d)->memory, job, from, offset, value, err);
}

/* Its memory is not the host's, where the bytes may be: and not cleared, since they come. */
oato_status far_place(struct oato_device *d, uint64_t bytes, const void *there, void **out,
                      struct oato_error *err)
{
    struct far_block *b = NULL;
    (void)there;
    const oato_status status = far_memory_alloc(&far_of(d)->memory, bytes, "a weight", &b, err);
    *out = status ? NULL : b->address;
    return status;
}

void *far_reach(const struct oato_device *d, const void *p, uint64_t offset, uint64_t bytes)
{
    return far_memory_reach(&far_of(d)->memory, p, offset, bytes);
}

oato_status far_kv_create(struct oato_device *d, const struct kv_layer_shape *layers, int n,
                          oato_dtype dtype, int32_t pages, struct kv_cache **out,
                          struct oato_error *err)
{
    struct far_memory *m = &far_of(d)->memory;
    struct kv_cache *kv;
    void *data = NULL;
    if (kv_cache_new(far_of(d)->id, layers, n, dtype, pages, &kv, err))
        return err->status;
    if (far_memory_give(m, kv->bytes, "the KV cache", &data, err)) {
        free(kv);
        return err->status;
    }
    kv->data = data;
    m->blocks->handle = kv; /* the latest */
    *out = kv;
    return OATO_OK;
}

void far_kv_free(struct oato_device *d, struct kv_cache *kv)
{
    if (kv)
        far_memory_return(&far_of(d)->memory, kv->data);
}

/* --------------------------------------------------------------------------------- queue -- */

oato_status far_finish(struct oato_device *d, struct oato_error *err)
{
    return job_queue_drain(&far_of(d)->queue, err);
}

struct timeline *far_timeline(struct oato_device *d)
{
    return &far_of(d)->queue.timeline;
}

uint64_t far_clock_ns(const struct oato_device *d)
{
    (void)d;
    return now_ns();
}

uint64_t far_stored_read(const struct oato_device *d)
{
    return file_stream_read(weights_file(d));
}

oato_status far_inject_error(struct oato_device *d, const char *what, struct oato_error *err)
{
    struct far_device *f = far_of(d);
    return inject_error(f->id, what, &f->queue.fail_after, &f->memory.fail_after, err);
}
