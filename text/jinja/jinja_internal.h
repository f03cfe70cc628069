/*
 * jinja_internal.h - what the files of the Jinja interpreter share.
 */
#ifndef OATO_JINJA_INTERNAL_H
#define OATO_JINJA_INTERNAL_H

#include "text/jinja/jinja.h"

enum { STEP_BYTES = 256 }; /* of text, in a step */

/* A dict is a list of keys and values in turns, in the order of insertion. */
struct list {
    struct value *v;
    uint32_t n, cap;
};

static const struct value undefined = {.type = VALUE_UNDEFINED};
static const struct value value_none = {.type = VALUE_NONE};

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
    return v.type == VALUE_FLOAT ? v.f : (double)v.i;
}
static inline bool string_is(struct value v, const char *s)
{
    return v.type == VALUE_STRING && v.len == strlen(s) && memcmp(v.s, s, v.len) == 0;
}

/* ------------------------------------------------------------------------------- a run ---- */

struct tail { /* free room behind a string */
    char *end;
    size_t room, bytes; /* bytes: of the string */
};

struct scope { /* names of a block; the keys of vars are strings */
    struct scope *outer;
    struct list vars;
    bool kept; /* a macro refers to it */
};

enum jinja_flow { FLOW_ON, FLOW_BREAK, FLOW_CONTINUE };

struct jinja {
    const struct jinja_limits *limits;
    const char *name; /* of the template, for messages */
    const struct node *body;
    struct arena arena;
    struct list nothing; /* stays empty: what a list is after a failure */
    struct tail tails[4];
    struct text *out; /* what is printed goes here */
    struct scope *top;
    int64_t steps, now; /* now: seconds since 1970, for strftime_now */
    struct budget *budget;
    int64_t spent_steps; /* of the budget, up to here */
    size_t spent_bytes;
    size_t written;
    int32_t depth, line;
    enum jinja_flow flow; /* not ON: statements are skipped up to the end of the loop's body */
    bool failed;
    struct oato_error *err;
};

/* ------------------------------------------------------------------------------ limits.c ---- */

/* Keeps the first message, in front of it the template and the line. */
void jinja_fail(struct jinja *x, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Counts n steps; false when the run has failed or ends here. */
bool jinja_steps(struct jinja *x, size_t n);
/* Takes what was used since the last call, and `bytes` that are about to be, from the budget. */
void jinja_spend(struct jinja *x, size_t bytes);
/* Enters and leaves a level of nesting; a false enter is not left. */
bool jinja_enter(struct jinja *x);
static inline void jinja_leave(struct jinja *x)
{
    x->depth--;
}
/* Zeroed; NULL after a failure. */
void *jinja_alloc(struct jinja *x, size_t count, size_t size);
/* Adds to a text, and counts it as output and as steps. */
void jinja_emit(struct jinja *x, struct text *to, const char *s, size_t n);

/* ------------------------------------------------------------------------------ values.c ---- */

struct value value_string(struct jinja *x, const char *s, size_t n); /* copies */
struct value value_take(struct jinja *x, struct text *t);            /* its text; t is freed */
/* NULL: no such key. */
struct value *dict_find(struct jinja *x, const struct list *d, struct value key);

bool value_true(struct value v);
const char *value_type_name(struct value v);                /* as Python calls it: "str" */
void value_fail_undefined(struct jinja *x, struct value v); /* "'x' is undefined" */
bool value_equal(struct jinja *x, struct value a, struct value b);
/* Less than 0, 0, more than 0; fails when the types have no order. */
int value_order(struct jinja *x, const char *op, struct value a, struct value b);
/* What iterating over v gives: items, keys, characters; fails when that is not possible. */
const struct list *value_items(struct jinja *x, struct value v);
/* Bytes of the character at s (n > 0); 1 for a byte that is not UTF-8. */
size_t char_bytes(const char *s, size_t n);
size_t string_offset(struct value v, size_t chars); /* of the character with that number */
int64_t value_length(struct jinja *x, struct value v);
/* part[3]: first, end, step, or none. */
struct value value_part(struct jinja *x, struct value v, const struct value part[3]);
struct value value_concat(struct jinja *x, struct value a, struct value b); /* strings */
/* Any operator but "or", "and" and "~", as programs write it. */
struct value value_binary(struct jinja *x, const char *op, struct value a, struct value b);

/* -------------------------------------------------------------------------------- text.c ---- */

bool char_is_space(const char *s, size_t n);
/* chars: what to remove, white space when it is no string. */
struct value string_strip(struct value v, struct value chars, bool left, bool right);
struct value value_to_string(struct jinja *x, struct value v); /* str(v) */
void value_print(struct jinja *x, struct value v, struct text *to);
void value_json(struct jinja *x, struct value v, bool ascii, int64_t indent, struct text *to);
struct value value_from_json(struct jinja *x, const char *s, size_t n);
/* The string whose text begins at *at and ends before `quote`; *at is moved behind that. */
struct value read_string(struct jinja *x, const char **at, const char *end, char quote, bool json);
/* The number at *at, made of the characters `of`; undefined when it is none. */
struct value read_number(const char **at, const char *end, const char *of);

/* ------------------------------------------------------------------------------- calls.c ---- */

struct args {
    struct list at, named; /* named: a dict */
};

enum call_on {
    ON_FUNCTION = 1,
    ON_FILTER = 2,
    ON_TEST = 4,
    ON_STRING = 8,
    ON_DICT = 16,
    ON_LIST = 32
};

const struct jinja_call *call_find(enum call_on on, struct value name);
const struct jinja_call *method_find(struct value of, struct value name);
/* v.key when dotted (methods before items), else v[key]. */
struct value value_member(struct jinja *x, struct value v, struct value key, bool dotted);
struct value call_run(struct jinja *x, const struct jinja_call *row, struct value subject,
                      const struct args *a);
/* A filter or test by its name. */
struct value call_named(struct jinja *x, enum call_on on, struct value name, struct value subject,
                        const struct args *a);

/* ------------------------------------------------------------------------------- parse.c ---- */

/* Behind each kind: its kids and value. A list is linked by `next`. */
enum node_kind {
    NODE_CONST,     /* value */
    NODE_NAME,      /* value */
    NODE_LIST,      /* items */
    NODE_TUPLE,     /* items; as a target: targets */
    NODE_DICT,      /* keys and values in turns */
    NODE_ATTRIBUTE, /* of; value: name */
    NODE_ELEMENT,   /* of, index */
    NODE_SLICE,     /* of, first, end, step */
    NODE_CALL,      /* what, arguments */
    NODE_FILTER,    /* of, arguments; value: name */
    NODE_TEST,      /* of, arguments; value: name */
    NODE_NAMED,     /* an argument: expression; a parameter: default, or none; value: name */
    NODE_NEGATE,    /* operand */
    NODE_NOT,       /* operand */
    NODE_BINARY,    /* two operands; value: operator */
    NODE_IF_ELSE,   /* value, condition, otherwise */
    NODE_CAPTURE,   /* body, whose text it gives */
    NODE_TEXT,      /* value */
    NODE_PRINT,     /* expression */
    NODE_IF,        /* condition (none: else), body, the next branch */
    NODE_FOR,       /* target, list, condition, body */
    NODE_SET,       /* target, expression */
    NODE_MACRO,     /* parameters, body; value: name */
    NODE_BREAK,
    NODE_CONTINUE
};

struct node {
    enum node_kind kind;
    int32_t line;
    struct value value;
    struct node *kid[4];
    struct node *next;
};

struct node *parse_program(struct jinja *x, const char *text, size_t n);

#endif
