/*
 * sim_internal.h - between the files of kernels/sim: the declared speeds (sim_spec.c), the memory
 * whose addresses cannot be read (sim_memory.c), the queue with its virtual clock (sim_queue.c) and
 * the device made of them (sim.c).
 */
#ifndef OATO_SIM_INTERNAL_H
#define OATO_SIM_INTERNAL_H

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/job_queue.h"

/* ------------------------------------------------------------------------------- spec ----- */

struct sim_spec {
    double vram_bytes;
    double read_bytes_per_s, flops_per_s;
    double link_bytes_per_s, latency_s; /* of one copy from or to the host */
    double launch_s;                    /* of one operator */
    double peer_bytes_per_s; /* of a copy from another simulated device; 0: through the host */
};

/* "vram=64MiB,read=900GB/s,...", in any order; what is missing has a default. */
oato_status sim_spec_parse(const char *spec, struct sim_spec *out, struct oato_error *err);

/* ----------------------------------------------------------------------------- memory ----- */

/* One allocation: callers get `address`, which faults when it is touched; the bytes lie at `real`,
 * which never leaves this folder. */
struct sim_block {
    struct sim_block *prev, *next;
    uint8_t *address, *real;
    uint64_t bytes;
    void *handle; /* malloc'ed, what callers hold of it; freed with the block */
};

struct sim_memory {
    struct sim_block *blocks;
    uint64_t capacity, used; /* bytes; only what was asked for counts */
    int64_t fail_after;      /* injected: allocations until one fails; 0 = never */
    const char *id;          /* of the device, for messages */
};

/* Zeroed memory; OATO_EFIT beyond the capacity. */
oato_status sim_memory_alloc(struct sim_memory *m, uint64_t bytes, const char *what,
                             struct sim_block **out, struct oato_error *err);
void sim_memory_free(struct sim_memory *m, struct sim_block *b); /* NULL: nothing */
void sim_memory_free_all(struct sim_memory *m);
/* The block that holds `bytes` bytes at address + offset, and where they really are; NULL: none. */
struct sim_block *sim_memory_find(const struct sim_memory *m, const void *address, uint64_t offset,
                                  uint64_t bytes, uint8_t **real);

/* What callers hold as a weight has the unreadable address; `real` is what runs. */
struct sim_weight {
    struct oato_weight handle, real;
    struct sim_block *block; /* NULL: it is streamed, and has no memory of its own */
    /* of a streamed one; the queue's thread writes ready_ns */
    struct weight_source source;
    uint64_t stream_bytes; /* that cross the link */
    uint64_t ready_ns;     /* when they were here, on the virtual clock */
};

/* ------------------------------------------------------------------------------ queue ----- */

struct compiled {
    struct compiled *next;
    const struct program *program; /* borrowed */
    struct kv_cache kv;            /* the program's, readable */
    uint8_t *arena;                /* really, */
    uint8_t *peer[DEVICES_MAX];    /* and those of other devices; NULL: not reached */
    int self;
};

struct sim_queue {
    struct job_queue base;
    struct sim_spec spec;
    const struct cpu_kernels *kernels;
    bool timing_only;
    uint8_t *workspace; /* this and rope's room change only while the queue is empty */
    uint64_t workspace_bytes;
    struct rope_table rope;
    _Atomic uint64_t clock_ns; /* virtual; written by the queue's thread only */
    uint64_t stream_ns;        /* virtual: when the copy engine of streams is free */
};

/* base.id, spec and kernels are set. Closed by job_queue_close. */
oato_status sim_queue_open(struct sim_queue *q, struct oato_error *err);

#endif
