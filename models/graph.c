/*
 * graph.c - the operator graph: a flat array in execution order over numbered values, and fusion:
 * replacing runs of operators by one equivalent operator with fewer passes over memory. Fusing
 * keeps the number of every value that survives, so that traces of both graphs can be compared.
 */
#include "models/models.h"

#include <stdlib.h>
#include <string.h>

static bool same_product(const struct graph *g, const struct graph_op *a, const struct graph_op *b)
{
    return a->in[0] == b->in[0] && a->op.dtype == b->op.dtype && a->op.k == b->op.k &&
           g->values[a->out[0]].rows == g->values[b->out[0]].rows;
}

int32_t graph_readers(const struct graph *g, int32_t value)
{
    int32_t n = value == g->logits;
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int32_t j = 0; j < g->ops[i].n_in; j++)
            n += g->ops[i].in[j] == value;
    return n;
}

/* The conditions on values, by the fused kind; m are the members, already of the right kinds. */
static bool values_fit(const struct graph *g, enum op_kind fused, const struct graph_op *m)
{
    switch (fused) {
    case OP_QKV:
        return same_product(g, &m[0], &m[1]) && same_product(g, &m[0], &m[2]) &&
               m[1].op.n == m[2].op.n;
    case OP_GATE_UP:
        return same_product(g, &m[0], &m[1]) && m[0].op.n == m[1].op.n &&
               m[2].in[0] == m[0].out[0] && m[2].in[1] == m[1].out[0] &&
               graph_readers(g, m[0].out[0]) == 1 && graph_readers(g, m[1].out[0]) == 1;
    case OP_ADD_NORM: return m[1].in[0] == m[0].out[0];
    default: return false;
    }
}

static bool matches_at(const struct graph *g, int32_t fusion, int32_t first)
{
    const struct op_fusion *f = &op_fusions[fusion];
    if (first < 0 || first + f->n_members > g->n_ops)
        return false;
    for (int i = 0; i < f->n_members; i++)
        if (g->ops[first + i].op.kind != f->member[i])
            return false;
    return values_fit(g, f->fused, &g->ops[first]);
}

int32_t graph_matches(const struct graph *g, struct graph_match *out, int32_t max)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        for (int32_t f = 0; f < op_fusion_count; f++) {
            if (!matches_at(g, f, i))
                continue;
            if (n < max)
                out[n] = (struct graph_match){f, i};
            n++;
        }
    }
    return n;
}

int32_t graph_cover(const struct graph *g, graph_match_fn *take, void *user,
                    struct graph_match *out)
{
    int32_t all = graph_matches(g, NULL, 0), n = 0, free_from = 0;
    graph_matches(g, out, all);
    for (int32_t i = 0; i < all; i++) {
        if (out[i].first < free_from || (take && !take(user, g, out[i])))
            continue;
        free_from = out[i].first + op_fusions[out[i].fusion].n_members;
        out[n++] = out[i];
    }
    return n;
}

static bool is_norm(uint16_t kind)
{
    return kind == OP_RMS_NORM || kind == OP_ADD_NORM;
}

static bool is_product(uint16_t kind)
{
    return kind == OP_MUL_MAT || kind == OP_QKV || kind == OP_GATE_UP;
}

/* Of the kinds that need not be told apart by what they read. */
static enum op_join join_of(uint16_t before, uint16_t kind)
{
    if (is_norm(before) && is_product(kind))
        return JOIN_NORM;
    if (before == OP_ATTENTION && kind == OP_MUL_MAT)
        return JOIN_ATTENTION;
    if (before == OP_MUL_MAT && (kind == OP_ADD || kind == OP_BIAS))
        return JOIN_ADD;
    return before == OP_ROPE && kind == OP_KV_STORE ? JOIN_ROPE_STORE : JOIN_NONE;
}

enum op_join graph_join(const struct graph *g, int32_t i, int32_t *first)
{
    const struct graph_op *last = &g->ops[i];
    int32_t f = i - 1;
    while (f > 0 && is_product(last->op.kind) && is_product(g->ops[f].op.kind) &&
           g->ops[f].in[0] == last->in[0])
        f--;
    const enum op_join join = f < 0 ? JOIN_NONE : join_of(g->ops[f].op.kind, last->op.kind);
    if (join == JOIN_NONE || (join == JOIN_ATTENTION && f != i - 1))
        return JOIN_NONE;
    const int32_t made = g->ops[f].out[g->ops[f].n_out - 1];
    bool reads = last->in[0] == made || (last->op.kind == OP_ADD && last->in[1] == made);
    if (join == JOIN_ROPE_STORE)
        reads = reads && --f >= 0 && g->ops[f].op.kind == OP_ROPE;
    *first = f;
    return reads ? join : JOIN_NONE;
}

struct graph_op graph_fused(const struct graph *g, struct graph_match match)
{
    const struct graph_op *m = &g->ops[match.first];
    struct graph_op r = m[0];
    r.op.kind = (uint16_t)op_fusions[match.fusion].fused;
    switch (r.op.kind) {
    case OP_QKV:
        r.op.n2 = m[1].op.n;
        r.n_out = r.n_weights = 3;
        for (int i = 0; i < 3; i++) {
            r.out[i] = m[i].out[0];
            r.weight[i] = m[i].weight[0];
        }
        break;
    case OP_GATE_UP:
        r.out[0] = m[2].out[0];
        r.op.activation = m[2].op.activation;
        r.op.scale = m[2].op.scale;
        r.n_weights = 2;
        r.weight[1] = m[1].weight[0];
        break;
    case OP_ADD_NORM:
        r.op.eps = m[1].op.eps;
        r.op.norm = m[1].op.norm;
        r.n_out = 2;
        r.out[1] = m[1].out[0];
        r.n_weights = m[1].n_weights;
        memcpy(r.weight, m[1].weight, sizeof r.weight);
        break;
    default: break;
    }
    return r;
}

