/*
 * columns.cu - products whose weight lies column by column (WEIGHT_COLUMNS,
 * kernels/core/columns.c), so that columns of inputs near 0 are not read: down of an FFN whose
 * neurons are silent.
 *
 * A warp has 256 rows and a block of columns that share their scales, 32 or fewer. Each lane looks
 * at one input; the vote of the lanes is the list of columns to read, four of which are on their
 * way at once: of a column lanes read neighbouring words, 128 bytes of 4-bit integers, and each has
 * 8 rows. The block's sums are multiplied by its scales once. A slice's blocks go to the warps in
 * turn; warps are added in order, then slices. All of that the shape decides, and what is not
 * active would add zeros: a row has the same bits whether they are skipped or not, and whatever its
 * companions, whose active columns are read together.
 *
 * Class f32.
 */
#include "kernels/cuda/cuda_sparse_kernels.h"
#include "kernels/cuda/unpack.cuh"

enum {
    LANE_ROWS = 8, /* as two times four neighbours */
    AHEAD = 4,     /* columns on their way */
};
static_assert(COLUMNS_WARPS * WARP == COLUMNS_ROWS, "a thread finishes a row");
static_assert(COLUMNS_ROWS == WARP * LANE_ROWS, "a warp has all rows of a block");
static_assert((int)COLUMNS_BLOCK == (int)WARP, "a lane an input");

/* The bytes of a word less the offset: behind the exponent of 2^23 a byte is a number already. */
__device__ static void byte_numbers(uint32_t word, float offset, float v[4])
{
    for (int i = 0; i < 4; i++)
        v[i] =
            __uint_as_float(bytes_selected(word, 0x4b000000, 0x7650 + i)) - (8388608.0f + offset);
}

/* ------------------------------------------------------------------ how columns are kept -- */

/* A form says what a lane reads of a column's 256 rows, in which rows its two times four numbers
 * are, and what they are. */
struct form_nibbles {
    static constexpr bool INTEGERS = true;
    typedef uint32_t stored;

    static __device__ int row(int lane, int half)
    {
        const int word = lane % 8;
        return lane / 8 * 64 + word % 4 * 16 + (word / 4 + 2 * half) * 4;
    }
    static __device__ stored load(const uint8_t *column, int first, int lane)
    {
        return __ldg((const uint32_t *)(column + first / 2) + lane);
    }
    static __device__ void numbers(stored s, float offset, float v[LANE_ROWS])
    {
        byte_numbers(s & 0x0f0f0f0f, offset, v);
        byte_numbers(s >> 4 & 0x0f0f0f0f, offset, v + 4);
    }
};

struct form_bytes {
    static constexpr bool INTEGERS = true;
    typedef uint2 stored;

    static __device__ int row(int lane, int half)
    {
        const int word = lane % 8 * 2 + half;
        return lane / 8 * 64 + word % 4 * 16 + word / 4 * 4;
    }
    static __device__ stored load(const uint8_t *column, int first, int lane)
    {
        return __ldg((const uint2 *)(column + first) + lane);
    }
    static __device__ void numbers(const stored &s, float offset, float v[LANE_ROWS])
    {
        byte_numbers(s.x, offset, v);
        byte_numbers(s.y, offset, v + 4);
    }
};

/* Types without blocks: elements in order. */
template <int DTYPE> struct form_floats {
    static constexpr bool INTEGERS = false;
    static constexpr int WORDS = DTYPE == CUDA_F32 ? 2 : 1;
    struct stored {
        uint4 word[WORDS];
    };

    static __device__ int row(int lane, int half)
    {
        return lane * LANE_ROWS + half * 4;
    }
    static __device__ stored load(const uint8_t *column, int first, int lane)
    {
        stored s;
        const uint4 *from = (const uint4 *)column + (first / LANE_ROWS + lane) * WORDS;
        for (int i = 0; i < WORDS; i++)
            s.word[i] = __ldg(from + i);
        return s;
    }
    static __device__ void numbers(const stored &s, float, float v[LANE_ROWS])
    {
        for (int i = 0; i < WORDS; i++) {
            const uint32_t word[4] = {s.word[i].x, s.word[i].y, s.word[i].z, s.word[i].w};
            float_numbers<DTYPE, LANE_ROWS / WORDS>(word, v + 4 * i);
        }
    }
};

