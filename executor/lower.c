/*
 * lower.c - compiles graph + placement of one phase into a flat program per device.
 *
 * The graph is walked once in order. Every operator part becomes a record on its device's queue;
 * a value that another device reads is copied there once, by an upload or download record on the
 * accelerator's queue; row parts are put together by a merge record where the whole is read.
 * What a record must wait for is tracked as vector clocks (per record: the last record of every
 * other queue that is known complete), which drop waits that follow from others and later tell
 * arena.c which buffers may share memory.
 */
#include "executor/executor_internal.h"

#include <stdlib.h>
#include <string.h>

struct lowered {
    struct program_record record; /* offsets, waits and signals are filled at the end */
    int32_t in[RECORD_INPUTS], out[RECORD_OUTPUTS]; /* buffers */
    int32_t wait_device[RECORD_WAITS], wait_record[RECORD_WAITS];
    int32_t known[DEVICES_MAX];
    bool signals;
};

struct queue {
    struct lowered *records;
    int32_t n, cap;
    int32_t known[DEVICES_MAX]; /* of the next record */
};

/* Where a value, or a part of it, can be read on one device. */
struct home {
    int32_t buffer; /* -1: not there */
    int32_t queue, record;
};

struct lowered_value {
    int32_t n_parts;
    int32_t part_device[PARTS_MAX], part_width[PARTS_MAX];
    struct home part[PARTS_MAX][DEVICES_MAX];
    struct home merged[DEVICES_MAX];
    bool counted[PARTS_MAX][DEVICES_MAX]; /* read there: one copy of the step */
};

struct lowering {
    struct engine *e;
    const struct graph *graph;
    enum plan_phase phase;
    int32_t max_tokens, max_rows;
    struct queue queue[DEVICES_MAX];
    struct lowered_value *values;
    struct buffer *buffers;
    int32_t n_buffers, buffers_cap;
    int32_t copies;
    uint64_t copy_bytes;
    struct oato_error *err;
};

static bool failed(const struct lowering *l)
{
    return l->err->status != OATO_OK;
}

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

