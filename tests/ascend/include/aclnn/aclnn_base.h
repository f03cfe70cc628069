/*
 * aclnn_base.h - tensors, scalars, arrays and lists that describe the arguments of the operators.
 *
 * Strides and offset count elements. A description keeps a device's address and owns nothing there;
 * a list owns its tensors.
 */
#ifndef STAND_ACLNN_BASE_H
#define STAND_ACLNN_BASE_H

#include "acl/acl.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t aclnnStatus;
typedef struct aclTensor aclTensor;
typedef struct aclScalar aclScalar;
typedef struct aclIntArray aclIntArray;
typedef struct aclFloatArray aclFloatArray;
typedef struct aclBoolArray aclBoolArray;
typedef struct aclTensorList aclTensorList;
typedef struct aclOpExecutor aclOpExecutor;

enum {
    ACLNN_SUCCESS = 0,
    ACLNN_ERR_PARAM_NULLPTR = 161001,
    ACLNN_ERR_PARAM_INVALID = 161002,
    ACLNN_ERR_RUNTIME_ERROR = 361001,
    ACLNN_ERR_INNER = 561000,
    ACLNN_ERR_INNER_TILING_ERROR = 561002,
    ACLNN_ERR_INNER_FIND_KERNEL_ERROR = 561003,
    ACLNN_ERR_INNER_OPP_PATH_NOT_FOUND = 561107
};

aclTensor *aclCreateTensor(const int64_t *dims, uint64_t n, aclDataType dtype,
                           const int64_t *strides, int64_t offset, aclFormat format,
                           const int64_t *storageDims, uint64_t storageN, void *data);
aclnnStatus aclDestroyTensor(const aclTensor *t);
aclScalar *aclCreateScalar(void *value, aclDataType dtype);
aclnnStatus aclDestroyScalar(const aclScalar *s);
aclIntArray *aclCreateIntArray(const int64_t *values, uint64_t n);
aclnnStatus aclDestroyIntArray(const aclIntArray *a);
aclFloatArray *aclCreateFloatArray(const float *values, uint64_t n);
aclnnStatus aclDestroyFloatArray(const aclFloatArray *a);
aclBoolArray *aclCreateBoolArray(const bool *values, uint64_t n);
aclnnStatus aclDestroyBoolArray(const aclBoolArray *a);
aclTensorList *aclCreateTensorList(const aclTensor *const *tensors, uint64_t n);
aclnnStatus aclDestroyTensorList(const aclTensorList *l); /* destroys its tensors too */
aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor);
aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor);

#ifdef __cplusplus
}
#endif
#endif
