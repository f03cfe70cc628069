/*
 * rows.cu - what is computed row by row: norms, sums, gates, merges, lookups, rotary positions, the
 * KV cache's stores and copies. All of it reads and writes a row once: in decode it takes as long
 * as a launch and the loads that wait for each other.
 */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/unpack.cuh"

/* The sum over a block, in the same order on every run; every thread has it. */
__device__ static float block_sum(float v)
{
    enum { WARPS = NORM_THREADS / WARP };
    __shared__ float of_warp[WARPS];
    v = warp_sum(v);
    if (threadIdx.x % WARP == 0)
        of_warp[threadIdx.x / WARP] = v;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++)
        sum += of_warp[i];
    return sum;
}

/* A thread's neighbouring elements [i, i + 4) of a row of n; zeros where it has none. */
struct norm_vector {
    float x[NORM_VECTOR];
};

__device__ static norm_vector norm_load(const float *row, int i, int n)
{
    norm_vector v = {};
    if (n % NORM_VECTOR == 0 && i < n) {
        const float4 x = *(const float4 *)(row + i);
        v = {x.x, x.y, x.z, x.w};
    }
    for (int e = 0; n % NORM_VECTOR && e < NORM_VECTOR && i + e < n; e++)
        v.x[e] = row[i + e];
    return v;
}

__device__ static void norm_store(float *row, int i, int n, const norm_vector &v)
{
    if (n % NORM_VECTOR == 0 && i < n)
        *(float4 *)(row + i) = {v.x[0], v.x[1], v.x[2], v.x[3]};
    for (int e = 0; n % NORM_VECTOR && e < NORM_VECTOR && i + e < n; e++)
        row[i + e] = v.x[e];
}

/* The elements that are normed: of one row, or of the sum of two. */
__device__ static norm_vector norm_input(const cuda_norm_args &a, int64_t at, int i)
{
    norm_vector v = norm_load(a.a + at, i, a.n);
    if (a.b) {
        const norm_vector b = norm_load(a.b + at, i, a.n);
        for (int e = 0; e < NORM_VECTOR; e++)
            v.x[e] += b.x[e];
    }
    return v;
}

/* Elements [i, i + 4) of the result; all lanes of a warp come here. */
__device__ static void norm_write(const cuda_norm_args &a, int64_t row, int i, const norm_vector &x,
                                  const norm_vector &w, float scale)
{
    norm_vector y;
    for (int e = 0; e < NORM_VECTOR; e++)
        y.x[e] = x.x[e] * scale * w.x[e];
    norm_store(a.y + row * a.n, i, a.n, y);
    if (a.packed)
        pack_four(y.x, a.packed + row * a.packed_stride, a.n, i);
}

/* What a thread needs of a row is on its way at once, as far as registers hold it; of longer rows
 * the rest is read twice. */
KERNEL(rms_norm, NORM_THREADS, cuda_norm_args)
{
    enum { STEP = NORM_THREADS * NORM_VECTOR };
    const int64_t row = blockIdx.x, at = row * a.n;
    const int first = threadIdx.x * NORM_VECTOR;
    norm_vector x[NORM_KEPT], w[NORM_KEPT];
#pragma unroll
    for (int c = 0; c < NORM_KEPT; c++) {
        x[c] = norm_input(a, at, first + c * STEP);
        w[c] = norm_load(a.w, first + c * STEP, a.n);
    }
    float squares = 0;
#pragma unroll
    for (int c = 0; c < NORM_KEPT; c++) {
        for (int e = 0; e < NORM_VECTOR; e++)
            squares = fmaf(x[c].x[e], x[c].x[e], squares);
        if (a.b)
            norm_store(a.sum + at, first + c * STEP, a.n, x[c]);
    }
    for (int i = first + NORM_KEPT * STEP; i < a.n; i += STEP) {
        const norm_vector v = norm_input(a, at, i);
        for (int e = 0; e < NORM_VECTOR; e++)
            squares = fmaf(v.x[e], v.x[e], squares);
        if (a.b)
            norm_store(a.sum + at, i, a.n, v);
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / (float)a.n + a.eps);
#pragma unroll
    for (int c = 0; c < NORM_KEPT; c++)
        if (c * STEP < a.n)
            norm_write(a, row, first + c * STEP, x[c], w[c], scale);
    const float *again = a.b ? a.sum : a.a;
    for (int i = first; i - first + NORM_KEPT * STEP < a.n; i += STEP) {
        const int rest = i + NORM_KEPT * STEP;
        norm_write(a, row, rest, norm_load(again + at, rest, a.n), norm_load(a.w, rest, a.n),
                   scale);
    }
}

