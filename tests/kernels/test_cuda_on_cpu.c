/*
 * test_cuda_on_cpu.c - the emulation on which the CUDA device is tested computes what CUDA C means
 * (warps, barriers, shared memory, 8-bit and 16-bit arithmetic, matrix products against plain
 * loops), keeps the order of streams, events and graphs, fails as a driver does, and ends the
 * process where a kernel is wrong in ways that a GPU may let pass.
 */
#include "kernels/cuda/cuda_driver.h"
#include "tests/cuda_on_cpu/selftest.h"
#include "tests/kernels/test_cpu.h"

#include <signal.h>
#include <sys/wait.h>

#if defined __SANITIZE_ADDRESS__
#define ADDRESSES_CHECKED true
#elif defined __has_feature
#if __has_feature(address_sanitizer)
#define ADDRESSES_CHECKED true
#endif
#endif
#ifndef ADDRESSES_CHECKED
#define ADDRESSES_CHECKED false
#endif

enum { WARP = 32, INVALID_VALUE = 1, ILLEGAL_ADDRESS = 700, UNSUPPORTED = 900, INVALIDATED = 901 };

static const struct cuda_driver *cu;
static cu_context context;
static cu_stream stream;
static cu_module module;

#define DO(call)                                                                                   \
    do {                                                                                           \
        cu_result result_ = (call);                                                                \
        if (result_)                                                                               \
            fail_msg("%s gave %d", #call, result_);                                                \
    } while (0)

static void open_driver(void)
{
    struct oato_error err;
    cu = cuda_driver_open(&err);
    if (!cu) {
        fprintf(stderr, "%s (OATO_CUDA_DRIVER must name libcuda-on-cpu.so)\n", err.text);
        exit(EXIT_FAILURE);
    }
}

/* Every test has a context of its own. */
static int open_device(void **state)
{
    (void)state;
    DO(cu->context_retain(&context, 0));
    DO(cu->context_set(context));
    DO(cu->stream_create(&stream, CU_STREAM_NON_BLOCKING));
    DO(cu->module_load(&module, "any image"));
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    DO(cu->module_unload(module));
    DO(cu->stream_destroy(stream));
    DO(cu->context_release(0));
    return 0;
}

static cu_address device_alloc(size_t bytes)
{
    cu_address p;
    DO(cu->memory_alloc(&p, bytes));
    return p;
}

static cu_address device_copy(const void *from, size_t bytes)
{
    cu_address p = device_alloc(bytes);
    DO(cu->upload(p, from, bytes, stream));
    return p;
}

/* Waits, copies back, frees. */
static void take_back(void *to, cu_address from, size_t bytes)
{
    DO(cu->download(to, from, bytes, stream));
    DO(cu->stream_synchronize(stream));
    DO(cu->memory_free(from));
}

static cu_function find(const char *kernel)
{
    cu_function f;
    DO(cu->module_function(&f, module, kernel));
    return f;
}

static cu_result try_launch(const char *kernel, unsigned blocks, unsigned threads, unsigned shared,
                            void *args)
{
    return cu->launch(find(kernel), blocks, 1, 1, threads, 1, 1, shared, stream, (void *[]){args},
                      NULL);
}

static void launch(const char *kernel, unsigned blocks, unsigned threads, unsigned shared,
                   void *args)
{
    DO(try_launch(kernel, blocks, threads, shared, args));
}

/* ------------------------------------------------------------------------- language ------- */

enum { THREADS = 128 };

static void shuffles_take_from_the_right_lane(void **state)
{
    (void)state;
    int32_t value[THREADS], out[THREADS][SHUFFLES];
    for (int i = 0; i < THREADS; i++)
        value[i] = (int32_t)random_in(-1000, 1000);
    struct shuffle_args a = {(void *)device_copy(value, sizeof value),
                             (void *)device_alloc(sizeof out)};
    launch("selftest_shuffle", 1, THREADS, 0, &a);
    take_back(out, (cu_address)a.out, sizeof out);
    DO(cu->memory_free((cu_address)a.value));
    for (int i = 0; i < THREADS; i++) {
        const int32_t *v = value + i / WARP * WARP;
        int lane = i % WARP, sum = 0;
        for (int j = 0; j < WARP; j++)
            sum += v[j];
        const int32_t expected[SHUFFLES] = {
            v[5],
            v[lane / 8 * 8 + (lane + 3) % 8],
            v[lane ^ 16],
            v[lane ^ 3],
            v[lane < 2 ? lane : lane - 2],
            v[lane % 4 < 1 ? lane : lane - 1],
            v[lane + 7 < WARP ? lane + 7 : lane],
            v[lane % 16 + 2 < 16 ? lane + 2 : lane],
            sum,
        };
        for (int s = 0; s < SHUFFLES; s++)
            if (out[i][s] != expected[s])
                fail_msg("thread %d, shuffle %d: %d, not %d", i, s, out[i][s], expected[s]);
    }
}

static void check_votes(const int32_t *bit)
{
    int32_t out[THREADS][VOTES];
    struct vote_args a = {(void *)device_copy(bit, THREADS * sizeof *bit),
                          (void *)device_alloc(sizeof out)};
    launch("selftest_vote", 1, THREADS, 0, &a);
    take_back(out, (cu_address)a.out, sizeof out);
    DO(cu->memory_free((cu_address)a.bit));
    int count = 0;
    for (int i = 0; i < THREADS; i++)
        count += bit[i] != 0;
    for (int i = 0; i < THREADS; i++) {
        uint32_t votes = 0;
        for (int lane = 0; lane < WARP; lane++)
            votes |= (uint32_t)(bit[i / WARP * WARP + lane] != 0) << lane;
        assert_int_equal((uint32_t)out[i][0], votes);
        assert_int_equal((uint32_t)out[i][1], i % WARP < 16 ? votes & 0xffff : votes >> 16 != 0);
        assert_int_equal(out[i][2], votes == 0xffffffff);
        assert_int_equal(out[i][3], count != 0);
        assert_int_equal(out[i][4], count == THREADS);
        assert_int_equal(out[i][5], count);
    }
}

static void votes_are_counted(void **state)
{
    (void)state;
    int32_t bit[THREADS] = {0};
    check_votes(bit);
    bit[77] = 5;
    check_votes(bit);
    for (int i = 0; i < THREADS; i++)
        bit[i] = (int32_t)random_in(0, 1);
    check_votes(bit);
    for (int i = 0; i < THREADS; i++)
        bit[i] = 1;
    check_votes(bit);
}

static void blocks_add_in_shared_memory(void **state)
{
    (void)state;
    enum { BLOCKS = 9 };
    float value[BLOCKS * THREADS], sum[BLOCKS];
    for (int i = 0; i < BLOCKS * THREADS; i++)
        value[i] = (float)random_in(-100, 100);
    struct sum_args a = {(void *)device_copy(value, sizeof value),
                         (void *)device_alloc(sizeof sum)};
    launch("selftest_sum", BLOCKS, THREADS, 0, &a);
    take_back(sum, (cu_address)a.sum, sizeof sum);
    DO(cu->memory_free((cu_address)a.value));
    for (int b = 0; b < BLOCKS; b++) {
        float expected = 0;
        for (int i = 0; i < THREADS; i++)
            expected += value[b * THREADS + i];
        assert_float_equal(sum[b], expected, 0);
    }
}

static void shared_memory_begins_as_garbage(void **state)
{
    (void)state;
    enum { BLOCKS = 3, N = 1001 };
    uint8_t in[BLOCKS * N], out[BLOCKS * N];
    int32_t zero = 0, garbage;
    for (int i = 0; i < BLOCKS * N; i++)
        in[i] = (uint8_t)random_u64();
    struct reverse_args a = {(void *)device_copy(in, sizeof in), (void *)device_alloc(sizeof out),
                             N, (void *)device_copy(&zero, sizeof zero)};
    launch("selftest_reverse", BLOCKS, 96, N, &a);
    take_back(out, (cu_address)a.out, sizeof out);
    take_back(&garbage, (cu_address)a.garbage, sizeof garbage);
    DO(cu->memory_free((cu_address)a.in));
    for (int i = 0; i < BLOCKS * N; i++)
        assert_int_equal(out[i], in[i / N * N + N - 1 - i % N]);
    assert_int_equal(garbage, 0);
}

static void words_hold_bytes(void **state)
{
    (void)state;
    enum { N = 4 * THREADS };
    uint32_t x[3][N], out[N][5];
    for (int i = 0; i < 3 * N; i++)
        x[i / N][i % N] = (uint32_t)random_u64();
    struct word_args a = {(void *)device_copy(x[0], sizeof x[0]),
                          (void *)device_copy(x[1], sizeof x[1]),
                          (void *)device_copy(x[2], sizeof x[2]), (void *)device_alloc(sizeof out)};
    launch("selftest_words", 4, THREADS, 0, &a);
    take_back(out, (cu_address)a.out, sizeof out);
    DO(cu->memory_free((cu_address)a.a));
    DO(cu->memory_free((cu_address)a.b));
    DO(cu->memory_free((cu_address)a.c));
    for (int i = 0; i < N; i++) {
        uint8_t p[8], difference[4], permuted[4];
        memcpy(p, &x[0][i], 4);
        memcpy(p + 4, &x[1][i], 4);
        uint32_t with_sign = x[2][i], without = x[2][i];
        for (int e = 0; e < 4; e++) {
            with_sign += (uint32_t)((int8_t)p[e] * (int8_t)p[4 + e]);
            without += (uint32_t)p[e] * p[4 + e];
            difference[e] = (uint8_t)(p[e] - p[4 + e]);
            permuted[e] = p[x[2][i] >> 4 * e & 7];
        }
        uint64_t both = (uint64_t)x[1][i] << 32 | x[0][i];
        assert_int_equal(out[i][0], with_sign);
        assert_int_equal(out[i][1], without);
        assert_memory_equal(&out[i][2], difference, 4);
        assert_memory_equal(&out[i][3], permuted, 4);
        assert_int_equal(out[i][4], (uint32_t)(both >> x[2][i] % 32));
    }
}

static void halves_convert_as_ours(void **state)
{
    (void)state;
    enum { N = 65536 };
    float *given = malloc(N * sizeof *given), *wide = malloc(N * sizeof *wide);
    uint16_t *narrow = malloc(N * sizeof *narrow);
    assert_true(given && wide && narrow);
    for (int i = 0; i < N; i++) { /* around every half, ties between two of them too */
        float here = f16_to_f32((uint16_t)i), next = f16_to_f32((uint16_t)(i + 1));
        uint32_t any = (uint32_t)random_u64();
        switch (i % 4) {
        case 0: given[i] = here; break;
        case 1: given[i] = here / 2 + next / 2; break;
        case 2: given[i] = nextafterf(here / 2 + next / 2, random_float()); break;
        default: memcpy(&given[i], &any, 4);
        }
    }
    struct half_args a = {(void *)device_copy(given, N * sizeof *given),
                          (void *)device_alloc(N * sizeof *wide),
                          (void *)device_alloc(N * sizeof *narrow)};
    launch("selftest_half", N / 256, 256, 0, &a);
    take_back(wide, (cu_address)a.wide, N * sizeof *wide);
    take_back(narrow, (cu_address)a.narrow, N * sizeof *narrow);
    DO(cu->memory_free((cu_address)a.given));
    for (int i = 0; i < N; i++) {
        float expected = f16_to_f32((uint16_t)i);
        assert_memory_equal(&wide[i], &expected, 4);
        if (isnan(given[i]))
            assert_int_equal(narrow[i], 0x7fff);
        else if (narrow[i] != f32_to_f16(given[i]))
            fail_msg("%a becomes %#x, not %#x", (double)given[i], narrow[i], f32_to_f16(given[i]));
    }
    free(given);
    free(wide);
    free(narrow);
}

enum { M = 16, N = 8, DEPTH_BYTES = 32 };

static float element(const char *type, const uint8_t *row, int k)
{
    uint16_t h;
    if (strcmp(type, "s8") == 0)
        return (float)(int8_t)row[k];
    memcpy(&h, row + 2 * k, 2);
    return strcmp(type, "f16") == 0 ? f16_to_f32(h) : bf16_to_f32(h);
}

/* Small integers: every sum is exact, whatever the order. */
static void check_product(const char *type)
{
    bool bytes = strcmp(type, "s8") == 0;
    int depth = bytes ? DEPTH_BYTES : DEPTH_BYTES / 2;
    uint8_t a[M][DEPTH_BYTES], b[N][DEPTH_BYTES];
    union {
        int32_t i[M][N];
        float f[M][N];
    } before, after;
    for (int i = 0; i < (M + N) * depth; i++) {
        int row = i / depth, k = i % depth, v = (int)random_in(bytes ? -128 : -200, 127);
        uint8_t *to = row < M ? a[row] : b[row - M];
        uint16_t h = strcmp(type, "f16") == 0 ? f32_to_f16((float)v) : f32_to_bf16((float)v);
        if (bytes)
            to[k] = (uint8_t)v;
        else
            memcpy(to + 2 * k, &h, 2);
    }
    for (int i = 0; i < M * N; i++)
        if (bytes)
            before.i[i / N][i % N] = (int32_t)random_in(-5000, 5000);
        else
            before.f[i / N][i % N] = (float)random_in(-5000, 5000);
    struct product_args args = {(void *)device_copy(a, sizeof a), (void *)device_copy(b, sizeof b),
                                (void *)device_copy(&before, sizeof before)};
    char kernel[64];
    snprintf(kernel, sizeof kernel, "selftest_product_%s", type);
    launch(kernel, 1, WARP, 0, &args);
    take_back(&after, (cu_address)args.c, sizeof after);
    DO(cu->memory_free((cu_address)args.a));
    DO(cu->memory_free((cu_address)args.b));
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            float expected = bytes ? (float)before.i[m][n] : before.f[m][n];
            float got = bytes ? (float)after.i[m][n] : after.f[m][n];
            for (int k = 0; k < depth; k++)
                expected += element(type, a[m], k) * element(type, b[n], k);
            if (got != expected)
                fail_msg("%s: row %d, column %d: %g, not %g", type, m, n, (double)got,
                         (double)expected);
        }
}

