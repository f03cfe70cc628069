/*
 * builder.c - what an architecture builds its graph with: hyperparameters, tensors and operators.
 * The first error is kept, and every call after it does nothing.
 */
#include "models/models_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_SIZE = 160 };

/* The value of "ARCH.key", whose full name goes to `name`; NULL when it is missing, which is an
 * error if it is demanded, or when the builder has failed. */
static const struct gguf_value *find_value(struct graph_builder *b, const char *key, bool demanded,
                                           char name[KEY_SIZE])
{
    if (build_failed(b))
        return NULL;
    snprintf(name, KEY_SIZE, "%s.%s", b->shape->architecture, key);
    const struct gguf_value *value = gguf_find(b->gguf, name);
    if (!value && demanded)
        oato_fail(b->err, OATO_EFILE, "%s: key %s is missing", gguf_path(b->gguf), name);
    return value;
}

const struct gguf_value *build_value(struct graph_builder *b, const char *key)
{
    char name[KEY_SIZE];
    return find_value(b, key, false, name);
}

const struct gguf_value *build_value_of(struct graph_builder *b, const char *key,
                                        enum gguf_wanted wanted)
{
    char name[KEY_SIZE];
    const struct gguf_value *v = find_value(b, key, false, name);
    return v && gguf_value_check(gguf_path(b->gguf), name, v, wanted, b->err) ? NULL : v;
}

int32_t build_block(const struct graph_builder *b, int32_t layer)
{
    if (!b->stack)
        return layer;
    const bool second = b->low_cycles && layer / b->stack % (b->low_cycles + 1) == b->low_cycles;
    return (second ? b->stack : 0) + layer % b->stack;
}

/* Which element of an array that has one for each block. */
static uint64_t element_of(const struct graph_builder *b, int32_t layer)
{
    return layer < 0 ? 0 : (uint64_t)build_block(b, layer);
}

/* False, and the builder has failed, where the value, or the element of an array that is asked for
 * a layer, is no such number. */
static bool number_check(struct graph_builder *b, const char *name, const struct gguf_value *v,
                         int32_t layer, enum gguf_wanted wanted)
{
    const bool array = v->type == GGUF_ARRAY && layer >= 0;
    if (array)
        wanted = wanted == GGUF_WANT_INTEGER ? GGUF_WANT_INTEGERS : GGUF_WANT_NUMBERS;
    if (gguf_value_check(gguf_path(b->gguf), name, v, wanted, b->err))
        return false;
    if (array && element_of(b, layer) >= v->count)
        oato_fail(b->err, OATO_EFILE, "%s: key %s is an ARRAY of %llu, none for layer %d",
                  gguf_path(b->gguf), name, (unsigned long long)v->count, layer);
    return !build_failed(b);
}

int32_t build_int(struct graph_builder *b, const char *key, int32_t layer, int64_t lo, int64_t hi,
                  int64_t otherwise)
{
    char name[KEY_SIZE];
    int64_t v = otherwise;
    const struct gguf_value *value = find_value(b, key, otherwise < 0, name);
    if (!value || !number_check(b, name, value, layer, GGUF_WANT_INTEGER))
        return build_failed(b) ? 0 : (int32_t)v;
    if (!gguf_value_i64(value, element_of(b, layer), &v))
        oato_fail(b->err, OATO_EFILE, "%s: key %s is above %lld; allowed: %lld to %lld",
                  gguf_path(b->gguf), name, (long long)INT64_MAX, (long long)lo, (long long)hi);
    else if (v < lo || v > hi)
        oato_fail(b->err, OATO_EFILE, "%s: key %s is %lld; allowed: %lld to %lld",
                  gguf_path(b->gguf), name, (long long)v, (long long)lo, (long long)hi);
    return build_failed(b) ? 0 : (int32_t)v;
}

float build_float(struct graph_builder *b, const char *key, double lo, double hi, double otherwise)
{
    return build_float_of(b, key, -1, lo, hi, otherwise);
}

float build_float_of(struct graph_builder *b, const char *key, int32_t layer, double lo, double hi,
                     double otherwise)
{
    char name[KEY_SIZE];
    double v = otherwise;
    const struct gguf_value *value = find_value(b, key, otherwise < 0, name);
    if (value && number_check(b, name, value, layer, GGUF_WANT_NUMBER) &&
        (!gguf_value_f64(value, element_of(b, layer), &v) || !(v >= lo && v <= hi)))
        oato_fail(b->err, OATO_EFILE, "%s: key %s is not a number from %.10g to %.10g",
                  gguf_path(b->gguf), name, lo, hi);
    return build_failed(b) ? 0 : (float)v;
}

