/*
 * rig.c - building and running measuring programs on a device, through the same interface that the
 * engine uses: an arena, prepared weights, records, a step. Time is read from the device's own
 * clock at two signals inside the program, so that an operator's time does not include the cost of
 * starting and ending a step.
 */
#include "profiler/profiler_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Spread of the middle 80 % by their median: at the first more runs would hardly move the median,
 * at the second it is good enough when the budget is spent. */
#define SETTLED  0.02
#define ACCEPTED 0.25
enum {
    WARM_UPS = 2,
    SETTLED_EVERY = 7,
    PATIENCE = 4 /* budgets, waiting for a busy machine to calm down */
};

double readable_ns(double ns)
{
    return ns < 100 ? round(ns * 10) / 10 : round(ns);
}

/* xorshift: what the numbers are does not matter, that they differ and are no denormals does. */
static uint32_t next_random(uint32_t *state)
{
    uint32_t x = *state;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return *state = x;
}

oato_status rig_step_create(const struct op_point *at, int32_t vocab, struct rig_step *out,
                            struct oato_error *err)
{
    memset(out, 0, sizeof *out);
    arena_init(&out->arena);
    int32_t q = at->rows / at->seqs, context = op_point_positions(at), pages = op_point_pages(at);
    size_t n = (size_t)at->rows, s = (size_t)at->seqs;
    int32_t *words = arena_alloc(&out->arena, 4 * n + s * (size_t)pages, sizeof *words);
    struct step_seq *seq = arena_alloc(&out->arena, s, sizeof *seq);
    if (!words || !seq) {
        rig_step_free(out);
        return oato_fail_memory(err, n * sizeof *words, "a step");
    }
    int32_t *id = words, *position = id + n, *owner = position + n, *row = owner + n,
            *page = row + n;
    uint32_t random = 0x9e3779b9;
    for (int32_t i = 0; i < at->rows; i++) {
        id[i] = vocab > 0 ? (int32_t)(next_random(&random) % (uint32_t)vocab) : 0;
        owner[i] = i / q;
        position[i] = context - q + i % q;
        row[i] = i;
    }
    for (int32_t i = 0; i < at->seqs; i++) {
        for (int32_t j = 0; j < pages; j++)
            page[i * pages + j] = i * pages + j;
        seq[i] = (struct step_seq){.query_begin = i * q,
                                   .query_len = q,
                                   .kv_len = context,
                                   .pages = page + i * pages,
                                   .window_pages = page + i * pages,
                                   .state = i};
    }
    out->step = (struct step){.n_tokens = at->rows,
                              .n_seqs = at->seqs,
                              .n_rows = at->rows,
                              .token_id = id,
                              .token_position = position,
                              .token_seq = owner,
                              .seq = seq,
                              .row = row,
                              .timeline = out->timelines,
                              .timeline_base = out->base};
    return OATO_OK;
}

void rig_step_free(struct rig_step *s)
{
    arena_free(&s->arena);
}

bool rig_clock(struct rig *r, enum device_clock clock, struct oato_error *why)
{
    const struct device_ops *ops = r->device->ops;
    return !ops->measure || ops->measure(r->device, clock, why);
}

/* One step on the device; the clock at its first and last signal. */
static oato_status run_once(const struct rig *r, struct compiled *c, struct rig_step *s,
                            double *inner_ns, double *whole_ns, struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    struct timeline *t = ops->timeline(r->device);
    uint64_t first, last, begin = ops->clock_ns(r->device);
    s->timelines[0] = t;
    s->base[0] = atomic_load(&t->value);
    s->step.timeline = s->timelines;
    s->step.timeline_base = s->base;
    s->step.clock_ns = begin;
    oato_status status = ops->submit(r->device, c, &s->step, err);
    oato_status finished = ops->finish(r->device, err);
    if (status || finished)
        return status ? status : finished;
    if (!timeline_wait(t, s->base[0] + 1, &first) || !timeline_wait(t, s->base[0] + 2, &last))
        return oato_fail(err, OATO_EDEVICE, "%s stopped while it was measured", r->info.id);
    *inner_ns = (double)(last - first);
    *whole_ns = (double)(ops->clock_ns(r->device) - begin);
    return OATO_OK;
}

