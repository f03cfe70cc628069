/*
 * test_prepared.c - prepared weights kept in files: a start that maps them computes the same bits
 * as one that prepares, and a file that is cut off, damaged in any bit, of another model, layout or
 * choice of rows is told in one line, not used and replaced; a full disk leaves nothing behind.
 */
#include "tests/executor/harness.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 5 };

static char folder[64];
static int warnings;
static char warning[600];

static void count_warning(void *user, const char *text)
{
    (void)user;
    warnings++;
    snprintf(warning, sizeof warning, "%s", text);
}

/* The only entry of the folder; false when there is none, a failed test when there are more. */
static bool only_file(char *path, size_t n)
{
    DIR *d = opendir(folder);
    int files = 0;
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        files++;
        snprintf(path, n, "%s/%s", folder, e->d_name);
    }
    closedir(d);
    assert_in_range(files, 0, 1);
    return files == 1;
}

static void clear_folder(void)
{
    char path[400];
    if (only_file(path, sizeof path))
        unlink(path);
}

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/oato-prepared-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int teardown(void **state)
{
    (void)state;
    clear_folder();
    return rmdir(folder);
}

/* Logits of a fresh engine, which must have mapped all weights or none. */
static float *start(const struct model *m, const char *isa, const struct plan *plan, bool mapped,
                    int expected_warnings)
{
    struct engine *e = NULL;
    struct oato_error err;
    struct engine_stats stats;
    struct engine_options o = {.threads = 2, .rows = 8, .isa = isa, .prepared_cache = folder};
    int32_t ids[N];
    warnings = 0;
    if (engine_open(m, plan, &o, count_warning, NULL, &e, &err))
        fail_msg("%s", err.text);
    if (warnings != expected_warnings)
        fail_msg("%d warnings, not %d: %s", warnings, expected_warnings, warning);
    engine_get_stats(e, &stats);
    assert_int_equal(stats.mapped_bytes > 0, mapped);
    fill_ids(ids, N, m->shape.vocab, 7);
    float *logits = logits_of(e, ids, N);
    engine_close(e);
    return logits;
}

static void start_again(const struct model *m, const float *expected, bool mapped, int lines)
{
    float *got = start(m, NULL, NULL, mapped, lines);
    assert_same_bits(got, expected, (size_t)N * (size_t)m->shape.vocab);
    free(got);
}

static uint8_t *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    struct stat st;
    assert_non_null(f);
    assert_int_equal(stat(path, &st), 0);
    *n = (size_t)st.st_size;
    uint8_t *data = malloc(*n);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *n, f), *n);
    fclose(f);
    return data;
}

static void write_all(const char *path, const uint8_t *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void a_second_start_maps_what_the_first_one_kept(void **state)
{
    (void)state;
    static const oato_dtype types[] = {DT_Q4_0, DT_Q6_K, DT_F16};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct model *m = tiny_model(types[i], 3);
        float *first = start(m, NULL, NULL, false, 0);
        start_again(m, first, true, 0);
        start_again(m, first, true, 0);
        free(first);
        model_close(m);
        clear_folder();
    }
}

/* The file's hash after a start for embeddings or for answers, which must have mapped it or not. */
static uint64_t file_after(const struct model *m, const struct plan *plan, bool embeddings,
                           bool mapped)
{
    struct engine *e = NULL;
    struct oato_error err;
    struct engine_stats stats;
    char path[400];
    size_t n;
    struct engine_options o = {.threads = 2, .embeddings = embeddings, .prepared_cache = folder};
    if (engine_open(m, plan, &o, count_warning, NULL, &e, &err))
        fail_msg("%s", err.text);
    engine_get_stats(e, &stats);
    assert_int_equal(stats.mapped_bytes > 0, mapped);
    engine_close(e);
    assert_true(only_file(path, sizeof path));
    uint8_t *all = read_all(path, &n);
    const uint64_t hash = hash_bytes(all, n);
    free(all);
    return hash;
}

/* Embeddings need no output product, but their engine writes it, too: with a plan that moves
 * weights between the phases it is not the last one. */
static void embeddings_share_the_file_of_answers(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 3);
    struct plan p;
    struct graph fused;
    plan_begin(&p, m, 1, "vram=64MiB");
    plan_fuse_all(&p, m, &fused);
    plan_add_moving(&p, "blk.1.ffn_down", 256);
    for (int planned = 0; planned < 2; planned++) {
        const struct plan *plan = planned ? &p : NULL;
        for (int first = 0; first < 2; first++) {
            const uint64_t hash = file_after(m, plan, first, false);
            assert_true(file_after(m, plan, !first, true) == hash);
            assert_true(file_after(m, plan, first, true) == hash);
            clear_folder();
        }
    }
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

