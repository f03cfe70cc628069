/*
 * ollama.c - Ollama's /api/chat, /api/generate and /api/embed: requests become OpenAI's chats,
 * completions and embeddings, answers are lines of JSON, one for each piece of a stream. What
 * Ollama sets in "options" are members of requests here; what loads a model there is answered at
 * once, since it is loaded.
 */
#include "server/server_internal.h"

#include <string.h>

/* -------------------------------------------------------------------------------- requests --- */

/* Options that are members of the same name. */
#define NAME(kind, member, option, alias, arg, json, least, most, otherwise, help, more) json,
static const char *const samplers[] = {SAMPLING_OPTIONS(NAME) "seed", "stop"};
#undef NAME

static oato_status settings_take(const struct exchange *x, json_t *request, struct oato_error *err)
{
    const json_t *options = json_object_get(x->json, "options");
    const json_t *most = json_object_get(options, "num_predict");
    if (request_members(options, ASK_OPTIONS, 0, NULL, err))
        return err->status;
    members_copy(request, options, samplers, ARRAY_LEN(samplers));
    if (json_is_number(most)) /* -2: until the context is full */
        json_object_set_new(
            request, "max_tokens",
            json_integer((json_int_t)max_i64(-1, (int64_t)json_number_value(most))));
    return OATO_OK;
}

/* "json", or a schema. */
static oato_status format_take(const struct exchange *x, json_t *request, struct oato_error *err)
{
    const json_t *format = json_object_get(x->json, "format");
    json_t *out = NULL;
    if (json_object_size(format))
        out = json_pack("{s:s, s:{s:O}}", "type", "json_schema", "json_schema", "schema", format);
    else if (json_is(format, "json"))
        out = json_pack("{s:s}", "type", "json_object");
    else if (json_string_length(format))
        return oato_fail(err, OATO_EUSAGE, "format can be \"json\" or a JSON schema");
    return out && json_object_set_new(request, "response_format", out)
               ? oato_fail_memory(err, 1 << 10, "a request")
               : OATO_OK;
}

static oato_status think_take(const struct exchange *x, json_t *request, struct oato_error *err)
{
    const json_t *think = json_object_get(x->json, "think");
    if (!think || json_is_null(think))
        return OATO_OK;
    const bool effort = json_string_length(think) > 0;
    if (effort && effort_set(request, "think can be true, false, or it", think, err))
        return err->status;
    if ((effort || json_is_true(think)) && !ollama_thinks(x->instance))
        return oato_fail(err, OATO_EUSAGE, "%.100s does not support thinking; leave think out",
                         x->instance->name);
    thinking_set(x->instance->template, request, json_is_true(think) || effort);
    return OATO_OK;
}

/* Calls have arguments as objects, as templates read them; reasoning and results have other names.
 */
static oato_status messages_take(json_t *messages, const json_t *all, struct oato_error *err)
{
    static const char *const same[] = {"role", "content", "tool_calls", "tool_call_id"};
    const json_t *message;
    size_t at;
    json_array_foreach(all, at, message)
    {
        json_t *one = json_object();
        if (json_array_append_new(messages, one))
            return oato_fail_memory(err, 1 << 10, "messages");
        const json_t *images = json_given(message, "images");
        if (images && !(json_is_array(images) && !json_array_size(images)))
            return oato_fail(err, OATO_EUSAGE,
                             "message %zu has images, but this server reads no images", at + 1);
        members_copy(one, message, same, ARRAY_LEN(same));
        json_object_set(one, "reasoning_content", (json_t *)json_given(message, "thinking"));
        json_object_set(one, "name", (json_t *)json_given(message, "tool_name"));
    }
    return OATO_OK;
}

static void message_put(json_t *messages, const char *role, json_t *text)
{
    if (json_string_length(text))
        json_array_append_new(messages, json_pack("{s:s, s:O}", "role", role, "content", text));
}

/* By the template as a chat of one message, or the text as it is (raw), or what stands between two
 * texts (suffix). */
static oato_status generate_take(struct exchange *x, json_t *request, struct oato_error *err)
{
    json_t *o = x->json, *prompt = json_object_get(o, "prompt"),
           *suffix = json_object_get(o, "suffix"), *system = json_object_get(o, "system");
    const bool raw = json_is_true(json_object_get(o, "raw"));
    if (raw && json_string_length(system))
        return oato_fail(err, OATO_EUSAGE,
                         "raw goes without system: nothing is added to the prompt");
    x->kind = raw || json_string_length(suffix) ? ASK_TEXT : ASK_CHAT;
    if (json_string_length(suffix))
        return fim_prompt(x, request, prompt, suffix, err);
    if (raw) {
        json_object_set(request, "prompt", prompt);
        return OATO_OK;
    }
    json_t *messages = json_array();
    json_object_set_new(request, "messages", messages);
    message_put(messages, "system", system);
    message_put(messages, "user", prompt);
    return OATO_OK;
}

