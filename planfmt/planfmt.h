/*
 * planfmt.h - the files between the programs: the machine profile (YAML, for people), the neurons
 * sidecar of a model (GGUF, docs/neurons-format.md) and the plan (binary, docs/plan-format.md). All
 * are checked completely when read, written whole or not at all, and know no device: they can be
 * read on any machine.
 */
#ifndef OATO_PLANFMT_H
#define OATO_PLANFMT_H

#include "kernels/sums.h"
#include "models/models.h"

/* ----------------------------------------------------------------------------- profile ---- */

enum { PROFILE_VERSION = 1 };

struct profile_machine {
    const char *cpu, *isa, *kernel_isa; /* model name; levels it has; level that was timed */
    int32_t sockets, cores, threads, numa_nodes;
    uint64_t memory_bytes, l1d_bytes, l2_bytes, l3_bytes;
};

/* Scratch memory of any operator of a kind on a device: a constant, and bytes for every element
 * that a row reads, that it makes, and of partial results of attention's segments. */
struct profile_workspace {
    double bytes, per_input, per_output, per_partial;
};

struct profile_device {
    const char *id, *kind, *model; /* "cpu:0", "cpu", "AMD EPYC 9755" */
    const char *spec;              /* how to open it again ("" for cpu; sim: what was declared) */
    const char *isa, *layout;      /* its kernels' instruction set, and the layout of its prepared
                                      weights; "": not recorded, or it has none */
    uint64_t memory_bytes, free_bytes;
    int32_t threads;
    bool is_host;
    double read_bytes_per_s, flops_per_s; /* measured, or declared by sim */
    /* Overhead of a program beyond the sum of its operators: per record, per step, and as a
     * fraction of the time of an operator's rows after the first, which run slower in a program
     * than alone because other records evict the caches. */
    double record_overhead_ns, step_overhead_ns, rows_overhead;
    double join_ns[JOIN_COUNT]; /* what a join saves in a decode step; 0: it is not made */
    bool spans, compile_cached; /* as in struct device_info, as are rows */
    int32_t rows[DEVICE_ROWS];
    double unit_overhead_ns, compile_s; /* of a function: of a call; of compiling it */
    uint64_t library_bytes; /* of the host's memory, for the device's library; 0: not measured */
    double launch_ns; /* an operator that hardly computes, launched by itself; 0: not measured */
    bool data_sheet;  /* not measured: what no row denies runs, at the roofline of the two rates */
    bool refills;     /* replaces weights beside steps, so that experts can be cached there */
    bool keeps;       /* keeps weights that are streamed to it in its own layout, in host memory */
    bool contradicts; /* record_overhead_ns only holds while others use the machine */
    /* [OP_KIND_COUNT]: the types of each kind that it runs, timed or not, a bit each; F32 of kinds
     * without a type. NULL: nobody asked it, as in profiles that came before */
    uint64_t *runs;
    /* [OP_KIND_COUNT]: what each of these takes at most; NULL: nobody asked it */
    struct profile_workspace *workspaces;
    struct value_types *values; /* [OP_KIND_COUNT], as of device_ops.values; NULL: float32 */
};

/* Whether the device runs operators of that kind and type, in ordinary shapes, by its own word. */
static inline bool profile_runs(const struct profile_device *d, int kind, int dtype)
{
    return d->runs && d->runs[kind] >> dtype & 1;
}

/* One direction between two devices, by their index; copies of b bytes cost latency + b / rate. */
struct profile_link {
    int32_t from, to;
    double latency_ns, bytes_per_s;
    double sync_ns; /* waiting for the other's event */
    /* Links with the host only; 0: not measured. */
    double pageable_latency_ns, pageable_bytes_per_s; /* to or from pageable host memory */
    double both_bytes_per_s;                          /* while both directions are busy */
    double stream_bytes_per_s; /* of weights in file format, which the host converts to the
                                  device's layout during the copy */
};