/* Copies the name, with a suffix, into the new graph's arena. */
static const char *name_in(struct graph *g, const char *name, const char *suffix)
{
    size_t bytes = strlen(name) + strlen(suffix) + 1;
    char *s = arena_alloc(&g->arena, bytes, 1);
    if (s)
        snprintf(s, bytes, "%s%s", name, suffix);
    return s;
}

static oato_status check_matches(const struct graph *g, const struct graph_match *m, int32_t n,
                                 struct oato_error *err)
{
    int32_t free_from = 0;
    for (int32_t i = 0; i < n; i++) {
        if (m[i].fusion < 0 || m[i].fusion >= op_fusion_count ||
            !matches_at(g, m[i].fusion, m[i].first))
            return oato_fail(err, OATO_EFILE, "fusion %d does not match at operator %d",
                             m[i].fusion, m[i].first);
        if (m[i].first < free_from)
            return oato_fail(err, OATO_EFILE, "fusion '%s' at %s overlaps the one before it",
                             op_fusions[m[i].fusion].name, g->ops[m[i].first].name);
        free_from = m[i].first + op_fusions[m[i].fusion].n_members;
    }
    return OATO_OK;
}

oato_status graph_fuse(const struct graph *g, const struct graph_match *m, int32_t n,
                       struct graph *out, struct oato_error *err)
{
    memset(out, 0, sizeof *out);
    oato_status status = check_matches(g, m, n, err);
    if (status)
        return status;
    arena_init(&out->arena);
    out->n_values = g->n_values;
    out->logits = g->logits;
    out->n_layers = g->n_layers;
    out->ops = arena_alloc(&out->arena, (size_t)g->n_ops, sizeof *out->ops);
    out->values = arena_alloc(&out->arena, (size_t)g->n_values, sizeof *out->values);
    if (!out->ops || !out->values)
        goto memory;
    memcpy(out->values, g->values, (size_t)g->n_values * sizeof *g->values);
    for (int32_t i = 0, next = 0; i < g->n_ops;) {
        struct graph_op *op = &out->ops[out->n_ops];
        if (next < n && m[next].first == i) {
            const struct op_fusion *f = &op_fusions[m[next].fusion];
            *op = graph_fused(g, m[next]);
            op->name = name_in(out, g->ops[i].name, f->suffix);
            i += f->n_members;
            next++;
        } else {
            *op = g->ops[i];
            op->name = name_in(out, g->ops[i].name, "");
            i++;
        }
        if (!op->name)
            goto memory;
        for (int32_t j = 0; j < op->n_out; j++)
            out->values[op->out[j]].producer = out->n_ops;
        out->n_ops++;
    }
    return OATO_OK;
memory:
    graph_free(out);
    return oato_fail_memory(err, (size_t)g->n_ops * sizeof *g->ops, "the operator graph");
}

oato_status graph_fuse_all(const struct graph *g, graph_match_fn *take, void *user,
                           struct graph *out, struct oato_error *err)
{
    const size_t all = (size_t)graph_matches(g, NULL, 0);
    struct graph_match *m = calloc(all + 1, sizeof *m);
    if (!m)
        return oato_fail_memory(err, all * sizeof *m, "fusions");
    const oato_status status = graph_fuse(g, m, graph_cover(g, take, user, m), out, err);
    free(m);
    return status;
}

void graph_free(struct graph *g)
{
    arena_free(&g->arena);
    memset(g, 0, sizeof *g);
}

struct op_size graph_op_size(const struct graph *g, int32_t op, int32_t tokens, int32_t rows,
                             int32_t seqs, int64_t kv_positions)
{
    const struct graph_op *o = &g->ops[op];
    int32_t value = o->n_out ? o->out[0] : o->in[0];
    bool attention = o->op.kind == OP_ATTENTION;
    if (o->op.window)
        kv_positions = min_i64(kv_positions, (int64_t)tokens * o->op.window);
    return (struct op_size){
        .rows = g->values[value].rows ? rows : tokens,
        .seqs = op_has_seqs(o->op.kind) ? seqs : 1,
        .kv_positions = attention ? kv_positions : 0,
    };
}

struct oato_op graph_op_with_kv(const struct graph_op *op, oato_dtype kv)
{
    struct oato_op r = op->op;
    if (op_has_kv(&r))
        r.dtype = (uint16_t)kv;
    return r;
}

uint64_t graph_state_bytes(const struct graph *g)
{
    uint64_t floats = 0;
    for (int32_t i = 0; i < g->n_ops; i++)
        floats += (uint64_t)op_state_floats(&g->ops[i].op);
    return floats * sizeof(float);
}

int32_t graph_window(const struct graph *g)
{
    int32_t widest = 0;
    for (int32_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].op.kind == OP_KV_STORE && g->ops[i].op.window > widest)
            widest = g->ops[i].op.window;
    return widest;
}

uint64_t graph_kv_bytes(const struct graph *g, oato_dtype kv)
{
    uint64_t bytes = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct oato_op *op = &g->ops[i].op;
        if (op->kind == OP_KV_STORE)
            bytes += op_kv_bytes(op, kv);
    }
    return bytes;
}
