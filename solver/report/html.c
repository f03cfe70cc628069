/*
 * html.c - a plan as one HTML file that needs nothing else: no scripts, no links, styles and
 * pictures inside. It reads in light and dark, on paper and on narrow screens, and is well-formed
 * XML. Whatever comes from files (names of models, devices, operators) is escaped.
 */
#include "solver/report/page_internal.h"

#include <stdlib.h>
#include <string.h>

enum { FRONTIER_STEPS = 8, TABLE_ROWS = 14 };

static const char style[] =
    ":root{color-scheme:light dark;--bg:#fff;--fg:#1b2430;--soft:#5a6675;--line:#d8dee7;"
    "--card:#f4f6f9;--copy:#7d4cc2;--d0:#8fa0b5;--d1:#e8891c;--d2:#1f9e89;--d3:#b5589c;"
    "--d4:#3b76d1;--d5:#c8a416;--d6:#d1495b;--d7:#5fa8d3}\n"
    "@media (prefers-color-scheme:dark){:root{--bg:#12171e;--fg:#e4e9f0;--soft:#9aa7b8;"
    "--line:#2c3644;--card:#1a212b;--copy:#b792f0;--d0:#64758b;--d1:#d97b12}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0 auto;max-width:1080px;padding:24px 20px;background:var(--bg);color:var(--fg);"
    "font:15px/1.45 system-ui,sans-serif;-webkit-print-color-adjust:exact;"
    "print-color-adjust:exact}\n"
    "h1{font-size:26px;margin:0 0 4px;overflow-wrap:anywhere}h2{font-size:18px;margin:34px 0 4px}\n"
    "p{margin:2px 0 10px}.soft{color:var(--soft)}figure{margin:0}\n"
    ".cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:10px;"
    "margin:18px 0 0}\n"
    ".card{background:var(--card);border:1px solid var(--line);border-radius:8px;"
    "padding:10px 12px}.card b{display:block;font-size:22px;line-height:1.25}"
    ".card span{color:var(--soft);font-size:13px}\n"
    "table{border-collapse:collapse;width:100%}.scroll{overflow-x:auto}\n"
    ".list td,.list th{padding:4px 8px;border-bottom:1px solid var(--line);text-align:right;"
    "white-space:nowrap}.list th{font-weight:600;color:var(--soft)}"
    ".list td:first-child,.list th:first-child,.list .l{text-align:left}"
    ".list .w{white-space:normal;min-width:150px}\n"
    ".bar{display:flex;height:18px;border:1px solid var(--line);border-radius:4px;"
    "overflow:hidden;background:var(--bg)}.bar i{display:block;height:100%}"
    ".kv{opacity:.65}.work{opacity:.35}\n"
    ".mem{margin:10px 0}.mem div:first-child{overflow-wrap:anywhere}\n"
    ".key{display:inline-block;width:12px;height:12px;border-radius:2px;margin:0 5px 0 12px;"
    "vertical-align:-1px}.key:first-child{margin-left:0}\n"
    ".map{table-layout:fixed;font-size:11px;line-height:13px;min-width:380px}.map td{"
    "border:1px solid var(--bg);height:14px;padding:0 1px;text-align:center;overflow:hidden;"
    "white-space:nowrap;color:#10151c}.map th{font-weight:400;color:var(--soft);padding:0 4px;"
    "text-align:right}.map thead th{text-align:center;vertical-align:bottom;padding:0 0 "
    "4px;height:110px}"
    ".map thead span{writing-mode:vertical-rl;transform:rotate(180deg);color:var(--fg)}"
    ".map .n{width:44px}\n"
    "svg{display:block;width:100%;height:auto;min-width:860px;font:11px system-ui,sans-serif}"
    "svg text{fill:var(--fg)}svg text.soft,svg tspan.soft{fill:var(--soft)}"
    "svg .paper{fill:var(--bg)}svg .grid{stroke:var(--line)}svg .lane{fill:var(--card)}"
    "svg .copy{fill:var(--copy)}svg .step{fill:var(--soft)}svg .in{fill:#10151c}"
    "svg .layers{stroke:var(--soft)}svg .best{stroke:var(--d4)}svg tspan.best{stroke:none;"
    "fill:var(--d4)}svg .mark{fill:var(--d6)}svg "
    "text.mark{paint-order:stroke;stroke:var(--bg);stroke-width:3px}.frontier "
    "svg{max-width:720px;min-width:520px}\n"
    "footer{margin-top:36px;padding-top:10px;border-top:1px solid var(--line);font-size:13px;"
    "color:var(--soft);overflow-wrap:anywhere}\n"
    "@media (max-width:600px){body{padding:14px 12px}h1{font-size:21px}.card b{font-size:18px}"
    ".cards{grid-template-columns:1fr 1fr}.list td,.list th{padding:4px;font-size:13px;"
    "white-space:normal;overflow-wrap:anywhere}}\n"
    "@media print{body{max-width:none;padding:0;font-size:12px}h2{break-after:avoid}"
    "svg,.mem,.card,tr{break-inside:avoid}.scroll{overflow:visible}svg{min-width:0}}\n";

