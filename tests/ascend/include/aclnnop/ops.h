/*
 * ops.h - the operators of the stand-in: arguments in the order and with the types that the public
 * documentation of CANN 8 gives them.
 *
 * ACLNN(Name, arguments) declares the two phases of an operator. The first checks its arguments and
 * gives the size of the workspace and an executor, the second puts the work on a stream. In CANN
 * each operator has a header of its own; headers.cmake makes these, each of which includes this
 * file.
 */
#ifndef STAND_ACLNN_OPS_H
#define STAND_ACLNN_OPS_H

#include "aclnn/aclnn_base.h"

#ifdef __cplusplus
extern "C" {
#else
#include <stdbool.h>
#endif
#pragma GCC visibility push(default)

#define ACLNN(name, ...)                                                                           \
    aclnnStatus aclnn##name##GetWorkspaceSize(__VA_ARGS__, uint64_t *workspaceSize,                \
                                              aclOpExecutor **executor);                           \
    aclnnStatus aclnn##name(void *workspace, uint64_t workspaceSize, aclOpExecutor *executor,      \
                            aclrtStream stream)

/* ---------------------------------------------------------------------- elementwise ---- */

#define ACLNN_UNARY(name)   ACLNN(name, const aclTensor *self, aclTensor *out)
#define ACLNN_INPLACE(name) ACLNN(Inplace##name, aclTensor *selfRef)
ACLNN_UNARY(Abs);
ACLNN_UNARY(Neg);
ACLNN_UNARY(Exp);
ACLNN_UNARY(Log);
ACLNN_UNARY(Sqrt);
ACLNN_UNARY(Rsqrt);
ACLNN_UNARY(Reciprocal);
ACLNN_UNARY(Sin);
ACLNN_UNARY(Cos);
ACLNN_UNARY(Tanh);
ACLNN_UNARY(Sigmoid);
ACLNN_UNARY(Relu);
ACLNN_UNARY(Silu);
ACLNN_UNARY(Gelu);
ACLNN_UNARY(FastGelu);
ACLNN_UNARY(Hardsigmoid);
ACLNN_UNARY(Hardswish);
ACLNN_UNARY(Sign);
ACLNN_UNARY(Floor);
ACLNN_UNARY(Ceil);
ACLNN_UNARY(Round);
ACLNN_UNARY(Trunc);
ACLNN_UNARY(LogicalNot);
ACLNN_INPLACE(Neg);
ACLNN_INPLACE(Exp);
ACLNN_INPLACE(Log);
ACLNN_INPLACE(Sqrt);
ACLNN_INPLACE(Rsqrt);
ACLNN_INPLACE(Reciprocal);
ACLNN_INPLACE(Sin);
ACLNN_INPLACE(Cos);
ACLNN_INPLACE(Tanh);
ACLNN_INPLACE(Sigmoid);
ACLNN_INPLACE(Relu);
ACLNN_INPLACE(Floor);
ACLNN_INPLACE(Ceil);
ACLNN_INPLACE(Round);
ACLNN_INPLACE(Trunc);
ACLNN_INPLACE(Zero);
ACLNN_INPLACE(One);

ACLNN(GeluV2, const aclTensor *x, int64_t approximate, aclTensor *y); /* 0: erf, 1: tanh */
ACLNN(LeakyRelu, const aclTensor *self, const aclScalar *negativeSlope, aclTensor *out);
ACLNN(Elu, const aclTensor *self, const aclScalar *alpha, const aclScalar *scale,
      const aclScalar *inputScale, aclTensor *out);
ACLNN(Softplus, const aclTensor *self, const aclScalar *beta, const aclScalar *threshold,
      aclTensor *out);
ACLNN(Threshold, const aclTensor *self, const aclScalar *threshold, const aclScalar *value,
      aclTensor *out);
