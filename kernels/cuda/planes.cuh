/*
 * planes.cuh - what lies in the planes of cuda_layout.h is read with this, and bytes are moved: see
 * unpack.cuh, and codebooks.cuh for types with a codebook.
 */
#ifndef OATO_PLANES_CUH
#define OATO_PLANES_CUH

#include "kernels/cuda/device_code.cuh"

/* The i-th of n units of type T that a block has in a plane. */
template <class T>
__device__ inline T plane_load(const cuda_matrix &w, int plane, int64_t block, int n = 1, int i = 0)
{
    return __ldg(reinterpret_cast<const T *>(w.plane[plane]) + block * n + i);
}

/* Bytes of b:a that the four low digits of the selector number, none of which is above 7:
 * __byte_perm, which would see to that itself with an instruction more. */
__device__ inline uint32_t bytes_selected(uint32_t a, uint32_t b, uint32_t selector)
{
    uint32_t out = 0;
#ifdef OATO_CUDA_ON_CPU
    const uint64_t both = (uint64_t)b << 32 | a;
    for (int i = 0; i < 4; i++)
        out |= (uint32_t)(both >> (selector >> 4 * i & 7) * 8 & 255) << 8 * i;
#else
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
#endif
    return out;
}

/* A number of type T a block in a plane and, unless it is void, one of type MORE in the next plane,
 * which `SHARE` blocks have together. */
template <int PLANE, class T, class MORE = void, int SHARE = 1> struct in_planes {
    static constexpr int BYTES = sizeof(T), MORE_BYTES = sizeof(MORE);
    struct stored {
        T own;
        MORE more;
    };
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return {plane_load<T>(w, PLANE, block), plane_load<MORE>(w, PLANE + 1, block / SHARE)};
    }
};
template <int PLANE, class T, int SHARE> struct in_planes<PLANE, T, void, SHARE> {
    static constexpr int BYTES = sizeof(T), MORE_BYTES = 0;
    typedef T stored;
    static __device__ stored load(const cuda_matrix &w, int64_t block)
    {
        return plane_load<T>(w, PLANE, block);
    }
};

/* v * 2^by, by may be negative. */
__device__ inline uint32_t moved(uint32_t v, int by)
{
    return by < 0 ? v >> -by : v << by;
}

#endif
