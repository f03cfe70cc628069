/*
 * json_members.c - the members of an object that a table has a row for: checked, and set.
 */
#include "text/json_members.h"
#include "text/json_values.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static bool is_of(const json_t *v, unsigned types)
{
    const double d = json_number_value(v);
    return (types & MEMBER_FLAG && json_is_boolean(v)) ||
           (types & MEMBER_TEXT && json_is_string(v)) ||
           (types & MEMBER_LIST && json_is_array(v)) ||
           (types & MEMBER_OBJECT && json_is_object(v)) ||
           (json_is_number(v) &&
            (types & MEMBER_NUMBER || (types & MEMBER_WHOLE && d == floor(d))));
}

/* "a text or a list" */
static void types_name(unsigned types, char *out, size_t room)
{
    static const struct {
        unsigned type;
        const char *name;
    } names[] = {{MEMBER_FLAG, "true or false"}, {MEMBER_WHOLE, "a whole number"},
                 {MEMBER_NUMBER, "a number"},    {MEMBER_TEXT, "a text"},
                 {MEMBER_LIST, "a list"},        {MEMBER_OBJECT, "an object"}};
    size_t n = 0;
    *out = 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (types & names[i].type && n < room)
            n += (size_t)snprintf(out + n, room - n, "%s%s", n ? " or " : "", names[i].name);
}

/* A value that asks for nothing. */
static bool is_off(const struct member *m, const json_t *v)
{
    const double d = json_number_value(v);
    const json_t *one;
    size_t i;
    bool all = true;
    if (m->strict)
        return false;
    json_array_foreach(v, i, one)
    {
        all = all && json_is_one(one, m->off_text);
    }
    if (json_is_number(v))
        return d == m->off || (m->off == 0 && d < 0);
    return json_is_boolean(v)  ? json_is_true(v) == m->off_true
           : json_is_string(v) ? !json_string_length(v) || json_is_one(v, m->off_text)
           : json_is_array(v)  ? all
                               : !json_object_size(v);
}

static oato_status range_check(const struct member *m, double d, int32_t width,
                               struct oato_error *err)
{
    const double most = m->most_width ? width : m->most;
    if (d >= m->least && d <= most)
        return OATO_OK;
    return m->types & MEMBER_WHOLE
               ? oato_fail(err, OATO_EUSAGE, "%s wants a whole number from %.0f to %.0f", m->name,
                           m->least, most)
               : oato_fail(err, OATO_EUSAGE, "%s wants a number from %.10g to %.10g", m->name,
                           m->least, most);
}

static oato_status member_check(const struct member *m, const json_t *v, int32_t width,
                                struct oato_error *err)
{
    char types[120];
    types_name(m->types, types, sizeof types);
    if (!is_of(v, m->types))
        return m->least < m->most && m->types & (MEMBER_WHOLE | MEMBER_NUMBER) && json_is_number(v)
                   ? range_check(m, NAN, width, err)
                   : oato_fail(err, OATO_EUSAGE, "%s wants %s", m->name, types);
    if (m->refused && !is_off(m, v))
        return oato_fail(err, OATO_EUSAGE, "%s is not supported here; %s", m->name, m->refused);
    return json_is_number(v) && m->least < m->most
               ? range_check(m, json_number_value(v), width, err)
               : OATO_OK;
}

static void member_set(const struct member *m, const json_t *v, void *to)
{
    to = (char *)to + m->at;
    if (m->types == MEMBER_FLAG)
        *(bool *)to = json_is_true(v);
    else if (m->types == MEMBER_WHOLE)
        *(int32_t *)to = (int32_t)json_number_value(v);
    else
        *(float *)to = (float)json_number_value(v);
}

oato_status json_members_read(const struct member *rows, const json_t *o, unsigned on,
                              int32_t width, void *to, struct oato_error *err)
{
    for (const struct member *m = rows; m->name; m++) {
        const json_t *v = m->on & on ? json_given(o, m->name) : NULL;
        if (v && member_check(m, v, width, err))
            return err->status;
        if (v && to && m->at)
            member_set(m, v, to);
    }
    return OATO_OK;
}
