/*
 * ranks.c - a plan for several ranks, processes that run one model together (kernels/collective.h).
 * It is the plan of one host with the work of each layer divided: heads with their rows of q, k and
 * v and their columns of the output product, neurons of the feed-forward block, experts, rows of
 * the logits. What is left - norms, sums, routers - is small and runs on every rank, so that a
 * layer has two sums of all ranks and nothing else to exchange.
 *
 * Each rank has a share of its own of all that can be cut, in proportion to the speed of its
 * profile. Cuts fall where weights can be cut: on whole heads, on multiples of 64 rows and on whole
 * blocks of columns. A rank may be left without a part; then it adds nothing to the sum.
 */
#include "lowering/lowering.h"
#include "solver/planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MULTIPLE = 64, ALL_PHASES = (1u << PHASE_COUNT) - 1 };

/* An operator that is divided: rank r has [cut[r], cut[r + 1]) * each of the axis. */
struct cut_op {
    const int32_t *cut; /* NULL: every rank has all of it */
    int32_t each;
    enum op_axis axis;
};

struct dealing {
    const struct problem *p;
    const struct graph *g;
    struct plan *plan;
    const struct rank_options *o;
    struct cut_op *op;   /* by operator */
    int32_t **heads;     /* by layer of KV: its cut, once it is known */
    struct arena *arena; /* the plan's */
    int32_t n_sums[2];   /* sums of all ranks in a step; [1]: only of the rows with logits */
    struct oato_error *err;
};

static int32_t multiple_of(int32_t a, int32_t b)
{
    int32_t x = a, y = b;
    while (y) {
        const int32_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* Cuts `extent` into shares on multiples of `unit`; NULL: one rank would have it all, or memory is
 * short. */
static int32_t *cut_make(struct dealing *x, int32_t extent, int32_t unit)
{
    const int32_t ranks = x->o->ranks, units = unit > 0 ? extent / unit : 0;
    int32_t *cut = arena_alloc(x->arena, (size_t)ranks + 1, sizeof *cut);
    double sum = 0, all = 0;
    int owners = 0;
    if (!cut) {
        oato_fail_memory(x->err, sizeof *cut, "the plan");
        return NULL;
    }
    for (int32_t r = 0; r < ranks; r++)
        all += x->o->share[r];
    if (all <= 0)
        return NULL;
    for (int32_t r = 0; r < ranks; r++) {
        sum += x->o->share[r];
        cut[r + 1] = r + 1 == ranks ? extent : (int32_t)lround(sum / all * units) * unit;
        owners += cut[r + 1] > cut[r];
    }
    return owners > 1 ? cut : NULL;
}

static void op_cut(struct dealing *x, int32_t op, enum op_axis axis, const int32_t *cut,
                   int32_t each)
{
    x->op[op] = (struct cut_op){cut, each, axis};
}

static int32_t readers_of(const struct graph *g, int32_t value)
{
    int32_t n = value == g->logits;
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int j = 0; j < g->ops[i].n_in; j++)
            n += g->ops[i].in[j] == value;
    return n;
}

/* The one operator that reads the value as its first input; -1: there are others, or it is none of
 * that kind. */
static int32_t reader_of(const struct graph *g, int32_t value, enum op_kind kind)
{
    for (int32_t i = 0; i < g->n_ops && readers_of(g, value) == 1; i++)
        if (g->ops[i].in[0] == value && g->ops[i].op.kind == kind)
            return i;
    return -1;
}

static int32_t block_of(const struct oato_op *op)
{
    const struct dtype_info *d = dtype_info(op->dtype);
    return d && (int32_t)d->block_elems > MULTIPLE ? (int32_t)d->block_elems : MULTIPLE;
}

/* From what reads heads back to the product that makes them, `group` heads for each of the cut:
 * every operator in between works head by head. */
static void chain_cut(struct dealing *x, int32_t value, const int32_t *cut, int32_t group)
{
    const struct graph *g = x->g;
    while (readers_of(g, value) == 1) {
        const int32_t i = g->values[value].producer;
        const struct graph_op *o = &g->ops[i];
        if (op_divides(&o->op, AXIS_HEADS) &&
            (o->op.kind == OP_ROPE || o->op.kind == OP_HEAD_NORM)) {
            op_cut(x, i, AXIS_HEADS, cut, group);
            value = o->in[0];
            continue;
        }
        const int32_t heads = cut[x->o->ranks] * group;
        if (o->op.kind == OP_MUL_MAT && o->op.n % heads == 0)
            op_cut(x, i, AXIS_ROWS, cut, group * (o->op.n / heads));
        return;
    }
}

/* The cut of a layer's KV heads: at whole blocks of each output product that reads them. */
static const int32_t *heads_cut(struct dealing *x, int32_t kv_layer)
{
    const struct graph *g = x->g;
    int32_t unit = 1, heads = 0;
    if (x->heads[kv_layer])
        return x->heads[kv_layer];
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        if (o->kv_layer != kv_layer)
            continue;
        if (!op_divides(&o->op, AXIS_HEADS))
            return NULL;
        heads = o->op.kv_heads;
        const int32_t down = o->op.kind == OP_ATTENTION ? reader_of(g, o->out[0], OP_MUL_MAT) : -1;
        const int32_t block = down < 0 ? MULTIPLE : block_of(&g->ops[down].op);
        const int32_t columns =
            o->op.kind == OP_ATTENTION ? o->op.heads / heads * o->op.head_dim : o->op.head_dim;
        unit = multiple_of(unit, multiple_of(columns, block) / columns);
    }
    return x->heads[kv_layer] = heads ? cut_make(x, heads, unit) : NULL;
}

