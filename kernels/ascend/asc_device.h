/*
 * asc_device.h - the ascend device as its files see it.
 *
 *   asc_load.c     the libraries          asc_device.c   the table, opening, what it is
 *   asc_memory.c   memory, copies         asc_weights.c  weights in their layout
 *   asc_emit.c     tensors and calls      asc_kinds.c    a row for each kind of operators,
 *   asc_program.c  compiling, arrays      asc_op_*.c     and what the rows name
 *   asc_queue.c    the queue's thread     asc_kv.c       KV and states
 *   asc_graph.c    captured steps         asc_measure.c  clocks, rates
 *
 * A record becomes calls of aclnn operators by its row's `emit`, on the queue's thread, each time
 * it runs: executors are single-use. Where a run of records is captured as a graph, the calls are
 * made once for steps of one shape. So `emit` may depend on the record, the number of rows, the
 * sequences' numbers of queries and on e->kv_pages, but on nothing else of the step: what varies
 * beyond that is in arrays of device memory, which `prepare` asks for and which are filled before
 * each step.
 */
#ifndef OATO_ASC_DEVICE_H
#define OATO_ASC_DEVICE_H

#include "kernels/ascend/asc_api.h"
#include "kernels/core/far_device.h"
#include "kernels/core/patience.h"
#include "kernels/core/weights.h"

struct asc_device;
struct asc_emit;

enum { ASC_ALIGN = 64 /* of memory and of planes of weights; CANN wants 32 */ };

/* ------------------------------------------------------------------------------- weights -- */

enum asc_form {
    ASC_FORM_NONE,
    ASC_FORM_F32,
    ASC_FORM_F16,
    ASC_FORM_BF16,
    ASC_FORM_Q8,
    ASC_FORM_Q4
};
enum { ASC_GROUP = 32 /* elements with one scale */ };

/* A prepared weight: rows x k values row after row and, of Q8 and Q4, rows x k / 32 scales of F16.
 * Q8: int8. Q4: two's complement nibbles, the even element low. */
struct asc_matrix {
    enum asc_form form;
    int64_t rows, k;
    uint8_t *values, *scales; /* device addresses; scales NULL: none */
};
/* The form that weights of the type have on this device; NONE: it has none. */
enum asc_form asc_form_of(const struct asc_device *d, oato_dtype dtype, enum weight_use use);
/* Whether they are not what the file has, but Q8_0 made of it. */
bool asc_requantises(const struct asc_device *d, oato_dtype dtype);
enum asc_type asc_form_type(enum asc_form form);      /* of its values */
uint64_t asc_form_row(enum asc_form form, int64_t k); /* bytes of a row of them */
/* Where scales begin: bytes from the first value. */
uint64_t asc_scales_at(enum asc_form form, int64_t rows, int64_t k);

/* ------------------------------------------------------------------------------ programs -- */

/* An array in device memory that is filled anew for each step: the ids of its tokens, cosines of
 * its positions, a mask. Records whose arrays are `same` share one. */
struct asc_array_kind {
    /* Bytes that it has at most in the program's steps of at most kv_pages pages a sequence. */
    uint64_t (*bytes)(const struct compiled *c, const struct program_record *r, int32_t kv_pages);
    /* Fills it, in page-locked host memory; returns the bytes that are to be sent. */
    uint64_t (*fill)(const struct compiled *c, const struct program_record *r,
                     const struct step *step, int32_t kv_pages, void *to);
    /* NULL: all arrays of the kind are the same. */
    bool (*same)(const struct program_record *a, const struct program_record *b);
};
/* Of kinds that several rows use: int32 each. asc_arrays.c */
extern const struct asc_array_kind asc_array_ids, /* [n_tokens] ids of tokens */
    asc_array_positions,                          /* [n_tokens] their positions */
    asc_array_rows;                               /* [n_rows] tokens whose logits are wanted */

enum { ASC_RECORD_ARRAYS = 4 };

struct asc_record {
    uint8_t array[ASC_RECORD_ARRAYS]; /* numbers of arrays that `prepare` asked for */
    void *constant;                   /* device memory from asc_constant */
    void *host;                       /* what `fill` needs, by malloc; freed with the program */
};

struct asc_array {
    const struct asc_array_kind *kind;
    const struct program_record *record; /* the first that asked for it */
    uint64_t offset, bytes;              /* among the step's arrays */
};
enum { ASC_ARRAYS = 32 };

/* A program compiled by this device. */
struct compiled {
    struct compiled *next;
    const struct program *program; /* borrowed */
    struct asc_device *device;
    int self;
    struct asc_record *records; /* as many as the program's */
    struct asc_array arrays[ASC_ARRAYS];
    int n_arrays;
    uint8_t *step_memory, *host_step; /* the arrays: device, page-locked host */
    uint64_t step_bytes;
    int32_t kv_pages_most;
    struct asc_graphs *graphs; /* asc_graph.c */
    /* Page-locked memory that copies go through, at the host arena's offsets from mirror_at on;
     * NULL: the host arena is page-locked itself */
    uint8_t *mirror;
    uint64_t mirror_at, mirror_bytes;
};

