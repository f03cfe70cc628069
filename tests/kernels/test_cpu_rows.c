/*
 * test_cpu_rows.c - norms of every kind, and factors: close to a double evaluation on every
 * instruction set, and the same bits for any number of threads and whatever rows stand beside;
 * halves of a KV cache.
 */
#include "tests/kernels/test_cpu.h"

#include <float.h>

/* Runs the operator on T rows of `in` with up to two weights. */
static float *run_rows(const struct cpu_kernels *k, struct oato_op op, const float *in, int64_t T,
                       const float *const weight[2], int threads)
{
    struct guarded g;
    struct simple_step s;
    struct oato_weight w[2];
    struct oato_weight *table[] = {&w[0], &w[1]};
    struct program_record r = record_of(op);
    const size_t bytes = (size_t)(T * op.n) * sizeof(float);
    guarded_init(&g);
    r.n_in = r.n_out = 1;
    r.in[0] = guarded_offset(&g, bytes);
    r.out[0] = guarded_offset(&g, bytes);
    memcpy(g.base + r.in[0], in, bytes);
    memset(g.base + r.out[0], 0xff, bytes);
    for (int i = 0; i < 2; i++) {
        w[i] = (struct oato_weight){.use = WEIGHT_VECTOR, .data = (const uint8_t *)weight[i]};
        r.weight[i] = weight[i] ? (uint32_t)i : UINT32_MAX;
    }
    struct cpu_context c = {.kernels = k, .arena = g.base, .weights = table};
    record_run(&c, &r, simple_step(&s, (int32_t)T), 0, threads);
    float *out = test_malloc(bytes);
    memcpy(out, g.base + r.out[0], bytes);
    guarded_free(&g);
    return out;
}

static void norm_in_double(const float *x, const float *w, const float *bias, int64_t n, bool mean,
                           double *y)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; mean && i < n; i++)
        sum += (double)x[i] / (double)n;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)x[i] - sum) * ((double)x[i] - sum);
    for (int64_t i = 0; i < n; i++)
        y[i] = ((double)x[i] - sum) / sqrt(squares / (double)n + 1e-5) * (w ? (double)w[i] : 1) +
               (bias ? (double)bias[i] : 0);
}

/* d: of a head, or of the whole row. */
static void check_norm(const struct cpu_kernels *k, int32_t norm, int64_t heads, int64_t d)
{
    const int64_t T = random_in(1, 40), n = heads * d;
    struct oato_op op = {
        .kind = OP_RMS_NORM, .k = (int32_t)n, .n = (int32_t)n, .norm = norm, .eps = 1e-5f};
    if (heads > 1) {
        op.kind = OP_HEAD_NORM;
        op.heads = (int32_t)heads;
        op.head_dim = (int32_t)d;
    }
    assert_true(op_valid(&op));
    float *x = test_malloc((size_t)(T * n) * sizeof *x), *w = test_malloc((size_t)n * sizeof *w);
    float *bias = test_malloc((size_t)n * sizeof *bias);
    double *wanted = test_malloc((size_t)(T * n) * sizeof *wanted);
    random_floats(x, T * n);
    random_floats(w, n);
    random_floats(bias, n);
    for (int64_t i = 0; i < T * n; i++)
        x[i] += i % 2 ? 3 : 0; /* a mean to take away, and a spread that survives it */
    const float *weights[2] = {norm & NORM_PLAIN ? NULL : w, norm & NORM_BIASED ? bias : NULL};
    for (int64_t t = 0; t < T; t++)
        for (int64_t h = 0; h < heads; h++) {
            const float *own = weights[0] && norm & NORM_OWN_HEADS ? w + h * d : weights[0];
            norm_in_double(x + t * n + h * d, norm & NORM_HEAD_GAINS ? NULL : own, weights[1], d,
                           norm & NORM_CENTRED, wanted + t * n + h * d);
            for (int64_t i = 0; norm & NORM_HEAD_GAINS && i < d; i++)
                wanted[t * n + h * d + i] *= (double)w[h];
        }
    float *y = run_rows(k, op, x, T, weights, 1), *lone = run_rows(k, op, x, 1, weights, 1);
    assert_close(y, wanted, T * n, 1e-11);
    assert_memory_equal(y, lone, (size_t)n * sizeof *y);
    for (int threads = 2; threads <= 3; threads++) {
        float *again = run_rows(k, op, x, T, weights, threads);
        assert_memory_equal(y, again, (size_t)(T * n) * sizeof *y);
        test_free(again);
    }
    test_free(x);
    test_free(w);
    test_free(bias);
    test_free(wanted);
    test_free(y);
    test_free(lone);
}

