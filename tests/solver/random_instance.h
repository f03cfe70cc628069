/* random_instance.h - small placement problems from a seed, for tests that compare solvers. */
#ifndef OATO_RANDOM_INSTANCE_H
#define OATO_RANDOM_INSTANCE_H

#include "solver/solver.h"

enum {
    INSTANCE_UNITS = 512,
    INSTANCE_OPTIONS = 1 << 18,
    INSTANCE_EDGES = 1024,
    INSTANCE_READERS = 4096
};

struct random_instance {
    struct instance instance;
    struct unit units[INSTANCE_UNITS];
    struct option options[INSTANCE_OPTIONS];
    int32_t n_options;
    struct edge edges[INSTANCE_EDGES];
    struct price direct[INSTANCE_EDGES][PHASE_COUNT][SOLVER_DEVICES][SOLVER_DEVICES];
    int32_t readers[INSTANCE_READERS];
    uint64_t state;
};

uint64_t random_next(uint64_t *state);
int64_t random_in(uint64_t *state, int64_t lo, int64_t hi);
/* Values go from units to any later ones: of no particular form. */
void random_dag(struct random_instance *r, uint64_t seed, int32_t units, int32_t devices);
/* Layers as transformers have them: a residual value beside a chain of units per block. */
void random_layers(struct random_instance *r, uint64_t seed, int32_t layers, int32_t devices,
                   bool equal);
/* Layers whose middle unit is divided into groups that fire with different frequencies and run on
 * several devices at the same time: at cut points in the order of frequency or, when `free`, in any
 * subsets. The same seed gives the same groups. */
void random_groups(struct random_instance *r, uint64_t seed, int32_t layers, int32_t devices,
                   int32_t groups, bool free);
/* One accelerator, layers of `groups` equal groups that share nothing but its memory: how much of
 * it there is, in groups, is capacity. Times fall along the cut points until the accelerator is the
 * slower one. */
void random_knapsack(struct random_instance *r, uint64_t seed, int32_t layers, int32_t groups,
                     int32_t capacity);
/* Its least request time, by a dynamic programme over the memory that is left. */
int64_t knapsack_least(const struct random_instance *r);
/* The least request time of all placements that fit; false when none does. */
bool brute_force(const struct instance *in, int64_t *least_ns);

#endif
