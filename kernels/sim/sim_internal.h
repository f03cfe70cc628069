/*
 * sim_internal.h - shared by the files of kernels/sim: the declared speeds (sim_spec.c), the memory
 * whose addresses cannot be read (sim_memory.c), the queue with its virtual clock (sim_queue.c) and
 * the device made of them (sim.c).
 */
#ifndef OATO_SIM_INTERNAL_H
#define OATO_SIM_INTERNAL_H

#include "kernels/core/file_stream.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/job_queue.h"

/* ------------------------------------------------------------------------------- spec ----- */

struct sim_spec {
    double vram_bytes;
    double read_bytes_per_s, flops_per_s;
    double link_bytes_per_s, latency_s; /* per copy from or to the host */
    double launch_s;                    /* per operator */
    double peer_bytes_per_s; /* copies from another simulated device; 0: only through the host */
};

/* "vram=64MiB,read=900GB/s,...", in any order; missing values get defaults. */
oato_status sim_spec_parse(const char *spec, struct sim_spec *out, struct oato_error *err);

/* ----------------------------------------------------------------------------- memory ----- */

/* One allocation: callers get `address`, which faults when accessed; the bytes are at `real`, which
 * never leaves this folder. */
struct sim_block {
    struct sim_block *next;
    uint8_t *address, *real;
    uint64_t bytes;
    void *handle; /* malloc'ed: the handle that callers hold; freed with the block */
};

struct sim_memory {
    struct sim_block *blocks;
    uint64_t capacity, used; /* bytes; counts requested sizes only */
    int64_t fail_after;      /* injected: allocations until one fails; 0 = never */
    const char *id;          /* of the device, for messages */
};

/* Zeroed memory; OATO_EFIT beyond the capacity. */
oato_status sim_memory_alloc(struct sim_memory *m, uint64_t bytes, const char *what,
                             struct sim_block **out, struct oato_error *err);
void sim_memory_free(struct sim_memory *m, struct sim_block *b); /* NULL: nothing */
/* The block that contains `bytes` bytes at address + offset, with their real address in *real;
 * NULL: none. */
struct sim_block *sim_memory_find(const struct sim_memory *m, const void *address, uint64_t offset,
                                  uint64_t bytes, uint8_t **real);

/* Callers hold `handle`, with the unreadable address; kernels use `real`. */
struct sim_weight {
    struct oato_weight handle, real;
    struct sim_block *block; /* NULL: streamed, without memory of its own */
    /* streamed weights only; the queue's thread writes ready_ns */
    struct weight_source source;
    uint64_t stream_bytes; /* bytes that cross the link */
    uint64_t ready_ns;     /* when they arrived, on the virtual clock */
};

/* ----------------------------------------------------------------------------- device ----- */

struct compiled {
    struct compiled *next;
    const struct program *program; /* borrowed */
    struct kv_cache kv;            /* the program's, readable */
    uint8_t *arena;                /* its real address */
    uint8_t *peer[DEVICES_MAX];    /* real arenas of other devices; NULL: not reachable */
    uint32_t *needs;               /* per record: see file_stream_compile */
    uint64_t *kv_ready_ns; /* per KV layer: when its history arrived, on the virtual clock; NULL:
                              there are no rooms */
    int self;
};

struct sim_device {
    struct oato_device base;
    struct job_queue queue;
    char id[16];
    struct sim_spec spec;
    const struct cpu_kernels *kernels;
    bool timing_only;
    struct sim_memory memory;
    struct compiled *programs;
    /* These two serve all programs, which never run at the same time, and change only while the
     * queue is empty. */
    struct sim_block *workspace; /* NULL: none */
    struct rope_table rope;
    _Atomic uint64_t clock_ns;  /* virtual; written by the queue's thread only */
    uint64_t stream_ns;         /* virtual: when the streaming copy engine becomes free */
    struct file_stream *stream; /* NULL: nothing is streamed from a file */
    struct timeline transfers;  /* of copies by that engine beside steps */
    uint64_t transfers_asked;   /* the value that it will reach */
};

/* The caller has set queue.id, spec and kernels. Close with job_queue_close. */
oato_status sim_queue_open(struct sim_device *s, struct oato_error *err);

#endif
