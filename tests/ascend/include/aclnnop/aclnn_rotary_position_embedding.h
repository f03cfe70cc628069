/*
 * aclnn_rotary_position_embedding.h - the operator that llama.cpp's backend declares itself, with an
 * output that is const: a program that includes ops.h must not see this declaration.
 */
#ifndef STAND_ACLNN_ROTARY_POSITION_EMBEDDING_H
#define STAND_ACLNN_ROTARY_POSITION_EMBEDDING_H

#include "aclnnop/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

ACLNN(RotaryPositionEmbedding, const aclTensor *x, const aclTensor *cos, const aclTensor *sin,
      int64_t mode, aclTensor *out);

#ifdef __cplusplus
}
#endif

#endif
