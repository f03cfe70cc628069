/*
 * sim_internal.h - shared by the files of kernels/sim: the declared speeds (sim_spec.c), the queue
 * with its virtual clock (sim_queue.c) and the device made of them (sim.c).
 */
#ifndef OATO_SIM_INTERNAL_H
#define OATO_SIM_INTERNAL_H

#include "kernels/core/far_memory.h"
#include "kernels/core/weights.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/job_queue.h"

/* ------------------------------------------------------------------------------- spec ----- */

struct sim_spec {
    double vram_bytes;
    double read_bytes_per_s, flops_per_s;
    double link_bytes_per_s, latency_s; /* per copy from or to the host */
    double launch_s;                    /* per operator */
    double peer_bytes_per_s; /* copies from another simulated device; 0: only through the host */
    bool spans;              /* asks for them: one pays unit_s a call, in place of each launch */
    double unit_s;
    int32_t rows[DEVICE_ROWS]; /* as in struct device_info */
};

/* "vram=64MiB,read=900GB/s,spans=on,rows=1+16+256,...", in any order; missing values get defaults.
 */
oato_status sim_spec_parse(const char *spec, struct sim_spec *out, struct oato_error *err);

/* ----------------------------------------------------------------------------- device ----- */

enum unit_place { UNIT_NONE, UNIT_BEGINS, UNIT_GOES_ON };

struct compiled {
    struct compiled *next;
    const struct program *program; /* borrowed */
    struct kv_cache kv;            /* the program's, readable */
    uint8_t *arena;                /* its real address */
    uint8_t *peer[DEVICES_MAX];    /* real arenas of other devices; NULL: not reachable */
    uint8_t *units;                /* per record: enum unit_place; NULL: there are no spans */
    uint32_t *needs;               /* per record: see file_stream_compile */
    uint64_t *kv_ready_ns; /* per KV layer: when its history arrived, on the virtual clock; NULL:
                              there are no rooms */
    uint64_t *ready_ns;    /* per weight that is streamed: when it did */
    int self;
};

struct sim_device {
    struct oato_device base;
    struct job_queue queue;
    char id[16];
    struct sim_spec spec;
    const struct cpu_kernels *kernels;
    bool timing_only;
    struct far_memory memory;
    struct compiled *programs;
    /* These two serve all programs, which never run at the same time, and change only while the
     * queue is empty. */
    struct far_block *workspace; /* NULL: none */
    struct rope_table rope;
    _Atomic uint64_t clock_ns; /* virtual; written by the queue's thread only */
    uint64_t stream_ns;        /* virtual: when the streaming copy engine becomes free */
};

/* The caller has set queue.id, spec and kernels. Close with job_queue_close. */
oato_status sim_queue_open(struct sim_device *s, struct oato_error *err);

#endif
