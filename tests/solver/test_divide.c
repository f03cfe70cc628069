/*
 * test_divide.c - what must stay true of plans that divide operators between devices and stream
 * weights, on models of real shapes (headers only) and machines of docs/hardware: no baseline is
 * faster, memory holds, a plan read back costs what it said, more skewed neurons or more memory
 * never make it slower, and keys and values lie where all layers that share them are.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"
#include "tests/solver/power_law.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
// clang-format on

static const char *const shapes[] = {"8b", "qwq-32b", "qwen3-30b-a3b"};
enum { MODELS = ARRAY_LEN(shapes) };
static struct model *models[MODELS];

static int setup(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++) {
        struct oato_error err;
        struct random_model m = random_model_default();
        m.dtype = DT_Q4_0;
        m.header_only = true;
        m.tokenizer = false;
        const bool known = random_model_set_shape(&m, shapes[i]);
        if (!i) /* whose silent neurons can be skipped */
            m.keys = "feed_forward_activation=relu";
        if (!known || random_model_open(&m, &models[i], &err)) {
            print_error("%s\n", err.text);
            return 1;
        }
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++)
        model_close(models[i]);
    return 0;
}

static struct planner_options options_with(uint64_t gib, int32_t prompt)
{
    struct planner_options o;
    planner_options_init(&o);
    o.request.prompt = prompt;
    o.request.generate = 32;
    o.budgets[o.n_budgets++] = (struct device_budget){"cuda:0", gib << 30};
    o.gap = 1e-2; /* so that no clock ends a search */
    return o;
}

static void make(const struct model *m, const struct profile *p, const struct planner_options *o,
                 struct plan *plan)
{
    struct oato_error err;
    if (planner_make(m, p, o, plan, NULL, &err))
        fail_msg("%s", err.text);
}

static bool divides(const struct plan *plan)
{
    for (int32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].axis == AXIS_K || plan->parts[i].axis == AXIS_EXPERTS)
            return true;
    return false;
}

static bool streams(const struct plan *plan)
{
    for (int32_t i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].home != plan->parts[i].device)
            return true;
    return false;
}

/* Everything that holds for any plan. */
static void check_plan(const struct plan *plan, const struct model *m, const struct profile *p)
{
    struct oato_error err;
    struct problem *problem = NULL;
    int32_t *place = NULL;
    for (int32_t i = 0; i < plan->n_baselines; i++)
        assert_true(plan->objective_ns <= plan->baselines[i].objective_ns);
    assert_true(plan->bound_ns <= plan->objective_ns);
    for (int32_t d = 0; d < plan->n_devices; d++)
        assert_true(plan->devices[d].planned_bytes <= plan->devices[d].budget_bytes);
    if (problem_of_plan(m, p, plan, &problem, &place, &err))
        fail_msg("%s", err.text);
    assert_true(instance_fits(&problem->instance, place, NULL));
    assert_int_equal(instance_price(&problem->instance, place).objective_ns, plan->objective_ns);
    problem_free(problem);
}

static void plans_cost_what_they_said_and_no_baseline_is_faster(void **state)
{
    (void)state;
    static const char *const machines[] = {"rtx4090-xeon4314", "rtx3060-laptop",
                                           "2xrtx3090-ryzen5950x"};
    int divided = 0, streamed = 0;
    for (size_t k = 0; k < ARRAY_LEN(machines); k++) {
        struct oato_error err;
        struct profile p;
        assert_int_equal(hardware_load(machines[k], &p, NULL, NULL, &err), OATO_OK);
        for (size_t i = 0; i < MODELS; i++) {
            for (int32_t prompt = 16; prompt <= 1024; prompt *= 8) {
                struct planner_options o = options_with(3, prompt);
                struct plan plan;
                make(models[i], &p, &o, &plan);
                check_plan(&plan, models[i], &p);
                divided += divides(&plan);
                streamed += streams(&plan);
                plan_free(&plan);
            }
        }
        profile_free(&p);
    }
    print_message("%d plans divide operators, %d stream weights\n", divided, streamed);
    assert_true(divided >= 9 && streamed >= 3);
}

