/*
 * jinja.h - an interpreter of Jinja, the language of templates:
 *
 *     jinja_parse(name, text, n, limits, &t, err)            a program, once
 *     x = jinja_begin(t, err); jinja_set(x, "messages", v)   a run and its variables
 *     jinja_run(x, &out); jinja_end(x)
 *
 * Semantics are those of jinja2 as Hugging Face's transformers sets it up, as far as the templates
 * of known models use it; the rest is refused by name. A program comes from an untrusted file, so
 * every run has limits. The first failure is kept in the caller's error; after it nothing
 * allocates, loops end and values are undefined, so the code reads without checks.
 */
#ifndef OATO_JINJA_H
#define OATO_JINJA_H

#include "base/base.h"

#include <string.h>

struct jinja_limits {
    int64_t steps;         /* nodes evaluated, and a step for every 256 bytes of text */
    int32_t depth;         /* of expressions, statements, calls and values inside each other */
    size_t output_bytes;   /* printed in all, text that is captured by set or a macro included */
    size_t memory_bytes;   /* of values, and of the parsed program; below 4 GiB */
    size_t template_bytes; /* of its text */
};
extern const struct jinja_limits jinja_limits_default;

/* ------------------------------------------------------------------------------ values ---- */

/* X(type, its name in Python) */
#define VALUE_KINDS(X)                                                                             \
    X(UNDEFINED, "Undefined")                                                                      \
    X(NONE, "NoneType")                                                                            \
    X(BOOL, "bool")                                                                                \
    X(INT, "int")                                                                                  \
    X(FLOAT, "float")                                                                              \
    X(STRING, "str")                                                                               \
    X(LIST, "list")                                                                                \
    X(TUPLE, "tuple")                                                                              \
    X(DICT, "dict")                                                                                \
    X(NAMESPACE, "jinja2.utils.Namespace")                                                         \
    X(MACRO, "jinja2.runtime.Macro")                                                               \
    X(FUNCTION, "function")
#define VALUE_KIND(type, name) VALUE_##type,
enum value_type { VALUE_KINDS(VALUE_KIND) VALUE_TYPES };
#undef VALUE_KIND

struct value {
    uint8_t type;
    uint8_t owner; /* UNDEFINED: the type that lacks it; UNDEFINED: no name is known */
    uint32_t len;  /* STRING, UNDEFINED (its name; 0: of an element) */
    union {
        int64_t i; /* BOOL, INT; UNDEFINED: number of the element */
        double f;
        const char *s;     /* bytes, usually UTF-8, not zero-terminated */
        struct list *list; /* LIST, TUPLE, DICT, NAMESPACE */
        const struct macro *macro;
        const struct jinja_call *call; /* FUNCTION; NULL: a method without its object */
    };
};

static inline struct value value_bool(bool b)
{
    return (struct value){.type = VALUE_BOOL, .i = b};
}
static inline struct value value_int(int64_t i)
{
    return (struct value){.type = VALUE_INT, .i = i};
}
static inline struct value value_slice(const char *s, size_t n) /* borrows */
{
    return (struct value){.type = VALUE_STRING, .len = (uint32_t)n, .s = s};
}
static inline struct value value_str(const char *s) /* borrows */
{
    return value_slice(s, strlen(s));
}

struct jinja;
/* An empty list, tuple, dict or namespace, which lives as long as the run. */
struct value value_new(struct jinja *x, enum value_type type);
void list_push(struct jinja *x, struct list *l, struct value v);
/* Replaces the value of a key that is there. */
void dict_set(struct jinja *x, struct list *d, struct value key, struct value v);

/* --------------------------------------------------------------------- programs and runs ---- */

struct jinja_template;
/* name appears in messages; text is copied. */
oato_status jinja_parse(const char *name, const char *text, size_t n,
                        const struct jinja_limits *limits, struct jinja_template **out,
                        struct oato_error *err);
void jinja_free(struct jinja_template *t);
/* err is stored; the functions of the run leave their failure there. NULL: memory is short. */
struct jinja *jinja_begin(const struct jinja_template *t, struct oato_error *err);
/* From now on the run takes its work and memory from b (borrowed), too. NULL: from nothing. */
void jinja_budget(struct jinja *x, struct budget *b);
void jinja_set(struct jinja *x, const char *name, struct value v);
/* Sets every member of a JSON object. */
void jinja_set_json(struct jinja *x, const char *json, size_t n);
/* The local time at which the run began, as strftime writes it: what strftime_now gives. */
struct value jinja_now(struct jinja *x, struct value format);
oato_status jinja_run(struct jinja *x, struct text *out);
void jinja_end(struct jinja *x);
bool jinja_failed(const struct jinja *x);

#endif
