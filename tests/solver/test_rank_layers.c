/*
 * test_rank_layers.c - ranks with layers of their own: they take as long as on one host and the
 * messages between them, each has as many as its speed and memory allow, and the better split is
 * taken; and clusters that are simulated.
 */
#include "solver/report/report_internal.h"
#include "tests/solver/plan_fixture.h"
#include "tests/solver/ranks_fixture.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void stages_made(const struct rank_options *ranks, const struct planner_options *o,
                        struct plan *plan)
{
    struct rank_options layers = *ranks;
    struct rank_prices prices;
    struct oato_error err;
    layers.split = SPLIT_LAYERS;
    if (ranks_plan(model, o, &layers, &prices, plan, &err))
        fail_msg("%s", err.text);
    assert_true(prices.split == SPLIT_LAYERS && !prices.priced && plan_has_stages(plan));
}

/* How many layers' KV the rank's devices have. */
static int32_t layers_of(const struct plan *plan, int32_t rank)
{
    int32_t n = 0;
    for (int32_t k = 0; k < plan->n_kv; k++)
        n += plan->devices[plan->kv[k].device].rank == rank;
    return n;
}

/* Messages apart, a token passes all layers, and the second chunk of a prompt follows the first. */
static void layers_take_as_long_as_they_take_on_one_host(void **state)
{
    (void)state;
    struct rank_options ranks = ranks_on(2, 2, NULL);
    struct planner_options o = request();
    struct oato_error err;
    struct problem *p;
    struct plan plan, ethernet;
    o.solver = "cpu";
    assert_int_equal(planner_make(model, &fast, &o, &plan, &p, &err), OATO_OK);
    const double decode = (double)p->planned.decode_ns, prefill = (double)p->planned.prefill_ns;
    const double step = fast.devices[0].step_overhead_ns; /* which each rank's step takes */
    problem_free(p);
    plan_free(&plan);
    ranks.latency_ns = 0;
    ranks.bytes_per_s = 1e15;
    stages_made(&ranks, &o, &plan);
    assert_int_equal(layers_of(&plan, 0), 2);
    assert_int_equal(layers_of(&plan, 1), 2);
    assert_true(fabs((double)plan.decode_ns / (decode + step) - 1) < 1e-3);
    assert_in_range(plan.prefill_ns, 0.75 * prefill, 0.85 * prefill); /* the last has the logits */
    ranks = ranks_on(2, 2, NULL);
    stages_made(&ranks, &o, &ethernet);
    const double message = 60e3 + 1024 * 4 / 117e6 * 1e9,
                 picks = 60e3 + CANDIDATES_BYTES / 117e6 * 1e9;
    const double more = (double)ethernet.decode_ns - (double)plan.decode_ns;
    assert_true(fabs(more / (message + picks) - 1) < 1e-3);
    plan_free(&ethernet);
    plan_free(&plan);
}

/* Each operator once, on one rank, in order of rank; and priced again it costs the same. */
static void ranks_have_layers_of_their_own(void **state)
{
    (void)state;
    struct rank_options cases[] = {ranks_on(2, 2, NULL), ranks_on(4, 4, NULL),
                                   ranks_on(3, 3, &slow), ranks_on(2, 2, &accelerated)};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct planner_options o = request();
        struct plan plan, now;
        struct oato_error err;
        struct text out;
        stages_made(&cases[i], &o, &plan);
        budgets_hold(&plan);
        int32_t rank = 0, layers = 0;
        for (int32_t k = 0; k < plan.n_parts; k++) {
            const int32_t own = plan.devices[plan.parts[k].device].rank;
            assert_true(own >= rank);
            rank = own;
        }
        assert_int_equal(rank, cases[i].ranks - 1);
        for (int32_t r = 0; r < cases[i].ranks; r++) {
            assert_true(layers_of(&plan, r) > 0);
            layers += layers_of(&plan, r);
        }
        assert_int_equal(layers, model->graph.n_layers);
        if (ranks_price(&plan, model, &cases[i], &now, &err))
            fail_msg("%s", err.text);
        assert_true(now.decode_ns == plan.decode_ns && now.prefill_ns == plan.prefill_ns);
        assert_int_equal(now.n_costs, plan.n_costs);
        for (int32_t d = 0; d < plan.n_devices; d++)
            assert_int_equal(now.devices[d].planned_bytes, plan.devices[d].planned_bytes);
        plan_free(&now);
        assert_int_equal(checked(&plan, &cases[i], i & 1, &out), OATO_OK);
        text_free(&out);
        plan_free(&plan);
    }
}

