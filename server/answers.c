/*
 * answers.c - answers as JSON, whole or as server-sent events, in the forms of OpenAI's completions
 * and of llama.cpp's /completion. What is sent follows from the choices alone.
 */
#include "server/server_internal.h"

#include <math.h>
#include <string.h>

struct gguf_string token_bytes(const struct instance *m, int32_t id)
{
    struct gguf_string s = {"", 0};
    tokenizer_piece(m->session.tokenizer, id, true, &s.data, &s.len);
    return s;
}

void token_bytes_add(struct text *t, const struct instance *m, const char *key, int32_t id)
{
    const struct gguf_string s = token_bytes(m, id);
    json_open(t, key, '[');
    for (size_t i = 0; i < s.len; i++)
        text_printf(t, "%s%d", i ? "," : "", (unsigned char)s.data[i]);
    json_close(t, ']');
}

struct delta delta_of(const struct choice *c)
{
    return (struct delta){.says = or_empty(c->says.data) + c->sent_says,
                          .thinks = or_empty(c->thinks.data) + c->sent_thinks,
                          .n_says = c->says.len - c->sent_says,
                          .n_thinks = c->thinks.len - c->sent_thinks,
                          .tokens = c->tokens + c->sent_tokens,
                          .n_tokens = c->n_tokens - c->sent_tokens};
}

void delta_sent(struct choice *c)
{
    c->sent_says = c->says.len;
    c->sent_thinks = c->thinks.len;
    c->sent_tokens = c->n_tokens;
}

bool calls_are_new(const struct choice *c)
{
    const struct call *last = c->sent_calls ? &c->calls[c->sent_calls - 1] : NULL;
    return c->sent_calls < c->n_calls ||
           (last && (last->arguments.len > c->sent_arguments || (last->ended && !c->sent_call)));
}

bool call_next(struct choice *c, struct call_piece *p)
{
    const bool begins = !c->sent_calls || c->sent_call;
    if (!calls_are_new(c))
        return false;
    if (begins) {
        c->sent_calls++;
        c->sent_arguments = 0;
    }
    const size_t index = c->sent_calls - 1;
    const struct call *call = &c->calls[index];
    *p = (struct call_piece){.index = index,
                             .name = begins ? call->name : NULL,
                             .arguments = or_empty(call->arguments.data) + c->sent_arguments,
                             .n = call->arguments.len - c->sent_arguments,
                             .ended = call->ended};
    c->sent_arguments = call->arguments.len;
    c->sent_call = call->ended;
    return true;
}

static void tokens_add(struct text *t, const char *key, const int32_t *ids, size_t n)
{
    json_open(t, key, '[');
    for (size_t i = 0; i < n; i++)
        text_printf(t, "%s%d", i ? "," : "", ids[i]);
    json_close(t, ']');
}

static double ms(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) * 1e-6 : 0;
}

/* With the digits that clients compute with. */
static void exact_add(struct text *t, const char *key, double value)
{
    json_key(t, key);
    text_printf(t, "%.12g", value);
}

/* Of a whole answer; with p of its prompt so far. */
static void timings_add(struct text *t, const struct choice *c, const struct prompt_progress *p)
{
    const double prompt = ms(c->begun_ns, p ? p->ns : c->first_ns);
    const double answer = p ? 0 : ms(c->first_ns, c->last_ns);
    const size_t tokens = p ? 0 : c->n_tokens;
    const double steps = tokens > 1 ? (double)(tokens - 1) : 1;
    const int32_t n = (p ? p->fed : c->n_ids) - c->cached;
    json_open(t, "timings", '{');
    json_add(t, JSON("cache_n", c->cached), JSON("prompt_n", n));
    exact_add(t, "prompt_ms", prompt);
    exact_add(t, "prompt_per_token_ms", n ? prompt / n : 0);
    exact_add(t, "prompt_per_second", prompt > 0 ? 1e3 * n / prompt : 0);
    json_add(t, JSON("predicted_n", tokens));
    exact_add(t, "predicted_ms", answer);
    exact_add(t, "predicted_per_token_ms", answer / steps);
    exact_add(t, "predicted_per_second", answer > 0 ? 1e3 * steps / answer : 0);
    json_close(t, '}');
}

/* Of an event of the prompt. */
static void progress_add(struct text *t, const struct job *j, const struct choice *c,
                         const struct prompt_progress *p)
{
    json_add_object(t, "prompt_progress", JSON("total", c->n_ids), JSON("cache", c->cached),
                    JSON("processed", p->fed), JSON("time_ms", ms(c->begun_ns, p->ns)));
    if (j->ask.timings)
        timings_add(t, c, p);
}

