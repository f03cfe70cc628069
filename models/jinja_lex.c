/*
 * jinja_lex.c - a Jinja program as lexemes: text outside of tags, and what is inside {{ }} and
 * {% %}. Comments are skipped. White space around tags is removed as trim_blocks and lstrip_blocks
 * ask (the newline after a block, the indentation before it) and as the signs - and + say.
 */
#include "models/jinja_internal.h"

#include <stdlib.h>
#include <string.h>

static struct lexeme lexeme(const struct lexer *l, enum token_kind kind, struct value text)
{
    return (struct lexeme){kind, l->line, text};
}

static void advance(struct lexer *l, const char *to)
{
    for (; l->at < to; l->at++)
        l->line += *l->at == '\n';
}

static bool at_text(const struct lexer *l, const char *s)
{
    const size_t n = strlen(s);
    return (size_t)(l->end - l->at) >= n && memcmp(l->at, s, n) == 0;
}

static void skip_space(struct lexer *l)
{
    const char *to = l->at;
    while (to < l->end && char_is_space(to, (size_t)(l->end - to)))
        to += char_bytes(to, (size_t)(l->end - to));
    advance(l, to);
}

/* Behind the end of a tag of n bytes, with what its sign removes. */
static void tag_end(struct lexer *l, size_t n, char sign, bool trims)
{
    advance(l, l->at + n);
    l->line_start = false;
    if (sign == '-') {
        const char *from = l->at;
        skip_space(l);
        l->line_start = l->at > from && l->at[-1] == '\n';
    } else if (sign != '+' && trims && l->at < l->end && *l->at == '\n') {
        advance(l, l->at + 1);
        l->line_start = true;
    }
}

/* The next tag, or the end. */
static const char *find_tag(const struct lexer *l)
{
    for (const char *s = l->at; s + 1 < l->end; s++) {
        s = memchr(s, '{', (size_t)(l->end - 1 - s));
        if (!s)
            break;
        if (s[1] == '{' || s[1] == '%' || s[1] == '#')
            return s;
    }
    return l->end;
}

/* Text in front of a tag without what the tag removes. */
static struct value trimmed(const struct lexer *l, const char *tag)
{
    struct value text = value_slice(l->at, (size_t)(tag - l->at));
    const char sign = tag + 2 < l->end ? tag[2] : 0;
    if (tag == l->end)
        return text;
    if (sign == '-')
        return string_strip(text, value_none(), false, true);
    if (sign == '+' || tag[1] == '{')
        return text;
    const char *newline = memrchr(text.s, '\n', text.len);
    if (!newline && !l->line_start)
        return text;
    const uint32_t line = newline ? (uint32_t)(newline + 1 - text.s) : 0;
    const struct value indent = value_slice(text.s + line, text.len - line);
    if (string_strip(indent, value_none(), true, false).len == 0)
        text.len = line;
    return text;
}

static void skip_comment(struct lexer *l)
{
    const char *close = memmem(l->at, (size_t)(l->end - l->at), "#}", 2);
    if (!close) {
        jinja_fail(l->x, "a comment does not end with #}");
        return;
    }
    const char sign = close > l->at ? close[-1] : 0;
    advance(l, close);
    tag_end(l, 2, sign, true);
}

/* Outside of tags: text, or the beginning of a tag. */
static struct lexeme lex_outside(struct lexer *l)
{
    while (l->at < l->end && !l->x->failed) {
        const char *tag = find_tag(l);
        const struct lexeme text = lexeme(l, LEX_TEXT, trimmed(l, tag));
        const bool any = tag > l->at;
        advance(l, tag);
        if (any)
            l->line_start = false;
        if (text.text.len)
            return text;
        if (tag == l->end)
            break;
        const char kind = tag[1];
        const struct lexeme begin = lexeme(l, kind == '{' ? LEX_PRINT : LEX_BLOCK, undefined);
        advance(l, tag + 2);
        if (l->at < l->end && (*l->at == '-' || *l->at == '+'))
            advance(l, l->at + 1);
        if (kind == '#') {
            skip_comment(l);
            continue;
        }
        l->inside = true;
        l->block = kind == '%';
        l->open = 0;
        return begin;
    }
    return lexeme(l, LEX_END, undefined);
}

/* ------------------------------------------------------------------------------- literals -- */

static bool hex_code(const char *s, const char *end, int digits, uint32_t *code)
{
    char text[9] = "";
    if (end - s < digits)
        return false;
    memcpy(text, s, (size_t)digits);
    if (strspn(text, "0123456789abcdefABCDEF") != (size_t)digits)
        return false;
    *code = (uint32_t)strtoul(text, NULL, 16);
    return true;
}

/* The escape after a backslash at s; returns where it ends. */
static const char *escape(struct lexer *l, const char *s, const char *end, char **to)
{
    static const char shorts[] = "\\\\''\"\"n\nr\rt\ta\ab\bf\fv\v";
    uint32_t code = 0;
    for (size_t i = 0; i + 1 < sizeof shorts; i += 2)
        if (*s == shorts[i]) {
            *(*to)++ = shorts[i + 1];
            return s + 1;
        }
    if (*s == '\n')
        return s + 1;
    if (*s >= '0' && *s <= '7') {
        const char *first = s;
        while (s < end && s < first + 3 && *s >= '0' && *s <= '7')
            code = code * 8 + (uint32_t)(*s++ - '0');
    } else if (*s == 'x' || *s == 'u' || *s == 'U') {
        const int digits = *s == 'x' ? 2 : *s == 'u' ? 4 : 8;
        if (!hex_code(s + 1, end, digits, &code) || code > 0x10ffff ||
            (code >= 0xd800 && code < 0xe000))
            jinja_fail(l->x, "the string has a \\%c that names no character", *s);
        s += 1 + (l->x->failed ? 0 : digits);
    } else {
        *(*to)++ = '\\';
        return s;
    }
    char utf8[4];
    const size_t n = char_write(l->x->failed ? '?' : code, utf8);
    memcpy(*to, utf8, n); /* never more than the escape has */
    *to += n;
    return s;
}

