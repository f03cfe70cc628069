/*
 * models_routes.c - what is told about the models, and the addresses of llama.cpp's router that
 * load and unload them.
 */
#include "server/server_internal.h"

static void list_add(struct text *t, const char *key, const struct list *l)
{
    json_open(t, key, '[');
    for (int32_t i = 0; l->item && l->item[i]; i++)
        json_add(t, JSON(NULL, l->item[i]));
    json_close(t, ']');
}

/* As llama.cpp's router names it: what has failed is unloaded, with a mark. */
static void status_add(struct text *t, const struct instance *m, int state)
{
    const bool loading = state == INSTANCE_LOADING || (state == INSTANCE_UNLOADED && m->asked_ns);
    json_open(t, "status", '{');
    json_add(t, JSON("value", state == INSTANCE_READY ? "loaded"
                              : loading               ? "loading"
                                                      : "unloaded"));
    if (m->failed_ns)
        json_add(t, json_bool("failed", true), JSON("exit_code", (int)m->failure.status),
                 JSON("error", (const char *)m->failure.text));
    if (m->need[0])
        json_add(t, JSON("memory_bytes", m->need[0]));
    json_close(t, '}');
}

static void anthropic_add(struct text *t, const struct instance *m, int32_t context)
{
    const time_t since = m->server->started;
    char created[32];
    struct tm utc;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&since, &utc));
    json_add_object(t, NULL, JSON("id", (const char *)m->name), JSON("type", "model"),
                    JSON("display_name", (const char *)m->name),
                    JSON("created_at", (const char *)created), JSON("lifecycle", "active"),
                    JSON("max_input_tokens", context));
}

static void openai_add(struct text *t, const struct instance *m, int state)
{
    json_open(t, NULL, '{');
    json_add(t, JSON("id", (const char *)m->name), JSON("object", "model"),
             JSON("created", (uint64_t)m->server->started), JSON("owned_by", "oato"));
    list_add(t, "aliases", &m->aliases);
    list_add(t, "tags", &m->tags);
    if (!m->server->models.alone) {
        json_add(t, JSON("path", m->options->session.model));
        status_add(t, m, state);
    }
    if (state == INSTANCE_READY) {
        const struct model_shape *shape = &m->session.model->shape;
        json_add(t, JSON("max_model_len", m->context), JSON("context_length", m->context));
        json_add_object(t, "meta", JSON("n_vocab", shape->vocab), JSON("n_ctx", m->context),
                        JSON("n_ctx_train", shape->context_length), JSON("n_embd", shape->width));
    }
    json_close(t, '}');
}

/* As OpenAI has it, or Anthropic. With the lock no model goes. */
static void model_add(struct text *t, struct instance *m, bool anthropic)
{
    pthread_mutex_lock(&m->server->models.lock);
    const int state = atomic_load(&m->state);
    if (anthropic)
        anthropic_add(t, m, state == INSTANCE_READY ? m->context : 0);
    else
        openai_add(t, m, state);
    pthread_mutex_unlock(&m->server->models.lock);
}

/* The number of the model that the member `key` of the query names; -1: it names none. */
static oato_status model_find(const struct exchange *x, const char *key, int64_t *at,
                              struct oato_error *err)
{
    const char *name = json_string_value(json_object_get(x->query, key));
    const struct models *all = &x->server->models;
    const struct instance *m = name ? models_named(x->server, name) : NULL;
    *at = m ? 0 : -1;
    while (m && all->of[*at] != m)
        ++*at;
    return !name || m ? OATO_OK
                      : oato_fail(err, OATO_EUSAGE, "%s: there is no model %.80s", key, name);
}

