/*
 * test_names.c - a name means the same model whoever lists the files: the one that llama.cpp takes
 * where it is clear, a refusal that names the choices where it is not; no path of a list leads out
 * of a folder; a note of an unfinished file is believed only when it is whole.
 */
#include "net/net_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void names(void **state)
{
    (void)state;
    static const char *const good[] = {"a/b", "Owner-1/Repo.GGUF_x", "a/b:Q4_K_M",
                                       "a/b:dir/f-Q8_0.gguf"};
    static const char *const bad[] = {
        "",     "a",      "a/",          "/b",     "a/b/c",          "a/b:",     "../b",
        "a/..", ".a/b",   "a/b:../c",    "a/b:/c", "a b/c",          "a/b:c\nd", "-a/b",
        "a/-b", "a/b\\c", "https://x/y", "a/b:c/", "models/x.gguf/y"};
    struct hub_name n;
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        assert_true(hub_name_parse(good[i], &n));
    assert_string_equal(n.repo, "a/b");
    assert_string_equal(n.quant, "dir/f-Q8_0.gguf");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (hub_name_parse(bad[i], &n))
            fail_msg("'%s' is taken for a name", bad[i]);
}

/* "files, with commas", QUANT -> the first file of the model, or a part of the message. */
static const struct {
    const char *files, *quant, *chosen;
} choices[] = {
    {"m-Q8_0.gguf,m-Q4_K_M.gguf,m-F16.gguf", "", "m-Q4_K_M.gguf"},
    {"m-Q8_0.gguf,m-F16.gguf", "", "m-Q8_0.gguf"},
    {"m-IQ2_M.gguf,m-F16.gguf", "", "m-F16.gguf"}, /* the first by name */
    {"m-Q4_0.gguf,m-IQ4_NL.gguf", "q4_0", "m-Q4_0.gguf"},
    {"m-IQ4_NL.gguf", "Q4_NL", "!no 'Q4_NL': there is IQ4_NL"},
    {"m-Q4_K_M.gguf,m-Q4_K_S.gguf", "Q4_K", "!there is Q4_K_M, Q4_K_S"},
    {"m.Q4_K_M.gguf", "Q4_K_M", "m.Q4_K_M.gguf"},
    {"m-UD-Q4_K_XL.gguf,m-Q4_K_M.gguf", "UD-Q4_K_XL", "m-UD-Q4_K_XL.gguf"},
    {"Q4_K_M/m-Q4_K_M-00001-of-00002.gguf,Q4_K_M/m-Q4_K_M-00002-of-00002.gguf", "",
     "Q4_K_M/m-Q4_K_M-00001-of-00002.gguf"},
    {"m-Q4_K_M-00001-of-00002.gguf", "", "!part 2 of 2"},
    {"m-Q4_K_M-00002-of-00002.gguf", "", "!part 1 of 2"},
    {"m-Q4_K_M-00001-of-00002.gguf,m-Q4_K_M-00002-of-00002.gguf,m-Q4_K_M.gguf", "", "!2 models"},
    {"m-Q4_K_M-00001-of-00002.gguf,m-Q4_K_M-00002-of-00002.gguf,m-Q4_K_M.gguf", "m-Q4_K_M.gguf",
     "m-Q4_K_M.gguf"},
    {"m-Q4_K_M-00000-of-00000.gguf", "", "m-Q4_K_M-00000-of-00000.gguf"},
    {"m-Q4_K_M-00005-of-00002.gguf", "m-Q4_K_M-00005-of-00002.gguf",
     "m-Q4_K_M-00005-of-00002.gguf"},
    {"a-Q4_K_M.gguf,b-Q4_K_M.gguf", "", "!a-Q4_K_M, b-Q4_K_M"},
    {"a-Q4_K_M.gguf,b-Q4_K_M.gguf", "b-Q4_K_M.gguf", "b-Q4_K_M.gguf"},
    {"a-Q4_K_M.gguf,a-Q4_K_M-imat.gguf", "Q4_K_M", "a-Q4_K_M.gguf"},
    {"mmproj-m-Q4_K_M.gguf,imatrix.gguf,m-Q8_0.gguf", "", "m-Q8_0.gguf"},
    {"mmproj-m-F16.gguf", "", "!no GGUF model"},
    {"README.md,model.safetensors", "", "!no GGUF model"},
    {"model.gguf", "", "model.gguf"},
    {".gguf,x.gguf.part", "", "!no GGUF model"},
    {"/m-Q4_K_M.gguf,../m-Q4_K_M.gguf,a/../m-Q4_K_M.gguf,a//b.gguf,a/.b.gguf,a\\b.gguf", "",
     "!no GGUF model"},
};

