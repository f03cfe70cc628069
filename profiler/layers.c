/*
 * layers.c - the real layers of the model as one program, against the sum of their rows measured
 * one by one: what a record and its rows cost beyond their operator. It is small, and it is what
 * makes a predicted step add up to a measured one.
 */
#include "executor/arena.h"
#include "profiler/profiler_internal.h"

#include <stdlib.h>
#include <string.h>

#define LONGEST_NS 1e9

const struct profile_row *profile_find(const struct profile *p, int32_t device,
                                       const struct oato_op *op, const struct op_size *size)
{
    for (int32_t i = 0; i < p->n_rows; i++) {
        const struct profile_row *r = &p->rows[i];
        if (r->device == device && r->op.kind == op->kind && r->op.k == op->k &&
            r->size.rows == size->rows && r->size.seqs == size->seqs &&
            r->size.kv_positions == size->kv_positions && oato_op_same(&r->op, op))
            return r;
    }
    return NULL;
}

/* The first operators of the fused graph, up to the end of a layer. */
struct layers {
    struct graph graph;
    int32_t n_ops;
    uint64_t *value_offset; /* per value of the graph */
    uint64_t arena_bytes;
    struct kv_layer_shape *kv_shapes;
    int32_t n_kv;
    oato_dtype kv;
    struct oato_weight **weights; /* n_ops x GRAPH_WEIGHTS */
    struct program_record *records;
    uint64_t workspace_bytes;
};

static void layers_free(const struct rig *r, struct layers *l)
{
    for (int32_t i = 0; l->weights && i < l->n_ops * GRAPH_WEIGHTS; i++)
        if (l->weights[i])
            r->device->ops->weight_free(r->device, l->weights[i]);
    free(l->weights);
    free(l->records);
    free(l->kv_shapes);
    free(l->value_offset);
    graph_free(&l->graph);
}

static bool ends_layer(const struct graph *g, int32_t i)
{
    return i + 1 == g->n_ops || g->ops[i + 1].layer != g->ops[i].layer;
}

/* All operators when their weights fit, else whole layers from the first on. */
static int32_t ops_that_fit(const struct rig *r, const struct graph *g)
{
    struct device_info info;
    r->device->ops->info(r->device, &info);
    uint64_t room = info.free_bytes / 2, used = 0;
    room = room > (uint64_t)1 << 30 ? (uint64_t)1 << 30 : room;
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        used += rig_prepared_bytes(r, &g->ops[i].op, g->ops[i].weight, g->ops[i].n_weights);
        if (used > room)
            break;
        if (ends_layer(g, i))
            n = i + 1;
    }
    return n;
}

/* One queue: a record finds all records before it done. */
static int32_t runs_in_order(const void *user, int32_t queue, int32_t record, int32_t other)
{
    (void)user;
    return queue == other ? record - 1 : -1;
}

/* Places the values as the engine does, by liveness: what is read soon is read from a cache. */
static bool place_values(struct layers *l, int32_t tokens)
{
    const struct graph *g = &l->graph;
    uint64_t arena_bytes[DEVICES_MAX] = {0};
    struct buffer *buffers = calloc((size_t)g->n_values + 1, sizeof *buffers);
    int32_t *buffer_of = calloc((size_t)g->n_values + 1, sizeof *buffer_of);
    int32_t n = 0;
    for (int32_t i = 0; buffers && buffer_of && i < l->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        for (int32_t j = 0; j < o->n_in; j++)
            buffers[buffer_of[o->in[j]]].last_use[0] = i;
        for (int32_t j = 0; j < o->n_out; j++) {
            const struct graph_value *v = &g->values[o->out[j]];
            const int32_t rows = v->rows == ROWS_LOGITS ? 1 : tokens;
            buffer_of[o->out[j]] = n;
            buffers[n].bytes = sizeof(float) * (uint64_t)v->width * (uint64_t)rows;
            buffers[n].def_record = i;
            for (int32_t q = 0; q < DEVICES_MAX; q++)
                buffers[n].last_use[q] = q ? -1 : i;
            n++;
        }
    }
    bool placed =
        buffers && buffer_of && buffers_place(buffers, n, runs_in_order, NULL, arena_bytes);
    for (int32_t v = 0; placed && v < g->n_values; v++)
        l->value_offset[v] = buffers[buffer_of[v]].offset;
    l->arena_bytes = arena_bytes[0];
    free(buffers);
    free(buffer_of);
    return placed;
}

