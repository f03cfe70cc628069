/*
 * memory.c - what a plan's programs take on each device: they are lowered as the engine lowers
 * them, with what the profile recorded of weights and workspace in place of open devices. The sums
 * that solvers work with (problem.c) are close to it; what a plan states is this.
 *
 * A type of which no row tells is taken to need what the roomiest layout of any device needs
 * (op_matrix_bytes_most).
 */
#include "lowering/lowering.h"
#include "solver/planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct facts {
    struct cost_source *cost;
    const struct graph *graph;
    int32_t device[SOLVER_DEVICES]; /* of the rank, in the profile */
    int32_t last;                   /* operator whose weight was asked for */
};

static uint64_t workspace_bytes(const void *user, int32_t device, const struct oato_op *op,
                                const struct op_size *size)
{
    const struct facts *f = user;
    return cost_workspace_bytes(f->cost, f->device[device], op, size);
}

/* -------------------------------------------------------------------------------- weights --- */

static bool has_weight(const struct graph_op *o, const struct gguf_tensor *t)
{
    for (int i = 0; i < o->n_weights; i++)
        if (o->weight[i] == t)
            return true;
    return false;
}

/* Lowering asks in the order of the graph. */
static const struct graph_op *op_of(struct facts *f, const struct gguf_tensor *t)
{
    const struct graph *g = f->graph;
    for (int32_t n = g->n_ops; n > 0 && !has_weight(&g->ops[f->last], t); n--)
        f->last = (f->last + 1) % g->n_ops;
    return &g->ops[f->last];
}

static uint64_t file_bytes(oato_dtype dtype, int64_t rows, int64_t k)
{
    size_t row = 0;
    dtype_row_bytes(dtype, k, &row);
    return (uint64_t)rows * row;
}

/* What the profile recorded of all of an operator's matrices against what they take in the file;
 * 0: nothing. */
static double measured_ratio(const struct facts *f, int32_t device, const struct graph_op *o)
{
    double matrices = 0, all = (double)cost_prepared_bytes(f->cost, device, &o->op, 0);
    for (int i = 0; i < o->n_weights; i++) {
        int64_t rows, k;
        if (!o->weight[i] || (i && o->weight[i] == o->weight[i - 1]) ||
            !op_weight_shape(&o->op, i, &rows, &k))
            continue;
        if (op_weight_use_at(&o->op, i) == WEIGHT_VECTOR)
            all -= (double)rows * (double)k * sizeof(float);
        else
            matrices += (double)file_bytes(o->weight[i]->dtype, rows, k);
    }
    return matrices > 0 && all > 0 ? all / matrices : 0;
}

/* A part has whole groups of rows and, on accelerators, planes of its own that are aligned. */
enum { PLANES = 1024 };

static bool is_whole(const struct weight_slot *s)
{
    return file_bytes(s->tensor->dtype, s->end - s->begin, s->col_end - s->col_begin) ==
           s->tensor->bytes;
}

static uint64_t slot_bytes(const void *user, int32_t device, const struct weight_slot *s)
{
    struct facts *f = (struct facts *)user; /* remembers where it was */
    const int32_t d = f->device[device];
    const int64_t rows = s->end - s->begin, k = s->col_end - s->col_begin;
    if (s->use == WEIGHT_VECTOR)
        return (uint64_t)rows * (uint64_t)k * sizeof(float);
    if (s->use == WEIGHT_LOOKUP && cost_device(f->cost, d).is_host)
        return 0; /* stays in the model's file */
    const uint64_t file = file_bytes(s->tensor->dtype, rows, k);
    const double ratio = measured_ratio(f, d, op_of(f, s->tensor));
    if (ratio > 0 && is_whole(s))
        return (uint64_t)ceil((double)file * ratio);
    if (ratio > 0)
        return (uint64_t)ceil((double)file_bytes(s->tensor->dtype, (rows + 15) / 16 * 16, k) *
                              ratio) +
               (cost_device(f->cost, d).is_host ? 0 : PLANES);
    return cost_device(f->cost, d).data_sheet ? file
                                              : op_matrix_bytes_most(s->tensor->dtype, rows, k);
}

