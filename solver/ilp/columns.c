/*
 * columns.c - the linear program of the path form, and its relaxation by column generation: of
 * the many patterns of a block only those become columns that improve the current solution, which
 * are found from each frame and the cheapest item of its class. So the relaxation covers all
 * patterns, however finely a unit can be split.
 *
 * The memory prices of the solution bound every path (Lagrange); path_expand lists the patterns
 * that a path better than the best known one can use.
 */
#include "solver/ilp/ilp_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------- bounds ---- */

double *path_bound(const struct path *p, double *bounds, int32_t block, int32_t end)
{
    return &bounds[(size_t)block * (size_t)(p->n_ends + 1) + (size_t)(end + 1)];
}

double path_paid_ns(const struct path *p, const double *ns_per_byte, int64_t ns,
                    const uint64_t *bytes)
{
    double sum = (double)ns;
    for (int32_t d = 0; d < p->in->n_devices; d++)
        if (p->constrained[d])
            sum += ns_per_byte[d] * (double)bytes[d];
    return sum;
}

/* The cheapest item of each class, with memory paid for. */
static void cheapest_items(const struct path *p, const struct menu *m, const double *ns_per_byte,
                           int32_t *item)
{
    for (int32_t c = 0; c < m->n_classes; c++) {
        double least = INFINITY;
        item[c] = m->classes[c].first;
        for (int32_t i = m->classes[c].first; i < m->classes[c].first + m->classes[c].n; i++) {
            double ns = path_paid_ns(p, ns_per_byte, m->items[i].ns, m->items[i].bytes);
            if (ns < least) {
                least = ns;
                item[c] = i;
            }
        }
    }
}

/* At a price of memory, by table: what each frame costs at least, and the item of each class that
 * makes it so. */
struct priced {
    double **frame;
    int32_t **item;
};

static bool price_tables(const struct path *p, const double *ns_per_byte, struct arena *a,
                         struct priced *out)
{
    out->frame = arena_alloc(a, (size_t)p->n_tables + 1, sizeof *out->frame);
    out->item = arena_alloc(a, (size_t)p->n_tables + 1, sizeof *out->item);
    for (int32_t i = 0; out->frame && out->item && i < p->n_tables; i++) {
        const struct table *t = &p->tables[i];
        int32_t *item = arena_alloc(a, (size_t)t->menu.n_classes + 1, sizeof *item);
        double *frame = arena_alloc(a, (size_t)t->n_frames + 1, sizeof *frame);
        if (!item || !frame)
            return false;
        cheapest_items(p, &t->menu, ns_per_byte, item);
        for (int32_t f = 0; f < t->n_frames; f++) {
            const struct menu_item *wide = &t->menu.items[item[t->frames[f].class]];
            frame[f] = path_paid_ns(p, ns_per_byte, t->frames[f].ns, t->frames[f].bytes) +
                       path_paid_ns(p, ns_per_byte, wide->ns, wide->bytes);
        }
        out->frame[i] = frame;
        out->item[i] = item;
    }
    return out->frame && out->item;
}

/* Adds the pattern of a frame with the item that it is cheapest with. */
static bool add_cheapest_of(struct path *p, const struct priced *at, int32_t table, int32_t frame)
{
    struct table *t = &p->tables[table];
    return path_add_pattern(t, frame, at->item[table][t->frames[frame].class]) >= 0;
}

static double use_ns(const struct path *p, int32_t block, uint32_t uses)
{
    double sum = 0;
    for (int32_t d = 0; d < p->in->n_devices; d++)
        sum += uses >> d & 1 ? p->use_ns[block * p->in->n_devices + d] : 0;
    return sum;
}

/* Carries the bounds from one side of a block to the other. */
static void pass_block(const struct path *p, const struct priced *at, int32_t block, bool backwards,
                       double *bounds)
{
    const int32_t table = p->blocks[block].table;
    for (int32_t f = 0; f < p->tables[table].n_frames; f++) {
        const struct frame *frame = &p->tables[table].frames[f];
        double *begin = path_bound(p, bounds, block, frame->in);
        double *end = path_bound(p, bounds, block + 1, frame->out);
        double *to = backwards ? begin : end, from = backwards ? *end : *begin;
        *to = fmin(*to, from + at->frame[table][f] + use_ns(p, block, frame->uses));
    }
}

