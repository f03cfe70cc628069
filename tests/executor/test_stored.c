/*
 * test_stored.c - weights that are read from a file at every step: the bits are those of a run with
 * resident weights, in prompts, decode and steps that mix them, whatever is streamed and however
 * often the ring goes round; and a file that is cut off or damaged meanwhile ends the step with one
 * line that names it.
 */
#include "tests/executor/harness.h"

#include <dirent.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { N = 40, STEPS = 6 };

static char folder[64], path[400];

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/var/tmp/oato-stored-XXXXXX");
    return mkdtemp(folder) ? 0 : 1;
}

/* The file of prepared weights of at least so many bytes that `skip` come before; false: there is
 * none. */
static bool find_file(int64_t least, int skip)
{
    DIR *d = opendir(folder);
    bool found = false;
    struct stat st;
    assert_non_null(d);
    for (struct dirent *e; !found && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        found = !stat(path, &st) && st.st_size >= least && skip-- == 0;
    }
    closedir(d);
    return found;
}

/* One with weights. */
static bool find_weights(int skip)
{
    return find_file(2 * READ_ALIGN, skip);
}

static void unlink_files(void)
{
    while (find_file(0, 0))
        unlink(path);
}

static int teardown(void **state)
{
    (void)state;
    unlink_files();
    return rmdir(folder);
}

/* All on a GPU, or on a simulated device but for the matrices of one kind, or for experts. */
enum { GPU = -1, MOST = -2, BUT_EXPERTS = -3 };

/* On the CPU and `sims` simulated devices; of the matrices one of `of` is resident. */
static void plan_stored(struct plan *p, const struct model *m, struct graph *fused, int sims,
                        uint32_t of, uint64_t seed)
{
    struct random r = {seed};
    if (sims == GPU) {
        plan_begin_gpu(p, m, fused);
    } else {
        plan_begin(p, m, sims < 0 ? 1 : sims, "vram=64MiB");
        plan_fuse_all(p, m, fused);
    }
    if (sims < 0)
        plan_on_gpu(p, fused, false);
    else
        plan_place_randomly(p, fused, &r);
    for (int32_t k = 0; k < p->n_parts && sims < GPU; k++)
        if (strstr(p->parts[k].op, sims == MOST ? "ffn_down" : "exps"))
            p->parts[k].device = p->parts[k].home = 0;
    for (int32_t k = 0; k < p->n_parts; k++)
        for (int32_t i = 0; i < fused->n_ops; i++) {
            const struct graph_op *o = &fused->ops[i];
            if (!strcmp(o->name, p->parts[k].op) && op_weight_use(&o->op) == WEIGHT_MATRIX &&
                o->n_weights && random_below(&r, of))
                p->parts[k].home = HOME_FILE;
        }
}

static const struct engine_options options = {
    .threads = 2, .rows = 16, .ubatch = 16, .seqs = 2, .prepared_cache = folder};

/* Logits of a prompt in chunks, and of steps of one token after it. */
static float *run(struct engine *e, const struct model *m)
{
    int32_t ids[N], seq;
    const size_t vocab = (size_t)m->shape.vocab;
    struct oato_error err;
    fill_ids(ids, N, m->shape.vocab, 5);
    float *prompt = logits_of(e, ids, N);
    float *all = realloc(prompt, (N + STEPS) * vocab * sizeof *all);
    if (!all) {
        free(prompt);
        fail_msg("out of memory");
        return NULL;
    }
    if (engine_seq_create(e, &seq, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < STEPS; i++) {
        const struct engine_input in = {.seq = seq, .ids = ids + i, .n = 1, .logits = LOGITS_LAST};
        if (engine_step(e, &in, 1, &err))
            fail_msg("%s", err.text);
        memcpy(all + (N + (size_t)i) * vocab, engine_logits(e, 0), vocab * sizeof *all);
    }
    engine_seq_free(e, seq);
    return all;
}

static void expect_same(const struct model *m, const struct plan *p, const float *expected)
{
    struct engine_stats stats;
    struct engine *e = open_engine(m, p, options);
    engine_get_stats(e, &stats);
    for (int32_t k = 0; k < p->n_parts; k++)
        assert_true(p->parts[k].home != HOME_FILE ||
                    stats.device[p->parts[k].device].staging_bytes > 0);
    assert_true(stats.stream_bytes[PHASE_DECODE] > 0);
    for (int i = 0; i < 2; i++) {
        float *got = run(e, m);
        assert_same_bits(got, expected, (N + STEPS) * (size_t)m->shape.vocab);
        free(got);
    }
    engine_close(e);
}

static void the_bits_are_those_of_resident_weights(void **state)
{
    (void)state;
    static const struct {
        const char *architecture;
        oato_dtype dtype;
    } models[] = {{"llama", DT_Q4_0}, {"llama", DT_Q6_K},    {"llama", DT_F16},
                  {"phi3", DT_Q8_0},  {"qwen3moe", DT_Q4_0}, {"qwen3moe", DT_F16}};
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct model *m = tiny_model_of(models[i].architecture, models[i].dtype, 3 + i);
        for (int sims = BUT_EXPERTS; sims < 3; sims++) {
            if (sims == MOST || (sims == GPU && (i % 3 || !gpu_is_there())))
                continue;
            const uint32_t of = sims == 1 ? 2 : 64;
            struct plan p;
            struct graph fused;
            plan_stored(&p, m, &fused, sims, of, 9 * i + of);
            struct plan resident = p;
            struct plan_part *parts = malloc((size_t)p.n_parts * sizeof *parts);
            assert_non_null(parts);
            memcpy(parts, p.parts, (size_t)p.n_parts * sizeof *parts);
            resident.parts = parts;
            for (int32_t k = 0; k < p.n_parts; k++)
                parts[k].home = parts[k].device;
            struct engine *e = open_engine(m, &resident, options);
            float *expected = run(e, m);
            engine_close(e);
            expect_same(m, &p, expected); /* from the file that the other run has made */
            unlink_files();
            expect_same(m, &p, expected); /* and from its own */
            unlink_files();
            free(expected);
            free(parts);
            plan_free(&p);
            graph_free(&fused);
        }
        model_close(m);
    }
}

