/*
 * arch_state.c - mixers with a recurrent state, which stand in place of attention in some layers or
 * in all: a short convolution, a gated delta rule on heads, Mamba's scans, linear attention. A
 * mixer's sizes are keys of its own.
 *
 *     lfm2:  (B, C, x) = W_in n;  y = W_out (C * conv(B * x))
 *     qwen:  (q, k, v) = silu(conv(Wqkv n));  y = W_out (rms(delta(q, k, v, a, b)) * silu(Wz n))
 */
#include "models/recipe_internal.h"

/* Whether a layer that has no FFN in its place has the mixer. */
static bool is_recurrent(struct graph_builder *b, const struct recipe *r, int32_t layer)
{
    if (r->mixer == MIXER_ATTENTION)
        return false;
    if (r->mixer_layers == MIXER_EVERYWHERE || r->mixer_layers == MIXER_BESIDE)
        return true;
    if (r->mixer_layers == MIXER_WITHOUT_KV)
        return build_int(b, "attention.head_count_kv", layer, 0, 65536, 1) == 0;
    if (build_value(b, "attention.recurrent_layers"))
        return build_flag(b, "attention.recurrent_layers", layer);
    const int32_t every =
        build_int(b, "full_attention_interval", -1, 1, 1 << 16, r->interval ? r->interval : 4);
    return every && (layer + 1) % every != 0;
}

void arch_read_blocks(struct graph_builder *b, struct layer_shape *s)
{
    const struct recipe *r = s->recipe;
    s->feeds = r->blocks == BLOCKS_TWO ||
               (r->blocks == BLOCKS_ONE &&
                build_int(b, "feed_forward_length", s->layer, 0, 1 << 24, 0) > 0);
    const bool alone = s->feeds && r->blocks == BLOCKS_ONE;
    s->recurrent = !alone && !s->predicts && is_recurrent(b, r, s->layer);
    s->attends = !alone && (!s->recurrent || r->mixer_layers == MIXER_BESIDE);
}

/* Each channel's sum over the last tokens, with the weights of "blk.N.NAME.weight". */
static int32_t convolution(struct graph_builder *b, const struct layer_shape *s, const char *name,
                           int32_t in, int32_t width, int32_t taps)
{
    const bool flat = s->recipe->mixer != MIXER_DELTA_CHANNELS; /* else taps x 1 x width */
    const struct gguf_tensor *w =
        flat ? build_tensor(b, taps, width, false, "blk.%d.%s.weight", s->layer, name)
             : build_tensor_experts(b, taps, 1, width, "blk.%d.%s.weight", s->layer, name);
    const struct oato_op op = {.kind = OP_CONV, .state = taps - 1};
    return arch_elementwise(b, s->layer, name, "", op, in, w);
}

static int32_t silu_convolution(struct graph_builder *b, const struct layer_shape *s,
                                const char *name, int32_t in, int32_t width, int32_t taps)
{
    const struct oato_op silu = {.kind = OP_ACTIVATE, .activation = ACT_SILU};
    int32_t y = convolution(b, s, name, in, width, taps);
    y = arch_bias(b, s->layer, name, y, false);
    return arch_elementwise(b, s->layer, name, "_silu", silu, y, NULL);
}

/* x, y and z side by side. */
static int32_t merged(struct graph_builder *b, const struct layer_shape *s, const char *name,
                      int32_t x, int32_t y, int32_t z)
{
    if (build_failed(b))
        return -1;
    const struct graph_value *v = b->graph->values;
    const int32_t width = v[x].width + v[y].width + v[z].width;
    const struct oato_op op = {.kind = OP_MERGE, .dtype = DT_F32, .k = width, .n = width};
    const int32_t all = build_op(b, s->layer, name, op, x, y, NULL, width);
    build_input(b, z);
    return all;
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
    const enum factor factor = grouped ? FACTOR_UNUSED : FACTOR_OF_PRODUCT;
    qkv = arch_extras(b, s->layer, "attn_qkv", qkv, false, factor);
    z = arch_extras(b, s->layer, "attn_gate", z, false, factor);
    qkv = silu_convolution(b, s, "ssm_conv1d", qkv, all, d.taps);
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
    return arch_product(b, s->layer, "ssm_out", y, s->width, factor);
}

