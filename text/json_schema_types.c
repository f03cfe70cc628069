/*
 * json_schema_types.c - what the keywords of each type allow, as GBNF.
 */
#include "text/json_schema_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BRANCH_STEPS = 30, NAME_STEPS = 10, NAME_BYTES_STEP = 32, MEMBER_BYTES = 256 };

/* A count of at least 0; `missing` where the keyword is not there. */
static oato_status take_count(struct schema_maker *m, const json_t *schema, const char *key,
                              int64_t missing, int64_t *out)
{
    const json_t *v = json_object_get(schema, key);
    const double x = json_number_value(v);
    *out = missing;
    if (!v)
        return OATO_OK;
    if (!json_is_number(v) || x < 0 || x > 1e9 || x != floor(x))
        return schema_fail(m, "wants a whole number from 0 to 1000000000", key);
    *out = (int64_t)x;
    return OATO_OK;
}

/* ----------------------------------------------------------------------------------- objects */

static void key_literal(struct text *out, const char *name)
{
    struct text json;
    text_init(&json);
    text_add(&json, "\"", 1);
    text_add_json(&json, name, strlen(name));
    text_add(&json, "\"", 1);
    gbnf_literal(out, or_empty(json.data), json.len);
    text_free_part(&json, out);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Sorted names that share their first `depth` bytes, and the rule that is to be made for them. */
struct branch {
    size_t begin, end, depth;
    int rule;
};
struct branches {
    struct branch *branch;
    size_t n, cap;
};

static oato_status branch_add(struct schema_maker *m, struct branches *b, struct branch x)
{
    if (b->n == b->cap) {
        const size_t cap = b->cap ? 2 * b->cap : 64;
        if (schema_spend(m, 0, (cap - b->cap) * sizeof *b->branch))
            return m->err->status;
        struct branch *grown = realloc(b->branch, cap * sizeof *grown);
        if (!grown)
            return schema_fail_memory(m);
        b->branch = grown;
        b->cap = cap;
    }
    b->branch[b->n++] = x;
    return OATO_OK;
}

/* The rule of one branch; further ones are added for what begins with each character. Characters
 * are compared whole; a key without escapes has one spelling only. */
static oato_status branch_make(struct schema_maker *m, const char *const *names, struct branches *b,
                               struct branch x)
{
    struct text e, first;
    bool ends = false;
    oato_status status = schema_spend(m, BRANCH_STEPS + NAME_STEPS * (x.end - x.begin), 0);
    text_init(&e);
    text_init(&first);
    for (size_t i = x.begin; i < x.end && !status;) {
        /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): names_of filled it */
        const char *c = names[i] + x.depth;
        size_t same = i + 1;
        if (!*c) {
            ends = true;
            i++;
            continue;
        }
        const int bytes = utf8_char(c, strnlen(c, 4));
        while (same < x.end && !strncmp(names[same] + x.depth, c, (size_t)bytes))
            same++;
        if ((unsigned char)*c >= 0x20 && *c != '"' && *c != '\\' && *c != 0x7f) {
            const int rule = m->next_rule++;
            text_printf(&first, "%s%.*s", strchr("^-]", *c) ? "\\" : "", bytes, c);
            gbnf_literal(&e, c, (size_t)bytes);
            text_printf(&e, " r%d | ", rule);
            status = branch_add(m, b, (struct branch){i, same, x.depth + (size_t)bytes, rule});
        }
        i = same;
    }
    text_printf(&e, "[^\"\\\\\\x00-\\x1F\\x7F%s] plain*%s", or_empty(first.data),
                ends ? "" : " | \"\"");
    text_free_part(&first, &e);
    if (!status)
        status = schema_rule_add(m, x.rule, &e);
    text_free_part(&e, m->out);
    return status;
}

/* A rule for the insides of keys that are none of n sorted names. */
static oato_status other_keys(struct schema_maker *m, const char *const *names, size_t n, int *rule)
{
    struct branches b = {0};
    *rule = m->next_rule++;
    oato_status status = branch_add(m, &b, (struct branch){0, n, 0, *rule});
    while (b.n && !status)
        status = branch_make(m, names, &b, b.branch[--b.n]);
    free(b.branch);
    return status;
}

