/*
 * cpu_internal.h - between the files of kernels/cpu, and for kernels/sim, which computes with the
 * very same kernels. Not for other rooms.
 */
#ifndef OATO_CPU_INTERNAL_H
#define OATO_CPU_INTERNAL_H

#include "kernels/device.h"

struct cpu_kernels; /* the dispatch table of one instruction set */

/* The best table that this machine runs, or the one named ("ref", "avx2"); NULL name looks at
 * OATO_CPU_ISA first. */
oato_status cpu_kernels_select(const char *isa, const struct cpu_kernels **out,
                               struct oato_error *err);
const char *cpu_kernels_name(const struct cpu_kernels *k);

/* The weight, KV and pricing half of the device interface, for a given table; memory comes from
 * and goes to the allocator so that sim can keep it in its own unreadable region. All addresses
 * handed in are readable by the caller. */
bool cpu_supports(const struct cpu_kernels *k, const struct oato_op *op);
const char *cpu_numerics(const struct cpu_kernels *k, const struct oato_op *op);
uint64_t cpu_prepared_bytes(const struct cpu_kernels *k, oato_dtype dtype, int64_t rows, int64_t cols,
                            enum weight_use use);
uint64_t cpu_workspace_bytes(const struct cpu_kernels *k, const struct oato_op *op,
                             const struct op_size *size, int n_threads);

struct oato_weight {
    oato_dtype dtype;     /* of the source */
    enum weight_use use;
    int64_t rows, k;
    const uint8_t *data;  /* prepared, or (WEIGHT_LOOKUP on the host) the GGUF's own rows */
    uint64_t bytes;       /* owned bytes behind data; 0 when borrowed */
};

/* Fills w->data (already allocated, w->bytes = cpu_prepared_bytes) for source rows
 * [row_begin + begin, row_begin + end): callers may divide the rows among threads at multiples
 * of 64. */
void cpu_prepare_rows(const struct cpu_kernels *k, const struct weight_source *source,
                      struct oato_weight *w, int64_t begin, int64_t end);

/* Paged KV of the layers on one device. Layer l, page p, head h: K at
 * data + layer_offset[l] + ((p * 2 + 0) * kv_heads + h) * 64 * head_dim elements, V with + 1.
 * K and V are position-major: [64][head_dim]. */
struct kv_cache {
    int32_t n_layers, pages;
    oato_dtype dtype;
    struct kv_layer_shape *layers;
    uint64_t *layer_offset; /* bytes */
    uint8_t *data;
    uint64_t bytes;
};
/* layer_offset for each layer and the total; false on overflow. */
bool kv_cache_layout(struct kv_cache *kv, uint64_t *bytes);

/* A barrier for the threads of one record; n_threads = 1 passes at once. */
struct cpu_barrier {
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t phase;
    int n;
};
void cpu_barrier_init(struct cpu_barrier *b, int n);
void cpu_barrier_wait(struct cpu_barrier *b);

/* What a record runs against. */
struct cpu_context {
    const struct cpu_kernels *kernels;
    uint8_t *arena;
    struct oato_weight *const *weights;
    struct kv_cache *kv;
    uint8_t *workspace; /* shared by the threads, 64-byte aligned */
    uint64_t workspace_bytes;
};

/* The share of thread `thread` of a RECORD_RUN record (not the waits, signals or copies). All
 * threads of the barrier call it with the same arguments; outputs are complete once all have
 * returned and met at the barrier, which the caller does between records. */
void cpu_run_record(const struct cpu_context *c, const struct program_record *r,
                    const struct step *step, int thread, struct cpu_barrier *barrier);

#endif