static void usage_add(struct text *t, const struct job *j)
{
    uint64_t prompt = 0, answer = 0, cached = 0;
    for (int32_t i = 0; i < j->n_choices; i++) {
        prompt += i % j->ask.n ? 0 : (uint64_t)j->choices[i]->n_ids;
        cached += i % j->ask.n ? 0 : (uint64_t)j->choices[i]->cached;
        answer += j->choices[i]->n_tokens;
    }
    json_open(t, "usage", '{');
    json_add(t, JSON("prompt_tokens", prompt), JSON("completion_tokens", answer),
             JSON("total_tokens", prompt + answer));
    json_add_object(t, "prompt_tokens_details", JSON("cached_tokens", cached));
    json_close(t, '}');
}

/* ------------------------------------------------------------------------------- OpenAI --- */

static void null_add(struct text *t, const char *key)
{
    json_key(t, key);
    text_printf(t, "null");
}

static void head_add(struct text *t, const struct job *j, bool chunk)
{
    static const char *const objects[][2] = {
        [ASK_TEXT] = {"text_completion", "text_completion"},
        [ASK_CHAT] = {"chat.completion", "chat.completion.chunk"}};
    json_open(t, NULL, '{');
    json_add(t, JSON("id", (const char *)j->ask.id), JSON("object", objects[j->ask.kind][chunk]),
             JSON("created", (uint64_t)j->ask.created),
             JSON("model", (const char *)j->instance->name),
             JSON("system_fingerprint", SERVER_BUILD));
}

static void finish_add(struct text *t, const struct choice *c, bool last)
{
    const char *finish = ending_finish(choice_ending(c));
    json_key(t, "finish_reason");
    text_printf(t, last && finish ? "\"%s\"" : "null", or_empty(finish));
}

/* The choice that has the log probabilities of this one's prompt; NULL: they are not asked for. */
static const struct choice *scored(const struct job *j, int32_t index)
{
    const struct choice *c = j->choices[index - index % j->ask.n];
    return j->ask.echo && j->ask.sampling.logprobs ? c : NULL;
}

static bool scores_are_there(const struct job *j, int32_t index)
{
    const struct choice *c = scored(j, index);
    return !c || c->n_scored >= c->n_ids - 1;
}

static void text_choice_add(struct text *t, const struct job *j, struct choice *c,
                            const struct delta *d, int32_t index, bool last, bool all)
{
    const bool echo = j->ask.echo && (all || !c->begun);
    json_open(t, NULL, '{');
    json_key(t, "text");
    text_printf(t, "\"");
    if (echo)
        text_add_json(t, or_empty(c->prompt.data), c->prompt.len);
    text_add_json(t, d->says, d->n_says);
    text_printf(t, "\"");
    json_add(t, JSON("index", index));
    logprobs_add(t, c, echo ? scored(j, index) : NULL, c->sent_tokens,
                 d->n_tokens + (last ? c->n_ends : 0));
    finish_add(t, c, last);
    json_close(t, '}');
}

static void call_add(struct text *t, const struct job *j, const struct call_piece *p, bool chunk)
{
    json_open(t, NULL, '{');
    if (chunk)
        json_add(t, JSON("index", p->index));
    if (p->name) {
        json_key(t, "id");
        text_printf(t, "\"call_%s_%zu\"", j->ask.id + strlen("chatcmpl-"), p->index);
        json_add(t, JSON("type", "function"));
    }
    json_open(t, "function", '{');
    if (p->name)
        json_add(t, JSON("name", p->name));
    json_add_slice(t, "arguments", p->arguments, p->n);
    json_close(t, '}');
    json_close(t, '}');
}

/* Those that are new, which then count as sent. */
static void calls_add(struct text *t, const struct job *j, struct choice *c, bool chunk)
{
    struct call_piece p;
    if (!calls_are_new(c))
        return;
    json_open(t, "tool_calls", '[');
    while (call_next(c, &p))
        call_add(t, j, &p, chunk);
    json_close(t, ']');
}

static void message_add(struct text *t, const struct job *j, struct choice *c,
                        const struct delta *d)
{
    json_open(t, "message", '{');
    json_add(t, JSON("role", "assistant"));
    if (d->n_says || !c->n_calls)
        json_add_slice(t, "content", d->says, d->n_says);
    else
        null_add(t, "content");
    if (d->n_thinks)
        json_add_slice(t, "reasoning_content", d->thinks, d->n_thinks);
    calls_add(t, j, c, false);
    json_close(t, '}');
}

