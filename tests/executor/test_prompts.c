/*
 * test_prompts.c - prompts that last: an engine that begins with what another has left in a folder,
 * or with what it had to give away itself, computes the bits of one that begins with nothing, for
 * models with windows and with recurrent state, too; and requests that share a batch with one whose
 * prompt is read get what they get alone.
 */
#include "executor/batch.h"
#include "tests/executor/harness.h"
#include "tests/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

enum { LENGTH = 300, SAME = 260, VOCAB = 320, CONTEXT = 640, FOLDER_BYTES = 64 << 20 };

static int warnings;

static void on_warning(void *user, const char *text)
{
    (void)user;
    print_message("%s\n", text);
    warnings++;
}

/* Reading is always worth it, or never. */
static double any_time(void *user, int32_t tokens)
{
    return (user ? 1e-9 : 1e12) * tokens;
}

static struct engine *open_with(const struct model *m, const struct plan *p,
                                struct engine_options o)
{
    struct engine *e;
    struct oato_error err;
    o.prompt_cache = test_folder;
    if (!o.prompt_cache_bytes)
        o.prompt_cache_bytes = FOLDER_BYTES;
    o.threads = 1;
    if (!o.context)
        o.context = CONTEXT;
    warnings = 0;
    if (engine_open(m, p, &o, on_warning, NULL, &e, &err))
        fail_msg("%s", err.text);
    engine_predict(e, any_time, NULL);
    return e;
}

static int32_t seq_new(struct engine *e)
{
    struct oato_error err;
    int32_t seq;
    if (engine_seq_create(e, &seq, &err))
        fail_msg("%s", err.text);
    return seq;
}

