/*
 * asc_cases.c - see asc_cases.h. What the NPU leaves to the host has no row: test_asc_ops.c asks
 * for that by kinds.
 */
#include "tests/kernels/ascend/asc_cases.h"

static void vary_head_norm(struct trial *t, int variant)
{
    static const int32_t flags[] = {0,
                                    NORM_CENTRED,
                                    NORM_PLAIN,
                                    NORM_OWN_HEADS,
                                    NORM_HEAD_GAINS,
                                    NORM_CENTRED | NORM_OWN_HEADS,
                                    NORM_CENTRED | NORM_HEAD_GAINS,
                                    NORM_CENTRED | NORM_PLAIN};
    t->op.norm = flags[variant];
}

static void vary_asc_scale(struct trial *t, int variant)
{
    vary_scale(t, variant);
    if (variant == 3)
        t->op.temperature_step = 2;
}

/* One more: from a later dimension on. */
static void vary_asc_rope(struct trial *t, int variant)
{
    vary_rope(t, variant);
    if (variant == 3)
        t->op.first = t->op.head_dim - t->op.rope_dims;
}

static void vary_gate(struct trial *t, int variant)
{
    vary_activation(t, variant);
    if (t->op.heads != t->op.n && variant == ACT_CLAMPED)
        t->op.activation = ACT_RELU;
}

/* One more: a window of less than a page. */
static void vary_asc_attention(struct trial *t, int variant)
{
    vary_attention(t, variant);
    if (variant == 6)
        t->op.window = 9;
}

static void vary_route(struct trial *t, int variant)
{
    t->op.route_score = variant % ROUTE_SCORE_COUNT;
    t->op.route_norm = variant / ROUTE_SCORE_COUNT % 2;
    t->op.scale = variant % 4 ? 2.5f : 0;
    t->absent[0] = variant % 2;
    t->absent[1] = variant % 5 != 4;
    if (variant >= 2 * ROUTE_SCORE_COUNT && t->op.experts % 8 == 0) {
        t->op.route_groups = t->op.experts / 8;
        t->op.route_groups_used = (t->op.route_groups + 1) / 2;
    }
}

/* Plain; some of the experts, and weights of the choice at the input; factors and biases; one
 * matrix; gate and up in one tensor; all of it. */
static void vary_experts(struct trial *t, int variant)
{
    const bool gate_up = t->op.kind == OP_EXPERT_GATE_UP;
    for (int i = op_weight_least(&t->op); i < RECORD_WEIGHTS; i++)
        t->absent[i] = variant != 2 && variant != 5;
    if (variant == 1 || variant == 5) {
        t->op.expert_first = 2;
        t->op.experts_held = 3;
        t->op.weighs_input = variant == 1;
    }
    t->op.single = variant == 3 && gate_up;
    t->op.one_tensor = variant == 4 && gate_up;
}

static void vary_slice(struct trial *t, int variant)
{
    t->op.heads = variant ? 3 : 0;
    t->op.first = variant == 1 ? 5 : variant == 2 ? 0 : (t->op.k - t->op.n) / 2;
}

static void vary_merge(struct trial *t, int variant)
{
    const int32_t third = t->op.n / 3;
    t->n_in = variant == 1 ? 1 : variant == 2 ? 2 : 3;
    if (t->op.kind == OP_MERGE_SUM) {
        t->op.k = t->n_in * t->op.n;
        for (int i = 0; i < t->n_in; i++)
            t->in_width[i] = t->op.n;
        return;
    }
    for (int i = 0; i < t->n_in - 1; i++)
        t->in_width[i] = third - 1;
    t->in_width[t->n_in - 1] = t->op.n - (t->n_in - 1) * (third - 1);
}

static void vary_top_k(struct trial *t, int variant)
{
    t->op.first = variant ? 1000 : 0;
}

