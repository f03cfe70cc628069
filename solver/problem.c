/*
 * problem.c - from model, profile and request to an instance. Steps: the devices and what they may
 * use, the fusion cover, the price of every operator everywhere, units (one operator each, except
 * that the operators on a layer's KV stay together), the copies of values, and the memory that a
 * used device sets aside for activations and workspace.
 */
#include "solver/planning_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int32_t problem_op_device(const struct problem *p, int32_t op, const struct option *o,
                          enum plan_phase phase)
{
    if (o->team)
        return -1;
    return p->first_op[p->unit_of[op]] == op ? o->in[phase] : o->out[phase];
}

const char *arena_string(struct arena *a, const char *s)
{
    return arena_strndup(a, s ? s : "", s ? strlen(s) : 0);
}

oato_status request_check(const struct plan_request *q, struct oato_error *err)
{
    if (q->context > REQUEST_CONTEXT_MAX || q->batch > REQUEST_BATCH_MAX ||
        q->ubatch > REQUEST_UBATCH_MAX)
        return oato_fail(err, OATO_EUSAGE,
                         "context %d, batch %d and ubatch %d exceed the limits of %d, %d and %d; "
                         "use smaller ones",
                         q->context, q->batch, q->ubatch, REQUEST_CONTEXT_MAX, REQUEST_BATCH_MAX,
                         REQUEST_UBATCH_MAX);
    for (int32_t i = 0; i < request_points(q); i++) {
        const struct plan_point t = request_point(q, i);
        const int64_t tokens = ((int64_t)t.prompt + t.generate) * q->batch,
                      positions = tokens + (int64_t)t.depth * q->batch;
        char behind[40] = "";
        if (t.depth)
            snprintf(behind, sizeof behind, " behind %d", t.depth);
        if (t.prompt < 0 || t.generate < 0 || t.depth < 0 || q->batch < 1 || q->ubatch < 1 ||
            q->context < 1 || tokens < 1)
            return oato_fail(err, OATO_EUSAGE,
                             "the request must have tokens: prompt %d, generate %d%s, batch %d, "
                             "ubatch %d, context %d",
                             t.prompt, t.generate, behind, q->batch, q->ubatch, q->context);
        if (positions > q->context)
            return oato_fail(err, OATO_EUSAGE,
                             "%d sequences of %d + %d tokens%s need --context %" PRId64
                             " or more, not %d",
                             q->batch, t.prompt, t.generate, behind, positions, q->context);
    }
    if (q->objective == OBJECTIVE_TTFT && !q->prompt)
        return oato_fail(err, OATO_EUSAGE,
                         "--minimize ttft needs a prompt; give one with --prompt");
    return OATO_OK;
}

/* ------------------------------------------------------------------- operators and units --- */

static uint64_t kv_bytes(const struct problem *p, const struct graph_op *op)
{
    if (op_state_floats(&op->op))
        return (uint64_t)op_state_floats(&op->op) * sizeof(float) *
               (uint64_t)state_slots_of(p->request.batch);
    if (op->op.kind != OP_KV_STORE)
        return 0;
    const int32_t window = op->op.window ? graph_window(&p->graph) : 0;
    return op_kv_bytes(&op->op, p->request.kv) *
           (uint64_t)request_kv_positions(&p->request, window);
}

/* Whether a device that compiles spans has functions for this operator alone. */
static bool is_singular(const struct problem *p, int32_t d, int32_t index)
{
    const struct graph *g = &p->graph;
    if (!cost_device(p->cost, p->device[d]).spans || !op_spans(&g->ops[index].op))
        return false;
    for (int32_t i = 0; i < g->n_ops; i++)
        if (i != index && oato_op_same(&g->ops[i].op, &g->ops[index].op))
            return false;
    return true;
}

/* What the operator takes beside weights in a step of that size or, where functions are compiled
 * for numbers of rows, in all of these that such steps need, with buffers of what a span with it
 * reads and leaves: residuals and its own. */
