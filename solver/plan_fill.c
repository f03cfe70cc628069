/*
 * plan_fill.c - writes a placement of a problem into a plan: its devices, parts, fusions, classes
 * and costs.
 */
#include "solver/planning_internal.h"

#include <math.h>
#include <string.h>

enum { PARTS_PER_DEVICE = 2, ALL_PHASES = 1u << PHASE_PREFILL | 1u << PHASE_DECODE };

static bool alloc_plan(struct plan *plan, const struct problem *p, int32_t baselines)
{
    struct arena *a = &plan->arena;
    const size_t devices = (size_t)p->n_devices, n = (size_t)p->graph.n_ops, all = n * devices;
    plan->devices = arena_alloc(a, devices, sizeof *plan->devices);
    plan->parts = arena_alloc(a, all * PARTS_PER_DEVICE, sizeof *plan->parts);
    plan->kv = arena_alloc(a, all, sizeof *plan->kv);
    plan->fusions = arena_alloc(a, (size_t)p->n_fusions + 1, sizeof *plan->fusions);
    plan->costs = arena_alloc(a, all * PHASE_COUNT, sizeof *plan->costs);
    plan->baselines = arena_alloc(a, (size_t)baselines + 1, sizeof *plan->baselines);
    return plan->devices && plan->parts && plan->kv && plan->fusions && plan->costs &&
           plan->baselines;
}

static void fill_devices(struct plan *plan, const struct problem *p, const int32_t *place)
{
    uint64_t need[SOLVER_DEVICES];
    problem_memory(p, place, need);
    plan->n_devices = p->n_devices;
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct profile_device *from = &p->profile->devices[p->device[d]];
        struct plan_device *to = &plan->devices[d];
        plan_device_fill(from, to);
        to->budget_bytes = p->budget[d];
        to->planned_bytes = need[d];
    }
}

/* The axis along which the parts of an operator of a divided unit lie. */
static enum op_axis axis_of(const struct graph_op *op, const struct problem *p, int32_t index)
{
    if (op_has_experts(&op->op))
        return AXIS_EXPERTS;
    return p->first_op[p->unit_of[index]] == index ? AXIS_ROWS : AXIS_K;
}

static void add_part(struct plan *plan, const char *op, enum op_axis axis, int64_t begin,
                     int64_t end, uint32_t phases, int32_t device, int32_t home)
{
    plan->parts[plan->n_parts++] = (struct plan_part){.op = op,
                                                      .axis = axis,
                                                      .begin = begin,
                                                      .end = end,
                                                      .phases = phases,
                                                      .device = device,
                                                      .home = home};
}

static void add_parts(struct plan *plan, const struct problem *p, int32_t index, const char *name,
                      const struct option *o)
{
    const int32_t unit = p->unit_of[index], host = p->instance.host;
    const int kind = p->graph.ops[index].op.kind;
    const int64_t rows = p->graph.ops[index].op.n;
    const int32_t at = problem_op_device(p, index, o, PHASE_DECODE);
    for (int pass = 0; pass < 2; pass++) /* in order of their ranges: the host's is the last */
        for (int32_t d = 0; d < p->n_devices; d++) {
            int64_t begin = 0, end = d == at ? rows : 0;
            enum op_axis axis = AXIS_ROWS;
            if (p->instance.is_host[d] != (pass == 1))
                continue;
            if (o->team) {
                axis = heads_range(p, index, o, d, &begin, &end);
            } else if (option_divided(o)) {
                divide_range(p, unit, o, d, &begin, &end);
                axis = axis_of(&p->graph.ops[index], p, index);
            }
            if (begin == end)
                continue;
            if (o->stream < 0 || d != host || (o->rooms && kind == OP_KV_STORE)) {
                const bool stored = p->stored && p->stored[index] && (d == host || o->filed);
                add_part(plan, name, axis, begin, end, ALL_PHASES, d, stored ? HOME_FILE : d);
                continue;
            }
            add_part(plan, name, axis, begin, end, 1u << PHASE_PREFILL, o->stream,
                     o->rooms && kind != OP_ATTENTION ? o->stream : d);
            add_part(plan, name, axis, begin, end, 1u << PHASE_DECODE, d, d);
        }
}

