/*
 * page.c - what is compiled in: the page at / with its files (page/ and Debian's libraries) and the
 * description of all addresses (openapi.json). And what the page and /slots show of the requests: a
 * copy that the engine thread makes before every step.
 */
#include "server/server_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

extern const struct embedded_file page_files[]; /* made by cmake/embed.cmake */

static const char policy[] =
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify oato-worker";

/* Nothing but what lies beside the page may run or load, and markup only becomes elements through
 * DOMPurify's policy. Links' names are not even looked up: a name can carry a message, too. A file
 * is asked for again each time, and sent only if its contents are others. */
const char *const page_headers[] = {
    "Content-Security-Policy",
    policy,
    "X-Content-Type-Options",
    "nosniff",
    "X-DNS-Prefetch-Control",
    "off",
    "Referrer-Policy",
    "no-referrer",
    "Cache-Control",
    "no-cache",
    NULL,
};

static const char pageless[] =
    "oato-serve is running. It was built without its page (-DOATO_PAGE=OFF).\n";

static const struct embedded_file *file_find(const char *name)
{
    const struct embedded_file *f = page_files;
    while (f->name && strcmp(f->name, name) != 0)
        f++;
    return f->name ? f : NULL;
}

static const char *file_type(const char *name)
{
    static const char *const types[][2] = {{".html", "text/html; charset=utf-8"},
                                           {".css", "text/css; charset=utf-8"},
                                           {".js", "text/javascript; charset=utf-8"},
                                           {".svg", "image/svg+xml"},
                                           {".json", "application/json"}};
    const char *end = strrchr(name, '.');
    for (size_t i = 0; i < ARRAY_LEN(types) && end; i++)
        if (!strcmp(end, types[i][0]))
            return types[i][1];
    return "text/plain; charset=utf-8";
}

enum MHD_Result route_page(struct exchange *x)
{
    const struct embedded_file *f = file_find(x->rest ? x->rest : "page.html");
    const char *known =
        MHD_lookup_connection_value(x->connection, MHD_HEADER_KIND, "If-None-Match");
    if (x->instance->options->no_page)
        return reply_error(x, MHD_HTTP_NOT_FOUND, "the server was started with --no-ui");
    if (!f && !x->rest) /* Ollama's clients ask for / to see whether somebody is there */
        return reply(x, MHD_HTTP_OK, file_type(""), pageless, sizeof pageless - 1);
    if (!f)
        return reply_error(x, MHD_HTTP_NOT_FOUND, "the page has no file %.80s", x->rest);
    snprintf(x->etag, sizeof x->etag, "\"%016" PRIx64 "\"", hash_bytes(f->data, f->bytes));
    if (known && !strcmp(known, x->etag))
        return reply(x, MHD_HTTP_NOT_MODIFIED, file_type(f->name), "", 0);
    return reply(x, MHD_HTTP_OK, file_type(f->name), (const char *)f->data, f->bytes);
}

/* {"type": .., "minimum": .., "maximum": .., "default": .., "description": ..}; NULL: memory. */
static json_t *number_describe(bool whole, double least, double most, double otherwise,
                               const char *description)
{
    return whole ? json_pack("{ss sI sI sI ss}", "type", "integer", "minimum", (json_int_t)least,
                             "maximum", (json_int_t)most, "default", (json_int_t)otherwise,
                             "description", description)
                 : json_pack("{ss sf sf sf ss}", "type", "number", "minimum", least, "maximum",
                             most, "default", otherwise, "description", description);
}

json_t *openapi_make(const struct sampler_options *defaults)
{
    static const char *const asked_by[] = {"Native", "Completion", "Chat", "OllamaOptions"};
    enum { NUMBER, WHOLE };
    const struct embedded_file *f = file_find("openapi.json");
    json_t *api = json_loadb((const char *)f->data, f->bytes, 0, NULL);
    for (size_t i = 0; i < ARRAY_LEN(asked_by); i++) {
        json_t *properties = NULL;
        json_unpack(api, "{s{s{s{so}}}}", "components", "schemas", asked_by[i], "properties",
                    &properties);
#define DESCRIBE(kind, member, option, alias, arg, json, least, most, otherwise, help, more)       \
    json_object_set_new(                                                                           \
        properties, json,                                                                          \
        number_describe((kind) == WHOLE, least, most, defaults->member, help more));
        SAMPLING_OPTIONS(DESCRIBE)
#undef DESCRIBE
    }
    return api;
}

