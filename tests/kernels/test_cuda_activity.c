/*
 * The recorder of a GPU's activity, on the emulated CUPTI, whose clock moves by what is declared:
 * how long kernels and copies ran before each mark, whatever the order in which their records come,
 * and no answer at all when one is missing. And a device's clocks by it.
 */
#include "kernels/cuda/cuda_activity.h"
#include "kernels/cuda/cuda_kernels.h"
#include "tests/kernels/cuda_rig.h"

enum { KERNEL_NS = 3000, COPY_NS = 500, GAP_NS = 700 };

static void mark(void)
{
    struct cuda_mark_args nothing = {0};
    launch(CUDA_MARK_KERNEL, 1, 1, 0, &nothing);
}

static void work(int kernels)
{
    struct cuda_read_args a = {0};
    while (kernels--)
        launch("read_all", 1, READ_THREADS, 0, &a);
}

static void start(void)
{
    struct oato_error err;
    if (cuda_activity_start(cu->version, &err))
        fail_msg("%s", err.text);
}

static void assert_takes(uint32_t n, const uint64_t *expected)
{
    uint64_t busy[8];
    struct oato_error err;
    DO(cu->stream_synchronize(stream));
    if (cuda_activity_take(n, busy, &err))
        fail_msg("%s", err.text);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(busy[i], expected[i]);
}

static void work_counts_and_what_lies_between_does_not(void **state)
{
    uint8_t bytes[1600] = {0};
    (void)state;
    cu_address memory = device_alloc(sizeof bytes);
    start();
    work(1);
    mark();
    work(3);
    mark();
    mark();
    DO(cu->upload(memory, bytes, sizeof bytes, stream));
    work(1);
    DO(cu->fill(memory, 0, sizeof bytes, stream));
    mark();
    const uint64_t copy = COPY_NS + sizeof bytes / 16, first = KERNEL_NS, second = 4 * KERNEL_NS;
    assert_takes(4, (uint64_t[]){first, second, second, second + KERNEL_NS + 2 * copy});
    /* more than a buffer, from zero again */
    work(250);
    mark();
    assert_takes(1, (uint64_t[]){250 * KERNEL_NS});
    cuda_activity_stop();
    DO(cu->memory_free(memory));
}

static void nothing_is_recorded_before_and_after(void **state)
{
    (void)state;
    work(5);
    mark();
    DO(cu->stream_synchronize(stream));
    start();
    work(2);
    mark();
    assert_takes(1, (uint64_t[]){2 * KERNEL_NS});
    work(2);
    DO(cu->stream_synchronize(stream));
    cuda_activity_stop();
    start();
    mark();
    assert_takes(1, (uint64_t[]){0});
    cuda_activity_stop();
}

static void a_missing_mark_is_no_measurement(void **state)
{
    struct oato_error err;
    uint64_t busy[2];
    (void)state;
    setenv("OATO_CUDA_ON_CPU_CUPTI_LOSES", "3", 1);
    start();
    work(2);
    mark();
    mark();
    DO(cu->stream_synchronize(stream));
    assert_int_equal(cuda_activity_take(2, busy, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "1 of 2 marks"));
    /* the next one is not disturbed by what was left */
    mark();
    work(1);
    mark();
    assert_takes(2, (uint64_t[]){0, KERNEL_NS});
    cuda_activity_stop();
    unsetenv("OATO_CUDA_ON_CPU_CUPTI_LOSES");
    /* nor is dropped work */
    setenv("OATO_CUDA_ON_CPU_CUPTI_DROPS", "1", 1);
    start();
    work(1);
    mark();
    DO(cu->stream_synchronize(stream));
    assert_int_equal(cuda_activity_take(1, busy, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "1 records were dropped"));
    cuda_activity_stop();
    unsetenv("OATO_CUDA_ON_CPU_CUPTI_DROPS");
}

static void there_is_one_recorder(void **state)
{
    struct oato_error err;
    (void)state;
    start();
    assert_int_equal(cuda_activity_start(cu->version, &err), OATO_EUSAGE);
    cuda_activity_stop();
    start();
    cuda_activity_stop();
}

/* ------------------------------------------------------------------------------- devices -- */

enum { ADDS = 6, WIDTH = 32 };

/* A device, and a program of additions of which the first and the last but one signal. */
struct adder {
    struct oato_device *device;
    struct program_record records[ADDS];
    struct program program;
    struct compiled *compiled;
    void *arena;
};

