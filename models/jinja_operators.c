/*
 * jinja_operators.c - arithmetic and slices of a Jinja run, with Python's rules: floor division,
 * a remainder with the sign of the divisor, slices in both directions. Integers have 64 bits; more
 * is an error.
 */
#include "models/jinja_internal.h"

#include <math.h>
#include <string.h>

/* An end of a slice, as an index from 0 to n (from -1 to n - 1 when walking backwards). */
static int64_t slice_end(int64_t i, int64_t n, bool backwards)
{
    const int64_t low = backwards ? -1 : 0, high = backwards ? n - 1 : n;
    i = i < 0 ? i + n : i;
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
    const int64_t by = part[2].type == VALUE_INT ? part[2].i : 1;
    if (by == 0)
        jinja_fail(x, "slice step cannot be zero");
    if (by == 0 || x->failed)
        return undefined;
    const bool back = by < 0;
    const int64_t n = value_length(x, v);
    const int64_t begin =
        part[0].type == VALUE_INT ? slice_end(part[0].i, n, back) : (back ? n - 1 : 0);
    const int64_t end = part[1].type == VALUE_INT ? slice_end(part[1].i, n, back) : (back ? -1 : n);
    const int64_t distance = back ? begin - end : end - begin;
    const uint64_t stride = back ? 0 - (uint64_t)by : (uint64_t)by;
    const uint64_t count = distance > 0 ? ((uint64_t)distance - 1) / stride + 1 : 0;
    if (!list && by == 1) {
        const size_t from = string_offset(v, (size_t)begin);
        return value_slice(v.s + from, count ? string_offset(v, (size_t)end) - from : 0);
    }
    const struct list *from = value_items(x, v);
    struct value to = value_list(x), text = value_slice("", 0);
    for (uint64_t i = 0; i < count && jinja_steps(x, i % 16 == 0); i++) {
        const struct value item = from->v[begin + (int64_t)i * by];
        if (list)
            list_push(x, to.list, item);
        else
            text = value_concat(x, text, item);
    }
    to.type = x->failed ? VALUE_UNDEFINED : v.type;
    return list ? to : text;
}

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
    char *s = jinja_steps(x, a.len / STEP_BYTES) ? jinja_alloc_text(x, n + room) : NULL;
    if (!s)
        return undefined;
    memcpy(s, a.s, a.len);
    memcpy(s + a.len, b.s, b.len);
    *shortest = (struct tail){s + n, room, n};
    return value_slice(s, n);
}

static struct value lists_concat(struct jinja *x, struct value a, struct value b)
{
    struct value v = value_list(x);
    for (uint32_t i = 0; i < a.list->n && jinja_steps(x, i % 16 == 0); i++)
        list_push(x, v.list, a.list->v[i]);
    for (uint32_t i = 0; i < b.list->n && jinja_steps(x, i % 16 == 0); i++)
        list_push(x, v.list, b.list->v[i]);
    v.type = x->failed ? VALUE_UNDEFINED : a.type;
    return v;
}

static struct value repeat(struct jinja *x, struct value v, int64_t times)
{
    struct value all = value_list(x), text = value_slice("", 0);
    for (int64_t i = 0; i < times && jinja_steps(x, 1) && value_true(v); i++) {
        if (v.type == VALUE_STRING)
            text = value_concat(x, text, v);
        for (uint32_t k = 0; v.type != VALUE_STRING && k < v.list->n && jinja_steps(x, 1); k++)
            list_push(x, all.list, v.list->v[k]);
    }
    all.type = x->failed ? VALUE_UNDEFINED : v.type;
    return v.type == VALUE_STRING ? text : all;
}

static double floor_mod(double a, double b)
{
    const double r = fmod(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

static struct value int_power(struct jinja *x, int64_t base, int64_t exponent)
{
    int64_t r = 1;
    bool over = false;
    for (; exponent > 0 && !over; exponent >>= 1) {
        over = (exponent & 1) && __builtin_mul_overflow(r, base, &r);
        over = over || (exponent > 1 && __builtin_mul_overflow(base, base, &base));
    }
    if (over)
        jinja_fail(x, "an integer has more than 64 bits");
    return value_int(r);
}

static struct value int_binary(struct jinja *x, const char *op, int64_t a, int64_t b)
{
    int64_t r = 0;
    bool over = false;
    if (!strcmp(op, "+")) {
        over = __builtin_add_overflow(a, b, &r);
    } else if (!strcmp(op, "-")) {
        over = __builtin_sub_overflow(a, b, &r);
    } else if (!strcmp(op, "*")) {
        over = __builtin_mul_overflow(a, b, &r);
    } else if (b == 0) {
        jinja_fail(x, "division by zero");
    } else if (b == -1) { /* the one case in which a quotient overflows */
        over = !strcmp(op, "//") && __builtin_sub_overflow(0, a, &r);
    } else if (!strcmp(op, "//")) {
        r = a / b - (a % b != 0 && (a < 0) != (b < 0));
    } else {
        r = a % b + ((a % b != 0 && (a < 0) != (b < 0)) ? b : 0);
    }
    if (over)
        jinja_fail(x, "an integer has more than 64 bits");
    return value_int(r);
}

static struct value number_binary(struct jinja *x, const char *op, struct value a, struct value b)
{
    const bool floats = a.type == VALUE_FLOAT || b.type == VALUE_FLOAT;
    const double f = value_number(a), g = value_number(b);
    if (!strcmp(op, "**"))
        return floats || value_whole(b) < 0 ? value_float(pow(f, g))
                                            : int_power(x, value_whole(a), value_whole(b));
    if (!floats && strcmp(op, "/") != 0)
        return int_binary(x, op, value_whole(a), value_whole(b));
    if (!strcmp(op, "+"))
        return value_float(f + g);
    if (!strcmp(op, "-"))
        return value_float(f - g);
    if (!strcmp(op, "*"))
        return value_float(f * g);
    if (g == 0) {
        jinja_fail(x, "division by zero");
        return undefined;
    }
    return value_float(!strcmp(op, "/")    ? f / g
                       : !strcmp(op, "//") ? floor(f / g)
                                           : floor_mod(f, g));
}

struct value value_binary(struct jinja *x, const char *op, struct value a, struct value b)
{
    const bool plus = !strcmp(op, "+"), times = !strcmp(op, "*");
    if (x->failed)
        return undefined;
    if (value_is_number(a) && value_is_number(b))
        return number_binary(x, op, a, b);
    if (plus && a.type == VALUE_STRING && b.type == VALUE_STRING)
        return value_concat(x, a, b);
    if (plus && value_is_list(a) && a.type == b.type)
        return lists_concat(x, a, b);
    if (times && (a.type == VALUE_STRING || value_is_list(a)) && b.type == VALUE_INT)
        return repeat(x, a, b.i);
    if (times && (b.type == VALUE_STRING || value_is_list(b)) && a.type == VALUE_INT)
        return repeat(x, b, a.i);
    if (a.type == VALUE_UNDEFINED || b.type == VALUE_UNDEFINED)
        value_fail_undefined(x, a.type == VALUE_UNDEFINED ? a : b);
    else if (plus && a.type == VALUE_STRING)
        jinja_fail(x, "can only concatenate str (not \"%s\") to str", value_type_name(b));
    else
        jinja_fail(x, "unsupported operand type(s) for %s: '%s' and '%s'", op, value_type_name(a),
                   value_type_name(b));
    return undefined;
}