/* x - mean of elements [i, i + 4), zeros behind the row. */
__device__ static norm_vector norm_deviation(const norm_vector &x, float mean, int i, int n)
{
    norm_vector v;
    for (int e = 0; e < NORM_VECTOR; e++)
        v.x[e] = i + e < n ? x.x[e] - mean : 0;
    return v;
}

/* rms_norm with flags: a block reads its row, which stays in its caches, once for each sum and once
 * for the result. */
KERNEL(layer_norm, NORM_THREADS, cuda_norm_args)
{
    enum { STEP = NORM_THREADS * NORM_VECTOR };
    const int64_t row = blockIdx.x, at = row * a.n;
    const int first = threadIdx.x * NORM_VECTOR;
    const float *x = a.b ? a.sum : a.a;
    float sum = 0, squares = 0;
    for (int i = first; a.b && i < a.n; i += STEP)
        norm_store(a.sum + at, i, a.n, norm_input(a, at, i));
    for (int i = first; a.norm & NORM_CENTRED && i < a.n; i += STEP) {
        const norm_vector v = norm_load(x + at, i, a.n);
        for (int e = 0; e < NORM_VECTOR; e++)
            sum += v.x[e];
    }
    const float mean = a.norm & NORM_CENTRED ? block_sum(sum) / (float)a.n : 0;
    __syncthreads(); /* all have the sum: its memory is free */
    for (int i = first; i < a.n; i += STEP) {
        const norm_vector v = norm_deviation(norm_load(x + at, i, a.n), mean, i, a.n);
        for (int e = 0; e < NORM_VECTOR; e++)
            squares = fmaf(v.x[e], v.x[e], squares);
    }
    const float scale = 1.0f / sqrtf(block_sum(squares) / (float)a.n + a.eps);
    for (int i = first; i - first < a.n; i += STEP) { /* all lanes of a warp: norm_write packs */
        norm_vector v = norm_deviation(norm_load(x + at, i, a.n), mean, i, a.n), w = {}, bias = {};
        if (a.w)
            w = norm_load(a.w, i, a.n);
        if (a.bias)
            bias = norm_load(a.bias, i, a.n);
        for (int e = 0; e < NORM_VECTOR; e++)
            v.x[e] = v.x[e] * scale * (a.w ? w.x[e] : 1) + bias.x[e];
        norm_store(a.y + row * a.n, i, a.n, v);
        if (a.packed)
            pack_four(v.x, a.packed + row * a.packed_stride, a.n, i);
    }
}

/* A warp a head. */
KERNEL(head_norm, ROW_THREADS, cuda_norm_args)
{
    const int lane = threadIdx.x % WARP;
    for (int h = threadIdx.x / WARP; h < a.heads; h += ROW_THREADS / WARP) {
        const int64_t at = ((int64_t)blockIdx.x * a.heads + h) * a.n;
        const float *w = a.w && a.norm & NORM_OWN_HEADS ? a.w + h * a.n : a.w;
        const bool gains = a.norm & NORM_HEAD_GAINS;
        float sum = 0, squares = 0;
        for (int i = lane; a.norm & NORM_CENTRED && i < a.n; i += WARP)
            sum += a.a[at + i];
        const float mean = a.norm & NORM_CENTRED ? warp_sum(sum) / (float)a.n : 0;
        for (int i = lane; i < a.n; i += WARP)
            squares = fmaf(a.a[at + i] - mean, a.a[at + i] - mean, squares);
        const float scale = 1.0f / sqrtf(warp_sum(squares) / (float)a.n + a.eps);
        for (int i = lane; i < a.n; i += WARP)
            a.y[at + i] = (a.a[at + i] - mean) * scale * (gains ? w[h] : w ? w[i] : 1);
    }
}

KERNEL(pairwise, ROW_THREADS, cuda_pairwise_args)
{
    const int i = blockIdx.x * ROW_THREADS + threadIdx.x;
    const int64_t at = (int64_t)blockIdx.y * a.n + i;
    if (i >= a.n)
        return;
    const float x = a.a[at];
    switch (a.what) {
    case PAIRWISE_ADD: a.y[at] = x + a.b[at]; break;
    case PAIRWISE_BIAS: a.y[at] = x + a.b[i]; break;
    case PAIRWISE_DIVIDE: a.y[at] = x / a.b[i]; break;
    case PAIRWISE_SCALE: a.y[at] = x * (a.b ? a.b[0] : a.factor); break;
    case PAIRWISE_SPREAD:
        a.y[at] = gated(a.activation, a.factor,
                        a.b[(int64_t)blockIdx.y * (a.n / a.wide) + i / a.wide], x);
        break;
    default:
        a.y[at] = a.skips && !is_active(gated(a.activation, a.factor, x, 1), a.threshold)
                      ? 0
                      : gated(a.activation, a.factor, x, a.b ? a.b[at] : 1);
    }
}

