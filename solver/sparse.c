/*
 * sparse.c - in which layers neurons may be skipped that do not fire, and how many those are;
 * price.c has what the operators cost then. Which parts of a layer do skip, and whether predictors
 * say what, is an option of its unit (divide_price.c).
 */
#include "solver/planning_internal.h"

#include "lowering/lowering.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool sparse_measured(const struct problem *p, const struct plan *plan)
{
    bool measured = true;
    for (int32_t i = 0; i + 1 < p->graph.n_ops; i++) {
        struct oato_op op = p->graph.ops[i].op;
        const struct plan_sparse *s =
            plan_skips(plan->sparse, plan->n_sparse, p->graph.ops[i].layer);
        const struct silence *silent = p->silent ? &p->silent[i] : NULL;
        const bool listed = op.kind == OP_GATE_UP ? s && s->predicts : silent && silent->list;
        op.sparse = listed ? SPARSE_PREDICT : SPARSE_ABOVE;
        const bool skips = op.kind == OP_GATE_UP || (silent && silent->share > 0);
        for (int32_t d = 0; d < p->n_devices && skips; d++)
            measured = measured && (cost_measured(p->cost, p->device[d], &op) ||
                                    !cost_supports(p->cost, p->device[d], &op));
    }
    return measured;
}

double sparse_frequency(const struct neurons *n, int32_t layer)
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
    if (!s || s->predicts || !(s->threshold > 0) || !n)
        return 1;
    snprintf(name, sizeof name, "blk.%d.ffn_act", layer);
    const struct neurons_magnitudes *m = neurons_magnitudes(n, name);
    const double counted = sparse_frequency(n, layer);
    int percent = 0;
    if (!m || !(counted > 0))
        return 1;
    while (percent < 100 && m->quantiles[percent + 1] <= s->threshold)
        percent++;
    return (100 - percent) / 100.0 / counted;
}

bool sparse_allows(const struct problem *p, enum op_kind fused)
{
    return sparse_fuses(&p->choice, fused);
}

bool sparse_demands(const struct problem *p, enum op_kind fused)
{
    return fused == OP_GATE_UP && p->choice.mode != SPARSE_OFF;
}

static double input_silent(const struct graph_op *o, const struct skipping *s)
{
    for (int32_t i = 0; i < s->n_inputs; i++)
        if (!strcmp(s->inputs[i].tensor, o->weight[0]->name))
            return (double)s->inputs[i].silent;
    return 0;
}

/* The share of the rows that a product before an activation need not compute. */
static void rows_unlisted(const struct graph *g, const struct skipping *s,
                          const struct plan_sparse *layer, const struct graph_op *neurons,
                          struct silence *silent)
{
    const struct graph_op *o = sparse_listed(g, neurons);
    if (!o || o == neurons || !layer->predicts || !s->neurons ||
        !neurons_predictor(s->neurons, layer->layer))
        return;
    silent[o - g->ops] = (struct silence){1 - predictor_lists(layer, s->neurons), layer};
}

void sparse_silences(const struct graph *g, const struct skipping *s, struct silence *silent)
{
    memset(silent, 0, (size_t)g->n_ops * sizeof *silent);
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const struct plan_sparse *layer = plan_skips(s->sparse, s->n_sparse, o->layer);
        const bool product = o->op.kind == OP_MUL_MAT && o->n_weights && o->weight[0];
        const struct graph_op *neurons = layer ? sparse_neurons(g, o, false) : NULL;
        const double often = sparse_frequency(s->neurons, o->layer);
        if (neurons)
            rows_unlisted(g, s, layer, neurons, silent);
        if (!product || silent[i].list || (layer && i && divide_pair(g, i - 1)))
            continue;
        silent[i].share = input_silent(o, s);
        if (neurons)
            silent[i].share =
                fmax(silent[i].share, 1 - often * sparse_rate(layer, s->neurons, o->layer));
    }
}

