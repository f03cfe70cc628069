/*
 * history.c - attention of a prompt on an accelerator over K and V that stay in the host's memory.
 *
 * The host stores the rows of each step in its pages, as always. The accelerator has rooms, each
 * with as many pages as a layer: what a layer had before the step, its history, is copied to one
 * over the link, as weights are streamed, and the step's own rows are stored there by the device
 * itself, so that attention finds the same pages with the same numbers as the host's. Layers of a
 * shape take turns in KV_ROOMS rooms: while attention of one computes, the history of the next is
 * copied, into the room of the one before, which has been read.
 */
#include "lowering/lowering_internal.h"

/* Whether the operator attends to KV of the host on device d; d -1: on any. */
static bool is_streamed(const struct lowering_input *in, enum plan_phase phase, int32_t op,
                        int32_t d)
{
    const struct placement *p = &in->placements->phase[phase][op];
    bool streamed = false;
    for (int i = 0; i < p->n; i++)
        streamed = streamed || (p->part[i].kv_streamed && (d < 0 || p->part[i].device == d));
    return streamed;
}

static int32_t ops_of(const struct lowering_input *in)
{
    return in->n_ops ? in->n_ops : in->graph->n_ops;
}

/* The next one at or after operator `op` there; -1: none. */
static int32_t streamed_next(const struct lowering_input *in, enum plan_phase phase, int32_t op,
                             int32_t d)
{
    while (op < ops_of(in) && !is_streamed(in, phase, op, d))
        op++;
    return op < ops_of(in) ? op : -1;
}

/* What stores the KV that the operator reads; there is one before it. */
static const struct graph_op *store_of(const struct graph *g, int32_t op)
{
    int32_t i = op;
    while (i > 0 && (g->ops[i].op.kind != OP_KV_STORE || g->ops[i].kv_layer != g->ops[op].kv_layer))
        i--;
    return &g->ops[i];
}

static struct kv_layer_shape room_shape(const struct graph_op *store)
{
    return (struct kv_layer_shape){.kv_heads = store->op.kv_heads,
                                   .head_dim = store->op.head_dim,
                                   .v_dim = store->op.v_dim,
                                   .v_in_k = store->op.v_in_k,
                                   .window = store->op.window,
                                   .staged = true};
}

static bool same_room(const struct kv_layer_shape *a, const struct kv_layer_shape *b)
{
    return a->staged && b->staged && a->kv_heads == b->kv_heads && a->head_dim == b->head_dim &&
           a->v_dim == b->v_dim && a->v_in_k == b->v_in_k && a->window == b->window;
}

/* The KV layer of the device that is the number-th room of that shape; -1: there are fewer. */
static int32_t room_find(const struct lowered_device *d, const struct kv_layer_shape *shape,
                         int32_t number)
{
    for (int32_t i = 0; i < d->n_kv; i++)
        if (same_room(&d->kv_shapes[i], shape) && number-- == 0)
            return i;
    return -1;
}

/* The operator's room: those of a shape in turn. */
static int32_t room_of(const struct lowering_input *in, enum plan_phase phase,
                       const struct lowered_device *low, int32_t op, int32_t d)
{
    const struct kv_layer_shape shape = room_shape(store_of(in->graph, op));
    int32_t before = 0;
    for (int32_t i = 0; i < op; i++)
        if (is_streamed(in, phase, i, d)) {
            const struct kv_layer_shape other = room_shape(store_of(in->graph, i));
            before += same_room(&shape, &other);
        }
    return room_find(low, &shape, before % KV_ROOMS);
}

/* The layer is whole on the host, whose pages are in memory, and the device can copy them. */
static oato_status source_check(const struct lowering_input *in, const struct lowered *out,
                                enum plan_phase phase, int32_t op, struct oato_error *err)
{
    const struct lowering_facts *facts = in->facts;
    const struct lowered_device *host = &out->device[facts->host];
    const int32_t at = kv_home_of_layer(host, store_of(in->graph, op));
    const int32_t device = in->placements->phase[phase][op].part[0].device;
    const char *name = in->graph->ops[op].name;
    if (phase != PHASE_PREFILL || in->placements->phase[phase][op].n != 1 || at < 0 ||
        host->kv_shapes[at].filed)
        return oato_fail(err, OATO_EFILE,
                         "%s attends on %s to KV of the host: that is possible only in prefill, "
                         "undivided, and to KV that is in the host's memory; run oato-plan again",
                         name, facts->id[device]);
    if (!facts->streams[device])
        return oato_fail(err, OATO_EFILE,
                         "%s attends on %s to KV of the host, which that device cannot copy during "
                         "a step; run oato-plan again",
                         name, facts->id[device]);
    return OATO_OK;
}

