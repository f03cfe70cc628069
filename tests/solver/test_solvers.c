/*
 * test_solvers.c - what must stay true of the solvers on abstract instances: the ILP equals brute
 * force, no heuristic beats it, nothing that is returned overfills a device,
 * and the same instance gives the same placement.
 */
#include "tests/pace.h"
#include "tests/solver/random_instance.h"

// clang-format off
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

static int instances; /* 250; twice as many of groups */

static struct random_instance r;
static int32_t place[INSTANCE_UNITS], other[INSTANCE_UNITS], warm[INSTANCE_UNITS];

static bool no_walk;

static oato_status run_ilp(const int32_t *start, int32_t *out, struct ilp_result *result)
{
    struct oato_error err;
    struct ilp_options o = {.no_walk = no_walk};
    return solve_ilp(&r.instance, &o, start, out, result, &err);
}

/* In some instances accelerators may be streamed to, where that leaves memory. */
static void allow_streams(uint64_t seed)
{
    struct instance with;
    if (seed % 3 && instance_with_streams(&r.instance, (uint32_t)(seed / 3 % 8), &with))
        r.instance = with;
}

/* One instance against brute force; false when nothing fits (and all agree on that). */
static bool compare_with_brute_force(uint64_t seed)
{
    int64_t least = 0;
    struct ilp_result result;
    bool any = brute_force(&r.instance, &least);
    oato_status status = run_ilp(NULL, place, &result);
    if (!any) {
        assert_int_equal(status, OATO_NEGATIVE);
        return false;
    }
    if (status || result.objective_ns != least)
        print_message("seed %llu: ILP %lld, brute force %lld\n", (unsigned long long)seed,
                      (long long)result.objective_ns, (long long)least);
    assert_int_equal(status, OATO_OK);
    assert_true(instance_fits(&r.instance, place, NULL));
    assert_int_equal(instance_price(&r.instance, place).objective_ns, least);
    assert_int_equal(result.objective_ns, least);
    assert_true(result.bound_ns <= least && result.bound_ns >= least - 1 - least / 1000000);
    assert_false(result.timed_out);
    return true;
}

/* Without structure: one block, all in the table. */
static void ilp_equals_brute_force(void **state)
{
    (void)state;
    int feasible = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)instances; seed++) {
        int32_t devices = 2 + (int32_t)(seed % 2), units = 3 + (int32_t)(seed % 10);
        random_dag(&r, seed,
                   devices == 3 ? (units > 7 ? 7 : units)
                   : units > 10 ? 10
                                : units,
                   devices);
        allow_streams(seed);
        feasible += compare_with_brute_force(seed);
    }
    print_message("%d instances, %d of them feasible\n", instances, feasible);
    assert_true(feasible > instances / 2);
}

static void path_of_blocks_equals_brute_force(void **state)
{
    (void)state;
    int feasible = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)instances; seed++) {
        int32_t devices = 2 + (int32_t)(seed % 2);
        no_walk = seed / 2 % 2;
        random_layers(&r, seed, devices == 3 ? 2 : 3, devices, seed % 4 == 0);
        allow_streams(seed);
        feasible += compare_with_brute_force(seed);
    }
    no_walk = false;
    assert_true(feasible > instances / 2);
}

/* A block uses two or three accelerators at most: with more of them its placement
 * may lose, but what it calls a bound is one. */
static void bounds_hold_with_many_devices(void **state)
{
    (void)state;
    for (int32_t devices = 4; devices <= 8; devices++)
        for (uint64_t seed = 1; seed <= 40; seed++) {
            struct ilp_result got;
            int64_t least_ns;
            random_layers(&r, seed, 1, devices, false);
            if (brute_force(&r.instance, &least_ns) && !run_ilp(NULL, place, &got) &&
                (got.bound_ns > least_ns || got.objective_ns < least_ns))
                fail_msg("seed %llu, %d devices: bound %lld, %lld found, %lld possible",
                         (unsigned long long)seed, devices, (long long)got.bound_ns,
                         (long long)got.objective_ns, (long long)least_ns);
        }
}

/* Cut points in the order of frequency are what plans can say; what any subset could do is known,
 * too, where it can be enumerated. */
