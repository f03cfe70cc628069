/*
 * cuda_case.h - what the tests of a CUDA device's operators share: one record on random data, run
 * on the reference kernels of the CPU and on the device, and how far apart the two are. Included
 * once by each test program.
 *
 * Products with types of whole blocks round their input to bytes (class a8b32): the reference is
 * given the input so rounded, and what is left is the order of additions.
 */
#ifndef OATO_CUDA_CASE_H
#define OATO_CUDA_CASE_H

#include "tests/kernels/test_cpu.h"

#include "kernels/cuda/cuda_driver.h"

enum { ROWS_MOST = 700 };

/* One record and what it works on. */
struct test_case {
    struct oato_op op;
    int32_t T;
    int n_in, n_out, n_weights;
    enum numerics_choice numerics;
    int32_t in_width[RECORD_INPUTS], out_width[RECORD_OUTPUTS];
    float *in[RECORD_INPUTS];
    struct weight_source weight[RECORD_WEIGHTS];
    bool absent[RECORD_WEIGHTS];
};

static struct oato_device *device[2]; /* cpu, cuda */

static UNUSED void *at(struct oato_device *d, uint64_t bytes)
{
    struct oato_error err;
    void *p = NULL;
    if (d->ops->alloc(d, bytes, &p, &err))
        fail_msg("%s", err.text);
    return p;
}

static UNUSED void upload(struct oato_device *d, void *to, uint64_t offset, const void *from,
                          uint64_t bytes)
{
    struct oato_error err;
    if (d->ops->upload(d, to, offset, from, bytes, NULL, &err))
        fail_msg("%s", err.text);
}

static UNUSED struct compiled *compile(struct oato_device *d, const struct program *p)
{
    struct oato_error err;
    struct compiled *c = NULL;
    if (d->ops->compile(d, p, 0, &c, &err))
        fail_msg("%s", err.text);
    return c;
}

static UNUSED void run(struct oato_device *d, struct compiled *c, const struct step *given)
{
    struct step step = *given;
    struct oato_error err;
    struct timeline *timeline = d->ops->timeline(d);
    uint64_t base = atomic_load(&timeline->value);
    step.timeline = &timeline;
    step.timeline_base = &base;
    if (d->ops->submit(d, c, &step, &err) || d->ops->finish(d, &err))
        fail_msg("%s", err.text);
}

static UNUSED void run_program(struct oato_device *d, const struct program *p,
                               const struct step *step)
{
    struct compiled *c = compile(d, p);
    run(d, c, step);
    d->ops->release(d, c);
}

/* A case as a program of one record on a device. */
struct case_program {
    struct program_record record;
    struct oato_weight *weights[RECORD_WEIGHTS];
    uint8_t *arena; /* inputs, then outputs */
    uint64_t bytes;
    struct program program;
};

static UNUSED uint64_t width_bytes(const struct test_case *c, int32_t width)
{
    return (uint64_t)c->T * (uint64_t)width * sizeof(float);
}

static UNUSED void case_begin(struct oato_device *d, const struct test_case *c,
                              struct case_program *x)
{
    struct oato_error err;
    struct program_record *r = &x->record;
    *x = (struct case_program){.record = {.op = c->op,
                                          .n_in = (uint8_t)c->n_in,
                                          .n_out = (uint8_t)c->n_out,
                                          .n_weights = (uint8_t)c->n_weights,
                                          .numerics = (uint8_t)c->numerics,
                                          .kv_layer = -1,
                                          .signal = 1}};
    for (int i = 0; i < c->n_in; i++) {
        r->in[i] = x->bytes;
        r->in_width[i] = c->in_width[i];
        x->bytes += size_align(width_bytes(c, c->in_width[i]), 64);
    }
    for (int i = 0; i < c->n_out; i++) {
        r->out[i] = x->bytes;
        x->bytes += size_align(width_bytes(c, c->out_width[i]), 64);
    }
    x->arena = at(d, x->bytes);
    for (int i = 0; i < c->n_in; i++)
        upload(d, x->arena, r->in[i], c->in[i], width_bytes(c, c->in_width[i]));
    for (int i = 0; i < c->n_weights; i++) {
        r->weight[i] = c->absent[i] ? UINT32_MAX : (uint32_t)i;
        if (weight_prepare(d, &c->weight[i], &x->weights[i], &err))
            fail_msg("%s", err.text);
    }
    const struct op_size size = {.rows = c->T, .seqs = 1};
    x->program = (struct program){.records = r,
                                  .n_records = 1,
                                  .n_signals = 1,
                                  .max_tokens = c->T,
                                  .max_rows = c->T,
                                  .max_seqs = 1,
                                  .weights = x->weights,
                                  .n_weights = (uint32_t)c->n_weights,
                                  .arena = x->arena,
                                  .n_caches = c->op.expert_slots ? 1 : 0,
                                  .workspace_bytes = d->ops->workspace_bytes(d, &c->op, &size)};
}

