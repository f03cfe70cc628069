/*
 * cuda_join.c - records of a program whose work one kernel can do together: on a fast GPU each
 * kernel of a decode step costs 2 to 3 us beside its work. The bits stay those of separate kernels.
 *
 *   a norm packs its output for the products that follow at once
 *   attention does for the product behind it
 *   a product adds the residual or the bias that is the next record
 *   the rotations of q and k, and the store of k and v, are one kernel
 *
 * Records share only where nothing stands between them that another device waits for, or makes.
 */
#include "kernels/cuda/cuda_device.h"

static bool is_run(const struct program_record *r, uint16_t kind)
{
    return r->kind == RECORD_RUN && r->op.kind == kind;
}

/* -------------------------------------------------------------- what the operators allow --- */

/* Packed bytes are what tensor cores take, too; but their other products start from floats. */
static bool allows(const struct cuda_device *d, enum op_join join, const struct oato_op *first,
                   const struct oato_op *last, enum numerics_choice numerics)
{
    if (op_by_columns(first) || op_by_columns(last))
        return false; /* starts from floats, and adds up slices */
    if (first->sparse == SPARSE_PREDICT)
        return false; /* writes what is not listed elsewhere */
    switch (join) {
    case JOIN_NORM: return cuda_has_blocks((oato_dtype)last->dtype);
    case JOIN_ATTENTION:
        return cuda_has_blocks((oato_dtype)last->dtype) && op_v_dim(first) % 32 == 0 &&
               !cuda_takes_matrix(d, last, numerics) && !cuda_takes_tile(first, numerics);
    case JOIN_ADD: return !cuda_takes_matrix(d, first, numerics);
    case JOIN_ROPE_STORE:
        return first->heads % last->kv_heads == 0 && !last->v_dim && !last->v_in_k &&
               !last->k_tail && !first->first;
    case JOIN_COUNT: break;
    }
    return false;
}

bool cuda_joins(const struct oato_device *base, enum op_join join, const struct oato_op *first,
                const struct oato_op *last)
{
    return allows((const struct cuda_device *)base, join, first, last, NUMERICS_DECODE);
}

/* Unless the program forbids it. */
static bool joins(const struct cuda_device *d, const struct program *p, enum op_join join,
                  const struct program_record *first, const struct program_record *last)
{
    return !(p->without_joins >> join & 1) &&
           allows(d, join, &first->op, &last->op, (enum numerics_choice)first->numerics) &&
           allows(d, join, &first->op, &last->op, (enum numerics_choice)last->numerics);
}

/* ------------------------------------------------------------------------- norms pack ----- */

/* True when the product takes the norm's output as bytes: of all its rows, or of the first ones. */
static bool reads_packed(const struct cuda_device *d, const struct program *p,
                         const struct program_record *r, const struct program_record *norm)
{
    return (is_run(r, OP_MUL_MAT) || is_run(r, OP_QKV) || is_run(r, OP_GATE_UP)) &&
           joins(d, p, JOIN_NORM, norm, r) && r->in[0] == norm->out[norm->op.kind == OP_ADD_NORM] &&
           r->op.k == norm->op.n && (r->rows == norm->rows || r->rows == ROWS_OUTPUT);
}

/* Nothing but these products may stand between: other records use the workspace as well. What a
 * library computes takes halves. */
static void join_packs(const struct cuda_device *d, struct compiled *c)
{
    const struct program *p = c->program;
    const struct program_record *norm = NULL;
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (norm && reads_packed(d, p, r, norm) && !c->records[i].blas) {
            c->records[norm - p->records].packs = true;
            c->records[i].packed = true;
        } else {
            norm = is_run(r, OP_RMS_NORM) || is_run(r, OP_ADD_NORM) ? r : NULL;
        }
    }
}

/* -------------------------------------------------------------------- attention packs ----- */

static bool packs_for(const struct cuda_device *d, const struct program *p,
                      const struct program_record *attention, const struct program_record *product)
{
    return is_run(attention, OP_ATTENTION) && is_run(product, OP_MUL_MAT) &&
           joins(d, p, JOIN_ATTENTION, attention, product) && product->in[0] == attention->out[0] &&
           product->op.k == attention->op.n && attention->rows == product->rows;
}

/* ------------------------------------------------------------------------------- ranges --- */

struct range {
    uint64_t begin, end;
};

static struct range range_of(const struct program *p, uint64_t offset, int32_t width)
{
    return (struct range){offset,
                          offset + (uint64_t)p->max_tokens * (uint64_t)width * sizeof(float)};
}

static bool overlap(struct range a, struct range b)
{
    return a.begin < b.end && b.begin < a.end;
}

/* The same bytes, or none in common. */
static bool same_or_apart(struct range a, struct range b)
{
    return a.begin == b.begin || !overlap(a, b);
}

/* --------------------------------------------------------------------------- additions ---- */

/* The sum comes earlier than in a kernel of its own: what the product still reads it must not lie
 * on, which is its input where nobody packs it. A thread writes a product, then its sum: that may
 * take the place of the product or of what is added. */
