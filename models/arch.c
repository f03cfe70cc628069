/*
 * arch.c - builds the operator graph of a recipe: embedding, layers, output. The blocks of a layer
 * are in arch_attention.c and arch_ffn.c.
 */
#include "models/recipe_internal.h"

#include <string.h>

#include <math.h>

/* ------------------------------------------------------------------------- hyperparameters */

/* The layer whose keys and values this one attends to: itself, or the last of its kind that has any
 * of its own. */
static int32_t kv_layer_of(struct graph_builder *b, const struct layer_shape *s)
{
    int32_t layer = s->layer;
    if (layer < s->own_layers)
        return layer;
    const bool window = arch_has_window(b, s, layer);
    for (layer = s->own_layers - 1; layer >= 0 && !build_failed(b); layer--)
        if (arch_has_window(b, s, layer) == window)
            return layer;
    if (!build_failed(b))
        oato_fail(b->err, OATO_EFILE,
                  "%s: key %s.attention.shared_kv_layers leaves layer %d no layer %s a window to "
                  "share keys and values with",
                  gguf_path(b->gguf), b->shape->architecture, s->layer,
                  window ? "with" : "without");
    return 0;
}

/* Sizes of heads, of which layers with a window may have others. */
static int32_t read_dim(struct graph_builder *b, const struct layer_shape *s, const char *key,
                        int64_t otherwise, bool own_size)
{
    char own[64];
    const int32_t n = build_int(b, key, -1, 2, 4096, otherwise);
    snprintf(own, sizeof own, "%s_swa", key);
    return s->window && own_size ? build_int(b, own, -1, 2, 4096, n) : n;
}

/* Of files that do not say it, those of layers with other numbers of heads, too. */
static int32_t size_of_heads(struct graph_builder *b, const struct layer_shape *s)
{
    const int32_t first = build_int(b, "attention.head_count", 0, 0, 65536, s->heads);
    const int32_t heads = first ? first : s->heads;
    return heads ? s->width / heads : 2;
}

/* Attention and FFN shapes, which may be arrays, of a layer. */
static void read_layer(struct graph_builder *b, struct layer_shape *s, int32_t layer)
{
    const struct recipe *r = s->recipe;
    s->layer = layer;
    arch_read_blocks(b, s);
    if (s->feeds)
        arch_read_experts(b, s);
    const int32_t least = s->attends ? 1 : 0; /* heads */
    s->heads = build_int(b, "attention.head_count", layer, least, 65536, s->attends ? -1 : 0);
    if (build_failed(b))
        return;
    s->kv_layer = kv_layer_of(b, s);
    s->kv_heads = build_int(b, "attention.head_count_kv", s->kv_layer, least, s->heads, s->heads);
    if (r->clamp_by_key) {
        s->clamp = build_float_of(b, "swiglu_clamp_exp", layer, 0, 1e6, 0);
        s->dense_clamp = build_float_of(b, "swiglu_clamp_shexp", layer, 0, 1e6, 0);
    }
    if (s->feeds && (!arch_has_experts(b, s) || r->dense != DENSE_NONE))
        s->ffn = build_int(b, "feed_forward_length", layer, 1, 1 << 24, -1) / (r->half_ffn ? 2 : 1);
    const bool all = !r->no_rope_every || (r->rope_without_windows && !s->window_width);
    s->rope = s->has_positions && (all || (layer + !r->no_rope_first) % r->no_rope_every);
    arch_read_window(b, s, layer);
    const int32_t otherwise = size_of_heads(b, s);
    s->head_dim = read_dim(b, s, "attention.key_length", otherwise, r->window_dims);
    s->v_dim = read_dim(b, s, "attention.value_length", otherwise, r->window_dims);
    s->rope_dims = read_dim(b, s, "rope.dimension_count", s->head_dim, r->window_rope_dims);
    if (build_failed(b))
        return;
    const bool fits = !r->latent || !s->attends || arch_mla_read(b, s);
    if (build_failed(b))
        return;
    if (s->attends && (!fits || s->heads % s->kv_heads || s->rope_dims > s->head_dim ||
                       s->rope_dims % 2 || s->head_dim < 2))
        oato_fail(
            b->err, OATO_EFILE,
            "%s: inconsistent attention: %d heads of %d (values %d, rotated %d) with %d KV heads "
            "in layer %d",
            gguf_path(b->gguf), s->heads, s->head_dim, s->v_dim, s->rope_dims, s->kv_heads, layer);
    s->attention_scale = r->score_scale != 0    ? r->score_scale
                         : s->score_factor != 0 ? s->score_factor
                         : r->score_by_dim      ? 1 / (float)s->head_dim
                         : s->head_dim          ? 1 / sqrtf((float)s->head_dim)
                                                : 0;
    if (r->wide_score_layers == b->graph->n_layers && s->heads) {
        const int32_t dim = s->width / s->heads;
        s->attention_scale = 1 / sqrtf((float)dim);
    }
    s->attention_scale *= s->rope_scores;
}

