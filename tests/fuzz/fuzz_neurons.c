/*
 * fuzz_neurons.c - whatever the bytes, the reader of sidecars refuses them with a message or gives
 * numbers that are what they say: frequencies from 0 to 1, orders that name every neuron once,
 * rising quantiles, predictors whose matrices fit each other and are there.
 */
#include "planfmt/planfmt.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_order(const int32_t *order, const float *freq, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++) {
        if (order[i] < 0 || order[i] >= n)
            abort();
        sum += order[i];
        if (freq && (!(freq[i] >= 0 && freq[i] <= 1) || (i && freq[order[i - 1]] < freq[order[i]])))
            abort();
    }
    if (sum != (int64_t)n * (n - 1) / 2)
        abort();
}

static void check_magnitudes(const struct neurons_magnitudes *m)
{
    for (int32_t i = 1; i < NEURONS_QUANTILES; i++)
        if (!(m->quantiles[0] >= 0 && m->quantiles[i] >= m->quantiles[i - 1]))
            abort();
    for (int32_t i = 0; m->counts && i < NEURONS_BINS; i++)
        if (m->counts[i] < 0)
            abort();
}

static void check_predictor(const struct neurons_predictor *p)
{
    const struct gguf_tensor *const all[] = {p->down, p->up, p->bias};
    if (p->down->ne[1] != p->up->ne[0] || (p->bias && p->bias->ne[0] != p->up->ne[1]))
        abort();
    for (int i = 0; i < 3; i++) {
        const volatile uint8_t *bytes = all[i] ? all[i]->data : NULL;
        if (bytes) /* the sanitizer stops where they are not */
            (void)(bytes[0] + bytes[all[i]->bytes - 1]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct oato_error err = {.text = ""};
    struct neurons n;
    const oato_status status = neurons_load_memory(data, bytes, "fuzz", &n, &err);
    if (status) {
        if (status != OATO_EFILE || err.status != OATO_EFILE || !err.text[0] || n.arena.blocks)
            abort();
        return 0;
    }
    for (int32_t i = 0; i < n.n_layers; i++) {
        const struct neurons_layer *l = neurons_layer(&n, i);
        if (l && l->ffn_order)
            check_order(l->ffn_order, l->ffn_freq, l->n_ff);
        if (l && l->exp_order)
            check_order(l->exp_order, l->exp_freq, l->n_experts);
        if (neurons_predictor(&n, i))
            check_predictor(neurons_predictor(&n, i));
    }
    for (int32_t i = 0; i < n.n_magnitudes; i++)
        check_magnitudes(&n.magnitudes[i]);
    neurons_free(&n);
    return 0;
}
