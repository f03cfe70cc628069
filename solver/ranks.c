/*
 * ranks.c - a plan for several ranks, processes that run one model together (kernels/collective.h).
 * It is the plan of one host with the work of each layer divided (ranks_cut.c). What is left -
 * norms, sums, routers - is small and runs on every rank, so that a layer has two sums of all ranks
 * and nothing else to exchange.
 *
 * Each rank has a share of its own of all that can be cut, in proportion to the speed of its
 * profile. A plan that was so made can be priced again by other profiles.
 */
#include "lowering/lowering.h"
#include "solver/ranks_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALL_PHASES = (1u << PHASE_COUNT) - 1 };

/* ------------------------------------------------------------------------------ the plan --- */

static oato_status plan_room(struct dealing *x, struct plan *plan)
{
    const size_t n = (size_t)x->g->n_ops, ranks = (size_t)x->o->ranks;
    plan->devices = arena_alloc(x->arena, ranks, sizeof *plan->devices);
    plan->parts = arena_alloc(x->arena, n * ranks, sizeof *plan->parts);
    plan->kv = arena_alloc(x->arena, n * ranks, sizeof *plan->kv);
    plan->costs = arena_alloc(x->arena, n * ranks * PHASE_COUNT, sizeof *plan->costs);
    return plan->devices && plan->parts && plan->kv && plan->costs
               ? OATO_OK
               : oato_fail_memory(x->err, n * ranks * sizeof *plan->parts, "the plan");
}

static oato_status fill_devices(struct dealing *x, struct plan *plan)
{
    const struct plan whole = *x->plan;
    const struct rank_options *o = x->o;
    const int32_t host = x->p->instance.host, n = x->p->n_devices;
    plan->n_devices = o->ranks;
    for (int32_t r = 0; r < o->ranks; r++) {
        const struct profile_device *from = profile_host(o->profiles[rank_profile(o, r)]);
        double need = (double)x->p->reserve[host];
        for (int32_t i = 0; i < x->g->n_ops; i++) {
            const struct op_price *price = &x->p->price[i * n + host];
            need += share_of(x, i, r) * (double)(price->weight_bytes + price->kv_bytes);
        }
        struct plan_device *to = &plan->devices[r];
        *to = whole.devices[host];
        snprintf(to->model, sizeof to->model, "%s", or_empty(from->model));
        to->rank = r;
        to->host = rank_host(o, r);
        to->budget_bytes = (uint64_t)((double)from->free_bytes * 0.9 / ranks_of_host(o, to->host));
        to->planned_bytes = (uint64_t)need;
        if (to->planned_bytes > to->budget_bytes && !x->may_exceed)
            return oato_fail(x->err, OATO_EFIT,
                             "rank %d needs %.1f MiB and may use %.1f MiB of %s; use more ranks, "
                             "or a smaller --context",
                             r, need / 0x1p20, (double)to->budget_bytes / 0x1p20, to->id);
    }
    return OATO_OK;
}

static void fill_op(struct dealing *x, struct plan *plan, int32_t i, const char *name)
{
    const struct cut_op *c = &x->op[i];
    for (int32_t r = 0; r < x->o->ranks && c->cut; r++) {
        const int64_t begin = begin_of(c, r), end = begin_of(c, r + 1);
        if (begin == end)
            continue;
        plan->parts[plan->n_parts++] = (struct plan_part){.op = name,
                                                          .axis = c->axis,
                                                          .begin = begin,
                                                          .end = end,
                                                          .phases = ALL_PHASES,
                                                          .device = r,
                                                          .home = r};
        if (x->g->ops[i].op.kind == OP_KV_STORE)
            plan->kv[plan->n_kv++] = (struct plan_kv){.layer = x->g->ops[i].kv_layer,
                                                      .head_begin = (int32_t)begin,
                                                      .head_end = (int32_t)end,
                                                      .device = r};
    }
}

/* The operator of the cost; costs follow the order of operators. */
static int32_t op_of_cost(const struct dealing *x, const struct plan_cost *cost, int32_t before)
{
    int32_t i = before;
    for (int32_t n = x->g->n_ops; n > 0 && strcmp(x->g->ops[i].name, cost->op) != 0; n--)
        i = (i + 1) % x->g->n_ops;
    return i;
}