/* The names of an object's members, in their order; NULL, and the error is set: memory is short, or
 * the budget spent. */
static const char **names_of(struct schema_maker *m, const json_t *object)
{
    const size_t n = json_object_size(object);
    const char **names, *name;
    json_t *value;
    size_t i = 0;
    if (schema_spend(m, NAME_STEPS * n, n * sizeof *names))
        return NULL;
    names = malloc((n + 1) * sizeof *names);
    if (!names) {
        schema_fail_memory(m);
        return NULL;
    }
    json_object_foreach((json_t *)object, name, value)
    {
        names[i++] = name;
    }
    return names;
}

/* Sorting compares each name about log2(n) times, at most to its end. */
static oato_status names_sort(struct schema_maker *m, const json_t *object, const char **names)
{
    const size_t n = json_object_size(object);
    uint64_t bytes = 0, rounds = 1;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        bytes += NAME_BYTES_STEP + strlen(name);
    }
    while (n >> rounds)
        rounds++;
    if (schema_spend(m, rounds * bytes / NAME_BYTES_STEP, 0))
        return m->err->status;
    qsort(names, n, sizeof *names, by_name);
    return OATO_OK;
}

/* A rule for a member with another key than those of `properties`. */
static oato_status other_member(struct schema_maker *m, const json_t *properties,
                                const json_t *schema, int *rule)
{
    const size_t n = json_object_size(properties);
    const char **names = names_of(m, properties);
    int values = 0, keys = 0;
    if (!names)
        return m->err->status;
    oato_status status = names_sort(m, properties, names);
    if (!status)
        status = schema_make(m, schema, &values);
    if (!status)
        status = other_keys(m, names, n, &keys);
    if (!status) {
        *rule = m->next_rule++;
        text_printf(m->out, "r%d ::= \"\\\"\" r%d \"\\\":\" ws r%d\n", *rule, keys, values);
    }
    free(names);
    return status;
}

/* A rule for the members from the i-th property on, for an object that has some before (`some`) or
 * none; after[0] and after[1] are those of what follows without and with some. */
static oato_status member(struct schema_maker *m, const char *name, const json_t *schema,
                          bool required, int after[2])
{
    int value, rules[2];
    const size_t bytes = strlen(name);
    if (schema_make(m, schema, &value) ||
        schema_spend(m, BRANCH_STEPS + bytes, MEMBER_BYTES + 4 * bytes))
        return m->err->status;
    const int own = m->next_rule++;
    text_printf(m->out, "r%d ::= ", own);
    key_literal(m->out, name);
    text_printf(m->out, " \":\" ws r%d\n", value);
    for (int some = 0; some < 2; some++) {
        rules[some] = m->next_rule++;
        text_printf(m->out, "r%d ::= %sr%d r%d", rules[some], some ? "\",\" ws " : "", own,
                    after[1]);
        if (!required)
            text_printf(m->out, " | r%d", after[some]);
        text_add(m->out, "\n", 1);
    }
    memcpy(after, rules, sizeof rules);
    return OATO_OK;
}

/* All properties: those that are listed, then those that are only required. */
static oato_status all_properties(struct schema_maker *m, const json_t *schema, const json_t **out)
{
    json_t *all = schema_copy(m, json_object_get(schema, "properties")), *name;
    const json_t *required = json_object_get(schema, "required");
    json_t *other = json_object_get(schema, "additionalProperties");
    size_t i;
    if (!all || schema_spend(m, NAME_STEPS * json_array_size(required),
                             MEMBER_BYTES * json_array_size(required)))
        return m->err->status;
    if (!json_is_object(all) || (required && !json_is_array(required)))
        return schema_fail(m, "of an object are no object and array", "properties and required");
    json_array_foreach((json_t *)required, i, name)
    {
        const char *s = json_string_value(name);
        if (!s || strlen(s) != json_string_length(name))
            return schema_fail(m, "wants an array of strings without zero bytes", "required");
        if (json_object_get(all, s))
            continue;
        if (json_is_false(other))
            return schema_fail(m, "is required, but neither listed nor allowed otherwise", s);
        if (json_object_set_new(all, s, other ? json_incref(other) : json_true()))
            return schema_fail_memory(m);
    }
    *out = all;
    return OATO_OK;
}

