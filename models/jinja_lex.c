/*
 * jinja_lex.c - a Jinja program as lexemes: text outside of tags, and what is inside {{ }} and
 * {% %}. Comments are skipped. White space around tags is removed as trim_blocks and lstrip_blocks
 * ask (the newline after a block, the indentation before it) and as the signs - and + say.
 */
#include "models/jinja_internal.h"

#include <ctype.h>

static struct lexeme lexeme(const struct parser *p, enum lex_kind kind, struct value text)
{
    return (struct lexeme){kind, p->line, text};
}

static void advance(struct parser *p, const char *to)
{
    for (; p->at < to; p->at++)
        p->line += *p->at == '\n';
}

static void skip_space(struct parser *p)
{
    const char *to = p->at;
    while (to < p->end && char_is_space(to, (size_t)(p->end - to)))
        to += char_bytes(to, (size_t)(p->end - to));
    advance(p, to);
}

/* Behind the end of a tag, with what its sign removes. */
static void tag_end(struct parser *p, const char *end, char sign, bool trims)
{
    advance(p, end);
    p->line_start = false;
    if (sign == '-') {
        const char *from = p->at;
        skip_space(p);
        p->line_start = p->at > from && p->at[-1] == '\n';
    } else if (sign != '+' && trims && p->at < p->end && *p->at == '\n') {
        advance(p, p->at + 1);
        p->line_start = true;
    }
}

/* Text in front of a tag without what the tag removes. */
static struct value trimmed(const struct parser *p, const char *tag)
{
    struct value text = value_slice(p->at, (size_t)(tag - p->at));
    const char sign = tag + 2 < p->end ? tag[2] : 0;
    if (tag == p->end)
        return text;
    if (sign == '-')
        return string_strip(text, value_none, false, true);
    if (sign == '+' || tag[1] == '{')
        return text;
    const char *newline = memrchr(text.s, '\n', text.len);
    if (!newline && !p->line_start)
        return text;
    const uint32_t line = newline ? (uint32_t)(newline + 1 - text.s) : 0;
    const struct value indent = value_slice(text.s + line, text.len - line);
    if (string_strip(indent, value_none, true, false).len == 0)
        text.len = line;
    return text;
}

/* Outside of tags: text, or the beginning of a tag. */
static struct lexeme lex_outside(struct parser *p)
{
    while (p->at < p->end && !p->x->failed) {
        const char *tag = memchr(p->at, '{', (size_t)(p->end - p->at));
        while (tag && (p->end - tag < 2 || !memchr("{%#", tag[1], 3)))
            tag = memchr(tag + 1, '{', (size_t)(p->end - tag - 1));
        tag = tag ? tag : p->end;
        const struct lexeme text = lexeme(p, LEX_TEXT, trimmed(p, tag));
        const bool any = tag > p->at;
        advance(p, tag);
        if (any)
            p->line_start = false;
        if (text.value.len)
            return text;
        if (tag == p->end)
            break;
        const char kind = tag[1];
        const struct lexeme begin = lexeme(p, kind == '{' ? LEX_PRINT : LEX_BLOCK, undefined);
        advance(p, tag + 2);
        if (p->at < p->end && (*p->at == '-' || *p->at == '+'))
            advance(p, p->at + 1);
        if (kind == '#') {
            const char *close = memmem(p->at, (size_t)(p->end - p->at), "#}", 2);
            if (!close)
                jinja_fail(p->x, "a comment does not end with #}");
            else
                tag_end(p, close + 2, close > p->at ? close[-1] : 0, true);
            continue;
        }
        p->inside = true;
        p->block = kind == '%';
        p->open = 0;
        return begin;
    }
    return lexeme(p, LEX_END, undefined);
}

/* ------------------------------------------------------------------------- inside of tags -- */

static bool is_name_char(char c)
{
    return c == '_' || isalnum((unsigned char)c) || (unsigned char)c >= 0x80;
}

static struct lexeme lex_inside(struct parser *p)
{
    skip_space(p);
    const struct lexeme close = lexeme(p, LEX_CLOSE, undefined);
    const char *end = p->block ? "%}" : "}}";
    if (p->at >= p->end) {
        jinja_fail(p->x, "the program ends inside of a tag");
        return lexeme(p, LEX_END, undefined);
    }
    const char sign = *p->at == '-' || (*p->at == '+' && p->block) ? *p->at : 0;
    p->at += sign != 0;
    if (p->open <= 0 && p->end - p->at > 1 && !memcmp(p->at, end, 2)) {
        p->inside = false;
        tag_end(p, p->at + 2, sign, p->block);
        return close;
    }
    p->at -= sign != 0;
    const char *to = p->at;
    struct lexeme t = lexeme(p, LEX_CONST, undefined);
    if (*to == '"' || *to == '\'') {
        to++;
        t.value = read_string(p->x, &to, p->end, *p->at, false);
    } else if (*to >= '0' && *to <= '9') {
        t.value = read_number(&to, p->end, "0123456789.");
        const size_t n = (size_t)(to - p->at);
        if (t.value.type != VALUE_INT && (t.value.type != VALUE_FLOAT || !memchr(p->at, '.', n)))
            jinja_fail(p->x, "the number %.*s cannot be read", (int)n, p->at);
    } else if (is_name_char(*to)) {
        while (to < p->end && is_name_char(*to))
            to++;
        t = lexeme(p, LEX_NAME, value_slice(p->at, (size_t)(to - p->at)));
    } else {
        const bool two = p->end - to > 1 && memmem("**//==!=>=<=", 12, to, 2);
        const size_t n = two ? 2 : *to && strchr("+-/*%~[](){}<>=.:|,", *to) ? 1 : 0;
        t = lexeme(p, LEX_OP, value_slice(to, n));
        p->open +=
            (*to == '[' || *to == '(' || *to == '{') - (*to == ']' || *to == ')' || *to == '}');
        if (n == 0)
            jinja_fail(p->x, "unexpected character '%.*s'",
                       (int)char_bytes(to, (size_t)(p->end - to)), to);
        to += n;
    }
    advance(p, to);
    return t;
}

void lex_next(struct parser *p)
{
    p->x->line = p->line;
    if (!p->x->failed)
        p->now = p->inside ? lex_inside(p) : lex_outside(p);
    if (p->x->failed)
        p->now.kind = LEX_END;
}
