/*
 * arch_attention.c - grouped-query attention of a recipe: products for q, k and v (or one for all
 * three), norms of heads, rotations, the KV cache, and the output product.
 */
#include "models/recipe_internal.h"

#include <string.h>

struct qkv {
    int32_t q, k, v, gate;
};

static int32_t clamped(struct graph_builder *b, const struct layer_shape *s, const char *name,
                       int32_t in)
{
    const struct oato_op op = {.kind = OP_ACTIVATE, .activation = ACT_CLAMP, .scale = s->qkv_bound};
    return s->qkv_bound != 0 ? arch_elementwise(b, s->layer, name, "_clamp", op, in, NULL) : in;
}

static bool has_own_kv(const struct layer_shape *s)
{
    return s->kv_layer == s->layer;
}

/* The product for v; -1: there is none. */
static int32_t v_matrix(struct graph_builder *b, const struct layer_shape *s, int32_t n, int32_t v)
{
    const bool held =
        !s->recipe->k_is_v || build_tensor(b, s->width, v, true, "blk.%d.attn_v.weight", s->layer);
    return held ? arch_matrix(b, s->layer, "attn_v", n, v) : -1;
}

/* Of a layer that attends to another one's keys and values. Files may have its own, too. */
static struct qkv q_alone(struct graph_builder *b, const struct layer_shape *s, int32_t n,
                          enum factor factor)
{
    static const char *const others[] = {"attn_k", "attn_v", "attn_k_norm"};
    const int32_t q = arch_product(b, s->layer, "attn_q", n, s->heads * s->head_dim, factor);
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        arch_unused(b, s->layer, others[i]);
    return (struct qkv){.q = q, .k = -1, .v = -1, .gate = -1};
}

/* The products stand side by side, so that they can be fused, and then what is done to each. */
static struct qkv products(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    const int32_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const int32_t v = s->kv_heads * s->v_dim;
    const bool demanded = s->recipe->qkv_biases;
    const enum factor factor = s->recipe->qkv_factors_unused ? FACTOR_UNUSED : FACTOR_OF_PRODUCT;
    struct qkv r = {.gate = -1};
    if (build_tensor(b, s->width, (int64_t)q + kv + v, true, "blk.%d.attn_qkv.weight", s->layer)) {
        int32_t all = arch_matrix(b, s->layer, "attn_qkv", n, (int64_t)q + kv + v);
        all = arch_extras(b, s->layer, "attn_qkv", all, demanded, factor);
        all = clamped(b, s, "attn_qkv", all);
        r.q = arch_slice(b, s->layer, "attn_q", all, 0, q);
        r.k = has_own_kv(s) ? arch_slice(b, s->layer, "attn_k", all, q, kv) : -1;
        r.v = has_own_kv(s) ? arch_slice(b, s->layer, "attn_v", all, q + kv, v) : -1;
        return r;
    }
    if (!has_own_kv(s))
        return q_alone(b, s, n, factor);
    const bool gated = s->recipe->q_holds_gate;
    r.q = arch_matrix(b, s->layer, "attn_q", n, gated ? 2 * (int64_t)q : q);
    r.k = arch_matrix(b, s->layer, "attn_k", n, kv);
    r.v = v_matrix(b, s, n, v);
    r.q = arch_extras(b, s->layer, "attn_q", r.q, demanded, factor);
    r.k = arch_extras(b, s->layer, "attn_k", r.k, demanded, factor);
    r.v = r.v < 0 ? r.k : arch_extras(b, s->layer, "attn_v", r.v, demanded, factor);
    r.q = clamped(b, s, "attn_q", r.q);
    r.k = clamped(b, s, "attn_k", r.k);
    r.v = clamped(b, s, "attn_v", r.v);
    if (gated) {
        const int32_t both = r.q;
        r.q = arch_slice_heads(b, s->layer, "attn_q_half", both, s->heads, 0, s->head_dim);
        r.gate =
            arch_slice_heads(b, s->layer, "attn_gate", both, s->heads, s->head_dim, s->head_dim);
    }
    return r;
}

static int32_t qk_norm(struct graph_builder *b, const struct layer_shape *s, const char *name,
                       int32_t in, int32_t heads)
{
    if (s->recipe->qk_norm == QK_WHOLE)
        return arch_norm(b, s, s->layer, name, in);
    const bool plain = s->recipe->k_norm_plain && !strcmp(name, "attn_k_norm");
    return arch_head_norm(b, s, name, in, heads, s->head_dim,
                          plain ? NORM_PLAIN : s->recipe->head_norm, s->recipe->qk_norm_if_held);
}

