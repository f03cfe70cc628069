/*
 * test_sparse.c - --sparse in the engine: exact has the bits of dense, which computes everything by
 * the same kernels, at any number of threads and tokens a step, alone and batched, and where a
 * simulated device computes parts of the model; so are the bits of predict, which leaves out in
 * decode what its guess does not name; inputs of products that are at most their matrix's
 * threshold count as 0; what a model lacks is told in one line.
 */
#include "executor/executor.h"
#include "tests/executor/harness.h"

#include <math.h>
#include <stdlib.h>

enum { TOKENS = 40 };

static const struct neurons *counted; /* of engines that are opened; NULL: nothing */

static float *sparse_logits(const struct model *m, const struct plan *p, const char *sparse,
                            int threads, int ubatch)
{
    int32_t ids[TOKENS];
    struct engine *e = open_engine(m, p,
                                   (struct engine_options){.threads = threads,
                                                           .ubatch = ubatch,
                                                           .rows = ubatch,
                                                           .sparse = sparse_of(sparse),
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
    const struct engine_options options = {.sparse = sparse_of(sparse), .neurons = counted};
    assert_int_equal(engine_open(m, NULL, &options, NULL, NULL, &e, &err), OATO_EUSAGE);
    if (!strstr(err.text, word))
        fail_msg("'%s' lacks '%s'", err.text, word);
}

static void what_cannot_skip_is_refused(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_Q4_0, 1);
    assert_refused(m, "exact", "threshold=S");
    assert_refused(m, "threshold=0.5", "oato-profile --calibrate");
    assert_refused(m, "predict", "no predictors");
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

/* ------------------------------------------------------------------------- inputs (TEAL) - */

enum { MATRICES = 7 };

/* A sidecar with the inputs of every matrix of the layers: quantile i of number j is i (j + 1)
 * times `step`. Without `all` the last one is missing. */
static void input_quantiles(struct neurons *n, const struct model *m, float step, bool all)
{
    static const char *const kinds[MATRICES] = {"attn_q",   "attn_k", "attn_v",  "attn_output",
                                                "ffn_gate", "ffn_up", "ffn_down"};
    const int32_t matrices = MATRICES * m->graph.n_layers;
    neurons_init(n);
    n->magnitudes = arena_alloc(&n->arena, (size_t)matrices, sizeof *n->magnitudes);
    assert_non_null(n->magnitudes);
    for (int32_t i = 0; i < matrices - !all; i++) {
        char name[32];
        float *q = arena_alloc(&n->arena, NEURONS_QUANTILES, sizeof *q);
        snprintf(name, sizeof name, "blk.%d.%s.in", i / MATRICES, kinds[i % MATRICES]);
        const char *kept = arena_strndup(&n->arena, name, strlen(name));
        assert_true(q && kept);
        for (int32_t j = 0; j < NEURONS_QUANTILES; j++)
            q[j] = (float)j * step * (float)(i + 1);
        n->magnitudes[n->n_magnitudes++] = (struct neurons_magnitudes){kept, q, NULL};
    }
}

/* What products of a model of float32 were seen to give, held to their sums in double. */
struct products_seen {
    const struct model *m;
    const struct neurons *n;
    float share;
    int64_t products, inputs, skipped;
};

static float limit_of(const struct products_seen *s, const char *tensor)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s.in", (int)(strstr(tensor, ".weight") - tensor), tensor);
    const struct neurons_magnitudes *q = neurons_magnitudes(s->n, name);
    return q ? q->quantiles[(int)(100 * s->share + 0.5f)] : -1;
}

static void product_check(void *user, int32_t op, int32_t rows, const float *const *in,
                          float *const *out)
{
    struct products_seen *s = user;
    const struct graph_op *o = &s->m->graph.ops[op];
    if (o->op.kind != OP_MUL_MAT)
        return;
    const float limit = limit_of(s, o->weight[0]->name),
                *w = (const float *)(const void *)o->weight[0]->data;
    for (int32_t t = 0; t < rows; t++) {
        const float *x = in[0] + (ptrdiff_t)t * o->op.k;
        for (int32_t i = 0; i < o->op.k && limit >= 0; i++, s->inputs++)
            s->skipped += fabsf(x[i]) <= limit;
        for (int32_t r = 0; r < o->op.n; r++) {
            double sum = 0, size = 1e-6;
            for (int32_t i = 0; i < o->op.k; i++) {
                const double p = (double)w[(ptrdiff_t)r * o->op.k + i] * (double)x[i];
                sum += fabsf(x[i]) > limit ? p : 0;
                size += fabs(p);
            }
            if (fabs((double)out[0][(ptrdiff_t)t * o->op.n + r] - sum) > 1e-5 * size)
                fail_msg("%s, token %d, row %d", o->weight[0]->name, t, r);
        }
    }
    s->products += limit >= 0;
}

/* Each product is that of its inputs with those zeroed that are at most its own threshold. */
static void inputs_below_their_threshold_are_zero(void **state)
{
    (void)state;
    struct model *m = tiny_model(DT_F32, 5);
    struct neurons n;
    struct products_seen seen = {.m = m, .n = &n, .share = 0.3f};
    int32_t ids[TOKENS];
    input_quantiles(&n, m, 0.0005f, true);
    struct engine *e = open_engine(m, NULL,
                                   (struct engine_options){.threads = 2,
                                                           .rows = TOKENS,
                                                           .sparse = sparse_of("input=0.3"),
                                                           .neurons = &n,
                                                           .observe = product_check,
                                                           .observe_user = &seen});
    fill_ids(ids, TOKENS, m->shape.vocab, 3);
    free(logits_of(e, ids, TOKENS));
    engine_close(e);
    assert_int_equal(seen.products, MATRICES * m->graph.n_layers);
    assert_true(seen.skipped > seen.inputs / 100 && seen.skipped < seen.inputs);
    neurons_free(&n);
    model_close(m);
}

/* Whatever the threads and the tokens of a step; and beside a mode of the FFN. */
static void skipped_inputs_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    static const char *const modes[] = {"input=0.3", "above=0.05,input=0.3"};
    struct model *m = tiny_model(DT_Q4_0, 1);
    struct neurons n;
    input_quantiles(&n, m, 0.0005f, true);
    counted = &n;
    float *all = sparse_logits(m, NULL, "dense,input=0.3", 1, 1);
    assert_logits(m, NULL, "dense,input=0", 2, 32, all);
    for (size_t i = 0; i < ARRAY_LEN(modes); i++) {
        float *some = sparse_logits(m, NULL, modes[i], 1, 1);
        assert_true(differ(all, some));
        assert_logits(m, NULL, modes[i], 2, 1, some);
        if (i == 0) /* products of the dense gate have another class in prompts */
            assert_logits(m, NULL, modes[i], 2, 32, some);
        free(some);
    }
    neurons_free(&n);
    input_quantiles(&n, m, 0.0005f, false);
    assert_refused(m, "input=0.3", "of blk.2.ffn_down.weight");
    neurons_free(&n);
    counted = NULL;
    assert_refused(m, "input=0.3", "oato-profile --calibrate");
    free(all);
    model_close(m);
}

