/*
 * test_storage.c - plans for memory that the model does not fit into: what is streamed from the
 * file fits with the rest into the budget, no more is streamed than must be, and more memory never
 * makes a plan slower. Where the host computes a chunk for longer than it reads, an accelerator too
 * small for the weights has them streamed to it. Where storage was not measured, or nothing may be
 * streamed, nothing fits.
 */
#include "solver/planning_internal.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define RATE 1e6 /* far slower than arithmetic */

static struct model *model;

static int setup(void **state)
{
    (void)state;
    struct oato_error err;
    struct random_model m = random_model_default();
    m.dtype = DT_Q4_0;
    m.layers = 8;
    m.width = 256;
    m.ffn = 512;
    return random_model_open(&m, &model, &err) ? 1 : 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(model);
    return 0;
}

static void profile_make(struct profile *p, double sim_speed, double scale, double rate)
{
    const struct fixture_options o = {
        .sim_speed = sim_speed, .link_latency_ns = 2000, .scale = scale, .fused_factor = 0.9};
    const struct profile_storage rows[] = {
        {.depth = 1, .bytes = 4096, .direct = true, .bytes_per_s = rate / 9, .latency_ns = 9},
        {.depth = 8, .bytes = 1 << 20, .direct = true, .bytes_per_s = rate, .latency_ns = 9}};
    assert_true(fixture_profile(model, &o, p));
    if (rate > 0)
        assert_true(profile_put_storage(p, rows, ARRAY_LEN(rows)));
}

static struct planner_options options_with(uint64_t cpu_bytes)
{
    struct planner_options o;
    planner_options_init(&o);
    o.request = (struct plan_request){
        .prompt = 64, .generate = 16, .context = 128, .batch = 1, .ubatch = 32, .kv = DT_F16};
    o.budgets[0] = (struct device_budget){"cpu:0", cpu_bytes};
    o.n_budgets = 1;
    o.time_limit_s = 0;
    return o;
}

/* Of the operators' weights and KV what is in memory, and what a step moves to and from files;
 * least: the smallest that is not in memory. */
static void sums(const struct plan *plan, const struct problem *p, double *resident, double *stored,
                 double *least)
{
    *resident = *stored = 0;
    *least = INFINITY;
    for (int32_t k = 0; k < plan->n_parts; k++)
        for (int32_t i = 0; i < p->graph.n_ops; i++) {
            if (strcmp(p->graph.ops[i].name, plan->parts[k].op) != 0)
                continue;
            const struct op_price *price = &p->price[i * p->n_devices + plan->parts[k].device];
            const struct request_step step = request_decode_step(&p->request);
            const struct oato_op *op = &p->graph.ops[i].op;
            const double bytes = (double)(price->weight_bytes + price->kv_bytes);
            const bool kv = op->kind == OP_KV_STORE, file = plan->parts[k].home == HOME_FILE;
            if (file)
                *stored += kv ? storage_kv_bytes(&p->graph, op, DT_F16, &step) : bytes;
            else
                *resident += bytes;
            if (file)
                *least = fmin(*least, bytes);
        }
}

/* Layers whose KV a plan keeps in the file. */
static int filed_layers(const struct plan *plan)
{
    int n = 0;
    for (int32_t k = 0; k < plan->n_parts; k++)
        n += strstr(plan->parts[k].op, "kv_store") && plan->parts[k].home == HOME_FILE;
    return n;
}

/* What a plan of everything in memory takes. */
static uint64_t all_bytes(const struct profile *p)
{
    struct oato_error err;
    struct plan plan;
    const struct planner_options o = options_with(64 << 20);
    if (planner_make(model, p, &o, &plan, NULL, &err))
        fail_msg("%s", err.text);
    const uint64_t bytes = plan.devices[0].planned_bytes;
    for (int32_t k = 0; k < plan.n_parts; k++)
        assert_int_equal(plan.parts[k].home, plan.parts[k].device);
    plan_free(&plan);
    return bytes;
}

