/*
 * cuda_device.h - the cuda device as its files see it: cuda.c (its table of functions),
 * cuda_open.c (open, close),
 * cuda_memory.c (memory, KV), cuda_weight.c (weights), cuda_stream.c (how they travel),
 * cuda_queue.c (the thread that feeds the GPU), cuda_program.c (programs), cuda_launch.c (from a
 * record to its kernels), cuda_graph.c (many launches as one), cuda_blas.c (products by cuBLAS),
 * cuda_measure.c (what a profiler asks for).
 *
 * Weights and KV are the CPU's structures with addresses of device memory in them: pages of KV lie
 * as the CPU's do, weights as cuda_layout.h says.
 */
#ifndef OATO_CUDA_DEVICE_H
#define OATO_CUDA_DEVICE_H

#include "kernels/core/core_internal.h"
#include "kernels/cuda/cuda_blas.h"
#include "kernels/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_kernels.h"
#include "kernels/job_queue.h"

#include <pthread.h>

/* ------------------------------------------------------------------------------- queue ---- */

struct cuda_device;

enum { CUDA_SIGNALS = 64 };

/* Whether a kernel may begin before the one before it has ended. */
enum cuda_chain {
    CHAIN_NONE,   /* it may not */
    CHAIN_BEGINS, /* those behind the next one may */
    CHAIN_FOLLOWS /* it may: what the stream has last is a kernel of the same span */
};

/* The GPU's stream and the thread that feeds it: it launches what is put, in order, and raises the
 * device's timeline when the stream has passed the places that records signal. */
struct cuda_queue {
    struct job_queue base;
    struct cuda_device *device;
    cu_stream stream;
    uint64_t value[CUDA_SIGNALS]; /* what each raises the timeline to, a ring */
    uint64_t recorded, passed;    /* signals so far */
    /* Where the stream writes how many it has passed: memory of the host, with the address that
     * the GPU has for it; NULL: it cannot, and events tell. */
    _Atomic uint64_t *count;
    cu_address count_address;
    uint32_t looks;                  /* in vain */
    uint64_t leave_ns, leave_passed; /* when to give up, unless `passed` rises; 0: not at all */
    cu_event event[CUDA_SIGNALS];
    enum cuda_chain chain; /* of the next launch */
};

oato_status cuda_queue_open(struct cuda_queue *q, struct cuda_device *d, struct oato_error *err);
void cuda_queue_close(struct cuda_queue *q);
/* ----------------------------------------------------------------------------- weights ---- */

enum {
    CUDA_BUFFERS = 3,
    CUDA_BUFFER_BYTES = 8 << 20, /* a link of 50 GB/s takes 0.2 ms for it, 10 times what it costs to
                                    start a copy */
    CUDA_STREAMS_AHEAD = 4,      /* RECORD_STREAMs on their way: more would fill a stream's queue,
                                    and then the driver makes its caller wait */
    CUDA_CREW = 15,
    CUDA_WEIGHT_PLANES = 4
};

/* What is sent at once of a weight. A unit is a row in the layout's planes, a row of float32, or a
 * byte of what was prepared before. */
struct cuda_piece {
    const struct cuda_weight *weight;
    uint8_t *to;         /* the buffer, */
    int buffer;          /* and its number */
    uint64_t begin, end; /* units */
    uint64_t bytes;
    uint64_t plane[CUDA_WEIGHT_PLANES]; /* offsets in the buffer */
};

struct cuda_weight {
    struct oato_weight weight; /* what others hold; its data is in device memory */
    struct cuda_device *device;
    struct weight_source source;
    cu_event arrived;                   /* of a streamed one, recorded when it is; NULL: resident */
    uint64_t unit[CUDA_WEIGHT_PLANES];  /* bytes of a unit in each plane */
    uint64_t plane[CUDA_WEIGHT_PLANES]; /* offsets of the planes of the whole weight */
    struct cuda_piece *pieces;
    uint32_t n_pieces;
    uint8_t *kept; /* of a streamed one: all of it as it is sent, pinned; NULL: no room for that */
    bool in_slab;
};

static inline struct cuda_weight *cuda_weight_of(const struct oato_weight *w)
{
    return (struct cuda_weight *)(uintptr_t)w;
}

/* True when the record reads a weight that a RECORD_STREAM brings. */
static inline bool cuda_reads_streamed(const struct program *p, const struct program_record *r)
{
    for (int i = 0; i < r->n_weights; i++)
        if (r->weight[i] != UINT32_MAX && cuda_weight_of(p->weights[r->weight[i]])->arrived)
            return true;
    return false;
}

