/*
 * arch_mla.c - multi-head latent attention (DeepSeek-V2): keys and values of all heads come from
 * one short vector c, which is what the cache holds, beside the rotated part k_r of all keys.
 *
 *     q_h = (q_h' , rope(q_h'')) of Wq_b norm(Wq_a n);  (c', k_r') = Wkv_a n
 *     c = norm(c');  k_r = rope(k_r')
 *
 * Absorbed, the matrices that would make keys and values of c are applied to queries and results:
 *
 *     s_h = (Wk_b,h q_h', q_h'') . (c, k_r);   y_h = Wv_b,h sum p_h c
 *
 * so that the cache has one head and values are the first part of its keys. Files of before that
 * have Wk_b and Wv_b in one tensor, attn_kv_b; then keys and values are made and kept for each
 * head.
 */
#include "models/recipe_internal.h"

/* A matrix for each head, applied to the first k columns of a head of `in`. */
static int32_t of_heads(struct graph_builder *b, const struct layer_shape *s, const char *name,
                        int32_t in, int32_t k, int32_t n, int32_t head_dim)
{
    const struct gguf_tensor *w =
        build_tensor_experts(b, k, n, s->heads, "blk.%d.%s.weight", s->layer, name);
    const struct oato_op op = {.kind = OP_HEAD_MUL_MAT,
                               .dtype = (uint16_t)(w ? w->dtype : DT_F32),
                               .k = k,
                               .n = n,
                               .heads = s->heads,
                               .head_dim = head_dim};
    return build_op(b, s->layer, name, op, in, -1, w, s->heads * (n + head_dim - k));
}

static int32_t queries(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    const int32_t width = s->heads * s->head_dim;
    if (!s->q_rank)
        return arch_product(b, s->layer, "attn_q", n, width, FACTOR_UNUSED);
    n = arch_product(b, s->layer, "attn_q_a", n, s->q_rank, FACTOR_UNUSED);
    n = arch_norm(b, s, s->layer, "attn_q_a_norm", n);
    return arch_product(b, s->layer, "attn_q_b", n, width, FACTOR_UNUSED);
}

/* Layers with a window may have sizes of their own. */
static int32_t size_of(struct graph_builder *b, const struct layer_shape *s, const char *key,
                       int64_t lo, int64_t hi, int64_t otherwise)
{
    char own[64];
    snprintf(own, sizeof own, "%s_swa", key);
    return build_int(b, s->window && build_value(b, own) ? own : key, -1, lo, hi, otherwise);
}

bool arch_mla_read(struct graph_builder *b, struct layer_shape *s)
{
    s->q_rank = build_int(b, "attention.q_lora_rank", -1, 0, 65536, 0);
    s->kv_rank = size_of(b, s, "attention.kv_lora_rank", 1, 65536, -1);
    const int32_t k = size_of(b, s, "attention.key_length_mla", 0, 4096, 0);
    const int32_t v = size_of(b, s, "attention.value_length_mla", 0, 4096, 0);
    s->absorbed = k && v;
    if (s->absorbed) {
        s->head_dim = k;
        s->v_dim = v;
        s->kv_heads = 1;
    } else {
        s->kv_heads = s->heads;
    }
    const int32_t widest = s->absorbed ? s->kv_rank + s->rope_dims : s->head_dim;
    return s->rope_dims < s->head_dim + !s->absorbed && widest <= HEAD_DIM_MAX;
}

int32_t arch_mla_cached(const struct layer_shape *s)
{
    return s->absorbed ? s->kv_rank + s->rope_dims : s->head_dim;
}

int32_t arch_mla(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    const int32_t nope = s->head_dim - s->rope_dims;
    int32_t q = queries(b, s, n);
    const int32_t kv =
        arch_product(b, s->layer, "attn_kv_a_mqa", n, s->kv_rank + s->rope_dims, FACTOR_UNUSED);
    int32_t c = arch_slice(b, s->layer, "attn_kv_c", kv, 0, s->kv_rank);
    int32_t k = arch_slice(b, s->layer, "attn_kv_k", kv, s->kv_rank, s->rope_dims);
    c = arch_norm(b, s, s->layer, "attn_kv_a_norm", c);
    if (s->recipe->qk_norm == QK_SHARED)
        k = arch_norm(b, s, s->layer, "attn_k_norm", k);
    if (s->rope) {
        q = arch_rope(b, s, "rope_q", q, s->heads, s->head_dim, nope);
        k = arch_rope(b, s, "rope_k", k, 1, s->rope_dims, 0);
    }
    q = arch_temper(b, s, q);
    struct oato_op store = {
        .kv_heads = s->kv_heads, .head_dim = arch_mla_cached(s), .k_tail = s->rope_dims};
    if (s->absorbed) {
        store.v_in_k = s->kv_rank;
        q = of_heads(b, s, "attn_k_b", q, nope, s->kv_rank, s->head_dim);
    } else {
        store.v_dim = s->v_dim;
        c = arch_product(b, s->layer, "attn_kv_b", c, s->heads * (nope + s->v_dim), FACTOR_UNUSED);
    }
    int32_t o = arch_attend(b, s, store, q, c, k);
    if (s->absorbed)
        o = of_heads(b, s, "attn_v_b", o, s->kv_rank, s->v_dim, s->kv_rank);
    o = arch_gated(b, s, n, o);
    return arch_product(b, s->layer, "attn_output", o, s->width, FACTOR_OF_PRODUCT);
}
