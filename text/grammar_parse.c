/*
 * grammar_parse.c - compiles GBNF, the language of llama.cpp's grammars/README.md. Groups and
 * repetitions become rules of their own: x* is "r ::= x r | nothing", x{2,4} is x x followed by
 * "r ::= x s | nothing", "s ::= x | nothing".
 */
#include "text/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    SYMBOLS_MOST = 1 << 20,
    GROUPS_MOST = 200,
    REPEAT_MOST = 100000,
    SYMBOL_STEPS = 2,
    CLASS_STEPS = 8
};

struct name {
    const char *s;
    int32_t n, line, rule, next; /* next: of the same bucket, as there */
    uint64_t hash;
    bool defined;
};

struct alternative {
    int32_t rule, begin, name; /* name: of the rule of the text that it belongs to */
};

struct parser {
    const char *at, *end;
    int32_t line, depth, name; /* name: of the rule that is being read */
    struct symbol *symbols;    /* finished alternatives */
    int32_t n_symbols, cap_symbols;
    struct symbol *open; /* those that are being read, the outer ones first */
    int32_t n_open, cap_open;
    struct alternative *alternatives;
    int32_t n_alternatives, cap_alternatives;
    struct name *names; /* rules that the text names */
    int32_t n_names, cap_names, n_rules;
    int32_t *bucket; /* the first name + 1; 0: none */
    size_t n_buckets;
    struct char_automata automata;
    int32_t ascii[128]; /* the automaton of each character; 0: not made */
    struct budget *budget;
    struct oato_error *err;
};

static oato_status parse_alternatives(struct parser *p, int32_t rule);

static oato_status fail_at(struct parser *p, const char *what)
{
    return oato_fail(p->err, OATO_EUSAGE, "grammar line %d: %s", (int)p->line, what);
}

/* The message of what failed, with its line. */
static oato_status fail_here(struct parser *p)
{
    return oato_fail_at(p->err, "grammar line %d", (int)p->line);
}

/* Room for `more` elements in an array of elements of `size` bytes. False: the error is set. */
static bool grow(struct parser *p, void *array, int32_t n, int64_t more, int32_t *cap, size_t size)
{
    if (n + more > SYMBOLS_MOST) {
        oato_fail(p->err, OATO_EUSAGE,
                  "grammar line %d: more than %d symbols; use fewer or smaller repetitions",
                  (int)p->line, SYMBOLS_MOST);
        return false;
    }
    if (n + more <= *cap)
        return true;
    int32_t to = *cap ? *cap : 64;
    while (to < n + more)
        to *= 2;
    if (budget_spend(p->budget, 0, (size_t)(to - *cap) * size, "the grammar", p->err))
        return false;
    void *grown = realloc(*(void **)array, (size_t)to * size);
    if (!grown) {
        oato_fail_memory(p->err, (size_t)to * size, "a grammar");
        return false;
    }
    *(void **)array = grown;
    *cap = to;
    return true;
}

static oato_status open_add(struct parser *p, enum symbol_kind kind, int32_t arg)
{
    if (!grow(p, &p->open, p->n_open, 1, &p->cap_open, sizeof *p->open) ||
        budget_spend(p->budget, SYMBOL_STEPS, 0, "the grammar", p->err))
        return p->err->status;
    p->open[p->n_open++] = (struct symbol){kind, arg};
    return OATO_OK;
}

/* The symbols that are open from `begin` on become an alternative of the rule. */
static oato_status alternative_close(struct parser *p, int32_t rule, int32_t begin)
{
    const int32_t n = p->n_open - begin;
    if (budget_spend(p->budget, SYMBOL_STEPS * ((uint64_t)n + 1), 0, "the grammar", p->err) ||
        !grow(p, &p->symbols, p->n_symbols, n + 1, &p->cap_symbols, sizeof *p->symbols) ||
        !grow(p, &p->alternatives, p->n_alternatives, 1, &p->cap_alternatives,
              sizeof *p->alternatives))
        return p->err->status;
    p->alternatives[p->n_alternatives++] = (struct alternative){rule, p->n_symbols, p->name};
    if (n)
        memcpy(p->symbols + p->n_symbols, p->open + begin, (size_t)n * sizeof *p->symbols);
    p->n_symbols += n;
    p->symbols[p->n_symbols++] = (struct symbol){SYMBOL_END, 0};
    p->n_open = begin;
    return OATO_OK;
}

