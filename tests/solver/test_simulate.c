/*
 * test_simulate.c - what must stay true of simulations: plans of whole operators take what the
 * solver summed up, divided ones nearly, and plans predict it; no queue does two things at once;
 * what is drawn adds up to what is said; every operator is there.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"
#include "tests/solver/solver_price.h"

// clang-format off
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
// clang-format on

enum { PLANS = 60 };

static struct model *model;
static uint64_t seed;

static uint64_t chance(uint64_t n)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 33) % n;
}

static int setup(void **state)
{
    (void)state;
    struct oato_error err;
    struct random_model m = random_model_default();
    const char *given = getenv("OATO_SEED");
    seed = given ? strtoull(given, NULL, 10) : 12;
    print_message("OATO_SEED=%llu\n", (unsigned long long)seed);
    m.layers = 6;
    m.width = 256;
    m.ffn = 1024;
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

/* Some machine and some request. */
static void choose(struct profile *p, struct planner_options *o, bool fused)
{
    const struct fixture_options f = {.sim_speed = 2 + (double)chance(20),
                                      .link_latency_ns = 500 + (double)chance(20000),
                                      .scale = 1 + (double)chance(10),
                                      .fused_factor = fused ? 0.9 : 0};
    assert_true(fixture_profile(model, &f, p));
    planner_options_init(o);
    o->request.prompt = (int32_t)chance(400);
    o->request.generate = 1 + (int32_t)chance(60);
    o->request.batch = 1 + (int32_t)chance(2);
    o->request.context = 1024;
    o->request.ubatch = chance(2) ? 64 : 512;
    o->time_limit_s = 0;
    o->gap = 0.01;
    o->budgets[0] = (struct device_budget){"sim:0", (1 << 20) + chance(6 << 20)};
    o->n_budgets = 1;
}

static json_t *simulated(const struct plan *plan, const struct profile *p, json_t **trace)
{
    struct oato_error err;
    struct simulation *s;
    json_error_t e;
    struct text t;
    text_init(&t);
    const struct rank_options one = {.profiles = {p}, .n_profiles = 1};
    if (simulation_run(plan, model, &one, &s, &err))
        fail_msg("%s", err.text);
    report_simulation(s, true, &t);
    json_t *report = json_loadb(t.data, t.len, 0, &e);
    if (!report)
        fail_msg("%s at %d of %s", e.text, e.position, t.data);
    text_free(&t);
    report_simulation(s, false, &t);
    assert_non_null(strstr(t.data, "waits for"));
    text_free(&t);
    if (trace) {
        report_trace(s, &t);
        *trace = json_loadb(t.data, t.len, 0, &e);
        if (!*trace)
            fail_msg("%s at %d of a trace", e.text, e.position);
        text_free(&t);
    }
    simulation_free(s);
    return report;
}

static double number(const json_t *object, const char *key)
{
    const json_t *j = json_object_get(object, key);
    if (!json_is_number(j))
        fail_msg("no number %s", key);
    return json_number_value(j);
}

static double simulated_ns(const json_t *report, const char *what)
{
    return number(json_object_get(report, what), "simulated_ns");
}

static void assert_near(double got, double expected, double lower, double upper, const char *what)
{
    if (got < expected * (1 - lower) - 1 || got > expected * (1 + upper) + 1)
        fail_msg("%s: simulated %.0f, summed %.0f ns: off by %+.2f %%", what, got, expected,
                 (got / expected - 1) * 100);
}

/* Each unit on some device that can run it, as the plan allows: what touches one KV together. */
static void scatter(struct plan *plan, const struct profile *p)
{
    struct oato_error err;
    struct problem *problem;
    int32_t *place;
    if (problem_of_plan(model, p, plan, &problem, &place, &err))
        fail_msg("%s", err.text);
    assert_int_equal(plan->n_parts, problem->graph.n_ops);
    for (int32_t u = 0; u < problem->instance.n_units; u++) {
        int32_t d = (int32_t)chance(2);
        if (!problem->instance.units[u].options[d].allowed)
            d = problem->instance.host;
        for (int32_t i = 0; i < plan->n_parts; i++)
            if (problem->unit_of[i] == u)
                plan->parts[i].device = plan->parts[i].home = d;
        for (int32_t i = 0; i < plan->n_kv; i++)
            if (plan->kv[i].layer == problem->instance.units[u].layer)
                for (int32_t k = 0; k < problem->graph.n_ops; k++)
                    if (problem->unit_of[k] == u && problem->graph.ops[k].op.kind == OP_KV_STORE)
                        plan->kv[i].device = d;
    }
    problem_free(problem);
}

