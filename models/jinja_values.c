/*
 * jinja_values.c - the values of a Jinja run: making, comparing and looking into them, as Python
 * does it.
 *
 * Strings are immutable and may share bytes; lists and dicts are shared by reference. Values can
 * contain each other many times over (a list of twice the same list, and so on), so whatever walks
 * them counts steps and depth.
 */
#include "models/jinja_internal.h"

#include <string.h>

enum { GROW_FIRST = 4 };

struct value value_none(void)
{
    return (struct value){.type = VALUE_NONE};
}

struct value value_bool(bool b)
{
    return (struct value){.type = VALUE_BOOL, .b = b};
}

struct value value_int(int64_t i)
{
    return (struct value){.type = VALUE_INT, .i = i};
}

struct value value_float(double f)
{
    return (struct value){.type = VALUE_FLOAT, .f = f};
}

struct value value_slice(const char *s, size_t n)
{
    return (struct value){.type = VALUE_STRING, .len = (uint32_t)n, .s = s};
}

struct value value_str(const char *s)
{
    return value_slice(s, strlen(s));
}

struct value value_string(struct jinja *x, const char *s, size_t n)
{
    char *copy = jinja_alloc_text(x, n);
    if (copy && n)
        memcpy(copy, s, n);
    return value_slice(copy ? copy : "", copy ? n : 0);
}

struct value value_take(struct jinja *x, struct text *t)
{
    struct value v = value_string(x, t->data ? t->data : "", t->len);
    text_free(t);
    return v;
}

static struct list no_items;

struct value value_list(struct jinja *x)
{
    struct list *l = jinja_alloc(x, 1, sizeof *l);
    return l ? (struct value){.type = VALUE_LIST, .list = l} : undefined;
}

struct value value_dict(struct jinja *x)
{
    struct dict *d = jinja_alloc(x, 1, sizeof *d);
    return d ? (struct value){.type = VALUE_DICT, .dict = d} : undefined;
}

/* Room for one more of n elements; false after a failure. */
static bool grow(struct jinja *x, void **data, uint32_t n, uint32_t *cap, size_t size)
{
    if (n < *cap)
        return true;
    const uint32_t more = *cap ? *cap * 2 : GROW_FIRST;
    void *p = more > *cap ? jinja_alloc(x, more, size) : NULL;
    if (!p)
        return false;
    if (n)
        memcpy(p, *data, n * size);
    *data = p;
    *cap = more;
    return true;
}

void list_push(struct jinja *x, struct list *l, struct value v)
{
    void *data = x->failed ? NULL : l->v;
    if (!x->failed && grow(x, &data, l->n, &l->cap, sizeof *l->v)) {
        l->v = data;
        l->v[l->n++] = v;
    }
}

struct value *dict_find(struct jinja *x, const struct dict *d, struct value key)
{
    const size_t bytes = key.type == VALUE_STRING ? key.len : 0;
    if (x->failed || !jinja_steps(x, d->n * (1 + bytes / STEP_BYTES) / 16))
        return NULL;
    for (uint32_t i = 0; i < d->n; i++) {
        const struct value k = d->e[i].key;
        const bool strings = k.type == VALUE_STRING && key.type == VALUE_STRING;
        if (strings ? k.len == key.len && memcmp(k.s, key.s, k.len) == 0
                    : k.type != VALUE_STRING && value_equal(x, k, key))
            return &d->e[i].value;
    }
    return NULL;
}

void dict_set(struct jinja *x, struct dict *d, struct value key, struct value v)
{
    struct value *old = dict_find(x, d, key);
    void *data = x->failed ? NULL : d->e;
    if (old) {
        *old = v;
    } else if (key.type == VALUE_LIST || key.type == VALUE_DICT) {
        jinja_fail(x, "unhashable type: '%s'", value_type_name(key));
    } else if (!x->failed && grow(x, &data, d->n, &d->cap, sizeof *d->e)) {
        d->e = data;
        d->e[d->n++] = (struct entry){key, v};
    }
}

