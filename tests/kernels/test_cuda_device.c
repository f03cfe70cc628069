/*
 * test_cuda_device.c - a CUDA device behind the device interface: a whole layer, work divided with
 * the CPU, steps that queue up, memory that is counted, and failures that are told. On the emulated
 * GPU of tests/cuda_on_cpu/ (OATO_CUDA_DRIVER) or, labelled gpu, on a real one.
 */
#include "tests/kernels/cuda_counts.h"
#include "tests/kernels/device_rig.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static double nmse(const float *got, const float *expected, size_t n)
{
    double error = 0, energy = 0;
    for (size_t i = 0; i < n; i++) {
        const double e = (double)got[i] - (double)expected[i];
        error += e * e;
        energy += (double)expected[i] * (double)expected[i];
    }
    return error / energy;
}

static void a_layer_gives_what_the_cpu_gives(void **state)
{
    (void)state;
    static float expected[RIG_LOGITS], got[RIG_LOGITS], again[RIG_LOGITS];
    for (int prompt = 1; prompt <= RIG_TOKENS; prompt += 3) {
        rig_run_layer("cpu", prompt, expected);
        rig_run_layer("cuda", prompt, got);
        rig_run_layer("cuda", prompt, again);
        assert_memory_equal(got, again, sizeof got); /* the same bits every time */
        const double e = nmse(got, expected, RIG_LOGITS);
        if (!(e < 1e-3)) /* inputs of products are rounded to bytes on both */
            fail_msg("prompt of %d: NMSE %.3g", prompt, e);
    }
}

/* y = W norm(x) + b, W divided between the devices: the host's part runs while the other's does,
 * and each waits for what the other made. */
static void two_devices_that_wait_for_each_other_agree_with_one(void **state)
{
    (void)state;
    enum { STEPS = 50, T = 3 };
    struct rig *cpu = rig_create("cpu", 0), *gpu = rig_create("cuda:0", 1), *both[] = {cpu, gpu};
    struct rig *alone = rig_create("cpu", 0);
    struct program_record *r = NULL;
    rig_put(alone, "rms_norm/k64", 1, (int[]){0}, 1, (int[]){1}, (int[]){rig_vector(alone, 64, 1)});
    rig_put(alone, "mul_mat/Q8_0/k64/n128", 1, (int[]){1}, 1, (int[]){2},
            (int[]){rig_matrix(alone, 64, 128, 0, 128, 2)});
    rig_put(alone, "bias/k128", 1, (int[]){2}, 1, (int[]){3}, (int[]){rig_vector(alone, 128, 3)})
        ->signal = 1;
    /* rows 0..63 on the host, 64..127 on the other, merged on the other, bias on the host */
    r = rig_put(cpu, "rms_norm/k64", 1, (int[]){0}, 1, (int[]){1}, (int[]){rig_vector(cpu, 64, 1)});
    r->signal = 1;
    r = rig_put_copy(gpu, RECORD_UPLOAD, 64, 1, 1);
    rig_wait(r, 0, 1);
    rig_put(gpu, "mul_mat/Q8_0/k64/n64", 1, (int[]){1}, 1, (int[]){2},
            (int[]){rig_matrix(gpu, 64, 128, 64, 128, 2)});
    r = rig_put(cpu, "mul_mat/Q8_0/k64/n64", 1, (int[]){1}, 1, (int[]){2},
                (int[]){rig_matrix(cpu, 64, 128, 0, 64, 2)});
    r->signal = 2;
    r = rig_put_copy(gpu, RECORD_UPLOAD, 64, 2, 3);
    rig_wait(r, 0, 2);
    rig_put(gpu, "merge/n128", 2, (int[]){3, 2}, 1, (int[]){4}, NULL);
    r = rig_put_copy(gpu, RECORD_DOWNLOAD, 128, 4, 4);
    r->signal = 1;
    r = rig_put(cpu, "bias/k128", 1, (int[]){4}, 1, (int[]){3}, (int[]){rig_vector(cpu, 128, 3)});
    rig_wait(r, 1, 1);
    r->signal = 3;
    rig_compile(alone, NULL);
    rig_compile(cpu, NULL);
    rig_compile(gpu, cpu);
    for (uint32_t i = 0; i < STEPS; i++) {
        float x[T * 64], expected[T * 128], got[T * 128];
        struct step step = {.n_tokens = T, .n_seqs = 1};
        rig_random(x, T * 64, i);
        rig_write(alone, 0, x, sizeof x);
        rig_write(cpu, 0, x, sizeof x);
        rig_step(&alone, 1, &step);
        rig_step(both, 2, &step);
        rig_read(alone, 3, expected, sizeof expected);
        rig_read(cpu, 3, got, sizeof got);
        const double e = nmse(got, expected, T * 128);
        if (!(e < 2e-4))
            fail_msg("step %u: NMSE %.3g", i, e);
    }
    rig_free(alone);
    rig_free(cpu);
    rig_free(gpu);
}