static void attention_cut(struct dealing *x, int32_t i)
{
    const struct graph_op *o = &x->g->ops[i];
    const int32_t *cut = heads_cut(x, o->kv_layer);
    if (!cut)
        return;
    op_cut(x, i, AXIS_HEADS, cut, 1);
    if (o->op.kind == OP_KV_STORE) {
        chain_cut(x, o->in[0], cut, 1);
        chain_cut(x, o->in[1], cut, 1);
        return;
    }
    const int32_t group = o->op.heads / o->op.kv_heads;
    const int32_t down = reader_of(x->g, o->out[0], OP_MUL_MAT);
    chain_cut(x, o->in[0], cut, group);
    if (down >= 0)
        op_cut(x, down, AXIS_K, cut, group * o->op.head_dim);
}

/* A feed-forward block by its neurons or experts. */
static void pair_cut(struct dealing *x, int32_t i)
{
    const struct oato_op *up = &x->g->ops[i].op, *down = &x->g->ops[i + 1].op;
    const bool experts = op_has_experts(up);
    const int32_t *cut = experts ? cut_make(x, up->experts, 1) : cut_make(x, up->n, block_of(down));
    if (!cut)
        return;
    op_cut(x, i, experts ? AXIS_EXPERTS : AXIS_ROWS, cut, 1);
    op_cut(x, i + 1, experts ? AXIS_EXPERTS : AXIS_K, cut, 1);
}

static void ops_cut(struct dealing *x)
{
    const struct graph *g = x->g;
    for (int32_t i = 0; i < g->n_ops && !x->err->status; i++) {
        const struct graph_op *o = &g->ops[i];
        if (o->kv_layer >= 0)
            attention_cut(x, i);
        else if (i + 1 < g->n_ops && divide_pair(g, i))
            pair_cut(x, i);
        else if (o->op.kind == OP_MUL_MAT && o->out[0] == g->logits)
            op_cut(x, i, AXIS_ROWS, cut_make(x, o->op.n, MULTIPLE), 1);
    }
    for (int32_t i = 0; i < g->n_ops; i++)
        if (x->op[i].cut && (x->op[i].axis == AXIS_K || (x->op[i].axis == AXIS_EXPERTS &&
                                                         g->ops[i].op.kind == OP_EXPERT_DOWN)))
            x->n_sums[g->values[g->ops[i].out[0]].rows == ROWS_LOGITS]++;
}

static int64_t begin_of(const struct cut_op *c, int32_t rank)
{
    return (int64_t)c->cut[rank] * c->each;
}

