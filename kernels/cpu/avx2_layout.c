/*
 * avx2_layout.c - how the avx2 table keeps weights and inputs of matrix products.
 *
 * Weights: groups of 8 rows (the last one padded with zero rows), a vector lane each. A group is
 * its blocks along k, one after the other, so that a matrix-vector product reads one stream:
 *
 *   Q4_0             d[8] f16                              nibbles
 *   Q5_0 Q8_0        d[8] f16                              signed bytes
 *   Q4_1             d[8], m[8] f16                        nibbles
 *   Q5_1             d[8], m[8] f16                        bytes
 *   Q4_K Q5_K        d[8], dmin[8] f16, scale[8][8] bytes, min[8][8] bytes   nibbles / bytes
 *   Q6_K             d[8] f16, scale[16][8] int8           signed bytes, -32 .. 31
 *   F32 F16 BF16     one element of each row after the other
 *
 * Nibbles, 32 k: four vectors; lane r of vector j holds k = 8j .. 8j+7 of row r so that masking
 * and shifting by 0, 4, 8, 12 leaves the words of the pairs (8j, 8j+1), (8j+2, 8j+3), ...
 * Bytes, 32 k: sixteen half vectors of the pairs (2i, 2i+1) of each row.
 *
 * Inputs: int16 with one float32 scale (largest magnitude / 32767) for each 32 elements.
 */
#include "kernels/cpu/avx2_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum { HEAD_D = 16, HEAD_DM = 32, HEAD_K = 32 + 128, HEAD_Q6_K = 16 + 128 };
enum { NIBBLES = 128, BYTES = 256 }; /* 32 elements of 8 rows */

static const struct avx2_format formats[] = {
    {DT_Q4_0, 32, HEAD_D, NIBBLES}, {DT_Q4_1, 32, HEAD_DM, NIBBLES},
    {DT_Q5_0, 32, HEAD_D, BYTES},   {DT_Q5_1, 32, HEAD_DM, BYTES},
    {DT_Q8_0, 32, HEAD_D, BYTES},   {DT_Q4_K, 256, HEAD_K, NIBBLES},
    {DT_Q5_K, 256, HEAD_K, BYTES},  {DT_Q6_K, 256, HEAD_Q6_K, BYTES},
};

const struct avx2_format *avx2_format_of(oato_dtype dtype)
{
    for (size_t i = 0; i < ARRAY_LEN(formats); i++)
        if (formats[i].dtype == dtype)
            return &formats[i];
    return NULL;
}

const char *avx2_matrix_numerics(oato_dtype dtype)
{
    return avx2_format_of(dtype) ? "i16b32" : "f32";
}

/* Bytes of one block of 8 rows; of one k for the float types. */
static int64_t block_bytes(oato_dtype dtype, int64_t *block)
{
    const struct avx2_format *f = avx2_format_of(dtype);
    *block = f ? f->block : 1;
    return f ? f->head + f->block / 32 * f->body : AVX2_LANES * (dtype == DT_F32 ? 4 : 2);
}

uint64_t avx2_matrix_bytes(oato_dtype dtype, int64_t rows, int64_t k)
{
    int64_t block, bytes = block_bytes(dtype, &block);
    return (uint64_t)((rows + AVX2_LANES - 1) / AVX2_LANES) * (uint64_t)(k / block) *
           (uint64_t)bytes;
}

/* ---------------------------------------------------------------------------- preparation - */

/* Low nibbles are elements 0..15, high ones 16..31. */
static void nibbles_split(const uint8_t *p, uint8_t q[32])
{
    __m128i x = _mm_loadu_si128((const __m128i *)p), low = _mm_set1_epi8(15);
    _mm_storeu_si128((__m128i *)q, _mm_and_si128(x, low));
    _mm_storeu_si128((__m128i *)(q + 16), _mm_and_si128(_mm_srli_epi16(x, 4), low));
}

static void fifth_bits(uint8_t q[32], uint32_t high, int offset)
{
    for (int i = 0; i < 32; i++)
        q[i] = (uint8_t)((q[i] | (high >> i & 1) << 4) - (uint32_t)offset);
}

/* The integers of a GGUF block, as the layout keeps them (two's complement where signed). */
static void block_values(oato_dtype dtype, const uint8_t *p, uint8_t *q)
{
    uint32_t high;
    switch (dtype) {
    case DT_Q4_0: nibbles_split(p + 2, q); break;
    case DT_Q4_1: nibbles_split(p + 4, q); break;
    case DT_Q5_0:
        nibbles_split(p + 6, q);
        memcpy(&high, p + 2, sizeof high);
        fifth_bits(q, high, 16);
        break;
    case DT_Q5_1:
        nibbles_split(p + 8, q);
        memcpy(&high, p + 4, sizeof high);
        fifth_bits(q, high, 0);
        break;
    case DT_Q8_0: memcpy(q, p + 2, 32); break;
    case DT_Q4_K:
    case DT_Q5_K:
        for (int pair = 0; pair < 4; pair++) { /* sub-blocks: 32 low nibbles, then 32 high ones */
            const uint8_t *from = p + (dtype == DT_Q5_K ? 48 : 16) + pair * 32;
            uint8_t *to = q + pair * 64;
            for (int i = 0; i < 32; i++) {
                to[i] = from[i] & 15;
                to[i + 32] = from[i] >> 4;
            }
        }
        for (int i = 0; dtype == DT_Q5_K && i < 256; i++)
            q[i] |= (uint8_t)((p[16 + i % 32] >> i / 32 & 1) << 4);
        break;
    default: /* Q6_K */
        for (int i = 0; i < 256; i++)
            q[i] = (uint8_t)quants_q6_k_value(p, i);
    }
}

