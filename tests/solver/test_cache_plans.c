/*
 * test_cache_plans.c - plans with a cache of experts: it takes memory that the plan leaves free and
 * no more, predicts the hits of skewed choices, is priced by the virtual clock, and `auto` never
 * makes a plan slower.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"
#include "tests/solver/power_law.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 4, EXPERTS = 32, USED = 4 };

static struct model *open_model(int64_t experts)
{
    struct oato_error err;
    struct model *m = NULL;
    struct random_model shape = random_model_default();
    shape.architecture = experts ? "qwen3moe" : "llama";
    shape.layers = LAYERS;
    shape.width = 256;
    shape.ffn = 128;
    shape.experts = experts;
    shape.experts_used = experts ? USED : 0;
    shape.dtype = DT_Q4_0;
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

static void profile_of(const struct model *m, bool refills, struct profile *p)
{
    const struct fixture_options machine = {
        .sim_speed = 20, .link_latency_ns = 2000, .scale = 1, .fused_factor = 0.9};
    assert_true(fixture_profile(m, &machine, p));
    p->devices[profile_device_index(p, "sim:0")].refills = refills;
}

/* Whole layers, so that most of the budget for half of the model is left. */
static struct planner_options options_of(int32_t cache)
{
    struct planner_options o;
    planner_options_init(&o);
    o.solver = "layers";
    o.budgets[0] = (struct device_budget){"sim:0", 4 << 20};
    o.n_budgets = 1;
    o.request.prompt = 32;
    o.request.generate = 64;
    o.request.context = 256;
    o.request.ubatch = 32;
    o.expert_cache = cache;
    return o;
}

static struct plan plan_of(const struct model *m, const struct profile *p,
                           const struct planner_options *o)
{
    struct oato_error err;
    struct plan plan;
    struct graph g;
    if (planner_make(m, p, o, &plan, NULL, &err) || plan_apply(&plan, m, &g, &err))
        fail_msg("%s", err.text);
    graph_free(&g);
    return plan;
}

static void slots_take_what_the_plan_leaves_and_are_priced(void **state)
{
    (void)state;
    struct model *m = open_model(EXPERTS);
    struct profile p;
    struct text shown;
    profile_of(m, false, &p);
    struct planner_options o = options_of(0);
    struct plan without = plan_of(m, &p, &o);
    o.expert_cache = 4;
    struct plan with = plan_of(m, &p, &o);
    assert_int_equal(without.n_caches, 0);
    assert_in_range(with.n_caches, 1, LAYERS);
    for (int32_t i = 0; i < with.n_caches; i++) {
        assert_int_equal(with.caches[i].slots, 4);
        assert_in_range(with.caches[i].hits, 110000, 124900); /* below 4 of 32: copies */
        assert_true(with.caches[i].margin > 0);
    }
    assert_true(with.devices[1].planned_bytes > without.devices[1].planned_bytes);
    assert_true(with.devices[1].planned_bytes <= with.devices[1].budget_bytes);
    assert_true(with.decode_ns < without.decode_ns && with.prefill_ns == without.prefill_ns);
    text_init(&shown);
    report_plan(&with, NULL, false, &shown);
    assert_non_null(strstr(shown.data, " % of the host's choices predicted"));
    text_free(&shown);
    plan_free(&with);
    plan_free(&without);
    profile_free(&p);
    model_close(m);
}

/* Where experts replace each other more readily the host reads more of them. */
static void copies_cost_time(void **state)
{
    (void)state;
    struct model *m = open_model(EXPERTS);
    struct oato_error err;
    struct profile p;
    const struct planner_options o = options_of(4);
    profile_of(m, true, &p);
    struct plan plan = plan_of(m, &p, &o);
    uint64_t ns[2];
    for (int readily = 0; readily < 2; readily++) {
        for (int32_t i = 0; i < plan.n_caches; i++)
            plan.caches[i].margin = readily ? 0 : 1000000;
        if (simulation_predict(&plan, m, &p, &err))
            fail_msg("%s", err.text);
        ns[readily] = plan.decode_ns;
    }
    print_message("%d ns a token without copies, %d with them\n", (int)ns[0], (int)ns[1]);
    assert_true(ns[1] > ns[0]);
    plan_free(&plan);
    profile_free(&p);
    model_close(m);
}

