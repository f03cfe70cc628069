/*
 * cost.c - the time of an operator on a device for a step, from a profile.
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
#include "solver/solver.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct point {
    int32_t rows, seqs;
    int64_t depth;
    double ns;
    uint64_t workspace;
    const char *numerics;
};

struct curve {
    int32_t device;
    struct oato_op op;
    char key[OP_KEY_SIZE];
    bool supported;
    uint64_t prepared_bytes;
    int32_t first, n; /* points */
};

struct sort_row { /* a row of the profile on its way into a curve */
    char key[OP_KEY_SIZE];
    const struct profile_row *row;
};

struct cost_model {
    const struct profile *profile;
    struct curve *curves;
    int32_t n_curves;
    struct point *points;
    uint8_t *kinds; /* [device][kind][dtype]: 0 unknown, 1 some shape is supported, 2 none is */
};

static uint8_t *kind_slot(const struct cost_model *c, int32_t device, int kind, int dtype)
{
    return &c->kinds[((size_t)device * OP_KIND_COUNT + (size_t)kind) * DT_COUNT + (size_t)dtype];
}

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
    c->points[*n_points] =
        (struct point){r->size.rows, r->size.seqs,       depth_of(&r->op, &r->size),
                       r->median_ns, r->workspace_bytes, r->numerics};
    ++*n_points;
    last->n++;
}

