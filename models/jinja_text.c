/*
 * jinja_text.c - strings of a Jinja run: characters are UTF-8 (a byte that is not counts as one),
 * values are printed as Python prints them, and JSON is written as Python's json module does and
 * read.
 */
#include "models/jinja_internal.h"
#include "models/tokenizer_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

size_t char_bytes(const char *s, size_t n)
{
    const int k = (unsigned char)*s < 0x80 ? 1 : utf8_char(s, n);
    return k > 0 ? (size_t)k : 1;
}

/* The code point at s; bytes that are not UTF-8 stand for themselves. */
static uint32_t char_code(const char *s, size_t n)
{
    const unsigned char *u = (const unsigned char *)s;
    const size_t k = char_bytes(s, n);
    uint32_t c = k == 1 ? u[0] : u[0] & (0x7fu >> k);
    for (size_t i = 1; i < k; i++)
        c = c << 6 | (u[i] & 0x3fu);
    return c;
}

/* White space of Python's str.isspace. */
bool char_is_space(const char *s, size_t n)
{
    const uint32_t c = char_code(s, n);
    if (c < 0x80 || char_bytes(s, n) == 1)
        return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 ||
           c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t string_chars(struct value v)
{
    size_t n = 0;
    for (size_t i = 0; i < v.len; i += char_bytes(v.s + i, v.len - i))
        n++;
    return n;
}

size_t string_offset(struct value v, size_t chars)
{
    size_t i = 0;
    for (; chars > 0 && i < v.len; chars--)
        i += char_bytes(v.s + i, v.len - i);
    return i;
}

/* Whether the character at s is one that string_strip removes. */
static bool strips(struct value chars, const char *s, size_t n)
{
    if (chars.type != VALUE_STRING)
        return char_is_space(s, n);
    const size_t bytes = char_bytes(s, n);
    for (size_t i = 0, k; i < chars.len; i += k) {
        k = char_bytes(chars.s + i, chars.len - i);
        if (k == bytes && memcmp(chars.s + i, s, k) == 0)
            return true;
    }
    return false;
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

/* ------------------------------------------------------------------------------ printing -- */

static void emit_str(struct jinja *x, struct text *to, const char *s)
{
    jinja_emit(x, to, s, strlen(s));
}

/* The shortest text that reads back as f, in Python's form. */
static void print_float(struct jinja *x, double f, struct text *to)
{
    char digits[40], out[64];
    if (!isfinite(f)) {
        emit_str(x, to, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, f);
    while (strtod(digits, NULL) != f && ++precision < 17);
    const int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent >= 16 || exponent < -4) { /* 1e+20, 1.5e-05 */
        emit_str(x, to, digits);
        return;
    }
    const int decimals = precision > exponent ? precision - exponent : 0;
    snprintf(out, sizeof out, "%.*f", decimals > 0 ? decimals : 1, f);
    emit_str(x, to, out);
}

/* A string as it is written in Python. */
static void print_quoted(struct jinja *x, struct value v, struct text *to)
{
    const bool single = memchr(v.s, '\'', v.len) && !memchr(v.s, '"', v.len);
    const char quote = single ? '"' : '\'';
    jinja_steps(x, v.len / STEP_BYTES);
    jinja_emit(x, to, &quote, 1);
    for (size_t i = 0, k; i < v.len && !x->failed; i += k) {
        k = char_bytes(v.s + i, v.len - i);
        const uint32_t c = char_code(v.s + i, v.len - i);
        char escape[12] = "";
        if (c == (uint32_t)quote || c == '\\')
            snprintf(escape, sizeof escape, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad)
            snprintf(escape, sizeof escape, "\\x%02x", c);
        if (*escape)
            emit_str(x, to, escape);
        else
            jinja_emit(x, to, v.s + i, k);
    }
    jinja_emit(x, to, &quote, 1);
}

static void print_inner(struct jinja *x, struct value v, struct text *to)
{
    if (v.type == VALUE_STRING)
        print_quoted(x, v, to);
    else if (v.type == VALUE_UNDEFINED)
        emit_str(x, to, "Undefined");
    else
        value_print(x, v, to);
}

static void print_list(struct jinja *x, struct value v, struct text *to)
{
    emit_str(x, to, v.type == VALUE_TUPLE ? "(" : "[");
    for (uint32_t i = 0; i < v.list->n && !x->failed; i++) {
        emit_str(x, to, i ? ", " : "");
        print_inner(x, v.list->v[i], to);
    }
    emit_str(x, to, v.type == VALUE_LIST ? "]" : v.list->n == 1 ? ",)" : ")");
}

static void print_dict(struct jinja *x, struct value v, struct text *to)
{
    emit_str(x, to, v.type == VALUE_NAMESPACE ? "<Namespace {" : "{");
    for (uint32_t i = 0; i < v.dict->n && !x->failed; i++) {
        emit_str(x, to, i ? ", " : "");
        print_inner(x, v.dict->e[i].key, to);
        emit_str(x, to, ": ");
        print_inner(x, v.dict->e[i].value, to);
    }
    emit_str(x, to, v.type == VALUE_NAMESPACE ? "}>" : "}");
}

void value_print(struct jinja *x, struct value v, struct text *to)
{
    char digits[24];
    if (!jinja_steps(x, 1) || !jinja_enter(x))
        return;
    switch ((enum value_type)v.type) {
    case VALUE_UNDEFINED: break;
    case VALUE_NONE: emit_str(x, to, "None"); break;
    case VALUE_BOOL: emit_str(x, to, v.b ? "True" : "False"); break;
    case VALUE_INT:
        snprintf(digits, sizeof digits, "%lld", (long long)v.i);
        emit_str(x, to, digits);
        break;
    case VALUE_FLOAT: print_float(x, v.f, to); break;
    case VALUE_STRING: jinja_emit(x, to, v.s, v.len); break;
    case VALUE_LIST:
    case VALUE_TUPLE: print_list(x, v, to); break;
    case VALUE_DICT:
    case VALUE_NAMESPACE: print_dict(x, v, to); break;
    case VALUE_LOOP: emit_str(x, to, "<LoopContext>"); break;
    case VALUE_MACRO: emit_str(x, to, "<Macro>"); break;
    case VALUE_FUNCTION: emit_str(x, to, "<function>"); break;
    case VALUE_TYPES: break;
    }
    jinja_leave(x);
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

/* ---------------------------------------------------------------------------------- JSON -- */

static void json_string(struct jinja *x, struct value v, bool ascii, struct text *to)
{
    static const char shorts[] = "\"\"\\\\\nn\rr\tt\bb\ff";
    jinja_steps(x, v.len / STEP_BYTES);
    jinja_emit(x, to, "\"", 1);
    for (size_t i = 0, k; i < v.len && !x->failed; i += k) {
        k = char_bytes(v.s + i, v.len - i);
        const uint32_t c = char_code(v.s + i, v.len - i);
        const char *pair = NULL;
        char escape[16] = "";
        for (size_t j = 0; !pair && j + 1 < sizeof shorts; j += 2)
            pair = c == (unsigned char)shorts[j] ? &shorts[j] : NULL;
        if (pair)
            snprintf(escape, sizeof escape, "\\%c", pair[1]);
        else if (c >= 0x10000 && ascii)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                     0xdc00 + ((c - 0x10000) & 0x3ff));
        else if (c < 0x20 || (c >= 0x7f && ascii))
            snprintf(escape, sizeof escape, "\\u%04x", c);
        if (*escape)
            emit_str(x, to, escape);
        else
            jinja_emit(x, to, v.s + i, k);
    }
    jinja_emit(x, to, "\"", 1);
}

static void json_key(struct jinja *x, struct value key, const struct json_style *j, struct text *to)
{
    struct text t;
    text_init(&t);
    if (key.type != VALUE_STRING && key.type != VALUE_NONE && !value_is_number(key))
        jinja_fail(x, "keys must be str, int, float, bool or None, not %s", value_type_name(key));
    if (key.type != VALUE_STRING)
        value_json(x, key, j, &t);
    json_string(x, key.type == VALUE_STRING ? key : value_take(x, &t), j->ascii, to);
    text_free(&t);
}

static void json_break(struct jinja *x, const struct json_style *j, int32_t level, struct text *to)
{
    if (j->indent < 0)
        return;
    jinja_emit(x, to, "\n", 1);
    for (int64_t i = (int64_t)j->indent * level; i > 0 && jinja_steps(x, 1); i--)
        jinja_emit(x, to, " ", 1);
}

static void json_at(struct jinja *x, struct value v, const struct json_style *j, int32_t level,
                    struct text *to);

static void json_members(struct jinja *x, struct value v, const struct json_style *j, int32_t level,
                         struct text *to)
{
    const bool dict = v.type == VALUE_DICT;
    const uint32_t n = dict ? v.dict->n : v.list->n;
    struct value cased = value_bool(true);
    if (dict && j->sorted)
        v = filter_run(x, value_str("dictsort"), v, &(struct args){.v = &cased, .n = 1});
    jinja_emit(x, to, dict ? "{" : "[", 1);
    for (uint32_t i = 0; i < n && !x->failed; i++) {
        struct value item = dict && !j->sorted ? v.dict->e[i].value : v.list->v[i];
        if (i)
            jinja_emit(x, to, j->between.s, j->between.len);
        json_break(x, j, level + 1, to);
        if (dict) {
            json_key(x, j->sorted ? item.list->v[0] : v.dict->e[i].key, j, to);
            jinja_emit(x, to, j->after_key.s, j->after_key.len);
            item = j->sorted ? item.list->v[1] : item;
        }
        json_at(x, item, j, level + 1, to);
    }
    if (n)
        json_break(x, j, level, to);
    jinja_emit(x, to, dict ? "}" : "]", 1);
}

static void json_at(struct jinja *x, struct value v, const struct json_style *j, int32_t level,
                    struct text *to)
{
    if (!jinja_steps(x, 1) || !jinja_enter(x))
        return;
    if (value_is_list(v) || v.type == VALUE_DICT)
        json_members(x, v, j, level, to);
    else if (v.type == VALUE_STRING)
        json_string(x, v, j->ascii, to);
    else if (v.type == VALUE_NONE || v.type == VALUE_BOOL)
        emit_str(x, to, v.type == VALUE_NONE ? "null" : v.b ? "true" : "false");
    else if (v.type == VALUE_FLOAT && !isfinite(v.f))
        emit_str(x, to, isnan(v.f) ? "NaN" : v.f > 0 ? "Infinity" : "-Infinity");
    else if (value_is_number(v))
        value_print(x, v, to);
    else
        jinja_fail(x, "Object of type %s is not JSON serializable", value_type_name(v));
    jinja_leave(x);
}

void value_json(struct jinja *x, struct value v, const struct json_style *style, struct text *to)
{
    json_at(x, v, style, 0, to);
}

struct reader {
    struct jinja *x;
    const char *s, *end;
};

static struct value json_bad(struct reader *r)
{
    jinja_fail(r->x, "malformed JSON, %zu bytes before its end", (size_t)(r->end - r->s));
    r->s = r->end;
    return undefined;
}

static char json_peek(struct reader *r)
{
    while (r->s < r->end && (*r->s == ' ' || (*r->s >= '\t' && *r->s <= '\r')))
        r->s++;
    return r->s < r->end ? *r->s : 0;
}

static bool json_hex(struct reader *r, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, r->s++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF";
        const char *at = r->s < r->end && *r->s ? strchr(digits, *r->s) : NULL;
        if (!at)
            return false;
        *code = *code << 4 | ((uint32_t)(at - digits) & 15);
    }
    return true;
}

size_t char_write(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    const size_t k = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = k - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00u >> k & 0xf0u) | c);
    return k;
}

