/*
 * asc_op_rows.c - operators whose rows depend on nothing but themselves, weights and positions:
 * norms, sums, activations, parts of rows, rows of tables. They compute in float32; those that feed
 * products leave F16.
 */
#include "kernels/ascend/asc_ops.h"

#include <stdlib.h>

/* --------------------------------------------------------------------------------- norms -- */

/* Whether the norm's gains are not a vector that CANN takes as gamma: then it gets ones. */
static bool wants_ones(const struct oato_op *op)
{
    return !(op->norm & NORM_CENTRED) && op->norm & (NORM_PLAIN | NORM_OWN_HEADS | NORM_HEAD_GAINS);
}

static int64_t norm_width(const struct oato_op *op)
{
    return op->kind == OP_HEAD_NORM ? op->head_dim : op->n;
}

oato_status asc_prepare_norm(struct compiled *c, uint32_t index, struct oato_error *err)
{
    const struct oato_op *op = &c->program->records[index].op;
    const int64_t n = norm_width(op);
    if (!wants_ones(op))
        return OATO_OK;
    float *ones = malloc((size_t)n * sizeof *ones);
    if (!ones)
        return oato_fail_memory(err, (uint64_t)n * sizeof *ones, "gains of a norm");
    for (int64_t i = 0; i < n; i++)
        ones[i] = 1;
    const oato_status status = asc_constant(c, index, ones, (uint64_t)n * sizeof *ones, err);
    free(ones);
    return status;
}

/* The last dimension of float32; gamma, bias NULL: none. */
static void layer_norm(struct asc_emit *e, struct asc_part in, const struct asc_part *gamma,
                       const struct asc_part *bias, struct asc_part out)
{
    const struct asc_mark mark = asc_mark(e);
    ASC_CALL(e, LayerNorm, asc_t(e, in), asc_int_array(e, 1, &in.dims[in.n - 1]),
             gamma ? asc_t(e, *gamma) : NULL, bias ? asc_t(e, *bias) : NULL, (double)e->r->op.eps,
             asc_t(e, out), NULL, NULL);
    asc_rewind(e, mark);
}

static void rms_norm(struct asc_emit *e, struct asc_part in, struct asc_part gamma,
                     struct asc_part out)
{
    const struct asc_mark mark = asc_mark(e);
    struct asc_part rstd = in;
    rstd.dims[in.n - 1] = 1;
    rstd = asc_part_new(e, ASC_F32, in.n, rstd.dims);
    ASC_CALL(e, RmsNorm, asc_t(e, in), asc_t(e, gamma), (double)e->r->op.eps, asc_t(e, out),
             asc_t(e, rstd));
    asc_rewind(e, mark);
}

/* The operator's norm of the last dimension of `in`, to a part of any type. */
static void norm(struct asc_emit *e, struct asc_part in, struct asc_part out)
{
    const int32_t how = e->r->op.norm;
    const struct asc_mark mark = asc_mark(e);
    const int64_t n = in.dims[in.n - 1], heads = e->r->op.heads;
    struct asc_part gamma = {0}, bias = {0}, own, made = out;
    const bool heads_own = how & (NORM_OWN_HEADS | NORM_HEAD_GAINS);
    const bool gains = !heads_own && asc_weight_part(e, 0, ASC_DIMS(n), &gamma);
    const bool biased = how & NORM_BIASED && asc_weight_part(e, 1, ASC_DIMS(n), &bias);
    const bool adds = biased && (!(how & NORM_CENTRED) || !gains);
    if (adds || heads_own || out.type != in.type)
        made = asc_part_new(e, in.type, in.n, in.dims);
    if (wants_ones(&e->r->op))
        gamma = asc_part(ASC_F32, asc_constant_address(e), ASC_DIMS(n));
    if (how & NORM_CENTRED)
        layer_norm(e, in, gains ? &gamma : NULL, biased && !adds ? &bias : NULL, made);
    else
        rms_norm(e, in, gamma, made);
    if (adds)
        asc_add(e, made, bias, out);
    else if (heads_own &&
             asc_weight_part(e, 0, ASC_DIMS(1, heads, how & NORM_OWN_HEADS ? n : 1), &own))
        asc_mul(e, made, own, out);
    else if (made.at != out.at)
        asc_copy(e, made, out);
    asc_rewind(e, mark);
}

