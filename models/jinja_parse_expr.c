/*
 * jinja_parse_expr.c - the expressions of a Jinja program, by recursive descent with jinja2's
 * precedence: if-else, or, and, not, comparisons, + -, ~, * / // %, **, sign, then calls, members,
 * filters and tests. A tree's height is limited here, so that evaluating it needs no more stack
 * than the limit allows.
 */
#include "models/jinja_internal.h"

#include <string.h>

void parse_advance(struct parser *p)
{
    p->now = lex_next(&p->lexer);
}

bool parse_is(const struct parser *p, enum token_kind kind, const char *text)
{
    return p->now.kind == kind && (!text || string_is(p->now.text, text));
}

bool parse_skip(struct parser *p, enum token_kind kind, const char *text)
{
    const bool is = parse_is(p, kind, text);
    if (is)
        parse_advance(p);
    return is;
}

void parse_expect(struct parser *p, enum token_kind kind, const char *text)
{
    static const char *const kinds[] = {[LEX_END] = "the end",
                                        [LEX_TEXT] = "text",
                                        [LEX_PRINT] = "{{",
                                        [LEX_BLOCK] = "{%",
                                        [LEX_CLOSE] = "the end of the tag",
                                        [LEX_NAME] = "a name",
                                        [LEX_STRING] = "a string",
                                        [LEX_INT] = "a number",
                                        [LEX_FLOAT] = "a number",
                                        [LEX_OPERATOR] = "an operator"};
    if (parse_skip(p, kind, text))
        return;
    const struct value now = p->now.text;
    p->x->line = p->now.line;
    if (now.type == VALUE_STRING && p->now.kind != LEX_TEXT)
        jinja_fail(p->x, "expected %s, found '%.*s'", text ? text : kinds[kind],
                   (int)(now.len < 40 ? now.len : 40), now.s);
    else
        jinja_fail(p->x, "expected %s, found %s", text ? text : kinds[kind], kinds[p->now.kind]);
    p->now.kind = LEX_END;
}

static void heighten(struct parser *p, struct node *n, const struct node *kid)
{
    if (kid && kid->height >= n->height)
        n->height = kid->height + 1;
    if (n->height > p->x->limits->depth)
        jinja_fail(p->x, "more than %d levels of nesting", p->x->limits->depth);
}

/* Stands in when memory is short, so that callers need not look. */
static struct node *spare(void)
{
    static _Thread_local struct node n;
    memset(&n, 0, sizeof n);
    return &n;
}

struct node *parse_node(struct parser *p, enum node_kind kind, struct node *a, struct node *b)
{
    struct node *n = jinja_alloc(p->x, 1, sizeof *n);
    if (!n)
        return spare();
    n->kind = kind;
    n->line = p->now.line;
    n->height = 1;
    n->kid[0] = a;
    n->kid[1] = b;
    heighten(p, n, a);
    heighten(p, n, b);
    return n;
}

void parse_add(struct parser *p, struct node *n, int kid, struct node *item, struct node **last)
{
    if (p->x->failed)
        return;
    if (*last)
        (*last)->next = item;
    else
        n->kid[kid] = item;
    *last = item;
    heighten(p, n, item);
}

/* The name that is the current lexeme. */
static struct value take_name(struct parser *p)
{
    const struct value name = p->now.text;
    parse_expect(p, LEX_NAME, NULL);
    return p->x->failed ? value_slice("", 0) : name;
}

static struct node *constant(struct parser *p, struct value v)
{
    struct node *n = parse_node(p, NODE_CONST, NULL, NULL);
    n->value = v;
    return n;
}

static bool at_operator(const struct parser *p, const char *text)
{
    return parse_is(p, LEX_OPERATOR, text);
}

static bool skip_operator(struct parser *p, const char *text)
{
    return parse_skip(p, LEX_OPERATOR, text);
}

/* ------------------------------------------------------------------------------- primaries -- */

/* What can follow an expression, so that a tuple may end before it. */
static bool ends_tuple(const struct parser *p)
{
    return p->now.kind == LEX_CLOSE || p->now.kind == LEX_END || at_operator(p, ")") ||
           parse_is(p, LEX_NAME, "recursive");
}

