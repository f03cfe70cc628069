/*
 * lowering.h - graph + placement + device facts -> a program per device and phase, with the weights
 * that it reads, its KV layers, its arena and its staging room. Plain data: no device is opened
 * here. The engine binds and runs these records, the solver's virtual clock prices them, the
 * profiler measures them.
 *
 * placements_create -> lowered_init -> lower (once per phase) -> lowered_free, placements_free.
 */
#ifndef OATO_LOWERING_H
#define OATO_LOWERING_H

#include "kernels/program.h"
#include "planfmt/planfmt.h"

/* -------------------------------------------------------------------------- placements ---- */

enum { PARTS_MAX = RECORD_INPUTS };

/* Operator elements [begin, end) along the placement's axis run on a device. */
struct placed_part {
    int32_t device; /* index in the caller's numbering: an engine's or a plan's; -1: of another
                       rank */
    int32_t begin, end;
    int32_t rank, host; /* whose it is, as in the plan's table of devices */
    bool everywhere;    /* every rank runs it */
    bool streamed;      /* its weights stay in the host's memory, */
    bool stored;        /* or, on the host, in a file of prepared weights; then streamed, too */
    bool filed;         /* KV_STORE: its layer's KV stays in a file */
    bool kv_streamed;   /* ATTENTION, in prefill: its layer's KV stays in the host's memory */
    bool dense;         /* it skips no neurons, though the operator does */
    /* The end - begin neurons (ascending) or experts that the range stands for in a plan with a
     * neurons sidecar; NULL: those with the range's own numbers */
    const int32_t *members;
};

/* Some of the experts of an operator's part on the host lie on another device, too. */
struct placed_cache {
    int32_t device, slots; /* slots 0: there is no cache */
    int32_t margin, hits;  /* as in struct plan_cache */
};

/* Where one operator runs in one phase: one to PARTS_MAX parts, sorted by begin. */
struct placement {
    int32_t n;
    enum op_axis axis;
    struct placed_part part[PARTS_MAX];
    const int32_t *order; /* all experts, if parts have members that are experts; else NULL */
    const struct gguf_tensor *experts; /* ROUTE: the same order, which its choice counts in */
    struct placed_cache cache;
    /* The sidecar's, of an operator of SPARSE_PREDICT; NULL: there are no lists in this phase */
    const struct neurons_predictor *predictor;
};

struct placements {
    struct placement *phase[PHASE_COUNT]; /* by operator of the graph */
    oato_dtype wire;     /* of sums between hosts; F32 also where there is one host */
    int32_t rank, ranks; /* whose programs are made, of how many; ranks 0: nobody is elsewhere */
    int32_t sums_on; /* the device that sums what ranks divide: the host, or with SUM_ACCELERATORS
                        the rank's accelerator */
    struct arena arena; /* of members and orders */
};

/* Placements from a plan that plan_apply accepted for this graph. Operators without parts run whole
 * on `host`; without a plan (NULL) all do. bound: the number of each of the plan's devices, a copy
 * is made of nothing. A plan that follows a sidecar has it in plan->neurons, which must outlive the
 * placements. bound -1: a device of another rank; this rank's programs then exchange values with
 * it (see values.c), and operators without parts run on every rank's host; where accelerators sum,
 * on its accelerator, all but lookups. OATO_EFILE: too many parts, KV placed apart from
 * the operators that use it, weights streamed from a device other than `host`, or experts in a
 * sidecar's order that somebody else numbers otherwise. Whatever the status, placements_free
 * releases it. */
oato_status placements_create(const struct plan *plan, const struct graph *g, const int32_t *bound,
                              int32_t host, struct placements *out, struct oato_error *err);
void placements_free(struct placements *p);
/* The fraction of the operator that [begin, end) along the axis is; 1: all of it. */
double part_share(const struct oato_op *op, enum op_axis axis, int64_t begin, int64_t end);

/* ------------------------------------------------------------------------------ sparsity --- */

/* Whether the operator is the product of a matrix whose inputs TEAL thresholds: no router, and
 * nothing of recurrent mixers. */
