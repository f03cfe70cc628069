/*
 * test_ranks.c - plans for several ranks: priced again by the same profiles they cost what they
 * promised; ranks whose profiles differ take equally long; check tells what no longer holds.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct model *model;
static struct profile fast, slow;

static int setup(void **state)
{
    (void)state;
    struct oato_error err;
    struct random_model m = random_model_default();
    struct fixture_options o = {.scale = 1, .fused_factor = 0.9};
    m.layers = 4;
    m.width = 1024;
    m.heads = m.kv_heads = 16;
    m.ffn = 3072; /* shares end on multiples of 64 */
    m.vocab = 4096;
    m.dtype = DT_Q8_0;
    m.header_only = true;
    if (random_model_open(&m, &model, &err)) {
        print_error("%s\n", err.text);
        return 1;
    }
    const bool made = fixture_profile(model, &o, &fast);
    o.scale = 2;
    return !made || !fixture_profile(model, &o, &slow);
}

static int teardown(void **state)
{
    (void)state;
    profile_free(&fast);
    profile_free(&slow);
    model_close(model);
    return 0;
}

static struct rank_options ranks_on(int32_t ranks, int32_t hosts, const struct profile *second)
{
    return (struct rank_options){.ranks = ranks,
                                 .hosts = hosts,
                                 .profiles = {&fast, second},
                                 .n_profiles = second ? 2 : 1,
                                 .bytes_per_s = 117e6,
                                 .latency_ns = 60e3,
                                 .wire = DT_F32};
}

static void made(const struct rank_options *ranks, struct plan *plan)
{
    struct oato_error err;
    struct planner_options o;
    planner_options_init(&o);
    o.request.prompt = 100;
    o.request.generate = 20;
    o.request.context = 512;
    o.request.ubatch = 64;
    if (ranks_plan(model, &o, ranks, plan, &err))
        fail_msg("%s", err.text);
}

/* oato-plan check; the text is in *out. */
static oato_status checked(const struct plan *plan, const struct rank_options *ranks, bool json,
                           struct text *out)
{
    struct oato_error err = {.status = OATO_OK};
    text_init(out);
    const oato_status status = report_check_ranks(plan, model, ranks, 0.05, json, out, &err);
    if (status > OATO_NEGATIVE)
        fail_msg("%s", err.text);
    return status;
}

static void priced_again_a_plan_costs_what_it_promised(void **state)
{
    (void)state;
    const struct rank_options cases[] = {ranks_on(2, 2, NULL), ranks_on(4, 2, NULL),
                                         ranks_on(8, 4, NULL), ranks_on(2, 2, &slow),
                                         ranks_on(3, 3, &slow)};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct plan plan, now;
        struct oato_error err;
        struct text out;
        made(&cases[i], &plan);
        if (ranks_price(&plan, model, &cases[i], &now, &err))
            fail_msg("%s", err.text);
        assert_true(plan.n_fusions > 0 && plan.decode_ns > 0);
        assert_true(now.prefill_ns == plan.prefill_ns && now.decode_ns == plan.decode_ns);
        assert_true(now.objective_ns == plan.objective_ns);
        assert_int_equal(now.n_costs, plan.n_costs);
        for (int32_t d = 0; d < plan.n_devices; d++)
            assert_true(now.devices[d].planned_bytes == plan.devices[d].planned_bytes);
        plan_free(&now);
        assert_int_equal(checked(&plan, &cases[i], i & 1, &out), OATO_OK);
        text_free(&out);
        plan_free(&plan);
    }
}

static bool is_divided(const struct plan *plan, const char *op)
{
    bool divided = false;
    for (int32_t i = 0; i < plan->n_parts && !divided; i++)
        divided = !strcmp(plan->parts[i].op, op);
    return divided;
}

/* What is divided; the rest is done by all. */
static void ranks_of_different_speed_take_equally_long(void **state)
{
    (void)state;
    const struct rank_options ranks = ranks_on(2, 2, &slow);
    struct plan plan;
    made(&ranks, &plan);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        double ns[2] = {0};
        for (int32_t i = 0; i < plan.n_costs; i++)
            if (plan.costs[i].phase == (enum plan_phase)phase &&
                is_divided(&plan, plan.costs[i].op))
                ns[plan.costs[i].device] += (double)plan.costs[i].ns;
        assert_true(ns[0] > 0);
        assert_true(ns[1] > 0.93 * ns[0] && ns[1] < 1.07 * ns[0]);
    }
    assert_true(plan.devices[0].planned_bytes > plan.devices[1].planned_bytes);
    plan_free(&plan);
}

static void check_tells_what_no_longer_holds(void **state)
{
    (void)state;
    const struct rank_options was = ranks_on(2, 2, NULL);
    struct rank_options now = was;
    struct plan plan;
    struct text out;
    made(&was, &plan);

    now.profiles[0] = &slow; /* slower, but no plan is better */
    assert_int_equal(checked(&plan, &now, false, &out), OATO_NEGATIVE);
    assert_non_null(strstr(out.data, "what the plan promised"));
    char *best = strstr(out.data, "the best plan of today");
    assert_true(best && strstr(best, "fine"));
    text_free(&out);

    now = ranks_on(2, 2, &slow); /* the second rank alone: another division is better */
    assert_int_equal(checked(&plan, &now, false, &out), OATO_NEGATIVE);
    best = strstr(out.data, "the best plan of today");
    assert_true(best && strstr(best, "NOT FINE"));
    text_free(&out);

    now = was; /* a slower network */
    now.bytes_per_s = 1e6;
    assert_int_equal(checked(&plan, &now, false, &out), OATO_NEGATIVE);
    text_free(&out);

    struct profile small = fast; /* less memory */
    struct profile_device device = fast.devices[0];
    device.free_bytes = plan.devices[0].planned_bytes / 2;
    small.devices = &device;
    now = was;
    now.profiles[0] = &small;
    assert_int_equal(checked(&plan, &now, false, &out), OATO_NEGATIVE);
    assert_non_null(strstr(out.data, "memory of cpu:0 of rank 1"));
    assert_non_null(strstr(out.data, "some plan fits this machine"));
    text_free(&out);
    plan_free(&plan);
}

static void a_division_that_is_unknown_is_refused(void **state)
{
    (void)state;
    const struct rank_options ranks = ranks_on(2, 2, NULL);
    struct plan plan, now;
    struct oato_error err;
    made(&ranks, &plan);
    const struct plan_part first = plan.parts[0];
    assert_string_equal(plan.parts[1].op, first.op);
    plan.parts[0] = plan.parts[1]; /* rank 1 before rank 0 */
    plan.parts[1] = first;
    assert_int_equal(ranks_price(&plan, model, &ranks, &now, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "run oato-plan again"));
    plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(priced_again_a_plan_costs_what_it_promised),
        cmocka_unit_test(ranks_of_different_speed_take_equally_long),
        cmocka_unit_test(check_tells_what_no_longer_holds),
        cmocka_unit_test(a_division_that_is_unknown_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
