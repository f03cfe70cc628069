/*
 * weights.c - weights of any device, over what it says of them: bytes, convert and place. Where the
 * host reaches the device's memory rows are converted in place, by all threads that the device has
 * for that; elsewhere they go through lanes, a piece at a time (weight_stream.c), or as a whole by
 * its upload. A streamed weight is kept converted in host memory while there is room.
 *
 * A copied weight leaves the file's pages to the kernel, so that the peak of memory stays near the
 * size of the model.
 */
#include "kernels/core/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROW_GROUP = 64,         /* rows that convert may be asked for together */
    SHARES = 4,             /* of a piece, for each thread: they do not end all at once */
    ALONE_BYTES = 64 << 10, /* in place, this is not worth waking anybody; */
    ALONE_PIECE = 256 << 10 /* nor is this, where the link is the limit */
};
/* Of a file are converted by a thread, then leave the resident set. */
#define RELEASE_BYTES ((int64_t)512 << 10)
/* Threads claim rows of this size in place: the page that two of them share at their border is
 * seldom cleared twice. */
#define CLAIM_BYTES ((int64_t)2 << 20)

static int64_t rows_of(const struct weight_source *s)
{
    return s->row_end - s->row_begin;
}

static struct weight_store *store_make(struct oato_device *d, struct oato_error *err)
{
    if (d->weights)
        return d->weights;
    struct weight_store *store = calloc(1, sizeof *store);
    if (!store) {
        oato_fail_memory(err, sizeof *store, "a device's weights");
        return NULL;
    }
    timeline_init(&store->transfers);
    store->transfers.simulated = d->ops->simulated;
    return d->weights = store;
}

struct weight_store *weight_store_of(struct oato_device *d, struct oato_error *err)
{
    struct device_info info;
    struct weight_store *store = store_make(d, err);
    if (!store || store->id[0])
        return store;
    d->ops->info(d, &info);
    snprintf(store->id, sizeof store->id, "%s", info.id);
    store->is_host = info.is_host;
    return store;
}

oato_status weights_open(struct oato_device *d, struct oato_error *err)
{
    struct weight_store *store = weight_store_of(d, err);
    if (!store)
        return err->status;
    const oato_status status = weight_lanes_open(d, &store->streams, err);
    if (!status) {
        crew_open(&store->crew);
        return OATO_OK;
    }
    free(store);
    d->weights = NULL;
    return status;
}

static void unplace(struct oato_device *d, void *p, uint64_t bytes)
{
    if (d->ops->place)
        d->ops->unplace(d, p, bytes);
    else
        d->ops->free(d, p, bytes);
}

struct file_stream *weights_file(const struct oato_device *d)
{
    return d->weights ? d->weights->file : NULL;
}

struct timeline *weight_transfers(struct oato_device *d)
{
    return &d->weights->transfers;
}

bool weight_refills(const struct oato_device *d)
{
    return d->ops->lanes || d->ops->beside;
}

const char *weight_layout(const struct oato_device *d)
{
    return d->ops->layout ? d->ops->layout(d) : NULL;
}

uint64_t weight_bytes(const struct oato_device *d, const struct weight_source *source)
{
    return d->ops->bytes(d, source);
}

uint64_t weight_bytes_of(const struct oato_device *d, oato_dtype dtype, int64_t rows, int64_t k,
                         enum weight_use use)
{
    const struct weight_source source = {
        .dtype = dtype, .k = k, .n = rows, .row_end = rows, .use = use};
    return d->ops->bytes(d, &source);
}

/* --------------------------------------------------------------------------- converting --- */

/* A weight that several threads convert, by claims of rows. */
struct conversion {
    struct oato_device *device;
    const struct weight_source *source;
    void *to;
    int64_t rows, unit; /* in all; that claims are multiples of */
    bool in_place, raw; /* raw: as they are in the file */
    _Atomic int64_t next;
};

/* As many units of rows as make about so many bytes of the file. */
static int64_t rows_of_bytes(const struct conversion *c, int64_t bytes)
{
    const int64_t row = (int64_t)weight_source_stride(c->source);
    return max_i64(1, bytes / (row * c->unit + 1)) * c->unit;
}

