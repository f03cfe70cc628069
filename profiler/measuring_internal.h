/*
 * measuring_internal.h - a profiling run, shared by measure.c (devices, rates, the profile's head)
 * and operators.c.
 */
#ifndef OATO_MEASURING_INTERNAL_H
#define OATO_MEASURING_INTERNAL_H

#include "profiler/profiler_internal.h"

#define BUSY ": was the machine busy? Measure again when it is quiet"

/* A run in progress. */
struct run {
    struct profile *p;
    const struct model *m;
    const struct profiler_options *o;
    warn_fn warn;
    void *user;
    struct profiler_report *report;
    struct op_set set;
    bool *had; /* of the cases of the set: the device had rows before this run */
    struct rig rig[DEVICES_MAX];
    int n_rigs;
    uint8_t *made_up;
    size_t made_up_bytes;
    struct progress progress;
    double done;
    struct passes passes; /* over the operators of a device */
    struct kept kept;
    struct storage_meter *storage;
    uint64_t end_ns;  /* options.seconds from the beginning; 0: no end */
    uint64_t late_ns; /* when a device's operators should have been timed; 0: no such time */
    bool cut;         /* not all of them were, or no whole layers */
};

/* operators.c: the clock of what is measured until the next call. What a device cannot do is said
 * once. */
void run_clock(struct run *r, struct rig *rig, enum device_clock clock);
/* How many passes over the operators of a device there are at least. */
int least_passes(const struct run *r, const struct rig *rig);
/* All operators of the set that are to be timed, on one device. */
oato_status measure_operators(struct run *r, struct rig *rig, struct oato_error *err);
/* Medians survive some disturbance, not a machine that does something else all the time. */
void warn_if_busy(const struct run *r, const struct rig *rig);

#endif
