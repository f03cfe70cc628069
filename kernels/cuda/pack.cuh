/*
 * pack.cuh - the input of an integer product: blocks of 32 elements as bytes between the least and
 * the greatest of them (struct cuda_pack_scale). A kernel of its own does it, or the norm that
 * makes the elements, with the same bits.
 */
#ifndef OATO_PACK_CUH
#define OATO_PACK_CUH

#include "kernels/cuda/device_code.cuh"

/* A warp packs block `block` of a row of k elements; x is its lane's. */
__device__ inline void pack_block(float x, uint8_t *row, int k, int block)
{
    const int lane = threadIdx.x % WARP;
    const float most = warp_max(x), least = -warp_max(-x);
    const float middle = 0.5f * most + 0.5f * least, d = (most - least) / 254.0f;
    const int q = (int)rintf(d != 0 ? (x - middle) / d : 0.0f);
    int sum = q;
    for (int step = 8; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, step);
    ((int8_t *)row)[block * 32 + lane] = (int8_t)q;
    cuda_pack_scale *scale = (cuda_pack_scale *)(row + k) + block;
    if (lane == 0) {
        scale->d = d;
        scale->middle = middle;
        scale->low_sum = (int16_t)sum;
    }
    if (lane == 16)
        scale->high_sum = (int16_t)sum;
}

/* The same of four neighbours a lane: 8 lanes have a block. y is elements [i, i + 4) of a row of k;
 * all lanes of the warp come here, those behind the end with numbers that nobody sees. */
__device__ inline void pack_four(const float y[4], uint8_t *row, int k, int i)
{
    enum { LANES = 8 };
    float most = fmaxf(fmaxf(y[0], y[1]), fmaxf(y[2], y[3]));
    float least = fminf(fminf(y[0], y[1]), fminf(y[2], y[3]));
    for (int step = LANES / 2; step; step /= 2) {
        most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, step));
        least = fminf(least, __shfl_xor_sync(0xffffffff, least, step));
    }
    const float middle = 0.5f * most + 0.5f * least, d = (most - least) / 254.0f;
    uint32_t codes = 0;
    int sum = 0;
    for (int e = 0; e < 4; e++) {
        const int q = (int)rintf(d != 0 ? (y[e] - middle) / d : 0.0f);
        codes |= (uint32_t)(q & 0xff) << 8 * e;
        sum += q;
    }
    for (int step = LANES / 4; step; step /= 2)
        sum += __shfl_xor_sync(0xffffffff, sum, step);
    if (i >= k)
        return;
    cuda_pack_scale *scale = (cuda_pack_scale *)(row + k) + i / 32;
    ((uint32_t *)row)[i / 4] = codes;
    if (i % 32 == 0) {
        scale->d = d;
        scale->middle = middle;
        scale->low_sum = (int16_t)sum;
    }
    if (i % 32 == 16)
        scale->high_sum = (int16_t)sum;
}

#endif
