/*
 * simulate_step.c - one step of a plan on a virtual clock, record by record, as the executor would
 * run it (executor/lower.c makes the same records in the same order):
 *
 *   - each device has a queue that runs its records in order; an operator part is a record of its
 *     device's, and waits for the events of other queues that made what it reads
 *   - a value, or a part of one, that another device reads is copied there once, by the
 *     accelerator's queue; accelerators meet in host memory, but where the profile has a link
 *     between them; what the parts of an operator read is sent before any of them computes
 *   - a value in parts is put together, or summed, on each device that reads all of it
 *   - weights that are streamed come by a copy engine of their own, one after the other, to places
 *     in a staging room: a copy begins when what lay there has been read
 *   - the host submits to the accelerators, then runs its own queue
 *
 * A queue's records follow each other in the order in which they are made, and wait only for
 * records that were made before them. So each can be given its time as soon as it is made, and no
 * list of pending events is kept. Nothing here looks at what the planner predicted.
 */
#include "solver/report_internal.h"
#include "solver/simulate_internal.h"

#include "kernels/program.h"

#include <math.h>
#include <stdlib.h>

struct home { /* where and since when something can be read on a device */
    int64_t ns;
    int32_t event; /* that put it there; -1: it is not there */
};

enum value_parts { /* as the executor has them: side by side, added, or what some experts made */
                   PARTS_COLUMNS,
                   PARTS_SUMMANDS,
                   PARTS_EXPERTS,
};

struct sim_value {
    int32_t n_parts;
    enum value_parts parts;
    int32_t device[SIM_PARTS], width[SIM_PARTS];
    int64_t begin[SIM_PARTS], end[SIM_PARTS];
    struct home part[SIM_PARTS][SOLVER_DEVICES], merged[SOLVER_DEVICES];
};

