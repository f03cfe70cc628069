/*
 * run_chat.c - the verb chat: a conversation on one sequence. The whole conversation is rendered
 * again for every turn; the prefix already in the KV cache is kept and only the rest is fed. When
 * the context is full the oldest messages are dropped. At a terminal Ctrl-C ends an answer, not the
 * conversation. Everything but the answers goes to stderr.
 */
#include "front/run.h"

#include <limits.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>
#ifdef OATO_LIBEDIT
#include <editline/readline.h>
#endif

enum { MESSAGES_MAX = 1024 };

struct chat {
    struct session session;
    const struct run_args *args;
    struct chat_template *template;
    struct chat_message messages[MESSAGES_MAX];
    size_t n_messages;
    struct answer answer;
    struct constraint constraint; /* of each answer */
    int32_t *tokens;              /* of the conversation; context + 1 */
    int32_t n_cached, context;
    int32_t seq;
    bool terminal;
    struct text_lines lines; /* of standard input */
    oato_status refused;     /* a line of it, for this reason */
    struct oato_error why;
};

/* ----------------------------------------------------------------------------- the terminal */

/* The line editor handles UTF-8 only in a UTF-8 locale. */
static void locale_begin(void)
{
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX == 1)
        setlocale(LC_CTYPE, "C.UTF-8");
}

/* True when Ctrl-C was pressed at a terminal; also clears it, so that the next one is caught. */
static bool interrupt_take(const struct chat *c)
{
    if (!c->terminal || oato_interrupted != SIGINT)
        return false;
    oato_interrupted = 0;
    interrupt_catch();
    return true;
}

/* What the user sends, without its newline; of malloc. */
struct line {
    char *data; /* NULL: the end, or a signal */
    size_t bytes;
};

static struct line line_plain(struct chat *c)
{
    struct text line;
    text_init(&line);
    c->refused = text_read_line(&c->lines, &line, &c->why);
    if (c->refused) {
        text_free(&line);
        clearerr(stdin);
        return (struct line){0};
    }
    return (struct line){line.data, line.len};
}

#ifdef OATO_LIBEDIT

/* The next character typed. The editor's own function takes every signal for the end. */
static int character_read(FILE *in)
{
    char bytes[MB_LEN_MAX];
    size_t n = 0, is;
    wchar_t c;
    (void)in;
    do {
        const int byte = getc(stdin);
        if (byte == EOF) {
            clearerr(stdin);
            return -1;
        }
        bytes[n++] = (char)byte;
        is = mbrtowc(&c, bytes, n, &(mbstate_t){0});
        if (is == (size_t)-1 && n > 1) { /* no character: its last byte may begin one */
            bytes[0] = bytes[n - 1];
            n = 1;
            is = mbrtowc(&c, bytes, n, &(mbstate_t){0});
        }
        if (is == (size_t)-1)
            n = 0;
    } while (is > MB_LEN_MAX);
    return (int)c;
}

/* The editor asks streams for their descriptors, which the program's have not. */
static void editor_begin(void)
{
    setvbuf(stdin, NULL, _IONBF, 0); /* what was typed ahead stays with the terminal */
    rl_instream = fdopen(STDIN_FILENO, "r");
    rl_outstream = fdopen(STDOUT_FILENO, "w");
    rl_getc_function = character_read;
}

static struct line line_edited(struct chat *c)
{
    (void)c;
    struct line line = {.data = readline("> ")};
    line.bytes = strlen(or_empty(line.data));
    if (line.bytes)
        add_history(line.data);
    return line;
}

#else

static void editor_begin(void)
{
}

static struct line line_edited(struct chat *c)
{
    fputs("> ", stdout);
    fflush(stdout);
    return line_plain(c);
}

#endif

/* The next line of the user. */
static struct line line_read(struct chat *c)
{
    if (!c->terminal)
        return line_plain(c);
    struct line line = line_edited(c);
    if (!line.data && interrupt_take(c)) { /* the first one counts as an empty line */
        fputs("\n(Ctrl-C again, Ctrl-D or /bye ends the conversation)\n", stderr);
        line = line_edited(c);
    }
    return line;
}

static void banner(const struct chat *c)
{
    const char *slash = strrchr(c->args->open.model, '/');
    text_tell("%s, context %d tokens, template %s. /help lists the commands.\n",
              slash ? slash + 1 : c->args->open.model, c->context, chat_template_name(c->template));
}

static void help(void)
{
    fputs("/clear  forget the conversation\n"
          "/bye    end it, as /exit and Ctrl-D do\n"
          "/help   this text\n"
          "Ctrl-C  end the answer that is being written\n",
          stderr);
}

/* ------------------------------------------------------------------------------ the messages */

/* Removes n messages, starting with number `at`. */
static void messages_drop(struct chat *c, size_t at, size_t n)
{
    for (size_t i = at; i < at + n; i++)
        free((char *)c->messages[i].content);
    c->n_messages -= n;
    memmove(&c->messages[at], &c->messages[at + n], (c->n_messages - at) * sizeof *c->messages);
}

/* Drops the oldest question and its answer; false when only the last question is left. */
static bool oldest_drop(struct chat *c)
{
    const size_t first = c->args->system ? 1 : 0;
    if (c->n_messages < first + 3)
        return false;
    messages_drop(c, first, 2);
    return true;
}