static enum activation read_activation(struct graph_builder *b, enum activation otherwise)
{
    const struct gguf_value *v = build_value_of(b, "feed_forward_activation", GGUF_WANT_STRING);
    v = v ? v : build_value_of(b, "hidden_activation", GGUF_WANT_STRING); /* llama.cpp's */
    struct gguf_string s = {b->activation, b->activation ? strlen(b->activation) : 0};
    if (!s.data && v)
        s = v->strings[0];
    if (s.data && !activation_parse(s.data, s.len, &otherwise) && !build_failed(b))
        oato_fail(b->err, b->activation ? OATO_EUSAGE : OATO_EFILE,
                  "%s: unknown activation '%.*s'; known: silu, gelu, relu, relu2",
                  gguf_path(b->gguf), (int)min_i64((int64_t)s.len, 40), s.data);
    return otherwise;
}

static void read_norm(struct graph_builder *b, struct layer_shape *s)
{
    static const char rms[] = "attention.layer_norm_rms_epsilon";
    const struct recipe *r = s->recipe;
    s->norm = r->norm;
    if (r->centred_by_key && build_float(b, rms, 0, 1, 0) == 0)
        s->norm |= NORM_CENTRED;
    s->eps = build_float(b, s->norm & NORM_CENTRED ? "attention.layer_norm_epsilon" : rms, 0, 1,
                         r->eps != 0 ? (double)r->eps : -1);
}

static void read_model(struct graph_builder *b, struct layer_shape *s)
{
    const struct recipe *r = s->recipe;
    s->activation = read_activation(b, gguf_powerinfer(b->gguf) ? ACT_RELU : r->activation);
    s->width = build_int(b, "embedding_length", -1, 1, 1 << 20, -1);
    read_norm(b, s);
    s->qkv_bound = r->clamp_qkv ? build_float(b, "attention.clamp_kqv", 0, 1e6, 0) : 0;
    s->parallel = r->parallel == PARALLEL_BY_KEY     ? build_bool(b, "use_parallel_residual", true)
                  : r->parallel == PARALLEL_ONE_NORM ? !arch_has(b, 0, "ffn_norm.weight")
                                                     : r->parallel == PARALLEL_ALWAYS;
    arch_read_windows(b, s);
    if (r->score_caps)
        s->score_cap = build_float(b, "attn_logit_softcapping", 1e-6, 1e6, (double)r->score_cap);
    if (r->logit_caps)
        s->logit_cap = build_float(b, "final_logit_softcapping", r->logit_cap_always ? 1e-6 : 0,
                                   1e6, (double)r->logit_cap);
    s->has_positions = !r->no_rope;
    if (r->rope_if_finetuned)
        s->has_positions = build_bool(b, "rope.scaling.finetuned", true);
    s->pairing = r->pairing;
    for (s->layer = 0; s->layer < b->graph->n_layers && !s->experts.all; s->layer++)
        arch_read_experts(b, s);
    const struct experts experts = s->experts;
    arch_read_positions(b, s);
    arch_read_factors(b, s);
    arch_check_unread(b, r);
    const int32_t layers = b->graph->n_layers;
    s->own_layers = layers;
    if (r->shares_kv)
        s->own_layers -= build_int(b, "attention.shared_kv_layers", -1, 0, layers - 1, 0);
    s->value_factor = 1;
    if (r->value_scale && build_value(b, "attention.value_scale"))
        s->value_factor = build_float(b, "attention.value_scale", -1e6, 1e6, 1);
    if (s->value_factor == 0)
        s->value_factor = 1;
    if (r->layer_embeddings)
        s->layer_embedding = build_int(b, "embedding_length_per_layer_input", -1, 0, 1 << 16, 0);
    read_layer(b, s, 0);
    if (build_failed(b))
        return;
    if (s->has_positions)
        arch_read_divisors(b, s);
    if (!build_failed(b))
        arch_read_sections(b, s);
    struct model_shape *shape = b->shape;
    shape->width = s->width;
    shape->experts = experts.all;
    shape->experts_used = experts.used;
    shape->ffn_width = experts.all ? experts.width : s->ffn;
    shape->heads = s->heads;
    shape->head_dim = r->latent ? arch_mla_cached(s) : s->head_dim;
    if (r->sparse) {
        const int64_t block = build_int(b, "attention.indexer.block_size", -1, 0, 1 << 16, 0);
        const int64_t most = build_int(b, "attention.indexer.top_k", -1, 1, INT32_MAX, -1);
        shape->positions_most = (int32_t)min_i64(most * max_i64(block, 1), INT32_MAX);
    }
}

