/*
 * points.c - the requests that a plan is for, or others: what it takes for each, and its regret,
 * which is how much longer that is than with a plan for this request alone. Predictions of both are
 * simulations; those plans have the same devices, budgets and options.
 */
#include "solver/report/report_internal.h"

#include "solver/planning_internal.h"

struct tokens_text request_tokens(const struct plan_request *q)
{
    struct tokens_text t;
    const int n = snprintf(t.text, sizeof t.text, "%d + %d tokens", q->prompt, q->generate);
    const bool one = request_points(q) == 1;
    if (!one)
        snprintf(t.text + n, sizeof t.text - (size_t)n, " on average");
    else if (request_point(q, 0).depth)
        snprintf(t.text + n, sizeof t.text - (size_t)n, " behind %d", request_point(q, 0).depth);
    return t;
}

int64_t request_least(const struct planner_options *o)
{
    const struct plan_request *q = &o->request;
    const struct workload *w = o->workload;
    int64_t most = 1;
    for (int32_t i = 0; i < (w ? w->n : request_points(q)); i++) {
        const struct plan_point p = w ? w->points[i] : request_point(q, i);
        most = max_i64(most, (int64_t)p.depth + p.prompt + p.generate);
    }
    return most * q->batch;
}

struct plan_request request_alone(const struct plan_request *q, int32_t i)
{
    const struct plan_point point = request_point(q, i);
    struct plan_request alone = *q;
    request_set_points(&alone, &point, &(double){1}, 1);
    return alone;
}

static uint64_t objective_ns(const struct plan_request *q, int32_t i, uint64_t prefill_ns,
                             uint64_t decode_ns)
{
    const struct plan_request alone = request_alone(q, i);
    return (uint64_t)request_price(&alone, (int64_t)prefill_ns, (int64_t)decode_ns).objective_ns;
}

static uint64_t own_ns(const struct plan_request *q, int32_t i)
{
    return objective_ns(q, i, q->points[i].prefill_ns, q->points[i].decode_ns);
}

oato_status regrets_find(const struct plan *plan, const struct model *m,
                         const struct problem *problem, const struct plan_request *q,
                         double time_limit_s, struct regrets *out, struct oato_error *err)
{
    const uint64_t deadline_ns = ilp_deadline(time_limit_s);
    struct planner_options o;
    char devices[DEVICES_SIZE];
    struct plan own = *plan;
    *out = (struct regrets){.request = *q};
    own.request = *q;
    if (simulation_predict(&own, m, problem->profile, err))
        return err->status;
    out->request = own.request;
    problem_options(problem, &o, devices);
    o.expert_cache = plan->n_caches ? CACHE_AUTO : 0;
    o.time_limit_s = time_limit_s;
    for (int32_t i = 0; i < q->n_points; i++) {
        struct plan alone;
        o.request = request_alone(q, i);
        o.deadline_ns = ilp_share(deadline_ns, q->n_points - i);
        const oato_status status = planner_make(m, problem->profile, &o, &alone, NULL, err);
        if (status == OATO_EFIT && !oato_failed_memory(err))
            continue;
        if (status)
            return status;
        out->alone_ns[i] = objective_ns(q, i, alone.prefill_ns, alone.decode_ns);
        out->timed_out = out->timed_out || alone.timed_out;
        plan_free(&alone);
    }
    return OATO_OK;
}

void points_json(const struct plan_request *q, const struct regrets *r, struct text *out)
{
    json_open(out, "points", '[');
    for (int32_t i = 0; i < q->n_points; i++) {
        const struct plan_point *p = &q->points[i];
        json_open(out, NULL, '{');
        json_add(out, JSON("prompt", p->prompt), JSON("generate", p->generate),
                 JSON("depth", p->depth), JSON("weight", (int64_t)p->weight),
                 JSON("prefill_ns", p->prefill_ns), JSON("decode_ns", p->decode_ns),
                 JSON("objective_ns", own_ns(q, i)));
        if (r && r->alone_ns[i])
            json_add(out, JSON("alone_ns", r->alone_ns[i]),
                     JSON("regret", (double)own_ns(q, i) / (double)r->alone_ns[i] - 1));
        json_close(out, '}');
    }
    json_close(out, ']');
}

void points_text(const struct plan_request *q, const struct regrets *r, struct text *out)
{
    if (!q->n_points)
        return;
    text_printf(out, "%-28s %7s %11s %11s %9s %12s", "each kind of request", "weight", "prefill ms",
                "decode ms", "tokens/s", objective_names[q->objective]);
    text_printf(out, r ? " %12s %8s\n" : "\n", "alone", "regret");
    for (int32_t i = 0; i < q->n_points; i++) {
        const struct plan_point *p = &q->points[i];
        const struct plan_request alone = request_alone(q, i);
        text_printf(out, "%-28s %6.2f%% %11.1f %11.3f %9.1f %12.1f", request_tokens(&alone).text,
                    100.0 * p->weight / POINTS_WEIGHT, as_ms((double)p->prefill_ns),
                    as_ms((double)p->decode_ns), tokens_per_s(q->batch, p->decode_ns),
                    as_ms((double)own_ns(q, i)));
        if (r && r->alone_ns[i])
            text_printf(out, " %12.1f %+7.1f%%\n", as_ms((double)r->alone_ns[i]),
                        percent_more((double)own_ns(q, i), (double)r->alone_ns[i]));
        else
            text_printf(out, r ? " %12s %8s\n" : "\n", "-", "-");
    }
    if (r && r->timed_out)
        text_printf(out, "the time limit ended the search for some of the plans for one request "
                         "alone: regrets may be larger\n");
}
