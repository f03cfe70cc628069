/*
 * wire.h - sums on their way between hosts (wire.c), and the Q8_0 blocks that KV has, too.
 */
#ifndef OATO_WIRE_H
#define OATO_WIRE_H

#include "kernels/sums.h"

/* Blocks of 32 as GGUF's Q8_0 has them: scale max / 127, as F16, and bytes. Finite numbers beyond
 * the largest scale become what it has; bytes have no infinities and no NaN: the scale says it for
 * the whole block. */
void q8_quantise(const float *x, int64_t d, int8_t *q, uint16_t *scales);
/* n values as F32, F16 or, n being a multiple of WIRE_BLOCK, Q8_0. */
size_t wire_bytes(oato_dtype wire, size_t n);
void wire_pack(oato_dtype wire, void *to, const float *x, size_t n);
void wire_unpack(oato_dtype wire, float *x, const void *from, size_t n);
/* Packs and unpacks. */
void wire_round(oato_dtype wire, float *x, size_t n);

#endif
