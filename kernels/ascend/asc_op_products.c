/*
 * asc_op_products.c - matrix products: inputs of F16, sums in float32 inside the cube unit. Weights
 * of bytes and nibbles keep their scales, a group of 32 each; that operator takes at most 65,535
 * rows, so a vocabulary is computed in pieces.
 */
#include "kernels/ascend/asc_ops.h"

enum {
    QUANT_MOST = 65535,  /* k and n of aclnnWeightQuantBatchMatmulV2 */
    QUANT_PIECE = 65472, /* the most rows at once: a multiple of 64 below that */
    ALIGNED_SCALES = 16  /* scales, of F16, in 32 bytes */
};

enum cube { CUBE_KEEP = 0, CUBE_LOWER = 1 }; /* cubeMathType */

static bool is_quantised(enum asc_form form)
{
    return form == ASC_FORM_Q8 || form == ASC_FORM_Q4;
}

bool asc_multiplies(const struct asc_device *d, oato_dtype dtype, int64_t n, int64_t k)
{
    const enum asc_form form = asc_form_of(d, dtype, WEIGHT_MATRIX);
    if (!is_quantised(form))
        return form != ASC_FORM_NONE;
    /* A group is less than k. A single row is taken for one that is not transposed. */
    return d->chip->quantised && k > ASC_GROUP && k <= QUANT_MOST && k % ASC_GROUP == 0 && n > 1 &&
           (n <= QUANT_MOST || n % QUANT_PIECE != 1);
}

static void quantised(struct asc_emit *e, struct asc_part x, const struct asc_matrix *m,
                      int64_t begin, struct asc_part y)
{
    const int64_t n = y.dims[1];
    const bool whole = n <= QUANT_MOST;
    for (int64_t from = 0; from < n && !e->failed; from += QUANT_PIECE) {
        const int64_t some = whole ? n : min_i64(n - from, QUANT_PIECE);
        const struct asc_mark mark = asc_mark(e);
        const struct asc_part piece =
            whole && y.type == ASC_F16 ? y : asc_part_new(e, ASC_F16, ASC_DIMS(x.dims[0], some));
        ASC_CALL(e, WeightQuantBatchMatmulV2, asc_t(e, x),
                 asc_matrix_values(e, m, begin + from, some),
                 asc_matrix_scales(e, m, begin + from, some), NULL, NULL, NULL, NULL, ASC_GROUP,
                 asc_t(e, piece));
        if (piece.at != y.at)
            asc_copy(e, piece, asc_cut(y, 1, from, some));
        asc_rewind(e, mark);
        if (whole)
            break;
    }
}

void asc_product(struct asc_emit *e, struct asc_part x, const struct asc_matrix *m, int64_t begin,
                 struct asc_part y)
{
    const struct asc_mark mark = asc_mark(e);
    const enum asc_type type = is_quantised(m->form) ? ASC_F16 : asc_form_type(m->form);
    const bool lowers = m->form == ASC_FORM_F32 && !e->d->chip->f32;
    x = asc_as(e, x, type);
    if (is_quantised(m->form))
        quantised(e, x, m, begin, y);
    else
        ASC_CALL(e, Mm, asc_t(e, x), asc_matrix_values(e, m, begin, y.dims[1]), asc_t(e, y),
                 lowers ? CUBE_LOWER : CUBE_KEEP);
    asc_rewind(e, mark);
}

void asc_emit_products(struct asc_emit *e)
{
    struct asc_matrix m;
    for (int i = 0; i < e->r->n_out && asc_weight(e, i, &m); i++)
        asc_product(e, asc_part_in(e, 0), &m, 0, asc_part_out(e, i));
}

void asc_emit_gate_up(struct asc_emit *e)
{
    struct asc_part y[2];
    for (int i = 0; i < 2; i++) {
        struct asc_matrix m;
        if (!asc_weight(e, i, &m))
            return;
        y[i] = asc_part_new(e, m.form == ASC_FORM_F32 ? ASC_F32 : ASC_F16,
                            ASC_DIMS(e->rows, e->r->op.n));
        asc_product(e, asc_part_in(e, 0), &m, 0, y[i]);
    }
    asc_activation(e, y[0], &y[1], asc_part_out(e, 0));
}

