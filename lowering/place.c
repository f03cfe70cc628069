/*
 * place.c - the placement of every operator by phase, from a plan's parts or by default, and the KV
 * homes that follow from it. Engine and solver both place plans here, so a part means the same to
 * the one that runs it and to the one that prices it.
 */
#include "lowering/lowering_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

double part_share(const struct oato_op *op, enum op_axis axis, int64_t begin, int64_t end)
{
    const int64_t extent = op_axis_extent(op, axis);
    return extent ? (double)(end - begin) / (double)extent : 1;
}

/* Parts come in graph order, so the search starts where the last one was found. plan_apply made
 * sure that there is such an operator. */
static int32_t op_find(const struct graph *g, const char *name, int32_t at)
{
    for (int32_t n = g->n_ops; n > 0 && strcmp(g->ops[at].name, name) != 0; n--)
        at = (at + 1) % g->n_ops;
    assert(!strcmp(g->ops[at].name, name));
    return at;
}

/* Inserts by begin, so that parts are concatenated or summed in order. */
static oato_status part_place(struct placement *place, const struct plan_part *p,
                              struct placed_part part, struct oato_error *err)
{
    if (place->n == PARTS_MAX)
        return oato_fail(err, OATO_EFILE,
                         "the plan splits operator %s into more than %d parts; run oato-plan again",
                         p->op, PARTS_MAX);
    int i = place->n++;
    for (; i > 0 && place->part[i - 1].begin > part.begin; i--)
        place->part[i] = place->part[i - 1];
    place->part[i] = part;
    place->axis = p->axis;
    return OATO_OK;
}

static oato_status parts_place(const struct plan *plan, const struct graph *g, const int32_t *bound,
                               int32_t host, struct placements *out, struct oato_error *err)
{
    int32_t at = 0;
    for (int32_t i = 0; i < plan->n_parts; i++) {
        const struct plan_part *p = &plan->parts[i];
        at = op_find(g, p->op, at);
        const int32_t device = bound[p->device];
        const bool file = p->home == HOME_FILE;
        const bool filed = file && g->ops[at].op.kind == OP_KV_STORE, stored = file && !filed;
        const int32_t home = filed ? device : stored ? host : bound[p->home];
        const bool attends = g->ops[at].op.kind == OP_ATTENTION;
        const bool streamed = !filed && home == host && device != host;
        if (device >= 0 && !file && !streamed && home != device)
            return oato_fail(
                err, OATO_EFILE,
                "part %d of the plan (%s) streams its weight from %s to %s: that is possible only "
                "from the host to a device with its own memory; run oato-plan again",
                i, p->op, plan->devices[p->home].id, plan->devices[p->device].id);
        const struct plan_sparse *skips =
            plan_skips(plan->sparse, plan->n_sparse, g->ops[at].layer);
        const struct placed_part part = {.device = device,
                                         .begin = (int32_t)p->begin,
                                         .end = (int32_t)p->end,
                                         .rank = plan->devices[p->device].rank,
                                         .host = plan->devices[p->device].host,
                                         .streamed = stored || (streamed && !attends),
                                         .stored = stored,
                                         .filed = filed,
                                         .kv_streamed = streamed && attends && device >= 0,
                                         .dense = skips && skips->dense >> p->device & 1};
        for (int phase = 0; phase < PHASE_COUNT; phase++)
            if (p->phases >> phase & 1 && p->begin != p->end &&
                part_place(&out->phase[phase][at], p, part, err))
                return err->status;
    }
    return OATO_OK;
}

/* A cache that would be in the host's own memory is none. */
static void caches_place(const struct plan *plan, const struct graph *g, const int32_t *bound,
                         int32_t host, struct placements *out)
{
    int32_t at = 0;
    for (int32_t i = 0; i < plan->n_caches; i++) {
        const struct plan_cache *c = &plan->caches[i];
        at = op_find(g, c->op, at);
        for (int k = 0; k < 2 && bound[c->device] >= 0 && bound[c->device] != host; k++)
            out->phase[PHASE_DECODE][at + k].cache =
                (struct placed_cache){bound[c->device], c->slots, c->margin, c->hits};
    }
}

