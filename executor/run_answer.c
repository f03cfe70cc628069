/*
 * run_answer.c - answering one or several prompts together: their prompts share prefill steps,
 * then every decode step carries one token of each that is not done.
 */
#include "executor/run.h"

#include <string.h>

static oato_status text_whole(const struct text *t, struct oato_error *err)
{
    return t->failed ? oato_fail_memory(err, t->len, "the answer") : OATO_OK;
}

/* The token that follows, by a row of the last step. */
static int32_t sample(const struct session *s, struct sampler *sampler, int32_t row)
{
    int32_t n;
    const float *candidates = engine_candidates(s->engine, row, &n);
    return candidates ? sampler_next_of(sampler, candidates, n)
                      : sampler_next(sampler, engine_logits(s->engine, row));
}

/* Takes the row that belongs to the answer. */
static oato_status answer_sample(struct session *s, const struct run_args *a, struct answer *x,
                                 int32_t row, struct oato_error *err)
{
    int32_t id = sample(s, x->sampler, row);
    bool limit = a->n_predict >= 0 && x->n_generated >= a->n_predict;
    x->next = -1;
    if (limit || (tokenizer_is_end(s->tokenizer, id) && !a->ignore_end)) {
        utf8_stream_flush(&x->utf8, &x->text);
        x->done = true;
        return text_whole(&x->text, err);
    }
    const char *bytes;
    size_t n;
    if (tokenizer_piece(s->tokenizer, id, false, &bytes, &n))
        utf8_stream_push(&x->utf8, bytes, n, &x->text);
    sampler_accept(x->sampler, id);
    x->n_generated++;
    x->next = id;
    return text_whole(&x->text, err);
}

oato_status answers_prefill(struct session *s, const struct run_args *a, struct answer *answers,
                            int32_t n, struct answer_times *times, struct oato_error *err)
{
    struct engine_stats stats;
    engine_get_stats(s->engine, &stats);
    uint64_t begin = now_ns();
    for (;;) {
        struct engine_input in[PROMPTS_MAX];
        struct answer *of[PROMPTS_MAX];
        int32_t n_in = 0, room = stats.ubatch;
        for (int32_t i = 0; i < n && room > 0; i++) {
            struct answer *x = &answers[i];
            int32_t left = (int32_t)(x->n_ids - x->fed), take = left < room ? left : room;
            if (!take)
                continue;
            in[n_in] = (struct engine_input){x->seq, x->ids + x->fed, take,
                                             take == left ? LOGITS_LAST : LOGITS_NONE, true};
            of[n_in++] = x;
            room -= take;
        }
        if (!n_in || oato_interrupted)
            break;
        oato_status status = engine_step(s->engine, in, n_in, err);
        if (status)
            return status;
        for (int32_t i = 0, row = 0; i < n_in && !status; i++) {
            of[i]->fed += (size_t)in[i].n;
            times->prompt_tokens += (uint64_t)in[i].n;
            if (in[i].logits == LOGITS_LAST)
                status = answer_sample(s, a, of[i], row++, err);
        }
        if (status)
            return status;
    }
    times->prompt_ns += now_ns() - begin;
    return OATO_OK;
}

oato_status answers_step(struct session *s, const struct run_args *a, struct answer *answers,
                         int32_t n, struct answer_times *times, struct oato_error *err)
{
    struct engine_input in[PROMPTS_MAX];
    struct answer *of[PROMPTS_MAX];
    int32_t n_in = 0;
    uint64_t begin = now_ns();
    for (int32_t i = 0; i < n; i++) {
        struct answer *x = &answers[i];
        if (!x->done && a->n_predict >= 0 && x->n_generated >= a->n_predict) {
            utf8_stream_flush(&x->utf8, &x->text); /* nobody needs the logits of its last token */
            x->done = true;
        }
        if (x->done || x->next < 0)
            continue;
        in[n_in] = (struct engine_input){x->seq, &x->next, 1, LOGITS_LAST, false};
        of[n_in++] = x;
    }
    if (!n_in)
        return OATO_OK;
    oato_status status = engine_step(s->engine, in, n_in, err);
    if (status)
        return status;
    for (int32_t i = 0; i < n_in && !status; i++)
        status = answer_sample(s, a, of[i], i, err);
    times->decode_ns += now_ns() - begin;
    times->decode_steps++;
    times->generated += (uint64_t)n_in;
    return status;
}

static double per_second(uint64_t n, uint64_t ns)
{
    return ns ? (double)n * 1e9 / (double)ns : 0;
}

void answer_times_print(const struct answer_times *t, const struct session *s)
{
    struct engine_stats stats;
    engine_get_stats(s->engine, &stats);
    fprintf(stderr,
            "load %.2f s; prompt %llu tokens, %.1f tokens/s; decode %llu tokens, %.1f tokens/s",
            (double)stats.load_ns * 1e-9, (unsigned long long)t->prompt_tokens,
            per_second(t->prompt_tokens, t->prompt_ns), (unsigned long long)t->generated,
            per_second(t->generated, t->decode_ns));
    if (s->has_plan && t->decode_steps)
        fprintf(stderr, " (%.2f ms a step, the plan predicted %.2f)",
                (double)t->decode_ns * 1e-6 / (double)t->decode_steps,
                (double)s->plan.decode_ns * 1e-6);
    fputc('\n', stderr);
}
