/*
 * ilp_internal.h - shared by the two formulations of the placement ILP: a matrix that grows row by
 * row, and one careful run of GLPK's branch and bound.
 */
#ifndef OATO_ILP_INTERNAL_H
#define OATO_ILP_INTERNAL_H

#include "solver/solver.h"

#include <glpk.h>

struct mip {
    glp_prob *lp;
    double scale;      /* objective units per nanosecond */
    int *row, *column; /* 1-based triplets, as GLPK wants them */
    double *value;
    size_t n, cap;
    bool failed;                  /* memory was short */
    int branch_first, branch_end; /* columns to branch on before any other */
};

/* typical_ns: the size of the objective, which is scaled to 10,000. */
bool mip_init(struct mip *m, int64_t typical_ns);
void mip_free(struct mip *m);
enum mip_kind { MIP_SHARE, MIP_BINARY, MIP_COUNT }; /* 0 to 1, 0 or 1, whole from 0 on */
int mip_column(struct mip *m, enum mip_kind kind, int64_t cost_ns);
int mip_row(struct mip *m, int kind, double lo, double hi);
void mip_set(struct mip *m, int row, int column, double value);
/* A row for the capacity of a device: entries are added with mip_set_bytes. */
int mip_capacity_row(struct mip *m, uint64_t capacity);
void mip_set_bytes(struct mip *m, int row, int column, uint64_t bytes, uint64_t capacity);

/* What the objective is about: the warm placement's time, else that of every unit at its dearest.
 */
int64_t ilp_typical_ns(const struct instance *in, const int32_t *warm);
/* True when the units could overfill the device, so that a capacity row is needed. */
bool ilp_constrained(const struct instance *in, int32_t device);

/* Solves; warm (may be NULL) holds values[1..columns] of a known solution. OATO_OK: the values are
 * in glp_mip_col_val; *bound_ns and *timed_out are set in every case. OATO_NEGATIVE: no solution
 * better than the warm one. */
oato_status mip_solve(struct mip *m, const struct ilp_options *o, const double *warm,
                      struct ilp_result *result, struct oato_error *err);

/* Both leave place alone unless they return OATO_OK. OATO_EUSAGE from ilp_path: the instance does
 * not fall apart into blocks that are small enough. */
oato_status ilp_plain(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                      int32_t *place, struct ilp_result *result, struct oato_error *err);
oato_status ilp_path(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                     int32_t *place, struct ilp_result *result, struct oato_error *err);

#endif
