/*
 * chat_must.c - answers that must call a function: a grammar of the tools' schemas, in the form in
 * which the model calls.
 */
#include "text/chat_prompt.h"
#include "text/chat_tools.h"
#include "text/json_values.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define NAME_CHARS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"

/* Arguments are an object, whatever else the schema would let through: a new reference to what it
 * has of objects. NULL: nothing. */
static json_t *objects_of(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *one;
    bool is = !type || json_is(type, "object");
    size_t i;
    json_array_foreach(type, i, one) is = is || json_is(one, "object");
    if (!schema || json_is_null(schema))
        return json_pack("{s:s, s:b}", "type", "object", "additionalProperties", 0);
    if (!json_is_object(schema) || !is || json_object_get(schema, "enum") ||
        json_object_get(schema, "const"))
        return NULL;
    json_t *only = json_copy((json_t *)schema);
    json_object_set_new(only, "type", json_string("object"));
    return only;
}

/* The call of one tool. Texts are of malloc. */
static bool piece_make(struct grammar_piece *p, const struct chat_call_form *f, const char *name,
                       const json_t *schema)
{
    struct text before;
    text_init(&before);
    text_printf(&before, "%s%s%s", f->before, name, f->between);
    p->before = before.data;
    p->schema = json_dumps(schema, JSON_COMPACT);
    p->after = f->after;
    p->name = name;
    return !before.failed && p->schema;
}

oato_status chat_calls_grammar(const struct chat_request *r, enum chat_form form,
                               const struct text *prompt, struct grammar **out,
                               struct oato_error *err)
{
    const json_t *tools = json_object_get(r->json, "tools"), *tool;
    const bool several = json_is_true(json_object_get(r->json, "parallel_tool_calls"));
    const struct chat_call_form *f;
    const char *only;
    chat_must_call(r->json, &only);
    if (chat_call_form_find(r->template, form, or_empty(prompt->data), prompt->len, &f, err))
        return err->status;
    struct grammar_piece *pieces = calloc(json_array_size(tools) + 1, sizeof *pieces);
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
        const bool meant = !status && good && (!only || !strcmp(name, only));
        const json_t *parameters = json_object_get(function, "parameters");
        json_t *objects = meant ? objects_of(parameters) : NULL;
        if (meant && !objects)
            status = oato_fail(err, OATO_EUSAGE, "the parameters of %s want a schema of an object",
                               name);
        else if (meant)
            good = piece_make(&pieces[n++], f, name, objects);
        json_decref(objects);
    }
    if (!status && !good)
        status = oato_fail_memory(err, 1 << 16, "the tools");
    if (!status && !n)
        status = oato_fail(err, OATO_EUSAGE, "tool_choice names a function that tools has not");
    if (!status)
        status = grammar_of_pieces(pieces, n, several, r->budget, out, err);
    for (i = 0; i < n; i++) {
        free((char *)pieces[i].before);
        free((char *)pieces[i].schema);
    }
    free(pieces);
    return status;
}
