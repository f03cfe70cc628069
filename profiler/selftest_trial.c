/*
 * selftest_trial.c - one operator at one size on two devices, with the same made-up numbers: how
 * far apart the results are, and whether anything beside them was written. Both run the same
 * records in an arena of the same layout: values lie between guards, which are no numbers, so that
 * who reads or writes beyond a value's end is found out.
 *
 * A numerics class that rounds inputs is compared with the reference of inputs so rounded: what is
 * left is the order of additions, and the limit can be tight.
 */
#include "profiler/selftest_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The least where values are kept as F16: inputs that are rounded again meet more ties. */
static const double HALVES_LIMIT = 1e-5, HALVES_ROUNDED_LIMIT = 1e-4;
enum { GUARD_BYTES = 256, VALUES_MOST = 16, STEPS_MOST = 3 };
#define GUARD_WORD 0x7fedfaceu /* a NaN that no arithmetic gives */
#define UNWRITTEN  (-777.25f)  /* what is in outputs before */

/* --------------------------------------------------------------------------------- classes - */

/* 32 inputs as 255 steps from their least to their largest. */
static void round_steps(float *x, int64_t n, bool centred)
{
    for (int64_t b = 0; b < n; b += 32) {
        const int64_t m = min_i64(32, n - b);
        float most = x[b], least = x[b];
        for (int64_t i = 1; i < m; i++) {
            most = fmaxf(most, x[b + i]);
            least = fminf(least, x[b + i]);
        }
        const float from = centred ? 0.5f * most + 0.5f * least : least;
        const float d = (most - least) / (centred ? 254.0f : 255.0f);
        for (int64_t i = 0; i < m; i++)
            x[b + i] = d > 0 ? from + d * rintf((x[b + i] - from) / d) : from;
    }
}

static void round_u8b32(float *x, int64_t n)
{
    round_steps(x, n, false);
}

static void round_a8b32(float *x, int64_t n)
{
    round_steps(x, n, true);
}

static void round_f16(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) /* scaled, so that small ones are normal */
        x[i] = f16_to_f32(f32_to_f16(x[i] * 0x1p-6f)) * 0x1p6f;
}

static void round_bf16(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = bf16_to_f32(f32_to_bf16(x[i]));
}

/* The most that a class may be off, of what begins with its name; the last row is any other. Of
 * inputs that a class rounds in 32 for a scale, ties go either way now and then. */
static const struct class_row {
    const char *name;
    double limit;
    void (*round)(float *x, int64_t n); /* inputs of products; NULL: they are taken as they are */
} classes[] = {
    {"u8b32", 1e-5, round_u8b32},
    {"a8b32", 1e-5, round_a8b32},
    {"f32", 1e-9, NULL},
    {"f16.cublas", 1e-6, round_f16},
    {"bf16.cublas", 1e-6, round_bf16},
    {"f16.", 1e-5, NULL},
    {"bf16.", 1e-4, NULL},
    {"f16", 1e-6, round_f16},
    {"bf16", 1e-6, round_bf16},
    {"i14b32", 1e-7, NULL},
    {"s8b", 1e-3, NULL},
    {"", 1e-3, NULL},
};

static const struct class_row *class_of(const char *name)
{
    const struct class_row *c = classes;
    while (strncmp(name, c->name, strlen(c->name)) != 0)
        c++;
    return c;
}

/* Kinds that move numbers, or do one operation to each: any device gives the reference's bits. */
static bool is_exact(const struct oato_op *op)
{
    switch ((enum op_kind)op->kind) {
    case OP_CONVERT:
    case OP_SELECT:
    case OP_MERGE:
    case OP_MERGE_SUM:
    case OP_SLICE:
    case OP_TOP_K:
    case OP_ADD:
    case OP_BIAS:
    case OP_ACTIVE: return true;
    case OP_EMBED: return !(op->scale > 0);
    default: return false;
    }
}

/* ----------------------------------------------------------------------------------- shape - */

void trial_shape(struct trial *t)
{
    const int n = op_in_count(&t->op);
    if (n != OP_ANY)
        for (t->n_in = 0; t->n_in < n; t->n_in++)
            t->in_width[t->n_in] = (int32_t)op_in_width(&t->op, t->n_in);
    for (t->n_out = 0; t->n_out < RECORD_OUTPUTS && op_out_width(&t->op, t->n_out) > 0; t->n_out++)
        t->out_width[t->n_out] = op_out_width(&t->op, t->n_out);
}