/* The machine, with a way between its GPUs that needs no host. */
static void with_direct_links(struct profile *p)
{
    struct profile_link *links = arena_alloc(&p->arena, (size_t)p->n_links + 2, sizeof *links);
    assert_non_null(links);
    memcpy(links, p->links, (size_t)p->n_links * sizeof *links);
    const int32_t gpu[] = {profile_device_index(p, "cuda:0"), profile_device_index(p, "cuda:1")};
    for (int i = 0; i < 2; i++)
        links[p->n_links++] = (struct profile_link){.from = gpu[i],
                                                    .to = gpu[1 - i],
                                                    .latency_ns = 3000,
                                                    .bytes_per_s = 50e9,
                                                    .sync_ns = 5000};
    p->links = links;
}

/* Of 4.6 GiB each GPU has room for half and more: what one makes the other reads. */
static void what_goes_directly_costs_less(void **state)
{
    (void)state;
    struct oato_error err;
    struct planner_options o = options_with(3, 128);
    struct profile p;
    struct plan by_host, directly;
    struct problem *problem = NULL;
    int32_t *place = NULL;
    o.budgets[o.n_budgets++] = (struct device_budget){"cuda:1", (uint64_t)3 << 30};
    assert_int_equal(hardware_load("2xrtx3090-ryzen5950x", &p, NULL, NULL, &err), OATO_OK);
    make(models[0], &p, &o, &by_host);
    with_direct_links(&p);
    if (problem_of_plan(models[0], &p, &by_host, &problem, &place, &err))
        fail_msg("%s", err.text);
    const int64_t same_ns = instance_price(&problem->instance, place).objective_ns;
    assert_true(same_ns < (int64_t)by_host.objective_ns);
    problem_free(problem);
    make(models[0], &p, &o, &directly);
    check_plan(&directly, models[0], &p);
    assert_true((double)directly.objective_ns <= (double)same_ns * (1 + o.gap));
    plan_free(&by_host);
    plan_free(&directly);
    profile_free(&p);
}

static void whole_plans_neither_divide_nor_stream_nor_gain_more(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    assert_int_equal(hardware_load("rtx4090-xeon4314", &p, NULL, NULL, &err), OATO_OK);
    for (size_t i = 0; i < MODELS; i++) {
        struct planner_options o = options_with(3, 512);
        struct plan best, whole;
        make(models[i], &p, &o, &best);
        o.whole_only = true;
        make(models[i], &p, &o, &whole);
        assert_false(divides(&whole) || streams(&whole));
        assert_true((double)best.objective_ns < 0.95 * (double)whole.objective_ns);
        plan_free(&best);
        plan_free(&whole);
    }
    profile_free(&p);
}

static void more_memory_never_hurts(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    assert_int_equal(hardware_load("rtx4090-xeon4314", &p, NULL, NULL, &err), OATO_OK);
    uint64_t before = UINT64_MAX;
    for (uint64_t gib = 1; gib <= 16; gib *= 2) {
        struct planner_options o = options_with(gib, 256);
        struct plan plan;
        make(models[0], &p, &o, &plan);
        assert_true((double)plan.objective_ns <= (double)before * 1.01);
        before = plan.objective_ns;
        plan_free(&plan);
    }
    profile_free(&p);
}

static uint64_t plan_with(size_t model, const struct profile *p, double hot)
{
    struct oato_error err;
    struct power_law law = power_law_default();
    struct neurons n;
    struct planner_options o = options_with(4, 16);
    struct plan plan;
    law.hot = law.hot_experts = hot;
    if (power_law_neurons(models[model]->gguf, &law, &n, &err))
        fail_msg("%s", err.text);
    o.neurons = &n;
    make(models[model], p, &o, &plan);
    assert_int_equal(plan.neurons_hash, neurons_hash(&n));
    check_plan(&plan, models[model], p);
    /* all layers of neurons that fire in a tenth of the tokens */
    assert_int_equal(plan.n_sparse, model ? 0 : models[0]->graph.n_layers);
    for (int32_t i = 0; i < plan.n_baselines; i++)
        if (!strcmp(plan.baselines[i].name, "powerinfer"))
            print_message("%s, %.0f %% hot: %.3f x PowerInfer's rule\n", shapes[model], hot * 100,
                          (double)plan.baselines[i].objective_ns / (double)plan.objective_ns);
    struct problem *problem = NULL;
    int32_t *place = NULL;
    plan.neurons = NULL; /* without its sidecar the plan can't be read */
    assert_int_equal(problem_of_plan(models[model], p, &plan, &problem, &place, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "--neurons"));
    uint64_t ns = plan.objective_ns;
    plan_free(&plan);
    neurons_free(&n);
    return ns;
}

