/*
 * test_ranks.c - plans for several ranks: ranks whose profiles differ take equally long; check
 * tells what no longer holds; hosts that cost more than they give are left out.
 */
#include "tests/solver/plan_fixture.h"
#include "tests/solver/ranks_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_divided(const struct plan *plan, const char *op)
{
    bool divided = false;
    for (int32_t i = 0; i < plan->n_parts && !divided; i++)
        divided = !strcmp(plan->parts[i].op, op);
    return divided;
}

/* What they divide is there as far as it fits; what they do not is on their hosts. */
static void ranks_compute_on_their_accelerators(void **state)
{
    (void)state;
    struct rank_options ranks = ranks_on(2, 2, NULL);
    struct planner_options o = request();
    struct plan plan, slower;
    struct oato_error err;
    made(&ranks, &slower);
    ranks.profiles[0] = &accelerated;
    made(&ranks, &plan);
    assert_int_equal(plan.n_devices, 4);
    for (int32_t d = 0; d < 4; d++) {
        assert_string_equal(plan.devices[d].id, d & 1 ? "sim:0" : "cpu:0");
        assert_int_equal(plan.devices[d].rank, d / 2);
    }
    assert_true(accelerated_share(&plan) == 1 && plan.decode_ns < slower.decode_ns);
    for (int32_t i = 0; i < plan.n_costs; i++)
        assert_int_equal(plan.costs[i].device & 1, is_divided(&plan, plan.costs[i].op));
    budgets_hold(&plan);
    const uint64_t all_ns = plan.decode_ns;
    plan_free(&plan);

    o.budgets[o.n_budgets++] = (struct device_budget){"sim:0", 16 << 20};
    assert_int_equal(ranks_plan(model, &o, &ranks, NULL, &plan, &err), OATO_OK);
    assert_true(accelerated_share(&plan) > 0.2 && accelerated_share(&plan) < 0.9);
    assert_true(plan.decode_ns > all_ns && plan.decode_ns < slower.decode_ns);
    assert_int_equal(plan.devices[1].budget_bytes, 16 << 20);
    assert_true(plan.devices[1].planned_bytes > 8 << 20);
    budgets_hold(&plan);
    plan_free(&plan);

    o.devices = "cpu:0";
    o.n_budgets = 0;
    assert_int_equal(ranks_plan(model, &o, &ranks, NULL, &plan, &err), OATO_OK);
    assert_int_equal(plan.n_devices, 2);
    assert_true(plan.decode_ns == slower.decode_ns);
    plan_free(&plan);
    plan_free(&slower);
    o.devices = "cpu,cuda:7";
    assert_int_equal(ranks_plan(model, &o, &ranks, NULL, &plan, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "cuda:7"));
}

/* All that is planned for ranks shares one deadline; when it is over there still is a plan. */
static void a_deadline_holds_for_all_ranks_together(void **state)
{
    (void)state;
    enum { SLACK_S = 8 };
    struct oato_error err;
    struct plan plan;
    struct host_choice choice;
    struct rank_options ranks = ranks_on(4, 4, &accelerated);
    struct planner_options o = request();
    ranks.split = SPLIT_AUTO;
    o.any_ubatch = true;
    o.time_limit_s = 0.1;
    const uint64_t begin = now_ns();
    assert_int_equal(ranks_plan(model, &o, &ranks, NULL, &plan, &err), OATO_OK);
    plan_free(&plan);
    ranks.n_profiles = 4;
    for (int i = 0; i < 4; i++)
        ranks.profiles[i] = i & 1 ? &accelerated : &fast;
    assert_int_equal(ranks_choose(model, &o, &ranks, &choice, &plan, &err), OATO_OK);
    plan_free(&plan);
    assert_true((double)(now_ns() - begin) * 1e-9 < 0.2 + SLACK_S);
    o.deadline_ns = 1;
    assert_int_equal(ranks_plan(model, &o, &ranks, NULL, &plan, &err), OATO_OK);
    plan_free(&plan);
}

