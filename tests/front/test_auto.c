/*
 * test_auto.c - plans that oato-run makes by itself: they are what oato-profile and oato-plan make
 * by hand, are used again while they hold, and are made again, with a line that says why, where
 * they do not. Nothing in the cache can make a run fail.
 */
#include "planfmt/planfmt.h"
#include "tests/front/run_outside.h"
#include "tests/models/random_model.h"

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define DEVICES "--devices cpu,sim:vram=64MiB,read=900GB/s,flops=80T,link=25GB/s,latency=1us"
#define ASK     "wide.gguf -p Hello -n 4 --ignore-eos "

/* ---------------------------------------------------------------------------- what is kept --- */

/* The only file of the cache whose name ends so. */
static void kept(const char *end, char path[256])
{
    char pattern[256];
    glob_t g;
    snprintf(pattern, sizeof pattern, "%s/cache/oato/plans/*%s", run_dir, end);
    if (glob(pattern, 0, NULL, &g) || g.gl_pathc != 1)
        fail_msg("not one %s", pattern);
    snprintf(path, 256, "%s", g.gl_pathv[0]);
    globfree(&g);
}

static void shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void shell(const char *fmt, ...)
{
    char command[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof command, fmt, ap);
    va_end(ap);
    assert_int_equal(system(command), 0);
}

/* Has the stamp name the plan as it is now. */
static void stamp_plan(void)
{
    char plan[256], stamp[256];
    struct mapped_file f;
    struct oato_error err;
    kept(".plan", plan);
    kept(".stamp", stamp);
    assert_int_equal(file_map(plan, &f, &err), OATO_OK);
    shell("sed -i 's/^plan: .*/plan: %016llx/' %s", (unsigned long long)hash_bytes(f.data, f.bytes),
          stamp);
    file_unmap(&f);
}

static void plan_change(void (*change)(struct plan *))
{
    char path[256];
    struct plan p;
    struct oato_error err;
    kept(".plan", path);
    assert_int_equal(plan_load(path, &p, &err), OATO_OK);
    change(&p);
    if (plan_save(&p, path, &err))
        fail_msg("%s", err.text);
    plan_free(&p);
    stamp_plan();
}

static int times_said(const struct text *t, const char *words)
{
    int n = 0;
    for (const char *at = t->data; at && (at = strstr(at, words)); at++)
        n++;
    return n;
}

/* Runs it; it says why it plans again in one line (NULL: it does not). Whoever plans again may
 * measure what a busy machine left no time for. */
static void expect(struct outputs *o, const char *args, const char *why, bool measures)
{
    const int status = run(&o->out, &o->err, "%s", args);
    const int planned = times_said(&o->err, "planning again: ");
    if (status || planned != (why != NULL) || (why && !strstr(o->err.data, why)) ||
        (!why && times_said(&o->err, "measuring this machine for wide.gguf, about ") != measures) ||
        times_said(&o->err, "oato-run: plan: ") != 1 ||
        times_said(&o->err, "oato-run: promise: ") != 1)
        fail_msg("%s: %d, '%s' wanted: %s", args, status, why ? why : "", o->err.data);
}

/* --------------------------------------------------------------------------------- tests --- */

static void a_plan_is_what_the_programs_make_by_hand(void **state)
{
    struct outputs *o = *state;
    char path[256], profile[256], budgets[256] = "";
    struct plan p;
    struct oato_error err;
    expect(o, ASK DEVICES " --dry-run", NULL, true);
    assert_int_equal(o->out.len, 0);
    kept(".plan", path);
    kept(".profile.yaml", profile);
    assert_int_equal(plan_load(path, &p, &err), OATO_OK);
    assert_int_equal(p.n_devices, 2);
    for (int32_t d = 0; d < p.n_devices; d++)
        snprintf(budgets + strlen(budgets), sizeof budgets - strlen(budgets), " --budget %s=%llu",
                 p.devices[d].id, (unsigned long long)p.devices[d].budget_bytes);
    plan_free(&p);
    shell("cd %s && '%s' wide.gguf -p %s -o hand.plan%s >/dev/null 2>&1 && cmp hand.plan %s",
          run_dir, OATO_PLANNER, profile, budgets, path);
    expect(o, ASK DEVICES, NULL, false);
    char *answer = strdup(o->out.data);
    assert_int_equal(run(&o->out, &o->err, ASK "--plan hand.plan"), 0);
    assert_string_equal(o->out.data, answer);
    assert_int_equal(times_said(&o->err, "plan: "), 0); /* which was given */
    free(answer);
}

