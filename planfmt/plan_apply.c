/*
 * plan_apply.c - checks a plan against its model: the model must have the structure that was
 * planned for, the fusions must be patterns of its graph, and the parts must cover each operator
 * exactly once in each phase, cut no value and load no weight twice. After that, lowering may look
 * parts up by name and find nothing missing.
 */
#include "planfmt/planfmt_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PART_MULTIPLE = 64 };

oato_status plan_check_model(const struct plan *p, const struct gguf *g, struct oato_error *err)
{
    uint64_t hash = gguf_structure_hash(g);
    /* The content hash may differ: finetunes of one model share a dense plan. */
    if (hash == p->structure_hash)
        return OATO_OK;
    return oato_fail(err, OATO_EFILE,
                     "the plan was made for another model: '%.80s' of structure %016" PRIx64
                     ", but %.160s has %016" PRIx64 "; run oato-plan again for this model",
                     or_empty(p->model_name), p->structure_hash, gguf_path(g), hash);
}

/* ---------------------------------------------------------------------- names of operators --- */

struct named_op {
    const char *name;
    int32_t index;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct named_op *)a)->name, ((const struct named_op *)b)->name);
}

/* The operators of the graph in order of name; NULL when memory is short. */
static struct named_op *names_sorted(const struct graph *g)
{
    struct named_op *names = calloc((size_t)g->n_ops + 1, sizeof *names);
    for (int32_t i = 0; names && i < g->n_ops; i++)
        names[i] = (struct named_op){g->ops[i].name, i};
    if (names)
        qsort(names, (size_t)g->n_ops, sizeof *names, by_name);
    return names;
}

static int32_t name_find(const struct named_op *names, int32_t n, const char *name)
{
    struct named_op key = {name, 0}, *hit = NULL;
    if (n > 0)
        hit = bsearch(&key, names, (size_t)n, sizeof *names, by_name);
    return hit ? hit->index : -1;
}

/* ------------------------------------------------------------------------------- fusions --- */

static int by_first(const void *a, const void *b)
{
    return order_i64(((const struct graph_match *)a)->first,
                     ((const struct graph_match *)b)->first);
}

static int32_t fusion_find(const char *name)
{
    for (int32_t i = 0; i < op_fusion_count; i++)
        if (!strcmp(op_fusions[i].name, name))
            return i;
    return -1;
}

static oato_status fuse(const struct plan *p, const struct graph *g, struct graph *out,
                        struct oato_error *err)
{
    oato_status status = OATO_OK;
    struct graph_match *m = calloc((size_t)p->n_fusions + 1, sizeof *m);
    struct named_op *names = names_sorted(g);
    if (!m || !names) {
        free(names);
        free(m);
        return oato_fail_memory(err, (size_t)g->n_ops * sizeof *names, "applying a plan");
    }
    for (int32_t i = 0; i < p->n_fusions && !status; i++) {
        const struct plan_fusion *f = &p->fusions[i];
        m[i].fusion = fusion_find(f->name);
        m[i].first = name_find(names, g->n_ops, f->op);
        if (m[i].fusion < 0)
            status = oato_fail(
                err, OATO_EFILE,
                "fusion %d of the plan, '%.60s', is unknown to this version; run oato-plan "
                "again",
                i, f->name);
        else if (m[i].first < 0)
            status = oato_fail(err, OATO_EFILE,
                               "fusion %d of the plan, '%s', begins at operator '%.120s', which "
                               "the model lacks",
                               i, f->name, f->op);
    }
    if (!status) {
        qsort(m, (size_t)p->n_fusions, sizeof *m, by_first);
        status = graph_fuse(g, m, p->n_fusions, out, err);
        if (status == OATO_EFILE)
            oato_fail_at(err, "fusions of the plan");
    }
    free(names);
    free(m);
    return status;
}

/* --------------------------------------------------------------------------------- parts --- */

struct op_part {
    int32_t op, index; /* in the graph; in the plan */
    const struct plan_part *part;
};

static int by_op_and_begin(const void *va, const void *vb)
{
    const struct op_part *a = va, *b = vb;
    int order = order_i64(a->op, b->op);
    order = order ? order : order_i64(a->part->begin, b->part->begin);
    return order ? order : order_i64(a->index, b->index);
}

static const char *const phase_name[PHASE_COUNT] = {"prefill", "decode"};

static const char *const axis_lacks[AXIS_COUNT] = {
    [AXIS_K] = "cannot be divided along k",
    [AXIS_HEADS] = "has no heads to divide",
    [AXIS_EXPERTS] = "has no experts to divide",
};

