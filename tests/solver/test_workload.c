/*
 * test_workload.c - what must stay true of requests of several points: prices and predictions are
 * the means of those of each point alone, the default's points and their weights are as said, and
 * regrets are what plans for one point show.
 */
#include "solver/planning_internal.h"
#include "solver/report/report_internal.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"
#include "tests/solver/solver_price.h"

// clang-format off
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

static struct model *model;
static struct profile profile;

static int setup(void **state)
{
    (void)state;
    struct oato_error err;
    struct random_model m = random_model_default();
    m.layers = 6;
    m.width = 256;
    m.ffn = 512;
    m.context = 4096;
    m.dtype = DT_Q4_0;
    const struct fixture_options usual = {
        .sim_speed = 8, .link_latency_ns = 2000, .scale = 1, .fused_factor = 0.9};
    if (random_model_open(&m, &model, &err)) {
        print_error("%s\n", err.text);
        return 1;
    }
    return !fixture_profile(model, &usual, &profile);
}

static int teardown(void **state)
{
    (void)state;
    profile_free(&profile);
    model_close(model);
    return 0;
}

static struct planner_options usual_options(void)
{
    struct planner_options o;
    planner_options_init(&o);
    o.request.ubatch = 64;
    o.time_limit_s = 0;
    o.gap = 0;
    o.budgets[0] = (struct device_budget){"sim:0", 9 << 20};
    o.n_budgets = 1;
    return o;
}

static void make(const struct planner_options *o, struct plan *plan, struct problem **problem)
{
    struct oato_error err;
    if (planner_make(model, &profile, o, plan, problem, &err))
        fail_msg("%s", err.text);
}

static const struct workload mixed = {.name = "mixed"};

static void set(struct planner_options *o, const struct workload *w)
{
    struct oato_error err;
    o->workload = w;
    o->request.n_points = 0;
    if (workload_set(model, &profile, o, &err))
        fail_msg("%s", err.text);
}

static struct planner_options alone(const struct planner_options *o, int32_t i)
{
    struct planner_options one = *o;
    const struct plan_point p = request_point(&o->request, i);
    request_set_points(&one.request, &p, &(double){1}, 1);
    return one;
}

static void assert_near(double got, double want, double within)
{
    if (!(fabs(got - want) <= within))
        fail_msg("%.3f, not %.3f", got, want);
}

static void assert_point(const struct plan_request *q, int32_t i, int32_t prompt, int32_t generate,
                         int32_t depth)
{
    const struct plan_point p = request_point(q, i);
    if (p.prompt != prompt || p.generate != generate || p.depth != depth)
        fail_msg("point %d of context %d: %d + %d behind %d", i, q->context, p.prompt, p.generate,
                 p.depth);
}

static void the_default_is_short_long_and_full(void **state)
{
    (void)state;
    struct oato_error err;
    struct planner_options o = usual_options();
    set(&o, &mixed);
    assert_int_equal(o.request.n_points, 3);
    assert_point(&o.request, 0, 128, 128, 0);
    assert_point(&o.request, 1, 2048, 128, 0);
    assert_point(&o.request, 2, 128, 128, 3840);
    o.request.context = 4000; /* of four sequences */
    o.request.batch = 4;
    set(&o, &mixed);
    assert_point(&o.request, 1, 500, 128, 0);
    assert_point(&o.request, 2, 128, 128, 744);
    static const char *const names[] = {"mixed", "chat", "code", "rag"};
    o.request.batch = 1;
    for (size_t k = 0; k < ARRAY_LEN(names); k++) /* the smallest, too, and all are requests */
        for (int32_t context = 1; context < 300; context += context < 20 ? 1 : 31) {
            const struct workload w = {.name = workload_find(names[k])};
            o.request.context = context;
            set(&o, &w);
            if (request_check(&o.request, &err))
                fail_msg("%s, context %d: %s", names[k], context, err.text);
            for (int32_t i = 1; i < o.request.n_points; i++)
                assert_memory_not_equal(&o.request.points[i], &o.request.points[i - 1],
                                        3 * sizeof(int32_t));
        }
    assert_null(workload_find("chats"));
}

