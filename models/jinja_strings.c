/*
 * jinja_strings.c - methods and filters of strings in Jinja programs, as rows. They are linear in
 * the text and count it as steps. Changes of case know ASCII only.
 */
#include "models/jinja_internal.h"

#include <string.h>
#include <time.h>

static bool need_string(struct jinja *x, struct value v)
{
    if (v.type != VALUE_STRING)
        jinja_fail(x, "expected a string, not '%s'", value_type_name(v));
    return !x->failed;
}

/* The first, or last, place of `part` in v; NULL when there is none. Counts what is read. */
static const char *search(struct jinja *x, struct value v, struct value part, bool last)
{
    if (part.len > v.len || !jinja_steps(x, part.len / STEP_BYTES))
        return NULL;
    if (!last) {
        const char *at = memmem(v.s, v.len, part.s, part.len);
        return jinja_steps(x, (at ? (size_t)(at - v.s) : v.len) / STEP_BYTES) ? at : NULL;
    }
    for (size_t i = v.len - part.len + 1; i > 0 && jinja_steps(x, 1 + part.len / STEP_BYTES); i--)
        if (memcmp(v.s + i - 1, part.s, part.len) == 0)
            return v.s + i - 1;
    return NULL;
}

static struct value before(struct value v, const char *at)
{
    return value_slice(v.s, (size_t)(at - v.s));
}

static struct value after(struct value v, const char *at)
{
    return value_slice(at, v.len - (size_t)(at - v.s));
}

/* At runs of white space. */
static struct value split_space(struct jinja *x, struct value v, int64_t most)
{
    const struct value list = value_list(x), none = value_none();
    for (v = string_strip(v, none, true, false); v.len && jinja_steps(x, 1); most--) {
        size_t n = 0;
        while (n < v.len && (most == 0 || !char_is_space(v.s + n, v.len - n)))
            n += char_bytes(v.s + n, v.len - n);
        list_push(x, list.list, string_strip(value_slice(v.s, n), none, false, true));
        v = string_strip(after(v, v.s + n), none, true, false);
    }
    return list;
}

/* how: from the end. */
static struct value split(struct jinja *x, const struct call *c)
{
    struct value rest = c->v[0];
    int64_t most = call_int(x, c, 2, -1);
    if (c->v[1].type == VALUE_UNDEFINED || c->v[1].type == VALUE_NONE)
        return split_space(x, rest, most);
    if (need_string(x, c->v[1]) && c->v[1].len == 0)
        jinja_fail(x, "empty separator");
    const struct value list = value_list(x);
    for (const char *at; !x->failed && most != 0; most--) {
        if (!(at = search(x, rest, c->v[1], c->how)))
            break;
        list_push(x, list.list, c->how ? after(rest, at + c->v[1].len) : before(rest, at));
        rest = c->how ? before(rest, at) : after(rest, at + c->v[1].len);
    }
    list_push(x, list.list, rest);
    const struct value back[3] = {value_none(), value_none(), value_int(-1)};
    return c->how && !x->failed ? value_part(x, list, back) : list;
}

static struct value splitlines(struct jinja *x, const struct call *c)
{
    struct value rest = c->v[0];
    const struct value list = value_list(x);
    while (rest.len && jinja_steps(x, 1)) {
        size_t n = 0;
        while (n < rest.len && rest.s[n] != '\n' && rest.s[n] != '\r')
            n++;
        list_push(x, list.list, value_slice(rest.s, n));
        jinja_steps(x, n / STEP_BYTES);
        n += n + 1 < rest.len && rest.s[n] == '\r' && rest.s[n + 1] == '\n';
        rest = after(rest, rest.s + n + (n < rest.len));
    }
    return list;
}

enum { LEFT = 1, RIGHT = 2 };

static struct value strip(struct jinja *x, const struct call *c)
{
    const struct value s = value_to_string(x, c->v[0]);
    const size_t chars = c->v[1].type == VALUE_STRING ? c->v[1].len : 1;
    return jinja_steps(x, s.len * (1 + chars) / STEP_BYTES)
               ? string_strip(s, c->v[1], c->how & LEFT, c->how & RIGHT)
               : undefined;
}

/* how: begins or ends with a string, or one of a tuple. */
static struct value has_end(struct jinja *x, const struct call *c)
{
    const struct value s = c->v[0];
    const bool many = c->v[1].type == VALUE_TUPLE;
    bool has = false;
    for (uint32_t i = 0; i < (many ? c->v[1].list->n : 1) && !has && !x->failed; i++) {
        const struct value end = many ? c->v[1].list->v[i] : c->v[1];
        has = need_string(x, end) && end.len <= s.len && jinja_steps(x, 1 + end.len / STEP_BYTES) &&
              memcmp(s.s + (c->how == RIGHT ? s.len - end.len : 0), end.s, end.len) == 0;
    }
    return value_bool(has);
}

