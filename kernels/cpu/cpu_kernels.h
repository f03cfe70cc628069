/*
 * cpu_kernels.h - the CPU's kernels without its threads and memory: for kernels/cpu, and for
 * kernels/sim, which uses the same kernels.
 */
#ifndef OATO_CPU_KERNELS_H
#define OATO_CPU_KERNELS_H

#include "kernels/core/core_internal.h"

struct cpu_kernels; /* the dispatch table of one instruction set */

/* The best table that this machine runs, or the one named ("ref", "avx2", ...); NULL name looks at
 * OATO_CPU_ISA first. */
oato_status cpu_kernels_select(const char *isa, const struct cpu_kernels **out,
                               struct oato_error *err);
const char *cpu_kernels_name(const struct cpu_kernels *k);
/* Of prepared weights; NULL: it has no id. */
const char *cpu_kernels_layout(const struct cpu_kernels *k);

/* The weight, KV and pricing half of the device interface, for a given table; memory comes from
 * and goes to the allocator so that sim can keep it in its own unreadable region. All addresses
 * handed in are readable by the caller. */
bool cpu_supports(const struct oato_op *op);
const char *cpu_numerics(const struct cpu_kernels *k, const struct oato_op *op,
                         enum numerics_choice choice);
uint64_t cpu_prepared_bytes(const struct cpu_kernels *k, oato_dtype dtype, int64_t rows,
                            int64_t cols, enum weight_use use);
enum { WORKSPACE_HEADER_BYTES = 64 }; /* of the workspace: the counter of claimed units */
/* The same of a source, whose list of columns counts. */
uint64_t cpu_source_bytes(const struct cpu_kernels *k, const struct weight_source *s);
uint64_t cpu_workspace_bytes(const struct cpu_kernels *k, const struct oato_op *op,
                             const struct op_size *size, int n_threads);

/* See device_ops.convert. */
void cpu_convert_rows(const struct cpu_kernels *k, const struct weight_source *source,
                      int64_t begin, int64_t end, void *to);

/* Cosines and sines of the step's tokens, kept from one ROPE record to the next. */
struct rope_table {
    float *cos_sin;         /* token t, pair i: cos at [(t * pairs + i) * 2], then sin */
    uint64_t floats;        /* room */
    uint64_t step_serial;   /* raised by the owner with every step; 0 is never valid */
    uint64_t filled_serial; /* the step that cos_sin belongs to */
    struct oato_op op;      /* and its parameters */
    const uint8_t *divisors;
};

/* What a record runs against. */
struct cpu_context {
    const struct cpu_kernels *kernels;
    uint8_t *arena;
    struct oato_weight *const *weights;
    const struct kv_cache *kv;
    uint8_t *workspace; /* shared by the threads, 64-byte aligned; its header zero before the
                           first record */
    uint64_t workspace_bytes;
    struct rope_table *rope; /* may be NULL: then each ROPE computes its own angles */
};

/* Does a RECORD_RUN record (not its waits, signals or copies) on the calling thread. */
void cpu_run_alone(const struct cpu_context *c, const struct program_record *r,
                   const struct step *step);
/* Flushes denormals to zero in the calling thread. Returns the old state for float_state_set. */
uint32_t float_state_fast(void);
void float_state_set(uint32_t state);

#endif
