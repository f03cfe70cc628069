/*
 * attention_tile.cu - attention where arithmetic is the limit: prefill. Tensor cores multiply 16
 * queries by 8 positions at a time, with an online softmax over pages (Dao 2023,
 * "FlashAttention-2").
 *
 * The queries of a sequence under one KV head are rows: token after token, of each the heads of the
 * group. A block has a tile of rows, a warp 16 of them, and all walk through the pages together: K
 * of the next page is on its way while values are summed, V of this one while scores are. Pages
 * lie in shared memory as they do in the cache, Q8_0 as halves, rows 16 bytes longer, so that the 8
 * rows of a tile of 8 x 8 lie in different banks. Queries (scaled), K, V and weights are halves;
 * the sums, maxima and results are float32.
 *
 * Contexts are summed up in segments of ATTENTION_TILE_SPAN positions, which are merged in their
 * order: by the block, which keeps what it has in the memory of the result meanwhile, or, where few
 * rows would leave most of the GPU idle, by a kernel behind those of a block a segment.
 *
 * Pages and segments begin at multiples of their size, and what a row does not see changes none of
 * its bits: they depend on its query and its context alone, not on tile, step, division or the
 * order of blocks.
 */
#include "kernels/cuda/unpack.cuh"

enum {
    PAGE = 64,          /* positions */
    PAD = 8,            /* halves behind each row in shared memory */
    COLUMNS = PAGE / 8, /* of scores: groups of 8 */
    WARP_ROWS = ATTENTION_TILE_ROWS,
};

/* Weights are 2^WEIGHT_BITS times what they are relative to the maximum, so that small ones are not
 * lost below the least half. Twice as many bits are no infinity either: more cannot come of
 * rounding maximum - WEIGHT_BITS, however large the maximum is. */
constexpr float WEIGHT_BITS = 7, LOG2_E = 1.44269504f;

template <int D> struct tile_room {
    uint16_t k[D][PAGE + PAD], v[PAGE][D + PAD];
};

/* ------------------------------------------------------------------------------- staging - */

/* 16 codes as halves, each times its scale: code + 128 is the mantissa of 1024 + 128 + code. */
__device__ static void stage_codes(uint16_t *to, uint4 codes, const uint32_t scale[8])
{
    const uint32_t word[4] = {codes.x, codes.y, codes.z, codes.w};
    uint32_t out[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t code =
            __byte_perm(word[i / 2] ^ 0x80808080, 0x64646464, i % 2 ? 0x4342 : 0x4140);
        out[i] = scale_halves(code, 0x64806480, scale[i]);
    }
    ((uint4 *)to)[0] = make_uint4(out[0], out[1], out[2], out[3]);
    ((uint4 *)to)[1] = make_uint4(out[4], out[5], out[6], out[7]);
}