/* --------------------------------------------------------------------------------- weights - */

static double mean_of(const struct oato_op *op, int i)
{
    switch ((enum op_kind)op->kind) {
    case OP_RMS_NORM:
    case OP_ADD_NORM:
    case OP_HEAD_NORM: return i ? 0 : 1;
    case OP_SCALE: return 1.5;
    case OP_EXPERT_GATE_UP: return i < 4;
    case OP_EXPERT_DOWN: return i == 1;
    default: return 0;
    }
}

/* Vectors that are no ordinary numbers. */
static void adjust(const struct oato_op *op, int i, float *x, int64_t n)
{
    if ((op->kind == OP_DELTA || op->kind == OP_SSM) && !i)
        for (int64_t j = 0; j < n; j++)
            x[j] = -fabsf(x[j]); /* decays */
    if (op->kind == OP_ROPE)
        for (int64_t j = 0; j < n; j++)
            x[j] = 1 + 4 * fabsf(x[j]); /* divisors */
    if (op->kind == OP_ROUTE && i == 1)
        for (int64_t j = 0; j < n; j++) /* an order of the experts; 31 divides no such number */
            x[j] = (float)(j * 31 % n);
}

static oato_status make_weight(const struct oato_op *op, int i, struct weight_source *out,
                               struct oato_error *err)
{
    const enum weight_use use = op_weight_use_at(op, i);
    const oato_dtype dtype = use == WEIGHT_VECTOR ? DT_F32 : op_weight_dtype(op, i);
    int64_t n, k;
    size_t row, bytes;
    if (!op_weight_shape(op, i, &n, &k) || !dtype_row_bytes(dtype, k, &row) ||
        !size_mul(row, (size_t)n, &bytes))
        return oato_fail(err, OATO_EUSAGE, "weight %d of %s has no shape", i,
                         op_kind_name(op->kind));
    void *data = malloc(bytes);
    if (!data)
        return oato_fail_memory(err, bytes, "a made-up weight");
    const bool vector = use == WEIGHT_VECTOR;
    random_blocks_fill(dtype, data, bytes, vector ? mean_of(op, i) : 0,
                       vector ? 0.5 : 1 / sqrt((double)k), 11u * (unsigned)i + op->kind);
    if (vector)
        adjust(op, i, data, n * k);
    *out = (struct weight_source){
        .data = data, .dtype = dtype, .k = k, .n = n, .row_end = n, .use = use};
    return OATO_OK;
}

void trial_pair_close(struct trial_pair *p)
{
    const struct rig *rig[2] = {p->tested, p->reference};
    for (int i = 0; i < p->n; i++) {
        for (int d = 0; d < 2; d++)
            if (p->weight[d][i])
                weight_free(rig[d]->device, p->weight[d][i]);
        free((void *)(uintptr_t)p->source[i].data);
    }
}

oato_status trial_pair_open(const struct rig *tested, const struct rig *reference,
                            const struct trial *t, struct trial_pair *out, struct oato_error *err)
{
    const struct rig *rig[2] = {tested, reference};
    oato_status status = OATO_OK;
    int64_t n, k;
    *out = (struct trial_pair){.tested = tested, .reference = reference};
    while (!status && out->n < RECORD_WEIGHTS && op_weight_shape(&t->op, out->n, &n, &k)) {
        const int i = out->n;
        status = make_weight(&t->op, i, &out->source[i], err);
        if (!status)
            out->n++;
        for (int d = 2; d-- > 0 && !status;) /* the reference first: what fails is the tested one */
            status = weight_prepare(rig[d]->device, &out->source[i], &out->weight[d][i], err);
    }
    if (status)
        trial_pair_close(out);
    return status;
}

/* ------------------------------------------------------------------------- values, records - */

struct value {
    uint64_t offset, bytes;
    int32_t width;
    bool output;
};