/* A table, an operator and its companion, as text and as JSON; a plan alone. */
static void a_cache_is_explained(void **state)
{
    (void)state;
    struct model *m = open_model(EXPERTS);
    struct oato_error err;
    struct profile p;
    struct text shown;
    const struct planner_options o = options_of(4);
    profile_of(m, true, &p);
    struct plan plan = plan_of(m, &p, &o);
    const char *up = plan.caches[0].op;
    char down[64];
    snprintf(down, sizeof down, "blk.%d.ffn_down_exps", atoi(up + strlen("blk.")));
    const struct {
        bool priced, json;
        const char *name, *told;
    } cases[] = {
        {true, false, NULL, "4 slots on sim:0 cache experts of the host, "},
        {true, false, up, " MiB: "},
        {true, false, down, "  4 slots on sim:0 cache experts of the host, "},
        {true, true, up, "\"cache\""},
        {false, false, NULL, "4 slots on sim:0 cache experts of the host: "},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        text_init(&shown);
        if (report_explain(&plan, cases[i].priced ? m : NULL, cases[i].priced ? &p : NULL,
                           cases[i].name, cases[i].json, &shown, &err))
            fail_msg("%s", err.text);
        if (!strstr(shown.data, cases[i].told))
            fail_msg("%d: %s", (int)i, shown.data);
        text_free(&shown);
    }
    plan_free(&plan);
    profile_free(&p);
    model_close(m);
}

/* The device's free memory shrinks below what parts and slots take together. */
static void a_check_counts_slots(void **state)
{
    (void)state;
    struct model *m = open_model(EXPERTS);
    struct oato_error err;
    struct text shown;
    struct profile p;
    profile_of(m, true, &p);
    struct planner_options o = options_of(0);
    struct plan without = plan_of(m, &p, &o);
    o.expert_cache = 4;
    struct plan with = plan_of(m, &p, &o);
    const uint64_t least = without.devices[1].planned_bytes, most = with.devices[1].planned_bytes;
    for (int fits = 0; fits < 2; fits++) {
        const char *said;
        p.devices[1].free_bytes = fits ? most : least + (most - least) / 2;
        text_init(&shown);
        report_check(&with, m, &p, 1000, 0, false, &shown, &err);
        said = strstr(shown.data, "memory of sim:0");
        assert_non_null(said);
        const char *bad = strstr(said, "NOT FINE"), *end = strchr(said, '\n');
        assert_int_equal(!bad || bad > end, fits);
        text_free(&shown);
    }
    plan_free(&without);
    plan_free(&with);
    profile_free(&p);
    model_close(m);
}

/* Half of the tokens' choices are of few experts: these are found more often than their share. */
static void skewed_choices_hit_more_often(void **state)
{
    (void)state;
    struct model *m = open_model(EXPERTS);
    struct oato_error err;
    struct profile p;
    struct neurons n;
    struct power_law law = power_law_default();
    int32_t hits[2];
    profile_of(m, false, &p);
    for (int i = 0; i < 2; i++) {
        struct planner_options o = options_of(8);
        law.hot_experts = i ? 0.2 : 0.6;
        if (power_law_neurons(m->gguf, &law, &n, &err))
            fail_msg("%s", err.text);
        o.neurons = &n;
        struct plan plan = plan_of(m, &p, &o);
        assert_true(plan.n_caches > 0);
        hits[i] = plan.caches[0].hits;
        plan_free(&plan);
        neurons_free(&n);
    }
    print_message("8 of 32 slots: %d and %d hits of a million\n", hits[0], hits[1]);
    assert_true(hits[0] > 250000 && hits[1] > hits[0] + 100000);
    profile_free(&p);
    model_close(m);
}

static void automatic_caches_are_never_slower(void **state)
{
    (void)state;
    struct model *m = open_model(EXPERTS);
    for (int refills = 0; refills < 2; refills++)
        for (uint64_t mib = 1; mib <= 8; mib *= 2) {
            struct profile p;
            profile_of(m, refills, &p);
            struct planner_options o = options_of(0);
            o.budgets[0].bytes = mib << 20;
            struct plan without = plan_of(m, &p, &o);
            o.expert_cache = CACHE_AUTO;
            struct plan with = plan_of(m, &p, &o);
            assert_true(with.request_ns <= without.request_ns);
            assert_true(with.devices[1].planned_bytes <= with.devices[1].budget_bytes);
            assert_true(refills || !with.n_caches);
            assert_int_equal(with.n_caches > 0, with.request_ns < without.request_ns);
            if (mib == 4)
                assert_int_equal(with.n_caches > 0, refills);
            plan_free(&with);
            plan_free(&without);
            profile_free(&p);
        }
    model_close(m);
}

