/*
 * calls.c - what a Jinja program calls: one table of functions, filters, tests and methods.
 * A row says what its parameters are, so that a function finds its arguments checked and in order.
 *
 * What gives a generator in Python gives a list. Python's sandbox refuses methods that change a
 * list; append and pop are here all the same, because programs of some models need them. Changes of
 * case know ASCII only.
 */
#include "text/jinja/jinja_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <time.h>

enum { PARAMETERS = 4, TEXT = 64 };

/* v[0] is the subject, then come the row's parameters; undefined: not given and no default. */
struct call {
    struct value v[1 + PARAMETERS];
    const struct args *a;
    int how; /* the row's */
};

struct jinja_call {
    int on; /* enum call_on: what it is, or whose method; with TEXT the subject becomes a string */
    const char *name;
    /* Separated by spaces: type, colon, name, and = with a default (a number, or nothing) where it
     * may be left out. Types are s: string, i: integer, b: true or not, v: any value; None stands
     * for the default of s and i. "*": the function looks at `a` itself. */
    const char *parameters;
    struct value (*run)(struct jinja *x, const struct call *c);
    int how;
};

/* ----------------------------------------------------------------------------- functions -- */

static struct value raise_exception(struct jinja *x, const struct call *c)
{
    const struct value text = value_to_string(x, c->v[1]);
    jinja_fail(x, "%.*s", (int)text.len, text.s);
    return undefined;
}

struct value jinja_now(struct jinja *x, struct value format)
{
    char form[128], out[512];
    struct tm tm = {0};
    const time_t now = (time_t)x->now;
    if (format.len >= sizeof form || !localtime_r(&now, &tm))
        jinja_fail(x, "the format of a time is too long");
    snprintf(form, sizeof form, "%.*s", (int)min_i64(format.len, sizeof form), format.s);
    return value_string(x, out, strftime(out, sizeof out, form, &tm));
}

static struct value strftime_now(struct jinja *x, const struct call *c)
{
    return jinja_now(x, c->v[1]);
}

static struct value range(struct jinja *x, const struct call *c)
{
    const bool one = c->v[2].type == VALUE_UNDEFINED;
    int64_t at = one ? 0 : c->v[1].i;
    const int64_t end = c->v[one ? 1 : 2].i, step = c->v[3].i;
    const struct value r = value_new(x, VALUE_LIST);
    if (step == 0)
        jinja_fail(x, "range() arg 3 must not be zero");
    bool over = false;
    while (!over && !x->failed && (step < 0 ? at > end : at < end) && jinja_steps(x, 1)) {
        list_push(x, r.list, value_int(at));
        over = __builtin_add_overflow(at, step, &at);
    }
    return r;
}

static struct value namespace(struct jinja *x, const struct call *c)
{
    const struct value d = value_new(x, VALUE_NAMESPACE);
    if (c->a->at.n)
        jinja_fail(x, "namespace() of a dict is not supported");
    for (uint32_t i = 0; i < c->a->named.n; i++)
        list_push(x, d.list, c->a->named.v[i]);
    return d;
}

/* ------------------------------------------------------------------------------- strings -- */

static struct value split(struct jinja *x, const struct call *c)
{
    struct value rest = c->v[0];
    const struct value by = c->v[1], list = value_new(x, VALUE_LIST);
    if (by.len == 0)
        jinja_fail(x, "an empty separator is not supported");
    const bool all = c->v[2].i < 0;
    for (int64_t left = all ? 1 : c->v[2].i; left && !x->failed; left -= !all) {
        const char *at = rest.len ? memmem(rest.s, rest.len, by.s, by.len) : NULL;
        const size_t n = at ? (size_t)(at - rest.s) : rest.len;
        if (!jinja_steps(x, 1 + n / STEP_BYTES) || !at)
            break;
        list_push(x, list.list, value_slice(rest.s, n));
        rest = value_slice(at + by.len, rest.len - n - by.len);
    }
    list_push(x, list.list, rest);
    return list;
}

