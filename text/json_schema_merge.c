/*
 * json_schema_merge.c - references of JSON schemas, and schemas that must hold together as one.
 */
#include "text/json_schema_internal.h"

#include <stdlib.h>
#include <string.h>

enum { KEYWORD_STEPS = 40, MEMBER_STEPS = 10, MEMBER_BYTES = 128, NEW_BYTES = 320 };

oato_status schema_fail(struct schema_maker *m, const char *what, const char *keyword)
{
    return oato_fail(m->err, OATO_EUSAGE, "JSON schema: '%.100s' %s", keyword, what);
}

oato_status schema_fail_memory(struct schema_maker *m)
{
    return oato_fail_memory(m->err, 1 << 16, "a JSON schema");
}

bool schema_is_any_of(const char *s, const char *const *list)
{
    while (*list && strcmp(*list, s) != 0)
        list++;
    return *list;
}

/* Words of the object that are about its values, not remarks about itself. */
bool schema_is_remark(const char *key)
{
    static const char *const remarks[] = {
        "$schema", "$id",       "$comment",    "$defs",           "definitions",      "title",
        "$anchor", "default",   "examples",    "description",     "deprecated",       "readOnly",
        "example", "writeOnly", "$vocabulary", "contentEncoding", "contentMediaType", "format",
        NULL};
    return schema_is_any_of(key, remarks);
}

static bool pointer_part(const char **at, char *out, size_t room)
{
    size_t n = 0;
    for (++*at; **at && **at != '/'; ++*at) {
        char c = **at;
        char hex[3] = {(*at)[1], (*at)[1] ? (*at)[2] : 0, 0}, *end;
        if (c == '%') {
            c = (char)strtoul(hex, &end, 16);
            if (end != hex + 2)
                return false;
            *at += 2;
        } else if (c == '~') {
            c = hex[0] == '0' ? '~' : hex[0] == '1' ? '/' : 0;
            ++*at;
        }
        if (!c || n + 1 == room)
            return false;
        out[n++] = c;
    }
    out[n] = 0;
    return true;
}

oato_status schema_resolve(struct schema_maker *m, const json_t *ref, const json_t **out)
{
    const char *text = json_string_value(ref), *at = text;
    char part[256];
    *out = m->root;
    if (!text)
        return schema_fail(m, "wants a string", "$ref");
    if (schema_spend(m, json_string_length(ref), 0))
        return m->err->status;
    if (*at != '#' || (at[1] && at[1] != '/'))
        return oato_fail(m->err, OATO_EUSAGE,
                         "JSON schema: '$ref' to '%.100s': only references within the document, "
                         "such as #/$defs/NAME, are supported",
                         text);
    for (at++; *at && *out;) {
        if (!pointer_part(&at, part, sizeof part))
            *out = NULL;
        else if (json_is_array(*out))
            *out = json_array_get(*out, strtoul(part, NULL, 10));
        else
            *out = json_object_get(*out, part);
    }
    return *out ? OATO_OK
                : oato_fail(m->err, OATO_EUSAGE,
                            "JSON schema: '$ref' to '%.100s': there is nothing", text);
}

static size_t size_of(const json_t *x)
{
    return json_is_array(x) ? json_array_size(x) : json_object_size(x);
}

/* m keeps what was made; NULL, and the error is set: memory is short. */
static json_t *keep(struct schema_maker *m, json_t *made)
{
    if (made && !json_array_append_new(m->merged, made))
        return made;
    schema_fail_memory(m);
    return NULL;
}

json_t *schema_copy(struct schema_maker *m, const json_t *of)
{
    const size_t n = size_of(of);
    if (schema_spend(m, MEMBER_STEPS * (n + 2), NEW_BYTES + n * MEMBER_BYTES))
        return NULL;
    return keep(m, of ? json_copy((json_t *)of) : json_object());
}

json_t *schema_set_of(struct schema_maker *m, const json_t *names)
{
    const size_t n = json_array_size(names);
    json_t *set = schema_copy(m, NULL), *name;
    size_t i;
    if (!set || schema_spend(m, MEMBER_STEPS * n, MEMBER_BYTES * n))
        return NULL;
    json_array_foreach((json_t *)names, i, name)
    {
        if (json_is_string(name) &&
            json_object_set_new(set, json_string_value(name), json_true())) {
            schema_fail_memory(m);
            return NULL;
        }
    }
    return set;
}

/* The schema that wants both, which is always the same one. What wants several is made longer, not
 * nested. */