static void what_does_not_fit_is_streamed(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    profile_make(&p, 0, 1, RATE);
    const uint64_t all = all_bytes(&p);
    uint64_t objective_ns = UINT64_MAX;
    int plans = 0, better = 0;
    for (int percent = 30; percent < 100; percent += 10) {
        struct plan plan;
        struct problem *problem;
        const struct planner_options o = options_with(all * (uint64_t)percent / 100);
        if (planner_make(model, &p, &o, &plan, &problem, &err)) {
            assert_int_equal(err.status, OATO_EFIT);
            assert_int_equal(plans, 0); /* more memory still fits */
            continue;
        }
        double resident, stored, least;
        sums(&plan, problem, &resident, &stored, &least);
        assert_true(stored > 0);
        assert_in_range(plan.devices[0].planned_bytes, 1, o.budgets[0].bytes);
        /* nothing that is streamed would fit, but for what the ring takes less, and activations */
        const double left = (double)(o.budgets[0].bytes - plan.devices[0].planned_bytes);
        const struct device_memory *takes = &problem->memory[0];
        const double set_aside = (double)problem->reserve[0];
        assert_true(
            left <
            least + fmax(set_aside - (double)(takes->room + takes->work + takes->workspace), 0));
        /* what is in the file is searched: never worse than the rule, and mostly better */
        assert_string_equal(plan.baselines[0].name, "cpu");
        assert_true(plan.objective_ns <= plan.baselines[0].objective_ns);
        better += plan.objective_ns < plan.baselines[0].objective_ns;
        assert_true(plan.bound_ns <= plan.objective_ns);
        assert_true((double)plan.bound_ns > 0.8 * (double)plan.objective_ns);
        assert_true(plan.objective_ns <= objective_ns);
        objective_ns = plan.objective_ns;
        /* storage is the slower one: its time, and what the last operator computes */
        const double read_ns = stored / RATE * 1e9;
        assert_true((double)plan.decode_ns > 0.99 * read_ns);
        assert_true((double)plan.decode_ns < 1.1 * read_ns);
        if (!filed_layers(&plan))
            assert_true(plan.prefill_ns > 2 * 0.99 * read_ns); /* two chunks */
        struct graph g;
        if (plan_apply(&plan, model, &g, &err))
            fail_msg("%s", err.text);
        graph_free(&g);
        problem_free(problem);
        plan_free(&plan);
        plans++;
    }
    assert_true(plans > 4);
    assert_true(better > plans / 2);
    profile_free(&p);
}

/* As it is read back, from bytes and by its own prices. */
static void priced_again_alike(const struct plan *plan, const struct profile *p)
{
    struct oato_error err;
    struct plan again;
    uint8_t *data = NULL;
    size_t bytes;
    struct problem *problem = NULL;
    int32_t *place = NULL;
    if (plan_encode(plan, &data, &bytes, &err) ||
        plan_load_memory(data, bytes, "plan", &again, &err) ||
        problem_of_plan(model, p, &again, &problem, &place, &err) || !problem) {
        fail_msg("%s", err.text);
        return;
    }
    for (int32_t d = 0; d < plan->n_devices; d++)
        assert_int_equal(device_memory_sum(&problem->memory[d]), plan->devices[d].planned_bytes);
    assert_int_equal(instance_price(&problem->instance, place).objective_ns, plan->objective_ns);
    struct text t;
    text_init(&t);
    report_plan(&again, problem, false, &t);
    assert_non_null(strstr(t.data, "streamed from the file"));
    text_free(&t);
    if (report_check(&again, model, p, 0.01, 0, true, &t, &err))
        fail_msg("%s", err.text);
    text_free(&t);
    problem_free(problem);
    plan_free(&again);
    free(data);
}

static void a_plan_that_streams_is_priced_again_alike(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    struct plan plan;
    profile_make(&p, 0, 1, RATE);
    const struct planner_options o = options_with(all_bytes(&p) * 2 / 3);
    if (planner_make(model, &p, &o, &plan, NULL, &err))
        fail_msg("%s", err.text);
    priced_again_alike(&plan, &p);
    plan_free(&plan);
    profile_free(&p);
}

static void an_accelerator_is_filled_first(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    profile_make(&p, 8, 1, RATE);
    struct planner_options o = options_with(0);
    o.budgets[1] = (struct device_budget){"sim:0", o.budgets[0].bytes * 35 / 50};
    o.n_budgets = 2;
    o.budgets[0].bytes = 64 << 20;
    struct plan plan;
    struct problem *problem;
    if (planner_make(model, &p, &o, &plan, &problem, &err))
        fail_msg("%s", err.text);
    const uint64_t all = plan.devices[0].planned_bytes + plan.devices[1].planned_bytes;
    plan_free(&plan);
    problem_free(problem);
    o.budgets[0].bytes = o.budgets[1].bytes = all * 4 / 10;
    if (planner_make(model, &p, &o, &plan, &problem, &err))
        fail_msg("%s", err.text);
    double resident, stored, least;
    sums(&plan, problem, &resident, &stored, &least);
    assert_true(stored > 0);
    assert_true(stored < (double)all * 0.5);
    for (int d = 0; d < 2; d++)
        assert_in_range(plan.devices[d].planned_bytes, all * 3 / 10, all * 4 / 10);
    plan_free(&plan);
    problem_free(problem);
    profile_free(&p);
}

