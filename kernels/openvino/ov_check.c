/*
 * ov_check.c - every function runs once before anything depends on it: on made-up values and the
 * weights of its first layer, or made-up ones, beside the reference kernels of the CPU, which get
 * the same weights as float32. What a compiler or a driver drops or rounds is found when a model is
 * loaded, and not in its answers.
 *
 * Rows are computed independently of each other, so the reference computes the first and the last.
 * A matrix is made float32 some rows at a time: that of a vocabulary would not fit.
 */
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/openvino/ov_parts.h"

#include <stdlib.h>
#include <string.h>

enum {
    CHECK_ROWS = 2,
    PANEL_ELEMENTS = 1 << 18, /* of a matrix, made float32 together */
    MOST_VALUES = 64,         /* as in ov_function.c */
};

/* A value that the reference has: CHECK_ROWS rows. */
struct known_value {
    uint64_t offset;
    int32_t width;
    float *rows;
};

struct checking {
    const struct cpu_kernels *kernels;
    const struct ov_span *span;
    const struct ov_weight_use *uses;
    int n_uses, rows, n_values; /* rows: that the reference computes */
    uint64_t random;
    const void *const *given; /* prepared; NULL: they are made up */
    void **weight;            /* prepared, n_uses */
    float **in, **out;        /* of the function */
    struct known_value value[MOST_VALUES];
};

static float next_number(struct checking *c) /* in -1 .. 1 */
{
    c->random = c->random * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(c->random >> 32) * 0x1p-31f;
}

/* Rows of a matrix of about unit length, numbers near 1 for a vector; scales of both signs. */
static void weight_make_up(struct checking *c, const struct ov_planes *p, bool vector, uint8_t *to)
{
    const float size = vector ? 1 : 1 / sqrtf((float)p->k);
    for (int i = 0; i < p->n; i++) {
        const struct ov_plane *plane = &p->plane[i];
        const int64_t n = p->rows * plane->groups * plane->each;
        const float scale = p->n == 1 ? size : p->plane[0].element == OV_I8 ? size / 64 : size / 8;
        uint8_t *at = to + plane->offset;
        for (int64_t e = 0; e < n; e++) {
            const float x = next_number(c), number = scale * (vector ? 1 + x / 4 : x);
            const uint16_t half = plane->element == OV_F16    ? f32_to_f16(number)
                                  : plane->element == OV_BF16 ? f32_to_bf16(number)
                                                              : 0;
            switch (plane->element) {
            case OV_F32: memcpy(at + 4 * e, &number, sizeof number); break;
            case OV_F16:
            case OV_BF16: memcpy(at + 2 * e, &half, sizeof half); break;
            case OV_I8: at[e] = (uint8_t)(c->random >> 40); break;
            case OV_I4:
            case OV_U4: at[e / 2] = (uint8_t)(c->random >> 40); break;
            case OV_U8:
            case OV_ELEMENT_COUNT: break;
            }
        }
    }
}

/* --------------------------------------------------------------------------- reference ---- */

/* One record by the reference kernels: its values are in[0 ..] and out[0 ..], each of CHECK_ROWS
 * rows; weights are float32. */
struct alone {
    struct program_record record;
    struct oato_weight weight[RECORD_WEIGHTS];
};

