/*
 * solver.h - from a model, a profile and a request to a plan. Three layers, each usable alone:
 *
 *   cost      nanoseconds and bytes of one operator on one device (cost_internal.h)
 *   instance  units to place, devices with capacities, values to copy: numbers only
 *   planner   fusion cover + instance + solvers -> struct plan, and reports about plans
 *
 * Nothing here opens a device. Solvers compare integer nanoseconds and break ties by index: equal
 * inputs give equal plans on any host unless the time limit ended the search.
 */
#ifndef OATO_SOLVER_H
#define OATO_SOLVER_H

#include "planfmt/export.h"
#include "planfmt/planfmt.h"

enum { SOLVER_DEVICES = DEVICES_MAX };

/* --------------------------------------------------------------------------- instance ----- */

/* Prices saturate here, at 73 years: nothing wraps, and two of these can be added. */
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

struct price { /* whole nanoseconds: of the objective, of all prompts, of one decode step */
    int64_t objective_ns, prefill_ns, decode_ns;
};
void price_add(struct price *sum, const struct price *p);
bool price_equal(const struct price *a, const struct price *b);

/* One way to run a unit: whole on a device or, if it can be split into groups (of neurons, rows or
 * experts), with a share of the groups on each of several devices, which run in parallel. */
struct option {
    struct price price;             /* of the unit, copies between its parts included */
    uint64_t bytes[SOLVER_DEVICES]; /* resident there */
    int16_t in[PHASE_COUNT];        /* end that reads the inputs: a device, or a team */
    int16_t out[PHASE_COUNT]; /* end that has the outputs; differs by phase only if streamed */
    int16_t team;             /* end of the team that divides the unit by heads; 0: none does */
    int16_t stream;           /* device that runs prefill of the host's share, its weights copied
                                over the link each time; -1: it runs on the host */
    uint64_t staged;          /* bytes of the largest record whose weights are streamed */
    uint64_t rooms;           /* not 0: KV of the host that is streamed to `stream`, for prefill of
                                 the unit; bytes that it takes there for all such units together */
    bool filed;               /* nothing of it is the host's: whole on `stream` in both phases, its
                                 matrices from a file by way of the host's memory */
    uint8_t stores; /* what is read from a file at every step: of the unit's operators that
                       can be (storage.c) a bit each; not `filed`: whole on the host */
    bool allowed;
    bool shared;                    /* in equal shares by a team, so that it goes with teams */
    uint32_t uses;                  /* devices in use, a bit each */
    uint32_t dense;                 /* devices whose part skips no neurons, a bit each */
    bool predicts;                  /* for the others predictors list before gate which ones */
    uint16_t share[SOLVER_DEVICES]; /* groups on each device; accelerators have the first ones. All
                                       zero: the unit is not split */
};

/* What is placed as a whole: an operator, or several that must stay together. */
struct unit {
    int32_t layer; /* -1 before the first, n_layers after the last */
    int32_t n_options;
    struct option *options; /* option d < n_devices: whole on device d, nothing streamed */
};

/* A value that other units read. In each phase it is copied from its producer's device to host
 * memory at most once (leave), and from there to each other device that reads it at most once
 * (enter); both cost nothing for instance.host. Accelerators with a direct link copy it directly
 * instead. */
static const int64_t NEVER_NS = NS_MAX / 2; /* of a copy that no plan makes */

struct edge {
    int32_t producer;
    int32_t first_reader, n_readers; /* in instance.readers; no duplicates, producer left out */
    bool host_reads;                 /* the host needs it, too (logits) */
    struct price leave[PHASE_COUNT][SOLVER_DEVICES], enter[PHASE_COUNT][SOLVER_DEVICES];
    struct price (*direct)[SOLVER_DEVICES][SOLVER_DEVICES]; /* [phase][from][to]; NULL if the
                                                               instance has no direct links */
};

