/*
 * json_schema.c - JSON schemas as GBNF, in the keywords of draft 2020-12 and draft 7 that a grammar
 * can express. Each schema becomes a rule. References and allOf are resolved first, by merging
 * schemas into one.
 *
 * Where a grammar cannot tell all that a schema allows, it allows less, never more, with one
 * exception: oneOf is read as anyOf. So objects have their listed properties in the listed order,
 * others only where additionalProperties is given and not false or nothing is listed, and numbers
 * have up to 16 digits.
 */
#include "text/grammar.h"
#include "text/json_schema_internal.h"
#include "text/json_values.h"

#include <stdlib.h>
#include <string.h>

enum { RULES_MOST = 20000, RULE_STEPS = 100, KEYWORD_STEPS = 50 };

/* Of keywords that are not supported: values that generators write although they forbid nothing. */
static bool forbids_nothing(const char *key, const json_t *value)
{
    static const char *const of_schemas[] = {
        "propertyNames",         "patternProperties", "dependentRequired", "dependentSchemas",
        "unevaluatedProperties", "unevaluatedItems",  "dependencies",      NULL};
    const bool empty = json_is_true(value) || (json_is_object(value) && !json_object_size(value));
    const bool texts =
        json_object_size(value) == 1 && json_is(json_object_get(value, "type"), "string");
    return (empty && schema_is_any_of(key, of_schemas)) ||
           (texts && !strcmp(key, "propertyNames")) ||
           (!strcmp(key, "minProperties") && json_is_number(value) && !json_number_value(value)) ||
           (!strcmp(key, "uniqueItems") && json_is_false(value));
}

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
                                              "uniqueItems",
                                              NULL};
    const char *key;
    json_t *value;
    if (schema_spend(m, KEYWORD_STEPS * json_object_size(schema), 0))
        return m->err->status;
    json_object_foreach((json_t *)schema, key, value)
    {
        if (schema_is_any_of(key, unsupported) && !forbids_nothing(key, value))
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
    const unsigned allowed = schema_types(types);
    if (schema_spend(m, RULE_STEPS * (json_array_size(types) + n), 0))
        return m->err->status;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = values ? json_array_get(values, i) : one;
        struct text dump;
        bool equal = true;
        if (values && one && schema_equal(m, v, one, &equal))
            return m->err->status;
        if (!equal || (types && !(allowed & schema_type(type_of(v)))))
            continue;
        text_init(&dump);
        value_add(&dump, v, false);
        if (dump.failed) {
            text_free(&dump);
            return schema_fail_memory(m);
        }
        text_printf(e, "%s", join);
        gbnf_literal(e, dump.data, dump.len);
        text_free(&dump);
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
        return m->err->status;
    json_object_del(base, keyword);
    if (!json_is_array(branches) || !json_array_size(branches))
        return schema_fail(m, "wants an array with schemas", keyword);
    for (size_t i = 0; i < json_array_size(branches); i++) {
        const json_t *branch = json_array_get(branches, i);
        int rule = 0;
        if (schema_spend(m, KEYWORD_STEPS, 0))
            return m->err->status;
        if (!alone) {
            json_t *both = schema_copy(m, base);
            const json_t *flat;
            if (!both)
                return m->err->status;
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

oato_status schema_rule_add(struct schema_maker *m, int rule, const struct text *e)
{
    if (schema_spend(m, RULE_STEPS + e->len / 4, 2 * e->len))
        return m->err->status;
    text_printf(m->out, "r%d ::= ", rule);
    text_add(m->out, or_empty(e->data), e->len);
    text_add(m->out, "\n", 1);
    return OATO_OK;
}

static oato_status expression_of(struct schema_maker *m, const json_t *schema, struct text *e)
{
    const json_t *flat;
    if (json_object_get(schema, "$ref") && schema_only_remarks_but(schema, "$ref")) {
        int target = 0; /* may have a rule, or be making one */
        if (schema_resolve(m, json_object_get(schema, "$ref"), &flat) ||
            schema_make(m, flat, &target))
            return m->err->status;
        text_printf(e, "r%d", target);
        return OATO_OK;
    }
    return schema_flatten(m, schema, &flat) ? m->err->status : make_expression(m, flat, e);
}

/* The rule of a schema, which is made first if there is none. Recursion ends at
 * SCHEMA_DEPTH_MOST. */
oato_status schema_make(struct schema_maker *m, const json_t *schema, int *rule)
{
    struct text e;
    const struct schema_known *known = schema_know(m, SCHEMA_RULE, schema, NULL);
    if (known) {
        *rule = known->rule;
        return OATO_OK;
    }
    if (m->n_rules == RULES_MOST || ++m->depth > SCHEMA_DEPTH_MOST)
        return oato_fail(m->err, OATO_EUSAGE,
                         "JSON schema: more than %d schemas or %d of them nested", RULES_MOST,
                         SCHEMA_DEPTH_MOST);
    m->n_rules++;
    *rule = m->next_rule++;
    if (schema_spend(m, RULE_STEPS, 0) ||
        schema_learn(m, (struct schema_known){.a = schema, .fact = SCHEMA_RULE, .rule = *rule}))
        return m->err->status;
    text_init(&e);
    oato_status status = expression_of(m, schema, &e);
    if (!status)
        status = schema_rule_add(m, *rule, &e);
    text_free_part(&e, m->out);
    m->depth--;
    return status;
}

/* What jansson takes for values, members and items. What stands in strings is counted, too. */
static size_t parsed_bytes(const char *json, size_t n)
{
    size_t bytes = 2 * n;
    for (size_t i = 0; i < n; i++) {
        switch (json[i]) {
        case '{': bytes += 256; break;
        case ':': bytes += 192; break;
        case '[': bytes += 144; break;
        case ',': bytes += 72; break;
        default: break;
        }
    }
    return bytes;
}

/* Appends the rules of a schema, numbered from *next on, which is moved on, and tells its own. */
static oato_status rules_of(const json_t *root, struct budget *budget, int *next, int *rule,
                            struct text *out, struct oato_error *err)
{
    const size_t had = budget ? budget->bytes : 0, begin = out->len;
    struct schema_maker m = {.root = root,
                             .out = out,
                             .next_rule = *next,
                             .merged = json_array(),
                             .budget = budget,
                             .err = err};
    oato_status status = m.merged ? schema_make(&m, root, rule) : schema_fail_memory(&m);
    if (!status && out->failed)
        status = schema_fail_memory(&m);
    *next = m.next_rule;
    json_decref(m.merged);
    free(m.known);
    if (budget) /* what is left is the text */
        budget->bytes = had > out->len - begin ? had - (out->len - begin) : 0;
    return status;
}

/* The same of a text. */
static oato_status rules_make(const char *json, size_t n, struct budget *budget, int *next,
                              int *rule, struct text *out, struct oato_error *err)
{
    json_error_t why;
    const size_t bytes = parsed_bytes(json, n);
    if (budget_spend(budget, 2 * (uint64_t)n, bytes, "the JSON schema", err))
        return err->status;
    json_t *root = json_loadb(json, n, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &why);
    const char *zero = "a text with a zero byte (\\u0000) is not supported; leave it out";
    const oato_status status =
        root ? rules_of(root, budget, next, rule, out, err)
             : oato_fail(err, OATO_EUSAGE, "JSON schema line %d: %s", why.line,
                         json_error_code(&why) == json_error_null_character ? zero : why.text);
    json_decref(root);
    if (budget)
        budget->bytes += bytes;
    return status;
}

/* The grammar that begins with a rule. */
static void root_add(struct text *out, int rule)
{
    text_printf(out, "root ::= r%d\n%s", rule, gbnf_common);
}

oato_status grammar_schema_gbnf(const char *json, size_t n, struct budget *budget, struct text *out,
                                struct oato_error *err)
{
    int next = 0, rule = 0;
    const oato_status status = rules_make(json, n, budget, &next, &rule, out, err);
    if (!status)
        root_add(out, rule);
    return !status && out->failed ? oato_fail_memory(err, out->len, "a grammar") : status;
}

oato_status grammar_of_json(const struct json_t *schema, struct budget *budget,
                            struct grammar **out, struct oato_error *err)
{
    struct text gbnf;
    int next = 0, rule = 0;
    *out = NULL;
    text_init(&gbnf);
    oato_status status = rules_of(schema, budget, &next, &rule, &gbnf, err);
    if (!status)
        root_add(&gbnf, rule);
    if (!status)
        status = gbnf.failed ? oato_fail_memory(err, gbnf.len, "a grammar")
                             : grammar_parse(gbnf.data, gbnf.len, budget, out, err);
    text_free(&gbnf);
    return status;
}

oato_status grammar_of_pieces(const struct grammar_piece *pieces, size_t n, bool more,
                              struct budget *budget, struct grammar **out, struct oato_error *err)
{
    struct text gbnf, root;
    int next = 0;
    oato_status status = OATO_OK;
    *out = NULL;
    text_init(&gbnf);
    text_init(&root);
    for (size_t i = 0; i < n && !status; i++) {
        int rule = 0;
        status = rules_make(pieces[i].schema, strlen(pieces[i].schema), budget, &next, &rule, &gbnf,
                            err);
        if (status && !oato_failed_memory(err)) {
            const struct oato_error why = *err;
            oato_fail(err, status, "the parameters of %.80s: %.400s", pieces[i].name, why.text);
        }
        text_printf(&root, "%s", i ? " | " : "root ::= (");
        gbnf_literal(&root, pieces[i].before, strlen(pieces[i].before));
        text_printf(&root, " r%d ", rule);
        gbnf_literal(&root, pieces[i].after, strlen(pieces[i].after));
    }
    text_printf(&gbnf, "%s)%s\n%s", or_empty(root.data), more ? "+" : "", gbnf_common);
    text_free_part(&root, &gbnf);
    if (!status)
        status = gbnf.failed ? oato_fail_memory(err, gbnf.len, "a grammar")
                             : grammar_parse(gbnf.data, gbnf.len, budget, out, err);
    text_free(&gbnf);
    return status;
}

oato_status grammar_of_schema(const char *json, size_t n, struct budget *budget,
                              struct grammar **out, struct oato_error *err)
{
    struct text gbnf;
    *out = NULL;
    text_init(&gbnf);
    oato_status status = grammar_schema_gbnf(json, n, budget, &gbnf, err);
    if (!status)
        status = grammar_parse(gbnf.data, gbnf.len, budget, out, err);
    text_free(&gbnf);
    return status;
}
