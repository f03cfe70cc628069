/*
 * test_sampler.c - the sampler keeps what its options promise: greedy takes the first maximum, cuts
 * leave only what they may, probabilities come out as the softmax says, and a seed fixes the draw.
 */
#include "text/sampling.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const struct sampler_options all = {
    .temperature = 1, .top_p = 1, .repeat_penalty = 1, .repeat_last = 8, .seed = 42};

static int32_t draw(struct sampler_options o, const float *logits, int32_t n, int32_t accepted)
{
    struct sampler *s = sampler_create(&o, n);
    assert_non_null(s);
    if (accepted >= 0)
        sampler_accept(s, accepted);
    int32_t id = sampler_next(s, logits);
    sampler_free(s);
    return id;
}

static void greedy_takes_the_first_of_the_largest(void **state)
{
    float logits[] = {1, 5, 2, 5, -3};
    struct sampler_options o = all;
    (void)state;
    o.temperature = 0;
    assert_int_equal(draw(o, logits, 5, -1), 1);
}

static void a_repeated_token_is_penalised(void **state)
{
    float logits[] = {1, 5, 4, -2}, negative[] = {-1, -1.5f, -9, -9};
    struct sampler_options o = all;
    (void)state;
    o.temperature = 0;
    o.repeat_penalty = 2;
    assert_int_equal(draw(o, logits, 4, 1), 2);
    assert_int_equal(draw(o, negative, 4, 0), 1);
    o.repeat_last = 0;
    assert_int_equal(draw(o, logits, 4, 1), 1);
}

/* How often each of n ids is drawn in `draws` draws of one sampler. */
static void histogram(struct sampler_options o, const float *logits, int32_t n, int draws,
                      int *counts)
{
    struct sampler *s = sampler_create(&o, n);
    memset(counts, 0, (size_t)n * sizeof *counts);
    for (int i = 0; i < draws; i++)
        counts[sampler_next(s, logits)]++;
    sampler_free(s);
}

static void frequencies_follow_the_softmax(void **state)
{
    enum { N = 6, DRAWS = 60000 };
    float logits[N] = {0, 1, 2, -1, 0.5f, 1.5f};
    int counts[N];
    double sum = 0;
    (void)state;
    for (int half = 1; half <= 4; half++) {
        double t = 0.5 * half;
        struct sampler_options o = all;
        o.temperature = (float)t;
        histogram(o, logits, N, DRAWS, counts);
        sum = 0;
        for (int i = 0; i < N; i++)
            sum += exp(logits[i] / t);
        for (int i = 0; i < N; i++) {
            double p = exp(logits[i] / t) / sum, deviation = sqrt(p * (1 - p) / DRAWS);
            assert_true(fabs((double)counts[i] / DRAWS - p) < 5 * deviation + 1e-4);
        }
    }
}

static void cuts_keep_what_they_say(void **state)
{
    enum { N = 8, DRAWS = 4000 };
    float logits[N] = {0, 1, 2, 3, 4, 5, 6, 7};
    int counts[N];
    struct sampler_options o = all;
    (void)state;
    o.temperature = 5;
    for (int32_t k = 1; k <= N; k++) {
        o.top_k = k;
        histogram(o, logits, N, DRAWS, counts);
        for (int i = 0; i < N; i++)
            assert_int_equal(counts[i] > 0, i >= N - k);
    }
    o.top_k = 0;
    o.min_p = 0.05f; /* exp(-3) = 0.0498 */
    histogram(o, logits, N, DRAWS, counts);
    for (int i = 0; i < N; i++)
        assert_int_equal(counts[i] > 0, i >= N - 3);
    o.min_p = 0;
    o.top_p = 0.86f; /* the first has 0.632, two have 0.865 */
    histogram(o, logits, N, DRAWS, counts);
    for (int i = 0; i < N; i++)
        assert_int_equal(counts[i] > 0, i >= N - 2);
    o.top_p = 0;
    histogram(o, logits, N, DRAWS, counts);
    assert_int_equal(counts[N - 1], DRAWS);
}