KERNEL(temper, ROW_THREADS, cuda_temper_args)
{
    const int i = blockIdx.x * ROW_THREADS + threadIdx.x;
    const float position = (float)a.step.token_position[blockIdx.y];
    const float steps = floorf((position + a.temperature_offset) / a.temperature_step);
    const float factor = a.scale * (1 + a.temperature * logf(steps + 1));
    if (i < a.n)
        a.y[(int64_t)blockIdx.y * a.n + i] = a.x[(int64_t)blockIdx.y * a.n + i] * factor;
}

KERNEL(merge, ROW_THREADS, cuda_merge_args)
{
    int i = blockIdx.x * ROW_THREADS + threadIdx.x;
    const int64_t row = blockIdx.y, at = row * a.n + i;
    if (i >= a.n)
        return;
    if (a.sums) {
        float sum = a.x[0][at];
        for (int p = 1; p < a.n_in; p++)
            sum += a.x[p][at];
        a.y[at] = sum;
        return;
    }
    int p = 0;
    for (; i >= a.width[p]; p++)
        i -= a.width[p];
    a.y[at] = a.x[p][row * a.width[p] + i];
}

KERNEL(select_rows, ROW_THREADS, cuda_select_args)
{
    const int i = blockIdx.x * ROW_THREADS + threadIdx.x;
    if (i < a.n)
        a.y[(int64_t)blockIdx.y * a.n + i] = a.x[(int64_t)a.step.row[blockIdx.y] * a.n + i];
}

/* ---------------------------------------------------------------------------- embedding --- */

template <int DTYPE>
__device__ static void embed_block(const cuda_embed_args &a, int64_t block, float *y)
{
    typedef weight_block<DTYPE> W;
    const block_weights<DTYPE> v(a.w, block);
    for (int i = 0; i < 32; i++) {
        const float code = (float)(int8_t)(v.q[i / 4] >> i % 4 * 8);
        const int s = i / 16 * (W::SCALES - 1);
        y[i] = v.d[s] * code + (W::HAS_MIN ? v.m[s] : 0.0f);
    }
}

__device__ static float embed_float(const cuda_matrix &w, int64_t i)
{
    const uint16_t *half = (const uint16_t *)w.plane[0];
    switch (w.dtype) {
    case CUDA_F16: return half_to_float(half[i]);
    case CUDA_BF16: return bf16_to_float(half[i]);
    }
    return ((const float *)w.plane[0])[i];
}

/* A block of 32 elements a thread, of 1 for types without blocks. */
KERNEL(embed, ROW_THREADS, cuda_embed_args)
{
    const int i = blockIdx.x * ROW_THREADS + threadIdx.x;
    const int64_t row = a.rows_by_position ? min(a.step.token_position[blockIdx.y] + a.row_offset,
                                                 a.rows_by_position - 1)
                                           : a.step.token_id[blockIdx.y];
    float *y = a.y + (int64_t)blockIdx.y * a.w.k;
    const float scale = a.scale != 0 ? a.scale : 1;
    if (a.w.dtype == CUDA_F32 || a.w.dtype == CUDA_F16 || a.w.dtype == CUDA_BF16) {
        if (i < a.w.k)
            y[i] = embed_float(a.w, row * a.w.k + i) * scale;
        return;
    }
    if (i >= a.w.k / 32)
        return;
    const int64_t at = row * (a.w.k / 32) + i;
    y += i * 32;
#define EMBED(type, ...)                                                                           \
    case CUDA_##type: embed_block<CUDA_##type>(a, at, y); break;
    switch (a.w.dtype) {
        BLOCK_TYPES(EMBED)
    }
#undef EMBED
    for (int e = 0; a.scale != 0 && e < 32; e++)
        y[e] *= scale;
}

/* ------------------------------------------------------------------------------ positions - */

/* Two elements that turn together, and how far. */
struct rope_pair {
    float p, q;
    uint64_t turn;
};

/* Where pair i of some heads is, and how far its second element is behind the first. */
__device__ static int pair_place(const cuda_rope_args &a, int i, int *partner)
{
    const int pairs = a.dims / 2;
    *partner = a.halves ? pairs : 1;
    return i / pairs * a.head_dim + a.first + i % pairs * (a.halves ? 1 : 2);
}

