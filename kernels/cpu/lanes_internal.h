/*
 * lanes_internal.h - the layout of matrix operands for vector instruction sets: rows interleaved by
 * the lanes of a vector (8 in avx2 and avxvnni, 16 in avx512). The layouts are described in
 * lanes_layout.c. Included by files compiled with at least -mavx2.
 */
#ifndef OATO_LANES_INTERNAL_H
#define OATO_LANES_INTERNAL_H

#include "kernels/cpu/kernels_internal.h"

enum { LANES_MAX = 16 };
enum { LANES_NIBBLES = 16, LANES_BYTES = 32 }; /* bytes of a row's 32 elements */

/* Tile kinds of avx2_matrix.h, by bits of the integers and whether there are minima. */
enum lanes_tile {
    TILE_2,
    TILE_3,
    TILE_4,
    TILE_4_MIN,
    TILE_5,
    TILE_5_MIN,
    TILE_6,
    TILE_8,
    TILE_8_SUB, /* 16 elements share a scale */
};

/* Memory layout of a block of a quantised type: a head for each of the interleaved rows, then the
 * weights, 32 k at a time. */
struct lanes_format {
    oato_dtype dtype;
    int32_t block;  /* elements along k, as in the GGUF */
    int32_t head;   /* bytes of a row: scale, minimum, scales of sub-blocks */
    int32_t body;   /* bytes of a row's 32 elements */
    int32_t high;   /* bits of an element in planes after its low 2 or 4 bits */
    int32_t offset; /* the stored integer is the weight's integer plus this */
    int32_t sub;    /* elements that share a scale */
    bool has_min;
    const int8_t *values; /* or NULL; the stored integer is an index into these 16 */
    int32_t d_at, sub_at; /* in the GGUF's block: its F16 scale, the scales of sub-blocks */
    enum lanes_tile tile; /* of avx2_matrix.h */
    int32_t largest;      /* magnitude of `values` */
    /* Codebooks, or NULL. A word has the codes of `group` elements and is found by `index_bits`;
     * `high` bits of an index stand apart from its low byte. See lanes_grid.h. */
    const uint16_t *grid;
    int32_t index_bits, group;
    float factor; /* of the scales, with a nibble each in the head */
};

/* One for each of BLOCK_TYPES. In the header so that kernels specialised for a format see its
 * numbers as constants. */
#define NO_GRID NULL, 0, 0, 0
static const struct lanes_format
    lanes_Q4_0 = {DT_Q4_0, 32, 2, 16, 0, 8, 32, false, NULL, 0, 0, TILE_4, 0, NO_GRID},
    lanes_Q4_1 = {DT_Q4_1, 32, 4, 16, 0, 0, 32, true, NULL, 0, 0, TILE_4_MIN, 0, NO_GRID},
    lanes_Q5_0 = {DT_Q5_0, 32, 2, 20, 1, 16, 32, false, NULL, 0, 0, TILE_5, 0, NO_GRID},
    lanes_Q5_1 = {DT_Q5_1, 32, 4, 20, 1, 0, 32, true, NULL, 0, 0, TILE_5_MIN, 0, NO_GRID},
    lanes_Q8_0 = {DT_Q8_0, 32, 2, 32, 0, 0, 32, false, NULL, 0, 0, TILE_8, 0, NO_GRID},
    lanes_Q2_K = {DT_Q2_K, 256, 20, 8, 0, 0, 16, true, NULL, 80, 0, TILE_2, 0, NO_GRID},
    lanes_Q3_K = {DT_Q3_K, 256, 18, 12, 1, 4, 16, false, NULL, 108, 96, TILE_3, 0, NO_GRID},
    lanes_Q4_K = {DT_Q4_K, 256, 16, 16, 0, 0, 32, true, NULL, 0, 4, TILE_4_MIN, 0, NO_GRID},
    lanes_Q5_K = {DT_Q5_K, 256, 16, 20, 1, 0, 32, true, NULL, 0, 4, TILE_5_MIN, 0, NO_GRID},
    lanes_Q6_K = {DT_Q6_K, 256, 18, 24, 2, 32, 16, false, NULL, 208, 192, TILE_6, 0, NO_GRID},
    lanes_IQ4_NL = {DT_IQ4_NL,         32, 2, 16,     0,   0,      32, false,
                    quants_iq4_values, 0,  0, TILE_8, 127, NO_GRID},
    lanes_IQ4_XS = {DT_IQ4_XS,         256, 10, 16,     0,   0,      32, false,
                    quants_iq4_values, 0,   2,  TILE_8, 127, NO_GRID},
    lanes_MXFP4 = {DT_MXFP4, 32, 1,      16, 0,      0, 32, false, quants_mxfp4_values,
                   0,        0,  TILE_5, 12, NO_GRID},
    lanes_NVFP4 = {DT_NVFP4, 64, 4,      16, 0,      0, 16, false, quants_mxfp4_values,
                   0,        0,  TILE_3, 12, NO_GRID},
    lanes_TQ1_0 = {DT_TQ1_0, 256, 2, 8, 0, 1, 32, false, NULL, 52, 0, TILE_4, 0, NO_GRID},
    lanes_TQ2_0 = {DT_TQ2_0, 256, 2, 8, 0, 1, 32, false, NULL, 64, 0, TILE_4, 0, NO_GRID};

#define GRID(type, head, body, high, sub, values, tile, largest, grid, bits, group, factor)        \
    static const struct lanes_format lanes_##type = {                                              \
        DT_##type, 256, head, body,    high, 0,    sub,   false, quants_##values##_values,         \
        0,         0,   tile, largest, grid, bits, group, factor};
