/*
 * attention.cu - softmax(q K / sqrt(head_dim)) V over pages, with a softmax that is online page by
 * page (Milakov and Gimelshein 2018, "Online normalizer calculation for softmax"), and contexts
 * that are divided into segments of pages (Dao 2023, FlashDecoding).
 *
 * A block has one token and the query heads of one KV head, ATTENTION_HEADS at a time. It goes
 * through a page at the pace of its loads, so all of a page are under way together: for scores, a
 * warp has a part of the dimensions and a lane two neighbouring positions (K is dimension-major);
 * for values, a thread has two neighbouring dimensions of some of the positions (V is
 * position-major). What they sum up is added in one order. Few tokens leave most of the GPU idle:
 * then segments are blocks of their own, and attention_merge puts them together as the one block
 * would have done, bit by bit.
 */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/unpack.cuh"

enum {
    ATTENTION_WARPS = ATTENTION_THREADS / WARP,
    ATTENTION_RESIDENT = 3, /* blocks in a multiprocessor: many loads are under way in a thread */
    VALUES_AT_ONCE = 32,    /* positions of a page whose loads a thread has under way */
    PRODUCTS_AT_ONCE = 8,   /* between two branches, behind which no load of shared memory begins */
};
static_assert((int)ATTENTION_WARPS == (int)ATTENTION_HEADS, "a warp has the softmax of a head");

/* Elements i and i + 1 of a block, i being even, as they are stored. */
template <int DTYPE> struct kv_pair {
    uint32_t word[DTYPE == CUDA_F32 ? 2 : 1];
};

template <int DTYPE> __device__ static kv_pair<DTYPE> kv_load(const uint8_t *block, int i)
{
    kv_pair<DTYPE> p;
    if (DTYPE == CUDA_F32) {
        const uint2 x = ((const uint2 *)block)[i / 2];
        p.word[0] = x.x;
        p.word[DTYPE == CUDA_F32] = x.y;
    } else {
        p.word[0] =
            DTYPE == CUDA_F16 ? ((const uint32_t *)block)[i / 2] : ((const uint16_t *)block)[i / 2];
    }
    return p;
}

/* Of values that lie in K: dimensions e and e + 1 of a position. */
template <int DTYPE>
__device__ static kv_pair<DTYPE> kv_load_turned(const uint8_t *k, int e, int slot)
{
    const int i = e * ATTENTION_PAGE + slot, j = i + ATTENTION_PAGE;
    kv_pair<DTYPE> p;
    if (DTYPE == CUDA_F32) {
        p.word[0] = ((const uint32_t *)k)[i];
        p.word[DTYPE == CUDA_F32] = ((const uint32_t *)k)[j];
    } else if (DTYPE == CUDA_F16) {
        const uint16_t *half = (const uint16_t *)k;
        p.word[0] = half[i] | (uint32_t)half[j] << 16;
    } else {
        p.word[0] = k[i] | (uint32_t)k[j] << 8;
    }
    return p;
}

/* As numbers, without the scales of Q8_0. */
template <int DTYPE> __device__ static float2 kv_numbers(const kv_pair<DTYPE> &p)
{
    if (DTYPE == CUDA_F32)
        return {__uint_as_float(p.word[0]), __uint_as_float(p.word[DTYPE == CUDA_F32])};
    if (DTYPE == CUDA_F16)
        return {half_to_float((uint16_t)p.word[0]), half_to_float((uint16_t)(p.word[0] >> 16))};
    return {(float)(int8_t)p.word[0], (float)(int8_t)(p.word[0] >> 8)};
}

/* Number i of the scales behind a block of Q8_0. */
__device__ static float kv_scale(const uint8_t *block, int dims, int i)
{
    return half_to_float(((const uint16_t *)(block + ATTENTION_PAGE * dims))[i]);
}

