/*
 * avx2.c - the avx2 table. The matrix products are in headers because avxvnni.c compiles the same
 * source for processors with VNNI in 256-bit vectors.
 */
#include "kernels/cpu/avx2_matrix.h"

const struct cpu_kernels cpu_kernels_avx2 = {
    .name = "avx2",
    .layout = &lanes8_layout,
    .matrix = matrix_of,
    .attention = &avx2_attention,
    .rows = &avx2_rows,
    .state = &avx2_state,
    .columns = &avx2_columns,
};
