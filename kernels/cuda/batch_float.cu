/*
 * batch_float.cu - products of types without blocks with more columns than matvec.cu takes at once,
 * by its arithmetic and with its bits: a lane adds up every 32nd piece of 16 bytes of a row,
 * element by element, then the lanes are added as a tree, then the warps that share a row in their
 * order.
 *
 * There are 16 times as many products as with one column, so arithmetic limits, not memory, once
 * nothing else does: a warp takes FLOAT_ROWS rows by FLOAT_COLUMNS columns, so that 64 products
 * need 8 weights and 8 elements of the input. The weights come from memory to registers, a step
 * ahead; the input to shared memory, where all warps of a block read it, into one room while the
 * other is multiplied.
 */
#include "kernels/cuda/unpack.cuh"

enum {
    ROWS = FLOAT_ROWS,
    COLUMNS = FLOAT_COLUMNS,
    HALF = ROWS / 2,    /* rows of gate, and of up */
    FLOAT_RESIDENT = 3, /* blocks in a multiprocessor */
    FLOAT_AHEAD = 2048, /* elements of each row that are fetched ahead */
};
static_assert(ROWS * COLUMNS == 2 * WARP, "a lane writes two numbers");

/* A step of a warp: each lane has EACH neighbours of a row, which are 16 bytes. */
template <int DTYPE> struct float_step {
    enum { EACH = DTYPE == CUDA_F32 ? 4 : 8, ELEMENTS = WARP * EACH, PIECES = EACH / 4 };
    /* Of the input, 4 elements a lane at a time. Lanes are exchanged so that neither who writes nor
     * who reads meets in a bank. */
    struct room {
        float4 x[COLUMNS][PIECES][WARP];
    };
    static_assert(2 * sizeof(room) <= FLOAT_ROOM, "shared memory");

    static __device__ int place(int piece, int lane)
    {
        return lane ^ piece * 4;
    }
};

/* FLOAT_ROWS rows of a matrix, or half as many of gate and of up; which columns; which part of a
 * row the warp has. */
struct float_tile {
    int matrix, row;
    int column, columns;
    int part;
    int warp, warps; /* which of those with this part it is, of how many */
    bool there;      /* false: there are fewer rows */

    __device__ explicit float_tile(const cuda_matvec_args &a)
    {
        const int across = (a.columns + COLUMNS - 1) / COLUMNS, shift = a.split / 2; /* 0, 1, 2 */
        const int rows = a.gate_up ? HALF : ROWS, n = a.gate_up ? 1 : a.n;
        warp = threadIdx.x / WARP >> shift;
        warps = MATVEC_WARPS >> shift;
        int tile = blockIdx.x / across * warps + warp;
        column = blockIdx.x % across * COLUMNS;
        columns = min(a.columns - column, (int)COLUMNS);
        part = threadIdx.x / WARP & (a.split - 1);
        for (matrix = 0; matrix < n && tile >= (a.w[matrix].rows + rows - 1) / rows; matrix++)
            tile -= (a.w[matrix].rows + rows - 1) / rows;
        there = matrix < n;
        matrix = there ? matrix : 0;
        row = there ? tile * rows : 0;
    }
    /* Of row r. Those behind the last are read as if they were the last; nobody writes them. */
    __device__ const cuda_matrix &of(const cuda_matvec_args &a, int r) const
    {
        return a.w[a.gate_up ? r / HALF : matrix];
    }
    __device__ int row_of(const cuda_matvec_args &a, int r) const
    {
        return min(row + (a.gate_up ? r % HALF : r), a.w[matrix].rows - 1);
    }
};

template <int DTYPE> __device__ static void float_ahead(const cuda_matvec_args &a)
{
    const float_tile t(a);
    const int r = threadIdx.x % WARP, begin = t.part * FLOAT_AHEAD;
    if (t.there && !t.column && r < ROWS)
        row_ahead<DTYPE>(t.of(a, r), 0, t.row_of(a, r), begin, min(begin + FLOAT_AHEAD, a.w[0].k));
}

/* The warps that have the same part copy its input together, a column each at a time; columns
 * behind the last are the last again, and elements behind the last zeros. */
template <int DTYPE>
__device__ static void copy_input(const cuda_matvec_args &a, const float_tile &t, int begin,
                                  typename float_step<DTYPE>::room &room)
{
    typedef float_step<DTYPE> S;
    const int lane = threadIdx.x % WARP;
    for (int c = t.warp; c < COLUMNS; c += t.warps) {
        const uint8_t *x = a.x + (t.column + min(c, t.columns - 1)) * a.x_stride;
#pragma unroll
        for (int n = 0; n < S::PIECES; n++) {
            const int nth = n * WARP + lane, piece = nth % S::PIECES, i = begin + nth * 4;
            const bool there = i < a.w[0].k;
            copy_16(&room.x[c][piece][S::place(piece, nth / S::PIECES)],
                    x + (there ? i : 0) * sizeof(float), there);
        }
    }
}

