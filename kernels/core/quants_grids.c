/*
 * quants_grids.c - the codebooks of IQ1, IQ2 and IQ3 on the host, aligned for vectors.
 */
#include "kernels/core/core_internal.h"

#define CODEBOOK(name, words) _Alignas(64) const uint16_t quants_##name##_grid[words]
#include "kernels/core/quants_grids.h"
#undef CODEBOOK

/* All groups of five of the numbers 0, 1, 2, two bits each, of which the lowest count fastest. */
#define TRITS_1(x) (x), (x) + 1, (x) + 2
#define TRITS_2(x) TRITS_1(x), TRITS_1((x) + 4), TRITS_1((x) + 8)
#define TRITS_3(x) TRITS_2(x), TRITS_2((x) + 16), TRITS_2((x) + 32)
#define TRITS_4(x) TRITS_3(x), TRITS_3((x) + 64), TRITS_3((x) + 128)
_Alignas(64) const uint16_t quants_trits_grid[256] = {TRITS_4(0), TRITS_4(256), TRITS_4(512)};
