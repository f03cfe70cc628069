/*
 * attention.cu - softmax(q K / sqrt(head_dim)) V over pages, with a softmax that is online in
 * segments of ATTENTION_SPAN positions (Milakov and Gimelshein 2018, "Online normalizer calculation
 * for softmax"; Dao 2023, FlashDecoding, for their division among blocks).
 *
 * A block has one token and the query heads of one KV head, ATTENTION_HEADS at a time. Scores: a
 * thread has two positions and walks through the dimensions; K is dimension-major, so a warp reads
 * whole lines. Values: a thread has a dimension and walks through the positions; V is
 * position-major. Few tokens leave most of the GPU idle: then segments are blocks of their own, and
 * attention_merge puts them together as the one block would have done, bit by bit.
 */
#include "kernels/cuda/pack.cuh"
#include "kernels/cuda/unpack.cuh"

/* Element i of a block, s the number of its scale behind them. */
template <int DTYPE>
__device__ static float kv_element(const uint8_t *block, int dims, int i, int s)
{
    if (DTYPE == CUDA_F32)
        return ((const float *)block)[i];
    if (DTYPE == CUDA_F16)
        return half_to_float(((const uint16_t *)block)[i]);
    return (float)(int8_t)block[i] * half_to_float(((const uint16_t *)(block + 64 * dims))[s]);
}

/* What a block works on; q, score, value and total are rooms of ATTENTION_HEADS rows. */
struct attention_work {
    const cuda_attention_args *a;
    const int32_t *pages;
    int kv_head, n_heads, positions;
    float *q, *score, *value, *total;
};

template <int DTYPE, class B>
__device__ static void segment_scores(const attention_work &w, const B &block, int begin)
{
    const cuda_kv_layer &l = w.a->layer;
    const int d = l.head_dim;
    for (int i = block.thread(); i < ATTENTION_SPAN; i += ATTENTION_THREADS) {
        float sum[ATTENTION_HEADS] = {};
        const int position = begin + i;
        if (position < w.positions) {
            const int64_t page = w.pages[position / 64];
            const uint8_t *k = l.data + (page * 2 * l.kv_heads + w.kv_head) * l.block_bytes;
#pragma unroll 4 /* loads are under way together */
            for (int e = 0; e < d; e++) {
                const float x =
                    kv_element<DTYPE>(k, d, e * 64 + position % 64, e / 32 * 64 + position % 64);
#pragma unroll
                for (int h = 0; h < ATTENTION_HEADS; h++)
                    sum[h] = fmaf(w.q[h * d + e], x, sum[h]);
            }
        }
        for (int h = 0; h < ATTENTION_HEADS; h++)
            w.score[h * ATTENTION_SPAN + i] =
                position < w.positions ? sum[h] * w.a->scale : -INFINITY;
    }
}

/* Scores become weights relative to their maximum; m and l of head h are those of its warp. */
template <class B>
__device__ static void segment_softmax(const attention_work &w, const B &block, float *m, float *l)
{
    const int lane = threadIdx.x % WARP;
    float *score = w.score + block.thread() / WARP * ATTENTION_SPAN;
    *m = -INFINITY;
    *l = 0;
    for (int i = lane; i < ATTENTION_SPAN; i += WARP)
        *m = fmaxf(*m, score[i]);
    *m = warp_max(*m);
    for (int i = lane; i < ATTENTION_SPAN; i += WARP) {
        score[i] = expf(score[i] - *m);
        *l += score[i];
    }
    *l = warp_sum(*l);
}

template <int DTYPE, class B>
__device__ static void segment_values(const attention_work &w, const B &block, int begin)
{
    const cuda_kv_layer &l = w.a->layer;
    const int d = l.head_dim;
    const int count = min(ATTENTION_SPAN, w.positions - begin);
    for (int e = block.thread(); e < d; e += ATTENTION_THREADS) {
        float sum[ATTENTION_HEADS] = {};
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            const int64_t page = w.pages[(begin + i) / 64];
            const uint8_t *v = l.data + ((page * 2 + 1) * l.kv_heads + w.kv_head) * l.block_bytes;
            const int slot = (begin + i) % 64;
            const float x = kv_element<DTYPE>(v, d, slot * d + e, e / 32 * 64 + slot);
#pragma unroll
            for (int h = 0; h < ATTENTION_HEADS; h++)
                sum[h] = fmaf(w.score[h * ATTENTION_SPAN + i], x, sum[h]);
        }
        for (int h = 0; h < ATTENTION_HEADS; h++)
            w.value[h * d + e] = sum[h];
    }
}

/* What was summed up so far, and one more segment of d values, `step` of them apart for a thread.
 */