static void gpus_that_reach_each_other_agree_with_one(void **state)
{
    (void)state;
    setenv("OATO_CUDA_ON_CPU_DEVICES", "2", 1);
    if (cuda_device_ops.probe() > 1) {
        struct rig *g[] = {rig_create("cuda:0", 0), rig_create("cuda:1", 1)};
        struct rig *alone = rig_create("cuda:0", 0),
                   *sim = rig_create("sim:vram=8MiB,peer=1GB/s", 2);
        assert_false(g[0]->d->ops->reaches(g[0]->d, sim->d));
        assert_false(g[0]->d->ops->reaches(g[0]->d, g[0]->d));
        if (g[0]->d->ops->reaches(g[0]->d, g[1]->d))
            rig_run_peers(g, alone);
        else
            assert_null(getenv("OATO_CUDA_DRIVER")); /* a real one may be without a way */
        setenv("OATO_CUDA_ON_CPU_PEERS", "0", 1);
        if (getenv("OATO_CUDA_DRIVER"))
            assert_false(g[0]->d->ops->reaches(g[0]->d, g[1]->d));
        unsetenv("OATO_CUDA_ON_CPU_PEERS");
        rig_free(g[0]);
        rig_free(g[1]);
        rig_free(alone);
        rig_free(sim);
    }
    unsetenv("OATO_CUDA_ON_CPU_DEVICES");
}

static void steps_queue_up_in_order(void **state)
{
    (void)state;
    enum { STEPS = 100 };
    struct rig *gpu = rig_create("cuda:0", 1);
    struct timeline host;
    timeline_init(&host);
    struct program_record *r = rig_put_copy(gpu, RECORD_UPLOAD, 64, 0, 0);
    rig_wait(r, 0, 1);
    rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = 1;
    rig_compile(gpu, NULL);
    float *x = gpu->host_arena, sum[64], zeros[64] = {0};
    for (int i = 0; i < 64; i++)
        x[i] = (float)i;
    rig_write(gpu, 1, zeros, sizeof zeros);
    const struct step step = {.n_tokens = 1, .n_seqs = 1};
    for (int i = 0; i < STEPS; i++) {
        rig_submit_beside(gpu, &host, &step);
        if (i == STEPS / 2) /* the rest finds its event raised; the host is never ahead of this */
            timeline_signal(&host, 1, 0);
    }
    struct oato_error err;
    if (gpu->d->ops->finish(gpu->d, &err))
        fail_msg("%s", err.text);
    rig_read(gpu, 1, sum, sizeof sum);
    for (int i = 0; i < 64; i++)
        assert_true(sum[i] == (float)(STEPS * i));
    assert_int_equal(atomic_load(&gpu->d->ops->timeline(gpu->d)->value), STEPS);
    rig_free(gpu);
}

/* --------------------------------------------------------------------------- signals ------ */

static _Atomic int event_queries;

static cu_result count_event_query(cu_event event)
{
    event_queries++;
    return uncounted.event_query(event);
}

/* Streams that write to memory, that cannot, and that only say so; a real GPU is what it is. */
static int ways_to_signal(void)
{
    return getenv("OATO_CUDA_DRIVER") ? 3 : 1;
}

static struct rig *rig_that_signals(int way)
{
    static const char *const writes[] = {"1", "0", "2"};
    setenv("OATO_CUDA_ON_CPU_STREAM_WRITES", writes[way], 1);
    return rig_create("cuda:0", 1);
}

/* Each copy has a place of its own, and is looked at while the step goes on. */
static void what_was_signalled_has_happened(void **state)
{
    (void)state;
    enum { STEPS = 20, SIGNALS = 8, N = 64 };
    count_begin();
    counted->event_query = count_event_query;
    for (int way = 0; way < ways_to_signal(); way++) {
        struct rig *gpu = rig_that_signals(way);
        struct timeline host, *t = gpu->d->ops->timeline(gpu->d);
        struct oato_error err;
        timeline_init(&host);
        for (int i = 0; i < SIGNALS; i++) {
            rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL);
            rig_put_copy(gpu, RECORD_DOWNLOAD, N, 1, i)->signal = (uint32_t)i + 1;
        }
        rig_compile(gpu, NULL);
        event_queries = 0;
        for (uint32_t s = 0; s < STEPS; s++) {
            const struct step step = {.n_tokens = RIG_TOKENS, .n_seqs = 1};
            float x[N * RIG_TOKENS], sum[N * RIG_TOKENS] = {0};
            rig_random(x, N * RIG_TOKENS, s);
            rig_write(gpu, 0, x, sizeof x);
            rig_write(gpu, 1, sum, sizeof sum);
            rig_submit_beside(gpu, &host, &step);
            for (int i = 0; i < SIGNALS; i++) {
                const float *copy = (const float *)gpu->host_arena + i * RIG_TOKENS * RIG_WIDTH;
                for (int e = 0; e < N * RIG_TOKENS; e++)
                    sum[e] = x[e] + sum[e];
                assert_true(timeline_wait(t, s * SIGNALS + (uint32_t)i + 1, NULL));
                assert_memory_equal(copy, sum, sizeof sum);
            }
            if (gpu->d->ops->finish(gpu->d, &err))
                fail_msg("%s", err.text);
        }
        if (ways_to_signal() > 1) /* else it is not known what the GPU can do */
            assert_int_equal(event_queries > 0, way != 0);
        rig_free(gpu);
    }
    unsetenv("OATO_CUDA_ON_CPU_STREAM_WRITES");
    count_end();
}

