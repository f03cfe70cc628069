/*
 * ilp_path.c - the placement ILP for models, which are chains of layers: one choice variable per
 * (block, pattern) with a tabulated cost, instead of hundreds of linked binaries.
 *
 * A unit is a *separator* when no value passes it by: all that is read behind it and made up to it
 * is made by it. Separators cut the units into blocks that share nothing but the device of the
 * separator between them. For each block all placements of its units are priced with all their
 * copies, for each device of the separator before it; of these only the undominated stay (nothing
 * else has the same ends, no more time, no more bytes and no more devices). A placement is then a
 * path through the blocks whose ends meet, under one capacity row a device: a shortest path with
 * knapsacks, whose relaxation is nearly integral. Equal layers share their table.
 *
 * Measured (30 layers, 2 devices): see solver/README.md.
 */
#include "solver/ilp_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_UNITS = 24,
    MAX_LEAVES = 1 << 21,  /* placements of one block that are priced */
    MAX_COLUMNS = 1 << 18, /* of the ILP */
};

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
    int used[SOLVER_DEVICES];
};

static void edge_ends(const struct instance *in, const struct edge *e, int32_t *lo, int32_t *hi)
{
    *lo = *hi = e->producer;
    for (int32_t r = 0; r < e->n_readers; r++) {
        int32_t u = in->readers[e->first_reader + r];
        *lo = u < *lo ? u : *lo;
        *hi = u > *hi ? u : *hi;
    }
}

static bool path_alloc(struct path *p)
{
    size_t n = (size_t)p->in->n_units, m = (size_t)p->in->n_edges;
    p->blocks = arena_alloc(&p->arena, n + 1, sizeof *p->blocks);
    p->tables = arena_alloc(&p->arena, n + 1, sizeof *p->tables);
    p->block_of = arena_alloc(&p->arena, n + 1, sizeof(int32_t));
    p->place = arena_alloc(&p->arena, n + 1, sizeof(int32_t));
    p->edges = arena_alloc(&p->arena, m + 1, sizeof(int32_t));
    return p->blocks && p->tables && p->block_of && p->place && p->edges;
}

static void cut_blocks(struct path *p)
{
    const struct instance *in = p->in;
    int32_t *passing = p->place; /* how many values more pass unit i by than unit i - 1 */
    for (int32_t i = 0; i < in->n_edges; i++) {
        int32_t lo, hi;
        edge_ends(in, &in->edges[i], &lo, &hi);
        if (hi > lo + 1) {
            passing[lo + 1]++;
            passing[hi]--;
        }
    }
    int32_t now = 0, first = 0;
    for (int32_t u = 0; u < in->n_units; u++) {
        now += passing[u];
        p->block_of[u] = p->n_blocks;
        if (now && u + 1 < in->n_units)
            continue;
        p->blocks[p->n_blocks++] = (struct block){.first = first, .last = u};
        first = u + 1;
    }
    /* edges by block: a value lives in the block of its last reader */
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < in->n_edges; i++) {
            int32_t lo, hi;
            edge_ends(in, &in->edges[i], &lo, &hi);
            struct block *b = &p->blocks[p->block_of[hi]];
            if (pass)
                p->edges[b->first_edge + b->n_edges] = i;
            b->n_edges++;
        }
        for (int32_t i = 0, sum = 0; !pass && i < p->n_blocks; i++) {
            p->blocks[i].first_edge = sum;
            sum += p->blocks[i].n_edges;
            p->blocks[i].n_edges = 0;
        }
    }
}

static bool same_edge(const struct path *p, int32_t a, int32_t b, int32_t shift)
{
    const struct instance *in = p->in;
    const struct edge *x = &in->edges[a], *y = &in->edges[b];
    if (x->producer + shift != y->producer || x->n_readers != y->n_readers ||
        x->host_reads != y->host_reads)
        return false;
    for (int32_t r = 0; r < x->n_readers; r++)
        if (in->readers[x->first_reader + r] + shift != in->readers[y->first_reader + r])
            return false;
    for (int32_t d = 0; d < in->n_devices; d++)
        if (x->leave[d].request_ns != y->leave[d].request_ns ||
            x->enter[d].request_ns != y->enter[d].request_ns)
            return false;
    return true;
}

