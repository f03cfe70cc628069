/*
 * plan.c - the programs that a plan's own request asks for: what an engine would lower that is
 * opened for that request and no more. The solver prices them and states what they take.
 */
#include "lowering/lowering.h"

#include <string.h>

oato_status lower_plan(const struct plan *plan, struct graph *g, const struct lowering_facts *facts,
                       const int32_t *bound, int32_t top_logits, struct placements *places,
                       struct lowered *out, struct oato_error *err)
{
    const struct plan_request *q = &plan->request;
    const int32_t most = q->ubatch > q->batch ? q->ubatch : q->batch;
    const struct lowering_input in = {.graph = g,
                                      .placements = places,
                                      .facts = facts,
                                      .limits = {.tokens = {most, q->batch},
                                                 .rows = {q->batch, q->batch},
                                                 .seqs = q->batch,
                                                 .context = q->context},
                                      .kv = q->kv,
                                      .top_logits = top_logits};
    memset(out, 0, sizeof *out);
    for (int32_t i = 0; i < g->n_ops; i++)
        g->ops[i].op = graph_op_with_kv(&g->ops[i], q->kv);
    oato_status status = placements_create(plan, g, bound, facts->host, places, err);
    if (!status)
        sparse_place(g, plan->neurons, places);
    if (!status)
        status = lowered_init(&in, out, err);
    for (int phase = 0; phase < PHASE_COUNT && !status; phase++)
        status = lower(&in, (enum plan_phase)phase, out, err);
    return status;
}
