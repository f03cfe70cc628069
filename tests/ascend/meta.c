/*
 * meta.c - aclCreate* and aclDestroy*: tensors, scalars, arrays and lists are copies of what the
 * client said, in the registry of objects.
 */
#include "meta.h"

#include "aclnn/aclnn_base.h"

#include <stdlib.h>
#include <string.h>

static int bad(const char *symbol, const char *why)
{
    return stand_break(RULE_OPERAND_SHAPE, ACLNN_ERR_PARAM_INVALID, "%s: %s", symbol, why);
}

static void copy_shape(struct stand_view *view, const int64_t *dims, const int64_t *strides,
                       const int64_t *storage)
{
    int64_t dense = 1;
    for (int i = view->rank - 1; i >= 0; i--) {
        view->dims[i] = dims[i];
        view->strides[i] = strides ? strides[i] : dense;
        dense *= dims[i];
    }
    for (int i = 0; i < view->storage_rank; i++)
        view->storage[i] = storage[i];
}

static const char *fault_of(const int64_t *dims, uint64_t rank, const int64_t *strides,
                            int64_t offset, const int64_t *storage, uint64_t storage_rank,
                            aclDataType type)
{
    if (rank > STAND_RANK || storage_rank > STAND_RANK)
        return "more than 8 dimensions";
    if ((rank && !dims) || (storage_rank && !storage))
        return "its dimensions are NULL";
    if (!type_bits(type))
        return "a type that no tensor has";
    if (offset < 0)
        return "a negative offset";
    for (uint64_t i = 0; i < rank; i++)
        if (dims[i] < 0 || dims[i] > INT64_C(1) << 40 || (strides && strides[i] < 0))
            return "a negative dimension or stride";
    for (uint64_t i = 0; i < storage_rank; i++)
        if (storage[i] < 0)
            return "a negative dimension of its storage";
    return NULL;
}

aclTensor *aclCreateTensor(const int64_t *viewDims, uint64_t viewDimsNum, aclDataType dataType,
                           const int64_t *stride, int64_t offset, aclFormat format,
                           const int64_t *storageDims, uint64_t storageDimsNum, void *tensorData)
{
    aclTensor *tensor = NULL;
    int code = stand_enter("aclCreateTensor", NEEDS_INIT);
    const char *fault =
        fault_of(viewDims, viewDimsNum, stride, offset, storageDims, storageDimsNum, dataType);
    if (!code && fault)
        code = bad("aclCreateTensor", fault);
    if (!code) {
        tensor = stand_object_new(KIND_TENSOR, sizeof *tensor);
        tensor->view = (struct stand_view){.given = true,
                                           .type = dataType,
                                           .format = format,
                                           .rank = (int)viewDimsNum,
                                           .storage_rank = (int)storageDimsNum,
                                           .offset = offset,
                                           .address = tensorData};
        copy_shape(&tensor->view, viewDims, stride, storageDims);
    }
    stand_leave(code);
    return tensor;
}

aclnnStatus aclDestroyTensor(const aclTensor *tensor)
{
    int code = stand_enter("aclDestroyTensor", 0);
    return stand_leave(code ? code : stand_object_end(tensor, KIND_TENSOR, "aclDestroyTensor"));
}

aclScalar *aclCreateScalar(void *value, aclDataType dataType)
{
    aclScalar *scalar = NULL;
    int code = stand_enter("aclCreateScalar", NEEDS_INIT);
    if (!code && (!value || type_bits(dataType) < 8))
        code = bad("aclCreateScalar", "no value, or a type that no scalar has");
    if (!code) {
        scalar = stand_object_new(KIND_SCALAR, sizeof *scalar);
        *scalar = (struct aclScalar){dataType, load_double(value, dataType, 0),
                                     load_int(value, dataType, 0)};
    }
    stand_leave(code);
    return scalar;
}

aclnnStatus aclDestroyScalar(const aclScalar *scalar)
{
    int code = stand_enter("aclDestroyScalar", 0);
    return stand_leave(code ? code : stand_object_end(scalar, KIND_SCALAR, "aclDestroyScalar"));
}

/* An object of `head` bytes followed by a copy of the values; *values points to the copy. */
static void *new_array(enum stand_kind kind, size_t head, const void *from, uint64_t n, size_t each,
                       void **values, const char *symbol)
{
    void *array = NULL;
    int code = stand_enter(symbol, NEEDS_INIT);
    if (!code && n && !from)
        code = bad(symbol, "its values are NULL");
    if (!code) {
        array = stand_object_new(kind, head + n * each);
        *values = (uint8_t *)array + head;
        if (n && from)
            memcpy(*values, from, n * each);
    }
    stand_leave(code);
    return array;
}

aclIntArray *aclCreateIntArray(const int64_t *value, uint64_t size)
{
    void *values;
    aclIntArray *array = new_array(KIND_INT_ARRAY, sizeof *array, value, size, sizeof *value,
                                   &values, "aclCreateIntArray");
    if (array)
        *array = (struct aclIntArray){size, values};
    return array;
}

aclnnStatus aclDestroyIntArray(const aclIntArray *array)
{
    int code = stand_enter("aclDestroyIntArray", 0);
    return stand_leave(code ? code : stand_object_end(array, KIND_INT_ARRAY, "aclDestroyIntArray"));
}

