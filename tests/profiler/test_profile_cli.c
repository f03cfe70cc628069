/*
 * The command line of oato-profile: exit statuses, one line for each mistake, and files that are
 * either complete or untouched.
 */
#include "planfmt/planfmt.h"

#include "tests/profiler/profiler_testing.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

enum { WORDS = 16, NO_LIMIT = 0 };

struct result {
    int status; /* exit status, or 1000 + signal */
    char out[8192], err[4096];
};

static void slurp(const char *path, char *out, size_t out_bytes)
{
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(out, 1, out_bytes - 1, f) : 0;
    out[n] = 0;
    if (f)
        fclose(f);
}

/* Runs the program; file_limit: most bytes it may write to a file; interrupt_ms: when it gets
 * SIGINT, 0: never. */
static struct result run(const char *const *words, long file_limit, int interrupt_ms)
{
    struct result r = {0};
    char out[128], err[128], *argv[WORDS + 2] = {(char[]){"oato-profile"}};
    for (int i = 0; i < WORDS && words[i]; i++)
        argv[i + 1] = (char *)(uintptr_t)words[i];
    path_in(out, "stdout");
    path_in(err, "stderr");
    pid_t child = fork();
    if (!child) {
        int o = open(out, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        int e = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        if (dup2(o, 1) < 0 || dup2(e, 2) < 0 || chdir(test_folder))
            _exit(99);
        if (file_limit) {
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)file_limit, (rlim_t)file_limit});
        }
        signal(SIGINT, SIG_DFL);                   /* whoever runs the tests may ignore it */
        setenv("GCOV_ERROR_FILE", "/dev/null", 1); /* its files are limited, too */
        execv(OATO_PROFILE_PROGRAM, argv);
        _exit(98);
    }
    if (interrupt_ms) {
        nanosleep(&(struct timespec){interrupt_ms / 1000, interrupt_ms % 1000 * 1000000L}, NULL);
        kill(child, SIGINT);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    slurp(out, r.out, sizeof r.out);
    slurp(err, r.err, sizeof r.err);
    return r;
}

#define RUN(...) run((const char *const[WORDS]){__VA_ARGS__}, NO_LIMIT, 0)

/* Lines of the program that are no warnings (a busy machine is warned about); what sanitizers or
 * coverage say is not the program's. */
static int complaints(const char *err)
{
    int n = 0;
    for (const char *line = err; line && *line; line = strchr(line, '\n'), line += line != NULL)
        n += !strncmp(line, "oato-profile: ", 14) && strncmp(line + 14, "warning:", 8) != 0;
    return n;
}

static void assert_one_line(const struct result *r, int status, const char *says)
{
    if (r->status != status || !strstr(r->err, says))
        fail_msg("status %d instead of %d, or no '%s' in: %s", r->status, status, says, r->err);
    assert_int_equal(complaints(r->err), 1);
    assert_int_equal(r->out[0], 0);
}

static void mistakes_get_one_line_and_their_status(void **state)
{
    (void)state;
    char good[128], bad[128];
    make_model(good, "good.gguf", 64, DT_F32, false);
    FILE *f = fopen(path_in(bad, "bad.gguf"), "w");
    fputs("GGUF but no more", f);
    fclose(f);
    struct result r = RUN(NULL);
    assert_one_line(&r, 2, "no model given");
    r = RUN("--quik", good);
    assert_one_line(&r, 2, "--quick");
    r = RUN(good, good);
    assert_one_line(&r, 2, "one model");
    r = RUN(good, "--threads", "none");
    assert_one_line(&r, 2, "--threads");
    r = RUN(good, "--kv", "q4_0");
    assert_one_line(&r, 2, "--kv");
    r = RUN(good, "--context", "512,64");
    assert_one_line(&r, 2, "--context");
    r = RUN(good, "--devices", "abacus");
    assert_one_line(&r, 2, "abacus");
    r = RUN(bad);
    assert_one_line(&r, 3, "bad.gguf");
    r = RUN(good, "--replace", "-o", bad);
    assert_one_line(&r, 2, "is a GGUF file and is not overwritten");
    r = RUN(good, "--replace", "-o", good);
    assert_one_line(&r, 2, "is an input of this command");
    f = fopen(path_in(bad, "bad.yaml"), "w");
    fputs("no profile", f);
    fclose(f);
    r = RUN(good, "-o", bad);
    assert_one_line(&r, 3, "bad.yaml");
    r = RUN("nowhere.gguf");
    assert_one_line(&r, 6, "nowhere.gguf");
    r = RUN(good, "-q", "-t1", "-o", "no/such/folder.yaml");
    assert_one_line(&r, 6, "no/such/folder.yaml");
}

static void help_version_and_devices_need_no_model(void **state)
{
    (void)state;
    struct result r = RUN("--help");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "--list-devices"));
    r = RUN("--version");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "oato-profile "));
    r = RUN("--list-devices");
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "cpu:0"));
    assert_non_null(strstr(r.out, "sim"));
}

