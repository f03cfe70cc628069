/*
 * test_search.c - what must stay true of the search for a plan, however many devices there are and
 * however little time: it ends by the deadline, claims no bound that it does not know, is no worse
 * with more devices, equal or not, takes no more memory for each of them, and neither absurd
 * profiles nor a lack of memory bring it down.
 */
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"
#include "tests/solver/random_instance.h"

// clang-format off
#include <glpk.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

/* What a search may take beyond its deadline: a loaded host, sanitizers. */
static const double SLACK_S = 8;

static struct model *small, *large;

static struct model *model_of(int32_t layers, int32_t width)
{
    struct oato_error err;
    struct model *model;
    struct random_model m = random_model_default();
    m.layers = layers;
    m.width = width;
    m.ffn = 4 * width;
    m.context = 2048;
    m.dtype = DT_Q4_0;
    if (random_model_open(&m, &model, &err))
        fail_msg("%s", err.text);
    return model;
}

static int setup(void **state)
{
    (void)state;
    small = model_of(4, 256);
    large = model_of(24, 512);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(small);
    model_close(large);
    return 0;
}

static struct planner_options options_of(int32_t accelerators, uint64_t bytes, double time_limit_s)
{
    struct planner_options o;
    planner_options_init(&o);
    o.time_limit_s = time_limit_s;
    for (int32_t i = 0; i < accelerators; i++) {
        struct device_budget *b = &o.budgets[o.n_budgets++];
        snprintf(b->id, sizeof b->id, "cuda:%d", i);
        b->bytes = bytes;
    }
    return o;
}

/* The machine with two equal GPUs, with so many. */
struct machine {
    struct profile profile, loaded;
    struct profile_device devices[SOLVER_DEVICES];
    struct profile_link links[2 * SOLVER_DEVICES];
};

static void machine_of(struct machine *m, int32_t accelerators)
{
    static const char *const ids[SOLVER_DEVICES] = {
        "cuda:0", "cuda:1", "cuda:2",  "cuda:3",  "cuda:4",  "cuda:5",  "cuda:6",  "cuda:7",
        "cuda:8", "cuda:9", "cuda:10", "cuda:11", "cuda:12", "cuda:13", "cuda:14", "cuda:15"};
    struct oato_error err;
    if (hardware_load("2xrtx3090-ryzen5950x", &m->loaded, NULL, NULL, &err))
        fail_msg("%s", err.text);
    m->profile = m->loaded;
    m->profile.devices = m->devices;
    m->profile.links = m->links;
    m->profile.n_devices = 1 + accelerators;
    m->profile.n_links = 2 * accelerators;
    m->devices[0] = m->loaded.devices[0];
    for (int32_t i = 0; i < accelerators; i++) {
        struct profile_device *d = &m->devices[1 + i];
        *d = m->loaded.devices[1];
        d->id = ids[i];
        for (int32_t way = 0; way < 2; way++) {
            m->links[2 * i + way] = m->loaded.links[0];
            m->links[2 * i + way].from = way ? 1 + i : 0;
            m->links[2 * i + way].to = way ? 0 : 1 + i;
        }
    }
}

static void plan_on(const struct machine *m, const struct model *model,
                    const struct planner_options *o, struct plan *plan)
{
    struct oato_error err;
    if (planner_make(model, &m->profile, o, plan, NULL, &err))
        fail_msg("%s", err.text);
}

static void a_deadline_holds_with_any_number_of_devices(void **state)
{
    (void)state;
    for (int32_t accelerators = 1; accelerators < SOLVER_DEVICES; accelerators += 3) {
        struct machine m;
        struct plan plan;
        machine_of(&m, accelerators);
        const struct planner_options o = options_of(accelerators, 24 << 20, 0.3);
        const uint64_t begin = now_ns();
        plan_on(&m, large, &o, &plan);
        const double seconds = (double)(now_ns() - begin) * 1e-9;
        print_message("%d accelerators: %.2f s, %s\n", accelerators, seconds,
                      plan.timed_out ? "ended by the clock" : "finished");
        assert_true(seconds < 0.3 + SLACK_S);
        for (int32_t i = 0; i < plan.n_baselines; i++) {
            const double theirs = (double)plan.baselines[i].objective_ns,
                         slack = strcmp(plan.baselines[i].name, "fit") != 0 ? 1 : 1.1;
            assert_true((double)plan.objective_ns <= slack * theirs); /* llama.cpp is not us */
        }
        plan_free(&plan);
        profile_free(&m.loaded);
    }
}