static json_t *both_of(struct schema_maker *m, json_t *mine, json_t *value)
{
    const struct schema_known *known = schema_know(m, SCHEMA_BOTH, mine, value);
    if (known)
        return (json_t *)known->schema;
    const bool several = schema_know(m, SCHEMA_OURS, mine, NULL);
    json_t *both = schema_copy(m, NULL);
    json_t *parts = both ? schema_copy(m, several ? json_object_get(mine, "allOf") : NULL) : NULL;
    if (parts && !several) /* an empty object so far */
        parts = keep(m, json_array());
    if (!parts)
        return NULL;
    if ((!several && json_array_append(parts, mine)) || json_array_append(parts, value) ||
        json_object_set(both, "allOf", parts)) {
        schema_fail_memory(m);
        return NULL;
    }
    const oato_status status =
        schema_learn(m, (struct schema_known){.a = both, .fact = SCHEMA_OURS})
            ? m->err->status
            : schema_learn(m, (struct schema_known){
                                  .a = mine, .b = value, .fact = SCHEMA_BOTH, .schema = both});
    return status ? NULL : both;
}

static oato_status merge_properties(struct schema_maker *m, json_t *into, const char *key,
                                    const json_t *theirs)
{
    json_t *all = schema_copy(m, json_object_get(into, key)), *value;
    const char *name;
    if (!all || schema_spend(m, MEMBER_STEPS * json_object_size(theirs),
                             MEMBER_BYTES * json_object_size(theirs)))
        return m->err->status;
    if (json_object_set(into, key, all))
        return schema_fail_memory(m);
    json_object_foreach((json_t *)theirs, name, value)
    {
        json_t *mine = json_object_get(all, name);
        bool equal = true;
        if (mine && schema_equal(m, mine, value, &equal))
            return m->err->status;
        json_t *both = equal ? value : both_of(m, mine, value);
        if (!both)
            return m->err->status;
        if (json_object_set(all, name, both))
            return schema_fail_memory(m);
    }
    return OATO_OK;
}

static oato_status merge_required(struct schema_maker *m, json_t *into, const json_t *theirs)
{
    json_t *all = schema_copy(m, json_object_get(into, "required")), *name;
    json_t *set = all ? schema_set_of(m, all) : NULL;
    size_t i;
    if (!set || schema_spend(m, MEMBER_STEPS * json_array_size(theirs),
                             MEMBER_BYTES * json_array_size(theirs)))
        return m->err->status;
    if (json_object_set(into, "required", all))
        return schema_fail_memory(m);
    json_array_foreach((json_t *)theirs, i, name)
    {
        const char *s = json_string_value(name);
        if (s && json_object_get(set, s))
            continue;
        if (json_array_append(all, name) || (s && json_object_set_new(set, s, json_true())))
            return schema_fail_memory(m);
    }
    return OATO_OK;
}

const char *const schema_type_names[] = {"null",   "boolean", "integer", "number",
                                         "string", "array",   "object",  NULL};

unsigned schema_type(const char *name)
{
    for (unsigned t = 0; name && schema_type_names[t]; t++)
        if (!strcmp(schema_type_names[t], name))
            return 1u << t;
    return 0;
}

unsigned schema_types(const json_t *types)
{
    const unsigned number = schema_type("number"), integer = schema_type("integer");
    unsigned set = schema_type(json_string_value(types));
    for (size_t i = 0; i < json_array_size(types); i++)
        set |= schema_type(json_string_value(json_array_get(types, i)));
    return set & number ? set | integer : set;
}

static oato_status merge_types(struct schema_maker *m, json_t *into, const json_t *theirs)
{
    const json_t *mine = json_object_get(into, "type");
    const unsigned number = schema_type("number"), integer = schema_type("integer");
    unsigned set = schema_types(mine) & schema_types(theirs);
    json_t *both = json_array();
    if (set & number) /* says more than integer */
        set &= ~integer;
    for (unsigned t = 0; both && schema_type_names[t]; t++)
        if (set >> t & 1 && json_array_append_new(both, json_string(schema_type_names[t])))
            return schema_fail_memory(m);
    if (!both || json_object_set_new(into, "type", both))
        return schema_fail_memory(m);
    return set ? OATO_OK : schema_fail(m, "leaves no type that all parts allow", "allOf");
}