void asc_emit_norm(struct asc_emit *e)
{
    norm(e, asc_part_in(e, 0), asc_part_out(e, 0));
}

void asc_emit_head_norm(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    norm(e, asc_shaped(asc_part_in(e, 0), ASC_DIMS(e->rows, op->heads, op->head_dim)),
         asc_shaped(asc_part_out(e, 0), ASC_DIMS(e->rows, op->heads, op->head_dim)));
}

void asc_emit_add_norm(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const struct asc_part sum = asc_part_out(e, 0), out = asc_part_out(e, 1);
    struct asc_part gamma;
    if (op->norm || !asc_has(e->api, ASC_AddRmsNorm) ||
        !asc_weight_part(e, 0, ASC_DIMS(op->n), &gamma)) {
        asc_add(e, asc_part_in(e, 0), asc_part_in(e, 1), sum);
        norm(e, sum, out);
        return;
    }
    const struct asc_part made = asc_part_new(e, ASC_F32, ASC_DIMS(e->rows, op->n));
    const struct asc_part rstd = asc_part_new(e, ASC_F32, ASC_DIMS(e->rows, 1));
    ASC_CALL(e, AddRmsNorm, asc_in(e, 0), asc_in(e, 1), asc_t(e, gamma), (double)op->eps,
             asc_t(e, made), asc_t(e, rstd), asc_t(e, sum));
    asc_copy(e, made, out);
}

/* -------------------------------------------------------------------- one by one --------- */

void asc_emit_bias(struct asc_emit *e)
{
    struct asc_part bias;
    if (asc_weight_part(e, 0, ASC_DIMS(e->r->op.n), &bias))
        asc_add(e, asc_part_in(e, 0), bias, asc_part_out(e, 0));
}

void asc_emit_add(struct asc_emit *e)
{
    asc_add(e, asc_part_in(e, 0), asc_part_in(e, 1), asc_part_out(e, 0));
}

void asc_emit_sum(struct asc_emit *e)
{
    const struct asc_part out = asc_part_out(e, 0);
    struct asc_part sum = asc_part_in(e, 0), between[2] = {{0}};
    if (e->r->n_in == 1)
        asc_copy(e, sum, out);
    for (int i = 0; i < 2 && e->r->n_in > 2; i++)
        between[i] = asc_part_new(e, out.type, out.n, out.dims);
    for (int i = 1; i < e->r->n_in; i++) {
        const struct asc_part to = i == e->r->n_in - 1 ? out : between[i % 2];
        asc_add(e, sum, asc_part_in(e, i), to);
        sum = to;
    }
}

bool asc_supports_sum(const struct asc_device *d, const struct oato_op *op)
{
    (void)d;
    return op->dtype == DT_F32; /* else as hosts of a cluster round */
}

void asc_emit_swiglu(struct asc_emit *e)
{
    const struct asc_part up = asc_part_in(e, 1);
    asc_activation(e, asc_part_in(e, 0), &up, asc_part_out(e, 0));
}

void asc_emit_activate(struct asc_emit *e)
{
    asc_activation(e, asc_part_in(e, 0), NULL, asc_part_out(e, 0));
}

/* That activation is one of pairs. */
bool asc_supports_activation(const struct asc_device *d, const struct oato_op *op)
{
    (void)d;
    return op->activation != ACT_CLAMPED || (op->kind == OP_GATE && op->heads == op->n);
}

void asc_emit_gate(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const struct asc_part in = asc_part_in(e, 0), gate = asc_part_in(e, 1);
    const struct asc_part out = asc_part_out(e, 0);
    if (op->heads == op->n) {
        asc_activation(e, gate, &in, out);
        return;
    }
    const struct asc_part by = asc_part_new(e, gate.type, gate.n, gate.dims);
    asc_activation(e, gate, NULL, by);
    asc_mul(e, asc_shaped(in, ASC_DIMS(e->rows, op->heads, op->n / op->heads)),
            asc_shaped(by, ASC_DIMS(e->rows, op->heads, 1)),
            asc_shaped(out, ASC_DIMS(e->rows, op->heads, op->n / op->heads)));
}

