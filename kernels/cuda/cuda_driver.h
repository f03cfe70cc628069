/*
 * cuda_driver.h - the part of NVIDIA's driver interface that this device uses, opened at run time:
 * a machine without a GPU needs none of it, neither to build nor to run. Types and numbers are
 * those of the interface's stable ABI (CUDA Driver API reference); a test compares them with cuda.h
 * where a toolkit is installed.
 *
 * OATO_CUDA_DRIVER names a library to use instead of libcuda.so.1: tests run this device on
 * libcuda-on-cpu.so (tests/cuda_on_cpu/).
 */
#ifndef OATO_CUDA_DRIVER_H
#define OATO_CUDA_DRIVER_H

#include "base/base.h"

typedef int cu_result; /* 0: success */
typedef int cu_device;
typedef uint64_t cu_address; /* of device memory */
typedef struct CUctx_st *cu_context;
typedef struct CUmod_st *cu_module;
typedef struct CUfunc_st *cu_function;
typedef struct CUstream_st *cu_stream;
typedef struct CUevent_st *cu_event;
typedef struct CUgraph_st *cu_graph;
typedef struct CUgraphExec_st *cu_graph_exec;
typedef void (*cu_host_function)(void *user);

enum {
    CU_OK = 0,
    CU_ERROR_OUT_OF_MEMORY = 2,
    CU_ERROR_NO_DEVICE = 100,
    CU_ERROR_NO_BINARY_FOR_GPU = 209,
    CU_ERROR_PTX_TOO_NEW = 222,
    CU_ERROR_NOT_FOUND = 500,
    CU_ERROR_NOT_READY = 600,
    CU_ERROR_LAUNCH_TIMEOUT = 702,
    CU_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CU_ERROR_UNKNOWN = 999,
};

enum {
    CU_ATTRIBUTE_SHARED_PER_BLOCK_OPTIN = 97,
    CU_ATTRIBUTE_MULTIPROCESSORS = 16,
    CU_ATTRIBUTE_L2_BYTES = 38,
    CU_ATTRIBUTE_MAJOR = 75,
    CU_ATTRIBUTE_MINOR = 76,
    CU_ATTRIBUTE_STREAM_WRITES_64 = 122,
};

enum {
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_TIMED = 0,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_HOST_PORTABLE = 1,
    CU_HOST_DEVICEMAP = 2,
    CU_FUNCTION_PTX_VERSION = 5, /* 90: compiled for compute_90, whatever GPU it runs on */
    CU_FUNCTION_MAX_DYNAMIC_SHARED = 8,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_LAUNCH_OVERLAPS = 6, /* may begin before the kernel before it in the stream has ended */
};

/* How a kernel is launched, with its attributes: CUlaunchConfig, CUlaunchAttribute. */
struct cu_launch_attribute {
    int id, pad;
    union {
        int overlaps; /* of CU_LAUNCH_OVERLAPS: 1 */
        uint64_t room[8];
    } value;
};

struct cu_launch {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    cu_stream stream;
    struct cu_launch_attribute *attributes;
    unsigned n_attributes;
};

