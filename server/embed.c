/*
 * embed.c - embeddings: the model's last hidden states of a text, pooled as --pooling says, beside
 * answers or, with --embeddings, in their place. A pooled vector has length 1, also where only the
 * first numbers of it are asked for; without pooling every token has its own, as it is.
 */
#include "server/server_internal.h"

#include <math.h>
#include <stdlib.h>

const char *const pooling_names[] = {"last", "mean", "none", NULL};

size_t embedding_numbers(const struct choice *c)
{
    const struct instance *m = c->job->instance;
    return (m->pooling == POOLING_NONE ? (size_t)c->n_ids : 1) *
           (size_t)m->session.model->shape.width;
}

void choice_row(void *user, const float *row)
{
    struct choice *c = user;
    const struct instance *m = c->job->instance;
    const int32_t width = m->session.model->shape.width;
    pthread_mutex_lock(&c->job->lock);
    if (!c->rows)
        c->rows = calloc(embedding_numbers(c), sizeof *c->rows);
    float *to = c->rows + (m->pooling == POOLING_NONE ? c->n_rows * (size_t)width : 0);
    c->failed = c->failed || !c->rows;
    c->n_rows++;
    for (int32_t i = 0; i < width && c->rows; i++)
        to[i] = row[i] + (m->pooling == POOLING_MEAN ? to[i] : 0);
    pthread_mutex_unlock(&c->job->lock);
}

static void normalise(float *x, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    for (int32_t i = 0; i < n && sum > 0; i++)
        x[i] = (float)((double)x[i] / sqrt(sum));
}

static void vector_add(struct text *t, const char *key, const float *x, int32_t n, bool base64)
{
    if (base64) { /* of little-endian float32 */
        json_add_base64(t, key, x, (size_t)n * sizeof *x);
        return;
    }
    json_open(t, key, '[');
    for (int32_t i = 0; i < n; i++)
        text_printf(t, "%s%.9g", i ? "," : "", isfinite(x[i]) ? (double)x[i] : 0);
    json_close(t, ']');
}

int32_t embedding_take(struct choice *c)
{
    const int32_t width = c->job->instance->session.model->shape.width,
                  wanted = c->job->ask.dimensions;
    const int32_t n = wanted && wanted < width ? wanted : width;
    normalise(c->rows, n);
    return n;
}

void embedding_add(struct text *t, const char *key, struct choice *c)
{
    vector_add(t, key, c->rows, embedding_take(c), c->job->ask.base64);
}

static void native_add(struct text *t, struct choice *c)
{
    const struct instance *m = c->job->instance;
    const int32_t width = m->session.model->shape.width;
    json_open(t, "embedding", '[');
    if (m->pooling != POOLING_NONE)
        embedding_add(t, NULL, c);
    for (size_t i = 0; i < c->n_rows && m->pooling == POOLING_NONE; i++)
        vector_add(t, NULL, c->rows + i * (size_t)width, width, false);
    json_close(t, ']');
}

int64_t inputs_tokens(const struct job *j)
{
    int64_t tokens = 0;
    for (int32_t i = 0; i < j->n_choices; i++)
        tokens += j->choices[i]->n_ids;
    return tokens;
}

static void embeddings_native(struct job *j, struct text *t)
{
    json_open(t, NULL, '[');
    for (int32_t i = 0; i < j->n_choices; i++) {
        json_open(t, NULL, '{');
        json_add(t, JSON("index", i));
        native_add(t, j->choices[i]);
        json_close(t, '}');
    }
    json_close(t, ']');
}

static void embeddings_openai(struct job *j, struct text *t)
{
    const int64_t tokens = inputs_tokens(j);
    json_open(t, NULL, '{');
    json_add(t, JSON("object", "list"), JSON("model", (const char *)j->instance->name));
    json_open(t, "data", '[');
    for (int32_t i = 0; i < j->n_choices; i++) {
        json_open(t, NULL, '{');
        json_add(t, JSON("object", "embedding"), JSON("index", i));
        embedding_add(t, "embedding", j->choices[i]);
        json_close(t, '}');
    }
    json_close(t, ']');
    json_add_object(t, "usage", JSON("prompt_tokens", tokens), JSON("total_tokens", tokens));
    json_close(t, '}');
}

const struct dialect dialect_embeddings = {
    .kind = ASK_EMBED, .whole = embeddings_openai, .error = error_json};
const struct dialect dialect_embeddings_native = {
    .kind = ASK_EMBED, .whole = embeddings_native, .error = error_json};

enum MHD_Result route_embeddings(struct exchange *x)
{
    const struct dialect *d = x->route->dialect;
    struct instance *m = x->instance;
    struct oato_error err = {0};
    struct ask ask = {.kind = ASK_EMBED, .n = 1};
    if (!m->states)
        return reply_error(x, MHD_HTTP_NOT_IMPLEMENTED,
                           "embeddings do not fit beside this model's answers, or it has none; "
                           "start the server with --embeddings");
    if (!body_json(x, &err) || (d->request && d->request(x, &err)) ||
        request_members(x->json, ASK_EMBED, m->session.model->shape.width, &ask, &err))
        return reply_failure(x, &err);
    const json_t *o = x->json, *encoding = json_given(o, "encoding_format");
    ask.prompts = json_given(o, "input") || !json_given(o, "content") ? "input" : "content";
    const json_t *input = json_given(o, ask.prompts);
    ask.base64 = json_is(encoding, "base64");
    ask.budget = x->budget;
    if (encoding && !json_is_one(encoding, "float base64"))
        return reply_error(x, MHD_HTTP_BAD_REQUEST, "encoding_format can be float or base64");
    if (m->pooling == POOLING_NONE && (d != &dialect_embeddings_native || ask.dimensions))
        return reply_error(x, MHD_HTTP_BAD_REQUEST,
                           "--pooling none has a vector for each token: use /embeddings, without "
                           "dimensions");
    if (!input || (json_is_array(input) && !json_array_size(input)))
        return reply_error(x, MHD_HTTP_BAD_REQUEST, "%s is %s", ask.prompts,
                           input ? "an empty list" : "missing; it is required");
    return answers_begin(x, &ask, input);
}
