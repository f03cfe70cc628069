/*
 * neurons_internal.h - figures of a neurons sidecar, for the table (neurons_report.c) and the plot
 * (neurons_plot.c).
 */
#ifndef OATO_NEURONS_INTERNAL_H
#define OATO_NEURONS_INTERNAL_H

#include "profiler/profiler.h"

#define NEURONS_MOST 0.8 /* of activations: how few neurons make so many */

double neurons_mean(const float *freq, int32_t n);

/* Frequencies of all layers together. */
struct neurons_pooled {
    float *freq;
    int32_t *order, n;
};
/* Of neurons or of experts; n 0: the file has none. False: memory is short. neurons_pool_free it in
 * any case. */
bool neurons_pool(const struct neurons *n, bool experts, struct neurons_pooled *out);
void neurons_pool_free(struct neurons_pooled *p);

#endif
