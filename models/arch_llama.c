/*
 * arch_llama.c - the Llama family (llama, qwen2, qwen3, qwen3moe): pre-norm RMSNorm, rotary
 * positions, grouped-query attention, SwiGLU. The differences are a row of `families`: layout of
 * the rotary pairs (llama files hold permuted q and k: adjacent pairs), biases on q, k and v
 * (qwen2), norms of every head of q and k (qwen3), experts in place of the FFN (qwen3moe,
 * arch_experts.c).
 *
 * Per layer:  h = x + Wo attention(rope(Wq n), rope(Wk n), Wv n),  n = norm(x)
 *             x = h + Wdown(silu(Wgate m) * Wup m),                m = norm(h)
 */
#include "models/models_internal.h"

#include <math.h>
#include <string.h>

struct family {
    const char *architecture;
    enum rope_pairing pairing;
    bool qkv_bias;       /* demanded, not just taken */
    bool no_ffn_factors; /* files may carry factors that the FFN does not use */
    bool head_norms;     /* of q and k */
    bool experts;
};

static const struct family families[] = {
    {.architecture = "llama", .pairing = ROPE_ADJACENT},
    {.architecture = "qwen2", .pairing = ROPE_HALVES, .qkv_bias = true, .no_ffn_factors = true},
    {.architecture = "qwen3", .pairing = ROPE_HALVES, .head_norms = true},
    {.architecture = "qwen3moe", .pairing = ROPE_HALVES, .head_norms = true, .experts = true},
};

struct llama {
    const struct family *family;
    int32_t width, heads, kv_heads, head_dim, ffn, rope_dims;
    float eps, rope_base, rope_scale, attention_scale;
    const struct gguf_tensor *rope_divisors; /* Llama 3.1: rope_freqs.weight */
    struct experts experts;
};

/* llama.cpp's converters write a factor of 0 for "not scaled". */
static float linear_scale(float factor)
{
    return factor > 0 ? 1 / factor : 1;
}

static void read_rope_scaling(struct graph_builder *b, struct llama *p)
{
    char key[96];
    struct gguf_string type = {"none", 4};
    snprintf(key, sizeof key, "%s.rope.scaling.type", b->shape->architecture);
    gguf_get_string(b->gguf, key, &type);
    p->rope_scale = 1;
    if (type.len == 6 && !memcmp(type.data, "linear", 6))
        p->rope_scale = linear_scale(build_float(b, "rope.scaling.factor", 0, 1e6, 1));
    else if (!(type.len == 4 && !memcmp(type.data, "none", 4)) && !build_failed(b))
        oato_fail(b->err, OATO_EFILE, "%s: key %s is '%.*s'; supported: none, linear",
                  gguf_path(b->gguf), key, (int)(type.len < 40 ? type.len : 40), type.data);
}

/* Per-layer values may be arrays; attention and FFN shapes are read again for every layer. */
static void read_layer(struct graph_builder *b, struct llama *p, int32_t layer)
{
    p->heads = build_int(b, "attention.head_count", layer, 1, 65536, -1);
    if (build_failed(b))
        return;
    p->kv_heads = build_int(b, "attention.head_count_kv", layer, 1, p->heads, p->heads);
    if (!p->family->experts)
        p->ffn = build_int(b, "feed_forward_length", layer, 1, 1 << 24, -1);
    p->head_dim = build_int(b, "attention.key_length", -1, 2, 4096, p->width / p->heads);
    int32_t v_dim = build_int(b, "attention.value_length", -1, 2, 4096, p->head_dim);
    p->rope_dims = build_int(b, "rope.dimension_count", -1, 2, 4096, p->head_dim);
    if (build_failed(b))
        return;
    if (v_dim != p->head_dim || p->heads % p->kv_heads || p->rope_dims > p->head_dim ||
        p->rope_dims % 2 || p->head_dim < 2)
        oato_fail(
            b->err, OATO_EFILE,
            "%s: inconsistent attention: %d heads of %d (values %d, rotated %d) with %d KV heads "
            "in layer %d",
            gguf_path(b->gguf), p->heads, p->head_dim, v_dim, p->rope_dims, p->kv_heads, layer);
    p->attention_scale = p->head_dim ? 1 / sqrtf((float)p->head_dim) : 0;
}

static int32_t product(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                       int32_t k, int32_t n)
{
    return build_mul_mat(b, layer, name, in,
                         build_tensor(b, k, n, false, "blk.%d.%s.weight", layer, name));
}

