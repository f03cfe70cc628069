/*
 * bench.c - the time of one operator at one size on one device, as inside a running program: a
 * program repeats the record many times, each with another copy of the weights, so that weights
 * (and the KV cache) come from memory, as they do in a real step, and not from CPU caches.
 * Activations stay in place, as in a real step.
 *
 * On a device with declared costs one record and one copy are enough.
 */
#include "profiler/profiler_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    COPIES_MAX = 512,
    RECORDS_MAX = 1024,
    KV_COPIES_ROWS = 8,
    TRIES = 2,
    CHOICES = 64 /* of experts, in turn: one token's alone would stay in a cache */
};
#define COPIES_BYTES ((uint64_t)1 << 30) /* most memory for copies of weights or KV layers */
#define PROGRAM_NS   1e6                 /* shortest program whose time is divided */
#define CYCLE_NS     25e6                /* longest program that uses all copies */
#define COLD_NS      150e6               /* the same of few rows, which wait for weights most */

struct op_bench {
    const struct rig *rig;
    const struct op_case *c;
    struct oato_weight **weights; /* copies x GRAPH_WEIGHTS */
    int32_t copies, n_prepared;
    uint64_t prepared_bytes; /* of one copy */
    /* Of a sparse GATE_UP: |gate| of all neurons of a copy's weights, ascending, for c->n_weights
     * such. A threshold among them leaves any number of neurons. */
    float *gates;
};

/* How many copies of something of that size exceed the caches twice, as memory allows; or make up
 * the model, some of which is in the caches still when the next step begins. */
static int32_t copies_for(const struct rig *r, uint64_t bytes)
{
    struct device_info info;
    r->device->ops->info(r->device, &info);
    if (r->declared || !bytes)
        return 1;
    uint64_t room = info.free_bytes / 4 < COPIES_BYTES ? info.free_bytes / 4 : COPIES_BYTES;
    uint64_t most = 2 * r->cache_bytes;
    if (r->model_bytes && r->model_bytes < most)
        most = r->model_bytes;
    uint64_t n = (most + bytes - 1) / bytes;
    n = n > room / bytes ? room / bytes : n;
    return n < 1 ? 1 : n > COPIES_MAX ? COPIES_MAX : (int32_t)n;
}

/* One more copy, of the next graph operator's tensors in turn. */
static oato_status add_copy(struct op_bench *b, struct oato_error *err)
{
    const struct op_case *c = b->c;
    struct oato_weight **w = &b->weights[(size_t)b->n_prepared * GRAPH_WEIGHTS];
    const struct gguf_tensor *const *source = c->weights[b->n_prepared % c->n_weights];
    oato_status status = OATO_OK;
    for (int i = 0; i < c->shape.n_weights && !status; i++)
        if (source[i])
            status = rig_prepare(b->rig, &c->op, i, source[i], &w[i], err);
    if (!status) {
        b->n_prepared++;
        return OATO_OK;
    }
    for (int i = 0; i < GRAPH_WEIGHTS; i++) {
        if (w[i])
            weight_free(b->rig->device, w[i]);
        w[i] = NULL;
    }
    return status;
}

/* The list of an operator that computes what is listed, for each row the same. */
static oato_status write_list(const struct rig *r, const struct oato_op *op,
                              const struct op_point *at, void *arena, uint64_t offset,
                              struct oato_error *err)
{
    const size_t width = (size_t)op_in_width(op, 1), bytes = width * sizeof(float);
    float *list = calloc(width, sizeof *list);
    oato_status status = OATO_OK;
    uint32_t random = 0x9e3779b9;
    int32_t n = 0;
    if (!list)
        return oato_fail_memory(err, bytes, "a list");
    for (int32_t i = 0; i < op->n; i++) {
        random = random * 1664525 + 1013904223;
        if ((int32_t)((random >> 8) % (uint32_t)(op->n - i)) < at->active - n)
            list[++n] = (float)i;
    }
    list[0] = (float)n;
    for (size_t row = 0; row < (size_t)at->rows && !status; row++)
        status =
            r->device->ops->upload(r->device, arena, offset + row * bytes, list, bytes, NULL, err);
    free(list);
    return status;
}

