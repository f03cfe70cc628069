/*
 * test_cli_shapes.c - oato-plan --shape and --hardware of a text: plans without any file, which are
 * those of a file of the same shape.
 */
#include "tests/models/random_model.h"
#include "tests/solver/cli_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CARD "--hardware 'cuda=24GiB,1008GB/s,165T;cpu=16,60GB/s' "

#define LIBRARY "--hardware rtx3060-laptop"

static int setup(void **state)
{
    (void)state;
    cli_begin();
    cli_save_model("m.gguf", "llama", 64);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return cli_end();
}

static void a_plan_needs_no_file(void **state)
{
    (void)state;
    static char no_file[16];
    cli_expect("--shape llama-3.1-8b " CARD, 0, NULL);
    assert_non_null(strstr(cli_out, "llama-3.1-8b:Q4_K_M: "));
    assert_non_null(strstr(cli_out, "cpu:0            0 ")); /* a card of 24 GiB holds all of it */
    assert_non_null(strstr(cli_err, "nothing is measured"));
    assert_non_null(strstr(cli_err, "a shape's plan is not kept"));
    assert_int_equal(cli_read_file("llama-3.1-8b.plan", no_file, sizeof no_file), 0);
    cli_expect_json("--shape llama-3.1-8b:Q8_0 --json --hardware rtx3060-laptop", 0);
    cli_expect("--shape llama-3.3-70b " CARD, 0, NULL);
    assert_null(strstr(cli_out, "cpu:0            0 "));
}

static void it_is_the_plan_of_a_file_of_that_shape(void **state)
{
    (void)state;
    struct random_model m = random_model_default();
    struct oato_error err;
    char path[160];
    assert_true(random_model_set_shape(&m, "qwen3-4b:Q5_K_M"));
    m.header_only = true;
    m.tokenizer = false;
    cli_path("made.gguf", path, sizeof path);
    assert_int_equal(random_model_save(&m, path, &err), OATO_OK);
    cli_expect("made.gguf " CARD "--gap 1% -o made.plan", 0, NULL);
    cli_expect("--shape qwen3-4b:Q5_K_M " CARD "--gap 1% --time-limit 10 -o shape.plan", 0, NULL);
    cli_expect("diff made.plan shape.plan", 0, NULL);
    cli_expect("check shape.plan made.gguf", 0, NULL);
    cli_expect("show shape.plan --shape qwen3-4b:Q5_K_M " CARD, 0, NULL);
    cli_expect("explain shape.plan blk.3.ffn_down --shape qwen3-4b:Q5_K_M " CARD, 0, NULL);
    cli_expect("simulate shape.plan --shape qwen3-4b:Q5_K_M " CARD, 0, NULL);
    cli_expect("check shape.plan --shape qwen3-4b:Q4_K_M " LIBRARY, 3, "for another model");
}

static void the_list_has_each_shape(void **state)
{
    (void)state;
    const struct embedded_file *f;
    char *lists[2];
    cli_expect("--shape list", 0, NULL);
    lists[0] = strdup(cli_out);
    cli_expect("--shape", 0, NULL);
    assert_string_equal(lists[0], cli_out);
    cli_expect_json("--shape list --json", 0);
    lists[1] = strdup(cli_out);
    for (size_t i = 0; (f = shape_file(i)); i++)
        for (int l = 0; l < 2; l++)
            assert_non_null(strstr(lists[l], f->name));
    free(lists[0]);
    free(lists[1]);
}

static void mistakes_are_one_line(void **state)
{
    (void)state;
    cli_expect("--shape llama-3.1-9b " LIBRARY, 2, "did you mean 'llama-3.1-8b'");
    cli_expect("--shape phi-4:Q9 " LIBRARY, 2, "no type 'Q9'");
    cli_expect("--shape phi-4", 2, "--hardware NAME");
    cli_expect("m.gguf --shape phi-4 " LIBRARY, 2, "two models: m.gguf and --shape phi-4");
    cli_expect("frontier " LIBRARY, 2, "--shape NAME");
    cli_expect("frontier --shape list " LIBRARY, 2, "without a verb");
    cli_expect("--shape phi-4 --hardware cuda=1", 2, "--hardware: ");
    cli_expect("--shape deepseek-v3 " LIBRARY, 4, "do not fit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_needs_no_file),
        cmocka_unit_test(it_is_the_plan_of_a_file_of_that_shape),
        cmocka_unit_test(the_list_has_each_shape),
        cmocka_unit_test(mistakes_are_one_line),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
