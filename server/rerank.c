/*
 * rerank.c - documents by their relevance to a query, in the form of Jina and Cohere, or ("texts")
 * of text-embeddings-inference. A model with a ranking head reads the query with each document, as
 * its file's template says, and the head scores the state behind them. Of any other model the score
 * is the cosine of both embeddings.
 */
#include "server/server_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------- requests --- */

/* By the program of the model's file. */
static json_t *pair_make(struct gguf_string program, const json_t *query, const json_t *document)
{
    const struct {
        struct gguf_string name;
        const json_t *text;
    } all[] = {{{"{query}", 7}, query}, {{"{document}", 10}, document}};
    struct text t;
    text_init(&t);
    for (size_t i = 0, k, n; i < program.len; i += n) {
        for (k = 0; k < ARRAY_LEN(all); k++) {
            n = all[k].name.len;
            if (n <= program.len - i && !memcmp(program.data + i, all[k].name.data, n))
                break;
        }
        const json_t *put = k < ARRAY_LEN(all) ? all[k].text : NULL;
        n = put ? n : 1;
        text_add(&t, put ? json_string_value(put) : program.data + i,
                 put ? json_string_length(put) : n);
    }
    return json_text_take(&t);
}

/* One input for each document, behind the query's without a head. */
static oato_status inputs_make(struct exchange *x, json_t *inputs, bool head, const char *name,
                               struct oato_error *err)
{
    const json_t *query = json_object_get(x->json, "query"),
                 *documents = json_object_get(x->json, name), *one;
    struct gguf_string program = {0};
    size_t i;
    if (head && !gguf_get_string(x->instance->session.model->gguf, "tokenizer.chat_template.rerank",
                                 &program))
        return oato_fail(err, OATO_EUSAGE,
                         "this model has a ranking head, but its file has no "
                         "tokenizer.chat_template.rerank, which says how it reads the texts");
    if (!head)
        json_array_append(inputs, (json_t *)query);
    json_array_foreach(documents, i, one)
    {
        const json_t *text = json_is_object(one) ? json_object_get(one, "text") : one;
        const size_t bytes = program.len + json_string_length(query) + json_string_length(text);
        if (!json_is_string(text))
            return oato_fail(err, OATO_EUSAGE, "%s[%zu] wants a text, or an object with a text",
                             name, i);
        if (head && budget_spend(&x->budget, bytes, bytes, "the query with each document", err))
            return err->status;
        json_array_append_new(inputs,
                              head ? pair_make(program, query, text) : json_incref((json_t *)text));
    }
    return OATO_OK;
}

static oato_status rerank_request(struct exchange *x, struct oato_error *err)
{
    const json_t *o = x->json;
    json_t *inputs = json_array();
    const bool texts = json_given(o, "texts") != NULL;
    const char *name = texts ? "texts" : "documents";
    json_t *documents = json_object_get(o, name);
    bool head = false;
    oato_status status = request_members(o, ASK_RERANK, 0, NULL, err);
    if (!status && texts && json_given(o, "documents"))
        status = oato_fail(err, OATO_EUSAGE, "give either texts or documents, not both");
    if (!status && !json_string_length(json_object_get(o, "query")))
        status = oato_fail(err, OATO_EUSAGE, "query wants a text that is not empty");
    if (!status && (!json_array_size(documents) || json_array_size(documents) >= INPUTS_MAX))
        status =
            oato_fail(err, OATO_EUSAGE, "%s wants a list of 1 to %d texts", name, INPUTS_MAX - 1);
    if (!status)
        status = model_head(x->instance->session.model, &head, err);
    if (!status)
        status = inputs_make(x, inputs, head, name, err);
    x->kept = json_pack("{s:b, s:b, s:O?, s:O?, s:O?}", "head", head, "list", texts, "top",
                        json_object_get(o, "top_n"), "returns",
                        json_object_get(o, texts ? "return_text" : "return_documents"), "documents",
                        documents);
    json_t *truncate = head ? NULL : json_object_get(o, "truncate"); /* a pair has an end to keep */
    json_t *request = json_pack("{s:o, s:O*}", "input", inputs, "truncate", truncate);
    json_decref(x->json);
    x->json = request;
    return status;
}

/* --------------------------------------------------------------------------------- answers --- */

struct ranked {
    int32_t index;
    double score;
};

static int by_score(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1) : x->index - y->index;
}

static double cosine(const float *a, const float *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static json_t *result_make(const struct job *j, const struct ranked *r)
{
    json_t *document = json_array_get(json_object_get(j->ask.kept, "documents"), (size_t)r->index);
    const bool list = json_is_true(json_object_get(j->ask.kept, "list"));
    json_t *o = json_pack("{s:i, s:f}", "index", r->index, list ? "score" : "relevance_score",
                          isfinite(r->score) ? r->score : 0);
    if (list && json_is_true(json_object_get(j->ask.kept, "returns")))
        json_object_set(o, "text", document);
    else if (json_is_true(json_object_get(j->ask.kept, "returns")))
        json_object_set_new(o, "document",
                            json_is_string(document) ? json_pack("{s:O}", "text", document)
                                                     : json_incref(document));
    return o;
}

static void rerank_whole(struct job *j, struct text *t)
{
    const struct instance *m = j->instance;
    const bool head = json_is_true(json_object_get(j->ask.kept, "head"));
    const json_t *top = json_object_get(j->ask.kept, "top");
    const int32_t first = !head, n = j->n_choices - first;
    const json_int_t most = json_is_integer(top) ? json_integer_value(top) : n,
                     tokens = inputs_tokens(j);
    struct ranked *all = calloc((size_t)n, sizeof *all);
    t->failed = t->failed || !all;
    const int32_t width = head ? 0 : embedding_take(j->choices[0]);
    for (int32_t i = 0; i < n && all; i++) {
        struct choice *c = j->choices[first + i];
        if (!head)
            embedding_take(c);
        all[i] = (struct ranked){i, head ? model_head_score(m->session.model, c->rows)
                                         : cosine(c->rows, j->choices[0]->rows, width)};
    }
    if (all)
        qsort(all, (size_t)n, sizeof *all, by_score);
    json_t *results = json_array();
    for (int32_t i = 0; i < n && i < most && all; i++)
        json_array_append_new(results, result_make(j, &all[i]));
    if (json_is_true(json_object_get(j->ask.kept, "list")))
        value_write(t, results);
    else
        value_write(t, json_pack("{s:s, s:s, s:{s:I, s:I}, s:o}", "model", m->name, "object",
                                 "list", "usage", "prompt_tokens", tokens, "total_tokens", tokens,
                                 "results", results));
    free(all);
}

const struct dialect dialect_rerank = {
    .kind = ASK_EMBED, .request = rerank_request, .whole = rerank_whole, .error = error_json};
