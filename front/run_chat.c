/*
 * run_chat.c - the verb chat: a conversation on one sequence. The whole conversation is rendered
 * again for every turn; the prefix already in the KV cache is kept and only the rest is fed. When
 * the context is full the oldest messages are dropped. At a terminal Ctrl-C ends an answer, not the
 * conversation. Everything but the answers goes to stderr.
 */
#include "front/chat.h"

#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The line editor counts columns of characters, which only a UTF-8 locale knows. */
static void locale_begin(void)
{
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
}

static void banner(const struct chat *c)
{
    const char *slash = strrchr(c->args->open.model, '/');
    text_tell("%s, context %d tokens, template %s. /help lists the commands.\n",
              slash ? slash + 1 : c->args->open.model, c->context, chat_template_name(c->template));
}

/* ------------------------------------------------------------------------------ the messages */

void messages_drop(struct messages *m, size_t at, size_t n)
{
    for (size_t i = at; i < at + n; i++)
        free((char *)m->at[i].content);
    m->n -= n;
    memmove(&m->at[at], &m->at[at + n], (m->n - at) * sizeof *m->at);
}

size_t messages_system(const struct messages *m)
{
    return m->n > 0 && !strcmp(m->at[0].role, "system");
}

/* Drops the oldest question and its answer; false when only the last question is left. */
static bool oldest_drop(struct messages *m)
{
    const size_t first = messages_system(m);
    if (m->n < first + 3)
        return false;
    messages_drop(m, first, 2);
    return true;
}

oato_status message_add(struct messages *m, const char *role, const char *content, size_t n,
                        struct oato_error *err)
{
    char *copy = malloc(n + 1);
    if (!copy)
        return oato_fail_memory(err, n, "a message");
    memcpy(copy, or_empty(content), n);
    copy[n] = 0;
    struct chat_message *added = &m->at[m->n++];
    added->role = role;
    added->content = copy;
    added->bytes = n;
    return OATO_OK;
}

static oato_status conversation_encode(struct chat *c, int32_t **ids, size_t *n,
                                       struct oato_error *err)
{
    struct text prompt;
    text_init(&prompt);
    oato_status status =
        chat_template_apply(c->template, c->messages.at, c->messages.n, true, NULL, &prompt, err);
    if (!status)
        status = tokenizer_encode(c->session.tokenizer, prompt.data, prompt.len, TOKENIZE_PROMPT,
                                  ids, n, err);
    if (!status)
        status = answer_read(&c->answer, c->template, &prompt, err);
    text_free(&prompt);
    return status;
}

/* The conversation in tokens, dropping oldest messages until it and an answer fit the context.
 * *fits false: not even the last message fits. */
static oato_status conversation_fit(struct chat *c, int32_t **ids, size_t *n, bool *fits,
                                    struct oato_error *err)
{
    int32_t room = c->context / 4; /* for the answer */
    size_t forgotten = 0;
    if (c->args->n_predict >= 0 && c->args->n_predict < room)
        room = c->args->n_predict;
    oato_status status = conversation_encode(c, ids, n, err);
    while (!status &&
           (*n + (size_t)room > (size_t)c->context || c->messages.n > MESSAGES_MAX - 4) &&
           oldest_drop(&c->messages)) {
        forgotten += 2;
        free(*ids);
        *ids = NULL;
        status = conversation_encode(c, ids, n, err);
    }
    if (forgotten)
        fprintf(stderr,
                "(the context of %d tokens is full: the oldest %zu messages are forgotten)\n",
                c->context, forgotten);
    /* what a template refuses is told in its words */
    const bool refused = status == OATO_EFILE;
    if (refused)
        text_tell("(%s)\n", err->text);
    *fits = !refused && *n <= (size_t)c->context;
    if (!*fits && !refused)
        fprintf(stderr,
                "(this message takes %zu tokens, the context has %d: send a shorter one, or start "
                "with -c %zu or more)\n",
                *n, c->context, (*n + (size_t)room + 255) / 256 * 256);
    return refused ? OATO_OK : status;
}

/* --------------------------------------------------------------------------------- the turns */

/* Truncates the KV cache to the prefix it shares with the conversation, and requests an answer. */
static oato_status turn_begin(struct chat *c, const int32_t *ids, int32_t n, struct oato_error *err)
{
    struct answer *x = &c->answer;
    int32_t same = 0;
    while (same < c->n_cached && same + 1 < n && c->tokens[same] == ids[same])
        same++;
    memcpy(c->tokens, ids, (size_t)n * sizeof *ids);
    oato_status status = engine_seq_truncate(c->session.engine, c->seq, same, err);
    same = engine_seq_length(c->session.engine, c->seq); /* less where there is state or a window */
    c->n_cached = same;
    x->ids = c->tokens + same;
    x->n_ids = n - same;
    x->out = c->tokens + n;
    x->text.len = x->thought.len = 0;
    x->printed = x->printed_thought = 0;
    return status ? status : answer_ask(&c->session, c->args, x, c->seq, err);
}

