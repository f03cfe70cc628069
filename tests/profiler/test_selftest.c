/*
 * test_selftest.c - oato-run selftest: a simulated device is right, in all cases that it should be
 * tried in; a wrong number, a number beside an output and a device that fails are found and named;
 * the report has no paths.
 *
 * What a device gets wrong is put behind the CPU's kernels, which the simulated device runs.
 */
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/device.h"
#include "profiler/profiler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum { NO_FAULT, WRONG_NUMBER, OUTSIDE, INPUT, FAILS } fault;

void __real_cpu_run_alone(const struct cpu_context *c, const struct program_record *r,
                          const struct step *step);
void __wrap_cpu_run_alone(const struct cpu_context *c, const struct program_record *r,
                          const struct step *step);
oato_status __real_device_open(const char *spec, int index, const struct device_options *options,
                               struct oato_device **out, struct oato_error *err);
oato_status __wrap_device_open(const char *spec, int index, const struct device_options *options,
                               struct oato_device **out, struct oato_error *err);

void __wrap_cpu_run_alone(const struct cpu_context *c, const struct program_record *r,
                          const struct step *step)
{
    __real_cpu_run_alone(c, r, step);
    float *out = (float *)(void *)(c->arena + r->out[0]);
    const int64_t n = (int64_t)record_rows(r, step) * op_out_width(&r->op, 0);
    if (r->op.kind != OP_SWIGLU)
        return;
    if (fault == WRONG_NUMBER)
        out[n - 1] += 0.01f;
    if (fault == OUTSIDE)
        out[n] = 0;
    if (fault == INPUT)
        *(float *)(void *)(c->arena + r->in[1]) += 1;
}

oato_status __wrap_device_open(const char *spec, int index, const struct device_options *options,
                               struct oato_device **out, struct oato_error *err)
{
    oato_status status = __real_device_open(spec, index, options, out, err);
    if (!status && fault == FAILS && !strncmp(spec, "sim", 3))
        status = (*out)->ops->inject_error(*out, "record=9", err);
    return status;
}

static struct text people, json;

static oato_status run(const struct selftest_options *o, struct oato_error *err)
{
    text_free(&people);
    text_free(&json);
    return selftest_run(o, &people, &json, err);
}

static void says(const struct text *t, const char *what)
{
    if (!strstr(or_empty(t->data), what))
        fail_msg("'%s' is not in:\n%s", what, or_empty(t->data));
}

/* The number behind a key. */
static int64_t number(const char *key)
{
    const char *at = strstr(or_empty(json.data), key);
    assert_non_null(at);
    return strtoll(at + strlen(key), NULL, 10);
}

static void a_device_is_right(void **state)
{
    (void)state;
    struct oato_error err = {0};
    const struct selftest_options o = {.device = "sim:vram=256MiB", .threads = 1, .quick = true};
    if (run(&o, &err))
        fail_msg("%s\n%s", err.text, or_empty(people.data));
    says(&json, "\"verdict\":\"right\"");
    says(&json, "\"kind\":\"sim\"");
    static const char speed[] = "\"to_device\":{\"bytes_per_s\":";
    const char *declared = strstr(or_empty(json.data), speed);
    assert_non_null(declared);
    assert_float_equal(strtod(declared + strlen(speed), NULL), 2.5e10, 1e8);
    says(&json, "\"same\":16");
    says(&people, "All is as it should be");
    assert_true(number("\"cases\":") > 500);
    assert_int_equal(number("\"wrong\":"), 0);
    assert_null(strstr(json.data, "\"/"));
    for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT; kind++) {
        char found[64];
        snprintf(found, sizeof found, "{\"kind\":\"%s\"", op_kind_name(kind));
        says(&json, found);
    }
}

static void faults_are_found(void **state)
{
    static const char *const why[] = {[WRONG_NUMBER] = "row 0 column 999",
                                      [OUTSIDE] = "written outside the outputs",
                                      [INPUT] = "input 1 was overwritten"};
    const struct selftest_options o = {.device = "sim", .only = "swiglu", .quick = true};
    struct oato_error err = {0};
    (void)state;
    for (fault = WRONG_NUMBER; fault <= INPUT; fault++) {
        assert_int_equal(run(&o, &err), OATO_NEGATIVE);
        says(&json, "\"verdict\":\"wrong\"");
        says(&json, "swiglu/k1000/t1 decode");
        says(&json, why[fault]);
        says(&people, why[fault]);
        assert_int_equal(number("\"wrong\":"), number("\"cases\":"));
    }
    fault = NO_FAULT;
    assert_int_equal(run(&o, &err), OATO_OK);
}

static void a_device_that_fails_is_told(void **state)
{
    const struct selftest_options o = {.device = "sim", .only = "add", .threads = 1};
    struct oato_error err = {0};
    (void)state;
    fault = FAILS;
    const oato_status status =
        run(&(struct selftest_options){.device = "sim", .quick = true}, &err);
    fault = NO_FAULT;
    assert_int_equal(status, OATO_EDEVICE);
    says(&json, "\"verdict\":\"failed\"");
    assert_true(number("\"cases\":") > 0); /* those before it */
    assert_int_equal(run(&o, &err), OATO_OK);
}

static void mistakes_are_one_line(void **state)
{
    static const struct selftest_options rows[] = {
        {.device = "gpu"},
        {.device = "sim:speed=9"},
        {.device = "sim,sim"},
        {.device = "sim", .only = "mul_mad"},
        {.device = "sim", .only = "mul_mat/Q9"},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct oato_error err = {0};
        assert_int_equal(run(&rows[i], &err), OATO_EUSAGE);
        assert_true(err.text[0] && !strchr(err.text, '\n'));
        assert_int_equal(json.len, 0);
    }
}

static void files_are_named_after_devices(void **state)
{
    static const char *const rows[][2] = {{"cuda:1", "selftest-cuda-1.json"},
                                          {"sim:vram=1GiB", "selftest-sim-0.json"},
                                          {"cpu", "selftest-cpu-0.json"}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        char name[64];
        selftest_file_name(rows[i][0], name, sizeof name);
        assert_string_equal(name, rows[i][1]);
    }
}

static int clean(void **state)
{
    (void)state;
    text_free(&people);
    text_free(&json);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_is_right),
        cmocka_unit_test(faults_are_found),
        cmocka_unit_test(a_device_that_fails_is_told),
        cmocka_unit_test(mistakes_are_one_line),
        cmocka_unit_test(files_are_named_after_devices),
    };
    return cmocka_run_group_tests(tests, NULL, clean);
}
