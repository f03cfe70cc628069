/*
 * simulate_step.c - one step of a plan on a virtual clock: the same records that lowering makes for
 * the engines of all ranks, each with its time from its rank's profile.
 *
 *   - each device has a queue that runs its records in order; a record also waits for those of
 * other queues that it names
 *   - streamed weights and KV are copied by a separate copy engine, one after the other; a copy
 * begins when the records before it in the queue are done, and its reader waits for it; what is
 * streamed from a file comes from storage, which all devices share, also for records without rows,
 * for it is read in a circle; then, for an accelerator, it is copied
 *   - copies and streams without rows in a step are free
 *   - the host submits to the accelerators, then runs its own queue
 *   - what ranks exchange begins when the last of them is there (ranks/exchange.c)
 *
 * Nothing here looks at what the planner predicted.
 */
#include "solver/report/report_internal.h"
#include "solver/simulation_internal.h"

#include <math.h>
#include <stdlib.h>

static bool failed(const struct stepping *x)
{
    return x->err->status != OATO_OK;
}

static void wait_for(struct event *e, const struct home *read)
{
    if (read->event < 0 || read->ns <= e->begin_ns)
        return;
    e->begin_ns = read->ns;
    e->waited_for = read->event;
}

struct home event_add(struct stepping *x, struct event e, double ns, const struct home *reads,
                      int n)
{
    struct simulation *s = x->s;
    const struct home none = {0, -1};
    const bool computes = e.kind == EVENT_RUN || e.kind == EVENT_MERGE || e.kind == EVENT_STEP;
    struct home *cores = computes ? rank_cores(x, e.device) : NULL;
    const int32_t queue = event_queue(s, &e);
    if (failed(x))
        return none;
    struct event *room = array_room(s->events, (size_t)s->n_events, &s->cap_events, sizeof *room);
    if (!room) {
        oato_fail_memory(x->err, (size_t)s->n_events * sizeof *room, "a simulation");
        return none;
    }
    s->events = room;
    e.begin_ns = x->clock[queue];
    e.waited_for = -1;
    for (int i = 0; i < n; i++)
        wait_for(&e, &reads[i]);
    if (e.kind != EVENT_STREAM)
        wait_for(&e, &x->passed[e.device]);
    if (cores)
        wait_for(&e, cores);
    e.wait_ns = e.begin_ns - x->clock[queue];
    e.end_ns = ns_add(e.begin_ns, whole_ns(ns));
    x->clock[queue] = e.end_ns;
    s->events[s->n_events] = e;
    if (e.kind != EVENT_STREAM)
        x->last[e.device] = s->n_events;
    const struct home done = {e.end_ns, s->n_events++};
    if (cores)
        *cores = done;
    return done;
}

struct home event_pass(struct stepping *x, int32_t d, const struct home *reads, int n)
{
    struct home *passed = &x->passed[d];
    for (int i = 0; i < n; i++)
        if (reads[i].ns > passed->ns)
            *passed = reads[i];
    return passed->ns > x->clock[d] ? *passed : (struct home){x->clock[d], x->last[d]};
}

/* ------------------------------------------------------------------------------- records --- */

static struct home copy_run(struct stepping *x, int32_t d, const struct program_record *r,
                            const struct home *reads, int n)
{
    const struct sim_rank *own = sim_rank_of(x->s, d);
    const int32_t host = own->host;
    const int32_t peer = own->first + r->peer;
    const int32_t from = r->kind == RECORD_UPLOAD ? host : r->kind == RECORD_PEER ? peer : d;
    const int32_t to = r->kind == RECORD_DOWNLOAD ? host : r->kind == RECORD_PUSH ? peer : d;
    if (from == to || !rows_of(x, r))
        return event_pass(x, d, reads, n);
    const struct event e = {.kind = r->kind == RECORD_UPLOAD     ? EVENT_UPLOAD
                                    : r->kind == RECORD_DOWNLOAD ? EVENT_DOWNLOAD
                                                                 : EVENT_PEER,
                            .device = (int16_t)d,
                            .part = r->part,
                            .parts = r->parts,
                            .op = x->s->graph.values[r->value].producer,
                            .bytes = (uint64_t)rows_of(x, r) * (uint64_t)r->in_width[0] * 4};
    const int32_t *device = x->s->device;
    const double ns = copy_cost(own->cost, device[from], device[to], device[d], (double)e.bytes);
    return event_add(x, e, ns, reads, n);
}

