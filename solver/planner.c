/*
 * planner.c - runs the solvers over a problem and fills the plan. The baselines are always priced;
 * `auto` and `ilp` start from the best of them, so neither is ever slower. A plan depends on its
 * inputs only, not on the time of day or on addresses.
 */
#include "solver/planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL_UNITS = 64, CANDIDATES = 7, FIT_TRIES = 8 };

struct candidate {
    const char *name; /* of the baseline, as the plan records it */
    bool fits;
    int32_t *place;
    int64_t objective_ns;
    int64_t theirs_ns; /* of another engine that runs it in its own way; 0: none does */
};

enum { C_CPU, C_LAYERS, C_FIT, C_POWERINFER, C_SINGLE, C_AFFINITY, C_ILP };

static oato_status try_heuristics(struct problem *p, struct candidate *c, struct ilp_clock *clock,
                                  struct oato_error *err)
{
    const struct instance *in = &p->instance;
    c[C_CPU].fits = solve_cpu(in, c[C_CPU].place);
    c[C_LAYERS].fits = solve_layers(in, c[C_LAYERS].place);
    c[C_FIT].fits = baseline_fit(p, c[C_FIT].place);
    c[C_FIT].theirs_ns = baseline_fit_price(p, c[C_FIT].place, c[C_ILP].place).objective_ns;
    for (int i = C_SINGLE; i <= C_AFFINITY; i++) {
        oato_status status = /* the rounds of the iterated one come last, and stay */
            solve_affinity(in, i == C_SINGLE, clock, c[i].place, p->rounds, &p->n_rounds, err);
        if (status && status != OATO_NEGATIVE)
            return status;
        c[i].fits = !status;
    }
    if (baseline_powerinfer(p, clock, c[C_POWERINFER].place, &c[C_POWERINFER].fits, err))
        return err->status;
    for (int i = 0; i < C_ILP; i++)
        if (c[i].fits)
            c[i].objective_ns = instance_price(in, c[i].place).objective_ns;
    return OATO_OK;
}

static int best_of(const struct candidate *c, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (c[i].fits && (best < 0 || c[i].objective_ns < c[best].objective_ns))
            best = i;
    return best;
}

/* What the model takes at least, and the devices offer, without reserves. */
static void need_and_offer(const struct problem *p, uint64_t *need, uint64_t *kv, uint64_t *offer)
{
    const struct instance *in = &p->instance;
    *need = *kv = *offer = 0;
    for (int32_t u = 0; u < in->n_units; u++) {
        uint64_t least = UINT64_MAX;
        for (int32_t d = 0; d < p->n_devices; d++)
            if (in->units[u].options[d].allowed && in->units[u].options[d].bytes[d] < least)
                least = in->units[u].options[d].bytes[d];
        *need += least == UINT64_MAX ? 0 : least;
    }
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        *kv += p->stored && p->stored[i] ? 0 : p->price[i * p->n_devices].kv_bytes;
    for (int32_t d = 0; d < p->n_devices; d++)
        *offer += in->usable[d] ? in->capacity[d] : 0;
}

/* A line for people: what is missing, and what would help. */
static oato_status does_not_fit(const struct problem *p, struct oato_error *err)
{
    uint64_t need, kv, offer;
    char text[256] = "";
    size_t n = 0;
    need_and_offer(p, &need, &kv, &offer);
    for (int32_t d = 0; d < p->n_devices && n < sizeof text; d++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %.1f MiB", d ? ", " : "",
                              problem_device(p, d), (double)p->instance.capacity[d] / 0x1p20);
    if (need <= offer)
        return oato_fail(err, OATO_EFIT,
                         "%.1f MiB of weights and KV fit into %s in total, but not operator by "
                         "operator; raise --budget by about the largest operator",
                         (double)need / 0x1p20, text);
    double missing = (double)(need - offer) / 0x1p20;
    return oato_fail(
        err, OATO_EFIT,
        "weights (%.1f MiB) and KV of %d positions (%.1f MiB) do not fit: %.1f MiB are "
        "missing (available beside activations: %s); raise --budget, lower --context or choose "
        "smaller weights%s",
        (double)(need - kv) / 0x1p20, p->request.context, (double)kv / 0x1p20, missing, text,
        profile_storage_rate(p->profile) > 0
            ? ""
            : ", or let oato-profile measure storage, to stream weights");
}

/* ------------------------------------------------------------------------------ the plan --- */

