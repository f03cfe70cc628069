/*
 * text.c - strings of a Jinja run: characters are UTF-8 (a byte that is not counts as one),
 * values are printed as Python prints them and as JSON, as its json module does it; and JSON and
 * the strings of programs are read.
 */
#include "text/jinja/jinja_internal.h"

#include <math.h>
#include <stdlib.h>
#include <utf8proc.h>

/* The code point at s; bytes that are not UTF-8 stand for themselves. */
static uint32_t char_code(const char *s, size_t n)
{
    utf8proc_int32_t c;
    return utf8proc_iterate((const uint8_t *)s, (utf8proc_ssize_t)n, &c) > 0 ? (uint32_t)c
                                                                             : (uint8_t)*s;
}

/* White space of Python's str.isspace. */
bool char_is_space(const char *s, size_t n)
{
    const uint32_t c = char_code(s, n);
    return (c >= 0x1c && c <= 0x1f) || (char_is_white(c) && utf8_char(s, n) > 0);
}

/* Whether string_strip removes the character at s. */
static bool strips(struct value chars, const char *s, size_t n)
{
    if (chars.type != VALUE_STRING)
        return char_is_space(s, n);
    return memmem(chars.s, chars.len, s, char_bytes(s, n)) != NULL;
}

struct value string_strip(struct value v, struct value chars, bool left, bool right)
{
    while (left && v.len && strips(chars, v.s, v.len)) {
        const size_t k = char_bytes(v.s, v.len);
        v.s += k;
        v.len -= (uint32_t)k;
    }
    while (right && v.len) {
        size_t k = 1;
        while (k < 4 && k < v.len && (v.s[v.len - k] & 0xc0) == 0x80)
            k++;
        if (char_bytes(v.s + v.len - k, k) != k)
            k = 1; /* the last byte is not UTF-8 */
        if (!strips(chars, v.s + v.len - k, k))
            break;
        v.len -= (uint32_t)k;
    }
    return v;
}

/* -------------------------------------------------------------------------------- writing -- */

/* How a value is written: as Python does it, or as JSON. */
struct form {
    bool json, ascii;
    int64_t indent; /* of JSON, -1: one line */
};

static void emit_str(struct jinja *x, struct text *to, const char *s)
{
    jinja_emit(x, to, s, strlen(s));
}

static void write_string(struct jinja *x, struct value v, const struct form *form, struct text *to)
{
    static const char letters[] = "\nn\rr\tt\\\\\bb\ff";
    const size_t pairs = form->json ? sizeof letters - 1 : 8; /* Python has none for \b and \f */
    const bool single = memchr(v.s, '\'', v.len) && !memchr(v.s, '"', v.len);
    const char quote = form->json || single ? '"' : '\'';
    if (!jinja_steps(x, v.len / STEP_BYTES))
        return;
    jinja_emit(x, to, &quote, 1);
    for (size_t i = 0, k; i < v.len && !x->failed; i += k) {
        k = char_bytes(v.s + i, v.len - i);
        const uint32_t c = char_code(v.s + i, v.len - i);
        char escape[16] = "", letter = c == (uint32_t)quote ? quote : 0;
        for (size_t j = 0; j < pairs; j += 2)
            letter = c == (unsigned char)letters[j] ? letters[j + 1] : letter;
        if (letter)
            snprintf(escape, sizeof escape, "\\%c", letter);
        else if (form->ascii && c >= 0x10000)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                     0xdc00 + ((c - 0x10000) & 0x3ff));
        else if (form->json && (c < 0x20 || (c >= 0x7f && form->ascii)))
            snprintf(escape, sizeof escape, "\\u%04x", c);
        else if (!form->json && (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad))
            snprintf(escape, sizeof escape, "\\x%02x", c);
        if (*escape)
            emit_str(x, to, escape);
        else
            jinja_emit(x, to, v.s + i, k);
    }
    jinja_emit(x, to, &quote, 1);
}

static void line_break(struct jinja *x, const struct form *form, int64_t level, struct text *to)
{
    if (form->indent < 0)
        return;
    jinja_emit(x, to, "\n", 1);
    for (int64_t i = form->indent * level; i > 0 && jinja_steps(x, 1); i--)
        jinja_emit(x, to, " ", 1);
}

static void value_write(struct jinja *x, struct value v, const struct form *form, int64_t level,
                        struct text *to);

