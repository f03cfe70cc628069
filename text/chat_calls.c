/*
 * chat_calls.c - the functions that an answer calls, in one form for all models: a name, and
 * arguments as a JSON object on one line, in pieces as they arrive.
 *
 * A call is told once its arguments begin; what cannot be read up to there is no call. Marks in
 * strings and in values between tags are text. What a tag holds is a string unless it is a value of
 * one of the other kinds as a whole, for nothing else tells.
 */
#include "text/chat_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Whether c completes a mark of which *n bytes have matched. */
static bool meets(size_t *n, const char *mark, char c)
{
    while (*n && mark[*n] != c) { /* a shorter beginning of it may end here */
        size_t shorter = *n - 1;
        while (shorter && memcmp(mark, mark + *n - shorter, shorter) != 0)
            shorter--;
        *n = shorter;
    }
    *n += mark[*n] == c;
    const bool whole = !mark[*n];
    *n = whole ? 0 : *n;
    return whole;
}

static void add_string(struct text *out, const char *s, size_t n)
{
    text_printf(out, "\"");
    text_add_json(out, s, n);
    text_printf(out, "\"");
}

/* ----------------------------------------------------------------------------- telling ---- */

static void piece_tell(struct chat_calls *k)
{
    if (k->piece.len && !k->piece.failed)
        k->to->arguments(k->to->user, k->piece.data, k->piece.len);
    k->piece.len = 0;
}

static void call_close(struct chat_calls *k, bool whole)
{
    piece_tell(k);
    if (k->open)
        k->to->call_end(k->to->user, whole);
    k->open = false;
}

/* Names of some models have the name space of functions in front. */
static void call_open(struct chat_calls *k, const char *name, size_t n)
{
    static const char space[] = "functions.";
    const size_t skip =
        n > strlen(space) && !memcmp(name, space, strlen(space)) ? strlen(space) : 0;
    char *text = strndup(name + skip, n - skip);
    if (!text) {
        k->piece.failed = true;
        return;
    }
    k->to->call(k->to->user, text);
    free(text);
    k->told++;
    k->open = true;
    k->raw.len = 0;
}

/* It cannot be read any further. */
static void give_up(struct chat_calls *k)
{
    k->now = k->told ? CALLS_OVER : CALLS_NONE;
}

/* -------------------------------------------------------------------- an object is a call ---- */

static bool span_is(const struct text *t, struct span s, const char *const names[3])
{
    for (int i = 0; i < 3; i++)
        if (s.n == strlen(names[i]) && memcmp(t->data + s.at, names[i], s.n) == 0)
            return true;
    return false;
}

static const char *const arguments_names[3] = {"arguments", "parameters", "args"};

/* {"name": .., "arguments": {..}}, or {name: {..}}, has ended, and its arguments were not told. */
static void object_tell(struct chat_calls *k)
{
    const struct loose *j = &k->json;
    const char *object = k->object.data;
    if (!k->name.n && j->members == 1 && object[j->value.at] == '{') {
        k->name = j->key;
        k->arguments = j->value;
    }
    if (!k->name.n || (k->arguments.n && object[k->arguments.at] != '{')) {
        give_up(k);
        return;
    }
    call_open(k, object + k->name.at, k->name.n);
    if (k->arguments.n)
        text_add(&k->piece, object + k->arguments.at, k->arguments.n);
    else
        text_printf(&k->piece, "{}");
    call_close(k, true);
}

/* A member one level deep has ended. */
static void member_note(struct chat_calls *k)
{
    static const char *const names[3] = {"name", "tool_name", "function"};
    const struct loose *j = &k->json;
    if (span_is(&k->object, j->key, names) && k->object.data[j->value.at] == '"')
        k->name = (struct span){j->value.at + 1, j->value.n - 2};
    else if (span_is(&k->object, j->key, arguments_names))
        k->arguments = j->value;
}

static void object_begin(struct chat_calls *k)
{
    k->object.len = 0;
    k->name = k->arguments = (struct span){0};
    k->done = false;
    loose_begin(&k->json, &k->object);
    loose_open(&k->json, '{');
    k->now = CALLS_OBJECT;
}

static void object_go(struct chat_calls *k, char c)
{
    struct loose *j = &k->json;
    const int32_t members = j->members;
    if (j->depth == 1 && j->now == LOOSE_VALUE && c == '{' && k->name.n &&
        span_is(&k->object, j->key, arguments_names)) {
        call_open(k, k->object.data + k->name.at, k->name.n);
        j->out = &k->piece;
    }
    loose_put(j, c);
    if (k->object.failed || k->piece.failed)
        return;
    if (j->out == &k->piece && j->members > members) {
        call_close(k, true);
        j->out = &k->object;
        k->done = true;
    } else if (j->out == &k->object && j->members > members) {
        member_note(k);
    }
    if (j->now == LOOSE_DONE) {
        k->now = CALLS_NEXT;
        if (!k->done)
            object_tell(k);
    } else if (j->now == LOOSE_BAD && !k->open) {
        give_up(k);
    }
}

