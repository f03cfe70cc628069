/*
 * test_progress.c - progress is drawn on a terminal and nowhere else, and Ctrl-C is a request
 * first and an end the second time.
 */
#include "base/base.h"

#include <pty.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

/* A terminal as standard error. */
struct screen {
    int master, slave, old;
    char seen[512];
};

static void screen_begin(struct screen *s)
{
    if (openpty(&s->master, &s->slave, NULL, NULL, NULL))
        skip();
    s->old = dup(STDERR_FILENO);
    dup2(s->slave, STDERR_FILENO);
}

/* What was written; the old stderr comes back. */
static const char *screen_end(struct screen *s)
{
    size_t n = 0;
    ssize_t more;
    dup2(s->old, STDERR_FILENO);
    close(s->old);
    close(s->slave);
    /* it comes in pieces, then an error */
    while ((more = read(s->master, s->seen + n, sizeof s->seen - 1 - n)) > 0)
        n += (size_t)more;
    close(s->master);
    s->seen[n] = 0;
    return s->seen;
}

/* Draws with stderr on fd; the old stderr comes back. False: a busy host took so long that the
 * second update was due, or another second had gone. */
static bool draw(int fd)
{
    struct progress p;
    int old = dup(STDERR_FILENO);
    dup2(fd, STDERR_FILENO);
    const uint64_t begin = now_ns();
    progress_begin(&p, "measuring", 200);
    p.begin_ns -= 3000000000u; /* as if 3 s had gone, so that the time left is told */
    progress_update(&p, 50, "mul_mat");
    progress_update(&p, 51, "too soon to be drawn");
    const bool quick = now_ns() - begin < 100000000;
    progress_end(&p);
    dup2(old, STDERR_FILENO);
    close(old);
    return quick;
}

static void a_terminal_shows_one_line(void **state)
{
    (void)state;
    setenv("TERM", "xterm", 1);
    struct screen screen;
    const char *seen = "";
    bool quick = false;
    for (int tries = 0; tries < 20 && !quick; tries++) {
        screen_begin(&screen);
        quick = draw(screen.slave);
        seen = screen_end(&screen);
    }
    assert_true(quick);
    assert_non_null(strstr(seen, "measuring  25 %"));
    assert_non_null(strstr(seen, "9 s left"));
    assert_non_null(strstr(seen, "mul_mat"));
    assert_null(strstr(seen, "too soon"));
    assert_null(strchr(seen, '\n'));
}

static void a_warning_takes_the_place_of_the_line(void **state)
{
    (void)state;
    setenv("TERM", "xterm", 1);
    struct screen screen;
    struct progress p;
    screen_begin(&screen);
    program_begin("oato-test");
    progress_begin(&p, "measuring", 2);
    progress_update(&p, 1, "a note");
    program_warn(NULL, "too hot");
    progress_update(&p, 2, "at once");
    progress_end(&p);
    const char *seen = screen_end(&screen);
    assert_non_null(strstr(seen, "a note\r\033[Koato-test: warning: too hot\r\n"));
    assert_non_null(strstr(seen, "at once"));
}

/* Lines, where nothing can be redrawn; styles only where they are not refused. */
static void a_dumb_terminal_gets_text_only(void **state)
{
    static const struct {
        const char *term, *no_color;
        enum terminal is;
    } cases[] = {{"dumb", "", TERMINAL_DUMB},
                 {"", "", TERMINAL_DUMB},
                 {"xterm", "1", TERMINAL_LINES},
                 {"xterm", "", TERMINAL_STYLES}};
    (void)state;
    struct screen screen;
    struct progress p;
    screen_begin(&screen);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        setenv("TERM", cases[i].term, 1);
        setenv("NO_COLOR", cases[i].no_color, 1);
        assert_int_equal(terminal_of(screen.slave), cases[i].is);
        assert_int_equal(terminal_of(STDIN_FILENO) == TERMINAL_NONE, !isatty(STDIN_FILENO));
    }
    unsetenv("NO_COLOR");
    setenv("TERM", "dumb", 1);
    progress_begin(&p, "measuring", 2);
    progress_update(&p, 1, "too soon");
    p.begin_ns -= 20000000000u; /* as if 20 s had gone */
    progress_update(&p, 1, "a note");
    program_warn(NULL, "too hot");
    progress_update(&p, 2, "just told");
    progress_end(&p);
    const char *seen = screen_end(&screen);
    assert_null(strchr(seen, '\033'));
    assert_null(strstr(seen, "too soon"));
    assert_null(strstr(seen, "just told"));
    assert_non_null(strstr(seen, "measuring  50 %, 20 s left  a note\r\n"));
}

static void a_pipe_stays_silent(void **state)
{
    (void)state;
    int ends[2];
    char seen[8];
    assert_int_equal(pipe(ends), 0);
    draw(ends[1]);
    close(ends[1]);
    assert_int_equal(read(ends[0], seen, sizeof seen), 0);
    close(ends[0]);
}

static void the_clock_goes_forward(void **state)
{
    (void)state;
    uint64_t a = now_ns();
    usleep(2000);
    uint64_t b = now_ns();
    assert_true(b - a >= 2000000 && b - a < 10000000000u);
}

/* As in the background of a script, and under nohup. */
static void an_ignored_interrupt_stays_ignored(void **state)
{
    (void)state;
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        signal(SIGINT, SIG_IGN);
        interrupt_catch();
        raise(SIGINT);
        raise(SIGINT);
        if (oato_interrupted)
            _exit(1);
        raise(SIGTERM);
        _exit(oato_interrupted == SIGTERM ? 0 : 2);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void the_second_interrupt_ends_the_process(void **state)
{
    (void)state;
    signal(SIGINT, SIG_DFL); /* whoever runs the tests may ignore it */
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        interrupt_catch();
        raise(SIGINT);
        if (!oato_interrupted)
            _exit(1);
        raise(SIGINT);
        _exit(2);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGINT);

    interrupt_catch();
    raise(SIGTERM);
    assert_int_equal(oato_interrupted, SIGTERM);
    oato_interrupted = 0;
}

static void a_deadline_ends_a_process_that_does_not_look(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        interrupt_catch();
        interrupt_deadline(1);
        raise(SIGTERM);
        for (;;)
            pause();
    }
    int status;
    const uint64_t begin = now_ns();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(now_ns() - begin < 20000000000u);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 130);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_terminal_shows_one_line),
        cmocka_unit_test(a_warning_takes_the_place_of_the_line),
        cmocka_unit_test(a_dumb_terminal_gets_text_only),
        cmocka_unit_test(a_pipe_stays_silent),
        cmocka_unit_test(the_clock_goes_forward),
        cmocka_unit_test(an_ignored_interrupt_stays_ignored),
        cmocka_unit_test(the_second_interrupt_ends_the_process),
        cmocka_unit_test(a_deadline_ends_a_process_that_does_not_look),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
