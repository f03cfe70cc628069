/*
 * asc_op_experts.c - mixture of experts, without the host knowing who was chosen: ids become
 * indices on the device, by which the matrices of a token's experts are gathered and multiplied.
 * With about as many pairs of tokens and experts as there are experts, all are multiplied with all
 * tokens, and the pairs' rows are gathered instead.
 *
 * Where the device holds only some experts, ids outside are led to one inside; an output row of
 * theirs keeps what it had (GATE_UP), or they weigh nothing (DOWN).
 */
#include "kernels/ascend/asc_ops.h"

#include <stdlib.h>

enum {
    ALIGNED = 8,     /* indices from one token, or expert, to the next: 32 bytes */
    ALIGNED_ROW = 16 /* elements of F16 */
};
#define DENSE_MOST ((int64_t)1 << 25) /* elements of all experts' rows at once: 64 MB */
#define LEAST_SUM  0x1p-14f           /* that weights of a choice are divided by */
#define FAR        1e30f              /* what a group that is not chosen loses */
#define LARGEST    3e38f

/* ---------------------------------------------------------------------------------- route -- */

bool asc_supports_route(const struct asc_device *d, const struct oato_op *op)
{
    (void)d;
    return !op->route_share;
}

/* What rows of scores begin at, or the numbers of rows. */
oato_status asc_prepare_choice(struct compiled *c, uint32_t index, struct oato_error *err)
{
    const struct program_record *r = &c->program->records[index];
    const int32_t rows = program_rows(c->program, r->rows);
    const float each = r->op.kind == OP_ROUTE ? (float)r->op.k : 1;
    float *begin = malloc((size_t)rows * sizeof *begin);
    if (!begin)
        return oato_fail_memory(err, (uint64_t)rows * sizeof *begin, "rows of experts");
    for (int32_t i = 0; i < rows; i++)
        begin[i] = (float)i * each;
    const oato_status status = asc_constant(c, index, begin, (uint64_t)rows * sizeof *begin, err);
    free(begin);
    return status;
}

/* The k largest along the last dimension; indices of I64. */
static void largest(struct asc_emit *e, struct asc_part x, bool is_largest, struct asc_part values,
                    struct asc_part indices)
{
    const int held = e->n_held;
    ASC_CALL(e, Topk, asc_t(e, x), values.dims[values.n - 1], x.n - 1, is_largest, true,
             asc_t(e, values), asc_t(e, indices));
    asc_rewind(e, (struct asc_mark){.room = e->room, .held = held});
}

static struct asc_part alike(struct asc_emit *e, struct asc_part p)
{
    return asc_part_new(e, p.type, p.n, p.dims);
}

static struct asc_part route_scores(struct asc_emit *e, struct asc_part logits)
{
    const struct asc_part scores = alike(e, logits);
    const int held = e->n_held;
    switch ((enum route_score)e->r->op.route_score) {
    case ROUTE_SOFTMAX: ASC_CALL(e, Softmax, asc_t(e, logits), -1, asc_t(e, scores)); break;
    case ROUTE_SIGMOID: ASC_CALL(e, Sigmoid, asc_t(e, logits), asc_t(e, scores)); break;
    case ROUTE_ROOT_SOFTPLUS: {
        const struct asc_part soft = alike(e, logits);
        ASC_CALL(e, Softplus, asc_t(e, logits), asc_number(e, 1), asc_number(e, 20),
                 asc_t(e, soft));
        ASC_CALL(e, Sqrt, asc_t(e, soft), asc_t(e, scores));
        break;
    }
    case ROUTE_SCORE_COUNT: break;
    }
    asc_rewind(e, (struct asc_mark){.room = e->room, .held = held});
    return scores;
}