static bool can_add(const struct cuda_device *d, const struct program *p,
                    const struct program_record *product, const struct program_record *add)
{
    const bool residual = is_run(add, OP_ADD), bias = is_run(add, OP_BIAS);
    if (!is_run(product, OP_MUL_MAT) || (!residual && !bias) ||
        !joins(d, p, JOIN_ADD, product, add) || add->op.n != product->op.n ||
        add->rows != product->rows || add->n_waits || cuda_reads_streamed(p, add))
        return false;
    const struct range x = range_of(p, product->in[0], product->op.k);
    const struct range y = range_of(p, product->out[0], product->op.n);
    const struct range sum = range_of(p, add->out[0], add->op.n);
    if (!same_or_apart(sum, y) ||
        (overlap(sum, x) && !cuda_has_blocks((oato_dtype)product->op.dtype)))
        return false;
    if (bias)
        return add->in[0] == product->out[0];
    const uint64_t other = add->in[add->in[0] == product->out[0]];
    const struct range addend = range_of(p, other, add->op.n);
    return (add->in[0] == product->out[0]) != (add->in[1] == product->out[0]) &&
           same_or_apart(sum, addend) && !overlap(addend, y);
}

/* --------------------------------------------------------------------- rotate and store --- */

/* Rotated K goes nowhere but to the store; so nobody else may want it before something else comes
 * to lie there. Copies read or write elsewhere: an upload's input is in the host's arena, a
 * RECORD_PEER's in another GPU's, a download's output in the host's, a
 * RECORD_PUSH's in another GPU's. */
static bool reads(const struct program *p, const struct program_record *r, struct range range)
{
    const bool here = r->kind == RECORD_RUN || r->kind == RECORD_DOWNLOAD || r->kind == RECORD_PUSH;
    for (int i = 0; here && i < r->n_in; i++)
        if (overlap(range_of(p, r->in[i], r->in_width[i]), range))
            return true;
    return false;
}

/* What of the range is left when the record has written its outputs. */
static struct range left_by(const struct program *p, const struct program_record *r,
                            struct range range)
{
    if (r->kind == RECORD_DOWNLOAD || r->kind == RECORD_PUSH || r->rows != ROWS_TOKENS)
        return range;
    for (int i = 0; i < r->n_out; i++) {
        const int32_t width = r->kind == RECORD_RUN ? op_out_width(&r->op, i) : r->in_width[0];
        const struct range out = range_of(p, r->out[i], width);
        if (!overlap(out, range))
            continue;
        if (out.begin <= range.begin)
            range.begin = out.end < range.end ? out.end : range.end;
        else if (out.end >= range.end)
            range.end = out.begin;
    }
    return range;
}

static bool is_for_store_alone(const struct program *p, const struct program_record *k)
{
    struct range rotated = range_of(p, k->out[0], k->op.n);
    for (const struct program_record *r = k + 2; r < p->records + p->n_records; r++) {
        if (reads(p, r, rotated))
            return false;
        rotated = left_by(p, r, rotated);
        if (rotated.begin == rotated.end)
            return true;
    }
    return true;
}

/* The kernel has a block a token and KV head, and blocks in any order: what one writes no other may
 * read. In place a rotation is its own business. */
static bool lie_apart(const struct program *p, const struct program_record *q,
                      const struct program_record *k, const struct program_record *store)
{
    const struct range q_in = range_of(p, q->in[0], q->op.n);
    const struct range q_out = range_of(p, q->out[0], q->op.n);
    const struct range k_in = range_of(p, k->in[0], k->op.n);
    const struct range v = range_of(p, store->in[1], k->op.n);
    return !overlap(q_out, k_in) && !overlap(q_out, v) &&
           (q->in[0] == q->out[0] || !overlap(q_in, q_out));
}

static bool can_join(const struct cuda_device *d, const struct program *p,
                     const struct program_record *r)
{
    const struct program_record *q = r, *k = r + 1, *store = r + 2;
    return is_run(q, OP_ROPE) && is_run(k, OP_ROPE) && is_run(store, OP_KV_STORE) &&
           store->in[0] == k->out[0] && store->op.k == k->op.n && q->rows == store->rows &&
           k->rows == store->rows && joins(d, p, JOIN_ROPE_STORE, q, store) && !q->signal &&
           !k->signal && !k->n_waits && !store->n_waits && lie_apart(p, q, k, store) &&
           is_for_store_alone(p, k);
}

oato_status cuda_join_records(const struct cuda_device *d, struct compiled *c,
                              struct oato_error *err)
{
    const struct program *p = c->program;
    cuda_enter(d);
    join_packs(d, c);
    for (uint32_t i = 0; i + 1 < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        struct cuda_record *kernels = &c->records[i];
        if (packs_for(d, p, r, r + 1))
            kernels[0].packs = kernels[1].packed = true;
        if (can_add(d, p, r, r + 1))
            kernels[0].adds = kernels[1].waits = true;
        if (i + 2 == p->n_records || !can_join(d, p, r))
            continue;
        const cu_result result = cuda_kernel(d, "rope_store", &kernels[2].run);
        if (result)
            return cuda_fail(d->cu, result, d->far.id, "finding its kernel rope_store", err);
        kernels[0].waits = kernels[1].waits = kernels[2].joins = true;
    }
    return OATO_OK;
}
