/*
 * context.c - the largest context for which there is a plan of the wanted speed. A bisection over
 * whole pages of KV: more context leaves less memory for weights, so plans get slower until none
 * fits. Each probe makes a whole plan; if the best plan for the objective decodes too slowly when
 * the context is full, the one with the fastest decode there is tried. The result was planned and
 * meets both conditions; one more page was planned as well, and does not.
 */
#include "solver/report/report_internal.h"

#include <inttypes.h>
#include <math.h>

struct probe {
    const struct model *model;
    const struct profile *profile;
    struct planner_options options;
    double at_least; /* tokens/s of decode; 0: any */
    struct text why; /* what stood against the last context that did not do */
};

/* What the request asks for and, for nearly all of the objective, decode where the context is full.
 */
static void ask_when_full(struct plan_request *q)
{
    struct plan_point points[REQUEST_POINTS_MAX];
    double weights[REQUEST_POINTS_MAX];
    const int32_t n = request_points(q) < REQUEST_POINTS_MAX ? request_points(q) : 0;
    for (int32_t i = 0; i < n; i++) {
        points[i] = request_point(q, i);
        weights[i] = 1.0 / POINTS_WEIGHT;
    }
    points[n] = (struct plan_point){.generate = 1, .depth = q->context / q->batch - 1};
    weights[n] = 1;
    q->objective = OBJECTIVE_TIME_PER_TOKEN;
    request_set_points(q, points, weights, n + 1);
}

/* Tokens/s of decode of all sequences at the last position of the context. */
static oato_status speed_when_full(const struct probe *x, const struct plan *plan, double *speed,
                                   struct oato_error *err)
{
    struct plan full = *plan;
    const struct plan_point last = {.generate = 1,
                                    .depth = plan->request.context / plan->request.batch - 1};
    request_set_points(&full.request, &last, &(double){1}, 1);
    const oato_status status = simulation_predict(&full, x->model, x->profile, err);
    *speed = status ? 0 : tokens_per_s(full.request.batch, full.decode_ns);
    return status;
}

/* OATO_NEGATIVE: there is a plan, but no one that is fast enough. */
static oato_status plan_at(struct probe *x, int64_t context, struct plan *out,
                           struct problem **problem, struct oato_error *err)
{
    struct planner_options o = x->options;
    o.resident_only = true; /* else any context fits */
    double best = 0;
    o.request.context = (int32_t)context;
    oato_status status = workload_set(x->model, x->profile, &o, err);
    for (;;) {
        double speed = INFINITY;
        if (!status)
            status = planner_make(x->model, x->profile, &o, out, problem, err);
        if (status)
            return status;
        if (x->at_least > 0)
            status = speed_when_full(x, out, &speed, err);
        if (!status && speed >= x->at_least)
            return OATO_OK;
        best = speed > best ? speed : best;
        plan_free(out);
        problem_free(problem ? *problem : NULL);
        if (!status && o.request.objective == OBJECTIVE_TIME_PER_TOKEN)
            return oato_fail(err, OATO_NEGATIVE,
                             "decode would be %.4g tokens/s when the context is full, not %.4g",
                             best, x->at_least);
        ask_when_full(&o.request);
    }
}

/* True when the context does; *failed is set when something else than memory or speed is wrong. */
static bool does(struct probe *x, int64_t context, bool *failed, struct oato_error *err)
{
    struct plan plan;
    const oato_status status = plan_at(x, context, &plan, NULL, err);
    if (!status) {
        plan_free(&plan);
        return true;
    }
    *failed = oato_failed_memory(err) || (status != OATO_NEGATIVE && status != OATO_EFIT);
    text_free(&x->why);
    text_printf(&x->why, "%s", err->text);
    return false;
}

oato_status context_maximize(const struct model *m, const struct profile *profile,
                             const struct planner_options *o, double at_least, struct plan *out,
                             struct problem **problem, struct text *bound, struct oato_error *err)
{
    const struct plan_request *q = &o->request;
    const int64_t page = KV_PAGE_POSITIONS;
    const int64_t tokens = request_least(o);
    const int64_t trained = m->shape.context_length * q->batch;
    int64_t lo = (max_i64(tokens, 1) + page - 1) / page, hi = trained / page;
    struct probe x = {.model = m, .profile = profile, .options = *o, .at_least = at_least};
    bool failed = false;
    oato_status status = OATO_OK;
    if (hi * page > REQUEST_CONTEXT_MAX)
        hi = REQUEST_CONTEXT_MAX / page;
    text_init(&x.why);
    if (!does(&x, lo * page, &failed, err)) {
        status = err->status;
        if (!failed)
            status = oato_fail(err, OATO_EFIT,
                               "no plan holds even the request's own %" PRId64 " tokens: %.300s",
                               tokens, x.why.data ? x.why.data : "");
        goto out;
    }
    if (hi < lo || does(&x, hi * page, &failed, err)) {
        lo = max_i64(lo, hi);
        text_free(&x.why);
        text_printf(&x.why, "the model was trained on sequences of %" PRId64 " positions",
                    m->shape.context_length);
    } else {
        for (int64_t end = hi; !failed && end - lo > 1;) { /* why: that of end */
            const int64_t middle = lo + (end - lo) / 2;
            if (does(&x, middle * page, &failed, err))
                lo = middle;
            else
                end = middle;
        }
    }
    status = failed ? err->status : plan_at(&x, lo * page, out, problem, err);
    if (!status)
        text_printf(bound, "largest context %" PRId64 "; bound: %s\n", lo * page,
                    x.why.data ? x.why.data : "");
out:
    text_free(&x.why);
    return status;
}