/* Shared memory of a block. Rows of ATTENTION_HEADS are of one dimension or position. */
struct attention_room {
    float *q;        /* [head_dim][heads] */
    float *part;     /* what warps or groups of threads summed up */
    float *weight;   /* [ATTENTION_PAGE][heads] */
    float *segment;  /* [heads][v_dim] of the pages so far */
    float *total;    /* [heads][v_dim] of the segments so far */
    float2 *scaling; /* [heads]: what of the values before, and of the new ones, remains */
};

/* What a block works on. */
struct attention_work {
    const cuda_attention_args *a;
    const int32_t *pages;
    int kv_head, n_heads;
    int positions, hidden; /* from the first page on; before the window, in that page */
    float slope;           /* of the warp's head */
    attention_room room;
};

/* The softmax so far: its greatest score and the sum of its weights relative to that. */
struct attention_sum {
    float m, l;
};

/* Another stretch of the softmax joins it; returns what remains of the values of both. */
__device__ static float2 sum_joins(attention_sum *s, float m, float l)
{
    const float top = fmaxf(s->m, m);
    const float2 scaling = {expf(s->m - top), expf(m - top)};
    s->m = top;
    s->l = s->l * scaling.x + l * scaling.y;
    return scaling;
}

__device__ static float value_joins(float sum, float value, float2 scaling)
{
    return sum * scaling.x + value * scaling.y;
}

/* That of a lane of the warp. */
__device__ static float2 lane_scaling(float2 scaling, int lane)
{
    return {__shfl_sync(0xffffffff, scaling.x, lane), __shfl_sync(0xffffffff, scaling.y, lane)};
}

__device__ static const uint8_t *page_block(const attention_work &w, int page, int v)
{
    return kv_block_of(w.a->layer, w.pages[page], v, w.kv_head);
}

/* Adds two elements to each head's sums of them, times what the head has for both. */
__device__ static void add_elements(float2 sum[ATTENTION_HEADS], const float *of_heads, float2 x)
{
    const float4 v = *(const float4 *)of_heads;
    const float factor[ATTENTION_HEADS] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int h = 0; h < ATTENTION_HEADS; h++) {
        sum[h].x = fmaf(factor[h], x.x, sum[h].x);
        sum[h].y = fmaf(factor[h], x.y, sum[h].y);
    }
}

/* Each warp's part of the scores of a page: [warp][head][position]. */
template <int DTYPE> __device__ static void page_scores(const attention_work &w, const uint8_t *k)
{
    constexpr int KEYS = DTYPE == CUDA_F32 ? 16 : 32; /* dimensions whose loads are under way */
    const int warp = threadIdx.x / WARP, at = 2 * (threadIdx.x % WARP);
    const int d = w.a->layer.head_dim, end = d * (warp + 1) / ATTENTION_WARPS;
    float2 sum[ATTENTION_HEADS] = {};
    for (int from = d * warp / ATTENTION_WARPS; from < end; from += KEYS) {
        kv_pair<DTYPE> key[KEYS] = {};
#pragma unroll
        for (int i = 0; i < KEYS; i++)
            if (from + i < end)
                key[i] = kv_load<DTYPE>(k, (from + i) * ATTENTION_PAGE + at);
#pragma unroll
        for (int i = 0; i < KEYS; i++) {
            if (i % PRODUCTS_AT_ONCE == 0 && from + i >= end)
                break;
            const int e = min(from + i, d - 1); /* behind the end: zero times a number of the row */
            float2 x = kv_numbers(key[i]);
            if (DTYPE == CUDA_Q8_0) {
                x.x *= kv_scale(k, d, e / 32 * ATTENTION_PAGE + at);
                x.y *= kv_scale(k, d, e / 32 * ATTENTION_PAGE + at + 1);
            }
            add_elements(sum, w.room.q + e * ATTENTION_HEADS, x);
        }
    }
    for (int h = 0; h < ATTENTION_HEADS; h++)
        *(float2 *)&w.room.part[(warp * ATTENTION_HEADS + h) * ATTENTION_PAGE + at] = sum[h];
}

