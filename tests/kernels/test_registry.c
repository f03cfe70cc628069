/*
 * test_registry.c - specs and lists of devices are split where a reader would, and what is wrong
 * with one is said in a line that lists what would be right.
 */
#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check_split(const char *list, const char *const *expected, int n)
{
    char specs[4][256];
    struct oato_error err;
    int got = device_split(list, specs, 4, &err);
    if (got != n)
        fail_msg("'%s' gave %d: %s", list, got, got < 0 ? err.text : "");
    for (int i = 0; i < n; i++)
        assert_string_equal(specs[i], expected[i]);
}

static void lists_are_split_at_devices(void **state)
{
    (void)state;
    check_split("cpu", (const char *[]){"cpu"}, 1);
    check_split("cpu,sim:vram=1GiB,link=25GB/s,sim:vram=2GiB",
                (const char *[]){"cpu", "sim:vram=1GiB,link=25GB/s", "sim:vram=2GiB"}, 3);
    check_split("cpu:0,sim:0,sim:1,vram=5MiB",
                (const char *[]){"cpu:0", "sim:0", "sim:1,vram=5MiB"}, 3);
    check_split("sim,vram=64MiB,cpu", (const char *[]){"sim:vram=64MiB", "cpu"}, 2);
    check_split("cpu,openvino:device=CPU,npu:1,npu",
                (const char *[]){"cpu", "openvino:device=CPU", "openvino:1:device=NPU",
                                 "openvino:device=NPU"},
                4);
}

static void check_refused(const char *list, const char *reason)
{
    char specs[4][256];
    struct oato_error err;
    assert_int_equal(device_split(list, specs, 4, &err), -1);
    assert_int_equal(err.status, OATO_EUSAGE);
    if (!strstr(err.text, reason))
        fail_msg("'%s': '%s' does not say '%s'", list, err.text, reason);
}

static void lists_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    check_refused("", "missing");
    check_refused("cpu,,sim", "missing");
    check_refused("cpu,", "missing");
    check_refused("vram=1GiB,cpu", "missing");
    check_refused("gpu", "known: cpu, cuda, ascend, openvino, sim");
    check_refused("cpu,gpu:0", "'gpu'");
    check_refused("cpu,gpu:a=b", "'gpu'");
    check_refused("cpux", "'cpux'");
    check_refused("cpu,sim,sim,sim,sim", "more than 4");
    char huge[600];
    snprintf(huge, sizeof huge, "sim:%0300d=1", 0);
    check_refused(huge, "exceeds 255");
}

static void check_open_refused(const char *spec, const char *reason)
{
    struct oato_device *d;
    struct oato_error err;
    assert_int_equal(device_open(spec, 0, NULL, &d, &err), OATO_EUSAGE);
    if (!strstr(err.text, reason))
        fail_msg("'%s': '%s' does not say '%s'", spec, err.text, reason);
}

static void specs_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    check_open_refused("", "known: cpu, cuda, ascend, openvino, sim");
    check_open_refused("rocm:0", "unknown device kind 'rocm'");
    check_open_refused("openvino:device=TPU", "device=NPU");
    check_open_refused("openvino:gpu=1", "device=NPU");
    check_open_refused("sim:1000", "index");
    check_open_refused("sim:99999999999999999999", "index");
    check_open_refused("sim:size=3", "known: vram, read, flops, link, latency, launch");
    check_open_refused("sim:0:vram", "vram=''");
    check_open_refused("sim:vram=64MB/s", "vram='64MB/s'");
    check_open_refused("sim:read=0", "above 0");
    check_open_refused("sim:latency=2m,launch=100", "launch='100'");
    check_open_refused("sim:flops=-1", "flops");
    char huge[300];
    snprintf(huge, sizeof huge, "sim:vram=%0200d", 1);
    check_open_refused(huge, "too long");
}

static void check_id(const char *spec, int index, const char *id)
{
    struct oato_device *d;
    struct oato_error err;
    struct device_info info;
    if (device_open(spec, index, NULL, &d, &err))
        fail_msg("%s: %s", spec, err.text);
    d->ops->info(d, &info);
    assert_string_equal(info.id, id);
    d->ops->close(d);
}

static void the_index_of_the_spec_wins(void **state)
{
    (void)state;
    check_id("cpu", 0, "cpu:0");
    assert_true(device_is_host("cpu") && device_is_host("cpu:0") && !device_is_host("sim:0") &&
                !device_is_host("cpus"));
    assert_ptr_equal(device_kind("npu:1"), &openvino_device_ops); /* by its other name, too */
    assert_ptr_equal(device_kind("cuda,cpu"), &cuda_device_ops);
    assert_null(device_kind("gpu:0"));
    assert_true(device_keeps_core("cuda:1") && !device_keeps_core("npu"));
    assert_true(device_keeps_core("openvino:device=CPU") && !device_keeps_core("openvino"));
    check_id("sim", 0, "sim:0");
    check_id("sim", 3, "sim:3");
    check_id("sim:2", 0, "sim:2");
    check_id("sim:2:vram=1MiB", 0, "sim:2");
    check_id("sim:2,vram=1MiB", 0, "sim:2");
    check_id("sim:vram=1MiB", 1, "sim:1");
}

static void every_kind_is_listed(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n;
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    device_list(out);
    fclose(out);
    assert_non_null(strstr(text, "cpu:0"));
    assert_non_null(strstr(text, "sim:0"));
    assert_non_null(strstr(text, "openvino")); /* or why there is none */
    free(text);
}

static void weights_are_laid_out_by_their_use(void **state)
{
    (void)state;
    for (int kind = OP_NONE + 1; kind < OP_KIND_COUNT; kind++) {
        struct oato_op op = {.kind = (uint16_t)kind};
        enum weight_use use = op_weight_use(&op);
        bool matrix = kind == OP_MUL_MAT || kind == OP_QKV || kind == OP_GATE_UP ||
                      kind == OP_EXPERT_GATE_UP || kind == OP_EXPERT_DOWN ||
                      kind == OP_HEAD_MUL_MAT;
        assert_int_equal(use, matrix                                     ? WEIGHT_MATRIX
                              : kind == OP_EMBED || kind == OP_MUL_MAT_T ? WEIGHT_LOOKUP
                                                                         : WEIGHT_VECTOR);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_split_at_devices),
        cmocka_unit_test(lists_that_make_no_sense_are_refused),
        cmocka_unit_test(specs_that_make_no_sense_are_refused),
        cmocka_unit_test(the_index_of_the_spec_wins),
        cmocka_unit_test(every_kind_is_listed),
        cmocka_unit_test(weights_are_laid_out_by_their_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
