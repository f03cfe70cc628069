/*
 * lanes_layout.c - how the levels with vectors keep weights and inputs of matrix products.
 *
 * Weights: groups of L = 8 or 16 rows (the last one padded with zero rows), a vector lane each. A
 * group is its blocks along k, one after the other, so that a matrix-vector product reads one
 * stream of about the file's bytes:
 *
 *   Q4_0             d[L] f16                              nibbles
 *   Q4_1             d[L], m[L] f16                        nibbles
 *   Q5_0  Q5_1       d[L] f16  d[L], m[L] f16              nibbles, a plane of fifth bits
 *   Q8_0             d[L] f16                              signed bytes
 *   Q4_K Q5_K        d[L], dmin[L] f16, bytes[12][L] as in the GGUF: scales 0..3 and above them
 *                    bits 4, 5 of scales 4..7; minima likewise; nibbles of scales 4..7, of minima
 *                                                          as Q4_1, Q5_1
 *   Q6_K             d[L] f16, scale[16][L] int8           nibbles, two planes of bits 4 and 5
 *   Q2_K             d[L], dmin[L] f16, bytes[16][L]: a nibble of scale, one of minimum
 *                                                          two planes of bits 0 and 1
 *   Q3_K             d[L] f16, scale[16][L] int8           as Q2_K, a plane of bit 2
 *   IQ4_NL           d[L] f16                              nibbles, each the number of a value
 *   IQ4_XS           d[L] f16, scale[8][L] int8            as IQ4_NL
 *   MXFP4            d[L] e8m0                             as IQ4_NL
 *   NVFP4            scale[4][L] e4m3                      as IQ4_NL
 *   TQ1_0 TQ2_0      d[L] f16                              two planes of bits 0 and 1
 *   IQ3_S IQ3_XXS IQ2_XXS IQ1_S
 *                    d[L] f16, bytes[4][L]: a nibble of scale of each 32 elements
 *                                                          indices of codebooks, signs
 *   IQ2_S IQ2_XS IQ1_M
 *                    d[L] f16, bytes[8][L]: of each 16     the same
 *   F32 F16 BF16     one element of each row after the other
 *
 * Nibbles, 32 k: four vectors; lane r of vector j holds k = 8j .. 8j+7 of row r so that masking
 * and shifting by 0, 4, 8, 12 leaves the words of the pairs 4j, 4j+1, 4j+2, 4j+3 (pair p is the
 * elements 2p, 2p+1), and masking bytes after shifting by 0 and 4 the quads of bytes
 * (8j, 8j+4, 8j+1, 8j+5) and (8j+2, 8j+6, 8j+3, 8j+7).
 * Planes: the words of lane r belong to the first and second elements of pairs, and the bytes of a
 * word to pairs 4j, 4j+1 and 4j+2, 4j+3, so that one shift brings the bits of a pair to its words
 * or those of a quad to its bytes: see lanes_plane_bit.
 * Bytes, 32 k: eight vectors of the same quads.
 * Codebooks, 32 k: bytes[n / 2][L][2] of the low 8 bits of index n, one for each 8 elements (IQ3:
 * 4); signs[L] dwords, whose bit 4 i + j is the sign of nibble i of vector j of nibbles; bytes[][L]
 * of 2 more bits of each index from the lowest on (IQ3_S: 1). IQ2_XXS, IQ3_XXS: no such bytes.
 * IQ2_XS: neither; an even number of each 8 signs are set, so that the last is not kept, and bits
 * 28 .. 31 of the dword are the ninth bits of the indices.
 * IQ1 has groups of 8 digits to the base of 3 instead of indices, which would need a codebook of
 * 2048 words: the byte has five of them, the lowest first, and three are a number of five bits. It
 * has no signs, but bytes[2][L] of nibbles: the low three bits of that number, and a bit that says
 * whether the 8 elements are shifted down; then bytes[L] of the upper two bits of all four.
 *
 * Inputs: uint8 with a step and a minimum for each 32 elements, in the order of the quads; for
 * float weights also int16 with one float32 scale (largest magnitude / 8191) for each 32.
 */
#include "kernels/cpu/avx2_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Bytes of one block of a row; of one k for the float types. */
static int64_t row_block_bytes(oato_dtype dtype, int64_t *block)
{
    const struct lanes_format *f = lanes_format_of(dtype);
    *block = f ? f->block : 1;
    return f ? lanes_block_bytes(f) : dtype == DT_F32 ? 4 : 2;
}

uint64_t lanes_matrix_bytes(int lanes, oato_dtype dtype, int64_t rows, int64_t k)
{
    int64_t block, bytes = row_block_bytes(dtype, &block);
    return (uint64_t)((rows + lanes - 1) / lanes) * (uint64_t)(k / block) *
           (uint64_t)(lanes * bytes);
}

/* ---------------------------------------------------------------------------------- input - */

uint64_t lanes_words_pack_bytes(int64_t k)
{
    /* An odd number of lines: columns begin in different sets of the caches. */
    const int64_t padded = lanes_words_k(k);
    return size_align((size_t)(2 * padded + 4 * (padded / 32)), 64) | 64;
}

