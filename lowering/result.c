/*
 * result.c - what the host reads after a step: rows of logits, or the candidates that an
 * accelerator picks from them. Of logits that ranks divide, or that another one has, rank 0 alone
 * gets the rows.
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

/* The accelerator that has all logits and can run TOP_K on them; -1: none. */
static int32_t top_device(const struct lowering *l)
{
    const struct lowering_facts *facts = l->in->facts;
    const struct lowered_value *v = &l->values[l->graph->logits];
    const int32_t device = v->part_device[0];
    const struct oato_op op = top_op(l);
    if (!l->in->top_logits || v->n_parts != 1 || device == facts->host || l->in->placements->rank)
        return -1;
    return !facts->supports || facts->supports(facts->user, device, &op) ? device : -1;
}

/* The candidates of each row of logits, on the host. */
static struct home candidates_read(struct lowering *l, int32_t device)
{
    const int32_t value = l->graph->logits;
    const struct oato_op op = top_op(l);
    const struct home logits = part_read(l, value, 0, device);
    const struct home made = run_emit(l, device, op, value, &logits, &op.k, 1);
    if (failed(l))
        return made;
    copy_count(l, op.n);
    return copy_emit(l, value, 0, op.n, made, l->in->facts->host);
}

struct home result_read(struct lowering *l)
{
    const struct home nowhere = {-1, 0, 0};
    const struct placed_part rank_0 = {.rank = 0};
    const struct lowered_value *v = &l->values[l->graph->logits];
    value_pass(l, l->graph->logits, &rank_0);
    if (failed(l) || (v->part_device[0] < 0 && value_is_of_one_rank(v)))
        return nowhere;
    const int32_t device = top_device(l);
    l->out->candidates[l->phase] = device < 0 ? 0 : l->in->top_logits;
    l->to_first = true;
    return device < 0 ? value_read(l, l->graph->logits, l->in->facts->host)
                      : candidates_read(l, device);
}
