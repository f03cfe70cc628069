/*
 * test_cuda_sparse.c - products with the rows of a list, and sums of such rows, on a CUDA device:
 * close to a double evaluation of the rows that the list names, with the bits of the dense product,
 * whatever the list's order, and with none read or written beyond it. Runs on the emulated GPU of
 * tests/cuda_on_cpu/ (OATO_CUDA_DRIVER) and, labelled gpu, on a real one; without any it is
 * skipped.
 */
#include "tests/kernels/cuda_case.h"

#include "kernels/cuda/cuda_layout.h"
#include "kernels/cuda/cuda_record.h"

enum { TOKENS_MOST = 3, NEURONS_MOST = 128 };

/* ------------------------------------------------------------------------------- launches - */

static void launch(const char *kernel, oato_dtype dtype, const uint32_t grid[3], uint32_t threads,
                   void *args)
{
    struct cuda_device *d = cuda_of(device[1]);
    char name[64];
    cu_function f;
    snprintf(name, sizeof name, kernel, dtype_name(dtype));
    cuda_enter(d);
    if (cuda_kernel(d, name, &f) ||
        d->cu->launch(f, grid[0], grid[1], grid[2], threads, 1, 1, 0, d->queue.stream,
                      (void *[]){args}, NULL) ||
        d->cu->stream_synchronize(d->queue.stream))
        fail_msg("%s failed", name);
}

static void *copied(const void *from, uint64_t bytes)
{
    void *p = at(device[1], bytes);
    upload(device[1], p, 0, from, bytes);
    return p;
}

static void read_back(void *to, const void *from, uint64_t bytes)
{
    struct oato_error err;
    if (device[1]->ops->download(device[1], to, from, 0, bytes, NULL, &err))
        fail_msg("%s", err.text);
}

static void forget(const void *p, uint64_t bytes)
{
    device[1]->ops->free(device[1], (void *)(uintptr_t)p, bytes);
}

/* --------------------------------------------------------------------------------- lists -- */

enum order { IN_ORDER, SHUFFLED, REPEATED, ORDERS };

/* Of each token a list of its own. */
struct lists {
    int32_t tokens, most, count[TOKENS_MOST], index[TOKENS_MOST][NEURONS_MOST];
};