static void matrices_are_multiplied(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        check_product("s8");
        check_product("f16");
        check_product("bf16");
    }
}

static void grids_have_three_dimensions(void **state)
{
    (void)state;
    int32_t out[2][3][5];
    struct grid_args a = {(void *)device_alloc(sizeof out)};
    DO(cu->launch(find("selftest_grid"), 5, 3, 2, 1, 1, 1, 0, stream, (void *[]){&a}, NULL));
    take_back(out, (cu_address)a.out, sizeof out);
    for (int i = 0; i < 30; i++)
        assert_int_equal(out[i / 15][i / 5 % 3][i % 5],
                         i % 5 + 100 * (i / 5 % 3) + 10000 * (i / 15));
}

/* Threads run in one order in one launch, in the other in the next: one of them shows it. */
static void a_missing_barrier_shows(void **state)
{
    (void)state;
    int32_t out[THREADS];
    int wrong = 0;
    for (int turn = 0; turn < 2; turn++) {
        struct race_args a = {(void *)device_alloc(sizeof out)};
        launch("selftest_race", 1, THREADS, 0, &a);
        take_back(out, (cu_address)a.out, sizeof out);
        for (int i = 0; i < THREADS; i++)
            wrong += out[i] != i + 1;
    }
    assert_int_not_equal(wrong, 0);
}