/* What records take there depends on the other ranks. */
static bool on_shared_host(const struct stepping *x, int32_t d)
{
    return x->s->n_ranks > 1 && d == sim_rank_of(x->s, d)->host;
}

static double record_ns(struct stepping *x, int32_t d, double ns)
{
    return on_shared_host(x, d) ? rank_part_ns(x, d, ns, 1) : ns + device_of(x, d).record_ns;
}

/* A record of its own where it was measured, else as many additions; of columns that are cut out,
 * or converted, one. */
static struct op_cost cost_of_merge(const struct stepping *x, int32_t d,
                                    const struct program_record *r)
{
    const struct op_size size = {.rows = rows_of(x, r), .seqs = 1};
    const struct cost_source *cost = sim_rank_of(x->s, d)->cost;
    const enum cost_known known = cost_known(cost, x->s->device[d], &r->op);
    if (known == COST_TIMED ||
        (r->op.kind == OP_CONVERT && (known == COST_OTHER_SHAPES || known == COST_DATA_SHEET)))
        return cost_of_op(cost, x->s->device[d], &r->op, &size);
    const struct oato_op add = {.kind = OP_ADD, .dtype = DT_F32, .k = r->op.n, .n = r->op.n};
    struct op_cost c = cost_of_op(cost, x->s->device[d], &add, &size);
    c.ns *= r->n_in > 1 ? r->n_in - 1 : 1;
    c.estimate = true;
    return c;
}

/* The call of a function, where the device's next record begins a span or is one by itself. */
static double unit_ns(struct stepping *x, int32_t d, const struct program_record *r)
{
    const struct lowered_program *p = program_of(x, d);
    uint32_t *span = &x->span[d];
    while (*span < p->n_spans && p->spans[*span].end <= x->next[d])
        ++*span;
    const bool inside = *span < p->n_spans && p->spans[*span].begin < x->next[d];
    return inside || !op_spans(&r->op)
               ? 0
               : unit_cost(sim_rank_of(x->s, d)->cost, x->s->device[d], rows_of(x, r));
}

static struct home merge_run(struct stepping *x, int32_t d, const struct program_record *r,
                             const struct home *reads, int n)
{
    if (x->swapped[d] && x->swapped[d] == r->value + 1) /* measured with what was exchanged */
        return event_pass(x, d, reads, n);
    const struct op_cost c = cost_of_merge(x, d, r);
    const struct event e = {.kind = EVENT_MERGE,
                            .device = (int16_t)d,
                            .parts = 1,
                            .op = x->s->graph.values[r->value].producer,
                            .estimate = c.estimate};
    return event_add(x, e, record_ns(x, d, c.ns) + unit_ns(x, d, r), reads, n);
}

/* One of those that find out which neurons an operator computes. */
static bool makes_list(const struct program_record *r)
{
    return r->op.kind == OP_MUL_MAT || r->op.kind == OP_ACTIVATE || r->op.kind == OP_ACTIVE;
}

static struct home list_run(struct stepping *x, int32_t d, const struct program_record *r,
                            const struct home *reads, int n)
{
    const struct op_size size = {.rows = rows_of(x, r), .seqs = 1};
    const struct op_cost c = cost_of_op(sim_rank_of(x->s, d)->cost, x->s->device[d], &r->op, &size);
    const struct event e = {.kind = EVENT_RUN,
                            .device = (int16_t)d,
                            .parts = 1,
                            .op = x->s->graph.values[r->value].producer,
                            .estimate = c.estimate,
                            .bytes = size.rows ? (uint64_t)op_bytes(&r->op, &size) : 0};
    return event_add(x, e, c.ns + device_of(x, d).record_ns + unit_ns(x, d, r), reads, n);
}

/* The first of the two operators whose neurons or experts the sidecar has counted; -1: none. */
static int32_t counted_op(const struct stepping *x, int32_t index)
{
    const struct graph *g = &x->s->graph;
    const int32_t first = index && divide_pair(g, index - 1) ? index - 1 : index;
    return x->s->plan->neurons && divide_pair(g, first) ? first : -1;
}

