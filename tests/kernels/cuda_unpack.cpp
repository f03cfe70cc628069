/*
 * cuda_unpack.cpp - calls the device functions of unpack.cuh by the number of a type.
 */
#include "kernels/cuda/unpack.cuh"

/* A structure and a function of one name are C's habit. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#include "base/base.h"
#pragma GCC diagnostic pop
#include "tests/kernels/cuda_unpack.h"

#include <cstring>

static_assert(CUDA_F32 == (int)DT_F32 && CUDA_F16 == (int)DT_F16 && CUDA_BF16 == (int)DT_BF16 &&
                  CUDA_Q4_0 == (int)DT_Q4_0 && CUDA_Q4_1 == (int)DT_Q4_1 &&
                  CUDA_Q5_0 == (int)DT_Q5_0 && CUDA_Q5_1 == (int)DT_Q5_1 &&
                  CUDA_Q8_0 == (int)DT_Q8_0 && CUDA_Q2_K == (int)DT_Q2_K &&
                  CUDA_Q3_K == (int)DT_Q3_K && CUDA_Q4_K == (int)DT_Q4_K &&
                  CUDA_Q5_K == (int)DT_Q5_K && CUDA_Q6_K == (int)DT_Q6_K &&
                  CUDA_IQ4_NL == (int)DT_IQ4_NL && CUDA_IQ4_XS == (int)DT_IQ4_XS &&
                  CUDA_MXFP4 == (int)DT_MXFP4,
              "unpack.cuh numbers the types as base.h does");

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
    what(row_of_table<CUDA_Q4_0>());
    what(row_of_table<CUDA_Q4_1>());
    what(row_of_table<CUDA_Q5_0>());
    what(row_of_table<CUDA_Q5_1>());
    what(row_of_table<CUDA_Q8_0>());
    what(row_of_table<CUDA_Q2_K>());
    what(row_of_table<CUDA_Q3_K>());
    what(row_of_table<CUDA_Q4_K>());
    what(row_of_table<CUDA_Q5_K>());
    what(row_of_table<CUDA_Q6_K>());
    what(row_of_table<CUDA_IQ4_NL>());
    what(row_of_table<CUDA_IQ4_XS>());
    what(row_of_table<CUDA_MXFP4>());
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
