/*
 * solver.h - from a model, a profile and a request to a plan. Three layers, each usable alone:
 *
 *   cost      nanoseconds and bytes of one operator on one device, out of the profile
 *   instance  units to place, devices with capacities, values that cross: numbers only
 *   planner   fusion cover + instance + solvers -> struct plan, and what is said about plans
 *
 * Nothing here opens a device. Solvers compare integer nanoseconds and break ties by index, so
 * the same inputs give the same plan on any host unless the clock ended the search.
 */
#ifndef OATO_SOLVER_H
#define OATO_SOLVER_H

#include "planfmt/planfmt.h"

enum { SOLVER_DEVICES = 8 };

/* ------------------------------------------------------------------------------- cost ----- */

struct cost_model; /* the profile's rows, sorted for look-up; borrows the profile */

oato_status cost_create(const struct profile *p, struct cost_model **out, struct oato_error *err);
void cost_free(struct cost_model *c);

struct op_cost {
    double ns;
    bool estimate;        /* this shape was never measured: a roofline */
    const char *numerics; /* class of the nearest measured point; NULL when unknown */
};

/* May the operator run there at all? Never measured there: as other shapes of its kind and type;
 * of an unknown kind: on the host only. */
bool cost_supports(const struct cost_model *c, int32_t device, const struct oato_op *op);
/* True when the profile has a supported row of this kind and type on the device, or the device is
 * one of a data sheet and nothing says otherwise. */
bool cost_lists(const struct cost_model *c, int32_t device, const struct oato_op *op);
/* True when this very shape was measured on the device. */
bool cost_measured(const struct cost_model *c, int32_t device, const struct oato_op *op);
/* The time of one run, without what a program adds per record. Measured sizes are exact; between
 * them rows (and KV positions per row) are interpolated linearly, above the last in proportion;
 * below the first along the line of the first two, between in proportion and constant. */
struct op_cost cost_of_op(const struct cost_model *c, int32_t device, const struct oato_op *op,
                          const struct op_size *size);
/* Memory of the prepared weights; `file_bytes` when they were never prepared there. */
uint64_t cost_prepared_bytes(const struct cost_model *c, int32_t device, const struct oato_op *op,
                             uint64_t file_bytes);
/* Scratch memory of runs of up to `rows` rows: of the smallest measured size that is no smaller,
 * else the largest, in proportion; an estimate on accelerators of a data sheet, which have no
 * sizes.
 */
uint64_t cost_workspace_bytes(const struct cost_model *c, int32_t device, const struct oato_op *op,
                              int32_t rows);
/* One copy over a link of the profile, waiting for it included; a negative number when there is
 * no such link. Free between host devices. */
double cost_of_copy(const struct cost_model *c, int32_t from, int32_t to, double bytes);
/* The same of weights that are `bytes` in the model's file and are streamed to a device: at the
 * rate at which the host converts them on their way, where that was measured. */
double cost_of_stream(const struct cost_model *c, int32_t from, int32_t to, double bytes);

/* --------------------------------------------------------------------------- instance ----- */

/* Sums and products of prices end here, at 73 years, and never wrap: two of these can be added. */
static const int64_t NS_MAX = INT64_MAX / 4;

static inline int64_t ns_add(int64_t a, int64_t b)
{
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? NS_MAX : min_i64(sum, NS_MAX);
}
static inline int64_t ns_times(int64_t times, int64_t ns)
{
    int64_t product;
    return __builtin_mul_overflow(times, ns, &product) ? NS_MAX : min_i64(product, NS_MAX);
}

struct price { /* whole nanoseconds: what is minimised; all prompts, and one decode step */
    int64_t objective_ns, prefill_ns, decode_ns;
};
void price_add(struct price *sum, const struct price *p);

/* One way to run a unit: whole on a device or, where it can be divided into groups (of neurons,
 * rows or experts), with a share of them on each of several, which then run at the same time. */
