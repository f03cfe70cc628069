/*
 * far_memory.c - memory of a device that is not the host's. The budget counts the bytes that were
 * asked for, so that it can be computed beforehand.
 *
 * Of a device that computes on the host every allocation is two mappings of the same size: a range
 * without any access rights, whose address callers get, and ordinary memory, which only the device
 * finds. Code that takes a device address for a host address faults at once, as it would with
 * hardware, instead of working by accident.
 */
#include "kernels/core/far_memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

static oato_status check_budget(struct far_memory *m, uint64_t bytes, const char *what,
                                struct oato_error *err)
{
    if (m->fail_after > 0 && --m->fail_after == 0)
        return oato_fail(err, OATO_EFIT, "%s: injected failure: no %.1f MiB for %s", m->queue->id,
                         mib(bytes), what);
    if (bytes <= m->capacity - m->used)
        return OATO_OK;
    uint64_t missing = bytes - (m->capacity - m->used);
    uint64_t missing_mib = (missing >> 20) + ((missing & 0xfffff) != 0);
    return oato_fail(err, OATO_EFIT,
                     "%s: %.1f MiB for %s do not fit: %.1f of %.1f MiB are in use, %" PRIu64
                     " MiB are missing; place less on it or %s",
                     m->queue->id, mib(bytes), what, mib(m->used), mib(m->capacity), missing_mib,
                     m->more);
}

/* ------------------------------------------------------------------- memory of the host's -- */

static size_t reserved_bytes(const struct far_block *b)
{
    return size_align(b->bytes ? b->bytes : 1, PAGE);
}

static oato_status map_block(struct far_block *b, const char *what, struct oato_error *err)
{
    const size_t reserved = reserved_bytes(b);
    b->address =
        mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->address == MAP_FAILED)
        return oato_fail_memory(err, reserved, what);
    b->real = pages_alloc(reserved);
    if (b->real)
        return OATO_OK;
    munmap(b->address, reserved);
    return oato_fail_memory(err, reserved, what);
}

static void unmap_block(const struct far_block *b)
{
    munmap(b->address, reserved_bytes(b));
    pages_free(b->real, reserved_bytes(b));
}

/* ------------------------------------------------------------------------------- blocks --- */

static oato_status take_block(struct far_memory *m, struct far_block *b, const char *what,
                              struct oato_error *err)
{
    void *p = NULL;
    if (!m->ops)
        return map_block(b, what, err);
    if (m->ops->take(m, b->bytes ? b->bytes : 1, what, &p, err))
        return err->status;
    b->address = b->real = p;
    return OATO_OK;
}

oato_status far_memory_alloc(struct far_memory *m, uint64_t bytes, const char *what,
                             struct far_block **out, struct oato_error *err)
{
    if (check_budget(m, bytes, what, err))
        return err->status;
    struct far_block *b = calloc(1, sizeof *b);
    if (!b)
        return oato_fail_memory(err, sizeof *b, what);
    b->bytes = bytes;
    if (take_block(m, b, what, err)) {
        free(b);
        return err->status;
    }
    b->next = m->blocks;
    m->blocks = b;
    m->used += bytes;
    *out = b;
    return OATO_OK;
}

static void free_block(struct far_memory *m, struct far_block *b)
{
    struct far_block **at = &m->blocks;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    m->used -= b->bytes;
    if (m->ops)
        m->ops->drop(m, b->address);
    else
        unmap_block(b);
    free(b->handle);
    free(b);
}

oato_status far_memory_give(struct far_memory *m, uint64_t bytes, const char *what, void **out,
                            struct oato_error *err)
{
    struct far_block *b = NULL;
    const oato_status status = far_memory_alloc(m, bytes, what, &b, err);
    if (status || !b)
        return status;
    if (m->ops && m->ops->clear(m, b->address, bytes ? bytes : 1, err)) {
        free_block(m, b);
        return err->status;
    }
    *out = b->address;
    return OATO_OK;
}

void far_memory_return(struct far_memory *m, void *address)
{
    struct far_block *b = address ? m->blocks : NULL;
    while (b && b->address != address)
        b = b->next;
    if (!b)
        return;
    job_queue_drain(m->queue, NULL);
    free_block(m, b);
}

oato_status far_memory_grow(struct far_memory *m, struct far_block **block, uint64_t bytes,
                            const char *what, struct oato_error *err)
{
    struct far_block *old = *block, *grown = NULL;
    const uint64_t old_bytes = old ? old->bytes : 0;
    if (bytes <= old_bytes)
        return OATO_OK;
    if (job_queue_drain(m->queue, err))
        return err->status;
    /* the old one goes as soon as the new one is there: it does not count twice */
    m->used -= old_bytes;
    const oato_status status = far_memory_alloc(m, bytes, what, &grown, err);
    m->used += old_bytes;
    if (status)
        return status;
    if (old)
        free_block(m, old);
    *block = grown;
    return OATO_OK;
}

void far_memory_close(struct far_memory *m)
{
    while (m->blocks)
        free_block(m, m->blocks);
}

/* ------------------------------------------------------------------------------- bounds --- */

struct far_block *far_memory_find(const struct far_memory *m, const void *address, uint64_t offset,
                                  uint64_t bytes, uint8_t **real)
{
    uintptr_t a = (uintptr_t)address;
    for (struct far_block *b = m->blocks; b; b = b->next) {
        uintptr_t begin = (uintptr_t)b->address;
        if (a < begin || a - begin > b->bytes || (a == begin + b->bytes && b->bytes))
            continue;
        uint64_t room = b->bytes - (a - begin);
        if (offset > room || bytes > room - offset)
            return NULL;
        *real = b->real + (a - begin) + offset;
        return b;
    }
    return NULL;
}

void *far_memory_reach(const struct far_memory *m, const void *address, uint64_t offset,
                       uint64_t bytes)
{
    uint8_t *real;
    return far_memory_find(m, address, offset, bytes, &real) ? real : NULL;
}

oato_status far_memory_copy(struct far_memory *m, struct job job, const void *far, uint64_t offset,
                            uint64_t *value, struct oato_error *err)
{
    void *real = far_memory_reach(m, far, offset, job.bytes);
    if (!real)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: %" PRIu64 " bytes at offset %" PRIu64 " are outside its memory",
                         m->queue->id, job.bytes, offset);
    if (job.download)
        job.from = real;
    else
        job.to = real;
    return job_queue_copy(m->queue, &job, value, err);
}

oato_status far_memory_check(const struct far_memory *m, const struct program *p,
                             const struct value_types *types, int self, uint8_t **arena,
                             struct oato_error *err)
{
    uint64_t bytes = 0;
    const struct far_block *b = far_memory_find(m, p->arena, 0, 0, arena);
    if (!b)
        *arena = NULL;
    if (!b && p->arena)
        return oato_fail(err, OATO_EUSAGE, "%s: the program's arena is not in this device's memory",
                         m->queue->id);
    if (b)
        bytes = b->bytes - (uint64_t)(*arena - b->real);
    return program_check(p, types, self, bytes, err) ? oato_fail_at(err, "%s", m->queue->id)
                                                     : OATO_OK;
}
