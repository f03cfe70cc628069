/*
 * weight_stream.c - how weights travel from the host to a device through lanes: when they are
 * prepared, each time that a RECORD_STREAM asks for them, and experts of a cache that are replaced
 * beside steps; and KV of the host, when a RECORD_STREAM asks for that. Two lanes beside the queue
 * that computes:
 *
 *   fill   the driver's thread calls the host, which converts rows into a page-locked buffer
 *   copy   the piece goes to its place in device memory
 *
 * (what is kept as it is sent needs no filling, nor does KV or what comes from a file) and marks
 * between them: a buffer is filled when its last piece has been sent, sent when it is filled. The
 * first copy of a RECORD_STREAM waits until the computing queue has passed what stood before the
 * record, so nothing reads the staging room any more; filling runs ahead of that. Behind the last
 * copy is the weight's own mark, for which a record that reads it has the computing queue wait. All
 * of it is order among lanes: no thread of ours waits for a copy.
 *
 * Refills have lanes and buffers of their own, so that what a step streams does not wait behind
 * them. The steps before are over when the engine asks, and those after it do not read the rows
 * before the event has passed: no lane has to wait for another one. The event rises in a function
 * that is called behind the last copy; whoever learns so that the rows are there launches only
 * after that. If a copy fails, nothing is called: the rows never arrive, and the next step reports
 * why.
 *
 * Of a device that converts by itself (lane_ops.unpacks) a piece is rows as they are in the file,
 * which filling only copies.
 */
#include "kernels/core/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_GROUP = 64 }; /* rows that any layout keeps together */

/* --------------------------------------------------------------------------------- pieces -- */

/* As a source of its own: in the buffer it is a whole weight of so many rows. */
static struct weight_source piece_source(const struct weight_piece *p)
{
    struct weight_source s = p->weight->source;
    s.row_end = s.row_begin + p->end;
    s.row_begin += p->begin;
    return s;
}

/* On the driver's thread. A refill is in no hurry: the crew may be at work for a step, and so may
 * all cores. */
static void piece_fill(void *user)
{
    const struct weight_piece *p = user;
    struct oato_device *d = p->weight->device;
    const struct weight_source s = piece_source(p);
    const enum convert_by by = p->lanes == &d->weights->refills ? CONVERT_ALONE : CONVERT_TOGETHER;
    const uint64_t begin_ns = now_ns();
    if (p->weight->unpacked)
        weight_rows_gather(d, &s, p->to, by);
    else
        weight_rows_convert(d, &s, p->to, by);
    if (weight_is_measured(p->weight) && by == CONVERT_TOGETHER)
        d->weights->copy_ns += now_ns() - begin_ns;
}

oato_status weight_cut(struct weight_lanes *lanes, struct device_weight *w, struct oato_error *err)
{
    const struct oato_device *d = w->device;
    const int64_t rows = w->handle.rows;
    uint64_t row = 0;
    for (int i = 0; i < WEIGHT_PLANES; i++)
        row += w->plane[i].row_bytes;
    const int64_t most =
        (int64_t)((LANE_BUFFER_BYTES - WEIGHT_PLANES * d->ops->weight_align) / row);
    if (!most)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: a row of %" PRId64 " %s is larger than the transfer buffer",
                         d->weights->id, w->handle.k, dtype_name(w->handle.dtype));
    w->n_pieces = (uint32_t)((rows + most - 1) / most);
    w->pieces = calloc(w->n_pieces, sizeof *w->pieces);
    if (!w->pieces)
        return oato_fail_memory(err, w->n_pieces * sizeof *w->pieces, "a weight's pieces");
    for (uint32_t i = 0; i < w->n_pieces; i++) {
        struct weight_piece *p = &w->pieces[i];
        p->weight = w;
        p->begin = i * most;
        p->end = min_i64(rows, p->begin + most);
        p->lanes = lanes;
        p->buffer = (int)(lanes->turn++ % LANE_BUFFERS);
        p->to = lanes->buffer[p->buffer];
    }
    return OATO_OK;
}