/* Of the page's `count` first positions, or a few more. */
template <int DTYPE, int D>
__device__ static void stage_k(const uint8_t *block, int count, tile_room<D> &room)
{
    if constexpr (DTYPE == CUDA_F16) {
        for (int i = threadIdx.x; i < D * (PAGE / 8); i += blockDim.x) {
            const int position = i % (PAGE / 8) * 8;
            copy_16(&room.k[i / (PAGE / 8)][position], block + i * 16, position < count);
        }
    } else {
        const uint4 *scales = (const uint4 *)(block + D * PAGE);
        for (int i = threadIdx.x; i < D * (PAGE / 16); i += blockDim.x) {
            const int dim = i / (PAGE / 16), position = i % (PAGE / 16) * 16;
            const int at = (dim / 32 * PAGE + position) / 8;
            if (position >= count)
                continue;
            const uint4 a = scales[at], b = scales[at + 1];
            const uint32_t scale[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
            stage_codes(&room.k[dim][position], ((const uint4 *)block)[i], scale);
        }
    }
}

/* Zeros behind the first `count` positions: what lies there may be no number, and a weight of zero
 * would not make it one. */
template <int DTYPE, int D>
__device__ static void stage_v(const uint8_t *block, int count, tile_room<D> &room)
{
    if constexpr (DTYPE == CUDA_F16) {
        for (int i = threadIdx.x; i < PAGE * (D / 8); i += blockDim.x) {
            const int position = i / (D / 8);
            copy_16(&room.v[position][i % (D / 8) * 8], block + i * 16, position < count);
        }
    } else {
        const uint16_t *scales = (const uint16_t *)(block + D * PAGE);
        for (int i = threadIdx.x; i < PAGE * (D / 16); i += blockDim.x) {
            const int position = i / (D / 16), dim = i % (D / 16) * 16;
            uint4 codes = make_uint4(0, 0, 0, 0);
            uint32_t scale = 0;
            if (position < count) {
                codes = ((const uint4 *)block)[i];
                scale = scales[dim / 32 * PAGE + position] * 0x10001u;
            }
            const uint32_t all[8] = {scale, scale, scale, scale, scale, scale, scale, scale};
            stage_codes(&room.v[position][dim], codes, all);
        }
    }
}

/* The operands b of two multiplications: rows [row, row + 16) and columns [column, column + 16). */
template <int WIDTH>
__device__ static void load_operands(const uint16_t (*from)[WIDTH], int row, int column,
                                     uint32_t b[4])
{
    const int lane = threadIdx.x % WARP;
    load_tiles(b, &from[row + lane % 16][column + lane / 16 * 8]);
}

/* --------------------------------------------------------------------------------- rows -- */

/* A thread has columns of two rows of its warp: `lane / 4` and 8 behind it. */
template <int D> struct tile_rows {
    uint32_t q[D / 16][4];
    int seen[2]; /* the last position */
    float most[2], sum[2];
    float value[D / 8][4];
};

template <int D>
__device__ static void load_queries(const cuda_attention_args &a, const int64_t at[2],
                                    tile_rows<D> &rows)
{
    const float scale = a.scale * LOG2_E;
#pragma unroll
    for (int i = 0; i < D / 16 * 4; i++) {
        const int column = i / 4 * 16 + i / 2 % 2 * 8 + threadIdx.x % 4 * 2;
        const float2 x = *(const float2 *)(a.q + at[i % 2] * D + column);
        rows.q[i / 4][i % 4] =
            (uint32_t)float_to_finite_half(x.y * scale) << 16 | float_to_finite_half(x.x * scale);
    }
}

template <int D>
__device__ static void page_scores(const tile_rows<D> &rows, const tile_room<D> &room,
                                   float score[COLUMNS][4])
{
#pragma unroll
    for (int j = 0; j < COLUMNS; j += 2) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            score[j][i] = score[j + 1][i] = 0;
#pragma unroll
        for (int k = 0; k < D / 16; k++) {
            uint32_t b[4];
            load_operands(room.k, k * 16, j * 8, b);
            mma_f16(score[j], rows.q[k], b);
            mma_f16(score[j + 1], rows.q[k], b + 2);
        }
    }
}

/* Scores become weights; what was summed up so far becomes relative to the new maximum. */
template <int D>
__device__ static void page_softmax(tile_rows<D> &rows, int first, bool hides,
                                    float score[COLUMNS][4])
{
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = rows.most[r];
#pragma unroll
        for (int i = 0; i < COLUMNS * 2; i++) {
            float &s = score[i / 2][r * 2 + i % 2];
            if (hides && first + i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2 > rows.seen[r])
                s = -INFINITY;
            top = fmaxf(top, s);
        }
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, 2));
        factor[r] = exp2_fast(rows.most[r] - top);
        rows.most[r] = top;
        rows.sum[r] *= factor[r];