static void a_run_writes_and_extends_the_machines_profile(void **state)
{
    (void)state;
    char model[128], second[128], name[96], path[128], text[8192];
    struct oato_error err;
    struct profile p;
    make_model(model, "model.gguf", 64, DT_Q8_0, false);
    make_model(second, "second.gguf", 128, DT_Q8_0, false);
    struct result r = RUN(model, "-q", "-t", "1", "--devices=cpu,sim:vram=32MiB", "-c", "64,256");
    if (r.status)
        fail_msg("%s", r.err);
    /* the name by default is the CPU's */
    const char *end = strstr(r.out, ".profile.yaml"), *from = end;
    assert_non_null(end);
    while (from > r.out && from[-1] != '\n')
        from--;
    snprintf(name, sizeof name, "%.*s.profile.yaml", (int)(end - from), from);
    path_in(path, name);
    if (profile_load(path, &p, NULL, NULL, &err))
        fail_msg("%s", err.text);
    int32_t rows = p.n_rows;
    assert_int_equal(p.n_devices, 2);
    profile_free(&p);
    slurp(path, text, sizeof text);
    assert_null(strstr(text, test_folder));
    r = RUN("-m", second, "--quick", "--threads=1", "--json");
    if (r.status)
        fail_msg("%s", r.err);
    assert_non_null(strstr(r.out, "{\"file\":\""));
    assert_non_null(strstr(r.out, "\"links\":["));
    assert_int_equal(profile_load(path, &p, NULL, NULL, &err), OATO_OK);
    assert_true(p.n_rows > rows);
    assert_int_equal(p.n_devices, 2);
    profile_free(&p);
    if (sysconf(_SC_NPROCESSORS_ONLN) > 1) { /* not mixed with rows of other threads */
        r = RUN(second, "-q", "--threads", "2", "-o", name);
        assert_one_line(&r, 2, "--threads 1");
    }
}

static void a_failed_or_interrupted_run_leaves_the_file(void **state)
{
    (void)state;
    char model[128], file[128], before[65536], after[65536];
    make_model(model, "leave.gguf", 64, DT_F32, false);
    path_in(file, "leave.yaml");
    struct result r = RUN(model, "-q", "-t1", "-o", file);
    if (r.status)
        fail_msg("%s", r.err);
    slurp(file, before, sizeof before);
    /* the disk is full */
    r = run((const char *const[WORDS]){model, "-q", "-t1", "-o", file}, 2048, 0);
    assert_one_line(&r, 6, "leave.yaml");
    slurp(file, after, sizeof after);
    assert_string_equal(before, after);
    r = run((const char *const[WORDS]){model, "-t1", "-o", file}, NO_LIMIT, 1000);
    assert_one_line(&r, 130, "interrupted");
    slurp(file, after, sizeof after);
    assert_string_equal(before, after);
    /* nothing half-written beside it, but what the next run takes up */
    char command[160];
    snprintf(command, sizeof command, "ls -a '%s' | grep leave.yaml | grep -vc '\\.partial$'",
             test_folder);
    FILE *f = popen(command, "r");
    int n = 0;
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    assert_int_equal(n, 1);
}

/* Storage is read several times while the rest is measured, and its file is gone afterwards. */
static void storage_is_read_while_the_rest_is_measured(void **state)
{
    (void)state;
    char model[128], out[128], folder[128];
    struct oato_error err;
    struct profile p;
    path_in(out, "storage.yaml");
    path_in(folder, "storage");
    make_model(model, "storage.gguf", 64, DT_Q8_0, false);
    assert_int_equal(mkdir(folder, 0700), 0);
    const struct result r = RUN(model, "-q", "-t", "1", "-c", "64", "--storage", folder, "-o", out);
    if (r.status)
        fail_msg("%s", r.err);
    assert_int_equal(rmdir(folder), 0); /* empty */
    assert_int_equal(profile_load(out, &p, NULL, NULL, &err), OATO_OK);
    const struct profile_storage *s = profile_storage_ahead(&p);
    assert_non_null(s);
    assert_int_equal(s->depth, READS_AHEAD);
    assert_int_equal(s->bytes, READ_CHUNK);
    for (int32_t i = 0; i < p.n_storage; i++) {
        assert_in_range(p.storage[i].passes, 3, 64);
        assert_true(p.storage[i].p10_bytes_per_s > 0);
        assert_true(p.storage[i].p10_bytes_per_s <= p.storage[i].bytes_per_s);
        assert_true(p.storage[i].p90_bytes_per_s >= p.storage[i].bytes_per_s);
    }
    profile_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mistakes_get_one_line_and_their_status),
        cmocka_unit_test(help_version_and_devices_need_no_model),
        cmocka_unit_test(a_run_writes_and_extends_the_machines_profile),
        cmocka_unit_test(a_failed_or_interrupted_run_leaves_the_file),
        cmocka_unit_test(storage_is_read_while_the_rest_is_measured),
    };
    return cmocka_run_group_tests(tests, folder_create, folder_remove);
}