enum { PARTS_PER_DEVICE = 2, ALL_PHASES = 1u << PHASE_PREFILL | 1u << PHASE_DECODE };

static bool alloc_plan(struct plan *plan, const struct problem *p)
{
    struct arena *a = &plan->arena;
    const size_t devices = (size_t)p->n_devices, n = (size_t)p->graph.n_ops, all = n * devices;
    plan->devices = arena_alloc(a, devices, sizeof *plan->devices);
    plan->parts = arena_alloc(a, all * PARTS_PER_DEVICE, sizeof *plan->parts);
    plan->kv = arena_alloc(a, all, sizeof *plan->kv);
    plan->fusions = arena_alloc(a, (size_t)p->n_fusions + 1, sizeof *plan->fusions);
    plan->costs = arena_alloc(a, all * PHASE_COUNT, sizeof *plan->costs);
    plan->baselines = arena_alloc(a, CANDIDATES, sizeof *plan->baselines);
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
    const bool whole = o - p->instance.units[unit].options < p->n_devices || o->filed;
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

static void fill_baselines(struct plan *plan, const struct candidate *c)
{
    for (int i = 0; i < C_ILP; i++)
        if (c[i].fits)
            plan->baselines[plan->n_baselines++] = (struct plan_baseline){
                c[i].name, (uint64_t)(c[i].theirs_ns ? c[i].theirs_ns : c[i].objective_ns)};
}

static oato_status fill_plan(struct plan *plan, const struct model *m, const struct problem *p,
                             const struct candidate *all, const struct candidate *chosen,
                             const struct ilp_result *ilp, struct oato_error *err)
{
    const int32_t *place = chosen->place;
    plan_init(plan);
    oato_status status =
        alloc_plan(plan, p) ? OATO_OK : oato_fail_memory(err, plan->arena.used_bytes, "the plan");
    if (status || fill_names(plan, m, p, err) || fill_parts(plan, p, place, err) ||
        fill_sparse(plan, p, place, err) || fill_fusions(plan, p, err) ||
        fill_numerics(plan, p, place, err)) {
        plan_free(plan);
        return err->status;
    }
    fill_devices(plan, p, place);
    plan_fill_costs(plan, p, place);
    fill_baselines(plan, all);
    struct price price = instance_price(&p->instance, place);
    plan->decode_ns = (uint64_t)price.decode_ns; /* also where nothing is generated */
    plan->solver = chosen == &all[C_SINGLE] ? "affinity" : chosen->name;
    plan->objective_ns = (uint64_t)price.objective_ns;
    plan->bound_ns = (uint64_t)max_i64(min_i64(ilp->bound_ns, price.objective_ns), 0);
    plan->timed_out = ilp->timed_out;
    status = simulation_predict(plan, m, p->profile, err);
    if (status)
        plan_free(plan);
    return status;
}

/* ------------------------------------------------------------------------------- solving --- */

double search_gap(const struct planner_options *o, const struct problem *p)
{
    return o->gap >= 0 ? o->gap : p->instance.n_units <= SMALL_UNITS ? 0 : 1e-3;
}

/* The ILP, from the best of the others on: it is never worse. */
static oato_status run_ilp(const struct problem *p, const struct planner_options *o,
                           struct candidate *c, struct ilp_result *result, struct oato_error *err)
{
    const struct ilp_options options = {
        .gap = search_gap(o, p), .deadline_ns = o->deadline_ns, .enough_ns = o->enough_ns};
    const int warm = best_of(c, C_ILP);
    const oato_status status =
        search_placement(p, &options, warm < 0 ? NULL : c[warm].place, c[C_ILP].place, result, err);
    c[C_ILP].fits = !status;
    c[C_ILP].objective_ns = result->objective_ns;
    return status == OATO_NEGATIVE ? OATO_OK : status;
}

static const struct solver_row {
    const char *name;
    int candidate; /* -1: the best of all */
} solver_rows[] = {{"auto", -1},
                   {"ilp", C_ILP},
                   {"affinity", C_AFFINITY},
                   {"powerinfer", C_POWERINFER},
                   {"fit", C_FIT},
                   {"layers", C_LAYERS},
                   {"cpu", C_CPU}};

static oato_status find_solver(const struct planner_options *o, int *candidate,
                               struct oato_error *err)
{
    const char *names[ARRAY_LEN(solver_rows)];
    for (size_t i = 0; i < ARRAY_LEN(solver_rows); i++) {
        names[i] = solver_rows[i].name;
        if (strcmp(o->solver, names[i]) != 0)
            continue;
        *candidate = solver_rows[i].candidate;
        if (!o->single_shot)
            return OATO_OK;
        if (*candidate != C_AFFINITY)
            return oato_fail(err, OATO_EUSAGE, "--single-shot goes with --solver affinity");
        *candidate = C_SINGLE;
        return OATO_OK;
    }
    const char *near = nearest_name(o->solver, names, ARRAY_LEN(names));
    return oato_fail(err, OATO_EUSAGE,
                     "unknown solver '%.40s'%s%s%s; known: auto, ilp, affinity, powerinfer, fit, "
                     "layers, cpu",
                     o->solver, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* The plan states what its programs take; of ranks that divide layers that is known only when they
 * are divided. more[d]: how much it is beyond what solvers counted. */
static oato_status fill_memory(struct plan *plan, const struct model *m, struct problem *p,
                               uint64_t *more, struct oato_error *err)
{
    const oato_status status = memory_of_plan(plan, m, p, err);
    for (int32_t d = 0; d < plan->n_devices && !status; d++) {
        struct plan_device *own = &plan->devices[d];
        const uint64_t counted = own->planned_bytes;
        own->planned_bytes = memory_stated(&p->memory[d], own->budget_bytes);
        more[d] = own->planned_bytes > counted ? own->planned_bytes - counted : 0;
    }
    return status;
}

/* With `stored`, what does not fit is streamed from a file; without, all weights are resident. */
static oato_status make(const struct model *m, const struct profile *profile,
                        const struct planner_options *o, bool stored, struct plan *out,
                        struct problem **problem, uint64_t *more, struct oato_error *err)
{
    struct problem *p = NULL;
    struct candidate c[CANDIDATES] = {
        {.name = "cpu"},           {.name = "layers"},   {.name = "fit"}, {.name = "powerinfer"},
        {.name = "affinity-once"}, {.name = "affinity"}, {.name = "ilp"}};
    struct ilp_result ilp = {0};
    struct ilp_clock clock = {0};
    int chosen = -1;
    if (problem)
        *problem = NULL;
    oato_status status = find_solver(o, &chosen, err);
    if (!status)
        status = problem_create(m, profile, o, &p, err);
    if (status)
        return status;
    for (int i = 0; i < CANDIDATES && !status; i++) {
        c[i].place = arena_alloc(&p->arena, (size_t)p->instance.n_units + 1, sizeof *c[i].place);
        if (!c[i].place)
            status = oato_fail_memory(err, sizeof *c[i].place, "a placement");
    }
    if (!status && stored)
        status = storage_choose(p, NULL, err);
    clock.deadline_ns = ilp_share(o->deadline_ns, 3); /* what comes after has the rest */
    if (!status)
        status = try_heuristics(p, c, &clock, err);
    if (!status && (chosen < 0 || chosen == C_ILP))
        status = run_ilp(p, o, c, &ilp, err);
    ilp.timed_out = ilp.timed_out || clock.ended;
    if (status)
        goto out;
    if (chosen < 0) /* the ILP is never worse; it is named unless it found nothing better */
        chosen = best_of(c, CANDIDATES);
    if (chosen < 0 || !c[chosen].fits) {
        status = o->enough_ns && ilp.bound_ns != INT64_MAX
                     ? oato_fail(err, OATO_NEGATIVE, "no plan is fast enough")
                     : does_not_fit(p, err);
        goto out;
    }
    instance_settle(&p->instance, c[chosen].place);
    problem_stream(p, c[chosen].place);
    bool same = true; /* the bound is of placements that read what the search had read */
    if (stored && (status = storage_choose_again(p, c[chosen].place, &same, err)))
        goto out;
    if (!same)
        ilp.bound_ns = 0;
    p->planned = instance_price(&p->instance, c[chosen].place);
    status = fill_plan(out, m, p, c, &c[chosen], &ilp, err);
    if (!status && ((o->expert_cache && (status = caches_add(out, m, p, o->expert_cache, err))) ||
                    (!o->by_ranks && (status = fill_memory(out, m, p, more, err)))))
        plan_free(out);
out:
    if (!status && problem)
        *problem = p;
    else
        problem_free(p);
    return status;
}

/* The same with more room set aside until the plan's programs fit: how much they take beside
 * weights and KV depends on the placement. Where nothing fits, with less. */
static oato_status make_to_fit(const struct model *m, const struct profile *profile,
                               const struct planner_options *o, bool stored, struct plan *out,
                               struct problem **problem, struct oato_error *err)
{
    struct planner_options now = *o;
    for (int i = 0;; i++) {
        const struct plan_device *over = NULL;
        uint64_t more[SOLVER_DEVICES];
        if (i + 1 == FIT_TRIES && !strcmp(o->solver, "auto"))
            now.solver = "affinity"; /* other placements than those that took too much */
        now.deadline_ns = o->by_ranks ? o->deadline_ns : ilp_most(o->deadline_ns);
        const oato_status status = make(m, profile, &now, stored, out, problem, more, err);
        if (status == OATO_EFIT && !now.tight && !oato_failed_memory(err) && !o->by_ranks) {
            now.tight = true;
            memcpy(now.aside, o->aside, sizeof now.aside);
            i = -1;
            continue;
        }
        if (status || o->by_ranks)
            return status;
        for (int32_t d = 0; d < out->n_devices; d++) {
            const struct plan_device *own = &out->devices[d];
            if (own->planned_bytes <= own->budget_bytes || !own->budget_bytes)
                continue; /* or it only takes results */
            /* with this much aside the same placement is refused, and soon others like it */
            const uint64_t lacks = own->planned_bytes - own->budget_bytes;
            const uint64_t least = more[d] > now.aside[d] ? more[d] : now.aside[d] + lacks;
            now.aside[d] = least + (i ? lacks << i : 0);
            over = own;
        }
        if (!over)
            return OATO_OK;
        const oato_status last =
            i + 1 < FIT_TRIES
                ? OATO_OK
                : oato_fail(err, OATO_EFIT,
                            "%s: weights, KV, activations and workspace take %.1f MiB, and %.1f "
                            "MiB may be used; raise --budget, or lower --ubatch or --context",
                            over->id, (double)over->planned_bytes / 0x1p20,
                            (double)over->budget_bytes / 0x1p20);
        plan_free(out);
        if (problem)
            problem_free(*problem);
        if (last)
            return last;
    }
}

/* Whether the device's own kernels, in place of a library, could leave room that is wanted: where
 * nothing fits (plan is NULL), or on a device of the plan that is nearly full. */
static bool weighs_library(const struct plan *plan, const struct profile *profile)
{
    enum { NEARLY = 16 };
    for (int32_t i = 0; i < profile->n_rows; i++) {
        const struct profile_row *r = &profile->rows[i];
        if (!(r->own_ns > 0) ||
            (plan && !plan_classes_have(plan->numerics[PHASE_PREFILL], r->numerics)))
            continue;
        if (!plan)
            return true;
        for (int32_t d = 0; d < plan->n_devices; d++) {
            const struct plan_device *own = &plan->devices[d];
            if (profile_device_index(profile, own->id) == r->device && own->planned_bytes &&
                own->planned_bytes > own->budget_bytes / NEARLY * (NEARLY - 1))
                return true;
        }
    }
    return false;
}

/* The same without libraries: what they set aside may hold weights. Keeps the faster plan; nothing
 * is known to be faster than the lower one of both bounds. */
oato_status plan_at_width(const struct model *m, const struct profile *profile,
                          const struct planner_options *o, bool stored, struct plan *out,
                          struct problem **problem, struct oato_error *err)
{
    struct planner_options other = *o;
    struct plan plan;
    struct problem *own = NULL;
    struct oato_error ignored;
    oato_status status = make_to_fit(m, profile, o, stored, out, problem, err);
    other.own_kernels = true;
    if (o->own_kernels || o->by_ranks ||
        (status && (status != OATO_EFIT || oato_failed_memory(err))) ||
        !weighs_library(status ? NULL : out, profile) ||
        make_to_fit(m, profile, &other, stored, &plan, &own, &ignored))
        return status;
    const bool better = status || plan.objective_ns < out->objective_ns;
    const uint64_t bound_ns = status ? plan.bound_ns : least_bytes(plan.bound_ns, out->bound_ns);
    if (better && !status)
        plan_free(out);
    if (better)
        *out = plan;
    else
        plan_free(&plan);
    out->bound_ns = bound_ns;
    if (problem && better) {
        problem_free(*problem);
        *problem = own;
    } else {
        problem_free(own);
    }
    return OATO_OK;
}