struct node *parse_tuple(struct parser *p, bool with_if_else)
{
    struct node *first = parse_expression(p, with_if_else), *last = NULL;
    if (!at_operator(p, ","))
        return first;
    struct node *tuple = parse_node(p, NODE_TUPLE, NULL, NULL);
    parse_add(p, tuple, 0, first, &last);
    while (skip_operator(p, ",") && !ends_tuple(p))
        parse_add(p, tuple, 0, parse_expression(p, with_if_else), &last);
    return tuple;
}

static struct node *parse_list(struct parser *p)
{
    struct node *list = parse_node(p, NODE_LIST, NULL, NULL), *last = NULL;
    while (!at_operator(p, "]") && !p->x->failed) {
        parse_add(p, list, 0, parse_expression(p, true), &last);
        if (!skip_operator(p, ","))
            break;
    }
    parse_expect(p, LEX_OPERATOR, "]");
    return list;
}

/* Keys and values in turns. */
static struct node *parse_dict(struct parser *p)
{
    struct node *dict = parse_node(p, NODE_DICT, NULL, NULL), *last = NULL;
    while (!at_operator(p, "}") && !p->x->failed) {
        parse_add(p, dict, 0, parse_expression(p, true), &last);
        parse_expect(p, LEX_OPERATOR, ":");
        parse_add(p, dict, 0, parse_expression(p, true), &last);
        if (!skip_operator(p, ","))
            break;
    }
    parse_expect(p, LEX_OPERATOR, "}");
    return dict;
}

static struct node *parse_name(struct parser *p)
{
    const struct {
        const char *name;
        struct value v;
    } words[] = {{"true", value_bool(true)},   {"True", value_bool(true)},
                 {"false", value_bool(false)}, {"False", value_bool(false)},
                 {"none", value_none()},       {"None", value_none()}};
    const struct value name = take_name(p);
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (string_is(name, words[i].name))
            return constant(p, words[i].v);
    struct node *n = parse_node(p, NODE_NAME, NULL, NULL);
    n->value = name;
    return n;
}

static struct node *parse_primary(struct parser *p)
{
    struct node *n;
    if (p->now.kind == LEX_NAME)
        return parse_name(p);
    if (p->now.kind == LEX_STRING) {
        n = constant(p, p->now.text);
        parse_advance(p);
        for (; p->now.kind == LEX_STRING; parse_advance(p))
            n->value = value_concat(p->x, n->value, p->now.text);
        return n;
    }
    if (p->now.kind == LEX_INT || p->now.kind == LEX_FLOAT) {
        n = constant(p, p->now.text);
        parse_advance(p);
        return n;
    }
    if (skip_operator(p, "(")) {
        n = at_operator(p, ")") ? parse_node(p, NODE_TUPLE, NULL, NULL) : parse_tuple(p, true);
        parse_expect(p, LEX_OPERATOR, ")");
        return n;
    }
    if (skip_operator(p, "["))
        return parse_list(p);
    if (skip_operator(p, "{"))
        return parse_dict(p);
    parse_expect(p, LEX_NAME, NULL); /* fails */
    return spare();
}

/* ---------------------------------------------------------------- calls, filters and tests -- */

void parse_arguments(struct parser *p, struct node *n, int kid)
{
    struct node *last = NULL;
    bool named = false;
    parse_expect(p, LEX_OPERATOR, "(");
    while (!at_operator(p, ")") && !p->x->failed) {
        struct node *item = parse_expression(p, true);
        if (item->kind == NODE_NAME && skip_operator(p, "=")) {
            const struct value name = item->value;
            item = parse_node(p, NODE_NAMED, parse_expression(p, true), NULL);
            item->value = name;
            named = true;
        } else if (named) {
            jinja_fail(p->x, "an argument without a name follows one with a name");
        }
        parse_add(p, n, kid, item, &last);
        if (!skip_operator(p, ","))
            break;
    }
    parse_expect(p, LEX_OPERATOR, ")");
}