void asc_emit_convert(struct asc_emit *e)
{
    const float most = 65504;
    struct asc_part in = asc_part_in(e, 0);
    if (asc_out_type(e, 0) == ASC_F16) { /* what is beyond becomes the largest */
        const struct asc_part between = asc_part_new(e, in.type, in.n, in.dims);
        asc_clamp(e, in, -most, most, between);
        in = between;
    }
    asc_copy(e, in, asc_part_out(e, 0));
}

/* ---------------------------------------------------------------------------------- scale -- */

static uint64_t factors_bytes(const struct compiled *c, const struct program_record *r,
                              int32_t kv_pages)
{
    (void)kv_pages;
    return (uint64_t)program_rows(c->program, r->rows) * sizeof(float);
}

/* Rows of logits have no position. */
static uint64_t factors_fill(const struct compiled *c, const struct program_record *r,
                             const struct step *step, int32_t kv_pages, void *to)
{
    const int32_t rows = record_rows(r, step);
    float *factor = to;
    (void)c, (void)kv_pages;
    for (int32_t i = 0; i < rows; i++)
        factor[i] = scale_factor(&r->op, r->rows == ROWS_TOKENS ? step->token_position[i] : 0);
    return (uint64_t)rows * sizeof *factor;
}

static bool factors_same(const struct program_record *a, const struct program_record *b)
{
    return a->op.scale == b->op.scale && a->op.temperature == b->op.temperature &&
           a->op.temperature_step == b->op.temperature_step &&
           a->op.temperature_offset == b->op.temperature_offset && a->rows == b->rows;
}

static const struct asc_array_kind factors = {factors_bytes, factors_fill, factors_same};

oato_status asc_prepare_scale(struct compiled *c, uint32_t index, struct oato_error *err)
{
    return c->program->records[index].op.temperature == 0
               ? OATO_OK
               : asc_need_array(c, index, &factors, &c->records[index].array[0], err);
}

void asc_emit_scale(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const struct asc_part in = asc_part_in(e, 0), out = asc_part_out(e, 0);
    struct asc_part by;
    const bool weighted = asc_weight_part(e, 0, ASC_DIMS(op->divides ? op->n : 1), &by);
    if (weighted && op->divides)
        asc_div(e, in, by, out);
    else if (weighted)
        asc_mul(e, in, by, out);
    else if (op->temperature != 0)
        asc_mul(e, in, asc_part(ASC_F32, asc_array_address(e, 0), ASC_DIMS(e->rows, 1)), out);
    else
        asc_scale(e, in, op->scale, out);
}

/* ------------------------------------------------------------------------- parts of rows -- */

void asc_emit_merge(struct asc_emit *e)
{
    struct asc_part in[RECORD_INPUTS];
    for (int i = 0; i < e->r->n_in; i++)
        in[i] = asc_part_in(e, i);
    asc_cat(e, e->r->n_in, in, 1, asc_part_out(e, 0));
}

void asc_emit_slice(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const int64_t heads = op->heads ? op->heads : 1;
    asc_slice(e, asc_shaped(asc_part_in(e, 0), ASC_DIMS(e->rows, heads, op->k / heads)), 2,
              op->first, asc_shaped(asc_part_out(e, 0), ASC_DIMS(e->rows, heads, op->n / heads)));
}

oato_status asc_prepare_select(struct compiled *c, uint32_t index, struct oato_error *err)
{
    return asc_need_array(c, index, &asc_array_rows, &c->records[index].array[0], err);
}

void asc_emit_select(struct asc_emit *e)
{
    struct asc_part in = asc_part_in(e, 0);
    if (e->step)
        in.dims[0] = e->step->n_tokens;
    asc_select(e, in, 0, asc_part(ASC_I32, asc_array_address(e, 0), ASC_DIMS(e->rows)),
               asc_part_out(e, 0));
}

/* ---------------------------------------------------------------------------------- embed -- */

static uint64_t places_bytes(const struct compiled *c, const struct program_record *r,
                             int32_t kv_pages)
{
    (void)r, (void)kv_pages;
    return (uint64_t)c->program->max_tokens * sizeof(int32_t);
}

/* Rows of a table that positions name. */
static uint64_t places_fill(const struct compiled *c, const struct program_record *r,
                            const struct step *step, int32_t kv_pages, void *to)
{
    int32_t *place = to;
    (void)c, (void)kv_pages;
    for (int32_t i = 0; i < step->n_tokens; i++)
        place[i] =
            (int32_t)min_i64((int64_t)step->token_position[i] + r->op.by_position - 1, r->op.n - 1);
    return (uint64_t)step->n_tokens * sizeof *place;
}

