/*
 * asc_op_rope.c - rotary positions. The cosines and sines of a step's positions are arrays that all
 * records with the same angles share. Where a whole head is turned there is one call; else, and on
 * chips without it, out = x C + x' S, with x' the elements' partners and S with their signs:
 * dimensions that are not turned have C = 1 and S = 0.
 */
#include "kernels/ascend/asc_ops.h"

#include <stdlib.h>

enum { FUSED_DIMS = 896, FUSED_HEADS = 1000 }; /* both less than that */

static bool is_fused(const struct asc_device *d, const struct oato_op *op)
{
    return d->chip->fused && asc_has(d->api, ASC_RotaryPositionEmbedding) && !op->first &&
           op->rope_dims == op->head_dim && op->head_dim < FUSED_DIMS && op->heads < FUSED_HEADS;
}

/* Dimension e of a head: its partner, and the number of its pair. -1: it is not turned. */
static int32_t pair_of(const struct oato_op *op, int32_t e, int32_t *partner)
{
    const int32_t i = e - op->first, pairs = op->rope_dims / 2;
    *partner = e;
    if (i < 0 || i >= op->rope_dims)
        return -1;
    if (op->rope_pairing == ROPE_ADJACENT) {
        *partner = op->first + (i ^ 1);
        return i / 2;
    }
    *partner = op->first + (i < pairs ? i + pairs : i - pairs);
    return i % pairs;
}

static uint64_t table_bytes(const struct compiled *c, const struct program_record *r,
                            int32_t kv_pages)
{
    (void)kv_pages;
    const uint64_t bytes = is_fused(c->device, &r->op) ? sizeof(uint16_t) : sizeof(float);
    return (uint64_t)c->program->max_tokens * (uint64_t)r->op.head_dim * bytes;
}

/* Cosines, or sines, of all dimensions of a head, row after row of the step's tokens. */
static uint64_t table_fill(const struct compiled *c, const struct program_record *r,
                           const struct step *step, bool sines, void *to)
{
    const struct oato_op *op = &r->op;
    const double *turn = c->records[r - c->program->records].host;
    const double magnitude = op->rope_magnitude != 0 ? (double)op->rope_magnitude : 1;
    const bool fused = is_fused(c->device, op);
    uint16_t *half = to;
    float *whole = to;
    for (int32_t t = 0; t < step->n_tokens; t++)
        for (int32_t e = 0; e < op->head_dim; e++, half++, whole++) {
            int32_t partner;
            const int32_t pair = pair_of(op, e, &partner);
            double x = !sines;
            if (pair >= 0) {
                const double angle = (double)step->token_position[t] * turn[pair];
                x = (sines ? sin(angle) : cos(angle)) * magnitude;
            }
            if (fused)
                *half = f32_to_f16((float)x);
            else
                *whole = (float)(sines && partner > e ? -x : x);
        }
    return (uint64_t)step->n_tokens * (uint64_t)op->head_dim *
           (fused ? sizeof *half : sizeof *whole);
}

static uint64_t cosines_fill(const struct compiled *c, const struct program_record *r,
                             const struct step *step, int32_t kv_pages, void *to)
{
    (void)kv_pages;
    return table_fill(c, r, step, false, to);
}

static uint64_t sines_fill(const struct compiled *c, const struct program_record *r,
                           const struct step *step, int32_t kv_pages, void *to)
{
    (void)kv_pages;
    return table_fill(c, r, step, true, to);
}

static bool table_same(const struct program_record *a, const struct program_record *b)
{
    const struct oato_op *x = &a->op, *y = &b->op;
    const uint32_t divisors[2] = {a->n_weights ? a->weight[0] : UINT32_MAX,
                                  b->n_weights ? b->weight[0] : UINT32_MAX};
    return x->head_dim == y->head_dim && x->first == y->first && x->rope_dims == y->rope_dims &&
           x->rope_pairing == y->rope_pairing && x->rope_base == y->rope_base &&
           x->rope_scale == y->rope_scale && x->rope_low == y->rope_low &&
           x->rope_high == y->rope_high && x->rope_magnitude == y->rope_magnitude &&
           divisors[0] == divisors[1] && (x->heads < FUSED_HEADS) == (y->heads < FUSED_HEADS);
}

static const struct asc_array_kind cosines = {table_bytes, cosines_fill, table_same},
                                   sines = {table_bytes, sines_fill, table_same};

oato_status asc_prepare_rope(struct compiled *c, uint32_t index, struct oato_error *err)
{
    const struct program_record *r = &c->program->records[index];
    const int32_t pairs = r->op.rope_dims / 2;
    float divisors[HEAD_DIM_MAX / 2];
    int32_t partner[HEAD_DIM_MAX];
    const bool divides = r->n_weights && r->weight[0] != UINT32_MAX;
    double *turn = malloc((size_t)max_i64(pairs, 1) * sizeof *turn);
    c->records[index].host = turn;
    if (!turn)
        return oato_fail_memory(err, (uint64_t)pairs * sizeof *turn, "angles");
    if (divides && weight_vector_read(&c->device->far.base, c->program->weights[r->weight[0]],
                                      divisors, (uint64_t)pairs, err))
        return err->status;
    for (int32_t i = 0; i < pairs; i++)
        turn[i] = rope_turn(&r->op, i, divides ? divisors : NULL);
    for (int32_t e = 0; e < r->op.head_dim; e++)
        pair_of(&r->op, e, &partner[e]);
    if (asc_need_array(c, index, &cosines, &c->records[index].array[0], err) ||
        asc_need_array(c, index, &sines, &c->records[index].array[1], err))
        return err->status;
    return is_fused(c->device, &r->op)
               ? OATO_OK
               : asc_constant(c, index, partner, (uint64_t)r->op.head_dim * sizeof *partner, err);
}

void asc_emit_rope(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const int64_t T = e->rows, heads = op->heads, d = op->head_dim;
    const bool fused = is_fused(e->d, op);
    const struct asc_part x = asc_shaped(asc_part_in(e, 0), ASC_DIMS(1, T, heads, d));
    const struct asc_part out = asc_shaped(asc_part_out(e, 0), ASC_DIMS(1, T, heads, d));
    const enum asc_type type = fused ? ASC_F16 : ASC_F32;
    const struct asc_part cosine = asc_part(type, asc_array_address(e, 0), ASC_DIMS(1, T, 1, d));
    const struct asc_part sine = asc_part(type, asc_array_address(e, 1), ASC_DIMS(1, T, 1, d));
    if (fused) {
        ASC_CALL(e, RotaryPositionEmbedding, asc_t(e, x), asc_t(e, cosine), asc_t(e, sine),
                 op->rope_pairing == ROPE_HALVES ? 0 : 1, asc_t(e, out));
        return;
    }
    const struct asc_part others = asc_part_new(e, x.type, x.n, x.dims);
    const struct asc_part a = asc_part_new(e, ASC_F32, x.n, x.dims);
    const struct asc_part b = asc_part_new(e, ASC_F32, x.n, x.dims);
    asc_select(e, x, 3, asc_part(ASC_I32, asc_constant_address(e), ASC_DIMS(d)), others);
    asc_mul(e, x, cosine, a);
    asc_mul(e, others, sine, b);
    asc_add(e, a, b, out);
}