static struct value join(struct jinja *x, const struct call *c)
{
    const struct list *items = value_items(x, c->v[0]);
    struct value all = value_slice("", 0);
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++) {
        all = i ? value_concat(x, all, c->v[1]) : all;
        all = value_concat(x, all, value_to_string(x, items->v[i]));
    }
    return all;
}

static struct value replace(struct jinja *x, const struct call *c)
{
    const struct call parts = {.v = {c->v[0], c->v[1], c->v[3]}};
    const struct call whole = {.v = {split(x, &parts), c->v[2]}};
    return join(x, &whole);
}

static struct value indent(struct jinja *x, const struct call *c)
{
    const struct call parts = {.v = {c->v[0], value_str("\n"), value_int(-1)}};
    const struct list *lines = split(x, &parts).list;
    const struct value by = value_binary(x, "*", value_str(" "), c->v[1]);
    struct value all = value_slice("", 0);
    for (uint32_t i = 0; i < lines->n && jinja_steps(x, 1); i++) {
        all = i ? value_concat(x, all, parts.v[1]) : all;
        if (i ? lines->v[i].len > 0 || c->v[3].i : c->v[2].i)
            all = value_concat(x, all, by);
        all = value_concat(x, all, lines->v[i]);
    }
    return all;
}

/* Its {} only. */
static struct value format(struct jinja *x, const struct call *c)
{
    const struct call parts = {.v = {c->v[0], value_str("{}"), value_int(-1)}};
    const struct list *texts = split(x, &parts).list;
    struct value all = value_slice("", 0);
    for (uint32_t i = 0; i < texts->n && jinja_steps(x, 1); i++) {
        const struct value text = texts->v[i];
        if (i > c->a->at.n || c->a->named.n || memchr(text.s, '{', text.len) ||
            memchr(text.s, '}', text.len))
            jinja_fail(x, "format() supports {} only, with an argument for each");
        else if (i)
            all = value_concat(x, all, value_to_string(x, c->a->at.v[i - 1]));
        all = value_concat(x, all, text);
    }
    return all;
}

enum { LEFT = 1, RIGHT = 2 };

/* how: at which ends; 0 leaves the text as it is. */
static struct value strip(struct jinja *x, const struct call *c)
{
    const struct value s = c->v[0];
    const size_t chars = c->v[1].type == VALUE_STRING ? c->v[1].len : 1;
    if (!jinja_steps(x, s.len * (1 + chars) / STEP_BYTES))
        return undefined;
    return string_strip(s, c->v[1], c->how & LEFT, c->how & RIGHT);
}

/* how: the end that is looked at. */
static struct value has_end(struct jinja *x, const struct call *c)
{
    const struct value s = c->v[0], end = c->v[1];
    return value_bool(end.len <= s.len && jinja_steps(x, end.len / STEP_BYTES) &&
                      !memcmp(s.s + (c->how == RIGHT ? s.len - end.len : 0), end.s, end.len));
}

/* how: to upper case. */
static struct value change_case(struct jinja *x, const struct call *c)
{
    const struct value v = c->v[0];
    char *s = jinja_steps(x, v.len / STEP_BYTES) ? jinja_alloc(x, v.len, 1) : NULL;
    for (size_t i = 0; s && i < v.len; i++) {
        const unsigned char b = (unsigned char)v.s[i];
        s[i] = (char)(b >= 0x80 ? b : c->how ? toupper(b) : tolower(b));
    }
    return value_slice(s ? s : "", s ? v.len : 0);
}

static struct value tojson(struct jinja *x, const struct call *c)
{
    const bool pretty = c->v[2].type != VALUE_UNDEFINED;
    struct text t;
    text_init(&t);
    value_json(x, c->v[0], c->v[1].i, pretty ? max_i64(0, min_i64(c->v[2].i, 1000)) : -1, &t);
    return value_take(x, &t);
}

static struct value from_json(struct jinja *x, const struct call *c)
{
    return value_from_json(x, c->v[0].s, c->v[0].len);
}

/* ------------------------------------------------------------- containers and any value -- */