static double spread(const struct rig_times *t)
{
    double sorted[ARRAY_LEN(t->inner_ns)];
    memcpy(sorted, t->inner_ns, (size_t)t->n * sizeof *sorted);
    double middle = quantile(sorted, t->n, 0.5);
    return (quantile(sorted, t->n, 0.9) - quantile(sorted, t->n, 0.1)) / fmax(middle, 1);
}

static bool enough(const struct rig_times *t, const struct rig_effort *effort, uint64_t spent_ns)
{
    if (spent_ns > PATIENCE * effort->budget_ns && t->n >= min_i64(effort->min_repeats, 3))
        return true; /* slow programs end after three runs, however many are wished */
    if (t->n < effort->min_repeats)
        return false;
    if (spent_ns > effort->budget_ns && spread(t) < ACCEPTED)
        return true;
    return t->n % SETTLED_EVERY == 0 && spread(t) < SETTLED;
}

oato_status rig_run(const struct rig *r, const struct program *p, struct rig_step *s,
                    const struct rig_effort *effort, struct rig_times *out, struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    struct compiled *c = NULL;
    const uint64_t compile_ns = now_ns();
    oato_status status = ops->compile(r->device, p, 0, &c, err);
    if (status)
        return status;
    if (r->compile_s && p->n_spans) {
        const struct row_steps t = row_steps(r->info.rows, p->max_tokens);
        int functions = 1;
        while (functions < DEVICE_ROWS && r->info.rows[functions] &&
               r->info.rows[functions] <= (t.whole ? t.largest : t.rest))
            functions++;
        *r->compile_s = fmax(*r->compile_s, (double)(now_ns() - compile_ns) * 1e-9 / functions);
    }
    out->n = 0;
    int32_t most = effort->max_repeats;
    if (most > (int32_t)ARRAY_LEN(out->inner_ns))
        most = ARRAY_LEN(out->inner_ns);
    /* wakes the threads, touches the memory; a step that comes again may be kept as a graph */
    for (int i = 0; i < WARM_UPS && effort->min_repeats > 1 && !status; i++)
        status = run_once(r, c, s, &out->inner_ns[0], &out->whole_ns[0], err);
    uint64_t begin = now_ns();
    while (!status && out->n < most && !oato_interrupted) {
        status = run_once(r, c, s, &out->inner_ns[out->n], &out->whole_ns[out->n], err);
        out->n += !status;
        if (!status && enough(out, effort, now_ns() - begin))
            break;
    }
    ops->release(r->device, c);
    if (!status && oato_interrupted)
        return oato_fail(err, OATO_NEGATIVE, "interrupted");
    return status;
}

void rig_types(const struct rig *r, struct program_record *records, uint32_t n)
{
    const struct value_types *values = device_values(r->device);
    for (struct program_record *x = records; x < records + n; x++) {
        for (int i = 0; i < x->n_in && x->kind == RECORD_RUN; i++)
            x->in_type[i] = (uint8_t)value_type_in(values, &x->op, i);
        for (int i = 0; i < x->n_out && x->kind == RECORD_RUN; i++)
            x->out_type[i] = (uint8_t)value_type_out(values, &x->op, i);
    }
}

struct rig_spans {
    struct program_span *span;
    struct span_value *value;
};

static void value_add(struct rig_spans *x, struct program *p, uint64_t offset, int32_t width,
                      uint8_t type)
{
    x->value[p->n_span_values++] =
        (struct span_value){.offset = offset, .width = width, .type = type};
}

/* Records [begin, end): one of them, or a chain. */
static void span_add(struct rig_spans *x, struct program *p, uint32_t begin, uint32_t end)
{
    const struct program_record *first = &p->records[begin], *last = &p->records[end - 1];
    struct program_span *s = &x->span[p->n_spans++];
    *s = (struct program_span){.begin = begin, .end = end, .value = p->n_span_values};
    for (int i = 0; i < first->n_in; i++)
        value_add(x, p, first->in[i], first->in_width[i], first->in_type[i]);
    s->n_in = (uint16_t)(p->n_span_values - s->value);
    for (int i = 0; i < last->n_out; i++)
        value_add(x, p, last->out[i], op_out_width(&last->op, i), last->out_type[i]);
    s->n_out = (uint16_t)(p->n_span_values - s->value - s->n_in);
}

