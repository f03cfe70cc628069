/*
 * run_generate.c - the verb generate: one or several prompts, streamed to stdout. With several, the
 * first one that is not finished streams; the others are printed after it, in order.
 */
#include "executor/run.h"

#include <stdlib.h>
#include <string.h>

/* The text that the model sees: the prompt itself, or a user message in the chat template. */
static oato_status prompt_text(const struct session *s, const struct run_args *a,
                               const char *prompt, size_t n, struct text *out,
                               struct oato_error *err)
{
    text_init(out);
    if (!a->chat) {
        text_add(out, prompt, n);
        return out->failed ? oato_fail_memory(err, n, "the prompt") : OATO_OK;
    }
    const struct chat_template *template;
    oato_status status = chat_template_find(s->model->gguf, a->chat_template, &template, err);
    if (status)
        return status;
    struct chat_message m[2];
    size_t count = 0;
    if (a->system)
        m[count++] = (struct chat_message){"system", a->system};
    m[count++] = (struct chat_message){"user", prompt};
    return chat_template_apply(template, m, count, true, out, err);
}

static oato_status answer_open(struct session *s, const struct run_args *a, const char *prompt,
                               size_t n, struct answer *x, struct oato_error *err)
{
    struct text text;
    oato_status status = prompt_text(s, a, prompt, n, &text, err);
    if (!status)
        status = tokenizer_encode(s->tokenizer, text.data ? text.data : "", text.len,
                                  TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, &x->ids, &x->n_ids,
                                  err);
    text_free(&text);
    if (!status && !x->n_ids) {
        int32_t bos = tokenizer_bos(s->tokenizer);
        free(x->ids);
        x->ids = malloc(sizeof *x->ids);
        if (bos < 0 || !x->ids)
            return oato_fail(err, OATO_EUSAGE,
                             "the prompt is empty and the model has no BOS token");
        x->ids[0] = bos;
        x->n_ids = 1;
    }
    if (!status)
        status = engine_seq_create(s->engine, &x->seq, err);
    if (status)
        return status;
    x->next = -1;
    x->sampler = sampler_create(&a->sampling, tokenizer_size(s->tokenizer));
    if (!x->sampler)
        return oato_fail_memory(err, 1 << 20, "the sampler");
    for (size_t i = 0; i < x->n_ids; i++)
        sampler_accept(x->sampler, x->ids[i]);
    if (!a->chat && !a->hide_prompt)
        text_add(&x->text, prompt, n);
    return x->text.failed ? oato_fail_memory(err, n, "the answer") : OATO_OK;
}

/* Prints what is new of the answer at *current, and goes on to the next ones while they are done.
 */
static void stream(struct answer *answers, int32_t n, int32_t *current, size_t *printed)
{
    while (*current < n) {
        struct answer *x = &answers[*current];
        if (n > 1 && !*printed)
            printf("%s[%d] ", *current ? "\n" : "", *current + 1);
        text_print(stdout, x->text.data ? x->text.data + *printed : "", x->text.len - *printed);
        *printed = x->text.len;
        if (!x->done)
            break;
        putchar('\n');
        *printed = 0;
        ++*current;
    }
    fflush(stdout);
}

static oato_status answer_all(struct session *s, const struct run_args *a, struct answer *answers,
                              int32_t n, struct oato_error *err)
{
    struct answer_times times = {0};
    int32_t current = 0;
    size_t printed = 0;
    oato_status status = answers_prefill(s, a, answers, n, &times, err);
    while (!status && current < n && !oato_interrupted) {
        stream(answers, n, &current, &printed);
        if (current < n)
            status = answers_step(s, a, answers, n, &times, err);
        if (!status)
            status = stdout_check(err);
    }
    if (status || oato_interrupted)
        putchar('\n');
    if (!status)
        answer_times_print(&times, s);
    return status;
}

/* Room for every prompt and answer when the user names no context. */
static struct run_args with_room(const struct run_args *a)
{
    struct run_args b = *a;
    b.engine.seqs = a->n_prompts > b.engine.seqs ? a->n_prompts : b.engine.seqs;
    return b;
}

oato_status run_generate(const struct run_args *given, struct oato_error *err)
{
    struct run_args a = with_room(given);
    struct session s = {0};
    struct text file;
    text_init(&file);
    oato_status status = OATO_OK;
    struct answer *answers = NULL;
    if (a.file) {
        if (a.n_prompts)
            return oato_fail(err, OATO_EUSAGE, "give prompts with -p or with -f, not both");
        status = text_read_file(a.file, &file, err);
        a.prompts[0] = file.data ? file.data : "";
        a.n_prompts = 1;
    }
    if (!status && !a.n_prompts && !a.dump_program)
        status = oato_fail(err, OATO_EUSAGE, "what prompt? give it with -p TEXT");
    if (!status)
        status =
            session_open(&s, &a, SESSION_SAMPLES | (a.dump_program ? 0 : SESSION_TOKENIZER), err);
    if (status)
        goto out;
    if (a.dump_program) {
        engine_dump_programs(s.engine, stdout);
        status = stdout_check(err);
        goto out;
    }
    answers = calloc((size_t)a.n_prompts, sizeof *answers);
    if (!answers) {
        status = oato_fail_memory(err, (size_t)a.n_prompts * sizeof *answers, "answers");
        goto out;
    }
    for (int32_t i = 0; i < a.n_prompts && !status; i++)
        status = answer_open(&s, &a, a.prompts[i], a.file ? file.len : strlen(a.prompts[i]),
                             &answers[i], err);
    if (!status)
        status = answer_all(&s, &a, answers, a.n_prompts, err);
out:
    for (int32_t i = 0; answers && i < a.n_prompts; i++) {
        free(answers[i].ids);
        sampler_free(answers[i].sampler);
        text_free(&answers[i].text);
    }
    free(answers);
    text_free(&file);
    session_close(&s);
    return status;
}