bool string_is(struct value v, const char *s)
{
    return v.type == VALUE_STRING && v.len == strlen(s) && memcmp(v.s, s, v.len) == 0;
}

const char *value_type_name(struct value v)
{
    static const char *const names[VALUE_TYPES] = {
        [VALUE_UNDEFINED] = "Undefined",
        [VALUE_NONE] = "NoneType",
        [VALUE_BOOL] = "bool",
        [VALUE_INT] = "int",
        [VALUE_FLOAT] = "float",
        [VALUE_STRING] = "str",
        [VALUE_LIST] = "list",
        [VALUE_TUPLE] = "tuple",
        [VALUE_DICT] = "dict",
        [VALUE_NAMESPACE] = "jinja2.utils.Namespace",
        [VALUE_LOOP] = "jinja2.runtime.LoopContext",
        [VALUE_MACRO] = "jinja2.runtime.Macro",
        [VALUE_FUNCTION] = "function",
    };
    return names[v.type];
}

void value_fail_undefined(struct jinja *x, struct value v)
{
    const struct value owner = {.type = v.owner};
    const bool none = v.owner == VALUE_NONE;
    const char *type = none ? "None" : value_type_name(owner), *object = none ? "" : " object";
    if (v.why == NO_NAME)
        jinja_fail(x, "'%.*s' is undefined", (int)v.len, v.s);
    else if (v.why == NO_ATTRIBUTE)
        jinja_fail(x, "'%s%s' has no attribute '%.*s'", type, object, (int)v.len, v.s);
    else if (v.why == NO_ELEMENT)
        jinja_fail(x, "%s%s has no element %lld", type, object, (long long)v.i);
    else
        jinja_fail(x, "%.*s", v.len ? (int)v.len : 21, v.len ? v.s : "the value is undefined");
}

bool value_true(struct value v)
{
    switch ((enum value_type)v.type) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: return false;
    case VALUE_BOOL: return v.b;
    case VALUE_INT: return v.i != 0;
    case VALUE_FLOAT: return v.f != 0;
    case VALUE_STRING: return v.len > 0;
    case VALUE_LIST:
    case VALUE_TUPLE: return v.list->n > 0;
    case VALUE_DICT: return v.dict->n > 0;
    case VALUE_NAMESPACE:
    case VALUE_LOOP:
    case VALUE_MACRO:
    case VALUE_FUNCTION:
    case VALUE_TYPES: break;
    }
    return true;
}

static bool lists_equal(struct jinja *x, const struct list *a, const struct list *b)
{
    if (a->n != b->n || !jinja_enter(x))
        return false;
    bool same = true;
    for (uint32_t i = 0; same && i < a->n; i++)
        same = value_equal(x, a->v[i], b->v[i]);
    jinja_leave(x);
    return same;
}

static bool dicts_equal(struct jinja *x, const struct dict *a, const struct dict *b)
{
    if (a->n != b->n || !jinja_enter(x))
        return false;
    bool same = true;
    for (uint32_t i = 0; same && i < a->n; i++) {
        const struct value *v = dict_find(x, b, a->e[i].key);
        same = v && value_equal(x, a->e[i].value, *v);
    }
    jinja_leave(x);
    return same;
}

bool value_equal(struct jinja *x, struct value a, struct value b)
{
    if (!jinja_steps(x, 1))
        return false;
    if (value_is_number(a) && value_is_number(b))
        return a.type != VALUE_FLOAT && b.type != VALUE_FLOAT ? value_whole(a) == value_whole(b)
                                                              : value_number(a) == value_number(b);
    if (a.type != b.type)
        return false;
    if (a.type == VALUE_STRING)
        return a.len == b.len && jinja_steps(x, a.len / STEP_BYTES) && memcmp(a.s, b.s, a.len) == 0;
    if (value_is_list(a))
        return lists_equal(x, a.list, b.list);
    if (a.type == VALUE_DICT)
        return dicts_equal(x, a.dict, b.dict);
    return a.type == VALUE_UNDEFINED || a.type == VALUE_NONE || a.list == b.list;
}

