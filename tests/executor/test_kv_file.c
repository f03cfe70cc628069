/*
 * test_kv_file.c - KV that stays in a file: the bits are those of a run that keeps it in memory, in
 * prompts, decode, with several sequences, forks, sequences that are cut back, windows and
 * recurrent layers; memory is that of the rooms; a file that cannot be made, written or read ends
 * with one line.
 */
#include "tests/executor/story.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/var/tmp/oato-kv-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

static int teardown(void **state)
{
    (void)state;
    char path[400];
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (e->d_name[0] != '.') /* prepared weights; KV has no name */
            unlink(path);
    }
    closedir(d);
    return rmdir(folder);
}

static const struct engine_options options = {.threads = 2,
                                              .rows = STORY_CHUNK,
                                              .ubatch = STORY_CHUNK,
                                              .seqs = STORY_SEQS,
                                              .context = 1024,
                                              .prepared_cache = folder};

/* A plan for the host whose KV stays in the file, but for the layers of the mask. */
static void plan_filed(struct plan *p, const struct model *m, uint32_t resident)
{
    struct graph fused;
    plan_begin(p, m, 0, "");
    plan_fuse_all(p, m, &fused);
    for (int32_t i = 0; i < fused.n_ops; i++) {
        const struct graph_op *o = &fused.ops[i];
        if (o->op.kind != OP_KV_STORE || resident >> o->layer & 1)
            continue;
        plan_add_part(p, arena_strndup(&p->arena, o->name, strlen(o->name)), 0, o->op.n, 0);
        p->parts[p->n_parts - 1].home = HOME_FILE;
    }
    graph_free(&fused);
}

static struct told told_by(const struct model *m, const struct plan *p, oato_dtype kv)
{
    struct engine_options o = options;
    o.kv = kv;
    o.kv_given = true;
    return story_of(m, p, o);
}

static uint64_t kv_of(const struct engine *e)
{
    struct engine_stats stats;
    engine_get_stats(e, &stats);
    return stats.device[0].kv_bytes;
}

static void the_bits_are_those_of_kv_in_memory(void **state)
{
    (void)state;
    static const struct {
        const char *architecture;
        oato_dtype kv;
        uint32_t resident;
    } cases[] = {{"llama", DT_F16, 0},  {"llama", DT_Q8_0, 1}, {"llama", DT_F32, 4},
                 {"gemma3", DT_F16, 0}, {"gemma3", DT_F16, 2}, {"qwen35", DT_F16, 0}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model *m = tiny_model_of(cases[i].architecture, i % 2 ? DT_Q4_0 : DT_F16, 3 + i);
        struct plan p;
        plan_filed(&p, m, cases[i].resident);
        assert_true(p.n_parts > 0);
        struct told expected = told_by(m, NULL, cases[i].kv), got = told_by(m, &p, cases[i].kv);
        assert_int_equal(expected.n, got.n);
        assert_same_bits(got.said, expected.said, got.n * got.vocab);
        struct engine_stats stats;
        engine_get_stats(got.e, &stats);
        assert_true(stats.stored_read_bytes > 0);
        if (p.n_parts > KV_ROOMS)
            assert_true(kv_of(got.e) < kv_of(expected.e));
        engine_close(expected.e);
        engine_close(got.e);
        free(expected.said);
        free(got.said);
        plan_free(&p);
        model_close(m);
    }
}

/* ------------------------------------------------------------------------------- faults ---- */

static void a_file_that_cannot_be_made_is_said(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 3);
    struct plan p;
    struct engine_options o = options;
    struct rlimit before, none;
    plan_filed(&p, m, 0);
    o.prepared_cache = "/dev/null/x";
    expect_refused(m, &p, &o, OATO_EIO, "/dev/null/x: Not a directory");
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){4096, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    expect_refused(m, &p, &options, OATO_EIO, strerror(EFBIG));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    plan_free(&p);
    model_close(m);
}

/* Of the only file in the folder that is open, which has no name any more. */
static int scratch_of_process(void)
{
    char link[64], to[256];
    for (int fd = 3; fd < 256; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(link, to, sizeof to - 1);
        to[n > 0 ? n : 0] = 0;
        if (!strncmp(to, folder, strlen(folder)))
            return fd;
    }
    fail_msg("there is no file");
    return -1;
}

static void a_file_that_is_lost_ends_the_step(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 3);
    struct plan p;
    struct oato_error err = {.text = ""};
    const int32_t id = 1;
    int32_t seq;
    plan_filed(&p, m, 0);
    struct engine *e = open_engine(m, &p, options);
    assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
    const struct engine_input in = {.seq = seq, .ids = &id, .n = 1, .logits = LOGITS_LAST};
    assert_int_equal(engine_step(e, &in, 1, &err), OATO_OK);
    struct engine_saved *saved;
    assert_int_equal(engine_seq_save(e, seq, &saved, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "stays in a file"));
    const int nothing = open("/dev/null", O_RDWR); /* which takes all and ends at once */
    assert_true(dup2(nothing, scratch_of_process()) >= 0);
    close(nothing);
    oato_status status = OATO_OK;
    for (int i = 0; i < 100 && !status; i++)
        status = engine_step(e, &in, 1, &err);
    assert_int_equal(status, OATO_EFILE);
    assert_non_null(strstr(err.text, folder));
    assert_int_not_equal(engine_step(e, &in, 1, &err), OATO_OK);
    engine_close(e);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_bits_are_those_of_kv_in_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_cannot_be_made_is_said, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_lost_ends_the_step, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
