/*
 * test_room.c - who goes when a model is to be loaded: nobody where there is room, the least
 * recently used ones that suffice, never one that a smaller set spares, busy ones last. Compared
 * with all subsets on random numbers.
 */
#include "executor/model_room.h"
#include "tests/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 7 };

static enum room room_of(const struct room_model *v, int32_t n, uint64_t budget, int32_t most,
                         bool *goes)
{
    const uint64_t budgets[MODELS_DEVICES] = {budget};
    return models_room(v, n, 0, budgets, most, goes);
}

static void the_oldest_goes(void **state)
{
    struct room_model v[] = {{.need = {40}},
                             {.there = true, .used_ns = 3, .need = {40}},
                             {.there = true, .used_ns = 1, .need = {40}},
                             {.there = true, .used_ns = 2, .need = {40}}};
    bool goes[4];
    (void)state;
    assert_int_equal(room_of(v, 4, 160, 0, goes), ROOM_FREE);
    assert_false(goes[1] || goes[2] || goes[3]);
    assert_int_equal(room_of(v, 4, 159, 0, goes), ROOM_MADE);
    assert_true(!goes[1] && goes[2] && !goes[3]);
    assert_int_equal(room_of(v, 4, 160, 2, goes), ROOM_MADE); /* two at most */
    assert_true(!goes[1] && goes[2] && goes[3]);
    v[2].busy = true;
    assert_int_equal(room_of(v, 4, 159, 0, goes), ROOM_MADE);
    assert_true(!goes[1] && !goes[2] && goes[3]);
    v[1].busy = v[3].busy = true;
    assert_int_equal(room_of(v, 4, 159, 0, goes), ROOM_WAITS);
    assert_true(!goes[1] && goes[2] && !goes[3]);
    assert_int_equal(room_of(v, 4, 39, 0, goes), ROOM_NEVER);
    assert_false(goes[1] || goes[2] || goes[3]);
}

/* A small old one stays where a large one has to go anyway. */
static void what_need_not_go_stays(void **state)
{
    const struct room_model v[] = {{.need = {90}},
                                   {.there = true, .used_ns = 1, .need = {10}},
                                   {.there = true, .used_ns = 2, .need = {80}}};
    bool goes[3];
    (void)state;
    assert_int_equal(room_of(v, 3, 100, 0, goes), ROOM_MADE);
    assert_true(!goes[1] && goes[2]);
}

/* A device of its own has a budget of its own. */
static void devices_count_apart(void **state)
{
    const struct room_model v[] = {{.need = {10, 60}},
                                   {.there = true, .used_ns = 1, .need = {80, 0}},
                                   {.there = true, .used_ns = 2, .need = {10, 50}}};
    const uint64_t budget[MODELS_DEVICES] = {100, 100};
    bool goes[3];
    (void)state;
    assert_int_equal(models_room(v, 3, 0, budget, 0, goes), ROOM_MADE);
    assert_true(!goes[1] && goes[2]);
}

static uint64_t sum_without(const struct room_model *v, int32_t n, uint32_t gone)
{
    uint64_t sum = v[0].need[0];
    for (int32_t i = 1; i < n; i++)
        sum += v[i].there && !(gone >> i & 1) ? v[i].need[0] : 0;
    return sum;
}

static void as_all_subsets_say(void **state)
{
    struct random r = random_of_run();
    (void)state;
    for (int turn = 0; turn < 20000; turn++) {
        struct room_model v[MOST] = {0};
        bool goes[MOST];
        const int32_t n = 1 + (int32_t)random_below(&r, MOST);
        const uint64_t budget = random_below(&r, 300);
        uint32_t busy = 0, there = 0, gone = 0;
        for (int32_t i = 0; i < n; i++) {
            v[i] = (struct room_model){
                i && random_below(&r, 3), false, random_below(&r, 1000), {random_below(&r, 100)}};
            v[i].busy = v[i].there && random_below(&r, 2);
            busy |= v[i].busy ? 1U << i : 0;
            there |= v[i].there ? 1U << i : 0;
        }
        const enum room room = room_of(v, n, budget, 0, goes);
        for (int32_t i = 0; i < n; i++)
            gone |= goes[i] ? 1U << i : 0;
        assert_int_equal(gone & ~there, 0);
        const bool idle_suffice = sum_without(v, n, there & ~busy) <= budget;
        if (room == ROOM_NEVER) {
            assert_true(v[0].need[0] > budget);
            continue;
        }
        assert_true(sum_without(v, n, gone) <= budget);
        assert_int_equal(room == ROOM_FREE, sum_without(v, n, 0) <= budget);
        assert_int_equal(room == ROOM_WAITS, !idle_suffice);
        for (int32_t i = 0; i < n; i++) /* none that could stay */
            if (gone >> i & 1)
                assert_true(sum_without(v, n, gone & ~(1U << i)) > budget);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_goes), cmocka_unit_test(what_need_not_go_stays),
        cmocka_unit_test(devices_count_apart), cmocka_unit_test(as_all_subsets_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