static void what_the_clock_cut_off_has_no_bound(void **state)
{
    (void)state;
    struct machine m;
    struct plan hurried, patient;
    machine_of(&m, 2);
    struct planner_options o = options_of(2, 12 << 20, 1e-6);
    plan_on(&m, small, &o, &hurried);
    assert_true(hurried.timed_out);
    assert_int_equal(hurried.bound_ns, 0);
    o.time_limit_s = 0;
    o.gap = 1e-2;
    plan_on(&m, small, &o, &patient);
    assert_false(patient.timed_out);
    assert_true(patient.bound_ns > 0 && patient.bound_ns <= patient.objective_ns);
    assert_true(patient.objective_ns <= hurried.objective_ns);
    plan_free(&hurried);
    plan_free(&patient);
    profile_free(&m.loaded);
}

static void more_devices_are_never_worse(void **state)
{
    (void)state;
    uint64_t last = UINT64_MAX;
    for (int32_t accelerators = 1; accelerators <= 4; accelerators++) {
        struct machine m;
        struct plan plan;
        machine_of(&m, accelerators);
        struct planner_options o = options_of(accelerators, 12 << 20, 0);
        o.gap = 1e-3;
        plan_on(&m, small, &o, &plan);
        assert_true((double)plan.objective_ns <= (double)last * 1.001);
        last = plan.objective_ns;
        plan_free(&plan);
        profile_free(&m.loaded);
    }
}

/* Devices so slow that copies between them take no time beside. */
static void slow_down(struct machine *m, double times)
{
    for (int32_t d = 0; d < m->profile.n_devices; d++) {
        m->devices[d].read_bytes_per_s /= times;
        m->devices[d].flops_per_s /= times;
    }
}

/* Not by more than the gap of the search. */
static void assert_no_worse(const struct plan *plan, const struct plan *than)
{
    assert_true((double)plan->objective_ns <= (double)than->objective_ns * 1.001);
}

/* Of a slow, a fast and a slow one any one or two are planned for, too. */
static void a_plan_is_no_worse_than_that_of_fewer_devices(void **state)
{
    (void)state;
    struct machine m;
    struct plan all;
    machine_of(&m, 3);
    m.devices[2].read_bytes_per_s *= 2;
    m.devices[2].flops_per_s *= 2;
    struct planner_options o = options_of(3, 6 << 20, 0);
    o.budgets[1].bytes = 4 << 20;
    o.gap = 1e-3;
    plan_on(&m, small, &o, &all);
    static const char *const lists[] = {"cpu:0,cuda:0", "cpu:0,cuda:1", "cpu:0,cuda:0,cuda:1",
                                        "cpu:0,cuda:0,cuda:2"};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        struct planner_options few = o;
        struct plan plan;
        few.devices = lists[i];
        few.n_budgets = 0;
        for (int32_t d = 0; d < 3; d++)
            if (strstr(lists[i], o.budgets[d].id))
                few.budgets[few.n_budgets++] = o.budgets[d];
        plan_on(&m, small, &few, &plan);
        assert_no_worse(&all, &plan);
        plan_free(&plan);
    }
    plan_free(&all);
    profile_free(&m.loaded);
}

/* Eight, into half of which the model would fit: proven, without a clock, to 7 %: all of them may
 * stream through rooms of any size, of which the bound counts one device's. */
static void equal_devices_are_searched_as_one(void **state)
{
    (void)state;
    struct machine m;
    struct plan plan;
    machine_of(&m, 8);
    slow_down(&m, 100);
    const struct planner_options o = options_of(8, 24 << 20, 0);
    plan_on(&m, large, &o, &plan);
    print_message("8 equal devices: %.2f %% from the bound\n",
                  100 - 100 * (double)plan.bound_ns / (double)plan.objective_ns);
    assert_false(plan.timed_out);
    assert_true((double)plan.bound_ns > 0.93 * (double)plan.objective_ns);
    plan_free(&plan);
    profile_free(&m.loaded);
}

/* Neither in memory nor in speed, and a part of the model is the host's. */
static void two_unlike_devices_are_proven(void **state)
{
    (void)state;
    for (int slower = 1; slower <= 2; slower++) {
        struct machine m;
        struct plan plan;
        machine_of(&m, 2);
        m.devices[2].read_bytes_per_s /= slower;
        m.devices[2].flops_per_s /= slower;
        struct planner_options o = options_of(2, 24 << 20, 0);
        o.budgets[1].bytes = 14 << 20;
        plan_on(&m, large, &o, &plan);
        print_message("%d times slower: %.2f %% from the bound\n", slower,
                      100 - 100 * (double)plan.bound_ns / (double)plan.objective_ns);
        assert_false(plan.timed_out);
        assert_true((double)plan.bound_ns >= 0.98 * (double)plan.objective_ns);
        plan_free(&plan);
        profile_free(&m.loaded);
    }
}