/* After the quote that begins it. */
static struct value json_text(struct reader *r)
{
    struct text t;
    text_init(&t);
    bool good = true;
    while (good && r->s < r->end && *r->s != '"' && jinja_steps(r->x, t.len % STEP_BYTES == 1)) {
        uint32_t c = 0, low = 0;
        char utf8[4];
        if (*r->s != '\\') {
            jinja_emit(r->x, &t, r->s++, 1);
            continue;
        }
        const char *shorts = "\"\"\\\\//n\nr\rt\tb\bf\f";
        const char kind = ++r->s < r->end ? *r->s++ : 0;
        size_t j = 0;
        while (shorts[j] && shorts[j] != kind)
            j += 2;
        if (shorts[j] && kind) {
            jinja_emit(r->x, &t, &shorts[j + 1], 1);
            continue;
        }
        good = kind == 'u' && json_hex(r, &c);
        if (good && c >= 0xd800 && c < 0xdc00 && r->end - r->s > 6 && r->s[0] == '\\' &&
            r->s[1] == 'u') {
            r->s += 2;
            good = json_hex(r, &low) && low >= 0xdc00 && low < 0xe000;
            c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
        }
        if (good)
            jinja_emit(r->x, &t, utf8, char_write(c, utf8));
    }
    if (good && r->s < r->end)
        r->s++;
    else
        json_bad(r);
    return value_take(r->x, &t);
}