static void qk_norms(struct graph_builder *b, const struct layer_shape *s, struct qkv *r)
{
    if (s->recipe->qk_norm == QK_WHOLE && s->recipe->qk_norm_if_held &&
        !arch_has(b, s->layer, "attn_q_norm.weight")) { /* llama.cpp leaves k alone, too */
        arch_unused(b, s->layer, "attn_k_norm");
        return;
    }
    r->q = qk_norm(b, s, "attn_q_norm", r->q, s->heads);
    if (has_own_kv(s))
        r->k = qk_norm(b, s, "attn_k_norm", r->k, s->kv_heads);
}

/* The tensor has a row a head or a row an element. */
int32_t arch_gated(struct graph_builder *b, const struct layer_shape *s, int32_t n, int32_t o)
{
    char name[GGUF_MAX_NAME + 1];
    if (!s->recipe->output_gate)
        return o;
    snprintf(name, sizeof name, "blk.%d.attn_gate.weight", build_block(b, s->layer));
    const struct gguf_tensor *t = gguf_tensor(b->gguf, name);
    const int32_t gates = t && t->ne[1] == s->heads ? s->heads : s->heads * s->v_dim;
    const int32_t gate = arch_product(b, s->layer, "attn_gate", n, gates, FACTOR_UNUSED);
    return arch_gate(b, s->layer, "attn_gated", o, gate, s->recipe->output_gate);
}

int32_t arch_attend(struct graph_builder *b, const struct layer_shape *s, struct oato_op op,
                    int32_t q, int32_t k, int32_t v)
{
    op.kind = OP_KV_STORE;
    op.dtype = DT_F16;
    op.k = op.n = op.kv_heads * op.head_dim;
    op.window = s->window;
    if (k >= 0)
        build_op(b, s->layer, "kv_store", op, k, v, NULL, 0);
    op.kind = OP_ATTENTION;
    op.k_tail = 0;
    op.k = s->heads * op.head_dim;
    op.n = s->heads * op_v_dim(&op);
    op.heads = s->heads;
    op.scale = s->attention_scale;
    op.chunked = s->recipe->chunks && s->window;
    op.soft_cap = s->score_cap;
    op.alibi = s->alibi;
    op.alibi_heads = s->alibi != 0 ? s->heads : 0;
    const struct gguf_tensor *sinks =
        s->recipe->sinks ? build_tensor(b, s->heads, 0, true, "blk.%d.attn_sinks.weight", s->layer)
                         : NULL;
    const int32_t o = build_op(b, s->layer, "attention", op, q, -1, sinks, op.n);
    build_kv_layer(b, s->kv_layer);
    return o;
}

int32_t arch_attention(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    struct qkv r = products(b, s, n);
    if (s->recipe->v_norm && has_own_kv(s))
        r.v = arch_head_norm(b, s, "attn_v_norm", r.v, s->kv_heads, s->v_dim, NORM_PLAIN, false);
    if (s->recipe->qk_norm == QK_HEADS || s->recipe->qk_norm == QK_WHOLE)
        qk_norms(b, s, &r);
    if (s->rope) {
        r.q = arch_rope(b, s, "rope_q", r.q, s->heads, s->head_dim, 0);
        if (has_own_kv(s))
            r.k = arch_rope(b, s, "rope_k", r.k, s->kv_heads, s->head_dim, 0);
    }
    const bool bare = s->recipe->chunks && (!s->rope || s->experts.all == 128);
    if (s->recipe->qk_norm == QK_ROTATED_HEADS && !bare)
        qk_norms(b, s, &r);
    r.q = arch_temper(b, s, r.q);
    const struct oato_op store = {.kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim,
                                  .v_dim = s->v_dim != s->head_dim ? s->v_dim : 0};
    const int32_t values = s->heads * s->v_dim;
    int32_t o = arch_gated(b, s, n, arch_attend(b, s, store, r.q, r.k, r.v));
    const struct oato_op gate = {
        .kind = OP_SWIGLU, .dtype = DT_F32, .k = values, .n = values, .activation = ACT_SIGMOID};
    if (r.gate >= 0)
        o = build_op(b, s->layer, "attn_gated", gate, r.gate, o, NULL, values);
    o = arch_product(b, s->layer, "attn_output", o, s->width, FACTOR_OF_PRODUCT);
    return arch_factor(b, s->layer, "attn_value_factor", o, s->value_factor);
}