/* ------------------------------------------------------------------------------ characters */

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_';
}

static bool at_end(const struct parser *p)
{
    return p->at >= p->end;
}

static bool next_is(const struct parser *p, char c)
{
    return !at_end(p) && *p->at == c;
}

/* Blanks and comments, and with `lines` ends of lines. */
static void skip_space(struct parser *p, bool lines)
{
    while (!at_end(p)) {
        if (*p->at == '#')
            while (!at_end(p) && *p->at != '\n')
                p->at++;
        else if (*p->at == ' ' || *p->at == '\t' || *p->at == '\r')
            p->at++;
        else if (*p->at == '\n' && lines)
            p->at++, p->line++;
        else
            break;
    }
}

/* A character of a literal or class. */
static oato_status take_char(struct parser *p, uint32_t *out)
{
    const char *why = NULL, *behind = char_read(p->at, p->end, out, &why);
    if (!behind)
        return fail_at(p, why);
    p->line += *p->at == '\n';
    p->at = behind;
    return OATO_OK;
}

static oato_status add_chars(struct parser *p, const struct char_range *ranges, int32_t n)
{
    const uint32_t only = n == 1 && ranges->first == ranges->last ? ranges->first : 0x80;
    int32_t state = only < 0x80 ? p->ascii[only] : 0;
    if (!state && char_automaton(&p->automata, ranges, n, &state, p->err))
        return p->err->status == OATO_EUSAGE ? fail_here(p) : p->err->status;
    if (only < 0x80)
        p->ascii[only] = state;
    return open_add(p, SYMBOL_CHAR, state);
}

static oato_status parse_literal(struct parser *p)
{
    for (p->at++; !next_is(p, '"');) {
        struct char_range one;
        if (at_end(p))
            return fail_at(p, "a literal without its closing quote");
        if (take_char(p, &one.first))
            return p->err->status;
        one.last = one.first;
        if (add_chars(p, &one, 1))
            return p->err->status;
    }
    p->at++;
    return OATO_OK;
}

static oato_status parse_class(struct parser *p)
{
    struct char_range *r = NULL;
    int32_t n = 0, cap = 0;
    p->at++;
    const bool negate = next_is(p, '^');
    p->at += negate;
    oato_status status = OATO_OK;
    while (!status && !next_is(p, ']')) {
        struct char_range one = {0, 0};
        status = at_end(p) ? fail_at(p, "a class without its closing bracket")
                           : take_char(p, &one.first);
        one.last = one.first;
        if (!status && p->end - p->at > 1 && p->at[0] == '-' && p->at[1] != ']') {
            p->at++;
            status = take_char(p, &one.last);
        }
        if (!status && one.last < one.first)
            status = fail_at(p, "a range of characters that runs backwards");
        if (!status && !grow(p, &r, n, 2, &cap, sizeof *r))
            status = p->err->status;
        if (!status && r)
            r[n++] = one;
    }
    p->at++;
    if (!status && !grow(p, &r, n, 1, &cap, sizeof *r))
        status = p->err->status;
    if (!status && r) {
        status = budget_spend(p->budget, CLASS_STEPS * (uint64_t)n, 0, "the grammar", p->err);
        if (!status) {
            n = char_ranges_tidy(r, n, negate);
            status = add_chars(p, r, n);
        }
    }
    free(r);
    if (p->budget)
        p->budget->bytes += (size_t)cap * sizeof *r;
    return status;
}

/* ---------------------------------------------------------------------------------- symbols */

/* The index of a name, which is added if it is new; -1: it cannot be. */
static int32_t name_of(struct parser *p, const char *s, int32_t n)
{
    const uint64_t hash = hash_bytes(s, (size_t)n);
    int32_t *bucket = &p->bucket[hash % p->n_buckets];
    for (int32_t i = *bucket; i > 0; i = p->names[i - 1].next) {
        const struct name *x = &p->names[i - 1];
        if (x->hash == hash && x->n == n && !memcmp(x->s, s, (size_t)n))
            return i - 1;
    }
    if (!grow(p, &p->names, p->n_names, 1, &p->cap_names, sizeof *p->names))
        return -1;
    p->names[p->n_names] = (struct name){
        .s = s, .n = n, .line = p->line, .rule = p->n_rules++, .next = *bucket, .hash = hash};
    *bucket = ++p->n_names;
    return p->n_names - 1;
}

