/*
 * lower.c - compiles graph + placement of one phase into a flat program per device.
 *
 * The graph is walked once in order. Every operator part becomes a record on its device's queue. A
 * K part reads its columns of the input, a head part those of its heads, an expert part what the
 * same experts made; everything else reads whole values (values.c). A merge record concatenates row
 * and head parts, or sums K and expert parts, where the whole value is read.
 */
#include "lowering/lowering_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------- operators */

/* The part of an operator that a record computes; axis AXIS_COUNT: all of it. */
struct record_part {
    const struct placement *placement;
    const struct placed_part *placed;
    enum op_axis axis;
    int32_t number;
    int32_t slots, cache; /* as in op.expert_slots; number of the cache */
};

static struct record_part part_of(const struct placement *p, int32_t number)
{
    const enum op_axis axis = p->n == 1 ? AXIS_COUNT : p->axis;
    return (struct record_part){
        .placement = p, .placed = &p->part[number], .axis = axis, .number = number};
}

/* Elements of the part along its axis; meaningless for an operator that is not split. */
static int32_t part_length(struct record_part part)
{
    return part.placed->end - part.placed->begin;
}

/* Heads of q for each one that an axis of heads counts: those of K and V, or of ROPE and HEAD_NORM
 * their own. */
static int32_t head_group(const struct oato_op *op)
{
    return op->kind == OP_ATTENTION ? op->heads / op->kv_heads : 1;
}

/* Columns per KV head: of q, of k and v, or of attention's output. QKV counts rows of k, of which
 * each goes with as many of q. */
static int32_t head_columns(const struct graph_op *o, int32_t value)
{
    if (o->op.kind == OP_QKV)
        return value == o->out[0] ? o->op.n / o->op.n2 : 1;
    return head_group(&o->op) * o->op.head_dim;
}

/* Divisors of frequencies may depend on the context that a sequence can have. */
static const struct gguf_tensor *weight_of(const struct lowering *l, const struct graph_op *o,
                                           int i)
{
    const int32_t seqs = l->in->limits.seqs > 1 ? l->in->limits.seqs : 1;
    return o->beyond && l->in->limits.context / seqs > o->beyond_context ? o->beyond : o->weight[i];
}

/* Vectors are small: they are whole even for some experts, but in their order. Of attention's
 * sinks, one for each head of q, a part has its own. */
static void vector_cut(const struct graph_op *o, struct record_part part, struct weight_slot *slot)
{
    slot->end = slot->tensor->ne[1] * slot->tensor->ne[2];
    slot->members = part.placement->order;
    slot->each = slot->end > 1;
    const bool heads = part.axis == AXIS_HEADS && o->op.kind == OP_ATTENTION;
    if (heads || (part.axis == AXIS_ROWS && o->op.kind == OP_BIAS)) {
        const int32_t group = heads ? head_group(&o->op) : 1;
        slot->col_begin = (int64_t)part.placed->begin * group;
        slot->col_end = (int64_t)part.placed->end * group;
    }
}

/* What a part needs of a matrix, the i-th; slot: all of it. */
static void matrix_cut(const struct graph_op *o, struct record_part part, int i,
                       struct weight_slot *slot)
{
    const int64_t begin = part.placed->begin, end = part.placed->end;
    slot->members = part.placed->members;
    if (part.axis == AXIS_K) {
        slot->col_begin = begin;
        slot->col_end = end;
    } else if (part.axis == AXIS_ROWS || part.axis == AXIS_EXPERTS) {
        slot->each = part.axis == AXIS_ROWS ? 1 : slot->end / o->op.experts;
        slot->begin = begin * slot->each;
        slot->end = end * slot->each;
    } else if (part.axis == AXIS_HEADS) { /* QKV */
        slot->begin = begin * head_columns(o, o->out[i]);
        slot->end = end * head_columns(o, o->out[i]);
    }
}

/* A router numbers experts by the order that the placement names. */
static void experts_add(struct lowering *l, struct queued *r, struct record_part part)
{
    const struct gguf_tensor *t = part.placement->experts;
    if (!t || failed(l))
        return;
    const struct weight_slot slot = {
        .tensor = t, .use = WEIGHT_VECTOR, .end = 1, .col_end = t->ne[0]};
    r->record.weight[1] = weight_slot_find(l, part.placed->device, &slot);
    r->record.n_weights = 2;
}

