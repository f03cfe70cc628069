/*
 * cuda_stream.c - how weights travel from the host to a GPU: when they are prepared, and each time
 * that a RECORD_STREAM asks for them; and KV of the host, when a RECORD_STREAM does. Two streams
 * beside the one that computes:
 *
 *   fill   the driver's thread calls the host, which fills a pinned buffer with a piece
 *   copy   the piece goes to its place in device memory
 *
 * (what is kept as it is sent needs no filling, nor does KV or what comes from a file: the queue's
 * thread begins its copy when it has arrived) and events between them: a buffer is filled when its
 * last piece has been sent, sent when it is filled. The first copy of a RECORD_STREAM waits until
 * the computing stream has passed what stood before the record, so nothing reads the staging room
 * any more; filling runs ahead of that. Behind the last copy the weight's own event is recorded,
 * for which a record that reads it has the computing stream wait. All of it is order among streams:
 * no thread of ours waits for a copy.
 */
#include "kernels/cuda/cuda_device.h"

#include <string.h>

cu_result cuda_piece_send(const struct cuda_piece *p)
{
    const struct cuda_weight *w = p->weight;
    const struct cuda_driver *cu = w->device->cu;
    const struct cuda_streams *s = p->streams;
    const cu_event filled = s->filled[p->buffer], sent = s->sent[p->buffer];
    const cu_address to = (cu_address)(uintptr_t)w->weight.data;
    cu_result result = cu->stream_wait(s->fill, sent, 0);
    if (result || (result = cu->host_call(s->fill, cuda_piece_fill, (void *)(uintptr_t)p)) ||
        (result = cu->event_record(filled, s->fill)) ||
        (result = cu->stream_wait(s->copy, filled, 0)))
        return result;
    for (int i = 0; i < CUDA_PLANES && !result; i++)
        if (w->row[i])
            result = cu->upload(to + w->plane[i] + p->begin * w->row[i], p->to + p->plane[i],
                                (p->end - p->begin) * w->row[i], s->copy);
    return result ? result : cu->event_record(sent, s->copy);
}

cu_result cuda_weight_send(const struct cuda_weight *w)
{
    struct cuda_device *d = w->device;
    const void *whole = w->kept ? w->kept : w->source.prepared;
    cu_result result = CU_OK;
    if (whole)
        return d->cu->upload((cu_address)(uintptr_t)w->weight.data, whole, w->weight.bytes,
                             d->streams.copy);
    for (uint32_t i = 0; i < w->n_pieces && !result; i++)
        result = cuda_piece_send(&w->pieces[i]);
    return result;
}

cu_result cuda_streams_wait(struct cuda_device *d, const struct cuda_streams *s)
{
    const cu_result filled = cuda_stream_finish(d, s->fill);
    const cu_result sent = cuda_stream_finish(d, s->copy);
    return filled ? filled : sent;
}

/* -------------------------------------------------------------------------------- records -- */

static cu_event *behind(struct cuda_streams *s)
{
    return &s->behind[s->records % CUDA_STREAMS_AHEAD];
}

cu_result cuda_stream_room(struct cuda_device *d)
{
    return d->cu->event_query(*behind(&d->streams));
}

/* Pages of the host's KV to those of the room, which have the same numbers and layout. */
static cu_result history_send(const struct cuda_device *d, const struct compiled *c,
                              const struct program_record *r, const struct step *step)
{
    const struct kv_cache *to = c->program->kv, *from = c->program->host_kv;
    const uint64_t page = kv_page_bytes(to, r->kv_layer);
    cu_result result = CU_OK;
    for (struct kv_history h = {0}; !result && kv_history_next(to, r->kv_layer, step, &h);)
        result = d->cu->upload((cu_address)(uintptr_t)kv_block(to, r->kv_layer, h.page, 0, 0),
                               kv_block(from, r->kv_from, h.page, 0, 0), page * (uint64_t)h.n,
                               d->streams.copy);
    return result ? result : d->cu->event_record(c->kv_arrived[r->kv_layer], d->streams.copy);
}

/* On the driver's thread, behind the copies of a record. */
static void file_used(void *user)
{
    const struct cuda_file_use *use = user;
    file_stream_used(use->file, use->weights);
}