/* A rank's operator takes its share of the time by its own speed, and longer where other ranks of
 * the host compute meanwhile. */
static void fill_costs(struct dealing *x, struct plan *plan, double saved_ns[PHASE_COUNT])
{
    const struct plan whole = *x->plan;
    const struct profile *profile = x->p->profile;
    const double record_ns = profile->devices[x->p->device[x->p->instance.host]].record_overhead_ns;
    struct divided_work work[PHASE_COUNT] = {[PHASE_DECODE] = {.record_ns = record_ns}};
    for (int32_t i = 0; i < request_prefill_steps(&whole.request); i++)
        work[PHASE_PREFILL].record_ns +=
            record_ns * (double)request_prefill_step(&whole.request, i).times;
    for (int32_t k = 0; k < whole.n_costs; k++)
        work_add(&work[whole.costs[k].phase], (double)whole.costs[k].ns);
    saved_ns[PHASE_PREFILL] = saved_ns[PHASE_DECODE] = 0;
    for (int32_t k = 0, i = 0; k < whole.n_costs; k++) {
        const struct plan_cost *from = &whole.costs[k];
        double alone_ns[SOLVER_DEVICES], slowest = 0;
        i = op_of_cost(x, from, i);
        for (int32_t r = 0; r < x->o->ranks; r++) {
            const double share = share_of(x, i, r);
            alone_ns[r] =
                share > 0 ? work_ns(&work[from->phase], (double)from->ns, share) * x->o->slowness[r]
                          : 0;
        }
        for (int32_t r = 0; r < x->o->ranks; r++) {
            const double ns = alone_ns[r] * ranks_crowd(x->o, rank_host(x->o, r), alone_ns);
            struct plan_cost row = *from;
            row.device = r;
            row.ns = (uint64_t)ns;
            row.estimate = from->estimate || x->op[i].cut;
            slowest = fmax(slowest, ns);
            if (ns > 0)
                plan->costs[plan->n_costs++] = row;
        }
        saved_ns[from->phase] += (double)from->ns - slowest;
    }
}

/* Time of all messages of a step of so many tokens. */
static double messages_ns(const struct dealing *x, const struct plan *plan, double tokens,
                          double rows)
{
    const struct graph_value *logits = &x->g->values[x->g->logits];
    const double width = x->g->values[x->g->ops[0].out[0]].width * sizeof(float);
    double remote = 0, local = 0;
    for (int32_t r = 1; r < x->o->ranks && x->op[logits->producer].cut; r++)
        *(rank_host(x->o, r) ? &remote : &local) +=
            share_of(x, logits->producer, r) * logits->width * sizeof(float) * rows;
    return x->n_sums[0] * rank_sum_ns(x->o, plan, width * tokens) +
           x->n_sums[1] * rank_sum_ns(x->o, plan, width * rows) +
           rank_logits_ns(x->o, remote, local);
}

static void fill_predictions(struct dealing *x, struct plan *plan)
{
    const struct plan_request *q = &plan->request;
    double saved[PHASE_COUNT];
    fill_costs(x, plan, saved);
    double prefill = (double)x->plan->prefill_ns - saved[PHASE_PREFILL];
    double decode = (double)x->plan->decode_ns - saved[PHASE_DECODE];
    for (int32_t i = 0; i < request_prefill_steps(q); i++) {
        const struct request_step s = request_prefill_step(q, i);
        prefill += (double)s.times * messages_ns(x, plan, s.tokens, s.rows);
    }
    decode += messages_ns(x, plan, q->batch, q->batch);
    plan->prefill_ns = (uint64_t)fmax(prefill, 0);
    plan->decode_ns = (uint64_t)fmax(decode, 0);
    plan->request_ns = plan->prefill_ns + (uint64_t)q->generate * plan->decode_ns;
    plan->objective_ns = q->objective == OBJECTIVE_TTFT             ? plan->prefill_ns
                         : q->objective == OBJECTIVE_TIME_PER_TOKEN ? plan->decode_ns
                                                                    : plan->request_ns;
}

