/*
 * test_cuda_engine.c - the engine with a CUDA device: weights that stay with the host and are
 * streamed give the bits of resident ones, in the memory of their staging buffers alone; candidates
 * of rows of logits are the first of the rows.
 */
#include "tests/executor/harness.h"

#include "kernels/device.h"

#include <stdlib.h>

enum { PROMPT = 9, ANSWER = 4 };

/* All of the model on the GPU; its matrices have their home there or with the host. */
static void plan_on_gpu(struct plan *p, const struct graph *g, bool streams)
{
    p->n_parts = p->n_kv = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const struct graph_op *o = &g->ops[i];
        if (o->op.kind == OP_KV_STORE)
            p->kv[p->n_kv++] = (struct plan_kv){o->kv_layer, 0, o->op.kv_heads, 1};
        plan_add_part(p, o->name, 0, o->op.n, 1);
        if (streams && op_weight_use(&o->op) == WEIGHT_MATRIX)
            p->parts[p->n_parts - 1].home = 0;
    }
}

/* Logits of a prompt, and of tokens one by one behind it. */
static float *answer_of(struct engine *e, int32_t vocab)
{
    const size_t row = (size_t)vocab;
    int32_t ids[PROMPT + ANSWER], seq;
    struct oato_error err;
    fill_ids(ids, PROMPT + ANSWER, vocab, 5);
    float *all = realloc(logits_of(e, ids, PROMPT), (PROMPT + ANSWER) * row * sizeof *all);
    assert_non_null(all);
    if (engine_seq_create(e, &seq, &err) ||
        engine_feed(e, seq, ids, PROMPT, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < ANSWER; i++) {
        struct engine_input in = {seq, &ids[PROMPT + i], 1, LOGITS_LAST, false};
        if (engine_step(e, &in, 1, &err))
            fail_msg("%s", err.text);
        memcpy(all + (PROMPT + (size_t)i) * row, engine_logits(e, 0), row * sizeof *all);
    }
    engine_seq_free(e, seq);
    return all;
}

static void begin_plan(struct plan *p, const struct model *m, struct graph *fused)
{
    plan_begin(p, m, 1, "");
    snprintf(p->devices[1].kind, sizeof p->devices[1].kind, "cuda");
    snprintf(p->devices[1].id, sizeof p->devices[1].id, "cuda:0");
    plan_fuse_all(p, m, fused);
}

static void streamed_weights_give_the_bits_of_resident_ones(void **state)
{
    (void)state;
    static const struct {
        const char *architecture;
        oato_dtype dtype;
    } models[] = {{"llama", DT_Q4_K}, {"llama", DT_Q8_0}, {"qwen3moe", DT_Q4_1}};
    for (size_t i = 0; i < ARRAY_LEN(models); i++) {
        struct model *m = tiny_model_of(models[i].architecture, models[i].dtype, i);
        const struct engine_options options = {.threads = 1, .rows = 16, .ubatch = 16};
        float *logits[2];
        uint64_t weight_bytes[2];
        struct plan p;
        struct graph fused;
        begin_plan(&p, m, &fused);
        for (int streams = 0; streams < 2; streams++) {
            struct engine_stats stats;
            plan_on_gpu(&p, &fused, streams);
            struct engine *e = open_engine(m, &p, options);
            logits[streams] = answer_of(e, m->shape.vocab);
            engine_get_stats(e, &stats);
            weight_bytes[streams] = stats.device[1].weight_bytes;
            assert_int_equal(stats.device[1].staging_bytes > 0, streams);
            assert_int_equal(stats.stream_bytes[PHASE_DECODE] > 0, streams);
            engine_close(e);
        }
        assert_true(weight_bytes[1] < weight_bytes[0]);
        assert_same_bits(logits[0], logits[1], (PROMPT + ANSWER) * (size_t)m->shape.vocab);
        free(logits[0]);
        free(logits[1]);
        graph_free(&fused);
        plan_free(&p);
        model_close(m);
    }
}

/* Steps are captured as graphs when they come again, with the kernels of candidates among them. */
static void candidates_are_the_first_of_the_row(void **state)
{
    enum { CANDIDATES = 11 };
    (void)state;
    struct model *m = tiny_model(DT_Q8_0, 3);
    const int32_t vocab = m->shape.vocab;
    struct engine *e[2]; /* whole rows, candidates */
    struct plan p;
    struct graph fused;
    int32_t ids[PROMPT + ANSWER], seq;
    struct oato_error err;
    begin_plan(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    fill_ids(ids, PROMPT + ANSWER, vocab, 5);
    for (int i = 0; i < 2; i++) {
        e[i] = open_engine(m, &p,
                           (struct engine_options){.threads = 1, .top_logits = i ? CANDIDATES : 0});
        assert_int_equal(engine_seq_create(e[i], &seq, &err), OATO_OK);
    }
    for (int32_t at = 0, n; at < PROMPT + ANSWER; at += n) {
        n = at ? 1 : PROMPT;
        const struct engine_input in = {seq, ids + at, n, LOGITS_LAST, !at};
        int32_t got;
        for (int i = 0; i < 2; i++)
            if (engine_step(e[i], &in, 1, &err))
                fail_msg("%s", err.text);
        const float *candidates = engine_candidates(e[1], 0, &got);
        assert_non_null(candidates);
        assert_int_equal(got, CANDIDATES);
        assert_candidates(candidates, got, engine_logits(e[0], 0), vocab);
    }
    engine_close(e[0]);
    engine_close(e[1]);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

int main(void)
{
    struct oato_error err;
    struct oato_device *d;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streamed_weights_give_the_bits_of_resident_ones),
        cmocka_unit_test(candidates_are_the_first_of_the_row),
    };
    if (device_open("cuda", 0, NULL, &d, &err)) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    d->ops->close(d);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