struct option {
    struct price price;             /* all it does, copies between its own parts included */
    uint64_t bytes[SOLVER_DEVICES]; /* resident there */
    int16_t in[PHASE_COUNT];        /* the device that reads its inputs, */
    int16_t out[PHASE_COUNT];       /* that has its outputs: the same in both phases, unless */
    int16_t stream; /* prefill of the host's share runs here, its weights copied over
                      the link each time; -1: it runs on the host */
    bool allowed;
    uint8_t uses;                   /* devices that do anything, a bit each */
    uint16_t share[SOLVER_DEVICES]; /* groups on each device; accelerators hold the first ones. All
                                       zero: the unit is not divided */
};

/* What is placed as one: an operator, or several that must stay together. */
struct unit {
    int32_t layer; /* -1 before the first, n_layers after the last */
    int32_t n_options;
    struct option *options; /* the first n_devices: all of it on that device, nothing streamed */
};

/* A value that other units read. In either phase it leaves its producer's device at most once and
 * enters each other device that reads it at most once; both are zero for host devices. Between
 * accelerators that reach each other it goes directly, and does neither. */
struct edge {
    int32_t producer;
    int32_t first_reader, n_readers; /* in instance.readers; distinct, without the producer */
    bool host_reads;                 /* the caller wants it, too (logits) */
    struct price leave[PHASE_COUNT][SOLVER_DEVICES], enter[PHASE_COUNT][SOLVER_DEVICES];
    struct price (*direct)[SOLVER_DEVICES][SOLVER_DEVICES]; /* [phase][from][to], where the instance
                                                               has such ways; else NULL */
};

struct instance {
    int32_t n_devices, host; /* host: where units run unless placed elsewhere */
    bool is_host[SOLVER_DEVICES];
    bool direct[SOLVER_DEVICES]
               [SOLVER_DEVICES];        /* [from][to]: values need not meet in host memory */
    bool usable[SOLVER_DEVICES];        /* false: nothing may be placed there */
    uint64_t capacity[SOLVER_DEVICES];  /* for units: budget less what a used device always needs */
    uint64_t staging[SOLVER_DEVICES];   /* what streaming to the device takes of that */
    uint32_t streams;                   /* devices that may be streamed to, a bit each */
    struct price fixed[SOLVER_DEVICES]; /* of a device with any unit; the host's always */
    int32_t n_layers, n_units, n_edges, n_readers;
    struct unit *units;
    struct edge *edges;
    int32_t *readers;
};

/* A placement is the number of an option for each unit: place[n_units]. */
static inline const struct option *instance_option(const struct instance *in, const int32_t *place,
                                                   int32_t unit)
{
    return &in->units[unit].options[place[unit]];
}
/* In both phases the option reads on device `in` and writes on device `out`. */
void option_lie(struct option *o, int32_t in, int32_t out);
bool instance_allows(const struct instance *in, int32_t unit, int32_t option);
/* True when parts of the unit run on several devices. */
bool option_divided(const struct option *o);
/* The same problem where exactly the given devices may be streamed to and set memory aside for it;
 * false when one of them has too little. Borrows the arrays of `in`. */
bool instance_with_streams(const struct instance *in, uint32_t streams, struct instance *out);
/* The devices where a placement does anything, the host among them. */
uint32_t instance_uses(const struct instance *in, const int32_t *place);
/* The devices that a placement streams to. */
uint32_t instance_streams(const struct instance *in, const int32_t *place);
struct price instance_price(const struct instance *in, const int32_t *place);
struct price edge_price(const struct instance *in, const struct edge *e, const int32_t *place);
/* True when every unit is allowed as it is and every capacity holds; used (may be NULL) gets the
 * bytes per device, without staging. */
bool instance_fits(const struct instance *in, const int32_t *place, uint64_t *used);

/* Where the parts of a divided unit meet is not part of a plan: it follows from what is around it.
 * Chooses for each the end that costs least, unit after unit. */
void instance_settle(const struct instance *in, int32_t *place);

/* Which units are taken; NULL: all. */
typedef bool unit_filter(const void *user, int32_t unit);
/* The layer's wanted units that device d may hold go there if they all fit in what is left; adds
 * their bytes to used[d]. */
bool instance_take_layer(const struct instance *in, int32_t layer, unit_filter *wanted,
                         const void *user, int32_t d, uint64_t *used, int32_t *place);
