/*
 * test_cli_context.c - the largest context that oato-plan finds, small ones, and workloads.
 */
#include "planfmt/planfmt.h"
#include "tests/models/random_model.h"
#include "tests/pace.h"
#include "tests/solver/cli_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static int setup(void **state)
{
    (void)state;
    cli_begin();
    cli_save_model("m.gguf", "llama", 64);
    cli_save_profile("p.yaml", 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return cli_end();
}

static int context_of(const char *name)
{
    struct plan p;
    cli_load_plan(name, &p);
    const int context = p.request.context;
    plan_free(&p);
    return context;
}

static double speed_of(const char *name)
{
    struct plan p;
    cli_load_plan(name, &p);
    const double speed = 1e9 * p.request.batch / (double)p.decode_ns;
    plan_free(&p);
    return speed;
}

/* Of a plan of the larger model, at the last position of its context. */
static double speed_when_full(const char *name)
{
    char text[128], line[256];
    unsigned long long ns = 0;
    snprintf(text, sizeof text, "points: [{prompt: 0, generate: 1, depth: %d}]",
             context_of(name) - 1);
    cli_write_bytes("full.yaml", text, strlen(text));
    snprintf(line, sizeof line,
             "show %s -m larger.gguf --hardware rtx3060-laptop --workload full.yaml --json", name);
    cli_expect_json(line, 0);
    const char *points = strstr(cli_out, "\"points\":");
    const char *decode = points ? strstr(points, "\"decode_ns\":") : NULL;
    assert_non_null(decode);
    assert_int_equal(sscanf(decode, "\"decode_ns\":%llu", &ns), 1);
    return 1e9 / (double)ns;
}

/* The plan's context is planned for; one page more is not. */
static void expect_largest(const char *options, int context)
{
    char line[256];
    snprintf(line, sizeof line, "m.gguf " REQUEST "%s -c %d -o probe.plan", options, context);
    cli_expect(line, 0, NULL);
    snprintf(line, sizeof line, "m.gguf " REQUEST "%s -c %d -o probe.plan", options, context + 64);
    cli_expect(line, 4, "missing");
}

/* Models say what they like: a plan is of no more than oato-run takes. */
static void the_largest_context_is_one_that_runs(void **state)
{
    (void)state;
    struct random_model m = random_model_default();
    struct oato_error err;
    char path[160];
    m.layers = 4;
    m.dtype = DT_Q8_0;
    m.context = 1 << 30;
    cli_path("endless.gguf", path, sizeof path);
    if (random_model_save(&m, path, &err))
        fail_msg("%s", err.text);
    cli_expect("endless.gguf " REQUEST "--maximize context -o c.plan", 0, NULL);
    assert_true(context_of("c.plan") <= REQUEST_CONTEXT_MAX);
}

static void the_largest_context_is_found(void **state)
{
    (void)state;
    /* trained for 512 positions a sequence */
    cli_expect("m.gguf " REQUEST "--maximize context -o c.plan", 0, NULL);
    assert_int_equal(context_of("c.plan"), 512);
    assert_non_null(
        strstr(cli_err, "largest context 512; bound: the model was trained on sequences of 512"));
    cli_expect("m.gguf " REQUEST "--maximize context --batch 4 -o c.plan", 0, NULL);
    assert_int_equal(context_of("c.plan"), 2048);

    int before = 1 << 20;
    static const char *const budgets[] = {"1100KiB", "1000KiB", "850KiB"};
    for (size_t i = 0; i < ARRAY_LEN(budgets); i++) {
        char options[128], line[256];
        snprintf(options, sizeof options, "--devices cpu:0 --budget cpu:0=%s", budgets[i]);
        snprintf(line, sizeof line, "m.gguf " REQUEST "%s --maximize context -o c.plan", options);
        cli_expect(line, 0, NULL);
        const int context = context_of("c.plan");
        if (context < 512) {
            assert_non_null(strstr(cli_err, "missing"));
            expect_largest(options, context);
        }
        assert_true(context % 64 == 0 && context <= before);
        before = context;
    }
    assert_true(before < 512);
    cli_expect("m.gguf " REQUEST
               "--devices cpu:0 --budget cpu:0=64KiB --maximize context -o n.plan",
               4, "no plan holds even the request's own 48 tokens");
    cli_expect_json("m.gguf " REQUEST "--maximize context --json -o c.plan", 0);
}

/* A model for a real machine, whose KV competes with its weights for the GPU. */
static void save_larger_model(void)
{
    struct random_model m = random_model_default();
    struct oato_error err;
    char path[160];
    m.layers = 4;
    m.width = 1024;
    m.ffn = 4096;
    m.heads = 16;
    m.kv_heads = 16;
    m.context = 65536;
    m.dtype = DT_Q4_0;
    m.header_only = true;
    m.tokenizer = false;
    cli_path("larger.gguf", path, sizeof path);
    if (random_model_save(&m, path, &err))
        fail_msg("%s", err.text);
}

#define LARGER                                                                                     \
    "larger.gguf --hardware rtx3060-laptop --budget cuda:0=200MiB --prompt 64 -n 32 --ubatch 512 "

static void more_speed_is_less_context(void **state)
{
    (void)state;
    char line[256];
    if (pace_is_slow())
        skip(); /* many searches of the whole program */
    save_larger_model();
    cli_expect(LARGER "-c 128 -o c.plan", 0, NULL);
    const double fastest = speed_of("c.plan");
    cli_expect(LARGER "--maximize context -o c.plan", 0, NULL);
    const double slowest = speed_of("c.plan");
    const int most = context_of("c.plan");
    int before = most;
    assert_true(slowest < 0.9 * fastest);
    for (int i = 1; i < 4; i += 2) {
        const double want = slowest + (fastest - slowest) * i / 4;
        snprintf(line, sizeof line, LARGER "--maximize context --at-least %.3f -o c.plan", want);
        cli_expect(line, 0, NULL);
        const bool bound = strstr(cli_err, "bound: decode would be");
        const int context = context_of("c.plan");
        assert_true(speed_when_full("c.plan") >= want * 0.999);
        assert_true(speed_of("c.plan") >= want * 0.999);
        assert_true(context <= before);
        before = context;
        if (context == most)
            continue;
        assert_true(bound);
        /* and so it is with a page more */
        snprintf(line, sizeof line,
                 LARGER "--minimize time-per-token -c %d --prompt 0 --generate 1 --depth %d -o "
                        "probe.plan",
                 context + 64, context + 63);
        cli_expect(line, 0, NULL);
        assert_true(speed_of("probe.plan") < want);
    }
    assert_true(before < most);
    snprintf(line, sizeof line, LARGER "--maximize context --at-least %.3f -o n.plan",
             fastest * 10);
    cli_expect(line, 4, "decode would be");
    cli_expect("m.gguf " REQUEST "--maximize speed", 2, "is not context");
    cli_expect("m.gguf " REQUEST "--at-least 5", 2, "--maximize context");
    cli_expect("m.gguf " REQUEST "--maximize context --at-least fast", 2, "tokens/s");
}

/* ---------------------------------------------------------------------------- dispersion --- */

/* A request of the default's shape is made for a context that is chosen alone, and networks come in
 * bits and bytes. */
static void small_contexts_and_rates_in_bits(void **state)
{
    (void)state;
    cli_expect("m.gguf -p p.yaml -c 64 -o c.plan", 0, NULL);
    assert_non_null(strstr(cli_out, "tokens on average, context 64"));
    assert_non_null(strstr(cli_out, "\n16 + 16 tokens behind 32 "));
    cli_expect("m.gguf -p p.yaml -c 64 --prompt 60 --generate 8 -o c.plan", 2, "--context 68");
    cli_expect("m.gguf -p p.yaml " REQUEST_SIZES
               " --ranks 2 --hosts 2 --split tensor --network 10Gb/s -o n.plan",
               0, NULL);
    static const char *const same[] = {"10Gbit/s", "10Gbps", "1250MB/s", "1.25GB/s"};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        char line[160];
        snprintf(line, sizeof line,
                 "m.gguf -p p.yaml " REQUEST_SIZES
                 " --ranks 2 --hosts 2 --split tensor --network %s -o o.plan",
                 same[i]);
        cli_expect(line, 0, NULL);
        cli_expect("diff n.plan o.plan", 0, NULL);
    }
}

