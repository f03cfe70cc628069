/*
 * test_cuda_blas.c - products of F16 and BF16 weights by cuBLAS: right beside the CPU's reference
 * in every shape and for parts of matrices, only for records that ask for the library's class, and
 * our own kernels wherever the library is not there, too old or of no use. A product that it
 * refuses ends the device with one line.
 *
 * Runs on the emulated GPU and cuBLAS of tests/cuda_on_cpu/ (OATO_CUDA_DRIVER, OATO_CUDA_BLAS) and,
 * labelled gpu, on real ones; without a GPU it is skipped.
 */
#include "kernels/cuda/cuda_device.h"
#include "tests/kernels/cuda_case.h"

#include <sys/wait.h>

enum { K = 256, N = 37, MANY = 33 };

static const oato_dtype types[] = {DT_F16, DT_BF16};

static bool emulated(void)
{
    return getenv("OATO_CUDA_DRIVER") != NULL;
}

static bool is_class(struct oato_device *d, const char *key, enum numerics_choice choice,
                     const char *wanted)
{
    const struct test_case c = case_of(key, 1);
    return !strcmp(d->ops->numerics(d, &c.op, choice), wanted);
}

static bool is_here(struct oato_device *d)
{
    return is_class(d, "mul_mat/F16/k256/n37", NUMERICS_LIBRARY, "f16.cublas");
}

static struct test_case product_case(const char *key, int32_t T)
{
    struct test_case c = case_of(key, T);
    c.numerics = NUMERICS_LIBRARY;
    give_input(&c, c.op.k);
    give_weights(&c);
    return c;
}

/* ------------------------------------------------------------------------------ products -- */

static void check_product(const char *key, int32_t T)
{
    struct test_case c = product_case(key, T);
    struct step step = plain_step(T);
    compare(&c, &step, 1e-10);
    free_case(&c);
}

/* Larger steps make the workspace move, and smaller ones find it where it went. */
static void products_of_every_shape(void **state)
{
    static const int32_t rows[] = {17, 70, 33, 128, 20};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        for (size_t t = 0; t < ARRAY_LEN(rows); t++) {
            const char *type = dtype_name(types[i]);
            char key[OP_KEY_SIZE];
            snprintf(key, sizeof key, "mul_mat/%s/k512/n%d", type, (int)random_in(30, 70));
            check_product(key, rows[t]);
            snprintf(key, sizeof key, "mul_mat/%s/k96/n1", type);
            check_product(key, rows[t]);
            snprintf(key, sizeof key, "qkv/%s/k256/n%d/m%d", type, (int)random_in(30, 90),
                     (int)random_in(15, 30));
            check_product(key, rows[t]);
            snprintf(key, sizeof key, "gate_up/%s/k768/n%d", type, (int)random_in(15, 40));
            check_product(key, rows[t]);
        }
}

/* Weights with blocks are rounded to halves, as many rows at a time as there is room for. */
static void weights_with_blocks_become_halves(void **state)
{
    static const char *const keys[] = {"mul_mat/Q4_0/k512/n150", "mul_mat/Q8_0/k96/n1",
                                       "qkv/Q4_K/k256/n192/m64", "gate_up/Q6_K/k768/n100",
                                       "mul_mat/Q2_K/k256/n70",  "mul_mat/IQ4_XS/k256/n64",
                                       "gate_up/MXFP4/k256/n130"};
    (void)state;
    struct cuda_device *d = cuda_of(device[1]);
    const uint64_t all = d->blas.halves_bytes;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        for (int slices = 0; slices < 2; slices++) {
            d->blas.halves_bytes = slices ? 1 : all;
            struct test_case c = product_case(keys[i], MANY);
            struct step step = plain_step(MANY);
            assert_true(is_class(device[1], keys[i], NUMERICS_LIBRARY, "f16.cublas"));
            compare(&c, &step, 1e-6);
            free_case(&c);
        }
    d->blas.halves_bytes = all;
}

/* As by our own kernels: see test_cuda_numbers.c. */
static void inputs_may_be_larger_than_halves(void **state)
{
    static const char *const keys[] = {"mul_mat/F16/k256/n37", "gate_up/BF16/k256/n37",
                                       "mul_mat/Q4_0/k256/n37", "gate_up/Q6_K/k256/n37"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        struct test_case c = product_case(keys[i], MANY);
        struct step step = plain_step(MANY);
        scale_input(&c, 1e5f);
        compare(&c, &step, 1e-6);
        free_case(&c);
    }
}

