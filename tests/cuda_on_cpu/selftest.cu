/*
 * selftest.cu - kernels that use what the emulation of CUDA C has, for test_cuda_on_cpu.c. Plain
 * CUDA C, so that what they expect can be compared with a GPU.
 */
#include "kernels/cuda/device_code.cuh"
#include "tests/cuda_on_cpu/selftest.h"

enum { MOST_THREADS = 256, STATIC_INTS = 64 };
constexpr unsigned EVERY_LANE = 0xffffffff;

KERNEL(selftest_shuffle, MOST_THREADS, struct shuffle_args)
{
    const int thread = (int)threadIdx.x, lane = thread % WARP, v = a.value[thread];
    int32_t *out = a.out + thread * SHUFFLES;
    const unsigned half = lane < 16 ? 0xffff : 0xffff0000;
    out[0] = __shfl_sync(EVERY_LANE, v, 5);
    out[1] = __shfl_sync(EVERY_LANE, v, lane + 3, 8);
    out[2] = __shfl_xor_sync(EVERY_LANE, v, 16);
    out[3] = __shfl_xor_sync(half, v, 3);
    out[4] = __shfl_up_sync(EVERY_LANE, v, 2);
    out[5] = __shfl_up_sync(EVERY_LANE, v, 1, 4);
    out[6] = __shfl_down_sync(EVERY_LANE, v, 7);
    out[7] = __shfl_down_sync(half, v, 2, 16);
    out[8] = (int)warp_sum((float)v);
}

KERNEL(selftest_vote, MOST_THREADS, struct vote_args)
{
    const int thread = (int)threadIdx.x, lane = thread % WARP, bit = a.bit[thread];
    int32_t *out = a.out + thread * VOTES;
    out[0] = (int)__ballot_sync(EVERY_LANE, bit);
    out[1] = lane < 16 ? (int)__ballot_sync(0xffff, bit) : __any_sync(0xffff0000, bit);
    out[2] = __all_sync(EVERY_LANE, bit);
    out[3] = __syncthreads_or(bit);
    out[4] = __syncthreads_and(bit);
    out[5] = __syncthreads_count(bit);
}

KERNEL(selftest_sum, MOST_THREADS, struct sum_args)
{
    __shared__ float part[MOST_THREADS];
    const unsigned thread = threadIdx.x;
    part[thread] = a.value[blockIdx.x * blockDim.x + thread];
    __syncthreads();
    for (unsigned step = blockDim.x / 2; step; step /= 2) {
        if (thread < step)
            part[thread] += part[thread + step];
        __syncthreads();
    }
    if (thread)
        return;
    a.sum[blockIdx.x] = part[0];
}

KERNEL(selftest_reverse, MOST_THREADS, struct reverse_args)
{
    __shared__ int last[MOST_THREADS];
    if (blockIdx.x == 0 && last[threadIdx.x] >= 0)
        atomicAdd(a.written, 1);
    for (int i = (int)threadIdx.x; i < a.n; i += (int)blockDim.x) {
        const unsigned char before = SHARED_ROOM[i];
        if (before != 0xa5 && before != 0xff)
            atomicAdd(a.written, 1);
        SHARED_ROOM[i] = a.in[blockIdx.x * (unsigned)a.n + (unsigned)i];
    }
    last[threadIdx.x] = (int)threadIdx.x;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < a.n; i += (int)blockDim.x)
        a.out[blockIdx.x * (unsigned)a.n + (unsigned)i] = SHARED_ROOM[a.n - 1 - i];
}

KERNEL(selftest_words, MOST_THREADS, struct word_args)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const uint32_t x = a.a[i], y = __ldg(a.b + i), z = a.c[i];
    a.out[5 * i] = (uint32_t)__dp4a((int)x, (int)y, (int)z);
    a.out[5 * i + 1] = __dp4a(x, y, z);
    a.out[5 * i + 2] = __vsub4(x, y);
    a.out[5 * i + 3] = __byte_perm(x, y, z & 0x7777);
    a.out[5 * i + 4] = __funnelshift_r(x, y, z % 32);
}

KERNEL(selftest_half, MOST_THREADS, struct half_args)
{
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    a.wide[i] = half_to_float((uint16_t)i);
    a.narrow[i] = float_to_half(a.given[i]);
}

/* The registers of a lane, of BYTES-byte elements: two rows of a in both halves of the depth, one
 * column of b, neighbours along the depth four bytes at a time. */
