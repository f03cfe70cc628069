/*
 * cuda_image.h - kernels for several generations of GPUs in one image. nvcc makes a fat binary, of
 * which the driver takes what its GPU runs. Without nvcc cmake/compile_device.c makes pieces, each
 * of one GPU or in PTX; they follow one another, each at a multiple of 8, and zeros end them.
 */
#ifndef OATO_CUDA_IMAGE_H
#define OATO_CUDA_IMAGE_H

#include "kernels/cuda/cuda_driver.h"

#define CUDA_PIECE_MAGIC "OATOGPU"

struct cuda_code {
    char magic[8];
    uint32_t capability; /* 86: for GPUs of 8.6 */
    uint32_t ptx;        /* 1: text with its NUL, which the driver compiles; 0: machine code */
    uint32_t bytes;      /* of that */
    uint32_t packed_bytes;
    unsigned char packed[]; /* by zlib */
};

/* The piece that a GPU of the capability runs best, NULL if it runs none: machine code of its
 * generation (8 of 86) for the newest GPU that is no newer than itself, or else the newest PTX that
 * is no newer. For images of pieces only. */
const struct cuda_code *cuda_image_choose(const void *image, int capability);
/* What is in the piece, to be freed; NULL without memory, or if it is damaged. */
void *cuda_image_unpack(const struct cuda_code *piece);
/* Loads an image of either kind into the current context. If the GPU runs none of its pieces, that
 * is the driver's to say: it is given the first. */
cu_result cuda_image_load(const struct cuda_driver *cu, const void *image, int capability,
                          cu_module *module);

#endif
