/*
 * ranks.c - a plan for several ranks, processes that run one model together
 * (kernels/ranks/collective.h). It is the plan of one process with the work of each layer divided
 * (cut.c). What is left - norms, sums, routers - is small and runs on every rank's host or,
 * if accelerators exchange sums by themselves, on these, so that a layer has two sums of all ranks
 * and nothing else to exchange. Or each rank has some of the layers (stages.c).
 *
 * Each rank has a share of its own of all that can be cut, in proportion to the speed of its
 * devices (seats.c). What a plan takes is the simulation of all ranks (exchange.c), by whatever
 * profiles.
 */
#include "solver/ranks/ranks_internal.h"
#include "solver/simulation_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ALL_PHASES = (1u << PHASE_COUNT) - 1 };
/* Tokens of a step of a prompt, where any number will do. */
enum { STEP_LEAST = 16 };

/* ------------------------------------------------------------------------------ the plan --- */

static const struct whole *whole_of(const struct dealing *x, int32_t rank)
{
    return &x->wholes[x->seats[rank].like];
}

/* The device of the rank's seat for its part of the operator. */
static int32_t device_of_op(const struct dealing *x, int32_t rank, int32_t op)
{
    return x->op[op].cut || x->o->joined ? whole_of(x, rank)->device[op] : 0;
}

static const struct op_price *price_of(const struct dealing *x, int32_t rank, int32_t op)
{
    const struct problem *p = whole_of(x, rank)->problem;
    return &p->price[op * p->n_devices + device_of_op(x, rank, op)];
}

static oato_status plan_room(struct dealing *x, struct plan *plan)
{
    const size_t n = (size_t)x->g->n_ops, ranks = (size_t)x->o->ranks;
    for (int32_t r = 0; r < x->o->ranks; r++)
        x->first[r + 1] = x->first[r] + x->seats[r].n;
    plan->devices = arena_alloc(x->arena, (size_t)x->first[ranks], sizeof *plan->devices);
    plan->parts = arena_alloc(x->arena, n * ranks, sizeof *plan->parts);
    plan->kv = arena_alloc(x->arena, n * ranks, sizeof *plan->kv);
    return plan->devices && plan->parts && plan->kv
               ? OATO_OK
               : oato_fail_memory(x->err, n * ranks * sizeof *plan->parts, "the plan");
}

/* The bytes of each device of a rank's seat that it needs. */
static void bytes_needed(const struct dealing *x, int32_t rank, double need[SOLVER_DEVICES])
{
    const struct problem *p = whole_of(x, rank)->problem;
    for (int32_t d = 0; d < p->n_devices; d++)
        need[d] = d ? 0 : (double)p->reserve[d];
    for (int32_t i = 0; i < x->g->n_ops; i++) {
        const int32_t d = device_of_op(x, rank, i);
        const struct op_price *price = price_of(x, rank, i);
        if (!need[d])
            need[d] = (double)p->reserve[d];
        need[d] += share_of(x, i, rank) * (double)(price->weight_bytes + price->kv_bytes);
    }
}

static void fill_devices(const struct dealing *x, struct plan *plan)
{
    plan->n_devices = x->first[x->o->ranks];
    for (int32_t r = 0; r < x->o->ranks; r++)
        for (int32_t d = 0; d < x->seats[r].n; d++) {
            struct plan_device *to = &plan->devices[x->first[r] + d];
            plan_device_fill(&x->seats[r].profile->devices[x->seats[r].device[d]], to);
            to->rank = r;
            to->host = rank_host(x->o, r);
            to->budget_bytes = seat_budget(x->o, x->given, x->seats, r, d);
        }
}

static void fill_op(struct dealing *x, struct plan *plan, int32_t i, const char *name)
{
    const struct cut_op *c = &x->op[i];
    for (int32_t r = 0; r < x->o->ranks && c->cut; r++) {
        const int64_t begin = begin_of(c, r), end = begin_of(c, r + 1);
        const int32_t device = x->first[r] + device_of_op(x, r, i);
        if (begin == end)
            continue;
        plan->parts[plan->n_parts++] = (struct plan_part){.op = name,
                                                          .axis = c->axis,
                                                          .begin = begin,
                                                          .end = end,
                                                          .phases = ALL_PHASES,
                                                          .device = device,
                                                          .home = device};
        if (x->g->ops[i].op.kind == OP_KV_STORE)
            plan->kv[plan->n_kv++] = (struct plan_kv){.layer = x->g->ops[i].kv_layer,
                                                      .head_begin = (int32_t)begin,
                                                      .head_end = (int32_t)end,
                                                      .device = device};
    }
}

