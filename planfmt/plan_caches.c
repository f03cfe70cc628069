/*
 * plan_caches.c - checks the caches of experts of a plan against its model: each is of a layer's
 * experts whose decode is, in one part of both operators, on the host.
 */
#include "planfmt/planfmt_internal.h"

#include <string.h>

enum { ROW_GROUP = 64 }; /* rows that a device can replace in a weight */

static int32_t op_find(const struct graph *g, const char *name)
{
    int32_t i = 0;
    while (i < g->n_ops && strcmp(g->ops[i].name, name) != 0)
        i++;
    return i;
}

/* The experts of an operator that the host computes in decode: how many, and the first one; 0
 * unless they are in one part. */
static int64_t host_experts(const struct plan *p, const struct graph_op *o, int64_t *first)
{
    int64_t experts = 0;
    int32_t parts = 0, here = 0;
    *first = 0;
    for (int32_t i = 0; i < p->n_parts; i++) {
        const struct plan_part *t = &p->parts[i];
        if (!(t->phases >> PHASE_DECODE & 1) || t->begin == t->end || strcmp(t->op, o->name) != 0)
            continue;
        parts++;
        if (!p->devices[t->device].is_host)
            continue;
        here++;
        *first = t->axis == AXIS_EXPERTS ? t->begin : 0;
        experts = t->axis == AXIS_EXPERTS ? t->end - t->begin : o->op.experts;
    }
    return !parts ? o->op.experts : here == 1 ? experts : 0;
}

static oato_status check_cache(const struct plan *p, int32_t index, const struct graph *g,
                               struct oato_error *err)
{
    const struct plan_cache *c = &p->caches[index];
    const int32_t at = op_find(g, c->op);
    const struct graph_op *up = &g->ops[at], *down = up + 1;
    int64_t first[2];
    if (at + 1 >= g->n_ops || up->op.kind != OP_EXPERT_GATE_UP || down->op.kind != OP_EXPERT_DOWN ||
        down->in[0] != up->out[0])
        return oato_fail(err, OATO_EFILE, "cache %d of the plan: the model has no experts '%.120s'",
                         index, c->op);
    const int64_t held = host_experts(p, up, &first[0]);
    if (!held || host_experts(p, down, &first[1]) != held || first[0] != first[1])
        return oato_fail(err, OATO_EFILE,
                         "cache %d of the plan: decode of '%s' is not in one part on the host",
                         index, c->op);
    if (c->slots > held || p->devices[c->device].is_host)
        return oato_fail(
            err, OATO_EFILE,
            "cache %d of the plan: %d slots on %s for %lld experts of the host; it must "
            "be on another device, and not larger",
            index, c->slots, p->devices[c->device].id, (long long)held);
    if (up->op.n % ROW_GROUP || down->op.n % ROW_GROUP)
        return oato_fail(err, OATO_EFILE,
                         "cache %d of the plan: experts of %d and %d rows; a cache needs multiples "
                         "of %d",
                         index, up->op.n, down->op.n, ROW_GROUP);
    for (int32_t i = 0; i < index; i++)
        if (!strcmp(p->caches[i].op, c->op))
            return oato_fail(err, OATO_EFILE, "caches %d and %d of the plan are both of '%s'", i,
                             index, c->op);
    return OATO_OK;
}

oato_status plan_check_caches(const struct plan *p, const struct graph *g, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_caches; i++)
        if (check_cache(p, i, g, err))
            return err->status;
    return OATO_OK;
}
