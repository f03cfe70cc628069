/*
 * acl_meta.h - the operands of aclnn operators: tensors, scalars, arrays, lists, executors.
 * Declared for the stand-in from the public documentation of CANN 8.
 */
#ifndef STAND_ACL_META_H
#define STAND_ACL_META_H

#include "acl/acl_base.h"
#ifndef __cplusplus
#include <stdbool.h>
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct aclOpExecutor aclOpExecutor;
typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclIntArray aclIntArray;
typedef struct aclFloatArray aclFloatArray;
typedef struct aclBoolArray aclBoolArray;
typedef struct aclTensorList aclTensorList;
typedef struct aclScalarList aclScalarList;
typedef int32_t aclnnStatus;

#define ACLNN_SUCCESS                      0
#define ACLNN_ERR_PARAM_NULLPTR            161001
#define ACLNN_ERR_PARAM_INVALID            161002
#define ACLNN_ERR_RUNTIME_ERROR            361001
#define ACLNN_ERR_INNER                    561000
#define ACLNN_ERR_INNER_TILING_ERROR       561002
#define ACLNN_ERR_INNER_FIND_KERNEL_ERROR  561003
#define ACLNN_ERR_INNER_NULLPTR            561103
#define ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND 561107

/* Strides and the offset count elements. Null strides: dense in the order of viewDims. */
aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t *stride, int64_t offset, aclFormat format,
                           const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData);
aclnnStatus aclDestroyTensor(const aclTensor *tensor);
aclScalar *aclCreateScalar(void *value, aclDataType dataType);
aclnnStatus aclDestroyScalar(const aclScalar *scalar);
aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size);
aclnnStatus aclDestroyIntArray(const aclIntArray *array);
aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size);
aclnnStatus aclDestroyFloatArray(const aclFloatArray *array);
aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size);
aclnnStatus aclDestroyBoolArray(const aclBoolArray *array);
/* The list owns its members from here on. */
aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size);
aclnnStatus aclDestroyTensorList(const aclTensorList *array);
aclnnStatus aclGetTensorListSize(const aclTensorList *tensorList, uint64_t *size);
aclnnStatus aclGetIntArraySize(const aclIntArray *array, uint64_t *size);
aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t *viewDimsNum);
aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType);
/* An executor may be used again if this is called right after its first phase; the client then
 * destroys it. */
aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);

#ifdef __cplusplus
}
#endif
#endif