/* One row of the file: one operator of one size on one device. */
struct profile_row {
    int32_t device;
    struct oato_op op;
    struct op_size size;
    bool supported; /* false: only the key counts */
    uint64_t prepared_bytes, workspace_bytes;
    const char *numerics; /* class, see device.h */
    double median_ns, p10_ns, p90_ns;
    double
        own_ns; /* of a class of a library: what the device's own kernels take; 0: not recorded */
    int32_t repeats;
    bool disturbed;   /* the machine was busy: repeats, passes or sums did not agree */
    bool contradicts; /* faster than the device was seen to read memory, when measured again, too */
};

/* Reading a file of the folder of prepared weights from its beginning to its end, past the page
 * cache where that can be: so many reads of `bytes` each at a time. */
struct profile_storage {
    int32_t depth;
    uint64_t bytes;
    bool direct;                             /* past the page cache */
    double bytes_per_s;                      /* median of the passes, which are spread over the */
    double p10_bytes_per_s, p90_bytes_per_s; /* time that profiling took */
    int32_t passes;                          /* 0: not recorded */
    bool contradicts;                        /* some passes have twice the rate of others */
    double latency_ns;                       /* of one read; median */
};

/* What it took to bring a sequence's KV and state back, for one model (structure hash) on the
 * devices named: to compute `tokens` beside `beside` other sequences that decode, or, with bytes,
 * to copy these in so many extents to host memory and back. */
struct profile_restore {
    uint64_t model;
    const char *devices; /* that hold the KV: "cpu:0 cuda:0" */
    int32_t tokens, beside, extents;
    uint64_t bytes; /* 0: computed */
    double median_ns;
};

/* A sum that ranks of a cluster make together (kernels/ranks/collective.h), as many on each host.
 */
enum profile_exchange {
    EXCHANGE_SUM,
    EXCHANGE_MESSAGE, /* from one host to another, one way */
    EXCHANGE_STEP,    /* what a step exchanges beside its sums: rank 0 tells what to do, and
                         gathers logits or candidates of which each rank has as many */
};
/* Bytes of the candidates that a rank picks of a row of logits for an ordinary sampler: ids and
 * logits of 40 (executor.h, LOGITS_PICKS). */
enum { CANDIDATES_BYTES = 2 * 40 * 4 };

struct profile_sum {
    int32_t ranks, hosts;
    enum profile_exchange what;
    enum sum_way way; /* of a sum */
    oato_dtype wire;  /* of what goes between hosts: F32, F16 or Q8_0 */
    uint64_t bytes; /* of the F32 values that are summed, of the message, of all that is gathered */
    double median_ns;
};

struct profile {
    struct arena arena; /* owns all strings and arrays */
    int32_t version;
    const char *tool;       /* "oato 0.1.0" */
    const char *date;       /* "2026-11-21" */
    const char *notes;      /* free text: "data sheet", "quick" */
    const char *unfinished; /* what oato-profile knows an interrupted run by; else "" */
    struct profile_machine machine;
    struct profile_device *devices;
    int32_t n_devices;
    struct profile_link *links;
    int32_t n_links;
    struct profile_row *rows;
    int32_t n_rows;
    struct profile_restore *restores; /* in the order of the file */
    int32_t n_restores;
    struct profile_storage *storage;
    int32_t n_storage;        /* 0: not measured */
    struct profile_sum *sums; /* in the order of the file */
    int32_t n_sums;
    struct profile_index *index; /* private to profile_put */
};

/* An empty profile (all zero); strings that are NULL mean "". Arrays of devices and links come
 * from arena_alloc(&p->arena, ...), strings from profile_string, rows from profile_put. */
void profile_init(struct profile *p);

/* warn gets file, line and column of what is ignored, such as an unknown key. One that is
 * unfinished is refused; profile_load_memory takes it. */
oato_status profile_load(const char *path, struct profile *out, warn_fn warn, void *user,
                         struct oato_error *err);
oato_status profile_load_memory(const void *data, size_t bytes, const char *name,
                                struct profile *out, warn_fn warn, void *user,
                                struct oato_error *err);
void profile_free(struct profile *p);
/* Whether that is the model of a device that a test's library stands in for, as devices that can be
 * stood in for say it: "stand-in for Ascend910B4". Its values are real, its times are nobody's. */
bool is_stand_in(const char *device_model);
/* Whether that device's times may be in a profile that is loaded or saved: not a stand-in's, unless
 * OATO_STAND_IN is 1, which is for tests of this program. */
