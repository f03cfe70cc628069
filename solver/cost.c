/*
 * cost.c - the time of an operator on a device for a step, from a profile.
 *
 * The rows of the profile are sorted into curves: one per (device, operator), with the measured
 * points in order of sequences, rows and depth. A size between two points is interpolated,
 * a shape without points falls back to a roofline of the device's measured bandwidth and
 * arithmetic and is marked as an estimate. Nothing here knows placements.
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

bool cost_lists(const struct cost_model *c, int32_t device, const struct oato_op *op)
{
    const struct curve *k = curve_find(c, device, op);
    if (k)
        return k->supported;
    const uint8_t kind = *kind_slot(c, device, op->kind, op->dtype);
    if (kind || !c->profile->devices[device].data_sheet)
        return kind == 1;
    return !denies_member(c, device, op);
}

bool cost_supports(const struct cost_model *c, int32_t device, const struct oato_op *op)
{
    if (cost_lists(c, device, op))
        return true;
    return c->profile->devices[device].is_host && !curve_find(c, device, op) &&
           *kind_slot(c, device, op->kind, op->dtype) == 0;
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

static double roofline_ns(const struct profile_device *d, const struct oato_op *op,
                          const struct op_size *size)
{
    /* a profile without figures: slow enough that nothing moves there for a guess */
    double read = d->read_bytes_per_s > 0 ? d->read_bytes_per_s : 1e9;
    double flops = d->flops_per_s > 0 ? d->flops_per_s : 1e9;
    double activations = 4.0 * size->rows * ((double)op->k + (double)op->n + 2.0 * (double)op->n2);
    double memory_s = (op_bytes(op, size) + activations) / read;
    double compute_s = op_flops(op, size) / flops;
    return (memory_s > compute_s ? memory_s : compute_s) * 1e9;
}

struct op_cost cost_of_op(const struct cost_model *c, int32_t device, const struct oato_op *op,
                          const struct op_size *size)
{
    struct op_cost r = {0};
    if (size->rows <= 0)
        return r;
    const struct curve *k = curve_find(c, device, op);
    if (!k || !k->n) {
        r.estimate = true;
        r.ns = roofline_ns(&c->profile->devices[device], op, size);
        return r;
    }
    int32_t first = k->first, n = k->n;
    choose_seqs(c->points, &first, &n, size->seqs);
    r.ns = along_rows(c->points + first, n, op, size, &r.numerics);
    r.ns *= 1 + c->profile->devices[device].rows_overhead * (size->rows - 1) / size->rows;
    return r;
}

double cost_of_join(const struct cost_model *c, int32_t device, const struct graph *g,
                    int32_t index, int32_t tokens, int32_t *first)
{
    const enum op_join join =
        tokens <= NUMERICS_DECODE_ROWS ? graph_join(g, index, first) : JOIN_NONE;
    return join == JOIN_NONE ? 0 : c->profile->devices[device].join_ns[join];
}

uint64_t cost_prepared_bytes(const struct cost_model *c, int32_t device, const struct oato_op *op,
                             uint64_t file_bytes)
{
    const struct curve *k = curve_find(c, device, op);
    return k && k->n ? k->prepared_bytes : file_bytes;
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

uint64_t cost_workspace_bytes(const struct cost_model *c, int32_t device, const struct oato_op *op,
                              int32_t rows)
{
    const struct profile_device *d = &c->profile->devices[device];
    const struct curve *k = curve_find(c, device, op);
    if (d->data_sheet && !d->is_host && (!k || !k->n))
        return workspace_guess(op, rows);
    int32_t nearest = 0; /* as many rows as wanted or the next more; else the most */
    uint64_t most = 0;
    for (int32_t i = 0; k && i < k->n; i++) {
        const int32_t here = c->points[k->first + i].rows;
        if (nearest < rows ? here > nearest : here >= rows && here < nearest)
            nearest = here;
    }
    for (int32_t i = 0; k && i < k->n; i++) {
        const struct point *p = &c->points[k->first + i];
        if (p->rows == nearest && p->workspace > most)
            most = p->workspace;
    }
    if (!nearest || nearest >= rows)
        return most;
    return (uint64_t)fmin((double)most * ((double)rows / nearest), 0x1p62);
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
