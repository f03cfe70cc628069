/*
 * json.c - writes JSON as growing text, on one line and with members in the order in which they are
 * given. A separator is put where the text does not end with an opening bracket.
 */
#include "base/base.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void json_key(struct text *t, const char *key)
{
    const char last = t->len ? t->data[t->len - 1] : '{';
    text_printf(t, "%s", last == '{' || last == '[' ? "" : ",");
    if (!key)
        return;
    text_printf(t, "\"");
    text_add_json(t, key, strlen(key));
    text_printf(t, "\":");
}

struct json_field json_text(const char *key, const char *value)
{
    return (struct json_field){.kind = JSON_KIND_TEXT, .key = key, .text = value ? value : ""};
}

struct json_field json_bool(const char *key, bool value)
{
    return (struct json_field){
        .kind = JSON_KIND_WORD, .key = key, .text = value ? "true" : "false"};
}

struct json_field json_number(const char *key, double value)
{
    return (struct json_field){
        .kind = JSON_KIND_REAL, .key = key, .real = isfinite(value) ? value : 0};
}

struct json_field json_whole(const char *key, uint64_t value)
{
    return (struct json_field){.kind = JSON_KIND_WHOLE, .key = key, .whole = value};
}

struct json_field json_hash(const char *key, uint64_t value)
{
    return (struct json_field){.kind = JSON_KIND_HASH, .key = key, .whole = value};
}

/* Whole numbers and what a float holds exactly, and others with six digits. */
static void real_add(struct text *t, double v)
{
    int digits = 6;
    char shown[40];
    if (v == floor(v) && fabs(v) < 1e15) {
        text_printf(t, "%.0f", v + 0.0); /* no -0 */
        return;
    }
    do
        snprintf(shown, sizeof shown, "%.*g", digits, v);
    while (v == (double)(float)v && strtof(shown, NULL) != (float)v && digits++ < 9);
    text_printf(t, "%s", shown);
}

void json_fields(struct text *t, const struct json_field *f)
{
    for (; f->kind != JSON_KIND_END; f++) {
        json_key(t, f->key);
        switch (f->kind) {
        case JSON_KIND_TEXT:
            text_printf(t, "\"");
            text_add_json(t, f->text, strlen(f->text));
            text_printf(t, "\"");
            break;
        case JSON_KIND_WORD: text_printf(t, "%s", f->text); break;
        case JSON_KIND_REAL: real_add(t, f->real); break;
        case JSON_KIND_WHOLE: text_printf(t, "%" PRIu64, f->whole); break;
        case JSON_KIND_HASH: text_printf(t, "\"%016" PRIx64 "\"", f->whole); break;
        case JSON_KIND_END: break;
        }
    }
}

void json_add_slice(struct text *t, const char *key, const char *s, size_t n)
{
    json_key(t, key);
    text_printf(t, "\"");
    text_add_json(t, or_empty(s), n);
    text_printf(t, "\"");
}

void json_open(struct text *t, const char *key, char bracket)
{
    json_key(t, key);
    text_printf(t, "%c", bracket);
}

void json_close(struct text *t, char bracket)
{
    text_printf(t, "%c", bracket);
}
