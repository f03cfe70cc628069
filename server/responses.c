/*
 * responses.c - what OpenAI's /v1/responses is asked for: items become messages of a chat, those of
 * the answer that a request goes on with before its own; tools become functions. And the answers
 * that are kept: told, deleted.
 */
#include "server/responses.h"
#include "server/server_internal.h"

#include <stdlib.h>
#include <string.h>

static oato_status unsupported(const char *what, const json_t *of, struct oato_error *err)
{
    const json_t *type = json_object_get(of, "type");
    return oato_fail(err, OATO_EUSAGE,
                     "%s of the type \"%.80s\" is not supported here; leave it out", what,
                     or_empty(json_string_value(type)));
}

/* ------------------------------------------------------------------------ what was answered --- */

/* {"response": .., "items": ..} of one that is kept, the caller's. */
static oato_status kept_load(struct exchange *x, const char *id, bool forget, json_t **kept,
                             struct oato_error *err)
{
    struct text t;
    text_init(&t);
    *kept = NULL;
    oato_status status =
        response_store_get(x->server->responses, x->client, id, forget, &t)
            ? json_afford(&x->budget, or_empty(t.data), t.len, err)
            : oato_fail(err, OATO_EUSAGE, "Response with id '%.80s' not found.", id);
    if (!status)
        *kept = json_loadb(or_empty(t.data), t.len, JSON_ALLOW_NUL, NULL);
    if (!status && !*kept)
        status = oato_fail_memory(err, t.len, "a response");
    text_free(&t);
    return status;
}

static const json_t *output_of(const json_t *kept)
{
    return json_object_get(json_object_get(kept, "response"), "output");
}

/* The item of an answer by its id, which has the answer's in it: TYPE_ANSWER_INDEX. */
static oato_status reference_load(struct exchange *x, const json_t *reference, json_t **item,
                                  struct oato_error *err)
{
    char id[48] = "resp_";
    const char *name = or_empty(json_string_value(json_object_get(reference, "id")));
    const char *digits = strchr(name, '_'), *index = strrchr(name, '_');
    json_t *kept = NULL;
    int64_t at = -1;
    if (digits && index > digits && index - digits < 40 && parse_i64(index + 1, 0, 1 << 20, &at))
        strncat(id, digits + 1, (size_t)(index - digits - 1));
    oato_status status = at >= 0 ? kept_load(x, id, false, &kept, err) : OATO_OK;
    *item = json_array_get(output_of(kept), (size_t)at);
    if (!status && !json_is(json_object_get(*item, "id"), name))
        status = oato_fail(err, OATO_EUSAGE, "item_reference: there is no item %.80s", name);
    json_incref(*item);
    json_decref(kept);
    return status;
}

/* ----------------------------------------------------------------------------------- items --- */

/* A text, or a list of parts that are texts. */
static oato_status parts_take(json_t *message, const json_t *content, struct oato_error *err)
{
    const json_t *part;
    size_t i;
    if (!json_is_string(content) && !json_is_array(content))
        return oato_fail(err, OATO_EUSAGE, "content and output want a text or a list of parts");
    message_part(message, "content", content);
    json_array_foreach(content, i, part)
    {
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        if (json_is(type, "refusal"))
            text = json_object_get(part, "refusal");
        else if (!json_is_one(type, "input_text output_text text") || !json_is_string(text))
            return unsupported("content", part, err);
        message_part(message, "content", text);
    }
    return OATO_OK;
}

static void reasoning_take(json_t *message, const json_t *item)
{
    const json_t *sealed = json_object_get(item, "encrypted_content"), *part;
    const json_t *content = json_object_get(item, "content");
    const size_t mark = strlen(REASONING_MARK);
    size_t i;
    json_array_foreach(content, i, part)
    {
        message_part(message, "reasoning_content", json_object_get(part, "text"));
    }
    if (json_array_size(content) || !json_is_string(sealed) ||
        strncmp(json_string_value(sealed), REASONING_MARK, mark) != 0)
        return;
    json_t *text = json_string(json_string_value(sealed) + mark);
    message_part(message, "reasoning_content", text);
    json_decref(text);
}

/* By the name that the chat knows a tool by. */
static json_t *tool_name(const json_t *in, const json_t *name)
{
    return json_is_string(in)
               ? json_sprintf("%s%s", json_string_value(in), or_empty(json_string_value(name)))
               : json_incref((json_t *)name);
}