/* The search fills the device; for slots that were asked for it leaves room. */
static void slots_that_were_asked_for_get_room(void **state)
{
    (void)state;
    struct model *m = open_model(EXPERTS);
    struct profile p;
    profile_of(m, false, &p);
    for (uint64_t kib = 1536; kib <= 6144; kib *= 2) {
        struct planner_options o = options_of(4);
        struct plan plan;
        struct oato_error err;
        o.solver = "auto";
        o.budgets[0].bytes = kib << 10;
        o.cache_room = true; /* what is left, which is little */
        const oato_status before = planner_make(m, &p, &o, &plan, NULL, &err);
        if (!before)
            plan_free(&plan);
        o.cache_room = false;
        plan = plan_of(m, &p, &o);
        assert_true(before == OATO_EFIT || kib == 6144);
        assert_true(plan.n_caches > 0 && plan.caches[0].slots == 4 && !plan.bound_ns);
        assert_true(plan.devices[1].planned_bytes <= plan.devices[1].budget_bytes);
        plan_free(&plan);
    }
    profile_free(&p);
    model_close(m);
}

/* Where a few experts are chosen most and none is placed alone, slots for them gain more than whole
 * layers in the same room. */
static void automatic_caches_get_room_where_that_gains(void **state)
{
    (void)state;
    struct model *m = open_model(EXPERTS);
    struct oato_error err;
    struct profile p;
    struct neurons n;
    struct power_law law = power_law_default();
    bool gained = false;
    profile_of(m, true, &p);
    law.hot_experts = 0.2;
    if (power_law_neurons(m->gguf, &law, &n, &err))
        fail_msg("%s", err.text);
    for (uint64_t kib = 1024; kib <= 4096; kib += 512) {
        struct planner_options o = options_of(CACHE_AUTO);
        o.solver = "auto";
        o.whole_only = true;
        o.neurons = &n;
        o.budgets[0].bytes = kib << 10;
        o.cache_room = true;
        struct plan left = plan_of(m, &p, &o);
        o.cache_room = false;
        struct plan room = plan_of(m, &p, &o);
        print_message("%d KiB: %d ns and %d slots in what is left, %d ns and %d with room\n",
                      (int)kib, (int)left.request_ns, left.n_caches ? left.caches[0].slots : 0,
                      (int)room.request_ns, room.n_caches ? room.caches[0].slots : 0);
        assert_true(room.request_ns <= left.request_ns && room.bound_ns <= left.bound_ns);
        assert_true(room.devices[1].planned_bytes <= room.devices[1].budget_bytes);
        gained = gained || (double)room.request_ns < 0.99 * (double)left.request_ns;
        plan_free(&left);
        plan_free(&room);
    }
    assert_true(gained);
    neurons_free(&n);
    profile_free(&p);
    model_close(m);
}

static void expect_refused(const struct model *m, int32_t cache, oato_status status,
                           const char *what)
{
    struct oato_error err;
    struct plan plan;
    struct profile p;
    profile_of(m, false, &p);
    const struct planner_options o = options_of(cache);
    assert_int_equal(planner_make(m, &p, &o, &plan, NULL, &err), status);
    if (status == OATO_EFIT) /* the host has room for the model: no advice about that */
        assert_int_equal(report_shortage(m, &p, &o, &err), status);
    if (!strstr(err.text, what))
        fail_msg("%s", err.text);
    profile_free(&p);
}

static void what_does_not_fit_is_told(void **state)
{
    (void)state;
    struct model *m = open_model(EXPERTS), *dense = open_model(0);
    expect_refused(m, EXPERTS * 4, OATO_EFIT, "slots fit; raise --budget");
    expect_refused(dense, 1, OATO_EUSAGE, "no experts on the host");
    model_close(dense);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_take_what_the_plan_leaves_and_are_priced),
        cmocka_unit_test(copies_cost_time),
        cmocka_unit_test(a_cache_is_explained),
        cmocka_unit_test(a_check_counts_slots),
        cmocka_unit_test(skewed_choices_hit_more_often),
        cmocka_unit_test(automatic_caches_are_never_slower),
        cmocka_unit_test(slots_that_were_asked_for_get_room),
        cmocka_unit_test(automatic_caches_get_room_where_that_gains),
        cmocka_unit_test(what_does_not_fit_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
