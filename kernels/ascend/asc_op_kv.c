/*
 * asc_op_kv.c - the records that write pages of KV: storing rows that an array names, and copying
 * pages and states.
 */
#include "kernels/ascend/asc_kv.h"
#include "kernels/ascend/asc_ops.h"

bool asc_supports_kv(const struct asc_device *d, const struct oato_op *op)
{
    const int64_t v = op->v_in_k ? 0 : op_v_dim(op);
    (void)d;
    return op->dtype == DT_F16 && (int64_t)op->kv_heads * op->head_dim % 16 == 0 &&
           op->kv_heads * v % 16 == 0;
}

struct asc_part asc_kv_units(struct asc_emit *e, const struct asc_kv_shape *s, int64_t each)
{
    const struct kv_cache *kv = e->c ? e->c->program->kv : NULL;
    const int64_t width = s->kv_heads * s->unit, units = asc_kv_page_units(s);
    int64_t pages = 1;
    uint8_t *at = asc_array_address(e, 0);
    if (kv) {
        const struct kv_layer_shape *layer = &kv->layers[e->r->kv_layer];
        pages = layer->pages ? layer->pages : kv->pages;
        at = kv->data + kv->layer_offset[e->r->kv_layer];
    }
    return asc_part(ASC_F16, at, ASC_DIMS(pages * units / each, each * width));
}

/* ---------------------------------------------------------------------------------- store - */

static uint64_t k_slots_bytes(const struct compiled *c, const struct program_record *r,
                              int32_t kv_pages)
{
    const struct asc_kv_shape s = asc_kv_shape(&r->op);
    (void)kv_pages;
    return (uint64_t)(c->program->max_tokens * s.k_units) * sizeof(int32_t);
}

static uint64_t v_slots_bytes(const struct compiled *c, const struct program_record *r,
                              int32_t kv_pages)
{
    const struct asc_kv_shape s = asc_kv_shape(&r->op);
    (void)kv_pages;
    return (uint64_t)(c->program->max_tokens * s.v_units) * sizeof(int32_t);
}

/* The units of each token of the step, of K or of V. */
static uint64_t slots_fill(const struct compiled *c, const struct program_record *r,
                           const struct step *step, bool v, int32_t *slot)
{
    const struct asc_kv_shape s = asc_kv_shape(&r->op);
    const int64_t each = v ? s.v_units : s.k_units, page = asc_kv_page_units(&s);
    const int64_t begin = v ? KV_PAGE_POSITIONS * s.k_units : 0;
    for (int32_t t = 0; t < step->n_tokens; t++) {
        const int32_t *table =
            kv_table(c->program->kv, r->kv_layer, &step->seq[step->token_seq[t]]);
        const int64_t at = step->token_position[t];
        const int64_t first =
            table[at / KV_PAGE_POSITIONS] * page + begin + at % KV_PAGE_POSITIONS * each;
        for (int64_t i = 0; i < each; i++)
            *slot++ = (int32_t)(first + i);
    }
    return (uint64_t)(step->n_tokens * each) * sizeof *slot;
}

static uint64_t k_slots_fill(const struct compiled *c, const struct program_record *r,
                             const struct step *step, int32_t kv_pages, void *to)
{
    (void)kv_pages;
    return slots_fill(c, r, step, false, to);
}

static uint64_t v_slots_fill(const struct compiled *c, const struct program_record *r,
                             const struct step *step, int32_t kv_pages, void *to)
{
    (void)kv_pages;
    return slots_fill(c, r, step, true, to);
}

bool asc_kv_same(const struct program_record *a, const struct program_record *b)
{
    const struct asc_kv_shape x = asc_kv_shape(&a->op), y = asc_kv_shape(&b->op);
    return x.k_units == y.k_units && x.v_units == y.v_units &&
           (a->op.window > 0) == (b->op.window > 0);
}

static const struct asc_array_kind k_slots = {k_slots_bytes, k_slots_fill, asc_kv_same},
                                   v_slots = {v_slots_bytes, v_slots_fill, asc_kv_same};

oato_status asc_prepare_store(struct compiled *c, uint32_t index, struct oato_error *err)
{
    const struct oato_op *op = &c->program->records[index].op;
    struct asc_record *r = &c->records[index];
    if (asc_need_array(c, index, &k_slots, &r->array[0], err))
        return err->status;
    return op->v_in_k ? OATO_OK : asc_need_array(c, index, &v_slots, &r->array[1], err);
}

static void store(struct asc_emit *e, const struct asc_kv_shape *s, int array, int64_t each,
                  struct asc_part from)
{
    const struct asc_mark mark = asc_mark(e);
    const int64_t units = e->rows * each;
    ASC_CALL(e, InplaceIndexCopy, asc_t(e, asc_kv_units(e, s, 1)), 0,
             asc_t(e, asc_part(ASC_I32, asc_array_address(e, array), ASC_DIMS(units))),
             asc_t(e, asc_shaped(from, ASC_DIMS(units, s->kv_heads * s->unit))));
    asc_rewind(e, mark);
}

void asc_emit_store(struct asc_emit *e)
{
    const struct oato_op *op = &e->r->op;
    const struct asc_kv_shape s = asc_kv_shape(op);
    const int64_t T = e->rows, g = s.kv_heads, d = s.k_dim, own = d - op->k_tail;
    struct asc_part k = asc_part_in(e, 0), v = asc_part_in(e, 1);
    if (op->k_tail) { /* in heads: the rest of k, then v; the tail is the same for all */
        const struct asc_part in = asc_shaped(k, ASC_DIMS(T, g, own + s.v_dim));
        const struct asc_part tail = asc_shaped(v, ASC_DIMS(T, 1, op->k_tail));
        struct asc_part piece[2] = {asc_part_new(e, ASC_F16, ASC_DIMS(T, g, own)),
                                    asc_part_new(e, ASC_F16, ASC_DIMS(T, g, op->k_tail))};
        k = asc_part_new(e, ASC_F16, ASC_DIMS(T, g, d));
        asc_slice(e, in, 2, 0, piece[0]);
        asc_copy(e, tail, piece[1]);
        asc_cat(e, 2, piece, 2, k);
        if (s.v_dim) {
            v = asc_part_new(e, ASC_F16, ASC_DIMS(T, g, s.v_dim));
            asc_slice(e, in, 2, own, v);
        }
    }
    store(e, &s, 0, s.k_units, k);
    if (s.v_dim)
        store(e, &s, 1, s.v_units, v);
}

void asc_emit_kv_copy(struct asc_emit *e)
{
    const struct kv_cache *kv = e->c ? e->c->program->kv : NULL;
    for (int32_t l = 0; kv && e->step && l < kv->n_layers; l++) {
        const struct kv_layer_shape *s = &kv->layers[l];
        const uint64_t page = kv_page_bytes(kv, l);
        for (int32_t i = 0; !s->state && !s->staged && i < e->step->n_page_copies; i++) {
            const struct step_page_copy *copy = &e->step->page_copy[i];
            if (copy->window == (s->window > 0))
                asc_move(e, kv_block(kv, l, copy->to, 0, 0), kv_block(kv, l, copy->from, 0, 0),
                         page);
        }
        for (int32_t i = 0; s->state && i < e->step->n_state_copies; i++)
            asc_move(e, kv_state(kv, l, e->step->state_copy[i].to),
                     kv_state(kv, l, e->step->state_copy[i].from),
                     (uint64_t)s->state * sizeof(float));
    }
}