/* For `prepare`: the record reads an array of the kind, whose number goes to *number. */
oato_status asc_need_array(struct compiled *c, uint32_t index, const struct asc_array_kind *kind,
                           uint8_t *number, struct oato_error *err);
/* For `prepare`: copies host bytes to device memory of the program's, at records[index].constant.
 */
oato_status asc_constant(struct compiled *c, uint32_t index, const void *bytes, uint64_t n,
                         struct oato_error *err);

/* The pages that the block tables of a step are padded to: what `emit` and `fill` get. A power of
 * two up to 16 pages, then a multiple of 16: a graph serves as many steps. */
int32_t asc_kv_pages(const struct compiled *c, const struct step *step);

/* ------------------------------------------------------------------------------- calls ---- */

enum { ASC_HELD = 96, ASC_MOST_DIMS = 8 };

/* A record that becomes calls. Once something has failed, all that follows does nothing, so that
 * `emit` need not look. dry: calls are checked and priced but not run, and addresses mean nothing;
 * then step is NULL, rows belong in equal shares to the sequences, and without a program c is NULL
 * and of the record only op, counts, widths and types are set. */
struct asc_emit {
    struct asc_device *d;
    const struct asc_api *api;
    struct compiled *c;
    const struct program_record *r;
    const struct asc_record *record;
    const struct step *step;
    int32_t rows;     /* of the record, in this step */
    int32_t seqs;     /* at least 1 */
    int32_t kv_pages; /* see asc_kv_pages */
    bool dry, captures, failed;
    asc_stream stream;
    struct oato_error error;
    uint64_t workspace; /* of the call that is being made */
    asc_executor *executor;
    uint64_t room, room_most, workspace_most; /* bytes of temporaries in use; the most of each */
    struct {
        void *handle;
        uint8_t kind;
    } held[ASC_HELD]; /* to be destroyed when the record is done */
    int n_held;
};

/* A tensor of the device's memory; strides count elements, asc_tensor_at's follow each other. All
 * handles are destroyed when the record is done; those in a list with the list. */
asc_tensor *asc_tensor_at(struct asc_emit *e, enum asc_type type, const void *address, int n,
                          const int64_t *dims);
asc_tensor *asc_view_at(struct asc_emit *e, enum asc_type type, const void *address, int n,
                        const int64_t *dims, const int64_t *strides);
asc_scalar *asc_number(struct asc_emit *e, float value); /* a scalar of F32 */
asc_ints *asc_int_array(struct asc_emit *e, int n, const int64_t *values);
asc_tensors *asc_list(struct asc_emit *e, int n, asc_tensor *const *tensors);

/* Device memory until the record is done, of ASC_ALIGN. */
void *asc_room(struct asc_emit *e, uint64_t bytes);
/* Memory and handles that were taken since a mark, given back once the calls that use them are
 * queued. */
struct asc_mark {
    uint64_t room;
    int held;
};
static inline struct asc_mark asc_mark(const struct asc_emit *e)
{
    return (struct asc_mark){.room = e->room, .held = e->n_held};
}
void asc_rewind(struct asc_emit *e, struct asc_mark mark);
/* Addresses and types of the record's values, and as tensors of rows x width. */
void *asc_in_address(struct asc_emit *e, int i);
void *asc_out_address(struct asc_emit *e, int i);
enum asc_type asc_in_type(const struct asc_emit *e, int i);
enum asc_type asc_out_type(const struct asc_emit *e, int i);
asc_tensor *asc_in(struct asc_emit *e, int i);
asc_tensor *asc_out(struct asc_emit *e, int i);
/* The record's i-th weight; false: it has none. */
bool asc_weight(struct asc_emit *e, int i, struct asc_matrix *out);
/* Rows [begin, begin + n) as tensors: values k x n of strides 1, k; scales k / 32 x n of strides
 * 1, k / 32. */
asc_tensor *asc_matrix_values(struct asc_emit *e, const struct asc_matrix *m, int64_t begin,
                              int64_t n);
asc_tensor *asc_matrix_scales(struct asc_emit *e, const struct asc_matrix *m, int64_t begin,
                              int64_t n);
