/*
 * responses_answer.c - answers of OpenAI's /v1/responses: parts as items, whole or as the events
 * that OpenAI documents, in their order.
 */
#include "server/responses.h"
#include "server/server_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What is told of each kind of part. */
static const struct form {
    const char *item, *id; /* its type; how its ids begin */
    const char *text;      /* the type of its text */
    const char *event;     /* in which its text comes, without ".delta" */
    const char *whole;     /* the member of ".done" that has all of it */
} forms[] = {
    [PART_THINKS] = {"reasoning", "rs", "reasoning_text", "response.reasoning_text", "text"},
    [PART_SAYS] = {"message", "msg", "output_text", "response.output_text", "text"},
    [PART_CALL] = {"function_call", "fc", NULL, "response.function_call_arguments", "arguments"},
};
static const struct form custom = {"custom_tool_call", "ctc", NULL,
                                   "response.custom_tool_call_input", "input"};

static const json_t *tool_of(const struct job *j, const struct part_view *p)
{
    return p->kind == PART_CALL ? json_object_get(json_object_get(j->ask.kept, "names"), p->name)
                                : NULL;
}

static const struct form *form_of(const struct job *j, const struct part_view *p)
{
    return json_object_get(tool_of(j, p), "custom") ? &custom : &forms[p->kind];
}

static json_t *id_of(const struct job *j, const struct form *f, size_t index)
{
    return json_sprintf("%s_%s_%zu", f->id, job_digits(j), index);
}

/* A part's whole text; the input of a custom tool is a member of its arguments. */
static json_t *text_of(const struct form *f, const struct part_view *p, bool all)
{
    if (f != &custom || !all)
        return text_value(p->text, all ? p->n : 0);
    json_t *arguments = json_loadb(p->text, p->n, JSON_ALLOW_NUL, NULL);
    json_t *input = json_incref(json_object_get(arguments, "input"));
    json_decref(arguments);
    return input ? input : text_value(p->text, p->n);
}

static json_t *content_of(const struct choice *c, const struct form *f, const struct part_view *p,
                          bool all)
{
    json_t *content = json_pack("{s:s, s:o}", "type", f->text, "text", text_of(f, p, all));
    if (p->kind == PART_SAYS)
        json_object_update_new(content, json_pack("{s:[], s:o}", "annotations", "logprobs",
                                                  probs_value(c, 0, all ? c->n_tokens : 0)));
    return content;
}

/* With its text, or as it begins. */
static json_t *item_of(const struct job *j, size_t index, bool all)
{
    const struct choice *c = j->choices[0];
    const struct part_view p = part_at(c, index);
    const struct form *f = form_of(j, &p);
    const enum ending e = choice_ending(c);
    const bool last = c->ended && index + 1 == c->n_parts && p.kind != PART_CALL;
    const bool cut = !p.whole || (last && (e == ENDING_LIMIT || e == ENDING_CONTEXT));
    const char *status = !all ? "in_progress" : cut ? "incomplete" : "completed";
    json_t *item =
        json_pack("{s:o, s:s, s:s}", "id", id_of(j, f, index), "type", f->item, "status", status);
    if (p.kind == PART_CALL) {
        json_object_set_new(item, "call_id", json_sprintf("call_%s_%zu", job_digits(j), index));
        json_object_set_new(item, "name", json_string(p.name));
        json_object_set_new(item, f->whole, text_of(f, &p, all));
        if (f != &custom)
            json_object_update(item, (json_t *)tool_of(j, &p)); /* name and namespace */
        return item;
    }
    json_object_set_new(item, "content",
                        all ? json_pack("[o]", content_of(c, f, &p, true)) : json_array());
    if (p.kind == PART_SAYS)
        json_object_set_new(item, "role", json_string("assistant"));
    else
        json_object_set_new(item, "summary", json_array());
    if (p.kind == PART_THINKS && all && json_is_true(json_object_get(j->ask.kept, "sealed"))) {
        json_t *text = text_of(f, &p, true);
        json_object_set_new(item, "encrypted_content",
                            json_sprintf(REASONING_MARK "%s", json_string_value(text)));
        json_decref(text);
    }
    return item;
}

static json_t *usage_of(const struct choice *c)
{
    return json_pack("{s:i, s:{s:i, s:i}, s:I, s:{s:I}, s:I}", "input_tokens", c->n_ids,
                     "input_tokens_details", "cached_tokens", c->cached, "cache_write_tokens", 0,
                     "output_tokens", (json_int_t)c->n_tokens, "output_tokens_details",
                     "reasoning_tokens", (json_int_t)c->n_thought, "total_tokens",
                     (json_int_t)c->n_ids + (json_int_t)c->n_tokens);
}

/* How it ended, as the last event of a stream is called: "completed" .. */
static const char *status_of(const struct job *j)
{
    const enum ending e = choice_ending(j->choices[0]);
    return !j->choices[0]->ended                      ? "in_progress"
           : j->error.status                          ? "failed"
           : e == ENDING_LIMIT || e == ENDING_CONTEXT ? "incomplete"
                                                      : "completed";
}

/* A float as it was written: 0.95, not 0.949999988. */
static double decimal(float f)
{
    return round(1e6 * (double)f) / 1e6;
}

