/*
 * test_spans.c - plans for a device that compiles spans: rows cost as the functions have them, a
 * call is paid for once a span, so that a layer goes there whole or not at all, and what promises
 * no bits is no part of a deterministic plan.
 */
#include "solver/planning_internal.h"
#include "solver/solver.h"

#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"
#include "tests/solver/solver_price.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

static const struct oato_op matrix = {.kind = OP_MUL_MAT, .dtype = DT_Q4_0, .k = 64, .n = 128};

/* A device whose functions have 1, 16 or 64 rows: no price lies between these. */
static void rows_count_in_steps_where_functions_are_compiled(void **state)
{
    (void)state;
    struct profile_device devices[1] = {{.id = "sim:0",
                                         .kind = "sim",
                                         .spans = true,
                                         .rows = {1, 16, 64},
                                         .unit_overhead_ns = 1000,
                                         .read_bytes_per_s = 1e9,
                                         .flops_per_s = 1e9}};
    struct profile_row rows[] = {
        {.op = matrix, .size = {.rows = 1, .seqs = 1}, .supported = true, .median_ns = 100},
        {.op = matrix, .size = {.rows = 16, .seqs = 1}, .supported = true, .median_ns = 200},
        {.op = matrix, .size = {.rows = 64, .seqs = 1}, .supported = true, .median_ns = 500}};
    const struct profile p = {.devices = devices, .n_devices = 1, .rows = rows, .n_rows = 3};
    static const struct {
        int32_t rows;
        double ns;
        int calls;
    } known[] = {{1, 100, 1},  {2, 200, 1},  {16, 200, 1}, {17, 500, 1},
                 {64, 500, 1}, {65, 600, 2}, {80, 700, 2}, {200, 1700, 4}};
    struct cost_source *c;
    struct oato_error err;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++)
        rows[i].numerics = "f32.sim";
    assert_int_equal(cost_create(&p, NULL, &c, &err), OATO_OK);
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        const struct op_size size = {.rows = known[i].rows, .seqs = 1};
        assert_true(cost_of_op(c, 0, &matrix, &size).ns == known[i].ns);
        assert_true(unit_cost(c, 0, known[i].rows) == 1000.0 * known[i].calls);
    }
    assert_true(unit_cost(c, 0, 0) == 0);
    assert_true(cost_device(c, 0).no_class); /* decode's rows are a library's */
    cost_free(c);
}

/* cpu:0, and sim:0 that runs faster what may be in a span, and nothing else. */
static void spans_profile(const struct model *m, double unit_ns, struct profile *p)
{
    static const struct fixture_options options = {
        .sim_speed = 20, .link_latency_ns = 200, .scale = 1, .fused_factor = 0.9};
    assert_true(fixture_profile(m, &options, p));
    struct profile_device *d = &p->devices[1];
    d->spans = true;
    d->rows[0] = 1;
    d->rows[1] = 8;
    d->rows[2] = 512;
    d->unit_overhead_ns = unit_ns;
    for (int32_t i = 0; i < p->n_rows; i++) {
        struct profile_row *r = &p->rows[i];
        r->supported = r->supported && (r->device != 1 || op_spans(&r->op));
        if (r->device == 1)
            r->numerics = "f32.sim";
    }
}

/* How many operators of decode are on the device, and in how many runs of neighbours. */
static int32_t placed_on(const struct model *m, const struct profile *p, bool deterministic,
                         int32_t *runs)
{
    struct oato_error err;
    struct planner_options o;
    struct plan plan = {0};
    struct graph g = {0};
    planner_options_init(&o);
    o.request.prompt = 100;
    o.request.generate = 50;
    o.request.context = 1024;
    o.request.ubatch = 64;
    o.request.deterministic = deterministic;
    o.time_limit_s = 0;
    if (planner_make(m, p, &o, &plan, NULL, &err) || plan_apply(&plan, m, &g, &err))
        fail_msg("%s", err.text);
    int32_t n = 0;
    *runs = 0;
    bool before = false;
    for (int32_t i = 0; i < g.n_ops; i++) {
        bool here = false;
        for (int32_t k = 0; k < plan.n_parts; k++)
            here = here || (!strcmp(plan.parts[k].op, g.ops[i].name) && plan.parts[k].device == 1 &&
                            plan.parts[k].phases >> PHASE_DECODE & 1);
        n += here;
        *runs += here && !before;
        before = here;
    }
    const struct price price = solver_price(m, p, &plan);
    assert_true(price.decode_ns > 0 && plan.decode_ns > 0);
    graph_free(&g);
    plan_free(&plan);
    return n;
}

static void layers_go_there_whole_or_not_at_all(void **state)
{
    (void)state;
    struct oato_error err;
    struct random_model shape = random_model_default();
    struct model *m;
    struct profile p;
    int32_t runs;
    shape.layers = 4;
    shape.width = 512;
    shape.ffn = 1024;
    shape.context = 2048;
    shape.dtype = DT_Q4_0;
    if (random_model_open(&shape, &m, &err))
        fail_msg("%s", err.text);
    spans_profile(m, 3000, &p);
    /* nothing is cut out between attention of a layer and of the next one; what is behind the
     * selection of rows is a run, too */
    assert_true(placed_on(m, &p, false, &runs) > 4 * shape.layers);
    assert_in_range(runs, 1, shape.layers + 2);
    assert_int_equal(placed_on(m, &p, true, &runs), 0); /* decode is a library's, too */
    profile_free(&p);
    spans_profile(m, 1e9, &p);
    assert_int_equal(placed_on(m, &p, false, &runs), 0);
    profile_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_count_in_steps_where_functions_are_compiled),
        cmocka_unit_test(layers_go_there_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
