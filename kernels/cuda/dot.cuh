/*
 * dot.cuh - products of a row of weights and columns of the input by one warp, or by several that
 * share the row: what matvec.cu and sparse.cu are made of. Lanes take consecutive blocks of 32
 * elements and add theirs up in rising order, then the warp adds its lanes as a tree, then warps
 * are added in their order.
 */
#ifndef OATO_DOT_CUH
#define OATO_DOT_CUH

#include "kernels/cuda/unpack.cuh"

/* What one lane adds to two rows and N columns: rows[r] counts rows of w[r]. Of `parts` warps that
 * share the rows this is number `part`. */
template <int DTYPE, int N> struct dot {
    static __device__ void add(const block_weights<DTYPE> &v, const uint8_t *const x[N], int k,
                               int b, float *sum)
    {
        const float weights = v.sum();
#pragma unroll
        for (int t = 0; t < N; t++) {
            const int4 *codes = (const int4 *)(x[t] + b * 32);
            const int4 low = codes[0], high = codes[1];
            int p0 = __dp4a(v.q[0], low.x, 0), p1 = __dp4a(v.q[4], high.x, 0);
            p0 = __dp4a(v.q[1], low.y, p0);
            p1 = __dp4a(v.q[5], high.y, p1);
            p0 = __dp4a(v.q[2], low.z, p0);
            p1 = __dp4a(v.q[6], high.z, p1);
            p0 = __dp4a(v.q[3], low.w, p0);
            p1 = __dp4a(v.q[7], high.w, p1);
            const packed_scale s((const cuda_pack_scale *)(x[t] + k) + b,
                                 (const cuda_pack_sums *)(x[t] + CUDA_PACK_SUMS_AT(k)) + b,
                                 weight_block<DTYPE>::HAS_MIN);
            sum[t] = add_block<DTYPE>(sum[t], v.d, v.m, weights, p0, p1, s);
        }
    }

    /* Blocks b and, TURNS of them, those `step` behind each other: all are read before one is
     * multiplied. */
    template <int TURNS>
    static __device__ void turns(const cuda_matrix *const w[2], const int64_t row[2],
                                 const uint8_t *const x[N], int b, int step, float sum[2][N])
    {
        const int k = w[0]->k;
        stored_block<DTYPE> v[TURNS][2];
#pragma unroll
        for (int i = 0; i < 2 * TURNS; i++)
            v[i / 2][i % 2].load(*w[i % 2], row[i % 2] * (k / 32) + b + i / 2 * step);
#pragma unroll
        for (int i = 0; i < 2 * TURNS; i++)
            add(block_weights<DTYPE>(v[i / 2][i % 2]), x, k, b + i / 2 * step, sum[i % 2]);
    }

    static __device__ void rows(const cuda_matrix *const w[2], const int64_t row[2],
                                const uint8_t *const x[N], float sum[2][N], int part = 0,
                                int parts = 1)
    {
        const int blocks = w[0]->k / 32, step = parts * WARP;
        int b = part * WARP + threadIdx.x % WARP;
        for (; b + step < blocks; b += 2 * step)
            turns<2>(w, row, x, b, step, sum);
        if (b < blocks)
            turns<1>(w, row, x, b, step, sum);
    }
};

/* Types without blocks: 16 bytes at a time, of float32 columns. */
template <int DTYPE, int N> struct dot_float {
    enum { EACH = DTYPE == CUDA_F32 ? 4 : 8, MOST_TURNS = 4 };

    template <int TURNS>
    static __device__ void turns(const cuda_matrix *const w[2], const int64_t row[2],
                                 const uint8_t *const x[N], int i, int step, float sum[2][N])
    {
        uint4 v[TURNS][2]; /* as they are stored: more of them are under way at once */
#pragma unroll
        for (int n = 0; n < 2 * TURNS; n++)
            v[n / 2][n % 2] =
                plane_load<uint4>(*w[n % 2], 0, (row[n % 2] * w[0]->k + i + n / 2 * step) / EACH);
#pragma unroll
        for (int n = 0; n < TURNS; n++) {
            float e[2][EACH];
            for (int r = 0; r < 2; r++) {
                const uint32_t word[4] = {v[n][r].x, v[n][r].y, v[n][r].z, v[n][r].w};
                float_numbers<DTYPE, EACH>(word, e[r]);
            }
#pragma unroll
            for (int t = 0; t < N; t++) {
                const float4 *column = (const float4 *)(x[t] + (i + n * step) * sizeof(float));
#pragma unroll
                for (int part = 0; part < EACH / 4; part++) {
                    const float4 c = column[part];
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const float *four = e[r] + 4 * part;
                        sum[r][t] = fmaf(four[0], c.x, sum[r][t]);
                        sum[r][t] = fmaf(four[1], c.y, sum[r][t]);
                        sum[r][t] = fmaf(four[2], c.z, sum[r][t]);
                        sum[r][t] = fmaf(four[3], c.w, sum[r][t]);
                    }
                }
            }
        }
    }

    static __device__ void rows(const cuda_matrix *const w[2], const int64_t row[2],
                                const uint8_t *const x[N], float sum[2][N], int part = 0,
                                int parts = 1)
    {
        const int k = w[0]->k, step = parts * WARP * EACH;
        int i = (part * WARP + threadIdx.x % WARP) * EACH;
        for (; i + (MOST_TURNS - 1) * step < k; i += MOST_TURNS * step)
            turns<MOST_TURNS>(w, row, x, i, step, sum);
        for (; i < k; i += step)
            turns<1>(w, row, x, i, step, sum);
    }
};
template <int N> struct dot<CUDA_F32, N> : dot_float<CUDA_F32, N> {
};
template <int N> struct dot<CUDA_F16, N> : dot_float<CUDA_F16, N> {
};
template <int N> struct dot<CUDA_BF16, N> : dot_float<CUDA_BF16, N> {
};

/* Of a warp's lanes, then of the `parts` warps that share the rows: the first of these has it. All
 * warps of the block come here. */
template <int N> __device__ inline void add_up(float sum[2][N], int part, int parts)
{
    __shared__ float of_warp[MATVEC_WARPS][2][N];
    const int warp = threadIdx.x / WARP;
#pragma unroll
    for (int i = 0; i < 2 * N; i++)
        sum[i / N][i % N] = warp_sum(sum[i / N][i % N]);
    if (parts == 1)
        return;
#pragma unroll
    for (int i = 0; threadIdx.x % WARP == 0 && i < 2 * N; i++)
        of_warp[warp][i / N][i % N] = sum[i / N][i % N];
    __syncthreads();
    for (int p = 1; part == 0 && p < parts; p++)
#pragma unroll
        for (int i = 0; i < 2 * N; i++)
            sum[i / N][i % N] += of_warp[warp + p][i / N][i % N];
}

#endif
