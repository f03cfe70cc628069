/*
 * grammar_chars.c - sets of code points as automata over the bytes of UTF-8. Equal states are kept
 * once, so that most sets need one state of their own and share those of continuation bytes.
 */
#include "executor/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

enum { STATES_MOST = 60000 };

struct char_set {
    const struct char_range *ranges;
    int32_t n;
};

enum coverage { COVERS_NONE, COVERS_SOME, COVERS_ALL };

static enum coverage covers(const struct char_set *s, uint32_t first, uint32_t last)
{
    enum coverage c = COVERS_NONE;
    for (int32_t i = 0; i < s->n; i++) {
        if (s->ranges[i].first <= first && s->ranges[i].last >= last)
            return COVERS_ALL;
        if (s->ranges[i].first <= last && s->ranges[i].last >= first)
            c = COVERS_SOME;
    }
    return c;
}

/* The state with these transitions; -1: no room. */
static int32_t state_of(struct char_automata *a, const uint16_t next[256])
{
    for (int32_t i = CHAR_FIRST; i < a->n; i++)
        if (!memcmp(a->next[i], next, sizeof a->next[i]))
            return i;
    if (a->n >= a->cap) {
        const int32_t cap = a->cap ? 2 * a->cap : 64;
        void *grown = a->n < STATES_MOST ? realloc(a->next, (size_t)cap * sizeof *a->next) : NULL;
        if (!grown)
            return -1;
        a->next = grown;
        a->cap = cap;
    }
    if (a->n < CHAR_FIRST) {
        memset(a->next, 0, CHAR_FIRST * sizeof *a->next);
        a->n = CHAR_FIRST;
    }
    memcpy(a->next[a->n], next, sizeof a->next[a->n]);
    return a->n++;
}

/* The state in which `left` more continuation bytes may be any. */
static int32_t any(struct char_automata *a, int left)
{
    uint16_t next[256] = {0};
    const int32_t to = left == 1 ? CHAR_DONE : any(a, left - 1);
    for (int byte = 0x80; byte < 0xc0 && to >= 0; byte++)
        next[byte] = (uint16_t)to;
    return to < 0 ? -1 : state_of(a, next);
}

/* The state in which `left` more bytes are to come after the leading bits `prefix`, for the code
 * points of the set from `least` on, below which an encoding would be longer than needed. */
static int32_t continued(struct char_automata *a, const struct char_set *s, uint32_t prefix,
                         int left, uint32_t least)
{
    uint16_t next[256] = {0};
    for (uint32_t byte = 0; byte < 64; byte++) {
        const uint32_t value = prefix << 6 | byte, bits = 6 * (uint32_t)(left - 1);
        const uint32_t first = value << bits, last = first + (1u << bits) - 1;
        const enum coverage c =
            last < least ? COVERS_NONE : covers(s, first < least ? least : first, last);
        if (c == COVERS_NONE)
            continue;
        const int32_t to = left == 1 ? CHAR_DONE
                           : c == COVERS_ALL && first >= least
                               ? any(a, left - 1)
                               : continued(a, s, value, left - 1, least);
        if (to < 0)
            return -1;
        next[0x80 | byte] = (uint16_t)to;
    }
    return state_of(a, next);
}

/* States for lead bytes [begin, end) of characters of 1 + left bytes. */
static bool leads(struct char_automata *a, const struct char_set *s, uint32_t begin, uint32_t end,
                  int left, uint32_t least, uint16_t next[256])
{
    const uint32_t bits = 6 * (uint32_t)left;
    for (uint32_t byte = begin; byte < end; byte++) {
        const uint32_t prefix = byte - begin, first = prefix << bits;
        const uint32_t last = first + (1u << bits) - 1;
        const enum coverage c =
            last < least ? COVERS_NONE : covers(s, first < least ? least : first, last);
        if (c == COVERS_NONE)
            continue;
        const int32_t to =
            c == COVERS_ALL && first >= least ? any(a, left) : continued(a, s, prefix, left, least);
        if (to < 0)
            return false;
        next[byte] = (uint16_t)to;
    }
    return true;
}

int32_t char_automaton(struct char_automata *a, const struct char_range *ranges, int32_t n)
{
    uint16_t next[256] = {0};
    struct char_range *kept = malloc((2 * (size_t)n + 1) * sizeof *kept);
    struct char_set s = {kept, 0};
    if (!kept)
        return -1;
    for (int32_t i = 0; i < n; i++) { /* without the surrogates */
        static const struct char_range valid[] = {{0, 0xd7ff}, {0xe000, 0x10ffff}};
        for (size_t v = 0; v < ARRAY_LEN(valid); v++) {
            const uint32_t first =
                ranges[i].first > valid[v].first ? ranges[i].first : valid[v].first;
            const uint32_t last = ranges[i].last < valid[v].last ? ranges[i].last : valid[v].last;
            if (first <= last)
                kept[s.n++] = (struct char_range){first, last};
        }
    }
    for (uint32_t c = 0; c < 0x80; c++)
        next[c] = covers(&s, c, c) == COVERS_ALL ? CHAR_DONE : CHAR_REFUSED;
    const bool made = leads(a, &s, 0xc0, 0xe0, 1, 0x80, next) &&
                      leads(a, &s, 0xe0, 0xf0, 2, 0x800, next) &&
                      leads(a, &s, 0xf0, 0xf5, 3, 0x10000, next);
    free(kept);
    return made ? state_of(a, next) : -1;
}
