/*
 * programs.c - the last step of lowering: the records of each queue get the offsets of their
 * buffers, the ordinals of what they wait for, and the records that stream their weights.
 *
 * Streamed weights have places in a staging room (base.h). A stream record comes right after the
 * last record that reads what was in its place before; the first ones come at the start of the
 * program. A device that runs records in order then finds the place free, and one with a copy
 * engine copies while the records in between compute.
 *
 * What comes from a file has a ring in the host's memory, with places one behind the other. It is
 * read ahead in a circle, the first weights of a step during the one before, so both phases have
 * the same slots at the same places. The host computes with them there, so its staging room is that
 * ring; from another device's they are copied to its staging room.
 */
#include "lowering/lowering_internal.h"

#include <stdlib.h>

/* ------------------------------------------------------------------------------ weights --- */

bool weight_slot_same(const struct weight_slot *a, const struct weight_slot *b)
{
    return a->tensor == b->tensor && a->use == b->use && a->begin == b->begin && a->end == b->end &&
           a->col_begin == b->col_begin && a->col_end == b->col_end && a->cached == b->cached &&
           !a->members == !b->members; /* a range has the same members in both */
}

/* Bytes of the slot in the model's file. */
static uint64_t file_bytes(const struct weight_slot *s)
{
    size_t row = 0;
    dtype_row_bytes(s->tensor->dtype, s->col_end - s->col_begin, &row);
    return (uint64_t)(s->end - s->begin) * row;
}

/* The next slot of the other phase, which streams the same weights in the same order; UINT32_MAX:
 * there is none. */
static uint32_t stored_find(struct lowering *l, int32_t device, const struct weight_slot *wanted)
{
    const struct lowered_device *d = &l->out->device[device];
    for (uint32_t i = l->stored_next[device]; i < d->n_slots; i++) {
        if (!d->slots[i].stored || !weight_slot_same(&d->slots[i], wanted))
            continue;
        l->stored_next[device] = i + 1;
        return i;
    }
    return UINT32_MAX;
}

uint32_t weight_slot_find(struct lowering *l, int32_t device, const struct weight_slot *wanted)
{
    const struct lowering_facts *facts = l->in->facts;
    struct lowered_device *d = &l->out->device[device];
    const uint32_t stored = wanted->stored ? stored_find(l, device, wanted) : UINT32_MAX;
    if (stored != UINT32_MAX)
        return stored;
    for (uint32_t i = 0; i < d->n_slots && !wanted->streamed; i++) {
        struct weight_slot *s = &d->slots[i];
        if (s->streamed || !weight_slot_same(s, wanted))
            continue;
        if (s->spare && !l->spare) {
            s->spare = false;
            d->weight_bytes += s->bytes;
        }
        return i;
    }
    struct weight_slot *s = room_for(l, d->slots, (int32_t)d->n_slots, &d->slots_cap, sizeof *s,
                                     "the table of weights");
    if (!s)
        return UINT32_MAX;
    d->slots = s;
    s += d->n_slots;
    *s = *wanted;
    s->bytes = facts->weight_bytes ? facts->weight_bytes(facts->user, device, s) : file_bytes(s);
    s->spare = l->spare;
    if (!s->streamed && !s->spare)
        d->weight_bytes += s->bytes;
    if (s->stored)
        l->stored_next[device] = d->n_slots + 1;
    return d->n_slots++;
}

/* ------------------------------------------------------------------------------ records --- */

static void signals_number(struct queue *q, uint32_t *count)
{
    *count = 0;
    for (int32_t i = 0; i < q->n; i++)
        if (q->records[i].signals || i == q->n - 1) /* the last one ends the step */
            q->records[i].record.signal = ++*count;
}

static void record_fill(const struct lowering *l, struct queued *r)
{
    for (int i = 0; i < r->record.n_in; i++)
        r->record.in[i] = l->buffers[r->in[i]].offset;
    for (int i = 0; i < r->record.n_out; i++)
        r->record.out[i] = l->buffers[r->out[i]].offset;
    for (int w = 0; w < r->record.n_waits; w++)
        r->record.wait[w] = (struct record_wait){
            .device = (uint16_t)r->wait_device[w],
            .ordinal = l->queue[r->wait_device[w]].records[r->wait_record[w]].record.signal};
}

uint64_t op_workspace(const struct lowering *l, int32_t device, const struct oato_op *op,
                      int32_t rows)
{
    const struct lowering_facts *facts = l->in->facts;
    const struct op_size size = {.rows = rows,
                                 .seqs = l->in->limits.seqs,
                                 .kv_positions = (int64_t)l->max_tokens * l->in->limits.context};
    return facts->workspace_bytes ? facts->workspace_bytes(facts->user, device, op, &size) : 0;
}