/* ------------------------------------------------------------------ streams and graphs ---- */

static void step(const char *what, cu_stream on, cu_address from, cu_address to, int n)
{
    struct step_args a = {(void *)from, (void *)to, n};
    cu_result result =
        cu->launch(find("selftest_step"), 1, 1, 1, WARP, 1, 1, 0, on, (void *[]){&a}, NULL);
    if (result)
        fail_msg("%s: %d", what, result);
}

/* A value goes to and fro between two streams; each waits for the other's event. */
static void events_order_streams(void **state)
{
    (void)state;
    enum { TURNS = 40 };
    int32_t one = 1, got, expected = 1;
    cu_stream other;
    cu_event there, back;
    cu_address a = device_copy(&one, sizeof one), b = device_alloc(sizeof one);
    DO(cu->stream_create(&other, CU_STREAM_NON_BLOCKING));
    DO(cu->event_create(&there, CU_EVENT_DISABLE_TIMING));
    DO(cu->event_create(&back, CU_EVENT_DISABLE_TIMING));
    DO(cu->event_query(there));
    for (int turn = 0; turn < TURNS; turn++) {
        step("there", stream, a, b, turn);
        DO(cu->event_record(there, stream));
        DO(cu->stream_wait(other, there, 0));
        step("back", other, b, a, turn);
        DO(cu->event_record(back, other));
        DO(cu->stream_wait(stream, back, 0));
        for (int i = 0; i < 2; i++)
            expected = expected * 3 + turn;
        if (turn % 8 == 7) { /* before it overflows */
            DO(cu->download(&got, a, sizeof got, stream));
            for (cu_result r; (r = cu->event_query(back));)
                assert_int_equal(r, CU_ERROR_NOT_READY);
            DO(cu->stream_synchronize(stream));
            assert_int_equal(got, expected);
            DO(cu->upload(a, &one, sizeof one, stream));
            expected = 1;
        }
    }
    DO(cu->stream_synchronize(other));
    DO(cu->stream_destroy(other));
    DO(cu->event_destroy(there));
    DO(cu->event_destroy(back));
    DO(cu->memory_free(a));
    DO(cu->memory_free(b));
}

