/*
 * jinja_calls.c - what a Jinja program calls: the rows of jinja_strings.c, and here those of
 * containers and numbers and the tests, with the binding of arguments to the names of a row. What
 * gives a generator in Python gives a list. Python's sandbox refuses methods that change a list;
 * append and pop are here all the same, because programs of some models need them.
 */
#include "models/jinja_internal.h"

#include <stdlib.h>
#include <string.h>

int64_t call_int(struct jinja *x, const struct call *c, int i, int64_t otherwise)
{
    const struct value v = c->v[i];
    if (v.type == VALUE_UNDEFINED || v.type == VALUE_NONE)
        return otherwise;
    if (v.type != VALUE_INT && v.type != VALUE_BOOL)
        jinja_fail(x, "expected an integer, not '%s'", value_type_name(v));
    return x->failed ? otherwise : value_whole(v);
}

/* ----------------------------------------------------------------------------- functions -- */

static struct value range(struct jinja *x, const struct call *c)
{
    const bool one = c->a->n + c->a->named.n == 1;
    int64_t at = one ? 0 : call_int(x, c, 1, 0);
    const int64_t end = call_int(x, c, one ? 1 : 2, 0), step = call_int(x, c, 3, 1);
    const struct value r = value_list(x);
    if (step == 0)
        jinja_fail(x, "range() arg 3 must not be zero");
    bool over = false;
    while (!over && !x->failed && (step < 0 ? at > end : at < end) && jinja_steps(x, 1)) {
        list_push(x, r.list, value_int(at));
        over = __builtin_add_overflow(at, step, &at);
    }
    return r;
}

/* ----------------------------------------------------------------- numbers and any value -- */

static struct value otherwise(struct jinja *x, const struct call *c)
{
    (void)x;
    const bool none =
        c->v[0].type == VALUE_UNDEFINED || (value_true(c->v[2]) && !value_true(c->v[0]));
    return !none ? c->v[0] : c->v[1].type == VALUE_UNDEFINED ? value_slice("", 0) : c->v[1];
}

/* how: INT or FLOAT. */
static struct value to_number(struct jinja *x, const struct call *c)
{
    char text[64], *stop = text;
    const struct value zero = c->how == VALUE_INT ? value_int(0) : value_float(0);
    struct value v = c->v[0];
    if (v.type == VALUE_STRING) {
        const struct value s = string_strip(v, value_none(), true, true);
        const size_t n = s.len < sizeof text ? s.len : 0;
        memcpy(text, s.s, n);
        text[n] = 0;
        int64_t i;
        const int64_t base = call_int(x, c, 2, 10);
        if (c->how == VALUE_INT && n && base != 10 && base >= 2 && base <= 36) {
            i = strtoll(text, &stop, (int)base);
            return stop == text + n ? value_int(i) : zero;
        }
        if (c->how == VALUE_INT && n && parse_i64(text, INT64_MIN, INT64_MAX, &i))
            return value_int(i);
        v = value_float(strtod(text, &stop));
        v.type = n && stop == text + n ? VALUE_FLOAT : VALUE_UNDEFINED;
    }
    const bool fits = value_is_number(v) && value_number(v) > -9e18 && value_number(v) < 9e18;
    if (c->how == VALUE_INT && fits)
        return value_int(v.type == VALUE_FLOAT ? (int64_t)v.f : value_whole(v));
    if (c->how == VALUE_FLOAT && value_is_number(v))
        return value_float(value_number(v));
    return c->v[1].type == VALUE_UNDEFINED ? zero : c->v[1];
}

static struct value absolute(struct jinja *x, const struct call *c)
{
    const bool minus = value_is_number(c->v[0]) && value_number(c->v[0]) < 0;
    return value_binary(x, minus ? "-" : "+", value_int(0), c->v[0]);
}

/* ---------------------------------------------------------------------------- containers -- */

