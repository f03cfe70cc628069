/*
 * planning_internal.h - how a problem is put together: its devices, what things cost over a whole
 * request, the choice of fusions, the ways to divide units.
 */
#ifndef OATO_PLANNING_INTERNAL_H
#define OATO_PLANNING_INTERNAL_H

#include "lowering/lowering.h"
#include "solver/cost_internal.h"
#include "solver/solver.h"

#include <math.h>

/* Rounds to whole ns, at most three years so that sums stay far from overflow. */
static inline int64_t whole_ns(double ns)
{
    return ns < 1e17 ? llround(ns) : (int64_t)1e17;
}

/* Upper limit of a profile's memory figures, 256 TiB, so that sums never wrap. */
static const uint64_t BYTES_MAX = UINT64_C(1) << 48;

static inline uint64_t least_bytes(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* An empty problem of the request, with a cost model (cost_create) by these classes; NULL and an
 * error when the request is invalid. */
oato_status problem_begin(const struct profile *profile, const struct plan_request *q,
                          const char *classes, struct problem **out, struct oato_error *err);
/* Adds the devices that the options choose, with their budgets; calls problem_check_devices. */
oato_status problem_devices(struct problem *p, const struct planner_options *o,
                            struct oato_error *err);
/* Whether the list, as planner_options has it, names the device. */
bool device_is_listed(const char *list, const char *id);
oato_status problem_add_device(struct problem *p, int32_t index, struct oato_error *err);
/* Finds the host; fails when there is none, or no link from it to some device. */
oato_status problem_check_devices(struct problem *p, struct oato_error *err);
/* Prices p->graph: units, edges, memory. */
oato_status problem_price(struct problem *p, struct oato_error *err);
/* Fails when an explicit budget is smaller than what a used device sets aside. */
oato_status problem_check_budgets(const struct problem *p, const struct planner_options *o,
                                  struct oato_error *err);

/* Whether the operator is of the layers that count. */
static inline bool problem_counts(const struct problem *p, int32_t op)
{
    const int32_t layer = p->graph.ops[op].layer;
    return p->layer_begin == p->layer_end || (layer >= p->layer_begin && layer < p->layer_end);
}

/* Sets the options' budgets to the problem's. */
void problem_budgets(const struct problem *p, struct planner_options *o);
/* Options to plan the problem's request anew, on its devices and with its budgets; the list of
 * devices is borrowed. */
enum { DEVICES_SIZE = SOLVER_DEVICES * 17 };
void problem_options(const struct problem *p, struct planner_options *o,
                     char devices[DEVICES_SIZE]);

/* As many ranks on as many hosts, with the same wire, as the plan is for. */
void ranks_as_planned(const struct plan *plan, struct rank_options *o);
/* ranks/sums.c: latency and rate of messages, if they were measured and nobody gave them. */
void rank_network(struct rank_options *o);
/* One sum of so many bytes of F32, as the plan has it made. */
double rank_sum_ns(const struct rank_options *o, const struct plan *plan, double bytes);
/* One message between two hosts, or within one. */
double rank_message_ns(const struct rank_options *o, bool between_hosts, double bytes);
/* What a step of ranks exchanges beside its sums: rank 0 says what the step is, and receives
 * logits, so many bytes from other hosts and from its own. */
double rank_step_ns(const struct rank_options *o, double remote_bytes, double local_bytes);
/* The same of 2 ranks or more, by what was measured of as many, if it was. */
double rank_logits_ns(const struct rank_options *o, double remote_bytes, double local_bytes);
/* plan->sums: the fastest way by size, if --links measured; a deterministic plan has the tree. */
oato_status rank_sums_choose(const struct rank_options *o, struct plan *plan,
                             struct oato_error *err);

/* Of all weights of the operator, in file format. */
uint64_t problem_file_bytes(const struct graph_op *op);

/* `times` steps of one kind, each with this many tokens, rows and sequences. */
struct request_step {
    int32_t tokens, rows, seqs;
    int64_t kv_positions;
    double times; /* of the mean request: part of that is the weight of a step's point */
};

/* Chunks of the prompt of a point, and each of them. */
int32_t request_prefill_steps(const struct plan_request *q, int32_t point);
struct request_step request_prefill_step(const struct plan_request *q, int32_t point,
                                         int32_t chunk);
/* All of them together, of the mean request. */
struct prefill_total {
    double steps, tokens, rows;
};
struct prefill_total request_prefill_total(const struct plan_request *q);
/* What a point counts of all of them; of one alone 1. */
double request_weight(const struct plan_request *q, int32_t point);
/* Tokens that a sequence of the mean request generates. */
double request_generated(const struct plan_request *q);
/* How many steps are priced to represent all chunks: every chunk or, when a point has many, the
 * middle one of each run of chunks, which is their mean if costs are linear in the KV positions. */
int32_t request_prefill_kinds(const struct plan_request *q);
struct request_step request_prefill_kind(const struct plan_request *q, int32_t kind);
/* A step of decode with so many positions before it; times = tokens to generate. */
struct request_step request_decode_at(const struct plan_request *q, int64_t position);
/* At the middle of a point's generation, and how much of all decode that is. */
struct request_step request_decode_point(const struct plan_request *q, int32_t point);
double request_decode_share(const struct plan_request *q, int32_t point);
/* The mean of these. */
struct request_step request_decode_step(const struct plan_request *q);
/* Maximum tokens per step: sizes activations and workspace. */
int32_t request_max_tokens(const struct plan_request *q);
/* KV positions that are allocated, whole pages, for a layer with that window; 0: with none. */
int64_t request_kv_positions(const struct plan_request *q, int32_t window);
/* The time of the mean request. */
int64_t request_latency(const struct plan_request *q, int64_t prefill_ns, int64_t decode_ns);
/* The price of something that costs prefill_ns over all prompts and decode_ns a step. */
struct price request_price(const struct plan_request *q, int64_t prefill_ns, int64_t decode_ns);

static inline double op_price_ns(const struct op_price *p, enum plan_phase phase)
{
    return (double)(phase == PHASE_DECODE ? p->decode_ns : p->prefill_ns);
}

/* price.c: one record that runs an operator of a graph, or a part of it, on a device. */
struct part {
    const struct graph *graph;
    int32_t index;     /* the operator whose size in the step counts */
    struct oato_op op; /* what runs: that one or another in its place; op.sparse: what it skips */
    int32_t device;    /* of the profile */
    double share;      /* of the operator's neurons, experts or rows */
    double active;     /* of these (of all, too), and of inputs, what is expected to be at work; of
                          a GATE_UP by a list the mean of that and what is listed */
    const struct plan_sparse *list; /* with the records that list its neurons; NULL: without */
    const struct neurons *neurons;  /* for the list */
    bool joins; /* the neighbours that it could be joined with are on the device, too */
    bool bare;  /* without what the device takes for a record */
};
/* Nanoseconds of the part in one such step: every price of an operator is a sum of these. */
struct op_cost part_cost(const struct cost_source *c, const struct part *p,
                         const struct request_step *s);
/* What calling the function of a span costs on the device beside its operators, in a step of so
 * many rows; 0: it has none. */
double unit_cost(const struct cost_source *c, int32_t device, int32_t rows);
/* What running operator `index` right behind its neighbours saves of the sum of their costs in a
 * step of so many tokens; 0 for prefill's kernels. *first: where these neighbours begin. */
double cost_of_join(const struct cost_source *c, int32_t device, const struct graph *g,
                    int32_t index, int32_t tokens, int32_t *first);
/* Sets what the part skips in a step of so many tokens, by what is expected of its operator. */
void part_silence(struct part *p, const struct silence *s, const struct neurons *n, int32_t tokens);
/* The records that make the list of a part; by_neurons_ns: what of it a part of that part has only
 * its share of. 0 where the device cannot. */
struct op_cost list_cost(const struct cost_source *c, const struct part *p,
                         const struct request_step *s, double *by_neurons_ns);
/* A copy made by one of the two devices, or a third one, as a record of its program. */
double copy_cost(const struct cost_source *c, int32_t from, int32_t to, int32_t by, double bytes);
/* The share of a step's time in which a neuron of that frequency works; 1 unless it is skipped. */
double sparse_active(bool skips, double frequency, int32_t tokens);
/* How often neurons or experts of the first operator of a pair are at work, as n has counted. */
struct activity {
    const struct oato_op *op;
    const float *freq; /* NULL: not counted; all neurons are, and experts by chance */
    const int32_t *order;
    double rate;
};
struct activity activity_of(const struct graph_op *first, const struct neurons *n,
                            const struct plan_sparse *skips);
/* What those in [begin, end) of the stored order do of the operator's work in a step of so many
 * tokens; skips: neurons that do not fire are skipped. */
double activity_share(const struct activity *a, int64_t begin, int64_t end, int32_t tokens,
                      bool skips);

/* Cost of operator `index` of g on device d, its record overhead included; `op` replaces the
 * graph's own (a fused operator for its first member). Bytes are not set. */
struct op_price request_op(const struct problem *p, const struct graph *g, int32_t index,
                           const struct oato_op *op, int32_t d);
/* The same of a share of one of the problem's operators, a part among others. */
struct op_price request_share(const struct problem *p, int32_t index, int32_t d, double share);
/* The same in one step. */
struct op_cost request_step_cost(const struct problem *p, const struct graph *g, int32_t index,
                                 const struct oato_op *op, int32_t d, const struct request_step *s);
/* Nanoseconds of one copy of a value between two devices: one is the host, or they have a direct
 * link, record overhead included. */
double request_copy_ns(const struct problem *p, const struct graph_value *v, int32_t from,
                       int32_t to, const struct request_step *s);
/* The price of such copies over one phase, record overhead included. */
struct price request_copy(const struct problem *p, const struct graph_value *v, int32_t from,
                          int32_t to, enum plan_phase phase);
/* The price of a device's fixed cost per step. */
struct price request_fixed(const struct problem *p, int32_t d);

/* Sets the problem's graph to g with fusions that do not overlap, and lists them in order. One is
 * taken when on every planned device that could run it, fused or not, the profile lists the fused
 * operator and does not show it to be slower than its members. */
oato_status cover_fuse(struct problem *p, const struct graph *g, struct oato_error *err);

/* The same as a plan for the model has it; the fusions are borrowed. */
oato_status cover_take(struct problem *p, const struct model *m, const struct plan *plan,
                       struct oato_error *err);

/* *divided, in the arena: per operator whether so many ranks would have a part of it each; every
 * other one has all of it. */
oato_status ranks_divided(const struct graph *g, int32_t ranks, struct arena *a, bool **divided,
                          struct oato_error *err);

/* True when operator i + 1 is the only reader of i and both can be divided by neurons or experts.
 */
bool divide_pair(const struct graph *g, int32_t i);
/* Lists the options of a unit: `whole`, one per device, and all ways to split it. */
oato_status divide_unit(struct problem *p, int32_t unit, const struct option *whole,
                        struct oato_error *err);
/* Sets the times of the plan's row of costs: of the share of operator `op` that a split unit runs
 * on the row's device in its phase. False: none. */
bool divide_op_cost(const struct problem *p, int32_t op, const struct option *o,
                    struct plan_cost *row);
/* The share of an operator that an option puts on a device, in decode. */
double option_share(const struct problem *p, int32_t op, const struct option *o, int32_t d);
/* The range of the unit's rows, neurons or experts that an option puts on a device. */
void divide_range(const struct problem *p, int32_t unit, const struct option *o, int32_t d,
                  int64_t *begin, int64_t *end);

/* attend.c: KV of the host that prompts attend to on an accelerator. What a step copies there of a
 * layer, by the operator that stores it. */
double attend_bytes(const struct oato_op *store, oato_dtype kv, const struct request_step *s);
/* What all prompts copy between the host, which keeps the layer's KV, and device d, which attends.
 */
double attend_copies_ns(const struct problem *p, int32_t store, int32_t d);
/* Writes the options that a unit has of that kind, one for each accelerator, behind those of
 * `whole`; out may be NULL. Returns how many. */
int32_t attend_options(struct problem *p, int32_t unit, const struct option *whole,
                       struct option *out);
/* The number of the unit's option of that kind that the plan has; -1: none. */
int32_t attend_of_plan(const struct problem *p, const struct plan *plan, int32_t unit);
/* divide_op_cost for such an option. */
bool attend_op_cost(const struct problem *p, int32_t op, const struct option *o,
                    struct plan_cost *row);

/* heads.c: finds the teams of equal accelerators, whose ends follow the devices; operators must
 * have their prices. */
oato_status teams_find(struct problem *p, struct oato_error *err);
/* request_copy, where one of the two ends is a team. */
struct price team_copy(const struct problem *p, int32_t value, int32_t from, int32_t to,
                       enum plan_phase phase);
/* Writes the options that a unit has to be divided by a team; out may be NULL. Returns how many. */
int32_t heads_options(const struct problem *p, int32_t unit, struct option *out);
/* Whether any team can divide the operator by heads. */
bool heads_divide(const struct problem *p, int32_t op);
/* Whether teams would divide both operators alike. */
bool heads_alike(const struct problem *p, int32_t a, int32_t b);
/* The range of the operator that device d has by such an option, and the axis. */
enum op_axis heads_range(const struct problem *p, int32_t op, const struct option *o, int32_t d,
                         int64_t *begin, int64_t *end);
/* divide_op_cost for such an option. */
bool heads_op_cost(const struct problem *p, int32_t op, const struct option *o,
                   struct plan_cost *row);
/* The number of the unit's option of that kind that the plan has; -1: none. */
int32_t heads_of_plan(const struct problem *p, const struct plan *plan, int32_t unit);

/* The device that runs an operator of a unit that is not split. */
int32_t problem_op_device(const struct problem *p, int32_t op, const struct option *o,
                          enum plan_phase phase);

/* The status says that there is no plan, or none that is fast enough. */
static inline bool no_plan(oato_status status, const struct oato_error *err)
{
    return status == OATO_NEGATIVE || (status == OATO_EFIT && !oato_failed_memory(err));
}
/* planner.c: a plan of the request as it is, steps of its ubatch. */
oato_status plan_at_width(const struct model *m, const struct profile *profile,
                          const struct planner_options *o, struct plan *out,
                          struct problem **problem, struct oato_error *err);
/* Keeps the other plan, and its problem unless `problem` is NULL, instead of what is there (known)
 * if it is better, and frees one of them. */
void plan_keep(struct plan *out, struct problem **problem, struct plan *other,
               struct problem *others, bool better, bool known);
/* Whether plans may read from a file. */
bool planner_may_store(const struct planner_options *o, const struct profile *profile);
enum { WIDTH_LEAST = 64 }; /* of any_ubatch; takes the least memory */
/* Whether the device's own kernels, in place of a library, could leave room that is wanted: where
 * nothing fits (plan is NULL), or on a device of the plan that is nearly full. */
bool planner_weighs_library(const struct plan *plan, const struct profile *profile);
/* At which gap the search for the problem ends. */
double search_gap(const struct planner_options *o, const struct problem *p);

/* storage.c: adds to each unit the options that read matrices or KV from a file at every step, and
 * allocates p->stored. Their times do not depend on each other; the memory that they take together,
 * rings and rooms, does. */
oato_status storage_open(struct problem *p, struct oato_error *err);
/* The option of a unit whole on the device that reads those operators from the file; -1: none. */
int32_t storage_option(const struct problem *p, int32_t unit, int32_t d, const bool *stored);
/* For heuristics, which know one way to run a unit on the host: chooses by a rule which operators
 * are read from the file if all of them are the host's, and makes option `host` of each unit the
 * one that does. storage_rule_end undoes that (place NULL), and turns a placement that was made
 * meanwhile into one of all options. */
struct storage_rule {
    int32_t *at,
        *n_options; /* per unit: the option that is now `host`; how many there are in all */
};
oato_status storage_rule_begin(struct problem *p, struct storage_rule *rule,
                               struct oato_error *err);
void storage_rule_end(struct problem *p, const struct storage_rule *rule, int32_t *place);
/* Sets p->stored to what the placement reads from the file, and the host's reserve to what that
 * takes. */
oato_status storage_settle(struct problem *p, const int32_t *place, struct oato_error *err);
/* Nothing is set aside for it any more. */
void storage_unset(struct problem *p);
/* Takes out of the file what now fits into memory; the placement gets no slower. *fits: all of it,
 * with rings and staging rooms, is within the devices' memory. Before problem_stream. */
oato_status storage_refine(struct problem *p, int32_t *place, bool *fits, struct oato_error *err);
/* Whether some placement that reads from a file may beat all that do not. */
bool storage_may_help(struct problem *p);
/* What the operator takes of the memory of a device's ring or, of KV, of the rooms. */
uint64_t storage_room(const struct problem *p, int32_t op, int32_t d);
/* Operators that can be read from a file. */
bool storage_takes(const struct problem *p, int32_t op);
/* Those of a unit, in order; returns how many. */
enum { STORES_MAX = 6 };
int32_t storage_of_unit(const struct problem *p, int32_t unit, int32_t ops[STORES_MAX]);

/* The share of an operator's matrices, of so many bytes as the host keeps them, that it reads from
 * the file for a step of so many tokens: of experts, where each is whole blocks, those that are
 * chosen. */
double storage_share(const struct graph_op *o, uint64_t bytes, int32_t tokens);
/* A layer whose KV stays in a file, by the operator that stores it: the bytes of its room in
 * memory, and what a step reads and writes. */
uint64_t storage_kv_room(const struct graph *g, const struct oato_op *store,
                         const struct plan_request *q);
double storage_kv_bytes(const struct graph *g, const struct oato_op *store, oato_dtype kv,
                        const struct request_step *s);

/* The best placement that the ILP finds by the deadline, over all that may be streamed or (of a
 * problem with p->stored) read from a file; warm (may be NULL) is one that fits, and the result is
 * never worse. roomy (may be NULL) gets the best of those whose rooms are mostly as large as
 * any stream may want: in small ones streams wait for each other, which the objective leaves out.
 * OATO_NEGATIVE: none was found. result is set in every case. */
oato_status search_placement(struct problem *p, const struct ilp_options *o, const int32_t *warm,
                             int32_t *place, int32_t *roomy, struct ilp_result *result,
                             struct oato_error *err);

/* Whether anything is read from a file at every step. */
bool plan_is_stored(const struct plan *plan);
/* The device of the whole operator in decode, or of its last part; -1: the plan does not say. */
int32_t plan_op_device(const struct plan *plan, const char *op);
/* Which device it is, as the profile has it; not its rank and memory. */
void plan_device_fill(const struct profile_device *from, struct plan_device *to);
/* Adds a row for each operator, phase and device to the plan's costs, for which there is room. */
void plan_fill_costs(struct plan *plan, const struct problem *p, const int32_t *place);
/* plan_fill.c: the plan of a placement, with room for so many baselines, of which it has none yet:
 * without solver, bound and prediction. */
oato_status plan_of_placement(const struct model *m, const struct problem *p, const int32_t *place,
                              int32_t baselines, struct plan *plan, struct oato_error *err);

/* memory.c: what lowering asks of the rank's devices, which it numbers among themselves; device: of
 * each its number in the rank's profile; bound as placements_create has it. */
oato_status rank_facts(const struct plan *plan, const struct profile *profile,
                       const struct cost_source *cost, int32_t rank, struct lowering_facts *facts,
                       int32_t *device, int32_t *bound, struct oato_error *err);
/* memory.c: sets need[d], zeros at first, of each device of the rank that it uses, to what the
 * plan's programs take there. The profile is that of the rank. */
oato_status memory_of_rank(const struct plan *plan, const struct model *m,
                           const struct profile *profile, int32_t rank, struct device_memory *need,
                           struct oato_error *err);
/* What a plan states of a device: what it must have, and what it keeps while there is room. */
static inline uint64_t memory_stated(const struct device_memory *m, uint64_t budget)
{
    const uint64_t least = device_memory_sum(m);
    return budget > least ? least + least_bytes(m->locked, budget - least) : least;
}
/* caches.c: adds the caches of experts that the options ask for to a finished plan, and predicts
 * its times anew. OATO_EFIT when the slots asked for do not fit, OATO_EUSAGE when there are no
 * experts to cache. */
oato_status caches_add(struct plan *plan, const struct model *m, const struct problem *p,
                       int32_t slots, struct oato_error *err);

/* planner_make with such caches: plans with room for them are made, too, and the fastest is taken.
 */
oato_status caches_make(const struct model *m, const struct profile *profile,
                        const struct planner_options *given, struct plan *out,
                        struct problem **problem, struct oato_error *err);

/* The bytes of a plan's cache on its device; p: the problem of that plan. */
uint64_t cache_bytes(const struct problem *p, const struct plan_cache *c);
/* How many experts a step brings to a cache, at most: of so many experts held by the host, of which
 * each of its tokens makes so many choices. */
double cache_copies(const struct placed_cache *c, int32_t held, double choices, int32_t tokens);

/* What a plan or a problem skips, all borrowed. */
struct skipping {
    const struct plan_sparse *sparse;
    int32_t n_sparse;
    const struct plan_input *inputs;
    int32_t n_inputs;
    const struct neurons *neurons;
};

/* sparse.c: for each operator of the fused graph what it is expected to skip in a step of one
 * token: matrices that skip inputs, and down and what makes its neurons where no gate is fused
 * before it. Nothing where divide_pair holds: these are priced by their neurons. */
void sparse_silences(const struct graph *g, const struct skipping *s, struct silence *silent);
/* The mean share of a layer's neurons that fire; 1: unknown. */
double sparse_frequency(const struct neurons *n, int32_t layer);
/* Whether what skips as the problem's mode says leaves a fused operator of this kind possible. */
bool sparse_allows(const struct problem *p, enum op_kind fused);
/* Whether it skips neurons that only this operator can skip. */
bool sparse_demands(const struct problem *p, enum op_kind fused);
/* Sets the layers of the fused graph whose neurons may be skipped. OATO_EUSAGE: a mode is given,
 * but no layer has neurons that can be so skipped, or the sidecar lacks what the mode needs. */
oato_status sparse_choose(struct problem *p, struct oato_error *err);
/* How many times as often as the sidecar counted a layer's neurons are above the threshold. */
double sparse_rate(const struct plan_sparse *s, const struct neurons *n, int32_t layer);
/* predictors.c: whether --sparse auto may take the layer's predictor: one that is known to be good.
 */
bool predictor_offered(const struct neurons *n, int32_t layer);
/* The share of a layer's neurons that predictors list for a token. */
double predictor_lists(const struct plan_sparse *s, const struct neurons *n);
/* How many times the neurons that fire a GATE_UP or MUL_MAT by that list computes, as part.active
 * counts them. */
double predictor_work(const struct plan_sparse *s, const struct neurons *n,
                      const struct oato_op *op);
/* A copy of s in the arena; NULL when memory is short. */
const char *arena_string(struct arena *a, const char *s);

#endif