/* Layers from the last to the first, the output before them; what does not fit ends one device and
 * begins the next. */
void instance_take_layers(const struct instance *in, unit_filter *wanted, const void *user,
                          uint64_t *used, int32_t *place);

/* Solvers fill place[n_units] and return false when they find nothing that fits. */
bool solve_cpu(const struct instance *in, int32_t *place);
/* Whole layers: instance_take_layers. */
bool solve_layers(const struct instance *in, int32_t *place);
enum { AFFINITY_ROUNDS = 64 };
struct affinity_round {
    int64_t objective_ns;
    int32_t moved, on_accelerators; /* units that the round placed anew; that are not on the host */
    bool fits;
};
/* OATO's Algorithm 1; single_shot stops after the first order. trace (may be NULL) has room for
 * *n_trace rounds and receives as many as there were. OATO_NEGATIVE: nothing fits. */
oato_status solve_affinity(const struct instance *in, bool single_shot, int32_t *place,
                           struct affinity_round *trace, int32_t *n_trace, struct oato_error *err);

enum ilp_form { ILP_AUTO, ILP_PLAIN, ILP_PATH };

struct ilp_options {
    enum ilp_form form;   /* AUTO: a path of tabulated blocks where the instance falls apart */
    double gap;           /* relative; 0 = exact */
    uint64_t deadline_ns; /* of now_ns(): whatever is under way ends then; 0: none */
    bool no_walk;         /* path form: branch and bound alone, for tests */
    bool no_search;       /* path form: no branch and bound; the gap may stay open */
    /* For one of several problems whose best is wanted: OATO_NEGATIVE after the relaxation, with
     * its bound; and nothing that is slower than this is looked for (0: everything is). */
    bool relax_only;
    int64_t enough_ns;
};
struct ilp_result {
    int64_t objective_ns;
    int64_t bound_ns; /* no placement is faster; 0: not known, INT64_MAX: none fits */
    bool timed_out;   /* the deadline ended something */
};
/* The deadline of what begins now and may take so many seconds (0: any time). */
uint64_t ilp_deadline(double seconds);
/* That of the first of so many that share what is left until then. */
uint64_t ilp_share(uint64_t deadline_ns, int32_t of);
/* warm (may be NULL) is a placement that fits: the result is never worse. OATO_NEGATIVE: proven
 * that nothing fits, or nothing found in time. */
oato_status solve_ilp(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                      int32_t *place, struct ilp_result *result, struct oato_error *err);

/* ---------------------------------------------------------------------------- problem ----- */

struct device_budget {
    char id[16];
    uint64_t bytes;
};

struct planner_options {
    const char *solver; /* "auto", "ilp", "affinity", "powerinfer", "fit", "layers", "cpu" */
    bool single_shot;
    const char *devices; /* "cpu:0,sim:0": of the profile's; NULL: all */
    struct device_budget budgets[SOLVER_DEVICES];
    int32_t n_budgets;   /* devices without one may use 90 % of what was free */
    bool strict_budgets; /* one that is too small for activations alone is an error, not a device
                            that stays unused; 0 leaves it out */
    struct plan_request request;
    double time_limit_s, gap;      /* gap negative: 0 for small problems, else 1e-3 */
    const struct neurons *neurons; /* how often neurons and experts fire; NULL: all, all the time */
    bool whole_only;               /* nothing is divided or streamed */
};

void planner_options_init(struct planner_options *o);

struct op_price { /* of one operator of the fused graph on one device */
    bool supported, estimate;
    int64_t prefill_ns, decode_ns; /* whole prompts; one step */
    uint64_t weight_bytes, kv_bytes;
    const char *numerics[PHASE_COUNT];
};

/* How a unit falls into groups; groups 0: it can't be divided. What is left over behind the last
 * group goes with it. */
struct division {
    int32_t group, groups, extent; /* rows, neurons or experts of a group; groups; in all */
    const double *active; /* [groups + 1]: share of the whole's work in a decode step that the first
                             groups do */
};

