/*
 * power_law.h - made-up neurons sidecars whose frequencies follow a power law, as those of real
 * models do: few neurons cause most activations. Used by oato-make-neurons and by tests.
 */
#ifndef OATO_POWER_LAW_H
#define OATO_POWER_LAW_H

#include "planfmt/planfmt.h"

#define POWER_LAW_SHARE 0.8 /* of the activations, that are caused by the hot ones */

struct power_law {
    double hot;         /* share of the neurons that cause 80 % of the activations */
    double mean;        /* mean frequency of a neuron */
    double spread;      /* layers' means lie within mean * (1 - spread) and mean * (1 + spread) */
    double hot_experts; /* as hot, for experts; their mean is what the model uses */
    uint64_t seed;      /* of the order of neurons in each layer and of the spread */
};

/* 26 % cause 80 %, one neuron of ten fires. */
struct power_law power_law_default(void);
/* n frequencies, falling: min(1, c / rank^a) with a and c such that both figures hold. False when
 * no such law has them: the hot ones would have to fire more often than always, or less often than
 * the others. */
bool power_law_fill(double hot, double mean, int32_t n, float *freq);
/* A sidecar for the model, the frequencies of each layer in an order of its own. OATO_EUSAGE when
 * the law has no such figures, OATO_EFILE when the model has no feed-forward layers that we know.
 * neurons_free it. */
oato_status power_law_neurons(const struct gguf *g, const struct power_law *law,
                              struct neurons *out, struct oato_error *err);

#endif
