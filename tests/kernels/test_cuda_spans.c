/*
 * test_cuda_spans.c - how the launches of a short step get to a GPU: as graphs, one by one, and
 * kernels that begin before the one before has ended. On the emulated GPU of tests/cuda_on_cpu/
 * (OATO_CUDA_DRIVER) or, labelled gpu, on a real one.
 */
#include "kernels/cuda/cuda_device.h"
#include "tests/kernels/cuda_counts.h"
#include "tests/kernels/device_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---------------------------------------------------------------------------- graphs ------ */

/* The i-th step adds 3 x to the sum, in three records, for as many tokens as it has. */
static void steps_that_add(struct rig *gpu, const int32_t *tokens, int n)
{
    float x[RIG_TOKENS * 64], sum[RIG_TOKENS * 64] = {0}, expected[RIG_TOKENS * 64] = {0};
    rig_random(x, RIG_TOKENS * 64, 1);
    rig_write(gpu, 0, x, sizeof x);
    rig_write(gpu, 1, sum, sizeof sum);
    for (int i = 0; i < n; i++) {
        struct step step = {.n_tokens = tokens[i], .n_seqs = 1};
        rig_step(&gpu, 1, &step);
        rig_read(gpu, 1, sum, sizeof sum);
        for (int e = 0; e < tokens[i] * 64; e++)
            for (int times = 0; times < 3; times++)
                expected[e] = x[e] + expected[e];
        assert_memory_equal(sum, expected, sizeof sum);
    }
}

static struct rig *rig_that_adds(void)
{
    struct rig *gpu = rig_create("cuda:0", 0);
    for (int i = 0; i < 3; i++)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = i == 2;
    rig_compile(gpu, NULL);
    return gpu;
}

static void steps_of_a_size_that_comes_again_are_graphs(void **state)
{
    (void)state;
    /* each size is launched one by one the first time */
    static const int32_t tokens[] = {1, 1, 1, 2, 1, 2, 2};
    struct rig *gpu = rig_that_adds();
    count_begin();
    steps_that_add(gpu, tokens, ARRAY_LEN(tokens));
    assert_int_equal(graph_launches, 5);
    rig_free(gpu);

    /* a driver that captures nothing only costs time */
    gpu = rig_that_adds();
    counted->capture_begin = refuse_capture;
    graph_launches = 0;
    steps_that_add(gpu, tokens, ARRAY_LEN(tokens));
    assert_int_equal(graph_launches, 0);
    rig_free(gpu);
    count_end();
}

enum { BATCHES = 16, SERVED = 400 };

/* Steps of a server: 1 to 16 answers at a time, in any order. */
static void serve(struct rig *gpu, int steps)
{
    uint32_t seed = 7;
    for (int i = 0; i < steps; i++) {
        seed = seed * 1664525u + 1013904223u;
        const int32_t n = 1 + (int32_t)(seed >> 16) % BATCHES;
        struct step step = {.n_tokens = n, .n_rows = n, .n_seqs = 1};
        rig_step(&gpu, 1, &step);
    }
}

static struct rig *rig_that_serves(void)
{
    struct rig *gpu = rig_create("cuda:0", 0);
    for (int i = 0; i < 3; i++)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = i == 2;
    gpu->p.max_tokens = gpu->p.max_rows = BATCHES;
    rig_compile(gpu, NULL);
    return gpu;
}

/* Each of its sizes is captured once, and then found. */
static void all_batch_sizes_of_a_server_keep_their_graphs(void **state)
{
    (void)state;
    count_begin();
    struct rig *gpu = rig_that_serves();
    serve(gpu, SERVED);
    assert_int_equal(captures, BATCHES);
    assert_int_equal(graph_launches, SERVED - BATCHES);
    rig_free(gpu);
    count_end();
}

static int instantiated, room; /* graphs that are there, and may be */

static cu_result graph_if_there_is_room(cu_graph_exec *exec, cu_graph graph,
                                        unsigned long long flags)
{
    captures++;
    if (instantiated == room)
        return CU_ERROR_OUT_OF_MEMORY;
    instantiated++;
    return uncounted.graph_instantiate(exec, graph, flags);
}

