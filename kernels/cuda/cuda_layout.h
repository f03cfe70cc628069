/*
 * cuda_layout.h - the layout of a model's matrices in the memory of a CUDA device.
 *
 * A matrix of rows x k lies in up to four planes, each 256-byte aligned, one behind the other, rows
 * in order. The unit of a plane is a block of 32 elements of a row, number row * (k / 32) + i; of
 * the last plane a super-block of 256. Nothing is rounded: unpack.cuh, which reads these planes,
 * gives the float32 values of quants_row.
 *
 *   type            0: codes    1: more bits   2: scales      3: of 256     bits a weight (GGUF's)
 *   Q4_0            16 bytes    -              f16 d          -             4.5
 *   Q4_1            16          -              f16 d, m       -             5
 *   Q5_0            16          4              f16 d          -             5.5
 *   Q5_1            16          4              f16 d, m       -             6
 *   Q8_0            32          -              f16 d          -             8.5
 *   Q2_K            8           -              2 (m:4, sc:4)  f16 d, dmin   2.625
 *   Q3_K            8           4              2 int8 sc      f16 d         3.5625 (3.4375)
 *   Q4_K            16          -              uint8 sc, m    f16 d, dmin   4.625 (4.5)
 *   Q5_K            16          4              uint8 sc, m    f16 d, dmin   5.625 (5.5)
 *   Q6_K            16          8              2 int8 sc      f16 d         6.5625
 *   IQ4_NL          16          -              f16 d          -             4.5
 *   IQ4_XS          16          -              int8 sc        f16 d         4.3125 (4.25)
 *   MXFP4           16          -              E8M0 d         -             4.25
 *   NVFP4           16          -              2 e4m3 d       -             4.5
 *   TQ1_0           8           -              -              f16 d         2.0625 (1.6875)
 *   TQ2_0           8           -              -              f16 d         2.0625
 *   IQ1_S           4 indices   2 more, sc     -              f16 d         1.5625
 *   IQ1_M           4 indices   2 more         -              d in sc[8]    1.75
 *   IQ2_XXS         4, 4 signs and sc   -      -              f16 d         2.0625
 *   IQ2_XS          8 of both   -              -              f16 d, sc[8]  2.3125
 *   IQ2_S           4 indices   4 signs        -              f16 d, 8 more, sc[8]  2.5625
 *   IQ3_XXS         8 indices   4 signs, sc    -              f16 d         3.0625
 *   IQ3_S           8 indices   4 signs        -              f16 d, 8 more, sc[4]  3.4375
 *   F16, BF16, F32  the rows as they are                                    16, 16, 32
 *
 * Codes are such that four neighbours become the bytes of one 32-bit integer with a shift and a
 * mask. Those of signed types are two's complement of their 3 to 6 bits (GGUF's with the highest
 * bit flipped): moved to the top of a byte they are signed bytes, times a power of two.
 *   4 bits   byte j of a block: element j in its low half, element j + 16 in the high one. IQ4_NL,
 *            IQ4_XS, MXFP4 and NVFP4, which are looked up: 32-bit word i: elements 4i .. 4i + 3,
 *            then 4i + 16 .. 4i + 19, from the lowest bits on.
 *   1 bit    bit i of byte j: element 4i + j (plane 1 of Q3_K, Q5_0, Q5_1, Q5_K)
 *   2 bits   bits 2i, 2i + 1 of byte j of 32-bit word w: element 16w + 4i + j (plane 0 of Q2_K,
 *            Q3_K, TQ1_0 and TQ2_0, plane 1 of Q6_K)
 * Types with a codebook (IQ1, IQ2, IQ3) keep the bits of their GGUF blocks: codebooks.cuh.
 */
#ifndef OATO_CUDA_LAYOUT_H
#define OATO_CUDA_LAYOUT_H

#include "kernels/device.h"

enum { CUDA_PLANES = 4, CUDA_PLANE_ALIGN = 256 };

/* Bytes of a matrix in all its planes, a multiple of CUDA_PLANE_ALIGN. 0: no layout, because the
 * type has none, the matrix is empty, it has more than 2^31 - 1 rows or columns or 2^48 elements,
 * or its rows are not whole blocks: GGUF's blocks, or 16 bytes for F16, BF16 and F32, so that rows
 * can be read 16 bytes at a time. */
uint64_t cuda_layout_bytes(oato_dtype dtype, int64_t rows, int64_t k);

/* Offsets of a matrix's planes; planes that the type does not use are empty. Returns the end of the
 * last. */
uint64_t cuda_layout_planes(oato_dtype dtype, int64_t rows, int64_t k,
                            uint64_t offset[CUDA_PLANES]);

/* Bytes of one row in each plane. */
void cuda_layout_row(oato_dtype dtype, int64_t k, uint64_t bytes[CUDA_PLANES]);

/* Writes rows [row_begin + begin, row_begin + end) of the source to their places in the matrix of
 * row_end - row_begin rows at `to`, and nothing else, so threads may share the rows in any way.
 * Padding between planes is never written. */
void cuda_layout_rows(const struct weight_source *source, uint8_t *to, int64_t begin, int64_t end);

#endif