/* Behind what its lanes have to do. */
static oato_status piece_send(const struct weight_piece *p, struct oato_error *err)
{
    const struct device_weight *w = p->weight;
    struct oato_device *d = w->device;
    const struct lane_ops *ops = d->ops->lanes;
    const struct weight_lanes *l = p->lanes;
    struct lane_mark *filled = l->filled[p->buffer], *sent = l->sent[p->buffer];
    const struct weight_source s = piece_source(p);
    struct weight_plane from[WEIGHT_PLANES];
    d->ops->planes(d, &s, from);
    oato_status status = ops->wait(d, l->fill, sent, err);
    if (status || (status = ops->call(d, l->fill, piece_fill, (void *)(uintptr_t)p, err)) ||
        (status = ops->mark(d, l->fill, filled, err)) ||
        (status = ops->wait(d, l->copy, filled, err)))
        return status;
    for (int i = 0; i < WEIGHT_PLANES && w->unpacked; i++)
        from[i].offset = w->plane[i].offset + (uint64_t)p->begin * w->plane[i].row_bytes;
    if (w->unpacked)
        status = ops->unpack(d, l->copy, &s, p->to, (void *)(uintptr_t)w->handle.data, from, err);
    for (int i = 0; i < WEIGHT_PLANES && !w->unpacked && !status; i++) {
        const uint64_t row = w->plane[i].row_bytes;
        if (row)
            status = ops->copy(d, l->copy, (void *)(uintptr_t)w->handle.data,
                               w->plane[i].offset + (uint64_t)p->begin * row,
                               p->to + from[i].offset, (uint64_t)(p->end - p->begin) * row, err);
    }
    return status ? status : ops->mark(d, l->copy, sent, err);
}

oato_status weight_send(struct device_weight *w, struct oato_error *err)
{
    struct oato_device *d = w->device;
    const void *whole = w->kept ? w->kept : w->source.prepared;
    oato_status status = OATO_OK;
    if (whole)
        return d->ops->lanes->copy(d, d->weights->streams.copy, (void *)(uintptr_t)w->handle.data,
                                   0, whole, w->handle.bytes, err);
    for (uint32_t i = 0; i < w->n_pieces && !status; i++)
        status = piece_send(&w->pieces[i], err);
    if (!status && w->unpacked)
        status = d->ops->lanes->unpacked(d, d->weights->streams.copy, err);
    return status;
}

/* -------------------------------------------------------------------------------- records -- */

static struct lane_mark *behind(const struct weight_lanes *l)
{
    return l->behind[l->records % LANE_STREAMS];
}

oato_status weights_room(struct oato_device *d, bool *room, struct oato_error *err)
{
    return d->ops->lanes->passed(d, behind(&d->weights->streams), room, err);
}

/* Pages of the host's KV to those of the room, which have the same numbers and layout. */
static oato_status history_send(struct oato_device *d, const struct program *p,
                                const struct program_record *r, const struct step *step,
                                struct oato_error *err)
{
    const struct kv_cache *to = p->kv, *from = p->host_kv;
    const uint64_t page = kv_page_bytes(to, r->kv_layer);
    oato_status status = OATO_OK;
    for (struct kv_history h = {0}; !status && kv_history_next(to, r->kv_layer, step, &h);)
        status = d->ops->lanes->copy(
            d, d->weights->streams.copy, kv_block(to, r->kv_layer, h.page, 0, 0), 0,
            kv_block(from, r->kv_from, h.page, 0, 0), page * (uint64_t)h.n, err);
    return status;
}

/* On the driver's thread, behind the copies of a record. */
static void file_used(void *user)
{
    const struct weight_file_use *use = user;
    file_stream_used(use->file, use->weights);
}

oato_status weights_stream(struct oato_device *d, const struct program *p,
                           const struct program_record *r, const struct step *step,
                           struct lane_mark *kv_arrived, struct weight_file_use *use,
                           struct oato_error *err)
{
    const struct lane_ops *ops = d->ops->lanes;
    struct weight_lanes *l = &d->weights->streams;
    oato_status status = ops->mark(d, NULL, l->passed, err);
    if (!status)
        status = ops->wait(d, l->copy, l->passed, err);
    if (!status && record_is_history(r)) {
        status = history_send(d, p, r, step, err);
        if (!status && kv_arrived)
            status = ops->mark(d, l->copy, kv_arrived, err);
    }
    for (int i = 0; i < r->n_weights && !status; i++) {
        struct device_weight *w = device_weight_of(p->weights[r->weight[i]]);
        status = weight_send(w, err);
        if (!status)
            status = ops->mark(d, l->copy, w->arrived, err);
    }
    if (!status && use && use->weights)
        status = ops->call(d, l->copy, file_used, use, err);
    if (!status)
        status = ops->mark(d, l->copy, behind(l), err);
    l->records++;
    return status;
}

