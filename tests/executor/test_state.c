/*
 * test_state.c - sequences of models with recurrent state: the same bits however tokens are cut
 * into steps, in company and when forked; truncation goes back to a checkpoint and goes on as if
 * nothing had been there; state on a simulated device is the same.
 */
#include "tests/executor/harness.h"

#include <stdlib.h>

enum { N = 150, MODELS = 4 };

static struct model *recurrent_model(int i)
{
    static const char *const names[MODELS] = {"lfm2", "qwen35", "granitehybrid", "mamba"};
    return tiny_model_of(names[i], DT_F32, 8);
}

static void feed(struct engine *e, int32_t seq, const int32_t *ids, int32_t n)
{
    struct oato_error err;
    if (engine_feed(e, seq, ids, n, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
}

/* One token that is no part of a prompt, so that no checkpoint is made. */
static void decode(struct engine *e, int32_t seq, const int32_t *ids, int32_t n)
{
    struct oato_error err;
    for (int32_t i = 0; i < n; i++) {
        const struct engine_input in = {seq, ids + i, 1, LOGITS_LAST, false};
        if (engine_step(e, &in, 1, &err))
            fail_msg("%s", err.text);
    }
}

static int32_t new_seq(struct engine *e)
{
    struct oato_error err;
    int32_t seq;
    assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
    return seq;
}

static int32_t fork_of(struct engine *e, int32_t from)
{
    struct oato_error err;
    int32_t seq;
    assert_int_equal(engine_seq_fork(e, from, &seq, &err), OATO_OK);
    return seq;
}

static int32_t cut(struct engine *e, int32_t seq, int32_t length)
{
    struct oato_error err;
    assert_int_equal(engine_seq_truncate(e, seq, length, &err), OATO_OK);
    return engine_seq_length(e, seq);
}

static void check_last(const struct engine *e, const float *alone, int32_t n, size_t vocab)
{
    assert_same_bits(engine_logits(e, 0), alone + (size_t)(n - 1) * vocab, vocab);
}

/* Chunks, forks and cuts of one model. */
static void sequences_go_on(const struct model *m, const struct plan *p)
{
    const struct engine_options options = {
        .seqs = 4, .rows = 512, .context = 1024, .ubatch = 64, .deterministic = true};
    const size_t vocab = (size_t)m->shape.vocab;
    int32_t ids[N], other[N];
    fill_ids(ids, N, m->shape.vocab, 3);
    fill_ids(other, N, m->shape.vocab, 4);
    struct engine *e = open_engine(m, p, options);
    const int32_t pages = engine_free_pages(e);
    float *alone = logits_of(e, ids, N);
    for (int32_t at = 1; at < 80; at += 13) {
        const int32_t a = new_seq(e);
        feed(e, a, ids, at);
        decode(e, a, ids + at, 5);
        check_last(e, alone, at + 5, vocab);
        const int32_t b = fork_of(e, a);
        feed(e, b, other, 9);
        decode(e, b, other, 2);
        feed(e, a, ids + at + 5, 40);
        check_last(e, alone, at + 45, vocab);
        const int32_t c = fork_of(e, a);
        engine_seq_free(e, b);
        /* a's checkpoints are at `at` and at + 45, c has none */
        assert_int_equal(cut(e, a, at + 44), at);
        assert_int_equal(cut(e, c, at + 44), 0);
        feed(e, c, ids, at + 1);
        check_last(e, alone, at + 1, vocab);
        feed(e, a, ids + at, N - at);
        check_last(e, alone, N, vocab);
        assert_int_equal(cut(e, a, at - 1), 0);
        feed(e, a, ids, N);
        check_last(e, alone, N, vocab);
        engine_seq_free(e, a);
        engine_seq_free(e, c);
        assert_int_equal(engine_free_pages(e), pages);
    }
    free(alone);
    engine_close(e);
}

static void a_forked_and_cut_sequence_goes_on_as_if_alone(void **state)
{
    (void)state;
    for (int i = 0; i < MODELS; i++) {
        struct model *m = recurrent_model(i);
        sequences_go_on(m, NULL);
        model_close(m);
    }
}

/* More checkpoints are asked for than there are; the last ones stay. */
static void old_checkpoints_make_room(void **state)
{
    (void)state;
    struct model *m = recurrent_model(0);
    int32_t ids[N];
    fill_ids(ids, N, m->shape.vocab, 5);
    struct engine *e = open_engine(m, NULL, (struct engine_options){.context = 512});
    const int32_t a = new_seq(e);
    for (int32_t i = 0; i < 2 * STATE_CHECKPOINTS; i++)
        feed(e, a, ids + 10 * (ptrdiff_t)i, 10);
    assert_int_equal(cut(e, a, 10 * 2 * STATE_CHECKPOINTS), 10 * 2 * STATE_CHECKPOINTS);
    assert_int_equal(cut(e, a, 10 * (STATE_CHECKPOINTS + 2) + 3), 10 * (STATE_CHECKPOINTS + 2));
    assert_int_equal(cut(e, a, 10 * (STATE_CHECKPOINTS + 1)), 10 * (STATE_CHECKPOINTS + 1));
    assert_int_equal(cut(e, a, 10 * STATE_CHECKPOINTS), 0);
    engine_close(e);
    model_close(m);
}

/* Every operator on a random device; what a state needs stands where its operator runs. */
static void state_lives_on_any_device(void **state)
{
    (void)state;
    struct random r = {7};
    for (int i = 0; i < MODELS; i++) {
        struct model *m = recurrent_model(i);
        struct plan p;
        struct graph fused;
        plan_begin(&p, m, 2, "vram=64MiB");
        plan_fuse_all(&p, m, &fused);
        plan_place_randomly(&p, &fused, &r);
        p.request.ubatch = 64;
        sequences_go_on(m, &p);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

/* A state cannot be in one place in prefill and in another in decode. */
static void a_state_stays_where_it_is(void **state)
{
    (void)state;
    struct model *m = recurrent_model(1);
    struct plan p;
    struct graph fused;
    struct engine *e;
    struct oato_error err;
    plan_begin(&p, m, 1, "vram=64MiB");
    plan_fuse_all(&p, m, &fused);
    plan_add_moving(&p, "blk.0.ssm_delta", 128);
    assert_int_equal(engine_open(m, &p, &(struct engine_options){0}, NULL, NULL, &e, &err),
                     OATO_EFILE);
    assert_non_null(strstr(err.text, "recurrent state"));
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_forked_and_cut_sequence_goes_on_as_if_alone),
        cmocka_unit_test(old_checkpoints_make_room),
        cmocka_unit_test(state_lives_on_any_device),
        cmocka_unit_test(a_state_stays_where_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
