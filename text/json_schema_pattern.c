/*
 * json_schema_pattern.c - regular expressions of JSON schemas (ECMA-262) as GBNF for the inside of
 * a JSON string. Supported is what is regular: alternatives, groups, classes, the escapes d, w, s
 * and their negations, repetitions, and ^ and $ at the ends of an alternative of the whole
 * expression. A character that JSON escapes is written by its shortest escape only.
 */
#include "text/json_schema_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    GROUPS_MOST = 100,
    RANGES_MOST = 256,
    CLASS_STEPS = 40,
    RANGE_STEPS = 40,
    CLASS_BYTES = 32,
    RANGE_BYTES = 2 * 4 * 21
};

struct span {
    uint32_t first, last;
};

struct class
{
    struct span spans[RANGES_MOST];
    int32_t n;
};

struct regex {
    const char *pattern, *at;
    struct text *out;
    int depth;
    struct budget *budget;
    struct oato_error *err;
};

static oato_status refuse(struct regex *r, const char *what)
{
    return oato_fail(r->err, OATO_EUSAGE, "JSON schema: pattern '%.100s': %s", r->pattern, what);
}

/* ---------------------------------------------------------------------------------- classes */

static bool class_add(struct class *c, uint32_t first, uint32_t last)
{
    if (c->n == RANGES_MOST)
        return false;
    c->spans[c->n++] = (struct span){first, last};
    return true;
}

static bool class_has(const struct class *c, uint32_t x)
{
    for (int32_t i = 0; i < c->n; i++)
        if (x >= c->spans[i].first && x <= c->spans[i].last)
            return true;
    return false;
}