ACLNN(InplaceThreshold, aclTensor *selfRef, const aclScalar *threshold, const aclScalar *value);
ACLNN(Clamp, const aclTensor *self, const aclScalar *clipValueMin, const aclScalar *clipValueMax,
      aclTensor *out);
ACLNN(ClampMin, const aclTensor *self, const aclScalar *clipValueMin, aclTensor *out);
ACLNN(ClampMax, const aclTensor *self, const aclScalar *clipValueMax, aclTensor *out);
ACLNN(InplaceClampMin, aclTensor *selfRef, const aclScalar *clipValueMin);
ACLNN(InplaceClampMax, aclTensor *selfRef, const aclScalar *clipValueMax);

ACLNN(Add, const aclTensor *self, const aclTensor *other, const aclScalar *alpha, aclTensor *out);
ACLNN(Sub, const aclTensor *self, const aclTensor *other, const aclScalar *alpha, aclTensor *out);
ACLNN(Mul, const aclTensor *self, const aclTensor *other, aclTensor *out);
ACLNN(Div, const aclTensor *self, const aclTensor *other, aclTensor *out);
ACLNN(Maximum, const aclTensor *self, const aclTensor *other, aclTensor *out);
ACLNN(Minimum, const aclTensor *self, const aclTensor *other, aclTensor *out);
ACLNN(PowTensorTensor, const aclTensor *self, const aclTensor *exponent, aclTensor *out);
ACLNN(InplaceAdd, aclTensor *selfRef, const aclTensor *other, const aclScalar *alpha);
ACLNN(InplaceSub, aclTensor *selfRef, const aclTensor *other, const aclScalar *alpha);
ACLNN(InplaceMul, aclTensor *selfRef, const aclTensor *other);
ACLNN(InplaceDiv, aclTensor *selfRef, const aclTensor *other);
ACLNN(InplacePowTensorTensor, aclTensor *selfRef, const aclTensor *exponent);

ACLNN(Adds, const aclTensor *self, const aclScalar *other, const aclScalar *alpha, aclTensor *out);
ACLNN(Subs, const aclTensor *self, const aclScalar *other, const aclScalar *alpha, aclTensor *out);
ACLNN(Muls, const aclTensor *self, const aclScalar *other, aclTensor *out);
ACLNN(Divs, const aclTensor *self, const aclScalar *other, aclTensor *out);
ACLNN(PowTensorScalar, const aclTensor *self, const aclScalar *exponent, const aclTensor *out);
ACLNN(PowScalarTensor, const aclScalar *self, const aclTensor *exponent, const aclTensor *out);
ACLNN(InplaceAdds, aclTensor *selfRef, const aclScalar *other, const aclScalar *alpha);
ACLNN(InplaceSubs, aclTensor *selfRef, const aclScalar *other, const aclScalar *alpha);
ACLNN(InplaceMuls, aclTensor *selfRef, const aclScalar *other);
ACLNN(InplaceDivs, aclTensor *selfRef, const aclScalar *other);
ACLNN(InplacePowTensorScalar, const aclTensor *self, const aclScalar *exponent);

ACLNN(EqTensor, const aclTensor *self, const aclTensor *other, aclTensor *out);
ACLNN(NeTensor, const aclTensor *self, const aclTensor *other, aclTensor *out);
ACLNN(GtTensor, const aclTensor *self, const aclTensor *other, aclTensor *out);
ACLNN(GeTensor, const aclTensor *self, const aclTensor *other, aclTensor *out);
ACLNN(LtTensor, const aclTensor *self, const aclTensor *other, aclTensor *out);
ACLNN(LeTensor, const aclTensor *self, const aclTensor *other, aclTensor *out);
ACLNN(EqScalar, const aclTensor *self, const aclScalar *other, aclTensor *out);
ACLNN(NeScalar, const aclTensor *self, const aclScalar *other, aclTensor *out);
ACLNN(GtScalar, const aclTensor *self, const aclScalar *other, aclTensor *out);
ACLNN(GeScalar, const aclTensor *self, const aclScalar *other, aclTensor *out);
ACLNN(LtScalar, const aclTensor *self, const aclScalar *other, aclTensor *out);
ACLNN(LeScalar, const aclTensor *self, const aclScalar *other, aclTensor *out);

