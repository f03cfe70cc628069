/*
 * result.c - what the host reads after a step: rows of logits or, in steps that want no more, the
 * candidates that accelerators and other ranks pick from them, for rows are large beside the rate
 * of a link or a network. Of logits that ranks divide, or that another one has, rank 0 alone gets
 * either. Rows of last hidden states besides, in steps that want any.
 */
#include "lowering/lowering_internal.h"

#include <stdlib.h>
#include <string.h>

/* The TOP_K operator that picks candidates from so many logits, the first of which has this id. */
static struct oato_op top_op(const struct lowering *l, int32_t first, int32_t width)
{
    return (struct oato_op){
        .kind = OP_TOP_K, .dtype = DT_F32, .k = width, .n = 2 * l->in->top_logits, .first = first};
}

static bool supports_top(const struct lowering *l, int32_t device)
{
    const struct lowering_facts *facts = l->in->facts;
    const struct oato_op op = top_op(l, 0, l->graph->values[l->graph->logits].width);
    return !facts->supports || facts->supports(facts->user, device, &op);
}

/* How many ranks have logits; 0: one of them has fewer than there are to be candidates. */
static int32_t lists_of(const struct lowering *l, const struct lowered_value *v)
{
    int32_t lists = 0;
    for (int i = 0, end; i < v->n_parts; i = end, lists++) {
        int32_t width = 0;
        for (end = i; end < v->n_parts && v->part_rank[end] == v->part_rank[i]; end++)
            width += v->part_width[end];
        if (width < l->in->top_logits)
            return 0;
    }
    return lists;
}

/* The device that picks from this rank's logits: it has them all, or is the host. -1: there are
 * none here. */
static int32_t top_device(const struct lowering *l, const struct lowered_value *v)
{
    int32_t device = -1, n = 0;
    for (int i = 0; i < v->n_parts; i++)
        if (v->part_device[i] >= 0) {
            device = v->part_device[i];
            n++;
        }
    return n < 1 || (n == 1 && supports_top(l, device)) ? device : l->in->facts->host;
}

static int32_t first_here(const struct lowered_value *v)
{
    int i = 0;
    while (v->part_device[i] < 0)
        i++;
    return v->part_begin[i];
}

/* The candidates of this rank's logits, on its host. */
static struct home candidates_read(struct lowering *l, int32_t device)
{
    const int32_t value = l->graph->logits, host = l->in->facts->host;
    struct lowered_value *v = &l->values[value];
    int32_t width = l->graph->values[value].width;
    if (device < 0)
        return nowhere;
    const struct home logits =
        value_is_shared(v) ? merge_columns(l, value, device, &width) : value_read(l, value, device);
    const struct oato_op op = top_op(l, first_here(v), width);
    l->some_rows = ROWS_PICKED;
    const struct home made = run_emit(l, device, op, value, &logits, &op.k, 1);
    if (failed(l) || device == host)
        return made;
    copy_count(l, op.n);
    return copy_emit(l, value, 0, op.n, made, host);
}

/* On the host of rank 0, a list for each rank that has logits. */
static struct home picks_read(struct lowering *l, int32_t lists)
{
    const int32_t value = l->graph->logits, own = l->in->placements->rank,
                  width = 2 * l->in->top_logits;
    const struct lowered_value *v = &l->values[value];
    const struct home made = candidates_read(l, top_device(l, v));
    l->some_rows = ROWS_PICKED;
    if (value_is_shared(v))
        return share_emit(l, RECORD_GATHER, value, made, width, lists * width);
    if (!l->in->placements->ranks || v->everywhere || !v->part_rank[0])
        return made;
    if (!own)
        return receive_emit(l, value, v->part_rank[0], width);
    if (own == v->part_rank[0] && !failed(l))
        send_emit(l, value, 0, made, width);
    return nowhere;
}

/* Whether candidates save anything: there are logits elsewhere. */
static bool picks_save(const struct lowering *l, const struct lowered_value *v)
{
    const bool away =
        l->in->placements->ranks && !v->everywhere && (v->part_rank[0] || !value_is_of_one_rank(v));
    return l->in->top_logits &&
           (away ? supports_top(l, l->in->facts->host) : top_device(l, v) != l->in->facts->host);
}

/* All of the value on the host of rank 0. */
static struct home rows_read(struct lowering *l, int32_t value)
{
    const struct placed_part rank_0 = {.rank = 0};
    const struct lowered_value *v = &l->values[value];
    value_pass(l, value, &rank_0);
    const bool here = !value_is_of_one_rank(v) || v->part_device[0] >= 0;
    return here && !failed(l) ? value_read(l, value, l->in->facts->host) : nowhere;
}

struct result result_read(struct lowering *l)
{
    const int32_t value = l->graph->logits;
    const struct lowered_value *v = &l->values[value];
    struct result r = {nowhere, nowhere, nowhere};
    l->to_first = true;
    const int32_t lists = picks_save(l, v) ? lists_of(l, v) : 0;
    if (lists) {
        r.picks = picks_read(l, lists);
        l->some_rows = ROWS_WHOLE;
    }
    l->out->candidates[l->phase] = lists ? l->in->top_logits : 0;
    l->out->lists[l->phase] = lists;
    r.whole = rows_read(l, value);
    if (l->in->state && !failed(l)) {
        l->some_rows = ROWS_STATES;
        r.states = rows_read(l, l->in->state);
    }
    return r;
}

/* The host reads it after the step. */
static void buffer_keep(struct lowering *l, int32_t buffer)
{
    if (buffer >= 0)
        l->buffers[buffer].last_use[l->in->facts->host] = INT32_MAX;
}

static uint64_t buffer_offset(const struct lowering *l, int32_t buffer)
{
    return buffer >= 0 ? l->buffers[buffer].offset : 0;
}

void phase_finish(struct lowering *l, const struct result *result)
{
    struct lowered *out = l->out;
    buffer_keep(l, result->whole.buffer);
    buffer_keep(l, result->picks.buffer);
    buffer_keep(l, result->states.buffer);
    for (int32_t i = 0; i < out->n_caches && l->phase == PHASE_DECODE; i++)
        buffer_keep(l, out->caches[i].choice);
    spans_cut(l);
    if (failed(l))
        return;
    buffers_place(l);
    for (int32_t i = 0; i < out->n_caches && l->phase == PHASE_DECODE; i++)
        out->caches[i].choice_offset = buffer_offset(l, out->caches[i].choice);
    programs_finish(l);
    out->result_offset[l->phase] = buffer_offset(l, result->whole.buffer);
    out->picks_offset[l->phase] = buffer_offset(l, result->picks.buffer);
    out->states_offset[l->phase] = buffer_offset(l, result->states.buffer);
}

void lowered_free(struct lowered *l)
{
    for (int d = 0; d < DEVICES_MAX; d++) {
        struct lowered_device *own = &l->device[d];
        for (int phase = 0; phase < PHASE_COUNT; phase++) {
            free(own->phase[phase].records);
            free(own->phase[phase].spans);
            free(own->phase[phase].span_bytes);
            free(own->phase[phase].span_values);
        }
        free(own->slots);
        free(own->kv);
        free(own->kv_shapes);
    }
    free(l->caches);
    memset(l, 0, sizeof *l);
}