/* The spans of a program whose records may all be in one. */
static oato_status spans_make(struct program *p, bool chain, struct rig_spans *out,
                              struct oato_error *err)
{
    const size_t values = (size_t)p->n_records * (RECORD_INPUTS + RECORD_OUTPUTS);
    out->span = calloc(p->n_records, sizeof *out->span);
    out->value = calloc(values, sizeof *out->value);
    if (!out->span || !out->value)
        return oato_fail_memory(err, values * sizeof *out->value, "spans");
    p->n_spans = p->n_span_values = 0;
    for (uint32_t i = 0; i < p->n_records; i++)
        if (!chain || i < 1)
            span_add(out, p, i, i + 1);
    if (chain)
        span_add(out, p, 1, p->n_records);
    for (uint32_t i = 0; i < p->n_span_values; i++)
        out->value[i].rows = p->records[0].rows;
    p->spans = out->span;
    p->span_values = out->value;
    return OATO_OK;
}

oato_status rig_time(const struct rig *r, struct program *p, struct program_record *records,
                     uint32_t n, bool chain, const struct op_point *at,
                     const struct rig_effort *effort, struct rig_times *out, struct oato_error *err)
{
    const struct oato_op *op = &records[0].op;
    struct rig_spans spans = {NULL, NULL};
    struct rig_step s;
    oato_status status = rig_step_create(at, op->kind == OP_EMBED ? op->n : 0, &s, err);
    if (status)
        return status;
    records[0].signal = 1;
    records[n - 1].signal = 2;
    rig_types(r, records, n);
    p->records = records;
    p->n_records = n;
    p->n_signals = 2;
    p->max_tokens = p->max_rows = at->rows;
    p->max_seqs = at->seqs;
    bool all = r->info.spans;
    for (uint32_t i = 0; i < n; i++)
        all = all && records[i].kind == RECORD_RUN && op_spans(&records[i].op);
    if (all)
        status = spans_make(p, chain, &spans, err);
    if (!status)
        status = rig_run(r, p, &s, effort, out, err);
    p->n_spans = 0;
    free(spans.span);
    free(spans.value);
    rig_step_free(&s);
    return status;
}

struct program_record rig_record(const struct graph_op *shape, const struct oato_op *op,
                                 const int32_t *in_width)
{
    struct program_record r = {.op = *op,
                               .kind = RECORD_RUN,
                               .rows = op->kind == OP_SELECT ? ROWS_LOGITS : ROWS_TOKENS,
                               .n_in = (uint8_t)shape->n_in,
                               .n_out = (uint8_t)shape->n_out,
                               .n_weights = (uint8_t)shape->n_weights,
                               .kv_layer = -1,
                               .graph_op = UINT32_MAX,
                               .value = UINT32_MAX};
    for (int i = 0; i < RECORD_WEIGHTS; i++)
        r.weight[i] = UINT32_MAX;
    for (int i = 0; i < shape->n_in; i++)
        r.in_width[i] = in_width[i];
    if (op_has_kv(op) || op_state_floats(op))
        r.kv_layer = 0;
    return r;
}

struct program_record rig_addition(int32_t width, int32_t rows)
{
    const struct oato_op add = {.kind = OP_ADD, .dtype = DT_F32, .k = width, .n = width};
    const struct graph_op shape = {.n_in = 2, .n_out = 1};
    const uint64_t bytes = rig_addition_bytes(width, rows) / 3;
    struct program_record r = rig_record(&shape, &add, (int32_t[]){width, width});
    r.in[1] = bytes;
    r.out[0] = 2 * bytes;
    return r;
}

