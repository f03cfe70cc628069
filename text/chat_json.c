/*
 * chat_json.c - JSON as models write it, made strict while it arrives: byte by byte, on one line.
 *
 * Models write JSON, Python ('x', True, None, (1, 2), f(a=1)), or strings between tokens (<|"|>).
 * Commas behind the last member pass, numbers keep their text. Behind the first byte that fits
 * nothing the text goes on as it is, so that nothing of it is lost.
 */
#include "text/chat_internal.h"

#include <ctype.h>
#include <string.h>

static const char token_quote[] = "<|\"|>";

/* What closes: } and ] as in JSON; arguments and tuples of Python both end with a round bracket. */
enum { CLOSES_ARGUMENTS = LOOSE_ARGUMENTS, CLOSES_TUPLE = ')' };

bool chat_name_char(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("_-./", c));
}

static bool is_space(char c)
{
    return c && strchr(" \t\r\n", c);
}

void loose_begin(struct loose *l, struct text *out)
{
    text_free(&l->word);
    *l = (struct loose){.out = out};
    text_init(&l->word);
}

void loose_free(struct loose *l)
{
    text_free(&l->word);
}

bool loose_in_string(const struct loose *l)
{
    return l->now == LOOSE_STRING || l->now == LOOSE_ESCAPE;
}

static void emit(struct loose *l, char c)
{
    text_add(l->out, &c, 1);
}

/* What was held of a token, and c, go on as they are. */
static void bad(struct loose *l, char c)
{
    text_add(l->out, or_empty(l->word.data), l->word.len);
    text_add(l->out, token_quote, l->now == LOOSE_QUOTE ? l->matched : 0);
    emit(l, c);
    l->now = LOOSE_BAD;
}

static void token_begin(struct loose *l, enum loose_now now, char c)
{
    l->now = now;
    l->word.len = 0;
    l->matched = 1;
    if (now == LOOSE_WORD || now == LOOSE_NUMBER || now == LOOSE_NAME)
        text_add(&l->word, &c, 1);
}

static void value_end(struct loose *l)
{
    l->word.len = 0;
    l->now = l->depth ? LOOSE_NEXT : LOOSE_DONE;
    if (l->depth == 1) {
        l->value.n = l->out->len - l->value.at;
        l->members++;
    }
}

static bool is_list(const struct loose *l)
{
    const char closes = l->depth ? l->closes[l->depth - 1] : 0;
    return closes == ']' || closes == CLOSES_TUPLE;
}

void loose_open(struct loose *l, char bracket)
{
    if (l->depth == LOOSE_DEPTH) {
        bad(l, bracket);
        return;
    }
    l->closes[l->depth++] = bracket == '{'   ? '}'
                            : bracket == '[' ? ']'
                            : bracket == '(' ? CLOSES_TUPLE
                                             : CLOSES_ARGUMENTS;
    emit(l, is_list(l) ? '[' : '{');
    l->now = is_list(l) ? LOOSE_VALUE : LOOSE_KEY;
    l->may_close = true;
    l->comma = false;
}

/* False: c closes nothing here. */
static bool close_with(struct loose *l, char c)
{
    const char closes = l->depth ? l->closes[l->depth - 1] : 0;
    if (c != (closes == CLOSES_ARGUMENTS ? ')' : closes) || !closes)
        return false;
    emit(l, is_list(l) ? ']' : '}');
    l->depth--;
    value_end(l);
    return true;
}

static void comma_emit(struct loose *l)
{
    if (l->comma)
        emit(l, ',');
    l->comma = false;
}

static void key_end(struct loose *l)
{
    l->now = LOOSE_COLON;
    if (l->depth == 1)
        l->key = (struct span){l->token + 1, l->out->len - l->token - 2};
}

/* ---------------------------------------------------------------------------- strings ---- */

static void string_begin(struct loose *l, char quote)
{
    l->now = LOOSE_STRING;
    l->quote = quote;
    l->word.len = 0;
    l->matched = 0;
    emit(l, '"');
}

/* A character is added when it is whole. */
static void string_put(struct loose *l, char c)
{
    text_add(&l->word, &c, 1);
    if (l->word.failed || utf8_char(l->word.data, l->word.len) == 0)
        return;
    text_add_json(l->out, l->word.data, l->word.len);
    l->word.len = 0;
}

static void character_flush(struct loose *l)
{
    text_add_json(l->out, or_empty(l->word.data), l->word.len);
    l->word.len = 0;
}

static void string_end(struct loose *l)
{
    character_flush(l);
    emit(l, '"');
    if (l->is_key)
        key_end(l);
    else
        value_end(l);
}

static void string_go(struct loose *l, char c)
{
    if (!(c & 0x80))
        character_flush(l);
    if (l->quote != token_quote[0] && c == '\\') {
        l->now = LOOSE_ESCAPE;
        l->n_escape = 0;
    } else if (l->quote != token_quote[0]) {
        if (c == l->quote)
            string_end(l);
        else
            string_put(l, c);
    } else if (c == token_quote[l->matched]) {
        if (!token_quote[++l->matched])
            string_end(l);
    } else {
        for (size_t i = 0; i < l->matched; i++)
            string_put(l, token_quote[i]);
        l->matched = c == token_quote[0];
        if (!l->matched)
            string_put(l, c);
    }
}