static oato_status run_alone(const struct checking *c, struct alone *a, float *const *in,
                             float *const *out, struct oato_error *err)
{
    struct program_record *r = &a->record;
    const struct step step = {.n_tokens = c->rows, .n_seqs = 1, .n_rows = c->rows};
    const struct op_size size = {.rows = c->rows, .seqs = 1};
    struct oato_weight *table[RECORD_WEIGHTS];
    uint64_t offset = 0;
    r->rows = ROWS_LOGITS; /* which have no positions */
    r->n_waits = 0;
    r->numerics = NUMERICS_DECODE;
    for (int i = 0; i < RECORD_WEIGHTS; i++) {
        table[i] = &a->weight[i];
        r->weight[i] = a->weight[i].data ? (uint32_t)i : UINT32_MAX;
    }
    for (int i = 0; i < r->n_in; i++) {
        r->in[i] = offset;
        offset += (uint64_t)r->in_width[i] * CHECK_ROWS * sizeof(float);
    }
    for (int i = 0; i < r->n_out; i++) {
        r->out[i] = offset;
        offset += (uint64_t)op_out_width(&r->op, i) * CHECK_ROWS * sizeof(float);
    }
    struct cpu_context context = {.kernels = c->kernels, .weights = table};
    context.workspace_bytes = cpu_workspace_bytes(c->kernels, &r->op, &size, 1);
    context.arena = pages_alloc(offset);
    context.workspace = pages_alloc(context.workspace_bytes + WORKSPACE_HEADER_BYTES);
    const bool room = context.arena && context.workspace;
    for (int i = 0; room && i < r->n_in; i++)
        memcpy(context.arena + r->in[i], in[i],
               (size_t)c->rows * (size_t)r->in_width[i] * sizeof(float));
    if (room)
        cpu_run_alone(&context, r, &step);
    for (int i = 0; room && i < r->n_out; i++)
        memcpy(out[i], context.arena + r->out[i],
               (size_t)c->rows * (size_t)op_out_width(&r->op, i) * sizeof(float));
    if (context.arena)
        pages_free(context.arena, offset);
    if (context.workspace)
        pages_free(context.workspace, context.workspace_bytes + WORKSPACE_HEADER_BYTES);
    return room ? OATO_OK : oato_fail_memory(err, offset, "the check of a function");
}

/* Rows [begin, end) of weight u as float32, as the reference kernels want it. */
static bool weight_of(const struct checking *c, int u, int64_t begin, int64_t end,
                      struct oato_weight *out)
{
    const struct ov_planes *p = &c->uses[u].planes;
    const struct program_record *r = &c->span->records[c->uses[u].record];
    struct weight_source s = {.dtype = DT_F32,
                              .k = p->k,
                              .n = end - begin,
                              .row_end = end - begin,
                              .use = op_weight_use_at(&r->op, c->uses[u].i)};
    float *rows = malloc((size_t)((end - begin) * p->k) * sizeof *rows);
    *out = (struct oato_weight){.dtype = DT_F32, .use = s.use, .rows = s.n, .k = p->k};
    out->bytes = cpu_source_bytes(c->kernels, &s);
    uint8_t *data = rows ? pages_alloc(out->bytes) : NULL;
    for (int64_t i = begin; data && i < end; i++)
        ov_planes_row(p, c->weight[u], i, rows + (i - begin) * p->k);
    s.data = rows;
    if (data)
        cpu_convert_rows(c->kernels, &s, 0, s.n, data);
    out->data = data;
    free(rows);
    return data;
}

static void weight_drop(const struct oato_weight *w)
{
    if (w->data)
        pages_free((void *)(uintptr_t)w->data, w->bytes);
}

/* The product of a value and weight u, a panel of rows after the other. */
static oato_status product(const struct checking *c, int u, float *in, float *out,
                           struct oato_error *err)
{
    const struct ov_planes *p = &c->uses[u].planes;
    const int64_t panel = max_i64(64, PANEL_ELEMENTS / p->k / 64 * 64);
    float *some = malloc((size_t)panel * CHECK_ROWS * sizeof *some);
    oato_status status = OATO_OK;
    if (!some || !out) {
        free(some);
        return oato_fail_memory(err, (size_t)panel, "the check of a function");
    }
    for (int64_t at = 0, n; !status && at < p->rows; at += n) {
        n = min_i64(panel, p->rows - at);
        struct alone a = {.record = {.op = {.kind = OP_MUL_MAT, .dtype = DT_F32},
                                     .kind = RECORD_RUN,
                                     .n_in = 1,
                                     .n_out = 1,
                                     .n_weights = 1}};
        a.record.op.k = a.record.in_width[0] = (int32_t)p->k;
        a.record.op.n = (int32_t)n;
        status = weight_of(c, u, at, at + n, &a.weight[0])
                     ? run_alone(c, &a, &in, &some, err)
                     : oato_fail_memory(err, (size_t)(n * p->k), "the check of a function");
        for (int t = 0; !status && t < c->rows; t++)
            memcpy(out + t * p->rows + at, some + t * n, (size_t)n * sizeof *out);
        weight_drop(&a.weight[0]);
    }
    free(some);
    return status;
}

