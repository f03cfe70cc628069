/*
 * jinja_values.c - the values of a Jinja run: making, comparing, combining and looking into them,
 * as Python does it. Integers have 64 bits; more is an error.
 *
 * Strings are immutable and may share bytes; containers are shared by reference. Values can contain
 * each other many times over (a list of twice the same list, and so on), so whatever walks them
 * counts steps and depth.
 */
#include "models/jinja_internal.h"

enum { GROW_FIRST = 4 };

struct value value_string(struct jinja *x, const char *s, size_t n)
{
    char *copy = jinja_alloc(x, n, 1);
    if (copy && n)
        memcpy(copy, s, n);
    return value_slice(copy ? copy : "", copy ? n : 0);
}

struct value value_take(struct jinja *x, struct text *t)
{
    const struct value v = value_string(x, t->data, t->len);
    text_free(t);
    return v;
}

struct value value_new(struct jinja *x, enum value_type type)
{
    struct list *l = jinja_alloc(x, 1, sizeof *l);
    return (struct value){.type = (uint8_t)type, .list = l ? l : &x->nothing};
}

void list_push(struct jinja *x, struct list *l, struct value v)
{
    if (x->failed)
        return;
    if (l->n == l->cap) {
        const uint32_t cap = l->cap ? l->cap * 2 : GROW_FIRST;
        struct value *to = cap > l->cap ? jinja_alloc(x, cap, sizeof *to) : NULL;
        if (!to)
            return;
        if (l->n)
            memcpy(to, l->v, l->n * sizeof *to);
        l->v = to;
        l->cap = cap;
    }
    l->v[l->n++] = v;
}

struct value *dict_find(struct jinja *x, const struct list *d, struct value key)
{
    const size_t bytes = key.type == VALUE_STRING ? key.len : 0;
    if (x->failed || !jinja_steps(x, d->n * (1 + bytes / STEP_BYTES) / 32))
        return NULL;
    for (uint32_t i = 0; i < d->n; i += 2) {
        const struct value k = d->v[i];
        const bool strings = k.type == VALUE_STRING && key.type == VALUE_STRING;
        if (strings ? k.len == key.len && memcmp(k.s, key.s, k.len) == 0
                    : k.type != VALUE_STRING && value_equal(x, k, key))
            return &d->v[i + 1];
    }
    return NULL;
}

void dict_set(struct jinja *x, struct list *d, struct value key, struct value v)
{
    struct value *old = dict_find(x, d, key);
    if (key.type == VALUE_LIST || key.type == VALUE_DICT)
        jinja_fail(x, "unhashable type: '%s'", value_type_name(key));
    if (old) {
        *old = v;
        return;
    }
    list_push(x, d, key);
    list_push(x, d, v);
    d->n -= d->n % 2; /* memory was short for the value */
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
        [VALUE_MACRO] = "jinja2.runtime.Macro",
        [VALUE_FUNCTION] = "function",
    };
    return names[v.type];
}

void value_fail_undefined(struct jinja *x, struct value v)
{
    const bool none = v.owner == VALUE_NONE;
    const char *type = none ? "None" : value_type_name((struct value){.type = v.owner});
    const char *object = none ? "" : " object";
    if (v.why == NO_NAME)
        jinja_fail(x, "'%.*s' is undefined", (int)v.len, v.s);
    else if (v.why == NO_ATTRIBUTE)
        jinja_fail(x, "'%s%s' has no attribute '%.*s'", type, object, (int)v.len, v.s);
    else if (v.why == NO_ELEMENT)
        jinja_fail(x, "%s%s has no element %lld", type, object, (long long)v.i);
    else
        jinja_fail(x, "the value is undefined");
}

bool value_true(struct value v)
{
    switch ((enum value_type)v.type) {
    case VALUE_UNDEFINED:
    case VALUE_NONE: return false;
    case VALUE_BOOL:
    case VALUE_INT: return v.i != 0;
    case VALUE_FLOAT: return v.f != 0;
    case VALUE_STRING: return v.len > 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT: return v.list->n > 0;
    case VALUE_NAMESPACE:
    case VALUE_MACRO:
    case VALUE_FUNCTION:
    case VALUE_TYPES: break;
    }
    return true;
}

/* ------------------------------------------------------------------------------ comparing -- */

