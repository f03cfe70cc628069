/*
 * test_options.c - a command line means the same however its options are written, and what is
 * misspelt gets one line with the name that was meant.
 */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ID_THREADS = 1, ID_VERBOSE, ID_CONTEXT, ID_FLASH };

static const struct option_row rows[] = {
    {"threads", 't', OPT_VALUE, "N", "worker threads (default: cores)", ID_THREADS},
    {"verbose", 'v', OPT_FLAG, NULL, "say more", ID_VERBOSE},
    {"context", 0, OPT_VALUE, "N", "positions (default 4096)", ID_CONTEXT},
    {"ctx-size", 0, OPT_VALUE, "N", NULL, ID_CONTEXT},
    {"flash", 'f', OPT_CHOICE, "on|off|auto", "attention", ID_FLASH},
    {"tgl", 0, OPT_ANSWER, NULL, "a plan decides that", 0},
    {NULL, 0, OPT_FLAG, NULL, NULL, 0},
};

/* Walks the words; returns what came as "id=value" separated by spaces, or the message. */
static char *walk(char **words, int n)
{
    static char seen[1024];
    struct options o;
    struct oato_error err = {0};
    int id;
    seen[0] = 0;
    options_init(&o, rows, n, words);
    while ((id = options_next(&o, &err)) != OPT_END) {
        if (id == OPT_ERROR) {
            assert_int_equal(err.status, OATO_EUSAGE);
            snprintf(seen, sizeof seen, "%s", err.text);
            break;
        }
        size_t len = strlen(seen);
        snprintf(seen + len, sizeof seen - len, "%d=%s ", id, o.value ? o.value : "");
    }
    return seen;
}

#define WALK(...)                                                                                  \
    walk((char *[]){__VA_ARGS__}, (int)(sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)))

static void every_spelling_means_the_same(void **state)
{
    (void)state;
    assert_string_equal(WALK("--threads", "4"), "1=4 ");
    assert_string_equal(WALK("--threads=4"), "1=4 ");
    assert_string_equal(WALK("--threads="), "1= ");
    assert_string_equal(WALK("-t", "4"), "1=4 ");
    assert_string_equal(WALK("-t4"), "1=4 ");
    assert_string_equal(WALK("-context", "9"), "3=9 "); /* one dash, as llama.cpp writes */
    assert_string_equal(WALK("-v", "model", "--context=8"), "2= -2=model 3=8 ");
    assert_string_equal(WALK("-", "a b"), "-2=- -2=a b ");
    assert_string_equal(WALK("-v", "--", "-v", "--threads"), "2= -2=-v -2=--threads ");
    assert_string_equal(WALK("--"), "");
    assert_string_equal(WALK("--ctx-size", "9"), "3=9 ");
    assert_string_equal(WALK("-f", "on", "model"), "4=on -2=model ");
    assert_string_equal(WALK("-f", "model", "--flash=off"), "4= -2=model 4=off ");
    assert_string_equal(WALK("--flash", "au", "-f"), "4= -2=au 4= ");
}

static void mistakes_are_named(void **state)
{
    (void)state;
    assert_string_equal(WALK("--thread", "4"),
                        "unknown option '--thread'; did you mean '--threads'?");
    assert_string_equal(WALK("--contxt=4"),
                        "unknown option '--contxt=4'; did you mean '--context'?");
    assert_string_equal(WALK("--colour"), "unknown option '--colour'; --help lists them");
    assert_string_equal(WALK("-tgl", "9"), "option '-tgl' is not supported: a plan decides that");
    assert_string_equal(WALK("--tgl=9"), "option '--tgl=9' is not supported: a plan decides that");
    assert_string_equal(WALK("--context-length"),
                        "unknown option '--context-length'; did you mean '--context'?");
    assert_string_equal(WALK("--verb"), "unknown option '--verb'; did you mean '--verbose'?");
    assert_string_equal(WALK("-vx"), "unknown option '-vx'; --help lists them");
    assert_string_equal(WALK("-x"), "unknown option '-x'; --help lists them");
    assert_string_equal(WALK("--threads"), "option --threads needs a value: N");
    assert_string_equal(WALK("-v", "-t"), "option --threads needs a value: N");
    assert_string_equal(WALK("--verbose=1"), "option --verbose takes no value");
    assert_string_equal(WALK("--a-name-far-longer-than-any-option-could-ever-be"),
                        "unknown option '--a-name-far-longer-than-any-option-could-ever-be'; "
                        "--help lists them");
}

static void help_lists_every_row(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    assert_non_null(f);
    options_help(rows, f);
    fclose(f);
    assert_non_null(strstr(text, "-t, --threads N"));
    assert_non_null(strstr(text, "    --context N"));
    assert_non_null(strstr(text, "say more\n"));
    assert_null(strstr(text, "ctx-size"));
    assert_null(strstr(text, "tgl"));
    free(text);
}

static void near_names_are_found(void **state)
{
    (void)state;
    static const char *const names[] = {"show", "explain", "diff", "check"};
    assert_string_equal(nearest_name("chek", names, 4), "check");
    assert_string_equal(nearest_name("shwo", names, 4), "show");
    assert_null(nearest_name("benchmark", names, 4));
    assert_null(nearest_name("x", names, 4));
    assert_null(nearest_name("show", names, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_spelling_means_the_same),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(help_lists_every_row),
        cmocka_unit_test(near_names_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