struct instance {
    int32_t n_devices, host; /* host: where units run unless placed elsewhere */
    bool is_host[SOLVER_DEVICES];
    /* Where values lie, an end: a device or, behind these, a team, between whose devices, a bit
     * each, the value is divided by heads */
    int32_t n_teams;
    uint32_t team[SOLVER_DEVICES];
    bool direct[SOLVER_DEVICES]
               [SOLVER_DEVICES]; /* [from][to]: ends with direct links, not through host memory */
    bool usable[SOLVER_DEVICES]; /* false: nothing may be placed there */
    uint64_t capacity[SOLVER_DEVICES]; /* for units: budget minus reserve of a used device */
    /* Part of the capacity that streaming to the device takes: room for two records, of any option
     * that is allowed */
    uint64_t staging[SOLVER_DEVICES];
    uint64_t rooms[SOLVER_DEVICES];     /* and what KV that is streamed to it takes */
    uint32_t streams;                   /* devices that may be streamed to, a bit each */
    struct price fixed[SOLVER_DEVICES]; /* of a device in use; the host always is */
    int32_t n_layers, n_units, n_edges, n_readers;
    struct unit *units;
    struct edge *edges;
    int32_t *readers;
};

static inline int32_t instance_ends(const struct instance *in)
{
    return in->n_devices + in->n_teams;
}

/* A placement is the number of an option for each unit: place[n_units]. */
static inline const struct option *instance_option(const struct instance *in, const int32_t *place,
                                                   int32_t unit)
{
    return &in->units[unit].options[place[unit]];
}
/* Makes the option read on device `in` and write on device `out` in both phases. */
void option_lie(struct option *o, int32_t in, int32_t out);
bool instance_allows(const struct instance *in, int32_t unit, int32_t option);
/* True when parts of the unit run on several devices. */
bool option_divided(const struct option *o);
/* The same problem with streaming to exactly the given devices, which set memory aside for it;
 * false when one of them has too little. Borrows the arrays of `in`. */
bool instance_with_streams(const struct instance *in, uint32_t streams, struct instance *out);
/* The devices that a placement uses, including the host. */
uint32_t instance_uses(const struct instance *in, const int32_t *place);
/* The devices that a placement streams to; staging and rooms get what each needs for weights and
 * for KV. */
uint32_t instance_streams(const struct instance *in, const int32_t *place,
                          uint64_t staging[SOLVER_DEVICES], uint64_t rooms[SOLVER_DEVICES]);
struct price instance_price(const struct instance *in, const int32_t *place);
struct price edge_price(const struct instance *in, const struct edge *e, const int32_t *place);
/* The edges that a unit makes or reads: edges[first[unit] .. first[unit + 1]). */
struct edges_around {
    int32_t *first, *edges;
};
/* Finds them for all units, in the arena; false: memory is short. */
bool edges_around_find(const struct instance *in, struct arena *a, struct edges_around *out);
/* The objective's share of a unit's edges. */
int64_t edges_around_ns(const struct instance *in, const struct edges_around *x, int32_t unit,
                        const int32_t *place);
/* True when every unit's option is allowed and no capacity is exceeded; used (may be NULL) gets the
 * bytes per device, without staging. */
bool instance_fits(const struct instance *in, const int32_t *place, uint64_t *used);

/* Chooses, unit by unit, the cheapest device on which the parts of a split unit are merged. A plan
 * does not store it: it follows from the neighbouring units. */
void instance_settle(const struct instance *in, int32_t *place);

/* Which units are taken; NULL: all. */
typedef bool unit_filter(const void *user, int32_t unit);
/* Puts the layer's wanted units that device d may hold on d if they all fit in its free memory;
 * adds their bytes to used[d]. */
bool instance_take_layer(const struct instance *in, int32_t layer, unit_filter *wanted,
                         const void *user, int32_t d, uint64_t *used, int32_t *place);
