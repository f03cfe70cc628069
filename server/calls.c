/*
 * calls.c - answers that must call a function: a grammar of the tools' schemas, in the form in
 * which the model calls. Which form that is, its reader tells: the one out of which it reads the
 * call.
 */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

/* before NAME between {arguments} after */
struct call_form {
    const char *before, *between, *after;
};

#define JSON_CALL(begin, name, arguments, end)                                                     \
    {                                                                                              \
        begin "{\"" name "\": \"", "\", \"" arguments "\": ", "}" end                              \
    }

static const struct call_form forms[] = {
    JSON_CALL("<tool_call>\n", "name", "arguments", "\n</tool_call>"),
    JSON_CALL("[TOOL_CALLS][", "name", "arguments", "]"),
    JSON_CALL("<|tool_call_start|>[", "name", "arguments", "]<|tool_call_end|>"),
    JSON_CALL("<|tool_call|>[", "name", "arguments", "]"),
    JSON_CALL("<|function_call|>[", "name", "arguments", "]"),
    JSON_CALL("<TOOLCALL>[", "name", "arguments", "]</TOOLCALL>"),
    JSON_CALL("<tool_calls>[", "name", "arguments", "]</tool_calls>"),
    JSON_CALL("<|START_ACTION|>[", "tool_name", "parameters", "]<|END_ACTION|>"),
    JSON_CALL("Action:\n```json\n[", "tool_name", "parameters", "]\n```"),
    {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n",
     "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {"<|tool_calls_section_begin|><|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>",
     "<|tool_call_end|><|tool_calls_section_end|>"},
    JSON_CALL("", "name", "parameters", ""),
};

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

/* What a reader makes of a form. */
struct trial {
    int calls;
    bool right;
};

static void on_text(void *user, enum chat_part part, const char *s, size_t n)
{
    struct trial *t = user;
    t->right = t->right && (part == CHAT_THINKS || strspn(s, " \n") >= n);
}

static void on_call(void *user, const char *name)
{
    struct trial *t = user;
    t->calls++;
    t->right = t->right && !strcmp(name, "f");
}

static void on_arguments(void *user, const char *s, size_t n)
{
    struct trial *t = user;
    t->right = t->right && n == 2 && !memcmp(s, "{}", 2);
}

static void on_call_end(void *user, bool whole)
{
    struct trial *t = user;
    t->right = t->right && whole;
}

static oato_status form_try(const struct instance *m, const struct call_form *f,
                            const struct text *prompt, bool *is, struct oato_error *err)
{
    struct trial trial = {.right = true};
    const struct chat_sink sink = {on_text, on_call, on_arguments, on_call_end, &trial};
    struct chat_reader *reader;
    struct text call;
    const char *begin, *end;
    if (chat_reader_open(m->template, CHAT_FORM_OWN, or_empty(prompt->data), prompt->len, &sink,
                         &reader, err))
        return err->status;
    text_init(&call);
    const bool thinks = chat_reader_thinks(reader, &begin, &end);
    text_printf(&call, "%s%sf%s{}%s", thinks ? end : "", f->before, f->between, f->after);
    chat_reader_push(reader, or_empty(call.data), call.len);
    const oato_status status =
        call.failed ? oato_fail_memory(err, 200, "a call") : chat_reader_end(reader, false, err);
    *is = trial.right && trial.calls == 1;
    chat_reader_free(reader);
    text_free(&call);
    return status;
}

/* NULL, and err says why. */
static const struct call_form *form_find(const struct instance *m, const struct text *prompt,
                                         struct oato_error *err)
{
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        bool is = false;
        if (form_try(m, &forms[i], prompt, &is, err))
            return NULL;
        if (is)
            return &forms[i];
    }
    oato_fail(err, OATO_EUSAGE,
              "no grammar is known for the calls of this model; tool_choice \"auto\" and \"none\" "
              "are supported");
    return NULL;
}

/* The call of one tool. Texts are of malloc. */
static bool piece_make(struct grammar_piece *p, const struct call_form *f, const json_t *function)
{
    const json_t *schema = json_object_get(function, "parameters");
    struct text before;
    text_init(&before);
    text_printf(&before, "%s%s%s", f->before, json_string_value(json_object_get(function, "name")),
                f->between);
    p->before = before.data;
    p->schema = schema && !json_is_null(schema)
                    ? json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY)
                    : strdup("{\"type\":\"object\",\"additionalProperties\":false}");
    p->after = f->after;
    return !before.failed && p->schema;
}

oato_status calls_constrain(struct job *j, const json_t *tools, const char *only, bool several,
                            const struct text *prompt, struct oato_error *err)
{
    const struct call_form *form = form_find(j->instance, prompt, err);
    if (!form)
        return err->status;
    struct grammar_piece *pieces = calloc(json_array_size(tools) + 1, sizeof *pieces);
    const json_t *tool;
    size_t i, n = 0;
    bool good = pieces != NULL;
    oato_status status = OATO_OK;
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(function, "name"));
        if (!status && name[strspn(name, NAME_CHARS)])
            status =
                oato_fail(err, OATO_EUSAGE,
                          "a function that must be called has a name of letters, digits, _ and "
                          "-, not \"%.80s\"",
                          name);
        if (!status && good && (!only || !strcmp(name, only)))
            good = piece_make(&pieces[n++], form, function);
    }
    if (!status && !good)
        status = oato_fail_memory(err, 1 << 16, "the tools");
    if (!status && !n)
        status = oato_fail(err, OATO_EUSAGE, "tool_choice names a function that tools has not");
    if (!status && j->ask.grammar)
        status = oato_fail(err, OATO_EUSAGE,
                           "give either a tool_choice that must be kept or a grammar, not both");
    if (!status && j->ask.ignore_end)
        status = oato_fail(err, OATO_EUSAGE,
                           "ignore_eos goes on after the call that is asked for; leave it out");
    if (!status)
        status = grammar_of_pieces(pieces, n, several, &j->ask.budget, &j->ask.grammar, err);
    for (i = 0; i < n; i++) {
        free((char *)pieces[i].before);
        free((char *)pieces[i].schema);
    }
    free(pieces);
    return status;
}
