/*
 * jinja_run.c - the statements of a Jinja run. Loops, macros and captured blocks have a scope of
 * their own; an if has not. What a macro or a captured block prints goes to a text of its own.
 */
#include "models/jinja_internal.h"

#include <string.h>

typedef enum jinja_flow run_fn(struct jinja *x, const struct node *n, struct scope *s);

static enum jinja_flow run_text(struct jinja *x, const struct node *n, struct scope *s)
{
    (void)s;
    if (jinja_steps(x, n->value.len / STEP_BYTES))
        jinja_emit(x, x->out, n->value.s, n->value.len);
    return FLOW_ON;
}

static enum jinja_flow run_print(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct value v = eval(x, n->kid[0], s);
    if (jinja_steps(x, v.type == VALUE_STRING ? v.len / STEP_BYTES : 0))
        value_print(x, v, x->out);
    return FLOW_ON;
}

static enum jinja_flow run_if(struct jinja *x, const struct node *n, struct scope *s)
{
    for (const struct node *branch = n->kid[0]; branch; branch = branch->next)
        if (value_true(eval(x, branch->kid[0], s)))
            return run_body(x, branch->kid[1], s);
    return run_body(x, n->kid[1], s);
}

/* A scope for the next round of a loop: the last one again, unless a macro keeps it. */
static struct scope *scope_again(struct jinja *x, struct scope *last, struct scope *outer)
{
    if (!last || last->kept)
        return scope_open(x, outer);
    last->vars.n = 0;
    return last;
}

/* The items for which the condition holds. */
static struct value chosen(struct jinja *x, const struct node *n, const struct list *items,
                           struct scope *s)
{
    const struct value v = value_list(x);
    struct scope *inner = NULL;
    for (uint32_t i = 0; i < items->n && jinja_steps(x, 1); i++) {
        inner = scope_again(x, inner, s);
        const struct value item = items->v[i];
        scope_assign(x, inner, n->kid[0], item);
        if (value_true(eval(x, n->kid[2], inner)))
            list_push(x, v.list, item);
    }
    return v;
}

static enum jinja_flow run_for(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct list *items = value_items(x, eval(x, n->kid[1], s));
    if (n->kid[2] && !x->failed) {
        const struct value v = chosen(x, n, items, s);
        items = x->failed ? items : v.list;
    }
    struct loop *loop = jinja_alloc(x, 1, sizeof *loop);
    if (!loop || x->failed)
        return FLOW_ON;
    loop->items = items;
    struct scope *inner = NULL;
    enum jinja_flow flow = FLOW_ON;
    bool whole = false; /* a round ran to its end; without one jinja2 runs else */
    for (; flow != FLOW_BREAK && loop->index < items->n && jinja_steps(x, 1); loop->index++) {
        inner = scope_again(x, inner, s);
        scope_set(x, inner, value_str("loop"), (struct value){.type = VALUE_LOOP, .loop = loop});
        scope_assign(x, inner, n->kid[0], items->v[loop->index]);
        flow = run_body(x, n->kid[3], inner);
        whole = whole || flow == FLOW_ON;
    }
    return whole || x->failed ? FLOW_ON : run_body(x, n->kid[4], scope_open(x, s));
}

static enum jinja_flow run_set(struct jinja *x, const struct node *n, struct scope *s)
{
    const struct value v = eval(x, n->kid[1], s);
    x->line = n->line;
    scope_assign(x, s, n->kid[0], v);
    return FLOW_ON;
}

/* What a body prints, run in a scope within s. */
static struct value capture(struct jinja *x, const struct node *body, struct scope *s)
{
    struct text text, *outer = x->out;
    text_init(&text);
    x->out = &text;
    run_body(x, body, s);
    x->out = outer;
    return value_take(x, &text);
}

/* The text of kid 2 after the filters of kid 1. */
static struct value captured(struct jinja *x, const struct node *n, struct scope *s)
{
    struct scope *inner = scope_open(x, s);
    const struct value text = capture(x, n->kid[2], inner);
    scope_set(x, inner, value_str(""), text);
    return eval(x, n->kid[1], inner);
}

static enum jinja_flow run_capture(struct jinja *x, const struct node *n, struct scope *s)
{
    scope_assign(x, s, n->kid[0], captured(x, n, s));
    return FLOW_ON;
}

