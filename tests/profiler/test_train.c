/*
 * test_train.c - a predictor learns which neurons fire where that can be learnt, keeps the recall
 * that was asked for on text it has not seen, stays within its size, and is the same each time.
 */
#include "profiler/training_internal.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { K = 64, NEURONS = 256, LATENT = 6, TOKENS = 8192, HELD = TOKENS / 10 };

static uint16_t input[TOKENS][K], mass[TOKENS][NEURONS];

static float normal(void)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)rand() / (float)RAND_MAX;
    return sum - 6;
}

/* Inputs are random; a neuron fires when a combination of LATENT directions is large. */
static void make_layer(void)
{
    static float direction[LATENT][K], neuron[NEURONS][LATENT];
    srand(7);
    for (int l = 0; l < LATENT; l++) {
        for (int j = 0; j < K; j++)
            direction[l][j] = normal() / sqrtf(K);
        for (int i = 0; i < NEURONS; i++)
            neuron[i][l] = normal() / sqrtf(LATENT);
    }
    for (int t = 0; t < TOKENS; t++) {
        float x[K], along[LATENT] = {0};
        for (int j = 0; j < K; j++) {
            x[j] = normal();
            input[t][j] = f32_to_f16(x[j]);
            for (int l = 0; l < LATENT; l++)
                along[l] += direction[l][j] * x[j];
        }
        for (int i = 0; i < NEURONS; i++) {
            float g = -0.9f;
            for (int l = 0; l < LATENT; l++)
                g += neuron[i][l] * along[l];
            mass[t][i] = f32_to_f16(g > 0 ? g : 0);
        }
    }
}

static const struct training_options options = {
    .threads = 1, .seed = 1, .epochs = 20, .recall = 0.95, .most_share = 0.25, .gated = true};

static struct training_samples samples(void)
{
    return (struct training_samples){
        .tokens = TOKENS, .k = K, .neurons = NEURONS, .input = input[0], .mass = mass[0]};
}

/* An independent count of what p finds in the held-out tenth. */
static void judge(const struct predictor *p, double *recall, double *predicted)
{
    double found = 0, all = 0, n = 0;
    for (int t = TOKENS - HELD; t < TOKENS; t++) {
        double z[K + NEURONS] = {0};
        for (int r = 0; r < p->rank; r++) {
            for (int j = 0; j < K; j++)
                z[r] += (double)p->down[r * K + j] * (double)f16_to_f32(input[t][j]);
            z[r] = fmax(z[r], 0);
        }
        for (int i = 0; i < NEURONS; i++) {
            double l = (double)p->bias[i];
            for (int r = 0; r < p->rank; r++)
                l += (double)p->up[i * p->rank + r] * z[r];
            const double m = (double)f16_to_f32(mass[t][i]);
            all += m;
            found += l > 0 ? m : 0;
            n += l > 0;
        }
    }
    *recall = found / all;
    *predicted = n / HELD / NEURONS;
}

static void a_predictor_finds_the_mass_with_few_neurons(void **state)
{
    (void)state;
    struct oato_error err;
    struct predictor p;
    const struct training_samples s = samples();
    assert_int_equal(predictor_train(&s, &options, NULL, NULL, &p, &err), OATO_OK);
    double recall, predicted;
    judge(&p, &recall, &predicted);
    print_message("rank %d, active %.3f, predicted %.3f, recall %.4f\n", p.rank, p.active,
                  predicted, recall);
    assert_true(recall > 0.945);
    assert_true(fabs(recall - p.recall) < 0.01 && fabs(predicted - p.predicted) < 0.01);
    /* Without looking at x, the most frequent neurons would have to be 83 % of all. */
    assert_true(predicted < 1.6 * p.active);
    assert_true(p.rank * (K + NEURONS) <= 0.25 * 3 * K * NEURONS);
    predictor_free(&p);
}

static void weights_are_what_q8_0_holds(void **state)
{
    (void)state;
    struct oato_error err;
    struct predictor p;
    struct training_samples s = samples();
    s.tokens = 1024;
    assert_int_equal(predictor_train(&s, &options, NULL, NULL, &p, &err), OATO_OK);
    for (int i = 0; i < p.rank * K; i += 32) {
        float top = 0;
        for (int j = 0; j < 32; j++)
            top = fmaxf(top, fabsf(p.down[i + j]));
        const float scale = f16_to_f32(f32_to_f16(top / 127));
        for (int j = 0; j < 32; j++) {
            const float q = p.down[i + j] / scale;
            assert_true(fabsf(q - roundf(q)) < 1e-3f);
        }
    }
    predictor_free(&p);
}

static void the_same_training_gives_the_same_bits(void **state)
{
    (void)state;
    struct oato_error err;
    struct predictor p, q;
    struct training_samples s = samples();
    s.tokens = 2048;
    assert_int_equal(predictor_train(&s, &options, NULL, NULL, &p, &err), OATO_OK);
    assert_int_equal(predictor_train(&s, &options, NULL, NULL, &q, &err), OATO_OK);
    assert_int_equal(p.rank, q.rank);
    assert_memory_equal(p.down, q.down, (size_t)(p.rank * K) * sizeof(float));
    assert_memory_equal(p.up, q.up, (size_t)(p.rank * NEURONS) * sizeof(float));
    assert_memory_equal(p.bias, q.bias, NEURONS * sizeof(float));
    predictor_free(&p);
    predictor_free(&q);
}

static bool stop_at_once(void *user, int32_t rank, int epoch, double recall, double predicted)
{
    (void)user, (void)rank, (void)epoch, (void)recall, (void)predicted;
    return false;
}

static void what_cannot_be_learnt_is_told(void **state)
{
    (void)state;
    struct oato_error err;
    struct predictor p;
    struct training_samples s = samples();
    s.tokens = 255;
    assert_int_equal(predictor_train(&s, &options, NULL, NULL, &p, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "at least 256 tokens"));
    s.tokens = 512;
    static const uint16_t silent[512][NEURONS];
    s.mass = silent[0];
    assert_int_equal(predictor_train(&s, &options, NULL, NULL, &p, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "no neuron is active"));
    s.mass = mass[0];
    struct training_options small = options;
    small.most_share = 0.05;
    assert_int_equal(predictor_train(&s, &small, NULL, NULL, &p, &err), OATO_EUSAGE);
    assert_non_null(strstr(err.text, "too small for a predictor"));
    assert_int_equal(predictor_train(&s, &options, stop_at_once, NULL, &p, &err), OATO_NEGATIVE);
    assert_null(p.down);
}

static void sparse_and_skewed_layers_begin_smaller(void **state)
{
    (void)state;
    assert_int_equal(training_first_rank(2048, 0.5, 0.2), 512);
    assert_true(training_first_rank(2048, 0.1, 0.2) < 512);
    assert_true(training_first_rank(2048, 0.1, 0.9) < training_first_rank(2048, 0.1, 0.2));
    assert_int_equal(training_first_rank(64, 0.01, 1), 32);
}

int main(void)
{
    make_layer();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_predictor_finds_the_mass_with_few_neurons),
        cmocka_unit_test(weights_are_what_q8_0_holds),
        cmocka_unit_test(the_same_training_gives_the_same_bits),
        cmocka_unit_test(what_cannot_be_learnt_is_told),
        cmocka_unit_test(sparse_and_skewed_layers_begin_smaller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
