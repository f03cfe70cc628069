/*
 * placed_plan.h - plans made by hand for tests of the exports: on two GPUs and the CPU between
 * them.
 */
#ifndef OATO_PLACED_PLAN_H
#define OATO_PLACED_PLAN_H

#include "planfmt/export.h"
#include "random_planfmt.h"

enum { PLACED_LAYERS = 12, PLACED_DEVICES = 3, PLACED_CPU = 1 }; /* cuda:0, cpu:0, cuda:1 */

struct placed {
    struct plan plan;
    int32_t *tensor;           /* device of each tensor */
    int32_t kv[PLACED_LAYERS]; /* and of each layer's KV */
};

/* A header-only model in the scratch directory, whose name a shell must quote; the test fails when
 * it can't be made. */
struct model *placed_model(const char *architecture, bool tied);
/* Every operator on the device that `choose` gives; the lookup of tokens on the CPU. plan_free it.
 */
void plan_placed(struct placed *x, const struct model *m,
                 int32_t (*choose)(const struct graph_op *op));

#endif
