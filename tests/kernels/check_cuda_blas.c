/*
 * check_cuda_blas.c - compiled where a CUDA toolkit with cuBLAS is, never run: every number, type
 * and function of cuda_blas.h is the same in NVIDIA's cublas_v2.h.
 */
#include <cublas_v2.h>

#include "kernels/cuda/cuda_blas.h"

#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours " is " #theirs)
SAME(BLAS_OK, CUBLAS_STATUS_SUCCESS);
SAME(BLAS_AS_IT_IS, CUBLAS_OP_N);
SAME(BLAS_TRANSPOSED, CUBLAS_OP_T);
SAME(BLAS_R_32F, CUDA_R_32F);
SAME(BLAS_R_16F, CUDA_R_16F);
SAME(BLAS_R_16BF, CUDA_R_16BF);
SAME(BLAS_COMPUTE_32F, CUBLAS_COMPUTE_32F);
SAME(BLAS_ALGORITHM_DEFAULT, CUBLAS_GEMM_DEFAULT);

_Static_assert(sizeof(blas_status) == sizeof(cublasStatus_t), "results are as wide");
_Static_assert(sizeof(blas_operation) == sizeof(cublasOperation_t), "operations are as wide");
_Static_assert(sizeof(blas_type) == sizeof(cudaDataType), "types are as wide");
_Static_assert(sizeof(blas_compute) == sizeof(cublasComputeType_t), "types of sums are as wide");
_Static_assert(sizeof(blas_algorithm) == sizeof(cublasGemmAlgo_t), "algorithms are as wide");

/* Our table once more, with NVIDIA's types of the same width in the place of ours. */
#define blas_status    cublasStatus_t
#define blas_operation cublasOperation_t
#define blas_type      cudaDataType
#define blas_compute   cublasComputeType_t
#define blas_algorithm cublasGemmAlgo_t
#define FUNCTION(member, symbol, arguments)                                                        \
    typedef blas_status check_##member arguments;                                                  \
    enum { NAME_BYTES_##member = sizeof(symbol) };
CUDA_BLAS_FUNCTIONS(FUNCTION)
#undef FUNCTION
typedef const char *check_text(blas_status status);
enum { NAME_BYTES_text = sizeof(CUDA_BLAS_TEXT) };

/* What cublas_v2.h declares under our name, or under the versioned one that it makes of it. */
#define FUNCTIONS(F)                                                                               \
    F(create, cublasCreate)                                                                        \
    F(destroy, cublasDestroy)                                                                      \
    F(get_version, cublasGetVersion)                                                               \
    F(set_stream, cublasSetStream)                                                                 \
    F(set_workspace, cublasSetWorkspace)                                                           \
    F(multiply, cublasGemmEx)                                                                      \
    F(text, cublasGetStatusString)

#define TEXT_OF(x) #x
#define TEXT(x)    TEXT_OF(x)
#define CHECK(member, function)                                                                    \
    _Static_assert(__builtin_types_compatible_p(check_##member, __typeof__(function)),             \
                   #function " takes and gives what we say");                                      \
    _Static_assert((int)NAME_BYTES_##member == (int)sizeof TEXT(function),                         \
                   #function " has the version that we open");
FUNCTIONS(CHECK)

/* No function of ours is missing above. */
enum {
#define COUNT_OURS(member, symbol, arguments) OURS_##member,
    CUDA_BLAS_FUNCTIONS(COUNT_OURS) OURS_text,
    OURS
};
enum {
#define COUNT_CHECKED(member, function) CHECKED_##member,
    FUNCTIONS(COUNT_CHECKED) CHECKED
};
_Static_assert((int)OURS == (int)CHECKED, "every function is compared");
