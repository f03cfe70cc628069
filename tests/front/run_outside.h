/*
 * run_outside.h - oato-run from outside, by the shell in a scratch directory with two tiny random
 * models of 512 tokens (tiny.gguf, other.gguf) and a text (text.txt): what its tests share.
 */
#ifndef OATO_TESTS_RUN_OUTSIDE_H
#define OATO_TESTS_RUN_OUTSIDE_H

#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct outputs {
    struct text out, err;
};

extern char run_dir[];

/* Group fixtures: *state becomes a struct outputs. */
int run_setup(void **state);
int run_teardown(void **state);

/* Runs `oato-run ARGS`, with --temp 0 where tokens are picked and ARGS name no temperature; out
 * gets stdout, err stderr; returns the exit status. */
int run(struct text *out, struct text *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The file of the scratch directory, instead of what was in t. */
void read_into(struct text *t, const char *name);
int lines(const struct text *t);

#endif
