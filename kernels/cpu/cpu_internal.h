/*
 * cpu_internal.h - between the files of kernels/cpu, and for kernels/sim, which computes with the
 * very same kernels. Not for other rooms.
 */
#ifndef OATO_CPU_INTERNAL_H
#define OATO_CPU_INTERNAL_H

#include "kernels/device.h"

/* UNROLL has the compiler unroll the loop behind it, whose length it knows: what the loop indexes
 * then stays in registers. clang ignores gcc's pragma and is three times slower without its own.
 * UNROLLED is such a loop, for i of [0, n). */
#define PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define UNROLL PRAGMA(clang loop unroll(full))
#else
#define UNROLL PRAGMA(GCC unroll 16)
#endif
#define UNROLLED(i, n) UNROLL for (int i = 0; i < (n); i++) // NOLINT(bugprone-macro-parentheses)

/* Arenas, pages and prepared weights are bytes; these say where they hold float32. */
static inline float *floats(void *p)
{
    return p;
}
static inline const float *const_floats(const void *p)
{
    return p;
}

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
bool cpu_supports(const struct cpu_kernels *k, const struct oato_op *op);
const char *cpu_numerics(const struct cpu_kernels *k, const struct oato_op *op,
                         enum numerics_choice choice);
uint64_t cpu_prepared_bytes(const struct cpu_kernels *k, oato_dtype dtype, int64_t rows,
                            int64_t cols, enum weight_use use);
uint64_t cpu_workspace_bytes(const struct cpu_kernels *k, const struct oato_op *op,
                             const struct op_size *size, int n_threads);

struct oato_weight {
    oato_dtype dtype; /* of the source */
    enum weight_use use;
    int64_t rows, k;
    const uint8_t *data; /* prepared, or (WEIGHT_LOOKUP on the host) the GGUF's own rows */
    uint64_t bytes;      /* owned bytes behind data; 0 when borrowed */
    /* WEIGHT_LOOKUP: a matrix prepared from the very rows, read in place of data; NULL: none */
    const struct oato_weight *rows_of;
};

/* Fills w->data (already allocated, w->bytes = cpu_prepared_bytes) for source rows
 * [row_begin + begin, row_begin + end): callers may divide the rows among threads at multiples
 * of 64. */
void cpu_prepare_rows(const struct cpu_kernels *k, const struct weight_source *source,
                      struct oato_weight *w, int64_t begin, int64_t end);
/* Whole rows of whole blocks of a known type. */
bool cpu_source_good(const struct weight_source *s);
/* Rows [begin, end) of the source have been read: the pages of its file may leave the memory. */
void cpu_source_release(const struct weight_source *s, int64_t begin, int64_t end);

/* Paged KV of the layers on one device. Layer l, page p, head h has a block of K at
 * data + layer_offset[l] + ((p * 2 + 0) * kv_heads + h) * kv_block_bytes, and of V with + 1.
 * K is dimension-major, [head_dim][64]: scores of neighbouring positions are the lanes of a
 * vector. V is position-major, [64][head_dim]: so are dimensions of a result. Q8_0 keeps the bytes
 * of a block so, and behind them, of K and of V, the F16 scales [head_dim / 32][64]. */
struct kv_cache {
    int32_t n_layers, pages;
    oato_dtype dtype;
    struct kv_layer_shape *layers;
    uint64_t *layer_offset; /* bytes */
    uint8_t *data;
    uint64_t bytes;
};
/* layer_offset for each layer and the total; false on overflow. Behind the last block are
 * KV_PADDING bytes that may be read. */
bool kv_cache_layout(struct kv_cache *kv, uint64_t *bytes);

enum { KV_PADDING = 64 };

static inline uint64_t kv_block_bytes(oato_dtype dtype, int64_t head_dim)
{
    size_t row = 0;
    dtype_row_bytes(dtype, head_dim, &row);
    return row * KV_PAGE_POSITIONS;
}

static inline bool kv_dtype_known(oato_dtype dtype)
{
    return dtype == DT_F16 || dtype == DT_F32 || dtype == DT_Q8_0;
}

/* Of K (which 0) or V (1). */
static inline uint8_t *kv_block(const struct kv_cache *kv, int32_t layer, int64_t page, int which,
                                int64_t head)
{
    const struct kv_layer_shape *s = &kv->layers[layer];
    const int64_t block = (page * 2 + which) * s->kv_heads + head;
    return kv->data + kv->layer_offset[layer] +
           (uint64_t)block * kv_block_bytes(kv->dtype, s->head_dim);
}