static int32_t take_name(struct parser *p)
{
    const char *s = p->at;
    while (!at_end(p) && is_name(*p->at))
        p->at++;
    return name_of(p, s, (int32_t)(p->at - s));
}

static oato_status parse_group(struct parser *p)
{
    const int32_t rule = p->n_rules++;
    p->at++;
    if (++p->depth > GROUPS_MOST)
        return fail_at(p, "groups are nested too deeply");
    if (parse_alternatives(p, rule))
        return p->err->status;
    p->depth--;
    if (!next_is(p, ')'))
        return fail_at(p, "a group without its closing parenthesis");
    p->at++;
    return open_add(p, SYMBOL_RULE, rule);
}

static oato_status take_count(struct parser *p, int32_t *out)
{
    const char *s = p->at;
    for (*out = 0; !at_end(p) && *p->at >= '0' && *p->at <= '9'; p->at++)
        *out = *out > REPEAT_MOST ? *out : *out * 10 + (*p->at - '0');
    if (s == p->at)
        return fail_at(p, "a repetition wants {n}, {n,}, {,m} or {n,m}");
    return *out > REPEAT_MOST ? fail_at(p, "a repetition of more than 100000") : OATO_OK;
}

/* {m}, {m,}, {m,n}; most -1: no limit. */
static oato_status take_counts(struct parser *p, int32_t *least, int32_t *most)
{
    *least = 0;
    p->at++;
    skip_space(p, false);
    if (!next_is(p, ',') && take_count(p, least))
        return p->err->status;
    *most = *least;
    skip_space(p, false);
    if (next_is(p, ',')) {
        p->at++;
        skip_space(p, false);
        *most = -1;
        if (!next_is(p, '}') && take_count(p, most))
            return p->err->status;
        skip_space(p, false);
    }
    if (!next_is(p, '}'))
        return fail_at(p, "a repetition without its closing brace");
    p->at++;
    return *most >= 0 && *most < *least ? fail_at(p, "a repetition {n,m} with m below n") : OATO_OK;
}

/* "rule ::= x then | nothing"; then -1: not there. */
static oato_status add_optional(struct parser *p, int32_t rule, struct symbol x, int32_t then)
{
    const int32_t begin = p->n_open;
    if (open_add(p, x.kind, x.arg) || (then >= 0 && open_add(p, SYMBOL_RULE, then)) ||
        alternative_close(p, rule, begin))
        return p->err->status;
    return alternative_close(p, rule, begin);
}

/* Repeats the symbols that are open from `begin` on. */
static oato_status repeat(struct parser *p, int32_t begin, int32_t least, int32_t most)
{
    struct symbol x = {SYMBOL_RULE, 0};
    if (p->n_open == begin)
        return OATO_OK; /* nothing, however often */
    if (p->n_open - begin == 1) {
        x = p->open[begin];
        p->n_open = begin;
    } else {
        x.arg = p->n_rules++;
        if (alternative_close(p, x.arg, begin))
            return p->err->status;
    }
    for (int32_t i = 0; i < least; i++)
        if (open_add(p, x.kind, x.arg))
            return p->err->status;
    if (most < 0) {
        const int32_t rule = p->n_rules++;
        return add_optional(p, rule, x, rule) ? p->err->status : open_add(p, SYMBOL_RULE, rule);
    }
    int32_t then = -1;
    for (int32_t i = least; i < most; i++) {
        const int32_t rule = p->n_rules++;
        if (add_optional(p, rule, x, then))
            return p->err->status;
        then = rule;
    }
    return then < 0 ? OATO_OK : open_add(p, SYMBOL_RULE, then);
}

