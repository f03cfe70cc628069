/*
 * ranks_internal.h - the work of a model divided between ranks: cut.c cuts it, ranks.c makes plans
 * of it.
 */
#ifndef OATO_RANKS_INTERNAL_H
#define OATO_RANKS_INTERNAL_H

#include "solver/planning_internal.h"

/* Room for whatever is planned there. */
static const uint64_t PLENTY = UINT64_C(1) << 46;

/* An operator that is divided: rank r has [cut[r], cut[r + 1]) * each of the axis. */
struct cut_op {
    const int32_t *cut; /* NULL: every rank has all of it. From dealing_cut, what it is a multiple
                           of follows the last one */
    int32_t each;
    enum op_axis axis;
};

/* What a rank computes with: the host of its profile, which comes first, and accelerators that no
 * other rank has. */
struct seat {
    const struct profile *profile;
    int32_t n, device[SOLVER_DEVICES]; /* of the profile */
    int32_t like; /* the first rank whose devices are the same but for their numbers */
};

/* All work of the model on the devices of a seat. */
struct whole {
    struct plan plan;
    struct problem *problem; /* NULL: not made */
    int32_t *device;         /* of the seat, per operator */
    double on_host;          /* of what operators take the share that the host's cores take */
};

struct dealing {
    const struct graph *g;
    const struct rank_options *o;
    const struct seat *seats;            /* by rank */
    const struct whole *wholes;          /* by rank, at its `like` */
    const struct planner_options *given; /* whose budgets count; NULL: nobody's */
    int32_t first[SOLVER_DEVICES + 1];   /* of the plan's devices, by rank */
    struct cut_op *op;                   /* by operator */
    int32_t **heads;                     /* by layer of KV: its cut, once it is known */
    struct arena *arena;                 /* the plan's */
    struct oato_error *err;
};

/* Room for op and heads; false: memory is short. */
bool dealing_room(struct dealing *x, struct arena *a);
/* Cuts by the ranks' shares; what cannot be cut is left to every rank. x->op and x->heads are
 * allocated, and zero. */
oato_status dealing_cut(struct dealing *x);

/* exchange.c: how often in turn the ranks of a host compute where its cores are too few for all. */
int32_t ranks_turns(const struct rank_options *o, int32_t host);

/* seats.c */

/* The seats of o->ranks: those of the plan, or with plan NULL by the options. */
oato_status seats_find(const struct rank_options *o, const struct planner_options *given,
                       const struct plan *plan, struct seat *seats, struct oato_error *err);
/* Bytes that the rank may use on device d of its seat. */
uint64_t seat_budget(const struct rank_options *o, const struct planner_options *given,
                     const struct seat *seats, int32_t rank, int32_t d);
/* Plans all work for the devices of each seat, of which a rank will have its share, by
 * options->request and the like; sets the ranks' slowness and shares. room, by rank: the part of
 * its accelerators' budgets that may be used. wholes_free in any case. */
oato_status wholes_make(const struct model *m, const struct planner_options *given,
                        const struct seat *seats, const double *room, struct rank_options *o,
                        struct whole *wholes, struct oato_error *err);
void wholes_free(struct whole *wholes, int32_t ranks);

/* Options to plan for the seat's devices, which the list names; budgets are not set. */
void seat_options(const struct seat *seat, const struct planner_options *given,
                  const struct plan *cover, char devices[DEVICES_SIZE], struct planner_options *to);

/* stages.c */

/* A plan in which each rank has some of the layers. o->slowness may be unknown, 0. OATO_EFIT:
 * there are too few layers, or not enough memory. */
oato_status stages_plan(const struct model *m, const struct planner_options *given,
                        const struct rank_options *o, const struct seat *seats, struct plan *out,
                        struct oato_error *err);

/* Whether one rank may have the layers before this one, and another the rest. */
bool layers_can_be_cut(const struct graph *g, int32_t layer);
/* Takes away the plan's fusions over a cut, where a rank's layers end and the next one's begin. */
void fusions_cut(const struct graph *g, const int32_t *cut, int32_t ranks, struct plan *cover);

/* ranks.c */

/* What the plan's request is minimised for, by its predictions. */
int64_t ranks_objective(const struct plan *p);
/* States what the programs of a plan for ranks take, in memory and time, and the costs of its
 * operators. OATO_EFIT: more memory than its devices may use, unless that may be exceeded. */
oato_status ranks_predict(struct plan *plan, const struct model *m, const struct rank_options *o,
                          bool may_exceed, struct oato_error *err);
/* The slowness of each profile's host alone, the first's being 1. */
oato_status ranks_slowness(const struct model *m, const struct planner_options *given,
                           const struct rank_options *options, double *slowness,
                           struct oato_error *err);

static inline const struct profile_device *profile_host(const struct profile *p)
{
    for (int32_t d = 0; d < p->n_devices; d++)
        if (p->devices[d].is_host)
            return &p->devices[d];
    return p->devices;
}

static inline int64_t begin_of(const struct cut_op *c, int32_t rank)
{
    return (int64_t)c->cut[rank] * c->each;
}

static inline int32_t rank_host(const struct rank_options *o, int32_t rank)
{
    return (int32_t)((int64_t)rank * o->hosts / o->ranks);
}

/* A host's ranks have its profile, unless there are more profiles than hosts. */
static inline int32_t rank_profile(const struct rank_options *o, int32_t rank)
{
    return (o->n_profiles > o->hosts ? rank : rank_host(o, rank)) % o->n_profiles;
}

/* How many ranks there are on the host. */
static inline int32_t ranks_of_host(const struct rank_options *o, int32_t host)
{
    int32_t n = 0;
    for (int32_t r = 0; r < o->ranks; r++)
        n += rank_host(o, r) == host;
    return n;
}

/* The share of the operator that the rank has. */
static inline double share_of(const struct dealing *x, int32_t op, int32_t rank)
{
    const struct cut_op *c = &x->op[op];
    return c->cut ? (double)(c->cut[rank + 1] - c->cut[rank]) / c->cut[x->o->ranks] : 1;
}

/* The options with a deadline, if their time is limited, and the first of `of` equal parts of what
 * is left of it. */
struct planner_options ranks_timed(const struct planner_options *given, int32_t of);

#endif