/* ---------------------------------------------------------------------------------- Mamba --- */

struct mamba_shape {
    int32_t inner, heads, groups, state, taps, rank; /* rank: columns that dt is made of */
    enum factor factor;                              /* of the products into and out of it */
};

static struct mamba_shape read_mamba(struct graph_builder *b, const struct recipe *r)
{
    const bool second = r->mixer == MIXER_MAMBA2;
    struct mamba_shape m = {.groups = 1,
                            .factor = r->mixer_factors_unused ? FACTOR_UNUSED : FACTOR_OF_PRODUCT};
    m.taps = build_int(b, "ssm.conv_kernel", -1, 2, CONV_STATE_MAX + 1, -1);
    m.inner = build_int(b, "ssm.inner_size", -1, 1, 1 << 20, -1);
    m.state = build_int(b, "ssm.state_size", -1, 1, HEAD_DIM_MAX, -1);
    m.rank = build_int(b, "ssm.time_step_rank", -1, 1, 1 << 14, -1);
    m.heads = r->mixer == MIXER_MAMBA ? m.inner : m.rank;
    if (second)
        m.groups = build_int(b, "ssm.group_count", -1, 1, 1 << 14, -1);
    if (!build_failed(b) && (m.inner % m.heads || m.heads % m.groups))
        oato_fail(b->err, OATO_EFILE,
                  "%s: inconsistent recurrent layers: %d channels, %d heads, %d groups",
                  gguf_path(b->gguf), m.inner, m.heads, m.groups);
    return m;
}

/* The scan of xbc: x, B and C. Mamba's weights have a row for each channel, Mamba-2's for each
 * head. */
static int32_t scan(struct graph_builder *b, const struct layer_shape *s,
                    const struct mamba_shape *m, int32_t xbc, int32_t dt)
{
    const bool by_channel = s->recipe->mixer == MIXER_MAMBA;
    const bool second = s->recipe->mixer == MIXER_MAMBA2;
    const int32_t k = by_channel ? m->state : second ? 1 : m->heads;
    const struct gguf_tensor *a =
        build_tensor(b, k, second || by_channel ? m->heads : 0, false, "blk.%d.ssm_a", s->layer);
    const struct gguf_tensor *d = build_tensor(b, second ? 1 : m->heads, second ? m->heads : 0,
                                               false, "blk.%d.ssm_d", s->layer);
    const struct oato_op op = {.kind = OP_SSM,
                               .dtype = DT_F32,
                               .k = m->inner + 2 * m->groups * m->state,
                               .n = m->inner,
                               .heads = m->heads,
                               .kv_heads = m->groups,
                               .head_dim = m->heads ? m->inner / m->heads : 0,
                               .state = m->state,
                               .per_channel = by_channel};
    const int32_t y = build_op(b, s->layer, "ssm_scan", op, xbc, dt, a, m->inner);
    build_weight(b, d);
    return y;
}

static int32_t mamba2(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    const struct mamba_shape m = read_mamba(b, s->recipe);
    const int32_t mixed = m.inner + 2 * m.groups * m.state;
    const int32_t all =
        arch_product(b, s->layer, "ssm_in", n, (int64_t)m.inner + mixed + m.heads, m.factor);
    const int32_t z = arch_slice(b, s->layer, "ssm_z", all, 0, m.inner);
    int32_t xbc = arch_slice(b, s->layer, "ssm_xbc", all, m.inner, mixed);
    int32_t dt = arch_slice(b, s->layer, "ssm_dt", all, m.inner + mixed, m.heads);
    dt = arch_bias(b, s->layer, "ssm_dt", dt, true);
    xbc = silu_convolution(b, s, "ssm_conv1d", xbc, mixed, m.taps);
    int32_t y = scan(b, s, &m, xbc, dt);
    y = times(b, s, "ssm_gate", ACT_SILU, z, y, m.inner);
    y = arch_head_norm(b, s, "ssm_norm", y, m.groups, m.groups ? m.inner / m.groups : 0,
                       NORM_OWN_HEADS, true);
    return arch_product(b, s->layer, "ssm_out", y, s->width, m.factor);
}

