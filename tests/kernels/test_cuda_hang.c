/*
 * test_cuda_hang.c - a GPU that does not end its work: the step fails after a limit, whoever waits
 * is told, and closing waits for nothing. On the emulated GPU of tests/cuda_on_cpu/
 * (OATO_CUDA_DRIVER); no real one has been made to hang.
 */
#include "kernels/cuda/cuda_device.h"
#include "tests/kernels/cuda_counts.h"
#include "tests/kernels/device_rig.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A rig one of whose launches does not end while the test waits; way 1: events tell. */
static struct rig *rig_that_hangs(const char *launch, const char *limit, int way)
{
    setenv("OATO_CUDA_ON_CPU_FAIL", launch, 1);
    setenv("OATO_CUDA_STEP_LIMIT", limit, 1);
    setenv("OATO_CUDA_ON_CPU_STREAM_WRITES", way ? "0" : "1", 1);
    struct rig *gpu = rig_create("cuda:0", 1);
    unsetenv("OATO_CUDA_STEP_LIMIT");
    unsetenv("OATO_CUDA_ON_CPU_STREAM_WRITES");
    return gpu;
}

/* Here the driver does work once the kernel has ended: all is freed. */
static void rig_free_hung(struct rig *gpu)
{
    struct cuda_device *d = cuda_of(gpu->d);
    assert_true(d->cu == cuda_driver_none());
    unsetenv("OATO_CUDA_ON_CPU_FAIL");
    d->cu = cuda_driver_open(NULL);
    d->hung = false;
    rig_free(gpu);
}

/* The step ends after the limit, who waits for the GPU is told, and so is who asks it for more. */
static void a_kernel_that_hangs_ends_the_step(void **state)
{
    (void)state;
    for (int way = 0; way < 2; way++) { /* streams that write; events */
        struct timeline host;
        struct oato_error err;
        float x[64] = {0};
        const struct step step = {.n_tokens = 1, .n_seqs = 1};
        struct rig *gpu = rig_that_hangs("hang=2", "0.2", way);
        struct timeline *t = gpu->d->ops->timeline(gpu->d);
        timeline_init(&host);
        for (uint32_t r = 1; r <= 3; r++)
            rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = r;
        rig_compile(gpu, NULL);
        const uint64_t begin_ns = now_ns();
        rig_submit_beside(gpu, &host, &step);
        assert_true(timeline_wait(t, 1, NULL));
        assert_false(timeline_wait(t, 2, NULL));
        assert_int_equal(atomic_load(&t->failed), TIMELINE_DIED);
        assert_int_equal(gpu->d->ops->finish(gpu->d, &err), OATO_EDEVICE);
        assert_in_range(now_ns() - begin_ns, UINT64_C(200000000), UINT64_C(20000000000));
        assert_string_equal(err.text, "cuda:0: the GPU has been at the same work for 0.2 s and is "
                                      "left as it is; look for its error in the kernel's log "
                                      "(dmesg), or raise OATO_CUDA_STEP_LIMIT");
        assert_int_equal(gpu->d->ops->upload(gpu->d, gpu->p.arena, 0, x, sizeof x, NULL, &err),
                         OATO_EDEVICE);
        assert_non_null(strstr(err.text, "the same work for 0.2 s"));
        rig_free_hung(gpu);
    }
}

/* Launches do not go on until the driver itself would wait for room. */
static void few_launches_are_ahead_of_a_gpu_that_hangs(void **state)
{
    (void)state;
    enum { RECORDS = 2000, LAUNCHES_MOST = 512 };
    struct timeline host;
    struct oato_error err;
    const struct step step = {.n_tokens = RIG_TOKENS, .n_seqs = 1};
    struct program_record *records = calloc(RECORDS, sizeof *records);
    assert_non_null(records);
    setenv("OATO_CUDA_GRAPHS", "0", 1);
    struct rig *gpu = rig_that_hangs("hang=1", "0.2", 0);
    unsetenv("OATO_CUDA_GRAPHS");
    timeline_init(&host);
    rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL);
    for (uint32_t i = 0; i < RECORDS; i++)
        records[i] = gpu->records[0];
    records[RECORDS - 1].signal = 1;
    gpu->p.records = records;
    gpu->p.n_records = RECORDS;
    gpu->p.n_signals = 1;
    if (gpu->d->ops->compile(gpu->d, &gpu->p, 0, &gpu->c, &err))
        fail_msg("%s", err.text);
    count_begin();
    rig_submit_beside(gpu, &host, &step);
    assert_int_equal(gpu->d->ops->finish(gpu->d, &err), OATO_EDEVICE);
    assert_in_range(launches, 64, LAUNCHES_MOST);
    count_end();
    rig_free_hung(gpu);
    free(records);
}

/* Where nothing is signalled, too: memory that is cleared, a value that is sent. */
static void a_copy_that_hangs_fails(void **state)
{
    (void)state;
    struct timeline host;
    struct oato_error err;
    void *p = NULL;
    float x[64] = {0};
    const struct step step = {.n_tokens = 1, .n_seqs = 1};
    struct rig *gpu = rig_that_hangs("hang=1", "0.2", 0);
    timeline_init(&host);
    rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = 1;
    rig_compile(gpu, NULL);
    count_begin();
    rig_submit_beside(gpu, &host, &step);
    while (!launches)
        sched_yield();
    count_end();
    assert_int_equal(gpu->d->ops->alloc(gpu->d, 64, &p, &err), OATO_EDEVICE);
    assert_int_equal(gpu->d->ops->download(gpu->d, x, gpu->p.arena, 0, sizeof x, NULL, &err),
                     OATO_EDEVICE);
    rig_free_hung(gpu);
}

static void a_kernel_that_hangs_is_left_sooner_after_an_interrupt(void **state)
{
    (void)state;
    struct timeline host;
    struct oato_error err;
    const struct step step = {.n_tokens = 1, .n_seqs = 1};
    struct rig *gpu = rig_that_hangs("hang=1", "0", 1);
    timeline_init(&host);
    rig_put(gpu, "add/k64", 2, (int[]){0, 1}, 1, (int[]){1}, NULL)->signal = 1;
    rig_compile(gpu, NULL);
    const uint64_t begin_ns = now_ns();
    rig_submit_beside(gpu, &host, &step);
    oato_interrupted = 1;
    assert_int_equal(gpu->d->ops->finish(gpu->d, &err), OATO_EDEVICE);
    oato_interrupted = 0;
    assert_in_range(now_ns() - begin_ns, UINT64_C(4000000000), UINT64_C(60000000000));
    assert_string_equal(err.text, "cuda:0: a kernel is still running 5 s after the interrupt; "
                                  "leaving the GPU as it is");
    rig_free_hung(gpu);
}

static void limits_are_numbers(void **state)
{
    (void)state;
    static const char *const wrong[] = {"soon", "-1", "1e9", "nan", "5s"};
    struct oato_device *d = NULL;
    struct oato_error err;
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        setenv("OATO_CUDA_STEP_LIMIT", wrong[i], 1);
        assert_int_equal(device_open("cuda", 0, NULL, &d, &err), OATO_EUSAGE);
        assert_non_null(strstr(err.text, wrong[i]));
    }
    unsetenv("OATO_CUDA_STEP_LIMIT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_that_hangs_ends_the_step),
        cmocka_unit_test(few_launches_are_ahead_of_a_gpu_that_hangs),
        cmocka_unit_test(a_copy_that_hangs_fails),
        cmocka_unit_test(a_kernel_that_hangs_is_left_sooner_after_an_interrupt),
        cmocka_unit_test(limits_are_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