static cu_result graph_gone(cu_graph_exec exec)
{
    instantiated--;
    return uncounted.graph_exec_destroy(exec);
}

/* A GPU that is nearly full: older graphs make room, and the last one works. */
static void fewer_graphs_are_kept_where_memory_is_short(void **state)
{
    (void)state;
    count_begin();
    instantiated = 0;
    room = 5;
    counted->graph_instantiate = graph_if_there_is_room;
    counted->graph_exec_destroy = graph_gone;
    struct rig *gpu = rig_that_serves();
    serve(gpu, SERVED);
    assert_null(gpu->d->ops->warning(gpu->d));
    assert_in_range(instantiated, 1, room);
    assert_true(graph_launches > SERVED / 4);
    graph_launches = 0;
    for (int i = 0; i < 4; i++)
        rig_step(&gpu, 1, &(struct step){.n_tokens = 1, .n_rows = 1, .n_seqs = 1});
    assert_in_range(graph_launches, 3, 4);
    rig_free(gpu);
    assert_int_equal(instantiated, 0);
    count_end();
}

static cu_result no_memory(cu_graph_exec exec, cu_stream stream)
{
    (void)exec;
    (void)stream;
    graph_launches++;
    return CU_ERROR_OUT_OF_MEMORY;
}

static cu_result no_graph(cu_graph_exec *exec, cu_graph graph, unsigned long long flags)
{
    (void)exec;
    (void)graph;
    (void)flags;
    return CU_ERROR_OUT_OF_MEMORY;
}

/* A graph's memory is allocated when it is made or first launched: without it the steps go on, and
 * the device tells once why they are slower. */
static void graphs_without_memory_are_done_without(void **state)
{
    (void)state;
    static const int32_t tokens[] = {1, 1, 1, 1, 2, 2};
    count_begin();
    for (int launched = 0; launched < 2; launched++) {
        struct rig *gpu = rig_that_adds();
        const struct device_ops *ops = gpu->d->ops;
        assert_null(ops->warning(gpu->d));
        counted->graph_launch = launched ? no_memory : count_graph;
        counted->graph_instantiate = launched ? uncounted.graph_instantiate : no_graph;
        launches = graph_launches = 0;
        steps_that_add(gpu, tokens, ARRAY_LEN(tokens));
        assert_int_equal(graph_launches, launched); /* asked once */
        /* those that a capture was given, too */
        assert_int_equal(launches, 3 * (int)ARRAY_LEN(tokens) + 3);
        assert_non_null(ops->warning(gpu->d));
        assert_non_null(strstr(ops->warning(gpu->d), "cuda:0: graphs: CUDA_ERROR_OUT_OF_MEMORY"));
        rig_free(gpu);
    }
    count_end();
}

/* Residency may change between steps: the same handle, other memory. */
static void weights_that_moved_are_read_where_they_are(void **state)
{
    (void)state;
    enum { N = 64, STEPS = 4 };
    struct rig *gpu = rig_create("cuda:0", 0);
    float x[N] = {0}, out[2][N];
    const int weight = rig_vector(gpu, N, 1), other = rig_vector(gpu, N, 2);
    rig_put(gpu, "bias/k64", 1, (int[]){0}, 1, (int[]){1}, &weight);
    rig_put(gpu, "bias/k64", 1, (int[]){1}, 1, (int[]){2}, &weight)->signal = 1;
    rig_compile(gpu, NULL);
    rig_write(gpu, 0, x, sizeof x);
    count_begin();
    struct oato_weight *a = gpu->weights[weight], *b = gpu->weights[other];
    for (int moved = 0; moved < 2; moved++) {
        for (int i = 0; i < STEPS; i++) {
            struct step step = {.n_tokens = 1, .n_seqs = 1};
            rig_step(&gpu, 1, &step);
            rig_read(gpu, 2, out[moved], sizeof out[moved]);
        }
        const uint8_t *data = a->data;
        a->data = b->data;
        b->data = data;
    }
    assert_int_equal(graph_launches, 2 * (STEPS - 1));
    float expected[N];
    struct oato_error err;
    for (int i = 0; i < 2; i++) {
        if (gpu->d->ops->download(gpu->d, expected, gpu->weights[i ? other : weight]->data, 0,
                                  sizeof expected, NULL, &err))
            fail_msg("%s", err.text);
        for (int e = 0; e < N; e++)
            assert_true(out[i][e] == expected[e] + expected[e]);
    }
    rig_free(gpu);
    count_end();
}