/* ------------------------------------------------------------- copies and positions ---- */

ACLNN(Cast, const aclTensor *self, const aclDataType dtype, aclTensor *out);
ACLNN(InplaceCopy, aclTensor *selfRef, const aclTensor *src);
ACLNN(InplaceFillScalar, aclTensor *selfRef, const aclScalar *value);
ACLNN(Arange, const aclScalar *start, const aclScalar *end, const aclScalar *step, aclTensor *out);
ACLNN(Permute, const aclTensor *self, const aclIntArray *dims, aclTensor *out);
ACLNN(Repeat, const aclTensor *self, const aclIntArray *repeats, aclTensor *out);
ACLNN(RepeatInterleaveIntWithDim, const aclTensor *self, int64_t repeats, int64_t dim,
      int64_t outputSize, aclTensor *out);
ACLNN(Cat, const aclTensorList *tensors, int64_t dim, aclTensor *out);
ACLNN(Slice, const aclTensor *self, int64_t dim, int64_t start, int64_t end, int64_t step,
      aclTensor *out);
ACLNN(Roll, const aclTensor *x, const aclIntArray *shifts, const aclIntArray *dims, aclTensor *out);
ACLNN(Tril, const aclTensor *self, int64_t diagonal, aclTensor *out);
ACLNN(Triu, const aclTensor *self, int64_t diagonal, aclTensor *out);
ACLNN(InplaceTril, aclTensor *selfRef, int64_t diagonal);
ACLNN(InplaceTriu, aclTensor *selfRef, int64_t diagonal);
ACLNN(ConstantPadNd, const aclTensor *self, const aclIntArray *pad, const aclScalar *value,
      aclTensor *out);
ACLNN(ReflectionPad1d, const aclTensor *self, const aclIntArray *padding, aclTensor *out);
ACLNN(GatherV2, const aclTensor *self, int64_t dim, const aclTensor *index, aclTensor *out);
ACLNN(IndexSelect, const aclTensor *self, int64_t dim, const aclTensor *index, aclTensor *out);
ACLNN(Embedding, const aclTensor *weight, const aclTensor *indices, const aclTensor *out);
ACLNN(IndexCopy, aclTensor *selfRef, int64_t dim, const aclTensor *index, const aclTensor *source,
      aclTensor *outRef);
ACLNN(InplaceIndexCopy, aclTensor *selfRef, int64_t dim, const aclTensor *index,
      const aclTensor *source);
ACLNN(InplaceIndexFillTensor, aclTensor *selfRef, int64_t dim, const aclIntArray *index,
      const aclScalar *value);
ACLNN(InplaceScatterUpdate, aclTensor *data, const aclTensor *indices, const aclTensor *updates,
      int64_t axis);
ACLNN(ScatterPaKvCache, const aclTensor *key, aclTensor *keyCacheRef, const aclTensor *slotMapping,
      const aclTensor *value, aclTensor *valueCacheRef, const aclTensor *compressLensOptional,
      const aclTensor *compressSeqOffsetOptional, const aclTensor *seqLensOptional,
      char *cacheModeOptional, char *scatterModeOptional, const aclIntArray *stridesOptional,
      const aclIntArray *offsetsOptional);
ACLNN(InplaceMaskedFillScalar, aclTensor *selfRef, const aclTensor *mask, const aclScalar *value);
ACLNN(SWhere, const aclTensor *condition, const aclTensor *self, const aclTensor *other,
      aclTensor *out);

/* ---------------------------------------------------------------- sums and choices ---- */

ACLNN(ReduceSum, const aclTensor *self, const aclIntArray *dims, bool keepDims, aclDataType dtype,
      aclTensor *out);
