/*
 * cuda_memory.c - memory of a GPU: allocations counted against the budget, copies behind what the
 * queue already has, the host's memory that copies use, and the KV cache.
 */
#include "kernels/cuda/cuda_device.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 4096 };

static double mib(uint64_t bytes)
{
    return (double)bytes / 0x1p20;
}

oato_status cuda_take(struct cuda_device *d, uint64_t bytes, const char *what, cu_address *out,
                      struct oato_error *err)
{
    const uint64_t limit = d->budget_bytes ? d->budget_bytes : d->memory_bytes;
    if (d->fail_alloc > 0 && --d->fail_alloc == 0)
        return oato_fail(err, OATO_EFIT, "%s: injected failure: no %.1f MiB for %s", d->id,
                         mib(bytes), what);
    if (bytes > limit || d->used_bytes > limit - bytes)
        return oato_fail(err, OATO_EFIT,
                         "%s: %.1f MiB for %s do not fit: %.1f of %.1f MiB are in use; place less "
                         "on it or raise its budget",
                         d->id, mib(bytes), what, mib(d->used_bytes), mib(limit));
    cuda_enter(d);
    const cu_result result = d->cu->memory_alloc(out, bytes ? bytes : 1);
    if (result == CU_ERROR_OUT_OF_MEMORY) {
        size_t free_bytes = 0, total = 0;
        d->cu->memory_info(&free_bytes, &total);
        return oato_fail(err, OATO_EFIT,
                         "%s: %.1f MiB for %s do not fit: %.1f of the GPU's %.1f MiB are free; "
                         "place less on it, or stop other programs that use it",
                         d->id, mib(bytes), what, mib(free_bytes), mib(total));
    }
    if (result)
        return cuda_fail(d->cu, result, d->id, "allocating memory", err);
    d->used_bytes += bytes;
    return OATO_OK;
}

void cuda_return(struct cuda_device *d, cu_address address, uint64_t bytes)
{
    if (!address)
        return;
    cuda_enter(d);
    d->cu->memory_free(address);
    d->used_bytes -= bytes;
}

/* Memory of arenas begins as zeros, as on other devices. */
oato_status cuda_alloc(struct oato_device *base, uint64_t bytes, void **out, struct oato_error *err)
{
    struct cuda_device *d = cuda_of(base);
    cu_address address = 0;
    if (cuda_take(d, bytes, "an arena", &address, err))
        return err->status;
    cu_result result = d->cu->fill(address, 0, bytes ? bytes : 1, d->queue.stream);
    if (!result)
        result = cuda_stream_finish(d, d->queue.stream);
    if (result) {
        cuda_return(d, address, bytes);
        return cuda_fail(d->cu, result, d->id, "clearing memory", err);
    }
    *out = (void *)(uintptr_t)address; /* nobody on the host follows it */
    return OATO_OK;
}

void cuda_free(struct oato_device *base, void *p, uint64_t bytes)
{
    struct cuda_device *d = cuda_of(base);
    if (!p)
        return;
    job_queue_drain(&d->queue.base, NULL);
    cuda_return(d, (cu_address)(uintptr_t)p, bytes);
}

oato_status cuda_upload(struct oato_device *base, void *to, uint64_t offset, const void *from,
                        uint64_t bytes, uint64_t *value, struct oato_error *err)
{
    struct job job = {.to = (uint8_t *)to + offset, .from = from, .bytes = bytes};
    return job_queue_copy(&cuda_of(base)->queue.base, &job, value, err);
}

oato_status cuda_download(struct oato_device *base, void *to, const void *from, uint64_t offset,
                          uint64_t bytes, uint64_t *value, struct oato_error *err)
{
    struct job job = {
        .to = to, .from = (const uint8_t *)from + offset, .bytes = bytes, .download = true};
    return job_queue_copy(&cuda_of(base)->queue.base, &job, value, err);
}

/* -------------------------------------------------------------------------- host memory --- */

/* Whether so much can be page-locked and enough is left for all else. */
static bool host_has_room(uint64_t bytes)
{
    struct host_share host;
    host_share_read("", &host);
    return host.available_bytes >= bytes + host.memory_bytes / 4;
}

void *cuda_host_alloc(struct oato_device *base, uint64_t bytes, bool must)
{
    const struct cuda_device *d = cuda_of(base);
    void *p = NULL;
    cuda_enter(d);
    return bytes && (must || host_has_room(bytes)) &&
                   !d->cu->host_alloc(&p, bytes, CU_HOST_PORTABLE)
               ? p
               : NULL;
}

/* The driver waits for copies that still use it. */
void cuda_host_free(struct oato_device *base, void *p)
{
    const struct cuda_device *d = cuda_of(base);
    cuda_enter(d);
    d->cu->host_free(p);
}

/* Host memory that programs copy from and to, page-locked so that copies run beside all else: of
 * all GPUs, since their programs share the host's arena. */
static struct pinned {
    struct pinned *next;
    uint8_t *begin;
    uint64_t bytes;
    int users;
} * pins;
static pthread_mutex_t pins_lock = PTHREAD_MUTEX_INITIALIZER;

/* Where the entry is that holds all of it, or the end of the list. */
static struct pinned **find_pin(const uint8_t *p, uint64_t bytes)
{
    struct pinned **at = &pins;
    while (*at && !(p >= (*at)->begin && p + bytes <= (*at)->begin + (*at)->bytes))
        at = &(*at)->next;
    return at;
}

/* A copy that is registered in part is refused by the driver: so only memory that begins with a
 * page, which its neighbours do not share. */
bool cuda_pin(const struct cuda_device *d, void *p, uint64_t bytes)
{
    if (!bytes || (uintptr_t)p % PAGE)
        return false;
    pthread_mutex_lock(&pins_lock);
    struct pinned *pin = *find_pin(p, bytes);
    if (!pin && (pin = calloc(1, sizeof *pin))) {
        *pin = (struct pinned){.next = pins, .begin = p, .bytes = size_align(bytes, PAGE)};
        cuda_enter(d);
        if (d->cu->host_register(p, pin->bytes, CU_HOST_PORTABLE)) {
            free(pin);
            pin = NULL;
        } else {
            pins = pin;
        }
    }
    if (pin)
        pin->users++;
    pthread_mutex_unlock(&pins_lock);
    return pin != NULL;
}

void cuda_unpin(const struct cuda_device *d, void *p, uint64_t bytes)
{
    pthread_mutex_lock(&pins_lock);
    struct pinned **at = find_pin(p, bytes), *pin = *at;
    if (pin && --pin->users == 0) {
        cuda_enter(d);
        d->cu->host_unregister(pin->begin);
        *at = pin->next;
        free(pin);
    }
    pthread_mutex_unlock(&pins_lock);
}

/* ----------------------------------------------------------------------------------- KV --- */

oato_status cuda_kv_create(struct oato_device *base, const struct kv_layer_shape *layers, int n,
                           oato_dtype dtype, int32_t pages, struct kv_cache **out,
                           struct oato_error *err)
{
    struct kv_cache *kv;
    void *data = NULL;
    if (kv_cache_new(cuda_of(base)->id, layers, n, dtype, pages, &kv, err))
        return err->status;
    if (cuda_alloc(base, kv->bytes, &data, err)) {
        free(kv);
        return err->status;
    }
    kv->data = data;
    *out = kv;
    return OATO_OK;
}

void cuda_kv_free(struct oato_device *base, struct kv_cache *kv)
{
    if (!kv)
        return;
    cuda_free(base, kv->data, kv->bytes);
    free(kv);
}