static struct lexeme lex_string(struct lexer *l)
{
    struct lexeme t = lexeme(l, LEX_STRING, undefined);
    const char *close = l->at + 1;
    while (close < l->end && *close != *l->at)
        close += *close == '\\' && close + 1 < l->end ? 2 : 1;
    if (close >= l->end) {
        jinja_fail(l->x, "a string does not end");
        return lexeme(l, LEX_END, undefined);
    }
    char *s = jinja_alloc_text(l->x, (size_t)(close - l->at)), *to = s;
    for (const char *from = l->at + 1; s && from < close;) {
        if (*from != '\\')
            *to++ = *from++;
        else
            from = escape(l, from + 1, close, &to);
    }
    t.text = value_slice(s ? s : "", (size_t)(to - s));
    advance(l, close + 1);
    return t;
}

static size_t digits(const char *s, const char *end)
{
    const char *first = s;
    while (s < end && ((*s >= '0' && *s <= '9') || (*s == '_' && s > first)))
        s++;
    return (size_t)(s - first);
}

static struct lexeme lex_number(struct lexer *l)
{
    char text[64];
    size_t n = 0;
    const char *s = l->at + digits(l->at, l->end);
    enum token_kind kind = LEX_INT;
    int base = 10;
    if (s == l->at + 1 && *l->at == '0' && s < l->end && strchr("xXoObB", *s) && *s) {
        base = (*s | 0x20) == 'x' ? 16 : (*s | 0x20) == 'o' ? 8 : 2;
        for (s++; s < l->end && *s && strchr("0123456789abcdefABCDEF_", *s);)
            s++;
    }
    if (base == 10 && s + 1 < l->end && *s == '.' && digits(s + 1, l->end)) {
        kind = LEX_FLOAT;
        s += 1 + digits(s + 1, l->end);
    }
    if (base == 10 && s < l->end && (*s | 0x20) == 'e') {
        const char *e = s + 1;
        e += e < l->end && (*e == '+' || *e == '-');
        if (digits(e, l->end)) {
            kind = LEX_FLOAT;
            s = e + digits(e, l->end);
        }
    }
    for (const char *c = l->at + (base == 10 ? 0 : 2); c < s && n + 1 < sizeof text; c++)
        if (*c != '_')
            text[n++] = *c;
    text[n] = 0;
    struct lexeme t = lexeme(l, kind, undefined);
    char *stop = text;
    int64_t i = 0;
    if (kind == LEX_FLOAT)
        t.text = value_float(strtod(text, &stop));
    else if (base == 10 && parse_i64(text, 0, INT64_MAX, &i))
        stop = text + n;
    else if (base != 10 && n && n < 16)
        i = strtoll(text, &stop, base);
    if (kind == LEX_INT)
        t.text = value_int(i);
    if (n + 1 >= sizeof text || *stop || stop == text)
        jinja_fail(l->x, "the number %.20s cannot be read", text);
    advance(l, s);
    return t;
}

/* ------------------------------------------------------------------------- inside of tags -- */

static bool is_name_char(char c)
{
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (unsigned char)c >= 0x80;
}

static struct lexeme lex_operator(struct lexer *l)
{
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                            "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (size_t i = 0; i < ARRAY_LEN(operators); i++) {
        if (at_text(l, operators[i])) {
            const struct lexeme t = lexeme(l, LEX_OPERATOR, value_str(operators[i]));
            advance(l, l->at + t.text.len);
            l->open += strchr("[({", *t.text.s) ? 1 : strchr("])}", *t.text.s) ? -1 : 0;
            return t;
        }
    }
    jinja_fail(l->x, "unexpected character '%.*s'",
               (int)char_bytes(l->at, (size_t)(l->end - l->at)), l->at);
    return lexeme(l, LEX_END, undefined);
}

static struct lexeme lex_inside(struct lexer *l)
{
    skip_space(l);
    const struct lexeme close = lexeme(l, LEX_CLOSE, undefined);
    const char *end = l->block ? "%}" : "}}";
    if (l->at >= l->end) {
        jinja_fail(l->x, "the program ends inside of a tag");
        return lexeme(l, LEX_END, undefined);
    }
    const char sign = *l->at == '-' || (*l->at == '+' && l->block) ? *l->at : 0;
    l->at += sign != 0;
    if (l->open <= 0 && at_text(l, end)) {
        l->inside = false;
        tag_end(l, 2, sign, l->block);
        return close;
    }
    l->at -= sign != 0;
    if (*l->at == '"' || *l->at == '\'')
        return lex_string(l);
    if (*l->at >= '0' && *l->at <= '9')
        return lex_number(l);
    if (!is_name_char(*l->at))
        return lex_operator(l);
    const char *s = l->at;
    while (s < l->end && is_name_char(*s))
        s++;
    const struct lexeme t = lexeme(l, LEX_NAME, value_slice(l->at, (size_t)(s - l->at)));
    advance(l, s);
    return t;
}

struct lexeme lex_next(struct lexer *l)
{
    struct lexeme t = {.kind = LEX_END, .line = l->line};
    l->x->line = l->line;
    if (!l->x->failed)
        t = l->inside ? lex_inside(l) : lex_outside(l);
    if (l->x->failed)
        t.kind = LEX_END;
    return t;
}
