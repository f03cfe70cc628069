/*
 * test_prefix.c - a prompt that starts behind pages of an earlier text has the bits of one that
 * does not, whatever became of those who wrote the pages; and pages are shared wherever they can
 * be.
 */
#include "executor/batch.h"
#include "tests/executor/harness.h"
#include "tests/pace.h"

#include <stdlib.h>

enum {
    TEXTS = 4,
    LENGTH = 300,
    VOCAB = 320,
    CONTEXT = 640,
    SEQS = 3,
    ROUNDS = 24,
    ROUNDS_MOST = 480
};

static void feed(struct engine *e, int32_t seq, const int32_t *ids, int32_t n)
{
    struct oato_error err;
    if (n && engine_feed(e, seq, ids, n, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
}

static int32_t seq_new(struct engine *e)
{
    struct oato_error err;
    int32_t seq;
    if (engine_seq_create(e, &seq, &err))
        fail_msg("%s", err.text);
    return seq;
}

/* The last logits of the ids on a sequence that begins with what is there; returns how much was. */
static int32_t begin_and_check(struct engine *e, struct engine *plain, int32_t seq,
                               const int32_t *ids, int32_t n)
{
    const int32_t there = engine_seq_begin(e, seq, ids, n), alone = seq_new(plain);
    assert_true(there < n && there % KV_PAGE_POSITIONS == 0);
    assert_int_equal(engine_seq_length(e, seq), there);
    assert_int_equal(engine_seq_begin(plain, alone, ids, n), 0);
    feed(e, seq, ids + there, n - there);
    feed(plain, alone, ids, n);
    assert_same_bits(engine_logits(e, 0), engine_logits(plain, 0), VOCAB);
    engine_seq_free(plain, alone);
    return there;
}

static void decode(struct engine *e, int32_t seq, int32_t id)
{
    const struct engine_input in = {seq, &id, 1, LOGITS_LAST, false};
    struct oato_error err;
    if (engine_step(e, &in, 1, &err))
        fail_msg("%s", err.text);
}

/* Closes m. Beginnings of a few texts, with other ends; sequences are cut back, forked, saved and
 * go on. At least ROUNDS of them, and until so many positions were there. */
static void any_history(struct model *m, bool on_gpu, int32_t least, struct engine_options options)
{
    static int32_t texts[TEXTS][LENGTH], ids[LENGTH + 1];
    struct random r = random_of_run();
    struct plan p;
    struct graph fused;
    int32_t shared = 0, rounds = 0;
    least = pace_rounds(least / KV_PAGE_POSITIONS, 4) * KV_PAGE_POSITIONS;
    plan_begin_gpu(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    options.context = CONTEXT;
    options.seqs = SEQS;
    struct engine *e = open_engine(m, on_gpu ? &p : NULL, options);
    options.no_prefixes = true;
    struct engine *plain = open_engine(m, on_gpu ? &p : NULL, options);
    const int32_t pages = engine_free_pages(e);
    for (int i = 0; i < TEXTS; i++) {
        fill_ids(texts[i], LENGTH, VOCAB, r.state + (uint64_t)i / 2);
        fill_ids(texts[i] + 130, LENGTH - 130, VOCAB, r.state + 7 + (uint64_t)i);
    }
    for (; rounds < pace_rounds(ROUNDS, 4) || (shared < least && rounds < ROUNDS_MOST); rounds++) {
        struct engine_saved *saved = NULL;
        struct oato_error err;
        const int32_t *text = texts[random_below(&r, TEXTS)];
        const int32_t same = (int32_t)random_below(&r, LENGTH);
        const int32_t n = same + 1 + (int32_t)random_below(&r, (uint32_t)(LENGTH - same));
        memcpy(ids, text, sizeof texts[0]);
        fill_ids(ids + same, n - same, VOCAB, r.state);
        const int32_t seq = seq_new(e);
        shared += begin_and_check(e, plain, seq, ids, n);
        for (uint32_t i = random_below(&r, 40); i; i--)
            decode(e, seq, (int32_t)random_below(&r, VOCAB));
        if (!random_below(&r, 3)) { /* cut back within a page, and on */
            const int32_t at = (int32_t)random_below(&r, (uint32_t)n);
            assert_int_equal(engine_seq_truncate(e, seq, at, &err), OATO_OK);
            feed(e, seq, ids + at / 2, (n - at) / 2);
        }
        if (!random_below(&r, 3)) {
            int32_t fork;
            assert_int_equal(engine_seq_fork(e, seq, &fork, &err), OATO_OK);
            feed(e, fork, ids, 20);
            engine_seq_free(e, fork);
        }
        if (!random_below(&r, 3)) {
            assert_int_equal(engine_seq_save(e, seq, &saved, &err), OATO_OK);
            engine_seq_free(e, seq);
            int32_t back;
            assert_int_equal(engine_seq_restore(e, saved, &back, &err), OATO_OK);
            engine_saved_free(saved);
            feed(e, back, ids, 70);
            engine_seq_free(e, back);
        } else {
            engine_seq_free(e, seq);
        }
        struct engine_stats stats;
        engine_get_stats(e, &stats);
        assert_int_equal(stats.pages_free, pages);
        assert_in_range(stats.pages_cached, 0, pages);
    }
    print_message("%d positions of %d rounds were there\n", shared, rounds);
    assert_true(shared >= least);
    engine_close(plain);
    engine_close(e);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

static void shared_pages_have_the_bits_of_computed_ones(void **state)
{
    (void)state;
    any_history(tiny_model(DT_Q4_K, 5), false, 448,
                (struct engine_options){.threads = 2, .ubatch = 48});
    any_history(tiny_model(DT_F16, 5), false, 448,
                (struct engine_options){.threads = 1, .ubatch = 64});
}

static void shared_pages_of_a_gpu_have_them_too(void **state)
{
    (void)state;
    if (!gpu_is_there())
        skip();
    any_history(tiny_model(DT_Q8_0, 5), true, 448,
                (struct engine_options){.threads = 1, .ubatch = 64});
}

/* Which pages are there: full ones, the longest unused are given away first, those at the end of a
 * text before those at its beginning. */
static void pages_are_found_while_they_last(void **state)
{
    static int32_t a[LENGTH], b[LENGTH];
    struct model *m = tiny_model(DT_Q8_0, 3);
    struct engine *e =
        open_engine(m, NULL, (struct engine_options){.context = 6 * KV_PAGE_POSITIONS, .seqs = 1});
    (void)state;
    fill_ids(a, LENGTH, VOCAB, 1);
    fill_ids(b, LENGTH, VOCAB, 2);
    int32_t seq = seq_new(e);
    feed(e, seq, a, 200); /* three full pages */
    engine_seq_free(e, seq);
    seq = seq_new(e);
    assert_int_equal(engine_seq_begin(e, seq, a, 64), 0); /* one token is left to be fed */
    assert_int_equal(engine_seq_begin(e, seq, a, 65), 64);
    assert_int_equal(engine_seq_begin(e, seq, a, 200), 0); /* it is not empty */
    engine_seq_free(e, seq);
    seq = seq_new(e);
    assert_int_equal(engine_seq_begin(e, seq, a, 193), 192);
    engine_seq_free(e, seq);
    seq = seq_new(e);
    feed(e, seq, b, 256); /* four of six pages: one of a's must go, its last */
    engine_seq_free(e, seq);
    seq = seq_new(e);
    assert_int_equal(engine_seq_begin(e, seq, a, 200), 128);
    engine_seq_free(e, seq);
    a[63]++;
    a[63] %= VOCAB;
    seq = seq_new(e);
    assert_int_equal(engine_seq_begin(e, seq, a, 200), 0); /* not behind another beginning */
    engine_seq_free(e, seq);
    engine_close(e);
    model_close(m);
}

static int32_t save_and_restore(struct engine *e, int32_t seq)
{
    struct engine_saved *saved;
    struct oato_error err;
    static int32_t a[KV_PAGE_POSITIONS];
    int32_t other;
    assert_int_equal(engine_seq_save(e, seq, &saved, &err), OATO_OK);
    engine_seq_free(e, seq);
    const int32_t between = seq_new(e); /* leaves its tokens in the page */
    fill_ids(a, KV_PAGE_POSITIONS, VOCAB, 1);
    feed(e, between, a, 30);
    engine_seq_free(e, between);
    assert_int_equal(engine_seq_restore(e, saved, &other, &err), OATO_OK);
    engine_saved_free(saved);
    return other;
}

/* The page of a restored sequence lay in the hands of another, whose tokens it does not hold. */
static void restored_pages_are_not_taken_for_others(void **state)
{
    static int32_t a[LENGTH], b[LENGTH];
    struct model *m = tiny_model(DT_Q8_0, 3);
    (void)state;
    fill_ids(a, LENGTH, VOCAB, 1);
    fill_ids(b, LENGTH, VOCAB, 2);
    memcpy(a + 30, b + 30, (LENGTH - 30) * sizeof *a);
    for (int cut = 0; cut < 2; cut++) {
        struct engine *e =
            open_engine(m, NULL, (struct engine_options){.context = CONTEXT, .seqs = 1});
        struct oato_error err;
        int32_t seq = seq_new(e);
        feed(e, seq, b, cut ? 100 : 30);
        seq = save_and_restore(e, seq);
        assert_int_equal(engine_seq_truncate(e, seq, 30, &err), OATO_OK);
        feed(e, seq, b + 30, 100);
        engine_seq_free(e, seq);
        assert_int_equal(engine_seq_begin(e, seq_new(e), a, 100), 0);
        engine_close(e);
    }
    model_close(m);
}

/* Of two with the same text, one is cut back and goes on otherwise, in decode's arithmetic, which
 * is another: what follows is not behind the first text any more. */
static void a_page_cut_back_loses_its_text(void **state)
{
    static int32_t a[LENGTH], b[LENGTH];
    struct model *m = tiny_model(DT_Q8_0, 3);
    struct plan p;
    struct graph fused;
    struct oato_error err;
    (void)state;
    plan_begin(&p, m, 1, "vram=64MiB");
    plan_fuse_all(&p, m, &fused);
    plan_add_moving(&p, "blk.0.ffn_down", 256);
    fill_ids(a, LENGTH, VOCAB, 1);
    fill_ids(b, LENGTH, VOCAB, 2);
    struct engine *e = open_engine(m, &p, (struct engine_options){.context = CONTEXT, .seqs = 2});
    const int32_t first = seq_new(e), second = seq_new(e);
    feed(e, first, a, 64);
    feed(e, second, a, 64);
    assert_int_equal(engine_seq_truncate(e, second, 32, &err), OATO_OK);
    for (int i = 32; i < 64; i++)
        decode(e, second, b[i]);
    feed(e, second, a + 64, 64);
    engine_seq_free(e, first);
    engine_seq_free(e, second);
    assert_int_equal(engine_seq_begin(e, seq_new(e), a, 129), 64);
    engine_close(e);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

/* The layers of gemma3 and of lfm2 have pages of windows; qwen35, mamba and lfm2 states. */
static const struct {
    const char *architecture, *keys; /* NULL: the usual ones */
    int32_t least;                   /* positions that are shared in any_history */
} kinds[] = {
    {"gemma3", "attention.sliding_window=40 attention.sliding_window_pattern=3", 384},
    {"gemma3", "attention.sliding_window=100 attention.sliding_window_pattern=0", 384},
    {"qwen35", NULL, 128},
    {"mamba", NULL, 128},
    {"lfm2", "attention.head_count_kv=0,2,0 shortconv.l_cache=3 attention.sliding_window=40", 128},
};

static struct model *model_of(size_t kind)
{
    const char *architecture = kinds[kind].architecture, *keys = kinds[kind].keys;
    return keys ? tiny_model_with(architecture, keys, DT_Q8_0, 5)
                : tiny_model_of(architecture, DT_Q8_0, 5);
}

static void so_do_those_of_windows_and_with_states(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        any_history(model_of(i), false, kinds[i].least,
                    (struct engine_options){.threads = 2, .ubatch = 48});
}

/* A state is kept at the end of the last whole page, and where texts part: once two have been seen
 * that do. Deterministic: a page that decode has filled is shared where it has prefill's bits. */
static void states_are_kept_where_texts_part(void **state)
{
    static int32_t a[3][LENGTH], b[LENGTH];
    (void)state;
    for (size_t kind = 2; kind < ARRAY_LEN(kinds); kind++) {
        struct model *m = model_of(kind);
        struct engine *e =
            open_engine(m, NULL,
                        (struct engine_options){
                            .context = CONTEXT, .ubatch = 256, .seqs = 1, .deterministic = true});
        int32_t seq;
        for (int i = 0; i < 3; i++) {
            fill_ids(a[i], 130, VOCAB, 1);
            fill_ids(a[i] + 130, LENGTH - 130, VOCAB, 2 + (uint64_t)i);
            seq = seq_new(e);
            assert_int_equal(engine_seq_begin(e, seq, a[i], 200), i < 2 ? 0 : 128);
            assert_int_equal(engine_seq_piece(e, seq, 200, 200), i == 1 ? 128 : i == 2 ? 192 : 200);
            feed(e, seq, a[i] + engine_seq_length(e, seq), 200 - engine_seq_length(e, seq));
            engine_seq_free(e, seq);
        }
        fill_ids(b, LENGTH, VOCAB, 9);
        seq = seq_new(e);
        assert_int_equal(engine_seq_begin(e, seq, b, 60), 0);
        feed(e, seq, b, 60);
        for (int i = 60; i < 140; i++)
            decode(e, seq, b[i]);
        engine_seq_free(e, seq);
        seq = seq_new(e);
        assert_int_equal(engine_seq_begin(e, seq, b, 128), 0); /* only the last is kept */
        assert_int_equal(engine_seq_begin(e, seq, b, 200), 128);
        engine_seq_free(e, seq);
        engine_close(e);
        model_close(m);
    }
}

/* A window of 40: of a text behind which two more windows' worth of tokens came only the end can be
 * gone on from, since its pages are few; but all of it as long as nobody took them. */
static void windows_are_there_until_they_are_taken(void **state)
{
    static int32_t a[LENGTH], b[LENGTH];
    struct model *m = model_of(0);
    struct engine *e =
        open_engine(m, NULL, (struct engine_options){.context = CONTEXT, .ubatch = 32, .seqs = 1});
    (void)state;
    fill_ids(a, LENGTH, VOCAB, 1);
    fill_ids(b, LENGTH, VOCAB, 2);
    int32_t seq = seq_new(e); /* 3 pages of windows */
    feed(e, seq, a, 192);
    engine_seq_free(e, seq);
    for (int32_t n = 192; n > 64; n -= 64) {
        seq = seq_new(e);
        assert_int_equal(engine_seq_begin(e, seq, a, n), n - 64);
        engine_seq_free(e, seq);
    }
    seq = seq_new(e);
    feed(e, seq, b, 60); /* takes the page that was longest not used: the last of the text */
    engine_seq_free(e, seq);
    seq = seq_new(e);
    assert_int_equal(engine_seq_begin(e, seq, a, 200), 128);
    feed(e, seq, a + 128, 172);
    engine_seq_free(e, seq);
    engine_close(e);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shared_pages_have_the_bits_of_computed_ones),
        cmocka_unit_test(shared_pages_of_a_gpu_have_them_too),
        cmocka_unit_test(pages_are_found_while_they_last),
        cmocka_unit_test(restored_pages_are_not_taken_for_others),
        cmocka_unit_test(a_page_cut_back_loses_its_text),
        cmocka_unit_test(so_do_those_of_windows_and_with_states),
        cmocka_unit_test(states_are_kept_where_texts_part),
        cmocka_unit_test(windows_are_there_until_they_are_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
