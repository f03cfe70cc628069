/*
 * matrix.cu - products with many columns, where arithmetic is the limit: prefill. Tensor cores
 * multiply 16 rows by 8 columns over 32 bytes of k at a time: 32 signed bytes, or 16 elements of
 * F16 or BF16.
 *
 * A block computes TILE x TILE results, a warp 16 rows of them. It goes through k in chunks of
 * CHUNK bytes of a row: its threads unpack the weights of a chunk to bytes in shared memory, with
 * what scales each 32 of them, and copy the packed columns beside them. There are two such rooms:
 * while one is multiplied, the next chunk is on its way, columns to the other one and weights to
 * registers. A row of a chunk is 16 bytes longer than its data, so that the 8 rows that a load of
 * fragments touches lie in different banks. Integer sums of 32 products are exact; scaled, they are
 * added in rising order of k, so a result's bits depend on its row and column alone.
 *
 * Columns may be neighbours, or those that a list says: of a mixture of experts the columns that
 * chose an expert are multiplied together, so that its weights are unpacked once for 64 of them
 * and not for each.
 */
#include "kernels/cuda/unpack.cuh"

enum {
    TILE = MATRIX_TILE,
    THREADS = MATRIX_THREADS,
    CHUNK = 128,
    UNITS = CHUNK / 32,             /* of a chunk's row: what one multiplication takes */
    STRIDE = CHUNK + 16,            /* bytes from one row of a chunk to the next */
    COLUMNS = TILE / 8,             /* of a warp: groups of 8 */
    SHARE = TILE * UNITS / THREADS, /* units of a chunk's weights that a thread brings, */
    APART = THREADS / UNITS,        /* so many rows apart */
    SIDES = THREADS / TILE,         /* threads that bring a column */
};

/* The columns of a float type, 32 elements a warp. */
template <int DTYPE> __device__ static void pack_float(const cuda_pack_args &a)
{
    const int i = blockIdx.x * PACK_WARPS * WARP + threadIdx.x;
    if (i >= a.k)
        return;
    const float x = a.x[(int64_t)blockIdx.y * a.k + i];
    uint16_t *out = (uint16_t *)(a.out + blockIdx.y * a.stride);
    out[i] = DTYPE == CUDA_F16 ? float_to_finite_half(x * CUDA_HALF_DOWN) : float_to_bf16(x);
}

/* What a library takes that knows nothing of blocks. A thread writes a quarter of a block, 16 bytes
 * beside its neighbour's. */
template <int DTYPE> __device__ static void halves(const cuda_halves_args &a)
{
    typedef weight_block<DTYPE> W;
    const int64_t i = (int64_t)blockIdx.x * HALVES_THREADS + threadIdx.x;
    const int64_t block = i / (32 / HALVES_OF_THREAD), quarters = a.w.k / HALVES_OF_THREAD;
    const int part = (int)(i % (32 / HALVES_OF_THREAD));
    if (i >= a.rows * quarters)
        return;
    const block_weights<DTYPE> v(a.w, a.first * (a.w.k / 32) + block);
    const bool second = W::SCALES == 2 && part >= 2;
    const float scale = second ? v.d[W::SCALES - 1] : v.d[0];
    const float least = !W::HAS_MIN ? 0.0f : second ? v.m[W::SCALES - 1] : v.m[0];
    uint32_t out[4];
#pragma unroll
    for (int word = 0; word < 4; word++) {
        const int low = part & 1 ? v.q[2 + word / 2] : v.q[word / 2];
        const int high = part & 1 ? v.q[6 + word / 2] : v.q[4 + word / 2];
        const int codes = (part & 2 ? high : low) >> word % 2 * 16;
        out[word] = two_halves((float)(int8_t)codes * scale + least,
                               (float)(int8_t)(codes >> 8) * scale + least);
    }
    ((uint4 *)a.out)[i] = make_uint4(out[0], out[1], out[2], out[3]);
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
    cuda_pack_sums x_sums[W::HAS_MIN ? TILE : 1][UNITS];
};
template <> struct chunk_scales<CUDA_F16> {
};
template <> struct chunk_scales<CUDA_BF16> {
};

template <int DTYPE> struct alignas(16) matrix_room {
    uint8_t w[TILE][STRIDE], x[TILE][STRIDE];
    chunk_scales<DTYPE> scales;
};

/* What a thread brings of a chunk's weights. */
template <int DTYPE> struct some_weights {
    stored_block<DTYPE> block[SHARE];
};
struct some_elements {
    int4 data[SHARE][2];
};
template <> struct some_weights<CUDA_F16> : some_elements {
};
template <> struct some_weights<CUDA_BF16> : some_elements {
};

/* TILE rows, of row `row` on, of a product with the `rows` rows of w that begin at `first`. */
struct matrix_tile {
    const cuda_matrix *w;
    float *y;
    const int32_t
        &rows; /* of the kernel's argument: read where it is needed, it takes no register */
    int first, row;
    const uint8_t *x;
    uint64_t x_stride;
    int units; /* of a row of k */
};

