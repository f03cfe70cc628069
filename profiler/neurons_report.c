/*
 * neurons_report.c - what a neurons sidecar says, as a table for people or one line of JSON: how
 * active the neurons and experts of each layer are, and how few of them do most of the work.
 */
#include "profiler/neurons_internal.h"

#include <stdlib.h>

#define MOST NEURONS_MOST

double neurons_share(const float *freq, const int32_t *order, int32_t n, double part)
{
    double all = 0, sum = 0;
    for (int32_t i = 0; i < n; i++)
        all += (double)freq[i];
    for (int32_t i = 0; i < n && all > 0; i++) {
        const double f = (double)freq[order[i]], wanted = part * all;
        if (sum + f >= wanted) /* within neuron i */
            return (i + (f > 0 ? (wanted - sum) / f : 0)) / n;
        sum += f;
    }
    return all > 0;
}

double neurons_mean(const float *freq, int32_t n)
{
    double sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)freq[i];
    return n ? sum / n : 0;
}

/* ------------------------------------------------------------------------------ all layers */

bool neurons_pool(const struct neurons *n, bool experts, struct neurons_pooled *out)
{
    size_t all = 1, at = 0;
    *out = (struct neurons_pooled){0};
    for (int32_t i = 0; i < n->n_layers; i++) {
        const struct neurons_layer *l = &n->layers[i];
        if (experts ? l->exp_freq != NULL : l->ffn_freq != NULL)
            all += (size_t)(experts ? l->n_experts : l->n_ff);
    }
    if (all > INT32_MAX)
        return false;
    out->freq = malloc(all * sizeof *out->freq);
    out->order = malloc(all * sizeof *out->order);
    if (!out->freq || !out->order)
        return false;
    for (int32_t i = 0; i < n->n_layers; i++) {
        const struct neurons_layer *l = &n->layers[i];
        const float *freq = experts ? l->exp_freq : l->ffn_freq;
        const size_t count = (size_t)(experts ? l->n_experts : l->n_ff);
        if (!freq)
            continue;
        memcpy(out->freq + at, freq, count * sizeof *freq);
        at += count;
    }
    out->n = (int32_t)at;
    neurons_order(out->freq, out->n, out->order);
    return true;
}

void neurons_pool_free(struct neurons_pooled *p)
{
    free(p->freq);
    free(p->order);
}

/* ---------------------------------------------------------------------------------- JSON -- */

static void layer_json(const struct neurons_layer *l, int32_t i, struct text *out)
{
    json_open(out, NULL, '{');
    json_add(out, JSON("layer", i));
    if (l->ffn_order)
        json_add(out, JSON("neurons", l->n_ff));
    if (l->ffn_freq)
        json_add(out, JSON("active", neurons_mean(l->ffn_freq, l->n_ff)),
                 JSON("share_80", neurons_share(l->ffn_freq, l->ffn_order, l->n_ff, MOST)),
                 JSON("threshold", l->ffn_threshold));
    if (l->ffn_hot)
        json_add(out, JSON("hot", l->ffn_hot));
    if (l->predictor)
        json_add_object(out, "predictor", JSON("rank", l->predictor->down->ne[1]),
                        JSON("recall", l->predictor->recall),
                        JSON("predicted", l->predictor->predicted),
                        JSON("active", l->predictor->active));
    if (l->exp_freq)
        json_add(
            out, JSON("experts", l->n_experts),
            JSON("experts_used", neurons_mean(l->exp_freq, l->n_experts) * l->n_experts),
            JSON("experts_share_80", neurons_share(l->exp_freq, l->exp_order, l->n_experts, MOST)));
    json_close(out, '}');
}