static uint64_t op_workspace(const struct problem *p, int32_t d, int32_t index)
{
    const struct cost_device own = cost_device(p->cost, p->device[d]);
    const struct oato_op *op = &p->graph.ops[index].op;
    const int32_t tokens = request_max_tokens(&p->request);
    struct op_size size = graph_op_size(&p->graph, index, tokens, p->request.batch, 1,
                                        (int64_t)tokens * p->request.context);
    const int32_t most = size.rows;
    uint64_t sum = 0;
    if (!own.spans || !own.rows[0] || !op_spans(op))
        return cost_workspace_bytes(p->cost, p->device[d], op, &size);
    for (int i = 0; i < DEVICE_ROWS && own.rows[i] && (!i || own.rows[i - 1] < most); i++) {
        size.rows = own.rows[i];
        sum += cost_workspace_bytes(p->cost, p->device[d], op, &size) +
               (uint64_t)size.rows * (2 * (uint64_t)op->k + (uint64_t)op->n) * sizeof(float);
    }
    return sum;
}

static oato_status price_operators(struct problem *p, struct oato_error *err)
{
    const struct graph *g = &p->graph;
    p->price = arena_alloc(&p->arena, (size_t)g->n_ops * (size_t)p->n_devices, sizeof *p->price);
    if (!p->price)
        return oato_fail_memory(err, (size_t)g->n_ops * sizeof *p->price, "the prices");
    for (int32_t i = 0; i < g->n_ops; i++) {
        bool anywhere = false;
        const struct oato_op *op = &g->ops[i].op;
        for (int32_t d = 0; d < p->n_devices; d++) {
            struct op_price *price = &p->price[i * p->n_devices + d];
            *price = request_op(p, g, i, op, d);
            uint64_t bytes =
                cost_prepared_bytes(p->cost, p->device[d], op, problem_file_bytes(&g->ops[i]));
            if (is_singular(p, d, i))
                bytes += op_workspace(p, d, i);
            price->weight_bytes = least_bytes(bytes, BYTES_MAX);
            price->kv_bytes = least_bytes(kv_bytes(p, &g->ops[i]), BYTES_MAX);
            if (!problem_counts(p, i)) /* it is elsewhere, and exchanges values with the host */
                *price = (struct op_price){.supported = d == p->instance.host};
            anywhere = anywhere || price->supported;
        }
        char key[OP_KEY_SIZE];
        if (!anywhere)
            return oato_fail(err, OATO_EFIT, "no planned device runs %s (%s)", g->ops[i].name,
                             oato_op_key(op, NULL, key));
    }
    return OATO_OK;
}

/* What reads and writes a layer's KV is one unit: the rotation of k, the store, the attention. */
static void find_kv(const struct graph *g, int32_t *kv_of)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        if (op->kv_layer >= 0 && op->kv_layer < g->n_layers)
            kv_of[i] = op->kv_layer + 1;
        for (int32_t j = 0; op->op.kind == OP_KV_STORE && j < i; j++)
            if (g->ops[j].op.kind == OP_ROPE && g->ops[j].out[0] == op->in[0])
                kv_of[j] = kv_of[i];
    }
}

/* So are two products that can be divided together. */
static oato_status find_units(struct problem *p, struct oato_error *err)
{
    const struct graph *g = &p->graph;
    struct instance *in = &p->instance;
    size_t n = (size_t)g->n_ops;
    int32_t *kv_unit = arena_alloc(&p->arena, (size_t)g->n_layers + 1, sizeof *kv_unit);
    int32_t *kv_of = arena_alloc(&p->arena, n + 1, sizeof *kv_of);
    p->unit_of = arena_alloc(&p->arena, n + 1, sizeof *p->unit_of);
    p->first_op = arena_alloc(&p->arena, n + 1, sizeof *p->first_op);
    p->division = arena_alloc(&p->arena, n + 1, sizeof *p->division);
    in->units = arena_alloc(&p->arena, n + 1, sizeof *in->units);
    if (!kv_unit || !kv_of || !p->unit_of || !p->first_op || !p->division || !in->units)
        return oato_fail_memory(err, n * sizeof *in->units, "the units");
    find_kv(g, kv_of);
    in->n_layers = g->n_layers;
    for (int32_t i = 0; i < g->n_ops; i++) {
        int32_t u = kv_of[i] && kv_unit[kv_of[i]] ? kv_unit[kv_of[i]] - 1
                    : i && divide_pair(g, i - 1)  ? p->unit_of[i - 1]
                                                  : in->n_units;
        p->unit_of[i] = u;
        if (u < in->n_units)
            continue;
        in->n_units++;
        in->units[u].layer = g->ops[i].layer;
        p->first_op[u] = i;
        if (kv_of[i])
            kv_unit[kv_of[i]] = u + 1;
    }
    return OATO_OK;
}

/* Sums up what goes on in each layer beside the copies of its weights: operators without weights to
 * copy, and those that no accelerator runs. */
