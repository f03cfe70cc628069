/*
 * profiler_internal.h - what the files of this room share: the list of things to time (op_set.c),
 * building and running measurement programs (rig.c), timing an operator (bench.c), rates of the
 * machine (bandwidth.c) and of its links (links.c), and the overhead of a program beyond its
 * operators (overhead.c).
 */
#ifndef OATO_PROFILER_INTERNAL_H
#define OATO_PROFILER_INTERNAL_H

#include "profiler/profiler.h"

#include <stdatomic.h>

/* ------------------------------------------------------------------ what is to be timed ---- */

/* A distinct operator of the model: all graph operators with the same key. */
struct op_case {
    struct oato_op op;
    struct graph_op shape; /* the first of them: inputs, outputs, weights */
    int32_t in_width[GRAPH_INPUTS], out_width[GRAPH_OUTPUTS];
    bool logits_only; /* runs only on rows whose logits are wanted */
    bool decode_only;
    const struct gguf_tensor *(*weights)[GRAPH_WEIGHTS]; /* of every graph operator of the case */
    int32_t n_weights;                                   /* how many such operators */
};

struct op_set {
    struct arena arena;
    struct op_case *cases;
    int32_t n;
};

/* Distinct operators of the graph and of its fused patterns, in order of first use. */
oato_status op_set_collect(const struct graph *g, oato_dtype kv, struct op_set *out,
                           struct oato_error *err);
/* Adds the operators of feed-forward blocks that skip neurons: where activations have exact zeros
 * or, if asked for, any; if asked for, also matrices that can skip inputs. And what guesses active
 * neurons where there are exact zeros: by the predictors of n (NULL: none) and by signs, if asked
 * for or with predictors. OATO_EUSAGE: asked for, and nothing can skip. */
oato_status op_set_add_sparse(const struct graph *g, bool asked, const struct neurons *n,
                              struct op_set *s, struct oato_error *err);
/* Adds the conversions of the graph's values, for devices that do not have all as float32. */
oato_status op_set_add_converts(const struct graph *g, struct op_set *s, struct oato_error *err);
void op_set_free(struct op_set *s);

/* A point at which a case is timed. */
struct op_point {
    int32_t rows, seqs; /* rows is a multiple of seqs */
    int32_t context;    /* of every sequence after the step; 0 when it does not matter */
    int32_t active;     /* neurons that are not skipped; 0: nothing is */
};
struct op_size op_point_size(const struct oato_op *op, const struct op_point *at);
/* KV positions of every sequence, and the pages that they take. */
int32_t op_point_positions(const struct op_point *at);
int32_t op_point_pages(const struct op_point *at);

enum { POINTS_MAX = 160 };
/* The points of a case, in rising order of rows and context; returns how many. */
int32_t op_points(const struct op_case *c, const struct profiler_options *o, int64_t context_length,
                  struct op_point *out);

/* The numbers of rows of a device that compiles functions for these, as far as the case has so
 * many: no other size is run. */
int32_t op_points_of_rows(const struct op_case *c, const int32_t rows[DEVICE_ROWS],
                          struct op_point *out);

/* --------------------------------------------------------------------- running programs ---- */

/* Sums that accelerators make by themselves, one of each rank. */
struct swaps {
    struct oato_device *device; /* NULL: there are none */
    void *arena;                /* the ranks' summands, each of part_bytes, and their sum */
    uint64_t part_bytes;
    int32_t rank, n_ranks, width;
};

/* swaps.c. Opened by all ranks of `ranks`, on devices of the list, for sums of up to so many rows;
 * where these cannot, warn says why if they might. swaps_time: of each of so many sums of so many
 * bytes of F32, one behind the other. */
oato_status swaps_open(struct collective *ranks, const char *devices, int32_t width, int32_t tokens,
                       struct swaps *out, warn_fn warn, void *user, struct oato_error *err);
oato_status swaps_time(const struct swaps *s, uint64_t bytes, int32_t calls, double *ns,
                       struct oato_error *err);
void swaps_close(struct swaps *s);

/* A step of equal sequences, and everything it points to. vocab: of the ids, 0 if none are read. */
struct rig_step {
    struct step step;
    struct arena arena;
    struct timeline *timelines[2];
    uint64_t base[2];
};
oato_status rig_step_create(const struct op_point *at, int32_t vocab, struct rig_step *out,
                            struct oato_error *err);
void rig_step_free(struct rig_step *s);

