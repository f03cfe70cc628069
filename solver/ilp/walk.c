/*
 * walk.c - label setting over the path of blocks (resource-constrained shortest path). A label
 * is a placement of all blocks up to some point. Of two labels with the same end and the same
 * devices in use, one that is slower and takes more memory is dropped; so is one that cannot beat
 * the cutoff even on the fastest way on, with the remaining memory priced as in the relaxation. If
 * there are still too many labels, only the most promising of those with about the same memory are
 * kept, and the bound is lowered to that of the dropped ones: the result is always a bound and,
 * with one accelerator, nearly always a proof.
 */
#include "solver/ilp/ilp_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Equal layers tie: many ways to share out memory look alike, and those that spend it early would
 * win every tie and starve the last layers. */
static const double AWAY = 0.01;

struct label {
    int64_t ns;
    double lower;   /* no way on from here is faster than this */
    double promise; /* the same and a little for leaving the relaxation's use of memory */
    uint64_t bytes[SOLVER_DEVICES];
    int32_t parent;  /* among the labels kept after the block before */
    int32_t pattern; /* of the block's table */
    int16_t end;
    uint32_t used, cell;
};

struct labels {
    struct label *all;
    int32_t n;
    size_t cap;
};

struct step { /* for going back */
    int32_t parent, pattern;
};

struct walker {
    const struct path *path;
    struct walk *walk;
    struct arena arena;
    int32_t constrained[SOLVER_DEVICES], n_constrained;
    double *onward;                 /* path_bound: fastest way on, memory paid for */
    double *so_far;                 /* the same of the way from the first block to here */
    int32_t *usable, *first_usable; /* patterns of block i that may be part of a better path */
    uint64_t *least;  /* [block][device]: bytes that the blocks from here on take at least */
    double memory_ns; /* what all memory is worth */
    struct labels now, next;
    struct step **trails; /* of the labels kept after each block */
    double dropped;       /* least lower bound of labels that might have led on */
    double pruned; /* the same of those that could not beat the cutoff by more than the gap */
};

static uint64_t *least_at(const struct walker *k, int32_t block, int32_t device)
{
    return &k->least[(size_t)block * SOLVER_DEVICES + (size_t)device];
}

static double paid_ns(const struct walker *k, const struct pattern *x)
{
    return path_paid_ns(k->path, k->walk->ns_per_byte, x->ns, x->bytes);
}

/* Backwards: what is still to come. */
static void look_ahead(struct walker *k)
{
    const struct path *p = k->path;
    for (int32_t i = p->n_blocks - 1; i >= 0; i--) {
        const struct table *t = &p->tables[p->blocks[i].table];
        for (int32_t e = -1; e < p->n_ends; e++)
            *path_bound(p, k->onward, i, e) = INFINITY;
        for (int32_t d = 0; d < p->in->n_devices; d++)
            *least_at(k, i, d) = UINT64_MAX;
        for (int32_t j = 0; j < t->n; j++) {
            const struct pattern *x = &t->patterns[j];
            if (!path_leads(p, i, x->in, x->out))
                continue;
            double ns = paid_ns(k, x) + *path_bound(p, k->onward, i + 1, x->out);
            if (ns < *path_bound(p, k->onward, i, x->in))
                *path_bound(p, k->onward, i, x->in) = ns;
            for (int32_t d = 0; d < p->in->n_devices; d++)
                if (x->bytes[d] < *least_at(k, i, d))
                    *least_at(k, i, d) = x->bytes[d];
        }
        for (int32_t d = 0; d < p->in->n_devices; d++)
            *least_at(k, i, d) = t->n ? *least_at(k, i, d) + *least_at(k, i + 1, d) : 0;
    }
}

/* What can still beat the cutoff must be bounded below this. */
static bool hopeless(const struct walk *w, double lower)
{
    double cutoff = (double)w->cutoff_ns;
    return lower >= (w->gap > 0 ? cutoff * (1 - w->gap) : cutoff - 0.5);
}

