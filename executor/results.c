/*
 * results.c - what a step gives: rows of logits, or candidates of them, which several ranks may
 * have picked, each from its part of the vocabulary.
 */
#include "executor/executor_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The last hidden state: what the output product reads, or a factor before it. -1: there is none.
 */
static int32_t state_value(const struct graph *g)
{
    for (int32_t i = g->n_ops; i-- > 0;) {
        if (strcmp(g->ops[i].name, "output") != 0)
            continue;
        const struct graph_op *before = &g->ops[g->values[g->ops[i].in[0]].producer];
        return before->op.kind == OP_SCALE ? before->in[0] : g->ops[i].in[0];
    }
    return -1;
}

oato_status states_choose(struct engine *e, struct oato_error *err)
{
    struct graph *g = &e->graph;
    const int32_t n = g->n_ops, state = state_value(g);
    if (state <= 0 && e->embeddings)
        return oato_fail(err, OATO_EFILE, "this model has no output product, and so no embeddings");
    e->states = e->states && state > 0;
    e->state = e->states ? state : 0;
    if (!e->embeddings)
        return OATO_OK;
    g->logits = state;
    g->n_ops = g->values[state].producer + 1;
    e->spare_ops = n - g->n_ops;
    return OATO_OK;
}

/* Floats of a row in the host's arena. */
static size_t row_width(const struct engine *e, enum plan_phase phase, bool picks)
{
    const struct lowered *l = &e->lowered;
    return picks ? 2 * (size_t)l->candidates[phase] * (size_t)l->lists[phase]
                 : (size_t)e->graph.values[e->graph.logits].width;
}

/* Either both phases are alike, so that no step needs to mix, or the decode rows need a buffer. */
static oato_status mixing_prepare(struct engine *e, struct oato_error *err)
{
    const size_t whole = row_width(e, PHASE_DECODE, false),
                 picks = row_width(e, PHASE_DECODE, true);
    e->phases_alike = engine_phases_alike(e);
    if (e->phases_alike || e->max_seqs < 2)
        return OATO_OK;
    e->kept_bytes = (size_t)e->max_seqs * (whole > picks ? whole : picks) * sizeof *e->kept;
    e->kept = malloc(e->kept_bytes);
    return e->kept ? OATO_OK : oato_fail_memory(err, e->kept_bytes, "rows of logits");
}

oato_status results_prepare(struct engine *e, struct oato_error *err)
{
    const struct lowered *l = &e->lowered;
    const size_t floats = 2 * (size_t)e->top_logits * (size_t)e->max_states;
    if (l->lists[PHASE_PREFILL] > 1 || l->lists[PHASE_DECODE] > 1) {
        e->merged = arena_alloc(&e->arena, floats, sizeof *e->merged);
        if (!e->merged)
            return oato_fail_memory(err, floats * sizeof *e->merged, "candidates");
    }
    return mixing_prepare(e, err);
}

/* What is no number comes last, as in OP_TOP_K. */
static bool is_before(float x, float y)
{
    return x > y || (isnan(y) && !isnan(x));
}

/* The first n of lists of n candidates, each in falling order and with lower ids than the next
 * one, so that of equal logits the lower id is first. */
static void lists_merge(const float *list, int32_t lists, int32_t n, float *out)
{
    int32_t next[RANKS_MAX] = {0};
    for (int32_t i = 0; i < n; i++) {
        int32_t of = 0;
        for (int32_t j = 1; j < lists; j++) {
            const float *head = list + 2 * n * j + next[j], *best = list + 2 * n * of + next[of];
            if (next[j] < n && (next[of] == n || is_before(head[n], best[n])))
                of = j;
        }
        const float *from = list + 2 * n * of + next[of]++;
        out[i] = from[0];
        out[n + i] = from[n];
    }
}

void results_take(struct engine *e, enum plan_phase phase, const struct step *step, bool keep)
{
    const struct lowered *l = &e->lowered;
    const uint8_t *arena = e->device[e->host].arena;
    const int32_t n = step->picks ? l->candidates[phase] : 0;
    const size_t width = row_width(e, phase, step->picks);
    const float *rows =
        (const float *)(arena + (n ? l->picks_offset[phase] : l->result_offset[phase]));
    const float *states = (const float *)(arena + l->states_offset[phase]);
    const int32_t logits = step->n_rows - step->n_states;
    if (keep && logits) { /* of decode, which has no states */
        memcpy(e->kept, rows, (size_t)logits * width * sizeof *rows);
        rows = e->kept;
    }
    for (int32_t i = logits; i < step->n_rows; i++)
        e->result[e->row_number[i]] =
            (struct result_row){states + (size_t)i * (size_t)e->graph.values[e->state].width, 0};
    for (int32_t i = 0; i < logits; i++) {
        const int32_t number = e->row_number[i];
        const float *row = rows + (size_t)i * width;
        if (n && l->lists[phase] > 1) {
            float *merged = e->merged + 2 * (size_t)n * (size_t)number;
            lists_merge(row, l->lists[phase], n, merged);
            row = merged;
        }
        e->result[number] = (struct result_row){row, n};
    }
    e->n_rows += step->n_rows;
}

const float *engine_logits(const struct engine *e, int32_t row)
{
    return row < 0 || row >= e->n_rows || e->result[row].candidates ? NULL : e->result[row].data;
}

const float *engine_candidates(const struct engine *e, int32_t row, int32_t *n)
{
    *n = row < 0 || row >= e->n_rows ? 0 : e->result[row].candidates;
    return *n ? e->result[row].data : NULL;
}