/* ---------------------------------------------------------------- arguments between tags ---- */

/* What stands between the tags of a value. */
static void tagged_value(const char *s, size_t n, bool is_string, struct text *out)
{
    static const char begin[] = "<![CDATA[", end[] = "]]>";
    struct text value;
    struct loose l = {0};
    const bool line = n && *s == '\n';
    s += line;
    n -= line;
    n -= n && s[n - 1] == '\n';
    size_t from = 0;
    while (from < n && isspace((unsigned char)s[from]))
        from++;
    if (n - from >= strlen(begin) && !memcmp(s + from, begin, strlen(begin))) {
        from += strlen(begin);
        const char *p = memmem(s + from, n - from, end, strlen(end));
        add_string(out, s + from, p ? (size_t)(p - s) - from : n - from);
        return;
    }
    text_init(&value);
    loose_begin(&l, &value);
    for (size_t i = 0; i < n && !is_string && l.now != LOOSE_BAD; i++)
        loose_put(&l, s[i]);
    loose_put(&l, ' '); /* numbers and words end by what follows them */
    if (l.now == LOOSE_DONE)
        text_add(out, value.data, value.len);
    else
        add_string(out, s, n);
    loose_free(&l);
    text_free_part(&value, out);
}

/* The value whose text is the first n bytes held. */
static void tagged_tell(struct chat_calls *k, size_t n)
{
    text_add(&k->piece, ",", k->comma ? 1 : 0);
    add_string(&k->piece, or_empty(k->object.data), k->object.len);
    text_printf(&k->piece, ":");
    tagged_value(or_empty(k->held.data), n, k->string, &k->piece);
    k->comma = true;
    k->held.len = 0;
    k->now = CALLS_TAG;
}

/* Holds c; true: it completes the mark, which is then not held. */
static bool held_until(struct chat_calls *k, const char *mark, char c)
{
    text_add(&k->held, &c, 1);
    const bool whole = !k->held.failed && meets(&k->marked, mark, c);
    k->held.len -= whole ? strlen(mark) : 0;
    return whole;
}

static void key_end(struct chat_calls *k)
{
    k->object.len = 0;
    text_add(&k->object, k->held.data, k->held.len);
    k->held.len = 0;
    k->string = false;
    k->now = k->f->value ? CALLS_BETWEEN : CALLS_VALUE;
}

static void between_end(struct chat_calls *k)
{
    const struct gguf_string held = {k->held.data, k->held.len};
    k->string =
        gguf_string_has(held, "string=\"true\"") || gguf_string_has(held, "type=\"string\"");
    k->held.len = 0;
    k->now = CALLS_VALUE;
}

/* ------------------------------------------------------------------------------- calls ---- */

static void feed(struct chat_calls *k, char c);

/* What was held in vain for the mark in front of names is read as it is. */
static void start_over(struct chat_calls *k)
{
    struct text held = k->held;
    text_init(&k->held);
    k->now = CALLS_NEXT;
    k->marked = 0;
    for (size_t i = 0; i < held.len; i++)
        feed(k, held.data[i]);
    text_free_part(&held, &k->held);
}

static void next_go(struct chat_calls *k, char c)
{
    const bool first = !k->told && !k->list;
    if (isspace((unsigned char)c) || (c == ',' && k->told)) {
        /* between calls */
    } else if (c == '[' && first) {
        k->list = true;
    } else if (c == '{') {
        object_begin(k);
    } else if (chat_name_char(c) && (k->list || first)) {
        k->held.len = 0;
        text_add(&k->held, &c, 1);
        k->now = CALLS_NAME;
    } else {
        give_up(k);
    }
}

/* The arguments of the name that is held begin. */
static void arguments_begin(struct chat_calls *k, char bracket)
{
    call_open(k, or_empty(k->held.data), k->held.len);
    k->held.len = 0;
    k->now = CALLS_ARGUMENTS;
    loose_begin(&k->json, &k->piece);
    loose_open(&k->json, bracket);
}

static void seek_go(struct chat_calls *k, char c)
{
    if (k->f->key && meets(&k->marked, k->f->key, c)) {
        call_open(k, or_empty(k->held.data), k->held.len);
        text_printf(&k->piece, "{");
        k->held.len = 0;
        k->comma = false;
        k->now = CALLS_KEY;
    } else if (c == '{') {
        arguments_begin(k, c);
    }
}

static void named_go(struct chat_calls *k, char c)
{
    if (c == '(') {
        arguments_begin(k, LOOSE_ARGUMENTS);
    } else if (!isspace((unsigned char)c)) {
        k->now = CALLS_SEEK;
        k->marked = 0;
        seek_go(k, c);
    }
}