/* Replaces the placement of the plan, all of it on one host. */
static oato_status plan_divide(struct dealing *x)
{
    struct plan plan = *x->plan;
    plan.n_parts = plan.n_kv = plan.n_costs = 0;
    if (plan_room(x, &plan))
        return x->err->status;
    plan.arena = x->plan->arena; /* grown since the copy */
    if (fill_devices(x, &plan) || rank_sums_choose(x->o, &plan, x->err))
        return x->err->status;
    for (int32_t i = 0, part = 0; i < x->g->n_ops; i++) {
        while (strcmp(x->plan->parts[part].op, x->g->ops[i].name) != 0)
            part++;
        fill_op(x, &plan, i, x->plan->parts[part].op);
    }
    fill_predictions(x, &plan);
    plan.solver = "ranks";
    plan.bound_ns = 0;
    *x->plan = plan;
    return OATO_OK;
}

static oato_status options_check(const struct model *m, const struct rank_options *o,
                                 struct oato_error *err)
{
    if (o->ranks < 2 || o->ranks > PARTS_MAX)
        return oato_fail(err, OATO_EUSAGE, "%d ranks; a plan can be for 2 to %d", o->ranks,
                         PARTS_MAX);
    if (o->hosts < 1 || o->hosts > o->ranks)
        return oato_fail(err, OATO_EUSAGE, "%d hosts for %d ranks; 1 to %d are possible", o->hosts,
                         o->ranks, o->ranks);
    if (!sum_wire_ok(o->wire, m->shape.width))
        return oato_fail(err, OATO_EUSAGE,
                         "--wire q8_0 has blocks of %d, but the model is %d wide; use f16",
                         WIRE_BLOCK, m->shape.width);
    return OATO_OK;
}

/* The profile with room for the whole model: only its speed counts until the model is divided. */
static oato_status profile_widen(const struct profile *p, struct arena *a, struct profile *out,
                                 struct oato_error *err)
{
    *out = *p;
    out->devices = arena_alloc(a, (size_t)p->n_devices + 1, sizeof *out->devices);
    if (!out->devices)
        return oato_fail_memory(err, sizeof *out->devices, "the plan");
    memcpy(out->devices, p->devices, (size_t)p->n_devices * sizeof *out->devices);
    for (int32_t d = 0; d < out->n_devices; d++)
        out->devices[d].memory_bytes = out->devices[d].free_bytes = UINT64_C(1) << 46;
    return OATO_OK;
}

/* The plan of one host that has room for everything. */
static oato_status plan_whole(const struct model *m, const struct profile *profile,
                              const struct planner_options *given, struct arena *a,
                              struct plan *out, struct problem **problem, struct oato_error *err)
{
    struct planner_options o = *given;
    struct profile *wide = arena_alloc(a, 1, sizeof *wide);
    if (!wide)
        return oato_fail_memory(err, sizeof *wide, "the plan");
    if (profile_widen(profile, a, wide, err))
        return err->status;
    o.devices = profile_host(profile)->id;
    o.solver = "cpu";
    o.whole_only = o.by_ranks = true;
    o.sparse = PLANNER_SPARSE_OFF;
    o.n_budgets = 0;
    return planner_make(m, wide, &o, out, problem, err);
}

static oato_status plan_deal(const struct problem *p, const struct rank_options *o, struct arena *a,
                             struct plan *out, struct oato_error *err)
{
    const size_t ops = (size_t)p->graph.n_ops, layers = (size_t)p->graph.n_layers;
    struct dealing x = {
        .p = p, .g = &p->graph, .plan = out, .o = o, .arena = &out->arena, .err = err};
    x.op = arena_alloc(a, ops + 1, sizeof *x.op);
    x.heads = arena_alloc(a, layers + 1, sizeof *x.heads);
    if (!x.op || !x.heads)
        return oato_fail_memory(err, ops * sizeof *x.op, "the plan");
    err->status = OATO_OK;
    return dealing_cut(&x) ? err->status : plan_divide(&x);
}

