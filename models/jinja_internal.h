/*
 * jinja_internal.h - what the files of the Jinja interpreter share, and how it is used:
 *
 *     jinja_parse(name, text, n, limits, &t, err)            a program, once
 *     x = jinja_begin(t, err); jinja_set(x, "messages", v)   a run and its variables
 *     jinja_run(x, &out); jinja_end(x)
 *
 * Semantics are those of jinja2 as Hugging Face's transformers sets it up. A program comes from an
 * untrusted file, so every run has limits. The first failure is kept in the caller's error; after
 * it nothing allocates, loops end and values are undefined, so the code reads without checks.
 */
#ifndef OATO_MODELS_JINJA_INTERNAL_H
#define OATO_MODELS_JINJA_INTERNAL_H

#include "models/models.h"

struct jinja_limits {
    int64_t steps;         /* nodes evaluated, and a step for every STEP_BYTES bytes of text */
    int32_t depth;         /* of expressions, statements, calls and values inside each other */
    size_t output_bytes;   /* printed in all, text that is captured by set or a macro included */
    size_t memory_bytes;   /* of values, and of the parsed program */
    size_t template_bytes; /* of its text */
};
extern const struct jinja_limits jinja_limits_default;
enum { STEP_BYTES = 256 };

/* ------------------------------------------------------------------------------ values ---- */

enum value_type {
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INT,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_LOOP,
    VALUE_MACRO,
    VALUE_FUNCTION,
    VALUE_TYPES
};

/* Why a value is undefined, for the message when it is used. */
enum undefined_why { NO_NAME, NO_ATTRIBUTE, NO_ELEMENT, NO_ITEM };

struct value {
    uint8_t type;
    uint8_t why, owner; /* UNDEFINED: enum undefined_why; the type that lacks it */
    uint32_t len;       /* STRING, UNDEFINED (its name) */
    union {
        bool b;
        int64_t i; /* INT; UNDEFINED for want of an element: its index */
        double f;
        const char *s; /* bytes, usually UTF-8, not zero-terminated */
        struct list *list;
        struct dict *dict; /* DICT, NAMESPACE */
        const struct loop *loop;
        const struct macro *macro;
        const struct jinja_call *call; /* FUNCTION */
    };
};

struct list {
    struct value *v;
    uint32_t n, cap;
};

struct entry {
    struct value key, value;
};

struct dict { /* in the order of insertion */
    struct entry *e;
    uint32_t n, cap;
};

struct loop {
    const struct list *items;
    uint32_t index;
};

/* ------------------------------------------------------------------------------- a run ---- */

struct bump {
    char *top;
    size_t room;
};

struct tail { /* free room behind a string */
    char *end;
    size_t room, bytes; /* bytes: of the string */
};

struct scope { /* names of a block; dict keys are strings */
    struct scope *outer;
    struct dict vars;
    bool kept; /* a macro refers to it */
};

struct jinja {
    const struct jinja_limits *limits;
    const char *name; /* of the template, for messages */
    const struct node *body;
    struct arena arena;
    struct bump objects, strings;
    struct tail tails[4];
    struct text *out; /* what is printed goes here */
    struct scope *top;
    int64_t steps, now; /* now: seconds since 1970, for strftime_now */
    size_t written, memory;
    int32_t depth, line;
    bool failed;
    struct oato_error *err;
};

struct jinja_template;
/* name appears in messages; text is copied. */
oato_status jinja_parse(const char *name, const char *text, size_t n,
                        const struct jinja_limits *limits, struct jinja_template **out,
                        struct oato_error *err);
void jinja_free(struct jinja_template *t);
/* err is stored; the functions of the run leave their failure there. NULL: memory is short. */
struct jinja *jinja_begin(const struct jinja_template *t, struct oato_error *err);
void jinja_set(struct jinja *x, const char *name, struct value v);
/* Sets every member of a JSON object. */
void jinja_set_json(struct jinja *x, const char *json, size_t n);
oato_status jinja_run(struct jinja *x, struct text *out);
void jinja_end(struct jinja *x);