/* One step with more signals than the queue keeps. */
static void signals_are_as_many_as_a_step_wants(void **state)
{
    (void)state;
    enum { RECORDS = 200, N = 64 };
    for (int way = 0; way < ways_to_signal(); way++) {
        struct rig *gpu = rig_that_signals(way);
        struct program_record *records = calloc(RECORDS, sizeof *records);
        struct step step = {.n_tokens = 1, .n_seqs = 1};
        struct oato_error err;
        float x[N], sum[N] = {0};
        assert_non_null(records);
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL);
        for (uint32_t i = 0; i < RECORDS; i++) {
            records[i] = gpu->records[0];
            records[i].signal = i + 1;
        }
        gpu->p.records = records;
        gpu->p.n_records = gpu->p.n_signals = RECORDS;
        if (gpu->d->ops->compile(gpu->d, &gpu->p, 0, &gpu->c, &err))
            fail_msg("%s", err.text);
        for (int i = 0; i < N; i++)
            x[i] = (float)i;
        rig_write(gpu, 0, x, sizeof x);
        rig_write(gpu, 1, sum, sizeof sum);
        rig_step(&gpu, 1, &step);
        assert_int_equal(atomic_load(&gpu->d->ops->timeline(gpu->d)->value), RECORDS);
        rig_read(gpu, 1, sum, sizeof sum);
        for (int i = 0; i < N; i++)
            assert_true(sum[i] == (float)(RECORDS * i));
        rig_free(gpu);
        free(records);
    }
    unsetenv("OATO_CUDA_ON_CPU_STREAM_WRITES");
}

/* A stream that died writes no more: it is noticed all the same. Again and again, because the
 * failure comes before what is put behind it or after. */
static void a_dead_gpu_is_noticed(void **state)
{
    (void)state;
    enum { TIMES = 10 };
    if (!getenv("OATO_CUDA_DRIVER"))
        skip();
    for (int i = 0; i < TIMES * ways_to_signal(); i++) {
        struct timeline host;
        struct oato_error err;
        const struct step step = {.n_tokens = 1, .n_seqs = 1};
        setenv("OATO_CUDA_ON_CPU_FAIL", "launch=3", 1);
        struct rig *gpu = rig_that_signals(i % ways_to_signal());
        unsetenv("OATO_CUDA_ON_CPU_FAIL");
        timeline_init(&host);
        for (uint32_t r = 1; r <= 3; r++)
            rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = r;
        rig_compile(gpu, NULL);
        rig_submit_beside(gpu, &host, &step);
        assert_int_equal(gpu->d->ops->finish(gpu->d, &err), OATO_EDEVICE);
        assert_non_null(strstr(err.text, "ILLEGAL_ADDRESS"));
        assert_int_equal(atomic_load(&gpu->d->ops->timeline(gpu->d)->failed), TIMELINE_DIED);
        assert_in_range(atomic_load(&gpu->d->ops->timeline(gpu->d)->value), 0, 2);
        rig_free(gpu);
    }
    unsetenv("OATO_CUDA_ON_CPU_STREAM_WRITES");
}

/* ---------------------------------------------------------------------------- graphs ------ */

static cu_result refuse_capture(cu_stream stream, int mode)
{
    (void)stream;
    (void)mode;
    return CU_ERROR_NOT_FOUND;
}

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

static void steps_of_a_size_that_comes_again_are_graphs(void **state)
{
    (void)state;
    /* each size is launched one by one the first time */
    static const int32_t tokens[] = {1, 1, 1, 2, 1, 2, 2};
    struct rig *gpu = rig_create("cuda:0", 0);
    for (int i = 0; i < 3; i++)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = i == 2;
    rig_compile(gpu, NULL);
    count_begin();
    steps_that_add(gpu, tokens, ARRAY_LEN(tokens));
    assert_int_equal(graph_launches, 5);
    rig_free(gpu);

    /* a driver that captures nothing only costs time */
    gpu = rig_create("cuda:0", 0);
    for (int i = 0; i < 3; i++)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = i == 2;
    rig_compile(gpu, NULL);
    counted->capture_begin = refuse_capture;
    graph_launches = 0;
    steps_that_add(gpu, tokens, ARRAY_LEN(tokens));
    assert_int_equal(graph_launches, 0);
    rig_free(gpu);
    count_end();
}

/* ------------------------------------------------------------------ persistent kernel ---- */

static cu_result refuse_together(cu_function f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                                 unsigned by, unsigned bz, unsigned shared, cu_stream stream,
                                 void **arguments)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz;
    (void)shared, (void)stream, (void)arguments;
    return CU_ERROR_NOT_FOUND;
}

