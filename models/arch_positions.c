/*
 * arch_positions.c - how a recipe tells positions apart: rotations and their scaling (linear, YaRN,
 * divisors for each pair), embeddings of positions, ALiBi, temperature of queries.
 *
 * YaRN (Peng et al. 2023): pairs that turn often within the original context keep their rate, those
 * that turn less than once are slowed by the factor, and between them both are mixed.
 */
#include "models/recipe_internal.h"

#include <math.h>

/* The pair that turns `turns` times within the original context. */
static double pair_of(const struct layer_shape *s, double turns)
{
    const double circles = (double)s->original_context / (2 * M_PI * turns);
    return s->rope_dims * log(circles) / (2 * log((double)s->rope_base));
}

/* What a context that grew by `factor` multiplies magnitudes by, times `part`. */
static double growth(double factor, double part)
{
    return factor > 1 ? 1 + 0.1 * part * log(factor) : 1;
}

/* rope_magnitude is what counts without rotations at other rates; YaRN's, which rotations get
 * beside it, makes up for them. */
static void read_magnitudes(struct graph_builder *b, struct layer_shape *s, double factor)
{
    const struct recipe *r = s->recipe;
    const double all = 1 + 0.1 * log(factor);
    double part = 0, m = 1;
    if (r->yarn_log_unit > 0)
        part = (double)build_float(b, "rope.scaling.yarn_log_multiplier", 0, 1e3, 0) /
               (double)r->yarn_log_unit;
    if (s->yarn) {
        const bool alone = r->yarn_scores == SCORES_GROW_ALONE && part != 0 && part != 1;
        m = growth(factor, alone ? part : 1) / growth(factor, part) / all;
    }
    if (r->yarn_switch && !s->yarn)
        m = (double)build_float(b, "rope.scaling.yarn_attn_factor", 1e-6, 1e3, 1);
    if (!r->rope_unread)
        m *= (double)build_float(b, "rope.scaling.attn_factor", 1e-6, 1e3, 1);
    s->rope_magnitude = (float)m;
    s->yarn_magnitude = s->yarn ? (float)all : 1;
    s->rope_scores = 1;
    if (r->yarn_scores != SCORES_STAY) {
        const double grown = m * all * (1 + 0.1 * part * log(factor));
        s->rope_scores = (float)(grown * grown);
    }
}

static float read_factor(struct graph_builder *b)
{
    const bool old = !build_value(b, "rope.scaling.factor");
    const float f = build_float(b, old ? "rope.scale_linear" : "rope.scaling.factor", 0, 1e6, 0);
    return f > 0 ? f : 1; /* llama.cpp's converters write 0 for "not scaled" */
}

static void read_rope_scaling(struct graph_builder *b, struct layer_shape *s)
{
    const struct recipe *r = s->recipe;
    char key[96];
    struct gguf_string type = {"linear", 6};
    snprintf(key, sizeof key, "%s.rope.scaling.type", b->shape->architecture);
    const struct gguf_value *given = build_value_of(b, "rope.scaling.type", GGUF_WANT_STRING);
    type = given ? given->strings[0] : type;
    const bool none = gguf_string_is(type, "none");
    s->yarn = gguf_string_is(type, "yarn") && !r->rope_unread;
    if (!s->yarn && !none && !gguf_string_is(type, "linear") && !gguf_string_is(type, "longrope") &&
        !build_failed(b))
        oato_fail(b->err, OATO_EFILE,
                  "%s: key %s is '%.*s'; supported: none, linear, yarn, longrope",
                  gguf_path(b->gguf), key, (int)(type.len < 40 ? type.len : 40), type.data);
    const float factor = none || r->rope_unread ? 1 : read_factor(b);
    s->rope_scale_global = 1 / factor;
    s->yarn_fast = r->yarn_fast > 0 ? r->yarn_fast : 32;
    s->yarn_slow = 1;
    if (r->yarn_betas) {
        s->yarn_fast =
            build_float(b, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, (double)s->yarn_fast);
        s->yarn_slow = build_float(b, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1);
    }
    if (r->yarn_switch && build_value(b, "rope.scaling.yarn_ext_factor")) {
        const float mix = build_float_any(b, "rope.scaling.yarn_ext_factor", -1e3, 1e3, 1);
        if (mix >= 0 && mix != 0 && mix != 1 && !build_failed(b))
            oato_fail(b->err, OATO_EFILE,
                      "%s: key %s.rope.scaling.yarn_ext_factor is %g; supported: 0 and 1",
                      gguf_path(b->gguf), b->shape->architecture, (double)mix);
        s->yarn = mix < 0 ? s->yarn : mix != 0;
    }
    const int32_t context = b->shape->context_length;
    const int32_t original =
        build_int(b, "rope.scaling.original_context_length", -1, 0, INT32_MAX, context);
    s->original_context = original ? original : context;
    s->always_beyond = !original;
    read_magnitudes(b, s, (double)factor);
}

