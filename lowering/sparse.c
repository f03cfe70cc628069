/*
 * sparse.c - which operators of a fused graph skip neurons that are near zero, and below which
 * activation. Such an FFN is a GATE_UP, or an activation, whose only reader is a product (down).
 */
#include "lowering/lowering.h"

#include <string.h>

oato_status sparse_parse(const char *text, struct sparse_choice *out, struct oato_error *err)
{
    static const char *const names[] = {
        [SPARSE_OFF] = "off", [SPARSE_DENSE] = "dense", [SPARSE_EXACT] = "exact"};
    double threshold;
    *out = (struct sparse_choice){SPARSE_OFF, 0};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (!strcmp(text, names[i])) {
            out->mode = (enum sparse_mode)i;
            return OATO_OK;
        }
    }
    if (strncmp(text, "threshold=", 10) != 0 || !parse_f64(text + 10, 0, 1e30, &threshold))
        return oato_fail(err, OATO_EUSAGE,
                         "--sparse wants off, dense, exact or threshold=T, where T is a number "
                         "from 0 on, not '%s'",
                         text);
    *out = (struct sparse_choice){SPARSE_THRESHOLD, (float)threshold};
    return OATO_OK;
}

/* The operator whose i-th output is the value; NULL: none. */
static struct graph_op *maker_of(const struct graph *g, int32_t value)
{
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int o = 0; o < g->ops[i].n_out; o++)
            if (g->ops[i].out[o] == value)
                return &g->ops[i];
    return NULL;
}

static int readers_of(const struct graph *g, int32_t value)
{
    int n = value == g->logits;
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int j = 0; j < g->ops[i].n_in; j++)
            n += g->ops[i].in[j] == value;
    return n;
}

/* What makes the input of a product that may skip some of it; NULL: it may not. */
static struct graph_op *neurons_of(const struct graph *g, const struct graph_op *down)
{
    const bool product = down->op.kind == OP_MUL_MAT || down->op.kind == OP_MUL_MAT_T;
    if (!product || readers_of(g, down->in[0]) != 1)
        return NULL;
    struct graph_op *o = maker_of(g, down->in[0]);
    const bool makes =
        o && (o->op.kind == OP_GATE_UP || o->op.kind == OP_SWIGLU || o->op.kind == OP_ACTIVATE);
    return makes ? o : NULL;
}

static bool has_zeros(const struct graph_op *o)
{
    return o->op.activation == ACT_RELU || o->op.activation == ACT_RELU_SQUARED;
}

/* Sets the fields of all such operators of a layer (-1: of all), or only of those that have exact
 * zeros. Returns how many products skip. */
static int32_t fields_set(struct graph *g, const struct sparse_choice *choice, int32_t layer,
                          bool zeros)
{
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        struct oato_op *down = &g->ops[i].op;
        if (layer >= 0 && g->ops[i].layer != layer)
            continue;
        struct graph_op *neurons = neurons_of(g, &g->ops[i]);
        if (!neurons || (zeros && !has_zeros(neurons)))
            continue;
        const float limit = choice->mode == SPARSE_DENSE       ? -1
                            : choice->mode == SPARSE_THRESHOLD ? choice->threshold
                                                               : 0;
        const bool gates = neurons->op.kind == OP_GATE_UP;
        const bool product = down->kind == OP_MUL_MAT; /* the other one always skips what is 0 */
        if (!product && !gates && limit > 0)
            continue;
        down->sparse = product;
        down->threshold = product && !(gates && limit > 0) ? limit : 0; /* GATE_UP skipped it */
        neurons->op.sparse = gates;
        neurons->op.threshold = gates ? limit : 0;
        n++;
    }
    return n;
}

oato_status sparse_apply(struct graph *g, const struct sparse_choice *choice,
                         struct oato_error *err)
{
    if (choice->mode == SPARSE_OFF ||
        (choice->mode != SPARSE_THRESHOLD && fields_set(g, choice, -1, true)))
        return OATO_OK;
    if (choice->mode == SPARSE_EXACT)
        return oato_fail(err, OATO_EUSAGE,
                         "--sparse exact: no FFN of this model has an activation with exact zeros "
                         "(ReLU); use --sparse threshold=T");
    if (!fields_set(g, choice, -1, false))
        return oato_fail(err, OATO_EUSAGE,
                         "--sparse: this model has no FFN whose neurons can be skipped; use "
                         "--sparse off");
    return OATO_OK;
}

oato_status sparse_apply_plan(struct graph *g, const struct plan *p, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_sparse; i++) {
        const struct plan_sparse *s = &p->sparse[i];
        const struct sparse_choice choice = {s->threshold > 0 ? SPARSE_THRESHOLD : SPARSE_EXACT,
                                             s->threshold};
        if (!fields_set(g, &choice, s->layer, choice.mode == SPARSE_EXACT))
            return oato_fail(err, OATO_EFILE,
                             "the plan skips neurons of layer %d, which has none to skip; run "
                             "oato-plan again",
                             s->layer);
    }
    return OATO_OK;
}
