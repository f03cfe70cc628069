/*
 * jinja_eval.c - the expressions of a Jinja run. A table has a function per kind of node; names are
 * looked up from the innermost scope outwards, then among the functions that every program has.
 */
#include "models/jinja_internal.h"

#include <string.h>

struct scope *scope_open(struct jinja *x, struct scope *outer)
{
    struct scope *s = jinja_alloc(x, 1, sizeof *s);
    if (s)
        s->outer = outer;
    return s;
}

void scope_set(struct jinja *x, struct scope *s, struct value name, struct value v)
{
    if (s && !x->failed)
        dict_set(x, &s->vars, name, v);
}

static void unpack(struct jinja *x, struct scope *s, const struct node *target, struct value v)
{
    const struct list *items = value_items(x, v);
    uint32_t wanted = 0, i = 0;
    for (const struct node *n = target->kid[0]; n; n = n->next)
        wanted++;
    if (items->n > wanted)
        jinja_fail(x, "too many values to unpack (expected %u)", wanted);
    else if (items->n < wanted)
        jinja_fail(x, "not enough values to unpack (expected %u, got %u)", wanted, items->n);
    for (const struct node *n = target->kid[0]; n && !x->failed; n = n->next)
        scope_assign(x, s, n, items->v[i++]);
}

void scope_assign(struct jinja *x, struct scope *s, const struct node *target, struct value v)
{
    if (x->failed || !jinja_enter(x))
        return;
    if (target->kind == NODE_TUPLE) {
        unpack(x, s, target, v);
    } else if (target->kind == NODE_ATTRIBUTE) {
        const struct value of = eval(x, target->kid[0], s);
        if (of.type == VALUE_NAMESPACE)
            dict_set(x, of.dict, target->value, v);
        else
            jinja_fail(x, "cannot assign attribute on non-namespace object");
    } else {
        scope_set(x, s, target->value, v);
    }
    jinja_leave(x);
}

typedef struct value eval_fn(struct jinja *x, const struct node *n, struct scope *s);

static struct value eval_const(struct jinja *x, const struct node *n, struct scope *s)
{
    (void)x, (void)s;
    return n->value;
}

static struct value eval_name(struct jinja *x, const struct node *n, struct scope *s)
{
    for (const struct scope *in = s; in; in = in->outer) {
        const struct value *v = dict_find(x, &in->vars, n->value);
        if (v)
            return *v;
    }
    const struct jinja_call *f = call_find(ON_FUNCTION, n->value);
    if (f)
        return (struct value){.type = VALUE_FUNCTION, .call = f};
    return (struct value){
        .type = VALUE_UNDEFINED, .why = NO_NAME, .len = n->value.len, .s = n->value.s};
}

static struct value eval_list(struct jinja *x, const struct node *n, struct scope *s)
{
    struct value v = value_list(x);
    for (const struct node *item = n->kid[0]; item && !x->failed; item = item->next)
        list_push(x, v.list, eval(x, item, s));
    v.type = x->failed ? VALUE_UNDEFINED : n->kind == NODE_TUPLE ? VALUE_TUPLE : VALUE_LIST;
    return v;
}

static struct value eval_dict(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct value v = value_dict(x);
    for (const struct node *key = n->kid[0]; key && !x->failed; key = key->next->next) {
        const struct value k = eval(x, key, s), item = eval(x, key->next, s);
        if (!x->failed)
            dict_set(x, v.dict, k, item);
    }
    return v;
}

static struct value eval_attribute(struct jinja *x, const struct node *n, struct scope *s)
{
    return value_attribute(x, eval(x, n->kid[0], s), n->value);
}

static struct value eval_element(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct value v = eval(x, n->kid[0], s);
    return value_element(x, v, eval(x, n->kid[1], s));
}

static struct value eval_slice(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct value v = eval(x, n->kid[0], s);
    struct value part[3];
    for (int i = 0; i < 3; i++)
        part[i] = eval(x, n->kid[i + 1], s);
    return value_part(x, v, part);
}

void eval_arguments(struct jinja *x, const struct node *list, struct scope *s, struct args *a)
{
    uint32_t n = 0;
    *a = (struct args){0};
    for (const struct node *item = list; item; item = item->next)
        n += item->kind != NODE_NAMED;
    a->v = n ? jinja_alloc(x, n, sizeof *a->v) : NULL;
    for (const struct node *item = list; item && !x->failed; item = item->next) {
        if (item->kind != NODE_NAMED)
            a->v[a->n++] = eval(x, item, s);
        else
            dict_set(x, &a->named, item->value, eval(x, item->kid[0], s));
    }
}

/* kid 0: what is called; kid 1: arguments. A method is found before it is looked up as a value, so
 * that it has its object. */
