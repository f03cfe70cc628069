/*
 * Times at several shares of active neurons: a profile has them for models whose neurons can be
 * silent, and for others when they are asked for; the cost model finds what lies between them, and
 * oato-plan --sparse auto skips neurons where they say that it pays, and nowhere else.
 */
#include "lowering/lowering.h"
#include "profiler/profiler_internal.h"
#include "solver/cost_internal.h"
#include "solver/solver.h"

#include "tests/profiler/profiler_testing.h"
#include "tests/solver/power_law.h"

#include <math.h>

enum { WIDTH = 128, NEURONS = 640, LAYERS = 2 };
/* No launches, so that times are proportional to bytes. */
#define SIM "sim:vram=64MiB,read=1GB/s,flops=1T,link=10GB/s,latency=20us,launch=0us"

static struct model *open_relu(const char *keys)
{
    struct oato_error err;
    struct model *m = NULL;
    struct random_model r = random_model_default();
    r.layers = LAYERS;
    r.width = WIDTH;
    r.ffn = NEURONS;
    r.dtype = DT_Q8_0;
    r.vocab = 320;
    r.context = 64;
    r.keys = keys;
    r.tokenizer = false;
    if (random_model_open(&r, &m, &err))
        fail_msg("%s", err.text);
    return m;
}

/* Of both devices, once for all tests: with all that can be asked for. */
static const struct profile *measured(const struct model *m)
{
    static struct profile p;
    const struct profiler_options o = {.devices = "cpu," SIM,
                                       .kv = DT_F16,
                                       .quick = true,
                                       .threads = 1,
                                       .contexts = {64},
                                       .n_contexts = 1,
                                       .sparse = true};
    struct oato_error err;
    struct profiler_report report;
    if (!p.n_rows && (profiler_begin(NULL, false, &p, NULL, NULL, &err) ||
                      profiler_measure(&p, m, &o, NULL, NULL, &report, &err)))
        fail_msg("%s", err.text);
    return &p;
}

static int32_t sparse_rows(const struct profile *p)
{
    int32_t n = 0;
    for (int32_t i = 0; i < p->n_rows; i++)
        n += p->rows[i].op.sparse != SPARSE_OFF;
    return n;
}

static const struct oato_op gate_up = {
    .kind = OP_GATE_UP, .dtype = DT_Q8_0, .k = WIDTH, .n = NEURONS, .sparse = SPARSE_ABOVE};
static const struct oato_op listed = {
    .kind = OP_GATE_UP, .dtype = DT_Q8_0, .k = WIDTH, .n = NEURONS, .sparse = SPARSE_PREDICT};
static const struct oato_op down = {
    .kind = OP_MUL_MAT, .dtype = DT_Q8_0, .k = NEURONS, .n = WIDTH, .sparse = SPARSE_ABOVE};

static double cost(const struct cost_source *c, int32_t device, const struct oato_op *op,
                   int active)
{
    const struct op_size size = {.rows = 1, .seqs = 1, .active = active};
    const struct op_cost r = cost_of_op(c, device, op, &size);
    assert_false(r.estimate);
    return r.ns;
}

/* What sim declares is known: all of gate and of the rest the share of active neurons. */
static void assert_density(const struct cost_source *c, int32_t sim)
{
    const double up = cost(c, sim, &gate_up, NEURONS), all = cost(c, sim, &down, NEURONS);
    for (int percent = 10; percent <= 100; percent += 15) {
        const double share = percent / 100.0;
        const int active = NEURONS * percent / 100;
        assert_true(fabs(cost(c, sim, &gate_up, active) - up * (1 + share) / 2) < 0.02 * up);
        assert_true(fabs(cost(c, sim, &down, active) - all * share) < 0.02 * all);
        assert_true(fabs(cost(c, sim, &listed, active) - up * share) < 0.02 * up);
    }
}