/* The share of a whole, dense operator that a part does in this step: of neurons that are skipped
 * and of experts what the sidecar expects to be active, as the planner has it. */
static double active_share(const struct stepping *x, const struct program_record *r, double share)
{
    const struct graph *g = &x->s->graph;
    const int32_t index = (int32_t)r->graph_op, first = counted_op(x, index);
    const struct placed_part *part = &x->s->placements.phase[x->step->phase][index].part[r->part];
    const struct silence *silent = &x->s->silent[index];
    if (silent->share > 0 && r->op.sparse && !(silent->list && r->op.sparse != SPARSE_PREDICT))
        return share * sparse_active(true, 1 - silent->share, x->step->size.tokens);
    if (first < 0)
        return share;
    const struct plan *plan = x->s->plan;
    const struct oato_op *op = &g->ops[first].op;
    const struct plan_sparse *layer = plan_skips(plan->sparse, plan->n_sparse, g->ops[index].layer);
    const struct activity a = activity_of(&g->ops[first], plan->neurons, layer);
    const bool whole = share >= 1;
    if (!a.freq)
        return share;
    const double active =
        activity_share(&a, whole ? 0 : part->begin,
                       !whole                          ? part->end
                       : op->kind == OP_EXPERT_GATE_UP ? op->experts
                                                       : op->n,
                       x->step->size.tokens, r->op.sparse && r->op.threshold >= 0);
    return layer && r->op.sparse == SPARSE_PREDICT
               ? fmin(active * predictor_work(layer, plan->neurons, op), share)
               : active;
}

/* The same of a part whose experts are in a cache, too: this record has what is found there, or the
 * rest. The host reads the experts that are copied once more. */
static double cached_share(const struct stepping *x, const struct program_record *r, double share)
{
    const struct placement *placed = &x->s->placements.phase[x->step->phase][r->graph_op];
    const struct oato_op *op = &x->s->graph.ops[r->graph_op].op;
    const int32_t tokens = x->step->size.tokens, held = (int32_t)lround(share * op->experts);
    const double active = active_share(x, r, share), hits = placed->cache.hits * 1e-6;
    if (r->op.expert_slots >= 0)
        return r->op.expert_slots ? active * hits : active;
    return active * (1 - hits) +
           cache_copies(&placed->cache, held, active * op->experts_used, tokens) /
               fmax(op_experts_read(op, tokens), 1e-9);
}

/* Whole on this device in this phase, as are those before it that it could be joined with. */
static bool joins(const struct stepping *x, int32_t d, int32_t last)
{
    const struct sim_rank *own = sim_rank_of(x->s, d);
    const struct placement *placed = own->placements.phase[x->step->phase];
    int32_t first = last;
    bool together = graph_join(&x->s->graph, last, &first) != JOIN_NONE;
    for (int32_t i = first; i <= last && together; i++)
        together = placed[i].n == 1 && placed[i].part[0].device == d - own->first;
    return together;
}

/* Bytes on their way from storage, once `before` is done. */
static struct home file_run(struct stepping *x, int32_t d, struct event e,
                            const struct home *before)
{
    const struct sim_rank *own = sim_rank_of(x->s, d);
    e.device = (int16_t)own->host;
    const double ns = (double)e.bytes / fmax(cost_storage_rate(own->cost), 1) * 1e9;
    return event_add(x, e, ns, before, 1);
}

/* KV of a layer on its way from a file, once the layer before it in its room has been used. */
static struct home kv_run(struct stepping *x, int32_t d, const struct program_record *r)
{
    const struct simulation *s = x->s;
    struct kv_turns *kv = &x->kv[sim_rank_of(s, d) - s->rank];
    const struct oato_op *store = &s->graph.ops[r->graph_op].op;
    const struct event e = {
        .kind = EVENT_STREAM,
        .parts = 1,
        .op = (int32_t)r->graph_op,
        .bytes = (uint64_t)storage_kv_bytes(&s->graph, store, s->plan->request.kv, &x->step->size)};
    kv->turn = true;
    return file_run(x, d, e, &kv->used[kv->layers % KV_ROOMS]);
}