static void skewed_neurons_and_experts_are_faster(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    assert_int_equal(hardware_load("rtx4090-xeon4314", &p, NULL, NULL, &err), OATO_OK);
    for (size_t i = 0; i < MODELS; i += 2) { /* one of neurons, one of experts */
        struct planner_options o = options_with(4, 16);
        struct plan dense;
        make(models[i], &p, &o, &dense);
        uint64_t flat = plan_with(i, &p, 0.43), skewed = plan_with(i, &p, 0.26);
        assert_true(skewed < flat && flat < dense.objective_ns);
        assert_int_equal(dense.n_sparse, 0); /* nobody knows how often neurons fire */
        plan_free(&dense);
    }
    profile_free(&p);
}

/* Devices whose attention reads a layer's keys and values, as bits; prompts may attend elsewhere to
 * those that only one operator reads (attend.c). */
static uint32_t readers_of(const struct plan *plan, const struct graph *g, int32_t layer)
{
    uint32_t devices = 0;
    int readers = 0;
    for (int32_t i = 0; i < g->n_ops; i++)
        readers += g->ops[i].op.kind == OP_ATTENTION && g->ops[i].kv_layer == layer;
    for (int32_t i = 0; i < g->n_ops; i++)
        for (int32_t j = 0; j < plan->n_parts; j++)
            if (g->ops[i].op.kind == OP_ATTENTION && g->ops[i].kv_layer == layer &&
                !strcmp(plan->parts[j].op, g->ops[i].name) &&
                (readers > 1 || plan->parts[j].phases >> PHASE_DECODE & 1))
                devices |= 1u << plan->parts[j].device;
    return devices;
}

static void who_shares_keys_and_values_is_where_they_are(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    struct model *m;
    struct random_model shape = random_model_default();
    uint32_t used = 0;
    shape.architecture = "gemma4";
    shape.layers = 12;
    shape.width = 1536;
    shape.ffn = 6144;
    shape.heads = 8;
    shape.kv_heads = 1;
    shape.head_dim = 512;
    shape.dtype = DT_Q4_0;
    shape.header_only = true;
    shape.tokenizer = false;
    shape.keys = "attention.sliding_window=512 attention.shared_kv_layers=6 "
                 "attention.sliding_window_pattern=true,true,false,true,true,false,true,true,false,"
                 "true,true,false attention.key_length_swa=256 attention.value_length_swa=256 "
                 "rope.dimension_count_swa=256 embedding_length_per_layer_input=256";
    if (random_model_open(&shape, &m, &err) ||
        hardware_load("rtx3060-laptop", &p, NULL, NULL, &err))
        fail_msg("%s", err.text);
    for (uint64_t mib = 100; mib <= 350; mib += 50) {
        struct planner_options o = options_with(0, 512);
        struct plan plan;
        struct graph g;
        o.budgets[0].bytes = mib << 20;
        make(m, &p, &o, &plan);
        if (plan_apply(&plan, m, &g, &err))
            fail_msg("%s", err.text);
        assert_int_equal(plan.n_kv, 6);
        for (int32_t i = 0; i < plan.n_kv; i++) {
            used |= 1u << plan.kv[i].device;
            assert_int_equal(readers_of(&plan, &g, plan.kv[i].layer), 1u << plan.kv[i].device);
        }
        graph_free(&g);
        plan_free(&plan);
    }
    assert_int_equal(used, 3); /* the host and the accelerator */
    profile_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_cost_what_they_said_and_no_baseline_is_faster),
        cmocka_unit_test(what_goes_directly_costs_less),
        cmocka_unit_test(whole_plans_neither_divide_nor_stream_nor_gain_more),
        cmocka_unit_test(more_memory_never_hurts),
        cmocka_unit_test(skewed_neurons_and_experts_are_faster),
        cmocka_unit_test(who_shares_keys_and_values_is_where_they_are),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
