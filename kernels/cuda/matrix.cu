/*
 * matrix.cu - products with many columns, where arithmetic is the limit: prefill. Tensor cores
 * multiply 16 rows by 8 columns over 32 bytes of k at a time: 32 signed bytes, or 16 elements of
 * F16 or BF16.
 *
 * A block computes TILE x TILE results, a warp 16 rows of them. It goes through k in chunks of
 * CHUNK bytes of a row: its threads unpack the weights of a chunk to bytes in shared memory, with
 * what scales each 32 of them, and copy the packed columns beside them; a row of a chunk is 16
 * bytes longer than its data, so that the 8 rows that a load of fragments touches lie in different
 * banks. Integer sums of 32 products are exact; scaled, they are added in rising order of k, so a
 * result's bits depend on its row and column alone.
 */
#include "kernels/cuda/unpack.cuh"

enum {
    TILE = MATRIX_TILE,
    THREADS = MATRIX_THREADS,
    CHUNK = 256,
    UNITS = CHUNK / 32,  /* of a chunk's row: what one multiplication takes */
    STRIDE = CHUNK + 16, /* bytes from one row of a chunk to the next */
    COLUMNS = TILE / 8,  /* of a warp: groups of 8 */
};

/* The columns of a float type, 32 elements a warp. */
template <int DTYPE> __device__ static void pack_float(const cuda_pack_args &a)
{
    const int i = blockIdx.x * PACK_WARPS * WARP + threadIdx.x;
    if (i >= a.k)
        return;
    const float x = a.x[(int64_t)blockIdx.y * a.k + i];
    uint16_t *out = (uint16_t *)(a.out + blockIdx.y * a.stride);
    out[i] =
        DTYPE == CUDA_F16 ? float_to_half(fminf(fmaxf(x, -65504.0f), 65504.0f)) : float_to_bf16(x);
}

KERNEL(pack_F16, PACK_WARPS *WARP, cuda_pack_args)
{
    pack_float<CUDA_F16>(a);
}

KERNEL(pack_BF16, PACK_WARPS *WARP, cuda_pack_args)
{
    pack_float<CUDA_BF16>(a);
}

template <int DTYPE> __device__ constexpr bool is_float()
{
    return DTYPE == CUDA_F16 || DTYPE == CUDA_BF16;
}

/* Scales, minima and sums of a chunk's rows and columns; none for floats. */
template <int DTYPE> struct chunk_scales {
    typedef weight_block<DTYPE> W;
    float d[TILE][UNITS][W::SCALES];
    float m[TILE][W::HAS_MIN ? UNITS : 1][W::SCALES];
    float sum[TILE][UNITS]; /* of 32 weights */
    cuda_pack_scale x[TILE][UNITS];
};
template <> struct chunk_scales<CUDA_F16> {
};
template <> struct chunk_scales<CUDA_BF16> {
};

template <int DTYPE> struct matrix_room {
    uint8_t w[TILE][STRIDE], x[TILE][STRIDE];
    chunk_scales<DTYPE> scales;
};

struct matrix_tile {
    const cuda_matrix *w;
    float *y;
    int row, column, columns; /* first ones, and how many columns there are in all */
    const uint8_t *x;
    uint64_t x_stride;
    int units; /* of a row of k */
};

/* Rows and columns behind the last are read as if they were the last; nobody writes them. */
template <int DTYPE>
__device__ static void load_weights(const matrix_tile &t, int unit, matrix_room<DTYPE> &room)
{
    for (int i = threadIdx.x; i < TILE * UNITS; i += THREADS) {
        const int row = i / UNITS, u = i % UNITS;
        if (unit + u >= t.units)
            continue;
        const int64_t block = (int64_t)min(t.row + row, t.w->rows - 1) * t.units + unit + u;
        int4 *to = (int4 *)&room.w[row][u * 32];
        if constexpr (is_float<DTYPE>()) {
            const int4 *from = (const int4 *)(t.w->plane[0] + block * 32);
            to[0] = from[0];
            to[1] = from[1];
        } else {
            typedef weight_block<DTYPE> W;
            int q[8];
            float d[W::SCALES], m[W::SCALES];
            W::codes(*t.w, block, q);
            W::scales(*t.w, block, d, m);
            room.scales.sum[row][u] = weight_sum<DTYPE>(q, d, m);
            to[0] = make_int4(q[0], q[1], q[2], q[3]);
            to[1] = make_int4(q[4], q[5], q[6], q[7]);
            for (int s = 0; s < W::SCALES; s++) {
                room.scales.d[row][u][s] = d[s];
                if (W::HAS_MIN)
                    room.scales.m[row][u][s] = m[s];
            }
        }
    }
}

template <int DTYPE>
__device__ static void load_columns(const matrix_tile &t, int unit, matrix_room<DTYPE> &room)
{
    for (int i = threadIdx.x; i < TILE * UNITS; i += THREADS) {
        const int column = i / UNITS, u = i % UNITS;
        if (unit + u >= t.units)
            continue;
        const uint8_t *x = t.x + min(t.column + column, t.columns - 1) * t.x_stride;
        const int4 *from = (const int4 *)(x + (unit + u) * 32);
        int4 *to = (int4 *)&room.x[column][u * 32];
        to[0] = from[0];
        to[1] = from[1];
        if constexpr (!is_float<DTYPE>())
            room.scales.x[column][u] = ((const cuda_pack_scale *)(x + t.w->k))[unit + u];
    }
}

