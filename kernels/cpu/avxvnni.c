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
