/*
 * arch_parts.c - what the blocks of a recipe are made of: products with their biases and factors,
 * norms, slices, sums. Names of operators follow those of their tensors.
 */
#include "models/recipe_internal.h"

static bool in_layers(const struct graph_builder *b, int32_t layer)
{
    return layer >= 0 && layer < b->graph->n_layers;
}

/* A vector "blk.N.NAME.KIND", or "NAME.KIND" outside of the layers. */
static const struct gguf_tensor *vector(struct graph_builder *b, int32_t layer, const char *name,
                                        const char *kind, int64_t n, bool optional)
{
    return in_layers(b, layer) ? build_tensor(b, n, 0, optional, "blk.%d.%s.%s", layer, name, kind)
                               : build_tensor(b, n, 0, optional, "%s.%s", name, kind);
}

bool arch_has(const struct graph_builder *b, int32_t layer, const char *name)
{
    char full[GGUF_MAX_NAME + 1];
    snprintf(full, sizeof full, "blk.%d.%s", build_block(b, layer), name);
    return gguf_tensor(b->gguf, full);
}

void arch_unused(struct graph_builder *b, int32_t layer, const char *name)
{
    static const char *const kinds[] = {"weight", "bias", "scale"};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        char full[GGUF_MAX_NAME + 1];
        snprintf(full, sizeof full, "blk.%d.%s.%s", build_block(b, layer), name, kinds[i]);
        const struct gguf_tensor *t = gguf_tensor(b->gguf, full);
        if (t)
            build_tensor(b, t->ne[0], t->ne[1], true, "%s", full);
    }
}

static int32_t width_of(const struct graph_builder *b, int32_t value)
{
    return build_failed(b) ? 0 : b->graph->values[value].width;
}

/* An operator that keeps the width of its input, named NAME_SUFFIX. */
int32_t arch_elementwise(struct graph_builder *b, int32_t layer, const char *name,
                         const char *suffix, struct oato_op op, int32_t in,
                         const struct gguf_tensor *weight)
{
    char op_name[48];
    snprintf(op_name, sizeof op_name, "%s%s", name, suffix);
    op.dtype = DT_F32;
    op.k = op.n = width_of(b, in);
    return build_op(b, layer, op_name, op, in, -1, weight, op.n);
}

int32_t arch_bias(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                  bool demanded)
{
    const struct gguf_tensor *t = vector(b, layer, name, "bias", width_of(b, in), !demanded);
    return t ? arch_elementwise(b, layer, name, "_bias", (struct oato_op){.kind = OP_BIAS}, in, t)
             : in;
}

/* Quantisers store a factor for a whole tensor. */
static int32_t quantiser_factor(struct graph_builder *b, int32_t layer, const char *name,
                                int32_t in)
{
    const struct gguf_tensor *t = vector(b, layer, name, "scale", 1, true);
    return t ? arch_elementwise(b, layer, name, "_scale", (struct oato_op){.kind = OP_SCALE}, in, t)
             : in;
}

int32_t arch_matrix(struct graph_builder *b, int32_t layer, const char *name, int32_t in, int64_t n)
{
    return build_mul_mat(
        b, layer, name, in,
        build_tensor(b, width_of(b, in), n, false, "blk.%d.%s.weight", layer, name));
}

int32_t arch_extras(struct graph_builder *b, int32_t layer, const char *name, int32_t y,
                    bool demanded, enum factor factor)
{
    if (factor == FACTOR_UNUSED)
        vector(b, layer, name, "scale", 1, true);
    if (factor == FACTOR_OF_PRODUCT)
        y = quantiser_factor(b, layer, name, y);
    y = arch_bias(b, layer, name, y, demanded);
    return factor == FACTOR_OF_SUM ? quantiser_factor(b, layer, name, y) : y;
}

int32_t arch_product(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                     int64_t n, enum factor factor)
{
    return arch_extras(b, layer, name, arch_matrix(b, layer, name, in, n), false, factor);
}

int32_t arch_norm(struct graph_builder *b, const struct layer_shape *s, int32_t layer,
                  const char *name, int32_t in)
{
    struct oato_op op = {.kind = OP_RMS_NORM, .eps = s->eps, .norm = s->norm};
    if (op.norm & NORM_PLAIN)
        return arch_elementwise(b, layer, name, "", op, in, NULL);
    const bool bare = in_layers(b, layer) && arch_has(b, layer, name); /* some files' names are */
    const struct gguf_tensor *w =
        bare ? build_tensor(b, width_of(b, in), 0, false, "blk.%d.%s", layer, name)
             : vector(b, layer, name, "weight", width_of(b, in), false);
    const struct gguf_tensor *bias = vector(b, layer, name, "bias", width_of(b, in), true);
    op.norm |= bias ? NORM_BIASED : 0;
    const int32_t y = arch_elementwise(b, layer, name, "", op, in, w);
    if (bias)
        build_weight(b, bias);
    return y;
}

int32_t arch_head_norm(struct graph_builder *b, const struct layer_shape *s, const char *name,
                       int32_t in, int32_t heads, int32_t head_dim, int32_t norm, bool optional)
{
    const bool gains = norm & NORM_HEAD_GAINS;
    const int32_t own = gains || norm & NORM_OWN_HEADS ? heads : 0;
    const bool plain = norm & NORM_PLAIN;
    const struct gguf_tensor *w = plain ? NULL
                                        : build_tensor(b, gains ? 1 : head_dim, own, optional,
                                                       "blk.%d.%s.weight", s->layer, name);
    if (!w && !plain)
        return in;
    const struct oato_op op = {
        .kind = OP_HEAD_NORM, .heads = heads, .head_dim = head_dim, .norm = norm, .eps = s->eps};
    return arch_elementwise(b, s->layer, name, "", op, in, w);
}

int32_t arch_slice_heads(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                         int32_t heads, int32_t first, int32_t n)
{
    const struct oato_op op = {.kind = OP_SLICE,
                               .dtype = DT_F32,
                               .k = width_of(b, in),
                               .n = heads * n,
                               .heads = heads > 1 ? heads : 0,
                               .first = first};
    return build_op(b, layer, name, op, in, -1, NULL, op.n);
}

int32_t arch_slice(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                   int32_t first, int32_t n)
{
    return arch_slice_heads(b, layer, name, in, 1, first, n);
}

int32_t arch_add(struct graph_builder *b, int32_t layer, const char *name, int32_t x, int32_t y)
{
    struct oato_op op = {.kind = OP_ADD, .dtype = DT_F32, .k = width_of(b, x), .n = width_of(b, x)};
    return build_op(b, layer, name, op, x, y, NULL, op.n);
}

int32_t arch_gate(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                  int32_t gate, enum activation a)
{
    const struct oato_op op = {.kind = OP_GATE,
                               .dtype = DT_F32,
                               .k = width_of(b, in),
                               .n = width_of(b, in),
                               .heads = width_of(b, gate),
                               .activation = (int32_t)a};
    return build_op(b, layer, name, op, in, gate, NULL, op.n);
}

int32_t arch_factor(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                    float factor)
{
    const struct oato_op op = {.kind = OP_SCALE, .scale = factor};
    return factor == 1 ? in : arch_elementwise(b, layer, name, "", op, in, NULL);
}