static struct home op_run(struct stepping *x, int32_t d, const struct program_record *r,
                          struct home *reads, int n)
{
    struct simulation *s = x->s;
    const struct sim_rank *own = sim_rank_of(s, d);
    struct kv_turns *kv = &x->kv[own - s->rank];
    const int32_t index = (int32_t)r->graph_op;
    const struct graph_op *o = &s->graph.ops[index];
    const struct placement *placed = &s->placements.phase[x->step->phase][index];
    const double share = placed_share(o, placed, r->part);
    const struct request_step *q = &x->step->size;
    const struct op_size size =
        graph_op_size(&s->graph, index, q->tokens, q->rows, q->seqs, q->kv_positions);
    struct part part = {.graph = &s->graph,
                        .index = index,
                        .op = o->op,
                        .device = s->device[d],
                        .share = share,
                        .active = cached_share(x, r, share),
                        .joins = joins(x, d, index),
                        .bare = on_shared_host(x, d)};
    part.op.sparse = r->op.sparse;
    const struct op_cost c = part_cost(own->cost, &part, q);
    const struct event e = {.kind = EVENT_RUN,
                            .device = (int16_t)d,
                            .estimate = c.estimate || r->parts > 1 || r->op.expert_slots,
                            .part = r->part,
                            .parts = r->parts,
                            .op = index,
                            .bytes =
                                size.rows ? (uint64_t)(op_bytes(&o->op, &size) * part.active) : 0};
    for (int i = 0; i < r->n_weights; i++)
        if (r->weight[i] != UINT32_MAX &&
            own->lowered.device[d - own->first].slots[r->weight[i]].streamed)
            reads[n++] = x->streamed[d][r->weight[i]];
    if (placed->part[r->part].filed)
        reads[n++] = kv_run(x, d, r);
    if (op_has_kv(&o->op))
        reads[n++] = x->history[d][r->kv_layer];
    const double ns = (part.bare ? rank_part_ns(x, d, c.ns, part.active) : c.ns) + unit_ns(x, d, r);
    const struct home done = event_add(x, e, ns, reads, n);
    if (kv->turn && o->op.kind == OP_ATTENTION && d == own->host) {
        kv->used[kv->layers++ % KV_ROOMS] = done;
        kv->turn = false;
    }
    return done;
}

/* What a device reads from a file: prepared weights. */
static uint64_t stored_bytes(const struct stepping *x, int32_t d, const struct program_record *r)
{
    const struct sim_rank *own = sim_rank_of(x->s, d);
    const struct graph_op *o = &x->s->graph.ops[r->graph_op];
    const struct placement *placed = &x->s->placements.phase[x->step->phase][r->graph_op];
    const uint64_t all =
        cost_prepared_bytes(own->cost, x->s->device[d], &o->op, problem_file_bytes(o));
    const double chosen = d == own->host ? storage_share(o, all, x->step->size.tokens) : 1;
    return (uint64_t)((double)all * placed_share(o, placed, r->part) * chosen);
}

/* What a layer of the host's KV had before the step, on its way to a room; in the first chunk of a
 * prompt nothing. */
static void history_run(struct stepping *x, int32_t d, const struct program_record *r)
{
    const struct simulation *s = x->s;
    const struct sim_rank *own = sim_rank_of(s, d);
    const struct kv_layer_shape *room = &own->lowered.device[d - own->first].kv_shapes[r->kv_layer];
    const struct oato_op store = {.kind = OP_KV_STORE,
                                  .kv_heads = room->kv_heads,
                                  .head_dim = room->head_dim,
                                  .v_dim = room->v_dim,
                                  .v_in_k = room->v_in_k,
                                  .window = room->window};
    const struct event e = {
        .kind = EVENT_STREAM,
        .device = (int16_t)d,
        .parts = 1,
        .op = (int32_t)r->graph_op,
        .bytes = (uint64_t)attend_bytes(&store, s->plan->request.kv, &x->step->size)};
    const struct home before = event_pass(x, d, NULL, 0);
    const double ns = cost_of_copy(own->cost, s->device[own->host], s->device[d], (double)e.bytes);
    x->history[d][r->kv_layer] = e.bytes ? event_add(x, e, fmax(ns, 0), &before, 1) : before;
}

