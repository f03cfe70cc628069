/*
 * cuda_weight.c - weights of a GPU: how many bytes they take, and how they get there. The host
 * brings rows of the model's file to the device's layout (cuda_layout.h), a piece of the weight at
 * a time, into pinned buffers from which they are sent (cuda_stream.c): a weight is never whole in
 * host memory, and several threads convert what one alone would hold up the link with. Columns
 * are converted as a whole, and sent at once.
 *
 * A streamed weight is sent each time that it is wanted. It is kept converted in pinned memory,
 * from which a link is at its fastest, as long as a quarter of the host's memory stays free; what
 * finds no room there goes the same way as others each time. What comes from a file is sent from
 * the ring in which it arrives.
 */
#include "kernels/cuda/cuda_device.h"

#include <inttypes.h>
#include <stdlib.h>

/* --------------------------------------------------------------------------------- pieces -- */

uint64_t cuda_prepared_bytes(const struct oato_device *base, oato_dtype dtype, int64_t rows,
                             int64_t k, enum weight_use use)
{
    (void)base;
    if (use == WEIGHT_VECTOR)
        return (uint64_t)rows * (uint64_t)k * sizeof(float);
    if (use == WEIGHT_COLUMNS)
        return columns_bytes(dtype, rows, k, columns_blocks(dtype, NULL, k));
    return cuda_layout_bytes(dtype, rows, k);
}

uint64_t cuda_source_bytes(const struct oato_device *base, const struct weight_source *s)
{
    const int64_t rows = s->row_end - s->row_begin;
    return s->use == WEIGHT_COLUMNS
               ? columns_bytes(s->dtype, rows, s->k, columns_blocks(s->dtype, s->list, s->k))
               : cuda_prepared_bytes(base, s->dtype, rows, s->k, s->use);
}

/* A block of columns has something of every row, so it is no piece. */
static bool is_whole(const struct cuda_weight *w)
{
    return w->source.use == WEIGHT_COLUMNS;
}

oato_status cuda_weight_cut(struct cuda_device *d, struct cuda_streams *s, struct cuda_weight *w,
                            struct oato_error *err)
{
    const oato_dtype dtype = w->source.use == WEIGHT_VECTOR ? DT_F32 : w->source.dtype;
    const uint64_t rows = (uint64_t)w->weight.rows;
    const int64_t k = w->source.k;
    uint64_t row = 0;
    cuda_layout_row(dtype, k, w->row);
    cuda_layout_planes(dtype, w->weight.rows, k, w->plane);
    for (int p = 0; p < CUDA_PLANES; p++)
        row += w->row[p];
    const uint64_t most = (CUDA_BUFFER_BYTES - CUDA_PLANES * CUDA_PLANE_ALIGN) / row;
    if (!most)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: a row of %" PRId64 " %s is larger than the transfer buffer", d->id, k,
                         dtype_name(w->source.dtype));
    w->n_pieces = (uint32_t)((rows + most - 1) / most);
    w->pieces = calloc(w->n_pieces, sizeof *w->pieces);
    if (!w->pieces)
        return oato_fail_memory(err, w->n_pieces * sizeof *w->pieces, "a weight's pieces");
    for (uint32_t i = 0; i < w->n_pieces; i++) {
        struct cuda_piece *p = &w->pieces[i];
        p->weight = w;
        p->begin = i * most;
        p->end = rows - p->begin < most ? rows : p->begin + most;
        p->bytes = (p->end - p->begin) * row;
        p->streams = s;
        p->buffer = (int)(s->turn++ % CUDA_BUFFERS);
        p->to = s->buffer[p->buffer];
        cuda_layout_planes(dtype, (int64_t)(p->end - p->begin), k, p->plane);
    }
    return OATO_OK;
}

static void weight_delete(struct cuda_weight *w)
{
    if (!w)
        return;
    if (w->kept)
        w->device->cu->host_free(w->kept);
    if (w->arrived)
        w->device->cu->event_destroy(w->arrived);
    free(w->pieces);
    free(w);
}