ACLNN(Mean, const aclTensor *self, const aclIntArray *dim, bool keepDim, aclDataType dtype,
      aclTensor *out);
ACLNN(Amax, const aclTensor *self, const aclIntArray *dim, bool keepDim, aclTensor *out);
ACLNN(Norm, const aclTensor *self, const aclScalar *pScalar, const aclIntArray *dim, bool keepDim,
      aclTensor *out);
ACLNN(Cumsum, const aclTensor *self, int64_t dim, aclDataType dtype, aclTensor *out);
ACLNN(ArgMax, const aclTensor *self, const int64_t dim, const bool keepdim, aclTensor *out);
ACLNN(Argsort, const aclTensor *self, int64_t dim, bool descending, aclTensor *out);
ACLNN(Sort, const aclTensor *self, bool stable, int64_t dim, bool descending, aclTensor *valuesOut,
      aclTensor *indicesOut);
ACLNN(Topk, const aclTensor *self, int64_t k, int64_t dim, bool largest, bool sorted,
      aclTensor *valuesOut, aclTensor *indicesOut);

/* ------------------------------------------------------- norms, activations, rotation ---- */

ACLNN(RmsNorm, const aclTensor *x, const aclTensor *gamma, double epsilon, const aclTensor *yOut,
      const aclTensor *rstdOut);
ACLNN(AddRmsNorm, const aclTensor *x1, const aclTensor *x2, const aclTensor *gamma, double epsilon,
      aclTensor *yOut, aclTensor *rstdOut, aclTensor *xOut);
ACLNN(LayerNorm, const aclTensor *input, const aclIntArray *normalizedShape,
      const aclTensor *weightOptional, const aclTensor *biasOptional, double eps, aclTensor *out,
      aclTensor *meanOutOptional, aclTensor *rstdOutOptional);
ACLNN(GroupNorm, const aclTensor *self, const aclTensor *gammaOptional,
      const aclTensor *betaOptional, int64_t N, int64_t C, int64_t HxW, int64_t group, double eps,
      aclTensor *out, aclTensor *meanOut, aclTensor *rstdOut);
ACLNN(Softmax, const aclTensor *self, int64_t dim, aclTensor *out);
ACLNN(LogSoftmax, const aclTensor *self, int64_t dim, aclTensor *out);
ACLNN(SoftmaxCrossEntropyWithLogits, const aclTensor *features, aclTensor *labels, aclTensor *loss,
      aclTensor *backprop);
ACLNN(SwiGlu, const aclTensor *x, int64_t dim, const aclTensor *out);
ACLNN(GeGluV3, const aclTensor *self, int64_t dim, int64_t approximate, bool activateLeft,
      aclTensor *out, aclTensor *outGelu); /* approximate 1: tanh, 0: erf */

/* --------------------------------------------------------------------------- products ---- */

ACLNN(Mm, const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType);
ACLNN(Matmul, const aclTensor *self, const aclTensor *mat2, aclTensor *out, int8_t cubeMathType);
ACLNN(BatchMatMul, const aclTensor *self, const aclTensor *mat2, aclTensor *out,
      int8_t cubeMathType);
ACLNN(Mv, const aclTensor *self, const aclTensor *vec, aclTensor *out, int8_t cubeMathType);
ACLNN(Ger, const aclTensor *self, const aclTensor *vec2, aclTensor *out);
ACLNN(WeightQuantBatchMatmulV2, const aclTensor *x, const aclTensor *weight,
      const aclTensor *antiquantScale, const aclTensor *antiquantOffsetOptional,
      const aclTensor *quantScaleOptional, const aclTensor *quantOffsetOptional,
      const aclTensor *biasOptional, int antiquantGroupSize, const aclTensor *y);
ACLNN(GroupedMatmulV3, const aclTensorList *x, const aclTensorList *weight,
      const aclTensorList *biasOptional, const aclTensorList *scaleOptional,
      const aclTensorList *offsetOptional, const aclTensorList *antiquantScaleOptional,
      const aclTensorList *antiquantOffsetOptional, const aclTensor *groupListOptional,
      int64_t splitItem, int64_t groupType, const aclTensorList *y);