static void what_changed_is_said_and_planned_for(void **state)
{
    static const struct {
        const char *edit, *why;
    } rows[] = {
        {"s/^oato: .*/oato: 0.0.1/", "oato was '0.0.1' and is '"},
        {"/^sim:0/s/$/, driver 535.1/", "sim:0 was 'simulated, kernels "},
        {"s/^processor: .*/processor: Z80/", "processor was 'Z80' and is '"},
        {"s/^sim:0: .*/cuda:0: a GPU/", "sim:0 is new"},
        {"$acuda:0: a GPU", "damaged or not whole"},
        {"s/^sidecar: .*/sidecar: 1/", "sidecar was '1'"},
    };
    struct outputs *o = *state;
    char stamp[256];
    kept(".stamp", stamp);
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        shell("sed -i '%s' %s", rows[i].edit, stamp);
        expect(o, ASK DEVICES " --dry-run", rows[i].why, false);
        expect(o, ASK DEVICES " --dry-run", NULL, false);
    }
}

static void less_memory(struct plan *p)
{
    p->devices[0].planned_bytes = (uint64_t)1 << 60;
    p->devices[0].budget_bytes = (uint64_t)1 << 61;
}

static void more_memory(struct plan *p)
{
    p->devices[0].budget_bytes = p->devices[0].planned_bytes;
}

static void some_memory(struct plan *p)
{
    p->devices[0].budget_bytes += p->devices[0].budget_bytes / 10;
}

static void free_memory_counts_where_it_matters(void **state)
{
    struct outputs *o = *state;
    plan_change(less_memory);
    expect(o, ASK DEVICES " --dry-run", "cpu:0 has less free memory, ", false);
    plan_change(more_memory);
    expect(o, ASK DEVICES " --dry-run", "cpu:0 has more free memory, ", false);
    plan_change(some_memory);
    expect(o, ASK DEVICES " --dry-run", NULL, false);
}

static void seems_to_fit(struct plan *p)
{
    p->devices[1].planned_bytes = 0;
    p->devices[1].budget_bytes = 1 << 20;
}

static void a_plan_that_does_not_load_is_replaced(void **state)
{
    struct outputs *o = *state;
    char stamp[256];
    kept(".stamp", stamp);
    plan_change(seems_to_fit);
    shell("sed -i s/vram=64MiB/vram=1MiB/ %s", stamp);
    const char *small = ASK "--devices cpu,sim:vram=1MiB,read=900GB/s,flops=80T,link=25GB/s,"
                            "latency=1us";
    if (run(&o->out, &o->err, "%s", small))
        fail_msg("%s", o->err.data);
    assert_int_equal(times_said(&o->err, "planning again: sim:0"), 1);
    assert_true(o->out.len > 5);
    shell("rm -r %s/cache", run_dir);
    expect(o, ASK DEVICES " --dry-run", NULL, true);
}

