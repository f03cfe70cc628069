/*
 * test_staging.c - what must stay true of plans that stream weights to accelerators, on machines of
 * docs/hardware and for budgets from less than a record to most of the model: the room that is set
 * aside is the one that lowering takes, the memory that a plan states is no less than its programs
 * need, what is read for a row or two is not streamed, and the copies that a GPU's driver keeps of
 * streamed weights count as the host's.
 */
#include "lowering/lowering.h"
#include "solver/solver.h"
#include "tests/models/random_model.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

static const struct {
    const char *shape;
    oato_dtype dtype;
} wanted[] = {{"8b", DT_Q4_0}, {"qwen3-8b", DT_Q8_0}, {"qwen3-30b-a3b", DT_Q4_0}};
enum { MODELS = ARRAY_LEN(wanted) };
static struct model *models[MODELS];

/* Of two records, two weights each: alignment, and the padding of parts. */
enum { SLACK = 2 * 2 * 5 * STAGING_ALIGN };

static int setup(void **state)
{
    (void)state;
    for (size_t i = 0; i < MODELS; i++) {
        struct oato_error err = {.text = "no such shape"};
        struct random_model m = random_model_default();
        m.dtype = wanted[i].dtype;
        m.header_only = true;
        m.tokenizer = false;
        if (!random_model_set_shape(&m, wanted[i].shape) ||
            random_model_open(&m, &models[i], &err)) {
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

/* The programs of a plan, as the engine and the virtual clock have them. */
static void programs_of(const struct plan *plan, const struct model *m, const struct problem *p,
                        struct graph *graph, struct lowered *out)
{
    const struct instance *in = &p->instance;
    struct oato_error err = {.text = ""};
    struct placements placements;
    int32_t bound[SOLVER_DEVICES];
    struct lowering_facts facts = {.n_devices = plan->n_devices, .host = in->host};
    for (int32_t d = 0; d < plan->n_devices; d++) {
        bound[d] = d;
        facts.id[d] = plan->devices[d].id;
        facts.streams[d] = true;
        for (int32_t from = 0; from < plan->n_devices; from++)
            facts.reaches[d][from] = in->is_host[d] || in->is_host[from] || in->direct[from][d];
    }
    if (plan_apply(plan, m, graph, &err) ||
        lower_plan(plan, graph, &facts, bound, 0, &placements, out, &err))
        fail_msg("%s", err.text);
    placements_free(&placements);
}

/* Returns the bytes of what the host streams. */
static uint64_t check_streams(const struct plan *plan, const struct graph *g)
{
    uint64_t bytes = 0;
    for (int32_t k = 0; k < plan->n_parts; k++) {
        const struct plan_part *t = &plan->parts[k];
        int32_t i = 0;
        while (strcmp(g->ops[i].name, t->op) != 0)
            i++;
        if (t->home == t->device)
            continue;
        assert_int_equal(g->values[g->ops[i].out[0]].rows, ROWS_TOKENS);
        for (int w = 0; w < g->ops[i].n_weights; w++)
            bytes += (uint64_t)((double)g->ops[i].weight[w]->bytes *
                                part_share(&g->ops[i].op, t->axis, t->begin, t->end));
    }
    return bytes;
}

/* Returns whether the plan streams. */
static bool check_plan(const struct model *m, const struct profile *p,
                       const struct planner_options *o)
{
    struct oato_error err = {.text = ""};
    struct plan plan;
    struct problem *problem;
    struct graph graph;
    struct lowered lowered;
    if (planner_make(m, p, o, &plan, &problem, &err))
        fail_msg("%s", err.text);
    programs_of(&plan, m, problem, &graph, &lowered);
    const int32_t host = problem->instance.host;
    const uint64_t streamed = check_streams(&plan, &graph);
    uint64_t in_file = 0;
    for (uint32_t i = 0; i < lowered.device[host].n_slots; i++)
        if (lowered.device[host].slots[i].use == WEIGHT_LOOKUP) /* read where the file is mapped */
            in_file += lowered.device[host].slots[i].bytes;
    for (int32_t d = 0; d < plan.n_devices; d++) {
        const struct lowered_device *l = &lowered.device[d];
        const bool streams = problem->instance.streams >> d & 1;
        const uint64_t room = streams ? problem->instance.staging[d] : 0;
        const uint64_t margin =
            l->staging_bytes / 24; /* for types that were never prepared there */
        if (room < l->staging_bytes || room > l->staging_bytes + margin + SLACK)
            fail_msg("%s: room for %llu bytes, lowering takes %llu", plan.devices[d].id,
                     (unsigned long long)room, (unsigned long long)l->staging_bytes);
        assert_true(plan.devices[d].planned_bytes <= plan.devices[d].budget_bytes);
        if (plan.devices[d].planned_bytes)
            assert_true(plan.devices[d].planned_bytes >= l->weight_bytes -
                                                             (d == host ? in_file : 0) +
                                                             l->arena_bytes + l->staging_bytes);
    }
    const uint64_t other = lowered.device[host].weight_bytes + streamed - in_file;
    const uint64_t most = plan.devices[host].budget_bytes;
    if (plan.devices[host].planned_bytes + SLACK < (other < most ? other : most))
        fail_msg(
            "%s, %llu MiB of the GPU: the host's weights and copies of them take %llu bytes, the "
            "plan says %llu",
            plan.devices[1].model, (unsigned long long)(o->budgets[0].bytes >> 20),
            (unsigned long long)other, (unsigned long long)plan.devices[host].planned_bytes);
    lowered_free(&lowered);
    graph_free(&graph);
    plan_free(&plan);
    problem_free(problem);
    return streamed;
}

static void staging_is_what_lowering_stages(void **state)
{
    (void)state;
    static const char *const machines[] = {"rtx4090-xeon4314", "h200", "2xrtx3090-ryzen5950x"};
    static const uint64_t budgets[] = {300, 450, 700, 1100, 2500};
    int streamed = 0, least = 0;
    for (size_t k = 0; k < ARRAY_LEN(machines); k++) {
        struct oato_error err;
        struct profile p;
        assert_int_equal(hardware_load(machines[k], &p, NULL, NULL, &err), OATO_OK);
        for (size_t i = 0; i < MODELS * ARRAY_LEN(budgets); i++) {
            const uint64_t mib = budgets[i % ARRAY_LEN(budgets)];
            struct planner_options o;
            planner_options_init(&o);
            o.request.generate = 32;
            o.request.context = 1024;
            o.gap = 1e-2; /* so that no clock ends a search */
            o.budgets[o.n_budgets++] = (struct device_budget){"cuda:0", mib << 20};
            const bool streams = check_plan(models[i / ARRAY_LEN(budgets)], &p, &o);
            streamed += streams;
            least += streams && mib < 500; /* less than the output head and FFN were set aside */
        }
        profile_free(&p);
    }
    print_message("%d plans stream, %d of them in less than 500 MiB\n", streamed, least);
    assert_true(streamed >= 24 && least >= 6);
}

/* 70B in 900 MiB of a 4090: what was set aside for records that are never streamed left nothing. */
static void a_small_budget_streams_the_prompt(void **state)
{
    (void)state;
    struct oato_error err;
    struct random_model m = random_model_default();
    struct model *model;
    struct profile p;
    struct plan plan;
    struct planner_options o;
    m.dtype = DT_Q4_K;
    m.header_only = true;
    m.tokenizer = false;
    assert_true(random_model_set_shape(&m, "70b"));
    assert_int_equal(random_model_open(&m, &model, &err), OATO_OK);
    assert_int_equal(hardware_load("rtx4090-xeon4314", &p, NULL, NULL, &err), OATO_OK);
    planner_options_init(&o);
    o.request.generate = 32;
    o.gap = 1e-2;
    o.budgets[o.n_budgets++] = (struct device_budget){"cuda:0", UINT64_C(900) << 20};
    assert_int_equal(planner_make(model, &p, &o, &plan, NULL, &err), OATO_OK);
    assert_in_range(plan.prefill_ns, 0, UINT64_C(2500000000)); /* on the host alone 57 s */
    plan_free(&plan);
    profile_free(&p);
    model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(staging_is_what_lowering_stages),
        cmocka_unit_test(a_small_budget_streams_the_prompt),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
