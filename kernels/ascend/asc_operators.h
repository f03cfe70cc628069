/*
 * asc_operators.h - the operators (aclnn) that are called, with the arguments of their first call;
 * all end with ASC_LAST. X(name without "aclnn", arguments)
 */
#ifndef OATO_ASC_OPERATORS_H
#define OATO_ASC_OPERATORS_H

#define ASC_LAST uint64_t *workspace, asc_executor **executor

/* clang-format off */
#define ASC_OPERATORS(X)                                                                           \
    X(Mm, (const asc_tensor *a, const asc_tensor *b, asc_tensor *out, int8_t cube, ASC_LAST))      \
    X(BatchMatMul, (const asc_tensor *a, const asc_tensor *b, asc_tensor *out, int8_t cube, ASC_LAST)) \
    X(WeightQuantBatchMatmulV2, (const asc_tensor *x, const asc_tensor *w, const asc_tensor *scale, const asc_tensor *offset, const asc_tensor *qscale, const asc_tensor *qoffset, const asc_tensor *bias, int group, const asc_tensor *out, ASC_LAST)) \
    X(RmsNorm, (const asc_tensor *x, const asc_tensor *gamma, double eps, const asc_tensor *out, const asc_tensor *rstd, ASC_LAST)) \
    X(AddRmsNorm, (const asc_tensor *a, const asc_tensor *b, const asc_tensor *gamma, double eps, const asc_tensor *out, const asc_tensor *rstd, const asc_tensor *sum, ASC_LAST)) \
    X(RotaryPositionEmbedding, (const asc_tensor *x, const asc_tensor *cos, const asc_tensor *sin, int64_t mode, asc_tensor *out, ASC_LAST)) \
    X(Softmax, (const asc_tensor *x, int64_t dim, asc_tensor *out, ASC_LAST))                      \
    X(Silu, (const asc_tensor *x, asc_tensor *out, ASC_LAST))                                      \
    X(Add, (const asc_tensor *a, const asc_tensor *b, const asc_scalar *alpha, asc_tensor *out, ASC_LAST)) \
    X(Mul, (const asc_tensor *a, const asc_tensor *b, asc_tensor *out, ASC_LAST))                  \
    X(Muls, (const asc_tensor *a, const asc_scalar *b, asc_tensor *out, ASC_LAST))                 \
    X(InplaceCopy, (asc_tensor *to, const asc_tensor *from, ASC_LAST))                             \
    X(IndexSelect, (const asc_tensor *x, int64_t dim, const asc_tensor *index, asc_tensor *out, ASC_LAST)) \
    X(Matmul, (const asc_tensor *a, const asc_tensor *b, asc_tensor *out, int8_t cube, ASC_LAST))  \
    X(LayerNorm, (const asc_tensor *x, const asc_ints *shape, const asc_tensor *weight, const asc_tensor *bias, double eps, asc_tensor *out, asc_tensor *mean, asc_tensor *rstd, ASC_LAST)) \
    X(GeluV2, (const asc_tensor *x, int64_t approximate, asc_tensor *out, ASC_LAST))               \
    X(Relu, (const asc_tensor *x, asc_tensor *out, ASC_LAST))                                      \
    X(Sigmoid, (const asc_tensor *x, asc_tensor *out, ASC_LAST))                                   \
    X(Tanh, (const asc_tensor *x, asc_tensor *out, ASC_LAST))                                      \
    X(Sqrt, (const asc_tensor *x, asc_tensor *out, ASC_LAST))                                      \
    X(Softplus, (const asc_tensor *x, const asc_scalar *beta, const asc_scalar *threshold, asc_tensor *out, ASC_LAST)) \
    X(Clamp, (const asc_tensor *x, const asc_scalar *least, const asc_scalar *most, asc_tensor *out, ASC_LAST)) \
    X(Sub, (const asc_tensor *a, const asc_tensor *b, const asc_scalar *alpha, asc_tensor *out, ASC_LAST)) \
    X(Div, (const asc_tensor *a, const asc_tensor *b, asc_tensor *out, ASC_LAST))                  \
    X(Adds, (const asc_tensor *a, const asc_scalar *b, const asc_scalar *alpha, asc_tensor *out, ASC_LAST)) \
    X(Cat, (const asc_tensors *parts, int64_t dim, asc_tensor *out, ASC_LAST))                     \
    X(Slice, (const asc_tensor *x, int64_t dim, int64_t begin, int64_t end, int64_t step, asc_tensor *out, ASC_LAST)) \
    X(ReduceSum, (const asc_tensor *x, const asc_ints *dims, bool keep_dims, int type, asc_tensor *out, ASC_LAST)) \
    X(Topk, (const asc_tensor *x, int64_t k, int64_t dim, bool largest, bool sorted, asc_tensor *values, asc_tensor *indices, ASC_LAST)) \
    X(InplaceIndexCopy, (asc_tensor *to, int64_t dim, const asc_tensor *index, const asc_tensor *from, ASC_LAST)) \
    X(SWhere, (const asc_tensor *condition, const asc_tensor *a, const asc_tensor *b, asc_tensor *out, ASC_LAST)) \
    X(FusedInferAttentionScoreV2, (const asc_tensor *q, const asc_tensors *k, const asc_tensors *v, const asc_tensor *bias, const asc_tensor *mask, const asc_ints *lengths, const asc_ints *kv_lengths, const asc_tensor *dequant1, const asc_tensor *quant1, const asc_tensor *dequant2, const asc_tensor *quant2, const asc_tensor *quant_offset2, const asc_tensor *antiquant, const asc_tensor *antiquant_offset, const asc_tensor *blocks, const asc_tensor *q_padding, const asc_tensor *kv_padding, const asc_tensor *k_antiquant, const asc_tensor *k_offset, const asc_tensor *v_antiquant, const asc_tensor *v_offset, const asc_tensor *k_prefix, const asc_tensor *v_prefix, const asc_ints *prefix_length, int64_t heads, double scale, int64_t before, int64_t after, char *layout, int64_t kv_heads, int64_t sparse, int64_t inner, int64_t block, int64_t antiquant_mode, bool wants_lse, int64_t k_mode, int64_t v_mode, const asc_tensor *out, const asc_tensor *lse, ASC_LAST))
/* clang-format on */

#endif