static bool places_same(const struct program_record *a, const struct program_record *b)
{
    return a->op.by_position == b->op.by_position && a->op.n == b->op.n;
}

static const struct asc_array_kind places = {places_bytes, places_fill, places_same};

oato_status asc_prepare_embed(struct compiled *c, uint32_t index, struct oato_error *err)
{
    const struct oato_op *op = &c->program->records[index].op;
    return asc_need_array(c, index, op->by_position ? &places : &asc_array_ids,
                          &c->records[index].array[0], err);
}

bool asc_supports_lookup(const struct asc_device *d, const struct oato_op *op)
{
    switch (asc_form_of(d, (oato_dtype)op->dtype, WEIGHT_LOOKUP)) {
    case ASC_FORM_F32:
    case ASC_FORM_F16:
    case ASC_FORM_BF16: return true;
    case ASC_FORM_Q8: return op->kind == OP_EMBED;
    case ASC_FORM_Q4:
    case ASC_FORM_NONE: break;
    }
    return false;
}

/* Rows of bytes and of their scales, each for ASC_GROUP of them. */
static void embed_bytes(struct asc_emit *e, const struct asc_matrix *m, struct asc_part index,
                        struct asc_part out)
{
    const int64_t groups = m->k / ASC_GROUP;
    const struct asc_part rows = asc_part_new(e, ASC_I8, ASC_DIMS(e->rows, m->k));
    const struct asc_part scales = asc_part_new(e, ASC_F16, ASC_DIMS(e->rows, groups));
    asc_select(e, asc_part(ASC_I8, m->values, ASC_DIMS(m->rows, m->k)), 0, index, rows);
    asc_select(e, asc_part(ASC_F16, m->scales, ASC_DIMS(m->rows, groups)), 0, index, scales);
    asc_mul(e, asc_shaped(asc_as(e, rows, ASC_F32), ASC_DIMS(e->rows, groups, ASC_GROUP)),
            asc_shaped(scales, ASC_DIMS(e->rows, groups, 1)),
            asc_shaped(out, ASC_DIMS(e->rows, groups, ASC_GROUP)));
}

void asc_emit_embed(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const struct asc_part index = asc_part(ASC_I32, asc_array_address(e, 0), ASC_DIMS(e->rows));
    const bool scales = op->scale != 0;
    struct asc_part out = asc_part_out(e, 0), row = out;
    struct asc_matrix m;
    if (!asc_weight(e, 0, &m))
        return;
    const enum asc_type type = asc_form_type(m.form);
    if (scales)
        row = asc_part_new(e, out.type, out.n, out.dims);
    if (m.form == ASC_FORM_Q8) {
        embed_bytes(e, &m, index, row);
    } else {
        const struct asc_part rows =
            type == row.type ? row : asc_part_new(e, type, out.n, out.dims);
        asc_select(e, asc_part(type, m.values, ASC_DIMS(m.rows, m.k)), 0, index, rows);
        if (rows.at != row.at)
            asc_copy(e, rows, row);
    }
    if (scales)
        asc_scale(e, row, op->scale, out);
}

/* ---------------------------------------------------------------------------------- top k -- */

void asc_emit_top_k(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const int64_t n = op->n / 2;
    const struct asc_part logits = asc_part_in(e, 0);
    struct asc_part found[2] = {{0}, asc_part_new(e, logits.type, ASC_DIMS(e->rows, n))};
    const struct asc_part index = asc_part_new(e, ASC_I64, ASC_DIMS(e->rows, n));
    const struct asc_mark mark = asc_mark(e);
    ASC_CALL(e, Topk, asc_t(e, logits), n, 1, true, true, asc_t(e, found[1]), asc_t(e, index));
    asc_rewind(e, mark);
    found[0] = asc_as(e, index, ASC_F32);
    if (op->first) {
        const struct asc_part ids = asc_part_new(e, ASC_F32, index.n, index.dims);
        ASC_CALL(e, Adds, asc_t(e, found[0]), asc_number(e, (float)op->first), asc_number(e, 1),
                 asc_t(e, ids));
        found[0] = ids;
    }
    asc_cat(e, 2, found, 1, asc_part_out(e, 0));
}