static oato_status find_flows(struct problem *p, struct oato_error *err)
{
    const struct graph *g = &p->graph;
    p->flow = arena_alloc(&p->arena, (size_t)g->n_layers + 2, sizeof *p->flow);
    if (!p->flow)
        return oato_fail_memory(err, (size_t)g->n_layers * sizeof *p->flow, "the layers");
    for (int32_t i = 0; i < g->n_ops; i++) {
        struct layer_flow *f = &p->flow[g->ops[i].layer + 1];
        int64_t least = INT64_MAX;
        bool elsewhere = false;
        for (int32_t d = 0; d < p->n_devices; d++) {
            const struct op_price *price = &p->price[i * p->n_devices + d];
            if (!price->supported)
                continue;
            least = min_i64(least, price->prefill_ns);
            elsewhere = elsewhere || d != p->instance.host;
        }
        if (elsewhere && op_weight_use(&g->ops[i].op) == WEIGHT_MATRIX)
            f->matrix_bytes += problem_file_bytes(&g->ops[i]);
        else
            f->other_ns = ns_add(f->other_ns, least == INT64_MAX ? 0 : least);
    }
    return OATO_OK;
}

static oato_status make_units(struct problem *p, struct oato_error *err)
{
    struct instance *in = &p->instance;
    if (find_units(p, err) || find_flows(p, err))
        return err->status;
    struct option(*whole)[SOLVER_DEVICES] =
        arena_alloc(&p->arena, (size_t)in->n_units + 1, sizeof *whole);
    if (!whole)
        return oato_fail_memory(err, (size_t)in->n_units * sizeof *whole, "the units");
    for (int32_t u = 0; u < in->n_units; u++)
        for (int32_t d = 0; d < p->n_devices; d++) {
            whole[u][d] = (struct option){.allowed = true, .stream = -1, .uses = 1u << d};
            option_lie(&whole[u][d], d, d);
        }
    bool *divided = NULL; /* by ranks */
    if (p->by_ranks && ranks_divided(&p->graph, p->by_ranks, &p->arena, &divided, err))
        return err->status;
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        for (int32_t d = 0; d < p->n_devices; d++) {
            const struct op_price *o = &p->price[i * p->n_devices + d];
            struct option *to = &whole[p->unit_of[i]][d];
            struct price price = request_price(&p->request, o->prefill_ns, o->decode_ns);
            const bool on_host = !p->joined || op_weight_use(&p->graph.ops[i].op) == WEIGHT_LOOKUP;
            to->allowed = to->allowed && o->supported &&
                          (!divided || divided[i] || on_host == (d == in->host));
            price_add(&to->price, &price);
            to->bytes[d] += o->weight_bytes + o->kv_bytes;
        }
    for (int32_t u = 0; u < in->n_units; u++)
        if (divide_unit(p, u, whole[u], err))
            return err->status;
    return OATO_OK;
}

/* ------------------------------------------------------------------------------- values ---- */

static void add_reader(struct instance *in, struct edge *e, int32_t unit)
{
    if (unit == e->producer)
        return;
    for (int32_t r = 0; r < e->n_readers; r++)
        if (in->readers[e->first_reader + r] == unit)
            return;
    in->readers[e->first_reader + e->n_readers++] = unit;
    in->n_readers++;
}

static struct price end_copy(const struct problem *p, int32_t value, int32_t from, int32_t to,
                             enum plan_phase phase)
{
    return from < p->n_devices && to < p->n_devices
               ? request_copy(p, &p->graph.values[value], from, to, phase)
               : team_copy(p, value, from, to, phase);
}

static void add_edge(struct problem *p, int32_t value, int32_t producer)
{
    const struct graph *g = &p->graph;
    struct instance *in = &p->instance;
    struct edge *e = &in->edges[in->n_edges];
    memset(e, 0, sizeof *e);
    e->direct = p->direct ? &p->direct[PHASE_COUNT * in->n_edges] : NULL;
    e->producer = p->unit_of[producer];
    e->first_reader = in->n_readers;
    e->host_reads = value == g->logits;
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int32_t j = 0; j < g->ops[i].n_in; j++)
            if (g->ops[i].in[j] == value)
                add_reader(in, e, p->unit_of[i]);
    if (!e->n_readers && !e->host_reads)
        return;
    for (int32_t d = 0; d < instance_ends(in); d++) {
        for (enum plan_phase phase = 0; phase < PHASE_COUNT; phase++) {
            e->leave[phase][d] = end_copy(p, value, d, in->host, phase);
            e->enter[phase][d] = end_copy(p, value, in->host, d, phase);
            for (int32_t f = 0; f < instance_ends(in); f++)
                if (e->direct && in->direct[d][f])
                    e->direct[phase][d][f] = end_copy(p, value, d, f, phase);
        }
    }
    p->edge_of[value] = in->n_edges++;
}