/* Forwards: the patterns through which even the fastest path, memory paid for, is too slow are
 * left out once for all. */
static bool choose_patterns(struct walker *k)
{
    const struct path *p = k->path;
    int32_t n = 0, all = 0;
    for (int32_t i = 0; i < p->n_blocks; i++)
        all += p->tables[p->blocks[i].table].n;
    k->usable = arena_alloc(&k->arena, (size_t)all + 1, sizeof *k->usable);
    k->first_usable = arena_alloc(&k->arena, (size_t)p->n_blocks + 1, sizeof *k->first_usable);
    if (!k->usable || !k->first_usable)
        return false;
    for (int32_t i = 0; i <= p->n_blocks; i++)
        for (int32_t e = -1; e < p->n_ends; e++)
            *path_bound(p, k->so_far, i, e) = i || e >= 0 ? INFINITY : 0;
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct table *t = &p->tables[p->blocks[i].table];
        for (int32_t j = 0; j < t->n; j++) {
            const struct pattern *x = &t->patterns[j];
            if (!path_leads(p, i, x->in, x->out))
                continue;
            double ns = *path_bound(p, k->so_far, i, x->in) + paid_ns(k, x);
            if (ns < *path_bound(p, k->so_far, i + 1, x->out))
                *path_bound(p, k->so_far, i + 1, x->out) = ns;
            double lower = ns + *path_bound(p, k->onward, i + 1, x->out) - k->memory_ns;
            if (hopeless(k->walk, lower))
                k->pruned = fmin(k->pruned, lower);
            else
                k->usable[n++] = j;
        }
        k->first_usable[i + 1] = n;
    }
    return true;
}

static bool keep_room(struct labels *list)
{
    struct label *more = array_room(list->all, (size_t)list->n, &list->cap, sizeof *more);
    list->all = more ? more : list->all;
    return more;
}

/* One label on by one pattern of block i. False: memory is short. */
static bool extend(struct walker *k, int32_t i, int32_t parent, int32_t pattern)
{
    const struct path *p = k->path;
    const struct instance *in = p->in;
    const struct label *from = &k->now.all[parent];
    const struct pattern *x = &p->tables[p->blocks[i].table].patterns[pattern];
    int64_t ns = ns_add(from->ns, x->ns);
    for (int32_t d = 0; d < in->n_devices; d++)
        if ((x->uses & ~from->used) >> d & 1)
            ns = ns_add(ns, in->fixed[d].objective_ns);
    double lower = (double)ns + *path_bound(p, k->onward, i + 1, x->out) - k->memory_ns;
    for (int32_t c = 0; c < k->n_constrained; c++) {
        int32_t d = k->constrained[c];
        uint64_t bytes = from->bytes[d] + x->bytes[d];
        if (bytes + *least_at(k, i + 1, d) > in->capacity[d])
            return true;
        lower += k->walk->ns_per_byte[d] * (double)bytes;
    }
    if (hopeless(k->walk, lower)) {
        k->pruned = fmin(k->pruned, lower);
        return true;
    }
    if (!keep_room(&k->next))
        return false;
    struct label *to = &k->next.all[k->next.n++];
    *to = (struct label){.ns = ns,
                         .lower = lower,
                         .parent = parent,
                         .pattern = pattern,
                         .end = x->out,
                         .used = from->used | x->uses};
    to->promise = lower;
    for (int32_t d = 0; d < in->n_devices; d++) {
        to->bytes[d] = from->bytes[d] + x->bytes[d];
        double away = (double)to->bytes[d] - p->planned[(i + 1) * in->n_devices + d];
        to->promise += AWAY * k->walk->ns_per_byte[d] * fabs(away);
    }
    return true;
}

