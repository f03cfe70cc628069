/*
 * work.c - what operators take that are divided between ranks.
 *
 * A rank needs a record for its part, however small; no record takes less than the shortest
 * operator of the step. A host's operators are timed as they run, with their records: what a step
 * takes beyond them (record_overhead_ns) is that caches are colder and cores disturbed, which grows
 * with the time and not with the records. An accelerator's are timed without their records.
 */
#include "solver/ranks/ranks_internal.h"

#include <math.h>

void work_add(struct divided_work *w, double ns)
{
    const double own_ns = fmax(ns - w->record_ns, 0);
    w->all_ns += ns;
    w->own_ns += own_ns;
    if (own_ns > 0)
        w->least_ns = w->least_ns > 0 ? fmin(w->least_ns, own_ns) : own_ns;
}

double work_ns(const struct divided_work *w, double ns, double share)
{
    const double own_ns = fmax(ns - w->record_ns, 0), least_ns = fmin(w->least_ns, own_ns);
    return w->own_ns > 0 ? (least_ns + share * (own_ns - least_ns)) * w->all_ns / w->own_ns
                         : share * ns;
}

/* As many ranks as find cores of their own at the same time. */
static int32_t ranks_at_once(const struct rank_options *o, int32_t host)
{
    double cores = 0, threads = 0;
    for (int32_t r = 0; r < o->ranks; r++) {
        const struct profile *p = o->profiles[rank_profile(o, r)];
        if (rank_host(o, r) != host)
            continue;
        threads = fmax(threads, profile_host(p)->threads);
        cores = fmax(cores, p->machine.cores);
    }
    return threads > 0 ? (int32_t)fmax(cores / threads, 1) : o->ranks; /* 0: unknown */
}

double ranks_crowd(const struct rank_options *o, int32_t host, const double *alone_ns)
{
    double busy_ns[SOLVER_DEVICES] = {0}, longest_ns = 0, end_ns = 0;
    const int32_t n = ranks_at_once(o, host);
    for (int32_t r = 0; r < o->ranks; r++) {
        int32_t first = 0;
        if (rank_host(o, r) != host)
            continue;
        for (int32_t i = 1; i < n && i < o->ranks; i++)
            first = busy_ns[i] < busy_ns[first] ? i : first;
        busy_ns[first] += alone_ns[r];
        longest_ns = fmax(longest_ns, alone_ns[r]);
        end_ns = fmax(end_ns, busy_ns[first]);
    }
    return longest_ns > 0 ? end_ns / longest_ns : 1;
}