bool asc_supports_products(const struct asc_device *d, const struct oato_op *op)
{
    if (op->sparse)
        return false;
    if (op->kind == OP_HEAD_MUL_MAT &&
        is_quantised(asc_form_of(d, op_weight_dtype(op, 0), WEIGHT_MATRIX)) &&
        (int64_t)op->n * op->k % (ASC_GROUP * ALIGNED_SCALES))
        return false; /* where each head's scales begin */
    for (int i = 0; i < op_weight_least(op); i++) {
        int64_t n, k;
        if (!op_weight_shape(op, i, &n, &k) || !asc_multiplies(d, op_weight_dtype(op, i), n, k))
            return false;
    }
    return true;
}

/* Of heads that have a matrix each: inputs head by head, one product of all or one for each head,
 * and outputs back to rows, behind which the other columns stand. */
void asc_emit_head_products(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const int64_t T = e->rows, heads = op->heads, k = op->k, n = op->n, rest = op->head_dim - k;
    struct asc_matrix m;
    if (!asc_weight(e, 0, &m))
        return;
    const enum asc_type type = is_quantised(m.form) ? ASC_F16 : asc_form_type(m.form);
    const struct asc_part in = asc_shaped(asc_part_in(e, 0), ASC_DIMS(T, heads, op->head_dim));
    const struct asc_part x = asc_part_new(e, type, ASC_DIMS(heads, T, k));
    const struct asc_part y = asc_part_new(e, ASC_F16, ASC_DIMS(heads, T, n));
    const struct asc_part out = asc_shaped(asc_part_out(e, 0), ASC_DIMS(T, heads, n + rest));
    asc_copy(e, asc_turned(asc_cut(in, 2, 0, k), 0, 1), x);
    if (is_quantised(m.form)) {
        for (int64_t h = 0; h < heads; h++)
            asc_product(e, asc_shaped(asc_cut(x, 0, h, 1), ASC_DIMS(T, k)), &m, h * n,
                        asc_shaped(asc_cut(y, 0, h, 1), ASC_DIMS(T, n)));
    } else {
        const struct asc_mark mark = asc_mark(e);
        const struct asc_part w = asc_turned(asc_part(type, m.values, ASC_DIMS(heads, n, k)), 1, 2);
        ASC_CALL(e, BatchMatMul, asc_t(e, x), asc_t(e, w), asc_t(e, y),
                 type == ASC_F32 && !e->d->chip->f32 ? CUBE_LOWER : CUBE_KEEP);
        asc_rewind(e, mark);
    }
    if (!rest) {
        asc_copy(e, asc_turned(y, 0, 1), out);
        return;
    }
    struct asc_part both[2] = {asc_part_new(e, ASC_F16, ASC_DIMS(T, heads, n)),
                               asc_part_new(e, ASC_F16, ASC_DIMS(T, heads, rest))};
    asc_copy(e, asc_turned(y, 0, 1), both[0]);
    asc_slice(e, in, 2, k, both[1]);
    asc_cat(e, 2, both, 2, out);
}

/* Rows of a table, weighted: it is as it is, k rows of n. */
void asc_emit_transposed(struct asc_emit *e)
{
    struct asc_matrix m;
    if (!asc_weight(e, 0, &m))
        return;
    const enum asc_type type = asc_form_type(m.form);
    const struct asc_part x = asc_as(e, asc_part_in(e, 0), type);
    const struct asc_part w = asc_part(type, m.values, ASC_DIMS(m.rows, m.k));
    ASC_CALL(e, Mm, asc_t(e, x), asc_t(e, w), asc_out(e, 0),
             type == ASC_F32 && !e->d->chip->f32 ? CUBE_LOWER : CUBE_KEEP);
}