static oato_status item_take(struct exchange *x, json_t *messages, const json_t *item,
                             struct oato_error *err)
{
    const json_t *type = json_object_get(item, "type"), *role = json_object_get(item, "role");
    const json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name");
    const bool custom = json_is(type, "custom_tool_call");
    const bool shell = json_is(type, "local_shell_call");
    if (json_is(type, "message") || (!type && json_is_string(role))) {
        if (!json_is_one(role, "user assistant system developer"))
            return oato_fail(err, OATO_EUSAGE,
                             "a message of input wants the role user, assistant, system or "
                             "developer");
        const char *as = json_is(role, "developer") ? "system" : json_string_value(role);
        return parts_take(message_of(messages, as), json_object_get(item, "content"), err);
    }
    if (json_is_one(type, "function_call_output custom_tool_call_output local_shell_call_output"))
        return parts_take(message_of_result(messages, id ? id : json_object_get(item, "id")),
                          json_object_get(item, "output"), err);
    if (json_is(type, "reasoning")) {
        reasoning_take(message_of(messages, "assistant"), item);
    } else if ((custom || json_is(type, "function_call")) && json_is_string(name)) {
        json_t *as = tool_name(json_object_get(item, "namespace"), name);
        json_t *arguments = custom ? json_pack("{s:O*}", "input", json_object_get(item, "input"))
                                   : json_incref(json_object_get(item, "arguments"));
        message_calls(message_of(messages, "assistant"), id, as, arguments);
        json_decref(arguments);
        json_decref(as);
    } else if (shell) { /* of another server, as all of them know it */
        json_t *as = json_string("local_shell");
        message_calls(message_of(messages, "assistant"), id, as, json_object_get(item, "action"));
        json_decref(as);
    } else if (json_is(type, "item_reference")) {
        json_t *found;
        oato_status status = reference_load(x, item, &found, err);
        if (!status)
            status = item_take(x, messages, found, err);
        json_decref(found);
        return status;
    } else if (!json_is(type, "web_search_call")) { /* has no results */
        return unsupported("an item of input", item, err);
    }
    return OATO_OK;
}

/* Items as they are told again: with an id and a type, the content of messages as a list. */
static void items_mend(json_t *items)
{
    const uint64_t now = now_ns();
    json_t *item;
    size_t i;
    json_array_foreach(items, i, item)
    {
        const json_t *content = json_object_get(item, "content");
        const bool ours = json_is(json_object_get(item, "role"), "assistant");
        const bool names = json_object_size(item) == 1 && json_object_get(item, "id");
        if (!json_object_get(item, "id"))
            json_object_set_new(item, "id",
                                json_sprintf("in_%llx_%zu", (unsigned long long)now, i));
        if (!json_object_get(item, "type"))
            json_object_set_new(item, "type", json_string(names ? "item_reference" : "message"));
        if (json_is_string(content))
            json_object_set_new(item, "content",
                                json_pack("[{s:s, s:O}]", "type",
                                          ours ? "output_text" : "input_text", "text", content));
    }
}

/* All items of the conversation, and what was answered to those before. */
static oato_status items_load(struct exchange *x, json_t **items, struct oato_error *err)
{
    const json_t *before = json_object_get(x->json, "previous_response_id");
    json_t *input = json_object_get(x->json, "input"), *kept = NULL;
    if (json_is_string(input)) {
        input = json_pack("[{s:s, s:s, s:O}]", "type", "message", "role", "user", "content", input);
        json_object_set_new(x->json, "input", input);
    }
    *items = json_array();
    items_mend(input);
    if (json_is_string(before) && kept_load(x, json_string_value(before), false, &kept, err))
        return err->status;
    json_array_extend(*items, json_object_get(kept, "items"));
    json_array_extend(*items, (json_t *)output_of(kept));
    json_array_extend(*items, input);
    json_decref(kept);
    return json_array_size(*items)
               ? OATO_OK
               : oato_fail(err, OATO_EUSAGE, "input wants a text or a list of items");
}

/* ----------------------------------------------------------------------------------- tools --- */

/* What Codex offers besides functions, without which a model does. */
static const char dispensable[] = "web_search image_generation tool_search local_shell";

/* A tool whose input is a text becomes a function of it. */
static void custom_add(json_t *tools, json_t *names, const json_t *tool)
{
    const json_t *name = json_object_get(tool, "name");
    const json_t *grammar = json_object_get(json_object_get(tool, "format"), "definition");
    json_t *about = json_sprintf(
        "%s%s%s", or_empty(json_string_value(json_object_get(tool, "description"))),
        grammar ? "\nThe grammar of its input:\n" : "", or_empty(json_string_value(grammar)));
    json_t *schema =
        json_pack("{s:s, s:{s:{s:s}}, s:[s], s:b}", "type", "object", "properties", "input", "type",
                  "string", "required", "input", "additionalProperties", 0);
    tool_add(tools, name, about, schema);
    json_object_set_new(names, json_string_value(name), json_pack("{s:b}", "custom", 1));
    json_decref(schema);
    json_decref(about);
}