#pragma unroll
        for (int i = 0; i < COLUMNS * 2; i++) {
            float &s = score[i / 2][r * 2 + i % 2];
            s = exp2_fast(s - (top - WEIGHT_BITS));
            rows.sum[r] += s;
        }
    }
    if (!__any_sync(0xffffffff, factor[0] != 1 || factor[1] != 1))
        return;
#pragma unroll
    for (int i = 0; i < D / 8 * 4; i++)
        rows.value[i / 4][i % 4] *= factor[i / 2 % 2];
}

/* What a multiplication has of two blocks of results it takes as one operand. */
template <int D>
__device__ static void page_values(tile_rows<D> &rows, const tile_room<D> &room,
                                   const float weight[COLUMNS][4])
{
#pragma unroll
    for (int k = 0; k < PAGE / 16; k++) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *pair = &weight[2 * k + i / 2][i % 2 * 2];
            w[i] = two_halves(pair[0], pair[1]);
        }
#pragma unroll
        for (int j = 0; j < D / 8; j += 2) {
            uint32_t b[4];
            load_operands(room.v, k * 16, j * 8, b);
            mma_f16(rows.value[j], w, b);
            mma_f16(rows.value[j + 1], w, b + 2);
        }
    }
}

/* -------------------------------------------------------------------------------- tiles -- */

/* Rows [first, end) of a sequence, and what they share. */
struct tile {
    const cuda_seq *seq;
    int first, end;
    int kv_head, group;
};

/* The last tiles come first: they have the longest way. False where the grid is larger than the
 * step. */
__device__ static bool find_tile(const cuda_attention_args &a, tile *t)
{
    const int rows = blockDim.x / WARP * WARP_ROWS, block = gridDim.x - 1 - blockIdx.x;
    int number = block / a.layer.kv_heads;
    t->kv_head = block % a.layer.kv_heads;
    t->group = a.heads / a.layer.kv_heads;
    for (int s = 0; s < a.seqs; s++) {
        const int count = a.step.seq[s].query_len * t->group, tiles = (count + rows - 1) / rows;
        if (number < tiles) {
            t->seq = &a.step.seq[s];
            t->first = number * rows;
            t->end = min(t->first + rows, count);
            return true;
        }
        number -= tiles;
    }
    return false;
}

__device__ static int token_of(const tile &t, int row)
{
    return t.seq->query_begin + min(row, t.end - 1) / t.group;
}

/* Where the tile's keys and values are. */
struct tile_cache {
    const int32_t *pages;
    const uint8_t *data;
    uint64_t v_at;
};

/* ---------------------------------------------------------------- values that are no numbers */

/* A weight of zero times infinity is none either: a row must not see it. So where what came of a
 * segment is no number, it is summed up again, such values left out and then added for the rows
 * that see them. */
template <int D> __device__ static bool has_other_than_numbers(const tile_rows<D> &rows, int first)
{
    bool other = false;
#pragma unroll
    for (int i = 0; i < D / 8 * 4; i++)
        other = other ||
                (rows.seen[i / 2 % 2] >= first && !(fabsf(rows.value[i / 4][i % 4]) < INFINITY));
    return other;
}

__device__ static bool is_number(uint16_t half)
{
    return (half & 0x7c00) != 0x7c00;
}

template <int D>
__device__ static void add_other_than_numbers(tile_rows<D> &rows, int first,
                                              const tile_room<D> &room)
{
    for (int p = 0; p < PAGE; p++)
#pragma unroll
        for (int i = 0; i < D / 8 * 4; i++) {
            const uint16_t v = room.v[p][i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2];
            if (!is_number(v) && first + p <= rows.seen[i / 2 % 2])
                rows.value[i / 4][i % 4] += half_to_float(v);
        }
}

template <int D> __device__ static void leave_numbers(tile_room<D> &room)
{
    for (int i = threadIdx.x; i < PAGE * D; i += blockDim.x)
        if (!is_number(room.v[i / D][i % D]))
            room.v[i / D][i % D] = 0;
}

/* ------------------------------------------------------------------------------ segments -- */

