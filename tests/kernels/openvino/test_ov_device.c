/*
 * test_ov_device.c - the device openvino, on OpenVINO's kernels for the CPU: its programs compute
 * what the cpu device does for any number of rows, in memory that nobody else can read and within
 * its budget; it fails without leaving anybody waiting, and leaves no thread behind. Skipped where
 * OpenVINO is not installed.
 */
#include "kernels/openvino/ov_device.h"
#include "tests/kernels/device_rig.h"
#include "tests/kernels/openvino/ov_test.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SPEC "openvino:device=CPU"

enum { WIDTH = 32, MOST = 300, SLOTS = 5 /* of the rig's, a value of so many rows */ };

static struct timeline fake; /* of device 0, beside which the rig's runs */

/* ------------------------------------------------------------------------------- memory --- */

/* The signal that ends a child which reads *address; 0 when it lives. */
static int signal_of_reading(const void *address)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        signal(SIGSEGV, SIG_DFL);
        _exit(*(const volatile char *)address == 0 ? 0 : 1);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static uint64_t free_bytes(const struct oato_device *d)
{
    struct device_info info;
    d->ops->info(d, &info);
    return info.free_bytes;
}

static void its_memory_is_its_own(void **state)
{
    const struct device_options options = {.budget_bytes = 1 << 20};
    struct oato_device *d;
    struct oato_error err;
    void *memory, *more;
    char here[100], back[100] = "";
    (void)state;
    memset(here, 'x', sizeof here);
    assert_int_equal(device_open(SPEC, 0, &options, &d, &err), OATO_OK);
    assert_int_equal(free_bytes(d), 1 << 20);
    assert_int_equal(d->ops->alloc(d, 1000000, &memory, &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 1000000, &more, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "openvino:0: 1.0 MiB"));
    assert_null(strchr(err.text, '\n'));
    assert_int_equal(signal_of_reading(memory), SIGSEGV);
    assert_int_equal(d->ops->upload(d, memory, 999900, here, 100, NULL, &err), OATO_OK);
    uint64_t value = 0;
    assert_int_equal(d->ops->download(d, back, memory, 999900, 50, &value, &err), OATO_OK);
    assert_int_equal(d->ops->download(d, back + 50, memory, 999950, 50, NULL, &err), OATO_OK);
    assert_true(timeline_wait(d->ops->timeline(d), value, NULL));
    assert_memory_equal(here, back, sizeof here);
    assert_int_equal(d->ops->upload(d, memory, 999901, here, 100, NULL, &err), OATO_EUSAGE);
    assert_int_equal(d->ops->download(d, back, here, 0, 1, NULL, &err), OATO_EUSAGE);
    d->ops->free(d, memory, 1000000);
    assert_int_equal(d->ops->inject_error(d, "alloc=1", &err), OATO_OK);
    assert_int_equal(d->ops->alloc(d, 10, &memory, &err), OATO_EFIT);
    assert_int_equal(d->ops->alloc(d, 10, &memory, &err), OATO_OK);
    d->ops->close(d); /* whatever was not freed goes, too */
}

/* ------------------------------------------------------------------------------ programs -- */

/* A norm of value 0 to value `normed`, and a product of that to value `out`. */
static struct rig *create(const char *spec, int normed, int out)
{
    struct rig *g = rig_create(spec, 1);
    g->p.max_tokens = MOST;
    rig_put(g, "rms_norm/k32", 1, (int[]){0}, 1, (int[]){normed}, (int[]){rig_vector(g, WIDTH, 1)});
    rig_put(g, "mul_mat/F32/k32/n32", 1, (int[]){normed}, 1, (int[]){out},
            (int[]){rig_f32_matrix(g, WIDTH, WIDTH, 2)})
        ->signal = 1;
    rig_compile(g, NULL);
    return g;
}

