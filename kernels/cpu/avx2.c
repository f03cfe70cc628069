/*
 * avx2.c - the avx2 table. The matrix products are in headers because avxvnni.c compiles the same
 * source for processors with VNNI in 256-bit vectors.
 */
#include "kernels/cpu/avx2_matrix.h"

const struct cpu_kernels cpu_kernels_avx2 = {
    .name = "avx2",
    .layout = "lanes8.2",
    .matrix = {&matrix, &matrix},
    .matrix_bytes = matrix_bytes,
    .matrix_prepare = matrix_prepare,
    .matrix_row = matrix_row,
    .attention_scratch_bytes = avx2_attention_scratch,
    .attention = avx2_attention,
    .attention_merge = avx2_attention_merge,
    .rms_norm = avx2_rms_norm,
    .add = avx2_add,
    .swiglu = avx2_swiglu,
    .to_f16 = avx2_to_f16,
};