/* Of positions [hidden, count), those of the warp's head: the parts of the scores become weights
 * relative to the greatest score. */
__device__ static float page_score(const attention_work &w, float sum, int ago, bool seen)
{
    float score = sum * w.a->scale;
    if (w.a->soft_cap != 0)
        score = w.a->soft_cap * tanhf(score / w.a->soft_cap);
    if (w.a->alibi != 0)
        score -= w.slope * (float)ago;
    return seen ? score : -INFINITY;
}

/* ago: how many positions before the token's the page begins. */
__device__ static attention_sum page_softmax(const attention_work &w, int hidden, int count,
                                             int ago)
{
    const int head = threadIdx.x / WARP, at = 2 * (threadIdx.x % WARP);
    float2 score = {0, 0};
    for (int part = 0; part < ATTENTION_WARPS; part++) {
        const float2 x =
            *(const float2 *)&w.room.part[(part * ATTENTION_HEADS + head) * ATTENTION_PAGE + at];
        score.x += x.x;
        score.y += x.y;
    }
    score.x = page_score(w, score.x, ago - at, at >= hidden && at < count);
    score.y = page_score(w, score.y, ago - at - 1, at + 1 >= hidden && at + 1 < count);
    const float m = warp_max(fmaxf(score.x, score.y));
    const float2 weight = {expf(score.x - m), expf(score.y - m)};
    w.room.weight[at * ATTENTION_HEADS + head] = weight.x;
    w.room.weight[(at + 1) * ATTENTION_HEADS + head] = weight.y;
    return {m, warp_sum(weight.x + weight.y)};
}

/* Groups of threads that share the positions of a page, each thread with two dimensions. */
__device__ static int value_groups(int v_dim)
{
    return max(1, ATTENTION_THREADS / (v_dim / 2));
}

/* What a thread has of the values of a page at once, on its way while scores are computed. */
template <int DTYPE> struct some_values {
    kv_pair<DTYPE> x[VALUES_AT_ONCE];
};

/* V_IN_K: a branch here would wait for all of them. */
template <int DTYPE, bool V_IN_K>
__device__ static void load_values(const cuda_kv_layer &l, some_values<DTYPE> &v,
                                   const uint8_t *page, int e, int slot, int groups, int count)
{
    v = {};
#pragma unroll
    for (int i = 0; i < VALUES_AT_ONCE; i++) {
        const int at = slot + i * groups;
        if (at < count)
            v.x[i] = V_IN_K ? kv_load_turned<DTYPE>(page, e, at)
                            : kv_load<DTYPE>(page, at * l.v_dim + e);
    }
}

/* Each group's part of the values of a page: [group][head][dimension]; `first` is what its threads
 * read first. */
template <int DTYPE, bool V_IN_K>
__device__ static void page_values(const attention_work &w, const uint8_t *v, int count,
                                   some_values<DTYPE> &first)
{
    const cuda_kv_layer &l = w.a->layer;
    const int d = l.v_dim, groups = value_groups(d), bytes = V_IN_K ? l.head_dim : d;
    for (int i = threadIdx.x; i < groups * d / 2; i += ATTENTION_THREADS) {
        const int e = 2 * (i % (d / 2)), group = i / (d / 2);
        float2 sum[ATTENTION_HEADS] = {};
        for (int slot = group; slot < count; slot += VALUES_AT_ONCE * groups) {
            if (slot != group || i != (int)threadIdx.x)
                load_values<DTYPE, V_IN_K>(l, first, v, e, slot, groups, count);
#pragma unroll
            for (int n = 0; n < VALUES_AT_ONCE; n++) {
                if (n % PRODUCTS_AT_ONCE == 0 && slot + n * groups >= count)
                    break;
                const int at = min(slot + n * groups, ATTENTION_PAGE - 1);
                float2 x = kv_numbers(first.x[n]);
                if (DTYPE == CUDA_Q8_0) {
                    const float scale = slot + n * groups < count
                                            ? kv_scale(v, bytes, e / 32 * ATTENTION_PAGE + at)
                                            : 0.0f;
                    x.x *= scale;
                    x.y *= scale;
                }
                add_elements(sum, w.room.weight + at * ATTENTION_HEADS, x);
            }
        }
        for (int h = 0; h < ATTENTION_HEADS; h++)
            *(float2 *)&w.room.part[(group * ATTENTION_HEADS + h) * d + e] = sum[h];
    }
}

