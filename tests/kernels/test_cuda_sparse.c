/*
 * test_cuda_sparse.c - products that skip neurons, on a CUDA device, and what names the neurons:
 * the bits of the dense products where they compute, close to the reference by columns, the same
 * bits whether zeros are skipped or not and whatever the step; lists as the reference has
 * them. Runs on the emulated GPU of tests/cuda_on_cpu/ (OATO_CUDA_DRIVER) and, labelled gpu, on a
 * real one; without any it is skipped.
 */
#include "tests/kernels/cuda_case.h"

#include "kernels/cuda/cuda_device.h"

enum { NEURONS = 512, OUTPUTS = 264, STEP_MOST = NUMERICS_DECODE_ROWS + 4 };

/* Of every three neurons of a token one is active, but some blocks have none. */
static void thin_out(struct test_case *c)
{
    for (int64_t i = 0; i < (int64_t)c->T * c->in_width[0]; i++)
        if (random_in(0, 2) || i / 32 % 5 == 1)
            c->in[0][i] = 0;
}

/* The case's output with a threshold, of rows [from, from + T). */
static float *output_of(const struct test_case *all, int32_t from, int32_t T, float threshold)
{
    struct test_case c = *all;
    const struct step step = plain_step(T);
    float *out = test_calloc((size_t)T * (size_t)c.out_width[0], sizeof *out);
    float *outs[RECORD_OUTPUTS] = {out};
    c.T = T;
    c.op.threshold = threshold;
    for (int i = 0; i < c.n_in; i++)
        c.in[i] += (int64_t)from * c.in_width[i];
    run_case(device[1], &c, &step, outs);
    return out;
}

/* Steps of any length, and whether zeros are skipped, change no bit. */
static void check_same_bits(const struct test_case *c)
{
    static const int32_t lengths[] = {1, 3, 5, 11};
    const int32_t width = c->out_width[0];
    float *all = output_of(c, 0, STEP_MOST, 0);
    for (int i = 0, from = 0; i < (int)ARRAY_LEN(lengths); from += lengths[i++]) {
        float *some = output_of(c, from, lengths[i], i % 2 ? 0 : -1);
        for (int32_t j = 0; j < lengths[i] * width; j++)
            assert_true(some[j] == all[from * width + j]);
        test_free(some);
    }
    test_free(all);
}

/* Down of all neurons, or of those of a list, which leaves some blocks one member. */
static void check_columns(oato_dtype dtype, bool listed, int32_t T)
{
    int32_t list[NEURONS], n = 0;
    size_t row;
    for (int32_t i = 0; i < NEURONS; i++)
        if (!listed || i % 32 == 7 || (i / 32 % 2 && random_in(0, 2)))
            list[n++] = i;
    char key[OP_KEY_SIZE];
    snprintf(key, sizeof key, "mul_mat/%s/k%d/n%d/z1", dtype_name(dtype), n, OUTPUTS);
    struct test_case c = case_of(key, T);
    assert_true(dtype_row_bytes(dtype, NEURONS, &row));
    uint8_t *data = test_malloc(OUTPUTS * row);
    random_elements(dtype, data, OUTPUTS * NEURONS);
    give_input(&c, n);
    thin_out(&c);
    c.n_weights = 1;
    c.weight[0] = (struct weight_source){.data = data,
                                         .dtype = dtype,
                                         .k = n,
                                         .n = OUTPUTS,
                                         .row_end = OUTPUTS,
                                         .row_stride = row,
                                         .use = WEIGHT_COLUMNS,
                                         .list = listed ? list : NULL};
    if (!device[1]->ops->supports(device[1], &c.op))
        fail_msg("%s is not supported", key);
    assert_string_equal(device[1]->ops->numerics(device[1], &c.op, NUMERICS_PREFILL), "f32");
    const struct step step = plain_step(T);
    compare(&c, &step, 1e-11);
    if (T == STEP_MOST)
        check_same_bits(&c);
    free_case(&c);
}

static void columns_of_silent_neurons_are_skipped(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++) {
        check_columns(matrix_types[i], i % 2, 1);
        check_columns(matrix_types[i], !(i % 2), 3);
    }
    check_columns(DT_Q4_0, true, STEP_MOST);
    check_columns(DT_BF16, false, STEP_MOST);
}