/* ------------------------------------------------------------------------------- one rank --- */

oato_status rank_facts(const struct plan *plan, const struct profile *profile,
                       const struct cost_source *cost, int32_t rank, struct lowering_facts *facts,
                       int32_t *device, int32_t *bound, struct oato_error *err)
{
    facts->host = -1;
    for (int32_t d = 0; d < plan->n_devices; d++) {
        bound[d] = -1;
        if (plan->devices[d].rank != rank)
            continue;
        const int32_t at = profile_device_index(profile, plan->devices[d].id), n = facts->n_devices;
        if (at < 0)
            return plan_device_missing(&plan->devices[d], err);
        const struct profile_device *own = &profile->devices[at];
        if (n == SOLVER_DEVICES)
            return oato_fail(err, OATO_EFILE, "rank %d has more than %d devices", rank,
                             SOLVER_DEVICES);
        facts->n_devices++;
        bound[d] = n;
        device[n] = at;
        facts->id[n] = own->id;
        facts->streams[n] = true;
        facts->rows[n] = own->spans ? own->rows : NULL;
        facts->caches[n] = !own->is_host;
        facts->values[n] = cost_device(cost, at).values;
        facts->host = facts->host < 0 && own->is_host ? n : facts->host;
    }
    if (facts->host < 0)
        return oato_fail(err, OATO_EFILE, "none of the plan's devices is the host of the profile");
    for (int32_t to = 0; to < facts->n_devices; to++)
        for (int32_t from = 0; from < facts->n_devices; from++)
            facts->reaches[to][from] = cost_of_copy(cost, device[from], device[to], 0) >= 0;
    return OATO_OK;
}

/* Rows of logits, of which a step of both phases keeps those of decode. */
static uint64_t kept_bytes(const struct plan_request *q, const struct graph *g)
{
    return q->batch < 2 ? 0
                        : (uint64_t)q->batch * (uint64_t)g->values[g->logits].width * sizeof(float);
}

/* A host that computes nothing takes results. */
static bool is_used(const struct lowered_device *d)
{
    return d->arena_bytes || d->n_kv || d->phase[PHASE_PREFILL].n_records ||
           d->phase[PHASE_DECODE].n_records;
}

static oato_status rank_memory(const struct plan *plan, const struct model *m,
                               const struct profile *profile, int32_t rank, int32_t top_logits,
                               struct device_memory *need, struct oato_error *err)
{
    struct facts f = {.last = 0};
    struct lowering_facts facts = {
        .user = &f, .weight_bytes = slot_bytes, .workspace_bytes = workspace_bytes};
    const struct plan_request *q = &plan->request;
    struct graph g = {.n_ops = 0};
    struct placements places = {.wire = DT_F32};
    struct lowered lowered = {.n_devices = 0};
    int32_t *bound = calloc((size_t)plan->n_devices + 1, sizeof *bound);
    if (!bound)
        return oato_fail_memory(err, (size_t)plan->n_devices * sizeof *bound, "the plan");
    oato_status status = cost_create(profile, plan->numerics[PHASE_PREFILL], &f.cost, err);
    if (!status)
        status = rank_facts(plan, profile, f.cost, rank, &facts, f.device, bound, err);
    if (!status)
        status = plan_apply(plan, m, &g, err);
    if (status)
        goto out;
    f.graph = &g;
    status = sparse_apply_plan(&g, plan, err);
    if (!status)
        status = lower_plan(plan, &g, &facts, bound, top_logits, &places, &lowered, err);
    struct memory_limits limits = {
        .host = facts.host,
        .kv = q->kv,
        .pages = (int32_t)(request_kv_positions(q, 0) / KV_PAGE_POSITIONS),
        .window_pages = (int32_t)(request_kv_positions(q, graph_window(&g)) / KV_PAGE_POSITIONS),
        .kept_bytes = kept_bytes(q, &g)};
    for (int32_t d = 0; d < facts.n_devices; d++) {
        limits.keeps[d] = cost_device(f.cost, f.device[d]).keeps;
        limits.library_bytes[d] = cost_device(f.cost, f.device[d]).library_bytes;
    }
    for (int32_t d = 0; d < plan->n_devices && !status; d++)
        if (bound[d] >= 0 && is_used(&lowered.device[bound[d]])) {
            const struct device_memory x = lowered_memory(&lowered, bound[d], &limits);
            if (device_memory_sum(&x) >= device_memory_sum(&need[d]))
                need[d] = x;
        }
out:
    lowered_free(&lowered);
    placements_free(&places);
    graph_free(&g);
    cost_free(f.cost);
    free(bound);
    return status;
}

