/*
 * grammar_internal.h - a compiled grammar. The symbols of all alternatives lie one after the other,
 * each alternative closed by SYMBOL_END. A terminal is one code point of a set and is matched byte
 * by byte with a small automaton, so that a text may be cut anywhere, as tokens do.
 */
#ifndef OATO_GRAMMAR_INTERNAL_H
#define OATO_GRAMMAR_INTERNAL_H

#include "text/grammar.h"

enum symbol_kind { SYMBOL_END, SYMBOL_RULE, SYMBOL_CHAR };
struct symbol {
    enum symbol_kind kind;
    int32_t arg; /* a rule, or the automaton's first state */
};

/* States of automata; the others follow. */
enum { CHAR_REFUSED, CHAR_DONE, CHAR_FIRST };

struct grammar_rule {
    int32_t first, n; /* alternatives */
};

struct grammar {
    struct symbol *symbols;
    int32_t *alternatives; /* first symbol of each, grouped by rule */
    struct grammar_rule *rules;
    uint16_t (
        *next)[256]; /* of each state of an automaton and each byte; the first two are unused */
    int32_t root, n_rules;
};

/* ---------------------------------------------------------- code points (grammar_chars.c) --- */

/* Reads a character, perhaps an escape, of a literal or class: returns what is behind it. NULL, and
 * *why: there is none. */
const char *char_read(const char *at, const char *end, uint32_t *out, const char **why);

struct char_range {
    uint32_t first, last;
};
/* Sorts n ranges, joins those that touch, and with `negate` takes what lies between them (room for
 * one more is needed). Returns their number. */
int32_t char_ranges_tidy(struct char_range *r, int32_t n, bool negate);
enum { CHAR_BUCKETS = 1 << 12 };

/* Automata that were made, each state once. */
struct char_automata {
    uint16_t (*next)[256];
    uint16_t *chain; /* of each state the next of its bucket; 0: none */
    int32_t n, cap;
    uint16_t bucket[CHAR_BUCKETS];
    uint16_t any[4];    /* states before so many bytes that may be any; 0: not made */
    uint16_t high[128]; /* after bytes from 0x80 on, of what has all characters from there on .. */
    bool has_high;      /* .. as most classes that are negated; made */
    struct budget *budget; /* borrowed; NULL: no limits */
};
/* The first state for the code points in n sorted, disjoint ranges that do not touch; surrogates
 * never match. OATO_EUSAGE: more than 60,000 states, or the budget is spent. */
oato_status char_automaton(struct char_automata *a, const struct char_range *ranges, int32_t n,
                           int32_t *state, struct oato_error *err);

/* *rule: one that can begin with itself, other than as the last symbol all the way; -1: there is
 * none. */
oato_status grammar_left_recursion(const struct grammar *g, struct budget *budget, int32_t *rule,
                                   struct oato_error *err);

#endif