/* Of the weights 8 4 2 1 at temperature 2, the three that top-k leaves. */
static void final_probabilities_are_those_of_the_draw(void **state)
{
    enum { N = 4 };
    float logits[N] = {0, 3 * logf(2), 2 * logf(2), logf(2)};
    const double sum = sqrt(8) + 2 + sqrt(2);
    struct sampler_options o = all;
    (void)state;
    o.temperature = 2;
    o.top_k = 3;
    o.logprobs = o.final_probs = true;
    o.top_logprobs = N;
    struct sampler *s = sampler_create(&o, N);
    for (int draws = 0; draws < 20; draws++) {
        int32_t n;
        const int32_t id = sampler_next(s, logits);
        const struct token_prob *p = sampler_probs(s, &n);
        assert_int_equal(n, 1 + 3);
        assert_int_equal(p[0].id, id);
        assert_float_equal(p[0].logprob, p[id].logprob, 0);
        for (int i = 1; i <= 3; i++) {
            assert_int_equal(p[i].id, i);
            assert_float_equal(exp(p[i].logprob), exp(logits[i] / 2) / sum, 1e-6);
        }
    }
    sampler_free(s);
    o.temperature = 0;
    s = sampler_create(&o, N);
    int32_t n;
    assert_int_equal(sampler_next(s, logits), 1);
    assert_float_equal(sampler_probs(s, &n)[0].logprob, 0, 0);
    assert_int_equal(n, 2);
    sampler_free(s);
}

/* Mirostat 2 by its definition: of those with a surprise of at most mu, drawn by their shares; mu
 * moves by eta times the error. */
static void mirostat_2_keeps_the_surprise(void **state)
{
    enum { N = 40, DRAWS = 3000 };
    float logits[N];
    double p[N], sum = 0, mu = 2 * 3, surprises = 0;
    struct sampler_options o = all;
    (void)state;
    o.mirostat = 2;
    o.mirostat_tau = 3;
    o.mirostat_eta = 0.2f;
    o.logprobs = o.final_probs = true;
    o.top_logprobs = N;
    o.top_k = 1; /* of no account */
    for (int i = 0; i < N; i++) {
        logits[i] = 6 - 0.8f * logf((float)i + 1);
        sum += exp(logits[i]);
    }
    for (int i = 0; i < N; i++)
        p[i] = exp(logits[i]) / sum;
    struct sampler *s = sampler_create(&o, N);
    for (int draws = 0; draws < DRAWS; draws++) {
        int32_t n, kept = 1;
        double share = p[0];
        while (kept < N && -log2(p[kept]) <= mu)
            share += p[kept++];
        const int32_t id = sampler_next(s, logits);
        const struct token_prob *got = sampler_probs(s, &n);
        assert_int_equal(n, 1 + kept);
        assert_true(id < kept);
        assert_float_equal(exp(got[0].logprob), p[id] / share, 1e-4);
        mu -= (double)0.2f * (-log2(p[id]) - 3);
        surprises += -log2(p[id]);
    }
    sampler_free(s);
    assert_float_equal(surprises / DRAWS, 3, 0.1);
}

/* Mirostat 1 by equations 30 and 33 of the paper: on tokens that follow Zipf's law with the
 * exponent s exactly, k is so large that s and the number of tokens give the surprise mu. */
static void mirostat_1_keeps_as_many_as_zipf_says(void **state)
{
    enum { N = 1000, DRAWS = 300 };
    static float logits[N];
    const double zipf = 1.3, eps = zipf - 1;
    double mu = 2 * 2.5, sum = 0;
    struct sampler_options o = all;
    (void)state;
    o.mirostat = 1;
    o.mirostat_tau = 2.5f;
    o.mirostat_eta = 0.1f;
    o.logprobs = o.final_probs = true;
    o.top_logprobs = N;
    for (int i = 0; i < N; i++) {
        logits[i] = (float)(-zipf * log(i + 1));
        sum += exp(logits[i]);
    }
    struct sampler *s = sampler_create(&o, N);
    for (int draws = 0; draws < DRAWS; draws++) {
        int32_t n;
        double k = pow(eps * pow(2, mu) / (1 - pow(N, -eps)), 1 / zipf);
        k = k < 1 ? 1 : k > N ? N : k;
        const int32_t id = sampler_next(s, logits);
        sampler_probs(s, &n);
        assert_in_range(n - 1, floor(k - 1e-3), floor(k + 1e-3));
        mu -= (double)0.1f * (-log2(exp(logits[id]) / sum) - 2.5);
    }
    sampler_free(s);
}

