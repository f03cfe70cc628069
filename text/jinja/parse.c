/*
 * parse.c - a Jinja program as a tree. The first part cuts it into lexemes: text outside of
 * tags, and what is inside {{ }} and {% %}; trim_blocks, lstrip_blocks and the signs - and + remove
 * white space. The second part is a recursive descent with jinja2's precedence: if-else, or, and,
 * not, comparisons, + -, ~, * %, sign, then calls and filters.
 */
#include "text/jinja/jinja_internal.h"

#include <ctype.h>

enum lex_kind { LEX_END, LEX_TEXT, LEX_PRINT, LEX_BLOCK, LEX_CLOSE, LEX_NAME, LEX_CONST, LEX_OP };

struct lexeme {
    enum lex_kind kind;
    int32_t line;
    struct value value; /* TEXT, NAME and OPERATOR as written; CONST */
};

struct parser {
    struct jinja *x;
    const char *at, *end;
    int32_t line, open; /* open: brackets */
    bool inside;        /* of a tag */
    bool block;         /* that tag is {% */
    bool line_start;    /* the last tag took a newline with it, or there was none */
    struct lexeme now;
};

static struct lexeme lexeme(const struct parser *p, enum lex_kind kind, struct value text)
{
    return (struct lexeme){kind, p->line, text};
}

static void advance(struct parser *p, const char *to)
{
    for (; p->at < to; p->at++)
        p->line += *p->at == '\n';
}

static void skip_space(struct parser *p)
{
    const char *to = p->at;
    while (to < p->end && char_is_space(to, (size_t)(p->end - to)))
        to += char_bytes(to, (size_t)(p->end - to));
    advance(p, to);
}

/* Behind the end of a tag, with what its sign removes. */
static void tag_end(struct parser *p, const char *end, char sign, bool trims)
{
    advance(p, end);
    p->line_start = false;
    if (sign == '-') {
        const char *from = p->at;
        skip_space(p);
        p->line_start = p->at > from && p->at[-1] == '\n';
    } else if (sign != '+' && trims && p->at < p->end && *p->at == '\n') {
        advance(p, p->at + 1);
        p->line_start = true;
    }
}

/* Text in front of a tag without what the tag removes. */
static struct value trimmed(const struct parser *p, const char *tag)
{
    struct value text = value_slice(p->at, (size_t)(tag - p->at));
    const char sign = tag + 2 < p->end ? tag[2] : 0;
    if (tag == p->end)
        return text;
    if (sign == '-')
        return string_strip(text, value_none, false, true);
    if (sign == '+' || tag[1] == '{')
        return text;
    const char *newline = memrchr(text.s, '\n', text.len);
    if (!newline && !p->line_start)
        return text;
    const uint32_t line = newline ? (uint32_t)(newline + 1 - text.s) : 0;
    const struct value indent = value_slice(text.s + line, text.len - line);
    if (string_strip(indent, value_none, true, false).len == 0)
        text.len = line;
    return text;
}

/* Outside of tags: text, or the beginning of a tag. */
static struct lexeme lex_outside(struct parser *p)
{
    while (p->at < p->end && !p->x->failed) {
        const char *tag = memchr(p->at, '{', (size_t)(p->end - p->at));
        while (tag && (p->end - tag < 2 || !tag[1] || !strchr("{%#", tag[1])))
            tag = memchr(tag + 1, '{', (size_t)(p->end - tag - 1));
        tag = tag ? tag : p->end;
        const struct lexeme text = lexeme(p, LEX_TEXT, trimmed(p, tag));
        const bool any = tag > p->at;
        advance(p, tag);
        if (any)
            p->line_start = false;
        if (text.value.len)
            return text;
        if (tag == p->end)
            break;
        const char kind = tag[1];
        const struct lexeme begin = lexeme(p, kind == '{' ? LEX_PRINT : LEX_BLOCK, undefined);
        advance(p, tag + 2);
        if (p->at < p->end && (*p->at == '-' || *p->at == '+'))
            advance(p, p->at + 1);
        if (kind == '#') {
            const char *close = memmem(p->at, (size_t)(p->end - p->at), "#}", 2);
            if (!close)
                jinja_fail(p->x, "a comment does not end with #}");
            else
                tag_end(p, close + 2, close > p->at ? close[-1] : 0, true);
            continue;
        }
        p->inside = true;
        p->block = kind == '%';
        p->open = 0;
        return begin;
    }
    return lexeme(p, LEX_END, undefined);
}