/* Places the output, then layers from the last to the first; when one does not fit, the next device
 * is filled. */
void instance_take_layers(const struct instance *in, unit_filter *wanted, const void *user,
                          uint64_t *used, int32_t *place);

/* Solvers fill place[n_units] and return false when they find nothing that fits. */
bool solve_cpu(const struct instance *in, int32_t *place);
/* Whole layers: instance_take_layers. */
bool solve_layers(const struct instance *in, int32_t *place);
enum { AFFINITY_ROUNDS = 64 };
struct affinity_round {
    int64_t objective_ns;
    int32_t moved, on_accelerators; /* units moved by the round; units not on the host */
    bool fits;
};
/* The deadline of a search. Every long loop checks it and sets `ended` when it stops. */
struct ilp_clock {
    uint64_t deadline_ns; /* in now_ns() time; 0: none */
    bool ended;           /* the deadline stopped some work */
};
/* True from the deadline on. */
bool ilp_late(struct ilp_clock *c);

/* OATO's Algorithm 1; single_shot stops after the first order, and the deadline (clock NULL: none)
 * after the last whole round. trace (may be NULL) has room for AFFINITY_ROUNDS; *n_trace is set to
 * their number. OATO_NEGATIVE: nothing fits. */
oato_status solve_affinity(const struct instance *in, bool single_shot, struct ilp_clock *clock,
                           int32_t *place, struct affinity_round *trace, int32_t *n_trace,
                           struct oato_error *err);

struct ilp_options {
    double gap;           /* relative; 0 = exact */
    uint64_t deadline_ns; /* in now_ns() time: all work stops then; 0: none */
    bool no_walk;         /* branch and bound alone, for tests */
    bool no_search;       /* no branch and bound; the gap may stay open */
    int32_t walks;        /* as many at most, each through more than the one before; 0: all */
    /* For the best of several problems. relax_only: stop after the relaxation, OATO_NEGATIVE with
     * its bound. enough_ns: search only for placements faster than this; 0: no such limit. */
    bool relax_only;
    int64_t enough_ns;
};
struct ilp_result {
    int64_t objective_ns;
    int64_t bound_ns; /* no placement is faster; 0: unknown, INT64_MAX: none fits */
    int64_t roomy_ns; /* search_placement: of its roomy one; 0: there is none */
    bool timed_out;   /* the deadline ended something */
};
/* The deadline this many seconds from now (0: no deadline). */
uint64_t ilp_deadline(double seconds);
/* The deadline of the first of `of` tasks that share the remaining time equally. */
uint64_t ilp_share(uint64_t deadline_ns, int32_t of);
/* That of a task that is mostly the last one, so that another one has time, too. */
uint64_t ilp_most(uint64_t deadline_ns);
/* The first of two deadlines, each of which may be none. */
uint64_t ilp_sooner(uint64_t a, uint64_t b);
/* warm (may be NULL) is a placement that fits: the result is never worse. OATO_NEGATIVE: proven
 * that nothing fits, or nothing found in time, or a block of the instance is too large to tabulate.
 */
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
    int32_t n_budgets;   /* devices without one: 90 % of the free memory */
    bool strict_budgets; /* a budget too small for activations alone is an error; else the device
                            stays unused. A budget of 0 always leaves it out */
    struct plan_request request;
    const struct workload *workload; /* what the request's points follow from: workload_set; NULL:
                                        the request is as it is */
    double time_limit_s, gap; /* gap negative: 0 for small problems, else 1e-3; limit 0: none */
    uint64_t deadline_ns;     /* in now_ns() time, of all plans that are made with these options,
                                 each of which may take time_limit_s; 0: none */
    const struct neurons *neurons; /* how often neurons and experts fire; NULL: always */
    /* Whether silent neurons are skipped. Given: in all layers where they can be. Else: those whose
     * activation is exactly 0, in layers of ReLU kinds whose neurons fire so seldom that it pays;
     * and those that a good predictor does not name, where that pays more. */
    struct sparse_choice sparse;
    bool whole_only;          /* nothing is split or streamed */
    const struct plan *cover; /* fuses as this plan does; NULL: as is best */
    int32_t by_ranks; /* nothing is fused that so many ranks could not divide, and what they cannot
                         divide is on the host; 0: there are none */
    bool joined;      /* with by_ranks: it is on the only accelerator, but for lookups */
    /* Only operators of these layers count, as the graph numbers them: -1 is what precedes the
     * first one, and what follows the last one has their number. Equal: all */
    int32_t layer_begin, layer_end;
    bool resident_only; /* OATO_EFIT where weights would be streamed from a file */
    /* Slots of a cache for the experts of each layer that the host decodes; 0: none. CACHE_AUTO: as
     * many as fit into what the plan leaves free, if that is predicted to be faster */
    int32_t expert_cache;
    bool cache_room;   /* what `aside` has for it is all; else that is chosen, too */
    bool any_ubatch;   /* steps are as wide as is best, of the powers of two from 64 to 8192;
                          request.ubatch does not count */
    bool any_kv;       /* KV is F16 or, where that is worth it, Q8_0; request.kv does not count */
    int64_t enough_ns; /* only plans of a smaller objective are of use: OATO_NEGATIVE when there is
                          none; 0: any is */
    /* By the plan's device: what activations and workspace take beyond what they are first taken to
     * need. planner_make raises it until the plan's programs fit */
    uint64_t aside[SOLVER_DEVICES];
    bool own_kernels; /* no libraries of the devices' vendors; planner_make tries that where they
                         leave an accelerator little room */
    bool tight; /* activations and workspace first count nothing, since a device with few operators
                   needs little; planner_make tries that where nothing fits */
};

