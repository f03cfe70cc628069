/*
 * cuda_state.c - launches of the recurrent mixers (state.cu). Grids have a row for each sequence
 * that a step may have, so that captured launches last; those that it has not have no tokens.
 */
#include "kernels/cuda/cuda_record.h"

static float *layer_at(const struct launch *l, int32_t layer)
{
    const struct kv_cache *kv = l->c->program->kv;
    return floats(kv->data + kv->layer_offset[layer]);
}

cu_result launch_state(const struct launch *l)
{
    const struct oato_op *op = l->op;
    /* Single channels are the columns of their group. */
    const bool channels = op->kind == OP_SSM && op->per_channel;
    struct cuda_state_args a = {.step = l->c->step,
                                .state = layer_at(l, l->r->kv_layer),
                                .slot_floats = op_state_floats(op),
                                .y = launch_output(l, 0),
                                .k = op->k,
                                .rows = op->state,
                                .heads = channels ? op->kv_heads : op->heads,
                                .groups = op->kv_heads,
                                .head_dim = channels ? op->heads / op->kv_heads : op->head_dim,
                                .per_channel = op->per_channel,
                                .cyclic = op->cyclic,
                                .eps = op->eps,
                                .scale = op->scale,
                                .alibi = op->alibi};
    for (int i = 0; i < l->r->n_in; i++)
        a.in[i] = launch_input(l, i);
    for (int i = 0; i < l->r->n_weights; i++)
        a.weight[i] = launch_vector(l, i);
    const int32_t columns = op->kind == OP_CONV ? op->k : a.head_dim;
    const int32_t heads = op->kind == OP_CONV ? 1 : a.heads;
    const int32_t shared = op->kind == OP_DELTA ? 3 * op->head_dim : 2 * op->state;
    const struct grid grid = {(uint32_t)heads *
                                  (uint32_t)((columns + STATE_THREADS - 1) / STATE_THREADS),
                              (uint32_t)max_i64(l->c->program->max_seqs, 1), 1};
    return launch_start(l, l->kernels->run, grid, STATE_THREADS,
                        op->kind == OP_CONV ? 0 : (uint32_t)shared * (uint32_t)sizeof(float), &a);
}

cu_result launch_state_copy(const struct launch *l, int32_t layer)
{
    const int64_t floats_of_slot = l->c->program->kv->layers[layer].state;
    struct cuda_state_copy_args a = {.step = l->c->step,
                                     .state = layer_at(l, layer),
                                     .slot_floats = floats_of_slot,
                                     .copies = l->step->n_state_copies};
    const struct grid grid = {(uint32_t)((floats_of_slot + STATE_THREADS - 1) / STATE_THREADS), 1,
                              1};
    return a.copies ? launch_start(l, l->kernels->merge, grid, STATE_THREADS, 0, &a) : CU_OK;
}
