/*
 * far_memory.h - memory of a device that lies in the host's, for devices whose memory must not be
 * taken for it: its addresses fault. For the folders of kernels/, not for other rooms.
 */
#ifndef OATO_CORE_FAR_MEMORY_H
#define OATO_CORE_FAR_MEMORY_H

#include "kernels/device.h"

/* One allocation: callers get `address`, which faults when accessed; the bytes are at `real`, which
 * never leaves the device. */
struct far_block {
    struct far_block *next;
    uint8_t *address, *real;
    uint64_t bytes;
    void *handle; /* malloc'ed: the KV cache that callers hold; freed with the block */
};

struct far_memory {
    struct far_block *blocks;
    uint64_t capacity, used; /* bytes; counts requested sizes only */
    int64_t fail_after;      /* injected: allocations until one fails; 0 = never */
    const char *id;          /* of the device, and */
    const char *more;        /* how it gets more memory, for messages */
};

/* Zeroed memory; OATO_EFIT beyond the capacity. */
oato_status far_memory_alloc(struct far_memory *m, uint64_t bytes, const char *what,
                             struct far_block **out, struct oato_error *err);
void far_memory_free(struct far_memory *m, struct far_block *b); /* NULL: nothing */
/* The block that contains `bytes` bytes at address + offset, with their real address in *real;
 * NULL: none. */
struct far_block *far_memory_find(const struct far_memory *m, const void *address, uint64_t offset,
                                  uint64_t bytes, uint8_t **real);

#endif
