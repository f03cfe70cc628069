/*
 * test_cli.c - oato-plan as a shell sees it: exit statuses, one line on stderr for every refusal,
 * files left as they were, JSON on stdout.
 */
#include "planfmt/planfmt.h"
#include "tests/models/random_model.h"
#include "tests/solver/cli_rig.h"

#include <jansson.h>
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
    cli_save_model("other.gguf", "llama", 128);
    cli_save_profile("p.yaml", 1);
    cli_save_profile("slow.yaml", 1.5);
    cli_expect("m.gguf -p p.yaml --prompt 64 --generate 32 --context 256 --budget sim:0=2MiB", 0,
               NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return cli_end();
}

static void planning_writes_the_plan_and_a_table(void **state)
{
    (void)state;
    static char first[1 << 20], second[1 << 20];
    size_t n = cli_read_file("m.plan", first, sizeof first);
    assert_true(n > 100);
    const char *same = "--prompt 64 --generate 32 --context 256 --budget sim:0=2MiB -o again.plan";
    char line[256];
    snprintf(line, sizeof line, "-m m.gguf --profile=p.yaml %s", same);
    cli_expect(line, 0, NULL);
    assert_non_null(strstr(cli_out, "predicted: prefill"));
    assert_non_null(strstr(cli_out, "against: the processor alone takes "));
    assert_int_equal(cli_read_file("again.plan", second, sizeof second), n);
    assert_memory_equal(first, second, n);
    cli_expect_json("m.gguf -p p.yaml -o j.plan --json --solver ilp --gap 0 --time-limit 5", 0);
    cli_expect("m.gguf -p p.yaml -o j.plan --solver affinity --single-shot --kv f32 --batch 2", 0,
               NULL);
    cli_expect("m.gguf -p p.yaml -o j.plan --devices cpu --deterministic --ubatch 64", 0, NULL);
    cli_expect("m.gguf -p p.yaml -o j.plan --kv auto --ubatch auto --prompt 700 -n 60", 0, NULL);
    assert_non_null(strstr(cli_out, "steps of 512") ? cli_out : strstr(cli_out, "steps of 1024"));
    cli_expect_json("show j.plan --json", 0);
    assert_non_null(strstr(cli_out, "\"chosen\":[\"ubatch\",\"kv\"],\"open\":[\"context\",\"expert-"
                                    "cache\"],\"alternatives\":["));
    /* what cannot be run is no rival of a bound */
    assert_null(strstr(cli_out, "FlexGen"));
    cli_expect("show m.plan -m m.gguf -p p.yaml", 0, NULL);
    assert_non_null(
        strstr(cli_out, "\nnot available here: streaming weights in every step (FlexGen): it "));
    assert_non_null(strstr(cli_out, " be faster, "));
    cli_expect("m.gguf -p p.yaml -o t.plan --minimize ttft", 0, NULL);
    assert_non_null(strstr(cli_out, "minimized: ttft"));
    cli_expect("check t.plan m.gguf -p p.yaml", 0, NULL);
    assert_non_null(strstr(cli_out, "ttft, against the best plan of today"));
}

/* Every machine of the library can be planned for, all of it by estimates. */
static void machines_of_the_library_answer_what_if(void **state)
{
    (void)state;
    static const char *const names[] = {"rtx4090-xeon4314", "rtx2080ti-i7-12700k", "rtx3060-laptop",
                                        "ascend910b-kunpeng920"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char line[128];
        snprintf(line, sizeof line, "m.gguf --hardware %s -o what.plan", names[i]);
        cli_expect(line, 0, NULL);
        assert_non_null(strstr(cli_out, "operators were never measured in their shape"));
        snprintf(line, sizeof line, "check what.plan m.gguf --hardware %s", names[i]);
        cli_expect(line, 0, NULL);
    }
}

