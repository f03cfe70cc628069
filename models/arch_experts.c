/*
 * arch_experts.c - the feed-forward block of a recipe: a dense FFN (arch_ffn.c), or experts. A
 * small matrix gives every token a logit for each expert, whose score is their softmax or sigmoid;
 * the best few compute a gated FFN each, and their outputs are summed, weighted by the scores.
 * Beside them there may be shared experts, which every token uses and which are one dense FFN.
 *
 *     c = route(Wr m);  y = sum over e in c of c_e Wdown_e(silu(Wgate_e m) * Wup_e m)
 */
#include "models/recipe_internal.h"

#include <math.h>
#include <string.h>

enum { EXPERTS_MOST = 1 << 12, FFN_MOST = 1 << 24 };

/* ------------------------------------------------------------------------------------ keys */

/* Normalised or not: a key of some architectures, of others a fact. */
static bool normalised(struct graph_builder *b, const struct recipe *r)
{
    return r->experts == EXPERTS_NORMALISED ||
           (r->experts == EXPERTS_BY_KEY && build_bool(b, "expert_weights_norm", false));
}

/* GGUF's numbers: 1 softmax, 2 sigmoid, 3 softmax of the chosen, which is softmax with weights
 * divided by their sum, 4 sqrt(softplus); 0 stands for the architecture's own. */
static void read_score(struct graph_builder *b, const struct recipe *r, struct experts *out)
{
    static const enum route_score scores[] = {ROUTE_SOFTMAX, ROUTE_SOFTMAX, ROUTE_SIGMOID,
                                              ROUTE_SOFTMAX, ROUTE_ROOT_SOFTPLUS};
    const struct gguf_value *tokens = gguf_find(b->gguf, "tokenizer.ggml.tokens");
    const int32_t layers = b->graph->n_layers;
    const int32_t vocab =
        build_int(b, "vocab_size", -1, 0, INT32_MAX, tokens ? (int64_t)tokens->count : 0);
    const bool sigmoid =
        r->sigmoid_vocab && vocab == r->sigmoid_vocab && (layers == 47 || layers == 48);
    out->score = sigmoid ? ROUTE_SIGMOID : r->route_score;
    const int32_t kind = r->router == ROUTER_BY_KEY
                             ? build_int(b, "expert_gating_func", -1, 0, ARRAY_LEN(scores) - 1, 0)
                             : 0;
    if (kind)
        out->score = scores[kind];
    if (kind == 3)
        out->normalised = true;
}

static void read_groups(struct graph_builder *b, struct experts *out)
{
    const int32_t groups = build_int(b, "expert_group_count", -1, 0, out->all, 0);
    if (groups < 2)
        return;
    out->groups_used = build_int(b, "expert_group_used_count", -1, 1, groups, groups);
    out->groups = groups;
    if (!build_failed(b) && (out->all % groups || out->used > out->all / groups * out->groups_used))
        oato_fail(b->err, OATO_EFILE,
                  "%s: %d groups of %d experts, of which tokens use %d, do not give %d experts",
                  gguf_path(b->gguf), groups, out->all, out->groups_used, out->used);
}

static void read_shared(struct graph_builder *b, const struct recipe *r, struct experts *out)
{
    if (r->shared_is_one)
        out->shared = out->width;
    else if (r->shared_experts)
        out->shared = build_int(b, "expert_shared_feed_forward_length", -1, 0, FFN_MOST, 0);
    if (r->shared_experts && !out->shared && !build_failed(b)) {
        const int32_t most = out->width ? FFN_MOST / out->width : 0;
        out->shared = out->width * build_int(b, "expert_shared_count", -1, 0, most, 0);
    }
}

/* An expert of the second bank is as wide as a head unless the file says it. */
static void read_bank(struct graph_builder *b, struct experts *out)
{
    const int32_t width = build_int(b, "embedding_length", -1, 1, 1 << 20, -1);
    const int32_t heads = build_int(b, "attention.head_count", 0, 1, 65536, -1);
    out->bank_width = build_int(b, "expert_chunk_feed_forward_length", -1, 0, FFN_MOST, 0);
    if (!out->bank_width)
        out->bank_width =
            build_int(b, "attention.key_length", -1, 1, 4096, heads ? width / heads : 1);
    out->bank_share = build_int(b, "experts_per_group", -1, 1, out->all, -1);
    out->bank_factor = build_float(b, "expert_group_scale", -1e6, 1e6, 0);
    if (!build_failed(b) && out->all % out->bank_share)
        oato_fail(b->err, OATO_EFILE, "%s: %d experts are no groups of %d; use another model",
                  gguf_path(b->gguf), out->all, out->bank_share);
}