/* What a lane has of the sums: [column][row]. */
template <int DTYPE>
__device__ static void add_floats(const cuda_matvec_args &a, const float_tile &t,
                                  float sum[COLUMNS * ROWS])
{
    typedef float_step<DTYPE> S;
    typename S::room(*rooms)[2] = (typename S::room(*)[2])SHARED_ROOM;
    const int k = a.w[0].k, step = a.split * S::ELEMENTS, lane = threadIdx.x % WARP;
    int begin = t.part * S::ELEMENTS, now = 0;
    uint32_t at[ROWS]; /* in pieces of 16 bytes */
    uint4 stored[ROWS] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        at[r] = (uint32_t)t.row_of(a, r) * (k / S::EACH) + lane;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (begin + lane * S::EACH < k)
            stored[r] = plane_load<uint4>(t.of(a, r), 0, at[r] + begin / S::EACH);
    copy_input<DTYPE>(a, t, begin, rooms[t.part][0]);
    for (int first = 0; first < k; first += step, begin += step, now ^= 1) {
        const bool here = begin + lane * S::EACH < k, more = begin + step + lane * S::EACH < k;
        copies_wait();
        __syncthreads(); /* this step's input is here, and nobody reads the last one's */
        if (first + step < k)
            copy_input<DTYPE>(a, t, begin + step, rooms[t.part][now ^ 1]);
        if (!here || !t.there)
            continue;
#pragma unroll
        for (int piece = 0; piece < S::PIECES; piece++) {
            float w[ROWS][4];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                const uint32_t word[4] = {piece ? stored[r].z : stored[r].x,
                                          piece ? stored[r].w : stored[r].y, stored[r].z,
                                          stored[r].w};
                float_numbers<DTYPE, 4>(word, w[r]);
            }
            if (piece + 1 == S::PIECES) /* the last use of what is stored */
#pragma unroll
                for (int r = 0; r < ROWS; r++)
                    if (more)
                        stored[r] =
                            plane_load<uint4>(t.of(a, r), 0, at[r] + (begin + step) / S::EACH);
#pragma unroll
            for (int c = 0; c < COLUMNS; c++) {
                const float4 x = rooms[t.part][now].x[c][piece][S::place(piece, lane)];
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    float *s = &sum[c * ROWS + r];
                    *s = fmaf(w[r][0], x.x, *s);
                    *s = fmaf(w[r][1], x.y, *s);
                    *s = fmaf(w[r][2], x.z, *s);
                    *s = fmaf(w[r][3], x.w, *s);
                }
            }
        }
    }
}

/* One step of the tree in which lanes are added: those with STEP in their number keep the upper
 * half of N sums, the others the lower. Sums 2 * lane and the next are left at the end. */
template <int N, int STEP> __device__ static void add_halves(float *sum)
{
    const bool upper = threadIdx.x & STEP;
#pragma unroll
    for (int n = 0; n < N / 2; n++) {
        const float kept = upper ? sum[n + N / 2] : sum[n], given = upper ? sum[n] : sum[n + N / 2];
        sum[n] = kept + __shfl_xor_sync(0xffffffff, given, STEP);
    }
    if constexpr (STEP > 1)
        add_halves<N / 2, STEP / 2>(sum);
}

/* Of a lane's two sums; all parts' to that of the first. */
__device__ static void add_parts(float sum[2], int part, int parts)
{
    float2 *of_warp = (float2 *)SHARED_ROOM + threadIdx.x;
    if (parts == 1)
        return;
    __syncthreads(); /* nobody reads the input any more */
    *of_warp = make_float2(sum[0], sum[1]);
    __syncthreads();
    for (int p = 1; part == 0 && p < parts; p++) {
        sum[0] += of_warp[p * WARP].x;
        sum[1] += of_warp[p * WARP].y;
    }
}

template <int DTYPE> __device__ static void batch_floats(const cuda_matvec_args &a)
{
    const float_tile t(a);
    const int lane = threadIdx.x % WARP, first = lane * 2 % ROWS, rows = a.w[t.matrix].rows;
    const int64_t column = t.column + lane * 2 / ROWS;
    float sum[COLUMNS * ROWS] = {};
    add_floats<DTYPE>(a, t, sum);
    add_halves<COLUMNS * ROWS, WARP / 2>(sum);
    add_parts(sum, t.part, a.split);
    float up[2];
    for (int i = 0; i < 2; i++)
        up[i] = __shfl_down_sync(0xffffffff, sum[i], HALF / 2);
    if (!t.there || t.part || column >= a.columns || (a.gate_up && first >= HALF))
        return;
    for (int i = 0; i < 2; i++) {
        const int row = t.row + first + i;
        const int64_t at = column * rows + row;
        if (row >= rows)
            break;
        a.y[t.matrix][at] = a.gate_up ? gated(a.activation, a.limit, sum[i], up[i]) : sum[i];
        if (a.sum)
            a.sum[at] = sum[i] + a.addend[column * a.addend_stride + row];
    }
}

/* The kernels of a type. */
#define FLOAT_KERNEL(type, ...)                                                                    \
    KERNEL_AHEAD_CALL(batch_##type, MATVEC_WARPS *WARP, FLOAT_RESIDENT, cuda_matvec_args,          \
                      float_ahead<CUDA_##type>, batch_floats<CUDA_##type>)

FLOAT_TYPES(FLOAT_KERNEL)
