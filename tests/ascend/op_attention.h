/*
 * op_attention.h - fused attention between the checks of its arguments (op_attention_args.c) and
 * its kernel (op_attention.c).
 */
#ifndef STAND_OP_ATTENTION_H
#define STAND_OP_ATTENTION_H

#include "tests/ascend/op.h"

enum { MOST_BATCHES = 65536, MOST_LISTED = 256, MOST_HEADS = 256, MOST_D = 512, MASK_SIDE = 2048 };

/* Positions of the axes in a layout; -1: heads and D share the last axis (BSH). */
struct layout {
    const char *name;
    int rank, heads, rows;
    bool out_bsnd; /* the result is BSND whatever the query */
};

/* Scales of INT8 keys or values: one, one a channel (N * D), or one a token (B * S). */
struct antiquant {
    struct stand_view scale, offset;
    bool per_token;
};

struct attention_op {
    struct stand_view q, out, pse, mask, table, lse; /* q, out: B, N, S, D */
    struct stand_view key, value;                    /* B, N, S, D; paged: blocks, N, S, D */
    struct antiquant key_quant, value_quant;
    struct stand_ints q_lengths, kv_lengths;
    const struct layout *layout;
    int64_t batches, heads, kv_heads, rows, d, keys, block, before, after, sparse;
    double scale;
    bool fast, mend_rows;
    int64_t listed; /* tensors of one batch in key_list, 0: `key` has all */
    struct stand_view key_list[MOST_LISTED], value_list[MOST_LISTED];
};

/* The entry of a batch; one entry stands for all, none for `all`. */
int64_t op_attention_length(struct stand_ints lengths, int64_t batch, int64_t all);
void op_attention_run(struct stand_run *run, const void *state); /* of struct attention_op */

#endif
