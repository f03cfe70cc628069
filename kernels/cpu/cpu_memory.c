/*
 * cpu_memory.c - memory of the cpu device: pages counted against the budget, weights prepared by
 * all threads into large common allocations, and the KV cache. A copied weight leaves the file's
 * pages to the kernel, so that the peak of memory stays near the size of the model.
 */
#include "kernels/cpu/cpu_device.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Of address space: the end that no weight fills is never touched and costs no memory. */
#define SLAB_BYTES ((uint64_t)256 << 20)
/* Of a file are copied by a thread, then leave the resident set. */
#define RELEASE_BYTES ((int64_t)512 << 10)
/* Threads claim pieces of this size: the page that two of them share at their border is seldom
 * cleared twice. */
#define CLAIM_BYTES ((int64_t)2 << 20)

/* Weights lie together in large allocations, so that they get huge pages. */
struct slab {
    struct slab *next;
    uint8_t *data;
    uint64_t bytes, used;
    uint32_t live; /* weights in it */
};

static oato_status memory_take(struct cpu_device *d, uint64_t bytes, const char *what,
                               struct oato_error *err)
{
    if (d->fail_alloc > 0 && --d->fail_alloc == 0)
        return oato_fail(err, OATO_EFIT, "%s: no memory for %s (injected)", d->id, what);
    if (d->budget_bytes && (bytes > d->budget_bytes || d->used_bytes > d->budget_bytes - bytes))
        return oato_fail(err, OATO_EFIT,
                         "%s: %s needs %.1f MiB, but %.1f of the budget of %.1f MiB are in use; "
                         "raise the budget or place less on this device",
                         d->id, what, (double)bytes / 0x1p20, (double)d->used_bytes / 0x1p20,
                         (double)d->budget_bytes / 0x1p20);
    d->used_bytes += bytes;
    return OATO_OK;
}

oato_status cpu_pages_take(struct cpu_device *d, uint64_t bytes, const char *what, void **out,
                           struct oato_error *err)
{
    oato_status status = memory_take(d, bytes, what, err);
    if (status)
        return status;
    *out = pages_alloc(bytes);
    if (!*out) {
        d->used_bytes -= bytes;
        return oato_fail_memory(err, bytes, what);
    }
    return OATO_OK;
}

void cpu_pages_return(struct cpu_device *d, void *p, uint64_t bytes)
{
    if (!p)
        return;
    pages_free(p, bytes);
    d->used_bytes -= bytes;
}

static uint8_t *slab_alloc(struct cpu_device *d, uint64_t bytes)
{
    bytes = size_align(bytes ? bytes : 1, 64);
    struct slab *s = d->slabs;
    if (!s || s->bytes - s->used < bytes) {
        s = calloc(1, sizeof *s);
        if (!s)
            return NULL;
        s->bytes = bytes > SLAB_BYTES ? bytes : SLAB_BYTES;
        s->data = pages_alloc(s->bytes);
        if (!s->data) { /* address space is rationed */
            s->bytes = bytes;
            s->data = pages_alloc(bytes);
        }
        if (!s->data) {
            free(s);
            return NULL;
        }
        cpu_pool_spread(d->pool, s->data, s->bytes);
        s->next = d->slabs;
        d->slabs = s;
    }
    uint8_t *p = s->data + s->used;
    s->used += bytes;
    s->live++;
    return p;
}

static void slab_free(struct cpu_device *d, const uint8_t *p)
{
    for (struct slab **at = &d->slabs; *at; at = &(*at)->next) {
        struct slab *s = *at;
        if (p < s->data || p >= s->data + s->bytes)
            continue;
        if (--s->live == 0) {
            *at = s->next;
            pages_free(s->data, s->bytes);
            free(s);
        }
        return;
    }
}

void cpu_slabs_free(struct cpu_device *d)
{
    while (d->slabs) {
        struct slab *next = d->slabs->next;
        pages_free(d->slabs->data, d->slabs->bytes);
        free(d->slabs);
        d->slabs = next;
    }
}

oato_status cpu_alloc(struct oato_device *base, uint64_t bytes, void **out, struct oato_error *err)
{
    return cpu_pages_take(cpu_of(base), bytes, "an arena", out, err);
}

void cpu_free(struct oato_device *base, void *p, uint64_t bytes)
{
    cpu_pages_return(cpu_of(base), p, bytes);
}

/* The host's memory is this device's memory: transfers are done when they return. */
static oato_status transfer(struct cpu_device *d, void *to, const void *from, uint64_t bytes,
                            uint64_t *value)
{
    if (bytes)
        memcpy(to, from, bytes);
    if (value)
        *value = atomic_load(&d->queue.timeline.value);
    return OATO_OK;
}

oato_status cpu_upload(struct oato_device *base, void *to, uint64_t offset, const void *from,
                       uint64_t bytes, uint64_t *value, struct oato_error *err)
{
    (void)err;
    return transfer(cpu_of(base), (uint8_t *)to + offset, from, bytes, value);
}

oato_status cpu_download(struct oato_device *base, void *to, const void *from, uint64_t offset,
                         uint64_t bytes, uint64_t *value, struct oato_error *err)
{
    (void)err;
    return transfer(cpu_of(base), to, (const uint8_t *)from + offset, bytes, value);
}

/* -------------------------------------------------------------------------------- weights - */

struct cpu_weight {
    struct oato_weight weight; /* first: this is the handle */
    bool staged;               /* in memory that is not the device's to free */
};

/* A weight that all threads prepare, by claims of rows. */
struct prepare_job {
    const struct cpu_kernels *kernels;
    const struct weight_source *source;
    struct oato_weight *weight;
    int64_t rows, claim, release; /* rows in all, of a claim, between releases */
    _Atomic int64_t next;
};