void build_demand(struct graph_builder *b, const char *key)
{
    char name[KEY_SIZE];
    find_value(b, key, true, name);
}

float build_float_any(struct graph_builder *b, const char *key, double lo, double hi,
                      double otherwise)
{
    return build_value(b, key) ? build_float(b, key, lo, hi, 0) : (float)otherwise;
}

bool build_bool(struct graph_builder *b, const char *key, bool otherwise)
{
    char name[KEY_SIZE];
    bool v = otherwise;
    const struct gguf_value *value = find_value(b, key, false, name);
    if (value && !gguf_value_check(gguf_path(b->gguf), name, value, GGUF_WANT_BOOL, b->err))
        v = *value->data != 0;
    return v;
}

bool build_flag(struct graph_builder *b, const char *key, int32_t layer)
{
    char name[KEY_SIZE];
    const struct gguf_value *v = find_value(b, key, false, name);
    const bool bools = v && v->type == GGUF_ARRAY && v->elem == GGUF_BOOL;
    if (bools && (uint64_t)layer < v->count)
        return v->data[layer] != 0;
    if (bools)
        oato_fail(b->err, OATO_EFILE, "%s: key %s is an ARRAY of %llu, none for layer %d",
                  gguf_path(b->gguf), name, (unsigned long long)v->count, layer);
    return build_int(b, key, layer, 0, 1, -1);
}

static void mark_used(struct graph_builder *b, const struct gguf_tensor *t)
{
    const struct gguf_tensor *first = gguf_tensor_at(b->gguf, 0);
    b->used[t - first] = true;
}

/* True when a part of the name that starts at a dot starts like one of the words. */
bool build_ignores(const struct graph_builder *b, const char *name)
{
    for (const char *word = b->ignored; word && *word;) {
        const size_t n = strcspn(word, " ");
        for (const char *part = name; part; part = (part = strchr(part, '.')) ? part + 1 : NULL)
            if (!strncmp(part, word, n))
                return true;
        word += n + strspn(word + n, " ");
    }
    return false;
}

static const struct gguf_tensor *find_tensor(struct graph_builder *b, const char *name,
                                             const int64_t ne[3], bool optional)
{
    const struct gguf_tensor *t = gguf_tensor(b->gguf, name);
    if (t && optional && build_ignores(b, name))
        return NULL;
    if (!t && b->absent)
        return b->absent(b->absent_context, name, ne, optional);
    if (!t) {
        if (!optional)
            oato_fail(b->err, OATO_EFILE, "%s: tensor %s is missing", gguf_path(b->gguf), name);
        return NULL;
    }
    if (memcmp(t->ne, ne, 3 * sizeof *ne) != 0 || t->ne[3] != 1) {
        oato_fail(
            b->err, OATO_EFILE,
            "%s: tensor %s is %lld x %lld x %lld, but the model's keys require %lld x %lld x %lld",
            gguf_path(b->gguf), name, (long long)t->ne[0], (long long)t->ne[1], (long long)t->ne[2],
            (long long)ne[0], (long long)ne[1], (long long)ne[2]);
        return NULL;
    }
    mark_used(b, t);
    return t;
}

/* "blk.LAYER." becomes the name of the block, whose number is no longer. Scales are not shared by
 * the runs of a block: llama.cpp looks for blk.LAYER.*.scale. */
static void name_block(const struct graph_builder *b, char name[GGUF_MAX_NAME + 1])
{
    char number[12], *end = strrchr(name, '.');
    if (!b->stack || strncmp(name, "blk.", 4) != 0 || !strcmp(end, ".scale"))
        return;
    const int32_t layer = (int32_t)strtol(name + 4, &end, 10);
    const size_t n = (size_t)snprintf(number, sizeof number, "%d", build_block(b, layer));
    memmove(name + 4 + n, end, strlen(end) + 1);
    memcpy(name + 4, number, n);
}

static const struct gguf_tensor *find_named(struct graph_builder *b, const int64_t ne[3],
                                            bool optional, const char *fmt, va_list ap)
{
    char name[GGUF_MAX_NAME + 1];
    if (build_failed(b))
        return NULL;
    vsnprintf(name, sizeof name, fmt, ap);
    name_block(b, name);
    return find_tensor(b, name, ne, optional);
}