/* Keeps the first message, in front of it the template and the line. */
void jinja_fail(struct jinja *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Counts n steps; false when the run has failed or ends here. */
bool jinja_steps(struct jinja *x, size_t n);
/* Enters and leaves a level of nesting; a false enter is not left. */
bool jinja_enter(struct jinja *x);
static inline void jinja_leave(struct jinja *x)
{
    x->depth--;
}
/* Zeroed; NULL after a failure. */
void *jinja_alloc(struct jinja *x, size_t count, size_t size);
char *jinja_alloc_text(struct jinja *x, size_t n);
/* Adds to a text and counts it as output. */
void jinja_emit(struct jinja *x, struct text *to, const char *s, size_t n);

/* ---------------------------------------------------------------------- jinja_values.c ---- */

static const struct value undefined = {.type = VALUE_UNDEFINED, .why = NO_ITEM};

struct value value_none(void);
struct value value_bool(bool b);
struct value value_int(int64_t i);
struct value value_float(double f);
struct value value_string(struct jinja *x, const char *s, size_t n); /* copies */
struct value value_slice(const char *s, size_t n);                   /* borrows */
struct value value_str(const char *s);                               /* borrows */
struct value value_list(struct jinja *x);
struct value value_dict(struct jinja *x);
/* The text of t, which is freed. */
struct value value_take(struct jinja *x, struct text *t);
void list_push(struct jinja *x, struct list *l, struct value v);
/* NULL: no such key. */
struct value *dict_find(struct jinja *x, const struct dict *d, struct value key);
void dict_set(struct jinja *x, struct dict *d, struct value key, struct value v);

static inline bool value_is_list(struct value v)
{
    return v.type == VALUE_LIST || v.type == VALUE_TUPLE;
}
static inline bool value_is_number(struct value v)
{
    return v.type == VALUE_BOOL || v.type == VALUE_INT || v.type == VALUE_FLOAT;
}
/* Of a number. */
static inline double value_number(struct value v)
{
    return v.type == VALUE_FLOAT ? v.f : v.type == VALUE_BOOL ? v.b : (double)v.i;
}
/* Of an INT or BOOL. */
static inline int64_t value_whole(struct value v)
{
    return v.type == VALUE_BOOL ? v.b : v.i;
}
bool string_is(struct value v, const char *s);
bool value_true(struct value v);
const char *value_type_name(struct value v);                /* as Python calls it: "str" */
void value_fail_undefined(struct jinja *x, struct value v); /* "'x' is undefined" */
bool value_equal(struct jinja *x, struct value a, struct value b);
/* -1, 0, 1; fails, naming op, when the types have no order. */
int value_order(struct jinja *x, const char *op, struct value a, struct value b);
/* What iterating over v gives: items, keys, characters; fails when that is not possible. */
const struct list *value_items(struct jinja *x, struct value v);
/* a op b, for a comparison: == != < <= > >= in, not in. */
bool value_holds(struct jinja *x, const char *op, struct value a, struct value b);
bool value_contains(struct jinja *x, struct value in, struct value v);
int64_t value_length(struct jinja *x, struct value v);
struct value value_attribute(struct jinja *x, struct value v, struct value name);
struct value value_element(struct jinja *x, struct value v, struct value index);

/* ------------------------------------------------------------------- jinja_operators.c ---- */

struct value value_concat(struct jinja *x, struct value a, struct value b); /* strings */
struct value value_binary(struct jinja *x, const char *op, struct value a, struct value b);
/* part[3]: first, end, step, or none. */
struct value value_part(struct jinja *x, struct value v, const struct value part[3]);

/* ------------------------------------------------------------------------ jinja_text.c ---- */

/* Bytes of the character at s (n > 0); 1 for a byte that is not UTF-8. */
size_t char_bytes(const char *s, size_t n);
bool char_is_space(const char *s, size_t n);
size_t string_chars(struct value v);
size_t string_offset(struct value v, size_t chars); /* of the character with that number */
/* chars: what to remove, white space when it is no string. */
struct value string_strip(struct value v, struct value chars, bool left, bool right);
/* Writes UTF-8; returns its bytes. */
size_t char_write(uint32_t c, char out[4]);
struct value value_to_string(struct jinja *x, struct value v); /* str(v) */
void value_print(struct jinja *x, struct value v, struct text *to);

struct json_style {
    int32_t indent; /* -1: one line */
    bool ascii, sorted;
    struct value between, after_key; /* separators */
};
void value_json(struct jinja *x, struct value v, const struct json_style *style, struct text *to);
struct value value_from_json(struct jinja *x, const char *s, size_t n);

/* ------------------------------------------------------ jinja_strings.c, jinja_calls.c ---- */

struct args {
    struct value *v; /* positional */
    uint32_t n;
    struct dict named;
};

enum { PARAMETERS = 4 };

/* v[0] is the subject, then come the row's parameters, undefined where not given. */
struct call {
    struct value v[1 + PARAMETERS];
    const struct args *a;
    int how; /* the row's */
};

enum call_on {
    ON_FUNCTION = 1,
    ON_FILTER = 2,
    ON_TEST = 4,
    ON_STRING = 8,
    ON_DICT = 16,
    ON_LIST = 32
};

struct jinja_call {
    int on; /* enum call_on: what it is, or whose method */
    const char *name;
    const char *names; /* of its parameters, separated by spaces; "*": it looks at `a` itself */
    uint32_t required;
    struct value (*run)(struct jinja *x, const struct call *c);
    int how;
};

extern const struct jinja_call string_calls[];
const struct jinja_call *call_find(enum call_on on, struct value name);
const struct jinja_call *method_find(struct value of, struct value name);
struct value call_run(struct jinja *x, const struct jinja_call *row, struct value subject,
                      const struct args *a);
/* By name, with the message of an unknown one. */
struct value filter_run(struct jinja *x, struct value name, struct value v, const struct args *a);
bool test_run(struct jinja *x, struct value name, struct value v, const struct args *a);
int64_t call_int(struct jinja *x, const struct call *c, int i, int64_t otherwise);
struct value string_lower(struct jinja *x, struct value v);

/* --------------------------------------------------------- jinja_lex.c, jinja_parse.c ------ */

enum token_kind {
    LEX_END,
    LEX_TEXT,
    LEX_PRINT,
    LEX_BLOCK,
    LEX_CLOSE,
    LEX_NAME,
    LEX_STRING,
    LEX_INT,
    LEX_FLOAT,
    LEX_OPERATOR
};

struct lexeme {
    enum token_kind kind;
    int32_t line;
    struct value text; /* TEXT, NAME, OPERATOR as written, STRING decoded, INT, FLOAT */
};

struct lexer {
    struct jinja *x;
    const char *at, *end;
    int32_t line, open; /* open: brackets */
    bool inside;        /* of a tag */
    bool block;         /* that tag is {% */
    bool line_start;    /* the last tag took a newline with it, or there was none */
};

/* The next lexeme; LEX_END at the end and after a failure. */
struct lexeme lex_next(struct lexer *l);

enum node_kind {
    /* expressions */
    NODE_CONST,
    NODE_NAME,
    NODE_LIST,
    NODE_TUPLE,
    NODE_DICT,
    NODE_ATTRIBUTE,
    NODE_ELEMENT,
    NODE_SLICE,
    NODE_CALL,
    NODE_FILTER,
    NODE_TEST,
    NODE_NAMED,
    NODE_NEGATE,
    NODE_PLUS,
    NODE_NOT,
    NODE_AND,
    NODE_OR,
    NODE_BINARY,
    NODE_CONCAT,
    NODE_COMPARE,
    NODE_IF_ELSE,
    /* statements */
    NODE_TEXT,
    NODE_PRINT,
    NODE_IF,
    NODE_FOR,
    NODE_SET,
    NODE_CAPTURE,
    NODE_MACRO,
    NODE_CALL_BLOCK,
    NODE_FILTER_BLOCK,
    NODE_SCOPE,
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_KINDS
};

enum { NODE_KIDS = 5 };

/* What the kids are is said where the kind is evaluated (jinja_eval.c, jinja_run.c). */
struct node {
    enum node_kind kind;
    int32_t line, height;
    struct value value; /* constant, name or operator */
    struct node *kid[NODE_KIDS];
    struct node *next; /* in a list */
};

struct node *parse_program(struct jinja *x, const char *text, size_t n);
/* jinja_parse_expr.c */
struct parser {
    struct jinja *x;
    struct lexer lexer;
    struct lexeme now;
    bool in_loop;
};
void parse_advance(struct parser *p);
bool parse_is(const struct parser *p, enum token_kind kind, const char *text);
bool parse_skip(struct parser *p, enum token_kind kind, const char *text);
void parse_expect(struct parser *p, enum token_kind kind, const char *text);
struct node *parse_node(struct parser *p, enum node_kind kind, struct node *a, struct node *b);
/* Adds a kid or, to the end of a list of kids, an item. */
void parse_add(struct parser *p, struct node *n, int kid, struct node *item, struct node **last);
struct node *parse_expression(struct parser *p, bool with_if_else);
struct node *parse_tuple(struct parser *p, bool with_if_else);
struct node *parse_target(struct parser *p);
/* (a, b=c) of a call; the list becomes kid `kid` of n. */
void parse_arguments(struct parser *p, struct node *n, int kid);
/* name(args)|name(args), applied to subject. */
struct node *parse_filters(struct parser *p, struct node *subject, bool first_bare);

/* ------------------------------------------------------------- jinja_eval.c, jinja_run.c -- */

struct macro {
    const struct node *node;
    struct scope *scope; /* where it was defined */
};

enum jinja_flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

/* A list of statements. */
enum jinja_flow run_body(struct jinja *x, const struct node *first, struct scope *s);
struct value eval(struct jinja *x, const struct node *n, struct scope *s);
struct scope *scope_open(struct jinja *x, struct scope *outer); /* NULL after a failure */
void scope_set(struct jinja *x, struct scope *s, struct value name, struct value v);
void scope_assign(struct jinja *x, struct scope *s, const struct node *target, struct value v);
void eval_arguments(struct jinja *x, const struct node *list, struct scope *s, struct args *a);
struct value macro_call(struct jinja *x, const struct macro *m, const struct args *a);

#endif
