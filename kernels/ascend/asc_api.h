/*
 * asc_api.h - CANN's C interface by declarations of our own: nothing of it is needed to build, and
 * its libraries are opened when a device is. Runtime functions are required; an operator (aclnn)
 * that is missing makes `supports` say no.
 *
 * An operator is two calls: the first checks its arguments, says how many bytes of workspace it
 * needs and makes an executor, which runs once; the second queues it on a stream. The workspace is
 * used until the stream has passed it.
 */
#ifndef OATO_ASC_API_H
#define OATO_ASC_API_H

#include "base/base.h"

typedef struct asc_tensor asc_tensor; /* aclTensor */
typedef struct asc_scalar asc_scalar;
typedef struct asc_ints asc_ints;       /* aclIntArray */
typedef struct asc_tensors asc_tensors; /* aclTensorList */
typedef struct asc_executor asc_executor;
typedef void *asc_stream;
typedef void *asc_event;
typedef void *asc_graph; /* aclmdlRI */

enum asc_type { /* aclDataType */
                ASC_F32 = 0,
                ASC_F16 = 1,
                ASC_I8 = 2,
                ASC_I32 = 3,
                ASC_U8 = 4,
                ASC_I64 = 9,
                ASC_BOOL = 12,
                ASC_BF16 = 27,
                ASC_I4 = 29
};
enum { ASC_FORMAT_ND = 2 };
enum { ASC_TO_DEVICE = 1, ASC_TO_HOST = 2, ASC_INSIDE = 3 }; /* aclrtMemcpyKind */
enum { ASC_HUGE_FIRST = 0 };
enum { ASC_DDR = 0, ASC_HBM = 1 };
/* Of events. None is for streams that wait (1), of which some chips have few. */
enum { ASC_EVENT_PROGRESS = 2, ASC_EVENT_TIMED = 8 };
enum { ASC_EVENT_COMPLETE = 1 }; /* of aclrtQueryEventStatus; 0: not yet */
enum { ASC_CAPTURE_THREAD = 1, ASC_CAPTURE_RELAXED = 2 };
enum asc_error {
    ASC_E_REPEATED = 100002, /* aclInit was called before: fine */
    ASC_E_MEMORY = 207001,
    ASC_E_TIMEOUT = 507014,     /* of a task */
    ASC_E_SYNC_TIMEOUT = 507046 /* of a wait */
};

/* Runtime, libascendcl.so or libacl_rt.so. X(result, member and symbol without "acl", arguments) */
/* clang-format off */
#define ASC_RUNTIME(X)                                                                             \
    X(int, Init, (const char *config))                                                             \
    X(const char *, GetRecentErrMsg, (void))                                                       \
    X(const char *, rtGetSocName, (void))                                                          \
    X(int, rtGetDeviceCount, (uint32_t *n))                                                        \
    X(int, rtSetDevice, (int32_t device))                                                          \
    X(int, rtResetDevice, (int32_t device))                                                        \
    X(int, rtGetMemInfo, (int kind, size_t *free_bytes, size_t *total))                            \
    X(int, rtMalloc, (void **out, size_t bytes, int policy))                                       \
    X(int, rtFree, (void *p))                                                                      \
    X(int, rtMallocHost, (void **out, size_t bytes))                                               \
    X(int, rtFreeHost, (void *p))                                                                  \
    X(int, rtMemcpy, (void *to, size_t room, const void *from, size_t bytes, int kind))            \
    X(int, rtMemcpyAsync, (void *to, size_t room, const void *from, size_t bytes, int kind, asc_stream stream)) \
    X(int, rtMemset, (void *to, size_t room, int32_t value, size_t bytes))                         \
    X(int, rtCreateStream, (asc_stream *out))                                                      \
    X(int, rtDestroyStream, (asc_stream stream))                                                   \
    X(int, rtSynchronizeStream, (asc_stream stream))                                               \
    X(int, rtCreateEventWithFlag, (asc_event *out, uint32_t flags))                                \
    X(int, rtDestroyEvent, (asc_event event))                                                      \
    X(int, rtRecordEvent, (asc_event event, asc_stream stream))                                    \
    X(int, rtQueryEventStatus, (asc_event event, int *status))                                     \
    X(int, rtEventElapsedTime, (float *ms, asc_event begin, asc_event end))