static void report_json(const struct neurons *n, const char *path,
                        const struct neurons_pooled pooled[2], struct text *out)
{
    json_open(out, NULL, '{');
    json_add(out, JSON("file", path), JSON("source", or_empty(n->source)),
             JSON("tokens", n->tokens), json_bool("finished", n->tokens >= n->text_tokens),
             JSON("activation", or_empty(n->activation)), JSON("level", n->level));
    if (pooled[0].n)
        json_add(out, JSON("share_80",
                           neurons_share(pooled[0].freq, pooled[0].order, pooled[0].n, MOST)));
    if (pooled[1].n)
        json_add(out, JSON("experts_share_80",
                           neurons_share(pooled[1].freq, pooled[1].order, pooled[1].n, MOST)));
    json_open(out, "layers", '[');
    for (int32_t i = 0; i < n->n_layers; i++)
        if (neurons_layer(n, i))
            layer_json(&n->layers[i], i, out);
    json_close(out, ']');
    json_close(out, '}');
    text_printf(out, "\n");
}

/* --------------------------------------------------------------------------------- table -- */

static void head(const struct neurons *n, const char *path, struct text *out)
{
    text_printf(out, "%s: %s", path, or_empty(n->source)[0] ? n->source : "of unknown source");
    if (n->tokens)
        text_printf(out, ", %llu tokens", (unsigned long long)n->tokens);
    if (n->tokens < n->text_tokens)
        text_printf(out, " of %llu: unfinished", (unsigned long long)n->text_tokens);
    if (or_empty(n->activation)[0])
        text_printf(out, "; a neuron fires when |%s(x)| %s", n->activation,
                    n->level > 0 ? "is above the layer's threshold, its" : "is not 0");
    if (n->level > 0)
        text_printf(out, " %g %% quantile", 100 * n->level);
    text_printf(out, "\n");
}

static void layer_row(const struct neurons_layer *l, int32_t i, struct text *out)
{
    if (l->ffn_freq)
        text_printf(out, "%5d %8d neurons, %5.1f %% fire at a token, %5.1f %% of them make 80 %%",
                    i, l->n_ff, 100 * neurons_mean(l->ffn_freq, l->n_ff),
                    100 * neurons_share(l->ffn_freq, l->ffn_order, l->n_ff, MOST));
    else if (l->ffn_order)
        text_printf(out, "%5d %8d neurons, only their order is known, %d hot", i, l->n_ff,
                    l->ffn_hot);
    if (l->ffn_freq && l->ffn_threshold > 0)
        text_printf(out, ", threshold %.4g", (double)l->ffn_threshold);
    if (l->ffn_order)
        text_printf(out, "\n");
    if (l->predictor)
        text_printf(
            out,
            "%5d predictor of rank %lld: %.1f %% of mass in %.1f %% of the neurons (%.1f %% "
            "are active)\n",
            i, (long long)l->predictor->down->ne[1], 100 * (double)l->predictor->recall,
            100 * (double)l->predictor->predicted, 100 * (double)l->predictor->active);
    if (l->exp_freq)
        text_printf(out,
                    "%5d %8d experts, %5.1f   chosen by a token, %5.1f %% of them make 80 %%\n", i,
                    l->n_experts, neurons_mean(l->exp_freq, l->n_experts) * l->n_experts,
                    100 * neurons_share(l->exp_freq, l->exp_order, l->n_experts, MOST));
}

void neurons_report(const struct neurons *n, const char *path, bool json, struct text *out)
{
    static const char *const words[2][2] = {{"activations", "neurons"}, {"choices", "experts"}};
    struct neurons_pooled pooled[2] = {{0}};
    if (!neurons_pool(n, false, &pooled[0]) || !neurons_pool(n, true, &pooled[1])) {
        out->failed = true;
    } else if (json) {
        report_json(n, path, pooled, out);
    } else {
        head(n, path, out);
        text_printf(out, "layer\n");
        for (int32_t i = 0; i < n->n_layers; i++)
            layer_row(&n->layers[i], i, out);
        for (int i = 0; i < 2; i++)
            if (pooled[i].n)
                text_printf(out, "all layers: 80 %% of %s are those of %.1f %% of the %s\n",
                            words[i][0],
                            100 * neurons_share(pooled[i].freq, pooled[i].order, pooled[i].n, MOST),
                            words[i][1]);
    }
    neurons_pool_free(&pooled[0]);
    neurons_pool_free(&pooled[1]);
}