static void save_header(const char *name, const char *shape, oato_dtype dtype)
{
    struct oato_error err = {.text = ""};
    char path[128];
    struct random_model m = random_model_default();
    m.dtype = dtype;
    m.header_only = true;
    m.tokenizer = false;
    cli_path(name, path, sizeof path);
    if ((shape && !random_model_set_shape(&m, shape)) || random_model_save(&m, path, &err))
        fail_msg("%s: %s", name, err.text);
}

/* An accelerator that was profiled with one type runs others, for an estimate that says whence it
 * is and how to time it. */
static void types_that_were_never_timed_are_estimates(void **state)
{
    (void)state;
    save_header("k.gguf", "8b", DT_Q4_K);
    cli_expect("k.gguf --hardware h200 -o k.plan", 0, NULL);
    assert_non_null(strstr(cli_out, "\nnever timed on cuda:0, so scaled from what was: Q4_K"));
    assert_non_null(
        strstr(cli_out, "on that machine: oato-profile MODEL.gguf --devices cpu,cuda -o"));
    assert_non_null(strstr(cli_out, "\nby estimates prefill may be off by "));
    assert_non_null(strstr(cli_out, " %; nine in ten are off by less\n"));
    cli_expect("explain k.plan blk.0.ffn_down -m k.gguf --hardware h200", 0, NULL);
    assert_non_null(strstr(cli_out, "is on cuda:0\n"));
    assert_non_null(strstr(cli_out, ", off by at most 50 %; there, this would time it"));
    assert_null(strstr(cli_out, "does not run it"));
    assert_non_null(strstr(cli_out, "estimate: Q4_K was never timed on cuda:0, which supports it; "
                                    "scaled from mul_mat/Q4_0/"));
    assert_non_null(strstr(cli_out, "this would time it: oato-profile MODEL.gguf"));
    cli_expect_json("explain k.plan blk.0.ffn_down -m k.gguf --hardware h200 --json", 0);
    assert_non_null(strstr(cli_out, "\"estimated_because\":\"Q4_K was never timed"));
    cli_expect_json("show k.plan -m k.gguf --hardware h200 --json", 0);
    assert_non_null(strstr(cli_out, "{\"device\":\"cuda:0\",\"types\":[\"Q4_K\""));
    assert_non_null(strstr(cli_out, "\"estimates_off\":{\"prefill\":0."));
    cli_expect("explain k.plan -m k.gguf --hardware h200", 0, NULL);
    assert_non_null(strstr(cli_out, "\nnever timed on cuda:0, so scaled from what was: Q4_K"));
    cli_expect("simulate k.plan -m k.gguf --hardware h200", 0, NULL);
    assert_non_null(strstr(cli_out, "request"));
    assert_non_null(strstr(cli_out, "1.0000"));
    /* an older profile does not say what its devices support, and nobody refused anything */
    save_header("small.gguf", NULL, DT_Q4_0);
    cli_expect("small.gguf -p p.yaml -o o.plan", 0, NULL);
    assert_non_null(strstr(cli_out, "\nnever timed on sim:0, so scaled from what was: Q4_0"));
    cli_expect("explain o.plan blk.0.ffn_down -m small.gguf -p p.yaml", 0, NULL);
    assert_non_null(strstr(cli_out, "is on sim:0\n"));
    assert_null(strstr(cli_out, "does not run it"));
    assert_non_null(strstr(cli_out, "and the profile does not say what that supports"));
    /* but not what a device says that it cannot do */
    cli_expect("k.gguf --hardware ascend910b-kunpeng920 -o n.plan", 0, NULL);
    cli_expect("explain n.plan blk.0.ffn_down -m k.gguf --hardware ascend910b-kunpeng920", 0, NULL);
    assert_non_null(strstr(cli_out, "ascend:0 does not run blk.0.ffn_gate_up, says"));
}

