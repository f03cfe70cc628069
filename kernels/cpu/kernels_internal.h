/*
 * kernels_internal.h - shared by the files of kernels/cpu: the kernel table and the threads.
 */
#ifndef OATO_KERNELS_INTERNAL_H
#define OATO_KERNELS_INTERNAL_H

#include "kernels/cpu/cpu_kernels.h"

#include <math.h>

/* UNROLL makes the compiler unroll the next loop, whose length is constant: arrays that the loop
 * indexes then stay in registers. clang ignores gcc's pragma and is three times slower without its
 * own. UNROLLED is such a loop, for i of [0, n). VECTOR_INLINE: of functions of vectors, which must
 * not be called. */
#define PRAGMA(text) _Pragma(#text)
#ifdef __clang__
#define UNROLL PRAGMA(clang loop unroll(full))
#else
#define UNROLL PRAGMA(GCC unroll 16)
#endif
#define VECTOR_INLINE  static inline __attribute__((always_inline))
#define UNROLLED(i, n) UNROLL for (int i = 0; i < (n); i++) // NOLINT(bugprone-macro-parentheses)

/* A barrier for the threads of one record; n_threads = 1 passes at once. */
struct cpu_barrier {
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t phase; /* also the futex word */
    _Atomic uint32_t sleepers;
    int n;                    /* may be changed while no thread is inside */
    _Atomic uint64_t late_ns; /* total time that threads waited beyond what a wait should take */
};
/* Memory that a thread will read soon. */
struct read_ahead {
    const uint8_t *from;
    uint64_t bytes;
};
void cpu_barrier_init(struct cpu_barrier *b, int n);
void cpu_barrier_wait(struct cpu_barrier *b);
/* The same; a waiting thread prefetches `next` to its L2 meanwhile. */
void cpu_barrier_wait_fetching(struct cpu_barrier *b, struct read_ahead next);
/* The same, for when a thread may be late because it waits for another device. */
void cpu_barrier_wait_device(struct cpu_barrier *b, struct read_ahead next);
/* How often the threads have met; constant for all of them until they meet again. */
uint32_t cpu_barrier_phase(const struct cpu_barrier *b);

/* Runs thread `thread`'s share of a RECORD_RUN record (not its waits, signals or copies). All
 * threads of the barrier call it with the same arguments; outputs are complete once all have
 * returned and met at the barrier, which the caller does between records. */
void cpu_run_record(const struct cpu_context *c, const struct program_record *r,
                    const struct step *step, int thread, struct cpu_barrier *barrier);

/* The first of the record's weights that the thread will read, if the record is memory-bound; else
 * nothing. */
struct read_ahead cpu_record_reads(const struct cpu_context *c, const struct program_record *r,
                                   const struct step *step, int thread, int n_threads);

/* True when the record is too small to share, so that thread 0 runs it alone: no barrier is needed
 * between two such records. */
bool cpu_record_is_solo(const struct program_record *r, const struct step *step);

/* ------------------------------------------------------------------- the dispatch table --- */

/* Work of one thread on a matrix product: y = W x for rows [begin, end) of W and all T columns. */
struct matrix_job {
    const struct oato_weight *w;
    const float *x;        /* T rows of k */
    const uint8_t *packed; /* T packed rows, pack_stride bytes apart; NULL when pack_bytes is 0 */
    uint64_t pack_stride;
    int64_t T;
    const uint8_t *next; /* weights that the thread reads after these; NULL: unknown */
    float *y;            /* of row 0 of the weight and column 0 */
    int64_t y_stride;    /* floats from one column to the next */
};

/* Work of one thread on attention: the tokens [token_begin, token_end) of one sequence under one KV
 * head, at most max(ATTENTION_QUERIES, heads of the group) queries. Queries are numbered by token,
 * then by head of the group; positions never decrease from token to token. */
struct attention_job {
    const struct oato_op *op;
    const struct kv_cache *kv;
    int32_t kv_layer;
    const struct step_seq *seq;
    const int32_t *token_position; /* of the step */
    int32_t token_begin, token_end;
    int32_t kv_head;
    const float *q; /* token 0 of the step, op->k floats each */
    float *out;     /* op->n floats each */
    /* Compute only these segments of positions and store partial results, see ATTENTION_SEGMENT.
     * partial NULL: all segments, merged, to out. */
    int64_t segment_begin, segment_end;
    float *partial;     /* [segment - segment_begin][query][attention_partial_floats] */
    const float *sinks; /* of the KV head's first head of q on; NULL: none */
};

enum {
    ATTENTION_BLOCK = KV_PAGE_POSITIONS, /* softmax is online in blocks of these positions */
    ATTENTION_QUERIES = 48,              /* of an attention_job, unless one token has more */
    MATRIX_ROWS = 64,                    /* row ranges of matrix_job begin at multiples of this */
};