bool profile_may_have(const char *device_model);
/* Rows sorted by device and key (numbers in keys by value), so that profiling again gives a small
 * diff. A profile that profile_load would refuse is not written: OATO_EUSAGE. */
oato_status profile_save(const struct profile *p, const char *path, struct oato_error *err);
/* Sets what the device runs, by what `runs` says of an ordinary operator of each kind and type.
 * False: memory is short. */
bool profile_put_runs(struct profile *p, int32_t device,
                      bool (*runs)(const void *user, const struct oato_op *op), const void *user);
/* The same for what operators of each kind take in scratch memory; it is asked of few rows. */
bool profile_put_workspaces(struct profile *p, int32_t device,
                            uint64_t (*bytes)(const void *user, const struct oato_op *op,
                                              const struct op_size *size),
                            const void *user);
/* Copies the device's table for what it runs; NULL: none. */
bool profile_put_values(struct profile *p, int32_t device, const struct value_types *values);
/* By these an operator's scratch memory for so many rows. Of an accelerator that nobody asked, as
 * in data sheets and in profiles that came before, as much as the roomiest that was; of a host 0.
 */
uint64_t profile_workspace_bytes(const struct profile_device *d, const struct oato_op *op,
                                 int32_t rows);
/* Adds or replaces the row with the same device, operator and size; copies what it needs. False:
 * memory is short. */
bool profile_put(struct profile *p, const struct profile_row *row);
/* Replaces what there is of that model on those devices by n others; copies what it needs. False:
 * memory is short, and nothing has changed. */
bool profile_put_restores(struct profile *p, uint64_t model, const char *devices,
                          const struct profile_restore *restores, int32_t n);
/* Replaces what there is of storage by n rows. False: memory is short, and nothing has changed. */
bool profile_put_storage(struct profile *p, const struct profile_storage *rows, int32_t n);
/* Replaces what there is of sums of the ranks and hosts that rows[0] has by n rows. False: memory
 * is short, and nothing has changed. */
bool profile_put_sums(struct profile *p, const struct profile_sum *rows, int32_t n);
/* The row with the most bytes on their way, as weights are read ahead; NULL: not measured. */
const struct profile_storage *profile_storage_ahead(const struct profile *p);
/* Its rate; 0: not measured. */
double profile_storage_rate(const struct profile *p);
/* A string owned by the profile. NULL when memory is short. */
const char *profile_string(struct profile *p, const char *s);
/* Hash of devices, links and rows, which costs depend on; dates and notes do not count. */
uint64_t profile_hash(const struct profile *p);
int32_t profile_device_index(const struct profile *p, const char *id); /* -1: none */

/* ----------------------------------------------------------------------------- neurons ---- */

enum { NEURONS_VERSION = 1 };

/* Guesses from the input x of a layer's feed-forward block which neurons will be active: those with
 * (up relu(down x) + bias) > threshold. */
struct neurons_predictor {
    const struct gguf_tensor *down, *up; /* {k, rank}, {rank, n_ff} */
    const struct gguf_tensor *bias;      /* F32 {n_ff}; NULL: none */
    float threshold;
    /* On text that it was not trained with; 0: not known. recall: share of what active neurons hand
     * to the down product that those predicted have; predicted, active: shares of neurons. */
    float recall, predicted, active;
};

/* What is known of a layer; an array is NULL where nothing is. An order lists every index once, the
 * most active first; ties are in order of index. */
struct neurons_layer {
    int32_t n_ff, n_experts;
    const float *ffn_freq;    /* [n_ff] share of the tokens in which the neuron fires, 0 to 1 */
    const int32_t *ffn_order; /* [n_ff] set wherever ffn_freq is; alone, only the order is known */
    float
        ffn_threshold; /* of |activation|, above which a counted neuron fires; 0: unless it is 0 */
    int32_t ffn_hot;   /* how many of the first in ffn_order were chosen for the GPU; 0: unknown */
    const float *exp_freq;    /* [n_experts] share of the tokens that are routed to the expert */
    const int32_t *exp_order; /* [n_experts] set wherever exp_freq is */
    const struct neurons_predictor *predictor;
};