static void a_report_marks_estimates_and_names_shapes_by_their_file(void **state)
{
    (void)state;
    static char page[1 << 20];
    cli_expect("header m.gguf -o shape.gguf", 0, NULL);
    cli_expect("shape.gguf --hardware rtx3060-laptop -o shape.plan", 0, NULL);
    cli_expect("report shape.plan -m shape.gguf --hardware rtx3060-laptop -o shape.html "
               "--no-frontier",
               0, NULL);
    cli_read_file("shape.html", page, sizeof page);
    assert_non_null(strstr(page, "<h1>shape.gguf</h1>"));
    assert_non_null(strstr(page, "<b>~ "));
    assert_non_null(strstr(page, "~ estimates: "));
    assert_non_null(strstr(page, "by estimates prefill may be off by "));
    cli_expect("report m.plan -m m.gguf -p p.yaml -o m.html --no-frontier", 0, NULL);
    cli_read_file("m.html", page, sizeof page);
    assert_null(strstr(page, "<h1>m.gguf"));
    assert_null(strstr(page, "<b>~ "));
}

/* More memory is never slower, and the best plan never slower than whole layers. */
static void the_frontier_rises(void **state)
{
    (void)state;
    static char svg[1 << 16];
    double before = 1e300;
    int lines = 0;
    cli_expect(
        "frontier m.gguf -p p.yaml --steps 5 --prompt 64 --generate 32 --context 256 --gap 0 "
        "--svg f.svg",
        0, NULL);
    assert_int_equal(strncmp(cli_out, "share,", 6), 0);
    for (char *line = strchr(cli_out, '\n'); line && line[1];
         line = strchr(line + 1, '\n'), lines++) {
        double share, mib, prefill, decode, request, layers;
        assert_int_equal(sscanf(line + 1, "%lf,%lf,%lf,%lf,%lf,%lf", &share, &mib, &prefill,
                                &decode, &request, &layers),
                         6);
        assert_true(request <= before && request <= layers);
        before = request;
    }
    assert_int_equal(lines, 6);
    assert_true(cli_read_file("f.svg", svg, sizeof svg) > 500);
    assert_non_null(strstr(svg, "</svg>"));
    cli_expect_json("frontier m.gguf -p p.yaml --steps 2 --json", 0);
    cli_expect("frontier m.gguf -p p.yaml --devices cpu:0", 2, "memory of its own");
    cli_expect("frontier m.gguf -p p.yaml --svg none/f.svg --steps 1", 6, "none/f.svg");
}

static void reports_speak_text_and_json(void **state)
{
    (void)state;
    static const char *const lines[] = {"show m.plan",
                                        "show m.plan -m m.gguf -p p.yaml",
                                        "explain m.plan",
                                        "explain m.plan blk.1",
                                        "explain m.plan -m m.gguf -p p.yaml",
                                        "explain m.plan output -m m.gguf -p p.yaml",
                                        "diff m.plan m.plan",
                                        "check m.plan m.gguf -p p.yaml",
                                        "simulate m.plan -m m.gguf -p p.yaml --trace t.json",
                                        "export m.plan -m m.gguf --device-name sim:0=CUDA0"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        char line[128];
        cli_expect(lines[i], 0, NULL);
        if (!strncmp(lines[i], "export", 6)) /* what it translates was made for another engine */
            assert_non_null(strstr(cli_err, "note: this translates a plan"));
        else
            assert_string_equal(cli_err, "");
        snprintf(line, sizeof line, "%s --json", lines[i]);
        cli_expect_json(line, 0);
    }
}

static void a_simulation_writes_a_trace(void **state)
{
    (void)state;
    static char trace[1 << 20];
    cli_expect("simulate m.plan -m m.gguf -p p.yaml --trace trace.json", 0, NULL);
    assert_non_null(strstr(cli_out, "simulated: chunks 1 of 1; tokens 1 17 32 of 32"));
    assert_non_null(strstr(cli_out, "waits for"));
    assert_true(cli_read_file("trace.json", trace, sizeof trace) > 1000);
    json_t *j = json_loads(trace, 0, NULL);
    assert_true(json_array_size(json_object_get(j, "traceEvents")) > 50);
    json_decref(j);
    cli_expect("simulate m.plan -m m.gguf -p p.yaml --trace none/t.json", 6, "none/t.json");
}

