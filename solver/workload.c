/*
 * workload.c - the points that a plan is made for: of named workloads, which follow from the
 * context, and what each counts. A point that nobody gave a weight counts by the inverse of what
 * the best baseline takes there, so that none dominates: a plan that is twice as slow at one point
 * loses as much as by being twice as slow at another.
 */
#include "solver/planning_internal.h"

#include <string.h>

enum { PARTS = 64, ALL = INT32_MAX };

/* A point: tokens, at most so many 64ths of a sequence's positions; depth: 64ths of what is left.
 */
struct shape {
    int32_t prompt, prompt_parts, generate, generate_parts, depth_parts;
};

static const struct named {
    const char *name;
    struct shape shapes[3];
    int32_t n;
} named[] = {
    /* short; a long prompt; the context filled */
    {"mixed", {{128, 16, 128, 16, 0}, {ALL, 32, 128, 16, 0}, {128, 16, 128, 16, 64}}, 3},
    /* turns of a conversation: the first, one in the middle, the last that fits */
    {"chat", {{128, 8, 256, 16, 0}, {128, 8, 256, 16, 32}, {128, 8, 256, 16, 64}}, 3},
    /* a function; an edit of a large file; a late turn of an agent */
    {"code", {{512, 16, 256, 8, 0}, {ALL, 40, 512, 16, 0}, {512, 8, 512, 8, 64}}, 3},
    /* a short answer about few or about many documents */
    {"rag", {{2048, 24, 128, 8, 0}, {ALL, 56, 128, 8, 0}}, 2},
};

const char *workload_find(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(named); i++)
        if (!strcmp(named[i].name, name))
            return named[i].name;
    return NULL;
}

static int32_t at_most(int32_t tokens, int64_t positions, int32_t parts)
{
    return (int32_t)min_i64(tokens, positions * parts / PARTS);
}

/* The points of a named workload where a sequence has so many positions: those that differ. */
static void points_named(const char *name, int64_t positions, struct workload *w)
{
    const struct named *of = named;
    while (strcmp(of->name, name) != 0)
        of++;
    w->n = 0;
    for (int32_t i = 0; i < of->n; i++) {
        const struct shape *s = &of->shapes[i];
        struct plan_point p = {.weight = 0};
        p.generate = (int32_t)max_i64(at_most(s->generate, positions, s->generate_parts), 1);
        p.prompt = at_most(s->prompt, positions, s->prompt_parts);
        p.depth = at_most(ALL, max_i64(positions - p.prompt - p.generate, 0), s->depth_parts);
        bool there = false;
        for (int32_t k = 0; k < w->n; k++)
            there = there || (w->points[k].prompt == p.prompt &&
                              w->points[k].generate == p.generate && w->points[k].depth == p.depth);
        if (!there)
            w->points[w->n++] = p;
    }
}

/* The best of the baselines that are solved at once; where none fits, the host as if it did. place
 * has room for two placements. */
static int64_t baselines_ns(const struct problem *p, int32_t *place, bool *fits)
{
    const struct instance *in = &p->instance;
    int64_t best = INT64_MAX;
    for (int i = 0; i < 2; i++)
        if ((i ? solve_layers : solve_cpu)(in, place))
            best = min_i64(best, instance_price(in, place).objective_ns);
    if (baseline_fit(p, place))
        best = min_i64(best, baseline_fit_price(p, place, place + in->n_units).objective_ns);
    *fits = best < INT64_MAX;
    if (!*fits)
        solve_cpu(in, place);
    return *fits ? best : instance_price(in, place).objective_ns;
}

/* What a point counts without a weight; 0: unknown. */
static oato_status weigh(const struct model *m, const struct profile *profile,
                         const struct planner_options *o, const struct plan_point *point,
                         double *weight, struct oato_error *err)
{
    struct planner_options alone = *o;
    struct storage_rule rule;
    struct problem *p;
    bool fits;
    *weight = 0;
    request_set_points(&alone.request, point, &(double){1}, 1);
    oato_status status = problem_create(m, profile, &alone, &p, err);
    if (status) /* for want of memory there is no plan either, as will be said */
        return status == OATO_EFIT && !oato_failed_memory(err) ? OATO_OK : status;
    int32_t *place = arena_alloc(&p->arena, 2 * (size_t)p->instance.n_units + 1, sizeof *place);
    if (!place)
        status = oato_fail_memory(err, sizeof *place, "a placement");
    int64_t ns = status ? 0 : baselines_ns(p, place, &fits);
    if (!status && !fits && profile_storage_rate(profile) > 0 && !(status = storage_open(p, err)) &&
        !(status = storage_rule_begin(p, &rule, err)))
        ns = baselines_ns(p, place, &fits);
    problem_free(p);
    *weight = ns > 0 ? 1 / (double)ns : 0;
    return status;
}

oato_status workload_set(const struct model *m, const struct profile *profile,
                         struct planner_options *o, struct oato_error *err)
{
    struct plan_request *q = &o->request;
    if (!o->workload)
        return OATO_OK;
    struct workload w = *o->workload;
    if (w.name)
        points_named(w.name, q->batch > 0 ? q->context / q->batch : 0, &w);
    double all = 0, weights[REQUEST_POINTS_MAX];
    for (int32_t i = 0; i < w.n; i++) {
        weights[i] = w.weights[i];
        if (!(weights[i] > 0) && weigh(m, profile, o, &w.points[i], &weights[i], err))
            return err->status;
        all += weights[i];
    }
    for (int32_t i = 0; i < w.n && !(all > 0); i++)
        weights[i] = 1;
    request_set_points(q, w.points, weights, w.n);
    return OATO_OK;
}
