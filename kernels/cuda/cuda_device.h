/*
 * cuda_device.h - the cuda device as its files see it; README.md says what each of them does.
 *
 * Weights and KV use the CPU's structures with addresses of device memory: KV pages have the CPU's
 * layout, weights that of cuda_layout.h.
 */
#ifndef OATO_CUDA_DEVICE_H
#define OATO_CUDA_DEVICE_H

#include "kernels/core/far_device.h"
#include "kernels/core/patience.h"
#include "kernels/core/weights.h"
#include "kernels/cuda/cuda_blas.h"
#include "kernels/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_nccl.h"

#include <pthread.h>

/* ------------------------------------------------------------------------------- queue ---- */

struct cuda_device;

enum { CUDA_SIGNALS = 64 };

/* Whether a kernel may begin before its predecessor has ended. */
enum cuda_chain {
    CHAIN_NONE,   /* no */
    CHAIN_BEGINS, /* not the next one, but those after it may */
    CHAIN_FOLLOWS /* yes: the last thing in the stream is a kernel of the same span */
};

/* The GPU's stream and the thread that feeds it: the thread launches queued jobs in order, and
 * raises the device's timeline when the stream has passed the records that signal. */
struct cuda_queue {
    struct job_queue *base; /* the device's */
    struct cuda_device *device;
    cu_stream stream;
    uint64_t value[CUDA_SIGNALS]; /* timeline value of each signal, a ring */
    uint64_t recorded, passed;    /* signals so far */
    /* Host memory (and its GPU address) where the stream writes how many signals it has passed;
     * NULL: not possible, events are used instead. */
    _Atomic uint64_t *count;
    cu_address count_address;
    uint32_t looks;    /* fruitless polls so far */
    int spins;         /* waits for another thread or for the GPU so far */
    uint32_t unmarked; /* launches since the last signal */
    bool owed;         /* the GPU must do something else before the thread goes on */
    struct patience patience;
    cu_event event[CUDA_SIGNALS];
    enum cuda_chain chain; /* of the next launch */
};

oato_status cuda_queue_open(struct cuda_queue *q, struct cuda_device *d, struct oato_error *err);
void cuda_queue_close(struct cuda_queue *q);
/* True when the record reads a weight or KV that a RECORD_STREAM copies. */
static inline bool cuda_reads_streamed(const struct program *p, const struct program_record *r)
{
    if (op_has_kv(&r->op) && p->kv->layers[r->kv_layer].staged)
        return true;
    for (int i = 0; i < r->n_weights; i++)
        if (r->weight[i] != UINT32_MAX && weight_is_streamed(p->weights[r->weight[i]]))
            return true;
    return false;
}

/* --------------------------------------------------------------------------- measuring ---- */

enum { CUDA_MARKS = 256 }; /* signals of a step whose clocks are measured */

/* While a profiler measures: each signal of a step gets a timing event and, for CUPTI, a mark
 * kernel. */
struct cuda_measure {
    enum device_clock clock;
    bool activity; /* CUPTI records are used; else the events */
    cu_function mark;
    cu_event event[CUDA_MARKS];
    uint64_t value[CUDA_MARKS]; /* of the timeline */
    uint32_t n;
    uint64_t clock_ns;     /* of what was measured so far */
    struct oato_error why; /* why events had to be used instead */
};

/* ------------------------------------------------------------------------------ device ---- */

enum { CUDA_MODULES = 14, UNPACK_ROOMS = 2 };

/* cuda_unpack.c */
struct cuda_unpacker {
    bool declined;    /* the host converts all */
    cu_stream stream; /* NULL: not made yet */
    cu_address room[UNPACK_ROOMS];
    cu_event arrived[UNPACK_ROOMS], made[UNPACK_ROOMS];
    uint32_t turn;
    bool tried[DT_COUNT];
    cu_function kernel[DT_COUNT]; /* NULL: the host converts this type */
};

struct cuda_device {
    struct far_device far;
    const struct cuda_driver *cu;
    char name[96];
    int index;
    cu_device ordinal;
    cu_context context;
    int capability; /* 90: sm_90 */
    int multiprocessors, l2_bytes;
    bool graphs;   /* launches of short steps are captured */
    bool overlaps; /* kernels of a decode step overlap: one begins while the last one ends */
    uint64_t memory_bytes, budget_bytes; /* 0: it may use all */
    cu_module module[CUDA_MODULES];
    struct cuda_queue queue;
    struct compiled *programs;
    struct far_block *workspace; /* one for all programs: they never run at the same time */
    struct cuda_measure measure;
    struct cuda_blas blas;
    nccl_ranks ranks; /* NULL: it has joined none */
    struct cuda_unpacker unpacker;
    bool keeps;        /* see struct device_info */
    uint64_t limit_ns; /* for which it may be at the same work; 0: for ever */
    bool hung;         /* it is no longer waited for, see cuda_hang.c, */
    struct oato_error why_hung;
    _Atomic uint64_t filled; /* buffers of weights so far: what is slow then is the host */
    char warning[640];       /* what slows it down, for device_ops.warning; "": nothing */
};

