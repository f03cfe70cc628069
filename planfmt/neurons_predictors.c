/*
 * neurons_predictors.c - predictors of active neurons in a sidecar (docs/neurons-format.md), and
 * those that PowerInfer's models bring. Shapes and numbers are checked before anything is computed
 * with them.
 */
#include "planfmt/planfmt_internal.h"

#include <inttypes.h>
#include <math.h>

const char *const predictor_part_name[PREDICT_PARTS] = {"predict_down", "predict_up",
                                                        "predict_bias"};

const struct neurons_predictor *neurons_predictor(const struct neurons *n, int32_t layer)
{
    return layer >= 0 && layer < n->n_layers ? n->layers[layer].predictor : NULL;
}

/* The layer's predictor, a new one if it has none; NULL: memory is short. */
static struct neurons_predictor *predictor_of(struct neurons *n, int64_t layer)
{
    struct neurons_layer *l = &n->layers[layer];
    if (!l->predictor)
        l->predictor = arena_alloc(&n->arena, 1, sizeof *l->predictor);
    return (struct neurons_predictor *)(uintptr_t)l->predictor;
}

/* A copy, as the file is closed. */
static struct gguf_tensor *tensor_copy(struct arena *a, const struct gguf_tensor *t)
{
    struct gguf_tensor *copy = arena_alloc(a, 1, sizeof *copy);
    void *data = arena_alloc(a, 1, t->bytes);
    char *name = arena_strndup(a, t->name, strlen(t->name));
    if (!copy || !data || !name)
        return NULL;
    memcpy(data, t->data, t->bytes);
    *copy = *t;
    copy->name = name;
    copy->data = data;
    copy->file = NULL;
    return copy;
}

oato_status predictors_read(struct neurons *n, const struct gguf_tensor *t, struct oato_error *err)
{
    int64_t layer = -1;
    int part = 0;
    while (part < PREDICT_PARTS &&
           (layer = neurons_layer_of(t->name, predictor_part_name[part])) < 0)
        part++;
    if (part == PREDICT_PARTS)
        return OATO_OK;
    const oato_dtype dtype = part == PREDICT_BIAS ? DT_F32 : DT_Q8_0;
    const int32_t n_dims = part == PREDICT_BIAS ? 1 : 2;
    if (layer >= n->n_layers || t->dtype != dtype || t->n_dims != n_dims)
        return oato_fail(err, OATO_EFILE,
                         "%s: type %s and %d dimensions; allowed: %d of %s, in a layer with "
                         "neurons",
                         t->name, dtype_name(t->dtype), t->n_dims, n_dims, dtype_name(dtype));
    struct neurons_predictor *p = predictor_of(n, layer);
    const struct gguf_tensor *copy = tensor_copy(&n->arena, t);
    if (!p || !copy)
        return oato_fail_memory(err, t->bytes, "a predictor");
    const struct gguf_tensor **const parts[PREDICT_PARTS] = {&p->down, &p->up, &p->bias};
    *parts[part] = copy;
    return OATO_OK;
}