static void prepare_share(void *arg, int thread)
{
    struct prepare_job *j = arg;
    (void)thread;
    for (int64_t at; (at = atomic_fetch_add(&j->next, j->claim)) < j->rows;) {
        const int64_t end = min_i64(j->rows, at + j->claim);
        for (int64_t stop; at < end; at = stop) {
            stop = min_i64(end, at + j->release);
            cpu_prepare_rows(j->kernels, j->source, j->weight, at, stop);
            weight_source_release(j->source, at, stop);
        }
    }
}

/* Units of MATRIX_ROWS rows that make about so many bytes of the file, as rows. */
static int64_t rows_of_bytes(int64_t bytes, size_t row_bytes)
{
    return max_i64(1, bytes / ((int64_t)row_bytes * MATRIX_ROWS + 1)) * MATRIX_ROWS;
}

static void prepare_all(struct cpu_device *d, const struct weight_source *s, struct oato_weight *w)
{
    const size_t row_bytes = weight_source_stride(s);
    const int threads = cpu_pool_threads(d->pool);
    struct prepare_job j = {.kernels = d->kernels,
                            .source = s,
                            .weight = w,
                            .rows = w->rows,
                            .release = rows_of_bytes(RELEASE_BYTES, row_bytes)};
    const int64_t share = (w->rows / threads + MATRIX_ROWS) / MATRIX_ROWS * MATRIX_ROWS;
    j.claim = min_i64(share, rows_of_bytes(CLAIM_BYTES, row_bytes));
    atomic_init(&j.next, 0);
    if (w->bytes < (64 << 10)) { /* not worth waking anybody */
        prepare_share(&j, 0);
        return;
    }
    cpu_pool_run(d->pool, prepare_share, &j);
    weight_source_release(s, 0,
                          w->rows); /* threads touched the neighbours of what others had released */
}

/* Without data; NULL: err says why. */
static struct cpu_weight *weight_new(const struct cpu_device *d, const struct weight_source *s,
                                     struct oato_error *err)
{
    if (!weight_source_good(s)) {
        weight_source_fail(s, d->id, OATO_EDEVICE, err);
        return NULL;
    }
    struct cpu_weight *w = calloc(1, sizeof *w);
    if (w)
        w->weight = (struct oato_weight){
            .dtype = s->dtype, .use = s->use, .rows = s->row_end - s->row_begin, .k = s->k};
    else
        oato_fail_memory(err, sizeof *w, "a weight");
    return w;
}

oato_status cpu_stage(struct oato_device *base, const struct weight_source *source, void *staging,
                      uint64_t offset, struct oato_weight **out, struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    struct cpu_weight *owner = weight_new(d, source, err);
    if (!owner)
        return err->status;
    owner->staged = true;
    owner->weight.data = (uint8_t *)staging + offset;
    owner->weight.bytes = cpu_source_bytes(d->kernels, source);
    if (file_stream_add(&d->stream, d->id, &owner->weight, owner->weight.bytes, source, staging,
                        offset, err)) {
        cpu_weight_free(base, &owner->weight);
        return err->status;
    }
    *out = &owner->weight;
    return OATO_OK;
}

oato_status cpu_prepare(struct oato_device *base, const struct weight_source *s,
                        struct oato_weight **out, struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    struct cpu_weight *owner = weight_new(d, s, err);
    if (!owner)
        return err->status;
    struct oato_weight *w = &owner->weight;
    if (s->use == WEIGHT_LOOKUP) {
        w->data = weight_source_row(s, 0); /* pages that were released come back with their rows */
    } else {
        w->bytes = cpu_source_bytes(d->kernels, s);
        oato_status status = memory_take(d, w->bytes, "a weight", err);
        if (!status && s->prepared) {
            w->data = s->prepared;
        } else if (!status) {
            w->data = slab_alloc(d, w->bytes);
            if (!w->data) {
                d->used_bytes -= w->bytes;
                status = oato_fail_memory(err, w->bytes, "a weight");
            }
        }
        if (status) {
            free(owner);
            return status;
        }
        if (!s->prepared)
            prepare_all(d, s, w);
    }
    *out = w;
    return OATO_OK;
}

void cpu_weight_free(struct oato_device *base, struct oato_weight *w)
{
    struct cpu_device *d = cpu_of(base);
    if (!w)
        return;
    if (w->use != WEIGHT_LOOKUP && !((struct cpu_weight *)w)->staged) {
        slab_free(d, w->data); /* no slab holds one that came prepared */
        d->used_bytes -= w->bytes;
    }
    free(w);
}

void cpu_kv_free(struct oato_device *base, struct kv_cache *kv)
{
    struct cpu_device *d = cpu_of(base);
    if (!kv)
        return;
    file_stream_free(d->kv_file);
    d->kv_file = NULL;
    cpu_pages_return(d, kv->data, kv->bytes);
    free(kv);
}

oato_status cpu_kv_create(struct oato_device *base, const struct kv_layer_shape *layers, int n,
                          oato_dtype dtype, int32_t pages, struct kv_cache **out,
                          struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    struct kv_cache *kv;
    void *data;
    if (kv_cache_new(d->id, layers, n, dtype, pages, &kv, err))
        return err->status;
    if (cpu_pages_take(d, kv->bytes, "the KV cache", &data, err)) {
        free(kv);
        return err->status;
    }
    cpu_pool_spread(d->pool, data, kv->bytes);
    kv->data = data;
    if (file_stream_kv_open(kv, d->id, d->scratch, &d->kv_file, err)) {
        cpu_kv_free(base, kv);
        return err->status;
    }
    *out = kv;
    return OATO_OK;
}