/* Speed gives the host with an accelerator more layers, and its memory limits them. */
static void memory_and_speed_decide_how_many_layers_a_rank_has(void **state)
{
    (void)state;
    const struct rank_options ranks = ranks_on(2, 2, &accelerated);
    struct planner_options o = request();
    struct rank_options two = ranks_on(2, 2, NULL);
    struct plan plan;
    stages_made(&ranks, &o, &plan);
    assert_true(layers_of(&plan, 1) == 3 && accelerated_share(&plan) > 0.5);
    plan_free(&plan);
    struct profile small = fast;
    struct profile_device device = fast.devices[0];
    device.free_bytes = device.memory_bytes = 24 << 20; /* of one layer, 15 MiB, and activations */
    small.devices = &device;
    two.profiles[0] = &small;
    two.profiles[two.n_profiles++] = &fast;
    stages_made(&two, &o, &plan);
    assert_int_equal(layers_of(&plan, 0), 1);
    budgets_hold(&plan);
    plan_free(&plan);
}

/* What a rank has no room for stays in a file, and is read at every step; so more ranks are faster
 * than one by what they hold. */
static void a_rank_streams_what_it_has_no_room_for(void **state)
{
    (void)state;
    const struct profile_storage rows[] = {
        {.depth = 1, .bytes = 4096, .bytes_per_s = 5e7, .latency_ns = 8e4},
        {.depth = 16, .bytes = 4 << 20, .bytes_per_s = 1e9, .latency_ns = 4e6}};
    struct rank_options ranks = ranks_on(2, 2, NULL);
    struct planner_options o = request();
    struct profile stored;
    struct plan plan, now;
    struct text out;
    const struct fixture_options fixture = {.scale = 1, .fused_factor = 0.9};
    assert_true(fixture_profile(model, &fixture, &stored) &&
                profile_put_storage(&stored, rows, ARRAY_LEN(rows)));
    ranks.profiles[0] = &stored;
    o.budgets[o.n_budgets++] = (struct device_budget){"cpu:0", 28 << 20};
    stages_made(&ranks, &o, &plan);
    budgets_hold(&plan);
    int32_t streamed = 0;
    for (int32_t k = 0; k < plan.n_parts; k++)
        streamed += plan.parts[k].home == HOME_FILE;
    assert_in_range(streamed, 1, plan.n_parts / 2);
    struct oato_error err;
    if (ranks_price(&plan, model, &ranks, &now, &err))
        fail_msg("%s", err.text);
    assert_true(now.decode_ns == plan.decode_ns && now.prefill_ns == plan.prefill_ns);
    assert_int_equal(now.devices[0].budget_bytes, 28 << 20);
    plan_free(&now);
    assert_int_equal(checked(&plan, &ranks, false, &out), OATO_OK);
    text_free(&out);
    plan_free(&plan);
    profile_free(&stored);
}

