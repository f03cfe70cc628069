/*
 * jinja_lex.c - a Jinja program as lexemes: text outside of tags, and what is inside {{ }} and
 * {% %}. Comments are skipped. White space around tags is removed as trim_blocks and lstrip_blocks
 * ask (the newline after a block, the indentation before it) and as the signs - and + say.
 */
#include "models/jinja_internal.h"

#include <ctype.h>

static struct lexeme lexeme(const struct lexer *l, enum lex_kind kind, struct value text)
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
        return string_strip(text, value_none, false, true);
    if (sign == '+' || tag[1] == '{')
        return text;
    const char *newline = memrchr(text.s, '\n', text.len);
    if (!newline && !l->line_start)
        return text;
    const uint32_t line = newline ? (uint32_t)(newline + 1 - text.s) : 0;
    const struct value indent = value_slice(text.s + line, text.len - line);
    if (string_strip(indent, value_none, true, false).len == 0)
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
        if (text.value.len)
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

/* ------------------------------------------------------------------------- inside of tags -- */

static struct lexeme lex_string(struct lexer *l)
{
    struct lexeme t = lexeme(l, LEX_CONST, undefined);
    const char *to = l->at + 1;
    t.value = read_string(l->x, &to, l->end, *l->at, false);
    advance(l, to);
    return t;
}

static struct lexeme lex_number(struct lexer *l)
{
    const char *to = l->at;
    const struct lexeme t = lexeme(l, LEX_CONST, read_number(&to, l->end, "0123456789."));
    const size_t n = (size_t)(to - l->at);
    if (t.value.type != VALUE_INT && !(t.value.type == VALUE_FLOAT && memchr(l->at, '.', n)))
        jinja_fail(l->x, "the number %.*s cannot be read", (int)n, l->at);
    advance(l, to);
    return t;
}

static bool is_name_char(char c)
{
    return c == '_' || isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

static struct lexeme lex_operator(struct lexer *l)
{
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                            "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                            ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (size_t i = 0; i < ARRAY_LEN(operators); i++) {
        if (at_text(l, operators[i])) {
            const struct lexeme t = lexeme(l, LEX_OP, value_str(operators[i]));
            advance(l, l->at + t.value.len);
            l->open += strchr("[({", *t.value.s) ? 1 : strchr("])}", *t.value.s) ? -1 : 0;
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
