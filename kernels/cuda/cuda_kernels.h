/*
 * cuda_kernels.h - what the host gives to the kernels of kernels/cuda: plain structures, one
 * argument a kernel, read by C on the host and by CUDA C on the device.
 */
#ifndef OATO_CUDA_KERNELS_H
#define OATO_CUDA_KERNELS_H

#include <stdint.h>

/* A prepared matrix of `rows` x k in device memory. Types of whole blocks of 32 or 256 elements lie
 * in planes, each 256-byte aligned, elements row after row: see cuda_layout.h. */
struct cuda_matrix {
    const uint8_t *plane[4];
    int32_t rows, k;
    int32_t dtype; /* oato_dtype */
    int32_t pad;
};

#endif
