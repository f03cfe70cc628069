/*
 * cover.c - chooses which of the model's fusion matches are used, and fuses. One cover serves all
 * devices, because a plan has one graph: a fused operator must be supported on each device and be
 * no slower on each where fused and unfused were both measured. Overlaps are resolved from left to
 * right.
 */
#include "solver/planning_internal.h"

/* Both ways do the same work, and other users of a machine change its speed by half from one
 * measurement to the next: only more than that speaks against fewer records. */
enum { DOUBT = 2 };

/* What running the operator on d adds to what is minimised. */
static int64_t objective_ns(const struct problem *p, const struct op_price *price)
{
    return request_price(&p->request, price->prefill_ns, price->decode_ns).objective_ns;
}

static bool pays_on(const struct problem *p, const struct graph *g, struct graph_match m,
                    const struct oato_op *fused, int32_t d)
{
    int32_t device = p->device[d];
    bool members_run = true, measured = cost_measured(p->cost, device, fused);
    int64_t members_ns = 0;
    for (int i = 0; i < op_fusions[m.fusion].n_members; i++) {
        const struct oato_op *op = &g->ops[m.first + i].op;
        struct op_price price = request_op(p, g, m.first + i, op, d);
        members_run = members_run && price.supported;
        measured = measured && cost_measured(p->cost, device, op);
        members_ns = ns_add(members_ns, objective_ns(p, &price));
    }
    if (!cost_lists(p->cost, device, fused))
        return !members_run; /* nothing of it runs there either way */
    if (sparse_demands(p, (enum op_kind)fused->kind))
        return true;
    if (!measured)
        return true; /* fewer records and passes; nothing speaks against it */
    struct op_price price = request_op(p, g, m.first, fused, d);
    return objective_ns(p, &price) <= ns_times(DOUBT, members_ns);
}

static bool pays(void *problem, const struct graph *g, struct graph_match m)
{
    const struct problem *p = problem;
    struct oato_op fused = graph_fused(g, m).op;
    bool anywhere = false;
    if (!sparse_allows(p, (enum op_kind)fused.kind) || (p->by_ranks && fused.kind == OP_QKV))
        return false;
    for (int32_t d = 0; d < p->n_devices; d++) {
        if (!pays_on(p, g, m, &fused, d))
            return false;
        anywhere = anywhere || cost_lists(p->cost, p->device[d], &fused);
    }
    return anywhere;
}

oato_status cover_take(struct problem *p, const struct model *m, const struct plan *plan,
                       struct oato_error *err)
{
    p->fusions = plan->fusions;
    p->n_fusions = plan->n_fusions;
    return plan_apply(plan, m, &p->graph, err);
}

oato_status cover_fuse(struct problem *p, const struct graph *g, struct oato_error *err)
{
    const size_t all = (size_t)graph_matches(g, NULL, 0);
    struct graph_match *m = arena_alloc(&p->arena, all + 1, sizeof *m);
    p->fusions = arena_alloc(&p->arena, all + 1, sizeof *p->fusions);
    if (!m || !p->fusions)
        return oato_fail_memory(err, all * sizeof *m, "the fusion cover");
    p->n_fusions = graph_cover(g, pays, p, m);
    for (int32_t i = 0; i < p->n_fusions; i++) {
        p->fusions[i].name = op_fusions[m[i].fusion].name;
        p->fusions[i].op = g->ops[m[i].first].name;
    }
    return graph_fuse(g, m, p->n_fusions, &p->graph, err);
}