struct attention_sum {
    float m, l;
};
__device__ static void sum_segment(attention_sum *s, float m, float l, const float *value,
                                   float *total, int d, int first, int step)
{
    const float top = fmaxf(s->m, m), before = expf(s->m - top), now = expf(m - top);
    s->m = top;
    s->l = s->l * before + l * now;
    for (int e = first; e < d; e += step)
        total[e] = total[e] * before + value[e] * now;
}

/* A lane's elements e, e + 32, ... of a head's result, which is divided by l. With `packed`, heads
 * are whole blocks of 32. */
__device__ static void write_head(const cuda_attention_args &a, int64_t t, int head,
                                  const float *total, float l)
{
    const int d = a.layer.head_dim;
    for (int e = threadIdx.x % WARP; e < d; e += WARP) {
        const float y = total[e] / l;
        a.y[(t * a.heads + head) * d + e] = y;
        if (a.packed)
            pack_block(y, a.packed + t * a.packed_stride, a.heads * d, (head * d + e) / 32);
    }
}

template <int DTYPE, class B>
__device__ static void attention(const cuda_attention_args &a, const B &block)
{
    const int64_t t = block.z();
    const int d = a.layer.head_dim, group = a.heads / a.layer.kv_heads;
    const int warp = block.thread() / WARP, lane = threadIdx.x % WARP;
    const cuda_seq &seq = a.step.seq[a.step.token_seq[t]];
    float *room = (float *)block.room();
    attention_work w = {&a,
                        a.step.pages + seq.pages_at,
                        (int)block.y(),
                        0,
                        a.step.token_position[t] + 1,
                        room,
                        room + 3 * ATTENTION_HEADS * d,
                        room + ATTENTION_HEADS * d,
                        room + 2 * ATTENTION_HEADS * d};
    const int segments = (w.positions + ATTENTION_SPAN - 1) / ATTENTION_SPAN;
    const int from = a.partial ? block.x() : 0, to = a.partial ? from + 1 : segments;
    if (from >= segments)
        return;
    for (int head = 0; head < group; head += ATTENTION_HEADS) {
        w.n_heads = min(ATTENTION_HEADS, group - head);
        const int64_t first = t * a.heads + w.kv_head * group + head; /* row of q and y */
        block.barrier();
        for (int i = block.thread(); i < ATTENTION_HEADS * d; i += ATTENTION_THREADS) {
            w.q[i] = i < w.n_heads * d ? a.q[first * d + i] : 0.0f;
            w.total[i] = 0;
        }
        attention_sum sum = {-INFINITY, 0}; /* of the warp's head */
        for (int s = from; s < to; s++) {
            float m, l;
            block.barrier();
            segment_scores<DTYPE>(w, block, s * ATTENTION_SPAN);
            block.barrier();
            segment_softmax(w, block, &m, &l);
            block.barrier();
            segment_values<DTYPE>(w, block, s * ATTENTION_SPAN);
            block.barrier();
            if (warp >= w.n_heads)
                continue;
            if (a.partial) {
                float *out = a.partial + ((first + warp) * a.segments + s) * (2 + d);
                for (int e = lane; e < d; e += WARP)
                    out[2 + e] = w.value[warp * d + e];
                if (lane == 0) {
                    out[0] = m;
                    out[1] = l;
                }
            } else {
                sum_segment(&sum, m, l, w.value + warp * d, w.total + warp * d, d, lane, WARP);
            }
        }
        if (!a.partial && warp < w.n_heads)
            write_head(a, t, w.kv_head * group + head + warp, w.total + warp * d, sum.l);
    }
}

/* grid: (heads, tokens); one warp */
KERNEL(attention_merge, WARP, cuda_attention_args)
{
    const int64_t t = block.y(), row = t * a.heads + block.x();
    const int d = a.layer.head_dim;
    const int segments = a.step.token_position[t] / ATTENTION_SPAN + 1;
    const float *part = a.partial + row * a.segments * (2 + d);
    float *y = a.y + row * d;
    attention_sum sum = {-INFINITY, 0};
    for (int e = block.thread(); e < d; e += WARP)
        y[e] = 0;
    for (int s = 0; s < segments; s++, part += 2 + d)
        sum_segment(&sum, part[0], part[1], part + 2, y, d, block.thread(), WARP);
    write_head(a, t, block.x(), y, sum.l);
}

KERNEL(attention_F32, ATTENTION_THREADS, cuda_attention_args)
{
    attention<CUDA_F32>(a, block);
}

KERNEL(attention_F16, ATTENTION_THREADS, cuda_attention_args)
{
    attention<CUDA_F16>(a, block);
}

KERNEL(attention_Q8_0, ATTENTION_THREADS, cuda_attention_args)
{
    attention<CUDA_Q8_0>(a, block);
}