/* The fastest host alone is found whatever the others are. */
static void one_host_alone_is_the_fastest_of_them(void **state)
{
    (void)state;
    struct oato_error err;
    struct plan plan;
    struct rank_options ranks = ranks_on(2, 2, &accelerated);
    const struct planner_options o = request();
    int32_t profile = -1;
    struct plan alone;
    ranks.profiles[0] = &slow;
    assert_int_equal(ranks_alone(model, &o, &ranks, &profile, &alone, &err), OATO_OK);
    assert_int_equal(planner_make(model, &accelerated, &o, &plan, NULL, &err), OATO_OK);
    assert_int_equal(profile, 1);
    assert_int_equal(alone.request_ns, plan.request_ns);
    plan_free(&alone);
    plan_free(&plan);
}

/* Whatever the network, the plan is no slower than that, unless a split was asked for. */
static void ranks_that_were_asked_for_are_idle_where_one_host_is_faster(void **state)
{
    (void)state;
    static const double rates[] = {1e5, 1e8, 1e12};
    struct planner_options o = request();
    bool one = false, both = false;
    for (int i = 0; i < 6; i++) {
        struct oato_error err;
        struct plan plan, alone;
        struct host_choice choice;
        struct rank_options ranks = ranks_on(2, 2, NULL);
        ranks.split = i & 1 ? SPLIT_TENSOR : SPLIT_AUTO;
        ranks.bytes_per_s = rates[i / 2];
        ranks.latency_ns = 1e9 / rates[i / 2];
        assert_int_equal(planner_make(model, &fast, &o, &alone, NULL, &err), OATO_OK);
        assert_int_equal(ranks_make(model, &o, &ranks, &choice, &plan, &err), OATO_OK);
        const double faster = (double)plan.request_ns / (double)alone.request_ns;
        one = one || plan_ranks(&plan) == 1;
        both = both || (plan_ranks(&plan) == 2 && ranks.split == SPLIT_AUTO);
        if (ranks.split == SPLIT_AUTO)
            assert_true(faster <= 1 && (plan_ranks(&plan) == 1) == (choice.alone > 1));
        else
            assert_true(plan_ranks(&plan) == 2 && fabs(choice.alone / faster - 1) < 1e-6);
        plan_free(&plan);
        plan_free(&alone);
    }
    assert_true(one && both);
}

/* One host has an accelerator, the other has none; then two ranks share that host. */
static void sum_put(struct profile *p, struct profile_sum *sums, enum sum_way way, double ns)
{
    for (uint64_t bytes = 4096; bytes <= 4096 << 10; bytes <<= 10)
        sums[p->n_sums++] =
            (struct profile_sum){2, 2, EXCHANGE_SUM, way, DT_F32, bytes, ns * (double)bytes / 4096};
    p->sums = sums;
}

/* All but lookups is then on the accelerators; sums of another type between hosts they cannot make.
 */
static void accelerators_sum_where_that_was_measured_to_be_faster(void **state)
{
    (void)state;
    enum { HOSTS_NS = 90000, DIRECT_NS = 7000 };
    struct profile measured = accelerated;
    struct profile_sum sums[4];
    struct rank_options ranks = ranks_on(2, 2, NULL);
    struct plan plan, now, by_hosts;
    struct oato_error err;
    struct text out;
    ranks.profiles[0] = &measured;
    sum_put(&measured, sums, SUM_TREE, HOSTS_NS);
    made(&ranks, &by_hosts);
    sum_put(&measured, sums, SUM_ACCELERATORS, DIRECT_NS);
    made(&ranks, &plan);
    assert_true(plan_joins(&plan) && plan.n_sums == 1 && !plan_joins(&by_hosts));
    for (int32_t i = 0; i < plan.n_costs; i++)
        assert_int_equal(plan.costs[i].device & 1, strcmp(plan.costs[i].op, "token_embd") != 0);
    /* two sums a layer, and no copies between host and accelerator around them */
    const double saved = (double)by_hosts.decode_ns - (double)plan.decode_ns;
    assert_true(saved > 8 * (HOSTS_NS - DIRECT_NS) && saved < 16 * (HOSTS_NS - DIRECT_NS));
    if (ranks_price(&plan, model, &ranks, &now, &err))
        fail_msg("%s", err.text);
    assert_true(now.decode_ns == plan.decode_ns && now.prefill_ns == plan.prefill_ns);
    plan_free(&now);
    assert_int_equal(checked(&plan, &ranks, false, &out), OATO_OK);
    text_free(&out);
    plan_free(&plan);

    for (int i = 2; i < 4; i++)
        sums[i].median_ns *= 1000;
    made(&ranks, &plan);
    assert_true(!plan_joins(&plan) && plan.decode_ns == by_hosts.decode_ns);
    plan_free(&plan);
    for (int i = 2; i < 4; i++)
        sums[i].median_ns /= 1000;
    ranks.wire = DT_F16;
    made(&ranks, &plan);
    assert_false(plan_joins(&plan));
    plan_free(&plan);
    plan_free(&by_hosts);
}