static void rows_copy(const struct weight_source *s, int64_t begin, int64_t end, uint8_t *to)
{
    size_t row = 0;
    dtype_row_bytes(s->dtype, s->k, &row);
    const bool neighbours = !s->list && weight_source_stride(s) == row;
    if (neighbours)
        memcpy(to + row * (uint64_t)begin, weight_source_row(s, begin),
               row * (uint64_t)(end - begin));
    for (int64_t r = begin; !neighbours && r < end; r++)
        memcpy(to + row * (uint64_t)r, weight_source_row(s, r), row);
}

static void conversion_share(void *arg, int threads)
{
    struct conversion *c = arg;
    const int64_t shares = c->in_place ? threads : SHARES * threads;
    const int64_t even = (c->rows / shares + c->unit) / c->unit * c->unit;
    const int64_t claim = min_i64(even, rows_of_bytes(c, CLAIM_BYTES));
    const int64_t release = c->in_place ? rows_of_bytes(c, RELEASE_BYTES) : claim;
    for (int64_t at; (at = atomic_fetch_add(&c->next, claim)) < c->rows;) {
        const int64_t end = min_i64(c->rows, at + claim);
        for (int64_t stop; at < end; at = stop) {
            stop = min_i64(end, at + release);
            if (c->raw)
                rows_copy(c->source, at, stop, c->to);
            else
                c->device->ops->convert(c->device, c->source, at, stop, c->to);
            if (c->in_place)
                weight_source_release(c->source, at, stop);
        }
    }
}

static void rows_bring(struct oato_device *d, const struct weight_source *s, void *to,
                       enum convert_by by, bool raw)
{
    struct weight_plane plane[WEIGHT_PLANES];
    const bool rows = d->ops->planes && d->ops->planes(d, s, plane);
    struct conversion c = {.device = d,
                           .source = s,
                           .to = to,
                           .rows = rows_of(s),
                           .unit = rows ? 1 : ROW_GROUP,
                           .in_place = by == CONVERT_IN_PLACE,
                           .raw = raw};
    const uint64_t bytes = d->ops->bytes(d, s);
    atomic_init(&c.next, 0);
    const bool many = by != CONVERT_ALONE && bytes >= ALONE_BYTES;
    if (many && d->ops->together)
        d->ops->together(d, conversion_share, &c);
    else if (many && d->ops->lanes && bytes > ALONE_PIECE)
        crew_run(&d->weights->crew, conversion_share, &c);
    else
        conversion_share(&c, 1);
    if (c.in_place) /* threads touched the neighbours of what others had released */
        weight_source_release(s, 0, c.rows);
}

void weight_rows_convert(struct oato_device *d, const struct weight_source *s, void *to,
                         enum convert_by by)
{
    rows_bring(d, s, to, by, false);
}

void weight_rows_gather(struct oato_device *d, const struct weight_source *s, void *to,
                        enum convert_by by)
{
    rows_bring(d, s, to, by, true);
}

/* Whether the source can be a weight; if not, says why not. */
static bool is_good(const struct oato_device *d, const struct weight_source *s, uint64_t *bytes,
                    struct oato_error *err)
{
    struct device_info info;
    const bool good = weight_source_good(s);
    *bytes = good ? d->ops->bytes(d, s) : 0;
    if (*bytes || (good && d->ops->reach && (s->use == WEIGHT_LOOKUP || !rows_of(s))))
        return true;
    d->ops->info(d, &info);
    weight_source_fail(s, info.id, OATO_EUSAGE, err);
    return false;
}