oato_status rig_alloc(const struct rig *r, uint64_t bytes, void **out, struct oato_error *err)
{
    enum { CHUNK_FLOATS = 64 << 10 };
    const struct device_ops *ops = r->device->ops;
    *out = NULL;
    float *numbers = malloc(CHUNK_FLOATS * sizeof *numbers);
    if (!numbers)
        return oato_fail_memory(err, CHUNK_FLOATS * sizeof *numbers, "random numbers");
    uint32_t random = 0x85ebca6b;
    for (int i = 0; i < CHUNK_FLOATS; i++)
        numbers[i] = (float)(int32_t)next_random(&random) / 2147483648.0f;
    if (device_values(r->device)) /* two halves, which are a small float32 as well */
        for (int i = 0; i < CHUNK_FLOATS; i++) {
            const uint16_t halves[2] = {f32_to_f16(numbers[i]), f32_to_f16(numbers[i])};
            memcpy(&numbers[i], halves, sizeof halves);
        }
    oato_status status = ops->alloc(r->device, bytes, out, err);
    for (uint64_t at = 0; !status && at < bytes; at += CHUNK_FLOATS * sizeof *numbers) {
        uint64_t n = bytes - at;
        if (n > CHUNK_FLOATS * sizeof *numbers)
            n = CHUNK_FLOATS * sizeof *numbers;
        status = ops->upload(r->device, *out, at, numbers, n, NULL, err);
    }
    free(numbers);
    if (status && *out) {
        ops->free(r->device, *out, bytes);
        *out = NULL;
    }
    return status;
}

oato_status rig_write(const struct rig *r, void *memory, uint64_t offset, const float *x, size_t n,
                      oato_dtype type, struct oato_error *err)
{
    const struct device_ops *ops = r->device->ops;
    uint16_t *half = type == DT_F16 ? malloc(n * sizeof *half) : NULL;
    if (type == DT_F16 && !half)
        return oato_fail_memory(err, n * sizeof *half, "values");
    for (size_t i = 0; half && i < n; i++)
        half[i] = f32_to_f16(x[i]);
    const oato_status status = ops->upload(r->device, memory, offset, half ? (const void *)half : x,
                                           n * value_type_bytes(type), NULL, err);
    free(half);
    return status;
}

oato_status rig_read(const struct rig *r, float *x, const void *memory, uint64_t offset, size_t n,
                     oato_dtype type, struct oato_error *err)
{
    uint16_t *half = (uint16_t *)x;
    const oato_status status = r->device->ops->download(r->device, x, memory, offset,
                                                        n * value_type_bytes(type), NULL, err);
    for (size_t i = n; type == DT_F16 && i-- > 0;) { /* the last one first: they are in x */
        uint16_t h;
        memcpy(&h, half + i, sizeof h);
        x[i] = f16_to_f32(h);
    }
    return status;
}

/* Each expert is taken with the chance that leaves all choices equally likely. */
void rig_choose(const struct oato_op *op, uint32_t *random, float *out)
{
    int32_t wanted = op->experts_used;
    for (int32_t e = 0; wanted; e++) {
        if (next_random(random) % (uint32_t)(op->experts - e) >= (uint32_t)wanted)
            continue;
        out[op->experts_used - wanted] = (float)e;
        out[2 * op->experts_used - wanted] = 1.0f / (float)op->experts_used;
        wanted--;
    }
}

oato_status rig_fill_choices(const struct rig *r, const struct oato_op *op, void *memory,
                             uint64_t offset, int32_t rows, uint64_t stride, int32_t n,
                             struct oato_error *err)
{
    const size_t width = 2 * (size_t)op->experts_used, bytes = (size_t)rows * width * sizeof(float);
    uint32_t random = 0xc2b2ae35;
    float *choice = malloc(bytes);
    oato_status status = OATO_OK;
    if (!choice)
        return oato_fail_memory(err, bytes, "choices of experts");
    for (int32_t i = 0; i < n && !status; i++) {
        for (int32_t t = 0; t < rows; t++)
            rig_choose(op, &random, choice + (size_t)t * width);
        status = r->device->ops->upload(r->device, memory, offset + (uint64_t)i * stride, choice,
                                        bytes, NULL, err);
    }
    free(choice);
    return status;
}