static void adder_open(struct adder *a)
{
    struct oato_error err;
    memset(a, 0, sizeof *a);
    if (device_open("cuda", 0, &(struct device_options){0}, &a->device, &err) ||
        a->device->ops->alloc(a->device, 3 * WIDTH * sizeof(float), &a->arena, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < ADDS; i++)
        a->records[i] =
            (struct program_record){.op = {.kind = OP_ADD, .dtype = DT_F32, .k = WIDTH, .n = WIDTH},
                                    .kind = RECORD_RUN,
                                    .n_in = 2,
                                    .n_out = 1,
                                    .kv_layer = -1,
                                    .in_width = {WIDTH, WIDTH},
                                    .in = {0, WIDTH * sizeof(float)},
                                    .out = {2 * WIDTH * sizeof(float)}};
    a->records[0].signal = 1;
    a->records[ADDS - 2].signal = 2;
    a->program = (struct program){.records = a->records,
                                  .n_records = ADDS,
                                  .n_signals = 2,
                                  .max_tokens = 1,
                                  .max_rows = 1,
                                  .max_seqs = 1,
                                  .arena = a->arena};
    if (a->device->ops->compile(a->device, &a->program, 0, &a->compiled, &err))
        fail_msg("%s", err.text);
}

static void adder_close(struct adder *a)
{
    a->device->ops->release(a->device, a->compiled);
    a->device->ops->free(a->device, a->arena, 3 * WIDTH * sizeof(float));
    a->device->ops->close(a->device);
}

/* One step; the time between its signals by the device's clocks. */
static uint64_t adder_run(const struct adder *a)
{
    struct timeline *t = a->device->ops->timeline(a->device);
    const uint64_t base = atomic_load(&t->value);
    const struct step step = {
        .n_tokens = 1, .n_rows = 1, .n_seqs = 0, .timeline = &t, .timeline_base = &base};
    uint64_t first = 0, last = 0;
    struct oato_error err;
    if (a->device->ops->submit(a->device, a->compiled, &step, &err) ||
        a->device->ops->finish(a->device, &err))
        fail_msg("%s", err.text);
    assert_true(timeline_wait(t, base + 1, &first) && timeline_wait(t, base + 2, &last));
    return last - first;
}

static void a_devices_clocks_tell_its_work(void **state)
{
    struct adder a;
    struct oato_error why;
    (void)state;
    adder_open(&a);
    assert_true(a.device->ops->measure(a.device, CLOCK_WORKS, &why));
    for (int i = 0; i < 3; i++)
        assert_int_equal(adder_run(&a), (ADDS - 2) * KERNEL_NS);
    assert_true(a.device->ops->measure(a.device, CLOCK_USUAL, &why));
    assert_int_not_equal(adder_run(&a), (ADDS - 2) * KERNEL_NS);
    assert_true(a.device->ops->measure(a.device, CLOCK_PASSES, &why));
    assert_in_range(adder_run(&a), 1, 1000000000);
    double rate = 0;
    assert_int_equal(a.device->ops->read_rate(a.device, &rate, &why), OATO_OK);
    assert_true(rate > 1e6 && rate < 1e12);
    adder_close(&a);
}

static void without_records_time_passes(void **state)
{
    struct adder a;
    struct oato_error why;
    (void)state;
    adder_open(&a);
    setenv("OATO_CUDA_ON_CPU_CUPTI_LOSES", "3", 1); /* after a step's arrays and a record */
    assert_true(a.device->ops->measure(a.device, CLOCK_WORKS, &why));
    for (int i = 0; i < 2; i++) /* of the first step a mark is lost */
        assert_true((adder_run(&a) == (ADDS - 2) * KERNEL_NS) == (i == 1));
    assert_false(a.device->ops->measure(a.device, CLOCK_USUAL, &why));
    assert_non_null(strstr(why.text, "CUPTI"));
    unsetenv("OATO_CUDA_ON_CPU_CUPTI_LOSES");
    assert_true(a.device->ops->measure(a.device, CLOCK_WORKS, &why));
    assert_int_equal(adder_run(&a), (ADDS - 2) * KERNEL_NS);
    adder_close(&a); /* while it is measured */
    start();         /* and the recorder is free again */
    cuda_activity_stop();
}

/* Run as a program of its own: the library is opened once. */
static int without_cupti(void)
{
    struct oato_error err;
    setenv("OATO_CUPTI", "/nowhere/libcupti.so", 1);
    open_driver();
    return cuda_activity_start(cu->version, &err) == OATO_EDEVICE && strstr(err.text, "/nowhere")
               ? EXIT_SUCCESS
               : EXIT_FAILURE;
}

static void without_a_library_it_says_so(void **state)
{
    char text[512];
    (void)state;
    const int status = run_again("without-cupti", text, sizeof text);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), EXIT_SUCCESS);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        DEVICE_TEST(work_counts_and_what_lies_between_does_not),
        DEVICE_TEST(nothing_is_recorded_before_and_after),
        DEVICE_TEST(a_missing_mark_is_no_measurement),
        DEVICE_TEST(there_is_one_recorder),
        cmocka_unit_test(a_devices_clocks_tell_its_work),
        cmocka_unit_test(without_records_time_passes),
        cmocka_unit_test(without_a_library_it_says_so),
    };
    char number[16];
    if (argc > 1 && !strcmp(argv[1], "without-cupti"))
        return without_cupti();
    snprintf(number, sizeof number, "%d", KERNEL_NS);
    setenv("OATO_CUDA_ON_CPU_KERNEL_NS", number, 1);
    snprintf(number, sizeof number, "%d", COPY_NS);
    setenv("OATO_CUDA_ON_CPU_COPY_NS", number, 1);
    snprintf(number, sizeof number, "%d", GAP_NS);
    setenv("OATO_CUDA_ON_CPU_GAP_NS", number, 1);
    open_driver();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
