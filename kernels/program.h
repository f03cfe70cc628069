/*
 * program.h - what a device runs: a flat list of fixed-width records, made once per phase by
 * lowering, and the step descriptor that holds all that varies from step to step.
 *
 * A record names values by byte offset in the arena of its device and by type, weights by index
 * into the program's weight table, and other devices' progress by (device, ordinal). Nothing in it
 * is a pointer except the weight table, so a device may run it as a CPU loop or a CUDA graph, and
 * it can be printed.
 */
#ifndef OATO_PROGRAM_H
#define OATO_PROGRAM_H

#include "kernels/op.h"

enum { RECORD_INPUTS = 8, RECORD_OUTPUTS = 3, RECORD_WEIGHTS = 6, RECORD_WAITS = 8 };

enum record_kind {
    RECORD_RUN,      /* run op */
    RECORD_UPLOAD,   /* host arena -> this device's arena */
    RECORD_DOWNLOAD, /* this device's arena -> host arena */
    /* host memory, or a file -> the staging room of the record's weights, which weight_stage
     * made. Starts when the records before it are done and may overlap those after it; a record
     * that reads one of the weights waits for it. May be skipped in a step without rows.
     * Without weights: what the step's sequences had in the KV before it, from layer kv_from of the
     * host's cache to the room kv_layer of this device's, in this device's layout. */
    RECORD_STREAM,
    RECORD_PEER, /* arena of another, reachable device -> this device's arena */
    RECORD_PUSH, /* this device's arena -> that of another, which it reaches */
    /* Of the host's queue, with ranks (ranks/collective.h): the sum of in[0] over the ranks that
     * have one, and rows put together from the columns in[0] of each. No input: this rank has none.
     */
    RECORD_REDUCE,
    RECORD_GATHER,
    /* The same queue's: in[0] goes to one rank, which goes on with it: its out[0] comes from there.
     */
    RECORD_SEND,
    RECORD_RECEIVE,
    /* Of the queue of an accelerator that has joined others (device_ops.join): in[0] goes to that
     * of one rank, and as much comes from there to out[0]; one of the two may be missing. */
    RECORD_SWAP,
};

struct record_wait {
    uint16_t device; /* index in the engine */
    uint16_t pad;
    uint32_t ordinal; /* of that device's signals within the step, from 1 */
};

struct program_record {
    struct oato_op op;
    uint8_t kind; /* enum record_kind */
    uint8_t rows; /* enum row_class of the first output; of the value for copies */
    uint8_t n_in, n_out, n_weights, n_waits;
    uint8_t numerics; /* enum numerics_choice */
    uint8_t peer; /* PEER: index in the engine of the device whose arena in[0] is in; PUSH: out[0];
                     SEND, RECEIVE, SWAP: the other rank */
    uint8_t part, parts; /* of the operator, or of the value that is copied; parts 1: all of it */
    bool to_first;       /* GATHER: rank 0 alone gets the rows */
    int32_t kv_layer;    /* KV_STORE, ATTENTION, kinds with a state: slot among this device's KV
                            layers, else -1 */
    int32_t kv_from;     /* STREAM of KV: layer of the host's cache */
    int32_t cache; /* with op.expert_slots, and EXPERT_SUM: number of the cache in step.cached */
    uint32_t graph_op; /* operator of the graph, for traces; UINT32_MAX for none */
    uint32_t value;    /* value of the graph that is copied or produced, for traces */
    uint32_t signal;   /* 0, or: raise this device's event to base + signal when done */
    uint32_t weight[RECORD_WEIGHTS]; /* indices into program.weights; UINT32_MAX = absent */
    int32_t in_width[RECORD_INPUTS]; /* elements of a row of each input */
    /* oato_dtype of each value in this device's arena: F32, or F16 where the device has it so
     * (device_ops.values). What is copied, streamed or exchanged is F32 */
    uint8_t in_type[RECORD_INPUTS], out_type[RECORD_OUTPUTS];
    uint64_t in[RECORD_INPUTS];   /* byte offsets in the arena; UPLOAD: in[0] is the host's,
                                     PEER: the other device's */
    uint64_t out[RECORD_OUTPUTS]; /* byte offsets; DOWNLOAD: out[0] is the host's, PUSH: the
                                     other device's */
    struct record_wait wait[RECORD_WAITS]; /* all must hold before the record starts */
};

/* The KV heads of a layer that a device stores: all of them or some. With `state` instead slots of
 * that many float32 numbers: an operator's recurrent state, a slot for each sequence. */
struct kv_layer_shape {
    int32_t kv_heads, head_dim, v_dim, v_in_k, window; /* as in KV_STORE */
    int32_t pages;                                     /* 0: as many as the cache has */
    int32_t slots;
    int64_t state;
    bool filed;  /* its pages stay in a file and are in memory while the layer computes */
    bool staged; /* a room, which RECORD_STREAMs fill with pages of layers of the host's cache */
};

struct oato_weight; /* prepared by a device, see device.h */
struct oato_device;
struct collective; /* ranks/collective.h */

/* Whether the record copies between the arenas of two accelerators. */
static inline bool record_is_peer(int kind)
{
    return kind == RECORD_PEER || kind == RECORD_PUSH;
}

/* Another device whose arena RECORD_PEERs read and RECORD_PUSHes write. */
struct program_peer {
    struct oato_device *device; /* NULL: not reachable */
    void *arena;                /* the arena of its own program */
    uint64_t arena_bytes;
};

