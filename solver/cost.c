/*
 * cost.c - the cost source of our executor: times of operators and copies on the devices of a
 * profile. What they take of memory is in cost_memory.c.
 *
 * The rows of the profile are sorted into curves: one per (device, operator), with the measured
 * points in order of sequences, rows and depth. A size between two points is interpolated. A shape
 * or type without points is an estimate, and marked: the nearest curve of its kind, scaled by the
 * roofline of the device's measured bandwidth and arithmetic, or that roofline where the kind has
 * no curve. Nothing here knows placements.
 *
 * What was not measured is not what cannot run: that only the device can say, in the profile's list
 * of what it supports or in a row of an operator that it refused.
 */
#include "solver/cost_curves_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct sort_row { /* a row of the profile on its way into a curve */
    char key[OP_KEY_SIZE];
    const struct profile_row *row;
};

/* What a time depends on beside rows and sequences: KV positions or, where neurons are skipped, how
 * many are not. */
static int64_t depth_of(const struct oato_op *op, const struct op_size *size)
{
    if (!op->sparse)
        return size->kv_positions;
    return size->active > 0 ? size->active : op_neurons(op);
}

static int compare_rows(const void *x, const void *y)
{
    const struct sort_row *a = x, *b = y;
    int c = order_i64(a->row->device, b->row->device);
    c = c ? c : strcmp(a->key, b->key);
    c = c ? c : order_i64(a->row->size.seqs, b->row->size.seqs);
    c = c ? c : order_i64(a->row->size.rows, b->row->size.rows);
    c = c ? c
          : order_i64(depth_of(&a->row->op, &a->row->size), depth_of(&b->row->op, &b->row->size));
    return c ? c : order_i64(a->row - b->row, 0);
}

static int compare_curves(const void *x, const void *y)
{
    const struct curve *a = x, *b = y;
    int c = order_i64(a->device, b->device);
    return c ? c : strcmp(a->key, b->key);
}

static void add_row(struct cost_model *c, const struct sort_row *s, int32_t *n_points)
{
    const struct profile_row *r = s->row;
    c->no_class[r->device] =
        c->no_class[r->device] ||
        (r->supported && r->size.rows <= NUMERICS_DECODE_ROWS && is_library(r->numerics));
    struct curve *last = c->n_curves ? &c->curves[c->n_curves - 1] : NULL;
    if (!last || last->device != r->device || strcmp(last->key, s->key) != 0) {
        last = &c->curves[c->n_curves++];
        last->device = r->device;
        last->op = r->op;
        memcpy(last->key, s->key, sizeof last->key);
        last->supported = true;
        last->first = *n_points;
    }
    uint8_t *kind = kind_slot(c, r->device, r->op.kind, r->op.dtype);
    if (!r->supported) {
        last->supported = false;
        if (!*kind)
            *kind = 2;
        return;
    }
    *kind = 1;
    if (r->prepared_bytes > last->prepared_bytes)
        last->prepared_bytes = r->prepared_bytes;
    if (r->size.rows <= 0 || !(r->median_ns >= 0))
        return;
    struct point *p = &c->points[(*n_points)++];
    *p = (struct point){r->size.rows, r->size.seqs,       depth_of(&r->op, &r->size),
                        r->median_ns, r->workspace_bytes, r->numerics};
    if (r->own_ns > 0 && c->classes && !plan_classes_have(c->classes, r->numerics)) {
        p->ns = r->own_ns;
        p->workspace =
            profile_workspace_bytes(&c->profile->devices[r->device], &r->op, r->size.rows);
        p->numerics = NULL; /* the device's own, of the step's rows */
    }
    last->n++;
}

const struct curve *curve_find(const struct cost_model *c, int32_t device, const struct oato_op *op)
{
    struct curve want = {.device = device};
    oato_op_key(op, NULL, want.key);
    return bsearch(&want, c->curves, (size_t)c->n_curves, sizeof want, compare_curves);
}

/* Whether the operator is a fusion of one that never runs there in its type. */
static bool denies_member(const struct cost_model *c, int32_t device, const struct oato_op *op)
{
    for (int i = 0; i < op_fusion_count; i++)
        for (int m = 0; op_fusions[i].fused == op->kind && m < op_fusions[i].n_members; m++)
            if (*kind_slot(c, device, op_fusions[i].member[m], op->dtype) == 2)
                return true;
    return false;
}