oato_status cost_create(const struct profile *p, struct cost_model **out, struct oato_error *err)
{
    size_t n = (size_t)p->n_rows, kinds = (size_t)p->n_devices * OP_KIND_COUNT * DT_COUNT;
    struct cost_model *c = calloc(1, sizeof *c);
    struct sort_row *rows = calloc(n + 1, sizeof *rows);
    *out = c;
    if (c) {
        c->profile = p;
        c->curves = calloc(n + 1, sizeof *c->curves);
        c->points = calloc(n + 1, sizeof *c->points);
        c->kinds = calloc(kinds + 1, 1);
    }
    if (!c || !rows || !c->curves || !c->points || !c->kinds) {
        free(rows);
        cost_free(c);
        *out = NULL;
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
    return OATO_OK;
}

void cost_free(struct cost_model *c)
{
    if (!c)
        return;
    free(c->curves);
    free(c->points);
    free(c->kinds);
    free(c);
}

static const struct curve *curve_find(const struct cost_model *c, int32_t device,
                                      const struct oato_op *op)
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

bool cost_lists(const struct cost_model *c, int32_t device, const struct oato_op *op)
{
    const struct profile_device *d = &c->profile->devices[device];
    const struct curve *k = curve_find(c, device, op);
    if (k)
        return k->supported;
    const uint8_t kind = *kind_slot(c, device, op->kind, op->dtype);
    if (kind == 1 || d->runs)
        return kind == 1 || profile_runs(d, op->kind, op->dtype);
    return !kind && (d->data_sheet || times_kind(c, device, op->kind)) &&
           !denies_member(c, device, op);
}

bool cost_supports(const struct cost_model *c, int32_t device, const struct oato_op *op)
{
    const struct profile_device *d = &c->profile->devices[device];
    if (cost_lists(c, device, op))
        return true;
    return (d->is_host || !d->runs) && !curve_find(c, device, op) &&
           *kind_slot(c, device, op->kind, op->dtype) == 0 &&
           (d->is_host || !denies_member(c, device, op));
}

enum cost_known cost_known(const struct cost_model *c, int32_t device, const struct oato_op *op)
{
    const struct profile_device *d = &c->profile->devices[device];
    if (!cost_supports(c, device, op))
        return COST_REFUSED;
    if (cost_measured(c, device, op))
        return COST_TIMED;
    if (*kind_slot(c, device, op->kind, op->dtype) == 1)
        return COST_OTHER_SHAPES;
    return d->data_sheet                          ? COST_DATA_SHEET
           : profile_runs(d, op->kind, op->dtype) ? COST_NEVER_TIMED
                                                  : COST_NEVER_ASKED;
}

bool cost_measured(const struct cost_model *c, int32_t device, const struct oato_op *op)
{
    const struct curve *k = curve_find(c, device, op);
    return k && k->supported && k->n > 0;
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
    int m = 0;
    for (int32_t i = 0; i < n && m < POINTS_MAX;) {
        int32_t same = 1;
        while (i + same < n && p[i + same].rows == p[i].rows)
            same++;
        /* the same positions per row, so that only the number of rows differs */
        const double each = op->sparse ? 1 : (double)p[i].rows / (double)size->rows;
        xs[m] = p[i].rows;
        ys[m++] = along_depth(p + i, same, wanted * each);
        if (p[i].rows <= size->rows || !*numerics)
            *numerics = p[i].numerics;
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
    /* a profile without figures: slow enough that nothing moves there for a guess */
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

/* The class is only named where a library computed the curve: another type's may have that, too,
 * and without the name in the plan its own kernels would run. */
static struct op_cost estimate(const struct cost_model *c, int32_t device, const struct oato_op *op,
                               const struct op_size *size)
{
    const struct profile_device *d = &c->profile->devices[device];
    const struct curve *near = curve_nearest(c, device, op, size);
    struct op_cost r = {.ns = roofline_ns(d, op, size), .estimate = true};
    if (!near)
        return r;
    const struct op_size like = size_like(size, op, &near->op);
    const struct op_cost there = curve_cost(c, near, &near->op, &like);
    r.ns = there.ns * (r.ns / roofline_ns(d, &near->op, &like));
    r.from = near->key;
    r.numerics = there.numerics && strchr(there.numerics, '.') ? there.numerics : NULL;
    return r;
}

struct op_cost cost_of_op(const struct cost_model *c, int32_t device, const struct oato_op *op,
                          const struct op_size *size)
{
    if (size->rows <= 0)
        return (struct op_cost){0};
    const struct curve *k = curve_find(c, device, op);
    return k && k->n ? curve_cost(c, k, op, size) : estimate(c, device, op, size);
}

double cost_of_join(const struct cost_model *c, int32_t device, const struct graph *g,
                    int32_t index, int32_t tokens, int32_t *first)
{
    const enum op_join join =
        tokens <= NUMERICS_DECODE_ROWS ? graph_join(g, index, first) : JOIN_NONE;
    return join == JOIN_NONE ? 0 : c->profile->devices[device].join_ns[join];
}

double cost_of_record(const struct cost_model *c, int32_t device)
{
    return c->profile->devices[device].record_overhead_ns;
}

uint64_t cost_prepared_bytes(const struct cost_model *c, int32_t device, const struct oato_op *op,
                             uint64_t file_bytes)
{
    enum { LARGER = 24 }; /* types whose layout on a GPU is larger are so by at most a part of it */
    const struct profile_device *d = &c->profile->devices[device];
    const struct curve *k = curve_find(c, device, op);
    if (k && k->n)
        return k->prepared_bytes;
    const bool known = d->is_host || d->data_sheet || dtype_info(op->dtype)->block_elems == 1 ||
                       *kind_slot(c, device, op->kind, op->dtype) == 1;
    return known ? file_bytes : file_bytes + file_bytes / LARGER;
}

/* What an accelerator that nobody measured may need: as much as the cuda device takes, or a little
 * more. Products keep their input packed, at most as F16, and what gate is multiplied with; experts
 * a row for each of a token's choices; attention its output packed and its partial results of a
 * divided context. */
static uint64_t workspace_guess(const struct oato_op *op, int32_t rows)
{
    enum { SPLIT_ROWS = 16, SPLIT_SEGMENTS = 128, FLOAT = 4, PACKED = 2, ALIGN = 4096 };
    const uint64_t r = (uint64_t)rows, k = (uint64_t)op->k, n = (uint64_t)op->n;
    const uint64_t pairs = r * (uint64_t)op->experts_used;
    switch (op->kind) {
    case OP_ATTENTION:
        return r * n * PACKED + ALIGN +
               (uint64_t)min_i64(rows, SPLIT_ROWS) * (uint64_t)op->heads *
                   ((uint64_t)op_v_dim(op) + 2) * SPLIT_SEGMENTS * FLOAT;
    case OP_HEAD_MUL_MAT: return r * (uint64_t)op->heads * k * PACKED + ALIGN;
    case OP_MUL_MAT:
    case OP_QKV: return r * k * PACKED + ALIGN;
    case OP_GATE_UP: return r * k * PACKED + r * n * FLOAT + ALIGN;
    case OP_EXPERT_GATE_UP: return r * k * PACKED + pairs * (n + 4) * FLOAT + ALIGN;
    case OP_EXPERT_DOWN: return pairs * k * PACKED + pairs * (n + 4) * FLOAT + ALIGN;
    default: return 0;
    }
}

/* A curve's scratch memory of so many rows. */
static uint64_t curve_workspace(const struct cost_model *c, const struct curve *k, int32_t rows)
{
    int32_t nearest = 0; /* as many rows as wanted or the next more; else the most */
    uint64_t most = 0;
    for (int32_t i = 0; i < k->n; i++) {
        const int32_t here = c->points[k->first + i].rows;
        if (nearest < rows ? here > nearest : here >= rows && here < nearest)
            nearest = here;
    }
    for (int32_t i = 0; i < k->n; i++) {
        const struct point *p = &c->points[k->first + i];
        if (p->rows == nearest && p->workspace > most)
            most = p->workspace;
    }
    if (!nearest || nearest >= rows)
        return most;
    return (uint64_t)fmin((double)most * ((double)rows / nearest), 0x1p62);
}

uint64_t cost_workspace_bytes(const struct cost_model *c, int32_t device, const struct oato_op *op,
                              int32_t rows)
{
    const struct profile_device *d = &c->profile->devices[device];
    const struct curve *k = curve_find(c, device, op);
    if (k && k->n)
        return curve_workspace(c, k, rows);
    const uint64_t guess = d->is_host ? 0 : workspace_guess(op, rows);
    const struct op_size size = {.rows = rows, .seqs = 1, .kv_positions = rows};
    k = d->data_sheet ? NULL : curve_nearest(c, device, op, &size);
    if (!k)
        return guess;
    const double larger = fmax(moved_bytes(op, &size) / moved_bytes(&k->op, &size),
                               op_flops(op, &size) / fmax(op_flops(&k->op, &size), 1));
    const double most = (double)curve_workspace(c, k, rows) * fmax(larger, 1);
    return (uint64_t)fmin(fmax(most, (double)guess), 0x1p62);
}

static const struct profile_link *link_find(const struct profile *p, int32_t from, int32_t to)
{
    for (int32_t i = 0; i < p->n_links; i++)
        if (p->links[i].from == from && p->links[i].to == to && p->links[i].bytes_per_s > 0)
            return &p->links[i];
    return NULL;
}

static double link_ns(const struct profile_link *l, double bytes, double bytes_per_s)
{
    return l ? l->latency_ns + l->sync_ns + bytes / bytes_per_s * 1e9 : -1;
}

static bool is_free(const struct profile *p, int32_t from, int32_t to)
{
    return from == to || (p->devices[from].is_host && p->devices[to].is_host);
}

double cost_of_copy(const struct cost_model *c, int32_t from, int32_t to, double bytes)
{
    const struct profile_link *l = link_find(c->profile, from, to);
    return is_free(c->profile, from, to) ? 0 : link_ns(l, bytes, l ? l->bytes_per_s : 0);
}

double cost_of_stream(const struct cost_model *c, int32_t from, int32_t to, double bytes)
{
    const struct profile_link *l = link_find(c->profile, from, to);
    if (is_free(c->profile, from, to) || !l || !(l->stream_bytes_per_s > 0))
        return cost_of_copy(c, from, to, bytes);
    return link_ns(l, bytes, l->stream_bytes_per_s);
}