/* A model of whose matrices one in 64 is resident. */
struct stored {
    struct model *m;
    struct plan p;
    struct graph fused;
};

static void stored_begin(struct stored *x, int sims)
{
    x->m = tiny_model(DT_Q4_0, 3);
    plan_stored(&x->p, x->m, &x->fused, sims, sims < 0 ? UINT32_MAX : 64, 1);
}

static void stored_end(struct stored *x)
{
    plan_free(&x->p);
    graph_free(&x->fused);
    model_close(x->m);
}

static uint64_t read_so_far(const struct engine *e)
{
    struct engine_stats stats;
    engine_get_stats(e, &stats);
    return stats.stored_read_bytes;
}

/* What a step of n tokens of each sequence reads. */
static uint64_t read_by_step(struct engine *e, const int32_t *seqs, int n_seqs, int32_t n)
{
    static const int32_t ids[16] = {1, 2, 3};
    struct engine_input in[2];
    struct oato_error err;
    const uint64_t before = read_so_far(e);
    for (int i = 0; i < n_seqs; i++)
        in[i] = (struct engine_input){.seq = seqs[i], .ids = ids, .n = n, .logits = LOGITS_LAST};
    if (engine_step(e, in, n_seqs, &err))
        fail_msg("%s", err.text);
    return read_so_far(e) - before;
}

/* A chunk of a prompt, a token, and a token of each of two sequences take one pass each. */
static void reads_once(int sims)
{
    struct oato_error err;
    struct engine_stats stats;
    struct stored x;
    int32_t seqs[2];
    stored_begin(&x, sims);
    setenv("OATO_READ_AHEAD", "0", 1);
    struct engine *e = open_engine(x.m, &x.p, options);
    unsetenv("OATO_READ_AHEAD");
    engine_get_stats(e, &stats);
    assert_int_equal(stats.stored_read_bytes, 0);
    for (int i = 0; i < 2; i++)
        if (engine_seq_create(e, &seqs[i], &err))
            fail_msg("%s", err.text);
    const uint64_t pass = read_by_step(e, seqs, 1, 1);
    assert_true(pass >= stats.stored_bytes && stats.stored_bytes > 0);
    assert_int_equal(read_by_step(e, seqs, 1, 16), pass);
    assert_int_equal(read_by_step(e, seqs + 1, 1, 16), pass);
    assert_int_equal(read_by_step(e, seqs, 2, 1), pass);
    engine_close(e);
    /* reading ahead is never more than a pass ahead */
    e = open_engine(x.m, &x.p, options);
    if (engine_seq_create(e, seqs, &err))
        fail_msg("%s", err.text);
    for (uint64_t i = 1; i <= 5; i++) {
        read_by_step(e, seqs, 1, 1);
        assert_in_range(read_so_far(e), i * pass, (i + 1) * pass);
    }
    engine_close(e);
    stored_end(&x);
}