/* ------------------------------------------------------------------------------- helpers --- */

static void heading(const struct page *page, const char *title, const char *words)
{
    text_printf(page->out, "<h2>%s</h2>\n<p class=\"soft\">%s</p>\n", title, words);
}

/* -------------------------------------------------------------------------------- header --- */

static void card(const struct page *page, const char *value, const char *unit, const char *what)
{
    text_printf(page->out, "<div class=\"card\"><span>%s</span><b>%s</b><span>%s</span></div>\n",
                what, value, unit);
}

/* Before what is predicted: an estimate. */
static const char *mark(const struct page *page)
{
    return operators_of(page->plan, true) ? "~ " : "";
}

static void speed_card(const struct page *page, const char *what, double tokens, uint64_t ns)
{
    const double speed = tokens_per_s(tokens, ns);
    char value[48];
    if (!(speed > 0))
        return;
    snprintf(value, sizeof value, "%s%.*f", mark(page), speed < 100 ? 1 : 0, speed);
    card(page, value, "tokens/s", what);
}

static void time_card(const struct page *page, const char *what, uint64_t ns)
{
    const bool short_one = ns < 1000000000;
    char value[48];
    snprintf(value, sizeof value, short_one ? "%s%.1f" : "%s%.2f", mark(page),
             (double)ns / (short_one ? 1e6 : 1e9));
    card(page, value, short_one ? "ms" : "s", what);
}

static void gap_card(const struct page *page)
{
    char value[48];
    const double gap = gap_of(page->plan);
    if (gap < 0)
        snprintf(value, sizeof value, "unknown");
    else if (gap < 5e-6)
        snprintf(value, sizeof value, "0 %%");
    else
        snprintf(value, sizeof value, "&#8804; %.2f %%", gap * 100);
    card(page, value, page->plan->timed_out ? "time limit reached" : page->plan->solver,
         page->plan->n_caches ? "Above the optimum without caches" : "Above the optimum");
}

/* The devices in their colours. */
static void write_keys(const struct page *page, bool models)
{
    const struct plan *p = page->plan;
    for (int32_t d = 0; d < p->n_devices; d++)
        text_printf(page->out,
                    "<span class=\"key\" style=\"background:var(--d%d)\"></span>%s <span "
                    "class=\"soft\">%s</span> ",
                    html_colour(page, d), html_text(page, device_name(p, d).text),
                    html_text(page, models ? p->devices[d].model : ""));
}