static bool same_block(const struct path *p, const struct block *a, const struct block *b)
{
    const struct instance *in = p->in;
    if (a->last - a->first != b->last - b->first || a->n_edges != b->n_edges ||
        !a->first != !b->first)
        return false;
    for (int32_t i = a->first ? -1 : 0; i <= a->last - a->first; i++)
        for (int32_t d = 0; d < in->n_devices; d++) {
            const struct unit *x = &in->units[a->first + i], *y = &in->units[b->first + i];
            if (instance_allows(in, a->first + i, d) != instance_allows(in, b->first + i, d))
                return false;
            if (i >= 0 &&
                (x->price[d].request_ns != y->price[d].request_ns || x->bytes[d] != y->bytes[d]))
                return false;
        }
    for (int32_t i = 0; i < a->n_edges; i++)
        if (!same_edge(p, p->edges[a->first_edge + i], p->edges[b->first_edge + i],
                       b->first - a->first))
            return false;
    return true;
}

static bool dominates(const struct path *p, const struct pattern *a, const struct pattern *b)
{
    if (a->ns > b->ns || (a->used & ~b->used))
        return false;
    for (int32_t d = 0; d < p->in->n_devices; d++)
        if (a->bytes[d] > b->bytes[d])
            return false;
    return true;
}

/* Adds the pattern unless one from `begin` on dominates it; drops those that it dominates. */
static bool table_add(const struct path *p, struct table *t, int32_t begin,
                      const struct pattern *new)
{
    int32_t kept = begin;
    for (int32_t i = begin; i < t->n; i++) {
        if (dominates(p, &t->patterns[i], new))
            return true; /* nothing was dropped before: dominance is transitive */
        if (!dominates(p, new, &t->patterns[i]))
            t->patterns[kept++] = t->patterns[i];
    }
    t->n = kept;
    if (t->n == t->cap) {
        int32_t cap = t->cap ? t->cap * 2 : 64;
        struct pattern *more = realloc(t->patterns, sizeof *more * (size_t)cap);
        if (!more)
            return false;
        t->patterns = more;
        t->cap = cap;
    }
    t->patterns[t->n++] = *new;
    return true;
}

/* Price and bytes of the block as p->place has it. False when a unit may not be where it is. */
static bool price_block(const struct path *p, const struct block *b, struct pattern *out)
{
    const struct instance *in = p->in;
    memset(out, 0, sizeof *out);
    for (int32_t u = b->first; u <= b->last; u++) {
        int32_t d = p->place[u];
        if (!instance_allows(in, u, d))
            return false;
        out->ns += in->units[u].price[d].request_ns;
        out->used |= 1u << d;
        out->place[u - b->first] = (uint8_t)d;
        if (p->constrained[d])
            out->bytes[d] += in->units[u].bytes[d];
    }
    for (int32_t d = 0; d < in->n_devices; d++)
        if (p->constrained[d] && out->bytes[d] > in->capacity[d])
            return false;
    for (int32_t i = 0; i < b->n_edges; i++)
        out->ns += edge_price(in, &in->edges[p->edges[b->first_edge + i]], p->place).request_ns;
    out->in = (int8_t)(b->first ? p->place[b->first - 1] : -1);
    out->out = (int8_t)p->place[b->last];
    out->used &= ~(1u << in->host); /* the host is always there */
    return true;
}

/* Counts through the placements of units [first, last). */
static bool next_placement(const struct instance *in, int32_t *place, int32_t first, int32_t last)
{
    for (int32_t u = first; u < last; u++) {
        if (++place[u] < in->n_devices)
            return true;
        place[u] = 0;
    }
    return false;
}

