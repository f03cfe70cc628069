/*
 * test_choices.c - what is planned where an option is left open: no width of steps is better than
 * the chosen one, of any solver, and the bound is one of all widths; what a plan says of other
 * options comes true when it is planned with them; a deadline holds for all of it together.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

#define GIB   ((uint64_t)1 << 30)
#define GAP   1e-3
#define WORTH 1.05

enum { LEAST = 64 };

static struct model *small, *dense, *experts;
static struct profile machine;

static bool open_model(const char *shape, enum oato_dtype type, struct model **out)
{
    struct oato_error err = {.text = "no such shape"};
    struct random_model m = random_model_default();
    m.dtype = type;
    m.header_only = true;
    m.tokenizer = false;
    m.context = 1 << 17;
    const bool opened = random_model_set_shape(&m, shape) && !random_model_open(&m, out, &err);
    if (!opened)
        print_error("%s: %s\n", shape, err.text);
    return opened;
}

static int setup(void **state)
{
    (void)state;
    struct oato_error err;
    if (!open_model("1b", DT_F16, &small) || !open_model("8b", DT_F16, &dense) ||
        !open_model("qwen3-30b-a3b", DT_Q4_0, &experts))
        return 1;
    return hardware_load("rtx4090-xeon4314", &machine, NULL, NULL, &err) != OATO_OK;
}

static int teardown(void **state)
{
    (void)state;
    profile_free(&machine);
    model_close(small);
    model_close(dense);
    model_close(experts);
    return 0;
}

static struct planner_options options_of(int32_t prompt, uint64_t bytes)
{
    struct planner_options o;
    planner_options_init(&o);
    o.request.prompt = prompt;
    o.request.generate = 256;
    o.request.context = (prompt + 256 + 63) / 64 * 64;
    o.any_ubatch = true;
    o.time_limit_s = 0;
    o.gap = GAP;
    snprintf(o.budgets[0].id, sizeof o.budgets[0].id, "cuda:0");
    o.budgets[0].bytes = bytes;
    o.n_budgets = 1;
    return o;
}

static void plan_for(const struct model *m, const struct planner_options *o, struct plan *plan)
{
    struct oato_error err;
    if (planner_make(m, &machine, o, plan, NULL, &err))
        fail_msg("%s", err.text);
}

/* Requests that took 2.1 to 2.6 times as long in steps of 512. */
static void long_prompts_are_fast_without_options(void **state)
{
    (void)state;
    const struct {
        const struct model *m;
        int32_t prompt;
        double request_s, prefill_s;
    } most[] = {{experts, 16384, 7.6, 5}, {dense, 30000, 36, 15}, {dense, 65536, 70, 40}};
    for (size_t i = 0; i < ARRAY_LEN(most); i++) {
        const struct planner_options o = options_of(most[i].prompt, 8 * GIB);
        struct plan plan;
        plan_for(most[i].m, &o, &plan);
        print_message("%d tokens in steps of %d: request %.1f s, prefill %.1f s\n", most[i].prompt,
                      plan.request.ubatch, (double)plan.request_ns * 1e-9,
                      (double)plan.prefill_ns * 1e-9);
        assert_true((double)plan.request_ns * 1e-9 <= most[i].request_s);
        assert_true((double)plan.prefill_ns * 1e-9 <= most[i].prefill_s);
        assert_true((double)plan.bound_ns >= 0.98 * (double)plan.objective_ns);
        plan_free(&plan);
    }
}

static bool is_noted(const struct plan *p, const char *option, bool chosen)
{
    bool noted = false;
    for (int32_t i = 0; i < p->n_choices; i++)
        noted = noted || (!strcmp(p->choices[i].option, option) && p->choices[i].chosen == chosen);
    return noted;
}