int value_order(struct jinja *x, const char *op, struct value a, struct value b)
{
    if (!jinja_steps(x, 1))
        return 0;
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type != VALUE_FLOAT && b.type != VALUE_FLOAT)
            return (value_whole(a) > value_whole(b)) - (value_whole(a) < value_whole(b));
        return (value_number(a) > value_number(b)) - (value_number(a) < value_number(b));
    }
    if (a.type == VALUE_STRING && b.type == VALUE_STRING) {
        const uint32_t n = a.len < b.len ? a.len : b.len;
        const int order = jinja_steps(x, n / STEP_BYTES) && n ? memcmp(a.s, b.s, n) : 0;
        return order ? (order > 0) - (order < 0) : (a.len > b.len) - (a.len < b.len);
    }
    if (value_is_list(a) && a.type == b.type && jinja_enter(x)) {
        int order = 0;
        uint32_t i = 0;
        for (; !order && !x->failed && i < a.list->n && i < b.list->n; i++)
            if (!value_equal(x, a.list->v[i], b.list->v[i]))
                order = value_order(x, op, a.list->v[i], b.list->v[i]);
        jinja_leave(x);
        return order ? order : (a.list->n > b.list->n) - (a.list->n < b.list->n);
    }
    if (a.type == VALUE_UNDEFINED || b.type == VALUE_UNDEFINED)
        value_fail_undefined(x, a.type == VALUE_UNDEFINED ? a : b);
    else
        jinja_fail(x, "'%s' not supported between instances of '%s' and '%s'", op,
                   value_type_name(a), value_type_name(b));
    return 0;
}

/* ------------------------------------------------------------------------------ containers -- */

const struct list *value_items(struct jinja *x, struct value v)
{
    if (value_is_list(v))
        return v.list;
    const struct value items = value_list(x);
    if (x->failed)
        return &no_items;
    if (v.type == VALUE_DICT) {
        for (uint32_t i = 0; i < v.dict->n && jinja_steps(x, 1); i++)
            list_push(x, items.list, v.dict->e[i].key);
    } else if (v.type == VALUE_STRING) {
        for (size_t i = 0, n; i < v.len && jinja_steps(x, 1); i += n) {
            n = char_bytes(v.s + i, v.len - i);
            list_push(x, items.list, value_slice(v.s + i, n));
        }
    } else if (v.type != VALUE_UNDEFINED) {
        jinja_fail(x, "'%s' object is not iterable", value_type_name(v));
    }
    return items.list;
}

bool value_contains(struct jinja *x, struct value in, struct value v)
{
    if (in.type == VALUE_STRING) {
        if (v.type != VALUE_STRING)
            jinja_fail(x, "'in <string>' requires string as left operand, not %s",
                       value_type_name(v));
        return v.type == VALUE_STRING && jinja_steps(x, in.len / STEP_BYTES) &&
               memmem(in.s, in.len, v.s, v.len);
    }
    if (in.type == VALUE_DICT)
        return dict_find(x, in.dict, v) != NULL;
    if (in.type != VALUE_UNDEFINED && !value_is_list(in)) {
        jinja_fail(x, "argument of type '%s' is not iterable", value_type_name(in));
        return false;
    }
    for (uint32_t i = 0; in.type != VALUE_UNDEFINED && i < in.list->n; i++)
        if (value_equal(x, in.list->v[i], v))
            return true;
    return false;
}

bool value_holds(struct jinja *x, const char *op, struct value a, struct value b)
{
    if (strstr(op, "in"))
        return value_contains(x, b, a) != (*op == 'n');
    if (op[0] == '=' || op[0] == '!')
        return value_equal(x, a, b) != (*op == '!');
    if (a.type == VALUE_FLOAT ? a.f != a.f : b.type == VALUE_FLOAT && b.f != b.f)
        return false;
    const int order = value_order(x, op, a, b);
    return (op[1] == '=' && order == 0) || (*op == '<' ? order < 0 : order > 0);
}