/* The first position that a query at `position` sees. */
static inline int64_t attention_first(const struct oato_op *op, int64_t position)
{
    if (op->window && op->chunked)
        return position / op->window * op->window;
    return op->window ? max_i64(0, position + 1 - op->window) : 0;
}
/* n rows of WEIGHT_ROWS that an ascending list names. */
struct rows_list {
    const int32_t *list;
    int64_t n, after; /* the list goes on with `after` rows, which will be needed next */
    bool first;       /* nothing has asked for these rows yet */
};

/* How the weights of matrix products are prepared. */
struct matrix_layout {
    const char
        *id;   /* must change whenever the layout does; NULL: weights must not be saved in files */
    int lanes; /* rows that are interleaved, the first argument of these: */
    uint64_t (*bytes)(int lanes, oato_dtype dtype, int64_t rows, int64_t k);
    void (*prepare)(int lanes, const struct weight_source *s, struct oato_weight *w, int64_t begin,
                    int64_t end);
    /* WEIGHT_ROWS: bytes from one row of k elements to the next, and their preparation. */
    uint64_t (*rows_stride)(oato_dtype dtype, int64_t k);
    void (*rows_prepare)(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                         int64_t end);
    /* Listed rows of w as a matrix: to panel->data. */
    void (*rows_panel)(int lanes, const struct oato_weight *w, const struct rows_list *rows,
                       struct oato_weight *panel);
};

/* One class of arithmetic of matrix products: the layout of the packed input, and the product. The
 * classes of a table share the prepared weights. */
struct matrix_class {
    const char *numerics;
    uint64_t (*pack_bytes)(int64_t k); /* NULL: takes float32 as it is */
    void (*pack)(int64_t k, const float *x, uint8_t *out);
    uint64_t scratch_bytes; /* of a thread; or, where it depends on the weights: */
    uint64_t (*scratch_bytes_of)(oato_dtype dtype, int64_t k);
    void (*enter)(int64_t T); /* or NULL; per thread, before its first rows of an operator */
    void (*rows)(const struct matrix_job *j, int64_t begin, int64_t end, uint8_t *scratch);
    void (*leave)(void); /* and after its last rows */
    /* The product of listed rows of j->w as they lie; j->y is of the list's first row, the others
     * follow. False: not for this type or T, so that rows_panel of the layout is needed. NULL: for
     * none. */
    bool (*listed)(const struct matrix_job *j, const struct rows_list *rows);
    int64_t panel_rows; /* preferred number of rows per call of `rows`, a multiple of MATRIX_ROWS */
};

struct attention_kernels {
    uint64_t (*scratch_bytes)(const struct oato_op *op);
    void (*run)(const struct attention_job *j, uint8_t *scratch);
    /* Merges n segments' partial results, in order, to `out` for `heads` heads of one token;
     * segments are `stride` floats apart. sinks: of these heads, or NULL. */
    void (*merge)(const float *partial, int64_t stride, int64_t n, int32_t heads, int32_t v_dim,
                  const float *sinks, float *out);
};

static inline float softplus(float x)
{
    return activation_of(ACT_SOFTPLUS, 0, x);
}

/* Gates are few: no vectors. */
static inline void softplus_row(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = softplus(gate[i]) * (up ? up[i] : 1);
}

/* On rows of n floats; y may be one of the inputs. */
struct row_kernels {
    void (*rms_norm)(float *y, const float *x, const float *w, int64_t n, float eps);
    /* (x - mean if it is centred) / rms of that * w + bias; w, bias NULL: none */
    void (*layer_norm)(float *y, const float *x, const float *w, const float *bias, int64_t n,
                       float eps, bool centred);
    void (*add)(float *y, const float *a, const float *b, int64_t n);
    /* y = a(gate) * up; up NULL: a(gate). scale: of those activations that have one. */
    void (*gate)(enum activation a, float scale, float *y, const float *gate, const float *up,
                 int64_t n);
    void (*to_f16)(uint16_t *y, const float *x, int64_t n);
    /* Which of the n elements of x (+ bias, unless that is NULL) are above the threshold: their
     * numbers go to list, which has n places. Returns how many there are. */
    int64_t (*above)(float *list, const float *x, const float *bias, int64_t n, float threshold);
    /* y += factor * w, for n elements w of a type, whole blocks at `from`; the bits are those of
     * adding quants_row's. room: n floats. */
    void (*add_scaled)(float *y, float factor, oato_dtype dtype, const uint8_t *from, int64_t n,
                       float *room);
};

/* Work of one thread on a sparse MUL_MAT: y = W x for all T rows of x, by the columns of W where
 * they are not near 0. */
struct columns_job {
    const struct oato_weight *w; /* WEIGHT_COLUMNS */
    const float *x;              /* T rows of w->k */
    int64_t T;
    float threshold; /* of |x|, see op.h */
    float *y;        /* of row 0 of the weight; rows of y are y_stride floats apart */
    int64_t y_stride;
};

