/*
 * simulation_internal.h - a plan on a virtual clock: simulate_step.c runs the records of a step,
 * ranks/exchange.c those between ranks, simulate.c sums steps up and the reports draw them.
 */
#ifndef OATO_SIMULATION_INTERNAL_H
#define OATO_SIMULATION_INTERNAL_H

#include "lowering/lowering.h"
#include "solver/ranks/ranks_internal.h"

/* Ranks, and the devices of all of them; a device has two queues. */
enum { SIM_RANKS = 64, SIM_DEVICES = PLAN_DEVICES_MAX, SIM_QUEUES = 2 * SIM_DEVICES };

enum event_kind {
    EVENT_STEP, /* overhead of a step on a device beyond its records */
    EVENT_RUN,  /* an operator, or a part of one */
    EVENT_MERGE,
    EVENT_UPLOAD,
    EVENT_DOWNLOAD,
    EVENT_PEER,     /* from another accelerator */
    EVENT_STREAM,   /* copy of streamed weights, by the device's copy engine */
    EVENT_EXCHANGE, /* with other ranks */
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
    int32_t point, number; /* chunk of the point's prompt, or token, from 0 */
    struct request_step size;
    double times;    /* of the point alone */
    double predicts; /* in how much of the prediction the step is: of a prompt, or of decode */
    int64_t begin_ns, end_ns; /* on the clock of the whole simulation */
    int32_t first, n;         /* events */
};

/* A process with its own programs. Its devices follow each other in the plan and are numbered from
 * 0 in what is lowered. */
struct sim_rank {
    const struct profile *profile; /* borrowed */
    struct cost_source *cost;
    int32_t first, n_devices, host; /* of the plan's devices */
    struct placements placements;
    struct lowered lowered;
    int64_t free_ns; /* when its last step was done */
};

struct simulation {
    struct arena arena;
    const struct plan *plan; /* borrowed */
    struct rank_options options;
    struct graph graph;     /* fused as the plan says */
    struct silence *silent; /* sparse_silences */
    int32_t n_ranks;
    struct sim_rank *rank;
    int32_t device[SIM_DEVICES]; /* of the plan: its number in its rank's profile */
    bool alone; /* rank 0's programs only: what it exchanges takes its time and waits for nobody */
    int32_t host;                 /* rank 0's */
    struct placements placements; /* of all ranks, by the plan's devices */
    struct simulated_step *steps;
    int32_t n_steps, middle; /* middle: the last decode step that plans predict; -1: none */
    struct event *events;
    int32_t n_events;
    size_t cap_events;
    int64_t prefill_ns, decode_ns, request_ns;
    struct {
        int64_t prefill_ns, decode_ns;
    } point[REQUEST_POINTS_MAX];
};

struct host_work {   /* on a rank's host, of all whole operators there */
    double least_ns; /* the shortest, of one row */
    double factor;   /* by which all take longer with their records; 0: not known yet */
};

/* The load of a device over the steps of a phase. */
struct sim_load {
    double run_ns, copy_ns, stream_ns; /* run: merges and step overhead included; copy: exchanges */
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

static inline struct sim_rank *sim_rank_of(const struct simulation *s, int32_t device)
{
    return &s->rank[s->alone ? 0 : s->plan->devices[device].rank];
}

/* Since when something can be read, and the event that made it; -1: none. */
struct home {
    int64_t ns;
    int32_t event;
};

struct kv_turns {               /* of a rank whose layers' KV stays in a file */
    struct home used[KV_ROOMS]; /* the layer before in each room */
    int32_t layers;             /* so far in turn */
    bool turn;                  /* one of them is there */
};

/* A step while it runs; devices are the plan's. */
struct stepping {
    struct simulation *s;
    const struct simulated_step *step;
    int64_t clock[SIM_QUEUES];          /* when the queue is free */
    int32_t last[SIM_DEVICES];          /* event of each device's own queue */
    struct home passed[SIM_DEVICES];    /* what records that took no time have waited for since */
    uint32_t next[SIM_DEVICES];         /* record of the program */
    uint32_t span[SIM_DEVICES];         /* the first span that ends behind it */
    struct home *signals[SIM_DEVICES];  /* by ordinal; event -1: still to come */
    struct home *streamed[SIM_DEVICES]; /* by weight slot */
    struct home *history[SIM_DEVICES];  /* by KV layer: what was copied to a room */
    struct kv_turns kv[SIM_RANKS];
    struct home cores[SIM_RANKS];     /* of hosts whose ranks take turns: each set of cores, */
    int32_t has_cores[SIM_RANKS];     /* and which one a rank has until it waits; -1: none */
    struct host_work work[SIM_RANKS]; /* of ranks that share operators */
    struct home gathered;             /* on rank 0: the last of what it waits for, */
    int32_t n_gathered;               /* and of how many ranks, */
    double gathered_bytes[2];         /* of this host; of others */
    uint32_t swapped[SIM_DEVICES];    /* the value that was summed last */
    struct oato_error *err;
};

static inline const struct lowered_program *program_of(const struct stepping *x, int32_t d)
{
    const struct sim_rank *r = sim_rank_of(x->s, d);
    return &r->lowered.device[d - r->first].phase[x->step->phase];
}

static inline struct cost_device device_of(const struct stepping *x, int32_t d)
{
    return cost_device(sim_rank_of(x->s, d)->cost, x->s->device[d]);
}

/* Rows of the record in this step; ranks have candidates of logits made. */
static inline int32_t rows_of(const struct stepping *x, const struct program_record *r)
{
    return r->rows == ROWS_TOKENS                       ? x->step->size.tokens
           : r->rows == ROWS_WHOLE && x->s->n_ranks > 1 ? 0
                                                        : x->step->size.rows;
}

/* Takes so long on its queue, as soon as that is free and all that it reads is there. */
struct home event_add(struct stepping *x, struct event e, double ns, const struct home *reads,
                      int n);
/* Takes no time: what waits for it waits for all before it, as does the next record that takes
 * some. */
struct home event_pass(struct stepping *x, int32_t d, const struct home *reads, int n);
/* Lists what the device's next record waits for; false: something of it is still to come. */
bool next_reads(const struct stepping *x, int32_t d, struct home reads[RECORD_WAITS]);
/* The device's next record has been run. */
void next_done(struct stepping *x, int32_t d, struct home done);

/* ranks/exchange.c: runs the next record of the device, one of those between ranks, and that of
 * each rank that takes part. False: somebody is not there yet. */
bool exchange_run(struct stepping *x, int32_t d);
/* What a share of an operator takes on its rank's host with its record: part_ns apart from that. */
double rank_part_ns(struct stepping *x, int32_t d, double part_ns, double share);
/* The cores that a record of the host needs are those of other ranks, too: since when it has some;
 * NULL: at any time. */
struct home *rank_cores(struct stepping *x, int32_t d);

/* Runs one step, on each rank as soon as it is done with the one before: appends its events and
 * sets the rest of `step`, which lasts as long as rank 0 sees it. */
oato_status simulate_step(struct simulation *s, struct simulated_step *step,
                          struct oato_error *err);
/* simulation_run with what is known of the ranks; alone: see struct simulation. */
oato_status simulation_of_rank(const struct plan *plan, const struct model *m,
                               const struct rank_options *ranks, bool alone,
                               struct simulation **out, struct oato_error *err);
/* Sets the plan's predictions but the objective. */
void simulation_tell(const struct simulation *s, struct plan *plan);
/* Over all prefill of the request, or over the decode step at the middle of the generation. */
struct sim_load simulation_load(const struct simulation *s, enum plan_phase phase, int32_t device);

#endif
