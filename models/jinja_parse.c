/*
 * jinja_parse.c - the statements of a Jinja program. A table names them; one that is not there
 * (include, block and others that need more than one file) is refused when the program is parsed.
 */
#include "models/jinja_internal.h"

#include <string.h>

/* Lists of statements become kid `kid` of n, up to one of the words, which is returned. */
static const char *parse_body(struct parser *p, struct node *n, int kid, const char *const *ends);

static void tag_close(struct parser *p)
{
    parse_expect(p, LEX_CLOSE, NULL);
}

/* A body and the rest of the tag that ends it. */
static void parse_block(struct parser *p, struct node *n, int kid, const char *end)
{
    tag_close(p);
    parse_body(p, n, kid, (const char *const[]){end, NULL});
    tag_close(p);
}

/* kid 0: branches, each a NODE_NAMED of condition and body; kid 1: the body of else. */
static struct node *parse_if(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct node *n = parse_node(p, NODE_IF, NULL, NULL), *last = NULL;
    const char *end = "elif";
    while (end && !strcmp(end, "elif")) {
        struct node *branch = parse_node(p, NODE_NAMED, parse_tuple(p, false), NULL);
        tag_close(p);
        end = parse_body(p, branch, 1, ends);
        parse_add(p, n, 0, branch, &last);
    }
    if (end && !strcmp(end, "else")) {
        tag_close(p);
        parse_body(p, n, 1, ends + 2);
    }
    tag_close(p);
    return n;
}

/* kids: target, list, condition, body, else */
static struct node *parse_for(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    struct node *n = parse_node(p, NODE_FOR, parse_target(p), NULL), *last = NULL;
    const bool outer = p->in_loop;
    parse_expect(p, LEX_NAME, "in");
    parse_add(p, n, 1, parse_tuple(p, false), &last);
    last = NULL;
    if (parse_skip(p, LEX_NAME, "if"))
        parse_add(p, n, 2, parse_expression(p, true), &last);
    if (parse_is(p, LEX_NAME, "recursive"))
        jinja_fail(p->x, "a recursive for is not supported");
    tag_close(p);
    p->in_loop = true;
    const char *end = parse_body(p, n, 3, ends);
    p->in_loop = outer;
    if (end && !strcmp(end, "else")) {
        tag_close(p);
        parse_body(p, n, 4, ends + 1);
    }
    tag_close(p);
    return n;
}

/* Stands for the text of a block; no program can write this name. */
static struct node *captured(struct parser *p)
{
    struct node *n = parse_node(p, NODE_NAME, NULL, NULL);
    n->value = value_str("");
    return n;
}

/* SET: target, value. CAPTURE: target, what becomes of the text, body. */
static struct node *parse_set(struct parser *p)
{
    struct node *target = parse_target(p);
    if (parse_skip(p, LEX_OPERATOR, "=")) {
        struct node *n = parse_node(p, NODE_SET, target, parse_tuple(p, true));
        tag_close(p);
        return n;
    }
    struct node *n = parse_node(p, NODE_CAPTURE, target, parse_filters(p, captured(p), false));
    parse_block(p, n, 2, "endset");
    return n;
}

static struct node *parse_filter_block(struct parser *p)
{
    struct node *n = parse_node(p, NODE_FILTER_BLOCK, NULL, parse_filters(p, captured(p), true));
    parse_block(p, n, 2, "endfilter");
    return n;
}

/* (a, b=1): each a NODE_NAMED with its default; kid 0 of n. */
static void parse_parameters(struct parser *p, struct node *n)
{
    struct node *last = NULL;
    bool defaults = false;
    parse_expect(p, LEX_OPERATOR, "(");
    while (!parse_is(p, LEX_OPERATOR, ")") && !p->x->failed) {
        const struct value name = p->now.text;
        parse_expect(p, LEX_NAME, NULL);
        const bool given = parse_skip(p, LEX_OPERATOR, "=");
        struct node *item =
            parse_node(p, NODE_NAMED, given ? parse_expression(p, true) : NULL, NULL);
        item->value = name;
        if (defaults && !given)
            jinja_fail(p->x, "a parameter without a default follows one with a default");
        defaults = given;
        parse_add(p, n, 0, item, &last);
        if (!parse_skip(p, LEX_OPERATOR, ","))
            break;
    }
    parse_expect(p, LEX_OPERATOR, ")");
}

static void parse_macro_body(struct parser *p, struct node *n, const char *end)
{
    const bool outer = p->in_loop;
    p->in_loop = false;
    parse_block(p, n, 2, end);
    p->in_loop = outer;
}