/* [a], [a:b:c] behind an expression; an end that is left out is the constant None. */
static struct node *parse_index(struct parser *p, struct node *of)
{
    struct node *part[3] = {NULL};
    int n = 0;
    for (; n < 3 && !at_operator(p, "]") && !p->x->failed; n++) {
        if (!at_operator(p, ":"))
            part[n] = parse_expression(p, true);
        if (!skip_operator(p, ":"))
            break;
    }
    parse_expect(p, LEX_OPERATOR, "]");
    if (n == 0)
        return parse_node(p, NODE_ELEMENT, of, part[0] ? part[0] : parse_primary(p));
    struct node *slice = parse_node(p, NODE_SLICE, of, NULL), *last = NULL;
    for (int i = 0; i < 3; i++) {
        last = NULL;
        parse_add(p, slice, i + 1, part[i] ? part[i] : constant(p, value_none()), &last);
    }
    return slice;
}

static struct node *parse_postfix(struct parser *p, struct node *n)
{
    while (!p->x->failed) {
        if (skip_operator(p, ".")) {
            n = parse_node(p, p->now.kind == LEX_INT ? NODE_ELEMENT : NODE_ATTRIBUTE, n, NULL);
            if (p->now.kind == LEX_INT)
                n->kid[1] = parse_primary(p);
            else
                n->value = take_name(p);
        } else if (skip_operator(p, "[")) {
            n = parse_index(p, n);
        } else if (at_operator(p, "(")) {
            n = parse_node(p, NODE_CALL, n, NULL);
            parse_arguments(p, n, 1);
        } else {
            break;
        }
    }
    return n;
}

struct node *parse_filters(struct parser *p, struct node *n, bool first_bare)
{
    while ((first_bare || skip_operator(p, "|")) && !p->x->failed) {
        first_bare = false;
        n = parse_node(p, NODE_FILTER, n, NULL);
        n->value = take_name(p);
        if (at_operator(p, "("))
            parse_arguments(p, n, 1);
    }
    return n;
}

/* Behind "is": [not] name [arguments, or one argument without brackets]. */
static struct node *parse_test(struct parser *p, struct node *n)
{
    const bool not = parse_skip(p, LEX_NAME, "not");
    n = parse_node(p, NODE_TEST, n, NULL);
    n->value = take_name(p);
    const bool word = p->now.kind == LEX_NAME && !parse_is(p, LEX_NAME, "else") &&
                      !parse_is(p, LEX_NAME, "or") && !parse_is(p, LEX_NAME, "and") &&
                      !parse_is(p, LEX_NAME, "if") && !parse_is(p, LEX_NAME, "is") &&
                      !parse_is(p, LEX_NAME, "in") && !parse_is(p, LEX_NAME, "not");
    struct node *last = NULL;
    if (at_operator(p, "("))
        parse_arguments(p, n, 1);
    else if (word || p->now.kind == LEX_STRING || p->now.kind == LEX_INT ||
             p->now.kind == LEX_FLOAT || at_operator(p, "[") || at_operator(p, "{"))
        parse_add(p, n, 1, parse_postfix(p, parse_primary(p)), &last);
    return not ? parse_node(p, NODE_NOT, n, NULL) : n;
}

static struct node *parse_unary(struct parser *p, bool with_filters)
{
    struct node *n;
    if (!jinja_enter(p->x))
        return spare();
    if (skip_operator(p, "-"))
        n = parse_node(p, NODE_NEGATE, parse_unary(p, false), NULL);
    else if (skip_operator(p, "+"))
        n = parse_node(p, NODE_PLUS, parse_unary(p, false), NULL);
    else
        n = parse_primary(p);
    n = parse_postfix(p, n);
    while (with_filters && !p->x->failed) {
        if (at_operator(p, "|"))
            n = parse_filters(p, n, false);
        else if (parse_skip(p, LEX_NAME, "is"))
            n = parse_test(p, n);
        else if (at_operator(p, "("))
            n = parse_postfix(p, n);
        else
            break;
    }
    jinja_leave(p->x);
    return n;
}

/* ------------------------------------------------------------------------------- operators -- */

