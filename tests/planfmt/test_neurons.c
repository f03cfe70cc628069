/*
 * test_neurons.c - sidecars: what is written reads back, made-up ones have the skew that they were
 * asked for, and damaged and foreign ones are refused with one line.
 */
#include "random_planfmt.h"
#include "tests/models/random_model.h"
#include "tests/solver/power_law.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct gguf *make_model(const char *name, int64_t ffn, uint64_t seed, bool header_only)
{
    struct random_model shape = random_model_default();
    struct oato_error err = {.text = ""};
    struct gguf *g = NULL;
    shape.layers = 3;
    shape.ffn = ffn;
    shape.seed = seed;
    shape.header_only = header_only;
    shape.tokenizer = false;
    if (random_model_save(&shape, scratch_path(name), &err) ||
        gguf_open(scratch_path(name), &g, &err))
        fail_msg("%s", err.text);
    return g;
}

static int teardown(void **state)
{
    (void)state;
    scratch_clean();
    return 0;
}

static void made(const struct gguf *g, const struct power_law *law, struct neurons *n)
{
    struct oato_error err;
    if (power_law_neurons(g, law, n, &err))
        fail_msg("%s", err.text);
}

static void saved(const struct neurons *n, const char *name)
{
    struct oato_error err;
    if (neurons_save(n, scratch_path(name), &err))
        fail_msg("%s", err.text);
}

static void loaded(const char *name, struct neurons *n)
{
    struct oato_error err;
    if (neurons_load(scratch_path(name), n, &err))
        fail_msg("%s", err.text);
}

/* The share of all activations that the first `hot` neurons of the order cause. */
static double share_of_first(const float *freq, const int32_t *order, int32_t n, double hot)
{
    double all = 0, first = 0;
    for (int32_t i = 0; i < n; i++) {
        all += (double)freq[i];
        if (i < hot * n)
            first += (double)freq[order[i]] * fmin(1, hot * n - i);
        assert_true(i == 0 || freq[order[i]] <= freq[order[i - 1]]);
    }
    return first / all;
}

static void made_up_sidecars_have_the_skew_asked_for(void **state)
{
    (void)state;
    static const struct {
        double hot, mean;
    } cases[] = {{0.26, 0.1}, {0.43, 0.1}, {0.26, 0.03}, {0.43, 0.5}, {0.26, 0.3}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct gguf *g = make_model("skew.gguf", 1024 + 32 * (int64_t)i, 1, true);
        struct power_law law = power_law_default();
        struct neurons n;
        law.hot = cases[i].hot;
        law.mean = cases[i].mean;
        made(g, &law, &n);
        saved(&n, "skew.neurons.gguf");
        neurons_free(&n);
        loaded("skew.neurons.gguf", &n);
        for (int32_t l = 0; l < 3; l++) {
            const struct neurons_layer *x = neurons_layer(&n, l);
            double sum = 0;
            assert_non_null(x);
            assert_int_equal(x->n_ff, 1024 + 32 * (int)i);
            assert_null(x->exp_freq);
            for (int32_t j = 0; j < x->n_ff; j++)
                sum += (double)x->ffn_freq[j];
            assert_true(fabs(sum / x->n_ff / law.mean - 1) < 1e-3);
            assert_true(fabs(share_of_first(x->ffn_freq, x->ffn_order, x->n_ff, law.hot) - 0.8) <
                        2e-3);
        }
        /* layers have orders of their own */
        assert_true(memcmp(neurons_layer(&n, 0)->ffn_order, neurons_layer(&n, 1)->ffn_order,
                           4 * 1024) != 0);
        neurons_free(&n);
        gguf_close(g);
    }
}

static void impossible_laws_are_refused(void **state)
{
    (void)state;
    float freq[256];
    assert_false(power_law_fill(0.26, 0.4, 256, freq)); /* more often than always */
    assert_false(power_law_fill(0.9, 0.1, 256, freq));  /* the hot ones are colder */
    assert_true(power_law_fill(0.8, 0.1, 256, freq));   /* all the same */
    assert_true(fabs((double)freq[0] - 0.1) < 1e-3 && fabs((double)freq[255] - 0.1) < 1e-3);
}