/* Takes FAR and more from the experts of all but the best groups. */
static struct asc_part in_groups(struct asc_emit *e, struct asc_part scores)
{
    const struct oato_op *op = &e->r->op;
    const int64_t T = e->rows, n = op->route_groups, each = op->k / n, used = op->route_groups_used;
    const int64_t best = each > 1 ? 2 : 1;
    const struct asc_part by_group = asc_shaped(scores, ASC_DIMS(T, n, each));
    const struct asc_part top = asc_part_new(e, ASC_F32, ASC_DIMS(T, n, best));
    const struct asc_part top_at = asc_part_new(e, ASC_I64, ASC_DIMS(T, n, best));
    const struct asc_part sum = asc_part_new(e, ASC_F32, ASC_DIMS(T, n));
    const struct asc_part chosen = asc_part_new(e, ASC_F32, ASC_DIMS(T, used));
    const struct asc_part chosen_at = asc_part_new(e, ASC_I64, ASC_DIMS(T, used));
    const struct asc_part least = asc_part_new(e, ASC_F32, ASC_DIMS(T, 1));
    const struct asc_part behind = alike(e, sum), low = alike(e, sum), loss = alike(e, sum);
    const struct asc_part out = alike(e, scores);
    largest(e, by_group, true, top, top_at);
    asc_sum(e, top, 2, false, sum);
    largest(e, sum, true, chosen, chosen_at);
    asc_slice(e, chosen, 1, used - 1, least);
    asc_sub(e, sum, least, behind);
    asc_clamp(e, behind, -LARGEST / FAR, 0, low);
    asc_scale(e, low, FAR, loss);
    asc_add(e, by_group, asc_shaped(loss, ASC_DIMS(T, n, 1)),
            asc_shaped(out, ASC_DIMS(T, n, each)));
    return out;
}

void asc_emit_route(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const int64_t T = e->rows, used = op->experts_used, k = op->k;
    struct asc_part scores = route_scores(e, asc_part_in(e, 0)), choosing = scores, bias, order;
    if (asc_weight_part(e, 0, ASC_DIMS(1, k), &bias)) {
        choosing = alike(e, scores);
        asc_add(e, scores, bias, choosing);
    }
    if (op->route_groups)
        choosing = in_groups(e, choosing);
    if (asc_weight_part(e, 1, ASC_DIMS(k), &order)) { /* groups are of ids, choices are of places */
        const struct asc_part id = asc_as(e, order, ASC_I32);
        const struct asc_part placed[2] = {alike(e, scores), alike(e, scores)};
        asc_select(e, scores, 1, id, placed[0]);
        asc_select(e, choosing, 1, id, placed[1]);
        scores = placed[0];
        choosing = placed[1];
    }
    const struct asc_part best = asc_part_new(e, ASC_F32, ASC_DIMS(T, used));
    const struct asc_part at = asc_part_new(e, ASC_I64, ASC_DIMS(T, used));
    const struct asc_part ids = alike(e, best), flat = alike(e, best);
    const struct asc_part weights = alike(e, best), shares = alike(e, best);
    largest(e, choosing, true, best, at);
    largest(e, asc_as(e, at, ASC_F32), false, ids, at); /* ascending */
    asc_add(e, ids, asc_part(ASC_F32, asc_constant_address(e), ASC_DIMS(T, 1)), flat);
    asc_select(e, asc_shaped(scores, ASC_DIMS(T * k)), 0,
               asc_shaped(asc_as(e, flat, ASC_I32), ASC_DIMS(T * used)),
               asc_shaped(weights, ASC_DIMS(T * used)));
    struct asc_part choice[2] = {ids, weights};
    if (op->route_norm) {
        const struct asc_part sum = asc_part_new(e, ASC_F32, ASC_DIMS(T, 1)), by = alike(e, sum);
        asc_sum(e, weights, 1, true, sum);
        asc_clamp(e, sum, LEAST_SUM, LARGEST, by);
        asc_div(e, weights, by, shares);
        choice[1] = shares;
    }
    if (op->scale != 0) {
        const struct asc_part scaled = alike(e, weights);
        asc_scale(e, choice[1], op->scale, scaled);
        choice[1] = scaled;
    }
    asc_cat(e, 2, choice, 1, asc_part_out(e, 0));
}

/* ---------------------------------------------------------------------------------- choice - */

bool asc_supports_experts(const struct asc_device *d, const struct oato_op *op)
{
    if (op->expert_slots)
        return false; /* experts that come and go */
    const enum asc_form form = asc_form_of(d, (oato_dtype)op->dtype, WEIGHT_MATRIX);
    if (op->one_tensor && (form == ASC_FORM_Q8 || form == ASC_FORM_Q4) &&
        (int64_t)op->n * op->k % (ASC_GROUP * ALIGNED_ROW))
        return false; /* where up's scales begin */
    for (int i = 0; i < op_weight_least(op); i++)
        if (!asc_multiplies(d, op_weight_dtype(op, i), op->n, op->k))
            return false;
    return op->k % ALIGNED_ROW == 0;
}

