/*
 * test_run_plan.c - oato-run from outside, by plans for the host and a simulated device: what is
 * measured beside the plan's prediction, and what crosses the link.
 */
#include "planfmt/planfmt.h"
#include "tests/front/run_outside.h"

#include <stdlib.h>
#include <string.h>

/* A plan with these two parts; one without an operator is of that which makes the logits. */
static void save_plan_for(const char *name, const struct plan_part given[2],
                          struct plan_request request)
{
    char path[256];
    struct oato_error err;
    struct model *m = NULL;
    struct plan p;
    struct plan_device devices[2] = {{.id = "cpu:0", .kind = "cpu", .is_host = true},
                                     {.id = "sim:0", .kind = "sim"}};
    struct plan_part parts[2] = {given[0], given[1]};
    snprintf(devices[1].spec, sizeof devices[1].spec, "vram=8MiB,link=1kB/s");
    snprintf(path, sizeof path, "%s/tiny.gguf", run_dir);
    assert_int_equal(model_open(path, &m, &err), OATO_OK);
    for (int32_t i = 0; i < m->graph.n_ops; i++)
        for (int part = 0; part < 2; part++)
            if (!given[part].op && m->graph.ops[i].n_out &&
                m->graph.ops[i].out[0] == m->graph.logits)
                parts[part].op = m->graph.ops[i].name;
    plan_init(&p);
    p.structure_hash = gguf_structure_hash(m->gguf);
    p.devices = devices;
    p.n_devices = 2;
    p.parts = parts;
    p.n_parts = 2;
    p.request = request;
    p.prefill_ns = 34000000000;
    p.decode_ns = 1000000;
    snprintf(path, sizeof path, "%s/%s", run_dir, name);
    if (plan_save(&p, path, &err))
        fail_msg("%s", err.text);
    plan_free(&p);
    model_close(m);
}

static const struct plan_request fine_request = {
    .prompt = 24, .generate = 6, .context = 64, .batch = 1, .ubatch = 32, .kv = DT_F16};

static void save_plan(const char *name, const struct plan_part given[2])
{
    save_plan_for(name, given, fine_request);
}

/* The number behind `key`, the first time that it stands behind `part`. */
static double number_of(const struct text *t, const char *part, const char *key)
{
    const char *at = strstr(t->data, part);
    at = at ? strstr(at, key) : NULL;
    if (at)
        return strtod(at + strlen(key), NULL);
    fail_msg("no %s %s in %s", part, key, t->data);
    return 0;
}

/* Over a link of 1 kB/s go 32768 bytes of the matrix, beside them the input, and then the output of
 * 24 x 128: seconds that nobody waits for. */
static void bench_holds_a_plan_to_its_prediction(void **state)
{
    struct outputs *o = *state;
    /* the first layer's gate and up stream to a simulated device in prefill */
    static const struct plan_part parts[2] = {
        {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_PREFILL, 1, 0},
        {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_DECODE, 0, 0},
    };
    save_plan("tiny.plan", parts);
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --plan tiny.plan -r 1 --json"), 0);
    assert_non_null(strstr(o->out.data, "\"prefill\":{\"tokens\":24,"));
    assert_non_null(strstr(o->out.data, "\"decode\":{\"tokens\":6,"));
    assert_non_null(strstr(o->out.data, "\"batch\":1,\"depth\":24,\"host_idle\":"));
    assert_non_null(strstr(o->out.data, "\"measured\":{\"clock\":\"devices\","));
    const double prefill = number_of(&o->out, "\"measured\"", "\"prefill_ns\":") * 1e-9;
    assert_true(prefill > 45.056 && prefill < 46);
    const double ratio = number_of(&o->out, "\"predicted_over_measured\"", "\"prefill\":");
    assert_true(ratio > 0.999 * 34 / prefill && ratio < 1.001 * 34 / prefill);
    assert_true(number_of(&o->out, "\"predicted_over_measured\"", "\"decode\":") > 0);
    const double allocated = number_of(&o->out, "\"memory\"", "\"allocated_bytes\":");
    assert_true(allocated > number_of(&o->out, "\"memory\"", "\"weight_bytes\":"));
    assert_true(number_of(&o->out, "\"device\":\"sim:0\"", "\"staging_bytes\":") >= 2 * 32768);
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --plan tiny.plan -r 1"), 0);
    assert_non_null(strstr(o->out.data, "predicted / measured  prefill 34000.000 / "));
    assert_non_null(strstr(o->out.data, "  decode 1.000 / "));
    /* of other numbers of tokens nothing was predicted */
    assert_int_equal(
        run(&o->out, &o->err, "bench tiny.gguf --plan tiny.plan -r 1 --prefill 8 -d 0"), 0);
    assert_null(strstr(o->out.data, "34000"));
    assert_non_null(strstr(o->out.data, "(the plan is for --prompt 24 --generate 6 --depth 24"));
    assert_int_equal(run(&o->out, &o->err, "tiny.gguf --plan tiny.plan --dump-program"), 0);
    assert_non_null(strstr(o->out.data, "    0 stream     w0\n"));
}

