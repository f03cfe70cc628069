/*
 * ilp_path.c - the placement ILP for models, which are chains of layers: one choice variable per
 * (block, pattern) with a tabulated cost, instead of hundreds of linked binaries. A placement is a
 * path through the blocks of ilp_blocks.c whose ends meet, under one capacity row a device: a
 * shortest path with knapsacks, whose relaxation is nearly integral.
 *
 * The relaxation prices the devices' memory; with these prices a walk over the blocks
 * (ilp_walk.c) finds very good paths and often proves them within the gap. Branch and bound runs
 * only where it does not.
 */
#include "solver/ilp_internal.h"

#include <stdlib.h>
#include <string.h>

static void add_columns(struct path *p)
{
    const struct instance *in = p->in;
    for (int32_t d = 0; d < in->n_devices; d++)
        if (d != in->host && in->fixed[d].objective_ns > 0)
            p->used[d] = mip_column(&p->mip, MIP_SHARE, in->fixed[d].objective_ns);
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct table *t = &p->tables[p->blocks[i].table];
        p->blocks[i].column = glp_get_num_cols(p->mip.lp) + 1;
        for (int32_t k = 0; k < t->n; k++)
            mip_column(&p->mip, MIP_BINARY, t->patterns[k].ns);
    }
}

/* One pattern a block, and its beginning is the end of the pattern before. */
static void add_flow(struct path *p)
{
    const struct table *t = &p->tables[p->blocks[0].table];
    int row = mip_row(&p->mip, GLP_FX, 1, 1);
    for (int32_t k = 0; k < t->n; k++)
        mip_set(&p->mip, row, p->blocks[0].column + k, 1);
    for (int32_t i = 1; i < p->n_blocks; i++) {
        const struct table *before = &p->tables[p->blocks[i - 1].table];
        t = &p->tables[p->blocks[i].table];
        for (int32_t d = 0; d < p->in->n_devices; d++) {
            row = mip_row(&p->mip, GLP_FX, 0, 0);
            for (int32_t k = 0; k < before->n; k++)
                if (before->patterns[k].out == d)
                    mip_set(&p->mip, row, p->blocks[i - 1].column + k, 1);
            for (int32_t k = 0; k < t->n; k++)
                if (t->patterns[k].in == d)
                    mip_set(&p->mip, row, p->blocks[i].column + k, -1);
        }
    }
}

static void add_limits(struct path *p)
{
    for (int32_t d = 0; d < p->in->n_devices; d++) {
        uint64_t capacity = p->in->capacity[d];
        int row = p->constrained[d] ? mip_capacity_row(&p->mip, capacity) : 0;
        p->capacity_row[d] = row;
        for (int32_t i = 0; i < p->n_blocks; i++) {
            const struct block *b = &p->blocks[i];
            const struct table *t = &p->tables[b->table];
            int used = p->used[d] ? mip_row(&p->mip, GLP_UP, 0, 0) : 0;
            if (used)
                mip_set(&p->mip, used, p->used[d], -1);
            for (int32_t k = 0; k < t->n; k++) {
                if (row)
                    mip_set_bytes(&p->mip, row, b->column + k, t->patterns[k].bytes[d], capacity);
                if (used && (t->patterns[k].used >> d & 1))
                    mip_set(&p->mip, used, b->column + k, 1);
            }
        }
    }
}

/* How often each pattern is used by the blocks that share its table. Which of the equal blocks uses
 * it changes nothing, so that branching on blocks would search all permutations: the search
 * branches on these counts, which fix time and bytes, and blocks follow at no cost. */
static void add_counts(struct path *p)
{
    p->mip.branch_first = glp_get_num_cols(p->mip.lp) + 1;
    for (int32_t t = 0; t < p->n_tables; t++) {
        int32_t blocks = 0;
        for (int32_t i = 0; i < p->n_blocks; i++)
            blocks += p->blocks[i].table == t;
        if (blocks < 2)
            continue;
        p->tables[t].count = glp_get_num_cols(p->mip.lp) + 1;
        for (int32_t k = 0; k < p->tables[t].n; k++) {
            int row = mip_row(&p->mip, GLP_FX, 0, 0);
            mip_set(&p->mip, row, mip_column(&p->mip, MIP_COUNT, 0), -1);
            for (int32_t i = 0; i < p->n_blocks; i++)
                if (p->blocks[i].table == t)
                    mip_set(&p->mip, row, p->blocks[i].column + k, 1);
        }
    }
    p->mip.branch_end = glp_get_num_cols(p->mip.lp) + 1;
}

/* Columns of a placement: of each block the pattern that is it or dominates it. */
static bool warm_values(struct path *p, const int32_t *warm, double *value)
{
    memcpy(p->place, warm, sizeof(int32_t) * (size_t)p->in->n_units);
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct block *b = &p->blocks[i];
        const struct table *t = &p->tables[b->table];
        struct pattern own;
        bool found = false;
        if (!path_price_block(p, b, &own))
            return false;
        for (int32_t k = 0; k < t->n && !found; k++) {
            const struct pattern *c = &t->patterns[k];
            if (c->in != own.in || c->out != own.out || !path_dominates(p, c, &own))
                continue;
            value[b->column + k] = 1;
            if (t->count)
                value[t->count + k] += 1;
            for (int32_t d = 0; d < p->in->n_devices; d++)
                if (c->used >> d & 1)
                    value[p->used[d]] = 1;
            found = true;
        }
        if (!found)
            return false;
    }
    value[0] = 0; /* collected what has no column */
    return true;
}

