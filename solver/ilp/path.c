/*
 * path.c - the placement ILP for models, which are chains of layers: one choice variable per
 * (block, pattern) with a tabulated cost, instead of hundreds of linked binaries. A placement is a
 * path through the blocks of blocks.c whose ends match, with one capacity row per device: a
 * shortest path with knapsacks, whose relaxation is nearly integral.
 *
 * The relaxation (columns.c) prices the devices' memory and leaves a few good patterns; a walk
 * over these (walk.c) finds a very good path. All patterns whose bound allows a better path are
 * then walked again, which often proves the result within the gap. Branch and bound runs only if it
 * does not.
 */
#include "solver/ilp/ilp_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WALK_FAST = 64, WALK_WIDE = 8192, WALK_EFFORT = 10000000, PATTERNS_SEARCH = 1 << 15 };

struct solving {
    struct path *path;
    const struct ilp_options *options;
    const int32_t *warm; /* a placement that is known, or NULL */
    struct ilp_result *result;
    double ns_per_byte[SOLVER_DEVICES];
    bool known;
    int64_t best_ns, fixed_ns; /* best: the host's fixed part left out */
    int32_t *best;
};

/* Of each block the number of the pattern that is its placement or better. */
static bool add_placement(struct path *p, const int32_t *place, int32_t *patterns)
{
    for (int32_t i = 0; i < p->n_blocks; i++) {
        patterns[i] = path_pattern_of(p, &p->blocks[i], place);
        if (patterns[i] < 0)
            return false;
    }
    return true;
}

static void read_placement(const struct path *p, int32_t *place)
{
    for (int32_t i = 0; i < p->n_blocks; i++) {
        const struct block *b = &p->blocks[i];
        const struct table *t = &p->tables[b->table];
        for (int32_t k = 0; k < t->n; k++)
            if (glp_mip_col_val(p->mip.lp, t->patterns[k].column + b->ordinal) > 0.5)
                path_read_pattern(p, b, &t->patterns[k], place);
    }
}

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

/* The best way to do a block with the memory that is free, its ends as they are. Returns what it
 * gains; *best: its pattern. */
static int64_t improve_block(const struct path *p, const struct block *b, const int32_t *place,
                             const uint64_t *left, struct pattern *best)
{
    const struct table *t = &p->tables[b->table];
    struct pattern now;
    if (!path_price_block(p, b, place, &now))
        return 0;
    int64_t least = now.ns;
    for (int32_t f = 0; f < t->n_frames; f++) {
        const struct frame *frame = &t->frames[f];
        const struct menu_class *c = &t->menu.classes[frame->class];
        if (frame->in != now.in || frame->out != now.out || frame->uses & ~now.uses)
            continue;
        for (int32_t i = c->first; i < c->first + c->n; i++) { /* the fastest first */
            const struct menu_item *item = &t->menu.items[i];
            bool fits = true;
            if (frame->ns + item->ns >= least)
                break;
            for (int32_t d = 0; d < p->in->n_devices; d++)
                fits = fits && (!p->constrained[d] ||
                                frame->bytes[d] + item->bytes[d] <= left[d] + now.bytes[d]);
            if (!fits)
                continue;
            least = frame->ns + item->ns;
            *best = path_pattern(t, f, i);
            break;
        }
    }
    return now.ns - least;
}

/* Spends the memory that a placement leaves, block by block, where it gains most. */
static void polish(struct path *p, int32_t *place)
{
    uint64_t used[SOLVER_DEVICES], left[SOLVER_DEVICES];
    for (int32_t round = 0; round < p->n_blocks && !ilp_late(&p->clock); round++) {
        int64_t most = 0;
        int32_t at = -1;
        struct pattern to;
        instance_fits(p->in, place, used);
        for (int32_t d = 0; d < p->in->n_devices; d++)
            left[d] = p->in->capacity[d] - used[d];
        for (int32_t i = 0; i < p->n_blocks; i++) {
            struct pattern x;
            int64_t gain = improve_block(p, &p->blocks[i], place, left, &x);
            if (gain > most) {
                most = gain;
                at = i;
                to = x;
            }
        }
        if (at < 0)
            return;
        path_read_pattern(p, &p->blocks[at], &to, place);
    }
}