static int by_number(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* counts[t] <= rows of them by chance; the places behind name rows that there are not. */
static struct lists lists_make(int32_t tokens, int32_t most, int32_t rows, const int32_t *counts,
                               enum order order)
{
    struct lists x = {.tokens = tokens, .most = most};
    assert_true(tokens <= TOKENS_MOST && most <= NEURONS_MOST && rows <= NEURONS_MOST);
    for (int32_t t = 0; t < tokens; t++) {
        int32_t all[NEURONS_MOST] = {0};
        for (int32_t i = 0; i < rows; i++) {
            const int32_t j = (int32_t)random_in(0, i);
            all[i] = all[j];
            all[j] = i;
        }
        if (order == IN_ORDER)
            qsort(all, (size_t)counts[t], sizeof *all, by_number);
        x.count[t] = counts[t];
        for (int32_t i = 0; i < most; i++)
            x.index[t][i] = i >= counts[t]      ? INT32_MAX
                            : order == REPEATED ? (int32_t)random_in(0, rows - 1)
                                                : all[i];
    }
    return x;
}

static uint64_t places_bytes(const struct lists *x)
{
    return (uint64_t)x->tokens * (uint64_t)x->most * sizeof(float);
}

static struct cuda_row_list lists_upload(const struct lists *x)
{
    int32_t *index = at(device[1], places_bytes(x));
    const uint64_t row = (uint64_t)x->most * sizeof *index;
    for (int32_t t = 0; t < x->tokens; t++)
        upload(device[1], index, (uint64_t)t * row, x->index[t], row);
    return (struct cuda_row_list){.index = index,
                                  .count = copied(x->count, (uint64_t)x->tokens * sizeof(int32_t)),
                                  .most = x->most};
}

static void lists_forget(const struct lists *x, const struct cuda_row_list *list)
{
    forget(list->index, places_bytes(x));
    forget(list->count, (uint64_t)x->tokens * sizeof(int32_t));
}

/* -------------------------------------------------------------------------------- weights - */

struct matrix {
    struct weight_source source;
    struct oato_weight *weight;
    struct cuda_matrix m;
};

static void matrix_make(struct matrix *x, oato_dtype dtype, int32_t rows, int32_t k)
{
    struct oato_error err;
    size_t row;
    uint64_t offset[CUDA_PLANES];
    assert_true(dtype_row_bytes(dtype, k, &row));
    uint8_t *data = test_malloc((size_t)rows * row);
    random_elements(dtype, data, (int64_t)rows * k);
    x->source = (struct weight_source){
        .data = data, .dtype = dtype, .k = k, .n = rows, .row_end = rows, .use = WEIGHT_MATRIX};
    if (device[1]->ops->prepare(device[1], &x->source, &x->weight, &err))
        fail_msg("%s", err.text);
    x->m = (struct cuda_matrix){.rows = rows, .k = k, .dtype = (int32_t)dtype};
    cuda_layout_planes(dtype, rows, k, offset);
    for (int p = 0; p < CUDA_PLANES; p++)
        x->m.plane[p] = x->weight->data + offset[p];
}

static void matrix_free(struct matrix *x)
{
    device[1]->ops->weight_free(device[1], x->weight);
    test_free((void *)(uintptr_t)x->source.data);
}

static void matrix_row(const struct matrix *x, int32_t row, float *out)
{
    size_t bytes = 0;
    dtype_row_bytes(x->source.dtype, x->source.k, &bytes);
    quants_row(x->source.dtype, (const uint8_t *)x->source.data + (size_t)row * bytes, x->source.k,
               out);
}

/* ------------------------------------------------------------------------------- products - */

/* Rows of one matrix, or of gate and up. x: a row of k for each token. y: places, as the device has
 * them before and afterwards. */
static void run_rows(const struct matrix *w, int matrices, const struct lists *lists,
                     const float *x, int32_t split, float *y)
{
    const oato_dtype dtype = w->source.dtype;
    const int32_t k = (int32_t)w->source.k;
    const uint32_t tokens = (uint32_t)lists->tokens;
    const uint64_t x_bytes = tokens * (uint64_t)k * sizeof(float);
    const float *given = copied(x, x_bytes);
    struct cuda_sparse_rows_args a = {.list = lists_upload(lists),
                                      .y = copied(y, places_bytes(lists)),
                                      .x = (const uint8_t *)given,
                                      .x_stride = (uint64_t)k * sizeof(float),
                                      .gate_up = matrices == 2,
                                      .split = split};
    for (int i = 0; i < matrices; i++)
        a.w[i] = w[i].m;
    struct cuda_pack_args pack = {.x = given, .k = k};
    if (cuda_has_blocks(dtype)) {
        pack.stride = CUDA_PACK_BYTES((uint64_t)k);
        pack.out = at(device[1], tokens * pack.stride);
        launch("pack_q8", dtype, (uint32_t[3]){blocks_of(k, PACK_WARPS * 32), tokens, 1},
               PACK_WARPS * 32, &pack);
        a.x = pack.out;
        a.x_stride = pack.stride;
    }
    const uint32_t units = blocks_of(lists->most, matrices == 2 ? 1 : 2);
    launch("sparse_rows_%s", dtype,
           (uint32_t[3]){blocks_of((int64_t)units * split, MATVEC_WARPS), tokens, 1},
           MATVEC_WARPS * 32, &a);
    read_back(y, a.y, places_bytes(lists));
    if (pack.out)
        forget(pack.out, tokens * pack.stride);
    forget(given, x_bytes);
    forget(a.y, places_bytes(lists));
    lists_forget(lists, &a.list);
}

static double dot_of(const float *a, const float *b, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static const float untouched = 12345.5f;

static void check_rows(oato_dtype dtype, int32_t rows, int32_t k, int matrices,
                       const struct lists *lists, int32_t split)
{
    struct matrix w[2] = {0};
    float *x = test_malloc((size_t)(lists->tokens * k) * sizeof *x);
    float *row = test_malloc((size_t)k * sizeof *row);
    float y[TOKENS_MOST * NEURONS_MOST];
    double error = 0, energy = 0;
    for (int i = 0; i < matrices; i++)
        matrix_make(&w[i], dtype, rows, k);
    random_floats(x, (int64_t)lists->tokens * k);
    for (int32_t i = 0; i < lists->tokens * lists->most; i++)
        y[i] = untouched;
    run_rows(w, matrices, lists, x, split, y);
    if (cuda_has_blocks(dtype))
        round_blocks(x, (int64_t)lists->tokens * k);
    for (int32_t t = 0; t < lists->tokens; t++)
        for (int32_t i = 0; i < lists->most; i++) {
            const float got = y[t * lists->most + i];
            if (i >= lists->count[t]) {
                assert_true(got == untouched);
                continue;
            }
            matrix_row(&w[0], lists->index[t][i], row);
            double wanted = dot_of(row, x + (int64_t)t * k, k);
            if (matrices == 2) {
                matrix_row(&w[1], lists->index[t][i], row);
                wanted = wanted / (1 + exp(-wanted)) * dot_of(row, x + (int64_t)t * k, k);
            }
            error += ((double)got - wanted) * ((double)got - wanted);
            energy += wanted * wanted;
        }
    if (!(error <= 1e-10 * energy))
        fail_msg("%s k %d%s split %d: NMSE %.3g", dtype_name(dtype), (int)k,
                 matrices == 2 ? " gate and up" : "", (int)split, error / energy);
    for (int i = 0; i < matrices; i++)
        matrix_free(&w[i]);
    test_free(x);
    test_free(row);
}

/* A full list, an empty one, and one of some rows. */
static void rows_of_a_list_are_multiplied(void **state)
{
    (void)state;
    enum { ROWS = 45 };
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++)
        for (int how = 0; how < 2 * ORDERS; how++) {
            const int32_t counts[] = {ROWS, 0, (int32_t)random_in(1, ROWS - 1)};
            const struct lists lists = lists_make(3, ROWS + how, ROWS, counts, how / 2);
            check_rows(matrix_types[i], ROWS, how == 3 ? 768 : 256, 1 + how % 2, &lists, 1);
        }
}

static void long_rows_are_shared_by_warps(void **state)
{
    (void)state;
    static const oato_dtype types[] = {DT_F32, DT_BF16, DT_Q4_0, DT_Q6_K};
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        for (int how = 0; how < 4; how++) {
            const int32_t counts[] = {(int32_t)random_in(0, 11), 11};
            const struct lists lists = lists_make(2, 11, 13, counts, SHUFFLED);
            check_rows(types[i], 13, 4096, 1 + how % 2, &lists, how / 2 ? MATVEC_WARPS : 2);
        }
}

/* The dense operator, and its rows by a list: the same bits, wherever the list has them. */
static void rows_have_the_bits_of_the_dense_product(void **state)
{
    (void)state;
    enum { ROWS = 33, K = 512 };
    for (size_t i = 0; i < 2 * ARRAY_LEN(matrix_types); i++) {
        const int matrices = 1 + (int)(i % 2);
        const oato_dtype dtype = matrix_types[i / 2];
        char key[OP_KEY_SIZE];
        struct matrix w[2] = {0};
        float dense[ROWS], sparse[ROWS] = {0}, *outs[RECORD_OUTPUTS] = {dense};
        const int32_t count = (int32_t)random_in(1, ROWS);
        const struct lists lists = lists_make(1, ROWS, ROWS, &count, SHUFFLED);
        snprintf(key, sizeof key, "%s/%s/k%d/n%d", matrices == 2 ? "gate_up" : "mul_mat",
                 dtype_name(dtype), K, ROWS);
        struct test_case c = case_of(key, 1);
        struct step step = plain_step(1);
        give_input(&c, K);
        for (c.n_weights = 0; c.n_weights < matrices; c.n_weights++) {
            matrix_make(&w[c.n_weights], dtype, ROWS, K);
            c.weight[c.n_weights] = w[c.n_weights].source;
        }
        run_case(device[1], &c, &step, outs);
        run_rows(w, matrices, &lists, c.in[0], 1, sparse);
        for (int32_t j = 0; j < count; j++)
            assert_memory_equal(&sparse[j], &dense[lists.index[0][j]], sizeof(float));
        for (int j = 0; j < matrices; j++)
            matrix_free(&w[j]);
        c.n_weights = 0;
        free_case(&c);
    }
}

/* ----------------------------------------------------------------------------------- sums - */

/* factor: places. y: a row of k for each token, which the device adds to. */
static void run_sum(const struct matrix *w, const struct lists *lists, const float *factor,
                    float *y)
{
    const int32_t k = (int32_t)w->source.k, slices = cuda_sparse_slices(k, lists->most);
    const uint32_t tokens = (uint32_t)lists->tokens;
    const uint64_t y_bytes = tokens * (uint64_t)k * sizeof(float);
    struct cuda_sparse_sum_args a = {.w = w->m,
                                     .list = lists_upload(lists),
                                     .factor = copied(factor, places_bytes(lists)),
                                     .partial = at(device[1], y_bytes * (uint64_t)slices),
                                     .y = copied(y, y_bytes),
                                     .slices = slices};
    launch("sparse_sum_%s", w->source.dtype,
           (uint32_t[3]){blocks_of(k, SPARSE_COLUMNS), (uint32_t)slices, tokens}, SPARSE_WARPS * 32,
           &a);
    launch("sparse_merge", w->source.dtype, (uint32_t[3]){blocks_of(k, ROW_THREADS), tokens, 1},
           ROW_THREADS, &a);
    read_back(y, a.y, y_bytes);
    forget(a.factor, places_bytes(lists));
    forget(a.partial, y_bytes * (uint64_t)slices);
    forget(a.y, y_bytes);
    lists_forget(lists, &a.list);
}

static void check_sum(oato_dtype dtype, int32_t rows, int32_t k, const struct lists *lists)
{
    struct matrix w;
    const size_t n = (size_t)lists->tokens * (size_t)k, bytes = n * sizeof(float);
    float *before = test_malloc(bytes), *got[2] = {test_malloc(bytes), test_malloc(bytes)};
    float *row = test_malloc((size_t)k * sizeof *row), factor[TOKENS_MOST * NEURONS_MOST];
    double *wanted = test_malloc(n * sizeof *wanted);
    matrix_make(&w, dtype, rows, k);
    random_floats(before, (int64_t)n);
    random_floats(factor, (int64_t)lists->tokens * lists->most);
    for (size_t i = 0; i < n; i++)
        wanted[i] = (double)before[i];
    for (int32_t t = 0; t < lists->tokens; t++)
        for (int32_t i = 0; i < lists->most; i++) {
            float *by = &factor[t * lists->most + i];
            if (i >= lists->count[t]) {
                *by = NAN; /* shows where it is read */
                continue;
            }
            matrix_row(&w, lists->index[t][i], row);
            for (int32_t j = 0; j < k; j++)
                wanted[t * k + j] += (double)*by * (double)row[j];
        }
    for (int turn = 0; turn < 2; turn++) { /* the emulated GPU runs threads in another order */
        memcpy(got[turn], before, bytes);
        run_sum(&w, lists, factor, got[turn]);
    }
    assert_memory_equal(got[0], got[1], bytes);
    assert_close(got[0], wanted, (int64_t)n, 1e-11);
    matrix_free(&w);
    test_free(before);
    test_free(got[0]);
    test_free(got[1]);
    test_free(row);
    test_free(wanted);
}

static void rows_of_a_list_are_added_up(void **state)
{
    (void)state;
    enum { ROWS = 100 };
    for (size_t i = 0; i < ARRAY_LEN(matrix_types); i++)
        for (int order = 0; order < ORDERS; order++) {
            const int32_t counts[] = {ROWS, 0, (int32_t)random_in(1, ROWS - 1)};
            const struct lists lists = lists_make(3, ROWS + order * 9, ROWS, counts, order);
            check_sum(matrix_types[i], ROWS, order ? 512 : 256, &lists);
        }
}

/* Columns of a few blocks, and more than whole groups of them. */
static void odd_widths_are_added_up(void **state)
{
    (void)state;
    static const oato_dtype types[] = {DT_F32,  DT_F16,  DT_BF16,   DT_Q4_0, DT_Q4_1,
                                       DT_Q5_0, DT_Q8_0, DT_IQ4_NL, DT_MXFP4};
    static const int32_t widths[] = {32, 96, 288, 576};
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        for (size_t k = 0; k < ARRAY_LEN(widths); k++) {
            const int32_t count = (int32_t)random_in(0, 40);
            const struct lists lists = lists_make(1, 40, 50, &count, SHUFFLED);
            check_sum(types[i], 50, widths[k] + (cuda_has_blocks(types[i]) ? 0 : 8), &lists);
        }
}

static void an_empty_list_adds_nothing(void **state)
{
    (void)state;
    struct matrix w;
    const int32_t none = 0;
    const struct lists lists = lists_make(1, 7, 5, &none, IN_ORDER);
    const float factor[7] = {1, 1, 1, 1, 1, 1, 1};
    float y[256], before[256];
    matrix_make(&w, DT_Q4_K, 5, 256);
    random_floats(before, 256);
    memcpy(y, before, sizeof y);
    run_sum(&w, &lists, factor, y);
    assert_memory_equal(y, before, sizeof y);
    matrix_free(&w);
}

/* ------------------------------------------------------------------------------ operators - */

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
        c.op.sparse = SKIP_NOTHING;
        c.weight[1].use = WEIGHT_MATRIX;
        float *dense = output_of(&c, 0, T, 0);
        for (int32_t i = 0; i < T * ROWS; i++)
            top = fabsf(dense[i]) > top ? fabsf(dense[i]) : top;
        c.op.sparse = SKIP_ZEROS;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_list_are_multiplied),
        cmocka_unit_test(long_rows_are_shared_by_warps),
        cmocka_unit_test(rows_have_the_bits_of_the_dense_product),
        cmocka_unit_test(rows_of_a_list_are_added_up),
        cmocka_unit_test(odd_widths_are_added_up),
        cmocka_unit_test(an_empty_list_adds_nothing),
        cmocka_unit_test(columns_of_silent_neurons_are_skipped),
        cmocka_unit_test(up_is_computed_of_active_neurons),
    };
    RUN_ON_DEVICES(tests);
}