/* How large a value's elements were: "blk.3.ffn_act", what the activation gave a layer's neurons
 * (before it is multiplied by up), or "blk.3.attn_q.in", what that matrix reads. */
enum { NEURONS_QUANTILES = 101, NEURONS_BINS = 2048 };
struct neurons_magnitudes {
    const char *name;
    const float *quantiles; /* of 0, 1 .. 100 %, as of neurons_quantile */
    const int64_t *counts;  /* by neurons_bin, while counting is unfinished; else NULL */
};

struct neurons {
    struct arena arena;                    /* owns all strings and arrays */
    uint64_t structure_hash, content_hash; /* of the model; content 0: unknown weights */
    uint64_t tokens;                       /* number of tokens counted; 0: synthetic */
    const char *source;                    /* "counted", "synthetic", "powerinfer split" */
    const char *activation; /* "relu": of the model that was counted; NULL, "": not known */
    double level;           /* thresholds are this quantile of |activation|; 0: not counted so */
    /* The text that is counted; tokens < text_tokens: unfinished, can go on. 0, 0: no text. */
    uint64_t text_hash, text_tokens;
    struct neurons_magnitudes *magnitudes;
    int32_t n_magnitudes;
    struct neurons_layer *layers;
    int32_t n_layers;
};

/* An empty one; fill it with arrays of arena_alloc(&n->arena, ...). */
void neurons_init(struct neurons *n);
void neurons_free(struct neurons *n);
oato_status neurons_load(const char *path, struct neurons *out, struct oato_error *err);
oato_status neurons_load_memory(const void *data, size_t bytes, const char *name,
                                struct neurons *out, struct oato_error *err);
/* Orders that follow from frequencies are not stored. What neurons_load would refuse is not
 * written: OATO_EUSAGE. */
oato_status neurons_save(const struct neurons *n, const char *path, struct oato_error *err);
/* OATO_EFILE when it belongs to another model, or to other weights of the same shape. Missing
 * layers are allowed. */
oato_status neurons_check_model(const struct neurons *n, const struct gguf *g,
                                struct oato_error *err);
/* Hash of model, frequencies and orders, which plans depend on; never 0. */
uint64_t neurons_hash(const struct neurons *n);
/* NULL: nothing is known about that layer. */
const struct neurons_layer *neurons_layer(const struct neurons *n, int32_t layer);
/* NULL: the layer has none. */
const struct neurons_predictor *neurons_predictor(const struct neurons *n, int32_t layer);
/* The predictors that a PowerInfer model brings (fc1, fc2), as a sidecar that has nothing else and
 * borrows the model's tensors. OATO_EUSAGE: it brings none. neurons_free releases it, on failure
 * too. */
oato_status neurons_of_powerinfer(const struct gguf *model, struct neurons *out,
                                  struct oato_error *err);
/* NULL: not known. */
const struct neurons_magnitudes *neurons_magnitudes(const struct neurons *n, const char *name);
/* The layer N of a name "blk.N.KIND"; -1: it is another name. */
int64_t neurons_layer_of(const char *name, const char *kind);
/* Counting magnitudes: the bin of one, 0 for 0; NEURONS_BINS: not finite. Bins are 1/64 of an
 * octave wide from 2^-16 to 2^16; the second and the last one take what is beyond. */
static inline int32_t neurons_bin(float x)
{
    enum { SHIFT = 17, FIRST = (127 - 16) << 6, FINITE = 0x7f800000 };
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= INT32_MAX;
    const int32_t bin = (int32_t)(bits >> SHIFT) - FIRST + 2;
    if (bin >= 2)
        return bits >= FINITE ? NEURONS_BINS : bin < NEURONS_BINS ? bin : NEURONS_BINS - 1;
    return bits != 0;
}
/* The least upper bound of a bin below or at which at least the share q of the counted magnitudes
 * is: up to 1/64 above the quantile. */
float neurons_quantile(const int64_t counts[NEURONS_BINS], double q);
/* Imports PowerInfer's split (MODEL.generated.gpuidx) for this model. The neurons chosen for the
 * GPU come first in ffn_order and ffn_hot is their number; within both parts indices ascend.
 * *capacity_bytes is the GPU memory that they were chosen for. text_order: true undoes an exporter
 * that sorts layers by name as text (0 1 10 11 2 ...), so that its i-th set belongs to the i-th
 * layer in that order. Free with neurons_free. */
