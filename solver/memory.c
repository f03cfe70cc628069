/*
 * memory.c - what a plan's programs take on each device: they are lowered as the engine lowers
 * them, with what the profile recorded of weights and workspace in place of open devices. The sums
 * that solvers work with (problem.c) are close to it; what a plan states is never less than this.
 *
 * What was never measured is bounded from what was: workspace grows no faster than an operator's
 * sizes, so that a measured row, each size scaled up, suffices. Without such rows a type is taken
 * to need what the roomiest layout of any device needs (op_matrix_bytes_most).
 */
#include "lowering/lowering.h"
#include "solver/planning_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct facts {
    const struct profile *profile;
    struct cost_model *cost;
    const struct graph *graph;
    int32_t device[SOLVER_DEVICES]; /* of the rank, in the profile */
    int32_t last;                   /* operator whose weight was asked for */
};

/* ------------------------------------------------------------------------------ workspace --- */

static double grown(double to, double from)
{
    return from > 0 && to > from ? to / from : 1;
}

/* No term has more than one of the widths. */
static double sizes_grown(const struct oato_op *to, const struct oato_op *from)
{
    const double k = grown(to->k, from->k),
                 n = grown(to->n + 2.0 * to->n2, from->n + 2.0 * from->n2),
                 head = grown(to->head_dim, from->head_dim),
                 v = grown(op_v_dim(to), op_v_dim(from));
    return fmax(fmax(k, n), fmax(head, v)) * grown(to->heads, from->heads) *
           grown(to->experts_used, from->experts_used);
}

/* How well a row of an operator tells of another one's workspace: 3 the same, 2 the same kind and
 * type, 1 the same kind, 0 also matrices; -1: nothing. */
static int likeness(const struct oato_op *op, const struct oato_op *row)
{
    if (row->kind != op->kind)
        return op_weight_use(op) == WEIGHT_MATRIX && op_weight_use(row) == WEIGHT_MATRIX ? 0 : -1;
    if (row->dtype != op->dtype)
        return 1;
    return row->k == op->k && row->n == op->n && row->heads == op->heads ? 3 : 2;
}

/* By the rows that tell most. */
static double workspace_scaled(const struct profile *p, int32_t device, const struct oato_op *op,
                               const struct op_size *size)
{
    double least = 0;
    int best = -1;
    for (int32_t i = 0; i < p->n_rows; i++) {
        const struct profile_row *r = &p->rows[i];
        if (r->device != device || !r->supported || r->size.rows <= 0)
            continue;
        const int like = likeness(op, &r->op);
        if (like < 0 || like < best)
            continue;
        const double bytes =
            (double)r->workspace_bytes * sizes_grown(op, &r->op) * grown(size->rows, r->size.rows);
        least = like > best || bytes < least ? bytes : least;
        best = like;
    }
    return least;
}

/* A context that is divided has partial results, of which there are more the longer it is; the rest
 * does not depend on the number of tokens. */
static double attention_workspace(const struct profile *p, int32_t device, const struct oato_op *op,
                                  const struct op_size *size)
{
    double most = 0;
    int best = -1;
    for (int32_t i = 0; i < p->n_rows; i++) {
        const struct profile_row *r = &p->rows[i];
        if (r->device != device || !r->supported || r->op.kind != OP_ATTENTION || r->size.rows <= 0)
            continue;
        const int like = likeness(op, &r->op);
        const double partial = (double)op_attention_partial_bytes(&r->op, &r->size),
                     bytes =
                         fmax((double)r->workspace_bytes - partial, 0) * sizes_grown(op, &r->op);
        if (like < best)
            continue;
        most = like > best || bytes > most ? bytes : most;
        best = like;
    }
    return most > 0 ? most + (double)op_attention_partial_bytes(op, size) : 0;
}

/* A host that nobody measured: a thread's tile of unpacked weights and results, and the packed
 * input, about as much as the roomiest kernels take. */