static inline struct cuda_device *cuda_of(const struct oato_device *d)
{
    return (struct cuda_device *)(uintptr_t)d;
}

/* cuda_open.c: see struct device_ops. */
oato_status cuda_open(int index, const char *spec, const struct device_options *options,
                      struct oato_device **out, struct oato_error *err);
void cuda_close(struct oato_device *base);
/* cuda_sight.c: see struct device_ops. */
void cuda_sight(const char *root, struct device_sight *out);
/* cuda_hang.c. The limit becomes that for closing. */
void cuda_limit_close(struct cuda_device *d);
/* Called again and again by who waits for the GPU. True: `progress` has been the same for too long.
 * Then why_hung tells it, and the driver is not called any more. */
bool cuda_hangs(struct cuda_device *d, struct patience *p, uint64_t progress);
/* In place of the driver's own function, which may never return. */
cu_result cuda_stream_finish(struct cuda_device *d, cu_stream stream);
/* cuda_unpack.c: see struct lane_ops. The rooms are made when they are first asked for. */
bool cuda_unpacks(struct oato_device *base, const struct weight_source *s);
cu_result cuda_unpack(struct cuda_device *d, cu_stream lane, const struct weight_source *rows,
                      const void *from, cu_address to,
                      const struct weight_plane plane[WEIGHT_PLANES]);
cu_result cuda_unpacked(const struct cuda_device *d, cu_stream lane);
void cuda_unpacker_close(struct cuda_device *d);
/* cuda_context.c. Makes the device's context current in the calling thread. */
void cuda_enter(const struct cuda_device *d);
/* Makes n events, where there were none; frees those that there are. */
cu_result cuda_events_create(const struct cuda_device *d, cu_event *event, int n, unsigned flags);
void cuda_events_destroy(const struct cuda_device *d, cu_event *event, int n);
/* The kernel of that name, from whichever module has it. */
cu_result cuda_kernel(const struct cuda_device *d, const char *name, cu_function *out);

/* cuda_memory.c */
extern const struct far_ops cuda_memory;
/* cuda_weight.c: see struct device_ops. */
uint64_t cuda_bytes(const struct oato_device *base, const struct weight_source *source);
bool cuda_planes(const struct oato_device *base, const struct weight_source *source,
                 struct weight_plane plane[WEIGHT_PLANES]);
void cuda_convert(const struct oato_device *base, const struct weight_source *source, int64_t begin,
                  int64_t end, void *to);
extern const struct lane_ops cuda_lanes;
void *cuda_host_alloc(struct oato_device *base, uint64_t bytes, bool must);
void cuda_host_free(struct oato_device *base, void *p);
/* Page-locks host memory until it is unpinned as often as pinned; false when not possible: copies
 * then go through the driver's own buffer. */
bool cuda_pin(const struct cuda_device *d, void *p, uint64_t bytes);
void cuda_unpin(const struct cuda_device *d, void *p, uint64_t bytes);

/* cuda_measure.c: see struct device_ops. */
bool cuda_measure(struct oato_device *base, enum device_clock clock, struct oato_error *why);
void cuda_measure_close(struct cuda_device *d);
oato_status cuda_read_rate(struct oato_device *base, double *bytes_per_s, struct oato_error *err);
oato_status cuda_both_rates(struct oato_device *base, double *to_device, double *to_host,
                            struct oato_error *err);
/* Queue's thread: mark the place in the stream where the timeline will rise to value; at the end of
 * a step, give the timeline its clocks. Both do nothing unless a profiler measures. */
cu_result cuda_measure_mark(struct cuda_device *d, uint64_t value);
void cuda_measure_take(struct cuda_device *d);

/* ---------------------------------------------------------------------------- programs ---- */

/* A record's kernels, looked up when the program is compiled; NULL where its kind uses none. */
struct cuda_record {
    cu_function run;
    cu_function run_up;      /* of up: of experts whose type is another one; where neurons are
                                skipped; NULL: there is none */
    cu_function many, batch; /* of products: several columns at once, and more than those */
    cu_function pack;        /* of a product's input */
    cu_function merge;     /* of attention's segments; of gate and up; of experts; of candidates */
    cu_function group;     /* of the columns of each expert */
    cu_function pack_blas; /* of a product's input, for cuBLAS, */
    cu_function halves;    /* and of weights with blocks */
    cu_address turn;       /* ROPE: of its pairs, see struct cuda_rope_args */
    /* Records that share kernels (cuda_join.c). */
    bool packs;  /* leaves its output packed at the start of the workspace */
    bool packed; /* a product that reads such packed input */
    bool adds;   /* a product that also does the next record's addition */
    bool joins;  /* a store that also does the rotations of q and k, two other records */
    bool waits;  /* launches nothing: a neighbouring record does its work */
    bool blas;   /* a product that cuBLAS computes in steps with many rows */
};

struct cuda_graphs; /* of cuda_graph.c */

/* A program compiled by this device. */
struct compiled {
    struct compiled *next;
    const struct program *program; /* borrowed */
    int self;
    bool pinned;                 /* the host arena */
    struct cuda_record *records; /* as many as the program's */
    struct cuda_graphs *graphs;
    uint64_t *turns; /* of all ROPE records, in device memory */