static void weights_add(struct lowering *l, const struct graph_op *o, struct queued *r,
                        struct record_part part)
{
    const int32_t device = part.placed->device;
    uint64_t offset = 0;
    r->streams = part.placed->streamed;
    for (int i = 0; i < o->n_weights; i++) {
        int64_t rows = 1, k;
        if (!o->weight[i])
            continue;
        op_weight_shape(&o->op, i, &rows, &k);
        if (i && o->weight[i] == o->weight[i - 1]) { /* gate and up in one */
            r->record.weight[i] = r->record.weight[i - 1];
            continue;
        }
        struct weight_slot slot = {.tensor = weight_of(l, o, i),
                                   .use = op_weight_use_at(&r->record.op, i),
                                   .end = rows,
                                   .col_end = o->weight[i]->ne[0]};
        if (slot.use == WEIGHT_VECTOR)
            vector_cut(o, part, &slot);
        else
            matrix_cut(o, part, i, &slot);
        if (part.slots > 0 && slot.use == WEIGHT_MATRIX) {
            slot.cached = true;
            slot.end = slot.begin + part.slots * (rows / o->op.experts);
        }
        if (r->streams && slot.use != WEIGHT_VECTOR && slot.use != WEIGHT_LOOKUP) {
            slot.streamed = true;
            slot.stored = part.placed->stored;
        }
        r->record.weight[i] = weight_slot_find(l, device, &slot);
        if (failed(l))
            return;
        if (!slot.streamed)
            continue;
        offset += l->out->device[device].slots[r->record.weight[i]].bytes;
        offset = size_align(offset, slot.stored ? READ_ALIGN : STAGING_ALIGN);
    }
    r->record.n_weights = (uint8_t)o->n_weights;
    experts_add(l, r, part);
    if (!r->streams)
        return;
    l->streams[device]++;
    l->out->stream_bytes[l->phase] += offset;
    r->stream_bytes = offset;
}

/* The i-th input of a part on its device. */
static struct home input_read(struct lowering *l, const struct graph_op *o, struct record_part part,
                              int i)
{
    const struct placed_part *p = part.placed;
    const int32_t columns = part.axis == AXIS_HEADS ? head_columns(o, o->in[i]) : 1;
    if (part.axis == AXIS_K && p->members)
        return members_read(l, o->in[i], PARTS_NEURONS, p->begin, p->end, p->device);
    if (op_reads_columns(&o->op, part.axis))
        return columns_read(l, o->in[i], p->begin * columns, p->end * columns, p->device);
    if (part.axis == AXIS_EXPERTS && o->op.kind == OP_EXPERT_DOWN && i == 0)
        return members_read(l, o->in[i], PARTS_EXPERTS, p->begin, p->end, p->device);
    return value_read(l, o->in[i], p->device);
}

/* Whether that input is read as a whole, or in columns that another rank has. */
static bool needs_ranks(const struct lowering *l, const struct graph_op *o, struct record_part part,
                        int i)
{
    const struct placed_part *p = part.placed;
    const int32_t columns = part.axis == AXIS_HEADS ? head_columns(o, o->in[i]) : 1;
    if ((part.axis == AXIS_K && p->members) ||
        (part.axis == AXIS_EXPERTS && o->op.kind == OP_EXPERT_DOWN && i == 0))
        return false;
    return !op_reads_columns(&o->op, part.axis) ||
           rank_part_find(l, o->in[i], p->begin * columns, p->end * columns, p->rank) < 0;
}

static void inputs_share(struct lowering *l, const struct graph_op *o, struct record_part part)
{
    for (int i = 0; i < o->n_in && !failed(l); i++)
        if (needs_ranks(l, o, part, i))
            value_share(l, o->in[i]);
}

static void inputs_read(struct lowering *l, const struct graph_op *o, struct record_part part,
                        struct home inputs[GRAPH_INPUTS])
{
    for (int i = 0; i < o->n_in && !failed(l); i++)
        inputs[i] = input_read(l, o, part, i);
}