static void graphs_replay_what_was_captured(void **state)
{
    (void)state;
    int32_t values[2] = {2, 0}, got[2];
    cu_address a = device_copy(values, sizeof values), b = a + sizeof(int32_t);
    cu_graph graph;
    cu_graph_exec exec;
    DO(cu->stream_synchronize(stream));
    DO(cu->capture_begin(stream, CU_CAPTURE_THREAD_LOCAL));
    step("captured", stream, a, b, 1);
    step("captured", stream, b, a, 5);
    DO(cu->capture_end(stream, &graph));
    DO(cu->graph_instantiate(&exec, graph, 0));
    DO(cu->graph_destroy(graph));
    DO(cu->download(got, a, sizeof got, stream));
    DO(cu->stream_synchronize(stream));
    assert_int_equal(got[0], 2); /* nothing has run yet */
    for (int i = 0; i < 3; i++)
        DO(cu->graph_launch(exec, stream));
    take_back(got, a, sizeof got);
    for (int i = 0; i < 3; i++) {
        values[1] = values[0] * 3 + 1;
        values[0] = values[1] * 3 + 5;
    }
    assert_memory_equal(got, values, sizeof got);
    DO(cu->graph_exec_destroy(exec));
}

static void what_waits_breaks_a_capture(void **state)
{
    (void)state;
    cu_address p;
    cu_graph graph;
    DO(cu->capture_begin(stream, CU_CAPTURE_THREAD_LOCAL));
    assert_int_equal(cu->memory_alloc(&p, 16), UNSUPPORTED);
    assert_int_equal(cu->capture_end(stream, &graph), INVALIDATED);
    assert_null(graph);
    DO(cu->capture_begin(stream, CU_CAPTURE_THREAD_LOCAL));
    assert_int_equal(cu->stream_synchronize(stream), UNSUPPORTED);
    assert_int_equal(cu->capture_end(stream, &graph), INVALIDATED);
    p = device_alloc(16);
    DO(cu->memory_free(p));
}