static void read_placement(const struct path *p, int32_t *place)
{
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct block *b = &p->blocks[i];
        const struct table *t = &p->tables[b->table];
        for (int32_t k = 0; k < t->n; k++) {
            if (glp_mip_col_val(p->mip.lp, b->column + k) < 0.5)
                continue;
            for (int32_t u = b->first; u <= b->last; u++)
                place[u] = t->patterns[k].place[u - b->first];
        }
    }
}

/* What a byte of each device's memory is worth in the relaxation. */
static void memory_prices(const struct path *p, double *ns_per_byte)
{
    for (int32_t d = 0; d < p->in->n_devices; d++) {
        ns_per_byte[d] = 0;
        if (!p->capacity_row[d] || !p->in->capacity[d])
            continue;
        double dual = -glp_get_row_dual(p->mip.lp, p->capacity_row[d]);
        if (dual > 0)
            ns_per_byte[d] = dual / p->mip.scale / (double)p->in->capacity[d];
    }
}

enum { WALK_FAST = 64, WALK_WIDE = 8192, WALK_EFFORT = 10000000 };

/* Labels to keep so that the walk takes a few seconds at most, whatever the machine: a limit by the
 * clock would make plans differ. */
static int32_t wide(const struct path *p)
{
    int64_t patterns = 1;
    for (int32_t i = 0; i < p->n_blocks; i++)
        patterns += p->tables[p->blocks[i].table].n;
    int64_t width = (int64_t)WALK_EFFORT * p->in->n_devices / patterns;
    return (int32_t)min_i64(WALK_WIDE, max_i64(WALK_FAST, width));
}

/* A fast walk for a good cutoff, a wide one for the proof. *best_ns: the best known, place its
 * placement when *known. */
static oato_status walk_twice(const struct path *p, const struct ilp_options *o, int32_t *place,
                              bool *known, int64_t *best_ns, int64_t *bound_ns,
                              struct oato_error *err)
{
    double ns_per_byte[SOLVER_DEVICES];
    memory_prices(p, ns_per_byte);
    for (int i = 0; i < 2; i++) {
        struct walk w = {.ns_per_byte = ns_per_byte,
                         .cutoff_ns = *known ? *best_ns : INT64_MAX,
                         .gap = o->gap,
                         .width = i ? wide(p) : WALK_FAST};
        oato_status status = path_walk(p, &w, place, err);
        if (status)
            return status;
        if (w.found) {
            *known = true;
            *best_ns = w.found_ns;
        }
        if (*known) /* else nothing fits, which is for branch and bound to prove */
            *bound_ns = max_i64(*bound_ns, w.bound_ns);
        if (*known && (double)(*best_ns - *bound_ns) <= o->gap * (double)*best_ns)
            break;
    }
    return OATO_OK;
}

static oato_status search(struct path *p, const struct ilp_options *o, bool known, int32_t *place,
                          struct ilp_result *result, struct oato_error *err)
{
    double *value = calloc((size_t)glp_get_num_cols(p->mip.lp) + 1, sizeof *value);
    if (!value)
        return oato_fail_memory(err, 1u << 16, "the ILP");
    bool warmed = known && warm_values(p, place, value);
    oato_status status = mip_search(&p->mip, o, warmed ? value : NULL, result, err);
    if (!status)
        read_placement(p, place);
    else if (status == OATO_NEGATIVE && known)
        status = OATO_OK; /* place is the best */
    free(value);
    return status;
}

static oato_status solve(struct path *p, const struct ilp_options *o, const int32_t *warm,
                         int32_t *best, struct ilp_result *result, struct oato_error *err)
{
    const struct instance *in = p->in;
    int64_t fixed_ns = in->fixed[in->host].objective_ns, best_ns = 0;
    bool known = warm;
    if (!mip_init(&p->mip, ilp_typical_ns(in, warm)))
        return oato_fail_memory(err, 1u << 16, "the ILP");
    add_columns(p);
    add_flow(p);
    add_limits(p);
    add_counts(p);
    oato_status status = mip_relax(&p->mip, o, result, err);
    if (status)
        return status;
    if (warm) {
        memcpy(best, warm, sizeof *best * (size_t)in->n_units);
        best_ns = instance_price(in, warm).objective_ns - fixed_ns;
    }
    if (!o->no_walk)
        status = walk_twice(p, o, best, &known, &best_ns, &result->bound_ns, err);
    bool proven = known && (double)(best_ns - result->bound_ns) <= o->gap * (double)best_ns;
    if (!status && !proven)
        status = search(p, o, known, best, result, err);
    result->bound_ns += fixed_ns;
    return status;
}

oato_status ilp_path(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                     int32_t *place, struct ilp_result *result, struct oato_error *err)
{
    struct path p;
    oato_status status = path_cut(&p, in, err);
    int32_t *best = arena_alloc(&p.arena, (size_t)in->n_units + 1, sizeof *best);
    if (!status && !best)
        status = oato_fail_memory(err, sizeof *best * (size_t)in->n_units, "the ILP");
    if (!status && best)
        status = solve(&p, o, warm, best, result, err);
    if (!status && best)
        memcpy(place, best, sizeof *best * (size_t)in->n_units);
    if (p.mip.lp)
        mip_free(&p.mip);
    path_free(&p);
    return status;
}