static double host_guess(const struct profile_device *d, const struct oato_op *op,
                         const struct op_size *size)
{
    enum { SCRATCH = 256 << 10, PACKED = 3, PANEL = 64 };
    const double threads = d->threads > 0 ? d->threads : 1, rows = size->rows,
                 pairs = rows * (op_has_experts(op) ? op->experts_used : 1),
                 all = op->kind == OP_HEAD_MUL_MAT ? pairs * op->heads : pairs;
    return threads * (SCRATCH + rows * PANEL * sizeof(float)) + all * op->k * PACKED;
}

static uint64_t workspace_bytes(const void *user, int32_t device, const struct oato_op *op,
                                const struct op_size *size)
{
    const struct facts *f = user;
    const int32_t d = f->device[device];
    const uint64_t known = cost_workspace_bytes(f->cost, d, op, size->rows);
    if (op->kind != OP_ATTENTION && (known || cost_measured(f->cost, d, op)))
        return known;
    if (op->kind != OP_ATTENTION && op_weight_use(op) != WEIGHT_MATRIX)
        return known;
    const bool host = f->profile->devices[d].is_host;
    double bytes = op->kind != OP_ATTENTION ? workspace_scaled(f->profile, d, op, size)
                   : host || !known         ? attention_workspace(f->profile, d, op, size)
                                            : (double)known;
    if (host && f->profile->devices[d].data_sheet && op->kind != OP_ATTENTION && !(bytes > 0))
        bytes = host_guess(&f->profile->devices[d], op, size);
    return (uint64_t)fmin(fmax(bytes, (double)known), 0x1p62);
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

static uint64_t slot_bytes(const void *user, int32_t device, const struct weight_slot *s)
{
    struct facts *f = (struct facts *)user; /* remembers where it was */
    const int32_t d = f->device[device];
    const int64_t rows = s->end - s->begin, k = s->col_end - s->col_begin;
    if (s->use == WEIGHT_VECTOR)
        return (uint64_t)rows * (uint64_t)k * sizeof(float);
    const uint64_t file = file_bytes(s->tensor->dtype, rows, k);
    if (s->use == WEIGHT_LOOKUP && f->profile->devices[d].is_host)
        return file;
    const double ratio = measured_ratio(f, d, op_of(f, s->tensor));
    if (ratio > 0)
        return (uint64_t)ceil((double)file * ratio);
    return f->profile->devices[d].data_sheet ? file
                                             : op_matrix_bytes_most(s->tensor->dtype, rows, k);
}

/* ------------------------------------------------------------------------------- one rank --- */

/* The plan's devices of the rank, in `facts` by their places among them; bound as lowering has it.
 */
static oato_status devices_find(const struct plan *plan, const struct profile *profile,
                                int32_t rank, struct lowering_facts *facts, struct facts *f,
                                int32_t *bound, struct oato_error *err)
{
    facts->host = -1;
    for (int32_t d = 0; d < plan->n_devices; d++) {
        bound[d] = -1;
        if (plan->devices[d].rank != rank)
            continue;
        const int32_t at = profile_device_index(profile, plan->devices[d].id),
                      n = facts->n_devices++;
        if (at < 0)
            return plan_device_missing(&plan->devices[d], err);
        const struct profile_device *own = &profile->devices[at];
        if (n == SOLVER_DEVICES)
            return oato_fail(err, OATO_EFILE, "rank %d has more than %d devices", rank,
                             SOLVER_DEVICES);
        bound[d] = n;
        f->device[n] = at;
        facts->id[n] = own->id;
        facts->streams[n] = true;
        facts->caches[n] = !own->is_host;
        facts->host = facts->host < 0 && own->is_host ? n : facts->host;
    }
    if (facts->host < 0)
        return oato_fail(err, OATO_EFILE, "none of the plan's devices is the host of the profile");
    for (int32_t to = 0; to < facts->n_devices; to++)
        for (int32_t from = 0; from < facts->n_devices; from++)
            facts->reaches[to][from] =
                cost_of_copy(f->cost, f->device[from], f->device[to], 0) >= 0;
    return OATO_OK;
}

/* As many candidates as any program asks for that picks them. */
static oato_status lower_all(const struct plan *plan, struct graph *g,
                             const struct lowering_facts *facts, const int32_t *bound,
                             int32_t top_logits, struct lowered *out, struct placements *places,
                             struct oato_error *err)
{
    const struct plan_request *q = &plan->request;
    const int32_t most = request_max_tokens(q);
    const struct lowering_input in = {.graph = g,
                                      .placements = places,
                                      .facts = facts,
                                      .limits = {.tokens = {most, q->batch},
                                                 .rows = {q->batch, q->batch},
                                                 .seqs = q->batch,
                                                 .context = q->context},
                                      .kv = q->kv,
                                      .top_logits = top_logits};
    oato_status status = placements_create(plan, g, bound, facts->host, places, err);
    if (!status)
        sparse_place(g, plan->neurons, places);
    if (!status)
        status = lowered_init(&in, out, err);
    for (int phase = 0; phase < PHASE_COUNT && !status; phase++)
        status = lower(&in, (enum plan_phase)phase, out, err);
    return status;
}

/* Rows of logits, of which a step of both phases keeps those of decode. */
static uint64_t kept_bytes(const struct plan_request *q, const struct graph *g)
{
    return q->batch < 2 ? 0
                        : (uint64_t)q->batch * (uint64_t)g->values[g->logits].width * sizeof(float);
}

static bool is_used(const struct lowered_device *d)
{
    return d->n_kv || d->phase[PHASE_PREFILL].n_records || d->phase[PHASE_DECODE].n_records;
}

static oato_status rank_memory(const struct plan *plan, const struct model *m,
                               const struct profile *profile, int32_t rank, int32_t top_logits,
                               uint64_t *need, struct oato_error *err)
{
    struct facts f = {.profile = profile};
    struct lowering_facts facts = {
        .user = &f, .weight_bytes = slot_bytes, .workspace_bytes = workspace_bytes};
    const struct plan_request *q = &plan->request;
    struct graph g = {.n_ops = 0};
    struct placements places = {.wire = DT_F32};
    struct lowered lowered = {.n_devices = 0};
    int32_t *bound = calloc((size_t)plan->n_devices + 1, sizeof *bound);
    if (!bound)
        return oato_fail_memory(err, (size_t)plan->n_devices * sizeof *bound, "the plan");
    oato_status status = cost_create(profile, &f.cost, err);
    if (!status)
        status = devices_find(plan, profile, rank, &facts, &f, bound, err);
    if (!status)
        status = plan_apply(plan, m, &g, err);
    if (status)
        goto out;
    f.graph = &g;
    status = sparse_apply_plan(&g, plan, err);
    for (int32_t i = 0; i < g.n_ops; i++)
        g.ops[i].op = graph_op_with_kv(&g.ops[i], q->kv);
    if (!status)
        status = lower_all(plan, &g, &facts, bound, top_logits, &lowered, &places, err);
    const struct memory_limits limits = {
        .host = facts.host,
        .kv = q->kv,
        .pages = (int32_t)(request_kv_positions(q, 0) / KV_PAGE_POSITIONS),
        .window_pages = (int32_t)(request_kv_positions(q, graph_window(&g)) / KV_PAGE_POSITIONS),
        .kept_bytes = kept_bytes(q, &g)};
    for (int32_t d = 0; d < plan->n_devices && !status; d++)
        if (bound[d] >= 0 && is_used(&lowered.device[bound[d]])) {
            const struct device_memory x = lowered_memory(&lowered, bound[d], &limits);
            need[d] = device_memory_sum(&x) > need[d] ? device_memory_sum(&x) : need[d];
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
                           const struct profile *profile, int32_t rank, uint64_t *need,
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

oato_status memory_of_plan(const struct plan *plan, const struct model *m, const struct problem *p,
                           uint64_t *need, struct oato_error *err)
{
    struct plan stage;
    if (p->layer_begin == p->layer_end)
        return memory_of_rank(plan, m, p->profile, 0, need, err);
    oato_status status = stage_of(plan, p, &stage, err);
    if (!status)
        status = memory_of_rank(&stage, m, p->profile, 0, need, err);
    arena_free(&stage.arena);
    return status;
}
