/*
 * run_chat.c - the verb chat: a conversation on one sequence. The whole conversation is rendered
 * again for every turn; what the cache already holds of it is kept and only the rest is fed.
 */
#include "executor/run.h"

#include <editline/readline.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MESSAGES_MAX = 1024 };

struct chat {
    struct session session;
    const struct run_args *args;
    const struct chat_template *template;
    struct chat_message messages[MESSAGES_MAX];
    size_t n_messages;
    struct answer answer;
    int32_t *cached; /* tokens whose KV the sequence holds */
    size_t n_cached, cached_cap;
};

/* The next line of the user without its newline, malloc'ed; NULL at the end. */
static char *line_read(bool terminal)
{
    if (terminal) {
        char *line = readline("> ");
        if (line && *line)
            add_history(line);
        return line;
    }
    char *line = NULL;
    size_t cap = 0;
    ssize_t n = getline(&line, &cap, stdin);
    if (n < 0) {
        free(line);
        return NULL;
    }
    if (n && line[n - 1] == '\n')
        line[n - 1] = 0;
    return line;
}

static oato_status message_add(struct chat *c, const char *role, const char *content, size_t n,
                               struct oato_error *err)
{
    if (c->n_messages == MESSAGES_MAX)
        return oato_fail(err, OATO_EFIT, "the conversation has more than %d messages",
                         MESSAGES_MAX);
    char *copy = strndup(content ? content : "", n);
    if (!copy)
        return oato_fail_memory(err, n, "a message");
    c->messages[c->n_messages++] = (struct chat_message){role, copy};
    return OATO_OK;
}

static void chat_clear(struct chat *c)
{
    while (c->n_messages)
        free((char *)c->messages[--c->n_messages].content);
}

static oato_status cache_note(struct chat *c, const int32_t *ids, size_t n, struct oato_error *err)
{
    if (c->n_cached + n > c->cached_cap) {
        size_t cap = (c->n_cached + n) * 2;
        int32_t *p = realloc(c->cached, cap * sizeof *p);
        if (!p)
            return oato_fail_memory(err, cap * sizeof *p, "the conversation");
        c->cached = p;
        c->cached_cap = cap;
    }
    memcpy(c->cached + c->n_cached, ids, n * sizeof *ids);
    c->n_cached += n;
    return OATO_OK;
}

/* Renders and tokenizes the conversation, and cuts the cache back to what it shares with it. */
static oato_status turn_begin(struct chat *c, int32_t **ids, struct oato_error *err)
{
    struct text prompt;
    size_t n;
    text_init(&prompt);
    oato_status status =
        chat_template_apply(c->template, c->messages, c->n_messages, true, &prompt, err);
    if (!status)
        status = tokenizer_encode(c->session.tokenizer, prompt.data, prompt.len,
                                  TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, ids, &n, err);
    text_free(&prompt);
    if (status)
        return status;
    size_t same = 0;
    while (same < c->n_cached && same + 1 < n && c->cached[same] == (*ids)[same])
        same++;
    c->n_cached = same;
    struct answer *x = &c->answer;
    x->ids = *ids + same;
    x->n_ids = n - same;
    x->fed = 0;
    x->next = -1;
    x->n_generated = 0;
    x->done = false;
    x->text.len = 0;
    for (size_t i = 0; i < x->n_ids; i++)
        sampler_accept(x->sampler, x->ids[i]);
    return engine_seq_truncate(c->session.engine, x->seq, (int32_t)same, err);
}

static oato_status turn(struct chat *c, struct answer_times *times, struct oato_error *err)
{
    struct answer *x = &c->answer;
    int32_t *ids = NULL;
    size_t printed = 0;
    oato_status status = turn_begin(c, &ids, err);
    if (!status)
        status = answers_prefill(&c->session, c->args, x, 1, times, err);
    if (!status)
        status = cache_note(c, x->ids, x->fed, err);
    while (!status && !oato_interrupted) {
        text_print(stdout, x->text.data ? x->text.data + printed : "", x->text.len - printed);
        printed = x->text.len;
        status = stdout_check(err);
        if (status || x->done)
            break;
        int32_t fed = x->next;
        status = answers_step(&c->session, c->args, x, 1, times, err);
        if (!status && !(x->done && x->next == fed))
            status = cache_note(c, &fed, 1, err);
    }
    putchar('\n');
    if (!status)
        status = message_add(c, "assistant", x->text.data, x->text.len, err);
    free(ids);
    x->ids = NULL;
    return status;
}

static oato_status converse(struct chat *c, struct answer_times *times, struct oato_error *err)
{
    bool terminal = isatty(STDIN_FILENO) == 1;
    oato_status status = OATO_OK;
    if (terminal)
        puts("/clear forgets the conversation, /exit or Ctrl-D ends it.");
    while (!status && !oato_interrupted) {
        char *line = line_read(terminal);
        if (!line || !strcmp(line, "/exit")) {
            free(line);
            break;
        }
        if (!strcmp(line, "/clear")) {
            chat_clear(c);
            if (c->args->system)
                status = message_add(c, "system", c->args->system, strlen(c->args->system), err);
        } else if (*line) {
            status = message_add(c, "user", line, strlen(line), err);
            if (!status)
                status = turn(c, times, err);
        }
        free(line);
    }
    return status;
}

oato_status run_chat(const struct run_args *a, struct oato_error *err)
{
    struct answer_times times = {0};
    struct chat *c = calloc(1, sizeof *c);
    if (!c)
        return oato_fail_memory(err, sizeof *c, "a conversation");
    c->args = a;
    oato_status status = session_open(
        &c->session, a, SESSION_SAMPLES | (a->dump_program ? 0 : SESSION_TOKENIZER), err);
    if (!status && a->dump_program) {
        engine_dump_programs(c->session.engine, stdout);
        status = stdout_check(err);
        goto out;
    }
    if (!status)
        status = chat_template_find(c->session.model->gguf, a->chat_template, &c->template, err);
    if (!status)
        status = engine_seq_create(c->session.engine, &c->answer.seq, err);
    if (!status && a->system)
        status = message_add(c, "system", a->system, strlen(a->system), err);
    if (status)
        goto out;
    c->answer.sampler = sampler_create(&a->sampling, tokenizer_size(c->session.tokenizer));
    status = c->answer.sampler ? converse(c, &times, err)
                               : oato_fail_memory(err, 1 << 20, "the sampler");
    if (!status)
        answer_times_print(&times, &c->session);
out:
    chat_clear(c);
    free(c->cached);
    sampler_free(c->answer.sampler);
    text_free(&c->answer.text);
    session_close(&c->session);
    free(c);
    return status;
}