enum { CACHE_AUTO = -1 };

void planner_options_init(struct planner_options *o);

struct op_price { /* of one operator of the fused graph on one device */
    bool supported, estimate;
    int64_t prefill_ns, decode_ns;   /* whole prompts; one step */
    uint64_t weight_bytes, kv_bytes; /* weights: and functions that it alone needs */
    const char *numerics[PHASE_COUNT];
};

/* How a unit is split into groups; groups 0: it cannot be split. The last group also gets the
 * remainder. */
struct division {
    int32_t group, groups, extent; /* group: rows, neurons or experts per group; extent: in total */
    const double *active; /* [groups + 1]: fraction of a decode step's work that the first i groups
                             do */
};

/* Work of a layer that overlaps the streaming of its weights in prefill. */
struct layer_flow {
    int64_t other_ns;      /* operators without matrices, and those whose matrices no accelerator
                              supports, each where it is fastest */
    uint64_t matrix_bytes; /* of the other matrices, in file format */
};

/* Equal accelerators that divide layers' attention by heads (heads.c). */
struct team {
    int32_t n, member[SOLVER_DEVICES];
    const struct cut_op *cut; /* per operator; without a cut: all do all of it */
    const bool *columns;      /* per value: parts read only the columns that their device made */
};

/* What an operator skips: a share of its inputs, or of its rows what predictors do not list. */
struct silence {
    double share;
    const struct plan_sparse *list; /* NULL: none */
};

