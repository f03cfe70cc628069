/*
 * test_ov_load.c - finding and opening the library: where it is looked for, and one line each for
 * one that is missing, is none, lacks a function, or has no such device. The stand-in of the test
 * needs no OpenVINO; the last test does.
 */
#include "tests/kernels/openvino/ov_test.h"

#include <dlfcn.h>
#include <sys/stat.h>

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[2][OV_PATH_BYTES];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void it_is_found_where_people_say(void **state)
{
    (void)state;
    char path[OV_PATH_BYTES];
    setenv("OATO_OPENVINO", folder, 1);
    assert_false(ov_library_found(path));
    mkdir(in_folder("libs"), 0700);
    write_file(in_folder("libs/libopenvino_c.so.2540"), "");
    write_file(in_folder("libs/libopenvino_c.so.2641"), "no library");
    write_file(in_folder("libs/libopenvino_gapi.so.9999"), "");
    assert_true(ov_library_found(path)); /* of a Python package: the newest release */
    assert_string_equal(path, in_folder("libs/libopenvino_c.so.2641"));
    setenv("OATO_OPENVINO", in_folder("libs/libopenvino_c.so.2540"), 1);
    assert_true(ov_library_found(path));
    assert_string_equal(path, in_folder("libs/libopenvino_c.so.2540"));
    setenv("OATO_OPENVINO", in_folder("libs/libopenvino_c.so.1"), 1);
    assert_false(ov_library_found(NULL));
    unsetenv("OATO_OPENVINO");
    setenv("LD_LIBRARY_PATH", in_folder("libs"), 1);
    assert_true(ov_library_found(path));
    unsetenv("LD_LIBRARY_PATH");
}

static void refused(const char *path, const char *what)
{
    struct ov_library l;
    struct oato_error err = {0};
    assert_int_equal(ov_library_load(path, &l, &err), OATO_EDEVICE);
    if (!strstr(err.text, what) || strchr(err.text, '\n'))
        fail_msg("not one line about '%s': %s", what, err.text);
    if (l.handle)
        dlclose(l.handle);
}

static void what_is_no_library_is_one_line(void **state)
{
    (void)state;
    refused(in_folder("libs/none.so"), "none.so");
    refused(in_folder("libs/libopenvino_c.so.2641"), "2641"); /* text */
    refused(OATO_TEST_PLAIN_LIBRARY, "lacks ov_");
}

static void without_it_the_way_to_it_is_named(void **state)
{
    (void)state;
    struct ov_runtime *rt = NULL;
    struct oato_error err = {0};
    setenv("OATO_OPENVINO", in_folder("libs/libopenvino_c.so.2641"), 1);
    assert_int_equal(ov_runtime_open("CPU", &rt, &err), OATO_EDEVICE);
    assert_non_null(strstr(err.text, "cannot open its library"));
    assert_null(strchr(err.text, '\n'));
    assert_int_equal(ov_runtime_open("", &rt, &err), OATO_EDEVICE); /* the same again */
    assert_non_null(strstr(err.text, "cannot open its library"));
}

/* In a process of its own, in which no other library was opened: prints the line. */
static int open_device(const char *device)
{
    struct ov_runtime *rt = NULL;
    struct oato_error err = {0};
    struct text names = {0};
    if (!ov_test_library())
        return 77;
    if (!ov_runtime_devices(&names, &err) && strstr(names.data, "CPU") &&
        ov_runtime_open(device, &rt, &err))
        printf("%s\n", err.text);
    text_free(&names);
    ov_runtime_close(rt);
    return err.status;
}

static void other_devices_are_one_line(void **state)
{
    static const char *const asks[] = {"NPU", "GPU.7", "TPU", ""};
    (void)state;
    unsetenv("OATO_OPENVINO");
    for (size_t i = 0; i < ARRAY_LEN(asks); i++) {
        char command[OV_PATH_BYTES], line[1024] = "", more[16];
        const ssize_t n = readlink("/proc/self/exe", command, sizeof command - 16);
        assert_true(n > 0);
        snprintf(command + n, 16, " open '%s'", asks[i]);
        FILE *f = popen(command, "r");
        assert_non_null(f);
        const bool any = fgets(line, sizeof line, f);
        assert_null(fgets(more, sizeof more, f));
        const int status = pclose(f);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77)
            skip();
        if (WEXITSTATUS(status) == OATO_OK) /* there is one */
            continue;
        assert_int_equal(WEXITSTATUS(status), OATO_EDEVICE);
        assert_true(any);
        if (!strstr(line, *asks[i] ? asks[i] : "device=CPU"))
            fail_msg("%s: %s", asks[i], line);
    }
}

int main(int argc, char **argv)
{
    if (argc == 3)
        return open_device(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_found_where_people_say),
        cmocka_unit_test(what_is_no_library_is_one_line),
        cmocka_unit_test(without_it_the_way_to_it_is_named),
        cmocka_unit_test(other_devices_are_one_line),
    };
    snprintf(folder, sizeof folder, "/tmp/oato-ov-%d", (int)getpid());
    mkdir(folder, 0700);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < 4; i++)
        remove(in_folder((const char *const[]){"libs/libopenvino_c.so.2540",
                                               "libs/libopenvino_c.so.2641",
                                               "libs/libopenvino_gapi.so.9999", "libs"}[i]));
    remove(folder);
    return failed;
}