/* The weights of a record that follows, on their way to their place. */
static void stream_run(struct stepping *x, int32_t d, const struct program_record *r)
{
    const struct sim_rank *own = sim_rank_of(x->s, d);
    const struct lowered_device *low = &own->lowered.device[d - own->first];
    struct event e = {.kind = EVENT_STREAM,
                      .device = (int16_t)d,
                      .part = r->part,
                      .parts = r->parts,
                      .op = (int32_t)r->graph_op};
    const bool stored = x->s->placements.phase[x->step->phase][r->graph_op].part[r->part].stored;
    if (!rows_of(x, r) && !stored)
        return;
    for (int i = 0; i < r->n_weights && !stored; i++)
        e.bytes += r->weight[i] != UINT32_MAX ? low->slots[r->weight[i]].bytes : 0;
    struct home done = event_pass(x, d, NULL, 0);
    if (stored) {
        e.bytes = stored_bytes(x, d, r);
        done = file_run(x, d, e, &done);
    }
    if (!device_of(x, d).is_host) {
        const int32_t from = x->s->device[own->host], to = x->s->device[d];
        const double ns = stored ? cost_of_copy(own->cost, from, to, (double)e.bytes)
                                 : cost_of_stream(own->cost, from, to, (double)e.bytes);
        done = event_add(x, e, fmax(ns, 0), &done, 1);
    }
    for (int i = 0; i < r->n_weights; i++)
        if (r->weight[i] != UINT32_MAX)
            x->streamed[d][r->weight[i]] = done;
}

static bool is_kv_copy(const struct program_record *r)
{
    return r->kind == RECORD_RUN && r->op.kind == OP_KV_COPY;
}

bool next_reads(const struct stepping *x, int32_t d, struct home reads[RECORD_WAITS])
{
    const struct program_record *r = &program_of(x, d)->records[x->next[d]];
    const int32_t first = sim_rank_of(x->s, d)->first;
    bool there = true;
    for (int i = 0; i < r->n_waits; i++) {
        reads[i] = x->signals[first + r->wait[i].device][r->wait[i].ordinal];
        there = there && reads[i].event >= 0;
    }
    return there;
}

void next_done(struct stepping *x, int32_t d, struct home done)
{
    const struct program_record *r = &program_of(x, d)->records[x->next[d]++];
    if (r->signal)
        x->signals[d][r->signal] = done;
}

/* Runs the device's next record; false when it waits for one that has not been run yet. */
static bool record_run(struct stepping *x, int32_t d)
{
    const struct program_record *r = &program_of(x, d)->records[x->next[d]];
    struct home reads[RECORD_WAITS + RECORD_WEIGHTS + 2], done = {0, -1};
    if (!next_reads(x, d, reads))
        return false;
    if (r->kind >= RECORD_REDUCE)
        return exchange_run(x, d);
    if (record_is_history(r))
        history_run(x, d, r);
    else if (r->kind == RECORD_STREAM)
        stream_run(x, d, r);
    else if (r->kind != RECORD_RUN)
        done = copy_run(x, d, r, reads, r->n_waits);
    else if (is_kv_copy(r)) /* measured as part of a step */
        done = event_pass(x, d, reads, r->n_waits);
    else if (r->graph_op == UINT32_MAX && makes_list(r))
        done = list_run(x, d, r, reads, r->n_waits);
    else if (r->graph_op == UINT32_MAX)
        done = merge_run(x, d, r, reads, r->n_waits);
    else
        done = op_run(x, d, r, reads, r->n_waits);
    next_done(x, d, done);
    return true;
}

/* ---------------------------------------------------------------------------------- steps --- */

static int32_t devices_of(const struct stepping *x)
{
    return x->s->alone ? x->s->rank->n_devices : x->s->plan->n_devices;
}

