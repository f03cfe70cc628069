/*
 * chat_tools.c - the generic form of calls, for templates that show none: tools and how to call
 * them are told in the system message, calls and their results in the history are texts of the
 * assistant and of the user. So the template sees only roles and texts, which all templates know.
 */
#include "text/chat_tools.h"
#include "text/json_values.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void dump_add(struct text *t, const char *before, const json_t *value, const char *after)
{
    text_printf(t, "%s", before);
    value_add(t, value ? value : json_null(), true);
    text_printf(t, "%s", after);
}

static void tools_add(struct text *t, const json_t *tools, bool several)
{
    const json_t *tool;
    size_t i;
    text_printf(t, "You can call functions. These are there, each with a JSON schema of its "
                   "arguments:\n<tools>\n");
    json_array_foreach(tools, i, tool)
    {
        dump_add(t, "", json_object_get(tool, "function"), "\n");
    }
    text_printf(t,
                "</tools>\nTo call one, answer with its name and its arguments as a JSON object, "
                "in this form:\n<tool_call>\n{\"name\": \"NAME\", \"arguments\": "
                "{\"PARAMETER\": VALUE}}\n</tool_call>\n");
    text_printf(t,
                "%s What it returns comes between <tool_response> and </tool_response>. Where no "
                "function is needed, answer without a call.",
                several ? "To call several, write several such forms." : "Call at most one.");
}

/* What a message says, and what it calls. */
static void content_add(struct text *t, const json_t *message)
{
    const json_t *content = json_object_get(message, "content"), *call;
    size_t i;
    text_add(t, or_empty(json_string_value(content)), json_string_length(content));
    json_array_foreach(json_object_get(message, "tool_calls"), i, call)
    {
        const json_t *function = json_object_get(call, "function");
        text_printf(t, "%s<tool_call>\n", t->len ? "\n" : "");
        dump_add(t, "{\"name\": ", json_object_get(function, "name"), "");
        dump_add(t, ", \"arguments\": ", json_object_get(function, "arguments"), "}\n</tool_call>");
    }
}

/* Appends a copy of a message (NULL: of none) with another content, which is emptied. */
static bool message_push(json_t *list, const json_t *like, const char *role, struct text *content)
{
    json_t *message = like ? json_copy((json_t *)like) : json_object();
    json_object_del(message, "tool_calls");
    const bool good =
        !content->failed && !json_object_set_new(message, "role", json_string(role)) &&
        !json_object_set_new(message, "content",
                             json_stringn_nocheck(or_empty(content->data), content->len));
    content->len = 0;
    return !json_array_append_new(list, message) && good;
}

/* The messages, with `front` behind the first one of the system, or where there is to be none in
 * front of the first one of the user. Results of tools, and what the user says then, are one. */
static bool messages_tell(json_t *list, const json_t *messages, const struct text *front,
                          bool no_system)
{
    const json_t *message;
    struct text t;
    bool good = true, placed = !front->len;
    size_t i;
    text_init(&t);
    json_array_foreach(messages, i, message)
    {
        const char *role = json_string_value(json_object_get(message, "role"));
        const bool user = !strcmp(role, "user"), system = !strcmp(role, "system");
        if (system && no_system)
            continue;
        if (!strcmp(role, "tool")) {
            text_printf(&t, "%s<tool_response>\n", t.len ? "\n" : "");
            content_add(&t, message);
            text_printf(&t, "\n</tool_response>");
            continue;
        }
        if (t.len && user)
            text_printf(&t, "\n");
        else if (t.len)
            good = message_push(list, NULL, "user", &t) && good;
        if (user && no_system && !placed)
            text_printf(&t, "%s\n\n", front->data);
        content_add(&t, message);
        if (system && !placed)
            text_printf(&t, "\n\n%s", front->data);
        placed = placed || system || (user && no_system);
        good = message_push(list, message, role, &t) && good;
    }
    if (t.len)
        good = message_push(list, NULL, "user", &t) && good;
    if (!placed) {
        json_t *first =
            json_pack("{s:s, s:s}", "role", no_system ? "user" : "system", "content", front->data);
        good = !json_array_insert_new(list, 0, first) && good;
    }
    text_free(&t);
    return good;
}

json_t *chat_tools_tell(const json_t *messages, const json_t *tools, bool several, bool no_system)
{
    json_t *list = json_array();
    const json_t *message;
    size_t i;
    struct text front;
    text_init(&front);
    json_array_foreach(messages, i, message)
    {
        if (!no_system ||
            strcmp(json_string_value(json_object_get(message, "role")), "system") != 0)
            continue;
        content_add(&front, message);
        text_printf(&front, "\n\n");
    }
    if (tools)
        tools_add(&front, tools, several);
    const bool good = list && !front.failed && messages_tell(list, messages, &front, no_system);
    text_free(&front);
    if (good)
        return list;
    json_decref(list);
    return NULL;
}

bool chat_tools_used(const json_t *messages)
{
    const json_t *message;
    size_t i;
    json_array_foreach(messages, i, message)
    {
        if (json_object_get(message, "tool_calls") ||
            !strcmp(json_string_value(json_object_get(message, "role")), "tool"))
            return true;
    }
    return false;
}

void chat_message_rename(const struct chat_template *c, json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    json_t *old = json_object_get(message, "function_call");
    const json_t *calls = json_object_get(message, "tool_calls");
    const bool developer = !strcmp(role, "developer") && !chat_template_mentions(c, "developer");
    const char *other = developer ? "system" : !strcmp(role, "function") ? "tool" : NULL;
    if (other) /* role is gone then */
        json_object_set_new(message, "role", json_string(other));
    if (json_is_object(old) && !json_array_size(calls))
        json_object_set_new(
            message, "tool_calls",
            json_pack("[{s:s, s:s, s:O}]", "id", "call_0", "type", "function", "function", old));
    else if (json_is_null(calls) || (json_is_array(calls) && !json_array_size(calls)))
        json_object_del(message, "tool_calls");
    json_object_del(message, "function_call");
}
