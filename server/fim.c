/*
 * fim.c - what stands between two texts (text/fill_in.c): llama.cpp's /infill, and the `suffix` of
 * /v1/completions and of Ollama's /api/generate.
 */
#include "server/server_internal.h"

#include <stdlib.h>

bool fim_is_known(const struct instance *m)
{
    struct fill_in f;
    return fill_in_find(m->session.tokenizer, m->session.model->gguf, &f);
}

/* What is no text is empty. */
static struct gguf_string slice(const json_t *text)
{
    return (struct gguf_string){or_empty(json_string_value(text)), json_string_length(text)};
}

/* So that an answer has room, too, the files may be cut. */
static size_t room(const struct exchange *x, const json_t *request)
{
    const int64_t context = x->instance->context,
                  most = json_integer_value(json_object_get(request, "n_predict"));
    return (size_t)max_i64(0, context - 1 - (most > 0 ? most : context / 4));
}

/* all: room for as many as `files` has. */
static oato_status files_read(const json_t *files, struct fill_in_file *all, struct oato_error *err)
{
    const json_t *file;
    size_t i;
    json_array_foreach(files, i, file)
    {
        const json_t *name = json_object_get(file, "filename"),
                     *text = json_object_get(file, "text");
        if (!json_is_string(text) || (name && !json_is_string(name)))
            return oato_fail(err, OATO_EUSAGE,
                             "input_extra wants a list of objects with a filename and a text");
        all[i] = (struct fill_in_file){slice(name), slice(text)};
    }
    return OATO_OK;
}

static oato_status prompt_make(struct exchange *x, json_t *request, struct fill_in_parts *p,
                               const json_t *files, struct oato_error *err)
{
    const struct session *s = &x->instance->session;
    struct fill_in f;
    size_t n = 0;
    int32_t *ids = NULL;
    x->unsupported = !fill_in_find(s->tokenizer, s->model->gguf, &f);
    if (x->unsupported)
        return oato_fail(
            err, OATO_EUSAGE,
            "%.100s has no tokens for filling in (prefix, suffix, middle); ask a model "
            "that was trained for it",
            x->instance->name);
    struct fill_in_file *all = calloc(json_array_size(files) + 1, sizeof *all);
    if (!all)
        return oato_fail_memory(err, json_array_size(files) * sizeof *all, "files");
    p->files = all;
    p->n_files = json_array_size(files);
    p->most = room(x, request);
    oato_status status = files_read(files, all, err);
    if (!status)
        status = fill_in_prompt(s->tokenizer, &f, p, &x->budget, &ids, &n, err);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    json_object_set_new(request, "prompt", list);
    free(ids);
    free(all);
    return status;
}

oato_status fim_prompt(struct exchange *x, json_t *request, const json_t *prefix,
                       const json_t *suffix, struct oato_error *err)
{
    struct fill_in_parts p = {.prefix = slice(prefix), .suffix = slice(suffix)};
    return prompt_make(x, request, &p, NULL, err);
}

oato_status fim_suffix(struct exchange *x, struct oato_error *err)
{
    const json_t *prompt = json_object_get(x->json, "prompt"),
                 *suffix = json_object_get(x->json, "suffix");
    if (!json_string_length(suffix)) /* or it is no text: members.c */
        return OATO_OK;
    return json_is_string(prompt)
               ? fim_prompt(x, x->json, prompt, suffix, err)
               : oato_fail(err, OATO_EUSAGE, "suffix goes with a prompt that is one text");
}

static oato_status infill_request(struct exchange *x, struct oato_error *err)
{
    static const char *const own[] = {"input_prefix", "input_suffix", "input_extra"};
    json_t *o = x->json;
    struct fill_in_parts p = {.prefix = slice(json_object_get(o, own[0])),
                              .begun = slice(json_object_get(o, "prompt")),
                              .suffix = slice(json_object_get(o, own[1]))};
    if (request_members(o, ASK_INFILL, 0, NULL, err) ||
        prompt_make(x, o, &p, json_object_get(o, own[2]), err))
        return err->status;
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        json_object_del(o, own[i]);
    return OATO_OK;
}

const struct dialect dialect_infill = NATIVE_DIALECT(infill_request);