/* The objective of the best placement that random changes find. */
static int64_t best_by_chance(const struct problem *p, uint64_t seed)
{
    enum { STEPS = 20000 };
    const struct instance *in = &p->instance;
    int32_t *place = calloc((size_t)in->n_units, sizeof *place);
    assert_non_null(place);
    assert_true(solve_cpu(in, place));
    int64_t best = instance_price(in, place).objective_ns;
    for (int32_t i = 0; i < STEPS; i++) {
        struct instance with;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int32_t u = (int32_t)((seed >> 33) % (uint64_t)in->n_units), was = place[u];
        place[u] = (int32_t)((seed >> 20) % (uint64_t)in->units[u].n_options);
        uint64_t staging[SOLVER_DEVICES], rooms[SOLVER_DEVICES];
        const uint32_t streams = instance_streams(in, place, staging, rooms);
        const bool fits =
            instance_with_streams(in, streams, &with) && instance_fits(&with, place, NULL);
        const int64_t ns = fits ? instance_price(in, place).objective_ns : INT64_MAX;
        place[u] = ns <= best ? place[u] : was;
        best = ns < best ? ns : best;
    }
    free(place);
    return best;
}

static void chance_beats_no_bound_of_equal_devices(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 8; seed++) {
        struct machine m;
        struct plan plan;
        struct problem *p;
        struct oato_error err;
        const int32_t accelerators = 3 + (int32_t)(seed % 3);
        machine_of(&m, accelerators);
        slow_down(&m, 100);
        struct planner_options o = options_of(accelerators, (4 + seed) << 19, 0);
        o.request.prompt = o.request.ubatch = 16;
        plan_on(&m, small, &o, &plan);
        if (problem_create(small, &m.profile, &o, &p, &err))
            fail_msg("%s", err.text);
        const int64_t by_chance = best_by_chance(p, seed);
        print_message("seed %d: bound %.3f ms, plan %.3f, by chance %.3f\n", (int)seed,
                      (double)plan.bound_ns / 1e6, (double)plan.objective_ns / 1e6,
                      (double)by_chance / 1e6);
        assert_true(plan.bound_ns > 0 && plan.bound_ns <= (uint64_t)by_chance);
        assert_true((double)plan.objective_ns <= 1.15 * (double)by_chance); /* it claims no more */
        problem_free(p);
        plan_free(&plan);
        profile_free(&m.loaded);
    }
}

/* A unit has tens of thousands of options if they are all listed. */
static void options_of_many_devices_are_few(void **state)
{
    (void)state;
    enum { MOST = 12000 };
    struct machine m;
    struct problem *p;
    struct oato_error err;
    machine_of(&m, SOLVER_DEVICES - 1);
    struct planner_options o = options_of(0, 0, 0);
    if (problem_create(large, &m.profile, &o, &p, &err))
        fail_msg("%s", err.text);
    for (int32_t u = 0; u < p->instance.n_units; u++)
        assert_true(p->instance.units[u].n_options < MOST);
    problem_free(p);
    profile_free(&m.loaded);
}

/* Whatever is planned: what is past gives the heuristics that take no time. */
static void a_deadline_may_be_over_before_it_begins(void **state)
{
    (void)state;
    static const char *const solvers[] = {"auto", "ilp", "affinity", "cpu"};
    struct machine m;
    machine_of(&m, 4);
    for (size_t i = 0; i < ARRAY_LEN(solvers); i++) {
        struct planner_options o = options_of(4, 64 << 20, 10);
        struct plan plan;
        struct oato_error err;
        o.solver = solvers[i];
        o.deadline_ns = 1;
        const oato_status status = planner_make(small, &m.profile, &o, &plan, NULL, &err);
        if (!status) {
            assert_true(plan.timed_out);
            assert_int_equal(plan.bound_ns, 0);
            plan_free(&plan);
        }
        assert_true(!status || (status == OATO_EFIT && !strcmp(solvers[i], "affinity")));
    }
    profile_free(&m.loaded);
}

/* All resident on one is the best there is: more of the same change nothing, and that is proven. */
static void idle_devices_change_nothing(void **state)
{
    (void)state;
    struct machine one, seven;
    struct plan a, b;
    machine_of(&one, 1);
    machine_of(&seven, 7);
    struct planner_options o = options_of(0, 0, 0);
    o.request.prompt = 16;
    plan_on(&one, small, &o, &a);
    plan_on(&seven, small, &o, &b);
    assert_int_equal(a.objective_ns, b.objective_ns);
    assert_int_equal(a.bound_ns, a.objective_ns);
    assert_true((double)b.bound_ns >= 0.999 * (double)b.objective_ns);
    assert_false(b.timed_out);
    plan_free(&a);
    plan_free(&b);
    profile_free(&one.loaded);
    profile_free(&seven.loaded);
}