void arch_read_positions(struct graph_builder *b, struct layer_shape *s)
{
    const struct recipe *r = s->recipe;
    const int32_t layers = b->graph->n_layers;
    read_rope_scaling(b, s);
    if (r->rope_layers && r->rope_layers != layers)
        s->has_positions = false;
    if (r->alibi != ALIBI_NONE && (!r->alibi_layers || r->alibi_layers == layers))
        s->alibi =
            r->alibi == ALIBI_ALWAYS ? 8 : build_float(b, "attention.max_alibi_bias", 0, 1e3, 0);
    if (r->chunks && s->window_width) { /* Llama 4's */
        s->temperature = 0.1F;
        s->temperature_step = 8192;
        s->temperature_offset = 1;
    }
    if (!r->temperature)
        return;
    s->temperature = build_float(b, "attention.temperature_scale", 0, 1e3, 0);
    s->temperature_step = (float)build_int(b, "attention.temperature_length", -1, 0, INT32_MAX, 0);
    if (s->temperature_step == 0)
        s->temperature_step = (float)s->original_context;
}

/* Pairs of the last section would not turn, which no operator does. */
void arch_read_sections(struct graph_builder *b, struct layer_shape *s)
{
    static const char key[] = "rope.dimension_sections";
    const enum sections kind = s->recipe->sections;
    int32_t n[4] = {0}, all = 0;
    const struct gguf_value *v = build_value(b, key);
    if (kind == SECTIONS_NONE || !v)
        return;
    for (int i = 0; i < 4; i++) {
        const bool there = v->type != GGUF_ARRAY || (uint64_t)i < v->count;
        n[i] = there ? build_int(b, key, i, 0, 4096, 0) : 0;
        all += n[i];
    }
    if (kind == SECTIONS_IF_HELD && !(n[0] && n[1]))
        return;
    s->pairing = ROPE_HALVES;
    bool turns = all > 0;
    for (int32_t pair = 0; turns && pair < s->rope_dims / 2; pair++) {
        const int32_t at = pair % all;
        turns = kind == SECTIONS_IN_TURN ? at < 3 * n[at % 3] : at < n[0] + n[1] + n[2];
    }
    if (!turns && !build_failed(b))
        oato_fail(
            b->err, OATO_EFILE,
            "%s: key %s.%s = %d, %d, %d, %d leaves pairs of %d dimensions without a position; "
            "this is not supported",
            gguf_path(b->gguf), b->shape->architecture, key, n[0], n[1], n[2], n[3], s->rope_dims);
}

