/*
 * frontier.c - speed against accelerator memory: one plan for each share of the budgets. It answers
 * how much memory is worth buying, or giving up to something else.
 */
#include "solver/planning_internal.h"
#include "solver/report/report_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct point {
    double share;           /* of the budgets */
    uint64_t bytes;         /* of all accelerators */
    bool fits;              /* else nothing below is set */
    double prefill, decode; /* tokens/s */
    double ns, layers_ns;   /* of what is minimised; layers_ns 0: whole layers do not fit */
};

static double layers_of(const struct plan *p)
{
    for (int32_t i = 0; i < p->n_baselines; i++)
        if (!strcmp(p->baselines[i].name, "layers"))
            return (double)p->baselines[i].objective_ns;
    return 0;
}

static oato_status find_point(const struct model *m, const struct profile *profile,
                              const struct planner_options *o, struct point *x,
                              struct oato_error *err)
{
    struct plan plan;
    struct planner_options resident = *o;
    resident.resident_only = true;
    oato_status status = planner_make(m, profile, &resident, &plan, NULL, err);
    if (status == OATO_EFIT && !oato_failed_memory(err) &&
        x->share < 1) { /* a point without a plan is a result, too */
        err->status = OATO_OK;
        return OATO_OK;
    }
    if (status)
        return status;
    const struct plan_request *q = &plan.request;
    x->fits = true;
    x->ns = (double)plan.objective_ns;
    x->layers_ns = layers_of(&plan);
    x->prefill = tokens_per_s((double)q->prompt * q->batch, plan.prefill_ns);
    x->decode = tokens_per_s(q->batch, plan.decode_ns);
    plan_free(&plan);
    return OATO_OK;
}

/* ------------------------------------------------------------------------------- writing --- */

static void write_csv(const struct point *x, int32_t n, struct text *out)
{
    text_printf(out, "share,accelerator_mib,prefill_tokens_per_s,decode_tokens_per_s,objective_ms,"
                     "layers_objective_ms\n");
    for (int32_t i = 0; i < n; i++) {
        text_printf(out, "%.4g,%.1f,", x[i].share, as_mib((double)x[i].bytes));
        if (x[i].fits)
            text_printf(out, "%.1f,%.2f,%.3f,", x[i].prefill, x[i].decode, as_ms(x[i].ns));
        else
            text_printf(out, ",,,");
        if (x[i].layers_ns > 0)
            text_printf(out, "%.3f", as_ms(x[i].layers_ns));
        text_printf(out, "\n");
    }
}

static void write_json(const struct point *x, int32_t n, struct text *out)
{
    json_open(out, NULL, '[');
    for (int32_t i = 0; i < n; i++) {
        json_open(out, NULL, '{');
        json_add(out, JSON("share", x[i].share), JSON("accelerator_bytes", x[i].bytes),
                 JSON("fits", x[i].fits));
        if (x[i].fits)
            json_add(out, JSON("prefill_tokens_per_s", x[i].prefill),
                     JSON("decode_tokens_per_s", x[i].decode),
                     JSON("objective_ns", (uint64_t)x[i].ns));
        if (x[i].layers_ns > 0)
            json_add(out, JSON("layers_objective_ns", (uint64_t)x[i].layers_ns));
        json_close(out, '}');
    }
    json_close(out, ']');
    text_printf(out, "\n");
}

enum { WIDTH = 720, HEIGHT = 420, LEFT = 64, RIGHT = 40, TOP = 52, BOTTOM = 52, STEPS = 5 };

/* Against the best plan with the least memory that fits. */
static double speed(const struct point *x, double ns)
{
    while (!x->fits)
        x++;
    return x->ns / ns;
}

static double x_at(double share)
{
    return LEFT + share * (WIDTH - LEFT - RIGHT);
}

static double y_at(double value, double top)
{
    return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
}

/* Where a plan stands that was made for other budgets. */
static void mark(const struct point *x, const struct point *plan, double top, struct text *out)
{
    text_printf(out,
                "<circle class=\"mark\" cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"#cc3311\"/>"
                "<text class=\"mark\" x=\"%.1f\" y=\"%.1f\" fill=\"#cc3311\" "
                "text-anchor=\"%s\">this plan</text>\n",
                x_at(plan->share), y_at(speed(x, plan->ns), top),
                x_at(plan->share) + (plan->share > 0.5 ? -9 : 9),
                y_at(speed(x, plan->ns), top) + (plan->share > 0.5 ? -6 : 16),
                plan->share > 0.5 ? "end" : "start");
}

static void curve(const struct point *x, int32_t n, bool layers, double top, const char *colour,
                  struct text *out)
{
    text_printf(out,
                "<polyline class=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\" points=\"",
                layers ? "layers" : "best", colour);
    for (int32_t i = 0; i < n; i++) {
        const double ns = layers ? x[i].layers_ns : x[i].ns;
        if (ns > 0)
            text_printf(out, "%.1f,%.1f ", x_at(x[i].share), y_at(speed(x, ns), top));
    }
    text_printf(out, "\"/>\n");
}

static void axes(const struct point *x, int32_t n, double top, struct text *out)
{
    const double step = round_step(top, STEPS);
    for (int i = 0; i * step <= top; i++) {
        const double value = i * step;
        text_printf(
            out,
            "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" class=\"grid\" stroke=\"#ddd\"/>"
            "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
            LEFT, y_at(value, top), WIDTH - RIGHT, y_at(value, top), LEFT - 6, y_at(value, top) + 4,
            value);
    }
    for (int i = 0; i <= STEPS; i++) {
        const double share = (double)i / STEPS, mib = as_mib((double)x[n - 1].bytes) * share;
        text_printf(out,
                    "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.0f %%</text>"
                    "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\" class=\"soft\" "
                    "fill=\"#777\">%.0f MiB</text>\n",
                    x_at(share), HEIGHT - BOTTOM + 18, 100 * share, x_at(share),
                    HEIGHT - BOTTOM + 34, mib);
    }
}

