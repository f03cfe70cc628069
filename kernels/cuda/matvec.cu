/*
 * matvec.cu - products with few columns, where the time is that of reading the weights: decode,
 * rows of logits, and the matrices of the experts that few tokens choose. More than four
 * columns are multiplied by batch.cu and batch_float.cu, to the same bits.
 *
 * A warp computes two rows (gate and up of the same row where they are fused), so that two weights
 * are on their way while two are multiplied; where there are few rows, two or four warps share a
 * pair (split). Lanes take consecutive blocks of 32 elements: a type's codes are read 16 bytes a
 * lane, a warp's reads are 512 bytes in a row. The input is packed to signed bytes before
 * (pack_q8), so that four products are one instruction (dp4a); it is read from L1, where all rows
 * of an SM share it. The bits of a result depend on its row and column and on the matrices' shapes
 * alone: lanes sum up their blocks in rising order, then the warp as a tree, then warps in their
 * order.
 */
#include "kernels/cuda/dot.cuh"
#include "kernels/cuda/pack.cuh"

enum {
    PLANES = 4,
    MATVEC_RESIDENT = 4, /* blocks in a multiprocessor: with fewer registers a lane would have one
                            block of codes on its way, not four */
    MATVEC_AHEAD = 2048, /* elements of a row, two turns of a warp; more of Q4_0 made decoding 2 %
                            slower on an H100 */
};

/* ------------------------------------------------------------------------- the input ------ */

/* A warp a block of 32. */
KERNEL(pack_q8, PACK_WARPS *WARP, cuda_pack_args)
{
    const int at = blockIdx.x * PACK_WARPS + threadIdx.x / WARP;
    if (at < a.k / 32)
        pack_block(a.x[(int64_t)blockIdx.y * (a.x_stride ? a.x_stride : a.k) + at * 32 +
                       threadIdx.x % WARP],
                   a.out + blockIdx.y * a.stride, a.k, at);
}

/* ------------------------------------------------------------------------------- products - */

__device__ static int pairs_of(const cuda_matrix &w)
{
    return (w.rows + 1) / 2;
}

/* Two rows that a warp computes. */
struct row_pair {
    const cuda_matrix *w[2];
    int64_t row[2];
    float *y;
};

/* False: there are fewer pairs. */
__device__ static bool find_pair(const cuda_matvec_args &a, int pair, row_pair *p)
{
    int i = 0;
    if (a.gate_up) {
        p->w[0] = &a.w[0];
        p->w[1] = &a.w[1];
        p->row[0] = p->row[1] = pair;
        p->y = a.y[0];
        return pair < a.w[0].rows;
    }
    for (; i < a.n && pair >= pairs_of(a.w[i]); i++)
        pair -= pairs_of(a.w[i]);
    if (i == a.n)
        return false;
    p->w[0] = p->w[1] = &a.w[i];
    p->row[0] = 2 * pair;
    p->row[1] = 2 * pair + 1 < a.w[i].rows ? 2 * pair + 1 : 2 * pair;
    p->y = a.y[i];
    return true;
}

/* Which of a product's blocks this one is: those of the same rows are neighbours, so that the rows
 * come from memory once. */
template <int N> struct matvec_place {
    int first; /* of N columns */
    int pair;  /* the warp's */

    __device__ explicit matvec_place(const cuda_matvec_args &a)
    {
        const int across = N == 1 ? 1 : (a.columns + N - 1) / N;
        first = blockIdx.x % across * N;
        pair = (blockIdx.x / across * MATVEC_WARPS + threadIdx.x / WARP) / a.split;
    }
};

/* What a warp reads first is fetched while the kernels before this one still work. */
template <int DTYPE, int N> __device__ static void weights_ahead(const cuda_matvec_args &a)
{
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int row = lane / PLANES, begin = warp % a.split * MATVEC_AHEAD;
    const matvec_place<N> place(a);
    row_pair p;
    if (place.first || row > 1 || !find_pair(a, place.pair, &p))
        return;
    const cuda_matrix &w = row ? *p.w[1] : *p.w[0];
    row_ahead<DTYPE>(w, lane % PLANES, row ? p.row[1] : p.row[0], begin,
                     min(begin + MATVEC_AHEAD, w.k));
}

template <int DTYPE, int N> __device__ static void matvec(const cuda_matvec_args &a)
{
    const int part = threadIdx.x / WARP % a.split;
    const matvec_place<N> place(a);
    row_pair p;
    float sum[2][N] = {};
    const uint8_t *x[N]; /* behind the last column: that one again, and nobody writes it */
#pragma unroll
    for (int t = 0; t < N; t++)
        x[t] = a.x + (N == 1 ? 0 : min(place.first + t, a.columns - 1)) * a.x_stride;
    const bool there = find_pair(a, place.pair, &p);
    if (there)
        dot<DTYPE, N>::rows(p.w, p.row, x, sum, part, a.split);
    add_up<N>(sum, part, a.split);
    if (!there || part || threadIdx.x % WARP)
        return;
    const int rows = p.w[0]->rows;
#pragma unroll
    for (int t = 0; t < N; t++) {
        const int64_t column = place.first + t, at = column * rows;
        if (column >= a.columns)
            break;
        if (a.gate_up) {
            p.y[at + p.row[0]] = gated(a.activation, a.limit, sum[0][t], sum[1][t]);
            continue;
        }
        for (int r = 0; r < 2 && (!r || p.row[1] != p.row[0]); r++) {
            p.y[at + p.row[r]] = sum[r][t];
            if (a.sum)
                a.sum[at + p.row[r]] = sum[r][t] + a.addend[column * a.addend_stride + p.row[r]];
        }
    }
}