/* Columns of a value that the part reads or makes; `axis` is the one that cuts these. */
static int32_t columns_of(const struct lowering *l, const struct graph_op *o,
                          struct record_part part, enum op_axis axis, int32_t value)
{
    if (part.axis == axis)
        return part_length(part);
    if (axis == AXIS_K && !op_reads_columns(&o->op, part.axis))
        return l->graph->values[value].width;
    if (part.axis == AXIS_HEADS)
        return part_length(part) * head_columns(o, value);
    if (axis == AXIS_K && part.axis == AXIS_ROWS)
        return part_length(part);
    return l->graph->values[value].width;
}

/* Gathered columns of block types are read one by one: they are no blocks. */
static bool reads_columns(struct record_part part, const struct oato_op *op)
{
    return part.axis == AXIS_K && part.placed->members && dtype_info(op->dtype)->block_elems > 1;
}

/* The operator that a part's record runs: the original one with the part's shape. */
static struct oato_op part_op(const struct lowering *l, const struct graph_op *o,
                              struct record_part part)
{
    const int32_t length = part_length(part);
    struct oato_op op = graph_op_with_kv(o, l->in->kv);
    if (part.axis == AXIS_ROWS)
        op.n = length;
    if (part.axis == AXIS_ROWS && op.kind == OP_BIAS)
        op.k = length;
    if (part.axis == AXIS_K) {
        op.k = length;
        if (reads_columns(part, &op) && !op.sparse) {
            op.sparse = SPARSE_ABOVE;
            op.threshold = -1;
        }
    }
    if (op.sparse == SPARSE_PREDICT && !part.placement->predictor)
        op.sparse = SPARSE_BY_ROWS;
    if (part.axis == AXIS_HEADS && op.kind == OP_QKV) {
        op.n = length * (op.n / op.n2);
        op.n2 = length;
    } else if (part.axis == AXIS_HEADS) {
        if (op.kind == OP_ATTENTION)
            op.first += op.heads / op.kv_heads * part.placed->begin;
        op.heads = op.kind == OP_KV_STORE ? op.heads : head_group(&o->op) * length;
        op.kv_heads = op_has_kv(&op) ? length : op.kv_heads;
        op.k = op.n = length * head_columns(o, -1);
    }
    if (part.axis == AXIS_EXPERTS) {
        op.expert_first = part.placed->begin;
        op.experts_held = length;
    }
    op.expert_slots = part.slots;
    return op;
}

static enum value_parts parts_made(const struct graph_op *o, struct record_part part)
{
    if (part.axis == AXIS_EXPERTS && o->op.kind == OP_EXPERT_GATE_UP)
        return PARTS_EXPERTS;
    if (part.axis == AXIS_K || part.axis == AXIS_EXPERTS)
        return PARTS_SUMMANDS;
    return part.placed->members ? PARTS_NEURONS : PARTS_COLUMNS;
}

/* Registers the output `made` as a part of the operator's value. */
static void part_made(struct lowering *l, const struct graph_op *o, struct record_part part,
                      int32_t value, int32_t width, struct home made)
{
    struct lowered_value *v = &l->values[value];
    const int32_t p = v->n_parts++, device = part.placed->device;
    const int32_t columns = part.axis == AXIS_HEADS ? head_columns(o, value) : 1;
    const bool whole = part.axis == AXIS_COUNT;
    v->parts = parts_made(o, part);
    v->part_begin[p] = whole ? 0 : part.placed->begin * columns;
    v->part_end[p] = whole ? width : part.placed->end * columns;
    v->part_device[p] = device;
    v->part_width[p] = width;
    v->part_rank[p] = part.placed->rank;
    v->part_host[p] = part.placed->host;
    v->everywhere = part.placed->everywhere;
    if (device >= 0)
        v->part[p][device] = made;
}

/* What another rank makes. */
static void part_elsewhere(struct lowering *l, const struct graph_op *o, struct record_part part)
{
    for (int i = 0; i < o->n_out; i++)
        part_made(l, o, part, o->out[i], columns_of(l, o, part, AXIS_ROWS, o->out[i]), nowhere);
}

/* What other devices skip is computed where nothing can be, or is to be, skipped. */
static void unless_skipped(const struct lowering *l, struct record_part part, struct oato_op *op)
{
    const struct lowering_facts *facts = l->in->facts;
    const int32_t device = part.placed->device;
    const bool skips = op->sparse < SPARSE_PREDICT
                           ? !facts->supports || facts->supports(facts->user, device, op)
                           : lists_possible(l, device, op);
    if (op->sparse && reads_columns(part, op)) {
        op->threshold = part.placed->dense ? -1 : op->threshold;
    } else if (op->sparse && (part.placed->dense || !skips)) {
        op->sparse = 0;
        op->threshold = 0;
    }
}

