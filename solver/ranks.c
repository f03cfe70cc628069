/*
 * ranks.c - a plan for several ranks, processes that run one model together
 * (kernels/ranks/collective.h). It is the plan of one process with the work of each layer divided
 * (ranks_cut.c). What is left - norms, sums, routers - is small and runs on every rank's host or,
 * if accelerators exchange sums by themselves, on these, so that a layer has two sums of all ranks
 * and nothing else to exchange. Or each rank has some of the layers (ranks_stages.c).
 *
 * Each rank has a share of its own of all that can be cut, in proportion to the speed of its
 * devices (ranks_seats.c). A plan that was so made can be priced again by other profiles.
 */
#include "solver/ranks_internal.h"

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
    plan->costs = arena_alloc(x->arena, n * ranks * PHASE_COUNT, sizeof *plan->costs);
    return plan->devices && plan->parts && plan->kv && plan->costs
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

static void fill_device(const struct profile_device *from, struct plan_device *to)
{
    snprintf(to->id, sizeof to->id, "%s", from->id);
    snprintf(to->kind, sizeof to->kind, "%s", or_empty(from->kind));
    snprintf(to->model, sizeof to->model, "%s", or_empty(from->model));
    snprintf(to->spec, sizeof to->spec, "%s", or_empty(from->spec));
}

static oato_status does_not_fit(const struct dealing *x, const struct plan_device *d)
{
    return oato_fail(x->err, OATO_EFIT,
                     "rank %d needs %.1f MiB and may use %.1f MiB of %s; use more ranks, or a "
                     "smaller --context",
                     d->rank, (double)d->planned_bytes / 0x1p20, (double)d->budget_bytes / 0x1p20,
                     d->id);
}

