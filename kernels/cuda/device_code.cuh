/*
 * device_code.cuh - what every kernel file begins with. nvcc compiles the files for GPUs; tests
 * compile the very same files as C++ for the host, where tests/cuda_on_cpu/cuda_on_cpu.h stands in
 * for the language.
 *
 * A kernel is KERNEL(name, threads of a block, type of its one argument) { ... }: the argument is
 * `a`. SHARED_ROOM is the dynamic shared memory of a block, 16-byte aligned.
 *
 * From sm_90 on a kernel may begin before the one before it has ended (programmatic dependent
 * launch): every thread of every kernel first waits until that one has ended and what it wrote is
 * there. So a kernel that has ended has seen all before it end, and no kernel writes what an
 * earlier one still reads. What kernels write is never read by __ldg, which the compiler may move
 * in front of the wait.
 *
 * KERNEL_AHEAD(name, threads, blocks, type, ahead) calls ahead(a) before the wait, which may only
 * read what no kernel of a step writes: weights, and the step's own data, which is there before the
 * first kernel of a span begins. What it reads is in the caches then; fetching to L2 is right also
 * of what kernels write. And it leaves registers for as many blocks in a
 * multiprocessor, where the compiler would rather have more blocks and fewer loads under way.
 */
#ifndef OATO_DEVICE_CODE_CUH
#define OATO_DEVICE_CODE_CUH

#include "kernels/cuda/cuda_kernels.h"

#ifdef OATO_CUDA_ON_CPU
#include "tests/cuda_on_cpu/cuda_on_cpu.h"
#else
#include <cuda_fp16.h>

/* The next kernel may begin when all blocks are past the wait: so one is ahead, not several, and it
 * has all the time that this one works. */
__device__ inline void await_predecessor()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Begins to fetch into L2; address and size are multiples of 16. */
__device__ inline void prefetch_l2(const uint8_t *from, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)),
                 "r"(bytes)
                 : "memory");
#else
    (void)from, (void)bytes;
#endif
}

#define KERNEL(name, threads, argument)                                                            \
    KERNEL_OF(name, __launch_bounds__(threads), argument, nothing_ahead)
#define KERNEL_AHEAD(name, threads, blocks, argument, ahead)                                       \
    KERNEL_OF(name, __launch_bounds__(threads, blocks), argument, ahead)
#define KERNEL_OF(name, bounds, argument, ahead)                                                   \
    __device__ __forceinline__ void name##_body(const argument &a);                                \
    extern "C" __global__ void bounds name(const __grid_constant__ argument a)                     \
    {                                                                                              \
        ahead(a);                                                                                  \
        await_predecessor();                                                                       \
        name##_body(a);                                                                            \
    }                                                                                              \
    __device__ __forceinline__ void name##_body(const argument &a)

extern __shared__ __align__(16) unsigned char shared_room[];
#define SHARED_ROOM shared_room

__device__ inline float half_to_float(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}

__device__ inline uint16_t float_to_half(float f)
{
    return __half_as_ushort(__float2half_rn(f));
}

/* c += a b, a 16 x 32 and b 32 x 8 of signed bytes, spread over the warp as PTX's
 * mma.m16n8k32.s8. Before sm_80 four products of half the depth and height. */
__device__ inline void mma_s8(int c[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int h = 0; h < 4; h++)
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0,%1}, {%2}, {%3}, {%0,%1};"
            : "+r"(c[h % 2 * 2]), "+r"(c[h % 2 * 2 + 1])
            : "r"(a[h]), "r"(b[h / 2]));
#endif
}

/* c += a b, a 16 x 16 and b 16 x 8 of halves, c of floats, spread as PTX's mma.m16n8k16. Before
 * sm_80 two products of half the depth. */
__device__ inline void mma_f16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    for (int h = 0; h < 2; h++)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
            "{%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[2 * h]), "r"(a[2 * h + 1]), "r"(b[h]));
#endif
}

/* The same of bfloat16. Chips before sm_80 cannot, and the host gives them no kernel that needs it.
 */
__device__ inline void mma_bf16(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    (void)c, (void)a, (void)b;
    __trap();
#endif
}