/* A trial as records over an arena, of which `image` is what is in it at first. */
struct layout {
    const struct trial *t;
    struct value value[VALUES_MOST];
    int n_values;
    uint64_t bytes;
    uint8_t *image;
    struct program_record record[STEPS_MOST]; /* one of each step */
    struct op_point at[STEPS_MOST];
    int n_steps;
    struct kv_layer_shape layers[2]; /* none of these without KV or state */
    oato_dtype kv;
    int32_t pages;
    struct step_page_copy copy; /* of KV_COPY; where there is KV */
    int round;                  /* value that a class rounds; -1: none */
};

static int add_value(struct layout *l, int32_t width, int32_t rows, bool output)
{
    struct value *v = &l->value[l->n_values];
    *v = (struct value){.offset = l->bytes + GUARD_BYTES,
                        .bytes = (uint64_t)width * (uint64_t)rows * sizeof(float),
                        .width = width,
                        .output = output};
    l->bytes = size_align(v->offset + v->bytes, 64);
    return l->n_values++;
}

static struct program_record *add_step(struct layout *l, const struct oato_op *op, int n_in,
                                       const int32_t *in_width, int n_out, int n_weights,
                                       struct op_point at)
{
    const struct graph_op shape = {
        .n_in = (uint8_t)n_in, .n_out = (uint8_t)n_out, .n_weights = (uint8_t)n_weights};
    struct program_record *r = &l->record[l->n_steps];
    *r = rig_record(&shape, op, in_width);
    r->numerics = (uint8_t)l->t->numerics;
    if (r->kv_layer >= 0)
        r->kv_layer = 1;
    l->at[l->n_steps++] = at;
    return r;
}

/* A step of the operator itself. */
static void add_run(struct layout *l, int n_weights, struct op_point at)
{
    const struct trial *t = l->t;
    struct program_record *r = add_step(l, &t->op, t->n_in, t->in_width, t->n_out, n_weights, at);
    for (int i = 0; i < t->n_in; i++) {
        const int v = add_value(l, t->in_width[i], at.rows, false);
        r->in[i] = l->value[v].offset;
        if (!i)
            l->round = v;
    }
    for (int i = 0; i < t->n_out; i++)
        r->out[i] = l->value[add_value(l, t->out_width[i], at.rows, true)].offset;
    for (int i = 0; i < n_weights; i++)
        r->weight[i] = t->absent[i] ? UINT32_MAX : (uint32_t)i;
}

/* What attention reads: all positions, stored by a step of their own. */
static void add_store(struct layout *l)
{
    const struct oato_op *a = &l->t->op;
    struct oato_op op = {.kind = OP_KV_STORE,
                         .dtype = a->dtype,
                         .k = a->kv_heads * a->head_dim,
                         .n = a->kv_heads * a->head_dim,
                         .kv_heads = a->kv_heads,
                         .head_dim = a->head_dim,
                         .v_dim = a->v_dim,
                         .v_in_k = a->v_in_k,
                         .k_tail = a->v_in_k ? a->head_dim - a->v_in_k : 0};
    const int32_t each = l->t->before + l->t->rows / l->t->seqs;
    const struct op_point at = {each * l->t->seqs, l->t->seqs, each, 0};
    const int32_t width[] = {(int32_t)op_in_width(&op, 0), (int32_t)op_in_width(&op, 1)};
    struct program_record *r = add_step(l, &op, 2, width, 0, 0, at);
    for (int i = 0; i < 2; i++)
        r->in[i] = l->value[add_value(l, width[i], at.rows, false)].offset;
    l->kv = (oato_dtype)a->dtype;
    l->layers[1] = (struct kv_layer_shape){
        .kv_heads = a->kv_heads, .head_dim = a->head_dim, .v_dim = a->v_dim, .v_in_k = a->v_in_k};
    l->pages = op_point_pages(&at) * at.seqs;
}

/* The first page of the last sequence is another one from then on, which was behind all others. */
static void add_copy(struct layout *l)
{
    const struct oato_op op = {.kind = OP_KV_COPY};
    add_step(l, &op, 0, NULL, 0, 0, l->at[l->n_steps - 1]);
    l->copy = (struct step_page_copy){.from = l->pages - op_point_pages(&l->at[0]),
                                      .to = l->pages,
                                      .positions = KV_PAGE_POSITIONS};
    l->pages++;
}

static void fill_choices(const struct oato_op *op, float *x, int32_t rows)
{
    uint32_t random = 0xc2b2ae35;
    for (int32_t t = 0; t < rows; t++)
        rig_choose(op, &random, x + (size_t)t * 2 * (size_t)op->experts_used);
}

