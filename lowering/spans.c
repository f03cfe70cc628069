/*
 * spans.c - the runs of records that a device compiles as one function (struct program_span). A
 * span is as long as can be: neighbours in the queue of kinds that may be in one (op_spans), of one
 * row class and without streamed weights; one that waits begins a span, one that signals ends one.
 * Streams are never between them: they follow what reads streamed weights (programs.c).
 *
 * Spans are cut before buffers are placed, for their inputs must last until their end: a function
 * may write a result before it has read all that it reads.
 */
#include "lowering/lowering_internal.h"

#include <stdlib.h>

static bool may_join(const struct queued *r)
{
    return r->record.kind == RECORD_RUN && op_spans(&r->record.op) && !r->streams;
}

/* The end of the span that begins with record i; i: there is none. */
static int32_t span_end(const struct queue *q, int32_t i)
{
    const struct queued *first = &q->records[i];
    int32_t end = i;
    while (end < q->n && may_join(&q->records[end]) &&
           q->records[end].record.rows == first->record.rows &&
           (end == i || (!q->records[end].record.n_waits && !q->records[end - 1].signals)))
        end++;
    return end;
}

/* Read by a record behind the span or of another queue, or, where only some operators are lowered,
 * by nobody. */
static bool outlives(const struct lowering *l, const struct buffer *b, int32_t device, int32_t end)
{
    bool read = b->last_use[device] >= end || b->last_use[device] == b->def_record;
    for (int32_t q = 0; q < l->out->n_devices; q++)
        read = read || (q != device && b->last_use[q] >= 0);
    return read;
}

/* Adds the value at `buffer`, whose number takes the place of its offset until that is known. */
static void value_add(const struct lowering *l, struct lowered_program *p, struct program_span *s,
                      uint16_t *count, int32_t buffer, int32_t width, uint8_t rows)
{
    for (uint32_t i = s->value; i < p->n_span_values; i++) {
        struct span_value *v = &p->span_values[i];
        if (v->offset != (uint64_t)buffer)
            continue;
        v->width = width > v->width ? width : v->width;
        return;
    }
    p->span_values[p->n_span_values++] =
        (struct span_value){.offset = (uint64_t)buffer,
                            .width = width,
                            .rows = rows,
                            .type = (uint8_t)l->buffers[buffer].type};
    ++*count;
}

static void span_add(struct lowering *l, int32_t device, int32_t begin, int32_t end)
{
    const struct queue *q = &l->queue[device];
    struct lowered_program *p = &l->out->device[device].phase[l->phase];
    struct program_span *s = &p->spans[p->n_spans++];
    *s = (struct program_span){
        .begin = (uint32_t)begin, .end = (uint32_t)end, .value = p->n_span_values};
    for (int32_t i = begin; i < end; i++)
        for (int k = 0; k < q->records[i].record.n_in; k++) {
            const struct queued *r = &q->records[i];
            struct buffer *b = &l->buffers[r->in[k]];
            if (b->def_queue == device && b->def_record >= begin)
                continue;
            value_add(l, p, s, &s->n_in, r->in[k], r->record.in_width[k], r->record.rows);
            b->last_use[device] = b->last_use[device] < end - 1 ? end - 1 : b->last_use[device];
        }
    for (int32_t i = begin; i < end; i++)
        for (int k = 0; k < q->records[i].record.n_out; k++) {
            const struct queued *r = &q->records[i];
            if (outlives(l, &l->buffers[r->out[k]], device, end))
                value_add(l, p, s, &s->n_out, r->out[k], op_out_width(&r->record.op, k),
                          r->record.rows);
        }
}

void spans_cut(struct lowering *l)
{
    for (int32_t d = 0; d < l->out->n_devices && !failed(l); d++) {
        const struct queue *q = &l->queue[d];
        struct lowered_program *p = &l->out->device[d].phase[l->phase];
        if (!l->in->facts->rows[d] || q->n < 1)
            continue;
        size_t values = 0;
        for (int32_t i = 0; i < q->n; i++)
            values += (size_t)q->records[i].record.n_in + q->records[i].record.n_out;
        p->spans = calloc((size_t)q->n, sizeof *p->spans);
        p->span_bytes = calloc((size_t)q->n, sizeof *p->span_bytes);
        p->span_values = calloc(values + 1, sizeof *p->span_values);
        if (!p->spans || !p->span_bytes || !p->span_values) {
            oato_fail_memory(l->err, values * sizeof *p->span_values, "the spans of a program");
            return;
        }
        for (int32_t i = 0, end; i < q->n; i = end) {
            end = span_end(q, i);
            if (end > i)
                span_add(l, d, i, end);
            else
                end++;
        }
    }
}

/* What a function takes for so many rows: buffers of its values, and what the neediest of its
 * operators takes, for they come one after the other. */
static uint64_t function_bytes(const struct lowering *l, int32_t device,
                               const struct lowered_program *p, const struct program_span *s,
                               int32_t rows)
{
    uint64_t values = 0;
    int64_t most = 0;
    for (uint32_t i = 0; i < (uint32_t)s->n_in + s->n_out; i++)
        values += (uint64_t)rows * (uint64_t)p->span_values[s->value + i].width * sizeof(float);
    for (uint32_t i = s->begin; i < s->end; i++)
        most = max_i64(most, (int64_t)op_workspace(l, device, &p->records[i].op, rows));
    return values + (uint64_t)most;
}

/* Of all numbers of rows that steps of the program may need. */
static uint64_t functions_bytes(const struct lowering *l, int32_t device,
                                const struct lowered_program *p, const struct program_span *s)
{
    const int32_t *steps = l->in->facts->rows[device];
    const int32_t most = rows_most(l, p->records[s->begin].rows);
    uint64_t sum = 0;
    if (!steps || !steps[0])
        return function_bytes(l, device, p, s, most);
    for (int i = 0; i < DEVICE_ROWS && steps[i] && (!i || steps[i - 1] < most); i++)
        sum += function_bytes(l, device, p, s, steps[i]);
    return sum;
}

void spans_finish(struct lowering *l, int32_t device, const uint32_t *place)
{
    struct lowered_program *p = &l->out->device[device].phase[l->phase];
    for (uint32_t i = 0; i < p->n_spans; i++) {
        p->spans[i].end = place[p->spans[i].end - 1] + 1;
        p->spans[i].begin = place[p->spans[i].begin];
        p->span_bytes[i] = functions_bytes(l, device, p, &p->spans[i]);
    }
    for (uint32_t i = 0; i < p->n_span_values; i++)
        p->span_values[i].offset = l->buffers[p->span_values[i].offset].offset;
}
