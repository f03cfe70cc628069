/*
 * routes.c - what each address answers.
 */
#include "server/server_internal.h"

static enum MHD_Result health(struct exchange *x)
{
    static const char ok[] = "{\"status\":\"ok\"}";
    const int state = atomic_load(&x->server->state);
    if (state == SERVER_LOADING)
        return reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, "Loading model");
    if (state != SERVER_READY)
        return reply_ending(x);
    return reply(x, MHD_HTTP_OK, "application/json; charset=utf-8", ok, sizeof ok - 1);
}

static void list_add(struct text *t, const char *key, const struct list *l)
{
    json_open(t, key, '[');
    for (int32_t i = 0; l->item && l->item[i]; i++)
        json_add(t, JSON(NULL, l->item[i]));
    json_close(t, ']');
}

static enum MHD_Result models(struct exchange *x)
{
    const struct server *s = x->server;
    const bool ready = atomic_load(&s->state) == SERVER_READY;
    struct text t;
    text_init(&t);
    json_open(&t, NULL, '{');
    json_add(&t, JSON("object", "list"));
    json_open(&t, "data", '[');
    json_open(&t, NULL, '{');
    json_add(&t, JSON("id", (const char *)s->model), JSON("object", "model"),
             JSON("created", (uint64_t)s->started), JSON("owned_by", "oato"));
    list_add(&t, "aliases", &s->aliases);
    list_add(&t, "tags", &s->tags);
    if (ready) {
        const struct model_shape *shape = &s->session.model->shape;
        json_add_object(&t, "meta", JSON("n_vocab", shape->vocab), JSON("n_ctx", s->context),
                        JSON("n_ctx_train", shape->context_length), JSON("n_embd", shape->width));
    }
    json_close(&t, '}');
    json_close(&t, ']');
    json_close(&t, '}');
    return reply_json(x, &t);
}

static enum MHD_Result complete(struct exchange *x, enum ask_kind kind)
{
    struct oato_error err = {0};
    struct ask ask;
    if (x->server->options->session.engine.embeddings)
        return reply_error(
            x, MHD_HTTP_NOT_IMPLEMENTED,
            "this server makes embeddings; one started without --embeddings answers");
    const json_t *o = body_json(x, &err);
    if (!o || ask_read(x->server, o, kind, &x->budget, &ask, &err))
        return reply_failure(x, &err);
    ask.client = x->client;
    struct job *j = job_create(x->server, &ask);
    if (!j) {
        ask_free(&ask);
        return reply_error(x, MHD_HTTP_INTERNAL_SERVER_ERROR, "memory is short");
    }
    if (kind == ASK_CHAT ? chat_add(j, o, &err)
                         : prompts_add(j, json_object_get(o, "prompt"), &err)) {
        x->n_prompt = j->n_unfit;
        job_release(j);
        return reply_failure(x, &err);
    }
    return job_begin(x, j);
}

static enum MHD_Result completion(struct exchange *x)
{
    return complete(x, ASK_NATIVE);
}

static enum MHD_Result text_completion(struct exchange *x)
{
    return complete(x, ASK_TEXT);
}

static enum MHD_Result chat_completion(struct exchange *x)
{
    return complete(x, ASK_CHAT);
}

const struct route routes[] = {
    {"/", false, true, true, route_page},
    {"/openapi.json", false, true, true, route_openapi},
    {"/health", false, true, true, health},
    {"/v1/health", false, true, true, health},
    {"/models", false, true, true, models},
    {"/v1/models", false, true, true, models},
    {"/completion", true, false, false, completion},
    {"/completions", true, false, false, completion},
    {"/v1/completions", true, false, false, text_completion},
    {"/chat/completions", true, false, false, chat_completion},
    {"/v1/chat/completions", true, false, false, chat_completion},
    {"/chat/completions/input_tokens", true, false, false, route_count},
    {"/v1/chat/completions/input_tokens", true, false, false, route_count},
    {"/v1/embeddings", true, false, false, route_embeddings},
    {"/embeddings", true, false, false, route_embeddings_native},
    {"/embedding", true, false, false, route_embeddings_native},
    {"/tokenize", true, false, false, route_tokenize},
    {"/detokenize", true, false, false, route_detokenize},
    {"/tokenizer_info", false, false, false, route_tokenizer},
    {"/apply-template", true, false, false, route_template},
    {"/props", false, false, false, route_props},
    {"/slots", false, false, false, route_slots},
    {"/metrics", false, false, false, route_metrics},
    {0},
};