static struct value replace(struct jinja *x, const struct call *c)
{
    struct value v = value_to_string(x, c->v[0]);
    const struct value old = c->v[1], new = c->v[2];
    int64_t most = call_int(x, c, 3, -1);
    struct text t;
    text_init(&t);
    while (need_string(x, old) && need_string(x, new) && most-- != 0) {
        const char *at = search(x, v, old, false);
        if (!at || !jinja_steps(x, 1))
            break;
        jinja_emit(x, &t, v.s, (size_t)(at - v.s));
        jinja_emit(x, &t, new.s, new.len);
        v = after(v, at + old.len);
        if (old.len == 0 && v.len == 0)
            break;
        if (old.len == 0) { /* between all characters */
            const size_t n = char_bytes(v.s, v.len);
            jinja_emit(x, &t, v.s, n);
            v = after(v, v.s + n);
        }
    }
    jinja_emit(x, &t, v.s, v.len);
    return value_take(x, &t);
}

/* how: counts; else finds. */
static struct value find(struct jinja *x, const struct call *c)
{
    struct value rest = c->v[0];
    int64_t n = 0;
    if (!need_string(x, c->v[1]))
        return undefined;
    const char *at = search(x, rest, c->v[1], false);
    if (!c->how)
        return value_int(at ? (int64_t)string_chars(before(rest, at)) : -1);
    if (c->v[1].len == 0)
        return value_int(value_length(x, rest) + 1);
    for (; at && jinja_steps(x, 1); n++) {
        rest = after(rest, at + c->v[1].len);
        at = search(x, rest, c->v[1], false);
    }
    return value_int(n);
}

/* TITLE: after what is no letter; WORDS: after a space or bracket; SENTENCE: the first. */
enum { LOWER = 0, UPPER = 1, TITLE = 2, WORDS = 3, SENTENCE = 4 };

static struct value change_case(struct jinja *x, const struct call *c)
{
    const struct value v = value_to_string(x, c->v[0]);
    char *s = jinja_steps(x, v.len / STEP_BYTES) ? jinja_alloc_text(x, v.len) : NULL;
    bool raise = c->how != LOWER;
    for (size_t i = 0; s && i < v.len; i++) {
        const char b = v.s[i];
        const bool low = b >= 'a' && b <= 'z', high = b >= 'A' && b <= 'Z';
        s[i] = raise && low ? (char)(b - 32) : !raise && high ? (char)(b + 32) : b;
        raise = c->how == UPPER || (c->how == TITLE && !low && !high && (b & 0x80) == 0) ||
                (c->how == WORDS && b && strchr(" \t\n\r-({[<", b));
    }
    return value_slice(s ? s : "", s ? v.len : 0);
}

struct value string_lower(struct jinja *x, struct value v)
{
    return change_case(x, &(struct call){.v = {v}, .how = LOWER});
}

static struct value indent(struct jinja *x, const struct call *c)
{
    struct value s = value_to_string(x, c->v[0]);
    const bool given = c->v[1].type == VALUE_STRING;
    const int64_t width = given ? 1 : call_int(x, c, 1, 4);
    const struct value by = given ? c->v[1] : value_slice(" ", 1);
    struct text t;
    text_init(&t);
    for (bool begin = true; !x->failed; begin = false) {
        const char *newline = s.len ? memchr(s.s, '\n', s.len) : NULL;
        const size_t n = newline ? (size_t)(newline - s.s) : s.len;
        const bool indents = begin ? value_true(c->v[2]) : n > 0 || value_true(c->v[3]);
        for (int64_t i = 0; indents && i < width && jinja_steps(x, 1); i++)
            jinja_emit(x, &t, by.s, by.len);
        jinja_emit(x, &t, s.s, n + (newline != NULL));
        if (!newline || !jinja_steps(x, 1))
            break;
        s = after(s, newline + 1);
    }
    return value_take(x, &t);
}

static struct value isdigit_ascii(struct jinja *x, const struct call *c)
{
    bool all = c->v[0].len > 0 && jinja_steps(x, c->v[0].len / STEP_BYTES);
    for (uint32_t i = 0; i < c->v[0].len && all; i++)
        all = c->v[0].s[i] >= '0' && c->v[0].s[i] <= '9';
    return value_bool(all);
}