/* A device under measurement. */
struct rig {
    struct oato_device *device;
    struct device_info info;
    int32_t index;   /* in the profile */
    bool declared;   /* costs are declared: one run is enough, and so is one copy of the weights */
    bool leaves_out; /* rows count only the device's kernel time, without launches and waits
                        between kernels: see device_ops.measure */
    enum device_clock clock;
    bool told;              /* the user was warned that a device clock cannot be used */
    uint64_t library_bytes; /* of host memory, that opening it and a first program took */
    double *compile_s;      /* the longest that it took to compile a function; NULL: it has none */
    double unit_ns;         /* of a device that compiles spans: unit_overhead */
    uint64_t cache_bytes;   /* weights must be larger than this to come from memory */
    uint64_t model_bytes;   /* that a step reads before it reads the same weights again; 0: any */
    const uint8_t *made_up; /* weights of a header-only file, enough for its largest tensor */
};

/* The points at which the device's operators are timed. */
static inline int32_t rig_points(const struct rig *r, const struct op_case *c,
                                 const struct profiler_options *o, int64_t context_length,
                                 struct op_point *out)
{
    return r->info.spans && r->info.rows[0] && op_spans(&c->op)
               ? op_points_of_rows(c, r->info.rows, out)
               : op_points(c, o, context_length, out);
}

/* machine.c: what the open device says of itself, to its entry in the profile. False: memory is
 * short. */
bool device_describe(struct profile *p, const struct rig *rig);

/* A real accelerator, not the host or a simulated device: launches and link copies are real. */
static inline bool rig_is_hardware(const struct rig *r)
{
    return !r->info.is_host && !r->declared;
}

/* Compiles the program, whose first record must signal 1 and its last 2, and runs it as often as
 * `effort` says. inner_ns[i]: from the first signal to the last on the device's clock; whole_ns[i]:
 * the whole submit + finish. */
struct rig_effort {
    int32_t min_repeats, max_repeats;
    uint64_t budget_ns;
};
struct rig_times {
    double inner_ns[256], whole_ns[256];
    int32_t n;
};
oato_status rig_run(const struct rig *r, const struct program *p, struct rig_step *s,
                    const struct rig_effort *effort, struct rig_times *out, struct oato_error *err);
/* Gives the values of records the types that the device has in its arena; rig_time does. */
void rig_types(const struct rig *r, struct program_record *records, uint32_t n);
/* The same for n records, which get these signals and become the program's, as a step at a point;
 * of the program only memory and weights are set before. For a device that compiles spans each is
 * one, so that nothing is left out because the next one overwrites what it made; `chain`: all but
 * the first are one, and each reads what the one before it made. */
oato_status rig_time(const struct rig *r, struct program *p, struct program_record *records,
                     uint32_t n, bool chain, const struct op_point *at,
                     const struct rig_effort *effort, struct rig_times *out,
                     struct oato_error *err);
/* What calling its function adds to an operator of so many rows; 0: the device compiles none. */
static inline double rig_unit_ns(const struct rig *r, const struct oato_op *op, int32_t rows)
{
    return r->info.spans && op_spans(op) ? r->unit_ns * row_calls(row_steps(r->info.rows, rows))
                                         : 0;
}
/* Chooses the clock for the following runs; does nothing on devices without a choice. False, with
 * the reason in *why: the clock cannot be used. */
bool rig_clock(struct rig *r, enum device_clock clock, struct oato_error *why);
/* A record that runs op on the values of a graph operator; offsets and weights are still 0. */
struct program_record rig_record(const struct graph_op *shape, const struct oato_op *op,
                                 const int32_t *in_width);
/* A small addition of rows of that many floats; its values are all of an arena of
 * rig_addition_bytes. */
struct program_record rig_addition(int32_t width, int32_t rows);
static inline uint64_t rig_addition_bytes(int32_t width, int32_t rows)
{
    return 3 * (uint64_t)rows * (uint64_t)width * sizeof(float);
}
/* Device memory filled with numbers in [-1, 1). */
oato_status rig_alloc(const struct rig *r, uint64_t bytes, void **out, struct oato_error *err);
/* n values of that type in the device's memory, from and to float32. */
oato_status rig_write(const struct rig *r, void *memory, uint64_t offset, const float *x, size_t n,
                      oato_dtype type, struct oato_error *err);
oato_status rig_read(const struct rig *r, float *x, const void *memory, uint64_t offset, size_t n,
                     oato_dtype type, struct oato_error *err);
/* A random choice of experts for one token, in the format of OP_ROUTE. */
void rig_choose(const struct oato_op *op, uint32_t *random, float *out);
/* Writes random uniform choices of experts, in the format of OP_ROUTE: n blocks for `rows` tokens
 * each, `stride` bytes apart from `offset` on. */
oato_status rig_fill_choices(const struct rig *r, const struct oato_op *op, void *memory,
                             uint64_t offset, int32_t rows, uint64_t stride, int32_t n,
                             struct oato_error *err);
/* Writes every position of the KV cache, so that no page is the shared zero page. */
oato_status rig_fill_kv(const struct rig *r, struct kv_cache *kv,
                        const struct kv_layer_shape *layers, int32_t n_layers, oato_dtype dtype,
                        int32_t pages, struct oato_error *err);
