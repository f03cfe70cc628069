/*
 * chat_messages.c - conversations in the form of OpenAI's chats, made piece by piece.
 */
#include "text/chat_messages.h"
#include "text/json_values.h"

#include <jansson.h>

json_t *message_of(json_t *messages, const char *role)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (json_is(json_object_get(last, "role"), role))
        return last;
    json_t *new = json_pack("{s:s, s:[]}", "role", role, "content");
    return json_array_append_new(messages, new) ? NULL : new;
}

/* The list that is this member, which is made where it is missing. */
static json_t *list_of(json_t *o, const char *key)
{
    if (!json_object_get(o, key))
        json_object_set_new(o, key, json_array());
    return json_object_get(o, key);
}

json_t *message_of_result(json_t *messages, const json_t *id)
{
    json_t *new = json_pack("{s:s, s:O*, s:[]}", "role", "tool", "tool_call_id", id, "content");
    return json_array_append_new(messages, new) ? NULL : new;
}

void message_part(json_t *message, const char *key, const json_t *text)
{
    json_t *parts = list_of(message, key);
    if (json_string_length(text))
        json_array_append_new(parts, json_pack("{s:s, s:O}", "type", "text", "text", text));
}

void message_calls(json_t *message, const json_t *id, const json_t *name, const json_t *arguments)
{
    json_array_append_new(list_of(message, "tool_calls"),
                          json_pack("{s:O*, s:s, s:{s:O*, s:O*}}", "id", id, "type", "function",
                                    "function", "name", name, "arguments", arguments));
}

void tool_add(json_t *tools, const json_t *name, const json_t *description, const json_t *schema)
{
    json_array_append_new(tools, json_pack("{s:s, s:{s:O*, s:O*, s:O*}}", "type", "function",
                                           "function", "name", name, "description", description,
                                           "parameters", schema));
}

void thinking_set(const struct chat_template *template, json_t *request, bool on)
{
    if (!template || !chat_template_is_program(template)) /* a named format has no variables */
        return;
    if (!json_is_object(json_object_get(request, "chat_template_kwargs")))
        json_object_set_new(request, "chat_template_kwargs", json_object());
    json_object_set_new(json_object_get(request, "chat_template_kwargs"), "enable_thinking",
                        json_boolean(on));
}

void choice_set(json_t *request, const json_t *name)
{
    json_object_set_new(request, "tool_choice",
                        json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
}

oato_status effort_set(json_t *request, const char *member, const json_t *effort,
                       struct oato_error *err)
{
    static const char *const efforts[][2] = {{"minimal", "low"},   {"low", "low"},
                                             {"medium", "medium"}, {"high", "high"},
                                             {"xhigh", "high"},    {"max", "high"}};
    size_t i = 0;
    if (!effort || json_is_null(effort))
        return OATO_OK;
    while (i < ARRAY_LEN(efforts) && !json_is(effort, efforts[i][0]))
        i++;
    if (i == ARRAY_LEN(efforts))
        return oato_fail(
            err, OATO_EUSAGE,
            "%s can be \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\"", member);
    json_object_set_new(request, "reasoning_effort", json_string(efforts[i][1]));
    return OATO_OK;
}

oato_status format_set(json_t *request, const char *name, const json_t *format,
                       struct oato_error *err)
{
    const json_t *type = json_object_get(format, "type");
    if (!format || json_is_null(format) || json_is(type, "text"))
        return OATO_OK;
    if (!json_is_one(type, "json_object json_schema"))
        return oato_fail(err, OATO_EUSAGE, "%s wants the type text, json_object or json_schema",
                         name);
    json_object_set_new(request, "response_format",
                        json_pack("{s:O, s:{s:O*}}", "type", type, "json_schema", "schema",
                                  json_object_get(format, "schema")));
    return OATO_OK;
}

static const json_t *role_at(const json_t *messages, size_t i)
{
    return json_object_get(json_array_get(messages, i), "role");
}

bool conversation_cut(json_t *messages, double part)
{
    const size_t n = json_array_size(messages);
    size_t first = 0, bytes = 0, gone = 0;
    while (first < n && json_is_one(role_at(messages, first), "system developer"))
        first++;
    for (size_t i = first; i < n; i++)
        bytes += json_dumpb(json_array_get(messages, i), NULL, 0, 0);
    size_t end = first;
    while (end + 1 < n && (!gone || (double)gone < part * (double)bytes ||
                           json_is(role_at(messages, end), "tool")))
        gone += json_dumpb(json_array_get(messages, end++), NULL, 0, 0);
    for (; end > first; end--)
        json_array_remove(messages, first);
    return gone > 0;
}
