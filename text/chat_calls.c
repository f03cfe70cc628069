/*
 * chat_calls.c - the functions that an answer calls, as one form for all models: a name, and
 * arguments as a JSON object on one line.
 *
 * Models write arguments as JSON, as Python does ('x', True, None, f(a=1)), with quotes that are
 * tokens (<|"|>), or each between tags. Numbers keep their text. What a tag holds is a string
 * unless it is a value of one of the other kinds as a whole, for nothing else tells.
 */
#include "text/chat_internal.h"

#include <ctype.h>
#include <string.h>

enum { NESTED_MOST = 64 };
static const char token_quote[] = "<|\"|>";

struct cursor {
    const char *at, *end;
    int depth;
};

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && strchr(" \t\r\n", *c->at) && *c->at)
        c->at++;
}

static bool skip(struct cursor *c, const char *text)
{
    const size_t n = strlen(text);
    skip_space(c);
    const bool is = (size_t)(c->end - c->at) >= n && memcmp(c->at, text, n) == 0;
    c->at += is ? n : 0;
    return is;
}

/* Moves behind the next `text`; false, and at the end: there is none. */
static bool find(struct cursor *c, const char *text)
{
    const char *p = memmem(c->at, (size_t)(c->end - c->at), text, strlen(text));
    c->at = p ? p + strlen(text) : c->end;
    return p != NULL;
}

static bool is_name_char(char c)
{
    return isalnum((unsigned char)c) || (c && strchr("_-./", c));
}

static struct gguf_string name_read(struct cursor *c)
{
    struct gguf_string name = {c->at, 0};
    while (c->at < c->end && is_name_char(*c->at))
        c->at++;
    name.len = (size_t)(c->at - name.data);
    return name;
}

static void add_string(struct text *out, const char *s, size_t n)
{
    text_printf(out, "\"");
    text_add_json(out, s, n);
    text_printf(out, "\"");
}

/* ----------------------------------------------------------------------------- values ---- */

static bool value_read(struct cursor *c, struct text *out);

/* An escape of JSON at s, a backslash. */
static bool is_escape(const char *s, const char *end)
{
    int digits = 0;
    while (digits < 4 && end - s > 2 + digits && isxdigit((unsigned char)s[2 + digits]))
        digits++;
    return end - s > 1 && s[1] && (strchr("\"\\/bfnrt", s[1]) || (s[1] == 'u' && digits == 4));
}

/* Behind the opening quote. JSON's escapes stay; other backslashes are characters, but for that of
 * Python's single quote. */
static bool quoted_read(struct cursor *c, char quote, struct text *out)
{
    const char *from = c->at; /* what is not yet added */
    text_printf(out, "\"");
    for (; c->at < c->end && *c->at != quote; c->at++) {
        const bool escape = *c->at == '\\' && is_escape(c->at, c->end);
        if (!escape && (*c->at != '\\' || c->end - c->at < 2 || c->at[1] != '\''))
            continue;
        text_add_json(out, from, (size_t)(c->at - from));
        if (escape)
            text_add(out, c->at, 2);
        from = ++c->at + escape;
    }
    text_add_json(out, from, (size_t)(c->at - from));
    text_printf(out, "\"");
    const bool ends = c->at < c->end;
    c->at += ends;
    return ends;
}

static bool token_quoted_read(struct cursor *c, struct text *out)
{
    const char *from = c->at;
    const bool ends = find(c, token_quote);
    if (ends)
        add_string(out, from, (size_t)(c->at - from) - strlen(token_quote));
    return ends;
}

static bool string_read(struct cursor *c, struct text *out)
{
    if (skip(c, token_quote))
        return token_quoted_read(c, out);
    if (skip(c, "\""))
        return quoted_read(c, '"', out);
    return skip(c, "'") && quoted_read(c, '\'', out);
}

static bool number_read(struct cursor *c, struct text *out)
{
    const char *from = c->at, *digits = from + (*from == '-');
    c->at = digits;
    while (c->at < c->end && isdigit((unsigned char)*c->at))
        c->at++;
    if (c->at == digits || (*digits == '0' && c->at > digits + 1))
        return false;
    for (const char *part = ".e"; *part; part++) {
        if (c->at == c->end || tolower((unsigned char)*c->at) != *part)
            continue;
        const bool sign = *part == 'e' && c->end - c->at > 1 && strchr("+-", c->at[1]) && c->at[1];
        const char *rest = c->at + 1 + sign;
        for (c->at = rest; c->at < c->end && isdigit((unsigned char)*c->at);)
            c->at++;
        if (c->at == rest)
            return false;
    }
    text_add(out, from, (size_t)(c->at - from));
    return true;
}

