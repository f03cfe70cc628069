/*
 * avx2_state.c - the recurrent mixers in vectors of 8 floats.
 */
#include "kernels/cpu/state_blocks.h"

const struct state_kernels avx2_state = {.conv = conv, .delta = delta, .ssm = ssm};
