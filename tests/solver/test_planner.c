/*
 * test_planner.c - what must stay true of plans: the same inputs give the same bytes, budgets hold,
 * predictions add up, no baseline is faster, fusions are taken where they pay; and of what is said
 * about plans: reports are JSON, check notices what changed and diff what moved.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"
#include "tests/solver/parsed.h"
#include "tests/solver/plan_fixture.h"
#include "tests/solver/solver_price.h"

// clang-format off
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

static struct model *model;
static const struct fixture_options usual = {
    .sim_speed = 8, .link_latency_ns = 2000, .scale = 1, .fused_factor = 0.9};

static int setup(void **state)
{
    (void)state;
    struct oato_error err;
    struct random_model m = random_model_default();
    m.layers = 6;
    m.width = 256;
    m.ffn = 512;
    m.context = 2048;
    m.dtype = DT_Q4_0;
    if (random_model_open(&m, &model, &err)) {
        print_error("%s\n", err.text);
        return 1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(model);
    return 0;
}

static struct planner_options options_with(const char *solver, uint64_t sim_bytes)
{
    struct planner_options o;
    planner_options_init(&o);
    o.solver = solver;
    o.request.prompt = 100;
    o.request.generate = 50;
    o.request.context = 1024;
    o.request.ubatch = 64;
    o.time_limit_s = 0;
    o.budgets[0] = (struct device_budget){"sim:0", sim_bytes};
    o.n_budgets = 1;
    return o;
}

static void make(const struct profile *p, const struct planner_options *o, struct plan *plan,
                 struct problem **problem)
{
    struct oato_error err;
    if (planner_make(model, p, o, plan, problem, &err))
        fail_msg("%s", err.text);
}

static void usual_profile(struct profile *p)
{
    assert_true(fixture_profile(model, &usual, p));
}

static void the_same_inputs_give_the_same_bytes(void **state)
{
    (void)state;
    struct oato_error err;
    static const char *const solvers[] = {"auto", "ilp", "affinity", "layers", "cpu"};
    for (size_t i = 0; i < ARRAY_LEN(solvers); i++) {
        uint8_t *data[2];
        size_t bytes[2];
        for (int k = 0; k < 2; k++) {
            struct profile p;
            struct plan plan;
            usual_profile(&p);
            struct planner_options o = options_with(solvers[i], 3 << 20);
            make(&p, &o, &plan, NULL);
            assert_int_equal(plan_encode(&plan, &data[k], &bytes[k], &err), OATO_OK);
            plan_free(&plan);
            profile_free(&p);
        }
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(data[0], data[1], bytes[0]);
        free(data[0]);
        free(data[1]);
    }
}

/* Everything that holds for any plan. */
static void check_plan(const struct plan *plan, const struct profile *p)
{
    struct oato_error err;
    struct graph g;
    if (plan_apply(plan, model, &g, &err))
        fail_msg("%s", err.text);
    const bool whole = plan->n_parts == g.n_ops;
    assert_true(plan->n_parts >= g.n_ops);
    assert_int_equal(plan->n_kv, g.n_layers);
    graph_free(&g);
    uint64_t sums[PHASE_COUNT] = {0}, busy[2][PHASE_COUNT] = {{0}};
    bool used[2] = {true, false};
    assert_in_range(plan->n_devices, 1, 2);
    for (int32_t i = 0; i < plan->n_costs; i++) {
        sums[plan->costs[i].phase] += plan->costs[i].ns + plan->costs[i].transfer_ns;
        assert_in_range(plan->costs[i].device, 0, 1);
        busy[plan->costs[i].device][plan->costs[i].phase] += plan->costs[i].ns;
        used[plan->costs[i].device] = true;
    }
    for (int32_t d = 0; d < plan->n_devices; d++) {
        assert_true(plan->devices[d].planned_bytes <= plan->devices[d].budget_bytes);
        if (d < 2 && used[d]) {
            sums[PHASE_DECODE] += (uint64_t)p->devices[d].step_overhead_ns;
            sums[PHASE_PREFILL] += 2 * (uint64_t)p->devices[d].step_overhead_ns;
        }
    }
    const struct price price = solver_price(model, p, plan);
    for (int phase = 0; phase < PHASE_COUNT; phase++) {
        const uint64_t summed =
                           (uint64_t)(phase == PHASE_DECODE ? price.decode_ns : price.prefill_ns),
                       predicted = phase == PHASE_DECODE ? plan->decode_ns : plan->prefill_ns;
        if (whole)
            assert_int_equal(sums[phase], summed);
        for (int d = 0; d < 2; d++) /* parts run at the same time, but no device is in two places */
            assert_true(busy[d][phase] <= summed);
        assert_true((double)predicted <= 1.03 * (double)summed); /* a copy may wait for a record */
    }
    assert_int_equal(plan->prefill_ns + 50 * plan->decode_ns, plan->request_ns);
    assert_int_equal(price.objective_ns, plan->objective_ns);
    assert_true(plan->bound_ns <= plan->objective_ns);
    assert_string_equal(plan->numerics[PHASE_DECODE], "f32");
    assert_string_equal(plan->numerics[PHASE_PREFILL], "f32+u8b32");
}