/* Blocks of 32 to the integers at q and their scales. */
static void pack_words(int64_t blocks, const float *x, int16_t *q, float *scale)
{
    const float limit = LANES_WORDS_LARGEST;
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t b = 0; b < blocks; b++, x += 32, q += 32) {
        __m256 v[4], top = _mm256_setzero_ps(), nan = top;
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            top = _mm256_max_ps(top, _mm256_andnot_ps(sign, v[i]));
            nan = _mm256_or_ps(nan, _mm256_cmp_ps(v[i], v[i], _CMP_UNORD_Q));
        }
        float largest = avx2_max(top);
        /* Below this the reciprocal would overflow, and nothing that follows could tell. */
        bool zero = !(largest > 1e-30f);
        /* Integers have no infinities and no NaN: the scale says it for the whole block. */
        bool infinite = _mm256_movemask_ps(nan) || largest > FLT_MAX;
        const __m256i keep = _mm256_set1_epi32(infinite ? 0 : -1);
        __m256 factor = _mm256_set1_ps(zero ? 0 : limit / largest);
        __m256i n[4];
        for (int i = 0; i < 4; i++)
            n[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v[i], factor)), keep);
        for (int i = 0; i < 4; i += 2) { /* packs works on halves: put the quarters in order */
            __m256i w = _mm256_packs_epi32(n[i], n[i + 1]);
            _mm256_storeu_si256((__m256i *)(q + 8 * i), _mm256_permute4x64_epi64(w, 0xd8));
        }
        scale[b] = infinite ? NAN : zero ? 0 : largest / limit;
    }
}

void lanes_words_pack(int64_t k, const float *x, uint8_t *out)
{
    int16_t *q = (int16_t *)out;
    float *scale = floats(out + 2 * lanes_words_k(k));
    pack_words(k / 32, x, q, scale);
    if (k % 32) {
        float rest[32] = {0};
        memcpy(rest, x + k / 32 * 32, (size_t)(k % 32) * sizeof *rest);
        pack_words(1, rest, q + k / 32 * 32, scale + k / 32);
    }
}

static int32_t sum_i32(__m256i x)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

uint64_t lanes_bytes_pack_bytes(int64_t k)
{
    return size_align((size_t)(k / 32) * sizeof(struct lanes_bytes), 64) | 64;
}

void lanes_bytes_pack(int64_t k, const float *x, uint8_t *out)
{
    struct lanes_bytes *to = (struct lanes_bytes *)out;
    for (int64_t b = 0; b < k / 32; b++, x += 32, to++) {
        __m256 v[4], low = _mm256_loadu_ps(x), high = low, nan = _mm256_setzero_ps();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(x + 8 * i);
            low = _mm256_min_ps(low, v[i]);
            high = _mm256_max_ps(high, v[i]);
            nan = _mm256_or_ps(nan, _mm256_cmp_ps(v[i], v[i], _CMP_UNORD_Q));
        }
        const float lowest = -avx2_max(_mm256_sub_ps(_mm256_setzero_ps(), low));
        const float range = avx2_max(high) - lowest;
        const bool infinite = _mm256_movemask_ps(nan) || !(range <= FLT_MAX);
        /* Below this the reciprocal would overflow: all are the minimum. */
        const bool flat = !(range > 1e-30f);
        const __m256 factor = _mm256_set1_ps(flat || infinite ? 0 : 255.0f / range);
        const __m256 from = _mm256_set1_ps(infinite ? 0 : lowest);
        const __m256i keep = _mm256_set1_epi32(infinite ? 0 : -1);
        __m256i n[4];
        for (int i = 0; i < 4; i++)
            n[i] = _mm256_and_si256(
                _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(v[i], from), factor)), keep);
        const int32_t total =
            sum_i32(_mm256_add_epi32(_mm256_add_epi32(n[0], n[1]), _mm256_add_epi32(n[2], n[3])));
        /* Bytes of elements 0..3 of each 8 to the low half, 4..7 to the high one. */
        const __m256i bytes =
            _mm256_packus_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
        const __m128i first = _mm256_castsi256_si128(bytes);
        const __m128i second = _mm256_extracti128_si256(bytes, 1);
        _mm_storeu_si128((__m128i *)to->q, _mm_unpacklo_epi8(first, second));
        _mm_storeu_si128((__m128i *)(to->q + 16), _mm_unpackhi_epi8(first, second));
        to->step = infinite ? NAN : flat ? 0 : range / 255.0f;
        to->min = infinite ? NAN : lowest;
        to->sum = fmaf(to->step, (float)total, 32 * to->min);
        to->total = total;
    }
}

/* --------------------------------------------------------------------------------- tables - */

const struct matrix_layout lanes8_layout = {.id = "lanes8.5",
                                            .lanes = 8,
                                            .bytes = lanes_matrix_bytes,
                                            .prepare = lanes_matrix_prepare,
                                            .rows_stride = lanes_rows_stride,
                                            .rows_prepare = lanes8_rows_prepare,
                                            .rows_panel = lanes_rows_panel};
const struct matrix_layout lanes16_layout = {.id = "lanes16.4",
                                             .lanes = 16,
                                             .bytes = lanes_matrix_bytes,
                                             .prepare = lanes_matrix_prepare,
                                             .rows_stride = lanes_rows_stride,
                                             .rows_prepare = lanes16_rows_prepare,
                                             .rows_panel = lanes_rows_panel};