static void what_is_written_reads_back(void **state)
{
    (void)state;
    struct rng r = {test_seed()};
    for (int round = 0; round < 40; round++) {
        struct neurons a, b;
        struct neurons_layer layers[5] = {0};
        float freq[5][2][64];
        int32_t order[5][64];
        neurons_init(&a);
        a.structure_hash = rng_next(&r);
        a.content_hash = rng_next(&r);
        a.tokens = rng_next(&r);
        a.source = "counted";
        a.layers = layers;
        a.n_layers = (int32_t)rng_range(&r, 1, 5);
        for (int32_t i = 0; i < a.n_layers; i++) {
            struct neurons_layer *l = &layers[i];
            const int64_t has = i == a.n_layers - 1 ? 3 : rng_range(&r, 0, 5);
            l->n_ff = has % 3 ? (int32_t)rng_range(&r, 1, 64) : 0;
            l->n_experts = has >= 3 ? (int32_t)rng_range(&r, 1, 64) : 0;
            for (int32_t j = 0; j < 64; j++) {
                for (int k = 0; k < 2; k++)
                    freq[i][k][j] = (float)rng_range(&r, 0, 20) / 20;
                order[i][j] = j;
            }
            for (int32_t j = l->n_ff - 1; j > 0; j--) {
                const int32_t k = (int32_t)rng_range(&r, 0, j), t = order[i][j];
                order[i][j] = order[i][k];
                order[i][k] = t;
            }
            if (has % 3 == 1)
                l->ffn_freq = freq[i][0];
            if (has % 3 == 2)
                l->ffn_order = order[i];
            if (has >= 3)
                l->exp_freq = freq[i][1];
            l->ffn_hot = l->n_ff ? (int32_t)rng_range(&r, 0, l->n_ff) : 0;
        }
        saved(&a, "round.neurons.gguf");
        loaded("round.neurons.gguf", &b);
        assert_int_equal(b.n_layers, a.n_layers);
        assert_true(a.structure_hash == b.structure_hash && a.content_hash == b.content_hash &&
                    a.tokens == b.tokens);
        assert_string_equal(b.source, "counted");
        for (int32_t i = 0; i < a.n_layers; i++) {
            const struct neurons_layer *x = &a.layers[i], *y = &b.layers[i];
            assert_true(x->n_ff == y->n_ff && x->n_experts == y->n_experts &&
                        x->ffn_hot == y->ffn_hot);
            assert_true(!x->ffn_freq == !y->ffn_freq && !x->exp_freq == !y->exp_freq);
            assert_true(!x->n_ff == !y->ffn_order && !x->exp_freq == !y->exp_order);
            assert_true(!(x->n_ff || x->n_experts) == !neurons_layer(&b, i));
            if (x->ffn_freq)
                assert_memory_equal(x->ffn_freq, y->ffn_freq, (size_t)x->n_ff * 4);
            if (x->ffn_order)
                assert_memory_equal(x->ffn_order, y->ffn_order, (size_t)x->n_ff * 4);
            if (x->exp_freq)
                assert_memory_equal(x->exp_freq, y->exp_freq, (size_t)x->n_experts * 4);
        }
        assert_true(neurons_hash(&a) == neurons_hash(&b));
        assert_null(neurons_layer(&b, -1));
        assert_null(neurons_layer(&b, b.n_layers));
        neurons_free(&b);
        arena_free(&a.arena);
    }
}

