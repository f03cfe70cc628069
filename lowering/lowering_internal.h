/*
 * lowering_internal.h - one phase being lowered from graph and placement to programs: lower.c walks
 * the graph and adds records, values.c brings values to where they are read, programs.c makes the
 * finished programs.
 */
#ifndef OATO_LOWERING_INTERNAL_H
#define OATO_LOWERING_INTERNAL_H

#include "lowering/lowering.h"

enum { BUFFER_ALIGN = 64 };

struct queued {
    struct program_record record; /* offsets, waits and signals are filled at the end */
    int32_t in[RECORD_INPUTS], out[RECORD_OUTPUTS]; /* buffers */
    int32_t wait_device[RECORD_WAITS], wait_record[RECORD_WAITS];
    int32_t known[DEVICES_MAX];
    bool signals, streams; /* streams: its weights come from the host */
    uint64_t stream_bytes; /* of the staging room */
};

struct queue {
    struct queued *records;
    int32_t n, cap;
    int32_t known[DEVICES_MAX]; /* what the next record knows; see values.c */
};

/* Where a value, or a part of it, can be read on one device. */
struct home {
    int32_t buffer; /* -1: not there */
    int32_t queue, record;
};

static const struct home nowhere = {-1, 0, 0};

/* How the parts of a value make the whole. */
enum value_parts {
    PARTS_COLUMNS,  /* they are concatenated */
    PARTS_SUMMANDS, /* they are added */
    PARTS_NEURONS,  /* each has columns that are not neighbours: only the same neurons may read a
                       part */
    PARTS_EXPERTS, /* each holds the rows of its experts at their place in the whole; the other rows
                      are undefined, so only the same experts may read a part */
};

/* A place for activations in a device's arena. */
struct buffer {
    int32_t device;                /* device whose arena holds it */
    oato_dtype type;               /* F32 or F16 */
    int32_t width;                 /* elements of a row */
    uint8_t rows;                  /* enum row_class */
    struct home other;             /* the same in the other type, if something reads that */
    uint64_t bytes, offset;        /* of it, aligned; offset is the result */
    int32_t def_queue, def_record; /* who writes it first */
    int32_t last_use[DEVICES_MAX]; /* per queue: last record that touches it, -1 none */
};

struct lowered_value {
    int32_t n_parts;
    enum value_parts parts;
    int32_t part_device[PARTS_MAX], part_width[PARTS_MAX]; /* device -1: of another rank */
    int32_t part_rank[PARTS_MAX], part_host[PARTS_MAX];
    int32_t part_begin[PARTS_MAX], part_end[PARTS_MAX]; /* columns of the value, or experts */
    struct home part[PARTS_MAX][DEVICES_MAX];
    struct home merged[DEVICES_MAX];
    bool counted[PARTS_MAX][DEVICES_MAX]; /* read there: counted as one copy of the step */
    bool everywhere;                      /* every rank makes all of it, or has received it */
    uint64_t sent;                        /* to these ranks */
};

/* Columns of a value, cut out for one part of an operator that reads it. */
struct slice {
    int32_t value, begin, end, device;
    struct home home;
};

struct lowering {
    const struct lowering_input *in;
    struct lowered *out;
    const struct graph *graph;
    enum plan_phase phase;
    int32_t max_tokens, max_rows, max_states; /* max_states: of ROWS_LOGITS and ROWS_STATES */
    struct queue queue[DEVICES_MAX];
    struct lowered_value *values;
    struct buffer *buffers; /* in the order in which records that define them were issued */
    int32_t n_buffers, buffers_cap;
    struct slice *slices;
    int32_t n_slices, slices_cap;
    int32_t streams[DEVICES_MAX];      /* records so far */
    uint32_t stored_next[DEVICES_MAX]; /* slots before it were found in this phase */
    bool spare;                        /* no record will read the slots that are added */
    bool to_first;                     /* of what ranks gather, rank 0 alone needs the whole */
    enum row_class some_rows;          /* instead of ROWS_LOGITS; 0: that */
    struct oato_error *err;
};

static inline bool failed(const struct lowering *l)
{
    return l->err->status != OATO_OK;
}

/* Rows of that class in the largest step. */
static inline int32_t rows_most(const struct lowering *l, int32_t rows)
{
    return rows == ROWS_TOKENS                          ? l->max_tokens
           : rows == ROWS_LOGITS || rows == ROWS_STATES ? l->max_states
                                                        : l->max_rows;
}

/* ---------------------------------------------------------------------------- values.c --- */