/* Every third neuron, from another one on for each token. */
static void fill_lists(const struct oato_op *op, float *x, int32_t rows)
{
    for (int32_t t = 0; t < rows; t++, x += (size_t)op->n + 1) {
        int32_t n = 0;
        for (int32_t i = t % 3; i < op->n; i += 3)
            x[++n] = (float)i;
        x[0] = (float)n;
    }
}

static void fill_value(const struct layout *l, int number, int32_t rows, int input)
{
    const struct value *v = &l->value[number];
    const struct oato_op *op = &l->t->op;
    float *x = (float *)(void *)(l->image + v->offset);
    const double mean = input || (op->kind != OP_RMS_NORM && op->kind != OP_HEAD_NORM) ? 0 : 0.7;
    random_blocks_fill(DT_F32, x, v->bytes, mean, 1, 1000u + (unsigned)number);
    if ((op_has_experts(op) && input == 1) || (op->kind == OP_EXPERT_SUM && !input))
        fill_choices(op, x, rows);
    if (op->sparse == SPARSE_PREDICT && input == 1)
        fill_lists(op, x, rows);
}

static oato_status make_image(struct layout *l, struct oato_error *err)
{
    l->bytes += GUARD_BYTES;
    l->image = aligned_alloc(64, size_align(l->bytes, 64));
    if (!l->image)
        return oato_fail_memory(err, l->bytes, "made-up values");
    for (uint64_t i = 0; i < l->bytes; i += sizeof(uint32_t))
        memcpy(l->image + i, &(uint32_t){GUARD_WORD}, sizeof(uint32_t));
    int input = 0;
    for (int i = 0; i < l->n_values; i++) {
        const struct value *v = &l->value[i];
        float *x = (float *)(void *)(l->image + v->offset);
        input = i && l->value[i - 1].output ? 0 : input; /* of the next step */
        if (!v->output)
            fill_value(l, i, (int32_t)(v->bytes / sizeof(float) / (uint64_t)v->width), input++);
        for (uint64_t j = 0; v->output && j < v->bytes / sizeof(float); j++)
            x[j] = UNWRITTEN;
    }
    return OATO_OK;
}

static oato_status layout_make(const struct trial *t, int n_weights, struct layout *l,
                               struct oato_error *err)
{
    const int32_t each = t->rows / t->seqs;
    const int64_t state = op_state_floats(&t->op);
    int present = n_weights;
    while (present > op_weight_least(&t->op) && t->absent[present - 1])
        present--;
    *l = (struct layout){.t = t, .round = -1, .kv = DT_F16, .pages = 1};
    l->layers[0] = (struct kv_layer_shape){.kv_heads = 1, .head_dim = 32};
    if (t->op.kind == OP_ATTENTION) {
        add_store(l);
        add_copy(l);
    }
    if (state) {
        l->layers[0] = (struct kv_layer_shape){.state = 5, .slots = t->seqs};
        l->layers[1] = (struct kv_layer_shape){.state = state, .slots = t->seqs};
        if (t->before)
            add_run(l, present, (struct op_point){t->before * t->seqs, t->seqs, t->before, 0});
    }
    add_run(l, present, (struct op_point){t->rows, t->seqs, t->before + each, 0});
    return make_image(l, err);
}

/* --------------------------------------------------------------------------------- running - */