/* Of the first operators: the profile's time, and the rows that they work on beyond one each. */
static bool sum_rows(const struct profile *p, int32_t device, const struct graph *g, int32_t n_ops,
                     oato_dtype kv, const struct op_point *at, double *ns, int64_t *more_rows)
{
    *ns = 0;
    *more_rows = 0;
    for (int32_t i = 0; i < n_ops; i++) {
        struct oato_op op = graph_op_with_kv(&g->ops[i], kv);
        struct op_size size = op_point_size(&op, at);
        if (graph_op_size(g, i, 2, 1, 1, 1).rows == 1)
            size.rows = 1; /* logits of the last token */
        const struct profile_row *row = profile_find(p, device, &op, &size);
        if (!row || !row->supported)
            return false;
        *ns += row->median_ns;
        *more_rows += size.rows - 1;
    }
    return true;
}

/* As many layers as pass in reasonable time. */
static bool choose_layers(const struct rig *r, const struct profile *p, const struct op_point *at,
                          struct layers *l, struct layers_time *out)
{
    const struct graph *g = &l->graph;
    l->n_ops = ops_that_fit(r, g);
    if (!sum_rows(p, r->index, g, l->n_ops, l->kv, at, &out->sum_ns, &out->more_rows))
        return false;
    if (out->sum_ns > LONGEST_NS && !r->declared) {
        int32_t n = (int32_t)(l->n_ops * (LONGEST_NS / out->sum_ns));
        while (n < l->n_ops && !(n && ends_layer(g, n - 1)))
            n++;
        l->n_ops = n;
        sum_rows(p, r->index, g, n, l->kv, at, &out->sum_ns, &out->more_rows);
    }
    return l->n_ops > 0;
}

static oato_status layers_prepare(const struct rig *r, struct layers *l, const struct op_point *at,
                                  struct oato_error *err)
{
    const struct graph *g = &l->graph;
    size_t n = (size_t)l->n_ops;
    l->value_offset = calloc((size_t)g->n_values + 1, sizeof *l->value_offset);
    l->weights = calloc(n * GRAPH_WEIGHTS, sizeof(struct oato_weight *));
    l->records = calloc(n + 1, sizeof *l->records);
    l->kv_shapes = calloc(n, sizeof *l->kv_shapes);
    if (!l->value_offset || !l->weights || !l->records || !l->kv_shapes ||
        !place_values(l, at->rows))
        return oato_fail_memory(err, n * sizeof *l->records, "the layers' program");
    for (int32_t i = 0; i < l->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        struct oato_op op = graph_op_with_kv(o, l->kv);
        int32_t in_width[GRAPH_INPUTS] = {0};
        for (int32_t j = 0; j < o->n_in; j++)
            in_width[j] = g->values[o->in[j]].width;
        struct program_record *rec = &l->records[i + 1];
        *rec = rig_record(o, &op, in_width);
        rec->rows = (uint8_t)(o->n_out ? g->values[o->out[0]].rows : ROWS_TOKENS);
        for (int32_t j = 0; j < o->n_in; j++)
            rec->in[j] = l->value_offset[o->in[j]];
        for (int32_t j = 0; j < o->n_out; j++)
            rec->out[j] = l->value_offset[o->out[j]];
        rec->kv_layer = o->kv_layer;
        if (op.kind == OP_KV_STORE || op.kind == OP_ATTENTION) {
            l->kv_shapes[o->kv_layer] = (struct kv_layer_shape){op.kv_heads, op.head_dim};
            l->n_kv = (int32_t)max_i64(l->n_kv, o->kv_layer + 1);
        }
        struct op_size size = op_point_size(&op, at);
        uint64_t workspace = r->device->ops->workspace_bytes(r->device, &op, &size);
        l->workspace_bytes = workspace > l->workspace_bytes ? workspace : l->workspace_bytes;
        for (int32_t j = 0; j < o->n_weights; j++) {
            int32_t slot = i * GRAPH_WEIGHTS + j;
            if (!o->weight[j])
                continue;
            oato_status status = rig_prepare(r, &op, j, o->weight[j], &l->weights[slot], err);
            if (status)
                return status;
            rec->weight[j] = (uint32_t)slot;
        }
    }
    l->records[0] = l->records[1]; /* the marker */
    l->records[0].signal = 1;
    l->records[l->n_ops].signal = 2;
    return OATO_OK;
}