/* Lower bounds with memory at a price (Lagrange): of paths from the first block to an end of block
 * i - 1, and of paths from there to the last block. */
struct bounds {
    double *so_far, *onward; /* see path_bound */
    double memory_ns;        /* price of all memory, already subtracted from the bounds */
    struct arena arena;
};

static oato_status make_bounds(const struct path *p, const double *ns_per_byte, struct bounds *out,
                               struct oato_error *err)
{
    size_t n = ((size_t)p->n_blocks + 1) * ((size_t)p->n_ends + 1);
    struct priced at;
    memset(out, 0, sizeof *out);
    arena_init(&out->arena);
    out->so_far = arena_alloc(&out->arena, n, sizeof(double));
    out->onward = arena_alloc(&out->arena, n, sizeof(double));
    if (!out->so_far || !out->onward || !price_tables(p, ns_per_byte, &out->arena, &at))
        return oato_fail_memory(err, n * sizeof(double), "the ILP's bounds");
    out->memory_ns = path_paid_ns(p, ns_per_byte, 0, p->in->capacity);
    for (size_t i = 0; i < n; i++)
        out->so_far[i] = out->onward[i] = INFINITY;
    *path_bound(p, out->so_far, 0, -1) = 0;
    for (int32_t e = 0; e < p->n_ends; e++)
        *path_bound(p, out->onward, p->n_blocks, e) = 0;
    for (int32_t i = 0; i < p->n_blocks; i++)
        pass_block(p, &at, i, false, out->so_far);
    for (int32_t i = p->n_blocks - 1; i >= 0; i--)
        pass_block(p, &at, i, true, out->onward);
    return OATO_OK;
}

/* ---------------------------------------------------------------------------- expansion ---- */

struct found { /* a pattern on its way into a table */
    double lower;
    int32_t table, frame, item;
};

static int by_bound(const void *x, const void *y)
{
    const struct found *a = x, *b = y;
    int c = order_f64(a->lower, b->lower);
    c = c ? c : order_i64(a->table, b->table);
    c = c ? c : order_i64(a->frame, b->frame);
    return c ? c : order_i64(a->item, b->item);
}

/* The `most` best of all, and as many more until there is no room. */
struct finds {
    struct found *all;
    size_t n, cap, most;
    double left_out; /* the least bound of those that are not among them */
};

static void finds_thin(struct finds *x)
{
    if (!x->all || x->n <= x->most)
        return;
    qsort(x->all, x->n, sizeof *x->all, by_bound);
    x->left_out = fmin(x->left_out, x->all[x->most].lower);
    x->n = x->most;
}

static bool finds_add(struct finds *x, struct found f)
{
    if (x->n == 2 * x->most)
        finds_thin(x);
    struct found *more = array_room(x->all, x->n, &x->cap, sizeof *more);
    if (!more)
        return false;
    x->all = more;
    x->all[x->n++] = f;
    return true;
}

/* What all ways through a frame of the table cost at least besides the frame itself. */
static double around(const struct path *p, struct bounds *b, int32_t table, const struct frame *f)
{
    double least = INFINITY;
    for (int32_t i = 0; i < p->n_blocks; i++)
        if (p->blocks[i].table == table)
            least = fmin(least, *path_bound(p, b->so_far, i, f->in) + use_ns(p, i, f->uses) +
                                    *path_bound(p, b->onward, i + 1, f->out));
    return least - b->memory_ns;
}

static bool list_finds(struct path *p, const double *ns_per_byte, struct bounds *b,
                       double cutoff_ns, struct finds *x, double *pruned_ns)
{
    for (int32_t i = 0; i < p->n_tables; i++) {
        const struct table *t = &p->tables[i];
        for (int32_t f = 0; f < t->n_frames && !ilp_late(&p->clock); f++) {
            const struct frame *frame = &t->frames[f];
            const struct menu_class *c = &t->menu.classes[frame->class];
            double rest =
                around(p, b, i, frame) + path_paid_ns(p, ns_per_byte, frame->ns, frame->bytes);
            for (int32_t k = c->first; k < c->first + c->n; k++) {
                const struct menu_item *item = &t->menu.items[k];
                double lower = rest + path_paid_ns(p, ns_per_byte, item->ns, item->bytes);
                if (lower >= cutoff_ns)
                    *pruned_ns = fmin(*pruned_ns, lower);
                else if (!finds_add(x, (struct found){lower, i, f, k}))
                    return false;
            }
        }
    }
    return true;
}

