/*
 * ov_test.h - for tests of the openvino device: the library that scripts/setup installs, and spans
 * of records with random weights, compiled on OpenVINO's CPU and computed by the reference kernels
 * from the same GGUF rows as float32.
 */
#ifndef OATO_TESTS_OV_TEST_H
#define OATO_TESTS_OV_TEST_H

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/openvino/ov_internal.h"
#include "tests/kernels/test_cpu.h"

#include <glob.h>

/* Makes OATO_OPENVINO name the library of the tests' Python, unless it is set. False: there is
 * none.
 */
static UNUSED bool ov_test_library(void)
{
    const char *cache = getenv("OATO_CACHE"), *home = getenv("HOME");
    char pattern[512];
    glob_t found = {0};
    setenv("TBB_ENABLE_SANITIZERS", "1",
           1); /* else it opens a library in a way that ASan refuses */
    snprintf(pattern, sizeof pattern, "%s%s/venv/lib/python3*/site-packages/openvino/libs",
             cache ? cache : or_empty(home), cache ? "" : "/.cache/oato");
    if (!getenv("OATO_OPENVINO") && glob(pattern, 0, NULL, &found) == 0)
        setenv("OATO_OPENVINO", found.gl_pathv[0], 1);
    globfree(&found);
    return ov_library_found(NULL);
}

/* Opens OpenVINO's CPU for a test program, which returns what this does unless it is 0: 77, there
 * is no library; 1, it fails, as stderr is told. */
static UNUSED int ov_test_open(struct ov_runtime **rt)
{
    struct oato_error err = {0};
    if (!ov_test_library()) {
        puts("OpenVINO is not installed (scripts/setup): skipped");
        return 77;
    }
    seed_init();
    if (!ov_runtime_open("CPU", rt, &err))
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return 1;
}

enum { OV_TEST_RECORDS = 16, OV_TEST_VALUES = 32, OV_TEST_ROWS = 64, OV_TEST_WIDTH = 1024 };

/* A span that is put together record by record; values are numbers, of any width. */
struct ov_test {
    struct program_record record[OV_TEST_RECORDS];
    uint32_t n;
    int32_t width[OV_TEST_VALUES]; /* 0: not made */
    struct oato_weight f32[OV_SPAN_WEIGHTS];
    void *planes[OV_SPAN_WEIGHTS];
    uint64_t planes_bytes[OV_SPAN_WEIGHTS];
    int n_weights;
};

static uint64_t ov_test_offset(int value)
{
    return (uint64_t)value * OV_TEST_ROWS * OV_TEST_WIDTH * sizeof(float);
}

/* A random weight of the operator, as planes and as float32. */
static void ov_test_weight(struct ov_test *t, struct program_record *r, int i)
{
    const struct cpu_kernels *ref = kernels_named("ref");
    struct weight_source s = {
        .dtype = op_weight_use_at(&r->op, i) == WEIGHT_VECTOR ? DT_F32 : op_weight_dtype(&r->op, i),
        .use = op_weight_use_at(&r->op, i)};
    assert_true(op_weight_shape(&r->op, i, &s.n, &s.k));
    s.row_end = s.n;
    size_t row;
    assert_true(dtype_row_bytes(s.dtype, s.k, &row));
    uint8_t *raw = test_malloc(row * (size_t)s.n);
    float *values = test_malloc((size_t)(s.n * s.k) * sizeof *values);
    random_elements(s.dtype, raw, s.n * s.k);
    s.data = raw;
    const int at = t->n_weights++;
    t->planes_bytes[at] = ov_bytes(&s);
    t->planes[at] = pages_alloc(t->planes_bytes[at]);
    for (int64_t r0 = 0; r0 < s.n; r0 += 64) /* in pieces, as devices convert */
        ov_convert_rows(&s, r0, min_i64(s.n, r0 + 64), t->planes[at]);
    for (int64_t j = 0; j < s.n; j++)
        quants_row(s.dtype, raw + (size_t)j * row, s.k, values + j * s.k);
    s.data = values;
    s.dtype = DT_F32;
    struct oato_weight *w = &t->f32[at];
    *w = (struct oato_weight){.dtype = DT_F32, .use = s.use, .rows = s.n, .k = s.k};
    w->bytes = cpu_source_bytes(ref, &s);
    void *data = pages_alloc(w->bytes);
    cpu_convert_rows(ref, &s, 0, s.n, data);
    w->data = data;
    r->weight[i] = (uint32_t)at;
    test_free(values);
    test_free(raw);
}

/* Adds the operator; out < 0: none. weights: how many of those that it can have. */
static UNUSED void ov_test_put(struct ov_test *t, const struct oato_op *op, int n_in, const int *in,
                               const int *out, int weights)
{
    struct program_record *r = &t->record[t->n++];
    assert_true(t->n <= OV_TEST_RECORDS);
    *r = (struct program_record){.op = *op, .kind = RECORD_RUN, .n_in = (uint8_t)n_in};
    r->n_weights = (uint8_t)weights;
    memset(r->weight, 0xff, sizeof r->weight);
    for (int i = 0; i < n_in; i++) {
        const int64_t width = op_in_width(op, i);
        if (!t->width[in[i]])
            t->width[in[i]] = width == OP_ANY ? op->n / n_in : (int32_t)width;
        r->in[i] = ov_test_offset(in[i]);
        r->in_width[i] = t->width[in[i]];
    }
    for (int i = 0; i < RECORD_OUTPUTS && op_out_width(op, i); i++, r->n_out++) {
        r->out[i] = ov_test_offset(out[i]);
        t->width[out[i]] = op_out_width(op, i);
    }
    for (int i = 0; i < weights; i++)
        ov_test_weight(t, r, i);
}