/* A barrier for the threads of one record; n_threads = 1 passes at once. */
struct cpu_barrier {
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t phase; /* also the futex word */
    _Atomic uint32_t sleepers;
    int n;                    /* may be changed while nobody is inside */
    _Atomic uint64_t late_ns; /* that threads waited in all after the time that a wait may take */
};
/* Memory that a thread will read soon. */
struct read_ahead {
    const uint8_t *from;
    uint64_t bytes;
};
void cpu_barrier_init(struct cpu_barrier *b, int n);
void cpu_barrier_wait(struct cpu_barrier *b);
/* The same; whoever has to wait fetches to its L2 meanwhile. */
void cpu_barrier_wait_fetching(struct cpu_barrier *b, struct read_ahead next);
/* The same, where a thread may come late because it waits for another device. */
void cpu_barrier_wait_device(struct cpu_barrier *b, struct read_ahead next);
/* Times that the threads have met: the same for all of them until they meet again. */
uint32_t cpu_barrier_phase(const struct cpu_barrier *b);

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
    struct kv_cache *kv;
    uint8_t *workspace; /* shared by the threads, 64-byte aligned; zero before the first record */
    uint64_t workspace_bytes;
    struct rope_table *rope; /* may be NULL: then each ROPE computes its own angles */
};

/* The share of thread `thread` of a RECORD_RUN record (not the waits, signals or copies). All
 * threads of the barrier call it with the same arguments; outputs are complete once all have
 * returned and met at the barrier, which the caller does between records. */
void cpu_run_record(const struct cpu_context *c, const struct program_record *r,
                    const struct step *step, int thread, struct cpu_barrier *barrier);

/* What the thread will read first of the record's weights, when memory is what limits the record;
 * else nothing. */
struct read_ahead cpu_record_reads(const struct cpu_context *c, const struct program_record *r,
                                   const struct step *step, int thread, int n_threads);

/* True when thread 0 alone does this record in this step, because it is too small to share: no
 * barrier is needed between two such records. */
bool cpu_record_is_solo(const struct program_record *r, const struct step *step);
/* Rows that the record computes in this step. */
int32_t cpu_record_rows(const struct program_record *r, const struct step *step);

/* ------------------------------------------------------------------- the dispatch table --- */

/* Work of one thread on a matrix product: y = W x for rows [begin, end) of W and all T columns. */
struct matrix_job {
    const struct oato_weight *w;
    const float *x;        /* T rows of k */
    const uint8_t *packed; /* T packed rows, pack_stride bytes apart; NULL when pack_bytes is 0 */
    uint64_t pack_stride;
    int64_t T;
    const uint8_t *next; /* weights that the thread reads after these, or NULL: not known */
    float *y;            /* of row 0 of the weight and column 0 */
    int64_t y_stride;    /* floats from one column to the next */
};

/* Work of one thread on attention: the tokens [token_begin, token_end) of one sequence under one
 * KV head, at most max(ATTENTION_QUERIES, heads of the group) queries. They are numbered token by
 * token, head by head of the group; positions do not fall from a token to the next. */
struct attention_job {
    const struct oato_op *op;
    const struct kv_cache *kv;
    int32_t kv_layer;
    const struct step_seq *seq;
    const int32_t *token_position; /* of the step */
    int32_t token_begin, token_end;
    int32_t kv_head;
    const float *q; /* token 0 of the step, op->n floats each */
    float *out;
    /* Only these segments of positions, as partial results: see ATTENTION_SEGMENT. partial NULL:
     * all of them, merged, to out. */
    int64_t segment_begin, segment_end;
    float *partial; /* [segment - segment_begin][query][attention_partial_floats] */
};

enum {
    ATTENTION_BLOCK = KV_PAGE_POSITIONS, /* softmax is online in blocks of these positions */
    ATTENTION_SEGMENT = 256, /* blocks of a segment are summed up first, then segments in order */
    ATTENTION_QUERIES = 48,  /* of an attention_job, unless one token has more */
    HEAD_DIM_MAX = 1024,     /* cpu_supports says no beyond */
    EXPERTS_MAX = 4096,      /* likewise */
    MATRIX_ROWS = 64,        /* row ranges of matrix_job begin at multiples */
};

/* Values of a head with room for whole vectors. */
static inline int64_t attention_row_floats(int64_t head_dim)
{
    return (head_dim + 15) & ~(int64_t)15;
}
/* The largest score, the sum of exponentials relative to it, and the values weighted by them, of
 * one query in one segment. */
static inline int64_t attention_partial_floats(int64_t head_dim)
{
    return 2 + attention_row_floats(head_dim);
}

/* One class of arithmetic of matrix products: the layout of the packed input, and the product. The
 * classes of a table share the prepared weights. */
struct matrix_class {
    const char *(*numerics)(oato_dtype dtype);
    uint64_t (*pack_bytes)(oato_dtype dtype, int64_t k); /* 0: takes float32 as it is */
    void (*pack)(oato_dtype dtype, int64_t k, const float *x, uint8_t *out);
    uint64_t (*scratch_bytes)(oato_dtype dtype, int64_t k);
    void (*enter)(int64_t T); /* or NULL: a thread, before its first rows of an operator */
    void (*rows)(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch);
    void (*leave)(void); /* after its last */
    int64_t panel_rows;  /* best computed in one call of rows, a multiple of MATRIX_ROWS */
};