/* A weight that has no place in device memory yet; NULL with a message. */
static struct cuda_weight *weight_create(struct cuda_device *d, const struct weight_source *source,
                                         struct oato_error *err)
{
    const int64_t rows = source->row_end - source->row_begin;
    uint64_t bytes = 0;
    if (weight_source_good(source))
        bytes = cuda_source_bytes(&d->base, source);
    if (!bytes) {
        weight_source_fail(source, d->id, OATO_EUSAGE, err);
        return NULL;
    }
    struct cuda_weight *w = calloc(1, sizeof *w);
    if (!w) {
        oato_fail_memory(err, sizeof *w, "a weight");
        return NULL;
    }
    w->device = d;
    w->source = *source;
    w->weight = (struct oato_weight){
        .dtype = source->dtype, .use = source->use, .rows = rows, .k = source->k, .bytes = bytes};
    if (!is_whole(w) && cuda_weight_cut(d, &d->streams, w, err)) {
        weight_delete(w);
        return NULL;
    }
    return w;
}

/* Nobody else uses the crew while a model is loaded. What is no pieces has no other way. */
static oato_status keep_converted(struct cuda_weight *w, struct oato_error *err)
{
    void *memory = NULL;
    const bool must = is_whole(w);
    if (!must && !cuda_host_has_room(w->weight.bytes))
        return OATO_OK;
    if (w->device->cu->host_alloc(&memory, w->weight.bytes, CU_HOST_PORTABLE))
        return must ? oato_fail_memory(err, w->weight.bytes, "a weight to be sent to a GPU")
                    : OATO_OK;
    w->kept = memory;
    struct cuda_piece all = {
        .weight = w, .to = memory, .end = (uint64_t)w->weight.rows, .bytes = w->weight.bytes};
    cuda_piece_fill(&all);
    return OATO_OK;
}

/* ---------------------------------------------------------------------------------- room -- */

/* Where it does not fit, each weight is allocated by itself. */
void cuda_reserve(struct oato_device *base, uint64_t bytes, uint32_t weights)
{
    struct cuda_device *d = cuda_of(base);
    struct oato_error ignored;
    const uint64_t all = bytes + (uint64_t)weights * CUDA_PLANE_ALIGN;
    if (weights < 2 || d->slab.memory || cuda_take(d, all, "weights", &d->slab.memory, &ignored))
        return;
    d->slab.bytes = all;
    d->slab.used = 0;
    d->slab.weights = 0;
}

static oato_status place(struct cuda_device *d, struct cuda_weight *w, struct oato_error *err)
{
    struct cuda_slab *s = &d->slab;
    const uint64_t at = size_align(s->used, CUDA_PLANE_ALIGN);
    cu_address address = s->memory + at;
    w->in_slab = s->memory && at <= s->bytes && w->weight.bytes <= s->bytes - at;
    if (!w->in_slab && cuda_take(d, w->weight.bytes, "a weight", &address, err))
        return err->status;
    if (w->in_slab) {
        s->used = at + w->weight.bytes;
        s->weights++;
    }
    w->weight.data = (const uint8_t *)(uintptr_t)address;
    return OATO_OK;
}

static void give_back(struct cuda_device *d, struct cuda_weight *w)
{
    if (!w->in_slab) {
        cuda_return(d, (cu_address)(uintptr_t)w->weight.data, w->weight.bytes);
    } else if (--d->slab.weights == 0) {
        cuda_return(d, d->slab.memory, d->slab.bytes);
        d->slab = (struct cuda_slab){0};
    }
}