/* Every function of the table: result, name of the member, name in the library, arguments. */
#define CUDA_DRIVER_FUNCTIONS(F)                                                                   \
    F(init, "cuInit", (unsigned flags))                                                            \
    F(driver_version, "cuDriverGetVersion", (int *version))                                        \
    F(device_count, "cuDeviceGetCount", (int *count))                                              \
    F(device_get, "cuDeviceGet", (cu_device * device, int ordinal))                                \
    F(device_name, "cuDeviceGetName", (char *name, int size, cu_device device))                    \
    F(device_attribute, "cuDeviceGetAttribute", (int *value, int attribute, cu_device device))     \
    F(device_memory, "cuDeviceTotalMem_v2", (size_t * bytes, cu_device device))                    \
    F(context_retain, "cuDevicePrimaryCtxRetain", (cu_context * context, cu_device device))        \
    F(context_release, "cuDevicePrimaryCtxRelease_v2", (cu_device device))                         \
    F(context_set, "cuCtxSetCurrent", (cu_context context))                                        \
    F(memory_info, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total))                       \
    F(memory_alloc, "cuMemAlloc_v2", (cu_address * address, size_t bytes))                         \
    F(memory_free, "cuMemFree_v2", (cu_address address))                                           \
    F(host_alloc, "cuMemHostAlloc", (void **p, size_t bytes, unsigned flags))                      \
    F(host_free, "cuMemFreeHost", (void *p))                                                       \
    F(host_address, "cuMemHostGetDevicePointer_v2",                                                \
      (cu_address * address, void *p, unsigned flags))                                             \
    F(host_register, "cuMemHostRegister_v2", (void *p, size_t bytes, unsigned flags))              \
    F(host_unregister, "cuMemHostUnregister", (void *p))                                           \
    F(upload, "cuMemcpyHtoDAsync_v2",                                                              \
      (cu_address to, const void *from, size_t bytes, cu_stream stream))                           \
    F(download, "cuMemcpyDtoHAsync_v2",                                                            \
      (void *to, cu_address from, size_t bytes, cu_stream stream))                                 \
    F(copy, "cuMemcpyDtoDAsync_v2",                                                                \
      (cu_address to, cu_address from, size_t bytes, cu_stream stream))                            \
    F(peer_can, "cuDeviceCanAccessPeer", (int *can, cu_device device, cu_device other))            \
    F(peer_enable, "cuCtxEnablePeerAccess", (cu_context other, unsigned flags))                    \
    F(peer_copy, "cuMemcpyPeerAsync",                                                              \
      (cu_address to, cu_context to_context, cu_address from, cu_context from_context,             \
       size_t bytes, cu_stream stream))                                                            \
    F(fill, "cuMemsetD8Async",                                                                     \
      (cu_address to, unsigned char byte, size_t bytes, cu_stream stream))                         \
    F(stream_create, "cuStreamCreate", (cu_stream * stream, unsigned flags))                       \
    F(stream_destroy, "cuStreamDestroy_v2", (cu_stream stream))                                    \
    F(stream_synchronize, "cuStreamSynchronize", (cu_stream stream))                               \
    F(stream_query, "cuStreamQuery", (cu_stream stream))                                           \
    F(stream_write, "cuStreamWriteValue64_v2",                                                     \
      (cu_stream stream, cu_address address, uint64_t value, unsigned flags))                      \
    F(stream_wait, "cuStreamWaitEvent", (cu_stream stream, cu_event event, unsigned flags))        \
    F(event_create, "cuEventCreate", (cu_event * event, unsigned flags))                           \
    F(event_destroy, "cuEventDestroy_v2", (cu_event event))                                        \
    F(event_record, "cuEventRecord", (cu_event event, cu_stream stream))                           \
    F(event_query, "cuEventQuery", (cu_event event))                                               \
    F(event_elapsed, "cuEventElapsedTime", (float *ms, cu_event begin, cu_event end))              \
    F(module_load, "cuModuleLoadData", (cu_module * module, const void *image))                    \
    F(module_unload, "cuModuleUnload", (cu_module module))                                         \
    F(module_function, "cuModuleGetFunction",                                                      \
      (cu_function * function, cu_module module, const char *name))                                \
    F(function_get, "cuFuncGetAttribute", (int *value, int attribute, cu_function function))       \
    F(function_set, "cuFuncSetAttribute", (cu_function function, int attribute, int value))        \
    F(launch, "cuLaunchKernel",                                                                    \
      (cu_function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,  \
       unsigned block_y, unsigned block_z, unsigned shared_bytes, cu_stream stream,                \
       void **arguments, void **extra))                                                            \
    F(launch_as, "cuLaunchKernelEx",                                                               \
      (const struct cu_launch *how, cu_function function, void **arguments, void **extra))         \
    F(host_call, "cuLaunchHostFunc", (cu_stream stream, cu_host_function run, void *user))         \
    F(capture_begin, "cuStreamBeginCapture_v2", (cu_stream stream, int mode))                      \
    F(capture_end, "cuStreamEndCapture", (cu_stream stream, cu_graph * graph))                     \
    F(graph_instantiate, "cuGraphInstantiateWithFlags",                                            \
      (cu_graph_exec * exec, cu_graph graph, unsigned long long flags))                            \
    F(graph_launch, "cuGraphLaunch", (cu_graph_exec exec, cu_stream stream))                       \
    F(graph_exec_destroy, "cuGraphExecDestroy", (cu_graph_exec exec))                              \
    F(graph_destroy, "cuGraphDestroy", (cu_graph graph))                                           \
    F(error_name, "cuGetErrorName", (cu_result result, const char **text))                         \
    F(error_text, "cuGetErrorString", (cu_result result, const char **text))

struct cuda_driver {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define CUDA_DRIVER_MEMBER(member, symbol, arguments) cu_result(*member) arguments;
    CUDA_DRIVER_FUNCTIONS(CUDA_DRIVER_MEMBER)
#undef CUDA_DRIVER_MEMBER
    int version; /* 13000: CUDA 13.0 */
};

/* Opens the library once per process and initialises it; NULL with a message that says what is
 * missing: no driver, a driver that is too old, no GPU. */
const struct cuda_driver *cuda_driver_open(struct oato_error *err);
/* Whether there is such a library, usable or not. */
bool cuda_driver_found(void);
/* device_ops.symbols */
void cuda_driver_symbols(void (*see)(void *user, const char *library, const char *symbol,
                                     bool found),
                         void *user);
/* A driver that does nothing: each of its functions fails at once. */
const struct cuda_driver *cuda_driver_none(void);
/* Opens a library of NVIDIA's toolkit: what the environment variable names or, in the folders of
 * the loader and of toolkits, that of the driver's CUDA version or an older one down to 12. NULL
 * with a message that calls it by its title. Never closed. */
struct cuda_library {
    const char *title, *file, *variable; /* file: "libcupti.so" */
    bool unnumbered;                     /* libcupti.so at last, of whatever version */
    int only;                            /* this number, whatever the driver's version; 0: that */
};
void *cuda_library_open(const struct cuda_library *l, int driver_version, struct oato_error *err);
/* Fails with the driver's name and text for the result: "cuda:0: uploading weights:
 * CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)". Out of memory is
 * OATO_EFIT, everything else OATO_EDEVICE. */
oato_status cuda_fail(const struct cuda_driver *cu, cu_result result, const char *id,
                      const char *doing, struct oato_error *err);

#endif
