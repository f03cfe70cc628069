/*
 * columns.c - the linear program of the path form, and its relaxation by column generation: of
 * the many patterns of a block only those become columns that improve the current solution, which
 * are found from each frame and the cheapest item of its class. So the relaxation covers all
 * patterns, however finely a unit can be split.
 */
#include "solver/ilp/ilp_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Adds the pattern of a frame with the item that it is cheapest with. */
static bool add_cheapest_of(struct path *p, const struct priced *at, int32_t table, int32_t frame)
{
    struct table *t = &p->tables[table];
    return path_add_pattern(t, frame, at->item[table][t->frames[frame].class]) >= 0;
}

/* ------------------------------------------------------------------- the linear programme -- */

enum { COLUMN_ROWS = 3 + 2 * SOLVER_DEVICES };

/* GLPK accepts a row that is exceeded by 1e-7 of its size: above this many bytes that could be a
 * byte, and the capacity is taken a millionth smaller. */
static const uint64_t EXACT_BYTES = 1000000;

/* A row for the capacity of a device is at most this; its entries are bytes_of. */
static double capacity_of(uint64_t capacity)
{
    return capacity > EXACT_BYTES ? 1 - 1e-6 : capacity ? 1 : 0;
}

static double bytes_of(uint64_t bytes, uint64_t capacity)
{
    return (double)bytes / (double)(capacity ? capacity : 1);
}

/* Column k of a block is its pattern k: one of the first block's, whose beginning is the end of the
 * one before, within the memory; devices that are used are paid for. */
static void add_column(struct path *p, const struct block *b, const struct pattern *x)
{
    int rows[COLUMN_ROWS], n = 0, i = (int)(b - p->blocks);
    double values[COLUMN_ROWS];
    rows[++n] = x->in < 0 ? b->row : b->row + x->in;
    values[n] = x->in < 0 ? 1 : -1;
    if (i + 1 < p->n_blocks) {
        rows[++n] = b[1].row + x->out;
        values[n] = 1;
    }
    for (int32_t d = 0; d < p->in->n_devices; d++) {
        if (p->capacity_row[d] && x->bytes[d]) {
            rows[++n] = p->capacity_row[d];
            values[n] = bytes_of(x->bytes[d], p->in->capacity[d]);
        }
        if (p->used[d] && x->uses >> d & 1) {
            rows[++n] = b->used_row + d;
            values[n] = 1;
        }
    }
    glp_set_mat_col(p->mip.lp, x->column + b->ordinal, n, rows, values);
    if (!path_leads(p, i, x->in, x->out))
        glp_set_col_bnds(p->mip.lp, x->column + b->ordinal, GLP_FX, 0, 0);
}

/* The columns of the table's patterns from `first` on, one for each block. The flow says at most 1:
 * a bound of the relaxation's columns would hide better patterns. */
static void add_columns(struct path *p, int32_t table, int32_t first, enum mip_kind kind)
{
    struct table *t = &p->tables[table];
    for (int32_t k = first; k < t->n; k++) {
        t->patterns[k].column = glp_get_num_cols(p->mip.lp) + 1;
        for (int32_t j = 0; j < t->n_blocks; j++)
            mip_column(&p->mip, kind, t->patterns[k].ns);
    }
    for (int32_t i = 0; i < p->n_blocks; i++)
        for (int32_t k = first; p->blocks[i].table == table && k < t->n; k++)
            add_column(p, &p->blocks[i], &t->patterns[k]);
}

static bool add_rows(struct path *p)
{
    const struct instance *in = p->in;
    bool fixed = false;
    for (int32_t d = 0; d < in->n_devices; d++) {
        p->used[d] = d != in->host && in->fixed[d].objective_ns > 0
                         ? mip_column(&p->mip, MIP_SHARE, in->fixed[d].objective_ns)
                         : 0;
        fixed = fixed || p->used[d];
        p->capacity_row[d] =
            p->constrained[d] ? mip_row(&p->mip, GLP_UP, 0, capacity_of(in->capacity[d])) : 0;
    }
    for (int32_t i = 0; i < p->n_blocks; i++) {
        struct block *b = &p->blocks[i];
        b->row = mip_row(&p->mip, GLP_FX, !i, !i);
        for (int32_t e = 1; i && e < p->n_ends; e++)
            mip_row(&p->mip, GLP_FX, 0, 0);
        b->used_row = 0;
        for (int32_t d = 0; fixed && d < in->n_devices; d++) {
            int row = mip_row(&p->mip, GLP_UP, 0, 0);
            b->used_row = b->used_row ? b->used_row : row;
        }
    }
    int *rows = arena_alloc(&p->arena, (size_t)p->n_blocks + 1, sizeof *rows);
    double *values = arena_alloc(&p->arena, (size_t)p->n_blocks + 1, sizeof *values);
    for (int32_t d = 0; rows && values && d < in->n_devices; d++) {
        for (int32_t i = 0; i < p->n_blocks; i++) {
            rows[i + 1] = p->blocks[i].used_row + d;
            values[i + 1] = -1;
        }
        if (p->used[d])
            glp_set_mat_col(p->mip.lp, p->used[d], p->n_blocks, rows, values);
    }
    return rows && values;
}

