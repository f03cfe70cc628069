/*
 * lower.c - compiles graph + placement of one phase into a flat program per device.
 *
 * The graph is walked once in order. Every operator part becomes a record on its device's queue;
 * a value that another device reads is copied there once, by an upload or download record on the
 * accelerator's queue; row parts are put together, and K parts and what some experts gave summed,
 * by a merge record where the whole is read. A part along K reads the row part of its input that it
 * was cut to fit, experts read what the same experts made.
 * What a record must wait for is tracked as vector clocks (per record: the last record of every
 * other queue that is known complete), which drop waits that follow from others and later tell
 * arena.c which buffers may share memory.
 */
#include "executor/lower_internal.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------- records and waits */

static struct lowered *record_add(struct lowering *l, int32_t device, enum record_kind kind)
{
    struct queue *q = &l->queue[device];
    if (q->n == q->cap) {
        int32_t cap = q->cap ? q->cap * 2 : 256;
        struct lowered *p = realloc(q->records, (size_t)cap * sizeof *p);
        if (!p) {
            oato_fail_memory(l->err, (size_t)cap * sizeof *p, "a program");
            return NULL;
        }
        q->records = p;
        q->cap = cap;
    }
    struct lowered *r = &q->records[q->n++];
    memset(r, 0, sizeof *r);
    r->record.kind = (uint8_t)kind;
    r->record.kv_layer = -1;
    r->record.graph_op = r->record.value = UINT32_MAX;
    for (int i = 0; i < RECORD_WEIGHTS; i++)
        r->record.weight[i] = UINT32_MAX;
    return r;
}

/* The record may start only when record `on` of another queue is complete. */
static void record_wait(struct lowering *l, int32_t device, struct lowered *r, int32_t other,
                        int32_t on)
{
    struct queue *q = &l->queue[device];
    if (other == device || q->known[other] >= on)
        return;
    struct lowered *awaited = &l->queue[other].records[on];
    awaited->signals = true;
    int i = 0;
    while (i < r->record.n_waits && r->wait_device[i] != other)
        i++;
    r->wait_device[i] = other;
    r->wait_record[i] = on;
    if (i == r->record.n_waits)
        r->record.n_waits++;
    for (int d = 0; d < DEVICES_MAX; d++)
        if (awaited->known[d] > q->known[d] && d != device)
            q->known[d] = awaited->known[d];
    q->known[other] = on;
}

/* Fixes what the record knows; no wait may be added after this. */
static int32_t record_done(struct lowering *l, int32_t device, struct lowered *r)
{
    struct queue *q = &l->queue[device];
    memcpy(r->known, q->known, sizeof r->known);
    q->known[device] = q->n - 1;
    return q->n - 1;
}

/* What arena.c asks: see buffers_place. */
static int32_t record_knows(const void *user, int32_t queue, int32_t record, int32_t other)
{
    const struct lowering *l = user;
    return queue == other ? record - 1 : l->queue[queue].records[record].known[other];
}

/* --------------------------------------------------------------------------- buffers */

static int32_t buffer_add(struct lowering *l, int32_t device, int32_t width, int32_t rows,
                          int32_t queue)
{
    if (l->n_buffers == l->buffers_cap) {
        int32_t cap = l->buffers_cap ? l->buffers_cap * 2 : 512;
        struct buffer *p = realloc(l->buffers, (size_t)cap * sizeof *p);
        if (!p) {
            oato_fail_memory(l->err, (size_t)cap * sizeof *p, "activation buffers");
            return -1;
        }
        l->buffers = p;
        l->buffers_cap = cap;
    }
    struct buffer *b = &l->buffers[l->n_buffers];
    *b = (struct buffer){
        .device = device,
        .bytes = (uint64_t)(rows ? l->max_rows : l->max_tokens) * (uint64_t)width * sizeof(float),
        .def_queue = queue,
        .def_record = l->queue[queue].n - 1,
    };
    for (int i = 0; i < DEVICES_MAX; i++)
        b->last_use[i] = -1;
    b->last_use[queue] = b->def_record;
    return l->n_buffers++;
}

static void record_reads(struct lowering *l, int32_t device, struct lowered *r, int i,
                         struct home h, int32_t width)
{
    record_wait(l, device, r, h.queue, h.record);
    r->in[i] = h.buffer;
    r->record.in_width[i] = width;
    r->record.n_in = (uint8_t)(i + 1);
    l->buffers[h.buffer].last_use[device] = l->queue[device].n - 1;
}