static struct rig *rig_that_adds(const char *spec)
{
    struct rig *gpu = rig_create(spec, 0);
    for (int i = 0; i < 3; i++)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = i == 2;
    rig_compile(gpu, NULL);
    return gpu;
}

static void the_persistent_kernel_takes_the_place_of_graphs(void **state)
{
    (void)state;
    static const int32_t tokens[] = {1, 1, 1, 2, 1, 2, 2};
    struct rig *gpu = rig_that_adds("cuda:decode=persistent");
    count_begin();
    steps_that_add(gpu, tokens, ARRAY_LEN(tokens));
    assert_int_equal(list_launches, 5);
    assert_int_equal(graph_launches, 0);
    rig_free(gpu);

    /* a size that was forgotten begins anew: there are places for eight */
    gpu = rig_that_adds("cuda:decode=persistent");
    list_launches = 0;
    for (int i = 0; i < 20; i++) {
        struct step step = {.n_tokens = 1 + i / 10, .n_rows = i / 2 % 5, .n_seqs = 1};
        rig_step(&gpu, 1, &step);
    }
    assert_int_equal(list_launches, 10);
    steps_that_add(gpu, tokens, 3);
    assert_int_equal(list_launches, 12);
    rig_free(gpu);

    /* a driver that does not launch it only costs the graphs' time */
    gpu = rig_that_adds("cuda:decode=persistent");
    counted->launch_together = refuse_together;
    steps_that_add(gpu, tokens, ARRAY_LEN(tokens));
    assert_int_equal(graph_launches, 5);
    rig_free(gpu);
    count_end();
}

/* Programs keep the way that was chosen when they were compiled. */
static void a_way_is_chosen_for_programs_to_come(void **state)
{
    (void)state;
    struct oato_error err;
    count_begin();
    for (int usual = 0; usual < 2; usual++) {
        struct rig *gpu = rig_create("cuda:0", 0);
        assert_non_null(gpu->d->ops->ways[0]);
        assert_int_equal(gpu->d->ops->choose(gpu->d, gpu->d->ops->ways[0], &err), OATO_OK);
        if (usual)
            assert_int_equal(gpu->d->ops->choose(gpu->d, "", &err), OATO_OK);
        for (int i = 0; i < 3; i++)
            rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = i == 2;
        rig_compile(gpu, NULL);
        graph_launches = list_launches = 0;
        steps_that_add(gpu, (int32_t[]){1, 1, 1}, 3);
        assert_int_equal(graph_launches, usual ? 2 : 0);
        assert_int_equal(list_launches, usual ? 0 : 2);
        rig_free(gpu);
    }
    count_end();
}

static void an_unknown_way_is_refused(void **state)
{
    (void)state;
    struct oato_device *d = NULL;
    struct oato_error err;
    setenv("OATO_CUDA_DECODE", "sideways", 1);
    assert_int_equal(device_open("cuda", 0, NULL, &d, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "OATO_CUDA_DECODE: 'sideways' is no way of decoding"));
    unsetenv("OATO_CUDA_DECODE");
    assert_int_equal(device_open("cuda:decode=slowly", 0, NULL, &d, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "known are graph, persistent and launches"));
    setenv("OATO_CUDA_DECODE", "launches", 1);
    struct rig *gpu = rig_that_adds("cuda:decode=persistent"); /* the environment forces */
    count_begin();
    steps_that_add(gpu, (int32_t[]){1, 1, 1}, 3);
    assert_int_equal(launches, 9);
    assert_int_equal(graph_launches, 0);
    rig_free(gpu);
    count_end();
    unsetenv("OATO_CUDA_DECODE");
}

/* ------------------------------------------------------------------------ overlapping ----- */

/* Of three steps of a span of three records, the first of which is launched one by one. */
static int overlapping_launches(struct device_info *info)
{
    static const int32_t tokens[] = {1, 1, 1};
    struct rig *gpu = rig_create("cuda:0", 0);
    for (int i = 0; i < 3; i++)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = i == 2;
    rig_compile(gpu, NULL);
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
        {"OATO_CUDA_ON_CPU_CAPABILITY", "120", 4},
        {"OATO_CUDA_ON_CPU_CAPABILITY", "89", 0},
        {"OATO_CUDA_ON_CPU_VERSION", "12030", 4},
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

/* ----------------------------------------------------------------- kernels together ------ */

/* Products of a norm's output; `apart`: with a record between that has them pack it themselves. */
static void norm_and_products(bool apart, bool adds, int T, float out[2][RIG_TOKENS * 96])
{
    enum { K = 64, N = 96 };
    struct rig *gpu = rig_create("cuda:0", 0);
    float x[2][RIG_TOKENS * K];
    if (adds)
        rig_put(gpu, "add_norm/k64", 2, (int[]){0, 1}, 2, (int[]){2, 3},
                (int[]){rig_vector(gpu, K, 1)});
    else
        rig_put(gpu, "rms_norm/k64", 1, (int[]){0}, 1, (int[]){3}, (int[]){rig_vector(gpu, K, 1)});
    if (apart)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){6}, NULL);
    rig_put(gpu, "mul_mat/Q8_0/k64/n96", 1, (int[]){3}, 1, (int[]){4},
            (int[]){rig_matrix(gpu, K, N, 0, N, 2)});
    if (apart)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){6}, NULL);
    rig_put(gpu, "mul_mat/Q8_0/k64/n96", 1, (int[]){3}, 1, (int[]){5},
            (int[]){rig_matrix(gpu, K, N, 0, N, 3)})
        ->signal = 1;
    rig_compile(gpu, NULL);
    for (int i = 0; i < 2; i++) {
        rig_random(x[i], RIG_TOKENS * K, (uint32_t)i);
        rig_write(gpu, i, x[i], sizeof x[i]);
    }
    struct step step = {.n_tokens = T, .n_seqs = 1};
    launches = 0;
    rig_step(&gpu, 1, &step);
    for (int i = 0; i < 2; i++)
        rig_read(gpu, 4 + i, out[i], (size_t)T * N * sizeof(float));
    rig_free(gpu);
}

