/*
 * toy.c - the smallest device that runs half a model: what a new backend has to bring, and nothing
 * that the others share. Its memory is its own: core has it, copies reach it, and so do the host's
 * conversions. Its queue is a thread, its weights are float32 rows, and it computes norms and dense
 * products in plain C. It has no KV, and streams weights from the host's memory but not from files.
 *
 * In this order: weights (bytes, convert), operators, programs, the table.
 */
#include "kernels/core/far_device.h"
#include "kernels/core/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY_BYTES ((uint64_t)256 << 20)

struct compiled {
    struct compiled *next;
    const struct program *program;
    uint8_t *arena; /* where it really is */
    int self;
};

struct toy {
    struct far_device far;
    struct compiled *programs;
};

static struct toy *toy_of(const struct oato_device *d)
{
    return (struct toy *)(uintptr_t)d;
}

/* ------------------------------------------------------------------------------- weights -- */

static const char *toy_layout(const struct oato_device *d)
{
    (void)d;
    return "toy1";
}

/* No columns. */
static uint64_t toy_bytes(const struct oato_device *d, const struct weight_source *s)
{
    (void)d;
    return s->use == WEIGHT_COLUMNS
               ? 0
               : (uint64_t)(s->row_end - s->row_begin) * (uint64_t)s->k * sizeof(float);
}

static void toy_convert(const struct oato_device *d, const struct weight_source *s, int64_t begin,
                        int64_t end, void *to)
{
    (void)d;
    for (int64_t r = begin; r < end; r++)
        quants_row(s->dtype, weight_source_row(s, r), s->k, floats(to) + r * s->k);
}

/* ----------------------------------------------------------------------------- operators -- */

static bool toy_supports(const struct oato_device *d, const struct oato_op *op)
{
    (void)d;
    switch (op->kind) {
    case OP_RMS_NORM:
    case OP_ADD_NORM: return !op->norm;
    case OP_MUL_MAT:
    case OP_GATE_UP: return !op->sparse && quants_known((oato_dtype)op->dtype);
    default: return false;
    }
}

static const char *toy_numerics(const struct oato_device *d, const struct oato_op *op,
                                enum numerics_choice choice)
{
    (void)d, (void)op, (void)choice;
    return "f32t";
}

static uint64_t toy_workspace_bytes(const struct oato_device *d, const struct oato_op *op,
                                    const struct op_size *size)
{
    (void)d, (void)op, (void)size;
    return 0;
}

/* A record of a step: rows of its inputs and outputs. */
struct run {
    const struct compiled *c;
    const struct program_record *r;
    int32_t rows;
};

static float *row_of(const struct run *x, uint64_t offset, int64_t row, int64_t width)
{
    return floats(x->c->arena + offset) + row * width;
}

static const float *input(const struct run *x, int i, int64_t row)
{
    return row_of(x, x->r->in[i], row, x->r->in_width[i]);
}

static const struct oato_weight *weight(const struct run *x, int i)
{
    return weight_real(x->c->program->weights[x->r->weight[i]]);
}

/* Row r of weight i times a row of input 0. */
static float dot(const struct run *x, int i, int64_t row, int64_t r)
{
    const struct oato_weight *w = weight(x, i);
    const float *in = input(x, 0, row), *at = const_floats(w->data) + r * w->k;
    float sum = 0;
    for (int64_t k = 0; k < w->k; k++)
        sum += in[k] * at[k];
    return sum;
}

static void run_norm(const struct run *x)
{
    const struct oato_op *op = &x->r->op;
    const bool adds = op->kind == OP_ADD_NORM;
    const float *w = const_floats(weight(x, 0)->data);
    for (int64_t row = 0; row < x->rows; row++) {
        float *sum = row_of(x, x->r->out[0], row, op->n), squares = 0;
        float *out = row_of(x, x->r->out[adds], row, op->n);
        const float *in = input(x, 0, row);
        for (int32_t i = 0; adds && i < op->n; i++)
            sum[i] = in[i] + input(x, 1, row)[i];
        in = adds ? sum : in;
        for (int32_t i = 0; i < op->n; i++)
            squares += in[i] * in[i];
        const float scale = 1 / sqrtf(squares / (float)op->n + op->eps);
        for (int32_t i = 0; i < op->n; i++)
            out[i] = in[i] * scale * w[i];
    }
}

static void run_products(const struct run *x)
{
    const struct oato_op *op = &x->r->op;
    const int64_t n = weight(x, 0)->rows;
    for (int64_t row = 0; row < x->rows; row++)
        for (int64_t r = 0; r < n; r++) {
            float *out = row_of(x, x->r->out[0], row, n) + r;
            *out = dot(x, 0, row, r);
            if (op->kind == OP_GATE_UP)
                *out = activation_of((enum activation)op->activation, op->scale, *out) *
                       dot(x, 1, row, r);
        }
}

/* ------------------------------------------------------------------------------ programs -- */