static void divided_units_equal_brute_force(void **state)
{
    (void)state;
    int feasible = 0, compared = 0;
    double loss = 0, most = 0;
    for (uint64_t seed = 1; seed <= 2 * (uint64_t)instances; seed++) {
        int32_t devices = 2 + (int32_t)(seed % 2),
                groups = 2 + (int32_t)(seed / 2 % (devices == 2 ? 6 : 3));
        no_walk = seed / 3 % 2;
        random_groups(&r, seed, 2, devices, groups, false);
        if (!compare_with_brute_force(seed))
            continue;
        feasible++;
        double cuts = (double)instance_price(&r.instance, place).objective_ns;
        struct ilp_result any;
        no_walk = false;
        random_groups(&r, seed, 2, devices, groups, true);
        assert_int_equal(run_ilp(NULL, other, &any), OATO_OK);
        assert_true((double)any.objective_ns <= cuts);
        loss += cuts / (double)any.objective_ns - 1;
        most = fmax(most, cuts / (double)any.objective_ns - 1);
        compared++;
    }
    no_walk = false;
    print_message("%d instances, %d feasible; cut points lose %.3f %% against free subsets on "
                  "average, %.1f %% at most\n",
                  2 * instances, feasible, loss / compared * 100, most * 100);
    assert_true(feasible > instances);
}

static void knapsacks_of_full_size_equal_a_dynamic_programme(void **state)
{
    (void)state;
    struct oato_error err;
    static const struct {
        int32_t layers, groups, percent;
    } sizes[] = {{32, 224, 25}, {32, 224, 75}, {80, 448, 50}};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct ilp_result result;
        struct ilp_options o = {.gap = 1e-3};
        random_knapsack(&r, i + 1, sizes[i].layers, sizes[i].groups,
                        sizes[i].layers * sizes[i].groups * sizes[i].percent / 100);
        uint64_t begin = now_ns();
        assert_int_equal(solve_ilp(&r.instance, &o, NULL, place, &result, &err), OATO_OK);
        uint64_t end = now_ns();
        int64_t least = knapsack_least(&r);
        print_message("%d layers of %d groups, %d %%: %.2f s, %.4f %% above the dynamic programme, "
                      "which took %.2f s\n",
                      sizes[i].layers, sizes[i].groups, sizes[i].percent,
                      (double)(end - begin) * 1e-9,
                      (double)(result.objective_ns - least) * 100 / (double)least,
                      (double)(now_ns() - end) * 1e-9);
        assert_true(result.objective_ns >= least);
        assert_true((double)result.objective_ns <= 1.001 * (double)least);
        assert_true(result.bound_ns <= least);
        assert_true(instance_fits(&r.instance, place, NULL));
    }
}

static void heuristics_are_never_better_than_the_ilp(void **state)
{
    (void)state;
    struct oato_error err;
    double excess_once = 0, excess_iterated = 0;
    int n = 0;
    for (uint64_t seed = 1; seed <= (uint64_t)instances; seed++) {
        struct ilp_result result;
        random_dag(&r, seed, 12, 2);
        if (run_ilp(NULL, place, &result))
            continue;
        double least = (double)result.objective_ns;
        if (solve_cpu(&r.instance, other))
            assert_true(instance_price(&r.instance, other).objective_ns >= result.objective_ns);
        if (solve_layers(&r.instance, other))
            assert_true(instance_price(&r.instance, other).objective_ns >= result.objective_ns);
        if (solve_affinity(&r.instance, true, NULL, other, NULL, NULL, &err) ||
            solve_affinity(&r.instance, false, NULL, warm, NULL, NULL, &err))
            continue;
        int64_t once = instance_price(&r.instance, other).objective_ns;
        int64_t iterated = instance_price(&r.instance, warm).objective_ns;
        assert_true(instance_fits(&r.instance, other, NULL));
        assert_true(instance_fits(&r.instance, warm, NULL));
        assert_true(once >= result.objective_ns && iterated >= result.objective_ns);
        assert_true(iterated <= once);
        excess_once += (double)once / least - 1;
        excess_iterated += (double)iterated / least - 1;
        n++;
    }
    print_message("%d instances: single shot %.2f %% above the optimum, iterated %.2f %%\n", n,
                  excess_once / n * 100, excess_iterated / n * 100);
    assert_true(n > instances / 2);
}

static void ilp_is_never_worse_than_its_warm_start(void **state)
{
    (void)state;
    struct oato_error err;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct ilp_result result;
        struct ilp_options o = {.gap = 0.5};
        random_layers(&r, seed, 6, 2, false);
        if (solve_affinity(&r.instance, false, NULL, warm, NULL, NULL, &err))
            continue;
        int64_t before = instance_price(&r.instance, warm).objective_ns;
        assert_int_equal(solve_ilp(&r.instance, &o, warm, place, &result, &err), OATO_OK);
        assert_true(result.objective_ns <= before);
        assert_true(instance_fits(&r.instance, place, NULL));
        assert_true(result.bound_ns <= result.objective_ns);
    }
}