/* The candidates that are left, and their shares, of llama.cpp's tests/test-sampling.cpp; the
 * adapted temperature is by its formula. */
static void further_cuts_are_those_of_llama(void **state)
{
    enum { N = 4, DRAWS = 60000 };
    static const struct {
        struct sampler_options o;
        float p[N];
        double expected[N];
    } rows[] = {
        {{.typical_p = 0.5f}, {0.97f, 0.01f, 0.01f, 0.01f}, {1}},
        {{.typical_p = 0.5f}, {0.4f, 0.2f, 0.2f, 0.2f}, {0, 1 / 3.0, 1 / 3.0, 1 / 3.0}},
        {{.top_n_sigma = 1}, {0.1f, 0.2f, 0.3f, 0.4f}, {0, 0, 3 / 7.0, 4 / 7.0}},
        {{.top_n_sigma = 3}, {0.1f, 0.2f, 0.3f, 0.4f}, {0.1, 0.2, 0.3, 0.4}},
        {{.xtc_probability = 1, .xtc_threshold = 0.09f}, {0.4f, 0.3f, 0.2f, 0.1f}, {0, 0, 0, 1}},
        {{.xtc_probability = 1, .xtc_threshold = 0.19f},
         {0.4f, 0.3f, 0.2f, 0.1f},
         {0, 0, 2 / 3.0, 1 / 3.0}},
        {{.xtc_probability = 1, .xtc_threshold = 0.29f},
         {0.4f, 0.3f, 0.2f, 0.1f},
         {0, 3 / 6.0, 2 / 6.0, 1 / 6.0}},
        {{.xtc_probability = 1, .xtc_threshold = 0.39f},
         {0.4f, 0.3f, 0.2f, 0.1f},
         {0.4, 0.3, 0.2, 0.1}},
        {{.xtc_probability = 0.5f, .xtc_threshold = 0.3f},
         {0.5f, 0.4f, 0.1f, 0},
         {0.25, 0.2 + 0.4, 0.05 + 0.1}},
        /* entropy 0.5 of at most 1: temperature 0.5 + (1.5 - 0.5) 0.5^2 = 0.75 */
        {{.temperature_range = 0.5f, .temperature_exponent = 2, .top_k = 2},
         {0.88997f, 0.11003f, 0, 0},
         {0.94198, 0.05802}},
    };
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct sampler_options o = rows[i].o;
        float logits[N];
        int counts[N];
        o.temperature = o.top_p = o.repeat_penalty = 1;
        assert_int_equal(sampler_candidates(&o, 1000), o.top_n_sigma > 0 ? 0 : o.top_k);
        for (int k = 0; k < N; k++)
            logits[k] = logf(rows[i].p[k]);
        histogram(o, logits, N, DRAWS, counts);
        for (int k = 0; k < N; k++) {
            const double p = rows[i].expected[k];
            if (fabs((double)counts[k] / DRAWS - p) > 5 * sqrt(p * (1 - p) / DRAWS) + 1e-5)
                fail_msg("row %zu, token %d: %d of %d", i, k, counts[k], DRAWS);
        }
    }
}