/* ----------------------------------------------------------------------------------- graph */

static int32_t embedding(struct graph_builder *b, const struct layer_shape *s,
                         const struct gguf_tensor **table)
{
    const struct gguf_tensor *t = gguf_tensor(b->gguf, "token_embd.weight");
    const int64_t vocab =
        t ? min_i64(t->ne[1], INT32_MAX / 2) : build_int(b, "vocab_size", -1, 1, INT32_MAX / 2, 1);
    *table = build_tensor(b, s->width, vocab, false, "token_embd.weight");
    b->shape->vocab = (int32_t)vocab;
    struct oato_op op = {.kind = OP_EMBED,
                         .dtype = (uint16_t)(*table ? (*table)->dtype : DT_F32),
                         .k = s->width,
                         .n = (int32_t)vocab,
                         .scale = s->embedding_factor != 1 ? s->embedding_factor : 0};
    int32_t x = build_op(b, -1, "token_embd", op, -1, -1, *table, s->width);
    x = arch_learned_positions(b, s, x);
    const struct oato_op rms = {.kind = OP_RMS_NORM, .eps = s->eps, .norm = NORM_PLAIN};
    if (s->recipe->embedding_rms)
        x = arch_elementwise(b, -1, "token_embd", "_rms", rms, x, NULL);
    return s->recipe->embedding_norm ? arch_norm(b, s, -1, "token_embd_norm", x) : x;
}

/* What a block adds to x: its output, normed again where the row says so, times the factor. */
static int32_t block_output(struct graph_builder *b, const struct layer_shape *s, const char *norm,
                            const char *factor, int32_t y)
{
    struct layer_shape after = *s;
    if (s->recipe->post_eps > 0)
        after.eps = s->recipe->post_eps;
    if (s->recipe->norms != NORMS_BEFORE)
        y = arch_norm(b, &after, s->layer, norm, y);
    return arch_factor(b, s->layer, factor, y, s->block_factor);
}

/* What a block's output is added to. */
static int32_t kept(struct graph_builder *b, const struct layer_shape *s, const char *name,
                    int32_t x, int32_t normed)
{
    return s->normed_factor != 0 ? arch_factor(b, s->layer, name, normed, s->normed_factor) : x;
}

/* x + the embedding times a factor of the layer. */
static int32_t embedding_skip(struct graph_builder *b, const struct layer_shape *s, int32_t x)
{
    const struct gguf_tensor *t =
        build_tensor(b, 1, 0, false, "blk.%d.layer_output_scale.weight", s->layer);
    const struct oato_op op = {.kind = OP_SCALE};
    const int32_t y = arch_elementwise(b, s->layer, "skip_scale", "", op, s->embedded, t);
    return arch_add(b, s->layer, "skip_add", x, y);
}