/* One of dt, B and C, which are columns of one product, perhaps normed. */
static int32_t mamba_column(struct graph_builder *b, const struct layer_shape *s, const char *name,
                            int32_t all, int32_t first, int32_t n)
{
    char slice[24], norm[24];
    snprintf(slice, sizeof slice, "%s_part", name);
    const int32_t x = arch_slice(b, s->layer, slice, all, first, n);
    snprintf(norm, sizeof norm, "%s_norm", name);
    const struct oato_op plain = {.kind = OP_RMS_NORM, .eps = s->eps, .norm = NORM_PLAIN};
    if (build_bool(b, "ssm.dt_b_c_rms", false)) /* a variant's norms have no weights */
        return arch_elementwise(b, s->layer, norm, "", plain, x, NULL);
    return s->recipe->mixer_norms ? arch_norm(b, s, s->layer, norm, x) : x;
}

/* The gate and the input: the halves of one product, or of each head's columns. */
static int32_t mamba(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    struct mamba_shape m = read_mamba(b, s->recipe);
    const bool by_head = s->recipe->mixer == MIXER_MAMBA_HEADS;
    const int32_t heads = by_head && m.heads ? m.heads : 1, half = m.inner / heads;
    if (by_head)
        m.rank = s->width / 16 > 64 ? s->width / 16 : 64;
    const int32_t both = arch_product(b, s->layer, "ssm_in", n, 2 * (int64_t)m.inner, m.factor);
    const int32_t z = arch_slice_heads(b, s->layer, "ssm_z", both, heads, by_head ? 0 : half, half);
    int32_t x = arch_slice_heads(b, s->layer, "ssm_input", both, heads, by_head ? half : 0, half);
    x = silu_convolution(b, s, "ssm_conv1d", x, m.inner, m.taps);
    const int32_t all = arch_matrix(b, s->layer, "ssm_x", x, m.rank + 2 * (int64_t)m.state);
    const int32_t first = by_head ? 0 : m.rank; /* of B and C, dt is on their other side */
    int32_t dt = mamba_column(b, s, "ssm_dt", all, by_head ? 2 * m.state : 0, m.rank);
    const int32_t B = mamba_column(b, s, "ssm_b", all, first, m.state);
    const int32_t C = mamba_column(b, s, "ssm_c", all, first + m.state, m.state);
    dt = arch_matrix(b, s->layer, "ssm_dt", dt, m.heads);
    dt = arch_bias(b, s->layer, "ssm_dt", dt, true);
    const int32_t xbc = merged(b, s, "ssm_xbc", x, B, C);
    const int32_t y = times(b, s, "ssm_gate", ACT_SILU, z, scan(b, s, &m, xbc, dt), m.inner);
    return arch_product(b, s->layer, "ssm_out", y, s->width, m.factor);
}

/* ------------------------------------------- the delta rule with decays of each channel --- */

/* The product of two matrices; with bounded decays there is the first one only. */
static int32_t low_rank(struct graph_builder *b, const struct layer_shape *s, const char *first,
                        const char *second, int32_t n, int32_t rank, int32_t width)
{
    if (s->recipe->bounded_decays)
        return arch_matrix(b, s->layer, first, n, width);
    return arch_matrix(b, s->layer, second, arch_matrix(b, s->layer, first, n, rank), width);
}

