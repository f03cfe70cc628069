/*
 * test_heads.c - plans that divide layers' attention by KV heads between equal accelerators: four
 * take little more than half of what two take, each keeps its heads and its share of the memory, a
 * plan costs what it said when it is priced again, chance finds nothing better than the bound, and
 * what has no heads to divide stays whole.
 */
#include "solver/hardware.h"
#include "solver/solver.h"
#include "tests/models/random_model.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

/* The machine with two equal GPUs, with so many, which reach each other or do not. */
struct machine {
    struct profile profile, loaded;
    struct profile_device devices[SOLVER_DEVICES];
    struct profile_link links[SOLVER_DEVICES * SOLVER_DEVICES];
};

static void machine_of(struct machine *m, int32_t accelerators, bool reaches)
{
    static const char *const ids[] = {"cuda:0", "cuda:1", "cuda:2", "cuda:3",
                                      "cuda:4", "cuda:5", "cuda:6", "cuda:7"};
    struct oato_error err;
    if (hardware_load("2xrtx3090-ryzen5950x", &m->loaded, NULL, NULL, &err))
        fail_msg("%s", err.text);
    m->profile = m->loaded;
    m->profile.devices = m->devices;
    m->profile.links = m->links;
    m->profile.n_devices = 1 + accelerators;
    m->profile.n_links = 0;
    m->devices[0] = m->loaded.devices[0];
    for (int32_t i = 1; i <= accelerators; i++) {
        m->devices[i] = m->loaded.devices[1];
        m->devices[i].id = ids[i - 1];
        for (int32_t other = 0; other <= accelerators; other++)
            for (int32_t way = 0; way < (other ? reaches && other != i : 2); way++) {
                struct profile_link *l = &m->links[m->profile.n_links++];
                *l = m->loaded.links[0];
                l->from = way ? i : other;
                l->to = way ? other : i;
                l->latency_ns = other ? 6000 : l->latency_ns;
                l->bytes_per_s = other ? 40e9 : l->bytes_per_s;
                l->sync_ns = other ? 1000 : l->sync_ns;
            }
    }
}

static struct model *model_of(const char *name, const char *type)
{
    struct oato_error err;
    struct model *model;
    struct random_model m = random_model_default();
    assert_true(random_model_set_shape(&m, name) && random_model_set_type(&m, type));
    m.header_only = true;
    m.tokenizer = false;
    if (random_model_open(&m, &model, &err))
        fail_msg("%s", err.text);
    return model;
}

static struct planner_options options_of(double time_limit_s)
{
    struct planner_options o;
    planner_options_init(&o);
    o.time_limit_s = time_limit_s;
    return o;
}

static void plan_on(const struct machine *m, const struct model *model,
                    const struct planner_options *o, struct plan *plan)
{
    struct oato_error err;
    if (planner_make(model, &m->profile, o, plan, NULL, &err))
        fail_msg("%s", err.text);
}

/* How many devices keep heads of the layer. */
static int32_t keepers(const struct plan *p, int32_t layer)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_kv; i++)
        n += p->kv[i].layer == layer;
    return n;
}

/* It costs what it said, where it says that it is. */
static void check_again(const struct plan *plan, const struct model *model, const struct machine *m)
{
    struct oato_error err;
    struct problem *p;
    int32_t *place;
    if (problem_of_plan(model, &m->profile, plan, &p, &place, &err))
        fail_msg("%s", err.text);
    assert_int_equal(instance_price(&p->instance, place).objective_ns, plan->objective_ns);
    assert_true(instance_fits(&p->instance, place, NULL));
    problem_free(p);
}

static void four_take_little_more_than_half_of_two(void **state)
{
    (void)state;
    struct model *model = model_of("70b", "Q4_0");
    uint64_t decode_ns[2];
    for (int i = 0; i < 2; i++) {
        struct machine m;
        struct plan plan;
        const int32_t n = i ? 4 : 2;
        machine_of(&m, n, true);
        const struct planner_options o = options_of(0);
        plan_on(&m, model, &o, &plan);
        decode_ns[i] = plan.decode_ns;
        for (int32_t layer = 0; layer < model->graph.n_layers; layer++)
            assert_int_equal(keepers(&plan, layer), n);
        for (int32_t d = 1; d <= n; d++) /* 37.2 GiB, of which the first has embedding and output */
            assert_true(plan.devices[d].planned_bytes < (uint64_t)(39 / n + 2) << 30);
        check_again(&plan, model, &m);
        plan_free(&plan);
        profile_free(&m.loaded);
    }
    print_message("decode: %.2f ms on two, %.2f on four\n", (double)decode_ns[0] * 1e-6,
                  (double)decode_ns[1] * 1e-6);
    assert_true((double)decode_ns[1] <= 0.6 * (double)decode_ns[0]);
    model_close(model);
}