static oato_status toy_compile(struct oato_device *d, const struct program *p, int self,
                               struct compiled **out, struct oato_error *err)
{
    struct toy *t = toy_of(d);
    uint8_t *arena;
    if (far_check(&t->far, p, self, &arena, err))
        return err->status;
    struct compiled *c = malloc(sizeof *c);
    if (!c)
        return oato_fail_memory(err, sizeof *c, "a program");
    *c = (struct compiled){.next = t->programs, .program = p, .arena = arena, .self = self};
    *out = t->programs = c;
    return OATO_OK;
}

static void toy_release(struct oato_device *d, struct compiled *c)
{
    struct compiled **at = &toy_of(d)->programs;
    job_queue_cancel(&toy_of(d)->far.queue);
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    free(c);
}

static void run_record(const struct compiled *c, const struct program_record *r,
                       const struct step *step)
{
    const struct run x = {c, r, record_rows(r, step)};
    const uint64_t bytes = (uint64_t)x.rows * (uint64_t)r->in_width[0] * sizeof(float);
    uint8_t *own = c->arena, *host = c->program->host_arena;
    if (!x.rows)
        return;
    if (r->kind == RECORD_UPLOAD)
        memcpy(own + r->out[0], host + r->in[0], bytes);
    else if (r->kind == RECORD_DOWNLOAD)
        memcpy(host + r->out[0], own + r->in[0], bytes);
    else if (r->kind == RECORD_STREAM)
        weights_stream_here(c->program, r, true);
    else if (op_weight_use(&r->op) == WEIGHT_MATRIX)
        run_products(&x);
    else
        run_norm(&x);
}

static void run_job(struct job_queue *q, const struct job *job)
{
    const struct compiled *c = job->compiled;
    if (!c) {
        job_queue_do_copy(q, job);
        return;
    }
    const uint64_t base = job->step->timeline_base[c->self];
    for (uint32_t i = 0; i < c->program->n_records; i++) {
        const struct program_record *r = &c->program->records[i];
        if (!job_queue_await(q, c->program, i, job->step, NULL) ||
            job_queue_injects(q, c->program, i))
            return;
        run_record(c, r, job->step);
        if (r->signal)
            timeline_signal(&q->timeline, base + r->signal, now_ns());
    }
    timeline_signal(&q->timeline, base + c->program->n_signals, now_ns());
}

static oato_status toy_submit(struct oato_device *d, struct compiled *c, const struct step *step,
                              struct oato_error *err)
{
    return job_queue_step(&toy_of(d)->far.queue, c, c->program, c->self, step, err);
}

/* ----------------------------------------------------------------------------- the table -- */

static int toy_probe(void)
{
    return 1;
}

static void toy_info(const struct oato_device *d, struct device_info *out)
{
    const struct toy *t = toy_of(d);
    const struct far_memory *m = &t->far.memory;
    *out = (struct device_info){.kind = "toy",
                                .model = "a toy",
                                .memory_bytes = m->capacity,
                                .free_bytes = m->capacity - m->used};
    snprintf(out->id, sizeof out->id, "%s", t->far.id);
}

extern const struct device_ops toy_device_ops;

static oato_status toy_open(int index, const char *spec, const struct device_options *options,
                            struct oato_device **out, struct oato_error *err)
{
    if (*spec)
        return oato_fail(err, OATO_EUSAGE, "toy: unknown setting '%s'; write toy or toy:N", spec);
    struct toy *t = calloc(1, sizeof *t);
    if (!t)
        return oato_fail_memory(err, sizeof *t, "a toy");
    far_name(&t->far, &toy_device_ops, index);
    t->far.memory.capacity = options->budget_bytes ? options->budget_bytes : MEMORY_BYTES;
    t->far.memory.more = "give it a larger budget";
    t->far.queue.run = run_job;
    if (job_queue_open(&t->far.queue, "oato-toy", err)) {
        free(t);
        return err->status;
    }
    *out = &t->far.base;
    return OATO_OK;
}

static void toy_close(struct oato_device *d)
{
    while (toy_of(d)->programs)
        toy_release(d, toy_of(d)->programs);
    job_queue_close(&toy_of(d)->far.queue);
    weights_close(d);
    far_memory_close(&toy_of(d)->far.memory);
    free(d);
}

const struct device_ops toy_device_ops = {
    .kind = "toy",
    .probe = toy_probe,
    .open = toy_open,
    .close = toy_close,
    .info = toy_info,
    .supports = toy_supports,
    .numerics = toy_numerics,
    .workspace_bytes = toy_workspace_bytes,
    .alloc = far_alloc,
    .free = far_free,
    .upload = far_upload,
    .download = far_download,
    .layout = toy_layout,
    .bytes = toy_bytes,
    .convert = toy_convert,
    .reach = far_reach,
    .streams = true,
    .compile = toy_compile,
    .release = toy_release,
    .submit = toy_submit,
    .finish = far_finish,
    .timeline = far_timeline,
    .clock_ns = far_clock_ns,
    .inject_error = far_inject_error,
};