static oato_status fill_devices(struct dealing *x, struct plan *plan)
{
    plan->n_devices = x->first[x->o->ranks];
    for (int32_t r = 0; r < x->o->ranks; r++) {
        double need[SOLVER_DEVICES] = {0};
        bytes_needed(x, r, need);
        for (int32_t d = 0; d < x->seats[r].n; d++) {
            struct plan_device *to = &plan->devices[x->first[r] + d];
            fill_device(&x->seats[r].profile->devices[x->seats[r].device[d]], to);
            to->rank = r;
            to->host = rank_host(x->o, r);
            to->budget_bytes = seat_budget(x->o, x->given, x->seats, r, d);
            to->planned_bytes = (uint64_t)need[d];
            if (to->planned_bytes > to->budget_bytes && !x->may_exceed)
                return does_not_fit(x, to);
        }
    }
    return OATO_OK;
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

/* What the ranks' parts of an operator take: by a rank's own speed, and longer where other ranks of
 * the host compute meanwhile. */
static void op_times(const struct dealing *x, int32_t i, enum plan_phase phase,
                     double ns[SOLVER_DEVICES])
{
    double alone_ns[SOLVER_DEVICES]; /* on the cores of its host */
    for (int32_t r = 0; r < x->o->ranks; r++) {
        const int32_t d = device_of_op(x, r, i);
        const double share = share_of(x, i, r);
        ns[r] = share > 0 ? work_ns(&whole_of(x, r)->work[phase][d],
                                    op_price_ns(price_of(x, r, i), phase), share)
                          : 0;
        alone_ns[r] = d ? 0 : ns[r];
    }
    for (int32_t r = 0; r < x->o->ranks; r++)
        if (alone_ns[r] > 0)
            ns[r] *= ranks_crowd(x->o, rank_host(x->o, r), alone_ns);
}

/* Whether all ranks wait for each other behind the operator. */
static bool ends_together(const struct dealing *x, int32_t i)
{
    const struct cut_op *c = &x->op[i];
    return c->cut && (c->axis == AXIS_K || x->g->ops[i].out[0] == x->g->logits ||
                      x->g->ops[i].op.kind == OP_EXPERT_DOWN);
}

/* Fills in the operators of a phase; all of them take *ns. */
static oato_status fill_costs(struct dealing *x, struct plan *plan, enum plan_phase phase,
                              double *ns)
{
    double since[SOLVER_DEVICES] = {0}; /* by rank, since the last sum */
    *ns = 0;
    for (int32_t i = 0; i < x->g->n_ops; i++) {
        double took[SOLVER_DEVICES], longest = 0;
        const char *name = arena_string(x->arena, x->g->ops[i].name);
        if (!name)
            return oato_fail_memory(x->err, 64, "the plan");
        op_times(x, i, phase, took);
        for (int32_t r = 0; r < x->o->ranks; r++) {
            since[r] += took[r];
            longest = fmax(longest, since[r]);
            if (took[r] > 0)
                plan->costs[plan->n_costs++] =
                    (struct plan_cost){.op = name,
                                       .phase = phase,
                                       .device = x->first[r] + device_of_op(x, r, i),
                                       .ns = (uint64_t)took[r],
                                       .estimate = price_of(x, r, i)->estimate || x->op[i].cut};
        }
        if (!ends_together(x, i) && i + 1 < x->g->n_ops)
            continue;
        *ns += longest;
        memset(since, 0, sizeof since);
    }
    return OATO_OK;
}

/* What the slowest rank takes beyond operators, sums and messages: its copies, and what a step
 * takes once. Of logits that ranks divide each copies its candidates. */
static double rest_ns(const struct dealing *x, enum plan_phase phase)
{
    const struct graph_value *logits = &x->g->values[x->g->logits];
    double most = 0;
    for (int32_t r = 0; r < x->o->ranks; r++) {
        const struct whole *w = whole_of(x, r);
        const int32_t d = device_of_op(x, r, logits->producer);
        double ns = w->rest_ns[phase];
        if (d) {
            const struct price copy = request_copy(w->problem, logits, d, 0, phase);
            const double picks = CANDIDATES_BYTES / (logits->width * (double)sizeof(float));
            ns -= fmax(1 - picks, 0) *
                  (double)(phase == PHASE_DECODE ? copy.decode_ns : copy.prefill_ns);
        }
        most = fmax(most, ns);
    }
    return most;
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
            share_of(x, logits->producer, r) > 0 ? CANDIDATES_BYTES * rows : 0;
    return x->n_sums[0] * rank_sum_ns(x->o, plan, width * tokens) +
           x->n_sums[1] * rank_sum_ns(x->o, plan, width * rows) +
           rank_logits_ns(x->o, remote, local);
}

int64_t ranks_objective(const struct plan *p)
{
    return request_price(&p->request, (int64_t)p->prefill_ns, (int64_t)p->decode_ns).objective_ns;
}

static oato_status fill_predictions(struct dealing *x, struct plan *plan)
{
    const struct plan_request *q = &plan->request;
    double ns[PHASE_COUNT];
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        if (fill_costs(x, plan, (enum plan_phase)phase, &ns[phase]))
            return x->err->status;
        ns[phase] += rest_ns(x, (enum plan_phase)phase);
    }
    for (int32_t i = 0; i < request_prefill_steps(q); i++) {
        const struct request_step s = request_prefill_step(q, i);
        ns[PHASE_PREFILL] += (double)s.times * messages_ns(x, plan, s.tokens, s.rows);
    }
    ns[PHASE_DECODE] += messages_ns(x, plan, q->batch, q->batch);
    plan->prefill_ns = (uint64_t)fmax(ns[PHASE_PREFILL], 0);
    plan->decode_ns = (uint64_t)fmax(ns[PHASE_DECODE], 0);
    plan->request_ns = plan->prefill_ns + (uint64_t)q->generate * plan->decode_ns;
    plan->objective_ns = (uint64_t)ranks_objective(plan);
    return OATO_OK;
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

/* States what the ranks' programs take, which may be more than the sum of their shares. */
static oato_status fill_memory(const struct dealing *x, const struct model *m, struct plan *plan)
{
    uint64_t *need = arena_alloc(&plan->arena, (size_t)plan->n_devices, sizeof *need);
    if (!need)
        return oato_fail_memory(x->err, (size_t)plan->n_devices * sizeof *need, "the plan");
    for (int32_t r = 0; r < x->o->ranks; r++)
        if (memory_of_rank(plan, m, x->seats[r].profile, r, need, x->err))
            return x->err->status;
    for (int32_t d = 0; d < plan->n_devices; d++) {
        struct plan_device *to = &plan->devices[d];
        if (need[d] > to->planned_bytes)
            to->planned_bytes = need[d];
        if (to->planned_bytes > to->budget_bytes && !x->may_exceed)
            return does_not_fit(x, to);
    }
    return OATO_OK;
}

/* Replaces the placement of the plan, all of it of one process. */
static oato_status plan_divide(struct dealing *x, const struct model *m, struct plan *plan)
{
    plan->n_parts = plan->n_kv = plan->n_costs = 0;
    baselines_keep(plan);
    if (plan_room(x, plan) || fill_devices(x, plan) || rank_sums_choose(x->o, plan, x->err))
        return x->err->status;
    for (int32_t i = 0; i < x->g->n_ops; i++) {
        const char *name = arena_string(x->arena, x->g->ops[i].name);
        if (!name)
            return oato_fail_memory(x->err, 64, "the plan");
        fill_op(x, plan, i, name);
    }
    plan->solver = "ranks";
    plan->bound_ns = 0;
    return fill_memory(x, m, plan) ? x->err->status : fill_predictions(x, plan);
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
    o->hosts = plan->devices[plan->n_devices - 1].host + 1;
    o->wire = plan_wire(plan);
    o->joined = plan_joins(plan);
    o->split = plan_has_stages(plan) ? SPLIT_LAYERS : SPLIT_TENSOR;
}

/* The same of a plan in which ranks divide every layer. */
static oato_status tensor_price_again(const struct model *m, const struct plan *plan,
                                      struct rank_options *o, const struct seat *seats,
                                      struct plan *now, struct oato_error *err)
{
    struct whole wholes[SOLVER_DEVICES] = {{.problem = NULL}};
    struct dealing x = {.o = o,
                        .seats = seats,
                        .wholes = wholes,
                        .arena = &now->arena,
                        .may_exceed = true,
                        .err = err};
    oato_status status = wholes_as_planned(m, plan, seats, o, wholes, err);
    if (!status) {
        x.g = &wholes[0].problem->graph;
        err->status = OATO_OK;
        status = dealing_room(&x, x.arena) ? dealing_cut_as(&x, plan)
                                           : oato_fail_memory(err, sizeof x, "the plan");
    }
    if (!status && !(status = plan_room(&x, now)) && !(status = fill_devices(&x, now))) {
        now->parts = plan->parts;
        now->kv = plan->kv;
        status = fill_memory(&x, m, now) ? err->status : fill_predictions(&x, now);
    }
    wholes_free(wholes, o->ranks);
    return status;
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
    now->n_costs = 0;
    rank_network(&o);
    const oato_status status = plan_has_stages(plan)
                                   ? stages_price_again(m, plan, &o, seats, now, err)
                                   : tensor_price_again(m, plan, &o, seats, now, err);
    for (int32_t d = 0; d < plan->n_devices && !status; d++)
        now->devices[d].budget_bytes =
            least_bytes(plan->devices[d].budget_bytes, now->devices[d].budget_bytes);
    if (status)
        arena_free(&now->arena);
    return status;
}
