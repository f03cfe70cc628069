/*
 * order.c - what the ranges of a plan with a neurons sidecar stand for. They count neurons and
 * experts from the most active one on, so a part is a set of them, and its weights are gathered.
 *
 * The neurons of a part lie in ascending order: which of them is where within a part means nothing
 * to a placement. Experts lie in the sidecar's order, and the router that chooses them numbers them
 * by it, so that the experts of a part are neighbours whatever the cuts.
 */
#include "lowering/lowering_internal.h"

#include <stdlib.h>
#include <string.h>

static int32_t producer_of(const struct graph *g, const struct graph_op *o, int input)
{
    return g->values[o->in[input]].producer;
}

static bool of_neurons(const struct graph *g, const struct graph_op *o, enum op_axis axis)
{
    if (o->op.kind == OP_GATE_UP)
        return axis == AXIS_ROWS;
    const int32_t made = o->op.kind == OP_MUL_MAT && axis == AXIS_K ? producer_of(g, o, 0) : -1;
    return made >= 0 && g->ops[made].op.kind == OP_GATE_UP;
}

/* The order in which the sidecar has what the operator's axis counts; NULL: the natural one. */
static const int32_t *order_of(const struct neurons *n, const struct graph *g,
                               const struct graph_op *o, enum op_axis axis)
{
    const struct neurons_layer *l = neurons_layer(n, o->layer);
    const int64_t extent = op_axis_extent(&o->op, axis);
    if (l && axis == AXIS_EXPERTS && l->n_experts == extent)
        return l->exp_order;
    return l && of_neurons(g, o, axis) && l->n_ff == extent ? l->ffn_order : NULL;
}

static int by_number(const void *a, const void *b)
{
    return order_i64(*(const int32_t *)a, *(const int32_t *)b);
}

static oato_status neurons_sort(struct placement *p, const int32_t *order, struct arena *arena,
                                struct oato_error *err)
{
    const size_t n = (size_t)p->part[p->n - 1].end;
    int32_t *sorted = arena_alloc(arena, n, sizeof *sorted);
    if (!sorted)
        return oato_fail_memory(err, n * sizeof *sorted, "the order of neurons");
    memcpy(sorted, order, n * sizeof *sorted);
    for (int i = 0; i < p->n; i++) {
        struct placed_part *part = &p->part[i];
        part->members = sorted + part->begin;
        qsort(sorted + part->begin, (size_t)(part->end - part->begin), sizeof *sorted, by_number);
    }
    return OATO_OK;
}

/* The order as a tensor, for routers. */
static oato_status experts_tensor(const int32_t *order, int32_t n, struct arena *arena,
                                  const struct gguf_tensor **out, struct oato_error *err)
{
    struct gguf_tensor *t = arena_alloc(arena, 1, sizeof *t);
    float *numbers = arena_alloc(arena, (size_t)n, sizeof *numbers);
    if (!t || !numbers)
        return oato_fail_memory(err, (size_t)n * sizeof *numbers, "the order of experts");
    for (int32_t i = 0; i < n; i++)
        numbers[i] = (float)order[i];
    *t = (struct gguf_tensor){.name = "the order of experts",
                              .dtype = DT_F32,
                              .n_dims = 1,
                              .ne = {n, 1, 1, 1},
                              .data = (const uint8_t *)numbers,
                              .bytes = (size_t)n * sizeof *numbers};
    *out = t;
    return OATO_OK;
}

/* Whoever reads the choice of these experts must number them alike. */
static oato_status readers_agree(const struct graph *g, const struct placement *placed,
                                 int32_t choice, struct oato_error *err)
{
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int k = 0; k < g->ops[i].n_in; k++)
            if (g->ops[i].in[k] == choice && (!placed[i].order || k != 1))
                return oato_fail(err, OATO_EFILE,
                                 "the plan numbers the experts of layer %d by the neurons sidecar, "
                                 "but %s reads the same choice and is not split by experts; run "
                                 "oato-plan again",
                                 g->ops[i].layer, g->ops[i].name);
    return OATO_OK;
}

static oato_status experts_order(const struct graph *g, int32_t index, const int32_t *order,
                                 struct placement *placed, struct arena *arena,
                                 struct oato_error *err)
{
    const struct graph_op *o = &g->ops[index];
    struct placement *p = &placed[index];
    const int32_t router = producer_of(g, o, 1);
    if (router < 0 || g->ops[router].op.kind != OP_ROUTE ||
        g->ops[router].op.experts != o->op.experts)
        return oato_fail(err, OATO_EFILE,
                         "the plan numbers the experts of %s by the neurons sidecar, but no router "
                         "chooses them; plan again without --neurons",
                         o->name);
    p->order = order;
    for (int i = 0; i < p->n; i++)
        p->part[i].members = order + p->part[i].begin;
    return placed[router].experts
               ? OATO_OK
               : experts_tensor(order, o->op.experts, arena, &placed[router].experts, err);
}

oato_status parts_order(const struct neurons *n, const struct graph *g, struct placements *out,
                        struct oato_error *err)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        struct placement *placed = out->phase[phase];
        oato_status status = OATO_OK;
        for (int32_t i = 0; i < g->n_ops && !status; i++) {
            struct placement *p = &placed[i];
            const int32_t *order = p->n > 1 ? order_of(n, g, &g->ops[i], p->axis) : NULL;
            if (order && p->axis == AXIS_EXPERTS)
                status = experts_order(g, i, order, placed, &out->arena, err);
            else if (order)
                status = neurons_sort(p, order, &out->arena, err);
        }
        for (int32_t i = 0; i < g->n_ops && !status; i++)
            if (placed[i].order)
                status = readers_agree(g, placed, g->ops[i].in[1], err);
        if (status)
            return status;
    }
    return OATO_OK;
}