static oato_status fill_parts(struct plan *plan, const struct problem *p, const int32_t *place,
                              struct oato_error *err)
{
    const struct graph *g = &p->graph;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        const struct option *o = instance_option(&p->instance, place, p->unit_of[i]);
        const char *name = arena_string(&plan->arena, op->name);
        if (!name)
            return oato_fail_memory(err, strlen(op->name), "the plan");
        add_parts(plan, p, i, name, o);
        for (int32_t d = 0; d < p->n_devices && op->op.kind == OP_KV_STORE; d++) {
            int64_t begin = 0, end = d == o->out[PHASE_DECODE] ? op->op.kv_heads : 0;
            if (o->team)
                heads_range(p, i, o, d, &begin, &end);
            if (begin < end)
                plan->kv[plan->n_kv++] = (struct plan_kv){.layer = op->kv_layer,
                                                          .head_begin = (int32_t)begin,
                                                          .head_end = (int32_t)end,
                                                          .device = d};
        }
    }
    return OATO_OK;
}

static oato_status fill_fusions(struct plan *plan, const struct problem *p, struct oato_error *err)
{
    plan->n_fusions = p->n_fusions;
    for (int32_t i = 0; i < p->n_fusions; i++) {
        plan->fusions[i].name = p->fusions[i].name;
        plan->fusions[i].op = arena_string(&plan->arena, p->fusions[i].op);
        if (!plan->fusions[i].op)
            return oato_fail_memory(err, 64, "the plan");
    }
    return OATO_OK;
}

/* Copies of what the operator makes. */
static struct price copies_of(const struct problem *p, const struct graph_op *op,
                              const int32_t *place)
{
    struct price sum = {0};
    for (int32_t j = 0; j < op->n_out; j++) {
        int32_t e = p->edge_of[op->out[j]];
        if (e < 0)
            continue;
        struct price price = edge_price(&p->instance, &p->instance.edges[e], place);
        price_add(&sum, &price);
    }
    return sum;
}

/* Sets the times of a row of the table of costs: what an operator takes on the row's device in its
 * phase. False: nothing. */
static bool fill_cost(const struct problem *p, int32_t index, const struct option *o,
                      struct plan_cost *row)
{
    const struct op_price *price = &p->price[index * p->n_devices + row->device];
    const int32_t unit = p->unit_of[index];
    const bool whole = o - p->instance.units[unit].options < p->n_devices || o->stores;
    if (o->team)
        return heads_op_cost(p, index, o, row);
    if (o->in[row->phase] == o->out[row->phase] &&
        (!whole || (p->neurons && p->division[unit].groups)))
        return divide_op_cost(p, index, o, row);
    row->ns = (uint64_t)(row->phase == PHASE_DECODE ? price->decode_ns : price->prefill_ns);
    row->estimate = price->estimate;
    return row->device == problem_op_device(p, index, o, row->phase);
}

void plan_fill_costs(struct plan *plan, const struct problem *p, const int32_t *place)
{
    const struct graph *g = &p->graph;
    for (enum plan_phase phase = 0; phase < PHASE_COUNT; phase++) {
        int32_t part = 0;
        for (int32_t i = 0; i < g->n_ops; i++) {
            struct price copies = copies_of(p, &g->ops[i], place);
            const struct option *o = instance_option(&p->instance, place, p->unit_of[i]);
            bool first = true;
            while (strcmp(plan->parts[part].op, g->ops[i].name) != 0)
                part++;
            for (int32_t d = 0; d < p->n_devices; d++) {
                struct plan_cost row = {.op = plan->parts[part].op, .phase = phase, .device = d};
                if (!fill_cost(p, i, o, &row))
                    continue;
                if (first)
                    row.transfer_ns +=
                        (uint64_t)(phase == PHASE_DECODE ? copies.decode_ns : copies.prefill_ns);
                first = false;
                plan->costs[plan->n_costs++] = row;
            }
        }
    }
}

/* Adds the class unless it is there; classes appear in order of the operators. */
static void add_class(struct text *t, const char *name)
{
    if (!plan_classes_have(t->data, name))
        text_printf(t, "%s%s", t->len ? "+" : "", name);
}

static oato_status fill_numerics(struct plan *plan, const struct problem *p, const int32_t *place,
                                 struct oato_error *err)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        struct text t;
        text_init(&t);
        for (int32_t i = 0; i < p->graph.n_ops; i++) {
            const struct option *o = instance_option(&p->instance, place, p->unit_of[i]);
            for (int32_t d = 0; d < p->n_devices; d++) {
                const char *name = p->price[i * p->n_devices + d].numerics[phase];
                if (o->uses >> d & 1 && name && *name)
                    add_class(&t, name);
            }
        }
        plan->numerics[phase] = arena_string(&plan->arena, t.data);
        bool failed = t.failed || !plan->numerics[phase];
        text_free(&t);
        if (failed)
            return oato_fail_memory(err, 64, "the plan");
    }
    return OATO_OK;
}