bool sparse_takes_inputs(const struct graph_op *o);
/* What was counted of such a matrix's inputs; NULL: nothing. */
const struct neurons_magnitudes *sparse_inputs(const struct graph_op *o, const struct neurons *n);
/* The GATE_UP, SWIGLU or ACTIVATE that alone makes the input of this product, down; zeros: only one
 * with exact zeros. NULL: neurons cannot be skipped there. */
const struct graph_op *sparse_neurons(const struct graph *g, const struct graph_op *down,
                                      bool zeros);
/* Whether a match of this kind may be fused: of products that skip inputs each has its own. */
bool sparse_fuses(const struct sparse_choice *choice, enum op_kind fused);
/* Has the operators of a fused graph skip neurons and inputs. neurons: what was counted, needed for
 * THRESHOLD, PREDICT and inputs; NULL: nothing. OATO_EUSAGE: the graph has none of the kind, or the
 * sidecar lacks the quantiles of a layer, or has no predictor at all. */
oato_status sparse_apply(struct graph *g, const struct sparse_choice *choice,
                         const struct neurons *neurons, struct oato_error *err);
/* What computes neurons by a list: a GATE_UP, or the product before an ACTIVATE; NULL: nothing. */
const struct graph_op *sparse_listed(const struct graph *g, const struct graph_op *neurons);
/* sparse_apply for the layers and matrices that the plan names. OATO_EFILE: one has none of the
 * kind. */
oato_status sparse_apply_plan(struct graph *g, const struct plan *p, struct oato_error *err);
/* Gives decode's placements of the operators that either had skip what a list does not name the
 * predictors of the same sidecar, which must outlive them. */
void sparse_place(const struct graph *g, const struct neurons *neurons,
                  struct placements *placements);

/* The operators of the records, in order, that make the list for a part of a GATE_UP or MUL_MAT.
 * The last LIST_BY_NEURONS of them are for its neurons alone, those before for all. */
enum { LIST_OPS = 4, LIST_BY_NEURONS = 2 };
void list_ops(const struct neurons_predictor *p, const struct oato_op *op,
              struct oato_op out[LIST_OPS]);

/* ------------------------------------------------------------------------------- input ---- */

/* A weight on a device: rows [begin, end) and columns [col_begin, col_end) of a tensor for one use,
 * either resident or streamed to the staging room. */
struct weight_slot {
    const struct gguf_tensor *tensor;
    enum weight_use use;
    int64_t begin, end, col_begin, col_end;
    /* What is to be gathered instead: the i-th `each` rows are those of member i (of its expert, or
     * the row of its neuron); each 0: column i is members[i]. NULL: the range as it is */
    const int32_t *members;
    int64_t each;
    bool streamed;           /* then no two records of a phase share the slot */
    bool stored;             /* streamed from a file: the slots of both phases are the same */
    bool cached;             /* slots of a cache: at first the experts of these rows */
    bool spare;              /* no record reads it; files of prepared weights have it */
    uint64_t staging_offset; /* streamed: where in the device's staging room */
    uint64_t ring_offset;    /* stored, not the host's: where in its ring in the host's memory */
    uint64_t bytes;          /* as the device keeps it */
};
/* How many members the slot gathers. */
static inline int64_t slot_members(const struct weight_slot *s)
{
    return s->each ? (s->end - s->begin) / s->each : s->col_end - s->col_begin;
}
/* True when both are the same rows and columns of the same tensor for the same use. */
bool weight_slot_same(const struct weight_slot *a, const struct weight_slot *b);

/* What lowering needs to know about the devices: the engine answers from open devices, the solver
 * from a profile. The comment of each function says what NULL stands for. */