/* The block walks through positions [begin, end); its warp's last row sees `last`, its first row
 * all up to `hidden`. */
template <int DTYPE, int D>
__device__ static void sum_pages(const tile_cache &c, int begin, int end, int hidden, int last,
                                 bool numbers_only, tile_rows<D> &rows, tile_room<D> &room)
{
    for (int r = 0; r < 2; r++) {
        rows.most[r] = -INFINITY;
        rows.sum[r] = 0;
    }
#pragma unroll
    for (int i = 0; i < D / 8 * 4; i++)
        rows.value[i / 4][i % 4] = 0;
    __syncthreads(); /* nobody reads what was before */
    stage_k<DTYPE>(c.data + c.pages[begin / PAGE] * 2 * c.v_at, end - begin, room);
    for (int first = begin; first < end; first += PAGE) {
        const bool sees = first <= last;
        float score[COLUMNS][4];
        copies_wait();
        __syncthreads(); /* K is there, nobody reads V any more */
        stage_v<DTYPE>(c.data + (c.pages[first / PAGE] * 2 + 1) * c.v_at, end - first, room);
        if (sees)
            page_scores(rows, room, score);
        copies_wait();
        __syncthreads(); /* V is there, nobody reads K any more */
        if (first + PAGE < end)
            stage_k<DTYPE>(c.data + c.pages[first / PAGE + 1] * 2 * c.v_at, end - first - PAGE,
                           room);
        if (sees)
            page_softmax(rows, first, first + PAGE - 1 > hidden, score);
        if (numbers_only) {
            add_other_than_numbers(rows, first, room);
            __syncthreads();
            leave_numbers(room);
            __syncthreads();
        }
        if (sees)
            page_values(rows, room, score);
    }
}

/* What was summed up of a row's segments so far. The values are multiplied by `before`, those of
 * the next segment by `now`, and added; of the first segment they are taken as they are. */
struct tile_total {
    float most, sum, before, now;
};

__device__ static void add_segment(tile_total &t, int segment, float most, float sum)
{
    if (!segment) {
        t.most = most;
        t.sum = sum;
        return;
    }
    const float top = fmaxf(t.most, most);
    t.before = exp2_fast(t.most - top);
    t.now = exp2_fast(most - top);
    t.sum = t.sum * t.before + sum * t.now;
    t.most = top;
}

/* What a row's values are multiplied by: its sink, a score like any other, joins the sum. */
__device__ static float tile_share(const cuda_attention_args &a, int64_t row, const tile_total &t)
{
    if (!a.sinks)
        return 1 / t.sum;
    return 1 / (t.sum + exp2_fast(a.sinks[row % a.heads] * LOG2_E - (t.most - WEIGHT_BITS)));
}

/* Rows that do not see the segment, and those behind the last, leave nothing. */
template <int D>
__device__ static void write_segment(const cuda_attention_args &a, const tile_rows<D> &rows,
                                     const int64_t at[2], const bool mine[2], int segment,
                                     tile_total total[2])
{
    const int column = threadIdx.x % 4 * 2, begin = segment * ATTENTION_TILE_SPAN;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = rows.sum[r];
        sum += __shfl_xor_sync(0xffffffff, sum, 1);
        sum += __shfl_xor_sync(0xffffffff, sum, 2);
        if (!mine[r] || rows.seen[r] < begin)
            continue;
        float *y = a.y + at[r] * D + column, share = 1;
        if (a.partial) {
            y = a.partial + (at[r] * a.segments + segment) * (2 + D);
            if (column == 0)
                *(float2 *)y = make_float2(rows.most[r], sum);
            y += 2 + column;
        } else {
            add_segment(total[r], segment, rows.most[r], sum);
            if (rows.seen[r] < begin + ATTENTION_TILE_SPAN)
                share = tile_share(a, at[r], total[r]);
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            float2 v = make_float2(rows.value[j][2 * r], rows.value[j][2 * r + 1]);
            if (!a.partial && segment) {
                const float2 old = *(const float2 *)(y + 8 * j);
                v.x = old.x * total[r].before + v.x * total[r].now;
                v.y = old.y * total[r].before + v.y * total[r].now;
            }
            *(float2 *)(y + 8 * j) = make_float2(v.x * share, v.y * share);
        }
    }
}

