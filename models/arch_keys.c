/*
 * arch_keys.c - keys whose meaning, or whose value where a file lacks them, differs from
 * architecture to architecture: factors, windows and what layers with one rotate by. A recipe says
 * which of them its architecture reads: any other changes nothing.
 */
#include "models/recipe_internal.h"

#include <math.h>

/* ----------------------------------------------------------------------------------- factors */

/* A factor of 0 stands for none. */
static float factor_or_one(float f)
{
    return f != 0 ? f : 1;
}

static float read_factor(struct graph_builder *b, const char *key, double otherwise)
{
    return factor_or_one(build_float_any(b, key, -1e6, 1e6, otherwise));
}

static void read_granites(struct graph_builder *b, struct layer_shape *s)
{
    if (s->recipe->factors == FACTORS_BY_KEY)
        build_demand(b, "logit_scale");
    s->embedding_factor = read_factor(b, "embedding_scale", 1);
    s->block_factor = read_factor(b, "residual_scale", 1);
    s->logit_factor = 1 / read_factor(b, "logit_scale", 1);
    s->score_factor = build_float_any(b, "attention.scale", -1e6, 1e6, 0);
}

static void read_minicpm(struct graph_builder *b, struct layer_shape *s)
{
    const bool keys = s->recipe->factors == FACTORS_MINICPM;
    const double block = 1.4 / sqrt(b->graph->n_layers), logit = 256 / (double)s->width;
    s->embedding_factor = keys ? read_factor(b, "embedding_scale", 12) : 12;
    s->block_factor = keys ? read_factor(b, "residual_scale", block) : (float)block;
    s->logit_factor = keys ? 1 / read_factor(b, "logit_scale", logit) : (float)logit;
}

void arch_read_factors(struct graph_builder *b, struct layer_shape *s)
{
    s->embedding_factor = s->block_factor = s->logit_factor = 1;
    switch (s->recipe->factors) {
    case FACTORS_NONE: break;
    case FACTORS_BY_KEY:
    case FACTORS_IF_HELD: read_granites(b, s); break;
    case FACTORS_EMBEDDING: s->embedding_factor = read_factor(b, "embedding_scale", 1); break;
    case FACTORS_MINICPM:
    case FACTORS_MINICPM3: read_minicpm(b, s); break;
    case FACTORS_ROOT: s->embedding_factor = sqrtf((float)s->width); break;
    case FACTORS_LOGITS: s->logit_factor = build_float(b, "logit_scale", 1e-6, 1e6, -1); break;
    case FACTORS_LOGITS_IF_HELD: s->logit_factor = read_factor(b, "logit_scale", 1); break;
    case FACTORS_GROK:
        s->embedding_factor = read_factor(b, "embedding_scale", 78.38367F);
        s->logit_factor = build_float(b, "logit_scale", 1e-6, 1e6, 0.57735027);
        s->score_factor = build_float(b, "attention.output_scale", 1e-6, 1e6, 0.08838835);
        break;
    case FACTORS_OF_NORMED:
        s->normed_factor = build_float(b, "residual_scale", 1e-6, 1e6, -1);
        break;
    }
}

/* ----------------------------------------------------------------------------------- windows */

static int32_t read_width(struct graph_builder *b, const struct recipe *r)
{
    static const char key[] = "attention.sliding_window";
    if (!r->window_every || (r->window_layers && r->window_layers != b->graph->n_layers))
        return 0;
    if (r->window_width == WIDTH_DEMANDED)
        return build_int(b, key, -1, 1, INT32_MAX, -1);
    const int32_t width = build_int(b, key, -1, 0, INT32_MAX, r->window_otherwise);
    return width && r->window_width == WIDTH_FIXED ? r->window_fixed : width;
}

/* NTK-aware scaling: of the base. */
static float alpha_factor(struct graph_builder *b, const struct layer_shape *s)
{
    const float alpha = build_float(b, "rope.scaling.alpha", 0, 1e6, 0);
    const int32_t heads = build_int(b, "attention.head_count", 0, 1, 65536, -1);
    const int32_t dim =
        build_int(b, "attention.key_length", -1, 4, 4096, heads ? s->width / heads : 4);
    return alpha > 0 && dim > 2 ? powf(alpha, (float)dim / (float)(dim - 2)) : 1;
}