    /* A step's arrays in device memory, and their source in pinned host memory. Arrays of fixed
     * size come first, then the block tables of all sequences, then page copies. */
    struct cuda_step step;
    cu_address step_memory;
    uint8_t *host_step;
    uint64_t step_bytes, rows_at, seqs_at, pages_at, copies_at, states_at, slots_at; /* offsets */
    int32_t pages_most, copies_most;
    int32_t *cached; /* experts in each table of step.cached, 0: not read here; NULL: no caches */
    int32_t cached_most;
    bool slots_sent;                   /* the tables, which are sent only when they change */
    struct weight_file_use *file_uses; /* per record; NULL: nothing comes from a file */
    bool ring_pinned;
    cu_event *kv_arrived; /* per KV layer: the history of a room; NULL: there are no rooms */
    bool kv_pinned;       /* the host's KV */
};

/* Where the table of a cache of experts is in a step's arrays. */
static inline uint64_t cuda_slots_at(const struct compiled *c, int32_t cache)
{
    return c->slots_at + (uint64_t)cache * (uint64_t)c->cached_most * sizeof(int32_t);
}

/* cuda_program.c */
bool cuda_supports(const struct oato_device *base, const struct oato_op *op);
const char *cuda_numerics(const struct oato_device *base, const struct oato_op *op,
                          enum numerics_choice choice);
uint64_t cuda_workspace_bytes(const struct oato_device *base, const struct oato_op *op,
                              const struct op_size *size);
oato_status cuda_compile(struct oato_device *base, const struct program *p, int self,
                         struct compiled **out, struct oato_error *err);
void cuda_release(struct oato_device *base, struct compiled *c);
/* Queue's thread: sends the step's arrays ahead of its first record. */
oato_status cuda_step_upload(struct cuda_device *d, struct compiled *c, const struct step *step,
                             struct oato_error *err);

/* cuda_launch.c. Finds the kernels of a record; then, on the queue's thread, launches them. */
oato_status cuda_record_kernels(const struct cuda_device *d, const struct program_record *r,
                                struct cuda_record *out, struct oato_error *err);
oato_status cuda_run_record(struct cuda_device *d, const struct compiled *c, uint32_t index,
                            const struct step *step, struct oato_error *err);
/* cuda_join.c. Finds records whose work one kernel can do together. */
bool cuda_joins(const struct oato_device *base, enum op_join join, const struct oato_op *first,
                const struct oato_op *last);
oato_status cuda_join_records(const struct cuda_device *d, struct compiled *c,
                              struct oato_error *err);
/* cuda_graph.c. cuda_graphs_begin and cuda_graphs_run run on the queue's thread: begin starts a
 * step; run launches records from index on as one graph, once the first one's waits are over, and
 * returns how many (0: launch this record by itself). */
oato_status cuda_graphs_create(struct compiled *c, struct oato_error *err);
void cuda_graphs_free(struct cuda_device *d, struct compiled *c);
void cuda_graphs_begin(struct cuda_device *d, struct compiled *c, const struct step *step);
uint32_t cuda_graphs_run(struct cuda_device *d, struct compiled *c, uint32_t index,
                         const struct step *step, cu_result *result);
/* True where tensor cores compute the product: always for one numerics class, never for the other,
 * so that a row's bits do not depend on the number of rows. */
bool cuda_takes_matrix(const struct cuda_device *d, const struct oato_op *op,
                       enum numerics_choice choice);
/* True where cuBLAS computes it instead, in steps with many rows; opens the library if the answer
 * depends on it. */
bool cuda_takes_blas(const struct cuda_device *d, const struct oato_op *op,
                     enum numerics_choice choice);
/* True where tensor cores compute attention on tiles of queries: the prefill class, with a
 * supported KV type and head size. */
bool cuda_takes_tile(const struct oato_op *op, enum numerics_choice choice);
/* The number of context segments that a step's launches have room for: a few more than the longest
 * context has. */
int32_t cuda_step_segments(const struct step *step);
/* The step's longest context in units of ATTENTION_TILE_SPAN positions, rounded up. */
int32_t cuda_step_spans(const struct step *step);
/* True for types whose products take packed bytes. */
bool cuda_has_blocks(oato_dtype dtype);
/* False: this device has no kernel for this kind. */
bool cuda_has_kernel(const struct oato_op *op);
/* cuda_sparse.c. False: what it skips is not skipped by any kernel here. */
bool cuda_has_sparse(const struct oato_op *op);
/* A product with rows of matrices, also where these are read one by one. */
static inline bool cuda_takes_rows(const struct oato_op *op)
{
    const enum weight_use use = op_weight_use_at(op, 0);
    return use == WEIGHT_MATRIX || use == WEIGHT_ROWS;
}
/* cuda_state.c: of an operator with a state. */
/* Scratch memory of one run of the operator with at most `rows` rows; blas: cuBLAS computes it in
 * steps with many rows. */
uint64_t cuda_op_workspace(const struct cuda_device *d, const struct oato_op *op, int32_t rows,
                           bool blas);

#endif
