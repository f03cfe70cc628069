/*
 * avx2_attention.c - attention with vectors of 8 floats: tiles of 6 queries x 16 positions or
 * dimensions, 12 sums in the 16 registers. The algorithm is in lanes_attention.h.
 */
#include "kernels/cpu/lanes_attention.h"

const struct attention_kernels avx2_attention = {
    .scratch_bytes = attention_scratch,
    .run = attention_run,
    .merge = attention_merge,
};
