/*
 * far_memory.h - memory of a device that is not the host's: a budget, allocations, copies by the
 * device's queue, bounds. Either the device's own, by three functions of its, or memory of the
 * host's that must not be taken for it: its addresses fault. For the folders of kernels/, not for
 * other rooms.
 */
#ifndef OATO_CORE_FAR_MEMORY_H
#define OATO_CORE_FAR_MEMORY_H

#include "kernels/job_queue.h"

/* One allocation: callers get `address`. Of memory of the host's the bytes are at `real`, which
 * never leaves the device, and the address faults; of a device's own both are the same. */
struct far_block {
    struct far_block *next;
    uint8_t *address, *real;
    uint64_t bytes;
    void *handle; /* malloc'ed: the KV cache that callers hold; freed with the block */
};

struct far_memory;
/* Memory that the device has of its own. bytes is never 0; what names their use, for messages. */
struct far_ops {
    oato_status (*take)(struct far_memory *m, uint64_t bytes, const char *what, void **out,
                        struct oato_error *err);
    oato_status (*clear)(struct far_memory *m, void *p, uint64_t bytes, struct oato_error *err);
    void (*drop)(struct far_memory *m, void *p);
};

/* The owner sets queue, capacity, more and ops. */
struct far_memory {
    struct job_queue *queue;   /* of the device: copies; what is freed may be in use until it is
                                  empty. Its id begins messages */
    uint64_t capacity, used;   /* bytes; counts requested sizes only */
    int64_t fail_after;        /* injected: allocations until one fails; 0 = never */
    const char *more;          /* how the device gets more memory, for messages */
    const struct far_ops *ops; /* NULL: the host's memory */
    struct far_block *blocks;
};

/* Memory, which is not cleared where it is the device's own; OATO_EFIT beyond the capacity. */
oato_status far_memory_alloc(struct far_memory *m, uint64_t bytes, const char *what,
                             struct far_block **out, struct oato_error *err);
/* The same as zeros, as its address. */
oato_status far_memory_give(struct far_memory *m, uint64_t bytes, const char *what, void **out,
                            struct oato_error *err);
/* Frees it as soon as the queue is empty. NULL: nothing. */
void far_memory_return(struct far_memory *m, void *address);
/* A larger block in place of *block (NULL: none), which the new one does not add to; its contents
 * are lost. Nothing, where it is large enough. */
oato_status far_memory_grow(struct far_memory *m, struct far_block **block, uint64_t bytes,
                            const char *what, struct oato_error *err);
/* The block that contains `bytes` bytes at address + offset, with their real address in *real;
 * NULL: none. */
struct far_block *far_memory_find(const struct far_memory *m, const void *address, uint64_t offset,
                                  uint64_t bytes, uint8_t **real);
/* That real address; NULL: they are outside of it. */
void *far_memory_reach(const struct far_memory *m, const void *address, uint64_t offset,
                       uint64_t bytes);
/* Queues the copy between host memory, which the job names, and job.bytes at far + offset. value as
 * in device_ops.upload. */
oato_status far_memory_copy(struct far_memory *m, struct job job, const void *far, uint64_t offset,
                            uint64_t *value, struct oato_error *err);
/* program_check against the memory behind the program's arena, whose real address is *arena; NULL:
 * it has none. */
oato_status far_memory_check(const struct far_memory *m, const struct program *p,
                             const struct value_types *types, int self, uint8_t **arena,
                             struct oato_error *err);
/* Frees all there is; the queue is not asked. */
void far_memory_close(struct far_memory *m);

#endif
