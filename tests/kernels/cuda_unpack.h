/*
 * cuda_unpack.h - kernels/cuda/unpack.cuh, compiled as C++ for the host, as C tests call it.
 */
#ifndef OATO_TEST_CUDA_UNPACK_H
#define OATO_TEST_CUDA_UNPACK_H

#include "kernels/cuda/cuda_kernels.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct unpacked {
    int8_t code[32];
    float d[32], m[32]; /* each element's */
};

/* Block of a matrix of this oato_dtype; false: unpack.cuh has no such type. */
bool cuda_unpack(const struct cuda_matrix *w, int64_t block, struct unpacked *out);
/* Of 256 elements. */
int cuda_plane_bytes(int dtype, int plane);

#ifdef __cplusplus
}
#endif

#endif
