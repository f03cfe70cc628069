/*
 * thinking.h - a grammar that begins behind the reasoning of an answer, and reasoning of so many
 * tokens at most.
 */
#ifndef OATO_THINKING_H
#define OATO_THINKING_H

#include "text/grammar.h"

/* Reasoning stands between two marks, and `begun` where the prompt ends in it. `most` tokens later
 * (-1: any number) it is ended: with `message`, if that is not NULL, and the mark. Behind it stands
 * what `follows` allows (NULL: anything, also further reasoning, which gets as many tokens). All is
 * borrowed but `message`. OATO_EUSAGE: it cannot be ended, for its mark is the end of the answer.
 */
struct thinking;
struct thinking_marks {
    const char *begin, *end;
    bool begun;
    int32_t most;
    const char *message;
};
oato_status thinking_create(struct grammar_state *follows, const struct tokenizer *tokenizer,
                            const struct thinking_marks *marks, struct thinking **out,
                            struct oato_error *err);
/* For a sampler, which borrows t. */
struct sampler_constraint thinking_constraint(struct thinking *t);
void thinking_free(struct thinking *t);

#endif
