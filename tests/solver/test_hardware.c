/*
 * test_hardware.c - a machine that a line describes is a profile as those of the library's data
 * sheets are, says what it assumed, and names the part of the text that is wrong.
 */
#include "solver/hardware.h"
#include "solver/solver.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct profile loaded(const char *name)
{
    struct profile p;
    struct oato_error err;
    if (hardware_load(name, &p, NULL, NULL, &err))
        fail_msg("%s: %s", name, err.text);
    return p;
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 0.05 * b;
}

/* The figures of docs/hardware/README.md give what these profiles have. */
static void it_is_as_the_library_has_it(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text;
    } rows[] = {
        {"rtx4090-xeon4314",
         "cuda=24GiB,1008GB/s,165T,pcie=32GB/s;cpu=16,171GB/s,128GiB,2457GFLOP/s"},
        {"rtx3060-laptop", "cuda=6GiB,336GB/s,41T,pcie=16GB/s;cpu=8,51GB/s,32GiB,1.0T"},
        {"2xrtx3090-ryzen5950x",
         "pcie=16GB/s;cpu=64GiB,51GB/s,1741G,16;cuda*2=71TFLOPS,24GiB,936GB/s"},
    };
    for (size_t r = 0; r < ARRAY_LEN(rows); r++) {
        struct profile a = loaded(rows[r].name), b = loaded(rows[r].text);
        assert_int_equal(a.n_devices, b.n_devices);
        assert_int_equal(a.n_links, b.n_links);
        for (int32_t i = 0; i < a.n_devices; i++) {
            const struct profile_device *x = &a.devices[i], *y = &b.devices[i];
            assert_string_equal(x->id, y->id);
            assert_true(x->memory_bytes == y->memory_bytes && x->free_bytes == y->free_bytes);
            assert_true(near(x->read_bytes_per_s, y->read_bytes_per_s));
            assert_true(near(x->flops_per_s, y->flops_per_s));
            assert_true(y->data_sheet && x->keeps == y->keeps && x->is_host == y->is_host);
        }
        for (int32_t i = 0; i < a.n_links; i++)
            assert_true(near(a.links[i].bytes_per_s, b.links[i].bytes_per_s));
        assert_null(strstr(b.notes, "assumed"));
        profile_free(&a);
        profile_free(&b);
    }
}

static void what_is_not_said_is_assumed_and_told(void **state)
{
    (void)state;
    struct profile p = loaded("cuda=12GiB,360GB/s,51T;cpu=8,51GB/s");
    assert_int_equal(p.n_devices, 2);
    assert_true(p.devices[0].memory_bytes == (uint64_t)64 << 30);
    assert_true(near(p.links[0].bytes_per_s, 24e9));
    assert_non_null(strstr(p.notes, "assumed pcie=32GB/s"));
    assert_non_null(strstr(p.notes, "assumed 64GiB of host memory"));
    assert_non_null(strstr(p.notes, "assumed 1.0T of the cpu"));
    profile_free(&p);
    p = loaded("cpu=2,30GB/s,8GiB");
    assert_int_equal(p.n_devices, 1);
    assert_int_equal(p.n_links, 0);
    assert_null(strstr(p.notes, "pcie"));
    profile_free(&p);
}

static void mistakes_name_their_part(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"cuda=12GiB,360GX/s,51T;cpu=8,51GB/s", "'360GX/s' in 'cuda=12GiB,360GX/s,51T'"},
        {"cuda=12GiB,360GB/s;cpu=8,51GB/s", "'cuda=12GiB,360GB/s' wants memory"},
        {"cuda=12GiB,12GiB,360GB/s,51T;cpu=8,51GB/s", "'12GiB' in"},
        {"cuda=12GiB,360GB/s,51T,8;cpu=8,51GB/s", "wants memory, bandwidth and arithmetic"},
        {"cuda=12GiB,360GB/s,51T", "has no cpu"},
        {"cuda*17=12GiB,360GB/s,51T;cpu=8,51GB/s", "'cuda*17=12GiB,360GB/s,51T' is none of"},
        {"cuda*9=1GiB,3GB/s,5T;cuda*9=1GiB,3GB/s,5T;cpu=8,51GB/s", "more than 16 GPUs"},
        {"rocm=12GiB,360GB/s,51T;cpu=8,51GB/s", "'rocm=12GiB,360GB/s,51T' is none of"},
        {"cpu=8,51GB/s;cpu=8,51GB/s", "is a second cpu"},
        {"cpu=51GB/s", "wants the cores and the bandwidth"},
        {"cpu=8,51GB/s,pcie=16GB/s", "wants the cores"},
        {"cpu=8,51GB/s,", "'' in 'cpu=8,51GB/s,'"},
        {"cpu=0,51GB/s", "'0' in"},
        {"cpu=-8,51GB/s", "'-8' in"},
        {"cpu=8,nanGB/s", "'nanGB/s' in"},
        {"cpu=8,51GB/s;pcie=fast", "'pcie=fast' is no rate"},
        {"pcie=1GB/s;pcie=1GB/s;cpu=8,51GB/s", "'pcie=1GB/s' is no rate"},
        {"=", "'=' is none of"},
        {"cpu=8,1e30GB/s", "'1e30GB/s' in"},
    };
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct profile p;
        struct oato_error err;
        assert_int_equal(hardware_load(rows[i].text, &p, NULL, NULL, &err), OATO_EUSAGE);
        if (!strstr(err.text, rows[i].says) || strncmp(err.text, "--hardware: ", 12) != 0)
            fail_msg("'%s' does not say '%s'", err.text, rows[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_as_the_library_has_it),
        cmocka_unit_test(what_is_not_said_is_assumed_and_told),
        cmocka_unit_test(mistakes_name_their_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
