/*
 * neurons_plot.c - a neurons sidecar as an SVG: on the left, for each layer and for all together,
 * which share of the activations the most active neurons cause; on the right how few of them cause
 * 80 %, layer by layer. Where only experts were counted they take the neurons' place.
 */
#include "profiler/neurons_internal.h"

#include <stdlib.h>

enum {
    WIDTH = 960,
    HEIGHT = 470,
    TOP = 86, /* of both panels */
    SIDE = 310,
    LEFT = 64,
    BARS_LEFT = 450,
    BARS_WIDTH = 480,
    POINTS = 100 /* of a curve */
};

struct plot {
    const struct neurons *n;
    bool experts;
    int32_t layers;     /* with frequencies */
    const char *things; /* "neurons" */
    struct text *out;
};

static const float *freq_of(const struct plot *p, int32_t i)
{
    return p->experts ? p->n->layers[i].exp_freq : p->n->layers[i].ffn_freq;
}

static const int32_t *order_of(const struct plot *p, int32_t i)
{
    return p->experts ? p->n->layers[i].exp_order : p->n->layers[i].ffn_order;
}

static int32_t count_of(const struct plot *p, int32_t i)
{
    return p->experts ? p->n->layers[i].n_experts : p->n->layers[i].n_ff;
}

/* From violet at the first layer over green to yellow: told apart without colour vision, too. */
static void colour(struct text *out, int32_t i, int32_t n)
{
    static const int stops[3][3] = {{72, 40, 120}, {33, 145, 140}, {240, 175, 30}};
    const double at = n > 1 ? 2.0 * i / (n - 1) : 0;
    const int k = at < 1 ? 0 : 1;
    int c[3];
    for (int j = 0; j < 3; j++)
        c[j] = (int)(stops[k][j] + (at - k) * (stops[k + 1][j] - stops[k][j]));
    text_printf(out, "#%02x%02x%02x", (unsigned)c[0], (unsigned)c[1], (unsigned)c[2]);
}

static double x_of(double share)
{
    return LEFT + SIDE * share;
}

static double y_of(double share)
{
    return TOP + SIDE * (1 - share);
}

static void label(struct text *out, double x, double y, const char *anchor, const char *fmt,
                  double v)
{
    text_printf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    // NOLINTNEXTLINE(clang-diagnostic-format-nonliteral): of this file
    text_printf(out, fmt, v);
    text_printf(out, "</text>\n");
}

static void grid(struct text *out, double left, double width)
{
    for (int i = 0; i <= 5; i++) {
        text_printf(out, "<path class=\"g\" d=\"M%.1f %.1fh%.1f\"/>\n", left, y_of(i / 5.0), width);
        label(out, left - 6, y_of(i / 5.0) + 4, "end", "%.0f %%", 20.0 * i);
    }
}

/* The part of the sum that the first ones make, at POINTS shares of n. */
static void curve(struct text *out, const float *freq, const int32_t *order, int32_t n)
{
    double all = 0, sum = 0;
    int32_t at = 0;
    for (int32_t i = 0; i < n; i++)
        all += (double)freq[i];
    text_printf(out, "M%.1f %.1f", x_of(0), y_of(0));
    for (int i = 1; i <= POINTS; i++) {
        for (; at < (int64_t)n * i / POINTS; at++)
            sum += (double)freq[order[at]];
        if (at)
            text_printf(out, "L%.1f %.1f", x_of((double)at / n), y_of(all > 0 ? sum / all : 0));
    }
}

static void curves(const struct plot *p, const struct neurons_pooled *all)
{
    struct text *out = p->out;
    grid(out, LEFT, SIDE);
    for (int i = 0; i <= 5; i++)
        label(out, x_of(i / 5.0), TOP + SIDE + 18, "middle", "%.0f %%", 20.0 * i);
    for (int32_t i = 0, k = 0; i < p->n->n_layers; i++) {
        if (!freq_of(p, i))
            continue;
        text_printf(out, "<path class=\"c\" stroke=\"");
        colour(out, k++, p->layers);
        text_printf(out, "\" d=\"");
        curve(out, freq_of(p, i), order_of(p, i), count_of(p, i));
        text_printf(out, "\"><title>layer %d</title></path>\n", i);
    }
    const double share = neurons_share(all->freq, all->order, all->n, NEURONS_MOST);
    text_printf(out, "<path class=\"a\" d=\"");
    curve(out, all->freq, all->order, all->n);
    text_printf(out, "\"/>\n<path class=\"m\" d=\"M%d %.1fH%.1fV%d\"/>\n", LEFT, y_of(NEURONS_MOST),
                x_of(share), TOP + SIDE);
    text_printf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", x_of(share),
                y_of(NEURONS_MOST));
    const bool right = share < 0.5; /* of the line, where there is room */
    text_printf(
        out, "<text class=\"b\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">80 %% by %.1f %%</text>\n",
        x_of(share) + (right ? 8 : -8), y_of(0.04), right ? "start" : "end", 100 * share);
    text_printf(out,
                "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">share of the %s, the most active "
                "first</text>\n",
                LEFT + SIDE / 2, TOP + SIDE + 40, p->things);
}

