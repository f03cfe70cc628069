/*
 * cpu_memory.c - memory of the cpu device: pages counted against the budget, weights in large
 * common allocations, and the KV cache.
 */
#include "kernels/cpu/cpu_device.h"

#include <stdlib.h>
#include <string.h>

/* Of address space: the end that no weight fills is never touched and costs no memory. */
#define SLAB_BYTES ((uint64_t)256 << 20)
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

/* What came prepared stays where it is. */
oato_status cpu_weight_place(struct oato_device *base, uint64_t bytes, const void *there,
                             void **out, struct oato_error *err)
{
    struct cpu_device *d = cpu_of(base);
    if (memory_take(d, bytes, "a weight", err))
        return err->status;
    *out = there ? (void *)(uintptr_t)there : slab_alloc(d, bytes);
    if (*out)
        return OATO_OK;
    d->used_bytes -= bytes;
    return oato_fail_memory(err, bytes, "a weight");
}

void cpu_weight_unplace(struct oato_device *base, void *p, uint64_t bytes)
{
    slab_free(cpu_of(base), p); /* no slab holds one that came prepared */
    cpu_of(base)->used_bytes -= bytes;
}

struct shares {
    void (*share)(void *arg, int threads);
    void *arg;
    int threads;
};

static void run_share(void *arg, int thread)
{
    const struct shares *s = arg;
    (void)thread;
    s->share(s->arg, s->threads);
}

void cpu_together(struct oato_device *base, void (*share)(void *arg, int threads), void *arg)
{
    struct cpu_device *d = cpu_of(base);
    struct shares s = {share, arg, cpu_pool_threads(d->pool)};
    cpu_pool_run(d->pool, run_share, &s);
}

void cpu_kv_free(struct oato_device *base, struct kv_cache *kv)
{
    struct cpu_device *d = cpu_of(base);
    if (!kv)
        return;
    kv_file_close(d->kv_file);
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
    if (kv_file_open(kv, d->id, d->scratch, &d->kv_file, err)) {
        cpu_kv_free(base, kv);
        return err->status;
    }
    *out = kv;
    return OATO_OK;
}