static int by_first(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

static bool class_negate(struct class *c)
{
    struct class holes = {.n = 0};
    uint32_t from = 0;
    bool room = true;
    qsort(c->spans, (size_t)c->n, sizeof c->spans[0], by_first);
    for (int32_t i = 0; i < c->n && room; i++) {
        if (c->spans[i].first > from)
            room = class_add(&holes, from, c->spans[i].first - 1);
        from = c->spans[i].last >= from ? c->spans[i].last + 1 : from;
    }
    if (from <= 0x10ffff)
        room = room && class_add(&holes, from, 0x10ffff);
    *c = holes;
    return room;
}

/* \d, \w, \s and with capitals what they leave. False: another letter, or no room. */
static bool class_add_letter(struct class *c, char letter)
{
    static const struct span digits[] = {{'0', '9'}},
                             words[] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                             spaces[] = {{'\t', '\r'},     {' ', ' '},       {0xa0, 0xa0},
                                         {0x1680, 0x1680}, {0x2000, 0x200a}, {0x2028, 0x2029},
                                         {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000},
                                         {0xfeff, 0xfeff}};
    const char lower = (char)(letter | 0x20);
    const struct span *s = lower == 'd'   ? digits
                           : lower == 'w' ? words
                           : lower == 's' ? spaces
                                          : NULL;
    const size_t n = lower == 'd'   ? ARRAY_LEN(digits)
                     : lower == 'w' ? ARRAY_LEN(words)
                                    : ARRAY_LEN(spaces);
    struct class part = {.n = 0};
    bool room = s;
    for (size_t i = 0; i < n && room; i++)
        room = class_add(&part, s[i].first, s[i].last);
    if (room && letter != lower)
        room = class_negate(&part);
    for (int32_t i = 0; i < part.n && room; i++)
        room = class_add(c, part.spans[i].first, part.spans[i].last);
    return room;
}

static void add_char(struct text *out, uint32_t c)
{
    text_printf(out, "\\U%08X", (unsigned)c);
}

/* As alternatives in parentheses: what stands for itself in a JSON string, then escapes. */
static oato_status class_emit(struct regex *r, const struct class *c)
{
    static const struct span plain[] = {{0x20, '!'}, {'#', '['}, {']', '~'}, {0x80, 0x10ffff}};
    static const char escaped[] = "\"\\\n\r\t\b\f", letters[] = "\"\\nrtbf";
    const char *join = "([";
    const uint64_t n = (uint64_t)c->n;
    const struct span *only = c->spans;
    if (budget_spend(r->budget, CLASS_STEPS + RANGE_STEPS * n, CLASS_BYTES + RANGE_BYTES * n,
                     "the JSON schema", r->err))
        return r->err->status;
    if (n == 1 && only->first == only->last && only->first >= 0x20 && only->first < 0x7f &&
        !strchr("\"\\", (int)only->first)) { /* what most patterns consist of */
        text_printf(r->out, "\"%c\"", (int)only->first);
        return OATO_OK;
    }
    for (int32_t i = 0; i < c->n; i++) {
        for (size_t p = 0; p < ARRAY_LEN(plain); p++) {
            const struct span s = c->spans[i];
            const uint32_t first = s.first > plain[p].first ? s.first : plain[p].first;
            const uint32_t last = s.last < plain[p].last ? s.last : plain[p].last;
            if (first > last || (first >= 0xd800 && last < 0xe000))
                continue;
            text_printf(r->out, "%s", join);
            join = "";
            add_char(r->out, first >= 0xd800 && first < 0xe000 ? 0xe000 : first);
            text_add(r->out, "-", 1);
            add_char(r->out, last >= 0xd800 && last < 0xe000 ? 0xd7ff : last);
        }
    }
    text_printf(r->out, "%s", *join ? "" : "]");
    join = *join ? "(" : " | ";
    for (const char *e = escaped; *e; e++) {
        if (!class_has(c, (uint32_t)*e))
            continue;
        const char json[] = {'\\', letters[e - escaped]};
        text_printf(r->out, "%s", join);
        gbnf_literal(r->out, json, 2);
        join = " | ";
    }
    if (*join == '(')
        return refuse(r, "a class without characters that a JSON text can show");
    text_add(r->out, ")", 1);
    return OATO_OK;
}

/* --------------------------------------------------------------------------------- characters */

static oato_status take_hex(struct regex *r, int digits, uint32_t *out)
{
    char hex[8] = "", *end;
    for (int i = 0; i < digits && r->at[i]; i++)
        hex[i] = r->at[i];
    *out = (uint32_t)strtoul(hex, &end, 16);
    if (end - hex != digits || hex[0] == '-' || hex[0] == '+' || hex[0] == ' ' ||
        (*out >= 0xd800 && *out < 0xe000))
        return refuse(r, "\\x and \\u want 2 and 4 hexadecimal digits, and no half characters");
    r->at += digits;
    return OATO_OK;
}

/* After a backslash: one character, or with *set those that were added to c. */
static oato_status take_escape(struct regex *r, struct class *c, bool *set, uint32_t *out)
{
    static const char letters[] = "nrtfv0", stand[] = "\n\r\t\f\v";
    const char e = *r->at;
    *set = false;
    if (!e)
        return refuse(r, "a backslash at the end");
    r->at++;
    if (e == 'x' || e == 'u')
        return take_hex(r, e == 'x' ? 2 : 4, out);
    if (strchr("dwsDWS", e)) {
        *set = true;
        return class_add_letter(c, e) ? OATO_OK : refuse(r, "a class of too many ranges");
    }
    const char *known = strchr(letters, e);
    *out = known ? (uint32_t)stand[known - letters] : (uint32_t)(unsigned char)e;
    if (!known && ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || (e >= '1' && e <= '9')))
        return refuse(r,
                      "an escape that is not supported (known are \\d \\w \\s \\D \\W \\S \\n \\r "
                      "\\t \\f \\v \\xHH \\uHHHH)");
    return OATO_OK;
}

static oato_status take_char(struct regex *r, struct class *c, bool *set, uint32_t *out)
{
    *set = false;
    if (*r->at == '\\') {
        r->at++;
        return take_escape(r, c, set, out);
    }
    const unsigned char *s = (const unsigned char *)r->at;
    const int n = utf8_char(r->at, strnlen(r->at, 4)); /* jansson lets only UTF-8 through */
    *out = n == 1 ? s[0] : s[0] & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++)
        *out = *out << 6 | (s[i] & 63u);
    r->at += n;
    return OATO_OK;
}