/* What newer releases add; NULL where it is missing. */
#define ASC_RUNTIME_NEWER(X)                                                                       \
    X(int, rtSynchronizeStreamWithTimeout, (asc_stream stream, int32_t ms))                        \
    X(int, rtReserveMemAddress, (void **out, size_t bytes, size_t align, void *wanted, uint64_t flags)) \
    X(int, rtReleaseMemAddress, (void *p))                                                         \
    X(int, rtMallocPhysical, (void **handle, size_t bytes, const void *property, uint64_t flags))  \
    X(int, rtFreePhysical, (void *handle))                                                         \
    X(int, rtMapMem, (void *p, size_t bytes, size_t offset, void *handle, uint64_t flags))         \
    X(int, rtUnmapMem, (void *p))                                                                  \
    X(int, rtMemGetAllocationGranularity, (const void *property, int option, size_t *out))         \
    X(int, mdlRICaptureBegin, (asc_stream stream, int mode))                                       \
    X(int, mdlRICaptureEnd, (asc_stream stream, asc_graph *out))                                   \
    X(int, mdlRIExecuteAsync, (asc_graph graph, asc_stream stream))                                \
    X(int, mdlRIDestroy, (asc_graph graph))                                                        \
    X(int, DestroyAclOpExecutor, (asc_executor *executor))                                         \
    X(int, rtGetVersion, (int32_t *major, int32_t *minor, int32_t *patch))

/* Tensors, libnnopbase.so. Dimensions, strides and the offset count elements. */
#define ASC_TENSORS(X)                                                                             \
    X(asc_tensor *, CreateTensor, (const int64_t *dims, uint64_t n, int type, const int64_t *strides, int64_t offset, int format, const int64_t *storage, uint64_t n_storage, void *data)) \
    X(int, DestroyTensor, (const asc_tensor *t))                                                   \
    X(asc_scalar *, CreateScalar, (void *value, int type))                                         \
    X(int, DestroyScalar, (const asc_scalar *s))                                                   \
    X(asc_ints *, CreateIntArray, (const int64_t *values, uint64_t n))                             \
    X(int, DestroyIntArray, (const asc_ints *a))                                                   \
    X(asc_tensors *, CreateTensorList, (const asc_tensor *const *t, uint64_t n))                   \
    X(int, DestroyTensorList, (const asc_tensors *l))
/* clang-format on */

#include "kernels/ascend/asc_operators.h"

/* ASC_Mm, .. */
enum asc_operator {
    ASC_NO_OPERATOR,
#define NUMBER(name, arguments) ASC_##name,
    ASC_OPERATORS(NUMBER)
#undef NUMBER
        ASC_OPERATOR_COUNT
};

enum { ASC_PATH_BYTES = 512 };

typedef int asc_run_fn(void *workspace, uint64_t bytes, asc_executor *executor, asc_stream stream);

struct asc_api {
/* NOLINTBEGIN(bugprone-macro-parentheses): declarations */
#define MEMBER(result, name, arguments) result(*name) arguments;
    ASC_RUNTIME(MEMBER)
    ASC_RUNTIME_NEWER(MEMBER)
    ASC_TENSORS(MEMBER)
#undef MEMBER
#define MEMBER(name, arguments) int(*name) arguments;
    ASC_OPERATORS(MEMBER) /* aclnnXGetWorkspaceSize; NULL: the operator is missing */
#undef MEMBER
    /* NOLINTEND(bugprone-macro-parentheses) */
    asc_run_fn *run[ASC_OPERATOR_COUNT]; /* aclnnX */
    const char *stand_in;                /* who replaces the libraries in tests; NULL: nobody */
    char path[ASC_PATH_BYTES];           /* of the first library */
};

static inline bool asc_has(const struct asc_api *api, enum asc_operator op)
{
    return api->run[op] != NULL;
}

extern const char *const asc_operator_name[ASC_OPERATOR_COUNT]; /* "aclnnMm" */

/* Whether the libraries are where they are looked for; opens nothing. path: room for
 * ASC_PATH_BYTES, or NULL. */
bool asc_libraries_found(char *path);
/* The libraries, opened and started once a process and never closed. NULL, with one line: there are
 * none, or they lack a function of the runtime. */
const struct asc_api *asc_api_open(struct oato_error *err);
/* Loads that library and its neighbours to *api, for tests; starts nothing. */
oato_status asc_api_load(const char *path, struct asc_api *api, struct oato_error *err);
/* Tells `see` all functions that are looked up, and which of them are there. api NULL: none. */
void asc_api_symbols(const struct asc_api *api,
                     void (*see)(void *user, const char *symbol, bool found), void *user);
/* Fails with "id: doing: " and CANN's message of the last failure as one line. OATO_EFIT when
 * memory is missing, else OATO_EDEVICE. */
oato_status asc_fail(const struct asc_api *api, int error, const char *id, const char *doing,
                     struct oato_error *err);

#endif
