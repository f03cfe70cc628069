/*
 * test_html.c - what must stay true of the HTML report: it is well-formed whatever the names are,
 * needs nothing from elsewhere, shows every layer and every operator, and stays small.
 */
#include "solver/solver.h"
#include "tests/models/random_model.h"
#include "tests/solver/plan_fixture.h"

// clang-format off
#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
// clang-format on

enum { LAYERS = 80, DEPTH = 64 };

static struct model *model;

static int setup(void **state)
{
    (void)state;
    struct oato_error err;
    struct random_model m = random_model_default();
    m.layers = LAYERS;
    m.width = 128;
    m.ffn = 256;
    m.context = 2048;
    m.dtype = DT_Q4_0;
    if (random_model_open(&m, &model, &err)) {
        print_error("%s\n", err.text);
        return 1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    model_close(model);
    return 0;
}

static void make(const struct profile *p, const char *solver, uint64_t sim_bytes, struct plan *plan)
{
    struct oato_error err;
    struct planner_options o;
    planner_options_init(&o);
    o.solver = solver;
    o.request.prompt = 100;
    o.request.generate = 20;
    o.request.context = 512;
    o.request.ubatch = 64;
    o.gap = 0.01;
    const struct plan_point points[] = {{.prompt = 100, .generate = 20},
                                        {.prompt = 30, .generate = 20, .depth = 400}};
    if (sim_bytes) {
        request_set_points(&o.request, points, (double[]){1, 3}, 2);
        o.budgets[0] = (struct device_budget){"sim:0", sim_bytes};
        o.n_budgets = 1;
    }
    if (planner_make(model, p, &o, plan, NULL, &err))
        fail_msg("%s", err.text);
}

static void render(const struct plan *plan, const struct profile *p, bool frontier, struct text *t)
{
    struct oato_error err;
    text_init(t);
    const struct rank_options one = {.profiles = {p}, .n_profiles = 1};
    if (report_html(plan, model, &one, frontier, t, &err))
        fail_msg("%s", err.text);
}

static void fixture(struct profile *p, double sim_speed)
{
    const struct fixture_options f = {
        .sim_speed = sim_speed, .link_latency_ns = 2000, .scale = 1, .fused_factor = 0.9};
    assert_true(fixture_profile(model, &f, p));
}

/* ----------------------------------------------------------------------------- well-formed - */

static const char *name_end(const char *s)
{
    while (isalnum((unsigned char)*s) || *s == '-' || *s == ':')
        s++;
    return s;
}

/* Text and values hold no bare '<' and only whole entities. */
static const char *check_text(const char *s, char until, const char *page)
{
    for (; *s && *s != until; s++) {
        if (*s == '<')
            fail_msg("a '<' in a value at %td: %.40s", s - page, s);
        if (*s != '&')
            continue;
        const size_t n = strcspn(s, "; <");
        if (s[n] != ';' || n < 2 || n > 7)
            fail_msg("no entity at %td: %.40s", s - page, s);
    }
    return s;
}

static const char *check_attributes(const char *s, const char *page)
{
    while (*s == ' ') {
        const char *end = name_end(++s);
        if (end == s || end[0] != '=' || end[1] != '"')
            fail_msg("no attribute at %td: %.40s", s - page, s);
        s = check_text(end + 2, '"', page) + 1;
    }
    return s;
}

/* Every element that is opened is closed, in order. */
static void check_well_formed(const char *page)
{
    static const char doctype[] = "<!DOCTYPE html>\n";
    const char *open[DEPTH] = {NULL};
    size_t length[DEPTH] = {0};
    int depth = 0;
    assert_int_equal(strncmp(page, doctype, strlen(doctype)), 0);
    for (const char *s = page + strlen(doctype); *s;) {
        s = check_text(s, '<', page);
        if (!*s)
            break;
        const bool closes = s[1] == '/';
        const char *name = s + 1 + closes, *end = name_end(name);
        assert_true(end > name);
        if (closes) {
            depth--;
            if (depth < 0 || length[depth] != (size_t)(end - name) ||
                memcmp(open[depth], name, length[depth]) != 0)
                fail_msg("%.*s closes what is not open at %td", (int)(end - name), name, s - page);
            assert_int_equal(*end, '>');
            s = end + 1;
            continue;
        }
        const char *tail = check_attributes(end, page);
        if (*tail == '/') {
            assert_int_equal(tail[1], '>');
            s = tail + 2;
            continue;
        }
        if (*tail != '>')
            fail_msg("no end of a tag at %td: %.40s", tail - page, s);
        assert_true(depth < DEPTH);
        open[depth] = name;
        length[depth++] = (size_t)(end - name);
        s = tail + 1;
    }
    assert_int_equal(depth, 0);
}

static void check_alone(const char *page)
{
    static const char *const words[] = {"http",    "src=",  "href=",   "url(", "@import",
                                        "<script", "<link", "<iframe", "//"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (strstr(page, words[i]))
            fail_msg("'%s' in the page: %.60s", words[i], strstr(page, words[i]));
}

/* ----------------------------------------------------------------------------------- tests - */

static void a_page_shows_every_layer_and_operator(void **state)
{
    (void)state;
    static const char *const solvers[] = {"auto", "layers", "cpu"};
    for (size_t i = 0; i < ARRAY_LEN(solvers); i++) {
        struct oato_error err;
        struct profile p;
        struct plan plan;
        struct graph g;
        struct text t;
        fixture(&p, 8);
        make(&p, solvers[i], 6 << 20, &plan);
        render(&plan, &p, false, &t);
        check_well_formed(t.data);
        check_alone(t.data);
        assert_in_range(t.len, 10000, 1 << 20);
        assert_int_equal(plan_apply(&plan, model, &g, &err), OATO_OK);
        for (int32_t k = 0; k < g.n_ops; k++) {
            char title[160];
            snprintf(title, sizeof title, "title=\"%s: ", g.ops[k].name);
            if (!strstr(t.data, title))
                fail_msg("%s is not on the map", g.ops[k].name);
        }
        for (int32_t layer = 0; layer < LAYERS; layer++) {
            char row[64];
            snprintf(row, sizeof row, "<th scope=\"row\">%d</th>", layer);
            assert_non_null(strstr(t.data, row));
            snprintf(row, sizeof row, "title=\"KV of layer %d: ", layer);
            assert_non_null(strstr(t.data, row));
        }
        graph_free(&g);
        text_free(&t);
        plan_free(&plan);
        profile_free(&p);
    }
}

static void names_are_only_text(void **state)
{
    (void)state;
    struct profile p;
    struct plan plan;
    struct text t;
    fixture(&p, 8);
    make(&p, "auto", 6 << 20, &plan);
    plan.model_name = "</h1><script>alert(\"1\")</script>&copy\xff\x01";
    snprintf(plan.devices[0].model, sizeof plan.devices[0].model, "\"'><img onerror='x'>");
    render(&plan, &p, false, &t);
    check_well_formed(t.data);
    check_alone(t.data);
    assert_null(strstr(t.data, "<img"));
    assert_non_null(strstr(t.data, "&lt;script&gt;alert(&quot;1&quot;)"));
    text_free(&t);
    plan_free(&plan);
    profile_free(&p);
}

static void speed_against_memory_is_drawn_where_there_is_memory(void **state)
{
    (void)state;
    struct profile p;
    struct plan plan;
    struct text t;
    fixture(&p, 8);
    make(&p, "layers", 6 << 20, &plan);
    render(&plan, &p, true, &t);
    check_well_formed(t.data);
    check_alone(t.data);
    assert_non_null(strstr(t.data, "this plan</text>"));
    assert_non_null(strstr(t.data, "<td>30 + 20 tokens behind 400</td><td>75.00 %</td>"));
    text_free(&t);
    plan_free(&plan);
    profile_free(&p);
    fixture(&p, 0);
    make(&p, "cpu", 0, &plan);
    render(&plan, &p, true, &t);
    check_well_formed(t.data);
    assert_null(strstr(t.data, "Speed against memory"));
    assert_null(strstr(t.data, "<h2>Requests"));
    text_free(&t);
    plan_free(&plan);
    profile_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_page_shows_every_layer_and_operator),
        cmocka_unit_test(names_are_only_text),
        cmocka_unit_test(speed_against_memory_is_drawn_where_there_is_memory),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