static void the_seed_fixes_the_draws(void **state)
{
    enum { N = 64 };
    float logits[N] = {0};
    int32_t first[N];
    int same = 0;
    struct sampler_options o = all;
    (void)state;
    for (int run = 0; run < 3; run++) {
        o.seed = run == 2 ? 43 : 42;
        struct sampler *s = sampler_create(&o, N);
        for (int i = 0; i < N; i++) {
            int32_t id = sampler_next(s, logits);
            if (run == 0)
                first[i] = id;
            else if (run == 1)
                assert_int_equal(id, first[i]);
            else
                same += id == first[i];
        }
        sampler_free(s);
    }
    assert_true(same < N / 4);
}

/* llama.cpp's formula: frequency for each occurrence, presence once, after the repeat penalty. */
static void presence_and_frequency_are_subtracted(void **state)
{
    struct sampler_options o = all;
    float logits[] = {4, 3, 2.5f, 1};
    (void)state;
    o.temperature = 0;
    o.presence_penalty = 1.25f;
    assert_int_equal(draw(o, logits, 4, 0), 1);
    o.presence_penalty = 0;
    o.frequency_penalty = 0.6f;
    struct sampler *s = sampler_create(&o, 4);
    static const int32_t expected[] = {0, 0, 1, 0, 2, 1};
    assert_non_null(s);
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        const int32_t id = sampler_next(s, logits);
        assert_int_equal(id, expected[i]);
        sampler_accept(s, id);
    }
    sampler_free(s);
}

static void biases_are_added_to_logits(void **state)
{
    enum { N = 4, DRAWS = 4000 };
    const struct logit_bias bias[] = {{1, -INFINITY}, {3, 4}, {77, 9}, {-1, 9}};
    float logits[N] = {3, 9, 2, 0};
    int counts[N];
    struct sampler_options o = all;
    (void)state;
    o.bias = bias;
    o.n_bias = ARRAY_LEN(bias);
    o.temperature = 0;
    assert_int_equal(draw(o, logits, N, -1), 3);
    o.temperature = 10;
    histogram(o, logits, N, DRAWS, counts);
    for (int i = 0; i < N; i++)
        assert_int_equal(counts[i] > 0, i != 1);
    assert_int_equal(sampler_candidates(&o, 1000), 0);
}

/* Allows the ids of a mask and counts what it is asked. */
struct allowed {
    uint64_t mask[2];
    int asked, masks, taken;
};

static bool allowed_ask(void *user, int32_t id)
{
    struct allowed *x = user;
    x->asked++;
    return x->mask[id / 64] >> (id % 64) & 1;
}

static enum sampler_mask allowed_mask(void *user, uint64_t steps, const uint64_t **bits)
{
    struct allowed *x = user;
    (void)steps;
    x->masks++;
    *bits = x->mask;
    return MASK_READY;
}

static void allowed_take(void *user, int32_t id)
{
    struct allowed *x = user;
    assert_true(x->mask[id / 64] >> (id % 64) & 1);
    x->taken++;
}

static void a_constraint_leaves_the_distribution_of_what_it_allows(void **state)
{
    enum { N = 70, DRAWS = 60000 };
    struct allowed x = {.mask = {1u << 2 | 1u << 5, 1u << 4}};
    const struct sampler_constraint c = {allowed_ask, allowed_mask, allowed_take, &x};
    struct sampler_options o = all;
    float logits[N] = {[2] = 1, [3] = 2, [5] = 2.5f, [68] = 0.5f};
    const double sum = exp(1) + exp(2.5) + exp(0.5);
    int counts[N] = {0};
    (void)state;
    struct sampler *s = sampler_create(&o, N);
    assert_non_null(s);
    sampler_constrain(s, &c);
    for (int i = 0; i < DRAWS; i++)
        counts[sampler_next(s, logits)]++;
    for (int i = 0; i < N; i++) {
        const double p = i == 2 || i == 5 || i == 68 ? exp(logits[i]) / sum : 0;
        assert_true(fabs((double)counts[i] / DRAWS - p) <= 5 * sqrt(p * (1 - p) / DRAWS));
    }
    assert_int_equal(x.asked, DRAWS);
    assert_int_equal(x.taken, DRAWS);
    assert_true(x.masks > DRAWS / 2 && x.masks < DRAWS); /* only for what was refused */
    x.mask[0] = x.mask[1] = 0;
    assert_int_equal(sampler_next(s, logits), -1);
    assert_int_equal(x.taken, DRAWS);
    sampler_constrain(s, NULL);
    assert_true(sampler_next(s, logits) >= 0);
    sampler_free(s);
}

