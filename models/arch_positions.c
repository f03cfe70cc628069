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
static double pair_of(const struct layer_shape *s, double dims, double turns)
{
    const double circles = (double)s->original_context / (2 * M_PI * turns);
    return dims * log(circles) / (2 * log((double)s->rope_base_global));
}

static void read_yarn(struct graph_builder *b, struct layer_shape *s, float factor)
{
    double fast = 32, slow = 1, multiplier = 0;
    if (s->recipe->yarn_keys) {
        fast = (double)build_float(b, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, fast);
        slow = (double)build_float(b, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, slow);
    }
    if (s->recipe->yarn_keys || s->recipe->latent)
        multiplier = (double)build_float(b, "rope.scaling.yarn_log_multiplier", 0, 1e3, 0);
    const int32_t dims =
        build_int(b, "rope.dimension_count", -1, 2, 4096,
                  build_int(b, "attention.key_length", -1, 2, 4096,
                            s->width / build_int(b, "attention.head_count", 0, 1, 65536, -1)));
    if (build_failed(b))
        return;
    const double low = fmax(0, floor(pair_of(s, dims, fast)));
    const double high = fmin(dims - 1, ceil(pair_of(s, dims, slow)));
    s->rope_low = (float)low;
    s->rope_high = (float)fmax(low + 0.001, high);
    const double growth = factor > 1 ? 0.1 * log((double)factor) : 0;
    if (s->recipe->latent) { /* of latent attention only part is rotated: scores grow instead */
        const double grown = 1 + multiplier * 10 * growth;
        s->yarn_scores = (float)(grown * grown);
        return;
    }
    s->rope_magnitude *= (float)((1 + growth) / (1 + multiplier * growth));
}

static void read_rope_scaling(struct graph_builder *b, struct layer_shape *s)
{
    char key[96];
    struct gguf_string type = {"none", 4};
    snprintf(key, sizeof key, "%s.rope.scaling.type", b->shape->architecture);
    gguf_get_string(b->gguf, key, &type);
    const bool yarn = gguf_string_is(type, "yarn"), none = gguf_string_is(type, "none");
    if (!yarn && !none && !gguf_string_is(type, "linear") && !gguf_string_is(type, "longrope") &&
        !build_failed(b))
        oato_fail(b->err, OATO_EFILE,
                  "%s: key %s is '%.*s'; supported: none, linear, yarn, longrope",
                  gguf_path(b->gguf), key, (int)(type.len < 40 ? type.len : 40), type.data);
    /* llama.cpp's converters write a factor of 0 for "not scaled" */
    const float factor = none ? 0 : build_float(b, "rope.scaling.factor", 0, 1e6, 1);
    s->rope_scale_global = factor > 0 ? 1 / factor : 1;
    s->yarn_scores = 1;
    s->rope_magnitude = build_float(b, "rope.scaling.attn_factor", 0, 1e3, 1);
    s->original_context = build_int(b, "rope.scaling.original_context_length", -1, 0, INT32_MAX,
                                    b->shape->context_length);
    if (yarn && factor > 0 && s->original_context > 0)
        read_yarn(b, s, factor);
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
    if (r->chunks) { /* Llama 4's */
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
    s->rope_divisors = within;
    s->rope_beyond = beyond;
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
    if (s->rope_scaled) {
        op.rope_scale = s->rope_scale_global;
        op.rope_low = s->rope_low;
        op.rope_high = s->rope_high;
        op.rope_magnitude = s->rope_magnitude != 1 ? s->rope_magnitude : 0;
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