static oato_status fill_names(struct plan *plan, const struct model *m, const struct problem *p,
                              struct oato_error *err)
{
    struct gguf_string name = {"", 0};
    gguf_get_string(m->gguf, "general.name", &name);
    plan->tool = "oato " OATO_VERSION;
    plan->model_name = arena_strndup(&plan->arena, name.data, name.len);
    plan->structure_hash = gguf_structure_hash(m->gguf);
    plan->content_hash = gguf_content_hash(m->gguf);
    plan->profile_hash = profile_hash(p->profile);
    plan->neurons_hash = p->neurons ? neurons_hash(p->neurons) : 0;
    plan->neurons = p->neurons;
    plan->request = p->request;
    if (!plan->model_name)
        return oato_fail_memory(err, name.len, "the plan");
    return OATO_OK;
}

static oato_status fill_inputs(struct plan *plan, const struct problem *p, struct oato_error *err)
{
    const size_t n = (size_t)p->n_inputs;
    plan->inputs = arena_alloc(&plan->arena, n + 1, sizeof *plan->inputs);
    if (!plan->inputs)
        return oato_fail_memory(err, n * sizeof *plan->inputs, "the plan");
    for (int32_t i = 0; i < p->n_inputs; i++) {
        plan->inputs[i] = p->inputs[i];
        plan->inputs[i].tensor =
            arena_strndup(&plan->arena, p->inputs[i].tensor, strlen(p->inputs[i].tensor));
        if (!plan->inputs[i].tensor)
            return oato_fail_memory(err, n, "the plan");
    }
    plan->n_inputs = p->n_inputs;
    return OATO_OK;
}

/* Where a unit's option skips neurons; layers that compute all of them everywhere are not listed.
 */
static oato_status fill_sparse(struct plan *plan, const struct problem *p, const int32_t *place,
                               struct oato_error *err)
{
    plan->sparse = arena_alloc(&plan->arena, (size_t)p->n_sparse + 1, sizeof *plan->sparse);
    if (!plan->sparse)
        return oato_fail_memory(err, (size_t)p->n_sparse * sizeof *plan->sparse, "the plan");
    for (int32_t i = 0; i < p->n_sparse; i++) {
        bool skips = p->sparse_given; /* also where there is no gate, whose units choose nothing */
        uint32_t dense = 0, predicts = p->sparse[i].predicts;
        for (int32_t u = 0; u < p->instance.n_units; u++) {
            const struct option *o = instance_option(&p->instance, place, u);
            const struct graph_op *op = &p->graph.ops[p->first_op[u]];
            if (op->op.kind != OP_GATE_UP || op->layer != p->sparse[i].layer ||
                !divide_pair(&p->graph, p->first_op[u]))
                continue;
            dense = o->dense & o->uses;
            skips = dense != o->uses || p->sparse_given;
            predicts = p->sparse_given ? predicts : o->predicts;
        }
        plan->sparse[plan->n_sparse] = p->sparse[i];
        plan->sparse[plan->n_sparse].dense = dense;
        plan->sparse[plan->n_sparse].predicts = predicts;
        plan->n_sparse += skips;
    }
    return fill_inputs(plan, p, err);
}

oato_status plan_of_placement(const struct model *m, const struct problem *p, const int32_t *place,
                              int32_t baselines, struct plan *plan, struct oato_error *err)
{
    plan_init(plan);
    const oato_status status = alloc_plan(plan, p, baselines)
                                   ? OATO_OK
                                   : oato_fail_memory(err, plan->arena.used_bytes, "the plan");
    if (status || fill_names(plan, m, p, err) || fill_parts(plan, p, place, err) ||
        fill_sparse(plan, p, place, err) || fill_fusions(plan, p, err) ||
        fill_numerics(plan, p, place, err)) {
        plan_free(plan);
        return err->status;
    }
    fill_devices(plan, p, place);
    plan_fill_costs(plan, p, place);
    const struct price price = instance_price(&p->instance, place);
    plan->decode_ns = (uint64_t)price.decode_ns; /* also where nothing is generated */
    plan->objective_ns = (uint64_t)price.objective_ns;
    return OATO_OK;
}