/* ------------------------------------------------------------------------- failures ------- */

static void memory_has_an_end(void **state)
{
    (void)state;
    DO(cu->context_release(0));
    setenv("OATO_CUDA_ON_CPU_MEMORY", "1000000", 1);
    DO(cu->context_retain(&context, 0));
    unsetenv("OATO_CUDA_ON_CPU_MEMORY");
    size_t free_bytes, total;
    cu_address p, more;
    DO(cu->memory_info(&free_bytes, &total));
    assert_int_equal(free_bytes, 1000000);
    assert_int_equal(total, 1000000);
    p = device_alloc(600000);
    assert_int_equal(cu->memory_alloc(&more, 400001), CU_ERROR_OUT_OF_MEMORY);
    more = device_alloc(400000);
    assert_int_equal(more % 256, 0);
    DO(cu->memory_info(&free_bytes, &total));
    assert_int_equal(free_bytes, 0);
    DO(cu->memory_free(p));
    DO(cu->memory_free(more));
    assert_int_equal(cu->memory_free(more), INVALID_VALUE);
    DO(cu->memory_info(&free_bytes, &total));
    assert_int_equal(free_bytes, 1000000);
}

static void ranges_must_lie_in_an_allocation(void **state)
{
    (void)state;
    uint8_t bytes[100] = {0};
    cu_address p = device_alloc(100);
    DO(cu->upload(p, bytes, 100, stream));
    assert_int_equal(cu->upload(p, bytes, 101, stream), INVALID_VALUE);
    assert_int_equal(cu->upload(p - 1, bytes, 1, stream), INVALID_VALUE);
    assert_int_equal(cu->download(bytes, p + 50, 51, stream), INVALID_VALUE);
    assert_int_equal(cu->download(bytes, p + 101, 0, stream), INVALID_VALUE);
    assert_int_equal(cu->fill(p + 99, 0, 2, stream), INVALID_VALUE);
    DO(cu->fill(p + 99, 7, 1, stream));
    take_back(bytes, p, 100);
    assert_int_equal(bytes[99], 7);
    assert_int_equal(bytes[98], 0);
}

