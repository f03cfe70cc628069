/*
 * test_profile_spans.c - the profile of a device that compiles spans: what a call costs, once, and
 * not in the times of operators, which are taken at the device's own numbers of rows; whole layers
 * then add up to their rows and calls, and nothing is left for an overhead of records.
 */
#include "profiler/profiler.h"
#include "tests/profiler/profiler_testing.h"

#include <math.h>

#define SIM                                                                                        \
    "sim:vram=64MiB,read=1GB/s,flops=1G,link=10GB/s,launch=0s,spans=on,rows=1+16+256,unit=220us,"  \
    "class=f32.sim"

static void a_call_is_measured_once_and_rows_are_the_devices(void **state)
{
    (void)state;
    static const int32_t rows[DEVICE_ROWS] = {1, 16, 256};
    struct oato_error err;
    struct model *m = NULL;
    struct profile p;
    struct profiler_report report;
    struct random_model shape = random_model_default();
    const struct profiler_options o = {.devices = "cpu," SIM,
                                       .kv = DT_F16,
                                       .quick = true,
                                       .threads = 1,
                                       .contexts = {64},
                                       .n_contexts = 1};
    shape.vocab = 320;
    shape.dtype = DT_Q8_0;
    shape.tokenizer = false;
    if (random_model_open(&shape, &m, &err) || profiler_begin(NULL, false, &p, NULL, NULL, &err) ||
        profiler_measure(&p, m, &o, NULL, NULL, &report, &err)) {
        fail_msg("%s", err.text);
        return;
    }
    const int32_t index = profile_device_index(&p, "sim:0");
    assert_in_range(index, 0, p.n_devices - 1);
    const struct profile_device *d = &p.devices[index];
    assert_true(d->spans && !d->compile_cached && d->compile_s == 0); /* nothing is compiled */
    assert_memory_equal(d->rows, rows, sizeof rows);
    assert_true(fabs(d->unit_overhead_ns - 220e3) < 10);
    assert_true(d->record_overhead_ns < 10 && d->rows_overhead == 0);
    int32_t n = 0;
    for (int32_t i = 0; i < p.n_rows; i++) {
        const struct profile_row *r = &p.rows[i];
        if (r->device != index || !op_spans(&r->op))
            continue;
        const double declared = fmax(op_bytes(&r->op, &r->size), op_flops(&r->op, &r->size));
        n++;
        assert_true(r->size.rows == 1 || r->size.rows == 16 || r->size.rows == 256);
        assert_true(fabs(r->median_ns - fmax(declared, 1)) < 10);
        assert_string_equal(r->numerics, "f32.sim");
    }
    assert_true(n > 20);
    profile_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_is_measured_once_and_rows_are_the_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