static void a_damaged_file_is_told_and_replaced(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 4);
    float *expected = start(m, NULL, NULL, false, 0);
    char path[400];
    size_t n, again;
    assert_true(only_file(path, sizeof path));
    uint8_t *good = read_all(path, &n), *bad = malloc(n);
    assert_non_null(bad);
    struct random r = random_of_run();
    const size_t cuts[] = {0, 1, 95, 96, 100, 4095, 4096, n / 2, n - 1};
    for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
        write_all(path, good, cuts[i]);
        start_again(m, expected, false, 1);
        assert_non_null(strstr(warning, path));
        start_again(m, expected, true, 0);
    }
    for (int i = 0; i < 32; i++) { /* any bit of the header, the table, the weights, the gaps */
        static const uint32_t ends[] = {96, 1024, 4096};
        const size_t end = i % 4 < 3 ? ends[i % 4] : n;
        memcpy(bad, good, n);
        bad[random_below(&r, (uint32_t)end)] ^= (uint8_t)(1 << random_below(&r, 8));
        write_all(path, bad, n);
        start_again(m, expected, false, 1);
    }
    free(bad);
    bad = malloc(n + 1);
    assert_non_null(bad);
    memcpy(bad, good, n);
    bad[n] = 0;
    write_all(path, bad, n + 1);
    start_again(m, expected, false, 1);
    free(bad);
    bad = read_all(path, &again); /* what replaced it is what was there */
    assert_int_equal(again, n);
    assert_memory_equal(bad, good, n);
    free(bad);
    free(good);
    free(expected);
    model_close(m);
}

/* Each has a name of its own, so only somebody who renames files gets that far. */
static void files_of_others_are_refused(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 5), *other = tiny_model(DT_Q4_0, 6);
    char path[400], name[400];
    size_t n;
    float *expected = start(m, NULL, NULL, false, 0);
    assert_true(only_file(name, sizeof name));
    clear_folder();

    free(start(other, NULL, NULL, false, 0));
    assert_true(only_file(path, sizeof path));
    assert_string_not_equal(path, name);
    assert_int_equal(rename(path, name), 0);
    start_again(m, expected, false, 1);
    assert_non_null(strstr(warning, "another model"));
    clear_folder();

    free(start(m, "ref", NULL, false, 0));
    assert_true(only_file(path, sizeof path));
    if (strcmp(path, name) != 0) { /* this machine has a level with a layout of its own */
        assert_int_equal(rename(path, name), 0);
        start_again(m, expected, false, 1);
        assert_non_null(strstr(warning, "another layout"));
    }
    clear_folder();

    struct plan p; /* a part of an operator elsewhere: other rows */
    struct graph fused;
    plan_begin(&p, m, 1, "vram=64MiB");
    plan_fuse_all(&p, m, &fused);
    plan_add_part(&p, "blk.1.ffn_down", 0, 64, 0);
    plan_add_part(&p, "blk.1.ffn_down", 64, 256, 1);
    free(start(m, NULL, &p, false, 2)); /* two devices are other ones than the plan names */
    assert_true(only_file(path, sizeof path));
    assert_string_not_equal(path, name);
    free(start(m, NULL, &p, true, 2));
    assert_int_equal(rename(path, name), 0);
    start_again(m, expected, false, 1);
    assert_non_null(strstr(warning, "other parts"));
    graph_free(&fused);
    plan_free(&p);

    const uint8_t text[200] = "something else";
    write_all(name, text, sizeof text);
    start_again(m, expected, false, 1);
    assert_non_null(strstr(warning, "no prepared weights"));
    uint8_t *newer = read_all(name, &n);
    newer[8]++;
    const uint64_t hash = hash_bytes(newer, 88);
    memcpy(newer + 88, &hash, sizeof hash);
    write_all(name, newer, n);
    start_again(m, expected, false, 1);
    assert_non_null(strstr(warning, "another version"));
    free(newer);
    free(expected);
    model_close(m);
    model_close(other);
}

/* Who can write a file of weights decides what the model says. */
static void files_that_others_can_write_are_refused(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 5);
    float *expected = start(m, NULL, NULL, false, 0);
    char path[400];
    assert_true(only_file(path, sizeof path));
    assert_int_equal(chmod(path, 0664), 0);
    start_again(m, expected, false, 1);
    assert_non_null(strstr(warning, "written by others"));
    start_again(m, expected, true, 0); /* what replaced it is ours alone */
    if (geteuid() == 0) {              /* who else may give files away */
        assert_int_equal(chown(path, 12345, (gid_t)-1), 0);
        start_again(m, expected, false, 1);
        assert_non_null(strstr(warning, "another user"));
        start_again(m, expected, true, 0);
    }
    free(expected);
    model_close(m);
}

static void a_new_folder_is_ours_alone(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 5);
    struct stat st;
    const mode_t mask = umask(0);
    assert_int_equal(rmdir(folder), 0);
    free(start(m, NULL, NULL, false, 0));
    umask(mask);
    assert_int_equal(stat(folder, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    model_close(m);
}

static void a_full_disk_leaves_nothing_behind(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 8);
    struct rlimit old, full;
    char path[400];
    program_begin("test_prepared"); /* else SIGXFSZ ends it */
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    full = old;
    full.rlim_cur = 10000;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &full), 0);
    float *first = start(m, NULL, NULL, false, 1);
    assert_non_null(strstr(warning, "not kept"));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_false(only_file(path, sizeof path));
    start_again(m, first, false, 0);
    free(first);
    model_close(m);
}

int main(void)
{
#define FOLDER_TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(a_second_start_maps_what_the_first_one_kept),
        FOLDER_TEST(embeddings_share_the_file_of_answers),
        FOLDER_TEST(a_damaged_file_is_told_and_replaced),
        FOLDER_TEST(files_of_others_are_refused),
        FOLDER_TEST(files_that_others_can_write_are_refused),
        FOLDER_TEST(a_new_folder_is_ours_alone),
        FOLDER_TEST(a_full_disk_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
