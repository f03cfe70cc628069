/*
 * chat_template.c - the prompt text of a conversation: the model's own Jinja program
 * (tokenizer.chat_template), run by the interpreter of text/jinja, or a named format
 * (chat_formats.c).
 *
 * The program sees messages, add_generation_prompt, bos_token, eos_token, the date (as llama.cpp
 * tells it: date_string for Llama 3, datetime for firefunction) and the caller's variables. It
 * comes from the file, so whatever it does ends within the limits of jinja_limits_default. One that
 * cannot be parsed is replaced by the format that it is recognised as.
 */
#include "text/chat_internal.h"
#include "text/jinja/jinja.h"
#include "text/tokens_internal.h"

#include <stdlib.h>
#include <string.h>

struct chat_template {
    const struct chat_format *format; /* NULL: the program is the model's own */
    struct jinja_template *program;
    struct text source; /* of the program */
    char *variables;    /* JSON, or NULL */
    struct text bos, eos;
    bool drops_bos; /* tokenizer_encode adds it */
    bool own;       /* the model's */
    char warning[512];
};

/* The text of the token that the key names, otherwise of number `id` (-1: none). */
static void token_text(const struct gguf *g, const char *key, int64_t id, struct text *out)
{
    const struct gguf_value *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    text_init(out);
    gguf_get_i64(g, key, &id);
    if (tokens && tokens->type == GGUF_ARRAY && tokens->elem == GGUF_STRING && id >= 0 &&
        (uint64_t)id < tokens->count)
        text_add(out, tokens->strings[id].data, tokens->strings[id].len);
}

/* from: what messages call the program. */
static oato_status program_open(struct chat_template *c, const struct gguf *g,
                                struct gguf_string program, const char *from,
                                struct oato_error *err)
{
    struct gguf_string model = {"", 0};
    gguf_get_string(g, "tokenizer.ggml.model", &model);
    const bool spm = gguf_string_is(model, "llama");
    token_text(g, "tokenizer.ggml.bos_token_id", spm ? 1 : -1, &c->bos);
    token_text(g, "tokenizer.ggml.eos_token_id", spm ? 2 : -1, &c->eos);
    c->drops_bos = spm || pretokenizer_adds_bos(g);
    gguf_get_bool(g, "tokenizer.ggml.add_bos_token", &c->drops_bos);
    text_add(&c->source, program.data, program.len);
    if (c->bos.failed || c->eos.failed || c->source.failed)
        return oato_fail_memory(err, program.len, "the chat template");
    return jinja_parse(from, program.data, program.len, &jinja_limits_default, &c->program, err);
}

static oato_status format_open(struct chat_template *c, struct oato_error *err)
{
    c->drops_bos = false;
    text_add(&c->source, c->format->program, strlen(c->format->program));
    return c->source.failed
               ? oato_fail_memory(err, c->source.len, "the chat template")
               : jinja_parse(c->format->name, c->format->program, strlen(c->format->program),
                             &jinja_limits_default, &c->program, err);
}

static oato_status fail_with_names(struct oato_error *err, oato_status status, const char *what)
{
    struct text names;
    text_init(&names);
    chat_format_names(&names);
    oato_fail(err, status, "%s: %s", what, names.data ? names.data : "");
    text_free(&names);
    return status;
}

/* The model's own template. */
static oato_status own_find(struct chat_template *c, const struct gguf *g, struct oato_error *err)
{
    struct gguf_string program = {"", 0};
    struct text name;
    char what[400];
    static const struct gguf_key_type keys[] = {{"tokenizer.chat_template", GGUF_WANT_STRING}};
    if (gguf_check_keys(g, gguf_path(g), keys, ARRAY_LEN(keys), err))
        return err->status;
    if (!gguf_get_string(g, "tokenizer.chat_template", &program) || !program.len) {
        snprintf(what, sizeof what,
                 "%s: it has no tokenizer.chat_template; choose one with "
                 "--chat-template",
                 gguf_path(g));
        return fail_with_names(err, OATO_EFILE, what);
    }
    text_init(&name);
    text_printf(&name, "%s: its chat template", gguf_path(g));
    const oato_status status = name.failed ? oato_fail_memory(err, program.len, "a name")
                                           : program_open(c, g, program, name.data, err);
    text_free(&name);
    c->own = true;
    if (!status || oato_failed_memory(err))
        return status;
    c->format = chat_format_recognise(program);
    if (!c->format) {
        snprintf(what, sizeof what, "%.300s; choose one with --chat-template", err->text);
        return fail_with_names(err, OATO_EFILE, what);
    }
    snprintf(c->warning, sizeof c->warning, "%.400s; using the format %s in its place", err->text,
             c->format->name);
    return format_open(c, err);
}

/* A name holds no byte that only a program does. */
static bool is_program(const char *name, size_t n)
{
    return memchr(name, 0, n) || strpbrk(name, " \n{");
}

oato_status chat_template_find(const struct gguf *g, const char *name, size_t n, const char *from,
                               struct chat_template **out, struct oato_error *err)
{
    char what[100];
    struct chat_template *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return oato_fail_memory(err, sizeof *c, "the chat template");
    oato_status status = OATO_OK;
    c->format = name && !from ? chat_format_named(name) : NULL;
    if (from && !n) {
        status = oato_fail(err, OATO_EFILE, "%s: is empty: no chat template", from);
    } else if (name && (from || is_program(name, n))) {
        status =
            program_open(c, g, (struct gguf_string){name, n}, from ? from : "--chat-template", err);
        if (status == OATO_EFILE && !from) /* the command line is no file */
            err->status = status = OATO_EUSAGE;
    } else if (name && !c->format) {
        snprintf(what, sizeof what, "unknown --chat-template %.40s; choose one of", name);
        status = fail_with_names(err, OATO_EUSAGE, what);
    } else {
        status = name ? format_open(c, err) : own_find(c, g, err);
    }
    if (status)
        chat_template_free(c);
    else
        *out = c;
    return status;
}