/* The dense product's results where |activation| > threshold, 0 elsewhere, in both classes. */
static void check_gate_up(oato_dtype dtype, int32_t k, int32_t T, enum activation a)
{
    enum { ROWS = 75 };
    char key[OP_KEY_SIZE];
    snprintf(key, sizeof key, "gate_up/%s/k%d/n%d", dtype_name(dtype), k, ROWS);
    struct test_case c = case_of(key, T);
    c.op.activation = (int32_t)a;
    give_input(&c, k);
    give_weights(&c);
    for (int prefill = 0; prefill < 2; prefill++) {
        float top = 0;
        int32_t skipped = 0;
        c.numerics = prefill ? NUMERICS_PREFILL : NUMERICS_DECODE;
        c.op.sparse = SPARSE_OFF;
        c.weight[1].use = WEIGHT_MATRIX;
        float *dense = output_of(&c, 0, T, 0);
        for (int32_t i = 0; i < T * ROWS; i++)
            top = fabsf(dense[i]) > top ? fabsf(dense[i]) : top;
        c.op.sparse = SPARSE_ABOVE;
        c.weight[1].use = WEIGHT_ROWS;
        for (int how = -1; how < 2; how++) {
            float *got = output_of(&c, 0, T, how < 1 ? (float)how : 0.1f * sqrtf(top));
            for (int32_t i = 0; i < T * ROWS; i++) {
                assert_true(got[i] == dense[i] || (how == 1 && got[i] == 0));
                skipped += how == 1 && got[i] != dense[i];
            }
            test_free(got);
        }
        assert_true(skipped > 0 && skipped < T * ROWS);
        test_free(dense);
    }
    free_case(&c);
}

static void up_is_computed_of_active_neurons(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++)
        check_gate_up(matrix_types[i], 256, i % 2 ? 3 : 1, i % 3 ? ACT_RELU : ACT_SILU);
    check_gate_up(DT_Q4_0, 4096, 2, ACT_RELU); /* shared by warps */
    check_gate_up(DT_Q8_0, 256, 7, ACT_RELU_SQUARED);
    check_gate_up(DT_F16, 64, 10, ACT_RELU);
}

/* Every third neuron or so; of the last token none. */
static void give_list(struct test_case *c, bool *named)
{
    const int32_t n = c->op.n;
    give_input(c, n + 1);
    for (int32_t t = 0; t < c->T; t++) {
        float *list = c->in[1] + (int64_t)t * (n + 1);
        list[0] = 0;
        for (int32_t i = 0; i < n; i++) {
            named[t * n + i] = t + 1 < c->T && random_in(0, 2) == 0;
            if (named[t * n + i])
                list[1 + (int32_t)list[0]++] = (float)i;
        }
    }
}

/* The dense product's results for listed neurons, of a GATE_UP the active ones, elsewhere nothing.
 */
static void check_listed(const char *kind, oato_dtype dtype, int32_t k)
{
    enum { ROWS = 75, TOKENS = 3 };
    char key[OP_KEY_SIZE];
    bool named[TOKENS * ROWS] = {false};
    snprintf(key, sizeof key, "%s/%s/k%d/n%d", kind, dtype_name(dtype), k, ROWS);
    struct test_case c = case_of(key, TOKENS);
    c.op.activation = ACT_RELU;
    give_input(&c, k);
    give_weights(&c);
    float *dense = output_of(&c, 0, TOKENS, 0);
    c.op.sparse = SPARSE_BY_ROWS;
    for (int i = 0; i < c.n_weights; i++)
        c.weight[i].use = WEIGHT_ROWS;
    float *all = output_of(&c, 0, TOKENS, 0);
    c.op.sparse = SPARSE_PREDICT;
    give_list(&c, named);
    float *got = output_of(&c, 0, TOKENS, 0);
    for (int32_t i = 0; i < TOKENS * ROWS; i++) {
        const float none = c.op.kind == OP_GATE_UP ? 0 : -INFINITY;
        assert_true(all[i] == dense[i] && got[i] == (named[i] ? dense[i] : none));
    }
    test_free(dense);
    test_free(all);
    test_free(got);
    free_case(&c);
}

static void listed_neurons_are_computed(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++)
        check_listed(i % 2 ? "gate_up" : "mul_mat", matrix_types[i], 256);
    check_listed("gate_up", DT_Q4_0, 2048); /* shared by two warps, and four */
    check_listed("gate_up", DT_F16, 4096);
    check_listed("mul_mat", DT_Q8_0, 4096);
}

static void lists_are_those_of_the_reference(void **state)
{
    (void)state;
    static const float thresholds[] = {-100, 0, 1.5f, 100};
    for (size_t i = 0; i < 2 * ARRAY_LEN(thresholds); i++) {
        const float threshold = thresholds[i / 2];
        struct test_case c = case_of("active/k2100", 3);
        c.op.threshold = threshold;
        give_input(&c, c.op.k);
        if (i % 2)
            give_weights(&c);
        const float *bias = i % 2 ? (const float *)(const void *)c.weight[0].data : NULL;
        c.in[0][7] = threshold; /* equal is not above */
        c.in[0][8] = NAN;
        float *list = output_of(&c, 0, 3, threshold);
        for (int32_t t = 0; t < 3; t++) {
            const float *x = c.in[0] + t * c.op.k, *at = list + t * c.op.n;
            int32_t n = 0;
            for (int32_t j = 0; j < c.op.k; j++)
                if (x[j] + (bias ? bias[j] : 0) > threshold)
                    assert_true(at[++n] == (float)j);
            assert_true(at[0] == (float)n);
        }
        test_free(list);
        free_case(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(columns_of_silent_neurons_are_skipped),
        cmocka_unit_test(up_is_computed_of_active_neurons),
        cmocka_unit_test(listed_neurons_are_computed),
        cmocka_unit_test(lists_are_those_of_the_reference),
    };
    RUN_ON_DEVICES(tests);
}
