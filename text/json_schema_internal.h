/*
 * json_schema_internal.h - how json_schema.c and its parts make GBNF of a schema: the maker, and
 * the pieces of GBNF, which are all appended to `out`.
 */
#ifndef OATO_JSON_SCHEMA_INTERNAL_H
#define OATO_JSON_SCHEMA_INTERNAL_H

#include "base/base.h"

#include <jansson.h>

/* The largest magnitude of a number: 16 digits. */
#define GBNF_NUMBER_MOST INT64_C(9999999999999999)

/* The rules that expressions name: ws, char, digits and the like. */
extern const char gbnf_common[];

/* n bytes of UTF-8 as a literal. */
void gbnf_literal(struct text *out, const char *s, size_t n);
/* x{least,most}, where x is what was appended last; most -1: no limit. Limits above 10,000 become
 * that: a shorter text is allowed, too. */
void gbnf_repeat(struct text *out, int64_t least, int64_t most);
/* Whole numbers of an interval; bounds beyond GBNF_NUMBER_MOST mean that. The interval must have
 * numbers within it. */
void gbnf_integers(struct text *out, int64_t least, int64_t most);
/* A bound of numbers: a sign, digits in front of the point and behind it, where none ends in 0. */
struct gbnf_bound {
    int64_t whole;
    char fraction[20];
    bool negative, open; /* open: the bound itself is not in the interval */
};
/* x as a bound; beyond GBNF_NUMBER_MOST it is that. False: 15 digits do not tell it. */
bool gbnf_bound_of(double x, bool open, struct gbnf_bound *out);
/* Numbers of an interval, least <= most, without exponents. False, and `out` is of no use: there
 * are none. */
bool gbnf_numbers(struct text *out, const struct gbnf_bound *least, const struct gbnf_bound *most);
/* The inside of a JSON string that a regular expression matches, which is searched in it: only ^
 * and $ tie it to the ends. OATO_EUSAGE names what is not supported. */
oato_status gbnf_pattern(struct text *out, const char *pattern, struct budget *budget,
                         struct oato_error *err);
/* The inside of a JSON string of this format; false: unknown. */
bool gbnf_format(struct text *out, const char *format);

/* ------------------------------------------------------------------------------- the maker -- */

enum { SCHEMA_DEPTH_MOST = 200 };

/* What is known of a schema, or of two. */
enum schema_fact {
    SCHEMA_RULE, /* the number of its rule */
    SCHEMA_FLAT, /* itself without $ref and allOf */
    SCHEMA_BOTH, /* the schema that wants both */
    SCHEMA_OURS, /* it is one that wants several: its allOf */
};
struct schema_known {
    const json_t *a, *b; /* a NULL: an empty slot; b NULL: about one schema */
    enum schema_fact fact;
    int rule;
    const json_t *schema;
};

struct schema_maker {
    const json_t *root;
    struct text *out;           /* finished rules: r0, r1 .. */
    struct schema_known *known; /* a hash table */
    size_t n_known, cap_known;
    int n_rules, next_rule, depth;
    json_t *merged; /* array: keeps schemas that were made */
    struct budget *budget;
    struct oato_error *err;
};

/* Takes them from the request's budget. */
oato_status schema_spend(struct schema_maker *m, uint64_t steps, size_t bytes);
/* A fact; NULL: not known. */
const struct schema_known *schema_know(const struct schema_maker *m, enum schema_fact fact,
                                       const json_t *a, const json_t *b);
oato_status schema_learn(struct schema_maker *m, struct schema_known fact);
/* Whether two values are the same; takes no stack, however deep they are. */
oato_status schema_equal(struct schema_maker *m, const json_t *a, const json_t *b, bool *equal);

/* "JSON schema: 'KEYWORD' WHAT", OATO_EUSAGE. */
oato_status schema_fail(struct schema_maker *m, const char *what, const char *keyword);
oato_status schema_fail_memory(struct schema_maker *m);
/* The list ends with NULL. */
bool schema_is_any_of(const char *s, const char *const *list);
/* Keywords that limit no values, such as title and $defs; `format` is one, even where it is kept.
 */
bool schema_is_remark(const char *key);
/* All keywords but one are remarks. */
bool schema_only_remarks_but(const json_t *schema, const char *keyword);
/* The types that a name or an array of names stands for, as bits of their order in
 * schema_type_names (which ends with NULL); an integer is a number, too. */
unsigned schema_types(const json_t *types);
extern const char *const schema_type_names[];
/* The bit of a type's name; 0: it is none. */
unsigned schema_type(const char *name);
/* A new object that the maker keeps, with a member for each of the array's strings; NULL: memory is
 * short, or the budget spent. */
json_t *schema_set_of(struct schema_maker *m, const json_t *names);

/* A new object that the maker keeps, a shallow copy of one (NULL: empty). NULL, and the error is
 * set: memory is short, or the budget spent. */
json_t *schema_copy(struct schema_maker *m, const json_t *of);
/* What a $ref leads to. */
oato_status schema_resolve(struct schema_maker *m, const json_t *ref, const json_t **out);
/* The schema without $ref and allOf: itself, or one that the maker keeps. */
oato_status schema_flatten(struct schema_maker *m, const json_t *schema, const json_t **out);
/* Adds to `into` what a flat schema demands. */
oato_status schema_merge(struct schema_maker *m, json_t *into, const json_t *part);

/* Appends a finished rule. */
oato_status schema_rule_add(struct schema_maker *m, int rule, const struct text *e);
/* The rule of a schema, which is made first if there is none. */
oato_status schema_make(struct schema_maker *m, const json_t *schema, int *rule);
/* Appends what a flat schema allows of one type. */
oato_status schema_make_type(struct schema_maker *m, const json_t *schema, const char *type,
                             struct text *e);

#endif