oato_status neurons_import_powerinfer(const char *path, const struct gguf *model, bool text_order,
                                      struct neurons *out, uint64_t *capacity_bytes,
                                      struct oato_error *err);
/* The indices of n frequencies, highest first, equal ones in order of index. */
void neurons_order(const float *freq, int32_t n, int32_t *order);

/* -------------------------------------------------------------------------------- plan ---- */

enum plan_phase { PHASE_PREFILL = 0, PHASE_DECODE = 1, PHASE_COUNT = 2 };

enum { PLAN_DEVICES_MAX = 64 };
struct plan_device {
    char id[16], kind[16], model[96], spec[160]; /* as in the profile */
    bool is_host; /* its memory is the host's: as in the profile, or by its kind in a plan's file */
    int32_t rank; /* process that opens it; 0 */
    int32_t host; /* of a cluster, on which the rank runs; ascending with ranks; 0 */
    uint64_t budget_bytes;  /* memory that the plan may use there */
    uint64_t planned_bytes; /* weights + KV + workspace that it does use */
};

/* Part of an operator: [begin, end) along axis runs on `device` in `phases`; its weight, or what an
 * ATTENTION reads, is in the memory of `home`. Without parts an operator runs on the host device.
 */
enum { HOME_FILE = -1 }; /* not in memory: a file of prepared weights, read at every step */
struct plan_part {
    const char *op; /* name of the operator in the fused graph */
    int64_t begin, end;
    enum op_axis axis;
    uint32_t phases; /* bits 1 << phase */
    int32_t device, home;
};

struct plan_kv { /* KV heads [head_begin, head_end) of a layer live on a device */
    int32_t layer, head_begin, head_end, device;
};

/* Of the experts that the host computes in decode, some lie on another device, too: in `slots`
 * slots, whose experts change with the choices that are seen. What a token gets depends on it only
 * by the devices' rounding. */
struct plan_cache {
    const char *op; /* the layer's expert_gate_up in the fused graph; expert_down follows it */
    int32_t device, slots;
    int32_t margin; /* thousandths of a choice that an expert must be ahead of the one it replaces,
                       for the copy to pay */
    int32_t hits;   /* predicted: of a million choices of these experts, so many lie there */
};

struct plan_fusion {
    const char *name; /* of op_fusions */
    const char *op;   /* name of the first member in the unfused graph */
};

struct plan_cost { /* predicted, integer nanoseconds; for a step of the phase as requested */
    const char *op;
    enum plan_phase phase;
    int32_t device;
    uint64_t ns, transfer_ns;
    bool estimate; /* from a roofline, not from measured points */
};

/* What is minimized: time of the request, TTFT, or time per token. */
enum plan_objective {
    OBJECTIVE_LATENCY,
    OBJECTIVE_TTFT,
    OBJECTIVE_TIME_PER_TOKEN,
    OBJECTIVE_COUNT
};

/* One kind of request: so many tokens of prompt and generated ones behind `depth` positions whose
 * KV is there already, in each sequence. */
struct plan_point {
    int32_t prompt, generate, depth;
    uint32_t weight;                /* of its time, all points together being POINTS_WEIGHT */
    uint64_t prefill_ns, decode_ns; /* predicted, as of a plan; 0: not yet */
};
enum { REQUEST_POINTS_MAX = 8, POINTS_WEIGHT = 1000000000 };

struct plan_request {
    int32_t prompt, generate, context, batch, ubatch; /* tokens; sequences; tokens a step */
    oato_dtype kv;
    bool deterministic;
    enum plan_objective objective;
    /* What a plan is for, if that is not one point without depth; prompt and generate are their
     * means then. */
    int32_t n_points;
    struct plan_point points[REQUEST_POINTS_MAX];
};

