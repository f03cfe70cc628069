/*
 * grammar_state.h - what the files of grammar states share: sets of readings have numbers, and a
 * table tells the set that a byte leads to.
 */
#ifndef OATO_GRAMMAR_STATE_H
#define OATO_GRAMMAR_STATE_H

#include "executor/grammar_internal.h"

/* Numbers of sets. SET_UNKNOWN is a table entry that is not made yet; a dead set has no readings.
 */
enum { SET_UNKNOWN, SET_DEAD, SET_FIRST };

struct grammar_machine; /* the tables */

enum { MASKS_KEPT = 4 };
struct grammar_mask {
    uint32_t set; /* SET_UNKNOWN: unused */
    uint64_t *bits;
};

struct grammar_state {
    const struct grammar *grammar;
    const struct grammar_vocab *vocab; /* NULL: none */
    struct grammar_machine *machine;
    uint16_t (*next)[256]; /* the machine's table */
    uint32_t set;          /* where the text is */
    struct grammar_mask masks[MASKS_KEPT];
    int32_t next_mask;
    uint16_t *path; /* sets after each byte of a token */
};

/* Makes the table entry of a set and a byte. SET_UNKNOWN: the tables are full. */
uint32_t grammar_step_make(struct grammar_state *s, uint32_t set, unsigned char byte);
static inline uint32_t grammar_step(struct grammar_state *s, uint32_t set, unsigned char byte)
{
    const uint32_t to = s->next[set][byte];
    return to != SET_UNKNOWN ? to : grammar_step_make(s, set, byte);
}
/* Drops all sets but the current one, whose number changes. False: memory is short, and nothing has
 * changed. */
bool grammar_drop(struct grammar_state *s);
/* The set after n bytes from the current one; may drop all others. SET_DEAD also where the tables
 * cannot hold what the bytes need. */
uint32_t grammar_walk(struct grammar_state *s, const char *bytes, size_t n);
void grammar_masks_free(struct grammar_state *s);
/* Room for masks and a path. */
bool grammar_masks_alloc(struct grammar_state *s);

#endif
