/*
 * cuda_unpack.cpp - calls the device functions of unpack.cuh by the number of a type.
 */
#include "kernels/cuda/unpack.cuh"

#include "tests/kernels/cuda_unpack.h"

#include <cstring>

template <int DTYPE> static void unpack(const cuda_matrix &w, int64_t block, unpacked *out)
{
    using type = weight_block<DTYPE>;
    const block_weights<DTYPE> v(w, block);
    std::memcpy(out->code, v.q, sizeof v.q);
    for (int e = 0; e < 32; e++) {
        out->d[e] = v.d[e * type::SCALES / 32];
        out->m[e] = v.m[e * type::SCALES / 32];
        if (!type::HAS_MIN && out->m[e] != 0)
            out->d[e] = 0; /* a type without a minimum that gives one is wrong */
    }
}

template <int DTYPE> struct row_of_table {
    static constexpr int dtype = DTYPE;
};

/* Calls what(row_of_table<DTYPE>()) for every type of whole blocks. */
template <class F> static void each_type(F what)
{
#define CALL(type, ...) what(row_of_table<CUDA_##type>());
    BLOCK_TYPES(CALL)
#undef CALL
}

extern "C" bool cuda_unpack(const cuda_matrix *w, int64_t block, unpacked *out)
{
    bool known = false;
    each_type([&](auto type) {
        if (type.dtype == w->dtype) {
            unpack<decltype(type)::dtype>(*w, block, out);
            known = true;
        }
    });
    return known;
}

extern "C" int cuda_plane_bytes(int dtype, int plane)
{
    int bytes = dtype == CUDA_F32    ? plane_bytes<CUDA_F32>(plane)
                : dtype == CUDA_F16  ? plane_bytes<CUDA_F16>(plane)
                : dtype == CUDA_BF16 ? plane_bytes<CUDA_BF16>(plane)
                                     : -1;
    each_type([&](auto type) {
        if (type.dtype == dtype)
            bytes = plane_bytes<decltype(type)::dtype>(plane);
    });
    return bytes;
}
