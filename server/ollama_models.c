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

static const char *const no_date = "9999-12-31T23:59:59Z"; /* a model stays */

static int64_t parameters_of(const struct gguf *g)
{
    int64_t n = 0;
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const int64_t *ne = gguf_tensor_at(g, i)->ne;
        n += ne[0] * ne[1] * ne[2] * ne[3];
    }
    return n;
}

/* The type of most of its bytes. */
static const char *type_of(const struct gguf *g)
{
    size_t bytes[DT_COUNT] = {0};
    int most = 0;
    for (size_t i = 0; i < gguf_tensor_count(g); i++)
        bytes[gguf_tensor_at(g, i)->dtype] += gguf_tensor_at(g, i)->bytes;
    for (int i = 0; i < DT_COUNT; i++)
        most = bytes[i] > bytes[most] ? i : most;
    return dtype_name((oato_dtype)most);
}

static void details_add(struct text *t, const struct model *m)
{
    const double n = (double)parameters_of(m->gguf);
    char size[24];
    snprintf(size, sizeof size, n < 1e9 ? "%.2fM" : "%.1fB", n < 1e9 ? n * 1e-6 : n * 1e-9);
    json_open(t, "details", '{');
    json_add(t, JSON("parent_model", ""), JSON("format", "gguf"),
             JSON("family", (const char *)m->shape.architecture));
    json_open(t, "families", '[');
    json_add(t, JSON(NULL, (const char *)m->shape.architecture));
    json_close(t, ']');
    json_add(t, JSON("parameter_size", (const char *)size),
             JSON("quantization_level", type_of(m->gguf)));
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
        json_add(t, JSON("expires_at", no_date), JSON("size_vram", m->away_bytes),
                 JSON("context_length", m->context));
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
static void keys_add(struct text *t, const struct gguf *g)
{
    int64_t whole;
    double number;
    for (size_t i = 0; i < gguf_kv_count(g); i++) {
        const char *key = gguf_kv_key(g, i);
        const struct gguf_value *v = gguf_kv_value(g, i);
        if (!strcmp(key, "tokenizer.chat_template"))
            continue;
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
}

static void abilities_add(struct text *t, const struct instance *m)
{
    const bool answers = !m->options->session.engine.embeddings;
    const bool program = m->template && chat_template_is_program(m->template);
    const struct {
        const char *name;
        bool has;
    } all[] = {{"completion", answers},
               {"tools", answers && program && chat_template_mentions(m->template, "tools")},
               {"thinking", answers && program &&
                                (chat_template_mentions(m->template, "enable_thinking") ||
                                 chat_template_mentions(m->template, "reasoning_effort"))},
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
    keys_add(&t, g);
    json_add(&t, JSON("general.parameter_count", parameters_of(g)));
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