static void budgets_hold_and_more_memory_never_hurts(void **state)
{
    (void)state;
    struct profile p;
    uint64_t last = UINT64_MAX;
    usual_profile(&p);
    for (uint64_t bytes = 0; bytes <= 8 << 20; bytes += 1 << 20) {
        struct plan plan;
        struct planner_options o = options_with("auto", bytes);
        o.gap = 0;
        make(&p, &o, &plan, NULL);
        check_plan(&plan, &p);
        assert_true(plan.objective_ns <= last);
        last = plan.objective_ns;
        if (!bytes)
            assert_string_equal(plan.solver, "cpu");
        for (int32_t i = 0; i < plan.n_baselines; i++)
            assert_true(plan.objective_ns <= plan.baselines[i].objective_ns);
        for (int32_t i = 0; i < plan.n_parts; i++)
            if (!strcmp(plan.parts[i].op, "token_embd") || !strcmp(plan.parts[i].op, "embed"))
                assert_int_equal(plan.parts[i].device, 0);
        plan_free(&plan);
    }
    profile_free(&p);
}

static void each_objective_is_least_at_what_it_is_for(void **state)
{
    (void)state;
    struct profile p;
    int64_t reached[OBJECTIVE_COUNT][OBJECTIVE_COUNT]; /* by which plan, of what */
    usual_profile(&p);
    for (int i = 0; i < OBJECTIVE_COUNT; i++) {
        struct plan plan;
        struct planner_options o = options_with("auto", 3 << 20);
        o.gap = 0;
        o.request.objective = i;
        make(&p, &o, &plan, NULL);
        const struct price sum = solver_price(model, &p, &plan);
        reached[i][OBJECTIVE_LATENCY] = sum.prefill_ns + plan.request.generate * sum.decode_ns;
        reached[i][OBJECTIVE_TTFT] = sum.prefill_ns;
        reached[i][OBJECTIVE_TIME_PER_TOKEN] = sum.decode_ns;
        assert_int_equal(plan.objective_ns, reached[i][i]);
        assert_true(plan.bound_ns <= plan.objective_ns);
        for (int32_t b = 0; b < plan.n_baselines; b++)
            assert_true(plan.objective_ns <= plan.baselines[b].objective_ns);
        plan_free(&plan);
    }
    for (int i = 0; i < OBJECTIVE_COUNT; i++)
        for (int j = 0; j < OBJECTIVE_COUNT; j++)
            assert_true(reached[i][i] <= reached[j][i]);
    profile_free(&p);
}

static void every_solver_plans_what_it_is_asked_for(void **state)
{
    (void)state;
    struct profile p;
    struct plan plan;
    usual_profile(&p);
    static const char *const solvers[] = {"cpu", "layers", "affinity", "ilp"};
    uint64_t last = UINT64_MAX;
    for (size_t i = 0; i < ARRAY_LEN(solvers); i++) {
        struct planner_options o = options_with(solvers[i], 4 << 20);
        make(&p, &o, &plan, NULL);
        check_plan(&plan, &p);
        assert_string_equal(plan.solver, solvers[i]);
        if (i == 0 || i == 3)
            assert_true(plan.request_ns <= last);
        last = plan.request_ns;
        plan_free(&plan);
    }
    struct planner_options o = options_with("affinity", 4 << 20);
    o.single_shot = true;
    make(&p, &o, &plan, NULL);
    check_plan(&plan, &p);
    plan_free(&plan);
    profile_free(&p);
}

static int fusions_taken(double factor)
{
    struct profile p;
    struct plan plan;
    struct fixture_options f = usual;
    f.fused_factor = factor;
    assert_true(fixture_profile(model, &f, &p));
    struct planner_options o = options_with("auto", 4 << 20);
    make(&p, &o, &plan, NULL);
    check_plan(&plan, &p);
    int n = plan.n_fusions;
    plan_free(&plan);
    profile_free(&p);
    return n;
}

