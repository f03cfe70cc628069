/*
 * test_cpu_predict.c - lists of active neurons, at every level: a list names exactly what is above
 * its threshold, and products by a list are the dense ones of what it names.
 */
#include "tests/kernels/test_cpu.h"

enum { N = 70, T = 3 };

/* Runs the operator on x, with as many weights as it takes and perhaps a list; its T rows of n
 * floats. */
static float *run(const struct cpu_kernels *k, struct guarded *g, struct oato_op op, const float *x,
                  const float *list, struct oato_weight **weights, int threads)
{
    struct cpu_context c = {.kernels = k, .weights = weights, .arena = g->base};
    struct simple_step step;
    struct program_record r = record_of(op);
    r.n_in = list ? 2 : 1;
    r.n_out = 1;
    r.in[0] = (uint64_t)((const uint8_t *)x - g->base);
    r.in[1] = list ? (uint64_t)((const uint8_t *)list - g->base) : 0;
    for (int i = 0; i < r.n_in; i++)
        r.in_width[i] = (int32_t)op_in_width(&op, i);
    r.out[0] = guarded_offset(g, (size_t)T * (size_t)op.n * sizeof(float));
    for (; weights && r.n_weights < op_weight_count(&op); r.n_weights++)
        r.weight[r.n_weights] = r.n_weights;
    record_run(&c, &r, simple_step(&step, T), 0, threads);
    return floats(g->base + r.out[0]);
}

/* With a bias and without one. */
static void check_list(const struct cpu_kernels *k, float threshold, int width)
{
    struct guarded g;
    guarded_init(&g);
    const size_t bytes = (size_t)width * sizeof(float);
    float *x = guarded_alloc(&g, T * bytes), *bias = guarded_alloc(&g, bytes);
    random_floats(x, (int64_t)T * width);
    random_floats(bias, width);
    x[7] = threshold; /* equal is not above */
    x[8] = NAN;
    bias[7] = 0;
    struct oato_weight w = {.use = WEIGHT_VECTOR, .rows = 1, .k = width, .data = (uint8_t *)bias};
    for (int biased = 0; biased < 2; biased++) {
        const struct oato_op op = {
            .kind = OP_ACTIVE, .k = width, .n = width + 1, .threshold = threshold};
        struct oato_weight *weights = biased ? &w : NULL;
        const float *list = run(k, &g, op, x, NULL, weights ? &weights : NULL, 2);
        for (int t = 0; t < T; t++, list += width + 1) {
            int n = 0;
            for (int j = 0; j < width; j++)
                if (x[t * width + j] + (biased ? bias[j] : 0) > threshold)
                    assert_true(list[++n] == (float)j);
            assert_true(list[0] == (float)n);
        }
    }
    guarded_free(&g);
}

static void a_list_names_what_is_above(void **state)
{
    (void)state;
    const float thresholds[] = {-100, -0.5f, 0, 1.5f, 100};
    for (size_t i = 0; i < ARRAY_LEN(thresholds); i++) {
        for (size_t j = 0; j < ARRAY_LEN(isas); j++) {
            const struct cpu_kernels *k = kernels_named(isas[j]);
            if (k && i % 2)
                check_list(k, thresholds[i], 1000 - (int)i);
            else if (k)
                check_list(k, thresholds[i], 1000);
        }
    }
}

/* A MUL_MAT by the same lists: the dense product, and -infinity for what is not listed. */
static void check_listed_product(const struct cpu_kernels *k, struct guarded *g, struct oato_op op,
                                 const float *x, const float *list, struct oato_weight *rows,
                                 const bool *named, int n, struct oato_weight *matrix)
{
    op.kind = OP_MUL_MAT;
    op.activation = 0;
    op.sparse = SPARSE_OFF;
    const float *wanted = run(k, g, op, x, NULL, &matrix, 1);
    op.sparse = SPARSE_BY_ROWS;
    assert_int_equal(op_weight_use_at(&op, 0), WEIGHT_ROWS);
    const float *all = run(k, g, op, x, NULL, &rows, 2);
    op.sparse = SPARSE_PREDICT;
    for (int threads = 1; threads <= 2; threads++) {
        const float *got = run(k, g, op, x, list, &rows, threads);
        for (int i = 0; i < T * n; i++)
            assert_true(got[i] == (named[i] ? wanted[i] : -INFINITY) && all[i] == wanted[i]);
    }
}

/* As a GATE_UP that skips zeros where a token's list names the neuron, 0 elsewhere; whatever the
 * lists of the other tokens. */
static void check_listed(const struct cpu_kernels *k, oato_dtype dtype, enum activation a)
{
    enum { NEURONS = 328, WIDTH = 256 };
    struct guarded g;
    struct oato_weight *dense[2], *rows[2];
    guarded_init(&g);
    struct oato_op op = {.kind = OP_GATE_UP,
                         .dtype = (uint16_t)dtype,
                         .k = WIDTH,
                         .n = NEURONS,
                         .activation = (int32_t)a,
                         .sparse = SPARSE_ABOVE};
    size_t stride = 0;
    assert_true(dtype_row_bytes(dtype, WIDTH, &stride));
    uint8_t *data = test_malloc(2 * NEURONS * stride);
    random_elements(dtype, data, 2 * NEURONS * WIDTH);
    for (int i = 0; i < 2; i++) {
        const uint8_t *from = data + (size_t)i * NEURONS * stride;
        const enum weight_use use = op_weight_use_at(&op, i);
        dense[i] = weight_make(k, &g, dtype, from, NEURONS, WIDTH, 0, NEURONS, use);
        rows[i] = weight_make(k, &g, dtype, from, NEURONS, WIDTH, 0, NEURONS, WEIGHT_ROWS);
    }
    float *x = guarded_alloc(&g, (size_t)(T * WIDTH) * sizeof(float));
    float *list = guarded_alloc(&g, (size_t)(T * (NEURONS + 1)) * sizeof(float));
    bool named[T][NEURONS] = {{false}};
    random_floats(x, (int64_t)T * WIDTH);
    for (int t = 0; t < T; t++) { /* the last one names nothing */
        float *at = list + (int64_t)t * (NEURONS + 1);
        *at = 0;
        for (int j = 0; j < NEURONS && t < T - 1; j++)
            if ((named[t][j] = random_in(0, 3) == 0))
                at[1 + (int)at[0]++] = (float)j;
    }
    const float *wanted = run(k, &g, op, x, NULL, dense, 1);
    op.sparse = SPARSE_PREDICT;
    assert_int_equal(op_weight_use_at(&op, 0), WEIGHT_ROWS);
    for (int threads = 1; threads <= 3; threads++) {
        const float *got = run(k, &g, op, x, list, rows, threads);
        for (int i = 0; i < T * NEURONS; i++)
            assert_true(got[i] == (named[i / NEURONS][i % NEURONS] ? wanted[i] : 0));
    }
    check_listed_product(k, &g, op, x, list, rows[0], named[0], NEURONS, dense[0]);
    for (int i = 0; i < 2; i++) {
        test_free(dense[i]);
        test_free(rows[i]);
    }
    test_free(data);
    guarded_free(&g);
}

static void listed_neurons_are_computed(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (size_t j = 0; k && j < ARRAY_LEN(matrix_types); j++)
            check_listed(k, matrix_types[j], j % 2 ? ACT_RELU : ACT_SILU);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_list_names_what_is_above),
                                       cmocka_unit_test(listed_neurons_are_computed)};
    seed_init();
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
