/*
 * asc_memory.c - memory of an NPU. CANN gives pages of 2 MiB, so what is large has an allocation of
 * its own and what is small, such as a norm's weights, shares one: the smallest gap that has room
 * is taken (best fit). What counts against the budget is asked for through far_memory.
 *
 * Temporaries and workspaces are in two areas that only grow. Where the chip has virtual addresses,
 * an area keeps its address when it does, and captured graphs stay valid.
 */
#include "kernels/ascend/asc_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_BYTES ((uint64_t)8 << 20)
#define LARGE_BYTES ((uint64_t)1 << 20)
#define AREA_STEP   ((uint64_t)2 << 20)

static double mib(uint64_t bytes)
{
    return (double)bytes / 0x1p20;
}

/* -------------------------------------------------------------------------- allocations -- */

static oato_status no_room(const struct asc_device *d, uint64_t bytes, const char *what,
                           struct oato_error *err)
{
    size_t free_bytes = 0, total = 0;
    d->api->rtGetMemInfo(d->chip->hbm ? ASC_HBM : ASC_DDR, &free_bytes, &total);
    return oato_fail(err, OATO_EFIT,
                     "%s: %.1f MiB for %s do not fit: %.1f of the NPU's %.1f MiB are free; place "
                     "less on it, or stop other programs that use it",
                     d->far.id, mib(bytes), what, mib(free_bytes), mib(total));
}

static oato_status memory_get(struct asc_device *d, uint64_t bytes, const char *what, void **out,
                              struct oato_error *err)
{
    if (d->hung) {
        *err = d->why_hung;
        return err->status;
    }
    asc_enter(d);
    const int error = d->api->rtMalloc(out, bytes, ASC_HUGE_FIRST);
    if (error == ASC_E_MEMORY)
        return no_room(d, bytes, what, err);
    return error ? asc_fail(d->api, error, d->far.id, "allocating memory", err) : OATO_OK;
}

/* --------------------------------------------------------------------------------- pool -- */

/* A stretch of a chunk, in use or not; neighbours in `next`. */
struct asc_block {
    struct asc_block *next;
    uint64_t offset, bytes;
    bool used;
};

struct asc_chunk {
    struct asc_chunk *next;
    uint8_t *memory;
    struct asc_block *blocks;
};

/* The smallest free block that has room, of all chunks. */
static struct asc_block *best_fit(const struct asc_pools *p, uint64_t bytes,
                                  struct asc_chunk **where)
{
    struct asc_block *best = NULL;
    for (struct asc_chunk *c = p->chunks; c; c = c->next)
        for (struct asc_block *b = c->blocks; b; b = b->next)
            if (!b->used && b->bytes >= bytes && (!best || b->bytes < best->bytes)) {
                best = b;
                *where = c;
            }
    return best;
}

static oato_status chunk_add(struct asc_device *d, const char *what, struct oato_error *err)
{
    struct asc_chunk *c = calloc(1, sizeof *c);
    void *memory = NULL;
    if (c)
        c->blocks = calloc(1, sizeof *c->blocks);
    if (!c || !c->blocks) {
        free(c);
        return oato_fail_memory(err, sizeof *c, what);
    }
    if (memory_get(d, CHUNK_BYTES, what, &memory, err)) {
        free(c->blocks);
        free(c);
        return err->status;
    }
    c->memory = memory;
    c->blocks->bytes = CHUNK_BYTES;
    c->next = d->pools.chunks;
    d->pools.chunks = c;
    return OATO_OK;
}

static oato_status small_take(struct asc_device *d, uint64_t bytes, const char *what, void **out,
                              struct oato_error *err)
{
    struct asc_chunk *c = NULL;
    struct asc_block *b = best_fit(&d->pools, bytes, &c), *rest;
    if (!b) {
        if (chunk_add(d, what, err))
            return err->status;
        b = best_fit(&d->pools, bytes, &c);
    }
    if (b->bytes > bytes) {
        if (!(rest = calloc(1, sizeof *rest)))
            return oato_fail_memory(err, sizeof *rest, what);
        *rest = (struct asc_block){b->next, b->offset + bytes, b->bytes - bytes, false};
        b->next = rest;
        b->bytes = bytes;
    }
    b->used = true;
    *out = c->memory + b->offset;
    return OATO_OK;
}

/* Makes one of two free neighbours. */
static void join_next(struct asc_block *b)
{
    struct asc_block *next = b->next;
    if (b->used || !next || next->used)
        return;
    b->bytes += next->bytes;
    b->next = next->next;
    free(next);
}