static void check_whole(const struct plan *plan, const struct profile *p, double lower)
{
    const struct price sum = solver_price(model, p, plan);
    const double request_ns = (double)(sum.prefill_ns + sum.decode_ns * plan->request.generate);
    json_t *report = simulated(plan, p, NULL);
    assert_near(simulated_ns(report, "prefill"), (double)sum.prefill_ns, lower, 0.01, "prefill");
    assert_near(simulated_ns(report, "decode"), (double)sum.decode_ns, lower, 0.01, "decode");
    assert_near(simulated_ns(report, "request"), request_ns, lower, 0.01, "request");
    json_decref(report);
}

static void make(const struct profile *p, const struct planner_options *o, struct plan *plan)
{
    struct oato_error err;
    if (planner_make(model, p, o, plan, NULL, &err))
        fail_msg("%s", err.text);
}

/* Where each operator needs the one before. */
static void whole_layers_take_what_was_summed(void **state)
{
    (void)state;
    static const char *const solvers[] = {"cpu", "layers"};
    for (int i = 0; i < PLANS; i++) {
        struct profile p;
        struct planner_options o;
        struct plan plan;
        choose(&p, &o, chance(2));
        o.whole_only = true;
        o.solver = solvers[i % ARRAY_LEN(solvers)];
        make(&p, &o, &plan);
        check_whole(&plan, &p, 0.01);
        plan_free(&plan);
        profile_free(&p);
    }
}

/* A device of the host beside the first one has memory of its own, as on another socket. */
static void two_processors_pay_for_what_passes_between_them(void **state)
{
    (void)state;
    for (int i = 0; i < PLANS / 4; i++) {
        struct profile p;
        struct planner_options o;
        struct plan plan;
        int64_t ns[3];
        choose(&p, &o, chance(2));
        p.devices[1].kind = "cpu";
        p.devices[1].id = "cpu:1";
        p.devices[1].is_host = true;
        strcpy(o.budgets[0].id, "cpu:1");
        o.whole_only = true;
        o.solver = "layers";
        make(&p, &o, &plan);
        for (int32_t layer = 0; layer < 2; layer++) /* some on either side, whatever fits */
            for (int32_t k = 0; k < plan.n_parts; k++)
                if (strstr(plan.parts[k].op, layer ? "blk.1.ffn" : "blk.4.ffn"))
                    plan.parts[k].device = plan.parts[k].home = layer;
        for (int link = 0; link < 3; link++) {
            p.n_links = link ? 2 : 0;
            p.links[0].latency_ns = p.links[1].latency_ns = link * 1e6;
            check_whole(&plan, &p, 1); /* they compute at the same time */
            ns[link] = solver_price(model, &p, &plan).decode_ns;
        }
        assert_true(ns[0] < ns[1] && ns[2] - ns[1] >= 2 * 1000000);
        plan_free(&plan);
        profile_free(&p);
    }
}

/* Neighbours on one device cost what each costs less what the device saves; the sum has it as the
 * clock has. */
static void neighbours_save_what_the_device_says(void **state)
{
    (void)state;
    struct profile p;
    struct planner_options o;
    struct plan plan;
    struct oato_error err;
    struct problem *problem;
    int32_t *place, first, joins = 0;
    choose(&p, &o, true);
    o.whole_only = true;
    o.solver = "cpu";
    o.request.batch = 1;
    make(&p, &o, &plan);
    if (problem_of_plan(model, &p, &plan, &problem, &place, &err))
        fail_msg("%s", err.text);
    for (int32_t i = 0; i < problem->graph.n_ops; i++)
        joins += graph_join(&problem->graph, i, &first) == JOIN_ROPE_STORE;
    problem_free(problem);
    json_t *apart = simulated(&plan, &p, NULL);
    for (int32_t d = 0; d < p.n_devices; d++)
        p.devices[d].join_ns[JOIN_ROPE_STORE] = 10;
    json_t *joined = simulated(&plan, &p, NULL);
    assert_true(joins >= 2);
    assert_float_equal(simulated_ns(apart, "decode") - simulated_ns(joined, "decode"), 10 * joins,
                       joins);
    check_whole(&plan, &p, 0.01);
    json_decref(apart);
    json_decref(joined);
    plan_free(&plan);
    profile_free(&p);
}

/* Products of one input may be computed at the same time, copies while others compute: the
 * solver's sum knows neither. */
static void whole_operators_are_never_slower_than_summed(void **state)
{
    (void)state;
    static const char *const solvers[] = {"affinity", "ilp"};
    for (int i = 0; i < PLANS; i++) {
        struct profile p;
        struct planner_options o;
        struct plan plan;
        choose(&p, &o, chance(2));
        o.whole_only = true;
        o.solver = solvers[i % ARRAY_LEN(solvers)];
        make(&p, &o, &plan);
        check_whole(&plan, &p, 0.2);
        scatter(&plan, &p);
        check_whole(&plan, &p, 0.5);
        plan_free(&plan);
        profile_free(&p);
    }
}

