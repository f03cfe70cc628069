/*
 * amx_emulated.h - the tile instructions of amx_tiles.h in plain C, for hosts without AMX: every
 * thread has a configuration and eight tiles of its own. Semantics are those of Intel's Software
 * Developer's Manual, volume 2, palette 1; what faults there ends the program with a message here.
 *
 *   ldtilecfg    refuses what does not describe a palette; clears the tiles
 *   tileloadd    rows and bytes beyond the tile's shape become zero and are not read
 *   tilestored   stores the tile's shape only
 *   tdpb..d      c[m][n] += sum over 4 of a[m][4k + i] * b[k][4n + i], 32 bits that wrap
 *   tdpbf16ps    for each c[m][n] two sums from zero, of the first and of the second elements of
 * the pairs, each a chain of fused multiply-adds in order of k; then c += first + second. Rounds to
 * nearest even, denormals are zero on the way in and out, MXCSR is ignored. vcvtne2ps2bf16 rounds
 * to nearest even, denormals to zero, NaN to a quiet one
 *
 * Every function is slow next to the instruction (a product of tiles takes about 1 us). Included by
 * amx.c built with OATO_AMX_EMULATED, and by the test that holds these functions to the manual.
 */
#ifndef OATO_AMX_EMULATED_H
#define OATO_AMX_EMULATED_H

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AMX_FN static inline __attribute__((unused))

union amx_tile {
    uint8_t byte[AMX_ROWS][AMX_ROW_BYTES];
    uint32_t pair[AMX_ROWS][AMX_ROW_BYTES / 4]; /* of bfloat16 */
    int32_t i32[AMX_ROWS][AMX_ROW_BYTES / 4];
    float f32[AMX_ROWS][AMX_ROW_BYTES / 4];
};

static _Thread_local struct {
    struct amx_config config; /* palette 0: not configured */
    union amx_tile tile[AMX_TILES];
} amx_state;

__attribute__((noreturn)) AMX_FN void amx_fault(const char *what, int value)
{
    fprintf(stderr, "amx_emulated: %s (%d)\n", what, value);
    abort();
}

/* --------------------------------------------------------------------------- configuration - */

AMX_FN void amx_release(void)
{
    memset(&amx_state, 0, sizeof amx_state);
}

AMX_FN void amx_configure(const struct amx_config *c)
{
    if (c->palette > 1)
        amx_fault("ldtilecfg: palette", c->palette);
    if (c->start_row)
        amx_fault("ldtilecfg: a load would start at row", c->start_row);
    for (size_t i = 0; i < sizeof c->reserved; i++)
        if (c->reserved[i])
            amx_fault("ldtilecfg: reserved byte", c->reserved[i]);
    amx_release();
    if (!c->palette)
        return;
    for (int i = 0; i < 16; i++) {
        if (i >= AMX_TILES && (c->row_bytes[i] || c->rows[i]))
            amx_fault("ldtilecfg: there is no tile", i);
        if (c->row_bytes[i] > AMX_ROW_BYTES)
            amx_fault("ldtilecfg: bytes of a row", c->row_bytes[i]);
        if (c->rows[i] > AMX_ROWS)
            amx_fault("ldtilecfg: rows", c->rows[i]);
        if (!c->rows[i] != !c->row_bytes[i])
            amx_fault("ldtilecfg: rows without bytes or bytes without rows, tile", i);
    }
    amx_state.config = *c;
}

/* What sttilecfg stores. */
AMX_FN struct amx_config amx_configuration(void)
{
    return amx_state.config;
}

static inline int amx_rows_of(int tile)
{
    if (!amx_state.config.palette)
        amx_fault("a tile is used but none is configured", tile);
    if (!amx_state.config.rows[tile])
        amx_fault("this tile is not configured", tile);
    return amx_state.config.rows[tile];
}

static inline int amx_row_bytes_of(int tile)
{
    amx_rows_of(tile);
    return amx_state.config.row_bytes[tile];
}

/* ---------------------------------------------------------------------------------- memory - */

AMX_FN void amx_zero(int tile)
{
    amx_rows_of(tile);
    memset(&amx_state.tile[tile], 0, sizeof amx_state.tile[tile]);
}

AMX_FN void amx_load(int tile, const void *from, int64_t stride)
{
    const int rows = amx_rows_of(tile), bytes = amx_row_bytes_of(tile);
    union amx_tile t = {{{0}}};
    for (int r = 0; r < rows; r++)
        memcpy(t.byte[r], (const uint8_t *)from + r * stride, (size_t)bytes);
    amx_state.tile[tile] = t;
}

AMX_FN void amx_store(int tile, void *to, int64_t stride)
{
    const int rows = amx_rows_of(tile), bytes = amx_row_bytes_of(tile);
    for (int r = 0; r < rows; r++)
        memcpy((uint8_t *)to + r * stride, amx_state.tile[tile].byte[r], (size_t)bytes);
}

/* -------------------------------------------------------------------------------- products - */

