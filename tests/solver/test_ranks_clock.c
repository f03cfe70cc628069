/*
 * test_ranks_clock.c - ranks on the virtual clock: a step takes what the slowest rank computes
 * before each sum, and the messages, added up here once more; a sum begins when the last rank is
 * there; ranks whose host has too few cores take turns.
 */
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"
#include "tests/solver/ranks_fixture.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

/* By Ethernet of 1 Gb/s, and through the memory of a host (ranks/sums.c). */
static double away_ns(double bytes)
{
    return bytes > 0 ? 60e3 + bytes / 117e6 * 1e9 : 0;
}

static double here_ns(double bytes)
{
    return bytes > 0 ? 6e3 + bytes / 2e9 * 1e9 : 0;
}

/* Two hosts exchange; of more the first receives all and answers all. */
static double sum_ns(const struct rank_options *o, double bytes)
{
    return (o->hosts == 2 ? away_ns(bytes) : 2 * away_ns((o->hosts - 1) * bytes)) +
           (o->ranks > o->hosts ? here_ns(bytes) : 0);
}

static bool is_summed(const char *op)
{
    return strstr(op, "attn_output") || strstr(op, "ffn_down");
}

/* A step of decode of ranks without accelerators: what the slowest computes up to each sum, the
 * sums, and the candidates of logits. Other hosts hear of the step first. */
static double added_ns(const struct plan *plan, const struct rank_options *o)
{
    double free_ns[SOLVER_DEVICES], ns = 0;
    for (int32_t r = 0; r < o->ranks; r++)
        free_ns[r] = fast.devices[0].step_overhead_ns + (plan->devices[r].host ? 60e3 : 0);
    for (int32_t i = 0; i < plan->n_costs; i++) {
        const struct plan_cost *c = &plan->costs[i];
        const bool last = i + 1 == plan->n_costs || strcmp(c[1].op, c->op) != 0;
        if (c->phase != PHASE_DECODE)
            continue;
        free_ns[c->device] += (double)c->ns;
        for (int32_t r = 0; r < o->ranks && last && is_summed(c->op); r++)
            ns = fmax(ns, free_ns[r]);
        for (int32_t r = 0; r < o->ranks && last && is_summed(c->op); r++)
            free_ns[r] = ns + sum_ns(o, 1024 * 4);
    }
    for (int32_t r = 0; r < o->ranks; r++)
        ns = fmax(ns, free_ns[r]);
    const int32_t each = o->ranks / o->hosts;
    return ns + away_ns((o->ranks - each) * CANDIDATES_BYTES) +
           here_ns((each - 1) * CANDIDATES_BYTES);
}

/* What ranks that are alike compute of each operator is all of it. */
static void shares_are_wholes(const struct plan *plan)
{
    struct planner_options o = request();
    struct plan one;
    struct oato_error err;
    o.solver = "cpu";
    assert_int_equal(planner_make(model, &fast, &o, &one, NULL, &err), OATO_OK);
    for (int32_t i = 0; i < one.n_costs; i++) {
        const struct plan_cost *whole = &one.costs[i];
        double parts = 0, n = 0, least = (double)whole->ns;
        for (int32_t k = 0; k < one.n_costs; k++)
            if (one.costs[k].phase == whole->phase)
                least = fmin(least, (double)one.costs[k].ns);
        for (int32_t k = 0; k < plan->n_costs; k++)
            if (plan->costs[k].phase == whole->phase && !strcmp(plan->costs[k].op, whole->op)) {
                parts += (double)plan->costs[k].ns;
                n++;
            }
        if (n && is_summed(whole->op)) /* and no record is shorter than the shortest */
            assert_true(parts > 0.98 * (double)whole->ns &&
                        parts < 1.02 * (double)whole->ns + 2 * n * least);
    }
    plan_free(&one);
}

static void a_step_takes_its_operators_and_its_messages(void **state)
{
    (void)state;
    struct rank_options cases[] = {ranks_on(2, 2, NULL),         ranks_on(4, 2, NULL),
                                   ranks_on(8, 4, NULL),         ranks_on(2, 2, &slow),
                                   ranks_on(3, 3, &slow),        ranks_on(2, 2, NULL),
                                   ranks_on(2, 2, &accelerated), ranks_on(4, 2, &accelerated)};
    cases[5].profiles[0] = &accelerated;
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct plan plan;
        struct text out;
        made(&cases[i], &plan);
        assert_true(plan.n_fusions > 0 && plan.decode_ns > 0);
        if (i < 5)
            assert_true(fabs((double)plan.decode_ns / added_ns(&plan, &cases[i]) - 1) < 2e-3);
        if (i < 3)
            shares_are_wholes(&plan);
        assert_int_equal(checked(&plan, &cases[i], i & 1, &out), OATO_OK);
        text_free(&out);
        plan_free(&plan);
    }
}

/* Of each rank's exchanges with all others, in order: when it was there, and when it began. */
struct exchanges {
    double there_us[2][1024], begin_us[2][1024], end_us[2][1024];
    int n[2];
};

