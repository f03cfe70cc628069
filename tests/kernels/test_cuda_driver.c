/*
 * test_cuda_driver.c - the emulated driver keeps the order of streams, events and graphs, and fails
 * as NVIDIA's does: memory that ends, ranges and launches that do not fit, kernels that are
 * missing, an illegal address that shows later and stays.
 */
#include "tests/kernels/cuda_rig.h"

#include <sched.h>

enum {
    INVALID_VALUE = 1,
    ILLEGAL_STATE = 401,
    ILLEGAL_ADDRESS = 700,
    NOT_SUPPORTED = 801,
    UNSUPPORTED = 900,
    INVALIDATED = 901
};

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

static cu_result overlap(cu_address from, cu_address to, int n)
{
    struct step_args a = {(void *)from, (void *)to, n};
    struct cu_launch_attribute attribute = {.id = CU_LAUNCH_OVERLAPS, .value.overlaps = 1};
    const struct cu_launch how = {1, 1, 1, WARP, 1, 1, 0, stream, &attribute, 1};
    return cu->launch_as(&how, find("selftest_step"), (void *[]){&a}, NULL);
}

/* Right behind a kernel, in a graph only by later drivers. */
static void kernels_overlap_with_kernels(void **state)
{
    (void)state;
    int32_t values[2] = {2, 0}, got[2];
    cu_address a = device_copy(values, sizeof values), b = a + sizeof(int32_t);
    cu_graph graph;
    assert_int_equal(overlap(a, b, 1), ILLEGAL_STATE);
    step("before", stream, a, b, 1);
    DO(overlap(b, a, 5));
    take_back(got, a, sizeof got);
    assert_int_equal(got[1], 2 * 3 + 1);
    assert_int_equal(got[0], got[1] * 3 + 5);

    a = device_copy(values, sizeof values);
    b = a + sizeof(int32_t);
    setenv("OATO_CUDA_ON_CPU_VERSION", "12020", 1);
    DO(cu->capture_begin(stream, CU_CAPTURE_THREAD_LOCAL));
    step("captured", stream, a, b, 1);
    assert_int_equal(overlap(b, a, 5), UNSUPPORTED);
    assert_int_equal(cu->capture_end(stream, &graph), INVALIDATED);
    unsetenv("OATO_CUDA_ON_CPU_VERSION");
    setenv("OATO_CUDA_ON_CPU_CAPABILITY", "89", 1);
    step("before", stream, a, b, 1);
    assert_int_equal(overlap(b, a, 5), NOT_SUPPORTED);
    unsetenv("OATO_CUDA_ON_CPU_CAPABILITY");
    take_back(got, a, sizeof got);
    assert_int_equal(got[0], 2);
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

/* ------------------------------------------------------------------- values in memory ----- */

static void wait_for_gate(void *user)
{
    const _Atomic bool *open = user;
    while (!atomic_load(open))
        sched_yield();
}

static void streams_write_values_where_they_come_to_it(void **state)
{
    (void)state;
    _Atomic bool open = false;
    void *p, *unmapped;
    cu_address address;
    DO(cu->host_alloc(&p, 16, CU_HOST_DEVICEMAP));
    DO(cu->host_address(&address, p, 0));
    _Atomic uint64_t *count = p;
    atomic_store(count, 1);
    DO(cu->stream_query(stream));
    DO(cu->host_call(stream, wait_for_gate, &open));
    DO(cu->stream_write(stream, address, 7, 0));
    assert_int_equal(cu->stream_query(stream), CU_ERROR_NOT_READY);
    assert_int_equal(atomic_load(count), 1);
    atomic_store(&open, true);
    DO(cu->stream_synchronize(stream));
    DO(cu->stream_query(stream));
    assert_int_equal(atomic_load(count), 7);

    uint64_t there = 0;
    const cu_address device = device_alloc(sizeof there);
    DO(cu->stream_write(stream, device, UINT64_MAX, 0));
    take_back(&there, device, sizeof there);
    assert_true(there == UINT64_MAX);
    assert_int_equal(cu->stream_write(stream, address + 4, 7, 0), INVALID_VALUE);
    assert_int_equal(cu->stream_write(stream, address + 16, 7, 0), INVALID_VALUE);
    DO(cu->host_alloc(&unmapped, 16, 0));
    assert_int_equal(cu->host_address(&address, unmapped, 0), INVALID_VALUE);
    DO(cu->host_free(unmapped));
    DO(cu->host_free(p));
    assert_int_equal(cu->host_address(&address, p, 0), INVALID_VALUE);
}

/* ---------------------------------------------------------------------- two GPUs --------- */

static void gpus_copy_from_each_other_once_they_may(void **state)
{
    (void)state;
    enum { NOT_ENABLED = 705, NO_PEERS = 217 };
    cu_context other;
    int can = 0;
    setenv("OATO_CUDA_ON_CPU_DEVICES", "2", 1);
    DO(cu->context_retain(&other, 1));
    DO(cu->context_set(other));
    const uint64_t sent = 0x123456789abcdef;
    uint64_t got = 0;
    cu_stream second;
    DO(cu->stream_create(&second, CU_STREAM_NON_BLOCKING));
    const cu_address from = device_alloc(sizeof sent);
    DO(cu->upload(from, &sent, sizeof sent, second));
    DO(cu->stream_synchronize(second));
    DO(cu->context_set(context));
    const cu_address to = device_alloc(sizeof sent);
    assert_int_equal(cu->peer_copy(to, context, from, other, sizeof sent, stream), NOT_ENABLED);
    setenv("OATO_CUDA_ON_CPU_PEERS", "0", 1);
    DO(cu->peer_can(&can, 0, 1));
    assert_int_equal(can, 0);
    assert_int_equal(cu->peer_enable(other, 0), NO_PEERS);
    unsetenv("OATO_CUDA_ON_CPU_PEERS");
    DO(cu->peer_can(&can, 0, 1));
    assert_int_equal(can, 1);
    DO(cu->peer_can(&can, 0, 0));
    assert_int_equal(can, 0);
    DO(cu->peer_enable(other, 0));
    assert_int_equal(cu->peer_enable(other, 0), CU_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    assert_int_equal(cu->peer_copy(to, context, from, other, sizeof sent + 1, stream),
                     INVALID_VALUE);
    DO(cu->peer_copy(to, context, from, other, sizeof sent, stream));
    take_back(&got, to, sizeof got);
    assert_true(got == sent);
    DO(cu->context_set(other));
    DO(cu->memory_free(from));
    DO(cu->stream_destroy(second));
    DO(cu->context_release(1));
    DO(cu->context_set(context));
    unsetenv("OATO_CUDA_ON_CPU_DEVICES");
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
    struct reverse_args a = {.n = 0, .written = (void *)device_alloc(sizeof(int32_t))};
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
    DO(cu->memory_free((cu_address)a.written));
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

/* ------------------------------------------------------------------------ opening it ------ */

static void check_opening(const char *variable, const char *value, const char *says)
{
    char text[2048], before[512];
    const char *old = getenv(variable);
    snprintf(before, sizeof before, "%s", old ? old : "");
    setenv(variable, value, 1);
    int status = run_again("open", text, sizeof text);
    setenv(variable, before, 1);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status) != 0, says != NULL);
    if (says && !strstr(text, says))
        fail_msg("%s=%s: '%s' does not say '%s'", variable, value, text, says);
}

/* Each in a process of its own: a driver is opened once. */
static void what_is_missing_is_said_in_a_line(void **state)
{
    (void)state;
    check_opening("OATO_CUDA_ON_CPU_DEVICES", "2", NULL);
    check_opening("OATO_CUDA_ON_CPU_DEVICES", "0", "finds no GPU");
    /* what the compiler of the kernels asks for, of the same major version any */
    const int oldest = OATO_CUDA_MAJOR * 1000;
    char version[16], says[96];
    assert_true(oldest >= 12000 && oldest % 1000 == 0);
    snprintf(version, sizeof version, "%d", oldest - 20);
    snprintf(says, sizeof says, "for CUDA %d.98; this build needs one for CUDA %d.0 or newer",
             oldest / 1000 - 1, oldest / 1000);
    check_opening("OATO_CUDA_ON_CPU_VERSION", version, says);
    snprintf(version, sizeof version, "%d", oldest);
    check_opening("OATO_CUDA_ON_CPU_VERSION", version, NULL);
    check_opening("OATO_CUDA_DRIVER", "libno-such-driver.so", "no NVIDIA driver found");
    check_opening("OATO_CUDA_DRIVER", "libm.so.6", "lacks cuInit");
}

int main(int argc, char **argv)
{
    open_driver();
    if (argc == 2)
        return strcmp(argv[1], "open") == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_missing_is_said_in_a_line),
        DEVICE_TEST(events_order_streams),
        DEVICE_TEST(graphs_replay_what_was_captured),
        DEVICE_TEST(kernels_overlap_with_kernels),
        DEVICE_TEST(what_waits_breaks_a_capture),
        DEVICE_TEST(streams_write_values_where_they_come_to_it),
        DEVICE_TEST(gpus_copy_from_each_other_once_they_may),
        DEVICE_TEST(memory_has_an_end),
        DEVICE_TEST(ranges_must_lie_in_an_allocation),
        DEVICE_TEST(launches_must_fit_the_kernel),
        DEVICE_TEST(failures_come_where_they_are_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