/* The same bits whatever T, the rows that a call computes, and whether zeros are skipped. */
struct columns_kernels {
    const char *(*numerics)(oato_dtype dtype);
    uint64_t (*scratch_bytes)(oato_dtype dtype, int64_t k, int64_t T);
    /* Rows [begin, end) of the weight, at multiples of 64. */
    void (*run)(const struct columns_job *j, int64_t begin, int64_t end, uint8_t *scratch);
};

/* Whether an element counts: NaN does. */
static inline bool is_active(float x, float threshold)
{
    return threshold < 0 || !(fabsf(x) <= threshold);
}

enum { STATE_COLUMNS = 32 }; /* of a block of a state */

/* Work on the state of one sequence, T tokens. */
struct state_job {
    const struct oato_op *op;
    const float *in[3]; /* at the sequence's first token */
    const float *weight[2];
    float *state, *out;
    int64_t T;
    bool fresh; /* the state is zero, whatever is there */
};

/* Columns that a block does not go beyond: a head's, or single channels with the same B and C. */
static inline int64_t state_columns(const struct oato_op *op)
{
    return op->kind == OP_SSM && op->per_channel ? op->heads / op->kv_heads : op->head_dim;
}

/* On blocks [begin, end). A block is STATE_COLUMNS channels of a convolution, or as many columns of
 * one head's state or of one group's channels. */
typedef void (*state_kernel)(const struct state_job *j, int64_t begin, int64_t end);
struct state_kernels {
    state_kernel conv, delta, ssm;
};

/* One row per instruction set. Shapes are arguments; nothing here allocates or keeps state. */
struct cpu_kernels {
    const char *name;
    const struct matrix_layout *layout;
    /* Of weights of a type, for NUMERICS_DECODE or NUMERICS_PREFILL, which may be the same. */
    const struct matrix_class *(*matrix)(oato_dtype dtype, enum numerics_choice choice);
    const struct attention_kernels *attention;
    const struct row_kernels *rows;
    const struct state_kernels *state;
    const struct columns_kernels *columns;
};

/* The CPU has no library class. */
static inline const struct matrix_class *cpu_matrix_class(const struct cpu_kernels *k,
                                                          oato_dtype dtype, int choice)
{
    return k->matrix(dtype, choice == NUMERICS_DECODE ? NUMERICS_DECODE : NUMERICS_PREFILL);
}

/* Bytes of a row of the packed input; 0 when there is none. */
static inline uint64_t matrix_pack_bytes(const struct matrix_class *c, int64_t k)
{
    return c->pack_bytes ? c->pack_bytes(k) : 0;
}

static inline uint64_t matrix_scratch_bytes(const struct matrix_class *c, oato_dtype dtype,
                                            int64_t k)
{
    return c->scratch_bytes_of ? c->scratch_bytes_of(dtype, k) : c->scratch_bytes;
}

int64_t ref_above(float *list, const float *x, const float *bias, int64_t n, float threshold);
void ref_add_scaled(float *y, float factor, oato_dtype dtype, const uint8_t *from, int64_t n,
                    float *room);
extern const struct attention_kernels ref_attention; /* also of levels without their own */
extern const struct columns_kernels ref_columns;
extern const struct state_kernels ref_state, avx2_state, avx512_state;
extern const struct cpu_kernels cpu_kernels_ref, cpu_kernels_avx2, cpu_kernels_avxvnni,
    cpu_kernels_avx512, cpu_kernels_amx, cpu_kernels_neon;

/* ------------------------------------------------------------------------- thread pool ---- */

/* A run's epoch is a serial number and, below it, its threads less one. */
enum { CPU_THREADS_MAX = 1024 };

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
/* Within a run: binds the thread to its own core until unbind gets the returned value. NULL: not
 * bound, because there are fewer cores than threads or the system refused. */
struct hwloc_bitmap_s *cpu_pool_bind(const struct cpu_pool *p, int thread);
void cpu_pool_unbind(const struct cpu_pool *p, struct hwloc_bitmap_s *before);
/* Spreads untouched memory that all threads will read over the NUMA nodes, page by page. */
void cpu_pool_spread(const struct cpu_pool *p, void *data, uint64_t bytes);
/* Physical cores that this process may use. */
int cpu_physical_cores(void);

/* How many threads a step uses: all, or fewer while other processes use the same cores (crowd.c).
 * */
struct crowd {
    int32_t most, threads;
    uint64_t pause_ns, again_ns; /* how long until more threads are tried, and the time of that */
    int64_t switches;            /* of this process, at the last look */
};
void crowd_init(struct crowd *c, int32_t most);
/* Called after a step with c->threads threads that took took_ns, in which they waited late_ns in
 * total for each other; switches: how often this process was preempted so far. */
void crowd_note(struct crowd *c, uint64_t now_ns, uint64_t took_ns, uint64_t late_ns,
                int64_t switches);
/* The `switches` argument for crowd_note. */
int64_t crowd_switches(void);

#endif