static struct value json_number(struct reader *r)
{
    char digits[64], *stop = digits;
    size_t n = 0;
    bool whole = true;
    while (r->s < r->end && n + 1 < sizeof digits && *r->s && strchr("+-.0123456789eE", *r->s)) {
        whole = whole && !strchr(".eE", *r->s);
        digits[n++] = *r->s++;
    }
    digits[n] = 0;
    int64_t i;
    if (whole && parse_i64(digits, INT64_MIN, INT64_MAX, &i))
        return value_int(i);
    const double f = strtod(digits, &stop);
    return n && !*stop ? value_float(f) : json_bad(r);
}

static struct value json_value(struct reader *r);

static struct value json_container(struct reader *r, char close)
{
    const bool dict = close == '}';
    const struct value v = dict ? value_dict(r->x) : value_list(r->x);
    r->s++;
    for (bool first = true; json_peek(r) != close && !r->x->failed; first = false) {
        if (!first && (r->s >= r->end || *r->s++ != ','))
            return json_bad(r);
        const struct value item = json_value(r);
        if (!dict) {
            list_push(r->x, v.list, item);
            continue;
        }
        if (item.type != VALUE_STRING || json_peek(r) != ':')
            return json_bad(r);
        r->s++;
        const struct value member = json_value(r);
        if (!r->x->failed)
            dict_set(r->x, v.dict, item, member);
    }
    r->s += r->s < r->end;
    return v;
}

static struct value json_value(struct reader *r)
{
    const struct {
        const char *word;
        struct value v;
    } words[] = {{"null", value_none()}, {"true", value_bool(true)}, {"false", value_bool(false)}};
    const char c = json_peek(r);
    if (!jinja_steps(r->x, 1) || !jinja_enter(r->x))
        return undefined;
    struct value v = undefined;
    bool word = false;
    for (size_t i = 0; !word && i < ARRAY_LEN(words); i++) {
        const size_t n = strlen(words[i].word);
        word = (size_t)(r->end - r->s) >= n && memcmp(r->s, words[i].word, n) == 0;
        v = word ? words[i].v : v;
        r->s += word ? n : 0;
    }
    if (!word && c == '"') {
        r->s++;
        v = json_text(r);
    } else if (!word) {
        v = c == '{' ? json_container(r, '}') : c == '[' ? json_container(r, ']') : json_number(r);
    }
    jinja_leave(r->x);
    return r->x->failed ? undefined : v;
}

struct value value_from_json(struct jinja *x, const char *s, size_t n)
{
    struct reader r = {x, s, s + n};
    const struct value v = json_value(&r);
    return json_peek(&r) || r.s < r.end ? json_bad(&r) : v;
}