template <int DTYPE, int D> __device__ static void attention_tile(const cuda_attention_args &a)
{
    tile_room<D> &room = *(tile_room<D> *)SHARED_ROOM;
    tile t;
    if (!find_tile(a, &t))
        return;
    const int warp = t.first + threadIdx.x / WARP * WARP_ROWS; /* its first row */
    const int hidden = a.step.token_position[token_of(t, warp)];
    const int last = a.step.token_position[token_of(t, warp + WARP_ROWS - 1)];
    const int positions = a.step.token_position[token_of(t, t.end - 1)] + 1;
    tile_rows<D> rows = {};
    tile_total total[2] = {};
    int64_t at[2];
    bool mine[2];
    for (int r = 0; r < 2; r++) { /* rows behind the last are as the last */
        const int row = warp + threadIdx.x % WARP / 4 + 8 * r, same = min(row, t.end - 1);
        const int token = token_of(t, same);
        mine[r] = row < t.end;
        at[r] = (int64_t)token * a.heads + t.kv_head * t.group + same % t.group;
        rows.seen[r] = a.step.token_position[token];
    }
    load_queries(a, at, rows);

    const tile_cache cache = {a.step.pages + t.seq->pages_at[a.layer.window],
                              a.layer.data + t.kv_head * a.layer.block_bytes,
                              a.layer.kv_heads * a.layer.block_bytes};
    const int from = a.partial ? blockIdx.y : 0, segments = a.partial ? from + 1 : INT32_MAX;
    for (int s = from; s < segments && s * ATTENTION_TILE_SPAN < positions; s++) {
        const int begin = s * ATTENTION_TILE_SPAN;
        const int end = min(begin + (int)ATTENTION_TILE_SPAN, positions);
        for (bool again = false;; again = true) {
            sum_pages<DTYPE>(cache, begin, end, hidden, last, again, rows, room);
            if (again || !__syncthreads_or(has_other_than_numbers(rows, begin)))
                break;
        }
        write_segment(a, rows, at, mine, s, total);
    }
}

/* grid: (heads, tokens); one warp */
KERNEL(attention_tile_merge, WARP, cuda_attention_args)
{
    const int64_t t = blockIdx.y, row = t * a.heads + blockIdx.x;
    const int d = a.layer.head_dim;
    const int segments = a.step.token_position[t] / ATTENTION_TILE_SPAN + 1;
    for (int e = threadIdx.x; e < d; e += WARP) {
        const float *part = a.partial + row * a.segments * (2 + d);
        tile_total total = {};
        float value = 0;
        for (int s = 0; s < segments; s++, part += 2 + d) {
            add_segment(total, s, part[0], part[1]);
            value = s ? value * total.before + part[2 + e] * total.now : part[2 + e];
        }
        a.y[row * d + e] = value * tile_share(a, row, total);
    }
}

#define TILE_KERNEL(type, dims)                                                                    \
    static_assert(sizeof(tile_room<dims>) == ATTENTION_TILE_SHARED(dims), "shared memory");        \
    KERNEL_CALL(attention_tile_##type##_##dims, ATTENTION_TILE_WARPS *WARP, cuda_attention_args,   \
                attention_tile<CUDA_##type, dims>)

TILE_KERNEL(F16, 64)
TILE_KERNEL(F16, 96)
TILE_KERNEL(F16, 128)
TILE_KERNEL(Q8_0, 64)
TILE_KERNEL(Q8_0, 96)
TILE_KERNEL(Q8_0, 128)