/* Behind a backslash. JSON's escapes stay; other backslashes are characters, but for that of
 * Python's single quote. */
static void escape_go(struct loose *l, char c)
{
    const bool digits = l->n_escape > 0;
    l->now = LOOSE_STRING;
    if (!digits && c && strchr("\"\\/bfnrt", c)) {
        emit(l, '\\');
        emit(l, c);
    } else if (!digits && c == '\'') {
        string_put(l, c);
    } else if (digits ? isxdigit((unsigned char)c) != 0 : c == 'u') {
        l->escape[l->n_escape++] = c;
        l->now = LOOSE_ESCAPE;
        if (l->n_escape < 5)
            return;
        emit(l, '\\');
        text_add(l->out, l->escape, 5);
        l->now = LOOSE_STRING;
    } else {
        string_put(l, '\\');
        for (size_t i = 0; i < l->n_escape; i++)
            string_put(l, l->escape[i]);
        string_go(l, c);
    }
}

/* ------------------------------------------------------------------- numbers and words ---- */

static const char *digits_skip(const char *s)
{
    while (isdigit((unsigned char)*s))
        s++;
    return s;
}

static bool is_number(const char *s)
{
    const char *digits = s + (*s == '-'), *end = digits_skip(digits);
    if (end == digits || (*digits == '0' && end > digits + 1))
        return false;
    if (*end == '.') {
        digits = end + 1;
        end = digits_skip(digits);
        if (end == digits)
            return false;
    }
    if (*end == 'e' || *end == 'E') {
        digits = end + 1 + (end[1] == '+' || end[1] == '-');
        end = digits_skip(digits);
        if (end == digits)
            return false;
    }
    return !*end;
}

static const char *word_value(const char *word)
{
    static const char *const words[][2] = {{"true", "true"},   {"True", "true"}, {"false", "false"},
                                           {"False", "false"}, {"null", "null"}, {"None", "null"}};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (!strcmp(word, words[i][0]))
            return words[i][1];
    return NULL;
}

/* c is the first byte behind the word: it is read again. */
static void word_end(struct loose *l, char c)
{
    const char *word = or_empty(l->word.data), *value;
    if (l->now == LOOSE_NAME) {
        emit(l, '"');
        character_flush(l);
        emit(l, '"');
        key_end(l);
    } else {
        value = l->now == LOOSE_WORD ? word_value(word) : is_number(word) ? word : NULL;
        if (!value) {
            bad(l, c);
            return;
        }
        text_add(l->out, value, strlen(value));
        value_end(l);
    }
    loose_put(l, c);
}

/* ------------------------------------------------------------------------------ values ---- */

static void token_go(struct loose *l, char c)
{
    l->is_key = l->now == LOOSE_KEY;
    comma_emit(l);
    l->token = l->out->len;
    if (c == '"' || c == '\'')
        string_begin(l, c);
    else if (c == token_quote[0])
        token_begin(l, LOOSE_QUOTE, c);
    else if (l->is_key && chat_name_char(c))
        token_begin(l, LOOSE_NAME, c);
    else if (!l->is_key && (c == '{' || c == '[' || c == '('))
        loose_open(l, c);
    else if (!l->is_key && (c == '-' || isdigit((unsigned char)c)))
        token_begin(l, LOOSE_NUMBER, c);
    else if (!l->is_key && isalpha((unsigned char)c))
        token_begin(l, LOOSE_WORD, c);
    else
        bad(l, c);
}

/* Between tokens. */
static void between_go(struct loose *l, char c)
{
    if (is_space(c))
        return;
    if (l->now == LOOSE_COLON && (c == ':' || c == '=')) {
        emit(l, ':');
        l->now = LOOSE_VALUE;
        l->may_close = false;
        if (l->depth == 1)
            l->value.at = l->out->len;
    } else if (l->now == LOOSE_NEXT && c == ',') {
        l->now = is_list(l) ? LOOSE_VALUE : LOOSE_KEY;
        l->may_close = l->comma = true;
    } else if (l->now == LOOSE_NEXT) {
        if (!close_with(l, c))
            bad(l, c);
    } else if (l->now == LOOSE_KEY || l->now == LOOSE_VALUE) {
        if (!l->may_close || !close_with(l, c))
            token_go(l, c);
    } else {
        bad(l, c);
    }
}

void loose_put(struct loose *l, char c)
{
    const bool counts = c && strchr("+-.eE0123456789", c);
    switch (l->now) {
    case LOOSE_STRING: string_go(l, c); break;
    case LOOSE_ESCAPE: escape_go(l, c); break;
    case LOOSE_QUOTE:
        if (c != token_quote[l->matched])
            bad(l, c);
        else if (!token_quote[++l->matched])
            string_begin(l, token_quote[0]);
        break;
    case LOOSE_NUMBER:
    case LOOSE_WORD:
    case LOOSE_NAME:
        if (l->now == LOOSE_NUMBER ? counts : chat_name_char(c))
            text_add(&l->word, &c, 1);
        else
            word_end(l, c);
        break;
    case LOOSE_BAD: emit(l, c); break;
    case LOOSE_VALUE:
    case LOOSE_KEY:
    case LOOSE_COLON:
    case LOOSE_NEXT:
    case LOOSE_DONE: between_go(l, c); break;
    }
}