static oato_status make_edges(struct problem *p, struct oato_error *err)
{
    const struct graph *g = &p->graph;
    struct instance *in = &p->instance;
    size_t n = (size_t)g->n_values;
    const bool direct = memchr(in->direct, 1, sizeof in->direct);
    in->edges = arena_alloc(&p->arena, n + 1, sizeof *in->edges);
    in->readers = arena_alloc(&p->arena, (size_t)g->n_ops * GRAPH_INPUTS + 1, sizeof *in->readers);
    p->edge_of = arena_alloc(&p->arena, n + 1, sizeof *p->edge_of);
    if (direct)
        p->direct = arena_alloc(&p->arena, PHASE_COUNT * n + 1, sizeof *p->direct);
    if (!in->edges || !in->readers || !p->edge_of || (direct && !p->direct))
        return oato_fail_memory(err, n * sizeof *in->edges, "the edges");
    for (size_t v = 0; v < n; v++)
        p->edge_of[v] = -1;
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int32_t j = 0; j < g->ops[i].n_out; j++)
            add_edge(p, g->ops[i].out[j], i);
    return OATO_OK;
}

/* ------------------------------------------------------------------------------- memory ---- */

static uint64_t value_bytes(const struct problem *p, int32_t value)
{
    const struct graph_value *v = &p->graph.values[value];
    int64_t rows = v->rows == ROWS_LOGITS ? p->request.batch : request_max_tokens(&p->request);
    return size_align((size_t)rows * (size_t)v->width * 4, 64);
}

/* Most bytes of activations that live at once when everything runs in one place. */
static oato_status activation_bytes(struct problem *p, uint64_t *most, struct oato_error *err)
{
    const struct graph *g = &p->graph;
    int32_t *last = arena_alloc(&p->arena, (size_t)g->n_values + 1, sizeof *last);
    if (!last)
        return oato_fail_memory(err, (size_t)g->n_values * sizeof *last, "the values");
    for (int32_t i = 0; i < g->n_ops; i++) {
        for (int32_t j = 0; j < g->ops[i].n_out; j++)
            last[g->ops[i].out[j]] = i;
        for (int32_t j = 0; j < g->ops[i].n_in; j++)
            last[g->ops[i].in[j]] = i;
    }
    last[g->logits] = g->n_ops;
    uint64_t live = 0;
    *most = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        for (int32_t j = 0; j < g->ops[i].n_out; j++)
            live += value_bytes(p, g->ops[i].out[j]);
        *most = live > *most ? live : *most;
        for (int32_t j = 0; j < g->ops[i].n_out; j++)
            if (last[g->ops[i].out[j]] == i)
                live -= value_bytes(p, g->ops[i].out[j]);
        for (int32_t j = 0; j < g->ops[i].n_in; j++) {
            int32_t v = g->ops[i].in[j];
            if (last[v] != i || (j && v == g->ops[i].in[0]))
                continue;
            live -= value_bytes(p, v);
        }
    }
    return OATO_OK;
}

/* A run of layers has a function for the span that it begins with, one for those between layers and
 * one for its last; where it begins and ends amid a layer, there are functions of one operator. */
static uint64_t workspace_bytes(const struct problem *p, int32_t d)
{
    const uint64_t functions = cost_device(p->cost, p->device[d]).spans ? 4 : 1;
    uint64_t most = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const uint64_t bytes = is_singular(p, d, i) ? 0 : op_workspace(p, d, i);
        most = bytes > most ? bytes : most;
    }
    return least_bytes(most, BYTES_MAX / 4) * functions;
}

/* A device that is used at all needs an arena and workspace; an eighth more, because lowering
 * packs values of different sizes. */
