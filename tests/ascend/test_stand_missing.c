/*
 * The libraries as a loader opens them: by dlopen, with symbols spread as in CANN, and without
 * those that STAND_MISSING takes out. Nothing of them is linked. The report is written at exit.
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void *open_library(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", OATO_STAND_IN, name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Each library is opened in a child of its own: what is taken out stays out. */
static int in_a_child(int (*body)(void))
{
    pid_t child = fork();
    if (child == 0)
        exit(body());
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int all_are_there(void)
{
    void *runtime = open_library("libascendcl.so"), *base = open_library("libnnopbase.so"),
         *operators = open_library("libopapi.so");
    return !runtime || !base || !operators || !dlsym(runtime, "aclmdlRICaptureBegin") ||
           !dlsym(runtime, "oato_stand_in") || !dlsym(base, "aclCreateTensor") ||
           !dlsym(operators, "aclnnAdd") || !dlsym(operators, "aclnnAddGetWorkspaceSize");
}

static int three_are_missing(void)
{
    setenv("STAND_MISSING", "aclnnAdd,aclmdlRICaptureBegin,aclCreateBoolArray", 1);
    void *runtime = open_library("libascendcl.so"), *base = open_library("libnnopbase.so"),
         *operators = open_library("libopapi.so");
    if (!runtime || !base || !operators)
        return 1;
    if (dlsym(operators, "aclnnAdd") || dlsym(runtime, "aclmdlRICaptureBegin") ||
        dlsym(base, "aclCreateBoolArray"))
        return 2;
    /* Names that begin or end alike are there, and what is there works. */
    int (*init)(const char *) = (int (*)(const char *))dlsym(runtime, "aclInit");
    return !dlsym(operators, "aclnnAddGetWorkspaceSize") || !dlsym(operators, "aclnnInplaceAdd") ||
           !dlsym(operators, "aclnnAdds") || !dlsym(runtime, "aclmdlRICaptureEnd") || !init ||
           init(NULL);
}

static void libraries_are_opened_as_canns(void **state)
{
    (void)state;
    assert_int_equal(in_a_child(all_are_there), 0);
}

static void missing_symbols_are_truly_missing(void **state)
{
    (void)state;
    assert_int_equal(in_a_child(three_are_missing), 0);
}

static char report[] = "/tmp/stand-report-XXXXXX";

static int leak_and_break(void)
{
    setenv("STAND_REPORT", report, 1);
    void *runtime = open_library("libascendcl.so"), *memory;
    int (*init)(const char *) = (int (*)(const char *))dlsym(runtime, "aclInit");
    int (*set)(int) = (int (*)(int))dlsym(runtime, "aclrtSetDevice");
    int (*get)(void **, size_t, int) = (int (*)(void **, size_t, int))dlsym(runtime, "aclrtMalloc");
    return init(NULL) || set(0) || get(&memory, 100, 0) || init(NULL) != 100002;
}

static void the_report_tells_leaks_and_broken_rules(void **state)
{
    (void)state;
    int file = mkstemp(report);
    assert_true(file >= 0);
    assert_int_equal(in_a_child(leak_and_break), 0);
    char text[2048] = "";
    assert_true(read(file, text, sizeof text - 1) > 0);
    close(file);
    unlink(report);
    assert_non_null(strstr(text, "rule initialise_once: aclInit again (code 100002)"));
    assert_non_null(strstr(text, "leak: 1 x device memory, 100 bytes"));
    assert_non_null(strstr(text, "end: 1 broken, 1 leaks on Ascend910B4"));
    assert_non_null(strstr(text, "declared, not measured"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(libraries_are_opened_as_canns),
        cmocka_unit_test(missing_symbols_are_truly_missing),
        cmocka_unit_test(the_report_tells_leaks_and_broken_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
