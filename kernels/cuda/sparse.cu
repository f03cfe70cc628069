/*
 * sparse.cu - products with some rows of a matrix, those of a list in device memory: what the
 * active neurons of a token need. Rows of gate and up are multiplied with the input (sparse_rows);
 * of down, which lies so that each neuron has a row, rows are added up (sparse_sum). Both read no
 * weight of another neuron.
 *
 * sparse_rows is matvec.cu's product with its row numbers from the list. In sparse_sum 8 lanes take
 * a row of the list, 32 elements each: a read of 4-bit codes is 128 bytes in a row, and a block has
 * SPARSE_ROWS rows on their way. A lane keeps its elements of the result in registers for all its
 * rows; then four rows of a warp, the warps of a block and the blocks' slices of the list are added
 * in an order that nothing but the list's length changes.
 */
#include "kernels/cuda/dot.cuh"

/* Of a token's list, nothing beyond its room. */
__device__ static int active(const cuda_row_list &list, int token)
{
    return min(list.count[token], list.most);
}

/* ----------------------------------------------------------------------------- products --- */

template <int DTYPE> __device__ static void sparse_rows(const cuda_sparse_rows_args &a)
{
    const int warp = threadIdx.x / WARP, part = warp % a.split, token = blockIdx.y;
    const int unit = (blockIdx.x * MATVEC_WARPS + warp) / a.split;
    const int first = a.gate_up ? unit : 2 * unit, count = active(a.list, token);
    const int second = !a.gate_up && first + 1 < count ? first + 1 : first;
    float sum[2][1] = {};
    if (first < count) {
        const int32_t *index = a.list.index + (int64_t)token * a.list.most;
        const cuda_matrix *const w[2] = {&a.w[0], &a.w[a.gate_up ? 1 : 0]};
        const int64_t row[2] = {index[first], index[second]};
        const uint8_t *const x[1] = {a.x + token * a.x_stride};
        dot<DTYPE, 1>::rows(w, row, x, sum, part, a.split);
    }
    add_up<1>(sum, part, a.split);
    if (first >= count || part || threadIdx.x % WARP)
        return;
    float *y = a.y + (int64_t)token * a.list.most;
    y[first] = a.gate_up ? gated(a.activation, 0, sum[0][0], sum[1][0]) : sum[0][0];
    if (second != first)
        y[second] = sum[1][0];
}

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

/* --------------------------------------------------------------------------------- sums --- */

enum {
    ROW_LANES = SPARSE_COLUMNS / 32,
    ROW_APART = WARP + 4, /* floats of 32 columns in shared memory: lanes then meet no bank twice */
};

/* The bytes of a word, signed, as floats: behind the exponent of 2^23 a byte is a number already.
 */
__device__ static void floats_of_bytes(int word, float v[4])
{
    const uint32_t above_zero = (uint32_t)word ^ 0x80808080;
    for (int i = 0; i < 4; i++)
        v[i] = __uint_as_float(bytes_selected(above_zero, 0x4b000000, 0x7650 + i)) -
               (8388608.0f + 128.0f);
}

/* What a lane adds up of SPARSE_COLUMNS columns from `begin` on: a block of 32 each. */
template <int DTYPE> struct column_sums {
    typedef weight_block<DTYPE> W;
    float sum[32], low[W::SCALES]; /* low: of the m that all elements of a scale have */

    /* Where element e stands among the columns. */
    static __device__ int place(int lane, int e)
    {
        return lane * 32 + e;
    }

    __device__ void add(const cuda_matrix &w, int64_t row, int begin, int lane, float factor)
    {
        const int blocks = w.k / 32, b = begin / 32 + lane;
        if (b >= blocks)
            return;
        const block_weights<DTYPE> block(w, row * blocks + b);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const float scale = factor * block.d[i / 4 * (W::SCALES - 1)];
            float v[4];
            floats_of_bytes(block.q[i], v);
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[4 * i + e] = fmaf(scale, v[e], sum[4 * i + e]);
        }
#pragma unroll
        for (int s = 0; s < W::SCALES; s++)
            if (W::HAS_MIN)
                low[s] = fmaf(factor, block.m[s], low[s]);
    }

    __device__ void finish()
    {
#pragma unroll
        for (int e = 0; e < 32; e++)
            if (W::HAS_MIN)
                sum[e] += low[e / 16 * (W::SCALES - 1)];
    }
};

