/*
 * anthropic.c - Anthropic's /v1/messages and its count of tokens. A request becomes one of OpenAI's
 * chats: blocks become messages, tools functions; an answer's parts become blocks, and a stream has
 * the events that Anthropic documents, in their order.
 */
#include "server/server_internal.h"

#include <string.h>

/* -------------------------------------------------------------------------------- requests --- */

static bool is(const json_t *text, const char *word)
{
    return json_is_string(text) && !strcmp(json_string_value(text), word);
}

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
    message_says(message, content);
    json_array_foreach(content, i, block)
    {
        const json_t *text = json_object_get(block, "text");
        if (!is(json_object_get(block, "type"), "text") || !json_is_string(text))
            return unread(block, err);
        if (!is_noise(text))
            message_says(message, text);
    }
    return OATO_OK;
}

static oato_status block_take(json_t *messages, const char *role, const json_t *block,
                              struct oato_error *err)
{
    const json_t *type = json_object_get(block, "type"), *text = json_object_get(block, "text");
    const json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name");
    if (is(type, "text") && json_is_string(text))
        message_says(message_of(messages, role), text);
    else if (is(type, "thinking"))
        message_thinks(message_of(messages, role), json_object_get(block, "thinking"));
    else if (is(type, "tool_use") && json_is_string(name))
        message_calls(message_of(messages, role), id, name, json_object_get(block, "input"));
    else if (is(type, "tool_result"))
        return texts_take(message_of_result(messages, json_object_get(block, "tool_use_id")),
                          json_object_get(block, "content"), err);
    else if (!is(type, "redacted_thinking"))
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
        if ((!is(role, "user") && !is(role, "assistant") && !is(role, "system")) ||
            (!json_is_string(content) && !json_is_array(content)))
            return oato_fail(err, OATO_EUSAGE,
                             "message %zu wants the role user, assistant or system, and content "
                             "that is a text or a list of blocks",
                             at + 1);
        if (!json_array_size(content))
            message_says(message_of(messages, json_string_value(role)), content);
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
        if (type && !json_is_null(type) && !is(type, "custom"))
            return oato_fail(err, OATO_EUSAGE,
                             "tool %zu has the type \"%.80s\", which is not supported here; give "
                             "it an input_schema and no type",
                             i + 1, or_empty(json_string_value(type)));
        if (!json_is_string(name) || !json_is_object(json_object_get(tool, "input_schema")))
            return oato_fail(err, OATO_EUSAGE, "tool %zu wants a name and an input_schema", i + 1);
        tool_add(tools, name, json_object_get(tool, "description"),
                 json_object_get(tool, "input_schema"));
    }
    return OATO_OK;
}

/* One call at a time, unless several are asked for: that is one of the answers either way. */
static oato_status choice_take(json_t *request, const json_t *choice, struct oato_error *err)
{
    const json_t *type = json_object_get(choice, "type"), *name = json_object_get(choice, "name");
    if (is(type, "auto") || is(type, "none"))
        json_object_set(request, "tool_choice", (json_t *)type);
    else if (is(type, "any"))
        json_object_set_new(request, "tool_choice", json_string("required"));
    else if (is(type, "tool") && json_is_string(name))
        json_object_set_new(
            request, "tool_choice",
            json_pack("{s:s, s:{s:O}}", "type", "function", "function", "name", name));
    else
        return oato_fail(err, OATO_EUSAGE,
                         "tool_choice wants the type auto, any, none, or tool with a name");
    if (json_is_false(json_object_get(choice, "disable_parallel_tool_use")))
        json_object_set_new(request, "parallel_tool_calls", json_true());
    return OATO_OK;
}

/* A schema that the answer follows, of "output_config" or, as it was called before, by itself. */
static oato_status format_take(json_t *request, const json_t *format, struct oato_error *err)
{
    if (!format || json_is_null(format))
        return OATO_OK;
    if (!is(json_object_get(format, "type"), "json_schema"))
        return oato_fail(err, OATO_EUSAGE, "output_config.format wants the type json_schema");
    json_object_set_new(request, "response_format",
                        json_pack("{s:s, s:{s:O*}}", "type", "json_schema", "json_schema", "schema",
                                  json_object_get(format, "schema")));
    return OATO_OK;
}