static void write_container(struct jinja *x, struct value v, const struct form *form, int64_t level,
                            struct text *to)
{
    const bool dict = v.type == VALUE_DICT, tuple = v.type == VALUE_TUPLE && !form->json;
    emit_str(x, to, dict ? "{" : tuple ? "(" : "[");
    for (uint32_t i = 0; i < v.list->n && !x->failed; i++) {
        if (i)
            emit_str(x, to, form->indent < 0 ? ", " : ",");
        line_break(x, form, level + 1, to);
        if (dict) {
            if (form->json && v.list->v[i].type != VALUE_STRING)
                jinja_fail(x, "JSON of a key that is no string is not supported");
            value_write(x, v.list->v[i++], form, 0, to);
            emit_str(x, to, ": ");
        }
        value_write(x, v.list->v[i], form, level + 1, to);
    }
    if (v.list->n)
        line_break(x, form, level, to);
    emit_str(x, to, tuple && v.list->n == 1 ? "," : "");
    emit_str(x, to, dict ? "}" : tuple ? ")" : "]");
}

static void value_write(struct jinja *x, struct value v, const struct form *form, int64_t level,
                        struct text *to)
{
    static const char *const words[2][3] = {{"None", "False", "True"}, {"null", "false", "true"}};
    char digits[F64_TEXT];
    if (!jinja_steps(x, 1) || !jinja_enter(x))
        return;
    if (form->json && (v.type == VALUE_UNDEFINED || v.type > VALUE_DICT))
        jinja_fail(x, "Object of type %s is not JSON serializable", value_type_name(v));
    switch ((enum value_type)v.type) {
    case VALUE_NONE: emit_str(x, to, words[form->json][0]); break;
    case VALUE_BOOL: emit_str(x, to, words[form->json][1 + v.i]); break;
    case VALUE_INT:
        snprintf(digits, sizeof digits, "%lld", (long long)v.i);
        emit_str(x, to, digits);
        break;
    case VALUE_FLOAT:
        print_f64(v.f, digits);
        emit_str(x, to, digits);
        break;
    case VALUE_STRING: write_string(x, v, form, to); break;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT: write_container(x, v, form, level, to); break;
    case VALUE_NAMESPACE:
    case VALUE_UNDEFINED:
    case VALUE_MACRO:
    case VALUE_FUNCTION:
    case VALUE_TYPES: emit_str(x, to, value_type_name(v)); break;
    }
    jinja_leave(x);
}

void value_print(struct jinja *x, struct value v, struct text *to)
{
    if (v.type == VALUE_STRING)
        jinja_emit(x, to, v.s, v.len);
    else if (v.type != VALUE_UNDEFINED)
        value_write(x, v, &(struct form){.indent = -1}, 0, to);
}

void value_json(struct jinja *x, struct value v, bool ascii, int64_t indent, struct text *to)
{
    value_write(x, v, &(struct form){.json = true, .ascii = ascii, .indent = indent}, 0, to);
}

struct value value_to_string(struct jinja *x, struct value v)
{
    struct text t;
    if (v.type == VALUE_STRING)
        return v;
    text_init(&t);
    value_print(x, v, &t);
    return value_take(x, &t);
}

/* -------------------------------------------------------------------------------- reading -- */

static void emit_char(struct jinja *x, struct text *to, uint32_t c)
{
    uint8_t out[4];
    jinja_emit(x, to, (const char *)out, (size_t)utf8proc_encode_char((utf8proc_int32_t)c, out));
}

/* XXXX of \uXXXX, and \uXXXX behind it where two stand for one character. */
static bool read_code(const char **at, const char *end, uint32_t *code)
{
    uint32_t unit[2] = {0};
    for (int i = 0; i < 2; i++) {
        char text[5] = "";
        if (end - *at >= 4)
            memcpy(text, *at, 4);
        if (strspn(text, "0123456789abcdefABCDEF") != 4)
            return false;
        *at += 4;
        unit[i] = *code = (uint32_t)strtoul(text, NULL, 16);
        if (i == 0 && (*code < 0xd800 || *code >= 0xe000))
            return true;
        if (i == 0 && (end - *at < 2 || memcmp(*at, "\\u", 2) != 0))
            return false;
        *at += i == 0 ? 2 : 0;
    }
    *code = 0x10000 + ((unit[0] - 0xd800) << 10) + (unit[1] - 0xdc00);
    return unit[0] < 0xdc00 && unit[1] >= 0xdc00 && unit[1] < 0xe000;
}