static UNUSED void ov_test_free(struct ov_test *t)
{
    for (int i = 0; i < t->n_weights; i++) {
        pages_free((void *)(uintptr_t)t->f32[i].data, t->f32[i].bytes);
        pages_free(t->planes[i], t->planes_bytes[i]);
    }
    memset(t, 0, sizeof *t);
}

/* What the reference makes of the arena's inputs, in the arena. */
static void ov_test_reference(const struct ov_test *t, uint8_t *arena, int32_t rows)
{
    const struct op_size size = {.rows = rows, .seqs = 1};
    static const int32_t positions[OV_TEST_ROWS];
    const struct step step = {
        .n_tokens = rows, .n_seqs = 1, .n_rows = rows, .token_position = positions};
    struct oato_weight *table[OV_SPAN_WEIGHTS];
    struct cpu_context c = {.kernels = kernels_named("ref"), .arena = arena, .weights = table};
    for (int i = 0; i < t->n_weights; i++)
        table[i] = (struct oato_weight *)(uintptr_t)&t->f32[i];
    for (uint32_t i = 0; i < t->n; i++) {
        struct program_record r = t->record[i];
        if (op_weight_use(&r.op) == WEIGHT_MATRIX)
            r.op.dtype = DT_F32;
        c.workspace_bytes = cpu_workspace_bytes(c.kernels, &r.op, &size, 1);
        c.workspace = pages_alloc(c.workspace_bytes + WORKSPACE_HEADER_BYTES);
        cpu_run_alone(&c, &r, &step);
        pages_free(c.workspace, c.workspace_bytes + WORKSPACE_HEADER_BYTES);
    }
}

/* Compiles the span for `bucket` rows and runs `rows` of them: the worst NMSE of the outputs.
 * Nothing but those rows may be written. */
static UNUSED double ov_test_run(struct ov_runtime *rt, const struct ov_test *t, int n_in,
                                 const int *in, int n_out, const int *out, int32_t bucket,
                                 int32_t rows)
{
    enum { SENTINELS = 64 };
    struct oato_error err = {0};
    struct span_value values[OV_TEST_VALUES];
    const float *from[OV_TEST_VALUES];
    float *to[OV_TEST_VALUES];
    struct ov_function *f = NULL;
    uint8_t *arena = pages_alloc(ov_test_offset(OV_TEST_VALUES));
    for (int i = 0; i < n_in + n_out; i++) {
        const int v = i < n_in ? in[i] : out[i - n_in];
        values[i] = (struct span_value){ov_test_offset(v), t->width[v], ROWS_TOKENS, DT_F32};
    }
    const struct ov_span span = {t->record, t->n, values, (uint16_t)n_in, (uint16_t)n_out};
    if (ov_function_open(rt, &span, bucket, NULL, &f, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < n_in; i++) {
        random_floats(floats(arena + values[i].offset), (int64_t)rows * values[i].width);
        from[i] = const_floats(arena + values[i].offset);
    }
    uint32_t numbers[OV_SPAN_WEIGHTS];
    const void *weights[OV_SPAN_WEIGHTS];
    const int n = ov_span_weights(&span, numbers);
    assert_int_equal(n, t->n_weights);
    for (int i = 0; i < n; i++)
        weights[i] = t->planes[numbers[i]];
    for (int i = 0; i < n_out; i++) {
        const size_t floats_out = (size_t)rows * (size_t)values[n_in + i].width;
        to[i] = test_malloc((floats_out + 2 * SENTINELS) * sizeof(float));
        memset(to[i], 0xa5, (floats_out + 2 * SENTINELS) * sizeof(float));
        to[i] += SENTINELS;
    }
    if (ov_function_run(f, rows, from, weights, to, &err))
        fail_msg("%s", err.text);
    ov_test_reference(t, arena, rows);
    double worst = 0;
    for (int i = 0; i < n_out; i++) {
        const int64_t count = (int64_t)rows * values[n_in + i].width;
        const float *want = const_floats(arena + values[n_in + i].offset);
        const uint8_t *before = (const uint8_t *)(to[i] - SENTINELS);
        const uint8_t *behind = (const uint8_t *)(to[i] + count);
        double error = 0, square = 0;
        for (int64_t e = 0; e < count; e++) {
            const double off = (double)to[i][e] - (double)want[e];
            error += off * off;
            square += (double)want[e] * (double)want[e];
        }
        for (size_t b = 0; b < SENTINELS * sizeof(float); b++)
            if (before[b] != 0xa5 || behind[b] != 0xa5)
                fail_msg("output %d is written beyond its %d rows", i, rows);
        assert_true(square > 0);
        worst = error / square <= worst ? worst : error / square;
        test_free(to[i] - SENTINELS);
    }
    ov_function_close(f);
    pages_free(arena, ov_test_offset(OV_TEST_VALUES));
    return worst;
}

#endif