/* Everything that is known before solving. */
struct problem {
    struct arena arena;
    const struct profile *profile; /* borrowed, as is the model behind the graph */
    struct cost_source *cost;
    struct graph graph; /* fused */
    struct plan_request request;
    int32_t n_devices;
    int32_t device[SOLVER_DEVICES];                           /* index in the profile */
    uint64_t budget[SOLVER_DEVICES], reserve[SOLVER_DEVICES]; /* bytes; reserve: activations and
                                                                 workspace of a used device */
    struct plan_fusion *fusions;
    int32_t n_fusions;
    const struct neurons *neurons; /* borrowed; NULL: none */
    struct plan_sparse *sparse;    /* layers whose silent neurons may be skipped */
    int32_t n_sparse;
    struct sparse_choice choice; /* of the options */
    struct plan_input *inputs;   /* matrices that skip inputs */
    int32_t n_inputs;
    struct silence *silent; /* per operator: sparse_silences; NULL: not known yet */
    bool sparse_given; /* they are, except on `dense` devices; else each option chooses its own */
    bool whole_only, joined, tight;
    int32_t by_ranks, layer_begin, layer_end;
    uint64_t work[SOLVER_DEVICES];  /* activations and workspace, if all ran there */
    uint64_t aside[SOLVER_DEVICES]; /* part of the reserve, of the options */
    bool *stored; /* per operator: its matrices or its layer's KV stay in a file, as the placement's
                     options say; NULL: nothing can */
    uint64_t ring_bytes;              /* for that, part of the host's reserve */
    struct device_memory *memory;     /* per device, of the plan's programs; NULL: not known */
    int32_t *unit_of;                 /* per operator */
    int32_t *first_op;                /* per unit */
    struct division *division;        /* per unit */
    struct divided *divided;          /* units whose options others can share (divide.c) */
    struct team team[SOLVER_DEVICES]; /* the instance's */
    struct layer_flow *flow;          /* per layer, from -1 to n_layers */
    int32_t *edge_of;                 /* per value; -1: no other unit reads it */
    struct price (*direct)[SOLVER_DEVICES][SOLVER_DEVICES]; /* of edges, [edge * PHASE_COUNT] */
    struct op_price *price;                                 /* [operator * n_devices + device] */
    struct price planned;                          /* of the plan that planner_make made of it */
    struct affinity_round rounds[AFFINITY_ROUNDS]; /* of iterated affinity, if it was run */
    int32_t n_rounds;
    struct instance instance;
};

/* Chooses the fusion cover and prices everything. The model is borrowed until problem_free. */
oato_status problem_create(const struct model *m, const struct profile *p,
                           const struct planner_options *o, struct problem **out,
                           struct oato_error *err);
/* The same with the cover, devices, request and budgets of a plan (budgets limited to what is free
 * now), to price the plan under this profile. place (n_units, in the problem's arena) is the plan's
 * placement. */
oato_status problem_of_plan(const struct model *m, const struct profile *p, const struct plan *plan,
                            struct problem **out, int32_t **place, struct oato_error *err);
/* How many operators were timed on a busy machine: have a disturbed row on one of the devices. */
int32_t problem_disturbed(const struct problem *p);
/* Whether the profile has times of feed-forward blocks that skip neurons as the plan does, wherever
 * devices can. */
bool sparse_measured(const struct problem *p, const struct plan *plan);
void problem_free(struct problem *p);
/* Sets memory aside, out of the capacity for units, for what the placement streams: twice the
 * largest record of those that it streams to a device, and the rooms of KV. */
void problem_stream(struct problem *p, const int32_t *place);
/* Bytes that a placement takes on each device as solvers count, reserve included; 0 on unused
 * devices. A plan states what its programs take (memory.c). */
void problem_memory(const struct problem *p, const int32_t *place, uint64_t *need);
/* Sets p->memory, of the problem's plan. */
oato_status memory_of_plan(const struct plan *plan, const struct model *m, struct problem *p,
                           struct oato_error *err);
const char *problem_device(const struct problem *p, int32_t device);

/* Profile of a machine of the hardware library (docs/hardware), by its name, or of one that the
 * text describes, with '='. OATO_EUSAGE with all names when there is none. Free with profile_free.
 */
oato_status hardware_load(const char *name, struct profile *out, warn_fn warn, void *user,
                          struct oato_error *err);

/* Placements of other engines (baselines.c); place[n_units]. False, or *fits false: nothing fits,
 * or nothing was found by the deadline. */
