/*
 * avx512_attention.c - attention with vectors of 16 floats: tiles of 6 queries x 64 positions or
 * dimensions, 24 sums in registers. The algorithm is in lanes_attention.h.
 */
#include "kernels/cpu/lanes_attention.h"

const struct attention_kernels avx512_attention = {
    .scratch_bytes = attention_scratch,
    .run = attention_run,
    .merge = attention_merge,
};
