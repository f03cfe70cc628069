/*
 * arch_embeddings.c - embeddings of each layer (Gemma 3n, Gemma 4): beside the embedding x a token
 * has a short one for every layer, e, from a table as wide as all of them, mixed with a product of
 * x. A layer adds to its output h what a gate lets through of its own.
 *
 *     p = (norm(W x / sqrt(width)) + sqrt(d) e) / sqrt(2);  h + norm(Wproj(gelu(Wgate h) * p_l))
 */
#include "models/recipe_internal.h"

#include <math.h>

int32_t arch_layer_embeddings(struct graph_builder *b, const struct layer_shape *s, int32_t x)
{
    const int32_t layers = b->graph->n_layers, d = s->layer_embedding, vocab = b->shape->vocab;
    const int64_t n = (int64_t)layers * d;
    const struct gguf_tensor *table =
        build_tensor(b, n, vocab, false, "per_layer_token_embd.weight");
    const struct gguf_tensor *w =
        build_tensor(b, s->width, n, false, "per_layer_model_proj.weight");
    const struct gguf_tensor *gain = build_tensor(b, d, 0, false, "per_layer_proj_norm.weight");
    const struct oato_op norm = {
        .kind = OP_HEAD_NORM, .heads = layers, .head_dim = d, .eps = s->eps};
    const struct oato_op look = {.kind = OP_EMBED,
                                 .dtype = (uint16_t)(table ? table->dtype : DT_F32),
                                 .k = (int32_t)n,
                                 .n = vocab,
                                 .scale = sqrtf((float)d)};
    const int32_t e = build_op(b, -1, "per_layer_token_embd", look, -1, -1, table, (int32_t)n);
    int32_t p = build_mul_mat(b, -1, "per_layer_model_proj", x, w);
    p = arch_factor(b, -1, "per_layer_proj_factor", p, 1 / sqrtf((float)s->width));
    p = arch_elementwise(b, -1, "per_layer_proj_norm", "", norm, p, gain);
    return arch_factor(b, -1, "per_layer_factor", arch_add(b, -1, "per_layer_add", p, e),
                       (float)M_SQRT1_2);
}

int32_t arch_layer_embedding(struct graph_builder *b, const struct layer_shape *s, int32_t x)
{
    const int32_t l = s->layer, d = s->layer_embedding;
    const struct oato_op gate = {.kind = OP_SWIGLU,
                                 .dtype = DT_F32,
                                 .k = d,
                                 .n = d,
                                 .activation = (int32_t)s->recipe->activation};
    const int32_t own = arch_slice(b, l, "layer_embd", s->layer_embeddings, l * d, d);
    int32_t y = arch_product(b, l, "inp_gate", x, d, FACTOR_UNUSED);
    y = build_op(b, l, "inp_gated", gate, y, own, NULL, d);
    y = arch_product(b, l, "proj", y, s->width, FACTOR_UNUSED);
    y = arch_norm(b, s, l, "post_norm", y);
    return arch_add(b, l, "layer_embd_add", x, y);
}