static double mean_but_slowest(const double *sorted, int32_t n)
{
    double sum = 0;
    int32_t kept = n - n / 20;
    for (int32_t i = 0; i < kept; i++)
        sum += sorted[i];
    return sum / kept;
}

static oato_status layers_run(const struct rig *r, struct layers *l, const struct op_point *at,
                              bool quick, struct layers_time *out, struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    int32_t pages = (at->context + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS;
    struct kv_cache *kv = NULL;
    void *arena = NULL;
    struct rig_step s = {0};
    struct rig_times times;
    oato_status status = rig_step_create(at, 0, &s, err);
    const int32_t last = at->rows - 1;
    s.step.row = &last;
    s.step.n_rows = 1;
    if (!status && l->n_kv)
        status = ops->kv_create(r->device, l->kv_shapes, l->n_kv, l->kv, pages, &kv, err);
    if (!status && kv && !r->declared)
        status = rig_fill_kv(r, kv, l->kv_shapes, l->n_kv, l->kv, pages, err);
    if (!status)
        status = rig_alloc(r, l->arena_bytes, &arena, err);
    struct program p = {.records = l->records,
                        .n_records = (uint32_t)l->n_ops + 1,
                        .n_signals = 2,
                        .max_tokens = at->rows,
                        .max_rows = 1,
                        .max_seqs = 1,
                        .weights = l->weights,
                        .n_weights = (uint32_t)(l->n_ops * GRAPH_WEIGHTS),
                        .arena = arena,
                        .workspace_bytes = l->workspace_bytes,
                        .kv = kv};
    const int32_t least = r->declared || at->rows > 1 ? 1 : quick ? 5 : 21;
    struct rig_effort effort = {least, 200, quick ? 50000000 : 200000000};
    if (!status)
        status = rig_run(r, &p, &s, &effort, &times, err);
    if (!status) { /* long: more often disturbed than a row */
        out->together_ns = quantile(times.inner_ns, times.n, 0.25);
        out->mean_ns = mean_but_slowest(times.inner_ns, times.n);
    }
    if (arena)
        ops->free(r->device, arena, l->arena_bytes);
    if (kv)
        ops->kv_free(r->device, kv);
    rig_step_free(&s);
    return status;
}

oato_status layers_measure(const struct rig *r, const struct profile *p, const struct model *m,
                           oato_dtype kv, const struct op_point *at, bool quick,
                           struct layers_time *out, struct oato_error *err)
{
    struct layers l = {.kv = kv};
    *out = (struct layers_time){0};
    oato_status status = fuse_all(&m->graph, &l.graph, err);
    if (status)
        return status;
    if (choose_layers(r, p, at, &l, out)) {
        status = layers_prepare(r, &l, at, err);
        if (!status)
            status = layers_run(r, &l, at, quick, out, err);
        if (!status)
            out->records = l.n_ops;
    }
    layers_free(r, &l);
    return status;
}

bool profiler_step_ns(const struct profile *p, int32_t device, const struct model *m, oato_dtype kv,
                      int32_t tokens, int32_t context, double *ns)
{
    struct graph g;
    struct oato_error ignored;
    if (fuse_all(&m->graph, &g, &ignored))
        return false;
    int64_t more_rows;
    bool found = sum_rows(p, device, &g, g.n_ops, kv, &(struct op_point){tokens, 1, context}, ns,
                          &more_rows);
    const struct profile_device *d = &p->devices[device];
    if (found)
        *ns += d->step_overhead_ns + d->record_overhead_ns * g.n_ops +
               d->row_overhead_ns * (double)more_rows;
    graph_free(&g);
    return found;
}