/* Writes the answer as it is made. */
static oato_status turn_run(struct chat *c, struct oato_error *err)
{
    struct answer *x = &c->answer;
    bool interrupted = false;
    oato_status status = OATO_OK;
    /* at a terminal Ctrl-C cancels the request, which must leave the batch; all else leaves chat */
    while (!status && !x->done &&
           (!oato_interrupted || (c->terminal && oato_interrupted == SIGINT))) {
        if (chat_interrupt(c)) {
            interrupted = true;
            batch_cancel(c->session.batch, x->id);
        }
        status = batch_step(c->session.batch, err);
        if (!status)
            status = answer_print(x, err);
    }
    chat_interrupt(c); /* it came while the last token was made */
    progress_clear();
    putchar('\n');
    if (!status)
        status = stdout_check(err);
    if (!status && c->terminal && interrupted)
        fputs("(interrupted)\n", stderr);
    else if (!status)
        answer_end_tell(x, c->args, "; the next message makes the oldest ones forgotten");
    c->n_cached = engine_seq_length(c->session.engine, c->seq);
    return status;
}

oato_status chat_answer(struct chat *c, bool *answered, struct oato_error *err)
{
    struct answer *x = &c->answer;
    int32_t *ids = NULL;
    size_t n = 0;
    bool fits = false;
    *answered = false;
    oato_status status = conversation_fit(c, &ids, &n, &fits, err);
    if (!status && fits)
        status =
            constraint_begin(&c->constraint, c->session.tokenizer, x->sampler, &x->allowed, err);
    if (!status && fits)
        status = turn_begin(c, ids, (int32_t)n, err);
    if (!status && fits)
        status = turn_run(c, err);
    free(ids);
    if (status || !fits || !x->text.len)
        return status;
    *answered = true;
    return message_add(&c->messages, "assistant", x->text.data, x->text.len, err);
}

/* The first bytes of what is typed are not sent. */
static oato_status turn(struct chat *c, size_t literal, struct oato_error *err)
{
    bool answered = false;
    oato_status status =
        message_add(&c->messages, "user", c->typed.data + literal, c->typed.len - literal, err);
    if (!status)
        status = chat_answer(c, &answered, err);
    if (!status && !answered) /* a question without an answer confuses models */
        messages_drop(&c->messages, c->messages.n - 1, 1);
    return status;
}

static oato_status converse(struct chat *c, struct oato_error *err)
{
    const char *system = c->args->system;
    oato_status status =
        system ? message_add(&c->messages, "system", system, strlen(system), err) : OATO_OK;
    if (c->terminal)
        banner(c);
    /* Ctrl-C that comes when an answer has just ended was for that */
    while (!status && !c->end && (!oato_interrupted || chat_interrupt(c))) {
        size_t literal = 0;
        if (!chat_line(c))
            break;
        chat_interrupt(c);
        if (c->typed.len && !chat_command(c, &literal, &status, err))
            status = turn(c, literal, err);
    }
    if (!status && c->refused && c->refused != OATO_NEGATIVE && !oato_interrupted) {
        *err = c->why;
        status = c->refused;
    }
    return status;
}

static oato_status chat_open(struct chat *c, struct oato_error *err)
{
    const struct run_args *a = c->args;
    struct engine_stats stats;
    engine_get_stats(c->session.engine, &stats);
    c->context = stats.context;
    if (!a->open.engine.context && c->context > c->session.model->shape.context_length)
        c->context = (int32_t)c->session.model->shape.context_length;
    oato_status status = session_template(&c->session, &a->open, &c->template, err);
    if (!status)
        status = engine_seq_create(c->session.engine, &c->seq, err);
    if (status)
        return status;
    const size_t tokens = (size_t)c->context + 1; /* the last generated token is not fed */
    c->tokens = malloc(tokens * sizeof *c->tokens);
    c->answer.sampler = session_sampler(&c->session);
    return c->tokens && c->answer.sampler
               ? OATO_OK
               : oato_fail_memory(err, tokens * sizeof *c->tokens, "the conversation");
}

oato_status run_chat(const struct run_args *a, struct oato_error *err)
{
    struct chat *c = calloc(1, sizeof *c);
    if (!c)
        return oato_fail_memory(err, sizeof *c, "a conversation");
    c->args = a;
    c->terminal = isatty(STDIN_FILENO) == 1;
    c->lines = (struct text_lines){.from = stdin, .name = "standard input"};
    if (c->terminal) {
        locale_begin();
        c->editor = editor_open(isatty(STDOUT_FILENO) == 1 ? STDOUT_FILENO : STDERR_FILENO);
    }
    oato_status status = constraint_open(&c->constraint, a, err);
    if (!status)
        status = session_open(&c->session, &a->open, SESSION_SAMPLES | SESSION_TOKENIZER, err);
    if (!status && !c->session.done) {
        status = chat_open(c, err);
        if (!status)
            status = converse(c, err);
        if (!status)
            answer_times_print(&c->session);
    }
    front_ends(status, err);
    session_close(&c->session);
    chat_template_free(c->template);
    messages_drop(&c->messages, 0, c->messages.n);
    editor_free(c->editor);
    text_free(&c->typed);
    free(c->tokens);
    sampler_free(c->answer.sampler);
    grammar_state_free(c->answer.allowed);
    constraint_close(&c->constraint);
    answer_free(&c->answer);
    free(c);
    return status;
}