static void a_report_is_one_file(void **state)
{
    (void)state;
    static char page[1 << 20];
    cli_expect("report m.plan -m m.gguf -p p.yaml -o plan.html", 0, NULL);
    assert_true(cli_read_file("plan.html", page, sizeof page) > 10000);
    assert_non_null(strstr(page, "Speed against memory"));
    assert_non_null(strstr(page, "</html>"));
    cli_expect("report m.plan -m m.gguf -p p.yaml -o plan.html --no-frontier", 0, NULL);
    cli_read_file("plan.html", page, sizeof page);
    assert_null(strstr(page, "Speed against memory"));
    cli_expect("report m.plan -m other.gguf -p p.yaml -o never.html", 3, "another model");
    assert_int_equal(cli_read_file("never.html", page, sizeof page), 0);
    cli_expect("report m.plan -m m.gguf -p p.yaml -o none/plan.html --no-frontier", 6, "none/");
}

static void verdicts_are_status_1(void **state)
{
    (void)state;
    cli_expect("m.gguf -p p.yaml -o cpu.plan --solver cpu --prompt 64 --generate 32 --context 256 "
               "--budget sim:0=2MiB",
               0, NULL);
    cli_expect("diff m.plan cpu.plan", 1, "differ");
    cli_expect(
        "m.gguf -p p.yaml -o cpu-token.plan --solver cpu --prompt 64 --generate 32 --context 256 "
        "--budget sim:0=2MiB --minimize time-per-token",
        0, NULL);
    cli_expect("diff cpu.plan cpu-token.plan", 1, "differ");
    assert_non_null(strstr(cli_out, "different objective"));
    cli_expect_json("diff m.plan cpu.plan --json", 1);
    cli_expect("check m.plan m.gguf -p slow.yaml", 1, "run oato-plan again");
    cli_expect("check m.plan m.gguf -p slow.yaml --max-slower 60%", 0, NULL);
    cli_expect("check cpu.plan m.gguf -p p.yaml --max-slower 0.01", 1, "run oato-plan again");
    cli_expect_json("check cpu.plan m.gguf -p p.yaml --max-slower 1% --json", 1);
}

static void bad_files_are_status_3_and_named(void **state)
{
    (void)state;
    static char data[1 << 20];
    size_t n = cli_read_file("m.plan", data, sizeof data);
    cli_expect("check m.plan other.gguf", 3, "another model");
    data[n / 2] ^= 4;
    cli_write_bytes("flipped.plan", data, n);
    cli_expect("check flipped.plan m.gguf", 3, "flipped.plan");
    cli_expect("show flipped.plan", 3, "flipped.plan");
    cli_write_bytes("short.plan", data, n / 3);
    cli_expect("check short.plan", 3, "short.plan");
    cli_write_bytes("empty.plan", data, 0);
    cli_expect("show empty.plan", 3, "empty.plan");
    cli_expect("m.gguf -p m.gguf -o never.plan", 3, "m.gguf");
    cli_expect("p.yaml -p p.yaml -o never.plan", 3, "p.yaml");
    assert_int_equal(cli_read_file("never.plan", data, sizeof data), 0);
}

/* Every verb that takes a model, once each. */
static void expect_of_verbs(const char *plan, const char *profile, const char *words)
{
    static const char *const verbs[] = {"show", "explain", "simulate", "report -o v.html"};
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        char line[128];
        snprintf(line, sizeof line, "%s %s -m m.gguf -p %s", verbs[i], plan, profile);
        cli_expect(line, 3, words);
        assert_string_equal(cli_out, "");
        assert_int_equal(cli_read_file("v.html", line, sizeof line), 0);
    }
}