/* Times that no machine has end at a limit; they do not wrap into a fast one. */
static void absurd_costs_are_slow(void **state)
{
    (void)state;
    static const double ns[] = {1e15, 1e18, 1e300};
    for (size_t i = 0; i < ARRAY_LEN(ns); i++) {
        struct machine m;
        struct plan plan;
        machine_of(&m, 1);
        m.devices[1].record_overhead_ns = ns[i];
        m.links[0].latency_ns = m.links[1].latency_ns = ns[i];
        struct planner_options o = options_of(0, 0, 0);
        plan_on(&m, small, &o, &plan);
        assert_true(plan.objective_ns < 1e12);
        for (int32_t b = 0; b < plan.n_baselines; b++) {
            assert_true(plan.objective_ns <= plan.baselines[b].objective_ns);
            assert_true(strcmp(plan.baselines[b].name, "layers") != 0 ||
                        plan.baselines[b].objective_ns > 1e15);
        }
        plan_free(&plan);
        m.devices[0].record_overhead_ns = ns[i]; /* now everything is slow */
        plan_on(&m, small, &o, &plan);
        assert_true(plan.objective_ns > 1e15 && plan.objective_ns <= (uint64_t)NS_MAX);
        assert_true(plan.request_ns > 1e15 && plan.request_ns <= (uint64_t)NS_MAX);
        plan_free(&plan);
        profile_free(&m.loaded);
    }
}

/* A workspace near 2^64 does not fit; added to the activations it must not wrap. */
static void absurd_workspaces_fit_nowhere(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    struct plan plan;
    const struct fixture_options f = {
        .sim_speed = 8, .link_latency_ns = 2000, .scale = 1, .fused_factor = 0};
    assert_true(fixture_profile(small, &f, &p));
    const int32_t sim = profile_device_index(&p, "sim:0");
    for (int32_t i = 0; i < p.n_rows; i++)
        if (p.rows[i].device == sim && p.rows[i].supported)
            p.rows[i].workspace_bytes = UINT64_MAX - 100;
    struct planner_options o = options_of(0, 0, 0);
    o.request.ubatch = 64;
    if (planner_make(small, &p, &o, &plan, NULL, &err))
        fail_msg("%s", err.text);
    for (int32_t i = 0; i < plan.n_parts; i++)
        assert_int_equal(plan.parts[i].device, 0);
    plan_free(&plan);
    profile_free(&p);
}

/* Of a hundred thousand chunks a few hundred are priced. */
static void a_prompt_of_many_chunks_is_priced_at_once(void **state)
{
    (void)state;
    struct machine m;
    struct plan one, many;
    machine_of(&m, 1);
    struct planner_options o = options_of(0, 0, 0);
    o.request.context = 110000;
    o.request.prompt = 250;
    o.request.ubatch = 1;
    plan_on(&m, small, &o, &one); /* each for itself */
    o.request.prompt = 100000;
    const uint64_t begin = now_ns();
    plan_on(&m, small, &o, &many);
    assert_true((double)(now_ns() - begin) * 1e-9 < 4 + SLACK_S);
    assert_true((double)many.prefill_ns > 395 * (double)one.prefill_ns);
    plan_free(&one);
    plan_free(&many);
    profile_free(&m.loaded);
}

/* GLPK would abort the process. */
static void a_lack_of_memory_is_an_error(void **state)
{
    (void)state;
    static struct random_instance r;
    static int32_t place[INSTANCE_UNITS];
    struct oato_error err;
    struct ilp_result result;
    const struct ilp_options o = {.gap = 0.5};
    random_layers(&r, 11, 100, 3, false);
    r.instance.capacity[r.instance.host] = UINT64_MAX;
    glp_init_env();
    glp_mem_limit(1);
    assert_int_equal(solve_ilp(&r.instance, &o, NULL, place, &result, &err), OATO_EFIT);
    assert_non_null(strstr(err.text, "the ILP"));
    assert_int_equal(solve_ilp(&r.instance, &o, NULL, place, &result, &err), OATO_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_holds_with_any_number_of_devices),
        cmocka_unit_test(what_the_clock_cut_off_has_no_bound),
        cmocka_unit_test(more_devices_are_never_worse),
        cmocka_unit_test(a_plan_is_no_worse_than_that_of_fewer_devices),
        cmocka_unit_test(equal_devices_are_searched_as_one),
        cmocka_unit_test(two_unlike_devices_are_proven),
        cmocka_unit_test(chance_beats_no_bound_of_equal_devices),
        cmocka_unit_test(options_of_many_devices_are_few),
        cmocka_unit_test(a_deadline_may_be_over_before_it_begins),
        cmocka_unit_test(idle_devices_change_nothing),
        cmocka_unit_test(absurd_costs_are_slow),
        cmocka_unit_test(absurd_workspaces_fit_nowhere),
        cmocka_unit_test(a_lack_of_memory_is_an_error),
        cmocka_unit_test(a_prompt_of_many_chunks_is_priced_at_once),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