aclFloatArray *aclCreateFloatArray(const float *value, uint64_t size)
{
    void *values;
    aclFloatArray *array = new_array(KIND_FLOAT_ARRAY, sizeof *array, value, size, sizeof *value,
                                     &values, "aclCreateFloatArray");
    if (array)
        *array = (struct aclFloatArray){size, values};
    return array;
}

aclnnStatus aclDestroyFloatArray(const aclFloatArray *array)
{
    int code = stand_enter("aclDestroyFloatArray", 0);
    return stand_leave(code ? code
                            : stand_object_end(array, KIND_FLOAT_ARRAY, "aclDestroyFloatArray"));
}

aclBoolArray *aclCreateBoolArray(const bool *value, uint64_t size)
{
    void *values;
    aclBoolArray *array = new_array(KIND_BOOL_ARRAY, sizeof *array, value, size, sizeof *value,
                                    &values, "aclCreateBoolArray");
    if (array)
        *array = (struct aclBoolArray){size, values};
    return array;
}

aclnnStatus aclDestroyBoolArray(const aclBoolArray *array)
{
    int code = stand_enter("aclDestroyBoolArray", 0);
    return stand_leave(code ? code
                            : stand_object_end(array, KIND_BOOL_ARRAY, "aclDestroyBoolArray"));
}

aclTensorList *aclCreateTensorList(const aclTensor *const *value, uint64_t size)
{
    void *values;
    aclTensorList *list = new_array(KIND_TENSOR_LIST, sizeof *list, value, size, sizeof(void *),
                                    &values, "aclCreateTensorList");
    if (list)
        *list = (struct aclTensorList){size, values};
    return list;
}

/* With its members. */
aclnnStatus aclDestroyTensorList(const aclTensorList *list)
{
    int code = stand_enter("aclDestroyTensorList", 0);
    code = code ? code : stand_object_end(list, KIND_TENSOR_LIST, "aclDestroyTensorList");
    for (uint64_t i = 0; !code && i < list->n; i++)
        if (list->members[i])
            code = stand_object_end(list->members[i], KIND_TENSOR, "aclDestroyTensorList");
    return stand_leave(code);
}

/* The object is live and the result is there. */
static int ask(const void *object, enum stand_kind kind, const void *result, const char *symbol)
{
    int code = stand_enter(symbol, 0);
    code = code ? code : stand_object_check(object, kind, symbol);
    if (!code && !result)
        code = stand_break(RULE_OPERAND_NULL, ACLNN_ERR_PARAM_NULLPTR, "%s: the result is NULL",
                           symbol);
    return code;
}

aclnnStatus aclGetTensorListSize(const aclTensorList *tensorList, uint64_t *size)
{
    int code = ask(tensorList, KIND_TENSOR_LIST, size, "aclGetTensorListSize");
    if (!code)
        *size = tensorList->n;
    return stand_leave(code);
}

aclnnStatus aclGetIntArraySize(const aclIntArray *array, uint64_t *size)
{
    int code = ask(array, KIND_INT_ARRAY, size, "aclGetIntArraySize");
    if (!code)
        *size = array->n;
    return stand_leave(code);
}

/* The client frees *viewDims with delete[] in C++; nobody here does, and the stand-in's own is
 * plain memory. */
aclnnStatus aclGetViewShape(const aclTensor *tensor, int64_t **viewDims, uint64_t *viewDimsNum)
{
    int code = ask(tensor, KIND_TENSOR, viewDims ? (void *)viewDimsNum : NULL, "aclGetViewShape");
    if (!code && viewDims) {
        *viewDims = malloc(sizeof tensor->view.dims);
        if (!*viewDims)
            abort();
        memcpy(*viewDims, tensor->view.dims, sizeof tensor->view.dims);
        *viewDimsNum = (uint64_t)tensor->view.rank;
    }
    return stand_leave(code);
}

aclnnStatus aclGetDataType(const aclTensor *tensor, aclDataType *dataType)
{
    int code = ask(tensor, KIND_TENSOR, dataType, "aclGetDataType");
    if (!code)
        *dataType = tensor->view.type;
    return stand_leave(code);
}

aclnnStatus aclSetAclOpExecutorRepeatable(aclOpExecutor *executor)
{
    const char *symbol = "aclSetAclOpExecutorRepeatable";
    int code = stand_enter(symbol, 0);
    code = code ? code : stand_object_check(executor, KIND_EXECUTOR, symbol);
    if (!code)
        executor->repeatable = true;
    return stand_leave(code);
}

aclnnStatus aclDestroyAclOpExecutor(aclOpExecutor *executor)
{
    const char *symbol = "aclDestroyAclOpExecutor";
    int code = stand_enter(symbol, 0);
    code = code ? code : stand_object_end(executor, KIND_EXECUTOR, symbol);
    if (!code)
        stand_work_free(executor->work);
    return stand_leave(code);
}

aclnnStatus aclnnInit(const char *configPath)
{
    (void)configPath;
    return ACLNN_SUCCESS;
}

aclnnStatus aclnnFinalize(void)
{
    return ACLNN_SUCCESS;
}