/* ------------------------------------------------------------------------- priced again --- */

/* The work of a plan for ranks on one host that has room for all of it, with the plan's fusions. */
static oato_status price_whole(const struct model *m, const struct profile *profile,
                               const struct plan *plan, struct arena *a, struct plan *one,
                               struct problem **problem, struct oato_error *err)
{
    struct profile *wide = arena_alloc(a, 1, sizeof *wide);
    struct plan_device *host = arena_alloc(a, 1, sizeof *host);
    int32_t *place;
    *problem = NULL;
    *one = *plan;
    if (!wide || !host)
        return oato_fail_memory(err, sizeof *wide, "the plan");
    if (profile_widen(profile, a, wide, err))
        return err->status;
    *host = plan->devices[0];
    snprintf(host->id, sizeof host->id, "%s", profile_host(profile)->id);
    host->budget_bytes = UINT64_C(1) << 46;
    one->devices = host;
    one->n_devices = 1;
    one->n_parts = one->n_kv = one->n_costs = 0; /* without parts all of it is on the host */
    if (problem_of_plan(m, wide, one, problem, &place, err))
        return err->status;
    one->objective_ns = (uint64_t)instance_price(&(*problem)->instance, place).objective_ns;
    const oato_status status = simulation_predict(one, m, wide, err);
    if (status) {
        problem_free(*problem);
        *problem = NULL;
    }
    return status;
}

static oato_status whole_costs(const struct problem *p, struct arena *a, struct plan *one,
                               struct oato_error *err)
{
    const int32_t n = p->graph.n_ops;
    one->costs = arena_alloc(a, (size_t)n * PHASE_COUNT + 1, sizeof *one->costs);
    if (!one->costs)
        return oato_fail_memory(err, (size_t)n * sizeof *one->costs, "the plan");
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (int32_t i = 0; i < n; i++) {
            const struct op_price *price = &p->price[i * p->n_devices + p->instance.host];
            const int64_t ns = phase == PHASE_DECODE ? price->decode_ns : price->prefill_ns;
            one->costs[one->n_costs++] =
                (struct plan_cost){.op = arena_string(a, p->graph.ops[i].name),
                                   .phase = (enum plan_phase)phase,
                                   .ns = (uint64_t)ns,
                                   .estimate = price->estimate};
            if (!one->costs[one->n_costs - 1].op)
                return oato_fail_memory(err, 64, "the plan");
        }
    return OATO_OK;
}

/* ----------------------------------------------------------------------------- the speeds --- */

/* The first rank with the same profile. */
static int32_t first_alike(const struct rank_options *o, int32_t rank)
{
    int32_t first = 0;
    while (rank_profile(o, first) != rank_profile(o, rank))
        first++;
    return first;
}

/* The objective of all work on the profile's host: as planned for it, or of a plan that is priced
 * again. */
static oato_status whole_objective(const struct model *m, const struct profile *profile,
                                   const struct planner_options *given, const struct plan *plan,
                                   struct arena *a, double *ns, struct oato_error *err)
{
    struct problem *problem = NULL;
    struct plan one;
    plan_init(&one);
    if (plan ? price_whole(m, profile, plan, a, &one, &problem, err)
             : plan_whole(m, profile, given, a, &one, NULL, err))
        return err->status;
    *ns = (double)one.objective_ns;
    problem_free(problem);
    if (!plan)
        plan_free(&one);
    return OATO_OK;
}

/* How slow each rank's profile is against the first's. One of given and plan is NULL. */
static oato_status speeds_find(const struct model *m, const struct planner_options *given,
                               const struct plan *plan, struct arena *a, uint64_t first_ns,
                               struct rank_options *o, struct oato_error *err)
{
    for (int32_t r = 0; r < o->ranks; r++) {
        const int32_t from = first_alike(o, r);
        double ns = (double)first_ns;
        if (r == from && r &&
            whole_objective(m, o->profiles[rank_profile(o, r)], given, plan, a, &ns, err))
            return err->status;
        o->slowness[r] = r == from ? ns / fmax((double)first_ns, 1) : o->slowness[from];
    }
    return OATO_OK;
}

