/*
 * run.c - runs the tree of a Jinja program, within the limits of limits.c.
 *
 * Loops, macros and captured blocks have a scope of their own; an if has not. Names are looked up
 * from the innermost scope outwards, then among the functions that every program has.
 */
#include "text/jinja/jinja_internal.h"

#include <stdlib.h>
#include <time.h>

struct jinja_template {
    struct jinja x; /* owns the tree */
};

/* ------------------------------------------------------------------------------ the tree -- */

struct macro {
    const struct node *node;
    struct scope *scope; /* where it was defined */
};

static struct value eval(struct jinja *x, const struct node *n, struct scope *s);

static void run_body(struct jinja *x, const struct node *first, struct scope *s)
{
    for (const struct node *n = first; n && s && x->flow == FLOW_ON && !x->failed; n = n->next)
        eval(x, n, s);
}

/* last: the scope of the round before in a loop, which is used again unless a macro keeps it. */
static struct scope *scope_open(struct jinja *x, struct scope *outer, struct scope *last)
{
    struct scope *s = last && !last->kept ? last : jinja_alloc(x, 1, sizeof *s);
    if (s)
        *s = (struct scope){.outer = outer, .vars = {s->vars.v, 0, s->vars.cap}};
    return s;
}

static void scope_set(struct jinja *x, struct scope *s, struct value name, struct value v)
{
    if (s && !x->failed)
        dict_set(x, &s->vars, name, v);
}

static void assign(struct jinja *x, struct scope *s, const struct node *target, struct value v)
{
    if (target->kind == NODE_TUPLE) {
        const struct list *items = value_items(x, v);
        uint32_t wanted = 0, i = 0;
        for (const struct node *n = target->kid[0]; n; n = n->next)
            wanted++;
        if (items->n != wanted)
            jinja_fail(x, "%u values cannot be unpacked to %u names", items->n, wanted);
        for (const struct node *n = target->kid[0]; n && !x->failed; n = n->next)
            assign(x, s, n, items->v[i++]); /* no tuple again */
    } else if (target->kind == NODE_ATTRIBUTE) {
        const struct value of = eval(x, target->kid[0], s);
        if (of.type == VALUE_NAMESPACE)
            dict_set(x, of.list, target->value, v);
        else
            jinja_fail(x, "cannot assign attribute on non-namespace object");
    } else {
        scope_set(x, s, target->value, v);
    }
}

static struct value no_name(struct value name)
{
    name.type = VALUE_UNDEFINED; /* and keeps its text */
    return name;
}

static struct value name_value(struct jinja *x, struct value name, const struct scope *s)
{
    for (; s; s = s->outer) {
        const struct value *v = dict_find(x, &s->vars, name);
        if (v)
            return *v;
    }
    const struct jinja_call *f = call_find(ON_FUNCTION, name);
    return f ? (struct value){.type = VALUE_FUNCTION, .call = f} : no_name(name);
}

/* What a body prints, run in the scope s. */
static struct value capture(struct jinja *x, const struct node *body, struct scope *s)
{
    struct text text, *outer = x->out;
    text_init(&text);
    x->out = &text;
    run_body(x, body, s);
    x->out = outer;
    return value_take(x, &text);
}

static struct value macro_call(struct jinja *x, const struct macro *m, const struct args *a)
{
    struct scope *s = scope_open(x, m->scope, NULL);
    const struct value name = m->node->value;
    uint32_t given = 0, named = 0;
    for (const struct node *p = m->node->kid[0]; p && !x->failed; p = p->next) {
        const struct value *v = given < a->at.n ? &a->at.v[given++] : NULL;
        if (!v && (v = dict_find(x, &a->named, p->value)))
            named += 2;
        scope_set(x, s, p->value, v ? *v : p->kid[0] ? eval(x, p->kid[0], s) : no_name(p->value));
    }
    if (given < a->at.n || named < a->named.n)
        jinja_fail(x, "macro '%.*s' takes %s", (int)name.len, name.s,
                   given < a->at.n ? "fewer arguments" : "no argument of one of these names");
    return x->failed ? undefined : capture(x, m->node->kid[1], s);
}

static struct args arguments(struct jinja *x, const struct node *list, struct scope *s)
{
    struct args a = {0};
    for (const struct node *n = list; n && !x->failed; n = n->next) {
        const struct value v = eval(x, n->kind == NODE_NAMED ? n->kid[0] : n, s);
        if (n->kind == NODE_NAMED)
            dict_set(x, &a.named, n->value, v);
        else
            list_push(x, &a.at, v);
    }
    return a;
}