static void graphs_can_be_declined(void **state)
{
    (void)state;
    setenv("OATO_CUDA_GRAPHS", "0", 1);
    struct rig *gpu = rig_that_adds();
    unsetenv("OATO_CUDA_GRAPHS");
    count_begin();
    steps_that_add(gpu, (int32_t[]){1, 1, 1}, 3);
    assert_int_equal(launches, 9);
    assert_int_equal(graph_launches, 0);
    rig_free(gpu);
    count_end();
}

static void settings_are_refused(void **state)
{
    (void)state;
    struct oato_device *d = NULL;
    struct oato_error err;
    assert_int_equal(device_open("cuda:decode=slowly", 0, NULL, &d, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "unknown setting 'decode=slowly'"));
}

/* ------------------------------------------------------------------------ overlapping ----- */

/* Of three steps of a span of three records, the first of which is launched one by one. */
static int overlapping_launches(struct device_info *info)
{
    static const int32_t tokens[] = {1, 1, 1};
    counted->driver_version(&counted->version); /* a process reads it once */
    struct rig *gpu = rig_that_adds();
    gpu->d->ops->info(gpu->d, info);
    overlapping = graph_launches = 0;
    steps_that_add(gpu, tokens, ARRAY_LEN(tokens));
    rig_free(gpu);
    assert_int_equal(graph_launches, 2);
    return overlapping;
}

/* All but the first of a span, launched by itself or captured, where chip and driver have it. */
static void kernels_of_a_span_overlap(void **state)
{
    (void)state;
    static const struct {
        const char *variable, *value;
        int expected;
    } emulated[] = {
        {"OATO_CUDA_ON_CPU_CAPABILITY", "120", 4},   {"OATO_CUDA_ON_CPU_CAPABILITY", "89", 0},
        {"OATO_CUDA_ON_CPU_COMPILED_FOR", "86", 0}, /* on a GPU of 90 */
        {"OATO_CUDA_ON_CPU_COMPILED_FOR", "100", 4}, {"OATO_CUDA_ON_CPU_VERSION", "12030", 4},
        {"OATO_CUDA_ON_CPU_VERSION", "12020", 0},
    };
    struct device_info info;
    count_begin();
    const int all = overlapping_launches(&info);
    setenv("OATO_CUDA_OVERLAP", "0", 1);
    assert_int_equal(overlapping_launches(&info), 0);
    unsetenv("OATO_CUDA_OVERLAP");
    for (size_t i = 0; !strcmp(info.model, "CUDA on CPU") && i < ARRAY_LEN(emulated); i++) {
        assert_int_equal(all, 4);
        setenv(emulated[i].variable, emulated[i].value, 1);
        assert_int_equal(overlapping_launches(&info), emulated[i].expected);
        unsetenv(emulated[i].variable);
    }
    count_end();
}

int main(void)
{
    struct oato_error err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_a_size_that_comes_again_are_graphs),
        cmocka_unit_test(all_batch_sizes_of_a_server_keep_their_graphs),
        cmocka_unit_test(fewer_graphs_are_kept_where_memory_is_short),
        cmocka_unit_test(graphs_without_memory_are_done_without),
        cmocka_unit_test(weights_that_moved_are_read_where_they_are),
        cmocka_unit_test(graphs_can_be_declined),
        cmocka_unit_test(settings_are_refused),
        cmocka_unit_test(kernels_of_a_span_overlap),
    };
    if (!cuda_driver_open(&err)) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