static struct value eval_call(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct node *callee = n->kid[0];
    const struct jinja_call *c = NULL;
    struct value object = undefined, f;
    struct args a;
    if (callee->kind == NODE_ATTRIBUTE) {
        object = eval(x, callee->kid[0], s);
        c = method_find(object, callee->value);
        f = c ? undefined : value_attribute(x, object, callee->value);
    } else {
        f = eval(x, callee, s);
    }
    eval_arguments(x, n->kid[1], s, &a);
    x->line = n->line;
    if (x->failed)
        return undefined;
    if (!c && f.type == VALUE_FUNCTION && f.call != call_find(ON_FUNCTION, value_str(f.call->name)))
        jinja_fail(x, "%s() is called without its object", f.call->name);
    else if (c || f.type == VALUE_FUNCTION)
        return call_run(x, c ? c : f.call, object, &a);
    else if (f.type == VALUE_MACRO)
        return macro_call(x, f.macro, &a);
    else if (f.type == VALUE_UNDEFINED)
        value_fail_undefined(x, f);
    else
        jinja_fail(x, "'%s' object is not callable", value_type_name(f));
    return undefined;
}

static struct value eval_filter(struct jinja *x, const struct node *n, struct scope *s)
{
    struct args a;
    const struct value v = eval(x, n->kid[0], s);
    eval_arguments(x, n->kid[1], s, &a);
    x->line = n->line;
    return x->failed ? undefined : filter_run(x, n->value, v, &a);
}

static struct value eval_test(struct jinja *x, const struct node *n, struct scope *s)
{
    struct args a;
    const struct value v = eval(x, n->kid[0], s);
    eval_arguments(x, n->kid[1], s, &a);
    x->line = n->line;
    return value_bool(!x->failed && test_run(x, n->value, v, &a));
}

/* A number with its sign, as if taken from or added to 0. */
static struct value eval_sign(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct value v = eval(x, n->kid[0], s);
    if (v.type == VALUE_FLOAT)
        return value_float(n->kind == NODE_NEGATE ? -v.f : v.f);
    return value_binary(x, n->kind == NODE_NEGATE ? "-" : "+", value_int(0), v);
}

static struct value eval_not(struct jinja *x, const struct node *n, struct scope *s)
{
    return value_bool(!value_true(eval(x, n->kid[0], s)));
}

static struct value eval_and_or(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct value v = eval(x, n->kid[0], s);
    return value_true(v) == (n->kind == NODE_OR) ? v : eval(x, n->kid[1], s);
}

static struct value eval_binary(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct value a = eval(x, n->kid[0], s), b = eval(x, n->kid[1], s);
    x->line = n->line;
    return value_binary(x, n->value.s, a, b);
}

static struct value eval_concat(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct value a = value_to_string(x, eval(x, n->kid[0], s));
    const struct value b = value_to_string(x, eval(x, n->kid[1], s));
    return x->failed ? undefined : value_concat(x, a, b);
}

static struct value eval_compare(struct jinja *x, const struct node *n, struct scope *s)
{
    struct value a = eval(x, n->kid[0], s);
    bool all = true;
    for (const struct node *next = n->kid[1]; next && all && !x->failed; next = next->next) {
        const struct value b = eval(x, next->kid[0], s);
        x->line = n->line;
        all = !x->failed && value_holds(x, next->value.s, a, b);
        a = b;
    }
    return value_bool(all);
}

static struct value eval_if_else(struct jinja *x, const struct node *n, struct scope *s)
{
    if (value_true(eval(x, n->kid[1], s)))
        return eval(x, n->kid[0], s);
    return n->kid[2] ? eval(x, n->kid[2], s) : undefined;
}

struct value eval(struct jinja *x, const struct node *n, struct scope *s)
{
    static eval_fn *const rows[NODE_KINDS] = {
        [NODE_CONST] = eval_const,     [NODE_NAME] = eval_name,
        [NODE_LIST] = eval_list,       [NODE_TUPLE] = eval_list,
        [NODE_DICT] = eval_dict,       [NODE_ATTRIBUTE] = eval_attribute,
        [NODE_ELEMENT] = eval_element, [NODE_SLICE] = eval_slice,
        [NODE_CALL] = eval_call,       [NODE_FILTER] = eval_filter,
        [NODE_TEST] = eval_test,       [NODE_NEGATE] = eval_sign,
        [NODE_PLUS] = eval_sign,       [NODE_NOT] = eval_not,
        [NODE_AND] = eval_and_or,      [NODE_OR] = eval_and_or,
        [NODE_BINARY] = eval_binary,   [NODE_CONCAT] = eval_concat,
        [NODE_COMPARE] = eval_compare, [NODE_IF_ELSE] = eval_if_else,
    };
    if (!jinja_steps(x, 1) || !jinja_enter(x))
        return undefined;
    x->line = n->line;
    const struct value v = rows[n->kind](x, n, s);
    jinja_leave(x);
    return x->failed ? undefined : v;
}