int64_t ranks_objective(const struct plan *p)
{
    return request_price(&p->request, (int64_t)p->prefill_ns, (int64_t)p->decode_ns).objective_ns;
}

/* ----------------------------------------------------------------------- what it takes --- */

/* The steps that the plan predicts, operator by operator. */
static oato_status fill_costs(const struct simulation *s, struct plan *plan, struct oato_error *err)
{
    const size_t ops = (size_t)s->graph.n_ops, devices = (size_t)plan->n_devices,
                 rows = PHASE_COUNT * ops * devices;
    struct plan_cost *all = arena_alloc(&plan->arena, rows, sizeof *all);
    for (int32_t i = 0; i < s->n_steps && all; i++) {
        const struct simulated_step *step = &s->steps[i];
        const double times = step->phase == PHASE_DECODE ? i == s->middle : step->times;
        for (int32_t k = step->first; k < step->first + step->n; k++) {
            const struct event *e = &s->events[k];
            if (e->kind != EVENT_RUN)
                continue;
            struct plan_cost *c =
                &all[((size_t)step->phase * ops + (size_t)e->op) * devices + (size_t)e->device];
            c->op = s->graph.ops[e->op].name;
            c->phase = step->phase;
            c->device = e->device;
            c->ns += (uint64_t)whole_ns(times * (double)(e->end_ns - e->begin_ns));
            c->estimate = c->estimate || e->estimate;
        }
    }
    plan->costs = all;
    plan->n_costs = 0;
    for (size_t i = 0; i < rows && all; i++) {
        struct plan_cost c = all[i];
        if (c.ns && !(c.op = arena_string(&plan->arena, c.op)))
            all = NULL;
        else if (c.ns)
            all[plan->n_costs++] = c;
    }
    return all ? OATO_OK : oato_fail_memory(err, rows * sizeof *all, "the plan");
}

oato_status ranks_predict(struct plan *plan, const struct model *m, const struct rank_options *o,
                          bool may_exceed, struct oato_error *err)
{
    struct simulation *s;
    struct device_memory need[PLAN_DEVICES_MAX] = {{.weights = 0}};
    for (int32_t r = 0; r < o->ranks; r++)
        if (memory_of_rank(plan, m, o->profiles[rank_profile(o, r)], r, need, err))
            return err->status;
    for (int32_t i = 0; i < plan->n_devices; i++) {
        struct plan_device *d = &plan->devices[i];
        d->planned_bytes = memory_stated(&need[i], d->budget_bytes);
        if (d->planned_bytes > d->budget_bytes && !may_exceed)
            return oato_fail(
                err, OATO_EFIT,
                "rank %d needs %.1f MiB and may use %.1f MiB of %s; use more ranks, or "
                "a smaller --context",
                d->rank, (double)d->planned_bytes / 0x1p20, (double)d->budget_bytes / 0x1p20,
                d->id);
    }
    if (simulation_of_rank(plan, m, o, false, &s, err))
        return err->status;
    simulation_tell(s, plan);
    plan->objective_ns = (uint64_t)ranks_objective(plan);
    plan->solver = "ranks";
    plan->bound_ns = 0;
    const oato_status status = fill_costs(s, plan, err);
    simulation_free(s);
    return status;
}

/* One host's processor alone. Other baselines had more room in accelerators than there is. */
static void baselines_keep(struct plan *plan)
{
    int32_t n = 0;
    for (int32_t i = 0; i < plan->n_baselines; i++)
        if (!strcmp(plan->baselines[i].name, "cpu"))
            plan->baselines[n++] = plan->baselines[i];
    plan->n_baselines = n;
}