/* Parts begin and end on multiples of it, or end with the operator. */
static int64_t axis_multiple(const struct oato_op *op, enum op_axis axis)
{
    const struct dtype_info *d = dtype_info(op->dtype);
    if ((axis == AXIS_HEADS && op->kind != OP_QKV) || axis == AXIS_EXPERTS)
        return 1;
    return axis == AXIS_K && d ? max_i64(PART_MULTIPLE, d->block_elems) : PART_MULTIPLE;
}

/* Attention of a prompt over K and V that stay with the host. */
static oato_status check_kv_home(const struct plan *plan, const struct plan_part *p,
                                 const struct oato_op *op, struct oato_error *err)
{
    const struct plan_device *device = &plan->devices[p->device];
    if (device->is_host || !plan->devices[p->home].is_host || p->phases != 1u << PHASE_PREFILL ||
        p->begin || p->end != op_axis_extent(op, p->axis))
        return oato_fail(err, OATO_EFILE,
                         "KV is streamed from the host to another device for all heads in prefill, "
                         "not from %s to %s for %s %" PRId64 " to %" PRId64 " in phases %#x",
                         plan->devices[p->home].id, device->id, op_axis_name[p->axis], p->begin,
                         p->end, p->phases);
    return OATO_OK;
}

/* A weight that is not where its part runs is streamed there. */
static oato_status check_home(const struct plan *plan, const struct plan_part *p,
                              const struct oato_op *op, struct oato_error *err)
{
    const struct plan_device *device = &plan->devices[p->device];
    const bool stored = p->home == HOME_FILE;
    const struct plan_device *home = stored ? NULL : &plan->devices[p->home];
    if (p->home == p->device)
        return OATO_OK;
    if (stored && op->kind == OP_KV_STORE)
        return device->is_host
                   ? OATO_OK
                   : oato_fail(err, OATO_EFILE,
                               "KV can stay in a file for the host alone, not for %s", device->id);
    if (op->kind == OP_ATTENTION && !stored)
        return check_kv_home(plan, p, op, err);
    if (op_weight_use(op) != WEIGHT_MATRIX)
        return oato_fail(err, OATO_EFILE,
                         "%s has no matrix that could be streamed from %s to %s; its home must be "
                         "its device",
                         op_kind_name(op->kind), stored ? "a file" : home->id, device->id);
    if (stored && p->phases != (1u << PHASE_COUNT) - 1)
        return oato_fail(err, OATO_EFILE,
                         "weights are streamed from a file in both phases, not in phases %#x",
                         p->phases);
    if (stored)
        return OATO_OK;
    if (device->is_host || !home->is_host)
        return oato_fail(err, OATO_EFILE,
                         "weights are streamed from the host to another device, not from %s to %s",
                         home->id, device->id);
    return OATO_OK;
}

static oato_status check_part(const struct plan *plan, const struct plan_part *p,
                              const struct oato_op *op, struct oato_error *err)
{
    int64_t extent = op_axis_extent(op, p->axis), multiple = axis_multiple(op, p->axis);
    if (axis_lacks[p->axis] && !extent)
        return oato_fail(err, OATO_EFILE, "%s %s", op_kind_name(op->kind), axis_lacks[p->axis]);
    if (p->end > extent)
        return oato_fail(err, OATO_EFILE,
                         "%s %" PRId64 " to %" PRId64 ", but the operator has %" PRId64,
                         op_axis_name[p->axis], p->begin, p->end, extent);
    if (p->begin % multiple || (p->end % multiple && p->end != extent))
        return oato_fail(err, OATO_EFILE,
                         "%s %" PRId64 " to %" PRId64 " are not on multiples of %" PRId64,
                         op_axis_name[p->axis], p->begin, p->end, multiple);
    return check_home(plan, p, op, err);
}

/* The parts x[0..n) of one operator, by begin: those of a phase must follow each other without a
 * gap from 0 to the end of one axis, or there must be none. */