/* Of counting: thresholds, the text, and magnitudes, with their counts while it is unfinished. */
static void counted(struct neurons *n, int64_t counts[NEURONS_BINS],
                    float quantiles[NEURONS_QUANTILES], struct neurons_magnitudes *m)
{
    n->activation = "silu";
    n->level = 0.75;
    n->tokens = 100;
    n->text_tokens = 4000;
    n->text_hash = 12;
    for (int32_t i = 0; i < NEURONS_BINS; i++)
        counts[i] = i % 5;
    for (int32_t i = 0; i < NEURONS_QUANTILES; i++)
        quantiles[i] = neurons_quantile(counts, i / 100.0);
    m[0] = (struct neurons_magnitudes){"blk.0.ffn_act", quantiles, counts};
    m[1] = (struct neurons_magnitudes){"blk.1.attn_q.in", quantiles, NULL};
    n->magnitudes = m;
    n->n_magnitudes = 2;
}

static void what_was_counted_reads_back(void **state)
{
    (void)state;
    static int64_t counts[NEURONS_BINS];
    static float quantiles[NEURONS_QUANTILES];
    struct gguf *g = make_model("counted.gguf", 128, 1, true);
    struct power_law law = power_law_default();
    struct neurons_magnitudes m[2];
    struct neurons a, b;
    made(g, &law, &a);
    counted(&a, counts, quantiles, m);
    a.layers[1].ffn_threshold = 0.125F;
    saved(&a, "counted.neurons.gguf");
    loaded("counted.neurons.gguf", &b);
    assert_string_equal(b.activation, "silu");
    assert_true(b.level == 0.75 && b.tokens == 100 && b.text_tokens == 4000 && b.text_hash == 12);
    assert_true(b.layers[0].ffn_threshold == 0 && b.layers[1].ffn_threshold == 0.125F);
    assert_int_equal(b.n_magnitudes, 2);
    const struct neurons_magnitudes *x = neurons_magnitudes(&b, "blk.0.ffn_act"),
                                    *y = neurons_magnitudes(&b, "blk.1.attn_q.in");
    assert_memory_equal(x->quantiles, quantiles, sizeof quantiles);
    assert_memory_equal(x->counts, counts, sizeof counts);
    assert_memory_equal(y->quantiles, quantiles, sizeof quantiles);
    assert_null(y->counts);
    assert_null(neurons_magnitudes(&b, "blk.0.attn_q.in"));
    neurons_free(&b);
    neurons_free(&a);
    gguf_close(g);
}

/* Bins rise, are 1/64 of an octave wide, and a quantile is never below what it is of. */
static void bins_of_magnitudes(void **state)
{
    (void)state;
    int64_t counts[NEURONS_BINS] = {0};
    assert_int_equal(neurons_bin(0), 0);
    assert_int_equal(neurons_bin(-0.0F), 0);
    assert_int_equal(neurons_bin(1e-30F), 1);
    assert_int_equal(neurons_bin(1e30F), NEURONS_BINS - 1);
    assert_int_equal(neurons_bin(NAN), NEURONS_BINS);
    assert_int_equal(neurons_bin(-INFINITY), NEURONS_BINS);
    float x = 0x1p-16F;
    for (int i = 0; i < 21490; i++, x *= 1.001F) { /* up to 2^15 */
        const int32_t bin = neurons_bin(x);
        assert_true(bin >= 2 && bin < NEURONS_BINS && neurons_bin(-x) == bin);
        counts[bin] = 1;
        const float q = neurons_quantile(counts, 1);
        assert_true(q > x && q <= x * (1 + 1 / 64.0F));
        counts[bin] = 0;
    }
    counts[0] = 50;
    counts[neurons_bin(1)] = 50;
    assert_true(neurons_quantile(counts, 0.5) == 0 && neurons_quantile(counts, 0.51) > 1);
}