/* Pages [from, to) of the context: the values of each head to room.segment, the softmax of the
 * warp's head to the result. Begins and ends where all threads are past a barrier. */
template <int DTYPE, bool V_IN_K>
__device__ static attention_sum segment_of(const attention_work &w, int from, int to)
{
    const int d = w.a->layer.v_dim, groups = value_groups(d);
    const int warp = threadIdx.x / WARP;
    attention_sum sum = {-INFINITY, 0};
    for (int page = from; page < to; page++) {
        const int count = min(ATTENTION_PAGE, w.positions - page * ATTENTION_PAGE);
        const uint8_t *v = page_block(w, page, !V_IN_K);
        const int mine = min((int)threadIdx.x, groups * d / 2 - 1);
        some_values<DTYPE> values;
        load_values<DTYPE, V_IN_K>(w.a->layer, values, v, 2 * (mine % (d / 2)), mine / (d / 2),
                                   groups, count);
        page_scores<DTYPE>(w, page_block(w, page, 0));
        __syncthreads();
        const int ago = w.positions - 1 - page * ATTENTION_PAGE;
        const attention_sum here = page_softmax(w, page ? 0 : w.hidden, count, ago);
        const float2 scaling = sum_joins(&sum, here.m, here.l);
        if (threadIdx.x % WARP == 0)
            w.room.scaling[warp] = scaling;
        __syncthreads();
        page_values<DTYPE, V_IN_K>(w, v, count, values);
        __syncthreads();
        for (int i = threadIdx.x; i < ATTENTION_HEADS * d; i += ATTENTION_THREADS) {
            float value = 0;
            for (int group = 0; group < groups; group++)
                value += w.room.part[group * ATTENTION_HEADS * d + i];
            const float before = page > from ? w.room.segment[i] : 0.0f;
            w.room.segment[i] = value_joins(before, value, w.room.scaling[i / d]);
        }
        __syncthreads();
    }
    return sum;
}

/* Of a token's context: no more than ATTENTION_SEGMENTS segments, of as few pages as that allows.
 */
__device__ static int pages_of(int positions)
{
    return (positions + ATTENTION_PAGE - 1) / ATTENTION_PAGE;
}

__device__ static int segment_pages(int pages)
{
    return (pages + ATTENTION_SEGMENTS - 1) / ATTENTION_SEGMENTS;
}

/* Before this a token at `position` sees nothing. */
__device__ static int window_begin(const cuda_attention_args &a, int position)
{
    if (a.window && a.chunked)
        return position / a.window * a.window;
    return a.window ? max(0, position + 1 - a.window) : 0;
}

/* Pages that it sees something of. */
__device__ static int pages_seen(const cuda_attention_args &a, int position)
{
    return pages_of(position + 1) - window_begin(a, position) / ATTENTION_PAGE;
}

/* Where the step's data says that K and V lie, and those of the first page. */
__device__ inline void attention_ahead(const cuda_attention_args &a)
{
    const int64_t t = blockIdx.z;
    const cuda_kv_layer &l = a.layer;
    const int position = a.step.token_position[t], pages = pages_seen(a, position);
    const int first = a.partial ? (int)blockIdx.x * segment_pages(pages) : 0;
    if (threadIdx.x >= WARP || first >= pages)
        return;
    const int before = window_begin(a, position) / ATTENTION_PAGE;
    const cuda_seq &seq = a.step.seq[a.step.token_seq[t]];
    const int64_t page = a.step.pages[seq.pages_at[l.window] + before + first];
    for (int v = 0; v < 2; v++)
        read_ahead(kv_block_of(l, page, v, (int)blockIdx.y),
                   (uint32_t)(v ? l.v_bytes : l.block_bytes) / 16 * 16, threadIdx.x, WARP);
}