static oato_status check_cover(const struct op_part *x, int32_t n, const struct graph_op *op,
                               struct oato_error *err)
{
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        int64_t at = 0, extent = 0;
        bool any = false;
        enum op_axis axis = AXIS_ROWS;
        for (int32_t i = 0; i < n; i++) {
            const struct plan_part *p = x[i].part;
            if (!(p->phases & 1u << phase) || p->begin == p->end)
                continue;
            if (any && p->axis != axis)
                return oato_fail(err, OATO_EFILE,
                                 "operator '%s' is divided along %s and along %s in %s", op->name,
                                 op_axis_name[axis], op_axis_name[p->axis], phase_name[phase]);
            if (p->begin != at)
                return oato_fail(
                    err, OATO_EFILE,
                    "operator '%s': %s %" PRId64 " to %" PRId64 " are planned %s in %s", op->name,
                    op_axis_name[p->axis], min_i64(at, p->begin), max_i64(at, p->begin),
                    p->begin < at ? "twice" : "nowhere", phase_name[phase]);
            any = true;
            axis = p->axis;
            at = p->end;
            extent = op_axis_extent(&op->op, axis);
        }
        if (any && at != extent)
            return oato_fail(err, OATO_EFILE,
                             "operator '%s': %s %" PRId64 " to %" PRId64
                             " are planned nowhere in %s",
                             op->name, op_axis_name[axis], at, extent, phase_name[phase]);
    }
    return OATO_OK;
}

/* Whether the bytes of a weight that two parts of an operator name are the same ones, ... */
static bool same_range(const struct plan_part *a, const struct plan_part *b,
                       const struct oato_op *op)
{
    const bool whole_a = !a->begin && a->end == op_axis_extent(op, a->axis);
    const bool whole_b = !b->begin && b->end == op_axis_extent(op, b->axis);
    if (whole_a || whole_b)
        return whole_a && whole_b;
    return a->axis == b->axis && a->begin == b->begin && a->end == b->end;
}

/* ... or some of them are: rows and columns always meet. */
static bool ranges_meet(const struct plan_part *a, const struct plan_part *b)
{
    return a->begin < a->end && b->begin < b->end &&
           (a->axis != b->axis || (a->begin < b->end && b->begin < a->end));
}

static oato_status loaded_twice(const struct plan *plan, const struct plan_part *a,
                                const struct plan_part *b, const struct graph_op *op,
                                struct oato_error *err)
{
    return oato_fail(err, OATO_EFILE,
                     "operator '%s': %s %" PRId64 " to %" PRId64 " of one phase and %s %" PRId64
                     " to %" PRId64
                     " of the other would be loaded twice on %s; split both phases alike",
                     op->name, op_axis_name[a->axis], a->begin, a->end, op_axis_name[b->axis],
                     b->begin, b->end, plan->devices[a->device].id);
}

/* A device that keeps a weight for both phases has it once: in ranges that both use. */
static oato_status check_resident(const struct plan *plan, const struct op_part *x, int32_t n,
                                  const struct graph_op *op, struct oato_error *err)
{
    uint32_t phases = 0;
    for (int32_t i = 0; i < n && op_weight_use(&op->op) == WEIGHT_MATRIX; i++) {
        const struct plan_part *a = x[i].part, *b;
        if (a->begin == a->end)
            continue;
        phases |= a->phases;
        for (int32_t j = 0; j < i; j++) {
            b = x[j].part;
            if (a->device == b->device && a->home == a->device && b->home == b->device &&
                !(a->phases & b->phases) && ranges_meet(a, b) && !same_range(a, b, &op->op))
                return loaded_twice(plan, b, a, op, err);
        }
    }
    /* without parts in a phase all of it is on the host */
    const struct plan_part whole = {.axis = AXIS_ROWS, .end = op->op.n};
    for (int32_t i = 0; phases && phases != (1u << PHASE_COUNT) - 1 && i < n; i++) {
        const struct plan_part *a = x[i].part;
        if (a->home == a->device && plan->devices[a->device].is_host && ranges_meet(a, &whole) &&
            !same_range(a, &whole, &op->op))
            return loaded_twice(plan, a, &whole, op, err);
    }
    return OATO_OK;
}

/* All parts, sorted; those of operator i are x[first[i]] to x[first[i + 1] - 1]. */
struct op_parts {
    struct op_part *x;
    int32_t *first;
};

/* The part of operator `op` in the phase that begins at `at`, or NULL. */
static const struct plan_part *part_at(const struct op_parts *all, int32_t op, int phase,
                                       int64_t at)
{
    for (int32_t i = all->first[op]; i < all->first[op + 1]; i++) {
        const struct plan_part *p = all->x[i].part;
        if (p->phases & 1u << phase && p->begin == at && p->end > at)
            return p;
    }
    return NULL;
}

/* Whether a part of the operator makes the very columns that a part along k reads: rows, or the
 * columns of some heads. */