static void run(struct rig *g, const float *in, int32_t rows, int out, float *to)
{
    const struct step step = {.n_tokens = rows, .n_seqs = 1};
    rig_write(g, 0, in, (size_t)rows * WIDTH * sizeof *in);
    rig_step_beside(g, &fake, &step);
    rig_read(g, out, to, (size_t)rows * WIDTH * sizeof *to);
}

static void check_alike(const float *got, const float *expected, int32_t rows)
{
    double error = 0, square = 0;
    for (int32_t i = 0; i < rows * WIDTH; i++) {
        const double e = (double)got[i] - (double)expected[i];
        error += e * e;
        square += (double)expected[i] * (double)expected[i];
    }
    if (error > 1e-9 * square)
        fail_msg("%d rows: NMSE %g", rows, error / square);
}

static void a_program_computes_what_the_cpu_does(void **state)
{
    static const int32_t rows[] = {1, 5, 16, 17, 256, 257, MOST};
    static float in[MOST * WIDTH], a[MOST * WIDTH], b[MOST * WIDTH], c[MOST * WIDTH];
    (void)state;
    struct rig *own = create(SPEC, SLOTS, 2 * SLOTS), *cpu = create("cpu", SLOTS, 2 * SLOTS);
    /* rows of the values lie in each other: what a run writes a later one would read */
    struct rig *dense = create(SPEC, 2, 3);
    rig_random(in, ARRAY_LEN(in), 7);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        run(cpu, in, rows[i], 2 * SLOTS, a);
        run(own, in, rows[i], 2 * SLOTS, b);
        run(dense, in, rows[i], 3, c);
        check_alike(b, a, rows[i]);
        assert_memory_equal(b, c, (size_t)rows[i] * WIDTH * sizeof *b);
    }
    rig_free(own);
    rig_free(cpu);
    rig_free(dense);
}

/* Two records as one function: what lies between them is never in the arena. */
static void a_span_is_one_function(void **state)
{
    static float in[16 * WIDTH], a[16 * WIDTH], b[16 * WIDTH], before[16 * WIDTH],
        after[16 * WIDTH];
    static const struct program_span span = {.begin = 0, .end = 2, .n_in = 1, .n_out = 1};
    struct oato_error err;
    (void)state;
    struct rig *alone = create(SPEC, SLOTS, 2 * SLOTS), *g = create(SPEC, SLOTS, 2 * SLOTS);
    const struct span_value values[] = {{g->records[0].in[0], WIDTH, ROWS_TOKENS, DT_F32},
                                        {g->records[1].out[0], WIDTH, ROWS_TOKENS, DT_F32}};
    g->d->ops->release(g->d, g->c);
    g->p.spans = &span;
    g->p.n_spans = 1;
    g->p.span_values = values;
    g->p.n_span_values = ARRAY_LEN(values);
    if (g->d->ops->compile(g->d, rig_program(g), 1, &g->c, &err))
        fail_msg("%s", err.text);
    rig_random(in, ARRAY_LEN(in), 8);
    rig_random(before, ARRAY_LEN(before), 9);
    rig_write(g, SLOTS, before, sizeof before);
    run(alone, in, 16, 2 * SLOTS, a);
    run(g, in, 16, 2 * SLOTS, b);
    rig_read(g, SLOTS, after, sizeof after);
    check_alike(b, a, 16);
    assert_memory_equal(before, after, sizeof before);
    rig_free(alone);
    rig_free(g);
}

static void what_it_cannot_run_is_refused(void **state)
{
    struct rig *g = rig_create(SPEC, 1);
    struct oato_error err;
    struct oato_op op;
    struct op_size size;
    (void)state;
    assert_true(oato_op_parse("rope/k64/h2/d32", &op, &size) == false ||
                !g->d->ops->supports(g->d, &op));
    rig_put(g, "kv_copy", 0, NULL, 0, NULL, NULL)->signal = 1;
    assert_int_equal(g->d->ops->compile(g->d, rig_program(g), 1, &g->c, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "openvino:1: record 0: cannot run kv_copy"));
    rig_free(g);
}

/* --------------------------------------------------------------------------- failures ----- */