/* Layers that a plan skips neurons of when the sparse operators take so many times as long. */
static int32_t layers_skipped(const struct model *m, const struct profile *like, double factor)
{
    struct profile scaled = *like, *p = &scaled;
    struct oato_error err;
    struct power_law law = power_law_default();
    struct planner_options o;
    struct neurons n;
    struct plan plan;
    planner_options_init(&o);
    o.request.prompt = 4;
    o.request.generate = 32;
    o.request.context = 64;
    if (power_law_neurons(m->gguf, &law, &n, &err))
        fail_msg("%s", err.text);
    o.neurons = &n;
    p->rows = calloc((size_t)p->n_rows, sizeof *p->rows);
    assert_non_null(p->rows);
    memcpy(p->rows, like->rows, (size_t)p->n_rows * sizeof *p->rows);
    for (int32_t i = 0; i < p->n_rows; i++) {
        struct profile_row *row = &p->rows[i];
        row->median_ns *= row->op.sparse ? factor : 1;
        if (row->op.kind == OP_GATE_UP && !row->op.sparse)
            row->median_ns = 500; /* always fused, however busy the machine was */
    }
    if (planner_make(m, p, &o, &plan, NULL, &err))
        fail_msg("%s", err.text);
    const int32_t skipped = plan.n_sparse;
    plan_free(&plan);
    neurons_free(&n);
    free(p->rows);
    return skipped;
}

static void silent_neurons_are_timed_and_the_times_decide(void **state)
{
    (void)state;
    struct oato_error err;
    struct cost_source *c;
    struct model *m = open_relu("feed_forward_activation=relu");
    const struct profile *p = measured(m);
    /* a context of 64 has no long prompts, which would have rows without lists */
    assert_int_equal(sparse_rows(p), 2 * (5 + 1) * (3 + 3 + 0));
    assert_int_equal(cost_create(p, NULL, &c, &err), OATO_OK);
    assert_density(c, profile_device_index(p, "sim:0"));
    assert_true(cost(c, 0, &gate_up, NEURONS / 10) > 0);
    cost_free(c);
    assert_int_equal(layers_skipped(m, p, 0.01), LAYERS);
    assert_int_equal(layers_skipped(m, p, 1e4), 0);
    model_close(m);
}

static void others_are_timed_when_asked(void **state)
{
    (void)state;
    struct op_set set;
    struct oato_error err;
    for (int asked = 0; asked < 3; asked++) {
        struct model *m = open_relu(asked == 2 ? "feed_forward_activation=relu" : NULL);
        int32_t n = 0, inputs = 0;
        assert_int_equal(op_set_collect(&m->graph, DT_F16, &set, &err), OATO_OK);
        assert_int_equal(op_set_add_sparse(&m->graph, asked == 1, NULL, &set, &err), OATO_OK);
        for (int32_t i = 0; i < set.n; i++)
            n += set.cases[i].op.sparse != SPARSE_OFF;
        for (int32_t i = 0; i < set.n; i++)
            inputs += set.cases[i].op.kind == OP_MUL_MAT && set.cases[i].op.sparse;
        /* gate_up; down; q and o, k and v, gate and up by themselves */
        assert_int_equal(n, asked == 2 ? 2 : asked ? 5 : 0);
        assert_int_equal(inputs, asked == 2 ? 1 : asked ? 4 : 0);
        op_set_free(&set);
        model_close(m);
    }
}

static bool has(const struct op_set *s, const char *key)
{
    struct oato_op op;
    struct op_size size;
    bool found = false;
    assert_true(oato_op_parse(key, &op, &size));
    for (int32_t i = 0; i < s->n && !found; i++)
        found = oato_op_same(&s->cases[i].op, &op);
    return found;
}

