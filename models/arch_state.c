/*
 * arch_state.c - mixers with a recurrent state, which stand in place of attention in some layers or
 * in all: a short convolution, or a gated delta rule on heads. A mixer's sizes are keys of its own.
 *
 *     lfm2:  (B, C, x) = W_in n;  y = W_out (C * conv(B * x))
 *     qwen:  (q, k, v) = silu(conv(Wqkv n));  y = W_out (rms(delta(q, k, v, Wa n, Wb n)) * silu(Wz
 * n))
 */
#include "models/recipe_internal.h"

/* In which layers it is; the others have attention. */
bool arch_is_recurrent(struct graph_builder *b, const struct recipe *r, int32_t layer)
{
    if (r->mixer == MIXER_ATTENTION)
        return false;
    if (r->mixer_layers == MIXER_WITHOUT_KV)
        return build_int(b, "attention.head_count_kv", layer, 0, 65536, 1) == 0;
    if (build_value(b, "attention.recurrent_layers"))
        return build_int(b, "attention.recurrent_layers", layer, 0, 1, -1);
    const int32_t every = build_int(b, "full_attention_interval", -1, 1, 1 << 16, 4);
    return every && (layer + 1) % every != 0;
}

/* Each channel's sum over the last tokens, with the weights of "blk.N.NAME.weight". */
static int32_t convolution(struct graph_builder *b, const struct layer_shape *s, const char *name,
                           int32_t in, int32_t width, int32_t taps)
{
    const struct gguf_tensor *w =
        build_tensor(b, taps, width, false, "blk.%d.%s.weight", s->layer, name);
    const struct oato_op op = {.kind = OP_CONV, .state = taps - 1};
    return arch_elementwise(b, s->layer, name, "", op, in, w);
}

static int32_t times(struct graph_builder *b, const struct layer_shape *s, const char *name,
                     enum activation a, int32_t x, int32_t y, int32_t width)
{
    const struct oato_op op = {
        .kind = OP_SWIGLU, .dtype = DT_F32, .k = width, .n = width, .activation = (int32_t)a};
    return build_op(b, s->layer, name, op, x, y, NULL, width);
}

static int32_t short_convolution(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    const int32_t width = s->width;
    const int32_t taps = build_int(b, "shortconv.l_cache", -1, 2, CONV_STATE_MAX + 1, -1);
    const int32_t all = arch_matrix(b, s->layer, "shortconv.in_proj", n, 3 * (int64_t)width);
    const int32_t B = arch_slice(b, s->layer, "conv_b", all, 0, width);
    const int32_t C = arch_slice(b, s->layer, "conv_c", all, width, width);
    const int32_t x = arch_slice(b, s->layer, "conv_x", all, 2 * width, width);
    const int32_t in = times(b, s, "conv_in", ACT_NONE, B, x, width);
    const int32_t y = convolution(b, s, "shortconv.conv", in, width, taps);
    const int32_t out = times(b, s, "conv_out", ACT_NONE, C, y, width);
    return arch_matrix(b, s->layer, "shortconv.out_proj", out, width);
}

/* ------------------------------------------------------------------- the gated delta rule --- */

/* Its heads: k's are shared by equally many of v's, and all are of one size. */
struct delta_shape {
    int32_t heads, k_heads, dim, taps;
};

static struct delta_shape read_delta(struct graph_builder *b)
{
    struct delta_shape d = {.taps = build_int(b, "ssm.conv_kernel", -1, 2, CONV_STATE_MAX + 1, -1)};
    d.dim = build_int(b, "ssm.state_size", -1, 1, HEAD_DIM_MAX, -1);
    d.heads = build_int(b, "ssm.time_step_rank", -1, 1, 1 << 14, -1);
    d.k_heads = build_int(b, "ssm.group_count", -1, 1, 1 << 14, -1);
    const int32_t inner = build_int(b, "ssm.inner_size", -1, 1, 1 << 24, -1);
    if (!build_failed(b) && ((int64_t)d.heads * d.dim != inner || d.heads % d.k_heads))
        oato_fail(b->err, OATO_EFILE,
                  "%s: inconsistent recurrent layers: %d heads of %d with %d of k are not %d wide",
                  gguf_path(b->gguf), d.heads, d.dim, d.k_heads, inner);
    return d;
}

