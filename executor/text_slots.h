/*
 * text_slots.h - the last texts of an engine, as ids under numbers: what is saved to a file by name
 * (text_file.h) is asked for so. Any thread.
 */
#ifndef OATO_TEXT_SLOTS_H
#define OATO_TEXT_SLOTS_H

#include "base/base.h"

struct text_slots;

/* n of them, all empty; NULL: memory is short. */
struct text_slots *text_slots_create(int32_t n);
void text_slots_free(struct text_slots *t); /* or NULL */
/* The text of a slot becomes this one, whose ids are taken over; NULL: none. Slot -1 is the one
 * whose text is the oldest. */
void text_slots_set(struct text_slots *t, int32_t slot, int32_t *ids, int32_t n);
/* A copy of a slot's text, to be freed. NULL, and *n is 0: it has none, or memory is short. */
int32_t *text_slots_get(struct text_slots *t, int32_t slot, int32_t *n);

#endif