oato_status cuda_prepare(struct oato_device *base, const struct weight_source *source,
                         struct oato_weight **out, struct oato_error *err)
{
    struct cuda_device *d = cuda_of(base);
    struct cuda_weight *w = weight_create(d, source, err);
    if (!w)
        return err->status;
    if (place(d, w, err))
        goto fail;
    /* the queue's thread sends weights too: it must be idle */
    if (job_queue_drain(&d->queue.base, err))
        goto fail;
    cuda_enter(d);
    if (is_whole(w) && keep_converted(w, err))
        goto fail;
    cu_result result = cuda_weight_send(w);
    const cu_result waited = cuda_streams_wait(d, &d->streams);
    result = result ? result : waited;
    if (result) {
        cuda_fail(d->cu, result, d->id, "writing a weight", err);
        goto fail;
    }
    weight_source_release(source, 0, w->weight.rows);
    free(w->pieces); /* it is there for good */
    w->pieces = NULL;
    if (w->kept)
        d->cu->host_free(w->kept);
    w->kept = NULL;
    *out = &w->weight;
    return OATO_OK;

fail:
    if (w->weight.data)
        give_back(d, w);
    weight_delete(w);
    return err->status;
}

oato_status cuda_stage(struct oato_device *base, const struct weight_source *source, void *staging,
                       uint64_t offset, struct oato_weight **out, struct oato_error *err)
{
    struct cuda_device *d = cuda_of(base);
    const uint64_t address = (uint64_t)(uintptr_t)staging + offset;
    if (!staging || address % CUDA_PLANE_ALIGN)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: no weight can lie at offset %" PRIu64
                         " of staging memory: it must be a multiple of %d",
                         d->id, offset, CUDA_PLANE_ALIGN);
    struct cuda_weight *w = weight_create(d, source, err);
    if (!w)
        return err->status;
    w->weight.data = (const uint8_t *)(uintptr_t)address;
    cuda_enter(d);
    const cu_result result = d->cu->event_create(&w->arrived, CU_EVENT_DISABLE_TIMING);
    if (result) {
        cuda_fail(d->cu, result, d->id, "making an event", err);
        weight_delete(w);
        return err->status;
    }
    oato_status status;
    if (source->stored.file) {
        w->source.prepared = source->stored.ring + source->stored.ring_offset;
        status = file_stream_add(&d->file, d->id, &w->weight, w->weight.bytes, source,
                                 source->stored.ring, source->stored.ring_offset, err);
    } else {
        status = keep_converted(w, err);
    }
    if (status)
        weight_delete(w);
    else
        *out = &w->weight;
    return status;
}

oato_status cuda_convert(struct oato_device *base, const struct weight_source *source, void *to,
                         struct oato_error *err)
{
    struct cuda_weight *w = weight_create(cuda_of(base), source, err);
    if (!w)
        return err->status;
    struct cuda_piece all = {
        .weight = w, .to = to, .end = (uint64_t)w->weight.rows, .bytes = w->weight.bytes};
    cuda_piece_fill(&all);
    weight_delete(w);
    return OATO_OK;
}

oato_status cuda_vector_read(struct oato_device *base, const struct oato_weight *weight, float *out,
                             uint64_t n, struct oato_error *err)
{
    const struct cuda_weight *w = cuda_weight_of(weight);
    if (!w->arrived)
        return cuda_download(base, out, weight->data, 0, n * sizeof *out, NULL, err);
    if (weight->bytes != n * sizeof *out)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: a streamed vector of %" PRIu64 " bytes where %" PRIu64
                         " numbers are requested",
                         w->device->id, weight->bytes, n);
    struct cuda_piece all = {.weight = w, .to = (uint8_t *)out, .end = (uint64_t)weight->rows};
    cuda_piece_fill(&all);
    return OATO_OK;
}

void cuda_weight_free(struct oato_device *base, struct oato_weight *weight)
{
    struct cuda_device *d = cuda_of(base);
    struct cuda_weight *w = cuda_weight_of(weight);
    if (!w)
        return;
    job_queue_drain(&d->queue.base, NULL);
    cuda_enter(d);
    if (w->arrived) {
        cuda_streams_wait(d, &d->streams); /* it may be on its way though nobody waits for it */
    } else {
        cuda_refills_wait(d);
        give_back(d, w);
    }
    weight_delete(w);
}