static void write_header(const struct page *page, const char *title)
{
    const struct plan *p = page->plan;
    const struct plan_request *q = &p->request;
    text_printf(page->out, "<h1>%s</h1>\n<p>", html_text(page, title));
    write_keys(page, true);
    text_printf(page->out,
                "</p>\n<p class=\"soft\">%d sequence%s of %s, context %d, steps of up "
                "to %d tokens, KV %s, minimizing %s</p>\n<div class=\"cards\">\n",
                q->batch, q->batch == 1 ? "" : "s", request_tokens(q).text, q->context, q->ubatch,
                dtype_name(q->kv), objective_names[q->objective]);
    speed_card(page, "Prefill", (double)q->prompt * q->batch, p->prefill_ns);
    if (q->generate)
        speed_card(page, "Decode", q->batch, p->decode_ns);
    if (q->prompt)
        time_card(page, "First token", p->prefill_ns);
    time_card(page, "Request", p->request_ns);
    gap_card(page);
    text_printf(page->out, "</div>\n");
    if (operators_of(p, true))
        text_printf(
            page->out,
            "<p class=\"soft\">~ estimates: %d of %d operators were never measured in their "
            "shape.</p>\n",
            operators_of(p, true), operators_of(p, false));
}

static void write_requests(const struct page *page)
{
    const struct plan_request *q = &page->plan->request;
    if (!q->n_points)
        return;
    heading(page, "Requests", "What the plan is for; the figures above are means by weight.");
    text_printf(page->out,
                "<div class=\"scroll\"><table class=\"list\">\n<thead><tr><th>request</th>"
                "<th>weight</th><th>first token</th><th>decode</th></tr></thead>\n");
    for (int32_t i = 0; i < q->n_points; i++) {
        const struct plan_request alone = request_alone(q, i);
        const struct plan_point *t = &q->points[i];
        text_printf(page->out,
                    "<tr><td>%s</td><td>%.2f %%</td><td>%.1f ms</td><td>%.1f tokens/s</td></tr>\n",
                    request_tokens(&alone).text, 100.0 * t->weight / POINTS_WEIGHT,
                    as_ms((double)(t->prompt ? t->prefill_ns : t->decode_ns)),
                    tokens_per_s(q->batch, t->decode_ns));
    }
    text_printf(page->out, "</table></div>\n");
}

static void write_baselines(const struct page *page)
{
    const struct plan *p = page->plan;
    uint64_t most = p->objective_ns;
    heading(page, "Against simpler rules",
            "Predicted value of what is minimized, and how many times faster this plan is.");
    for (int32_t i = 0; i < p->n_baselines; i++)
        most = p->baselines[i].objective_ns > most ? p->baselines[i].objective_ns : most;
    text_printf(page->out, "<div class=\"scroll\"><table class=\"list\">\n");
    for (int32_t i = -1; i < p->n_baselines; i++) {
        const uint64_t ns = i < 0 ? p->objective_ns : p->baselines[i].objective_ns;
        text_printf(
            page->out,
            "<tr><td>%s</td><td style=\"width:55%%\"><div class=\"bar\"><i style=\"width:%.2f%%;"
            "background:var(--d%d)\"></i></div></td><td>%.1f ms</td><td>%.2f "
            "&#215;</td></tr>\n",
            html_text(page, i < 0 ? "this plan" : baseline_title(&p->baselines[i])),
            most ? 100 * (double)ns / (double)most : 0, i < 0 ? 1 : 0, as_ms((double)ns),
            p->objective_ns ? (double)ns / (double)p->objective_ns : 1);
    }
    text_printf(page->out, "</table></div>\n");
}

/* --------------------------------------------------------------------- dearest operators --- */

/* Operators of one name in one place, in all layers. */
struct kin {
    int32_t op, n, estimates; /* the first of them; how many */
    const char *where;
    double prefill_ns, decode_ns, request_ns;
};

static int by_request(const void *a, const void *b)
{
    const struct kin *x = a, *y = b;
    if (x->request_ns != y->request_ns)
        return x->request_ns > y->request_ns ? -1 : 1;
    return (x->op > y->op) - (x->op < y->op);
}