/* The member that a path names: "a.b", or an index; without a path v itself. */
static struct value member(struct jinja *x, struct value v, struct value path)
{
    if (path.type != VALUE_STRING)
        return path.type == VALUE_INT ? value_element(x, v, path) : v;
    for (size_t i = 0, n; i <= path.len && jinja_steps(x, 1); i += n + 1) {
        const char *dot = i < path.len ? memchr(path.s + i, '.', path.len - i) : NULL;
        n = (dot ? (size_t)(dot - path.s) : path.len) - i;
        v = value_element(x, v, value_slice(path.s + i, n));
    }
    return v;
}

static struct value length(struct jinja *x, const struct call *c)
{
    return value_int(value_length(x, c->v[0]));
}

/* how: the last. */
static struct value first(struct jinja *x, const struct call *c)
{
    const struct list *l = value_items(x, c->v[0]);
    return l->n ? l->v[c->how ? l->n - 1 : 0] : undefined;
}

/* how: backwards. */
static struct value to_list(struct jinja *x, const struct call *c)
{
    const struct value l = value_list(x), back[3] = {value_none(), value_none(), value_int(-1)};
    if (c->how && c->v[0].type == VALUE_STRING)
        return value_part(x, c->v[0], back);
    const struct list *items = value_items(x, c->v[0]);
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++)
        list_push(x, l.list, items->v[c->how ? items->n - 1 - i : i]);
    return l;
}

/* how: 0 for a filter, 1 for the method, where d is what stands between. */
static struct value join(struct jinja *x, const struct call *c)
{
    const struct list *items = value_items(x, c->v[c->how]);
    const struct value between = value_to_string(x, c->v[!c->how]);
    struct value all = value_slice("", 0);
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++) {
        const struct value item = member(x, items->v[i], c->v[2]);
        if (c->how && item.type != VALUE_STRING)
            jinja_fail(x, "sequence item %u: expected str instance, %s found", i,
                       value_type_name(item));
        const struct value text = value_to_string(x, item);
        if (!x->failed)
            all = value_concat(x, i ? value_concat(x, all, between) : all, text);
    }
    return all;
}

enum { PAIRS, KEYS, VALUES };

static struct value items_of(struct jinja *x, const struct call *c)
{
    const struct value list = value_list(x);
    const bool dict = c->v[0].type == VALUE_DICT;
    if (!dict && c->v[0].type != VALUE_UNDEFINED)
        jinja_fail(x, "Can only get item pairs from a mapping.");
    for (uint32_t i = 0; dict && i < c->v[0].dict->n && jinja_steps(x, 1); i++) {
        const struct entry *e = &c->v[0].dict->e[i];
        struct value pair = c->how == PAIRS ? value_list(x) : c->how == KEYS ? e->key : e->value;
        if (c->how == PAIRS && !x->failed) {
            list_push(x, pair.list, e->key);
            list_push(x, pair.list, e->value);
            pair.type = VALUE_TUPLE;
        }
        list_push(x, list.list, pair);
    }
    return list;
}

/* how: the type of what is made. */
static struct value make_dict(struct jinja *x, const struct call *c)
{
    struct value d = value_dict(x);
    const struct args *a = c->a;
    for (uint32_t i = 0; i < a->n && !x->failed; i++) {
        const struct call pairs = {.v = {a->v[i]}, .how = PAIRS};
        const struct value from = value_is_list(a->v[i]) ? a->v[i] : items_of(x, &pairs);
        for (uint32_t k = 0; !x->failed && k < from.list->n && jinja_steps(x, 1); k++) {
            const struct value pair = from.list->v[k];
            if (value_is_list(pair) && pair.list->n == 2)
                dict_set(x, d.dict, pair.list->v[0], pair.list->v[1]);
            else
                jinja_fail(x, "a dict is made of pairs");
        }
    }
    for (uint32_t i = 0; i < a->named.n && !x->failed; i++)
        dict_set(x, d.dict, a->named.e[i].key, a->named.e[i].value);
    d.type = x->failed ? VALUE_UNDEFINED : (uint8_t)c->how;
    return d;
}