struct value read_string(struct jinja *x, const char **at, const char *end, char quote, bool json)
{
    const char *letters = json ? "n\nr\rt\tb\bf\f\\\\\"\"//" : "n\nr\rt\tb\bf\f\\\\\"\"''";
    const char *s = *at;
    struct text t;
    text_init(&t);
    while (s < end && *s != quote && !x->failed) {
        size_t n = 0;
        while (s + n < end && s[n] != quote && s[n] != '\\')
            n++;
        jinja_emit(x, &t, s, n);
        s += n;
        if (s == end || *s == quote)
            continue;
        const char kind = end - s > 1 ? s[1] : 0;
        uint32_t code = 0;
        for (size_t i = 0; letters[i]; i += 2)
            code = letters[i] == kind ? (uint32_t)letters[i + 1] : code;
        s += kind ? 2 : 1;
        if (code || (kind == 'u' && read_code(&s, end, &code)))
            emit_char(x, &t, code);
        else if (json || !kind || strchr("avxuNU01234567\n", kind))
            jinja_fail(x, "the escape \\%c in a string is not supported", kind ? kind : ' ');
        else /* Python keeps what is no escape */
            jinja_emit(x, &t, s - 2, 2);
    }
    if (s == end)
        jinja_fail(x, "a string does not end");
    *at = s + (s < end);
    return value_take(x, &t);
}

struct value read_number(const char **at, const char *end, const char *of)
{
    char digits[64], *stop = digits;
    size_t n = 0;
    int64_t i;
    for (; *at < end && n + 1 < sizeof digits && **at && strchr(of, **at); n++)
        digits[n] = *(*at)++;
    digits[n] = 0;
    if (parse_i64(digits, INT64_MIN, INT64_MAX, &i))
        return value_int(i);
    const double f = strtod(digits, &stop);
    return n && !*stop && isfinite(f) ? (struct value){.type = VALUE_FLOAT, .f = f} : undefined;
}

/* JSON; *at is moved behind what is read. */
static struct value read_json(struct jinja *x, const char **at, const char *end);

/* Skips space and, where it comes next, the character. */
static bool json_skip(const char **at, const char *end, char c)
{
    while (*at < end && (**at == ' ' || (**at >= '\t' && **at <= '\r')))
        ++*at;
    const bool is = *at < end && **at == c;
    *at += is;
    return is;
}

static struct value read_json_container(struct jinja *x, const char **at, const char *end,
                                        bool dict)
{
    const struct value v = value_new(x, dict ? VALUE_DICT : VALUE_LIST);
    while (!json_skip(at, end, dict ? '}' : ']') && !x->failed) {
        if (v.list->n && !json_skip(at, end, ','))
            jinja_fail(x, "malformed JSON: a comma is missing");
        const struct value item = read_json(x, at, end);
        if (dict && (item.type != VALUE_STRING || !json_skip(at, end, ':')))
            jinja_fail(x, "malformed JSON: a key is no string or has no value");
        if (dict)
            dict_set(x, v.list, item, read_json(x, at, end));
        else
            list_push(x, v.list, item);
    }
    return v;
}

static struct value read_json(struct jinja *x, const char **at, const char *end)
{
    static const char *const words[] = {"false", "true", "null"};
    struct value v = undefined;
    if (!jinja_steps(x, 1) || !jinja_enter(x))
        return v;
    if (json_skip(at, end, '"'))
        v = read_string(x, at, end, '"', true);
    else if (json_skip(at, end, '{'))
        v = read_json_container(x, at, end, true);
    else if (json_skip(at, end, '['))
        v = read_json_container(x, at, end, false);
    else
        v = read_number(at, end, "+-.0123456789eE");
    for (int i = 0; v.type == VALUE_UNDEFINED && i < 3; i++) {
        const size_t n = strlen(words[i]);
        if ((size_t)(end - *at) < n || memcmp(*at, words[i], n) != 0)
            continue;
        *at += n;
        v = i < 2 ? value_bool(i) : value_none;
    }
    if (v.type == VALUE_UNDEFINED)
        jinja_fail(x, "malformed JSON, %zu bytes before its end", (size_t)(end - *at));
    jinja_leave(x);
    return v;
}

struct value value_from_json(struct jinja *x, const char *s, size_t n)
{
    const char *at = s;
    const struct value v = read_json(x, &at, s + n);
    if (json_skip(&at, s + n, 0) || at < s + n)
        jinja_fail(x, "malformed JSON, %zu bytes before its end", (size_t)(s + n - at));
    return v;
}
