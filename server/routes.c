/*
 * routes.c - what each address answers, and whom: requests find their route here, and show a key.
 */
#include "server/server_internal.h"

#include <string.h>
#include <strings.h>

static enum MHD_Result health(struct exchange *x)
{
    static const char ok[] = "{\"status\":\"ok\"}";
    const int state = atomic_load(&x->instance->state);
    const bool alone = x->server->models.alone;
    if (atomic_load(&x->server->ending) || (alone && state > INSTANCE_READY))
        return reply_ending(x);
    if (alone && state < INSTANCE_READY)
        return reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, "Loading model");
    return reply(x, MHD_HTTP_OK, JSON_TYPE, ok, sizeof ok - 1);
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
    return reply(x, MHD_HTTP_OK, JSON_TYPE, t->data, t->len);
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

/* The first one that fits a request answers it. */
static const struct route routes[] = {
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
    {"/v1/responses/compact", METHOD_POST, false, true, route_response_refuse, &dialect_responses},
    {"/v1/responses/*/cancel", METHOD_POST, false, true, route_response_refuse, &dialect_responses},
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
    {"/v2/rerank", METHOD_POST, false, false, route_embeddings, &dialect_rerank},
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

/* -------------------------------------------------------------------------------- requests --- */

/* What may stand behind the ? of an address, besides what may at any. */
static enum ask_kind query_kind(const struct route *r)
{
    static const struct {
        const char *path;
        enum ask_kind kind;
    } known[] = {{"/models", ASK_QUERY_MODELS},
                 {"/v1/models", ASK_QUERY_MODELS},
                 {"/v1/responses/*", ASK_QUERY_RESPONSE},
                 {"/v1/responses/*/input_items", ASK_QUERY_ITEMS},
                 {"/slots", ASK_QUERY_SLOTS},
                 {"/slots/*", ASK_QUERY_SLOT}};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (!strcmp(r->path, known[i].path))
            return known[i].kind;
    return ASK_QUERY;
}

struct page page_of(const struct exchange *x, int64_t n, int64_t after, int64_t before,
                    int64_t otherwise)
{
    const json_t *limit = json_object_get(x->query, "limit");
    const int64_t most = limit ? json_integer_value(limit) : otherwise;
    struct page p = {after + 1, before >= 0 ? before : n, false};
    p.more = p.end - p.from > most;
    if (p.more && before >= 0 && after < 0)
        p.from = p.end - most;
    p.end = min_i64(p.end, p.from + most);
    return p;
}

/* Takes the same time whatever the key, up to its length. */
static bool same_key(const char *given, const char *key)
{
    const size_t n = strlen(key), m = strlen(given);
    unsigned differs = n != m;
    for (size_t i = 0; i < m; i++)
        differs |= (unsigned)((unsigned char)given[i] ^ (unsigned char)key[n ? i % n : 0]);
    return !differs;
}

static bool may_ask(struct exchange *x)
{
    const char *const *key = x->server->keys.item;
    const char *bearer =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Authorization");
    const char *other = MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "X-Api-Key");
    const char *given = bearer && !strncasecmp(bearer, "Bearer ", 7) ? bearer + 7 : other;
    bool good = !key || (x->route && x->route->open);
    for (int32_t i = 0; key && given && key[i]; i++) {
        const bool same = same_key(given, key[i]);
        good |= same;
        x->client = same ? i : x->client;
    }
    return good;
}

/* Whether a path is one of the pattern, in which a * stands for any text but an empty one: *rest
 * and *n are it. */
static bool path_matches(const char *pattern, const char *path, const char **rest, size_t *n)
{
    const size_t before = strcspn(pattern, "*"), length = strlen(path);
    const size_t after = pattern[before] ? strlen(pattern + before + 1) : 0;
    *rest = path + before;
    *n = length - before - after;
    return pattern[before] ? length > before + after && !strncmp(path, pattern, before) &&
                                 !strcmp(path + length - after, pattern + before + 1)
                           : !strcmp(path, pattern);
}

