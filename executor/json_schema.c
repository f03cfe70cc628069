/*
 * json_schema.c - JSON schemas as GBNF, in the keywords of draft 2020-12 and draft 7 that a grammar
 * can express. Each schema becomes a rule. References and allOf are resolved first, by merging
 * schemas into one.
 *
 * Where a grammar cannot tell all that a schema allows, it allows less, never more, with one
 * exception: oneOf is read as anyOf. So objects have their listed properties in the listed order,
 * others only where additionalProperties is given and not false, and numbers have up to 16 digits.
 */
#include "executor/grammar.h"
#include "executor/json_schema_internal.h"

#include <stdlib.h>
#include <string.h>

enum { RULES_MOST = 20000 };

static oato_status check_keywords(struct schema_maker *m, const json_t *schema)
{
    static const char *const unsupported[] = {"not",
                                              "if",
                                              "then",
                                              "else",
                                              "contains",
                                              "minContains",
                                              "maxContains",
                                              "patternProperties",
                                              "multipleOf",
                                              "propertyNames",
                                              "minProperties",
                                              "dependentRequired",
                                              "maxProperties",
                                              "dependentSchemas",
                                              "dependencies",
                                              "unevaluatedProperties",
                                              "$dynamicRef",
                                              "$recursiveRef",
                                              "unevaluatedItems",
                                              NULL};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)schema, key, value)
    {
        if (schema_is_any_of(key, unsupported) ||
            (!strcmp(key, "uniqueItems") && !json_is_false(value)))
            return schema_fail(m, "is not supported", key);
    }
    return OATO_OK;
}

/* --------------------------------------------------------------------------------- a schema -- */

/* The type whose keywords a schema without `type` has; NULL: none. */
static const char *implied_type(const json_t *schema)
{
    static const struct {
        const char *keyword, *type;
    } rows[] = {{"properties", "object"},
                {"required", "object"},
                {"additionalProperties", "object"},
                {"items", "array"},
                {"prefixItems", "array"},
                {"minItems", "array"},
                {"maxItems", "array"},
                {"pattern", "string"},
                {"format", "string"},
                {"minLength", "string"},
                {"maxLength", "string"},
                {"minimum", "number"},
                {"maximum", "number"},
                {"exclusiveMinimum", "number"},
                {"exclusiveMaximum", "number"}};
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        if (json_object_get(schema, rows[i].keyword))
            return rows[i].type;
    return NULL;
}

static const char *type_of(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "object",   [JSON_ARRAY] = "array", [JSON_STRING] = "string",
        [JSON_INTEGER] = "integer", [JSON_REAL] = "number", [JSON_TRUE] = "boolean",
        [JSON_FALSE] = "boolean",   [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

static oato_status make_values(struct schema_maker *m, const json_t *schema, struct text *e)
{
    const json_t *one = json_object_get(schema, "const"), *types = json_object_get(schema, "type");
    json_t *values = json_object_get(schema, "enum"), *value;
    const char *key;
    const char *join = "";
    json_object_foreach((json_t *)schema, key, value)
    {
        static const char *const fine[] = {"type", "enum", "const", NULL};
        if (!schema_is_any_of(key, fine) && !schema_is_remark(key))
            return schema_fail(m, "beside enum or const is not supported", key);
    }
    if (values && !json_is_array(values))
        return schema_fail(m, "wants an array", "enum");
    const size_t n = values ? json_array_size(values) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = values ? json_array_get(values, i) : one;
        if ((values && one && !json_equal(v, one)) ||
            (types && !schema_has_type(types, type_of(v))))
            continue;
        char *dump = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
        if (!dump)
            return schema_fail_memory(m);
        text_printf(e, "%s", join);
        gbnf_literal(e, dump, strlen(dump));
        free(dump);
        join = " | ";
    }
    return *join ? OATO_OK
                 : schema_fail(m, "has no value that the rest allows", values ? "enum" : "const");
}

/* anyOf: each branch together with what stands beside it. */
static oato_status make_branches(struct schema_maker *m, const json_t *schema, const char *keyword,
                                 struct text *e)
{
    const json_t *branches = json_object_get(schema, keyword);
    const bool alone = schema_only_remarks_but(schema, keyword);
    json_t *base = schema_copy(m, schema);
    if (!base)
        return schema_fail_memory(m);
    json_object_del(base, keyword);
    if (!json_is_array(branches) || !json_array_size(branches))
        return schema_fail(m, "wants an array with schemas", keyword);
    for (size_t i = 0; i < json_array_size(branches); i++) {
        const json_t *branch = json_array_get(branches, i);
        int rule;
        if (!alone) {
            json_t *both = schema_copy(m, base);
            const json_t *flat;
            if (!both)
                return schema_fail_memory(m);
            if (schema_flatten(m, branch, &flat) || schema_merge(m, both, flat))
                return m->err->status;
            branch = both;
        }
        if (schema_make(m, branch, &rule))
            return m->err->status;
        text_printf(e, "%sr%d", i ? " | " : "", rule);
    }
    return OATO_OK;
}

static oato_status make_expression(struct schema_maker *m, const json_t *schema, struct text *e)
{
    const json_t *type = json_object_get(schema, "type");
    const char *implied = implied_type(schema);
    if (json_is_true(schema)) {
        text_printf(e, "value");
        return OATO_OK;
    }
    if (!json_is_object(schema))
        return schema_fail(m, "allows nothing, or is no schema",
                           json_is_false(schema) ? "false" : "schema");
    if (check_keywords(m, schema))
        return m->err->status;
    if (json_object_get(schema, "anyOf"))
        return make_branches(m, schema, "anyOf", e);
    if (json_object_get(schema, "oneOf"))
        return make_branches(m, schema, "oneOf", e);
    if (json_object_get(schema, "enum") || json_object_get(schema, "const"))
        return make_values(m, schema, e);
    if (!type && !implied) {
        text_printf(e, "value");
        return OATO_OK;
    }
    if (!type || json_is_string(type))
        return schema_make_type(m, schema, type ? json_string_value(type) : implied, e);
    if (!json_is_array(type) || !json_array_size(type))
        return schema_fail(m, "wants a name or an array of names", "type");
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *name = json_string_value(json_array_get(type, i));
        text_printf(e, i ? " | " : "");
        if (!name)
            return schema_fail(m, "wants a name or an array of names", "type");
        if (schema_make_type(m, schema, name, e))
            return m->err->status;
    }
    return OATO_OK;
}