static const double OVERFLOW_COST = 1000; /* of the typical time, for all of a device's memory */

static void add_overflow(struct path *p)
{
    for (int32_t d = 0; d < p->in->n_devices; d++) {
        if (!p->capacity_row[d])
            continue;
        const int rows[2] = {0, p->capacity_row[d]};
        const double values[2] = {0, -1};
        p->overflow[d] = mip_column(&p->mip, MIP_FLOW, 0);
        glp_set_obj_coef(p->mip.lp, p->overflow[d],
                         OVERFLOW_COST * p->mip.scale * (double)p->typical_ns);
        glp_set_mat_col(p->mip.lp, p->overflow[d], 1, rows, values);
    }
}

/* How often each pattern is used by the blocks that share its table. Which of the equal blocks uses
 * it changes nothing, so that branching on blocks would search all permutations: the search
 * branches on these counts, which fix time and bytes, and blocks follow at no cost. */
static bool add_counts(struct path *p)
{
    int *columns = arena_alloc(&p->arena, (size_t)p->n_blocks + 2, sizeof *columns);
    double *ones = arena_alloc(&p->arena, (size_t)p->n_blocks + 2, sizeof *ones);
    p->mip.branch_first = glp_get_num_cols(p->mip.lp) + 1;
    for (int32_t i = 0; columns && ones && i < p->n_tables; i++) {
        const struct table *t = &p->tables[i];
        for (int32_t k = 0; t->n_blocks > 1 && k < t->n; k++) {
            int row = mip_row(&p->mip, GLP_FX, 0, 0);
            columns[1] = mip_column(&p->mip, MIP_COUNT, 0);
            ones[1] = -1;
            for (int32_t j = 0; j < t->n_blocks; j++) {
                columns[j + 2] = t->patterns[k].column + j;
                ones[j + 2] = 1;
            }
            glp_set_mat_row(p->mip.lp, row, t->n_blocks + 1, columns, ones);
        }
    }
    p->mip.branch_end = glp_get_num_cols(p->mip.lp) + 1;
    return columns && ones;
}

bool path_lp(struct path *p, bool whole)
{
    mip_init(&p->mip, p->typical_ns);
    if (!add_rows(p))
        return false;
    for (int32_t i = 0; i < p->n_tables; i++)
        add_columns(p, i, 0, whole ? MIP_BINARY : MIP_FLOW);
    if (whole)
        return add_counts(p);
    add_overflow(p);
    return true;
}

/* --------------------------------------------------------------------- column generation --- */

static double dual(const struct path *p, int row)
{
    return glp_get_row_dual(p->mip.lp, row) / p->mip.scale;
}

/* What a byte of each device's memory is worth in the relaxation. */
static void memory_prices(const struct path *p, double *ns_per_byte)
{
    for (int32_t d = 0; d < p->in->n_devices; d++) {
        ns_per_byte[d] = 0;
        if (!p->capacity_row[d] || !p->in->capacity[d])
            continue;
        ns_per_byte[d] = fmax(-dual(p, p->capacity_row[d]), 0) / (double)p->in->capacity[d];
    }
}

/* The same of the devices' fixed prices, block by block. */
static void use_prices(struct path *p)
{
    const int32_t n = p->in->n_devices;
    for (int32_t d = 0; d < n; d++) {
        double sum = 0, fixed = (double)p->in->fixed[d].objective_ns;
        for (int32_t i = 0; i < p->n_blocks; i++) {
            p->use_ns[i * n + d] = p->used[d] ? fmax(-dual(p, p->blocks[i].used_row + d), 0) : 0;
            sum += p->use_ns[i * n + d];
        }
        for (int32_t i = 0; i < p->n_blocks && sum > fixed; i++)
            p->use_ns[i * n + d] *= fixed / sum;
    }
}