static oato_status ollama_request(struct exchange *x, struct oato_error *err)
{
    json_t *o = x->json, *request = json_object(), *all = json_object_get(o, "messages");
    const bool whole = json_is_false(json_object_get(o, "stream"));
    static const char *const same[] = {"tools", "logprobs", "top_logprobs"};
    oato_status status = request_members(o, ASK_OLLAMA, INT32_MAX, NULL, err);
    if (!status)
        status = settings_take(x, request, err);
    if (!status)
        status = format_take(x, request, err);
    members_copy(request, o, same, ARRAY_LEN(same));
    json_object_set_new(request, "stream", json_boolean(!whole));
    if (!status && all) {
        json_t *messages = json_array();
        json_object_set_new(request, "messages", messages);
        status = messages_take(messages, all, err);
    } else if (!status) {
        status = generate_take(x, request, err);
    }
    if (!status && x->kind == ASK_CHAT)
        status = think_take(x, request, err);
    x->kept = json_pack("{s:O?, s:b}", "model", json_object_get(o, "model"), "chat", all != NULL);
    json_decref(x->json);
    x->json = request;
    return status;
}

static oato_status embed_request(struct exchange *x, struct oato_error *err)
{
    json_t *o = x->json, *prompt = json_object_get(o, "prompt");
    const json_t *truncate = json_object_get(o, "truncate");
    const int32_t width = x->instance->session.model->shape.width;
    const oato_status status = request_members(o, ASK_OLLAMA, width, NULL, err);
    json_t *dimensions = json_object_get(o, "dimensions"); /* 0: all of them */
    x->kept = json_pack("{s:O?, s:b}", "model", json_object_get(o, "model"), "old",
                        prompt && !json_given(o, "input"));
    x->json = json_pack("{s:O*, s:O*, s:b}", "input",
                        json_given(o, "input") ? json_object_get(o, "input") : prompt, "dimensions",
                        json_number_value(dimensions) > 0 ? dimensions : NULL, "truncate",
                        !json_is_false(truncate));
    json_decref(o);
    return status;
}

/* --------------------------------------------------------------------------------- answers --- */

json_t *ollama_time(time_t seconds)
{
    struct tm tm;
    char text[40] = "";
    if (gmtime_r(&seconds, &tm))
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return json_string(text);
}

/* As the client calls it. */
static json_t *model_name(const json_t *kept, const struct instance *m)
{
    json_t *model = json_object_get(kept, "model");
    return json_is_string(model) ? json_incref(model) : json_string(m->name);
}

static json_int_t between(uint64_t from, uint64_t to)
{
    return from && to > from ? (json_int_t)(to - from) : 0;
}

/* load: until it began to be computed. */
static json_t *end_make(const struct choice *c)
{
    const char *reason = ending_finish(choice_ending(c));
    const bool length = reason && !strcmp(reason, "length");
    return json_pack("{s:b, s:s, s:I, s:I, s:i, s:I, s:I, s:I}", "done", true, "done_reason",
                     length ? "length" : "stop", "total_duration", between(c->asked_ns, now_ns()),
                     "load_duration", between(c->asked_ns, c->begun_ns), "prompt_eval_count",
                     c->n_ids, "prompt_eval_duration", between(c->begun_ns, c->first_ns),
                     "eval_count", (json_int_t)c->n_tokens, "eval_duration",
                     between(c->first_ns, c->last_ns));
}

static json_t *call_make(const struct call *call, size_t index)
{
    return json_pack(
        "{s:{s:I, s:s, s:o}}", "function", "index", (json_int_t)index, "name", call->name,
        "arguments",
        arguments_value(or_empty(call->arguments.data), call->arguments.len, "arguments"));
}

/* What one line says; calls from `call` on, n_calls of them, which are whole. */
struct line {
    const char *says, *thinks;
    size_t n_says, n_thinks, call, n_calls;
};

/* kept: what the answer repeats. The line is the caller's; its message, or itself, is borrowed. */
static json_t *line_begin(const json_t *kept, const struct instance *m, bool chat, json_t *says,
                          json_t **message)
{
    json_t *line = json_pack("{s:o, s:o, s:b}", "model", model_name(kept, m), "created_at",
                             ollama_time(time(NULL)), "done", false);
    *message = line;
    if (chat)
        json_object_set_new(line, "message", *message = json_pack("{s:s}", "role", "assistant"));
    json_object_set_new(*message, chat ? "content" : "response", says);
    return line;
}

static void line_write(struct text *out, struct choice *c, const struct line *l, bool last)
{
    const struct job *j = c->job;
    const bool chat = json_is_true(json_object_get(j->ask.kept, "chat"));
    json_t *to, *line = line_begin(j->ask.kept, j->instance, chat,
                                   text_value(or_empty(l->says), l->n_says), &to);
    if (l->n_thinks)
        json_object_set_new(to, "thinking", text_value(l->thinks, l->n_thinks));
    if (l->n_calls)
        json_object_set_new(to, "tool_calls", json_array());
    for (size_t i = l->call; i < l->call + l->n_calls; i++)
        json_array_append_new(json_object_get(to, "tool_calls"), call_make(&c->calls[i], i));
    if (j->ask.sampling.logprobs && c->n_tokens > c->sent_tokens)
        json_object_set_new(line, "logprobs",
                            probs_value(c, c->sent_tokens, c->n_tokens - c->sent_tokens));
    c->sent_tokens = c->n_tokens;
    if (last)
        json_object_update_new(line, end_make(c));
    value_write(out, line);
}

