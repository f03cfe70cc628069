/*
 * run_answer.c - runs an answer of generate or chat as a batch request and turns its tokens into
 * text, in whole UTF-8 characters; that of a chat model into what it says, thinks and calls.
 */
#include "front/run.h"

#include <stdlib.h>
#include <unistd.h>

static void on_text(void *user, enum chat_part part, const char *s, size_t n)
{
    struct answer *x = user;
    text_add(part == CHAT_THINKS ? &x->thought : &x->text, s, n);
}

static void on_call(void *user, const char *name, const char *arguments)
{
    struct answer *x = user;
    if (!x->calls_apart) {
        text_printf(&x->text, "%s%s(%s)", x->text.len ? "\n" : "", name, arguments);
        return;
    }
    json_open(&x->calls, NULL, '{');
    json_add(&x->calls, JSON("name", name));
    json_key(&x->calls, "arguments");
    text_printf(&x->calls, "%s", arguments);
    json_close(&x->calls, '}');
}

oato_status answer_read(struct answer *x, const struct chat_template *c, const struct text *prompt,
                        struct oato_error *err)
{
    x->told.sink = (struct chat_sink){on_text, on_call, x};
    return answer_text_read(&x->told, c, prompt, err);
}

void answer_free(struct answer *x)
{
    answer_text_free(&x->told);
    text_free(&x->text);
    text_free(&x->thought);
    text_free(&x->calls);
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
    x->told.sink = (struct chat_sink){on_text, on_call, x};
    x->ignore_end = a->ignore_end;
    x->done = false;
    x->n_out = 0;
    const struct batch_request r = {.ids = x->ids,
                                    .n_ids = x->n_ids,
                                    .most = a->n_predict,
                                    .seq = seq,
                                    .sampler = x->sampler,
                                    .on_token = on_token,
                                    .on_end = on_end,
                                    .user = x};
    return batch_add(s->batch, &r, &x->id, err);
}

oato_status answer_check(const struct answer *x, struct oato_error *err)
{
    if (x->text.failed || x->thought.failed || x->calls.failed)
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
    if (x->thought.len > x->printed_thought && isatty(STDOUT_FILENO) == 1) {
        fputs("\033[2m", stdout);
        print_from(&x->thought, &x->printed_thought);
        fputs("\033[0m", stdout);
    }
    if (x->text.len > x->printed && !x->printed && x->printed_thought)
        fputs("\n\n", stdout);
    print_from(&x->text, &x->printed);
    return answer_check(x, err) ? err->status : stdout_check(err);
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
    fputc('\n', stderr);
}