struct range {
    double least, most;
    int n;
};

static void range_add(struct range *r, double simulated, int64_t summed)
{
    const double ratio = summed ? simulated / (double)summed : 1;
    r->least = r->n ? fmin(r->least, ratio) : ratio;
    r->most = r->n ? fmax(r->most, ratio) : ratio;
    r->n++;
}

static void check_range(const struct range *r, double least, double most, const char *what)
{
    print_message("%d plans, %s: simulated / summed %.3f to %.3f\n", r->n, what, r->least, r->most);
    assert_true(r->n > 0);
    if (r->least < least || r->most > most)
        fail_msg("%s: not from %.2f to %.2f", what, least, most);
}

/* Divisions are priced as if their input always came from where their output goes; streams as if
 * the link rested while anything else is done, but as one copy for two operators. */
static void divided_operators_take_nearly_what_was_summed(void **state)
{
    (void)state;
    struct range decode = {0}, prefill = {0}, streamed = {0};
    for (int i = 0; i < PLANS || (!prefill.n && i < 10 * PLANS); i++) {
        struct profile p;
        struct planner_options o;
        struct plan plan;
        choose(&p, &o, chance(2));
        make(&p, &o, &plan);
        bool streams = false, divides = false;
        for (int32_t k = 0; k < plan.n_parts; k++) {
            streams = streams || plan.parts[k].home != plan.parts[k].device;
            divides = divides || plan.parts[k].begin > 0;
        }
        const struct price sum = solver_price(model, &p, &plan);
        json_t *report = simulated(&plan, &p, NULL);
        if (divides)
            range_add(&decode, simulated_ns(report, "decode"), sum.decode_ns);
        if (divides || streams)
            range_add(streams ? &streamed : &prefill, simulated_ns(report, "prefill"),
                      sum.prefill_ns);
        assert_true(simulated_ns(report, "prefill") == (double)plan.prefill_ns);
        assert_true(simulated_ns(report, "decode") == (double)plan.decode_ns);
        json_decref(report);
        plan_free(&plan);
        profile_free(&p);
    }
    check_range(&decode, 0.85, 1.01, "decode of divided ones");
    check_range(&prefill, 0.85, 1.01, "prefill of divided ones");
    check_range(&streamed, 0.55, 1.10, "prefill of streamed ones");
}

/* ---------------------------------------------------------------------------------- trace -- */

enum { QUEUES = 16 };

struct traced { /* what the events of a trace are, queue by queue */
    double busy_us[QUEUES], last_us[QUEUES];
    int32_t n, arrows;
};

static double field(const json_t *event, const char *key)
{
    return number(event, key);
}

static bool is_phase(const json_t *event, const char *phase)
{
    return !strcmp(json_string_value(json_object_get(event, "ph")), phase);
}

/* The events of one phase of the trace lie between its steps; the steps are the request's own
 * process, in order. */
static void check_trace(const json_t *trace, struct traced *t, bool *seen, const struct graph *g)
{
    size_t i;
    json_t *e;
    double decode_us = INFINITY;
    memset(t, 0, sizeof *t);
    json_array_foreach(json_object_get(trace, "traceEvents"), i, e)
    {
        if (is_phase(e, "s") || is_phase(e, "f"))
            t->arrows += is_phase(e, "s") ? 1 : -1;
        if (!is_phase(e, "X"))
            continue;
        const int queue = (int)field(e, "pid") * 3 + (int)field(e, "tid");
        const double begin = field(e, "ts"), dur = field(e, "dur");
        assert_true(queue < QUEUES && begin >= 0 && dur >= 0);
        if (begin < t->last_us[queue] - 0.0005)
            fail_msg("event %zu begins at %.3f us, the one before ends at %.3f", i, begin,
                     t->last_us[queue]);
        t->last_us[queue] = begin + dur;
        t->busy_us[queue] += dur;
        t->n++;
        if (!field(e, "pid") &&
            !strncmp(json_string_value(json_object_get(e, "name")), "decode", 6))
            decode_us = fmin(decode_us, begin);
        for (int32_t k = 0; k < g->n_ops; k++)
            if (!strcmp(json_string_value(json_object_get(e, "name")), g->ops[k].name))
                seen[k * PHASE_COUNT + (begin >= decode_us)] = true;
    }
}

