/*
 * avx512_state.c - the recurrent mixers in vectors of 16 floats.
 */
#include "kernels/cpu/state_blocks.h"

const struct state_kernels avx512_state = {.conv = conv, .delta = delta, .ssm = ssm};