oato_status weights_await(struct oato_device *d, const struct program *p,
                          const struct program_record *r, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (int i = 0; i < r->n_weights && !status; i++) {
        if (r->weight[i] == UINT32_MAX)
            continue;
        const struct device_weight *w = device_weight_of(p->weights[r->weight[i]]);
        if (w->arrived)
            status = d->ops->lanes->wait(d, NULL, w->arrived, err);
    }
    return status;
}

/* -------------------------------------------------------------------------------- refills -- */

static void refill_free(struct weight_refilled *f)
{
    if (f->converted)
        pages_free(f->converted, f->rows.handle.bytes);
    free(f->rows.pieces);
    free(f);
}

/* Frees those that have arrived. */
static void refills_collect(struct oato_device *d)
{
    struct weight_store *store = d->weights;
    for (struct weight_refilled **at = &store->refilled, *f; (f = *at);) {
        if (!timeline_reached(&store->transfers, f->signal)) {
            at = &f->next;
            continue;
        }
        *at = f->next;
        refill_free(f);
    }
}

/* On the driver's thread, which may not call the driver. */
static void refill_arrived(void *user)
{
    const struct weight_refilled *f = user;
    timeline_signal(f->transfers, f->signal, now_ns());
}

static bool can_refill(const struct oato_device *d, const struct device_weight *w, int64_t row,
                       const struct weight_source *s)
{
    const int64_t rows = s->row_end - s->row_begin, unit = w->cut ? 1 : ROW_GROUP;
    const bool by_lanes = w->cut && !s->prepared && d->weights && d->weights->refills.copy;
    return (by_lanes || (d->ops->beside && w->real.data)) && !w->streamed &&
           w->handle.use == WEIGHT_MATRIX && s->use == WEIGHT_MATRIX && weight_source_good(s) &&
           row >= 0 && rows > 0 && rows <= w->handle.rows - row && row % unit == 0 &&
           rows % unit == 0 && s->k == w->handle.k && s->dtype == w->handle.dtype;
}

/* Piece by piece, and the function that raises the event behind them. */
static oato_status refill_send(struct oato_device *d, struct weight_refilled *f,
                               const struct device_weight *w, int64_t row, struct oato_error *err)
{
    struct weight_lanes *l = &d->weights->refills;
    if (weight_cut(l, &f->rows, err))
        return err->status;
    f->rows.unpacked = weight_is_unpacked(d, &f->rows.source);
    for (int i = 0; i < WEIGHT_PLANES; i++) /* not those of a matrix of so few rows */
        f->rows.plane[i].offset = w->plane[i].offset + (uint64_t)row * w->plane[i].row_bytes;
    oato_status status = OATO_OK;
    for (uint32_t i = 0; i < f->rows.n_pieces && !status; i++)
        status = piece_send(&f->rows.pieces[i], err);
    if (!status && f->rows.unpacked)
        status = d->ops->lanes->unpacked(d, l->copy, err);
    return status ? status : d->ops->lanes->call(d, l->copy, refill_arrived, f, err);
}

/* As one copy, of what the host has prepared, or is converted here for it. */
static oato_status refill_beside(struct oato_device *d, struct weight_refilled *f,
                                 const struct device_weight *w, int64_t row, uint64_t begin_ns,
                                 struct oato_error *err)
{
    const struct weight_source *s = &f->rows.source;
    const uint64_t before = row ? weight_bytes_of(d, s->dtype, row, s->k, s->use) : 0;
    const void *from = s->prepared;
    if (!from) {
        f->converted = pages_alloc(f->rows.handle.bytes);
        if (!f->converted)
            return oato_fail_memory(err, f->rows.handle.bytes, "an expert's rows");
        weight_rows_convert(d, s, f->converted, CONVERT_ALONE);
        from = f->converted;
    }
    return d->ops->beside(d, (uint8_t *)(uintptr_t)w->real.data + before, from,
                          f->rows.handle.bytes, f->signal, begin_ns, err);
}