/* Whether the kind has points on the device in any type. */
static bool times_kind(const struct cost_model *c, int32_t device, int kind)
{
    bool any = false;
    for (int type = 0; type < DT_COUNT && !any; type++)
        any = *kind_slot(c, device, kind, type) == 1;
    return any;
}

static enum cost_known known(const void *context, int32_t device, const struct oato_op *op,
                             bool *listed)
{
    const struct cost_model *c = context;
    const struct profile_device *d = &c->profile->devices[device];
    const struct curve *k = curve_find(c, device, op);
    const uint8_t kind = *kind_slot(c, device, op->kind, op->dtype);
    const bool runs = profile_runs(d, op->kind, op->dtype), denies = denies_member(c, device, op);
    if (k)
        *listed = k->supported;
    else if (kind == 1 || d->runs)
        *listed = kind == 1 || runs;
    else
        *listed = !kind && (d->data_sheet || times_kind(c, device, op->kind)) && !denies;
    if (!*listed && (k || kind || (!d->is_host && (d->runs || denies))))
        return COST_REFUSED;
    return k && k->n       ? COST_TIMED
           : kind == 1     ? COST_OTHER_SHAPES
           : d->data_sheet ? COST_DATA_SHEET
           : runs          ? COST_NEVER_TIMED
                           : COST_NEVER_ASKED;
}

/* y at x through n points with rising xs. */
static double interpolate(const double *xs, const double *ys, int n, double x)
{
    if (n < 1)
        return 0;
    if (x >= xs[n - 1])
        return x == xs[n - 1] || xs[n - 1] <= 0 ? ys[n - 1] : ys[n - 1] * (x / xs[n - 1]);
    if (x <= xs[0]) {
        double least = xs[0] > 0 ? ys[0] * (x / xs[0]) : ys[0];
        if (n == 1)
            return least;
        double line = ys[0] + (ys[1] - ys[0]) * ((x - xs[0]) / (xs[1] - xs[0]));
        return line < least ? least : line > ys[0] ? ys[0] : line;
    }
    int i = 1;
    while (i < n - 1 && x > xs[i])
        i++;
    if (x == xs[i])
        return ys[i];
    return ys[i - 1] + (ys[i] - ys[i - 1]) * ((x - xs[i - 1]) / (xs[i] - xs[i - 1]));
}

enum { POINTS_MAX = 64 }; /* sizes along one axis that are looked at; profiles hold about ten */

/* Time of the points [first, end), which share rows and sequences, at a depth. */
static double along_depth(const struct point *p, int32_t n, double depth)
{
    double xs[POINTS_MAX] = {0}, ys[POINTS_MAX] = {0};
    int m = 0;
    for (int32_t i = 0; i < n && m < POINTS_MAX; i++) {
        if (m && (double)p[i].depth <= xs[m - 1])
            continue;
        xs[m] = (double)p[i].depth;
        ys[m++] = p[i].ns;
    }
    return m == 1 && xs[0] <= 0 ? ys[0] : interpolate(xs, ys, m, depth);
}

/* The points of a curve whose number of sequences is the wanted one, else the nearest below, else
 * the least. */
static void choose_seqs(const struct point *p, int32_t *first, int32_t *n, int32_t seqs)
{
    int32_t best = p[*first].seqs, end = *first + *n;
    for (int32_t i = *first; i < end; i++)
        if (p[i].seqs <= seqs)
            best = p[i].seqs;
    while (p[*first].seqs != best)
        ++*first;
    *n = 0;
    while (*first + *n < end && p[*first + *n].seqs == best)
        ++*n;
}

