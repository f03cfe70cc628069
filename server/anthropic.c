/*
 * anthropic.c - Anthropic's /v1/messages and its count of tokens. A request becomes one of OpenAI's
 * chats: blocks become messages, tools functions; an answer's parts become blocks, and a stream has
 * the events that Anthropic documents, in their order.
 */
#include "server/server_internal.h"

#include <string.h>

/* -------------------------------------------------------------------------------- requests --- */

/* Claude Code begins the system prompt with a line that is another one in each request, so that no
 * prompt would ever begin as one before it did. */
static bool is_noise(const json_t *text)
{
    static const char begin[] = "x-anthropic-billing-header:";
    return json_is_string(text) && !strncmp(json_string_value(text), begin, sizeof begin - 1);
}

static oato_status unread(const json_t *block, struct oato_error *err)
{
    const json_t *type = json_object_get(block, "type");
    return oato_fail(err, OATO_EUSAGE,
                     "content of the type \"%.80s\" is not supported here; this server reads text, "
                     "thinking, tool_use and tool_result",
                     or_empty(json_string_value(type)));
}

/* A text, or a list of text blocks. */
static oato_status texts_take(json_t *message, const json_t *content, struct oato_error *err)
{
    const json_t *block;
    size_t i;
    if (content && !json_is_string(content) && !json_is_array(content) && !json_is_null(content))
        return oato_fail(
            err, OATO_EUSAGE,
            "the content of system and of tool_result wants a text or a list of blocks");
    message_part(message, "content", content);
    json_array_foreach(content, i, block)
    {
        const json_t *type = json_object_get(block, "type");
        const bool tool = json_is(type, "tool_reference"); /* found: all tools are told anyway */
        const json_t *text = json_object_get(block, tool ? "tool_name" : "text");
        if ((!tool && !json_is(type, "text")) || !json_is_string(text))
            return unread(block, err);
        if (!is_noise(text))
            message_part(message, "content", text);
    }
    return OATO_OK;
}

static oato_status result_take(json_t *messages, const json_t *block, struct oato_error *err)
{
    json_t *message = message_of_result(messages, json_object_get(block, "tool_use_id"));
    json_t *error = json_is_true(json_object_get(block, "is_error")) ? json_string("Error:") : NULL;
    message_part(message, "content", error);
    json_decref(error);
    return texts_take(message, json_object_get(block, "content"), err);
}

static oato_status block_take(json_t *messages, const char *role, const json_t *block,
                              struct oato_error *err)
{
    const json_t *type = json_object_get(block, "type"), *text = json_object_get(block, "text");
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name");
    if (json_is(type, "text") && json_is_string(text))
        message_part(message_of(messages, role), "content", text);
    else if (json_is(type, "thinking"))
        message_part(message_of(messages, role), "reasoning_content",
                     json_object_get(block, "thinking"));
    else if (json_is(type, "tool_use") && json_is_string(name))
        message_calls(message_of(messages, role), id, name, json_object_get(block, "input"));
    else if (json_is(type, "tool_result"))
        return result_take(messages, block, err);
    else if (!json_is(type, "redacted_thinking"))
        return unread(block, err);
    return OATO_OK;
}

static oato_status messages_take(json_t *messages, const json_t *all, struct oato_error *err)
{
    const json_t *message, *block;
    size_t at, i;
    if (!json_array_size(all))
        return oato_fail(err, OATO_EUSAGE, "messages wants a list of at least one message");
    json_array_foreach(all, at, message)
    {
        const json_t *role = json_object_get(message, "role");
        const json_t *content = json_object_get(message, "content");
        if (!json_is_one(role, "user assistant system") ||
            (!json_is_string(content) && !json_is_array(content)))
            return oato_fail(err, OATO_EUSAGE,
                             "message %zu wants the role user, assistant or system, and content "
                             "that is a text or a list of blocks",
                             at + 1);
        if (!json_array_size(content))
            message_part(message_of(messages, json_string_value(role)), "content", content);
        json_array_foreach(content, i, block)
        {
            if (block_take(messages, json_string_value(role), block, err))
                return err->status;
        }
    }
    return OATO_OK;
}

static oato_status tools_take(json_t *request, const json_t *all, struct oato_error *err)
{
    json_t *tools = json_array();
    const json_t *tool;
    size_t i;
    json_object_set_new(request, "tools", tools);
    json_array_foreach(all, i, tool)
    {
        const json_t *type = json_object_get(tool, "type"), *name = json_object_get(tool, "name");
        if (type && !json_is_null(type) && !json_is(type, "custom"))
            return oato_fail(err, OATO_EUSAGE,
                             "tools[%zu] has the type \"%.80s\", which is not supported here; give "
                             "it an input_schema and no type",
                             i, or_empty(json_string_value(type)));
        if (!json_is_string(name) || !json_is_object(json_object_get(tool, "input_schema")))
            return oato_fail(err, OATO_EUSAGE, "tools[%zu] wants a name and an input_schema", i);
        tool_add(tools, name, json_object_get(tool, "description"),
                 json_object_get(tool, "input_schema"));
    }
    return OATO_OK;
}