static UNUSED void case_end(struct oato_device *d, const struct test_case *c,
                            struct case_program *x)
{
    for (int i = 0; i < c->n_weights; i++)
        weight_free(d, x->weights[i]);
    d->ops->free(d, x->arena, x->bytes);
}

/* Outputs go to out[0], out[1], ... */
static UNUSED void run_case(struct oato_device *d, const struct test_case *c,
                            const struct step *step, float *const *out)
{
    struct oato_error err;
    struct case_program x;
    case_begin(d, c, &x);
    run_program(d, &x.program, step);
    for (int i = 0; i < c->n_out; i++)
        if (d->ops->download(d, out[i], x.arena, x.record.out[i], width_bytes(c, c->out_width[i]),
                             NULL, &err))
            fail_msg("%s", err.text);
    case_end(d, c, &x);
}

static UNUSED double error_of(const float *got, const float *expected, int64_t n)
{
    double error = 0, energy = 0;
    for (int64_t i = 0; i < n; i++) {
        const double e = (double)got[i] - (double)expected[i];
        error += e * e;
        energy += (double)expected[i] * (double)expected[i];
    }
    return energy > 0 ? error / energy : error;
}

/* x as class a8b32 sees it. */
static UNUSED void round_blocks(float *x, int64_t n)
{
    for (int64_t b = 0; b < n; b += 32) {
        float most = x[b], least = x[b];
        for (int i = 1; i < 32; i++) {
            most = fmaxf(most, x[b + i]);
            least = fminf(least, x[b + i]);
        }
        const float middle = 0.5f * most + 0.5f * least, d = (most - least) / 254.0f;
        for (int i = 0; i < 32; i++)
            x[b + i] = d != 0 ? middle + d * rintf((x[b + i] - middle) / d) : middle;
    }
}

/* The input as the class of arithmetic rounds it, its own or a library's. */
static UNUSED void round_input(const char *class, float *x, int64_t n)
{
    if (!strncmp(class, "a8b32", 5))
        round_blocks(x, n);
    for (int64_t i = 0; i < n; i++) {
        if (!strncmp(class, "f16", 3)) /* of products: scaled, see pack_F16 */
            x[i] = f16_to_f32(f32_to_f16(x[i] * 0x1p-6f)) * 0x1p6f;
        else if (!strncmp(class, "bf16", 4))
            x[i] = bf16_to_f32(f32_to_bf16(x[i]));
    }
}

static UNUSED struct step plain_step(int32_t T)
{
    static int32_t ids[ROWS_MOST];
    for (int32_t t = 0; t < T; t++)
        ids[t] = t;
    static const int32_t zeros[ROWS_MOST];
    static const struct step_seq seq;
    return (struct step){.n_tokens = T,
                         .n_rows = T,
                         .n_seqs = 1,
                         .token_id = ids,
                         .token_position = ids,
                         .token_seq = zeros,
                         .row = ids,
                         .seq = &seq};
}

