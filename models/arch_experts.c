/*
 * arch_experts.c - an FFN of experts, as qwen3moe has it: a small matrix gives every token a logit
 * for each expert, the best few compute a SwiGLU FFN each, and their outputs are summed, weighted
 * by the softmax over the chosen experts' logits.
 *
 *     c = route(Wr m);  y = sum over e in c of c_e Wdown_e(silu(Wgate_e m) * Wup_e m)
 */
#include "models/models_internal.h"

enum { EXPERTS_MOST = 1 << 12 };

void build_experts_read(struct graph_builder *b, struct experts *out)
{
    out->all = build_int(b, "expert_count", -1, 1, EXPERTS_MOST, -1);
    if (build_failed(b))
        return;
    out->used = build_int(b, "expert_used_count", -1, 1, out->all, -1);
    out->width = build_int(b, "expert_feed_forward_length", -1, 0, 1 << 24, 0);
    if (!out->width && !build_failed(b)) { /* older files give that of all that a token uses */
        int32_t all = build_int(b, "feed_forward_length", -1, out->used, 1 << 24, -1);
        out->width = build_failed(b) ? 0 : all / out->used;
    }
    if (!build_failed(b) && out->width > INT32_MAX / out->used) {
        oato_fail(b->err, OATO_EFILE, "%s: %d experts per token of %d neurons each are too many",
                  gguf_path(b->gguf), out->used, out->width);
        return;
    }
    out->scale = build_float(b, "expert_weights_scale", 0, 1e6, 0);
    if (build_int(b, "expert_group_count", -1, 0, INT32_MAX, 0) > 1)
        oato_fail(b->err, OATO_EFILE,
                  "%s: expert groups (key %s.expert_group_count) are not supported",
                  gguf_path(b->gguf), b->shape->architecture);
}

static int32_t route(struct graph_builder *b, int32_t layer, int32_t in, const struct experts *e)
{
    int32_t width = b->shape->width;
    const struct gguf_tensor *w =
        build_tensor(b, width, e->all, false, "blk.%d.ffn_gate_inp.weight", layer);
    int32_t logits = build_mul_mat(b, layer, "ffn_gate_inp", in, w);
    struct oato_op op = {.kind = OP_ROUTE,
                         .dtype = DT_F32,
                         .k = e->all,
                         .n = 2 * e->used,
                         .experts = e->all,
                         .experts_used = e->used,
                         .route_norm = 1,
                         .scale = e->scale};
    return build_op(b, layer, "ffn_route", op, logits, -1, NULL, op.n);
}

static const struct gguf_tensor *matrices(struct graph_builder *b, int32_t layer, const char *name,
                                          const struct experts *e, int64_t k, int64_t n)
{
    return build_tensor_experts(b, k, n, e->all, "blk.%d.%s.weight", layer, name);
}

int32_t build_experts(struct graph_builder *b, int32_t layer, int32_t in, const struct experts *e)
{
    int32_t width = b->shape->width;
    int32_t choice = route(b, layer, in, e);
    const struct gguf_tensor *gate = matrices(b, layer, "ffn_gate_exps", e, width, e->width);
    const struct gguf_tensor *up = matrices(b, layer, "ffn_up_exps", e, width, e->width);
    const struct gguf_tensor *down = matrices(b, layer, "ffn_down_exps", e, e->width, width);
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
                         .k = width,
                         .n = e->width,
                         .experts = e->all,
                         .experts_used = e->used};
    int32_t hidden =
        build_op(b, layer, "ffn_gate_up_exps", op, in, choice, gate, e->used * e->width);
    build_weight(b, up);
    op.kind = OP_EXPERT_DOWN;
    op.dtype = (uint16_t)down->dtype;
    op.k = e->width;
    op.n = width;
    return build_op(b, layer, "ffn_down_exps", op, hidden, choice, down, width);
}
