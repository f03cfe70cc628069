/*
 * html_figures.c - the figures of the HTML report: the map of layers and operators (a table, so
 * that it fits any width), memory bars, and time lines of simulated steps as SVG. A whole step is
 * one path per device and kind, thousands of records in a few kilobytes; only the layer shown below
 * it has a shape and a tooltip per record.
 */
#include "solver/report/page_internal.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { COLUMNS_MAX = 32 };

/* ----------------------------------------------------------------------------------- map --- */

struct map {
    const struct page *page;
    const char *column[COLUMNS_MAX]; /* short names of operators */
    int32_t n;
};

static bool in_layer(const struct simulation *s, const struct graph_op *op)
{
    return op->layer >= 0 && op->layer < s->graph.n_layers;
}

static int32_t find_column(const struct map *map, const struct graph_op *op)
{
    int32_t c = 0;
    while (c < map->n && strcmp(map->column[c], html_short_name(op)) != 0)
        c++;
    return c;
}

/* Layers may be fused differently: what is new stands before what follows it in its layer. */
static void find_columns(struct map *map)
{
    const struct simulation *s = map->page->simulation;
    const struct graph_op *ops = s->graph.ops;
    for (int32_t i = 0; i < s->graph.n_ops; i++) {
        int32_t at = map->n;
        if (!in_layer(s, &ops[i]) || find_column(map, &ops[i]) < map->n || map->n == COLUMNS_MAX)
            continue;
        for (int32_t k = i + 1; k < s->graph.n_ops && ops[k].layer == ops[i].layer && at == map->n;
             k++)
            at = find_column(map, &ops[k]);
        memmove(map->column + at + 1, map->column + at,
                sizeof *map->column * (size_t)(map->n++ - at));
        map->column[at] = html_short_name(&ops[i]);
    }
}

/* Where it is as a background: a colour, or colours side by side; hatched where prefill streams. */
static void background(const struct page *page, int32_t op, struct text *out)
{
    const struct simulation *s = page->simulation;
    const struct placement *decode = &s->placements.phase[PHASE_DECODE][op],
                           *prefill = &s->placements.phase[PHASE_PREFILL][op];
    int32_t stream = -1;
    double at = 0;
    for (int32_t i = 0; i < prefill->n; i++)
        if (prefill->part[i].streamed || prefill->part[i].kv_streamed)
            stream = prefill->part[i].device;
    text_printf(out, " style=\"background:");
    if (decode->n > 1) {
        text_printf(out, "linear-gradient(90deg");
        for (int32_t i = 0; i < decode->n; i++) {
            const double end = at + 100 * placed_share(&s->graph.ops[op], decode, i);
            const bool clear = stream >= 0 && decode->part[i].device == s->host;
            if (clear)
                text_printf(out, ",transparent %.3g%% %.3g%%", at, end);
            else
                text_printf(out, ",var(--d%d) %.3g%% %.3g%%",
                            html_colour(page, decode->part[i].device), at, end);
            at = end;
        }
        text_printf(out, ")%s", stream >= 0 ? "," : "");
    }
    if (stream >= 0)
        text_printf(out, "repeating-linear-gradient(135deg,var(--d%d) 0 2px,transparent 2px 6px),",
                    html_colour(page, stream));
    if (decode->n <= 1 || stream >= 0)
        text_printf(out, "var(--d%d)",
                    html_colour(page, decode->n > 1 ? s->host : decode->part[0].device));
    text_printf(out, "\"");
}

static void op_cell(const struct page *page, int32_t op, int32_t columns, const char *label)
{
    const struct graph_op *o = &page->simulation->graph.ops[op];
    const struct placement *decode = &page->simulation->placements.phase[PHASE_DECODE][op];
    text_printf(page->out, "<td colspan=\"%d\" title=\"%s: %s\"", columns, html_text(page, o->name),
                html_text(page, html_where(page, op)));
    background(page, op, page->out);
    text_printf(page->out, ">%s", label ? html_text(page, label) : "");
    const double share = decode->n > 1 ? 100 * placed_share(o, decode, 0) : 0;
    if (share > 0)
        text_printf(page->out, share < 1 ? "%s&lt;1" : "%s%.0f", label ? " " : "", share);
    text_printf(page->out, "</td>");
}