/* Unit u of the chunk: a warp's 16 rows times all columns, added to sum. */
template <int DTYPE>
__device__ static void multiply(const matrix_room<DTYPE> &room, int u, float sum[COLUMNS][4])
{
    const int lane = threadIdx.x % WARP, group = lane / 4, byte = u * 32 + lane % 4 * 4;
    const int row = threadIdx.x / WARP * 16 + group;
    uint32_t w[4];
    for (int i = 0; i < 4; i++)
        w[i] = *(const uint32_t *)&room.w[row + i % 2 * 8][byte + i / 2 * 16];
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        uint32_t x[2];
        x[0] = *(const uint32_t *)&room.x[8 * j + group][byte];
        x[1] = *(const uint32_t *)&room.x[8 * j + group][byte + 16];
        if constexpr (DTYPE == CUDA_F16) {
            mma_f16(sum[j], w, x);
        } else if constexpr (DTYPE == CUDA_BF16) {
            mma_bf16(sum[j], w, x);
        } else {
            typedef weight_block<DTYPE> W;
            int low[4] = {}, high[4] = {};
            if constexpr (W::SCALES == 1) {
                mma_s8(low, w, x);
            } else { /* the halves of k one by one */
                const uint32_t first[4] = {w[0], w[1], 0, 0}, last[4] = {0, 0, w[2], w[3]};
                mma_s8(low, first, x);
                mma_s8(high, last, x);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = row + i / 2 * 8;
                const cuda_pack_scale &s = room.scales.x[8 * j + lane % 4 * 2 + i % 2][u];
                const float *d = room.scales.d[r][u];
                float part = d[0] * (float)low[i];
                if (W::SCALES == 2)
                    part = fmaf(d[W::SCALES - 1], (float)high[i], part);
                if (W::HAS_MIN) {
                    const float *m = room.scales.m[r][u];
                    if (W::SCALES == 1)
                        part = fmaf(m[0], (float)(s.low_sum + s.high_sum), part);
                    else
                        part = fmaf(m[0], (float)s.low_sum,
                                    fmaf(m[W::SCALES - 1], (float)s.high_sum, part));
                }
                sum[j][i] = fmaf(s.d, part, fmaf(s.middle, room.scales.sum[r][u], sum[j][i]));
            }
        }
    }
}

template <int DTYPE> __device__ static void matrix(const cuda_matvec_args &a)
{
    matrix_room<DTYPE> &room = *(matrix_room<DTYPE> *)SHARED_ROOM;
    int tile = blockIdx.x, i = 0;
    for (; tile >= (a.w[i].rows + TILE - 1) / TILE; i++)
        tile -= (a.w[i].rows + TILE - 1) / TILE;
    const matrix_tile t = {
        &a.w[i],   a.y[i], tile * TILE, (int)blockIdx.y * TILE,
        a.columns, a.x,    a.x_stride,  a.w[i].k / (is_float<DTYPE>() ? 16 : 32)};
    float sum[COLUMNS][4] = {};
    for (int unit = 0; unit < t.units; unit += UNITS) {
        load_weights(t, unit, room);
        load_columns(t, unit, room);
        __syncthreads();
        const int end = min(UNITS, t.units - unit);
        for (int u = 0; u < end; u++)
            multiply(room, u, sum);
        __syncthreads();
    }
    const int lane = threadIdx.x % WARP, row = t.row + threadIdx.x / WARP * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int r = row + e / 2 * 8, column = t.column + 8 * j + lane % 4 * 2 + e % 2;
            if (r < t.w->rows && column < t.columns)
                t.y[(int64_t)column * t.w->rows + r] = sum[j][e];
        }
    }
}

/* The shared memory of a type's kernel is what MATRIX_ROOM_MOST has room for. */
#define MATRIX_KERNEL(type)                                                                        \
    static_assert(sizeof(matrix_room<CUDA_##type>) <= MATRIX_ROOM_MOST, "shared memory");          \
    KERNEL(matrix_##type, THREADS, cuda_matvec_args)                                               \
    {                                                                                              \
        matrix<CUDA_##type>(a);                                                                    \
    }

MATRIX_KERNEL(F16)
MATRIX_KERNEL(BF16)
MATRIX_KERNEL(Q4_0)
MATRIX_KERNEL(Q4_1)
MATRIX_KERNEL(Q5_0)
MATRIX_KERNEL(Q5_1)
MATRIX_KERNEL(Q8_0)
MATRIX_KERNEL(Q2_K)
MATRIX_KERNEL(Q3_K)
MATRIX_KERNEL(Q4_K)
MATRIX_KERNEL(Q5_K)
MATRIX_KERNEL(Q6_K)
MATRIX_KERNEL(IQ4_NL)
MATRIX_KERNEL(IQ4_XS)
MATRIX_KERNEL(MXFP4)