struct stepping {
    struct simulation *s;
    const struct simulated_step *step;
    struct sim_value *values;
    int64_t clock[SIM_QUEUES]; /* when the queue is free */
    struct staging staging[SOLVER_DEVICES];
    struct home begun[SOLVER_DEVICES];               /* the step, */
    struct home read[SOLVER_DEVICES][STAGING_AHEAD]; /* the last pieces in the staging room */
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

/* ------------------------------------------------------------------------------- records --- */

/* Runs the record e for so long, as soon as its queue is free and it can read all it needs. */
static struct home record_run(struct stepping *x, struct event e, double ns,
                              const struct home *reads, int n)
{
    struct simulation *s = x->s;
    const struct home none = {0, -1};
    const int32_t queue = event_queue(s, &e);
    if (failed(x))
        return none;
    if (s->n_events == s->cap_events) {
        int32_t cap = s->cap_events ? 2 * s->cap_events : 1024;
        struct event *p = realloc(s->events, (size_t)cap * sizeof *p);
        if (!p) {
            oato_fail_memory(x->err, (size_t)cap * sizeof *p, "a simulation");
            return none;
        }
        s->events = p;
        s->cap_events = cap;
    }
    e.begin_ns = x->clock[queue];
    e.waited_for = -1;
    for (int i = 0; i < n; i++) {
        if (reads[i].event < 0 || reads[i].ns <= e.begin_ns)
            continue;
        e.begin_ns = reads[i].ns;
        e.waited_for = reads[i].event;
    }
    e.wait_ns = e.begin_ns - x->clock[queue];
    e.end_ns = ns_add(e.begin_ns, whole_ns(ns));
    x->clock[queue] = e.end_ns;
    s->events[s->n_events] = e;
    return (struct home){e.end_ns, s->n_events++};
}

static int32_t rows_of(const struct stepping *x, int32_t value)
{
    const bool logits = x->s->graph.values[value].rows == ROWS_LOGITS;
    return logits ? x->step->size.rows : x->step->size.tokens;
}

/* -------------------------------------------------------------------------------- copies --- */

/* Between the host and an accelerator, whose queue does it, or to an accelerator from one that it
 * reaches; free between devices of the host. */
static struct home copy(struct stepping *x, int32_t value, int32_t part, struct home from,
                        int32_t from_device, int32_t to)
{
    const struct sim_value *v = &x->values[value];
    const bool up = device_of(x, from_device)->is_host, down = device_of(x, to)->is_host;
    const int32_t worker = down ? from_device : to;
    if (device_of(x, worker)->is_host || !rows_of(x, value))
        return from;
    const struct event e = {.kind = up     ? EVENT_UPLOAD
                                    : down ? EVENT_DOWNLOAD
                                           : EVENT_PEER,
                            .device = (int16_t)worker,
                            .part = (int16_t)part,
                            .parts = (int16_t)v->n_parts,
                            .op = x->s->graph.values[value].producer,
                            .bytes = (uint64_t)rows_of(x, value) * (uint64_t)v->width[part] * 4};
    double ns =
        cost_of_copy(x->s->cost, x->s->device[from_device], x->s->device[to], (double)e.bytes);
    return record_run(x, e, fmax(ns, 0) + device_of(x, worker)->record_overhead_ns, &from, 1);
}

static struct home part_read(struct stepping *x, int32_t value, int32_t part, int32_t device)
{
    struct sim_value *v = &x->values[value];
    const int32_t made = v->device[part], host = x->s->host;
    if (v->part[part][device].event >= 0 || failed(x))
        return v->part[part][device];
    struct home source = v->part[part][made];
    int32_t from = made;
    if (!device_of(x, made)->is_host && !device_of(x, device)->is_host &&
        cost_of_copy(x->s->cost, x->s->device[made], x->s->device[device], 0) < 0) {
        source = part_read(x, value, part, host);
        from = host;
    }
    v->part[part][device] = copy(x, value, part, source, from, device);
    return v->part[part][device];
}

/* A record of its own where it was measured, else as many additions. */
static struct op_cost cost_of_merge(const struct stepping *x, int32_t value, int32_t device)
{
    const struct sim_value *v = &x->values[value];
    const int32_t width = x->s->graph.values[value].width;
    const struct op_size size = {.rows = rows_of(x, value), .seqs = 1};
    struct oato_op op = {.kind = v->parts == PARTS_SUMMANDS ? OP_MERGE_SUM : OP_MERGE,
                         .dtype = DT_F32,
                         .k = width,
                         .n = width};
    if (v->parts == PARTS_SUMMANDS)
        op.k *= v->n_parts;
    if (cost_measured(x->s->cost, x->s->device[device], &op))
        return cost_of_op(x->s->cost, x->s->device[device], &op, &size);
    op = (struct oato_op){.kind = OP_ADD, .dtype = DT_F32, .k = width, .n = width};
    struct op_cost c = cost_of_op(x->s->cost, x->s->device[device], &op, &size);
    c.ns *= v->n_parts - 1;
    c.estimate = true;
    return c;
}

static struct home merge(struct stepping *x, int32_t value, int32_t device)
{
    const struct sim_value *v = &x->values[value];
    struct home parts[SIM_PARTS];
    for (int32_t i = 0; i < v->n_parts; i++)
        parts[i] = part_read(x, value, i, device);
    const struct op_cost c = cost_of_merge(x, value, device);
    const struct event e = {.kind = EVENT_MERGE,
                            .device = (int16_t)device,
                            .parts = 1,
                            .op = x->s->graph.values[value].producer,
                            .estimate = c.estimate};
    return record_run(x, e, c.ns + device_of(x, device)->record_overhead_ns, parts, v->n_parts);
}

/* The whole value on a device. */
static struct home value_read(struct stepping *x, int32_t value, int32_t device)
{
    struct sim_value *v = &x->values[value];
    if (v->n_parts == 1)
        return part_read(x, value, 0, device);
    if (v->merged[device].event < 0)
        v->merged[device] = merge(x, value, device);
    return v->merged[device];
}

/* The part of a value that only a part of its reader wants; -1: it wants all. */
static int32_t own_part(const struct sim_value *v, const struct graph_op *o,
                        const struct plan_part *part)
{
    const bool columns = part && part->axis == AXIS_K && v->parts == PARTS_COLUMNS,
               experts = part && part->axis == AXIS_EXPERTS && v->parts == PARTS_EXPERTS &&
                         o->op.kind == OP_EXPERT_DOWN;
    for (int32_t i = 0; (columns || experts) && v->n_parts > 1 && i < v->n_parts; i++)
        if (v->begin[i] == part->begin && v->end[i] == part->end)
            return i;
    return -1;
}

/* What an operator, or a part of one, reads on its device. Returns how many. */
static int inputs_read(struct stepping *x, const struct graph_op *o, const struct plan_part *part,
                       struct home *reads)
{
    const int32_t d = part ? part->device : x->s->host;
    for (int32_t i = 0; i < o->n_in; i++) {
        const int32_t own = own_part(&x->values[o->in[i]], o, part);
        reads[i] = own < 0 ? value_read(x, o->in[i], d) : part_read(x, o->in[i], own, d);
    }
    return o->n_in;
}

/* ----------------------------------------------------------------------------- operators --- */

/* Of a part of an operator, in the file. */
static uint64_t stream_bytes(const struct graph_op *o, const struct plan_part *part)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < o->n_weights; i++)
        bytes += o->weight[i] ? o->weight[i]->bytes : 0;
    return (uint64_t)((double)bytes * part_share(o, part));
}