static oato_status make_object(struct schema_maker *m, const json_t *schema, struct text *e)
{
    const json_t *properties = NULL, *other = json_object_get(schema, "additionalProperties");
    int after[2] = {m->next_rule, m->next_rule + 1}, rule = 0;
    m->next_rule += 2;
    if (!json_object_get(schema, "properties") && !other &&
        !json_array_size(json_object_get(schema, "required"))) {
        text_printf(e, "object");
        return OATO_OK;
    }
    if (all_properties(m, schema, &properties))
        return m->err->status;
    if (other && !json_is_false(other)) {
        if (other_member(m, properties, other, &rule))
            return m->err->status;
        text_printf(m->out, "r%d ::= (r%d r%d)?\nr%d ::= (\",\" ws r%d)*\n", after[0], rule,
                    after[1], after[1], rule);
    } else {
        text_printf(m->out, "r%d ::= \"\"\nr%d ::= \"\"\n", after[0], after[1]);
    }
    const json_t *required = schema_set_of(m, json_object_get(schema, "required"));
    const char **names = required ? names_of(m, properties) : NULL;
    size_t i = json_object_size(properties);
    if (!names)
        return m->err->status;
    oato_status status = OATO_OK;
    while (i-- && !status) {
        const json_t *value = json_object_get(properties, names[i]);
        const bool wanted = json_object_get(required, names[i]);
        if (!json_is_false(value) || wanted)
            status = member(m, names[i], value, wanted, after);
    }
    free(names);
    text_printf(e, "\"{\" ws r%d ws \"}\"", after[0]);
    return status;
}

/* ------------------------------------------------------------------------------ other types -- */

static oato_status make_array(struct schema_maker *m, const json_t *schema, struct text *e)
{
    const json_t *items = json_object_get(schema, "items");
    const json_t *first = json_object_get(schema, "prefixItems");
    int64_t least, most;
    int rule = 0;
    if (json_is_array(items)) { /* draft 7 */
        first = items;
        items = json_object_get(schema, "additionalItems");
    }
    const int64_t n = (int64_t)json_array_size(first);
    if (take_count(m, schema, "minItems", 0, &least) ||
        take_count(m, schema, "maxItems", -1, &most))
        return m->err->status;
    const bool more = items ? !json_is_false(items) : !first || least > n;
    const int64_t listed = most >= 0 && most < n ? most : n;
    if ((most >= 0 && most < least) || (!more && least > n))
        return schema_fail(m, "is more than the array may have", "minItems");
    if (more && schema_make(m, items ? items : json_true(), &rule))
        return m->err->status;
    text_printf(e, "\"[\" ws ");
    for (int64_t i = 0; i < listed; i++) {
        int one;
        if (schema_make(m, json_array_get(first, (size_t)i), &one))
            return m->err->status;
        text_printf(e, "%sr%d ", i ? "\",\" ws " : "", one);
    }
    least = max_i64(least - listed, 0);
    most = most < 0 ? -1 : most - listed;
    if (more && most != 0 && listed) {
        text_printf(e, "(\",\" ws r%d)", rule);
        gbnf_repeat(e, least, most);
    } else if (more && most != 0) {
        text_printf(e, "(r%d (\",\" ws r%d)", rule, rule);
        gbnf_repeat(e, max_i64(least - 1, 0), most < 0 ? -1 : most - 1);
        text_printf(e, ")%s", least ? "" : "?");
    }
    text_printf(e, " ws \"]\"");
    return OATO_OK;
}