oato_status weight_convert(struct oato_device *d, const struct weight_source *source, void *to,
                           struct oato_error *err)
{
    uint64_t bytes;
    if (!is_good(d, source, &bytes, err))
        return err->status;
    if (bytes)
        weight_rows_convert(d, source, to, CONVERT_IN_PLACE);
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ weights --- */

/* As it is sent; what is no pieces has no other way. */
static oato_status keep_converted(struct device_weight *w, struct oato_error *err)
{
    struct oato_device *d = w->device;
    const bool must = !w->cut;
    if (w->source.prepared)
        return OATO_OK;
    w->kept = d->ops->host_alloc(d, w->handle.bytes, must);
    if (!w->kept)
        return must ? oato_fail_memory(err, w->handle.bytes, "a weight to be sent to a device")
                    : OATO_OK;
    weight_rows_convert(d, &w->source, w->kept, CONVERT_TOGETHER);
    return OATO_OK;
}

static void unkeep(struct device_weight *w)
{
    if (w->kept)
        w->device->ops->host_free(w->device, w->kept);
    w->kept = NULL;
    free(w->pieces);
    w->pieces = NULL;
}

static void weight_delete(struct device_weight *w)
{
    *w->at = w->next;
    if (w->next)
        w->next->at = w->at;
    unkeep(w);
    if (w->arrived)
        w->device->ops->lanes->mark_close(w->device, w->arrived);
    free(w);
}

void weights_close(struct oato_device *d)
{
    struct weight_store *store = d->weights;
    if (!store)
        return;
    file_stream_free(store->file);
    weight_refills_drop(d);
    for (struct device_weight *w = store->weights, *next; w; w = next) {
        next = w->next;
        weight_delete(w);
    }
    if (d->ops->lanes) {
        weight_lanes_close(d, &store->streams);
        crew_close(&store->crew);
    }
    if (store->slab.bytes)
        unplace(d, store->slab.memory, store->slab.bytes);
    free(store);
    d->weights = NULL;
}

/* A weight that has no place in device memory yet; NULL with a message. */
static struct device_weight *weight_create(struct oato_device *d, const struct weight_source *s,
                                           struct oato_error *err)
{
    uint64_t bytes;
    struct weight_store *store = store_make(d, err);
    if (!store || !is_good(d, s, &bytes, err))
        return NULL;
    struct device_weight *w = calloc(1, sizeof *w);
    if (!w) {
        oato_fail_memory(err, sizeof *w, "a weight");
        return NULL;
    }
    w->next = store->weights;
    w->at = &store->weights;
    if (w->next)
        w->next->at = &w->next;
    store->weights = w;
    w->device = d;
    w->source = *s;
    w->borrowed = s->use == WEIGHT_LOOKUP && !bytes;
    w->handle = (struct oato_weight){
        .dtype = s->dtype, .use = s->use, .rows = rows_of(s), .k = s->k, .bytes = bytes};
    w->cut = d->ops->lanes && d->ops->planes && d->ops->planes(d, s, w->plane);
    w->unpacked = w->cut && !s->prepared && weight_is_unpacked(d, s);
    if (w->cut && weight_cut(&d->weights->streams, w, err)) {
        weight_delete(w);
        return NULL;
    }
    return w;
}

/* Where it does not fit, each weight is placed by itself. */
void weight_reserve(struct oato_device *d, uint64_t bytes, uint32_t weights)
{
    struct oato_error ignored;
    struct weight_store *s = d->ops->weight_align ? weight_store_of(d, &ignored) : NULL;
    const uint64_t all = bytes + (uint64_t)weights * d->ops->weight_align;
    if (!s || weights < 2 || s->slab.bytes ||
        d->ops->place(d, all, NULL, &s->slab.memory, &ignored))
        return;
    s->slab.bytes = all;
    s->slab.used = 0;
    s->slab.weights = 0;
}

static oato_status place(struct oato_device *d, struct device_weight *w, struct oato_error *err)
{
    const uint64_t bytes = w->handle.bytes;
    struct weight_store *s = d->weights;
    void *p = NULL;
    oato_status status = OATO_OK;
    if (s && s->slab.bytes) {
        const uint64_t at = size_align(s->slab.used, d->ops->weight_align);
        w->in_slab = at <= s->slab.bytes && bytes <= s->slab.bytes - at;
        p = (uint8_t *)s->slab.memory + at;
        s->slab.used = w->in_slab ? at + bytes : s->slab.used;
        s->slab.weights += w->in_slab;
    }
    if (!w->in_slab)
        status = d->ops->place ? d->ops->place(d, bytes, w->source.prepared, &p, err)
                               : d->ops->alloc(d, bytes, &p, err);
    w->handle.data = status ? NULL : p;
    w->real = w->handle;
    w->real.data = !status && d->ops->reach ? d->ops->reach(d, p, 0, bytes) : NULL;
    return status;
}

static void give_back(struct oato_device *d, const struct device_weight *w)
{
    struct weight_store *s = d->weights;
    if (!w->in_slab) {
        unplace(d, (void *)(uintptr_t)w->handle.data, w->handle.bytes);
    } else if (--s->slab.weights == 0) {
        unplace(d, s->slab.memory, s->slab.bytes);
        memset(&s->slab, 0, sizeof s->slab);
    }
}

/* Converted as a whole, by the device's own copy. */
static oato_status fill_by_upload(struct oato_device *d, const struct device_weight *w,
                                  struct oato_error *err)
{
    const uint64_t bytes = w->handle.bytes;
    void *own = w->source.prepared ? NULL : pages_alloc(bytes);
    if (!own && !w->source.prepared)
        return oato_fail_memory(err, bytes, "a weight to be sent to a device");
    if (own)
        weight_rows_convert(d, &w->source, own, CONVERT_TOGETHER);
    const oato_status status = d->ops->upload(d, (void *)(uintptr_t)w->handle.data, 0,
                                              own ? own : w->source.prepared, bytes, NULL, err);
    if (own)
        pages_free(own, bytes);
    return status;
}

static oato_status fill_by_lanes(struct oato_device *d, struct device_weight *w,
                                 struct oato_error *err)
{
    struct oato_error late;
    oato_status status =
        d->ops->finish(d, err); /* its thread sends weights, too: it must be idle */
    if (!status && !w->cut)
        status = keep_converted(w, err);
    const uint64_t begin_ns = now_ns();
    if (!status)
        status = weight_send(w, err);
    if (weights_drain(d, status ? &late : err) && !status)
        status = err->status;
    d->weights->send_ns += weight_is_measured(w) ? now_ns() - begin_ns : 0;
    unkeep(w); /* it is there for good */
    return status;
}

/* Its place gets its bytes. */
static oato_status fill(struct oato_device *d, struct device_weight *w, struct oato_error *err)
{
    void *here = (void *)(uintptr_t)w->real.data;
    oato_status status = OATO_OK;
    if (here && !w->source.prepared)
        weight_rows_convert(d, &w->source, here, CONVERT_IN_PLACE);
    else if (here && here != w->source.prepared)
        memcpy(here, w->source.prepared, w->handle.bytes);
    else if (!here)
        status = d->ops->lanes ? fill_by_lanes(d, w, err) : fill_by_upload(d, w, err);
    if (!here)
        weight_source_release(&w->source, 0, w->handle.rows);
    return status;
}

oato_status weight_prepare(struct oato_device *d, const struct weight_source *source,
                           struct oato_weight **out, struct oato_error *err)
{
    struct device_weight *w = weight_create(d, source, err);
    if (!w)
        return err->status;
    if (w->borrowed) {
        w->handle.data = weight_source_row(source, 0);
        w->real = w->handle;
    } else if (place(d, w, err)) {
        weight_delete(w);
        return err->status;
    } else if (fill(d, w, err)) {
        give_back(d, w);
        weight_delete(w);
        return err->status;
    }
    *out = &w->handle;
    return OATO_OK;
}

/* Where the device's memory is that it will be streamed to. */
static oato_status find_room(struct oato_device *d, struct device_weight *w, void *staging,
                             uint64_t offset, struct oato_error *err)
{
    const uint64_t at = (uint64_t)(uintptr_t)staging + offset;
    const char *id = d->weights->id;
    w->handle.data = (const uint8_t *)(uintptr_t)at;
    w->real = w->handle;
    w->real.data = d->ops->reach ? d->ops->reach(d, staging, offset, w->handle.bytes) : NULL;
    if (d->ops->reach && !w->real.data)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: %" PRIu64 " bytes at offset %" PRIu64 " are outside its memory", id,
                         w->handle.bytes, offset);
    if (!staging || (d->ops->weight_align && at % d->ops->weight_align))
        return oato_fail(err, OATO_EUSAGE,
                         "%s: no weight can lie at offset %" PRIu64
                         " of staging memory: it must be a multiple of %" PRIu32,
                         id, offset, d->ops->weight_align);
    return OATO_OK;
}