cu_result cuda_stream_run(struct cuda_device *d, const struct compiled *c,
                          const struct program_record *r, const struct step *step)
{
    struct cuda_file_use *use = c->file_uses ? &c->file_uses[r - c->program->records] : NULL;
    const struct cuda_driver *cu = d->cu;
    struct cuda_streams *s = &d->streams;
    cu_result result = cu->event_record(s->passed, d->queue.stream);
    if (!result)
        result = cu->stream_wait(s->copy, s->passed, 0);
    if (!result && record_is_history(r))
        result = history_send(d, c, r, step);
    for (int i = 0; i < r->n_weights && !result; i++) {
        const struct cuda_weight *w = cuda_weight_of(c->program->weights[r->weight[i]]);
        result = cuda_weight_send(w);
        if (!result)
            result = cu->event_record(w->arrived, s->copy);
    }
    if (!result && use && use->weights)
        result = cu->host_call(s->copy, file_used, use);
    if (!result)
        result = cu->event_record(*behind(s), s->copy);
    s->records++;
    return result;
}

cu_result cuda_stream_await(struct cuda_device *d, const struct compiled *c,
                            const struct program_record *r)
{
    const bool room = c->kv_arrived && r->kv_layer >= 0 && c->kv_arrived[r->kv_layer];
    cu_result result =
        room ? d->cu->stream_wait(d->queue.stream, c->kv_arrived[r->kv_layer], 0) : CU_OK;
    for (int i = 0; i < r->n_weights && !result; i++) {
        if (r->weight[i] == UINT32_MAX)
            continue;
        const struct cuda_weight *w = cuda_weight_of(c->program->weights[r->weight[i]]);
        if (w->arrived)
            result = d->cu->stream_wait(d->queue.stream, w->arrived, 0);
    }
    return result;
}

/* ------------------------------------------------------------------------ opening, closing -- */

static cu_result make(const struct cuda_device *d, struct cuda_streams *s)
{
    const struct cuda_driver *cu = d->cu;
    cu_result result = cu->stream_create(&s->fill, CU_STREAM_NON_BLOCKING);
    if (result || (result = cu->stream_create(&s->copy, CU_STREAM_NON_BLOCKING)) ||
        (result = cuda_events_create(d, &s->passed, 1, CU_EVENT_DISABLE_TIMING)) ||
        (result = cuda_events_create(d, s->behind, CUDA_STREAMS_AHEAD, CU_EVENT_DISABLE_TIMING)) ||
        (result = cuda_events_create(d, s->filled, CUDA_BUFFERS, CU_EVENT_DISABLE_TIMING)) ||
        (result = cuda_events_create(d, s->sent, CUDA_BUFFERS, CU_EVENT_DISABLE_TIMING)))
        return result;
    for (int i = 0; i < CUDA_BUFFERS && !result; i++)
        result = cu->host_alloc(&s->buffer[i], CUDA_BUFFER_BYTES, CU_HOST_PORTABLE);
    return result;
}

oato_status cuda_streams_open(struct cuda_device *d, struct cuda_streams *s, const char *what,
                              struct oato_error *err)
{
    const cu_result result = make(d, s);
    if (!result)
        return OATO_OK;
    char doing[64];
    snprintf(doing, sizeof doing, "making what sends %s", what);
    cuda_fail(d->cu, result, d->id, doing, err);
    cuda_streams_close(d, s);
    return err->status;
}

void cuda_streams_close(struct cuda_device *d, struct cuda_streams *s)
{
    if (s->fill && s->copy)
        cuda_streams_wait(d, s);
    cuda_events_destroy(d, &s->passed, 1);
    cuda_events_destroy(d, s->behind, CUDA_STREAMS_AHEAD);
    cuda_events_destroy(d, s->filled, CUDA_BUFFERS);
    cuda_events_destroy(d, s->sent, CUDA_BUFFERS);
    for (int i = 0; i < CUDA_BUFFERS; i++)
        if (s->buffer[i])
            d->cu->host_free(s->buffer[i]);
    if (s->fill)
        d->cu->stream_destroy(s->fill);
    if (s->copy)
        d->cu->stream_destroy(s->copy);
    memset(s, 0, sizeof *s);
}
