/*
 * dry.h - DRY's penalties (dry.c), for the sampler.
 */
#ifndef OATO_DRY_H
#define OATO_DRY_H

#include "executor/executor.h"

static inline bool dry_is_on(const struct dry_options *o)
{
    return o->multiplier > 0 && o->base >= 1 && o->last > 0;
}

struct dry;
/* The breakers are copied, the tokenizer is borrowed. NULL: memory is short. */
struct dry *dry_create(const struct dry_options *o, int32_t vocab);
void dry_free(struct dry *d);
/* Adds a token of the text. */
void dry_accept(struct dry *d, int32_t id);
/* What each token of the vocabulary loses: zeros but for those of the last `last`. Call dry_clear
 * before the next token. */
const float *dry_penalties(struct dry *d);
void dry_clear(struct dry *d);

#endif