/* A copy of the weight in page-locked memory spares the host copying its rows at each use. It is
 * not made where the device does not want it, nor where rows were copied so fast that the link was
 * the limit, with half as much again to spare for what else the host does. */
static bool is_sent_from_file(const struct oato_device *d, const struct device_weight *w)
{
    const struct weight_store *store = d->weights;
    struct device_info info;
    d->ops->info(d, &info);
    if (!w->cut || w->source.prepared)
        return false;
    return !info.keeps ||
           (w->unpacked && store->send_ns && store->copy_ns * 3 < store->send_ns * 2);
}

static oato_status stage(struct oato_device *d, struct device_weight *w, void *staging,
                         uint64_t offset, struct oato_error *err)
{
    const struct weight_source *s = &w->source;
    if (find_room(d, w, staging, offset, err) ||
        (d->ops->lanes && d->ops->lanes->mark_open(d, &w->arrived, err)))
        return err->status;
    if (d->weights->is_host) /* its steps read it where it arrives */
        return file_stream_add(&d->weights->file, d->weights->id, &w->handle, w->handle.bytes, s,
                               staging, offset, err);
    if (s->stored.file) {
        w->source.prepared = s->stored.ring + s->stored.ring_offset;
        return file_stream_add(&d->weights->file, d->weights->id, &w->handle, w->handle.bytes, s,
                               s->stored.ring, s->stored.ring_offset, err);
    }
    return !d->ops->lanes || is_sent_from_file(d, w) ? OATO_OK : keep_converted(w, err);
}

