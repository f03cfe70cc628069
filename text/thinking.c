/*
 * thinking.c - a grammar that begins behind the reasoning: what the model thinks is free, but that
 * it must come to an end, and after the mark that ends it the answer follows the grammar. A model
 * that may begin to think does so where it would by itself. Reasoning that has had its tokens is
 * ended: nothing but the tokens of its mark may come, once the last character is whole.
 */
#include "text/thinking.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPACE_BYTES = 8, /* between the reasoning and the answer */
    TOKEN_STEPS = 5, /* of a budget, to look at a token */
    CHAR_TOKENS = 3, /* that may be missing of a character */
};

struct thinking {
    struct grammar_state *follows; /* borrowed, as is the tokenizer; NULL: anything does */
    const struct tokenizer *tokenizer;
    const char *begin, *end;
    enum { MAY_THINK, THINKS, ENDS, SPACE, FOLLOWS, FREE } now;
    struct text seen;    /* the beginning of `begin`; or text at whose end a mark may begin */
    int32_t most, used;  /* tokens of the reasoning; most -1: any number */
    int32_t *ending;     /* the tokens that end it */
    size_t n_ending, at; /* at: of them, the next one */
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

/* Whether the mark ends in this text, and what follows it. */
static bool has_mark(const struct thinking *t, const char *mark, struct piece p, struct piece *rest)
{
    const size_t length = strlen(mark), before = t->seen.len;
    for (size_t from = before >= length ? before - length + 1 : 0; from + length <= before + p.n;
         from++) {
        size_t i = 0;
        while (i < length &&
               mark[i] == (from + i < before ? t->seen.data[from + i] : p.s[from + i - before]))
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
    if (t->now == ENDS)
        return id == t->ending[t->at];
    if (t->now == FREE || !t->follows)
        return true;
    if (t->now == THINKS)
        return !tokenizer_is_end(t->tokenizer, id) && (!has_mark(t, t->end, p, &rest) || !rest.n ||
                                                       grammar_allows(t->follows, rest.s, rest.n));
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
    if (t->now == ENDS) {
        const int32_t id = t->ending[t->at];
        memset(t->mask, 0, (size_t)(n + 63) / 64 * sizeof *t->mask);
        t->mask[id / 64] = UINT64_C(1) << (id % 64);
        *bits = t->mask;
        return MASK_READY;
    }
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

/* What a mark may begin in. */
static void see(struct thinking *t, const char *mark, struct piece p)
{
    const size_t kept = strlen(mark) - 1;
    text_add(&t->seen, p.s, p.n);
    if (t->seen.len <= kept)
        return;
    memmove(t->seen.data, t->seen.data + t->seen.len - kept, kept);
    t->seen.len = kept;
}

/* Whether what was seen ends within a character. */
static bool in_char(const struct thinking *t)
{
    size_t n = 1;
    while (n < t->seen.len && n < 4 && ((uint8_t)t->seen.data[t->seen.len - n] & 0xc0) == 0x80)
        n++;
    return n <= t->seen.len && !utf8_char(t->seen.data + t->seen.len - n, n);
}

static void thinking_begin(struct thinking *t)
{
    t->seen.len = t->at = 0;
    t->used = 0;
    t->now = t->most ? THINKS : ENDS;
}

static void thinking_end(struct thinking *t, struct piece rest)
{
    t->seen.len = 0;
    t->now = !t->follows                                            ? FREE
             : rest.n && grammar_accept(t->follows, rest.s, rest.n) ? FOLLOWS
                                                                    : SPACE;
}

/* A token of the reasoning. */
static void think(struct thinking *t, struct piece p)
{
    struct piece rest = {"", 0};
    if (has_mark(t, t->end, p, &rest)) {
        thinking_end(t, rest);
        return;
    }
    see(t, t->end, p);
    t->used++;
    if (t->most >= 0 && t->used >= t->most && (!in_char(t) || t->used >= t->most + CHAR_TOKENS))
        t->now = ENDS;
}

static void take(void *user, int32_t id)
{
    struct thinking *t = user;
    const struct piece p = text_of(t, id);
    struct piece rest = {"", 0};
    if (t->now == THINKS) {
        think(t, p);
    } else if (t->now == ENDS) {
        if (++t->at == t->n_ending)
            thinking_end(t, rest);
    } else if (t->now == FREE) {
        if (has_mark(t, t->begin, p, &rest))
            thinking_begin(t);
        else
            see(t, t->begin, p);
    } else if (!t->seen.len && grammar_accept_token(t->follows, id)) {
        t->now = FOLLOWS;
    } else if (t->now == SPACE) {
        t->spaces += p.n;
    } else if (t->now == MAY_THINK) {
        text_add(&t->seen, p.s, p.n);
        if (t->seen.len < strlen(t->begin))
            return;
        thinking_begin(t);
    }
}

/* The tokens that end the reasoning, of the message and the mark. */
static oato_status ending_make(struct thinking *t, const char *message, struct oato_error *err)
{
    struct text all;
    text_init(&all);
    text_printf(&all, "%s%s", or_empty(message), t->end);
    oato_status status =
        all.failed ? oato_fail_memory(err, all.len, "an answer")
                   : tokenizer_encode(t->tokenizer, all.data, all.len, TOKENIZE_PARSE_SPECIAL,
                                      &t->ending, &t->n_ending, err);
    text_free(&all);
    for (size_t i = 0; i < t->n_ending && !status; i++)
        if (tokenizer_is_end(t->tokenizer, t->ending[i]))
            status = oato_fail(err, OATO_EUSAGE,
                               "this model's reasoning cannot be limited: %.40s, which ends it, "
                               "ends the answer",
                               t->end);
    return status;
}

void thinking_free(struct thinking *t)
{
    if (!t)
        return;
    text_free(&t->seen);
    free(t->ending);
    free(t->mask);
    free(t);
}

oato_status thinking_create(struct grammar_state *follows, const struct tokenizer *tokenizer,
                            const struct thinking_marks *marks, struct thinking **out,
                            struct oato_error *err)
{
    const size_t words = (size_t)(tokenizer_size(tokenizer) + 63) / 64;
    struct thinking *t = *out = calloc(1, sizeof *t);
    if (!t)
        return oato_fail_memory(err, sizeof *t, "an answer");
    *t = (struct thinking){.follows = follows,
                           .tokenizer = tokenizer,
                           .begin = marks->begin,
                           .end = marks->end,
                           .most = marks->most,
                           .now = follows ? MAY_THINK : FREE};
    if (marks->begun)
        thinking_begin(t);
    t->mask = calloc(words, sizeof *t->mask);
    oato_status status = t->mask ? OATO_OK : oato_fail_memory(err, words * 8, "an answer");
    if (!status && t->most >= 0)
        status = ending_make(t, marks->message, err);
    if (!status)
        return OATO_OK;
    thinking_free(t);
    *out = NULL;
    return status;
}

struct sampler_constraint thinking_constraint(struct thinking *t)
{
    return (struct sampler_constraint){allows, mask, take, t};
}
