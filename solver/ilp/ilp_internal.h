/*
 * ilp_internal.h - the placement ILP: columns and rows of GLPK in nanoseconds and bytes, one
 * careful run of its branch and bound, and the blocks and paths that it is made of.
 */
#ifndef OATO_ILP_INTERNAL_H
#define OATO_ILP_INTERNAL_H

#include "solver/solver.h"

#include <glpk.h>

/* "Not found in time". */
oato_status ilp_ended(struct ilp_clock *c, struct oato_error *err);

struct mip {
    glp_prob *lp;
    double scale;                 /* objective units per nanosecond */
    bool started;                 /* the LP has a basis */
    int branch_first, branch_end; /* columns to branch on before any other */
};

typedef oato_status ilp_run(void *search, struct oato_error *err);
/* Calls run, which uses GLPK with m, and frees m. When GLPK runs out of memory, run is left by a
 * jump: so while it calls GLPK, it must not hold memory that only its locals point to. */
oato_status ilp_guarded(ilp_run *run, void *search, struct mip *m, struct oato_error *err);

/* Begins anew. typical_ns: the size of the objective, at least 1, which is scaled to 10,000. */
void mip_init(struct mip *m, int64_t typical_ns);
/* From 0 to 1; from 0 on; 0 or 1; whole from 0 on. */
enum mip_kind { MIP_SHARE, MIP_FLOW, MIP_BINARY, MIP_COUNT };
int mip_column(struct mip *m, enum mip_kind kind, int64_t cost_ns);
int mip_row(struct mip *m, int kind, double lo, double hi);

/* From the values of the binary columns, value[1..columns], sets those of all others: each is in
 * its rows with -1 and gets what they demand. False: memory (of a) is short. */
bool mip_complete(const struct mip *m, struct arena *a, double *value);

/* Solves the relaxation, the start of branch and bound and of the walk. OATO_NEGATIVE: it has no
 * solution (the bound is INT64_MAX), or none was found in time (0). */
oato_status mip_relax(struct mip *m, struct ilp_clock *clock, struct ilp_result *result,
                      struct oato_error *err);
/* Branch and bound after mip_relax; warm (may be NULL) holds values[1..columns] of a known
 * solution. OATO_OK: the values are in glp_mip_col_val; bound_ns is set in every case.
 * OATO_NEGATIVE: no solution better than the warm one. */
oato_status mip_search(struct mip *m, double gap, struct ilp_clock *clock, const double *warm,
                       struct ilp_result *result, struct oato_error *err);

/* -------------------------------------------------------- blocks, and paths through them ------ */

enum { BLOCK_UNITS = 24, ENDS_MAX = SOLVER_DEVICES * SOLVER_DEVICES };

/* The options of a block's widest unit, grouped by class: options of a class read, write and use
 * the same devices, and differ only in time and bytes. Dominated options are left out. */
struct menu_item {
    int64_t ns;
    uint64_t bytes[SOLVER_DEVICES]; /* of constrained devices, else 0 */
    int32_t option;
};
struct menu_class {
    uint64_t key;     /* devices where its options read and write, and that they use */
    int32_t first, n; /* items */
};
struct menu {
    int32_t unit; /* within the block */
    struct menu_item *items;
    struct menu_class *classes;
    int32_t n_items, n_classes;
};

/* A placement of a block, except for the widest unit, of which only the class is chosen. */
struct frame {
    int64_t ns;
    uint64_t bytes[SOLVER_DEVICES];
    int16_t in, out; /* ends (struct path): of the previous block (-1: none), of this one */
    uint32_t uses;   /* devices besides the host, a bit each */
    int32_t class;
    uint16_t place[BLOCK_UNITS]; /* options */
};

/* A frame and a menu item: the placement of a whole block. */
struct pattern {
    int64_t ns;
    uint64_t bytes[SOLVER_DEVICES];
    int16_t in, out;
    uint32_t uses;
    int32_t frame, item;
    int column; /* in the LP, for the table's first block; the other blocks' columns follow */
};

/* The choices in a block and in all blocks equal to it. */
struct table {
    struct menu menu;
    struct frame *frames;
    int32_t n_frames;
    struct pattern *patterns; /* those combinations of frames and items in use so far */
    int32_t n;
    size_t cap;
    int32_t n_blocks;
};

struct block {
    int32_t first, last;         /* units; the separator before is first - 1 */
    int32_t first_edge, n_edges; /* in path.edges */
    int32_t table, ordinal;      /* among the blocks of its table */
    int row;                     /* flow: of end 0 at the block's beginning; block 0: the one */
    int used_row;                /* of device 0; 0: using a device is free */
};

struct path {
    const struct instance *in;
    struct arena arena;
    struct ilp_clock clock;
    struct block *blocks;
    struct table *tables;
    /* The end of a block is the pair of devices that have its last unit's output in prefill and in
     * decode. Number of each pair; -1: it does not occur. */
    int16_t end[SOLVER_DEVICES][SOLVER_DEVICES];
    int32_t n_ends;
    int32_t *edges, *block_of; /* edges in order of their block; block of a unit */
    int32_t *place;            /* scratch for pricing */
    int32_t n_blocks, n_tables;
    bool constrained[SOLVER_DEVICES];
    int64_t typical_ns; /* scale of the objective; at least 1 */
    int block_devices;  /* that a block may use besides the host, */
    bool restricted;    /* which are fewer than there are: bounds of blocks hold among such only */
    struct mip mip;
    int used[SOLVER_DEVICES];         /* columns: the device is used; 0: using it is free */
    int capacity_row[SOLVER_DEVICES]; /* 0: not constrained */
    int overflow[SOLVER_DEVICES];     /* columns that let the LP start with too little memory */
    const int16_t *route;             /* of every block the end that it must have; NULL: any */
    double *flow;    /* [block * n_ends + end]: share of the relaxation's paths with that end */
    double *planned; /* [block * n_devices + device]: bytes that the relaxation uses before it */
    double *use_ns;  /* [block * n_devices + device]: the block's share of the device's fixed price
                        in the relaxation; shares of all blocks sum to at most that price */
};