static void requests_of_plans_are_checked_by_every_verb(void **state)
{
    (void)state;
    static const struct plan_request bad[] = {
        {.context = 256, .prompt = 64, .batch = 1},
        {.context = 256, .prompt = 64, .ubatch = 8},
        {.context = 256, .batch = 1, .ubatch = 8},
        {.context = 63, .prompt = 64, .batch = 1, .ubatch = 8},
        {.context = REQUEST_CONTEXT_MAX + 1, .prompt = 64, .batch = 1, .ubatch = 8},
        {.context = 8192, .prompt = 1, .batch = REQUEST_BATCH_MAX + 1, .ubatch = 8},
        {.context = 256, .prompt = 64, .batch = 1, .ubatch = INT32_MAX}};
    struct oato_error err;
    char from[128], to[128];
    cli_path("m.plan", from, sizeof from);
    cli_path("bad.plan", to, sizeof to);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct plan p;
        const char *words = "bad.plan: the plan cannot be used, run oato-plan again";
        assert_int_equal(plan_load(from, &p, &err), OATO_OK);
        p.request = bad[i];
        assert_int_equal(plan_save(&p, to, &err), OATO_OK);
        plan_free(&p);
        expect_of_verbs("bad.plan", "p.yaml", words);
        cli_expect("check bad.plan m.gguf -p p.yaml", 3, words);
        cli_expect("check bad.plan", 3, words);
        cli_expect("export bad.plan -m m.gguf --device-name sim:0=CUDA0", 3, words);
    }
}

static void names_of_files_cannot_steer_a_terminal(void **state)
{
    (void)state;
    cli_expect("m.gguf -p p.yaml -o \"$(printf 'e\\033[3m.plan')\"", 0, "wrote e?[3m.plan");
}

static void plans_by_rows_of_a_busy_machine_carry_a_warning(void **state)
{
    (void)state;
    struct oato_error err;
    struct profile p;
    char path[128];
    cli_path("p.yaml", path, sizeof path);
    assert_int_equal(profile_load(path, &p, NULL, NULL, &err), OATO_OK);
    for (int32_t i = 0; i < p.n_rows; i++)
        p.rows[i].disturbed = p.rows[i].op.kind == OP_ATTENTION;
    cli_path("busy.yaml", path, sizeof path);
    assert_int_equal(profile_save(&p, path, &err), OATO_OK);
    profile_free(&p);
    const char *warning = "warning: 4 of";
    cli_expect("m.gguf -p busy.yaml -o busy.plan", 0, NULL);
    assert_non_null(strstr(cli_err, warning));
    cli_expect("show busy.plan -m m.gguf -p busy.yaml", 0, warning);
    cli_expect("m.gguf -p p.yaml -o busy.plan", 0, NULL);
    assert_null(strstr(cli_err, "warning"));
}

static void a_device_that_went_is_a_verdict_of_check_alone(void **state)
{
    (void)state;
    static char text[1 << 20];
    size_t n = cli_read_file("p.yaml", text, sizeof text);
    for (char *s = text; (s = strstr(s, "sim:0"));)
        s[4] = '7';
    cli_write_bytes("gone.yaml", text, n);
    expect_of_verbs("m.plan", "gone.yaml",
                    "the plan's device sim:0 is not in the profile; give the profile");
    cli_expect("check m.plan m.gguf -p gone.yaml", 1, "run oato-plan again");
    assert_non_null(strstr(cli_out, "the profile has sim:0"));
    cli_expect("explain m.plan blk.99", 2, "blk.99");
    assert_string_equal(cli_out, "");
    cli_expect("explain m.plan blk.99 --json", 2, "blk.99");
    assert_string_equal(cli_out, "");
}

