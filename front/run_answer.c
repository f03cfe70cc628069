/*
 * run_answer.c - runs an answer of generate or chat as a batch request and turns its tokens into
 * text, in whole UTF-8 characters; that of a chat model into what it says, thinks and calls.
 */
#include "front/run.h"

#include <stdlib.h>
#include <unistd.h>

enum { PATIENCE_NS = 500000000 };

static void on_text(void *user, enum chat_part part, const char *s, size_t n)
{
    struct answer *x = user;
    text_add(part == CHAT_THINKS ? &x->thought : &x->text, s, n);
}

static void on_call(void *user, const char *name)
{
    struct answer *x = user;
    if (!x->calls_apart) {
        text_printf(&x->text, "%s%s(", x->text.len ? "\n" : "", name);
        return;
    }
    json_open(&x->calls, NULL, '{');
    json_add(&x->calls, JSON("name", name));
    json_key(&x->calls, "arguments");
}

static void on_arguments(void *user, const char *s, size_t n)
{
    struct answer *x = user;
    text_add(x->calls_apart ? &x->arguments : &x->text, s, n);
}

/* Arguments that are no JSON are a text of it. */
static void on_call_end(void *user, bool whole)
{
    struct answer *x = user;
    struct text *a = &x->arguments;
    if (!x->calls_apart) {
        text_printf(&x->text, ")");
        return;
    }
    if (whole) {
        text_add(&x->calls, or_empty(a->data), a->len);
    } else {
        text_printf(&x->calls, "\"");
        text_add_json(&x->calls, or_empty(a->data), a->len);
        text_printf(&x->calls, "\"");
    }
    a->len = 0;
    json_close(&x->calls, '}');
}

static const struct chat_sink sink = {
    .text = on_text, .call = on_call, .arguments = on_arguments, .call_end = on_call_end};

oato_status answer_read(struct answer *x, const struct chat_template *c, const struct text *prompt,
                        struct oato_error *err)
{
    x->told.sink = sink;
    x->told.sink.user = x;
    return answer_text_read(&x->told, c, CHAT_FORM_OWN, prompt, err);
}

void answer_free(struct answer *x)
{
    answer_text_free(&x->told);
    text_free(&x->text);
    text_free(&x->thought);
    text_free(&x->calls);
    text_free(&x->arguments);
}

static bool on_token(void *user, int32_t id)
{
    struct answer *x = user;
    if (tokenizer_is_end(x->session->tokenizer, id) && !x->ignore_end)
        return false;
    if (!answer_text_push(&x->told, id))
        x->text.failed = true;
    if (x->out)
        x->out[x->n_out] = id;
    x->n_out++;
    return true;
}

/* A long prompt is not read in silence. */
static void on_fed(void *user, int32_t fed)
{
    struct answer *x = user;
    if (fed < x->n_ids && now_ns() - x->reading.begin_ns > PATIENCE_NS)
        progress_update(&x->reading, fed, NULL);
}

static void on_end(void *user, enum batch_end why)
{
    struct answer *x = user;
    if (!answer_text_end(&x->told, why != BATCH_STOPPED))
        x->text.failed = true;
    x->done = true;
    x->why = why;
}

oato_status answer_ask(struct session *s, const struct run_args *a, struct answer *x, int32_t seq,
                       struct oato_error *err)
{
    x->session = s;
    x->told.tokenizer = s->tokenizer;
    x->told.sink = sink;
    x->told.sink.user = x;
    x->ignore_end = a->ignore_end;
    x->done = false;
    x->n_out = 0;
    progress_begin(&x->reading, "reading the prompt", x->n_ids);
    const struct batch_request r = {.ids = x->ids,
                                    .n_ids = x->n_ids,
                                    .most = a->n_predict,
                                    .seq = seq,
                                    .sampler = x->sampler,
                                    .on_fed = on_fed,
                                    .on_token = on_token,
                                    .on_end = on_end,
                                    .user = x};
    return batch_add(s->batch, &r, &x->id, err);
}