/* ------------------------------------------------------------------------- inside of tags -- */

static bool is_name_char(char c)
{
    return c == '_' || isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

static struct lexeme lex_inside(struct parser *p)
{
    skip_space(p);
    const struct lexeme close = lexeme(p, LEX_CLOSE, undefined);
    const char *end = p->block ? "%}" : "}}";
    if (p->at >= p->end) {
        jinja_fail(p->x, "the program ends inside of a tag");
        return lexeme(p, LEX_END, undefined);
    }
    const char sign = *p->at == '-' || (*p->at == '+' && p->block) ? *p->at : 0;
    p->at += sign != 0;
    if (p->open <= 0 && p->end - p->at > 1 && !memcmp(p->at, end, 2)) {
        p->inside = false;
        tag_end(p, p->at + 2, sign, p->block);
        return close;
    }
    p->at -= sign != 0;
    const char *to = p->at;
    struct lexeme t = lexeme(p, LEX_CONST, undefined);
    if (*to == '"' || *to == '\'') {
        to++;
        t.value = read_string(p->x, &to, p->end, *p->at, false);
    } else if (*to >= '0' && *to <= '9') {
        t.value = read_number(&to, p->end, "0123456789.");
        const size_t n = (size_t)(to - p->at);
        if (t.value.type != VALUE_INT && (t.value.type != VALUE_FLOAT || !memchr(p->at, '.', n)))
            jinja_fail(p->x, "the number %.*s cannot be read", (int)n, p->at);
    } else if (is_name_char(*to)) {
        while (to < p->end && is_name_char(*to))
            to++;
        t = lexeme(p, LEX_NAME, value_slice(p->at, (size_t)(to - p->at)));
    } else {
        const bool two = p->end - to > 1 && memmem("**//==!=>=<=", 12, to, 2);
        const size_t n = two ? 2 : *to && strchr("+-/*%~[](){}<>=.:|,", *to) ? 1 : 0;
        t = lexeme(p, LEX_OP, value_slice(to, n));
        p->open +=
            (*to == '[' || *to == '(' || *to == '{') - (*to == ']' || *to == ')' || *to == '}');
        if (n == 0)
            jinja_fail(p->x, "unexpected character '%.*s'",
                       (int)char_bytes(to, (size_t)(p->end - to)), to);
        to += n;
    }
    advance(p, to);
    return t;
}

/* Makes the next lexeme the current one; it is LEX_END at the end and after a failure. */
static void lex_next(struct parser *p)
{
    p->x->line = p->line;
    if (!p->x->failed)
        p->now = p->inside ? lex_inside(p) : lex_outside(p);
    if (p->x->failed)
        p->now.kind = LEX_END;
}

/* ----------------------------------------------------------------------- tree of nodes -- */

static bool parse_is(const struct parser *p, enum lex_kind kind, const char *text)
{
    return p->now.kind == kind && (!text || string_is(p->now.value, text));
}

static bool parse_skip(struct parser *p, enum lex_kind kind, const char *text)
{
    const bool is = parse_is(p, kind, text);
    if (is)
        lex_next(p);
    return is;
}

static bool skip_operator(struct parser *p, const char *text)
{
    return parse_skip(p, LEX_OP, text);
}

/* Returns the value of the lexeme that is skipped. */
static struct value parse_expect(struct parser *p, enum lex_kind kind, const char *text)
{
    static const char *const kinds[] = {
        "the end of the program", "text",   "{{",         "{%",
        "the end of the tag",     "a name", "a constant", "an operator"};
    const struct lexeme now = p->now;
    const bool shown = now.kind == LEX_NAME || now.kind == LEX_OP;
    const struct value found = shown ? now.value : value_str(kinds[now.kind]);
    if (parse_skip(p, kind, text))
        return now.value;
    p->x->line = now.line;
    jinja_fail(p->x, "expected %s, found '%.*s'", text ? text : kinds[kind],
               (int)min_i64(found.len, 40), found.s);
    p->now.kind = LEX_END;
    return value_slice("", 0);
}

static struct node *parse_node(struct parser *p, enum node_kind kind, struct node *a,
                               struct node *b)
{
    static _Thread_local struct node spare; /* after a failure, so that callers need not look */
    struct node *n = jinja_alloc(p->x, 1, sizeof *n);
    n = n ? n : &spare;
    *n = (struct node){.kind = kind, .line = p->now.line, .kid = {a, b}};
    return n;
}

static struct node *value_node(struct parser *p, enum node_kind kind, struct value v,
                               struct node *kid)
{
    struct node *n = parse_node(p, kind, kid, NULL);
    n->value = v;
    return n;
}

static struct node *parse_expression(struct parser *p, bool with_if_else);

/* What stands between brackets, with commas, up to `close`: keys and values of a dict in turns; of
 * arguments, name=value as NODE_NAMED. */
static struct node *parse_items(struct parser *p, const char *close)
{
    struct node *first = NULL, **tail = &first;
    bool named = false;
    while (!parse_is(p, LEX_OP, close) && !p->x->failed) {
        struct node *item = *tail = parse_expression(p, true);
        if (*close == ')' && named && !parse_is(p, LEX_OP, "="))
            jinja_fail(p->x, "an argument without a name follows one with a name");
        if (*close == '}') {
            parse_expect(p, LEX_OP, ":");
            item = item->next = parse_expression(p, true);
        } else if (*close == ')' && item->kind == NODE_NAME && skip_operator(p, "=")) {
            item->kind = NODE_NAMED;
            item->kid[0] = parse_expression(p, true);
            named = true;
        }
        tail = &item->next;
        if (!skip_operator(p, ","))
            break;
    }
    parse_expect(p, LEX_OP, close);
    return first;
}

static struct node *parse_tuple(struct parser *p, bool with_if_else)
{
    struct node *first = parse_expression(p, with_if_else), **tail = &first->next;
    if (!parse_is(p, LEX_OP, ","))
        return first;
    while (skip_operator(p, ",") && p->now.kind != LEX_CLOSE && !parse_is(p, LEX_OP, ")")) {
        *tail = parse_expression(p, with_if_else);
        tail = &(*tail)->next;
    }
    return parse_node(p, NODE_TUPLE, first, NULL);
}

static struct node *parse_name(struct parser *p)
{
    static const char *const words[] = {"true", "True", "false", "False", "none", "None"};
    const struct value name = parse_expect(p, LEX_NAME, NULL);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (string_is(name, words[i]))
            return value_node(p, NODE_CONST, i < 4 ? value_bool(i < 2) : value_none, NULL);
    return value_node(p, NODE_NAME, name, NULL);
}

static struct node *parse_primary(struct parser *p)
{
    const struct value v = p->now.value;
    if (parse_skip(p, LEX_CONST, NULL))
        return value_node(p, NODE_CONST, v, NULL);
    if (skip_operator(p, "(")) {
        const bool empty = parse_is(p, LEX_OP, ")");
        struct node *n = empty ? parse_node(p, NODE_TUPLE, NULL, NULL) : parse_tuple(p, true);
        parse_expect(p, LEX_OP, ")");
        return n;
    }
    if (skip_operator(p, "["))
        return parse_node(p, NODE_LIST, parse_items(p, "]"), NULL);
    if (skip_operator(p, "{"))
        return parse_node(p, NODE_DICT, parse_items(p, "}"), NULL);
    return parse_name(p);
}

/* ---------------------------------------------------------------- calls, filters and tests -- */

/* [a], [a:b:c] behind an expression; an end that is left out is the constant None. */
static struct node *parse_index(struct parser *p, struct node *of)
{
    struct node *n = parse_node(p, NODE_ELEMENT, of, NULL);
    bool colon = true;
    for (int i = 1; i <= 3; i++) {
        const bool given =
            colon && !parse_is(p, LEX_OP, ":") && (i == 1 || !parse_is(p, LEX_OP, "]"));
        n->kid[i] = given ? parse_expression(p, true) : value_node(p, NODE_CONST, value_none, NULL);
        colon = colon && i < 3 && skip_operator(p, ":");
        if (i == 1 && !colon)
            break;
        n->kind = NODE_SLICE;
    }
    parse_expect(p, LEX_OP, "]");
    return n;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    while (!p->x->failed) {
        if (skip_operator(p, "."))
            n = value_node(p, NODE_ATTRIBUTE, parse_expect(p, LEX_NAME, NULL), n);
        else if (skip_operator(p, "["))
            n = parse_index(p, n);
        else if (parse_is(p, LEX_OP, "("))
            n = parse_node(p, NODE_CALL, n, NULL);
        else
            break;
        if (n->kind == NODE_CALL && skip_operator(p, "("))
            n->kid[1] = parse_items(p, ")");
    }
    return n;
}

/* The name and arguments of a filter or test. */
static struct node *parse_applied(struct parser *p, enum node_kind kind, struct node *to)
{
    struct node *n = value_node(p, kind, parse_expect(p, LEX_NAME, NULL), to);
    if (skip_operator(p, "("))
        n->kid[1] = parse_items(p, ")");
    return n;
}

/* Filters and tests behind an expression. */
static struct node *parse_filters(struct parser *p, struct node *n)
{
    while (!p->x->failed) {
        if (skip_operator(p, "|")) {
            n = parse_applied(p, NODE_FILTER, n);
        } else if (parse_skip(p, LEX_NAME, "is")) {
            const bool negated = parse_skip(p, LEX_NAME, "not");
            n = parse_applied(p, NODE_TEST, n);
            n = negated ? parse_node(p, NODE_NOT, n, NULL) : n;
        } else {
            break;
        }
    }
    return n;
}

static struct node *parse_unary(struct parser *p)
{
    if (!jinja_enter(p->x))
        return parse_node(p, NODE_CONST, NULL, NULL);
    struct node *n = skip_operator(p, "-") ? parse_node(p, NODE_NEGATE, parse_unary(p), NULL)
                                           : parse_postfix(p, parse_primary(p));
    jinja_leave(p->x);
    return n;
}

/* ------------------------------------------------------------------------------- operators -- */

enum { LEVEL_NOT = 2, LEVEL_COMPARE, LEVELS = 7 };

/* Skips an operator of the level; NULL: there is none. */
static const char *next_operator(struct parser *p, int level)
{
    static const char *const rows[LEVELS][8] = {
        {"or"},     {"and"}, [LEVEL_COMPARE] = {"==", "!=", "<=", ">=", "<", ">", "in", "not"},
        {"+", "-"}, {"~"},   {"*", "/", "%"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows[0]) && rows[level][i]; i++) {
        const char *op = rows[level][i];
        if (!parse_skip(p, *op >= 'a' && *op <= 'z' ? LEX_NAME : LEX_OP, op))
            continue;
        if (*op == 'n')
            parse_expect(p, LEX_NAME, "in");
        return op;
    }
    return NULL;
}

static struct node *parse_binary(struct parser *p, int level)
{
    const char *op;
    if (level == LEVELS)
        return parse_filters(p, parse_unary(p));
    if (level == LEVEL_NOT && parse_skip(p, LEX_NAME, "not")) {
        if (!jinja_enter(p->x))
            return parse_node(p, NODE_CONST, NULL, NULL);
        struct node *n = parse_node(p, NODE_NOT, parse_binary(p, level), NULL);
        jinja_leave(p->x);
        return n;
    }
    struct node *n = parse_binary(p, level + 1);
    for (bool chain = false; (op = next_operator(p, level)); chain = true) {
        if (chain && level == LEVEL_COMPARE)
            jinja_fail(p->x, "a chain of comparisons is not supported");
        n = value_node(p, NODE_BINARY, value_str(op), n);
        n->kid[1] = parse_binary(p, level + 1);
    }
    return n;
}

static struct node *parse_expression(struct parser *p, bool with_if_else)
{
    if (!jinja_enter(p->x))
        return parse_node(p, NODE_CONST, NULL, NULL);
    struct node *n = parse_binary(p, 0);
    while (with_if_else && parse_skip(p, LEX_NAME, "if")) {
        n = parse_node(p, NODE_IF_ELSE, n, parse_binary(p, 0));
        if (parse_skip(p, LEX_NAME, "else"))
            n->kid[2] = parse_expression(p, true);
    }
    jinja_leave(p->x);
    return n;
}

/* What for and set assign to: a name, a member of a namespace, or several of these. */
static struct node *parse_target(struct parser *p)
{
    struct node *first = NULL, **tail = &first;
    do {
        struct node *n = *tail = parse_postfix(p, parse_name(p));
        if (n->kind != NODE_NAME && (n->kind != NODE_ATTRIBUTE || n->kid[0]->kind != NODE_NAME))
            jinja_fail(p->x, "what is not a name cannot be assigned to");
        tail = &n->next;
    } while (skip_operator(p, ",") && !p->x->failed);
    return tail == &first->next ? first : parse_node(p, NODE_TUPLE, first, NULL);
}

/* ------------------------------------------------------------------------------ statements -- */

/* Statements up to a tag that begins with else, elif or end...; that is the next lexeme. */
static struct node *parse_body(struct parser *p);

/* The body that follows the tag, and the tag that ends it. */
static struct node *parse_block(struct parser *p, const char *end)
{
    parse_expect(p, LEX_CLOSE, NULL);
    struct node *body = parse_body(p);
    parse_expect(p, LEX_NAME, end);
    parse_expect(p, LEX_CLOSE, NULL);
    return body;
}

static struct node *parse_if(struct parser *p)
{
    struct node *first = NULL, **branch = &first;
    for (bool condition = true, more = true; more;) { /* else has no condition */
        struct node *n = *branch = parse_node(p, NODE_IF, NULL, NULL);
        const bool last = !condition;
        n->kid[0] = condition ? parse_tuple(p, false) : NULL;
        parse_expect(p, LEX_CLOSE, NULL);
        n->kid[1] = parse_body(p);
        branch = &n->kid[2];
        condition = !last && parse_skip(p, LEX_NAME, "elif");
        more = condition || (!last && parse_skip(p, LEX_NAME, "else"));
    }
    parse_expect(p, LEX_NAME, "endif");
    parse_expect(p, LEX_CLOSE, NULL);
    return first;
}

static struct node *parse_for(struct parser *p)
{
    struct node *n = parse_node(p, NODE_FOR, parse_target(p), NULL);
    parse_expect(p, LEX_NAME, "in");
    n->kid[1] = parse_tuple(p, false);
    if (parse_skip(p, LEX_NAME, "if"))
        n->kid[2] = parse_expression(p, true);
    n->kid[3] = parse_block(p, "endfor");
    return n;
}

/* With a value, or with the text of a block. */
static struct node *parse_set(struct parser *p)
{
    struct node *n = parse_node(p, NODE_SET, parse_target(p), NULL);
    if (skip_operator(p, "=")) {
        n->kid[1] = parse_tuple(p, true);
        parse_expect(p, LEX_CLOSE, NULL);
        return n;
    }
    struct node *capture = parse_node(p, NODE_CAPTURE, NULL, NULL);
    n->kid[1] = parse_filters(p, capture);
    capture->kid[0] = parse_block(p, "endset");
    return n;
}

/* The text of a block after filters; or without any: what the assistant wrote is marked so for
 * training, and here is a scope like any other. */
static struct node *parse_text_block(struct parser *p, bool filter)
{
    struct node *capture = parse_node(p, NODE_CAPTURE, NULL, NULL), *n = capture;
    if (filter)
        n = parse_filters(p, parse_applied(p, NODE_FILTER, capture));
    capture->kid[0] = parse_block(p, filter ? "endfilter" : "endgeneration");
    return parse_node(p, NODE_PRINT, n, NULL);
}

static struct node *parse_macro(struct parser *p)
{
    struct node *n = value_node(p, NODE_MACRO, parse_expect(p, LEX_NAME, NULL), NULL);
    parse_expect(p, LEX_OP, "(");
    n->kid[0] = parse_items(p, ")");
    for (const struct node *i = n->kid[0]; i && !p->x->failed; i = i->next)
        if (i->kind != NODE_NAME && i->kind != NODE_NAMED)
            jinja_fail(p->x, "a parameter of a macro is no name");
    n->kid[1] = parse_block(p, "endmacro");
    return n;
}

static struct node *parse_statement(struct parser *p)
{
    if (parse_skip(p, LEX_NAME, "if"))
        return parse_if(p);
    if (parse_skip(p, LEX_NAME, "for"))
        return parse_for(p);
    if (parse_skip(p, LEX_NAME, "set"))
        return parse_set(p);
    if (parse_skip(p, LEX_NAME, "macro"))
        return parse_macro(p);
    const bool filter = parse_skip(p, LEX_NAME, "filter");
    if (filter || parse_skip(p, LEX_NAME, "generation"))
        return parse_text_block(p, filter);
    const struct value name = parse_expect(p, LEX_NAME, NULL);
    const int len = (int)(name.len < 40 ? name.len : 40);
    const bool is_break = string_is(name, "break");
    if (!is_break && !string_is(name, "continue"))
        jinja_fail(p->x, "the statement '%.*s' is not supported", len, name.s);
    parse_expect(p, LEX_CLOSE, NULL);
    return parse_node(p, is_break ? NODE_BREAK : NODE_CONTINUE, NULL, NULL);
}

static struct node *parse_body(struct parser *p)
{
    struct node *first = NULL, **tail = &first;
    if (!jinja_enter(p->x))
        return NULL;
    while (p->now.kind != LEX_END && !p->x->failed) {
        const struct value v = p->now.value;
        if (parse_skip(p, LEX_TEXT, NULL)) {
            *tail = value_node(p, NODE_TEXT, v, NULL);
        } else if (parse_skip(p, LEX_PRINT, NULL)) {
            *tail = parse_node(p, NODE_PRINT, parse_tuple(p, true), NULL);
            parse_expect(p, LEX_CLOSE, NULL);
        } else {
            parse_expect(p, LEX_BLOCK, NULL);
            const struct value name = p->now.kind == LEX_NAME ? p->now.value : undefined;
            if (string_is(name, "else") || string_is(name, "elif") ||
                (name.len > 3 && memcmp(name.s, "end", 3) == 0))
                break;
            *tail = parse_statement(p);
        }
        tail = &(*tail)->next;
    }
    jinja_leave(p->x);
    return first;
}

struct node *parse_program(struct jinja *x, const char *text, size_t n)
{
    if (n > x->limits->template_bytes)
        jinja_fail(x, "the program has %zu bytes; the limit is %zu", n, x->limits->template_bytes);
    char *copy = jinja_alloc(x, n, 1);
    if (!copy)
        return NULL;
    if (n)
        memcpy(copy, text, n);
    text_ends_unify(copy, &n); /* as jinja2, which also drops the last one */
    const char *end = copy + n;
    end -= end > copy && end[-1] == '\n';
    struct parser p = {.x = x, .at = copy, .end = end, .line = 1, .line_start = true};
    lex_next(&p);
    struct node *program = parse_body(&p);
    parse_expect(&p, LEX_END, NULL);
    return program;
}