/* A record of matrices: its products, and what GATE_UP makes of them. u: its first weight. */
static oato_status products(const struct checking *c, const struct program_record *r, int u,
                            float *const *in, float *const *out, struct oato_error *err)
{
    const bool gates = r->op.kind == OP_GATE_UP;
    const size_t bytes = (size_t)r->op.n * CHECK_ROWS * sizeof(float);
    float *up = malloc(bytes);
    if (!up)
        return oato_fail_memory(err, bytes, "the check of a function");
    float *const to[RECORD_OUTPUTS] = {out[0], gates ? up : out[1], out[2]};
    oato_status status = OATO_OK;
    for (int i = 0; !status && i < op_weight_count(&r->op) && i < RECORD_OUTPUTS; i++)
        status = product(c, u + i, in[0], to[i], err);
    if (gates && !status) {
        struct alone a = {.record = {.op = r->op,
                                     .kind = RECORD_RUN,
                                     .n_in = 2,
                                     .n_out = 1,
                                     .in_width = {r->op.n, r->op.n}}};
        float *two[] = {out[0], up};
        a.record.op.kind = OP_SWIGLU;
        a.record.op.dtype = DT_F32;
        a.record.op.k = r->op.n;
        status = run_alone(c, &a, two, out, err);
    }
    free(up);
    return status;
}

static float *value_find(const struct checking *c, uint64_t offset, int64_t width)
{
    for (int i = c->n_values; i-- > 0;)
        if (c->value[i].offset == offset && c->value[i].width == width)
            return c->value[i].rows;
    return NULL;
}

/* Room for a value that is written; it hides what was there. */
static float *value_new(struct checking *c, uint64_t offset, int32_t width)
{
    int at = 0;
    while (at < c->n_values && c->value[at].offset != offset)
        at++;
    if (at == MOST_VALUES)
        return NULL;
    free(at < c->n_values ? c->value[at].rows : NULL);
    c->value[at] =
        (struct known_value){offset, width, malloc((size_t)width * CHECK_ROWS * sizeof(float))};
    c->n_values += at == c->n_values;
    return c->value[at].rows;
}

static oato_status record_reference(struct checking *c, uint32_t index, int *use,
                                    struct oato_error *err)
{
    const struct program_record *r = &c->span->records[index];
    const int first = *use;
    float *in[RECORD_INPUTS] = {0}, *out[RECORD_OUTPUTS] = {0};
    bool room = true;
    for (int i = 0; i < r->n_in; i++)
        in[i] = value_find(c, r->in[i], r->in_width[i]);
    for (int i = 0; i < r->n_out; i++) {
        out[i] = malloc((size_t)op_out_width(&r->op, i) * CHECK_ROWS * sizeof(float));
        room = room && out[i];
    }
    while (*use < c->n_uses && c->uses[*use].record == index)
        ++*use;
    oato_status status = OATO_OK;
    if (room && op_weight_use(&r->op) == WEIGHT_MATRIX) {
        status = products(c, r, first, in, out, err);
    } else if (room) {
        struct alone a = {.record = *r};
        for (int u = first; room && u < *use; u++)
            room = weight_of(c, u, 0, c->uses[u].planes.rows, &a.weight[c->uses[u].i]);
        if (room)
            status = run_alone(c, &a, in, out, err);
        for (int i = 0; i < RECORD_WEIGHTS; i++)
            weight_drop(&a.weight[i]);
    }
    for (int i = 0; i < r->n_out; i++) { /* only now: it may be where an input was */
        const size_t bytes = (size_t)op_out_width(&r->op, i) * CHECK_ROWS * sizeof(float);
        float *to = room ? value_new(c, r->out[i], op_out_width(&r->op, i)) : NULL;
        if (to)
            memcpy(to, out[i], bytes);
        room = room && to;
        free(out[i]);
    }
    return status || room ? status : oato_fail_memory(err, 1 << 20, "the check of a function");
}

/* ------------------------------------------------------------------------------ comparing -- */

static uint64_t value_bytes(const struct span_value *v, int32_t rows)
{
    return (uint64_t)rows * (uint64_t)v->width * sizeof(float);
}

/* Row `row` of the reference is row `row` of the function's, the last the last. */
static int32_t row_of(const struct checking *c, int row, int32_t rows)
{
    return row == c->rows - 1 ? rows - 1 : row;
}