/* The list of neurons that a part of a GATE_UP computes. */
static struct home list_read(struct lowering *l, const struct graph_op *o, struct record_part part,
                             const struct oato_op *op, struct home x)
{
    struct weight_slot gate = {
        .tensor = o->weight[0], .end = o->weight[0]->ne[1], .col_end = o->weight[0]->ne[0]};
    matrix_cut(o, part, 0, &gate);
    return list_emit(l, part.placement->predictor, o, op, &gate, part.placed->device, x);
}

/* Adds the part's record: its outputs, and how many columns they have. */
static void part_record(struct lowering *l, int32_t index, struct record_part part,
                        struct home made[GRAPH_OUTPUTS], int32_t width[GRAPH_OUTPUTS])
{
    const struct lowering_facts *facts = l->in->facts;
    const struct graph_op *o = &l->graph->ops[index];
    const int32_t device = part.placed->device;
    struct oato_op op = part_op(l, o, part);
    struct home inputs[GRAPH_INPUTS] = {{0}}, list = nowhere;
    unless_skipped(l, part, &op);
    inputs_read(l, o, part, inputs);
    if (op.sparse == SPARSE_PREDICT && !failed(l))
        list = list_read(l, o, part, &op, inputs[0]);
    for (int i = 0; i < o->n_in; i++)
        inputs[i] = home_as(l, o->in[i], inputs[i], value_type_in(facts->values[device], &op, i));
    const int32_t room =
        part.placed->kv_streamed && !failed(l) ? history_emit(l, index, device) : -1;
    struct queued *r = failed(l) ? NULL : record_add(l, device, RECORD_RUN);
    if (!r)
        return;
    r->record.op = op;
    if (facts->supports && !facts->supports(facts->user, device, &r->record.op)) {
        char key[OP_KEY_SIZE];
        oato_fail(l->err, OATO_EFILE,
                  "operator %s (%s) cannot run on %s, which the plan's profile did not say; %srun "
                  "oato-profile, then oato-plan again, or plan without that device (--devices)",
                  o->name, oato_op_key(&r->record.op, NULL, key), facts->id[device],
                  op_has_kv(&op) ? "use another type of KV (--kv), or " : "");
        return;
    }
    if (part.placed->streamed && !facts->streams[device]) {
        oato_fail(l->err, OATO_EFILE,
                  "operator %s streams its weights to %s: that is possible only from the host to a "
                  "device with its own memory; run oato-plan again",
                  o->name, facts->id[device]);
        return;
    }
    r->record.graph_op = (uint32_t)index;
    r->record.cache = part.cache;
    r->record.part = (uint8_t)part.number;
    r->record.parts = (uint8_t)part.placement->n;
    r->record.rows = value_rows(l, o->n_out ? o->out[0] : o->in[0]);
    if (facts->numerics)
        r->record.numerics = (uint8_t)facts->numerics(facts->user, device, &r->record.op, l->phase,
                                                      (enum row_class)r->record.rows);
    r->record.kv_layer = room >= 0 ? room
                                   : kv_home_of_part(&l->out->device[device], l->graph, index,
                                                     part.placement, part.number);
    for (int i = 0; i < o->n_in; i++)
        record_reads(l, device, r, i, inputs[i], columns_of(l, o, part, AXIS_K, o->in[i]));
    if (list.buffer >= 0)
        record_reads(l, device, r, o->n_in, list, op.n + 1);
    weights_add(l, o, r, part);
    if (o->n_out)
        r->record.value = (uint32_t)o->out[0];
    for (int i = 0; i < o->n_out; i++) {
        width[i] = part.slots ? op_out_width(&r->record.op, i)
                              : columns_of(l, o, part, AXIS_ROWS, o->out[i]);
        record_makes(l, device, device, r, i, width[i], value_rows(l, o->out[i]));
    }
    const int32_t record = record_done(l, device, r);
    for (int i = 0; i < o->n_out; i++)
        made[i] = (struct home){r->out[i], device, record};
}

/* ------------------------------------------------------------------- experts in a cache - */