void values_init(struct lowering *l);
/* The row class of records that make the value or copy it. */
uint8_t value_rows(const struct lowering *l, int32_t value);
/* The array, moved if it has no room for another element; NULL, and lowering has failed: memory is
 * short. */
void *room_for(struct lowering *l, void *array, int32_t n, int32_t *cap, size_t size,
               const char *what);
/* Appends an empty record of that kind to a device's queue; NULL: memory is short. */
struct queued *record_add(struct lowering *l, int32_t device, enum record_kind kind);
/* Completes the record: no wait may be added after this. Returns its index. */
int32_t record_done(struct lowering *l, int32_t device, struct queued *r);
/* The record may start only when record `on` of another queue is complete. */
void record_wait(struct lowering *l, int32_t device, struct queued *r, int32_t other, int32_t on);
/* The record's i-th input is the buffer at h. */
void record_reads(struct lowering *l, int32_t device, struct queued *r, int i, struct home h,
                  int32_t width);
/* The i-th output of the last record of the worker's queue, its last so far, is a new buffer on
 * `device` of `width` columns for each row of class `rows`. */
void record_makes(struct lowering *l, int32_t worker, int32_t device, struct queued *r, int i,
                  int32_t width, int32_t rows);
/* What is at h, of the value, in that type: as it is there, or converted once on that device. */
struct home home_as(struct lowering *l, int32_t value, struct home h, oato_dtype type);
/* Adds a record that runs op on n inputs and makes one output; all belong to `value`. */
struct home run_emit(struct lowering *l, int32_t device, struct oato_op op, int32_t value,
                     const struct home *in, const int32_t *widths, int n);
/* Counts a value, or what is made from it, as one copy of a step that wants candidates. */
static inline void copy_count(struct lowering *l, int32_t width)
{
    if (l->some_rows == ROWS_WHOLE || l->some_rows == ROWS_STATES)
        return;
    l->out->copies[l->phase]++;
    l->out->copy_bytes[l->phase] += (uint64_t)width * sizeof(float);
}
/* Copies `width` columns of a value, or a result made from it, to another device. */
struct home copy_emit(struct lowering *l, int32_t value, int32_t part, int32_t width,
                      struct home from, int32_t to);
/* The whole value on a device: where it was made, copied there, or merged there. */
struct home value_read(struct lowering *l, int32_t value, int32_t device);
/* Has the ranks put the value together, if it is divided between them and was not yet. All ranks
 * must, in the same order, also those that do not read it. */
void value_share(struct lowering *l, int32_t value);
/* What is at h goes to the rank; what comes from the rank, on the host: `width` columns for each
 * row of the value. */
void send_emit(struct lowering *l, int32_t value, int32_t rank, struct home h, int32_t width);
struct home receive_emit(struct lowering *l, int32_t value, int32_t rank, int32_t width);
/* Whether one rank has all of it, and no other; whether this rank and others divide it. */
bool value_is_of_one_rank(const struct lowered_value *v);
bool value_is_shared(const struct lowered_value *v);
/* The neighbouring columns of it that this rank has; *width: how many. */
struct home merge_columns(struct lowering *l, int32_t value, int32_t device, int32_t *width);
/* Adds the record with which ranks make `width` columns, on the host, of what each has of the value
 * (REDUCE) or of its rows (GATHER). */
struct home share_emit(struct lowering *l, enum record_kind kind, int32_t value, struct home own,
                       int32_t own_width, int32_t width);
/* What one rank alone has goes to the rank of a part that reads it, if one of the two is this one.
 * All ranks call it for what any of them reads, in the same order. */
void value_pass(struct lowering *l, int32_t value, const struct placed_part *reader);
/* The part of the value with exactly these columns, if rank `rank` has it; else -1. */
int32_t rank_part_find(const struct lowering *l, int32_t value, int32_t begin, int32_t end,
                       int32_t rank);
/* One part of the value on a device. */
struct home part_read(struct lowering *l, int32_t value, int32_t part, int32_t device);
/* The part with exactly these columns or members; -1: there is none. */
int32_t part_find(const struct lowered_value *v, enum value_parts parts, int32_t begin,
                  int32_t end);
/* slices.c. Columns [begin, end) of the value: a part with exactly these columns, or a slice of the
 * whole. */
struct home columns_read(struct lowering *l, int32_t value, int32_t begin, int32_t end,
                         int32_t device);
/* The part of the value that neurons or experts [begin, end) made. */
struct home members_read(struct lowering *l, int32_t value, enum value_parts parts, int32_t begin,
                         int32_t end, int32_t device);