/* The frame of a block that improves the solution most; -1: none does. */
static int32_t best_frame(const struct path *p, int32_t i, const double *frame_ns)
{
    const struct block *b = &p->blocks[i];
    const struct table *t = &p->tables[b->table];
    double begin[ENDS_MAX + 1] = {0}, end[ENDS_MAX] = {0}, use[SOLVER_DEVICES] = {0};
    double least = -1e-6 / p->mip.scale; /* of the objective's 10,000 */
    int32_t best = -1;
    begin[0] = i ? 0 : -dual(p, b->row);
    for (int32_t e = 0; e < p->n_ends; e++) {
        begin[e + 1] = i ? dual(p, b->row + e) : 0;
        end[e] = i + 1 < p->n_blocks ? -dual(p, b[1].row + e) : 0;
    }
    for (int32_t d = 0; d < p->in->n_devices; d++)
        use[d] = p->used[d] ? -dual(p, b->used_row + d) : 0;
    for (int32_t f = 0; f < t->n_frames; f++) {
        const struct frame *frame = &t->frames[f];
        double ns = frame_ns[f] + begin[frame->in + 1] + end[frame->out];
        if (!path_leads(p, i, frame->in, frame->out))
            continue;
        for (int32_t d = 0; d < p->in->n_devices; d++)
            ns += frame->uses >> d & 1 ? use[d] : 0;
        if (ns < least) {
            least = ns;
            best = f;
        }
    }
    return best;
}

/* Adds for each block the pattern that improves the solution most. Returns how many are new; -1:
 * memory is short. */
static int32_t add_improving(struct path *p, const double *ns_per_byte)
{
    struct arena a;
    struct priced at;
    int32_t added = 0;
    arena_init(&a);
    int32_t *before = arena_alloc(&p->arena, (size_t)p->n_tables + 1, sizeof *before);
    bool good = before && path_price_tables(p, ns_per_byte, &a, &at);
    for (int32_t i = 0; good && i < p->n_tables; i++)
        before[i] = p->tables[i].n;
    for (int32_t i = 0; good && i < p->n_blocks; i++) {
        int32_t table = p->blocks[i].table, n = p->tables[table].n;
        int32_t f = best_frame(p, i, at.frame[table]);
        if (f < 0)
            continue;
        good = add_cheapest_of(p, &at, table, f);
        added += p->tables[table].n - n;
    }
    arena_free(&a);
    for (int32_t i = 0; good && added > 0 && i < p->n_tables; i++)
        add_columns(p, i, before[i], MIP_FLOW);
    return good ? added : -1;
}

/* For every table and both of its ends the pattern that is best at these prices. */
static bool add_cheapest(struct path *p, const double *ns_per_byte)
{
    struct arena a;
    struct priced at;
    arena_init(&a);
    bool good = path_price_tables(p, ns_per_byte, &a, &at);
    for (int32_t i = 0; good && i < p->n_tables; i++) {
        const struct table *t = &p->tables[i];
        int32_t best[(ENDS_MAX + 1) * ENDS_MAX];
        memset(best, -1, sizeof best);
        for (int32_t f = 0; f < t->n_frames; f++) {
            int32_t *b = &best[(t->frames[f].in + 1) * p->n_ends + t->frames[f].out];
            if (*b < 0 || at.frame[i][f] < at.frame[i][*b])
                *b = f;
        }
        for (int32_t k = 0; good && k < (p->n_ends + 1) * p->n_ends; k++)
            if (best[k] >= 0)
                good = add_cheapest_of(p, &at, i, best[k]);
    }
    arena_free(&a);
    return good;
}

/* Patterns to begin with: the fastest, and the smallest on each device. */
static bool add_first(struct path *p)
{
    double price[SOLVER_DEVICES] = {0}, all[SOLVER_DEVICES] = {0};
    bool good = add_cheapest(p, price);
    for (int32_t d = 0; d < p->in->n_devices && good; d++) {
        if (!p->constrained[d])
            continue;
        all[d] = price[d] = OVERFLOW_COST * (double)p->typical_ns /
                            (double)(p->in->capacity[d] ? p->in->capacity[d] : 1);
        good = add_cheapest(p, price);
        price[d] = 0;
    }
    return good && add_cheapest(p, all);
}

static bool overflows(const struct path *p)
{
    for (int32_t d = 0; d < p->in->n_devices; d++)
        if (p->capacity_row[d] && glp_get_col_prim(p->mip.lp, p->overflow[d]) > 1e-9)
            return true;
    return false;
}