/* A row with a number that is none has no other results; the rest have their bits. */
static void what_is_no_number_stays_none(void **state)
{
    enum { ROW = 12 };
    static const char *const keys[] = {"mul_mat/F16/k256/n37", "mul_mat/BF16/k256/n37",
                                       "mul_mat/Q4_0/k256/n37"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        float with[MANY * N], without[MANY * N];
        struct step step = plain_step(MANY);
        struct test_case c = product_case(keys[i], MANY);
        run_case(device[1], &c, &step, (float *[RECORD_OUTPUTS]){without});
        c.in[0][ROW * K + 5] = NAN;
        run_case(device[1], &c, &step, (float *[RECORD_OUTPUTS]){with});
        for (int n = 0; n < MANY * N; n++)
            if (n / N == ROW)
                assert_true(isnan(with[n]));
            else
                assert_memory_equal(&with[n], &without[n], sizeof with[n]);
        free_case(&c);
    }
}

static void products_with_parts_of_matrices(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        char key[OP_KEY_SIZE];
        snprintf(key, sizeof key, "mul_mat/%s/k256/n192", dtype_name(types[i]));
        struct test_case c = product_case(key, MANY);
        struct step step = plain_step(MANY);
        c.op.n = c.out_width[0] = 64;
        c.weight[0].row_begin = 64;
        c.weight[0].row_end = 128;
        compare(&c, &step, 1e-10);
        /* the columns behind the first 128, as a part along k has them */
        c.op.n = c.out_width[0] = 192;
        c.op.k = 128;
        c.in_width[0] = 128;
        c.weight[0] = (struct weight_source){.data = (const uint16_t *)c.weight[0].data + 128,
                                             .dtype = types[i],
                                             .k = 128,
                                             .n = 192,
                                             .row_end = 192,
                                             .row_stride = 256 * sizeof(uint16_t),
                                             .use = WEIGHT_MATRIX};
        compare(&c, &step, 1e-10);
        c.weight[0].data = (const uint16_t *)c.weight[0].data - 128;
        free_case(&c);
    }
}

/* Both of many rows, one after the other: what class a record has is its own business. */
static void outputs_of(struct oato_device *d, struct test_case *c, enum numerics_choice numerics,
                       float *out)
{
    struct step step = plain_step(c->T);
    float *outs[RECORD_OUTPUTS] = {out};
    c->numerics = numerics;
    run_case(d, c, &step, outs);
}

/* A step of few rows has the bits of decode, and a graph of it nothing of the library's. */
static void few_rows_are_computed_as_in_decode(void **state)
{
    (void)state;
    static const char *const keys[] = {"mul_mat/F16/k256/n37", "gate_up/BF16/k256/n37",
                                       "mul_mat/Q4_0/k256/n37", "gate_up/Q6_K/k256/n37"};
    static const int32_t rows[] = {1, 3, NUMERICS_DECODE_ROWS};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        for (size_t t = 0; t < ARRAY_LEN(rows); t++) {
            float own[NUMERICS_DECODE_ROWS * N], library[NUMERICS_DECODE_ROWS * N];
            struct test_case c = product_case(keys[i], rows[t]);
            outputs_of(device[1], &c, NUMERICS_DECODE, own);
            outputs_of(device[1], &c, NUMERICS_LIBRARY, library);
            assert_memory_equal(own, library, (size_t)rows[t] * N * sizeof(float));
            free_case(&c);
        }
}

/* The emulated library adds in another order than our kernels: had it computed a record that does
 * not ask for it, or our kernel one that does, this would show. */
static void only_records_that_ask_are_computed_by_it(void **state)
{
    (void)state;
    float own[MANY * N], library[MANY * N], again[MANY * N];
    struct test_case c = product_case("mul_mat/F16/k256/n37", MANY);
    outputs_of(device[1], &c, NUMERICS_PREFILL, own);
    outputs_of(device[1], &c, NUMERICS_LIBRARY, library);
    outputs_of(device[1], &c, NUMERICS_LIBRARY, again);
    assert_memory_equal(library, again, sizeof library);
    outputs_of(device[1], &c, NUMERICS_PREFILL, again);
    assert_memory_equal(own, again, sizeof own);
    if (emulated())
        assert_memory_not_equal(own, library, sizeof own);
    free_case(&c);
}