/* ------------------------------------------------------------------- guesses in decode ---- */

enum { GUESSED = 12, SEQS = 2 };

/* Logits of GUESSED tokens that are decoded one by one, in as many sequences at the same time, of
 * which the first one has the tokens that are asked for. */
static float *decoded(const struct model *m, const struct plan *p, const char *sparse, int threads,
                      int32_t seqs)
{
    const size_t vocab = (size_t)m->shape.vocab;
    float *logits = calloc(GUESSED * vocab, sizeof *logits);
    int32_t ids[SEQS][GUESSED], seq[SEQS];
    struct oato_error err;
    struct engine *e = open_engine(m, p,
                                   (struct engine_options){.threads = threads,
                                                           .ubatch = 8,
                                                           .seqs = seqs,
                                                           .rows = seqs,
                                                           .sparse = sparse_of(sparse),
                                                           .neurons = counted});
    for (int32_t s = 0; s < seqs; s++) {
        fill_ids(ids[s], GUESSED, m->shape.vocab, (uint64_t)s + 3);
        assert_int_equal(engine_seq_create(e, &seq[s], &err), OATO_OK);
    }
    for (int32_t i = 0; i < GUESSED; i++) {
        struct engine_input in[SEQS];
        for (int32_t s = 0; s < seqs; s++)
            in[s] = (struct engine_input){seq[s], &ids[s][i], 1, LOGITS_LAST, false};
        if (engine_step(e, in, seqs, &err))
            fail_msg("%s", err.text);
        memcpy(logits + (size_t)i * vocab, engine_logits(e, 0), vocab * sizeof *logits);
    }
    engine_close(e);
    return logits;
}

