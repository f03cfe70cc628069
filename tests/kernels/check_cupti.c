/*
 * check_cupti.c - compiled where a CUDA toolkit is, never run: every number, function and member of
 * cupti_records.h is where NVIDIA's cupti.h has it.
 */
#include <cupti.h>

#define CUPTI_ALIGNMENT OURS_ALIGNMENT
#include "kernels/cuda/cupti_records.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is " #theirs)
SAME(CUPTI_OK, CUPTI_SUCCESS);
SAME(CUPTI_NO_MORE_RECORDS, CUPTI_ERROR_MAX_LIMIT_REACHED);
SAME(CUPTI_FLUSH_FORCED, CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
SAME(OURS_ALIGNMENT, ACTIVITY_RECORD_ALIGNMENT);
SAME(CUPTI_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMCPY);
SAME(CUPTI_KIND_MEMSET, CUPTI_ACTIVITY_KIND_MEMSET);
SAME(CUPTI_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);

/* Of every version of a record that CUDA 12 and 13 write and this toolkit knows. */
#define MEMBER(ours, our_member, theirs, member)                                                   \
    _Static_assert(offsetof(struct ours, our_member) == offsetof(theirs, member) &&                \
                       sizeof(((struct ours *)0)->our_member) == sizeof(((theirs *)0)->member),    \
                   #member " of " #theirs);
#define KERNEL_RECORD(theirs)                                                                      \
    MEMBER(cupti_kernel, kind, theirs, kind)                                                       \
    MEMBER(cupti_kernel, begin_ns, theirs, start)                                                  \
    MEMBER(cupti_kernel, end_ns, theirs, end)                                                      \
    MEMBER(cupti_kernel, completed_ns, theirs, completed)                                          \
    MEMBER(cupti_kernel, device, theirs, deviceId)                                                 \
    MEMBER(cupti_kernel, stream, theirs, streamId)                                                 \
    MEMBER(cupti_kernel, correlation, theirs, correlationId)                                       \
    MEMBER(cupti_kernel, grid_id, theirs, gridId)                                                  \
    MEMBER(cupti_kernel, name, theirs, name)
#define TRANSFER_RECORD(theirs)                                                                    \
    MEMBER(cupti_transfer, kind, theirs, kind)                                                     \
    MEMBER(cupti_transfer, bytes, theirs, bytes)                                                   \
    MEMBER(cupti_transfer, begin_ns, theirs, start)                                                \
    MEMBER(cupti_transfer, end_ns, theirs, end)                                                    \
    MEMBER(cupti_transfer, device, theirs, deviceId)                                               \
    MEMBER(cupti_transfer, correlation, theirs, correlationId)
KERNEL_RECORD(CUpti_ActivityKernel8)
TRANSFER_RECORD(CUpti_ActivityMemcpy5)
TRANSFER_RECORD(CUpti_ActivityMemset4)
#if CUPTI_API_VERSION >= 130000
KERNEL_RECORD(CUpti_ActivityKernel9)
KERNEL_RECORD(CUpti_ActivityKernel10)
TRANSFER_RECORD(CUpti_ActivityMemcpy6)
#endif

/* Functions take what we give: arguments as wide, in the same order. */
#define FUNCTION(member, symbol, arguments)                                                        \
    typedef int check_##member arguments;                                                          \
    enum { NAME_BYTES_##member = sizeof(symbol) };
CUPTI_FUNCTIONS(FUNCTION)
#define CHECK(member, function, type)                                                              \
    _Static_assert(__builtin_types_compatible_p(type, __typeof__(function)),                       \
                   #function " takes and gives what we say");                                      \
    _Static_assert((int)NAME_BYTES_##member == (int)sizeof #function, #function);
typedef CUptiResult of_callbacks(CUpti_BuffersCallbackRequestFunc request,
                                 CUpti_BuffersCallbackCompleteFunc complete);
typedef CUptiResult of_kind(CUpti_ActivityKind kind);
typedef CUptiResult of_flag(uint32_t flag);
typedef CUptiResult of_record(uint8_t *buffer, size_t valid, CUpti_Activity **record);
typedef CUptiResult of_dropped(CUcontext context, uint32_t stream, size_t *records);
typedef CUptiResult of_text(CUptiResult result, const char **text);
CHECK(register_callbacks, cuptiActivityRegisterCallbacks, of_callbacks)
CHECK(enable, cuptiActivityEnable, of_kind)
CHECK(disable, cuptiActivityDisable, of_kind)
CHECK(flush_all, cuptiActivityFlushAll, of_flag)
CHECK(next_record, cuptiActivityGetNextRecord, of_record)
CHECK(dropped, cuptiActivityGetNumDroppedRecords, of_dropped)
CHECK(result_text, cuptiGetResultString, of_text)
_Static_assert(sizeof(CUptiResult) == sizeof(int) && sizeof(CUpti_ActivityKind) == sizeof(uint32_t),
               "enumerations are as wide as our numbers");
typedef void theirs_request(uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void theirs_complete(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
                             size_t valid);
_Static_assert(__builtin_types_compatible_p(theirs_request *, CUpti_BuffersCallbackRequestFunc) &&
                   __builtin_types_compatible_p(theirs_request, cupti_request_fn),
               "buffers are asked for as we expect");
_Static_assert(__builtin_types_compatible_p(theirs_complete *, CUpti_BuffersCallbackCompleteFunc),
               "buffers come back as we expect");