oato_status memory_of_rank(const struct plan *plan, const struct model *m,
                           const struct profile *profile, int32_t rank, struct device_memory *need,
                           struct oato_error *err)
{
    const oato_status status = rank_memory(plan, m, profile, rank, 0, need, err);
    return status || plan->n_devices < 2
               ? status
               : rank_memory(plan, m, profile, rank, TOP_K_MOST, need, err);
}

/* ---------------------------------------------------------------------------------- a stage - */

/* A plan of two ranks: the second one has the operators that do not count. */
static oato_status stage_of(const struct plan *plan, const struct problem *p, struct plan *out,
                            struct oato_error *err)
{
    const size_t devices = (size_t)plan->n_devices, n = (size_t)p->graph.n_ops;
    *out = *plan;
    arena_init(&out->arena);
    out->devices = arena_alloc(&out->arena, devices + 1, sizeof *out->devices);
    out->parts = arena_alloc(&out->arena, (size_t)plan->n_parts + n, sizeof *out->parts);
    out->kv = arena_alloc(&out->arena, n + 1, sizeof *out->kv);
    if (!out->devices || !out->parts || !out->kv)
        return oato_fail_memory(err, n * sizeof *out->parts, "the plan");
    memcpy(out->devices, plan->devices, devices * sizeof *out->devices);
    out->devices[devices] = plan->devices[0];
    out->devices[devices].rank = out->devices[devices].host = 1;
    out->n_devices++;
    out->n_parts = out->n_kv = 0;
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const struct graph_op *o = &p->graph.ops[i];
        for (int32_t k = 0; k < plan->n_parts && problem_counts(p, i); k++)
            if (!strcmp(plan->parts[k].op, o->name))
                out->parts[out->n_parts++] = plan->parts[k];
        if (!problem_counts(p, i) && o->op.n)
            out->parts[out->n_parts++] = (struct plan_part){.op = o->name,
                                                            .end = o->op.n,
                                                            .phases = (1u << PHASE_COUNT) - 1,
                                                            .device = plan->n_devices,
                                                            .home = plan->n_devices};
    }
    return OATO_OK;
}

oato_status memory_of_plan(const struct plan *plan, const struct model *m, struct problem *p,
                           struct oato_error *err)
{
    struct plan stage;
    p->memory = arena_alloc(&p->arena, (size_t)p->n_devices + 1, sizeof *p->memory);
    if (!p->memory)
        return oato_fail_memory(err, (size_t)p->n_devices * sizeof *p->memory, "the devices");
    if (p->layer_begin == p->layer_end)
        return memory_of_rank(plan, m, p->profile, 0, p->memory, err);
    oato_status status = stage_of(plan, p, &stage, err);
    if (!status)
        status = memory_of_rank(&stage, m, p->profile, 0, p->memory, err);
    arena_free(&stage.arena);
    return status;
}