static oato_status thinking_take(struct exchange *x, json_t *request, struct oato_error *err)
{
    const json_t *thinking = json_object_get(x->json, "thinking");
    const json_t *type = json_object_get(thinking, "type");
    if (!json_is_object(thinking))
        return OATO_OK;
    if (!is(type, "enabled") && !is(type, "disabled") && !is(type, "adaptive") &&
        !is(type, "between_tools"))
        return oato_fail(err, OATO_EUSAGE, "thinking wants the type enabled, adaptive or disabled");
    thinking_set(x, request, !is(type, "disabled"));
    x->kept = json_pack("{s:b}", "omits", is(json_object_get(thinking, "display"), "omitted"));
    return OATO_OK;
}

static oato_status rest_take(struct exchange *x, json_t *request, struct oato_error *err)
{
    const json_t *o = x->json, *config = json_object_get(o, "output_config");
    const char *effort = effort_of(json_object_get(config, "effort"));
    json_t *stops = json_object_get(o, "stop_sequences");
    if (thinking_take(x, request, err) ||
        format_take(request, json_object_get(o, "output_format"), err) ||
        format_take(request, json_object_get(config, "format"), err))
        return err->status;
    if (effort)
        json_object_set_new(request, "reasoning_effort", json_string(effort));
    if (stops)
        json_object_set(request, "stop", stops);
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

/* Of random digits, as the answer's own. */
static const char *digits(const struct job *j)
{
    return j->ask.id + strlen("chatcmpl-");
}

static bool omits(const struct job *j)
{
    return json_is_true(json_object_get(j->ask.kept, "omits"));
}

static void usage_add(struct text *t, const struct choice *c)
{
    json_add_object(t, "usage", JSON("input_tokens", c->n_ids - c->cached),
                    JSON("cache_creation_input_tokens", 0),
                    JSON("cache_read_input_tokens", c->cached), JSON("output_tokens", c->n_tokens));
}

/* null: the answer has not ended. */
static void stop_add(struct text *t, const struct choice *c)
{
    const enum ending e = choice_ending(c);
    json_key(t, "stop_reason");
    text_printf(t, c->ended ? "\"%s\"" : "null", or_empty(ending_stop_reason(e)));
    if (c->ended && e == ENDING_WORD)
        json_add(t, JSON("stop_sequence", c->stop.hit));
    else
        value_add(t, "stop_sequence", NULL);
}

static void head_add(struct text *t, const struct job *j)
{
    json_key(t, "id");
    text_printf(t, "\"msg_%s\"", digits(j));
    json_add(t, JSON("type", "message"), JSON("role", "assistant"),
             JSON("model", (const char *)j->instance->name));
}

/* With its content, or as it begins. */
static void block_add(struct text *t, const char *key, const struct job *j, size_t index,
                      const struct part_view *p, bool all)
{
    const size_t n = all ? p->n : 0;
    json_open(t, key, '{');
    if (p->kind == PART_SAYS) {
        json_add(t, JSON("type", "text"));
        json_add_slice(t, "text", p->text, n);
    } else if (p->kind == PART_THINKS) {
        json_add(t, JSON("type", "thinking"));
        json_add_slice(t, "thinking", p->text, omits(j) ? 0 : n);
        json_key(t, "signature");
        text_printf(t, all ? "\"%s_%zu\"" : "\"\"", digits(j), index);
    } else {
        json_t *input = json_loadb(p->text, n, JSON_ALLOW_NUL, NULL);
        json_add(t, JSON("type", "tool_use"));
        json_key(t, "id");
        text_printf(t, "\"toolu_%s_%zu\"", digits(j), index);
        json_add(t, JSON("name", p->name));
        if (!json_is_object(input)) { /* the model may call with what is none */
            json_decref(input);
            input = n ? json_pack("{s:s%}", "input", p->text, n) : json_object();
        }
        value_add(t, "input", input);
        json_decref(input);
    }
    json_close(t, '}');
}

static void messages_whole(struct job *j, struct text *t)
{
    const struct choice *c = j->choices[0];
    json_open(t, NULL, '{');
    head_add(t, j);
    json_open(t, "content", '[');
    for (size_t i = 0; i < c->n_parts; i++) {
        const struct part_view p = part_at(c, i);
        if (p.whole) /* a call that the limit has cut is none */
            block_add(t, NULL, j, i, &p, true);
    }
    json_close(t, ']');
    stop_add(t, c);
    usage_add(t, c);
    json_close(t, '}');
}

static void type_begin(struct text *event, const char *type)
{
    text_init(event);
    json_open(event, NULL, '{');
    json_add(event, JSON("type", type));
}

static void event_end(struct text *out, const char *type, struct text *event)
{
    json_close(event, '}');
    event_named(out, type, event);
}

static void message_begin(struct job *j, struct choice *c, struct text *out)
{
    struct text e;
    type_begin(&e, "message_start");
    json_open(&e, "message", '{');
    head_add(&e, j);
    json_open(&e, "content", '[');
    json_close(&e, ']');
    value_add(&e, "stop_reason", NULL);
    value_add(&e, "stop_sequence", NULL);
    usage_add(&e, c);
    json_close(&e, '}');
    event_end(out, "message_start", &e);
}

static void delta_event(struct text *out, size_t index, const char *type, const char *key,
                        const char *s, size_t n)
{
    struct text e;
    type_begin(&e, "content_block_delta");
    json_add(&e, JSON("index", index));
    json_open(&e, "delta", '{');
    json_add(&e, JSON("type", type));
    json_add_slice(&e, key, s, n);
    json_close(&e, '}');
    event_end(out, "content_block_delta", &e);
}

static void piece_events(const struct job *j, const struct part_piece *p, struct text *out)
{
    static const char *const deltas[][2] = {[PART_THINKS] = {"thinking_delta", "thinking"},
                                            [PART_SAYS] = {"text_delta", "text"},
                                            [PART_CALL] = {"input_json_delta", "partial_json"}};
    const bool thinks = p->part.kind == PART_THINKS;
    struct text e;
    char signature[80];
    if (p->begins) {
        type_begin(&e, "content_block_start");
        json_add(&e, JSON("index", p->index));
        block_add(&e, "content_block", j, p->index, &p->part, false);
        event_end(out, "content_block_start", &e);
    }
    if (p->begins && !p->index) {
        type_begin(&e, "ping");
        event_end(out, "ping", &e);
    }
    if (p->n && !(thinks && omits(j)))
        delta_event(out, p->index, deltas[p->part.kind][0], deltas[p->part.kind][1], p->text, p->n);
    if (!p->ends)
        return;
    if (thinks) {
        const int n = snprintf(signature, sizeof signature, "%s_%zu", digits(j), p->index);
        delta_event(out, p->index, "signature_delta", "signature", signature, (size_t)n);
    }
    type_begin(&e, "content_block_stop");
    json_add(&e, JSON("index", p->index));
    event_end(out, "content_block_stop", &e);
}

static void messages_events(struct job *j, struct text *out)
{
    struct choice *c = j->choices[0];
    struct part_piece p;
    struct text e;
    if (!c->begun)
        message_begin(j, c, out);
    c->begun = true;
    while (part_next(c, &p))
        piece_events(j, &p, out);
    if (!c->ended || c->sent_end)
        return;
    c->sent_end = true;
    type_begin(&e, "message_delta");
    json_open(&e, "delta", '{');
    stop_add(&e, c);
    json_close(&e, '}');
    usage_add(&e, c);
    event_end(out, "message_delta", &e);
    type_begin(&e, "message_stop");
    event_end(out, "message_stop", &e);
}

static void messages_error(struct text *t, unsigned status, const char *message)
{
    static const struct {
        unsigned status;
        const char *type;
    } types[] = {{MHD_HTTP_UNAUTHORIZED, "authentication_error"},
                 {MHD_HTTP_FORBIDDEN, "permission_error"},
                 {MHD_HTTP_NOT_FOUND, "not_found_error"},
                 {MHD_HTTP_CONTENT_TOO_LARGE, "request_too_large"},
                 {MHD_HTTP_TOO_MANY_REQUESTS, "rate_limit_error"},
                 {MHD_HTTP_SERVICE_UNAVAILABLE, "overloaded_error"}};
    const char *type =
        status < MHD_HTTP_INTERNAL_SERVER_ERROR ? "invalid_request_error" : "api_error";
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        type = types[i].status == status ? types[i].type : type;
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
    event_named(out, "error", &e);
}

#define MESSAGES(of)                                                                               \
    {                                                                                              \
        .kind = ASK_CHAT, .request = (of), .whole = messages_whole, .events = messages_events,     \
        .failed = messages_failed, .error = messages_error, .stream_type = "text/event-stream",    \
        .id_header = "request-id", .unfit = "prompt is too long: "                                 \
    }
const struct dialect dialect_messages = MESSAGES(messages_request),
                     dialect_messages_count = MESSAGES(count_request);