static enum jinja_flow run_filter_block(struct jinja *x, const struct node *n, struct scope *s)
{
    value_print(x, captured(x, n, s), x->out);
    return FLOW_ON;
}

static enum jinja_flow run_scope(struct jinja *x, const struct node *n, struct scope *s)
{
    return run_body(x, n->kid[2], scope_open(x, s));
}

static struct value make_macro(struct jinja *x, const struct node *n, struct scope *s)
{
    struct macro *m = jinja_alloc(x, 1, sizeof *m);
    if (!m)
        return undefined;
    *m = (struct macro){n, s};
    for (; s; s = s->outer)
        s->kept = true;
    return (struct value){.type = VALUE_MACRO, .macro = m};
}

static enum jinja_flow run_macro(struct jinja *x, const struct node *n, struct scope *s)
{
    scope_set(x, s, n->value, make_macro(x, n, s));
    return FLOW_ON;
}

struct value macro_call(struct jinja *x, const struct macro *m, const struct args *a)
{
    struct scope *s = scope_open(x, m->scope);
    const struct value name = m->node->value;
    uint32_t given = 0, named = 0;
    for (const struct node *p = m->node->kid[0]; p && !x->failed; p = p->next) {
        const struct value *v = dict_find(x, &a->named, p->value);
        named += v && given >= a->n;
        const struct value missing = {
            .type = VALUE_UNDEFINED, .why = NO_NAME, .len = p->value.len, .s = p->value.s};
        const struct value v_or_default = given < a->n ? a->v[given]
                                          : v          ? *v
                                          : p->kid[0]  ? eval(x, p->kid[0], s)
                                                       : missing;
        given += given < a->n;
        scope_set(x, s, p->value, v_or_default);
    }
    const struct value *caller = dict_find(x, &a->named, value_str("caller"));
    if (caller && caller->type == VALUE_MACRO) {
        scope_set(x, s, value_str("caller"), *caller);
        named++;
    }
    if (given < a->n || named < a->named.n)
        jinja_fail(x, "macro '%.*s' takes %s", (int)name.len, name.s,
                   given < a->n ? "fewer arguments" : "no argument of one of these names");
    return x->failed ? undefined : capture(x, m->node->kid[2], s);
}

/* The body becomes a macro, caller, that the called macro can call. */
static enum jinja_flow run_call_block(struct jinja *x, const struct node *n, struct scope *s)
{
    struct args a;
    const struct value f = eval(x, n->kid[1]->kid[0], s);
    eval_arguments(x, n->kid[1]->kid[1], s, &a);
    if (f.type != VALUE_MACRO)
        jinja_fail(x, "call needs a macro, not '%s'", value_type_name(f));
    const struct value caller = make_macro(x, n, s);
    if (x->failed)
        return FLOW_ON;
    dict_set(x, &a.named, value_str("caller"), caller);
    value_print(x, macro_call(x, f.macro, &a), x->out);
    return FLOW_ON;
}

static enum jinja_flow run_break(struct jinja *x, const struct node *n, struct scope *s)
{
    (void)x, (void)s;
    return n->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
}

enum jinja_flow run_body(struct jinja *x, const struct node *first, struct scope *s)
{
    static run_fn *const rows[NODE_KINDS] = {
        [NODE_TEXT] = run_text,
        [NODE_PRINT] = run_print,
        [NODE_IF] = run_if,
        [NODE_FOR] = run_for,
        [NODE_SET] = run_set,
        [NODE_CAPTURE] = run_capture,
        [NODE_MACRO] = run_macro,
        [NODE_CALL_BLOCK] = run_call_block,
        [NODE_FILTER_BLOCK] = run_filter_block,
        [NODE_SCOPE] = run_scope,
        [NODE_BREAK] = run_break,
        [NODE_CONTINUE] = run_break,
    };
    enum jinja_flow flow = FLOW_ON;
    if (!s || !jinja_enter(x))
        return FLOW_ON;
    for (const struct node *n = first; n && flow == FLOW_ON && jinja_steps(x, 1); n = n->next) {
        x->line = n->line;
        flow = rows[n->kind](x, n, s);
    }
    jinja_leave(x);
    return flow;
}