oato_status path_expand(struct path *p, const double *ns_per_byte, double cutoff_ns, int32_t most,
                        double *pruned_ns, struct oato_error *err)
{
    struct bounds b = {0};
    struct finds x = {.most = (size_t)most, .left_out = INFINITY};
    *pruned_ns = INFINITY;
    oato_status status = make_bounds(p, ns_per_byte, &b, err);
    if (!status && !list_finds(p, ns_per_byte, &b, cutoff_ns, &x, pruned_ns))
        status = oato_fail_memory(err, x.cap * sizeof *x.all, "the ILP's patterns");
    if (!status && ilp_late(&p->clock)) {
        *pruned_ns = 0; /* of what was not listed nothing is known */
        status = ilp_ended(&p->clock, err);
    }
    if (status)
        goto out;
    finds_thin(&x);
    *pruned_ns = fmin(*pruned_ns, x.left_out);
    for (int32_t i = 0; i < p->n_tables; i++)
        p->tables[i].n = 0;
    for (size_t i = 0; x.all && i < x.n && !status; i++) {
        const struct found *f = &x.all[i];
        if (path_append_pattern(&p->tables[f->table], f->frame, f->item) < 0)
            status = oato_fail_memory(err, sizeof(struct pattern) * x.n, "the ILP's patterns");
    }
    for (int32_t i = 0; i < p->n_tables && !status; i++)
        if (!p->tables[i].n)
            status = oato_fail(err, OATO_NEGATIVE, "no faster placement is left");
out:
    free(x.all);
    arena_free(&b.arena);
    return status;
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
    bool good = before && price_tables(p, ns_per_byte, &a, &at);
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
    bool good = price_tables(p, ns_per_byte, &a, &at);
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
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct block *b = &p->blocks[i];
        const struct table *t = &p->tables[b->table];
        double *now = &p->planned[i * n], *next = now + n;
        memcpy(next, now, sizeof *now * (size_t)n);
        for (int32_t k = 0; k < t->n; k++) {
            double x = glp_get_col_prim(p->mip.lp, t->patterns[k].column + b->ordinal);
            for (int32_t d = 0; d < n; d++)
                next[d] += x * (double)t->patterns[k].bytes[d];
        }
    }
}

oato_status path_relax(struct path *p, double *ns_per_byte, struct ilp_result *result,
                       struct oato_error *err)
{
    enum { ROUNDS_MAX = 500 };
    struct ilp_clock half = {.deadline_ns = ilp_share(p->clock.deadline_ns, 2)};
    bool converged = false;
    if (!add_first(p) || !path_lp(p, false))
        return oato_fail_memory(err, 1u << 16, "the ILP");
    for (int round = 0; round < ROUNDS_MAX && !converged; round++) {
        oato_status status = mip_relax(&p->mip, &half, result, err);
        if (status && !half.ended)
            return status;
        if (status)
            break; /* the last round's prices stay */
        memory_prices(p, ns_per_byte);
        if (ilp_late(&half))
            break;
        int32_t added = add_improving(p, ns_per_byte);
        if (added < 0)
            return oato_fail_memory(err, 1u << 16, "the ILP");
        converged = !added;
    }
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
    oato_status status = make_bounds(p, ns_per_byte, &b, err);
    for (int32_t e = 0; !status && e < p->n_ends; e++) {
        double bound = *path_bound(p, b.so_far, p->n_blocks, e) - b.memory_ns;
        if (bound < least) /* no fmin(): gcc 12 for aarch64 fails on the reduction */
            least = bound;
    }
    arena_free(&b.arena);
    result->bound_ns = least < 1e18 && least > 0 ? (int64_t)ceil(least * (1 - 1e-12)) : 0;
    return status;
}