static bool columns_made(const struct op_parts *all, int32_t producer, int phase,
                         const struct graph *g, const struct plan_part *reader)
{
    const struct oato_op *op = &g->ops[producer].op;
    for (int32_t i = all->first[producer]; i < all->first[producer + 1]; i++) {
        const struct plan_part *p = all->x[i].part;
        const int64_t heads = p->axis == AXIS_HEADS ? op_axis_extent(op, AXIS_HEADS) : 0;
        const int64_t columns = heads ? op->n / heads : 1;
        if (p->phases & 1u << phase && (heads || p->axis == AXIS_ROWS) && p->begin < p->end &&
            p->begin * columns == reader->begin && p->end * columns == reader->end)
            return true;
    }
    return false;
}

/* Each part along k reads one row part of its input, so that no value has to be cut. */
static oato_status check_inputs(const struct op_parts *all, int32_t op, const struct graph *g,
                                struct oato_error *err)
{
    for (int32_t i = all->first[op]; i < all->first[op + 1]; i++) {
        const struct plan_part *p = all->x[i].part;
        if (p->axis != AXIS_K || p->begin == p->end || p->end - p->begin == g->ops[op].op.k)
            continue;
        const int32_t producer = g->values[g->ops[op].in[0]].producer;
        for (int phase = 0; phase < PHASE_COUNT; phase++) {
            if (p->phases & 1u << phase && !columns_made(all, producer, phase, g, p))
                return oato_fail(err, OATO_EFILE,
                                 "part %d of the plan, '%s': k %" PRId64 " to %" PRId64
                                 " match no part of '%s', which makes its input, in %s; split "
                                 "both at the same positions",
                                 all->x[i].index, p->op, p->begin, p->end, g->ops[producer].name,
                                 phase_name[phase]);
        }
    }
    return OATO_OK;
}

/* Whether the part is a summand of its operator or, of EXPERT_GATE_UP, some experts' rows. */
static bool is_some_experts(const struct plan_part *p, const struct oato_op *op)
{
    return p->axis == AXIS_EXPERTS && p->begin < p->end && p->end - p->begin < op->experts;
}

/* What some experts make can't be put together, only be read by the same experts of the other
 * operator: whatever reads or makes the value next to part x is divided as x is. */
static oato_status check_same_experts(const struct op_parts *all, const struct op_part *x,
                                      int32_t other, const struct graph *g, struct oato_error *err)
{
    const struct plan_part *p = x->part;
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        const struct plan_part *same =
            p->phases & 1u << phase ? part_at(all, other, phase, p->begin) : p;
        if (!same || same->axis != AXIS_EXPERTS || same->end != p->end ||
            !op_has_experts(&g->ops[other].op))
            return oato_fail(err, OATO_EFILE,
                             "part %d of the plan, '%s': experts %" PRId64 " to %" PRId64
                             " match no part of '%s' in %s; split both at the same positions",
                             x->index, p->op, p->begin, p->end, g->ops[other].name,
                             phase_name[phase]);
    }
    return OATO_OK;
}

static bool reads(const struct graph_op *op, int32_t value)
{
    for (int i = 0; i < op->n_in; i++)
        if (op->in[i] == value)
            return true;
    return false;
}

static oato_status check_experts(const struct op_parts *all, int32_t op, const struct graph *g,
                                 struct oato_error *err)
{
    const struct graph_op *o = &g->ops[op];
    oato_status status = OATO_OK;
    for (int32_t i = all->first[op]; i < all->first[op + 1] && !status; i++) {
        if (!is_some_experts(all->x[i].part, &o->op))
            continue;
        if (o->op.kind == OP_EXPERT_DOWN)
            status = check_same_experts(all, &all->x[i], g->values[o->in[0]].producer, g, err);
        for (int32_t j = op + 1; j < g->n_ops && !status && o->op.kind == OP_EXPERT_GATE_UP; j++)
            if (reads(&g->ops[j], o->out[0]))
                status = check_same_experts(all, &all->x[i], j, g, err);
    }
    return status;
}