/* One row an instruction set. Shapes are arguments, nothing here allocates or keeps state. */
struct cpu_kernels {
    const char *name;
    const char *layout; /* id of the prepared weights' layout, new with every change of it; NULL:
                           they are not to be kept in files */
    /* Layout of the weights of matrix products; both may be the same. */
    const struct matrix_class *matrix[NUMERICS_CHOICES];
    uint64_t (*matrix_bytes)(oato_dtype dtype, int64_t rows, int64_t k);
    void (*matrix_prepare)(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                           int64_t end);
    /* A row of a prepared matrix with the bits of quants_row; out NULL: nothing is written. False
     * when this type's rows cannot be read back; may be NULL: none can. */
    bool (*matrix_row)(const struct oato_weight *w, int64_t row, float *out);

    uint64_t (*attention_scratch_bytes)(const struct oato_op *op);
    void (*attention)(const struct attention_job *j, uint8_t *scratch);
    /* out of `heads` heads of one token from n segments' partial results, in their order; from one
     * segment to the next are `stride` floats */
    void (*attention_merge)(const float *partial, int64_t stride, int64_t n, int32_t heads,
                            int32_t head_dim, float *out);

    /* Rows of n floats; y may be one of the inputs. */
    void (*rms_norm)(float *y, const float *x, const float *w, int64_t n, float eps);
    void (*add)(float *y, const float *a, const float *b, int64_t n);
    void (*swiglu)(float *y, const float *gate, const float *up, int64_t n);
    void (*to_f16)(uint16_t *y, const float *x, int64_t n);
};

/* No library computes for a CPU. */
static inline const struct matrix_class *cpu_matrix_class(const struct cpu_kernels *k, int choice)
{
    return k->matrix[choice == NUMERICS_LIBRARY ? NUMERICS_PREFILL : choice];
}

extern const struct cpu_kernels cpu_kernels_ref, cpu_kernels_avx2, cpu_kernels_avxvnni,
    cpu_kernels_avx512, cpu_kernels_amx, cpu_kernels_neon;

/* Dequantises k elements of a GGUF row. */
void quants_row(oato_dtype dtype, const uint8_t *row, int64_t k, float *out);
bool quants_known(oato_dtype dtype);
/* The eight 6-bit scales and minima of a Q4_K or Q5_K block from its 12 packed bytes. */
void quants_k_scales(const uint8_t *p, uint8_t scale[8], uint8_t min[8]);
/* Element i of a block: -32 .. 31, 0 .. 3, -4 .. 3. */
int quants_q6_k_value(const uint8_t *block, int i);
int quants_q2_k_value(const uint8_t *block, int i);
int quants_q3_k_value(const uint8_t *block, int i);
/* The signed scales of a block. */
void quants_q3_k_scales(const uint8_t *block, int8_t scale[16]);
void quants_iq4_xs_scales(const uint8_t *block, int8_t scale[8]);
/* What the nibbles of IQ4_NL, IQ4_XS and MXFP4 stand for. */
extern const int8_t quants_iq4_values[16], quants_mxfp4_values[16];

/* ------------------------------------------------------------------------- thread pool ---- */

struct cpu_pool;
typedef void (*cpu_pool_fn)(void *arg, int thread);

/* Threads 1 .. n-1; the caller of cpu_pool_run is thread 0. */
oato_status cpu_pool_create(int n_threads, struct cpu_pool **out, struct oato_error *err);
void cpu_pool_free(struct cpu_pool *p);
/* Runs fn on all threads; returns when all are done. */
void cpu_pool_run(struct cpu_pool *p, cpu_pool_fn fn, void *arg);
/* On the first `threads` of them, the caller included. */
void cpu_pool_run_some(struct cpu_pool *p, int threads, cpu_pool_fn fn, void *arg);
int cpu_pool_threads(const struct cpu_pool *p);
/* Inside a run: the thread has a core of its own until unbind is given what bind returned (NULL: it
 * is not bound, for there are not as many cores as threads, or the system says no). */
struct hwloc_bitmap_s *cpu_pool_bind(const struct cpu_pool *p, int thread);
void cpu_pool_unbind(const struct cpu_pool *p, struct hwloc_bitmap_s *before);
/* Untouched memory that all threads will read: over the NUMA nodes, page by page. */
void cpu_pool_spread(const struct cpu_pool *p, void *data, uint64_t bytes);
/* Physical cores that this process may use. */
int cpu_physical_cores(void);

/* How many threads a step has: all, or fewer while others want the same cores (crowd.c). */
struct crowd {
    int32_t most, threads;
    uint64_t pause_ns, again_ns; /* until more of them are tried, and when */
    int64_t switches;            /* of this process, at the last look */
};
void crowd_init(struct crowd *c, int32_t most);
/* After a step of c->threads that took took_ns, of which they waited late_ns in all for each other;
 * switches: how often this process had to leave a core so far. */
void crowd_note(struct crowd *c, uint64_t now_ns, uint64_t took_ns, uint64_t late_ns,
                int64_t switches);
/* For crowd_note. */
int64_t crowd_switches(void);

/* Flushes denormals to zero in the calling thread. Returns the old state for float_state_set. */
uint32_t float_state_fast(void);
void float_state_set(uint32_t state);

#endif
