/*
 * avxvnni.c - the avxvnni table: the avx2 kernels, whose integer products are one VEX-coded
 * vpdpbusd each instead of vpmaddubsw and additions. The integers are exact either way: same
 * layout, same class, same bits. For processors since 2021 that have no AVX-512.
 */
#ifndef __AVXVNNI__
#error "compile with -mavxvnni"
#endif
#include "kernels/cpu/avx2_matrix.h"

const struct cpu_kernels cpu_kernels_avxvnni = {
    .name = "avxvnni",
    .layout = &lanes8_layout,
    .matrix = matrix_of,
    .attention = &avx2_attention,
    .rows = &avx2_rows,
    .state = &avx2_state,
    .columns = &avx2_columns,
};