static void fusions_are_taken_where_they_are_known_and_pay(void **state)
{
    (void)state;
    assert_int_equal(fusions_taken(0), 0); /* no device lists them */
    assert_int_equal(fusions_taken(9), 0); /* far slower than their members */
    assert_true(fusions_taken(0.9) >= 6 * 3);
}

static void what_does_not_fit_is_refused_with_what_is_missing(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    struct plan plan;
    usual_profile(&p);
    struct planner_options o = options_with("auto", 1 << 20);
    o.budgets[o.n_budgets++] = (struct device_budget){"cpu:0", 2 << 20};
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "MiB are missing"));
    assert_non_null(strstr(err.text, "raise --budget"));
    o.strict_budgets = true;
    o.budgets[1].bytes = 1 << 10;
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "less than activations"));
    o.strict_budgets = false;
    /* together they hold it, though neither does alone */
    o.budgets[0].bytes = 4 << 20;
    o.budgets[1].bytes = 4 << 20;
    make(&p, &o, &plan, NULL);
    check_plan(&plan, &p);
    assert_true(plan.devices[1].planned_bytes > 1 << 20);
    assert_string_equal(plan.solver, "ilp");
    plan_free(&plan);
    profile_free(&p);
}

/* A library that is twice as fast, in 3 MiB of scratch memory. */
static void a_library_is_weighed_against_what_its_memory_could_hold(void **state)
{
    (void)state;
    struct profile p;
    uint64_t before_ns = UINT64_MAX;
    int used = 0, left_out = 0;
    usual_profile(&p);
    for (int32_t i = 0; i < p.n_rows; i++) {
        struct profile_row *r = &p.rows[i];
        if (!r->device || r->size.rows <= NUMERICS_DECODE_ROWS ||
            op_weight_use(&r->op) != WEIGHT_MATRIX)
            continue;
        r->own_ns = r->median_ns;
        r->median_ns /= 2;
        r->numerics = "f16.library";
        r->workspace_bytes = 3 << 20;
    }
    for (uint64_t mib = 1; mib <= 16; mib++) {
        struct plan plan;
        const struct planner_options o = options_with("auto", mib << 20);
        make(&p, &o, &plan, NULL);
        const bool library = plan_classes_have(plan.numerics[PHASE_PREFILL], "f16.library");
        const uint64_t taken = plan.devices[1].planned_bytes;
        assert_true(!library || taken > 3 << 20);
        assert_true(plan.objective_ns <= before_ns);
        assert_int_equal(solver_price(model, &p, &plan).objective_ns, plan.objective_ns);
        used += library;
        left_out += !library && taken;
        before_ns = plan.objective_ns;
        plan_free(&plan);
    }
    print_message("used in %d plans, left out in %d\n", used, left_out);
    assert_true(used > 0 && left_out > 0);
    profile_free(&p);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    struct plan plan;
    usual_profile(&p);
    struct planner_options base = options_with("auto", 4 << 20), o = base;
    o.request.context = 149;
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "150"));
    o = base;
    o.devices = "sim:0";
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EUSAGE);
    o.devices = "cpu:0,gpu:0";
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "cpu:0, sim:0"));
    o.devices = "cpu:0,cpu:0";
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EUSAGE);
    o = base;
    snprintf(o.budgets[0].id, sizeof o.budgets[0].id, "sim:7");
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EUSAGE);
    o = base;
    o.solver = "ilb";
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "did you mean 'ilp'"));
    o = base;
    o.single_shot = true;
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EUSAGE);
    p.n_links = 1;
    assert_int_equal(planner_make(model, &p, &base, &plan, NULL, &err), OATO_EFILE);
    base.devices = "cpu:0";
    base.n_budgets = 0;
    make(&p, &base, &plan, NULL);
    assert_int_equal(plan.n_devices, 1);
    plan_free(&plan);
    profile_free(&p);
}

static void estimates_are_marked(void **state)
{
    (void)state;
    struct profile p;
    struct plan plan;
    struct fixture_options f = usual;
    f.skip_attention = true;
    assert_true(fixture_profile(model, &f, &p));
    struct planner_options o = options_with("auto", 8 << 20);
    o.whole_only = true;
    make(&p, &o, &plan, NULL);
    int marked = 0;
    for (int32_t i = 0; i < plan.n_costs; i++) {
        if (plan.costs[i].estimate) {
            marked++;
            assert_non_null(strstr(plan.costs[i].op, "att"));
        }
    }
    assert_int_equal(marked, 2 * 6); /* wherever it is */
    plan_free(&plan);
    profile_free(&p);
}

