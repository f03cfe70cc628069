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

bool row_is_of(const struct profile_row *r, const struct oato_op *op, const struct op_size *size)
{
    return r->op.kind == op->kind && r->op.k == op->k && r->size.rows == size->rows &&
           r->size.seqs == size->seqs && r->size.kv_positions == size->kv_positions &&
           oato_op_same(&r->op, op);
}

const struct profile_row *profile_find(const struct profile *p, int32_t device,
                                       const struct oato_op *op, const struct op_size *size)
{
    for (int32_t i = 0; i < p->n_rows; i++) {
        const struct profile_row *r = &p->rows[i];
        if (r->device == device && row_is_of(r, op, size))
            return r;
    }
    return NULL;
}

struct layers {
    const struct rig *rig;
    struct graph graph;
    oato_dtype kv;
    struct oato_weight **weights; /* per operator GRAPH_WEIGHTS, of the first n_prepared */
    int32_t n_prepared;
};

void layers_close(struct layers *l)
{
    if (!l)
        return;
    for (int32_t i = 0; l->weights && i < l->graph.n_ops * GRAPH_WEIGHTS; i++)
        if (l->weights[i])
            l->rig->device->ops->weight_free(l->rig->device, l->weights[i]);
    free(l->weights);
    graph_free(&l->graph);
    free(l);
}

oato_status layers_open(const struct rig *r, const struct model *m, oato_dtype kv,
                        struct layers **out, struct oato_error *err)
{
    struct layers *l = calloc(1, sizeof *l);
    *out = NULL;
    if (!l)
        return oato_fail_memory(err, sizeof *l, "layers");
    l->rig = r;
    l->kv = kv;
    oato_status status = fuse_all(&m->graph, &l->graph, err);
    const size_t n = (size_t)l->graph.n_ops * GRAPH_WEIGHTS;
    if (!status && !(l->weights = calloc(n + 1, sizeof(struct oato_weight *))))
        status = oato_fail_memory(err, n * sizeof(struct oato_weight *), "layers");
    if (status)
        layers_close(l);
    else
        *out = l;
    return status;
}

static bool ends_layer(const struct graph *g, int32_t i)
{
    return i + 1 == g->n_ops || g->ops[i + 1].layer != g->ops[i].layer;
}

/* All operators when their weights fit, else whole layers from the first on: 1 GiB of them, however
 * large the table is that tokens are looked up in; none where there is room for that alone. */
static int32_t ops_that_fit(const struct rig *r, const struct graph *g)
{
    struct device_info info;
    r->device->ops->info(r->device, &info);
    uint64_t used = 0, room = (uint64_t)1 << 30;
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        const uint64_t bytes = rig_prepared_bytes(r, &o->op, o->weight, o->n_weights);
        room += o->op.kind == OP_EMBED ? bytes : 0;
        used += bytes;
        if (used > room || used > info.free_bytes / 2)
            break;
        if (ends_layer(g, i) && o->layer >= 0)
            n = i + 1;
    }
    return n;
}

/* The first operators as a program of one step. */
struct layers_program {
    struct program program;
    struct program_record *records;
    uint64_t *value_offset; /* per value of the graph */
    uint64_t arena_bytes;
    struct kv_layer_shape *kv_shapes;
    int32_t n_kv;
};

static void program_free(struct layers_program *p)
{
    free(p->records);
    free(p->kv_shapes);
    free(p->value_offset);
}

/* One queue: a record finds all records before it done. */
static int32_t runs_in_order(const void *user, int32_t queue, int32_t record, int32_t other)
{
    (void)user;
    return queue == other ? record - 1 : -1;
}