static void queues_do_one_thing_at_a_time_and_add_up(void **state)
{
    (void)state;
    for (int i = 0; i < PLANS / 4; i++) {
        struct oato_error err;
        struct profile p;
        struct planner_options o;
        struct plan plan;
        struct graph g;
        struct traced t;
        json_t *trace, *device;
        size_t d;
        choose(&p, &o, chance(2));
        o.request.prompt =
            1 + (int32_t)chance(64); /* one step of each kind: all are in the trace */
        o.request.batch = 1;
        o.request.generate = 1;
        make(&p, &o, &plan);
        assert_int_equal(plan_apply(&plan, model, &g, &err), OATO_OK);
        bool *seen = calloc((size_t)g.n_ops * PHASE_COUNT, sizeof *seen);
        assert_non_null(seen);
        json_t *report = simulated(&plan, &p, &trace);
        check_trace(trace, &t, seen, &g);
        assert_int_equal(t.arrows, 0);
        for (int32_t k = 0; k < g.n_ops * PHASE_COUNT; k++)
            if (!seen[k])
                fail_msg("%s is not in the trace of %s", g.ops[k / PHASE_COUNT].name,
                         k % PHASE_COUNT ? "decode" : "prefill");
        json_array_foreach(json_object_get(report, "devices"), d, device)
        {
            const json_t *prefill = json_object_get(device, "prefill"),
                         *decode = json_object_get(device, "decode");
            const double busy = number(prefill, "run_ns") + number(prefill, "copy_ns") +
                                number(decode, "run_ns") + number(decode, "copy_ns");
            const double streams = number(prefill, "stream_ns") + number(decode, "stream_ns");
            assert_true(fabs(t.busy_us[3 * (d + 1) + 1] * 1000 - busy) < 1);
            assert_true(fabs(t.busy_us[3 * (d + 1) + 2] * 1000 - streams) < 1);
            assert_true(t.last_us[3 * (d + 1) + 1] * 1000 <= simulated_ns(report, "request") + 1);
        }
        assert_true(fabs(t.busy_us[1] * 1000 - simulated_ns(report, "request")) < 1);
        json_decref(trace);
        json_decref(report);
        free(seen);
        graph_free(&g);
        plan_free(&plan);
        profile_free(&p);
    }
}

/* What a device does and waits for is all of its time. */
static void times_of_a_device_are_its_whole_time(void **state)
{
    (void)state;
    for (int i = 0; i < PLANS / 4; i++) {
        struct profile p;
        struct planner_options o;
        struct plan plan;
        json_t *device, *wait;
        const char *key;
        size_t d;
        choose(&p, &o, chance(2));
        make(&p, &o, &plan);
        json_t *report = simulated(&plan, &p, NULL);
        json_array_foreach(json_object_get(report, "devices"), d, device)
        {
            for (int phase = 0; phase < PHASE_COUNT; phase++) {
                const json_t *l = json_object_get(device, phase ? "decode" : "prefill");
                double sum = number(l, "run_ns") + number(l, "copy_ns") + number(l, "idle_ns");
                json_object_foreach(json_object_get(l, "waits_ns"), key, wait) sum +=
                    json_number_value(wait);
                assert_near(sum, number(l, "span_ns"), 1e-6, 1e-6, "a device's time");
                assert_near(number(l, "span_ns"),
                            simulated_ns(report, phase ? "decode" : "prefill"), 1e-6, 1e-6,
                            "a phase");
            }
        }
        json_decref(report);
        plan_free(&plan);
        profile_free(&p);
    }
}

static void other_models_and_machines_are_refused(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    struct planner_options o;
    struct plan plan;
    struct simulation *s;
    const struct rank_options one = {.profiles = {&p}, .n_profiles = 1};
    choose(&p, &o, true);
    make(&p, &o, &plan);
    p.n_links = 0;
    assert_int_equal(simulation_run(&plan, model, &one, &s, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "links"));
    p.n_devices = 1;
    assert_int_equal(simulation_run(&plan, model, &one, &s, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "sim:0"));
    plan.request.ubatch = 0;
    assert_int_equal(simulation_run(&plan, model, &one, &s, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "ubatch 0"));
    plan.structure_hash++;
    assert_int_equal(simulation_run(&plan, model, &one, &s, &err), OATO_EFILE);
    assert_null(s);
    plan_free(&plan);
    profile_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_layers_take_what_was_summed),
        cmocka_unit_test(two_processors_pay_for_what_passes_between_them),
        cmocka_unit_test(neighbours_save_what_the_device_says),
        cmocka_unit_test(whole_operators_are_never_slower_than_summed),
        cmocka_unit_test(divided_operators_take_nearly_what_was_summed),
        cmocka_unit_test(queues_do_one_thing_at_a_time_and_add_up),
        cmocka_unit_test(times_of_a_device_are_its_whole_time),
        cmocka_unit_test(other_models_and_machines_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