static oato_status tools_take(json_t *tools, json_t *names, const json_t *all, const json_t *in,
                              struct oato_error *err)
{
    const json_t *tool;
    size_t i;
    json_array_foreach(all, i, tool)
    {
        const json_t *type = json_object_get(tool, "type"), *name = json_object_get(tool, "name");
        if (json_is_one(type, dispensable))
            continue;
        if (!json_is_string(name))
            return unsupported("a tool", tool, err);
        if (json_is(type, "custom")) {
            custom_add(tools, names, tool);
        } else if (json_is(type, "function")) {
            json_t *as = tool_name(in, name);
            tool_add(tools, as, json_object_get(tool, "description"),
                     json_object_get(tool, "parameters"));
            if (in)
                json_object_set_new(names, json_string_value(as),
                                    json_pack("{s:O, s:O}", "name", name, "namespace", in));
            json_decref(as);
        } else if (!json_is(type, "namespace") || in) {
            return unsupported("a tool", tool, err);
        } else if (tools_take(tools, names, json_object_get(tool, "tools"), name, err)) {
            return err->status;
        }
    }
    return OATO_OK;
}

static oato_status choice_take(json_t *request, const json_t *choice, struct oato_error *err)
{
    const json_t *type = json_object_get(choice, "type"), *name = json_object_get(choice, "name");
    if (!json_is_object(choice))
        return OATO_OK;
    if (!json_is_one(type, "function custom") || !json_is_string(name))
        return unsupported("a tool_choice", choice, err);
    choice_set(request, name);
    return OATO_OK;
}

/* -------------------------------------------------------------------------------- requests --- */

static bool includes(const json_t *o, const char *what)
{
    const json_t *all = json_object_get(o, "include");
    size_t i = 0;
    while (i < json_array_size(all) && !json_is(json_array_get(all, i), what))
        i++;
    return i < json_array_size(all);
}

/* What a response repeats of its request, or what that is otherwise. */
static json_t *echo_of(json_t *o)
{
    json_t *echo = json_loads(
        "{\"background\":false,\"instructions\":null,\"max_output_tokens\":null,"
        "\"max_tool_calls\":null,\"metadata\":{},\"parallel_tool_calls\":true,"
        "\"previous_response_id\":null,\"prompt_cache_key\":null,\"reasoning\":{\"effort\":null,"
        "\"summary\":null},\"safety_identifier\":null,\"store\":true,\"text\":{\"format\":{"
        "\"type\":"
        "\"text\"}},\"tool_choice\":\"auto\",\"tools\":[],\"top_logprobs\":0,\"truncation\":"
        "\"disabled\",\"user\":null}",
        0, NULL);
    const char *key;
    json_t *value;
    json_object_foreach(o, key, value)
    {
        if (json_object_get(echo, key) && !json_is_null(value))
            json_object_set(echo, key, value);
    }
    json_object_set_new(echo, "service_tier", json_string("default"));
    return echo;
}

/* Members that chats have by another name, or in another form. */
static oato_status rest_take(struct exchange *x, json_t *request, struct oato_error *err)
{
    static const char *const gone[] = {"store", "n",          "prompt",   "stream_options",
                                       "tools", "max_tokens", "verbosity"};
    const json_t *cut = json_given(x->json, "truncation");
    const json_t *o = x->json, *effort = json_object_get(json_object_get(o, "reasoning"), "effort");
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        json_object_del(request, gone[i]);
    json_object_set(request, "max_completion_tokens", json_object_get(o, "max_output_tokens"));
    if (json_is(effort, "none"))
        thinking_set(x->instance->template, request, false);
    else if (effort_set(request, "effort", effort, err))
        return err->status;
    if (includes(o, "message.output_text.logprobs") ||
        json_number_value(json_object_get(o, "top_logprobs")) > 0)
        json_object_set_new(request, "logprobs", json_true());
    if (cut && !json_is_one(cut, "auto disabled"))
        return oato_fail(err, OATO_EUSAGE, "truncation wants auto or disabled");
    return format_set(request, "text.format", json_object_get(json_object_get(o, "text"), "format"),
                      err)
               ? err->status
               : choice_take(request, json_object_get(o, "tool_choice"), err);
}