static void a_rank_with_an_accelerator_gets_more(void **state)
{
    (void)state;
    struct rank_options ranks = ranks_on(2, 2, &accelerated);
    struct plan plan;
    made(&ranks, &plan);
    assert_int_equal(plan.n_devices, 3);
    assert_string_equal(plan.devices[2].id, "sim:0");
    assert_true(plan.devices[2].planned_bytes > 3 * plan.devices[0].planned_bytes);
    budgets_hold(&plan);
    plan_free(&plan);
    ranks = ranks_on(2, 1, NULL);
    ranks.profiles[0] = &accelerated;
    made(&ranks, &plan);
    assert_int_equal(plan.n_devices, 3);
    assert_int_equal(plan.devices[2].rank, 1);
    budgets_hold(&plan);
    plan_free(&plan);
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
    assert_non_null(strstr(out.data, "memory of cpu:0 of rank 1 on host "));
    assert_non_null(strstr(out.data, "some plan fits this machine"));
    text_free(&out);
    plan_free(&plan);
}

/* Of decode, the bytes that the link of rank 0's host carries. */
static double link_bytes(int32_t ranks, int32_t hosts)
{
    struct rank_options o = ranks_on(ranks, hosts, NULL);
    struct plan fast_link, slow_link;
    made(&o, &fast_link);
    o.bytes_per_s = 1e6;
    made(&o, &slow_link);
    const double ns = (double)slow_link.decode_ns - (double)fast_link.decode_ns;
    plan_free(&fast_link);
    plan_free(&slow_link);
    return ns / 1e9 / (1 / 1e6 - 1 / 117e6);
}

/* Two sums a layer; two hosts exchange theirs, of more the first receives and sends one for each.
 * And the others' candidates. */
static void all_messages_of_a_step_are_priced(void **state)
{
    (void)state;
    const double sum = 1024 * 4, sums = 2 * 4, picks = CANDIDATES_BYTES;
    const double two = sums * sum + picks, four = sums * 2 * 3 * sum + 3 * picks;
    assert_true(fabs(link_bytes(2, 2) / two - 1) < 1e-3);
    assert_true(fabs(link_bytes(4, 2) / (two + picks) - 1) < 1e-3);
    assert_true(fabs(link_bytes(4, 4) / four - 1) < 1e-3);
}

/* Messages that were measured beside other ranks do not count, nor does their rate. */
static void what_a_step_exchanges_is_priced_as_measured_for_these_ranks(void **state)
{
    (void)state;
    enum { SUM_NS = 50000, STEP_NS = 1700000, PICKS = 4 * CANDIDATES_BYTES };
    struct profile_sum sums[9];
    int32_t n = 0;
    for (uint64_t bytes = 1024 * 4; bytes <= 4096 * 4096; bytes *= 4096) {
        sums[n++] = (struct profile_sum){
            4, 2, EXCHANGE_SUM, SUM_TREE, DT_F32, bytes, SUM_NS * (double)bytes / 4096};
        sums[n++] = (struct profile_sum){4,      2,     EXCHANGE_MESSAGE,          SUM_TREE,
                                         DT_F32, bytes, 1e4 * (double)bytes / 4096};
        sums[n++] = (struct profile_sum){8,      2,     EXCHANGE_MESSAGE,          SUM_TREE,
                                         DT_F32, bytes, 1e8 * (double)bytes / 4096};
    }
    for (uint64_t rows = 1; rows <= 8; rows *= 8)
        sums[n++] = (struct profile_sum){
            4, 2, EXCHANGE_STEP, SUM_TREE, DT_F32, rows * PICKS, STEP_NS * (double)rows};
    struct profile measured = fast, unmeasured = fast;
    measured.sums = sums;
    measured.n_sums = n;
    struct rank_options ranks = ranks_on(4, 2, NULL);
    struct plan plan, free_plan;
    ranks.profiles[0] = &measured;
    made(&ranks, &plan);
    ranks.profiles[0] = &unmeasured;
    ranks.bytes_per_s = 1e18;
    ranks.latency_ns = 0;
    made(&ranks, &free_plan);
    /* by the formula, each sum still passes the shared memory of a host, as do the candidates of
     * one of its ranks (ranks/sums.c) */
    const double here = 8 * (6e3 + 4096 / 2.0) + 6e3 + PICKS / 8.0;
    const double exchanged = (double)plan.decode_ns - (double)free_plan.decode_ns + here;
    assert_true(fabs(exchanged / (8 * SUM_NS + STEP_NS) - 1) < 1e-3);
    plan_free(&plan);
    plan_free(&free_plan);
}