oato_status answer_check(const struct answer *x, struct oato_error *err)
{
    if (x->text.failed || x->thought.failed || x->calls.failed || x->arguments.failed)
        return oato_fail_memory(err, x->text.len, "the answer");
    const bool refused = x->done && x->why == BATCH_REFUSED;
    const struct oato_error *why = refused ? grammar_state_error(x->allowed) : NULL;
    if (why)
        *err = *why;
    return why ? why->status : OATO_OK;
}

static void print_from(const struct text *t, size_t *printed)
{
    text_print(stdout, t->data ? t->data + *printed : "", t->len - *printed);
    *printed = t->len;
}

oato_status answer_print(struct answer *x, struct oato_error *err)
{
    const enum terminal to = terminal_of(STDOUT_FILENO);
    if (x->text.len > x->printed || x->thought.len > x->printed_thought)
        progress_clear();
    if (x->thought.len > x->printed_thought && to != TERMINAL_NONE) {
        if (to < TERMINAL_STYLES && !x->printed_thought)
            fputs("(thinking) ", stdout);
        fputs(to < TERMINAL_STYLES ? "" : "\033[2m", stdout);
        print_from(&x->thought, &x->printed_thought);
        fputs(to < TERMINAL_STYLES ? "" : "\033[0m", stdout);
    }
    if (x->text.len > x->printed && !x->printed && x->printed_thought)
        fputs("\n\n", stdout);
    print_from(&x->text, &x->printed);
    return answer_check(x, err) ? err->status : stdout_check(err);
}

void answer_end_tell(const struct answer *x, const struct run_args *a, const char *more)
{
    struct engine_stats stats;
    progress_clear();
    if (!x->done || (x->why != BATCH_CONTEXT && x->why != BATCH_LIMIT))
        return;
    engine_get_stats(x->session->engine, &stats);
    int32_t context = stats.context;
    if (!a->open.engine.context && context > x->session->model->shape.context_length)
        context = (int32_t)x->session->model->shape.context_length;
    if (x->why == BATCH_CONTEXT)
        fprintf(stderr,
                "(cut: the context of %d tokens is full; -c N starts with a larger one%s)\n",
                context, more);
    else if (isatty(STDERR_FILENO) == 1)
        fprintf(stderr, "(cut at -n %d)\n", a->n_predict);
}

static double per_second(uint64_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

void answer_times_print(const struct session *s)
{
    struct engine_stats stats;
    struct batch_times t;
    engine_get_stats(s->engine, &stats);
    batch_get_times(s->batch, &t);
    fprintf(stderr,
            "load %.2f s; prompt %llu tokens, %.1f tokens/s; decode %llu tokens, %.1f tokens/s",
            (double)stats.load_ns * 1e-9, (unsigned long long)t.prompt_tokens,
            per_second(t.prompt_tokens, t.prompt_ns), (unsigned long long)t.decode_tokens,
            per_second(t.decode_tokens, t.decode_ns));
    if (s->has_plan && t.decode_steps)
        fprintf(stderr, " (%.2f ms a step, the plan predicted %.2f)",
                (double)t.decode_ns * 1e-6 / (double)t.decode_steps,
                (double)s->plan.decode_ns * 1e-6);
    if (stats.experts.caches)
        fprintf(stderr, "; %.1f %% of the experts in caches", 100 * expert_hits(&stats.experts));
    if (stats.stored_bytes && stats.clock_ns)
        fprintf(stderr, "; up to %.1f MiB a step from the file, %.1f %% of the time waiting for it",
                (double)stats.stored_bytes / (1 << 20),
                100 - 100 * (double)stats.host_busy_ns / (double)stats.clock_ns);
    if (s->sampling.temperature > 0)
        fprintf(stderr, "; seed %llu", (unsigned long long)s->sampling.seed);
    fputc('\n', stderr);
}
