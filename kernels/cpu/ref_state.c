/*
 * ref_state.c - the definition of the recurrent mixers, and what levels without their own use.
 */
#include "kernels/cpu/state_blocks.h"

const struct state_kernels ref_state = {.conv = conv, .delta = delta, .ssm = ssm};
