/*
 * simulate_step.c - one step of a plan on a virtual clock: the same records that lowering makes for
 * the engine, each with its time from the profile.
 *
 *   - each device has a queue that runs its records in order; a record also waits for those of
 * other queues that it names
 *   - streamed weights and KV are copied by a separate copy engine, one after the other; a copy
 * begins when the records before it in the queue are done, and its reader waits for it; what is
 * streamed from a file comes from storage, which all devices share, also for records without rows,
 * for it is read in a circle; then, for an accelerator, it is copied
 *   - copies between devices of the host are free, as are copies and streams without rows in a step
 *   - the host submits to the accelerators, then runs its own queue
 *
 * Nothing here looks at what the planner predicted.
 */
#include "solver/report/report_internal.h"
#include "solver/simulation_internal.h"

#include <math.h>
#include <stdlib.h>

struct home { /* since when something can be read, and the event that made it; -1: none */
    int64_t ns;
    int32_t event;
};

struct stepping {
    struct simulation *s;
    const struct simulated_step *step;
    int64_t clock[SIM_QUEUES];            /* when the queue is free */
    int32_t last[SOLVER_DEVICES];         /* event of each device's own queue */
    struct home passed[SOLVER_DEVICES];   /* what records that took no time have waited for since */
    uint32_t next[SOLVER_DEVICES];        /* record of the program */
    struct home *signals[SOLVER_DEVICES]; /* by ordinal; event -1: still to come */
    struct home *streamed[SOLVER_DEVICES]; /* by weight slot */
    struct home *history[SOLVER_DEVICES];  /* by KV layer: what was copied to a room */
    struct home kv_used[KV_ROOMS];         /* the layer before in each room of KV in a file */
    int32_t kv_layers;                     /* so far in turn */
    bool kv_turn;                          /* one of them is there */
    struct oato_error *err;
};

static bool failed(const struct stepping *x)
{
    return x->err->status != OATO_OK;
}

static const struct profile_device *device_of(const struct stepping *x, int32_t d)
{
    return &x->s->profile->devices[x->s->device[d]];
}

static const struct lowered_program *program_of(const struct stepping *x, int32_t d)
{
    return &x->s->lowered.device[d].phase[x->step->phase];
}

static void wait_for(struct event *e, const struct home *read)
{
    if (read->event < 0 || read->ns <= e->begin_ns)
        return;
    e->begin_ns = read->ns;
    e->waited_for = read->event;
}

/* Takes so long on its queue, as soon as that is free and all that it reads is there. */
static struct home event_add(struct stepping *x, struct event e, double ns,
                             const struct home *reads, int n)
{
    struct simulation *s = x->s;
    const struct home none = {0, -1};
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
    e.wait_ns = e.begin_ns - x->clock[queue];
    e.end_ns = ns_add(e.begin_ns, whole_ns(ns));
    x->clock[queue] = e.end_ns;
    s->events[s->n_events] = e;
    if (e.kind != EVENT_STREAM)
        x->last[e.device] = s->n_events;
    return (struct home){e.end_ns, s->n_events++};
}

/* Takes no time: what waits for it waits for all before it, as does the next record that takes
 * some.
 */
static struct home pass(struct stepping *x, int32_t d, const struct home *reads, int n)
{
    struct home *passed = &x->passed[d];
    for (int i = 0; i < n; i++)
        if (reads[i].ns > passed->ns)
            *passed = reads[i];
    return passed->ns > x->clock[d] ? *passed : (struct home){x->clock[d], x->last[d]};
}

static int32_t rows_of(const struct stepping *x, const struct program_record *r)
{
    return r->rows != ROWS_TOKENS ? x->step->size.rows : x->step->size.tokens;
}

/* ------------------------------------------------------------------------------- records --- */

static struct home copy_run(struct stepping *x, int32_t d, const struct program_record *r,
                            const struct home *reads, int n)
{
    const int32_t host = x->s->host;
    const int32_t from = r->kind == RECORD_UPLOAD ? host : r->kind == RECORD_PEER ? r->peer : d;
    const int32_t to = r->kind == RECORD_DOWNLOAD ? host : d;
    if (device_of(x, d)->is_host || !rows_of(x, r))
        return pass(x, d, reads, n);
    const struct event e = {.kind = r->kind == RECORD_UPLOAD     ? EVENT_UPLOAD
                                    : r->kind == RECORD_DOWNLOAD ? EVENT_DOWNLOAD
                                                                 : EVENT_PEER,
                            .device = (int16_t)d,
                            .part = r->part,
                            .parts = r->parts,
                            .op = x->s->graph.values[r->value].producer,
                            .bytes = (uint64_t)rows_of(x, r) * (uint64_t)r->in_width[0] * 4};
    const double ns =
        cost_of_copy(x->s->cost, x->s->device[from], x->s->device[to], (double)e.bytes);
    return event_add(x, e, fmax(ns, 0) + device_of(x, d)->record_overhead_ns, reads, n);
}