bool baseline_fit(const struct problem *p, int32_t *place);
/* That placement as llama.cpp runs it; scratch[n_units]. */
struct price baseline_fit_price(const struct problem *p, const int32_t *place, int32_t *scratch);
oato_status baseline_powerinfer(const struct problem *p, struct ilp_clock *clock, int32_t *place,
                                bool *fits, struct oato_error *err);
/* Price only, no placement. */
bool baseline_flexgen(const struct problem *p, struct price *out);

/* OATO_EUSAGE for a request without tokens or with more than its context holds; OATO_EFILE when the
 * request is a plan's. */
oato_status request_check(const struct plan_request *q, struct oato_error *err);
oato_status request_check_plan(const struct plan *plan, struct oato_error *err);
/* The error of a plan whose device the profile does not have. */
oato_status plan_device_missing(const struct plan_device *d, struct oato_error *err);

/* Sets the points of o->request, with their weights, to those of o->workload for its context, batch
 * and objective. Plans for requests that differ in something else are compared by the same weights,
 * so it is called once for all of them. */
oato_status workload_set(const struct model *m, const struct profile *profile,
                         struct planner_options *o, struct oato_error *err);
/* The name of a workload as struct workload has it; NULL: there is none. */
const char *workload_find(const char *name);

/* ---------------------------------------------------------------------------- planner ----- */

/* Solves and fills the plan. OATO_EFIT, with the missing memory in the message, when nothing fits.
 * *problem (may be NULL) receives the problem for reports. */
oato_status planner_make(const struct model *m, const struct profile *p,
                         const struct planner_options *o, struct plan *out,
                         struct problem **problem, struct oato_error *err);

/* Options that nobody gave, a bit each. */
enum { OPEN_KV = 1, OPEN_CONTEXT = 2, OPEN_CACHE = 4 };
enum { ALTERNATIVES_MAX = 3 };
/* Notes in a plan that planner_make made with these options what others would bring: KV of Q8_0, no
 * more context than the request has tokens, a cache of experts. Only what makes it 5 % faster or
 * more is noted. Ends by options.deadline_ns, too. */
oato_status planner_alternatives(const struct model *m, const struct profile *p,
                                 const struct planner_options *o, uint32_t open, struct plan *plan,
                                 struct oato_error *err);
/* What oato-plan makes for one process, once workload_set has set the points: planner_make, then
 * planner_alternatives, both within given->time_limit_s, and a note of the kernels with which the
 * devices were measured. */
oato_status planner_plan(const struct model *m, const struct profile *p,
                         const struct planner_options *given, uint32_t open, struct plan *out,
                         struct problem **problem, struct oato_error *err);
/* How many times as fast as the plan the alternative is, by the plan's objective. */
double alternative_gain(const struct plan *p, const struct plan_alternative *a);

/* Ranks that run one model together (kernels/ranks/collective.h): each has a share of every layer,
 * or some of the layers. AUTO: what is predicted to be better, where each host has one rank; else
 * TENSOR. */
enum rank_split { SPLIT_AUTO, SPLIT_TENSOR, SPLIT_LAYERS };
struct rank_options {
    enum rank_split split;
    int32_t ranks, hosts; /* as many ranks on each host, the first ones on the first */
    const struct profile *profiles[SOLVER_DEVICES]; /* of the hosts in turn; more: of the ranks */
    int32_t n_profiles;
    double bytes_per_s, latency_ns; /* of messages between hosts, unless they were measured; */
    bool network_given;             /* whatever was measured */
    oato_dtype wire;                /* of sums between hosts: F32, F16 or Q8_0 */
    bool joined;                    /* accelerators sum, by SUM_ACCELERATORS; ranks_plan decides */
    /* Set by ranks_plan: what each rank gets, and its time for the same work while no other rank
     * uses its host's cores, that of the first profile's host being 1. */
    double share[SOLVER_DEVICES], slowness[SOLVER_DEVICES];
};
/* Whether the time of sums comes from measurements of as many ranks on as many hosts. */
bool rank_sums_measured(const struct rank_options *o, enum sum_way way);
/* What the other split would take. */
struct rank_prices {
    enum rank_split split; /* of the plan */
    bool priced;           /* false: the other one was not asked for, or does not fit */
    uint64_t prefill_ns, decode_ns;
};
/* Divides the model between ranks, each with the host of its profile and some of its accelerators.
 * Sparsity and caches of experts do not count. prices may be NULL. OATO_EUSAGE also where layers
 * are split and a host has several ranks. */