static struct node *parse_level(struct parser *p, size_t level)
{
    static const char *const operators[][4] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
    if (level == ARRAY_LEN(operators))
        return parse_unary(p, true);
    struct node *n = parse_level(p, level + 1);
    for (size_t i = 0; i < ARRAY_LEN(operators[0]) && operators[level][i] && !p->x->failed;) {
        if (!skip_operator(p, operators[level][i])) {
            i++;
            continue;
        }
        const char *op = operators[level][i];
        n = parse_node(p, *op == '~' ? NODE_CONCAT : NODE_BINARY, n, parse_level(p, level + 1));
        n->value = value_str(op);
        i = 0;
    }
    return n;
}

/* The first operand, then NODE_NAMED with the operator and the next operand. */
static struct node *parse_compare(struct parser *p)
{
    static const char *const operators[] = {"==", "!=", "<", "<=", ">", ">="};
    struct node *n = parse_level(p, 0), *compare = NULL, *last = NULL;
    while (!p->x->failed) {
        const char *op = NULL;
        for (size_t i = 0; !op && i < ARRAY_LEN(operators); i++)
            op = skip_operator(p, operators[i]) ? operators[i] : NULL;
        if (!op && parse_skip(p, LEX_NAME, "in"))
            op = "in";
        if (!op && parse_skip(p, LEX_NAME, "not")) {
            parse_expect(p, LEX_NAME, "in");
            op = "not in";
        }
        if (!op)
            break;
        compare = compare ? compare : parse_node(p, NODE_COMPARE, n, NULL);
        struct node *operand = parse_node(p, NODE_NAMED, parse_level(p, 0), NULL);
        operand->value = value_str(op);
        parse_add(p, compare, 1, operand, &last);
    }
    return compare ? compare : n;
}

static struct node *parse_not(struct parser *p)
{
    int32_t nots = 0;
    while (parse_skip(p, LEX_NAME, "not"))
        nots++;
    struct node *n = parse_compare(p);
    for (; nots > 0 && !p->x->failed; nots--)
        n = parse_node(p, NODE_NOT, n, NULL);
    return n;
}

static struct node *parse_and(struct parser *p)
{
    struct node *n = parse_not(p);
    while (parse_skip(p, LEX_NAME, "and"))
        n = parse_node(p, NODE_AND, n, parse_not(p));
    return n;
}

static struct node *parse_or(struct parser *p)
{
    struct node *n = parse_and(p);
    while (parse_skip(p, LEX_NAME, "or"))
        n = parse_node(p, NODE_OR, n, parse_and(p));
    return n;
}

/* kid 0 if kid 1 else kid 2 */
struct node *parse_expression(struct parser *p, bool with_if_else)
{
    if (!jinja_enter(p->x))
        return spare();
    struct node *n = parse_or(p), *last = NULL;
    while (with_if_else && parse_skip(p, LEX_NAME, "if")) {
        n = parse_node(p, NODE_IF_ELSE, n, parse_or(p));
        if (parse_skip(p, LEX_NAME, "else"))
            parse_add(p, n, 2, parse_expression(p, true), &last);
        last = NULL;
    }
    jinja_leave(p->x);
    return n;
}

/* What for and set assign to: a name, a member of a namespace, or several of these. */
struct node *parse_target(struct parser *p)
{
    struct node *n, *tuple = NULL, *last = NULL;
    if (!jinja_enter(p->x))
        return spare();
    do {
        if (skip_operator(p, "(")) {
            n = parse_target(p);
            parse_expect(p, LEX_OPERATOR, ")");
        } else {
            n = parse_name(p);
            if (n->kind == NODE_CONST)
                jinja_fail(p->x, "a constant cannot be assigned to");
        }
        if (skip_operator(p, ".")) {
            n = parse_node(p, NODE_ATTRIBUTE, n, NULL);
            n->value = take_name(p);
        }
        if (at_operator(p, ",") && !tuple)
            tuple = parse_node(p, NODE_TUPLE, NULL, NULL);
        if (tuple)
            parse_add(p, tuple, 0, n, &last);
    } while (skip_operator(p, ",") && (p->now.kind == LEX_NAME || at_operator(p, "(")) &&
             !parse_is(p, LEX_NAME, "in"));
    jinja_leave(p->x);
    return tuple ? tuple : n;
}
