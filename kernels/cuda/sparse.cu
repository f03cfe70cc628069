/*
 * sparse.cu - products for active neurons, and what names these. No weight of another neuron is
 * read, and the host knows of no list: grids are those of all neurons, blocks that find nothing to
 * do end at once. Products are matvec.cu's, with its bits.
 */
#include "kernels/cuda/cuda_sparse_kernels.h"
#include "kernels/cuda/dot.cuh"

/* --------------------------------------------------------------------- gated products ----- */

/* The number of the i-th bit that is set. */
__device__ static int set_bit(uint32_t bits, int i)
{
    for (; i; i--)
        bits &= bits - 1;
    return __ffs(bits) - 1;
}

/* The list of active neurons is a word that every warp has. */
template <int DTYPE> __device__ static void sparse_up(const cuda_sparse_up_args &a)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int part = warp % a.split, groups = MATVEC_WARPS / a.split;
    const int first = blockIdx.x * SPARSE_CHUNK;
    const bool there = first + lane < a.w.rows;
    float *y = a.y + (int64_t)blockIdx.y * a.w.rows + first;
    const uint8_t *const x[1] = {a.x + blockIdx.y * a.x_stride};
    const cuda_matrix *const w[2] = {&a.w, &a.w};
    const float gate = there ? y[lane] : 0;
    const bool active = there && is_active(gated(a.activation, a.limit, gate, 1), a.threshold);
    const uint32_t list = __ballot_sync(0xffffffff, active);
    const int count = __popc(list);
    __syncthreads(); /* all have the gates */
    if (warp == 0 && there && !active)
        y[lane] = 0;
    for (int from = 0; from < count; from += 2 * groups) {
        const int i = from + warp / a.split * 2;
        const bool one = i < count, two = i + 1 < count;
        const int n[2] = {one ? set_bit(list, i) : 0, two ? set_bit(list, i + 1) : 0};
        const int64_t row[2] = {first + n[0], first + (two ? n[1] : n[0])};
        const float gates[2] = {__shfl_sync(0xffffffff, gate, n[0]),
                                __shfl_sync(0xffffffff, gate, n[1])};
        float sum[2][1] = {};
        if (one)
            dot<DTYPE, 1>::rows(w, row, x, sum, part, a.split);
        add_up<1>(sum, part, a.split);
        if (part == 0 && lane == 0 && one)
            y[n[0]] = gated(a.activation, a.limit, gates[0], sum[0][0]);
        if (part == 0 && lane == 0 && two)
            y[n[1]] = gated(a.activation, a.limit, gates[1], sum[1][0]);
        if (a.split > 1)
            __syncthreads(); /* add_up's room is free */
    }
}

/* ----------------------------------------------------------------------------- by a list - */

/* Columns [from, to) of a row, by a warp. */
__device__ static void fill(float *y, int from, int to, float value)
{
    for (int i = from + threadIdx.x % WARP; i < to; i += WARP)
        y[i] = value;
}

template <int DTYPE> __device__ static void listed(const cuda_listed_args &a)
{
    __shared__ float gates[MATVEC_WARPS][2];
    const int warp = threadIdx.x / WARP, part = warp % a.split, group = warp / a.split;
    const int first = blockIdx.x * 2 * (MATVEC_WARPS / a.split), i = first + 2 * group;
    const int rows = a.w[0].rows;
    const float *list = a.list + (int64_t)blockIdx.y * (rows + 1);
    const int count = min((int)list[0], rows);
    float *y = a.y + (int64_t)blockIdx.y * rows;
    const uint8_t *const x[1] = {a.x + blockIdx.y * a.x_stride};
    if (count == 0 && blockIdx.x == 0 && warp == 0)
        fill(y, 0, rows, a.unlisted);
    if (first >= count)
        return;
    int place[2] = {}; /* where there is one */
    bool there[2];
    for (int n = 0; n < 2; n++) {
        there[n] = i + n < count;
        if (!there[n])
            continue;
        place[n] = (int)list[1 + i + n];
        if (part == 0)
            fill(y, i + n ? (int)list[i + n] + 1 : 0, place[n], a.unlisted);
        if (part == 0 && i + n == count - 1)
            fill(y, place[n] + 1, rows, a.unlisted);
    }
    const cuda_matrix *const gate[2] = {&a.w[0], &a.w[0]}, *const up[2] = {&a.w[1], &a.w[1]};
    int64_t row[2] = {place[0], there[1] ? place[1] : place[0]};
    float sum[2][1] = {};
    if (there[0])
        dot<DTYPE, 1>::rows(gate, row, x, sum, part, a.split);
    add_up<1>(sum, part, a.split);
    const bool writes = part == 0 && threadIdx.x % WARP == 0;
    for (int n = 0; writes && n < 2; n++) {
        gates[group][n] = sum[n][0];
        if (!a.gate_up && there[n])
            y[place[n]] = sum[n][0];
    }
    if (!a.gate_up)
        return;
    __syncthreads();
    bool active[2];
    for (int n = 0; n < 2; n++)
        active[n] =
            there[n] && is_active(gated(a.activation, a.limit, gates[group][n], 1), a.threshold);
    if (!active[0])
        row[0] = row[1];
    if (!active[1])
        row[1] = row[0];
    sum[0][0] = sum[1][0] = 0;
    if (active[0] || active[1])
        dot<DTYPE, 1>::rows(up, row, x, sum, part, a.split);
    add_up<1>(sum, part, a.split);
    for (int n = 0; writes && n < 2; n++)
        if (there[n])
            y[place[n]] = active[n] ? gated(a.activation, a.limit, gates[group][n], sum[n][0]) : 0;
}

/* A block makes a token's list, in order. */
KERNEL(active_list, LIST_THREADS, cuda_list_args)
{
    __shared__ int of_warp[LIST_THREADS / WARP];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const float *x = a.x + (int64_t)blockIdx.x * a.k;
    float *list = a.list + (int64_t)blockIdx.x * (a.k + 1);
    int count = 0;
    for (int from = 0; from < a.k; from += LIST_THREADS) {
        const int i = from + threadIdx.x;
        const bool above = i < a.k && (a.bias ? x[i] + a.bias[i] : x[i]) > a.threshold;
        const uint32_t found = __ballot_sync(0xffffffff, above);
        if (lane == 0)
            of_warp[warp] = __popc(found);
        __syncthreads();
        int place = count + __popc(found & ((1u << lane) - 1));
        for (int w = 0; w < LIST_THREADS / WARP; w++) {
            place += w < warp ? of_warp[w] : 0;
            count += of_warp[w];
        }
        if (above)
            list[1 + place] = (float)i;
        __syncthreads();
    }
    if (threadIdx.x == 0)
        list[0] = (float)count;
}

/* ------------------------------------------------------------------------------- kernels -- */

#define SPARSE_KERNELS(type, ...)                                                                  \
    KERNEL_CALL(sparse_up_##type, MATVEC_WARPS *WARP, cuda_sparse_up_args, sparse_up<CUDA_##type>) \
    KERNEL_CALL(listed_##type, MATVEC_WARPS *WARP, cuda_listed_args, listed<CUDA_##type>)

FLOAT_TYPES(SPARSE_KERNELS)
BLOCK_TYPES(SPARSE_KERNELS)