/* The first has the role alone, the last is empty. */
static void delta_add(struct text *t, const struct job *j, struct choice *c, const struct delta *d,
                      bool last)
{
    json_open(t, "delta", '{');
    if (!c->begun) {
        json_add(t, JSON("role", "assistant"));
        null_add(t, "content");
    }
    if (c->begun && !last && d->n_thinks)
        json_add_slice(t, "reasoning_content", d->thinks, d->n_thinks);
    if (c->begun && !last && d->n_says)
        json_add_slice(t, "content", d->says, d->n_says);
    if (c->begun && !last)
        calls_add(t, j, c, true);
    json_close(t, '}');
}

static void chat_choice_add(struct text *t, const struct job *j, struct choice *c,
                            const struct delta *d, int32_t index, bool last, bool all)
{
    json_open(t, NULL, '{');
    json_add(t, JSON("index", index));
    if (all)
        message_add(t, j, c, d);
    else
        delta_add(t, j, c, d, last);
    logprobs_add(t, c, NULL, c->sent_tokens, all || c->begun ? d->n_tokens : 0);
    finish_add(t, c, last);
    json_close(t, '}');
}

static void choice_add(struct text *t, const struct job *j, struct choice *c, const struct delta *d,
                       int32_t index, bool last, bool all)
{
    if (j->ask.kind == ASK_CHAT)
        chat_choice_add(t, j, c, d, index, last, all);
    else
        text_choice_add(t, j, c, d, index, last, all);
}

static void verbose_add(struct text *t, const struct job *j)
{
    const struct choice *c = j->choices[0];
    if (!j->ask.verbose)
        return;
    json_open(t, "__verbose", '{');
    json_add_slice(t, "prompt", c->prompt.data, c->prompt.len);
    json_close(t, '}');
}

static void openai_whole(struct job *j, struct text *t)
{
    head_add(t, j, false);
    json_open(t, "choices", '[');
    for (int32_t i = 0; i < j->n_choices; i++) {
        const struct delta d = delta_of(j->choices[i]);
        choice_add(t, j, j->choices[i], &d, i, true, true);
    }
    json_close(t, ']');
    usage_add(t, j);
    timings_add(t, j->choices[0], NULL);
    verbose_add(t, j);
    json_close(t, '}');
}

/* An event is JSON of its own: what is in front of it must not count as an open bracket. */
void event_write(struct text *out, struct text *event)
{
    text_printf(out, "data: ");
    text_add(out, or_empty(event->data), event->len);
    text_printf(out, "\n\n");
    text_free_part(event, out);
}

static void openai_event(struct job *j, struct choice *c, const struct delta *d, int32_t index,
                         bool last, struct text *t)
{
    struct text event;
    text_init(&event);
    head_add(&event, j, true);
    json_open(&event, "choices", '[');
    choice_add(&event, j, c, d, index, last, false);
    json_close(&event, ']');
    if (d->progress)
        progress_add(&event, j, c, d->progress);
    else if ((j->ask.timings && c->begun) || last)
        timings_add(&event, c, NULL);
    json_close(&event, '}');
    event_write(t, &event);
}

static void usage_event(struct job *j, struct text *t)
{
    struct text event;
    text_init(&event);
    head_add(&event, j, true);
    json_open(&event, "choices", '[');
    json_close(&event, ']');
    usage_add(&event, j);
    timings_add(&event, j->choices[0], NULL);
    json_close(&event, '}');
    event_write(t, &event);
}

/* ---------------------------------------------------------------------------- llama.cpp --- */

void settings_add(struct text *t, const struct ask *ask, const char *key)
{
    const struct sampler_options *o = &ask->sampling;
    json_open(t, key, '{');
    json_add(t, JSON("n_predict", (double)ask->most));
    if (o->seed == UINT64_MAX) /* a random one */
        json_add(t, JSON("seed", -1.0));
    else
        json_add(t, JSON("seed", o->seed));
#define SETTING(kind, member, option, alias, arg, json, least, most, otherwise, help, more)        \
    json_add(t, JSON(json, o->member));
    SAMPLING_OPTIONS(SETTING)
#undef SETTING
    json_add(t, JSON("adaptive_target", -1.0), JSON("adaptive_decay", 0.9),
             JSON("n_probs", o->top_logprobs), json_bool("post_sampling_probs", o->final_probs),
             json_bool("stream", ask->stream), json_bool("ignore_eos", ask->ignore_end));
    json_open(t, "stop", '[');
    for (int32_t i = 0; i < ask->stops.n; i++)
        json_add(t, JSON(NULL, (const char *)ask->stops.word[i]));
    json_close(t, ']');
    json_close(t, '}');
}