/* What of a layer goes on in prefill while its weights are streamed. */
struct layer_flow {
    int64_t other_ns; /* its operators without matrices, and those whose matrices no accelerator
                         takes, each where it is fastest */
    uint64_t matrix_bytes; /* of its other matrices in the file */
};

/* Everything that is known before solving. */
struct problem {
    struct arena arena;
    const struct profile *profile; /* borrowed, as is the model behind the graph */
    struct cost_model *cost;
    struct graph graph; /* fused */
    struct plan_request request;
    int32_t n_devices;
    int32_t device[SOLVER_DEVICES];                           /* index in the profile */
    uint64_t budget[SOLVER_DEVICES], reserve[SOLVER_DEVICES]; /* bytes; reserve: activations and
                                                                 workspace of a used device */
    struct plan_fusion *fusions;
    int32_t n_fusions;
    const struct neurons *neurons; /* borrowed; NULL: none */
    bool whole_only;
    int32_t *unit_of;          /* per operator */
    int32_t *first_op;         /* per unit */
    struct division *division; /* per unit */
    struct divided *divided;   /* units whose options others may share (divide.c) */
    struct layer_flow *flow;   /* per layer, from -1 to n_layers */
    int32_t *edge_of;          /* per value; -1: nobody else reads it */
    struct price (*direct)[SOLVER_DEVICES][SOLVER_DEVICES]; /* of edges, [edge * PHASE_COUNT] */
    struct op_price *price;                                 /* [operator * n_devices + device] */
    struct affinity_round rounds[AFFINITY_ROUNDS]; /* of the iterated affinity, once it was tried */
    int32_t n_rounds;
    struct instance instance;
};

/* Chooses the fusion cover and prices everything. The model is borrowed until problem_free. */
oato_status problem_create(const struct model *m, const struct profile *p,
                           const struct planner_options *o, struct problem **out,
                           struct oato_error *err);
/* The same for the cover, devices, request and budgets of a plan (no more than what is free now):
 * what it costs under this profile. place (n_units, in the problem's arena) is the plan's. */
oato_status problem_of_plan(const struct model *m, const struct profile *p, const struct plan *plan,
                            struct problem **out, int32_t **place, struct oato_error *err);
/* Operators that were timed on a busy machine: with a disturbed row on one of the devices. */
int32_t problem_disturbed(const struct problem *p);
void problem_free(struct problem *p);
/* Sets aside what streaming to these devices takes, of the memory for units. */
void problem_stream(struct problem *p, uint32_t streams);
/* Bytes that a placement takes on each device, its reserve included; 0 where it does nothing. */
void problem_memory(const struct problem *p, const int32_t *place, uint64_t *need);
const char *problem_device(const struct problem *p, int32_t device);

/* Profile of a machine of the hardware library (docs/hardware), by its name. OATO_EUSAGE with all
 * names when there is none. profile_free it. */
oato_status hardware_load(const char *name, struct profile *out, warn_fn warn, void *user,
                          struct oato_error *err);

/* What others would do (baselines.c); place[n_units]. False, or *fits false: nothing fits. */
bool baseline_fit(const struct problem *p, int32_t *place);
oato_status baseline_powerinfer(const struct problem *p, int32_t *place, bool *fits,
                                struct oato_error *err);
/* Only what it would cost. */
bool baseline_flexgen(const struct problem *p, struct price *out);

/* A request without tokens, or that its context does not hold, is OATO_EUSAGE; out of a plan it is
 * OATO_EFILE. */
oato_status request_check(const struct plan_request *q, struct oato_error *err);
oato_status request_check_plan(const struct plan *plan, struct oato_error *err);

/* ---------------------------------------------------------------------------- planner ----- */

/* Solves and fills the plan. OATO_EFIT with what is missing when nothing fits. *problem (may be
 * NULL) receives the problem for reports. */
oato_status planner_make(const struct model *m, const struct profile *p,
                         const struct planner_options *o, struct plan *out,
                         struct problem **problem, struct oato_error *err);

/* The largest context, in whole pages of KV up to what the model was trained for, for which there
 * is a plan that decodes at_least tokens/s (of all sequences; 0: any speed); out is that plan.
 * Where the best plan for the objective is too slow, the one with the fastest decode is tried.
 * bound gets a line that says what stands against more. OATO_EFIT when even the request's own
 * tokens do not fit or are too slow. */