static bool make_up(struct checking *c, int32_t rows)
{
    const struct ov_span *s = c->span;
    for (int u = 0; u < c->n_uses; u++) {
        const struct ov_weight_use *use = &c->uses[u];
        const bool vector = op_weight_use_at(&s->records[use->record].op, use->i) == WEIGHT_VECTOR;
        c->weight[u] = c->given ? (void *)(uintptr_t)c->given[u] : pages_alloc(use->planes.bytes);
        if (!c->weight[u])
            return false;
        if (!c->given)
            weight_make_up(c, &use->planes, vector, c->weight[u]);
    }
    for (int i = 0; i < s->n_in + s->n_out; i++) {
        const struct span_value *v = &s->values[i];
        float *x = pages_alloc(value_bytes(v, rows));
        *(i < s->n_in ? &c->in[i] : &c->out[i - s->n_in]) = x;
        if (!x)
            return false;
        if (i >= s->n_in)
            continue;
        for (int64_t e = 0; e < (int64_t)rows * v->width; e++)
            x[e] = 2 * next_number(c);
        float *known = value_new(c, v->offset, v->width);
        if (!known)
            return false;
        for (int t = 0; t < c->rows; t++)
            memcpy(known + t * v->width, x + (int64_t)row_of(c, t, rows) * v->width,
                   (size_t)v->width * sizeof *x);
    }
    return true;
}

/* The worst of the outputs: squares of errors over squares. NaN counts as infinite. */
static double compare(const struct checking *c, int32_t rows)
{
    double worst = 0;
    for (int i = 0; i < c->span->n_out; i++) {
        const struct span_value *v = &c->span->values[c->span->n_in + i];
        const float *want = value_find(c, v->offset, v->width);
        double error = 0, square = 0;
        for (int t = 0; t < c->rows; t++) {
            const float *got = c->out[i] + (int64_t)row_of(c, t, rows) * v->width;
            for (int64_t e = 0; e < v->width; e++) {
                const double x = (double)want[t * v->width + e], off = (double)got[e] - x;
                error += off * off;
                square += x * x;
            }
        }
        const double nmse = square > 0 ? error / square : error;
        worst = nmse <= worst ? worst : nmse == nmse ? nmse : HUGE_VAL;
    }
    return worst;
}

static void checking_free(struct checking *c, int32_t rows)
{
    const struct ov_span *s = c->span;
    for (int i = 0; i < c->n_values; i++)
        free(c->value[i].rows);
    for (int u = 0; u < c->n_uses && !c->given; u++)
        pages_free(c->weight[u], c->uses[u].planes.bytes);
    for (int i = 0; i < s->n_in + s->n_out; i++)
        pages_free(c->in[i], value_bytes(&s->values[i], rows)); /* out follows */
    free(c->weight);
    free(c->in);
    free(c);
}

oato_status ov_check(struct ov_function *f, const struct ov_span *span,
                     const struct ov_weight_use *uses, int n, int32_t rows,
                     const void *const *weights, double *nmse, struct oato_error *err)
{
    struct checking *c = calloc(1, sizeof *c);
    void **weight = calloc((size_t)n + 1, sizeof *weight);
    float **in = calloc((size_t)span->n_in + span->n_out + 1, sizeof *in);
    if (!c || !weight || !in) {
        free(c);
        free(weight);
        free(in);
        return oato_fail_memory(err, sizeof *c, "the check of a function");
    }
    *c = (struct checking){.span = span, .uses = uses, .n_uses = n, .random = 1, .given = weights};
    c->rows = rows < CHECK_ROWS ? rows : CHECK_ROWS;
    c->weight = weight;
    c->in = in;
    c->out = in + span->n_in;
    oato_status status = cpu_kernels_select("ref", &c->kernels, err);
    if (!status && !make_up(c, rows))
        status = oato_fail_memory(err, (size_t)rows, "the check of a function");
    if (!status)
        status = ov_function_run(f, rows, (const float *const *)in, (const void *const *)weight,
                                 c->out, err);
    int use = 0;
    for (uint32_t i = 0; !status && i < span->n; i++)
        status = record_reference(c, i, &use, err);
    if (!status)
        *nmse = compare(c, rows);
    checking_free(c, rows);
    return status;
}