/* The logits of decay and of change, one for each head; in one tensor they lie head of k by head of
 * k, first those of change. */
static void delta_logits(struct graph_builder *b, const struct layer_shape *s,
                         const struct delta_shape *d, int32_t n, int32_t *a, int32_t *change)
{
    if (s->recipe->mixer == MIXER_DELTA) {
        *change = arch_matrix(b, s->layer, "ssm_beta", n, d->heads);
        *a = arch_matrix(b, s->layer, "ssm_alpha", n, d->heads);
        *change = arch_extras(b, s->layer, "ssm_beta", *change, false, FACTOR_OF_PRODUCT);
        *a = arch_extras(b, s->layer, "ssm_alpha", *a, false, FACTOR_OF_PRODUCT);
    } else {
        const int32_t both =
            arch_product(b, s->layer, "ssm_ba", n, 2 * (int64_t)d->heads, FACTOR_OF_PRODUCT);
        const int32_t share = d->k_heads ? d->heads / d->k_heads : 0;
        *change = arch_slice_heads(b, s->layer, "ssm_beta", both, d->k_heads, 0, share);
        *a = arch_slice_heads(b, s->layer, "ssm_alpha", both, d->k_heads, share, share);
    }
    *a = arch_bias(b, s->layer, "ssm_dt", *a, true);
}

static int32_t delta(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    const struct delta_shape d = read_delta(b);
    const bool grouped = s->recipe->mixer == MIXER_DELTA_GROUPED;
    const int32_t width = d.heads * d.dim, all = width + 2 * d.k_heads * d.dim;
    int32_t a, change;
    int32_t qkv = arch_matrix(b, s->layer, "attn_qkv", n, all);
    int32_t z = arch_matrix(b, s->layer, "attn_gate", n, width);
    delta_logits(b, s, &d, n, &a, &change);
    qkv = arch_extras(b, s->layer, "attn_qkv", qkv, false,
                      grouped ? FACTOR_UNUSED : FACTOR_OF_PRODUCT);
    z = arch_extras(b, s->layer, "attn_gate", z, false, FACTOR_OF_PRODUCT);
    const struct oato_op silu = {.kind = OP_ACTIVATE, .activation = ACT_SILU};
    qkv = convolution(b, s, "ssm_conv1d", qkv, all, d.taps);
    qkv = arch_elementwise(b, s->layer, "ssm_conv1d", "_silu", silu, qkv, NULL);
    struct oato_op op = {.kind = OP_DELTA,
                         .dtype = DT_F32,
                         .k = all,
                         .n = width,
                         .heads = d.heads,
                         .kv_heads = d.k_heads,
                         .head_dim = d.dim,
                         .cyclic = !grouped,
                         .eps = s->eps};
    const struct gguf_tensor *decay = build_tensor(b, d.heads, 0, false, "blk.%d.ssm_a", s->layer);
    int32_t y = build_op(b, s->layer, "ssm_delta", op, qkv, a, decay, width);
    build_input(b, change);
    y = arch_head_norm(b, s, "ssm_norm", y, d.heads, d.dim, 0, false);
    y = times(b, s, "ssm_gate", ACT_SILU, z, y, width);
    return arch_product(b, s->layer, "ssm_out", y, s->width,
                        grouped ? FACTOR_UNUSED : FACTOR_OF_PRODUCT);
}

int32_t arch_state(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    switch (s->recipe->mixer) {
    case MIXER_CONV: return short_convolution(b, s, n);
    case MIXER_DELTA:
    case MIXER_DELTA_GROUPED: return delta(b, s, n);
    case MIXER_ATTENTION: break;
    }
    return n;
}