void chat_template_free(struct chat_template *c)
{
    if (!c)
        return;
    jinja_free(c->program);
    text_free(&c->bos);
    text_free(&c->eos);
    text_free(&c->source);
    free(c->variables);
    free(c);
}

bool chat_template_is_program(const struct chat_template *c)
{
    return !c->format;
}

const char *chat_template_name(const struct chat_template *c)
{
    return c->format ? c->format->name : c->own ? "of the model" : "as given";
}

const char *chat_template_text(const struct chat_template *c, size_t *n)
{
    *n = c->format ? strlen(c->format->name) : c->source.len;
    return c->format ? c->format->name : or_empty(c->source.data);
}

const char *chat_template_warning(const struct chat_template *c)
{
    return c->warning;
}

oato_status chat_template_variables(struct chat_template *c, const char *json,
                                    struct oato_error *err)
{
    if (c->format)
        return oato_fail(err, OATO_EUSAGE,
                         "variables are for the model's own chat template; %s "
                         "has none",
                         c->format->name);
    struct jinja *x = jinja_begin(c->program, err);
    if (!x)
        return err->status;
    jinja_set_json(x, json, strlen(json));
    const bool good = !jinja_failed(x);
    jinja_end(x);
    if (!good)
        return oato_fail(err, OATO_EUSAGE, "--chat-template-kwargs is no JSON object: %.80s", json);
    free(c->variables);
    c->variables = strdup(json);
    return c->variables ? OATO_OK : oato_fail_memory(err, strlen(json), "the variables");
}

bool chat_template_mentions(const struct chat_template *c, const char *word)
{
    return gguf_string_has((struct gguf_string){c->source.data, c->source.len}, word);
}

oato_status chat_reader_open(const struct chat_template *c, enum chat_form form, const char *prompt,
                             size_t n, const struct chat_sink *sink, struct chat_reader **out,
                             struct oato_error *err)
{
    const struct gguf_string source = {c->source.data, c->source.len};
    return chat_reader_of(source, form, (struct gguf_string){prompt, n}, sink, out, err);
}

static void message_push(struct jinja *x, struct list *l, const char *role, struct value content)
{
    const struct value message = value_new(x, VALUE_DICT);
    dict_set(x, message.list, value_str("role"), value_str(role));
    dict_set(x, message.list, value_str("content"), content);
    list_push(x, l, message);
}

static struct value messages_value(struct jinja *x, const struct chat_format *format,
                                   const struct chat_message *m, size_t n)
{
    const struct value list = value_new(x, VALUE_LIST);
    bool system = !format || !format->system;
    for (size_t i = 0; i < n; i++)
        system = system || strcmp(m[i].role, "system") == 0;
    if (!system)
        message_push(x, list.list, "system", value_str(format->system));
    for (size_t i = 0; i < n && !jinja_failed(x); i++)
        message_push(x, list.list, m[i].role, value_slice(m[i].content, m[i].bytes));
    return list;
}

oato_status chat_template_apply(const struct chat_template *c, const struct chat_message *m,
                                size_t n, bool add_assistant, const char *variables,
                                struct text *out, struct oato_error *err)
{
    return chat_template_apply_within(c, m, n, add_assistant, variables, NULL, out, err);
}

oato_status chat_template_apply_within(const struct chat_template *c, const struct chat_message *m,
                                       size_t n, bool add_assistant, const char *variables,
                                       struct budget *budget, struct text *out,
                                       struct oato_error *err)
{
    struct text text;
    const char *json = variables ? variables : c->variables;
    if (c->format && chat_format_check(c->format, m, n, err))
        return err->status;
    struct jinja *x = jinja_begin(c->program, err);
    if (!x)
        return err->status;
    text_init(&text);
    jinja_budget(x, budget);
    jinja_set(x, "messages", messages_value(x, c->format, m, n));
    jinja_set(x, "add_generation_prompt", value_bool(add_assistant));
    jinja_set(x, "bos_token", value_slice(c->bos.data ? c->bos.data : "", c->bos.len));
    jinja_set(x, "eos_token", value_slice(c->eos.data ? c->eos.data : "", c->eos.len));
    jinja_set(x, "date_string", jinja_now(x, value_str("%d %b %Y")));
    jinja_set(x, "datetime", jinja_now(x, value_str("%b %d %Y")));
    if (json)
        jinja_set_json(x, json, strlen(json));
    oato_status status = jinja_run(x, &text);
    jinja_end(x);
    if (status == OATO_EFILE && c->own && !oato_failed_memory(err)) {
        const struct oato_error why = *err;
        oato_fail(err, status, "%.430s; --chat-template NAME takes a named format instead",
                  why.text);
    }
    if (!status) {
        const bool twice = c->drops_bos && c->bos.data && text.data && text.len >= c->bos.len &&
                           memcmp(text.data, c->bos.data, c->bos.len) == 0;
        const size_t skip = twice ? c->bos.len : 0;
        text_add(out, text.data ? text.data + skip : "", text.len - skip);
        if (out->failed)
            status = oato_fail_memory(err, text.len, "the prompt text");
    }
    text_free(&text);
    return status;
}