static struct value otherwise(struct jinja *x, const struct call *c)
{
    (void)x;
    const bool none = c->v[0].type == VALUE_UNDEFINED || (c->v[2].i && !value_true(c->v[0]));
    return !none ? c->v[0] : c->v[1].type == VALUE_UNDEFINED ? value_slice("", 0) : c->v[1];
}

static struct value to_int(struct jinja *x, const struct call *c)
{
    if (!value_is_number(c->v[0]) || c->v[0].type == VALUE_FLOAT)
        jinja_fail(x, "int of '%s' is not supported", value_type_name(c->v[0]));
    return value_int(c->v[0].i);
}

static struct value length(struct jinja *x, const struct call *c)
{
    return value_int(value_length(x, c->v[0]));
}

static struct value to_list(struct jinja *x, const struct call *c)
{
    const struct value all[3] = {value_none, value_none, value_none};
    const struct list *items = value_items(x, c->v[0]);
    return value_part(x, (struct value){.type = VALUE_LIST, .list = (struct list *)items}, all);
}

static struct value items_of(struct jinja *x, const struct call *c)
{
    const struct value list = value_new(x, VALUE_LIST);
    const bool dict = c->v[0].type == VALUE_DICT;
    if (!dict && c->v[0].type != VALUE_UNDEFINED)
        jinja_fail(x, "Can only get item pairs from a mapping.");
    for (uint32_t i = 0; dict && i < c->v[0].list->n && jinja_steps(x, 1); i += 2) {
        const struct value pair = value_new(x, VALUE_TUPLE);
        list_push(x, pair.list, c->v[0].list->v[i]);
        list_push(x, pair.list, c->v[0].list->v[i + 1]);
        list_push(x, list.list, pair);
    }
    return list;
}

/* how: 0 keys, 1 values. */
static struct value halves(struct jinja *x, const struct call *c)
{
    const struct value list = value_new(x, VALUE_LIST);
    for (uint32_t i = 0; i < c->v[0].list->n && jinja_steps(x, 1); i += 2)
        list_push(x, list.list, c->v[0].list->v[i + (uint32_t)c->how]);
    return list;
}

/* how: the end that is taken. */
static struct value outermost(struct jinja *x, const struct call *c)
{
    const struct list *items = value_items(x, c->v[0]);
    return items->n ? items->v[c->how == RIGHT ? items->n - 1 : 0] : undefined;
}

static struct value get(struct jinja *x, const struct call *c)
{
    const struct value *found = dict_find(x, c->v[0].list, c->v[1]);
    return found ? *found : c->v[2].type == VALUE_UNDEFINED ? value_none : c->v[2];
}

static struct value append(struct jinja *x, const struct call *c)
{
    list_push(x, c->v[0].list, c->v[1]);
    return value_none;
}

static struct value pop(struct jinja *x, const struct call *c)
{
    struct list *l = c->v[0].list;
    const int64_t i = c->v[1].i < 0 ? c->v[1].i + l->n : c->v[1].i;
    if (i < 0 || i >= l->n || !jinja_steps(x, l->n / 16)) {
        jinja_fail(x, l->n ? "pop index out of range" : "pop from empty list");
        return undefined;
    }
    const struct value item = l->v[i];
    memmove(&l->v[i], &l->v[i + 1], (l->n - (size_t)i - 1) * sizeof *l->v);
    l->n--;
    return item;
}

/* The member that is asked for by name or index; v itself when that is undefined. */
static struct value member(struct jinja *x, struct value v, struct value path)
{
    if (path.type == VALUE_STRING && memchr(path.s, '.', path.len))
        jinja_fail(x, "a path of attributes is not supported");
    return path.type == VALUE_UNDEFINED ? v : value_member(x, v, path, false);
}

/* What is compared of an item: strings without case. */
static struct value sort_key(struct jinja *x, struct value item, struct value path)
{
    const struct value v = member(x, item, path);
    return v.type == VALUE_STRING ? change_case(x, &(struct call){.v = {v}}) : v;
}

enum { ITEMS, ENTRIES, LEAST };

/* Sorts items, or the entries of a dict by key, and gives all or the least. By insertion: lists are
 * short, and steps are counted. */