oato_status ranks_plan(const struct model *m, const struct planner_options *given,
                       const struct rank_options *options, struct rank_prices *prices,
                       struct plan *out, struct oato_error *err);

struct host_choice {
    int32_t n; /* profiles */
    bool used[SOLVER_DEVICES];
    struct host_with {
        bool fits; /* false: no plan with the host does, or none was tried */
        uint64_t prefill_ns, decode_ns;
    } with[SOLVER_DEVICES]; /* the plan for this host and all that are faster */
    struct rank_prices prices;
    double alone; /* of ranks_make: how many times as fast the used one alone is; 0: unknown */
};
/* The fastest of the hosts alone, as planner_make plans for it; *profile: its number. */
oato_status ranks_alone(const struct model *m, const struct planner_options *given,
                        const struct rank_options *options, int32_t *profile, struct plan *out,
                        struct oato_error *err);
/* ranks_plan or, unless options->split says how, the plan for the fastest host alone if that is
 * faster, or all that fits: then one process computes, and the other ranks are idle. */
oato_status ranks_make(const struct model *m, const struct planner_options *given,
                       const struct rank_options *options, struct host_choice *choice,
                       struct plan *out, struct oato_error *err);
/* The best plan for some of the hosts: options has a profile for each; ranks and hosts do not
 * count. One host alone is planned for as planner_make does, with its accelerators. */
oato_status ranks_choose(const struct model *m, const struct planner_options *given,
                         const struct rank_options *options, struct host_choice *choice,
                         struct plan *out, struct oato_error *err);

/* Whether each operator of a plan for several ranks is one rank's: they have layers of their own.
 */
bool plan_has_stages(const struct plan *p);
/* A plan for several ranks, priced again by these profiles and messages: *now is the plan with the
 * predictions, costs and memory of today, whether it fits or not. It borrows from the plan, which
 * must outlive it; freed by plan_free. */
oato_status ranks_price(const struct plan *plan, const struct model *m,
                        const struct rank_options *options, struct plan *now,
                        struct oato_error *err);

/* The largest context, in whole pages of KV up to what the model was trained for, for which there
 * is a plan that decodes at_least tokens/s when it is full (of all sequences; 0: any speed); out is
 * that plan. Where the best plan for the objective is too slow, the one with the fastest decode
 * there is tried; its request then has that point, too.
 * bound gets a line with the reason why no more is possible. OATO_EFIT when even the request's own
 * tokens do not fit or are too slow. */
oato_status context_maximize(const struct model *m, const struct profile *profile,
                             const struct planner_options *o, double at_least, struct plan *out,
                             struct problem **problem, struct text *bound, struct oato_error *err);

/* Behind OATO_EFIT of planner_make: says in err how much memory of the host is missing, and with
 * which budget or context there is a plan; both were tried. Returns the status. */
oato_status report_shortage(const struct model *m, const struct profile *profile,
                            const struct planner_options *o, struct oato_error *err);

struct cluster_options {
    int32_t hosts, per_host;     /* per_host: devices of a kind */
    struct rank_options network; /* messages between hosts, and the wire of sums */
};

/* ---------------------------------------------------------------------------- reports ----- */

/* "latency", "ttft", "time-per-token": the values of --minimize. */
extern const char *const objective_names[OBJECTIVE_COUNT];