/* Each token's 64 + 128 numbers take most of a second on the link; or none goes there. */
static void bench_tells_how_long_the_host_waits(void **state)
{
    struct outputs *o = *state;
    for (int device = 0; device < 2; device++) {
        const struct plan_part parts[2] = {
            {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_PREFILL, 1, device},
            {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_DECODE, device, device},
        };
        save_plan("tiny.plan", parts);
        assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --plan tiny.plan -r 1 --json"), 0);
        const double idle = number_of(&o->out, "\"decode\"", "\"host_idle\":");
        assert_true(device ? idle > 0.9 && idle <= 1 : idle > -0.1 && idle < 0.7);
    }
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --plan tiny.plan -r 1"), 0);
    assert_non_null(strstr(o->out.data, ", the host idle for "));
}

static void candidates_cross_the_link_where_they_suffice(void **state)
{
    static const struct {
        const char *args, *key; /* NULL: whole rows */
    } rows[] = {
        {"--temp 0", "top_k/k512/n2"},
        {"", "top_k/k512/n80"},
        {"--temp 1", "top_k/k512/n80"},
        {"--top-k 20 --temp 1 --repeat-penalty 1.1 --repeat-last-n 30", "top_k/k512/n100"},
        {"--temp 1 --top-k 0", NULL},
        {"--repeat-penalty 0.9", NULL},
    };
    static const struct plan_part parts[2] = {
        {NULL, 0, 512, AXIS_ROWS, 1 << PHASE_PREFILL, 1, 1},
        {NULL, 0, 512, AXIS_ROWS, 1 << PHASE_DECODE, 1, 1},
    };
    struct outputs *o = *state;
    save_plan("output.plan", parts);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        assert_int_equal(
            run(&o->out, &o->err, "tiny.gguf --plan output.plan --dump-program %s", rows[i].args),
            0);
        const char *at = strstr(o->out.data, "top_k/");
        const size_t length = rows[i].key ? strlen(rows[i].key) : 0;
        if (rows[i].key ? !at || memcmp(at, rows[i].key, length) != 0 || at[length] != ' '
                        : at != NULL)
            fail_msg("%s: %s", rows[i].args, o->out.data);
        const char *answer = "-p Hello -n 12 --ignore-eos --seed 5";
        assert_int_equal(run(&o->out, &o->err, "tiny.gguf %s %s", answer, rows[i].args), 0);
        char *first = strdup(o->out.data);
        assert_int_equal(run(&o->out, &o->err, "tiny.gguf --plan output.plan -c 512 %s %s", answer,
                             rows[i].args),
                         0);
        assert_string_equal(o->out.data, first);
        free(first);
    }
    assert_int_equal(run(&o->out, &o->err, "bench tiny.gguf --plan output.plan --dump-program"), 0);
    assert_non_null(strstr(o->out.data, "top_k/k512/n2 "));
}

/* What the command line did not say is no usage error. */
static void a_plan_whose_request_cannot_run_is_a_bad_file(void **state)
{
    static const struct plan_part parts[2] = {
        {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_PREFILL, 0, 0},
        {"blk.0.ffn_up", 0, 128, AXIS_ROWS, 1 << PHASE_DECODE, 0, 0},
    };
    struct outputs *o = *state;
    for (int i = 0; i < 6; i++) {
        struct plan_request q = fine_request;
        int32_t *const changed[] = {&q.context, &q.batch, &q.ubatch};
        static const int32_t most[] = {REQUEST_CONTEXT_MAX, REQUEST_BATCH_MAX, REQUEST_UBATCH_MAX};
        *changed[i / 2] = i % 2 ? most[i / 2] + 1 : 0;
        save_plan_for("bad.plan", parts, q);
        assert_int_equal(run(&o->out, &o->err, "tiny.gguf --plan bad.plan -p x -n 1"), 3);
        assert_int_equal(lines(&o->err), 1);
        assert_non_null(strstr(o->err.data, "run oato-plan again"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bench_holds_a_plan_to_its_prediction),
        cmocka_unit_test(bench_tells_how_long_the_host_waits),
        cmocka_unit_test(candidates_cross_the_link_where_they_suffice),
        cmocka_unit_test(a_plan_whose_request_cannot_run_is_a_bad_file),
    };
    return cmocka_run_group_tests_name("oato-run by plans", tests, run_setup, run_teardown);
}
