/*
 * run_generate.c - the verb generate: one or several prompts, streamed to stdout. With several, the
 * first unfinished answer streams; the others are printed after it, in order. With --json each is
 * a line of its own once it is done.
 */
#include "front/run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The model's input: the prompt itself, or the prompt as a user message in the chat template. */
static oato_status prompt_text(const struct chat_template *template, const struct run_args *a,
                               const char *prompt, size_t n, struct text *out,
                               struct oato_error *err)
{
    text_init(out);
    if (!template) {
        text_add(out, prompt, n);
        return out->failed ? oato_fail_memory(err, n, "the prompt") : OATO_OK;
    }
    struct chat_message m[2];
    size_t count = 0;
    if (a->system)
        m[count++] = (struct chat_message){"system", a->system, strlen(a->system)};
    m[count++] = (struct chat_message){"user", prompt, n};
    return chat_template_apply(template, m, count, true, NULL, out, err);
}

static oato_status answer_open(struct session *s, const struct chat_template *template,
                               const struct run_args *a, const char *prompt, size_t n,
                               struct constraint *c, struct answer *x, struct oato_error *err)
{
    struct text text;
    size_t n_ids = 0;
    oato_status status = prompt_text(template, a, prompt, n, &text, err);
    if (!status && !template)
        bos_warn(s->tokenizer, a, text.data, text.len, TOKENIZE_PROMPT);
    if (!status)
        status = tokenizer_encode(s->tokenizer, or_empty(text.data), text.len, TOKENIZE_PROMPT,
                                  &x->ids, &n_ids, err);
    x->calls_apart = a->json;
    if (!status && template)
        status = answer_read(x, template, &text, err);
    text_free(&text);
    if (!status && !n_ids) {
        int32_t bos = tokenizer_bos(s->tokenizer);
        free(x->ids);
        x->ids = malloc(sizeof *x->ids);
        if (!x->ids)
            return oato_fail_memory(err, sizeof *x->ids, "a prompt");
        if (bos < 0)
            return oato_fail(err, OATO_EUSAGE,
                             "the prompt is empty and the model has no BOS token");
        x->ids[0] = bos;
        n_ids = 1;
    }
    if (status)
        return status;
    x->n_ids = (int32_t)min_i64((int64_t)n_ids, INT32_MAX);
    x->sampler = session_sampler(s);
    if (!x->sampler)
        return oato_fail_memory(err, 1 << 20, "the sampler");
    if (constraint_begin(c, s->tokenizer, x->sampler, &x->allowed, err))
        return err->status;
    if (!a->chat && !a->hide_prompt && !a->json)
        text_add(&x->text, prompt, n);
    return answer_ask(s, a, x, -1, err);
}

/* How far standard output has got. */
struct stream {
    int32_t current; /* answer */
    bool begun, json;
};

/* A line of JSON: its parts, what it took and why it ended. */
static oato_status answer_json(const struct answer *x, struct oato_error *err)
{
    struct engine_stats stats;
    static const char *const ends[] = {
        [BATCH_STOPPED] = "stop", [BATCH_LIMIT] = "limit", [BATCH_CONTEXT] = "context"};
    struct text line;
    text_init(&line);
    if (answer_check(x, err))
        return err->status;
    json_open(&line, NULL, '{');
    json_add_slice(&line, "text", x->text.data, x->text.len);
    json_add_slice(&line, "reasoning", x->thought.data, x->thought.len);
    json_open(&line, "calls", '[');
    text_add(&line, or_empty(x->calls.data), x->calls.len);
    json_close(&line, ']');
    json_add(&line, JSON("prompt_tokens", x->n_ids), JSON("tokens", x->n_out),
             JSON("end", ends[x->why]));
    engine_get_stats(x->session->engine, &stats);
    if (stats.experts.caches) /* of all answers so far */
        json_add_object(&line, "experts", JSON("choices", stats.experts.choices),
                        JSON("hits", expert_hits(&stats.experts)),
                        JSON("refills", stats.experts.refills));
    json_close(&line, '}');
    const bool failed = line.failed;
    if (!failed)
        puts(line.data);
    text_free(&line);
    return failed ? oato_fail_memory(err, x->text.len, "the answer") : stdout_check(err);
}

/* Prints the new text of the current answer; when it is done, moves on to the next. */
static oato_status stream(struct stream *at, struct answer *answers, int32_t n,
                          struct oato_error *err)
{
    while (at->current < n) {
        struct answer *x = &answers[at->current];
        if (at->json && !x->done)
            break;
        if (at->json) {
            if (answer_json(x, err))
                return err->status;
            at->current++;
            continue;
        }
        if (n > 1 && !at->begun)
            printf("%s[%d] ", at->current ? "\n" : "", at->current + 1);
        at->begun = true;
        if (answer_print(x, err))
            return err->status;
        if (!x->done)
            break;
        putchar('\n');
        at->current++;
        at->begun = false;
    }
    return stdout_check(err);
}