/* Replaces the placement of the plan, all of it of one process. */
static oato_status plan_divide(struct dealing *x, const struct model *m, struct plan *plan)
{
    plan->n_parts = plan->n_kv = plan->n_costs = 0;
    baselines_keep(plan);
    if (plan_room(x, plan) || rank_sums_choose(x->o, plan, x->err))
        return x->err->status;
    fill_devices(x, plan);
    for (int32_t i = 0; i < x->g->n_ops; i++) {
        const char *name = arena_string(x->arena, x->g->ops[i].name);
        if (!name)
            return oato_fail_memory(x->err, 64, "the plan");
        fill_op(x, plan, i, name);
    }
    return ranks_predict(plan, m, x->o, false, x->err);
}

static oato_status options_check(const struct model *m, const struct rank_options *o,
                                 struct oato_error *err)
{
    if (o->ranks < 2 || o->ranks > PARTS_MAX)
        return oato_fail(err, OATO_EUSAGE, "%d ranks; a plan can be for 2 to %d", o->ranks,
                         PARTS_MAX);
    if (o->split == SPLIT_LAYERS && o->hosts != o->ranks)
        return oato_fail(err, OATO_EUSAGE,
                         "--split layers: %d ranks on %d hosts; each host has one rank, which "
                         "computes on all of its devices",
                         o->ranks, o->hosts);
    if (o->hosts < 1 || o->hosts > o->ranks)
        return oato_fail(err, OATO_EUSAGE, "%d hosts for %d ranks; 1 to %d are possible", o->hosts,
                         o->ranks, o->ranks);
    if (!sum_wire_ok(o->wire, m->shape.width))
        return oato_fail(err, OATO_EUSAGE,
                         "--wire q8_0 has blocks of %d, but the model is %d wide; use f16",
                         WIRE_BLOCK, m->shape.width);
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ planning --- */

oato_status ranks_slowness(const struct model *m, const struct planner_options *given,
                           const struct rank_options *options, double *slowness,
                           struct oato_error *err)
{
    struct rank_options o = *options;
    struct seat seats[SOLVER_DEVICES];
    struct whole wholes[SOLVER_DEVICES] = {{.problem = NULL}};
    double room[SOLVER_DEVICES];
    o.ranks = o.hosts = o.n_profiles;
    for (int32_t r = 0; r < o.ranks; r++)
        room[r] = 1;
    oato_status status = seats_find(&o, given, NULL, seats, err);
    if (!status)
        status = wholes_make(m, given, seats, room, &o, wholes, err);
    if (!status)
        memcpy(slowness, o.slowness, (size_t)o.ranks * sizeof *slowness);
    wholes_free(wholes, o.ranks);
    return status;
}

/* Cuts the work. *fits: the ranks' accelerators have room for it; else room says how much less may
 * be planned there next time. Cuts fall on whole heads and blocks, so that a rank may get more than
 * its share. */
static oato_status cut_to_fit(struct dealing *x, double *room, bool *fits)
{
    *fits = true;
    if (!dealing_room(x, x->arena))
        return oato_fail_memory(x->err, (size_t)x->g->n_ops, "the plan");
    x->err->status = OATO_OK;
    if (dealing_cut(x))
        return x->err->status;
    for (int32_t r = 0; r < x->o->ranks; r++) {
        double need[SOLVER_DEVICES] = {0}, *own = &room[x->seats[r].like];
        bytes_needed(x, r, need);
        for (int32_t d = 1; d < x->seats[r].n; d++) {
            const double has = (double)seat_budget(x->o, x->given, x->seats, r, d);
            if (need[d] <= has)
                continue;
            *own *= 0.99 * has / need[d];
            *fits = false;
        }
    }
    return OATO_OK;
}

/* Less may be planned on the ranks' accelerators next time; false: there are none. */
static bool room_shrink(const struct rank_options *o, const struct seat *seats, double *room)
{
    bool any = false;
    for (int32_t r = 0; r < o->ranks; r++) {
        room[r] *= 0.97;
        any = any || seats[r].n > 1;
    }
    return any;
}

enum { TRIES = 6 };

/* The accelerators' share of the work is made smaller until it fits. */
static oato_status plan_deal(const struct model *m, const struct planner_options *given,
                             const struct seat *seats, struct rank_options *o, struct whole *wholes,
                             struct plan *out, struct oato_error *err)
{
    struct arena a;
    double room[SOLVER_DEVICES];
    bool fits = false;
    oato_status status = OATO_OK;
    for (size_t r = 0; r < ARRAY_LEN(room); r++)
        room[r] = 1;
    for (int i = 0; i < TRIES && !fits && !status; i++) {
        struct dealing x = {
            .o = o, .given = given, .seats = seats, .wholes = wholes, .arena = &a, .err = err};
        arena_init(&a);
        status = wholes_make(m, given, seats, room, o, wholes, err);
        x.g = status ? NULL : &wholes[0].problem->graph;
        if (!status)
            status = cut_to_fit(&x, room, &fits);
        if (!status && (fits || i + 1 == TRIES)) {
            *out = wholes[0].plan; /* request, names, fusions */
            plan_init(&wholes[0].plan);
            x.arena = &out->arena;
            status = plan_divide(&x, m, out);
            if (status)
                plan_free(out);
        }
        if (status == OATO_EFIT && !oato_failed_memory(err) && i + 1 < TRIES &&
            room_shrink(o, seats, room)) {
            status = OATO_OK;
            fits = false;
        }
        arena_free(&a);
    }
    return status;
}

/* In two ways: hosts sum; or accelerators do, if each rank has one and --links measured it. */
static oato_status tensor_best(const struct model *m, const struct planner_options *given,
                               const struct seat *seats, struct rank_options *o,
                               struct whole *wholes, struct plan *out, struct oato_error *err)
{
    struct plan joined;
    struct oato_error ignored;
    const oato_status status = plan_deal(m, given, seats, o, wholes, out, err);
    bool one_each = true;
    for (int32_t r = 0; r < o->ranks; r++)
        one_each = one_each && seats[r].n == 2;
    if (!one_each || !rank_sums_measured(o, SUM_ACCELERATORS) || o->wire != DT_F32)
        return status;
    o->joined = true;
    const oato_status other = plan_deal(m, given, seats, o, wholes, &joined, &ignored);
    o->joined = false;
    if (other)
        return status;
    const bool better = status || ranks_objective(&joined) < ranks_objective(out);
    if (!better || !status)
        plan_free(better ? out : &joined);
    if (better)
        *out = joined;
    return OATO_OK;
}

/* Of two plans, each of which may be missing, the better one; *prices tells of the other. */
static void plans_choose(struct plan *by[SPLIT_LAYERS + 1], struct plan *out,
                         struct rank_prices *prices)
{
    struct plan *t = by[SPLIT_TENSOR], *l = by[SPLIT_LAYERS];
    const bool layers = !t || (l && ranks_objective(l) < ranks_objective(t));
    struct plan *other = layers ? t : l;
    *prices = (struct rank_prices){.split = layers ? SPLIT_LAYERS : SPLIT_TENSOR};
    *out = layers ? *l : *t;
    if (!other)
        return;
    prices->priced = true;
    prices->prefill_ns = other->prefill_ns;
    prices->decode_ns = other->decode_ns;
    plan_free(other);
}

/* Layers of their own. Shorter steps of a prompt keep more ranks busy at once, but each rank reads
 * its weights more often: the length is halved as long as that is better. */
static oato_status stages_best(const struct model *m, const struct planner_options *given,
                               const struct rank_options *o, const struct seat *seats,
                               struct plan *out, struct oato_error *err)
{
    const bool many = o->any_ubatch;
    struct planner_options now = ranks_timed(given, many ? 2 : 1);
    struct ilp_clock clock = {.deadline_ns = given->deadline_ns};
    struct plan shorter;
    struct oato_error ignored;
    const oato_status status = stages_plan(m, &now, o, seats, out, err);
    int32_t *tokens = &now.request.ubatch;
    do
        *tokens /= 2;
    while (*tokens > 1 && *tokens >= given->request.prompt);
    for (; !status && many && *tokens >= STEP_LEAST && *tokens >= now.request.batch &&
           !ilp_late(&clock);
         *tokens /= 2) {
        now.deadline_ns = ilp_share(given->deadline_ns, 2);
        if (stages_plan(m, &now, o, seats, &shorter, &ignored))
            break;
        const bool better = ranks_objective(&shorter) < ranks_objective(out);
        plan_free(better ? out : &shorter);
        if (!better)
            break;
        *out = shorter;
    }
    return status;
}

struct planner_options ranks_timed(const struct planner_options *given, int32_t of)
{
    struct planner_options timed = *given;
    if (!timed.deadline_ns)
        timed.deadline_ns = ilp_deadline(given->time_limit_s);
    timed.deadline_ns = ilp_share(timed.deadline_ns, of);
    return timed;
}

oato_status ranks_plan(const struct model *m, const struct planner_options *given,
                       const struct rank_options *options, struct rank_prices *prices,
                       struct plan *out, struct oato_error *err)
{
    const struct planner_options all = ranks_timed(given, 1);
    struct rank_options o = *options;
    struct seat seats[SOLVER_DEVICES];
    struct whole wholes[SOLVER_DEVICES] = {{.problem = NULL}};
    struct plan tensor, layers, *by[SPLIT_LAYERS + 1] = {NULL};
    struct rank_prices chosen;
    struct oato_error second;
    oato_status status = OATO_OK;
    if (options_check(m, &o, err) || seats_find(&o, given, NULL, seats, err))
        return err->status;
    rank_network(&o);
    o.joined = false; /* whatever a plan had that is made anew */
    if (o.split != SPLIT_LAYERS) {
        const struct planner_options half = ranks_timed(&all, 2);
        status = tensor_best(m, &half, seats, &o, wholes, &tensor, err);
        by[SPLIT_TENSOR] = status ? NULL : &tensor;
    }
    const bool one_each = o.ranks == o.hosts;
    if (o.split == SPLIT_LAYERS || (o.split == SPLIT_AUTO && one_each)) {
        const oato_status own = stages_best(m, &all, &o, seats, &layers, &second);
        by[SPLIT_LAYERS] = own ? NULL : &layers;
        if (own && (o.split == SPLIT_LAYERS || own != OATO_EFIT)) {
            *err = second;
            status = own;
        }
    }
    wholes_free(wholes, o.ranks);
    if (by[SPLIT_TENSOR] || by[SPLIT_LAYERS]) {
        plans_choose(by, out, prices ? prices : &chosen);
        status = OATO_OK;
    }
    return status;
}

/* ------------------------------------------------------------------------- priced again --- */

void ranks_as_planned(const struct plan *plan, struct rank_options *o)
{
    o->ranks = plan_ranks(plan);
    o->hosts = plan->n_devices ? plan->devices[plan->n_devices - 1].host + 1 : 1;
    o->wire = plan_wire(plan);
    o->joined = plan_joins(plan);
    o->split = plan_has_stages(plan) ? SPLIT_LAYERS : SPLIT_TENSOR;
}

/* The devices of today, of which no more may be used than was planned. */
static oato_status devices_again(const struct plan *plan, const struct rank_options *o,
                                 const struct seat *seats, struct plan *now, struct oato_error *err)
{
    const size_t n = (size_t)plan->n_devices;
    now->devices = arena_alloc(&now->arena, n, sizeof *now->devices);
    if (!now->devices)
        return oato_fail_memory(err, n * sizeof *now->devices, "the plan");
    memcpy(now->devices, plan->devices, n * sizeof *now->devices);
    for (int32_t r = 0, i = 0; r < o->ranks; r++)
        for (int32_t d = 0; d < seats[r].n; d++, i++) {
            plan_device_fill(&seats[r].profile->devices[seats[r].device[d]], &now->devices[i]);
            now->devices[i].budget_bytes =
                least_bytes(plan->devices[i].budget_bytes, seat_budget(o, NULL, seats, r, d));
        }
    return OATO_OK;
}

oato_status ranks_price(const struct plan *plan, const struct model *m,
                        const struct rank_options *options, struct plan *now,
                        struct oato_error *err)
{
    struct rank_options o = *options;
    struct seat seats[SOLVER_DEVICES];
    ranks_as_planned(plan, &o);
    if (options_check(m, &o, err) || seats_find(&o, NULL, plan, seats, err))
        return err->status;
    *now = *plan;
    arena_init(&now->arena);
    rank_network(&o);
    oato_status status = devices_again(plan, &o, seats, now, err);
    if (!status)
        status = ranks_predict(now, m, &o, true, err);
    if (status)
        arena_free(&now->arena);
    return status;
}
