/*
 * acl_base.h - types, codes and numbers of AscendCL, declared for the stand-in from the public
 * documentation of CANN 8. Only what the stand-in implements is declared.
 */
#ifndef STAND_ACL_BASE_H
#define STAND_ACL_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ACL_FUNC_VISIBILITY

typedef int aclError;
typedef uint16_t aclFloat16;
typedef void *aclrtStream;
typedef void *aclrtEvent;
typedef void *aclrtContext;

#define ACL_SUCCESS                              0
#define ACL_ERROR_NONE                           0
#define ACL_ERROR_INVALID_PARAM                  100000
#define ACL_ERROR_UNINITIALIZE                   100001
#define ACL_ERROR_REPEAT_INITIALIZE              100002
#define ACL_ERROR_REPEAT_FINALIZE                100037
#define ACL_ERROR_RT_PARAM_INVALID               107000
#define ACL_ERROR_RT_INVALID_DEVICEID            107001
#define ACL_ERROR_RT_CONTEXT_NULL                107002
#define ACL_ERROR_RT_STREAM_CONTEXT              107003
#define ACL_ERROR_RT_EVENT_TIMESTAMP_INVALID     107006
#define ACL_ERROR_RT_INVALID_HANDLE              107017
#define ACL_ERROR_RT_MODEL_CAPTURED              107026
#define ACL_ERROR_RT_STREAM_CAPTURED             107027
#define ACL_ERROR_RT_STREAM_NOT_CAPTURED         107029
#define ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT    107030
#define ACL_ERROR_RT_STREAM_CAPTURE_WRONG_THREAD 107038
#define ACL_ERROR_RT_FEATURE_NOT_SUPPORT         207000
#define ACL_ERROR_RT_MEMORY_ALLOCATION           207001
#define ACL_ERROR_RT_NO_DEVICE                   207004
#define ACL_ERROR_RT_NO_EVENT_RESOURCE           207007
#define ACL_ERROR_RT_EVENT_NOT_COMPLETE          507006
#define ACL_ERROR_RT_AICORE_TIMEOUT              507014
#define ACL_ERROR_RT_AICORE_EXCEPTION            507015
#define ACL_ERROR_RT_STREAM_SYNC_TIMEOUT         507046
#define ACL_ERROR_RT_EVENT_SYNC_TIMEOUT          507047
#define ACL_ERROR_RT_STREAM_CAPTURE_INVALIDATED  507903

typedef enum {
    ACL_DT_UNDEFINED = -1,
    ACL_FLOAT = 0,
    ACL_FLOAT16 = 1,
    ACL_INT8 = 2,
    ACL_INT32 = 3,
    ACL_UINT8 = 4,
    ACL_INT16 = 6,
    ACL_UINT16 = 7,
    ACL_UINT32 = 8,
    ACL_INT64 = 9,
    ACL_UINT64 = 10,
    ACL_DOUBLE = 11,
    ACL_BOOL = 12,
    ACL_STRING = 13,
    ACL_COMPLEX64 = 16,
    ACL_COMPLEX128 = 17,
    ACL_BF16 = 27,
    ACL_INT4 = 29,
    ACL_UINT1 = 30,
    ACL_COMPLEX32 = 33,
} aclDataType;

typedef enum {
    ACL_FORMAT_UNDEFINED = -1,
    ACL_FORMAT_NCHW = 0,
    ACL_FORMAT_NHWC = 1,
    ACL_FORMAT_ND = 2,
    ACL_FORMAT_NC1HWC0 = 3,
    ACL_FORMAT_FRACTAL_Z = 4,
    ACL_FORMAT_HWCN = 16,
    ACL_FORMAT_NDHWC = 27,
    ACL_FORMAT_FRACTAL_NZ = 29,
    ACL_FORMAT_NCDHW = 30,
    ACL_FORMAT_NC = 35,
    ACL_FORMAT_NCL = 47,
} aclFormat;

/* Borrowed; never NULL on the stand-in. */
const char *aclrtGetSocName(void);
/* The bytes of one element; 0 for INT4 and what is unknown. */
size_t aclDataTypeSize(aclDataType type);
/* Rounded to the nearest, ties to even; beyond the range of F16: its largest finite value. */
aclFloat16 aclFloatToFloat16(float value);
float aclFloat16ToFloat(aclFloat16 value);

#ifdef __cplusplus
}
#endif
#endif
