/*
 * amx_tiles.h - the tile instructions that amx.c uses, each as one line of assembly. The compiler's
 * intrinsics are not used: gcc 12's declare a configuration as 8 bytes long and tile loads as not
 * reading memory, so stores to either may be dropped or delayed. Here the operand of a
 * configuration is all of its 64 bytes, and loads and stores of tiles are ordered with every other
 * access. Tiles are named by literal numbers 0 .. 7.
 *
 * A build with OATO_AMX_EMULATED takes tests/kernels/amx_emulated.h instead, which computes the
 * same in plain C under the same names.
 */
#ifndef OATO_AMX_TILES_H
#define OATO_AMX_TILES_H

#include <immintrin.h>
#include <stdint.h>

enum { AMX_TILES = 8, AMX_ROWS = 16, AMX_ROW_BYTES = 64, AMX_TILE_BYTES = 1024 };

/* What ldtilecfg reads. */
struct amx_config {
    uint8_t palette; /* 1: eight tiles of up to 16 rows of 64 bytes */
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16]; /* of tile 0 .. 7, the others 0 */
    uint8_t rows[16];
};
_Static_assert(sizeof(struct amx_config) == 64, "ldtilecfg reads 64 bytes");

#ifdef OATO_AMX_EMULATED
#include "tests/kernels/amx_emulated.h"
#define AMX_LEVEL "amx-emulated"
#else
#define AMX_LEVEL "amx"

#define AMX_INLINE static inline __attribute__((always_inline))

/* Clears the tiles. */
AMX_INLINE void amx_configure(const struct amx_config *c)
{
    __asm__ volatile("ldtilecfg %0" : : "m"(*c));
}

/* Returns the tiles to their initial state, so that context switches need not save them. */
AMX_INLINE void amx_release(void)
{
    __asm__ volatile("tilerelease");
}

#define AMX_ZERO(tile) __asm__ volatile("tilezero %tmm" #tile)

/* Rows of the tile lie `stride` bytes apart from `from` or `to` on. */
#define AMX_LOAD(tile, from, stride)                                                               \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile                                            \
                     :                                                                             \
                     : "r"((const void *)(from)), "r"((int64_t)(stride))                           \
                     : "memory")

#define AMX_STORE(tile, to, stride)                                                                \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)"                                        \
                     :                                                                             \
                     : "r"((void *)(to)), "r"((int64_t)(stride))                                   \
                     : "memory")

/* Tile c += tile a times tile b: pairs of bfloat16, float32 sums. */
#define AMX_DOT_BF16(c, a, b) __asm__ volatile("tdpbf16ps %tmm" #b ", %tmm" #a ", %tmm" #c)

/* Words of bfloat16, rounded to nearest even: 16 of `low`, then 16 of `high`. */
AMX_INLINE __m512i amx_round(__m512 high, __m512 low)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

#endif
#endif