static oato_status parse_class(struct regex *r)
{
    struct class c = {.n = 0};
    r->at++;
    const bool negate = *r->at == '^';
    r->at += negate;
    while (*r->at != ']') {
        uint32_t first = 0, last;
        bool set;
        if (!*r->at)
            return refuse(r, "a class without its closing bracket");
        if (take_char(r, &c, &set, &first))
            return r->err->status;
        if (set)
            continue;
        last = first;
        if (r->at[0] == '-' && r->at[1] && r->at[1] != ']') {
            r->at++;
            if (take_char(r, &c, &set, &last))
                return r->err->status;
            if (set || last < first)
                return refuse(r, "a range that runs backwards or ends in a set");
        }
        if (!class_add(&c, first, last))
            return refuse(r, "a class of too many ranges");
    }
    r->at++;
    if (negate && !class_negate(&c))
        return refuse(r, "a class of too many ranges");
    return class_emit(r, &c);
}

/* ------------------------------------------------------------------------------- expressions */

static oato_status parse_alternatives(struct regex *r, bool ends);

static oato_status parse_group(struct regex *r)
{
    r->at++;
    if (r->at[0] == '?' && r->at[1] != ':')
        return refuse(r, "only (...) and (?:...) are supported of groups");
    r->at += r->at[0] == '?' ? 2 : 0;
    if (++r->depth > GROUPS_MOST)
        return refuse(r, "groups are nested too deeply");
    text_add(r->out, "(", 1);
    if (parse_alternatives(r, false))
        return r->err->status;
    r->depth--;
    if (*r->at != ')')
        return refuse(r, "a group without its closing parenthesis");
    r->at++;
    text_add(r->out, ")", 1);
    return OATO_OK;
}

static oato_status parse_atom(struct regex *r)
{
    struct class c = {.n = 0};
    uint32_t x = 0;
    bool set;
    switch (*r->at) {
    case '(': return parse_group(r);
    case '[': return parse_class(r);
    case '.':
        r->at++;
        text_printf(r->out, "dot");
        return OATO_OK;
    case '*':
    case '+':
    case '?':
    case '{': return refuse(r, "a repetition with nothing before it");
    case '^':
    case '$': return refuse(r, "^ and $ are supported at the ends only");
    default:
        if (take_char(r, &c, &set, &x))
            return r->err->status;
        if (!set)
            class_add(&c, x, x);
        return class_emit(r, &c);
    }
}

/* {n}, {n,} or {n,m}; copied as it is, since GBNF writes it the same way. */
static oato_status parse_counts(struct regex *r)
{
    const char *s = r->at + 1;
    size_t n = strspn(s, "0123456789"), all = n;
    if (n && s[all] == ',') {
        all++;
        all += strspn(s + all, "0123456789");
    }
    if (!n || s[all] != '}')
        return refuse(r, "a repetition wants {n}, {n,} or {n,m}");
    text_add(r->out, r->at, all + 2);
    r->at += all + 2;
    return OATO_OK;
}

static oato_status parse_sequence(struct regex *r, bool ends)
{
    const bool tied = ends && *r->at == '^';
    r->at += tied;
    if (ends && !tied)
        text_printf(r->out, "char* ");
    while (*r->at && *r->at != '|' && *r->at != ')') {
        if (ends && r->at[0] == '$' && (!r->at[1] || r->at[1] == '|')) {
            r->at++;
            return OATO_OK;
        }
        if (parse_atom(r))
            return r->err->status;
        if (*r->at && strchr("*+?", *r->at))
            text_add(r->out, r->at++, 1);
        else if (*r->at == '{' && parse_counts(r))
            return r->err->status;
        r->at += *r->at == '?'; /* what is tried first does not change what matches */
        text_add(r->out, " ", 1);
    }
    if (ends)
        text_printf(r->out, "char* ");
    return OATO_OK;
}

static oato_status parse_alternatives(struct regex *r, bool ends)
{
    for (;;) {
        if (parse_sequence(r, ends))
            return r->err->status;
        if (*r->at != '|')
            return OATO_OK;
        text_printf(r->out, "| ");
        r->at++;
    }
}

oato_status gbnf_pattern(struct text *out, const char *pattern, struct budget *budget,
                         struct oato_error *err)
{
    struct regex r = {.pattern = pattern, .at = pattern, .out = out, .budget = budget, .err = err};
    text_add(out, "(", 1);
    if (parse_alternatives(&r, true))
        return err->status;
    text_add(out, ")", 1);
    return *r.at ? refuse(&r, "a closing parenthesis without its group") : OATO_OK;
}