static bool containers_equal(struct jinja *x, struct value a, struct value b)
{
    const uint32_t dict = a.type == VALUE_DICT;
    if (a.list->n != b.list->n || !jinja_enter(x))
        return false;
    bool same = true;
    for (uint32_t i = 0; same && i < a.list->n; i += 1 + dict) {
        const struct value *other = dict ? dict_find(x, b.list, a.list->v[i]) : &b.list->v[i];
        same = other && value_equal(x, a.list->v[i + dict], *other);
    }
    jinja_leave(x);
    return same;
}

bool value_equal(struct jinja *x, struct value a, struct value b)
{
    if (!jinja_steps(x, 1))
        return false;
    if (value_is_number(a) && value_is_number(b))
        return a.type != VALUE_FLOAT && b.type != VALUE_FLOAT ? a.i == b.i
                                                              : value_number(a) == value_number(b);
    if (a.type != b.type)
        return false;
    if (a.type == VALUE_STRING)
        return a.len == b.len && jinja_steps(x, a.len / STEP_BYTES) && memcmp(a.s, b.s, a.len) == 0;
    if (value_is_list(a) || a.type == VALUE_DICT)
        return containers_equal(x, a, b);
    return a.type == VALUE_UNDEFINED || a.type == VALUE_NONE || a.list == b.list;
}

int value_order(struct jinja *x, const char *op, struct value a, struct value b)
{
    if (!jinja_steps(x, 1))
        return 0;
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type != VALUE_FLOAT && b.type != VALUE_FLOAT)
            return (a.i > b.i) - (a.i < b.i);
        return (value_number(a) > value_number(b)) - (value_number(a) < value_number(b));
    }
    if (a.type == VALUE_STRING && b.type == VALUE_STRING) {
        const uint32_t n = a.len < b.len ? a.len : b.len;
        const int order = jinja_steps(x, n / STEP_BYTES) && n ? memcmp(a.s, b.s, n) : 0;
        return order ? order : (a.len > b.len) - (a.len < b.len);
    }
    if (a.type == VALUE_UNDEFINED || b.type == VALUE_UNDEFINED)
        value_fail_undefined(x, a.type == VALUE_UNDEFINED ? a : b);
    else
        jinja_fail(x, "'%s' not supported between instances of '%s' and '%s'", op,
                   value_type_name(a), value_type_name(b));
    return 0;
}

static bool contains(struct jinja *x, struct value in, struct value v)
{
    if (in.type == VALUE_STRING) {
        if (v.type != VALUE_STRING)
            jinja_fail(x, "'in <string>' requires string as left operand, not %s",
                       value_type_name(v));
        return v.type == VALUE_STRING && jinja_steps(x, in.len / STEP_BYTES) &&
               memmem(in.s, in.len, v.s, v.len);
    }
    if (in.type == VALUE_DICT)
        return dict_find(x, in.list, v) != NULL;
    if (in.type != VALUE_UNDEFINED && !value_is_list(in))
        jinja_fail(x, "argument of type '%s' is not iterable", value_type_name(in));
    for (uint32_t i = 0; value_is_list(in) && i < in.list->n && !x->failed; i++)
        if (value_equal(x, in.list->v[i], v))
            return true;
    return false;
}

/* a op b, for a comparison: == != < <= > >= in, not in. */
static bool holds(struct jinja *x, const char *op, struct value a, struct value b)
{
    if (*op == 'i' || *op == 'n')
        return contains(x, b, a) == (*op == 'i');
    if (*op == '=' || *op == '!')
        return value_equal(x, a, b) == (*op == '=');
    const int order = value_order(x, op, a, b);
    return order ? (order < 0) == (*op == '<') : op[1] == '=';
}

/* ------------------------------------------------------------------------------ containers -- */