/* Plans depend on what a sidecar says, not on where it comes from. */
static void the_hash_is_of_what_plans_depend_on(void **state)
{
    (void)state;
    static float freq[] = {0.5f, 0.25f, 0.125f}, experts[] = {1, 0};
    static int32_t order[] = {2, 0, 1};
    struct neurons_layer layers[2] = {{.n_ff = 3, .ffn_freq = freq},
                                      {.n_experts = 2, .exp_freq = experts}};
    struct neurons n = {.structure_hash = 1, .content_hash = 2, .layers = layers, .n_layers = 2};
    const uint64_t hash = neurons_hash(&n);
    assert_true(hash != 0);
    n.tokens = 7;
    n.source = "counted";
    assert_true(neurons_hash(&n) == hash);
    freq[1] = 0.75f;
    assert_true(neurons_hash(&n) != hash);
    freq[1] = 0.25f;
    experts[1] = 0.5f;
    assert_true(neurons_hash(&n) != hash);
    experts[1] = 0;
    layers[0].ffn_hot = 1;
    assert_true(neurons_hash(&n) != hash);
    layers[0].ffn_hot = 0;
    n.content_hash = 3;
    assert_true(neurons_hash(&n) != hash);
    n.content_hash = 2;
    assert_true(neurons_hash(&n) == hash);
    layers[0].ffn_freq = NULL;
    layers[0].ffn_order = order;
    const uint64_t ordered = neurons_hash(&n);
    order[0] = 1;
    order[2] = 2;
    assert_true(ordered != hash && neurons_hash(&n) != ordered);
}

static void expect_other(const struct neurons *n, const struct gguf *g, const char *words)
{
    struct oato_error err = {.text = ""};
    assert_int_equal(neurons_check_model(n, g, &err), OATO_EFILE);
    if (!strstr(err.text, words) || strchr(err.text, '\n'))
        fail_msg("not one line with '%s': %s", words, err.text);
}

static void sidecars_belong_to_one_model(void **state)
{
    (void)state;
    struct gguf *real = make_model("real.gguf", 128, 1, false),
                *retrained = make_model("retrained.gguf", 128, 2, false),
                *header = make_model("header.gguf", 128, 1, true),
                *wider = make_model("wider.gguf", 256, 1, false);
    struct power_law law = power_law_default();
    struct oato_error err;
    struct neurons n;
    made(real, &law, &n);
    assert_int_equal(neurons_check_model(&n, real, &err), OATO_OK);
    assert_int_equal(neurons_check_model(&n, header, &err), OATO_OK);
    expect_other(&n, retrained, "other weights");
    expect_other(&n, wider, "another model");
    n.layers[1].n_ff = 64; /* a sidecar that lies */
    expect_other(&n, real, "64 neurons and 0 experts in layer 1");
    neurons_free(&n);
    made(header, &law, &n);
    assert_int_equal(n.content_hash, 0);
    assert_int_equal(neurons_check_model(&n, retrained, &err), OATO_OK);
    neurons_free(&n);
    gguf_close(real);
    gguf_close(retrained);
    gguf_close(header);
    gguf_close(wider);
}

enum { GUESS_RANK = 32, GUESS_FFN = 128 };

/* A tensor of Q8_0 or F32 whose bytes are all the same. */
static struct gguf_tensor filled(struct arena *a, oato_dtype dtype, int64_t k, int64_t n, int byte)
{
    size_t row;
    assert_true(dtype_row_bytes(dtype, k, &row));
    uint8_t *data = arena_alloc(a, (size_t)n, row);
    assert_non_null(data);
    memset(data, byte, (size_t)n * row);
    return (struct gguf_tensor){.dtype = dtype,
                                .n_dims = n > 1 ? 2 : 1,
                                .ne = {k, n, 1, 1},
                                .data = data,
                                .bytes = (size_t)n * row};
}

