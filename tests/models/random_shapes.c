/*
 * random_shapes.c - the shapes and types that random models can have: those of models/shapes, and
 * some of tests alone (tests/models/shapes), which golden plans and benchmarks are made for.
 */
#include "tests/models/random_model.h"

#include <stdlib.h>
#include <string.h>

extern const struct embedded_file test_shape_files[]; /* the last one has no name */

bool random_model_set_type(struct random_model *m, const char *name)
{
    oato_dtype dtype = DT_COUNT;
    const bool plain = dtype_parse(name, &dtype) && dtype_is_weight(dtype);
    if (plain)
        m->dtype = dtype;
    m->mix = plain ? NULL : mix_find(name);
    return plain || m->mix;
}

/* A shape of tests, or one of the product. */
static bool find_shape(const char *name, struct shape_spec *out)
{
    struct oato_error err;
    for (const struct embedded_file *f = test_shape_files; f->name; f++)
        if (!strcmp(f->name, name))
            return !shape_parse(f, out, &err);
    return !shape_find(name, out, &err);
}

bool random_model_set_shape(struct random_model *m, const char *name)
{
    static struct shape_spec found[32]; /* for the texts, which are few in any test */
    static size_t n_found;
    struct shape_spec *s = &found[n_found++ % ARRAY_LEN(found)];
    if (!find_shape(name, s))
        return false;
    m->architecture = s->architecture;
    m->layers = s->layers;
    m->width = s->width;
    m->ffn = s->ffn;
    m->heads = s->heads;
    m->kv_heads = s->kv_heads;
    m->head_dim = s->head_dim;
    m->vocab = s->vocab;
    m->context = s->context;
    m->experts = s->experts;
    m->experts_used = s->experts_used;
    m->tied = s->tied;
    m->keys = s->keys;
    m->optional = s->optional;
    m->plain = s->plain;
    m->least_v = s->least_v;
    if (strchr(name, ':')) { /* then it is that file, but for its weights */
        m->mix = s->mix;
        m->title = s->title;
    }
    return true;
}

/* from NULL: none. Tests have no text that is too long. */
static void put_text(char *to, size_t n, const char *from)
{
    if ((size_t)snprintf(to, n, "%s", from ? from : "") >= n)
        abort();
}

struct shape_spec random_model_shape(const struct random_model *m)
{
    struct shape_spec s = {.layers = m->layers,
                           .width = m->width,
                           .ffn = m->ffn,
                           .heads = m->heads,
                           .kv_heads = m->kv_heads,
                           .head_dim = m->head_dim,
                           .vocab = m->vocab,
                           .context = m->context,
                           .experts = m->experts,
                           .experts_used = m->experts_used,
                           .tied = m->tied,
                           .least_v = m->least_v,
                           .dtype = m->dtype,
                           .mix = m->mix,
                           .name = "random"};
    put_text(s.architecture, sizeof s.architecture, m->architecture);
    put_text(s.keys, sizeof s.keys, m->keys);
    put_text(s.optional, sizeof s.optional, m->optional);
    put_text(s.plain, sizeof s.plain, m->plain);
    return s;
}

struct random_model random_model_default(void)
{
    return (struct random_model){.architecture = "llama",
                                 .layers = 2,
                                 .width = 64,
                                 .ffn = 128,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .vocab = 512,
                                 .context = 512,
                                 .dtype = DT_F32,
                                 .seed = 1,
                                 .tokenizer = true,
                                 .parts = 1};
}

int64_t random_model_head_dim(const struct random_model *m)
{
    return m->head_dim ? m->head_dim : m->width / m->heads;
}