/* Operators that no part names run whole where sums are made; large tables are the host's. */
static void rest_place(const struct graph *g, int32_t host, struct placements *out)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (int32_t i = 0; i < g->n_ops; i++) {
            struct placement *p = &out->phase[phase][i];
            const struct oato_op *op = &g->ops[i].op;
            if (p->n)
                continue;
            p->n = 1;
            p->part[0] = (struct placed_part){
                .device = op_weight_use(op) == WEIGHT_LOOKUP ? host : out->sums_on,
                .end = op->n,
                .everywhere = true};
        }
}

static bool stores_kv(const struct graph_op *o)
{
    return o->kv_layer >= 0 && o->op.kind == OP_KV_STORE;
}

/* The KV heads of one part of a KV operator. */
static struct kv_home part_heads(const struct graph_op *o, const struct placement *p, int i)
{
    const bool cut = p->axis == AXIS_HEADS && p->n > 1;
    return (struct kv_home){o->kv_layer, cut ? p->part[i].begin : 0,
                            cut ? p->part[i].end : o->op.kv_heads, -1};
}

static bool is_kept(const struct graph_op *o)
{
    return o->kv_layer >= 0 || op_state_floats(&o->op);
}

/* What a part of operator `index` keeps from step to step. */
static struct kv_home part_home(const struct graph *g, int32_t index, const struct placement *p,
                                int i)
{
    const struct graph_op *o = &g->ops[index];
    return o->kv_layer >= 0 ? part_heads(o, p, i)
                            : (struct kv_home){.layer = o->layer, .state_of = index};
}

/* Checks that the plan's KV section agrees with the placement of the kv_store operators. */
static oato_status kv_obeyed(const struct plan *plan, const struct graph *g, const int32_t *bound,
                             const struct placements *placed, struct oato_error *err)
{
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const struct placement *p = &placed->phase[PHASE_DECODE][i];
        for (int j = 0; stores_kv(o) && j < p->n; j++) {
            const struct kv_home heads = part_heads(o, p, j);
            for (int32_t k = 0; k < plan->n_kv; k++) {
                const struct plan_kv *kv = &plan->kv[k];
                if (kv->layer == heads.layer && kv->head_begin < heads.head_end &&
                    heads.head_begin < kv->head_end && bound[kv->device] != p->part[j].device)
                    return oato_fail(err, OATO_EFILE,
                                     "the plan keeps KV heads %d to %d of layer %d on %s, but %s "
                                     "stores them elsewhere; run oato-plan again",
                                     kv->head_begin, kv->head_end, kv->layer,
                                     plan->devices[kv->device].id, o->name);
            }
        }
    }
    return OATO_OK;
}

static void ranks_find(const struct plan *plan, const int32_t *bound, int32_t host,
                       struct placements *out)
{
    bool elsewhere = false;
    for (int32_t d = plan->n_devices - 1; d >= 0; d--) {
        out->rank = bound[d] < 0 ? out->rank : plan->devices[d].rank;
        elsewhere = elsewhere || bound[d] < 0;
    }
    out->ranks = elsewhere ? plan_ranks(plan) : 0;
    for (int32_t d = 0; d < plan->n_devices && plan_joins(plan) && out->sums_on == host; d++)
        if (plan->devices[d].rank == out->rank)
            out->sums_on = bound[d];
}

oato_status placements_create(const struct plan *plan, const struct graph *g, const int32_t *bound,
                              int32_t host, struct placements *out, struct oato_error *err)
{
    oato_status status = OATO_OK;
    *out = (struct placements){.wire = plan ? plan_wire(plan) : DT_F32, .sums_on = host};
    if (plan)
        ranks_find(plan, bound, host, out);
    arena_init(&out->arena);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        out->phase[phase] = calloc((size_t)g->n_ops + 1, sizeof **out->phase);
        if (!out->phase[phase])
            return oato_fail_memory(err, (size_t)g->n_ops * sizeof **out->phase, "placements");
    }
    if (plan)
        status = parts_place(plan, g, bound, host, out, err);
    rest_place(g, host, out);
    if (plan && plan->neurons_hash && !status)
        status = parts_order(plan->neurons, g, out, err);
    if (plan && !status)
        caches_place(plan, g, bound, host, out);
    if (plan && !status)
        status = kv_obeyed(plan, g, bound, out, err);
    return status;
}