/* Faults of all products: c is m x n, a is m x k, b is k x n, in dwords. */
static inline void amx_check_product(int c, int a, int b, int *m, int *n, int *k)
{
    *m = amx_rows_of(c);
    *n = amx_row_bytes_of(c) / 4;
    *k = amx_row_bytes_of(a) / 4;
    if (c == a || c == b || a == b)
        amx_fault("a product of a tile with itself", c);
    if (amx_row_bytes_of(c) % 4 || amx_row_bytes_of(a) % 4 || amx_row_bytes_of(b) % 4)
        amx_fault("rows of a product are not of whole dwords", c);
    if (amx_rows_of(a) != *m)
        amx_fault("rows of the first factor are not those of the sums", amx_rows_of(a));
    if (amx_row_bytes_of(b) != amx_row_bytes_of(c))
        amx_fault("columns of the second factor are not those of the sums", amx_row_bytes_of(b));
    if (amx_rows_of(b) != *k)
        amx_fault("rows of the second factor are not the columns of the first", amx_rows_of(b));
}

/* Everything beyond the sums' shape becomes zero. */
static inline void amx_put_sums(int c, const union amx_tile *sums, int m, int n)
{
    memset(&amx_state.tile[c], 0, sizeof amx_state.tile[c]);
    for (int r = 0; r < m; r++)
        memcpy(amx_state.tile[c].byte[r], sums->byte[r], (size_t)n * 4);
}

/* tdpbssd, tdpbsud, tdpbusd, tdpbuud: by the signs of a and b. */
AMX_FN void amx_dot_int8(int c, int a, int b, bool a_signed, bool b_signed)
{
    int m, n, k;
    amx_check_product(c, a, b, &m, &n, &k);
    const union amx_tile *x = &amx_state.tile[a], *w = &amx_state.tile[b];
    union amx_tile sums = amx_state.tile[c];
    for (int r = 0; r < m; r++)
        for (int i = 0; i < k; i++)
            for (int j = 0; j < n; j++)
                for (int e = 0; e < 4; e++) {
                    const uint8_t p = x->byte[r][4 * i + e], q = w->byte[i][4 * j + e];
                    const int product = (a_signed ? (int8_t)p : p) * (b_signed ? (int8_t)q : q);
                    sums.pair[r][j] += (uint32_t)product;
                }
    amx_put_sums(c, &sums, m, n);
}

static inline float amx_first(uint32_t pair)
{
    float x;
    pair <<= 16;
    memcpy(&x, &pair, sizeof x);
    return x;
}

static inline float amx_second(uint32_t pair)
{
    float x;
    pair &= 0xffff0000u;
    memcpy(&x, &pair, sizeof x);
    return x;
}

/* Runs with denormals flushed and rounding to nearest; not inlined, so that no part of it is moved
 * out of that state. */
__attribute__((noinline, unused)) static void
amx_bf16_sums(const union amx_tile *x, const union amx_tile *w, union amx_tile *sums, int m, int k)
{
    enum { N = AMX_ROW_BYTES / 4 }; /* columns beyond the tile's are zero */
    for (int r = 0; r < m; r++) {
        float first[N] = {0}, second[N] = {0};
        for (int i = 0; i < k; i++) {
            const float x0 = amx_first(x->pair[r][i]), x1 = amx_second(x->pair[r][i]);
            for (int j = 0; j < N; j++) {
                first[j] = fmaf(x0, amx_first(w->pair[i][j]), first[j]);
                second[j] = fmaf(x1, amx_second(w->pair[i][j]), second[j]);
            }
        }
        for (int j = 0; j < N; j++) {
            const float sum = first[j] + second[j];
            sums->f32[r][j] = sums->f32[r][j] + sum;
        }
    }
}

AMX_FN void amx_dot_bf16(int c, int a, int b)
{
    enum { DAZ_FTZ_NEAREST_MASKED = 0x9fc0 };
    int m, n, k;
    amx_check_product(c, a, b, &m, &n, &k);
    union amx_tile sums = amx_state.tile[c];
    const uint32_t mxcsr = _mm_getcsr();
    _mm_setcsr(DAZ_FTZ_NEAREST_MASKED);
    amx_bf16_sums(&amx_state.tile[a], &amx_state.tile[b], &sums, m, k);
    _mm_setcsr(mxcsr);
    amx_put_sums(c, &sums, m, n);
}

/* ------------------------------------------------------------------------------ conversion - */

static inline uint32_t amx_round_one(uint32_t x)
{
    const uint32_t size = x & 0x7fffffffu;
    if (size > 0x7f800000u)
        return x >> 16 | 0x40; /* a quiet NaN */
    if (size < 0x00800000u)
        return x >> 16 & 0x8000u;
    return (x + 0x7fffu + (x >> 16 & 1)) >> 16;
}

/* vcvtne2ps2bf16 */
AMX_FN __m512i amx_round(__m512 high, __m512 low)
{
    uint32_t from[32];
    uint16_t to[32];
    memcpy(from, &low, sizeof low);
    memcpy(from + 16, &high, sizeof high);
    for (int i = 0; i < 32; i++)
        to[i] = (uint16_t)amx_round_one(from[i]);
    return _mm512_loadu_si512(to);
}

#define AMX_ZERO(tile)               amx_zero(tile)
#define AMX_LOAD(tile, from, stride) amx_load(tile, from, stride)
#define AMX_STORE(tile, to, stride)  amx_store(tile, to, stride)
#define AMX_DOT_BF16(c, a, b)        amx_dot_bf16(c, a, b)

#endif
