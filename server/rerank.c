/*
 * rerank.c - documents by their relevance to a query, in the form of Jina and Cohere. A model with
 * a ranking head (cls.output, as llama.cpp's files of rerankers have it) reads query and document
 * together, and the head scores its last hidden state: the share of the first of two classes, or
 * the value of a single one. Of any other model the score is the cosine of both embeddings.
 */
#include "server/server_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct gguf_tensor *head_of(const struct instance *m)
{
    return gguf_tensor(m->session.model->gguf, "cls.output.weight");
}

/* -------------------------------------------------------------------------------- requests --- */

/* What such a head was trained on: its file's template of the two. */
static oato_status pair_make(const struct instance *m, json_t *inputs, const json_t *query,
                             const json_t *document, struct budget *budget, struct oato_error *err)
{
    struct gguf_string s = {0};
    struct text t;
    if (!gguf_get_string(m->session.model->gguf, "tokenizer.chat_template.rerank", &s))
        return oato_fail(err, OATO_EUSAGE,
                         "this model has a ranking head, but its file has no "
                         "tokenizer.chat_template.rerank, which says how it reads the texts");
    if (budget_spend(budget, s.len,
                     s.len + json_string_length(query) + json_string_length(document),
                     "the query with each document", err))
        return err->status;
    text_init(&t);
    for (size_t i = 0; i < s.len;) {
        const bool q = s.len - i >= 7 && !memcmp(s.data + i, "{query}", 7),
                   d = s.len - i >= 10 && !memcmp(s.data + i, "{document}", 10);
        const json_t *put = q ? query : document;
        if (q || d)
            text_add(&t, json_string_value(put), json_string_length(put));
        else
            text_add(&t, s.data + i, 1);
        i += q ? 7 : d ? 10 : 1;
    }
    json_array_append_new(inputs, json_stringn_nocheck(or_empty(t.data), t.len));
    const bool failed = t.failed;
    text_free(&t);
    return failed ? oato_fail_memory(err, s.len, "a query with a document") : OATO_OK;
}

static oato_status rerank_request(struct exchange *x, struct oato_error *err)
{
    const struct instance *m = x->instance;
    const json_t *o = x->json, *query = json_object_get(o, "query"), *one;
    json_t *documents = json_object_get(o, "documents"), *inputs = json_array();
    size_t i;
    oato_status status = request_members(o, ASK_RERANK, 0, NULL, err);
    if (!status && (!json_string_length(query) || !json_array_size(documents) ||
                    json_array_size(documents) >= INPUTS_MAX))
        status = oato_fail(err, OATO_EUSAGE, "query wants a text, and documents a list of 1 to %d",
                           INPUTS_MAX - 1);
    if (!status && !head_of(m))
        json_array_append(inputs, (json_t *)query);
    json_array_foreach(documents, i, one)
    {
        const json_t *text = json_is_object(one) ? json_object_get(one, "text") : one;
        if (!status && !json_is_string(text))
            status = oato_fail(err, OATO_EUSAGE,
                               "document %zu wants to be a text, or an object with a text", i);
        if (!status && head_of(m))
            status = pair_make(m, inputs, query, text, &x->budget, err);
        else if (!status)
            json_array_append(inputs, (json_t *)text);
    }
    const json_t *top = json_object_get(o, "top_n");
    x->kept = json_pack("{s:I, s:O?, s:O}", "top",
                        json_is_integer(top) ? json_integer_value(top) : (json_int_t)INPUTS_MAX,
                        "returns", json_object_get(o, "return_documents"), "documents", documents);
    json_decref(x->json);
    x->json = json_pack("{s:o}", "input", inputs);
    return status;
}

/* --------------------------------------------------------------------------------- scores ---- */

/* Number i of a row of the head; of a type that it cannot have here, NAN. */
static float weight_at(const struct gguf_tensor *w, int64_t row, int64_t i)
{
    enum { BLOCK = 32, Q8_0_BYTES = 34 };
    const uint8_t *data = w->data + (size_t)row * (w->bytes / (size_t)w->ne[1]);
    uint16_t half;
    float f;
    if (w->dtype == DT_Q8_0) {
        const uint8_t *block = data + i / BLOCK * Q8_0_BYTES;
        memcpy(&half, block, sizeof half);
        return f16_to_f32(half) * (float)(int8_t)block[2 + i % BLOCK];
    }
    if (w->dtype == DT_F32) {
        memcpy(&f, data + (size_t)i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&half, data + (size_t)i * sizeof half, sizeof half);
    return w->dtype == DT_F16 ? f16_to_f32(half) : w->dtype == DT_BF16 ? bf16_to_f32(half) : NAN;
}

static double head_score(const struct instance *m, const float *row)
{
    const struct gguf_tensor *w = head_of(m),
                             *bias = gguf_tensor(m->session.model->gguf, "cls.output.bias");
    double out[2] = {0};
    for (int64_t r = 0; r < w->ne[1] && r < 2; r++) {
        for (int64_t i = 0; i < w->ne[0] && i < m->session.model->shape.width; i++)
            out[r] += (double)weight_at(w, r, i) * (double)row[i];
        if (bias)
            out[r] += (double)weight_at(bias, 0, r);
    }
    return w->ne[1] > 1 ? 1 / (1 + exp(out[1] - out[0])) : out[0];
}

struct ranked {
    int32_t index;
    double score;
};

static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : x->index - y->index;
}

static void result_add(struct text *t, const struct job *j, const struct ranked *r)
{
    const json_t *document =
        json_array_get(json_object_get(j->ask.kept, "documents"), (size_t)r->index);
    json_open(t, NULL, '{');
    json_add(t, JSON("index", r->index));
    json_key(t, "relevance_score");
    text_printf(t, "%.9g", isfinite(r->score) ? r->score : 0);
    if (json_is_true(json_object_get(j->ask.kept, "returns"))) {
        json_t *object = json_is_string(document) ? json_pack("{s:O}", "text", document) : NULL;
        value_add(t, "document", object ? object : document);
        json_decref(object);
    }
    json_close(t, '}');
}

static void rerank_whole(struct job *j, struct text *t)
{
    const struct instance *m = j->instance;
    const int32_t first = head_of(m) ? 0 : 1, n = j->n_choices - first;
    const int64_t top = json_integer_value(json_object_get(j->ask.kept, "top")),
                  tokens = inputs_tokens(j);
    struct ranked *all = calloc((size_t)n, sizeof *all);
    t->failed = t->failed || !all;
    const int32_t width = first ? embedding_take(j->choices[0]) : 0;
    for (int32_t i = 0; i < n && all; i++) {
        struct choice *c = j->choices[first + i];
        all[i] = (struct ranked){i, first ? 0 : head_score(m, c->rows)};
        if (first)
            embedding_take(c);
        for (int32_t k = 0; k < width; k++)
            all[i].score += (double)c->rows[k] * (double)j->choices[0]->rows[k];
    }
    if (all)
        qsort(all, (size_t)n, sizeof *all, by_score);
    json_open(t, NULL, '{');
    json_add(t, JSON("model", (const char *)m->name), JSON("object", "list"));
    json_add_object(t, "usage", JSON("prompt_tokens", tokens), JSON("total_tokens", tokens));
    json_open(t, "results", '[');
    for (int32_t i = 0; i < n && i < top && all; i++)
        result_add(t, j, &all[i]);
    json_close(t, ']');
    json_close(t, '}');
    free(all);
}

const struct dialect dialect_rerank = {
    .kind = ASK_EMBED, .request = rerank_request, .whole = rerank_whole, .error = error_json};