static void classes_say_who_computes(void **state)
{
    (void)state;
    static const struct {
        const char *key, *prefill, *library;
    } cases[] = {
        {"mul_mat/F16/k256/n64", "f16", "f16.cublas"},
        {"qkv/BF16/k256/n64/m32", "bf16", "bf16.cublas"},
        {"gate_up/F16/k256/n64", "f16", "f16.cublas"},
        {"mul_mat/F32/k256/n64", "f32", "f32"},
        {"mul_mat/Q4_0/k256/n64", "a8b32s", "f16.cublas"},
        {"expert_gate_up/F16/k256/n64/e4/u2", "f16", "f16"},
        {"embed/F16/k256/n64", "f32", "f32"},
        {"attention/F16/h4/g2/d64", "f16", "f16"},
        {"add/k256", "f32", "f32"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        if (!is_class(device[1], cases[i].key, NUMERICS_PREFILL, cases[i].prefill) ||
            !is_class(device[1], cases[i].key, NUMERICS_LIBRARY, cases[i].library))
            fail_msg("%s is of another class", cases[i].key);
    const struct test_case c = case_of(cases[0].key, 1);
    const char *own = device[0]->ops->numerics(device[0], &c.op, NUMERICS_PREFILL);
    assert_true(is_class(device[0], cases[0].key, NUMERICS_LIBRARY, own));
}

/* ------------------------------------------------------------------------------- failures - */

/* The device anew, the emulation told so. */
static void reopen(const char *variable, const char *value)
{
    struct oato_error err;
    device[1]->ops->close(device[1]);
    if (value)
        setenv(variable, value, 1);
    else
        unsetenv(variable);
    if (device_open("cuda", 0, NULL, &device[1], &err))
        fail_msg("%s", err.text);
}

static void check_our_kernels_compute(void)
{
    float own[MANY * N], library[MANY * N];
    struct test_case c = product_case("mul_mat/F16/k256/n37", MANY);
    assert_true(is_class(device[1], "mul_mat/F16/k256/n37", NUMERICS_LIBRARY, "f16"));
    outputs_of(device[1], &c, NUMERICS_PREFILL, own);
    outputs_of(device[1], &c, NUMERICS_LIBRARY, library);
    assert_memory_equal(own, library, sizeof own);
    free_case(&c);
}

static void without_the_library_our_kernels_compute(void **state)
{
    (void)state;
    check_our_kernels_compute();
}

/* In a program of its own, which looks for the library anew. */
static void a_library_that_is_missing_is_no_error(void **state)
{
    (void)state;
    char *kept = getenv("OATO_CUDA_BLAS");
    char library[512];
    int status;
    snprintf(library, sizeof library, "%s", kept ? kept : "");
    setenv("OATO_CUDA_BLAS", "/nowhere/libcublas.so", 1);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "test_cuda_blas", "missing", (char *)NULL);
        _exit(127);
    }
    if (kept)
        setenv("OATO_CUDA_BLAS", library, 1);
    else
        unsetenv("OATO_CUDA_BLAS");
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static void a_library_that_is_of_no_use_is_no_error(void **state)
{
    static const char *const cases[][2] = {{"OATO_CUDA_ON_CPU_BLAS_VERSION", "111103"},
                                           {"OATO_CUDA_ON_CPU_FAIL", "handle=1"}};
    (void)state;
    if (!emulated())
        skip();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        reopen(cases[i][0], cases[i][1]);
        check_our_kernels_compute();
        reopen(cases[i][0], NULL);
        assert_true(is_here(device[1]));
    }
}

static void tensor_cores_without_bf16_have_no_library(void **state)
{
    (void)state;
    if (!emulated())
        skip();
    reopen("OATO_CUDA_ON_CPU_CAPABILITY", "75");
    assert_true(is_class(device[1], "mul_mat/BF16/k256/n64", NUMERICS_LIBRARY, "f32"));
    check_product("mul_mat/F16/k256/n37", MANY);
    reopen("OATO_CUDA_ON_CPU_CAPABILITY", NULL);
}

static void a_product_that_is_refused_ends_the_device(void **state)
{
    (void)state;
    struct oato_error err;
    struct oato_weight *weight;
    if (!emulated())
        skip();
    reopen("OATO_CUDA_ON_CPU_FAIL", "product=2");
    struct oato_device *d = device[1];
    struct test_case c = product_case("mul_mat/F16/k256/n37", MANY);
    if (weight_prepare(d, &c.weight[0], &weight, &err))
        fail_msg("%s", err.text);
    const uint64_t bytes = MANY * K * sizeof(float), out_bytes = MANY * N * sizeof(float);
    uint8_t *arena = at(d, bytes + out_bytes);
    const struct program_record r = {.op = c.op,
                                     .n_in = 1,
                                     .n_out = 1,
                                     .n_weights = 1,
                                     .numerics = NUMERICS_LIBRARY,
                                     .kv_layer = -1,
                                     .in_width = {K},
                                     .out = {bytes}};
    struct program_record records[] = {r, r};
    records[1].signal = 1;
    const struct program p = {.records = records,
                              .n_records = 2,
                              .n_signals = 1,
                              .max_tokens = MANY,
                              .max_rows = MANY,
                              .max_seqs = 1,
                              .weights = &weight,
                              .n_weights = 1,
                              .arena = arena};
    struct compiled *program = compile(d, &p);
    struct step step = plain_step(MANY);
    struct timeline *timeline = d->ops->timeline(d);
    uint64_t base = atomic_load(&timeline->value);
    step.timeline = &timeline;
    step.timeline_base = &base;
    assert_int_equal(d->ops->submit(d, program, &step, &err), OATO_OK);
    assert_int_equal(d->ops->finish(d, &err), OATO_EDEVICE);
    assert_string_equal(err.text,
                        "cuda:0: running mul_mat/F16/k256/n37: cuBLAS: the function failed "
                        "to launch on the GPU; OATO_CUDA_BLAS=off does without it");
    d->ops->release(d, program);
    d->ops->free(d, arena, bytes + out_bytes);
    weight_free(d, weight);
    free_case(&c);
    reopen("OATO_CUDA_ON_CPU_FAIL", NULL);
    check_product("mul_mat/F16/k256/n37", MANY);
}