static void predictors_read_back_and_fit_the_model(void **state)
{
    (void)state;
    struct gguf *g = make_model("guess.gguf", GUESS_FFN, 1, true);
    struct power_law law = power_law_default();
    struct neurons a, b;
    made(g, &law, &a);
    const int64_t width = gguf_tensor(g, "blk.0.ffn_up.weight")->ne[0];
    struct gguf_tensor down = filled(&a.arena, DT_Q8_0, width, GUESS_RANK, 17),
                       up = filled(&a.arena, DT_Q8_0, GUESS_RANK, GUESS_FFN, 18),
                       bias = filled(&a.arena, DT_F32, GUESS_FFN, 1, 19);
    struct neurons_predictor p = {&down, &up, &bias, 0, 0.96f, 0.2f, 0.1f};
    a.layers[1].predictor = &p;
    saved(&a, "guess.neurons.gguf");
    loaded("guess.neurons.gguf", &b);
    const struct neurons_predictor *q = neurons_predictor(&b, 1);
    assert_true(!neurons_predictor(&b, 0) && !neurons_predictor(&b, 99));
    assert_true(q->recall == p.recall && q->predicted == p.predicted && q->active == p.active);
    assert_memory_equal(q->down->data, down.data, down.bytes);
    assert_memory_equal(q->up->data, up.data, up.bytes);
    assert_memory_equal(q->bias->data, bias.data, bias.bytes);
    struct oato_error err;
    assert_int_equal(neurons_check_model(&b, g, &err), OATO_OK);
    ((struct gguf_tensor *)(uintptr_t)q->down)->ne[0] = 32;
    assert_int_equal(neurons_check_model(&b, g, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "of 32 inputs"));
    neurons_free(&b);
    static const struct {
        int64_t rank, ffn, biases;
        int byte;
        const char *words;
    } cases[] = {
        {64, GUESS_FFN, GUESS_FFN, 1, "wrong shape"},
        {GUESS_RANK, 64, GUESS_FFN, 1, "wrong shape"},
        {GUESS_RANK, GUESS_FFN, 64, 1, "wrong shape"},
        {GUESS_RANK, GUESS_FFN, GUESS_FFN, 0xff, "not finite"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        up = filled(&a.arena, DT_Q8_0, cases[i].rank, cases[i].ffn, cases[i].byte);
        bias = filled(&a.arena, DT_F32, cases[i].biases, 1, 0);
        assert_int_equal(neurons_save(&a, scratch_path("bad.neurons.gguf"), &err), OATO_EUSAGE);
        assert_true(strstr(err.text, cases[i].words) && !strchr(err.text, '\n'));
    }
    p.recall = NAN;
    assert_int_equal(neurons_save(&a, scratch_path("bad.neurons.gguf"), &err), OATO_EUSAGE);
    neurons_free(&a);
    gguf_close(g);
}

/* Every changed bit of the data is seen, and no cut is taken for a whole file. */
static void damage_is_seen(void **state)
{
    (void)state;
    struct gguf *g = make_model("damage.gguf", 64, 1, true);
    struct power_law law = power_law_default();
    struct neurons n;
    struct oato_error err;
    size_t bytes;
    made(g, &law, &n);
    saved(&n, "whole.neurons.gguf");
    char *whole = read_whole(scratch_path("whole.neurons.gguf"), &bytes);
    neurons_free(&n);
    assert_non_null(whole);
    struct rng r = {test_seed()};
    for (int i = 0; i < 300; i++) {
        const size_t at = bytes - 1 - (size_t)rng_range(&r, 0, 3 * 64 * 4 - 1);
        const char before = whole[at];
        whole[at] = (char)(before ^ (1 << rng_range(&r, 0, 7)));
        assert_int_equal(neurons_load_memory(whole, bytes, "flipped", &n, &err), OATO_EFILE);
        whole[at] = before;
    }
    for (size_t cut = 0; cut < bytes; cut += 1 + bytes / 97) {
        char *part = malloc(cut + 1);
        assert_non_null(part);
        memcpy(part, whole, cut);
        assert_int_equal(neurons_load_memory(part, cut, "cut", &n, &err), OATO_EFILE);
        free(part);
    }
    assert_int_equal(neurons_load_memory(whole, bytes, "whole", &n, &err), OATO_OK);
    neurons_free(&n);
    free(whole);
    gguf_close(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made_up_sidecars_have_the_skew_asked_for),
        cmocka_unit_test(impossible_laws_are_refused),
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(the_hash_is_of_what_plans_depend_on),
        cmocka_unit_test(sidecars_belong_to_one_model),
        cmocka_unit_test(what_was_counted_reads_back),
        cmocka_unit_test(bins_of_magnitudes),
        cmocka_unit_test(predictors_read_back_and_fit_the_model),
        cmocka_unit_test(damage_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, teardown);
}