/* ------------------------------------------------------------------------------- copies */

/* Moves `width` columns of a value, or what was made of it, between the host and an accelerator,
 * whose queue does it, or between accelerators, where that of the one that wants it does. */
static struct home copy_emit(struct lowering *l, int32_t value, int32_t width, struct home from,
                             int32_t to)
{
    int32_t host = l->e->host, from_device = l->buffers[from.buffer].device;
    int32_t worker = to == host ? from_device : to;
    struct lowered *r = record_add(l, worker,
                                   from_device == host ? RECORD_UPLOAD
                                   : to == host        ? RECORD_DOWNLOAD
                                                       : RECORD_PEER);
    if (!r)
        return from;
    r->record.peer = r->record.kind == RECORD_PEER ? (uint8_t)from_device : 0;
    r->record.op = (struct oato_op){.dtype = DT_F32, .k = width, .n = width};
    r->record.value = (uint32_t)value;
    r->record.rows = (uint8_t)l->graph->values[value].rows;
    record_reads(l, worker, r, 0, from, width);
    r->record.n_out = 1;
    r->out[0] = buffer_add(l, to, width, l->graph->values[value].rows, worker);
    return (struct home){r->out[0], worker, record_done(l, worker, r)};
}

static struct home part_fetch(struct lowering *l, int32_t value, int32_t part, int32_t device)
{
    struct lowered_value *v = &l->values[value];
    int32_t from = v->part_device[part], host = l->e->host;
    struct home *h = &v->part[part][device];
    if (h->buffer < 0 && !failed(l)) {
        struct home source = v->part[part][from];
        /* accelerators that do not reach each other meet in host memory */
        if (from != host && device != host && !l->e->device[device].peers[from].device)
            source = part_fetch(l, value, part, host);
        if (!failed(l))
            *h = copy_emit(l, value, v->part_width[part], source, device);
    }
    return *h;
}

static struct home part_read(struct lowering *l, int32_t value, int32_t part, int32_t device)
{
    struct lowered_value *v = &l->values[value];
    if (device != v->part_device[part] && !v->counted[part][device]) {
        v->counted[part][device] = true;
        l->copies++;
        l->copy_bytes += (uint64_t)v->part_width[part] * sizeof(float);
    }
    return part_fetch(l, value, part, device);
}

static struct home merge_emit(struct lowering *l, int32_t value, int32_t device)
{
    struct lowered_value *v = &l->values[value];
    int32_t width = l->graph->values[value].width;
    struct home parts[PARTS_MAX];
    if (v->parts == PARTS_EXPERTS) {
        oato_fail(l->err, OATO_EFILE,
                  "value %d, which experts made apart, is read whole; plan again", value);
        return (struct home){-1, 0, 0};
    }
    for (int i = 0; i < v->n_parts; i++)
        parts[i] = part_read(l, value, i, device);
    struct lowered *r = failed(l) ? NULL : record_add(l, device, RECORD_RUN);
    if (!r)
        return (struct home){-1, 0, 0};
    r->record.op = (struct oato_op){.kind = OP_MERGE, .dtype = DT_F32, .k = width, .n = width};
    if (v->parts == PARTS_SUMMANDS) {
        r->record.op.kind = OP_MERGE_SUM;
        r->record.op.k *= v->n_parts;
    }
    r->record.value = (uint32_t)value;
    r->record.rows = (uint8_t)l->graph->values[value].rows;
    for (int i = 0; i < v->n_parts; i++)
        record_reads(l, device, r, i, parts[i], v->part_width[i]);
    r->record.n_out = 1;
    r->out[0] = buffer_add(l, device, width, l->graph->values[value].rows, device);
    return (struct home){r->out[0], device, record_done(l, device, r)};
}

/* The whole value on a device: where it was made, copied there, or merged there. */
static struct home value_read(struct lowering *l, int32_t value, int32_t device)
{
    struct lowered_value *v = &l->values[value];
    if (v->n_parts == 1)
        return part_read(l, value, 0, device);
    if (v->merged[device].buffer < 0 && !failed(l))
        v->merged[device] = merge_emit(l, value, device);
    return v->merged[device];
}

