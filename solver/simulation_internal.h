/*
 * simulation_internal.h - a plan on a virtual clock: simulate_step.c runs steps, simulate.c sums
 * them up and the reports draw them.
 */
#ifndef OATO_SIMULATION_INTERNAL_H
#define OATO_SIMULATION_INTERNAL_H

#include "lowering/lowering.h"
#include "solver/planning_internal.h"

enum { SIM_QUEUES = 2 * SOLVER_DEVICES };

enum event_kind {
    EVENT_STEP, /* overhead of a step on a device beyond its records */
    EVENT_RUN,  /* an operator, or a part of one */
    EVENT_MERGE,
    EVENT_UPLOAD,
    EVENT_DOWNLOAD,
    EVENT_PEER,   /* from another accelerator */
    EVENT_STREAM, /* copy of streamed weights, by the device's copy engine */
    EVENT_KINDS
};

/* A record with its time. A device's records form one queue, in order; its EVENT_STREAM records
 * form another. */
struct event {
    uint8_t kind;
    bool estimate;
    int16_t device;
    int16_t part, parts; /* part number of the operator or copied value; parts 1: whole */
    int32_t op;          /* the operator, or the producer of the copied value; -1: the step */
    int32_t waited_for;  /* event that delayed it; -1: none */
    uint64_t bytes;      /* of weights and KV read, or copied */
    int64_t begin_ns, end_ns, wait_ns;
};

/* A simulated step of the request, and how many steps of the request it represents. */
struct simulated_step {
    enum plan_phase phase;
    int32_t number; /* chunk of the prompt, or token, from 0 */
    struct request_step size;
    double times;
    int64_t begin_ns, end_ns; /* on the clock of the whole simulation */
    int32_t first, n;         /* events */
};

struct simulation {
    struct arena arena;
    const struct plan *plan;       /* borrowed */
    const struct profile *profile; /* borrowed */
    struct cost_source *cost;
    struct graph graph;     /* fused as the plan says */
    struct silence *silent; /* sparse_silences */
    int32_t host, device[SOLVER_DEVICES];
    struct placements placements;
    struct lowered lowered;
    struct simulated_step *steps;
    int32_t n_steps, middle; /* middle: the decode step that plans predict; -1: none */
    struct event *events;
    int32_t n_events;
    size_t cap_events;
    int64_t prefill_ns, decode_ns, request_ns;
};

/* The load of a device over the steps of a phase. */
struct sim_load {
    double run_ns, copy_ns, stream_ns; /* run: merges and step overhead included */
    double wait_ns[SIM_QUEUES];        /* [d]: for device d's queue, [n + d]: for its copy engine */
    double span_ns;                    /* of the phase: the rest is idle time at the end */
};

/* Time to the first token: of prefill or, without a prompt, of a decode step. */
static inline int64_t simulation_ttft_ns(const struct simulation *s)
{
    return s->plan->request.prompt ? s->prefill_ns : s->decode_ns;
}

/* The fraction of its operator that part i computes. */
static inline double placed_share(const struct graph_op *o, const struct placement *p, int32_t i)
{
    return part_share(&o->op, p->axis, p->part[i].begin, p->part[i].end);
}

/* An event's queue: the number of its device, plus n_devices for the copy engine. */
static inline int32_t event_queue(const struct simulation *s, const struct event *e)
{
    return e->device + (e->kind == EVENT_STREAM ? s->plan->n_devices : 0);
}

/* Runs one step from `begin_ns` on: appends its events and sets the rest of `step`. */
oato_status simulate_step(struct simulation *s, struct simulated_step *step, int64_t begin_ns,
                          struct oato_error *err);
/* Over all prefill of the request, or over the decode step at the middle of the generation. */
struct sim_load simulation_load(const struct simulation *s, enum plan_phase phase, int32_t device);

#endif