/* Its KV may be divided by heads. */
static void kv_cell(const struct page *page, int32_t layer)
{
    const struct plan *p = page->plan;
    int32_t n = 0, heads = 0;
    for (int32_t i = 0; i < p->n_kv; i++)
        if (p->kv[i].layer == layer) {
            if (!n++)
                text_printf(page->out, "<td title=\"KV of layer %d", layer);
            text_printf(page->out, "%s %s", n > 1 ? "," : ":",
                        html_text(page, device_name(p, p->kv[i].device).text));
            heads = p->kv[i].head_end > heads ? p->kv[i].head_end : heads;
        }
    text_printf(page->out, n ? "\" style=\"background:linear-gradient(90deg" : "<td>");
    for (int32_t i = 0; i < p->n_kv; i++)
        if (p->kv[i].layer == layer)
            text_printf(page->out, ",var(--d%d) %.3g%% %.3g%%", html_colour(page, p->kv[i].device),
                        100.0 * p->kv[i].head_begin / heads, 100.0 * p->kv[i].head_end / heads);
    text_printf(page->out, n ? ")\"></td>" : "</td>");
}

static void layer_row(const struct map *map, int32_t layer)
{
    const struct page *page = map->page;
    const struct graph *g = &page->simulation->graph;
    text_printf(page->out, "<tr><th scope=\"row\">%d</th>", layer);
    for (int32_t c = 0; c < map->n; c++) {
        int32_t i = 0;
        while (i < g->n_ops && (g->ops[i].layer != layer ||
                                strcmp(html_short_name(&g->ops[i]), map->column[c]) != 0))
            i++;
        if (i < g->n_ops)
            op_cell(page, i, 1, NULL);
        else
            text_printf(page->out, "<td></td>");
    }
    kv_cell(page, layer);
    text_printf(page->out, "</tr>\n");
}

/* What comes before the first layer, or after the last: wide cells with their names. */
static void outer_row(const struct map *map, int32_t layer, const char *name)
{
    const struct graph *g = &map->page->simulation->graph;
    int32_t n = 0, at = 0, k = 0;
    for (int32_t i = 0; i < g->n_ops; i++)
        n += g->ops[i].layer == layer;
    if (!n)
        return;
    text_printf(map->page->out, "<tr><th scope=\"row\">%s</th>", name);
    for (int32_t i = 0; i < g->n_ops; i++) {
        if (g->ops[i].layer != layer)
            continue;
        const int32_t end = ++k * (map->n + 1) / n;
        op_cell(map->page, i, end > at ? end - at : 1, html_short_name(&g->ops[i]));
        at = end;
    }
    text_printf(map->page->out, "</tr>\n");
}

void html_map(const struct page *page)
{
    struct map map = {.page = page};
    const struct graph *g = &page->simulation->graph;
    find_columns(&map);
    text_printf(page->out, "<div class=\"scroll\"><table class=\"map\">\n<thead><tr><th "
                           "class=\"n\">layer</th>");
    for (int32_t c = 0; c < map.n; c++)
        text_printf(page->out, "<th scope=\"col\"><span>%s</span></th>",
                    html_text(page, map.column[c]));
    text_printf(page->out, "<th scope=\"col\"><span>KV</span></th></tr></thead>\n<tbody>\n");
    outer_row(&map, -1, "in");
    for (int32_t layer = 0; layer < g->n_layers; layer++)
        layer_row(&map, layer);
    outer_row(&map, g->n_layers, "out");
    text_printf(page->out, "</tbody></table></div>\n");
}

/* -------------------------------------------------------------------------------- memory --- */

static void memory_part(const struct page *page, const char *class, const char *what,
                        uint64_t bytes, int32_t device)
{
    const uint64_t budget = page->plan->devices[device].budget_bytes;
    if (!bytes || !budget)
        return;
    text_printf(page->out,
                "<i class=\"%s\" title=\"%s %.1f MiB\" style=\"width:%.3f%%;background:"
                "var(--d%d)\"></i>",
                class, what, as_mib((double)bytes), 100 * fmin((double)bytes / (double)budget, 1),
                html_colour(page, device));
}

void html_memory(const struct page *page)
{
    const struct plan *p = page->plan;
    for (int32_t d = 0; d < p->n_devices; d++) {
        const struct device_share s = device_share(p, page->problem, d);
        const uint64_t budget = p->devices[d].budget_bytes, planned = p->devices[d].planned_bytes;
        const uint64_t left = budget > planned ? budget - planned : 0;
        text_printf(page->out,
                    "<div class=\"mem\"><div><b>%s</b> <span class=\"soft\">%s</span></div>\n<div "
                    "class=\"bar\">",
                    html_text(page, device_name(p, d).text), html_text(page, p->devices[d].model));
        memory_part(page, "weights", "weights", s.weight_bytes, d);
        memory_part(page, "kv", "KV", s.kv_bytes, d);
        memory_part(page, "work", page->problem ? "work" : "all", s.work_bytes, d);
        if (!page->problem) {
            text_printf(page->out,
                        "</div>\n<div class=\"soft\">used %.0f, free %.0f of %.0f "
                        "MiB</div></div>\n",
                        as_mib((double)planned), as_mib((double)left), as_mib((double)budget));
            continue;
        }
        text_printf(page->out,
                    "</div>\n<div class=\"soft\">weights %.0f, KV %.0f, work %.0f, free %.0f of "
                    "%.0f MiB</div></div>\n",
                    as_mib((double)s.weight_bytes), as_mib((double)s.kv_bytes),
                    as_mib((double)s.work_bytes), as_mib((double)left), as_mib((double)budget));
    }
}