/* By their speed while all ranks of their host compute as long. */
static void shares_find(struct rank_options *o)
{
    double equal_ns[SOLVER_DEVICES];
    for (int32_t r = 0; r < o->ranks; r++)
        equal_ns[r] = 1;
    for (int32_t r = 0; r < o->ranks; r++)
        o->share[r] = 1 / fmax(o->slowness[r] * ranks_crowd(o, rank_host(o, r), equal_ns), 1e-6);
}

oato_status ranks_slowness(const struct model *m, const struct planner_options *given,
                           const struct rank_options *options, double *slowness,
                           struct oato_error *err)
{
    struct rank_options o = *options;
    struct arena a;
    double first_ns = 0;
    o.ranks = o.hosts = o.n_profiles;
    arena_init(&a);
    oato_status status = whole_objective(m, o.profiles[0], given, NULL, &a, &first_ns, err);
    if (!status)
        status = speeds_find(m, given, NULL, &a, (uint64_t)first_ns, &o, err);
    if (!status)
        memcpy(slowness, o.slowness, (size_t)o.ranks * sizeof *slowness);
    arena_free(&a);
    return status;
}

void ranks_as_planned(const struct plan *plan, struct rank_options *o)
{
    o->ranks = plan_ranks(plan);
    o->hosts = plan->devices[plan->n_devices - 1].host + 1;
    o->wire = plan_wire(plan);
}

oato_status ranks_price(const struct plan *plan, const struct model *m,
                        const struct rank_options *options, struct plan *now,
                        struct oato_error *err)
{
    struct rank_options o = *options;
    struct problem *problem = NULL;
    struct plan one;
    struct arena scratch;
    ranks_as_planned(plan, &o);
    if (options_check(m, &o, err))
        return err->status;
    arena_init(&scratch);
    *now = *plan;
    arena_init(&now->arena);
    now->n_costs = 0;
    rank_network(&o);
    oato_status status = price_whole(m, o.profiles[0], plan, &scratch, &one, &problem, err);
    if (!status && problem)
        status = whole_costs(problem, &now->arena, &one, err);
    if (!status && problem)
        status = speeds_find(m, NULL, plan, &scratch, one.objective_ns, &o, err);
    if (!status && problem) {
        shares_find(&o);
        struct dealing x = {.p = problem,
                            .g = &problem->graph,
                            .plan = &one,
                            .o = &o,
                            .arena = &now->arena,
                            .may_exceed = true,
                            .err = err};
        x.op = arena_alloc(&scratch, (size_t)problem->graph.n_ops + 1, sizeof *x.op);
        err->status = OATO_OK;
        status = x.op ? dealing_cut_as(&x, plan) : oato_fail_memory(err, sizeof *x.op, "the plan");
        if (x.op && !status && !(status = plan_room(&x, now)) &&
            !(status = fill_devices(&x, now))) {
            now->parts = plan->parts;
            now->kv = plan->kv;
            fill_predictions(&x, now);
        }
    }
    problem_free(problem);
    arena_free(&scratch);
    if (status)
        arena_free(&now->arena);
    return status;
}

oato_status ranks_plan(const struct model *m, const struct planner_options *given,
                       const struct rank_options *options, struct rank_prices *prices,
                       struct plan *out, struct oato_error *err)
{
    struct rank_options o = *options;
    struct problem *problem = NULL;
    struct arena a;
    if (options_check(m, &o, err))
        return err->status;
    arena_init(&a);
    oato_status status = plan_whole(m, o.profiles[0], given, &a, out, &problem, err);
    if (status || !problem)
        goto out;
    rank_network(&o);
    status = speeds_find(m, given, NULL, &a, out->objective_ns, &o, err);
    if (!status) {
        if (prices)
            pipeline_price(&o, &problem->graph, out, prices);
        shares_find(&o);
        status = plan_deal(problem, &o, &a, out, err);
    }
    if (status)
        plan_free(out);
out:
    problem_free(problem);
    arena_free(&a);
    return status;
}