static oato_status parse_symbol(struct parser *p)
{
    static const struct char_range every = {0, 0x10ffff};
    const char c = *p->at;
    if (c == '"')
        return parse_literal(p);
    if (c == '[')
        return parse_class(p);
    if (c == '(')
        return parse_group(p);
    if (c == '.') {
        p->at++;
        return add_chars(p, &every, 1);
    }
    if (c == '<' || c == '!')
        return fail_at(p, "tokens in angle brackets are not supported; write their text");
    const int32_t name = take_name(p);
    return name < 0 ? p->err->status : open_add(p, SYMBOL_RULE, p->names[name].rule);
}

static oato_status parse_sequence(struct parser *p)
{
    int32_t last = -1; /* where the symbol before begins */
    for (;;) {
        skip_space(p, p->depth > 0);
        if (at_end(p) || *p->at == '|' || *p->at == ')' || *p->at == '\n')
            return OATO_OK;
        const char c = *p->at;
        int32_t least = c == '+', most = c == '?' ? 1 : -1;
        if (c == '*' || c == '+' || c == '?') {
            p->at++;
        } else if (c == '{') {
            if (take_counts(p, &least, &most))
                return p->err->status;
        } else if ((c && strchr("\"[(.<!", c)) || is_name(c)) {
            last = p->n_open;
            if (parse_symbol(p))
                return p->err->status;
            continue;
        } else {
            return fail_at(p, "a character that begins no symbol");
        }
        if (last < 0)
            return fail_at(p, "a repetition wants one symbol or group before it");
        if (repeat(p, last, least, most))
            return p->err->status;
        last = -1;
    }
}

static oato_status parse_alternatives(struct parser *p, int32_t rule)
{
    for (;;) {
        const int32_t begin = p->n_open;
        if (parse_sequence(p) || alternative_close(p, rule, begin))
            return p->err->status;
        if (!next_is(p, '|'))
            return OATO_OK;
        p->at++;
        skip_space(p, true);
    }
}

static oato_status parse_rule(struct parser *p)
{
    if (!is_name(*p->at))
        return fail_at(p, "a rule wants NAME ::= SYMBOLS");
    const int32_t name = take_name(p);
    if (name < 0)
        return p->err->status;
    if (p->names[name].defined)
        return oato_fail(p->err, OATO_EUSAGE, "grammar line %d: rule '%.*s' is defined twice",
                         (int)p->line, (int)p->names[name].n, p->names[name].s);
    p->names[name].defined = true;
    p->names[name].line = p->line;
    p->name = name;
    skip_space(p, false);
    if (p->end - p->at < 3 || memcmp(p->at, "::=", 3) != 0)
        return fail_at(p, "a rule wants NAME ::= SYMBOLS");
    p->at += 3;
    skip_space(p, true);
    if (parse_alternatives(p, p->names[name].rule))
        return p->err->status;
    return at_end(p) || *p->at == '\n' ? OATO_OK
                                       : fail_at(p, "a closing parenthesis without its group");
}

/* Moves what was parsed into *g, alternatives grouped by rule. */
static oato_status link_rules(struct parser *p, struct grammar *g)
{
    const size_t n = (size_t)p->n_alternatives, rules = (size_t)p->n_rules;
    if (budget_spend(p->budget, SYMBOL_STEPS * (n + rules),
                     n * sizeof *g->alternatives + rules * sizeof *g->rules, "the grammar", p->err))
        return p->err->status;
    g->rules = calloc((size_t)p->n_rules + 1, sizeof *g->rules);
    g->alternatives = malloc((n + 1) * sizeof *g->alternatives);
    if (!g->rules || !g->alternatives)
        return oato_fail_memory(p->err, n * sizeof *g->alternatives, "a grammar");
    g->n_rules = p->n_rules;
    for (size_t i = 0; i < n; i++)
        g->rules[p->alternatives[i].rule].n++;
    for (int32_t r = 1; r < p->n_rules; r++)
        g->rules[r].first = g->rules[r - 1].first + g->rules[r - 1].n;
    for (int32_t r = 0; r < p->n_rules; r++)
        g->rules[r].n = 0;
    for (size_t i = 0; i < n; i++) {
        struct grammar_rule *r = &g->rules[p->alternatives[i].rule];
        g->alternatives[r->first + r->n++] = p->alternatives[i].begin;
    }
    g->symbols = p->symbols;
    g->next = p->automata.next;
    p->symbols = NULL;
    p->automata.next = NULL;
    return OATO_OK;
}