/* A tile's columns: the c-th is row from(c) of x and, if it has one, goes to row to(c) of y; groups
 * of 8 behind the first `here` are left out. Of most tiles all are there, so that no multiplication
 * asks. */
struct near_columns {
    int first, all;

    static __device__ constexpr int here()
    {
        return TILE;
    }
    __device__ int from(int c) const
    {
        return min(first + c, all - 1);
    }
    __device__ bool has(int c) const
    {
        return first + c < all;
    }
    __device__ int to(int c) const
    {
        return first + c;
    }
};

/* The last ones, fewer than TILE: a prompt of 17 has 24 multiplied. */
struct last_columns : near_columns {
    __device__ int here() const
    {
        return all - first;
    }
};

struct listed_columns {
    const cuda_expert_column *list;
    int n;

    __device__ int here() const
    {
        return n;
    }
    __device__ int from(int c) const
    {
        return list[min(c, n - 1)].from;
    }
    __device__ bool has(int c) const
    {
        return c < n;
    }
    __device__ int to(int c) const
    {
        return list[min(c, n - 1)].to;
    }
};

/* Rows and columns behind the last are read as if they were the last; nobody writes them. */
template <int DTYPE>
__device__ static void load_weights(const matrix_tile &t, int unit, some_weights<DTYPE> &v)
{
    const int u = unit + threadIdx.x % UNITS;
    if (u >= t.units)
        return;
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int row = min(t.row + (int)threadIdx.x / UNITS + i * APART, t.rows - 1);
        const int64_t block = (int64_t)(t.first + row) * t.units + u;
        if constexpr (is_float<DTYPE>()) {
            const int4 *from = (const int4 *)(t.w->plane[0] + block * 32);
            v.data[i][0] = from[0];
            v.data[i][1] = from[1];
        } else {
            v.block[i].load(*t.w, block);
        }
    }
}

template <int DTYPE>
__device__ static void store_weights(const matrix_tile &t, int unit, const some_weights<DTYPE> &v,
                                     matrix_room<DTYPE> &room)
{
    const int u = threadIdx.x % UNITS;
    if (unit + u >= t.units)
        return;
#pragma unroll
    for (int i = 0; i < SHARE; i++) {
        const int row = threadIdx.x / UNITS + i * APART;
        int4 *to = (int4 *)&room.w[row][u * 32];
        if constexpr (is_float<DTYPE>()) {
            to[0] = v.data[i][0];
            to[1] = v.data[i][1];
        } else {
            typedef weight_block<DTYPE> W;
            const block_weights<DTYPE> b(v.block[i]);
            room.scales.sum[row][u] = b.sum();
            to[0] = make_int4(b.q[0], b.q[1], b.q[2], b.q[3]);
            to[1] = make_int4(b.q[4], b.q[5], b.q[6], b.q[7]);
            for (int s = 0; s < W::SCALES; s++) {
                room.scales.d[row][u][s] = b.d[s];
                if (W::HAS_MIN)
                    room.scales.m[row][u][s] = b.m[s];
            }
        }
    }
}

/* Begins to copy a thread's side of its column, which is row `x`, 16 bytes at a time: bytes, then
 * the scales of two units, then the sums of four. Behind the last of a row there is room. */
template <int DTYPE>
__device__ static void copy_columns(const matrix_tile &t, const uint8_t *x, int unit,
                                    matrix_room<DTYPE> &room)
{
    const int column = threadIdx.x / SIDES, side = threadIdx.x % SIDES;
    const int units = min((int)UNITS, t.units - unit);
    for (int i = side; i < units * 2; i += SIDES)
        copy_16(&room.x[column][i * 16], x + unit * 32 + i * 16, true);
    if constexpr (!is_float<DTYPE>()) {
        const int two = side * 2, k = t.w->k;
        static_assert(UNITS == 4 && SIDES == 2, "how a column is divided");
        if (two < units)
            copy_16(room.scales.x[column] + two, x + k + (unit + two) * sizeof(cuda_pack_scale),
                    true);
        if (weight_block<DTYPE>::HAS_MIN && side == 0)
            copy_16(room.scales.x_sums[column],
                    x + CUDA_PACK_SUMS_AT(k) + unit * sizeof(cuda_pack_sums), true);
    }
}

/* Unit u of the chunk: a warp's 16 rows times `n` columns, added to sum. */
template <int DTYPE>
__device__ static void multiply(const matrix_room<DTYPE> &room, int n, int u, float sum[COLUMNS][4])
{
    const int lane = threadIdx.x % WARP, group = lane / 4, byte = u * 32 + lane % 4 * 4;
    const int row = threadIdx.x / WARP * 16 + group;
    uint32_t w[4];
    for (int i = 0; i < 4; i++)
        w[i] = *(const uint32_t *)&room.w[row + i % 2 * 8][byte + i / 2 * 16];
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        if (8 * j >= n)
            break;
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
                const int c = 8 * j + lane % 4 * 2 + i % 2;
                const packed_scale s(&room.scales.x[c][u],
                                     &room.scales.x_sums[W::HAS_MIN ? c : 0][u], W::HAS_MIN);
                sum[j][i] = add_block<DTYPE>(sum[j][i], room.scales.d[r][u],
                                             room.scales.m[r][W::HAS_MIN ? u : 0],
                                             room.scales.sum[r][u], low[i], high[i], s);
            }
        }
    }
}