struct lowering_facts {
    int32_t n_devices, host;     /* at most DEVICES_MAX; host: index of the host device */
    const char *id[DEVICES_MAX]; /* for messages; borrowed */
    bool reaches[DEVICES_MAX][DEVICES_MAX]; /* [to][from]: `to` can copy directly from that arena */
    bool streams[DEVICES_MAX];              /* can stream weights from host memory during a step */
    /* The numbers of rows that it compiles spans for, as in struct device_info. NULL: it compiles
     * none. Borrowed. */
    const int32_t *rows[DEVICES_MAX];
    bool caches[DEVICES_MAX]; /* can replace experts beside steps; else there is no cache there */
    /* The types of the values in each device's arena, [OP_KIND_COUNT]; NULL: float32, as the host's
     * must be. Borrowed as long as the result. */
    const struct value_types *values[DEVICES_MAX];
    const void *user;
    bool (*supports)(const void *user, int32_t device, const struct oato_op *op); /* NULL: all */
    /* The numerics of an operator, by phase and row class. NULL: NUMERICS_DECODE. */
    enum numerics_choice (*numerics)(const void *user, int32_t device, const struct oato_op *op,
                                     enum plan_phase phase, enum row_class rows);
    /* Bytes of the slot as the device keeps it. NULL: as in the model's file. */
    uint64_t (*weight_bytes)(const void *user, int32_t device, const struct weight_slot *slot);
    /* Scratch memory of one run. NULL: none. */
    uint64_t (*workspace_bytes)(const void *user, int32_t device, const struct oato_op *op,
                                const struct op_size *size);
};

/* The largest step that programs are made for. */
struct lowering_limits {
    int32_t tokens[PHASE_COUNT], rows[PHASE_COUNT]; /* of a step: tokens; rows of logits */
    int32_t states[PHASE_COUNT]; /* rows of logits and of states; not used without a state */
    int32_t seqs, context;
};

struct lowering_input {
    const struct graph *graph; /* fused; borrowed as long as the result, as is facts->id */
    int32_t n_ops; /* lower only this many leading operators, to measure some layers; 0: all */
    /* Operators behind those of the graph: they are not computed, but their weights have slots, so
     * that files of prepared weights are the same as those of the whole graph. */
    int32_t n_spare;
    const struct placements *placements;
    const struct lowering_facts *facts;
    struct lowering_limits limits;
    /* The value whose rows the host gets in steps that want states (ROWS_STATES); from it on all
     * operators make logits. 0: none */
    int32_t state;
    oato_dtype kv;
    /* How many candidates of each row of logits go to the host in steps that want them, where other
     * devices or ranks make logits; 0: whole rows in all steps. */
    int32_t top_logits;
};

/* ------------------------------------------------------------------------------ result ---- */

struct lowered_program {
    struct program_record *records;
    uint32_t n_records, n_signals;
    struct program_span *spans; /* NULL: the device does not ask for them */
    uint64_t *span_bytes;       /* of each: what its functions take, for all numbers of rows */
    struct span_value *span_values;
    uint32_t n_spans, n_span_values;
};

/* KV heads [head_begin, head_end) of a layer of the model live here, or the state of an operator of
 * the graph. A room for KV that is streamed has layer -1. */
struct kv_home {
    int32_t layer, head_begin, head_end;
    int32_t state_of; /* -1: KV */
};

struct lowered_device {
    struct weight_slot *slots; /* named by index in records; both phases */
    uint32_t n_slots;
    int32_t slots_cap;
    struct kv_home *kv;               /* named by kv_layer in records */
    struct kv_layer_shape *kv_shapes; /* parallel to kv */
    int32_t n_kv;
    uint64_t weight_bytes;               /* of slots that are not streamed */
    uint64_t arena_bytes, staging_bytes; /* maxima of the phases; of a host: the ring for what is
                                            read from a file */
    uint64_t ring_bytes;                 /* that ring, of another device, in the host's memory */
    uint64_t workspace_bytes;            /* of one record */
    uint64_t angles_bytes;               /* of the tables of ROPE's angles, one for each phase */
    struct lowered_program phase[PHASE_COUNT];
};

/* Alignment of weights in a staging room; enough for copies on every device. */
enum { STAGING_ALIGN = 256 };

/* What a record streams from a file. */
struct stream_group {
    int32_t layer;  /* of the record's operator */
    uint64_t bytes; /* of its weights, each up to a multiple of READ_ALIGN */
};
/* The ring for n of them in the order of a step: room for the largest layer's, and for the largest
 * one beside it, so that a layer is read ahead of the record that computes. */