static struct value get(struct jinja *x, const struct call *c)
{
    const struct value *found = dict_find(x, c->v[0].dict, c->v[1]);
    return found ? *found : c->v[2].type == VALUE_UNDEFINED ? value_none() : c->v[2];
}

static struct value append(struct jinja *x, const struct call *c)
{
    list_push(x, c->v[0].list, c->v[1]);
    return value_none();
}

static struct value pop(struct jinja *x, const struct call *c)
{
    struct list *l = c->v[0].list;
    int64_t i = call_int(x, c, 1, -1);
    i = i < 0 ? i + l->n : i;
    if (i < 0 || i >= l->n || !jinja_steps(x, l->n / 16)) {
        jinja_fail(x, l->n ? "pop index out of range" : "pop from empty list");
        return undefined;
    }
    const struct value item = l->v[i];
    memmove(&l->v[i], &l->v[i + 1], (l->n - (size_t)i - 1) * sizeof *l->v);
    l->n--;
    return item;
}

/* What is compared of an item: strings without case unless `cased`. */
static struct value sort_key(struct jinja *x, struct value item, struct value path, bool cased)
{
    const struct value v = member(x, item, path);
    return v.type == VALUE_STRING && !cased ? string_lower(x, v) : v;
}

/* Stable; keys move with the items. */
static void merge_sort(struct jinja *x, struct entry *e, struct entry *spare, size_t n, int sign)
{
    const size_t half = n / 2;
    size_t i = 0, j = half;
    if (n < 2 || x->failed)
        return;
    merge_sort(x, e, spare, half, sign);
    merge_sort(x, e + half, spare, n - half, sign);
    memcpy(spare, e, n * sizeof *e);
    for (size_t k = 0; k < n; k++) {
        const bool right =
            i == half || (j < n && !value_equal(x, spare[j].key, spare[i].key) &&
                          sign * value_order(x, "<", spare[j].key, spare[i].key) < 0);
        e[k] = right ? spare[j++] : spare[i++];
    }
}

static struct value sorted(struct jinja *x, struct value v, struct value path, bool cased,
                           bool backwards)
{
    const struct list *items = value_items(x, v);
    const struct value out = value_list(x);
    struct entry *e = jinja_alloc(x, items->n, sizeof *e),
                 *spare = jinja_alloc(x, items->n, sizeof *e);
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++)
        e[i] = (struct entry){sort_key(x, items->v[i], path, cased), items->v[i]};
    if (!x->failed)
        merge_sort(x, e, spare, items->n, backwards ? -1 : 1);
    for (uint32_t i = 0; i < items->n && !x->failed; i++)
        list_push(x, out.list, e[i].value);
    return out;
}

static struct value sort(struct jinja *x, const struct call *c)
{
    return sorted(x, c->v[0], c->v[3], value_true(c->v[2]), value_true(c->v[1]));
}

static struct value dictsort(struct jinja *x, const struct call *c)
{
    const struct value pairs = items_of(x, c), by = value_int(string_is(c->v[2], "value"));
    return sorted(x, pairs, by, value_true(c->v[1]), value_true(c->v[3]));
}

/* how: the largest. */
static struct value extreme(struct jinja *x, const struct call *c)
{
    const struct value l = sorted(x, c->v[0], c->v[2], value_true(c->v[1]), c->how);
    return x->failed || !l.list->n ? undefined : l.list->v[0];
}

static struct value unique(struct jinja *x, const struct call *c)
{
    const struct list *items = value_items(x, c->v[0]);
    const struct value seen = value_list(x), out = value_list(x);
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++) {
        const struct value key = sort_key(x, items->v[i], c->v[2], value_true(c->v[1]));
        if (x->failed || value_contains(x, seen, key))
            continue;
        list_push(x, seen.list, key);
        list_push(x, out.list, items->v[i]);
    }
    return out;
}