/* Moves a part between the host and an accelerator; the accelerator's queue does it. */
static struct home copy_emit(struct lowering *l, int32_t value, int32_t part, struct home from,
                             int32_t to)
{
    int32_t host = l->e->host, from_device = l->buffers[from.buffer].device;
    int32_t worker = from_device == host ? to : from_device;
    int32_t width = l->values[value].part_width[part];
    struct lowered *r =
        record_add(l, worker, from_device == host ? RECORD_UPLOAD : RECORD_DOWNLOAD);
    if (!r)
        return from;
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
        if (from != host && device != host) /* accelerators meet in host memory */
            source = part_fetch(l, value, part, host);
        if (!failed(l))
            *h = copy_emit(l, value, part, source, device);
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
    for (int i = 0; i < v->n_parts; i++)
        parts[i] = part_read(l, value, i, device);
    struct lowered *r = failed(l) ? NULL : record_add(l, device, RECORD_RUN);
    if (!r)
        return (struct home){-1, 0, 0};
    r->record.op = (struct oato_op){.kind = OP_MERGE, .dtype = DT_F32, .k = width, .n = width};
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

/* ---------------------------------------------------------------------------- operators */

static bool splits_by_rows(int kind)
{
    return kind == OP_MUL_MAT || kind == OP_GATE_UP;
}

static void weights_add(struct lowering *l, const struct graph_op *o, struct lowered *r,
                        int32_t device, int32_t begin, int32_t end)
{
    enum weight_use use = op_weight_use(&o->op);
    for (int i = 0; i < o->n_weights; i++) {
        int64_t rows, k;
        if (!o->weight[i])
            continue;
        if (!op_weight_shape(&o->op, i, &rows, &k) || use == WEIGHT_VECTOR)
            rows = 1;
        int64_t from = 0, to = rows;
        if (splits_by_rows(o->op.kind)) {
            from = begin;
            to = end;
        }
        r->record.weight[i] =
            engine_weight_slot(&l->e->device[device], o->weight[i], use, from, to);
        if (r->record.weight[i] == UINT32_MAX)
            oato_fail_memory(l->err, sizeof(struct weight_slot), "the table of weights");
    }
    r->record.n_weights = (uint8_t)o->n_weights;
}

static void part_emit(struct lowering *l, int32_t index, int32_t device, int32_t begin, int32_t end,
                      bool whole)
{
    struct engine *e = l->e;
    const struct graph_op *o = &l->graph->ops[index];
    const struct oato_device *d = e->device[device].device;
    struct home inputs[GRAPH_INPUTS];
    for (int i = 0; i < o->n_in; i++)
        inputs[i] = value_read(l, o->in[i], device);
    struct lowered *r = failed(l) ? NULL : record_add(l, device, RECORD_RUN);
    if (!r)
        return;
    r->record.op = graph_op_with_kv(o, e->kv_dtype);
    if (!whole)
        r->record.op.n = end - begin;
    if (!d->ops->supports(d, &r->record.op)) {
        char key[OP_KEY_SIZE];
        oato_fail(l->err, OATO_EFILE, "operator %s (%s) cannot run on %s; plan again", o->name,
                  oato_op_key(&r->record.op, NULL, key), e->device[device].info.id);
        return;
    }
    r->record.graph_op = (uint32_t)index;
    r->record.rows = (uint8_t)l->graph->values[o->n_out ? o->out[0] : o->in[0]].rows;
    r->record.numerics = (uint8_t)engine_numerics(e, l->phase, (enum row_class)r->record.rows);
    if (o->kv_layer >= 0)
        r->record.kv_layer = e->device[device].kv_slot[o->kv_layer];
    for (int i = 0; i < o->n_in; i++)
        record_reads(l, device, r, i, inputs[i], l->graph->values[o->in[i]].width);
    weights_add(l, o, r, device, begin, end);
    r->record.n_out = (uint8_t)o->n_out;
    if (o->n_out)
        r->record.value = (uint32_t)o->out[0];
    for (int i = 0; i < o->n_out; i++) {
        struct lowered_value *v = &l->values[o->out[i]];
        const struct graph_value *gv = &l->graph->values[o->out[i]];
        int32_t width = whole ? gv->width : end - begin, p = v->n_parts++;
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
    if (p->n > 1 && !splits_by_rows(o->op.kind)) {
        oato_fail(l->err, OATO_EFILE,
                  "operator %s (%s) cannot be divided into row parts; plan again", o->name,
                  op_kind_name(o->op.kind));
        return;
    }
    for (int i = 0; i < p->n && !failed(l); i++)
        part_emit(l, index, p->part[i].device, p->part[i].begin, p->part[i].end, p->n == 1);
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

static void offsets_fill(struct lowering *l, struct lowered *r)
{
    for (int i = 0; i < r->record.n_in; i++)
        r->record.in[i] = l->buffers[r->in[i]].offset;
    for (int i = 0; i < r->record.n_out; i++)
        r->record.out[i] = l->buffers[r->out[i]].offset;
}

static void signals_number(struct queue *q, uint32_t *count)
{
    *count = 0;
    for (int32_t i = 0; i < q->n; i++)
        if (q->records[i].signals || i == q->n - 1) /* the last one ends the step */
            q->records[i].record.signal = ++*count;
}

static void program_finish(struct lowering *l, int32_t device)
{
    struct queue *q = &l->queue[device];
    struct engine_device *d = &l->e->device[device];
    struct engine_program *p = &d->phase[l->phase];
    if (!q->n)
        return;
    p->records = calloc((size_t)q->n, sizeof *p->records);
    if (!p->records) {
        oato_fail_memory(l->err, (size_t)q->n * sizeof *p->records, "a program");
        return;
    }
    for (int32_t i = 0; i < q->n; i++) {
        struct lowered *r = &q->records[i];
        offsets_fill(l, r);
        for (int w = 0; w < r->record.n_waits; w++)
            r->record.wait[w] = (struct record_wait){
                .device = (uint16_t)r->wait_device[w],
                .ordinal = l->queue[r->wait_device[w]].records[r->wait_record[w]].record.signal};
        p->records[i] = r->record;
        struct op_size size = {.rows = r->record.rows ? l->max_rows : l->max_tokens,
                               .seqs = l->e->max_seqs,
                               .kv_positions = (int64_t)l->max_tokens * l->e->context};
        uint64_t workspace = r->record.kind == RECORD_RUN
                                 ? d->device->ops->workspace_bytes(d->device, &r->record.op, &size)
                                 : 0;
        if (workspace > d->workspace_bytes)
            d->workspace_bytes = workspace;
    }
    p->program.records = p->records;
    p->program.n_records = (uint32_t)q->n;
    p->program.max_tokens = l->max_tokens;
    p->program.max_rows = l->max_rows;
    p->program.max_seqs = l->e->max_seqs;
}

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
    struct home logits = {-1, 0, 0};
    if (!failed(&l))
        logits = value_read(&l, l.graph->logits, e->host);
    if (!failed(&l)) {
        uint64_t arena_bytes[DEVICES_MAX] = {0};
        l.buffers[logits.buffer].last_use[e->host] = INT32_MAX; /* read after the step */
        if (!buffers_place(l.buffers, l.n_buffers, record_knows, &l, arena_bytes))
            oato_fail_memory(err, (size_t)l.n_buffers * 16, "placing buffers");
        for (int d = 0; d < e->n_devices; d++) {
            if (arena_bytes[d] > e->device[d].arena_bytes)
                e->device[d].arena_bytes = arena_bytes[d];
            signals_number(&l.queue[d], &e->device[d].phase[phase].program.n_signals);
        }
        for (int d = 0; d < e->n_devices && !failed(&l); d++)
            program_finish(&l, d);
        e->logits_offset[phase] = l.buffers[logits.buffer].offset;
        e->copies[phase] = l.copies;
        e->copy_bytes[phase] = l.copy_bytes;
    }
    for (int d = 0; d < DEVICES_MAX; d++)
        free(l.queue[d].records);
    free(l.buffers);
    free(l.values);
    return err->status;
}