static bool is_cached(const struct lowering *l, struct record_part part)
{
    const struct placed_cache *c = &part.placement->cache;
    return c->slots && l->in->facts->caches[c->device] && part.placed->device == l->in->facts->host;
}

/* The weights that change, of the two records of EXPERT_GATE_UP or EXPERT_DOWN. */
static void cache_weights(struct lowering *l, struct lowered_cache *c, struct home here,
                          struct home there)
{
    const struct program_record *host = &l->queue[here.queue].records[here.record].record;
    const struct program_record *other = &l->queue[there.queue].records[there.record].record;
    for (int i = 0; i < op_weight_least(&host->op); i++) {
        if (i && host->weight[i] == host->weight[i - 1])
            continue;
        const struct weight_slot *slots = &l->out->device[there.queue].slots[other->weight[i]];
        c->weight[c->n_weights].here = host->weight[i];
        c->weight[c->n_weights].there = other->weight[i];
        c->weight[c->n_weights++].rows = (slots->end - slots->begin) / c->slots;
    }
}

/* A new cache; NULL: memory is short. */
static struct lowered_cache *cache_add(struct lowering *l, int32_t index, struct record_part part)
{
    struct lowered *out = l->out;
    const struct graph_op *o = &l->graph->ops[index];
    struct lowered_cache *p =
        room_for(l, out->caches, out->n_caches, &out->caches_cap, sizeof *p, "caches of experts");
    if (!p)
        return NULL;
    const bool whole = part.axis != AXIS_EXPERTS;
    out->caches = p;
    p += out->n_caches++;
    *p = (struct lowered_cache){.op = index,
                                .device = part.placement->cache.device,
                                .first = whole ? 0 : part.placed->begin,
                                .held = whole ? o->op.experts : part_length(part),
                                .used = o->op.experts_used,
                                .slots = part.placement->cache.slots,
                                .margin = part.placement->cache.margin};
    p->choice = value_read(l, o->in[1], l->in->facts->host).buffer;
    return p;
}

/* The sum of all products of EXPERT_DOWN, on the host. */
static struct home experts_sum(struct lowering *l, const struct graph_op *o,
                               struct record_part part, int32_t width, struct home here,
                               struct home there)
{
    const int32_t host = l->in->facts->host;
    struct oato_op op = part_op(l, o, part);
    op.kind = OP_EXPERT_SUM;
    op.dtype = DT_F32;
    op.k = op.n;
    op.expert_slots = 0;
    const struct home in[] = {value_read(l, o->in[1], host), here,
                              copy_emit(l, o->out[0], part.number, width, there, host)};
    const int32_t widths[] = {2 * op.experts_used, width, width};
    copy_count(l, width);
    const struct home sum = run_emit(l, host, op, o->out[0], in, widths, 3);
    if (!failed(l))
        l->queue[host].records[sum.record].record.cache = part.cache;
    return sum;
}

/* Both devices compute the part at the same time, each those of its experts that are there. Only
 * the host sums, in the order of the choice, so the bits do not depend on what is where. */
static void cached_emit(struct lowering *l, int32_t index, struct record_part part)
{
    const struct graph_op *o = &l->graph->ops[index];
    const bool up = o->op.kind == OP_EXPERT_GATE_UP;
    struct lowered_cache *c =
        up ? cache_add(l, index, part) : &l->out->caches[l->out->n_caches - 1];
    struct placed_part there = *part.placed;
    struct home made[2][GRAPH_OUTPUTS] = {{{0}}};
    int32_t width[GRAPH_OUTPUTS] = {0};
    if (failed(l))
        return;
    there.device = c->device;
    part.cache = (int32_t)(c - l->out->caches);
    part.slots = c->slots;
    struct record_part far = part;
    far.placed = &there;
    part_record(l, index, far, made[1], width);
    part.slots = -1;
    if (!failed(l))
        part_record(l, index, part, made[0], width);
    if (failed(l))
        return;
    cache_weights(l, c, made[0][0], made[1][0]);
    if (up) {
        struct lowered_value *v = &l->values[o->out[0]];
        part_made(l, o, part, o->out[0], width[0], made[0][0]);
        v->part[v->n_parts - 1][c->device] = made[1][0];
        v->counted[v->n_parts - 1][c->device] = true; /* nothing is copied */
        return;
    }
    const struct home sum = experts_sum(l, o, part, width[0], made[0][0], made[1][0]);
    if (!failed(l))
        part_made(l, o, part, o->out[0], o->op.n, sum);
}