static struct value sort(struct jinja *x, const struct call *c)
{
    const struct value path = c->how == ENTRIES ? value_int(0) : c->v[1];
    const struct list *items = c->how == ENTRIES ? items_of(x, c).list : value_items(x, c->v[0]);
    const struct value out = value_new(x, VALUE_LIST), keys = value_new(x, VALUE_LIST);
    for (uint32_t n = 0; n < items->n && jinja_steps(x, 1); n++) {
        const struct value key = sort_key(x, items->v[n], path);
        uint32_t i = n;
        list_push(x, keys.list, key);
        list_push(x, out.list, items->v[n]);
        for (struct value *k = keys.list->v, *v = out.list->v; i > 0 && !x->failed; i--) {
            if (value_equal(x, key, k[i - 1]) || value_order(x, "<", key, k[i - 1]) >= 0)
                break;
            k[i] = k[i - 1];
            v[i] = v[i - 1];
            k[i - 1] = key;
            v[i - 1] = items->v[n];
        }
    }
    return c->how != LEAST ? out : out.list->n ? out.list->v[0] : undefined;
}

static struct value unique(struct jinja *x, const struct call *c)
{
    const struct list *items = value_items(x, c->v[0]);
    const struct value seen = value_new(x, VALUE_LIST), out = value_new(x, VALUE_LIST);
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++) {
        const struct value key = sort_key(x, items->v[i], undefined);
        if (value_true(value_binary(x, "in", key, seen)))
            continue;
        list_push(x, seen.list, key);
        list_push(x, out.list, items->v[i]);
    }
    return out;
}

enum { REJECT = 1, MEMBERS = 2, MAP = 4 };

/* The items that pass a test, or not; or whose members do; of map: what a filter makes of them, or
 * their members. Nothing for what is empty or false, whatever its type. */
static struct value choose(struct jinja *x, const struct call *c)
{
    const struct list *items = value_items(x, value_true(c->v[0]) ? c->v[0] : undefined);
    const struct value out = value_new(x, VALUE_LIST);
    const struct value *path = dict_find(x, &c->a->named, value_str("attribute"));
    const bool map = c->how == MAP;
    struct args rest = {.at = c->a->at};
    if (c->how & MEMBERS && rest.at.n-- > 0)
        path = rest.at.v++;
    const bool calls = rest.at.n-- > 0 && rest.at.v;
    const struct value name = calls ? *rest.at.v++ : undefined;
    if (c->a->named.n > (map && path ? 2 : 0) || (map && calls == (path != NULL)) ||
        (c->how & MEMBERS && !path))
        jinja_fail(x, "these arguments of map, select or reject are not supported");
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++) {
        struct value v = path ? member(x, items->v[i], *path) : items->v[i];
        if (calls)
            v = call_named(x, map ? ON_FILTER : ON_TEST, name, v, &rest);
        if (map || value_true(v) != (c->how & REJECT))
            list_push(x, out.list, map ? v : items->v[i]);
    }
    return out;
}

/* --------------------------------------------------------------------------------- tests -- */

#define BIT(type)  (1 << VALUE_##type)
#define CONTAINERS (BIT(STRING) | BIT(LIST) | BIT(TUPLE) | BIT(DICT) | BIT(UNDEFINED))

/* how: which types pass, a bit each; false and true have one, too. */
static struct value is_type(struct jinja *x, const struct call *c)
{
    const struct value v = c->v[0];
    (void)x;
    const int is = 1 << v.type | (v.type == VALUE_BOOL ? BIT(TYPES) << v.i : 0);
    return value_bool(c->how & is);
}

static struct value equal(struct jinja *x, const struct call *c)
{
    return value_bool(value_equal(x, c->v[0], c->v[1]));
}