static double along_rows(const struct point *p, int32_t n, const struct oato_op *op,
                         const struct op_size *size, const char **numerics)
{
    const double wanted = (double)depth_of(op, size);
    double xs[POINTS_MAX] = {0}, ys[POINTS_MAX] = {0};
    int32_t named = 0;
    int m = 0;
    for (int32_t i = 0; i < n && m < POINTS_MAX;) {
        int32_t same = 1;
        while (i + same < n && p[i + same].rows == p[i].rows)
            same++;
        /* the same positions per row, so that only the number of rows differs */
        const double each = op->sparse ? 1 : (double)p[i].rows / (double)size->rows;
        xs[m] = p[i].rows;
        ys[m++] = along_depth(p + i, same, wanted * each);
        /* a prompt's class is not that of decode's rows */
        if (p[i].rows <= size->rows || !*numerics ||
            (size->rows > NUMERICS_DECODE_ROWS && named <= NUMERICS_DECODE_ROWS)) {
            *numerics = p[i].numerics;
            named = p[i].rows;
        }
        i += same;
    }
    return interpolate(xs, ys, m, size->rows);
}

/* Of weights, KV and activations. */
static double moved_bytes(const struct oato_op *op, const struct op_size *size)
{
    return op_bytes(op, size) +
           4.0 * size->rows * ((double)op->k + (double)op->n + 2.0 * (double)op->n2);
}

static double roofline_ns(const struct profile_device *d, const struct oato_op *op,
                          const struct op_size *size)
{
    /* a profile without figures: slow enough that nothing moves there for an estimate */
    double read = d->read_bytes_per_s > 0 ? d->read_bytes_per_s : 1e9;
    double flops = d->flops_per_s > 0 ? d->flops_per_s : 1e9;
    double memory_s = moved_bytes(op, size) / read;
    double compute_s = op_flops(op, size) / flops;
    return (memory_s > compute_s ? memory_s : compute_s) * 1e9;
}

/* A curve's time of a size, which has rows. */
static struct op_cost curve_cost(const struct cost_model *c, const struct curve *k,
                                 const struct oato_op *op, const struct op_size *size)
{
    struct op_cost r = {0};
    int32_t first = k->first, n = k->n;
    choose_seqs(c->points, &first, &n, size->seqs);
    r.ns = along_rows(c->points + first, n, op, size, &r.numerics);
    r.ns *= 1 + c->profile->devices[k->device].rows_overhead * (size->rows - 1) / size->rows;
    return r;
}

/* How unlike two operators of a kind are in a step of that size: the factors, as logarithms, by
 * which they differ in bytes and in arithmetic. Another type counts as little more than another
 * shape, unless one of them has no blocks: other kernels compute it. */
static double unlike(const struct oato_op *a, const struct oato_op *b, const struct op_size *size)
{
    const bool blocks = dtype_info(a->dtype)->block_elems > 1;
    const double type = a->dtype == b->dtype                                ? 0
                        : blocks == (dtype_info(b->dtype)->block_elems > 1) ? 0.1
                                                                            : 1;
    return type + fabs(log(moved_bytes(a, size) / moved_bytes(b, size))) +
           fabs(log(fmax(op_flops(a, size), 1) / fmax(op_flops(b, size), 1)));
}

/* The curve that the operator's time is best taken from; NULL: its kind has none on the device. */
static const struct curve *curve_nearest(const struct cost_model *c, int32_t device,
                                         const struct oato_op *op, const struct op_size *size)
{
    const struct curve *best = NULL;
    double least = 0;
    for (int32_t i = 0; i < c->n_curves; i++) {
        const struct curve *k = &c->curves[i];
        if (k->device != device || k->op.kind != op->kind || !k->n || k->op.sparse != op->sparse)
            continue;
        const double here = unlike(op, &k->op, size);
        if (best && here >= least)
            continue;
        best = k;
        least = here;
    }
    return best;
}

/* The same size of another operator: as many of its neurons are active, in proportion. */
static struct op_size size_like(const struct op_size *size, const struct oato_op *op,
                                const struct oato_op *other)
{
    struct op_size like = *size;
    if (size->active > 0 && op_neurons(op) > 0)
        like.active =
            (int32_t)max_i64(1, llround((double)size->active * op_neurons(other) / op_neurons(op)));
    return like;
}

/* Where a curve lies: what the roofline and the curve say of that size of its operator. */
struct spot {
    double roofline, ns;
    const char *numerics;
};

static struct spot spot_of(const struct cost_model *c, const struct curve *k,
                           const struct oato_op *op, const struct op_size *size)
{
    const struct op_size like = size_like(size, op, &k->op);
    const struct op_cost there = curve_cost(c, k, &k->op, &like);
    return (struct spot){roofline_ns(&c->profile->devices[k->device], &k->op, &like), there.ns,
                         there.numerics};
}

