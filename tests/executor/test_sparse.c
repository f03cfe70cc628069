/*
 * test_sparse.c - --sparse in the engine: exact has the bits of dense, which computes everything by
 * the same kernels, at any number of threads and tokens a step, alone and batched, and where a
 * simulated device computes parts of the model; what a model lacks is told in one line.
 */
#include "executor/executor.h"
#include "tests/executor/harness.h"

#include <stdlib.h>

enum { TOKENS = 40 };

static const struct neurons *counted; /* of engines that are opened; NULL: nothing */

static struct model *relu_model(oato_dtype dtype)
{
    struct model *m = tiny_model(dtype, 7);
    for (int32_t i = 0; i < m->graph.n_ops; i++)
        if (m->graph.ops[i].op.kind == OP_SWIGLU)
            m->graph.ops[i].op.activation = ACT_RELU;
    return m;
}

static float *sparse_logits(const struct model *m, const struct plan *p, const char *sparse,
                            int threads, int ubatch)
{
    int32_t ids[TOKENS];
    struct engine *e = open_engine(m, p,
                                   (struct engine_options){.threads = threads,
                                                           .ubatch = ubatch,
                                                           .rows = ubatch,
                                                           .sparse = sparse,
                                                           .neurons = counted});
    fill_ids(ids, TOKENS, m->shape.vocab, 3);
    float *logits = logits_of(e, ids, TOKENS);
    engine_close(e);
    return logits;
}

static void assert_logits(const struct model *m, const struct plan *p, const char *sparse,
                          int threads, int ubatch, const float *wanted)
{
    float *got = sparse_logits(m, p, sparse, threads, ubatch);
    assert_same_bits(got, wanted, (size_t)TOKENS * (size_t)m->shape.vocab);
    free(got);
}

static bool differ(const float *a, const float *b)
{
    int i = 0;
    while (i < TOKENS && a[i] == b[i])
        i++;
    return i < TOKENS;
}

static void exact_has_the_bits_of_dense(void **state)
{
    (void)state;
    static const oato_dtype types[] = {DT_Q4_0, DT_F16, DT_Q8_0};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct model *m = relu_model(types[i]);
        float *prompt = sparse_logits(m, NULL, "dense", 1, 32);
        float *single = sparse_logits(m, NULL, "dense", 1, 1);
        for (int threads = 1; threads <= 2; threads++) {
            assert_logits(m, NULL, "exact", threads, 32, prompt);
            assert_logits(m, NULL, "exact", threads, 1, single);
        }
        free(prompt);
        free(single);
        model_close(m);
    }
}

static void devices_change_no_bit(void **state)
{
    (void)state;
    struct model *m = relu_model(DT_Q4_0);
    struct graph fused;
    struct plan p;
    struct random r = {11};
    plan_begin(&p, m, 1, "vram=64MiB");
    plan_fuse_all(&p, m, &fused);
    plan_place_randomly(&p, &fused, &r);
    float *wanted = sparse_logits(m, NULL, "dense", 2, 32);
    assert_logits(m, &p, "exact", 2, 32, wanted);
    free(wanted);
    graph_free(&fused);
    plan_free(&p);
    model_close(m);
}

static void assert_refused(const struct model *m, const char *sparse, const char *word)
{
    struct oato_error err;
    struct engine *e = NULL;
    const struct engine_options options = {.sparse = sparse, .neurons = counted};
    assert_int_equal(engine_open(m, NULL, &options, NULL, NULL, &e, &err), OATO_EUSAGE);
    if (!strstr(err.text, word))
        fail_msg("'%s' lacks '%s'", err.text, word);
}

static void what_cannot_skip_is_refused(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 1);
    assert_refused(m, "exact", "threshold=S");
    assert_refused(m, "above=-1", "--sparse wants");
    assert_refused(m, "threshold=1", "--sparse wants");
    assert_refused(m, "threshold=0.5", "oato-profile --calibrate");
    assert_refused(m, "fast", "--sparse wants");
    float *all = sparse_logits(m, NULL, "dense", 1, 1);
    assert_logits(m, NULL, "above=0", 2, 1, all); /* SiLU is 0 nowhere but at 0 */
    float *some = sparse_logits(m, NULL, "above=0.05", 1, 1);
    assert_true(differ(all, some));
    free(some);
    free(all);
    model_close(m);
}

/* Thresholds of a sidecar are those of its layers' quantiles. */
static void a_share_takes_each_layers_threshold(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 1);
    float quantiles[NEURONS_QUANTILES], far[NEURONS_QUANTILES];
    struct neurons_magnitudes magnitudes[8];
    char names[8][24];
    struct neurons n = {.magnitudes = magnitudes};
    assert_true(m->graph.n_layers <= 8);
    for (int i = 0; i < NEURONS_QUANTILES; i++) {
        quantiles[i] = (float)i * 0.001f;
        far[i] = 1000 + (float)i;
    }
    for (int32_t i = 0; i < m->graph.n_layers; i++) {
        snprintf(names[i], sizeof names[i], "blk.%d.ffn_act", i);
        magnitudes[n.n_magnitudes++] = (struct neurons_magnitudes){names[i], quantiles, NULL};
    }
    float *wanted = sparse_logits(m, NULL, "above=0.05", 1, 1);
    counted = &n;
    assert_logits(m, NULL, "threshold=0.5", 2, 1, wanted);
    magnitudes[m->graph.n_layers - 1].quantiles = far;
    float *other = sparse_logits(m, NULL, "threshold=0.5", 1, 1);
    assert_true(differ(wanted, other));
    n.n_magnitudes--;
    assert_refused(m, "threshold=0.5", "lacks the quantiles");
    counted = NULL;
    free(wanted);
    free(other);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_has_the_bits_of_dense),
        cmocka_unit_test(devices_change_no_bit),
        cmocka_unit_test(what_cannot_skip_is_refused),
        cmocka_unit_test(a_share_takes_each_layers_threshold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
