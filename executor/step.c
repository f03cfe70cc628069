/*
 * step.c - the step descriptor: which tokens, sequences and rows the inputs of a step are.
 */
#include "executor/executor_internal.h"

enum plan_phase input_phase(const struct engine_input *in)
{
    return in->n == 1 && !in->prompt ? PHASE_DECODE : PHASE_PREFILL;
}

int32_t input_rows(const struct engine_input *in)
{
    const bool all = in->logits == LOGITS_ALL || in->logits == LOGITS_STATES;
    return all ? in->n : in->logits != LOGITS_NONE;
}

int32_t input_states(const struct engine *e, const struct engine_input *in)
{
    return e->states && in->logits == LOGITS_STATES ? in->n : 0;
}

/* step_observer: merges and copies are no operators of the graph. */
static void record_observe(void *user, const struct program_record *r, const void *arena,
                           int32_t rows)
{
    const struct engine *e = user;
    uint8_t *own = e->device[e->host].arena; /* `arena`, to be written */
    const float *in[RECORD_INPUTS];
    float *out[RECORD_OUTPUTS];
    if (r->graph_op == UINT32_MAX || r->parts != 1)
        return;
    for (int i = 0; i < r->n_in; i++)
        in[i] = (const float *)((const uint8_t *)arena + r->in[i]);
    for (int i = 0; i < r->n_out; i++)
        out[i] = (float *)(void *)(own + r->out[i]);
    e->observe(e->observe_user, (int32_t)r->graph_op, rows, in, out);
}

void step_bind(struct engine *e, struct step *step)
{
    step->cached = e->cached;
    step->timeline = e->timelines;
    step->timeline_base = e->bases;
    if (e->observe) {
        step->observe = record_observe;
        step->observe_user = e;
    }
    for (int i = 0; i < e->n_devices; i++)
        if (e->timelines[i]->simulated)
            step->cores = &e->cores;
}

/* Lists the rows of the input that begins with the step's token `first`; number: of the first row
 * in the order of the inputs. */
static void rows_fill(struct engine *e, const struct engine_input *in, int32_t first,
                      int32_t number, struct step *step)
{
    const int32_t n = input_rows(in);
    for (int32_t j = 0; j < n; j++) {
        e->row_number[step->n_rows] = number + j;
        e->rows[step->n_rows++] = first + in->n - n + j;
    }
    step->n_states += input_states(e, in);
}

void step_fill(struct engine *e, const struct engine_input *inputs, int32_t n, uint32_t phases,
               struct step *step)
{
    step->picks = true;
    for (int32_t i = 0; i < n; i++) {
        const struct engine_input *in = &inputs[i];
        const struct kv_seq *s = &e->pool.seqs[in->seq];
        if (!(phases >> input_phase(in) & 1))
            continue;
        e->step_seqs[step->n_seqs] = (struct step_seq){
            .query_begin = step->n_tokens,
            .query_len = in->n,
            .kv_len = (int64_t)s->length + in->n,
            .pages = s->table[KV_ALL].pages,
            .window_pages = s->table[KV_WINDOW].pages,
            .state = s->state,
        };
        for (int32_t j = 0; j < in->n; j++) {
            const int32_t t = step->n_tokens++;
            e->ids[t] = in->ids[j];
            e->positions[t] = s->length + j;
            e->seq_of[t] = step->n_seqs;
        }
        if (input_rows(in) > input_states(e, in))
            step->picks = step->picks && in->logits == LOGITS_PICKS;
        step->n_seqs++;
    }
    for (int states = 0; states < 2; states++) {
        int32_t number = 0; /* number of the next row, counted over all inputs */
        for (int32_t i = 0, seq = 0; i < n; number += input_rows(&inputs[i]), i++) {
            const bool here = phases >> input_phase(&inputs[i]) & 1;
            if (here && !!input_states(e, &inputs[i]) == states)
                rows_fill(e, &inputs[i], e->step_seqs[seq].query_begin, number, step);
            seq += here;
        }
    }
    step->token_id = e->ids;
    step->token_position = e->positions;
    step->token_seq = e->seq_of;
    step->seq = e->step_seqs;
    step->row = e->rows;
    step_bind(e, step);
}