/* ------------------------------------------------------------------------------- products - */

/* Where the blocks of a weight are. */
struct columns_head {
    const int *start;
    const uint8_t *data;
    int blocks;

    __device__ columns_head(const cuda_columns &w, bool integers)
    {
        const int *head = (const int *)w.data;
        const int stored = __ldg(head);
        start = head + 1;
        data = w.data + ((stored + 2) * sizeof(int) + 63) / 64 * 64;
        blocks = integers ? stored : (w.k + COLUMNS_BLOCK - 1) / COLUMNS_BLOCK;
    }
};

/* Four scales or minima from a row on. */
__device__ static void scales_of(const cuda_columns &w, const uint8_t *from, int row, float v[4])
{
    if (w.half) {
        const uint2 two = __ldg((const uint2 *)(from + 2 * row));
        v[0] = half_to_float((uint16_t)two.x);
        v[1] = half_to_float((uint16_t)(two.x >> 16));
        v[2] = half_to_float((uint16_t)two.y);
        v[3] = half_to_float((uint16_t)(two.y >> 16));
        return;
    }
    const float4 four = __ldg((const float4 *)(from + 4 * row));
    v[0] = four.x;
    v[1] = four.y;
    v[2] = four.z;
    v[3] = four.w;
}

/* A lane's part of the sums of a slice. */
template <class FORM, int TOKENS> struct columns_sums {
    float sum[TOKENS][LANE_ROWS], block[TOKENS][LANE_ROWS], low[TOKENS];
    float x[TOKENS]; /* the lane's inputs, 0 where they are not active */

    /* Looks at `n` columns from number `begin` on, of tokens from `first` on; which are active for
     * one of them, a bit each. */
    __device__ uint32_t look(const cuda_columns_args &a, int begin, int n, int first)
    {
        const int lane = threadIdx.x % WARP;
        uint32_t list = 0;
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const bool there = lane < n && first + t < a.tokens;
            const float given = there ? a.x[(int64_t)(first + t) * a.w.k + begin + lane] : 0;
            const bool active = there && is_active(given, a.threshold);
            x[t] = active ? given : 0;
            list |= __ballot_sync(0xffffffff, active);
        }
        return list;
    }

    /* Adds the columns of the list; `there`: the lane's rows exist. */
    __device__ void add(const cuda_columns &w, const uint8_t *columns, uint32_t list, int first_row,
                        bool there)
    {
        const int lane = threadIdx.x % WARP;
        while (list) {
            typename FORM::stored v[AHEAD];
            int member[AHEAD];
            const int n = min((int)AHEAD, __popc(list));
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                member[i] = i < n ? __ffs(list) - 1 : member[0]; /* once more, times 0 */
                list &= list - 1;
                v[i] = {};
                if (there)
                    v[i] = FORM::load(columns + member[i] * w.column, first_row, lane);
            }
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                float number[LANE_ROWS];
                FORM::numbers(v[i], (float)w.offset, number);
#pragma unroll
                for (int t = 0; t < TOKENS; t++) {
                    const float shared = __shfl_sync(0xffffffff, x[t], member[i]);
                    const float by = i < n ? shared : 0;
                    low[t] += by;
#pragma unroll
                    for (int r = 0; r < LANE_ROWS; r++)
                        block[t][r] = fmaf(by, number[r], block[t][r]);
                }
            }
        }
    }

    /* The block's sums go to those of the slice. */
    __device__ void scale(const cuda_columns &w, const uint8_t *scales, int first_row, bool there)
    {
        const int lane = threadIdx.x % WARP;
        for (int half = 0; half < 2; half++) {
            float d[4] = {1, 1, 1, 1}, m[4] = {};
            const int row = first_row + FORM::row(lane, half);
            if (FORM::INTEGERS && there)
                scales_of(w, scales, row, d);
            if (FORM::INTEGERS && there && w.has_min)
                scales_of(w, scales + w.scales / 2, row, m);
#pragma unroll
            for (int t = 0; t < TOKENS; t++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float *to = &sum[t][4 * half + i];
                    *to = fmaf(d[i], block[t][4 * half + i], *to);
                    if (FORM::INTEGERS)
                        *to = fmaf(m[i], low[t], *to);
                }
        }
    }

    /* Block b of the weight. */
    __device__ void run(const cuda_columns_args &a, const columns_head &head, int b, int token,
                        int first_row, bool there)
    {
        const int begin = FORM::INTEGERS ? __ldg(head.start + b) : b * COLUMNS_BLOCK;
        const int end =
            FORM::INTEGERS ? __ldg(head.start + b + 1) : min(begin + COLUMNS_BLOCK, a.w.k);
        const uint8_t *at = head.data + begin * a.w.column + (FORM::INTEGERS ? b * a.w.scales : 0);
        const uint32_t list = look(a, begin, end - begin, token);
        if (!list)
            return;
        for (int t = 0; t < TOKENS; t++) {
            low[t] = 0;
            for (int r = 0; r < LANE_ROWS; r++)
                block[t][r] = 0;
        }
        add(a.w, at + a.w.scales, list, first_row, there);
        scale(a.w, at, first_row, there);
    }
};

