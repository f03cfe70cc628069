/*
 * sparse.c - in which layers neurons may be skipped that do not fire, and what the operators cost
 * then. Profiles have their times at several shares of active neurons. Without those rows times
 * follow from the bytes that are read: gate's rows are all read, up's and down's are those of
 * active neurons. Which parts of a layer do skip is an option of its unit (divide_price.c).
 */
#include "solver/planning_internal.h"

#include "lowering/lowering.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Scattered rows are read more slowly than a matrix. */
static const double SLOWER = 1.15;
/* Steps of more tokens compute every neuron: together they need most of them. */
enum { TOKENS_MOST = NUMERICS_DECODE_ROWS };

static bool has_zeros(const struct oato_op *op)
{
    return op->activation == ACT_RELU || op->activation == ACT_RELU_SQUARED;
}

/* The time of an operator with a `share` of its neurons, of which those of `active` are expected to
 * work, in units of the dense operator's. */
static double work_of(const struct oato_op *op, double share, double active)
{
    const double part = op->kind == OP_GATE_UP ? (share + active) / 2 : active;
    return part * SLOWER < share ? part * SLOWER : share;
}

struct op_cost sparse_cost(const struct cost_model *c, int32_t device, const struct oato_op *op,
                           const struct op_size *size, double share, double active)
{
    struct oato_op dense = *op, skipping = *op;
    struct op_size some = *size;
    struct op_cost r;
    dense.sparse = SKIP_NOTHING;
    skipping.sparse = SKIP_ZEROS;
    if (share > 0 && cost_measured(c, device, &skipping)) {
        some.active = (int32_t)fmax(lround(active / share * op_neurons(op)), 1);
        r = cost_of_op(c, device, &skipping, &some);
        r.ns *= share;
        return r;
    }
    const bool skips = cost_supports(c, device, &skipping);
    r = cost_of_op(c, device, &dense, size);
    r.ns *= skips ? work_of(op, share, active) : share;
    r.estimate = r.estimate || skips;
    return r;
}

bool sparse_measured(const struct problem *p)
{
    bool measured = true;
    for (int32_t i = 0; i + 1 < p->graph.n_ops; i++) {
        struct oato_op op = p->graph.ops[i].op;
        op.sparse = SKIP_ZEROS;
        for (int32_t d = 0; d < p->n_devices && op.kind == OP_GATE_UP; d++)
            measured = measured && (cost_measured(p->cost, p->device[d], &op) ||
                                    !cost_supports(p->cost, p->device[d], &op));
    }
    return measured;
}

double sparse_active(bool skips, double frequency, int32_t tokens)
{
    return skips && tokens <= TOKENS_MOST ? 1 - pow(1 - frequency, tokens) : 1;
}

/* The mean share of neurons that fire; 1: unknown. */
static double layer_frequency(const struct neurons *n, int32_t layer)
{
    const struct neurons_layer *l = n ? neurons_layer(n, layer) : NULL;
    double sum = 0;
    if (!l || !l->ffn_freq || !l->n_ff)
        return 1;
    for (int32_t i = 0; i < l->n_ff; i++)
        sum += (double)l->ffn_freq[i];
    return sum / l->n_ff;
}

double sparse_rate(const struct plan_sparse *s, const struct neurons *n, int32_t layer)
{
    char name[32];
    if (!s || s->guess || !(s->threshold > 0) || !n)
        return 1;
    snprintf(name, sizeof name, "blk.%d.ffn_act", layer);
    const struct neurons_magnitudes *m = neurons_magnitudes(n, name);
    const double counted = layer_frequency(n, layer);
    int percent = 0;
    if (!m || !(counted > 0))
        return 1;
    while (percent < 100 && m->quantiles[percent + 1] <= s->threshold)
        percent++;
    return (100 - percent) / 100.0 / counted;
}

/* A layer as oato-run --sparse would set it; skips: its GATE_UP. */
static struct plan_sparse layer_given(const struct sparse_choice *choice,
                                      const struct graph_op *skips)
{
    struct plan_sparse s = {.layer = skips->layer, .threshold = skips->op.threshold};
    if (skips->op.sparse == SKIP_UNLISTED && choice->mode == SPARSE_SIGN)
        s = (struct plan_sparse){s.layer, choice->threshold, 0, PLAN_GUESS_SIGNS};
    else if (skips->op.sparse == SKIP_UNLISTED)
        s.guess = PLAN_GUESS_PREDICTED;
    else if (!has_zeros(&skips->op)) /* 0 would mean neurons that are exactly silent */
        s.threshold = fmaxf(s.threshold, FLT_MIN);
    return s;
}

static oato_status choose_given(struct problem *p, struct oato_error *err)
{
    struct sparse_choice choice;
    struct graph g = p->graph; /* its operators stay as they are: what skips has other keys */
    const size_t n = (size_t)g.n_ops;
    oato_status status = sparse_parse(p->sparse_mode, &choice, err);
    p->sparse_given = true;
    g.ops = status ? NULL : malloc(n * sizeof *g.ops);
    if (!g.ops)
        return status ? status : oato_fail_memory(err, n * sizeof *g.ops, "operators");
    memcpy(g.ops, p->graph.ops, n * sizeof *g.ops);
    status = sparse_apply(&g, &choice, p->neurons, err);
    for (int32_t i = 0; i + 1 < g.n_ops && !status; i++)
        if (g.ops[i].op.kind == OP_GATE_UP && g.ops[i].op.sparse && divide_pair(&p->graph, i) &&
            !plan_skips(p->sparse, p->n_sparse, g.ops[i].layer))
            p->sparse[p->n_sparse++] = layer_given(&choice, &g.ops[i]);
    free(g.ops);
    if (!status && !p->n_sparse)
        return oato_fail(err, OATO_EUSAGE,
                         "--sparse %s: plans skip neurons of gated feed-forward blocks, and this "
                         "model has none; leave it out here and give it to oato-run",
                         p->sparse_mode);
    return status;
}

oato_status sparse_choose(struct problem *p, const struct planner_options *o,
                          struct oato_error *err)
{
    const struct graph *g = &p->graph;
    if (o->sparse == PLANNER_SPARSE_OFF)
        return OATO_OK;
    p->sparse = arena_alloc(&p->arena, (size_t)g->n_layers + 1, sizeof *p->sparse);
    if (!p->sparse)
        return oato_fail_memory(err, (size_t)g->n_layers * sizeof *p->sparse, "sparse layers");
    if (o->sparse == PLANNER_SPARSE_GIVEN) {
        p->sparse_mode = o->sparse_mode;
        return choose_given(p, err);
    }
    for (int32_t i = 0; i + 1 < g->n_ops; i++)
        if (g->ops[i].op.kind == OP_GATE_UP && has_zeros(&g->ops[i].op) && divide_pair(g, i) &&
            !plan_skips(p->sparse, p->n_sparse, g->ops[i].layer) &&
            layer_frequency(p->neurons, g->ops[i].layer) < 1)
            p->sparse[p->n_sparse++] = (struct plan_sparse){.layer = g->ops[i].layer};
    return OATO_OK;
}