/* The first one of the path and method, and the methods of all that have the path. */
static const struct route *route_find(struct exchange *x, const char *path, unsigned *methods)
{
    const char *rest;
    size_t n;
    *methods = 0;
    for (const struct route *r = routes; r->path; r++) {
        if (!path_matches(r->path, path, &rest, &n))
            continue;
        *methods |= r->methods;
        if (!(r->methods & x->method))
            continue;
        x->rest = strchr(r->path, '*') ? strndup(rest, n) : NULL;
        return r;
    }
    return NULL;
}

static const char *const method_names[] = {"GET", "POST", "DELETE"};

static unsigned method_of(const char *name)
{
    for (unsigned i = 0; i < ARRAY_LEN(method_names); i++)
        if (!strcmp(name, method_names[i]))
            return 1u << i;
    return strcmp(name, "HEAD") != 0 ? 0 : METHOD_GET;
}

/* All methods of a path, as the field Allow and a sentence have them. */
static enum MHD_Result reply_wrong_method(struct exchange *x, const char *method, const char *path,
                                          unsigned methods)
{
    char names[40] = "";
    size_t n = 0, m = 0;
    for (unsigned i = 0; i < ARRAY_LEN(method_names); i++)
        if (methods >> i & 1) {
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? " or " : "",
                                  method_names[i]);
            m += (size_t)snprintf(x->allow + m, sizeof x->allow - m, "%s%s, ", method_names[i],
                                  i ? "" : ", HEAD");
        }
    snprintf(x->allow + m, sizeof x->allow - m, "OPTIONS");
    return reply_error(x, MHD_HTTP_METHOD_NOT_ALLOWED, "%.80s wants %s, not %.32s", path, names,
                       method);
}

enum MHD_Result dispatch(struct exchange *x, const char *method, const char *path)
{
    const int state = atomic_load(&x->instance->state);
    struct oato_error err;
    unsigned methods;
    if (!strcmp(method, "OPTIONS"))
        return preflight(x);
    x->method = method_of(method);
    x->route = route_find(x, path, &methods);
    if (!may_ask(x))
        return reply_error(x, MHD_HTTP_UNAUTHORIZED,
                           "Invalid API Key: send a valid one as \"Authorization: Bearer KEY\"");
    if (!methods)
        return reply_error(x, MHD_HTTP_NOT_FOUND,
                           "there is no %.80s here; /health, /v1/models, "
                           "/v1/completions, /v1/chat/completions and others are",
                           path);
    if (!x->route)
        return reply_wrong_method(x, method, path, methods);
    if (x->too_large)
        return reply_error(x, MHD_HTTP_CONTENT_TOO_LARGE,
                           "the request is larger than %d KiB; --body-limit KIB allows more",
                           x->server->options->body_kib);
    if (x->crowded)
        return reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE,
                           "other large requests wait; try again later");
    const char *coding =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "Content-Encoding");
    if (coding && strcasecmp(coding, "identity") != 0)
        return reply_error(x, MHD_HTTP_UNSUPPORTED_MEDIA_TYPE,
                           "Content-Encoding: %.40s is not supported; send the body as it is",
                           coding);
    if (x->body.failed || (strchr(x->route->path, '*') && !x->rest))
        return reply_error(x, MHD_HTTP_INTERNAL_SERVER_ERROR, "memory is short");
    if (query_members(x, query_kind(x->route), &err))
        return reply_error(x, MHD_HTTP_BAD_REQUEST, "%s", err.text);
    const bool alone = x->server->models.alone, needs = !x->route->loading;
    if (needs && (atomic_load(&x->server->ending) || (alone && state > INSTANCE_READY)))
        return reply_ending(x);
    if (needs && alone && state < INSTANCE_READY)
        return reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, "Loading model");
    const bool at_once = x->method == METHOD_GET && !x->route->dialect && (alone || !needs);
    return at_once ? x->route->answer(x) : prepare_later(x);
}
