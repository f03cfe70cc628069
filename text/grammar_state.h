/*
 * grammar_state.h - what the files of grammar states share: sets of readings have numbers, and a
 * table tells the set that a byte leads to.
 */
#ifndef OATO_GRAMMAR_STATE_H
#define OATO_GRAMMAR_STATE_H

#include "text/grammar_internal.h"

/* Numbers of sets. SET_UNKNOWN is a table entry that is not made yet; a dead set has no readings.
 */
enum { SET_UNKNOWN, SET_DEAD, SET_FIRST };

struct grammar_machine; /* the tables */

enum {
    SET_MOST = 4096,      /* readings */
    DEPTH_MOST = 1000,    /* rules within each other */
    DROP_STEPS = 1 << 12, /* of a budget: dropping the tables */
    MASKS_KEPT = 4,
};
struct grammar_mask {
    uint32_t set; /* SET_UNKNOWN: unused */
    uint64_t *bits;
};

/* Sets that were asked last: all plain characters lead from `loops` to itself, and not so from
 * `other`. */
struct grammar_loops {
    uint32_t loops, other;
};

/* A mask that is being made: the tokens before the i-th are in it. */
struct grammar_filling {
    struct grammar_mask *mask; /* NULL: none is */
    struct grammar_loops loops;
    int32_t i, known; /* known: bytes of the path */
    size_t rest;      /* where the i-th token's lie */
    bool some;
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
    struct grammar_filling filling;
    /* Steps of a budget that were used, and how many may be: each token of the text adds some,
     * up to `steps_most` that are left. */
    uint64_t used, limit, steps_most;
    size_t bytes_most; /* of the machine */
    bool cut;          /* a text was refused for its number of readings or nested rules */
    struct oato_error error;
};

/* The budget is spent: whatever is asked is refused. */
static inline bool grammar_spent(const struct grammar_state *s)
{
    return s->used > s->limit;
}

/* Makes the table entry of a set and a byte. SET_UNKNOWN: the tables are full. SET_DEAD, which is
 * not kept: the budget is spent. */
uint32_t grammar_step_make(struct grammar_state *s, uint32_t set, unsigned char byte);
static inline uint32_t grammar_step(struct grammar_state *s, uint32_t set, unsigned char byte)
{
    const uint32_t to = s->next[set][byte];
    return to != SET_UNKNOWN ? to : grammar_step_make(s, set, byte);
}
/* With the bottom frame and the dead set, of at most so many bytes; NULL: memory is short. */
struct grammar_machine *grammar_machine_create(size_t bytes_most);
void grammar_machine_bytes(struct grammar_machine *m, size_t bytes_most);
void grammar_machine_free(struct grammar_machine *m);
/* The table of a machine, which grammar_step_make may move. */
uint16_t (*grammar_machine_next(struct grammar_machine *m))[256];
/* The set at the beginning of a text, SET_DEAD or SET_UNKNOWN. */
uint32_t grammar_machine_begin(struct grammar_state *s);
/* Copies a set of another machine with the frames that it needs. False: memory is short. */
bool grammar_machine_copy(struct grammar_machine *m, const struct grammar_machine *from,
                          uint32_t set, uint32_t *to);
bool grammar_machine_complete(const struct grammar_machine *m, uint32_t set);
/* Drops all sets but the current one, whose number changes. False: memory is short, and nothing has
 * changed. */
bool grammar_drop(struct grammar_state *s);
/* The set after n bytes from the current one; may drop all others. SET_DEAD also where the tables
 * cannot hold what the bytes need, and where the budget is spent. */
uint32_t grammar_walk(struct grammar_state *s, const char *bytes, size_t n);
/* How many tokens have a text; 0 without a vocabulary. */
int32_t grammar_vocab_tokens(const struct grammar_vocab *v);
void grammar_masks_free(struct grammar_state *s);
/* Room for masks and a path. */
bool grammar_masks_alloc(struct grammar_state *s);

#endif
