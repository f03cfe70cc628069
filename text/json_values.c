/*
 * json_values.c - JSON as values of jansson.
 */
#include "text/json_values.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------- members --- */

bool json_is(const json_t *value, const char *text)
{
    return json_is_string(value) && !strcmp(json_string_value(value), text);
}

bool json_is_one(const json_t *value, const char *words)
{
    const char *s = json_string_value(value);
    const size_t n = json_string_length(value);
    for (const char *at = words; s && at && *at; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        if (length == n && !memcmp(at, s, n))
            return true;
        at += length;
    }
    return false;
}

const json_t *json_given(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_null(v) ? NULL : v;
}

void members_copy(json_t *to, const json_t *from, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        json_object_set(to, names[i], (json_t *)json_given(from, names[i])); /* not of NULL */
}

oato_status json_int(const json_t *o, const char *name, int64_t least, int64_t most, int64_t *out,
                     struct oato_error *err)
{
    const json_t *v = json_given(o, name);
    const double d = json_number_value(v);
    if (!v)
        return OATO_OK;
    if (!json_is_number(v) || d < (double)least || d > (double)most || d != floor(d))
        return oato_fail(err, OATO_EUSAGE, "%s wants a whole number from %lld to %lld", name,
                         (long long)least, (long long)most);
    *out = json_is_integer(v) ? (int64_t)json_integer_value(v) : (int64_t)d;
    return OATO_OK;
}

oato_status json_flag(const json_t *o, const char *name, bool *out, struct oato_error *err)
{
    const json_t *v = json_given(o, name);
    if (v && !json_is_boolean(v))
        return oato_fail(err, OATO_EUSAGE, "%s wants true or false", name);
    *out = v ? json_is_true(v) : *out;
    return OATO_OK;
}

/* ----------------------------------------------------------------------- texts and values --- */

json_t *text_value(const char *s, size_t n)
{
    struct text t;
    json_t *v = json_stringn(s, n);
    if (v)
        return v;
    text_init(&t);
    text_printf(&t, "\"");
    text_add_json(&t, s, n);
    text_printf(&t, "\"");
    return json_value_take(&t);
}

json_t *json_text_take(struct text *t)
{
    json_t *v = t->failed ? NULL : json_stringn_nocheck(or_empty(t->data), t->len);
    text_free(t);
    return v;
}

json_t *json_value_take(struct text *t)
{
    json_t *v = json_loadb(or_empty(t->data), t->len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    text_free(t);
    return v;
}

void value_add(struct text *t, const json_t *value, bool blanks)
{
    static const char numeric[] = "+-.0123456789eE";
    char *dump = json_dumps(value, JSON_ENCODE_ANY | (blanks ? 0 : JSON_COMPACT));
    /* jansson writes 0.1 with 17 digits, or with fewer what is then another number. */
    for (const char *s = or_empty(dump); *s;) {
        size_t n = strcspn(s, "\"-0123456789");
        text_add(t, s, n);
        s += n;
        n = strspn(s, numeric);
        if (*s == '"') {
            for (n = 1; s[n] != '"'; n++)
                n += s[n] == '\\';
            text_add(t, s, ++n);
        } else if (memchr(s, '.', n) || memchr(s, 'e', n)) {
            char real[F64_TEXT];
            print_f64(strtod(s, NULL), real);
            text_add(t, real, strlen(real));
        } else {
            text_add(t, s, n);
        }
        s += n;
    }
    t->failed = t->failed || !dump;
    free(dump);
}

void value_write(struct text *t, json_t *value)
{
    value_add(t, value, false);
    json_decref(value);
}

void json_add_base64(struct text *t, const char *key, const void *data, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *bytes = data;
    json_key(t, key);
    text_add(t, "\"", 1);
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const uint32_t bits = (uint32_t)bytes[i] << 16 |
                              (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                              (left > 2 ? bytes[i + 2] : 0);
        const char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63],
                              left > 1 ? digits[bits >> 6 & 63] : '=',
                              left > 2 ? digits[bits & 63] : '='};
        text_add(t, four, sizeof four);
    }
    text_add(t, "\"", 1);
}

json_t *parts_join(const json_t *parts, const char *between)
{
    struct text all;
    const json_t *part;
    size_t i;
    bool good = true;
    text_init(&all);
    json_array_foreach(parts, i, part)
    {
        const json_t *type = json_object_get(part, "type"), *text = json_object_get(part, "text");
        good = good && json_is_string(text) && json_is(type, "text");
        if (good && i)
            text_add(&all, between, strlen(between));
        if (good)
            text_add(&all, json_string_value(text), json_string_length(text));
    }
    if (good)
        return json_text_take(&all);
    text_free(&all);
    return NULL;
}

static json_t *field_of(const json_t *o, const char *path)
{
    const char *slash = strchr(path, '/');
    json_t *v =
        slash ? json_object_getn(o, path, (size_t)(slash - path)) : json_object_get(o, path);
    return slash ? json_object_get(v, slash + 1) : v;
}

static json_t *fields_of(const json_t *o, const json_t *fields)
{
    json_t *picked = json_object();
    const json_t *field;
    size_t i;
    json_array_foreach(fields, i, field)
    {
        const char *path = or_empty(json_string_value(field));
        json_t *v = field_of(o, path);
        if (v)
            json_object_set(picked, path, v);
    }
    return picked;
}

void fields_pick(struct text *json, const json_t *fields)
{
    json_t *all, *o, *picked;
    size_t i;
    if (!json_array_size(fields) || json->failed)
        return;
    all = json_loadb(json->data, json->len, JSON_ALLOW_NUL, NULL);
    if (json_is_array(all)) {
        picked = json_array();
        json_array_foreach(all, i, o)
        {
            json_array_append_new(picked, fields_of(o, fields));
        }
    } else {
        picked = fields_of(all, fields);
    }
    json->len = 0;
    value_write(json, picked);
    json_decref(all);
}

/* ----------------------------------------------------------------------------- zero bytes --- */

static void place_add(struct text *to, const struct json_place *p)
{
    if (p->in)
        place_add(to, p->in);
    if (p->member)
        text_printf(to, "%s%s", to->len ? "." : "", p->member);
    else
        text_printf(to, "[%zu]", p->element);
}

/* Nests no deeper than JSON_PARSER_MAX_DEPTH. */
static bool zero_find(const json_t *v, const struct json_place *at,
                      bool (*may)(const struct json_place *), struct text *place)
{
    const char *key;
    const json_t *one;
    size_t i;
    bool found = at && json_is_string(v) &&
                 memchr(json_string_value(v), 0, json_string_length(v)) && !may(at);
    if (found)
        place_add(place, at);
    json_object_foreach((json_t *)v, key, one)
    {
        found = found || zero_find(one, &(struct json_place){at, key, 0}, may, place);
    }
    json_array_foreach(v, i, one)
    {
        found = found || zero_find(one, &(struct json_place){at, NULL, i}, may, place);
    }
    return found;
}

bool json_zero_find(const json_t *object, bool (*may)(const struct json_place *),
                    struct text *place)
{
    return zero_find(object, NULL, may, place);
}
