/*
 * grammar_chars.c - characters of a grammar, and sets of code points as automata over the bytes of
 * UTF-8. Equal states are kept once, so that most sets need one state of their own and share those
 * of continuation bytes.
 */
#include "text/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

enum { STATES_MOST = 60000, STATE_STEPS = 40, BLOCK_STEPS = 8 };

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static const char *hex_read(const char *at, const char *end, int digits, uint32_t *out,
                            const char **why)
{
    *out = 0;
    for (int i = 0; i < digits; i++, at++) {
        const int d = at < end ? hex_digit(*at) : -1;
        if (d < 0) {
            *why = "\\x, \\u and \\U want 2, 4 and 8 hexadecimal digits";
            return NULL;
        }
        *out = *out << 4 | (uint32_t)d;
    }
    *why = "an escape that is no Unicode character";
    return *out > 0x10ffff || (*out >= 0xd800 && *out < 0xe000) ? NULL : at;
}

/* Behind the backslash. */
static const char *escape_read(const char *at, const char *end, uint32_t *out, const char **why)
{
    static const char plain[] = "\"\\[]-^/'", letters[] = "nrt", stands[] = "\n\r\t";
    const char c = at < end ? *at++ : 0;
    const char *known = c ? strchr(letters, c) : NULL;
    if (c == 'x' || c == 'u' || c == 'U')
        return hex_read(at, end, c == 'x' ? 2 : c == 'u' ? 4 : 8, out, why);
    *out = known ? (uint32_t)stands[known - letters] : (uint32_t)(unsigned char)c;
    *why =
        "unknown escape; known are \\n \\r \\t \\\\ \\\" \\[ \\] \\- \\^ \\xHH \\uHHHH \\UHHHHHHHH";
    return known || (c && strchr(plain, c)) ? at : NULL;
}

const char *char_read(const char *at, const char *end, uint32_t *out, const char **why)
{
    if (at < end && *at == '\\')
        return escape_read(at + 1, end, out, why);
    const int n = utf8_char(at, (size_t)(end - at));
    *why = "the grammar is not UTF-8";
    if (n < 1)
        return NULL;
    const unsigned char *s = (const unsigned char *)at;
    *out = n == 1 ? s[0] : s[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++)
        *out = *out << 6 | (s[i] & 63u);
    return at + n;
}

/* ------------------------------------------------------------------------------------ ranges */

