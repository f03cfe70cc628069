/*
 * blas.cpp - the emulated GPU's cuBLAS: products by their definition, in the stream's order. As the
 * real one it sums in an order that depends on the shapes: so a row's bits do on how many columns
 * there are.
 *
 * OATO_CUDA_ON_CPU_BLAS_VERSION=130000   of the library
 * OATO_CUDA_ON_CPU_BLAS_MEMORY=BYTES     of the GPU that a handle takes, 0
 * OATO_CUDA_ON_CPU_FAIL=handle=N,product=N   the N-th handle of a context cannot be made, the N-th
 *                                            product is refused
 *
 * Stricter than the real one: the handle needs a stream, which must not be destroyed before it, and
 * a workspace since that was set, in which each product leaves garbage; matrices are whole in an
 * allocation, and what is written lies apart from all that is read.
 */
#include "tests/cuda_on_cpu/driver.h"
#include "tests/cuda_on_cpu/grid.h"

#include <cstdio>
#include <cstdlib>

extern "C" {
#include "kernels/cuda/cuda_blas.h"

#define DECLARE(member, symbol, arguments)                                                         \
    __attribute__((visibility("default")))                                                         \
    blas_status on_cpu_blas_##member arguments __asm__(symbol);
CUDA_BLAS_FUNCTIONS(DECLARE)
#undef DECLARE
__attribute__((visibility("default"))) const char *
on_cpu_blas_text(blas_status status) __asm__(CUDA_BLAS_TEXT);
}

struct cublasContext {
    cu_context gpu;
    cu_stream stream;
    cu_address workspace;
    size_t workspace_bytes;
    size_t memory; /* of the GPU, its own */
};

namespace cuda_on_cpu
{
namespace
{
enum {
    BLAS_NOT_INITIALIZED = 1,
    BLAS_ALLOC_FAILED = 3,
    BLAS_INVALID_VALUE = 7,
    BLAS_EXECUTION_FAILED = 13,
    BLAS_NOT_SUPPORTED = 15,
};
enum { WORKSPACE_LEAST = 16 << 10, BF16_CAPABILITY = 80 };

/* A matrix of columns, as arguments say. */
struct blas_matrix {
    cu_address at;
    blas_type type;
    int rows, columns, stride;

    size_t element() const
    {
        return type == BLAS_R_32F ? sizeof(float) : sizeof(uint16_t);
    }
    size_t bytes() const
    {
        return (static_cast<size_t>(columns - 1) * static_cast<size_t>(stride) +
                static_cast<size_t>(rows)) *
               element();
    }
    float get(int row, int column) const
    {
        const size_t i =
            static_cast<size_t>(column) * static_cast<size_t>(stride) + static_cast<size_t>(row);
        const uint16_t half = reinterpret_cast<const uint16_t *>(at)[i];
        return type == BLAS_R_16F ? half_to_float(half)
                                  : __uint_as_float(static_cast<uint32_t>(half) << 16);
    }
};

bool lies_in_memory(cu_context gpu, const blas_matrix &m)
{
    return m.stride >= m.rows && m.at % m.element() == 0 && is_inside(gpu, m.at, m.bytes());
}

bool lie_apart(cu_address a, size_t a_bytes, cu_address b, size_t b_bytes)
{
    return a + a_bytes <= b || b + b_bytes <= a;
}

/* Column after column, in one piece. */
std::vector<float> floats_of(const blas_matrix &m)
{
    std::vector<float> out;
    for (int column = 0; column < m.columns; column++)
        for (int row = 0; row < m.rows; row++)
            out.push_back(m.get(row, column));
    return out;
}

/* In as many interleaved parts as the number of columns says. */
float sum_of_products(const float *a, const float *b, int k, int columns)
{
    const int parts = 1 + columns % 4;
    float sum = 0;
    for (int part = 0; part < parts; part++) {
        float one = 0;
        for (int i = part; i < k; i += parts)
            one += a[i] * b[i];
        sum += one;
    }
    return sum;
}

void run_product(const blas_matrix &a, const blas_matrix &b, const blas_matrix &c, float alpha)
{
    const std::vector<float> left = floats_of(a), right = floats_of(b);
    const size_t k = static_cast<size_t>(a.rows), stride = static_cast<size_t>(c.stride);
    float *out = reinterpret_cast<float *>(c.at);
    for (size_t column = 0; column < static_cast<size_t>(c.columns); column++)
        for (size_t row = 0; row < static_cast<size_t>(c.rows); row++)
            out[column * stride + row] =
                alpha * sum_of_products(&left[row * k], &right[column * k], a.rows, c.columns);
}

/* Of what the real one does, what is used here: a transposed and b as it is, halves of one type to
 * float32, nothing of c kept. */
blas_status check_kinds(blas_operation operation_a, blas_operation operation_b, blas_type type_a,
                        blas_type type_b, blas_type type_c, float beta, blas_compute compute)
{
    const bool halves = type_a == type_b && (type_a == BLAS_R_16F || type_a == BLAS_R_16BF);
    if (operation_a != BLAS_TRANSPOSED || operation_b != BLAS_AS_IT_IS || !halves ||
        type_c != BLAS_R_32F || compute != BLAS_COMPUTE_32F || beta != 0)
        return BLAS_NOT_SUPPORTED;
    if (type_a == BLAS_R_16BF && setting("CAPABILITY", 90) < BF16_CAPABILITY)
        return BLAS_NOT_SUPPORTED;
    return BLAS_OK;
}
} // namespace
} // namespace cuda_on_cpu