/* Labels that can be compared stand together, the fastest first. */
static int by_end_and_time(const void *x, const void *y)
{
    const struct label *a = x, *b = y;
    int c = order_i64(a->end, b->end);
    c = c ? c : order_i64(a->used, b->used);
    c = c ? c : order_i64(a->ns, b->ns);
    c = c ? c : memcmp(a->bytes, b->bytes, sizeof a->bytes);
    c = c ? c : order_i64(a->parent, b->parent);
    return c ? c : order_i64(a->pattern, b->pattern);
}

static int by_promise(const void *x, const void *y)
{
    const struct label *a = x, *b = y;
    int c = order_f64(a->promise, b->promise);
    return c ? c : by_end_and_time(x, y);
}

static int by_cell_and_promise(const void *x, const void *y)
{
    const struct label *a = x, *b = y;
    int c = order_i64(a->end, b->end);
    c = c ? c : order_i64(a->used, b->used);
    c = c ? c : order_i64(a->cell, b->cell);
    return c ? c : by_promise(x, y);
}

static bool smaller(const struct walker *k, const struct label *a, const struct label *b)
{
    for (int32_t c = 0; c < k->n_constrained; c++)
        if (a->bytes[k->constrained[c]] > b->bytes[k->constrained[c]])
            return false;
    return true;
}

static void drop(struct walker *k, const struct label *x)
{
    k->dropped = fmin(k->dropped, x->lower);
}

/* Too many: of labels that took about the same memory only the most promising stays, so that ways
 * to spend it early and late all live on. */
static void thin_cells(struct walker *k)
{
    int32_t kept = 0, groups = k->path->n_ends << (k->path->in->n_devices - 1);
    double each = (double)k->walk->width / groups;
    double side = floor(pow(each < 2 ? 2 : each, 1.0 / (k->n_constrained ? k->n_constrained : 1)));
    for (int32_t i = 0; i < k->next.n; i++) {
        double cell = 0;
        for (int32_t c = 0; c < k->n_constrained; c++) {
            int32_t d = k->constrained[c];
            double full = (double)k->next.all[i].bytes[d] / ((double)k->path->in->capacity[d] + 1);
            cell = cell * side + floor(full * side);
        }
        k->next.all[i].cell = (uint32_t)cell;
    }
    qsort(k->next.all, (size_t)k->next.n, sizeof *k->next.all, by_cell_and_promise);
    for (int32_t i = 0; i < k->next.n; i++) {
        const struct label *x = &k->next.all[i], *last = &k->next.all[kept - (kept > 0)];
        if (kept && last->end == x->end && last->used == x->used && last->cell == x->cell)
            drop(k, x);
        else
            k->next.all[kept++] = *x;
    }
    k->next.n = kept;
}

static void thin(struct walker *k)
{
    enum { LOOK_BACK = 64 }; /* with one constrained device the last one kept is enough */
    int32_t kept = 0, group = 0;
    qsort(k->next.all, (size_t)k->next.n, sizeof *k->next.all, by_end_and_time);
    for (int32_t i = 0; i < k->next.n; i++) {
        const struct label *x = &k->next.all[i];
        if (kept && (k->next.all[kept - 1].end != x->end || k->next.all[kept - 1].used != x->used))
            group = kept;
        bool dominated = false;
        for (int32_t j = kept - 1; j >= group && j >= kept - LOOK_BACK && !dominated; j--)
            dominated = smaller(k, &k->next.all[j], x);
        if (!dominated)
            k->next.all[kept++] = *x;
    }
    k->next.n = kept;
    if (kept > k->walk->width)
        thin_cells(k);
    if (k->next.n <= k->walk->width)
        return;
    qsort(k->next.all, (size_t)k->next.n, sizeof *k->next.all, by_promise);
    for (int32_t i = k->walk->width; i < k->next.n; i++)
        drop(k, &k->next.all[i]);
    k->next.n = k->walk->width;
}

