/*
 * arch_ffn.c - the feed-forward block of a recipe: a gated FFN, or experts: a small matrix gives
 * every token a logit for each expert, the best few compute a gated FFN each, and their outputs are
 * summed, weighted by the softmax of the logits. Beside them there may be shared experts, which
 * every token uses and which are one dense FFN.
 *
 *     c = route(Wr m);  y = sum over e in c of c_e Wdown_e(silu(Wgate_e m) * Wup_e m)
 */
#include "models/recipe_internal.h"

enum { EXPERTS_MOST = 1 << 12, FFN_MOST = 1 << 24 };

/* ----------------------------------------------------------------------------------- dense */

/* down(activation(up m)) */
static int32_t ungated(struct graph_builder *b, const struct layer_shape *s, int32_t m,
                       int32_t width, enum factor factor)
{
    const struct oato_op op = {.kind = OP_ACTIVATE, .activation = (int32_t)s->recipe->activation};
    const int32_t up = arch_product(b, s->layer, "ffn_up", m, width, factor);
    int32_t h = arch_elementwise(b, s->layer, "ffn_activation", "", op, up, NULL);
    const struct gguf_tensor *scales =
        build_tensor(b, width, 0, true, "blk.%d.ffn.act.scales", s->layer);
    const struct oato_op divide = {.kind = OP_SCALE, .divides = 1};
    if (scales)
        h = arch_elementwise(b, s->layer, "ffn_act_scales", "", divide, h, scales);
    return arch_product(b, s->layer, "ffn_down", h, s->width, factor);
}

/* A gated FFN of "ffn_gate", "ffn_up" and "ffn_down" with a suffix for all three. */
static int32_t dense(struct graph_builder *b, const struct layer_shape *s, const char *suffix,
                     int32_t m, int32_t width)
{
    const enum factor factor = s->recipe->ffn_factors ? FACTOR_OF_SUM : FACTOR_UNUSED;
    char gate_name[24], up_name[24], down_name[24];
    int32_t gate, up;
    if (s->recipe->ungated && !*suffix)
        return ungated(b, s, m, width, factor);
    snprintf(gate_name, sizeof gate_name, "ffn_gate%s", suffix);
    snprintf(up_name, sizeof up_name, "ffn_up%s", suffix);
    snprintf(down_name, sizeof down_name, "ffn_down%s", suffix);
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
                         .activation = (int32_t)s->recipe->activation};
    snprintf(name, sizeof name, "ffn_swiglu%s", suffix);
    const int32_t h = build_op(b, s->layer, name, op, gate, up, NULL, width);
    return arch_product(b, s->layer, down_name, h, s->width,
                        s->recipe->down_factor ? FACTOR_OF_SUM : factor);
}

/* --------------------------------------------------------------------------------- experts */

static void refuse_key(struct graph_builder *b, const char *key, const char *what)
{
    if (!build_failed(b))
        oato_fail(b->err, OATO_EFILE, "%s: %s (key %s.%s) are not supported", gguf_path(b->gguf),
                  what, b->shape->architecture, key);
}

/* Normalised or not: a key of some architectures, of others a fact. */
static bool normalised(struct graph_builder *b, const struct recipe *r)
{
    return r->experts == EXPERTS_NORMALISED ||
           (r->experts == EXPERTS_BY_KEY && build_bool(b, "expert_weights_norm", false));
}

void arch_read_experts(struct graph_builder *b, const struct recipe *r, struct experts *out)
{
    if (r->experts == EXPERTS_NONE)
        return;
    out->all = build_int(b, "expert_count", -1, r->experts_optional ? 0 : 1, EXPERTS_MOST,
                         r->experts_optional ? 0 : -1);
    if (build_failed(b) || !out->all)
        return;
    out->used = build_int(b, "expert_used_count", -1, 1, out->all, -1);
    if (r->dense_first)
        out->dense_layers = build_int(b, "leading_dense_block_count", -1, 0, 1 << 16, 0);
    out->width = build_int(b, "expert_feed_forward_length", -1, 0, FFN_MOST, 0);
    if (!out->width && !build_failed(b)) /* older files have one key for both */
        out->width = build_int(b, "feed_forward_length", -1, out->used, FFN_MOST, -1) /
                     (r->ffn_of_all_experts ? out->used : 1);
    if (!build_failed(b) && out->width > INT32_MAX / out->used)
        oato_fail(b->err, OATO_EFILE, "%s: %d experts per token of %d neurons each are too many",
                  gguf_path(b->gguf), out->used, out->width);
    if (r->shared_experts)
        out->shared = build_int(b, "expert_shared_feed_forward_length", -1, 0, FFN_MOST, 0);
    if (r->shared_experts && !out->shared && !build_failed(b))
        out->shared = out->width * build_int(b, "expert_shared_count", -1, 0, EXPERTS_MOST, 0);
    out->normalised = normalised(b, r);
    out->scale = build_float(b, "expert_weights_scale", 0, 1e6, 0);
    if (build_int(b, "expert_group_count", -1, 0, INT32_MAX, 0) > 1)
        refuse_key(b, "expert_group_count", "expert groups");
}

