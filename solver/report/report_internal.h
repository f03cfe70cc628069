/*
 * report_internal.h - small things that the reports share: figures of a plan, and units that people
 * read.
 */
#ifndef OATO_REPORT_INTERNAL_H
#define OATO_REPORT_INTERNAL_H

#include "solver/solver.h"

#include <string.h>

/* What a plan takes for each point of a request, and what a plan for that point alone would. */
struct regrets {
    struct plan_request request;           /* with the plan's predictions */
    uint64_t alone_ns[REQUEST_POINTS_MAX]; /* of the objective; 0: there is no plan */
    bool timed_out;                        /* the time limit ended a search for these */
};

static inline double as_ms(double ns)
{
    return ns / 1e6;
}

static inline double as_mib(double bytes)
{
    return bytes / 0x1p20;
}

/* Ratio of two times in percent: +5.0 when now is 5 % more than then. */
double percent_more(double now, double then);
/* What people call the rule; plans have its short name. */
const char *baseline_title(const struct plan_baseline *b);

double tokens_per_s(double tokens, uint64_t ns);

/* 1, 2 or 5 times a power of ten: at most so many steps of an axis make the span. */
double round_step(double span, int steps);

/* A device of a plan as people read it: "cpu:0", or "cpu:0 of rank 1 on host 0"; and how wide a
 * column of them is. */
struct device_name {
    char text[64];
};
struct device_name device_name(const struct plan *p, int32_t d);
int device_width(const struct plan *p);

/* The share of one device in a plan. */
struct device_share {
    int32_t operators, kv_layers;
    uint64_t prefill_ns, decode_ns;
    uint64_t weight_bytes, kv_bytes, work_bytes; /* only with a problem; else all of it is work */
    uint64_t staging_bytes, locked_bytes;        /* part of work; locked: device_memory.locked */
    uint64_t stored_bytes;                       /* weights that are read at every step; likewise */
    int32_t stored;                              /* operators that have some */
    int32_t filed;                               /* layers whose KV stays in a file; */
    double filed_bytes;                          /* what a step reads and writes of it, */
    uint64_t kv_rooms;                           /* and what it takes of memory */
};
struct device_share device_share(const struct plan *p, const struct problem *problem, int32_t d);
/* What makes up a phase's time, so that it adds up: the work of all devices, their copies, and what
 * brings streamed weights; `waits` is what nobody works meanwhile, `overlap` what is done at the
 * same time. */
struct phase_sum {
    double work_ns, copies_ns, streams_ns, waits_ns, overlap_ns, all_ns;
};

struct plan_sums {
    bool failed;  /* memory was short */
    bool streams; /* known; else they are part of the waits */
    struct phase_sum phase[PHASE_COUNT];
};

struct plan_sums plan_sums(const struct plan *p, const struct problem *problem,
                           const struct model *m);
void plan_sums_json(const struct plan_sums *sums, struct text *out);
/* Lines of a table whose last columns are the phases, behind so many characters. */
void plan_sums_text(const struct plan_sums *sums, int width, struct text *out);

/* points.c: positions that a context must have at least for what is asked; a named workload
 * follows the context. */
int64_t request_least(const struct planner_options *o);
/* "641 + 128 tokens on average", "128 + 128 tokens behind 3840". */
struct tokens_text {
    char text[72];
};
struct tokens_text request_tokens(const struct plan_request *q);
/* The request of one of the points. */
struct plan_request request_alone(const struct plan_request *q, int32_t i);
/* The points of a request with what was predicted; nothing for one without. */
void points_text(const struct plan_request *q, const struct regrets *r, struct text *out);
void points_json(const struct plan_request *q, const struct regrets *r, struct text *out);

/* Number of operators; with estimates, of those whose shape was not measured on some device. */
int32_t operators_of(const struct plan *p, bool estimates);
/* The proven distance from the optimum, or a negative number. */
double gap_of(const struct plan *p);

