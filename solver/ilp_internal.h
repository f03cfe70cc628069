/*
 * ilp_internal.h - shared by the two formulations of the placement ILP: a matrix that grows row by
 * row, and one careful run of GLPK's branch and bound.
 */
#ifndef OATO_ILP_INTERNAL_H
#define OATO_ILP_INTERNAL_H

#include "solver/solver.h"

#include <glpk.h>

/* The deadline of a search. Checked in every loop that may be long; what is ended by it says so. */
struct ilp_clock {
    uint64_t deadline_ns; /* 0: none */
    bool ended;           /* it did end something */
};
/* True from the deadline on. */
bool ilp_late(struct ilp_clock *c);
/* "Not found in time". */
oato_status ilp_ended(struct ilp_clock *c, struct oato_error *err);

struct mip {
    glp_prob *lp;
    double scale;      /* objective units per nanosecond */
    int *row, *column; /* 1-based triplets, as GLPK wants them */
    double *value;
    size_t n, cap;
    bool failed, started;         /* memory was short; a basis is there */
    int branch_first, branch_end; /* columns to branch on before any other */
};

/* Calls run, which uses GLPK and frees what it made of it. False: GLPK gave up for lack of memory,
 * and the call did not return; mip.lp is gone, too, and must be set to NULL. So run holds no memory
 * that nobody else knows of while it calls GLPK. */
bool ilp_guarded(void (*run)(void *user), void *user);

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
 * solution (the bound is INT64_MAX), or none was found in time (0). */
oato_status mip_relax(struct mip *m, struct ilp_clock *clock, struct ilp_result *result,
                      struct oato_error *err);
/* Branch and bound after mip_relax; warm (may be NULL) holds values[1..columns] of a known
 * solution. OATO_OK: the values are in glp_mip_col_val; bound_ns is set in every case.
 * OATO_NEGATIVE: no solution better than the warm one. */
oato_status mip_search(struct mip *m, double gap, struct ilp_clock *clock, const double *warm,
                       struct ilp_result *result, struct oato_error *err);

/* ------------------------------------------------- blocks, and paths through them (path form) - */

enum { BLOCK_UNITS = 24, ENDS_MAX = SOLVER_DEVICES * SOLVER_DEVICES };

/* The options of a block's widest unit, those of a class together: a class reads, writes and uses
 * the same devices, so that within it only time and bytes differ. Dominated ones are left out. */
struct menu_item {
    int64_t ns;
    uint64_t bytes[SOLVER_DEVICES]; /* of constrained devices, else 0 */
    int32_t option;
};
struct menu_class {
    uint32_t key;     /* where its options read and write, and what they use */
    int32_t first, n; /* items */
};
struct menu {
    int32_t unit; /* within the block */
    struct menu_item *items;
    struct menu_class *classes;
    int32_t n_items, n_classes;
};

/* A way to place a block, but for the widest unit, of which only the class is chosen. */
struct frame {
    int64_t ns;
    uint64_t bytes[SOLVER_DEVICES];
    int16_t in, out; /* the end (struct path) of the block before, -1: none; and its own */
    uint8_t uses;    /* devices besides the host, a bit each */
    int32_t class;
    uint16_t place[BLOCK_UNITS]; /* options */
};

/* A frame with an item: all of a block. */
struct pattern {
    int64_t ns;
    uint64_t bytes[SOLVER_DEVICES];
    int16_t in, out;
    uint8_t uses;
    int32_t frame, item;
    int column; /* in the LP, for the first block of the table; those of the others follow */
};

/* What can be chosen in a block, and in all equal ones. */
struct table {
    struct menu menu;
    struct frame *frames;
    int32_t n_frames;
    struct pattern *patterns; /* of all that frames and menu make, those that matter so far */
    int32_t n, cap;
    int32_t n_blocks;
    int count; /* column that counts the uses of the first pattern; 0: one block has this table */
};

struct block {
    int32_t first, last;         /* units; the separator before is first - 1 */
    int32_t first_edge, n_edges; /* in path.edges */
    int32_t table, ordinal;      /* among the blocks of its table */
    int row;                     /* flow: of end 0 at the block's beginning; block 0: the one */
    int used_row;                /* of device 0; 0: no device costs anything to use */
};

struct path {
    const struct instance *in;
    struct arena arena;
    struct ilp_clock clock;
    struct block *blocks;
    struct table *tables;
    /* A block ends on the devices that have its last unit's output, in prefill and in decode: the
     * number of each such pair, of those that occur; -1: it does not. */
    int16_t end[SOLVER_DEVICES][SOLVER_DEVICES];
    int32_t n_ends;
    int32_t *edges, *block_of; /* edges in order of their block; block of a unit */
    int32_t *place;            /* scratch for pricing */
    int32_t n_blocks, n_tables;
    bool constrained[SOLVER_DEVICES];
    int block_devices; /* that a block may use besides the host, */
    bool restricted;   /* which are fewer than there are: bounds of blocks hold among such only */
    struct mip mip;
    int used[SOLVER_DEVICES]; /* columns: the device is used at all; 0: that costs nothing */
    int capacity_row[SOLVER_DEVICES]; /* 0: not constrained */
    int overflow[SOLVER_DEVICES];     /* columns that let the LP begin with too little memory */
    double *planned; /* [block * n_devices + device]: bytes that the relaxation uses before it */
    double *use_ns; /* [block * n_devices + device]: what the relaxation lets the block's use of the
                       device pay of its fixed price; over all blocks no more than that */
};

