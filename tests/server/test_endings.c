/*
 * test_endings.c - each way in which an answer can end says so: what was cut is never an answer.
 */
#include "server/server_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void only_what_is_complete_is_an_answer(void **state)
{
    static const struct {
        enum batch_end why;
        const char *word;
        size_t calls;
        const char *finish, *stop_type;
    } cases[] = {
        {BATCH_STOPPED, NULL, 0, "stop", "eos"},       {BATCH_STOPPED, "x", 0, "stop", "word"},
        {BATCH_STOPPED, NULL, 1, "tool_calls", "eos"}, {BATCH_LIMIT, NULL, 0, "length", "limit"},
        {BATCH_LIMIT, NULL, 1, "length", "limit"},     {BATCH_CONTEXT, NULL, 0, "length", "limit"},
        {BATCH_CANCELLED, NULL, 0, NULL, NULL},        {BATCH_CANCELLED, "x", 0, NULL, NULL},
        {BATCH_CANCELLED, NULL, 1, NULL, NULL},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct choice c = {
            .why = cases[i].why, .stop.hit = cases[i].word, .n_calls = cases[i].calls};
        const enum ending e = choice_ending(&c);
        assert_string_equal(or_empty(ending_finish(e)), or_empty(cases[i].finish));
        assert_string_equal(or_empty(ending_stop_type(e)), or_empty(cases[i].stop_type));
    }
}

static unsigned failed_with(oato_status status, bool memory, bool step)
{
    struct job j = {0};
    struct oato_error err;
    if (memory)
        oato_fail_memory(&err, 1, "a test");
    else
        oato_fail(&err, status, "a test");
    job_fail(&j, &err, step);
    job_cut(&j, true); /* the first reason stays */
    assert_string_equal(j.error.text, err.text);
    return job_status(&j);
}

static void an_error_says_whose_fault_it_is(void **state)
{
    struct job j = {0};
    (void)state;
    assert_int_equal(failed_with(OATO_EUSAGE, false, false), 400);
    assert_int_equal(failed_with(OATO_EFIT, false, false), 400);
    assert_int_equal(failed_with(OATO_EFIT, false, true), 500);
    assert_int_equal(failed_with(OATO_EIO, false, true), 500);
    assert_int_equal(failed_with(OATO_EFIT, true, true), 500);
    assert_int_equal(failed_with(OATO_EDEVICE, false, true), 503);
    job_cut(&j, false);
    assert_true(j.error.status && job_status(&j) == 503);
    j = (struct job){0};
    assert_int_equal(job_status(&j), 200);
    oato_fail(&j.error, OATO_EUSAGE, "set by whoever knew better"); /* never with status 200 */
    assert_int_equal(job_status(&j), 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_what_is_complete_is_an_answer),
        cmocka_unit_test(an_error_says_whose_fault_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