static void bars(const struct plot *p)
{
    struct text *out = p->out;
    const double step = (double)BARS_WIDTH / p->layers, width = step > 3 ? step - 1.5 : step * 0.8;
    const int32_t every = (p->layers + 9) / 10;
    grid(out, BARS_LEFT, BARS_WIDTH);
    for (int32_t i = 0, k = 0; i < p->n->n_layers; i++) {
        if (!freq_of(p, i))
            continue;
        const double x = BARS_LEFT + step * k, share = neurons_share(freq_of(p, i), order_of(p, i),
                                                                     count_of(p, i), NEURONS_MOST);
        text_printf(out, "<path fill=\"");
        colour(out, k, p->layers);
        text_printf(out,
                    "\" d=\"M%.1f %dh%.1fV%.1fh-%.1fz\"><title>layer %d: %.1f %%</title></path>\n",
                    x, TOP + SIDE, width, y_of(share), width, i, 100 * share);
        if (k % every == 0)
            label(out, x + width / 2, TOP + SIDE + 18, "middle", "%.0f", i);
        k++;
    }
    text_printf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">layer</text>\n",
                BARS_LEFT + BARS_WIDTH / 2, TOP + SIDE + 40);
}

static void frame(const struct plot *p, const char *title)
{
    struct text *out = p->out;
    text_printf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
        "height=\"%d\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#333\">\n"
        "<style>.g{stroke:#ddd}.c{fill:none;stroke-width:1.2;opacity:.75}"
        ".a{fill:none;stroke:#000;stroke-width:2.5}"
        ".m{fill:none;stroke:#000;stroke-dasharray:4 3}"
        ".b{font-weight:bold}.t{font-size:17px;font-weight:bold}.h{font-size:13px}</style>\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
        "<text class=\"t\" x=\"16\" y=\"28\">",
        WIDTH, HEIGHT, WIDTH, HEIGHT);
    text_add_html(out, title, strlen(title));
    text_printf(out, "</text>\n<text x=\"16\" y=\"48\">");
    text_printf(out, "%d layers", p->layers);
    if (p->n->tokens)
        text_printf(out, ", %llu tokens counted", (unsigned long long)p->n->tokens);
    if (!p->experts && or_empty(p->n->activation)[0]) {
        text_printf(out, "; a neuron fires when |");
        text_add_html(out, p->n->activation, strlen(p->n->activation));
        text_printf(out, p->n->level > 0 ? "| is above its layer's %g %% quantile" : "| is not 0",
                    100 * p->n->level);
    }
    text_printf(
        out,
        "</text>\n<text class=\"h\" x=\"%d\" y=\"%d\">Share of activations: each layer, and "
        "all together (black)</text>\n"
        "<text class=\"h\" x=\"%d\" y=\"%d\">Share of a layer's %s that causes 80 %% of its "
        "activations</text>\n",
        LEFT - 48, TOP - 14, BARS_LEFT - 36, TOP - 14, p->things);
}

/* Neurons, or experts if more layers have these. */
static void choose(struct plot *p)
{
    int32_t layers[2] = {0, 0};
    for (int32_t i = 0; i < p->n->n_layers; i++) {
        layers[0] += p->n->layers[i].ffn_freq != NULL;
        layers[1] += p->n->layers[i].exp_freq != NULL;
    }
    p->experts = layers[1] > layers[0];
    p->layers = layers[p->experts];
    p->things = p->experts ? "experts" : "neurons";
}

oato_status neurons_plot(const struct neurons *n, const char *title, struct text *out,
                         struct oato_error *err)
{
    struct plot p = {.n = n, .out = out};
    struct neurons_pooled all;
    choose(&p);
    if (!p.layers)
        return oato_fail(err, OATO_EFILE,
                         "%s: has no frequencies, only an order; nothing can be drawn", title);
    if (neurons_pool(n, p.experts, &all)) {
        frame(&p, title);
        curves(&p, &all);
        bars(&p);
        text_printf(out, "</svg>\n");
    } else {
        out->failed = true;
    }
    neurons_pool_free(&all);
    return out->failed ? oato_fail_memory(err, out->len, "the plot") : OATO_OK;
}