uint64_t stream_ring_bytes(const struct stream_group *g, int32_t n);

/* A choice of an expert counts half after so many tokens. */
enum { CACHE_HALF_LIFE = 128 };

/* A cache of experts, in decode. It begins with the first experts of its part. */
struct lowered_cache {
    int32_t op, device; /* EXPERT_GATE_UP in the graph; where the slots are */
    int32_t first, held, used, slots, margin;
    int32_t n_weights;
    struct {
        uint32_t here, there; /* slots of the host's weights, and of the device's */
        int64_t rows;         /* of an expert */
    } weight[3];
    int32_t choice;         /* buffer of the choice on the host, .. */
    uint64_t choice_offset; /* .. which stays there, in its arena, until the next step */
};

struct lowered {
    struct lowered_device device[DEVICES_MAX];
    struct lowered_cache *caches; /* named by `cache` in records */
    int32_t n_caches, caches_cap;
    int32_t n_devices;
    /* Per phase: offsets in the host's arena of rows of logits and of those of candidates; how many
     * of these each list of a row has (ids, then logits), 0: there are whole rows in all steps; and
     * how many lists, of neighbouring ranges of ids. */
    uint64_t result_offset[PHASE_COUNT], picks_offset[PHASE_COUNT];
    uint64_t states_offset[PHASE_COUNT]; /* of rows of the input's state */
    int32_t candidates[PHASE_COUNT], lists[PHASE_COUNT];
    int32_t copies[PHASE_COUNT];      /* (value, other device that reads it) pairs */
    uint64_t copy_bytes[PHASE_COUNT]; /* of one row each */
    uint64_t stream_bytes[PHASE_COUNT];
};

/* Beside what is lowered: how many pages of KV a layer without and with a window has, their type,
 * the host, and what it keeps of a step's results. */
struct memory_limits {
    int32_t host, pages, window_pages;
    oato_dtype kv;
    uint64_t kept_bytes;
    bool keeps[DEVICES_MAX];             /* as in struct device_info */
    uint64_t library_bytes[DEVICES_MAX]; /* of the host's memory, for the device's library */
};

/* What a device needs. */
struct device_memory {
    uint64_t weights, room, kv, work, workspace; /* room: staging and rings; work: activations */
    uint64_t locked; /* the host's, while there is room: copies, which devices keep, of weights that
                        are streamed to them */
    int32_t functions; /* to compile, for each number of rows: spans of different operators */
};

/* Without what is kept only while there is room. */
static inline uint64_t device_memory_sum(const struct device_memory *m)
{
    return m->weights + m->room + m->kv + m->work + m->workspace;
}

enum { ARENA_SLACK = 256 }; /* vector kernels may read past the last row of a buffer */

/* What a device needs for the programs of both phases. */
struct device_memory lowered_memory(const struct lowered *l, int32_t device,
                                    const struct memory_limits *m);

/* Empty, with the KV homes of the input's placements. OATO_EFILE when a KV head's store and
 * attention, or an operator with a state, are not on the same device in both phases. lowered_free
 * releases it, on failure too. */
oato_status lowered_init(const struct lowering_input *in, struct lowered *out,
                         struct oato_error *err);
/* Adds the programs of a phase. The same input gives the same records. With n_ops the result is not
 * copied to the host. OATO_EFILE names the operator that a device cannot run or that cannot be
 * split as placed. */
oato_status lower(const struct lowering_input *in, enum plan_phase phase, struct lowered *out,
                  struct oato_error *err);
void lowered_free(struct lowered *l);
/* The programs of both phases for the plan's request, of a graph that plan_apply and
 * sparse_apply_plan have prepared. bound: as placements_create has it; top_logits: as the input has
 * it. Whatever the status, placements_free and lowered_free release both. */
oato_status lower_plan(const struct plan *plan, struct graph *g, const struct lowering_facts *facts,
                       const int32_t *bound, int32_t top_logits, struct placements *places,
                       struct lowered *out, struct oato_error *err);

#endif