/* A record of its own where it was measured, else as many additions; of columns that are cut out,
 * one. */
static struct op_cost cost_of_merge(const struct stepping *x, int32_t d,
                                    const struct program_record *r)
{
    const struct op_size size = {.rows = rows_of(x, r), .seqs = 1};
    if (cost_measured(x->s->cost, x->s->device[d], &r->op))
        return cost_of_op(x->s->cost, x->s->device[d], &r->op, &size);
    const struct oato_op add = {.kind = OP_ADD, .dtype = DT_F32, .k = r->op.n, .n = r->op.n};
    struct op_cost c = cost_of_op(x->s->cost, x->s->device[d], &add, &size);
    c.ns *= r->n_in > 1 ? r->n_in - 1 : 1;
    c.estimate = true;
    return c;
}

static struct home merge_run(struct stepping *x, int32_t d, const struct program_record *r,
                             const struct home *reads, int n)
{
    const struct op_cost c = cost_of_merge(x, d, r);
    const struct event e = {.kind = EVENT_MERGE,
                            .device = (int16_t)d,
                            .parts = 1,
                            .op = x->s->graph.values[r->value].producer,
                            .estimate = c.estimate};
    return event_add(x, e, c.ns + device_of(x, d)->record_overhead_ns, reads, n);
}

/* One of those that find out which neurons an operator computes. */
static bool makes_list(const struct program_record *r)
{
    return r->op.kind == OP_MUL_MAT || r->op.kind == OP_ACTIVATE || r->op.kind == OP_SIGNS ||
           r->op.kind == OP_ACTIVE;
}