/* The first and the last unit that make or read a value. */
void edge_ends(const struct instance *in, const struct edge *e, int32_t *lo, int32_t *hi);
/* True when both read and write on the same devices. */
bool option_lies_as(const struct option *a, const struct option *b);
/* The number of the end that a block has whose last unit runs so. */
int16_t path_end(const struct path *p, const struct option *o);

/* Fills the menu of a block, and the frames of its table. False: memory is short. OATO_EUSAGE:
 * there are too many ways to place the block. */
bool path_make_menu(struct path *p, const struct block *b, struct menu *m);
oato_status path_make_frames(struct path *p, const struct block *b, struct table *t,
                             struct oato_error *err);

/* Cuts, and makes frames and menus. OATO_EUSAGE: the instance does not fall apart into blocks that
 * are small enough; OATO_NEGATIVE: nor was it cut in time. path_free in every case. */
oato_status path_cut(struct path *p, const struct instance *in, uint64_t deadline_ns,
                     struct oato_error *err);
void path_free(struct path *p);
struct pattern path_pattern(const struct table *t, int32_t frame, int32_t item);
/* Adds it to the table; returns its number, -1: memory is short. */
int32_t path_append_pattern(struct table *t, const struct pattern *x);
/* The same unless it is there. */
int32_t path_add_pattern(struct table *t, const struct pattern *x);
/* Writes the options of a block's units that a pattern stands for. */
void path_read_pattern(const struct path *p, const struct block *b, const struct pattern *x,
                       int32_t *place);
/* What a placement makes of a block, as a pattern without frame and item. False: a unit may not be
 * as it is placed. */
bool path_price_block(const struct path *p, const struct block *b, const int32_t *place,
                      struct pattern *out);
/* The number of a pattern that is the placement of the block, or better; added where it is not yet
 * one. -1: a unit may not be as it is placed, or memory is short. */
int32_t path_pattern_of(struct path *p, const struct block *b, const int32_t *place);

/* Lower bounds that memory at a price gives (Lagrange): of paths from the first block to an end of
 * block i - 1, and of ways on from there. */
struct path_bounds {
    double *so_far, *onward; /* [block * (n_ends + 1) + end + 1] */
    double memory_ns;        /* what all memory is worth; bounds are less this */
    struct arena arena;
};
oato_status path_bounds_make(const struct path *p, const double *ns_per_byte,
                             struct path_bounds *out, struct oato_error *err);
/* Replaces the tables' patterns by all that a path faster than cutoff_ns, by more than the gap, may
 * use, or by the `most` best of these. *pruned_ns: no path with any other pattern is faster.
 * OATO_NEGATIVE: some block has none. */
oato_status path_expand(struct path *p, const double *ns_per_byte, double cutoff_ns, int32_t most,
                        double *pruned_ns, struct oato_error *err);

/* Rows of the LP and the columns of all patterns in the tables; whole: for branch and bound, else
 * columns may be added later, and memory may overflow. */
bool path_lp(struct path *p, int64_t typical_ns, bool whole);
/* Solves the relaxation over all patterns that there could be, by adding those that improve it.
 * Half of the time that is left is for what comes after; the prices that are reached by then bound
 * all placements, too, and lead to good ones. */
oato_status path_relax(struct path *p, double *ns_per_byte, struct ilp_result *result,
                       struct oato_error *err);

struct walk {
    const double *ns_per_byte; /* prices of the devices' memory, for bounds; not negative */
    int64_t cutoff_ns;         /* a known request time, the host's fixed part left out */
    double gap;
    int32_t width;           /* most labels that are kept after a block */
    struct ilp_clock *clock; /* a walk that it ends finds and bounds nothing */
    /* results */
    bool found; /* place holds a path faster than cutoff_ns, of found_ns */
    int64_t found_ns, bound_ns;
};
/* Looks for paths through the tables' patterns faster than the cutoff; what it drops only lowers
 * the bound. */
oato_status path_walk(const struct path *p, struct walk *w, int32_t *place, struct oato_error *err);

/* Both leave place alone unless they return OATO_OK. OATO_EUSAGE from ilp_path: the instance does
 * not fall apart into blocks that are small enough. */
oato_status ilp_plain(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                      int32_t *place, struct ilp_result *result, struct oato_error *err);
oato_status ilp_path(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                     int32_t *place, struct ilp_result *result, struct oato_error *err);

#endif
