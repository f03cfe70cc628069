/*
 * jinja.c - a run of the Jinja interpreter and its limits: steps, nesting, output and memory. Every
 * part that could be made to work for long asks here first, and the first failure ends the run with
 * one line that names the template, the line in it and the limit.
 */
#include "models/jinja_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

const struct jinja_limits jinja_limits_default = {
    .steps = 10000000, /* some seconds; gemma 4 takes 3 million for a thousand messages */
    .depth = 500,
    .output_bytes = (size_t)16 << 20,
    .memory_bytes = (size_t)128 << 20,
    .template_bytes = (size_t)1 << 20,
};

struct jinja_template {
    struct jinja x; /* owns the tree */
};

void jinja_fail(struct jinja *x, const char *fmt, ...)
{
    char text[sizeof x->err->text];
    va_list ap;
    if (x->failed)
        return;
    x->failed = true;
    va_start(ap, fmt);
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (int i = 0; i < n && text[i]; i++) /* one line, whatever the program says */
        text[i] = text[i] == '\n' || text[i] == '\r' || text[i] == '\t' ? ' ' : text[i];
    oato_fail(x->err, OATO_EFILE, "%s, line %d: %s", x->name, x->line, text);
}

bool jinja_steps(struct jinja *x, size_t n)
{
    x->steps += (int64_t)n;
    if (x->steps > x->limits->steps)
        jinja_fail(x, "more than %lld steps", (long long)x->limits->steps);
    return !x->failed;
}

bool jinja_enter(struct jinja *x)
{
    if (x->depth >= x->limits->depth)
        jinja_fail(x, "more than %d levels of nesting", x->limits->depth);
    x->depth += !x->failed;
    return !x->failed;
}

void *jinja_alloc(struct jinja *x, size_t count, size_t size)
{
    const size_t most = x->limits->memory_bytes, used = x->arena.used_bytes;
    size_t bytes = 0;
    if (x->failed)
        return NULL;
    if (!size_mul(count, size, &bytes) || used > most || bytes > most - used) {
        jinja_fail(x, "more than %zu bytes of memory", most);
        return NULL;
    }
    void *p = arena_alloc(&x->arena, bytes, 1);
    if (!p) {
        x->failed = true;
        oato_fail_memory(x->err, bytes, "the chat template");
    }
    return p;
}

void jinja_emit(struct jinja *x, struct text *to, const char *s, size_t n)
{
    if (!jinja_steps(x, n / STEP_BYTES))
        return;
    x->written += n;
    if (x->written > x->limits->output_bytes) {
        jinja_fail(x, "more than %zu bytes of output", x->limits->output_bytes);
        return;
    }
    text_add(to, s, n);
    if (to->failed) {
        x->failed = true;
        oato_fail_memory(x->err, n, "the prompt text");
    }
}

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
        return oato_fail_memory(err, sizeof *t, "the chat template");
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
        oato_fail_memory(err, sizeof *x, "the chat template");
        return NULL;
    }
    begin(x, t->x.name, t->x.limits, err);
    x->body = t->x.body;
    x->now = (int64_t)time(NULL);
    x->top = scope_open(x, NULL);
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
        run_body(x, x->body, scope_open(x, x->top));
    if (x->flow != FLOW_ON)
        jinja_fail(x, "break or continue outside of a loop");
    return x->failed ? x->err->status : OATO_OK;
}

void jinja_end(struct jinja *x)
{
    if (x)
        arena_free(&x->arena);
    free(x);
}
