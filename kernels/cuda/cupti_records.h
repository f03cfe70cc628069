/*
 * cupti_records.h - the part of CUPTI's activity interface that cuda_activity.c uses: numbers,
 * functions, and the leading fields of its records. It needs no toolkit; tests/kernels compares it
 * with NVIDIA's headers where a toolkit is installed, tests/cuda_on_cpu implements it.
 */
#ifndef OATO_CUPTI_RECORDS_H
#define OATO_CUPTI_RECORDS_H

#include <stddef.h>
#include <stdint.h>

enum {
    CUPTI_OK = 0,
    CUPTI_NO_MORE_RECORDS = 12, /* CUPTI_ERROR_MAX_LIMIT_REACHED */
    CUPTI_FLUSH_FORCED = 1,
    CUPTI_ALIGNMENT = 8, /* of buffers and records */
};

enum {
    CUPTI_KIND_MEMCPY = 1,
    CUPTI_KIND_MEMSET = 2,
    CUPTI_KIND_CONCURRENT_KERNEL = 10,
};

/* Record of a kernel (leading fields). Times in ns, on one clock for all records. */
struct cupti_kernel {
    uint32_t kind;
    uint8_t cache, shared;
    uint16_t registers;
    uint32_t partitioned[2];
    uint64_t begin_ns, end_ns, completed_ns;
    uint32_t device, context, stream;
    int32_t grid[3], block[3];
    int32_t static_shared_bytes, dynamic_shared_bytes;
    uint32_t local_bytes_per_thread, local_bytes;
    uint32_t correlation;
    int64_t grid_id;
    const char *name;
};

/* Record of a copy or a fill (leading fields). */
struct cupti_transfer {
    uint32_t kind;
    uint32_t what; /* copies: kinds of memory; fills: the value */
    uint64_t bytes;
    uint64_t begin_ns, end_ns;
    uint32_t device, context, stream, correlation;
};

typedef int cupti_result; /* 0: success */
typedef void cupti_request_fn(uint8_t **buffer, size_t *bytes, size_t *most_records);
typedef void cupti_complete_fn(void *context, uint32_t stream, uint8_t *buffer, size_t bytes,
                               size_t valid);

/* Every function: name of the member, name in the library, arguments. */
#define CUPTI_FUNCTIONS(F)                                                                         \
    F(register_callbacks, "cuptiActivityRegisterCallbacks",                                        \
      (cupti_request_fn * request, cupti_complete_fn * complete))                                  \
    F(enable, "cuptiActivityEnable", (uint32_t kind))                                              \
    F(disable, "cuptiActivityDisable", (uint32_t kind))                                            \
    F(flush_all, "cuptiActivityFlushAll", (uint32_t flag))                                         \
    F(next_record, "cuptiActivityGetNextRecord", (uint8_t * buffer, size_t valid, void **record))  \
    F(dropped, "cuptiActivityGetNumDroppedRecords",                                                \
      (void *context, uint32_t stream, size_t *records))                                           \
    F(result_text, "cuptiGetResultString", (int result, const char **text))

struct cupti {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define CUPTI_MEMBER(member, symbol, arguments) cupti_result(*member) arguments;
    CUPTI_FUNCTIONS(CUPTI_MEMBER)
#undef CUPTI_MEMBER
};

#endif