/* A product of 8 x 4 and 4 x 2; rows are `stride` apart. */
static blas_status try_product(const struct cuda_blas_library *blas, blas_handle handle,
                               uint8_t *memory, uint64_t out_at, int stride)
{
    static const float one = 1, zero = 0;
    return blas->multiply(handle, BLAS_TRANSPOSED, BLAS_AS_IT_IS, 8, 2, 4, &one, memory, BLAS_R_16F,
                          stride, memory + 256, BLAS_R_16F, 4, &zero, memory + out_at, BLAS_R_32F,
                          8, BLAS_COMPUTE_32F, BLAS_ALGORITHM_DEFAULT);
}

/* What NVIDIA's would only do wrong, or answer by an allocation of its own. */
static void the_emulation_is_strict(void **state)
{
    enum { NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, ROOM = 16 << 10 };
    (void)state;
    if (!emulated())
        skip();
    struct cuda_device *d = cuda_of(device[1]);
    const struct cuda_blas_library *blas = d->blas.library;
    const uint64_t bytes = 1024 + ROOM;
    uint8_t *memory = at(device[1], bytes);
    blas_handle handle;
    cuda_enter(d);
    assert_int_equal(blas->create(&handle), BLAS_OK);
    assert_int_equal(try_product(blas, handle, memory, 512, 4), NOT_INITIALIZED);
    assert_int_equal(blas->set_stream(handle, d->queue.stream), BLAS_OK);
    assert_int_equal(try_product(blas, handle, memory, 512, 4), ALLOC_FAILED);
    assert_int_equal(blas->set_workspace(handle, memory + 1023, ROOM), INVALID_VALUE);
    assert_int_equal(blas->set_workspace(handle, memory + 1024, ROOM + 1), INVALID_VALUE);
    assert_int_equal(blas->set_workspace(handle, memory + 1024, ROOM), BLAS_OK);
    assert_int_equal(try_product(blas, handle, memory, 512, 3), INVALID_VALUE);
    assert_int_equal(try_product(blas, handle, memory, 256, 4), INVALID_VALUE);
    assert_int_equal(try_product(blas, handle, memory, bytes - 63, 4), INVALID_VALUE);
    assert_int_equal(try_product(blas, handle, memory, 1024, 4), ALLOC_FAILED);
    assert_int_equal(try_product(blas, handle, memory, 512, 4), BLAS_OK);
    assert_int_equal(blas->set_stream(handle, d->queue.stream), BLAS_OK);
    assert_int_equal(try_product(blas, handle, memory, 512, 4), ALLOC_FAILED);
    assert_int_equal(blas->destroy(handle), BLAS_OK);
    device[1]->ops->free(device[1], memory, bytes);
}

/* With an argument, and where there is no cuBLAS: what holds without. */
int main(int argc, char **argv)
{
    const struct CMUnitTest missing[] = {
        cmocka_unit_test(without_the_library_our_kernels_compute),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_every_shape),
        cmocka_unit_test(weights_with_blocks_become_halves),
        cmocka_unit_test(inputs_may_be_larger_than_halves),
        cmocka_unit_test(what_is_no_number_stays_none),
        cmocka_unit_test(products_with_parts_of_matrices),
        cmocka_unit_test(few_rows_are_computed_as_in_decode),
        cmocka_unit_test(only_records_that_ask_are_computed_by_it),
        cmocka_unit_test(classes_say_who_computes),
        cmocka_unit_test(a_library_that_is_missing_is_no_error),
        cmocka_unit_test(a_library_that_is_of_no_use_is_no_error),
        cmocka_unit_test(tensor_cores_without_bf16_have_no_library),
        cmocka_unit_test(a_product_that_is_refused_ends_the_device),
        cmocka_unit_test(the_emulation_is_strict),
    };
    const int cannot = devices_open();
    if (cannot)
        return cannot;
    seed_init();
    const bool told = argc > 1 && !strcmp(argv[1], "missing");
    const bool without = told || (!getenv("OATO_CUDA_BLAS") && !is_here(device[1]));
    const int failed = without ? cmocka_run_group_tests(missing, NULL, NULL)
                               : cmocka_run_group_tests(tests, NULL, NULL);
    devices_close();
    return failed;
}
