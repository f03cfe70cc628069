/*
 * test_baselines.c - baselines cost what their engines make of them, on a machine of docs/hardware:
 * llama.cpp's scheduler computes prompts of the host's layers on the GPU, attention included, for
 * copies of weights and KV that nothing hides; short steps stay where the layers are.
 */
#include "solver/planning_internal.h"
#include "tests/solver/long_8b.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

struct fit {
    struct price price; /* theirs */
    double copied;      /* bytes in prefill: of the weights and KV on the host */
    bool fits;
};

static struct fit fit_of(int32_t prompt, uint64_t bytes)
{
    struct planner_options o;
    struct problem *p;
    struct oato_error err;
    struct fit r = {.copied = 0};
    planner_options_init(&o);
    o.request.prompt = prompt;
    o.request.generate = 64;
    o.request.context = prompt + 64;
    snprintf(o.budgets[0].id, sizeof o.budgets[0].id, "cuda:0");
    o.budgets[0].bytes = bytes;
    o.n_budgets = 1;
    if (problem_create(model, &machine, &o, &p, &err)) {
        fail_msg("%s", err.text);
        return r;
    }
    int32_t *place = calloc((size_t)p->instance.n_units + 1, sizeof *place),
            *scratch = calloc((size_t)p->instance.n_units + 1, sizeof *scratch);
    assert_non_null(place);
    assert_non_null(scratch);
    r.fits = baseline_fit(p, place);
    r.price = baseline_fit_price(p, place, scratch);
    const double steps = request_prefill_total(&p->request).steps, tokens = prompt;
    for (int32_t i = 0; i < p->graph.n_ops; i++) {
        const struct oato_op *op = &p->graph.ops[i].op;
        const struct option *at = instance_option(&p->instance, place, p->unit_of[i]);
        if (at->out[PHASE_DECODE] != p->instance.host || op_weight_use(op) == WEIGHT_LOOKUP)
            continue;
        r.copied += steps * (double)problem_file_bytes(&p->graph.ops[i]);
        if (op->kind == OP_KV_STORE) /* on average half of it is there */
            r.copied += (steps - 1) / 2 * tokens * (double)op_kv_bytes(op, o.request.kv);
    }
    free(place);
    free(scratch);
    problem_free(p);
    return r;
}

/* Beyond what it takes where all fits, prefill is the copies one after the other. */
static void prompts_of_the_hosts_layers_cost_their_copies(void **state)
{
    (void)state;
    double rate = 0;
    for (int32_t i = 0; i < machine.n_links; i++)
        if (machine.devices[machine.links[i].from].is_host)
            rate = machine.links[i].bytes_per_s;
    static const int32_t prompts[] = {512, 30720};
    for (size_t i = 0; i < ARRAY_LEN(prompts); i++) {
        const struct fit large = fit_of(prompts[i], 22 * GIB), small = fit_of(prompts[i], 8 * GIB);
        const double more = (double)(small.price.prefill_ns - large.price.prefill_ns) * 1e-9;
        print_message("%d tokens: %.3f s, of which copies %.3f, by their bytes %.3f\n", prompts[i],
                      (double)small.price.prefill_ns * 1e-9, more, small.copied / rate);
        assert_true(large.fits && small.fits);
        assert_true(small.copied > (double)(6 * GIB));
        assert_true(more > 0.95 * small.copied / rate && more < 1.2 * small.copied / rate);
        assert_true(small.price.decode_ns > 2 * large.price.decode_ns);
    }
}

/* Attention of 27 layers over a long prompt alone takes the processor minutes. */
static void attention_over_spilled_kv_is_not_the_processors(void **state)
{
    (void)state;
    const struct fit fit = fit_of(30720, 4 * GIB);
    print_message("prefill %.1f s\n", (double)fit.price.prefill_ns * 1e-9);
    assert_true(fit.fits && fit.price.prefill_ns < INT64_C(60000000000));
}

static void short_steps_stay_where_the_layers_are(void **state)
{
    (void)state;
    const struct fit few = fit_of(31, 8 * GIB), enough = fit_of(32, 8 * GIB);
    assert_true(few.price.prefill_ns > 0);
    assert_true(enough.price.prefill_ns != few.price.prefill_ns);
    const double jump = (double)enough.price.prefill_ns / (double)few.price.prefill_ns;
    print_message("32 tokens take %.3f times as long as 31\n", jump);
    assert_true(jump > 1.1 || jump < 0.9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_of_the_hosts_layers_cost_their_copies),
        cmocka_unit_test(attention_over_spilled_kv_is_not_the_processors),
        cmocka_unit_test(short_steps_stay_where_the_layers_are),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
