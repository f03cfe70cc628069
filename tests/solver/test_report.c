/*
 * test_report.c - what people read adds up: the table of a plan to its prediction, whatever is
 * divided or streamed, and the MiB of operators to what the plan keeps.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"
#include "tests/solver/parsed.h"

// clang-format off
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
// clang-format on

static struct model *model; /* 8B, without weights */
static struct profile machine;

static int setup(void **state)
{
    (void)state;
    struct oato_error err = {.text = "no such shape"};
    struct random_model m = random_model_default();
    m.dtype = DT_Q4_0;
    m.header_only = true;
    m.tokenizer = false;
    if (!random_model_set_shape(&m, "8b") || random_model_open(&m, &model, &err) ||
        hardware_load("rtx4090-xeon4314", &machine, NULL, NULL, &err)) {
        print_error("%s\n", err.text);
        return 1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    profile_free(&machine);
    model_close(model);
    return 0;
}

static void make(uint64_t gpu_mib, struct plan *plan, struct problem **problem)
{
    struct planner_options o;
    struct oato_error err;
    planner_options_init(&o);
    o.gap = 0.01;
    o.budgets[0] = (struct device_budget){"cuda:0", gpu_mib << 20};
    o.n_budgets = 1;
    if (planner_make(model, &machine, &o, plan, problem, &err))
        fail_msg("%s", err.text);
}

static double number(const json_t *sum, const char *key)
{
    return (double)json_integer_value(json_object_get(sum, key));
}

/* The sum of the lines of devices and of the others, in the column that is so far from the right.
 */
static double column_sum(const char *table, int from_right, double *all)
{
    double sum = 0;
    const char *line = strchr(strstr(table, "\ndevice"), '\n') + 1;
    for (line = strchr(line, '\n') + 1; strncmp(line, "predicted", 9) != 0;
         line = strchr(line, '\n') + 1) {
        const char *at = strchr(line, '\n');
        for (int i = 0; i < from_right; i++) {
            while (at[-1] == ' ')
                at--;
            while (at[-1] != ' ')
                at--;
        }
        *(strncmp(line, "in all", 6) != 0 ? &sum : all) += strtod(at, NULL);
    }
    return sum;
}

static void the_table_adds_up_to_the_prediction(void **state)
{
    (void)state;
    static const uint64_t mib[] = {0, 700, 3000, 20000};
    double streams_ns = 0, overlap_ns = 0;
    for (size_t i = 0; i < 2 * ARRAY_LEN(mib); i++) {
        struct plan plan;
        struct problem *problem;
        struct text t;
        double prefill_ms = 0, decode_ms = 0;
        make(mib[i / 2], &plan, &problem);
        text_init(&t);
        report_plan_as("it", &plan, problem, i % 2 ? model : NULL, true, &t);
        json_t *j = parsed(&t);
        const json_t *all = json_object_get(j, "made_up_of");
        for (int phase = 0; phase < PHASE_COUNT; phase++) {
            const json_t *sum = json_object_get(all, phase == PHASE_DECODE ? "decode" : "prefill");
            const uint64_t ns = phase == PHASE_DECODE ? plan.decode_ns : plan.prefill_ns;
            assert_true(fabs(number(sum, "work_ns") + number(sum, "copies_ns") +
                             number(sum, "streams_ns") + number(sum, "waits_ns") -
                             number(sum, "overlap_ns") - (double)ns) < 3);
            assert_true(fabs(number(sum, "all_ns") - (double)ns) < 1);
            streams_ns += number(sum, "streams_ns");
            overlap_ns += number(sum, "overlap_ns");
        }
        json_decref(j);
        report_plan_as("it", &plan, problem, i % 2 ? model : NULL, false, &t);
        assert_true(!strncmp(t.data, "it: 1 sequence", 14));
        const double sum_ms = column_sum(t.data, 2, &prefill_ms);
        assert_true(fabs(sum_ms - prefill_ms) < 0.01);
        assert_true(fabs(prefill_ms * 1e6 - (double)plan.prefill_ns) < 1e3);
        assert_true(fabs(column_sum(t.data, 1, &decode_ms) - decode_ms) < 0.001);
        text_free(&t);
        problem_free(problem);
        plan_free(&plan);
    }
    assert_true(streams_ns > 0 && overlap_ns > 0);
}

/* Memory that several operators take together is told once. */
static void memory_of_operators_adds_up(void **state)
{
    (void)state;
    struct plan plan;
    struct problem *problem;
    struct text t;
    struct oato_error err;
    uint64_t bytes = 0;
    make(3000, &plan, &problem);
    text_init(&t);
    report_plan_as(NULL, &plan, problem, model, true, &t);
    json_t *j = parsed(&t), *v;
    size_t d;
    json_array_foreach(json_object_get(j, "devices"), d, v) bytes +=
        (uint64_t)(number(v, "weight_bytes") + number(v, "kv_bytes"));
    json_decref(j);
    if (report_explain(&plan, model, &machine, NULL, false, &t, &err))
        fail_msg("%s", err.text);
    double mib = 0;
    char *line = strchr(t.data, '\n') + 1; /* behind "ms", the third column from the right */
    for (char *end; (end = strchr(line, '\n')) && strncmp(line, "by estimates", 12) != 0;
         line = end + 1) {
        char row[256], *word[64], *at = row;
        size_t n = 0;
        snprintf(row, sizeof row, "%.*s", (int)(end - line), line);
        while (n < 64 && (word[n] = strtok(at, " ")))
            n++, at = NULL;
        if (n > 3)
            mib += strtod(word[n - 3], NULL);
    }
    assert_true(fabs(mib - (double)bytes / 0x1p20) < 0.01 * mib);
    text_free(&t);
    problem_free(problem);
    plan_free(&plan);
}

static void a_difference_is_summed_up_first_and_bounded(void **state)
{
    (void)state;
    struct plan a, b;
    struct problem *problems[2];
    struct text t;
    struct oato_error err;
    bool same;
    int lines = 0;
    make(3000, &a, &problems[0]);
    make(700, &b, &problems[1]);
    text_init(&t);
    if (report_diff(&a, &b, false, &same, &t, &err))
        fail_msg("%s", err.text);
    assert_false(same);
    const char *list = strstr(t.data, " operators move:\n");
    assert_non_null(list);
    assert_true(strstr(t.data, "predicted prefill") < list);
    assert_true(strstr(t.data, "different budgets: cuda:0 3000.000 -> 700.000 MiB\n") < list);
    assert_non_null(strstr(list, " more; --json lists all\n"));
    for (const char *c = t.data; *c; c++)
        lines += *c == '\n';
    assert_in_range(lines, 22, 32);
    text_free(&t);
    text_init(&t);
    if (report_diff(&a, &b, true, &same, &t, &err))
        fail_msg("%s", err.text);
    json_t *j = parsed(&t);
    assert_true(json_array_size(json_object_get(j, "moves")) > 20);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(j, "details"), "budgets")),
        "cuda:0 3000.000 -> 700.000 MiB");
    json_decref(j);
    text_free(&t);
    for (int i = 0; i < 2; i++)
        problem_free(problems[i]);
    plan_free(&a);
    plan_free(&b);
}