oato_status context_maximize(const struct model *m, const struct profile *profile,
                             const struct planner_options *o, double at_least, struct plan *out,
                             struct problem **problem, struct text *bound, struct oato_error *err);

/* ---------------------------------------------------------------------------- reports ----- */

/* "latency", "ttft", "time-per-token": as --minimize takes them. */
extern const char *const objective_names[OBJECTIVE_COUNT];

/* All append to text; with json, one JSON object. */
void report_plan(const struct plan *p, const struct problem *problem, bool json, struct text *out);
/* True when the plans are the same, byte for byte. */
oato_status report_diff(const struct plan *a, const struct plan *b, bool json, bool *same,
                        struct text *out, struct oato_error *err);
/* Why things are where they are. name: an operator, one of its fused members or a tensor; NULL:
 * all operators, a line each. Without model and profile only what the plan itself recorded. */
oato_status report_explain(const struct plan *p, const struct model *m,
                           const struct profile *profile, const char *name, bool json,
                           struct text *out, struct oato_error *err);
/* plan_export for a person or a program: the command to out; what it can't say a line each to lost
 * or, with json, beside it. */
oato_status report_export(const struct plan *p, const struct model *m,
                          const struct export_options *o, bool json, struct text *out,
                          struct text *lost, struct oato_error *err);
/* Speed against memory: plans with 0 to 100 % of the accelerators' budgets in so many steps, as CSV
 * a line each, beside the rule of whole layers (`layers`); svg (may be NULL): both as curves. */
oato_status report_frontier(const struct model *m, const struct profile *profile,
                            const struct planner_options *o, int32_t steps, bool json,
                            struct text *out, struct text *svg, struct oato_error *err);
/* Prices the plan anew: OATO_NEGATIVE when it got slower than predicted or is farther from the
 * best plan of today than max_slower (0.05 = 5 %) and the dispersion that the profile measured
 * (what it takes longer at the median of its rows than at their p10), or no longer fits. */
oato_status report_check(const struct plan *p, const struct model *m, const struct profile *profile,
                         double max_slower, double time_limit_s, bool json, struct text *out,
                         struct oato_error *err);

/* ------------------------------------------------------------------------- simulation ----- */

struct simulation; /* a plan's request on a virtual clock, record by record */

/* Runs prefill and decode of the plan's request as the executor would (one queue per device, one
 * copy engine for streamed weights), with the profile's costs of single operators and copies. Of
 * many steps of a kind the first, middle and last are run. Independent of what the planner
 * predicted, but neurons and experts are as active as it took them to be. Borrows plan and profile.
 */
oato_status simulation_run(const struct plan *plan, const struct model *m,
                           const struct profile *profile, struct simulation **out,
                           struct oato_error *err);
void simulation_free(struct simulation *s);
/* Sets what the plan predicts: its run on the virtual clock. Decode stays where none is generated.
 */
oato_status simulation_predict(struct plan *plan, const struct model *m,
                               const struct profile *profile, struct oato_error *err);
/* Times against the plan's predictions, what devices do and for whom they wait. */
void report_simulation(const struct simulation *s, bool json, struct text *out);
/* The simulated steps as Chrome/Perfetto trace events: a process per device, a thread per queue. */
void report_trace(const struct simulation *s, struct text *out);

/* The plan as one HTML file without scripts or links: placement, memory, simulated time lines,
 * dearest operators and, with frontier, speed against memory (a few plans more). */
oato_status report_html(const struct plan *p, const struct model *m, const struct profile *profile,
                        bool frontier, struct text *out, struct oato_error *err);

/* -------------------------------------------------------------------------------- files ---- */

/* Writes the header-only file of a model and says what it is. */
oato_status report_header(const char *model, const char *path, bool json, struct text *out,
                          struct oato_error *err);
/* Writes PowerInfer's split as a neurons sidecar of the model and says what it holds. */
oato_status report_import(const char *split, const char *model, bool text_order, const char *path,
                          bool json, struct text *out, struct oato_error *err);

#endif