/* However small its part. */
static void no_record_of_a_rank_is_shorter_than_the_shortest_operator(void **state)
{
    (void)state;
    const struct rank_options ranks = ranks_on(8, 8, NULL);
    uint64_t divided_ns = UINT64_MAX, undivided_ns = UINT64_MAX;
    struct plan plan;
    made(&ranks, &plan);
    for (int32_t i = 0; i < plan.n_costs; i++) {
        const struct plan_cost *c = &plan.costs[i];
        uint64_t *least = is_divided(&plan, c->op) ? &divided_ns : &undivided_ns;
        if (c->phase == PHASE_DECODE && c->ns < *least)
            *least = c->ns;
    }
    assert_true(undivided_ns > 10);
    assert_in_range(divided_ns, undivided_ns - 1, undivided_ns + undivided_ns / 2);
    plan_free(&plan);
}

static double decode_ns(int32_t ranks, double record_ns)
{
    struct rank_options o = ranks_on(ranks, ranks, NULL);
    const double before_ns = fast.devices[0].record_overhead_ns;
    struct plan plan;
    o.bytes_per_s = 1e18;
    o.latency_ns = 0;
    fast.devices[0].record_overhead_ns = record_ns;
    made(&o, &plan);
    fast.devices[0].record_overhead_ns = before_ns;
    const double ns = (double)plan.decode_ns - fast.devices[0].step_overhead_ns;
    plan_free(&plan);
    return ns;
}

static void what_a_step_takes_beyond_its_operators_is_divided_as_they_are(void **state)
{
    (void)state;
    const double two = decode_ns(2, 1e6) / decode_ns(2, 0),
                 eight = decode_ns(8, 1e6) / decode_ns(8, 0);
    assert_true(two > 1.1);
    assert_true(fabs(eight / two - 1) < 1e-3);
}

static void ranks_of_a_host_have_its_profile_and_divide_its_memory_and_cores(void **state)
{
    (void)state;
    const struct rank_options one_each = ranks_on(2, 2, &slow), two_each = ranks_on(4, 2, &slow);
    struct plan two, four;
    fast.devices[0].threads = slow.devices[0].threads = 4;
    fast.machine.cores = slow.machine.cores = 4;
    made(&one_each, &two);
    made(&two_each, &four);
    for (int32_t r = 0; r < 4; r++)
        assert_true(four.devices[r].budget_bytes == two.devices[r / 2].budget_bytes / 2);
    for (int32_t r = 0; r < 2; r++)
        for (int32_t other = 2; other < 4; other++)
            assert_true((double)four.devices[r].planned_bytes >
                        1.3 * (double)four.devices[other].planned_bytes);
    assert_true(four.decode_ns >= two.decode_ns); /* the same cores, and more sums */
    plan_free(&four);

    fast.devices[0].threads = slow.devices[0].threads = 2; /* half of them for each rank */
    made(&two_each, &four);
    assert_true(four.decode_ns < two.decode_ns);
    fast.devices[0].threads = slow.devices[0].threads = 0;
    fast.machine.cores = slow.machine.cores = 0;
    plan_free(&two);
    plan_free(&four);
}