static struct home list_run(struct stepping *x, int32_t d, const struct program_record *r,
                            const struct home *reads, int n)
{
    const struct op_size size = {.rows = rows_of(x, r), .seqs = 1};
    const struct op_cost c = cost_of_op(x->s->cost, x->s->device[d], &r->op, &size);
    const struct event e = {.kind = EVENT_RUN,
                            .device = (int16_t)d,
                            .parts = 1,
                            .op = x->s->graph.values[r->value].producer,
                            .estimate = c.estimate,
                            .bytes = size.rows ? (uint64_t)op_bytes(&r->op, &size) : 0};
    return event_add(x, e, c.ns + device_of(x, d)->record_overhead_ns, reads, n);
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
    if (silent->share > 0 && r->op.sparse && !(silent->guess && r->op.sparse != SKIP_UNLISTED))
        return share * sparse_active(true, 1 - silent->share, x->step->size.tokens);
    if (first < 0)
        return share;
    const struct neurons_layer *l = neurons_layer(x->s->plan->neurons, g->ops[index].layer);
    const struct oato_op *op = &g->ops[first].op;
    const bool experts = op->kind == OP_EXPERT_GATE_UP, whole = share >= 1;
    const float *freq = !l ? NULL : experts ? l->exp_freq : l->ffn_freq;
    const int32_t *order = !l ? NULL : experts ? l->exp_order : l->ffn_order;
    const int64_t end = whole ? (experts ? op->experts : op->n) : part->end;
    const double all = experts ? fmax(op_experts_read(op, x->step->size.tokens), 1e-9) : op->n;
    const int32_t tokens = x->step->size.tokens;
    const bool skips = r->op.sparse && r->op.threshold >= 0;
    const struct plan *plan = x->s->plan;
    const int32_t layer = g->ops[index].layer;
    const double rate =
        sparse_rate(plan_skips(plan->sparse, plan->n_sparse, layer), plan->neurons, layer);
    const struct plan_sparse *guess =
        r->op.sparse == SKIP_UNLISTED ? plan_skips(plan->sparse, plan->n_sparse, layer) : NULL;
    double sum = 0;
    for (int64_t i = whole ? 0 : part->begin; i < end && freq && order; i++) {
        const double once = fmin(freq[order[i]] * rate, 1);
        sum += !experts      ? sparse_active(skips, once, tokens)
               : tokens == 1 ? once
                             : 1 - pow(1 - once, tokens);
    }
    if (!freq || !order)
        return share;
    return guess ? fmin(sum / all * guess_work(guess, plan->neurons, op), share) : sum / all;
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

/* Whole on this device in this phase, as are the operators from `first` on before it. */
static bool stand_together(const struct stepping *x, int32_t d, int32_t first, int32_t last)
{
    const struct placement *placed = x->s->placements.phase[x->step->phase];
    bool together = true;
    for (int32_t i = first; i <= last && together; i++)
        together = placed[i].n == 1 && placed[i].part[0].device == d;
    return together;
}

/* Bytes on their way from storage, once `before` is done. */
static struct home file_run(struct stepping *x, struct event e, const struct home *before)
{
    e.device = (int16_t)x->s->host;
    const double ns = (double)e.bytes / fmax(profile_storage_rate(x->s->profile), 1) * 1e9;
    return event_add(x, e, ns, before, 1);
}

/* KV of a layer on its way from a file, once the layer before it in its room has been used. */
static struct home kv_run(struct stepping *x, const struct program_record *r)
{
    const struct simulation *s = x->s;
    const struct oato_op *store = &s->graph.ops[r->graph_op].op;
    const struct event e = {
        .kind = EVENT_STREAM,
        .parts = 1,
        .op = (int32_t)r->graph_op,
        .bytes = (uint64_t)storage_kv_bytes(&s->graph, store, s->plan->request.kv, &x->step->size)};
    x->kv_turn = true;
    return file_run(x, e, &x->kv_used[x->kv_layers % KV_ROOMS]);
}

static struct home op_run(struct stepping *x, int32_t d, const struct program_record *r,
                          struct home *reads, int n)
{
    struct simulation *s = x->s;
    const int32_t index = (int32_t)r->graph_op;
    const struct graph_op *o = &s->graph.ops[index];
    const struct placement *placed = &s->placements.phase[x->step->phase][index];
    const double share = placed_share(o, placed, r->part);
    const double active = cached_share(x, r, share);
    const struct request_step *q = &x->step->size;
    const struct op_size size =
        graph_op_size(&s->graph, index, q->tokens, q->rows, q->seqs, q->kv_positions);
    struct oato_op op = o->op;
    op.sparse = r->op.sparse;
    struct op_cost c = r->op.sparse ? sparse_cost(s->cost, s->device[d], &op, &size, share, active)
                                    : cost_of_op(s->cost, s->device[d], &op, &size);
    c.ns *= r->op.sparse ? 1 : active;
    int32_t first;
    const double saved = cost_of_join(s->cost, s->device[d], &s->graph, index, q->tokens, &first);
    if (saved > 0 && stand_together(x, d, first, index))
        c.ns = fmax(c.ns - saved * active, 0);
    const struct event e = {.kind = EVENT_RUN,
                            .device = (int16_t)d,
                            .estimate = c.estimate || r->parts > 1 || r->op.expert_slots,
                            .part = r->part,
                            .parts = r->parts,
                            .op = index,
                            .bytes = size.rows ? (uint64_t)(op_bytes(&o->op, &size) * active) : 0};
    for (int i = 0; i < r->n_weights; i++)
        if (r->weight[i] != UINT32_MAX && s->lowered.device[d].slots[r->weight[i]].streamed)
            reads[n++] = x->streamed[d][r->weight[i]];
    if (placed->part[r->part].filed)
        reads[n++] = kv_run(x, r);
    if (op_has_kv(&o->op))
        reads[n++] = x->history[d][r->kv_layer];
    const struct home done = event_add(x, e, c.ns + device_of(x, d)->record_overhead_ns, reads, n);
    if (x->kv_turn && op.kind == OP_ATTENTION && d == s->host) {
        x->kv_used[x->kv_layers++ % KV_ROOMS] = done;
        x->kv_turn = false;
    }
    return done;
}

/* What a device reads from a file: prepared weights. */
static uint64_t stored_bytes(const struct stepping *x, int32_t d, const struct program_record *r)
{
    const struct graph_op *o = &x->s->graph.ops[r->graph_op];
    const struct placement *placed = &x->s->placements.phase[x->step->phase][r->graph_op];
    const uint64_t all =
        cost_prepared_bytes(x->s->cost, x->s->device[d], &o->op, problem_file_bytes(o));
    const double chosen = d == x->s->host ? storage_share(o, all, x->step->size.tokens) : 1;
    return (uint64_t)((double)all * placed_share(o, placed, r->part) * chosen);
}

/* What a layer of the host's KV had before the step, on its way to a room; in the first chunk of a
 * prompt nothing. */
static void history_run(struct stepping *x, int32_t d, const struct program_record *r)
{
    const struct simulation *s = x->s;
    const struct kv_layer_shape *room = &s->lowered.device[d].kv_shapes[r->kv_layer];
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
    const struct home before = pass(x, d, NULL, 0);
    const double ns = cost_of_copy(s->cost, s->device[s->host], s->device[d], (double)e.bytes);
    x->history[d][r->kv_layer] = e.bytes ? event_add(x, e, fmax(ns, 0), &before, 1) : before;
}

/* The weights of a record that follows, on their way to their place. */
static void stream_run(struct stepping *x, int32_t d, const struct program_record *r)
{
    const struct lowered_device *low = &x->s->lowered.device[d];
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
    struct home done = pass(x, d, NULL, 0);
    if (stored) {
        e.bytes = stored_bytes(x, d, r);
        done = file_run(x, e, &done);
    }
    if (!device_of(x, d)->is_host) {
        const int32_t from = x->s->device[x->s->host], to = x->s->device[d];
        const double ns = stored ? cost_of_copy(x->s->cost, from, to, (double)e.bytes)
                                 : cost_of_stream(x->s->cost, from, to, (double)e.bytes);
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

/* Runs the device's next record; false when it waits for one that has not been run yet. */
static bool record_run(struct stepping *x, int32_t d)
{
    const struct program_record *r = &program_of(x, d)->records[x->next[d]];
    struct home reads[RECORD_WAITS + RECORD_WEIGHTS + 2], done = {0, -1};
    for (int i = 0; i < r->n_waits; i++) {
        reads[i] = x->signals[r->wait[i].device][r->wait[i].ordinal];
        if (reads[i].event < 0)
            return false;
    }
    if (record_is_history(r))
        history_run(x, d, r);
    else if (r->kind == RECORD_STREAM)
        stream_run(x, d, r);
    else if (r->kind != RECORD_RUN)
        done = copy_run(x, d, r, reads, r->n_waits);
    else if (is_kv_copy(r)) /* measured as part of a step */
        done = pass(x, d, reads, r->n_waits);
    else if (r->graph_op == UINT32_MAX && makes_list(r))
        done = list_run(x, d, r, reads, r->n_waits);
    else if (r->graph_op == UINT32_MAX)
        done = merge_run(x, d, r, reads, r->n_waits);
    else
        done = op_run(x, d, r, reads, r->n_waits);
    if (r->signal)
        x->signals[d][r->signal] = done;
    x->next[d]++;
    return true;
}

/* ---------------------------------------------------------------------------------- steps --- */

/* Every queue begins with what a step costs; the host's last, for it submits to the others. */
static void steps_begin(struct stepping *x)
{
    struct home before = {0, -1};
    for (int pass = 0; pass < 2; pass++)
        for (int32_t d = 0; d < x->s->plan->n_devices; d++) {
            const struct lowered_program *p = program_of(x, d);
            const bool used = p->n_records > (p->n_records && is_kv_copy(p->records));
            if ((d == x->s->host) != (pass == 1) || (!used && d != x->s->host))
                continue;
            const struct event e = {.kind = EVENT_STEP, .device = (int16_t)d, .parts = 1, .op = -1};
            before = event_add(x, e, device_of(x, d)->step_overhead_ns, &before, before.event >= 0);
        }
}

/* Until no queue gets any further. */
static void records_run(struct stepping *x)
{
    for (bool moved = true; moved && !failed(x);) {
        moved = false;
        for (int32_t d = 0; d < x->s->plan->n_devices; d++)
            while (x->next[d] < program_of(x, d)->n_records && record_run(x, d))
                moved = true;
    }
    for (int32_t d = 0; d < x->s->plan->n_devices && !failed(x); d++)
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

oato_status simulate_step(struct simulation *s, struct simulated_step *step, int64_t begin_ns,
                          struct oato_error *err)
{
    struct stepping x = {.s = s, .step = step, .err = err};
    for (int i = 0; i < KV_ROOMS; i++)
        x.kv_used[i] = (struct home){0, -1};
    err->status = OATO_OK;
    for (int32_t d = 0; d < s->plan->n_devices; d++) {
        x.last[d] = -1;
        x.signals[d] = homes_alloc((size_t)program_of(&x, d)->n_signals + 1);
        x.streamed[d] = homes_alloc((size_t)s->lowered.device[d].n_slots + 1);
        x.history[d] = homes_alloc((size_t)s->lowered.device[d].n_kv + 1);
        if (!x.signals[d] || !x.streamed[d] || !x.history[d])
            oato_fail_memory(err, s->lowered.device[d].n_slots * sizeof(struct home),
                             "a simulation");
    }
    for (int32_t q = 0; q < SIM_QUEUES; q++)
        x.clock[q] = begin_ns;
    step->begin_ns = step->end_ns = begin_ns;
    step->first = s->n_events;
    steps_begin(&x);
    records_run(&x);
    step->n = s->n_events - step->first;
    for (int32_t q = 0; q < SIM_QUEUES; q++)
        step->end_ns = max_i64(step->end_ns, x.clock[q]);
    for (int32_t d = 0; d < s->plan->n_devices; d++) {
        free(x.signals[d]);
        free(x.streamed[d]);
        free(x.history[d]);
    }
    return err->status;
}