/* A forced call is one, unless several are asked for: that is one of the answers either way. */
static oato_status choice_take(json_t *request, const json_t *choice, struct oato_error *err)
{
    const json_t *type = json_object_get(choice, "type"), *name = json_object_get(choice, "name");
    if (json_is_one(type, "auto none"))
        json_object_set(request, "tool_choice", (json_t *)type);
    else if (json_is(type, "any"))
        json_object_set_new(request, "tool_choice", json_string("required"));
    else if (json_is(type, "tool") && json_is_string(name))
        choice_set(request, name);
    else
        return oato_fail(err, OATO_EUSAGE,
                         "tool_choice wants the type auto, any, none, or tool with a name");
    const json_t *alone = json_given(choice, "disable_parallel_tool_use");
    if (alone && !json_is_boolean(alone))
        return oato_fail(err, OATO_EUSAGE, "disable_parallel_tool_use wants true or false");
    if (alone)
        json_object_set_new(request, "parallel_tool_calls", json_boolean(json_is_false(alone)));
    return OATO_OK;
}

static oato_status thinking_take(struct exchange *x, json_t *request, struct oato_error *err)
{
    const json_t *thinking = json_object_get(x->json, "thinking");
    const json_t *type = json_object_get(thinking, "type");
    int64_t most = -1;
    if (!json_is_object(thinking))
        return OATO_OK;
    if (json_int(thinking, "budget_tokens", 1, INT32_MAX, &most, err))
        return err->status;
    if (most > 0 && json_is(type, "enabled"))
        json_object_set_new(request, "reasoning_budget_tokens", json_integer(most));
    if (!json_is_one(type, "enabled disabled adaptive between_tools"))
        return oato_fail(err, OATO_EUSAGE, "thinking wants the type enabled, adaptive or disabled");
    thinking_set(x->instance->template, request, !json_is(type, "disabled"));
    return OATO_OK;
}

static oato_status rest_take(struct exchange *x, json_t *request, struct oato_error *err)
{
    const json_t *o = x->json, *config = json_object_get(o, "output_config");
    if (thinking_take(x, request, err) ||
        format_set(request, "output_format", json_object_get(o, "output_format"), err) ||
        format_set(request, "output_config.format", json_object_get(config, "format"), err) ||
        effort_set(request, "effort", json_object_get(config, "effort"), err))
        return err->status;
    json_object_set(request, "stop", json_object_get(o, "stop_sequences"));
    json_object_del(request, "tool_choice");
    json_object_del(request, "tools");
    if (json_array_size(json_object_get(o, "tools")) &&
        tools_take(request, json_object_get(o, "tools"), err))
        return err->status;
    return json_is_object(json_object_get(o, "tool_choice"))
               ? choice_take(request, json_object_get(o, "tool_choice"), err)
               : OATO_OK;
}

static oato_status count_request(struct exchange *x, struct oato_error *err)
{
    json_t *messages = json_array(), *request = json_copy(x->json);
    oato_status status = request_members(x->json, ASK_MESSAGES, 0, NULL, err);
    if (!status)
        status =
            texts_take(message_of(messages, "system"), json_object_get(x->json, "system"), err);
    if (!json_array_size(json_object_get(json_array_get(messages, 0), "content")))
        json_array_clear(messages);
    if (!status)
        status = messages_take(messages, json_object_get(x->json, "messages"), err);
    if (!status)
        status = rest_take(x, request, err);
    json_object_set_new(request, "messages", messages);
    json_object_del(request, "n");
    json_decref(x->json);
    x->json = request;
    return status;
}

static oato_status messages_request(struct exchange *x, struct oato_error *err)
{
    const json_t *most = json_object_get(x->json, "max_tokens");
    return !most || json_is_null(most)
               ? oato_fail(err, OATO_EUSAGE, "max_tokens is missing; it is required")
               : count_request(x, err);
}

/* --------------------------------------------------------------------------------- answers --- */

static json_t *usage_of(const struct choice *c)
{
    return json_pack("{s:i, s:i, s:i, s:I}", "input_tokens", c->n_ids - c->cached,
                     "cache_creation_input_tokens", 0, "cache_read_input_tokens", c->cached,
                     "output_tokens", (json_int_t)c->n_tokens);
}

/* With its content, or as it begins. */
static json_t *block_of(const struct job *j, size_t index, bool all)
{
    const struct part_view p = part_at(j->choices[0], index);
    const size_t n = all ? p.n : 0;
    if (p.kind == PART_SAYS)
        return json_pack("{s:s, s:o}", "type", "text", "text", text_value(p.text, n));
    if (p.kind == PART_THINKS)
        return json_pack("{s:s, s:o, s:o}", "type", "thinking", "thinking", text_value(p.text, n),
                         "signature",
                         all ? json_sprintf("%s_%zu", job_digits(j), index) : json_string(""));
    return json_pack("{s:s, s:o, s:s, s:o}", "type", "tool_use", "id",
                     json_sprintf("toolu_%s_%zu", job_digits(j), index), "name", p.name, "input",
                     n ? arguments_value(p.text, n, "input") : json_object());
}

