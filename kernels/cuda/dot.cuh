/*
 * dot.cuh - products of a row of weights and columns of the input by one warp, or by several that
 * share the row: what matvec.cu and sparse.cu are made of. Lanes take consecutive blocks of 32
 * elements and add theirs up in rising order, then the warp adds its lanes as a tree, then warps
 * are added in their order.
 */
#ifndef OATO_DOT_CUH
#define OATO_DOT_CUH

#include "kernels/cuda/unpack.cuh"

/* What one lane adds to two rows and N columns: rows[r] counts rows of w[r], columns stand x_stride
 * bytes apart. Of `parts` warps that share the rows this is number `part`. */
template <int DTYPE, int N> struct dot {
    typedef weight_block<DTYPE> W;

    static __device__ void add(const cuda_matrix &w, int64_t block, const uint8_t *x,
                               uint64_t x_stride, int b, float *sum)
    {
        int q[8];
        float d[W::SCALES], m[W::SCALES];
        W::codes(w, block, q);
        W::scales(w, block, d, m);
        const float weights = weight_sum<DTYPE>(q, d, m);
#pragma unroll
        for (int t = 0; t < N; t++) {
            const uint8_t *column = x + t * x_stride;
            const int4 *codes = (const int4 *)(column + b * 32);
            const int4 low = codes[0], high = codes[1];
            const cuda_pack_scale s = ((const cuda_pack_scale *)(column + w.k))[b];
            int p0 = __dp4a(q[0], low.x, 0), p1 = __dp4a(q[4], high.x, 0);
            p0 = __dp4a(q[1], low.y, p0);
            p1 = __dp4a(q[5], high.y, p1);
            p0 = __dp4a(q[2], low.z, p0);
            p1 = __dp4a(q[6], high.z, p1);
            p0 = __dp4a(q[3], low.w, p0);
            p1 = __dp4a(q[7], high.w, p1);
            float part;
            if (W::SCALES == 1)
                part = d[0] * (float)(p0 + p1);
            else
                part = fmaf(d[0], (float)p0, d[W::SCALES - 1] * (float)p1);
            if (W::HAS_MIN && W::SCALES == 1)
                part = fmaf(m[0], (float)(s.low_sum + s.high_sum), part);
            else if (W::HAS_MIN)
                part =
                    fmaf(m[0], (float)s.low_sum, fmaf(m[W::SCALES - 1], (float)s.high_sum, part));
            sum[t] = fmaf(s.d, part, fmaf(s.middle, weights, sum[t]));
        }
    }

    static __device__ void rows(const cuda_matrix *const w[2], const int64_t row[2],
                                const uint8_t *x, uint64_t x_stride, float sum[2][N], int part = 0,
                                int parts = 1)
    {
        const int blocks = w[0]->k / 32;
        for (int b = part * WARP + threadIdx.x % WARP; b < blocks; b += parts * WARP) {
            add(*w[0], row[0] * blocks + b, x, x_stride, b, sum[0]);
            add(*w[1], row[1] * blocks + b, x, x_stride, b, sum[1]);
        }
    }
};

/* Types without blocks: 4 elements at a time, of float32 columns. */
template <int DTYPE, int N> struct dot_float {
    static __device__ void rows(const cuda_matrix *const w[2], const int64_t row[2],
                                const uint8_t *x, uint64_t x_stride, float sum[2][N], int part = 0,
                                int parts = 1)
    {
        const int k = w[0]->k;
        for (int i = (part * WARP + threadIdx.x % WARP) * 4; i < k; i += parts * WARP * 4) {
            float v[2][4];
            for (int r = 0; r < 2; r++)
                float_elements<DTYPE>(*w[r], row[r] * k + i, v[r]);
#pragma unroll
            for (int t = 0; t < N; t++) {
                const float4 c = *(const float4 *)(x + t * x_stride + i * sizeof(float));
                for (int r = 0; r < 2; r++) {
                    sum[r][t] = fmaf(v[r][0], c.x, sum[r][t]);
                    sum[r][t] = fmaf(v[r][1], c.y, sum[r][t]);
                    sum[r][t] = fmaf(v[r][2], c.z, sum[r][t]);
                    sum[r][t] = fmaf(v[r][3], c.w, sum[r][t]);
                }
            }
        }
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
        of_warp[warp][i / N][i % N] = sum[i / N][i % N] = warp_sum(sum[i / N][i % N]);
    if (parts == 1)
        return;
    __syncthreads();
    for (int p = 1; part == 0 && p < parts; p++)
#pragma unroll
        for (int i = 0; i < 2 * N; i++)
            sum[i / N][i % N] += of_warp[warp + p][i / N][i % N];
}

#endif