/* Four tiles of 8 x 8 halves of shared memory, transposed: lane i names row i % 8 of tile i / 8, 16
 * bytes, and gets of each tile column i / 4, its rows i % 4 * 2 and the next in a word: two b of
 * mma_f16 whose rows lie so. */
__device__ inline void load_tiles(uint32_t out[4], const void *row)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(at)
                 : "memory");
}

/* 16 bytes on their way from device to shared memory, zeros unless they are `there`: then nothing
 * is read. They have arrived when the thread that began the copy has called copies_wait; before
 * sm_80 at once. */
__device__ inline void copy_16(void *to, const void *from, bool there)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(__cvta_generic_to_global(from)),
                   "r"(there ? 16 : 0)
                 : "memory");
#else
    *(uint4 *)to = there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}

__device__ inline void copies_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* Both rounded to halves, the first one low. */
__device__ inline uint32_t two_halves(float low, float high)
{
    const __half2 h = __floats2half2_rn(low, high);
    return *(const uint32_t *)&h;
}

/* (x - y) z of both halves of a word, each step rounded to a half. */
__device__ inline uint32_t scale_halves(uint32_t x, uint32_t y, uint32_t z)
{
    const __half2 difference = __hsub2(*(const __half2 *)&x, *(const __half2 *)&y);
    const __half2 product = __hmul2(difference, *(const __half2 *)&z);
    return *(const uint32_t *)&product;
}