oato_status responses_request(struct exchange *x, struct oato_error *err)
{
    json_t *request = json_copy(x->json), *messages = json_array(), *tools = json_array();
    json_t *names = json_object(), *items = NULL, *item;
    size_t i;
    oato_status status = request_members(x->json, ASK_RESPONSES, 0, NULL, err);
    if (!status)
        status = items_load(x, &items, err);
    if (!status && json_string_length(json_object_get(x->json, "instructions")))
        message_part(message_of(messages, "system"), "content",
                     json_object_get(x->json, "instructions"));
    json_array_foreach(items, i, item)
    {
        const bool offers = json_is(json_object_get(item, "type"), "additional_tools");
        if (!status && offers)
            status = tools_take(tools, names, json_object_get(item, "tools"), NULL, err);
        else if (!status)
            status = item_take(x, messages, item, err);
    }
    if (!status)
        status = rest_take(x, request, err);
    const json_t *offered = json_object_get(x->json, "tools");
    if (!status)
        status = tools_take(tools, names, offered, NULL, err);
    if (!status && json_array_size(offered) && !json_array_size(tools))
        status = unsupported("a tool", json_array_get(offered, 0), err);
    if (!status) {
        const bool store = !json_is_false(json_object_get(x->json, "store"));
        char *dump = store ? json_dumps(items, JSON_COMPACT) : NULL;
        x->kept =
            json_pack("{s:o, s:o, s:b, s:s*}", "echo", echo_of(x->json), "names", names, "sealed",
                      includes(x->json, "reasoning.encrypted_content"), "items", dump);
        names = NULL;
        free(dump);
    }
    json_object_set_new(request, "messages", messages);
    if (json_array_size(tools))
        json_object_set(request, "tools", tools);
    json_decref(tools);
    json_decref(names);
    json_decref(items);
    json_decref(x->json);
    x->json = request;
    return status;
}

/* ---------------------------------------------------------------------------------- routes --- */

/* The number of the item whose id is the member `key` of the query; -1: none is asked for. */
static oato_status item_find(const struct exchange *x, const json_t *items, const char *key,
                             int64_t *at, struct oato_error *err)
{
    const char *id = json_string_value(json_object_get(x->query, key));
    const int64_t n = (int64_t)json_array_size(items);
    *at = id ? 0 : -1;
    while (id && *at < n && !json_is(json_object_get(json_array_get(items, (size_t)*at), "id"), id))
        ++*at;
    return *at < n ? OATO_OK
                   : oato_fail(err, OATO_EUSAGE, "%s: the response has no item %.80s", key, id);
}

/* The last one first, unless it is asked otherwise. NULL, and err says why. */
static json_t *items_told(const struct exchange *x, const json_t *items, struct oato_error *err)
{
    enum { ITEMS = 20 };
    const json_t *order = json_object_get(x->query, "order");
    const size_t n = json_array_size(items);
    int64_t after, before;
    if (order && !json_is_one(order, "asc desc")) {
        oato_fail(err, OATO_EUSAGE, "order wants asc or desc");
        return NULL;
    }
    json_t *all = json_array(), *data = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append(all, json_array_get(items, json_is(order, "asc") ? i : n - 1 - i));
    const bool good =
        !item_find(x, all, "after", &after, err) && !item_find(x, all, "before", &before, err);
    const struct page p = page_of(x, (int64_t)n, good ? after : -1, good ? before : -1, ITEMS);
    for (int64_t i = p.from; i < p.end; i++)
        json_array_append(data, json_array_get(all, (size_t)i));
    json_decref(all);
    json_t *told = json_pack("{s:s, s:O?, s:O?, s:b, s:o}", "object", "list", "first_id",
                             json_object_get(json_array_get(data, 0), "id"), "last_id",
                             json_object_get(json_array_get(data, json_array_size(data) - 1), "id"),
                             "has_more", p.more, "data", data);
    if (good)
        return told;
    json_decref(told);
    return NULL;
}

enum MHD_Result route_response_refuse(struct exchange *x)
{
    return reply_error(x, MHD_HTTP_BAD_REQUEST,
                       "%s is not supported here: no answer is made in the background, and no "
                       "conversation is compacted",
                       x->route->path);
}

enum MHD_Result route_response(struct exchange *x)
{
    struct oato_error err;
    json_t *kept = NULL, *told = NULL;
    oato_status status = kept_load(x, x->rest, x->method == METHOD_DELETE, &kept, &err);
    if (status)
        return status == OATO_EUSAGE ? reply_error(x, MHD_HTTP_NOT_FOUND, "%s", err.text)
                                     : reply_failure(x, &err);
    if (x->method == METHOD_DELETE)
        told = json_pack("{s:s, s:s, s:b}", "id", x->rest, "object", "response", "deleted", 1);
    else if (strstr(x->route->path, "/input_items"))
        told = items_told(x, json_object_get(kept, "items"), &err);
    else
        told = json_incref(json_object_get(kept, "response"));
    json_decref(kept);
    return told ? reply_value(x, told) : reply_failure(x, &err);
}
