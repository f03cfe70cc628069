/*
 * terminal.h - oato-run at a terminal: what its tests type, and what they see.
 */
#ifndef OATO_TESTS_TERMINAL_H
#define OATO_TESTS_TERMINAL_H

#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/types.h>

#include <cmocka.h>

struct tty {
    pid_t child;
    int fd;
    struct text seen;
    size_t at; /* what was waited for so far */
};

/* `oato-run ARGS` at a terminal of this kind and of 80 columns, of a host without a locale, in a
 * folder. */
void terminal_open(struct tty *t, const char *folder, const char *term, char *const args[]);
/* Reads for at most that long; false at the end. */
bool terminal_read(struct tty *t, int timeout_ms);
/* Reads until it has been seen, behind what was waited for before. */
void wait_for(struct tty *t, const char *what);
/* The prompt, and a moment for what comes with it. */
void wait_for_prompt(struct tty *t);
void type(struct tty *t, const char *keys);
/* Its exit status. */
int terminal_close(struct tty *t);

#endif