static void part_emit(struct lowering *l, int32_t index, struct record_part part)
{
    const struct graph_op *o = &l->graph->ops[index];
    struct home made[GRAPH_OUTPUTS];
    int32_t width[GRAPH_OUTPUTS] = {0};
    if (is_cached(l, part)) {
        cached_emit(l, index, part);
        return;
    }
    part_record(l, index, part, made, width);
    for (int i = 0; i < o->n_out && !failed(l); i++)
        part_made(l, o, part, o->out[i], width[i], made[i]);
}

static void op_emit(struct lowering *l, int32_t index)
{
    const struct placement *p = &l->in->placements->phase[l->phase][index];
    const struct graph_op *o = &l->graph->ops[index];
    if (p->n > 1 && !op_divides(&o->op, p->axis)) {
        oato_fail(l->err, OATO_EFILE,
                  "operator %s (%s) cannot be split along the axis that the plan names; run "
                  "oato-plan again",
                  o->name, op_kind_name(o->op.kind));
        return;
    }
    struct home inputs[GRAPH_INPUTS];
    for (int i = 0; i < p->n * o->n_in; i++)
        value_pass(l, o->in[i % o->n_in], &p->part[i / o->n_in]);
    for (int i = 0; i < p->n && p->n > 1; i++)
        inputs_share(l, o, part_of(p, i));
    for (int i = 0; i < p->n && p->n > 1; i++) /* copies start before the parts run */
        if (p->part[i].device >= 0)
            inputs_read(l, o, part_of(p, i), inputs);
    for (int i = 0; i < p->n && !failed(l); i++)
        if (p->part[i].device >= 0)
            part_emit(l, index, part_of(p, i));
        else
            part_elsewhere(l, o, part_of(p, i));
}

/* See lowering_input.n_spare. What an accelerator streams is in no file. */
static void spare_emit(struct lowering *l, int32_t index)
{
    const struct placement *p = &l->in->placements->phase[l->phase][index];
    const struct graph_op *o = &l->graph->ops[index];
    l->spare = true;
    for (int i = 0; i < p->n && !failed(l); i++) {
        struct record_part part = part_of(p, i);
        struct placed_part resident = *part.placed;
        struct queued r = {.record = {.op = part_op(l, o, part)}};
        if (resident.device < 0 || (resident.streamed && !resident.stored))
            continue;
        resident.streamed = resident.stored = false;
        part.placed = &resident;
        weights_add(l, o, &r, part);
    }
    l->spare = false;
}

/* ---------------------------------------------------------------------------- the result */

oato_status lower(const struct lowering_input *in, enum plan_phase phase, struct lowered *out,
                  struct oato_error *err)
{
    struct lowering l = {.in = in, .out = out, .graph = in->graph, .phase = phase, .err = err};
    const int32_t n_ops = in->n_ops ? in->n_ops : in->graph->n_ops;
    l.max_tokens = in->limits.tokens[phase];
    l.max_rows = in->limits.rows[phase];
    l.max_states = in->state ? in->limits.states[phase] : l.max_rows;
    err->status = OATO_OK;
    l.values = calloc((size_t)l.graph->n_values, sizeof *l.values);
    if (!l.values)
        return oato_fail_memory(err, (size_t)l.graph->n_values * sizeof *l.values, "lowering");
    values_init(&l);
    if (!in->n_ops)
        kv_copies_begin(&l);
    if (!failed(&l))
        history_begin(&l);
    for (int32_t i = 0; i < n_ops && !failed(&l); i++) {
        op_emit(&l, i);
        if (in->state && i == l.graph->values[in->state].producer)
            l.some_rows = ROWS_OUTPUT;
    }
    for (int32_t i = n_ops; i < n_ops + in->n_spare && !failed(&l); i++)
        spare_emit(&l, i);
    struct result result = {nowhere, nowhere, nowhere};
    if (!failed(&l) && !in->n_ops)
        result = result_read(&l);
    if (!failed(&l))
        phase_finish(&l, &result);
    for (int d = 0; d < DEVICES_MAX; d++)
        free(l.queue[d].records);
    free(l.slices);
    free(l.buffers);
    free(l.values);
    return err->status;
}