/* The points of any request: at least one. */
static inline int32_t request_points(const struct plan_request *q)
{
    return q->n_points > 0 ? q->n_points : 1;
}
struct plan_point request_point(const struct plan_request *q, int32_t i);
/* The request for these points alone, whose weights are anything above 0. */
void request_set_points(struct plan_request *q, const struct plan_point *points,
                        const double *weights, int32_t n);

/* What a plan is made for: a named workload, whose points follow from the context, or points. */
struct workload {
    const char *name; /* a row of solver/workload.c; NULL: the points */
    struct plan_point points[REQUEST_POINTS_MAX];
    double weights[REQUEST_POINTS_MAX]; /* all 0: none were given */
    int32_t n;
};
/* Reads the points of a YAML file. OATO_EFILE with file, line and column. */
oato_status workload_load(const char *path, struct workload *out, struct oato_error *err);
oato_status workload_load_memory(const void *data, size_t bytes, const char *name,
                                 struct workload *out, struct oato_error *err);

/* The largest request that oato-run takes: positions, sequences, tokens a step. */
enum { REQUEST_CONTEXT_MAX = 1 << 26, REQUEST_BATCH_MAX = 4096, REQUEST_UBATCH_MAX = 1 << 16 };

/* In this layer's feed-forward block neurons are skipped whose activation is exactly 0
 * (SPARSE_EXACT) or, with a threshold above 0, at most that far from it (SPARSE_ABOVE). Parts on
 * the devices of `dense`, a bit each, compute all of theirs. */
struct plan_sparse {
    int32_t layer;
    float threshold;
    uint32_t dense;
    uint32_t predicts; /* 1: SPARSE_PREDICT, if the sidecar has a predictor of the layer */
};

/* Elements of this matrix's input whose magnitude is at most the threshold are taken as 0 (TEAL).
 */
struct plan_input {
    const char *tensor;
    float threshold;
    float silent; /* the share of the elements that is expected to be so, 0 to 1 */
};

/* What a device of the plan was measured with; only of those whose profile says so. */
struct plan_kernels {
    int32_t device;
    const char *isa, *layout; /* as in the profile */
};

struct plan_baseline {
    const char *name; /* "cpu", "layers" */
    uint64_t objective_ns;
};

/* An option of the request that nobody gave, such as "ubatch": the planner chose for it, or left it
 * at its default. */
struct plan_choice {
    const char *option;
    bool chosen;
};

/* What an option would bring that nobody gave: the predictions of the plan with it. */
struct plan_alternative {
    const char *option; /* as the command line of oato-plan has it */
    const char *why;    /* it is faster, in a few words; may be empty */
    uint64_t prefill_ns, decode_ns, request_ns;
};

struct plan {
    struct arena arena;
    const char *tool;                                    /* version that wrote it */
    const char *model_name;                              /* general.name, for people */
    uint64_t structure_hash, content_hash, profile_hash; /* content: 0 = absent */
    /* neurons_hash of the sidecar whose order numbers the neurons and experts in FFN parts; 0:
     * natural order. */
    uint64_t neurons_hash;
    const struct neurons *neurons; /* that sidecar, if loaded; not part of the file */
    struct plan_device *devices;
    int32_t n_devices;
    struct plan_request request;
    struct plan_part *parts;
    int32_t n_parts;
    struct plan_kv *kv;
    int32_t n_kv;
    struct plan_fusion *fusions;
    int32_t n_fusions;
    struct plan_cache *caches;
    int32_t n_caches;
    struct plan_cost *costs;
    int32_t n_costs;
    struct plan_sparse
        *sparse; /* by layer; in those that are not listed all neurons are computed */
    int32_t n_sparse;
    struct plan_input *inputs; /* matrices that are not listed read all of their input */
    int32_t n_inputs;
    struct sum_choice *sums; /* of ranks, by rising bytes; none: by the tree, of F32 */
    int32_t n_sums;
    struct plan_kernels *kernels; /* by device */
    int32_t n_kernels;
    struct plan_baseline *baselines;
    int32_t n_baselines;
    struct plan_choice *choices;
    int32_t n_choices;
    struct plan_alternative *alternatives; /* the one that gains most first */
    int32_t n_alternatives;
    const char *numerics[PHASE_COUNT]; /* classes used, "+"-joined when several: "f32+u8b32" */
    /* Predicted; of several points the means by weight, of decode by the tokens generated, too. */
    uint64_t prefill_ns; /* whole prompt */
    uint64_t decode_ns;  /* one step at the middle of the generation */
    uint64_t request_ns; /* prompt + generate */
    const char *solver;  /* "ilp", "affinity", "layers", "cpu" */
    /* In the solver's cost model, which sums work that a run may overlap. Bound 0: none proven. */
    uint64_t objective_ns, bound_ns;
    bool timed_out; /* the time limit ended the search: hosts may get different plans */
};