/* Of the curves with the type of `near`, the one that the time is taken from together with it: the
 * next larger or smaller one beyond x or, where all are larger, the next larger one. */
static bool spot_beside(const struct cost_model *c, const struct curve *near, const struct spot *at,
                        double x, const struct oato_op *op, const struct op_size *size,
                        struct spot *out)
{
    struct spot beyond = {.ns = -1}, larger = {.ns = -1};
    for (int32_t i = 0; i < c->n_curves; i++) {
        const struct curve *k = &c->curves[i];
        if (k == near || k->device != near->device || k->op.kind != op->kind || !k->n ||
            k->op.sparse != op->sparse || k->op.dtype != near->op.dtype)
            continue;
        const struct spot s = spot_of(c, k, op, size);
        const bool past = at->roofline < x ? s.roofline >= x : s.roofline <= x;
        if (past && (beyond.ns < 0 || fabs(s.roofline - x) < fabs(beyond.roofline - x)))
            beyond = s;
        if (s.roofline > at->roofline && (larger.ns < 0 || s.roofline < larger.roofline))
            larger = s;
    }
    *out = beyond.ns < 0 && at->roofline > x ? larger : beyond;
    return out->ns >= 0 && out->roofline != at->roofline;
}

/* What an estimate comes from, and what 90 % of such are off by in steps of few and of many rows:
 * measured by leaving rows of matrices and attention out of the profiles of docs/hardware. */
enum { OTHER_SHAPE, OTHER_TYPE, ROOFLINE };
static const double off[][2] = {
    [OTHER_SHAPE] = {0.35, 0.60}, [OTHER_TYPE] = {0.50, 0.35}, [ROOFLINE] = {4.60, 3.15}};

/* On the line through the nearest curve and one beside it, as sizes are; of one alone in proportion
 * to the roofline. The class is only named where a library computed the curve: another type's may
 * have that, too, and without the name in the plan its own kernels would run. */
static struct op_cost estimate(const struct cost_model *c, int32_t device, const struct oato_op *op,
                               const struct op_size *size)
{
    const struct curve *near = curve_nearest(c, device, op, size);
    const bool many = size->rows > NUMERICS_DECODE_ROWS;
    struct op_cost r = {.ns = roofline_ns(&c->profile->devices[device], op, size),
                        .estimate = true,
                        .off = off[ROOFLINE][many]};
    struct spot other;
    if (!near)
        return r;
    r.off = off[near->op.dtype == op->dtype ? OTHER_SHAPE : OTHER_TYPE][many];
    const struct spot at = spot_of(c, near, op, size);
    double xs[2] = {at.roofline}, ys[2] = {at.ns};
    int n = 1;
    if (spot_beside(c, near, &at, r.ns, op, size, &other)) {
        const int last = other.roofline > at.roofline;
        xs[!last] = at.roofline;
        ys[!last] = at.ns;
        xs[last] = other.roofline;
        ys[last] = other.ns;
        n = 2;
    }
    r.ns = interpolate(xs, ys, n, r.ns);
    r.from = near->key;
    r.numerics = is_library(at.numerics) ? at.numerics : NULL;
    return r;
}

static struct op_cost cost_at(const struct cost_model *c, int32_t device, const struct oato_op *op,
                              const struct op_size *size)
{
    const struct curve *k = curve_find(c, device, op);
    return k && k->n ? curve_cost(c, k, op, size) : estimate(c, device, op, size);
}

/* In a span as many calls as its functions take for the rows, each with all of its rows. */
static struct op_cost op_cost(const void *context, int32_t device, const struct oato_op *op,
                              const struct op_size *size)
{
    const struct cost_model *c = context;
    const struct profile_device *d = &c->profile->devices[device];
    if (!d->spans || !d->rows[0] || !op_spans(op))
        return cost_at(c, device, op, size);
    const struct row_steps t = row_steps(d->rows, size->rows);
    struct op_size whole = *size, rest = *size;
    whole.rows = t.largest;
    rest.rows = t.rest;
    struct op_cost r = cost_at(c, device, op, t.whole ? &whole : &rest);
    r.ns *= t.whole ? t.whole : 1;
    if (t.whole && t.rest)
        r.ns += cost_at(c, device, op, &rest).ns;
    return r;
}