static oato_status check_names(struct parser *p, struct grammar *g)
{
    g->root = -1;
    for (int32_t i = 0; i < p->n_names; i++) {
        const struct name *x = &p->names[i];
        if (!x->defined)
            return oato_fail(p->err, OATO_EUSAGE, "grammar line %d: there is no rule '%.*s'",
                             (int)x->line, (int)x->n, x->s);
        if (x->n == 4 && !memcmp(x->s, "root", 4))
            g->root = x->rule;
    }
    return g->root < 0 ? oato_fail(p->err, OATO_EUSAGE,
                                   "the grammar has no rule 'root', which is where it begins")
                       : OATO_OK;
}

static oato_status check_recursion(struct parser *p, const struct grammar *g)
{
    int32_t rule;
    if (grammar_left_recursion(g, p->budget, &rule, p->err))
        return p->err->status;
    for (int32_t i = 0; i < p->n_alternatives; i++) {
        const struct name *x = &p->names[p->alternatives[i].name];
        if (p->alternatives[i].rule == rule)
            return oato_fail(p->err, OATO_EUSAGE,
                             "grammar line %d: rule '%.*s' can begin with itself (left recursion); "
                             "use a repetition, such as item (\",\" item)*",
                             (int)x->line, (int)x->n, x->s);
    }
    return OATO_OK;
}

void grammar_free(struct grammar *g)
{
    if (!g)
        return;
    free(g->symbols);
    free(g->alternatives);
    free(g->rules);
    free(g->next);
    free(g);
}

/* One for about every eight bytes of the text: names are rarer. */
static oato_status buckets_create(struct parser *p, size_t n)
{
    p->n_buckets = 64;
    while (p->n_buckets < n / 8)
        p->n_buckets *= 2;
    const size_t bytes = p->n_buckets * sizeof *p->bucket;
    if (n > INT32_MAX)
        return oato_fail(p->err, OATO_EUSAGE, "the grammar is larger than 2 GiB");
    if (budget_spend(p->budget, n / 2, bytes, "the grammar", p->err))
        return p->err->status;
    p->bucket = calloc(p->n_buckets, sizeof *p->bucket);
    return p->bucket ? OATO_OK : oato_fail_memory(p->err, bytes, "a grammar");
}

/* What the grammar keeps; the rest of what was spent goes back. */
static size_t bytes_kept(const struct parser *p)
{
    return (size_t)p->cap_symbols * sizeof *p->symbols +
           (size_t)p->n_alternatives * sizeof(int32_t) +
           (size_t)p->n_rules * sizeof(struct grammar_rule) +
           (size_t)p->automata.cap * sizeof *p->automata.next;
}

oato_status grammar_parse(const char *gbnf, size_t n, struct budget *budget, struct grammar **out,
                          struct oato_error *err)
{
    struct parser *p = calloc(1, sizeof *p);
    struct grammar *g = calloc(1, sizeof *g);
    const size_t had = budget ? budget->bytes : 0;
    *out = NULL;
    if (!p || !g) {
        free(p);
        free(g);
        return oato_fail_memory(err, sizeof *p, "a grammar");
    }
    *p = (struct parser){.at = gbnf,
                         .end = gbnf + n,
                         .line = 1,
                         .automata = {.budget = budget},
                         .budget = budget,
                         .err = err};
    oato_status status = buckets_create(p, n);
    for (skip_space(p, true); !status && !at_end(p); skip_space(p, true))
        status = parse_rule(p);
    if (!status)
        status = check_names(p, g);
    if (!status)
        status = link_rules(p, g);
    if (!status)
        status = check_recursion(p, g);
    if (!status && budget)
        budget->bytes = had - bytes_kept(p);
    free(p->symbols);
    free(p->open);
    free(p->alternatives);
    free(p->names);
    free(p->bucket);
    free(p->automata.next);
    free(p->automata.chain);
    free(p);
    if (status)
        grammar_free(g);
    else
        *out = g;
    return status;
}