const struct gguf_tensor *build_tensor(struct graph_builder *b, int64_t k, int64_t rows,
                                       bool optional, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int64_t ne[] = {k, rows ? rows : 1, 1};
    const struct gguf_tensor *t = find_named(b, ne, optional, fmt, ap);
    va_end(ap);
    return t;
}

const struct gguf_tensor *build_tensor_experts(struct graph_builder *b, int64_t k, int64_t rows,
                                               int64_t experts, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int64_t ne[] = {k, rows, experts};
    const struct gguf_tensor *t = find_named(b, ne, false, fmt, ap);
    va_end(ap);
    return t;
}

static int32_t add_value(struct graph_builder *b, int32_t width, int32_t rows)
{
    struct graph *g = b->graph;
    if (g->n_values == b->values_cap) {
        oato_fail(b->err, OATO_EFILE, "%s: the graph has more than %d values", gguf_path(b->gguf),
                  b->values_cap);
        return -1;
    }
    g->values[g->n_values] = (struct graph_value){width, rows, g->n_ops};
    return g->n_values++;
}

int32_t build_op(struct graph_builder *b, int32_t layer, const char *name, struct oato_op op,
                 int32_t in0, int32_t in1, const struct gguf_tensor *weight, int32_t width)
{
    struct graph *g = b->graph;
    char full[80];
    if (build_failed(b))
        return -1;
    if (g->n_ops == b->ops_cap) {
        oato_fail(b->err, OATO_EFILE, "%s: the graph has more than %d operators",
                  gguf_path(b->gguf), b->ops_cap);
        return -1;
    }
    if (layer >= 0 && layer < g->n_layers)
        snprintf(full, sizeof full, "blk.%d.%s", layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    struct graph_op *o = &g->ops[g->n_ops];
    *o = (struct graph_op){
        .op = op,
        .name = arena_strndup(&g->arena, full, strlen(full)),
        .layer = layer,
        .kv_layer = op_has_kv(&op) ? layer : -1,
        .n_in = (in0 >= 0) + (in1 >= 0),
        .in = {in0, in1},
        .n_weights = weight != NULL,
        .weight = {weight},
    };
    if (!o->name) {
        oato_fail_memory(b->err, strlen(full), "the operator graph");
        return -1;
    }
    int32_t rows = in0 >= 0 ? g->values[in0].rows : 0;
    if (op.kind == OP_SELECT)
        rows = 1;
    if (width) {
        o->n_out = 1;
        o->out[0] = add_value(b, width, rows);
    }
    g->n_ops++;
    return width ? o->out[0] : -1;
}

void build_input(struct graph_builder *b, int32_t value)
{
    if (build_failed(b))
        return;
    struct graph_op *o = &b->graph->ops[b->graph->n_ops - 1];
    o->in[o->n_in++] = value;
}

void build_weight(struct graph_builder *b, const struct gguf_tensor *weight)
{
    if (build_failed(b))
        return;
    struct graph_op *o = &b->graph->ops[b->graph->n_ops - 1];
    o->weight[o->n_weights++] = weight;
}

void build_kv_layer(struct graph_builder *b, int32_t layer)
{
    if (!build_failed(b))
        b->graph->ops[b->graph->n_ops - 1].kv_layer = layer;
}

void build_beyond(struct graph_builder *b, const struct gguf_tensor *weight, int32_t context)
{
    if (build_failed(b))
        return;
    struct graph_op *o = &b->graph->ops[b->graph->n_ops - 1];
    o->beyond = weight;
    o->beyond_context = context;
}

void build_extras(struct graph_builder *b, const struct gguf_tensor *const *weights, int n)
{
    while (n && !weights[n - 1]) /* an operator without any is as if there could be none */
        n--;
    for (int i = 0; i < n; i++)
        build_weight(b, weights[i]);
}

int32_t build_mul_mat(struct graph_builder *b, int32_t layer, const char *name, int32_t in,
                      const struct gguf_tensor *weight)
{
    if (build_failed(b))
        return -1;
    struct oato_op op = {.kind = OP_MUL_MAT,
                         .dtype = (uint16_t)weight->dtype,
                         .k = (int32_t)weight->ne[0],
                         .n = (int32_t)weight->ne[1]};
    return build_op(b, layer, name, op, in, -1, weight, op.n);
}
