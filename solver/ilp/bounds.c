/*
 * bounds.c - lower bounds of paths. The memory prices of the relaxation bound every path
 * (Lagrange); path_expand lists the patterns that a path better than the best known one can use.
 */
#include "solver/ilp/ilp_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

bool path_price_tables(const struct path *p, const double *ns_per_byte, struct arena *a,
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

oato_status path_make_bounds(const struct path *p, const double *ns_per_byte, struct bounds *out,
                             struct oato_error *err)
{
    size_t n = ((size_t)p->n_blocks + 1) * ((size_t)p->n_ends + 1);
    struct priced at;
    memset(out, 0, sizeof *out);
    arena_init(&out->arena);
    out->so_far = arena_alloc(&out->arena, n, sizeof(double));
    out->onward = arena_alloc(&out->arena, n, sizeof(double));
    if (!out->so_far || !out->onward || !path_price_tables(p, ns_per_byte, &out->arena, &at))
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
    oato_status status = path_make_bounds(p, ns_per_byte, &b, err);
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