/* Weights that lie in the memory of another host than rank 0's. */
static void a_rank_streams_from_its_own_host(void **state)
{
    (void)state;
    enum { CPU = 2, SIM = 3 }; /* devices of rank 1 */
    struct rank_options ranks = ranks_on(2, 2, NULL);
    const struct planner_options o = request();
    struct plan plan, now;
    struct oato_error err;
    struct simulation *s = NULL;
    struct text trace;
    ranks.profiles[0] = &accelerated;
    stages_made(&ranks, &o, &plan);
    int32_t k = 0;
    while (plan.parts[k].device != SIM || !strstr(plan.parts[k].op, "attn_output"))
        k++;
    memmove(&plan.parts[k + 1], &plan.parts[k], (size_t)(plan.n_parts++ - k) * sizeof *plan.parts);
    plan.parts[k].phases = 1u << PHASE_PREFILL;
    plan.parts[k].home = CPU;
    plan.parts[k + 1].phases = 1u << PHASE_DECODE;
    plan.parts[k + 1].device = plan.parts[k + 1].home = CPU;
    if (ranks_price(&plan, model, &ranks, &now, &err) ||
        simulation_run(&now, model, &ranks, &s, &err))
        fail_msg("%s", err.text);
    assert_true(now.decode_ns > plan.decode_ns);
    text_init(&trace);
    report_trace(s, &trace);
    assert_non_null(strstr(trace.data, "stream blk."));
    text_free(&trace);
    simulation_free(s);
    plan_free(&now);
    plan_free(&plan);
}

/* A slow network has one message a step instead of two sums a layer. */
static void the_split_that_is_better_is_taken(void **state)
{
    (void)state;
    struct rank_options ranks = ranks_on(2, 2, NULL);
    const struct planner_options o = request();
    struct rank_prices slow_net, fast_net;
    struct plan plan;
    struct oato_error err;
    ranks.split = SPLIT_AUTO;
    ranks.bytes_per_s = 10e6;
    assert_int_equal(ranks_plan(model, &o, &ranks, &slow_net, &plan, &err), OATO_OK);
    assert_true(plan_has_stages(&plan) && slow_net.split == SPLIT_LAYERS && slow_net.priced);
    assert_true(slow_net.prefill_ns + 20 * slow_net.decode_ns > plan.request_ns);
    plan_free(&plan);
    ranks.bytes_per_s = 1e12;
    ranks.latency_ns = 0;
    assert_int_equal(ranks_plan(model, &o, &ranks, &fast_net, &plan, &err), OATO_OK);
    assert_true(!plan_has_stages(&plan) && fast_net.split == SPLIT_TENSOR && fast_net.priced);
    assert_true(fast_net.prefill_ns + 20 * fast_net.decode_ns > plan.request_ns);
    plan_free(&plan);
    ranks = ranks_on(8, 8, NULL); /* of 4 layers */
    ranks.split = SPLIT_LAYERS;
    assert_int_equal(ranks_plan(model, &o, &ranks, NULL, &plan, &err), OATO_EFIT);
    ranks.ranks = 4;
    ranks.hosts = 2;
    assert_int_equal(ranks_plan(model, &o, &ranks, NULL, &plan, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "each host has one rank"));
}

/* Two ranks compute at once where a prompt is several steps, in any number of tokens. */
static void a_prompt_passes_layers_in_short_steps(void **state)
{
    (void)state;
    struct rank_options ranks = ranks_on(2, 2, NULL);
    struct planner_options o = request();
    struct plan given, any;
    stages_made(&ranks, &o, &given);
    o.any_ubatch = true;
    stages_made(&ranks, &o, &any);
    assert_int_equal(given.request.ubatch, o.request.ubatch);
    assert_in_range(any.request.ubatch, 16, o.request.ubatch / 2);
    assert_true(any.prefill_ns < given.prefill_ns && any.objective_ns < given.objective_ns);
    plan_free(&any);
    ranks.latency_ns = 1e9; /* then each step costs more than it saves */
    stages_made(&ranks, &o, &any);
    assert_int_equal(any.request.ubatch, o.request.ubatch);
    plan_free(&any);
    plan_free(&given);
}

/* Up to 32 hosts with two ranks each, as JSON. */
static json_t *simulated(double bytes_per_s, double latency_ns)
{
    struct oato_error err;
    struct text out;
    const struct planner_options o = request();
    struct cluster_options own = {32, 2, ranks_on(0, 0, NULL)};
    own.network.bytes_per_s = bytes_per_s;
    own.network.latency_ns = latency_ns;
    text_init(&out);
    if (report_cluster(model, &fast, &o, &own, true, &out, &err))
        fail_msg("%s", err.text);
    json_t *all = json_loads(out.data, 0, NULL);
    assert_non_null(all);
    text_free(&out);
    return all;
}