/* Both devices, the outputs compared. */
static UNUSED void compare(const struct test_case *c, const struct step *step, double limit)
{
    char key[OP_KEY_SIZE];
    struct test_case rounded = *c;
    float *out[2][RECORD_OUTPUTS] = {{NULL}};
    const int64_t n = (int64_t)c->T * c->in_width[0];
    const int n_out = c->n_out;
    if (op_weight_use_at(&c->op, 0) == WEIGHT_MATRIX) {
        rounded.in[0] = test_malloc((size_t)n * sizeof(float));
        memcpy(rounded.in[0], c->in[0], (size_t)n * sizeof(float));
        round_input(device[1]->ops->numerics(device[1], &c->op, c->numerics), rounded.in[0], n);
    }
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < n_out; i++)
            out[d][i] = test_calloc((size_t)c->T * (size_t)c->out_width[i], sizeof(float));
    run_case(device[0], &rounded, step, out[0]);
    run_case(device[1], c, step, out[1]);
    for (int i = 0; i < n_out; i++) {
        const double e = error_of(out[1][i], out[0][i], (int64_t)c->T * c->out_width[i]);
        if (!(e <= limit))
            fail_msg("%s T %d output %d: NMSE %.3g, at most %.3g", oato_op_key(&c->op, NULL, key),
                     (int)c->T, i, e, limit);
        test_free(out[0][i]);
        test_free(out[1][i]);
    }
    if (rounded.in[0] != c->in[0])
        test_free(rounded.in[0]);
}

static UNUSED struct test_case case_of(const char *key, int32_t T)
{
    struct test_case c = {.T = T};
    struct op_size size;
    if (!oato_op_parse(key, &c.op, &size))
        fail_msg("no key: %s", key);
    c.op.eps = 1e-5f;
    c.op.rope_base = 10000;
    c.op.rope_scale = 1;
    while (c.n_out < RECORD_OUTPUTS && op_out_width(&c.op, c.n_out) > 0) {
        c.out_width[c.n_out] = op_out_width(&c.op, c.n_out);
        c.n_out++;
    }
    return c;
}

static UNUSED void give_input(struct test_case *c, int32_t width)
{
    const int64_t n = (int64_t)c->T * width;
    c->in[c->n_in] = test_malloc((size_t)n * sizeof(float));
    random_floats(c->in[c->n_in], n);
    c->in_width[c->n_in++] = width;
}

/* Its first input times a factor. */
static UNUSED void scale_input(struct test_case *c, float factor)
{
    for (int64_t i = 0; i < (int64_t)c->T * c->in_width[0]; i++)
        c->in[0][i] *= factor;
}

static UNUSED void give_weights(struct test_case *c)
{
    int64_t n, k;
    size_t row;
    for (; op_weight_shape(&c->op, c->n_weights, &n, &k); c->n_weights++) {
        const enum weight_use use = op_weight_use_at(&c->op, c->n_weights);
        const oato_dtype dtype =
            use == WEIGHT_VECTOR ? DT_F32 : op_weight_dtype(&c->op, c->n_weights);
        assert_true(dtype_row_bytes(dtype, k, &row));
        uint8_t *data = test_malloc((size_t)n * row);
        random_elements(dtype, data, n * k);
        c->weight[c->n_weights] = (struct weight_source){
            .data = data, .dtype = dtype, .k = k, .n = n, .row_end = n, .use = use};
    }
}

/* Takes some optional weights away again. */
static UNUSED void drop_weights(struct test_case *c)
{
    for (int i = op_weight_least(&c->op); i < c->n_weights; i++)
        c->absent[i] = random_in(0, 1);
}

static UNUSED void free_case(struct test_case *c)
{
    for (int i = 0; i < c->n_in; i++)
        test_free(c->in[i]);
    for (int i = 0; i < c->n_weights; i++)
        test_free((void *)(uintptr_t)c->weight[i].data);
}

/* Both devices; 77, for the program to end with: there is no GPU here. */
static UNUSED int devices_open(void)
{
    struct oato_error err;
    if (!cuda_driver_open(&err)) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    const struct device_options options = {.threads = 1, .isa = "ref"};
    if (device_open("cpu", 0, &options, &device[0], &err) ||
        device_open("cuda", 0, &options, &device[1], &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    return 0;
}

static void devices_close(void)
{
    device[1]->ops->close(device[1]);
    device[0]->ops->close(device[0]);
}

/* What a test program's main does, `tests` being its array of struct CMUnitTest. */
#define RUN_ON_DEVICES(tests)                                                                      \
    do {                                                                                           \
        const int cannot = devices_open();                                                         \
        if (cannot)                                                                                \
            return cannot;                                                                         \
        seed_init();                                                                               \
        const int failed = cmocka_run_group_tests((tests), NULL, NULL);                            \
        devices_close();                                                                           \
        return failed;                                                                             \
    } while (0)

#endif
