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
 *   Q4_K Q5_K        d[L], dmin[L] f16, scale[8][L] bytes, min[8][L] bytes   as Q4_1, Q5_1
 *   Q6_K             d[L] f16, scale[16][L] int8           nibbles, two planes of bits 4 and 5
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
 *
 * Inputs: int16 with one float32 scale (largest magnitude / 32767) for each 32 elements, or uint8
 * with a step and a minimum for each 32, in the order of the quads.
 */
#include "kernels/cpu/avx2_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

const char *lanes_matrix_numerics(oato_dtype dtype)
{
    return lanes_format_of(dtype) ? "i16b32" : "f32";
}

const char *lanes_bytes_numerics(oato_dtype dtype)
{
    return lanes_format_of(dtype) ? "u8b32" : "f32";
}

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

/* ---------------------------------------------------------------------------- preparation - */

/* Low nibbles are elements 0..15, high ones 16..31. */
static void nibbles_split(const uint8_t *p, uint8_t q[32])
{
    __m128i x = _mm_loadu_si128((const __m128i *)p), low = _mm_set1_epi8(15);
    _mm_storeu_si128((__m128i *)q, _mm_and_si128(x, low));
    _mm_storeu_si128((__m128i *)(q + 16), _mm_and_si128(_mm_srli_epi16(x, 4), low));
}

static void fifth_bits(uint8_t q[32], uint32_t high)
{
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)(q[i] | (high >> i & 1) << 4);
}

/* The integers of a GGUF block plus the format's offset: 0 .. 63, or (Q8_0) two's complement. */
static void block_values(const struct lanes_format *f, const uint8_t *p, uint8_t *q)
{
    uint32_t high;
    switch (f->dtype) {
    case DT_Q4_0: nibbles_split(p + 2, q); break;
    case DT_Q4_1: nibbles_split(p + 4, q); break;
    case DT_Q5_0:
        nibbles_split(p + 6, q);
        memcpy(&high, p + 2, sizeof high);
        fifth_bits(q, high);
        break;
    case DT_Q5_1:
        nibbles_split(p + 8, q);
        memcpy(&high, p + 4, sizeof high);
        fifth_bits(q, high);
        break;
    case DT_Q8_0: memcpy(q, p + 2, 32); break;
    case DT_Q4_K:
    case DT_Q5_K:
        for (int pair = 0; pair < 4; pair++) { /* sub-blocks: 32 low nibbles, then 32 high ones */
            const uint8_t *from = p + (f->dtype == DT_Q5_K ? 48 : 16) + pair * 32;
            uint8_t *to = q + pair * 64;
            for (int i = 0; i < 32; i++) {
                to[i] = from[i] & 15;
                to[i + 32] = from[i] >> 4;
            }
        }
        for (int i = 0; f->dtype == DT_Q5_K && i < 256; i++)
            q[i] |= (uint8_t)((p[16 + i % 32] >> i / 32 & 1) << 4);
        break;
    default: /* Q6_K */
        for (int i = 0; i < 256; i++)
            q[i] = (uint8_t)(quants_q6_k_value(p, i) + f->offset);
    }
}

/* What stands in front of the block's weights, for row `lane`. */
static void put_head(const struct lanes_format *f, const uint8_t *p, uint8_t *out, int lane,
                     int lanes)
{
    uint8_t *bytes = out + 2 * lanes + lane;
    if (f->dtype == DT_Q6_K) {
        memcpy(out + 2 * lane, p + 208, 2);
        for (int s = 0; s < 16; s++)
            bytes[s * lanes] = p[192 + s];
        return;
    }
    memcpy(out + 2 * lane, p, 2);
    if (f->has_min)
        memcpy(out + 2 * lanes + 2 * lane, p + 2, 2);
    if (f->block == 256) {
        uint8_t scale[8], min[8];
        quants_k_scales(p + 4, scale, min);
        bytes += 2 * lanes;
        for (int s = 0; s < 8; s++) {
            bytes[s * lanes] = scale[s];
            bytes[(8 + s) * lanes] = min[s];
        }
    }
}

/* The low nibbles of 32 elements of row `lane`. Elements 0 2 4 6 1 3 5 7 of each 8 become the
 * nibbles of a dword from the lowest on. */
static void put_nibbles(const uint8_t q[32], uint8_t *out, int lane, int lanes)
{
    const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0,
                                           2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    __m256i x = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)q), order);
    x = _mm256_and_si256(x, _mm256_set1_epi8(15));
    x = _mm256_maddubs_epi16(x, _mm256_set1_epi16(0x1001)); /* even + 16 * odd */
    __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    uint32_t dword[4];
    _mm_storeu_si128((__m128i *)dword, packed);
    for (int j = 0; j < 4; j++)
        memcpy(out + (j * lanes + lane) * 4, &dword[j], 4);
}

/* The bits from 4 on of 32 elements of row `lane`. */
static void put_planes(const uint8_t q[32], int bits, uint8_t *out, int lane, int lanes)
{
    uint32_t plane[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        const int pair = i / 2;
        plane[pair * bits / 16] |= (uint32_t)(q[i] >> 4)
                                   << (lanes_plane_bit(pair, bits) + i % 2 * 16);
    }
    for (int j = 0; j < bits; j++)
        memcpy(out + (j * lanes + lane) * 4, &plane[j], 4);
}

