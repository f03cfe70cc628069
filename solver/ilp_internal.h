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

/* Solves the relaxation, which branch and bound and the walk begin from. OATO_NEGATIVE: it has no
 * solution, or none was found in time. */
oato_status mip_relax(struct mip *m, const struct ilp_options *o, struct ilp_result *result,
                      struct oato_error *err);
/* Branch and bound after mip_relax; warm (may be NULL) holds values[1..columns] of a known
 * solution. OATO_OK: the values are in glp_mip_col_val; bound_ns and timed_out are set in every
 * case. OATO_NEGATIVE: no solution better than the warm one. */
oato_status mip_search(struct mip *m, const struct ilp_options *o, const double *warm,
                       struct ilp_result *result, struct oato_error *err);

/* ------------------------------------------------- blocks, and paths through them (path form) - */

enum { BLOCK_UNITS = 24 };

struct pattern {
    int64_t ns;
    uint64_t bytes[SOLVER_DEVICES]; /* of constrained devices, else 0 */
    int8_t in, out;                 /* device of the separators before (-1: none) and at the end */
    uint32_t used;                  /* devices, a bit each */
    uint8_t place[BLOCK_UNITS];
};

struct table {
    struct pattern *patterns;
    int32_t n, cap;
    int count; /* column that counts the uses of the first pattern; 0: one block has this table */
};

struct block {
    int32_t first, last;         /* units; the separator before is first - 1 */
    int32_t first_edge, n_edges; /* in path.edges */
    int32_t table;
    int column; /* of the table's first pattern */
};

struct path {
    const struct instance *in;
    struct arena arena;
    struct block *blocks;
    struct table *tables;
    int32_t *edges, *block_of; /* edges in order of their block; block of a unit */
    int32_t *place;            /* scratch for pricing */
    int32_t n_blocks, n_tables;
    bool constrained[SOLVER_DEVICES];
    struct mip mip;
    int used[SOLVER_DEVICES]; /* columns: the device is used at all; 0: that costs nothing */
    int capacity_row[SOLVER_DEVICES]; /* 0: not constrained */
};

/* Cuts and tabulates. OATO_EUSAGE: the instance does not fall apart into blocks that are small
 * enough. path_free in every case. */
oato_status path_cut(struct path *p, const struct instance *in, struct oato_error *err);
void path_free(struct path *p);
/* The pattern that p->place makes of a block. False when a unit may not be where it is. */
bool path_price_block(const struct path *p, const struct block *b, struct pattern *out);
/* a is never worse than b where both have the same ends. */
bool path_dominates(const struct path *p, const struct pattern *a, const struct pattern *b);

struct walk {
    const double *ns_per_byte; /* prices of the devices' memory, for bounds; not negative */
    int64_t cutoff_ns;         /* a known request time, the host's fixed part left out */
    double gap;
    int32_t width; /* most labels that are kept after a block */
    /* results */
    bool found; /* place holds a path faster than cutoff_ns, of found_ns */
    int64_t found_ns, bound_ns;
};
/* Looks for paths faster than the cutoff; what it drops only lowers the bound. */
oato_status path_walk(const struct path *p, struct walk *w, int32_t *place, struct oato_error *err);

/* Both leave place alone unless they return OATO_OK. OATO_EUSAGE from ilp_path: the instance does
 * not fall apart into blocks that are small enough. */
oato_status ilp_plain(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                      int32_t *place, struct ilp_result *result, struct oato_error *err);
oato_status ilp_path(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                     int32_t *place, struct ilp_result *result, struct oato_error *err);

#endif