static oato_status message_add(struct chat *c, const char *role, const char *content, size_t n,
                               struct oato_error *err)
{
    char *copy = malloc(n + 1);
    if (!copy)
        return oato_fail_memory(err, n, "a message");
    memcpy(copy, or_empty(content), n);
    struct chat_message *m = &c->messages[c->n_messages++];
    m->role = role;
    m->content = copy;
    m->bytes = n;
    return OATO_OK;
}

static oato_status chat_clear(struct chat *c, struct oato_error *err)
{
    const char *system = c->args->system;
    messages_drop(c, 0, c->n_messages);
    return system ? message_add(c, "system", system, strlen(system), err) : OATO_OK;
}

static oato_status conversation_encode(struct chat *c, int32_t **ids, size_t *n,
                                       struct oato_error *err)
{
    struct text prompt;
    text_init(&prompt);
    oato_status status =
        chat_template_apply(c->template, c->messages, c->n_messages, true, NULL, &prompt, err);
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
           (*n + (size_t)room > (size_t)c->context || c->n_messages > MESSAGES_MAX - 4) &&
           oldest_drop(c)) {
        forgotten += 2;
        free(*ids);
        *ids = NULL;
        status = conversation_encode(c, ids, n, err);
    }
    if (forgotten)
        fprintf(stderr,
                "(the context of %d tokens is full: the oldest %zu messages are forgotten)\n",
                c->context, forgotten);
    *fits = status || *n <= (size_t)c->context;
    if (!*fits)
        fprintf(stderr,
                "(this message takes %zu tokens, the context has %d: send a shorter one, or start "
                "with -c %zu or more)\n",
                *n, c->context, (*n + (size_t)room + 255) / 256 * 256);
    return status;
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
        if (interrupt_take(c)) {
            interrupted = true;
            batch_cancel(c->session.batch, x->id);
        }
        status = batch_step(c->session.batch, err);
        if (!status)
            status = answer_print(x, err);
    }
    interrupt_take(c); /* it came while the last token was made */
    putchar('\n');
    if (!status)
        status = stdout_check(err);
    if (!status && c->terminal && interrupted)
        fputs("(interrupted)\n", stderr);
    else if (!status && c->terminal && x->done && x->why == BATCH_LIMIT)
        fprintf(stderr, "(cut at -n %d)\n", c->args->n_predict);
    else if (!status && x->done && x->why == BATCH_CONTEXT)
        fprintf(stderr, "(cut: the context of %d tokens is full)\n", c->context);
    c->n_cached = engine_seq_length(c->session.engine, c->seq);
    return status;
}

static oato_status turn(struct chat *c, const struct line *line, struct oato_error *err)
{
    struct answer *x = &c->answer;
    int32_t *ids = NULL;
    size_t n = 0;
    bool fits = false, answered = false;
    oato_status status = message_add(c, "user", line->data, line->bytes, err);
    if (!status)
        status = conversation_fit(c, &ids, &n, &fits, err);
    if (!status && fits)
        status =
            constraint_begin(&c->constraint, c->session.tokenizer, x->sampler, &x->allowed, err);
    if (!status && fits)
        status = turn_begin(c, ids, (int32_t)n, err);
    if (!status && fits) {
        status = turn_run(c, err);
        answered = x->text.len > 0;
    }
    free(ids);
    if (status)
        return status;
    if (answered)
        return message_add(c, "assistant", x->text.data, x->text.len, err);
    messages_drop(c, c->n_messages - 1, 1); /* a question without an answer confuses models */
    return OATO_OK;
}

/* Runs a line that is a slash command; *end is set by commands that end the conversation. False:
 * the line is a message. */
static bool command(struct chat *c, const struct line *typed, bool *end, oato_status *status,
                    struct oato_error *err)
{
    const char *line = typed->data;
    if (strlen(line) < typed->bytes) /* with a zero byte it is none */
        return false;
    if (!strcmp(line, "/exit") || !strcmp(line, "/bye")) {
        *end = true;
    } else if (!strcmp(line, "/clear")) {
        *status = chat_clear(c, err);
    } else if (!strcmp(line, "/help")) {
        help();
    } else if (line[0] == '/' && !line[1 + strspn(line + 1, "abcdefghijklmnopqrstuvwxyz")]) {
        text_tell("(there is no command %s; /help lists them)\n", line);
    } else {
        return false;
    }
    return true;
}

static oato_status converse(struct chat *c, struct oato_error *err)
{
    oato_status status = chat_clear(c, err);
    bool end = false;
    if (c->terminal)
        banner(c);
    /* Ctrl-C that comes when an answer has just ended was for that */
    while (!status && !end && (!oato_interrupted || interrupt_take(c))) {
        const struct line line = line_read(c);
        if (!line.data)
            break;
        interrupt_take(c);
        if (line.bytes && !command(c, &line, &end, &status, err))
            status = turn(c, &line, err);
        free(line.data);
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
    c->answer.sampler = session_sampler(&c->session, &a->open);
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
        editor_begin();
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
    session_close(&c->session);
    chat_template_free(c->template);
    messages_drop(c, 0, c->n_messages);
    free(c->tokens);
    sampler_free(c->answer.sampler);
    grammar_state_free(c->answer.allowed);
    constraint_close(&c->constraint);
    answer_free(&c->answer);
    free(c);
    return status;
}