static void put_bytes(const uint8_t q[32], uint8_t *out, int lane, int lanes)
{
    static const uint8_t quads[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    for (int i = 0; i < 32; i++)
        out[(i / 4 * lanes + lane) * 4 + i % 4] = q[i / 8 * 8 + quads[i % 8]];
}

/* One row of a float matrix, spread over its lane. */
static void put_floats(const uint8_t *row, int64_t k, int64_t size, uint8_t *out, int lane,
                       int lanes)
{
    for (int64_t i = 0; i < k; i++) {
        uint8_t *to = out + (i * lanes + lane) * size;
        if (size == 4)
            memcpy(to, row + i * 4, 4);
        else
            memcpy(to, row + i * 2, 2);
    }
}

static void put_quantised(const struct lanes_format *f, const uint8_t *row, int64_t k, uint8_t *out,
                          int lane, int lanes)
{
    const int64_t block_bytes = dtype_info((int)f->dtype)->block_bytes;
    for (int64_t b = 0; b < k / f->block; b++, row += block_bytes) {
        uint8_t q[256], *body = out + lanes * f->head;
        put_head(f, row, out, lane, lanes);
        block_values(f, row, q);
        for (int i = 0; i < f->block; i += 32, body += lanes * f->body) {
            if (f->body == LANES_BYTES) {
                put_bytes(q + i, body, lane, lanes);
            } else {
                put_nibbles(q + i, body, lane, lanes);
                if (f->high)
                    put_planes(q + i, f->high, body + lanes * LANES_NIBBLES, lane, lanes);
            }
        }
        out += lanes * lanes_block_bytes(f);
    }
}

void lanes_matrix_prepare(int lanes, const struct weight_source *s, struct oato_weight *w,
                          int64_t begin, int64_t end)
{
    const struct lanes_format *f = lanes_format_of(s->dtype);
    const uint64_t group_bytes = lanes_matrix_bytes(lanes, s->dtype, lanes, s->k);
    const struct dtype_info *type = dtype_info((int)s->dtype);
    const uint64_t row_bytes = (uint64_t)(s->k / type->block_elems) * (uint64_t)type->block_bytes;
    for (int64_t g = begin; g < end; g += lanes) {
        uint8_t *out = (uint8_t *)w->data + (uint64_t)(g / lanes) * group_bytes;
        if (end - g < lanes)
            memset(out, 0, (size_t)group_bytes);
        for (int lane = 0; lane < lanes && g + lane < end; lane++) {
            const uint8_t *row =
                (const uint8_t *)s->data + (uint64_t)(s->row_begin + g + lane) * row_bytes;
            if (f)
                put_quantised(f, row, s->k, out, lane, lanes);
            else
                put_floats(row, s->k, type->block_bytes, out, lane, lanes);
        }
    }
}

/* ---------------------------------------------------------------------------------- input - */

uint64_t lanes_pack_bytes(oato_dtype dtype, int64_t k)
{
    /* An odd number of lines: columns begin in different sets of the caches. */
    return lanes_format_of(dtype) ? size_align((size_t)(2 * k + 16 * (k / 32)), 64) | 64 : 0;
}

static int32_t sum_i32(__m256i x)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

void lanes_pack(int64_t k, const float *x, uint8_t *out)
{
    struct lanes_packed a = lanes_packed_at(out, k);
    int16_t *q = (int16_t *)a.q;
    float *scale = (float *)a.scale, *scaled_sum = (float *)a.scaled_sum;
    int32_t *minus8_sum = (int32_t *)a.minus8_sum;
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (int64_t b = 0; b < k / 32; b++, x += 32, q += 32) {
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
        __m256 factor = _mm256_set1_ps(zero ? 0 : 32767.0f / largest);
        __m256i n[4];
        for (int i = 0; i < 4; i++)
            n[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v[i], factor)), keep);
        int32_t half[2] = {sum_i32(_mm256_add_epi32(n[0], n[1])),
                           sum_i32(_mm256_add_epi32(n[2], n[3]))};
        for (int i = 0; i < 4; i += 2) { /* packs works on halves: put the quarters in order */
            __m256i w = _mm256_packs_epi32(n[i], n[i + 1]);
            _mm256_storeu_si256((__m256i *)(q + 8 * i), _mm256_permute4x64_epi64(w, 0xd8));
        }
        scale[b] = infinite ? NAN : zero ? 0 : largest / 32767.0f;
        scaled_sum[b] = scale[b] * (float)(half[0] + half[1]);
        minus8_sum[2 * b] = -8 * half[0];
        minus8_sum[2 * b + 1] = -8 * half[1];
    }
}

uint64_t lanes_bytes_pack_bytes(oato_dtype dtype, int64_t k)
{
    return lanes_format_of(dtype)
               ? size_align((size_t)(k / 32) * sizeof(struct lanes_bytes), 64) | 64
               : 0;
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
    }
}