/* ------------------------------------------------------------------------------ timeline --- */

enum { WIDTH = 1000, LABELS = 120, TOP = 6, LANE = 24, GAP = 6, AXIS = 26, TICKS = 6 };

/* A part of a step in its lanes: one for each queue that has records. */
struct lanes {
    const struct page *page;
    const struct simulated_step *step;
    int64_t begin_ns, end_ns;
    int32_t lane[SIM_QUEUES], n; /* of a queue; -1: none */
};

static void find_lanes(struct lanes *l)
{
    const struct simulation *s = l->page->simulation;
    bool used[SIM_QUEUES] = {false};
    for (int32_t i = l->step->first; i < l->step->first + l->step->n; i++)
        used[event_queue(s, &s->events[i])] = true;
    for (int32_t d = 0; d < s->plan->n_devices; d++) /* a copy engine beneath its device */
        for (int32_t q = d; q < 2 * s->plan->n_devices; q += s->plan->n_devices)
            l->lane[q] = used[q] ? l->n++ : -1;
}

static double x_of(const struct lanes *l, int64_t ns)
{
    const double part = (double)(ns - l->begin_ns) / (double)(l->end_ns - l->begin_ns);
    return LABELS + fmin(fmax(part, 0), 1) * (WIDTH - LABELS - 1);
}

static int32_t y_of(int32_t lane)
{
    return TOP + lane * (LANE + GAP);
}

static void draw_axes(const struct lanes *l, const char *label)
{
    const struct simulation *s = l->page->simulation;
    struct text *out = l->page->out;
    const int32_t bottom = y_of(l->n);
    text_printf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s\">\n", WIDTH,
                bottom + AXIS, label);
    for (int32_t q = 0; q < 2 * s->plan->n_devices; q++) {
        if (l->lane[q] < 0)
            continue;
        text_printf(out,
                    "<rect class=\"lane\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/><text "
                    "x=\"0\" y=\"%d\">%s%s</text>\n",
                    LABELS, y_of(l->lane[q]), WIDTH - LABELS - 1, LANE, y_of(l->lane[q]) + 16,
                    html_text(l->page, device_name(s->plan, q % s->plan->n_devices).text),
                    q < s->plan->n_devices ? "" : " weights");
    }
    const double first = (double)(l->begin_ns - l->step->begin_ns),
                 span = (double)(l->end_ns - l->begin_ns), tick = round_step(span, TICKS);
    for (int64_t i = (int64_t)ceil(first / tick); (double)i * tick <= first + span; i++) {
        const double ns = (double)i * tick, x = x_of(l, l->step->begin_ns + (int64_t)ns);
        text_printf(out,
                    "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text class=\"soft\" x=\"%.1f\" "
                    "y=\"%d\" text-anchor=\"%s\">%.6g ms</text>\n",
                    x, TOP, bottom, x, bottom + 14, x > WIDTH - 40 ? "end" : "middle", as_ms(ns));
    }
}

/* Copies look alike wherever they are; what computes has its device's colour. */
static void class_of(const struct page *page, const struct event *e, char *class, size_t n)
{
    if (e->kind == EVENT_STEP)
        snprintf(class, n, "class=\"step\"");
    else if (e->kind == EVENT_RUN || e->kind == EVENT_MERGE)
        snprintf(class, n, "fill=\"var(--d%d)\"", html_colour(page, e->device));
    else
        snprintf(class, n, "class=\"copy\"");
}

