/*
 * ollama_models.c - what Ollama tells of models: /api/tags, /api/ps, /api/show, /api/version.
 * Models are the files that the server was started with, so that nothing is fetched, made, copied
 * or deleted over HTTP.
 */
#include "server/server_internal.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

/* Of Ollama whose interface this is: clients ask whether it is new enough, such as Codex for
 * /v1/responses (0.13.4), which came before /v1/messages (0.14). */
#define OLLAMA_VERSION "0.14.0"

static json_t *details_make(const struct model *m)
{
    const double n = (double)model_parameters(m);
    const char *family = m->shape.architecture;
    char size[24];
    snprintf(size, sizeof size, n < 1e9 ? "%.2fM" : "%.1fB", n < 1e9 ? n * 1e-6 : n * 1e-9);
    return json_pack("{s:s, s:s, s:s, s:[s], s:s, s:s}", "parent_model", "", "format", "gguf",
                     "family", family, "families", family, "parameter_size", size,
                     "quantization_level", dtype_name(model_dtype(m)));
}

static json_t *modified(const char *path, json_int_t *bytes)
{
    struct stat s = {0};
    const bool there = !stat(path, &s);
    *bytes = there ? (json_int_t)s.st_size : 0;
    return ollama_time(there ? s.st_mtime : 0);
}

/* Of one that is not loaded the file alone is known: clients want every member nevertheless, and
 * the digest must stay the same. With the lock no model goes. */
static json_t *model_make(const struct instance *m, bool loaded)
{
    const struct gguf *g = loaded ? m->session.model->gguf : NULL;
    json_int_t bytes;
    json_t *date = modified(m->options->session.model, &bytes);
    struct text file;
    char digest[20];
    text_init(&file);
    text_printf(&file, "%s %lld %s", m->options->session.model, (long long)bytes,
                json_string_value(date));
    snprintf(digest, sizeof digest, "%016" PRIx64, hash_bytes(or_empty(file.data), file.len));
    text_free(&file);
    json_t *one =
        json_pack("{s:s, s:s, s:o, s:I, s:s}", "name", m->name, "model", m->name, "modified_at",
                  date, "size", loaded ? (json_int_t)gguf_data_bytes(g) : bytes, "digest", digest);
    json_object_set_new(one, "details",
                        loaded ? details_make(m->session.model)
                               : json_pack("{s:s, s:s, s:s, s:[], s:s, s:s}", "parent_model", "",
                                           "format", "gguf", "family", "", "families",
                                           "parameter_size", "", "quantization_level", ""));
    if (loaded)
        json_object_update_new(
            one, json_pack("{s:s, s:I, s:i}", "expires_at", "9999-12-31T23:59:59Z", "size_vram",
                           (json_int_t)m->away_bytes, "context_length", m->context));
    return one;
}

enum MHD_Result route_ollama_models(struct exchange *x)
{
    struct models *all = &x->server->models;
    const bool running = !!strstr(x->route->path, "ps");
    json_t *list = json_array();
    pthread_mutex_lock(&all->lock);
    for (int32_t i = 0; i < all->n; i++) {
        const bool loaded = atomic_load(&all->of[i]->state) == INSTANCE_READY;
        if (loaded || !running)
            json_array_append_new(list, model_make(all->of[i], loaded));
    }
    pthread_mutex_unlock(&all->lock);
    return reply_value(x, json_pack("{s:o}", "models", list));
}

/* A scalar; what is long, as the vocabulary is, is null. */
static json_t *key_value(const struct gguf_value *v)
{
    int64_t whole;
    double number;
    if (v->type == GGUF_STRING)
        return text_value(v->strings->data, v->strings->len);
    if (v->type == GGUF_BOOL)
        return json_boolean(v->data[0]);
    if (v->type != GGUF_ARRAY && gguf_value_i64(v, 0, &whole))
        return json_integer(whole);
    return v->type != GGUF_ARRAY && gguf_value_f64(v, 0, &number) ? json_real(number) : json_null();
}

bool ollama_thinks(const struct instance *m)
{
    static const char *const words[] = {"enable_thinking", "reasoning_effort", "thinking", "think"};
    bool thinks = false;
    for (size_t i = 0; i < ARRAY_LEN(words) && m->template; i++)
        thinks = thinks || chat_template_mentions(m->template, words[i]);
    return thinks;
}

static json_t *abilities_make(const struct instance *m)
{
    const bool answers = !m->options->session.engine.embeddings;
    const struct {
        const char *name;
        bool has;
    } all[] = {{"completion", answers},
               {"tools", answers && m->template},
               {"thinking", answers && ollama_thinks(m)},
               {"insert", answers && fim_is_known(m)},
               {"embedding", m->states}};
    json_t *list = json_array();
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (all[i].has)
            json_array_append_new(list, json_string(all[i].name));
    return list;
}

enum MHD_Result route_ollama_show(struct exchange *x)
{
    const struct instance *m = x->instance;
    const struct gguf *g = m->session.model->gguf;
    struct gguf_string program = {"", 0};
    json_int_t bytes;
    struct oato_error err;
    char parameters[48]; /* as those of Ollama's files, which clients read the context from */
    if (!body_json(x, &err))
        return reply_failure(x, &err);
    snprintf(parameters, sizeof parameters, "%-30s %d", "num_ctx", m->context);
    gguf_get_string(g, "tokenizer.chat_template", &program);
    json_t *keys = json_object();
    for (size_t i = 0; i < gguf_kv_count(g); i++)
        if (strcmp(gguf_kv_key(g, i), "tokenizer.chat_template") != 0)
            json_object_set_new(keys, gguf_kv_key(g, i), key_value(gguf_kv_value(g, i)));
    json_object_set_new(keys, "general.parameter_count",
                        json_integer(model_parameters(m->session.model)));
    return reply_value(x, json_pack("{s:s, s:s, s:o, s:o, s:o, s:o, s:o}", "modelfile", "",
                                    "parameters", parameters, "template",
                                    text_value(program.data, program.len), "details",
                                    details_make(m->session.model), "model_info", keys,
                                    "capabilities", abilities_make(m), "modified_at",
                                    modified(m->options->session.model, &bytes)));
}

enum MHD_Result route_ollama_version(struct exchange *x)
{
    return reply_value(x, json_pack("{s:s}", "version", OLLAMA_VERSION));
}

enum MHD_Result route_ollama_refuse(struct exchange *x)
{
    return reply_error(x, MHD_HTTP_NOT_IMPLEMENTED,
                       "%s is not supported here: models are files that the server was started "
                       "with, and nothing fetches, makes, copies or deletes them over HTTP",
                       x->route->path);
}
