/*
 * cost_memory.c - what operators take of memory on the devices of a profile: their prepared
 * weights, and scratch memory, which is never said to be less than what they take. What was never
 * measured is bounded by the rows that tell most of it.
 */
#include "solver/cost_curves_internal.h"

#include <math.h>

uint64_t cost_model_prepared(const void *context, int32_t device, const struct oato_op *op,
                             uint64_t file_bytes)
{
    const struct cost_model *c = context;
    enum { LARGER = 24 }; /* types whose layout on a GPU is larger are so by at most a part of it */
    const struct profile_device *d = &c->profile->devices[device];
    const struct curve *k = curve_find(c, device, op);
    if (k && k->n)
        return k->prepared_bytes;
    if (d->is_host && op_weight_use(op) == WEIGHT_LOOKUP)
        return 0; /* stays in the model's file */
    const bool known = d->is_host || d->data_sheet || dtype_info(op->dtype)->block_elems == 1 ||
                       *kind_slot(c, device, op->kind, op->dtype) == 1;
    return known ? file_bytes : file_bytes + file_bytes / LARGER;
}

/* A curve's scratch memory of so many rows: that of the next larger size or, beyond all, of the
 * largest in proportion; but no more than the next smaller one's and what the device's kernels are
 * known to take for the rows in between. */
static double curve_workspace(const struct cost_model *c, const struct curve *k, int32_t rows)
{
    const struct profile_device *d = &c->profile->devices[k->device];
    const struct point *below = NULL, *above = NULL;
    for (int32_t i = 0; i < k->n; i++) { /* of a size the most at any depth */
        const struct point *p = &c->points[k->first + i];
        if (p->rows <= rows && (!below || p->rows > below->rows ||
                                (p->rows == below->rows && p->workspace > below->workspace)))
            below = p;
        if (p->rows >= rows && (!above || p->rows < above->rows ||
                                (p->rows == above->rows && p->workspace > above->workspace)))
            above = p;
    }
    if (!below)
        return above ? (double)above->workspace : 0;
    const double most =
        above ? (double)above->workspace : (double)below->workspace * ((double)rows / below->rows);
    const double base = (double)profile_workspace_bytes(d, &k->op, below->rows);
    if (!(base > 0) || (above && is_library(above->numerics) != is_library(below->numerics)))
        return most;
    const double grown = (double)profile_workspace_bytes(d, &k->op, rows) - base;
    return fmin(most, (double)below->workspace + grown);
}

/* Workspace grows no faster than an operator's sizes, so that a measured row, each size scaled up,
 * bounds what was never measured. */
static double grown(double to, double from)
{
    return from > 0 && to > from ? to / from : 1;
}

/* No term of our kernels has more than one of the widths. A library unpacks whole matrices. */
static double sizes_grown(const struct oato_op *to, const struct oato_op *from, bool library)
{
    const double k = grown(to->k, from->k),
                 n = grown(to->n + 2.0 * to->n2, from->n + 2.0 * from->n2),
                 head = grown(to->head_dim, from->head_dim),
                 v = grown(op_v_dim(to), op_v_dim(from));
    return fmax(library ? k * n : fmax(k, n), fmax(head, v)) * grown(to->heads, from->heads) *
           grown(to->experts_used, from->experts_used);
}

/* How well a curve tells of another operator's workspace: 3 the same, 2 the same kind and type, 1
 * the same kind, 0 also matrices; -1: nothing. */
static int likeness(const struct oato_op *op, const struct oato_op *row)
{
    if (row->kind != op->kind)
        return op_weight_use(op) == WEIGHT_MATRIX && op_weight_use(row) == WEIGHT_MATRIX ? 0 : -1;
    if (row->dtype != op->dtype)
        return 1;
    return row->k == op->k && row->n == op->n && row->heads == op->heads ? 3 : 2;
}