static double ns_of(const json_t *size, const char *way, const char *phase)
{
    return json_number_value(json_object_get(json_object_get(size, way), phase));
}

static void a_simulated_cluster_takes_as_long_as_its_plan(void **state)
{
    (void)state;
    json_t *all = simulated(117e6, 60e3);
    const json_t *sizes = json_object_get(all, "sizes");
    assert_int_equal(json_array_size(sizes), 7); /* 1, 2, 4, 8, 16, 32, 64 ranks */
    for (size_t i = 1; i < 4; i++) {
        const int32_t ranks = 1 << i;
        const struct rank_options o = ranks_on(ranks, ranks / 2, NULL);
        const json_t *size = json_array_get(sizes, i);
        struct plan plan;
        made(&o, &plan);
        assert_int_equal(json_integer_value(json_object_get(size, "devices")), ranks);
        assert_true(fabs(ns_of(size, "tree", "decode_ns") / (double)plan.decode_ns - 1) < 0.01);
        assert_true(fabs(ns_of(size, "tree", "prefill_ns") / (double)plan.prefill_ns - 1) < 0.01);
        plan_free(&plan);
    }
    json_decref(all);
}

static void sums_of_large_clusters_cost_more_than_they_save(void **state)
{
    (void)state;
    json_t *slow_net = simulated(117e6, 60e3), *fast_net = simulated(1e12, 0);
    const json_t *sizes = json_object_get(slow_net, "sizes");
    const json_t *last = json_array_get(sizes, 6), *two = json_array_get(sizes, 2);
    double before = 0;
    for (size_t i = 0; i < 7; i++) {
        const json_t *size = json_array_get(sizes, i);
        const double share = json_number_value(json_object_get(size, "communication"));
        assert_true(i ? share >= before : share == 0);
        before = share;
        /* a token passes all layers of a pipeline, however many devices have them */
        assert_true(ns_of(size, "pipeline", "decode_ns") >=
                    ns_of(json_array_get(sizes, 0), "pipeline", "decode_ns"));
    }
    /* two hosts exchange; of 32 the first hears and answers one after the other */
    assert_true(ns_of(two, "tree", "decode_ns") < ns_of(two, "reduce", "decode_ns"));
    assert_true(ns_of(last, "tree", "decode_ns") > ns_of(last, "allreduce", "decode_ns"));
    /* no head, neuron or row is shared by more ranks than there are cuts */
    const json_t *free_last = json_array_get(json_object_get(fast_net, "sizes"), 6);
    const json_t *free_one = json_array_get(json_object_get(fast_net, "sizes"), 0);
    assert_true(ns_of(free_last, "tree", "decode_ns") < ns_of(free_one, "tree", "decode_ns") / 2);
    assert_true(ns_of(free_last, "tree", "decode_ns") > ns_of(free_one, "tree", "decode_ns") / 64);
    assert_true(json_integer_value(json_object_get(free_last, "bytes_each")) <
                json_integer_value(json_object_get(free_one, "bytes_each")) / 2);
    json_decref(slow_net);
    json_decref(fast_net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_take_as_long_as_they_take_on_one_host),
        cmocka_unit_test(ranks_have_layers_of_their_own),
        cmocka_unit_test(memory_and_speed_decide_how_many_layers_a_rank_has),
        cmocka_unit_test(a_rank_streams_what_it_has_no_room_for),
        cmocka_unit_test(a_rank_streams_from_its_own_host),
        cmocka_unit_test(the_split_that_is_better_is_taken),
        cmocka_unit_test(a_prompt_passes_layers_in_short_steps),
        cmocka_unit_test(a_simulated_cluster_takes_as_long_as_its_plan),
        cmocka_unit_test(sums_of_large_clusters_cost_more_than_they_save),
    };
    return cmocka_run_group_tests(tests, ranks_setup, ranks_teardown);
}
