/*
 * sim_internal.h - shared by the files of kernels/sim: the declared speeds (sim_spec.c), values
 * that are kept as F16 (sim_values.c), KV in a layout of its own (sim_kv.c), the queue with its
 * virtual clock (sim_queue.c) and the device made of them (sim.c).
 */
#ifndef OATO_SIM_INTERNAL_H
#define OATO_SIM_INTERNAL_H

#include "kernels/core/far_device.h"
#include "kernels/core/weights.h"
#include "kernels/cpu/cpu_kernels.h"

/* ------------------------------------------------------------------------------- spec ----- */

struct sim_spec {
    double vram_bytes;
    double read_bytes_per_s, flops_per_s;
    double link_bytes_per_s, latency_s; /* per copy from or to the host */
    double launch_s;                    /* per operator */
    double peer_bytes_per_s; /* copies from another simulated device; 0: only through the host */
    bool halves;             /* values are F16 in its arena */
    bool kv_rows;            /* pages of KV have a layout of its own, "rows" */
    bool spans;              /* asks for them: one pays unit_s a call, in place of each launch */
    double unit_s;
    int32_t rows[DEVICE_ROWS]; /* as in struct device_info */
    char class[32];            /* numerics class of all operators, "f32.sim"; "": the CPU's */
};

/* "vram=64MiB,read=900GB/s,spans=on,rows=1+16+256,...", in any order; missing values get defaults.
 */
oato_status sim_spec_parse(const char *spec, struct sim_spec *out, struct oato_error *err);

struct sim_device;

/* ----------------------------------------------------------------------------- values ----- */

/* [OP_KIND_COUNT]: F16, except what is merged or kept in a state. */
void sim_values_fill(struct value_types *values);
/* "u8b32-f16" for "u8b32", static text. */
const char *sim_values_class(const char *class);
/* Bytes of float32 copies of the record's values; 0: it needs none. */
uint64_t sim_values_bytes(const struct program *p, const struct program_record *r);
/* Room for copies of that many bytes, in s->wide. */
oato_status sim_values_grow(struct sim_device *s, uint64_t bytes, struct oato_error *err);
/* The record between float32 copies in `wide` of its values in the arena, where the inputs are
 * filled; and its outputs back to the arena, rounded. */
struct program_record sim_values_widen(const struct program_record *r, const struct step *step,
                                       const uint8_t *arena, uint8_t *wide);
void sim_values_round(const struct program_record *r, const struct program_record *copy,
                      const struct step *step, uint8_t *arena, const uint8_t *wide);

/* --------------------------------------------------------------------------------- KV ----- */

/* K and V of a head are position-major, F16. */
extern const struct kv_layout sim_kv_rows;
struct compiled;
/* Makes the program's second cache, if pages are not in the shared layout. */
oato_status sim_kv_open(const struct sim_device *s, struct compiled *c, struct oato_error *err);
/* Pages of the layer that the step's sequences have positions in, from `from` to `to`, one of which
 * is in the shared layout; written: only those that the step's own tokens lie in. */
void sim_kv_convert(const struct kv_cache *from, const struct kv_cache *to, int32_t layer,
                    const struct step *step, bool to_shared_layout, bool written);

/* ----------------------------------------------------------------------------- device ----- */

enum unit_place { UNIT_NONE, UNIT_BEGINS, UNIT_GOES_ON };

struct compiled {
    struct compiled *next;
    const struct program *program; /* borrowed */
    struct kv_cache kv;            /* the program's, readable */
    struct kv_cache shared;        /* kv_rows: of the same shape, for what kernels read */
    uint8_t *arena;                /* its real address */
    uint8_t *peer[DEVICES_MAX];    /* real arenas of other devices; NULL: not reachable */
    uint8_t *units;                /* per record: enum unit_place; NULL: the device has no spans */
    uint32_t *needs;               /* per record: see file_stream_compile */
    uint64_t *kv_ready_ns; /* per KV layer: when its history arrived, on the virtual clock; NULL:
                              there are no rooms */
    uint64_t *ready_ns;    /* per weight that is streamed: when it did */
    int self;
};

struct sim_device {
    struct far_device far;
    struct sim_spec spec;
    const struct cpu_kernels *kernels;
    bool timing_only;
    struct compiled *programs;
    /* These two serve all programs, which never run at the same time, and change only while the
     * queue is empty. */
    struct far_block *workspace; /* NULL: none */
    struct rope_table rope;
    uint8_t *wide; /* float32 copies of a record's values */
    uint64_t wide_bytes;
    struct value_types values[OP_KIND_COUNT];
    _Atomic uint64_t clock_ns; /* virtual; written by the queue's thread only */
    uint64_t stream_ns;        /* virtual: when the streaming copy engine becomes free */
};

/* The caller has named the device and set spec and kernels. Close with job_queue_close. */
oato_status sim_queue_open(struct sim_device *s, struct oato_error *err);

#endif
