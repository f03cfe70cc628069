/*
 * test_values.c - plans on a device that has values as F16 (sim:values=f16): their logits are near
 * those of the same plans with float32, their arenas are smaller, the clock of the solver's
 * simulation is that of the devices, conversions included, and --deterministic takes no operator
 * that is computed with both.
 */
#include "executor/executor.h"
#include "solver/solver.h"
#include "tests/executor/harness.h"
#include "text/sampler.h"

// clang-format off
#include <math.h>
#include <stdlib.h>
#include <cmocka.h>
// clang-format on

enum { TOKENS = 40, PLANS = 4 };
/* Hundreds of milliseconds for what takes the processor one. */
#define SPEC "vram=64MiB,read=1000TB/s,flops=2M,link=100KB/s,latency=50ms,launch=0s"
static const double flops = 2e6, link_bytes = 1e5, latency_ns = 50e6;

/* The same placement, at random or all of it on the device, with float32 and with F16 there. */
static void plan_pair(struct plan p[2], struct graph fused[2], const struct model *m, int i)
{
    for (int half = 0; half < 2; half++) {
        struct random r = {17 + (uint64_t)i};
        plan_begin(&p[half], m, 1, half ? SPEC ",values=f16" : SPEC);
        plan_fuse_all(&p[half], m, &fused[half]);
        p[half].request.prompt = p[half].request.ubatch = TOKENS;
        p[half].request.generate = 1;
        if (i)
            plan_place_randomly(&p[half], &fused[half], &r);
        else
            plan_on_gpu(&p[half], &fused[half], false);
    }
}

static void plans_free(struct plan p[2], struct graph fused[2])
{
    for (int half = 0; half < 2; half++) {
        plan_free(&p[half]);
        graph_free(&fused[half]);
    }
}

/* Of the distributions of two rows of logits. */
static double divergence(const float *p, const float *q, int32_t n)
{
    return logits_divergence(p, logits_log_sum(p, n), q, logits_log_sum(q, n), n);
}

static uint64_t arena_of(const struct engine *e)
{
    struct engine_stats stats;
    engine_get_stats(e, &stats);
    return stats.device[1].arena_bytes;
}

static void compare(struct model *m, const char *name)
{
    const int32_t vocab = m->shape.vocab;
    int32_t ids[TOKENS];
    double worst = 0, kl = 0;
    fill_ids(ids, TOKENS, vocab, 5);
    for (int i = 0; i < PLANS; i++) {
        struct plan p[2];
        struct graph fused[2];
        float *logits[2];
        uint64_t arena[2];
        plan_pair(p, fused, m, i);
        for (int half = 0; half < 2; half++) {
            struct engine *e = open_engine(m, &p[half], (struct engine_options){.threads = 1});
            logits[half] = logits_of(e, ids, TOKENS);
            arena[half] = arena_of(e);
            engine_close(e);
        }
        plans_free(p, fused);
        const double off = nmse(logits[1], logits[0], (size_t)TOKENS * (size_t)vocab);
        for (int32_t t = 0; t < TOKENS; t++)
            kl = fmax(kl, divergence(logits[0] + (size_t)t * (size_t)vocab,
                                     logits[1] + (size_t)t * (size_t)vocab, vocab));
        worst = fmax(worst, off);
        assert_true(off > 0 && off < 1e-4);
        if (!i) /* what the host reads, the logits, takes both */
            assert_true(arena[1] < arena[0] * 3 / 4);
        free(logits[0]);
        free(logits[1]);
    }
    print_message("%s: NMSE at most %.1e, KL at most %.1e\n", name, worst, kl);
    assert_true(kl < 1e-4);

    model_close(m);
}

static void logits_are_near_those_of_float32(void **state)
{
    (void)state;
    compare(tiny_model(DT_F32, 3), "dense");
    compare(tiny_model_of("qwen3moe", DT_F32, 4), "experts");
    compare(tiny_model_of("qwen35", DT_F32, 5), "states");
}

/* ---------------------------------------------------------------------------------- clocks -- */