static int32_t route(struct graph_builder *b, const struct layer_shape *s, int32_t m)
{
    const struct experts *e = &s->experts;
    const struct gguf_tensor *w =
        build_tensor(b, s->width, e->all, false, "blk.%d.ffn_gate_inp.weight", s->layer);
    const int32_t logits = build_mul_mat(b, s->layer, "ffn_gate_inp", m, w);
    struct oato_op op = {.kind = OP_ROUTE,
                         .dtype = DT_F32,
                         .k = e->all,
                         .n = 2 * e->used,
                         .experts = e->all,
                         .experts_used = e->used,
                         .route_norm = e->normalised,
                         .scale = e->scale};
    return build_op(b, s->layer, "ffn_route", op, logits, -1, NULL, op.n);
}

static const struct gguf_tensor *matrices(struct graph_builder *b, const struct layer_shape *s,
                                          const char *name, int64_t k, int64_t n)
{
    return build_tensor_experts(b, k, n, s->experts.all, "blk.%d.%s.weight", s->layer, name);
}

/* Of a quantiser, one for each expert. */
static void check_factor(struct graph_builder *b, const struct layer_shape *s, const char *name)
{
    const struct gguf_tensor *t =
        build_tensor(b, s->experts.all, 0, true, "blk.%d.%s.scale", s->layer, name);
    if (t && s->recipe->expert_factors)
        oato_fail(b->err, OATO_EFILE, "%s: factors of experts (tensor %s) are not supported",
                  gguf_path(b->gguf), t->name);
}

static int32_t chosen(struct graph_builder *b, const struct layer_shape *s, int32_t m)
{
    const struct experts *e = &s->experts;
    const int32_t choice = route(b, s, m);
    const struct gguf_tensor *gate = matrices(b, s, "ffn_gate_exps", s->width, e->width);
    const struct gguf_tensor *up = matrices(b, s, "ffn_up_exps", s->width, e->width);
    const struct gguf_tensor *down = matrices(b, s, "ffn_down_exps", e->width, s->width);
    check_factor(b, s, "ffn_gate_exps");
    check_factor(b, s, "ffn_up_exps");
    check_factor(b, s, "ffn_down_exps");
    if (build_failed(b))
        return -1;
    if (gate->dtype != up->dtype) {
        oato_fail(b->err, OATO_EFILE, "%s: tensors %s and %s have different types, %s and %s",
                  gguf_path(b->gguf), gate->name, up->name, dtype_name(gate->dtype),
                  dtype_name(up->dtype));
        return -1;
    }
    struct oato_op op = {.kind = OP_EXPERT_GATE_UP,
                         .dtype = (uint16_t)gate->dtype,
                         .k = s->width,
                         .n = e->width,
                         .experts = e->all,
                         .experts_used = e->used,
                         .activation = (int32_t)s->recipe->activation};
    const int32_t hidden =
        build_op(b, s->layer, "ffn_gate_up_exps", op, m, choice, gate, e->used * e->width);
    build_weight(b, up);
    op.kind = OP_EXPERT_DOWN;
    op.dtype = (uint16_t)down->dtype;
    op.k = e->width;
    op.n = s->width;
    return build_op(b, s->layer, "ffn_down_exps", op, hidden, choice, down, s->width);
}

int32_t arch_ffn(struct graph_builder *b, const struct layer_shape *s, int32_t m)
{
    const struct experts *e = &s->experts;
    if (!e->all || s->layer < e->dense_layers)
        return dense(b, s, "", m, s->ffn);
    const int32_t y = chosen(b, s, m);
    return e->shared
               ? arch_add(b, s->layer, "ffn_shexp_add", y, dense(b, s, "_shexp", m, e->shared))
               : y;
}
