/*
 * asc_op_conv.c - the short convolution of hybrid models. A sequence's last inputs are a slot of
 * the cache of states, [state][channels], which an index on the device names. They are put before
 * the step's inputs; each output sums neighbouring rows times taps, and the last rows go back.
 *
 * Sequences with equally many tokens are computed together.
 */
#include "kernels/ascend/asc_ops.h"

enum { ALIGNED = 8 }; /* elements of four bytes in 32 bytes */

static int64_t aligned(int64_t n)
{
    return (n + ALIGNED - 1) / ALIGNED * ALIGNED;
}

bool asc_supports_conv(const struct asc_device *d, const struct oato_op *op)
{
    (void)d;
    return op->k % ALIGNED == 0;
}

/* One behind the other, and each once more with room that aligns the next. */
static uint64_t slots_bytes(const struct compiled *c, const struct program_record *r,
                            int32_t kv_pages)
{
    (void)r, (void)kv_pages;
    return (uint64_t)(aligned(c->program->max_seqs) + ALIGNED * c->program->max_seqs) *
           sizeof(int32_t);
}

static uint64_t slots_fill(const struct compiled *c, const struct program_record *r,
                           const struct step *step, int32_t kv_pages, void *to)
{
    const int64_t own = aligned(step->n_seqs);
    int32_t *slot = to;
    (void)c, (void)r, (void)kv_pages;
    for (int32_t s = 0; s < step->n_seqs; s++)
        slot[s] = slot[own + s * ALIGNED] = step->seq[s].state;
    return (uint64_t)(own + step->n_seqs * ALIGNED) * sizeof *slot;
}

/* Of each sequence 1, or 0 when nothing is before its tokens. */
static uint64_t kept_fill(const struct compiled *c, const struct program_record *r,
                          const struct step *step, int32_t kv_pages, void *to)
{
    const int64_t own = aligned(step->n_seqs);
    float *kept = to;
    (void)c, (void)r, (void)kv_pages;
    for (int32_t s = 0; s < step->n_seqs; s++)
        kept[s] = kept[own + s * ALIGNED] = step->seq[s].kv_len > step->seq[s].query_len;
    return (uint64_t)(own + step->n_seqs * ALIGNED) * sizeof *kept;
}

static const struct asc_array_kind slots = {slots_bytes, slots_fill, NULL},
                                   kept = {slots_bytes, kept_fill, NULL};

oato_status asc_prepare_conv(struct compiled *c, uint32_t index, struct oato_error *err)
{
    struct asc_record *r = &c->records[index];
    if (asc_need_array(c, index, &slots, &r->array[0], err))
        return err->status;
    return asc_need_array(c, index, &kept, &r->array[1], err);
}

/* All slots of the record's layer. */
static struct asc_part layer_slots(struct asc_emit *e)
{
    const struct kv_cache *kv = e->c ? e->c->program->kv : NULL;
    const int64_t each = op_state_floats(&e->r->op);
    if (!kv)
        return asc_part(ASC_F32, asc_array_address(e, 0), ASC_DIMS(1, each));
    return asc_part(ASC_F32, kv_state(kv, e->r->kv_layer, 0),
                    ASC_DIMS(kv->layers[e->r->kv_layer].slots, each));
}

/* S sequences of q tokens each, whose first is token `token`; at: where theirs are in the arrays.
 */
static void convolve(struct asc_emit *e, struct asc_part taps, int64_t S, int64_t q, int64_t token,
                     int64_t at)
{
    const int64_t k = e->r->op.k, n = e->r->op.state;
    const struct asc_mark mark = asc_mark(e);
    const uint64_t in_bytes = (uint64_t)(token * k) * sizeof(float);
    const struct asc_part slot =
        asc_part(ASC_I32, (int32_t *)asc_array_address(e, 0) + at, ASC_DIMS(S));
    const struct asc_part keeps =
        asc_part(ASC_F32, (float *)asc_array_address(e, 1) + at, ASC_DIMS(S, 1));
    const struct asc_part old = asc_part_new(e, ASC_F32, ASC_DIMS(S, n * k));
    const struct asc_part before = asc_part_new(e, ASC_F32, ASC_DIMS(S, n * k));
    const struct asc_part all = asc_part_new(e, ASC_F32, ASC_DIMS(S, n + q, k));
    const struct asc_part products = asc_part_new(e, ASC_F32, ASC_DIMS(S, q, n + 1, k));
    const struct asc_part both[] = {
        asc_shaped(before, ASC_DIMS(S, n, k)),
        asc_part(ASC_F32, (uint8_t *)asc_in_address(e, 0) + in_bytes, ASC_DIMS(S, q, k))};
    struct asc_part windows = asc_shaped(all, ASC_DIMS(S, q, n + 1, k)); /* that overlap */
    windows.strides[0] = (n + q) * k;
    windows.strides[1] = windows.strides[2] = k;
    asc_select(e, layer_slots(e), 0, slot, old);
    asc_mul(e, old, keeps, before);
    asc_cat(e, 2, both, 1, all);
    asc_mul(e, windows, taps, products);
    asc_sum(e, products, 2, false,
            asc_part(ASC_F32, (uint8_t *)asc_out_address(e, 0) + in_bytes, ASC_DIMS(S, q, k)));
    struct asc_part last = asc_cut(all, 1, q, n);
    last = asc_part(ASC_F32, last.at, ASC_DIMS(S, n * k));
    last.strides[0] = (n + q) * k;
    ASC_CALL(e, InplaceIndexCopy, asc_t(e, layer_slots(e)), 0, asc_t(e, slot), asc_t(e, last));
    asc_rewind(e, mark);
}

void asc_emit_conv(struct asc_emit *e)
{
    const int64_t k = e->r->op.k, n = e->r->op.state;
    const struct step *step = e->step;
    const int64_t S = max_i64(1, step ? step->n_seqs : min_i64(e->seqs, e->rows));
    const int64_t q = step ? step->seq[0].query_len : (e->rows + S - 1) / S;
    const struct asc_part taps = asc_part_new(e, ASC_F32, ASC_DIMS(1, 1, n + 1, k));
    struct asc_part w;
    bool even = true;
    if (!asc_weight_part(e, 0, ASC_DIMS(k, n + 1), &w))
        return;
    asc_copy(e, asc_turned(w, 0, 1), asc_shaped(taps, ASC_DIMS(n + 1, k)));
    for (int64_t s = 0; step && s < S; s++)
        even = even && step->seq[s].query_len == q;
    if (even && q)
        convolve(e, taps, S, q, 0, 0);
    for (int64_t s = 0; !even && s < S; s++)
        if (step->seq[s].query_len)
            convolve(e, taps, 1, step->seq[s].query_len, step->seq[s].query_begin,
                     aligned(S) + s * ALIGNED);
    if (!step && S > 1) /* what sequences of other lengths take at most */
        convolve(e, taps, 1, e->rows, 0, 0);
}