/* The record's array number i (records[].array[i]), and its constant. */
void *asc_array_address(struct asc_emit *e, int i);
void *asc_constant_address(struct asc_emit *e);
/* Copies bytes inside the device's memory, in the stream's order. */
void asc_move(struct asc_emit *e, void *to, const void *from, uint64_t bytes);
void asc_give_up(struct asc_emit *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ASC_CALL(e, Mm, a, b, out, 1); calls aclnnMm. */
/* clang-format off */
#define ASC_CALL(e, name, ...)                                                                     \
    do {                                                                                           \
        if (asc_callable((e), ASC_##name))                                                         \
            asc_called((e), ASC_##name,                                                            \
                       (e)->api->name(__VA_ARGS__, &(e)->workspace, &(e)->executor));              \
    } while (0)
/* clang-format on */
bool asc_callable(struct asc_emit *e, enum asc_operator op); /* false: e has failed, or does now */
void asc_called(struct asc_emit *e, enum asc_operator op, int status);

/* asc_kinds.c. A row for each kind; emit NULL: the device has none. */
enum { ASC_NEEDS = 8 };
struct asc_kind {
    void (*emit)(struct asc_emit *e);
    /* NULL: all shapes. That the operators are there, and that CANN takes a call of such an
     * operator on this chip, is checked elsewhere. */
    bool (*supports)(const struct asc_device *d, const struct oato_op *op);
    oato_status (*prepare)(struct compiled *c, uint32_t index,
                           struct oato_error *err); /* or NULL */
    struct value_types values;
    uint8_t needs[ASC_NEEDS]; /* enum asc_operator, whatever the shape; then 0 */
};
extern const struct asc_kind asc_kinds[OP_KIND_COUNT];

/* asc_kv.c: see struct device_ops. */
oato_status asc_kv_create(struct oato_device *base, const struct kv_layer_shape *layers, int n,
                          oato_dtype dtype, int32_t pages, struct kv_cache **out,
                          struct oato_error *err);
const struct kv_layout *asc_kv_layout(const struct oato_device *base);

/* ------------------------------------------------------------------------------ device ---- */

/* What differs from chip to chip; a row for each prefix of the name that CANN gives it. */
struct asc_chip {
    const char *name; /* "Ascend910B"; the first row that fits counts */
    bool quantised;   /* it multiplies Q8 and Q4 */
    bool bf16;        /* has BF16 */
    bool f32;         /* multiplies F32 without making it F16 */
    bool fused;       /* has fused attention, and rotary positions */
    bool gelu;        /* has GELU */
    bool hbm;         /* its memory is HBM, else DDR */
    bool maps;        /* it has virtual addresses */
};

/* asc_memory.c */
struct asc_pools {
    pthread_mutex_t lock;
    struct asc_chunk *chunks;
};

enum { ASC_PIECES = 64 };

/* Memory that only grows: in place where the chip has virtual addresses, else by moving. */
struct asc_area {
    uint8_t *base, *reserved;      /* reserved NULL: it moves */
    uint64_t bytes, step, counted; /* counted: in the budget */
    bool moves;
    struct {
        void *handle;
        uint8_t *at;
    } piece[ASC_PIECES];
    int n_pieces;
};

enum { ASC_SIGNALS = 64, ASC_ARRIVALS = 256, ASC_MARKS = 256 };

/* asc_queue.c. The stream that the queue's thread feeds, which raises the timeline when the stream
 * has passed the events of records that signal. */
struct asc_queue {
    asc_stream stream;
    asc_event event[ASC_SIGNALS];
    uint64_t value[ASC_SIGNALS]; /* timeline value of each event, a ring */
    uint64_t recorded, passed;   /* events so far */
    uint32_t unmarked;           /* records since the last event */
    /* What the stream brings to page-locked memory and the host then finds in its arena. */
    struct asc_arrival {
        void *to;
        const void *from;
        uint64_t bytes, after; /* after: number of the event that must have been passed */
    } arrival[ASC_ARRIVALS];
    uint64_t sent, arrived;
    int spins;
    struct patience patience;
};

/* asc_measure.c. While a profiler measures, each signal of a step gets a timed event. */
struct asc_measure {
    enum device_clock clock;
    asc_event event[ASC_MARKS];
    uint64_t value[ASC_MARKS]; /* of the timeline */
    int n_events;
    uint32_t n;
    uint64_t clock_ns; /* of what was measured so far */
};

struct asc_device {
    struct far_device far; /* its memory counts the budget */
    struct asc_queue queue;
    const struct asc_api *api;
    const struct asc_chip *chip;
    char model[96], driver[48];
    int32_t index;
    uint64_t memory_bytes; /* of the NPU */
    struct asc_pools pools;
    struct asc_area rooms, workspace; /* of all programs: they never run at the same time */
    struct asc_spare *spares;         /* temporaries that rooms had no room for */
    uint64_t rooms_wanted;            /* bytes that they should have had */
    uint64_t areas_moved;             /* how often: part of the key of graphs */
    bool requantises; /* types that CANN does not multiply become Q8_0; asked for by its spec */
    double requantised[2]; /* squares of what did, and of what that lost; by pools.lock */
    char warning[256];
    struct value_types values[OP_KIND_COUNT];
    int8_t tried[OP_KIND_COUNT][DT_COUNT]; /* 0: not yet, 1: CANN takes it, -1: it does not */
    struct compiled *programs;
    struct asc_measure measure;
    struct crew crew; /* converts weights; opened with the first one */
    bool has_crew;
    uint64_t limit_ns; /* for which it may be at the same work; 0: for ever */
    _Atomic bool hung; /* it is no longer waited for, nor asked anything, */
    struct oato_error why_hung;
};

static inline struct asc_device *asc_of(const struct oato_device *d)
{
    return (struct asc_device *)(uintptr_t)d;
}

#endif
