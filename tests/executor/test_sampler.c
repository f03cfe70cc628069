/*
 * test_sampler.c - the sampler keeps what its options promise: greedy takes the first maximum, cuts
 * leave only what they may, probabilities come out as the softmax says, and a seed fixes the draw.
 */
#include "executor/executor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_takes_the_first_of_the_largest),
        cmocka_unit_test(a_repeated_token_is_penalised),
        cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(cuts_keep_what_they_say),
        cmocka_unit_test(the_seed_fixes_the_draws),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