/* The best that is known, or what is enough to know. */
static double target_ns(const struct solving *s)
{
    double best = s->known ? (double)s->best_ns : INFINITY;
    double enough = (double)(s->options->enough_ns - s->fixed_ns);
    return s->options->enough_ns ? fmin(best, enough) : best;
}

static oato_status walk(struct solving *s, const double *ns_per_byte, int32_t width,
                        int64_t *bound_ns, struct oato_error *err)
{
    const struct instance *in = s->path->in;
    const double target = target_ns(s);
    struct walk w = {.ns_per_byte = ns_per_byte,
                     .cutoff_ns = target < 1e18 ? (int64_t)target : INT64_MAX,
                     .gap = s->options->gap,
                     .width = width,
                     .clock = &s->path->clock};
    oato_status status = path_walk(s->path, &w, s->best, err);
    *bound_ns = w.bound_ns;
    if (!status && w.found) {
        s->known = true;
        polish(s->path, s->best);
        s->best_ns = instance_price(in, s->best).objective_ns - s->fixed_ns;
    }
    if (!w.found && target > 1e18) /* nothing fits, which is for the search to prove */
        *bound_ns = 0;
    return status;
}

static bool proven(const struct solving *s)
{
    double best = target_ns(s);
    return best < 1e18 && best - (double)s->result->bound_ns <= s->options->gap * best;
}

/* Only what beats the best by more than the gap is still of interest. */
static double cutoff(const struct solving *s)
{
    double best = target_ns(s);
    return s->options->gap > 0 ? best * (1 - s->options->gap) : best - 0.5;
}

/* No placement is faster than the lesser of the two, of what was searched and what was not. */
static void raise_bound(struct solving *s, double searched_ns, double pruned_ns)
{
    double best_ns = target_ns(s);
    double bound_ns = fmin(searched_ns, pruned_ns) * (1 - 1e-12); /* sums of doubles */
    if (bound_ns > best_ns - (s->options->gap > 0 ? 0 : 0.6))     /* whole nanoseconds */
        bound_ns = best_ns;
    if (bound_ns < 1e18)
        s->result->bound_ns = max_i64(s->result->bound_ns, (int64_t)ceil(bound_ns));
}

/* A relaxation that keeps values on several devices at once, and so never copies them, is far from
 * any path: walks take its ways one after the other. They bound nothing. */
static oato_status walk_routes(struct solving *s, struct oato_error *err)
{
    enum { LABELS = 4096 };
    struct path *p = s->path;
    const size_t planned = (size_t)(p->n_blocks + 1) * (size_t)p->in->n_devices;
    int16_t *route[2];
    bool leads[2];
    oato_status status = OATO_OK;
    double *was = arena_alloc(&p->arena, planned, sizeof *was);
    for (int against = 0; against < 2; against++)
        if (!(route[against] = arena_alloc(&p->arena, (size_t)p->n_blocks + 1, sizeof(int16_t))))
            return oato_fail_memory(err, planned * sizeof *was, "the ILP");
    if (!was)
        return oato_fail_memory(err, planned * sizeof *was, "the ILP");
    memcpy(was, p->planned, planned * sizeof *was);
    for (int against = 0; against < 2; against++)
        leads[against] = path_route(p, against, route[against]);
    for (int against = 0; against < 2 && !proven(s) && !ilp_late(&p->clock); against++) {
        double ns_per_byte[SOLVER_DEVICES];
        int64_t bound_ns;
        p->route = route[against];
        status = leads[against] ? path_relax_route(p, ns_per_byte, err) : OATO_NEGATIVE;
        if (!status)
            status = walk(s, ns_per_byte, LABELS, &bound_ns, err);
        p->route = NULL;
        if (status && status != OATO_NEGATIVE)
            return status;
    }
    memcpy(p->planned, was, planned * sizeof *was);
    return OATO_OK;
}

/* Walks through the patterns of the relaxation, then through more and more of all that may still be
 * better: mostly the first few show a placement that the relaxation's bound proves good enough. */