struct cuda_buffer {
    uint8_t *host; /* pinned */
    cu_event filled, sent;
};

struct cuda_streams {
    cu_stream fill, copy;
    cu_event passed; /* where the computing stream was at the last RECORD_STREAM */
    cu_event behind[CUDA_STREAMS_AHEAD]; /* each RECORD_STREAM, a ring */
    uint64_t records;
    struct cuda_buffer buffer[CUDA_BUFFERS];
    uint32_t turn; /* of the buffers */
};

/* Threads that help to fill a piece. */
struct cuda_crew {
    int n;
    const struct cuda_piece *piece;
    uint64_t share; /* units taken at once */
    _Atomic uint64_t next;
    pthread_t thread[CUDA_CREW];
    pthread_mutex_t lock; /* of all that follows */
    pthread_cond_t changed;
    uint64_t round;
    int working;
    bool closing;
};

void cuda_crew_open(struct cuda_crew *c);
void cuda_crew_close(struct cuda_crew *c);
/* The host's part of a piece, called by the driver: user is the struct cuda_piece. */
void cuda_piece_fill(void *user);

oato_status cuda_streams_open(struct cuda_device *d, struct oato_error *err);
void cuda_streams_close(struct cuda_device *d); /* waits for what is on its way */
/* One thread at a time, the device's context its own: the queue's, or another while that is idle.
 * The weight is on its way when they return. */
cu_result cuda_weight_send(const struct cuda_weight *w);
cu_result cuda_streams_wait(struct cuda_device *d);
/* On the queue's thread: whether another record may begin (CU_OK or CU_ERROR_NOT_READY), begins it,
 * and has the computing stream wait for the weights that a record reads. */
cu_result cuda_stream_room(struct cuda_device *d);
cu_result cuda_stream_run(struct cuda_device *d, const struct compiled *c,
                          const struct program_record *r);
cu_result cuda_stream_await(struct cuda_device *d, const struct compiled *c,
                            const struct program_record *r);

/* --------------------------------------------------------------------------- measuring ---- */

enum { CUDA_MARKS = 256 }; /* signals of a step whose clocks are measured */

/* While a profiler measures: where the steps signal, an event with the time and, for CUPTI, a
 * kernel that is a mark. */
struct cuda_measure {
    enum device_clock clock;
    bool activity; /* CUPTI records; else the events tell */
    cu_function mark;
    cu_event event[CUDA_MARKS];
    uint64_t value[CUDA_MARKS]; /* of the timeline */
    uint32_t n;
    uint64_t clock_ns;     /* of what was measured so far */
    struct oato_error why; /* why the events tell, once they do */
};

/* ------------------------------------------------------------------------------ device ---- */

enum { CUDA_MODULES = 9 };

/* Memory of many weights: allocations of their own would each be rounded up to the driver's
 * granule, 2 MiB. */
struct cuda_slab {
    cu_address memory; /* 0: none */
    uint64_t bytes, used;
    uint32_t weights; /* that lie in it */
};

struct cuda_device {
    struct oato_device base;
    const struct cuda_driver *cu;
    char id[16];
    char name[96];
    int index;
    cu_device ordinal;
    cu_context context;
    int capability; /* 90: sm_90 */
    int multiprocessors, l2_bytes;
    bool graphs;   /* launches of short steps are captured */
    bool overlaps; /* kernels of a decode step, at their ends and beginnings */
    uint64_t memory_bytes, budget_bytes, used_bytes;
    int64_t fail_alloc; /* injected, counted down; 0: off */
    cu_module module[CUDA_MODULES];
    struct cuda_queue queue;
    struct cuda_streams streams;
    struct cuda_crew crew;
    struct compiled *programs;
    struct cuda_slab slab;
    cu_address workspace; /* one for all programs: they never run at the same time */
    uint64_t workspace_bytes;
    struct cuda_measure measure;
    struct cuda_blas blas;
    bool hung;         /* it is not waited for, see cuda_queue.c */
    char warning[640]; /* what slows it down, for its user; "": nothing */
};

static inline struct cuda_device *cuda_of(const struct oato_device *d)
{
    return (struct cuda_device *)(uintptr_t)d;
}

/* cuda_open.c: see struct device_ops. */
oato_status cuda_open(int index, const char *spec, const struct device_options *options,
                      struct oato_device **out, struct oato_error *err);