static void reports_are_json_and_agree_with_the_plan(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    struct plan plan;
    struct problem *problem;
    struct text t;
    usual_profile(&p);
    struct planner_options o = options_with("auto", 4 << 20);
    make(&p, &o, &plan, &problem);
    text_init(&t);
    report_plan(&plan, problem, true, &t);
    json_t *j = parsed(&t);
    json_t *predicted = json_object_get(j, "predicted");
    assert_int_equal(json_integer_value(json_object_get(predicted, "request_ns")), plan.request_ns);
    assert_int_equal(json_array_size(json_object_get(j, "parts")), plan.n_parts);
    for (size_t d = 0; d < 2; d++) {
        json_t *v = json_array_get(json_object_get(j, "devices"), d);
        assert_int_equal(json_integer_value(json_object_get(v, "weight_bytes")) +
                             json_integer_value(json_object_get(v, "kv_bytes")) +
                             json_integer_value(json_object_get(v, "work_bytes")),
                         plan.devices[d].planned_bytes);
    }
    json_decref(j);
    report_plan(&plan, NULL, true, &t);
    json_decref(parsed(&t));
    report_plan(&plan, problem, false, &t);
    assert_non_null(strstr(t.data, "sim:0"));
    text_free(&t);
    problem_free(problem);

    /* explain: everything, a layer, an operator, a fused member, a tensor */
    static const char *const names[] = {NULL, "blk.3", "blk.3.ffn_down", "blk.2.attn_k",
                                        "blk.2.attn_k.weight"};
    static const int64_t counts[] = {0, 0, 1, 1, 1};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (report_explain(&plan, model, &p, names[i], true, &t, &err))
            fail_msg("%s", err.text);
        j = parsed(&t);
        if (counts[i])
            assert_int_equal(json_array_size(j), counts[i]);
        else
            assert_true(json_array_size(j) > 5);
        json_decref(j);
        assert_int_equal(report_explain(&plan, model, &p, names[i], false, &t, &err), OATO_OK);
        assert_true(t.len > 100);
        text_free(&t);
    }
    assert_int_equal(report_explain(&plan, NULL, NULL, "blk.1", true, &t, &err), OATO_OK);
    json_decref(parsed(&t));
    assert_int_equal(report_explain(&plan, NULL, NULL, NULL, false, &t, &err), OATO_OK);
    text_free(&t);
    assert_int_equal(report_explain(&plan, model, &p, "blk.3.ffn_dwn", false, &t, &err),
                     OATO_EUSAGE);
    assert_non_null(strstr(err.text, "did you mean 'blk.3.ffn_down'"));
    text_free(&t);
    plan_free(&plan);
    profile_free(&p);
}

static oato_status checked(const struct plan *plan, const struct fixture_options *f,
                           uint64_t sim_bytes, double max_slower)
{
    struct oato_error err;
    struct profile p;
    struct text t;
    assert_true(fixture_profile(model, f, &p));
    if (p.n_devices > 1 && sim_bytes)
        p.devices[1].free_bytes = sim_bytes;
    text_init(&t);
    oato_status status = report_check(plan, model, &p, max_slower, 0, true, &t, &err);
    json_t *j = parsed(&t);
    assert_int_equal(json_is_true(json_object_get(j, "good")), status == OATO_OK);
    json_decref(j);
    profile_free(&p);
    return status;
}

static void check_notices_what_changed(void **state)
{
    (void)state;
    struct profile p;
    struct plan plan, cpu;
    struct oato_error err;
    struct text t;
    struct fixture_options f = usual;
    usual_profile(&p);
    struct planner_options o = options_with("auto", 4 << 20);
    make(&p, &o, &plan, NULL);
    assert_int_equal(checked(&plan, &f, 0, 0.05), OATO_OK);
    assert_int_equal(checked(&plan, &f, 2 << 20, 0.05), OATO_NEGATIVE); /* memory went */
    f.scale = 1.2;
    assert_int_equal(checked(&plan, &f, 0, 0.05), OATO_NEGATIVE); /* all got slower */
    assert_int_equal(checked(&plan, &f, 0, 0.30), OATO_OK);
    f = usual;
    f.sim_speed = 0;
    assert_int_equal(checked(&plan, &f, 0, 0.05), OATO_NEGATIVE); /* the device went */
    f = usual;
    f.sim_speed = 0.2;
    assert_int_equal(checked(&plan, &f, 0, 0.05), OATO_NEGATIVE); /* now the CPU is better */
    /* as promised, but far from the best */
    o = options_with("cpu", 8 << 20);
    make(&p, &o, &cpu, NULL);
    assert_int_equal(checked(&cpu, &usual, 0, 0.05), OATO_NEGATIVE);
    assert_int_equal(checked(&cpu, &usual, 0, 1000), OATO_OK);
    /* without a profile only the model counts */
    text_init(&t);
    assert_int_equal(report_check(&plan, model, NULL, 0.05, 0, false, &t, &err), OATO_OK);
    plan.structure_hash++;
    assert_int_equal(report_check(&plan, model, NULL, 0.05, 0, false, &t, &err), OATO_EFILE);
    text_free(&t);
    plan_free(&plan);
    plan_free(&cpu);
    profile_free(&p);
}

