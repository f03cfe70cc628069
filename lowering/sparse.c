/*
 * sparse.c - which operators of a fused graph skip neurons that are near zero, and below which
 * activation. Such an FFN is a GATE_UP, or an activation, whose only reader is a product (down).
 * And which products skip inputs that are near zero (TEAL, Liu et al. 2024), whatever made them.
 */
#include "lowering/lowering.h"

#include <math.h>
#include <string.h>

/* What makes the input of a product that may skip some of it; NULL: it may not. */
static struct graph_op *neurons_of(const struct graph *g, const struct graph_op *down)
{
    const bool product = down->op.kind == OP_MUL_MAT || down->op.kind == OP_MUL_MAT_T;
    if (!product || graph_readers(g, down->in[0]) != 1)
        return NULL;
    const int32_t maker = g->values[down->in[0]].producer;
    struct graph_op *o = maker < 0 ? NULL : &g->ops[maker];
    const bool makes =
        o && (o->op.kind == OP_GATE_UP || o->op.kind == OP_SWIGLU || o->op.kind == OP_ACTIVATE);
    return makes ? o : NULL;
}

const struct graph_op *sparse_neurons(const struct graph *g, const struct graph_op *down,
                                      bool zeros)
{
    const struct graph_op *o = neurons_of(g, down);
    return o && (!zeros || activation_has_zeros((enum activation)o->op.activation)) ? o : NULL;
}

/* The activation up to which neurons of a layer are skipped; negative: none are. NaN: not known. */
static float limit_of(const struct sparse_choice *choice, const struct neurons *neurons,
                      int32_t layer)
{
    char name[32];
    const struct neurons_magnitudes *m;
    switch (choice->mode) {
    case SPARSE_OFF:
    case SPARSE_DENSE: return -1;
    case SPARSE_EXACT:
    case SPARSE_PREDICT:
    case SPARSE_BY_ROWS: return 0;
    case SPARSE_ABOVE: return choice->threshold;
    case SPARSE_THRESHOLD: break;
    }
    snprintf(name, sizeof name, "blk.%d.ffn_act", layer);
    m = neurons ? neurons_magnitudes(neurons, name) : NULL;
    return m ? m->quantiles[lroundf(100 * choice->threshold)] : NAN;
}

/* The product whose rows become an activation's elements, perhaps with a bias; NULL: something else
 * reads it, too. */
static struct graph_op *product_of(const struct graph *g, const struct graph_op *activation)
{
    for (const struct graph_op *o = activation;;) {
        const int32_t value = o->in[0], maker = g->values[value].producer;
        if (maker < 0 || graph_readers(g, value) != 1)
            return NULL;
        o = &g->ops[maker];
        if (o->op.kind == OP_MUL_MAT)
            return &g->ops[maker];
        if (o->op.kind != OP_BIAS)
            return NULL;
    }
}

static struct graph_op *listed_of(const struct graph *g, const struct graph_op *neurons)
{
    return neurons->op.kind == OP_GATE_UP    ? &g->ops[neurons - g->ops]
           : neurons->op.kind == OP_ACTIVATE ? product_of(g, neurons)
                                             : NULL;
}

const struct graph_op *sparse_listed(const struct graph *g, const struct graph_op *neurons)
{
    return listed_of(g, neurons);
}

/* Sets the fields of all such operators of a layer (-1: of all), or only of those that have exact
 * zeros. Returns how many products skip; -1: a layer's threshold is not known. */
static int32_t fields_set(struct graph *g, const struct sparse_choice *choice,
                          const struct neurons *counted, int32_t layer, bool zeros)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        struct oato_op *down = &g->ops[i].op;
        if (layer >= 0 && g->ops[i].layer != layer)
            continue;
        struct graph_op *neurons = neurons_of(g, &g->ops[i]);
        if (!neurons || (zeros && !activation_has_zeros((enum activation)neurons->op.activation)))
            continue;
        const float limit = limit_of(choice, counted, g->ops[i].layer);
        if (isnan(limit))
            return -1;
        const bool gates = neurons->op.kind == OP_GATE_UP;
        const bool product = down->kind == OP_MUL_MAT; /* the other one always skips what is 0 */
        if (!product && !gates && limit > 0)
            continue;
        down->sparse = product ? SPARSE_ABOVE : SPARSE_OFF;
        down->threshold = product && !(gates && limit > 0) ? limit : 0; /* GATE_UP skipped it */
        neurons->op.sparse = gates ? SPARSE_ABOVE : SPARSE_OFF;
        neurons->op.threshold = gates ? limit : 0;
        struct graph_op *o = listed_of(g, neurons);
        if (o && choice->mode == SPARSE_PREDICT && counted && neurons_predictor(counted, o->layer))
            o->op.sparse = SPARSE_PREDICT;
        n++;
    }
    return n;
}

bool sparse_takes_inputs(const struct graph_op *o)
{
    static const char *const kinds[] = {
        "attn_q.weight",      "attn_k.weight",   "attn_v.weight", "attn_qkv.weight",
        "attn_output.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight",
    };
    const bool plain = o->op.sparse == SPARSE_OFF || o->op.sparse == SPARSE_ABOVE;
    if (o->op.kind != OP_MUL_MAT || !plain || o->n_weights < 1 || !o->weight[0])
        return false;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (neurons_layer_of(o->weight[0]->name, kinds[i]) >= 0)
            return true;
    return false;
}