static void a_norm_packs_for_the_products_behind_it(void **state)
{
    (void)state;
    count_begin();
    for (int T = 1; T <= RIG_TOKENS; T += RIG_TOKENS - 1)
        for (int adds = 0; adds < 2; adds++) {
            static float own[2][RIG_TOKENS * 96], shared[2][RIG_TOKENS * 96];
            norm_and_products(true, adds, T, own);
            assert_int_equal(launches, 3 + 2 + 2); /* the records, and a pack for each product */
            norm_and_products(false, adds, T, shared);
            assert_int_equal(launches, 3);
            for (int i = 0; i < 2; i++)
                assert_memory_equal(own[i], shared[i], (size_t)T * 96 * sizeof(float));
        }
    count_end();
}

enum way { TOGETHER, APART, MEMORY_AGAIN };

/* Rotations of q and k, a store and the attention of a prompt: with nothing between, with a record,
 * or with the second rotation's output where the first one's input was. */
static void rotate_and_store(enum way way, int T, float *out)
{
    static const struct kv_layer_shape layer = {1, 32};
    struct rig *gpu = rig_create("cuda:0", 0);
    float x[3][RIG_TOKENS * 64];
    rig_kv(gpu, &layer, 1, DT_F16, 2);
    rig_put(gpu, "rope/h2/d32/r32/p0", 1, (int[]){0}, 1, (int[]){3}, NULL);
    rig_put(gpu, "rope/h1/d32/r32/p0", 1, (int[]){1}, 1, (int[]){4}, NULL);
    if (way == APART)
        rig_put(gpu, "add/k64", 2, (int[]){0, 0}, 1, (int[]){6}, NULL);
    rig_put(gpu, "kv_store/F16/g1/d32", 2, (int[]){4, 2}, 0, NULL, NULL)->kv_layer = 0;
    struct program_record *r =
        rig_put(gpu, "attention/F16/h2/g1/d32", 1, (int[]){3}, 1, (int[]){5}, NULL);
    r->kv_layer = 0;
    r->signal = 1;
    if (way == MEMORY_AGAIN)
        gpu->records[1].out[0] = gpu->records[2].in[0] = gpu->records[0].in[0];
    rig_compile(gpu, NULL);
    for (int i = 0; i < 3; i++) {
        rig_random(x[i], RIG_TOKENS * 64, (uint32_t)i);
        rig_write(gpu, i, x[i], sizeof x[i]);
    }
    static const int32_t position[RIG_TOKENS] = {0, 1, 2, 3, 4, 5, 6, 7};
    static const int32_t sequence[RIG_TOKENS] = {0};
    const struct step_seq seq = {.query_len = T, .kv_len = T, .pages = (int32_t[]){1}};
    struct step step = {
        .n_tokens = T, .n_seqs = 1, .token_position = position, .token_seq = sequence, .seq = &seq};
    launches = 0;
    rig_step(&gpu, 1, &step);
    rig_read(gpu, 5, out, (size_t)T * 64 * sizeof *out);
    rig_free(gpu);
}

static void rotations_and_the_store_are_one_kernel(void **state)
{
    (void)state;
    count_begin();
    for (int T = 1; T <= RIG_TOKENS; T += RIG_TOKENS - 1) {
        static const int expected[] = {[TOGETHER] = 2, [APART] = 5, [MEMORY_AGAIN] = 4};
        float out[3][RIG_TOKENS * 64];
        for (int way = 0; way < 3; way++) {
            rotate_and_store((enum way)way, T, out[way]);
            assert_int_equal(launches, expected[way]);
            assert_memory_equal(out[way], out[0], (size_t)T * 64 * sizeof(float));
        }
    }
    count_end();
}

/* A record that has nothing to do with its neighbours. */
static void put_between(struct rig *gpu, bool apart)
{
    if (apart)
        rig_put(gpu, "add/k64", 2, (int[]){0, 0}, 1, (int[]){20}, NULL);
}

/* Attention, a product of what it gives, and the residual: the last of steps that fill a context of
 * so many tokens, T at a time. */