void arch_read_divisors(struct graph_builder *b, struct layer_shape *s)
{
    const bool global = s->recipe->divisors_global;
    const int32_t dims = s->rope_dims;
    const int64_t pairs =
        (global ? build_int(b, "rope.dimension_count", -1, 2, 4096, dims) : dims) / 2;
    const struct gguf_tensor *beyond = build_tensor(b, pairs, 0, true, "rope_factors_long.weight");
    const struct gguf_tensor *within =
        build_tensor(b, pairs, 0, beyond == NULL, "rope_factors_short.weight");
    s->rope_divisors = build_tensor(b, pairs, 0, !global, "rope_freqs.weight");
    if (s->rope_divisors || !beyond)
        return;
    s->rope_divisors = s->always_beyond ? beyond : within;
    s->rope_beyond = s->always_beyond ? NULL : beyond;
}

int32_t arch_learned_positions(struct graph_builder *b, const struct layer_shape *s, int32_t x)
{
    const bool optional = s->recipe->learned == LEARNED_IF_HELD;
    if (s->recipe->learned == LEARNED_NONE)
        return x;
    const struct gguf_tensor *t = gguf_tensor(b->gguf, "position_embd.weight");
    const int64_t held = t ? t->ne[1] : (int64_t)b->shape->context_length + s->recipe->learned_from;
    const int64_t rows = min_i64(held, INT32_MAX / 2);
    t = build_tensor(b, s->width, rows, optional, "position_embd.weight");
    if (!t)
        return x;
    b->shape->positions_most = (int32_t)max_i64(rows - s->recipe->learned_from, 1);
    const struct oato_op op = {.kind = OP_EMBED,
                               .dtype = (uint16_t)t->dtype,
                               .k = s->width,
                               .n = (int32_t)rows,
                               .by_position = 1 + s->recipe->learned_from};
    const int32_t p = build_op(b, -1, "position_embd", op, -1, -1, t, s->width);
    return arch_add(b, -1, "position_add", x, p);
}

/* Between which pairs YaRN mixes. */
static void slow_pairs(const struct layer_shape *s, struct oato_op *op)
{
    const double low = fmax(0, floor(pair_of(s, (double)s->yarn_fast)));
    const double high = fmin(s->rope_dims - 1, ceil(pair_of(s, (double)s->yarn_slow)));
    op->rope_low = (float)low;
    op->rope_high = (float)fmax(low + 0.001, high);
}

int32_t arch_rope(struct graph_builder *b, const struct layer_shape *s, const char *name,
                  int32_t in, int32_t heads, int32_t head_dim, int32_t first)
{
    struct oato_op op = {.kind = OP_ROPE,
                         .dtype = DT_F32,
                         .k = heads * head_dim,
                         .n = heads * head_dim,
                         .heads = heads,
                         .head_dim = head_dim,
                         .first = first,
                         .rope_dims = s->rope_dims,
                         .rope_pairing = (int32_t)s->pairing,
                         .rope_base = s->rope_base,
                         .rope_scale = 1};
    if (s->rope_scaling != WINDOWS_PLAIN) {
        const float magnitude =
            s->rope_magnitude * (s->rope_scaling == WINDOWS_SCALED ? s->yarn_magnitude : 1);
        op.rope_magnitude = magnitude != 1 ? magnitude : 0;
    }
    if (s->rope_scaling == WINDOWS_SCALED) {
        op.rope_scale = s->rope_scale_global;
        if (s->yarn)
            slow_pairs(s, &op);
    }
    const bool divides = !s->window || !s->recipe->divisors_global;
    const int32_t y =
        build_op(b, s->layer, name, op, in, -1, divides ? s->rope_divisors : NULL, op.n);
    if (s->rope_beyond)
        build_beyond(b, s->rope_beyond, s->original_context);
    return y;
}

int32_t arch_temper(struct graph_builder *b, const struct layer_shape *s, int32_t q)
{
    const struct oato_op op = {.kind = OP_SCALE,
                               .scale = 1,
                               .temperature = s->temperature,
                               .temperature_step = s->temperature_step,
                               .temperature_offset = s->temperature_offset};
    if (s->recipe->chunks && s->rope)
        return q;
    return s->temperature != 0 ? arch_elementwise(b, s->layer, "temper_q", "", op, q, NULL) : q;
}
