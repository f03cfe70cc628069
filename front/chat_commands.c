/*
 * chat_commands.c - what a user asks chat itself, a row each: a line that begins with a slash.
 * Nothing of it reaches the model. Answers go to stderr.
 */
#include "executor/session_options.h"
#include "front/chat.h"

#include <stdlib.h>
#include <string.h>

/* A command's function gets what follows its name, without blanks around it. A failure that it
 * returns ends the conversation; others it tells. */
typedef oato_status command_fn(struct chat *c, char *rest, struct oato_error *err);

static void tell(const struct oato_error *err)
{
    text_tell("(%s)\n", err->text);
}

/* A failure for want of memory is one; others are told, and the conversation goes on. */
static oato_status tell_failure(oato_status status, const struct oato_error *err)
{
    if (!status || oato_failed_memory(err))
        return status;
    tell(err);
    return OATO_OK;
}

/* --------------------------------------------------------------------------- settings --- */

#define SAMPLING_VERBS 1
#define SAMPLING_AT    offsetof(struct run_args, open)
/* As on the command line, but for what breaks DRY's repetitions. */
static const struct option_of settings[] = {SAMPLING_OPTIONS(SESSION_SAMPLING_OF){
    "seed", 0, "N", NULL, SAMPLING_VERBS,
    SESSION_AT(session_take_seed, SAMPLING_AT, sampling.seed, 0, 0)}};

static void settings_show(const struct chat *c)
{
    const struct sampler_options *o = &c->session.sampling;
#define SHOW(kind, member, option, alias, arg, json, least, most, otherwise, help, more)           \
    fprintf(stderr, "%-18s %-6g  %s%s\n", option, (double)o->member, help, more);
    SAMPLING_OPTIONS(SHOW)
#undef SHOW
    fprintf(stderr, "%-18s %llu\n", "seed", (unsigned long long)o->seed);
    const bool has = messages_system(&c->messages) > 0;
    text_tell("%-18s %s\n", "system", has ? c->messages.at[0].content : "(none)");
}

static oato_status system_set(struct chat *c, const char *text, struct oato_error *err)
{
    struct messages *m = &c->messages;
    messages_drop(m, 0, messages_system(m));
    if (!*text)
        return OATO_OK;
    const oato_status status = message_add(m, "system", text, strlen(text), err);
    if (status)
        return status;
    const struct chat_message added = m->at[m->n - 1]; /* to the front */
    memmove(&m->at[1], &m->at[0], (m->n - 1) * sizeof *m->at);
    m->at[0] = added;
    return OATO_OK;
}

/* The option by its name on the command line or in requests; its value is read as there. */
static oato_status option_set(struct chat *c, const char *name, char *value, struct oato_error *err)
{
    struct run_args to = {.open.sampling = c->session.sampling};
    struct option_row rows[ARRAY_LEN(settings) + 1];
    struct options o;
    struct text word;
    bool known = false;
    text_init(&word);
    text_printf(&word, "--%s", name);
    for (size_t i = 0; word.data && word.data[i]; i++)
        if (word.data[i] == '_')
            word.data[i] = '-';
    for (size_t i = 0; word.data && i < ARRAY_LEN(settings); i++)
        known = known || !strcmp(word.data + 2, settings[i].name);
    options_rows(settings, ARRAY_LEN(settings), SAMPLING_VERBS, rows);
    options_init(&o, rows, 2, (char *[]){word.data, value});
    oato_status status = OATO_OK;
    if (word.failed)
        status = oato_fail_memory(err, word.len, "an option");
    else if (!known)
        status = oato_fail(err, OATO_EUSAGE, "there is no option %s; /set alone shows all", name);
    else if (options_take(&o, settings, &to, err) < 0)
        status = err->status;
    text_free(&word);
    if (status)
        return tell_failure(status, err);
    if (to.open.sampling.seed == UINT64_MAX)
        to.open.sampling.seed = sampling_seed();
    c->session.sampling = to.open.sampling;
    sampler_free(c->answer.sampler);
    c->answer.sampler = session_sampler(&c->session);
    return c->answer.sampler ? OATO_OK : oato_fail_memory(err, 1 << 20, "the sampler");
}

static oato_status set(struct chat *c, char *rest, struct oato_error *err)
{
    const size_t n = strcspn(rest, " \t\n=");
    char *value = rest + n + strspn(rest + n, " \t\n=");
    if (!n || !strcmp(rest, "show")) {
        settings_show(c);
        return OATO_OK;
    }
    rest[n] = 0;
    if (!strcmp(rest, "system"))
        return system_set(c, value, err);
    if (*value)
        return option_set(c, rest, value, err);
    text_tell("(/set %s wants a value; /set alone shows all)\n", rest);
    return OATO_OK;
}

/* ------------------------------------------------------------------- the conversation --- */

static oato_status clear(struct chat *c, char *rest, struct oato_error *err)
{
    (void)rest;
    (void)err;
    const size_t system = messages_system(&c->messages);
    messages_drop(&c->messages, system, c->messages.n - system);
    return OATO_OK;
}

static bool last_is(const struct chat *c, const char *role)
{
    const struct messages *m = &c->messages;
    return m->n > 0 && !strcmp(m->at[m->n - 1].role, role);
}