static void assert_decoded(const struct model *m, const struct plan *p, const char *sparse,
                           int threads, int32_t seqs, const float *wanted)
{
    float *got = decoded(m, p, sparse, threads, seqs);
    assert_same_bits(got, wanted, GUESSED * (size_t)m->shape.vocab);
    free(got);
}

/* A guess has other bits than exact, whatever the threads, the company and the devices. */
static void check_guess(const struct model *m, const struct plan *p)
{
    float *exact = decoded(m, NULL, "exact", 1, 1), *guessed = decoded(m, NULL, "predict", 1, 1);
    assert_true(differ(exact, guessed));
    assert_decoded(m, NULL, "exact", 2, 1, exact);
    assert_decoded(m, NULL, "predict", 2, 1, guessed);
    assert_decoded(m, NULL, "predict", 1, SEQS, guessed);
    assert_decoded(m, p, "exact", 1, SEQS, exact);
    assert_decoded(m, p, "predict", 2, 1, guessed);
    free(guessed);
    free(exact);
    float *prompt = sparse_logits(m, NULL, "exact", 1, 8);
    assert_logits(m, p, "predict", 2, 8, prompt); /* prompts are computed whole */
    free(prompt);
}

/* A model with random predictors, on CPU and a simulated device. */
struct guessing {
    struct model *m;
    struct graph fused;
    struct neurons n;
    struct plan p;
};

static void guessing_begin(struct guessing *g, struct model *m)
{
    struct random r = {11};
    g->m = m;
    predictors_init(&g->n, m);
    counted = &g->n;
    plan_begin(&g->p, m, 1, "vram=64MiB");
    plan_fuse_all(&g->p, m, &g->fused);
    plan_place_randomly(&g->p, &g->fused, &r);
}

static void guessing_end(struct guessing *g)
{
    counted = NULL;
    graph_free(&g->fused);
    plan_free(&g->p);
    neurons_free(&g->n);
    model_close(g->m);
}

static void guesses_have_the_same_bits_everywhere(void **state)
{
    (void)state;
    static const oato_dtype types[] = {DT_Q4_0, DT_F16};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct guessing g;
        guessing_begin(&g, relu_model(types[i]));
        check_guess(g.m, &g.p);
        predictors_limit(&g.n, -1e9f); /* names all neurons */
        float *exact = decoded(g.m, NULL, "exact", 1, 1);
        assert_decoded(g.m, &g.p, "predict", 2, 1, exact);
        free(exact);
        const struct engine_options once = {
            .sparse = sparse_of("predict"), .neurons = &g.n, .deterministic = true};
        expect_refused(g.m, NULL, &once, OATO_EUSAGE, "--deterministic");
        guessing_end(&g);
    }
}

/* Without a gate: the product before the ReLU, with its bias, is by a list. */
static void ungated_blocks_are_guessed(void **state)
{
    (void)state;
    struct guessing g;
    guessing_begin(&g, tiny_model_with("opt", "attention.layer_norm_epsilon=0.00001", DT_Q4_0, 7));
    check_guess(g.m, &g.p);
    float *exact = decoded(g.m, NULL, "exact", 1, 1);
    predictors_limit(&g.n, -1e9f);
    assert_decoded(g.m, &g.p, "predict", 2, 1, exact);
    free(exact);
    guessing_end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_has_the_bits_of_dense),
        cmocka_unit_test(devices_change_no_bit),
        cmocka_unit_test(what_cannot_skip_is_refused),
        cmocka_unit_test(a_share_takes_each_layers_threshold),
        cmocka_unit_test(inputs_below_their_threshold_are_zero),
        cmocka_unit_test(skipped_inputs_have_the_same_bits_everywhere),
        cmocka_unit_test(guesses_have_the_same_bits_everywhere),
        cmocka_unit_test(ungated_blocks_are_guessed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
