/*
 * test_doubts.c - measurements that contradict each other are made again, and what still does is
 * marked: rows that read memory faster than their device can, overheads that only hold beside
 * others.
 */
#include "profiler/profiler_internal.h"
#include "tests/profiler/profiler_testing.h"

enum { WIDTH = 1024 };

struct scene {
    struct rig rig;
    struct model *model;
    struct op_set set;
    struct profile profile;
    struct profiler_options options;
};

/* A profile of cpu:0 that reads so fast, and one row for a matrix of the model. */
static void begin(struct scene *s, double read_bytes_per_s, double median_ns)
{
    char path[128];
    struct oato_error err;
    const struct device_options one = {.threads = 1};
    memset(s, 0, sizeof *s);
    s->options.quick = true;
    if (model_open(make_model(path, "wide.gguf", WIDTH, DT_Q8_0, false), &s->model, &err) ||
        device_open("cpu", 0, &one, &s->rig.device, &err) ||
        op_set_collect(&s->model->graph, DT_F16, &s->set, &err))
        fail_msg("%s", err.text);
    s->rig.device->ops->info(s->rig.device, &s->rig.info);
    s->rig.cache_bytes = 4 << 20;
    profile_init(&s->profile);
    s->profile.devices = arena_alloc(&s->profile.arena, 1, sizeof *s->profile.devices);
    s->profile.n_devices = 1;
    s->profile.devices[0] = (struct profile_device){
        .id = "cpu:0", .kind = "cpu", .is_host = true, .read_bytes_per_s = read_bytes_per_s};
    for (int32_t i = 0; i < s->set.n; i++) {
        const struct op_point one_row = {1, 1, 0, 0};
        struct profile_row row = {.op = s->set.cases[i].op, .supported = true, .numerics = ""};
        if (row.op.kind != OP_MUL_MAT || row.op.k != WIDTH || row.op.n != WIDTH)
            continue;
        row.size = op_point_size(&row.op, &one_row);
        row.prepared_bytes = (uint64_t)op_bytes(&row.op, &row.size);
        row.median_ns = median_ns;
        assert_true(profile_put(&s->profile, &row));
    }
    assert_int_equal(s->profile.n_rows, 1);
}

static void end(struct scene *s)
{
    profile_free(&s->profile);
    op_set_free(&s->set);
    s->rig.device->ops->close(s->rig.device);
    model_close(s->model);
}

static int32_t settle(struct scene *s, int32_t *again)
{
    struct oato_error err;
    int32_t n;
    if (doubts_settle(&s->rig, &s->profile, &s->set, &s->options, s->model->shape.context_length,
                      &n, again, &err))
        fail_msg("%s", err.text);
    return n;
}

static void a_rate_below_what_rows_read_is_measured_again(void **state)
{
    (void)state;
    struct scene s;
    int32_t again;
    begin(&s, 1e6, 1e6); /* 1 MiB in 1 ms: 1 GB/s, which any memory has */
    assert_int_equal(settle(&s, &again), 0);
    assert_int_equal(again, 0);
    assert_true(s.profile.devices[0].read_bytes_per_s > 1e9);
    assert_false(s.profile.rows[0].contradicts);
    assert_true(s.profile.rows[0].median_ns > 0.9e6); /* the row was right */
    end(&s);
}

static void a_row_that_is_too_fast_is_measured_again(void **state)
{
    (void)state;
    struct scene s;
    int32_t again;
    begin(&s, 1e15, 1e-3); /* as fast as no memory is, but a row of 1e18 bytes/s is faster still */
    assert_int_equal(settle(&s, &again), 0);
    assert_int_equal(again, 1);
    assert_true(s.profile.rows[0].median_ns > 1000);
    assert_true(s.profile.rows[0].repeats > 0);
    end(&s);
}

static void what_cannot_be_measured_again_is_marked(void **state)
{
    (void)state;
    struct scene s;
    int32_t again;
    begin(&s, 1e15, 1e-3);
    s.set.n = 0; /* the row is of another model */
    assert_int_equal(settle(&s, &again), 1);
    assert_int_equal(again, 0);
    assert_true(s.profile.rows[0].contradicts);
    s.profile.rows[0].median_ns = 1e6; /* and the mark goes when it is right */
    assert_int_equal(settle(&s, &again), 0);
    assert_false(s.profile.rows[0].contradicts);
    s.profile.rows[0].median_ns = 1e-3;
    s.rig.model_bytes = 4 << 20; /* all of the model stays in the cache */
    assert_int_equal(settle(&s, &again), 0);
    end(&s);
}

static void an_overhead_that_only_holds_beside_others_is_seen(void **state)
{
    (void)state;
    static const struct {
        double mean_ms[3];
        bool beside;
    } cases[] = {{{1.05, 1.04, 1.06}, false},
                 {{1.05, 1.9, 1.04}, false}, /* the others tell what it takes */
                 {{1.3, 1.9, 1.04}, true},
                 {{1.3, 1.31, 1.3}, true}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct rig rig = {.declared = false};
        struct layers_times t = {.n = 3, .together_ns = 1.02e6};
        t.last[LAYERS_DECODE] = (struct layers_time){.sum_ns = 1e6, .records = 100};
        for (int k = 0; k < t.n; k++)
            t.mean_ns[LAYERS_DECODE][k] = cases[i].mean_ms[k] * 1e6;
        assert_int_equal(layers_beside_others(&rig, &t), cases[i].beside);
        rig.declared = true;
        assert_false(layers_beside_others(&rig, &t));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rate_below_what_rows_read_is_measured_again),
        cmocka_unit_test(a_row_that_is_too_fast_is_measured_again),
        cmocka_unit_test(what_cannot_be_measured_again_is_marked),
        cmocka_unit_test(an_overhead_that_only_holds_beside_others_is_seen),
    };
    return cmocka_run_group_tests(tests, folder_create, folder_remove);
}
