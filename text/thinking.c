/*
 * thinking.c - a grammar that begins behind the reasoning: what the model thinks is free, but that
 * it must come to an end, and after the mark that ends it the answer follows the grammar. A model
 * that may begin to think does so where it would by itself.
 */
#include "text/thinking.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPACE_BYTES = 8, /* between the reasoning and the answer */
    TOKEN_STEPS = 5, /* of a budget, to look at a token */
};

struct thinking {
    struct grammar_state *follows; /* borrowed, as is the tokenizer */
    const struct tokenizer *tokenizer;
    const char *begin, *end;
    enum { MAY_THINK, THINKS, SPACE, FOLLOWS } now;
    struct text seen; /* the beginning of `begin`; or text at whose end `end` may begin */
    size_t spaces;
    uint64_t *mask;
    int32_t filled; /* tokens that were looked at, while the mask is made */
};

struct piece {
    const char *s;
    size_t n;
};

static struct piece text_of(const struct thinking *t, int32_t id)
{
    struct piece p = {"", 0};
    tokenizer_piece(t->tokenizer, id, true, &p.s, &p.n);
    return p;
}

static struct piece without_space(struct piece p)
{
    while (p.n && isspace((unsigned char)*p.s)) {
        p.s++;
        p.n--;
    }
    return p;
}

/* Does the beginning of the mark go on with this text? */
static bool begins(const struct thinking *t, struct piece p)
{
    const size_t left = strlen(t->begin) - t->seen.len;
    return p.n && !memcmp(t->begin + t->seen.len, p.s, p.n < left ? p.n : left);
}

/* Whether the reasoning ends in this text, and what follows its mark. */
static bool ends(const struct thinking *t, struct piece p, struct piece *rest)
{
    const size_t length = strlen(t->end), before = t->seen.len;
    for (size_t from = before >= length ? before - length + 1 : 0; from + length <= before + p.n;
         from++) {
        size_t i = 0;
        while (i < length &&
               t->end[i] == (from + i < before ? t->seen.data[from + i] : p.s[from + i - before]))
            i++;
        if (i < length || from + length <= before)
            continue;
        const size_t used = from + length - before;
        *rest = without_space((struct piece){p.s + used, p.n - used});
        return true;
    }
    return false;
}

static bool allows(void *user, int32_t id)
{
    struct thinking *t = user;
    const struct piece p = text_of(t, id);
    struct piece rest = {"", 0};
    if (t->now == THINKS)
        return !tokenizer_is_end(t->tokenizer, id) &&
               (!ends(t, p, &rest) || !rest.n || grammar_allows(t->follows, rest.s, rest.n));
    if (t->now == MAY_THINK && t->seen.len)
        return begins(t, p);
    if (grammar_allows_token(t->follows, id))
        return true;
    if (t->now == MAY_THINK)
        return begins(t, p);
    return t->now == SPACE && p.n && !without_space(p).n && t->spaces + p.n <= SPACE_BYTES;
}

static enum sampler_mask mask(void *user, uint64_t steps, const uint64_t **bits)
{
    struct thinking *t = user;
    const int32_t n = tokenizer_size(t->tokenizer);
    *bits = NULL;
    if (t->now != THINKS && !t->seen.len)
        return grammar_mask(t->follows, steps, bits);
    if (!t->filled)
        memset(t->mask, 0, (size_t)(n + 63) / 64 * sizeof *t->mask);
    for (uint64_t used = 0; t->filled < n && used < steps; t->filled++) {
        const uint64_t before = grammar_state_used(t->follows);
        if (allows(t, t->filled))
            t->mask[t->filled / 64] |= UINT64_C(1) << (t->filled % 64);
        used += TOKEN_STEPS + grammar_state_used(t->follows) - before;
    }
    if (grammar_state_error(t->follows))
        return MASK_FAILED;
    if (t->filled < n)
        return MASK_MORE;
    t->filled = 0;
    *bits = t->mask;
    return MASK_READY;
}

/* A token of the reasoning. */
static void think(struct thinking *t, struct piece p)
{
    struct piece rest = {"", 0};
    const size_t kept = strlen(t->end) - 1;
    if (ends(t, p, &rest)) {
        t->seen.len = 0;
        t->now = rest.n && grammar_accept(t->follows, rest.s, rest.n) ? FOLLOWS : SPACE;
        return;
    }
    text_add(&t->seen, p.s, p.n);
    if (t->seen.len <= kept)
        return;
    memmove(t->seen.data, t->seen.data + t->seen.len - kept, kept);
    t->seen.len = kept;
}

static void take(void *user, int32_t id)
{
    struct thinking *t = user;
    const struct piece p = text_of(t, id);
    if (t->now == THINKS) {
        think(t, p);
    } else if (!t->seen.len && grammar_accept_token(t->follows, id)) {
        t->now = FOLLOWS;
    } else if (t->now == SPACE) {
        t->spaces += p.n;
    } else if (t->now == MAY_THINK) {
        text_add(&t->seen, p.s, p.n);
        if (t->seen.len < strlen(t->begin))
            return;
        t->seen.len = 0;
        t->now = THINKS;
    }
}

struct thinking *thinking_create(struct grammar_state *follows, const struct tokenizer *tokenizer,
                                 const char *begin, const char *end, bool begun)
{
    struct thinking *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    *t = (struct thinking){.follows = follows,
                           .tokenizer = tokenizer,
                           .begin = begin,
                           .end = end,
                           .now = begun ? THINKS : MAY_THINK};
    t->mask = calloc((size_t)(tokenizer_size(tokenizer) + 63) / 64, sizeof *t->mask);
    if (t->mask)
        return t;
    free(t);
    return NULL;
}

struct sampler_constraint thinking_constraint(struct thinking *t)
{
    return (struct sampler_constraint){allows, mask, take, t};
}

void thinking_free(struct thinking *t)
{
    if (!t)
        return;
    text_free(&t->seen);
    free(t->mask);
    free(t);
}
