/*
 * test_kv_memory.c - the memory that plans keep for KV: layers with a window take what the window
 * and a step need, however long the context is, and sequences have a page of their own.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
// clang-format on

static const struct fixture_options on_the_cpu = {.scale = 1};

/* Bytes planned for the CPU with these keys of the model, and this many sequences. */
static uint64_t bytes_with(const char *keys, int32_t batch)
{
    struct model *m;
    struct oato_error err;
    struct profile p;
    struct plan plan;
    struct random_model r = random_model_default();
    struct planner_options o;
    planner_options_init(&o);
    o.solver = "cpu";
    o.request.prompt = 100;
    o.request.generate = 50;
    o.request.context = 1024;
    o.request.ubatch = 64;
    o.request.batch = batch;
    r.architecture = "gemma3";
    r.keys = keys;
    if (random_model_open(&r, &m, &err))
        fail_msg("%s", err.text);
    assert_true(fixture_profile(m, &on_the_cpu, &p));
    if (planner_make(m, &p, &o, &plan, NULL, &err))
        fail_msg("%s", err.text);
    const uint64_t bytes = plan.devices[0].planned_bytes;
    plan_free(&plan);
    profile_free(&p);
    model_close(m);
    return bytes;
}

/* 1024 positions of context are 16 pages; a window of 100 with steps of 64 touches 4, of both
 * layers' 2 heads of 16 F16 numbers of K and V. */
static void windows_leave_room_for_weights(void **state)
{
    (void)state;
    const uint64_t page = 2 * 64 * 2 * 2 * 16 * 2;
    const uint64_t all = bytes_with(NULL, 1);
    assert_int_equal(all - bytes_with("attention.sliding_window=100", 1), 12 * page);
    assert_int_equal(all - bytes_with("attention.sliding_window=1000", 1), 0);
}

/* Each sequence may end in a page that is not full. Without their pages a plan within a tight
 * budget did not start. */
static void sequences_have_a_page_of_their_own(void **state)
{
    (void)state;
    const uint64_t page = 2 * 64 * 2 * 2 * 16 * 2;
    assert_in_range(bytes_with(NULL, 4) - bytes_with(NULL, 1), 3 * page, 4 * page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(windows_leave_room_for_weights),
        cmocka_unit_test(sequences_have_a_page_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