static void arguments_go(struct chat_calls *k, char c)
{
    loose_put(&k->json, c);
    if (k->json.now != LOOSE_DONE)
        return;
    call_close(k, true);
    k->now = k->list ? CALLS_NEXT : CALLS_OVER;
}

static void feed(struct chat_calls *k, char c)
{
    switch (k->now) {
    case CALLS_START:
        if (held_until(k, k->f->name, c)) {
            k->held.len = 0;
            k->now = CALLS_NEXT;
        } else if (c == '{') {
            start_over(k);
        }
        break;
    case CALLS_NEXT: next_go(k, c); break;
    case CALLS_NAME:
        if (chat_name_char(c)) {
            text_add(&k->held, &c, 1);
            break;
        }
        k->now = CALLS_NAMED;
        named_go(k, c);
        break;
    case CALLS_NAMED: named_go(k, c); break;
    case CALLS_SEEK: seek_go(k, c); break;
    case CALLS_OBJECT: object_go(k, c); break;
    case CALLS_ARGUMENTS: arguments_go(k, c); break;
    case CALLS_TAG:
        if (meets(&k->marked, k->f->key, c))
            k->now = CALLS_KEY;
        break;
    case CALLS_KEY:
        if (held_until(k, k->f->key_end, c))
            key_end(k);
        break;
    case CALLS_BETWEEN:
        if (held_until(k, k->f->value, c))
            between_end(k);
        break;
    case CALLS_VALUE:
        if (held_until(k, k->f->value_end, c))
            tagged_tell(k, k->held.len);
        break;
    case CALLS_OVER:
    case CALLS_NONE: break;
    }
}

void chat_calls_begin(struct chat_calls *k, const struct call_format *f, const struct chat_sink *to)
{
    k->f = f;
    k->to = to;
    k->now = f->name ? CALLS_START : CALLS_NEXT;
    k->raw.len = k->held.len = k->object.len = k->piece.len = 0;
    k->marked = k->ended = 0;
    k->told = 0;
    k->list = k->open = k->comma = false;
    loose_begin(&k->json, &k->object);
}

/* Whether the next byte is text whatever it is. */
static bool is_deaf(const struct chat_calls *k)
{
    return k->f->bare || k->now == CALLS_VALUE ||
           ((k->now == CALLS_OBJECT || k->now == CALLS_ARGUMENTS) && loose_in_string(&k->json));
}

size_t chat_calls_push(struct chat_calls *k, const char *s, size_t n, bool *over)
{
    const char *end = k->f->end ? k->f->end : k->f->begin;
    size_t i = 0;
    *over = false;
    while (i < n && !*over && !chat_calls_failed(k)) {
        const char c = s[i++];
        const size_t before = k->ended;
        if (!k->told)
            text_add(&k->raw, &c, 1);
        if (!before && is_deaf(k)) {
            feed(k, c);
            continue;
        }
        *over = meets(&k->ended, end, c);
        /* bytes that can be of the mark no more */
        for (size_t j = 0; j + k->ended < before + 1 && !*over; j++)
            feed(k, j < before ? end[j] : c);
    }
    piece_tell(k);
    return i;
}

/* The end of what is between tags; a value without its own is whole, too. */
static void tags_end(struct chat_calls *k)
{
    if (k->now == CALLS_VALUE) {
        const char *end = or_empty(k->f->end);
        const char *p = k->held.len ? memmem(k->held.data, k->held.len, end, strlen(end)) : NULL;
        tagged_tell(k, p && *end ? (size_t)(p - k->held.data) : k->held.len);
    }
    text_printf(&k->piece, "}");
    call_close(k, true);
}

bool chat_calls_end(struct chat_calls *k, bool cut)
{
    if (k->now == CALLS_START && !cut)
        start_over(k);
    const bool named = k->now == CALLS_NAME || k->now == CALLS_NAMED || k->now == CALLS_SEEK;
    const bool tags = k->now == CALLS_TAG || k->now == CALLS_KEY || k->now == CALLS_BETWEEN ||
                      k->now == CALLS_VALUE;
    if (named && !cut) {
        call_open(k, or_empty(k->held.data), k->held.len);
        text_printf(&k->piece, "{}");
        call_close(k, true);
    } else if (tags && !cut) {
        tags_end(k);
    }
    call_close(k, false);
    return k->told || cut;
}

bool chat_calls_failed(const struct chat_calls *k)
{
    return k->raw.failed || k->held.failed || k->object.failed || k->piece.failed ||
           k->json.word.failed;
}

void chat_calls_free(struct chat_calls *k)
{
    text_free(&k->raw);
    text_free(&k->held);
    text_free(&k->object);
    text_free(&k->piece);
    loose_free(&k->json);
}