/* By the curves that tell most: the least that one of them allows. *best: how much that is. */
static double workspace_scaled(const struct cost_model *c, int32_t device, const struct oato_op *op,
                               int32_t rows, int *best)
{
    double least = 0;
    *best = -1;
    for (int32_t i = 0; i < c->n_curves; i++) {
        const struct curve *k = &c->curves[i];
        const int like = k->device == device && k->n ? likeness(op, &k->op) : -1;
        if (like < 0 || like < *best)
            continue;
        const bool library = is_library(c->points[k->first + k->n - 1].numerics);
        const double bytes = curve_workspace(c, k, rows) * sizes_grown(op, &k->op, library);
        least = like > *best || bytes < least ? bytes : least;
        *best = like;
    }
    return least;
}

/* Whether the curve takes more the longer the context is. */
static bool grows_with_depth(const struct cost_model *c, const struct curve *k)
{
    const struct point *p = &c->points[k->first];
    for (int32_t i = 1; i < k->n; i++)
        if (p[i].rows == p[i - 1].rows && p[i].workspace != p[i - 1].workspace)
            return true;
    return false;
}

/* A context that is divided has partial results, of which there are more the longer it is; the rest
 * does not depend on the number of tokens. */
static double attention_workspace(const struct cost_model *c, int32_t device,
                                  const struct oato_op *op, const struct op_size *size)
{
    double most = 0;
    int best = -1;
    for (int32_t i = 0; i < c->n_curves; i++) {
        const struct curve *k = &c->curves[i];
        if (k->device != device || k->op.kind != OP_ATTENTION)
            continue;
        const int like = likeness(op, &k->op);
        for (int32_t j = 0; j < k->n && like >= best; j++) {
            const struct point *p = &c->points[k->first + j];
            const struct op_size at = {.rows = p->rows, .seqs = p->seqs, .kv_positions = p->depth};
            const double partial = (double)op_attention_partial_bytes(&k->op, &at),
                         bytes = fmax((double)p->workspace - partial, 0) *
                                 sizes_grown(op, &k->op, false);
            most = like > best || bytes > most ? bytes : most;
            best = like;
        }
    }
    return most > 0 ? most + (double)op_attention_partial_bytes(op, size) : 0;
}

/* A host that nobody measured: a thread's tile of unpacked weights and results, and the packed
 * input, about as much as the roomiest kernels take. */
static double host_guess(const struct profile_device *d, const struct oato_op *op,
                         const struct op_size *size)
{
    enum { SCRATCH = 256 << 10, PACKED = 3, PANEL = 64 };
    const double threads = d->threads > 0 ? d->threads : 1, rows = size->rows,
                 pairs = rows * (op_has_experts(op) ? op->experts_used : 1),
                 all = op->kind == OP_HEAD_MUL_MAT ? pairs * op->heads : pairs;
    return threads * (SCRATCH + rows * PANEL * sizeof(float)) + all * op->k * PACKED;
}

/* Of shapes that were timed, that; of a timed type, what its rows allow; else also no less than
 * what accelerators are known or guessed to take. */
uint64_t cost_model_workspace(const void *context, int32_t device, const struct oato_op *op,
                              const struct op_size *size)
{
    const struct cost_model *c = context;
    const struct profile_device *d = &c->profile->devices[device];
    const struct curve *k = curve_find(c, device, op);
    const bool matrix = op_weight_use(op) == WEIGHT_MATRIX, attention = op->kind == OP_ATTENTION;
    double bytes = 0;
    if (attention && (d->is_host || (k && grows_with_depth(c, k))))
        bytes = attention_workspace(c, device, op, size);
    else if (k && k->n)
        bytes = curve_workspace(c, k, size->rows);
    else if (matrix || attention || !d->is_host) {
        int like = -1;
        bytes = d->data_sheet ? 0 : workspace_scaled(c, device, op, size->rows, &like);
        if (like < 2)
            bytes = fmax(bytes, (double)profile_workspace_bytes(d, op, size->rows));
        if (d->is_host && d->data_sheet && matrix && !(bytes > 0))
            bytes = host_guess(d, op, size);
    }
    return (uint64_t)fmin(bytes, 0x1p62);
}