static void choosing(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(choices); i++) {
        struct hub_files f = {0};
        struct oato_error err = {0};
        const struct hub_model *m = NULL;
        char *list = strdup(choices[i].files), *rest = list;
        arena_init(&f.arena);
        for (char *file; (file = strsep(&rest, ","));)
            assert_true(hub_files_add(&f, file, 1, ""));
        assert_int_equal(hub_files_group(&f, &err), OATO_OK);
        const char *want = choices[i].chosen;
        if (hub_choose(&f, "a/b", choices[i].quant, &m, &err) || hub_model_whole(m, "a/b", &err)) {
            assert_int_equal(err.status, OATO_EUSAGE);
            if (*want != '!' || !strstr(err.text, want + 1))
                fail_msg("%s %s: %s", choices[i].files, choices[i].quant, err.text);
        } else if (strcmp(m->part[0]->path, want) != 0) {
            fail_msg("%s %s: %s", choices[i].files, choices[i].quant, m->part[0]->path);
        }
        hub_files_free(&f);
        free(list);
    }
}

static void many_choices(void **state)
{
    (void)state;
    struct hub_files f = {0};
    struct oato_error err = {0};
    const struct hub_model *m;
    char name[64];
    arena_init(&f.arena);
    for (int i = 0; i < 500; i++) {
        snprintf(name, sizeof name, "some/rather-long-name-of-a-model-%03d.gguf", i);
        assert_true(hub_files_add(&f, name, 1, ""));
    }
    assert_int_equal(hub_files_group(&f, &err), OATO_OK);
    assert_int_equal(hub_choose(&f, "a/b", "Q9", &m, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, " more"));
    hub_files_free(&f);
}

/* The note of 3 MiB, of which some is there; then with a byte changed, or cut. */
static void notes(void **state)
{
    (void)state;
    char folder[] = "/tmp/oato-net-XXXXXX";
    assert_non_null(mkdtemp(folder));
    struct text path;
    struct part p;
    struct oato_error err = {0};
    struct pull_options o = {0};
    uint64_t bytes = 0, done = 0;
    bool complete;
    static uint8_t data[1000];
    text_init(&path);
    text_printf(&path, "%s/m.gguf", folder);
    const struct fetch f = {
        .path = path.data, .name = "m", .bytes = 3 << 20, .sum = "ab", .options = &o};
    assert_int_equal(part_open(&p, &f, &complete, &err), OATO_OK);
    assert_false(complete);
    assert_int_equal(p.n_segments, 3);
    assert_int_equal(part_write(&p, 1, data, sizeof data, &err), OATO_OK);
    assert_int_equal(part_note(&p, &err), OATO_OK);
    part_close(&p, false);
    text_printf(&path, PART_SUFFIX);
    assert_true(part_look(path.data, &bytes, &done));
    assert_int_equal(bytes, 3 << 20);
    assert_int_equal(done, sizeof data);
    FILE *file = fopen(path.data, "r+");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    const long end = ftell(file);
    for (long at = 3 << 20; at < end; at++) {
        fseek(file, at, SEEK_SET);
        const int was = fgetc(file);
        fseek(file, at, SEEK_SET);
        fputc(was ^ 1, file);
        fflush(file);
        assert_false(part_look(path.data, &bytes, &done));
        fseek(file, at, SEEK_SET);
        fputc(was, file);
        fflush(file);
    }
    assert_true(part_look(path.data, &bytes, &done));
    assert_int_equal(truncate(path.data, end - 1), 0);
    assert_false(part_look(path.data, &bytes, &done));
    fclose(file);
    unlink(path.data);
    rmdir(folder);
    text_free(&path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(choosing),
        cmocka_unit_test(many_choices),
        cmocka_unit_test(notes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
