/*
 * far_memory.c - memory of a device that computes on the host. Every allocation is two mappings of
 * the same size: a range without any access rights, whose address callers get, and ordinary memory,
 * which only the device finds. Code that takes a device address for a host address faults at once,
 * as it would with hardware, instead of working by accident.
 *
 * The budget counts the bytes that were asked for, so that it can be computed beforehand.
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
        return oato_fail(err, OATO_EFIT, "%s: injected failure: no %.1f MiB for %s", m->id,
                         mib(bytes), what);
    if (bytes <= m->capacity - m->used)
        return OATO_OK;
    uint64_t missing = bytes - (m->capacity - m->used);
    uint64_t missing_mib = (missing >> 20) + ((missing & 0xfffff) != 0);
    return oato_fail(err, OATO_EFIT,
                     "%s: %.1f MiB for %s do not fit: %.1f of %.1f MiB are in use, %" PRIu64
                     " MiB are missing; place less on it or %s",
                     m->id, mib(bytes), what, mib(m->used), mib(m->capacity), missing_mib, m->more);
}

oato_status far_memory_alloc(struct far_memory *m, uint64_t bytes, const char *what,
                             struct far_block **out, struct oato_error *err)
{
    if (check_budget(m, bytes, what, err))
        return err->status;
    struct far_block *b = calloc(1, sizeof *b);
    if (!b)
        return oato_fail_memory(err, sizeof *b, what);
    size_t reserved = size_align(bytes ? bytes : 1, PAGE);
    b->bytes = bytes;
    b->address =
        mmap(NULL, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->address == MAP_FAILED)
        goto no_address;
    b->real = pages_alloc(reserved);
    if (!b->real)
        goto no_memory;
    b->next = m->blocks;
    m->blocks = b;
    m->used += bytes;
    *out = b;
    return OATO_OK;

no_memory:
    munmap(b->address, reserved);
no_address:
    free(b);
    return oato_fail_memory(err, reserved, what);
}

void far_memory_free(struct far_memory *m, struct far_block *b)
{
    if (!b)
        return;
    size_t reserved = size_align(b->bytes ? b->bytes : 1, PAGE);
    struct far_block **at = &m->blocks;
    while (*at != b)
        at = &(*at)->next;
    *at = b->next;
    m->used -= b->bytes;
    munmap(b->address, reserved);
    pages_free(b->real, reserved);
    free(b->handle);
    free(b);
}

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