/* What stands in front of the block's weights, for row `lane`. */
static void put_head(const struct avx2_format *f, const uint8_t *p, uint8_t *out, int lane)
{
    uint8_t *d = out + 2 * lane, *second = out + 16 + 2 * lane;
    if (f->dtype == DT_Q6_K) {
        memcpy(d, p + 208, 2);
        for (int s = 0; s < 16; s++)
            out[16 + s * AVX2_LANES + lane] = p[192 + s];
        return;
    }
    memcpy(d, p, 2);
    if (f->head >= HEAD_DM)
        memcpy(second, p + 2, 2);
    if (f->head == HEAD_K) {
        uint8_t scale[8], min[8];
        quants_k_scales(p + 4, scale, min);
        for (int s = 0; s < 8; s++) {
            out[32 + s * AVX2_LANES + lane] = scale[s];
            out[96 + s * AVX2_LANES + lane] = min[s];
        }
    }
}

/* 32 elements below 16 of row `lane`. Elements 0 2 4 6 1 3 5 7 of each 8 become the nibbles of a
 * dword from the lowest on. */
static void put_nibbles(const uint8_t q[32], uint8_t *out, int lane)
{
    const __m256i order = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0,
                                           2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    __m256i x = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i *)q), order);
    x = _mm256_maddubs_epi16(x, _mm256_set1_epi16(0x1001)); /* even + 16 * odd */
    __m128i packed = _mm_packus_epi16(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    uint32_t dword[4];
    _mm_storeu_si128((__m128i *)dword, packed);
    for (int j = 0; j < 4; j++)
        memcpy(out + j * 32 + lane * 4, &dword[j], 4);
}

static void put_bytes(const uint8_t q[32], uint8_t *out, int lane)
{
    for (int i = 0; i < 16; i++)
        memcpy(out + i * 16 + lane * 2, q + i * 2, 2);
}

/* One row of a float matrix, spread over its lane. */
static void put_floats(const uint8_t *row, int64_t k, int64_t size, uint8_t *out, int lane)
{
    for (int64_t i = 0; i < k; i++) {
        uint8_t *to = out + (i * AVX2_LANES + lane) * size;
        if (size == 4)
            memcpy(to, row + i * 4, 4);
        else
            memcpy(to, row + i * 2, 2);
    }
}

void avx2_matrix_prepare(const struct weight_source *s, struct oato_weight *w, int64_t begin,
                         int64_t end)
{
    const struct avx2_format *f = avx2_format_of(s->dtype);
    int64_t block, bytes = block_bytes(s->dtype, &block);
    const int64_t group_bytes = s->k / block * bytes;
    const uint64_t row_bytes = (uint64_t)(s->k / dtype_info((int)s->dtype)->block_elems) *
                               (uint64_t)dtype_info((int)s->dtype)->block_bytes;
    for (int64_t g = begin; g < end; g += AVX2_LANES) {
        uint8_t *out = (uint8_t *)w->data + g / AVX2_LANES * group_bytes;
        if (end - g < AVX2_LANES)
            memset(out, 0, (size_t)group_bytes);
        for (int lane = 0; lane < AVX2_LANES && g + lane < end; lane++) {
            const uint8_t *row =
                (const uint8_t *)s->data + (uint64_t)(s->row_begin + g + lane) * row_bytes;
            if (!f) {
                put_floats(row, s->k, bytes / AVX2_LANES, out, lane);
                continue;
            }
            uint8_t *to = out;
            for (int64_t b = 0; b < s->k / block; b++, to += bytes) {
                uint8_t q[256];
                const uint8_t *from = row + b * (int64_t)dtype_info((int)s->dtype)->block_bytes;
                put_head(f, from, to, lane);
                block_values(s->dtype, from, q);
                for (int i = 0; i < f->block / 32; i++) {
                    uint8_t *body = to + f->head + i * f->body;
                    if (f->body == NIBBLES)
                        put_nibbles(q + i * 32, body, lane);
                    else
                        put_bytes(q + i * 32, body, lane);
                }
            }
        }
    }
}

/* ---------------------------------------------------------------------------------- input - */

uint64_t avx2_pack_bytes(oato_dtype dtype, int64_t k)
{
    return avx2_format_of(dtype) ? (uint64_t)(2 * k + 12 * (k / 32)) : 0;
}

static int32_t sum_i32(__m256i x)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

void avx2_pack(int64_t k, const float *x, uint8_t *out)
{
    struct avx2_packed a = avx2_packed_at(out, k);
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
        __m256i n[4], sum = _mm256_setzero_si256();
        for (int i = 0; i < 4; i++) {
            n[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v[i], factor)), keep);
            sum = _mm256_add_epi32(sum, n[i]);
        }
        for (int i = 0; i < 4; i += 2) { /* packs works on halves: put the quarters in order */
            __m256i w = _mm256_packs_epi32(n[i], n[i + 1]);
            _mm256_storeu_si256((__m256i *)(q + 8 * i), _mm256_permute4x64_epi64(w, 0xd8));
        }
        int32_t total = sum_i32(sum);
        scale[b] = infinite ? NAN : zero ? 0 : largest / 32767.0f;
        scaled_sum[b] = scale[b] * (float)total;
        minus8_sum[b] = -8 * total;
    }
}
