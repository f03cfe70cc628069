/*
 * test_predictors.c - neurons that are guessed before gate are priced by what guessing costs and by
 * what it leaves: --sparse auto takes predictors where that is less than what gate would read, and
 * no predictor that is bad or unknown; the virtual clock agrees with the prices.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"
#include "tests/solver/power_law.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 2, WIDTH = 512, NEURONS = 4096 };

static struct model *open_model(const char *architecture)
{
    struct oato_error err;
    struct model *m = NULL;
    struct random_model shape = random_model_default();
    const bool opt = !strcmp(architecture, "opt");
    shape.architecture = architecture;
    shape.layers = LAYERS;
    shape.width = WIDTH;
    shape.ffn = NEURONS;
    shape.dtype = DT_Q8_0;
    shape.header_only = true;
    shape.tokenizer = false;
    shape.kv_heads = opt ? shape.heads : shape.kv_heads;
    shape.keys = opt ? "attention.layer_norm_epsilon=0.00001" : "feed_forward_activation=relu";
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

/* What the predictors of all layers are like. */
struct guess {
    int32_t rank; /* 0: there are none */
    float recall, predicted;
};

struct planned {
    struct model *model;
    struct profile profile;
    struct neurons neurons;
    struct gguf_tensor down, up;
    struct neurons_predictor predictor;
};

static void planned_open_on(struct planned *x, const char *architecture, double fused_factor)
{
    const struct fixture_options machine = {.scale = 1, .fused_factor = fused_factor};
    x->model = open_model(architecture);
    assert_true(fixture_profile(x->model, &machine, &x->profile));
}

static void planned_open(struct planned *x, const char *architecture)
{
    planned_open_on(x, architecture, 0.9);
}

static void planned_close(struct planned *x)
{
    profile_free(&x->profile);
    model_close(x->model);
}

/* One neuron of ten fires; nothing of predictors but their shape and verdict is looked at. */
static void plan_with(struct planned *x, struct guess g, const char *mode, struct plan *plan,
                      struct problem **problem)
{
    const struct power_law law = power_law_default();
    struct planner_options o;
    struct oato_error err;
    if (power_law_neurons(x->model->gguf, &law, &x->neurons, &err))
        fail_msg("%s", err.text);
    x->down = (struct gguf_tensor){
        .name = "down", .dtype = DT_Q8_0, .n_dims = 2, .ne = {WIDTH, g.rank, 1, 1}};
    x->up = (struct gguf_tensor){
        .name = "up", .dtype = DT_Q8_0, .n_dims = 2, .ne = {g.rank, NEURONS, 1, 1}};
    x->predictor = (struct neurons_predictor){.down = &x->down,
                                              .up = &x->up,
                                              .recall = g.recall,
                                              .predicted = g.predicted,
                                              .active = 0.1f};
    for (int32_t i = 0; i < LAYERS && g.rank; i++)
        x->neurons.layers[i].predictor = &x->predictor;
    planner_options_init(&o);
    o.request.prompt = 4;
    o.request.generate = 64;
    o.request.context = 256;
    o.request.ubatch = 32;
    o.neurons = &x->neurons;
    if (sparse_parse(mode ? mode : "auto", &o.sparse, &err) ||
        planner_make(x->model, &x->profile, &o, plan, problem, &err)) {
        fail_msg("%s: %s", mode ? mode : "auto", err.text);
        abort(); /* analyzers do not know that it is not reached */
    }
}

/* Whether the layers of a plan predict; all alike. */
static bool predicts(struct planned *x, struct guess g, const char *mode, uint64_t *decode_ns)
{
    struct plan plan;
    plan_with(x, g, mode, &plan, NULL);
    assert_int_equal(plan.n_sparse, LAYERS);
    assert_int_equal(plan.sparse[0].predicts, plan.sparse[1].predicts);
    const bool predicted = plan.sparse[0].predicts;
    *decode_ns = plan.decode_ns;
    plan_free(&plan);
    neurons_free(&x->neurons);
    return predicted;
}

static void predictors_are_taken_where_they_pay(void **state)
{
    (void)state;
    struct planned x;
    uint64_t exact, predict, automatic, worse;
    planned_open(&x, "llama");
    const struct guess good = {64, 0.96f, 0.12f};
    assert_false(predicts(&x, good, "exact", &exact));
    assert_true(predicts(&x, good, "predict", &predict));
    assert_true(predicts(&x, good, NULL, &automatic));
    assert_true(predict < exact && automatic == predict);
    /* Its matrices are larger than gate: they are read for nothing. */
    const struct guess large = {768, 0.96f, 0.12f};
    assert_true(predicts(&x, large, "predict", &worse));
    assert_false(predicts(&x, large, NULL, &automatic));
    assert_true(worse > exact && automatic == exact);
    /* Nearly all neurons are listed. */
    const struct guess vague = {64, 0.96f, 0.9f};
    assert_true(predicts(&x, vague, "predict", &worse));
    assert_false(predicts(&x, vague, NULL, &automatic));
    assert_true(worse > exact && automatic == exact);
    planned_close(&x);
}