template <int DTYPE, class LIST>
__device__ static void multiply_tile(const matrix_tile &t, const LIST &columns)
{
    matrix_room<DTYPE> *room = (matrix_room<DTYPE> *)SHARED_ROOM; /* two */
    some_weights<DTYPE> next;
    float sum[COLUMNS][4] = {};
    const int column = threadIdx.x / SIDES; /* whole groups of 8 are multiplied together */
    const bool copies = column < (columns.here() + 7) / 8 * 8;
    const uint8_t *x = t.x + columns.from(column) * t.x_stride;
    load_weights(t, 0, next);
    store_weights(t, 0, next, room[0]);
    if (copies)
        copy_columns(t, x, 0, room[0]);
    for (int unit = 0, now = 0; unit < t.units; unit += UNITS, now ^= 1) {
        const int behind = unit + UNITS;
        copies_wait();
        __syncthreads(); /* this chunk is here, and nobody reads the one before any more */
        if (behind < t.units) {
            load_weights(t, behind, next);
            if (copies)
                copy_columns(t, x, behind, room[now ^ 1]);
        }
        const int end = min((int)UNITS, t.units - unit);
        for (int u = 0; u < end; u++)
            multiply(room[now], columns.here(), u, sum);
        if (behind < t.units)
            store_weights(t, behind, next, room[now ^ 1]);
    }
    const int lane = threadIdx.x % WARP, row = t.row + threadIdx.x / WARP * 16 + lane / 4;
    const float up = DTYPE == CUDA_F16 ? CUDA_HALF_UP : 1.0f;
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int c = 8 * j + lane % 4 * 2 + e;
            float *y = t.y + (int64_t)columns.to(c) * t.rows + row;
            if (columns.has(c) && row < t.rows)
                y[0] = sum[j][e] * up;
            if (columns.has(c) && row + 8 < t.rows)
                y[8] = sum[j][e + 2] * up;
        }
    }
}

template <int DTYPE> __device__ static int units_of(const cuda_matrix &w)
{
    return w.k / (is_float<DTYPE>() ? 16 : 32);
}

template <int DTYPE> __device__ static void matrix(const cuda_matvec_args &a)
{
    int tile = blockIdx.x;
    const int i = matrix_of_tile(a, TILE, &tile);
    const matrix_tile t = {&a.w[i],     a.y[i], a.w[i].rows, 0,
                           tile * TILE, a.x,    a.x_stride,  units_of<DTYPE>(a.w[i])};
    const near_columns columns = {(int)blockIdx.y * TILE, a.columns};
    if (columns.first + TILE <= columns.all)
        multiply_tile<DTYPE>(t, columns);
    else
        multiply_tile<DTYPE>(t, last_columns{columns});
}

/* Few experts that many tokens chose have fewer tiles than there is room for: the rest of the
 * blocks leave at once. */
template <int DTYPE> __device__ static void matrix_experts(const cuda_grouped_args &a)
{
    const cuda_expert_tile tile = a.tile[blockIdx.y];
    if (!tile.columns)
        return;
    const int tiles = (a.n + TILE - 1) / TILE, i = blockIdx.x / tiles;
    const matrix_tile t = {&a.w[i],
                           a.y[i],
                           a.n,
                           tile.expert * a.rows.each + i * a.rows.up,
                           (int)blockIdx.x % tiles * TILE,
                           a.x,
                           a.x_stride,
                           units_of<DTYPE>(a.w[i])};
    multiply_tile<DTYPE>(t, listed_columns{a.column + tile.first, tile.columns});
}

/* The kernels of a type. Their shared memory is what MATRIX_ROOM_MOST has room for. */
#define MATRIX_KERNELS(type, ...)                                                                  \
    static_assert(2 * sizeof(matrix_room<CUDA_##type>) <= MATRIX_ROOM_MOST, "shared memory");      \
    KERNEL_CALL(matrix_##type, THREADS, cuda_matvec_args, matrix<CUDA_##type>)                     \
    KERNEL_CALL(matrix_experts_##type, THREADS, cuda_grouped_args, matrix_experts<CUDA_##type>)

#define MATRIX_KERNELS_OF_HALVES(type)                                                             \
    MATRIX_KERNELS(type, )                                                                         \
    KERNEL_CALL(pack_##type, PACK_WARPS *WARP, cuda_pack_args, pack_float<CUDA_##type>)

#define MATRIX_KERNELS_OF_BLOCKS(type, ...)                                                        \
    MATRIX_KERNELS(type, )                                                                         \
    KERNEL_CALL(halves_##type, HALVES_THREADS, cuda_halves_args, halves<CUDA_##type>)

MATRIX_KERNELS_OF_HALVES(F16)
MATRIX_KERNELS_OF_HALVES(BF16)
BLOCK_TYPES(MATRIX_KERNELS_OF_BLOCKS)
