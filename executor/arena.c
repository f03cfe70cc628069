/*
 * arena.c - places activation buffers in the arenas of their devices. Two buffers may share memory
 * only when every use of the older one happens before the first write of the newer one. "Before"
 * is what queues can rely on: a queue runs its records in order, and a record that waits for
 * another queue's event knows everything that queue had done by then. First fit by address among
 * the buffers that conflict; programs have some hundred buffers, so the quadratic walk is small.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>

#define BUFFER_ALIGN 64

struct interval {
    uint64_t begin, end;
};

static bool finished_before(const struct buffer *old, const struct buffer *new,
                            int32_t (*known)(const void *, int32_t, int32_t, int32_t),
                            const void *user)
{
    for (int32_t q = 0; q < DEVICES_MAX; q++)
        if (old->last_use[q] >= 0 &&
            known(user, new->def_queue, new->def_record, q) < old->last_use[q])
            return false;
    return true;
}

static int by_begin(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

bool buffers_place(struct buffer *buffers, int32_t n,
                   int32_t (*known)(const void *user, int32_t queue, int32_t record, int32_t other),
                   const void *user, uint64_t arena_bytes[DEVICES_MAX])
{
    struct interval *taken = malloc(((size_t)n + 1) * sizeof *taken);
    if (!taken)
        return false;
    for (int32_t i = 0; i < n; i++) {
        struct buffer *b = &buffers[i];
        size_t n_taken = 0;
        for (int32_t j = 0; j < i; j++) {
            const struct buffer *old = &buffers[j];
            if (old->device == b->device && !finished_before(old, b, known, user))
                taken[n_taken++] = (struct interval){old->offset, old->offset + old->bytes};
        }
        qsort(taken, n_taken, sizeof *taken, by_begin);
        uint64_t offset = 0, bytes = size_align(b->bytes, BUFFER_ALIGN);
        for (size_t j = 0; j < n_taken && taken[j].begin < offset + bytes; j++)
            if (taken[j].end > offset)
                offset = size_align(taken[j].end, BUFFER_ALIGN);
        b->offset = offset;
        if (offset + bytes > arena_bytes[b->device])
            arena_bytes[b->device] = offset + bytes;
    }
    free(taken);
    return true;
}