static void attend_and_add(bool apart, int T, int tokens, float *out)
{
    static const struct kv_layer_shape layer = {1, 32};
    struct rig *gpu = rig_create("cuda:0", 0);
    rig_kv(gpu, &layer, 1, DT_F16, 6);
    rig_put(gpu, "kv_store/F16/g1/d32", 2, (int[]){1, 2}, 0, NULL, NULL)->kv_layer = 0;
    rig_put(gpu, "attention/F16/h2/g1/d32", 1, (int[]){0}, 1, (int[]){3}, NULL)->kv_layer = 0;
    put_between(gpu, apart);
    rig_put(gpu, "mul_mat/Q8_0/k64/n96", 1, (int[]){3}, 1, (int[]){4},
            (int[]){rig_matrix(gpu, 64, 96, 0, 96, 7)});
    put_between(gpu, apart);
    rig_put(gpu, "add/k96", 2, (int[]){5, 4}, 1, (int[]){6}, NULL)->signal = 1;
    rig_compile(gpu, NULL);
    for (int at = 0; at < tokens; at += T) {
        float x[RIG_TOKENS * 96];
        for (int i = 0; i < 6; i++) {
            rig_random(x, RIG_TOKENS * 96, (uint32_t)(10 * at + i));
            rig_write(gpu, i, x, sizeof x);
        }
        int32_t position[RIG_TOKENS], sequence[RIG_TOKENS] = {0};
        for (int t = 0; t < T; t++)
            position[t] = at + t;
        const struct step_seq seq = {
            .query_len = T, .kv_len = at + T, .pages = (int32_t[]){3, 1, 4, 0, 5, 2}};
        struct step step = {.n_tokens = T,
                            .n_seqs = 1,
                            .token_position = position,
                            .token_seq = sequence,
                            .seq = &seq};
        launches = 0;
        rig_step(&gpu, 1, &step);
    }
    rig_read(gpu, 6, out, (size_t)T * 96 * sizeof *out);
    rig_free(gpu);
}

static void attention_packs_and_a_product_adds(void **state)
{
    (void)state;
    static float own[RIG_TOKENS * 96], joined[RIG_TOKENS * 96];
    static const struct {
        int T, tokens, divided;
    } cases[] = {{1, 1, 0}, {RIG_TOKENS, 40, 0}, {RIG_TOKENS, 304, 1}};
    count_begin();
    counted->capture_begin = refuse_capture; /* launches are to be counted in every step */
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const int T = cases[i].T;
        attend_and_add(true, T, cases[i].tokens, own);
        assert_int_equal(launches, 5 + 2 + cases[i].divided); /* two between, a pack */
        attend_and_add(false, T, cases[i].tokens, joined);
        assert_int_equal(launches, 3 + cases[i].divided);
        assert_memory_equal(own, joined, (size_t)T * 96 * sizeof *own);
    }
    count_end();
}

/* Gate, up and down of all or of chosen experts, in two steps: what counts groups that are done
 * begins anew in the second. */
static void feed_forward(bool apart, bool experts, int T, float out[2][RIG_TOKENS * 64])
{
    enum { K = 64, N = 96, EXPERTS = 4, USED = 2 };
    static const float choice[2 * USED] = {1, 3, 0.75f, 0.25f};
    struct rig *gpu = rig_create("cuda:0", 0);
    const int n = experts ? EXPERTS * N : N, down = experts ? EXPERTS * K : K;
    const int gate_up[] = {rig_matrix(gpu, K, n, 0, n, 1), rig_matrix(gpu, K, n, 0, n, 2)};
    float x[RIG_TOKENS * K];
    struct program_record *r[2];
    r[0] = rig_put(gpu, experts ? "expert_gate_up/Q8_0/k64/n96/e4/u2" : "gate_up/Q8_0/k64/n96",
                   experts ? 2 : 1, (int[]){0, 1}, 1, (int[]){2}, gate_up);
    put_between(gpu, apart);
    r[1] = rig_put(gpu, experts ? "expert_down/Q8_0/k96/n64/e4/u2" : "mul_mat/Q8_0/k96/n64",
                   experts ? 2 : 1, (int[]){2, 1}, 1, (int[]){3},
                   (int[]){rig_matrix(gpu, N, down, 0, down, 3)});
    for (int i = 0; i < 2 && experts; i++) {
        r[i]->in_width[0] = i ? USED * N : K;
        r[i]->in_width[1] = 2 * USED;
    }
    r[1]->signal = 1;
    rig_compile(gpu, NULL);
    for (int t = 0; t < T; t++)
        memcpy(x + t * 2 * USED, choice, sizeof choice);
    rig_write(gpu, 1, x, (size_t)T * sizeof choice);
    struct step step = {.n_tokens = T, .n_seqs = 1};
    for (int i = 0; i < 2; i++) {
        rig_random(x, RIG_TOKENS * K, (uint32_t)i);
        rig_write(gpu, 0, x, sizeof x);
        launches = 0;
        rig_step(&gpu, 1, &step);
        rig_read(gpu, 3, out[i], (size_t)T * K * sizeof(float));
    }
    rig_free(gpu);
}

