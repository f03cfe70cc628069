/*
 * test_cuda_device.c - a CUDA device behind the device interface: a whole layer, work divided with
 * the CPU, steps that queue up, memory that is counted, and failures that are told. On the emulated
 * GPU of tests/cuda_on_cpu/ (OATO_CUDA_DRIVER) or, labelled gpu, on a real one.
 */
#include "kernels/cuda/cuda_device.h"
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

/* Of a rig. */
enum { ARENA_BYTES = RIG_VALUES * RIG_TOKENS * RIG_WIDTH * (int)sizeof(float) };

static int streams_destroyed, late;

static cu_result see_stream_destroyed(cu_stream stream)
{
    streams_destroyed++;
    return uncounted.stream_destroy(stream);
}

static cu_result see_graph_destroyed(cu_graph_exec exec)
{
    late += streams_destroyed;
    return uncounted.graph_exec_destroy(exec);
}

/* With a program that nobody released. */
static void a_device_closes_what_uses_its_streams_first(void **state)
{
    (void)state;
    struct rig *gpu = rig_create("cuda:0", 0);
    struct oato_error err;
    for (int i = 0; i < 3; i++)
        rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = i == 2;
    rig_compile(gpu, NULL);
    count_begin();
    for (int i = 0; i < 3; i++) {
        struct step step = {.n_tokens = 1, .n_seqs = 1};
        rig_step(&gpu, 1, &step);
    }
    assert_int_equal(graph_launches, 2);
    if (gpu->d->ops->finish(gpu->d, &err))
        fail_msg("%s", err.text);
    counted->stream_destroy = see_stream_destroyed;
    counted->graph_exec_destroy = see_graph_destroyed;
    gpu->d->ops->free(gpu->d, gpu->p.arena, ARENA_BYTES);
    gpu->d->ops->close(gpu->d);
    assert_int_equal(streams_destroyed, 3);
    assert_int_equal(late, 0);
    gpu->d = NULL;
    rig_free(gpu);
    count_end();
}

static void values_lie_where_kernels_can_load_them(void **state)
{
    (void)state;
    struct rig *gpu = rig_create("cuda:0", 0);
    struct oato_error err;
    rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){2}, NULL)->signal = 1;
    for (int i = 0; i < 3; i++) {
        uint64_t *offset = i < 2 ? &gpu->records[0].in[i] : &gpu->records[0].out[0];
        *offset += 4;
        assert_int_equal(gpu->d->ops->compile(gpu->d, rig_program(gpu), 0, &gpu->c, &err),
                         OATO_EUSAGE);
        assert_string_equal(err.text,
                            "cuda:0: record 0: offsets of values must be multiples of 16");
        *offset -= 4;
    }
    rig_free(gpu);
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

static bool emulated(void)
{
    const char *driver = getenv("OATO_CUDA_DRIVER");
    return driver && strstr(driver, "cuda-on-cpu");
}

static void what_it_cannot_do_is_refused(void **state)
{
    (void)state;
    struct oato_device *d = NULL;
    struct oato_error err;
    assert_int_equal(device_open("cuda:900", 0, NULL, &d, &err), OATO_EDEVICE);
    assert_int_equal(device_open("cuda:vram=1GiB", 0, NULL, &d, &err), OATO_EUSAGE);
    static const struct {
        const char *result, *says;
    } loads[] = {{"222", "compiles no PTX of CUDA "}, {"209", "this build has kernels for "}};
    for (size_t i = 0; emulated() && i < ARRAY_LEN(loads); i++) {
        setenv("OATO_CUDA_ON_CPU_LOADS", loads[i].result, 1);
        assert_int_equal(device_open("cuda", 0, NULL, &d, &err), OATO_EDEVICE);
        unsetenv("OATO_CUDA_ON_CPU_LOADS");
        if (!strstr(err.text, "made without a CUDA compiler"))
            assert_non_null(strstr(err.text, loads[i].says));
    }
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
        cmocka_unit_test(a_device_closes_what_uses_its_streams_first),
        cmocka_unit_test(values_lie_where_kernels_can_load_them),
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
