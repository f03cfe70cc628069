/*
 * simulate_internal.h - a plan on a virtual clock: what simulate.c sums up, simulate_step.c runs
 * and the reports draw.
 */
#ifndef OATO_SIMULATE_INTERNAL_H
#define OATO_SIMULATE_INTERNAL_H

#include "lowering/lowering.h"
#include "solver/problem_internal.h"

enum { SIM_QUEUES = 2 * SOLVER_DEVICES };

enum event_kind {
    EVENT_STEP, /* what a step costs on a device beyond its records */
    EVENT_RUN,  /* an operator, or a part of one */
    EVENT_MERGE,
    EVENT_UPLOAD,
    EVENT_DOWNLOAD,
    EVENT_PEER,   /* from another accelerator */
    EVENT_STREAM, /* weights on their way, by the device's copy engine */
    EVENT_KINDS
};

/* A record at its time. A device's records are one queue, in order; those of EVENT_STREAM are
 * another one. */
struct event {
    uint8_t kind;
    bool estimate;
    int16_t device;
    int16_t part, parts; /* of the operator or of the value that is copied; parts 1: whole */
    int32_t op;          /* that it is, or that made what it moves; -1: the step */
    int32_t waited_for;  /* the event that the queue waited for before it began; -1: none */
    uint64_t bytes;      /* of weights and KV read, or copied */
    int64_t begin_ns, end_ns, wait_ns;
};

/* A step of the request that was simulated, and how many of the request's it stands for. */
struct simulated_step {
    enum plan_phase phase;
    int32_t number; /* chunk of the prompt, or token, from 0 on */
    struct request_step size;
    double times;
    int64_t begin_ns, end_ns; /* one step after the other */
    int32_t first, n;         /* events */
};

struct simulation {
    struct arena arena;
    const struct plan *plan;       /* borrowed */
    const struct profile *profile; /* borrowed */
    struct cost_model *cost;
    struct graph graph; /* fused as the plan says */
    int32_t host, device[SOLVER_DEVICES];
    struct placements placements;
    struct lowered lowered;
    struct simulated_step *steps;
    int32_t n_steps, middle; /* middle: the decode step that a plan's prediction is of; -1: none */
    struct event *events;
    int32_t n_events, cap_events;
    int64_t prefill_ns, decode_ns, request_ns;
};

/* What a device does over the steps of a phase. */
struct sim_load {
    double run_ns, copy_ns, stream_ns; /* run: merges and the step's own cost included */
    double wait_ns[SIM_QUEUES];        /* for the queue of device d, for its copy engine: n + d */
    double span_ns;                    /* of the phase: what is left is idle at the end */
};

/* The time to the first token: of the prompts, without them of a decode step. */
static inline int64_t simulation_ttft_ns(const struct simulation *s)
{
    return s->plan->request.prompt ? s->prefill_ns : s->decode_ns;
}

/* How much of its operator the i-th part is. */
static inline double placed_share(const struct graph_op *o, const struct placement *p, int32_t i)
{
    return part_share(&o->op, p->axis, p->part[i].begin, p->part[i].end);
}

/* Number of an event's queue: its device's, n_devices later its copy engine's. */
static inline int32_t event_queue(const struct simulation *s, const struct event *e)
{
    return e->device + (e->kind == EVENT_STREAM ? s->plan->n_devices : 0);
}

/* Runs one step from `begin_ns` on: appends its events and sets the rest of `step`. */
oato_status simulate_step(struct simulation *s, struct simulated_step *step, int64_t begin_ns,
                          struct oato_error *err);
/* The step's prefill over the whole request, or the decode step at the middle of the generation. */
struct sim_load simulation_load(const struct simulation *s, enum plan_phase phase, int32_t device);

#endif