ACLNN(GroupedMatmulV4, const aclTensorList *x, const aclTensorList *weight,
      const aclTensorList *biasOptional, const aclTensorList *scaleOptional,
      const aclTensorList *offsetOptional, const aclTensorList *antiquantScaleOptional,
      const aclTensorList *antiquantOffsetOptional, const aclTensorList *perTokenScaleOptional,
      const aclTensor *groupListOptional, const aclTensorList *activationInputOptional,
      const aclTensorList *activationQuantScaleOptional,
      const aclTensorList *activationQuantOffsetOptional, int64_t splitItem, int64_t groupType,
      int64_t groupListType, int64_t actType, aclTensorList *out,
      aclTensorList *activationFeatureOutOptional, aclTensorList *dynQuantScaleOutOptional);
ACLNN(MoeGatingTopKSoftmax, const aclTensor *x, const aclTensor *finishedOptional, int64_t k,
      const aclTensor *yOut, const aclTensor *expertIdxOut, const aclTensor *rowIdxOut);
ACLNN(TransMatmulWeight, aclTensor *mmWeightRef);
aclnnStatus aclnnCalculateMatmulWeightSizeV2(const aclIntArray *tensorShape, aclDataType dtype,
                                             uint64_t *weightTensorSize);
ACLNN(TriangularSolve, const aclTensor *self, const aclTensor *A, bool upper, bool transpose,
      bool unitriangular, aclTensor *xOut, aclTensor *mOut);

/* -------------------------------------------------------------------------- attention ---- */

ACLNN(FusedInferAttentionScoreV2, const aclTensor *query, const aclTensorList *key,
      const aclTensorList *value, const aclTensor *pseShiftOptional,
      const aclTensor *attenMaskOptional, const aclIntArray *actualSeqLengthsOptional,
      const aclIntArray *actualSeqLengthsKvOptional, const aclTensor *deqScale1Optional,
      const aclTensor *quantScale1Optional, const aclTensor *deqScale2Optional,
      const aclTensor *quantScale2Optional, const aclTensor *quantOffset2Optional,
      const aclTensor *antiquantScaleOptional, const aclTensor *antiquantOffsetOptional,
      const aclTensor *blockTableOptional, const aclTensor *queryPaddingSizeOptional,
      const aclTensor *kvPaddingSizeOptional, const aclTensor *keyAntiquantScaleOptional,
      const aclTensor *keyAntiquantOffsetOptional, const aclTensor *valueAntiquantScaleOptional,
      const aclTensor *valueAntiquantOffsetOptional, const aclTensor *keySharedPrefixOptional,
      const aclTensor *valueSharedPrefixOptional, const aclIntArray *actualSharedPrefixLenOptional,
      int64_t numHeads, double scaleValue, int64_t preTokens, int64_t nextTokens, char *inputLayout,
      int64_t numKeyValueHeads, int64_t sparseMode, int64_t innerPrecise, int64_t blockSize,
      int64_t antiquantMode, bool softmaxLseFlag, int64_t keyAntiquantMode,
      int64_t valueAntiquantMode, const aclTensor *attentionOut, const aclTensor *softmaxLse);