/* Every accelerator holds so many percent of all units, the host everything. */
static void make_tight(uint64_t percent)
{
    struct instance *in = &r.instance;
    for (int32_t d = 0; d < in->n_devices; d++) {
        uint64_t all = 0;
        for (int32_t u = 0; u < in->n_units; u++)
            all += in->units[u].options[d].bytes[d];
        in->usable[d] = true;
        in->capacity[d] = d == in->host ? all : all * percent / 100;
    }
}

static void models_of_many_layers_solve_within_the_gap(void **state)
{
    (void)state;
    struct oato_error err;
    for (int devices = 2; devices <= 3; devices++) {
        struct ilp_result result, again;
        struct ilp_options o = {.gap = 1e-3, .deadline_ns = ilp_deadline(60)};
        random_layers(&r, 7, 64, devices, true);
        make_tight(30);
        bool warmed = !solve_affinity(&r.instance, false, NULL, warm, NULL, NULL, &err);
        uint64_t begin = now_ns();
        assert_int_equal(solve_ilp(&r.instance, &o, warmed ? warm : NULL, place, &result, &err),
                         OATO_OK);
        print_message("%d units, %d devices: %.2f s, %.3f %% above the bound\n", r.instance.n_units,
                      devices, (double)(now_ns() - begin) * 1e-9,
                      100.0 * (double)(result.objective_ns - result.bound_ns) /
                          (double)result.objective_ns);
        assert_false(result.timed_out);
        assert_true((double)(result.objective_ns - result.bound_ns) <=
                    1.001e-3 * (double)result.objective_ns);
        assert_int_equal(solve_ilp(&r.instance, &o, warmed ? warm : NULL, other, &again, &err),
                         OATO_OK);
        assert_memory_equal(place, other, sizeof(int32_t) * (size_t)r.instance.n_units);
        assert_int_equal(again.bound_ns, result.bound_ns);
    }
}

static void branch_and_bound_agrees_with_the_walk(void **state)
{
    (void)state;
    struct oato_error err;
    for (uint64_t seed = 1 + pace_first(5); seed <= 20; seed += pace_step(5)) {
        struct ilp_result walked, searched;
        struct ilp_options o = {0};
        random_layers(&r, seed, 8, 2 + (int32_t)(seed % 2), seed % 3 == 0);
        make_tight(20 + 5 * (seed % 7));
        assert_int_equal(solve_ilp(&r.instance, &o, NULL, place, &walked, &err), OATO_OK);
        o.no_walk = true;
        assert_int_equal(solve_ilp(&r.instance, &o, NULL, place, &searched, &err), OATO_OK);
        assert_int_equal(walked.objective_ns, searched.objective_ns);
        assert_int_equal(walked.bound_ns, walked.objective_ns);
    }
}

static void the_clock_ends_the_search_and_says_so(void **state)
{
    (void)state;
    struct oato_error err;
    struct ilp_options o = {.deadline_ns = ilp_deadline(0.002)};
    struct ilp_result result;
    random_layers(&r, 11, 100, 3, false);
    assert_int_equal(solve_affinity(&r.instance, false, NULL, warm, NULL, NULL, &err), OATO_OK);
    assert_int_equal(solve_ilp(&r.instance, &o, warm, place, &result, &err), OATO_OK);
    assert_true(result.timed_out);
    assert_true(result.bound_ns <= result.objective_ns);
    assert_true(result.objective_ns <= instance_price(&r.instance, warm).objective_ns);
    struct ilp_clock over = {.deadline_ns = 1};
    int32_t rounds = 0;
    static struct affinity_round trace[AFFINITY_ROUNDS];
    solve_affinity(&r.instance, false, &over, place, trace, &rounds, &err);
    assert_true(over.ended);
    assert_int_equal(rounds, 0);
}

