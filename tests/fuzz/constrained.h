/*
 * constrained.h - what the targets of schemas and grammars share: texts of tokens that follow a
 * grammar, and the limits that every input is held to.
 */
#ifndef OATO_FUZZ_CONSTRAINED_H
#define OATO_FUZZ_CONSTRAINED_H

#include "text/grammar.h"

/* From now on the input takes time and memory. */
void limits_begin(void);
/* Aborts where it took more than 0.5 s of this thread's time (12 times as much with sanitizers and
 * libFuzzer's counters) or more than 100 MB. */
void limits_end(void);

/* A message is one line and has the status that was returned. */
void check_error(oato_status status, const struct oato_error *err);
/* Follows a grammar, which is freed, with tokens that the bytes choose: what a mask allows is
 * accepted, and nothing ends without a reason. */
void constrained_walk(struct grammar *g, const struct budget *left, const uint8_t *data,
                      size_t bytes);

#endif