static void a_step_reads_what_is_streamed_once(void **state)
{
    (void)state;
    for (int sims = MOST; sims < 2; sims++) {
        if (sims == GPU && !gpu_is_there())
            continue;
        reads_once(sims);
        unlink_files();
    }
}

/* Of experts that are whole blocks of the file a step reads those that its tokens choose: of one
 * token as many as it uses, of three no more than three times as many. */
static void a_step_reads_the_experts_that_it_chooses(void **state)
{
    (void)state;
    struct oato_error err;
    struct stored x = {.m = tiny_model_of("qwen3moe", DT_F16, 3)};
    plan_stored(&x.p, x.m, &x.fused, 0, UINT32_MAX, 1);
    uint64_t each = 0, experts = 0, used = 0;
    for (int32_t i = 0; i < x.fused.n_ops; i++) {
        const struct oato_op *op = &x.fused.ops[i].op;
        if (!op_has_experts(op))
            continue;
        for (int w = 0; w < x.fused.ops[i].n_weights; w++)
            each += x.fused.ops[i].weight[w]->bytes / (uint64_t)op->experts;
        experts = (uint64_t)op->experts;
        used = (uint64_t)op->experts_used;
    }
    assert_true(each && used * 2 < experts);
    setenv("OATO_READ_AHEAD", "0", 1);
    struct engine *e = open_engine(x.m, &x.p, options);
    unsetenv("OATO_READ_AHEAD");
    struct engine_stats stats;
    engine_get_stats(e, &stats);
    int32_t seq;
    if (engine_seq_create(e, &seq, &err))
        fail_msg("%s", err.text);
    const uint64_t dense = read_by_step(e, &seq, 1, 1) - used * each;
    assert_in_range(dense, stats.stored_bytes - experts * each,
                    stats.stored_bytes - experts * each + 64 * READ_ALIGN);
    const uint64_t three = read_by_step(e, &seq, 1, 3) - dense;
    assert_in_range(three, used * each, 3 * used * each);
    engine_close(e);
    stored_end(&x);
}

/* Steps until one fails. */
static oato_status step_until_it_fails(struct engine *e, struct oato_error *err)
{
    const int32_t id = 1;
    int32_t seq;
    if (engine_seq_create(e, &seq, err))
        fail_msg("%s", err->text);
    const struct engine_input in = {.seq = seq, .ids = &id, .n = 1, .logits = LOGITS_LAST};
    oato_status status = OATO_OK;
    for (int i = 0; i < 100 && !status; i++)
        status = engine_step(e, &in, 1, err);
    return status;
}

/* The file of the only device that has one, or of either of two: it holds nothing else. */
static void for_each_file(void (*check)(int sims, int file))
{
    for (int sims = MOST; sims <= 0; sims++)
        for (int file = 0; file <= (sims == MOST); file++) {
            if (sims == GPU && !gpu_is_there())
                continue;
            check(sims, file);
            unlink_files();
        }
}

static void cut_off(int sims, int file)
{
    struct oato_error err = {.text = ""};
    struct stat st;
    struct stored x;
    stored_begin(&x, sims);
    struct engine *e = open_engine(x.m, &x.p, options);
    assert_true(find_weights(file));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size / 2 / 4096 * 4096), 0);
    assert_int_equal(step_until_it_fails(e, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "truncated"));
    engine_close(e);
    stored_end(&x);
}

static void a_file_that_is_cut_off_ends_the_step(void **state)
{
    (void)state;
    for_each_file(cut_off);
}

/* What is streamed is checked when it is read for the first time. */
static void damaged(int sims, int file)
{
    struct oato_error err = {.text = ""};
    struct stat st;
    struct stored x;
    stored_begin(&x, sims);
    engine_close(open_engine(x.m, &x.p, options));
    assert_true(find_weights(file));
    assert_int_equal(stat(path, &st), 0);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, st.st_size - 4096, SEEK_SET), 0);
    const int byte = fgetc(f);
    assert_int_equal(fseek(f, st.st_size - 4096, SEEK_SET), 0);
    fputc(byte ^ 1, f);
    assert_int_equal(fclose(f), 0);
    struct engine *e = open_engine(x.m, &x.p, options);
    assert_int_equal(step_until_it_fails(e, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, path));
    assert_non_null(strstr(err.text, "damaged"));
    engine_close(e);
    stored_end(&x);
}

static void a_damaged_file_ends_the_first_step(void **state)
{
    (void)state;
    for_each_file(damaged);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_bits_are_those_of_resident_weights, setup, teardown),
        cmocka_unit_test_setup_teardown(a_step_reads_what_is_streamed_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_step_reads_the_experts_that_it_chooses, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_cut_off_ends_the_step, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_file_ends_the_first_step, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