/* The part of a value that the same range, of rows or of experts, of the operator before made. */
static struct home range_read(struct lowering *l, int32_t value, enum value_parts parts,
                              const struct placed_part *range)
{
    const struct lowered_value *v = &l->values[value];
    int32_t part = 0;
    while (part < v->n_parts && v->part_begin[part] != range->begin)
        part++;
    if (part == v->n_parts || v->parts != parts || v->part_end[part] != range->end) {
        oato_fail(l->err, OATO_EFILE, "%s %d to %d of value %d are no part of it; plan again",
                  parts == PARTS_EXPERTS ? "experts" : "columns", range->begin, range->end, value);
        return (struct home){-1, 0, 0};
    }
    return part_read(l, value, part, range->device);
}

/* ---------------------------------------------------------------------------- operators */

/* The part of an operator that a record is; axis AXIS_COUNT: all of it. */
struct record_part {
    const struct placed_part *placed;
    enum op_axis axis;
};

static void weights_add(struct lowering *l, const struct graph_op *o, struct lowered *r,
                        struct record_part part)
{
    enum weight_use use = op_weight_use(&o->op);
    struct engine_device *d = &l->e->device[part.placed->device];
    uint64_t offset = 0;
    r->streams = part.placed->streamed;
    for (int i = 0; i < o->n_weights; i++) {
        int64_t rows, k;
        if (!o->weight[i])
            continue;
        if (!op_weight_shape(&o->op, i, &rows, &k) || use == WEIGHT_VECTOR)
            rows = 1;
        struct weight_slot slot = {
            .tensor = o->weight[i], .use = use, .end = rows, .col_end = o->weight[i]->ne[0]};
        if (part.axis == AXIS_ROWS) {
            slot.begin = part.placed->begin;
            slot.end = part.placed->end;
        } else if (part.axis == AXIS_K) {
            slot.col_begin = part.placed->begin;
            slot.col_end = part.placed->end;
        } else if (part.axis == AXIS_EXPERTS) {
            slot.begin = (int64_t)part.placed->begin * o->op.n;
            slot.end = (int64_t)part.placed->end * o->op.n;
        }
        if (r->streams) {
            slot.streamed = true;
            slot.staging_offset = offset; /* in the record's place, which is not known yet */
        }
        r->record.weight[i] = engine_weight_slot(d, &slot);
        if (r->record.weight[i] == UINT32_MAX) {
            oato_fail_memory(l->err, sizeof slot, "the table of weights");
            return;
        }
        offset = size_align(offset + d->slots[r->record.weight[i]].bytes, STAGING_ALIGN);
    }
    r->record.n_weights = (uint8_t)o->n_weights;
    if (!r->streams)
        return;
    l->streams[part.placed->device]++;
    l->stream_bytes += offset;
    r->stream_bytes = offset;
}

/* The i-th input of a part on its device. */
static struct home input_read(struct lowering *l, const struct graph_op *o, struct record_part part,
                              int i)
{
    if (part.axis == AXIS_K)
        return range_read(l, o->in[i], PARTS_COLUMNS, part.placed);
    if (part.axis == AXIS_EXPERTS && o->op.kind == OP_EXPERT_DOWN && i == 0)
        return range_read(l, o->in[i], PARTS_EXPERTS, part.placed);
    return value_read(l, o->in[i], part.placed->device);
}

/* The operator that the record of a part runs. */
static struct oato_op part_op(const struct lowering *l, const struct graph_op *o,
                              struct record_part part)
{
    const int32_t length = part.placed->end - part.placed->begin;
    struct oato_op op = graph_op_with_kv(o, l->e->kv_dtype);
    if (part.axis == AXIS_ROWS)
        op.n = length;
    if (part.axis == AXIS_K)
        op.k = length;
    if (part.axis == AXIS_EXPERTS) {
        op.expert_first = part.placed->begin;
        op.experts_held = length;
    }
    return op;
}

static enum value_parts parts_made(const struct graph_op *o, enum op_axis axis)
{
    if (axis == AXIS_EXPERTS && o->op.kind == OP_EXPERT_GATE_UP)
        return PARTS_EXPERTS;
    return axis == AXIS_K || axis == AXIS_EXPERTS ? PARTS_SUMMANDS : PARTS_COLUMNS;
}

static void inputs_read(struct lowering *l, const struct graph_op *o, struct record_part part,
                        struct home inputs[GRAPH_INPUTS])
{
    for (int i = 0; i < o->n_in && !failed(l); i++)
        inputs[i] = input_read(l, o, part, i);
}