template <int DTYPE> __device__ static void expert_gate_up(const cuda_experts_args &a)
{
    const int r = blockIdx.x * MATVEC_WARPS + threadIdx.x / WARP;
    const int64_t token = blockIdx.y / a.choice.used;
    const int nth = blockIdx.y % a.choice.used, at = expert_place(a.choice, token, nth);
    if (r >= a.n || at < 0)
        return;
    const cuda_matrix *const w[2] = {&a.w[0], &a.w[1]};
    const int64_t first = (int64_t)at * a.rows.each + r, row[2] = {first, first + a.rows.up};
    float sum[2][1] = {};
    const uint8_t *const x[1] = {a.x + token * a.x_stride};
    dot<DTYPE, 1>::rows(w, row, x, sum);
    const float gate = warp_sum(sum[0][0]), up = warp_sum(sum[1][0]);
    float *y = a.y + (int64_t)blockIdx.y * a.n;
    if (threadIdx.x % WARP)
        return;
    const int expert = chosen_expert(a.choice, token, nth);
    const float weight = expert_weight(a.choice, token, nth);
    y[r] = gated(a.activation, a.extras.limit,
                 expert_product(a.extras, 0, expert, weight, a.n, r, gate),
                 a.extras.single ? 1 : expert_product(a.extras, 1, expert, weight, a.n, r, up));
}

template <int DTYPE> __device__ static void expert_down(const cuda_experts_args &a)
{
    const int r = 2 * (blockIdx.x * MATVEC_WARPS + threadIdx.x / WARP);
    const int64_t token = a.apart ? blockIdx.y / a.choice.used : blockIdx.y;
    const int only = a.apart ? (int)(blockIdx.y % a.choice.used) : -1;
    if (r >= a.n || (a.apart && expert_place(a.choice, token, only) < 0))
        return;
    const cuda_matrix *const w[2] = {&a.w[0], &a.w[0]};
    const int second = r + 1 < a.n ? r + 1 : r;
    float all[2] = {};
    for (int place = a.apart ? only : 0; place < (a.apart ? only + 1 : a.choice.used); place++) {
        const int at = expert_place(a.choice, token, place);
        if (at < 0)
            continue;
        const int expert = chosen_expert(a.choice, token, place);
        const int64_t row[2] = {(int64_t)at * a.n + r, (int64_t)at * a.n + second};
        const float weight =
            a.apart || a.extras.weighs_input ? 1 : expert_weight(a.choice, token, place);
        const uint8_t *const x[1] = {a.x + (token * a.choice.used + place) * a.x_stride};
        float sum[2][1] = {};
        dot<DTYPE, 1>::rows(w, row, x, sum);
        for (int i = 0; i < 2; i++)
            all[i] = fmaf(
                weight,
                expert_product(a.extras, 0, expert, 1, a.n, i ? second : r, warp_sum(sum[i][0])),
                all[i]);
    }
    float *y = a.y + (int64_t)blockIdx.y * a.n;
    if (threadIdx.x % WARP)
        return;
    y[r] = all[0];
    if (second != r)
        y[second] = all[1];
}

template <int DTYPE> __device__ static void head_rows(const cuda_heads_args &a)
{
    const int r = 2 * (blockIdx.x * MATVEC_WARPS + threadIdx.x / WARP);
    const int second = r + 1 < a.n ? r + 1 : r;
    const int64_t head = blockIdx.y, at = blockIdx.z * (int64_t)a.heads + head;
    float *y = a.y + at * (a.n + a.rest);
    const float *in = a.in + at * (a.w.k + a.rest) + a.w.k;
    for (int i = threadIdx.x; !blockIdx.x && i < a.rest; i += MATVEC_WARPS * WARP)
        y[a.n + i] = in[i];
    if (r >= a.n)
        return;
    const cuda_matrix *const w[2] = {&a.w, &a.w};
    const int64_t row[2] = {head * a.n + r, head * a.n + second};
    const uint8_t *const x[1] = {a.x + at * a.x_stride};
    float sum[2][1] = {};
    dot<DTYPE, 1>::rows(w, row, x, sum);
    const float low = warp_sum(sum[0][0]), high = warp_sum(sum[1][0]);
    if (threadIdx.x % WARP)
        return;
    y[r] = low;
    if (second != r)
        y[second] = high;
}

/* The kernels of a type, named as cuda_launch.c puts their names together. */
#define MATVEC_KERNEL(name, argument, ahead, ...)                                                  \
    KERNEL_AHEAD_CALL(name, MATVEC_WARPS *WARP, MATVEC_RESIDENT, argument, ahead, __VA_ARGS__)
#define MATVEC_KERNELS(type, ...)                                                                  \
    MATVEC_KERNEL(matvec_##type, cuda_matvec_args, (weights_ahead<CUDA_##type, 1>),                \
                  matvec<CUDA_##type, 1>)                                                          \
    MATVEC_KERNEL(matvec_many_##type, cuda_matvec_args,                                            \
                  (weights_ahead<CUDA_##type, MATVEC_COLUMNS>),                                    \
                  matvec<CUDA_##type, MATVEC_COLUMNS>)                                             \
    MATVEC_KERNEL(expert_gate_up_##type, cuda_experts_args, nothing_ahead,                         \
                  expert_gate_up<CUDA_##type>)                                                     \
    MATVEC_KERNEL(expert_down_##type, cuda_experts_args, nothing_ahead, expert_down<CUDA_##type>)  \
    MATVEC_KERNEL(head_rows_##type, cuda_heads_args, nothing_ahead, head_rows<CUDA_##type>)

FLOAT_TYPES(MATVEC_KERNELS)
BLOCK_TYPES(MATVEC_KERNELS)
