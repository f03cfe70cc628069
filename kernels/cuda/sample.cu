/*
 * sample.cu - what of a row of logits a sampler needs: the largest few with their ids, so that a
 * hundred numbers cross the link instead of a vocabulary.
 *
 * Logits become keys, whole numbers that are all different and of which the larger one comes first:
 * what order the blocks run in, or which lists meet, cannot change the result. A block keeps the
 * first `kept` of a stretch of keys, a power of two, in its shared memory: runs of `kept` keys are
 * sorted by a bitonic network, then pairs of runs become one with the better half of both, until
 * one is left (the bitonic top-k of Shanbhag et al. 2018). Of one candidate nothing is sorted, and
 * what remains is a tree of maxima.
 */
#include "kernels/cuda/device_code.cuh"

/* Of a logit and its id. Equal ones, as both zeros are: the lower id is first. What is no number is
 * behind all that are, and before 0, which stands for no logit at all. */
__device__ static uint64_t key_of(float logit, int id)
{
    uint32_t bits = __float_as_uint(logit), rank;
    if (bits == 0x80000000)
        bits = 0;
    if ((bits & 0x7fffffff) > 0x7f800000)
        rank = 0;
    else
        rank = bits >> 31 ? ~bits : bits | 0x80000000;
    return (uint64_t)rank << 32 | ~(uint32_t)id;
}

__device__ static int id_of(uint64_t key)
{
    return (int)~(uint32_t)key;
}

__device__ static void in_order(uint64_t *a, uint64_t *b, bool falling)
{
    const uint64_t x = *a, y = *b;
    if ((x < y) == falling) {
        *a = y;
        *b = x;
    }
}

/* Where the i-th pair of keys that stand `stride` apart, a power of two, begins. */
__device__ static int pair_at(int i, int stride)
{
    return 2 * i - (i & (stride - 1));
}

/* Runs of 2^bits keys, by turns falling and rising. */
__device__ static void sort_runs(uint64_t *key, int bits)
{
    for (int size = 2; size <= 1 << bits; size *= 2)
        for (int stride = size / 2; stride; stride /= 2) {
            for (int i = threadIdx.x; i < TOP_STRETCH / 2; i += TOP_THREADS) {
                const int at = pair_at(i, stride);
                in_order(&key[at], &key[at + stride], !(at & size));
            }
            __syncthreads();
        }
}

/* The best run of all, falling, to the first place. What falls and what rises in turn stand
 * opposite each other so that the larger of each two are the better half of both runs, and bitonic:
 * the last steps of the network sort it. A run stays where its left half was. */
__device__ static void merge_runs(uint64_t *key, int bits)
{
    const int kept = 1 << bits;
    for (int apart = kept; apart < TOP_STRETCH; apart *= 2) {
        const int runs = TOP_STRETCH / 2 / apart;
        for (int i = threadIdx.x; i < runs << bits; i += TOP_THREADS) {
            const int at = (i >> bits) * 2 * apart + (i & (kept - 1));
            if (key[at] < key[at + apart])
                key[at] = key[at + apart];
        }
        __syncthreads();
        for (int stride = kept / 2; stride; stride /= 2) {
            for (int i = threadIdx.x; i < runs << (bits - 1); i += TOP_THREADS) {
                const int run = i >> (bits - 1);
                const int at = run * 2 * apart + pair_at(i & (kept / 2 - 1), stride);
                in_order(&key[at], &key[at + stride], run % 2 == 0);
            }
            __syncthreads();
        }
    }
}

KERNEL(top_k, TOP_THREADS, cuda_top_args)
{
    uint64_t *key = (uint64_t *)SHARED_ROOM;
    const float *x = a.x + (int64_t)blockIdx.y * a.n;
    for (int i = threadIdx.x; i < TOP_STRETCH; i += TOP_THREADS) {
        const int id = blockIdx.x * TOP_STRETCH + i;
        key[i] = id < a.n ? key_of(x[id], id) : 0;
    }
    __syncthreads();
    sort_runs(key, a.kept_bits);
    merge_runs(key, a.kept_bits);
    uint64_t *list = a.list + (((int64_t)blockIdx.y * a.lists + blockIdx.x) << a.kept_bits);
    for (int i = threadIdx.x; i < 1 << a.kept_bits; i += TOP_THREADS)
        list[i] = key[i];
}

/* As many lists as there is room for, then the best of them with the next ones. */
KERNEL(top_k_merge, TOP_THREADS, cuda_top_args)
{
    uint64_t *key = (uint64_t *)SHARED_ROOM;
    const int kept = 1 << a.kept_bits, runs = TOP_STRETCH >> a.kept_bits;
    const uint64_t *list = a.list + (((int64_t)blockIdx.x * a.lists) << a.kept_bits);
    int taken = 0; /* lists */
    do {
        const int first = taken ? 1 : 0; /* run that a list goes to */
        for (int i = threadIdx.x; i < (runs - first) << a.kept_bits; i += TOP_THREADS) {
            const int run = first + (i >> a.kept_bits), place = i & (kept - 1);
            const int from = taken + (i >> a.kept_bits);
            key[run * kept + (run % 2 ? kept - 1 - place : place)] =
                from < a.lists ? list[((int64_t)from << a.kept_bits) + place] : 0;
        }
        taken += runs - first;
        __syncthreads();
        merge_runs(key, a.kept_bits);
    } while (taken < a.lists);
    const float *x = a.x + (int64_t)blockIdx.x * a.n;
    float *y = a.y + (int64_t)blockIdx.x * 2 * a.wanted;
    for (int i = threadIdx.x; i < a.wanted; i += TOP_THREADS) {
        const int id = id_of(key[i]);
        y[i] = (float)(a.first + id);
        y[a.wanted + i] = x[id];
    }
}