using namespace cuda_on_cpu;

blas_status on_cpu_blas_create(blas_handle *handle)
{
    locked lock(state().lock);
    cu_context gpu;
    if (current_context(&gpu))
        return BLAS_NOT_INITIALIZED;
    if (++gpu->handles == failure_asked_for("handle="))
        return BLAS_ALLOC_FAILED;
    const size_t memory = static_cast<size_t>(setting("BLAS_MEMORY", 0));
    if (memory > gpu->total - gpu->used)
        return BLAS_ALLOC_FAILED;
    gpu->used += memory;
    *handle = new cublasContext{gpu, nullptr, 0, 0, memory};
    return BLAS_OK;
}

blas_status on_cpu_blas_destroy(blas_handle handle)
{
    locked lock(state().lock);
    cu_context gpu;
    if (!handle || current_context(&gpu) == INVALID_CONTEXT || gpu != handle->gpu)
        return BLAS_NOT_INITIALIZED;
    if (handle->stream && !gpu->streams.count(handle->stream)) {
        std::fputs("cublasDestroy: the handle's stream is gone\n", stderr);
        std::abort();
    }
    wait_until_idle(gpu, lock);
    gpu->used -= handle->memory;
    delete handle;
    return BLAS_OK;
}

blas_status on_cpu_blas_get_version(blas_handle handle, int *version)
{
    *version = static_cast<int>(setting("BLAS_VERSION", 130000));
    return handle ? BLAS_OK : int{BLAS_NOT_INITIALIZED};
}

blas_status on_cpu_blas_set_stream(blas_handle handle, cu_stream stream)
{
    locked lock(state().lock);
    if (!handle || check_stream(stream))
        return BLAS_NOT_INITIALIZED;
    *handle = {handle->gpu, stream, 0, 0, handle->memory};
    return BLAS_OK;
}

blas_status on_cpu_blas_set_workspace(blas_handle handle, void *memory, size_t bytes)
{
    locked lock(state().lock);
    const cu_address at = reinterpret_cast<cu_address>(memory);
    if (!handle)
        return BLAS_NOT_INITIALIZED;
    if (at % BLAS_WORKSPACE_ALIGN || !is_inside(handle->gpu, at, bytes))
        return BLAS_INVALID_VALUE;
    handle->workspace = at;
    handle->workspace_bytes = bytes;
    return BLAS_OK;
}

blas_status on_cpu_blas_multiply(blas_handle handle, blas_operation operation_a,
                                 blas_operation operation_b, int m, int n, int k, const void *alpha,
                                 const void *a, blas_type type_a, int stride_a, const void *b,
                                 blas_type type_b, int stride_b, const void *beta, void *c,
                                 blas_type type_c, int stride_c, blas_compute compute,
                                 blas_algorithm algorithm)
{
    locked lock(state().lock);
    if (!handle || check_stream(handle->stream))
        return BLAS_NOT_INITIALIZED;
    cu_context gpu = handle->gpu;
    const float factor = *static_cast<const float *>(alpha);
    const blas_matrix left = {reinterpret_cast<cu_address>(a), type_a, k, m, stride_a};
    const blas_matrix right = {reinterpret_cast<cu_address>(b), type_b, k, n, stride_b};
    const blas_matrix out = {reinterpret_cast<cu_address>(c), type_c, m, n, stride_c};
    const cu_address room = handle->workspace;
    const size_t room_bytes = handle->workspace_bytes;
    if (blas_status status = check_kinds(operation_a, operation_b, type_a, type_b, type_c,
                                         *static_cast<const float *>(beta), compute))
        return status;
    if (m < 1 || n < 1 || k < 1 || algorithm != BLAS_ALGORITHM_DEFAULT ||
        !lies_in_memory(gpu, left) || !lies_in_memory(gpu, right) || !lies_in_memory(gpu, out) ||
        !lie_apart(out.at, out.bytes(), left.at, left.bytes()) ||
        !lie_apart(out.at, out.bytes(), right.at, right.bytes()))
        return BLAS_INVALID_VALUE;
    if (room_bytes < WORKSPACE_LEAST || !is_inside(gpu, room, room_bytes) ||
        !lie_apart(room, room_bytes, left.at, left.bytes()) ||
        !lie_apart(room, room_bytes, right.at, right.bytes()) ||
        !lie_apart(room, room_bytes, out.at, out.bytes()))
        return BLAS_ALLOC_FAILED;
    if (++gpu->products == failure_asked_for("product="))
        return BLAS_EXECUTION_FAILED;
    enqueue(handle->stream, {WORK_LAUNCH, [=] {
                                 fill_with_garbage(reinterpret_cast<void *>(room), WORKSPACE_LEAST);
                                 run_product(left, right, out, factor);
                                 tell_product();
                             }});
    return BLAS_OK;
}

const char *on_cpu_blas_text(blas_status status)
{
    return status == BLAS_OK                 ? "success"
           : status == BLAS_NOT_INITIALIZED  ? "the library was not initialized"
           : status == BLAS_ALLOC_FAILED     ? "the resource allocation failed"
           : status == BLAS_INVALID_VALUE    ? "an unsupported value or parameter was passed"
           : status == BLAS_EXECUTION_FAILED ? "the function failed to launch on the GPU"
                                             : "the functionality requested is not supported";
}