static uint64_t record_angles(const struct lowering *l, const struct program_record *r)
{
    const int32_t rows = rows_most(l, r->rows);
    return r->kind == RECORD_RUN && r->op.kind == OP_ROPE
               ? (uint64_t)rows * (uint64_t)r->op.rope_dims * sizeof(float)
               : 0;
}

/* Index of the first record at or after i whose weights are streamed; q->n: none. */
static int32_t streamed_next(const struct queue *q, int32_t i)
{
    while (i < q->n && !q->records[i].streams)
        i++;
    return i;
}

/* The matrices; optional weights are resident. */
static int streamed_weights(const struct program_record *reader)
{
    const int n = op_weight_least(&reader->op);
    return n == 2 && reader->weight[0] == reader->weight[1] ? 1 : n;
}

static struct program_record stream_of(const struct program_record *reader)
{
    struct program_record r = {.kind = RECORD_STREAM,
                               .rows = reader->rows,
                               .n_weights = (uint8_t)streamed_weights(reader),
                               .part = reader->part,
                               .parts = reader->parts,
                               .kv_layer = -1,
                               .graph_op = reader->graph_op,
                               .value = UINT32_MAX};
    for (int i = 0; i < RECORD_WEIGHTS; i++)
        r.weight[i] = i < r.n_weights ? reader->weight[i] : UINT32_MAX;
    return r;
}

/* The w-th weight of a record, if it is streamed and not the one before it (gate and up in one). */
static struct weight_slot *slot_streamed(const struct lowered_device *d,
                                         const struct program_record *r, int w)
{
    const uint32_t slot = r->weight[w];
    const bool known = slot == UINT32_MAX || (w && slot == r->weight[w - 1]);
    return !known && d->slots[slot].streamed ? &d->slots[slot] : NULL;
}

/* A record's weights lie one behind the other, in the staging room or in the device's ring. */
static void record_place(const struct lowered_device *d, const struct program_record *r,
                         uint64_t at, bool in_ring)
{
    for (int w = 0; w < r->n_weights; w++) {
        struct weight_slot *s = slot_streamed(d, r, w);
        if (!s)
            continue;
        *(in_ring ? &s->ring_offset : &s->staging_offset) = at;
        at = size_align(at + s->bytes, s->stored ? READ_ALIGN : STAGING_ALIGN);
    }
}

/* Assigns staging places to the weights of each record that streams; after[i]: how many of these
 * records must be done before the i-th one's weights may be copied. */
static void streams_place(const struct lowering *l, int32_t device, uint64_t *after)
{
    const struct queue *q = &l->queue[device];
    struct lowered_device *d = &l->out->device[device];
    struct staging room = {0};
    for (int32_t i = streamed_next(q, 0); i < q->n; i = streamed_next(q, i + 1))
        room.half = q->records[i].stream_bytes > room.half ? q->records[i].stream_bytes : room.half;
    for (int32_t i = streamed_next(q, 0); i < q->n; i = streamed_next(q, i + 1)) {
        const struct queued *r = &q->records[i];
        record_place(d, &r->record, staging_place(&room, r->stream_bytes, after++), false);
    }
    d->staging_bytes = 2 * room.half > d->staging_bytes ? 2 * room.half : d->staging_bytes;
}

uint64_t stream_ring_bytes(const struct stream_group *g, int32_t n)
{
    uint64_t largest = 0, most = 0, layer = 0;
    for (int32_t i = 0; i < n; i++) {
        layer = i && g[i].layer == g[i - 1].layer ? layer + g[i].bytes : g[i].bytes;
        most = layer > most ? layer : most;
        largest = g[i].bytes > largest ? g[i].bytes : largest;
    }
    return most + largest;
}

/* A place in the ring. */
struct ring_piece {
    uint64_t begin, end;
};

/* Places in the ring: each record's weights lie behind those of the one before, or at the ring's
 * beginning. after[i] as in streams_place, of the host, which has no other room for them; else
 * NULL. */
