/*
 * cuda_memory.c - memory of a GPU, and the host's memory that copies use.
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

static struct cuda_device *device_of(const struct far_memory *m)
{
    return cuda_of(&far_of_memory(m)->base);
}

static oato_status take(struct far_memory *m, uint64_t bytes, const char *what, void **out,
                        struct oato_error *err)
{
    struct cuda_device *d = device_of(m);
    cu_address address = 0;
    cuda_enter(d);
    const cu_result result = d->cu->memory_alloc(&address, bytes);
    *out = (void *)(uintptr_t)address; /* nobody on the host follows it */
    if (result == CU_ERROR_OUT_OF_MEMORY) {
        size_t free_bytes = 0, total = 0;
        d->cu->memory_info(&free_bytes, &total);
        return oato_fail(err, OATO_EFIT,
                         "%s: %.1f MiB for %s do not fit: %.1f of the GPU's %.1f MiB are free; "
                         "place less on it, or stop other programs that use it",
                         d->far.id, mib(bytes), what, mib(free_bytes), mib(total));
    }
    return result ? cuda_fail(d->cu, result, d->far.id, "allocating memory", err) : OATO_OK;
}

static void drop(struct far_memory *m, void *p)
{
    struct cuda_device *d = device_of(m);
    cuda_enter(d);
    d->cu->memory_free((cu_address)(uintptr_t)p);
}

static oato_status clear(struct far_memory *m, void *p, uint64_t bytes, struct oato_error *err)
{
    struct cuda_device *d = device_of(m);
    cu_result result = d->cu->fill((cu_address)(uintptr_t)p, 0, bytes, d->queue.stream);
    if (!result)
        result = cuda_stream_finish(d, d->queue.stream);
    return result ? cuda_fail(d->cu, result, d->far.id, "clearing memory", err) : OATO_OK;
}

const struct far_ops cuda_memory = {take, clear, drop};

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