static void an_injected_record_kills_the_device(void **state)
{
    struct rig *g = create(SPEC, SLOTS, 2 * SLOTS);
    const struct step step = {.n_tokens = 2, .n_seqs = 1};
    struct oato_error err;
    (void)state;
    assert_int_equal(g->d->ops->inject_error(g->d, "record=4", &err), OATO_OK);
    rig_step_beside(g, &fake, &step);
    rig_submit_beside(g, &fake, &step);
    assert_int_equal(g->d->ops->finish(g->d, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "openvino:1: injected failure at record 1"));
    assert_false(timeline_wait(g->d->ops->timeline(g->d), 2, NULL));
    rig_free(g);
}

static void the_failure_of_another_device_is_passed_on(void **state)
{
    struct timeline dead;
    struct rig *g = rig_create(SPEC, 1);
    const struct step step = {.n_tokens = 1, .n_seqs = 1};
    struct oato_error err;
    (void)state;
    timeline_init(&dead);
    rig_wait(rig_put_copy(g, RECORD_UPLOAD, WIDTH, 0, 0), 0, 1);
    rig_compile(g, NULL);
    rig_submit_beside(g, &dead, &step);
    timeline_fail(&dead, TIMELINE_DIED);
    assert_int_equal(g->d->ops->finish(g->d, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "record 0 waited for"));
    rig_free(g);
}

static void it_can_be_closed_while_it_waits(void **state)
{
    struct rig *g = rig_create(SPEC, 1);
    const struct step step = {.n_tokens = 1, .n_seqs = 1};
    (void)state;
    rig_wait(rig_put_copy(g, RECORD_UPLOAD, WIDTH, 0, 0), 0, 1);
    rig_compile(g, NULL);
    rig_submit_beside(g, &fake, &step);
    rig_free(g);
}

static int threads(void)
{
    DIR *folder = opendir("/proc/self/task");
    int n = 0;
    assert_non_null(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

static void it_has_one_thread_and_leaves_none(void **state)
{
    static float in[WIDTH], out[WIDTH];
    (void)state;
    const int before = threads();
    struct rig *g = create(SPEC, SLOTS, 2 * SLOTS);
    run(g, in, 1, 2 * SLOTS, out);
    assert_int_equal(threads(), before + 1);
    rig_free(g);
    assert_int_equal(threads(), before);
}

static void what_it_says_of_itself(void **state)
{
    struct oato_device *d = rig_open(SPEC);
    struct device_info info;
    struct oato_op op;
    (void)state;
    d->ops->info(d, &info);
    assert_string_equal(info.kind, "openvino");
    assert_true(info.spans && !info.is_host && info.free_bytes <= info.memory_bytes);
    assert_memory_equal(info.rows, ((int32_t[DEVICE_ROWS]){1, 16, 256}), sizeof info.rows);
    assert_non_null(strstr(d->ops->warning(d), "slower"));
    assert_true(op_example(OP_MUL_MAT, DT_Q4_0, &op));
    assert_string_equal(d->ops->numerics(d, &op, NUMERICS_DECODE), "f32.openvino");
    assert_string_equal(d->ops->numerics(d, &op, NUMERICS_LIBRARY), "f32.openvino");
    d->ops->close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_memory_is_its_own),
        cmocka_unit_test(it_has_one_thread_and_leaves_none),
        cmocka_unit_test(a_program_computes_what_the_cpu_does),
        cmocka_unit_test(a_span_is_one_function),
        cmocka_unit_test(what_it_cannot_run_is_refused),
        cmocka_unit_test(an_injected_record_kills_the_device),
        cmocka_unit_test(the_failure_of_another_device_is_passed_on),
        cmocka_unit_test(it_can_be_closed_while_it_waits),
        cmocka_unit_test(what_it_says_of_itself),
    };
    if (!ov_test_library()) {
        puts("no OpenVINO here: scripts/setup installs it");
        return 77;
    }
    timeline_init(&fake);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
