/*
 * cuda_blas.h - the part of NVIDIA's cuBLAS that this device uses, opened at run time when it is
 * first needed, so machines without it need nothing. Types and numbers are those of its stable ABI;
 * a test compares them with cublas_v2.h where a toolkit is installed.
 *
 * It chooses its kernels by the shapes of a product, so a row's bits may depend on how many rows a
 * step has: its products are classes of their own, f16.cublas and bf16.cublas.
 *
 * OATO_CUDA_BLAS names a library to use instead of libcublas.so; a name that does not exist, such
 * as off, disables cuBLAS. When OATO_CUDA_DRIVER is set, only a library named by OATO_CUDA_BLAS is
 * opened, because NVIDIA's works only with NVIDIA's driver.
 */
#ifndef OATO_CUDA_BLAS_H
#define OATO_CUDA_BLAS_H

#include "kernels/cuda/cuda_driver.h"
#include "kernels/cuda/cuda_kernels.h"

typedef struct cublasContext *blas_handle;
typedef int blas_status; /* 0: success */
typedef int blas_operation;
typedef int blas_type;
typedef int blas_compute;
typedef int blas_algorithm;

enum {
    BLAS_OK = 0,
    BLAS_AS_IT_IS = 0,
    BLAS_TRANSPOSED = 1,
    BLAS_R_32F = 0,
    BLAS_R_16F = 2,
    BLAS_R_16BF = 14,
    BLAS_COMPUTE_32F = 68,
    BLAS_ALGORITHM_DEFAULT = -1,
    BLAS_WORKSPACE_ALIGN = 256,
};

/* Every function that returns a status: name of the member, name in the library, arguments.
 * Matrices are column after column; c = alpha * op(a) * op(b) + beta * c with c of m x n, op(a) of
 * m x k and op(b) of k x n. Setting the stream resets the workspace. */
#define CUDA_BLAS_FUNCTIONS(F)                                                                     \
    F(create, "cublasCreate_v2", (blas_handle * handle))                                           \
    F(destroy, "cublasDestroy_v2", (blas_handle handle))                                           \
    F(get_version, "cublasGetVersion_v2", (blas_handle handle, int *version))                      \
    F(set_stream, "cublasSetStream_v2", (blas_handle handle, cu_stream stream))                    \
    F(set_workspace, "cublasSetWorkspace_v2", (blas_handle handle, void *memory, size_t bytes))    \
    F(multiply, "cublasGemmEx",                                                                    \
      (blas_handle handle, blas_operation operation_a, blas_operation operation_b, int m, int n,   \
       int k, const void *alpha, const void *a, blas_type type_a, int stride_a, const void *b,     \
       blas_type type_b, int stride_b, const void *beta, void *c, blas_type type_c, int stride_c,  \
       blas_compute compute, blas_algorithm algorithm))
#define CUDA_BLAS_TEXT "cublasGetStatusString"

struct cuda_blas_library {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define CUDA_BLAS_MEMBER(member, symbol, arguments) blas_status(*member) arguments;
    CUDA_BLAS_FUNCTIONS(CUDA_BLAS_MEMBER)
#undef CUDA_BLAS_MEMBER
    const char *(*text)(blas_status status);
};

/* A device's cuBLAS state. */
struct cuda_blas {
    const struct cuda_blas_library *library; /* NULL: not available */
    bool asked;                              /* library is set */
    blas_handle handle;
    cu_address workspace;  /* the handle's workspace; 0: none yet */
    blas_status failure;   /* status of the product that returned CUDA_BLAS_FAILED */
    uint64_t halves_bytes; /* maximum bytes of weights converted to halves at once */
};

/* In addition to the driver's results. */
enum { CUDA_BLAS_FAILED = -1 };

struct cuda_device;

/* Whether the device can use cuBLAS; the first call opens the library. */
bool cuda_blas_usable(struct cuda_device *d);
/* Whether the library is here, for whatever GPU. */
bool cuda_blas_found(void);
void cuda_blas_close(struct cuda_device *d);
/* Bytes that its products need at the end of the device's workspace. */
uint64_t cuda_blas_workspace_bytes(const struct cuda_device *d);
/* Queue's thread: y = w x, like the matrix_F16 and matrix_BF16 kernels; columns of y are y_stride
 * elements apart. */
cu_result cuda_blas_product(struct cuda_device *d, const struct cuda_matrix *w, const uint8_t *x,
                            uint64_t x_stride, int32_t columns, float *y, int32_t y_stride);
/* Fails with the library's text for the status behind CUDA_BLAS_FAILED. */
oato_status cuda_blas_fail(const struct cuda_device *d, const char *doing, struct oato_error *err);

#endif