/* One path for all records of a queue that look alike. */
static void draw_paths(const struct lanes *l)
{
    const struct simulation *s = l->page->simulation;
    for (int32_t q = 0; q < 2 * s->plan->n_devices; q++)
        for (int kind = 0; kind < EVENT_KINDS; kind++) {
            bool any = false;
            double drawn = 0; /* up to here; what is too narrow to see waits for its neighbours */
            for (int32_t i = l->step->first; i < l->step->first + l->step->n; i++) {
                const struct event *e = &s->events[i];
                char class[48];
                if (e->kind != kind || event_queue(s, e) != q || e->end_ns == e->begin_ns)
                    continue;
                const double x = fmax(x_of(l, e->begin_ns), drawn), end = x_of(l, e->end_ns);
                if (end - x < 0.02)
                    continue;
                class_of(l->page, e, class, sizeof class);
                if (!any)
                    text_printf(l->page->out, "<path %s d=\"", class);
                any = true;
                drawn = fmax(end, x + 0.3);
                text_printf(l->page->out, "M%.2f %dh%.2fv%dH%.2fz", x, y_of(l->lane[q]), drawn - x,
                            LANE, x);
            }
            if (any)
                text_printf(l->page->out, "\"/>\n");
        }
}

static void event_title(const struct page *page, const struct event *e)
{
    struct text *out = page->out;
    static const char *const kinds[EVENT_KINDS] = {
        "step", "", "merge of ", "upload of ", "download of ", "copy of ", "weights of "};
    text_printf(out, "%s%s", kinds[e->kind],
                e->op < 0 ? "" : html_text(page, page->simulation->graph.ops[e->op].name));
    if (e->parts > 1)
        text_printf(out, " %d/%d", e->part + 1, e->parts);
    text_printf(out, ", %.1f us", (double)(e->end_ns - e->begin_ns) / 1e3);
    if (e->wait_ns > 0)
        text_printf(out, " after waiting %.1f us", (double)e->wait_ns / 1e3);
}

/* Every record by itself, with its name where there is room. */
static void draw_records(const struct lanes *l)
{
    const struct simulation *s = l->page->simulation;
    struct text *out = l->page->out;
    for (int32_t i = l->step->first; i < l->step->first + l->step->n; i++) {
        const struct event *e = &s->events[i];
        const int32_t y = y_of(l->lane[event_queue(s, e)]);
        char class[48];
        if (e->end_ns <= l->begin_ns || e->begin_ns >= l->end_ns || e->end_ns == e->begin_ns)
            continue;
        const double x = x_of(l, e->begin_ns), width = fmax(x_of(l, e->end_ns) - x, 0.4);
        class_of(l->page, e, class, sizeof class);
        text_printf(out,
                    "<rect %s x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" "
                    "stroke=\"var(--bg)\" stroke-width=\"0.5\"><title>",
                    class, x, y, width, LANE);
        event_title(l->page, e);
        text_printf(out, "</title></rect>\n");
        const char *name =
            e->op >= 0 && e->kind == EVENT_RUN ? html_short_name(&s->graph.ops[e->op]) : NULL;
        if (!name || width < 6.5 * (double)strlen(name))
            continue;
        text_printf(out,
                    "<text class=\"in\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
                    x + width / 2, y + 16, html_text(l->page, name));
    }
}

/* From the first record of a layer to the end of its last. */
static bool find_layer(struct lanes *l, int32_t layer)
{
    const struct simulation *s = l->page->simulation;
    l->begin_ns = INT64_MAX;
    l->end_ns = 0;
    for (int32_t i = l->step->first; i < l->step->first + l->step->n; i++) {
        const struct event *e = &s->events[i];
        if (e->kind != EVENT_RUN || s->graph.ops[e->op].layer != layer)
            continue;
        l->begin_ns = min_i64(l->begin_ns, e->begin_ns);
        l->end_ns = max_i64(l->end_ns, e->end_ns);
    }
    return l->begin_ns < l->end_ns;
}

void html_timeline(const struct page *page, const struct simulated_step *step)
{
    static const char *const names[PHASE_COUNT] = {"Prefill", "Decode"};
    struct text *out = page->out;
    struct lanes l = {page, step, step->begin_ns, step->end_ns, {0}, 0};
    const int32_t layer = page->simulation->graph.n_layers / 2;
    if (step->end_ns <= step->begin_ns)
        return;
    find_lanes(&l);
    text_printf(out,
                "<figure><p><b>%s</b>, step %d: %d token%s, %.3f ms</p>\n<div "
                "class=\"scroll\">",
                names[step->phase], step->number + 1, step->size.tokens,
                step->size.tokens == 1 ? "" : "s", as_ms((double)(step->end_ns - step->begin_ns)));
    draw_axes(&l, "all records of the step");
    draw_paths(&l);
    text_printf(out, "</svg>\n");
    if (find_layer(&l, layer)) {
        text_printf(out, "<p class=\"soft\">layer %d</p>", layer);
        draw_axes(&l, "the records of one layer");
        draw_records(&l);
        text_printf(out, "</svg>\n");
    }
    text_printf(out, "</div></figure>\n");
}