/* Types without blocks: 4 elements at 8 places, so that lanes still read side by side. */
template <int DTYPE> struct column_sums_float {
    float sum[32];

    static __device__ int place(int lane, int e)
    {
        return e / 4 * (ROW_LANES * 4) + lane * 4 + e % 4;
    }

    __device__ void add(const cuda_matrix &w, int64_t row, int begin, int lane, float factor)
    {
#pragma unroll
        for (int i = 0; i < 32; i += 4) {
            const int column = begin + place(lane, i);
            float v[4];
            if (column >= w.k)
                return;
            float_elements<DTYPE>(w, row * w.k + column, v);
#pragma unroll
            for (int e = 0; e < 4; e++)
                sum[i + e] = fmaf(factor, v[e], sum[i + e]);
        }
    }

    __device__ void finish()
    {
    }
};
template <> struct column_sums<CUDA_F32> : column_sums_float<CUDA_F32> {
};
template <> struct column_sums<CUDA_F16> : column_sums_float<CUDA_F16> {
};
template <> struct column_sums<CUDA_BF16> : column_sums_float<CUDA_BF16> {
};

/* Place i of the list goes to the slices, their warps and these warps' rows in turn. */
template <int DTYPE> __device__ static void sparse_sum(const cuda_sparse_sum_args &a)
{
    __shared__ float of_warp[SPARSE_WARPS][SPARSE_COLUMNS / 32 * ROW_APART];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % ROW_LANES, token = blockIdx.z;
    const int begin = blockIdx.x * SPARSE_COLUMNS, count = active(a.list, token);
    const int32_t *index = a.list.index + (int64_t)token * a.list.most;
    const float *factor = a.factor + (int64_t)token * a.list.most;
    column_sums<DTYPE> own = {};
#pragma unroll 2
    for (int i = blockIdx.y * SPARSE_ROWS + threadIdx.x / ROW_LANES; i < count;
         i += a.slices * SPARSE_ROWS)
        own.add(a.w, index[i], begin, lane, factor[i]);
    own.finish();
#pragma unroll
    for (int e = 0; e < 32; e++) {
        float sum = own.sum[e];
        for (int step = ROW_LANES; step < WARP; step *= 2)
            sum += __shfl_xor_sync(0xffffffff, sum, step);
        const int place = own.place(lane, e);
        if (threadIdx.x % WARP < ROW_LANES)
            of_warp[warp][place / 32 * ROW_APART + place % 32] = sum;
    }
    __syncthreads();
    const int place = threadIdx.x;
    if (begin + place >= a.w.k)
        return;
    float sum = 0;
    for (int i = 0; i < SPARSE_WARPS; i++)
        sum += of_warp[i][place / 32 * ROW_APART + place % 32];
    a.partial[((int64_t)token * a.slices + blockIdx.y) * a.w.k + begin + place] = sum;
}

KERNEL(sparse_merge, ROW_THREADS, cuda_sparse_sum_args)
{
    const int i = blockIdx.x * ROW_THREADS + threadIdx.x;
    const int64_t token = blockIdx.y;
    if (i >= a.w.k)
        return;
    float sum = 0;
    for (int s = 0; s < a.slices; s++)
        sum += a.partial[(token * a.slices + s) * a.w.k + i];
    a.y[token * a.w.k + i] += sum;
}

/* ------------------------------------------------------------------------------- kernels -- */

static_assert(SPARSE_WARPS * WARP == SPARSE_COLUMNS, "a thread finishes a column");
static_assert(SPARSE_WARPS * WARP / ROW_LANES == SPARSE_ROWS, "8 lanes a row");

#define SPARSE_KERNELS(type, ...)                                                                  \
    KERNEL_CALL(sparse_rows_##type, MATVEC_WARPS *WARP, cuda_sparse_rows_args,                     \
                sparse_rows<CUDA_##type>)                                                          \
    KERNEL_CALL(sparse_up_##type, MATVEC_WARPS *WARP, cuda_sparse_up_args, sparse_up<CUDA_##type>) \
    KERNEL_CALL(sparse_sum_##type, SPARSE_WARPS *WARP, cuda_sparse_sum_args,                       \
                sparse_sum<CUDA_##type>)

FLOAT_TYPES(SPARSE_KERNELS)
BLOCK_TYPES(SPARSE_KERNELS)
