/*
 * limits.c - limits of steps, nesting, output and memory. Every part of the interpreter that
 * could be made to work for long asks here first, and the first failure ends the run with one line
 * that names the template, the line in it and the limit.
 */
#include "text/jinja/jinja_internal.h"

#include <stdarg.h>

const struct jinja_limits jinja_limits_default = {
    .steps = 10000000, /* some seconds; gemma 4 takes 3 million for a thousand messages */
    .depth = 500,
    .output_bytes = (size_t)16 << 20,
    .memory_bytes = (size_t)128 << 20,
    .template_bytes = (size_t)1 << 20,
};

/* A step of a run is some of a budget; it is asked whenever so much has come together. */
enum { STEP_COST = 8, SPEND_STEPS = 1024, SPEND_BYTES = 64 << 10 };

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

void jinja_budget(struct jinja *x, struct budget *b)
{
    x->budget = b;
    x->spent_steps = x->steps;
    x->spent_bytes = x->arena.used_bytes + x->written;
}

void jinja_spend(struct jinja *x, size_t bytes)
{
    const size_t used = x->arena.used_bytes + x->written + bytes;
    if (x->failed || !x->budget)
        return;
    if (budget_spend(x->budget, (uint64_t)(x->steps - x->spent_steps) * STEP_COST,
                     used > x->spent_bytes ? used - x->spent_bytes : 0,
                     "the chat template, with what it is given,", x->err))
        x->failed = true;
    x->spent_steps = x->steps;
    x->spent_bytes = used > x->spent_bytes ? used : x->spent_bytes;
}

bool jinja_steps(struct jinja *x, size_t n)
{
    x->steps += (int64_t)n;
    if (x->budget && x->steps - x->spent_steps >= SPEND_STEPS)
        jinja_spend(x, 0);
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
    if (x->budget && used + bytes + x->written >= x->spent_bytes + SPEND_BYTES)
        jinja_spend(x, bytes);
    if (x->failed)
        return NULL;
    void *p = arena_alloc(&x->arena, bytes, 1);
    if (!p) {
        x->failed = true;
        oato_fail_memory(x->err, bytes, "the template");
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
    if (x->budget && x->arena.used_bytes + x->written >= x->spent_bytes + SPEND_BYTES)
        jinja_spend(x, 0);
    if (x->failed)
        return;
    text_add(to, s, n);
    if (to->failed) {
        x->failed = true;
        oato_fail_memory(x->err, n, "the text of a template");
    }
}