/* The weight of a tensor on the device; made-up numbers for tensors of a header-only file. */
oato_status rig_prepare(const struct rig *r, const struct oato_op *op, int i,
                        const struct gguf_tensor *t, struct oato_weight **out,
                        struct oato_error *err);
uint64_t rig_prepared_bytes(const struct rig *r, const struct oato_op *op,
                            const struct gguf_tensor *const *weights, int n);

/* Rounded to a clock's precision: whole nanoseconds, tenths below 100. */
double readable_ns(double ns);

/* ---------------------------------------------------------------------- timing operators --- */

/* The prepared copies of a case's weights on a device, used at all its points. */
struct op_bench;
oato_status bench_open(const struct rig *r, const struct op_case *c, struct op_bench **out,
                       struct oato_error *err);
/* Fills row: times, memory, device, op and size. */
oato_status bench_time(struct op_bench *b, const struct op_point *at, bool quick,
                       struct profile_row *row, struct oato_error *err);
void bench_close(struct op_bench *b);

enum { PASSES_MAX = 5 };
struct passes {
    struct pass {
        struct profile_row *rows;
        int32_t n;
        size_t cap;
    } pass[PASSES_MAX];
    int n; /* started */
};
/* Adds a row to the last pass; false when memory is short. */
bool passes_add(struct passes *p, const struct profile_row *row);
/* The row of the same operator and size with the median time (the lower of two), marked as
 * disturbed if some pass took less than half as long; `like` is of a pass. */
struct profile_row passes_middle(const struct passes *p, const struct profile_row *like);
/* True when times of the same work differ so much that the machine must have been busy. On quiet
 * machines the p90 of a row is 1.1 times its p10, and in one row of a hundred twice as much. */
bool times_disagree(double least_ns, double most_ns);
void passes_free(struct passes *p);

/* ------------------------------------------------------- what interrupted runs leave (kept.c) */

enum { KEPT_DEVICES = 64 /* the most of a profile */ };
struct kept {
    const char *path; /* NULL: nothing is kept; borrowed */
    uint64_t run;     /* kept_run: rows are of the same command */
    uint64_t saved_ns;
    struct profile then; /* the file as it was found */
    struct profile now;  /* rows of then and of now, whose devices count as in the run's profile */
    int32_t resumed;     /* of these rows so many are of then */
    int passes[KEPT_DEVICES]; /* over a device's operators that are complete */
};
/* Of the model, the options and the kernels of the host. */
uint64_t kept_run(const struct model *m, const struct profiler_options *o, const char *isa);
/* p: the run's, with its devices. A file of another run is left out, with a warning. */
oato_status kept_open(struct kept *k, const char *path, uint64_t run, const struct profile *p,
                      warn_fn warn, void *user, struct oato_error *err);
/* The row in that pass (from 1 on), as an earlier run measured it; NULL: to be timed. */
const struct profile_row *kept_row(const struct kept *k, int32_t device, const struct oato_op *op,
                                   const struct op_size *size, int pass);
/* Adds what the passes over a device have so far. */
oato_status kept_add(struct kept *k, const struct passes *passes, int32_t device,
                     struct oato_error *err);
/* Time has come to write the file, in case that the run is killed. */
bool kept_due(const struct kept *k);
oato_status kept_save(struct kept *k, const struct profile *p, struct oato_error *err);
/* Saves, and says how to go on; OATO_NEGATIVE. */
oato_status kept_interrupted(struct kept *k, const struct profile *p, struct oato_error *err);
void kept_close(struct kept *k);

/* ------------------------------------------------------------------ rates and overheads ---- */

/* Bytes per second that `threads` threads read from a buffer larger than the caches. */
oato_status host_read_rate(int32_t threads, uint64_t cache_bytes, bool quick, double *bytes_per_s,
                           struct oato_error *err);
/* Operations per second of a large matrix product, the best of several element types; and, except
 * on the host, bytes per second of reading memory. */
oato_status device_rates(const struct rig *r, bool quick, double *flops_per_s,
                         double *read_bytes_per_s, struct oato_error *err);
/* Measures both directions between the host and a device, and adds the links to the profile. For
 * devices with declared costs the optional figures are left out. The rate of converted weights is
 * that of the slowest type, in bytes of the model's file. */
oato_status links_measure(struct profile *p, struct rig *r, bool quick, struct oato_error *err);
/* The same for a direct link from another device to r; adds nothing if there is none. Waiting for
 * the other's event is taken to cost what the slower of the two pays for the host's. Both must have
 * links with the host. */
oato_status links_measure_peer(struct profile *p, struct rig *r, const struct rig *from, bool quick,
                               struct oato_error *err);

/* doubts.c. Rows of the device that read memory faster than its rate allows: measures the rate and
 * the rows of the set again, for a few seconds, and marks what still contradicts the rate; *n is
 * how many rows these are, *again how many were measured again. */