static int32_t delta_channels(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    static const char *const names[3] = {"attn_q", "attn_k", "attn_v"};
    static const char *const convs[3] = {"ssm_conv1d_q", "ssm_conv1d_k", "ssm_conv1d_v"};
    const int32_t heads = build_int(b, "attention.head_count", 0, 1, 65536, -1);
    const int32_t dim = build_int(b, "kda.head_dim", -1, 1, HEAD_DIM_MAX, -1);
    const int32_t taps = build_int(b, "ssm.conv_kernel", -1, 2, CONV_STATE_MAX + 1, -1);
    const int32_t width = heads * dim;
    const float bound =
        s->recipe->bounded_decays ? build_float(b, "kda.gate_lower_bound", -1e3, -1e-6, -1) : 0;
    int32_t part[3];
    for (int i = 0; i < 3; i++)
        part[i] = arch_product(b, s->layer, names[i], n, width, FACTOR_UNUSED);
    for (int i = 0; i < 3; i++)
        part[i] = silu_convolution(b, s, convs[i], part[i], width, taps);
    const int32_t qkv = merged(b, s, "ssm_qkv", part[0], part[1], part[2]);
    int32_t a = low_rank(b, s, "ssm_f_a", "ssm_f_b", n, dim, width);
    a = arch_bias(b, s->layer, "ssm_dt", a, true);
    const int32_t change = arch_product(b, s->layer, "ssm_beta", n, heads, FACTOR_UNUSED);
    const int32_t gate = low_rank(b, s, "ssm_g_a", "ssm_g_b", n, dim, width);
    const struct oato_op op = {.kind = OP_DELTA,
                               .dtype = DT_F32,
                               .k = 3 * width,
                               .n = width,
                               .heads = heads,
                               .kv_heads = heads,
                               .head_dim = dim,
                               .per_channel = 1,
                               .eps = s->eps,
                               .scale = bound};
    const struct gguf_tensor *decay = build_tensor(b, 1, heads, false, "blk.%d.ssm_a", s->layer);
    int32_t y = build_op(b, s->layer, "ssm_delta", op, qkv, a, decay, width);
    build_input(b, change);
    y = arch_head_norm(b, s, "ssm_norm", y, heads, dim, 0, false);
    y = times(b, s, "ssm_gate", ACT_SIGMOID, gate, y, width);
    return arch_product(b, s->layer, "attn_output", y, s->width, FACTOR_UNUSED);
}

/* ----------------------------------------------------------------------- linear attention --- */

/* S = S exp(-slope) + k v', o = S'q: Mamba's scan of v with constant decays, in place of B and C k
 * and q, all of them behind a SiLU. The slopes fall to nothing in the last layer. */
static int32_t linear(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    static const char *const names[3] = {"attn_q", "attn_k", "attn_v"};
    const struct oato_op silu = {.kind = OP_ACTIVATE, .activation = ACT_SILU};
    const int32_t heads = build_int(b, "attention.head_count", s->layer, 1, 65536, -1);
    const int32_t dim = s->head_dim, width = heads * dim;
    const int32_t last = (int32_t)max_i64(b->graph->n_layers - 1, 1);
    int32_t part[3];
    int32_t qkv = arch_product(b, s->layer, "attn_qkv", n, 3 * (int64_t)width, FACTOR_UNUSED);
    qkv = arch_elementwise(b, s->layer, "attn_qkv", "_silu", silu, qkv, NULL);
    for (int i = 0; i < 3; i++)
        part[i] = arch_slice_heads(b, s->layer, names[i], qkv, heads, i * dim, dim);
    const int32_t vkq = merged(b, s, "attn_vkq", part[2], part[1], part[0]);
    const struct oato_op op = {.kind = OP_SSM,
                               .dtype = DT_F32,
                               .k = 3 * width,
                               .n = width,
                               .heads = heads,
                               .kv_heads = heads,
                               .head_dim = dim,
                               .state = dim,
                               .alibi = 8,
                               .alibi_heads = heads,
                               .scale = 1 - (float)s->layer / (float)last + 1e-5F};
    int32_t y = build_op(b, s->layer, "attn_scan", op, vkq, -1, NULL, width);
    y = arch_norm(b, s, s->layer, "attn_norm_2", y);
    const int32_t gate = arch_product(b, s->layer, "attn_gate", n, width, FACTOR_UNUSED);
    y = times(b, s, "attn_gated", ACT_SIGMOID, gate, y, width);
    return arch_product(b, s->layer, "attn_output", y, s->width, FACTOR_UNUSED);
}

int32_t arch_state(struct graph_builder *b, const struct layer_shape *s, int32_t n)
{
    switch (s->recipe->mixer) {
    case MIXER_CONV: return short_convolution(b, s, n);
    case MIXER_DELTA:
    case MIXER_DELTA_GROUPED: return delta(b, s, n);
    case MIXER_DELTA_CHANNELS: return delta_channels(b, s, n);
    case MIXER_MAMBA:
    case MIXER_MAMBA_HEADS: return mamba(b, s, n);
    case MIXER_MAMBA2: return mamba2(b, s, n);
    case MIXER_LINEAR: return linear(b, s, n);
    case MIXER_ATTENTION: break;
    }
    return n;
}
