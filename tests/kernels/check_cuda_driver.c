/*
 * check_cuda_driver.c - compiled where a CUDA toolkit is, never run: every number, type and
 * function of cuda_driver.h is the same in NVIDIA's cuda.h.
 */
#include <cuda.h>

#include <stddef.h>

/* Names that both headers have; ours are compared with theirs below. */
#define CU_STREAM_NON_BLOCKING  OURS_STREAM_NON_BLOCKING
#define CU_EVENT_DISABLE_TIMING OURS_EVENT_DISABLE_TIMING
#include "kernels/cuda/cuda_driver.h"
#undef CU_STREAM_NON_BLOCKING
#undef CU_EVENT_DISABLE_TIMING

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is " #theirs)
SAME(CU_OK, CUDA_SUCCESS);
SAME(CU_ERROR_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CU_ERROR_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CU_ERROR_NO_BINARY_FOR_GPU, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(CU_ERROR_PTX_TOO_NEW, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME(CU_ERROR_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(CU_ERROR_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CU_ERROR_PEER_ACCESS_ALREADY_ENABLED, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME(CU_ATTRIBUTE_SHARED_PER_BLOCK_OPTIN, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME(CU_ATTRIBUTE_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_ATTRIBUTE_L2_BYTES, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME(CU_ATTRIBUTE_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_ATTRIBUTE_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CU_ATTRIBUTE_STREAM_WRITES_64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
SAME(OURS_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CU_EVENT_TIMED, CU_EVENT_DEFAULT);
SAME(OURS_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CU_HOST_PORTABLE, CU_MEMHOSTALLOC_PORTABLE);
SAME(CU_HOST_DEVICEMAP, CU_MEMHOSTALLOC_DEVICEMAP);
SAME(CU_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CU_FUNCTION_PTX_VERSION, CU_FUNC_ATTRIBUTE_PTX_VERSION);
SAME(CU_FUNCTION_MAX_DYNAMIC_SHARED, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME(CU_CAPTURE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(CU_LAUNCH_OVERLAPS, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);

_Static_assert(sizeof(cu_result) == sizeof(CUresult), "results are as wide");
_Static_assert(sizeof(cu_address) == sizeof(CUdeviceptr), "addresses are as wide");
_Static_assert(sizeof(int) == sizeof(CUdevice_attribute), "attributes of devices are as wide");
_Static_assert(sizeof(int) == sizeof(CUfunction_attribute), "attributes of functions are as wide");
_Static_assert(sizeof(int) == sizeof(CUstreamCaptureMode), "modes are as wide");

#define SAME_PLACE(type, member, theirs, their_member)                                             \
    SAME(offsetof(struct type, member), offsetof(theirs, their_member))
SAME(sizeof(struct cu_launch), sizeof(CUlaunchConfig));
SAME_PLACE(cu_launch, grid_x, CUlaunchConfig, gridDimX);
SAME_PLACE(cu_launch, grid_y, CUlaunchConfig, gridDimY);
SAME_PLACE(cu_launch, grid_z, CUlaunchConfig, gridDimZ);
SAME_PLACE(cu_launch, block_x, CUlaunchConfig, blockDimX);
SAME_PLACE(cu_launch, block_y, CUlaunchConfig, blockDimY);
SAME_PLACE(cu_launch, block_z, CUlaunchConfig, blockDimZ);
SAME_PLACE(cu_launch, shared_bytes, CUlaunchConfig, sharedMemBytes);
SAME_PLACE(cu_launch, stream, CUlaunchConfig, hStream);
SAME_PLACE(cu_launch, attributes, CUlaunchConfig, attrs);
SAME_PLACE(cu_launch, n_attributes, CUlaunchConfig, numAttrs);
SAME(sizeof(struct cu_launch_attribute), sizeof(CUlaunchAttribute));
SAME_PLACE(cu_launch_attribute, id, CUlaunchAttribute, id);
SAME_PLACE(cu_launch_attribute, value.overlaps, CUlaunchAttribute,
           value.programmaticStreamSerializationAllowed);

/* Our table once more, with NVIDIA's types of the same width in the place of ours. */
#define cu_result  CUresult
#define cu_address CUdeviceptr
#define cu_device  CUdevice
#define FUNCTION(member, symbol, arguments)                                                        \
    typedef cu_result check_##member arguments;                                                    \
    enum { NAME_BYTES_##member = sizeof(symbol) };
CUDA_DRIVER_FUNCTIONS(FUNCTION)
#undef FUNCTION

/* What cuda.h declares under our name, or under the versioned one that it makes of it. */
#define FUNCTIONS(F)                                                                               \
    F(init, cuInit)                                                                                \
    F(driver_version, cuDriverGetVersion)                                                          \
    F(device_count, cuDeviceGetCount)                                                              \
    F(device_get, cuDeviceGet)                                                                     \
    F(device_name, cuDeviceGetName)                                                                \
    F(device_memory, cuDeviceTotalMem)                                                             \
    F(context_retain, cuDevicePrimaryCtxRetain)                                                    \
    F(context_release, cuDevicePrimaryCtxRelease)                                                  \
    F(context_set, cuCtxSetCurrent)                                                                \
    F(memory_info, cuMemGetInfo)                                                                   \
    F(memory_alloc, cuMemAlloc)                                                                    \
    F(memory_free, cuMemFree)                                                                      \
    F(host_alloc, cuMemHostAlloc)                                                                  \
    F(host_free, cuMemFreeHost)                                                                    \
    F(host_address, cuMemHostGetDevicePointer)                                                     \
    F(host_register, cuMemHostRegister)                                                            \
    F(host_unregister, cuMemHostUnregister)                                                        \
    F(upload, cuMemcpyHtoDAsync)                                                                   \
    F(download, cuMemcpyDtoHAsync)                                                                 \
    F(copy, cuMemcpyDtoDAsync)                                                                     \
    F(peer_can, cuDeviceCanAccessPeer)                                                             \
    F(peer_enable, cuCtxEnablePeerAccess)                                                          \
    F(peer_copy, cuMemcpyPeerAsync)                                                                \
    F(fill, cuMemsetD8Async)                                                                       \
    F(stream_create, cuStreamCreate)                                                               \
    F(stream_destroy, cuStreamDestroy)                                                             \
    F(stream_synchronize, cuStreamSynchronize)                                                     \
    F(stream_query, cuStreamQuery)                                                                 \
    F(stream_write, cuStreamWriteValue64)                                                          \
    F(stream_wait, cuStreamWaitEvent)                                                              \
    F(event_create, cuEventCreate)                                                                 \
    F(event_destroy, cuEventDestroy)                                                               \
    F(event_record, cuEventRecord)                                                                 \
    F(event_query, cuEventQuery)                                                                   \
    F(module_load, cuModuleLoadData)                                                               \
    F(module_unload, cuModuleUnload)                                                               \
    F(module_function, cuModuleGetFunction)                                                        \
    F(launch, cuLaunchKernel)                                                                      \
    F(host_call, cuLaunchHostFunc)                                                                 \
    F(capture_end, cuStreamEndCapture)                                                             \
    F(graph_instantiate, cuGraphInstantiateWithFlags)                                              \
    F(graph_launch, cuGraphLaunch)                                                                 \
    F(graph_exec_destroy, cuGraphExecDestroy)                                                      \
    F(graph_destroy, cuGraphDestroy)                                                               \
    F(error_name, cuGetErrorName)                                                                  \
    F(error_text, cuGetErrorString)

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define CHECK(member, function, type)                                                              \
    _Static_assert(__builtin_types_compatible_p(type, __typeof__(function)),                       \
                   #function " takes and gives what we say");                                      \
    _Static_assert((int)NAME_BYTES_##member == (int)sizeof TEXT(function),                         \
                   #function " has the version that we open");
#define CHECK_SAME(member, function) CHECK(member, function, check_##member)
FUNCTIONS(CHECK_SAME)

/* Those of which a number is an enumeration there. */
typedef CUresult get_attribute(int *value, CUdevice_attribute attribute, CUdevice device);
typedef CUresult set_attribute(CUfunction function, CUfunction_attribute attribute, int value);
typedef CUresult get_function(int *value, CUfunction_attribute attribute, CUfunction function);
typedef CUresult begin_capture(CUstream stream, CUstreamCaptureMode mode);
CHECK(device_attribute, cuDeviceGetAttribute, get_attribute)
CHECK(function_set, cuFuncSetAttribute, set_attribute)
CHECK(function_get, cuFuncGetAttribute, get_function)
CHECK(capture_begin, cuStreamBeginCapture, begin_capture)
/* And one whose structure is compared above. */
typedef CUresult launch_as(const CUlaunchConfig *how, CUfunction function, void **arguments,
                           void **extra);
CHECK(launch_as, cuLaunchKernelEx, launch_as)
enum { ENUMERATED = 5 };

/* Of which newer headers name a version that drivers of CUDA 12.0 lack; all drivers have the first.
 */
_Static_assert(__builtin_types_compatible_p(check_event_elapsed, __typeof__(cuEventElapsedTime)),
               "cuEventElapsedTime takes and gives what we say");
enum { OLDER = 1 };

/* No function of ours is missing above. */
enum {
#define COUNT_OURS(member, symbol, arguments) OURS_##member,
    CUDA_DRIVER_FUNCTIONS(COUNT_OURS) OURS
};
enum {
#define COUNT_CHECKED(member, function) CHECKED_##member,
    FUNCTIONS(COUNT_CHECKED) CHECKED
};
_Static_assert((int)OURS == (int)CHECKED + ENUMERATED + OLDER, "every function is compared");