/* A value in the arena, of a row class, that a span reads or leaves. */
struct span_value {
    uint64_t offset; /* bytes */
    int32_t width;   /* elements of a row */
    uint8_t rows;    /* enum row_class */
    uint8_t type;    /* oato_dtype: F32 or F16 */
};

/* A run of records that a device which asks for spans (device_info.spans) compiles as one function:
 * RECORD_RUNs of one row class that may be in one (op_spans), perhaps a single one. Only the first
 * one waits, only the last one signals. No output lies where an input does. */
struct program_span {
    uint32_t begin, end; /* records [begin, end) */
    uint32_t value;      /* number of its first value in program.span_values: n_in that it reads, */
    uint16_t n_in, n_out; /* then n_out that something reads after it; all others die inside */
};

struct program {
    const struct program_record *records;
    uint32_t n_records;
    const struct program_span *spans; /* ascending; records outside run one by one; NULL: none */
    uint32_t n_spans;
    const struct span_value *span_values;
    uint32_t n_span_values;
    uint32_t n_signals;                     /* by how much one step raises the device's event */
    int32_t max_tokens, max_rows, max_seqs; /* bounds of the steps that it will be given */
    int32_t max_states;                     /* of all rows of a step, where more than max_rows */
    struct oato_weight *const *weights;     /* table; entries may be switched between steps */
    uint32_t n_weights;
    void *arena;                      /* of this device (device address) */
    void *host_arena;                 /* of the host, for copies (host address) */
    uint64_t host_arena_bytes;        /* 0: not known */
    const struct program_peer *peers; /* by index in the engine, DEVICES_MAX; NULL: none */
    uint64_t workspace_bytes;         /* what the device said it needs for these records */
    uint32_t without_joins;           /* for profilers: those not to be made, a bit each */
    struct kv_cache *kv;              /* of this device, or NULL when it holds no KV layer */
    struct kv_cache *host_kv;         /* of the host, which RECORD_STREAMs read; may be NULL */
    struct collective *ranks;         /* that records from REDUCE on exchange with; NULL: none */
    int32_t n_caches;                 /* of experts, in step.cached */
    const char *const *device_ids;    /* by index in the engine, for printing; may be NULL */
};

struct step_seq {
    int32_t query_begin, query_len; /* its tokens: [query_begin, query_begin + query_len) */
    int64_t kv_len;                 /* positions in the cache after this step's tokens */
    const int32_t *pages;           /* block table: page id of positions 64 i .. 64 i + 63 */
    const int32_t *window_pages;    /* the same in layers with a window, whose pages are others;
                                       of positions before the window it holds anything */
    int32_t state; /* slot of its state; a sequence without earlier positions starts from zeros */
};

struct step_cores; /* device.h */

struct step_page_copy {
    int32_t from, to; /* page ids; `positions` leading positions are copied */
    int32_t positions;
    bool window; /* pages of the layers with a window; false: of the others */
};

/* Slots of state, copied in the order of the step's list. */
struct step_state_copy {
    int32_t from, to;
};

/* Sees what a record of the host read and made, rows of values at the record's offsets in `arena`,
 * right after it ran and before the next one does. */
typedef void step_observer(void *user, const struct program_record *r, const void *arena,
                           int32_t rows);

/* Owned by the engine, unchanged until every device has finished the step. Tokens of a sequence are
 * contiguous and in order of position. */
struct step {
    int32_t n_tokens, n_seqs, n_rows, n_page_copies, n_state_copies;
    const int32_t *token_id, *token_position, *token_seq; /* n_tokens each */
    const struct step_seq *seq;                           /* n_seqs */
    const int32_t *row; /* n_rows: tokens whose logits or last hidden states are wanted */
    int32_t n_states;   /* of these, the last ones: their states */
    bool picks;         /* candidates of them are, where the program can make any */
    const struct step_page_copy *page_copy;
    const struct step_state_copy *state_copy;
    /* Of each cache of experts, the slot that each expert of the layer lies in; -1: none */
    const int32_t *const *cached;
    /* per device of the engine: the event and its value before this step */
    uint64_t clock_ns; /* of the host device when the step begins */
    struct timeline *const *timeline;
    const uint64_t *timeline_base;
    step_observer *observe; /* for counting: makes steps slower; NULL: nobody */
    void *observe_user;
    struct step_cores *cores; /* only in an engine with a simulated device, else NULL */
};

/* Checks a program before any device compiles it: valid operators and counts, offsets inside an
 * arena of arena_bytes, widths that match the operators, types that are the device's (`values` as
 * of device_ops.values, NULL: float32), existing weights and signals, and signals that rise and
 * stay below TIMELINE_RING. self: the device's index in the engine. */
oato_status program_check(const struct program *p, const struct value_types *values, int self,
                          uint64_t arena_bytes, struct oato_error *err);
/* Rows of the class in the largest step that the program will be given. */
static inline int32_t program_rows(const struct program *p, uint8_t rows)
{
    const bool all = rows == ROWS_LOGITS || rows == ROWS_STATES;
    return rows == ROWS_TOKENS                  ? p->max_tokens
           : all && p->max_states > p->max_rows ? p->max_states
                                                : p->max_rows;
}
/* Rows of the record, and the size of its operator, in this step: with 0 rows it does nothing. */
int32_t record_rows(const struct program_record *r, const struct step *step);
struct op_size record_size(const struct program_record *r, const struct step *step);

/* A RECORD_STREAM of KV, not of weights. */
static inline bool record_is_history(const struct program_record *r)
{
    return r->kind == RECORD_STREAM && !r->n_weights && r->kv_layer >= 0;
}

/* Prints one line per record, for --dump-program. */
void program_print(const struct program *p, const char *device, FILE *out);

#endif