/* The share of the operator that the rank has. */
static double share_of(const struct dealing *x, int32_t op, int32_t rank)
{
    const struct cut_op *c = &x->op[op];
    return c->cut ? (double)(c->cut[rank + 1] - c->cut[rank]) / c->cut[x->o->ranks] : 1;
}

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
        const struct profile_device *from = o->profiles[r % o->n_profiles]->devices;
        const struct profile *profile = o->profiles[r % o->n_profiles];
        double need = (double)x->p->reserve[host];
        for (int32_t d = 0; d < profile->n_devices; d++)
            if (profile->devices[d].is_host) {
                from = &profile->devices[d];
                break;
            }
        for (int32_t i = 0; i < x->g->n_ops; i++) {
            const struct op_price *price = &x->p->price[i * n + host];
            need += share_of(x, i, r) * (double)(price->weight_bytes + price->kv_bytes);
        }
        struct plan_device *to = &plan->devices[r];
        *to = whole.devices[host];
        snprintf(to->model, sizeof to->model, "%s", or_empty(from->model));
        to->rank = r;
        to->host = (int32_t)((int64_t)r * o->hosts / o->ranks);
        to->budget_bytes = (uint64_t)((double)from->free_bytes * 0.9);
        to->planned_bytes = (uint64_t)need;
        if (to->planned_bytes > to->budget_bytes)
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

/* A rank's operator takes its share of the time, by its own speed; a sum of all ranks counts with
 * the operator whose parts it adds. */
static void fill_costs(struct dealing *x, struct plan *plan, double saved_ns[PHASE_COUNT])
{
    const struct plan whole = *x->plan;
    saved_ns[PHASE_PREFILL] = saved_ns[PHASE_DECODE] = 0;
    for (int32_t k = 0, i = 0; k < whole.n_costs; k++) {
        const struct plan_cost *from = &whole.costs[k];
        double slowest = 0;
        for (int32_t n = x->g->n_ops; n > 0 && strcmp(x->g->ops[i].name, from->op) != 0; n--)
            i = (i + 1) % x->g->n_ops;
        for (int32_t r = 0; r < x->o->ranks; r++) {
            const double ns = share_of(x, i, r) * (double)from->ns * x->o->slowness[r];
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

/* Time of the sums of a step of so many tokens. */
static double sums_ns(const struct dealing *x, const struct plan *plan, double tokens, double rows)
{
    const double width = x->g->values[x->g->ops[0].out[0]].width * sizeof(float);
    return x->n_sums[0] * rank_sum_ns(x->o, plan, width * tokens) +
           x->n_sums[1] * rank_sum_ns(x->o, plan, width * rows);
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
        prefill += (double)s.times * sums_ns(x, plan, s.tokens, s.rows);
    }
    decode += sums_ns(x, plan, q->batch, q->batch);
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

static const char *host_of(const struct profile *p)
{
    for (int32_t d = 0; d < p->n_devices; d++)
        if (p->devices[d].is_host)
            return p->devices[d].id;
    return "cpu:0";
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
    o.devices = host_of(profile);
    o.solver = "cpu";
    o.whole_only = o.by_ranks = true;
    o.sparse = PLANNER_SPARSE_OFF;
    o.n_budgets = 0;
    return planner_make(m, wide, &o, out, problem, err);
}

/* How fast each rank's profile is: shares in proportion, slowness against the first's. */
static oato_status speeds_find(const struct model *m, const struct planner_options *given,
                               struct arena *a, uint64_t first_ns, struct rank_options *o,
                               struct oato_error *err)
{
    for (int32_t r = 0; r < o->ranks; r++) {
        const int32_t from = r % o->n_profiles;
        if (r == from && r) {
            struct plan plan;
            plan_init(&plan);
            if (plan_whole(m, o->profiles[r], given, a, &plan, NULL, err))
                return err->status;
            o->slowness[r] = (double)plan.objective_ns / fmax((double)first_ns, 1);
            plan_free(&plan);
        } else {
            o->slowness[r] = r ? o->slowness[from] : 1;
        }
        o->share[r] = 1 / fmax(o->slowness[r], 1e-6);
    }
    return OATO_OK;
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
    ops_cut(&x);
    return err->status ? err->status : plan_divide(&x);
}

oato_status ranks_plan(const struct model *m, const struct planner_options *given,
                       const struct rank_options *options, struct plan *out, struct oato_error *err)
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
    for (int32_t r = 0; r < o.ranks; r++)
        o.slowness[r] = o.share[r] = 1;
    rank_network(&o);
    status = speeds_find(m, given, &a, out->objective_ns, &o, err);
    if (!status)
        status = plan_deal(problem, &o, &a, out, err);
    if (status)
        plan_free(out);
out:
    problem_free(problem);
    arena_free(&a);
    return status;
}
