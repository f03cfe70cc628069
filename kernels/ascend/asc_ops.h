/*
 * asc_ops.h - what the rows of asc_kinds.c name: for kinds of operators the calls, the shapes that
 * they run, and what they need before steps (struct asc_kind).
 */
#ifndef OATO_ASC_OPS_H
#define OATO_ASC_OPS_H

#include "kernels/ascend/asc_parts.h"

/* asc_op_rows.c */
void asc_emit_norm(struct asc_emit *e);
void asc_emit_head_norm(struct asc_emit *e);
void asc_emit_add_norm(struct asc_emit *e);
void asc_emit_bias(struct asc_emit *e);
void asc_emit_add(struct asc_emit *e);
void asc_emit_sum(struct asc_emit *e);
void asc_emit_swiglu(struct asc_emit *e);
void asc_emit_activate(struct asc_emit *e);
void asc_emit_gate(struct asc_emit *e);
void asc_emit_convert(struct asc_emit *e);
void asc_emit_scale(struct asc_emit *e);
void asc_emit_merge(struct asc_emit *e);
void asc_emit_slice(struct asc_emit *e);
void asc_emit_select(struct asc_emit *e);
void asc_emit_embed(struct asc_emit *e);
void asc_emit_top_k(struct asc_emit *e);
bool asc_supports_sum(const struct asc_device *d, const struct oato_op *op);
bool asc_supports_activation(const struct asc_device *d, const struct oato_op *op);
bool asc_supports_lookup(const struct asc_device *d, const struct oato_op *op);
oato_status asc_prepare_norm(struct compiled *c, uint32_t index, struct oato_error *err);
oato_status asc_prepare_scale(struct compiled *c, uint32_t index, struct oato_error *err);
oato_status asc_prepare_select(struct compiled *c, uint32_t index, struct oato_error *err);
oato_status asc_prepare_embed(struct compiled *c, uint32_t index, struct oato_error *err);

/* asc_op_products.c */
void asc_emit_products(struct asc_emit *e);
void asc_emit_gate_up(struct asc_emit *e);
void asc_emit_head_products(struct asc_emit *e);
void asc_emit_transposed(struct asc_emit *e);
bool asc_supports_products(const struct asc_device *d, const struct oato_op *op);
/* y = x times rows [begin, begin + y's width) of the matrix; x of F16 or float32, rows x k, y of
 * any type. Both lie without gaps. */
void asc_product(struct asc_emit *e, struct asc_part x, const struct asc_matrix *m, int64_t begin,
                 struct asc_part y);
/* Whether the device multiplies by n x k matrices of the type. */
bool asc_multiplies(const struct asc_device *d, oato_dtype dtype, int64_t n, int64_t k);

/* asc_op_rope.c */
void asc_emit_rope(struct asc_emit *e);
oato_status asc_prepare_rope(struct compiled *c, uint32_t index, struct oato_error *err);

/* asc_op_kv.c */
struct asc_kv_shape;
void asc_emit_store(struct asc_emit *e);
void asc_emit_kv_copy(struct asc_emit *e);
bool asc_supports_kv(const struct asc_device *d, const struct oato_op *op);
oato_status asc_prepare_store(struct compiled *c, uint32_t index, struct oato_error *err);
/* Rows of `each` units of the pages of the record's layer. */
struct asc_part asc_kv_units(struct asc_emit *e, const struct asc_kv_shape *s, int64_t each);
/* Whether two records have the same units in a page, and the same block tables. */
bool asc_kv_same(const struct program_record *a, const struct program_record *b);

/* asc_op_attention.c */
void asc_emit_attention(struct asc_emit *e);
bool asc_supports_attention(const struct asc_device *d, const struct oato_op *op);
oato_status asc_prepare_attention(struct compiled *c, uint32_t index, struct oato_error *err);

/* asc_op_conv.c */
void asc_emit_conv(struct asc_emit *e);
bool asc_supports_conv(const struct asc_device *d, const struct oato_op *op);
oato_status asc_prepare_conv(struct compiled *c, uint32_t index, struct oato_error *err);

/* asc_op_experts.c */
void asc_emit_route(struct asc_emit *e);
void asc_emit_expert_gate_up(struct asc_emit *e);
void asc_emit_expert_down(struct asc_emit *e);
bool asc_supports_route(const struct asc_device *d, const struct oato_op *op);
bool asc_supports_experts(const struct asc_device *d, const struct oato_op *op);
oato_status asc_prepare_choice(struct compiled *c, uint32_t index, struct oato_error *err);

#endif