static void machine(struct profile *p, const struct plan *plan)
{
    struct oato_error err;
    struct oato_device *d;
    profile_init(p);
    p->devices = arena_alloc(&p->arena, 2, sizeof *p->devices);
    p->links = arena_alloc(&p->arena, 2, sizeof *p->links);
    assert_true(p->devices && p->links);
    for (int32_t i = 0; i < 2; i++) {
        p->devices[p->n_devices++] = (struct profile_device){.id = plan->devices[i].id,
                                                             .kind = plan->devices[i].kind,
                                                             .model = "",
                                                             .spec = "",
                                                             .is_host = !i,
                                                             .read_bytes_per_s = 1e15,
                                                             .flops_per_s = i ? flops : 1e15,
                                                             .data_sheet = true};
        p->links[p->n_links++] = (struct profile_link){
            .from = i, .to = !i, .latency_ns = latency_ns, .bytes_per_s = link_bytes};
    }
    uint64_t runs[OP_KIND_COUNT];
    memset(runs, 0xff, sizeof runs);
    assert_int_equal(device_open("sim:" SPEC ",values=f16", 0, NULL, &d, &err), OATO_OK);
    p->devices[1].runs = runs;
    assert_true(profile_put_values(p, 1, device_values(d)));
    p->devices[1].runs = NULL;
    d->ops->close(d);
}

static double engine_ns(const struct model *m, const struct plan *p)
{
    struct oato_error err;
    struct engine_stats stats;
    int32_t ids[TOKENS], seq;
    fill_ids(ids, TOKENS, m->shape.vocab, 5);
    struct engine *e = open_engine(m, p, (struct engine_options){.threads = 1});
    if (engine_seq_create(e, &seq, &err) ||
        engine_feed(e, seq, ids, TOKENS, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    engine_get_stats(e, &stats);
    engine_close(e);
    return (double)stats.clock_ns;
}

static double simulated_ns(const struct model *m, struct plan *p)
{
    struct oato_error err;
    struct profile of;
    machine(&of, p);
    if (simulation_predict(p, m, &of, &err))
        fail_msg("%s", err.text);
    profile_free(&of);
    return (double)p->prefill_ns;
}

static void the_clock_of_the_solver_has_the_conversions(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_F32, 3);
    for (int i = 0; i < PLANS; i++) {
        struct plan p[2];
        struct graph fused[2];
        plan_pair(p, fused, m, i);
        const double real = engine_ns(m, &p[1]), simulated = simulated_ns(m, &p[1]);
        const double wide = engine_ns(m, &p[0]);
        print_message("plan %d: %.1f ms, with float32 %.1f, simulated %.1f\n", i, real * 1e-6,
                      wide * 1e-6, simulated * 1e-6);
        assert_true(fabs(simulated / real - 1) < 0.01);
        assert_true(real > wide); /* they take time */
        plans_free(p, fused);
    }
    model_close(m);
}

/* ---------------------------------------------------------------------------- determinism -- */

static void what_is_computed_with_both_is_not_deterministic(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_F32, 3);
    for (int half = 0; half < 2; half++) {
        struct plan p;
        struct graph fused;
        plan_begin(&p, m, 1, half ? "values=f16" : "");
        plan_fuse_all(&p, m, &fused);
        for (int32_t i = 0; i < fused.n_ops; i++)
            if (fused.ops[i].op.kind == OP_GATE_UP)
                plan_add_moving(&p, fused.ops[i].name, fused.ops[i].op.n);
        const struct engine_options options = {.deterministic = true, .threads = 1};
        if (half)
            expect_refused(m, &p, &options, OATO_EFILE,
                           "would be computed both as f32 and as f32-f16");
        else
            engine_close(open_engine(m, &p, options));
        graph_free(&fused);
        plan_free(&p);
    }
    model_close(m);
}

/* A machine on which everything is faster there: a plan goes there, unless it is deterministic. */
static void a_deterministic_plan_has_none(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_F32, 3);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        struct planner_options o;
        struct oato_error err;
        struct profile of;
        struct plan like, p;
        plan_begin(&like, m, 1, "");
        machine(&of, &like);
        for (int d = 0; d < 2; d++) {
            of.devices[d].memory_bytes = of.devices[d].free_bytes = UINT64_C(1) << 28;
            of.devices[d].read_bytes_per_s = of.devices[d].flops_per_s = d ? 1e12 : 1e7;
            of.links[d].latency_ns = 10;
            of.links[d].bytes_per_s = 1e12;
        }
        planner_options_init(&o);
        o.request.prompt = o.request.ubatch = TOKENS;
        o.request.generate = 1;
        o.request.context = 64;
        o.request.deterministic = deterministic;
        if (planner_make(m, &of, &o, &p, NULL, &err))
            fail_msg("%s", err.text);
        int there = 0;
        for (int32_t i = 0; i < p.n_parts; i++)
            there += p.parts[i].device == 1;
        assert_int_equal(there > 0, !deterministic);
        plan_free(&p);
        plan_free(&like);
        profile_free(&of);
    }
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_near_those_of_float32),
        cmocka_unit_test(the_clock_of_the_solver_has_the_conversions),
        cmocka_unit_test(what_is_computed_with_both_is_not_deterministic),
        cmocka_unit_test(a_deterministic_plan_has_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