/* False: it is in no chunk. */
static bool small_drop(struct asc_device *d, const uint8_t *p)
{
    struct asc_chunk **at = &d->pools.chunks, *c;
    while (*at && (p < (*at)->memory || p >= (*at)->memory + CHUNK_BYTES))
        at = &(*at)->next;
    if (!(c = *at))
        return false;
    struct asc_block *b = c->blocks, *before = NULL;
    for (; b->offset != (uint64_t)(p - c->memory); b = b->next)
        before = b;
    b->used = false;
    join_next(b);
    if (before)
        join_next(before);
    if (c->blocks->used || c->blocks->next)
        return true;
    *at = c->next; /* it is empty */
    if (!d->hung)
        d->api->rtFree(c->memory);
    free(c->blocks);
    free(c);
    return true;
}

oato_status asc_memory_take(struct asc_device *d, uint64_t bytes, const char *what, void **out,
                            struct oato_error *err)
{
    const uint64_t room = size_align(bytes ? bytes : 1, ASC_ALIGN);
    pthread_mutex_lock(&d->pools.lock);
    oato_status status = room < LARGE_BYTES ? small_take(d, room, what, out, err) : OATO_EFIT;
    if (status) /* also where there is no room for a chunk */
        status = memory_get(d, room, what, out, err);
    pthread_mutex_unlock(&d->pools.lock);
    return status;
}

void asc_memory_drop(struct asc_device *d, void *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&d->pools.lock);
    asc_enter(d);
    /* what hangs may still write there: that goes with the process */
    if (!small_drop(d, p) && !d->hung)
        d->api->rtFree(p);
    pthread_mutex_unlock(&d->pools.lock);
}

static struct asc_device *device_of(const struct far_memory *m)
{
    return asc_of(&far_of_memory(m)->base);
}

static oato_status take(struct far_memory *m, uint64_t bytes, const char *what, void **out,
                        struct oato_error *err)
{
    return asc_memory_take(device_of(m), bytes, what, out, err);
}

static oato_status clear(struct far_memory *m, void *p, uint64_t bytes, struct oato_error *err)
{
    const struct asc_device *d = device_of(m);
    asc_enter(d);
    const int error = d->api->rtMemset(p, bytes, 0, bytes);
    return error ? asc_fail(d->api, error, d->far.id, "clearing memory", err) : OATO_OK;
}

static void drop(struct far_memory *m, void *p)
{
    asc_memory_drop(device_of(m), p);
}

const struct far_ops asc_memory_ops = {take, clear, drop};

/* -------------------------------------------------------------------------------- areas -- */

/* aclrtPhysicalMemProp */
struct physical {
    int32_t handle, allocation, memory;
    struct {
        uint32_t id;
        int32_t type;
    } location;
    uint64_t reserved;
};
enum { DEVICE_LOCATION = 1, DDR_HUGE = 2, HBM_HUGE = 4, RECOMMENDED = 1, HUGE_PAGES = 1 };

static struct physical physical_of(const struct asc_device *d)
{
    return (struct physical){.memory = d->chip->hbm ? HBM_HUGE : DDR_HUGE,
                             .location = {(uint32_t)d->index, DEVICE_LOCATION}};
}

/* Addresses for an area that may take all of the memory; false: it must move when it grows. */
static bool area_reserve(struct asc_device *d, struct asc_area *a)
{
    const struct asc_api *api = d->api;
    const struct physical physical = physical_of(d);
    void *p = NULL;
    size_t step = 0;
    if (a->reserved)
        return true;
    if (a->moves || !d->chip->maps || !api->rtReserveMemAddress || !api->rtReleaseMemAddress ||
        !api->rtMapMem || !api->rtUnmapMem || !api->rtMallocPhysical || !api->rtFreePhysical ||
        !api->rtMemGetAllocationGranularity ||
        api->rtMemGetAllocationGranularity(&physical, RECOMMENDED, &step) || !step ||
        api->rtReserveMemAddress(&p, size_align(d->memory_bytes, step), 0, NULL, HUGE_PAGES)) {
        a->moves = true;
        return false;
    }
    a->reserved = p;
    a->step = step;
    return true;
}

static oato_status area_map(struct asc_device *d, struct asc_area *a, uint64_t more,
                            const char *what, struct oato_error *err)
{
    const struct physical physical = physical_of(d);
    void *handle = NULL;
    if (a->n_pieces == ASC_PIECES)
        return oato_fail(err, OATO_EFIT, "%s: %s has grown too often", d->far.id, what);
    int error = d->api->rtMallocPhysical(&handle, more, &physical, 0);
    if (error == ASC_E_MEMORY)
        return no_room(d, more, what, err);
    if (!error && (error = d->api->rtMapMem(a->reserved + a->bytes, more, 0, handle, 0)))
        d->api->rtFreePhysical(handle);
    if (error)
        return asc_fail(d->api, error, d->far.id, "mapping memory", err);
    a->base = a->reserved;
    a->piece[a->n_pieces].handle = handle;
    a->piece[a->n_pieces++].at = a->reserved + a->bytes;
    a->bytes += more;
    return OATO_OK;
}

