/*
 * grammar.c - follows a text through a grammar: a pushdown automaton, made deterministic as far as
 * the text needs it. What the text may be in the middle of is a set of readings, each a terminal
 * and a stack of places to return to. A set has a number and its successor by a byte is a table
 * entry: a text, or all tokens of a vocabulary, cost one look-up per byte where they were before.
 *
 * The tables (grammar_machine.c) are a cache. When they are full, everything is dropped but what
 * the current set needs. What they take is counted, and a state whose budget is spent refuses all.
 */
#include "text/grammar_state.h"

#include <stdlib.h>
#include <string.h>

/* Steps that each token adds again, beside two for each token of the vocabulary: what a mask and
 * new sets take in grammars that people write, several times over. What is not used is saved. */
enum { TOKEN_STEPS = 200000, SAVED_MOST = 10000000 };

/* What a token adds to the budget. */
static void refill(struct grammar_state *s)
{
    if (s->limit == UINT64_MAX || grammar_spent(s))
        return;
    const uint64_t left =
        s->limit - s->used + TOKEN_STEPS + 2 * (uint64_t)grammar_vocab_tokens(s->vocab);
    s->limit = s->used + (left < s->steps_most ? left : s->steps_most);
}

bool grammar_drop(struct grammar_state *s)
{
    struct grammar_machine *m = grammar_machine_create(s->bytes_most);
    uint32_t set;
    if (!m || !grammar_machine_copy(m, s->machine, s->set, &set)) {
        grammar_machine_free(m);
        return false;
    }
    grammar_machine_free(s->machine);
    s->machine = m;
    s->next = grammar_machine_next(m);
    s->set = set;
    s->used += DROP_STEPS;
    for (int i = 0; i < MASKS_KEPT; i++)
        s->masks[i].set = SET_UNKNOWN;
    return true;
}

uint32_t grammar_walk(struct grammar_state *s, const char *bytes, size_t n)
{
    for (int again = 0; again < 2; again++) {
        uint32_t set = s->set;
        size_t i = 0;
        for (; i < n && set > SET_DEAD; i++)
            set = grammar_step(s, set, (unsigned char)bytes[i]);
        if (set != SET_UNKNOWN)
            return set;
        s->filling.mask = NULL; /* it knows sets by numbers that change */
        if (!grammar_drop(s))
            break;
    }
    s->cut = true;
    return SET_DEAD;
}

/* NULL: memory is short. */
static struct grammar_state *state_alloc(const struct grammar *g, const struct grammar_vocab *v,
                                         const struct budget *b)
{
    struct grammar_state *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->grammar = g;
    s->vocab = v;
    s->limit = b ? b->steps : UINT64_MAX;
    s->steps_most = s->limit > SAVED_MOST ? s->limit : SAVED_MOST;
    refill(s);
    s->bytes_most = b ? b->bytes : SIZE_MAX;
    s->machine = grammar_machine_create(s->bytes_most);
    if (!s->machine || !grammar_masks_alloc(s)) {
        grammar_state_free(s);
        return NULL;
    }
    s->next = grammar_machine_next(s->machine);
    return s;
}

static oato_status fail_memory(struct oato_error *err)
{
    return oato_fail_memory(err, sizeof(struct grammar_state), "the state of a grammar");
}

oato_status grammar_state_create(const struct grammar *g, const struct grammar_vocab *v,
                                 const struct budget *budget, struct grammar_state **out,
                                 struct oato_error *err)
{
    struct grammar_state *s = state_alloc(g, v, budget);
    *out = s;
    if (!s)
        return fail_memory(err);
    s->set = grammar_machine_begin(s);
    if (s->set > SET_DEAD)
        return OATO_OK;
    const bool dead = s->set == SET_DEAD && !s->cut;
    grammar_state_free(s);
    *out = NULL;
    if (dead)
        return oato_fail(err, OATO_EUSAGE, "the grammar allows no text at all");
    return oato_fail(
        err, OATO_EUSAGE,
        "the grammar can begin in more than %d ways or %d nested rules; use classes and fewer "
        "alternatives",
        SET_MOST, DEPTH_MOST);
}

oato_status grammar_state_clone(const struct grammar_state *s, struct grammar_state **out,
                                struct oato_error *err)
{
    const struct budget b = {.bytes = s->bytes_most};
    struct grammar_state *twin = state_alloc(s->grammar, s->vocab, &b);
    *out = twin;
    if (!twin)
        return fail_memory(err);
    if (grammar_machine_copy(twin->machine, s->machine, s->set, &twin->set)) {
        twin->next = grammar_machine_next(twin->machine);
        twin->used = s->used;
        twin->limit = s->limit;
        twin->steps_most = s->steps_most;
        twin->cut = s->cut;
        return OATO_OK;
    }
    grammar_state_free(twin);
    *out = NULL;
    return fail_memory(err);
}

void grammar_state_free(struct grammar_state *s)
{
    if (!s)
        return;
    grammar_machine_free(s->machine);
    grammar_masks_free(s);
    free(s);
}

bool grammar_allows(struct grammar_state *s, const char *bytes, size_t n)
{
    return grammar_walk(s, bytes, n) != SET_DEAD;
}

bool grammar_accept(struct grammar_state *s, const char *bytes, size_t n)
{
    const uint32_t to = grammar_walk(s, bytes, n);
    if (to == SET_DEAD)
        return false;
    s->set = to;
    s->filling.mask = NULL;
    refill(s);
    return true;
}

bool grammar_complete(const struct grammar_state *s)
{
    return grammar_machine_complete(s->machine, s->set);
}

uint64_t grammar_state_used(const struct grammar_state *s)
{
    return s->used;
}

void grammar_state_bytes(struct grammar_state *s, size_t bytes)
{
    s->bytes_most = bytes;
    grammar_machine_bytes(s->machine, bytes);
}

const struct oato_error *grammar_state_error(struct grammar_state *s)
{
    if (!s->error.status && grammar_spent(s))
        oato_fail(&s->error, OATO_EUSAGE,
                  "the grammar needs more work than one request may take; make it smaller");
    return s->error.status ? &s->error : NULL;
}
