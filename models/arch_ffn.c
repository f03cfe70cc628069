/*
 * arch_ffn.c - a dense FFN.
 *
 *     y = Wdown(silu(Wgate m) * Wup m)
 */
#include "models/recipe_internal.h"

/* PowerInfer's files hold the transpose, and its bias by the same name. */
static int32_t down(struct graph_builder *b, const struct layer_shape *s, const char *name,
                    int32_t h, int32_t width, enum factor factor)
{
    if (!arch_has(b, s->layer, "ffn_down_t.weight"))
        return arch_product(b, s->layer, name, h, s->width, factor);
    const struct gguf_tensor *t =
        build_tensor(b, s->width, width, false, "blk.%d.ffn_down_t.weight", s->layer);
    const struct oato_op op = {.kind = OP_MUL_MAT_T,
                               .k = width,
                               .n = s->width,
                               .dtype = (uint16_t)(t ? t->dtype : DT_F32)};
    const int32_t y = build_op(b, s->layer, "ffn_down_t", op, h, -1, t, s->width);
    return arch_bias(b, s->layer, "ffn_down_t", y, false);
}

/* down(activation(up m)) */
static int32_t ungated(struct graph_builder *b, const struct layer_shape *s, const char *up_name,
                       const char *down_name, int32_t m, int32_t width, enum factor factor)
{
    const struct oato_op op = {.kind = OP_ACTIVATE, .activation = (int32_t)s->activation};
    const int32_t up = arch_product(b, s->layer, up_name, m, width, factor);
    int32_t h = arch_elementwise(b, s->layer, "ffn_activation", "", op, up, NULL);
    const struct gguf_tensor *scales =
        build_tensor(b, width, 0, true, "blk.%d.ffn.act.scales", s->layer);
    const struct oato_op divide = {.kind = OP_SCALE, .divides = 1};
    if (scales)
        h = arch_elementwise(b, s->layer, "ffn_act_scales", "", divide, h, scales);
    return down(b, s, down_name, h, width, factor);
}

/* A gated FFN of "ffn_gate", "ffn_up" and "ffn_down" with a suffix for all three. */
int32_t arch_dense(struct graph_builder *b, const struct layer_shape *s, const char *suffix,
                   int32_t m, int32_t width)
{
    const enum factor factor = s->recipe->ffn_factors ? FACTOR_OF_SUM : FACTOR_UNUSED;
    char gate_name[24], up_name[24], down_name[24];
    int32_t gate, up;
    snprintf(gate_name, sizeof gate_name, "ffn_gate%s", suffix);
    snprintf(up_name, sizeof up_name, "ffn_up%s", suffix);
    snprintf(down_name, sizeof down_name, "ffn_down%s", suffix);
    if (s->recipe->ungated)
        return ungated(b, s, up_name, down_name, m, width, factor);
    if (s->recipe->up_holds_gate) {
        const int32_t both = arch_product(b, s->layer, up_name, m, 2 * (int64_t)width, factor);
        gate = arch_slice(b, s->layer, gate_name, both, 0, width);
        up = arch_slice(b, s->layer, "ffn_up_half", both, width, width);
    } else {
        gate = arch_product(b, s->layer, gate_name, m, width, factor);
        up = arch_product(b, s->layer, up_name, m, width, factor);
    }
    char name[32];
    struct oato_op op = {.kind = OP_SWIGLU,
                         .dtype = DT_F32,
                         .k = width,
                         .n = width,
                         .activation = (int32_t)s->activation};
    if (s->dense_clamp > 0) {
        op.activation = (int32_t)s->recipe->clamp_by_key;
        op.scale = s->dense_clamp;
    }
    snprintf(name, sizeof name, "ffn_swiglu%s", suffix);
    const int32_t h = build_op(b, s->layer, name, op, gate, up, NULL, width);
    return down(b, s, down_name, h, width, s->recipe->down_factor ? FACTOR_OF_SUM : factor);
}
