/*
 * arch_mtp.c - the block behind the layers that predicts one more token (DeepSeek-V3's multi-token
 * prediction, nextn in GGUF). From the hidden state of the token before, and the token itself, it
 * makes an input for one more layer with a KV cache of its own:
 *
 *     y_i = W (enorm(E x_i), hnorm(h_(i-1)));  h_(-1) = 0
 *
 * whose logits are for token i + 1, one more than what h_(i-1) alone was for. Only graphs that are
 * asked for it have it.
 */
#include "models/recipe_internal.h"

/* Weights {1, 0} for each channel: a convolution with them gives the input of the token before. */
static const struct gguf_tensor *shift_weights(struct graph_builder *b, int32_t width)
{
    if (build_failed(b))
        return NULL;
    struct gguf_tensor *t = arena_alloc(&b->graph->arena, 1, sizeof *t);
    float *taps = arena_alloc(&b->graph->arena, 2 * (size_t)width, sizeof *taps);
    if (!t || !taps) {
        oato_fail_memory(b->err, 2 * (size_t)width * sizeof *taps, "the operator graph");
        return NULL;
    }
    for (int32_t c = 0; c < width; c++)
        taps[2 * c] = 1;
    *t = (struct gguf_tensor){.name = "nextn.shift",
                              .dtype = DT_F32,
                              .n_dims = 2,
                              .ne = {2, width, 1, 1},
                              .data = (const uint8_t *)taps,
                              .bytes = 2 * (size_t)width * sizeof *taps};
    return t;
}

static int32_t embedded(struct graph_builder *b, const struct layer_shape *s,
                        const struct gguf_tensor *table)
{
    const int32_t vocab = b->shape->vocab;
    const struct gguf_tensor *own =
        build_tensor(b, s->width, vocab, true, "blk.%d.nextn.embed_tokens.weight", s->layer);
    const struct gguf_tensor *t = own ? own : table;
    const struct oato_op op = {
        .kind = OP_EMBED, .dtype = (uint16_t)(t ? t->dtype : DT_F32), .k = s->width, .n = vocab};
    return build_op(b, s->layer, "nextn.embed_tokens", op, -1, -1, t, s->width);
}

static int32_t merged(struct graph_builder *b, const struct layer_shape *s, int32_t e, int32_t h)
{
    const struct oato_op op = {
        .kind = OP_MERGE, .dtype = DT_F32, .k = 2 * s->width, .n = 2 * s->width};
    return build_op(b, s->layer, "nextn.eh", op, e, h, NULL, op.n);
}

int32_t arch_mtp_input(struct graph_builder *b, const struct layer_shape *s,
                       const struct gguf_tensor *table, int32_t x)
{
    const struct oato_op shift = {.kind = OP_CONV, .state = 1};
    int32_t h = arch_norm(b, s, b->graph->n_layers, "output_norm", x);
    h = arch_elementwise(b, s->layer, "nextn.h", "", shift, h, shift_weights(b, s->width));
    h = arch_norm(b, s, s->layer, "nextn.hnorm", h);
    const int32_t e = arch_norm(b, s, s->layer, "nextn.enorm", embedded(b, s, table));
    return arch_product(b, s->layer, "nextn.eh_proj", merged(b, s, e, h), s->width,
                        FACTOR_OF_PRODUCT);
}

int32_t arch_mtp_output(struct graph_builder *b, const struct layer_shape *s,
                        const struct gguf_tensor *table, int32_t x)
{
    const int32_t vocab = b->shape->vocab;
    const struct oato_op select = {.kind = OP_SELECT};
    const struct oato_op rms = {.kind = OP_RMS_NORM, .eps = s->eps};
    x = arch_elementwise(b, s->layer, "nextn.select", "", select, x, NULL);
    const struct gguf_tensor *own =
        build_tensor(b, s->width, 0, true, "blk.%d.nextn.shared_head_norm.weight", s->layer);
    const struct gguf_tensor *norm =
        own ? own : build_tensor(b, s->width, 0, false, "output_norm.weight");
    x = arch_elementwise(b, s->layer, "nextn.shared_head_norm", "", rms, x, norm);
    const struct gguf_tensor *head =
        build_tensor(b, s->width, vocab, true, "blk.%d.nextn.shared_head_head.weight", s->layer);
    const struct gguf_tensor *output = build_tensor(b, s->width, vocab, true, "output.weight");
    return build_mul_mat(b, s->layer, "nextn.shared_head_head", x,
                         head     ? head
                         : output ? output
                                  : table);
}