static oato_status walks(struct solving *s, struct oato_error *err)
{
    static const struct {
        int32_t patterns, labels;
    } stages[] = {{0, 512}, {600, 512}, {4000, 256}, {1 << 18, 64}, {1 << 18, 0}};
    struct ilp_clock *clock = &s->path->clock;
    oato_status status = s->path->in->n_devices > 2 ? walk_routes(s, err) : OATO_OK;
    const size_t n = s->options->walks ? (size_t)s->options->walks : ARRAY_LEN(stages);
    for (size_t i = 0; i < n && !status && !proven(s) && !ilp_late(clock); i++) {
        double pruned_ns = 0; /* the relaxation's patterns bound nothing */
        int64_t bound_ns;
        if (stages[i].patterns)
            status = path_expand(s->path, s->ns_per_byte, cutoff(s), stages[i].patterns, &pruned_ns,
                                 err);
        if (status == OATO_NEGATIVE) { /* nothing better is left, or no time */
            raise_bound(s, INFINITY, pruned_ns);
            return s->known ? OATO_OK : status;
        }
        if (status)
            return status;
        status = walk(s, s->ns_per_byte, stages[i].labels ? stages[i].labels : wide(s->path),
                      &bound_ns, err);
        raise_bound(s, (double)bound_ns, pruned_ns);
    }
    return status;
}

/* Branch and bound over what may still be better. */
static oato_status search(struct solving *s, struct oato_error *err)
{
    struct path *p = s->path;
    struct ilp_result found;
    double pruned_ns, *value;
    oato_status status =
        path_expand(p, s->ns_per_byte, cutoff(s), PATTERNS_SEARCH, &pruned_ns, err);
    if (status == OATO_NEGATIVE) {
        raise_bound(s, INFINITY, pruned_ns);
        return s->known ? OATO_OK : status;
    }
    if (status)
        return status;
    int32_t *patterns = arena_alloc(&p->arena, (size_t)p->n_blocks + 1, sizeof *patterns);
    const bool listed = patterns && s->known && add_placement(p, s->best, patterns);
    if (!patterns || !path_lp(p, true) ||
        !(value = arena_alloc(&p->arena, (size_t)glp_get_num_cols(p->mip.lp) + 1, sizeof *value)))
        return oato_fail_memory(err, 1u << 16, "the ILP");
    for (int32_t i = 0; i < p->n_blocks && listed; i++) {
        const struct block *b = &p->blocks[i];
        value[p->tables[b->table].patterns[patterns[i]].column + b->ordinal] = 1;
    }
    if (listed && !mip_complete(&p->mip, &p->arena, value))
        return oato_fail_memory(err, 1u << 16, "the ILP");
    status = mip_relax(&p->mip, &p->clock, &found, err);
    if (!status)
        status =
            mip_search(&p->mip, s->options->gap, &p->clock, listed ? value : NULL, &found, err);
    if (!status) {
        read_placement(p, s->best);
        s->known = true;
        s->best_ns = instance_price(p->in, s->best).objective_ns - s->fixed_ns;
    } else if (status != OATO_NEGATIVE) {
        return status;
    }
    raise_bound(s, (double)found.bound_ns, pruned_ns);
    return s->known ? OATO_OK : status; /* best is the placement */
}

static int by_ns(const void *a, const void *b)
{
    return order_i64(*(const int64_t *)a, *(const int64_t *)b);
}

/* What accelerators cost at least that are used at all, where one block uses more than the frames
 * have. */
static double more_devices_ns(const struct path *p)
{
    int64_t fixed_ns[SOLVER_DEVICES] = {0};
    int n = 0;
    double sum = 0;
    for (int32_t d = 0; d < p->in->n_devices; d++)
        if (d != p->in->host && p->in->usable[d])
            fixed_ns[n++] = p->in->fixed[d].objective_ns;
    qsort(fixed_ns, (size_t)n, sizeof *fixed_ns, by_ns);
    for (int i = 0; i <= p->block_devices && i < n; i++)
        sum += (double)fixed_ns[i];
    return sum;
}

/* No placement takes less of which a block uses more accelerators than the frames have: each unit
 * at its cheapest, where memory costs what the relaxation says, and the fixed prices of so many;
 * the host's and edges are left out. */
