/*
 * ollama_models.c - what Ollama tells of models: /api/tags, /api/ps, /api/show, /api/version.
 * Models are the files that the server was started with, so that nothing is fetched, made, copied
 * or deleted over HTTP.
 */
#include "server/server_internal.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* Of Ollama's interface as it is followed here: clients ask whether theirs is new enough. */
#define OLLAMA_VERSION "0.12.11"

static void details_add(struct text *t, const struct model *m)
{
    const double n = (double)model_parameters(m);
    char size[24];
    snprintf(size, sizeof size, n < 1e9 ? "%.2fM" : "%.1fB", n < 1e9 ? n * 1e-6 : n * 1e-9);
    json_open(t, "details", '{');
    json_add(t, JSON("parent_model", ""), JSON("format", "gguf"),
             JSON("family", (const char *)m->shape.architecture));
    json_open(t, "families", '[');
    json_add(t, JSON(NULL, (const char *)m->shape.architecture));
    json_close(t, ']');
    json_add(t, JSON("parameter_size", (const char *)size),
             JSON("quantization_level", dtype_name(model_dtype(m))));
    json_close(t, '}');
}

static time_t modified(const struct gguf *g)
{
    struct stat s;
    return stat(gguf_path(g), &s) ? 0 : s.st_mtime;
}

static void model_add(struct text *t, const struct instance *m, bool running)
{
    const struct gguf *g = m->session.model->gguf;
    char digest[20];
    snprintf(digest, sizeof digest, "%016" PRIx64, gguf_content_hash(g));
    json_open(t, NULL, '{');
    json_add(t, JSON("name", (const char *)m->name), JSON("model", (const char *)m->name),
             JSON("size", gguf_data_bytes(g)), JSON("digest", (const char *)digest));
    ollama_time(t, "modified_at", modified(g));
    details_add(t, m->session.model);
    if (running)
        json_add(t, JSON("expires_at", "9999-12-31T23:59:59Z") /* it stays */,
                 JSON("size_vram", m->away_bytes), JSON("context_length", m->context));
    json_close(t, '}');
}

enum MHD_Result route_ollama_models(struct exchange *x)
{
    const bool running = !!strstr(x->route->path, "ps");
    struct text t;
    text_init(&t);
    json_open(&t, NULL, '{');
    json_open(&t, "models", '[');
    model_add(&t, x->instance, running);
    json_close(&t, ']');
    json_close(&t, '}');
    return reply_json(x, &t);
}

/* Scalars; what is long, as the vocabulary is, is null. */
static void key_add(struct text *t, const char *key, const struct gguf_value *v)
{
    int64_t whole;
    double number;
    if (v->type == GGUF_STRING)
        json_add_slice(t, key, v->strings->data, v->strings->len);
    else if (v->type == GGUF_BOOL)
        json_add(t, json_bool(key, v->data[0] != 0));
    else if (v->type != GGUF_ARRAY && gguf_value_i64(v, 0, &whole))
        json_add(t, JSON(key, whole));
    else if (v->type != GGUF_ARRAY && gguf_value_f64(v, 0, &number))
        json_add(t, JSON(key, number));
    else
        value_add(t, key, NULL);
}

bool ollama_thinks(const struct instance *m)
{
    static const char *const words[] = {"enable_thinking", "reasoning_effort", "thinking", "think"};
    bool thinks = false;
    for (size_t i = 0; i < ARRAY_LEN(words) && m->template; i++)
        thinks = thinks || chat_template_mentions(m->template, words[i]);
    return thinks;
}

static void abilities_add(struct text *t, const struct instance *m)
{
    const bool answers = !m->options->session.engine.embeddings;
    const bool tools = m->template && chat_template_mentions(m->template, "tools");
    const struct {
        const char *name;
        bool has;
    } all[] = {{"completion", answers},
               {"tools", answers && tools},
               {"thinking", answers && ollama_thinks(m)},
               {"insert", answers && fim_is_known(m)},
               {"embedding", m->states}};
    json_open(t, "capabilities", '[');
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i].has)
            json_add(t, JSON(NULL, all[i].name));
    json_close(t, ']');
}

enum MHD_Result route_ollama_show(struct exchange *x)
{
    const struct instance *m = x->instance;
    const struct gguf *g = m->session.model->gguf;
    struct gguf_string program = {"", 0};
    struct oato_error err;
    struct text t;
    if (!body_json(x, &err))
        return reply_failure(x, &err);
    gguf_get_string(g, "tokenizer.chat_template", &program);
    text_init(&t);
    json_open(&t, NULL, '{');
    json_add(&t, JSON("modelfile", ""), JSON("parameters", ""));
    json_add_slice(&t, "template", program.data, program.len);
    details_add(&t, m->session.model);
    json_open(&t, "model_info", '{');
    for (size_t i = 0; i < gguf_kv_count(g); i++)
        if (strcmp(gguf_kv_key(g, i), "tokenizer.chat_template") != 0)
            key_add(&t, gguf_kv_key(g, i), gguf_kv_value(g, i));
    json_add(&t, JSON("general.parameter_count", model_parameters(m->session.model)));
    json_close(&t, '}');
    abilities_add(&t, m);
    ollama_time(&t, "modified_at", modified(g));
    json_close(&t, '}');
    return reply_json(x, &t);
}

enum MHD_Result route_ollama_version(struct exchange *x)
{
    static const char version[] = "{\"version\":\"" OLLAMA_VERSION "\"}";
    return reply(x, MHD_HTTP_OK, "application/json; charset=utf-8", version, sizeof version - 1);
}

enum MHD_Result route_ollama_refuse(struct exchange *x)
{
    return reply_error(x, MHD_HTTP_NOT_IMPLEMENTED,
                       "%s is not supported here: models are files that the server was started "
                       "with, and nothing fetches, makes, copies or deletes them over HTTP",
                       x->route->path);
}
