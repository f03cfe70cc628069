/*
 * together.h - the ranks of a plan, each a fork of the test's process: they run a prompt and a step
 * of decode, and tell of the engine afterwards.
 */
#ifndef OATO_TOGETHER_H
#define OATO_TOGETHER_H

#include "executor/executor.h"
#include "tests/kernels/fork_transport.h"

/* Engines are opened with the options and ranks of their own; out[rank], for each rank, is what
 * engine_get_stats says. Fails the test when a rank fails. */
void together_run(const struct model *m, const struct plan *p, const struct engine_options *o,
                  int32_t prompt, struct engine_stats out[FORK_RANKS]);

#endif