static void a_damaged_cache_is_replaced(void **state)
{
    static const char *const plan_damages[] = {"truncate -s 100 %s", "echo hello > %s",
                                               "printf x | dd of=%s bs=1 seek=300 conv=notrunc",
                                               "rm %s"};
    struct outputs *o = *state;
    char plan[256], stamp[256], profile[256];
    kept(".plan", plan);
    kept(".stamp", stamp);
    kept(".profile.yaml", profile);
    for (size_t i = 0; i < ARRAY_LEN(plan_damages); i++)
        for (int of = 0; of < 2; of++) {
            char damage[600];
            snprintf(damage, sizeof damage, plan_damages[i], of ? stamp : plan);
            shell("(%s) 2>/dev/null", damage);
            const char *why = i == 2 && of ? "" : i < 3 || of ? "the kept plan is damaged" : NULL;
            expect(o, ASK DEVICES " --dry-run", why, false);
        }
    /* another machine's profile, by its name */
    shell("sed -i 's/^  cpu: .*/  cpu: Z80/' %s; rm %s", profile, plan);
    expect(o, ASK DEVICES " --dry-run", NULL, true);
    shell("! grep -q Z80 %s", profile);
    shell("rm -r %s/cache", run_dir);
    /* nowhere to keep it */
    shell("touch %s/cache", run_dir);
    assert_int_equal(run(&o->out, &o->err, ASK DEVICES), 0);
    assert_int_equal(times_said(&o->err, "plan is used but not kept: "), 1);
    shell("rm %s/cache", run_dir);
}

static void starts_at_the_same_time_share_one_plan(void **state)
{
    struct outputs *o = *state;
    shell("cd %s; for i in 1 2 3; do '%s' " ASK DEVICES
          " --temp 0 >out$i 2>err$i </dev/null & p=\"$p $!\"; "
          "done; for i in $p; do wait $i || exit 1; done; cmp out1 out2 && cmp out2 out3",
          run_dir, OATO_RUN);
    shell("cd %s; test $(cat err1 err2 err3 | grep -c measuring) = 1", run_dir);
    expect(o, ASK DEVICES " --dry-run", NULL, false);
}

static void options_rule_plans_out(void **state)
{
    struct outputs *o = *state;
    assert_int_equal(run(&o->out, &o->err, ASK "--no-plan"), 0);
    assert_int_equal(times_said(&o->err, "plan: "), 0);
    char *alone = strdup(o->out.data);
    setenv("OATO_PLAN", "none", 1);
    assert_int_equal(run(&o->out, &o->err, ASK), 0);
    assert_int_equal(times_said(&o->err, "plan: "), 0);
    assert_string_equal(o->out.data, alone);
    free(alone);
    setenv("OATO_PLAN", "some", 1);
    assert_int_equal(run(&o->out, &o->err, ASK), 2);
    assert_non_null(strstr(o->err.data, "OATO_PLAN is 'some'"));
    setenv("OATO_PLAN", "", 1);
    assert_int_equal(run(&o->out, &o->err, ASK "--no-plan --plan hand.plan"), 2);
    assert_int_equal(run(&o->out, &o->err, ASK "--workload nothing"), 2);
    assert_non_null(strstr(o->err.data, "mixed, chat, code, rag"));
    assert_int_equal(run(&o->out, &o->err, ASK "--devices cpu,sim:vram=x"), 2);
    assert_int_equal(lines(&o->err), 1);
}

static int setup(void **state)
{
    struct random_model m = random_model_default();
    struct oato_error err;
    char path[256];
    if (run_setup(state))
        return 1;
    m.tokenizer = m.tied = true;
    m.layers = 3;
    m.width = 256;
    m.ffn = 512;
    m.heads = 4;
    m.kv_heads = 2;
    m.vocab = 512;
    snprintf(path, sizeof path, "%s/wide.gguf", run_dir);
    if (random_model_save(&m, path, &err))
        return 1;
    snprintf(path, sizeof path, "%s/cache", run_dir);
    setenv("XDG_CACHE_HOME", path, 1);
    setenv("OATO_PLAN", "", 1);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_is_what_the_programs_make_by_hand),
        cmocka_unit_test(what_changed_is_said_and_planned_for),
        cmocka_unit_test(free_memory_counts_where_it_matters),
        cmocka_unit_test(a_plan_that_does_not_load_is_replaced),
        cmocka_unit_test(a_damaged_cache_is_replaced),
        cmocka_unit_test(starts_at_the_same_time_share_one_plan),
        cmocka_unit_test(options_rule_plans_out),
    };
    return cmocka_run_group_tests(tests, setup, run_teardown);
}