static void gate_up_packs_for_down(void **state)
{
    (void)state;
    static float own[2][RIG_TOKENS * 64], joined[2][RIG_TOKENS * 64];
    count_begin();
    counted->capture_begin = refuse_capture;
    for (int T = 1; T <= RIG_TOKENS; T += RIG_TOKENS - 1)
        for (int experts = 0; experts < 2; experts++) {
            feed_forward(true, experts, T, own);
            assert_int_equal(launches, 3 + 2); /* one between, two packs */
            feed_forward(false, experts, T, joined);
            assert_int_equal(launches, 3);
            for (int i = 0; i < 2; i++)
                assert_memory_equal(own[i], joined[i], (size_t)T * 64 * sizeof(float));
        }
    count_end();
}

/* The sum of a product with floats, or a bias, with its output at `to`. */
static int add_to_product(const char *add, int to, float *out)
{
    enum { T = 5, K = 64 };
    struct rig *gpu = rig_create("cuda:0", 0);
    const bool bias = !strncmp(add, "bias", 4);
    float x[2][T * K];
    rig_put(gpu, "mul_mat/F32/k64/n64", 1, (int[]){0}, 1, (int[]){2},
            (int[]){rig_f32_matrix(gpu, K, K, 1)});
    const int vector = bias ? rig_vector(gpu, K, 2) : -1;
    rig_put(gpu, add, bias ? 1 : 2, (int[]){2, 1}, 1, (int[]){to}, bias ? &vector : NULL)->signal =
        1;
    rig_compile(gpu, NULL);
    for (int i = 0; i < 2; i++) {
        rig_random(x[i], T * K, (uint32_t)i);
        rig_write(gpu, i, x[i], sizeof x[i]);
    }
    struct step step = {.n_tokens = T, .n_seqs = 1};
    launches = 0;
    rig_step(&gpu, 1, &step);
    rig_read(gpu, to, out, sizeof x[0]);
    rig_free(gpu);
    return launches;
}

/* Not where the sum would lie on the input, which other blocks still read. */
static void sums_take_the_place_of_what_nobody_reads(void **state)
{
    (void)state;
    static float apart[5 * 64], joined[5 * 64];
    static const char *const adds[] = {"add/k64", "bias/k64"};
    count_begin();
    for (int i = 0; i < 2; i++) {
        assert_int_equal(add_to_product(adds[i], 0, apart), 2);
        for (int to = 1; to <= 3; to++) {
            assert_int_equal(add_to_product(adds[i], to, joined), 1);
            assert_memory_equal(joined, apart, sizeof apart);
        }
    }
    count_end();
}

/* ---------------------------------------------------------------------------- memory ------ */

static void memory_is_counted_against_the_budget(void **state)
{
    (void)state;
    const struct device_options options = {.budget_bytes = 1 << 20};
    struct oato_device *d = NULL;
    struct oato_error err;
    struct device_info info;
    void *a = NULL, *b = NULL;
    assert_int_equal(device_open("cuda", 0, &options, &d, &err), OATO_OK);
    d->ops->info(d, &info);
    assert_string_equal(info.kind, "cuda");
    assert_string_equal(info.id, "cuda:0");
    assert_false(info.is_host);
    assert_int_equal(info.memory_bytes, 1 << 20);
    assert_int_equal(d->ops->alloc(d, 1000000, &a, &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 100000, &b, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "do not fit"));
    d->ops->free(d, a, 1000000);
    assert_int_equal(d->ops->alloc(d, 100000, &b, &err), OATO_OK);
    d->ops->free(d, b, 100000);
    assert_int_equal(d->ops->inject_error(d, "alloc=1", &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 1, &b, &err), OATO_EFIT);
    assert_int_equal(d->ops->inject_error(d, "flood=1", &err), OATO_EUSAGE);
    d->ops->close(d);
}

static void what_it_cannot_do_is_refused(void **state)
{
    (void)state;
    struct oato_device *d = NULL;
    struct oato_error err;
    assert_int_equal(device_open("cuda:900", 0, NULL, &d, &err), OATO_EDEVICE);
    assert_int_equal(device_open("cuda:vram=1GiB", 0, NULL, &d, &err), OATO_EUSAGE);
    d = rig_open("cuda");
    struct oato_op op = {.kind = OP_MUL_MAT, .dtype = DT_Q4_0, .k = 64, .n = 64};
    assert_true(d->ops->supports(d, &op));
    assert_string_equal(d->ops->numerics(d, &op, NUMERICS_DECODE), "a8b32");
    op.dtype = DT_F16;
    assert_true(d->ops->supports(d, &op));
    assert_string_equal(d->ops->numerics(d, &op, NUMERICS_DECODE), "f32");
    op.k = 65;
    assert_false(d->ops->supports(d, &op)); /* rows of whole 16 bytes only */
    op.dtype = DT_I32;
    assert_false(d->ops->supports(d, &op));
    op = (struct oato_op){.kind = OP_ATTENTION, .dtype = DT_F16, .heads = 1, .kv_heads = 1};
    op.k = op.n = op.head_dim = 512;
    assert_true(d->ops->supports(d, &op));
    op.k = op.n = op.head_dim = 1024; /* more than the shared memory of a block */
    assert_false(d->ops->supports(d, &op));
    d->ops->close(d);
}

