/*
 * json_schema_known.c - what is found out about schemas once: their rules, what is left of them
 * without references, the schema that wants two of them. So a schema that many others name is read
 * once, however often they do. And equality of values without recursion, which schemas that were
 * merged may be too deep for.
 */
#include "text/json_schema_internal.h"

#include <stdlib.h>
#include <string.h>

enum { EQUAL_STEPS = 10, LEARN_STEPS = 10, VALUE_BYTES_STEP = 32 };

oato_status schema_spend(struct schema_maker *m, uint64_t steps, size_t bytes)
{
    return budget_spend(m->budget, steps, bytes, "the JSON schema", m->err);
}

/* The slot of a fact, or the empty one where it belongs. */
static struct schema_known *slot_of(struct schema_known *slots, size_t cap, enum schema_fact fact,
                                    const json_t *a, const json_t *b)
{
    const struct {
        const json_t *a, *b;
        uint64_t fact;
    } key = {a, b, fact};
    size_t at = hash_bytes(&key, sizeof key) & (cap - 1);
    while (slots[at].a && (slots[at].a != a || slots[at].b != b || slots[at].fact != fact))
        at = (at + 1) & (cap - 1);
    return &slots[at];
}

const struct schema_known *schema_know(const struct schema_maker *m, enum schema_fact fact,
                                       const json_t *a, const json_t *b)
{
    const struct schema_known *k = m->known ? slot_of(m->known, m->cap_known, fact, a, b) : NULL;
    return k && k->a ? k : NULL;
}

static oato_status known_grow(struct schema_maker *m)
{
    const size_t cap = m->cap_known ? 2 * m->cap_known : 64;
    if (schema_spend(m, 0, (cap - m->cap_known) * sizeof *m->known))
        return m->err->status;
    struct schema_known *slots = calloc(cap, sizeof *slots);
    if (!slots)
        return schema_fail_memory(m);
    for (size_t i = 0; i < m->cap_known; i++) {
        const struct schema_known *k = &m->known[i];
        if (k->a)
            *slot_of(slots, cap, k->fact, k->a, k->b) = *k;
    }
    free(m->known);
    m->known = slots;
    m->cap_known = cap;
    return OATO_OK;
}

oato_status schema_learn(struct schema_maker *m, struct schema_known fact)
{
    if (schema_spend(m, LEARN_STEPS, 0) || (2 * m->n_known >= m->cap_known && known_grow(m)))
        return m->err->status;
    struct schema_known *k = slot_of(m->known, m->cap_known, fact.fact, fact.a, fact.b);
    m->n_known += !k->a;
    *k = fact;
    return OATO_OK;
}

/* ----------------------------------------------------------------------------------- equality */

struct pair {
    const json_t *a, *b;
};
struct pairs {
    struct pair *pair;
    size_t n, cap;
};

static oato_status pair_add(struct schema_maker *m, struct pairs *p, const json_t *a,
                            const json_t *b)
{
    if (schema_spend(m, EQUAL_STEPS, 0))
        return m->err->status;
    if (p->n == p->cap) {
        const size_t cap = p->cap ? 2 * p->cap : 64;
        if (schema_spend(m, 0, (cap - p->cap) * sizeof *p->pair))
            return m->err->status;
        struct pair *grown = realloc(p->pair, cap * sizeof *grown);
        if (!grown)
            return schema_fail_memory(m);
        p->pair = grown;
        p->cap = cap;
    }
    p->pair[p->n++] = (struct pair){a, b};
    return OATO_OK;
}

/* Of two arrays or objects of the same size, their members; *equal false: a name is missing. */
static oato_status members_add(struct schema_maker *m, struct pairs *p, struct pair x, bool *equal)
{
    const char *key;
    json_t *value;
    oato_status status = OATO_OK;
    for (size_t i = 0; json_is_array(x.a) && i < json_array_size(x.a) && !status; i++)
        status = pair_add(m, p, json_array_get(x.a, i), json_array_get(x.b, i));
    if (!json_is_object(x.a))
        return status;
    json_object_foreach((json_t *)x.a, key, value)
    {
        const json_t *other = json_object_get(x.b, key);
        *equal = *equal && other;
        if (*equal && !status)
            status = pair_add(m, p, value, other);
    }
    return status;
}

static size_t size_of(const json_t *x)
{
    return json_is_array(x) ? json_array_size(x) : json_object_size(x);
}

oato_status schema_equal(struct schema_maker *m, const json_t *a, const json_t *b, bool *equal)
{
    struct pairs p = {0};
    *equal = true;
    oato_status status = pair_add(m, &p, a, b);
    while (p.n && *equal && !status) {
        const struct pair x = p.pair[--p.n];
        if (x.a == x.b)
            continue;
        if (!x.a || !x.b || json_typeof(x.a) != json_typeof(x.b) || size_of(x.a) != size_of(x.b)) {
            *equal = false;
        } else if (json_is_array(x.a) || json_is_object(x.a)) {
            status = members_add(m, &p, x, equal);
        } else {
            status = schema_spend(m, json_string_length(x.a) / VALUE_BYTES_STEP, 0);
            *equal = json_equal(x.a, x.b);
        }
    }
    free(p.pair);
    if (m->budget)
        m->budget->bytes += p.cap * sizeof *p.pair;
    return status;
}