void arch_read_windows(struct graph_builder *b, struct layer_shape *s)
{
    static const char key[] = "rope.freq_base_swa";
    const struct recipe *r = s->recipe;
    s->window_width = read_width(b, r);
    s->rope_base_global = r->rope_unread ? 10000 : build_float(b, "rope.freq_base", 1, 1e12, 10000);
    if (r->rope_alpha)
        s->rope_base_global *= alpha_factor(b, s);
    s->rope_base_window = s->rope_base_global;
    if (s->window_width && r->window_base != BASE_GLOBAL)
        s->rope_base_window =
            build_float(b, key, 1, 1e12,
                        r->window_base == BASE_DEMANDED ? -1
                        : r->window_base == BASE_10000  ? 10000
                                                        : (double)s->rope_base_global);
}

/* "Every n-th layer has none": 0 stands for no such layer. */
static bool in_turn(const struct recipe *r, int32_t layer, int32_t every)
{
    return !every || (r->window_last ? layer % every > 0 : layer % every < every - 1);
}

bool arch_has_window(struct graph_builder *b, const struct layer_shape *s, int32_t layer)
{
    static const char key[] = "attention.sliding_window_pattern";
    const struct recipe *r = s->recipe;
    if (!s->window_width)
        return false;
    const struct gguf_value *pattern =
        r->window_pattern == PATTERN_UNREAD ? NULL : build_value(b, key);
    if (r->window_pattern == PATTERN_DEMANDED || (pattern && pattern->type == GGUF_ARRAY))
        return build_flag(b, key, layer);
    if (pattern)
        return in_turn(r, layer, build_int(b, key, -1, 0, 1 << 16, -1));
    return r->window_every == 1 || in_turn(r, layer, r->window_every);
}

void arch_read_window(struct graph_builder *b, struct layer_shape *s, int32_t layer)
{
    const struct recipe *r = s->recipe;
    s->window = arch_has_window(b, s, layer) ? s->window_width : 0;
    s->rope_base = s->window ? s->rope_base_window : s->rope_base_global;
    s->rope_scaling = s->window ? r->window_scaling : WINDOWS_SCALED;
    if (s->window_width && r->rope_in_windows && !s->window)
        s->rope = r->dense_rope && !arch_has_experts(b, s);
    const struct gguf_value *turns =
        r->rope_by_pattern ? build_value(b, "attention.rope_pattern") : NULL;
    if (turns && turns->type == GGUF_ARRAY)
        s->rope = build_int(b, "attention.rope_pattern", layer, 0, 1, 1);
}

/* ------------------------------------------------------------------------------------ unread */

/* Some layer adds an image's features. */
static bool any_deepstack(struct graph_builder *b)
{
    const struct gguf_value *v = build_value_of(b, "deepstack_mapping", GGUF_WANT_NUMBERS);
    double layer;
    for (uint64_t i = 0; v && i < v->count; i++)
        if (gguf_value_f64(v, i, &layer) && layer >= 0)
            return true;
    return false;
}

/* Keys of some files that this row does not read: with other values than these the graph would be
 * wrong. */
void arch_check_unread(struct graph_builder *b, const struct recipe *r)
{
    const struct {
        const char *key, *same;
        bool read;
    } rows[] = {
        {"rope.dimension_count_swa", "rope.dimension_count", r->window_rope_dims},
        {"attention.key_length_swa", "attention.key_length", r->window_dims || r->latent},
        {"attention.value_length_swa", "attention.value_length", r->window_dims || r->latent}};
    const char *wrong = NULL;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        const struct gguf_value *v = build_value_of(b, rows[i].key, GGUF_WANT_NUMBER),
                                *w = build_value_of(b, rows[i].same, GGUF_WANT_NUMBER);
        double a, c;
        if (!rows[i].read && v && gguf_value_f64(v, 0, &a) && w && gguf_value_f64(w, 0, &c) &&
            a != c)
            wrong = rows[i].key;
    }
    if (!r->value_scale && read_factor(b, "attention.value_scale", 1) != 1)
        wrong = "attention.value_scale";
    if (build_bool(b, "kda.safe_gate", r->bounded_decays) != r->bounded_decays)
        wrong = "kda.safe_gate";
    if (any_deepstack(b))
        wrong = "deepstack_mapping";
    if (!build_bool(b, "attention.causal", true))
        wrong = "attention.causal";
    if (wrong && !build_failed(b))
        oato_fail(b->err, OATO_EFILE,
                  "%s: key %s.%s has a value that is not supported; use another model",
                  gguf_path(b->gguf), b->shape->architecture, wrong);
}
