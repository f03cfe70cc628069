/*
 * run_answer.c - runs an answer of generate or chat as a batch request and turns its tokens into
 * text, in whole UTF-8 characters.
 */
#include "executor/run.h"

#include <stdlib.h>

static bool on_token(void *user, int32_t id)
{
    struct answer *x = user;
    const char *bytes;
    size_t n;
    if (tokenizer_is_end(x->session->tokenizer, id) && !x->ignore_end)
        return false;
    if (tokenizer_piece(x->session->tokenizer, id, false, &bytes, &n))
        utf8_stream_push(&x->utf8, bytes, n, &x->text);
    if (x->out)
        x->out[x->n_out++] = id;
    return true;
}

static void on_end(void *user, enum batch_end why)
{
    struct answer *x = user;
    if (why == BATCH_STOPPED)
        utf8_stream_flush(&x->utf8, &x->text);
    x->utf8.n_held = 0; /* drops an incomplete character where the answer was cut */
    x->done = true;
    x->why = why;
}

oato_status answer_ask(struct session *s, const struct run_args *a, struct answer *x, int32_t seq,
                       struct oato_error *err)
{
    x->session = s;
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

oato_status answer_print(const struct answer *x, size_t *printed, struct oato_error *err)
{
    if (x->text.failed)
        return oato_fail_memory(err, x->text.len, "the answer");
    text_print(stdout, x->text.data ? x->text.data + *printed : "", x->text.len - *printed);
    *printed = x->text.len;
    return stdout_check(err);
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
    fputc('\n', stderr);
}