/* A step's choices. */
struct choice {
    int64_t T, used;
    bool partial;            /* not all experts are here */
    struct asc_part ids;     /* [T * used] of all experts, I32 */
    struct asc_part place;   /* [T, used] among the experts that are here, F32 */
    struct asc_part held;    /* [T, used, ALIGNED]: the first of each is its place here, I32 */
    struct asc_part weights; /* [T, used, 1] F32 */
    struct asc_part present; /* [T, used, 1] F32: 1, or 0 where the expert is elsewhere */
};

static void choice_read(struct asc_emit *e, struct choice *c)
{
    const struct oato_op *op = &e->r->op;
    const int64_t T = e->rows, used = op->experts_used;
    const float most = (float)(op_experts_held(op) - 1);
    const struct asc_part in = asc_part_in(e, 1);
    const struct asc_part ids = asc_part_new(e, ASC_F32, ASC_DIMS(T, used));
    struct asc_part place = ids;
    *c = (struct choice){.T = T, .used = used, .partial = op_experts_held(op) < op->experts};
    c->weights = alike(e, ids);
    asc_slice(e, in, 1, 0, ids);
    asc_slice(e, in, 1, used, c->weights);
    c->ids = asc_shaped(asc_as(e, ids, ASC_I32), ASC_DIMS(T * used));
    c->weights = asc_shaped(c->weights, ASC_DIMS(T, used, 1));
    if (c->partial) {
        const struct asc_part own = alike(e, ids), off = alike(e, ids), far = alike(e, ids);
        const struct asc_part absent = alike(e, ids), less = alike(e, ids);
        const int held = e->n_held;
        place = alike(e, ids);
        c->present = alike(e, ids);
        ASC_CALL(e, Adds, asc_t(e, ids), asc_number(e, -(float)op->expert_first), asc_number(e, 1),
                 asc_t(e, own));
        asc_clamp(e, own, 0, most, place);
        asc_sub(e, own, place, off);
        asc_mul(e, off, off, far);
        asc_clamp(e, far, 0, 1, absent);
        asc_scale(e, absent, -1, less);
        ASC_CALL(e, Adds, asc_t(e, less), asc_number(e, 1), asc_number(e, 1), asc_t(e, c->present));
        asc_rewind(e, (struct asc_mark){.room = e->room, .held = held});
        c->present = asc_shaped(c->present, ASC_DIMS(T, used, 1));
    }
    c->place = place;
    c->held = asc_part_new(e, ASC_I32, ASC_DIMS(T, used, ALIGNED));
    asc_copy(e, asc_shaped(place, ASC_DIMS(T, used, 1)), asc_cut(c->held, 2, 0, 1));
}

/* The place of expert i of token t, [1]. */
static struct asc_part place_of(const struct choice *c, int64_t t, int64_t i)
{
    struct asc_part p = asc_cut(asc_cut(c->held, 0, t, 1), 1, i, 1);
    return asc_shaped(p, ASC_DIMS(1));
}

/* ------------------------------------------------------------------------------- products -- */

/* Experts of `rows` rows each, of which those from `row` on are multiplied. */
struct experts {
    struct asc_matrix m;
    int64_t n, rows, row;
};

/* The matrix of one expert, gathered. */
static struct asc_matrix expert_gathered(struct asc_emit *e, const struct experts *x,
                                         struct asc_part place)
{
    const int64_t each = x->rows * x->m.k, experts = x->m.rows / x->rows;
    const bool bytes = x->m.form == ASC_FORM_Q8 || x->m.form == ASC_FORM_Q4;
    const int64_t values = x->m.form == ASC_FORM_Q4 ? each / 2 : each;
    const enum asc_type type = bytes ? ASC_I8 : asc_form_type(x->m.form);
    struct asc_matrix out = {.form = x->m.form, .rows = x->rows, .k = x->m.k};
    const struct asc_part got = asc_part_new(e, type, ASC_DIMS(1, values));
    asc_select(e, asc_part(type, x->m.values, ASC_DIMS(experts, values)), 0, place, got);
    out.values = got.at;
    if (bytes) {
        const struct asc_part scales = asc_part_new(e, ASC_F16, ASC_DIMS(1, each / ASC_GROUP));
        asc_select(e, asc_part(ASC_F16, x->m.scales, ASC_DIMS(experts, each / ASC_GROUP)), 0, place,
                   scales);
        out.scales = scales.at;
    }
    return out;
}