const struct neurons_magnitudes *sparse_inputs(const struct graph_op *o, const struct neurons *n)
{
    const char *tensor = o->weight[0]->name;
    char name[GGUF_MAX_NAME + 8];
    snprintf(name, sizeof name, "%.*s.in", (int)(strstr(tensor, ".weight") - tensor), tensor);
    return n ? neurons_magnitudes(n, name) : NULL;
}

/* The input up to which a matrix's columns are skipped; NaN: not known. */
static float input_limit(const struct sparse_choice *choice, const struct neurons *neurons,
                         const struct graph_op *o)
{
    const struct neurons_magnitudes *m = sparse_inputs(o, neurons);
    if (choice->mode == SPARSE_DENSE)
        return -1;
    return m ? m->quantiles[lroundf(100 * choice->input)] : NAN;
}

static void input_skips(struct oato_op *op, float limit)
{
    const bool higher = op->sparse == SPARSE_ABOVE && op->threshold > limit;
    op->threshold = higher ? op->threshold : limit;
    op->sparse = SPARSE_ABOVE;
}

static oato_status inputs_apply(struct graph *g, const struct sparse_choice *choice,
                                const struct neurons *neurons, struct oato_error *err)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        struct graph_op *o = &g->ops[i];
        if (!sparse_takes_inputs(o))
            continue;
        const float limit = input_limit(choice, neurons, o);
        if (isnan(limit))
            return oato_fail(err, OATO_EUSAGE,
                             "--sparse input: the neurons sidecar lacks the quantiles of the "
                             "inputs of %s; count them with oato-profile --calibrate",
                             o->weight[0]->name);
        input_skips(&o->op, limit);
        n++;
    }
    return n ? OATO_OK
             : oato_fail(err, OATO_EUSAGE,
                         "--sparse input: this model has no matrix whose inputs can be skipped; "
                         "use --sparse off");
}

bool sparse_fuses(const struct sparse_choice *choice, enum op_kind fused)
{
    return !choice->skips_inputs ||
           !(fused == OP_QKV || (fused == OP_GATE_UP && choice->mode == SPARSE_OFF));
}

static oato_status neurons_apply(struct graph *g, const struct sparse_choice *choice,
                                 const struct neurons *neurons, struct oato_error *err)
{
    const bool any = choice->mode == SPARSE_ABOVE || choice->mode == SPARSE_THRESHOLD;
    bool predicts = choice->mode != SPARSE_PREDICT;
    for (int32_t i = 0; i < g->n_layers && !predicts; i++)
        predicts = neurons && neurons_predictor(neurons, i);
    if (!predicts)
        return oato_fail(err, OATO_EUSAGE,
                         "--sparse predict: %s; train them with oato-profile --calibrate TEXT "
                         "--predictors",
                         neurons ? "the neurons sidecar has no predictors"
                                 : "no predictors without a neurons sidecar (--neurons)");
    if (choice->mode == SPARSE_OFF || (!any && fields_set(g, choice, neurons, -1, true)))
        return OATO_OK;
    if (choice->mode != SPARSE_DENSE && !any)
        return oato_fail(err, OATO_EUSAGE,
                         "--sparse: no FFN of this model has an activation with exact zeros "
                         "(ReLU); use --sparse threshold=S");
    const int32_t n = fields_set(g, choice, neurons, -1, false);
    if (n < 0)
        return oato_fail(err, OATO_EUSAGE,
                         "--sparse threshold: the neurons sidecar lacks the quantiles of a layer's "
                         "activations; count them with oato-profile --calibrate");
    if (!n)
        return oato_fail(err, OATO_EUSAGE,
                         "--sparse: this model has no FFN whose neurons can be skipped; use "
                         "--sparse off");
    return OATO_OK;
}

oato_status sparse_apply(struct graph *g, const struct sparse_choice *choice,
                         const struct neurons *neurons, struct oato_error *err)
{
    const oato_status status = neurons_apply(g, choice, neurons, err);
    return status || !choice->skips_inputs ? status : inputs_apply(g, choice, neurons, err);
}

void sparse_place(const struct graph *g, const struct neurons *neurons,
                  struct placements *placements)
{
    for (int32_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].op.sparse == SPARSE_PREDICT)
            placements->phase[PHASE_DECODE][i].predictor =
                neurons_predictor(neurons, g->ops[i].layer);
}

static oato_status inputs_apply_plan(struct graph *g, const struct plan *p, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_inputs; i++) {
        const struct plan_input *s = &p->inputs[i];
        int32_t n = 0;
        for (int32_t j = 0; j < g->n_ops; j++) {
            struct graph_op *o = &g->ops[j];
            if (sparse_takes_inputs(o) && !strcmp(o->weight[0]->name, s->tensor)) {
                input_skips(&o->op, s->threshold);
                n++;
            }
        }
        if (!n)
            return oato_fail(err, OATO_EFILE,
                             "the plan skips inputs of %s, which has no product of its own; run "
                             "oato-plan again",
                             s->tensor);
    }
    return OATO_OK;
}

oato_status sparse_apply_plan(struct graph *g, const struct plan *p, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_sparse; i++) {
        const struct plan_sparse *s = &p->sparse[i];
        const struct sparse_choice choice = {.mode = s->predicts        ? SPARSE_PREDICT
                                                     : s->threshold > 0 ? SPARSE_ABOVE
                                                                        : SPARSE_EXACT,
                                             .threshold = s->threshold};
        if (!fields_set(g, &choice, p->neurons, s->layer, choice.mode != SPARSE_ABOVE))
            return oato_fail(err, OATO_EFILE,
                             "the plan skips neurons of layer %d, which has none to skip; run "
                             "oato-plan again",
                             s->layer);
    }
    return inputs_apply_plan(g, p, err);
}