static int64_t units_bound(const struct solving *s)
{
    const struct path *p = s->path;
    const struct instance *in = p->in;
    double sum = more_devices_ns(p);
    for (int32_t u = 0; u < in->n_units; u++) {
        double least = INFINITY;
        for (int32_t i = 0; i < in->units[u].n_options; i++) {
            const struct option *o = &in->units[u].options[i];
            const double ns = path_paid_ns(p, s->ns_per_byte, o->price.objective_ns, o->bytes);
            if (instance_allows(in, u, i) && ns < least)
                least = ns;
        }
        sum += least;
    }
    sum -= path_paid_ns(p, s->ns_per_byte, 0, in->capacity);
    return sum > 0 && sum < 1e18 ? (int64_t)(sum * (1 - 1e-12)) : 0;
}

static oato_status solve(void *user, struct oato_error *err)
{
    struct solving *s = user;
    const struct instance *in = s->path->in;
    s->fixed_ns = in->fixed[in->host].objective_ns;
    oato_status status = path_relax(s->path, s->ns_per_byte, s->result, err);
    if (status) {
        s->result->bound_ns = s->path->restricted ? 0 : s->result->bound_ns;
        return status;
    }
    if (s->warm) {
        s->known = true;
        memcpy(s->best, s->warm, sizeof *s->best * (size_t)in->n_units);
        s->best_ns = instance_price(in, s->warm).objective_ns - s->fixed_ns;
    }
    if (!s->options->relax_only && !s->options->no_walk)
        status = walks(s, err);
    if (!s->options->relax_only && !s->options->no_search && !status && !proven(s) &&
        !ilp_late(&s->path->clock))
        status = search(s, err);
    if (!status && (!s->known || s->options->relax_only))
        status = oato_fail(err, OATO_NEGATIVE, "no placement was found");
    if (s->path->restricted)
        s->result->bound_ns = min_i64(s->result->bound_ns, units_bound(s));
    s->result->bound_ns += s->result->bound_ns ? s->fixed_ns : 0;
    return status;
}

/* Leaves place alone unless it returns OATO_OK. */
static oato_status solve_path(const struct instance *in, const struct ilp_options *o,
                              const int32_t *warm, int32_t *place, struct ilp_result *result,
                              struct oato_error *err)
{
    struct path p;
    struct solving s = {.path = &p, .options = o, .warm = warm, .result = result};
    oato_status status = path_cut(&p, in, o->deadline_ns, err);
    s.best = arena_alloc(&p.arena, (size_t)in->n_units + 1, sizeof *s.best);
    if (!status && !s.best)
        status = oato_fail_memory(err, sizeof *s.best * (size_t)in->n_units, "the ILP");
    if (!status)
        status = ilp_guarded(solve, &s, &p.mip, err);
    if (!status)
        memcpy(place, s.best, sizeof *s.best * (size_t)in->n_units);
    result->timed_out = p.clock.ended;
    path_free(&p);
    return status;
}

oato_status solve_ilp(const struct instance *in, const struct ilp_options *o, const int32_t *warm,
                      int32_t *place, struct ilp_result *result, struct oato_error *err)
{
    size_t bytes = sizeof(int32_t) * (size_t)in->n_units;
    memset(result, 0, sizeof *result);
    oato_status status = solve_path(in, o, warm, place, result, err);
    /* rounding inside GLPK must not let a placement through that does not fit */
    if (!status && !instance_fits(in, place, NULL))
        status = oato_fail(err, OATO_NEGATIVE, "the ILP's placement does not fit after all");
    if (status && status != OATO_NEGATIVE)
        return status;
    if (!status)
        result->objective_ns = instance_price(in, place).objective_ns;
    if (warm) {
        int64_t warm_ns = instance_price(in, warm).objective_ns;
        if (result->bound_ns == INT64_MAX) /* it does fit, by less than GLPK's tolerance */
            result->bound_ns = 0;
        if (status || warm_ns <= result->objective_ns) {
            memmove(place, warm, bytes);
            result->objective_ns = warm_ns;
            status = OATO_OK;
        }
    }
    if (!status && result->bound_ns > result->objective_ns)
        result->bound_ns = result->objective_ns;
    return status;
}