static double best_baseline(const struct plan *plan)
{
    double best = INFINITY;
    for (int32_t i = 0; i < plan->n_baselines; i++) {
        const char *name = plan->baselines[i].name;
        if (!strcmp(name, "cpu") || !strcmp(name, "layers") || !strcmp(name, "fit"))
            best = fmin(best, (double)plan->baselines[i].objective_ns);
    }
    return best;
}

static void points_weigh_the_inverse_of_their_baseline(void **state)
{
    (void)state;
    for (enum plan_objective k = 0; k < OBJECTIVE_COUNT; k++) {
        struct planner_options o = usual_options();
        double inverse[3], all = 0;
        o.request.objective = k;
        set(&o, &mixed);
        for (int32_t i = 0; i < 3; i++) {
            const struct planner_options one = alone(&o, i);
            struct plan plan;
            make(&one, &plan, NULL);
            all += inverse[i] = 1 / best_baseline(&plan);
            plan_free(&plan);
        }
        uint32_t sum = 0;
        for (int32_t i = 0; i < 3; i++) {
            assert_near(o.request.points[i].weight, inverse[i] / all * POINTS_WEIGHT, 3);
            sum += o.request.points[i].weight;
        }
        assert_int_equal(sum, POINTS_WEIGHT);
    }
    struct planner_options o = usual_options();
    const struct workload said = {
        .points = {{.prompt = 64, .generate = 32}, {.prompt = 8, .generate = 8, .depth = 99}},
        .weights = {3, 1},
        .n = 2};
    set(&o, &said);
    assert_int_equal(o.request.points[0].weight, 750000000);
    assert_int_equal(o.request.points[1].weight, 250000000);
    assert_int_equal(o.request.prompt, 50);
    assert_int_equal(o.request.generate, 26);
}

/* A price is the mean of the prices of the points, and so is a prediction. */
static void everything_is_the_mean_of_the_points(void **state)
{
    (void)state;
    for (enum plan_objective k = 0; k < OBJECTIVE_COUNT; k++) {
        struct planner_options o = usual_options();
        struct plan plan;
        double objective = 0, prefill = 0, latency = 0;
        o.request.objective = k;
        o.whole_only = true;
        set(&o, &mixed);
        make(&o, &plan, NULL);
        const struct price price = solver_price(model, &profile, &plan);
        for (int32_t i = 0; i < 3; i++) {
            const struct planner_options one = alone(&o, i);
            const double weight = request_weight(&o.request, i);
            struct oato_error err;
            struct plan own = plan;
            own.request = one.request;
            const struct price of_one = solver_price(model, &profile, &own);
            assert_int_equal(simulation_predict(&own, model, &profile, &err), OATO_OK);
            assert_true(own.prefill_ns == plan.request.points[i].prefill_ns);
            assert_true(own.decode_ns == plan.request.points[i].decode_ns);
            objective += weight * (double)of_one.objective_ns;
            prefill += weight * (double)own.prefill_ns;
            latency += weight * (double)own.request_ns;
        }
        /* but for rounding of each price; what streaming hides is no sum, so nothing streams */
        assert_near((double)price.objective_ns / objective, 1, 1e-5);
        assert_near((double)plan.prefill_ns, prefill, 3);
        if (k == OBJECTIVE_LATENCY)
            assert_near((double)plan.request_ns / latency, 1, 1e-6);
        plan_free(&plan);
    }
}