static oato_status check_parts(const struct plan *p, const struct graph *g,
                               const struct named_op *names, struct oato_error *err)
{
    oato_status status = OATO_OK;
    struct op_part *x = calloc((size_t)p->n_parts + 1, sizeof *x);
    struct op_parts all = {x, calloc((size_t)g->n_ops + 1, sizeof *all.first)};
    if (!x || !all.first) {
        status = oato_fail_memory(err, (size_t)p->n_parts * sizeof *x, "applying a plan");
        goto out;
    }
    for (int32_t i = 0; i < p->n_parts && !status; i++) {
        x[i] = (struct op_part){name_find(names, g->n_ops, p->parts[i].op), i, &p->parts[i]};
        if (x[i].op < 0)
            status = oato_fail(err, OATO_EFILE,
                               "part %d of the plan is of operator '%.120s', which the model lacks",
                               i, p->parts[i].op);
        else if ((status = check_part(p, x[i].part, &g->ops[x[i].op].op, err)))
            oato_fail_at(err, "part %d of the plan, '%s'", i, p->parts[i].op);
    }
    if (!status)
        qsort(x, (size_t)p->n_parts, sizeof *x, by_op_and_begin);
    for (int32_t op = 0, i = 0; op <= g->n_ops && !status; op++) {
        while (i < p->n_parts && x[i].op < op)
            i++;
        all.first[op] = i;
    }
    for (int32_t op = 0; op < g->n_ops && !status; op++) {
        const struct op_part *own = &x[all.first[op]];
        const int32_t n = all.first[op + 1] - all.first[op];
        status = check_cover(own, n, &g->ops[op], err);
        if (!status)
            status = check_resident(p, own, n, &g->ops[op], err);
    }
    for (int32_t op = 0; op < g->n_ops && !status; op++) {
        status = check_inputs(&all, op, g, err);
        if (!status)
            status = check_experts(&all, op, g, err);
    }
out:
    free(all.first);
    free(x);
    return status;
}

/* ------------------------------------------------------------------------------------ KV --- */

static int by_layer_and_head(const void *va, const void *vb)
{
    const struct plan_kv *a = va, *b = vb;
    const int order = order_i64(a->layer, b->layer);
    return order ? order : order_i64(a->head_begin, b->head_begin);
}

static int32_t kv_heads_of(const struct graph *g, int32_t layer)
{
    for (int32_t i = 0; i < g->n_ops; i++)
        if (g->ops[i].op.kind == OP_KV_STORE && g->ops[i].kv_layer == layer)
            return g->ops[i].op.kv_heads;
    return 0;
}

/* The heads of a layer that is named at all must be there exactly once. */
static oato_status check_kv(const struct plan *p, const struct graph *g, struct oato_error *err)
{
    oato_status status = OATO_OK;
    struct plan_kv *kv = calloc((size_t)p->n_kv + 1, sizeof *kv);
    if (!kv)
        return oato_fail_memory(err, (size_t)p->n_kv * sizeof *kv, "applying a plan");
    if (p->n_kv)
        memcpy(kv, p->kv, (size_t)p->n_kv * sizeof *kv);
    qsort(kv, (size_t)p->n_kv, sizeof *kv, by_layer_and_head);
    int32_t heads = 0;
    for (int32_t i = 0; i < p->n_kv && !status; i++) {
        bool first = !i || kv[i - 1].layer != kv[i].layer;
        bool last = i + 1 == p->n_kv || kv[i + 1].layer != kv[i].layer;
        if (first)
            heads = kv_heads_of(g, kv[i].layer);
        if (!heads)
            status = oato_fail(err, OATO_EFILE,
                               "the plan places KV of layer %d, which the model "
                               "lacks",
                               kv[i].layer);
        else if (kv[i].head_begin != (first ? 0 : kv[i - 1].head_end) ||
                 (last ? kv[i].head_end != heads : kv[i].head_end >= heads))
            status = oato_fail(err, OATO_EFILE,
                               "the plan places KV heads %d to %d of layer %d, which has %d: the "
                               "ranges of a layer must follow each other from 0 to its end",
                               kv[i].head_begin, kv[i].head_end, kv[i].layer, heads);
    }
    free(kv);
    return status;
}

oato_status plan_apply(const struct plan *p, const struct model *m, struct graph *out,
                       struct oato_error *err)
{
    memset(out, 0, sizeof *out);
    if (plan_validate(p, OATO_EFILE, err))
        return oato_fail_at(err, "plan");
    oato_status status = fuse(p, &m->graph, out, err);
    if (status)
        return status;
    struct named_op *names = names_sorted(out);
    if (!names) {
        graph_free(out);
        return oato_fail_memory(err, (size_t)m->graph.n_ops * sizeof *names, "applying a plan");
    }
    status = check_parts(p, out, names, err);
    if (!status)
        status = check_kv(p, out, err);
    if (!status)
        status = plan_check_caches(p, out, err);
    free(names);
    if (status)
        graph_free(out);
    return status;
}