/* The order in which a plan lists parts means nothing; parts that do not match are refused. */
static void a_division_that_is_none_is_refused(void **state)
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
    assert_int_equal(ranks_price(&plan, model, &ranks, &now, &err), OATO_OK);
    assert_true(now.decode_ns == plan.decode_ns);
    plan_free(&now);
    for (int32_t k = 0; k + 1 < plan.n_parts; k++)
        if (strstr(plan.parts[k].op, "ffn_gate_up") && !plan.parts[k].begin)
            plan.parts[k].end = plan.parts[k + 1].begin -= 64;
    assert_int_equal(ranks_price(&plan, model, &ranks, &now, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "split both at the same positions"));
    plan_free(&plan);
}

static struct host_choice chosen(const struct rank_options *ranks, struct plan *plan)
{
    struct oato_error err;
    struct host_choice choice;
    const struct planner_options o = request();
    if (ranks_choose(model, &o, ranks, &choice, plan, &err))
        fail_msg("%s", err.text);
    assert_int_equal(choice.n, ranks->n_profiles);
    return choice;
}

static void a_host_is_left_out_if_the_others_are_faster_without_it(void **state)
{
    (void)state;
    struct rank_options hosts = ranks_on(3, 3, &fast);
    struct plan plan;
    hosts.profiles[0] = &crawling;
    hosts.profiles[2] = &fast;
    hosts.n_profiles = 3;
    hosts.bytes_per_s = 1e10;
    hosts.latency_ns = 1e3;
    struct host_choice choice = chosen(&hosts, &plan);
    assert_true(!choice.used[0] && choice.used[1] && choice.used[2]);
    assert_int_equal(plan_ranks(&plan), 2);
    assert_true(choice.with[0].fits && choice.with[0].decode_ns > plan.decode_ns);
    assert_true(choice.with[2].decode_ns == plan.decode_ns); /* the last one that was added */
    plan_free(&plan);

    hosts.latency_ns = 1e9; /* no sum is worth a second */
    choice = chosen(&hosts, &plan);
    assert_int_equal(plan_ranks(&plan), 1);
    assert_int_equal(choice.used[0] + choice.used[1] + choice.used[2], 1);
    assert_true(!choice.used[0] && choice.with[2].decode_ns > plan.decode_ns);
    assert_false(choice.prices.priced);
    plan_free(&plan);
}

/* Where one host has no room for the model, a second one is needed, however slow. */
static void a_host_that_the_model_needs_is_kept(void **state)
{
    (void)state;
    struct rank_options hosts = ranks_on(2, 2, NULL);
    struct profile small = fast;
    struct profile_device device = fast.devices[0];
    struct plan plan;
    made(&hosts, &plan);
    device.free_bytes = device.memory_bytes = plan.devices[0].planned_bytes * 5 / 4;
    plan_free(&plan);
    small.devices = &device;
    hosts.profiles[0] = hosts.profiles[1] = &small;
    hosts.n_profiles = 2;
    hosts.latency_ns = 1e7;
    const struct host_choice choice = chosen(&hosts, &plan);
    assert_true(choice.used[0] && choice.used[1] && !choice.with[0].fits);
    plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_holds_for_all_ranks_together),
        cmocka_unit_test(one_host_alone_is_the_fastest_of_them),
        cmocka_unit_test(ranks_that_were_asked_for_are_idle_where_one_host_is_faster),
        cmocka_unit_test(ranks_compute_on_their_accelerators),
        cmocka_unit_test(accelerators_sum_where_that_was_measured_to_be_faster),
        cmocka_unit_test(a_rank_with_an_accelerator_gets_more),
        cmocka_unit_test(ranks_of_different_speed_take_equally_long),
        cmocka_unit_test(check_tells_what_no_longer_holds),
        cmocka_unit_test(all_messages_of_a_step_are_priced),
        cmocka_unit_test(no_record_of_a_rank_is_shorter_than_the_shortest_operator),
        cmocka_unit_test(what_a_step_takes_beyond_its_operators_is_divided_as_they_are),
        cmocka_unit_test(ranks_of_a_host_have_its_profile_and_divide_its_memory_and_cores),
        cmocka_unit_test(what_a_step_exchanges_is_priced_as_measured_for_these_ranks),
        cmocka_unit_test(a_division_that_is_none_is_refused),
        cmocka_unit_test(a_host_is_left_out_if_the_others_are_faster_without_it),
        cmocka_unit_test(a_host_that_the_model_needs_is_kept),
    };
    return cmocka_run_group_tests(tests, ranks_setup, ranks_teardown);
}