static oato_status undo(struct chat *c, char *rest, struct oato_error *err)
{
    struct messages *m = &c->messages;
    (void)rest;
    (void)err;
    if (m->n <= messages_system(m)) {
        fputs("(there is nothing to undo)\n", stderr);
        return OATO_OK;
    }
    if (last_is(c, "assistant"))
        messages_drop(m, m->n - 1, 1);
    if (last_is(c, "user"))
        messages_drop(m, m->n - 1, 1);
    fprintf(stderr, "(the last question is forgotten; %zu messages are left)\n",
            m->n - messages_system(m));
    return OATO_OK;
}

static oato_status regenerate(struct chat *c, char *rest, struct oato_error *err)
{
    struct messages *m = &c->messages;
    struct chat_message old = {0};
    bool answered = false;
    (void)rest;
    if (last_is(c, "assistant"))
        old = m->at[--m->n];
    if (!last_is(c, "user")) {
        m->n += old.content != NULL;
        fputs("(there is no question to answer again)\n", stderr);
        return OATO_OK;
    }
    const oato_status status = chat_answer(c, &answered, err);
    if (!status && !answered && old.content)
        m->at[m->n++] = old;
    else
        free((char *)old.content);
    return status;
}

static oato_status save(struct chat *c, char *rest, struct oato_error *err)
{
    if (!*rest) {
        fputs("(/save wants the name of a file)\n", stderr);
        return OATO_OK;
    }
    const oato_status status = messages_save(&c->messages, rest, err);
    if (!status)
        text_tell("(%zu messages are in %s)\n", c->messages.n, rest);
    return tell_failure(status, err);
}

static oato_status load(struct chat *c, char *rest, struct oato_error *err)
{
    if (!*rest) {
        fputs("(/load wants the name of a file)\n", stderr);
        return OATO_OK;
    }
    const oato_status status = messages_load(&c->messages, rest, err);
    if (!status)
        text_tell("(%zu messages of %s%s)\n", c->messages.n, rest,
                  last_is(c, "user") ? "; /regen answers the last one" : "");
    return tell_failure(status, err);
}

static oato_status stats(struct chat *c, char *rest, struct oato_error *err)
{
    const struct engine_seq_size size = engine_seq_size(c->session.engine, c->seq);
    (void)rest;
    (void)err;
    fprintf(stderr, "%zu messages; %d of %d tokens of the context; KV cache %.1f MiB; seed %llu\n",
            c->messages.n, size.length, c->context, (double)size.bytes / (1 << 20),
            (unsigned long long)c->session.sampling.seed);
    answer_times_print(&c->session);
    return OATO_OK;
}

static oato_status bye(struct chat *c, char *rest, struct oato_error *err)
{
    (void)rest;
    (void)err;
    c->end = true;
    return OATO_OK;
}

/* --------------------------------------------------------------------------- the table --- */

static command_fn help;

static const struct {
    const char *name, *argument, *help; /* help NULL: another name of the one before */
    command_fn *run;
} commands[] = {
    {"/set", " [NAME VALUE]", "show the options of sampling and the system message, or set one",
     set},
    {"/regen", "", "answer the last question again", regenerate},
    {"/undo", "", "forget the last question and its answer", undo},
    {"/clear", "", "forget the conversation, but not the system message", clear},
    {"/save", " FILE", "write the conversation, as JSON", save},
    {"/load", " FILE", "go on with one that was saved", load},
    {"/stats", "", "tokens, speeds, memory", stats},
    {"/help", "", "this text (also /?)", help},
    {"/?", "", NULL, help},
    {"/bye", "", "end the conversation (also /exit, Ctrl-D)", bye},
    {"/exit", "", NULL, bye},
};

static oato_status help(struct chat *c, char *rest, struct oato_error *err)
{
    (void)rest;
    (void)err;
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (commands[i].help)
            fprintf(stderr, "%s%-*s  %s\n", commands[i].name, 20 - (int)strlen(commands[i].name),
                    commands[i].argument, commands[i].help);
    fputs("\"\"\"                   begins a message of several lines, and ends it\n", stderr);
    if (c->editor)
        fputs("Alt-Enter             a new line of the message; pasted text keeps its lines\n",
              stderr);
    fputs("//WORD                sends /WORD to the model\n"
          "Ctrl-C                end the answer that is being written\n",
          stderr);
    return OATO_OK;
}

/* A slash and a word: no path, no line of several, no zero byte. */
static bool is_command(const struct text *t)
{
    const char *line = t->data;
    const size_t n = *line == '/' ? strspn(line + 1, "abcdefghijklmnopqrstuvwxyz?") : 0;
    return n && strchr(" \t", line[1 + n]) && strlen(line) == t->len && !strchr(line, '\n');
}

bool chat_command(struct chat *c, size_t *literal, oato_status *status, struct oato_error *err)
{
    char *line = c->typed.data;
    *literal = c->typed.len > 1 && line[0] == '/' && line[1] == '/';
    if (!is_command(&c->typed))
        return false;
    const size_t n = strcspn(line, " \t");
    char *rest = line + n + strspn(line + n, " \t");
    for (size_t k = strlen(rest); k && strchr(" \t", rest[k - 1]);)
        rest[--k] = 0;
    line[n] = 0;
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(line, commands[i].name) != 0)
            continue;
        *status = commands[i].run(c, rest, err);
        return true;
    }
    text_tell("(there is no command %s; /help lists them; /%s or a space in front sends it to the "
              "model)\n",
              line, line);
    return true;
}
