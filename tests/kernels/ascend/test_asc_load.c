/*
 * test_asc_load.c - finding and opening CANN: where it is looked for, what it costs where there is
 * none, and one line each for a library that is none or lacks a function; an operator that is
 * missing is one that the device does not have. What opens the libraries runs in a process of its
 * own.
 */
#include "tests/kernels/ascend/asc_test.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char folder[64] = "/tmp/asc_load_XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[4][ASC_PATH_BYTES];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void forget_all(void)
{
    unsetenv("OATO_ASCEND");
    unsetenv("ASCEND_TOOLKIT_HOME");
    unsetenv("ASCEND_HOME_PATH");
    unsetenv("LD_LIBRARY_PATH");
}

/* ---------------------------------------------------------------------- in a process alone -- */

/* In the child: it has no test to fail. */
#define CHECK(holds)                                                                               \
    do {                                                                                           \
        if (!(holds)) {                                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds);                            \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

static void alone(void (*body)(void), const char *home, const char *missing)
{
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        forget_all();
        setenv("OATO_ASCEND", home, 1);
        if (missing)
            setenv("STAND_MISSING", missing, 1);
        body();
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static bool has_line(const struct oato_error *err, const char *what)
{
    if (strstr(err->text, what) && !strchr(err->text, '\n'))
        return true;
    fprintf(stderr, "not one line about '%s': %s\n", what, err->text);
    return false;
}

static struct oato_device *open_device(void)
{
    struct oato_device *d = NULL;
    struct oato_error err;
    if (device_open("ascend", 0, NULL, &d, &err))
        fprintf(stderr, "%s\n", err.text);
    return d;
}

static bool runs(const struct oato_device *d, enum op_kind kind)
{
    struct oato_op op;
    return op_example(kind, kind == OP_MUL_MAT ? DT_F16 : DT_F32, &op) && d->ops->supports(d, &op);
}

/* -------------------------------------------------------------------------------- finding -- */

static void it_is_found_where_people_say(void **state)
{
    char path[ASC_PATH_BYTES];
    (void)state;
    forget_all();
    setenv("OATO_ASCEND", folder, 1);
    assert_false(asc_libraries_found(path));
    mkdir(in_folder("lib64"), 0700);
    write_file(in_folder("lib64/libacl_rt.so"), "no library");
    assert_true(asc_libraries_found(path));
    assert_string_equal(path, in_folder("lib64/libacl_rt.so"));
    write_file(in_folder("lib64/libascendcl.so"), "no library");
    assert_true(asc_libraries_found(path));
    assert_string_equal(path, in_folder("lib64/libascendcl.so"));
    setenv("ASCEND_TOOLKIT_HOME", folder, 1);
    setenv("OATO_ASCEND", "/nowhere", 1); /* what is asked for counts, and nothing else */
    assert_false(asc_libraries_found(NULL));
    unsetenv("OATO_ASCEND");
    assert_true(asc_libraries_found(NULL));
    unsetenv("ASCEND_TOOLKIT_HOME");
    setenv("ASCEND_HOME_PATH", folder, 1);
    assert_true(asc_libraries_found(NULL));
    unsetenv("ASCEND_HOME_PATH");
    setenv("LD_LIBRARY_PATH", in_folder("lib64"), 1);
    assert_true(asc_libraries_found(path));
    assert_string_equal(path, in_folder("lib64/libascendcl.so"));
    forget_all();
}

static bool is_open(const char *library)
{
    char line[1024];
    bool open = false;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        open = open || strstr(line, library);
    fclose(f);
    return open;
}

/* To look costs some files; nothing is opened unless an NPU is there or somebody asks. */
static void without_an_npu_nothing_is_opened(void **state)
{
    enum { RUNS = 100 };
    char line[320];
    (void)state;
    forget_all();
    setenv("LD_LIBRARY_PATH", OATO_STAND_IN, 1);
    const uint64_t begin = now_ns();
    int n = 0;
    for (int i = 0; i < RUNS; i++)
        n += ascend_device_ops.probe();
    const uint64_t each = (now_ns() - begin) / RUNS;
    if (asc_nodes("") == 0) {
        assert_int_equal(n, 0);
        assert_false(is_open("libascendcl"));
    }
    assert_true(each < 1000000);
    ascend_device_ops.absence(line);
    assert_non_null(strstr(line, "unverified on hardware"));
    forget_all();
    ascend_device_ops.absence(line);
    assert_non_null(strstr(line, "OATO_ASCEND"));
    assert_null(strchr(line, '\n'));
    setenv("OATO_ASCEND", "/no/such/folder", 1);
    ascend_device_ops.absence(line);
    assert_non_null(strstr(line, "/no/such/folder"));
    unsetenv("OATO_ASCEND");
}

static void pci_put(const char *name, const char *text)
{
    char path[ASC_PATH_BYTES];
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices/0000:c1:00.0/%s", folder, name);
    write_file(path, text);
}

static void what_is_plugged_in_is_named(void **state)
{
    struct device_sight s;
    char command[256];
    (void)state;
    forget_all();
    asc_sight(folder, &s);
    assert_int_equal(s.n, 0);
    snprintf(command, sizeof command, "mkdir -p %s/sys/bus/pci/devices/0000:c1:00.0 %s/dev", folder,
             folder);
    assert_int_equal(system(command), 0); /* NOLINT: a path of ours */
    pci_put("vendor", "0x19e5\n");
    pci_put("device", "0xd802\n");
    pci_put("class", "0x120000\n");
    asc_sight(folder, &s);
    assert_int_equal(s.n, 1);
    assert_string_equal(s.what, "Huawei Ascend 910B (19e5:d802) at 0000:c1:00.0");
    assert_true(s.why[0] && s.command[0]);
    write_file(in_folder("dev/davinci0"), "");
    write_file(in_folder("dev/davinci_manager"), "");
    assert_int_equal(asc_nodes(folder), 1);
    setenv("OATO_ASCEND", "/nowhere", 1);
    asc_sight(folder, &s);
    assert_non_null(strstr(s.why, "libascendcl.so"));
    forget_all();
}

/* -------------------------------------------------------------------------------- opening -- */

static void is_refused(const char *what)
{
    struct oato_device *d;
    struct oato_error err;
    for (int again = 0; again < 2; again++) {
        CHECK(device_open("ascend", 0, NULL, &d, &err) == OATO_EDEVICE);
        CHECK(has_line(&err, what));
    }
}

static void no_library(void)
{
    is_refused("cannot open CANN's library");
}

static void none_there(void)
{
    is_refused("OATO_ASCEND");
}

static void no_malloc_host(void)
{
    is_refused("lack aclrtMallocHost: install CANN");
}

static void no_tensors(void)
{
    is_refused("lack aclCreateTensor");
}

static void what_is_no_library_is_one_line(void **state)
{
    (void)state;
    alone(no_library, folder, NULL);
    alone(none_there, "/nowhere", NULL);
    alone(no_malloc_host, OATO_STAND_IN, "aclrtMallocHost");
    alone(no_tensors, OATO_STAND_IN, "aclCreateTensor");
}

static int lacking;
static char lacks[64];

static void see(void *user, const char *library, const char *symbol, bool found)
{
    (void)user;
    CHECK(!strcmp(library, "CANN"));
    if (!found && !strncmp(symbol, "aclnn", 5)) {
        lacking++;
        snprintf(lacks, sizeof lacks, "%s", symbol);
    }
}

static void one_operator_lacks(void)
{
    struct oato_device *d = open_device();
    CHECK(d);
    CHECK(!runs(d, OP_RMS_NORM) && runs(d, OP_MUL_MAT));
    d->ops->symbols(see, NULL);
    CHECK(lacking == 1 && !strcmp(lacks, "aclnnRmsNorm"));
    d->ops->close(d);
}

static void newer_functions_lack(void)
{
    struct oato_device *d = open_device();
    CHECK(d);
    CHECK(runs(d, OP_RMS_NORM) && runs(d, OP_MUL_MAT));
    d->ops->close(d);
}

static void all_is_there(void)
{
    struct oato_device *d = open_device();
    CHECK(d);
    CHECK(runs(d, OP_RMS_NORM) && runs(d, OP_MUL_MAT));
    d->ops->symbols(see, NULL);
    CHECK(lacking == 0);
    CHECK(asc_of(d)->api->stand_in);
    d->ops->close(d);
}

/* Operators are spread over libraries; what is not there does not keep the rest from use. */
static void a_missing_operator_is_not_supported(void **state)
{
    (void)state;
    alone(all_is_there, OATO_STAND_IN, NULL);
    alone(one_operator_lacks, OATO_STAND_IN, "aclnnRmsNorm");
    alone(one_operator_lacks, OATO_STAND_IN, "aclnnRmsNormGetWorkspaceSize");
    alone(newer_functions_lack, OATO_STAND_IN,
          "aclmdlRICaptureBegin,aclrtReserveMemAddress,aclrtSynchronizeStreamWithTimeout,"
          "aclDestroyAclOpExecutor");
}

static void starting_fails(void)
{
    char line[320];
    setenv("STAND_FAIL", "aclInit:1:507899", 1);
    is_refused("starting CANN");
    CHECK(ascend_device_ops.probe() == asc_nodes(""));
    ascend_device_ops.absence(line);
    CHECK(!strncmp(line, "starting CANN", 13)); /* the line begins with the device's name */
}

static void started_twice(void)
{
    setenv("STAND_FAIL", "aclInit:1:100002", 1);
    struct oato_error err;
    CHECK(asc_api_open(&err));
}

static void starting_is_checked(void **state)
{
    (void)state;
    alone(starting_fails, OATO_STAND_IN, NULL);
    alone(started_twice, OATO_STAND_IN, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_found_where_people_say),
        cmocka_unit_test(without_an_npu_nothing_is_opened),
        cmocka_unit_test(what_is_plugged_in_is_named),
        cmocka_unit_test(what_is_no_library_is_one_line),
        cmocka_unit_test(a_missing_operator_is_not_supported),
        cmocka_unit_test(starting_is_checked),
    };
    if (!mkdtemp(folder))
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) ? 1 : failed; /* NOLINT: a path of ours */
}
