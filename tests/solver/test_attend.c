/*
 * test_attend.c - plans where prompts attend on an accelerator to KV of the host, on a machine of
 * docs/hardware whose GPU is too small for a long context: prefill does not fall off a cliff, such
 * a plan is priced again as it was made, its parts are what the engine takes, its memory covers its
 * rooms and keeps its budget, and requests that gain nothing stay as they are.
 */
#include "lowering/lowering.h"
#include "solver/solver.h"
#include "tests/solver/long_8b.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

static struct planner_options options_of(int32_t prompt, int32_t ubatch, uint64_t bytes)
{
    struct planner_options o;
    planner_options_init(&o);
    o.request.prompt = prompt;
    o.request.generate = 256;
    o.request.context = prompt + 256;
    o.request.ubatch = ubatch;
    o.time_limit_s = 0;
    o.gap = 1e-2;
    snprintf(o.budgets[0].id, sizeof o.budgets[0].id, "cuda:0");
    o.budgets[0].bytes = bytes;
    o.n_budgets = 1;
    return o;
}

/* Layers whose KV is the host's, and of them those that prompts attend to elsewhere. */
static void count_layers(const struct plan *p, const struct problem *problem, int32_t *of_host,
                         int32_t *attended)
{
    *of_host = *attended = 0;
    for (int32_t i = 0; i < p->n_kv; i++)
        *of_host += p->kv[i].device == problem->instance.host;
    for (int32_t k = 0; k < p->n_parts; k++)
        for (int32_t i = 0; i < problem->graph.n_ops; i++)
            *attended += problem->graph.ops[i].op.kind == OP_ATTENTION &&
                         p->parts[k].home != p->parts[k].device &&
                         !strcmp(problem->graph.ops[i].name, p->parts[k].op);
}

/* Made, priced again, and lowered. */
static void check_plan(const struct planner_options *o, struct plan *plan, int32_t *attended)
{
    struct oato_error err;
    struct problem *problem, *again;
    struct graph fused;
    int32_t of_host, *place;
    *attended = 0;
    plan_init(plan);
    oato_status status = planner_make(model, &machine, o, plan, &problem, &err);
    if (!status)
        status = problem_of_plan(model, &machine, plan, &again, &place, &err);
    if (!status)
        status = plan_apply(plan, model, &fused, &err);
    if (status) {
        fail_msg("%s", err.text);
        return;
    }
    graph_free(&fused);
    count_layers(plan, problem, &of_host, attended);
    assert_true(*attended <= of_host);
    assert_int_equal(instance_price(&again->instance, place).objective_ns, plan->objective_ns);
    for (int32_t d = 0; d < plan->n_devices; d++)
        assert_true(plan->devices[d].planned_bytes <= plan->devices[d].budget_bytes);
    if (*attended) {
        const struct oato_op *op = NULL;
        for (int32_t i = 0; i < problem->graph.n_ops; i++)
            if (problem->graph.ops[i].op.kind == OP_KV_STORE)
                op = &problem->graph.ops[i].op;
        assert_non_null(op);
        const uint64_t pages = (uint64_t)kv_pages_of(o->request.context);
        assert_int_equal(again->instance.rooms[1 - again->instance.host],
                         KV_ROOMS * pages * KV_PAGE_POSITIONS * op_kv_bytes(op, o->request.kv));
    }
    for (int32_t i = 0; i < plan->n_baselines && !o->whole_only; i++) /* llama.cpp streams */
        assert_true(plan->objective_ns <= plan->baselines[i].objective_ns);
    problem_free(again);
    problem_free(problem);
}

/* 8 GiB of KV beside 15 GiB of weights, in 8 GiB: 142 s where attention over what does not fit runs
 * on the host. */
static void prefill_has_no_cliff(void **state)
{
    (void)state;
    static const struct {
        int32_t prompt;
        double seconds; /* of prefill */
    } most[] = {{16384, 4.5}, {30720, 10}, {65536, 40}};
    for (size_t i = 0; i < ARRAY_LEN(most); i++) {
        struct plan plan;
        int32_t attended;
        const struct planner_options o = options_of(most[i].prompt, 2048, 8 * GIB);
        check_plan(&o, &plan, &attended);
        print_message("%d tokens: prefill %.1f s, decode %.1f ms, %d layers attended\n",
                      most[i].prompt, (double)plan.prefill_ns * 1e-9, (double)plan.decode_ns * 1e-6,
                      attended);
        assert_true((double)plan.prefill_ns * 1e-9 < most[i].seconds);
        assert_true(attended > 0);
        plan_free(&plan);
    }
}

/* Where there is no prompt, or all fits, nothing is streamed. */
static void what_gains_nothing_stays(void **state)
{
    (void)state;
    struct plan plan;
    int32_t attended;
    struct planner_options o = options_of(0, 512, 4 * GIB);
    o.request.context = 4096;
    check_plan(&o, &plan, &attended);
    assert_int_equal(attended, 0);
    plan_free(&plan);
    o = options_of(4096, 512, 22 * GIB);
    check_plan(&o, &plan, &attended);
    assert_int_equal(attended, 0);
    plan_free(&plan);
    o = options_of(16384, 2048, 8 * GIB); /* nor where nothing may be */
    o.whole_only = true;
    check_plan(&o, &plan, &attended);
    assert_int_equal(attended, 0);
    plan_free(&plan);
}

/* Solvers count a little less than such plans take: that is no reason to say that none fits. */
static void what_takes_more_than_was_counted_is_planned_anew(void **state)
{
    (void)state;
    for (uint64_t less = 0; less < 4; less++) {
        struct plan plan;
        int32_t attended;
        struct planner_options o = options_of(45056, 2048, 8 * GIB - (less << 20) * 7);
        o.gap = -1;
        check_plan(&o, &plan, &attended);
        plan_free(&plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prefill_has_no_cliff),
        cmocka_unit_test(what_gains_nothing_stays),
        cmocka_unit_test(what_takes_more_than_was_counted_is_planned_anew),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