int64_t value_length(struct jinja *x, struct value v)
{
    if (value_is_list(v))
        return v.list->n;
    if (v.type == VALUE_DICT)
        return v.dict->n;
    if (v.type == VALUE_STRING)
        return jinja_steps(x, v.len / STEP_BYTES) ? (int64_t)string_chars(v) : 0;
    if (v.type != VALUE_UNDEFINED)
        jinja_fail(x, "object of type '%s' has no len()", value_type_name(v));
    return 0;
}

static struct value missing(struct value owner, struct value name)
{
    struct value v = {.type = VALUE_UNDEFINED, .owner = owner.type};
    if (name.type == VALUE_STRING) {
        v.why = NO_ATTRIBUTE;
        v.len = name.len;
        v.s = name.s;
    } else if (name.type == VALUE_INT) {
        v.why = NO_ELEMENT;
        v.i = name.i;
    } else {
        v.why = NO_ITEM;
    }
    return v;
}

static struct value no_item(const char *why)
{
    const struct value text = value_str(why);
    return (struct value){.type = VALUE_UNDEFINED, .why = NO_ITEM, .len = text.len, .s = text.s};
}

static struct value loop_attribute(const struct loop *l, struct value name, bool *found)
{
    const int64_t n = l->items->n, i = l->index;
    const struct {
        const char *name;
        struct value v;
    } rows[] = {
        {"index", value_int(i + 1)},
        {"index0", value_int(i)},
        {"revindex", value_int(n - i)},
        {"revindex0", value_int(n - i - 1)},
        {"first", value_bool(i == 0)},
        {"last", value_bool(i + 1 >= n)},
        {"length", value_int(n)},
        {"depth", value_int(1)},
        {"depth0", value_int(0)},
        {"previtem", i > 0 ? l->items->v[i - 1] : no_item("there is no previous item")},
        {"nextitem", i + 1 < n ? l->items->v[i + 1] : no_item("there is no next item")},
    };
    for (size_t k = 0; k < ARRAY_LEN(rows); k++) {
        *found = string_is(name, rows[k].name);
        if (*found)
            return rows[k].v;
    }
    return undefined;
}

static struct value attribute(struct jinja *x, struct value v, struct value name, bool *found)
{
    const struct jinja_call *method = method_find(v, name);
    struct value *member = NULL;
    if (v.type == VALUE_NAMESPACE)
        member = dict_find(x, v.dict, name);
    else if (v.type == VALUE_LOOP)
        return loop_attribute(v.loop, name, found);
    *found = method || member;
    return member   ? *member
           : method ? (struct value){.type = VALUE_FUNCTION, .call = method}
                    : undefined;
}

/* v.name: an attribute, else an element. */
struct value value_attribute(struct jinja *x, struct value v, struct value name)
{
    bool found = false;
    if (v.type == VALUE_UNDEFINED) {
        value_fail_undefined(x, v);
        return undefined;
    }
    const struct value got = attribute(x, v, name, &found);
    struct value *element = !found && v.type == VALUE_DICT ? dict_find(x, v.dict, name) : NULL;
    return found ? got : element ? *element : missing(v, name);
}

/* v[index]: an element, else an attribute. */
struct value value_element(struct jinja *x, struct value v, struct value index)
{
    bool found = false;
    if (v.type == VALUE_UNDEFINED) {
        value_fail_undefined(x, v);
        return undefined;
    }
    if (v.type == VALUE_DICT) {
        const struct value *element = dict_find(x, v.dict, index);
        if (element)
            return *element;
    } else if (index.type == VALUE_INT || index.type == VALUE_BOOL) {
        const bool list = value_is_list(v);
        const int64_t n = list || v.type == VALUE_STRING ? value_length(x, v) : 0;
        const int64_t i = value_whole(index) < 0 ? value_whole(index) + n : value_whole(index);
        if (i >= 0 && i < n && list)
            return v.list->v[i];
        if (i >= 0 && i < n) {
            const size_t at = string_offset(v, (size_t)i);
            return value_slice(v.s + at, char_bytes(v.s + at, v.len - at));
        }
    }
    const struct value got =
        index.type == VALUE_STRING ? attribute(x, v, index, &found) : undefined;
    return found ? got : missing(v, index);
}
