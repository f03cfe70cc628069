/*
 * divide_internal.h - a unit while its options are listed: divide.c says which there are,
 * divide_price.c what each costs.
 */
#ifndef OATO_DIVIDE_INTERNAL_H
#define OATO_DIVIDE_INTERNAL_H

#include "solver/problem_internal.h"

enum {
    KINDS_MAX = 4, /* of prefill steps, and the decode step */
    OPS_MAX = 2,   /* of a unit that can be divided */
};

struct dividing {
    const struct problem *p;
    int32_t unit, op[OPS_MAX], n_ops;
    int32_t group, groups, extent; /* neurons, experts or rows: in a group; groups; in all */
    struct request_step kind[KINDS_MAX];
    int32_t n_kinds; /* the last one is decode */
    /* Nanoseconds of a step of each kind: an operator whole and dense, its record included; copies
     * of all inputs and of the output between the host and a device; adding two outputs. */
    double whole[KINDS_MAX][OPS_MAX][SOLVER_DEVICES];
    double enter[KINDS_MAX][2][SOLVER_DEVICES],
        leave[KINDS_MAX][2][SOLVER_DEVICES]; /* 0: from it */
    /* The same between accelerators that reach each other. */
    double enter_direct[KINDS_MAX][SOLVER_DEVICES][SOLVER_DEVICES],
        leave_direct[KINDS_MAX][SOLVER_DEVICES][SOLVER_DEVICES]; /* [from][to] */
    double merge[KINDS_MAX][SOLVER_DEVICES];
    const double *active[KINDS_MAX]; /* [groups + 1]: sum of the activities of the first groups */
    bool runs[SOLVER_DEVICES];
    uint64_t file_bytes;
    struct option *out; /* where the next option goes; NULL: only counted */
    int32_t n;
};

/* What each device has of a divided unit, in groups. */
struct share {
    int32_t begin[SOLVER_DEVICES], end[SOLVER_DEVICES]; /* groups */
};
/* Accelerators take the first groups, in order, the host the last. */
struct share divide_share(const struct instance *in, const uint16_t *groups);

/* What inputs and output of a part on device d cost in a step of kind k, on their way from and to
 * where the unit's are. */
double divide_ways_ns(const struct dividing *x, int32_t base, int32_t d, int32_t k);

/* Adds an option, or counts it: the devices' groups (NULL: all on `base`), read and written on
 * `base`; in prefill device `stream` runs what the host has, unless it is -1. */
void divide_add(struct dividing *x, const uint16_t *groups, int32_t base, int32_t stream);

#endif