oato_status weight_stage(struct oato_device *d, const struct weight_source *source, void *staging,
                         uint64_t offset, struct oato_weight **out, struct oato_error *err)
{
    struct device_weight *w = weight_store_of(d, err) ? weight_create(d, source, err) : NULL;
    if (!w)
        return err->status;
    w->streamed = true;
    const oato_status status = stage(d, w, staging, offset, err);
    if (status)
        weight_delete(w);
    else
        *out = &w->handle;
    return status;
}

void weight_free(struct oato_device *d, struct oato_weight *handle)
{
    struct device_weight *w = device_weight_of(handle);
    struct oato_error ignored;
    if (!w)
        return;
    if (!w->borrowed)
        d->ops->finish(d, &ignored);
    if (d->ops->lanes && w->streamed) /* it may be on its way though nobody waits for it */
        weights_drain(d, &ignored);
    else if (d->ops->lanes && d->weights->refilled)
        weight_lanes_drain(d, &d->weights->refills, &ignored);
    if (!w->streamed && !w->borrowed)
        give_back(d, w);
    weight_delete(w);
}

const void *weight_data(const struct oato_device *d, const struct oato_weight *w)
{
    (void)d;
    return device_weight_of(w)->real.data;
}

oato_status weight_vector_read(struct oato_device *d, const struct oato_weight *w, float *out,
                               uint64_t n, struct oato_error *err)
{
    if (!weight_is_streamed(w))
        return d->ops->download(d, out, w->data, 0, n * sizeof *out, NULL, err);
    if (w->bytes != n * sizeof *out)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: a streamed vector of %" PRIu64 " bytes where %" PRIu64
                         " numbers are requested",
                         d->weights->id, w->bytes, n);
    weight_rows_convert(d, &device_weight_of(w)->source, out, CONVERT_ALONE);
    return OATO_OK;
}

/* ------------------------------------------------------ streams to memory that is reached - */

uint64_t weights_stream_here(const struct program *p, const struct program_record *r, bool write)
{
    uint64_t bytes = 0;
    for (int i = 0; i < r->n_weights; i++) {
        const struct device_weight *w = device_weight_of(p->weights[r->weight[i]]);
        const struct weight_source *s = &w->source;
        size_t row = 0;
        dtype_row_bytes(s->dtype, s->k, &row);
        bytes += s->prepared ? w->handle.bytes : (uint64_t)w->handle.rows * row;
        if (write && s->prepared)
            memcpy((void *)(uintptr_t)w->real.data, s->prepared, w->handle.bytes);
        else if (write)
            weight_rows_convert(w->device, s, (void *)(uintptr_t)w->real.data, CONVERT_ALONE);
    }
    return bytes;
}
