/*
 * cli_rig.c - see cli_rig.h. OATO_PLAN is the program.
 */
#include "tests/solver/cli_rig.h"

#include "planfmt/planfmt.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"

// clang-format off
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
// clang-format on

static char dir[] = "/tmp/oato-plan-XXXXXX";
char cli_out[CLI_OUT], cli_err[4096];

void cli_path(const char *name, char *to, size_t n)
{
    snprintf(to, n, "%s/%s", dir, name);
}

void cli_save_model(const char *name, const char *arch, int64_t width)
{
    struct oato_error err;
    char path[128];
    struct random_model m = random_model_default();
    m.architecture = arch;
    m.layers = 4;
    m.width = width;
    m.dtype = DT_Q8_0;
    cli_path(name, path, sizeof path);
    if (random_model_save(&m, path, &err))
        fail_msg("%s", err.text);
}

void cli_save_noisy_profile(const char *name, double scale, double p10)
{
    struct oato_error err;
    struct model *m;
    struct profile p;
    char path[128];
    struct fixture_options o = {
        .sim_speed = 6, .link_latency_ns = 1000, .scale = scale, .fused_factor = 0.9};
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    assert_int_equal(model_open(path, &m, &err), OATO_OK);
    assert_true(fixture_profile(m, &o, &p));
    for (int32_t i = 0; i < p.n_rows; i++)
        p.rows[i].p10_ns *= p10;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (profile_save(&p, path, &err))
        fail_msg("%s", err.text);
    profile_free(&p);
    model_close(m);
}

void cli_save_profile(const char *name, double scale)
{
    cli_save_noisy_profile(name, scale, 1);
}

size_t cli_read_file(const char *name, char *to, size_t n)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return 0;
    size_t got = fread(to, 1, n - 1, f);
    fclose(f);
    to[got] = 0;
    return got;
}

static int plan(const char *arguments)
{
    char command[1024];
    snprintf(command, sizeof command, "cd %s && %s %s >stdout 2>stderr", dir, OATO_PLAN, arguments);
    int status = system(command);
    cli_read_file("stdout", cli_out, sizeof cli_out);
    cli_read_file("stderr", cli_err, sizeof cli_err);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void cli_expect(const char *arguments, int status, const char *words)
{
    int got = plan(arguments);
    if (got != status)
        fail_msg("oato-plan %s: exit %d, not %d: %s%s", arguments, got, status, cli_err, cli_out);
    if (!words)
        return;
    if (!strstr(cli_err, words) || strchr(cli_err, '\n') != cli_err + strlen(cli_err) - 1)
        fail_msg("oato-plan %s: not one line with '%s': %s", arguments, words, cli_err);
}

void cli_expect_json(const char *arguments, int status)
{
    json_error_t e;
    cli_expect(arguments, status, NULL);
    json_t *j = json_loads(cli_out, 0, &e);
    if (!j)
        fail_msg("oato-plan %s: %s in %s", arguments, e.text, cli_out);
    json_decref(j);
}

void cli_write_bytes(const char *name, const char *data, size_t n)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

void cli_begin(void)
{
    assert_non_null(mkdtemp(dir));
}

int cli_end(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

void cli_load_plan(const char *name, struct plan *p)
{
    char path[160];
    struct oato_error err;
    cli_path(name, path, sizeof path);
    if (plan_load(path, p, &err))
        fail_msg("%s", err.text);
}