/* What is divided along experts can be applied, and reports find the division again. */
static void experts_are_divided_and_found_again(void **state)
{
    (void)state;
    struct model *dense = model;
    struct oato_error err;
    struct profile p;
    struct random_model m = random_model_default();
    int32_t divided = 0, streamed = 0;
    m.architecture = "qwen3moe";
    m.layers = 3;
    m.width = 256;
    m.ffn = 96;
    m.experts = 128; /* more than rows of one */
    m.experts_used = 4;
    m.context = 2048;
    m.dtype = DT_Q4_0;
    if (random_model_open(&m, &model, &err))
        fail_msg("%s", err.text);
    usual_profile(&p);
    for (uint64_t bytes = 2 << 20; bytes <= 14 << 20; bytes += 4 << 20) {
        struct plan plan;
        struct graph g;
        struct text t;
        struct planner_options o = options_with("auto", bytes);
        text_init(&t);
        make(&p, &o, &plan, NULL);
        if (plan_apply(&plan, model, &g, &err))
            fail_msg("%s", err.text);
        graph_free(&g);
        for (int32_t i = 0; i < plan.n_parts; i++) {
            const struct plan_part *part = &plan.parts[i];
            if (part->axis != AXIS_EXPERTS)
                continue;
            assert_true(part->end <= m.experts);
            divided += part->end - part->begin < m.experts;
            streamed += part->home != part->device;
        }
        assert_int_equal(checked(&plan, &usual, 0, 0.05), OATO_OK);
        if (report_explain(&plan, model, &p, "blk.1.ffn_up_exps.weight", false, &t, &err))
            fail_msg("%s", err.text);
        assert_non_null(strstr(t.data, "they share experts"));
        text_free(&t);
        plan_free(&plan);
    }
    assert_true(divided > 0);
    print_message("%d parts of experts, %d streamed\n", divided, streamed);
    profile_free(&p);
    model_close(model);
    model = dense;
}

static void diff_lists_what_moved(void **state)
{
    (void)state;
    struct profile p;
    struct plan a, b;
    struct oato_error err;
    struct text t;
    bool same;
    usual_profile(&p);
    struct planner_options o = options_with("cpu", 4 << 20);
    make(&p, &o, &a, NULL);
    o.solver = "ilp";
    make(&p, &o, &b, NULL);
    text_init(&t);
    assert_int_equal(report_diff(&a, &a, true, &same, &t, &err), OATO_OK);
    assert_true(same);
    json_decref(parsed(&t));
    assert_int_equal(report_diff(&a, &b, true, &same, &t, &err), OATO_OK);
    assert_false(same);
    json_t *j = parsed(&t);
    size_t moved = 0;
    for (int32_t i = 0; i < b.n_parts; i++)
        moved += b.parts[i].device != 0;
    assert_int_equal(json_array_size(json_object_get(j, "moves")), moved);
    assert_true(moved > 0);
    json_decref(j);
    assert_int_equal(report_diff(&a, &b, false, &same, &t, &err), OATO_OK);
    assert_non_null(strstr(t.data, "cpu:0 -> sim:0"));
    assert_non_null(strstr(t.data, "different solver"));
    text_free(&t);
    plan_free(&a);
    plan_free(&b);
    profile_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_inputs_give_the_same_bytes),
        cmocka_unit_test(budgets_hold_and_more_memory_never_hurts),
        cmocka_unit_test(each_objective_is_least_at_what_it_is_for),
        cmocka_unit_test(every_solver_plans_what_it_is_asked_for),
        cmocka_unit_test(fusions_are_taken_where_they_are_known_and_pay),
        cmocka_unit_test(what_does_not_fit_is_refused_with_what_is_missing),
        cmocka_unit_test(a_library_is_weighed_against_what_its_memory_could_hold),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(estimates_are_marked),
        cmocka_unit_test(reports_are_json_and_agree_with_the_plan),
        cmocka_unit_test(check_notices_what_changed),
        cmocka_unit_test(experts_are_divided_and_found_again),
        cmocka_unit_test(diff_lists_what_moved),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