void arch_read_experts(struct graph_builder *b, struct layer_shape *s)
{
    const struct recipe *r = s->recipe;
    struct experts *out = &s->experts;
    *out = (struct experts){0};
    if (r->experts == EXPERTS_NONE)
        return;
    out->all = build_int(b, "expert_count", -1, r->experts_optional ? 0 : 1, EXPERTS_MOST,
                         r->experts_optional ? 0 : -1);
    if (build_failed(b) || !out->all)
        return;
    const struct gguf_value *used = build_value(b, "expert_used_count");
    const bool by_layer = used && used->type == GGUF_ARRAY; /* 0: the layer has none */
    out->used = build_int(b, "expert_used_count", s->layer, by_layer ? 0 : 1, out->all, -1);
    out->all = out->used ? out->all : 0;
    if (!out->used)
        return;
    if (r->dense_first)
        out->dense_layers = build_int(b, "leading_dense_block_count", -1, 0, 1 << 16, 0);
    if (r->experts_in_turn)
        out->step = build_int(b, "interleave_moe_layer_step", -1, 1, 1 << 16, -1);
    out->width = build_int(b, "expert_feed_forward_length", s->layer, 0, FFN_MOST, 0);
    if (!out->width && !build_failed(b)) /* older files have one key for both */
        out->width = build_int(b, "feed_forward_length", s->layer, out->used, FFN_MOST, -1) /
                     (r->ffn_of_all_experts ? out->used : 1);
    if (!build_failed(b) && out->width > INT32_MAX / out->used)
        oato_fail(b->err, OATO_EFILE, "%s: %d experts per token of %d neurons each are too many",
                  gguf_path(b->gguf), out->used, out->width);
    read_shared(b, r, out);
    if (r->second_bank)
        read_bank(b, out);
    if (r->latent_experts)
        out->latent = build_int(b, "moe_latent_size", -1, 0, 1 << 20, 0);
    out->normalised = normalised(b, r);
    if (r->weights_scaled || r->experts == EXPERTS_BY_KEY)
        out->scale = build_float(b, "expert_weights_scale", 0, 1e6, 0);
    read_score(b, r, out);
    read_groups(b, out);
}

/* ---------------------------------------------------------------------------------- choice */

/* Of x normed with weights of the router's own. */
static int32_t normed_logits(struct graph_builder *b, const struct layer_shape *s, int32_t x,
                             const struct gguf_tensor *w)
{
    const struct oato_op norm = {.kind = OP_RMS_NORM, .eps = s->eps};
    const struct gguf_tensor *scale =
        build_tensor(b, s->width, 0, false, "blk.%d.ffn_gate_inp.scale", s->layer);
    const int32_t n = arch_elementwise(b, s->layer, "ffn_gate_inp", "_norm", norm, x, scale);
    const int32_t logits = build_mul_mat(b, s->layer, "ffn_gate_inp", n, w);
    return arch_factor(b, s->layer, "ffn_gate_inp_factor", logits, 1 / sqrtf((float)s->width));
}

/* A logit of each expert. */
static int32_t logits_of(struct graph_builder *b, const struct layer_shape *s, int32_t m, int32_t x)
{
    const struct gguf_tensor *w =
        build_tensor(b, s->width, s->experts.all, false, "blk.%d.ffn_gate_inp.weight", s->layer);
    const int32_t in = s->recipe->route_layer_input ? s->input : m;
    if (s->recipe->dense == DENSE_BESIDE_NORMED)
        return normed_logits(b, s, x, w);
    return arch_bias(b, s->layer, "ffn_gate_inp", build_mul_mat(b, s->layer, "ffn_gate_inp", in, w),
                     false);
}

/* share: logits for each expert; 0: one */
static int32_t route(struct graph_builder *b, const struct layer_shape *s, const char *name,
                     int32_t x, int32_t share)
{
    const struct experts *e = &s->experts;
    struct oato_op op = {.kind = OP_ROUTE,
                         .dtype = DT_F32,
                         .k = e->all * (share ? share : 1),
                         .n = 2 * e->used,
                         .experts = e->all,
                         .experts_used = e->used,
                         .route_norm = e->normalised,
                         .route_score = (int32_t)e->score,
                         .route_groups = e->groups,
                         .route_groups_used = e->groups_used,
                         .route_share = share,
                         .scale = e->scale};
    const struct gguf_tensor *bias = NULL;
    if (s->recipe->router != ROUTER_PLAIN) { /* older files lack the ending */
        const bool old = arch_has(b, s->layer, "exp_probs_b");
        bias =
            build_tensor(b, e->all, 0, true, "blk.%d.exp_probs_b%s", s->layer, old ? "" : ".bias");
    }
    return build_op(b, s->layer, name, op, x, -1, bias, op.n);
}

/* -------------------------------------------------------------------------------- matrices */

