/*
 * predict.c - the records that guess which neurons a part of a GATE_UP, or of a MUL_MAT before a
 * ReLU, computes in decode. They run before it on the same device, and each part makes the list of
 * its own neurons:
 *
 *   down x -> relu -> up's rows of these neurons -> list of what is, with a bias, above a threshold
 *
 * Prefill has no such records: hundreds of tokens together need nearly all neurons.
 */
#include "lowering/lowering_internal.h"

/* What both phases need: weights are prepared once, as rows. */
bool lists_possible(const struct lowering *l, int32_t device, const struct oato_op *op)
{
    const struct lowering_facts *facts = l->in->facts;
    struct oato_op by_list = *op, by_rows = *op;
    const struct oato_op list = {.kind = OP_ACTIVE, .dtype = DT_F32, .k = op->n, .n = op->n + 1};
    by_list.sparse = SPARSE_PREDICT;
    by_rows.sparse = SPARSE_BY_ROWS;
    return !facts->supports || (facts->supports(facts->user, device, &by_list) &&
                                facts->supports(facts->user, device, &by_rows) &&
                                facts->supports(facts->user, device, &list));
}

/* Where a chain of records is: what they compute for, and the last result. */
struct chain {
    struct lowering *l;
    int32_t device, value;
    struct home at;
    int32_t width;
};

/* Adds a record that reads the last result. */
static struct program_record *chain_add(struct chain *c, struct oato_op op)
{
    c->at = run_emit(c->l, c->device, op, c->value, &c->at, &c->width, 1);
    c->width = op.n;
    return failed(c->l) ? NULL : &c->l->queue[c->device].records[c->at.record].record;
}

static void chain_add_weight(struct chain *c, struct oato_op op, const struct weight_slot *slot)
{
    const struct lowering_facts *facts = c->l->in->facts;
    struct program_record *r = chain_add(c, op);
    if (!r)
        return;
    if (facts->numerics)
        r->numerics = (uint8_t)facts->numerics(facts->user, c->device, &r->op, c->l->phase,
                                               (enum row_class)r->rows);
    r->weight[0] = weight_slot_find(c->l, c->device, slot);
    r->n_weights = 1;
}

/* The whole of a matrix. */
static struct weight_slot matrix_slot(const struct gguf_tensor *t)
{
    return (struct weight_slot){
        .tensor = t, .use = WEIGHT_MATRIX, .end = t->ne[1], .col_end = t->ne[0]};
}

/* The rows that `gate` has of its matrix. */
static struct weight_slot rows_as(const struct weight_slot *gate, struct weight_slot slot)
{
    slot.begin = gate->begin;
    slot.end = gate->end;
    slot.members = gate->members;
    slot.each = gate->each;
    return slot;
}

static struct weight_slot bias_slot(const struct weight_slot *gate, const struct gguf_tensor *t)
{
    return (struct weight_slot){.tensor = t,
                                .use = WEIGHT_VECTOR,
                                .end = 1,
                                .col_begin = gate->begin,
                                .col_end = gate->end,
                                .members = gate->members};
}

void list_ops(const struct neurons_predictor *p, const struct oato_op *op,
              struct oato_op out[LIST_OPS])
{
    const int32_t rank = (int32_t)p->down->ne[1];
    const uint16_t down = (uint16_t)p->down->dtype, up = (uint16_t)p->up->dtype;
    out[0] = (struct oato_op){.kind = OP_MUL_MAT, .dtype = down, .k = op->k, .n = rank};
    out[1] = (struct oato_op){
        .kind = OP_ACTIVATE, .dtype = DT_F32, .k = rank, .n = rank, .activation = ACT_RELU};
    out[2] = (struct oato_op){.kind = OP_MUL_MAT, .dtype = up, .k = rank, .n = op->n};
    out[3] = (struct oato_op){
        .kind = OP_ACTIVE, .dtype = DT_F32, .k = op->n, .n = op->n + 1, .threshold = p->threshold};
}

/* The weight of the i-th such record; without a tensor: it has none. */
static struct weight_slot list_slot(const struct neurons_predictor *p,
                                    const struct weight_slot *gate, int i)
{
    return i == 0              ? matrix_slot(p->down)
           : i == 2            ? rows_as(gate, matrix_slot(p->up))
           : i == LIST_OPS - 1 ? bias_slot(gate, p->bias)
                               : (struct weight_slot){.tensor = NULL};
}

struct home list_emit(struct lowering *l, const struct neurons_predictor *p,
                      const struct graph_op *o, const struct oato_op *op,
                      const struct weight_slot *gate, int32_t device, struct home x)
{
    struct chain c = {l, device, o->out[0], x, op->k};
    struct oato_op ops[LIST_OPS];
    list_ops(p, op, ops);
    for (int i = 0; i < LIST_OPS && !failed(l); i++) {
        const struct weight_slot slot = list_slot(p, gate, i);
        if (slot.tensor)
            chain_add_weight(&c, ops[i], &slot);
        else
            chain_add(&c, ops[i]);
    }
    return c.at;
}