static void log_probabilities_are_those_of_the_plain_softmax(void **state)
{
    enum { N = 5 };
    const struct logit_bias never = {2, -INFINITY};
    float logits[N] = {1, -3, 4, 3, 0};
    double sum = 0;
    int32_t n;
    struct sampler_options o = all;
    (void)state;
    o.temperature = 0;
    o.bias = &never;
    o.n_bias = 1;
    o.logprobs = true;
    for (int i = 0; i < N; i++)
        sum += exp(logits[i]);
    for (int32_t top = 0; top <= N + 1; top++) {
        static const int32_t order[N] = {2, 3, 0, 4, 1};
        o.top_logprobs = top;
        struct sampler *s = sampler_create(&o, N);
        assert_non_null(s);
        (void)sampler_probs(s, &n);
        assert_int_equal(n, 0);
        assert_int_equal(sampler_next(s, logits), 3);
        const struct token_prob *p = sampler_probs(s, &n);
        assert_int_equal(n, 1 + (top < N ? top : N));
        for (int32_t i = 0; i < n; i++) {
            assert_int_equal(p[i].id, i ? order[i - 1] : 3);
            assert_true(fabs(p[i].logprob - log(exp(logits[p[i].id]) / sum)) < 1e-6);
        }
        sampler_free(s);
    }
    assert_int_equal(sampler_candidates(&o, 1000), 0);
}

/* One scratch for several samplers, which take turns, changes nothing. */
static void samplers_share_their_scratch(void **state)
{
    enum { N = 64, SAMPLERS = 5, DRAWS = 200 };
    const struct logit_bias bias[] = {{5, 1}, {9, -2}};
    struct sampler_scratch *scratch = sampler_scratch_create(N);
    struct sampler *own[SAMPLERS], *sharing[SAMPLERS];
    float logits[N];
    (void)state;
    assert_non_null(scratch);
    for (int i = 0; i < SAMPLERS; i++) {
        struct sampler_options o = all;
        o.temperature = 1;
        o.seed = (uint64_t)i;
        o.typical_p = i % 2 ? 0.9f : 1;
        o.repeat_last = 16;
        o.frequency_penalty = 0.3f;
        o.dry = (struct dry_options){.multiplier = 1, .base = 1.5f, .allowed = 1, .last = 32};
        o.bias = bias;
        o.n_bias = ARRAY_LEN(bias);
        assert_non_null(own[i] = sampler_create(&o, N));
        o.scratch = scratch;
        assert_non_null(sharing[i] = sampler_create(&o, N));
    }
    for (int k = 0; k < DRAWS; k++)
        for (int i = 0; i < SAMPLERS; i++) {
            for (int j = 0; j < N; j++)
                logits[j] = (float)((j * 7 + k * 3 + i) % 11) / 4;
            const int32_t id = sampler_next(own[i], logits);
            assert_int_equal(sampler_next(sharing[i], logits), id);
            sampler_accept(own[i], id);
            sampler_accept(sharing[i], id);
        }
    for (int i = 0; i < SAMPLERS; i++) {
        sampler_free(own[i]);
        sampler_free(sharing[i]);
    }
    sampler_scratch_free(scratch);
}

static void what_is_negative_means_all(void **state)
{
    (void)state;
    struct sampler_options o = {SAMPLING_DEFAULTS};
    sampler_bound(&o, 4096);
    assert_int_equal(o.top_k, 40);
    assert_int_equal(o.repeat_last, 64);
    o.top_k = o.repeat_last = o.dry.last = -1;
    sampler_bound(&o, 4096);
    assert_int_equal(o.top_k, 0);
    assert_int_equal(o.repeat_last, 4096);
    assert_int_equal(o.dry.last, 4096);
    sampler_bound(&o, 512);
    assert_int_equal(o.repeat_last, 512);
}