static void norms_of_every_kind_are_close_to_double(void **state)
{
    (void)state;
    static const int32_t rows[] = {0,
                                   NORM_CENTRED,
                                   NORM_PLAIN,
                                   NORM_BIASED,
                                   NORM_CENTRED | NORM_PLAIN,
                                   NORM_CENTRED | NORM_BIASED};
    static const int32_t heads[] = {NORM_CENTRED,
                                    NORM_PLAIN,
                                    NORM_OWN_HEADS,
                                    NORM_CENTRED | NORM_OWN_HEADS,
                                    NORM_CENTRED | NORM_PLAIN,
                                    NORM_HEAD_GAINS};
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (size_t f = 0; k && f < ARRAY_LEN(rows); f++) {
            check_norm(k, rows[f], 1, random_in(2, 40));
            check_norm(k, rows[f], 1, random_in(500, 1500));
        }
        for (size_t f = 0; k && f < ARRAY_LEN(heads); f++)
            check_norm(k, heads[f], random_in(2, 9), 2 * random_in(1, 80));
    }
}

/* SCALE by a vector that divides, and by a factor that grows with the position. */
static void factors_of_columns_and_of_positions(void **state)
{
    (void)state;
    enum { T = 7, N = 200 };
    float x[T * N], w[N];
    double wanted[T * N];
    random_floats(x, T * N);
    for (int i = 0; i < N; i++)
        w[i] = 1.5f + (float)random_in(0, 100) / 10;
    struct oato_op op = {.kind = OP_SCALE, .k = N, .n = N, .divides = 1};
    const float *weights[2] = {w, NULL};
    float *y = run_rows(&cpu_kernels_ref, op, x, T, weights, 2);
    for (int i = 0; i < T * N; i++)
        wanted[i] = (double)x[i] / (double)w[i % N];
    assert_close(y, wanted, T * N, 1e-13);
    test_free(y);
    assert_int_equal(op_weight_least(&op), 1);

    op = (struct oato_op){.kind = OP_SCALE,
                          .k = N,
                          .n = N,
                          .scale = 0.5f,
                          .temperature = 0.3f,
                          .temperature_step = 2,
                          .temperature_offset = 1};
    weights[0] = NULL;
    y = run_rows(&cpu_kernels_ref, op, x, T, weights, 2);
    for (int i = 0; i < T * N; i++) { /* positions are 0, 1, 2, .. */
        const int32_t steps = (i / N + 1) / 2;
        wanted[i] = (double)x[i] * 0.5 * (1 + (double)0.3f * log(steps + 1.0));
    }
    assert_close(y, wanted, T * N, 1e-13);
    test_free(y);
}

static void norms_that_no_kernel_has_are_not_valid(void **state)
{
    (void)state;
    const struct oato_op rows[] = {
        {.kind = OP_RMS_NORM, .k = 64, .n = 64, .norm = NORM_PLAIN | NORM_BIASED},
        {.kind = OP_RMS_NORM, .k = 64, .n = 64, .norm = NORM_OWN_HEADS},
        {.kind = OP_ADD_NORM, .k = 64, .n = 64, .norm = 16},
        {.kind = OP_HEAD_NORM, .k = 64, .n = 64, .heads = 2, .head_dim = 32, .norm = NORM_BIASED},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        assert_false(op_valid(&rows[i]));
}

/* Finite numbers beyond the halves become the largest, what is not finite stays so: an infinity in
 * K would leave no number in the rest of its sequence. */
static void halves_of_a_cache_are_finite_where_the_input_is(void **state)
{
    enum { N = 21 }; /* whole vectors and a rest */
    static const struct {
        float x;
        uint16_t half;
    } odd[] = {{1, 0x3c00},       {65519, 0x7bff},    {65520, 0x7bff},     {1e5f, 0x7bff},
               {-65520, 0xfbff},  {-1e30f, 0xfbff},   {FLT_MAX, 0x7bff},   {0x1p-24f, 1},
               {-0.0f, 0x8000},   {INFINITY, 0x7c00}, {-INFINITY, 0xfc00}, {0x1p-26f, 0},
               {65503.9f, 0x7bff}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(isas); i++) {
        const struct cpu_kernels *k = kernels_named(isas[i]);
        for (size_t o = 0; k && o < ARRAY_LEN(odd); o++) {
            float x[N];
            uint16_t half[N];
            for (int e = 0; e < N; e++)
                x[e] = odd[o].x;
            x[2] = x[19] = NAN;
            k->rows->to_f16(half, x, N);
            for (int e = 0; e < N; e++)
                if (e == 2 || e == 19)
                    assert_true(isnan(f16_to_f32(half[e])));
                else if (half[e] != odd[o].half)
                    fail_msg("%s: %a becomes %#x, not %#x", isas[i], (double)odd[o].x, half[e],
                             odd[o].half);
        }
    }
}

int main(void)
{
    seed_init();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_of_every_kind_are_close_to_double),
        cmocka_unit_test(factors_of_columns_and_of_positions),
        cmocka_unit_test(norms_that_no_kernel_has_are_not_valid),
        cmocka_unit_test(halves_of_a_cache_are_finite_where_the_input_is),
    };
    return levels_report(cmocka_run_group_tests(tests, NULL, NULL));
}
