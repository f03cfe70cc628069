/*
 * batch.cu - products of types with blocks with more columns than matvec.cu takes at once: a token
 * of each of several sequences. There every pair of rows reads every column again, and 16 columns
 * take four times as long as one; tensor cores multiply 32 weights of 16 rows by 8 columns at once.
 *
 * The bits are matvec.cu's, where each of 32 lanes adds up every 32nd block of a row, then the
 * lanes are added as a tree, then the parts of a row that split it. Here a warp has what two of
 * those lanes have, number w and w + 16, of BATCH_ROWS rows and BATCH_COLUMNS columns: their sums
 * stay apart until the row's end, when the warp adds its two, and the block the warps', in the
 * order of the tree.
 *
 * A block goes through k in chunks of BATCH_UNITS blocks of 32, one for each warp: its threads
 * unpack a chunk's weights to bytes in shared memory and copy the columns beside them. While a
 * chunk is multiplied, the next one's columns are on their way to a second room, and its weights to
 * registers. The columns are most of what a block reads, but not from memory: hence so many rows.
 */
#include "kernels/cuda/unpack.cuh"

enum {
    ROWS = BATCH_ROWS,
    COLUMNS = BATCH_COLUMNS,
    UNITS = BATCH_UNITS,
    HALF = ROWS / 2,          /* rows of a product of tensor cores; of gate, and of up */
    GROUPS = COLUMNS / 8,     /* of columns */
    LANES = 2 * UNITS,        /* whose sums matvec.cu keeps apart */
    CODES = UNITS * 32 + 16,  /* bytes from one row of a chunk to the next */
    SUMS_STRIDE = ROWS + 4,   /* floats from one column of a warp's sums to the next */
    BATCH_RESIDENT = 2,       /* blocks in a multiprocessor */
    BATCH_AHEAD = 32 * LANES, /* elements of each row that are fetched ahead */
    PLANES = 4,
};
static_assert((int)UNITS == (int)COLUMNS, "a warp brings a column");
static_assert((int)LANES == (int)WARP, "the lanes of matvec.cu");
static_assert(UNITS * COLUMNS * SUMS_STRIDE * sizeof(float) <= BATCH_ROOM, "what warps add up");

/* Where there are no sums, room for half of them keeps lanes that read scales from meeting in a
 * bank. */
template <int DTYPE> struct alignas(16) batch_column {
    uint8_t codes[CODES];
    cuda_pack_scale scale[UNITS];
    cuda_pack_sums sums[weight_block<DTYPE>::HAS_MIN ? UNITS : UNITS / 2];
};

template <int DTYPE> struct alignas(16) batch_room {
    typedef weight_block<DTYPE> W;
    enum { MINIMA = W::HAS_MIN ? W::SCALES : 0 };
    uint8_t w[ROWS][CODES]; /* the first halves of all units, then the last */
    float number[W::SCALES + MINIMA + 1][UNITS][ROWS + 1]; /* scales, minima, the weights' sum */
    batch_column<DTYPE> x[2][COLUMNS];
};

/* ROWS rows of one matrix, or HALF of gate and of up, and columns of the input. */
struct batch_tile {
    int matrix, row; /* the first one */
    int column, columns;

    __device__ explicit batch_tile(const cuda_matvec_args &a)
    {
        const int across = (a.columns + COLUMNS - 1) / COLUMNS, rows = a.gate_up ? HALF : ROWS;
        int tile = blockIdx.x / across;
        column = blockIdx.x % across * COLUMNS;
        columns = min(a.columns - column, (int)COLUMNS);
        matrix = matrix_of_tile(a, rows, &tile);
        row = tile * rows;
    }
};

/* Row r of a tile. Those behind the last are read as if they were the last; nobody writes them. */
struct tile_row {
    const cuda_matrix &w;
    int row;

    __device__ tile_row(const cuda_matvec_args &a, const batch_tile &t, int r)
        : w(a.w[a.gate_up ? r / HALF : t.matrix]),
          row(min(t.row + (a.gate_up ? r % HALF : r), w.rows - 1))
    {
    }
};

template <int DTYPE> __device__ static void batch_ahead(const cuda_matvec_args &a)
{
    const int r = threadIdx.x / PLANES;
    const batch_tile t(a);
    if (r >= ROWS || t.column)
        return;
    const tile_row at(a, t, r);
    row_ahead<DTYPE>(at.w, threadIdx.x % PLANES, at.row, 0, min((int)BATCH_AHEAD, at.w.k));
}

/* ------------------------------------------------------------------------------ a chunk --- */

