/*
 * cuda_join.c - records of a program whose work one kernel can do together: on a fast GPU each
 * kernel of a decode step costs 2 to 3 us beside its work. The bits stay those of separate kernels.
 *
 *   a norm packs its output for the products that follow at once
 *   the rotations of q and k, and the store of k and v, are one kernel
 *
 * Records share only where nothing stands between them that another device waits for, or makes.
 */
#include "kernels/cuda/cuda_device.h"

static bool is_run(const struct program_record *r, uint16_t kind)
{
    return r->kind == RECORD_RUN && r->op.kind == kind;
}

/* ------------------------------------------------------------------------- norms pack ----- */

/* True when the product takes the norm's output as bytes; tensor cores take the same ones. */
static bool reads_packed(const struct program_record *r, const struct program_record *norm)
{
    return (is_run(r, OP_MUL_MAT) || is_run(r, OP_QKV) || is_run(r, OP_GATE_UP)) &&
           cuda_has_blocks((oato_dtype)r->op.dtype) &&
           r->in[0] == norm->out[norm->op.kind == OP_ADD_NORM] && r->op.k == norm->op.n &&
           r->rows == norm->rows;
}

/* Nothing but these products may stand between: other records use the workspace as well. */
static void join_packs(struct compiled *c)
{
    const struct program *p = c->program;
    const struct program_record *norm = NULL;
    for (uint32_t i = 0; i < p->n_records; i++) {
        const struct program_record *r = &p->records[i];
        if (norm && reads_packed(r, norm))
            c->records[norm - p->records].packs = c->records[i].packed = true;
        else
            norm = is_run(r, OP_RMS_NORM) || is_run(r, OP_ADD_NORM) ? r : NULL;
    }
}

/* --------------------------------------------------------------------- rotate and store --- */

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

/* The kernel has a block a token, and blocks in any order: what one writes no other may read, as it
 * would where memory is used again between the records. In place a rotation is its own business. */
static bool lie_apart(const struct program *p, const struct program_record *q,
                      const struct program_record *k, const struct program_record *store)
{
    const struct range q_in = range_of(p, q->in[0], q->op.n);
    const struct range q_out = range_of(p, q->out[0], q->op.n);
    const struct range k_in = range_of(p, k->in[0], k->op.n);
    const struct range k_out = range_of(p, k->out[0], k->op.n);
    const struct range v = range_of(p, store->in[1], k->op.n);
    return !overlap(q_out, k_in) && !overlap(q_out, v) && !overlap(k_out, q_in) &&
           !overlap(k_out, v) && !overlap(q_out, k_out) &&
           (q->in[0] == q->out[0] || !overlap(q_in, q_out)) &&
           (k->in[0] == k->out[0] || !overlap(k_in, k_out));
}

static bool can_join(const struct program *p, const struct program_record *r)
{
    const struct program_record *q = r, *k = r + 1, *store = r + 2;
    return is_run(q, OP_ROPE) && is_run(k, OP_ROPE) && is_run(store, OP_KV_STORE) &&
           store->in[0] == k->out[0] && store->op.k == k->op.n && q->rows == store->rows &&
           k->rows == store->rows && !q->signal && !k->signal && !k->n_waits && !store->n_waits &&
           lie_apart(p, q, k, store);
}

static oato_status join_stores(const struct cuda_device *d, struct compiled *c,
                               struct oato_error *err)
{
    const struct program *p = c->program;
    for (uint32_t i = 0; i + 2 < p->n_records; i++) {
        if (!can_join(p, &p->records[i]))
            continue;
        const cu_result result = cuda_kernel(d, "rope_store", &c->records[i + 2].run);
        if (result)
            return cuda_fail(d->cu, result, d->id, "finding its kernel rope_store", err);
        c->records[i].waits = c->records[i + 1].waits = true;
        c->records[i + 2].joins = true;
    }
    return OATO_OK;
}

oato_status cuda_join_records(const struct cuda_device *d, struct compiled *c,
                              struct oato_error *err)
{
    join_packs(c);
    cuda_enter(d);
    return join_stores(d, c, err);
}
