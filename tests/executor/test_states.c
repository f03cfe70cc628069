/*
 * test_states.c - an engine with engine_options.states gives rows of hidden states beside rows of
 * logits in one step: the former with the bits of an engine for embeddings, the latter with those
 * of an engine without states, wherever a plan places what, and whatever phases a step mixes.
 */
#include "tests/executor/harness.h"

#include <stdlib.h>

enum { PROMPT = 24, SEQS = 3, ROUNDS = 5 };

/* The states of n tokens of a new sequence, which goes again. */
static float *states_of(struct engine *e, const int32_t *ids, int32_t n, int32_t width)
{
    struct oato_error err;
    int32_t seq;
    float *rows = malloc((size_t)n * (size_t)width * sizeof *rows);
    assert_non_null(rows);
    assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
    const struct engine_input in = {seq, ids, n, LOGITS_STATES, true};
    if (engine_step(e, &in, 1, &err))
        fail_msg("%s", err.text);
    for (int32_t i = 0; i < n; i++)
        memcpy(rows + (size_t)i * (size_t)width, engine_logits(e, i), (size_t)width * sizeof *rows);
    assert_null(engine_logits(e, n));
    engine_seq_free(e, seq);
    return rows;
}

/* engine: states, embeddings, plain. Sequences 0 and 2 answer, and another one between them is for
 * states and new in each round. */
static void rounds_run(struct engine *const engine[3], int32_t vocab, int32_t width, bool picks)
{
    int32_t ids[SEQS][PROMPT + ROUNDS], seq[2][SEQS];
    struct oato_error err;
    for (int s = 0; s < SEQS; s++)
        fill_ids(ids[s], PROMPT + ROUNDS, vocab, (uint64_t)s + 3);
    for (int i = 0; i < 2 * SEQS; i++)
        assert_int_equal(engine_seq_create(engine[2 * (i % 2)], &seq[i % 2][i / 2], &err), OATO_OK);
    for (int round = 0; round < ROUNDS; round++) {
        const int32_t at = round ? PROMPT + round - 1 : 0, n = round ? 1 : PROMPT / 2,
                      texts = round % 3 ? PROMPT : 1;
        const enum engine_logits logits = picks ? LOGITS_PICKS : LOGITS_LAST;
        const struct engine_input in[SEQS] = {
            {seq[0][0], ids[0] + at, n, logits, !round},
            {seq[0][1], ids[1] + round, texts, LOGITS_STATES, true},
            {seq[0][2], ids[2] + at, n, logits, !round}};
        const struct engine_input others[2] = {{seq[1][0], in[0].ids, n, logits, !round},
                                               {seq[1][2], in[2].ids, n, logits, !round}};
        if (engine_step(engine[0], in, SEQS, &err) || engine_step(engine[2], others, 2, &err))
            fail_msg("%s", err.text);
        float *expected = states_of(engine[1], in[1].ids, texts, width);
        for (int32_t i = 0; i < texts; i++)
            assert_same_bits(engine_logits(engine[0], 1 + i), expected + (size_t)i * (size_t)width,
                             (size_t)width);
        free(expected);
        for (int i = 0; i < 2; i++) {
            const int32_t row = i ? 1 + texts : 0;
            int32_t k, same;
            const float *got = engine_candidates(engine[0], row, &k);
            const float *other = engine_candidates(engine[2], i, &same);
            assert_int_equal(k, same);
            if (k)
                assert_same_bits(got, other, 2 * (size_t)k);
            else
                assert_same_bits(engine_logits(engine[0], row), engine_logits(engine[2], i),
                                 (size_t)vocab);
        }
        engine_seq_free(engine[0], seq[0][1]);
        assert_int_equal(engine_seq_create(engine[0], &seq[0][1], &err), OATO_OK);
    }
}

static void check(const char *architecture, const struct plan *p, struct model *m, bool picks)
{
    struct engine *engine[3];
    struct engine_stats stats;
    for (int i = 0; i < 3; i++)
        engine[i] = open_engine(m, p,
                                (struct engine_options){.threads = 1,
                                                        .context = 512,
                                                        .ubatch = 64,
                                                        .seqs = SEQS,
                                                        .states = i == 0,
                                                        .embeddings = i == 1,
                                                        .top_logits = picks ? 7 : 0});
    engine_get_stats(engine[0], &stats);
    assert_int_equal(stats.states, 64);
    assert_int_equal(stats.rows, SEQS);
    print_message("%s, width %d\n", architecture, stats.state_width);
    rounds_run(engine, stats.vocab, stats.state_width, picks);
    engine_get_stats(engine[2], &stats);
    assert_int_equal(stats.states, 0);
    for (int i = 0; i < 3; i++)
        engine_close(engine[i]);
}

static void states_beside_logits(void **state)
{
    static const char *const architectures[] = {"llama", "gemma2", "qwen35", "qwen3moe"};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(architectures); i++) {
        struct model *m = tiny_model_of(architectures[i], DT_Q8_0, 5 + i);
        check(architectures[i], NULL, m, false);
        model_close(m);
    }
}

/* The head on the accelerator, which gives candidates, or anything anywhere. */
static void states_of_plans(void **state)
{
    struct random r = random_of_run();
    (void)state;
    for (int round = 0; round < 6; round++) {
        struct model *m = tiny_model(DT_Q8_0, random_below(&r, 1000));
        struct plan p;
        struct graph fused;
        plan_begin(&p, m, 2, "vram=64MiB");
        plan_fuse_all(&p, m, &fused);
        plan_place_randomly(&p, &fused, &r);
        check("a plan", &p, m, round % 2);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

static void states_of_a_gpu(void **state)
{
    (void)state;
    if (!gpu_is_there())
        skip();
    for (int picks = 1; picks < 2; picks++) {
        struct model *m = tiny_model(DT_Q8_0, 7);
        struct plan p;
        struct graph fused;
        plan_begin_gpu(&p, m, &fused);
        plan_on_gpu(&p, &fused, false);
        check("a GPU", &p, m, picks);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

static void states_are_refused(void **state)
{
    struct model *m = tiny_model(DT_Q8_0, 5);
    struct oato_error err;
    const int32_t id = 1;
    int32_t seq;
    (void)state;
    for (int states = 0; states < 2; states++) {
        struct engine *e =
            open_engine(m, NULL, (struct engine_options){.context = 64, .states = states});
        assert_int_equal(engine_seq_create(e, &seq, &err), OATO_OK);
        const struct engine_input in = {seq, &id, 1, LOGITS_STATES, !states};
        assert_int_equal(engine_step(e, &in, 1, &err), OATO_EUSAGE);
        engine_close(e);
    }
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_beside_logits),
        cmocka_unit_test(states_of_plans),
        cmocka_unit_test(states_of_a_gpu),
        cmocka_unit_test(states_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
