/*
 * blocks.c - cuts an instance into blocks. A unit is a *separator* when no value bypasses it:
 * every value that is produced before it ends and read after it is its own output. Two neighbouring
 * blocks share only the device that has the separator's output in each phase, which is the end of
 * the first block. Equal blocks, such as layers, share one table of choices.
 */
#include "solver/ilp/ilp_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MANY_DEVICES = 4 };

static bool path_alloc(struct path *p)
{
    size_t n = (size_t)p->in->n_units, m = (size_t)p->in->n_edges;
    p->blocks = arena_alloc(&p->arena, n + 1, sizeof *p->blocks);
    p->tables = arena_alloc(&p->arena, n + 1, sizeof *p->tables);
    p->block_of = arena_alloc(&p->arena, n + 1, sizeof(int32_t));
    p->place = arena_alloc(&p->arena, n + 1, sizeof(int32_t));
    p->edges = arena_alloc(&p->arena, m + 1, sizeof(int32_t));
    p->use_ns = arena_alloc(&p->arena, n * (size_t)p->in->n_devices + 1, sizeof(double));
    p->planned = arena_alloc(&p->arena, (n + 1) * (size_t)p->in->n_devices, sizeof(double));
    return p->planned && p->use_ns && p->blocks && p->tables && p->block_of && p->place && p->edges;
}

/* A value lives in the block of its last reader. */
static struct block *block_of_edge(const struct path *p, int32_t edge)
{
    int32_t lo, hi;
    edge_ends(p->in, &p->in->edges[edge], &lo, &hi);
    return &p->blocks[p->block_of[hi]];
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
    for (int32_t i = 0; i < in->n_edges; i++)
        block_of_edge(p, i)->n_edges++;
    for (int32_t i = 0, end = 0; i < p->n_blocks; i++) {
        end += p->blocks[i].n_edges;
        p->blocks[i].first_edge = end;
    }
    for (int32_t i = in->n_edges - 1; i >= 0; i--) /* filling moves the ends to the beginnings */
        p->edges[--block_of_edge(p, i)->first_edge] = i;
}

static void number_ends(struct path *p)
{
    memset(p->end, -1, sizeof p->end);
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct unit *last = &p->in->units[p->blocks[i].last];
        for (int32_t o = 0; o < last->n_options; o++) {
            const int16_t *out = last->options[o].out;
            int16_t *end = &p->end[out[PHASE_PREFILL]][out[PHASE_DECODE]];
            if (*end < 0 && instance_allows(p->in, p->blocks[i].last, o))
                *end = (int16_t)p->n_ends++;
        }
    }
}

static bool same_direct(const struct instance *in, const struct edge *x, const struct edge *y,
                        int phase, int32_t from)
{
    for (int32_t to = 0; to < instance_ends(in); to++)
        if (in->direct[from][to] &&
            x->direct[phase][from][to].objective_ns != y->direct[phase][from][to].objective_ns)
            return false;
    return true;
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
    for (int phase = 0; phase < PHASE_COUNT; phase++)
        for (int32_t d = 0; d < instance_ends(in); d++)
            if (x->leave[phase][d].objective_ns != y->leave[phase][d].objective_ns ||
                x->enter[phase][d].objective_ns != y->enter[phase][d].objective_ns ||
                !same_direct(in, x, y, phase, d))
                return false;
    return true;
}

static bool same_option(const struct instance *in, const struct option *a, const struct option *b)
{
    return a->price.objective_ns == b->price.objective_ns && option_lies_as(a, b) &&
           a->uses == b->uses &&
           !memcmp(a->bytes, b->bytes, sizeof *a->bytes * (size_t)in->n_devices);
}

static bool same_block(const struct path *p, const struct block *a, const struct block *b)
{
    const struct instance *in = p->in;
    if (a->last - a->first != b->last - b->first || a->n_edges != b->n_edges ||
        !a->first != !b->first)
        return false;
    for (int32_t i = a->first ? -1 : 0; i <= a->last - a->first; i++) {
        const struct unit *x = &in->units[a->first + i], *y = &in->units[b->first + i];
        if (x->options == y->options && x->n_options == y->n_options)
            continue; /* what is allowed is the device's matter, not the unit's */
        if (x->n_options != y->n_options)
            return false;
        for (int32_t o = 0; o < x->n_options; o++) {
            bool allowed = instance_allows(in, a->first + i, o);
            if (allowed != instance_allows(in, b->first + i, o) ||
                path_end(p, &x->options[o]) != path_end(p, &y->options[o]) ||
                (i >= 0 && allowed && !same_option(in, &x->options[o], &y->options[o])))
                return false;
        }
    }
    for (int32_t i = 0; i < a->n_edges; i++)
        if (!same_edge(p, p->edges[a->first_edge + i], p->edges[b->first_edge + i],
                       b->first - a->first))
            return false;
    return true;
}