static void part_emit(struct lowering *l, int32_t index, struct record_part part)
{
    struct engine *e = l->e;
    const struct graph_op *o = &l->graph->ops[index];
    const int32_t device = part.placed->device, length = part.placed->end - part.placed->begin;
    const struct oato_device *d = e->device[device].device;
    struct home inputs[GRAPH_INPUTS];
    inputs_read(l, o, part, inputs);
    struct lowered *r = failed(l) ? NULL : record_add(l, device, RECORD_RUN);
    if (!r)
        return;
    r->record.op = part_op(l, o, part);
    if (!d->ops->supports(d, &r->record.op)) {
        char key[OP_KEY_SIZE];
        oato_fail(l->err, OATO_EFILE, "operator %s (%s) cannot run on %s; plan again", o->name,
                  oato_op_key(&r->record.op, NULL, key), e->device[device].info.id);
        return;
    }
    r->record.graph_op = (uint32_t)index;
    r->record.rows = (uint8_t)l->graph->values[o->n_out ? o->out[0] : o->in[0]].rows;
    r->record.numerics = (uint8_t)engine_numerics(e, device, &r->record.op, l->phase,
                                                  (enum row_class)r->record.rows);
    if (o->kv_layer >= 0)
        r->record.kv_layer = e->device[device].kv_slot[o->kv_layer];
    for (int i = 0; i < o->n_in; i++)
        record_reads(l, device, r, i, inputs[i],
                     part.axis == AXIS_K ? length : l->graph->values[o->in[i]].width);
    weights_add(l, o, r, part);
    r->record.n_out = (uint8_t)o->n_out;
    if (o->n_out)
        r->record.value = (uint32_t)o->out[0];
    for (int i = 0; i < o->n_out; i++) {
        struct lowered_value *v = &l->values[o->out[i]];
        const struct graph_value *gv = &l->graph->values[o->out[i]];
        int32_t width = part.axis == AXIS_ROWS ? length : gv->width, p = v->n_parts++;
        v->parts = parts_made(o, part.axis);
        v->part_begin[p] = part.placed->begin;
        v->part_end[p] = part.placed->end;
        r->out[i] = buffer_add(l, device, width, gv->rows, device);
        v->part_device[p] = device;
        v->part_width[p] = width;
    }
    int32_t record = record_done(l, device, r);
    for (int i = 0; i < o->n_out; i++) {
        struct lowered_value *v = &l->values[o->out[i]];
        v->part[v->n_parts - 1][device] = (struct home){r->out[i], device, record};
    }
}

static void op_emit(struct lowering *l, int32_t index)
{
    const struct placement *p = &l->e->place[l->phase][index];
    const struct graph_op *o = &l->graph->ops[index];
    if (p->n > 1 && (p->axis == AXIS_HEADS || !op_divides(&o->op, p->axis))) {
        oato_fail(l->err, OATO_EFILE, "operator %s (%s) cannot be divided so; plan again", o->name,
                  op_kind_name(o->op.kind));
        return;
    }
    struct home inputs[GRAPH_INPUTS];
    for (int i = 0; i < p->n && p->n > 1; i++) /* sent before an accelerator computes its part */
        inputs_read(l, o, (struct record_part){&p->part[i], p->axis}, inputs);
    for (int i = 0; i < p->n && !failed(l); i++)
        part_emit(l, index, (struct record_part){&p->part[i], p->n == 1 ? AXIS_COUNT : p->axis});
}

/* -------------------------------------------------------------------------- what is wanted */

/* The operator that makes candidates of the logits. */
static struct oato_op top_op(const struct lowering *l)
{
    return (struct oato_op){.kind = OP_TOP_K,
                            .dtype = DT_F32,
                            .k = l->graph->values[l->graph->logits].width,
                            .n = 2 * l->e->top_logits};
}

/* The accelerator that has all logits and can make candidates of them; -1: there is none. */
static int32_t top_device(const struct lowering *l)
{
    const struct lowered_value *v = &l->values[l->graph->logits];
    const int32_t device = v->part_device[0];
    const struct oato_op op = top_op(l);
    if (!l->e->top_logits || v->n_parts != 1 || device == l->e->host)
        return -1;
    const struct oato_device *d = l->e->device[device].device;
    return d->ops->supports(d, &op) ? device : -1;
}

