/*
 * arena.c - places activation buffers in the arenas of their devices. Two buffers may share memory
 * only when every use of the older one happens before the first write of the newer one. "Before"
 * follows from the queues: a queue runs its records in order, and a record that waits for another
 * queue's event starts after everything that queue had done by then. The largest buffers are placed
 * first, each at the lowest address that is free of those it conflicts with, which wastes little
 * (Pisarchyk and Lee 2020, "greedy by size"); programs have a few hundred buffers, so the quadratic
 * walk is cheap.
 */
#include "lowering/lowering_internal.h"

#include <stdlib.h>

/* Whether all uses of a buffer are complete before the record starts that defines the other. */
static bool finished_before(const struct lowering *l, const struct buffer *old,
                            const struct buffer *new)
{
    const int32_t *known = l->queue[new->def_queue].records[new->def_record].known;
    for (int32_t q = 0; q < l->out->n_devices; q++)
        if (old->last_use[q] >= 0 &&
            (q == new->def_queue ? new->def_record - 1 : known[q]) < old->last_use[q])
            return false;
    return true;
}

static int by_offset(const void *va, const void *vb)
{
    const struct buffer *const *a = va, *const *b = vb;
    return (*a)->offset < (*b)->offset ? -1 : (*a)->offset > (*b)->offset;
}

/* The largest first, of equals the one that was issued first. */
static int by_size(const void *va, const void *vb)
{
    const struct buffer *const *a = va, *const *b = vb;
    if ((*a)->bytes != (*b)->bytes)
        return (*a)->bytes > (*b)->bytes ? -1 : 1;
    return *a < *b ? -1 : 1;
}

void buffers_place(struct lowering *l)
{
    const size_t n = (size_t)l->n_buffers;
    struct buffer **order = calloc(2 * n + 1, sizeof(struct buffer *));
    if (!order) {
        oato_fail_memory(l->err, 2 * n * sizeof(struct buffer *), "placing buffers");
        return;
    }
    struct buffer **taken = order + n; /* on the same device at the same time */
    for (size_t i = 0; i < n; i++)
        order[i] = &l->buffers[i];
    qsort(order, n, sizeof(struct buffer *), by_size);
    for (size_t i = 0; i < n; i++) {
        struct buffer *b = order[i];
        uint64_t *arena_bytes = &l->out->device[b->device].arena_bytes;
        size_t n_taken = 0;
        for (size_t j = 0; j < i; j++) {
            struct buffer *other = order[j];
            const struct buffer *first = other < b ? other : b;
            if (other->device == b->device && !finished_before(l, first, first == b ? other : b))
                taken[n_taken++] = other;
        }
        qsort(taken, n_taken, sizeof(struct buffer *), by_offset);
        b->offset = 0;
        for (size_t j = 0; j < n_taken && taken[j]->offset < b->offset + b->bytes; j++)
            if (taken[j]->offset + taken[j]->bytes > b->offset)
                b->offset = taken[j]->offset + taken[j]->bytes;
        if (b->offset + b->bytes > *arena_bytes)
            *arena_bytes = b->offset + b->bytes;
    }
    free(order);
}