/* in + NAME.bias, or in when the file has none and none is demanded. */
static int32_t bias(struct graph_builder *b, bool demanded, int32_t layer, const char *name,
                    int32_t in, int32_t width)
{
    char op_name[48];
    const struct gguf_tensor *t =
        build_tensor(b, width, 0, !demanded, "blk.%d.%s.bias", layer, name);
    if (!t)
        return in;
    snprintf(op_name, sizeof op_name, "%s_bias", name);
    struct oato_op op = {.kind = OP_BIAS, .dtype = DT_F32, .k = width, .n = width};
    return build_op(b, layer, op_name, op, in, -1, t, width);
}

/* in * NAME.scale, or in when the file has none: quantisers store a factor for a whole tensor. */
static int32_t scale(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                     int32_t width)
{
    char op_name[48];
    const struct gguf_tensor *t = build_tensor(b, 1, 0, true, "blk.%d.%s.scale", layer, name);
    if (!t)
        return in;
    snprintf(op_name, sizeof op_name, "%s_scale", name);
    struct oato_op op = {.kind = OP_SCALE, .dtype = DT_F32, .k = width, .n = width};
    return build_op(b, layer, op_name, op, in, -1, t, width);
}

static int32_t rope(struct graph_builder *b, const struct llama *p, int32_t layer, const char *name,
                    int32_t in, int32_t heads)
{
    int32_t width = heads * p->head_dim;
    struct oato_op op = {.kind = OP_ROPE,
                         .dtype = DT_F32,
                         .k = width,
                         .n = width,
                         .heads = heads,
                         .head_dim = p->head_dim,
                         .rope_dims = p->rope_dims,
                         .rope_pairing = (int32_t)p->family->pairing,
                         .rope_base = p->rope_base,
                         .rope_scale = p->rope_scale};
    return build_op(b, layer, name, op, in, -1, p->rope_divisors, width);
}

/* RMS norm of every head, all with one weight. */
static int32_t head_norm(struct graph_builder *b, const struct llama *p, int32_t layer,
                         const char *name, int32_t in, int32_t heads)
{
    const struct gguf_tensor *w =
        build_tensor(b, p->head_dim, 0, false, "blk.%d.%s.weight", layer, name);
    struct oato_op op = {.kind = OP_HEAD_NORM,
                         .dtype = DT_F32,
                         .k = heads * p->head_dim,
                         .n = heads * p->head_dim,
                         .heads = heads,
                         .head_dim = p->head_dim,
                         .eps = p->eps};
    return build_op(b, layer, name, op, in, -1, w, op.n);
}

static int32_t attention(struct graph_builder *b, const struct llama *p, int32_t layer, int32_t n)
{
    int32_t q_width = p->heads * p->head_dim, kv_width = p->kv_heads * p->head_dim;
    int32_t q = product(b, layer, "attn_q", n, p->width, q_width);
    int32_t k = product(b, layer, "attn_k", n, p->width, kv_width);
    int32_t v = product(b, layer, "attn_v", n, p->width, kv_width);
    const bool demanded = p->family->qkv_bias;
    q = bias(b, demanded, layer, "attn_q", scale(b, layer, "attn_q", q, q_width), q_width);
    k = bias(b, demanded, layer, "attn_k", scale(b, layer, "attn_k", k, kv_width), kv_width);
    v = bias(b, demanded, layer, "attn_v", scale(b, layer, "attn_v", v, kv_width), kv_width);
    if (p->family->head_norms) {
        q = head_norm(b, p, layer, "attn_q_norm", q, p->heads);
        k = head_norm(b, p, layer, "attn_k_norm", k, p->kv_heads);
    }
    q = rope(b, p, layer, "rope_q", q, p->heads);
    k = rope(b, p, layer, "rope_k", k, p->kv_heads);
    struct oato_op op = {.kind = OP_KV_STORE,
                         .dtype = DT_F16,
                         .k = kv_width,
                         .n = kv_width,
                         .kv_heads = p->kv_heads,
                         .head_dim = p->head_dim};
    build_op(b, layer, "kv_store", op, k, v, NULL, 0);
    op.kind = OP_ATTENTION;
    op.k = op.n = q_width;
    op.heads = p->heads;
    op.scale = p->attention_scale;
    int32_t o = build_op(b, layer, "attention", op, q, -1, NULL, q_width);
    o = product(b, layer, "attn_output", o, q_width, p->width);
    o = scale(b, layer, "attn_output", o, p->width);
    return bias(b, false, layer, "attn_output", o, p->width);
}

/* A product of the FFN: here the bias comes before the factor. */
static int32_t ffn_product(struct graph_builder *b, const struct llama *p, int32_t layer,
                           const char *name, int32_t in, int32_t k, int32_t n)
{
    int32_t y = product(b, layer, name, in, k, n);
    if (p->family->no_ffn_factors) {
        build_tensor(b, 1, 0, true, "blk.%d.%s.scale", layer, name);
        return y;
    }
    return scale(b, layer, name, bias(b, false, layer, name, y, n), n);
}

