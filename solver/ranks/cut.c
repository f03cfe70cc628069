/*
 * cut.c - how the work of each layer is divided between ranks: heads with their rows of q, k
 * and v and their columns of the output product, neurons of the feed-forward block, experts, rows
 * of the logits. Each rank has one share of all that can be cut. Cuts fall where weights can be
 * cut: on whole heads, on multiples of 64 rows and on whole blocks of columns. A rank may be left
 * without a part; then it adds nothing to the sum.
 */
#include "solver/ranks/ranks_internal.h"

#include <math.h>
#include <string.h>

enum { MULTIPLE = 64 };

static int32_t multiple_of(int32_t a, int32_t b)
{
    int32_t x = a, y = b;
    while (y) {
        const int32_t rest = x % y;
        x = y;
        y = rest;
    }
    return x > 0 ? a / x * b : b;
}

/* Cuts `extent` into shares on multiples of `unit`; NULL: one rank would have it all, or memory is
 * short. */
static int32_t *cut_make(struct dealing *x, int32_t extent, int32_t unit)
{
    const int32_t ranks = x->o->ranks, units = unit > 0 ? extent / unit : 0;
    int32_t *cut = arena_alloc(x->arena, (size_t)ranks + 2, sizeof *cut);
    double sum = 0, all = 0;
    int owners = 0;
    if (!cut) {
        oato_fail_memory(x->err, sizeof *cut, "the plan");
        return NULL;
    }
    for (int32_t r = 0; r < ranks; r++)
        all += x->o->share[r];
    if (all <= 0)
        return NULL;
    cut[ranks + 1] = unit;
    for (int32_t r = 0; r < ranks; r++) {
        sum += x->o->share[r];
        cut[r + 1] = r + 1 == ranks ? extent : (int32_t)lround(sum / all * units) * unit;
        owners += cut[r + 1] > cut[r];
    }
    return owners > 1 ? cut : NULL;
}

static void op_cut(struct dealing *x, int32_t op, enum op_axis axis, const int32_t *cut,
                   int32_t each)
{
    x->op[op] = (struct cut_op){cut, each, axis};
}

/* The one operator that reads the value as its first input; -1: there are others, or it is none of
 * that kind. */
static int32_t reader_of(const struct graph *g, int32_t value, enum op_kind kind)
{
    for (int32_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].in[0] == value && g->ops[i].op.kind == kind)
            return graph_readers(g, value) == 1 ? i : -1;
    return -1;
}

static int32_t block_of(const struct oato_op *op)
{
    const struct dtype_info *d = dtype_info(op->dtype);
    return d && (int32_t)d->block_elems > MULTIPLE ? (int32_t)d->block_elems : MULTIPLE;
}

/* From what reads heads back to the product that makes them, `group` heads for each of the cut:
 * every operator in between works head by head, or column by column. */
static void chain_cut(struct dealing *x, int32_t value, const int32_t *cut, int32_t group)
{
    const struct graph *g = x->g;
    while (graph_readers(g, value) == 1) {
        const int32_t i = g->values[value].producer;
        const struct graph_op *o = &g->ops[i];
        if (op_divides(&o->op, AXIS_HEADS) &&
            (o->op.kind == OP_ROPE || o->op.kind == OP_HEAD_NORM)) {
            op_cut(x, i, AXIS_HEADS, cut, group);
            value = o->in[0];
            continue;
        }
        const int32_t heads = cut[x->o->ranks] * group;
        if (o->op.kind == OP_BIAS && o->op.n % heads == 0) {
            op_cut(x, i, AXIS_ROWS, cut, group * (o->op.n / heads));
            value = o->in[0];
            continue;
        }
        if (o->op.kind == OP_QKV && op_divides(&o->op, AXIS_HEADS) &&
            o->op.n2 % cut[x->o->ranks] == 0)
            op_cut(x, i, AXIS_HEADS, cut, o->op.n2 / cut[x->o->ranks]);
        if (o->op.kind == OP_MUL_MAT && o->op.n % heads == 0)
            op_cut(x, i, AXIS_ROWS, cut, group * (o->op.n / heads));
        return;
    }
}