static bool word_read(struct cursor *c, struct text *out)
{
    static const char *const words[][2] = {{"true", "true"},   {"True", "true"}, {"false", "false"},
                                           {"False", "false"}, {"null", "null"}, {"None", "null"}};
    const struct gguf_string word = name_read(c);
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (!gguf_string_is(word, words[i][0]))
            continue;
        text_printf(out, "%s", words[i][1]);
        return true;
    }
    return false;
}

/* Where in the text of an object its name is, its arguments, and the key and value of its last
 * member. */
struct span {
    size_t at, n;
};
struct members {
    struct span name, arguments, key, value;
    int n;
};

static bool key_is(const struct text *t, struct span key, const char *const names[3])
{
    for (int i = 0; i < 3; i++)
        if (key.n == strlen(names[i]) && memcmp(t->data + key.at, names[i], key.n) == 0)
            return true;
    return false;
}

/* Notes the member at the end of the text; key and value are where they begin. */
static void member_note(struct members *m, const struct text *t, size_t key, size_t value)
{
    static const char *const names[3] = {"name", "tool_name", "function"};
    static const char *const arguments[3] = {"arguments", "parameters", "args"};
    m->n++;
    m->key = (struct span){key + 1, value - key - 3}; /* without quotes and colon */
    m->value = (struct span){value, t->len - value};
    if (key_is(t, m->key, names) && t->data[value] == '"')
        m->name = (struct span){value + 1, m->value.n - 2};
    else if (key_is(t, m->key, arguments))
        m->arguments = m->value;
}

/* Members up to `close`: keys are strings, or names in front of : or =. */
static bool members_read(struct cursor *c, const char *close, struct text *out, struct members *m)
{
    text_printf(out, "{");
    for (bool first = true; !skip(c, close); first = false) {
        if (!first && !skip(c, ","))
            return false;
        if (!first && skip(c, close))
            break;
        text_printf(out, "%s", first ? "" : ",");
        const size_t key = out->len;
        skip_space(c);
        if (c->at < c->end && is_name_char(*c->at)) {
            const struct gguf_string name = name_read(c);
            add_string(out, name.data, name.len);
        } else if (!string_read(c, out)) {
            return false;
        }
        if (!skip(c, ":") && !skip(c, "="))
            return false;
        text_printf(out, ":");
        const size_t value = out->len;
        if (!value_read(c, out) || out->failed)
            return false;
        if (m)
            member_note(m, out, key, value);
    }
    text_printf(out, "}");
    return true;
}

static bool items_read(struct cursor *c, const char *close, struct text *out)
{
    text_printf(out, "[");
    for (bool first = true; !skip(c, close); first = false) {
        if (!first && !skip(c, ","))
            return false;
        if (!first && skip(c, close))
            break;
        text_printf(out, "%s", first ? "" : ",");
        if (!value_read(c, out))
            return false;
    }
    text_printf(out, "]");
    return true;
}

/* A value of any kind as JSON. */
static bool value_read(struct cursor *c, struct text *out)
{
    bool good;
    skip_space(c);
    if (c->at == c->end || c->depth >= NESTED_MOST)
        return false;
    c->depth++;
    if (*c->at == '-' || isdigit((unsigned char)*c->at))
        good = number_read(c, out);
    else if (skip(c, "{"))
        good = members_read(c, "}", out, NULL);
    else if (skip(c, "["))
        good = items_read(c, "]", out);
    else if (skip(c, "("))
        good = items_read(c, ")", out);
    else if (isalpha((unsigned char)*c->at))
        good = word_read(c, out);
    else
        good = string_read(c, out);
    c->depth--;
    return good;
}

/* ------------------------------------------------------------------------------ calls ---- */

/* Names of some models have the name space of functions in front. */
static bool call_tell(const struct chat_sink *to, struct gguf_string name,
                      const struct text *arguments)
{
    static const char space[] = "functions.";
    const size_t n = strlen(space);
    const bool has = name.len > n && memcmp(name.data, space, n) == 0;
    struct text text;
    text_init(&text);
    text_add(&text, has ? name.data + n : name.data, has ? name.len - n : name.len);
    /* no function has a name with a zero byte: what looks like its call is text */
    const bool good =
        name.len && !memchr(name.data, 0, name.len) && !text.failed && !arguments->failed;
    if (good)
        to->call(to->user, text.data, arguments->data);
    text_free(&text);
    return good;
}

