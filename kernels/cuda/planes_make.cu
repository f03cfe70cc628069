/*
 * planes_make.cu - GGUF's blocks, as they lie in a model's file, to the planes that kernels read:
 * what the host does in cuda_layout.c, by the same functions. So a weight that is sent at every use
 * is kept nowhere but in the file.
 *
 * A block of threads takes a stretch of GGUF blocks into shared memory, whole words at a time, for
 * most of them begin at odd places; then a thread makes what the planes have of 32 elements. Rows
 * need no attention: they are whole blocks, one behind the other here as in each plane. It reads
 * and writes each byte once: the link that brings them is slower by far. (No GPU has run this.)
 */
#define QUANTS_INLINE __device__ __forceinline__
#include "base/dtypes.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/planes_make.h"

/* The block's stretch, of which the last one may be short; returns how many GGUF blocks it has. */
template <int BYTES, int STRETCH>
__device__ __forceinline__ int stretch_load(const cuda_planes_args &a, uint8_t *room)
{
    const int64_t first = (int64_t)blockIdx.x * STRETCH;
    const int n = (int)(a.blocks - first < STRETCH ? a.blocks - first : STRETCH);
    const uint8_t *from = a.from + first * BYTES;
    for (int i = threadIdx.x; i < n * BYTES / 16; i += PLANES_THREADS)
        ((uint4 *)room)[i] = ((const uint4 *)from)[i];
    for (int i = n * BYTES / 16 * 16 + threadIdx.x; i < n * BYTES; i += PLANES_THREADS)
        room[i] = from[i];
    __syncthreads();
    return n;
}

__device__ __forceinline__ void bytes_store(uint8_t *to, const uint8_t *from, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = from[i];
}

template <int BYTES, int SUBS>
__device__ __forceinline__ void codes_make(const cuda_planes_args &a, const planes_format &f)
{
    constexpr int STRETCH = PLANES_THREADS / SUBS;
    static_assert(STRETCH * BYTES % 16 == 0, "stretches begin at whole words");
    __shared__ uint4 room[STRETCH * BYTES / 16];
    const int n = stretch_load<BYTES, STRETCH>(a, (uint8_t *)room);
    const int block = threadIdx.x / SUBS, s = threadIdx.x % SUBS;
    if (block >= n)
        return;
    const uint8_t *from = (const uint8_t *)room + block * BYTES;
    const int64_t at = (int64_t)blockIdx.x * STRETCH + block, sub = at * SUBS + s;
    uint32_t w[8], codes[8], more[2];
    planes_codes(&f, from, s, w);
    planes_pack(&f, w, codes, more);
    for (int i = 0; i < f.bits; i++)
        ((uint32_t *)a.plane[0])[sub * f.bits + i] = codes[i];
    for (int i = 0; i < f.more_bits; i++)
        ((uint32_t *)a.plane[1])[sub * f.more_bits + i] = more[i];
    if (s)
        return;
    if (f.scale_bytes) {
        uint8_t scales[16];
        planes_scales(&f, from, SUBS, scales);
        bytes_store(a.plane[2] + at * (SUBS * f.scale_bytes), scales, SUBS * f.scale_bytes);
    }
    if (f.super_bytes)
        bytes_store(a.plane[3] + at * f.super_bytes, from + f.super_at, f.super_bytes);
}

template <int BYTES>
__device__ __forceinline__ void pieces_make(const cuda_planes_args &a, const planes_format &f)
{
    constexpr int STRETCH = PLANES_STRETCH;
    static_assert(STRETCH * BYTES % 16 == 0, "stretches begin at whole words");
    __shared__ uint4 room[STRETCH * BYTES / 16];
    const uint8_t *from = (const uint8_t *)room;
    const int n = stretch_load<BYTES, STRETCH>(a, (uint8_t *)room);
    int all[4] = {0, 0, 0, 0}, before[4] = {0, 0, 0, 0}; /* bytes of a block in each plane */
    for (int i = 0; i < PLANES_PIECES; i++)
        all[f.piece[i].plane] += f.piece[i].bytes;
    for (int i = 0; i < PLANES_PIECES && f.piece[i].bytes; i++) {
        const planes_piece p = f.piece[i];
        uint8_t *to = a.plane[p.plane] + (int64_t)blockIdx.x * STRETCH * all[p.plane];
        for (int b = threadIdx.x; b < n * p.bytes; b += PLANES_THREADS)
            to[b / p.bytes * all[p.plane] + before[p.plane] + b % p.bytes] =
                from[b / p.bytes * BYTES + p.at + b % p.bytes];
        before[p.plane] += p.bytes;
    }
}

#define BLOCK_OF(name, number, elements, bytes)                                                    \
    enum { ELEMENTS_##name = (elements), BYTES_##name = (bytes) };
BLOCK_TYPES(BLOCK_OF)

#define MAKE_CODES(name, ...)                                                                      \
    KERNEL(planes_##name, PLANES_THREADS, cuda_planes_args)                                        \
    {                                                                                              \
        constexpr planes_format f = __VA_ARGS__;                                                   \
        codes_make<BYTES_##name, ELEMENTS_##name / 32>(a, f);                                      \
    }
#define MAKE_PIECES(name, ...)                                                                     \
    KERNEL(planes_##name, PLANES_THREADS, cuda_planes_args)                                        \
    {                                                                                              \
        constexpr planes_format f = __VA_ARGS__;                                                   \
        pieces_make<BYTES_##name>(a, f);                                                           \
    }
PLANES_OF_CODES(MAKE_CODES)
PLANES_OF_PIECES(MAKE_PIECES)
