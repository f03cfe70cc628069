/*
 * values.c - the values of a Jinja run: making, comparing, combining and looking into them,
 * as Python does it. Integers have 64 bits; more is an error.
 *
 * Strings are immutable and may share bytes; containers are shared by reference. Values can contain
 * each other many times over (a list of twice the same list, and so on), so whatever walks them
 * counts steps and depth.
 */
#include "text/jinja/jinja_internal.h"

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

#define VALUE_NAME(type, name) name,

const char *value_type_name(struct value v)
{
    static const char *const names[] = {VALUE_KINDS(VALUE_NAME)};
    return names[v.type];
}

void value_fail_undefined(struct jinja *x, struct value v)
{
    const bool none = v.owner == VALUE_NONE;
    const char *owner = none ? "None" : value_type_name((struct value){.type = v.owner});
    if (!v.len && v.owner != VALUE_UNDEFINED)
        jinja_fail(x, "%s object has no element %lld", owner, (long long)v.i);
    else if (!v.len)
        jinja_fail(x, "the value is undefined");
    else if (v.owner == VALUE_UNDEFINED)
        jinja_fail(x, "'%.*s' is undefined", (int)v.len, v.s);
    else
        jinja_fail(x, "'%s%s' has no attribute '%.*s'", owner, none ? "" : " object", (int)v.len,
                   v.s);
}

bool value_true(struct value v)
{
    if (v.type == VALUE_BOOL || v.type == VALUE_INT)
        return v.i != 0;
    if (v.type == VALUE_FLOAT)
        return v.f != 0;
    if (v.type == VALUE_STRING)
        return v.len > 0;
    if (value_is_list(v) || v.type == VALUE_DICT)
        return v.list->n > 0;
    return v.type != VALUE_UNDEFINED && v.type != VALUE_NONE;
}

/* The message for types that an operator does not take. */
static void fail_types(struct jinja *x, const char *op, struct value a, struct value b)
{
    if (a.type == VALUE_UNDEFINED || b.type == VALUE_UNDEFINED)
        value_fail_undefined(x, a.type == VALUE_UNDEFINED ? a : b);
    else
        jinja_fail(x, "unsupported operand type(s) for %s: '%s' and '%s'", op, value_type_name(a),
                   value_type_name(b));
}

/* ------------------------------------------------------------------------------ comparing -- */

bool value_equal(struct jinja *x, struct value a, struct value b)
{
    const uint32_t dict = a.type == VALUE_DICT;
    if (!jinja_steps(x, 1))
        return false;
    if (value_is_number(a) && value_is_number(b))
        return a.type != VALUE_FLOAT && b.type != VALUE_FLOAT ? a.i == b.i
                                                              : value_number(a) == value_number(b);
    if (a.type != b.type)
        return false;
    if (a.type == VALUE_STRING)
        return a.len == b.len && jinja_steps(x, a.len / STEP_BYTES) && memcmp(a.s, b.s, a.len) == 0;
    if (!dict && !value_is_list(a))
        return a.type == VALUE_UNDEFINED || a.type == VALUE_NONE || a.list == b.list;
    bool same = a.list->n == b.list->n;
    if (!same || !jinja_enter(x))
        return false;
    for (uint32_t i = 0; same && i < a.list->n; i += 1 + dict) {
        const struct value *other = dict ? dict_find(x, b.list, a.list->v[i]) : &b.list->v[i];
        same = other && value_equal(x, a.list->v[i + dict], *other);
    }
    jinja_leave(x);
    return same;
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
    fail_types(x, op, a, b);
    return 0;
}

static bool contains(struct jinja *x, struct value in, struct value v)
{
    if (in.type == VALUE_STRING && v.type != VALUE_STRING)
        fail_types(x, "in", v, in);
    if (x->failed || in.type == VALUE_DICT)
        return dict_find(x, in.list, v) != NULL;
    if (in.type == VALUE_STRING)
        return jinja_steps(x, in.len / STEP_BYTES) && memmem(in.s, in.len, v.s, v.len);
    const struct list *items = value_items(x, in);
    for (uint32_t i = 0; i < items->n && !x->failed; i++)
        if (value_equal(x, items->v[i], v))
            return true;
    return false;
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
    } else if (v.type != VALUE_UNDEFINED) {
        jinja_fail(x, "'%s' object is not iterable", value_type_name(v));
    }
    return items.list;
}

