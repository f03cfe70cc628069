/*
 * test_closing.c - a program whose closing does not end is ended, with the status that it has and a
 * line that names the stage; one that closes in time is left alone. Each in a process of its own.
 */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* How it ended, and what it wrote to stderr. */
static int child_run(void (*run)(void), char *text, size_t size)
{
    int pipes[2], status;
    size_t used = 0;
    assert_int_equal(pipe(pipes), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        dup2(pipes[1], STDERR_FILENO);
        close(pipes[0]);
        close(pipes[1]);
        setenv("OATO_CLOSING_LIMIT", "0.1", 1);
        program_begin("tested");
        run();
        _exit(99);
    }
    close(pipes[1]);
    for (ssize_t n; (n = read(pipes[0], text + used, size - 1 - used)) > 0;)
        used += (size_t)n;
    text[used] = 0;
    close(pipes[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void wait_for_ever(void)
{
    for (;;)
        pause();
}

static void hangs_after_success(void)
{
    program_ends(OATO_OK, NULL);
    program_closes("cuda:%d: its streams", 0);
    program_closes("leaving the others");
    wait_for_ever();
}

static void hangs_after_failure(void)
{
    const struct oato_error err = {OATO_EFIT, "it does not fit"};
    program_ends((int)err.status, &err);
    program_closes("leaving the others");
    wait_for_ever();
}

static void hangs_at_exit(void)
{
    atexit(wait_for_ever);
    program_ends(OATO_OK, NULL);
    program_closes("a stage");
    program_closes(NULL);
    exit(program_exit(3));
}

static void closes_in_time(void)
{
    setenv("OATO_TRACE_CLOSING", "1", 1);
    program_ends(OATO_OK, NULL);
    program_closes("a stage");
    program_closes(NULL);
    usleep(300000); /* it works on */
    _exit(program_exit(7));
}

static void closes_before_its_end(void)
{
    program_closes("a stage"); /* nobody has said that it ends: of one session of several */
    usleep(300000);
    _exit(program_exit(8));
}

static void who_does_not_end_is_ended(void **state)
{
    (void)state;
    char text[1024];
    assert_int_equal(child_run(hangs_after_success, text, sizeof text), 0);
    assert_string_equal(text, "tested: closing gave up after 0.1 s at this stage: leaving the "
                              "others; ending without it\n");
    assert_int_equal(child_run(hangs_after_failure, text, sizeof text), OATO_EFIT);
    assert_string_equal(text, "tested: it does not fit\ntested: closing gave up after 0.1 s at "
                              "this stage: leaving the others; ending without it\n");
    assert_int_equal(child_run(hangs_at_exit, text, sizeof text), 3);
    assert_non_null(strstr(text, "what libraries do when a program exits"));
}

static void who_ends_is_left_alone(void **state)
{
    (void)state;
    char text[1024];
    assert_int_equal(child_run(closes_in_time, text, sizeof text), 7);
    assert_non_null(strstr(text, "tested: closing, 0.000 s: a stage\n"));
    assert_non_null(strstr(text, " s: done\n"));
    assert_null(strstr(text, "gave up"));
    assert_int_equal(child_run(closes_before_its_end, text, sizeof text), 8);
    assert_string_equal(text, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_does_not_end_is_ended),
        cmocka_unit_test(who_ends_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
