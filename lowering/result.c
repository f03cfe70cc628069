/*
 * result.c - what the host reads after a step: rows of logits, or the candidates that an
 * accelerator, or another rank, picks from them. Of logits that ranks divide, or that another one
 * has, rank 0 alone gets the rows.
 */
#include "lowering/lowering_internal.h"

/* The TOP_K operator that picks candidates from the logits. */
static struct oato_op top_op(const struct lowering *l)
{
    return (struct oato_op){.kind = OP_TOP_K,
                            .dtype = DT_F32,
                            .k = l->graph->values[l->graph->logits].width,
                            .n = 2 * l->in->top_logits};
}

static bool supports_top(const struct lowering *l, int32_t device)
{
    const struct lowering_facts *facts = l->in->facts;
    const struct oato_op op = top_op(l);
    return !facts->supports || facts->supports(facts->user, device, &op);
}

/* The device that has all logits and can run TOP_K on them, or else the host. */
static int32_t top_device(const struct lowering *l)
{
    const struct lowered_value *v = &l->values[l->graph->logits];
    return v->n_parts == 1 && supports_top(l, v->part_device[0]) ? v->part_device[0]
                                                                 : l->in->facts->host;
}

/* The candidates of each row of logits, on the host. */
static struct home candidates_read(struct lowering *l, int32_t device)
{
    const int32_t value = l->graph->logits, host = l->in->facts->host;
    const struct oato_op op = top_op(l);
    const struct home logits = value_read(l, value, device);
    const struct home made = run_emit(l, device, op, value, &logits, &op.k, 1);
    if (failed(l) || device == host)
        return made;
    copy_count(l, op.n);
    return copy_emit(l, value, 0, op.n, made, host);
}

/* Logits are large, beside a network's rate: another rank that has them sends candidates alone. */
static struct home candidates_pass(struct lowering *l)
{
    const int32_t value = l->graph->logits, from = l->values[value].part_rank[0];
    const int32_t own = l->in->placements->rank, width = top_op(l).n;
    if (!own) {
        l->out->candidates[l->phase] = l->in->top_logits;
        return receive_emit(l, value, from, width);
    }
    const struct home nowhere = {-1, 0, 0};
    const struct home made = own == from ? candidates_read(l, top_device(l)) : nowhere;
    if (own == from && !failed(l))
        send_emit(l, value, 0, made, width);
    return made;
}

struct home result_read(struct lowering *l)
{
    const struct home nowhere = {-1, 0, 0};
    const struct placed_part rank_0 = {.rank = 0};
    const int32_t value = l->graph->logits, host = l->in->facts->host;
    const struct lowered_value *v = &l->values[value];
    const bool one = value_is_of_one_rank(v),
               away = one && l->in->placements->ranks && v->part_rank[0];
    if (away && l->in->top_logits && supports_top(l, host))
        return candidates_pass(l);
    value_pass(l, value, &rank_0);
    if (failed(l) || (one && v->part_device[0] < 0))
        return nowhere;
    l->to_first = true;
    const bool picks = l->in->top_logits && !l->in->placements->rank && top_device(l) != host;
    l->out->candidates[l->phase] = picks ? l->in->top_logits : 0;
    return picks ? candidates_read(l, top_device(l)) : value_read(l, value, host);
}