static void native_add(struct text *t, const struct job *j, const struct choice *c,
                       const struct delta *d, int32_t index, bool last)
{
    json_open(t, NULL, '{');
    json_add(t, JSON("index", index));
    json_add_slice(t, "content", d->says, d->n_says);
    tokens_add(t, "tokens", d->tokens, j->ask.stream || j->ask.tokens ? d->n_tokens : 0);
    if (j->ask.sampling.logprobs && d->n_tokens)
        probs_add(t, "completion_probabilities", c, c->sent_tokens, d->n_tokens);
    json_add(t, json_bool("stop", last),
             JSON("id_slot", c->job->ask.slot < 0 ? 0 : c->job->ask.slot),
             JSON("tokens_predicted", c->n_tokens), JSON("tokens_evaluated", c->n_ids));
    if (last) {
        json_add(t, JSON("model", (const char *)j->instance->name));
        settings_add(t, &j->ask, "generation_settings");
        json_add_slice(t, "prompt", c->prompt.data, c->prompt.len);
        json_add(t,
                 json_bool("has_new_line", c->says.len && memchr(c->says.data, '\n', c->says.len)),
                 json_bool("truncated", choice_ending(c) == ENDING_CONTEXT),
                 JSON("stop_type", or_empty(ending_stop_type(choice_ending(c)))),
                 JSON("stopping_word", or_empty(c->stop.hit)),
                 JSON("tokens_cached", (size_t)c->n_ids + c->n_tokens));
    }
    if (d->progress)
        progress_add(t, j, c, d->progress);
    else if (last || j->ask.timings)
        timings_add(t, c, NULL);
    json_close(t, '}');
}

void native_whole(struct job *j, struct text *t)
{
    if (j->n_choices > 1)
        json_open(t, NULL, '[');
    for (int32_t i = 0; i < j->n_choices; i++) {
        const struct delta d = delta_of(j->choices[i]);
        native_add(t, j, j->choices[i], &d, i, true);
    }
    if (j->n_choices > 1)
        json_close(t, ']');
}

static void native_event(struct job *j, struct choice *c, const struct delta *d, int32_t index,
                         bool last, struct text *t)
{
    struct text event;
    text_init(&event);
    native_add(&event, j, c, d, index, last);
    event_write(t, &event);
}

/* ------------------------------------------------------------------------------ streams --- */

void error_event(struct job *j, struct text *out)
{
    struct text event;
    text_init(&event);
    error_json(&event, job_status(j), j->error.text);
    event_write(out, &event);
}

void events_of_choices(struct job *j, event_writer *event, struct text *out)
{
    for (int32_t i = 0; i < j->n_choices; i++) {
        struct choice *c = j->choices[i];
        struct delta d = delta_of(c);
        const bool news = d.n_says || d.n_thinks || calls_are_new(c);
        const bool ready = scores_are_there(j, i);
        const bool first = !c->begun && (j->ask.kind == ASK_CHAT || j->ask.echo);
        if (first && ready) {
            event(j, c, &(struct delta){.says = "", .thinks = ""}, i, false, out);
            c->begun = true;
        }
        while (c->sent_progress < c->n_progress)
            event(j, c,
                  &(struct delta){
                      .says = "", .thinks = "", .progress = &c->progress[c->sent_progress++]},
                  i, false, out);
        if (!ready) /* the echo comes first */
            continue;
        if (news) {
            c->begun = true;
            event(j, c, &d, i, false, out);
            delta_sent(c);
            d = delta_of(c);
        }
        if (c->ended && !c->sent_end && ending_finish(choice_ending(c))) {
            event(j, c, &d, i, true, out);
            c->sent_end = true;
        }
    }
}

void native_events(struct job *j, struct text *out)
{
    events_of_choices(j, native_event, out);
}

static void openai_events(struct job *j, struct text *out)
{
    events_of_choices(j, openai_event, out);
    if (j->n_ended == j->n_choices && j->ask.usage)
        usage_event(j, out);
}

#define OPENAI(of, make)                                                                           \
    {                                                                                              \
        .kind = (of), .request = (make), .whole = openai_whole, .events = openai_events,           \
        .done = "data: [DONE]\n\n", .failed = error_event, .error = error_json,                    \
        .stream_type = "text/event-stream"                                                         \
    }
const struct dialect dialect_text = OPENAI(ASK_TEXT, fim_suffix),
                     dialect_chat = OPENAI(ASK_CHAT, NULL);
const struct dialect dialect_native = NATIVE_DIALECT(NULL);
