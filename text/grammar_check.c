/*
 * grammar_check.c - finds left recursion, which the recogniser would expand for ever. A rule may
 * reach itself before any character only as the last symbol all the way, as the rule of (x?)* does:
 * that returns to where it was. So no other symbol may lead to a rule of the same strongly
 * connected component (Tarjan 1972) of the graph in which a rule leads to those that it can begin
 * with.
 */
#include "text/grammar_internal.h"

#include <stdlib.h>

enum { SYMBOL_STEPS = 4 }; /* each is looked at a few times */

/* ---------------------------------------------------------------------- rules of no text --- */

/* For each rule the alternatives that contain it. */
struct uses {
    int32_t *first; /* n_rules + 1 */
    int32_t *alternatives;
    int32_t *of;      /* the rule of each alternative */
    int32_t *missing; /* its symbols that are not known to match nothing */
    int32_t *queue;   /* rules that match nothing, whose uses are to be told */
};

static void uses_free(struct uses *u)
{
    free(u->first);
    free(u->alternatives);
    free(u->of);
    free(u->missing);
    free(u->queue);
}

static bool uses_alloc(struct uses *u, const struct grammar *g, int32_t n_alternatives)
{
    int64_t n = 1;
    u->first = calloc((size_t)g->n_rules + 2, sizeof *u->first);
    for (int32_t a = 0; a < n_alternatives && u->first; a++)
        for (const struct symbol *s = g->symbols + g->alternatives[a]; s->kind != SYMBOL_END; s++)
            if (s->kind == SYMBOL_RULE) {
                u->first[s->arg + 2]++;
                n++;
            }
    u->alternatives = malloc((size_t)n * sizeof *u->alternatives);
    u->of = calloc((size_t)n_alternatives, sizeof *u->of);
    u->missing = calloc((size_t)n_alternatives, sizeof *u->missing);
    u->queue = malloc((size_t)g->n_rules * sizeof *u->queue);
    return u->first && u->alternatives && u->of && u->missing && u->queue;
}

/* nullable[r]: rule r matches the empty text. False: memory is short. */
static bool find_nullable(const struct grammar *g, bool *nullable)
{
    const struct grammar_rule *last = &g->rules[g->n_rules - 1];
    const int32_t n_alternatives = last->first + last->n;
    struct uses u = {0};
    int32_t n = 0;
    if (!uses_alloc(&u, g, n_alternatives)) {
        uses_free(&u);
        return false;
    }
    for (int32_t r = 0; r < g->n_rules; r++)
        u.first[r + 2] += u.first[r + 1];
    for (int32_t r = 0; r < g->n_rules; r++)
        for (int32_t a = g->rules[r].first; a < g->rules[r].first + g->rules[r].n; a++)
            u.of[a] = r;
    for (int32_t a = 0; a < n_alternatives; a++) {
        for (const struct symbol *s = g->symbols + g->alternatives[a]; s->kind != SYMBOL_END; s++) {
            u.missing[a]++; /* characters are never told */
            if (s->kind == SYMBOL_RULE)
                u.alternatives[u.first[s->arg + 1]++] = a;
        }
        if (!u.missing[a] && !nullable[u.of[a]]) {
            nullable[u.of[a]] = true;
            u.queue[n++] = u.of[a];
        }
    }
    while (n) {
        const int32_t r = u.queue[--n];
        for (int32_t i = u.first[r]; i < u.first[r + 1]; i++) {
            const int32_t a = u.alternatives[i];
            if (--u.missing[a] == 0 && !nullable[u.of[a]]) {
                nullable[u.of[a]] = true;
                u.queue[n++] = u.of[a];
            }
        }
    }
    uses_free(&u);
    return true;
}

/* ------------------------------------------------------------------------------ components */

/* A rule on the path, and the next of what it can begin with. */
struct visit {
    int32_t rule, alternative, symbol; /* symbol -1: the alternative is to be begun */
};

struct search {
    const struct grammar *g;
    bool *nullable;
    int32_t *seen, *low, *component; /* per rule; seen: number of its visit, 0: none */
    struct visit *path;
    int32_t *open; /* visited, without a component yet */
    int32_t n_path, n_open, n_seen;
};