oato_status predictors_read_verdicts(struct neurons *n, const struct gguf_value *value,
                                     struct oato_error *err)
{
    if (!value)
        return OATO_OK;
    if (value->type != GGUF_ARRAY || value->elem != GGUF_F32 ||
        value->count != 3 * (uint64_t)n->n_layers)
        return oato_fail(err, OATO_EFILE,
                         "oato.neurons.predictors is not an array of %d float32, three per layer",
                         3 * n->n_layers);
    for (int32_t i = 0; i < n->n_layers; i++) {
        float numbers[3];
        memcpy(numbers, value->data + (size_t)i * sizeof numbers, sizeof numbers);
        if (!n->layers[i].predictor)
            continue;
        struct neurons_predictor *p = predictor_of(n, i);
        p->recall = numbers[0];
        p->predicted = numbers[1];
        p->active = numbers[2];
    }
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ checks ---- */

/* Of Q8_0's blocks the scales, of float32 all elements. */
static bool is_finite(const struct gguf_tensor *t)
{
    const bool halves = t->dtype == DT_Q8_0;
    const size_t step = (size_t)dtype_info(t->dtype)->block_bytes;
    for (size_t at = 0; t->data && at < t->bytes; at += step) {
        uint16_t half;
        float x = 0;
        memcpy(&half, t->data + at, sizeof half);
        if (!halves)
            memcpy(&x, t->data + at, sizeof x);
        if (!isfinite(halves ? f16_to_f32(half) : x))
            return false;
    }
    return true;
}

static bool is_share(float x)
{
    return x >= 0 && x <= 1;
}

static oato_status check_layer(const struct neurons_predictor *p, int32_t layer, int32_t n_ff,
                               oato_status status, struct oato_error *err)
{
    if (!p->down || !p->up)
        return oato_fail(err, status, "blk.%d: a predictor lacks its %s", layer,
                         predictor_part_name[p->down ? PREDICT_UP : PREDICT_DOWN]);
    if (p->down->ne[1] != p->up->ne[0] || p->up->ne[0] > LIST_MOST ||
        (n_ff && p->up->ne[1] != n_ff) || (p->bias && p->bias->ne[0] != p->up->ne[1]))
        return oato_fail(err, status,
                         "blk.%d: a predictor of wrong shape: %" PRId64 " x %" PRId64
                         ", then %" PRId64 " x %" PRId64 " with %" PRId64 " biases, for %d neurons",
                         layer, p->down->ne[0], p->down->ne[1], p->up->ne[0], p->up->ne[1],
                         p->bias ? p->bias->ne[0] : 0, n_ff);
    const struct gguf_tensor *const parts[] = {p->down, p->up, p->bias};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (parts[i] && (parts[i]->dtype == DT_Q8_0 || parts[i]->dtype == DT_F32) &&
            !is_finite(parts[i]))
            return oato_fail(err, status, "blk.%d.%s has a number that is not finite", layer,
                             predictor_part_name[i]);
    if (!isfinite(p->threshold) || !is_share(p->recall) || !is_share(p->predicted) ||
        !is_share(p->active))
        return oato_fail(err, status,
                         "blk.%d: the recall or the shares of a predictor are %g, %g and %g; "
                         "allowed: 0 to 1",
                         layer, (double)p->recall, (double)p->predicted, (double)p->active);
    return OATO_OK;
}

oato_status predictors_check(const struct neurons *n, oato_status status, struct oato_error *err)
{
    for (int32_t i = 0; i < n->n_layers; i++) {
        const struct neurons_predictor *p = n->layers[i].predictor;
        if (p && check_layer(p, i, n->layers[i].n_ff, status, err))
            return err->status;
    }
    return OATO_OK;
}

static const struct gguf_tensor *layer_tensor(const struct gguf *g, int32_t layer, const char *name)
{
    char full[GGUF_MAX_NAME + 1];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    return gguf_tensor(g, full);
}

oato_status predictors_check_model(const struct neurons *n, const struct gguf *g,
                                   struct oato_error *err)
{
    for (int32_t i = 0; i < n->n_layers; i++) {
        const struct neurons_predictor *p = n->layers[i].predictor;
        const struct gguf_tensor *up = layer_tensor(g, i, "ffn_up");
        if (p && (!up || p->down->ne[0] != up->ne[0] || p->up->ne[1] != up->ne[1]))
            return oato_fail(err, OATO_EFILE,
                             "the predictor of layer %d is for %" PRId64 " neurons of %" PRId64
                             " inputs, but %s has %" PRId64 " of %" PRId64,
                             i, p->up->ne[1], p->down->ne[0], gguf_path(g), up ? up->ne[1] : 0,
                             up ? up->ne[0] : 0);
    }
    return OATO_OK;
}

/* --------------------------------------------------------------------------- PowerInfer ---- */

static int32_t layers_of(const struct gguf *g)
{
    int32_t n = 0;
    while (layer_tensor(g, n, "ffn_up"))
        n++;
    return n;
}

oato_status neurons_of_powerinfer(const struct gguf *model, struct neurons *out,
                                  struct oato_error *err)
{
    const struct gguf_value *key = gguf_find(model, "powerinfer.sparse_threshold");
    double threshold = 0;
    bool any = false;
    neurons_init(out);
    if (key && gguf_value_check(gguf_path(model), "powerinfer.sparse_threshold", key,
                                GGUF_WANT_NUMBER, err))
        return err->status;
    if (key && (!gguf_value_f64(key, 0, &threshold) || !isfinite(threshold)))
        return oato_fail(err, OATO_EFILE, "%s: key powerinfer.sparse_threshold is not finite",
                         gguf_path(model));
    out->n_layers = layers_of(model);
    out->layers = arena_alloc(&out->arena, (size_t)out->n_layers + 1, sizeof *out->layers);
    out->source = "powerinfer";
    if (!out->layers)
        return oato_fail_memory(err, sizeof *out->layers, "predictors");
    for (int32_t i = 0; i < out->n_layers; i++) {
        const struct gguf_tensor *down = layer_tensor(model, i, "fc1"),
                                 *up = layer_tensor(model, i, "fc2");
        if (!down && !up)
            continue;
        struct neurons_predictor *p = predictor_of(out, i);
        if (!p)
            return oato_fail_memory(err, sizeof *p, "predictors");
        *p = (struct neurons_predictor){.down = down, .up = up, .threshold = (float)threshold};
        any = true;
    }
    if (!any)
        return oato_fail(err, OATO_EUSAGE,
                         "%s: has no predictors (fc1, fc2); train some with oato-profile "
                         "--calibrate TEXT --predictors, or use --sparse exact",
                         gguf_path(model));
    return predictors_check(out, OATO_EFILE, err) ? oato_fail_at(err, "%s", gguf_path(model))
                                                  : predictors_check_model(out, model, err);
}