/* All append to text; with json, one JSON object. */
void report_plan(const struct plan *p, const struct problem *problem, bool json, struct text *out);
/* Two lines of few words: what runs and lies where; what that promises, beside simple placements.
 */
void report_plan_brief(const struct plan *p, struct text *out);
/* The same as report_plan under a title of its own (NULL: the model's name). With the model, too,
 * what is streamed is told apart from what is waited for. */
void report_plan_as(const char *title, const struct plan *p, const struct problem *problem,
                    const struct model *m, bool json, struct text *out);
/* What a model is called: by its name or, where it has no weights, by that of its file, since it
 * may be made of a shape alone. */
const char *model_title(const struct plan *p, const struct model *m);
/* *same: the plans are equal, byte for byte. */
oato_status report_diff(const struct plan *a, const struct plan *b, bool json, bool *same,
                        struct text *out, struct oato_error *err);
/* Why operators are where they are. name: an operator, one of its fused members or a tensor; NULL:
 * all operators, one line each. Without model and profile only what the plan itself recorded. */
oato_status report_explain(const struct plan *p, const struct model *m,
                           const struct profile *profile, const char *name, bool json,
                           struct text *out, struct oato_error *err);
/* plan_export as text or JSON: the command goes to out; what it cannot express goes to lost, one
 * line each, or with json into the same object. */
oato_status report_export(const struct plan *p, const struct model *m,
                          const struct export_options *o, bool json, struct text *out,
                          struct text *lost, struct oato_error *err);
/* Prices the plan again: OATO_NEGATIVE when it no longer fits, or is slower than predicted or than
 * today's best plan by more than max_slower (0.05 = 5 %). OATO_UNSURE when that cannot be told: the
 * profile's dispersion (the plan's time at the median of the rows minus that at their p10) is more
 * than what max_slower asks for. */
oato_status report_check(const struct plan *p, const struct model *m, const struct profile *profile,
                         double max_slower, double time_limit_s, bool json, struct text *out,
                         struct oato_error *err);
/* The same of a plan for several ranks. */
oato_status report_check_ranks(const struct plan *p, const struct model *m,
                               const struct rank_options *ranks, double max_slower, bool json,
                               struct text *out, struct oato_error *err);

/* ------------------------------------------------------------------------- simulation ----- */

struct simulation; /* a plan's request on a virtual clock, record by record */

/* Runs prefill and decode of the plan's request as the executor would on all ranks (one queue per
 * device, one copy engine for streamed weights), with the profiles' costs of single operators and
 * copies, and of sums and messages between ranks. Of many steps of a kind the first, middle and
 * last are run. Independent of the planner's predictions, except that it assumes the same activity
 * of neurons and experts. Of the options profiles and network count. Borrows plan and profiles. */
oato_status simulation_run(const struct plan *plan, const struct model *m,
                           const struct rank_options *ranks, struct simulation **out,
                           struct oato_error *err);
void simulation_free(struct simulation *s);
/* Sets the plan's predictions from a run on the virtual clock. decode_ns is left alone when no
 * token is generated. */
oato_status simulation_predict(struct plan *plan, const struct model *m,
                               const struct profile *profile, struct oato_error *err);
/* Simulated times against the plan's predictions, the load of each device and what it waits for. */
void report_simulation(const struct simulation *s, bool json, struct text *out);
/* The simulated steps as Chrome/Perfetto trace events: a process per device, a thread per queue. */
void report_trace(const struct simulation *s, struct text *out);

/* The plan as one HTML file without scripts or links: placement, memory, simulated time lines,
 * most expensive operators and, with frontier and for one process, speed against memory (which
 * makes more plans). Of the options profiles and network count. */
oato_status report_html(const struct plan *p, const struct model *m,
                        const struct rank_options *ranks, bool frontier, struct text *out,
                        struct oato_error *err);

#endif
