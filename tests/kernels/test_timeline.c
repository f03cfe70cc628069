/*
 * test_timeline.c - an event only rises, wakes everyone who waits for a value that has come, hands
 * on the clock of that value, and lets nobody wait for a device that died.
 */
#include "kernels/device.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

/* 64 KiB each: too large for a stack */
static struct timeline ping, pong;

static void values_rise_and_carry_their_clock(void **state)
{
    (void)state;
    uint64_t clock_ns = 0;
    timeline_init(&ping);
    assert_true(timeline_wait(&ping, 0, NULL));
    timeline_signal(&ping, 1, 100);
    timeline_signal(&ping, 4, 400); /* jumps over 2 and 3 */
    timeline_signal(&ping, 3, 999); /* never falls */
    assert_int_equal(atomic_load(&ping.value), 4);
    static const uint64_t expected[] = {0, 100, 400, 400, 400};
    for (uint64_t v = 1; v <= 4; v++) {
        assert_true(timeline_wait(&ping, v, &clock_ns));
        assert_int_equal(clock_ns, expected[v]);
    }
    timeline_signal(&ping, 10 * TIMELINE_RING, 7);
    assert_true(timeline_wait(&ping, 10 * TIMELINE_RING - 5, &clock_ns));
    assert_int_equal(clock_ns, 7);
}

enum { ROUNDS = 20000 };

static void *answer(void *arg)
{
    (void)arg;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        uint64_t clock_ns;
        if (!timeline_wait(&ping, i, &clock_ns) || clock_ns != i * 3)
            return (void *)1;
        timeline_signal(&pong, i, i * 5);
    }
    return NULL;
}

static void two_threads_take_turns(void **state)
{
    (void)state;
    pthread_t t;
    void *wrong;
    timeline_init(&ping);
    timeline_init(&pong);
    assert_int_equal(pthread_create(&t, NULL, answer, NULL), 0);
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        uint64_t clock_ns = 0;
        timeline_signal(&ping, i, i * 3);
        assert_true(timeline_wait(&pong, i, &clock_ns));
        assert_int_equal(clock_ns, i * 5);
    }
    pthread_join(t, &wrong);
    assert_null(wrong);
}

static void *sleep_for_one(void *arg)
{
    return timeline_wait(&ping, *(uint64_t *)arg, NULL) ? arg : NULL;
}

static void start_sleepers(pthread_t *t, uint64_t *value, int n)
{
    timeline_init(&ping);
    for (int i = 0; i < n; i++) {
        value[i] = (uint64_t)i + 1;
        assert_int_equal(pthread_create(&t[i], NULL, sleep_for_one, &value[i]), 0);
    }
    while (atomic_load(&ping.sleepers) < (uint32_t)n)
        usleep(1000);
}

static void sleepers_wake_when_their_value_comes(void **state)
{
    (void)state;
    pthread_t t[4];
    uint64_t value[4];
    void *woken;
    start_sleepers(t, value, 4);
    for (uint64_t i = 0; i < 4; i++) {
        timeline_signal(&ping, i + 1, 0);
        pthread_join(t[i], &woken);
        assert_ptr_equal(woken, &value[i]);
    }
}

static void what_is_raised_is_seen_and_wakes_when_told(void **state)
{
    (void)state;
    pthread_t t[2];
    uint64_t value[2], clock_ns;
    void *woken;
    start_sleepers(t, value, 2);
    timeline_raise(&ping, 1000, 77);
    assert_true(timeline_wait(&ping, 1000, &clock_ns));
    assert_int_equal(clock_ns, 77);
    assert_int_equal(atomic_load(&ping.sleepers), 2);
    timeline_wake(&ping);
    for (int i = 0; i < 2; i++) {
        pthread_join(t[i], &woken);
        assert_non_null(woken);
    }
}

static void a_failure_wakes_everyone(void **state)
{
    (void)state;
    pthread_t t[4];
    uint64_t value[4];
    void *woken;
    start_sleepers(t, value, 4);
    timeline_fail(&ping, TIMELINE_DIED);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], &woken);
        assert_null(woken);
    }
    timeline_signal(&ping, 100, 0);
    assert_false(timeline_wait(&ping, 1, NULL));
}

static _Atomic bool stop;

static void *wait_unless_stopped(void *arg)
{
    return timeline_wait_unless(&ping, 1, NULL, &stop) ? arg : NULL;
}

static void a_wait_can_be_given_up(void **state)
{
    (void)state;
    pthread_t t;
    void *reached;
    timeline_init(&ping);
    assert_int_equal(pthread_create(&t, NULL, wait_unless_stopped, &ping), 0);
    while (!atomic_load(&ping.sleepers))
        usleep(1000);
    atomic_store(&stop, true);
    pthread_join(t, &reached);
    assert_null(reached);
    timeline_signal(&ping, 1, 0); /* what has come has come, stopped or not */
    assert_true(timeline_wait_unless(&ping, 1, NULL, &stop));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_rise_and_carry_their_clock),
        cmocka_unit_test(two_threads_take_turns),
        cmocka_unit_test(sleepers_wake_when_their_value_comes),
        cmocka_unit_test(what_is_raised_is_seen_and_wakes_when_told),
        cmocka_unit_test(a_failure_wakes_everyone),
        cmocka_unit_test(a_wait_can_be_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