/* A method is found before it is looked up as a value, so that it has its object. */
static struct value call(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct node *callee = n->kid[0];
    const struct jinja_call *method = NULL;
    struct value object = undefined, f = undefined;
    if (callee->kind == NODE_ATTRIBUTE) {
        object = eval(x, callee->kid[0], s);
        method = method_find(object, callee->value);
        f = method ? f : value_member(x, object, callee->value, true);
    } else {
        f = eval(x, callee, s);
    }
    const struct args a = arguments(x, n->kid[1], s);
    x->line = n->line;
    if (x->failed)
        return undefined;
    if (method || (f.type == VALUE_FUNCTION && f.call))
        return call_run(x, method ? method : f.call, object, &a);
    if (f.type == VALUE_MACRO)
        return macro_call(x, f.macro, &a);
    if (f.type == VALUE_UNDEFINED)
        value_fail_undefined(x, f);
    else if (f.type == VALUE_FUNCTION)
        jinja_fail(x, "a method that is called without its object is not supported");
    else
        jinja_fail(x, "'%s' object is not callable", value_type_name(f));
    return undefined;
}

static struct value container(struct jinja *x, const struct node *n, struct scope *s)
{
    const bool list = n->kind == NODE_LIST, dict = n->kind == NODE_DICT;
    const struct value v = value_new(x, dict ? VALUE_DICT : list ? VALUE_LIST : VALUE_TUPLE);
    for (const struct node *item = n->kid[0]; item && !x->failed; item = item->next) {
        const struct value first = eval(x, item, s);
        item = dict ? item->next : item;
        if (dict)
            dict_set(x, v.list, first, eval(x, item, s));
        else
            list_push(x, v.list, first);
    }
    return v;
}

static void run_for(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct list *items = value_items(x, eval(x, n->kid[1], s));
    const struct value loop = value_new(x, VALUE_NAMESPACE), chosen = value_new(x, VALUE_LIST);
    struct scope *inner = NULL;
    for (uint32_t i = 0; n->kid[2] && i < items->n && jinja_steps(x, 1); i++) {
        inner = scope_open(x, s, inner);
        assign(x, inner, n->kid[0], items->v[i]);
        if (value_true(eval(x, n->kid[2], inner)) && i < items->n)
            list_push(x, chosen.list, items->v[i]);
    }
    items = n->kid[2] ? chosen.list : items;
    for (uint32_t i = 0; x->flow != FLOW_BREAK && i < items->n && jinja_steps(x, 1); i++) {
        const struct {
            const char *name;
            struct value v;
        } rows[] = {
            {"index", value_int((int64_t)i + 1)},
            {"index0", value_int(i)},
            {"first", value_bool(i == 0)},
            {"last", value_bool(i + 1 == items->n)},
            {"previtem", i > 0 ? items->v[i - 1] : undefined},
            {"nextitem", i + 1 < items->n ? items->v[i + 1] : undefined},
        };
        for (size_t k = 0; k < ARRAY_LEN(rows); k++)
            dict_set(x, loop.list, value_str(rows[k].name), rows[k].v);
        inner = scope_open(x, s, inner);
        scope_set(x, inner, value_str("loop"), loop);
        assign(x, inner, n->kid[0], items->v[i]);
        run_body(x, n->kid[3], inner);
        x->flow = x->flow == FLOW_BREAK ? FLOW_BREAK : FLOW_ON;
    }
    x->flow = FLOW_ON;
}

