/*
 * shortage.c - what is said of a request that does not fit: how much memory is missing, and ways
 * out that help, because each was planned with: the least budget of the host, to within a
 * hundredth, and the largest context. Activations and workspace depend on the placement, so no sum
 * would tell.
 */
#include "solver/planning_internal.h"
#include "solver/report/report_internal.h"

#include <inttypes.h>
#include <string.h>

#define ENOUGH_NS UINT64_C(4000000000) /* then what is known by now has to do */
enum { PARTS = 128, LEAST_STEP = 4096 };

struct shortage {
    const struct model *model;
    const struct profile *profile;
    const struct planner_options *options;
    const struct profile_device *host;
    uint64_t may_bytes; /* that the host may use */
    uint64_t end_ns;
};

/* Whether there is a plan with that context and that budget of the host. */
static bool fits(const struct shortage *x, int64_t context, uint64_t host_bytes)
{
    struct planner_options o = *x->options;
    struct plan plan;
    struct oato_error ignored;
    int32_t i = 0;
    while (i < o.n_budgets && strcmp(o.budgets[i].id, x->host->id) != 0)
        i++;
    if (i == SOLVER_DEVICES)
        return false;
    snprintf(o.budgets[i].id, sizeof o.budgets[i].id, "%s", x->host->id);
    o.budgets[i].bytes = host_bytes;
    o.n_budgets = i == o.n_budgets ? i + 1 : o.n_budgets;
    o.request.context = (int32_t)context;
    if (o.workload) /* what is asked for does not decide what fits */
        request_set_points(&o.request, &(struct plan_point){.generate = 1}, &(double){1}, 1);
    o.solver = "affinity"; /* whether, not how well */
    if (o.any_ubatch)
        o.request.ubatch = WIDTH_LEAST;
    if (o.any_kv)
        o.request.kv = DT_Q8_0;
    o.any_ubatch = o.any_kv = false;
    o.single_shot = false;
    o.expert_cache = 0;
    if (planner_make(x->model, x->profile, &o, &plan, NULL, &ignored))
        return false;
    plan_free(&plan);
    return true;
}

/* The least budget of the host for which there is a plan; 0: all its memory is not enough. */
static uint64_t least_budget(const struct shortage *x)
{
    const int64_t context = x->options->request.context;
    uint64_t lo = x->may_bytes, hi = x->host->memory_bytes;
    if (hi <= lo || !fits(x, context, hi))
        return 0;
    while (hi - lo > LEAST_STEP + hi / PARTS && now_ns() < x->end_ns) {
        const uint64_t middle = lo + (hi - lo) / 2;
        *(fits(x, context, middle) ? &hi : &lo) = middle;
    }
    return hi;
}

/* The largest context below the request's, in whole pages; 0: none. */
static int64_t largest_context(const struct shortage *x)
{
    const struct plan_request *q = &x->options->request;
    const int64_t page = KV_PAGE_POSITIONS;
    const int64_t tokens = request_least(x->options);
    int64_t lo = (tokens + page - 1) / page, end = (q->context + page - 1) / page;
    if (lo >= end || !fits(x, lo * page, x->may_bytes))
        return 0;
    while (end - lo > 1 && now_ns() < x->end_ns) {
        const int64_t middle = lo + (end - lo) / 2;
        *(fits(x, middle * page, x->may_bytes) ? &lo : &end) = middle;
    }
    return lo * page;
}

static bool find_host(struct shortage *x)
{
    const struct planner_options *o = x->options;
    for (int32_t i = 0; i < x->profile->n_devices && !x->host; i++)
        if (x->profile->devices[i].is_host &&
            (!o->devices || device_is_listed(o->devices, x->profile->devices[i].id)))
            x->host = &x->profile->devices[i];
    if (!x->host)
        return false;
    x->may_bytes = x->host->free_bytes / 10 * 9;
    for (int32_t i = 0; i < o->n_budgets; i++)
        if (!strcmp(o->budgets[i].id, x->host->id))
            x->may_bytes = o->budgets[i].bytes;
    return true;
}

oato_status report_shortage(const struct model *m, const struct profile *profile,
                            const struct planner_options *o, struct oato_error *err)
{
    struct shortage x = {
        .model = m, .profile = profile, .options = o, .end_ns = now_ns() + ENOUGH_NS};
    if (oato_failed_memory(err) || !find_host(&x) || fits(&x, o->request.context, x.may_bytes))
        return err->status; /* as the planner has it */
    const uint64_t need = least_budget(&x);
    x.end_ns = now_ns() + ENOUGH_NS;
    const int64_t context = largest_context(&x);
    char ways[160] = "";
    if (!need && !context)
        return err->status; /* likewise: the host is not all that is too small */
    if (need)
        snprintf(ways, sizeof ways, "raise the budget, --budget %s=%" PRIu64 "KiB%s", x.host->id,
                 (need + 1023) >> 10, context ? ", or " : "");
    if (context)
        snprintf(ways + strlen(ways), sizeof ways - strlen(ways), "lower --context to %" PRId64,
                 context);
    if (!(profile_storage_rate(profile) > 0))
        snprintf(ways + strlen(ways), sizeof ways - strlen(ways),
                 ", or let oato-profile measure storage, to stream weights");
    if (!need)
        return oato_fail(err, OATO_EFIT,
                         "weights, KV of %d positions, activations and workspace do not fit, also "
                         "with all %.1f MiB of %s; %s",
                         o->request.context, as_mib((double)x.host->memory_bytes), x.host->id,
                         ways);
    return oato_fail(err, OATO_EFIT,
                     "weights, KV of %d positions, activations and workspace do not fit: %s needs "
                     "%.1f MiB and may use %.1f MiB, so %.1f MiB are missing; %s",
                     o->request.context, x.host->id, as_mib((double)need),
                     as_mib((double)x.may_bytes), as_mib((double)(need - x.may_bytes)), ways);
}
