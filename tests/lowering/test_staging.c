/*
 * test_staging.c - places for streamed weights: none is filled before what lies there has been
 * read, and there is always one that can be filled while the last is read.
 */
#include "lowering/lowering_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { PIECES = 2000, HALF = 1000 };

/* What a room of two of the largest must give, whatever the sizes. */
static void check(const uint64_t *bytes, uint64_t half)
{
    static uint64_t begin[PIECES], after[PIECES];
    struct staging s = {.half = half};
    for (uint64_t i = 0; i < PIECES; i++) {
        begin[i] = staging_place(&s, bytes[i], &after[i]);
        assert_true(begin[i] + bytes[i] <= 2 * half);
        assert_true(after[i] <= (i ? i - 1 : 0));
        assert_true(!i || after[i] >= after[i - 1]);
        assert_true(i - after[i] < STAGING_AHEAD);
        for (uint64_t j = after[i]; j < i; j++) /* may still be read */
            assert_true(begin[j] + bytes[j] <= begin[i] || begin[i] + bytes[i] <= begin[j]);
    }
}

static void test_random_sizes(void **state)
{
    (void)state;
    static uint64_t bytes[PIECES];
    srand(1);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < PIECES; i++)
            bytes[i] = (uint64_t)(rand() % (rand() % 4 ? HALF + 1 : HALF / 16));
        check(bytes, HALF);
    }
}

static void test_equal_sizes_take_turns(void **state)
{
    (void)state;
    struct staging s = {.half = HALF};
    for (uint64_t i = 0, after; i < 10; i++) {
        assert_int_equal(staging_place(&s, HALF, &after), i % 2 * HALF);
        assert_int_equal(after, i < 2 ? 0 : i - 1);
    }
}

/* A layer with a small matrix before two large ones: all three find room while the layer before is
 * still to be read, as far as its own have been. */
static void test_small_ones_do_not_take_a_turn(void **state)
{
    (void)state;
    const uint64_t layer[] = {HALF / 100, HALF, HALF / 2};
    const uint64_t expected[] = {0, 0, 0, 0, 2, 3, 3, 5, 6, 6};
    struct staging s = {.half = HALF};
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        uint64_t after;
        staging_place(&s, layer[i % ARRAY_LEN(layer)], &after);
        assert_int_equal(after, expected[i]);
    }
}

static void test_empty_room(void **state)
{
    (void)state;
    struct staging s = {0};
    for (uint64_t i = 0, after; i < 6; i++) {
        assert_int_equal(staging_place(&s, 0, &after), 0);
        assert_true(after <= i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_sizes),
        cmocka_unit_test(test_equal_sizes_take_turns),
        cmocka_unit_test(test_small_ones_do_not_take_a_turn),
        cmocka_unit_test(test_empty_room),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
