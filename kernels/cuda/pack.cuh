/*
 * pack.cuh - the input of an integer product: blocks of 32 elements as bytes between the least and
 * the greatest of them (struct cuda_pack_scale). A kernel of its own does it, or the norm that
 * makes the elements, with the same bits.
 *
 * Bytes have no infinities and no NaN: the scale of a block with one of them says it for all 32, as
 * on the CPU.
 */
#ifndef OATO_PACK_CUH
#define OATO_PACK_CUH

#include "kernels/cuda/device_code.cuh"

/* How numbers between two become bytes. */
struct pack_range {
    float middle, d;

    /* none: of the numbers, which least and most pass over, one is none. */
    __device__ pack_range(float least, float most, bool none)
        : middle(0.5f * most + 0.5f * least), d(none ? NAN : (most - least) / 254.0f)
    {
    }
    __device__ int code(float x) const
    {
        return (int)rintf(d > 0 && d < INFINITY ? (x - middle) / d : 0.0f);
    }
    /* By who has element i of a row and the sum of the codes of its half of a block: the first of
     * either half writes. */
    __device__ void store(uint8_t *row, int k, int i, int sum) const
    {
        cuda_pack_sums *sums = (cuda_pack_sums *)(row + CUDA_PACK_SUMS_AT(k)) + i / 32;
        if (i % 32 == 0) {
            *((float2 *)(row + k) + i / 32) = make_float2(d, middle);
            sums->low = (int16_t)sum;
        }
        if (i % 32 == 16)
            sums->high = (int16_t)sum;
    }
};

/* A warp packs block `block` of a row of k elements; x is its lane's. */
__device__ inline void pack_block(float x, uint8_t *row, int k, int block)
{
    const int i = block * 32 + threadIdx.x % WARP;
    const pack_range range(-warp_max(-x), warp_max(x), __any_sync(0xffffffff, is_none(x)));
    const int q = range.code(x);
    int sum = q;
    for (int step = 8; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, step);
    ((int8_t *)row)[i] = (int8_t)q;
    range.store(row, k, i, sum);
}

/* The same of four neighbours a lane: 8 lanes have a block. y is elements [i, i + 4) of a row of k;
 * all lanes of the warp come here, those behind the end with numbers that nobody sees. */
__device__ inline void pack_four(const float y[4], uint8_t *row, int k, int i)
{
    enum { LANES = 8 };
    float most = fmaxf(fmaxf(y[0], y[1]), fmaxf(y[2], y[3]));
    float least = fminf(fminf(y[0], y[1]), fminf(y[2], y[3]));
    const bool none = is_none(y[0]) || is_none(y[1]) || is_none(y[2]) || is_none(y[3]);
    const uint32_t nones = __ballot_sync(0xffffffff, none); /* of four blocks */
    for (int step = LANES / 2; step; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
        least = fminf(least, __shfl_xor_sync(0xffffffff, least, step));
    }
    const int first = threadIdx.x % WARP / LANES * LANES;
    const pack_range range(least, most, nones >> first & ((1 << LANES) - 1));
    uint32_t codes = 0;
    int sum = 0;
    for (int e = 0; e < 4; e++) {
        const int q = range.code(y[e]);
        codes |= (uint32_t)(q & 0xff) << 8 * e;
        sum += q;
    }
    for (int step = LANES / 4; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (i >= k)
        return;
    ((uint32_t *)row)[i / 4] = codes;
    range.store(row, k, i, sum);
}

#endif