static oato_status answer_all(struct session *s, struct answer *answers, const struct run_args *a,
                              struct oato_error *err)
{
    const int32_t n = a->n_prompts;
    const bool json = a->json;
    struct stream at = {.json = json};
    oato_status status = OATO_OK;
    while (!status && at.current < n && !oato_interrupted) {
        status = batch_step(s->batch, err);
        if (!status)
            status = stream(&at, answers, n, err);
    }
    if ((status || oato_interrupted) && !json)
        putchar('\n');
    progress_clear();
    const struct answer *cut = &answers[0]; /* one line tells it for all */
    for (int32_t i = 0; i < n; i++)
        if (answers[i].done && answers[i].why == BATCH_CONTEXT)
            cut = &answers[i];
    if (!status)
        answer_end_tell(cut, a, "");
    if (!status)
        answer_times_print(s);
    return status;
}

/* Standard input is a pipe or a file, so it holds a prompt. */
static bool stdin_sends(void)
{
    struct stat st;
    return !fstat(STDIN_FILENO, &st) && (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode));
}

/* The prompts of the command line, or the text of a file without its final newline. */
static oato_status prompts_take(struct run_args *a, struct text *file, struct oato_error *err)
{
    const bool asks = !a->open.dump_program && !a->open.dry_run;
    const bool none = !a->n_prompts && !a->file && asks;
    if (a->file && a->n_prompts)
        return oato_fail(err, OATO_EUSAGE, "give prompts with -p or with -f, not both");
    if (!a->chat &&
        (a->system || a->open.chat_template || a->open.chat_template_file || a->open.variables))
        return oato_fail(err, OATO_EUSAGE, "%s applies to chat templates only; add --chat",
                         a->system                    ? "--system"
                         : a->open.chat_template      ? "--chat-template"
                         : a->open.chat_template_file ? "--chat-template-file"
                                                      : "--chat-template-kwargs");
    if (a->file || (none && stdin_sends())) {
        oato_status status = text_read_file(a->file ? a->file : "-", TEXT_LINES, file, err);
        if (status)
            return status;
        if (file->len && file->data[file->len - 1] == '\n')
            file->data[--file->len] = 0;
        a->prompts[0] = file->data ? file->data : "";
        a->n_prompts = a->file || file->len;
    }
    if (!a->n_prompts && asks)
        return oato_fail(err, OATO_EUSAGE, "no prompt given; use -p TEXT, -f FILE or a pipe");
    return OATO_OK;
}

/* A chat model given a bare prompt continues it instead of answering. */
static void hint_at_chat(const struct session *s, const struct run_args *a)
{
    if (!a->chat && isatty(STDERR_FILENO) == 1 &&
        gguf_find(s->model->gguf, "tokenizer.chat_template"))
        fputs("oato-run: this model has a chat template: without --chat it continues the prompt "
              "instead of answering it\n",
              stderr);
}

oato_status run_generate(const struct run_args *given, struct oato_error *err)
{
    struct run_args a = *given;
    struct session s = {0};
    struct text file;
    struct answer *answers = NULL;
    struct chat_template *template = NULL;
    struct constraint constraint = {0};
    text_init(&file);
    oato_status status = prompts_take(&a, &file, err);
    if (!status)
        status = constraint_open(&constraint, &a, err);
    a.open.engine.seqs = a.n_prompts; /* all are answered together */
    if (!status)
        status = session_open(&s, &a.open, SESSION_SAMPLES | SESSION_TOKENIZER, err);
    if (status || s.done)
        goto out;
    hint_at_chat(&s, &a);
    answers = calloc(PROMPTS_MAX, sizeof *answers);
    if (!answers) {
        status = oato_fail_memory(err, PROMPTS_MAX * sizeof *answers, "answers");
        goto out;
    }
    if (a.chat)
        status = session_template(&s, &a.open, &template, err);
    for (int32_t i = 0; i < a.n_prompts && !status; i++)
        status =
            answer_open(&s, template, &a, a.prompts[i], file.len ? file.len : strlen(a.prompts[i]),
                        &constraint, &answers[i], err);
    if (!status)
        status = answer_all(&s, answers, &a, err);
out:
    front_ends(status, err);
    session_close(&s); /* unfinished answers belong to its batch */
    for (int32_t i = 0; answers && i < a.n_prompts; i++) {
        free(answers[i].ids);
        sampler_free(answers[i].sampler);
        grammar_state_free(answers[i].allowed);
        answer_free(&answers[i]);
    }
    free(answers);
    constraint_close(&constraint);
    chat_template_free(template);
    text_free(&file);
    return status;
}