/* What begins the lines of a report: a word up to a colon or two spaces, if it has no digit. */
static void expect_words_of(const char *report, const char *manual)
{
    for (const char *line = report; *line; line += *line == '\n') {
        const char *end = line + strcspn(line, "\n");
        char word[64], entry[80];
        size_t n = 0;
        while (line + n < end && line[n] != ':' && strncmp(line + n, "  ", 2) != 0)
            n++;
        const bool device = line[n] == ':' && line[n + 1] >= '0' && line[n + 1] <= '9';
        if (n > 0 && n < sizeof word && *line != ' ' && line + n < end && !device) {
            snprintf(word, sizeof word, "%.*s", (int)n, line);
            snprintf(entry, sizeof entry, "\n.B %s", word);
            if (!strpbrk(word, "0123456789") && !strstr(manual, entry))
                fail_msg("'%s' is not in the glossary of oato-plan.1", word);
        }
        line = end;
    }
}

static void the_words_of_reports_are_in_the_manual(void **state)
{
    (void)state;
    struct mapped_file f;
    struct oato_error err;
    struct plan plan;
    struct problem *problem;
    struct text t, manual;
    if (file_map(OATO_TEST_DATA "/../../docs/man/oato-plan.1", &f, &err))
        fail_msg("%s", err.text);
    text_init(&manual);
    text_add(&manual, (const char *)f.data, f.bytes);
    file_unmap(&f);
    char *words = strstr(manual.data, ".SS Words"), *end = strstr(words, ".SH OPTIONS");
    assert_non_null(end);
    *end = 0;
    make(3000, &plan, &problem);
    text_init(&t);
    report_plan_as("1", &plan, problem, model, false, &t);
    expect_words_of(strchr(t.data, '\n') + 1, words);
    text_free(&t);
    text_init(&t);
    if (report_explain(&plan, model, &machine, "blk.3", false, &t, &err))
        fail_msg("%s", err.text);
    for (const char *word = t.data; *word && *word != '\n'; word += strspn(word, " ")) {
        const size_t n = strcspn(word, " \n"); /* of the head */
        char one[32];
        snprintf(one, sizeof one, "%.*s", (int)n, word);
        assert_true(!strcmp(one, "ms") || !strcmp(one, "per") || strstr(words, one));
        word += n;
    }
    text_free(&t);
    text_free(&manual);
    problem_free(problem);
    plan_free(&plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_adds_up_to_the_prediction),
        cmocka_unit_test(memory_of_operators_adds_up),
        cmocka_unit_test(a_difference_is_summed_up_first_and_bounded),
        cmocka_unit_test(the_words_of_reports_are_in_the_manual),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