__device__ inline void merge_ahead(const cuda_attention_args &a)
{
    touch(&a.step.token_position[blockIdx.y]);
}

template <int DTYPE, bool V_IN_K> __device__ static void attention(const cuda_attention_args &a)
{
    const int64_t t = blockIdx.z;
    const int d = a.layer.v_dim, q_dim = a.layer.head_dim, group = a.heads / a.layer.kv_heads;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const cuda_seq &seq = a.step.seq[a.step.token_seq[t]];
    const int position = a.step.token_position[t], begin = window_begin(a, position);
    const int before = begin / ATTENTION_PAGE; /* pages */
    attention_work w = {&a,
                        a.step.pages + seq.pages_at[a.layer.window] + before,
                        (int)blockIdx.y,
                        0,
                        position + 1 - before * ATTENTION_PAGE,
                        begin % ATTENTION_PAGE,
                        0,
                        {}};
    float *room = (float *)SHARED_ROOM;
    w.room.scaling = (float2 *)room; /* these first, so that rows of floats are aligned behind */
    w.room.weight = room + 2 * ATTENTION_HEADS;
    w.room.q = w.room.weight + ATTENTION_PAGE * ATTENTION_HEADS;
    w.room.segment = w.room.q + ATTENTION_HEADS * q_dim;
    w.room.total = w.room.segment + ATTENTION_HEADS * d;
    w.room.part = w.room.total + ATTENTION_HEADS * d;
    const int pages = pages_seen(a, position), each = segment_pages(pages);
    const int segments = (pages + each - 1) / each;
    const int from = a.partial ? blockIdx.x : 0, to = a.partial ? from + 1 : segments;
    if (from >= segments)
        return;
    for (int head = 0; head < group; head += ATTENTION_HEADS) {
        w.n_heads = min(ATTENTION_HEADS, group - head);
        if (a.alibi != 0)
            w.slope = alibi_slope(a.alibi, a.alibi_heads,
                                  a.alibi_first + w.kv_head * group + head + warp);
        const int64_t first = t * a.heads + w.kv_head * group + head; /* row of q and y */
        for (int i = threadIdx.x; i < ATTENTION_HEADS * q_dim; i += ATTENTION_THREADS)
            w.room.q[i % q_dim * ATTENTION_HEADS + i / q_dim] =
                i < w.n_heads * q_dim ? a.q[first * q_dim + i] : 0.0f;
        for (int i = threadIdx.x; i < ATTENTION_HEADS * d; i += ATTENTION_THREADS)
            w.room.total[i] = 0;
        __syncthreads();
        attention_sum sum = {-INFINITY, 0}; /* of the warp's head */
        for (int s = from; s < to; s++) {
            const attention_sum here =
                segment_of<DTYPE, V_IN_K>(w, s * each, min(pages, (s + 1) * each));
            const float *value = w.room.segment + warp * d;
            if (warp < w.n_heads && a.partial) {
                float *out = a.partial + ((first + warp) * a.segments + s) * (2 + d);
                for (int e = lane; e < d; e += WARP)
                    out[2 + e] = value[e];
                if (lane == 0) {
                    out[0] = here.m;
                    out[1] = here.l;
                }
            } else if (warp < w.n_heads) {
                const float2 scaling = sum_joins(&sum, here.m, here.l);
                float *total = w.room.total + warp * d;
                for (int e = lane; e < d; e += WARP)
                    total[e] = value_joins(total[e], value[e], scaling);
            }
            __syncthreads();
        }
        if (a.sinks && warp < w.n_heads)
            sum.l += expf(a.sinks[w.kv_head * group + head + warp] - sum.m);
        const int64_t out = (first + warp) * d; /* in y, and what of it is the token's */
        for (int e = 4 * lane; !a.partial && warp < w.n_heads && e - 4 * lane < d; e += 4 * WARP) {
            float y[4] = {};
            for (int i = 0; i < 4 && e + i < d; i++)
                y[i] = a.y[out + e + i] = w.room.total[warp * d + e + i] / sum.l;
            if (a.packed) /* heads are whole blocks of 32, which begin at a multiple of 32 */
                pack_four(y, a.packed + t * a.packed_stride, a.heads * d,
                          e < d ? (int)(out - t * a.heads * d) + e : a.heads * d);
        }
        __syncthreads();
    }
}