static void count_line(void *user, const char *text)
{
    (void)text;
    ++*(int *)user;
}

/* Keys of llama.cpp; what the user asks for is stronger, what makes no sense is told. */
static void a_file_recommends_options(void **state)
{
    static const struct {
        const char *key;
        float value;
    } keys[] = {{"temp", 0.25f},           {"top_k", 20},
                {"top_p", 0.5f},           {"min_p", 2}, /* out of bounds */
                {"xtc_probability", 0.5f}, {"xtc_threshold", 0.25f},
                {"penalty_last_n", 32},    {"penalty_repeat", 1.5f},
                {"mirostat", 1},           {"mirostat_tau", 4},
                {"mirostat_eta", 0.5f}};
    struct sampler_options o = {SAMPLING_OPEN.seed = 7}, none = {SAMPLING_OPEN.seed = 7};
    const struct sampler_options plain = {SAMPLING_DEFAULTS.seed = 7};
    struct gguf_writer *w = gguf_writer_create();
    struct gguf *g = NULL, *empty = NULL;
    struct oato_error err;
    char path[] = "/tmp/oato-sampling-XXXXXX", key[64];
    int warnings = 0;
    (void)state;
    close(mkstemp(path));
    assert_int_equal(gguf_writer_save(w, path, &err), OATO_OK);
    assert_int_equal(gguf_open(path, &empty, &err), OATO_OK);
    unlink(path);
    gguf_writer_free(w);
    w = gguf_writer_create();
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        snprintf(key, sizeof key, "general.sampling.%s", keys[i].key);
        gguf_writer_scalar(w, key, GGUF_F32, &keys[i].value);
    }
    assert_int_equal(gguf_writer_save(w, path, &err), OATO_OK);
    assert_int_equal(gguf_open(path, &g, &err), OATO_OK);
    unlink(path);
    gguf_writer_free(w);
    o.top_k = 5;
    sampling_settle(&o, g, count_line, &warnings);
    assert_int_equal(warnings, 1);
    assert_float_equal(o.temperature, 0.25, 0);
    assert_int_equal(o.top_k, 5);
    assert_float_equal(o.top_p, 0.5, 0);
    assert_float_equal(o.min_p, 0.05, 1e-6);
    assert_float_equal(o.xtc_probability, 0.5, 0);
    assert_float_equal(o.xtc_threshold, 0.25, 0);
    assert_int_equal(o.repeat_last, 32);
    assert_float_equal(o.repeat_penalty, 1.5, 0);
    assert_int_equal(o.mirostat, 1);
    assert_float_equal(o.mirostat_tau, 4, 0);
    assert_float_equal(o.mirostat_eta, 0.5, 0);
    assert_float_equal(o.typical_p, 1, 0);
    sampling_settle(&none, empty, count_line, &warnings);
    assert_memory_equal(&none, &plain, sizeof plain);
    assert_int_equal(warnings, 1);
    gguf_close(g);
    gguf_close(empty);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_the_largest),
        cmocka_unit_test(a_repeated_token_is_penalised),
        cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(cuts_keep_what_they_say),
        cmocka_unit_test(final_probabilities_are_those_of_the_draw),
        cmocka_unit_test(mirostat_2_keeps_the_surprise),
        cmocka_unit_test(mirostat_1_keeps_as_many_as_zipf_says),
        cmocka_unit_test(further_cuts_are_those_of_llama),
        cmocka_unit_test(the_seed_fixes_the_draws),
        cmocka_unit_test(presence_and_frequency_are_subtracted),
        cmocka_unit_test(biases_are_added_to_logits),
        cmocka_unit_test(a_constraint_leaves_the_distribution_of_what_it_allows),
        cmocka_unit_test(log_probabilities_are_those_of_the_plain_softmax),
        cmocka_unit_test(samplers_share_their_scratch),
        cmocka_unit_test(what_is_negative_means_all),
        cmocka_unit_test(a_file_recommends_options),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
