/*
 * measure.cu - kernels that a profiler asks for: the mark between records whose time is wanted, and
 * reading as fast as memory goes.
 */
#include "kernels/cuda/device_code.cuh"

KERNEL(measure_mark, 1, cuda_mark_args)
{
    (void)a;
}

/* Every block reads stretches of READ_STRETCH bytes, far apart, with several loads under way. */
KERNEL(read_all, READ_THREADS, cuda_read_args)
{
    uint32_t sum = 0;
    for (uint64_t at = blockIdx.x; at < a.stretches; at += gridDim.x) {
        const uint4 *from = (const uint4 *)a.from + at * (READ_STRETCH / 16) + threadIdx.x;
        uint4 v[READ_STRETCH / 16 / READ_THREADS];
        for (int i = 0; i < READ_STRETCH / 16 / READ_THREADS; i++)
            v[i] = from[i * READ_THREADS];
        for (int i = 0; i < READ_STRETCH / 16 / READ_THREADS; i++)
            sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    if (sum == 0x9e3779b9) /* never of what is read, but the compiler cannot know */
        *a.out = sum;
}