static const struct jinja_call calls[] = {
    {ON_FUNCTION, "raise_exception", "v:message", raise_exception, 0},
    {ON_FUNCTION, "strftime_now", "s:format", strftime_now, 0},
    {ON_FUNCTION, "range", "i:start i:stop= i:step=1", range, 0},
    {ON_FUNCTION, "namespace", "*", namespace, 0},
    {ON_STRING, "split", "s:sep i:maxsplit=-1", split, 0},
    {ON_STRING, "strip", "s:chars=", strip, LEFT | RIGHT},
    {ON_STRING, "lstrip", "s:chars=", strip, LEFT},
    {ON_STRING, "rstrip", "s:chars=", strip, RIGHT},
    {ON_FILTER | TEXT, "trim", "s:chars=", strip, LEFT | RIGHT},
    {ON_STRING, "startswith", "s:prefix", has_end, LEFT},
    {ON_STRING, "endswith", "s:suffix", has_end, RIGHT},
    {ON_STRING, "format", "*", format, 0},
    {ON_STRING | ON_FILTER | TEXT, "replace", "s:old s:new i:count=-1", replace, 0},
    {ON_STRING | ON_FILTER | TEXT, "upper", "", change_case, true},
    {ON_STRING | ON_FILTER | TEXT, "lower", "", change_case, false},
    {ON_FILTER | TEXT, "indent", "i:width=4 b:first=0 b:blank=0", indent, 0},
    {ON_FILTER | TEXT, "string", "", strip, 0},
    {ON_FILTER | TEXT, "safe", "", strip, 0},
    {ON_FILTER, "tojson", "b:ensure_ascii=0 i:indent=", tojson, 0},
    {ON_FILTER | TEXT, "from_json", "", from_json, 0},
    {ON_DICT | ON_FILTER, "items", "", items_of, 0},
    {ON_DICT, "keys", "", halves, 0},
    {ON_DICT, "values", "", halves, 1},
    {ON_DICT, "get", "v:key v:default=", get, 0},
    {ON_LIST, "append", "v:object", append, 0},
    {ON_LIST, "pop", "i:index=-1", pop, 0},
    {ON_FILTER, "default", "v:default_value= b:boolean=0", otherwise, 0},
    {ON_FILTER, "int", "", to_int, 0},
    {ON_FILTER, "length", "", length, 0},
    {ON_FILTER, "first", "", outermost, LEFT},
    {ON_FILTER, "last", "", outermost, RIGHT},
    {ON_FILTER, "list", "", to_list, 0},
    {ON_FILTER, "join", "s:d=", join, 0},
    {ON_FILTER, "sort", "v:attribute=", sort, ITEMS},
    {ON_FILTER, "dictsort", "", sort, ENTRIES},
    {ON_FILTER, "min", "", sort, LEAST},
    {ON_FILTER, "unique", "", unique, 0},
    {ON_FILTER, "map", "*", choose, MAP},
    {ON_FILTER, "select", "*", choose, 0},
    {ON_FILTER, "reject", "*", choose, REJECT},
    {ON_FILTER, "selectattr", "*", choose, MEMBERS},
    {ON_FILTER, "rejectattr", "*", choose, MEMBERS | REJECT},
    {ON_TEST, "undefined", "", is_type, BIT(UNDEFINED)},
    {ON_TEST, "defined", "", is_type, ~BIT(UNDEFINED)},
    {ON_TEST, "none", "", is_type, BIT(NONE)},
    {ON_TEST, "boolean", "", is_type, BIT(BOOL)},
    {ON_TEST, "number", "", is_type, BIT(BOOL) | BIT(INT) | BIT(FLOAT)},
    {ON_TEST, "string", "", is_type, BIT(STRING)},
    {ON_TEST, "mapping", "", is_type, BIT(DICT)},
    {ON_TEST, "sequence", "", is_type, CONTAINERS},
    {ON_TEST, "iterable", "", is_type, CONTAINERS},
    {ON_TEST, "false", "", is_type, BIT(TYPES)},
    {ON_TEST, "true", "", is_type, BIT(TYPES) << 1},
    {ON_TEST, "eq", "v:other", equal, 0},
    {ON_TEST, "equalto", "v:other", equal, 0},
};

const struct jinja_call *call_find(enum call_on on, struct value name)
{
    for (size_t i = 0; i < ARRAY_LEN(calls); i++)
        if ((calls[i].on & on) && string_is(name, calls[i].name))
            return &calls[i];
    return NULL;
}