enum MHD_Result route_openapi(struct exchange *x)
{
    /* the model's file decides, too, what options are when nobody asks for them */
    struct sampler_options defaults = x->server->options->session.sampling;
    if (x->server->models.alone && atomic_load(&x->instance->state) < INSTANCE_READY)
        return reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, "Loading model");
    if (x->server->models.alone)
        defaults = x->instance->session.sampling;
    else
        sampling_settle(&defaults, NULL, program_warn, NULL);
    json_t *api = openapi_make(&defaults);
    char *text = api ? json_dumps(api, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    enum MHD_Result r = text ? reply(x, MHD_HTTP_OK, "application/json", text, strlen(text))
                             : reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, "memory is short");
    free(text);
    json_decref(api);
    return r;
}

void seen_take(struct instance *m, struct batch_view *v, int32_t n)
{
    struct engine_stats stats;
    struct seen seen = {.n_running = 0};
    const uint64_t now = now_ns();
    int32_t running = 0;
    for (int32_t i = 0; i < n; i++)
        running += v[i].state == BATCH_RUNNING;
    if (n == m->n_seen && running == m->running_seen && now - m->seen_ns < SEEN_NS)
        return;
    m->n_seen = n;
    m->running_seen = running;
    m->seen_ns = now;
    engine_get_stats(m->session.engine, &stats);
    seen.pages = stats.pages;
    seen.pages_free = stats.pages_free;
    seen.pages_cached = stats.pages_cached;
    for (int32_t i = 0; i < n; i++) {
        seen.n_waiting += v[i].state == BATCH_WAITING;
        seen.n_swapped += v[i].state == BATCH_SWAPPED;
        seen.generated += v[i].generated;
        if (v[i].state != BATCH_RUNNING || seen.n_running == SEEN_MAX)
            continue;
        batch_view_measure(&v[i]);
        seen.running[seen.n_running++] =
            (struct seen_request){v[i].id, v[i].prompt, v[i].generated, v[i].pages};
    }
    pthread_mutex_lock(&m->lock);
    m->seen = seen;
    pthread_mutex_unlock(&m->lock);
}

/* Answers have no fixed place: as many slots are busy as answers are computed. */
enum MHD_Result route_slots(struct exchange *x)
{
    struct instance *m = x->instance;
    struct text t;
    if (m->options->no_slots)
        return reply_error(x, MHD_HTTP_NOT_IMPLEMENTED, "the server was started with --no-slots");
    pthread_mutex_lock(&m->lock);
    const struct seen seen = m->seen;
    pthread_mutex_unlock(&m->lock);
    if (json_is_true(json_object_get(x->query, "fail_on_no_slot")) &&
        seen.n_running >= m->options->session.engine.seqs)
        return reply_error(x, MHD_HTTP_SERVICE_UNAVAILABLE, "no slot available");
    text_init(&t);
    json_open(&t, NULL, '[');
    for (int32_t i = 0; i < m->options->session.engine.seqs; i++) {
        const bool busy = i < seen.n_running;
        json_open(&t, NULL, '{');
        json_add(&t, JSON("id", i), JSON("n_ctx", m->context), json_bool("speculative", false),
                 json_bool("is_processing", busy));
        if (busy)
            json_add(&t, JSON("id_task", seen.running[i].id), JSON("state", "running"),
                     JSON("n_prompt_tokens", seen.running[i].prompt),
                     JSON("n_decoded", seen.running[i].generated),
                     JSON("pages", seen.running[i].pages));
        json_close(&t, '}');
    }
    json_close(&t, ']');
    return reply_json(x, &t);
}
