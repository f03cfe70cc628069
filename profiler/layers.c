/*
 * layers.c - the real layers of the model as one program, compared with the sum of their rows
 * measured one by one: gives the overhead per record and row. It is small, but without it a
 * predicted step would not add up to a measured one.
 */
#include "profiler/profiler_internal.h"

#include "lowering/lowering.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST_NS 1e9

bool row_is_of(const struct profile_row *r, const struct oato_op *op, const struct op_size *size)
{
    return r->op.kind == op->kind && r->op.k == op->k && r->size.rows == size->rows &&
           r->size.seqs == size->seqs && r->size.kv_positions == size->kv_positions &&
           r->size.active == size->active && oato_op_same(&r->op, op);
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
    enum plan_phase phase;         /* prefill's programs serve both; decode's have predictors */
    const struct neurons *neurons; /* whose predictors are used; NULL: none are */
    struct oato_weight **weights;  /* as lowering numbers them; the first n_prepared are there */
    uint32_t n_prepared;
};

void layers_close(struct layers *l)
{
    if (!l)
        return;
    for (uint32_t i = 0; l->weights && i < l->n_prepared; i++)
        weight_free(l->rig->device, l->weights[i]);
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
    oato_status status = graph_fuse_all(&m->graph, NULL, NULL, &l->graph, err);
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
        int32_t first;
        const enum op_join join = at->rows == 1 ? graph_join(g, i, &first) : JOIN_NONE;
        *ns += row->median_ns - (join == JOIN_NONE ? 0 : p->devices[device].join_ns[join]);
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

/* What lowering asks of the device at a point. */
struct layers_facts {
    const struct layers *layers;
    const struct profile *profile;
    const struct op_point *at;
};

/* The kernels that the operator's row was measured with; a step has them all again. */
static enum numerics_choice op_numerics(const void *user, int32_t device, const struct oato_op *op,
                                        enum plan_phase phase, enum row_class rows)
{
    const struct layers_facts *f = user;
    const struct rig *rig = f->layers->rig;
    struct oato_device *d = rig->device;
    const struct op_size size = op_point_size(op, f->at);
    (void)device, (void)phase, (void)rows;
    if (f->at->rows <= NUMERICS_DECODE_ROWS)
        return NUMERICS_DECODE;
    const struct profile_row *row = profile_find(f->profile, rig->index, op, &size);
    return row && strcmp(row->numerics, d->ops->numerics(d, op, NUMERICS_PREFILL)) != 0
               ? NUMERICS_LIBRARY
               : NUMERICS_PREFILL;
}

static uint64_t op_workspace(const void *user, int32_t device, const struct oato_op *op,
                             const struct op_size *size)
{
    const struct layers_facts *f = user;
    struct oato_device *d = f->layers->rig->device;
    (void)device;
    return d->ops->workspace_bytes(d, op, size);
}

/* The first operators as the engine would run them on this device alone. */
static oato_status layers_lower(const struct layers *l, const struct profile *p,
                                const struct op_point *at, int32_t n_ops, struct lowered *out,
                                struct oato_error *err)
{
    const struct layers_facts user = {l, p, at};
    const struct lowering_facts facts = {.n_devices = 1,
                                         .id = {l->rig->info.id},
                                         .values = {device_values(l->rig->device)},
                                         .rows = {l->rig->info.spans ? l->rig->info.rows : NULL},
                                         .user = &user,
                                         .numerics = op_numerics,
                                         .workspace_bytes = op_workspace};
    struct placements placements;
    oato_status status = placements_create(NULL, &l->graph, NULL, 0, &placements, err);
    const struct lowering_input in = {.graph = &l->graph,
                                      .n_ops = n_ops,
                                      .placements = &placements,
                                      .facts = &facts,
                                      .limits = {.tokens = {at->rows, at->rows},
                                                 .rows = {1, 1},
                                                 .seqs = 1,
                                                 .context = at->context},
                                      .kv = l->kv};
    if (!status && l->neurons)
        sparse_place(&l->graph, l->neurons, &placements);
    if (!status)
        status = lowered_init(&in, out, err);
    if (!status)
        status = lower(&in, l->phase, out, err);
    placements_free(&placements);
    return status;
}

/* Weights of a point of more layers follow those of one of fewer. */
static oato_status prepare_weights(struct layers *l, const struct lowered_device *low,
                                   struct oato_error *err)
{
    const struct lowered_program *p = &low->phase[l->phase];
    oato_status status = OATO_OK;
    for (uint32_t i = 0; i < p->n_records; i++)
        for (int j = 0; j < p->records[i].n_weights && !status; j++)
            if (p->records[i].weight[j] == l->n_prepared) {
                status = rig_prepare(l->rig, &p->records[i].op, j, low->slots[l->n_prepared].tensor,
                                     &l->weights[l->n_prepared], err);
                l->n_prepared += !status;
            }
    return status;
}

/* The records behind a marker, which is the first of them once more: the clock runs from its signal
 * to the last one's. */
static oato_status program_make(const struct layers *l, const struct lowered_device *low,
                                const struct op_point *at, struct program *out,
                                struct oato_error *err)
{
    const struct lowered_program *p = &low->phase[l->phase];
    struct program_record *records = calloc((size_t)p->n_records + 1, sizeof *records);
    for (uint32_t i = 0; i < p->n_spans; i++) { /* the marker is in none */
        p->spans[i].begin++;
        p->spans[i].end++;
    }
    if (!records)
        return oato_fail_memory(err, p->n_records * sizeof *records, "the layers' program");
    records[0] = p->records[0];
    memcpy(records + 1, p->records, p->n_records * sizeof *records);
    records[0].signal = 1;
    records[p->n_records].signal = 2;
    *out = (struct program){.records = records,
                            .n_records = p->n_records + 1,
                            .spans = p->spans,
                            .n_spans = p->n_spans,
                            .span_values = p->span_values,
                            .n_span_values = p->n_span_values,
                            .n_signals = 2,
                            .max_tokens = at->rows,
                            .max_rows = 1,
                            .max_seqs = 1,
                            .weights = l->weights,
                            .n_weights = low->n_slots,
                            .workspace_bytes = low->workspace_bytes};
    return OATO_OK;
}

/* The first operators as a program at a point. */
static oato_status program_open(struct layers *l, const struct profile *p,
                                const struct op_point *at, int32_t n_ops, struct lowered *lowered,
                                struct program *program, struct oato_error *err)
{
    const struct lowered_device *low = &lowered->device[0];
    oato_status status = layers_lower(l, p, at, n_ops, lowered, err);
    if (!status)
        status = prepare_weights(l, low, err);
    return status ? status : program_make(l, low, at, program, err);
}

static double mean_but_slowest(const double *sorted, int32_t n)
{
    double sum = 0;
    int32_t kept = n - n / 20;
    for (int32_t i = 0; i < kept; i++)
        sum += sorted[i];
    return sum / kept;
}

/* Again and again until *stop, if it is not NULL. */
static oato_status program_time(const struct rig *r, oato_dtype kv, struct program *program,
                                const struct lowered_device *low, const struct op_point *at,
                                bool quick, const atomic_bool *stop, struct layers_time *out,
                                struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    int32_t pages = op_point_pages(at);
    struct rig_step s = {0};
    struct rig_times times;
    oato_status status = rig_step_create(at, 0, &s, err);
    const int32_t last = at->rows - 1;
    s.step.row = &last;
    s.step.n_rows = 1;
    if (!status && low->n_kv)
        status = ops->kv_create(r->device, low->kv_shapes, low->n_kv, kv, pages, &program->kv, err);
    if (!status && program->kv && !r->declared)
        status = rig_fill_kv(r, program->kv, low->kv_shapes, low->n_kv, kv, pages, err);
    if (!status)
        status = rig_alloc(r, low->arena_bytes, &program->arena, err);
    const int32_t least = r->declared || at->rows > 1 ? 1 : quick ? 5 : 21;
    struct rig_effort effort = {least, 200, quick ? 50000000 : 200000000};
    do {
        if (!status)
            status = rig_run(r, program, &s, &effort, &times, err);
    } while (!status && stop && !atomic_load(stop) && !oato_interrupted);
    if (!status) { /* long: more often disturbed than a row */
        out->together_ns = quantile(times.inner_ns, times.n, 0.25);
        out->mean_ns = mean_but_slowest(times.inner_ns, times.n);
    }
    if (program->arena)
        ops->free(r->device, program->arena, low->arena_bytes);
    if (program->kv)
        ops->kv_free(r->device, program->kv);
    rig_step_free(&s);
    return status;
}

/* How often the first operators have a join that the device declares. */
static int32_t joins_of(const struct layers *l, enum op_join join, int32_t n_ops)
{
    const struct oato_device *d = l->rig->device;
    int32_t n = 0, first;
    for (int32_t i = 0; i < n_ops && d->ops->joins; i++)
        n += graph_join(&l->graph, i, &first) == join &&
             d->ops->joins(d, join, &l->graph.ops[first].op, &l->graph.ops[i].op);
    return n;
}

/* What each kind of join saves: the same step once more without it, in the first pass. */
static oato_status joins_time(const struct layers *l, struct program *program,
                              const struct lowered_device *low, const struct op_point *at,
                              struct layers_time *t, struct oato_error *err)
{
    oato_status status = OATO_OK;
    for (enum op_join j = 0; j < JOIN_COUNT && !status; j++) {
        const int32_t n = joins_of(l, j, t->records);
        struct layers_time without = {0};
        program->without_joins = 1u << j;
        if (n && !t->joined) {
            status = program_time(l->rig, l->kv, program, low, at, true, NULL, &without, err);
            t->join_ns[j] = fmax(without.together_ns - t->together_ns, 0) / n;
        }
        t->sum_ns -= n * t->join_ns[j];
    }
    t->joined = true;
    return status;
}

oato_status layers_measure(struct layers *l, const struct profile *p, const struct op_point *at,
                           bool quick, struct layers_time *t, struct oato_error *err)
{
    struct lowered lowered = {.n_devices = 0};
    const struct lowered_device *low = &lowered.device[0];
    struct program program = {.records = NULL};
    if (!choose_layers(l, p, at, t))
        return OATO_OK;
    oato_status status = program_open(l, p, at, t->records, &lowered, &program, err);
    for (uint32_t i = 0; i < program.n_spans && !status; i++) {
        const struct program_record *r = &program.records[program.spans[i].begin];
        t->sum_ns += rig_unit_ns(l->rig, &r->op, r->rows == ROWS_TOKENS ? at->rows : 1);
    }
    if (!status)
        status = program_time(l->rig, l->kv, &program, low, at, quick, NULL, t, err);
    if (!status && at->rows == 1)
        status = joins_time(l, &program, low, at, t, err);
    if (status)
        t->records = 0;
    free((void *)program.records);
    lowered_free(&lowered);
    return status;
}

/* Whether a record helps to find out what a later one computes: all are of its value. */
static bool predicts(const struct program *p, uint32_t record)
{
    bool later = false;
    for (uint32_t i = record + 1; i < p->n_records && !later; i++)
        later = p->records[i].op.sparse == SPARSE_PREDICT &&
                p->records[i].value == p->records[record].value;
    return later && p->records[record].op.sparse != SPARSE_PREDICT;
}

/* Leaves the marker and the records of predictors; false: there are none. */
static bool predictors_keep(struct program *p, struct program_record *records)
{
    uint32_t n = 1;
    for (uint32_t i = 1; i < p->n_records; i++)
        if (predicts(p, i))
            records[n++] = p->records[i];
    records[n - 1].signal = 2;
    p->n_records = n;
    p->n_spans = 0;
    return n > 1;
}

oato_status layers_predict_share(const struct rig *r, const struct model *m,
                                 const struct neurons *n, double *share, struct oato_error *err)
{
    const struct op_point at = {.rows = 1, .seqs = 1, .context = 64};
    struct lowered lowered = {.n_devices = 0};
    const struct lowered_device *low = &lowered.device[0];
    struct program program = {.records = NULL};
    struct layers_time whole = {0}, part = {0};
    struct layers *l;
    oato_status status = layers_open(r, m, DT_F16, &l, err);
    *share = 0;
    if (status || !l)
        return status;
    l->phase = PHASE_DECODE;
    l->neurons = n;
    const int32_t n_ops = ops_that_fit(r, &l->graph);
    status = sparse_apply(&l->graph, &(struct sparse_choice){.mode = SPARSE_PREDICT}, n, err);
    if (!status && n_ops)
        status = program_open(l, NULL, &at, n_ops, &lowered, &program, err);
    if (!status && n_ops)
        status = program_time(r, l->kv, &program, low, &at, false, NULL, &whole, err);
    if (!status && n_ops && predictors_keep(&program, (struct program_record *)program.records)) {
        program.arena = NULL;
        program.kv = NULL;
        status = program_time(r, l->kv, &program, low, &at, false, NULL, &part, err);
        *share = part.together_ns / whole.together_ns;
    }
    free((void *)program.records);
    lowered_free(&lowered);
    layers_close(l);
    return status;
}

oato_status layers_repeat(const struct model *m, const struct profiler_options *o,
                          const atomic_bool *stop, struct oato_error *err)
{
    const struct op_point at = {.rows = 1, .seqs = 1, .context = 64};
    const struct device_options options = {.threads = o->threads};
    struct lowered lowered = {.n_devices = 0};
    struct program program = {.records = NULL};
    struct layers_time ignored;
    struct rig r = {.index = 0};
    struct layers *l = NULL;
    oato_status status = device_open("cpu", 0, &options, &r.device, err);
    if (status)
        return status;
    r.device->ops->info(r.device, &r.info);
    status = layers_open(&r, m, o->kv, &l, err);
    const int32_t n_ops = l ? ops_that_fit(&r, &l->graph) : 0;
    if (n_ops)
        status = program_open(l, NULL, &at, n_ops, &lowered, &program, err);
    if (n_ops && !status)
        status =
            program_time(&r, l->kv, &program, &lowered.device[0], &at, true, stop, &ignored, err);
    free((void *)program.records);
    lowered_free(&lowered);
    layers_close(l);
    r.device->ops->close(r.device);
    return status;
}
