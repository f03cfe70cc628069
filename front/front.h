/*
 * front.h - what the programs oato and oato-run have in common.
 */
#ifndef OATO_FRONT_H
#define OATO_FRONT_H

#include "base/base.h"

/* A whole program, or a verb of one; argv[0] is its name. Prints to stdout. */
typedef oato_status (*front_command)(int argc, char **argv, struct oato_error *err);

/* What main() of a program `name` returns: runs the command and tells its error. */
int front_main(const char *name, front_command command, int argc, char **argv);
/* A command has that result, and closes what it has open: program_ends. */
void front_ends(oato_status status, const struct oato_error *err);

/* command.c: oato-run; and the same for a model without a verb, with which a person at a terminal
 * talks if it has a chat template. */
oato_status run_command(int argc, char **argv, struct oato_error *err);
oato_status model_command(int argc, char **argv, struct oato_error *err);

/* models.c: models of a hub, and those that are kept here. */
oato_status pull_command(int argc, char **argv, struct oato_error *err);
oato_status ls_command(int argc, char **argv, struct oato_error *err);
oato_status rm_command(int argc, char **argv, struct oato_error *err);

/* doctor.c: oato doctor. */
oato_status doctor_command(int argc, char **argv, struct oato_error *err);

/* selftest.c: oato-run selftest. */
oato_status selftest_command(int argc, char **argv, struct oato_error *err);

#endif