/* The rule of a schema, which is made first if there is none. */
oato_status schema_make(struct schema_maker *m, const json_t *schema, int *rule)
{
    const json_t *flat;
    struct text e;
    for (int i = 0; i < m->n_rules; i++) {
        if (m->rules[i].schema == schema) {
            *rule = m->rules[i].rule;
            return OATO_OK;
        }
    }
    if (m->n_rules == RULES_MOST || ++m->depth > SCHEMA_DEPTH_MOST)
        return oato_fail(m->err, OATO_EUSAGE,
                         "JSON schema: more than %d schemas or %d of them nested", RULES_MOST,
                         SCHEMA_DEPTH_MOST);
    if (m->n_rules == m->cap_rules) {
        const int cap = m->cap_rules ? 2 * m->cap_rules : 64;
        void *grown = realloc(m->rules, (size_t)cap * sizeof *m->rules);
        if (!grown)
            return schema_fail_memory(m);
        m->rules = grown;
        m->cap_rules = cap;
    }
    *rule = m->next_rule++;
    m->rules[m->n_rules++] = (struct schema_rule){schema, *rule};
    text_init(&e);
    oato_status status;
    if (json_object_get(schema, "$ref") && schema_only_remarks_but(schema, "$ref")) {
        int target = 0; /* may have a rule, or be making one */
        status = schema_resolve(m, json_object_get(schema, "$ref"), &flat);
        if (!status)
            status = schema_make(m, flat, &target);
        text_printf(&e, "r%d", target);
    } else {
        status = schema_flatten(m, schema, &flat);
        if (!status)
            status = make_expression(m, flat, &e);
    }
    if (!status)
        text_printf(m->out, "r%d ::= %s\n", *rule, or_empty(e.data));
    text_free_part(&e, m->out);
    m->depth--;
    return status;
}

/* Appends the rules of a schema, numbered from *next on, which is moved on, and tells its own. */
static oato_status rules_make(const char *json, size_t n, int *next, int *rule, struct text *out,
                              struct oato_error *err)
{
    json_error_t why;
    json_t *root = json_loadb(json, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    struct schema_maker m = {
        .root = root, .out = out, .next_rule = *next, .merged = json_array(), .err = err};
    oato_status status = OATO_OK;
    if (!root)
        status = oato_fail(err, OATO_EUSAGE, "JSON schema line %d: %s", why.line,
                           json_error_code(&why) == json_error_null_character
                               ? "a text with a zero byte (\\u0000) is not supported; leave it out"
                               : why.text);
    else if (!m.merged)
        status = schema_fail_memory(&m);
    else
        status = schema_make(&m, root, rule);
    if (!status && out->failed)
        status = schema_fail_memory(&m);
    *next = m.next_rule;
    json_decref(m.merged);
    json_decref(root);
    free(m.rules);
    return status;
}

oato_status grammar_schema_gbnf(const char *json, size_t n, struct text *out,
                                struct oato_error *err)
{
    int next = 0, rule = 0;
    const oato_status status = rules_make(json, n, &next, &rule, out, err);
    if (!status)
        text_printf(out, "root ::= r%d\n%s", rule, gbnf_common);
    return !status && out->failed ? oato_fail_memory(err, out->len, "a grammar") : status;
}

oato_status grammar_of_pieces(const struct grammar_piece *pieces, size_t n, bool more,
                              struct grammar **out, struct oato_error *err)
{
    struct text gbnf, root;
    int next = 0;
    oato_status status = OATO_OK;
    *out = NULL;
    text_init(&gbnf);
    text_init(&root);
    for (size_t i = 0; i < n && !status; i++) {
        int rule = 0;
        status = rules_make(pieces[i].schema, strlen(pieces[i].schema), &next, &rule, &gbnf, err);
        text_printf(&root, "%s", i ? " | " : "root ::= (");
        gbnf_literal(&root, pieces[i].before, strlen(pieces[i].before));
        text_printf(&root, " r%d ", rule);
        gbnf_literal(&root, pieces[i].after, strlen(pieces[i].after));
    }
    text_printf(&gbnf, "%s)%s\n%s", or_empty(root.data), more ? "+" : "", gbnf_common);
    text_free_part(&root, &gbnf);
    if (!status)
        status = gbnf.failed ? oato_fail_memory(err, gbnf.len, "a grammar")
                             : grammar_parse(gbnf.data, gbnf.len, out, err);
    text_free(&gbnf);
    return status;
}

oato_status grammar_of_schema(const char *json, size_t n, struct grammar **out,
                              struct oato_error *err)
{
    struct text gbnf;
    *out = NULL;
    text_init(&gbnf);
    oato_status status = grammar_schema_gbnf(json, n, &gbnf, err);
    if (!status)
        status = grammar_parse(gbnf.data, gbnf.len, out, err);
    text_free(&gbnf);
    return status;
}