oato_status doubts_settle(struct rig *r, struct profile *p, const struct op_set *set,
                          const struct profiler_options *o, int64_t context_length, int32_t *n,
                          int32_t *again, struct oato_error *err);

/* storage.c. Writes a file in the folder (NULL: that of prepared weights), to be read now and then.
 * A folder that cannot be written to is warned about; *out is then NULL, which all take. */
struct storage_meter;
oato_status storage_begin(const char *folder, bool quick, struct storage_meter **out, warn_fn warn,
                          void *user, struct oato_error *err);
/* Reads for a moment if the last time is long enough ago. Between other measurements. */
oato_status storage_now_and_then(struct storage_meter *m, struct oato_error *err);
/* Puts the rows into the profile; they stay as they were when m is NULL. */
oato_status storage_put(struct storage_meter *m, struct profile *p, struct oato_error *err);
void storage_end(struct storage_meter *m);

/* Cost of submit and finish beyond the records. */
oato_status step_overhead(const struct rig *r, bool quick, double *ns, struct oato_error *err);
/* What calling the function of a span costs beside its operators: where the line through the times
 * of chains of 1, 2 and 4 equal records in one span begins. */
oato_status unit_overhead(const struct rig *r, bool quick, double *ns, struct oato_error *err);
/* Memory of the process that is not swapped out. */
uint64_t rss_bytes(void);
/* Sets library_bytes of a device that was just opened: what the process has grown by since it had
 * `before`, once a first program has run. */
oato_status library_measure(struct rig *r, uint64_t before, struct oato_error *err);
/* Time from one nearly empty operator to the next, each launched by itself. */
oato_status launch_time(const struct rig *r, bool quick, double *ns, struct oato_error *err);
/* The model's first layers (the whole graph, when it fits) on a device, for steps of one sequence;
 * weights are prepared when a step first needs them. */
struct layers;
oato_status layers_open(const struct rig *r, const struct model *m, oato_dtype kv,
                        struct layers **out, struct oato_error *err);
void layers_close(struct layers *l);
struct layers_time {
    double together_ns, sum_ns; /* an undisturbed step; the sum of its rows in the profile */
    double mean_ns;             /* of all steps but the slowest 5 %: what a user waits */
    int32_t records;            /* in the step; 0: rows are missing */
    double more_ns;             /* the part of sum_ns for each record's rows after the first */
    bool joined;                /* join_ns was measured */
    double join_ns[JOIN_COUNT]; /* of a decode step: what each join of a kind saves */
};
/* Times one step as one program, and as the sum of its rows in p less what joins save. *t must be
 * zero at first; a second measurement, also after another layers_open, uses as many records as the
 * first. */
oato_status layers_measure(struct layers *l, const struct profile *p, const struct op_point *at,
                           bool quick, struct layers_time *t, struct oato_error *err);
/* Whole layers as programs: a decode step, and steps of a prompt. */
enum { LAYERS_DECODE, LAYERS_PROMPT, LAYERS_LONG_PROMPT, LAYERS_COUNT };
enum { LAYERS_AGAIN = 3 }; /* times more, where they contradict each other */
struct layers_times {
    struct layers_time last[LAYERS_COUNT];                   /* with the sums of the rows so far */
    double mean_ns[LAYERS_COUNT][PASSES_MAX + LAYERS_AGAIN]; /* of each time */
    double together_ns; /* of a decode step, the least so far */
    int n;
};
/* overhead.c. Whether the rows add up to what the layers take together; to no more than that, when
 * they leave something out. Differences of steps as short as a scheduler's slice tell nothing. */
bool layers_add_up(const struct rig *rig, const struct layers_times *t);
/* Whether what the layers take beyond their rows only holds beside others: undisturbed steps take
 * less, by more than what plans are to be right within. */
bool layers_beside_others(const struct rig *rig, struct layers_times *t);
/* The overheads of the device, and what joins save. */
void layers_overheads(const struct rig *rig, struct layers_times *t, struct profile_device *d);

/* The share of a decode step of the first layers with oato-run --sparse predict that the predictors
 * take: their records alone against all records. 0: no layer fits. */
oato_status layers_predict_share(const struct rig *r, const struct model *m,
                                 const struct neurons *n, double *share, struct oato_error *err);
/* Decode steps of the first layers on the host until *stop. */
oato_status layers_repeat(const struct model *m, const struct profiler_options *o,
                          const atomic_bool *stop, struct oato_error *err);
bool row_is_of(const struct profile_row *r, const struct oato_op *op, const struct op_size *size);
/* The row of p for op at this size on the device, or NULL. */
const struct profile_row *profile_find(const struct profile *p, int32_t device,
                                       const struct oato_op *op, const struct op_size *size);

#endif