/* The model is tiny, so that any sum over Ethernet costs more than it gives. */
static void hosts_that_are_not_worth_using_are_named(void **state)
{
    (void)state;
    cli_expect("m.gguf -p p.yaml -p slow.yaml -o hosts.plan", 0, NULL);
    assert_non_null(strstr(cli_err, "slow.yaml is left out: predicted first token after "));
    assert_null(strstr(cli_err, "--split"));
    cli_expect_json("m.gguf -p slow.yaml -p p.yaml -o hosts.plan --json", 0);
    assert_non_null(strstr(cli_out, "\"hosts_left_out\":[{\"profile\":\"slow.yaml\","));
    cli_expect_json("m.gguf -p slow.yaml -p p.yaml --ranks 2 -o hosts.plan --json", 0);
    assert_non_null(strstr(cli_out, "\"hosts_left_out\":[],\"idle_ranks\":1,\"alone_faster\":"));
    assert_non_null(strstr(cli_err, "one host of p.yaml alone is "));
    assert_non_null(strstr(cli_err, "all ranks but rank 0 are idle"));
    cli_expect_json("m.gguf -p slow.yaml -p slow.yaml --ranks 2 --network 1TB/s,0s --devices cpu "
                    "-o hosts.plan --json",
                    0);
    assert_non_null(strstr(cli_out, "\"split\":\"layers\",\"other_split\":{\"split\":\"tensor\","));
    assert_non_null(strstr(cli_err, "each rank has some of the layers; --split tensor would take"));
    cli_expect("m.gguf -p slow.yaml -p p.yaml --ranks 2 --split layers -o hosts.plan", 0, NULL);
    assert_non_null(strstr(cli_err, "leave out --ranks, --hosts and --split"));
    for (int i = 0; i < 2; i++) {
        cli_expect("check hosts.plan m.gguf -p slow.yaml -p p.yaml", 0, NULL);
        cli_expect_json("simulate hosts.plan -m m.gguf -p slow.yaml -p p.yaml --json", 0);
        assert_non_null(strstr(cli_out, "{\"rank\":1,\"host\":1,\"id\":\"cpu:0\""));
        assert_non_null(strstr(cli_out, "\"predicted_over_simulated\":1}"));
        cli_expect("simulate hosts.plan -m m.gguf -p slow.yaml -p p.yaml --network 1kB/s", 0, NULL);
        assert_null(strstr(cli_out, " 1.0000\n"));
        cli_expect("explain hosts.plan -m m.gguf -p slow.yaml -p p.yaml", 0, NULL);
        assert_non_null(strstr(cli_out, ":0 of rank 1 on host 1"));
        cli_expect("report hosts.plan -m m.gguf -p slow.yaml -p p.yaml -o hosts.html", 0, NULL);
        cli_expect("show hosts.plan", 0, NULL);
        assert_non_null(strstr(cli_out, i ? "sums of ranks" : "layers of ranks"));
        cli_expect("m.gguf -p slow.yaml -p p.yaml --ranks 2 --split tensor -o hosts.plan", 0, NULL);
    }
    cli_expect("m.gguf -p p.yaml --ranks 2 --hosts 1 --split layers -o hosts.plan", 2,
               "each host has one rank");
    cli_expect("m.gguf -p p.yaml --ranks 2 --split rows -o hosts.plan", 2,
               "auto, tensor or layers");
}

static void clusters_that_are_not_here_are_simulated(void **state)
{
    (void)state;
    const char *cluster = "simulate m.gguf --hardware rtx2080ti-i7-12700k --hosts 100 --per-host 4";
    char line[256];
    cli_expect(cluster, 0, NULL);
    assert_non_null(strstr(cli_out, "simulated: 4 x cuda:0 on each host"));
    assert_non_null(strstr(cli_out, "\n    1       1 "));
    assert_non_null(strstr(cli_out, "\n  100     400 "));
    snprintf(line, sizeof line, "%s --json --wire f16 --batch 4 --devices cpu:0", cluster);
    cli_expect_json(line, 0);
    assert_non_null(strstr(cli_out, "\"device\":\"cpu:0\""));
    cli_expect("simulate m.gguf -p p.yaml --hosts 2 --devices tpu:0", 2, "tpu:0");
    cli_expect("simulate m.plan -m m.gguf -p p.yaml --hosts 2", 2, "no plan");
    cli_expect("simulate m.plan -m m.gguf -p p.yaml --prompt 3", 2, "--prompt is for clusters");
    cli_expect("simulate m.gguf -p p.yaml", 2, "--hosts N");
}