/* An empty plan; fill it with arrays of arena_alloc(&p->arena, ...) and
 * strings that live as long as the plan. NULL strings mean "". */
void plan_init(struct plan *p);
void plan_free(struct plan *p);
/* Whether a "+"-joined list of numerics classes contains name; NULL is an empty list. */
bool plan_classes_have(const char *list, const char *name);
/* Little-endian, versioned, checksummed; see docs/plan-format.md. The same plan gives the same
 * bytes. A plan that plan_load would refuse is not written: OATO_EUSAGE. */
oato_status plan_save(const struct plan *p, const char *path, struct oato_error *err);
/* The same into memory; *data is malloc'ed. */
oato_status plan_encode(const struct plan *p, uint8_t **data, size_t *bytes,
                        struct oato_error *err);
oato_status plan_load(const char *path, struct plan *out, struct oato_error *err);
oato_status plan_load_memory(const void *data, size_t bytes, const char *name, struct plan *out,
                             struct oato_error *err);
/* OATO_EFILE and a message with both hashes when the plan was made for another model. */
oato_status plan_check_model(const struct plan *p, const struct gguf *g, struct oato_error *err);
/* Notes with what kernels the profile measured a device of the plan; devices come in their order.
 * False: memory is short. */
bool plan_put_kernels(struct plan *p, int32_t device, const struct profile *from);
/* NULL: they are not known. */
const struct plan_kernels *plan_kernels(const struct plan *p, int32_t device);
/* How many processes the plan is for: 1, unless it divides the model between ranks. */
int32_t plan_ranks(const struct plan *p);
/* Whether the ranks' accelerators sum what they divide (SUM_ACCELERATORS), one of each rank. */
bool plan_joins(const struct plan *p);
/* The type of sums on their way between the plan's hosts; of one host F32. */
oato_dtype plan_wire(const struct plan *p);
/* How neurons of this layer are skipped; NULL: none are. */
const struct plan_sparse *plan_skips(const struct plan_sparse *sparse, int32_t n, int32_t layer);
/* OATO_EUSAGE when p->neurons is not the sidecar that the plan follows, or missing. */
oato_status plan_check_neurons(const struct plan *p, struct oato_error *err);
/* Loads a model's sidecar: the file at `path` or, if that is NULL, the one beside the model
 * (dir/M.gguf: dir/M.neurons.gguf). OATO_EUSAGE: there is none, or it is another model's.
 * neurons_free releases it, on failure too. */
oato_status neurons_open(const struct gguf *model, const char *path, struct neurons *out,
                         struct oato_error *err);
/* Loads the sidecar that the plan follows into *out and makes it p->neurons: the file at `path` or,
 * if that is NULL, the one beside the model (dir/M.gguf: dir/M.neurons.gguf). It must belong to
 * plan and model. Without a path and for a plan that follows none *out is empty. neurons_free
 * releases it, after the plan's last use. */
oato_status plan_open_neurons(struct plan *p, const struct gguf *model, const char *path,
                              struct neurons *out, struct oato_error *err);
/* Fuses the model's graph as the plan says, then checks that:
 *   - every part names an operator, and the parts cover each operator exactly once per phase
 *   - parts begin and end on multiples of 64, along k also on whole weight blocks and where the
 *     input is split
 *   - both operators of a layer's experts are split alike
 *   - weights are streamed from the host only, or from a file to the host in both phases, KV from
 *     the host in prefill, and no device would load a weight twice
 *   - caches are of experts that the host computes, and not larger than these
 * *out as from graph_fuse. */
oato_status plan_apply(const struct plan *p, const struct model *m, struct graph *out,
                       struct oato_error *err);

#endif