/* The whole arena after the steps, from `image` on. */
static oato_status run_on(const struct rig *rig, const struct layout *l,
                          struct oato_weight *const *weights, int n_weights, const uint8_t *image,
                          uint8_t *out, struct oato_error *err)
{
    enum { CACHED_MOST = 64 };
    struct oato_device *d = rig->device;
    struct kv_cache *kv = NULL;
    void *arena = NULL;
    int32_t slot[CACHED_MOST];
    const int32_t *const cached[] = {slot};
    struct program_record records[STEPS_MOST];
    uint8_t *sent = aligned_alloc(64, size_align(l->bytes, 64));
    if (!sent)
        return oato_fail_memory(err, l->bytes, "values of a device");
    memcpy(sent, image, l->bytes);
    memcpy(records, l->record, sizeof records);
    rig_types(rig, records, (uint32_t)l->n_steps);
    for (int i = 0; i < l->n_steps; i++)
        trial_halve(&records[i], l->at[i].rows, sent);
    oato_status status = d->ops->alloc(d, l->bytes, &arena, err);
    for (int i = 0; i < CACHED_MOST; i++)
        slot[i] = i % 2 ? i / 2 : -1;
    if (!status)
        status = d->ops->upload(d, arena, 0, sent, l->bytes, NULL, err);
    if (!status && (l->layers[1].kv_heads || l->layers[1].state))
        status = d->ops->kv_create(d, l->layers, 2, l->kv, l->pages, &kv, err);
    for (int i = 0; i < l->n_steps && !status; i++) {
        static const struct rig_effort once = {1, 1, 0};
        struct program_record r = records[i];
        struct op_size size = op_point_size(&r.op, &l->at[i]);
        size.seqs = l->at[i].seqs;
        struct rig_step s;
        struct rig_times times;
        r.signal = 2;
        const struct program p = {.records = &r,
                                  .n_records = 1,
                                  .n_signals = 2,
                                  .max_tokens = l->at[i].rows,
                                  .max_rows = l->at[i].rows,
                                  .max_seqs = l->at[i].seqs,
                                  .weights = weights,
                                  .n_weights = (uint32_t)n_weights,
                                  .arena = arena,
                                  .workspace_bytes = d->ops->workspace_bytes(d, &r.op, &size),
                                  .kv = kv,
                                  .n_caches = 1};
        status = rig_step_create(&l->at[i], r.op.kind == OP_EMBED ? r.op.n : 0, &s, err);
        if (status)
            break;
        s.step.cached = cached;
        s.step.n_page_copies = r.op.kind == OP_KV_COPY;
        s.step.page_copy = &l->copy;
        if (r.op.kind == OP_ATTENTION) /* of the step's own table */
            ((int32_t *)(uintptr_t)s.step.seq[l->at[i].seqs - 1].pages)[0] = l->copy.to;
        status = rig_run(rig, &p, &s, &once, &times, err);
        rig_step_free(&s);
    }
    if (!status)
        status = d->ops->download(d, out, arena, 0, l->bytes, NULL, err);
    for (int i = 0; i < l->n_steps && !status; i++)
        trial_widen(&records[i], l->at[i].rows, image, sent, out);
    free(sent);
    if (kv)
        d->ops->kv_free(d, kv);
    if (arena)
        d->ops->free(d, arena, l->bytes);
    return status;
}

/* ------------------------------------------------------------------------------- comparing - */

/* What is not an output must be as it was. */
static void check_guards(const struct layout *l, const uint8_t *got, struct trial_result *out)
{
    uint64_t at = 0;
    for (int i = 0; i <= l->n_values && !out->wrong[0]; i++) {
        const struct value *v = &l->value[i];
        const uint64_t end = i < l->n_values ? v->offset : l->bytes;
        uint64_t n = 0, first = 0;
        for (uint64_t j = at; j < end; j++)
            if (got[j] != l->image[j] && !n++)
                first = j;
        if (n && i)
            snprintf(out->wrong, sizeof out->wrong,
                     "%llu bytes were written outside the outputs, the first %llu behind %s %d",
                     (unsigned long long)n, (unsigned long long)(first - at),
                     v[-1].output ? "the end of value" : "the end of input", i - 1);
        else if (n)
            snprintf(out->wrong, sizeof out->wrong,
                     "%llu bytes were written before the first value", (unsigned long long)n);
        if (i == l->n_values)
            break;
        at = v->offset + v->bytes;
        if (!v->output && !out->wrong[0] &&
            memcmp(got + v->offset, l->image + v->offset, v->bytes) != 0)
            snprintf(out->wrong, sizeof out->wrong, "input %d was overwritten", i);
    }
}

/* What follows a list has no meaning. */
static int64_t meant(const struct oato_op *op, const float *expected, int64_t width)
{
    return op->kind == OP_ACTIVE ? 1 + (int64_t)expected[0] : width;
}