/* ----------------------------------------------------------------------------- predict.c --- */

/* Whether the device can compute a GATE_UP or MUL_MAT by lists, and make them. */
bool lists_possible(const struct lowering *l, int32_t device, const struct oato_op *op);
/* The list of the neurons that the part computes for each token of its input x; op is the part's,
 * gate its rows of the gate's matrix. */
struct home list_emit(struct lowering *l, const struct neurons_predictor *p,
                      const struct graph_op *o, const struct oato_op *op,
                      const struct weight_slot *gate, int32_t device, struct home x);

/* ------------------------------------------------------------------------------- place.c --- */

/* Index of the KV home that a part of operator `index` uses on its device; -1: none. */
int32_t kv_home_of_part(const struct lowered_device *d, const struct graph *g, int32_t index,
                        const struct placement *p, int part);

/* Index of the KV home that has all heads of a KV_STORE's layer; -1: none. */
int32_t kv_home_of_layer(const struct lowered_device *d, const struct graph_op *store);

/* ----------------------------------------------------------------------------- history.c --- */

/* Adds rooms for KV of the host to the devices that attend to it, and checks that it is there.
 * OATO_EFILE: it is not, or the device cannot copy it. */
oato_status rooms_add(const struct lowering_input *in, struct lowered *out, struct oato_error *err);
/* At the beginning of a phase: KV pages that sequences share are copied, before the step stores
 * anything. */
void kv_copies_begin(struct lowering *l);
/* Then: the history of each device's first such layer is copied. */
void history_begin(struct lowering *l);
/* Before attention over KV of the host, the operator `index` on `device`: the history of the next
 * such layer there is copied meanwhile, and the step's own rows are stored in this one's room.
 * Returns the room. */
int32_t history_emit(struct lowering *l, int32_t index, int32_t device);

/* ------------------------------------------------------------------------------- order.c --- */

/* Sets members, orders and experts of the placements as the sidecar numbers them. */
oato_status parts_order(const struct neurons *n, const struct graph *g, struct placements *out,
                        struct oato_error *err);

/* ------------------------------------------------------------------------------- arena.c --- */

/* Sets every buffer's offset and raises each device's arena size to what they take. */
void buffers_place(struct lowering *l);

/* ------------------------------------------------------------------------------- spans.c --- */

/* Cuts the spans of each device that asks for them, before its buffers have offsets. */
void spans_cut(struct lowering *l);
/* Sets their records, of which `place` has the number of each in the queue, offsets, and what their
 * functions take. */
void spans_finish(struct lowering *l, int32_t device, const uint32_t *place);
/* Scratch memory of one run of the operator with so many rows. */
uint64_t op_workspace(const struct lowering *l, int32_t device, const struct oato_op *op,
                      int32_t rows);

/* ------------------------------------------------------------------------------ result.c --- */

/* What the host gets of the logits; a home is nowhere where this rank gets nothing. */
struct result {
    struct home whole, picks; /* rows, and candidates of them, in steps that want these */
    struct home states;
};
/* Sets how many candidates there are. */
struct result result_read(struct lowering *l);
/* Places all buffers, those for good that the host reads after the step, and makes the programs. */
void phase_finish(struct lowering *l, const struct result *result);

/* ---------------------------------------------------------------------------- programs.c --- */

/* Index of the slot equal to `wanted` (ignoring bytes), added if missing; UINT32_MAX, and lowering
 * has failed, when memory is short. */
uint32_t weight_slot_find(struct lowering *l, int32_t device, const struct weight_slot *wanted);
/* Makes the program of each device that has records; buffers must have their offsets. */
void programs_finish(struct lowering *l);

/* ---------------------------------------------------------------------- staging rooms ----- */

enum { STAGING_AHEAD = 4 }; /* pieces being copied or waiting to be read */

struct staging_piece {
    uint64_t begin, end;
};

/* Assigns pieces, which are filled and read in the order of their placing, to a buffer with room
 * for two of the largest. Initialise with {.half = bytes of the largest}. */
struct staging {
    uint64_t half;
    uint64_t placed; /* pieces so far */
    uint64_t after;  /* how many of them must have been read before the last one is filled */
    struct staging_piece piece[STAGING_AHEAD];
};

/* Returns the offset of the next piece (at most `half` bytes) in the 2 * half bytes of the buffer.
 * The piece may be filled once the first *after pieces have been read; the piece placed just before
 * it is never among them. */
uint64_t staging_place(struct staging *s, uint64_t bytes, uint64_t *after);

#endif