static void launches_must_fit_the_kernel(void **state)
{
    (void)state;
    cu_function f;
    assert_int_equal(cu->module_function(&f, module, "no_such_kernel"), CU_ERROR_NOT_FOUND);
    int32_t most;
    DO(cu->device_attribute(&most, CU_ATTRIBUTE_SHARED_PER_BLOCK_OPTIN, 0));
    assert_int_equal(most, 227 << 10);
    struct reverse_args a = {.n = 0};
    assert_int_equal(try_launch("selftest_reverse", 1, 257, 0, &a), INVALID_VALUE);
    assert_int_equal(try_launch("selftest_reverse", 0, 32, 0, &a), INVALID_VALUE);
    assert_int_equal(try_launch("selftest_reverse", 1, 32, (48 << 10) + 1, &a), INVALID_VALUE);
    DO(cu->function_set(find("selftest_reverse"), CU_FUNCTION_MAX_DYNAMIC_SHARED, most));
    launch("selftest_reverse", 1, 32, (unsigned)most, &a);
    assert_int_equal(
        cu->function_set(find("selftest_reverse"), CU_FUNCTION_MAX_DYNAMIC_SHARED, most + 1),
        INVALID_VALUE);
    setenv("OATO_CUDA_ON_CPU_CAPABILITY", "75", 1);
    DO(cu->device_attribute(&most, CU_ATTRIBUTE_MAJOR, 0));
    assert_int_equal(most, 7);
    DO(cu->device_attribute(&most, CU_ATTRIBUTE_SHARED_PER_BLOCK_OPTIN, 0));
    assert_int_equal(most, 64 << 10);
    unsetenv("OATO_CUDA_ON_CPU_CAPABILITY");
    DO(cu->stream_synchronize(stream));
}

/* As with a real GPU, the launch itself succeeds; then nothing works until the context is new. */
static void failures_come_where_they_are_asked_for(void **state)
{
    DO(cu->module_unload(module));
    DO(cu->stream_destroy(stream));
    DO(cu->context_release(0));
    setenv("OATO_CUDA_ON_CPU_FAIL", "launch=3,alloc=2", 1);
    open_device(state);
    unsetenv("OATO_CUDA_ON_CPU_FAIL");

    int32_t out[30], before = -1;
    struct grid_args a = {(void *)device_alloc(sizeof out)};
    cu_address p;
    cu_event event;
    cu_function f = find("selftest_grid");
    DO(cu->event_create(&event, 0));
    assert_int_equal(cu->memory_alloc(&p, 4), CU_ERROR_OUT_OF_MEMORY);
    DO(cu->memory_free(device_alloc(4)));
    for (int i = 0; i < 3; i++)
        launch("selftest_grid", 30, 1, 0, &a);
    cu->event_record(event, stream);
    assert_int_equal(cu->stream_synchronize(stream), ILLEGAL_ADDRESS);
    assert_int_equal(cu->event_query(event), ILLEGAL_ADDRESS);
    assert_int_equal(cu->launch(f, 1, 1, 1, 1, 1, 1, 0, stream, (void *[]){&a}, NULL),
                     ILLEGAL_ADDRESS);
    assert_int_equal(cu->download(&before, (cu_address)a.out, 4, stream), ILLEGAL_ADDRESS);
    assert_int_equal(before, -1);
    assert_int_equal(cu->memory_free((cu_address)a.out), ILLEGAL_ADDRESS);
    assert_int_equal(cu->module_unload(module), ILLEGAL_ADDRESS);
    assert_int_equal(cu->stream_destroy(stream), ILLEGAL_ADDRESS);
    cu->event_destroy(event);

    struct oato_error err;
    assert_int_equal(cuda_fail(cu, ILLEGAL_ADDRESS, "cuda:0", "trying", &err), OATO_EDEVICE);
    assert_string_equal(err.text, "cuda:0: trying: CUDA_ERROR_ILLEGAL_ADDRESS "
                                  "(an illegal memory access was encountered)");
    assert_int_equal(cuda_fail(cu, CU_ERROR_OUT_OF_MEMORY, "cuda:0", "trying", &err), OATO_EFIT);
    DO(cu->context_release(0));
    open_device(state);
}