/* A step of one token reads the experts that it chooses, and a prompt nearly all. What is read
 * whole is in memory, but for the output and small routers, where one more matrix of experts then
 * fits. */
static void experts_are_read_when_they_are_chosen(void **state)
{
    (void)state;
    struct oato_error err;
    struct model *dense = model;
    struct random_model m = random_model_default();
    struct profile p;
    struct plan plan;
    struct problem *problem;
    m.architecture = "qwen3moe";
    m.dtype = DT_F16; /* 64 KiB an expert's matrix */
    m.layers = 8;
    m.width = m.ffn = 256;
    m.experts = 16;
    m.experts_used = 2;
    if (random_model_open(&m, &model, &err))
        fail_msg("%s", err.text);
    profile_make(&p, 0, 1, RATE * 100);
    const struct planner_options o = options_with(all_bytes(&p) / 2);
    if (planner_make(model, &p, &o, &plan, &problem, &err))
        fail_msg("%s", err.text);
    double resident, stored, least;
    sums(&plan, problem, &resident, &stored, &least);
    for (int32_t k = 0; k < plan.n_parts; k++)
        assert_true(plan.parts[k].home != HOME_FILE || strstr(plan.parts[k].op, "exps") ||
                    strstr(plan.parts[k].op, "gate_inp") || !strcmp(plan.parts[k].op, "output"));
    const double all_ns = stored / (RATE * 100) * 1e9;
    assert_true((double)plan.decode_ns > 0.99 * all_ns * 2 / 16);
    assert_true((double)plan.decode_ns < 1.5 * all_ns * 2 / 16);
    assert_true((double)plan.prefill_ns > 2 * 0.95 * all_ns); /* two chunks of 32 */
    priced_again_alike(&plan, &p);
    problem_free(problem);
    plan_free(&plan);
    profile_free(&p);
    model_close(model);
    model = dense;
}

/* Matrices that are read from the file for each device. */
static void count_filed(const struct plan *plan, int32_t filed[2])
{
    filed[0] = filed[1] = 0;
    for (int32_t k = 0; k < plan->n_parts; k++)
        if (plan->parts[k].home == HOME_FILE)
            filed[plan->parts[k].device]++;
}

static void an_accelerator_computes_what_is_streamed_where_the_host_is_slower(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    struct plan plan;
    int32_t filed[2];
    profile_make(&p, 0, 1, RATE);
    const uint64_t all = all_bytes(&p);
    profile_free(&p);
    struct planner_options o = options_with(all / 2);
    o.budgets[1] = (struct device_budget){"sim:0", all * 3 / 10};
    o.n_budgets = 2;
    for (int slow = 0; slow < 2; slow++) { /* storage, or the host */
        profile_make(&p, 8, slow ? 1000 : 1, RATE * 1000);
        if (planner_make(model, &p, &o, &plan, NULL, &err))
            fail_msg("%s", err.text);
        count_filed(&plan, filed);
        assert_true(filed[slow] > 0);
        assert_int_equal(filed[!slow], 0);
        for (int32_t d = 0; d < plan.n_devices; d++)
            assert_in_range(plan.devices[d].planned_bytes, 1, o.budgets[d].bytes);
        priced_again_alike(&plan, &p);
        plan_free(&plan);
        profile_free(&p);
    }
}

/* What is read from the file is searched, so that a bound is one of all choices of it. */
static void the_bound_is_of_all_choices_of_what_is_in_the_file(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    struct plan plan;
    struct text t;
    profile_make(&p, 0, 1, RATE);
    struct planner_options o = options_with(all_bytes(&p) * 2 / 3);
    profile_free(&p);
    for (int accelerators = 0; accelerators < 2; accelerators++) {
        profile_make(&p, accelerators ? 8 : 0, 1, RATE);
        o.budgets[1] = (struct device_budget){"sim:0", 1 << 20};
        o.n_budgets = 1 + accelerators;
        if (planner_make(model, &p, &o, &plan, NULL, &err))
            fail_msg("%s", err.text);
        assert_in_range(plan.bound_ns, 1, plan.objective_ns);
        text_init(&t);
        report_plan(&plan, NULL, true, &t);
        assert_non_null(strstr(t.data, "\"bound_of\":\"all\""));
        text_free(&t);
        plan_free(&plan);
        profile_free(&p);
    }
}