static void compare_value(const struct layout *l, const struct value *v, const uint8_t *got_image,
                          const uint8_t *expected_image, struct trial_result *out)
{
    const float *got = (const float *)(const void *)(got_image + v->offset);
    const float *expected = (const float *)(const void *)(expected_image + v->offset);
    const int64_t rows = (int64_t)(v->bytes / sizeof(float)) / v->width;
    double error = 0, energy = 0, worst = -1;
    int64_t at = 0;
    for (int64_t t = 0; t < rows; t++) {
        const int64_t n = meant(&l->t->op, expected + t * v->width, v->width);
        for (int64_t i = t * v->width; i < t * v->width + n; i++) {
            if (got[i] == expected[i] && !isfinite(got[i]))
                continue;
            const double e = fabs((double)got[i] - (double)expected[i]);
            error += e * e;
            energy += (double)expected[i] * (double)expected[i];
            if (!(e <= worst)) {
                worst = e;
                at = i;
            }
        }
    }
    const double nmse = energy > 0 ? error / energy : error;
    if (nmse <= out->limit) {
        out->nmse = fmax(out->nmse, nmse);
        return;
    }
    out->nmse = isfinite(nmse) ? nmse : INFINITY;
    if (!out->wrong[0])
        snprintf(out->wrong, sizeof out->wrong,
                 "NMSE %.3g, at most %.3g; row %lld column %lld is %g, not %g%s", nmse, out->limit,
                 (long long)(at / v->width), (long long)(at % v->width), (double)got[at],
                 (double)expected[at], got[at] == UNWRITTEN ? " (not written)" : "");
}

/* The reference sees inputs as the class does. */
static oato_status run_reference(const struct trial_pair *p, const struct layout *l,
                                 const struct class_row *class, uint8_t *out,
                                 struct oato_error *err)
{
    const struct value *v = &l->value[max_i64(l->round, 0)];
    const bool rounds = class->round && l->round >= 0 && !op_by_columns(&l->t->op) &&
                        op_weight_use(&l->t->op) == WEIGHT_MATRIX;
    uint8_t *image = l->image;
    if (rounds) {
        image = aligned_alloc(64, size_align(l->bytes, 64));
        if (!image)
            return oato_fail_memory(err, l->bytes, "rounded values");
        memcpy(image, l->image, l->bytes);
        float *x = (float *)(void *)(image + v->offset);
        const int64_t k = l->t->op.kind == OP_HEAD_MUL_MAT ? l->t->op.head_dim : l->t->op.k;
        for (uint64_t i = 0; i + (uint64_t)k <= v->bytes / sizeof(float); i += (uint64_t)k)
            class->round(x + i, l->t->op.k); /* by rows: scales end where a row does */
    }
    const oato_status status = run_on(p->reference, l, p->weight[1], p->n, image, out, err);
    if (rounds)
        free(image);
    return status;
}

oato_status trial_run(const struct trial_pair *p, const struct trial *t, struct trial_result *out,
                      struct oato_error *err)
{
    const struct oato_device *d = p->tested->device, *host = p->reference->device;
    struct layout l;
    uint8_t *got = NULL, *expected = NULL;
    *out = (struct trial_result){.numerics = d->ops->numerics(d, &t->op, t->numerics)};
    const struct class_row *class = class_of(out->numerics);
    const bool same = !strcmp(out->numerics, host->ops->numerics(host, &t->op, t->numerics));
    out->limit = same && (is_exact(&t->op) || !strcmp(p->tested->info.isa, p->reference->info.isa))
                     ? 0
                     : class->limit;
    if (value_types_halve(device_values(d), &t->op))
        out->limit = fmax(out->limit, class->round ? HALVES_ROUNDED_LIMIT : HALVES_LIMIT);
    oato_status status = layout_make(t, p->n, &l, err);
    if (!status) {
        got = calloc(l.bytes + 1, 1);
        expected = calloc(l.bytes + 1, 1);
        if (!got || !expected)
            status = oato_fail_memory(err, 2 * l.bytes, "results");
    }
    if (!status)
        status = run_reference(p, &l, class, expected, err);
    if (!status)
        status = run_on(p->tested, &l, p->weight[0], p->n, l.image, got, err);
    if (!status && got && expected) {
        check_guards(&l, got, out);
        for (int i = 0; i < l.n_values; i++)
            if (l.value[i].output)
                compare_value(&l, &l.value[i], got, expected, out);
    }
    free(expected);
    free(got);
    free(l.image);
    return status;
}