/* Every queue begins with what a step costs; the host's last, for it submits to the others. */
static void rank_begins(struct stepping *x, const struct sim_rank *own)
{
    struct home before = {0, -1};
    for (int turn = 0; turn < 2; turn++)
        for (int32_t d = own->first; d < own->first + own->n_devices; d++) {
            const struct lowered_program *p = program_of(x, d);
            const bool used = p->n_records > (p->n_records && is_kv_copy(p->records));
            if ((d == own->host) != (turn == 1) || (!used && d != own->host))
                continue;
            const struct event e = {.kind = EVENT_STEP, .device = (int16_t)d, .parts = 1, .op = -1};
            before = event_add(x, e, device_of(x, d).step_ns, &before, before.event >= 0);
        }
}

/* When it is done with the step before and, on another host, has heard of this one. */
static int64_t begin_of_rank(const struct stepping *x, const struct sim_rank *own)
{
    const struct rank_options *o = &x->s->options;
    const bool hears = x->s->alone || rank_host(o, (int32_t)(own - x->s->rank));
    const int64_t told_ns = x->step->begin_ns + whole_ns(hears ? rank_step_ns(o, 0, 0) : 0);
    return max_i64(own->free_ns, told_ns);
}

/* Until no queue gets any further. */
static void records_run(struct stepping *x)
{
    for (bool moved = true; moved && !failed(x);) {
        moved = false;
        for (int32_t d = 0; d < devices_of(x); d++)
            while (x->next[d] < program_of(x, d)->n_records && record_run(x, d))
                moved = true;
    }
    for (int32_t d = 0; d < devices_of(x) && !failed(x); d++)
        if (x->next[d] < program_of(x, d)->n_records)
            oato_fail(x->err, OATO_EFILE,
                      "%s waits for a record that is never run; run oato-plan again",
                      x->s->plan->devices[d].id);
}

static struct home *homes_alloc(size_t n)
{
    struct home *h = malloc(n * sizeof *h);
    for (size_t i = 0; h && i < n; i++)
        h[i] = (struct home){0, -1};
    return h;
}

static oato_status stepping_begin(struct stepping *x)
{
    struct simulation *s = x->s;
    for (int32_t r = 0; r < SIM_RANKS; r++) {
        x->cores[r] = (struct home){0, -1};
        x->has_cores[r] = -1;
        for (int i = 0; i < KV_ROOMS; i++)
            x->kv[r].used[i] = (struct home){0, -1};
    }
    for (int32_t d = 0; d < devices_of(x); d++) {
        const struct sim_rank *own = sim_rank_of(s, d);
        const struct lowered_device *low = &own->lowered.device[d - own->first];
        const size_t slots = low->n_slots;
        x->last[d] = -1;
        x->signals[d] = homes_alloc((size_t)program_of(x, d)->n_signals + 1);
        x->streamed[d] = homes_alloc(slots + 1);
        x->history[d] = homes_alloc((size_t)low->n_kv + 1);
        x->clock[d] = x->clock[d + s->plan->n_devices] = begin_of_rank(x, own);
        if (!x->signals[d] || !x->streamed[d] || !x->history[d])
            return oato_fail_memory(x->err, slots * sizeof(struct home), "a simulation");
    }
    return OATO_OK;
}

/* A rank goes on to its next step when all its queues are done. */
static void stepping_end(struct stepping *x)
{
    struct simulation *s = x->s;
    for (int32_t d = 0; d < devices_of(x); d++) {
        struct sim_rank *own = sim_rank_of(s, d);
        for (int q = 0; q < 2; q++)
            own->free_ns = max_i64(own->free_ns, x->clock[d + q * s->plan->n_devices]);
        free(x->signals[d]);
        free(x->streamed[d]);
        free(x->history[d]);
    }
}

oato_status simulate_step(struct simulation *s, struct simulated_step *step, struct oato_error *err)
{
    struct stepping *x = calloc(1, sizeof *x);
    if (!x)
        return oato_fail_memory(err, sizeof *x, "a simulation");
    x->s = s;
    x->step = step;
    x->err = err;
    err->status = OATO_OK;
    step->begin_ns = s->rank->free_ns;
    step->first = s->n_events;
    if (!stepping_begin(x)) {
        for (int32_t r = 0; r < (s->alone ? 1 : s->n_ranks); r++)
            rank_begins(x, &s->rank[r]);
        records_run(x);
    }
    stepping_end(x);
    step->n = s->n_events - step->first;
    step->end_ns = s->rank->free_ns;
    free(x);
    return err->status;
}