static void ollama_whole(struct job *j, struct text *t)
{
    struct choice *c = j->choices[0];
    struct line all = {.says = c->says.data,
                       .thinks = c->thinks.data,
                       .n_says = c->says.len,
                       .n_thinks = c->thinks.len};
    while (all.n_calls < c->n_calls && c->calls[all.n_calls].ended)
        all.n_calls++; /* one that the limit has cut is none */
    line_write(t, c, &all, true);
}

/* A call comes in one line, once it is whole. */
static void ollama_events(struct job *j, struct text *out)
{
    struct choice *c = j->choices[0];
    struct part_piece p;
    while (part_next(c, &p)) {
        struct line l = {0};
        if (p.part.kind == PART_CALL) {
            l.call = c->parts[p.index].from;
            l.n_calls = p.ends && c->calls[l.call].ended;
        } else {
            *(p.part.kind == PART_THINKS ? &l.thinks : &l.says) = p.text;
            *(p.part.kind == PART_THINKS ? &l.n_thinks : &l.n_says) = p.n;
        }
        if (l.n_says || l.n_thinks || l.n_calls) {
            line_write(out, c, &l, false);
            text_add(out, "\n", 1);
        }
    }
    if (c->ended && !c->sent_end) {
        line_write(out, c, &(struct line){0}, true);
        text_add(out, "\n", 1);
    }
    c->sent_end = c->ended;
}

static void ollama_error(struct text *t, unsigned status, const char *message)
{
    (void)status;
    value_write(t, json_pack("{s:o}", "error", text_value(message, strlen(message))));
}

static void ollama_failed(struct job *j, struct text *out)
{
    ollama_error(out, 0, j->error.text);
    text_add(out, "\n", 1);
}

static void embed_whole(struct job *j, struct text *t)
{
    const struct choice *first = j->choices[0];
    json_open(t, NULL, '{');
    if (json_is_true(json_object_get(j->ask.kept, "old"))) {
        embedding_add(t, "embedding", j->choices[0]);
        json_close(t, '}');
        return;
    }
    json_key(t, "model");
    value_write(t, model_name(j->ask.kept, j->instance));
    json_open(t, "embeddings", '[');
    for (int32_t i = 0; i < j->n_choices; i++)
        embedding_add(t, NULL, j->choices[i]);
    json_close(t, ']');
    json_add(t, JSON("total_duration", (int64_t)between(first->asked_ns, now_ns())),
             JSON("load_duration", (int64_t)between(first->asked_ns, first->begun_ns)),
             JSON("prompt_eval_count", inputs_tokens(j)));
    json_close(t, '}');
}

const struct dialect dialect_ollama = {.kind = ASK_CHAT,
                                       .request = ollama_request,
                                       .whole = ollama_whole,
                                       .events = ollama_events,
                                       .failed = ollama_failed,
                                       .error = ollama_error,
                                       .stream_type = "application/x-ndjson",
                                       .too_long = "the prompt exceeds the context: "};
const struct dialect dialect_ollama_embed = {.kind = ASK_EMBED,
                                             .request = embed_request,
                                             .whole = embed_whole,
                                             .error = ollama_error,
                                             .too_long = "the prompt exceeds the context: "};

/* 0, also as a duration: "0s". */
static bool is_nothing(const json_t *alive)
{
    const char *text = or_empty(json_string_value(alive));
    return json_is_number(alive)
               ? json_number_value(alive) == 0
               : text[strcspn(text, "0123456789")] && !text[strcspn(text, "123456789")];
}

/* Without a prompt a request loads the model. With keep_alive 0 it goes once it has answered, if it
 * is one of several. */
enum MHD_Result route_ollama(struct exchange *x)
{
    struct oato_error err;
    if (!body_json(x, &err))
        return reply_failure(x, &err);
    const json_t *o = x->json, *messages = json_given(o, "messages");
    struct instance *m = x->instance;
    const bool unload = is_nothing(json_object_get(o, "keep_alive"));
    const bool chat = !!strstr(x->route->path, "chat");
    const bool none = chat ? !json_array_size(messages) && (!messages || json_is_array(messages))
                           : !json_string_length(json_object_get(o, "prompt")) &&
                                 !json_string_length(json_object_get(o, "suffix"));
    if (none && request_members(o, ASK_OLLAMA, INT32_MAX, NULL, &err))
        return reply_failure(x, &err);
    if (unload)
        models_unload(m);
    if (!none)
        return route_complete(x);
    json_t *to, *line = line_begin(o, x->instance, chat, json_string(""), &to);
    json_object_update_new(
        line, json_pack("{s:b, s:s}", "done", true, "done_reason", unload ? "unload" : "load"));
    return reply_value(x, line);
}