/* Pair i of `heads` heads from number `first` on, if there is one: on its way. */
__device__ static rope_pair pair_load(const cuda_rope_args &a, int64_t t, int first, int heads,
                                      int i)
{
    rope_pair pair = {};
    int partner;
    if (i >= heads * (a.dims / 2))
        return pair;
    const float *x = a.x + (t * a.heads + first) * a.head_dim + pair_place(a, i, &partner);
    pair.turn = a.turn[i % (a.dims / 2)];
    pair.p = x[0];
    pair.q = x[partner];
    return pair;
}

/* The angle is a fraction of a circle in 64 bits: position times turn wraps around exactly. */
__device__ static void pair_store(const cuda_rope_args &a, const rope_pair &pair, uint64_t position,
                                  int heads, int i, float *y)
{
    int partner;
    if (i >= heads * (a.dims / 2))
        return;
    y += pair_place(a, i, &partner);
    const float half_turns = (float)(int64_t)(position * pair.turn) * 0x1p-63f;
    float s, c;
    sincospif(half_turns, &s, &c);
    s *= a.magnitude;
    c *= a.magnitude;
    y[0] = pair.p * c - pair.q * s;
    y[partner] = pair.p * s + pair.q * c;
}

/* Turns `heads` heads from number `first` on, to y; `mine` is the thread's first pair of them. */
__device__ static void rotate(const cuda_rope_args &a, int64_t t, int first, int heads,
                              const rope_pair &mine, float *y)
{
    const uint64_t position = (uint64_t)a.step.token_position[t];
    const float *x = a.x + (t * a.heads + first) * a.head_dim;
    pair_store(a, mine, position, heads, threadIdx.x, y);
    for (int i = threadIdx.x + ROW_THREADS; i < heads * (a.dims / 2); i += ROW_THREADS)
        pair_store(a, pair_load(a, t, first, heads, i), position, heads, i, y);
    const int rest = a.head_dim - a.dims;
    for (int i = threadIdx.x; x != y && i < heads * rest; i += ROW_THREADS) {
        const int e = i % rest, at = i / rest * a.head_dim + (e < a.first ? e : e + a.dims);
        y[at] = x[at];
    }
}

KERNEL(rope, ROW_THREADS, cuda_rope_args)
{
    const int64_t t = blockIdx.x;
    rotate(a, t, 0, a.heads, pair_load(a, t, 0, a.heads, threadIdx.x),
           a.y + t * a.heads * a.head_dim);
}

/* K (which 0) goes to column `slot` of [head_dim][64], V to row `slot` of [64][v_dim]. */
__device__ static void store_element(const cuda_kv_layer &l, uint8_t *block, int which, int slot,
                                     int e, float x)
{
    const int at = which ? slot * l.v_dim + e : e * 64 + slot;
    if (l.dtype == CUDA_F32)
        ((float *)block)[at] = x;
    else if (l.dtype == CUDA_F16)
        ((uint16_t *)block)[at] = float_to_finite_half(x);
}

/* 32 elements that share a scale, one a lane; as the CPU's quantise, also of numbers that are very
 * large, infinite or none. */
__device__ static void store_q8(const cuda_kv_layer &l, uint8_t *block, int which, int slot, int e,
                                float x)
{
    const float largest = warp_max(fabsf(x));
    const float most = __any_sync(0xffffffff, is_none(x)) ? NAN
                       : largest < INFINITY               ? fminf(largest, 127 * 65504.0f)
                                                          : largest;
    const float inverse = most > 0 && most < INFINITY ? 127.0f / most : 0.0f;
    const float code = inverse > 0 ? rintf(fminf(fmaxf(x * inverse, -127.0f), 127.0f)) : 0.0f;
    block[which ? slot * l.v_dim + e : e * 64 + slot] = (uint8_t)(int8_t)code;
    if (e % 32 == 0)
        ((uint16_t *)(block + 64 * (which ? l.v_dim : l.head_dim)))[e / 32 * 64 + slot] =
            float_to_half(most / 127.0f);
}

/* Element e of a head of K or V. */
__device__ static float stored(const cuda_kv_store_args &a, const float *k, const float *v,
                               int which, int head, int e)
{
    const cuda_kv_layer &l = a.layer;
    if (!a.tail)
        return which ? v[head * l.v_dim + e] : k[head * l.head_dim + e];
    const int own = l.head_dim - a.tail, each = own + (l.v_in_k ? 0 : l.v_dim);
    return which ? k[head * each + own + e] : e < own ? k[head * each + e] : v[e - own];
}