/* ------------------------------------------------------------------------------- tables ---- */

/* The scale of the objective, the time of every unit in its most expensive option; and which
 * devices the units could overfill, so that a capacity row is needed. One pass, which the deadline
 * stops: there may be millions of options. */
static void sum_most(struct path *p)
{
    const struct instance *in = p->in;
    uint64_t sum[SOLVER_DEVICES] = {0};
    for (int32_t u = 0; u < in->n_units && !ilp_late(&p->clock); u++) {
        uint64_t most[SOLVER_DEVICES] = {0};
        int64_t most_ns = 0;
        for (int32_t i = 0; i < in->units[u].n_options; i++) {
            const struct option *o = &in->units[u].options[i];
            if (!instance_allows(in, u, i))
                continue;
            most_ns = max_i64(most_ns, o->price.objective_ns);
            for (int32_t d = 0; d < in->n_devices; d++)
                most[d] = o->bytes[d] > most[d] ? o->bytes[d] : most[d];
        }
        p->typical_ns = ns_add(p->typical_ns, most_ns);
        for (int32_t d = 0; d < in->n_devices; d++)
            sum[d] += most[d];
    }
    p->typical_ns = max_i64(p->typical_ns, 1);
    for (int32_t d = 0; d < in->n_devices; d++)
        p->constrained[d] = sum[d] > in->capacity[d];
}

static oato_status make_tables(struct path *p, struct oato_error *err)
{
    for (int32_t i = 0; i < p->n_blocks; i++) {
        struct block *b = &p->blocks[i];
        b->table = -1;
        if (ilp_late(&p->clock))
            return ilp_ended(&p->clock, err);
        for (int32_t j = i - 1; j >= 0 && b->table < 0; j--)
            if (same_block(p, &p->blocks[j], b))
                b->table = p->blocks[j].table;
        if (b->table < 0) {
            struct table *t = &p->tables[b->table = p->n_tables++];
            if (b->last - b->first >= BLOCK_UNITS)
                return oato_fail(err, OATO_NEGATIVE, "a block of %d units is too large to tabulate",
                                 b->last - b->first + 1);
            if (!path_make_menu(p, b, &t->menu))
                return oato_fail_memory(err, p->arena.used_bytes, "the ILP's tables");
            if (path_make_frames(p, b, t, err))
                return err->status;
        }
        b->ordinal = p->tables[b->table].n_blocks++;
    }
    return OATO_OK;
}

oato_status path_cut(struct path *p, const struct instance *in, uint64_t deadline_ns,
                     struct oato_error *err)
{
    memset(p, 0, sizeof *p);
    p->in = in;
    p->clock.deadline_ns = deadline_ns;
    arena_init(&p->arena);
    if (!path_alloc(p))
        return oato_fail_memory(err, p->arena.used_bytes, "the ILP");
    sum_most(p);
    if (ilp_late(&p->clock))
        return ilp_ended(&p->clock, err);
    int others = 0;
    for (int32_t d = 0; d < in->n_devices; d++)
        others += d != in->host && in->usable[d];
    p->block_devices = others > MANY_DEVICES ? 2 : 3;
    p->restricted = others > p->block_devices;
    cut_blocks(p);
    number_ends(p);
    p->flow = arena_alloc(&p->arena, (size_t)p->n_blocks * (size_t)p->n_ends + 1, sizeof(double));
    if (!p->flow)
        return oato_fail_memory(err, p->arena.used_bytes, "the ILP");
    memset(p->place, 0, sizeof *p->place * (size_t)in->n_units);
    return make_tables(p, err);
}

void path_free(struct path *p)
{
    for (int32_t i = 0; i < p->n_tables; i++) {
        free(p->tables[i].frames);
        free(p->tables[i].patterns);
    }
    arena_free(&p->arena);
}