/* The first and the last unit that produce or read a value. */
void edge_ends(const struct instance *in, const struct edge *e, int32_t *lo, int32_t *hi);
/* True when both options read and write on the same devices. */
bool option_lies_as(const struct option *a, const struct option *b);
/* The end of a block whose last unit has this option. */
int16_t path_end(const struct path *p, const struct option *o);

/* Fills the menu of a block, and the frames of its table. False: memory is short. OATO_NEGATIVE:
 * there are too many ways to place the block. */
bool path_make_menu(struct path *p, const struct block *b, struct menu *m);
oato_status path_make_frames(struct path *p, const struct block *b, struct table *t,
                             struct oato_error *err);

/* Cuts the instance into blocks, with their frames and menus. OATO_NEGATIVE: it cannot be cut into
 * small enough blocks, or not in time. Call path_free in every case. */
oato_status path_cut(struct path *p, const struct instance *in, uint64_t deadline_ns,
                     struct oato_error *err);
void path_free(struct path *p);
struct pattern path_pattern(const struct table *t, int32_t frame, int32_t item);
/* Adds the pattern to the table; returns its number, or -1 when memory is short. */
int32_t path_append_pattern(struct table *t, int32_t frame, int32_t item);
/* The same unless the table already has it. */
int32_t path_add_pattern(struct table *t, int32_t frame, int32_t item);
/* Writes the options of a block's units that a pattern stands for. */
void path_read_pattern(const struct path *p, const struct block *b, const struct pattern *x,
                       int32_t *place);
/* The time and bytes of a block in a placement, as a pattern without frame and item. False: some
 * unit's option is not allowed. */
bool path_price_block(const struct path *p, const struct block *b, const int32_t *place,
                      struct pattern *out);
/* The number of a pattern that is the block's placement or better, added to the table if needed.
 * -1: some unit's option is not allowed, or memory is short. */
int32_t path_pattern_of(struct path *p, const struct block *b, const int32_t *place);

/* What takes ns and bytes, with the memory of constrained devices paid for. */
double path_paid_ns(const struct path *p, const double *ns_per_byte, int64_t ns,
                    const uint64_t *bytes);
/* Of lower bounds of paths, the one at the beginning of a block, after an end (-1: of no block). */
double *path_bound(const struct path *p, double *bounds, int32_t block, int32_t end);
/* At a price of memory, by table: what each frame costs at least, and the item of each class that
 * makes it so. */
struct priced {
    double **frame;
    int32_t **item;
};

bool path_price_tables(const struct path *p, const double *ns_per_byte, struct arena *a,
                       struct priced *out);
/* Lower bounds with memory at a price (Lagrange): of paths from the first block to an end of block
 * i - 1, and of paths from there to the last block. */
struct bounds {
    double *so_far, *onward; /* see path_bound */
    double memory_ns;        /* price of all memory, already subtracted from the bounds */
    struct arena arena;
};

/* Free the arena in every case. */
oato_status path_make_bounds(const struct path *p, const double *ns_per_byte, struct bounds *out,
                             struct oato_error *err);
/* Replaces the tables' patterns by all those that a path could use that beats cutoff_ns by more
 * than the gap, or by the `most` best of them. *pruned_ns: lower bound of paths with any other
 * pattern. OATO_NEGATIVE: some block has no pattern left. */
oato_status path_expand(struct path *p, const double *ns_per_byte, double cutoff_ns, int32_t most,
                        double *pruned_ns, struct oato_error *err);

/* Makes the rows of the LP and a column for each pattern. whole: for branch and bound; else columns
 * can be added later and memory may overflow. */
bool path_lp(struct path *p, bool whole);
/* Solves the relaxation over all possible patterns by column generation. It takes at most half of
 * the remaining time; the prices reached by then still bound all placements and lead to good ones.
 */
oato_status path_relax(struct path *p, double *ns_per_byte, struct ilp_result *result,
                       struct oato_error *err);

/* True when the route, if there is one, leads through such a pattern or frame of the block. */
static inline bool path_leads(const struct path *p, int32_t block, int16_t in, int16_t out)
{
    return !p->route || (p->route[block] == out && (!block || p->route[block - 1] == in));
}
/* Where the relaxation goes several ways at once: a route that takes one after the other, in order
 * of their ends or against it. False: it goes one way. */
bool path_route(const struct path *p, bool against, int16_t *route);
/* After path_relax: solves the relaxation again along p->route, for a walk there: sets the prices
 * and the memory that it plans for each block. OATO_NEGATIVE: nothing fits, or no time is left. */
oato_status path_relax_route(struct path *p, double *ns_per_byte, struct oato_error *err);

struct walk {
    const double *ns_per_byte; /* prices of the devices' memory, for bounds; not negative */
    int64_t cutoff_ns;         /* time of a known placement, without the host's fixed part */
    double gap;
    int32_t width;           /* maximum number of labels kept after a block */
    struct ilp_clock *clock; /* a walk that it stops has no result */
    /* results */
    bool found; /* place is a path faster than cutoff_ns */
    int64_t bound_ns;
};
/* Looks for paths through the tables' patterns faster than the cutoff; what it drops only lowers
 * the bound. */
oato_status path_walk(const struct path *p, struct walk *w, int32_t *place, struct oato_error *err);

#endif