/* kids: parameters, none, body */
static struct node *parse_macro(struct parser *p)
{
    struct node *n = parse_node(p, NODE_MACRO, NULL, NULL);
    n->value = p->now.text;
    parse_expect(p, LEX_NAME, NULL);
    parse_parameters(p, n);
    parse_macro_body(p, n, "endmacro");
    return n;
}

/* kids: parameters of caller, the call, body */
static struct node *parse_call_block(struct parser *p)
{
    struct node *n = parse_node(p, NODE_CALL_BLOCK, NULL, NULL), *last = NULL;
    n->value = value_str("caller");
    if (parse_is(p, LEX_OPERATOR, "("))
        parse_parameters(p, n);
    struct node *call = parse_expression(p, true);
    if (call->kind != NODE_CALL)
        jinja_fail(p->x, "expected a call");
    parse_add(p, n, 1, call, &last);
    parse_macro_body(p, n, "endcall");
    return n;
}

/* What the assistant wrote is marked for training; here it is a scope like any other. */
static struct node *parse_generation(struct parser *p)
{
    struct node *n = parse_node(p, NODE_SCOPE, NULL, NULL);
    parse_block(p, n, 2, "endgeneration");
    return n;
}

static struct node *parse_jump(struct parser *p, enum node_kind kind)
{
    struct node *n = parse_node(p, kind, NULL, NULL);
    if (!p->in_loop)
        jinja_fail(p->x, "%s outside of a loop", kind == NODE_BREAK ? "break" : "continue");
    tag_close(p);
    return n;
}

static struct node *parse_break(struct parser *p)
{
    return parse_jump(p, NODE_BREAK);
}

static struct node *parse_continue(struct parser *p)
{
    return parse_jump(p, NODE_CONTINUE);
}

static struct node *parse_statement(struct parser *p)
{
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *p);
    } rows[] = {
        {"if", parse_if},
        {"for", parse_for},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"generation", parse_generation},
        {"break", parse_break},
        {"continue", parse_continue},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (parse_skip(p, LEX_NAME, rows[i].name))
            return rows[i].parse(p);
    const struct value name = p->now.text;
    if (p->now.kind == LEX_NAME)
        jinja_fail(p->x, "the statement '%.*s' is not known here",
                   (int)(name.len < 40 ? name.len : 40), name.s);
    parse_expect(p, LEX_NAME, NULL);
    return parse_node(p, NODE_TEXT, NULL, NULL);
}

static const char *parse_body(struct parser *p, struct node *n, int kid, const char *const *ends)
{
    struct node *last = NULL;
    if (!jinja_enter(p->x))
        return NULL;
    const char *end = NULL;
    while (!end && !p->x->failed && p->now.kind != LEX_END) {
        struct node *item;
        if (p->now.kind == LEX_TEXT) {
            item = parse_node(p, NODE_TEXT, NULL, NULL);
            item->value = p->now.text;
            parse_advance(p);
        } else if (parse_skip(p, LEX_PRINT, NULL)) {
            item = parse_node(p, NODE_PRINT, parse_tuple(p, true), NULL);
            tag_close(p);
        } else {
            parse_expect(p, LEX_BLOCK, NULL);
            for (const char *const *e = ends; *e && !end; e++)
                end = parse_skip(p, LEX_NAME, *e) ? *e : NULL;
            if (end)
                break;
            item = parse_statement(p);
        }
        parse_add(p, n, kid, item, &last);
    }
    jinja_leave(p->x);
    if (*ends && !end)
        jinja_fail(p->x, "the program ends without %s", *ends);
    return end;
}

/* jinja2 reads every line end as \n and drops the last one. */
static size_t normalise(char *to, const char *text, size_t n)
{
    char *s = to;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r' && i + 1 < n && text[i + 1] == '\n')
            continue;
        *s++ = text[i] == '\r' ? '\n' : text[i];
    }
    return (size_t)(s - to) - (s > to && s[-1] == '\n');
}

struct node *parse_program(struct jinja *x, const char *text, size_t n)
{
    static const char *const no_ends[] = {NULL};
    if (n > x->limits->template_bytes) {
        jinja_fail(x, "the program has %zu bytes; the limit is %zu", n, x->limits->template_bytes);
        return NULL;
    }
    char *copy = jinja_alloc_text(x, n);
    if (!copy)
        return NULL;
    n = normalise(copy, text, n);
    struct parser p = {
        .x = x, .lexer = {.x = x, .at = copy, .end = copy + n, .line = 1, .line_start = true}};
    parse_advance(&p);
    struct node *program = parse_node(&p, NODE_SCOPE, NULL, NULL);
    parse_body(&p, program, 2, no_ends);
    return program;
}
