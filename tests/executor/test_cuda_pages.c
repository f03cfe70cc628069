/*
 * test_cuda_pages.c - pages of the KV cache on a GPU: layers with a window have few, of which they
 * use those again that left it; saved sequences come back as they were.
 */
#include "tests/executor/harness.h"
#include "tests/kernels/cuda_counts.h"
#include "tests/pace.h"

#include "kernels/device.h"

#include <stdlib.h>

/* Of a text longer than the pages of windows hold, and of two that go on from it. */
static float *logits_with_windows(const struct model *m)
{
    enum { LENGTH = 140 };
    const struct engine_options options = {
        .threads = 1, .rows = 16, .ubatch = 16, .seqs = 2, .context = 256};
    const size_t row = (size_t)m->shape.vocab;
    int32_t ids[LENGTH + 2], seq[2];
    struct plan p;
    struct graph fused;
    struct oato_error err;
    float *logits = calloc(3 * row, sizeof *logits);
    assert_non_null(logits);
    plan_begin_gpu(&p, m, &fused);
    plan_on_gpu(&p, &fused, false);
    struct engine *e = open_engine(m, &p, options);
    fill_ids(ids, LENGTH + 2, m->shape.vocab, 5);
    if (engine_seq_create(e, &seq[0], &err) ||
        engine_feed(e, seq[0], ids, LENGTH, LOGITS_LAST, NULL, NULL, &err))
        fail_msg("%s", err.text);
    memcpy(logits, engine_logits(e, 0), row * sizeof *logits);
    assert_int_equal(engine_seq_fork(e, seq[0], &seq[1], &err), OATO_OK);
    const struct engine_input in[2] = {{seq[0], &ids[LENGTH], 1, LOGITS_LAST, false},
                                       {seq[1], &ids[LENGTH + 1], 1, LOGITS_LAST, false}};
    assert_int_equal(engine_step(e, in, 2, &err), OATO_OK);
    for (size_t i = 0; i < 2; i++)
        memcpy(logits + (i + 1) * row, engine_logits(e, (int32_t)i), row * sizeof *logits);
    engine_close(e);
    graph_free(&fused);
    plan_free(&p);
    return logits;
}

static void pages_that_left_a_window_are_used_again(void **state)
{
    (void)state;
    float *logits[2];
    size_t vocab = 0;
    for (int keeps = 0; keeps < 2; keeps++) {
        struct model *m = tiny_model_with(
            "gemma3", "attention.sliding_window=40 attention.sliding_window_pattern=3", DT_Q8_0, 3);
        for (int32_t i = 0; keeps && i < m->graph.n_ops; i++)
            if (m->graph.ops[i].op.kind == OP_KV_STORE)
                m->graph.ops[i].op.window = 0;
        vocab = (size_t)m->shape.vocab;
        logits[keeps] = logits_with_windows(m);
        model_close(m);
    }
    assert_same_bits(logits[0], logits[1], 3 * vocab);
    free(logits[0]);
    free(logits[1]);
}

static int host_allocs;
static bool refuse_host_allocs;

static cu_result count_host_alloc(void **p, size_t bytes, unsigned flags)
{
    host_allocs++;
    return refuse_host_allocs ? CU_ERROR_OUT_OF_MEMORY : uncounted.host_alloc(p, bytes, flags);
}

/* Other sequences write to the pages in between. A copy's memory is page-locked, unless there is no
 * such memory, and serves the next copy again. */
static void a_saved_sequence_comes_back_with_its_bits(void **state)
{
    enum { LENGTH = 140 };
    (void)state;
    struct model *m = tiny_model_with(
        "gemma3", "attention.sliding_window=40 attention.sliding_window_pattern=3", DT_Q8_0, 3);
    const size_t row = (size_t)m->shape.vocab;
    float *logits = logits_with_windows(m);
    int32_t ids[LENGTH + 2];
    fill_ids(ids, LENGTH + 2, m->shape.vocab, 5);
    for (size_t refused = pace_first(2); refused < 2; refused += pace_step(2)) {
        const struct engine_options options = {
            .threads = 1, .rows = 16, .ubatch = 16, .seqs = 2, .context = 256};
        struct plan p;
        struct graph fused;
        struct oato_error err;
        plan_begin_gpu(&p, m, &fused);
        plan_on_gpu(&p, &fused, false);
        struct engine *e = open_engine(m, &p, options);
        count_begin();
        counted->host_alloc = count_host_alloc;
        host_allocs = 0;
        refuse_host_allocs = refused;
        for (int round = 0; round < 2; round++) {
            struct engine_saved *saved = NULL;
            int32_t seq = -1, other = -1;
            if (engine_seq_create(e, &seq, &err) ||
                engine_feed(e, seq, ids, LENGTH, LOGITS_LAST, NULL, NULL, &err) ||
                engine_seq_save(e, seq, &saved, &err))
                fail_msg("%s", err.text);
            assert_int_equal(engine_saved_size(saved).bytes, engine_seq_size(e, seq).bytes);
            engine_seq_free(e, seq);
            assert_int_equal(engine_seq_create(e, &other, &err), OATO_OK);
            assert_int_equal(engine_feed(e, other, ids + 7, 100, LOGITS_LAST, NULL, NULL, &err),
                             OATO_OK);
            assert_int_equal(engine_seq_restore(e, saved, &seq, &err), OATO_OK);
            const struct engine_input in = {seq, &ids[LENGTH], 1, LOGITS_LAST, false};
            assert_int_equal(engine_step(e, &in, 1, &err), OATO_OK);
            assert_same_bits(engine_logits(e, 0), logits + row, row);
            engine_saved_free(saved);
            engine_seq_free(e, seq);
            engine_seq_free(e, other);
        }
        assert_int_equal(host_allocs, 1);
        count_end();
        engine_close(e);
        graph_free(&fused);
        plan_free(&p);
    }
    free(logits);
    model_close(m);
}

int main(void)
{
    struct oato_error err;
    struct oato_device *d;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_that_left_a_window_are_used_again),
        cmocka_unit_test(a_saved_sequence_comes_back_with_its_bits),
    };
    if (device_open("cuda", 0, NULL, &d, &err)) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    d->ops->close(d);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