/* The response; before its end nothing is in it. */
static json_t *response_of(const struct job *j, bool all)
{
    const struct choice *c = j->choices[0];
    const char *status = all ? status_of(j) : "in_progress";
    json_t *output = json_array();
    for (size_t i = 0; i < c->n_parts && all; i++)
        json_array_append_new(output, item_of(j, i, true));
    json_t *r = json_pack(
        "{s:o, s:s, s:I, s:s, s:o?, s:o?, s:s, s:o, s:f, s:f, s:o?, s:o?}", "id",
        json_sprintf("resp_%s", job_digits(j)), "object", "response", "created_at",
        (json_int_t)j->ask.created, "status", status, "error",
        strcmp(status, "failed")
            ? NULL
            : json_pack("{s:s, s:s}", "code", "server_error", "message", j->error.text),
        "incomplete_details",
        strcmp(status, "incomplete") ? NULL : json_pack("{s:s}", "reason", "max_output_tokens"),
        "model", j->instance->name, "output", output, "temperature",
        decimal(j->ask.sampling.temperature), "top_p", decimal(j->ask.sampling.top_p),
        "completed_at", all ? json_integer(time(NULL)) : NULL, "usage", all ? usage_of(c) : NULL);
    json_object_update(r, json_object_get(j->ask.kept, "echo"));
    return r;
}

static void keep(const struct job *j, const json_t *response)
{
    const json_t *items = json_object_get(j->ask.kept, "items");
    char *dump = items ? json_dumps(response, JSON_COMPACT) : NULL;
    struct text t;
    text_init(&t);
    text_printf(&t, "{\"response\":%s,\"items\":%s}", or_empty(dump), json_string_value(items));
    if (dump && !t.failed)
        response_store_put(j->instance->server->responses, j->ask.client,
                           json_string_value(json_object_get(response, "id")), t.data);
    text_free(&t);
    free(dump);
}

static void responses_whole(struct job *j, struct text *t)
{
    json_t *response = response_of(j, true);
    keep(j, response);
    value_write(t, response);
}

/* An event, into which `more` is taken over. */
static void event(struct choice *c, struct text *out, const char *type, const char *suffix,
                  json_t *more)
{
    json_object_set_new(more, "type", json_sprintf("%s%s", type, suffix));
    json_object_set_new(more, "sequence_number", json_integer((json_int_t)c->n_events++));
    value_event(out, more);
}

static void response_event(struct job *j, struct text *out, const char *name, json_t *response)
{
    event(j->choices[0], out, "response.", name, json_pack("{s:o}", "response", response));
}

/* Where an event is: in which item, and in which part of its content; and what is there. */
static json_t *place_with(const struct job *j, const struct form *f, size_t index, const char *key,
                          json_t *value)
{
    json_t *o = json_pack("{s:o, s:I, s:o}", "item_id", id_of(j, f, index), "output_index",
                          (json_int_t)index, key, value);
    if (f->text)
        json_object_set_new(o, "content_index", json_integer(0));
    return o;
}

static void item_event(const struct job *j, struct text *out, size_t index, bool ends)
{
    event(j->choices[0], out, "response.output_item.", ends ? "done" : "added",
          json_pack("{s:I, s:o}", "output_index", (json_int_t)index, "item",
                    item_of(j, index, ends)));
}

static void piece_events(const struct job *j, struct choice *c, const struct part_piece *p,
                         struct text *out)
{
    const struct form *f = form_of(j, &p->part);
    const size_t i = p->index;
    const bool late = f == &custom; /* its input is known once its arguments are whole */
    if (p->begins)
        item_event(j, out, i, false);
    if (p->begins && f->text)
        event(c, out, "response.content_part.", "added",
              place_with(j, f, i, "part", content_of(c, f, &p->part, false)));
    if (late ? p->ends : p->n > 0) {
        json_t *delta = place_with(j, f, i, "delta",
                                   late ? text_of(f, &p->part, true) : text_value(p->text, p->n));
        if (p->part.kind == PART_SAYS) {
            json_object_set_new(delta, "logprobs",
                                probs_value(c, c->sent_tokens, c->n_tokens - c->sent_tokens));
            c->sent_tokens = c->n_tokens;
        }
        event(c, out, f->event, ".delta", delta);
    }
    if (!p->ends)
        return;
    json_t *done = place_with(j, f, i, f->whole, text_of(f, &p->part, true));
    if (p->part.kind == PART_SAYS)
        json_object_set_new(done, "logprobs", probs_value(c, 0, c->n_tokens));
    if (p->part.kind == PART_CALL)
        json_object_set_new(done, "name", json_string(p->part.name));
    event(c, out, f->event, ".done", done);
    if (f->text)
        event(c, out, "response.content_part.", "done",
              place_with(j, f, i, "part", content_of(c, f, &p->part, true)));
    item_event(j, out, i, true);
}

static void responses_begin(struct job *j, struct text *out)
{
    struct choice *c = j->choices[0];
    if (c->begun)
        return;
    c->begun = true;
    response_event(j, out, "created", response_of(j, false));
    response_event(j, out, "in_progress", response_of(j, false));
}

static void responses_events(struct job *j, struct text *out)
{
    struct choice *c = j->choices[0];
    struct part_piece p;
    responses_begin(j, out);
    while (part_next(c, &p))
        piece_events(j, c, &p, out);
    if (!c->ended || c->sent_end)
        return;
    c->sent_end = true;
    json_t *response = response_of(j, true);
    keep(j, response);
    response_event(j, out, status_of(j), response);
}

static void responses_failed(struct job *j, struct text *out)
{
    responses_begin(j, out);
    response_event(j, out, "failed", response_of(j, true));
}

const struct dialect dialect_responses = {.kind = ASK_CHAT,
                                          .request = responses_request,
                                          .whole = responses_whole,
                                          .events = responses_events,
                                          .failed = responses_failed,
                                          .error = error_json,
                                          .stream_type = "text/event-stream"};