static void ring_place(const struct lowering *l, int32_t device, uint64_t *after)
{
    const struct queue *q = &l->queue[device];
    struct lowered_device *d = &l->out->device[device];
    uint64_t *bytes = after ? &d->staging_bytes : &d->ring_bytes;
    const size_t n = (size_t)l->streams[device];
    struct stream_group *group = calloc(n + 1, sizeof *group);
    struct ring_piece *p = calloc(n + 1, sizeof *p);
    if (!group || !p) {
        oato_fail_memory(l->err, n * sizeof *p, "a program");
        goto out;
    }
    int32_t k = 0;
    for (int32_t i = streamed_next(q, 0); i < q->n; i = streamed_next(q, i + 1))
        group[k++] = (struct stream_group){l->graph->ops[q->records[i].record.graph_op].layer,
                                           q->records[i].stream_bytes};
    const uint64_t ring = stream_ring_bytes(group, k);
    uint64_t at = 0;
    k = 0;
    for (int32_t i = streamed_next(q, 0); i < q->n; i = streamed_next(q, i + 1), k++) {
        at = at + group[k].bytes > ring ? 0 : at;
        p[k] = (struct ring_piece){at, at + group[k].bytes};
        record_place(d, &q->records[i].record, at, !after);
        for (int32_t j = k; after && j-- > 0 && !after[k];)
            if (p[j].begin < p[k].end && p[k].begin < p[j].end)
                after[k] = (uint64_t)j + 1;
        at = p[k].end;
    }
    *bytes = ring > *bytes ? ring : *bytes;
out:
    free(group);
    free(p);
}

/* Whether what is streamed to the device comes from a file: all of it, or none, since the places of
 * both phases must be the same. */
static bool is_stored(struct lowering *l, int32_t device)
{
    const struct queue *q = &l->queue[device];
    const struct lowered_device *d = &l->out->device[device];
    int stored = 0, others = 0;
    for (int32_t i = streamed_next(q, 0); i < q->n; i = streamed_next(q, i + 1))
        for (int w = 0; w < q->records[i].record.n_weights; w++) {
            const struct weight_slot *s = slot_streamed(d, &q->records[i].record, w);
            *(s && s->stored ? &stored : &others) += s != NULL;
        }
    if (stored && others)
        oato_fail(l->err, OATO_EFILE,
                  "%s: weights are streamed to it both from a file and from the host; run "
                  "oato-plan again",
                  l->in->facts->id[device]);
    return stored;
}

static void program_finish(struct lowering *l, int32_t device)
{
    struct queue *q = &l->queue[device];
    struct lowered_device *d = &l->out->device[device];
    struct lowered_program *p = &d->phase[l->phase];
    const size_t n = (size_t)q->n + (size_t)l->streams[device];
    if (!q->n)
        return;
    p->records = calloc(n, sizeof *p->records);
    uint64_t *after = calloc((size_t)l->streams[device] + 1, sizeof *after);
    uint32_t *place = calloc((size_t)q->n, sizeof *place); /* by record of the queue */
    if (!p->records || !after || !place) {
        oato_fail_memory(l->err, n * sizeof *p->records, "a program");
        free(after);
        free(place);
        return;
    }
    if (device == l->in->facts->host) {
        ring_place(l, device, after);
    } else {
        streams_place(l, device, after);
        if (is_stored(l, device))
            ring_place(l, device, NULL);
    }
    uint32_t put = 0;
    uint64_t angles = 0;
    uint64_t streams = 0, read = 0;       /* stream records and reading records written so far */
    int32_t reader = streamed_next(q, 0); /* of the next stream */
    for (int32_t i = 0; i < q->n; i++) {
        struct queued *r = &q->records[i];
        for (; reader < q->n && after[streams] <= read; reader = streamed_next(q, reader + 1)) {
            p->records[put++] = stream_of(&q->records[reader].record);
            streams++;
        }
        record_fill(l, r);
        place[i] = put;
        p->records[put++] = r->record;
        read += r->streams;
        if (r->record.kind == RECORD_RUN)
            d->workspace_bytes = (uint64_t)max_i64(
                (int64_t)d->workspace_bytes,
                (int64_t)op_workspace(l, device, &r->record.op,
                                      r->record.rows ? l->max_states : l->max_tokens));
        const uint64_t own = record_angles(l, &r->record);
        angles = own > angles ? own : angles;
    }
    d->angles_bytes += angles;
    spans_finish(l, device, place);
    free(place);
    free(after);
    p->n_records = put;
}

void programs_finish(struct lowering *l)
{
    for (int32_t d = 0; d < l->out->n_devices; d++)
        signals_number(&l->queue[d], &l->out->device[d].phase[l->phase].n_signals);
    for (int32_t d = 0; d < l->out->n_devices && !failed(l); d++)
        program_finish(l, d);
}
