/*
 * test_model_files.c - what --models names: the models of a folder and of folders in it, the first
 * parts of split ones, without what belongs to others; or a list of files.
 */
#include "front/auto.h"
#include "tests/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/stat.h>

#include <cmocka.h>

static void file_make(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", test_folder, name);
    FILE *f = stream_open(path, "w");
    assert_non_null(f);
    fclose(f);
}

static void sub_make(const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", test_folder, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static void expect(const struct model_files *f, int32_t i, const char *name, const char *file)
{
    assert_string_equal(f->of[i].name, name);
    assert_string_equal(f->of[i].path + strlen(test_folder) + 1, file);
}

static void of_a_folder(void **state)
{
    static const char *const names[] = {"b-Q4_0.gguf",
                                        "a-00002-of-00002.gguf",
                                        "a-00001-of-00002.gguf",
                                        "b-Q4_0.neurons.gguf",
                                        "mmproj-b.gguf",
                                        "mtp-b.gguf",
                                        "notes.txt",
                                        "b.gguf.part"};
    struct model_files f;
    struct oato_error err;
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        file_make(names[i]);
    sub_make("seen");
    file_make("seen/model-00001-of-00003.gguf");
    file_make("seen/model-00002-of-00003.gguf");
    file_make("seen/mmproj-F16.gguf");
    sub_make("empty");
    assert_int_equal(model_files_read(&f, test_folder, &err), OATO_OK);
    assert_int_equal(f.n, 3);
    expect(&f, 0, "a", "a-00001-of-00002.gguf");
    expect(&f, 1, "b-Q4_0", "b-Q4_0.gguf");
    expect(&f, 2, "seen", "seen/model-00001-of-00003.gguf");
    model_files_free(&f);
}

static void of_a_list(void **state)
{
    struct model_files f;
    struct oato_error err;
    char list[512];
    (void)state;
    sub_make("x");
    file_make("x/two.gguf");
    file_make("one.gguf");
    snprintf(list, sizeof list, "%s/x/two.gguf,%s/one.gguf", test_folder, test_folder);
    assert_int_equal(model_files_read(&f, list, &err), OATO_OK);
    assert_int_equal(f.n, 2);
    expect(&f, 0, "one", "one.gguf");
    expect(&f, 1, "two", "x/two.gguf");
    model_files_free(&f);
    file_make("two.gguf");
    snprintf(list, sizeof list, "%s/x/two.gguf,%s/two.gguf", test_folder, test_folder);
    assert_int_equal(model_files_read(&f, list, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "the same name"));
    assert_int_equal(model_files_read(&f, ",", &err), OATO_EUSAGE);
    assert_int_equal(model_files_read(&f, "/x/not/there.gguf", &err), OATO_EIO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(of_a_folder, folder_create, folder_remove),
        cmocka_unit_test_setup_teardown(of_a_list, folder_create, folder_remove)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