/* By way of the host alone, too. */
static void more_of_them_are_faster_without_links_between_them(void **state)
{
    (void)state;
    struct model *model = model_of("70b", "Q4_0");
    uint64_t before = UINT64_MAX;
    for (int32_t n = 2; n <= 4; n *= 2) {
        struct machine m;
        struct plan plan;
        machine_of(&m, n, false);
        const struct planner_options o = options_of(0);
        plan_on(&m, model, &o, &plan);
        assert_true((double)plan.decode_ns < 0.8 * (double)before);
        check_again(&plan, model, &m);
        before = plan.decode_ns;
        plan_free(&plan);
        profile_free(&m.loaded);
    }
    model_close(model);
}

/* One latent head for all is no head that could be elsewhere. */
static void what_has_no_heads_to_divide_stays_whole(void **state)
{
    (void)state;
    struct model *model = model_of("deepseek-v2-lite", "Q4_0");
    struct machine m;
    struct plan plan;
    machine_of(&m, 4, true);
    struct planner_options o = options_of(5);
    plan_on(&m, model, &o, &plan);
    for (int32_t layer = 0; layer < model->graph.n_layers; layer++)
        assert_int_equal(keepers(&plan, layer), 1);
    plan_free(&plan);
    profile_free(&m.loaded);
    model_close(model);
}

/* Random changes of single units, and of all of a layer's that a team may divide. */
static int64_t best_by_chance(const struct problem *p, uint64_t seed)
{
    enum { STEPS = 5000 };
    const struct instance *in = &p->instance;
    const size_t n = (size_t)in->n_units;
    int32_t *place = calloc(n, sizeof *place), *was = calloc(n, sizeof *was);
    assert_true(place && was && solve_cpu(in, place));
    int64_t best = instance_price(in, place).objective_ns;
    for (int32_t i = 0; i < STEPS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int32_t u = (int32_t)((seed >> 33) % n), to = (int32_t)(seed >> 20 & 0xfff);
        const struct unit *unit = &in->units[u];
        memcpy(was, place, n * sizeof *place);
        place[u] = to % unit->n_options;
        const int16_t now = unit->options[place[u]].team, before = unit->options[was[u]].team;
        for (int32_t v = 0; v < in->n_units && (now || before); v++) {
            const struct unit *other = &in->units[v];
            bool may = v != u && other->layer == unit->layer;
            for (int32_t k = 0; k < other->n_options && may && now; k++)
                if (other->options[k].team == now) {
                    place[v] = k;
                    may = false;
                }
            if (may && !now && other->options[place[v]].team)
                place[v] = to % in->n_devices;
        }
        struct instance with;
        uint64_t staging[SOLVER_DEVICES], rooms[SOLVER_DEVICES];
        const uint32_t streams = instance_streams(in, place, staging, rooms);
        const bool fits =
            instance_with_streams(in, streams, &with) && instance_fits(&with, place, NULL);
        const int64_t ns = fits ? instance_price(in, place).objective_ns : INT64_MAX;
        if (ns > best)
            memcpy(place, was, n * sizeof *place);
        best = ns < best ? ns : best;
    }
    free(place);
    free(was);
    return best;
}

static void chance_beats_no_bound(void **state)
{
    (void)state;
    struct oato_error err;
    struct model *model;
    struct random_model shape = random_model_default();
    int32_t divided = 0;
    shape.layers = 2;
    shape.width = 512;
    shape.ffn = 1024;
    shape.heads = 8;
    shape.kv_heads = 4;
    shape.dtype = DT_Q4_0;
    if (random_model_open(&shape, &model, &err))
        fail_msg("%s", err.text);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct machine m;
        struct plan plan;
        struct problem *p;
        const int32_t n = 2 + (int32_t)(seed % 3);
        machine_of(&m, n, seed & 1);
        for (int32_t d = 0; d <= n; d++) { /* copies take no time beside */
            m.devices[d].read_bytes_per_s /= 1000;
            m.devices[d].flops_per_s /= 1000;
        }
        struct planner_options o = options_of(2);
        o.gap = 1e-2;
        o.request.prompt = o.request.ubatch = 16;
        for (int32_t d = 0; d < n; d++) {
            struct device_budget *b = &o.budgets[o.n_budgets++];
            snprintf(b->id, sizeof b->id, "cuda:%c", (char)('0' + d));
            b->bytes = (4 + seed) << 20;
        }
        plan_on(&m, model, &o, &plan);
        if (problem_create(model, &m.profile, &o, &p, &err))
            fail_msg("%s", err.text);
        const int64_t by_chance = best_by_chance(p, seed);
        for (int32_t layer = 0; layer < 2; layer++)
            divided += keepers(&plan, layer) > 1;
        print_message("seed %d: bound %.3f ms, plan %.3f, by chance %.3f\n", (int)seed,
                      (double)plan.bound_ns / 1e6, (double)plan.objective_ns / 1e6,
                      (double)by_chance / 1e6);
        assert_true(plan.bound_ns <= (uint64_t)by_chance);
        check_again(&plan, model, &m);
        problem_free(p);
        plan_free(&plan);
        profile_free(&m.loaded);
    }
    assert_true(divided > 0);
    model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(four_take_little_more_than_half_of_two),
        cmocka_unit_test(more_of_them_are_faster_without_links_between_them),
        cmocka_unit_test(what_has_no_heads_to_divide_stays_whole),
        cmocka_unit_test(chance_beats_no_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