/* Whether all experts are multiplied with all tokens: more arithmetic than pairs need, but a call
 * for each expert instead of three for each pair, and no matrix is copied. */
static bool is_dense(const struct choice *c, const struct experts *x)
{
    return c->T * c->used >= x->m.rows / x->rows && x->n % ALIGNED_ROW == 0 &&
           x->n * x->m.k % (ASC_GROUP * ALIGNED_ROW) == 0;
}

/* Tokens [begin, begin + T): each expert's rows of all of them, of which pairs take theirs. */
static void all_multiply(struct asc_emit *e, const struct choice *c, const struct experts *x,
                         struct asc_part in, int64_t begin, int64_t T, struct asc_part out)
{
    const int64_t n = x->n, k = x->m.k, pairs = T * c->used, experts = x->m.rows / x->rows;
    const struct asc_mark mark = asc_mark(e);
    const struct asc_part by = asc_part_new(e, ASC_F32, ASC_DIMS(T, c->used));
    const struct asc_part flat = alike(e, by);
    const struct asc_part y = asc_part_new(e, ASC_F16, ASC_DIMS(experts, T, n));
    struct asc_part own = asc_cut(in, 0, begin, T);
    asc_scale(e, asc_cut(c->place, 0, begin, T), (float)T, by);
    asc_add(e, by, asc_part(ASC_F32, asc_constant_address(e), ASC_DIMS(T, 1)), flat);
    const struct asc_part index = asc_shaped(asc_as(e, flat, ASC_I32), ASC_DIMS(pairs));
    const bool apart = in.dims[1] > 1; /* each pair has a row: to its expert's rows */
    if (apart) {
        const struct asc_part spread = asc_part_new(e, ASC_F16, ASC_DIMS(experts, T, k));
        const int held = e->n_held;
        ASC_CALL(e, InplaceIndexCopy, asc_t(e, asc_shaped(spread, ASC_DIMS(experts * T, k))), 0,
                 asc_t(e, index), asc_t(e, asc_shaped(own, ASC_DIMS(pairs, k))));
        asc_rewind(e, (struct asc_mark){.room = e->room, .held = held});
        own = spread;
    }
    for (int64_t i = 0; i < experts && !e->failed; i++)
        asc_product(e, asc_shaped(apart ? asc_cut(own, 0, i, 1) : own, ASC_DIMS(T, k)), &x->m,
                    i * x->rows + x->row, asc_shaped(asc_cut(y, 0, i, 1), ASC_DIMS(T, n)));
    asc_select(e, asc_shaped(y, ASC_DIMS(experts * T, n)), 0, index,
               asc_shaped(asc_cut(out, 0, begin, T), ASC_DIMS(pairs, n)));
    asc_rewind(e, mark);
}

/* Rows of F16 of all pairs, [T, used, n], with room that aligns each. in: [T, 1 or used, k]. */
static struct asc_part pairs_multiply(struct asc_emit *e, const struct choice *c,
                                      const struct experts *x, struct asc_part in)
{
    const int64_t room = (x->n + ALIGNED_ROW - 1) / ALIGNED_ROW * ALIGNED_ROW;
    const struct asc_part all = asc_part_new(e, ASC_F16, ASC_DIMS(c->T, c->used, room));
    if (is_dense(c, x)) {
        const int64_t width = (x->n + x->m.k) * (x->m.rows / x->rows);
        const int64_t some = max_i64(1, DENSE_MOST / width / ALIGNED) * ALIGNED;
        for (int64_t t = 0; t < c->T; t += some)
            all_multiply(e, c, x, in, t, min_i64(some, c->T - t), all);
        return all;
    }
    for (int64_t t = 0; t < c->T && !e->failed; t++)
        for (int64_t i = 0; i < c->used; i++) {
            const struct asc_mark mark = asc_mark(e);
            const struct asc_matrix m = expert_gathered(e, x, place_of(c, t, i));
            const struct asc_part row = asc_cut(asc_cut(in, 0, t, 1), 1, in.dims[1] > 1 ? i : 0, 1);
            const struct asc_part y = asc_cut(asc_cut(all, 0, t, 1), 1, i, 1);
            asc_product(e, asc_shaped(row, ASC_DIMS(1, x->m.k)), &m, x->row,
                        asc_shaped(y, ASC_DIMS(1, x->n)));
            asc_rewind(e, mark);
        }
    return asc_cut(all, 2, 0, x->n);
}

