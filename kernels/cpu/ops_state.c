/*
 * ops_state.c - running operators with a recurrent state: which threads do which blocks of which
 * sequences. A block belongs to one thread and reads and writes its piece of the state alone.
 */
#include "kernels/cpu/record_internal.h"

#include <string.h>

/* Blocks of one sequence. */
static int64_t blocks_of(const struct oato_op *op)
{
    if (op->kind == OP_CONV)
        return (op->k + STATE_COLUMNS - 1) / STATE_COLUMNS;
    const int64_t columns = state_columns(op);
    return op->n / columns * ((columns + STATE_COLUMNS - 1) / STATE_COLUMNS);
}

static struct state_job job_of(const struct run *x, const struct step_seq *seq)
{
    struct state_job j = {.op = x->op,
                          .state = kv_state(x->c->kv, x->r->kv_layer, seq->state),
                          .out = output(x, 0) + (int64_t)seq->query_begin * x->op->n,
                          .T = seq->query_len,
                          .fresh = seq->kv_len == seq->query_len};
    for (int i = 0; i < x->r->n_in; i++)
        j.in[i] = input(x, i) + (int64_t)seq->query_begin * x->r->in_width[i];
    for (int i = 0; i < x->r->n_weights; i++)
        j.weight[i] = const_floats(weight(x, i)->data);
    return j;
}

static state_kernel kernel_of(const struct state_kernels *k, const struct oato_op *op)
{
    return op->kind == OP_CONV ? k->conv : op->kind == OP_DELTA ? k->delta : k->ssm;
}

void run_state(const struct run *x)
{
    const int64_t blocks = blocks_of(x->op), all = blocks * x->step->n_seqs;
    const int64_t end = all * (x->thread + 1) / x->n_threads;
    for (int64_t i = all * x->thread / x->n_threads, last; i < end; i = last) {
        const int64_t seq = i / blocks;
        last = min_i64(end, (seq + 1) * blocks);
        const struct state_job j = job_of(x, &x->step->seq[seq]);
        if (j.T > 0)
            kernel_of(x->k->state, x->op)(&j, i - seq * blocks, last - seq * blocks);
    }
}

/* The copies' order counts: a slot that was copied may be written by a later one. */
void run_state_copy(const struct run *x)
{
    const struct kv_cache *kv = x->c->kv;
    for (int32_t l = x->thread; l < kv->n_layers; l += x->n_threads)
        for (int32_t i = 0; kv->layers[l].state && i < x->step->n_state_copies; i++)
            memcpy(kv_state(kv, l, x->step->state_copy[i].to),
                   kv_state(kv, l, x->step->state_copy[i].from),
                   (size_t)kv->layers[l].state * sizeof(float));
}
