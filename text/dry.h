/*
 * dry.h - DRY's penalties (dry.c), for the sampler.
 */
#ifndef OATO_DRY_H
#define OATO_DRY_H

#include "text/sampler.h"

static inline bool dry_is_on(const struct dry_options *o)
{
    return o->multiplier > 0 && o->base >= 1 && o->last > 0;
}

struct dry;
/* The tokenizer is borrowed, as are prepared breakers. NULL: memory is short. */
struct dry *dry_create(const struct dry_options *o);
void dry_free(struct dry *d);
/* Adds a token of the text. */
void dry_accept(struct dry *d, int32_t id);
/* Sets what tokens lose, of a row of zeros for the vocabulary: those of the last `last`. dry_clear,
 * before the next token, makes them zeros again. */
void dry_penalties(struct dry *d, float *penalty);
void dry_clear(struct dry *d, float *penalty);

#endif