ACLNN(FusedInferAttentionScoreV3, const aclTensor *query, const aclTensorList *key,
      const aclTensorList *value, const aclTensor *pseShiftOptional,
      const aclTensor *attenMaskOptional, const aclIntArray *actualSeqLengthsOptional,
      const aclIntArray *actualSeqLengthsKvOptional, const aclTensor *deqScale1Optional,
      const aclTensor *quantScale1Optional, const aclTensor *deqScale2Optional,
      const aclTensor *quantScale2Optional, const aclTensor *quantOffset2Optional,
      const aclTensor *antiquantScaleOptional, const aclTensor *antiquantOffsetOptional,
      const aclTensor *blockTableOptional, const aclTensor *queryPaddingSizeOptional,
      const aclTensor *kvPaddingSizeOptional, const aclTensor *keyAntiquantScaleOptional,
      const aclTensor *keyAntiquantOffsetOptional, const aclTensor *valueAntiquantScaleOptional,
      const aclTensor *valueAntiquantOffsetOptional, const aclTensor *keySharedPrefixOptional,
      const aclTensor *valueSharedPrefixOptional, const aclIntArray *actualSharedPrefixLenOptional,
      const aclTensor *queryRopeOptional, const aclTensor *keyRopeOptional,
      const aclTensor *keyRopeAntiquantScaleOptional, int64_t numHeads, double scaleValue,
      int64_t preTokens, int64_t nextTokens, char *inputLayout, int64_t numKeyValueHeads,
      int64_t sparseMode, int64_t innerPrecise, int64_t blockSize, int64_t antiquantMode,
      bool softmaxLseFlag, int64_t keyAntiquantMode, int64_t valueAntiquantMode,
      const aclTensor *attentionOut, const aclTensor *softmaxLse);
ACLNN(IncreFlashAttentionV4, const aclTensor *query, const aclTensorList *key,
      const aclTensorList *value, const aclTensor *pseShift, const aclTensor *attenMask,
      const aclIntArray *actualSeqLengths, const aclTensor *dequantScale1,
      const aclTensor *quantScale1, const aclTensor *dequantScale2, const aclTensor *quantScale2,
      const aclTensor *quantOffset2, const aclTensor *antiquantScale,
      const aclTensor *antiquantOffset, const aclTensor *blocktable, const aclTensor *kvPaddingSize,
      int64_t numHeads, double scaleValue, char *inputLayout, int64_t numKeyValueHeads,
      int64_t blockSize, int64_t innerPrecise, const aclTensor *attentionOut);

ACLNN(PromptFlashAttentionV3, const aclTensor *query, const aclTensor *key, const aclTensor *value,
      const aclTensor *pseShift, const aclTensor *attenMask, const aclIntArray *actualSeqLengths,
      const aclIntArray *actualSeqLengthsKv, const aclTensor *deqScale1,
      const aclTensor *quantScale1, const aclTensor *deqScale2, const aclTensor *quantScale2,
      const aclTensor *quantOffset2, int64_t numHeads, double scaleValue, int64_t preTokens,
      int64_t nextTokens, char *inputLayout, int64_t numKeyValueHeads, int64_t sparseMode,
      int64_t innerPrecise, const aclTensor *attentionOut);

/* ------------------------------------------------------------------- images and sound ---- */

ACLNN(Convolution, const aclTensor *input, const aclTensor *weight, const aclTensor *bias,
      const aclIntArray *stride, const aclIntArray *padding, const aclIntArray *dilation,
      bool transposed, const aclIntArray *outputPadding, const int64_t groups, aclTensor *output,
      int8_t cubeMathType);
ACLNN(Im2col, const aclTensor *self, const aclIntArray *kernelSize, const aclIntArray *dilation,
      const aclIntArray *padding, const aclIntArray *stride, aclTensor *out);
ACLNN(AvgPool2d, const aclTensor *self, const aclIntArray *kernelSize, const aclIntArray *strides,
      const aclIntArray *paddings, const bool ceilMode, const bool countIncludePad,
      const int64_t divisorOverride, const int8_t cubeMathType, aclTensor *out);
ACLNN(MaxPool, const aclTensor *self, const aclIntArray *kernelShape, const aclIntArray *strides,
      const int64_t autoPad, const aclIntArray *pads, const aclIntArray *dilations,
      const int64_t ceilMode, aclTensor *out);
ACLNN(UpsampleNearest2d, const aclTensor *self, const aclIntArray *outputSize, aclTensor *out);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