static int32_t output_scale(struct graph_builder *b, const struct layer_shape *s, int32_t x)
{
    const struct gguf_tensor *t =
        build_tensor(b, 1, 0, true, "blk.%d.layer_output_scale.weight", s->layer);
    const struct oato_op op = {.kind = OP_SCALE};
    return t ? arch_elementwise(b, s->layer, "layer_output_scale", "", op, x, t) : x;
}

/* x + attention + FFN; n: x normed. */
static int32_t parallel_layer(struct graph_builder *b, const struct layer_shape *s, int32_t x,
                              int32_t n)
{
    const bool second = arch_has(b, s->layer, "attn_norm_2.weight");
    const bool own = arch_has(b, s->layer, "ffn_norm.weight");
    const int32_t of_attention = second ? arch_norm(b, s, s->layer, "attn_norm_2", x) : n;
    const int32_t a = arch_attention(b, s, of_attention);
    const int32_t m = own ? arch_norm(b, s, s->layer, "ffn_norm", x) : n;
    const int32_t y = arch_add(b, s->layer, "attn_add", a, arch_ffn(b, s, m, x));
    return arch_add(b, s->layer, "ffn_add", x, y);
}

/* One of the two, or their sum. */
static int32_t mixer_or_attention(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    const int32_t y = s->recurrent ? arch_state(b, s, n) : -1;
    if (!s->attends)
        return y;
    const int32_t a = s->recipe->latent ? arch_mla(b, s, n) : arch_attention(b, s, n);
    return s->recurrent ? arch_add(b, s->layer, "attn_mixer_add", a, y) : a;
}

static int32_t layer(struct graph_builder *b, const struct layer_shape *s, int32_t x)
{
    const struct recipe *r = s->recipe;
    const bool before = r->norms != NORMS_AFTER;
    const int32_t n = before ? arch_norm(b, s, s->layer, "attn_norm", x) : x;
    if (s->parallel)
        return parallel_layer(b, s, x, n);
    if (s->recurrent || s->attends) {
        const char *post = r->attn_post_norm ? r->attn_post_norm : "post_attention_norm";
        const int32_t a = block_output(b, s, post, "attn_factor", mixer_or_attention(b, s, n));
        x = arch_add(b, s->layer, "attn_add", kept(b, s, "attn_kept", x, n), a);
    }
    if (!s->feeds)
        return x;
    const char *name = r->ffn_norm ? r->ffn_norm : "ffn_norm";
    const bool normed = r->blocks == BLOCKS_ONE; /* by attn_norm */
    const int32_t m = normed ? n : before ? arch_norm(b, s, s->layer, name, x) : x;
    const char *post = r->ffn_post_norm ? r->ffn_post_norm : "post_ffw_norm";
    const int32_t f = block_output(b, s, post, "ffn_factor", arch_ffn(b, s, m, x));
    x = arch_add(b, s->layer, "ffn_add", kept(b, s, "ffn_kept", x, m), f);
    if (s->layer_embedding)
        x = arch_layer_embedding(b, s, x);
    if (r->output_scales)
        x = output_scale(b, s, x);
    return r->skips ? embedding_skip(b, s, x) : x;
}

static int32_t output(struct graph_builder *b, const struct layer_shape *s,
                      const struct gguf_tensor *table, int32_t x)
{
    const int32_t layers = b->graph->n_layers, vocab = b->shape->vocab;
    const struct oato_op select = {.kind = OP_SELECT};
    x = arch_elementwise(b, layers, "select", "", select, x, NULL);
    const char *norm = s->recipe->final_norm;
    if (s->recipe->loops != LOOPS_OF_STACKS) /* a stack's output is normed */
        x = arch_norm(b, s, layers, norm ? norm : "output_norm", x);
    x = arch_factor(b, layers, "output_factor", x, s->logit_factor);
    const struct gguf_tensor *w = build_tensor(b, s->width, vocab, true, "output.weight");
    x = build_mul_mat(b, layers, "output", x, w ? w : table);
    x = arch_bias(b, layers, "output", x, false);
    const struct oato_op cap = {
        .kind = OP_ACTIVATE, .activation = ACT_SOFT_CAP, .scale = s->logit_cap};
    return s->logit_cap != 0 ? arch_elementwise(b, layers, "output_cap", "", cap, x, NULL) : x;
}

