/*
 * lanes_turn.h - values that lie in K: the first dimensions of a block of K, which is
 * dimension-major, as a block of V. Attention does it once for up to 48 queries, for less than a
 * tenth of their arithmetic, and so keeps one copy of both in memory.
 */
#ifndef OATO_LANES_TURN_H
#define OATO_LANES_TURN_H

#include "kernels/cpu/lanes_vector.h"

#include <string.h>

/* 8 rows of 8 elements of 2 bytes, `from_step` and `to_step` bytes apart. */
AVX2_INLINE void turn_words(const uint8_t *from, int64_t from_step, uint8_t *to, int64_t to_step)
{
    __m128i r[8], s[8];
    UNROLLED (i, 8)
        r[i] = _mm_loadu_si128((const __m128i *)(const void *)(from + i * from_step));
    UNROLLED (i, 4) {
        s[2 * i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        s[2 * i + 1] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    UNROLLED (i, 2) {
        UNROLLED (h, 2) {
            r[4 * i + 2 * h] = _mm_unpacklo_epi32(s[4 * i + h], s[4 * i + 2 + h]);
            r[4 * i + 2 * h + 1] = _mm_unpackhi_epi32(s[4 * i + h], s[4 * i + 2 + h]);
        }
    }
    UNROLLED (i, 4) {
        _mm_storeu_si128((__m128i *)(void *)(to + 2 * i * to_step),
                         _mm_unpacklo_epi64(r[i], r[i + 4]));
        _mm_storeu_si128((__m128i *)(void *)(to + (2 * i + 1) * to_step),
                         _mm_unpackhi_epi64(r[i], r[i + 4]));
    }
}

/* The same of 8 rows of 8 bytes. */
AVX2_INLINE void turn_bytes(const uint8_t *from, int64_t from_step, uint8_t *to, int64_t to_step)
{
    __m128i r[8], s[4];
    UNROLLED (i, 8)
        r[i] = _mm_loadl_epi64((const __m128i *)(const void *)(from + i * from_step));
    UNROLLED (i, 4)
        s[i] = _mm_unpacklo_epi8(r[2 * i], r[2 * i + 1]);
    UNROLLED (i, 2) {
        r[2 * i] = _mm_unpacklo_epi16(s[2 * i], s[2 * i + 1]);
        r[2 * i + 1] = _mm_unpackhi_epi16(s[2 * i], s[2 * i + 1]);
    }
    UNROLLED (i, 2) {
        s[2 * i] = _mm_unpacklo_epi32(r[i], r[i + 2]);
        s[2 * i + 1] = _mm_unpackhi_epi32(r[i], r[i + 2]);
    }
    UNROLLED (i, 4) {
        _mm_storel_epi64((__m128i *)(void *)(to + 2 * i * to_step), s[i]);
        _mm_storel_epi64((__m128i *)(void *)(to + (2 * i + 1) * to_step),
                         _mm_unpackhi_epi64(s[i], s[i]));
    }
}

/* And of 4 rows of 4 float32. */
AVX2_INLINE void turn_floats(const uint8_t *from, int64_t from_step, uint8_t *to, int64_t to_step)
{
    __m128 r[4];
    UNROLLED (i, 4)
        r[i] = _mm_loadu_ps(const_floats(from + i * from_step));
    _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
    UNROLLED (i, 4)
        _mm_storeu_ps(floats(to + i * to_step), r[i]);
}

/* Bytes of a block of V, with what the last vector may reach beyond it. */
static uint64_t turned_bytes(int64_t v_dim)
{
    return (uint64_t)(KV_PAGE_POSITIONS * v_dim) * sizeof(float) + KV_PADDING;
}

/* The first v_dim of d dimensions. */
static void values_turn(oato_dtype dtype, const uint8_t *k, int64_t d, int64_t v_dim, uint8_t *v)
{
    enum { N = KV_PAGE_POSITIONS };
    const int64_t bytes = dtype == DT_F32 ? 4 : dtype == DT_Q8_0 ? 1 : 2;
    const int64_t side = dtype == DT_F32 ? 4 : 8, whole = v_dim / side * side;
    for (int64_t e = 0; e < whole; e += side) {
        for (int64_t p = 0; p < N; p += side) {
            const uint8_t *from = k + (e * N + p) * bytes;
            uint8_t *to = v + (p * v_dim + e) * bytes;
            if (dtype == DT_F32)
                turn_floats(from, N * bytes, to, v_dim * bytes);
            else if (dtype == DT_Q8_0)
                turn_bytes(from, N * bytes, to, v_dim * bytes);
            else
                turn_words(from, N * bytes, to, v_dim * bytes);
        }
    }
    for (int64_t e = whole; e < v_dim; e++)
        for (int64_t p = 0; p < N; p++)
            memcpy(v + (p * v_dim + e) * bytes, k + (e * N + p) * bytes, (size_t)bytes);
    if (dtype == DT_Q8_0) /* the scales have the same order in both */
        memcpy(v + N * v_dim, k + N * d, (size_t)(v_dim / 32 * N) * 2);
}

#endif
