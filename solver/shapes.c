/*
 * shapes.c - models that are not here: the list of known shapes with what their files take, and
 * the model of one, made of its data file (models/shapes) alone.
 */
#include "solver/verbs.h"

#include <string.h>

/* The types whose sizes the list has. */
static const char *const listed[] = {"Q4_K_M", "Q6_K", "Q8_0", "BF16"};

bool asks_for_shapes(const struct command *c)
{
    return c->shape && !strcmp(c->shape, "list");
}

oato_status open_shape(const struct command *c, struct model **out, struct oato_error *err)
{
    struct shape_spec s;
    struct gguf *g;
    if (asks_for_shapes(c))
        return oato_fail(err, OATO_EUSAGE, "--shape list is for oato-plan without a verb");
    if (shape_find(c->shape, &s, err) || shape_open(&s, &g, err))
        return err->status;
    return model_from_gguf_as(g, &c->choice, out, err);
}

/* Bytes of weights with that mix, and how many parameters there are. */
static oato_status measure(struct shape_spec *s, const struct mix *mix, uint64_t *bytes,
                           uint64_t *parameters, struct oato_error *err)
{
    struct arena arena;
    struct gguf_tensor *tensors = NULL;
    size_t n = 0;
    *bytes = *parameters = 0;
    s->mix = mix;
    arena_init(&arena);
    const oato_status status = shape_tensors(s, &arena, &tensors, &n, err);
    for (size_t i = 0; tensors && i < n; i++) {
        *bytes += tensors[i].bytes;
        *parameters += (uint64_t)(tensors[i].ne[0] * tensors[i].ne[1] * tensors[i].ne[2]);
    }
    arena_free(&arena);
    return status;
}

static oato_status list_one(const struct embedded_file *f, bool json, struct text *out,
                            struct oato_error *err)
{
    struct shape_spec s;
    uint64_t bytes[ARRAY_LEN(listed)], own = 0, parameters = 0;
    if (shape_parse(f, &s, err) || measure(&s, s.mix, &own, &parameters, err))
        return err->status;
    for (size_t t = 0; t < ARRAY_LEN(listed); t++)
        if (measure(&s, mix_find(listed[t]), &bytes[t], &parameters, err))
            return err->status;
    if (json) {
        json_open(out, NULL, '{');
        json_add(out, JSON("name", s.name), JSON("title", s.title), JSON("aliases", s.aliases),
                 JSON("architecture", s.architecture), JSON("parameters", parameters),
                 JSON("context", s.context), JSON("type", s.type), JSON("bytes", own));
        json_open(out, "bytes_of", '{');
        for (size_t t = 0; t < ARRAY_LEN(listed); t++)
            json_add(out, JSON(listed[t], bytes[t]));
        json_close(out, '}');
        json_close(out, '}');
        return OATO_OK;
    }
    text_printf(out, "%-18s %-22s %7.1f %8lld  %-9s %7.2f ", s.name, s.title,
                (double)parameters * 1e-9, (long long)s.context, s.type, (double)own * 1e-9);
    for (size_t t = 0; t < ARRAY_LEN(listed); t++)
        text_printf(out, " %7.2f", (double)bytes[t] * 1e-9);
    text_printf(out, "\n");
    return OATO_OK;
}

oato_status list_shapes(bool json, struct text *out, struct oato_error *err)
{
    const struct embedded_file *f;
    if (json) {
        json_open(out, NULL, '[');
    } else {
        text_printf(out, "%-18s %-22s %7s %8s  %-9s %7s ", "shape", "model", "10^9", "context",
                    "file", "GB");
        for (size_t t = 0; t < ARRAY_LEN(listed); t++)
            text_printf(out, " %7s", listed[t]);
        text_printf(out, "\n");
    }
    for (size_t i = 0; (f = shape_file(i)); i++)
        if (list_one(f, json, out, err))
            return err->status;
    if (json) {
        json_close(out, ']');
        text_printf(out, "\n");
    }
    return OATO_OK;
}