/* The last point, with most memory, fits. */
static void write_svg(const struct point *x, int32_t n, const struct plan_request *q,
                      const struct point *plan, struct text *out)
{
    const double most = speed(x, x[n - 1].ns), own = plan ? speed(x, plan->ns) : 0;
    const double top = 1.05 * fmax(most, own);
    text_printf(out,
                "<svg %sviewBox=\"0 0 %d %d\" "
                "font-family=\"sans-serif\" font-size=\"12\">\n"
                "<rect class=\"paper\" width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                "<text x=\"%d\" y=\"20\" font-size=\"14\">Predicted speed against accelerator "
                "memory</text>\n"
                "<text x=\"%d\" y=\"37\"><tspan class=\"best\" fill=\"#0066cc\">best plan</tspan>, "
                "<tspan class=\"soft\" fill=\"#777\">whole layers</tspan>; %s of %s, 1 "
                "with the least "
                "memory</text>\n",
                plan ? "" : "xmlns=\"http://www.w3.org/2000/svg\" ", /* a page knows what SVG is */
                WIDTH, HEIGHT, LEFT, LEFT, objective_names[q->objective], request_tokens(q).text);
    axes(x, n, top, out);
    curve(x, n, true, top, "#999999", out);
    curve(x, n, false, top, "#0066cc", out);
    if (plan)
        mark(x, plan, top, out);
    text_printf(out, "</svg>\n");
}

/* Plans for the shares of n points, of what the options give the problem's accelerators. */
static oato_status find_points(const struct problem *p, const struct model *m,
                               const struct planner_options *base, struct point *x, int32_t n,
                               struct oato_error *err)
{
    const bool *is_host = p->instance.is_host;
    oato_status status = OATO_OK;
    if (!memchr(is_host, 0, (size_t)p->n_devices))
        return oato_fail(err, OATO_EUSAGE,
                         "none of the devices has memory of its own: there is no frontier");
    for (int32_t i = 0; i < n && !status; i++) {
        struct planner_options now = *base;
        now.strict_budgets = false;
        for (int32_t d = 0; d < p->n_devices; d++) {
            if (is_host[d])
                continue;
            now.budgets[d].bytes = (uint64_t)((double)base->budgets[d].bytes * x[i].share);
            x[i].bytes += now.budgets[d].bytes;
        }
        status = find_point(m, p->profile, &now, &x[i], err);
    }
    return status;
}

oato_status report_frontier(const struct model *m, const struct profile *profile,
                            const struct planner_options *o, int32_t steps, bool json,
                            struct text *out, struct text *svg, struct oato_error *err)
{
    struct planner_options base = *o;
    struct problem *p;
    oato_status status = problem_create(m, profile, o, &p, err);
    if (status)
        return status;
    problem_budgets(p, &base);
    struct point *x = calloc((size_t)steps + 1, sizeof *x);
    if (!x) {
        problem_free(p);
        return oato_fail_memory(err, (size_t)steps * sizeof *x, "a frontier");
    }
    for (int32_t i = 0; i <= steps; i++)
        x[i].share = (double)i / steps;
    status = find_points(p, m, &base, x, steps + 1, err);
    if (!status) {
        if (json)
            write_json(x, steps + 1, out);
        else
            write_csv(x, steps + 1, out);
        if (svg)
            write_svg(x, steps + 1, &o->request, NULL, svg);
        status = text_status(out, err);
    }
    if (!status && svg)
        status = text_status(svg, err);
    free(x);
    problem_free(p);
    return status;
}

/* Shares in even steps and, among them, the plan's. */
static int32_t list_shares(struct point *x, int32_t steps, double share)
{
    int32_t n = 0;
    for (int32_t i = 0; i <= steps; i++) {
        const double even = (double)i / steps;
        if (n && x[n - 1].share < share && share < even)
            x[n++].share = share;
        x[n++].share = even;
    }
    return n;
}

oato_status frontier_picture(const struct plan *plan, const struct problem *p,
                             const struct model *m, int32_t steps, struct text *svg,
                             struct oato_error *err)
{
    struct planner_options o;
    struct point own = {.ns = (double)plan->objective_ns};
    char devices[DEVICES_SIZE];
    uint64_t all = 0;
    struct point *x = calloc((size_t)steps + 2, sizeof *x);
    if (!x)
        return oato_fail_memory(err, (size_t)steps * sizeof *x, "a frontier");
    problem_options(p, &o, devices);
    o.time_limit_s = 0.5; /* quick rather than exact */
    o.gap = 0.01;
    for (int32_t d = 0; d < p->n_devices; d++) { /* with all memory that is free */
        uint64_t *bytes = &o.budgets[d].bytes;
        *bytes = plan->devices[d].budget_bytes;
        if (p->instance.is_host[d])
            continue;
        own.bytes += *bytes;
        if (p->profile->devices[p->device[d]].free_bytes / 10 * 9 > *bytes)
            *bytes = p->profile->devices[p->device[d]].free_bytes / 10 * 9;
        all += *bytes;
    }
    own.share = all ? (double)own.bytes / (double)all : 0;
    const int32_t n = list_shares(x, steps, own.share);
    oato_status status = find_points(p, m, &o, x, n, err);
    if (!status)
        write_svg(x, n, &plan->request, &own, svg);
    free(x);
    return status ? status : text_status(svg, err);
}
