/*
 * thinking.h - a grammar that begins behind the reasoning of an answer.
 */
#ifndef OATO_THINKING_H
#define OATO_THINKING_H

#include "text/grammar.h"

/* `follows` behind reasoning between two marks; begun: the prompt ends in it. All is borrowed.
 * NULL: memory is short. */
struct thinking;
struct thinking *thinking_create(struct grammar_state *follows, const struct tokenizer *tokenizer,
                                 const char *begin, const char *end, bool begun);
/* For a sampler, which borrows t. */
struct sampler_constraint thinking_constraint(struct thinking *t);
void thinking_free(struct thinking *t);

#endif