oato_status rig_fill_kv(const struct rig *r, struct kv_cache *kv,
                        const struct kv_layer_shape *layers, int32_t n_layers, oato_dtype dtype,
                        int32_t pages, struct oato_error *err)
{
    enum { CHUNK = 512 };
    int32_t widest = 0;
    int32_t first = 0, n = 0; /* of the layers with pages; states are zero from the start */
    for (int32_t i = n_layers - 1; i >= 0; i--) {
        widest = (int32_t)max_i64(widest, (int64_t)layers[i].kv_heads *
                                              max_i64(layers[i].head_dim, layers[i].v_dim));
        n += !layers[i].state;
        first = layers[i].state ? first : i;
    }
    if (!n)
        return OATO_OK;
    uint64_t value = size_align((size_t)widest * CHUNK * sizeof(float), 64);
    void *arena;
    struct program_record *records = calloc((size_t)n_layers + 1, sizeof *records);
    if (!records)
        return oato_fail_memory(err, (size_t)n_layers * sizeof *records, "records");
    oato_status status = rig_alloc(r, 2 * value, &arena, err);
    uint64_t workspace = 0;
    n = 0;
    for (int32_t i = 0; !status && i <= n_layers; i++) { /* the first one twice: a marker */
        const struct kv_layer_shape *s = &layers[i ? i - 1 : first];
        if (s->state)
            continue;
        struct oato_op op = {.kind = OP_KV_STORE,
                             .dtype = (uint16_t)dtype,
                             .k = s->kv_heads * s->head_dim,
                             .n = s->kv_heads * s->head_dim,
                             .kv_heads = s->kv_heads,
                             .head_dim = s->head_dim,
                             .v_dim = s->v_dim,
                             .v_in_k = s->v_in_k,
                             .window = s->window,
                             .k_tail = s->v_in_k ? s->head_dim - s->v_in_k : 0};
        struct graph_op shape = {.n_in = 2};
        const int32_t in_width[] = {(int32_t)op_in_width(&op, 0), (int32_t)op_in_width(&op, 1)};
        records[n] = rig_record(&shape, &op, in_width);
        records[n].in[1] = value;
        records[n++].kv_layer = (int32_t)(s - layers);
        struct op_size size = {.rows = CHUNK, .seqs = 1};
        uint64_t bytes = r->device->ops->workspace_bytes(r->device, &op, &size);
        workspace = bytes > workspace ? bytes : workspace;
    }
    struct program p = {.arena = arena, .workspace_bytes = workspace, .kv = kv};
    struct rig_times times;
    int32_t positions = pages * KV_PAGE_POSITIONS;
    for (int32_t at = 0; !status && at < positions; at += CHUNK) {
        int32_t rows = positions - at < CHUNK ? positions - at : CHUNK;
        status =
            rig_time(r, &p, records, (uint32_t)n, false, &(struct op_point){rows, 1, at + rows, 0},
                     &(struct rig_effort){1, 1, 0}, &times, err);
    }
    if (arena)
        r->device->ops->free(r->device, arena, 2 * value);
    free(records);
    return status;
}

oato_status rig_prepare(const struct rig *r, const struct oato_op *op, int i,
                        const struct gguf_tensor *t, struct oato_weight **out,
                        struct oato_error *err)
{
    struct weight_source source = {.data = t->data ? t->data : r->made_up,
                                   .dtype = t->dtype,
                                   .k = t->ne[0],
                                   .n = t->ne[1],
                                   .row_end = t->ne[1],
                                   .use = op_weight_use_at(op, i)};
    op_weight_shape(op, i, &source.n, &source.k);
    source.row_end = source.n;
    return weight_prepare(r->device, &source, out, err);
}

uint64_t rig_prepared_bytes(const struct rig *r, const struct oato_op *op,
                            const struct gguf_tensor *const *weights, int n)
{
    uint64_t bytes = 0;
    for (int i = 0; i < n; i++) {
        int64_t rows, k;
        if (weights[i] && (!i || weights[i] != weights[i - 1]) && op_weight_shape(op, i, &rows, &k))
            bytes +=
                weight_bytes_of(r->device, weights[i]->dtype, rows, k, op_weight_use_at(op, i));
    }
    return bytes;
}