void cuda_close(struct oato_device *base);
/* False when the environment says VARIABLE=0. */
bool cuda_wanted(const char *variable);
/* The device's context is made the calling thread's. */
void cuda_enter(const struct cuda_device *d);
/* The kernel of that name, whichever image has it. */
cu_result cuda_kernel(const struct cuda_device *d, const char *name, cu_function *out);

/* cuda_memory.c, cuda_weight.c. Allocations count against the budget. */
oato_status cuda_take(struct cuda_device *d, uint64_t bytes, const char *what, cu_address *out,
                      struct oato_error *err);
void cuda_return(struct cuda_device *d, cu_address address, uint64_t bytes);
oato_status cuda_alloc(struct oato_device *base, uint64_t bytes, void **out,
                       struct oato_error *err);
void cuda_free(struct oato_device *base, void *p, uint64_t bytes);
oato_status cuda_upload(struct oato_device *base, void *to, uint64_t offset, const void *from,
                        uint64_t bytes, uint64_t *value, struct oato_error *err);
oato_status cuda_download(struct oato_device *base, void *to, const void *from, uint64_t offset,
                          uint64_t bytes, uint64_t *value, struct oato_error *err);
uint64_t cuda_prepared_bytes(const struct oato_device *base, oato_dtype dtype, int64_t rows,
                             int64_t k, enum weight_use use);
void cuda_reserve(struct oato_device *base, uint64_t bytes, uint32_t weights);
oato_status cuda_prepare(struct oato_device *base, const struct weight_source *source,
                         struct oato_weight **out, struct oato_error *err);
oato_status cuda_stage(struct oato_device *base, const struct weight_source *source, void *staging,
                       uint64_t offset, struct oato_weight **out, struct oato_error *err);
/* The first n numbers of a vector, which need not have been streamed yet. */
oato_status cuda_vector_read(struct oato_device *base, const struct oato_weight *weight, float *out,
                             uint64_t n, struct oato_error *err);
void cuda_weight_free(struct oato_device *base, struct oato_weight *w);
oato_status cuda_kv_create(struct oato_device *base, const struct kv_layer_shape *layers, int n,
                           oato_dtype dtype, int32_t pages, struct kv_cache **out,
                           struct oato_error *err);
void cuda_kv_free(struct oato_device *base, struct kv_cache *kv);
/* Page-locks host memory until as many unpin it; false where that cannot be: then copies take the
 * driver's way, through a buffer of its own. */
bool cuda_pin(const struct cuda_device *d, void *p, uint64_t bytes);
void cuda_unpin(const struct cuda_device *d, void *p, uint64_t bytes);

/* cuda_measure.c: see struct device_ops. */
bool cuda_measure(struct oato_device *base, enum device_clock clock, struct oato_error *why);
void cuda_measure_close(struct cuda_device *d);
oato_status cuda_read_rate(struct oato_device *base, double *bytes_per_s, struct oato_error *err);
oato_status cuda_both_rates(struct oato_device *base, double *to_device, double *to_host,
                            struct oato_error *err);
/* Queue's thread: the stream gets here where the timeline is to rise to value; a step is over, and
 * the timeline gets the clocks. Both do nothing while nobody measures. */
cu_result cuda_measure_mark(struct cuda_device *d, uint64_t value);
void cuda_measure_take(struct cuda_device *d);

/* ---------------------------------------------------------------------------- programs ---- */

/* The kernels of a record, found when the program is compiled; what a kind does not use is NULL. */
struct cuda_record {
    cu_function run;
    cu_function many, batch; /* of products: several columns at once, and more than those */
    cu_function pack;        /* of a product's input */
    cu_function merge;     /* of attention's segments; of gate and up; of experts; of candidates */
    cu_function group;     /* of the columns of each expert */
    cu_function pack_blas; /* of a product's input, for cuBLAS, */
    cu_function halves;    /* and of weights with blocks */
    cu_address turn;       /* ROPE: of its pairs, see struct cuda_rope_args */
    /* Records that share kernels (cuda_join.c). */
    bool packs;  /* its output is left packed at the beginning of the workspace, */
    bool packed; /* where this product finds its input */
    bool adds;   /* a product: and does the work of the next record, which adds to it */
    bool joins;  /* a store that rotates q and k first, the work of two records */
    bool waits;  /* nothing is launched: a record beside it does its work */
    bool blas;   /* a product that cuBLAS computes in steps of many rows */
};

struct cuda_graphs; /* of cuda_graph.c */

