/*
 * chat_forms.c - forms in which models write calls whose arguments are JSON. Which one a model
 * uses, its reader tells: the one out of which it reads a call.
 */
#include "text/chat_tools.h"

#include <string.h>

#define JSON_CALL(begin, name, arguments, end)                                                     \
    {                                                                                              \
        begin "{\"" name "\": \"", "\", \"" arguments "\": ", "}" end                              \
    }

/* The first one is the generic one, too. */
static const struct chat_call_form forms[] = {
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

static oato_status form_try(const struct chat_template *c, const struct chat_call_form *f,
                            struct gguf_string prompt, bool *is, struct oato_error *err)
{
    struct trial trial = {.right = true};
    const struct chat_sink sink = {on_text, on_call, on_arguments, on_call_end, &trial};
    struct chat_reader *reader;
    struct text call;
    const char *begin, *end;
    if (chat_reader_open(c, CHAT_FORM_OWN, prompt.data, prompt.len, &sink, &reader, err))
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

oato_status chat_call_form_find(const struct chat_template *c, enum chat_form form,
                                const char *prompt, size_t n, const struct chat_call_form **out,
                                struct oato_error *err)
{
    *out = form == CHAT_FORM_GENERIC ? &forms[0] : NULL;
    for (size_t i = 0; i < ARRAY_LEN(forms) && !*out; i++) {
        bool is = false;
        if (form_try(c, &forms[i], (struct gguf_string){prompt, n}, &is, err))
            return err->status;
        *out = is ? &forms[i] : NULL;
    }
    return OATO_OK;
}