static const struct gguf_tensor *matrices(struct graph_builder *b, const struct layer_shape *s,
                                          const char *name, int64_t k, int64_t n)
{
    return build_tensor_experts(b, k, n, s->experts.all, "blk.%d.%s.weight", s->layer, name);
}

/* A quantiser's factors, one for each expert; NULL: none, or they do not count. */
static const struct gguf_tensor *factors(struct graph_builder *b, const struct layer_shape *s,
                                         const char *name)
{
    const struct gguf_tensor *t =
        build_tensor(b, s->experts.all, 0, true, "blk.%d.%s.scale", s->layer, name);
    return s->recipe->expert_factors ? t : NULL;
}

static const struct gguf_tensor *biases(struct graph_builder *b, const struct layer_shape *s,
                                        const char *name, int64_t n)
{
    return build_tensor(b, n, s->experts.all, true, "blk.%d.%s.bias", s->layer, name);
}

static struct oato_op experts_op(const struct layer_shape *s, enum op_kind kind,
                                 const struct gguf_tensor *w, int32_t k, int32_t n)
{
    const struct experts *e = &s->experts;
    return (struct oato_op){.kind = (uint16_t)kind,
                            .dtype = (uint16_t)w->dtype,
                            .k = k,
                            .n = n,
                            .experts = e->all,
                            .experts_used = e->used,
                            .activation =
                                (int32_t)(s->clamp > 0 ? s->recipe->clamp_by_key : s->activation),
                            .scale = s->clamp,
                            .weighs_input = s->recipe->weighs_input};
}

/* What experts read and write. */
static int32_t width_outside(const struct layer_shape *s)
{
    return s->experts.latent ? s->experts.latent : s->width;
}

/* `bank`: how names of tensors end, "exps" or "chexps". */
static int32_t gate_up(struct graph_builder *b, const struct layer_shape *s, const char *bank,
                       int32_t m, int32_t choice)
{
    const int32_t width = s->experts.width, k = width_outside(s);
    const bool single = s->recipe->ungated;
    const bool one = !single && arch_has(b, s->layer, "ffn_gate_up_exps.weight");
    char first[24], up_name[24], both[24];
    snprintf(up_name, sizeof up_name, "ffn_up_%s", bank);
    snprintf(both, sizeof both, "ffn_gate_up_%s", bank);
    snprintf(first, sizeof first, "ffn_%s_%s", single ? "up" : "gate", bank);
    const int64_t rows = one ? 2 * (int64_t)width : width;
    const struct gguf_tensor *gate = matrices(b, s, one ? both : first, k, rows);
    const struct gguf_tensor *up = matrices(b, s, one ? both : up_name, k, rows);
    const struct gguf_tensor *extra[] = {
        factors(b, s, first), single ? NULL : factors(b, s, up_name), biases(b, s, first, width),
        single ? NULL : biases(b, s, up_name, width)};
    if (build_failed(b))
        return -1;
    struct oato_op op = experts_op(s, OP_EXPERT_GATE_UP, gate, k, width);
    op.one_tensor = one;
    op.single = single;
    op.up_dtype = up->dtype == gate->dtype ? 0 : (int32_t)up->dtype;
    if (up->dtype != gate->dtype && (!up->dtype || !op_valid(&op))) {
        oato_fail(b->err, OATO_EFILE,
                  "%s: tensors %s and %s may differ in type only if both are quantised: %s, %s",
                  gguf_path(b->gguf), gate->name, up->name, dtype_name(gate->dtype),
                  dtype_name(up->dtype));
        return -1;
    }
    const int32_t hidden =
        build_op(b, s->layer, both, op, m, choice, gate, s->experts.used * width);
    build_weight(b, up);
    build_extras(b, extra, ARRAY_LEN(extra));
    return hidden;
}

static int32_t down(struct graph_builder *b, const struct layer_shape *s, const char *bank,
                    int32_t hidden, int32_t choice)
{
    const int32_t n = width_outside(s);
    char name[24];
    snprintf(name, sizeof name, "ffn_down_%s", bank);
    const struct gguf_tensor *w = matrices(b, s, name, s->experts.width, n);
    const struct gguf_tensor *extra[] = {factors(b, s, name), biases(b, s, name, n)};
    if (build_failed(b))
        return -1;
    const struct oato_op op = experts_op(s, OP_EXPERT_DOWN, w, s->experts.width, n);
    const int32_t y = build_op(b, s->layer, name, op, hidden, choice, w, n);
    build_extras(b, extra, ARRAY_LEN(extra));
    return y;
}

/* ----------------------------------------------------------------------------------- block */