void placements_free(struct placements *p)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        free(p->phase[phase]);
    arena_free(&p->arena);
    *p = (struct placements){.wire = DT_F32};
}

/* ------------------------------------------------------------------------------ KV homes --- */

static bool kv_homes_alloc(const struct graph *g, struct lowered_device *d)
{
    size_t n = 1;
    for (int32_t i = 0; i < g->n_ops; i++)
        n += stores_kv(&g->ops[i]) || op_state_floats(&g->ops[i].op) ? PARTS_MAX : 0;
    d->kv = calloc(n, sizeof *d->kv);
    d->kv_shapes = calloc(n, sizeof *d->kv_shapes);
    return d->kv && d->kv_shapes;
}

static int32_t kv_home_find(const struct lowered_device *d, struct kv_home wanted)
{
    for (int32_t i = 0; i < d->n_kv; i++)
        if (d->kv[i].layer == wanted.layer && d->kv[i].head_begin == wanted.head_begin &&
            d->kv[i].head_end == wanted.head_end && d->kv[i].state_of == wanted.state_of)
            return i;
    return -1;
}

int32_t kv_home_of_part(const struct lowered_device *d, const struct graph *g, int32_t index,
                        const struct placement *p, int part)
{
    return is_kept(&g->ops[index]) ? kv_home_find(d, part_home(g, index, p, part)) : -1;
}

/* What the first part that needs it in prefill makes room for, all others must find. */
static oato_status home_add(const struct lowering_input *in, int32_t index, int phase, int part,
                            struct lowered_device *d, struct oato_error *err)
{
    const struct graph_op *o = &in->graph->ops[index];
    const struct kv_home home =
        part_home(in->graph, index, &in->placements->phase[phase][index], part);
    const bool state = home.state_of >= 0;
    if (in->placements->phase[phase][index].part[part].kv_streamed)
        return OATO_OK; /* history.c */
    if (kv_home_find(d, home) >= 0)
        return OATO_OK;
    if (phase || (!state && o->op.kind != OP_KV_STORE))
        return oato_fail(err, OATO_EFILE,
                         "the plan puts %s on a device that does not hold its %s; run oato-plan "
                         "again",
                         o->name, state ? "recurrent state" : "layer's KV cache");
    d->kv[d->n_kv] = home;
    d->kv_shapes[d->n_kv++] =
        state ? (struct kv_layer_shape){.state = op_state_floats(&o->op),
                                        .slots = state_slots_of(in->limits.seqs)}
              : (struct kv_layer_shape){.kv_heads = home.head_end - home.head_begin,
                                        .head_dim = o->op.head_dim,
                                        .v_dim = o->op.v_dim,
                                        .v_in_k = o->op.v_in_k,
                                        .window = o->op.window,
                                        .filed =
                                            in->placements->phase[phase][index].part[part].filed};
    return OATO_OK;
}

int32_t kv_home_of_layer(const struct lowered_device *d, const struct graph_op *store)
{
    return kv_home_find(d,
                        (struct kv_home){store->kv_layer, 0, store->op.kv_heads, .state_of = -1});
}

oato_status lowered_init(const struct lowering_input *in, struct lowered *out,
                         struct oato_error *err)
{
    const struct graph *g = in->graph;
    memset(out, 0, sizeof *out);
    out->n_devices = in->facts->n_devices;
    for (int d = 0; d < out->n_devices; d++)
        if (!kv_homes_alloc(g, &out->device[d]))
            return oato_fail_memory(err, (size_t)g->n_layers * sizeof(struct kv_home), "KV homes");
    const int32_t n_ops = in->n_ops ? in->n_ops : g->n_ops;
    for (int32_t i = 0; i < n_ops; i++) {
        for (int phase = 0; is_kept(&g->ops[i]) && phase < PHASE_COUNT; phase++) {
            const struct placement *p = &in->placements->phase[phase][i];
            for (int j = 0; j < p->n; j++)
                if (p->part[j].device >= 0 &&
                    home_add(in, i, phase, j, &out->device[p->part[j].device], err))
                    return err->status;
        }
    }
    return rooms_add(in, out, err);
}
