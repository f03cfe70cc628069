/*
 * story.h - one run with all that sequences can do, whose logits do not depend on where KV is.
 */
#ifndef OATO_EXECUTOR_STORY_H
#define OATO_EXECUTOR_STORY_H

#include "tests/executor/harness.h"

/* A step has STORY_CHUNK tokens at most, the engine needs at least as many sequences. */
enum { STORY_CHUNK = 40, STORY_SEQS = 3 };

/* What an engine has said: n rows of logits. */
struct told {
    struct engine *e;
    float *said;
    size_t n, vocab;
};

/* Opens an engine and tells it the story: prompts in chunks, one sequence beside another, a fork in
 * the middle of a page whose branches go on together, one that is cut back, pages that another
 * sequence had before, and a fork that reads a prompt beside another one's decode. */
struct told story_of(const struct model *m, const struct plan *p, struct engine_options options);

#endif