static void feed(struct engine *e, int32_t seq, const int32_t *ids, int32_t n)
{
    struct oato_error err;
    if (n && engine_feed(e, seq, ids, n, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
}

/* A prompt as the batch has it: begins with what is there, in memory and in the folder, is computed
 * and kept. Returns what was there. */
static int32_t prompt_run(struct engine *e, const int32_t *ids, int32_t n)
{
    const int32_t seq = seq_new(e);
    struct engine_fetch *f = engine_fetch_begin(e, ids, n);
    while (f && engine_fetch_some(f, 0))
        engine_fetch_wait(f, 1000000);
    const int32_t there = f ? engine_fetch_end(f, seq) : engine_seq_begin(e, seq, ids, n);
    assert_int_equal(engine_seq_length(e, seq), there);
    feed(e, seq, ids + there, n - there);
    engine_keep(e, ids, n);
    engine_seq_free(e, seq);
    while (engine_keep_some(e, 0) != KEEP_DONE)
        ;
    return there;
}

static const struct {
    const char *architecture, *keys;
    int32_t there; /* of a text of LENGTH; and of one that begins with SAME of its tokens */
    int32_t of_same;
} kinds[] = {
    {"llama", NULL, 256, 256},
    {"gemma3", "attention.sliding_window=40 attention.sliding_window_pattern=3", 256, 256},
    {"gemma3", "attention.sliding_window=100 attention.sliding_window_pattern=0", 256, 256},
    {"qwen35", NULL, 256, 256},
    {"mamba", NULL, 256, 256},
    {"lfm2", "attention.head_count_kv=0,2,0 shortconv.l_cache=3 attention.sliding_window=40", 256,
     256},
};

static struct model *model_of(size_t kind, uint64_t seed)
{
    const char *keys = kinds[kind].keys;
    return keys ? tiny_model_with(kinds[kind].architecture, keys, DT_Q8_0, seed)
                : tiny_model_of(kinds[kind].architecture, DT_Q8_0, seed);
}

static void an_engine_begins_with_what_another_left(void **state)
{
    static int32_t a[LENGTH], b[LENGTH];
    (void)state;
    fill_ids(a, LENGTH, VOCAB, 1);
    fill_ids(b, LENGTH, VOCAB, 2);
    memcpy(b, a, SAME * sizeof *a);
    for (size_t kind = 0; kind < ARRAY_LEN(kinds); kind++) {
        struct model *m = model_of(kind, 5);
        struct engine_options o = {.ubatch = 48, .seqs = 2};
        struct engine *e = open_with(m, NULL, o), *plain;
        struct engine_prompt_stats stats;
        assert_int_equal(prompt_run(e, a, LENGTH), 0);
        engine_close(e);
        o.no_prefixes = true;
        o.context = CONTEXT;
        o.threads = 1;
        plain = open_engine(m, NULL, o);
        for (int i = 0; i < 2; i++) {
            const int32_t *ids = i ? b : a;
            e = open_with(m, NULL, (struct engine_options){.ubatch = 256, .seqs = 2});
            assert_int_equal(prompt_run(e, ids, LENGTH),
                             i ? kinds[kind].of_same : kinds[kind].there);
            prompt_run(plain, ids, LENGTH);
            assert_same_bits(engine_logits(e, 0), engine_logits(plain, 0), VOCAB);
            assert_true(engine_prompts(e, &stats));
            assert_int_equal(stats.tokens, kinds[kind].there);
            assert_int_equal(stats.used, 1);
            assert_int_equal(stats.failed + (uint64_t)warnings, 0);
            assert_int_equal(prompt_run(e, ids, LENGTH), kinds[kind].there); /* of memory */
            assert_true(engine_prompts(e, &stats));
            assert_int_equal(stats.used, 1);
            engine_close(e);
        }
        engine_close(plain);
        model_close(m);
    }
}

/* More texts than the KV cache holds: what it gave away comes back, and only as much as is missing;
 * whatever texts share. */
static void what_was_given_away_comes_back(void **state)
{
    enum { TEXTS = 6, ROUNDS = 40 };
    static int32_t texts[TEXTS][LENGTH];
    struct random r = random_of_run();
    (void)state;
    for (size_t kind = 0; kind < ARRAY_LEN(kinds); kind += 3) {
        struct model *m = model_of(kind, 6);
        struct engine *e =
            open_with(m, NULL, (struct engine_options){.ubatch = 64, .seqs = 2, .context = 384});
        struct engine *plain =
            open_engine(m, NULL,
                        (struct engine_options){
                            .ubatch = 64, .no_prefixes = true, .threads = 1, .context = 384});
        const int32_t pages = engine_free_pages(e);
        struct engine_prompt_stats stats;
        int32_t there = 0;
        for (int i = 0; i < TEXTS; i++) {
            fill_ids(texts[i], LENGTH, VOCAB, 1 + (uint64_t)i / 2);
            fill_ids(texts[i] + 130, LENGTH - 130, VOCAB, 7 + (uint64_t)i);
        }
        for (int round = 0; round < ROUNDS; round++) {
            const int32_t *ids = texts[random_below(&r, TEXTS)];
            const int32_t n = 70 + (int32_t)random_below(&r, LENGTH - 70);
            there += prompt_run(e, ids, n);
            prompt_run(plain, ids, n);
            assert_same_bits(engine_logits(e, 0), engine_logits(plain, 0), VOCAB);
            assert_int_equal(engine_free_pages(e), pages);
        }
        assert_true(engine_prompts(e, &stats));
        print_message("%d positions were there, %d of them read\n", there, (int)stats.tokens);
        assert_true(stats.tokens > 0 && (int32_t)stats.tokens < there);
        assert_int_equal(stats.failed + (uint64_t)warnings, 0);
        engine_close(e);
        engine_close(plain);
        model_close(m);
    }
}

/* Another model, KV type or arithmetic finds nothing; other sizes of steps do. Nor is anything read
 * or written that is faster computed. */
static void only_ones_own_is_found(void **state)
{
    static int32_t a[LENGTH];
    static const struct {
        uint64_t seed;
        struct engine_options o;
        int32_t there;
    } cases[] = {
        {5, {.ubatch = 64, .seqs = 2}, 0}, /* writes it */
        {6, {.ubatch = 64, .seqs = 2}, 0},
        {5, {.ubatch = 64, .seqs = 2, .kv = DT_Q8_0, .kv_given = true}, 0},
        {5, {.ubatch = 32, .seqs = 3, .context = 1024}, 256},
        {5, {.ubatch = 64, .devices = "cpu", .top_logits = 8}, 256},
        {5, {.ubatch = 64, .prompt_cache_bytes = 5000}, 0}, /* no page has room, which is told */
    };
    (void)state;
    fill_ids(a, LENGTH, VOCAB, 1);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct model *m = tiny_model(DT_Q4_K, cases[i].seed);
        struct engine *e = open_with(m, NULL, cases[i].o);
        assert_int_equal(prompt_run(e, a, LENGTH), cases[i].there);
        assert_int_equal(warnings, cases[i].o.prompt_cache_bytes > 0);
        engine_close(e);
        if (i == 3) { /* what takes no time is computed */
            struct engine_prompt_stats stats;
            e = open_with(m, NULL, cases[i].o);
            engine_predict(e, any_time, e);
            assert_int_equal(prompt_run(e, a, LENGTH), 0);
            fill_ids(a, LENGTH, VOCAB, 9);
            assert_int_equal(prompt_run(e, a, LENGTH), 0);
            assert_true(engine_prompts(e, &stats));
            assert_int_equal(stats.written + stats.read, 0);
            fill_ids(a, LENGTH, VOCAB, 1);
            engine_close(e);
        }
        model_close(m);
    }
}

/* KV on a device with a layout of its own is kept, too. */
static void so_is_kv_of_another_layout(void **state)
{
    static int32_t a[LENGTH];
    struct model *m = tiny_model(DT_F16, 5);
    struct plan p;
    struct graph fused;
    struct engine_options o = {.ubatch = 64, .seqs = 2};
    (void)state;
    fill_ids(a, LENGTH, VOCAB, 1);
    plan_begin(&p, m, 1, "vram=1GiB,kv=rows");
    plan_fuse_all(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    for (int32_t i = 0; i < p.n_kv; i++)
        p.kv[i].device = 1;
    for (int i = 0; i < 2; i++) {
        struct engine *e = open_with(m, &p, o);
        assert_int_equal(prompt_run(e, a, LENGTH), i ? 256 : 0);
        if (i) {
            o.no_prefixes = true;
            o.threads = 1;
            struct engine *plain = open_engine(m, &p, o);
            prompt_run(plain, a, LENGTH);
            assert_same_bits(engine_logits(e, 0), engine_logits(plain, 0), VOCAB);
            engine_close(plain);
        }
        engine_close(e);
    }
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* A byte of one of the pages changes: what is before it is used, the rest is computed. */
static void damage_is_computed_again(void **state)
{
    static int32_t a[LENGTH];
    struct random r = random_of_run();
    (void)state;
    fill_ids(a, LENGTH, VOCAB, 1);
    for (size_t kind = 0; kind < ARRAY_LEN(kinds); kind += 3) {
        struct model *m = model_of(kind, 5);
        struct engine_options o = {.ubatch = 64, .seqs = 1};
        struct engine *e = open_with(m, NULL, o);
        prompt_run(e, a, LENGTH);
        engine_close(e);
        o.no_prefixes = true;
        o.context = CONTEXT;
        o.threads = 1;
        struct engine *plain = open_engine(m, NULL, o);
        prompt_run(plain, a, LENGTH);
        o.no_prefixes = false;
        for (int round = 0; round < 4; round++) {
            DIR *d = opendir(test_folder);
            struct dirent *entry = NULL;
            for (uint32_t n = 3 + random_below(&r, 4); n && (entry = readdir(d)); n--)
                ;
            if (entry && entry->d_name[0] != '.') {
                const int fd = openat(dirfd(d), entry->d_name, O_RDWR);
                uint8_t byte;
                const off_t at = (off_t)random_below(&r, (uint32_t)lseek(fd, 0, SEEK_END));
                assert_int_equal(pread(fd, &byte, 1, at), 1);
                byte ^= (uint8_t)(1 << random_below(&r, 8));
                assert_int_equal(pwrite(fd, &byte, 1, at), 1);
                close(fd);
            }
            closedir(d);
            e = open_with(m, NULL, o);
            assert_in_range(prompt_run(e, a, LENGTH), 0, 256);
            assert_same_bits(engine_logits(e, 0), engine_logits(plain, 0), VOCAB);
            assert_in_range(warnings, 0, 1);
            engine_close(e);
            e = open_with(m, NULL, o); /* and it was written again */
            assert_int_equal(prompt_run(e, a, LENGTH), 256);
            assert_int_equal(warnings, 0);
            engine_close(e);
        }
        engine_close(plain);
        model_close(m);
    }
}

/* ----------------------------------------------------------------------------------- batch - */

enum { REQUESTS = 10, MOST = 12 };

struct asked {
    int32_t got[MOST], n_got, cached, ends;
    struct sampler *sampler;
    enum batch_end why;
    uint64_t id;
};

static bool on_token(void *user, int32_t id)
{
    struct asked *x = user;
    x->got[x->n_got++] = id;
    return true;
}

static void on_begin(void *user, int32_t cached)
{
    ((struct asked *)user)->cached = cached;
}

static void on_end(void *user, enum batch_end why)
{
    struct asked *x = user;
    x->ends++;
    x->why = why;
}

/* Requests one after the other into the batch, some of which go before they are answered. Returns
 * the tokens of prompts that were there. */
static int32_t requests_run(struct engine *e, int32_t texts[][LENGTH], struct asked *all,
                            bool some_go)
{
    struct batch *b;
    struct oato_error err;
    int32_t cached = 0;
    assert_int_equal(batch_create(e, NULL, &b, &err), OATO_OK);
    for (int i = 0; i < REQUESTS || batch_requests(b); i++) {
        if (i < REQUESTS) {
            struct asked *x = &all[i];
            const struct sampler_options greedy = {.temperature = 0};
            *x = (struct asked){.sampler = sampler_create(&greedy, VOCAB)};
            const struct batch_request ask = {.ids = texts[i],
                                              .n_ids = LENGTH - 20 * (i % 3),
                                              .most = MOST,
                                              .seq = -1,
                                              .sampler = x->sampler,
                                              .on_begin = on_begin,
                                              .on_token = on_token,
                                              .on_end = on_end,
                                              .user = x};
            if (batch_add(b, &ask, &x->id, &err))
                fail_msg("%s", err.text);
            if (some_go && i % 4 == 3)
                batch_cancel(b, all[i - 1].id);
        }
        if (batch_step(b, &err))
            fail_msg("%s", err.text);
    }
    batch_free(b);
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(all[i].ends, 1);
        sampler_free(all[i].sampler);
        cached += all[i].cached;
    }
    return cached;
}

static void answers_are_those_of_computed_prompts(void **state)
{
    static int32_t texts[REQUESTS][LENGTH];
    static struct asked expected[REQUESTS], got[REQUESTS];
    (void)state;
    for (int i = 0; i < REQUESTS; i++) {
        fill_ids(texts[i], LENGTH, VOCAB, 1);
        fill_ids(texts[i] + 190, LENGTH - 190, VOCAB, 2 + (uint64_t)i / 2);
    }
    for (size_t kind = 0; kind < ARRAY_LEN(kinds); kind++) {
        struct model *m = model_of(kind, 7);
        struct engine_options o = {.ubatch = 96, .seqs = 3, .context = 1200, .threads = 1};
        struct engine *e;
        o.no_prefixes = true;
        e = open_engine(m, NULL, o);
        requests_run(e, texts, expected, false);
        engine_close(e);
        o.no_prefixes = false;
        for (int round = 0; round < 3; round++) {
            e = open_with(m, NULL, o);
            const int32_t cached = requests_run(e, texts, got, round == 1);
            struct engine_prompt_stats stats;
            assert_true(engine_prompts(e, &stats));
            for (int i = 0; i < REQUESTS; i++)
                if (got[i].why != BATCH_CANCELLED) {
                    assert_int_equal(got[i].n_got, expected[i].n_got);
                    assert_memory_equal(got[i].got, expected[i].got,
                                        (size_t)got[i].n_got * sizeof *got[i].got);
                }
            print_message("%s: %d tokens were there, %d read\n", kinds[kind].architecture, cached,
                          (int)stats.tokens);
            assert_true(!round || stats.tokens > 0);
            assert_int_equal(stats.failed + (uint64_t)warnings, 0);
            engine_close(e);
        }
        model_close(m);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, folder_create, folder_remove)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_engine_begins_with_what_another_left),
        TEST(what_was_given_away_comes_back),
        TEST(only_ones_own_is_found),
        TEST(so_is_kv_of_another_layout),
        TEST(damage_is_computed_again),
        TEST(answers_are_those_of_computed_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
