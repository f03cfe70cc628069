/*
 * json_members.h - a table of the members that objects in JSON may have, and what is made of each.
 */
#ifndef OATO_JSON_MEMBERS_H
#define OATO_JSON_MEMBERS_H

#include "base/base.h"

struct json_t;

enum {
    MEMBER_FLAG = 1,
    MEMBER_WHOLE = 2,
    MEMBER_NUMBER = 4,
    MEMBER_TEXT = 8,
    MEMBER_LIST = 16,
    MEMBER_OBJECT = 32
};
/* It is used, or else idle or refused. */
struct member {
    const char *name;
    unsigned on;    /* kinds of objects that know it, a bit each */
    unsigned types; /* MEMBER_FLAG .. */
    size_t at;      /* in a struct, by its only type: bool, int32_t or float; 0: read elsewhere */
    double least, most;
    bool most_width;     /* most: `width` of json_members_read */
    bool idle;           /* changes nothing */
    const char *refused; /* would change it: what to do instead */
    /* Of a refused one, the values that ask for nothing besides false, "", [] and {}: a number (0
     * stands for all below it, too), words, true; strict: no value does */
    double off;
    const char *off_text;
    bool off_true, strict;
};
/* Checks the members of an object of one kind, and sets those that have a place in *to (NULL:
 * nowhere); null passes as what is missing does, and so does what has no row. The last row has no
 * name. OATO_EUSAGE names the member. */
oato_status json_members_read(const struct member *rows, const struct json_t *o, unsigned on,
                              int32_t width, void *to, struct oato_error *err);

#endif
