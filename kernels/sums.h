/*
 * sums.h - how ranks sum (ranks/collective.h): what profiles measure, plans store and the ranks
 * obey.
 */
#ifndef OATO_SUMS_H
#define OATO_SUMS_H

#include "base/base.h"

/* By the tree of hosts; or by what their MPI has, a sum that all get, or a sum on rank 0 that is
 * then told to all; or by accelerators, of which each rank has one: each gets the summands of all
 * by its own library (NCCL) and adds them as the tree does. Plans store these numbers. */
enum sum_way { SUM_TREE, SUM_ALLREDUCE, SUM_REDUCE, SUM_ACCELERATORS, SUM_WAYS };
enum { SUM_HOST_WAYS = SUM_ACCELERATORS };       /* those before are the hosts' */
extern const char *const sum_way_name[SUM_WAYS]; /* "tree", "allreduce", "reduce", .. */

/* What hosts exchange is rounded to F32, F16 or Q8_0, whose blocks are this long: each host's sum,
 * and the sum of these. MERGE_SUM with such a dtype does the same in one process. */
enum { WIRE_BLOCK = 32 };
/* Whether rows of n columns can be exchanged as this type. */
bool sum_wire_ok(oato_dtype wire, int64_t n);

/* A plan's sums of up to so many bytes of F32 for which no earlier choice is; of more: the last. */
enum { SUM_CHOICES = 16 };
struct sum_choice {
    uint64_t bytes;
    enum sum_way way;
    oato_dtype wire; /* the same in all choices */
};

#endif