/* Time in the table of costs, of an operator's slowest part: parts run at the same time. */
static void costs_of(const struct page *page, const char *op, double ns[PHASE_COUNT],
                     bool *estimate)
{
    const struct plan *p = page->plan;
    for (int32_t i = 0; i < p->n_costs; i++) {
        const struct plan_cost *c = &p->costs[i];
        if (strcmp(c->op, op) != 0)
            continue;
        if ((double)c->ns > ns[c->phase])
            ns[c->phase] = (double)c->ns;
        *estimate = *estimate || c->estimate;
    }
}

static int32_t find_kin(const struct page *page, struct kin *kin)
{
    const struct graph *g = &page->simulation->graph;
    int32_t n = 0;
    for (int32_t i = 0; i < g->n_ops; i++) {
        const char *where = html_where(page, i);
        double ns[PHASE_COUNT] = {0};
        bool estimate = false;
        int32_t k = 0;
        while (k < n &&
               (strcmp(html_short_name(&g->ops[kin[k].op]), html_short_name(&g->ops[i])) != 0 ||
                strcmp(kin[k].where, where) != 0))
            k++;
        if (k == n)
            kin[n++] = (struct kin){.op = i, .where = where};
        costs_of(page, g->ops[i].name, ns, &estimate);
        kin[k].n++;
        kin[k].estimates += estimate;
        kin[k].prefill_ns += ns[PHASE_PREFILL];
        kin[k].decode_ns += ns[PHASE_DECODE];
        kin[k].request_ns += ns[PHASE_PREFILL] + page->plan->request.generate * ns[PHASE_DECODE];
    }
    qsort(kin, (size_t)n, sizeof *kin, by_request);
    return n;
}

static oato_status write_dearest(const struct page *page, struct oato_error *err)
{
    const struct plan *p = page->plan;
    const struct graph *g = &page->simulation->graph;
    struct kin *kin = arena_alloc(page->strings, (size_t)g->n_ops + 1, sizeof *kin);
    if (!kin)
        return oato_fail_memory(err, (size_t)g->n_ops * sizeof *kin, "a report");
    const int32_t n = find_kin(page, kin);
    heading(page, "The most expensive operators",
            "Operators of the same name and placement, summed over all layers; of parts that run "
            "at the same time the slowest counts. ~ marks estimates: shapes that were never "
            "measured there.");
    text_printf(page->out, "<div class=\"scroll\"><table class=\"list\">\n<thead><tr><th>operator"
                           "</th><th class=\"l\">where</th><th>layers</th><th>prefill ms</th><th>"
                           "decode ms</th><th>of the request</th></tr></thead>\n<tbody>\n");
    for (int32_t i = 0; i < n && i < TABLE_ROWS; i++)
        text_printf(page->out,
                    "<tr><td>%s</td><td class=\"l w\">%s</td><td>%d</td><td>%.3f%s</td><td>%.3f%s"
                    "</td><td>%.1f %%</td></tr>\n",
                    html_text(page, html_short_name(&g->ops[kin[i].op])),
                    html_text(page, kin[i].where), kin[i].n, as_ms(kin[i].prefill_ns),
                    kin[i].estimates ? " ~" : "", as_ms(kin[i].decode_ns),
                    kin[i].estimates ? " ~" : "",
                    p->request_ns ? 100 * kin[i].request_ns / (double)p->request_ns : 0);
    text_printf(page->out, "</tbody></table></div>\n");
    return OATO_OK;
}

/* ---------------------------------------------------------------------------------- page --- */