enum MHD_Result route_models(struct exchange *x)
{
    enum { MODELS = 20 }; /* of Anthropic's interface */
    struct models *all = &x->server->models;
    const bool anthropic = asks_anthropic(x);
    struct oato_error err;
    int64_t after, before;
    struct text t;
    if (model_find(x, "after_id", &after, &err) || model_find(x, "before_id", &before, &err))
        return reply_failure(x, &err);
    const struct page p = page_of(x, all->n, after, before, anthropic ? MODELS : all->n);
    text_init(&t);
    json_open(&t, NULL, '{');
    json_open(&t, "data", '[');
    for (int64_t i = p.from; i < p.end; i++)
        model_add(&t, all->of[i], anthropic);
    json_close(&t, ']');
    if (!anthropic)
        json_add(&t, JSON("object", "list"));
    if (anthropic || p.more)
        json_add(&t, json_bool("has_more", p.more));
    if (anthropic && p.from < p.end)
        json_add(&t, JSON("first_id", (const char *)all->of[p.from]->name),
                 JSON("last_id", (const char *)all->of[p.end - 1]->name));
    json_close(&t, '}');
    return reply_json(x, &t);
}

enum MHD_Result route_model(struct exchange *x)
{
    struct instance *m = models_named(x->server, x->rest);
    struct text t;
    if (!m)
        return reply_error(x, MHD_HTTP_NOT_FOUND, "The model '%.200s' does not exist", x->rest);
    text_init(&t);
    model_add(&t, m, asks_anthropic(x));
    return reply_json(x, &t);
}

enum MHD_Result models_props(struct exchange *x)
{
    const struct server_options *o = x->server->options;
    struct text t;
    text_init(&t);
    json_open(&t, NULL, '{');
    json_add(&t, JSON("role", "router"), JSON("max_instances", o->models_max),
             json_bool("models_autoload", !o->no_autoload), JSON("memory_bytes", o->memory_bytes),
             JSON("build_info", SERVER_BUILD));
    json_close(&t, '}');
    return reply_json(x, &t);
}

/* With the lock. */
static void want(struct instance *m, bool load)
{
    if (load)
        m->failed_ns = 0;
    m->asked_ns = load ? now_ns() : 0;
    m->leaves = m->leaves || (!load && atomic_load(&m->state) != INSTANCE_UNLOADED);
    pthread_cond_signal(&m->server->models.wake);
}

void models_unload(struct instance *m)
{
    struct models *all = &m->server->models;
    if (all->alone)
        return;
    pthread_mutex_lock(&all->lock);
    want(m, false);
    pthread_mutex_unlock(&all->lock);
}

static enum MHD_Result command(struct exchange *x, bool load)
{
    struct models *all = &x->server->models;
    struct oato_error err;
    const json_t *o = body_json(x, &err);
    if (!o || request_members(o, ASK_QUERY, 0, NULL, &err))
        return reply_failure(x, &err);
    const char *name = json_string_value(json_object_get(o, "model"));
    if (!name && !all->alone)
        return reply_error(x, MHD_HTTP_BAD_REQUEST,
                           "model is missing from the request; /v1/models lists all");
    struct instance *m = name ? models_named(x->server, name) : NULL;
    if (all->alone)
        return reply_error(x, MHD_HTTP_NOT_IMPLEMENTED,
                           "this server has one model; one started with --models loads others");
    if (!m)
        return reply_error(x, MHD_HTTP_NOT_FOUND, "model is not found");
    pthread_mutex_lock(&all->lock);
    const int state = atomic_load(&m->state);
    const bool there = (state == INSTANCE_READY && !m->leaves) || state == INSTANCE_LOADING ||
                       (state == INSTANCE_UNLOADED && m->asked_ns);
    if (there != load)
        want(m, load);
    pthread_mutex_unlock(&all->lock);
    return there == load ? reply_error(x, MHD_HTTP_BAD_REQUEST, "model is %s",
                                       load ? "already running" : "not running")
                         : reply(x, MHD_HTTP_OK, JSON_TYPE, "{\"success\":true}", 16);
}

enum MHD_Result route_load(struct exchange *x)
{
    return command(x, true);
}

enum MHD_Result route_unload(struct exchange *x)
{
    return command(x, false);
}