static int32_t numbered_layer(struct graph_builder *b, struct layer_shape *s, int32_t l, int32_t x)
{
    read_layer(b, s, l);
    b->shape->kv_heads = (int32_t)max_i64(b->shape->kv_heads, s->kv_heads);
    s->input = x;
    return layer(b, s, x);
}

/* Between runs of all layers their output is normed like the last one, unless the file says no. */
static int32_t between_loops(struct graph_builder *b, const struct layer_shape *s, int32_t l,
                             int32_t x)
{
    const bool more = l + 1 < b->graph->n_layers && (l + 1) % b->stack == 0;
    if (!more || build_bool(b, "skip_loop_final_norm", false))
        return x;
    const struct oato_op norm = {.kind = OP_RMS_NORM, .eps = s->eps};
    const struct gguf_tensor *w = build_tensor(b, s->width, 0, false, "output_norm.weight");
    return arch_elementwise(b, l, "loop_norm", "", norm, x, w);
}

static int32_t layers(struct graph_builder *b, struct layer_shape *s, int32_t x)
{
    for (int32_t l = 0; l < b->graph->n_layers && !build_failed(b); l++) {
        x = numbered_layer(b, s, l, x);
        if (s->recipe->loops == LOOPS_OF_ALL)
            x = between_loops(b, s, l, x);
    }
    return x;
}

/* A stack reads the sum of what both gave last, high, which is x at first, and low. */
static int32_t stacks(struct graph_builder *b, struct layer_shape *s, int32_t x)
{
    const struct oato_op norm = {.kind = OP_RMS_NORM, .eps = s->eps, .norm = NORM_PLAIN};
    const struct gguf_tensor *first = build_tensor(b, s->width, 0, false, "hrm.z_l_init");
    int32_t high = x, low = -1;
    for (int32_t l = 0; l < b->graph->n_layers && !build_failed(b); l += b->stack) {
        x = l ? arch_add(b, l, "stack_add", high, low)
              : arch_elementwise(b, l, "stack_add", "", (struct oato_op){.kind = OP_BIAS}, x,
                                 first);
        for (int32_t i = 0; i < b->stack; i++)
            x = numbered_layer(b, s, l + i, x);
        x = arch_elementwise(b, l + b->stack - 1, "stack_norm", "", norm, x, NULL);
        *(build_block(b, l) ? &high : &low) = x;
    }
    return high;
}

/* The block that predicts one more token, behind the layers; the next layer of the file. */
static int32_t prediction(struct graph_builder *b, struct layer_shape *s,
                          const struct gguf_tensor *table, int32_t x)
{
    s->predicts = true;
    s->own_layers = ++b->graph->n_layers; /* it has keys and values of its own */
    read_layer(b, s, b->graph->n_layers - 1);
    x = arch_mtp_input(b, s, table, x);
    s->input = x;
    return arch_mtp_output(b, s, table, layer(b, s, x));
}

void arch_build(struct graph_builder *b, const struct recipe *r)
{
    struct layer_shape s = {.recipe = r};
    const struct gguf_tensor *table;
    read_model(b, &s);
    int32_t x = embedding(b, &s, &table);
    s.embedded = x;
    if (s.layer_embedding)
        s.layer_embeddings = arch_layer_embeddings(b, &s, x);
    x = r->loops == LOOPS_OF_STACKS ? stacks(b, &s, x) : layers(b, &s, x);
    b->graph->logits = b->mtp != MTP_ALONE ? output(b, &s, table, x) : -1;
    if (b->mtp != MTP_NONE && !build_failed(b))
        b->graph->logits = prediction(b, &s, table, x);
}