/* grid: (heads, tokens). A thread has a dimension; a lane finds the scaling of one segment of 32,
 * as sum_joins does in their order, so that only the sums themselves go one by one. */
KERNEL_AHEAD(attention_merge, ATTENTION_THREADS, ATTENTION_RESIDENT, cuda_attention_args,
             merge_ahead)
{
    const int64_t t = blockIdx.y, row = t * a.heads + blockIdx.x;
    const int d = a.layer.v_dim, lane = threadIdx.x % WARP;
    const int pages = pages_seen(a, a.step.token_position[t]), each = segment_pages(pages);
    const int segments = (pages + each - 1) / each;
    for (int first = threadIdx.x - lane; first < d; first += ATTENTION_THREADS) {
        const float *part = a.partial + row * a.segments * (2 + d);
        const int e = min(first + lane, d - 1);
        attention_sum sum = {-INFINITY, 0};
        float value = 0;
        for (int begin = 0; begin < segments; begin += WARP, part += (int64_t)WARP * (2 + d)) {
            const int n = min((int)WARP, segments - begin);
            const float *mine = part + (int64_t)min(lane, n - 1) * (2 + d);
            const float m = mine[0], l = mine[1];
            float top = fmaxf(sum.m, m);
            for (int step = 1; step < WARP; step *= 2) {
                const float lower = __shfl_up_sync(0xffffffff, top, step);
                top = lane < step ? top : fmaxf(top, lower);
            }
            const float lower = __shfl_up_sync(0xffffffff, top, 1);
            const float2 scaling = {expf((lane ? lower : sum.m) - top), expf(m - top)};
            sum.m = __shfl_sync(0xffffffff, top, n - 1);
#pragma unroll 8
            for (int i = 0; i < n; i++) {
                const float2 s = lane_scaling(scaling, i);
                sum.l = value_joins(sum.l, __shfl_sync(0xffffffff, l, i), s);
                value = value_joins(value, part[(int64_t)i * (2 + d) + 2 + e], s);
            }
        }
        const float sink = a.sinks ? expf(a.sinks[blockIdx.x] - sum.m) : 0;
        const float y = value / (sum.l + sink);
        if (first + lane < d)
            a.y[row * d + e] = y;
        if (a.packed) /* heads are whole blocks of 32 */
            pack_block(y, a.packed + t * a.packed_stride, a.heads * d, (blockIdx.x * d + e) / 32);
    }
}

#define ATTENTION_KERNEL(type)                                                                     \
    KERNEL_AHEAD_CALL(attention_##type, ATTENTION_THREADS, ATTENTION_RESIDENT,                     \
                      cuda_attention_args, attention_ahead, (attention<CUDA_##type, false>))       \
    KERNEL_AHEAD_CALL(attention_turned_##type, ATTENTION_THREADS, ATTENTION_RESIDENT,              \
                      cuda_attention_args, attention_ahead, (attention<CUDA_##type, true>))

ATTENTION_KERNEL(F32)
ATTENTION_KERNEL(F16)
ATTENTION_KERNEL(Q8_0)
