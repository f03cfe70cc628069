/*
 * ranks_work.c - what operators take that are divided between ranks.
 *
 * A rank needs a record for its part, however small; no record takes less than the shortest
 * operator of the step. A host's operators are timed as they run, with their records: what a step
 * takes beyond them (record_overhead_ns) is that caches are colder and cores disturbed, which grows
 * with the time and not with the records. An accelerator's are timed without their records.
 */
#include "solver/ranks_internal.h"

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

double ranks_crowd(const struct rank_options *o, int32_t host, const double *alone_ns)
{
    double work_ns = 0, longest_ns = 0, cores = 0;
    for (int32_t r = 0; r < o->ranks; r++) {
        if (rank_host(o, r) != host)
            continue;
        const struct profile *p = o->profiles[rank_profile(o, r)];
        const double threads = profile_host(p)->threads;
        cores = fmax(cores, fmax(p->machine.cores, threads));
        work_ns += alone_ns[r] * threads;
        longest_ns = fmax(longest_ns, alone_ns[r]);
    }
    return cores > 0 && longest_ns > 0 ? fmax(work_ns / cores / longest_ns, 1) : 1;
}
