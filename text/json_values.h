/*
 * json_values.h - JSON as values of jansson: what members of objects say, texts of models as
 * values, and values as text. base/ writes JSON without making values of it.
 */
#ifndef OATO_JSON_VALUES_H
#define OATO_JSON_VALUES_H

#include "base/base.h"

struct json_t;

/* Whether it is this text. */
bool json_is(const struct json_t *value, const char *text);
/* Whether it is one of these words, which have blanks between them; NULL: no. */
bool json_is_one(const struct json_t *value, const char *words);
/* A member that is there and not null; else NULL. */
const struct json_t *json_given(const struct json_t *o, const char *name);
/* Sets the n members that are there and not null. */
void members_copy(struct json_t *to, const struct json_t *from, const char *const *names, size_t n);
/* A whole number of a member within bounds; it keeps its value when the member is missing or null,
 * as a flag does. OATO_EUSAGE names the member. */
oato_status json_int(const struct json_t *o, const char *name, int64_t least, int64_t most,
                     int64_t *out, struct oato_error *err);
oato_status json_flag(const struct json_t *o, const char *name, bool *out, struct oato_error *err);

/* A text of a model as a value: what is no UTF-8 becomes the mark for that. */
struct json_t *text_value(const char *s, size_t n);
/* That of a text, which is freed. NULL: memory was short. */
struct json_t *json_text_take(struct text *t);
/* The value that a text, which is freed, is in JSON; NULL: it is none. */
struct json_t *json_value_take(struct text *t);
/* Appends a value, each number with as many digits as tell it; with blanks behind commas and
 * colons. NULL: memory is short, and the text has failed. */
void value_add(struct text *t, const struct json_t *value, bool blanks);
/* The same without blanks; the value is freed. */
void value_write(struct text *t, struct json_t *value);

/* Appends a member (key NULL: an element) that is a text: n bytes in base64 (RFC 4648). */
void json_add_base64(struct text *t, const char *key, const void *data, size_t n);

/* A list of text parts, {"type": "text", "text": ..}, as one text; NULL where one is no text, or
 * memory is short. */
struct json_t *parts_join(const struct json_t *parts, const char *between);
/* Leaves of an object in JSON, or of a list of them, the members that `fields` lists: "a" or "a/b".
 * NULL, or no list: all. */
void fields_pick(struct text *json, const struct json_t *fields);

/* Where in an object a value is: a member, or an element of a list. */
struct json_place {
    const struct json_place *in; /* NULL: the object itself */
    const char *member;          /* NULL: the element */
    size_t element;
};
/* Looks for a text with a zero byte where `may` says no: appends its place, "a.b[1]". */
bool json_zero_find(const struct json_t *object, bool (*may)(const struct json_place *),
                    struct text *place);

#endif