/* Statements have no value. */
static struct value eval_kind(struct jinja *x, const struct node *n, struct scope *s)
{
    struct value v = undefined, other, part[3];
    struct args a;
    struct macro *m;
    switch (n->kind) {
    case NODE_CONST: return n->value;
    case NODE_NAME: return name_value(x, n->value, s);
    case NODE_LIST:
    case NODE_TUPLE:
    case NODE_DICT: return container(x, n, s);
    case NODE_ATTRIBUTE: return value_member(x, eval(x, n->kid[0], s), n->value, true);
    case NODE_ELEMENT:
        v = eval(x, n->kid[0], s);
        return value_member(x, v, eval(x, n->kid[1], s), false);
    case NODE_SLICE:
        v = eval(x, n->kid[0], s);
        for (int i = 0; i < 3; i++)
            part[i] = eval(x, n->kid[i + 1], s);
        return value_part(x, v, part);
    case NODE_CALL: return call(x, n, s);
    case NODE_FILTER:
    case NODE_TEST:
        v = eval(x, n->kid[0], s);
        a = arguments(x, n->kid[1], s);
        x->line = n->line;
        return call_named(x, n->kind == NODE_FILTER ? ON_FILTER : ON_TEST, n->value, v, &a);
    case NODE_NEGATE: return value_binary(x, "-", value_int(0), eval(x, n->kid[0], s));
    case NODE_NOT: return value_bool(!value_true(eval(x, n->kid[0], s)));
    case NODE_BINARY:
        v = eval(x, n->kid[0], s);
        if (*n->value.s == 'o' || *n->value.s == 'a') /* or, and */
            return value_true(v) == (*n->value.s == 'o') ? v : eval(x, n->kid[1], s);
        other = eval(x, n->kid[1], s);
        x->line = n->line;
        if (*n->value.s == '~') {
            v = value_to_string(x, v);
            return value_concat(x, v, value_to_string(x, other));
        }
        return value_binary(x, n->value.s, v, other);
    case NODE_IF_ELSE:
        if (value_true(eval(x, n->kid[1], s)))
            return eval(x, n->kid[0], s);
        return n->kid[2] ? eval(x, n->kid[2], s) : undefined;
    case NODE_CAPTURE: return capture(x, n->kid[0], scope_open(x, s, NULL));
    case NODE_TEXT: jinja_emit(x, x->out, n->value.s, n->value.len); break;
    case NODE_PRINT: value_print(x, eval(x, n->kid[0], s), x->out); break;
    case NODE_IF:
        while (n && n->kid[0] && !value_true(eval(x, n->kid[0], s)))
            n = n->kid[2];
        if (n)
            run_body(x, n->kid[1], s);
        break;
    case NODE_FOR: run_for(x, n, s); break;
    case NODE_SET:
        v = eval(x, n->kid[1], s);
        x->line = n->line;
        assign(x, s, n->kid[0], v);
        break;
    case NODE_MACRO:
        if ((m = jinja_alloc(x, 1, sizeof *m))) {
            *m = (struct macro){n, s};
            scope_set(x, s, n->value, (struct value){.type = VALUE_MACRO, .macro = m});
        }
        for (; s; s = s->outer)
            s->kept = true;
        break;
    case NODE_BREAK: x->flow = FLOW_BREAK; break;
    case NODE_CONTINUE: x->flow = FLOW_CONTINUE; break;
    case NODE_NAMED: break; /* looked into by arguments and macro_call */
    }
    return undefined;
}

static struct value eval(struct jinja *x, const struct node *n, struct scope *s)
{
    if (!jinja_steps(x, 1) || !jinja_enter(x))
        return undefined;
    x->line = n->line;
    const struct value v = eval_kind(x, n, s);
    jinja_leave(x);
    return x->failed ? undefined : v;
}

/* --------------------------------------------------------------------------- whole runs -- */

static void begin(struct jinja *x, const char *name, const struct jinja_limits *limits,
                  struct oato_error *err)
{
    *x = (struct jinja){.limits = limits, .name = name, .line = 1, .err = err};
    arena_init(&x->arena);
}

oato_status jinja_parse(const char *name, const char *text, size_t n,
                        const struct jinja_limits *limits, struct jinja_template **out,
                        struct oato_error *err)
{
    struct jinja_template *t = calloc(1, sizeof *t);
    *out = NULL;
    if (!t)
        return oato_fail_memory(err, sizeof *t, "the template");
    begin(&t->x, name, limits, err);
    const struct value copy = value_string(&t->x, name, strlen(name) + 1);
    t->x.name = t->x.failed ? name : copy.s;
    t->x.body = parse_program(&t->x, text, n);
    t->x.err = NULL;
    if (t->x.failed) {
        jinja_free(t);
        return err->status;
    }
    *out = t;
    return OATO_OK;
}

void jinja_free(struct jinja_template *t)
{
    if (t)
        arena_free(&t->x.arena);
    free(t);
}

struct jinja *jinja_begin(const struct jinja_template *t, struct oato_error *err)
{
    struct jinja *x = malloc(sizeof *x);
    if (!x) {
        oato_fail_memory(err, sizeof *x, "the template");
        return NULL;
    }
    begin(x, t->x.name, t->x.limits, err);
    x->body = t->x.body;
    x->now = (int64_t)time(NULL);
    x->top = scope_open(x, NULL, NULL);
    return x;
}

void jinja_set(struct jinja *x, const char *name, struct value v)
{
    if (!x->failed)
        scope_set(x, x->top, value_string(x, name, strlen(name)), v);
}

void jinja_set_json(struct jinja *x, const char *json, size_t n)
{
    const struct value v = value_from_json(x, json, n);
    if (v.type != VALUE_DICT)
        jinja_fail(x, "the variables are not a JSON object");
    for (uint32_t i = 0; !x->failed && i < v.list->n; i += 2)
        scope_set(x, x->top, v.list->v[i], v.list->v[i + 1]);
}

oato_status jinja_run(struct jinja *x, struct text *out)
{
    x->out = out;
    if (!x->failed)
        run_body(x, x->body, scope_open(x, x->top, NULL));
    if (x->flow != FLOW_ON)
        jinja_fail(x, "break or continue outside of a loop");
    jinja_spend(x, 0);
    return x->failed ? x->err->status : OATO_OK;
}

bool jinja_failed(const struct jinja *x)
{
    return x->failed;
}

void jinja_end(struct jinja *x)
{
    if (x)
        arena_free(&x->arena);
    free(x);
}