const struct jinja_call *method_find(struct value of, struct value name)
{
    static const enum call_on on[VALUE_TYPES] = {
        [VALUE_STRING] = ON_STRING, [VALUE_DICT] = ON_DICT, [VALUE_LIST] = ON_LIST};
    return on[of.type] ? call_find(on[of.type], name) : NULL;
}

struct value value_member(struct jinja *x, struct value v, struct value key, bool dotted)
{
    const bool name = key.type == VALUE_STRING;
    const struct jinja_call *method = method_find(v, key);
    const struct value *member = NULL;
    const bool items = value_is_list(v) || v.type == VALUE_STRING;
    const int64_t n = key.type == VALUE_INT && items ? value_length(x, v) : 0;
    if (v.type == VALUE_UNDEFINED)
        value_fail_undefined(x, v);
    else if ((v.type == VALUE_DICT || v.type == VALUE_NAMESPACE) && !(dotted && method))
        member = dict_find(x, v.list, key);
    if (n > 0) {
        const int64_t i = key.i < 0 ? key.i + n : key.i;
        if (i >= 0 && i < n && value_is_list(v))
            return v.list->v[i];
        const size_t at = i >= 0 && i < n ? string_offset(v, (size_t)i) : v.len;
        if (at < v.len)
            return value_slice(v.s + at, char_bytes(v.s + at, v.len - at));
    }
    if (member || method)
        return member ? *member : (struct value){.type = VALUE_FUNCTION};
    key.owner = v.type;
    key.len = name ? key.len : 0;
    key.type = VALUE_UNDEFINED; /* and keeps its text or number */
    return key;
}

/* The argument v (NULL: none is given) for a parameter as the row writes it. */
static struct value argument(struct jinja *x, const struct jinja_call *row, const char *parameter,
                             const struct value *v)
{
    const char type = *parameter, *end = parameter + strcspn(parameter, " =");
    const bool none = v && v->type == VALUE_NONE && (type == 's' || type == 'i') && *end == '=';
    if (!v && *end != '=')
        jinja_fail(x, "%s() does not take these arguments", row->name);
    if (!v || none) /* atoll: of a constant of the table */
        return end[0] == '=' && end[1] > ' ' ? value_int(atoll(end + 1)) : undefined;
    if (type == 'b')
        return value_bool(value_true(*v));
    if (type == 's' && v->type != VALUE_STRING)
        jinja_fail(x, "%s() expects a string, not '%s'", row->name, value_type_name(*v));
    if (type == 'i' && v->type != VALUE_INT && v->type != VALUE_BOOL)
        jinja_fail(x, "%s() expects an integer, not '%s'", row->name, value_type_name(*v));
    return *v;
}

/* Arguments go by position and name to the parameters of the row. */
struct value call_run(struct jinja *x, const struct jinja_call *row, struct value subject,
                      const struct args *a)
{
    struct call c = {
        .v = {row->on & TEXT ? value_to_string(x, subject) : subject}, .a = a, .how = row->how};
    uint32_t given = 0, named = 0;
    const char *p = row->parameters;
    for (int i = 1; *p && *p != '*'; i++) {
        const struct value name = value_slice(p + 2, strcspn(p + 2, " ="));
        const struct value *v = given < a->at.n ? &a->at.v[given++] : NULL;
        if (!v && (v = dict_find(x, &a->named, name)))
            named += 2;
        c.v[i] = argument(x, row, p, v);
        p += strcspn(p, " ");
        p += *p == ' ';
    }
    if (*row->parameters != '*' && (given < a->at.n || named < a->named.n))
        jinja_fail(x, "%s() does not take these arguments", row->name);
    return x->failed ? undefined : row->run(x, &c);
}

struct value call_named(struct jinja *x, enum call_on on, struct value name, struct value subject,
                        const struct args *a)
{
    const struct jinja_call *row = call_find(on, name);
    const bool text = name.type == VALUE_STRING;
    if (row)
        return call_run(x, row, subject, a);
    jinja_fail(x, "the %s '%.*s' is not supported", on == ON_FILTER ? "filter" : "test",
               text ? (int)name.len : 1, text ? name.s : "?");
    return undefined;
}