/* A thread brings a block of row threadIdx.x / UNITS. */
template <int DTYPE>
__device__ static void store_block(const stored_block<DTYPE> &stored, batch_room<DTYPE> &room)
{
    const block_weights<DTYPE> v(stored);
    typedef batch_room<DTYPE> R;
    enum { SCALES = R::W::SCALES, MINIMA = R::MINIMA };
    const int r = threadIdx.x / UNITS, u = threadIdx.x % UNITS;
    int4 *to = (int4 *)room.w[r] + u;
    to[0] = make_int4(v.q[0], v.q[1], v.q[2], v.q[3]);
    to[UNITS] = make_int4(v.q[4], v.q[5], v.q[6], v.q[7]);
#pragma unroll
    for (int s = 0; s < SCALES; s++)
        room.number[s][u][r] = v.d[s];
#pragma unroll
    for (int s = 0; s < MINIMA; s++)
        room.number[SCALES + s][u][r] = v.m[s];
    room.number[SCALES + MINIMA][u][r] = v.sum();
}

/* What a lane copies of its warp's column: 16 bytes of the codes of a chunk and, the first lanes,
 * of the units' scales or sums. Columns behind the last are the last again. */
template <int DTYPE> struct column_copies {
    enum { SCALE_LANES = UNITS * sizeof(cuda_pack_scale) / 16, SUM_LANES = SCALE_LANES / 2 };
    const uint8_t *codes, *scales; /* the lane's */
    int unit_bytes;                /* of scales or sums; 0: the lane copies none */

    __device__ column_copies(const cuda_matvec_args &a, const batch_tile &t)
    {
        const int c = threadIdx.x / WARP, lane = threadIdx.x % WARP, k = a.w[0].k;
        const bool there = c < (t.columns + 7) / 8 * 8;
        const uint8_t *x = a.x + (t.column + min(c, t.columns - 1)) * a.x_stride;
        const bool sums = weight_block<DTYPE>::HAS_MIN && lane < SCALE_LANES + SUM_LANES;
        codes = there ? x + lane * 16 : nullptr;
        scales = lane < SCALE_LANES ? x + k + lane * 16
                                    : x + CUDA_PACK_SUMS_AT(k) + (lane - SCALE_LANES) * 16;
        unit_bytes = !there               ? 0
                     : lane < SCALE_LANES ? (int)sizeof(cuda_pack_scale)
                     : sums               ? (int)sizeof(cuda_pack_sums)
                                          : 0;
    }

    /* Begins to copy the chunk that begins with `unit`; in all there are so many. Behind the last
     * one's scales there is room for a piece. */
    __device__ void begin(int unit, int units, batch_column<DTYPE> *room) const
    {
        const int lane = threadIdx.x % WARP, piece = lane % SCALE_LANES * 16;
        uint8_t *column = (uint8_t *)(room + threadIdx.x / WARP);
        if (codes && lane < (units - unit) * 2)
            copy_16(column + lane * 16, codes + unit * 32, true);
        if (piece < (units - unit) * unit_bytes)
            copy_16(column + CODES + lane * 16, scales + unit * unit_bytes, true);
    }
};

/* A warp's unit of all rows by all columns. */
template <int DTYPE>
__device__ static void multiply(const batch_room<DTYPE> &room, const batch_column<DTYPE> *x,
                                int columns, float sum[GROUPS][2][4])
{
    typedef batch_room<DTYPE> R;
    enum { SCALES = R::W::SCALES, MINIMA = R::MINIMA };
    const int u = threadIdx.x / WARP, group = threadIdx.x % WARP / 4, word = threadIdx.x % 4;
    uint32_t w[2][4];
    float number[2][2][SCALES + MINIMA + 1];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int r = n * 8 + group;
        const uint32_t *codes = (const uint32_t *)room.w[r] + u * 4 + word;
        w[n / 2][n % 2] = codes[0];
        w[n / 2][n % 2 + 2] = codes[UNITS * 4];
#pragma unroll
        for (int i = 0; i < SCALES + MINIMA + 1; i++)
            number[n / 2][n % 2][i] = room.number[i][u][r];
    }
#pragma unroll
    for (int j = 0; j < GROUPS; j++) {
        if (8 * j >= columns)
            break;
        const uint32_t *codes = (const uint32_t *)x[8 * j + group].codes + u * 8 + word;
        const batch_column<DTYPE> *two = &x[8 * j + word * 2];
        const uint32_t b[2] = {codes[0], codes[4]};
        const packed_scale scale[2] = {{&two[0].scale[u], &two[0].sums[u], R::W::HAS_MIN},
                                       {&two[1].scale[u], &two[1].sums[u], R::W::HAS_MIN}};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int low[4] = {}, high[4] = {};
            if constexpr (SCALES == 1) {
                mma_s8(low, w[half], b);
            } else { /* the halves of k one by one */
                const uint32_t first[4] = {w[half][0], w[half][1], 0, 0};
                const uint32_t last[4] = {0, 0, w[half][2], w[half][3]};
                mma_s8(low, first, b);
                mma_s8(high, last, b);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *of_row = number[half][i / 2];
                sum[j][half][i] =
                    add_block<DTYPE>(sum[j][half][i], of_row, of_row + (MINIMA > 0 ? SCALES : 0),
                                     of_row[SCALES + MINIMA], low[i], high[i], scale[i % 2]);
            }
        }
    }
}