/* Decode at the middle of the generation; the first chunk of the prompt. */
static void write_timelines(const struct page *page)
{
    const struct simulation *s = page->simulation;
    heading(
        page, "Time line",
        "Simulated on a virtual clock: each device's queue and, where weights are streamed, its "
        "copy engine. Below each step: its middle layer in detail.");
    text_printf(page->out, "<p>");
    write_keys(page, false);
    text_printf(page->out, "<span class=\"key\" style=\"background:var(--copy)\"></span>copies"
                           "<span class=\"key\" style=\"background:var(--soft)\"></span>the "
                           "step itself</p>\n");
    if (s->middle >= 0)
        html_timeline(page, &s->steps[s->middle]);
    if (s->n_steps && s->steps[0].phase == PHASE_PREFILL)
        html_timeline(page, &s->steps[0]);
}

static oato_status write_frontier(const struct page *page, const struct model *m,
                                  struct oato_error *err)
{
    const struct problem *p = page->problem;
    if (!p || !memchr(p->instance.is_host, 0, (size_t)p->n_devices))
        return OATO_OK;
    heading(page, "Speed against memory",
            "The best plan for each share of the accelerators' free memory, each within 1 % of the "
            "optimum.");
    text_printf(page->out, "<div class=\"scroll frontier\">");
    oato_status status = frontier_picture(page->plan, p, m, FRONTIER_STEPS, page->out, err);
    text_printf(page->out, "</div>\n");
    return status;
}

static void write_footer(const struct page *page)
{
    const struct plan *p = page->plan;
    text_printf(page->out,
                "<footer>Planned by %s for a model of structure %016llx on a profile of hash "
                "%016llx. %d of %d "
                "operators were not measured in their shape on every device: their times there are "
                "estimates.",
                html_text(page, p->tool), (unsigned long long)p->structure_hash,
                (unsigned long long)p->profile_hash, operators_of(p, true), operators_of(p, false));
    struct text untimed;
    text_init(&untimed);
    if (page->problem)
        untimed_text(p, page->problem, &untimed);
    if (untimed.len)
        text_printf(page->out, "<p style=\"white-space:pre-line\">%s</p>",
                    html_text(page, untimed.data));
    text_free_part(&untimed, page->out);
    text_printf(page->out, "</footer>\n");
}

oato_status report_html(const struct plan *plan, const struct model *m,
                        const struct rank_options *ranks, bool frontier, struct text *out,
                        struct oato_error *err)
{
    struct problem *problem = NULL;
    struct simulation *simulation = NULL;
    struct arena strings;
    int32_t *place;
    arena_init(&strings);
    oato_status status = OATO_OK;
    if (plan_ranks(plan) == 1)
        status = problem_of_plan(m, ranks->profiles[0], plan, &problem, &place, err);
    if (!status)
        status = simulation_run(plan, m, ranks, &simulation, err);
    if (status)
        goto out;
    const struct page page = {plan, problem, simulation, out, &strings};
    const char *title = model_title(plan, m);
    text_printf(out,
                "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
                "<meta name=\"viewport\" content=\"width=device-width, "
                "initial-scale=1\"/>\n<title>%s: plan</title>\n"
                "<style>\n%s</style>\n</head>\n<body>\n",
                html_text(&page, title), style);
    write_header(&page, title);
    write_requests(&page);
    write_baselines(&page);
    heading(&page, "Where everything is",
            "A row per layer, a column per operator; the last one is the KV cache. Cells of "
            "several colours are split, with the first device's share in percent; hatched ones are "
            "streamed for prefill.");
    html_map(&page);
    heading(&page, "Memory",
            "Use of each device's budget: weights, KV cache, work (activations, "
            "workspace, stream buffers) and free memory.");
    html_memory(&page);
    write_timelines(&page);
    if (frontier)
        status = write_frontier(&page, m, err);
    if (!status)
        status = write_dearest(&page, err);
    write_footer(&page);
    text_printf(out, "</body>\n</html>\n");
    if (!status)
        status = text_status(out, err);
out:
    arena_free(&strings);
    simulation_free(simulation);
    problem_free(problem);
    return status;
}