/* jinja2 gives nothing for what is empty or false, whatever its type. */
static const struct list *items_if_true(struct jinja *x, struct value v)
{
    return value_items(x, value_true(v) ? v : undefined);
}

static struct value sum(struct jinja *x, const struct call *c)
{
    const struct list *items = value_items(x, c->v[0]);
    struct value all = c->v[2].type == VALUE_UNDEFINED ? value_int(0) : c->v[2];
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++)
        all = value_binary(x, "+", all, member(x, items->v[i], c->v[1]));
    return all;
}

/* map('filter', ...) or map(attribute='a.b', default=...). */
static struct value map(struct jinja *x, const struct call *c)
{
    const struct list *items = items_if_true(x, c->v[0]);
    const struct args *a = c->a;
    const struct value *path = dict_find(x, &a->named, value_str("attribute"));
    const struct value *missing = dict_find(x, &a->named, value_str("default"));
    const struct value out = value_list(x);
    if (!path && !a->n)
        jinja_fail(x, "map requires a filter argument");
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++) {
        const struct args rest = {.v = a->n ? a->v + 1 : NULL, .n = a->n ? a->n - 1 : 0};
        const struct value item =
            path ? member(x, items->v[i], *path) : filter_run(x, a->v[0], items->v[i], &rest);
        const bool none = path && missing && item.type == VALUE_UNDEFINED;
        list_push(x, out.list, none ? *missing : item);
    }
    return out;
}

enum { REJECT = 1, MEMBERS = 2 };

/* The items of which they, or their members, pass the test, or not. */
static struct value choose(struct jinja *x, const struct call *c)
{
    const struct list *items = items_if_true(x, c->v[0]);
    const struct value out = value_list(x);
    const uint32_t members = c->how & MEMBERS ? 1 : 0, tests = c->a->n > members;
    if (c->a->n < members)
        jinja_fail(x, "Missing parameter for attribute name");
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++) {
        const uint32_t skip = members + tests;
        const struct args rest = {.v = skip ? c->a->v + skip : NULL, .n = c->a->n - skip};
        const struct value item = members ? member(x, items->v[i], c->a->v[0]) : items->v[i];
        const bool passes = tests ? test_run(x, c->a->v[members], item, &rest) : value_true(item);
        if (passes != (c->how & REJECT))
            list_push(x, out.list, items->v[i]);
    }
    return out;
}

/* --------------------------------------------------------------------------------- tests -- */

/* how: which types pass, a bit each. */
static struct value is_type(struct jinja *x, const struct call *c)
{
    (void)x;
    return value_bool((unsigned)c->how >> c->v[0].type & 1);
}

/* how: the bool that it is. */
static struct value is_bool(struct jinja *x, const struct call *c)
{
    (void)x;
    return value_bool(c->v[0].type == VALUE_BOOL && c->v[0].b == c->how);
}

/* how: 0, or the remainder by 2. */
static struct value divisible(struct jinja *x, const struct call *c)
{
    const struct value by = c->a->n ? c->v[1] : value_int(2);
    return value_bool(value_equal(x, value_binary(x, "%", c->v[0], by), value_int(c->how)));
}

static struct value same(struct jinja *x, const struct call *c)
{
    const bool shared = value_is_list(c->v[0]) || c->v[0].type == VALUE_DICT;
    return value_bool(c->v[0].type == c->v[1].type &&
                      (shared ? c->v[0].list == c->v[1].list : value_equal(x, c->v[0], c->v[1])));
}

enum { EQUAL, UNEQUAL, LESS, MOST, GREATER, LEAST, IN };

static struct value compare(struct jinja *x, const struct call *c)
{
    static const char *const operators[] = {"==", "!=", "<", "<=", ">", ">=", "in"};
    return value_bool(value_holds(x, operators[c->how], c->v[0], c->v[1]));
}