template <class FORM, int TOKENS> __device__ static void columns(const cuda_columns_args &a)
{
    __shared__ float of_warp[COLUMNS_WARPS][TOKENS][COLUMNS_ROWS];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const int first_row = blockIdx.x * COLUMNS_ROWS, row = first_row + threadIdx.x;
    const int token = blockIdx.z * TOKENS, padded = (a.w.rows + 63) / 64 * 64;
    const bool there = first_row + lane / 8 * 64 < padded;
    const columns_head head(a.w, FORM::INTEGERS);
    float y[TOKENS] = {};
    for (int slice = blockIdx.y; slice < a.slices; slice += gridDim.y) {
        const int begin = (int)((int64_t)head.blocks * slice / a.slices);
        const int end = (int)((int64_t)head.blocks * (slice + 1) / a.slices);
        columns_sums<FORM, TOKENS> own = {};
        for (int b = begin + warp; b < end; b += COLUMNS_WARPS)
            own.run(a, head, b, token, first_row, there);
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
#pragma unroll
            for (int r = 0; r < LANE_ROWS; r++)
                of_warp[warp][t][FORM::row(lane, r / 4) + r % 4] = own.sum[t][r];
        __syncthreads();
        for (int t = 0; t < TOKENS; t++) {
            float sum = 0;
            for (int i = 0; i < COLUMNS_WARPS; i++)
                sum += of_warp[i][t][threadIdx.x];
            y[t] += sum;
            if (a.partial && row < a.w.rows && token + t < a.tokens)
                a.partial[((int64_t)(token + t) * a.slices + slice) * a.w.rows + row] = sum;
        }
        __syncthreads();
    }
    for (int t = 0; t < TOKENS && !a.partial; t++)
        if (row < a.w.rows && token + t < a.tokens)
            a.y[(int64_t)(token + t) * a.w.rows + row] = y[t];
}

KERNEL(columns_merge, ROW_THREADS, cuda_columns_args)
{
    const int row = blockIdx.x * ROW_THREADS + threadIdx.x;
    const int64_t token = blockIdx.y;
    if (row >= a.w.rows)
        return;
    float sum = 0;
    for (int s = 0; s < a.slices; s++)
        sum += a.partial[(token * a.slices + s) * a.w.rows + row];
    a.y[token * a.w.rows + row] = sum;
}

#define COLUMNS_KERNELS(name, form)                                                                \
    KERNEL_CALL(columns_##name, COLUMNS_WARPS *WARP, cuda_columns_args, (columns<form, 1>))        \
    KERNEL_CALL(columns_many_##name, COLUMNS_WARPS *WARP, cuda_columns_args,                       \
                (columns<form, COLUMNS_TOKENS>))

COLUMNS_KERNELS(nibbles, form_nibbles)
COLUMNS_KERNELS(bytes, form_bytes)
COLUMNS_KERNELS(F32, form_floats<CUDA_F32>)
COLUMNS_KERNELS(F16, form_floats<CUDA_F16>)
COLUMNS_KERNELS(BF16, form_floats<CUDA_BF16>)
