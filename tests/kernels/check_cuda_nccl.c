/*
 * check_cuda_nccl.c - compiled where a CUDA toolkit with NCCL is, never run: every number, type and
 * function of cuda_nccl.h is the same in NVIDIA's nccl.h.
 */
#include <nccl.h>

#include "kernels/cuda/cuda_nccl.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is " #theirs)
SAME(NCCL_OK, ncclSuccess);
SAME(NCCL_FLOAT32, ncclFloat32);

_Static_assert(sizeof(nccl_status) == sizeof(ncclResult_t), "results are as wide");
_Static_assert(sizeof(nccl_type) == sizeof(ncclDataType_t), "types are as wide");
_Static_assert(sizeof(nccl_id) == sizeof(ncclUniqueId), "ids are as long");

/* Our table once more, with NVIDIA's types of the same width in the place of ours. */
#define nccl_status                         ncclResult_t
#define nccl_type                           ncclDataType_t
#define nccl_ranks                          ncclComm_t
#define nccl_id                             ncclUniqueId
#define cu_stream                           cudaStream_t
#define FUNCTION(member, symbol, arguments) typedef nccl_status check_##member arguments;
CUDA_NCCL_FUNCTIONS(FUNCTION)
#undef FUNCTION

/* What nccl.h declares under our name. */
#define FUNCTIONS(F)                                                                               \
    F(get_version, ncclGetVersion)                                                                 \
    F(make_id, ncclGetUniqueId)                                                                    \
    F(join, ncclCommInitRank)                                                                      \
    F(leave, ncclCommDestroy)                                                                      \
    F(group_begin, ncclGroupStart)                                                                 \
    F(group_end, ncclGroupEnd)                                                                     \
    F(send, ncclSend)                                                                              \
    F(receive, ncclRecv)
#define CHECK(member, function)                                                                    \
    _Static_assert(__builtin_types_compatible_p(check_##member, __typeof__(function)),             \
                   #function " takes and gives what we say");
FUNCTIONS(CHECK)

/* No function of ours is missing above. */
enum {
#define COUNT_OURS(member, symbol, arguments) OURS_##member,
    CUDA_NCCL_FUNCTIONS(COUNT_OURS) OURS
};
enum {
#define COUNT_CHECKED(member, function) CHECKED_##member,
    FUNCTIONS(COUNT_CHECKED) CHECKED
};
_Static_assert((int)OURS == (int)CHECKED, "every function is compared");
