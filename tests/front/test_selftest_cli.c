/*
 * test_selftest_cli.c - oato-run selftest from outside: the file, its name and what else is
 * printed; mistakes are one line.
 */
#include "tests/front/run_outside.h"

#include <string.h>

static void the_file_is_what_json_prints(void **state)
{
    struct outputs *o = *state;
    struct text file;
    text_init(&file);
    assert_int_equal(run(&o->out, &o->err, "selftest cpu --only add --quick --json"), 0);
    assert_string_equal(o->err.data, ""); /* no progress in a pipe */
    read_into(&file, "selftest-cpu-0.json");
    assert_string_equal(file.data, o->out.data);
    assert_non_null(strstr(file.data, "\"version\":\"" OATO_VERSION "\""));
    assert_null(strstr(file.data, run_dir));
    assert_int_equal(
        run(&o->out, &o->err, "selftest -d sim:vram=64MiB --only add --quick -o mine.json"), 0);
    assert_non_null(strstr(o->out.data, "mine.json has all of it"));
    read_into(&file, "mine.json");
    assert_non_null(strstr(file.data, "\"spec\":\"sim:vram=64MiB\""));
    text_free(&file);
}

static void mistakes_are_one_line(void **state)
{
    static const char *const rows[] = {
        "", "npu:9x", "--device gpu:0", "cpu --onyl add", "cpu --only mul_mad", "cpu sim"};
    struct outputs *o = *state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_int_equal(run(&o->out, &o->err, "selftest %s", rows[i]), 2);
        assert_int_equal(lines(&o->err), 1);
        assert_int_equal(o->out.len, 0);
    }
    assert_int_equal(run(&o->out, &o->err, "selftest cpu --only add -o no/such/folder.json"), 6);
    assert_int_equal(lines(&o->err), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_is_what_json_prints),
        cmocka_unit_test(mistakes_are_one_line),
    };
    return cmocka_run_group_tests(tests, run_setup, run_teardown);
}
