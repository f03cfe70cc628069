/*
 * grammar_mask.c - grammars over the tokens of a vocabulary. The tokens are sorted by their bytes,
 * so that each shares its beginning with the one before: a mask walks only the bytes behind that,
 * which lie in one stream, and skips what shares a beginning that was refused.
 */
#include "text/grammar_state.h"

#include <stdlib.h>
#include <string.h>

enum { PATH_STEP = 8 };

struct vocab_token {
    int32_t id;
    uint16_t shared;    /* bytes in common with the token before */
    uint16_t rest : 15; /* bytes behind those */
    uint16_t plain : 1; /* the rest is of plain characters only */
};

struct grammar_vocab {
    const struct tokenizer *tokenizer;
    struct vocab_token *tokens; /* those with text */
    char *rests;                /* their bytes that are not shared, in their order */
    int32_t *ends;              /* tokens that end an answer */
    int32_t n_tokens, n_ends, size, longest;
};

/* What most tokens consist of, and what stands for itself in strings of most languages. */
static bool is_plain(char c)
{
    return c >= ' ' && c <= '~' && c != '"' && c != '\\';
}

/* A token's bytes, from the tokenizer; 0 bytes: it has no text that a grammar could match. */
static size_t token_bytes(const struct tokenizer *t, int32_t id, const char **bytes)
{
    size_t n;
    return tokenizer_piece(t, id, false, bytes, &n) && n <= INT16_MAX ? n : 0;
}

struct sortable {
    const char *bytes;
    size_t n;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct sortable *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    return order ? order : x->n != y->n ? (x->n < y->n ? -1 : 1) : x->id - y->id;
}

static size_t in_common(const struct sortable *x, const struct sortable *y)
{
    size_t n = 0;
    while (n < x->n && n < y->n && x->bytes[n] == y->bytes[n])
        n++;
    return n;
}

static void vocab_fill(struct grammar_vocab *v, const struct sortable *sorted)
{
    char *rest = v->rests;
    for (int32_t i = 0; i < v->n_tokens; i++) {
        const struct sortable *x = &sorted[i];
        const size_t shared = i ? in_common(x, x - 1) : 0;
        bool plain = true;
        for (size_t b = shared; b < x->n; b++) {
            *rest++ = x->bytes[b];
            plain = plain && is_plain(x->bytes[b]);
        }
        v->tokens[i] = (struct vocab_token){x->id, (uint16_t)shared,
                                            (uint16_t)(x->n - shared) & INT16_MAX, plain};
        v->longest = v->longest < (int32_t)x->n ? (int32_t)x->n : v->longest;
    }
}

oato_status grammar_vocab_create(const struct tokenizer *t, struct grammar_vocab **out,
                                 struct oato_error *err)
{
    struct grammar_vocab *v = calloc(1, sizeof *v);
    const int32_t size = tokenizer_size(t);
    const size_t room = (size_t)size + 1;
    struct sortable *sorted = malloc(room * sizeof *sorted);
    int32_t *ends = malloc(room * sizeof *ends);
    struct vocab_token *tokens = malloc(room * sizeof *tokens);
    size_t bytes = 1;
    *out = NULL;
    if (!v || !sorted || !ends || !tokens)
        goto fail;
    *v = (struct grammar_vocab){.tokenizer = t, .tokens = tokens, .ends = ends, .size = size};
    for (int32_t id = 0; id < size; id++) {
        struct sortable x = {.id = id};
        x.n = token_bytes(t, id, &x.bytes);
        if (tokenizer_is_end(t, id))
            ends[v->n_ends++] = id;
        else if (x.n)
            sorted[v->n_tokens++] = x;
        bytes += x.n;
    }
    qsort(sorted, (size_t)v->n_tokens, sizeof *sorted, by_bytes);
    v->rests = malloc(bytes);
    if (!v->rests)
        goto fail;
    vocab_fill(v, sorted);
    free(sorted);
    *out = v;
    return OATO_OK;
fail:
    free(v);
    free(sorted);
    free(ends);
    free(tokens);
    return oato_fail_memory(err, room * sizeof *sorted, "the vocabulary");
}