/* No supported model is like this: every layer ends in one value. */
static void what_cannot_be_cut_into_blocks_keeps_its_warm_start(void **state)
{
    (void)state;
    struct ilp_result result;
    random_dag(&r, 1, 40, 2);
    for (int32_t u = 0; u < r.instance.n_units; u++)
        r.instance.units[u].options[r.instance.host].allowed = true;
    r.instance.usable[r.instance.host] = true;
    r.instance.capacity[r.instance.host] = UINT64_MAX;
    assert_true(solve_cpu(&r.instance, warm));
    assert_int_equal(run_ilp(NULL, place, &result), OATO_NEGATIVE);
    assert_int_equal(run_ilp(warm, place, &result), OATO_OK);
    assert_memory_equal(place, warm, sizeof(int32_t) * 40);
    assert_int_equal(result.objective_ns, instance_price(&r.instance, warm).objective_ns);
    assert_int_equal(result.bound_ns, 0);
}

static void layers_go_back_to_front_until_full(void **state)
{
    (void)state;
    struct instance *in = &r.instance;
    random_layers(&r, 3, 5, 2, true);
    int32_t sim = 1 - in->host;
    for (int32_t u = 0; u < in->n_units; u++) {
        in->units[u].options[sim].allowed = true;
        in->units[u].options[sim].bytes[sim] = 10;
    }
    in->units[1].layer = -1; /* as an embedding */
    in->usable[sim] = true;
    in->capacity[sim] = 2 * 40 + 39;
    in->capacity[in->host] = UINT64_MAX;
    assert_true(solve_layers(in, place));
    for (int32_t u = 0; u < in->n_units; u++)
        assert_int_equal(place[u], u / 4 >= 3 ? sim : in->host);
    in->capacity[sim] = 1000;
    assert_true(solve_layers(in, place));
    assert_int_equal(place[1], in->host);
    assert_int_equal(place[0], sim);
}

static void a_value_is_copied_once_for_each_device_that_reads_it(void **state)
{
    (void)state;
    struct instance *in = &r.instance;
    random_dag(&r, 5, 4, 3);
    int32_t a = (in->host + 1) % 3, b = (in->host + 2) % 3, h = in->host;
    in->n_edges = 1;
    memset(in->direct, 0, sizeof in->direct);
    in->edges[0] = (struct edge){.producer = 0, .n_readers = 3};
    for (int32_t i = 0; i < 3; i++)
        in->readers[i] = i + 1;
    in->edges[0].leave[PHASE_DECODE][a].objective_ns = 100;
    in->edges[0].enter[PHASE_DECODE][b].objective_ns = 10;
    in->edges[0].enter[PHASE_DECODE][a].objective_ns = 1;
    const struct {
        int32_t place[4];
        int64_t ns;
    } cases[] = {{{h, h, h, h}, 0},   {{h, b, b, b}, 10},  {{h, a, b, a}, 11}, {{a, a, a, a}, 0},
                 {{a, h, h, h}, 100}, {{a, h, b, b}, 110}, {{a, b, a, a}, 110}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_int_equal(edge_price(in, &in->edges[0], cases[i].place).objective_ns, cases[i].ns);
    /* a and b reach each other: the host is not needed between them */
    static struct price direct[PHASE_COUNT][SOLVER_DEVICES][SOLVER_DEVICES];
    direct[PHASE_DECODE][a][b].objective_ns = 7;
    in->edges[0].direct = direct;
    in->direct[a][b] = true;
    static const int64_t with_direct[] = {0, 10, 11, 0, 100, 107, 7};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        assert_int_equal(edge_price(in, &in->edges[0], cases[i].place).objective_ns,
                         with_direct[i]);
    in->edges[0].host_reads = true;
    int32_t all_a[4] = {a, a, a, a};
    assert_int_equal(edge_price(in, &in->edges[0], all_a).objective_ns, 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ilp_equals_brute_force),
        cmocka_unit_test(path_of_blocks_equals_brute_force),
        cmocka_unit_test(bounds_hold_with_many_devices),
        cmocka_unit_test(divided_units_equal_brute_force),
        cmocka_unit_test(knapsacks_of_full_size_equal_a_dynamic_programme),
        cmocka_unit_test(heuristics_are_never_better_than_the_ilp),
        cmocka_unit_test(ilp_is_never_worse_than_its_warm_start),
        cmocka_unit_test(models_of_many_layers_solve_within_the_gap),
        cmocka_unit_test(branch_and_bound_agrees_with_the_walk),
        cmocka_unit_test(the_clock_ends_the_search_and_says_so),
        cmocka_unit_test(what_cannot_be_cut_into_blocks_keeps_its_warm_start),
        cmocka_unit_test(layers_go_back_to_front_until_full),
        cmocka_unit_test(a_value_is_copied_once_for_each_device_that_reads_it),
    };
    instances = pace_rounds(250, 4);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