/* The weights of a record on their way to their place. */
static struct home stream(struct stepping *x, const struct plan_part *part,
                          const struct event *reader)
{
    const int32_t d = reader->device;
    struct event e = *reader;
    uint64_t after;
    e.kind = EVENT_STREAM;
    e.bytes = stream_bytes(&x->s->graph.ops[reader->op], part);
    staging_place(&x->staging[d], e.bytes, &after);
    const struct home free = after ? x->read[d][(after - 1) % STAGING_AHEAD] : x->begun[d];
    double ns =
        cost_of_stream(x->s->cost, x->s->device[x->s->host], x->s->device[d], (double)e.bytes);
    return record_run(x, e, fmax(ns, 0), &free, 1);
}

/* The share of a whole, dense operator that a part does in this step: of neurons and experts what
 * the sidecar expects to be active, as the planner has it. */
static double active_share(const struct stepping *x, int32_t index, const struct plan_part *part)
{
    const struct graph *g = &x->s->graph;
    const struct neurons *neurons = x->s->plan->neurons;
    const int32_t first = index && divide_pair(g, index - 1) ? index - 1 : index;
    const double share = part ? part_share(&g->ops[index], part) : 1;
    if (!neurons || (first == index && !divide_pair(g, index)))
        return share;
    const struct neurons_layer *l = neurons_layer(neurons, g->ops[index].layer);
    const struct oato_op *op = &g->ops[first].op;
    const bool experts = op->kind == OP_EXPERT_GATE_UP, whole = !part || share >= 1;
    const float *freq = !l ? NULL : experts ? l->exp_freq : l->ffn_freq;
    const int32_t *order = !l ? NULL : experts ? l->exp_order : l->ffn_order;
    const int64_t end = whole ? (experts ? op->experts : op->n) : part->end;
    const double all = experts ? fmax(op_experts_read(op, x->step->size.tokens), 1e-9) : op->n;
    const int32_t tokens = x->step->size.tokens;
    double sum = 0;
    for (int64_t i = whole ? 0 : part->begin; i < end && freq && order; i++) {
        const double once = fmin(freq[order[i]], 1);
        sum += tokens == 1 ? once : 1 - pow(1 - once, tokens);
    }
    return freq && order ? sum / all : share;
}

static struct home part_run(struct stepping *x, int32_t index, const struct plan_part *part,
                            int32_t number, int32_t parts)
{
    struct simulation *s = x->s;
    const struct graph_op *o = &s->graph.ops[index];
    const int32_t d = part ? part->device : s->host;
    const double active = active_share(x, index, part);
    const struct request_step *q = &x->step->size;
    const struct op_size size =
        graph_op_size(&s->graph, index, q->tokens, q->rows, q->seqs, q->kv_positions);
    struct home reads[GRAPH_INPUTS + 1];
    int n = inputs_read(x, o, part, reads);
    const struct op_cost c = cost_of_op(s->cost, s->device[d], &o->op, &size);
    struct event e = {.kind = EVENT_RUN,
                      .device = (int16_t)d,
                      .estimate = c.estimate || parts > 1,
                      .part = (int16_t)number,
                      .parts = (int16_t)parts,
                      .op = index,
                      .bytes = size.rows ? (uint64_t)(op_bytes(&o->op, &size) * active) : 0};
    const bool streams = part && part->home != part->device && size.rows > 0;
    if (streams)
        reads[n++] = stream(x, part, &e);
    const double ns = c.ns * active + device_of(x, d)->record_overhead_ns;
    const struct home done = record_run(x, e, ns, reads, n);
    if (streams)
        x->read[d][(x->staging[d].placed - 1) % STAGING_AHEAD] = done;
    return done;
}

static enum value_parts parts_made(const struct graph_op *o, const struct plan_part *part)
{
    if (part && part->axis == AXIS_EXPERTS && o->op.kind == OP_EXPERT_GATE_UP)
        return PARTS_EXPERTS;
    return part && (part->axis == AXIS_K || part->axis == AXIS_EXPERTS) ? PARTS_SUMMANDS
                                                                        : PARTS_COLUMNS;
}