/* ------------------------------------------------------------------------------ failures -- */

static void a_failed_record_fails_the_step_and_who_waits(void **state)
{
    (void)state;
    struct rig *cpu = rig_create("cpu", 0), *gpu = rig_create("cuda:0", 1);
    struct oato_error err;
    struct timeline *timelines[2];
    uint64_t bases[2] = {0};
    struct program_record *r = NULL;
    rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){2}, NULL);
    rig_put_copy(gpu, RECORD_DOWNLOAD, 64, 2, 2)->signal = 1;
    r = rig_put(cpu, "add/k64", 2, (int[]){2, 2}, 1, (int[]){3}, NULL);
    rig_wait(r, 1, 1);
    r->signal = 1;
    rig_compile(cpu, NULL);
    rig_compile(gpu, cpu);
    assert_int_equal(gpu->d->ops->inject_error(gpu->d, "record=2", &err), OATO_OK);
    timelines[0] = cpu->d->ops->timeline(cpu->d);
    timelines[1] = gpu->d->ops->timeline(gpu->d);
    const struct step step = {
        .n_tokens = 1, .n_seqs = 1, .timeline = timelines, .timeline_base = bases};
    assert_int_equal(gpu->d->ops->submit(gpu->d, gpu->c, &step, &err), OATO_OK);
    assert_int_equal(cpu->d->ops->submit(cpu->d, cpu->c, &step, &err), OATO_EDEVICE);
    assert_int_equal(gpu->d->ops->finish(gpu->d, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "injected"));
    rig_free(cpu);
    rig_free(gpu);
}

static void a_dead_host_strands_the_device(void **state)
{
    (void)state;
    struct rig *gpu = rig_create("cuda:0", 1);
    struct timeline host;
    struct oato_error err;
    timeline_init(&host);
    struct program_record *r = rig_put_copy(gpu, RECORD_UPLOAD, 64, 0, 0);
    rig_wait(r, 0, 1);
    r->signal = 1;
    rig_compile(gpu, NULL);
    const struct step step = {.n_tokens = 1, .n_seqs = 1};
    rig_submit_beside(gpu, &host, &step);
    timeline_fail(&host, TIMELINE_DIED);
    assert_int_equal(gpu->d->ops->finish(gpu->d, &err), OATO_EDEVICE);
    assert_int_equal(atomic_load(&gpu->d->ops->timeline(gpu->d)->failed), TIMELINE_STRANDED);
    rig_free(gpu);
}

/* Nobody will ever raise the event; releasing the program gives up the step. */
static void releasing_gives_up_what_waits(void **state)
{
    (void)state;
    struct rig *gpu = rig_create("cuda:0", 1);
    struct timeline host;
    timeline_init(&host);
    rig_wait(rig_put_copy(gpu, RECORD_UPLOAD, 64, 0, 0), 0, 1);
    rig_compile(gpu, NULL);
    const struct step step = {.n_tokens = 1, .n_seqs = 1};
    rig_submit_beside(gpu, &host, &step);
    rig_free(gpu);
}

int main(void)
{
    struct oato_error err;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_layer_gives_what_the_cpu_gives),
        cmocka_unit_test(two_devices_that_wait_for_each_other_agree_with_one),
        cmocka_unit_test(gpus_that_reach_each_other_agree_with_one),
        cmocka_unit_test(steps_queue_up_in_order),
        cmocka_unit_test(what_was_signalled_has_happened),
        cmocka_unit_test(signals_are_as_many_as_a_step_wants),
        cmocka_unit_test(a_dead_gpu_is_noticed),
        cmocka_unit_test(steps_of_a_size_that_comes_again_are_graphs),
        cmocka_unit_test(the_persistent_kernel_takes_the_place_of_graphs),
        cmocka_unit_test(a_way_is_chosen_for_programs_to_come),
        cmocka_unit_test(an_unknown_way_is_refused),
        cmocka_unit_test(kernels_of_a_span_overlap),
        cmocka_unit_test(a_norm_packs_for_the_products_behind_it),
        cmocka_unit_test(rotations_and_the_store_are_one_kernel),
        cmocka_unit_test(attention_packs_and_a_product_adds),
        cmocka_unit_test(gate_up_packs_for_down),
        cmocka_unit_test(sums_take_the_place_of_what_nobody_reads),
        cmocka_unit_test(memory_is_counted_against_the_budget),
        cmocka_unit_test(what_it_cannot_do_is_refused),
        cmocka_unit_test(a_failed_record_fails_the_step_and_who_waits),
        cmocka_unit_test(a_dead_host_strands_the_device),
        cmocka_unit_test(releasing_gives_up_what_waits),
    };
    if (!cuda_driver_open(&err)) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