/* Two searches that end at the gap may miss each other by twice as much. */
static void no_width_is_better(void **state)
{
    (void)state;
    static const char *const solvers[] = {"auto", "layers", "affinity"};
    static const uint64_t budgets[] = {GIB / 2, 3 * GIB};
    static const int32_t prompts[] = {100, 5000}, widths[] = {LEAST, 256, 512, 1024, 2048, 8192};
    int32_t chosen = 0;
    for (size_t i = 0; i < ARRAY_LEN(solvers) * ARRAY_LEN(budgets) * ARRAY_LEN(prompts); i++) {
        struct planner_options o = options_of(prompts[i % 2], budgets[i / 2 % ARRAY_LEN(budgets)]);
        struct plan plan, fixed;
        o.solver = solvers[i / 2 / ARRAY_LEN(budgets)];
        const double slack = strcmp(o.solver, "auto") != 0 ? 1 : 1 + 2 * GAP;
        plan_for(small, &o, &plan);
        assert_true(is_noted(&plan, "ubatch", true));
        chosen |= plan.request.ubatch;
        o.any_ubatch = false;
        for (size_t k = 0; k < ARRAY_LEN(widths); k++) {
            o.request.ubatch = widths[k];
            plan_for(small, &o, &fixed);
            assert_true((double)plan.objective_ns <= slack * (double)fixed.objective_ns);
            assert_true(plan.bound_ns <= fixed.objective_ns);
            assert_int_equal(fixed.n_choices, 0);
            plan_free(&fixed);
        }
        plan_free(&plan);
    }
    assert_true(chosen & 512); /* where it does not matter */
    assert_true(chosen > 1024);
}

/* Steps of 512 do not fit into so little, but others do. */
static void a_narrow_step_fits_where_a_wide_one_does_not(void **state)
{
    (void)state;
    struct planner_options o = options_of(512, GIB);
    struct oato_error err;
    struct plan plan;
    o.devices = "cpu:0";
    snprintf(o.budgets[0].id, sizeof o.budgets[0].id, "cpu:0");
    o.any_ubatch = false;
    o.request.ubatch = LEAST;
    o.budgets[0].bytes = 16 * GIB;
    plan_for(small, &o, &plan);
    o.budgets[0].bytes = plan.devices[0].planned_bytes;
    plan_free(&plan);
    o.request.ubatch = 512;
    assert_int_equal(planner_make(small, &machine, &o, &plan, NULL, &err), OATO_EFIT);
    o.any_ubatch = true;
    plan_for(small, &o, &plan);
    assert_int_equal(plan.request.ubatch, LEAST);
    plan_free(&plan);
    o.budgets[0].bytes /= 2;
    assert_int_equal(planner_make(small, &machine, &o, &plan, NULL, &err), OATO_EFIT);
}

/* By what is minimized. */
static double seconds_of(const struct plan *p)
{
    return 1e-9 * (double)(p->request.objective == OBJECTIVE_TTFT ? p->prefill_ns : p->request_ns);
}

/* Sets what the alternative's option says. */
static void take_option(const char *option, struct planner_options *o)
{
    int context;
    if (!strcmp(option, "--kv q8_0"))
        o->request.kv = DT_Q8_0;
    else if (!strcmp(option, "--expert-cache auto"))
        o->expert_cache = CACHE_AUTO;
    else if (sscanf(option, "--context %d", &context) == 1)
        o->request.context = context;
    else
        fail_msg("what is %s?", option);
}

/* Each is planned with, and found to be as fast; KV of Q8_0 that is not mentioned is not worth it.
 */