static oato_status make_string(struct schema_maker *m, const json_t *schema, struct text *e)
{
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *format = json_object_get(schema, "format");
    int64_t least, most;
    if (take_count(m, schema, "minLength", 0, &least) ||
        take_count(m, schema, "maxLength", -1, &most))
        return m->err->status;
    const bool sized = least > 0 || most >= 0;
    if (most >= 0 && most < least)
        return schema_fail(m, "is above maxLength", "minLength");
    if ((pattern && !json_is_string(pattern)) || (format && !json_is_string(format)))
        return schema_fail(m, "wants a string", pattern ? "pattern" : "format");
    if (pattern && strlen(json_string_value(pattern)) != json_string_length(pattern))
        return schema_fail(m, "has a zero byte", "pattern");
    if (pattern && sized)
        return schema_fail(m, "beside another limit of a string is not supported", "pattern");
    text_printf(e, "\"\\\"\" ");
    if (pattern) {
        if (gbnf_pattern(e, json_string_value(pattern), m->budget, m->err))
            return m->err->status;
    } else if (!format || sized || !gbnf_format(e, json_string_value(format))) {
        /* A format is a remark: kept where it is known and the only limit. */
        text_printf(e, "char");
        gbnf_repeat(e, least, most);
    }
    text_printf(e, " \"\\\"\"");
    return OATO_OK;
}

/* One side of an interval: the tighter of two keywords. */
struct bound {
    double at;
    bool given, open;
};

static oato_status take_bound(struct schema_maker *m, const json_t *schema, const char *closed,
                              const char *open, int sign, struct bound *out)
{
    const json_t *c = json_object_get(schema, closed), *o = json_object_get(schema, open);
    const double x = json_number_value(c), y = json_number_value(o);
    if ((c && !json_is_number(c)) || (o && !json_is_number(o)))
        return schema_fail(m, "wants a number", c && !json_is_number(c) ? closed : open);
    const bool take_open = o && (!c || (y - x) * sign >= 0);
    *out = (struct bound){take_open ? y : x, c || o, take_open};
    return OATO_OK;
}

static int64_t whole(double x)
{
    return x >= 1e16 ? INT64_MAX : x <= -1e16 ? INT64_MIN : (int64_t)x;
}

static oato_status make_number(struct schema_maker *m, const json_t *schema, bool integer,
                               struct text *e)
{
    struct bound low = {0}, high = {0};
    if (take_bound(m, schema, "minimum", "exclusiveMinimum", 1, &low) ||
        take_bound(m, schema, "maximum", "exclusiveMaximum", -1, &high))
        return m->err->status;
    if (!low.given && !high.given) {
        text_printf(e, integer ? "integer" : "number");
        return OATO_OK;
    }
    if (!integer) {
        struct gbnf_bound least, most;
        const double from = low.given ? low.at : -INFINITY, to = high.given ? high.at : INFINITY;
        if (!gbnf_bound_of(from, low.open, &least) || !gbnf_bound_of(to, high.open, &most))
            return schema_fail(m, "of numbers have more than 15 digits", "minimum and maximum");
        if (from > to || from > (double)GBNF_NUMBER_MOST || to < -(double)GBNF_NUMBER_MOST ||
            !gbnf_numbers(e, &least, &most))
            return schema_fail(m, "leave no number of up to 16 digits", "minimum and maximum");
        return OATO_OK;
    }
    low.at = low.open ? floor(low.at) + 1 : ceil(low.at);
    high.at = high.open ? ceil(high.at) - 1 : floor(high.at);
    const int64_t least = low.given ? whole(low.at) : INT64_MIN;
    const int64_t most = high.given ? whole(high.at) : INT64_MAX;
    if (least > most || least > GBNF_NUMBER_MOST || most < -GBNF_NUMBER_MOST)
        return schema_fail(m, "leave no number of up to 16 digits", "minimum and maximum");
    gbnf_integers(e, least, most);
    return OATO_OK;
}

oato_status schema_make_type(struct schema_maker *m, const json_t *schema, const char *type,
                             struct text *e)
{
    if (!strcmp(type, "object"))
        return make_object(m, schema, e);
    if (!strcmp(type, "array"))
        return make_array(m, schema, e);
    if (!strcmp(type, "string"))
        return make_string(m, schema, e);
    if (!strcmp(type, "number") || !strcmp(type, "integer"))
        return make_number(m, schema, type[0] == 'i', e);
    if (strcmp(type, "boolean") != 0 && strcmp(type, "null") != 0)
        return schema_fail(m, "is no type", type);
    text_printf(e, type[0] == 'n' ? "\"null\"" : "\"true\" | \"false\"");
    return OATO_OK;
}