static void exchanges_read(const json_t *trace, struct exchanges *x)
{
    double free_us[2] = {0};
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e)
    {
        const int64_t rank = json_integer_value(json_object_get(e, "pid")) - 1;
        const char *cat = json_string_value(json_object_get(e, "cat")),
                   *name = json_string_value(json_object_get(e, "name"));
        const double begin = json_number_value(json_object_get(e, "ts")),
                     end = begin + json_number_value(json_object_get(e, "dur"));
        if (rank < 0 || strcmp(json_string_value(json_object_get(e, "ph")), "X") != 0)
            continue;
        if (!strcmp(cat, "exchange") && strcmp(name, "exchange output") != 0) {
            assert_true(x->n[rank] < 1024);
            x->there_us[rank][x->n[rank]] = free_us[rank];
            x->begin_us[rank][x->n[rank]] = begin;
            x->end_us[rank][x->n[rank]++] = end;
        }
        free_us[rank] = end;
    }
}

/* Whoever is there first: rank 1 in one case, rank 0 in the other. */
static void a_sum_begins_when_the_last_rank_is_there(void **state)
{
    (void)state;
    for (int slow_one = 0; slow_one < 2; slow_one++) {
        struct rank_options ranks = ranks_on(2, 2, NULL);
        static struct exchanges x;
        struct oato_error err;
        struct simulation *s;
        struct plan plan;
        struct text t;
        made(&ranks, &plan); /* equal parts, */
        ranks.profiles[0] = slow_one ? &fast : &slow;
        ranks.profiles[1] = slow_one ? &slow : &fast; /* and then one of them takes twice as long */
        ranks.n_profiles = 2;
        if (simulation_run(&plan, model, &ranks, &s, &err))
            fail_msg("%s", err.text);
        text_init(&t);
        report_trace(s, &t);
        json_t *trace = json_loadb(t.data, t.len, 0, NULL);
        memset(&x, 0, sizeof x);
        exchanges_read(trace, &x);
        assert_true(x.n[0] == x.n[1] && x.n[0] >= 5 * 8); /* steps; two sums a layer */
        for (int i = 0; i < x.n[0]; i++) {
            const double last = x.there_us[slow_one][i];
            assert_true(x.there_us[!slow_one][i] < last);
            assert_true(fabs(x.begin_us[0][i] - last) < 0.01);
            assert_true(fabs(x.begin_us[1][i] - last) < 0.01);
            assert_true(fabs(x.end_us[0][i] - x.end_us[1][i]) < 0.01);
        }
        json_decref(trace);
        text_free(&t);
        simulation_free(s);
        plan_free(&plan);
    }
}

/* What the ranks of a host compute in a step of decode: of the one that does most, and of all. */
static void host_works(const struct plan *plan, double *most_ns, double *all_ns)
{
    double ns[SOLVER_DEVICES] = {0};
    *most_ns = *all_ns = 0;
    for (int32_t i = 0; i < plan->n_costs; i++)
        if (plan->costs[i].phase == PHASE_DECODE)
            ns[plan->costs[i].device] += (double)plan->costs[i].ns;
    for (int32_t d = 0; d < plan->n_devices; d++) {
        *most_ns = fmax(*most_ns, ns[d]);
        *all_ns += plan->devices[d].host ? 0 : ns[d];
    }
}

static double planned_decode(const struct model *m, const struct rank_options *ranks,
                             double *most_ns, double *all_ns)
{
    const struct planner_options o = request();
    struct plan plan;
    struct oato_error err;
    if (ranks_plan(m, &o, ranks, NULL, &plan, &err))
        fail_msg("%s", err.text);
    host_works(&plan, most_ns, all_ns);
    const double ns = (double)plan.decode_ns;
    plan_free(&plan);
    return ns;
}

/* 4 ranks on one core, of which only one has heads: the others leave it the core meanwhile. */
static void ranks_without_a_part_leave_their_host_s_cores_to_the_others(void **state)
{
    (void)state;
    struct random_model shape = random_model_default();
    struct fixture_options scale = {.scale = 1, .fused_factor = 0.9};
    struct model *few_heads;
    struct profile profile;
    struct oato_error err;
    shape.width = 1024;
    shape.heads = 16;
    shape.kv_heads = 2; /* of 8 ranks, two have one */
    shape.ffn = 4096;
    shape.vocab = 4096;
    shape.dtype = DT_Q8_0;
    shape.header_only = true;
    assert_int_equal(random_model_open(&shape, &few_heads, &err), OATO_OK);
    assert_true(fixture_profile(few_heads, &scale, &profile));
    struct rank_options ranks = ranks_on(8, 2, NULL);
    ranks.profiles[0] = &profile;
    double most, all;
    profile.devices[0].threads = 1;
    profile.machine.cores = 4;
    const double apart = planned_decode(few_heads, &ranks, &most, &all);
    profile.machine.cores = 1;
    const double crowded = planned_decode(few_heads, &ranks, &most, &all);
    assert_true(all > 2 * most && all < 3.8 * most); /* heads are one rank's */
    assert_true(fabs((crowded - all) / (apart - most) - 1) < 0.01);

    /* none moves before it waits: of 3 on 2 cores two take turns */
    ranks = ranks_on(3, 1, NULL);
    ranks.profiles[0] = &profile;
    profile.machine.cores = 3;
    const double three = planned_decode(few_heads, &ranks, &most, &all);
    profile.machine.cores = 2;
    const double two = planned_decode(few_heads, &ranks, &most, &all);
    assert_true(two - three > 0.8 * most && two - three < 1.2 * most);
    profile_free(&profile);
    model_close(few_heads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_takes_its_operators_and_its_messages),
        cmocka_unit_test(a_sum_begins_when_the_last_rank_is_there),
        cmocka_unit_test(ranks_without_a_part_leave_their_host_s_cores_to_the_others),
    };
    return cmocka_run_group_tests(tests, ranks_setup, ranks_teardown);
}