static oato_status reserve_memory(struct problem *p, struct oato_error *err)
{
    struct instance *in = &p->instance;
    uint64_t activations = 0;
    oato_status status = activation_bytes(p, &activations, err);
    if (status)
        return status;
    for (int32_t d = 0; d < p->n_devices; d++) {
        p->work[d] = activations + activations / 8 + workspace_bytes(p, d);
        p->reserve[d] = (p->tight ? 0 : p->work[d]) + p->aside[d];
        in->usable[d] = p->budget[d] >= p->reserve[d] && p->budget[d] >= p->work[d];
        in->capacity[d] = in->usable[d] ? least_bytes(p->budget[d] - p->reserve[d], BYTES_MAX) : 0;
        in->fixed[d] = request_fixed(p, d);
    }
    return OATO_OK;
}

/* -------------------------------------------------------------------------- put together --- */

oato_status problem_price(struct problem *p, struct oato_error *err)
{
    for (int32_t i = 0; i < p->graph.n_ops; i++)
        p->graph.ops[i].op = graph_op_with_kv(&p->graph.ops[i], p->request.kv);
    const struct skipping skipping = {p->sparse, p->n_sparse, p->inputs, p->n_inputs, p->neurons};
    p->silent = arena_alloc(&p->arena, (size_t)p->graph.n_ops + 1, sizeof *p->silent);
    if (!p->silent)
        return oato_fail_memory(err, (size_t)p->graph.n_ops * sizeof *p->silent, "operators");
    sparse_silences(&p->graph, &skipping, p->silent);
    if (price_operators(p, err) || teams_find(p, err) || make_units(p, err) || make_edges(p, err))
        return err->status;
    return reserve_memory(p, err);
}

oato_status problem_begin(const struct profile *profile, const struct plan_request *q,
                          const char *classes, struct problem **out, struct oato_error *err)
{
    struct problem *p = calloc(1, sizeof *p);
    *out = NULL;
    if (!p)
        return oato_fail_memory(err, sizeof *p, "a planning problem");
    arena_init(&p->arena);
    p->profile = profile;
    p->request = *q;
    oato_status status = request_check(q, err);
    if (!status)
        status = cost_create(profile, classes, &p->cost, err);
    if (status)
        problem_free(p);
    else
        *out = p;
    return status;
}

oato_status problem_create(const struct model *m, const struct profile *profile,
                           const struct planner_options *o, struct problem **out,
                           struct oato_error *err)
{
    struct problem *p;
    oato_status status = problem_begin(profile, &o->request, o->own_kernels ? "" : NULL, &p, err);
    *out = NULL;
    if (!p)
        return status;
    p->neurons = o->neurons;
    p->whole_only = o->whole_only;
    p->by_ranks = o->by_ranks;
    p->joined = o->joined;
    p->tight = o->tight;
    memcpy(p->aside, o->aside, sizeof p->aside);
    p->layer_begin = o->layer_begin;
    p->layer_end = o->layer_end;
    p->choice = o->sparse;
    if (problem_devices(p, o, err) ||
        (o->cover ? cover_take(p, m, o->cover, err) : cover_fuse(p, &m->graph, err)) ||
        sparse_choose(p, err) || problem_price(p, err) || problem_check_budgets(p, o, err)) {
        problem_free(p);
        return err->status;
    }
    *out = p;
    return OATO_OK;
}

void problem_memory(const struct problem *p, const int32_t *place, uint64_t *need)
{
    const uint32_t uses = instance_uses(&p->instance, place);
    uint64_t used[SOLVER_DEVICES];
    instance_fits(&p->instance, place, used);
    for (int32_t d = 0; d < p->n_devices; d++)
        need[d] = uses >> d & 1 ? used[d] + p->reserve[d] - p->aside[d] : 0;
}

void problem_stream(struct problem *p, const int32_t *place)
{
    struct instance with;
    uint64_t staging[SOLVER_DEVICES], rooms[SOLVER_DEVICES];
    const uint32_t streams = instance_streams(&p->instance, place, staging, rooms);
    for (int32_t d = 0; d < p->n_devices; d++) {
        p->instance.staging[d] = streams >> d & 1 ? staging[d] : p->instance.staging[d];
        p->instance.rooms[d] = streams >> d & 1 ? rooms[d] : p->instance.rooms[d];
    }
    if (!instance_with_streams(&p->instance, streams, &with))
        with.streams = streams; /* it does not fit: the reserve says by how much */
    p->instance = with;
    for (int32_t d = 0; d < p->n_devices; d++)
        p->reserve[d] += streams >> d & 1 ? p->instance.staging[d] + p->instance.rooms[d] : 0;
}

void problem_free(struct problem *p)
{
    if (!p)
        return;
    cost_free(p->cost);
    graph_free(&p->graph);
    arena_free(&p->arena);
    free(p);
}
