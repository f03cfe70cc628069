/*
 * ilp_blocks.c - cuts an instance into blocks and tabulates what can be chosen in each. A unit is a
 * *separator* when no value passes it by: all that is read behind it and made up to it is made by
 * it. Blocks between separators share nothing but the device of the separator between them.
 *
 * For each block all placements of its units are priced with all their copies, for each device of
 * the separator before it; of these only the undominated stay (nothing else has the same ends, no
 * more time, no more bytes and no more devices). Equal blocks, as layers are, share their table.
 */
#include "solver/ilp_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_LEAVES = 1 << 21,   /* placements of one block that are priced */
    MAX_PATTERNS = 1 << 18, /* of all blocks */
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
        if (x->leave[d].objective_ns != y->leave[d].objective_ns ||
            x->enter[d].objective_ns != y->enter[d].objective_ns)
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
            if (i >= 0 && (x->price[d].objective_ns != y->price[d].objective_ns ||
                           x->bytes[d] != y->bytes[d]))
                return false;
        }
    for (int32_t i = 0; i < a->n_edges; i++)
        if (!same_edge(p, p->edges[a->first_edge + i], p->edges[b->first_edge + i],
                       b->first - a->first))
            return false;
    return true;
}

bool path_dominates(const struct path *p, const struct pattern *a, const struct pattern *b)
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
        if (path_dominates(p, &t->patterns[i], new))
            return true; /* nothing was dropped before: dominance is transitive */
        if (!path_dominates(p, new, &t->patterns[i]))
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

bool path_price_block(const struct path *p, const struct block *b, struct pattern *out)
{
    const struct instance *in = p->in;
    memset(out, 0, sizeof *out);
    for (int32_t u = b->first; u <= b->last; u++) {
        int32_t d = p->place[u];
        if (!instance_allows(in, u, d))
            return false;
        out->ns += in->units[u].price[d].objective_ns;
        out->used |= 1u << d;
        out->place[u - b->first] = (uint8_t)d;
        if (p->constrained[d])
            out->bytes[d] += in->units[u].bytes[d];
    }
    for (int32_t d = 0; d < in->n_devices; d++)
        if (p->constrained[d] && out->bytes[d] > in->capacity[d])
            return false;
    for (int32_t i = 0; i < b->n_edges; i++)
        out->ns += edge_price(in, &in->edges[p->edges[b->first_edge + i]], p->place).objective_ns;
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
                if (path_price_block(p, b, &pattern) && !table_add(p, t, begin, &pattern))
                    return false;
            } while (next_placement(in, p->place, b->first, b->last));
        }
    }
    return true;
}

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
        if (columns > MAX_PATTERNS)
            return oato_fail(err, OATO_EUSAGE, "too many patterns to choose from");
    }
    return OATO_OK;
}

oato_status path_cut(struct path *p, const struct instance *in, struct oato_error *err)
{
    memset(p, 0, sizeof *p);
    p->in = in;
    arena_init(&p->arena);
    if (!path_alloc(p))
        return oato_fail_memory(err, p->arena.used_bytes, "the ILP");
    for (int32_t d = 0; d < in->n_devices; d++)
        p->constrained[d] = ilp_constrained(in, d);
    cut_blocks(p);
    return make_tables(p, err);
}

void path_free(struct path *p)
{
    for (int32_t i = 0; i < p->n_tables; i++)
        free(p->tables[i].patterns);
    arena_free(&p->arena);
}