size_t char_bytes(const char *s, size_t n)
{
    const int k = (unsigned char)*s < 0x80 ? 1 : utf8_char(s, n);
    return k > 0 ? (size_t)k : 1;
}

size_t string_offset(struct value v, size_t chars)
{
    size_t i = 0;
    for (; chars > 0 && i < v.len; chars--)
        i += char_bytes(v.s + i, v.len - i);
    return i;
}

int64_t value_length(struct jinja *x, struct value v)
{
    int64_t chars = 0;
    if (v.type != VALUE_STRING)
        return value_items(x, v)->n;
    jinja_steps(x, v.len / STEP_BYTES);
    for (size_t i = 0; i < v.len; i += char_bytes(v.s + i, v.len - i))
        chars++;
    return chars;
}

/* An end of a slice, as an index from 0 to n. */
static int64_t slice_end(struct jinja *x, struct value end, int64_t n, int64_t otherwise)
{
    if (end.type == VALUE_NONE)
        return otherwise;
    if (end.type != VALUE_INT)
        jinja_fail(x, "slice indices must be integers or None");
    return x->failed ? 0 : max_i64(0, min_i64(n, end.i < 0 ? end.i + n : end.i));
}

struct value value_part(struct jinja *x, struct value v, const struct value part[3])
{
    const bool list = value_is_list(v);
    if (!list && v.type != VALUE_STRING)
        fail_types(x, "a slice", v, part[0]);
    const int64_t n = x->failed ? 0 : value_length(x, v);
    const int64_t begin = slice_end(x, part[0], n, 0), end = slice_end(x, part[1], n, n);
    const bool back = part[2].type == VALUE_INT && part[2].i == -1;
    const bool ends = part[0].type != VALUE_NONE || part[1].type != VALUE_NONE;
    if (back ? !list || ends : part[2].type != VALUE_NONE)
        jinja_fail(x, "a slice with this step is not supported");
    const struct value to = value_new(x, (enum value_type)v.type);
    if (!list && !x->failed) {
        const size_t from = string_offset(v, (size_t)begin);
        return value_slice(v.s + from, end > begin ? string_offset(v, (size_t)end) - from : 0);
    }
    for (int64_t i = begin; i < end && jinja_steps(x, 1); i++)
        list_push(x, to.list, v.list->v[back ? n - 1 - i : i]);
    return to;
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

static struct value int_binary(struct jinja *x, char op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    if (op == '+')
        over = __builtin_add_overflow(a, b, &r);
    else if (op == '-')
        over = __builtin_sub_overflow(a, b, &r);
    else if (op == '*')
        over = __builtin_mul_overflow(a, b, &r);
    else if (b == 0)
        jinja_fail(x, "division by zero");
    else if (b != -1) /* that leaves no remainder, and INT64_MIN % -1 overflows */
        r = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    if (over)
        jinja_fail(x, "an integer has more than 64 bits");
    return value_int(r);
}

struct value value_binary(struct jinja *x, const char *op, struct value a, struct value b)
{
    if (x->failed)
        return undefined;
    if (*op == 'i' || *op == 'n')
        return value_bool(contains(x, b, a) == (*op == 'i'));
    if (*op == '=' || *op == '!')
        return value_bool(value_equal(x, a, b) == (*op == '='));
    if (*op == '<' || *op == '>') {
        const int order = value_order(x, op, a, b);
        return value_bool(order ? (order < 0) == (*op == '<') : op[1] == '=');
    }
    if ((a.type == VALUE_INT || a.type == VALUE_BOOL) &&
        (b.type == VALUE_INT || b.type == VALUE_BOOL) && *op != '/')
        return int_binary(x, *op, a.i, b.i);
    if (*op == '+' && a.type == VALUE_STRING && b.type == VALUE_STRING)
        return value_concat(x, a, b);
    if (*op == '*' && a.type == VALUE_STRING && b.type == VALUE_INT) {
        struct value text = value_slice("", 0);
        for (int64_t i = 0; i < b.i && a.len && jinja_steps(x, 1); i++)
            text = value_concat(x, text, a);
        return text;
    }
    if (*op == '+' && value_is_list(a) && a.type == b.type) {
        const struct value v = value_new(x, (enum value_type)a.type);
        for (uint32_t i = 0; i < a.list->n + b.list->n && jinja_steps(x, 1); i++)
            list_push(x, v.list, i < a.list->n ? a.list->v[i] : b.list->v[i - a.list->n]);
        return v;
    }
    fail_types(x, op, a, b);
    return undefined;
}
