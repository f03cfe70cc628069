/*
 * chat.h - shared by the files of the verb chat: run_chat.c (the conversation and its turns),
 * chat_lines.c (what the user types), chat_commands.c (what begins with a slash) and chat_save.c
 * (conversations in files).
 */
#ifndef OATO_CHAT_H
#define OATO_CHAT_H

#include "front/editor.h"
#include "front/run.h"

enum { MESSAGES_MAX = 1024 };

/* What is said; contents are of malloc, roles are not. */
struct messages {
    struct chat_message at[MESSAGES_MAX];
    size_t n;
};

struct chat {
    struct session session;
    const struct run_args *args;
    struct chat_template *template;
    struct messages messages;
    struct answer answer;
    struct constraint constraint; /* of each answer */
    int32_t *tokens;              /* of the conversation; context + 1 */
    int32_t n_cached, context;
    int32_t seq;
    bool terminal;
    struct editor *editor;   /* NULL: plain lines */
    struct text_lines lines; /* of standard input */
    oato_status refused;     /* a line of it, for this reason */
    struct oato_error why;
    bool end;          /* of the conversation was asked for */
    struct text typed; /* chat_lines.c's */
};

/* --------------------------------------------------------------- messages (run_chat.c) --- */

oato_status message_add(struct messages *m, const char *role, const char *content, size_t n,
                        struct oato_error *err);
/* Removes n messages, starting with number `at`. */
void messages_drop(struct messages *m, size_t at, size_t n);
/* How many there are of the system: one or none, the first. */
size_t messages_system(const struct messages *m);
/* Answers the last message, which is the user's. *answered false: there is no answer, and the
 * reason was told. */
oato_status chat_answer(struct chat *c, bool *answered, struct oato_error *err);

/* ---------------------------------------------------------- what is typed (chat_lines.c) --- */

/* The next message or command into c->typed; false: the end, or a signal. */
bool chat_line(struct chat *c);
/* True when Ctrl-C was pressed at a terminal; also clears it, so that the next one is caught. */
bool chat_interrupt(const struct chat *c);

/* -------------------------------------------------------- commands (chat_commands.c) --- */

/* Runs c->typed if it is a command. False: it is a message, of which *literal bytes in front are
 * not sent. */
bool chat_command(struct chat *c, size_t *literal, oato_status *status, struct oato_error *err);

/* -------------------------------------------------------- conversations (chat_save.c) --- */

/* Writes the messages as a request of OpenAI's API has them. */
oato_status messages_save(const struct messages *m, const char *path, struct oato_error *err);
/* Reads such a request, or just its messages, in place of what was there; *m stays on failure. */
oato_status messages_load(struct messages *m, const char *path, struct oato_error *err);

#endif