/* 2^x with a relative error of 2^-22; below 2^-126 zero. */
__device__ inline float exp2_fast(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Has the L2 cache read ahead; bytes and their address are multiples of 16. Of the `lanes` that
 * share the work this is number `lane`. */
__device__ inline void read_ahead(const void *from, uint32_t bytes, int lane, int lanes)
{
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        prefetch_l2((const uint8_t *)from, bytes);
#else
    const uint64_t at = (uint64_t)__cvta_generic_to_global(from);
    for (uint32_t i = lane * 32; i < bytes; i += lanes * 32) /* a sector */
        asm volatile("prefetch.global.L2 [%0];" : : "l"(at + i));
#endif
}
#endif

template <class ARGUMENT> __device__ inline void nothing_ahead(const ARGUMENT &)
{
}

/* The kernel that calls a function, the last argument, with `a`. */
#define KERNEL_CALL(name, threads, argument, ...)                                                  \
    KERNEL(name, threads, argument)                                                                \
    {                                                                                              \
        __VA_ARGS__(a);                                                                            \
    }
#define KERNEL_AHEAD_CALL(name, threads, blocks, argument, ahead, ...)                             \
    KERNEL_AHEAD(name, threads, blocks, argument, ahead)                                           \
    {                                                                                              \
        __VA_ARGS__(a);                                                                            \
    }

/* Reads a number to have it in the cache. */
template <class T> __device__ inline void touch(const T *p)
{
    const T value = *p;
#ifdef OATO_CUDA_ON_CPU
    (void)value;
#else
    asm volatile("" : : "r"((uint32_t)value));
#endif
}

/* Over the lanes of a whole warp; every lane has the result, in the same order of additions. */
enum { WARP = 32 };

template <class T> __device__ inline T warp_sum(T v)
{
    for (int step = WARP / 2; step; step /= 2)
        v += __shfl_xor_sync(0xffffffff, v, step);
    return v;
}

__device__ inline bool is_none(float x)
{
    return !(x <= INFINITY);
}

/* Finite numbers beyond the halves become the largest half; infinities and what is no number stay
 * what they are, so that a fault is seen. As the CPU's to_f16. */
__device__ inline uint16_t float_to_finite_half(float x)
{
    const float near = fminf(fmaxf(x, -65504.0f), 65504.0f);
    return float_to_half(fabsf(x) < INFINITY ? near : x);
}

/* Rounds to the nearest, ties to even; what is no number stays none. */
__device__ inline uint16_t float_to_bf16(float x)
{
    const uint32_t bits = __float_as_uint(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

__device__ inline float bf16_to_float(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

/* As op_slope. */
__device__ inline float alibi_slope(float alibi, int heads, int h)
{
    int n = 1;
    while (n <= heads / 2)
        n *= 2;
    return h < n ? exp2f(-alibi * (float)(h + 1) / (float)n)
                 : exp2f(-alibi / 2 * (float)(2 * (h - n) + 1) / (float)n);
}

/* a(x) times y, as kernels/cpu/ref.c has it. Branches on `a` alone: all threads go the same way. */
__device__ inline float gated(int a, float scale, float x, float y)
{
    if (a == ACT_SILU)
        return x / (1.0f + expf(-x)) * y;
    const float positive = x < 0 ? 0 : x, below_7 = x > 7 ? 7 : x, below = x > scale ? scale : x;
    switch (a) {
    case ACT_GELU:
        return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))) * y;
    case ACT_RELU: return positive * y;
    case ACT_RELU_SQUARED: return positive * positive * y;
    case ACT_SIGMOID: return 1.0f / (1.0f + expf(-x)) * y;
    case ACT_SOFT_CAP: return scale * tanhf(x / scale) * y;
    case ACT_CLAMP: return (x < -scale ? -scale : x > scale ? scale : x) * y;
    case ACT_NONE: return x * y;
    case ACT_CLAMPED_SILU:
        return below / (1.0f + expf(-below)) * (y < -scale ? -scale : y > scale ? scale : y);
    case ACT_SOFTPLUS: return (x > 20 ? x : log1pf(expf(x))) * y;
    case ACT_SILU_CLAMPED: {
        const float silu = x / (1.0f + expf(-x));
        return (silu > scale ? scale : silu) * (y < -scale ? -scale : y > scale ? scale : y);
    }
    default:
        return below_7 / (1.0f + expf(-1.702f * below_7)) * (1 + (y < -7 ? -7 : y > 7 ? 7 : y));
    }
}

/* Whether a neuron with that activation is computed, as is_active of the CPU's kernels. */
__device__ inline bool is_active(float activation, float threshold)
{
    return threshold < 0 || !(fabsf(activation) <= threshold);
}

__device__ inline float warp_max(float v)
{
    for (int step = WARP / 2; step; step /= 2)
        v = fmaxf(v, __shfl_xor_sync(0xffffffff, v, step));
    return v;
}

/* K (which 0) or V of a head in a page. */
__device__ inline uint8_t *kv_block_of(const cuda_kv_layer &l, int64_t page, int which, int head)
{
    uint8_t *block = l.data + page * l.kv_heads * (l.block_bytes + l.v_bytes);
    return which ? block + l.kv_heads * l.block_bytes + head * l.v_bytes
                 : block + head * l.block_bytes;
}

/* The matrices of a product are divided into tiles of so many rows: which of them tile number
 * `tile` is of; it becomes its number there. */
__device__ inline int matrix_of_tile(const cuda_matvec_args &a, int rows, int *tile)
{
    int i = 0;
    for (; *tile >= (a.w[i].rows + rows - 1) / rows; i++)
        *tile -= (a.w[i].rows + rows - 1) / rows;
    return i;
}

/* The expert of a place in a token's choice. */
__device__ inline int chosen_expert(const cuda_choice &c, int64_t token, int place)
{
    return (int)c.rows[token * 2 * c.used + place];
}

/* Which of the matrices here are those of a chosen expert; -1: none of them. */
__device__ inline int expert_place(const cuda_choice &c, int64_t token, int place)
{
    const int e = chosen_expert(c, token, place), nth = e - c.first;
    if (nth < 0 || nth >= c.held)
        return -1;
    return c.slot ? c.slot[e] : nth;
}

/* Element i of the product with an expert of the model, of matrix `which`: times its factor and the
 * weight of the choice, if that is for the input, and then its bias. */
__device__ inline float expert_product(const cuda_expert_extras &x, int which, int64_t expert,
                                       float weight, int n, int i, float v)
{
    if (x.factor[which])
        v *= x.factor[which][expert];
    if (x.weighs_input)
        v *= weight;
    return x.bias[which] ? v + x.bias[which][expert * n + i] : v;
}

__device__ inline float expert_weight(const cuda_choice &c, int64_t token, int place)
{
    return c.rows[token * 2 * c.used + c.used + place];
}

#endif
