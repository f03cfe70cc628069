/*
 * power_law.c - frequencies min(1, c / rank^a). For every exponent a there is one factor c with the
 * wanted mean, and the share of the hot neurons rises with a: two bisections, one in the other.
 */
#include "tests/solver/power_law.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BISECTIONS = 36 };

struct power_law power_law_default(void)
{
    return (struct power_law){.hot = 0.26, .mean = 0.1, .hot_experts = 0.5, .seed = 1};
}

/* 1 / rank^a, summed: sum[i] is that of the first i ranks. */
struct curve {
    double a;
    int32_t n;
    double *sum;
};

static void curve_set(struct curve *v, double a)
{
    v->a = a;
    for (int32_t r = 0; r < v->n; r++)
        v->sum[r + 1] = v->sum[r] + pow(r + 1, -a);
}

static double sum_at(const struct curve *v, double count)
{
    const int32_t whole = count < v->n ? (int32_t)count : v->n - 1;
    return v->sum[whole] + (count - whole) * (v->sum[whole + 1] - v->sum[whole]);
}

/* Sum of the first `count` frequencies min(1, c / rank^a); of a last, broken one as much. */
static double sum_of(const struct curve *v, double c, double count)
{
    const double full = c < 1 ? 0 : fmin(count, floor(pow(c, 1 / v->a)));
    return full + c * (sum_at(v, count) - sum_at(v, full));
}

/* The factor with which the mean is the wanted one. */
static double factor_for(const struct curve *v, double mean)
{
    double lo = mean * v->n / v->sum[v->n], hi = pow(v->n, v->a); /* hi: all fire always */
    for (int i = 0; lo > 1 && i < BISECTIONS; i++) {
        const double c = (lo + hi) / 2;
        if (sum_of(v, c, v->n) < mean * v->n)
            lo = c;
        else
            hi = c;
    }
    return lo;
}

bool power_law_fill(double hot, double mean, int32_t n, float *freq)
{
    double lo = 0, hi = 8, share = 0, c = 0;
    struct curve v = {.n = n, .sum = calloc((size_t)n + 1, sizeof *v.sum)};
    for (int i = 0; v.sum && i < BISECTIONS; i++) {
        curve_set(&v, (lo + hi) / 2);
        c = factor_for(&v, mean);
        share = sum_of(&v, c, hot * n) / (mean * n);
        if (share < POWER_LAW_SHARE)
            lo = v.a;
        else
            hi = v.a;
    }
    for (int32_t r = 0; v.sum && r < n; r++)
        freq[r] = (float)fmin(1, c * pow(r + 1, -v.a));
    free(v.sum);
    return fabs(share - POWER_LAW_SHARE) < 1e-3;
}

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void shuffle(float *v, int32_t n, uint64_t *random)
{
    for (int32_t i = n - 1; i > 0; i--) {
        const int32_t j = (int32_t)(next(random) % (uint64_t)(i + 1));
        const float t = v[i];
        v[i] = v[j];
        v[j] = t;
    }
}

static const struct gguf_tensor *tensor_of(const struct gguf *g, int32_t layer, const char *name)
{
    char full[GGUF_MAX_NAME + 1];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    return gguf_tensor(g, full);
}

/* An integer of the architecture's keys; 0 when it is missing. */
static int64_t model_key(const struct gguf *g, const char *name)
{
    struct gguf_string a = {"", 0};
    char key[128];
    int64_t value = 0;
    gguf_get_string(g, "general.architecture", &a);
    snprintf(key, sizeof key, "%.*s.%s", (int)min_i64((int64_t)a.len, 64), a.data, name);
    gguf_get_i64(g, key, &value);
    return value;
}

/* n shuffled frequencies and their order, in the arena. */
static oato_status fill(struct neurons *out, double hot, double mean, int32_t n, uint64_t *random,
                        const float **freq, const int32_t **order, struct oato_error *err)
{
    float *f = arena_alloc(&out->arena, (size_t)n, sizeof *f);
    int32_t *o = arena_alloc(&out->arena, (size_t)n, sizeof *o);
    if (!f || !o)
        return oato_fail_memory(err, (size_t)n * sizeof *f, "frequencies");
    if (!power_law_fill(hot, mean, n, f))
        return oato_fail(err, OATO_EUSAGE,
                         "no power law has a mean of %g with %g of %d causing %g of all", mean, hot,
                         n, POWER_LAW_SHARE);
    shuffle(f, n, random);
    neurons_order(f, n, o);
    *freq = f;
    *order = o;
    return OATO_OK;
}

static oato_status fill_layer(struct neurons *out, int32_t i, const struct gguf *g,
                              const struct power_law *law, uint64_t *random, struct oato_error *err)
{
    struct neurons_layer *l = &out->layers[i];
    const struct gguf_tensor *down = tensor_of(g, i, "ffn_down"),
                             *router = tensor_of(g, i, "ffn_gate_inp");
    const double unit = (double)(next(random) >> 11) * 0x1p-53;
    oato_status status = OATO_OK;
    if (down) {
        l->n_ff = (int32_t)down->ne[0];
        status = fill(out, law->hot, law->mean * (1 + law->spread * (2 * unit - 1)), l->n_ff,
                      random, &l->ffn_freq, &l->ffn_order, err);
    }
    if (!status && router) {
        l->n_experts = (int32_t)router->ne[1];
        const double used = (double)model_key(g, "expert_used_count") / l->n_experts;
        status = fill(out, law->hot_experts, used, l->n_experts, random, &l->exp_freq,
                      &l->exp_order, err);
    }
    return status;
}

oato_status power_law_neurons(const struct gguf *g, const struct power_law *law,
                              struct neurons *out, struct oato_error *err)
{
    oato_status status = OATO_OK;
    uint64_t random = law->seed;
    neurons_init(out);
    out->structure_hash = gguf_structure_hash(g);
    out->content_hash = gguf_content_hash(g);
    out->source = "synthetic";
    out->n_layers = (int32_t)min_i64(model_key(g, "block_count"), 4096);
    out->layers = arena_alloc(&out->arena, (size_t)out->n_layers + 1, sizeof *out->layers);
    if (!out->layers)
        status = oato_fail_memory(err, sizeof *out->layers, "frequencies");
    else if (!tensor_of(g, 0, "ffn_down") && !tensor_of(g, 0, "ffn_gate_inp"))
        status = oato_fail(err, OATO_EFILE, "%s has no ffn_down in its first layer", gguf_path(g));
    for (int32_t i = 0; out->layers && !status && i < out->n_layers; i++)
        status = fill_layer(out, i, g, law, &random, err);
    if (status)
        neurons_free(out);
    return status;
}