static void plans_are_for_workloads(void **state)
{
    (void)state;
    static const char two[] =
        "points: [{prompt: 30, generate: 9}, {prompt: 5, generate: 3, depth: 99}]";
    static const char bad[] = "points: [{prompt: 30}]";
    cli_write_bytes("w.yaml", two, strlen(two));
    cli_write_bytes("bad.yaml", bad, strlen(bad));
    cli_expect("m.gguf -p p.yaml -c 256 --workload w.yaml -o w.plan", 0, NULL);
    assert_non_null(strstr(cli_out, "\n5 + 3 tokens behind 99 "));
    cli_expect("m.gguf -p p.yaml -c 256 --workload rag --minimize ttft -o r.plan", 0, NULL);
    cli_expect("diff w.plan r.plan", 1, NULL);
    assert_non_null(strstr(cli_out, "request 1: 30 + 9 tokens, "));
    cli_expect("show w.plan", 0, NULL);
    assert_null(strstr(cli_out, "regret"));
    cli_expect("show w.plan -m m.gguf -p p.yaml", 0, NULL);
    assert_non_null(strstr(cli_out, "regret"));
    cli_expect_json("show w.plan -m m.gguf -p p.yaml --workload chat -b 2 --json", 0);
    assert_non_null(strstr(cli_out, "\"regret\":"));
    cli_expect("simulate w.plan -m m.gguf -p p.yaml", 0, NULL);
    cli_expect("check w.plan m.gguf -p p.yaml", 0, NULL);
    cli_expect("m.gguf -p p.yaml -c 256 --prompt 5 --generate 3 --depth 99 -o d.plan", 0, NULL);
    assert_non_null(strstr(cli_out, "1 sequence of 5 + 3 tokens behind 99, context 256"));
    cli_expect("m.gguf -p p.yaml " REQUEST_SIZES " -o one.plan", 0, NULL);
    cli_expect("show one.plan -m m.gguf -p p.yaml -b 2", 0, NULL);
    assert_non_null(strstr(cli_out, "\n64 + 32 tokens "));
    cli_expect("m.gguf -p p.yaml " REQUEST_SIZES " --workload chat", 2, "give one or the other");
    cli_expect("m.gguf -p p.yaml -n 3 --depth 254 -c 256", 2, "behind 254 need --context 769");
    cli_expect("m.gguf -p p.yaml --workload chats", 2, "is not mixed, chat, code, rag or a FILE");
    cli_expect("m.gguf -p p.yaml --workload none.yaml", 6, "none.yaml");
    cli_expect("m.gguf -p p.yaml --workload bad.yaml", 3, "bad.yaml:1:10: point: key 'generate'");
    cli_expect("show w.plan --workload chat", 2, "-m MODEL.gguf and -p PROFILE");
    cli_expect("show w.plan -m m.gguf -p p.yaml -b 9", 2, "9 sequences of 30 + 9 tokens need");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_context_is_one_that_runs),
        cmocka_unit_test(the_largest_context_is_found),
        cmocka_unit_test(more_speed_is_less_context),
        cmocka_unit_test(small_contexts_and_rates_in_bits),
        cmocka_unit_test(plans_are_for_workloads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
