/*
 * test_shortage.c - what is said about plans when memory is short: the linker hands every
 * allocation of this program to us, and from the n-th on, for all n, there is none. Then a report
 * fails and says so. None crashes, none is cut off with status 0, and a check gives no verdict.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);

static int64_t left = INT64_MAX; /* allocations until there is no memory */

void *__wrap_malloc(size_t bytes)
{
    return left-- > 0 ? __real_malloc(bytes) : NULL;
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return left-- > 0 ? __real_calloc(n, bytes) : NULL;
}

void *__wrap_realloc(void *p, size_t bytes)
{
    return left-- > 0 ? __real_realloc(p, bytes) : NULL;
}

static struct model *model;
static struct profile profile;
static struct plan plan, other;

static void make(const char *solver, struct plan *out)
{
    struct oato_error err;
    struct planner_options o;
    planner_options_init(&o);
    o.solver = solver;
    o.request = (struct plan_request){
        .prompt = 32, .generate = 4, .context = 64, .batch = 1, .ubatch = 32, .kv = DT_F16};
    o.budgets[0] = (struct device_budget){"sim:0", 300 << 10};
    o.n_budgets = 1;
    o.time_limit_s = 0;
    if (planner_make(model, &profile, &o, out, NULL, &err))
        fail_msg("%s", err.text);
}

static int setup(void **state)
{
    (void)state;
    struct oato_error err;
    struct random_model m = random_model_default();
    m.dtype = DT_Q4_0;
    if (random_model_open(&m, &model, &err)) {
        print_error("%s\n", err.text);
        return 1;
    }
    const struct fixture_options o = {
        .sim_speed = 8, .link_latency_ns = 2000, .scale = 1, .fused_factor = 0.9};
    assert_true(fixture_profile(model, &o, &profile));
    make("auto", &plan);
    make("cpu", &other);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    plan_free(&plan);
    plan_free(&other);
    profile_free(&profile);
    model_close(model);
    return 0;
}

typedef oato_status say(struct text *out, struct oato_error *err);

/* Says it with memory for n allocations, for ever more of them, until it says all. */
static void expect_all_or_nothing(say *said)
{
    struct text whole;
    struct oato_error err = {.status = OATO_OK};
    text_init(&whole);
    assert_int_equal(said(&whole, &err), OATO_OK);
    assert_true(whole.len > 0);
    for (int64_t n = 0;; n++) {
        struct text out;
        text_init(&out);
        err = (struct oato_error){.status = OATO_OK};
        left = n;
        const oato_status status = said(&out, &err);
        const bool enough = left >= 0;
        left = INT64_MAX;
        if (!status && !out.failed) {
            assert_int_equal(out.len, whole.len);
            assert_memory_equal(out.data, whole.data, whole.len);
        } else if (status) {
            assert_int_equal(status, OATO_EFIT);
            assert_true(oato_failed_memory(&err));
        }
        text_free(&out);
        if (enough)
            break;
    }
    text_free(&whole);
}

static oato_status say_simulation(struct text *out, struct oato_error *err)
{
    struct simulation *s;
    const struct rank_options one = {.profiles = {&profile}, .n_profiles = 1};
    if (simulation_run(&plan, model, &one, &s, err))
        return err->status;
    report_simulation(s, false, out);
    report_simulation(s, true, out);
    report_trace(s, out);
    simulation_free(s);
    return OATO_OK;
}

static oato_status say_check(struct text *out, struct oato_error *err)
{
    return report_check(&plan, model, &profile, 0.05, 0, false, out, err);
}

static oato_status say_diff(struct text *out, struct oato_error *err)
{
    bool same;
    return report_diff(&plan, &other, false, &same, out, err);
}

static oato_status say_explain(struct text *out, struct oato_error *err)
{
    return report_explain(&plan, model, &profile, NULL, true, out, err);
}

static oato_status say_html(struct text *out, struct oato_error *err)
{
    const struct rank_options one = {.profiles = {&profile}, .n_profiles = 1};
    return report_html(&plan, model, &one, false, out, err);
}

static oato_status say_export(struct text *out, struct oato_error *err)
{
    static const struct export_name name = {"sim:0", "CUDA0"};
    const struct export_options o = {.names = &name, .n_names = 1};
    return report_export(&plan, model, &o, false, out, out, err);
}

static void simulations_and_traces_are_whole_or_refused(void **state)
{
    (void)state;
    expect_all_or_nothing(say_simulation);
}

static void memory_shortage_is_no_verdict(void **state)
{
    (void)state;
    expect_all_or_nothing(say_check);
}

static void reports_are_whole_or_refused(void **state)
{
    (void)state;
    expect_all_or_nothing(say_diff);
    expect_all_or_nothing(say_explain);
    expect_all_or_nothing(say_html);
    expect_all_or_nothing(say_export);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simulations_and_traces_are_whole_or_refused),
        cmocka_unit_test(memory_shortage_is_no_verdict),
        cmocka_unit_test(reports_are_whole_or_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