static oato_status count(struct asc_device *d, struct asc_area *a, uint64_t bytes, const char *what,
                         struct oato_error *err)
{
    struct far_memory *m = &d->far.memory;
    if (bytes > m->capacity - m->used)
        return oato_fail(
            err, OATO_EFIT,
            "%s: %.1f MiB for %s do not fit: %.1f of %.1f MiB are in use; place less on "
            "it or %s",
            d->far.id, mib(bytes), what, mib(m->used), mib(m->capacity), m->more);
    m->used += bytes;
    a->counted += bytes;
    return OATO_OK;
}

static oato_status area_move(struct asc_device *d, struct asc_area *a, uint64_t bytes,
                             const char *what, struct oato_error *err)
{
    void *larger = NULL;
    if (asc_memory_take(d, bytes, what, &larger, err))
        return err->status;
    asc_memory_drop(d, a->base);
    a->base = larger;
    a->bytes = bytes;
    return OATO_OK;
}

oato_status asc_area_grow(struct asc_device *d, struct asc_area *a, uint64_t bytes, bool counts,
                          const char *what, bool *moved, struct oato_error *err)
{
    const uint64_t before = a->bytes;
    *moved = false;
    if (bytes <= before)
        return OATO_OK;
    if (d->hung) {
        *err = d->why_hung;
        return err->status;
    }
    asc_enter(d);
    /* half as much again, so that it seldom grows */
    bytes = size_align(bytes + (before && !counts ? bytes / 2 : 0), AREA_STEP);
    const bool stays = area_reserve(d, a);
    const uint64_t more = stays ? size_align(bytes - before, a->step) : bytes - before;
    if (counts && count(d, a, more, what, err))
        return err->status;
    const oato_status status =
        stays ? area_map(d, a, more, what, err) : area_move(d, a, bytes, what, err);
    if (status && counts) {
        a->counted -= more;
        d->far.memory.used -= more;
    }
    *moved = !status && !stays && before;
    return status;
}

void asc_area_free(struct asc_device *d, struct asc_area *a)
{
    d->far.memory.used -= a->counted;
    asc_enter(d);
    if (!a->reserved)
        asc_memory_drop(d, a->base);
    for (int i = a->n_pieces; i-- > 0 && !d->hung;) {
        d->api->rtUnmapMem(a->piece[i].at);
        d->api->rtFreePhysical(a->piece[i].handle);
    }
    if (a->reserved && !d->hung)
        d->api->rtReleaseMemAddress(a->reserved);
    *a = (struct asc_area){0};
}

/* -------------------------------------------------------------------------- host memory --- */

/* Whether so much can be page-locked and enough is left for all else. */
static bool host_has_room(uint64_t bytes)
{
    struct host_share host;
    host_share_read("", &host);
    return host.available_bytes >= bytes + host.memory_bytes / 4;
}

/* Page-locked memory, of all NPUs. */
static struct locked {
    struct locked *next;
    uint8_t *begin;
    uint64_t bytes;
} * locked;
static pthread_mutex_t locked_lock = PTHREAD_MUTEX_INITIALIZER;

bool asc_host_locked(const void *p, uint64_t bytes)
{
    const uint8_t *at = p;
    pthread_mutex_lock(&locked_lock);
    const struct locked *l = locked;
    while (l &&
           !(at >= l->begin && bytes <= l->bytes && (uint64_t)(at - l->begin) <= l->bytes - bytes))
        l = l->next;
    pthread_mutex_unlock(&locked_lock);
    return l != NULL;
}

void *asc_host_alloc(struct oato_device *base, uint64_t bytes, bool must)
{
    const struct asc_device *d = asc_of(base);
    void *p = NULL;
    struct locked *l;
    if (!bytes || d->hung || (!must && !host_has_room(bytes)) || !(l = calloc(1, sizeof *l)))
        return NULL;
    asc_enter(d);
    if (d->api->rtMallocHost(&p, bytes)) {
        free(l);
        return NULL;
    }
    pthread_mutex_lock(&locked_lock);
    *l = (struct locked){locked, p, bytes};
    locked = l;
    pthread_mutex_unlock(&locked_lock);
    return p;
}

void asc_host_free(struct oato_device *base, void *p)
{
    const struct asc_device *d = asc_of(base);
    if (!p)
        return;
    pthread_mutex_lock(&locked_lock);
    struct locked **at = &locked, *l;
    while ((*at)->begin != p)
        at = &(*at)->next;
    l = *at;
    *at = l->next;
    pthread_mutex_unlock(&locked_lock);
    free(l);
    asc_enter(d);
    if (!d->hung) /* else it may still be written to */
        d->api->rtFreeHost(p);
}