oato_status rooms_add(const struct lowering_input *in, struct lowered *out, struct oato_error *err)
{
    for (enum plan_phase phase = 0; phase < PHASE_COUNT; phase++)
        for (int32_t i = streamed_next(in, phase, 0, -1); i >= 0;
             i = streamed_next(in, phase, i + 1, -1)) {
            struct lowered_device *d = &out->device[in->placements->phase[phase][i].part[0].device];
            const struct kv_layer_shape shape = room_shape(store_of(in->graph, i));
            if (source_check(in, out, phase, i, err))
                return err->status;
            if (room_find(d, &shape, KV_ROOMS - 1) >= 0)
                continue;
            d->kv[d->n_kv] = (struct kv_home){-1, 0, shape.kv_heads, -1};
            d->kv_shapes[d->n_kv++] = shape;
        }
    return OATO_OK;
}

/* The copy of a layer's history begins where the device's queue is now, but not before the host has
 * made its own copies of shared pages, at the beginning of its program. */
static void stream_emit(struct lowering *l, int32_t op, int32_t device)
{
    const int32_t host = l->in->facts->host;
    const struct lowered_device *low = &l->out->device[device];
    struct queued *r = failed(l) ? NULL : record_add(l, device, RECORD_STREAM);
    if (!r)
        return;
    r->record.graph_op = (uint32_t)op;
    r->record.kv_layer = room_of(l->in, l->phase, low, op, device);
    r->record.kv_from = kv_home_of_layer(&l->out->device[host], store_of(l->graph, op));
    if (l->queue[host].n && l->queue[host].records[0].record.op.kind == OP_KV_COPY)
        record_wait(l, device, r, host, 0);
    record_done(l, device, r);
}

void history_begin(struct lowering *l)
{
    for (int32_t d = 0; d < l->out->n_devices; d++) {
        const int32_t first = streamed_next(l->in, l->phase, 0, d);
        if (first >= 0)
            stream_emit(l, first, d);
    }
}

int32_t history_emit(struct lowering *l, int32_t index, int32_t device)
{
    const int32_t next = streamed_next(l->in, l->phase, index + 1, device),
                  room = room_of(l->in, l->phase, &l->out->device[device], index, device);
    const struct graph_op *store = store_of(l->graph, index);
    struct home inputs[GRAPH_INPUTS];
    for (int i = 0; i < store->n_in && !failed(l); i++)
        inputs[i] = home_as(l, store->in[i], value_read(l, store->in[i], device),
                            value_type_in(l->in->facts->values[device], &store->op, i));
    if (next >= 0)
        stream_emit(l, next, device);
    struct queued *r = failed(l) ? NULL : record_add(l, device, RECORD_RUN);
    if (!r)
        return -1;
    r->record.op = graph_op_with_kv(store, l->in->kv);
    r->record.graph_op = (uint32_t)(store - l->graph->ops);
    r->record.kv_layer = room;
    r->record.rows = (uint8_t)l->graph->values[store->in[0]].rows;
    for (int i = 0; i < store->n_in; i++)
        record_reads(l, device, r, i, inputs[i], l->graph->values[store->in[i]].width);
    record_done(l, device, r);
    return room;
}

/* Not only rooms for that of the host. */
static bool keeps_kv(const struct lowered_device *d)
{
    bool keeps = false;
    for (int32_t i = 0; i < d->n_kv; i++)
        keeps = keeps || !d->kv_shapes[i].staged;
    return keeps;
}

static void kv_copy_emit(struct lowering *l, int32_t device)
{
    struct queued *r = record_add(l, device, RECORD_RUN);
    if (!r)
        return;
    r->record.op = (struct oato_op){.kind = OP_KV_COPY, .dtype = (uint16_t)l->in->kv};
    record_done(l, device, r);
}

void kv_copies_begin(struct lowering *l)
{
    for (int d = 0; d < l->out->n_devices && !failed(l); d++)
        if (keeps_kv(&l->out->device[d]))
            kv_copy_emit(l, d);
}