oato_status weight_refill(struct oato_device *d, struct oato_weight *handle, int64_t row,
                          const struct weight_source *source, uint64_t begin_ns, uint64_t *value,
                          struct oato_error *err)
{
    const struct device_weight *w = device_weight_of(handle);
    const int64_t rows = source->row_end - source->row_begin;
    struct weight_store *store = weight_store_of(d, err);
    if (!store)
        return err->status;
    if (!can_refill(d, w, row, source))
        return oato_fail(err, OATO_EUSAGE,
                         "%s: rows %" PRId64 " to %" PRId64 " cannot be refilled with these",
                         store->id, row, row + rows);
    refills_collect(d);
    struct weight_refilled *f = calloc(1, sizeof *f);
    if (!f)
        return oato_fail_memory(err, sizeof *f, "a refill");
    f->transfers = &store->transfers;
    f->signal = ++store->transfers_asked; /* of its own, even if it fails */
    f->rows = (struct device_weight){.device = d, .source = *source, .handle = w->handle};
    f->rows.handle.rows = rows;
    f->rows.handle.bytes = weight_bytes(d, source);
    memcpy(f->rows.plane, w->plane, sizeof w->plane);
    f->next = store->refilled;
    store->refilled = f;
    const oato_status status =
        w->cut ? refill_send(d, f, w, row, err) : refill_beside(d, f, w, row, begin_ns, err);
    *value = f->signal;
    if (status)
        f->signal = UINT64_MAX; /* copies may still read it, so nobody frees it before the end */
    return status;
}

oato_status weights_refills_open(struct oato_device *d, struct oato_error *err)
{
    return d->weights->refills.copy ? OATO_OK : weight_lanes_open(d, &d->weights->refills, err);
}

void weight_refills_drop(struct oato_device *d)
{
    struct weight_store *store = d->weights;
    if (d->ops->lanes)
        weight_lanes_close(d, &store->refills);
    for (struct weight_refilled *f; (f = store->refilled);) {
        store->refilled = f->next;
        refill_free(f);
    }
}

/* ------------------------------------------------------------------------ opening, closing -- */

oato_status weight_lanes_drain(struct oato_device *d, const struct weight_lanes *l,
                               struct oato_error *err)
{
    struct oato_error late;
    if (!l->fill || !l->copy)
        return OATO_OK;
    const oato_status filled = d->ops->lanes->drain(d, l->fill, err);
    const oato_status sent = d->ops->lanes->drain(d, l->copy, filled ? &late : err);
    return filled ? filled : sent;
}

oato_status weights_drain(struct oato_device *d, struct oato_error *err)
{
    return weight_lanes_drain(d, &d->weights->streams, err);
}

static oato_status marks_open(struct oato_device *d, struct lane_mark **mark, int n,
                              struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (int i = 0; i < n && !status; i++)
        status = d->ops->lanes->mark_open(d, &mark[i], err);
    return status;
}

static void marks_close(struct oato_device *d, struct lane_mark **mark, int n)
{
    for (int i = 0; i < n; i++)
        if (mark[i])
            d->ops->lanes->mark_close(d, mark[i]);
}

static oato_status lanes_make(struct oato_device *d, struct weight_lanes *l, struct oato_error *err)
{
    oato_status status = d->ops->lanes->open(d, &l->fill, err);
    if (status || (status = d->ops->lanes->open(d, &l->copy, err)) ||
        (status = marks_open(d, &l->passed, 1, err)) ||
        (status = marks_open(d, l->behind, LANE_STREAMS, err)) ||
        (status = marks_open(d, l->filled, LANE_BUFFERS, err)) ||
        (status = marks_open(d, l->sent, LANE_BUFFERS, err)))
        return status;
    for (int i = 0; i < LANE_BUFFERS; i++) {
        l->buffer[i] = d->ops->host_alloc(d, LANE_BUFFER_BYTES, true);
        if (!l->buffer[i])
            return oato_fail_memory(err, LANE_BUFFER_BYTES, "a transfer buffer");
    }
    return OATO_OK;
}

oato_status weight_lanes_open(struct oato_device *d, struct weight_lanes *l, struct oato_error *err)
{
    const oato_status status = lanes_make(d, l, err);
    if (status)
        weight_lanes_close(d, l);
    return status;
}

void weight_lanes_close(struct oato_device *d, struct weight_lanes *l)
{
    struct oato_error ignored;
    weight_lanes_drain(d, l, &ignored);
    marks_close(d, &l->passed, 1);
    marks_close(d, l->behind, LANE_STREAMS);
    marks_close(d, l->filled, LANE_BUFFERS);
    marks_close(d, l->sent, LANE_BUFFERS);
    for (int i = 0; i < LANE_BUFFERS; i++)
        if (l->buffer[i])
            d->ops->host_free(d, l->buffer[i]);
    if (l->fill)
        d->ops->lanes->close(d, l->fill);
    if (l->copy)
        d->ops->lanes->close(d, l->copy);
    memset(l, 0, sizeof *l);
}
