/*
 * test_bandwidth.c - measuring memory ends with a message when one of its threads cannot start.
 */
#include "profiler/profiler_internal.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static int fails_at; /* number of the thread that cannot start; 0: all can */

int __real_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    return fails_at && !--fails_at ? EAGAIN : __real_pthread_create(t, attr, run, arg);
}

static void a_thread_that_cannot_start_is_told(void **state)
{
    (void)state;
    for (int at = 1; at <= 3; at++) {
        struct oato_error err;
        double rate = -1;
        fails_at = at;
        assert_int_equal(host_read_rate(3, 1 << 20, true, &rate, &err), OATO_EFIT);
        char expected[32];
        snprintf(expected, sizeof expected, "thread %d of 3", at);
        assert_non_null(strstr(err.text, expected));
        assert_true(rate < 0);
    }
    struct oato_error err;
    double rate = -1;
    assert_int_equal(host_read_rate(3, 1 << 20, true, &rate, &err), OATO_OK);
    assert_true(rate > 1e6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_that_cannot_start_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
