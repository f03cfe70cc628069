/*
 * test_restore.c - what restoring takes is predicted from measured points: a law of degree 2 by the
 * regression, steps by the forest, the better of the two on points held out; nothing measured is a
 * prior that what is seen corrects.
 */
#include "executor/restore.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { MODEL = 7, POINTS = 48 };

static double law(double tokens, double beside)
{
    return 2e6 + 3e5 * tokens + 40 * tokens * tokens + 1e3 * tokens * beside;
}

static double steps(double tokens, double beside)
{
    (void)beside;
    return tokens < 500 ? 1e6 : tokens < 1500 ? 5e6 : 9e7;
}

static void profile_fill(struct profile *p, double (*ns)(double, double))
{
    struct profile_restore points[POINTS];
    profile_init(p);
    for (int32_t i = 0; i < POINTS; i++)
        points[i] = (struct profile_restore){.tokens = 40 + 47 * i, .beside = i % 3};
    for (int32_t i = 0; i < POINTS; i++)
        points[i].median_ns = ns(points[i].tokens, points[i].beside);
    assert_true(profile_put_restores(p, MODEL, "cpu:0", points, POINTS));
}

static double worst(const struct restore_predictor *r, double (*ns)(double, double))
{
    double error = 0;
    for (int32_t tokens = 60; tokens < 2200; tokens += 31)
        for (int32_t beside = 0; beside < 3; beside++)
            error = fmax(
                error,
                fabs(restore_predict(r, RESTORE_COMPUTE, tokens, beside) / ns(tokens, beside) - 1));
    return error;
}

static struct restore_predictor *predictor_of(const struct profile *p, uint64_t model,
                                              const char *devices)
{
    struct restore_predictor *r = restore_create(p, model, devices);
    assert_non_null(r);
    return r;
}

static void the_better_form_is_kept(void **state)
{
    static const struct {
        double (*ns)(double, double);
        enum restore_form form;
        double error;
    } rows[] = {{law, RESTORE_REGRESSION, 0.001}, {steps, RESTORE_FOREST, 0.3}};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        struct profile p;
        profile_fill(&p, rows[i].ns);
        struct restore_predictor *r = predictor_of(&p, MODEL, "cpu:0");
        const struct restore_quality q = restore_quality(r, RESTORE_COMPUTE);
        assert_int_equal(q.points, POINTS);
        assert_int_equal(q.form, rows[i].form);
        assert_true(q.error[q.form] < rows[i].error);
        assert_true(q.error[q.form] < q.error[RESTORE_REGRESSION + RESTORE_FOREST - q.form]);
        if (q.form == RESTORE_REGRESSION)
            assert_true(worst(r, rows[i].ns) < 0.01);
        struct restore_predictor *again = predictor_of(&p, MODEL, "cpu:0");
        for (int32_t x = 1; x < 3000; x += 100)
            assert_true(restore_predict(r, RESTORE_COMPUTE, x, 1) ==
                        restore_predict(again, RESTORE_COMPUTE, x, 1));
        restore_free(again);
        restore_free(r);
        profile_free(&p);
    }
}

/* Points of another model or of other devices are not taken. */
static void without_points_there_is_a_prior(void **state)
{
    struct profile p;
    (void)state;
    profile_fill(&p, law);
    struct restore_predictor *all[] = {predictor_of(&p, MODEL + 1, "cpu:0"),
                                       predictor_of(&p, MODEL, "cuda:0"),
                                       predictor_of(NULL, MODEL, "cpu:0")};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        const double before = restore_predict(all[i], RESTORE_COMPUTE, 100, 0);
        assert_int_equal(restore_quality(all[i], RESTORE_COMPUTE).form, RESTORE_PRIOR);
        assert_true(restore_predict(all[i], RESTORE_COMPUTE, 200, 0) == 2 * before);
        assert_true(restore_predict(all[i], RESTORE_COPY, 1 << 20, 3) > 0);
        restore_free(all[i]);
    }
    profile_free(&p);
}

/* A machine that has become three times slower, and one whose speed is noisy. */
static void what_is_seen_corrects(void **state)
{
    struct profile p;
    (void)state;
    profile_fill(&p, law);
    struct restore_predictor *r = predictor_of(&p, MODEL, "cpu:0");
    for (int32_t i = 0; i < 60; i++) {
        const double tokens = 100 + 30 * (i % 40);
        restore_seen(r, RESTORE_COMPUTE, tokens, 1, 3 * law(tokens, 1) * (i % 2 ? 1.1 : 0.9));
    }
    for (int32_t tokens = 100; tokens < 1300; tokens += 100)
        assert_true(
            fabs(restore_predict(r, RESTORE_COMPUTE, tokens, 1) / (3 * law(tokens, 1)) - 1) < 0.1);
    const struct restore_quality q = restore_quality(r, RESTORE_COMPUTE);
    assert_int_equal(q.seen, 60);
    assert_true(q.seen_error > 0.01 && q.seen_error < 0.2);
    assert_int_equal(restore_quality(r, RESTORE_COPY).seen, 0);
    restore_free(r);
    profile_free(&p);
}

/* Measuring a model again replaces its points, and only these. */
static void points_are_replaced_by_model_and_devices(void **state)
{
    const struct profile_restore one = {.tokens = 5, .median_ns = 7};
    struct profile p;
    (void)state;
    profile_fill(&p, law);
    assert_true(profile_put_restores(&p, MODEL, "cpu:0 cuda:0", &one, 1));
    assert_true(profile_put_restores(&p, MODEL + 1, "cpu:0", &one, 1));
    assert_int_equal(p.n_restores, POINTS + 2);
    assert_true(profile_put_restores(&p, MODEL, "cpu:0", &one, 1));
    assert_int_equal(p.n_restores, 3);
    assert_string_equal(p.restores[0].devices, "cpu:0 cuda:0");
    assert_int_equal(p.restores[1].model, MODEL + 1);
    assert_int_equal(p.restores[2].tokens, 5);
    profile_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_better_form_is_kept),
        cmocka_unit_test(without_points_there_is_a_prior),
        cmocka_unit_test(what_is_seen_corrects),
        cmocka_unit_test(points_are_replaced_by_model_and_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