/* Of some models the shared experts' output is multiplied by a sigmoid, one for a token. */
static int32_t shared(struct graph_builder *b, const struct layer_shape *s, int32_t m)
{
    const int32_t y = arch_dense(b, s, "_shexp", m, s->experts.shared);
    if (!s->recipe->shared_gate)
        return y;
    const struct gguf_tensor *w =
        build_tensor(b, s->width, 0, false, "blk.%d.ffn_gate_inp_shexp.weight", s->layer);
    const int32_t gate = build_mul_mat(b, s->layer, "ffn_gate_inp_shexp", m, w);
    return arch_gate(b, s->layer, "ffn_shexp_gate", y, gate, ACT_SIGMOID);
}

bool arch_has_experts(const struct graph_builder *b, const struct layer_shape *s)
{
    const bool dense =
        arch_has(b, s->layer, "ffn_gate.weight") && !arch_has(b, s->layer, "ffn_gate_inp.weight");
    const bool turn = !s->experts.step || (s->layer + 1) % s->experts.step == 0;
    return s->experts.all && s->layer >= s->experts.dense_layers && turn && !dense;
}

/* A dense FFN reads m. */
static int32_t beside(struct graph_builder *b, const struct layer_shape *s, int32_t m)
{
    if (s->experts.shared)
        return shared(b, s, m);
    const bool always = s->recipe->dense >= DENSE_BESIDE_OF_INPUT;
    const bool dense =
        always || (s->recipe->dense == DENSE_BESIDE && arch_has(b, s->layer, "ffn_up.weight"));
    const bool square = s->recipe->dense == DENSE_BESIDE_OF_INPUT;
    return dense ? arch_dense(b, s, "", m, square ? s->width : s->ffn) : -1;
}

/* What the experts read. */
static int32_t experts_input(struct graph_builder *b, const struct layer_shape *s, int32_t m,
                             int32_t x)
{
    if (s->recipe->dense == DENSE_BESIDE_OF_INPUT)
        return arch_norm(b, s, s->layer, "ffn_norm_exps", s->input);
    return s->recipe->dense == DENSE_BESIDE_NORMED ? arch_norm(b, s, s->layer, "pre_ffw_norm_2", x)
                                                   : m;
}

/* What the experts of a choice make of n. */
static int32_t chosen(struct graph_builder *b, const struct layer_shape *s, const char *bank,
                      int32_t n, int32_t choice)
{
    return down(b, s, bank, gate_up(b, s, bank, n, choice), choice);
}

/* y and what a second bank makes of it: its experts stand each for some of the first bank, and are
 * chosen by their logits. */
static int32_t second_bank(struct graph_builder *b, const struct layer_shape *s, int32_t logits,
                           int32_t y)
{
    struct layer_shape second = *s;
    struct experts *e = &second.experts;
    e->all /= e->bank_share > 0 ? e->bank_share : 1;
    e->used = (int32_t)min_i64(e->used, e->all);
    e->width = e->bank_width;
    const int32_t choice = route(b, &second, "ffn_route_chexps", logits, e->bank_share);
    const int32_t z = chosen(b, &second, "chexps", y, choice);
    return arch_add(b, s->layer, "ffn_chexps_add", y,
                    arch_factor(b, s->layer, "ffn_chexps_factor", z, e->bank_factor));
}

static int32_t routed(struct graph_builder *b, const struct layer_shape *s, int32_t n, int32_t x)
{
    const int32_t latent = s->experts.latent, logits = logits_of(b, s, n, x);
    const int32_t choice = route(b, s, "ffn_route", logits, 0);
    if (latent)
        n = arch_product(b, s->layer, "ffn_latent_down", n, latent, FACTOR_UNUSED);
    const int32_t y = chosen(b, s, "exps", n, choice);
    if (s->experts.bank_width)
        return second_bank(b, s, logits, y);
    return latent ? arch_product(b, s->layer, "ffn_latent_up", y, s->width, FACTOR_UNUSED) : y;
}

static int32_t experts(struct graph_builder *b, const struct layer_shape *s, int32_t m, int32_t x)
{
    const bool normed = s->recipe->dense == DENSE_BESIDE_NORMED;
    const int32_t n = experts_input(b, s, m, x);
    int32_t y = routed(b, s, n, x);
    if (normed)
        y = arch_norm(b, s, s->layer, "post_ffw_norm_2", y);
    int32_t other = beside(b, s, m);
    if (other < 0)
        return y;
    if (normed)
        other = arch_norm(b, s, s->layer, "post_ffw_norm_1", other);
    y = arch_add(b, s->layer, "ffn_shexp_add", y, other);
    const float factor = s->recipe->shared_factor;
    return arch_factor(b, s->layer, "ffn_shexp_factor", y, factor != 0 ? factor : 1);
}

int32_t arch_ffn(struct graph_builder *b, const struct layer_shape *s, int32_t m, int32_t x)
{
    return arch_has_experts(b, s) ? experts(b, s, m, x) : arch_dense(b, s, "", m, s->ffn);
}