static int by_first(const void *a, const void *b)
{
    const struct char_range *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

int32_t char_ranges_tidy(struct char_range *r, int32_t n, bool negate)
{
    int32_t kept = 0;
    qsort(r, (size_t)n, sizeof *r, by_first);
    for (int32_t i = 0; i < n; i++) {
        if (kept && r[i].first <= r[kept - 1].last + 1)
            r[kept - 1].last = r[i].last > r[kept - 1].last ? r[i].last : r[kept - 1].last;
        else
            r[kept++] = r[i];
    }
    if (!negate)
        return kept;
    uint32_t from = 0;
    int32_t out = 0;
    for (int32_t i = 0; i < kept; i++) { /* out <= i: what was read is overwritten */
        const struct char_range hole = r[i];
        if (hole.first > from)
            r[out++] = (struct char_range){from, hole.first - 1};
        from = hole.last + 1;
    }
    if (from <= 0x10ffff)
        r[out++] = (struct char_range){from, 0x10ffff};
    return out;
}

/* ---------------------------------------------------------------------------------- automata */

/* Sorted ranges that do not touch, from the first on that a block of code points may meet. */
struct char_set {
    const struct char_range *at, *end;
};

enum coverage { COVERS_NONE, COVERS_SOME, COVERS_ALL };

/* Of [first, last], which lies behind all that was asked before: earlier ranges are passed. */
static enum coverage covers(struct char_set *s, uint32_t first, uint32_t last)
{
    while (s->at < s->end && s->at->last < first)
        s->at++;
    if (s->at == s->end || s->at->first > last)
        return COVERS_NONE;
    return s->at->first <= first && s->at->last >= last ? COVERS_ALL : COVERS_SOME;
}

static oato_status grow(struct char_automata *a, struct oato_error *err)
{
    const int32_t cap = a->cap ? 2 * a->cap : 64;
    if (a->n >= STATES_MOST)
        return oato_fail(err, OATO_EUSAGE, "too many different character classes");
    const size_t more = (size_t)(cap - a->cap) * (sizeof *a->next + sizeof *a->chain);
    if (budget_spend(a->budget, 0, more, "the grammar", err))
        return err->status;
    void *next = realloc(a->next, (size_t)cap * sizeof *a->next);
    if (!next)
        return oato_fail_memory(err, more, "a grammar");
    a->next = next;
    void *chain = realloc(a->chain, (size_t)cap * sizeof *a->chain);
    if (!chain)
        return oato_fail_memory(err, more, "a grammar");
    a->chain = chain;
    a->cap = cap;
    if (a->n < CHAR_FIRST) {
        memset(a->next, 0, CHAR_FIRST * sizeof *a->next);
        a->n = CHAR_FIRST;
    }
    return OATO_OK;
}

/* The state with these transitions; -1: it cannot be. */
static int32_t state_of(struct char_automata *a, const uint16_t next[256], struct oato_error *err)
{
    uint16_t *bucket = &a->bucket[hash_bytes(next, sizeof *a->next) % CHAR_BUCKETS];
    for (int32_t i = *bucket; i; i = a->chain[i])
        if (!memcmp(a->next[i], next, sizeof *a->next))
            return i;
    if (budget_spend(a->budget, STATE_STEPS, 0, "the grammar", err) ||
        (a->n >= a->cap && grow(a, err)))
        return -1;
    memcpy(a->next[a->n], next, sizeof *a->next);
    a->chain[a->n] = *bucket;
    *bucket = (uint16_t)a->n;
    return a->n++;
}

/* The state in which `left` more continuation bytes may be any. */
static int32_t any(struct char_automata *a, int left, struct oato_error *err)
{
    uint16_t next[256] = {0};
    if (a->any[left])
        return a->any[left];
    const int32_t to = left == 1 ? CHAR_DONE : any(a, left - 1, err);
    for (int byte = 0x80; byte < 0xc0 && to >= 0; byte++)
        next[byte] = (uint16_t)to;
    const int32_t state = to < 0 ? -1 : state_of(a, next, err);
    a->any[left] = (uint16_t)max_i64(state, 0);
    return state;
}

static int32_t continued(struct char_automata *a, struct char_set s, uint32_t prefix, int left,
                         uint32_t least, struct oato_error *err);

/* What follows the byte that completes the leading bits `value`, where `left` more are to come, for
 * the code points of the set from `least` on, below which an encoding would be longer than needed.
 * -1: it cannot be. */
static int32_t after(struct char_automata *a, struct char_set *s, uint32_t value, int left,
                     uint32_t least, struct oato_error *err)
{
    const uint32_t bits = 6 * (uint32_t)left, first = value << bits;
    const uint32_t last = first + (1u << bits) - 1;
    if (last < least)
        return CHAR_REFUSED;
    switch (covers(s, first < least ? least : first, last)) {
    case COVERS_NONE: return CHAR_REFUSED;
    case COVERS_ALL:
        if (!left)
            return CHAR_DONE;
        if (first >= least)
            return any(a, left, err);
        break;
    case COVERS_SOME: break;
    }
    return continued(a, *s, value, left, least, err);
}

/* The state in which `left` more bytes are to come after the leading bits `prefix`. At most three
 * of them are within each other. */
static int32_t continued(struct char_automata *a, struct char_set s, uint32_t prefix, int left,
                         uint32_t least, struct oato_error *err)
{
    uint16_t next[256] = {0};
    if (budget_spend(a->budget, BLOCK_STEPS, 0, "the grammar", err))
        return -1;
    for (uint32_t byte = 0; byte < 64; byte++) {
        const int32_t to = after(a, &s, prefix << 6 | byte, left - 1, least, err);
        if (to < 0)
            return -1;
        next[0x80 | byte] = (uint16_t)to;
    }
    return state_of(a, next, err);
}

/* Without the surrogates; returns their number, at most twice n. */
static size_t ranges_valid(const struct char_range *ranges, int32_t n, struct char_range *kept)
{
    static const struct char_range valid[] = {{0, 0xd7ff}, {0xe000, 0x10ffff}};
    size_t out = 0;
    for (int32_t i = 0; i < n; i++) {
        for (size_t v = 0; v < ARRAY_LEN(valid); v++) {
            const uint32_t first =
                ranges[i].first > valid[v].first ? ranges[i].first : valid[v].first;
            const uint32_t last = ranges[i].last < valid[v].last ? ranges[i].last : valid[v].last;
            if (first <= last)
                kept[out++] = (struct char_range){first, last};
        }
    }
    return out;
}

/* All from U+0080 on. */
static bool has_all_high(const struct char_range *kept, size_t n)
{
    return n > 1 && kept[n - 1].first == 0xe000 && kept[n - 1].last == 0x10ffff &&
           kept[n - 2].first <= 0x80 && kept[n - 2].last == 0xd7ff;
}

oato_status char_automaton(struct char_automata *a, const struct char_range *ranges, int32_t n,
                           int32_t *state, struct oato_error *err)
{
    static const struct {
        uint32_t begin, end, least; /* lead bytes, and the least code point that they encode */
        int left;
    } leads[] = {{0x00, 0x80, 0, 0},
                 {0xc0, 0xe0, 0x80, 1},
                 {0xe0, 0xf0, 0x800, 2},
                 {0xf0, 0xf5, 0x10000, 3}};
    uint16_t next[256] = {0};
    struct char_range few[2], *kept = n > 1 ? malloc(2 * (size_t)n * sizeof *kept) : few;
    if (!kept)
        return oato_fail_memory(err, (size_t)n * sizeof *kept, "a grammar");
    const size_t valid = ranges_valid(ranges, n, kept);
    struct char_set s = {kept, kept + valid};
    const bool high = has_all_high(kept, valid);
    *state = budget_spend(a->budget, STATE_STEPS + (uint64_t)n, 0, "the grammar", err) ? -1 : 0;
    for (size_t i = 0; i < (high && a->has_high ? 1 : ARRAY_LEN(leads)) && *state >= 0; i++) {
        for (uint32_t byte = leads[i].begin; byte < leads[i].end && *state >= 0; byte++) {
            *state = after(a, &s, byte - leads[i].begin, leads[i].left, leads[i].least, err);
            next[byte] = (uint16_t)*state;
        }
    }
    if (high && *state >= 0) {
        memcpy(a->has_high ? next + 0x80 : a->high, a->has_high ? a->high : next + 0x80,
               sizeof a->high);
        a->has_high = true;
    }
    if (*state >= 0)
        *state = state_of(a, next, err);
    if (kept != few)
        free(kept);
    return *state < 0 ? err->status : OATO_OK;
}