template <int DEPTH_BYTES>
__device__ void load_fragments(const struct product_args &a, uint32_t ra[4], uint32_t rb[2])
{
    const unsigned group = threadIdx.x / 4, place = threadIdx.x % 4;
    const uint32_t *words = reinterpret_cast<const uint32_t *>(a.a);
    const uint32_t *columns = reinterpret_cast<const uint32_t *>(a.b);
    const int row = DEPTH_BYTES / 4;
    ra[0] = words[group * row + place];
    ra[1] = words[(group + 8) * row + place];
    ra[2] = words[group * row + row / 2 + place];
    ra[3] = words[(group + 8) * row + row / 2 + place];
    rb[0] = columns[group * row + place];
    rb[1] = columns[group * row + row / 2 + place];
}

template <class T> __device__ T *result_pair(const struct product_args &a, int upper)
{
    return reinterpret_cast<T *>(a.c) + (threadIdx.x / 4 + 8 * upper) * 8 + threadIdx.x % 4 * 2;
}

template <class T, void multiply(T c[4], const uint32_t a[4], const uint32_t b[2])>
__device__ void run_product(const struct product_args &a)
{
    uint32_t ra[4], rb[2];
    T c[4];
    load_fragments<32>(a, ra, rb);
    for (int r = 0; r < 4; r++)
        c[r] = result_pair<T>(a, r / 2)[r % 2];
    multiply(c, ra, rb);
    for (int r = 0; r < 4; r++)
        result_pair<T>(a, r / 2)[r % 2] = c[r];
}

KERNEL(selftest_product_s8, WARP, struct product_args)
{
    run_product<int, mma_s8>(a);
}

KERNEL(selftest_product_f16, WARP, struct product_args)
{
    run_product<float, mma_f16>(a);
}

KERNEL(selftest_product_bf16, WARP, struct product_args)
{
    run_product<float, mma_bf16>(a);
}

KERNEL(selftest_tiles, WARP, struct tile_args)
{
    uint4 *rows = (uint4 *)SHARED_ROOM;
    const unsigned lane = threadIdx.x;
    copy_16(rows + lane, a.row + lane * 8, lane % 5 != 4);
    if (!a.early)
        copies_wait();
    __syncwarp();
    load_tiles(a.out + lane * 4, rows + lane);
    copies_wait();
}

KERNEL(selftest_grid, 1, struct grid_args)
{
    a.out[(blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x] =
        (int)(blockIdx.x + 100 * blockIdx.y + 10000 * blockIdx.z);
}

KERNEL(selftest_step, WARP, struct step_args)
{
    int v = 0;
    for (int i = 0; i < 200; i++)
        v = __shfl_sync(EVERY_LANE, *a.from * 3 + a.n, i % WARP);
    if (threadIdx.x == 0)
        *a.to = v;
}

KERNEL(selftest_wrong, MOST_THREADS, struct wrong_args)
{
    __shared__ int some[STATIC_INTS];
    const int lane = (int)threadIdx.x % WARP;
    some[threadIdx.x % STATIC_INTS] = lane;
    switch (a.what) {
    case WRONG_BARRIER:
        if (lane < 16)
            __syncthreads();
        else
            __syncwarp();
        break;
    case WRONG_LANE:
        if (lane == 7)
            return;
        a.bytes[0] = (uint8_t)__shfl_sync(EVERY_LANE, lane, 0);
        break;
    case WRONG_MASK: a.bytes[0] = (uint8_t)__ballot_sync(0xff, 1); break;
    case WRONG_MEETING:
        if (lane < 16)
            a.bytes[0] = (uint8_t)__shfl_sync(EVERY_LANE, lane, 0);
        else
            a.bytes[0] = (uint8_t)__shfl_xor_sync(EVERY_LANE, lane, 1);
        break;
    case WRONG_SHARED: SHARED_ROOM[a.n] = 1; break;
    case WRONG_STATIC: some[a.n] = 1; break;
    case WRONG_DEVICE: a.bytes[a.n] = 1; break;
    case WRONG_COPY: copy_16(SHARED_ROOM, a.bytes, true); break;
    case WRONG_WAIT: await_predecessor(); break;
    case WRONG_AHEAD: prefetch_l2(a.bytes, 16); break;
    default: __trap();
    }
    a.bytes[lane] = (uint8_t)some[lane];
}

KERNEL(selftest_race, MOST_THREADS, struct race_args)
{
    __shared__ int next[MOST_THREADS + 1];
    next[threadIdx.x] = (int)threadIdx.x;
    if (threadIdx.x == 0)
        next[blockDim.x] = (int)blockDim.x;
    a.out[threadIdx.x] = next[threadIdx.x + 1];
}