void grammar_vocab_free(struct grammar_vocab *v)
{
    if (!v)
        return;
    free(v->tokens);
    free(v->rests);
    free(v->ends);
    free(v);
}

static size_t words(const struct grammar_vocab *v)
{
    return ((size_t)v->size + 63) / 64;
}

bool grammar_masks_alloc(struct grammar_state *s)
{
    if (!s->vocab)
        return true;
    s->path = malloc(((size_t)s->vocab->longest + 1 + PATH_STEP) * sizeof *s->path);
    bool room = s->path;
    for (int i = 0; i < MASKS_KEPT && room; i++) {
        s->masks[i].bits = malloc((words(s->vocab) + 1) * sizeof *s->masks[i].bits);
        room = s->masks[i].bits;
    }
    return room;
}

void grammar_masks_free(struct grammar_state *s)
{
    for (int i = 0; i < MASKS_KEPT; i++)
        free(s->masks[i].bits);
    free(s->path);
}

int32_t grammar_vocab_tokens(const struct grammar_vocab *v)
{
    return v ? v->n_tokens : 0;
}

/* Walks n bytes from where the path has `known`, as far as they are allowed; returns how many bytes
 * the path then has. *full: the tables were, before the end. */
static int32_t path_walk(struct grammar_state *s, int32_t known, const char *bytes, int32_t n,
                         bool *full)
{
    uint32_t set = s->path[known];
    *full = false;
    for (int32_t i = 0; i < n; i++) {
        set = grammar_step(s, set, (unsigned char)bytes[i]);
        if (set <= SET_DEAD) {
            *full = set == SET_UNKNOWN;
            return known;
        }
        s->path[++known] = (uint16_t)set;
    }
    return known;
}

/* The same for a whole token with emptied tables. */
static int32_t path_again(struct grammar_state *s, int32_t id)
{
    const char *bytes;
    bool full = true;
    int32_t known = 0;
    if (grammar_drop(s)) {
        s->path[0] = (uint16_t)s->set;
        const size_t n = token_bytes(s->vocab->tokenizer, id, &bytes);
        known = path_walk(s, 0, bytes, (int32_t)n, &full);
    }
    s->cut = s->cut || full;
    return known;
}

/* In the middle of a string a plain token leads nowhere else, so it need not be walked. */
static bool is_loop(struct grammar_state *s, struct grammar_loops *known, uint32_t set)
{
    if (set == known->loops || set == known->other)
        return set == known->loops;
    bool loops = true;
    for (int c = ' '; c <= '~' && loops; c++)
        loops = !is_plain((char)c) || grammar_step(s, set, (unsigned char)c) == set;
    *(loops ? &known->loops : &known->other) = set;
    return loops;
}

static void mask_set(uint64_t *bits, int32_t id)
{
    bits[id / 64] |= (uint64_t)1 << (id % 64);
}

static void filling_begin(struct grammar_state *s)
{
    s->filling = (struct grammar_filling){.mask = &s->masks[s->next_mask],
                                          .loops = {SET_UNKNOWN, SET_UNKNOWN}};
    s->next_mask = (s->next_mask + 1) % MASKS_KEPT;
    s->filling.mask->set = SET_UNKNOWN;
    memset(s->filling.mask->bits, 0, words(s->vocab) * sizeof *s->filling.mask->bits);
    s->path[0] = (uint16_t)s->set;
}

