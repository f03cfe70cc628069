/*
 * test_workload.c - what must stay true of files with workloads: points are read as they are
 * written, and what is wrong is said in one line with its place.
 */
#include "planfmt/planfmt.h"

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

static oato_status load(const char *text, struct workload *w, struct oato_error *err)
{
    err->text[0] = 0;
    return workload_load_memory(text, strlen(text), "w.yaml", w, err);
}

static void points_are_read_as_written(void **state)
{
    (void)state;
    struct workload w;
    struct oato_error err;
    const char *text = "# office\npoints:\n"
                       "  - prompt: 200\n    generate: 300\n    weight: 0.75\n"
                       "  - {prompt: 0, generate: 5, depth: 7000, weight: 3}\n";
    if (load(text, &w, &err))
        fail_msg("%s", err.text);
    assert_null(w.name);
    assert_int_equal(w.n, 2);
    assert_true(w.points[0].prompt == 200 && w.points[0].generate == 300 && !w.points[0].depth);
    assert_true(w.points[1].prompt == 0 && w.points[1].generate == 5 && w.points[1].depth == 7000);
    assert_true(w.weights[0] == 0.75 && w.weights[1] == 3);
    assert_int_equal(load("{points: [{prompt: 9, generate: 0}]}", &w, &err), OATO_OK);
    assert_true(w.n == 1 && w.points[0].prompt == 9 && w.weights[0] == 0);
}

static void what_is_wrong_has_its_place(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "w.yaml: empty: not a workload"},
        {"points: 5", "w.yaml:1:9: points: a single value where a list is expected"},
        {"points: []", "w.yaml:1:1: 'points' is missing or empty: not a workload"},
        {"- {prompt: 1, generate: 1}", "w.yaml:1:1: a list where a mapping is expected"},
        {"oato_profile: 1", "w.yaml:1:1: 'points' is the only key of a workload"},
        {"points:\n  - {prompt: 1, generate: 1}\npoints: []", "w.yaml:3:1: duplicate key 'points'"},
        {"points:\n  - 7", "w.yaml:2:5: point: a single value where a mapping is expected"},
        {"points:\n  - {prompt: 1}", "w.yaml:2:5: point: key 'generate' is missing"},
        {"points:\n  - {prompt: 1, generates: 1}", "w.yaml:2:17: unknown key 'generates'"},
        {"points:\n  - {prompt: -1, generate: 1}", "w.yaml:2:14: prompt: -1 is negative"},
        {"points:\n  - {prompt: x, generate: 1}", "w.yaml:2:14: prompt: 'x' is not a whole"},
        {"points:\n  - {prompt: 3000000000, generate: 1}", "prompt: 3000000000 is too large"},
        {"points:\n  - {prompt: 0, generate: 0}", "w.yaml:2:5: point: prompt 0 and generate 0"},
        {"points:\n  - {prompt: 1, generate: 1, weight: 0}", "w.yaml:2:38: weight: 0; allowed"},
        {"points:\n  - {prompt: 1, generate: 1, weight: .nan}", "weight: .nan is not finite"},
        {"points:\n  - {prompt: 1, generate: 1, weight: 2}\n  - {prompt: 1, generate: 2}",
         "w.yaml:3:5: this point has no weight, unlike those before"},
        {"points:\n  - {prompt: 1, generate: 1}\n  - {prompt: 1, generate: 2, weight: 2}",
         "w.yaml:3:38: this point has a weight, unlike those before"},
        {"points: &a [{prompt: 1, generate: 1}]", "anchor '&a': workloads have no anchors"},
        {"points: [{prompt: 1, generate: 1}]\n---\npoints: []", "a second YAML document"},
        {"points: [{prompt: 1, generate: 1}", "not YAML"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct workload w;
        struct oato_error err;
        assert_int_equal(load(cases[i].text, &w, &err), OATO_EFILE);
        if (!strstr(err.text, cases[i].words) || strchr(err.text, '\n'))
            fail_msg("'%s' says '%s', not '%s'", cases[i].text, err.text, cases[i].words);
    }
}

static void so_many_points_and_no_more(void **state)
{
    (void)state;
    struct workload w;
    struct oato_error err;
    struct text t;
    text_init(&t);
    text_printf(&t, "points:\n");
    for (int i = 0; i < REQUEST_POINTS_MAX; i++)
        text_printf(&t, "  - {prompt: %d, generate: 1}\n", i);
    assert_int_equal(load(t.data, &w, &err), OATO_OK);
    assert_int_equal(w.n, REQUEST_POINTS_MAX);
    text_printf(&t, "  - {prompt: 1, generate: 1}\n");
    assert_int_equal(load(t.data, &w, &err), OATO_EFILE);
    assert_non_null(strstr(err.text, "w.yaml:10:5: more than 8 points"));
    text_free(&t);
    assert_int_equal(workload_load("no/such.yaml", &w, &err), OATO_EIO);
    assert_non_null(strstr(err.text, "no/such.yaml"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(points_are_read_as_written),
        cmocka_unit_test(what_is_wrong_has_its_place),
        cmocka_unit_test(so_many_points_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