const struct recipe asc_cases[] = {
    {OP_MUL_MAT, "k64/n64", 0, NULL, false},
    {OP_MUL_MAT, "k64/n33", 0, NULL, false},
    {OP_MUL_MAT, "k96/n50", 0, NULL, false},
    {OP_MUL_MAT, "k128/n16", 0, NULL, false},
    {OP_MUL_MAT, "k256/n70", 0, NULL, false},
    {OP_MUL_MAT, "k512/n7", 0, NULL, false},
    {OP_MUL_MAT, "k160/n1", 0, NULL, false},
    {OP_MUL_MAT, "k64/n65600", 0, NULL, true}, /* a vocabulary in pieces */
    {OP_QKV, "k64/n64/m32", 0, NULL, false},
    {OP_QKV, "k96/n90/m30", 0, NULL, false},
    {OP_QKV, "k256/n64/m7", 0, NULL, false},
    {OP_GATE_UP, "k64/n40", 0, NULL, false},
    {OP_GATE_UP, "k128/n19", 0, NULL, false},
    {OP_GATE_UP, "k96/n64", 0, NULL, false},
    {OP_GATE_UP, "k64/n24", ACT_COUNT, vary_activation, true},
    {OP_HEAD_MUL_MAT, "k64/n48/h4/d96", 0, NULL, false},
    {OP_HEAD_MUL_MAT, "k64/n32/h3/d64", 0, NULL, false},
    {OP_HEAD_MUL_MAT, "k128/n16/h2/d192", 0, NULL, false},
    {OP_HEAD_MUL_MAT, "k96/n20/h4/d96", 0, NULL, false},
    {OP_MUL_MAT_T, "k70/n64", 0, NULL, false},
    {OP_MUL_MAT_T, "k16/n96", 0, NULL, false},
    {OP_EMBED, "k64/n300", 3, vary_embed, false},
    {OP_EMBED, "k96/n70", 3, vary_embed, false},
    {OP_RMS_NORM, "k576", 6, vary_norm, false},
    {OP_RMS_NORM, "k64", 6, vary_norm, false},
    {OP_RMS_NORM, "k50", 6, vary_norm, false},
    {OP_RMS_NORM, "k2500", 2, vary_norm, false},
    {OP_ADD_NORM, "k200", 6, vary_norm, false},
    {OP_ADD_NORM, "k64", 6, vary_norm, false},
    {OP_ADD_NORM, "k1027", 6, vary_norm, false},
    {OP_HEAD_NORM, "h9/d64", 8, vary_head_norm, false},
    {OP_HEAD_NORM, "h3/d80", 8, vary_head_norm, false},
    {OP_HEAD_NORM, "h1/d32", 8, vary_head_norm, false},
    {OP_BIAS, "k333", 0, NULL, false},
    {OP_BIAS, "k64", 0, NULL, false},
    {OP_BIAS, "k1", 0, NULL, false},
    {OP_ADD, "k333", 0, NULL, false},
    {OP_ADD, "k64", 0, NULL, false},
    {OP_ADD, "k1025", 0, NULL, false},
    {OP_SCALE, "k333", 4, vary_asc_scale, false},
    {OP_SCALE, "k64", 4, vary_asc_scale, false},
    {OP_ROPE, "h3/d64/r64/p0", 3, vary_asc_rope, false},
    {OP_ROPE, "h5/d64/r64/p1", 3, vary_asc_rope, false},
    {OP_ROPE, "h2/d80/r20/p1", 4, vary_asc_rope, false},
    {OP_ROPE, "h2/d80/r20/p0", 4, vary_asc_rope, false},
    {OP_ROPE, "h4/d32/r32/p1", 3, vary_asc_rope, false},
    {OP_ROPE, "h1/d128/r64/p1", 4, vary_asc_rope, false},
    {OP_ROPE, "h2/d192/r64/p0", 4, vary_asc_rope, false},
    {OP_SWIGLU, "k333", ACT_COUNT, vary_activation, false},
    {OP_SWIGLU, "k64", ACT_COUNT, vary_activation, false},
    {OP_ACTIVATE, "k333", ACT_COUNT, vary_activation, false},
    {OP_ACTIVATE, "k64", ACT_COUNT, vary_activation, false},
    {OP_GATE, "k640/h10", ACT_COUNT, vary_gate, false},
    {OP_GATE, "k96/h96", ACT_COUNT, vary_gate, false},
    {OP_CONVERT, "k333", 0, NULL, false},
    {OP_CONVERT, "k64", 0, NULL, false},
    {OP_SELECT, "k77", 0, NULL, false},
    {OP_SELECT, "k64", 0, NULL, false},
    {OP_MERGE, "n300", 3, vary_merge, false},
    {OP_MERGE, "n64", 3, vary_merge, false},
    {OP_MERGE_SUM, "k600/n200", 3, vary_merge, false},
    {OP_MERGE_SUM, "k150/n50", 3, vary_merge, false},
    {OP_SLICE, "k300/n75", 4, vary_slice, false},
    {OP_SLICE, "k96/n48", 3, vary_slice, false},
    {OP_TOP_K, "k500/n80", 2, vary_top_k, false},
    {OP_TOP_K, "k64/n2", 2, vary_top_k, false},
    {OP_ROUTE, "e72/u6", 10, vary_route, false},
    {OP_ROUTE, "e32/u4", 10, vary_route, false},
    {OP_ROUTE, "e8/u2", 6, vary_route, false},
    {OP_ROUTE, "e5/u5", 6, vary_route, false},
    {OP_EXPERT_GATE_UP, "k64/n48/e6/u2", 6, vary_experts, false},
    {OP_EXPERT_GATE_UP, "k96/n22/e8/u3", 6, vary_experts, true},
    {OP_EXPERT_DOWN, "k64/n48/e6/u2", 6, vary_experts, false},
    {OP_EXPERT_DOWN, "k96/n22/e8/u3", 6, vary_experts, true},
    {OP_CONV, "k96/s3", 0, NULL, false},
    {OP_CONV, "k64/s1", 0, NULL, false},
    {OP_CONV, "k8/s7", 0, NULL, false},
    {OP_ATTENTION, "h4/g2/d64", 7, vary_asc_attention, false}, /* of what KV_STORE stored */
    {OP_ATTENTION, "h7/g1/d16", 7, vary_asc_attention, false},
    {OP_ATTENTION, "h3/g3/d96", 7, vary_asc_attention, false},
    {OP_ATTENTION, "h8/g2/d32/v64", 7, vary_asc_attention, false},
    {OP_ATTENTION, "h4/g1/d96/c64", 7, vary_asc_attention, false},
};
const int asc_case_count = ARRAY_LEN(asc_cases);