/* A layer as oato-run --sparse would set it; its neurons and their product. */
static struct plan_sparse layer_given(const struct graph *g, const struct graph_op *neurons,
                                      const struct graph_op *down)
{
    const bool gate = neurons->op.kind == OP_GATE_UP;
    struct plan_sparse s = {.layer = down->layer,
                            .threshold = gate ? neurons->op.threshold : down->op.threshold};
    for (int32_t i = 0; i < g->n_ops; i++)
        s.predicts |= g->ops[i].layer == s.layer && g->ops[i].op.sparse == SPARSE_PREDICT;
    if (!s.predicts && !activation_has_zeros((enum activation)neurons->op.activation))
        s.threshold =
            fmaxf(s.threshold, FLT_MIN); /* 0 would mean neurons that are exactly silent */
    return s;
}

static void layers_given(struct problem *p, const struct graph *g)
{
    const bool any = p->choice.mode == SPARSE_ABOVE || p->choice.mode == SPARSE_THRESHOLD;
    for (int32_t i = 0; i < g->n_ops && p->choice.mode != SPARSE_OFF; i++) {
        const struct graph_op *neurons = sparse_neurons(g, &g->ops[i], !any);
        if (neurons && !plan_skips(p->sparse, p->n_sparse, g->ops[i].layer))
            p->sparse[p->n_sparse++] = layer_given(g, neurons, &g->ops[i]);
    }
}

/* The share of a matrix's inputs that was counted to be at most `threshold`. */
static double silent_inputs(const struct graph_op *o, float threshold, const struct neurons *n)
{
    const struct neurons_magnitudes *m = sparse_inputs(o, n);
    int percent = 0;
    while (m && percent < 100 && m->quantiles[percent + 1] <= threshold)
        percent++;
    return percent / 100.0;
}

static oato_status inputs_given(struct problem *p, const struct graph *g, struct oato_error *err)
{
    p->inputs = arena_alloc(&p->arena, (size_t)g->n_ops + 1, sizeof *p->inputs);
    if (!p->inputs)
        return oato_fail_memory(err, (size_t)g->n_ops * sizeof *p->inputs, "sparse inputs");
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        if (sparse_takes_inputs(o))
            p->inputs[p->n_inputs++] = (struct plan_input){
                .tensor = o->weight[0]->name,
                .threshold = o->op.threshold,
                .silent = (float)silent_inputs(o, o->op.threshold, p->neurons),
            };
    }
    return OATO_OK;
}

static oato_status choose_given(struct problem *p, struct oato_error *err)
{
    struct sparse_choice neurons = p->choice;
    struct graph g = p->graph; /* its operators stay as they are: what skips has other keys */
    const size_t n = (size_t)g.n_ops;
    p->sparse_given = true;
    g.ops = malloc(n * sizeof *g.ops);
    if (!g.ops)
        return oato_fail_memory(err, n * sizeof *g.ops, "operators");
    memcpy(g.ops, p->graph.ops, n * sizeof *g.ops);
    neurons.skips_inputs = false;
    oato_status status = sparse_apply(&g, &neurons, p->neurons, err);
    if (!status)
        layers_given(p, &g);
    if (!status && p->choice.skips_inputs)
        status = sparse_apply(&g, &p->choice, p->neurons, err);
    if (!status && p->choice.skips_inputs)
        status = inputs_given(p, &g, err);
    free(g.ops);
    return status;
}

oato_status sparse_choose(struct problem *p, struct oato_error *err)
{
    const struct graph *g = &p->graph;
    if (p->choice.given && p->choice.mode == SPARSE_OFF && !p->choice.skips_inputs)
        return OATO_OK;
    p->sparse = arena_alloc(&p->arena, (size_t)g->n_layers + 1, sizeof *p->sparse);
    if (!p->sparse)
        return oato_fail_memory(err, (size_t)g->n_layers * sizeof *p->sparse, "sparse layers");
    if (p->choice.given)
        return choose_given(p, err);
    for (int32_t i = 0; i + 1 < g->n_ops; i++)
        if (g->ops[i].op.kind == OP_GATE_UP &&
            activation_has_zeros((enum activation)g->ops[i].op.activation) && divide_pair(g, i) &&
            !plan_skips(p->sparse, p->n_sparse, g->ops[i].layer) &&
            sparse_frequency(p->neurons, g->ops[i].layer) < 1)
            p->sparse[p->n_sparse++] = (struct plan_sparse){.layer = g->ops[i].layer};
    return OATO_OK;
}