/* {"name": .., "arguments": {..}}, or {name: {..}}, behind its opening bracket. */
static bool object_call(struct cursor *c, const struct chat_sink *to)
{
    struct members m = {0};
    struct text object, arguments;
    text_init(&object);
    text_init(&arguments);
    bool good = members_read(c, "}", &object, &m) && !object.failed;
    if (good && !m.name.n && m.n == 1 && object.data[m.value.at] == '{') {
        m.name = m.key;
        m.arguments = m.value;
    }
    good = good && (!m.arguments.n || object.data[m.arguments.at] == '{');
    if (good && m.arguments.n)
        text_add(&arguments, object.data + m.arguments.at, m.arguments.n);
    else
        text_printf(&arguments, "{}");
    good =
        good && call_tell(to, (struct gguf_string){object.data + m.name.at, m.name.n}, &arguments);
    text_free(&object);
    text_free(&arguments);
    return good;
}

/* What stands between the tags of a value. */
static void tagged_value(struct gguf_string v, bool is_string, struct text *out)
{
    struct text value;
    if (v.len && *v.data == '\n')
        v = (struct gguf_string){v.data + 1, v.len - 1};
    v.len -= v.len && v.data[v.len - 1] == '\n';
    struct cursor c = {v.data, v.data + v.len, 0};
    if (skip(&c, "<![CDATA[")) {
        v.data = c.at;
        const bool ends = find(&c, "]]>");
        add_string(out, v.data, (size_t)(c.at - v.data) - (ends ? strlen("]]>") : 0));
        return;
    }
    text_init(&value);
    const bool read = !is_string && value_read(&c, &value);
    skip_space(&c);
    if (read && c.at == c.end)
        text_add(out, value.data, value.len);
    else
        add_string(out, v.data, v.len);
    text_free_part(&value, out);
}

/* Arguments between tags; false: one has no end. */
static bool tagged_read(const struct call_format *f, struct cursor *c, struct text *out)
{
    bool first = true;
    text_printf(out, "{");
    for (; find(c, f->key); first = false) {
        const char *from = c->at;
        if (!find(c, f->key_end))
            return false;
        const size_t n = (size_t)(c->at - from) - strlen(f->key_end);
        const char *rest = c->at;
        if (f->value && !find(c, f->value))
            return false;
        const struct gguf_string between = {rest, (size_t)(c->at - rest)};
        struct gguf_string value = {c->at, 0};
        if (!find(c, f->value_end))
            return false;
        value.len = (size_t)(c->at - value.data) - strlen(f->value_end);
        text_printf(out, "%s", first ? "" : ",");
        add_string(out, from, n);
        text_printf(out, ":");
        tagged_value(value,
                     gguf_string_has(between, "string=\"true\"") ||
                         gguf_string_has(between, "type=\"string\""),
                     out);
    }
    text_printf(out, "}");
    return true;
}

/* A name, and arguments in brackets, between tags, or as an object somewhere behind it. */
static bool named_call(const struct call_format *f, struct cursor *c, const struct chat_sink *to)
{
    struct text arguments;
    text_init(&arguments);
    const struct gguf_string name = name_read(c);
    const struct gguf_string rest = {c->at, (size_t)(c->end - c->at)};
    bool good = true;
    if (skip(c, "("))
        good = members_read(c, ")", &arguments, NULL);
    else if (f->key && gguf_string_has(rest, f->key))
        good = tagged_read(f, c, &arguments);
    else if (find(c, "{"))
        good = members_read(c, "}", &arguments, NULL);
    else
        text_printf(&arguments, "{}");
    good = good && call_tell(to, name, &arguments);
    text_free(&arguments);
    return good;
}

bool chat_calls_read(const struct call_format *f, struct gguf_string body,
                     const struct chat_sink *to)
{
    struct cursor c = {body.data, body.data + body.len, 0};
    bool any = false;
    if (f->name && gguf_string_has(body, f->name))
        find(&c, f->name);
    const bool list = skip(&c, "[");
    if (!list && (c.at == c.end || *c.at != '{'))
        return named_call(f, &c, to);
    do {
        if (!(skip(&c, "{") ? object_call(&c, to) : list && named_call(f, &c, to)))
            return any;
        any = true;
        skip(&c, ",");
    } while (list ? !skip(&c, "]") : c.at < c.end && *c.at == '{');
    return true;
}