const struct list *value_items(struct jinja *x, struct value v)
{
    if (value_is_list(v))
        return v.list;
    const struct value items = value_new(x, VALUE_LIST);
    if (v.type == VALUE_DICT) {
        for (uint32_t i = 0; i < v.list->n && jinja_steps(x, 1); i += 2)
            list_push(x, items.list, v.list->v[i]);
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

int64_t value_length(struct jinja *x, struct value v)
{
    int64_t chars = 0;
    if (value_is_list(v))
        return v.list->n;
    if (v.type == VALUE_DICT)
        return v.list->n / 2;
    if (v.type != VALUE_STRING && v.type != VALUE_UNDEFINED)
        jinja_fail(x, "object of type '%s' has no len()", value_type_name(v));
    if (v.type != VALUE_STRING || !jinja_steps(x, v.len / STEP_BYTES))
        return 0;
    for (size_t i = 0; i < v.len; i += char_bytes(v.s + i, v.len - i))
        chars++;
    return chars;
}

static struct value missing(struct value owner, struct value key)
{
    struct value v = {.owner = owner.type};
    if (key.type == VALUE_STRING) {
        v.why = NO_ATTRIBUTE;
        v.len = key.len;
        v.s = key.s;
    } else if (key.type == VALUE_INT) {
        v.why = NO_ELEMENT;
        v.i = key.i;
    }
    return v;
}

static struct value element(struct jinja *x, struct value v, struct value index)
{
    const bool list = value_is_list(v);
    const int64_t n = list || v.type == VALUE_STRING ? value_length(x, v) : 0;
    const int64_t i = index.i < 0 ? index.i + n : index.i;
    if (i < 0 || i >= n)
        return missing(v, index);
    if (list)
        return v.list->v[i];
    const size_t at = string_offset(v, (size_t)i);
    return value_slice(v.s + at, char_bytes(v.s + at, v.len - at));
}

struct value value_member(struct jinja *x, struct value v, struct value key, bool dotted)
{
    const bool members = v.type == VALUE_DICT || v.type == VALUE_NAMESPACE;
    const struct jinja_call *method = method_find(v, key);
    const struct value *member = NULL;
    if (v.type == VALUE_UNDEFINED)
        value_fail_undefined(x, v);
    else if (members && !(dotted && method))
        member = dict_find(x, v.list, key);
    else if (key.type == VALUE_INT || key.type == VALUE_BOOL)
        return element(x, v, key);
    return member ? *member : method ? (struct value){.type = VALUE_FUNCTION} : missing(v, key);
}

/* An end of a slice, as an index from 0 to n (from -1 to n - 1 when walking backwards). */
static int64_t slice_end(struct value end, int64_t n, bool back, int64_t otherwise)
{
    const int64_t low = back ? -1 : 0, high = back ? n - 1 : n;
    if (end.type != VALUE_INT)
        return otherwise;
    const int64_t i = end.i < 0 ? end.i + n : end.i;
    return i < low ? low : i > high ? high : i;
}

struct value value_part(struct jinja *x, struct value v, const struct value part[3])
{
    const bool list = value_is_list(v);
    if (v.type == VALUE_UNDEFINED)
        value_fail_undefined(x, v);
    else if (!list && v.type != VALUE_STRING)
        jinja_fail(x, "'%s' object is not subscriptable", value_type_name(v));
    for (int i = 0; i < 3; i++)
        if (part[i].type != VALUE_NONE && part[i].type != VALUE_INT)
            jinja_fail(x, "slice indices must be integers or None");
    int64_t by = part[2].type == VALUE_INT ? part[2].i : 1;
    if (by == 0)
        jinja_fail(x, "slice step cannot be zero");
    if (x->failed)
        return undefined;
    const bool back = by < 0;
    const int64_t n = value_length(x, v);
    const int64_t begin = slice_end(part[0], n, back, back ? n - 1 : 0);
    const int64_t end = slice_end(part[1], n, back, back ? -1 : n);
    if (!list && by == 1) {
        const size_t from = string_offset(v, (size_t)begin);
        return value_slice(v.s + from, end > begin ? string_offset(v, (size_t)end) - from : 0);
    }
    const struct list *from = value_items(x, v);
    const struct value to = value_new(x, (enum value_type)v.type);
    struct value text = value_slice("", 0);
    by = max_i64(-n - 1, min_i64(n + 1, by)); /* so that i does not overflow */
    for (int64_t i = begin; (back ? i > end : i < end) && jinja_steps(x, 1); i += by) {
        if (list)
            list_push(x, to.list, from->v[i]);
        else
            text = value_concat(x, text, from->v[i]);
    }
    return list ? to : text;
}

/* ------------------------------------------------------------------------------- operators -- */

/* A new string has room behind it, and the longest of these are remembered: a text that a program
 * builds piece by piece grows in place. A string that is grown keeps its own bytes and length. */
struct value value_concat(struct jinja *x, struct value a, struct value b)
{
    struct tail *shortest = &x->tails[0];
    if (!a.len || !b.len)
        return a.len ? a : b;
    if (!jinja_steps(x, b.len / STEP_BYTES))
        return undefined;
    for (size_t i = 0; i < ARRAY_LEN(x->tails); i++) {
        struct tail *t = &x->tails[i];
        if (a.s + a.len == t->end && b.len <= t->room) {
            memcpy(t->end, b.s, b.len);
            *t = (struct tail){t->end + b.len, t->room - b.len, t->bytes + b.len};
            return value_slice(a.s, (size_t)a.len + b.len);
        }
        shortest = t->bytes < shortest->bytes ? t : shortest;
    }
    const size_t n = (size_t)a.len + b.len, room = n / 2;
    char *s = jinja_steps(x, a.len / STEP_BYTES) ? jinja_alloc(x, n + room, 1) : NULL;
    if (!s)
        return undefined;
    memcpy(s, a.s, a.len);
    memcpy(s + a.len, b.s, b.len);
    *shortest = (struct tail){s + n, room, n};
    return value_slice(s, n);
}

static struct value lists_concat(struct jinja *x, struct value a, struct value b)
{
    const struct value v = value_new(x, (enum value_type)a.type);
    for (uint32_t i = 0; i < a.list->n && jinja_steps(x, i % 16 == 0); i++)
        list_push(x, v.list, a.list->v[i]);
    for (uint32_t i = 0; i < b.list->n && jinja_steps(x, i % 16 == 0); i++)
        list_push(x, v.list, b.list->v[i]);
    return v;
}

static struct value repeat(struct jinja *x, struct value v, int64_t times)
{
    struct value text = value_slice("", 0);
    for (int64_t i = 0; i < times && v.len && jinja_steps(x, 1); i++)
        text = value_concat(x, text, v);
    return text;
}

static struct value int_binary(struct jinja *x, const char *op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    if (*op == '+') {
        over = __builtin_add_overflow(a, b, &r);
    } else if (*op == '-') {
        over = __builtin_sub_overflow(a, b, &r);
    } else if (*op == '*') {
        over = __builtin_mul_overflow(a, b, &r);
    } else if (b == 0) {
        jinja_fail(x, "division by zero");
    } else if (b == -1) { /* the one case in which a quotient overflows */
        over = *op == '/' && __builtin_sub_overflow(0, a, &r);
    } else { /* down to the next integer; the remainder has the sign of b */
        const bool down = a % b != 0 && (a < 0) != (b < 0);
        r = *op == '/' ? a / b - down : a % b + (down ? b : 0);
    }
    if (over)
        jinja_fail(x, "an integer has more than 64 bits");
    return value_int(r);
}

struct value value_binary(struct jinja *x, const char *op, struct value a, struct value b)
{
    if (x->failed)
        return undefined;
    if (strchr("=!<>in", *op))
        return value_bool(holds(x, op, a, b));
    if (*op == '~') {
        const struct value text = value_to_string(x, a);
        return value_concat(x, text, value_to_string(x, b));
    }
    if ((a.type == VALUE_INT || a.type == VALUE_BOOL) &&
        (b.type == VALUE_INT || b.type == VALUE_BOOL) && strcmp(op, "/") != 0)
        return int_binary(x, op, a.i, b.i);
    if (*op == '+' && a.type == VALUE_STRING && b.type == VALUE_STRING)
        return value_concat(x, a, b);
    if (*op == '+' && value_is_list(a) && a.type == b.type)
        return lists_concat(x, a, b);
    if (*op == '*' && a.type == VALUE_STRING && b.type == VALUE_INT)
        return repeat(x, a, b.i);
    if (a.type == VALUE_UNDEFINED || b.type == VALUE_UNDEFINED)
        value_fail_undefined(x, a.type == VALUE_UNDEFINED ? a : b);
    else if (*op == '+' && a.type == VALUE_STRING)
        jinja_fail(x, "can only concatenate str (not \"%s\") to str", value_type_name(b));
    else
        jinja_fail(x, "unsupported operand type(s) for %s: '%s' and '%s'", op, value_type_name(a),
                   value_type_name(b));
    return undefined;
}