static void enter(struct search *x, int32_t rule)
{
    x->seen[rule] = x->low[rule] = ++x->n_seen;
    x->open[x->n_open++] = rule;
    x->path[x->n_path++] = (struct visit){rule, 0, -1};
}

static void leave(struct search *x)
{
    const int32_t rule = x->path[--x->n_path].rule;
    if (x->low[rule] == x->seen[rule]) {
        do
            x->component[x->open[--x->n_open]] = rule + 1;
        while (x->open[x->n_open] != rule);
    }
    if (x->n_path) {
        const int32_t from = x->path[x->n_path - 1].rule;
        x->low[from] = x->low[rule] < x->low[from] ? x->low[rule] : x->low[from];
    }
}

static void search_from(struct search *x, int32_t root)
{
    const struct grammar *g = x->g;
    enter(x, root);
    while (x->n_path) {
        struct visit *v = &x->path[x->n_path - 1];
        const struct grammar_rule *r = &g->rules[v->rule];
        if (v->symbol < 0 && v->alternative == r->n) {
            leave(x);
            continue;
        }
        if (v->symbol < 0)
            v->symbol = g->alternatives[r->first + v->alternative++];
        const struct symbol s = g->symbols[v->symbol];
        v->symbol = s.kind == SYMBOL_RULE && x->nullable[s.arg] ? v->symbol + 1 : -1;
        if (s.kind != SYMBOL_RULE)
            continue;
        if (!x->seen[s.arg])
            enter(x, s.arg);
        else if (!x->component[s.arg] && x->seen[s.arg] < x->low[v->rule])
            x->low[v->rule] = x->seen[s.arg];
    }
}

static int32_t recursive_rule(const struct search *x)
{
    const struct grammar *g = x->g;
    for (int32_t r = 0; r < g->n_rules; r++) {
        for (int32_t i = 0; i < g->rules[r].n; i++) {
            const struct symbol *s = g->symbols + g->alternatives[g->rules[r].first + i];
            for (; s->kind == SYMBOL_RULE; s++) {
                if (s[1].kind != SYMBOL_END && x->component[s->arg] == x->component[r])
                    return r;
                if (!x->nullable[s->arg])
                    break;
            }
        }
    }
    return -1;
}

/* The arrays below and those of `uses`, of which those of alternatives and symbols are no larger
 * than what they are about. */
static oato_status spend(const struct grammar *g, struct budget *budget, struct oato_error *err)
{
    const struct grammar_rule *last = &g->rules[g->n_rules - 1];
    const size_t rules = (size_t)g->n_rules, alternatives = (size_t)last->first + (size_t)last->n;
    size_t symbols = 0;
    for (size_t a = 0; a < alternatives; a++)
        for (const struct symbol *s = g->symbols + g->alternatives[a]; s->kind != SYMBOL_END; s++)
            symbols++;
    return budget_spend(budget, SYMBOL_STEPS * (rules + alternatives + symbols),
                        rules * (sizeof(struct visit) + 6 * sizeof(int32_t) + sizeof(bool)) +
                            (2 * alternatives + symbols) * sizeof(int32_t),
                        "the grammar", err);
}

oato_status grammar_left_recursion(const struct grammar *g, struct budget *budget, int32_t *rule,
                                   struct oato_error *err)
{
    const size_t n = (size_t)g->n_rules;
    if (spend(g, budget, err))
        return err->status;
    struct search x = {.g = g,
                       .nullable = calloc(n, sizeof *x.nullable),
                       .seen = calloc(n, sizeof *x.seen),
                       .low = calloc(n, sizeof *x.low),
                       .component = calloc(n, sizeof *x.component),
                       .path = calloc(n, sizeof *x.path),
                       .open = calloc(n, sizeof *x.open)};
    const bool room = x.nullable && x.seen && x.low && x.component && x.path && x.open &&
                      find_nullable(g, x.nullable);
    for (int32_t r = 0; r < g->n_rules && room; r++)
        if (!x.seen[r])
            search_from(&x, r);
    *rule = room ? recursive_rule(&x) : -1;
    free(x.nullable);
    free(x.seen);
    free(x.low);
    free(x.component);
    free(x.path);
    free(x.open);
    return room ? OATO_OK : oato_fail_memory(err, n * sizeof *x.path, "a grammar");
}