/* Places the values as the engine does, by liveness: what is read soon is read from a cache. */
static bool place_values(const struct graph *g, int32_t n_ops, int32_t tokens,
                         struct layers_program *p)
{
    uint64_t arena_bytes[DEVICES_MAX] = {0};
    struct buffer *buffers = calloc((size_t)g->n_values + 1, sizeof *buffers);
    int32_t *buffer_of = calloc((size_t)g->n_values + 1, sizeof *buffer_of);
    int32_t n = 0;
    for (int32_t i = 0; buffers && buffer_of && i < n_ops; i++) {
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
        p->value_offset[v] = buffers[buffer_of[v]].offset;
    p->arena_bytes = arena_bytes[0];
    free(buffers);
    free(buffer_of);
    return placed;
}

/* Of the first operators: the profile's time, and how much of it is of rows beyond one each. */
static bool sum_rows(const struct profile *p, int32_t device, const struct graph *g, int32_t n_ops,
                     oato_dtype kv, const struct op_point *at, double *ns, double *more_ns)
{
    *ns = 0;
    *more_ns = 0;
    for (int32_t i = 0; i < n_ops; i++) {
        struct oato_op op = graph_op_with_kv(&g->ops[i], kv);
        struct op_size size = op_point_size(&op, at);
        if (graph_op_size(g, i, 2, 1, 1, 1).rows == 1)
            size.rows = 1; /* logits of the last token */
        const struct profile_row *row = profile_find(p, device, &op, &size);
        if (!row || !row->supported)
            return false;
        *ns += row->median_ns;
        *more_ns += row->median_ns * (size.rows - 1) / size.rows;
    }
    return true;
}

/* As many layers as fit and pass in reasonable time; as many as the last time, if there was one. */
static bool choose_layers(const struct layers *l, const struct profile *p,
                          const struct op_point *at, struct layers_time *t)
{
    const struct rig *r = l->rig;
    const struct graph *g = &l->graph;
    const bool before = t->records;
    int32_t n = before ? t->records : ops_that_fit(r, g);
    bool known = sum_rows(p, r->index, g, n, l->kv, at, &t->sum_ns, &t->more_ns);
    if (known && !before && t->sum_ns > LONGEST_NS && !r->declared) {
        const int32_t all = n;
        n = (int32_t)(all * (LONGEST_NS / t->sum_ns));
        while (n < all && !(n && ends_layer(g, n - 1)))
            n++;
        sum_rows(p, r->index, g, n, l->kv, at, &t->sum_ns, &t->more_ns);
    }
    t->records = known ? n : 0;
    return t->records;
}

static oato_status prepare_weights(struct layers *l, int32_t n_ops, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (; l->n_prepared < n_ops && !status; l->n_prepared += !status) {
        const struct graph_op *o = &l->graph.ops[l->n_prepared];
        const struct oato_op op = graph_op_with_kv(o, l->kv);
        struct oato_weight **w = &l->weights[l->n_prepared * GRAPH_WEIGHTS];
        for (int32_t j = 0; j < o->n_weights && !status; j++)
            if (o->weight[j] && !w[j])
                status = rig_prepare(l->rig, &op, j, o->weight[j], &w[j], err);
    }
    return status;
}

/* The kernels that the operator's row was measured with; a step has them all again. */
static enum numerics_choice choice_of(const struct layers *l, const struct profile *p,
                                      const struct oato_op *op, const struct op_point *at)
{
    struct oato_device *d = l->rig->device;
    const struct op_size size = op_point_size(op, at);
    const struct profile_row *row = profile_find(p, l->rig->index, op, &size);
    if (at->rows <= NUMERICS_DECODE_ROWS)
        return NUMERICS_DECODE;
    return row && strcmp(row->numerics, d->ops->numerics(d, op, NUMERICS_PREFILL)) != 0
               ? NUMERICS_LIBRARY
               : NUMERICS_PREFILL;
}

static oato_status program_make(const struct layers *l, const struct profile *p,
                                const struct op_point *at, int32_t n_ops,
                                struct layers_program *out, struct oato_error *err)
{
    const struct graph *g = &l->graph;
    struct oato_device *device = l->rig->device;
    const size_t n = (size_t)n_ops;
    out->value_offset = calloc((size_t)g->n_values + 1, sizeof *out->value_offset);
    out->records = calloc(n + 1, sizeof *out->records);
    out->kv_shapes = calloc(n, sizeof *out->kv_shapes);
    if (!out->value_offset || !out->records || !out->kv_shapes ||
        !place_values(g, n_ops, at->rows, out))
        return oato_fail_memory(err, n * sizeof *out->records, "the layers' program");
    uint64_t workspace = 0;
    for (int32_t i = 0; i < n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        struct oato_op op = graph_op_with_kv(o, l->kv);
        int32_t in_width[GRAPH_INPUTS] = {0};
        for (int32_t j = 0; j < o->n_in; j++)
            in_width[j] = g->values[o->in[j]].width;
        struct program_record *rec = &out->records[i + 1];
        *rec = rig_record(o, &op, in_width);
        rec->rows = (uint8_t)(o->n_out ? g->values[o->out[0]].rows : ROWS_TOKENS);
        rec->numerics = choice_of(l, p, &op, at);
        for (int32_t j = 0; j < o->n_in; j++)
            rec->in[j] = out->value_offset[o->in[j]];
        for (int32_t j = 0; j < o->n_out; j++)
            rec->out[j] = out->value_offset[o->out[j]];
        for (int32_t j = 0; j < o->n_weights; j++)
            if (o->weight[j])
                rec->weight[j] = (uint32_t)(i * GRAPH_WEIGHTS + j);
        rec->kv_layer = o->kv_layer;
        if (op_has_kv(&op)) {
            out->kv_shapes[o->kv_layer] = (struct kv_layer_shape){op.kv_heads, op.head_dim};
            out->n_kv = (int32_t)max_i64(out->n_kv, o->kv_layer + 1);
        }
        struct op_size size = op_point_size(&op, at);
        uint64_t bytes = device->ops->workspace_bytes(device, &op, &size);
        workspace = bytes > workspace ? bytes : workspace;
    }
    out->records[0] = out->records[1]; /* the marker */
    out->records[0].signal = 1;
    out->records[n_ops].signal = 2;
    out->program = (struct program){.records = out->records,
                                    .n_records = (uint32_t)n_ops + 1,
                                    .n_signals = 2,
                                    .max_tokens = at->rows,
                                    .max_rows = 1,
                                    .max_seqs = 1,
                                    .weights = l->weights,
                                    .n_weights = (uint32_t)(n_ops * GRAPH_WEIGHTS),
                                    .workspace_bytes = workspace};
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

static oato_status program_time(const struct rig *r, oato_dtype kv, struct layers_program *p,
                                const struct op_point *at, bool quick, struct layers_time *out,
                                struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    int32_t pages = (at->context + KV_PAGE_POSITIONS - 1) / KV_PAGE_POSITIONS;
    struct program *program = &p->program;
    struct rig_step s = {0};
    struct rig_times times;
    oato_status status = rig_step_create(at, 0, &s, err);
    const int32_t last = at->rows - 1;
    s.step.row = &last;
    s.step.n_rows = 1;
    if (!status && p->n_kv)
        status = ops->kv_create(r->device, p->kv_shapes, p->n_kv, kv, pages, &program->kv, err);
    if (!status && program->kv && !r->declared)
        status = rig_fill_kv(r, program->kv, p->kv_shapes, p->n_kv, kv, pages, err);
    if (!status)
        status = rig_alloc(r, p->arena_bytes, &program->arena, err);
    const int32_t least = r->declared || at->rows > 1 ? 1 : quick ? 5 : 21;
    struct rig_effort effort = {least, 200, quick ? 50000000 : 200000000};
    if (!status)
        status = rig_run(r, program, &s, &effort, &times, err);
    if (!status) { /* long: more often disturbed than a row */
        out->together_ns = quantile(times.inner_ns, times.n, 0.25);
        out->mean_ns = mean_but_slowest(times.inner_ns, times.n);
    }
    if (program->arena)
        ops->free(r->device, program->arena, p->arena_bytes);
    if (program->kv)
        ops->kv_free(r->device, program->kv);
    rig_step_free(&s);
    return status;
}

oato_status layers_measure(struct layers *l, const struct profile *p, const struct op_point *at,
                           bool quick, struct layers_time *t, struct oato_error *err)
{
    struct layers_program program = {.records = NULL};
    if (!choose_layers(l, p, at, t))
        return OATO_OK;
    oato_status status = prepare_weights(l, t->records, err);
    if (!status)
        status = program_make(l, p, at, t->records, &program, err);
    if (!status)
        status = program_time(l->rig, l->kv, &program, at, quick, t, err);
    if (status)
        t->records = 0;
    program_free(&program);
    return status;
}

bool profiler_step_ns(const struct profile *p, int32_t device, const struct model *m, oato_dtype kv,
                      int32_t tokens, int32_t context, double *ns)
{
    struct graph g;
    struct oato_error ignored;
    if (fuse_all(&m->graph, &g, &ignored))
        return false;
    double more_ns;
    bool found =
        sum_rows(p, device, &g, g.n_ops, kv, &(struct op_point){tokens, 1, context}, ns, &more_ns);
    const struct profile_device *d = &p->devices[device];
    if (found)
        *ns += d->step_overhead_ns + d->record_overhead_ns * g.n_ops + d->rows_overhead * more_ns;
    graph_free(&g);
    return found;
}
