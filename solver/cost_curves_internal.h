/*
 * cost_curves_internal.h - the rows of a profile as curves, which the cost source of our executor
 * answers from: times in cost.c, memory in cost_memory.c.
 */
#ifndef OATO_COST_CURVES_INTERNAL_H
#define OATO_COST_CURVES_INTERNAL_H

#include "solver/cost_internal.h"

#include <string.h>

struct point {
    int32_t rows, seqs;
    int64_t depth;
    double ns;
    uint64_t workspace;
    const char *numerics;
};

struct curve {
    int32_t device;
    struct oato_op op;
    char key[OP_KEY_SIZE];
    bool supported;
    uint64_t prepared_bytes;
    int32_t first, n; /* points */
};

struct cost_model {
    struct cost_source source;
    const struct profile *profile;
    const char *classes; /* while it is made: as cost_create has it */
    struct curve *curves;
    int32_t n_curves;
    struct point *points;
    bool *no_class; /* [device]: decode's rows are of a library, too */
    uint8_t *kinds; /* [device][kind][dtype]: 0 unknown, 1 some shape is supported, 2 none is */
};

/* A class of a library of the device's vendor. */
static inline bool is_library(const char *numerics)
{
    return numerics && strchr(numerics, '.');
}

/* What is known of a kind and type on a device: cost_model.kinds. */
static inline uint8_t *kind_slot(const struct cost_model *c, int32_t device, int kind, int dtype)
{
    return &c->kinds[((size_t)device * OP_KIND_COUNT + (size_t)kind) * DT_COUNT + (size_t)dtype];
}

/* The operator's own; NULL: it has no row. */
const struct curve *curve_find(const struct cost_model *c, int32_t device,
                               const struct oato_op *op);

/* cost_memory.c: as cost_source has them. */
uint64_t cost_model_prepared(const void *context, int32_t device, const struct oato_op *op,
                             uint64_t file_bytes);
uint64_t cost_model_workspace(const void *context, int32_t device, const struct oato_op *op,
                              const struct op_size *size);

#endif