static void alternatives_come_true(void **state)
{
    (void)state;
    int32_t told = 0, with_why = 0;
    const struct {
        const struct model *m;
        int32_t prompt;
        uint64_t budget;
        int32_t context; /* 0: that of the request */
        enum plan_objective objective;
    } cases[] = {
        {small, 6000, GIB / 2, 1 << 16, OBJECTIVE_LATENCY},
        {small, 600, GIB / 2, 1 << 16, OBJECTIVE_LATENCY},
        {small, 6000, GIB / 2, 0, OBJECTIVE_TTFT},
        {experts, 6000, 4 * GIB, 0, OBJECTIVE_LATENCY},
        {dense, 30000, 8 * GIB, 0, OBJECTIVE_LATENCY},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct model *m = cases[i].m;
        struct planner_options o = options_of(cases[i].prompt, cases[i].budget);
        struct oato_error err;
        struct plan plan, other;
        double least = 1e9;
        o.gap = 1e-2;
        o.request.context = cases[i].context ? cases[i].context : o.request.context;
        o.request.objective = cases[i].objective;
        plan_for(m, &o, &plan);
        if (planner_alternatives(m, &machine, &o, OPEN_KV | OPEN_CONTEXT | OPEN_CACHE, &plan, &err))
            fail_msg("%s", err.text);
        assert_in_range(plan.n_alternatives, 0, ALTERNATIVES_MAX);
        assert_true(is_noted(&plan, "kv", false) && is_noted(&plan, "context", false));
        bool small_kv = false;
        for (int32_t k = 0; k < plan.n_alternatives; k++) {
            const struct plan_alternative *a = &plan.alternatives[k];
            const double gain = alternative_gain(&plan, a);
            struct planner_options with = o;
            print_message("%s: %.2f x faster (%s)\n", a->option, gain, a->why);
            assert_true(gain >= WORTH && gain <= least);
            least = gain;
            small_kv = small_kv || !strcmp(a->option, "--kv q8_0");
            with_why += *a->why != 0;
            take_option(a->option, &with);
            plan_for(m, &with, &other); /* its width is chosen anew, by the objective */
            assert_true(seconds_of(&plan) / seconds_of(&other) >= gain * 0.97);
            plan_free(&other);
            told++;
        }
        if (!small_kv) {
            struct planner_options with = o;
            with.any_ubatch = false;
            with.request.ubatch = plan.request.ubatch;
            with.request.kv = DT_Q8_0;
            plan_for(m, &with, &other);
            assert_true((double)other.objective_ns * WORTH >= 0.98 * (double)plan.objective_ns ||
                        seconds_of(&other) * WORTH >= seconds_of(&plan));
            plan_free(&other);
        }
        plan_free(&plan);
    }
    assert_true(told >= 3 && with_why == told);
}

/* --kv auto: by the same measure, or where nothing else fits. */
static void small_kv_is_taken_where_it_is_worth_it(void **state)
{
    (void)state;
    int32_t taken = 0;
    for (int i = 0; i < 4; i++) {
        struct planner_options o = options_of(i & 1 ? 6000 : 600, i & 2 ? 8 * GIB : GIB / 2);
        struct plan plan, wide;
        o.request.context = 1 << 16;
        plan_for(small, &o, &wide);
        o.any_kv = true;
        plan_for(small, &o, &plan);
        assert_true(is_noted(&plan, "kv", true));
        taken += plan.request.kv == DT_Q8_0;
        assert_true(plan.request.kv == DT_F16 ? seconds_of(&plan) == seconds_of(&wide)
                                              : seconds_of(&plan) * WORTH <= seconds_of(&wide));
        plan_free(&plan);
        plan_free(&wide);
    }
    assert_in_range(taken, 1, 3);
}

/* The last step of a search is short; this is of a machine that computes for others, too. */
static void one_deadline_holds_for_all_widths(void **state)
{
    (void)state;
    enum { SLACK_S = 5 };
    struct planner_options o = options_of(30000, 8 * GIB);
    struct oato_error err;
    struct plan plan;
    o.any_kv = true;
    o.time_limit_s = 0.05;
    const uint64_t begin = now_ns();
    plan_for(dense, &o, &plan);
    o.deadline_ns = begin;
    if (planner_alternatives(dense, &machine, &o, OPEN_CONTEXT, &plan, &err))
        fail_msg("%s", err.text);
    assert_true((double)(now_ns() - begin) * 1e-9 < SLACK_S);
    assert_true(plan.timed_out);
    plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(long_prompts_are_fast_without_options),
        cmocka_unit_test(no_width_is_better),
        cmocka_unit_test(a_narrow_step_fits_where_a_wide_one_does_not),
        cmocka_unit_test(alternatives_come_true),
        cmocka_unit_test(small_kv_is_taken_where_it_is_worth_it),
        cmocka_unit_test(one_deadline_holds_for_all_widths),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
