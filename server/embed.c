/*
 * embed.c - /v1/embeddings, with --embeddings: the model's last hidden states of a text, pooled as
 * --pooling says. A pooled vector has length 1; without pooling every token has its own, as it is.
 */
#include "server/server_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const pooling_names[] = {"last", "mean", "none", NULL};

void choice_row(void *user, const float *row)
{
    struct choice *c = user;
    const struct instance *m = c->job->instance;
    const int32_t width = m->session.model->shape.width;
    const size_t kept = m->pooling == POOLING_NONE ? (size_t)c->n_ids : 1;
    pthread_mutex_lock(&c->job->lock);
    if (!c->rows)
        c->rows = calloc(kept * (size_t)width, sizeof *c->rows);
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

/* RFC 4648; the numbers as little-endian float32. */
static void base64_add(struct text *t, const float *x, int32_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *bytes = (const uint8_t *)x;
    const size_t count = (size_t)n * sizeof *x;
    for (size_t i = 0; i < count; i += 3) {
        const size_t left = count - i;
        const uint32_t bits = (uint32_t)bytes[i] << 16 |
                              (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                              (left > 2 ? bytes[i + 2] : 0);
        const char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63],
                              left > 1 ? digits[bits >> 6 & 63] : '=',
                              left > 2 ? digits[bits & 63] : '='};
        text_add(t, four, sizeof four);
    }
}

static void vector_add(struct text *t, const char *key, const float *x, int32_t n, bool base64)
{
    if (base64) {
        json_key(t, key);
        text_add(t, "\"", 1);
        base64_add(t, x, n);
        text_add(t, "\"", 1);
        return;
    }
    json_open(t, key, '[');
    for (int32_t i = 0; i < n; i++)
        text_printf(t, "%s%.9g", i ? "," : "", isfinite(x[i]) ? (double)x[i] : 0);
    json_close(t, ']');
}

static void choice_add(struct text *t, struct choice *c, int32_t index, bool openai, bool base64)
{
    const struct instance *m = c->job->instance;
    const int32_t width = m->session.model->shape.width;
    json_open(t, NULL, '{');
    if (openai)
        json_add(t, JSON("object", "embedding"));
    json_add(t, JSON("index", index));
    if (m->pooling != POOLING_NONE)
        normalise(c->rows, width);
    if (openai) {
        vector_add(t, "embedding", c->rows, width, base64);
    } else {
        json_open(t, "embedding", '[');
        for (size_t i = 0; i < (m->pooling == POOLING_NONE ? c->n_rows : 1); i++)
            vector_add(t, NULL, c->rows + i * (size_t)width, width, false);
        json_close(t, ']');
    }
    json_close(t, '}');
}

static void embeddings_whole(struct job *j, struct text *t)
{
    const bool openai = j->ask.dialect == &dialect_embeddings;
    int64_t tokens = 0;
    if (openai) {
        json_open(t, NULL, '{');
        json_add(t, JSON("object", "list"), JSON("model", (const char *)j->instance->name));
    }
    json_open(t, openai ? "data" : NULL, '[');
    for (int32_t i = 0; i < j->n_choices; i++) {
        choice_add(t, j->choices[i], i, openai, j->ask.base64);
        tokens += j->choices[i]->n_ids;
    }
    json_close(t, ']');
    if (!openai)
        return;
    json_add_object(t, "usage", JSON("prompt_tokens", tokens), JSON("total_tokens", tokens));
    json_close(t, '}');
}

const struct dialect dialect_embeddings = {
    .kind = ASK_EMBED, .whole = embeddings_whole, .error = error_json};
const struct dialect dialect_embeddings_native = {
    .kind = ASK_EMBED, .whole = embeddings_whole, .error = error_json};

enum MHD_Result route_embeddings(struct exchange *x)
{
    const bool openai = x->route->dialect == &dialect_embeddings;
    struct instance *m = x->instance;
    struct oato_error err = {0};
    struct ask ask = {.kind = ASK_EMBED, .n = 1, .dialect = x->route->dialect, .client = x->client};
    ask.budget = x->budget;
    if (!m->options->session.engine.embeddings)
        return reply_error(x, MHD_HTTP_NOT_IMPLEMENTED,
                           "this server answers; one started with --embeddings makes embeddings");
    const json_t *o = body_json(x, &err);
    if (!o)
        return reply_failure(x, &err);
    if (request_members(o, ASK_EMBED, m->session.model->shape.width, NULL, &err))
        return reply_failure(x, &err);
    const json_t *encoding = json_object_get(o, "encoding_format");
    const char *format = json_is_string(encoding) ? json_string_value(encoding) : "";
    const json_t *input = json_object_get(o, json_object_get(o, "input") ? "input" : "content");
    ask.base64 = !strcmp(format, "base64");
    if (encoding && !json_is_null(encoding) && !ask.base64 && strcmp(format, "float") != 0)
        return reply_error(x, MHD_HTTP_BAD_REQUEST, "encoding_format can be float or base64");
    if (openai && m->pooling == POOLING_NONE)
        return reply_error(x, MHD_HTTP_BAD_REQUEST,
                           "--pooling none has a vector for each token: use /embeddings");
    if (!input || json_is_null(input) || (json_is_array(input) && !json_array_size(input)))
        return reply_error(x, MHD_HTTP_BAD_REQUEST, "input is missing or empty");
    struct job *j = job_create(m, &ask);
    if (!j)
        return reply_error(x, MHD_HTTP_INTERNAL_SERVER_ERROR, "memory is short");
    if (prompts_add(j, input, &err)) {
        x->n_prompt = j->n_unfit;
        job_release(j);
        return reply_failure(x, &err);
    }
    return job_begin(x, j);
}
