/*
 * arena.c - places activation buffers in the arenas of their devices. Two buffers may share memory
 * only when every use of the older one happens before the first write of the newer one. "Before"
 * follows from the queues: a queue runs its records in order, and a record that waits for another
 * queue's event starts after everything that queue had done by then. The largest buffers are placed
 * first, each at the lowest address that is free of those it conflicts with, which wastes little
 * (Pisarchyk and Lee 2020, "greedy by size"); programs have a few hundred buffers, so the quadratic
 * walk is cheap.
 */
#include "lowering/lower_internal.h"

#include <stdlib.h>

#define BUFFER_ALIGN 64

struct interval {
    uint64_t begin, end;
};

/* Whether all uses of a buffer are complete before the record starts that defines the other. */
static bool finished_before(const struct lowering *l, const struct buffer *old,
                            const struct buffer *new)
{
    const int32_t *known = l->queue[new->def_queue].records[new->def_record].known;
    for (int32_t q = 0; q < DEVICES_MAX; q++)
        if (old->last_use[q] >= 0 &&
            (q == new->def_queue ? new->def_record - 1 : known[q]) < old->last_use[q])
            return false;
    return true;
}

static int by_begin(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

struct ordered {
    uint64_t bytes;
    int32_t index;
};

static int by_size(const void *a, const void *b)
{
    const struct ordered *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->index < y->index ? -1 : 1;
}

void buffers_place(struct lowering *l)
{
    struct buffer *buffers = l->buffers;
    const int32_t n = l->n_buffers;
    struct interval *taken = malloc(((size_t)n + 1) * sizeof *taken);
    struct ordered *order = malloc(((size_t)n + 1) * sizeof *order);
    for (int32_t i = 0; order && i < n; i++)
        order[i] = (struct ordered){size_align(buffers[i].bytes, BUFFER_ALIGN), i};
    if (order)
        qsort(order, (size_t)n, sizeof *order, by_size);
    for (int32_t i = 0; taken && order && i < n; i++) {
        struct buffer *b = &buffers[order[i].index];
        size_t n_taken = 0;
        for (int32_t j = 0; j < i; j++) {
            const struct buffer *other = &buffers[order[j].index];
            const struct buffer *first = order[j].index < order[i].index ? other : b;
            if (other->device == b->device && !finished_before(l, first, first == b ? other : b))
                taken[n_taken++] = (struct interval){other->offset, other->offset + order[j].bytes};
        }
        qsort(taken, n_taken, sizeof *taken, by_begin);
        b->offset = 0;
        for (size_t j = 0; j < n_taken && taken[j].begin < b->offset + order[i].bytes; j++)
            if (taken[j].end > b->offset)
                b->offset = taken[j].end;
        uint64_t *arena_bytes = &l->out->device[b->device].arena_bytes;
        if (b->offset + order[i].bytes > *arena_bytes)
            *arena_bytes = b->offset + order[i].bytes;
    }
    if (!taken || !order)
        oato_fail_memory(l->err, (size_t)n * 16, "placing buffers");
    free(taken);
    free(order);
}