/* --------------------------------------------------------------------------- the result --- */

/* What a part of the row gives: of row threadIdx.x % ROWS and column threadIdx.x / ROWS. All of
 * the block's shared memory is free for it. */
__device__ static float add_warps(const float sum[2][GROUPS][2][4])
{
    float(*of_warp)[COLUMNS][SUMS_STRIDE] = (float(*)[COLUMNS][SUMS_STRIDE])SHARED_ROOM;
    const int warp = threadIdx.x / WARP, group = threadIdx.x % WARP / 4, word = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < GROUPS * 2 * 4; n++) {
        const int j = n / 8, half = n / 4 % 2, i = n % 4;
        of_warp[warp][8 * j + word * 2 + i % 2][half * HALF + i / 2 * 8 + group] =
            sum[0][j][half][i] + sum[1][j][half][i];
    }
    __syncthreads();
    float v[UNITS];
#pragma unroll
    for (int w = 0; w < UNITS; w++)
        v[w] = of_warp[w][threadIdx.x / ROWS][threadIdx.x % ROWS];
#pragma unroll
    for (int w = 0; w < UNITS / 2; w++)
        v[w] += v[w + UNITS / 2];
#pragma unroll
    for (int w = 0; w < UNITS / 4; w++)
        v[w] += v[w + UNITS / 4];
    __syncthreads();
    static_assert(UNITS == 16, "the last of these");
    return (v[0] + v[2]) + (v[1] + v[3]);
}

__device__ static void write_result(const cuda_matvec_args &a, const batch_tile &t, float result)
{
    const float up = __shfl_down_sync(0xffffffff, result, HALF);
    const int r = threadIdx.x % ROWS, c = threadIdx.x / ROWS;
    const int row = t.row + r, rows = a.w[t.matrix].rows;
    const int64_t column = t.column + c, at = column * rows + row;
    if (c >= t.columns || row >= rows || (a.gate_up && r >= HALF))
        return;
    a.y[t.matrix][at] = a.gate_up ? gated(a.activation, a.limit, result, up) : result;
    if (a.sum)
        a.sum[at] = result + a.addend[column * a.addend_stride + row];
}

/* First the chunks of lanes 0 to 15, then those of the others: so one set of sums is in use. */
template <int DTYPE> __device__ static void batch(const cuda_matvec_args &a)
{
    batch_room<DTYPE> &room = *(batch_room<DTYPE> *)SHARED_ROOM;
    const int units = a.w[0].k / 32, step = a.split * LANES;
    const int warp = threadIdx.x / WARP, mine = threadIdx.x % UNITS;
    const batch_tile t(a);
    const tile_row at(a, t, threadIdx.x / UNITS);
    const column_copies<DTYPE> columns(a, t);
    const int64_t block = (int64_t)at.row * units + mine;
    float result = 0;
    for (int part = 0; part < a.split; part++) {
        float sums[2][GROUPS][2][4];
        const int begin = part * LANES;
        int now = 0; /* of the two rooms for columns */
        stored_block<DTYPE> next = {};
        if (begin + mine < units)
            next.load(at.w, block + begin);
        columns.begin(begin, units, room.x[0]);
#pragma unroll 1
        for (int upper = 0; upper < 2; upper++) {
            float sum[GROUPS][2][4] = {};
            for (int unit = begin + upper * UNITS; unit < units; unit += step, now ^= 1) {
                const bool last = !upper && unit + step >= units;
                const int behind = last ? begin + UNITS : unit + step;
                store_block(next, room);
                copies_wait();
                __syncthreads(); /* this chunk is here */
                if (behind + mine < units)
                    next.load(at.w, block + behind);
                columns.begin(behind, units, room.x[now ^ 1]);
                if (unit + warp < units)
                    multiply(room, room.x[now], t.columns, sum);
                __syncthreads(); /* and nobody reads it any more */
            }
#pragma unroll
            for (int n = 0; n < GROUPS * 8; n++)
                sums[upper][n / 8][n / 4 % 2][n % 4] = sum[n / 8][n / 4 % 2][n % 4];
        }
        const float of_part = add_warps(sums);
        result = part ? result + of_part : of_part;
    }
    write_result(a, t, result);
}

/* The kernels of a type. */
#define BATCH_KERNEL(type, ...)                                                                    \
    static_assert(sizeof(batch_room<CUDA_##type>) <=                                               \
                      (CUDA_##type == CUDA_Q2_K ? BATCH_ROOM_Q2_K : BATCH_ROOM),                   \
                  "shared memory");                                                                \
    KERNEL_AHEAD_CALL(batch_##type, BATCH_THREADS, BATCH_RESIDENT, cuda_matvec_args,               \
                      batch_ahead<CUDA_##type>, batch<CUDA_##type>)

BLOCK_TYPES(BATCH_KERNEL)