/* Where memory is so short that what fits is slow, reading from the file is faster though nothing
 * has to: less memory, where it has to, must not give a better plan. */
static void less_memory_never_gives_a_faster_plan(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    profile_make(&p, 0, 1, RATE * 1000);
    const uint64_t all = all_bytes(&p);
    profile_free(&p);
    profile_make(&p, 8, 1, RATE * 100);
    struct planner_options o = options_with(0);
    o.budgets[1] = (struct device_budget){"sim:0", all * 3 / 10};
    o.n_budgets = 2;
    uint64_t objective_ns = UINT64_MAX;
    int resident = 0, filed = 0;
    for (int percent = 50; percent < 110; percent += 25) {
        struct plan plan;
        o.budgets[0].bytes = all * (uint64_t)percent / 100;
        if (planner_make(model, &p, &o, &plan, NULL, &err))
            fail_msg("%s", err.text);
        assert_true((double)plan.objective_ns <= (double)objective_ns * 1.001); /* the gap */
        objective_ns = plan.objective_ns;
        *(plan_is_stored(&plan) ? &filed : &resident) += 1;
        plan_free(&plan);
    }
    assert_true(filed > 0);
    assert_true(resident > 0);
    profile_free(&p);
}

/* A step reads little of a context that is hardly used: all weights are in memory, and decode takes
 * as long as what it does read; a context that is used takes longer, the more memory the less. */
static void a_context_that_is_hardly_used_stays_in_the_file(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    struct plan plan, full;
    struct problem *problem;
    profile_make(&p, 0, 1, RATE);
    struct planner_options o = options_with(all_bytes(&p) + (20 << 20));
    o.request.context = 16384;
    if (planner_make(model, &p, &o, &plan, &problem, &err))
        fail_msg("%s", err.text);
    double resident, stored, least;
    sums(&plan, problem, &resident, &stored, &least);
    assert_true(filed_layers(&plan) > 4);
    assert_in_range(plan.devices[0].planned_bytes, 1, o.budgets[0].bytes);
    for (int32_t k = 0; k < plan.n_parts; k++)
        assert_true(plan.parts[k].home == plan.parts[k].device ||
                    strstr(plan.parts[k].op, "kv_store"));
    assert_true((double)plan.decode_ns > 0.99 * stored / RATE * 1e9);
    assert_true((double)plan.decode_ns < 1.1 * stored / RATE * 1e9);
    struct text t;
    text_init(&t);
    report_plan(&plan, problem, false, &t);
    assert_non_null(strstr(t.data, "layers of cpu:0 stays in a file"));
    if (report_check(&plan, model, &p, 0.01, 0, true, &t, &err))
        fail_msg("%s", err.text);
    text_free(&t);
    o.request.prompt = 8192;
    o.request.ubatch = 512;
    if (planner_make(model, &p, &o, &full, NULL, &err))
        fail_msg("%s", err.text);
    assert_true(full.decode_ns > 20 * plan.decode_ns);
    const int filed = filed_layers(&full);
    plan_free(&full);
    o.budgets[0].bytes += 8 << 20;
    if (planner_make(model, &p, &o, &full, NULL, &err))
        fail_msg("%s", err.text);
    assert_true(filed_layers(&full) < filed);
    plan_free(&full);
    problem_free(problem);
    plan_free(&plan);
    profile_free(&p);
}

static void nothing_is_streamed_unless_it_may_be(void **state)
{
    (void)state;
    struct profile p;
    struct oato_error err;
    struct plan plan;
    profile_make(&p, 0, 1, RATE);
    struct planner_options o = options_with(all_bytes(&p) * 2 / 3);
    o.resident_only = true;
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EFIT);
    profile_free(&p);
    profile_make(&p, 0, 1, 0);
    o.resident_only = false;
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "oato-profile"));
    profile_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_fit_is_streamed),
        cmocka_unit_test(a_plan_that_streams_is_priced_again_alike),
        cmocka_unit_test(an_accelerator_is_filled_first),
        cmocka_unit_test(experts_are_read_when_they_are_chosen),
        cmocka_unit_test(an_accelerator_computes_what_is_streamed_where_the_host_is_slower),
        cmocka_unit_test(a_context_that_is_hardly_used_stays_in_the_file),
        cmocka_unit_test(the_bound_is_of_all_choices_of_what_is_in_the_file),
        cmocka_unit_test(less_memory_never_gives_a_faster_plan),
        cmocka_unit_test(nothing_is_streamed_unless_it_may_be),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