static void what_does_not_fit_is_status_4(void **state)
{
    (void)state;
    static char before[1 << 20], after[1 << 20];
    size_t n = cli_read_file("m.plan", before, sizeof before);
    cli_expect("m.gguf -p p.yaml --budget sim:0=1KiB", 4, "less than activations");
    cli_expect("m.gguf -p p.yaml --devices cpu:0 --budget cpu=700KiB", 4, "are missing");
    for (int large = 0; large < 2; large++) { /* what is advised helps */
        char line[160];
        unsigned long long kib = 0, context = 0;
        const char *request =
            "m.gguf -p p.yaml --prompt 32 --generate 16 --devices cpu:0 -o d.plan";
        snprintf(line, sizeof line, "%s -c %d --budget cpu=%s", request, large ? 4096 : 512,
                 large ? "900KiB" : "540KiB");
        cli_expect(line, 4, "are missing");
        const char *budget = strstr(cli_err, "--budget cpu:0="),
                   *lower = strstr(cli_err, "--context to ");
        assert_non_null(budget);
        assert_int_equal(sscanf(budget, "--budget cpu:0=%lluKiB", &kib), 1);
        snprintf(line, sizeof line, "%s -c %d --budget cpu=%lluKiB", request, large ? 4096 : 512,
                 kib);
        cli_expect(line, 0, NULL);
        assert_true(!large || lower);
        if (!lower)
            continue;
        assert_int_equal(sscanf(lower, "--context to %llu", &context), 1);
        snprintf(line, sizeof line, "%s -c %llu --budget cpu=%s", request, context,
                 large ? "900KiB" : "540KiB");
        cli_expect(line, 0, NULL);
    }
    assert_int_equal(cli_read_file("m.plan", after, sizeof after), n);
    assert_memory_equal(before, after, n);
}

static void wrong_usage_is_status_2(void **state)
{
    (void)state;
    static const char *const lines[][2] = {
        {"", "oato-profile"},
        {"m.gguf", "-p PROFILE"},
        {"m.gguf -p p.yaml --bugdet sim:0=1MiB", "did you mean '--budget'"},
        {"m.gguf -p p.yaml --budget sim:0", "sim:0=40MiB"},
        {"m.gguf -p p.yaml --budget sim:3=1MiB", "no device 'sim:3'"},
        {"m.gguf -p p.yaml --budget sim:0=900TB", "the device has"},
        {"m.gguf --hardware rtx3060-laptop --budget cuda:0=400GiB", "the device has 6144.0"},
        {"m.gguf -p p.yaml -ngl 10", "option '-ngl' is not supported: the plan decides"},
        {"m.gguf -p p.yaml -nosuch", "unknown option '-nosuch'"},
        {"m.gguf -p p.yaml -st", "option '-st' is not supported"},
        {"m.gguf -p p.yaml --keep 4", "option '--keep' is not supported"},
        {"m.gguf -p p.yaml --network 10Gq/s", "117MB/s,60us or 10Gb/s"},
        {"m.gguf -p p.yaml --prompt x", "not a number"},
        {"m.gguf -p p.yaml --kv q8", "f16, q8_0, f32 or auto"},
        {"m.gguf -p p.yaml --ubatch none", "auto or a number from 1"},
        {"m.gguf -p p.yaml --prompt 16 --context 10", "--context"},
        {"m.gguf -p p.yaml --gap -1", "not a share"},
        {"m.gguf -p p.yaml --time-limit soon", "seconds"},
        {"m.gguf m.gguf -p p.yaml", "too many"},
        {"m.gguf -m m.gguf -p p.yaml", "more than one model"},
        {"m.gguf -p p.yaml --hardware rtx3060-laptop", "two machines"},
        {"m.gguf --hardware rtx3060-latop", "did you mean 'rtx3060-laptop'"},
        {"m.gguf -p p.yaml --solver magic", "known: auto"},
        {"m.gguf -p p.yaml --minimize speed", "ttft or time-per-token"},
        {"m.gguf -p p.yaml --minimize ttft --prompt 0", "--prompt"},
        {"show", "PLAN"},
        {"explain", "PLAN"},
        {"explain m.plan -p p.yaml", "both"},
        {"explain m.plan nothing", "nothing"},
        {"diff m.plan", "two plans"},
        {"check", "PLAN"},
        {"check m.plan -p p.yaml", "MODEL.gguf"},
        {"check m.plan --max-slower much", "5%"},
        {"frontier m.gguf", "--hardware NAME"},
        {"frontier m.gguf -p p.yaml --steps 0", "from 1 to 1073741824"},
        {"m.gguf -p p.yaml -c 2147483647", "from 1 to 1073741824"},
        {"simulate m.plan -m m.gguf", "-p PROFILE"},
        {"report m.plan -m m.gguf -p p.yaml", "-o FILE.html"},
        {"export m.plan", "-m MODEL.gguf"},
        {"export m.plan -m m.gguf --to vllm", "ik_llama.cpp"},
        {"export m.plan -m m.gguf --device-name sim:0", "cuda:0=CUDA1"},
    };
    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        cli_expect(lines[i][0], 2, lines[i][1]);
}

