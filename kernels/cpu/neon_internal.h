/*
 * neon_internal.h - shared by the files of the neon table: inline helpers and the functions that
 * fill the table. Included only by files compiled for ARMv8.2-A with dotprod.
 */
#ifndef OATO_NEON_INTERNAL_H
#define OATO_NEON_INTERNAL_H

#include "kernels/cpu/kernels_internal.h"

#include <arm_neon.h>
#include <string.h>

#define NEON_INLINE static inline __attribute__((always_inline))

/* Quantised types that have kernels here. Prepared weights: groups of 8 rows (the last one padded
 * with zero rows), block after block: d[8] f16, (Q4_1) m[8] f16, then for each 4 rows vectors of
 * the rows' bytes 0..3, 4..7, ... of the GGUF. Nibbles whose value is nibble - 8 have bit 3
 * flipped, which makes them signed 4-bit integers: shifted to the top of a byte they are 16 times
 * the value. */
enum { NEON_ROWS = 8 };
struct neon_format {
    oato_dtype dtype;
    int32_t head, body; /* bytes of a row's block of 32 */
    uint32_t flip;      /* bits of each 4 bytes of the body */
    bool has_min;
};

#define NEON_TYPES(X)                                                                              \
    X(Q4_0, 2, 16, 0x88888888, false) X(Q4_1, 4, 16, 0, true) X(Q8_0, 2, 32, 0, false)
#define FORMAT(type, ...) static const struct neon_format neon_##type = {DT_##type, __VA_ARGS__};
NEON_TYPES(FORMAT)
#undef FORMAT

/* NULL for types that the reference kernels compute. */
static inline const struct neon_format *neon_format_of(oato_dtype dtype)
{
#define FORMAT(type, ...) [DT_##type] = &neon_##type,
    static const struct neon_format *const formats[DT_COUNT] = {NEON_TYPES(FORMAT)};
#undef FORMAT
    return formats[dtype];
}

/* Bytes of k elements of a group's rows. */
static inline int64_t neon_group_bytes(const struct neon_format *f, int64_t k)
{
    return k / 32 * NEON_ROWS * (f->head + f->body);
}

/* 32 elements of the packed input: x is about min + step * (q + 128); sum is the sum of the 32
 * dequantised elements. */
struct neon_bytes {
    int8_t q[32];
    float step, min, sum;
};

/* Four floats, of which only the first n are in memory; the others are 0. */
NEON_INLINE float32x4_t neon_load(const float *p, int64_t n)
{
    if (n >= 4)
        return vld1q_f32(p);
    float part[4] = {0};
    for (int64_t i = 0; i < n; i++)
        part[i] = p[i];
    return vld1q_f32(part);
}

NEON_INLINE void neon_store(float *p, float32x4_t x, int64_t n)
{
    if (n >= 4) {
        vst1q_f32(p, x);
        return;
    }
    float part[4];
    vst1q_f32(part, x);
    for (int64_t i = 0; i < n; i++)
        p[i] = part[i];
}

uint64_t neon_pack_bytes(int64_t k);
void neon_pack(int64_t k, const float *x, uint8_t *out);
/* neon_matrix.c */
extern const struct matrix_class neon_bytes;
extern const struct row_kernels neon_rows;

#endif
