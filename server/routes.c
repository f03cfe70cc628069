/*
 * routes.c - what each address answers.
 */
#include "server/server_internal.h"

#include <string.h>

static enum MHD_Result health(struct exchange *x)
{
    static const char ok[] = "{\"status\":\"ok\"}";
    const int state = atomic_load(&x->instance->state);
    const bool alone = x->server->models.alone;
    if (atomic_load(&x->server->ending) || (alone && state > INSTANCE_READY))
        return reply_ending(x);
    if (alone && state < INSTANCE_READY)
        return reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, "Loading model");
    return reply(x, MHD_HTTP_OK, "application/json; charset=utf-8", ok, sizeof ok - 1);
}

enum MHD_Result answers_begin(struct exchange *x, struct ask *ask, const json_t *prompts)
{
    struct oato_error err;
    ask->client = x->client;
    ask->dialect = x->route->dialect;
    ask->kept = json_incref(x->kept);
    struct job *j = job_create(x->instance, ask);
    if (!j) {
        ask_free(ask);
        return reply_error(x, MHD_HTTP_INTERNAL_SERVER_ERROR, "memory is short");
    }
    if (ask->kind == ASK_CHAT ? chat_add(j, x->json, &err) : prompts_add(j, prompts, &err)) {
        x->n_prompt = j->n_unfit;
        job_release(j);
        return reply_failure(x, &err);
    }
    return job_begin(x, j);
}

/* What is where, and what is predicted: nothing of it changes while the model is loaded. */
static enum MHD_Result plan(struct exchange *x)
{
    const struct text *t = &x->instance->plan;
    return reply(x, MHD_HTTP_OK, "application/json; charset=utf-8", t->data, t->len);
}

enum MHD_Result route_complete(struct exchange *x)
{
    const struct dialect *d = x->route->dialect;
    struct oato_error err = {0};
    struct ask ask;
    x->kind = d->kind;
    if (x->server->options->session.engine.embeddings)
        return reply_error(
            x, MHD_HTTP_NOT_IMPLEMENTED,
            "this server makes embeddings; one started without --embeddings answers");
    if (!body_json(x, &err) || (d->request && d->request(x, &err)) ||
        ask_read(x->instance, x->json, x->kind, &x->budget, &ask, &err))
        return reply_failure(x, &err);
    return answers_begin(x, &ask, json_object_get(x->json, "prompt"));
}

const struct route routes[] = {
    {"/", METHOD_GET, true, true, route_page, NULL},
    {"/page/*", METHOD_GET, true, true, route_page, NULL},
    {"/openapi.json", METHOD_GET, true, true, route_openapi, NULL},
    {"/health", METHOD_GET, true, true, health, NULL},
    {"/v1/health", METHOD_GET, true, true, health, NULL},
    {"/models", METHOD_GET, true, true, route_models, NULL},
    {"/v1/models", METHOD_GET, true, true, route_models, NULL},
    {"/v1/models/*", METHOD_GET, true, true, route_model, NULL},
    {"/models/load", METHOD_POST, false, true, route_load, NULL},
    {"/models/unload", METHOD_POST, false, true, route_unload, NULL},
    {"/completion", METHOD_POST, false, false, route_complete, &dialect_native},
    {"/completions", METHOD_POST, false, false, route_complete, &dialect_native},
    {"/v1/completions", METHOD_POST, false, false, route_complete, &dialect_text},
    {"/chat/completions", METHOD_POST, false, false, route_complete, &dialect_chat},
    {"/v1/chat/completions", METHOD_POST, false, false, route_complete, &dialect_chat},
    {"/v1/messages", METHOD_POST, false, false, route_complete, &dialect_messages},
    {"/v1/messages/count_tokens", METHOD_POST, false, false, route_count, &dialect_messages_count},
    {"/v1/responses", METHOD_POST, false, false, route_complete, &dialect_responses},
    {"/responses", METHOD_POST, false, false, route_complete, &dialect_responses},
    {"/v1/responses/input_tokens", METHOD_POST, false, false, route_count, &dialect_responses},
    {"/v1/responses/*/input_items", METHOD_GET, false, true, route_response, &dialect_responses},
    {"/v1/responses/*", METHOD_GET | METHOD_DELETE, false, true, route_response,
     &dialect_responses},
    {"/chat/completions/input_tokens", METHOD_POST, false, false, route_count, NULL},
    {"/v1/chat/completions/input_tokens", METHOD_POST, false, false, route_count, NULL},
    {"/v1/embeddings", METHOD_POST, false, false, route_embeddings, &dialect_embeddings},
    {"/embeddings", METHOD_POST, false, false, route_embeddings, &dialect_embeddings_native},
    {"/embedding", METHOD_POST, false, false, route_embeddings, &dialect_embeddings_native},
    {"/infill", METHOD_POST, false, false, route_complete, &dialect_infill},
    {"/v1/rerank", METHOD_POST, false, false, route_embeddings, &dialect_rerank},
    {"/rerank", METHOD_POST, false, false, route_embeddings, &dialect_rerank},
    {"/v1/reranking", METHOD_POST, false, false, route_embeddings, &dialect_rerank},
    {"/reranking", METHOD_POST, false, false, route_embeddings, &dialect_rerank},
    {"/api/chat", METHOD_POST, false, false, route_ollama, &dialect_ollama},
    {"/api/generate", METHOD_POST, false, false, route_ollama, &dialect_ollama},
    {"/api/embed", METHOD_POST, false, false, route_embeddings, &dialect_ollama_embed},
    {"/api/embeddings", METHOD_POST, false, false, route_embeddings, &dialect_ollama_embed},
    {"/api/tags", METHOD_GET, false, true, route_ollama_models, &dialect_ollama},
    {"/api/ps", METHOD_GET, false, true, route_ollama_models, &dialect_ollama},
    {"/api/show", METHOD_POST, false, false, route_ollama_show, &dialect_ollama},
    {"/api/version", METHOD_GET, true, true, route_ollama_version, &dialect_ollama},
    {"/api/pull", METHOD_POST, false, true, route_ollama_refuse, &dialect_ollama},
    {"/api/push", METHOD_POST, false, true, route_ollama_refuse, &dialect_ollama},
    {"/api/create", METHOD_POST, false, true, route_ollama_refuse, &dialect_ollama},
    {"/api/copy", METHOD_POST, false, true, route_ollama_refuse, &dialect_ollama},
    {"/api/delete", METHOD_DELETE, false, true, route_ollama_refuse, &dialect_ollama},
    {"/api/blobs/*", METHOD_GET | METHOD_POST, false, true, route_ollama_refuse, &dialect_ollama},
    {"/tokenize", METHOD_POST, false, false, route_tokenize, NULL},
    {"/detokenize", METHOD_POST, false, false, route_detokenize, NULL},
    {"/tokenizer_info", METHOD_GET, false, false, route_tokenizer, NULL},
    {"/apply-template", METHOD_POST, false, false, route_template, NULL},
    {"/props", METHOD_GET, false, false, route_props, NULL},
    {"/plan", METHOD_GET, false, false, plan, NULL},
    {"/slots", METHOD_GET, false, false, route_slots, NULL},
    {"/slots/*", METHOD_POST, false, false, route_slot, NULL},
    {"/metrics", METHOD_GET, false, false, route_metrics, NULL},
    {0},
};