/* The same numbers in all rows, so that all tokens have the same neurons; a sparse product's input
 * is 0 where it is to skip. */
static oato_status write_input(const struct rig *r, const struct oato_op *op,
                               const struct op_point *at, void *arena, struct oato_error *err)
{
    const size_t k = (size_t)op->k;
    const oato_dtype type = value_type_in(device_values(r->device), op, 0);
    float *x = malloc(k * sizeof *x);
    oato_status status = OATO_OK;
    uint32_t random = 0x9e3779b9;
    int64_t left = at->active;
    if (!x)
        return oato_fail_memory(err, k * sizeof *x, "an input");
    for (size_t i = 0; i < k; i++) {
        random = random * 1664525 + 1013904223;
        const bool kept = !op_by_columns(op) || (int64_t)(random % (uint32_t)(k - i)) < left;
        left -= kept;
        random = random * 1664525 + 1013904223;
        x[i] = kept ? (float)(int32_t)(random | 1) / 2147483648.0f : 0;
    }
    for (size_t row = 0; row < (size_t)at->rows && !status; row++)
        status = rig_write(r, arena, row * k * value_type_bytes(type), x, k, type, err);
    free(x);
    return status;
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static struct oato_op gate_product(const struct oato_op *op)
{
    return (struct oato_op){.kind = OP_MUL_MAT, .dtype = op->dtype, .k = op->k, .n = op->n};
}

/* The products of one gate with what write_input writes. */
static oato_status read_gate(const struct op_bench *b, int32_t copy, void *arena, float *gate,
                             struct oato_error *err)
{
    const struct oato_op *op = &b->c->op;
    const struct rig *r = b->rig;
    const struct oato_op product = gate_product(op);
    const struct graph_op shape = {.n_in = 1, .n_out = 1, .n_weights = 1};
    const struct op_point at = {.rows = 1, .seqs = 1};
    const struct op_size size = {.rows = 1, .seqs = 1};
    struct program p = {.weights = b->weights,
                        .n_weights = (uint32_t)(b->copies * GRAPH_WEIGHTS),
                        .arena = arena,
                        .workspace_bytes =
                            r->device->ops->workspace_bytes(r->device, &product, &size)};
    struct program_record records[2];
    struct rig_times times;
    for (int i = 0; i < 2; i++) {
        records[i] = rig_record(&shape, &product, (int32_t[]){op->k});
        records[i].out[0] = size_align((size_t)op->k * sizeof(float), 64);
        records[i].weight[0] = (uint32_t)(copy * GRAPH_WEIGHTS);
    }
    oato_status status =
        rig_time(r, &p, records, 2, false, &at, &(struct rig_effort){1, 1, 0}, &times, err);
    if (!status)
        status = rig_read(r, gate, arena, records[0].out[0], (size_t)op->n,
                          (oato_dtype)records[0].out_type[0], err);
    return status;
}

static oato_status read_gates(struct op_bench *b, struct oato_error *err)
{
    const struct oato_op *op = &b->c->op, product = gate_product(op);
    const size_t n = (size_t)op->n;
    const int32_t distinct = b->copies < b->c->n_weights ? b->copies : b->c->n_weights;
    const uint64_t bytes = size_align((size_t)op->k * sizeof(float), 64) + n * sizeof(float);
    const struct op_point at = {.rows = 1, .seqs = 1};
    void *arena = NULL;
    b->gates = calloc((size_t)distinct * n, sizeof *b->gates);
    if (!b->gates)
        return oato_fail_memory(err, (size_t)distinct * n * sizeof *b->gates, "gates");
    oato_status status = rig_alloc(b->rig, bytes, &arena, err);
    if (!status)
        status = write_input(b->rig, &product, &at, arena, err);
    for (int32_t i = 0; i < distinct && !status; i++) {
        float *gate = b->gates + (size_t)i * n;
        status = read_gate(b, i, arena, gate, err);
        for (size_t j = 0; j < n && !status; j++)
            gate[j] = fabsf(gate[j]);
        qsort(gate, n, sizeof *gate, by_size);
    }
    if (arena)
        b->rig->device->ops->free(b->rig->device, arena, bytes);
    return status;
}

void bench_close(struct op_bench *b)
{
    if (!b)
        return;
    free(b->gates);
    for (int32_t i = 0; i < b->n_prepared * GRAPH_WEIGHTS; i++)
        if (b->weights[i])
            weight_free(b->rig->device, b->weights[i]);
    free(b->weights);
    free(b);
}

oato_status bench_open(const struct rig *r, const struct op_case *c, struct op_bench **out,
                       struct oato_error *err)
{
    *out = NULL;
    struct op_bench *b = calloc(1, sizeof *b);
    if (!b)
        return oato_fail_memory(err, sizeof *b, "an operator's timing");
    b->rig = r;
    b->c = c;
    b->prepared_bytes = rig_prepared_bytes(r, &c->op, c->weights[0], c->shape.n_weights);
    b->copies = copies_for(r, b->prepared_bytes);
    b->weights = calloc((size_t)b->copies * GRAPH_WEIGHTS, sizeof(struct oato_weight *));
    if (!b->weights) {
        free(b);
        return oato_fail_memory(err, (size_t)COPIES_MAX * sizeof(void *), "weights");
    }
    oato_status status = OATO_OK;
    while (!status && b->n_prepared < b->copies && !oato_interrupted)
        status = add_copy(b, err);
    if (status == OATO_EFIT && b->n_prepared) { /* fewer copies are less exact, not wrong */
        b->copies = b->n_prepared;
        status = OATO_OK;
    }
    if (!status && oato_interrupted)
        status = oato_fail(err, OATO_NEGATIVE, "interrupted");
    if (!status && c->op.kind == OP_GATE_UP && c->op.sparse == SPARSE_ABOVE)
        status = read_gates(b, err);
    if (status)
        bench_close(b);
    else
        *out = b;
    return status;
}

/* What the timing of one point holds. */
struct setup {
    void *arena;
    uint64_t arena_bytes;
    struct kv_cache *kv;
    int32_t kv_layers;
    uint64_t choice_bytes; /* of the second input from one record to the next; 0: it is no choice */
    const struct op_point *at;
    struct program_record *records;
    struct program program;
};

static oato_status make_kv(const struct rig *r, const struct op_case *c, const struct op_point *at,
                           struct setup *s, struct oato_error *err)
{
    struct kv_layer_shape shape = {.kv_heads = c->op.kv_heads,
                                   .head_dim = c->op.head_dim,
                                   .v_dim = c->op.v_dim,
                                   .v_in_k = c->op.v_in_k};
    int32_t pages = op_point_pages(at) * at->seqs;
    uint64_t bytes =
        op_kv_bytes(&c->op, (oato_dtype)c->op.dtype) * (uint64_t)pages * KV_PAGE_POSITIONS;
    struct kv_layer_shape layers[COPIES_MAX];
    if (op_state_floats(&c->op)) {
        shape = (struct kv_layer_shape){.state = op_state_floats(&c->op), .slots = at->seqs};
        bytes = (uint64_t)shape.state * sizeof(float) * (uint64_t)at->seqs;
    }
    s->kv_layers = copies_for(r, bytes);
    if (at->rows / at->seqs > KV_COPIES_ROWS) /* many queries read each position once it is there */
        s->kv_layers = 1;
    for (int32_t i = 0; i < s->kv_layers; i++)
        layers[i] = shape;
    oato_status status = r->device->ops->kv_create(r->device, layers, s->kv_layers,
                                                   shape.state ? DT_F16 : (oato_dtype)c->op.dtype,
                                                   pages, &s->kv, err);
    if (!status && c->op.kind == OP_ATTENTION && !r->declared)
        status = rig_fill_kv(r, s->kv, layers, s->kv_layers, (oato_dtype)c->op.dtype, pages, err);
    return status;
}

/* The record with its values in the arena, and the arena. */
static oato_status make_record(const struct rig *r, const struct op_case *c,
                               const struct op_point *at, struct setup *s,
                               struct program_record *out, struct oato_error *err)
{
    *out = rig_record(&c->shape, &c->op, c->in_width);
    if (c->op.kind == OP_GATE_UP && c->op.sparse) { /* thresholds are those of the gate itself */
        out->op.activation = ACT_NONE;
        out->op.threshold = -1; /* all that are listed */
    }
    out->numerics = at->rows > NUMERICS_DECODE_ROWS ? NUMERICS_PREFILL : NUMERICS_DECODE;
    const bool chooses = op_has_experts(&c->op);
    uint64_t offset = 0, rows = (uint64_t)at->rows;
    for (int i = 0; i < c->shape.n_in; i++) {
        const uint64_t bytes = size_align((size_t)c->in_width[i] * rows * sizeof(float), 64);
        out->in[i] = offset;
        offset += bytes;
        if (chooses && i == 1) {
            s->choice_bytes = bytes;
            offset += (CHOICES - 1) * bytes;
        }
    }
    for (int i = 0; i < c->shape.n_out; i++) {
        out->out[i] = offset;
        offset += size_align((size_t)c->out_width[i] * rows * sizeof(float), 64);
    }
    s->arena_bytes = offset;
    oato_status status = rig_alloc(r, offset, &s->arena, err);
    if (!status && c->op.sparse)
        status = write_input(r, &c->op, at, s->arena, err);
    if (!status && c->op.sparse == SPARSE_PREDICT)
        status = write_list(r, &c->op, at, s->arena, out->in[1], err);
    if (!status && chooses)
        status = rig_fill_choices(r, &c->op, s->arena, out->in[1], at->rows, s->choice_bytes,
                                  CHOICES, err);
    return status;
}

/* Above which so many neurons are, in a copy of the weights. */
static float threshold_for(const struct op_bench *b, int32_t copy, int32_t active)
{
    const int32_t n = b->c->op.n;
    return active < n
               ? b->gates[(size_t)(copy % b->c->n_weights) * (size_t)n + (size_t)(n - active) - 1]
               : -1;
}

/* Times a program of n records and a marker in front; copies in turn. */
static oato_status run_records(const struct op_bench *b, struct setup *s,
                               const struct program_record *one, int32_t n,
                               const struct rig_effort *effort, struct rig_times *times,
                               struct oato_error *err)
{
    for (int32_t i = 0; i <= n; i++) {
        struct program_record *r = &s->records[i];
        *r = *one;
        for (int j = 0; j < b->c->shape.n_weights; j++) {
            int32_t slot = i % b->copies * GRAPH_WEIGHTS + j;
            if (b->weights[slot])
                r->weight[j] = (uint32_t)slot;
        }
        if (b->gates)
            r->op.threshold = threshold_for(b, i % b->copies, s->at->active);
        if (s->kv)
            r->kv_layer = i % s->kv_layers;
        if (s->choice_bytes)
            r->in[1] += (uint64_t)(i % CHOICES) * s->choice_bytes;
    }
    const oato_status status = rig_time(b->rig, &s->program, s->records, (uint32_t)n + 1, false,
                                        s->at, effort, times, err);
    const double unit_ns = n * rig_unit_ns(b->rig, &one->op, s->at->rows);
    for (int32_t i = 0; i < times->n && !status; i++)
        times->inner_ns[i] = fmax(times->inner_ns[i] - unit_ns, 1);
    return status;
}

/* How many records a program gets when one takes ns. */
static int32_t records_for(const struct op_bench *b, const struct setup *s, double ns)
{
    int32_t copies = b->copies > s->kv_layers ? b->copies : s->kv_layers;
    if (s->choice_bytes && copies < CHOICES)
        copies = CHOICES;
    double n = ns > 0 ? PROGRAM_NS / ns : RECORDS_MAX;
    if (n < copies && ns * copies <= (s->at->rows > NUMERICS_DECODE_ROWS ? CYCLE_NS : COLD_NS))
        n = copies;
    return n < 1 ? 1 : n > RECORDS_MAX ? RECORDS_MAX : (int32_t)n;
}

/* Of programs of n records. */
static void take_times(struct rig_times *times, int32_t n, struct profile_row *row)
{
    row->repeats = times->n;
    row->median_ns = readable_ns(quantile(times->inner_ns, times->n, 0.5) / n);
    row->p10_ns = readable_ns(quantile(times->inner_ns, times->n, 0.1) / n);
    row->p90_ns = readable_ns(quantile(times->inner_ns, times->n, 0.9) / n);
    row->disturbed = times_disagree(row->p10_ns, row->p90_ns);
}

/* Times the record, some times more while something else disturbs; the row gets what it takes. */
static oato_status time_record(const struct op_bench *b, struct setup *s,
                               const struct program_record *one, bool quick,
                               struct profile_row *row, struct oato_error *err)
{
    struct rig_effort effort = {1, 1, 0};
    struct rig_times times;
    int32_t n = 1;
    oato_status status = run_records(b, s, one, n, &effort, &times, err);
    if (!status && !b->rig->declared) {
        n = records_for(b, s, times.inner_ns[0]);
        effort = quick ? (struct rig_effort){3, 32, 8000000} : (struct rig_effort){3, 70, 20000000};
        status = run_records(b, s, one, n, &effort, &times, err);
    }
    if (status)
        return status;
    take_times(&times, n, row);
    for (int tries = 1; row->disturbed && tries < TRIES; tries++) {
        struct profile_row again = *row;
        if (run_records(b, s, one, n, &effort, &times, err))
            return err->status;
        take_times(&times, n, &again);
        if (again.median_ns < row->median_ns || !again.disturbed)
            *row = again;
    }
    return OATO_OK;
}

/* Where a library of the device's vendor computes the operator too, the faster of the two counts,
 * and the row names its class. */
static oato_status time_library(const struct op_bench *b, struct setup *s,
                                const struct program_record *own, bool quick,
                                struct profile_row *row, struct oato_error *err)
{
    const struct oato_device *d = b->rig->device;
    if (own->numerics != NUMERICS_PREFILL)
        return OATO_OK;
    const char *class = d->ops->numerics(d, &b->c->op, NUMERICS_LIBRARY);
    if (!strcmp(class, row->numerics))
        return OATO_OK;
    row->workspace_bytes =
        d->ops->workspace_bytes(d, &b->c->op, &row->size); /* the library's too */
    struct program_record one = *own;
    struct profile_row other = *row;
    one.numerics = NUMERICS_LIBRARY;
    other.numerics = class;
    const oato_status status = time_record(b, s, &one, quick, &other, err);
    if (!status && other.median_ns < row->median_ns) {
        other.own_ns = row->median_ns;
        *row = other;
    }
    return status;
}

oato_status bench_time(struct op_bench *b, const struct op_point *at, bool quick,
                       struct profile_row *row, struct oato_error *err)
{
    const struct rig *r = b->rig;
    const struct op_case *c = b->c;
    struct setup s = {.kv_layers = 1, .at = at};
    struct program_record one;
    oato_status status = OATO_OK;
    s.records = calloc(RECORDS_MAX + 1, sizeof *s.records);
    if (!s.records)
        return oato_fail_memory(err, RECORDS_MAX * sizeof *s.records, "records");
    if (op_has_kv(&c->op) || op_state_floats(&c->op))
        status = make_kv(r, c, at, &s, err);
    if (!status)
        status = make_record(r, c, at, &s, &one, err);
    if (status)
        goto out;

    *row = (struct profile_row){.device = r->index,
                                .op = c->op,
                                .size = op_point_size(&c->op, at),
                                .supported = true,
                                .prepared_bytes = b->prepared_bytes,
                                .numerics = r->device->ops->numerics(
                                    r->device, &c->op, (enum numerics_choice)one.numerics)};
    row->workspace_bytes = r->device->ops->workspace_bytes(r->device, &c->op, &row->size);
    s.program = (struct program){.weights = b->weights,
                                 .n_weights = (uint32_t)(b->copies * GRAPH_WEIGHTS),
                                 .arena = s.arena,
                                 .workspace_bytes = row->workspace_bytes,
                                 .kv = s.kv};
    status = time_record(b, &s, &one, quick, row, err);
    if (!status)
        status = time_library(b, &s, &one, quick, row, err);
out:
    if (s.arena)
        r->device->ops->free(r->device, s.arena, s.arena_bytes);
    if (s.kv)
        r->device->ops->kv_free(r->device, s.kv);
    free(s.records);
    return status;
}