/* A program as the device keeps it. */
struct compiled {
    struct compiled *next;
    const struct program *program; /* borrowed */
    int self;
    bool pinned;                 /* the host arena */
    struct cuda_record *records; /* as many as the program's */
    struct cuda_graphs *graphs;
    cu_address turns; /* of all ROPE records */
    uint64_t turns_bytes;

    /* A step's arrays: in device memory, and what goes there, in pinned memory of the host. Those
     * of fixed size come first, then the block tables of all sequences, then page copies. */
    struct cuda_step step;
    cu_address step_memory;
    uint8_t *host_step;
    uint64_t step_bytes, rows_at, seqs_at, pages_at, copies_at; /* offsets */
    int32_t pages_most, copies_most;
};

/* cuda_program.c */
bool cuda_supports(const struct oato_device *base, const struct oato_op *op);
const char *cuda_numerics(const struct oato_device *base, const struct oato_op *op,
                          enum numerics_choice choice);
uint64_t cuda_workspace_bytes(const struct oato_device *base, const struct oato_op *op,
                              const struct op_size *size);
oato_status cuda_compile(struct oato_device *base, const struct program *p, int self,
                         struct compiled **out, struct oato_error *err);
void cuda_release(struct oato_device *base, struct compiled *c);
oato_status cuda_submit(struct oato_device *base, struct compiled *c, const struct step *step,
                        struct oato_error *err);
oato_status cuda_finish(struct oato_device *base, struct oato_error *err);
/* Queue's thread: sends the step's arrays ahead of its first record. */
oato_status cuda_step_upload(struct cuda_device *d, struct compiled *c, const struct step *step,
                             struct oato_error *err);

/* cuda_launch.c. Finds the kernels of a record; then, on the queue's thread, launches them. */
oato_status cuda_record_kernels(const struct cuda_device *d, const struct program_record *r,
                                struct cuda_record *out, struct oato_error *err);
oato_status cuda_run_record(struct cuda_device *d, const struct compiled *c, uint32_t index,
                            const struct step *step, struct oato_error *err);
/* cuda_join.c. Finds records whose work one kernel can do together. */
oato_status cuda_join_records(const struct cuda_device *d, struct compiled *c,
                              struct oato_error *err);
/* cuda_graph.c. Whether this GPU and its driver let kernels overlap, in streams and in graphs. */
bool cuda_can_overlap(struct cuda_device *d);
/* Queue's thread: a step begins; then the records from index on that were launched as one graph,
 * the first one's waits being over: how many, 0: launch this one by itself. */
oato_status cuda_graphs_create(struct compiled *c, struct oato_error *err);
void cuda_graphs_free(struct cuda_device *d, struct compiled *c);
void cuda_graphs_begin(struct cuda_device *d, struct compiled *c, const struct step *step);
uint32_t cuda_graphs_run(struct cuda_device *d, struct compiled *c, uint32_t index,
                         const struct step *step, cu_result *result);
/* True where tensor cores compute the product: always for one class of arithmetic, never for the
 * other, so that a row's bits do not depend on how many there are. */
bool cuda_takes_matrix(const struct cuda_device *d, const struct oato_op *op,
                       enum numerics_choice choice);
/* True where cuBLAS does it in their place, in steps of many rows; opens the library when only that
 * is still to be known. */
bool cuda_takes_blas(const struct cuda_device *d, const struct oato_op *op,
                     enum numerics_choice choice);
/* The same of attention: tensor cores on tiles of queries, for the prefill class, types of KV and
 * dimensions of heads that they take. */
bool cuda_takes_tile(const struct oato_op *op, enum numerics_choice choice);
/* For how many segments of a context a step's launches have room; a few more than the longest has.
 */
int32_t cuda_step_segments(const struct step *step);
/* How many times ATTENTION_TILE_SPAN positions its longest context has, a part counting as one. */
int32_t cuda_step_spans(const struct step *step);
/* True for types whose products take packed bytes. */
bool cuda_has_blocks(oato_dtype dtype);
/* False: of this kind (one that op.h knows) there is no kernel here. */
bool cuda_has_kernel(const struct oato_op *op);
/* Scratch memory of one run of the operator, rows at most. */
uint64_t cuda_op_workspace(const struct oato_op *op, int32_t rows);
/* Where cuBLAS computes it, beside what cuBLAS itself wants. */
uint64_t cuda_library_workspace(const struct cuda_device *d, const struct oato_op *op,
                                int64_t rows);

#endif