/* Only the picture of report_frontier, with a mark for the plan; p: the plan's problem. */
oato_status frontier_picture(const struct plan *plan, const struct problem *p,
                             const struct model *m, int32_t steps, struct text *svg,
                             struct oato_error *err);

/* untimed.c: why the time of operator `op` on device d is an estimate, without a full stop. */
void estimate_text(const struct problem *p, int32_t op, int32_t d, struct text *out);
/* The types that devices were never timed with, and the command that times them; nothing where
 * there are none. */
void untimed_text(const struct plan *plan, const struct problem *p, struct text *out);
void untimed_json(const struct plan *plan, const struct problem *p, struct text *out);
/* By which share of the plan's predictions they may be off, if each estimate in them is off the
 * same way by what nine in ten of its kind are off by at most. */
void estimates_off(const struct plan *plan, const struct problem *p, double share[PHASE_COUNT]);

/* doubts.c: whether a row of operator `op` on device d is marked as contradicting the profile;
 * lines about all such marks that the problem's prices come from; nothing where there are none. */
bool op_contradicts(const struct problem *p, int32_t op, int32_t d);
void doubts_text(const struct problem *p, struct text *out);
void doubts_json(const struct problem *p, struct text *out);

/* report.c: what compiling the functions of its spans adds to the start; nothing for devices that
 * compile none, or where nobody measured that. */
void compile_text(const struct problem *p, struct text *out);
/* Seconds; 0 likewise. */
double compile_seconds(const struct problem *p, int32_t device);

oato_status text_status(const struct text *t, struct oato_error *err);

/* report_json.c: the plan as a JSON object; problem and r may be NULL. */
void report_json(const struct plan *p, const struct problem *problem, const struct plan_sums *sums,
                 const struct regrets *r, struct text *out);

/* A cache of an operator's experts; problem NULL: its memory is not known. */
void cache_text(const struct plan *p, const struct problem *problem, const struct plan_cache *c,
                const char *indent, bool json, struct text *out);
/* How many times as fast as a baseline; what the bound covers. */
const char *bound_of(const struct plan *p);
double times_faster(const struct plan *p, int32_t baseline);
/* alternatives.c: what of the request nobody gave, and what other options would bring. */
void alternatives_json(const struct plan *p, struct text *out);
void alternatives_text(const struct plan *p, struct text *out);

/* Whether the name is the prefix or goes on with a dot behind it. */
static inline bool name_within(const char *name, const char *prefix)
{
    const size_t n = strlen(prefix);
    return !strncmp(name, prefix, n) && (!name[n] || name[n] == '.');
}

/* problem: the plan's. All plans are made by the time limit. */
oato_status regrets_find(const struct plan *plan, const struct model *m,
                         const struct problem *problem, const struct plan_request *q,
                         double time_limit_s, struct regrets *out, struct oato_error *err);
/* report_plan_as with the points of the regrets instead of the plan's. */
void report_plan_regrets(const char *title, const struct plan *p, const struct problem *problem,
                         const struct model *m, const struct regrets *r, bool json,
                         struct text *out);

/* What clusters of one device up to so many hosts of the profile's would take, with sums of all
 * devices made in three ways. given->devices: the kind of device (NULL: the first
 * accelerator, else the host); budgets, solver and sparsity do not count. */
oato_status report_cluster(const struct model *m, const struct profile *profile,
                           const struct planner_options *given, const struct cluster_options *o,
                           bool json, struct text *out, struct oato_error *err);
/* Speed against memory: plans for 0 to 100 % of the accelerators' budgets in `steps` steps, as CSV,
 * next to the whole-layers baseline (`layers`); svg (may be NULL) gets both as curves. */
oato_status report_frontier(const struct model *m, const struct profile *profile,
                            const struct planner_options *o, int32_t steps, bool json,
                            struct text *out, struct text *svg, struct oato_error *err);

#endif
