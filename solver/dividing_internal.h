/*
 * dividing_internal.h - working state while the options of a unit are listed: divide.c lists them,
 * divide_price.c prices each.
 */
#ifndef OATO_DIVIDING_INTERNAL_H
#define OATO_DIVIDING_INTERNAL_H

#include "solver/planning_internal.h"

enum {
    KINDS_MAX = REQUEST_POINTS_MAX + 3, /* prefill steps, and the decode step */
    OPS_MAX = 2,                        /* operators of a unit that can be split */
    DENSITIES = 20,
};

struct dividing {
    const struct problem *p;
    int32_t unit, op[OPS_MAX], n_ops;
    int32_t group, groups, extent; /* group: neurons, experts or rows per group; extent: in total */
    struct request_step kind[KINDS_MAX];
    int32_t n_kinds; /* the last one is decode */
    /* Nanoseconds in a step of each kind. whole: an operator, unsplit and dense, record overhead
     * included; enter, leave: copies of all inputs and of the output, [from][to]; merge: adding two
     * outputs. */
    double whole[KINDS_MAX][OPS_MAX][SOLVER_DEVICES];
    double enter[KINDS_MAX][SOLVER_DEVICES][SOLVER_DEVICES],
        leave[KINDS_MAX][SOLVER_DEVICES][SOLVER_DEVICES];
    double merge[KINDS_MAX][SOLVER_DEVICES];
    const double *active[KINDS_MAX]; /* [groups + 1]: sum of the activity of the first i groups */
    bool runs[SOLVER_DEVICES];
    const struct plan_sparse *skips; /* silent neurons; NULL: none */
    /* Times as `whole`, record overhead left out, of the operator that skips, at DENSITIES + 1
     * shares of active neurons from 0 to all, where `tabled` */
    double sparse[KINDS_MAX][OPS_MAX][SOLVER_DEVICES][DENSITIES + 1];
    bool tabled[OPS_MAX][SOLVER_DEVICES];
    /* The same of the first operator where predictors list neurons; how many times as many as fire
     * it computes in decode; the time of making their list, and of that what a part has a share of.
     */
    struct plan_sparse predicted; /* .predicts 0: they are not */
    double by_list[KINDS_MAX][SOLVER_DEVICES][DENSITIES + 1];
    double list_work, list[SOLVER_DEVICES], list_by_neurons[SOLVER_DEVICES];
    bool columns; /* parts in a sidecar's order read a product's columns one by one */
    uint64_t file_bytes;
    struct option *out; /* where the next option goes; NULL: count only */
    int32_t n;
};

/* The groups of a split unit on each device. */
struct share {
    int32_t begin[SOLVER_DEVICES], end[SOLVER_DEVICES]; /* groups */
};
/* Accelerators get the first groups, in order, and the host the last. */
struct share divide_share(const struct instance *in, const uint16_t *groups);

/* Nanoseconds of the unit's i-th operator in a step of kind k on device d, record overhead left
 * out: of a `share` of its neurons, experts or rows, of which those of `part` (of all, too) are
 * active. divided: it is one of several parts. mode: OFF computes all of them, ABOVE skips silent
 * ones once their gate is known, PREDICT computes in decode even gates only of those predicted. */
double divide_op_ns(const struct dividing *x, int32_t k, int32_t i, int32_t d, double share,
                    double part, bool divided, enum sparse_mode mode);

/* Adds (or counts) an option with these groups per device (NULL: all on `base`), read and written
 * on `base`; unless `stream` is -1, that device runs the host's share in prefill. */
void divide_add(struct dividing *x, const uint16_t *groups, int32_t base, int32_t stream);

#endif