/* -------------------------------------------------------------------- what ends it -------- */

static const struct wrong_case {
    enum wrong what;
    bool only_checked; /* seen by AddressSanitizer alone */
    const char *says;
} wrong_cases[] = {
    {WRONG_BARRIER, false, "threads wait for each other forever"},
    {WRONG_LANE, false, "returned"},
    {WRONG_MASK, false, "of which it is none"},
    {WRONG_MEETING, false, "of its warp are at"},
    {WRONG_TRAP, false, "__trap"},
    {WRONG_SHARED, true, "heap-buffer-overflow"},
    {WRONG_STATIC, true, "selftest_wrong"},
    {WRONG_DEVICE, true, "heap-buffer-overflow"},
};

/* In a process of its own, which does not come back. */
static int run_wrong(int what)
{
    enum { BYTES = 64 };
    open_driver();
    open_device(NULL);
    struct wrong_args a = {what, BYTES, (void *)device_alloc(BYTES)};
    launch("selftest_wrong", 1, 2 * WARP, BYTES, &a);
    return cu->stream_synchronize(stream);
}

/* What the process wrote, and how it ended. */
static int run_child(const char *program, int what, char *text, size_t size)
{
    int pipes[2], status;
    size_t used = 0;
    char number[16];
    snprintf(number, sizeof number, "%d", what);
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        execl(program, program, number, (char *)NULL);
        _exit(127);
    }
    close(pipes[1]);
    for (ssize_t n; (n = read(pipes[0], text + used, size - 1 - used)) > 0;)
        used += (size_t)n;
    text[used] = '\0';
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void wrong_kernels_end_the_process(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(wrong_cases); i++) {
        const struct wrong_case *c = &wrong_cases[i];
        char text[16384];
        if (c->only_checked && !ADDRESSES_CHECKED)
            continue;
        int status = run_child("/proc/self/exe", c->what, text, sizeof text);
        if (!strstr(text, c->says))
            fail_msg("kernel %d wrong: '%s' does not say '%s'", c->what, text, c->says);
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
            fail_msg("kernel %d wrong: the process goes on", c->what);
        if (!c->only_checked)
            assert_non_null(strstr(text, "selftest_wrong"));
    }
}

#define DEVICE_TEST(name) cmocka_unit_test_setup_teardown(name, open_device, close_device)

int main(int argc, char **argv)
{
    if (argc == 2)
        return run_wrong(atoi(argv[1]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_kernels_end_the_process),
        DEVICE_TEST(shuffles_take_from_the_right_lane),
        DEVICE_TEST(votes_are_counted),
        DEVICE_TEST(blocks_add_in_shared_memory),
        DEVICE_TEST(shared_memory_begins_as_garbage),
        DEVICE_TEST(words_hold_bytes),
        DEVICE_TEST(halves_convert_as_ours),
        DEVICE_TEST(matrices_are_multiplied),
        DEVICE_TEST(grids_have_three_dimensions),
        DEVICE_TEST(a_missing_barrier_shows),
        DEVICE_TEST(events_order_streams),
        DEVICE_TEST(graphs_replay_what_was_captured),
        DEVICE_TEST(what_waits_breaks_a_capture),
        DEVICE_TEST(memory_has_an_end),
        DEVICE_TEST(ranges_must_lie_in_an_allocation),
        DEVICE_TEST(launches_must_fit_the_kernel),
        DEVICE_TEST(failures_come_where_they_are_asked_for),
    };
    open_driver();
    seed_init();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
