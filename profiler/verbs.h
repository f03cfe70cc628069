/*
 * verbs.h - what main.c of oato-profile leaves to other files of the program.
 */
#ifndef OATO_PROFILER_VERBS_H
#define OATO_PROFILER_VERBS_H

#include "profiler/profiler.h"

/* oato-profile neurons: argv[0] is the verb. Prints to stdout. */
oato_status run_neurons(int argc, char **argv, struct oato_error *err);

#endif