static int32_t feed_forward(struct graph_builder *b, const struct llama *p, int32_t layer,
                            int32_t m)
{
    int32_t gate = ffn_product(b, p, layer, "ffn_gate", m, p->width, p->ffn);
    int32_t up = ffn_product(b, p, layer, "ffn_up", m, p->width, p->ffn);
    struct oato_op op = {.kind = OP_SWIGLU, .dtype = DT_F32, .k = p->ffn, .n = p->ffn};
    int32_t h = build_op(b, layer, "ffn_swiglu", op, gate, up, NULL, p->ffn);
    return ffn_product(b, p, layer, "ffn_down", h, p->ffn, p->width);
}

static int32_t add(struct graph_builder *b, const struct llama *p, int32_t layer, const char *name,
                   int32_t x, int32_t y)
{
    struct oato_op op = {.kind = OP_ADD, .dtype = DT_F32, .k = p->width, .n = p->width};
    return build_op(b, layer, name, op, x, y, NULL, p->width);
}

static int32_t embedding(struct graph_builder *b, struct llama *p, const struct gguf_tensor **table)
{
    const struct gguf_tensor *t = gguf_tensor(b->gguf, "token_embd.weight");
    int64_t vocab = t ? t->ne[1] : 1;
    if (vocab > INT32_MAX / 2)
        vocab = INT32_MAX / 2;
    *table = build_tensor(b, p->width, vocab, false, "token_embd.weight");
    b->shape->vocab = (int32_t)vocab;
    struct oato_op op = {.kind = OP_EMBED,
                         .dtype = (uint16_t)(*table ? (*table)->dtype : DT_F32),
                         .k = p->width,
                         .n = (int32_t)vocab};
    return build_op(b, -1, "token_embd", op, -1, -1, *table, p->width);
}

void arch_llama_build(struct graph_builder *b)
{
    struct llama p = {.family = &families[0]};
    struct model_shape *shape = b->shape;
    for (size_t i = 1; i < ARRAY_LEN(families); i++)
        if (!strcmp(shape->architecture, families[i].architecture))
            p.family = &families[i];
    int32_t layers = b->graph->n_layers;
    p.width = build_int(b, "embedding_length", -1, 1, 1 << 20, -1);
    p.eps = build_float(b, "attention.layer_norm_rms_epsilon", 0, 1, -1);
    p.rope_base = build_float(b, "rope.freq_base", 1, 1e12, 10000);
    if (p.family->experts)
        build_experts_read(b, &p.experts);
    else if (build_int(b, "expert_count", -1, 0, INT32_MAX, 0) && !build_failed(b))
        oato_fail(b->err, OATO_EFILE,
                  "%s: architecture %s with experts is not supported; experts are supported in "
                  "qwen3moe only",
                  gguf_path(b->gguf), shape->architecture);
    read_rope_scaling(b, &p);
    read_layer(b, &p, 0);
    if (build_failed(b))
        return;
    p.rope_divisors = build_tensor(b, p.rope_dims / 2, 0, true, "rope_freqs.weight");
    shape->width = p.width;
    shape->ffn_width = p.family->experts ? p.experts.width : p.ffn;
    shape->experts = p.experts.all;
    shape->experts_used = p.experts.used;
    shape->heads = p.heads;
    shape->kv_heads = p.kv_heads;
    shape->head_dim = p.head_dim;

    const struct gguf_tensor *table;
    int32_t x = embedding(b, &p, &table);
    for (int32_t layer = 0; layer < layers && !build_failed(b); layer++) {
        read_layer(b, &p, layer);
        int32_t a = attention(b, &p, layer, build_norm(b, layer, "attn_norm", x, p.eps));
        x = add(b, &p, layer, "attn_add", x, a);
        int32_t f = build_norm(b, layer, "ffn_norm", x, p.eps);
        f = p.family->experts ? build_experts(b, layer, f, &p.experts)
                              : feed_forward(b, &p, layer, f);
        x = add(b, &p, layer, "ffn_add", x, f);
    }
    struct oato_op select = {.kind = OP_SELECT, .dtype = DT_F32, .k = p.width, .n = p.width};
    x = build_op(b, layers, "select", select, x, -1, NULL, p.width);
    x = build_norm(b, layers, "output_norm", x, p.eps);
    const struct gguf_tensor *output =
        build_tensor(b, p.width, shape->vocab, true, "output.weight");
    x = build_mul_mat(b, layers, "output", x, output ? output : table);
    const struct gguf_tensor *t = build_tensor(b, shape->vocab, 0, true, "output.bias");
    struct oato_op op = {.kind = OP_BIAS, .dtype = DT_F32, .k = shape->vocab, .n = shape->vocab};
    b->graph->logits = t ? build_op(b, layers, "output_bias", op, x, -1, t, shape->vocab) : x;
}