/* Times the experts' factors (weight number `factors`), or `by`, and plus their biases. */
static struct asc_part adjusted(struct asc_emit *e, const struct choice *c, struct asc_part y,
                                int factors, int biases, const struct asc_part *by)
{
    const int64_t experts = e->r->op.experts, n = y.dims[2], T = c->T, used = c->used;
    struct asc_part of;
    if (asc_weight_part(e, factors, ASC_DIMS(experts), &of)) {
        const struct asc_part own = asc_part_new(e, ASC_F32, ASC_DIMS(T * used));
        const struct asc_part to = asc_part_new(e, ASC_F32, ASC_DIMS(T, used, n));
        asc_select(e, of, 0, c->ids, own);
        asc_mul(e, y, asc_shaped(own, ASC_DIMS(T, used, 1)), to);
        y = to;
    }
    if (by) {
        const struct asc_part to = asc_part_new(e, ASC_F32, ASC_DIMS(T, used, n));
        asc_mul(e, y, *by, to);
        y = to;
    }
    if (asc_weight_part(e, biases, ASC_DIMS(experts, n), &of)) {
        const struct asc_part own = asc_part_new(e, ASC_F32, ASC_DIMS(T * used, n));
        const struct asc_part to = asc_part_new(e, ASC_F32, ASC_DIMS(T, used, n));
        asc_select(e, of, 0, c->ids, own);
        asc_add(e, y, asc_shaped(own, ASC_DIMS(T, used, n)), to);
        y = to;
    }
    return y;
}

void asc_emit_expert_gate_up(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const int64_t T = e->rows, used = op->experts_used, n = op->n;
    const struct asc_part in = asc_shaped(asc_part_in(e, 0), ASC_DIMS(T, 1, op->k));
    struct choice c;
    struct asc_part y[2];
    choice_read(e, &c);
    for (int i = 0; i < (op->single ? 1 : 2); i++) {
        struct experts x = {.n = n, .rows = op->one_tensor ? 2 * n : n};
        if (!asc_weight(e, i, &x.m))
            return;
        x.row = op->one_tensor ? i * n : 0;
        y[i] = adjusted(e, &c, pairs_multiply(e, &c, &x, in), 2 + i, 4 + i,
                        op->weighs_input ? &c.weights : NULL);
    }
    const struct asc_part out = asc_shaped(asc_part_out(e, 0), ASC_DIMS(T, used, n));
    if (!c.partial) {
        asc_activation(e, y[0], op->single ? NULL : &y[1], out);
        return;
    }
    const struct asc_part made = alike(e, out), kept = alike(e, out);
    asc_activation(e, y[0], op->single ? NULL : &y[1], made);
    const struct asc_part here = asc_as(e, c.present, ASC_BOOL);
    ASC_CALL(e, SWhere, asc_t(e, here), asc_t(e, made), asc_t(e, out), asc_t(e, kept));
    asc_copy(e, kept, out);
}

void asc_emit_expert_down(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const int64_t T = e->rows, used = op->experts_used, n = op->n;
    const struct asc_part in = asc_shaped(asc_part_in(e, 0), ASC_DIMS(T, used, op->k));
    struct experts x = {.n = n, .rows = n};
    struct choice c;
    choice_read(e, &c);
    if (!asc_weight(e, 0, &x.m))
        return;
    struct asc_part y = adjusted(e, &c, pairs_multiply(e, &c, &x, in), 1, 2, NULL);
    struct asc_part by = op->weighs_input ? c.present : c.weights;
    if (c.partial && !op->weighs_input) {
        by = alike(e, c.weights);
        asc_mul(e, c.weights, c.present, by);
    }
    if (c.partial || !op->weighs_input) {
        const struct asc_part weighted = asc_part_new(e, ASC_F32, ASC_DIMS(T, used, n));
        asc_mul(e, y, by, weighted);
        y = weighted;
    }
    asc_sum(e, asc_as(e, y, ASC_F32), 1, false, asc_part_out(e, 0));
}