static bool advance(struct walker *k, int32_t i)
{
    const struct table *t = &k->path->tables[k->path->blocks[i].table];
    k->next.n = 0;
    for (int32_t l = 0; l < k->now.n && !ilp_late(k->walk->clock); l++)
        for (int32_t u = k->first_usable[i]; u < k->first_usable[i + 1]; u++)
            if (t->patterns[k->usable[u]].in == k->now.all[l].end && !extend(k, i, l, k->usable[u]))
                return false;
    thin(k);
    struct step *steps = arena_alloc(&k->arena, (size_t)k->next.n + 1, sizeof *steps);
    if (!steps)
        return false;
    k->trails[i] = steps;
    for (int32_t l = 0; l < k->next.n; l++)
        steps[l] = (struct step){k->next.all[l].parent, k->next.all[l].pattern};
    const struct labels was = k->now;
    k->now = k->next;
    k->next = was;
    return true;
}

static void go_back(const struct walker *k, int32_t label, int32_t *place)
{
    for (int32_t i = k->path->n_blocks - 1; i >= 0; i--) {
        const struct block *b = &k->path->blocks[i];
        const struct table *t = &k->path->tables[b->table];
        path_read_pattern(k->path, b, &t->patterns[k->trails[i][label].pattern], place);
        label = k->trails[i][label].parent;
    }
}

static void conclude(struct walker *k, int32_t *place)
{
    struct walk *w = k->walk;
    int32_t best = -1;
    for (int32_t l = 0; l < k->now.n; l++)
        if (best < 0 || k->now.all[l].ns < k->now.all[best].ns)
            best = l;
    w->found = best >= 0 && k->now.all[best].ns < w->cutoff_ns;
    const int64_t found_ns = w->found ? k->now.all[best].ns : w->cutoff_ns;
    if (w->found)
        go_back(k, best, place);
    double bound = fmin((double)found_ns, k->dropped);
    if (w->gap > 0)
        bound = fmin(bound, k->pruned);
    bound *= 1 - 1e-12; /* sums of doubles */
    w->bound_ns = bound < (double)found_ns ? (int64_t)fmax(bound, 0) : found_ns;
    if (k->dropped >= (double)found_ns && (w->gap <= 0 || k->pruned >= (double)found_ns))
        w->bound_ns = found_ns;
}

oato_status path_walk(const struct path *p, struct walk *w, int32_t *place, struct oato_error *err)
{
    size_t n = (size_t)p->n_blocks + 1, ends = (size_t)p->n_ends + 1;
    struct walker k = {.path = p, .walk = w, .dropped = INFINITY, .pruned = INFINITY};
    oato_status status = OATO_OK;
    arena_init(&k.arena);
    k.memory_ns = path_paid_ns(p, w->ns_per_byte, 0, p->in->capacity);
    for (int32_t d = 0; d < p->in->n_devices; d++)
        if (p->constrained[d])
            k.constrained[k.n_constrained++] = d;
    k.onward = arena_alloc(&k.arena, n * ends, sizeof *k.onward);
    k.so_far = arena_alloc(&k.arena, n * ends, sizeof *k.so_far);
    k.least = arena_alloc(&k.arena, n * SOLVER_DEVICES, sizeof *k.least);
    k.trails = arena_alloc(&k.arena, n, sizeof(struct step *));
    if (!keep_room(&k.now) || !keep_room(&k.next) || !k.onward || !k.so_far || !k.least ||
        !k.trails)
        goto memory;
    k.now.all[k.now.n++] = (struct label){.end = -1};
    look_ahead(&k);
    if (!choose_patterns(&k))
        goto memory;
    w->found = false;
    w->bound_ns = 0;
    for (int32_t i = 0; i < p->n_blocks; i++) {
        if (!advance(&k, i))
            goto memory;
        if (ilp_late(w->clock))
            goto out;
    }
    conclude(&k, place);
    goto out;
memory:
    status = oato_fail_memory(err, sizeof *k.next.all * k.next.cap, "the ILP's labels");
out:
    free(k.now.all);
    free(k.next.all);
    arena_free(&k.arena);
    return status;
}