/* The cut of a layer's KV heads: at whole blocks of each output product that reads them. */
static const int32_t *heads_cut(struct dealing *x, int32_t kv_layer)
{
    const struct graph *g = x->g;
    int32_t unit = 1, heads = 0;
    if (x->heads[kv_layer])
        return x->heads[kv_layer];
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        if (o->kv_layer != kv_layer)
            continue;
        if (!op_divides(&o->op, AXIS_HEADS))
            return NULL;
        heads = o->op.kv_heads;
        const int32_t down = o->op.kind == OP_ATTENTION ? reader_of(g, o->out[0], OP_MUL_MAT) : -1;
        const int32_t block = down < 0 ? MULTIPLE : block_of(&g->ops[down].op);
        const int32_t columns =
            o->op.kind == OP_ATTENTION ? o->op.heads / heads * o->op.head_dim : o->op.head_dim;
        if (columns <= 0)
            return NULL;
        unit = multiple_of(unit, multiple_of(columns, block) / columns);
    }
    return x->heads[kv_layer] = heads ? cut_make(x, heads, unit) : NULL;
}

static void attention_cut(struct dealing *x, int32_t i)
{
    const struct graph_op *o = &x->g->ops[i];
    const int32_t *cut = heads_cut(x, o->kv_layer);
    if (!cut)
        return;
    op_cut(x, i, AXIS_HEADS, cut, 1);
    if (o->op.kind == OP_KV_STORE) {
        chain_cut(x, o->in[0], cut, 1);
        chain_cut(x, o->in[1], cut, 1);
        return;
    }
    const int32_t group = o->op.heads / o->op.kv_heads;
    const int32_t down = reader_of(x->g, o->out[0], OP_MUL_MAT);
    chain_cut(x, o->in[0], cut, group);
    if (down >= 0)
        op_cut(x, down, AXIS_K, cut, group * o->op.head_dim);
}

/* A feed-forward block by its neurons or experts. */
static void pair_cut(struct dealing *x, int32_t i)
{
    const struct oato_op *up = &x->g->ops[i].op, *down = &x->g->ops[i + 1].op;
    const bool experts = op_has_experts(up);
    const int32_t *cut = experts ? cut_make(x, up->experts, 1) : cut_make(x, up->n, block_of(down));
    if (!cut)
        return;
    op_cut(x, i, experts ? AXIS_EXPERTS : AXIS_ROWS, cut, 1);
    op_cut(x, i + 1, experts ? AXIS_EXPERTS : AXIS_K, cut, 1);
}

bool dealing_room(struct dealing *x, struct arena *a)
{
    x->op = arena_alloc(a, (size_t)x->g->n_ops + 1, sizeof *x->op);
    x->heads = arena_alloc(a, (size_t)x->g->n_layers + 1, sizeof *x->heads);
    return x->op && x->heads;
}

oato_status dealing_cut(struct dealing *x)
{
    const struct graph *g = x->g;
    for (int32_t i = 0; i < g->n_ops && !x->err->status; i++) {
        const struct graph_op *o = &g->ops[i];
        if (o->kv_layer >= 0)
            attention_cut(x, i);
        else if (i + 1 < g->n_ops && divide_pair(g, i))
            pair_cut(x, i);
        else if (o->op.kind == OP_MUL_MAT && o->out[0] == g->logits)
            op_cut(x, i, AXIS_ROWS, cut_make(x, o->op.n, MULTIPLE), 1);
    }
    return x->err->status;
}

oato_status ranks_divided(const struct graph *g, int32_t ranks, struct arena *a, bool **divided,
                          struct oato_error *err)
{
    struct rank_options equal = {.ranks = ranks};
    struct dealing x = {.g = g, .o = &equal, .arena = a, .err = err};
    const size_t n = (size_t)g->n_ops;
    for (int32_t r = 0; r < ranks; r++)
        equal.share[r] = 1;
    *divided = arena_alloc(a, n + 1, sizeof **divided);
    if (!*divided || !dealing_room(&x, a))
        return oato_fail_memory(err, n * sizeof *x.op, "operators");
    err->status = OATO_OK;
    if (dealing_cut(&x))
        return err->status;
    for (size_t i = 0; i < n; i++)
        (*divided)[i] = x.op[i].cut;
    return OATO_OK;
}