/* One point is what it always was, and equal points are one. */
static void equal_points_are_one(void **state)
{
    (void)state;
    struct oato_error err;
    uint8_t *data[2];
    size_t bytes[2];
    for (int k = 0; k < 2; k++) {
        struct planner_options o = usual_options();
        struct plan plan;
        const struct plan_point twice[2] = {{.prompt = 512, .generate = 128},
                                            {.prompt = 512, .generate = 128}};
        if (k)
            request_set_points(&o.request, twice, (double[]){1, 3}, 2);
        make(&o, &plan, NULL);
        plan.request.n_points = 0;
        assert_int_equal(plan_encode(&plan, &data[k], &bytes[k], &err), OATO_OK);
        plan_free(&plan);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(data[0], data[1], bytes[0]);
    free(data[0]);
    free(data[1]);
}

/* The KV before a prompt is read by all of its steps, and nothing else changes. */
static void depth_moves_positions(void **state)
{
    (void)state;
    struct planner_options o = usual_options();
    const struct plan_point deep = {.prompt = 100, .generate = 10, .depth = 1000};
    request_set_points(&o.request, &deep, &(double){1}, 1);
    assert_int_equal(request_prefill_steps(&o.request, 0), 2);
    const struct request_step first = request_prefill_step(&o.request, 0, 0),
                              last = request_prefill_step(&o.request, 0, 1);
    assert_true(first.kv_positions == 64 * 1000 + 64 * 65 / 2);
    assert_true(last.kv_positions == 36 * 1064 + 36 * 37 / 2);
    assert_true(request_decode_step(&o.request).kv_positions == 1000 + 100 + 5 + 1);
}

static void regrets_are_what_other_plans_show(void **state)
{
    (void)state;
    struct oato_error err;
    struct planner_options o = usual_options();
    struct plan plan;
    struct problem *problem;
    struct regrets r;
    const struct workload far = {
        .points = {{.prompt = 4, .generate = 500}, {.prompt = 3900, .generate = 1}},
        .weights = {1, 1e6},
        .n = 2};
    set(&o, &far);
    make(&o, &plan, &problem);
    assert_int_equal(regrets_find(&plan, model, problem, &o.request, 0, &r, &err), OATO_OK);
    double most = 0;
    for (int32_t i = 0; i < 2; i++) {
        const struct planner_options one = alone(&o, i);
        struct plan best, own = plan;
        own.request = one.request;
        make(&one, &best, NULL);
        assert_int_equal(simulation_predict(&own, model, &profile, &err), OATO_OK);
        assert_near((double)r.alone_ns[i] / (double)best.request_ns, 1, 2e-3);
        assert_true(r.request.points[i].prefill_ns == own.prefill_ns);
        assert_true(r.request.points[i].decode_ns == own.decode_ns);
        most = fmax(most, (double)own.request_ns / (double)r.alone_ns[i]);
        plan_free(&best);
    }
    assert_true(most > 1.02); /* else nothing was tested */
    problem_free(problem);
    plan_free(&plan);
}

static void points_that_are_no_requests_are_refused(void **state)
{
    (void)state;
    struct oato_error err;
    struct planner_options o = usual_options();
    const struct plan_point deep = {.prompt = 100, .generate = 10, .depth = 4000};
    request_set_points(&o.request, &deep, &(double){1}, 1);
    assert_int_equal(request_check(&o.request, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "1 sequences of 100 + 10 tokens behind 4000 need --context "
                                     "4110 or more, not 4096"));
    o.request.points[0].depth = -1;
    assert_int_equal(request_check(&o.request, &err), OATO_EUSAGE);
}

static void longer_requests_cost_more(void **state)
{
    (void)state;
    struct problem *problem;
    struct plan plan;
    uint64_t last = 0;
    for (int i = 0; i < 4; i++) { /* longer prompt, more tokens, more sequences */
        struct planner_options o = usual_options();
        o.request.prompt = i > 0 ? 300 : 100;
        o.request.generate = i > 1 ? 100 : 50;
        o.request.batch = i > 2 ? 2 : 1;
        make(&o, &plan, &problem);
        assert_true(plan.request_ns > last);
        last = plan.request_ns;
        problem_free(problem);
        plan_free(&plan);
    }
    struct planner_options o = usual_options();
    o.request.prompt = 0;
    make(&o, &plan, &problem);
    assert_int_equal(plan.prefill_ns, 0);
    problem_free(problem);
    plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_is_short_long_and_full),
        cmocka_unit_test(points_weigh_the_inverse_of_their_baseline),
        cmocka_unit_test(everything_is_the_mean_of_the_points),
        cmocka_unit_test(equal_points_are_one),
        cmocka_unit_test(depth_moves_positions),
        cmocka_unit_test(regrets_are_what_other_plans_show),
        cmocka_unit_test(longer_requests_cost_more),
        cmocka_unit_test(points_that_are_no_requests_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