/* The candidates of each row of logits, on the host. */
static struct home candidates_read(struct lowering *l, int32_t device)
{
    const int32_t value = l->graph->logits;
    const struct home logits = part_read(l, value, 0, device);
    struct lowered *r = failed(l) ? NULL : record_add(l, device, RECORD_RUN);
    if (!r)
        return logits;
    r->record.op = top_op(l);
    const int32_t width = r->record.op.n;
    r->record.value = (uint32_t)value;
    r->record.rows = (uint8_t)l->graph->values[value].rows;
    record_reads(l, device, r, 0, logits, r->record.op.k);
    r->record.n_out = 1;
    r->out[0] = buffer_add(l, device, width, r->record.rows, device);
    const struct home made = {r->out[0], device, record_done(l, device, r)};
    if (failed(l))
        return made;
    l->copies++;
    l->copy_bytes += (uint64_t)width * sizeof(float);
    return copy_emit(l, value, width, made, l->e->host);
}

/* What the host reads after the step: rows of logits, or of candidates. */
static struct home result_read(struct lowering *l)
{
    const int32_t device = top_device(l);
    l->e->candidates[l->phase] = device < 0 ? 0 : l->e->top_logits;
    return device < 0 ? value_read(l, l->graph->logits, l->e->host) : candidates_read(l, device);
}

/* Shared pages are copied before anything of the step is stored. */
static void kv_copy_emit(struct lowering *l, int32_t device)
{
    struct lowered *r = record_add(l, device, RECORD_RUN);
    if (!r)
        return;
    r->record.op = (struct oato_op){.kind = OP_KV_COPY, .dtype = (uint16_t)l->e->kv_dtype};
    record_done(l, device, r);
}

/* ---------------------------------------------------------------------------- the result */

static void lowering_init(struct lowering *l)
{
    for (int d = 0; d < DEVICES_MAX; d++)
        for (int o = 0; o < DEVICES_MAX; o++)
            l->queue[d].known[o] = -1;
    for (int32_t v = 0; v < l->graph->n_values; v++)
        for (int d = 0; d < DEVICES_MAX; d++) {
            l->values[v].merged[d].buffer = -1;
            for (int p = 0; p < PARTS_MAX; p++)
                l->values[v].part[p][d].buffer = -1;
        }
}

oato_status engine_lower(struct engine *e, enum plan_phase phase, struct oato_error *err)
{
    struct lowering l = {.e = e, .graph = &e->graph, .phase = phase, .err = err};
    l.max_tokens = phase == PHASE_DECODE ? e->max_seqs : e->ubatch;
    l.max_rows = phase == PHASE_DECODE ? e->max_seqs : e->max_rows;
    err->status = OATO_OK;
    l.values = calloc((size_t)l.graph->n_values, sizeof *l.values);
    if (!l.values)
        return oato_fail_memory(err, (size_t)l.graph->n_values * sizeof *l.values, "lowering");
    lowering_init(&l);

    for (int d = 0; d < e->n_devices && !failed(&l); d++)
        if (e->device[d].n_kv)
            kv_copy_emit(&l, d);
    for (int32_t i = 0; i < l.graph->n_ops && !failed(&l); i++)
        op_emit(&l, i);
    struct home result = {-1, 0, 0};
    if (!failed(&l))
        result = result_read(&l);
    if (!failed(&l)) {
        uint64_t arena_bytes[DEVICES_MAX] = {0};
        l.buffers[result.buffer].last_use[e->host] = INT32_MAX; /* read after the step */
        if (!buffers_place(l.buffers, l.n_buffers, record_knows, &l, arena_bytes))
            oato_fail_memory(err, (size_t)l.n_buffers * 16, "placing buffers");
        for (int d = 0; d < e->n_devices; d++)
            if (arena_bytes[d] > e->device[d].arena_bytes)
                e->device[d].arena_bytes = arena_bytes[d];
        programs_finish(&l);
        e->result_offset[phase] = l.buffers[result.buffer].offset;
        e->copies[phase] = l.copies;
        e->copy_bytes[phase] = l.copy_bytes;
        e->stream_bytes[phase] = l.stream_bytes;
    }
    for (int d = 0; d < DEVICES_MAX; d++)
        free(l.queue[d].records);
    free(l.buffers);
    free(l.values);
    return err->status;
}