/* `other` lists properties that `closed`, which does not allow just any others, does not list. */
static bool closes_out(const json_t *closed, const json_t *other)
{
    const char *name;
    json_t *value;
    const json_t *others = json_object_get(closed, "additionalProperties");
    if (!others || json_is_true(others))
        return false;
    json_object_foreach(json_object_get(other, "properties"), name, value)
    {
        if (!json_object_get(json_object_get(closed, "properties"), name))
            return true;
    }
    return false;
}

static oato_status merge_value(struct schema_maker *m, json_t *into, const char *key, json_t *value)
{
    bool equal = true;
    static const char *const larger[] = {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                         NULL};
    static const char *const smaller[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                          NULL};
    json_t *mine = json_object_get(into, key);
    if (schema_spend(m, KEYWORD_STEPS, 0) ||
        (mine && !schema_is_remark(key) && schema_equal(m, mine, value, &equal)))
        return m->err->status;
    if (!mine || schema_is_remark(key) || equal)
        return json_object_set(into, key, value) ? schema_fail_memory(m) : OATO_OK;
    if (!strcmp(key, "properties"))
        return merge_properties(m, into, key, value);
    if (!strcmp(key, "required"))
        return merge_required(m, into, value);
    if (!strcmp(key, "type"))
        return merge_types(m, into, value);
    if (schema_is_any_of(key, larger) || schema_is_any_of(key, smaller)) {
        const bool take = schema_is_any_of(key, larger)
                              ? json_number_value(value) > json_number_value(mine)
                              : json_number_value(value) < json_number_value(mine);
        return take && json_object_set(into, key, value) ? schema_fail_memory(m) : OATO_OK;
    }
    return schema_fail(m, "differs between parts that must hold together, which is not supported",
                       key);
}

/* Both must hold; `part` is flat. */
oato_status schema_merge(struct schema_maker *m, json_t *into, const json_t *part)
{
    const char *key;
    json_t *value;
    const size_t properties = json_object_size(json_object_get(into, "properties")) +
                              json_object_size(json_object_get(part, "properties"));
    if (json_is_true(part))
        return OATO_OK;
    if (!json_is_object(part))
        return schema_fail(m, "has a part that allows nothing", "allOf");
    if (schema_spend(m, MEMBER_STEPS * properties, 0))
        return m->err->status;
    if (closes_out(into, part) || closes_out(part, into))
        return schema_fail(m, "forbids properties of another part, which is not supported",
                           "additionalProperties");
    json_object_foreach((json_t *)part, key, value)
    {
        if (merge_value(m, into, key, value))
            return m->err->status;
    }
    return OATO_OK;
}

bool schema_only_remarks_but(const json_t *schema, const char *keyword)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value)
    {
        if (strcmp(key, keyword) != 0 && !schema_is_remark(key))
            return false;
    }
    return true;
}

/* Without those two, of which it has at least one. */
static oato_status flatten(struct schema_maker *m, const json_t *schema, const json_t **out)
{
    const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    const json_t *part;
    if (ref && schema_only_remarks_but(schema, "$ref"))
        return schema_resolve(m, ref, &part) ? m->err->status : schema_flatten(m, part, out);
    json_t *into = schema_copy(m, schema);
    if (!into)
        return m->err->status;
    json_object_del(into, "$ref");
    json_object_del(into, "allOf");
    if (ref && (schema_resolve(m, ref, &part) || schema_flatten(m, part, &part) ||
                schema_merge(m, into, part)))
        return m->err->status;
    if (all && !json_is_array(all))
        return schema_fail(m, "wants an array", "allOf");
    for (size_t i = 0; i < json_array_size(all); i++)
        if (schema_flatten(m, json_array_get(all, i), &part) || schema_merge(m, into, part))
            return m->err->status;
    *out = into;
    return OATO_OK;
}

/* Recursion ends at SCHEMA_DEPTH_MOST, and what is known is not asked again. */
oato_status schema_flatten(struct schema_maker *m, const json_t *schema, const json_t **out)
{
    const json_t *ref = json_object_get(schema, "$ref");
    const struct schema_known *known = schema_know(m, SCHEMA_FLAT, schema, NULL);
    *out = known ? known->schema : schema;
    if (known || (!ref && !json_object_get(schema, "allOf")))
        return OATO_OK;
    if (++m->depth > SCHEMA_DEPTH_MOST)
        return schema_fail(m, "leads back to itself or too deep", ref ? "$ref" : "allOf");
    if (flatten(m, schema, out))
        return m->err->status;
    m->depth--;
    return schema_learn(m, (struct schema_known){.a = schema, .fact = SCHEMA_FLAT, .schema = *out});
}