static struct cost_device device_cost(const void *context, int32_t device)
{
    const struct cost_model *c = context;
    const struct profile_device *d = &c->profile->devices[device];
    struct cost_device r = {.is_host = d->is_host,
                            .data_sheet = d->data_sheet,
                            .refills = d->refills,
                            .keeps = d->keeps,
                            .record_ns = d->record_overhead_ns,
                            .step_ns = d->step_overhead_ns,
                            .values = d->values,
                            .spans = d->spans,
                            .no_class = c->no_class[device],
                            .unit_ns = d->unit_overhead_ns,
                            .compile_s = d->compile_s,
                            .compile_cached = d->compile_cached,
                            .library_bytes = d->library_bytes};
    memcpy(r.join_ns, d->join_ns, sizeof r.join_ns);
    memcpy(r.rows, d->rows, sizeof r.rows);
    return r;
}

static const struct profile_link *link_find(const struct profile *p, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < p->n_links; i++)
        if (p->links[i].from == from && p->links[i].to == to && p->links[i].bytes_per_s > 0)
            return &p->links[i];
    return NULL;
}

static double copy(const void *context, int32_t from, int32_t to, double bytes, bool streams)
{
    const struct profile *p = ((const struct cost_model *)context)->profile;
    const struct profile_device *a = &p->devices[from], *b = &p->devices[to];
    const struct profile_link *l = link_find(p, from, to);
    if (from == to)
        return 0;
    if (!l && a->is_host &&
        b->is_host) /* every byte is read on one side and written on the other */
        return bytes * (1 / fmax(a->read_bytes_per_s, 1) + 1 / fmax(b->read_bytes_per_s, 1)) * 1e9;
    if (!l)
        return -1;
    const double rate =
        streams && l->stream_bytes_per_s > 0 ? l->stream_bytes_per_s : l->bytes_per_s;
    return l->latency_ns + l->sync_ns + bytes / rate * 1e9;
}

static double storage(const void *context)
{
    return profile_storage_rate(((const struct cost_model *)context)->profile);
}

static void model_free(void *context)
{
    struct cost_model *c = context;
    free(c->curves);
    free(c->points);
    free(c->kinds);
    free(c->no_class);
    free(c);
}

oato_status cost_create(const struct profile *p, const char *classes, struct cost_source **out,
                        struct oato_error *err)
{
    size_t n = (size_t)p->n_rows, kinds = (size_t)p->n_devices * OP_KIND_COUNT * DT_COUNT;
    struct cost_model *c = calloc(1, sizeof *c);
    struct sort_row *rows = calloc(n + 1, sizeof *rows);
    *out = NULL;
    if (c) {
        c->profile = p;
        c->classes = classes;
        c->curves = calloc(n + 1, sizeof *c->curves);
        c->points = calloc(n + 1, sizeof *c->points);
        c->kinds = calloc(kinds + 1, 1);
        c->no_class = calloc((size_t)p->n_devices + 1, sizeof *c->no_class);
    }
    if (!c || !rows || !c->curves || !c->points || !c->kinds || !c->no_class) {
        free(rows);
        if (c)
            model_free(c);
        return oato_fail_memory(err, n * sizeof *rows, "the rows of a profile");
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        const struct profile_row *r = &p->rows[i];
        if (r->device < 0 || r->device >= p->n_devices || r->op.kind >= OP_KIND_COUNT ||
            r->op.dtype >= DT_COUNT)
            continue;
        oato_op_key(&r->op, NULL, rows[kept].key);
        rows[kept++].row = r;
    }
    qsort(rows, kept, sizeof *rows, compare_rows);
    int32_t n_points = 0;
    for (size_t i = 0; i < kept; i++)
        add_row(c, &rows[i], &n_points);
    free(rows);
    c->classes = NULL;
    c->source = (struct cost_source){.context = c,
                                     .known = known,
                                     .op = op_cost,
                                     .device = device_cost,
                                     .copy = copy,
                                     .storage = storage,
                                     .prepared = cost_model_prepared,
                                     .workspace = cost_model_workspace,
                                     .free = model_free};
    *out = &c->source;
    return OATO_OK;
}