static void plan_memory(struct path *p)
{
    const int32_t n = p->in->n_devices;
    memset(p->flow, 0, sizeof *p->flow * (size_t)p->n_blocks * (size_t)p->n_ends);
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct block *b = &p->blocks[i];
        const struct table *t = &p->tables[b->table];
        double *now = &p->planned[i * n], *next = now + n;
        memcpy(next, now, sizeof *now * (size_t)n);
        for (int32_t k = 0; k < t->n; k++) {
            double x = glp_get_col_prim(p->mip.lp, t->patterns[k].column + b->ordinal);
            p->flow[i * p->n_ends + t->patterns[k].out] += x;
            for (int32_t d = 0; d < n; d++)
                next[d] += x * (double)t->patterns[k].bytes[d];
        }
    }
}

/* Adds columns until no more of them improve the solution, or the clock ends it: then the prices of
 * the last round stay. */
static oato_status generate(struct path *p, struct ilp_clock *clock, double *ns_per_byte,
                            struct ilp_result *result, bool *converged, struct oato_error *err)
{
    enum { ROUNDS_MAX = 500 };
    *converged = false;
    for (int round = 0; round < ROUNDS_MAX && !*converged; round++) {
        oato_status status = mip_relax(&p->mip, clock, result, err);
        if (status)
            return clock->ended ? OATO_OK : status;
        memory_prices(p, ns_per_byte);
        if (ilp_late(clock))
            return OATO_OK;
        int32_t added = add_improving(p, ns_per_byte);
        if (added < 0)
            return oato_fail_memory(err, 1u << 16, "the ILP");
        *converged = !added;
    }
    return OATO_OK;
}

bool path_route(const struct path *p, bool against, int16_t *route)
{
    bool several = false;
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const double *flow = &p->flow[i * p->n_ends], at = (i + 0.5) / p->n_blocks;
        double passed = 0;
        route[i] = -1;
        for (int32_t k = 0; k < p->n_ends; k++) {
            const int32_t end = against ? p->n_ends - 1 - k : k;
            passed += flow[end];
            if (flow[end] > 1e-6 && (route[i] < 0 || passed - flow[end] <= at))
                route[i] = (int16_t)end;
            several = several || (flow[end] > 0.01 && flow[end] < 0.99);
        }
        if (route[i] < 0)
            return false;
    }
    return several;
}

oato_status path_relax_route(struct path *p, double *ns_per_byte, struct oato_error *err)
{
    struct ilp_clock clock = {.deadline_ns = p->clock.deadline_ns};
    struct ilp_result result;
    bool converged;
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct table *t = &p->tables[p->blocks[i].table];
        for (int32_t k = 0; k < t->n; k++)
            glp_set_col_bnds(
                p->mip.lp, t->patterns[k].column + p->blocks[i].ordinal,
                path_leads(p, i, t->patterns[k].in, t->patterns[k].out) ? GLP_LO : GLP_FX, 0, 0);
    }
    glp_std_basis(p->mip.lp);
    oato_status status = generate(p, &clock, ns_per_byte, &result, &converged, err);
    if (!status && (!converged || overflows(p)))
        status = oato_fail(err, OATO_NEGATIVE, "no placement fits along the route");
    if (!status)
        plan_memory(p);
    return status;
}

oato_status path_relax(struct path *p, double *ns_per_byte, struct ilp_result *result,
                       struct oato_error *err)
{
    struct ilp_clock half = {.deadline_ns = ilp_share(p->clock.deadline_ns, 2)};
    bool converged;
    if (!add_first(p) || !path_lp(p, false))
        return oato_fail_memory(err, 1u << 16, "the ILP");
    if (generate(p, &half, ns_per_byte, result, &converged, err))
        return err->status;
    p->clock.ended = half.ended;
    if (converged && overflows(p)) {
        result->bound_ns = INT64_MAX;
        return oato_fail(err, OATO_NEGATIVE, "no placement fits");
    }
    /* GLPK's own bound is exact to its tolerances only; that of the prices always holds */
    struct bounds b;
    double least = INFINITY;
    use_prices(p);
    plan_memory(p);
    oato_status status = path_make_bounds(p, ns_per_byte, &b, err);
    for (int32_t e = 0; !status && e < p->n_ends; e++) {
        double bound = *path_bound(p, b.so_far, p->n_blocks, e) - b.memory_ns;
        if (bound < least) /* no fmin(): gcc 12 for aarch64 fails on the reduction */
            least = bound;
    }
    arena_free(&b.arena);
    result->bound_ns = least < 1e18 && least > 0 ? (int64_t)ceil(least * (1 - 1e-12)) : 0;
    return status;
}
