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
    X(Cast, (const asc_tensor *x, int type, asc_tensor *out, ASC_LAST))                            \
    X(InplaceCopy, (asc_tensor *to, const asc_tensor *from, ASC_LAST))                             \
    X(GatherV2, (const asc_tensor *x, int64_t dim, const asc_tensor *index, asc_tensor *out, ASC_LAST)) \
    X(IndexSelect, (const asc_tensor *x, int64_t dim, const asc_tensor *index, asc_tensor *out, ASC_LAST))
/* clang-format on */

#endif