static void op_run(struct stepping *x, int32_t index)
{
    const struct graph *g = &x->s->graph;
    const struct sim_placement *place = &x->s->placement[x->step->phase][index];
    const struct graph_op *o = &g->ops[index];
    struct home reads[GRAPH_INPUTS + 1];
    for (int32_t i = 0; i < place->n && place->n > 1; i++)
        inputs_read(x, o, place->part[i], reads); /* sent before any part computes */
    for (int32_t i = 0; i < (place->n ? place->n : 1) && !failed(x); i++) {
        const struct plan_part *part = place->n ? place->part[i] : NULL;
        const int32_t d = part ? part->device : x->s->host;
        const struct home done = part_run(x, index, part, i, place->n ? place->n : 1);
        for (int32_t j = 0; j < o->n_out; j++) {
            struct sim_value *v = &x->values[o->out[j]];
            const int32_t p = v->n_parts++, width = g->values[o->out[j]].width;
            v->parts = parts_made(o, part);
            v->device[p] = d;
            v->begin[p] = part ? part->begin : 0;
            v->end[p] = part ? part->end : width;
            v->width[p] = place->n > 1 && v->parts == PARTS_COLUMNS
                              ? (int32_t)(width * part_share(o, part))
                              : width;
            v->part[p][d] = done;
        }
    }
}

/* ---------------------------------------------------------------------------------- steps --- */

/* Which devices have records in the phase, and how much of what is streamed to them is one piece.
 */
static void find_used(struct stepping *x, bool *used)
{
    used[x->s->host] = true;
    for (int32_t i = 0; i < x->s->graph.n_ops; i++) {
        const struct sim_placement *place = &x->s->placement[x->step->phase][i];
        for (int32_t k = 0; k < place->n; k++) {
            const struct plan_part *part = place->part[k];
            const uint64_t bytes = stream_bytes(&x->s->graph.ops[i], part);
            struct staging *room = &x->staging[part->device];
            used[part->device] = true;
            if (part->home != part->device && bytes > room->half)
                room->half = bytes;
        }
    }
}

/* Every queue begins with what a step costs; the host's last, for it submits to the others. */
static void steps_begin(struct stepping *x)
{
    bool used[SOLVER_DEVICES] = {false};
    struct home before = {0, -1};
    find_used(x, used);
    for (int pass = 0; pass < 2; pass++)
        for (int32_t d = 0; d < x->s->plan->n_devices; d++) {
            if (!used[d] || (d == x->s->host) != (pass == 1))
                continue;
            const struct event e = {.kind = EVENT_STEP, .device = (int16_t)d, .parts = 1, .op = -1};
            before =
                record_run(x, e, device_of(x, d)->step_overhead_ns, &before, before.event >= 0);
            x->begun[d] = before;
        }
}

static void values_init(struct stepping *x)
{
    for (int32_t v = 0; v < x->s->graph.n_values; v++)
        for (int32_t d = 0; d < SOLVER_DEVICES; d++) {
            x->values[v].merged[d].event = -1;
            for (int32_t p = 0; p < SIM_PARTS; p++)
                x->values[v].part[p][d].event = -1;
        }
}

oato_status simulate_step(struct simulation *s, struct simulated_step *step, int64_t begin_ns,
                          struct oato_error *err)
{
    struct stepping x = {.s = s, .step = step, .err = err};
    err->status = OATO_OK;
    x.values = calloc((size_t)s->graph.n_values + 1, sizeof *x.values);
    if (!x.values)
        return oato_fail_memory(err, (size_t)s->graph.n_values * sizeof *x.values, "a simulation");
    values_init(&x);
    for (int32_t q = 0; q < SIM_QUEUES; q++)
        x.clock[q] = begin_ns;
    step->begin_ns = step->end_ns = begin_ns;
    step->first = s->n_events;
    steps_begin(&x);
    for (int32_t i = 0; i < s->graph.n_ops && !failed(&x); i++)
        op_run(&x, i);
    if (!failed(&x))
        value_read(&x, s->graph.logits, s->host);
    step->n = s->n_events - step->first;
    for (int32_t q = 0; q < SIM_QUEUES; q++)
        step->end_ns = max_i64(step->end_ns, x.clock[q]);
    free(x.values);
    return err->status;
}