static void predictors_that_find_too_little_are_not_chosen(void **state)
{
    (void)state;
    const float recalls[] = {0, 0.94f};
    struct planned x;
    uint64_t ns;
    planned_open(&x, "llama");
    for (size_t i = 0; i < ARRAY_LEN(recalls); i++)
        assert_false(predicts(&x, (struct guess){64, recalls[i], 0.12f}, NULL, &ns));
    assert_false(predicts(&x, (struct guess){0}, NULL, &ns));
    planned_close(&x);
}

/* Times of all operators, without what a step costs, as the plan's rows have them. */
static double decode_sum(const struct planned *x, const struct plan *plan)
{
    double sum = 0;
    for (int32_t i = 0; i < plan->n_costs; i++)
        if (plan->costs[i].phase == PHASE_DECODE)
            sum += (double)plan->costs[i].ns;
    return sum + x->profile.devices[0].step_overhead_ns;
}

static void check_clock(const char *architecture, const char *mode)
{
    const struct guess g = {64, 0.96f, 0.12f};
    struct planned x;
    struct plan plan;
    planned_open(&x, architecture);
    plan_with(&x, g, mode, &plan, NULL);
    const double records = 10 * x.profile.devices[0].record_overhead_ns;
    const double apart = fabs(decode_sum(&x, &plan) - (double)plan.decode_ns);
    if (apart > 0.005 * (double)plan.decode_ns + records)
        fail_msg("%s %s: rows %.0f ns, on the clock %.0f", architecture, mode,
                 decode_sum(&x, &plan), (double)plan.decode_ns);
    plan_free(&plan);
    neurons_free(&x.neurons);
    planned_close(&x);
}

static void the_virtual_clock_agrees(void **state)
{
    (void)state;
    check_clock("llama", "exact");
    check_clock("llama", "predict");
    check_clock("opt", "exact");
    check_clock("opt", "predict");
}

/* Rows of lists in the profile count, and then nothing of them is an estimate. */
static void measured_lists_count(void **state)
{
    (void)state;
    const struct guess g = {64, 0.96f, 0.12f};
    struct planned x;
    struct plan plan;
    struct problem *problem;
    uint64_t before, after;
    planned_open(&x, "llama");
    predicts(&x, g, "predict", &before);
    plan_with(&x, g, "predict", &plan, &problem);
    assert_false(sparse_measured(problem, &plan));
    problem_free(problem);
    plan_free(&plan);
    neurons_free(&x.neurons);
    for (int i = 0; i < 3; i++) {
        const bool gate = i < 2;
        struct profile_row row = {
            .op = {.kind = gate ? OP_GATE_UP : OP_MUL_MAT,
                   .dtype = DT_Q8_0,
                   .k = gate ? WIDTH : NEURONS,
                   .n = gate ? NEURONS : WIDTH,
                   .sparse = i == 1 ? SPARSE_PREDICT : SPARSE_ABOVE},
            .size = {.rows = 1, .seqs = 1, .active = NEURONS},
            .supported = true,
            .numerics = "u8b32",
            .median_ns = 1e6,
            .repeats = 3,
        };
        row.p10_ns = row.p90_ns = row.median_ns;
        assert_true(profile_put(&x.profile, &row));
    }
    plan_with(&x, g, "predict", &plan, &problem);
    assert_true(sparse_measured(problem, &plan));
    after = plan.decode_ns;
    assert_true(after > before + 100000); /* of 1 ms at all neurons what a tenth of them takes */
    problem_free(problem);
    plan_free(&plan);
    neurons_free(&x.neurons);
    planned_close(&x);
}

/* Only gate and up in one can skip: where a profile has them slower than apart, noise or not. */
static void what_skips_is_fused(void **state)
{
    (void)state;
    static const char *const modes[] = {"off", "exact", "predict"};
    struct planned x;
    planned_open_on(&x, "llama", 3);
    for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
        struct plan plan;
        int32_t fused = 0;
        plan_with(&x, (struct guess){64, 0.96f, 0.12f}, modes[i], &plan, NULL);
        for (int32_t j = 0; j < plan.n_fusions; j++)
            fused += !strcmp(plan.fusions[j].name, "gate_up");
        assert_int_equal(fused, i ? LAYERS : 0);
        plan_free(&plan);
        neurons_free(&x.neurons);
    }
    planned_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictors_are_taken_where_they_pay),
        cmocka_unit_test(predictors_that_find_too_little_are_not_chosen),
        cmocka_unit_test(the_virtual_clock_agrees),
        cmocka_unit_test(measured_lists_count),
        cmocka_unit_test(what_skips_is_fused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