#define BIT(type)  (1 << VALUE_##type)
#define CONTAINERS (BIT(STRING) | BIT(LIST) | BIT(TUPLE) | BIT(DICT) | BIT(UNDEFINED))

static const struct jinja_call other_calls[] = {
    {ON_FUNCTION, "namespace", "*", 0, make_dict, VALUE_NAMESPACE},
    {ON_FUNCTION, "dict", "*", 0, make_dict, VALUE_DICT},
    {ON_FUNCTION, "range", "start stop step", 1, range, 0},
    {ON_STRING, "join", "iterable", 1, join, 1},
    {ON_DICT | ON_FILTER, "items", "", 0, items_of, PAIRS},
    {ON_DICT, "keys", "", 0, items_of, KEYS},
    {ON_DICT, "values", "", 0, items_of, VALUES},
    {ON_DICT, "get", "key default", 1, get, 0},
    {ON_LIST, "append", "object", 1, append, 0},
    {ON_LIST, "pop", "index", 0, pop, 0},
    {ON_FILTER, "default", "default_value boolean", 0, otherwise, 0},
    {ON_FILTER, "d", "default_value boolean", 0, otherwise, 0},
    {ON_FILTER, "int", "default base", 0, to_number, VALUE_INT},
    {ON_FILTER, "float", "default", 0, to_number, VALUE_FLOAT},
    {ON_FILTER, "abs", "", 0, absolute, 0},
    {ON_FILTER, "sum", "attribute start", 0, sum, 0},
    {ON_FILTER, "length", "", 0, length, 0},
    {ON_FILTER, "count", "", 0, length, 0},
    {ON_FILTER, "first", "", 0, first, false},
    {ON_FILTER, "last", "", 0, first, true},
    {ON_FILTER, "list", "", 0, to_list, false},
    {ON_FILTER, "reverse", "", 0, to_list, true},
    {ON_FILTER, "join", "d attribute", 0, join, 0},
    {ON_FILTER, "sort", "reverse case_sensitive attribute", 0, sort, 0},
    {ON_FILTER, "dictsort", "case_sensitive by reverse", 0, dictsort, PAIRS},
    {ON_FILTER, "min", "case_sensitive attribute", 0, extreme, false},
    {ON_FILTER, "max", "case_sensitive attribute", 0, extreme, true},
    {ON_FILTER, "unique", "case_sensitive attribute", 0, unique, 0},
    {ON_FILTER, "map", "*", 0, map, 0},
    {ON_FILTER, "select", "*", 0, choose, 0},
    {ON_FILTER, "reject", "*", 0, choose, REJECT},
    {ON_FILTER, "selectattr", "*", 0, choose, MEMBERS},
    {ON_FILTER, "rejectattr", "*", 0, choose, MEMBERS | REJECT},
    {ON_TEST, "undefined", "", 0, is_type, BIT(UNDEFINED)},
    {ON_TEST, "defined", "", 0, is_type, ~BIT(UNDEFINED)},
    {ON_TEST, "none", "", 0, is_type, BIT(NONE)},
    {ON_TEST, "boolean", "", 0, is_type, BIT(BOOL)},
    {ON_TEST, "integer", "", 0, is_type, BIT(INT)},
    {ON_TEST, "float", "", 0, is_type, BIT(FLOAT)},
    {ON_TEST, "number", "", 0, is_type, BIT(BOOL) | BIT(INT) | BIT(FLOAT)},
    {ON_TEST, "string", "", 0, is_type, BIT(STRING)},
    {ON_TEST, "mapping", "", 0, is_type, BIT(DICT)},
    {ON_TEST, "sequence", "", 0, is_type, CONTAINERS},
    {ON_TEST, "iterable", "", 0, is_type, CONTAINERS},
    {ON_TEST, "callable", "", 0, is_type, BIT(MACRO) | BIT(FUNCTION)},
    {ON_TEST, "true", "", 0, is_bool, true},
    {ON_TEST, "false", "", 0, is_bool, false},
    {ON_TEST, "even", "", 0, divisible, 0},
    {ON_TEST, "odd", "", 0, divisible, 1},
    {ON_TEST, "divisibleby", "num", 1, divisible, 0},
    {ON_TEST, "sameas", "other", 1, same, 0},
    {ON_TEST, "in", "seq", 1, compare, IN},
    {ON_TEST, "eq", "other", 1, compare, EQUAL},
    {ON_TEST, "equalto", "other", 1, compare, EQUAL},
    {ON_TEST, "==", "other", 1, compare, EQUAL},
    {ON_TEST, "ne", "other", 1, compare, UNEQUAL},
    {ON_TEST, "!=", "other", 1, compare, UNEQUAL},
    {ON_TEST, "lt", "other", 1, compare, LESS},
    {ON_TEST, "lessthan", "other", 1, compare, LESS},
    {ON_TEST, "<", "other", 1, compare, LESS},
    {ON_TEST, "le", "other", 1, compare, MOST},
    {ON_TEST, "<=", "other", 1, compare, MOST},
    {ON_TEST, "gt", "other", 1, compare, GREATER},
    {ON_TEST, "greaterthan", "other", 1, compare, GREATER},
    {ON_TEST, ">", "other", 1, compare, GREATER},
    {ON_TEST, "ge", "other", 1, compare, LEAST},
    {ON_TEST, ">=", "other", 1, compare, LEAST},
    {0, NULL, NULL, 0, NULL, 0},
};