/* K (which 0) or V of `heads` heads from number `first` on. */
__device__ static void store_heads(const cuda_kv_store_args &a, int64_t t, int which, int first,
                                   int heads, const float *k, const float *v)
{
    const int lane = threadIdx.x % WARP, d = which ? a.layer.v_dim : a.layer.head_dim;
    const int all = which && a.layer.v_in_k ? 0 : heads * d;
    const int position = a.step.token_position[t], slot = position % 64;
    const cuda_seq &seq = a.step.seq[a.step.token_seq[t]];
    const int64_t page = a.step.pages[seq.pages_at[a.layer.window] + position / 64];
    for (int i = threadIdx.x; i - lane < all; i += ROW_THREADS) {
        const int head = i / d, e = i % d;
        const float x = i < all ? stored(a, k, v, which, head, e) : 0.0f;
        if (a.layer.dtype == CUDA_Q8_0) /* heads are whole warps */
            store_q8(a.layer, kv_block_of(a.layer, page, which, first + head), which, slot, e, x);
        else if (i < all)
            store_element(a.layer, kv_block_of(a.layer, page, which, first + head), which, slot, e,
                          x);
    }
}

KERNEL(kv_store, ROW_THREADS, cuda_kv_store_args)
{
    const cuda_kv_layer &l = a.layer;
    const int64_t t = blockIdx.x, heads = l.kv_heads, v = a.tail ? a.tail : heads * l.v_dim;
    const int64_t k = heads * (l.head_dim - a.tail + (a.tail && !l.v_in_k ? l.v_dim : 0));
    for (int which = 0; which < 2; which++)
        store_heads(a, t, which, 0, l.kv_heads, a.k + t * k, a.v + t * v);
}

__device__ inline void rope_store_ahead(const cuda_rope_store_args &a)
{
    const cuda_step &step = a.store.step;
    const int position = step.token_position[blockIdx.y];
    const cuda_seq &seq = step.seq[step.token_seq[blockIdx.y]];
    touch(&step.pages[seq.pages_at[a.store.layer.window] + position / 64]);
    if ((int)threadIdx.x < a.q.dims / 2)
        touch(&a.q.turn[threadIdx.x]);
    if ((int)threadIdx.x < a.k.dims / 2)
        touch(&a.k.turn[threadIdx.x]);
}

/* K, Q and V are on their way together: V is stored before the others are turned. */
KERNEL_AHEAD(rope_store, ROW_THREADS, 2, cuda_rope_store_args, rope_store_ahead)
{
    const int head = (int)blockIdx.x, d = a.k.head_dim, group = a.q.heads / a.k.heads;
    const int64_t t = blockIdx.y, q = t * a.q.heads + head * group;
    float *rotated = (float *)SHARED_ROOM;
    const float *v = a.store.v + (t * a.k.heads + head) * d;
    const rope_pair of_k = pair_load(a.k, t, head, 1, threadIdx.x);
    const rope_pair of_q = pair_load(a.q, t, head * group, group, threadIdx.x);
    store_heads(a.store, t, 1, head, 1, rotated, v);
    rotate(a.k, t, head, 1, of_k, rotated);
    rotate(a.q, t, head * group, group, of_q, a.q.y + q * d);
    __syncthreads();
    store_heads(a.store, t, 0, head, 1, rotated, v);
}

/* The leading positions of a page: columns of K, rows of V, and the scales of both. */
KERNEL(kv_copy, ROW_THREADS, cuda_kv_copy_args)
{
    const cuda_page_copy c = a.step.page_copy[blockIdx.y];
    const int which = blockIdx.x % 2, head = blockIdx.x / 2;
    const int d = which ? a.layer.v_dim : a.layer.head_dim;
    if ((which && a.layer.v_in_k) || c.window != a.layer.window)
        return;
    const uint8_t *from = kv_block_of(a.layer, c.from, which, head);
    uint8_t *to = kv_block_of(a.layer, c.to, which, head);
    for (int i = threadIdx.x; i < d * 64; i += ROW_THREADS) {
        if ((which ? i / d : i % 64) >= c.positions)
            continue;
        if (a.layer.dtype == CUDA_F32)
            ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
        else if (a.layer.dtype == CUDA_F16)
            ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
        else
            to[i] = from[i];
    }
    for (int i = threadIdx.x; a.layer.dtype == CUDA_Q8_0 && i < d / 32 * 64; i += ROW_THREADS)
        if (i % 64 < c.positions)
            ((uint16_t *)(to + 64 * d))[i] = ((const uint16_t *)(from + 64 * d))[i];
}