/* A call that the limit has cut is none. */
static bool is_cut(const struct choice *c, const struct part_view *p)
{
    const enum ending e = choice_ending(c);
    return !p->whole && (e == ENDING_LIMIT || e == ENDING_CONTEXT || e == ENDING_WORD);
}

/* The message, or what is known of it when it begins. */
static json_t *message_value(const struct job *j, bool all)
{
    const struct choice *c = j->choices[0];
    json_t *content = json_array();
    for (size_t i = 0; i < c->n_parts && all; i++) {
        const struct part_view p = part_at(c, i);
        if (!is_cut(c, &p))
            json_array_append_new(content, block_of(j, i, true));
    }
    return json_pack("{s:o, s:s, s:s, s:s, s:o, s:s?, s:s?, s:o}", "id",
                     json_sprintf("msg_%s", job_digits(j)), "type", "message", "role", "assistant",
                     "model", j->instance->name, "content", content, "stop_reason",
                     all ? ending_stop_reason(choice_ending(c)) : NULL, "stop_sequence",
                     all ? c->stop.hit : NULL, "usage", usage_of(c));
}

static void messages_whole(struct job *j, struct text *t)
{
    value_write(t, message_value(j, true));
}

static void delta_event(struct text *out, size_t index, const char *type, const char *key,
                        json_t *value)
{
    value_event(out, json_pack("{s:s, s:I, s:{s:s, s:o}}", "type", "content_block_delta", "index",
                               (json_int_t)index, "delta", "type", type, key, value));
}

static void piece_events(const struct job *j, const struct part_piece *p, struct text *out)
{
    static const char *const deltas[][2] = {[PART_THINKS] = {"thinking_delta", "thinking"},
                                            [PART_SAYS] = {"text_delta", "text"},
                                            [PART_CALL] = {"input_json_delta", "partial_json"}};
    const json_int_t index = (json_int_t)p->index;
    if (p->begins)
        value_event(out, json_pack("{s:s, s:I, s:o}", "type", "content_block_start", "index", index,
                                   "content_block", block_of(j, p->index, false)));
    if (p->begins && !index)
        value_event(out, json_pack("{s:s}", "type", "ping"));
    if (p->n)
        delta_event(out, p->index, deltas[p->part.kind][0], deltas[p->part.kind][1],
                    text_value(p->text, p->n));
    if (p->ends && p->part.kind == PART_THINKS)
        delta_event(out, p->index, "signature_delta", "signature",
                    json_sprintf("%s_%zu", job_digits(j), p->index));
    if (p->ends)
        value_event(out, json_pack("{s:s, s:I}", "type", "content_block_stop", "index", index));
}

static void messages_events(struct job *j, struct text *out)
{
    struct choice *c = j->choices[0];
    struct part_piece p;
    if (!c->begun)
        value_event(out, json_pack("{s:s, s:o}", "type", "message_start", "message",
                                   message_value(j, false)));
    c->begun = true;
    while (part_next(c, &p))
        piece_events(j, &p, out);
    if (!c->ended || c->sent_end)
        return;
    c->sent_end = true;
    value_event(out, json_pack("{s:s, s:{s:s?, s:s?}, s:o}", "type", "message_delta", "delta",
                               "stop_reason", ending_stop_reason(choice_ending(c)), "stop_sequence",
                               c->stop.hit, "usage", usage_of(c)));
    value_event(out, json_pack("{s:s}", "type", "message_stop"));
}

static void messages_error(struct text *t, unsigned status, const char *message)
{
    const char *type = status == MHD_HTTP_CONTENT_TOO_LARGE       ? "request_too_large"
                       : status == MHD_HTTP_SERVICE_UNAVAILABLE   ? "overloaded_error"
                       : status >= MHD_HTTP_INTERNAL_SERVER_ERROR ? "api_error"
                                                                  : error_type(status);
    json_open(t, NULL, '{');
    json_add(t, JSON("type", "error"));
    json_add_object(t, "error", JSON("type", type), JSON("message", message));
    json_close(t, '}');
}

static void messages_failed(struct job *j, struct text *out)
{
    struct text e;
    text_init(&e);
    messages_error(&e, job_status(j), j->error.text);
    text_printf(out, "event: error\n");
    event_write(out, &e);
}

#define MESSAGES(of)                                                                               \
    {                                                                                              \
        .kind = ASK_CHAT, .request = (of), .whole = messages_whole, .events = messages_events,     \
        .failed = messages_failed, .error = messages_error, .stream_type = "text/event-stream",    \
        .id_header = "request-id", .too_long = "prompt is too long: "                              \
    }
const struct dialect dialect_messages = MESSAGES(messages_request),
                     dialect_messages_count = MESSAGES(count_request);
