/*
 * cuda_nccl.h - the part of NVIDIA's NCCL with which the GPUs of several ranks exchange values,
 * opened at run time when a plan or the profiler asks for it, so machines without it need nothing.
 * Types and numbers are those of its stable ABI; a test compares them with nccl.h where that is
 * installed.
 *
 * Only messages from GPU to GPU are NCCL's: they do not depend on the number of ranks, so sums have
 * the order of the ranks and the bits of one process. NCCL's own sums have an order of their own.
 *
 * OATO_CUDA_NCCL names a library to use instead of libnccl.so.2; a name that does not exist, such
 * as off, disables NCCL. When OATO_CUDA_DRIVER is set, only a library that is named is opened.
 */
#ifndef OATO_CUDA_NCCL_H
#define OATO_CUDA_NCCL_H

#include "kernels/cuda/cuda_driver.h"

typedef struct ncclComm *nccl_ranks;
typedef int nccl_status; /* 0: success */
typedef int nccl_type;

typedef struct { /* of ranks that join, made by one of them */
    char bytes[128];
} nccl_id;

enum { NCCL_OK = 0, NCCL_FLOAT32 = 7 };

/* Every function that returns a status: name of the member, name in the library, arguments. */
#define CUDA_NCCL_FUNCTIONS(F)                                                                     \
    F(get_version, "ncclGetVersion", (int *version))                                               \
    F(make_id, "ncclGetUniqueId", (nccl_id * id))                                                  \
    F(join, "ncclCommInitRank", (nccl_ranks * ranks, int n, nccl_id id, int rank))                 \
    F(leave, "ncclCommDestroy", (nccl_ranks ranks))                                                \
    F(group_begin, "ncclGroupStart", (void))                                                       \
    F(group_end, "ncclGroupEnd", (void))                                                           \
    F(send, "ncclSend",                                                                            \
      (const void *from, size_t n, nccl_type type, int to, nccl_ranks ranks, cu_stream stream))    \
    F(receive, "ncclRecv",                                                                         \
      (void *to, size_t n, nccl_type type, int from, nccl_ranks ranks, cu_stream stream))
#define CUDA_NCCL_TEXT "ncclGetErrorString"

struct oato_device;
struct cuda_device;
struct compiled;
struct collective;

/* device_ops.join. */
oato_status cuda_join_ranks(struct oato_device *base, struct collective *ranks,
                            struct oato_error *err);
void cuda_nccl_close(struct cuda_device *d);
/* Queue's thread: the RECORD_SWAP at index and those of the same value behind it, at once. */
oato_status cuda_swap(struct cuda_device *d, const struct compiled *c, uint32_t index, int32_t rows,
                      struct oato_error *err);

#endif
