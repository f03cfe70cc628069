/*
 * dialect.c - what the interfaces of several makers have in common: messages in OpenAI's form made
 * piece by piece, and an answer as a list of parts, whole or as it comes.
 */
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------- requests --- */

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

void members_copy(json_t *to, const json_t *from, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        json_object_set(to, names[i], (json_t *)json_given(from, names[i])); /* not of NULL */
}

void thinking_set(const struct exchange *x, json_t *request, bool on)
{
    const struct chat_template *template = x->instance->template;
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

void effort_set(json_t *request, const json_t *effort)
{
    static const char *const efforts[][2] = {{"minimal", "low"},   {"low", "low"},
                                             {"medium", "medium"}, {"high", "high"},
                                             {"xhigh", "high"},    {"max", "high"}};
    for (size_t i = 0; i < ARRAY_LEN(efforts); i++)
        if (json_is(effort, efforts[i][0]))
            json_object_set_new(request, "reasoning_effort", json_string(efforts[i][1]));
}

oato_status format_set(json_t *request, const json_t *format, struct oato_error *err)
{
    const json_t *type = json_object_get(format, "type");
    if (!format || json_is_null(format) || json_is(type, "text"))
        return OATO_OK;
    if (!json_is_one(type, "json_object json_schema"))
        return oato_fail(err, OATO_EUSAGE,
                         "a format wants the type text, json_object or json_schema");
    json_object_set_new(request, "response_format",
                        json_pack("{s:O, s:{s:O*}}", "type", type, "json_schema", "schema",
                                  json_object_get(format, "schema")));
    return OATO_OK;
}

/* --------------------------------------------------------------------------------- answers --- */

const char *job_digits(const struct job *j)
{
    return j->ask.id + strlen("chatcmpl-");
}

struct part_view part_at(const struct choice *c, size_t index)
{
    const struct part *p = &c->parts[index];
    if (p->kind == PART_CALL) {
        const struct call *call = &c->calls[p->from];
        return (struct part_view){p->kind, call->name, or_empty(call->arguments.data),
                                  call->arguments.len};
    }
    const struct text *all = p->kind == PART_THINKS ? &c->thinks : &c->says;
    size_t next = index + 1;
    while (next < c->n_parts && c->parts[next].kind != p->kind)
        next++;
    const size_t end = next < c->n_parts ? c->parts[next].from : all->len;
    return (struct part_view){p->kind, NULL, or_empty(all->data) + p->from, end - p->from};
}

bool part_next(struct choice *c, struct part_piece *p)
{
    const size_t index = c->sent_parts;
    struct call_piece call = {0};
    if (index == c->n_parts)
        return false;
    *p = (struct part_piece){
        .index = index, .part = part_at(c, index), .begins = !c->part_begun, .ends = c->ended};
    if (p->part.kind == PART_CALL) {
        if (call_next(c, &call)) {
            p->text = call.arguments;
            p->n = call.n;
        }
        p->ends = p->ends || call.ended;
    } else {
        size_t *sent = p->part.kind == PART_THINKS ? &c->sent_thinks : &c->sent_says;
        const size_t from = *sent - c->parts[index].from;
        p->text = p->part.text + from;
        p->n = p->part.n - from;
        *sent += p->n;
    }
    p->ends = p->ends || index + 1 < c->n_parts;
    if (!p->begins && !p->n && !p->ends)
        return false;
    c->part_begun = !p->ends;
    c->sent_parts += p->ends;
    return true;
}

enum MHD_Result reply_value(struct exchange *x, json_t *value)
{
    struct text t;
    text_init(&t);
    value_write(&t, value);
    return reply_json(x, &t);
}

void value_event(struct text *out, json_t *event)
{
    text_printf(out,
                "event: %s\ndata: ", or_empty(json_string_value(json_object_get(event, "type"))));
    value_write(out, event);
    text_printf(out, "\n\n");
}