static void missing_files_are_status_6(void **state)
{
    (void)state;
    cli_expect("none.gguf -p p.yaml", 6, "none.gguf");
    cli_expect("m.gguf -p none.yaml", 6, "none.yaml");
    cli_expect("show none.plan", 6, "none.plan");
    cli_expect("diff m.plan none.plan", 6, "none.plan");
    cli_expect("m.gguf -p p.yaml -o none/m.plan", 6, "none/m.plan");
}

static void help_fits_a_screen(void **state)
{
    (void)state;
    static const char *const verbs[] = {"",         "show",     "explain", "diff",
                                        "check",    "simulate", "report",  "export",
                                        "frontier", "header",   "import"};
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        char line[64];
        int lines = 0;
        snprintf(line, sizeof line, "%s --help", verbs[i]);
        cli_expect(line, 0, NULL);
        for (const char *s = cli_out; (s = strchr(s, '\n')); s++)
            lines++;
        assert_in_range(lines, 3, 40);
    }
    cli_expect("--version", 0, NULL);
    assert_non_null(strstr(cli_out, "oato-plan "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planning_writes_the_plan_and_a_table),
        cmocka_unit_test(machines_of_the_library_answer_what_if),
        cmocka_unit_test(types_that_were_never_timed_are_estimates),
        cmocka_unit_test(a_report_marks_estimates_and_names_shapes_by_their_file),
        cmocka_unit_test(the_frontier_rises),
        cmocka_unit_test(reports_speak_text_and_json),
        cmocka_unit_test(a_simulation_writes_a_trace),
        cmocka_unit_test(a_report_is_one_file),
        cmocka_unit_test(verdicts_are_status_1),
        cmocka_unit_test(bad_files_are_status_3_and_named),
        cmocka_unit_test(requests_of_plans_are_checked_by_every_verb),
        cmocka_unit_test(names_of_files_cannot_steer_a_terminal),
        cmocka_unit_test(plans_by_rows_of_a_busy_machine_carry_a_warning),
        cmocka_unit_test(a_device_that_went_is_a_verdict_of_check_alone),
        cmocka_unit_test(hosts_that_are_not_worth_using_are_named),
        cmocka_unit_test(clusters_that_are_not_here_are_simulated),
        cmocka_unit_test(what_does_not_fit_is_status_4),
        cmocka_unit_test(wrong_usage_is_status_2),
        cmocka_unit_test(missing_files_are_status_6),
        cmocka_unit_test(help_fits_a_screen),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