static bool tabulate(struct path *p, const struct block *b, struct table *t)
{
    const struct instance *in = p->in;
    for (int32_t before = 0; before < (b->first ? in->n_devices : 1); before++) {
        if (b->first) {
            if (!instance_allows(in, b->first - 1, before))
                continue;
            p->place[b->first - 1] = before;
        }
        for (int32_t end = 0; end < in->n_devices; end++) {
            int32_t begin = t->n;
            for (int32_t u = b->first; u < b->last; u++)
                p->place[u] = 0;
            p->place[b->last] = end;
            do {
                struct pattern pattern;
                if (price_block(p, b, &pattern) && !table_add(p, t, begin, &pattern))
                    return false;
            } while (next_placement(in, p->place, b->first, b->last));
        }
    }
    return true;
}

/* False with a reason when blocks are too large to tabulate. */
static oato_status make_tables(struct path *p, struct oato_error *err)
{
    int64_t columns = 0;
    for (int32_t i = 0; i < p->n_blocks; i++) {
        struct block *b = &p->blocks[i];
        int64_t leaves = p->in->n_devices;
        for (int32_t u = b->first; u <= b->last && leaves <= MAX_LEAVES; u++)
            leaves *= p->in->n_devices;
        if (b->last - b->first >= BLOCK_UNITS || leaves > MAX_LEAVES)
            return oato_fail(err, OATO_EUSAGE, "a block of %d units is too large to tabulate",
                             b->last - b->first + 1);
    }
    for (int32_t i = 0; i < p->n_blocks; i++) {
        struct block *b = &p->blocks[i];
        b->table = -1;
        for (int32_t j = 0; j < i && b->table < 0; j++)
            if (same_block(p, &p->blocks[j], b))
                b->table = p->blocks[j].table;
        if (b->table < 0) {
            b->table = p->n_tables++;
            if (!tabulate(p, b, &p->tables[b->table]))
                return oato_fail_memory(err, 1u << 20, "the ILP's tables");
        }
        columns += p->tables[b->table].n;
        if (columns > MAX_COLUMNS)
            return oato_fail(err, OATO_EUSAGE, "too many patterns to choose from");
    }
    return OATO_OK;
}

static void add_columns(struct path *p)
{
    const struct instance *in = p->in;
    for (int32_t d = 0; d < in->n_devices; d++)
        if (d != in->host && in->fixed[d].request_ns > 0)
            p->used[d] = mip_column(&p->mip, MIP_SHARE, in->fixed[d].request_ns);
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
        if (!price_block(p, b, &own))
            return false;
        for (int32_t k = 0; k < t->n && !found; k++) {
            const struct pattern *c = &t->patterns[k];
            if (c->in != own.in || c->out != own.out || !dominates(p, c, &own))
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

oato_status ilp_path(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                     int32_t *place, struct ilp_result *result, struct oato_error *err)
{
    struct path p = {.in = in};
    double *value = NULL;
    arena_init(&p.arena);
    oato_status status = OATO_OK;
    if (!path_alloc(&p)) {
        status = oato_fail_memory(err, p.arena.used_bytes, "the ILP");
        goto out;
    }
    for (int32_t d = 0; d < in->n_devices; d++)
        p.constrained[d] = ilp_constrained(in, d);
    cut_blocks(&p);
    status = make_tables(&p, err);
    if (status)
        goto out;
    if (!mip_init(&p.mip, ilp_typical_ns(in, warm))) {
        status = oato_fail_memory(err, 1u << 16, "the ILP");
        goto out;
    }
    add_columns(&p);
    add_flow(&p);
    add_limits(&p);
    add_counts(&p);
    value = calloc((size_t)glp_get_num_cols(p.mip.lp) + 1, sizeof *value);
    if (!value) {
        status = oato_fail_memory(err, 1u << 16, "the ILP");
        goto out;
    }
    bool warmed = warm && warm_values(&p, warm, value);
    status = mip_solve(&p.mip, o, warmed ? value : NULL, result, err);
    result->bound_ns += in->fixed[in->host].request_ns;
    if (!status)
        read_placement(&p, place);
out:
    if (p.mip.lp)
        mip_free(&p.mip);
    for (int32_t i = 0; i < p.n_tables; i++)
        free(p.tables[i].patterns);
    free(value);
    arena_free(&p.arena);
    return status;
}
