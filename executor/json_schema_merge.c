/*
 * json_schema_merge.c - references of JSON schemas, and schemas that must hold together as one.
 */
#include "executor/json_schema_internal.h"

#include <stdlib.h>
#include <string.h>

oato_status schema_fail(struct schema_maker *m, const char *what, const char *keyword)
{
    return oato_fail(m->err, OATO_EUSAGE, "JSON schema: '%s' %s", keyword, what);
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
        "example", "writeOnly", "$vocabulary", "contentEncoding", "contentMediaType", NULL};
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

/* A new object that m keeps: a copy of one, with the same values; NULL: memory is short. */
json_t *schema_copy(struct schema_maker *m, const json_t *of)
{
    json_t *new = of ? json_copy((json_t *)of) : json_object();
    return new && !json_array_append_new(m->merged, new) ? new : NULL;
}

static oato_status merge_properties(struct schema_maker *m, json_t *into, const char *key,
                                    const json_t *theirs)
{
    json_t *all = schema_copy(m, json_object_get(into, key)), *value;
    const char *name;
    if (!all || json_object_set(into, key, all))
        return schema_fail_memory(m);
    json_object_foreach((json_t *)theirs, name, value)
    {
        json_t *mine = json_object_get(all, name);
        json_t *both = mine && !json_equal(mine, value)
                           ? json_pack("{s:[O,O]}", "allOf", mine, value)
                           : json_incref(value);
        if (!both || json_object_set_new(all, name, both))
            return schema_fail_memory(m);
    }
    return OATO_OK;
}

static oato_status merge_required(struct schema_maker *m, json_t *into, const json_t *theirs)
{
    json_t *all = schema_copy(m, json_object_get(into, "required")), *name;
    size_t i;
    if (!all || json_object_set(into, "required", all))
        return schema_fail_memory(m);
    json_array_foreach((json_t *)theirs, i, name)
    {
        if (json_array_append(all, name))
            return schema_fail_memory(m);
    }
    return OATO_OK;
}

bool schema_has_type(const json_t *types, const char *name)
{
    size_t i;
    json_t *one;
    if (json_is_string(types))
        return !strcmp(json_string_value(types), name) ||
               (!strcmp(json_string_value(types), "number") && !strcmp(name, "integer"));
    json_array_foreach((json_t *)types, i, one)
    {
        if (schema_has_type(one, name))
            return true;
    }
    return false;
}

static const char *const type_names[] = {"null",   "boolean", "integer", "number",
                                         "string", "array",   "object",  NULL};

static oato_status merge_types(struct schema_maker *m, json_t *into, const json_t *theirs)
{
    const json_t *mine = json_object_get(into, "type");
    json_t *both = json_array();
    for (const char *const *t = type_names; both && *t; t++) {
        const bool number = !strcmp(*t, "integer") && schema_has_type(mine, "number") &&
                            schema_has_type(theirs, "number"); /* says more than integer */
        if (!number && schema_has_type(mine, *t) && schema_has_type(theirs, *t) &&
            json_array_append_new(both, json_string(*t)))
            return schema_fail_memory(m);
    }
    const bool none = !json_array_size(both);
    if (!both || json_object_set_new(into, "type", both))
        return schema_fail_memory(m);
    return none ? schema_fail(m, "leaves no type that all parts allow", "allOf") : OATO_OK;
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
    static const char *const larger[] = {"minimum", "exclusiveMinimum", "minLength", "minItems",
                                         NULL};
    static const char *const smaller[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems",
                                          NULL};
    json_t *mine = json_object_get(into, key);
    if (!mine || schema_is_remark(key) || json_equal(mine, value))
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
    if (json_is_true(part))
        return OATO_OK;
    if (!json_is_object(part))
        return schema_fail(m, "has a part that allows nothing", "allOf");
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

/* The schema without $ref and allOf: itself, or one that m keeps. */
oato_status schema_flatten(struct schema_maker *m, const json_t *schema, const json_t **out)
{
    const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf");
    const json_t *part;
    *out = schema;
    if (!ref && !all)
        return OATO_OK;
    if (++m->depth > SCHEMA_DEPTH_MOST)
        return schema_fail(m, "leads back to itself or too deep", ref ? "$ref" : "allOf");
    if (ref && schema_only_remarks_but(schema, "$ref")) {
        if (schema_resolve(m, ref, &part) || schema_flatten(m, part, out))
            return m->err->status;
        m->depth--;
        return OATO_OK;
    }
    json_t *into = schema_copy(m, schema);
    if (!into)
        return schema_fail_memory(m);
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
    m->depth--;
    return OATO_OK;
}