const struct jinja_call *call_find(enum call_on on, struct value name)
{
    for (const struct jinja_call *row = string_calls; row->name; row++)
        if ((row->on & on) && string_is(name, row->name))
            return row;
    for (const struct jinja_call *row = other_calls; row->name; row++)
        if ((row->on & on) && string_is(name, row->name))
            return row;
    return NULL;
}

const struct jinja_call *method_find(struct value of, struct value name)
{
    const enum call_on on = of.type == VALUE_STRING ? ON_STRING
                            : of.type == VALUE_DICT ? ON_DICT
                            : of.type == VALUE_LIST ? ON_LIST
                                                    : 0;
    return on ? call_find(on, name) : NULL;
}

/* Arguments go by position and name to the parameters of the row. */
struct value call_run(struct jinja *x, const struct jinja_call *row, struct value subject,
                      const struct args *a)
{
    struct call c = {.v = {subject}, .a = a, .how = row->how};
    uint32_t given = 0, named = 0, missing = 0;
    const char *name = row->names;
    for (uint32_t i = 1; *name && *name != '*'; i++) {
        const size_t n = strcspn(name, " ");
        const struct value *by_name = dict_find(x, &a->named, value_slice(name, n));
        c.v[i] = given < a->n ? a->v[given] : by_name ? *by_name : undefined;
        missing += given >= a->n && !by_name && i <= row->required;
        given += given < a->n;
        named += by_name != NULL;
        name += n + (name[n] == ' ');
    }
    if (*row->names != '*' && (given < a->n || named < a->named.n || missing))
        jinja_fail(x, "%s() does not take these arguments", row->name);
    return x->failed ? undefined : row->run(x, &c);
}

/* A filter or a test by its name. */
static struct value named_run(struct jinja *x, enum call_on on, struct value name, struct value v,
                              const struct args *a)
{
    const struct jinja_call *row = call_find(on, name);
    const bool text = name.type == VALUE_STRING;
    if (row)
        return call_run(x, row, v, a);
    jinja_fail(x, "No %s named '%.*s'.", on == ON_FILTER ? "filter" : "test",
               text ? (int)name.len : 1, text ? name.s : "?");
    return undefined;
}

struct value filter_run(struct jinja *x, struct value name, struct value v, const struct args *a)
{
    return named_run(x, ON_FILTER, name, v, a);
}

bool test_run(struct jinja *x, struct value name, struct value v, const struct args *a)
{
    return value_true(named_run(x, ON_TEST, name, v, a));
}
