/*
 * report_internal.h - small things that the reports share: figures of a plan, and units that people
 * read.
 */
#ifndef OATO_REPORT_INTERNAL_H
#define OATO_REPORT_INTERNAL_H

#include "solver/solver.h"

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
    uint64_t weight_bytes, kv_bytes, work_bytes; /* only with a problem */
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
void untimed_text(const struct problem *p, struct text *out);
void untimed_json(const struct problem *p, struct text *out);

/* doubts.c: whether a row of operator `op` on device d is marked as contradicting the profile;
 * lines about all such marks that the problem's prices come from; nothing where there are none. */
bool op_contradicts(const struct problem *p, int32_t op, int32_t d);
void doubts_text(const struct problem *p, struct text *out);
void doubts_json(const struct problem *p, struct text *out);

oato_status text_status(const struct text *t, struct oato_error *err);

/* alternatives.c: what of the request nobody gave, and what other options would bring. */
void alternatives_json(const struct plan *p, struct text *out);
void alternatives_text(const struct plan *p, struct text *out);

#endif