GRID(IQ1_S, 6, 7, 6, 32, iq1, TILE_5, 9, quants_trits_grid, 8, 8, 0.125f)
GRID(IQ1_M, 10, 7, 6, 16, iq1, TILE_3, 9, quants_trits_grid, 8, 8, 0.125f)
GRID(IQ2_XXS, 6, 8, 0, 32, iq2, TILE_8, 43, quants_iq2_xxs_grid, 8, 8, 0.125f)
GRID(IQ2_XS, 10, 8, 0, 16, iq2, TILE_8_SUB, 43, quants_iq2_xs_grid, 9, 8, 0.125f)
GRID(IQ2_S, 10, 9, 2, 16, iq2, TILE_8_SUB, 43, quants_iq2_s_grid, 10, 8, 0.125f)
GRID(IQ3_XXS, 6, 12, 0, 32, iq3_xxs, TILE_8, 62, quants_iq3_xxs_grid, 8, 4, 0.25f)
GRID(IQ3_S, 6, 13, 1, 32, iq3_s, TILE_5, 15, quants_iq3_s_grid, 9, 4, 1)
#undef GRID
#undef NO_GRID

/* NULL for the float types. */
static inline const struct lanes_format *lanes_format_of(oato_dtype dtype)
{
#define FORMAT(type, ...) [DT_##type] = &lanes_##type,
    static const struct lanes_format *const formats[DT_COUNT] = {BLOCK_TYPES(FORMAT)};
#undef FORMAT
    return formats[dtype];
}

/* Bytes of one row's block. */
static inline int64_t lanes_block_bytes(const struct lanes_format *f)
{
    return f->head + f->block / 32 * f->body;
}

/* Whether kernels of class u8b32 multiply the stored integers and subtract the offset from the
 * sums, using the input's sum per 32; else they subtract it from the weights. */
static inline bool lanes_offset_in_sums(const struct lanes_format *f)
{
    return f->offset && f->sub == 32;
}

/* Whether 8 weights of a lane (4 of a sub-block of 16) can be summed as bytes: unsigned per 32,
 * else signed. */
static inline bool lanes_sums_fit_bytes(const struct lanes_format *f)
{
    return !f->values && f->body < LANES_BYTES;
}

/* In the weights of a format with a codebook: 32 elements have an index byte for each group, then
 * a dword of signs, then the high bits of indices, two or more to a byte. IQ1 has no signs, and the
 * byte is a number of five digits to the base of 3 with three more in six bits: see
 * lanes_layout.c. */
static inline int lanes_grid_signs_at(const struct lanes_format *f)
{
    return 32 / f->group;
}
static inline bool lanes_grid_has_signs(const struct lanes_format *f)
{
    return f->grid != quants_trits_grid;
}
/* Whether each eighth sign, which makes the number of negative ones even, is left out: its place,
 * bits 28 to 31, has the ninth bits of the four indices. */
static inline bool lanes_grid_signs_even(const struct lanes_format *f)
{
    return f->index_bits == 9 && f->group == 8;
}
static inline int lanes_grid_high_at(const struct lanes_format *f)
{
    return lanes_grid_signs_at(f) + (lanes_grid_has_signs(f) ? 4 : 0);
}

/* Where in a plane's word the bits of pair p are: 8 apart for pairs that share the bytes of a quad
 * (p % 4 = 0 and 2, 1 and 3), else side by side. A plane holds 16 / bits pairs. */
static inline int lanes_plane_bit(int p, int bits)
{
    return p % 4 / 2 * 8 + (p / 4 % (4 / bits) * 2 + p % 2) * bits;
}

uint64_t lanes_matrix_bytes(int lanes, oato_dtype dtype, int64_t rows, int64_t k);
void lanes_matrix_prepare(int lanes, const struct weight_source *s, struct oato_weight *w,
                          int64_t begin, int64_t end);

/* lanes_rows.c: of struct matrix_layout */
uint64_t lanes_rows_stride(oato_dtype dtype, int64_t k);
void lanes8_rows_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                         int64_t end);
void lanes16_rows_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                          int64_t end);
void lanes_rows_panel(int lanes, const struct oato_weight *w, const struct rows_list *rows,
                      struct oato_weight *panel);

/* lanes_layout.c */
extern const struct matrix_layout lanes8_layout, lanes16_layout;

/* The packed input of products with float weights, class i14b32: int16 of 14 bits, zeros up to a
 * multiple of 32, so that the sum of 32 products of 14 bits is exact; then for each 32 the scale.
 */
enum { LANES_WORDS_LARGEST = 8191 };
static inline int64_t lanes_words_k(int64_t k)
{
    return (k + 31) / 32 * 32;
}
uint64_t lanes_words_pack_bytes(int64_t k);
void lanes_words_pack(int64_t k, const float *x, uint8_t *out);

/* The packed input of class u8b32, k / 32 of these: x is about min + step * q. A block's data is
 * contiguous, so that a kernel needs one address per column. Each 8 of q are in the order 0 4 1 5 2
 * 6 3 7; sum is the sum of the 32 dequantised elements, total the sum of q. */
struct lanes_bytes {
    uint8_t q[32];
    float step, min, sum;
    int32_t total;
};
uint64_t lanes_bytes_pack_bytes(int64_t k);
void lanes_bytes_pack(int64_t k, const float *x, uint8_t *out);

#endif