/* The path's bytes after a token whose beginning is on it. */
static int32_t token_walk(struct grammar_state *s, struct grammar_filling *f,
                          const struct vocab_token *x)
{
    const uint16_t set = s->path[x->shared];
    const int32_t all = x->shared + x->rest;
    bool full;
    if (x->plain && is_loop(s, &f->loops, set)) {
        int32_t b = x->shared;
        do /* in fixed steps, which predict well */
            for (int k = 0; k < PATH_STEP; k++)
                s->path[++b] = set;
        while (b < all);
        return all;
    }
    int32_t known = path_walk(s, x->shared, s->vocab->rests + f->rest, x->rest, &full);
    if (full) {
        known = path_again(s, x->id);
        f->loops = (struct grammar_loops){SET_UNKNOWN, SET_UNKNOWN};
    }
    return known;
}

/* Goes on until `stop` steps are used. False: there is more to do. */
static bool fill(struct grammar_state *s, uint64_t stop)
{
    const struct grammar_vocab *v = s->vocab;
    struct grammar_filling *f = &s->filling;
    for (; f->i < v->n_tokens; f->i++) {
        const struct vocab_token x = v->tokens[f->i];
        if (x.shared <= f->known) { /* else the byte behind the path was refused */
            if (s->used >= stop)
                return false;
            s->used++;
            f->known = token_walk(s, f, &x);
            if (f->known == x.shared + x.rest) {
                mask_set(f->mask->bits, x.id);
                f->some = true;
            }
        }
        f->rest += x.rest;
    }
    return true;
}

enum sampler_mask grammar_mask(struct grammar_state *s, uint64_t steps, const uint64_t **bits)
{
    const struct grammar_vocab *v = s->vocab;
    *bits = NULL;
    for (int i = 0; i < MASKS_KEPT; i++)
        if (s->masks[i].set == s->set)
            *bits = s->masks[i].bits;
    if (*bits)
        return MASK_READY;
    if (!s->filling.mask)
        filling_begin(s);
    const uint64_t stop = steps < UINT64_MAX - s->used ? s->used + steps : UINT64_MAX;
    const bool filled = !grammar_spent(s) &&
                        fill(s, stop < s->limit || s->limit == UINT64_MAX ? stop : s->limit + 1);
    struct grammar_mask *m = s->filling.mask;
    if (grammar_spent(s))
        return MASK_FAILED;
    if (!filled)
        return MASK_MORE;
    const bool complete = grammar_complete(s);
    if (!s->filling.some && !complete && s->cut) {
        oato_fail(&s->error, OATO_EUSAGE,
                  "the grammar leads to a text with more than %d readings or %d nested rules; make "
                  "it less ambiguous",
                  SET_MOST, DEPTH_MOST);
        return MASK_FAILED;
    }
    for (int32_t i = 0; i < v->n_ends && (!s->filling.some || complete); i++)
        mask_set(m->bits, v->ends[i]);
    m->set = s->set; /* which filling may have changed */
    s->filling.mask = NULL;
    *bits = m->bits;
    return MASK_READY;
}

bool grammar_allows_token(struct grammar_state *s, int32_t id)
{
    const char *bytes;
    if (tokenizer_is_end(s->vocab->tokenizer, id))
        return grammar_complete(s);
    const size_t n = token_bytes(s->vocab->tokenizer, id, &bytes);
    return n && grammar_allows(s, bytes, n);
}

bool grammar_accept_token(struct grammar_state *s, int32_t id)
{
    const char *bytes;
    if (tokenizer_is_end(s->vocab->tokenizer, id))
        return grammar_complete(s);
    const size_t n = token_bytes(s->vocab->tokenizer, id, &bytes);
    return n && grammar_accept(s, bytes, n);
}

static bool constraint_allows(void *user, int32_t id)
{
    return grammar_allows_token(user, id);
}

static enum sampler_mask constraint_mask(void *user, uint64_t steps, const uint64_t **bits)
{
    return grammar_mask(user, steps, bits);
}

static void constraint_take(void *user, int32_t id)
{
    (void)grammar_accept_token(user, id);
}

struct sampler_constraint grammar_constraint(struct grammar_state *s)
{
    return (struct sampler_constraint){constraint_allows, constraint_mask, constraint_take, s};
}