/* Lists by a sidecar's predictors are timed without being asked for. */
static void lists_are_timed_where_there_are_predictors(void **state)
{
    (void)state;
    static const char *const keys[] = {"gate_up/Q8_0/k128/n640/z2",
                                       "gate_up/Q8_0/k128/n640/z3",
                                       "mul_mat/Q8_0/k128/n32",
                                       "mul_mat/Q8_0/k32/n640",
                                       "activate/k32",
                                       "active/k640"};
    struct gguf_tensor first = {.dtype = DT_Q8_0, .n_dims = 2, .ne = {WIDTH, 32, 1, 1}},
                       second = {.dtype = DT_Q8_0, .n_dims = 2, .ne = {32, NEURONS, 1, 1}};
    const struct neurons_predictor predictor = {.down = &first, .up = &second};
    struct neurons_layer layers[LAYERS] = {{.n_ff = NEURONS, .predictor = &predictor},
                                           {.n_ff = NEURONS}};
    const struct neurons n = {.layers = layers, .n_layers = LAYERS};
    struct oato_error err;
    struct op_set set;
    struct model *m = open_relu("feed_forward_activation=relu");
    for (int with = 0; with < 2; with++) {
        assert_int_equal(op_set_collect(&m->graph, DT_F16, &set, &err), OATO_OK);
        assert_int_equal(op_set_add_sparse(&m->graph, false, with ? &n : NULL, &set, &err),
                         OATO_OK);
        for (size_t i = 0; i < ARRAY_LEN(keys); i++)
            assert_true(has(&set, keys[i]) == with);
        op_set_free(&set);
    }
    model_close(m);
}

/* A sidecar that knows of each matrix how large its inputs are. */
static void count_inputs(const struct model *m, struct neurons *n)
{
    static float quantiles[NEURONS_QUANTILES];
    neurons_init(n);
    n->structure_hash = gguf_structure_hash(m->gguf);
    n->magnitudes = arena_alloc(&n->arena, (size_t)m->graph.n_ops, sizeof *n->magnitudes);
    for (int i = 0; i < NEURONS_QUANTILES; i++)
        quantiles[i] = (float)i / 100;
    for (int32_t i = 0; i < m->graph.n_ops; i++) {
        const struct graph_op *o = &m->graph.ops[i];
        if (!sparse_takes_inputs(o))
            continue;
        char name[64];
        snprintf(name, sizeof name, "%.*s.in",
                 (int)(strlen(o->weight[0]->name) - strlen(".weight")), o->weight[0]->name);
        n->magnitudes[n->n_magnitudes++] = (struct neurons_magnitudes){
            .name = arena_strndup(&n->arena, name, strlen(name)), .quantiles = quantiles};
    }
}

static bool skips_inputs(const struct plan *p, const char *op)
{
    for (int32_t i = 0; i < p->n_inputs; i++)
        if (!strncmp(p->inputs[i].tensor, op, strlen(op)))
            return true;
    return false;
}

static void skipped_inputs_are_priced_as_measured(void **state)
{
    (void)state;
    struct oato_error err;
    struct model *m = open_relu("feed_forward_activation=relu");
    struct planner_options o;
    struct neurons n;
    struct plan plan;
    int32_t checked = 0;
    count_inputs(m, &n);
    planner_options_init(&o);
    o.request = (struct plan_request){
        .prompt = 4, .generate = 32, .context = 64, .batch = 1, .ubatch = 4, .kv = DT_F16};
    o.neurons = &n;
    o.sparse = (struct sparse_choice){.given = true, .skips_inputs = true, .input = 0.5f};
    o.whole_only = true;
    if (planner_make(m, measured(m), &o, &plan, NULL, &err))
        fail_msg("%s", err.text);
    for (int32_t i = 0; i < plan.n_costs; i++) {
        if (!skips_inputs(&plan, plan.costs[i].op))
            continue;
        assert_false(plan.costs[i].estimate);
        checked++;
    }
    assert_int_equal(plan.n_inputs, 7 * LAYERS);
    assert_true(checked >= plan.n_inputs);
    plan_free(&plan);
    neurons_free(&n);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silent_neurons_are_timed_and_the_times_decide),
        cmocka_unit_test(others_are_timed_when_asked),
        cmocka_unit_test(lists_are_timed_where_there_are_predictors),
        cmocka_unit_test(skipped_inputs_are_priced_as_measured),
    };
    return cmocka_run_group_tests(tests, folder_create, folder_remove);
}