/* {}, {0}, {name}, {{ and }}; no conversions. */
static struct value format(struct jinja *x, const struct call *c)
{
    struct text t;
    uint32_t next = 0;
    text_init(&t);
    for (const char *s = c->v[0].s, *end = s + c->v[0].len; s < end && jinja_steps(x, 1);) {
        const bool brace = *s == '{' || *s == '}', twice = brace && s + 1 < end && s[1] == *s;
        if (!brace || twice) {
            jinja_emit(x, &t, s, 1);
            s += 1 + twice;
            continue;
        }
        const char *close = *s == '{' ? memchr(s, '}', (size_t)(end - s)) : NULL;
        const struct value name = value_slice(s + 1, close ? (size_t)(close - s - 1) : 0);
        const struct value *by_name = dict_find(x, &c->a->named, name);
        const bool digit = name.len == 1 && *name.s >= '0' && *name.s <= '9';
        const uint32_t i = digit ? (uint32_t)(*name.s - '0') : name.len ? UINT32_MAX : next++;
        if (!close || (!by_name && i >= c->a->n))
            jinja_fail(x, "this format is not known or lacks an argument");
        else
            value_print(x, by_name ? *by_name : c->a->v[i], &t);
        s = close ? close + 1 : end;
    }
    return value_take(x, &t);
}

static struct value tojson(struct jinja *x, const struct call *c)
{
    const bool pretty = c->v[2].type == VALUE_INT;
    struct json_style style = {.indent =
                                   pretty ? (int32_t)max_i64(0, min_i64(c->v[2].i, 1000)) : -1,
                               .ascii = value_true(c->v[1]),
                               .sorted = value_true(c->v[4]),
                               .between = value_str(pretty ? "," : ", "),
                               .after_key = value_str(": ")};
    struct text t;
    if (value_is_list(c->v[3]) && c->v[3].list->n == 2) {
        style.between = value_to_string(x, c->v[3].list->v[0]);
        style.after_key = value_to_string(x, c->v[3].list->v[1]);
    }
    text_init(&t);
    value_json(x, c->v[0], &style, &t);
    return value_take(x, &t);
}

static struct value from_json(struct jinja *x, const struct call *c)
{
    return need_string(x, c->v[0]) ? value_from_json(x, c->v[0].s, c->v[0].len) : undefined;
}

static struct value to_string(struct jinja *x, const struct call *c)
{
    return value_to_string(x, c->v[0]);
}

static struct value raise_exception(struct jinja *x, const struct call *c)
{
    const struct value text = value_to_string(x, c->v[1]);
    jinja_fail(x, "%.*s", (int)text.len, text.s);
    return undefined;
}

static struct value strftime_now(struct jinja *x, const struct call *c)
{
    char form[128], out[512];
    struct tm tm;
    const time_t now = (time_t)x->now;
    if (!need_string(x, c->v[1]))
        return undefined;
    if (c->v[1].len >= sizeof form || !localtime_r(&now, &tm)) {
        jinja_fail(x, "the format of a time is too long");
        return undefined;
    }
    memcpy(form, c->v[1].s, c->v[1].len);
    form[c->v[1].len] = 0;
    return value_string(x, out, strftime(out, sizeof out, form, &tm));
}

const struct jinja_call string_calls[] = {
    {ON_FUNCTION, "raise_exception", "message", 1, raise_exception, 0},
    {ON_FUNCTION, "strftime_now", "format", 1, strftime_now, 0},
    {ON_STRING, "split", "sep maxsplit", 0, split, false},
    {ON_STRING, "rsplit", "sep maxsplit", 0, split, true},
    {ON_STRING, "splitlines", "", 0, splitlines, 0},
    {ON_STRING, "strip", "chars", 0, strip, LEFT | RIGHT},
    {ON_STRING, "lstrip", "chars", 0, strip, LEFT},
    {ON_STRING, "rstrip", "chars", 0, strip, RIGHT},
    {ON_STRING, "startswith", "prefix", 1, has_end, LEFT},
    {ON_STRING, "endswith", "suffix", 1, has_end, RIGHT},
    {ON_STRING, "find", "sub", 1, find, false},
    {ON_STRING, "count", "sub", 1, find, true},
    {ON_STRING, "title", "", 0, change_case, TITLE},
    {ON_STRING, "isdigit", "", 0, isdigit_ascii, 0},
    {ON_STRING, "format", "*", 0, format, 0},
    {ON_STRING | ON_FILTER, "replace", "old new count", 2, replace, 0},
    {ON_STRING | ON_FILTER, "upper", "", 0, change_case, UPPER},
    {ON_STRING | ON_FILTER, "lower", "", 0, change_case, LOWER},
    {ON_STRING | ON_FILTER, "capitalize", "", 0, change_case, SENTENCE},
    {ON_FILTER, "title", "", 0, change_case, WORDS},
    {ON_FILTER, "trim", "chars", 0, strip, LEFT | RIGHT},
    {ON_FILTER, "indent", "width first blank", 0, indent, 0},
    {ON_FILTER, "tojson", "ensure_ascii indent separators sort_keys", 0, tojson, 0},
    {ON_FILTER, "from_json", "", 0, from_json, 0},
    {ON_FILTER, "string", "", 0, to_string, 0},
    {ON_FILTER, "safe", "", 0, to_string, 0},
    {0, NULL, NULL, 0, NULL, 0},
};
