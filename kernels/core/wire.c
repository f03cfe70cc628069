/*
 * wire.c - sums on their way between hosts as F16 or in blocks of GGUF's Q8_0: half or a quarter of
 * the bytes. A run in one process rounds its sums by the same functions (MERGE_SUM), so that it
 * gives the bits of the ranks.
 */
#include "kernels/core/wire.h"

#include "kernels/core/core_internal.h"

#include <float.h>
#include <string.h>

void q8_quantise(const float *x, int64_t d, int8_t *q, uint16_t *scales)
{
    for (int64_t b = 0; b < d / 32; b++, x += 32, q += 32) {
        float most = 0;
        for (int i = 0; i < 32; i++)
            most = fabsf(x[i]) > most || isnan(x[i]) ? fabsf(x[i]) : most;
        if (most > 127 * F16_MOST && most <= FLT_MAX)
            most = 127 * F16_MOST;
        const float inverse = most > 0 && most <= FLT_MAX ? 127 / most : 0;
        scales[b] = f32_to_f16(most / 127);
        for (int i = 0; i < 32; i++) {
            const float code = x[i] * inverse;
            q[i] = (int8_t)(inverse > 0 ? lrintf(code > 127 ? 127 : code < -127 ? -127 : code) : 0);
        }
    }
}

static void f16_pack(uint8_t *to, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint16_t half = f32_to_finite_f16(x[i]);
        memcpy(to + 2 * i, &half, sizeof half);
    }
}

size_t wire_bytes(oato_dtype wire, size_t n)
{
    size_t bytes = 0;
    dtype_row_bytes(wire, (int64_t)n, &bytes);
    return bytes;
}

void wire_pack(oato_dtype wire, void *to, const float *x, size_t n)
{
    uint8_t *p = to;
    if (wire == DT_F32)
        memcpy(to, x, n * sizeof *x);
    else if (wire == DT_F16)
        f16_pack(p, x, n);
    for (size_t i = 0; wire == DT_Q8_0 && i + WIRE_BLOCK <= n; i += WIRE_BLOCK, p += 34) {
        uint16_t scale;
        q8_quantise(x + i, WIRE_BLOCK, (int8_t *)p + sizeof scale, &scale);
        memcpy(p, &scale, sizeof scale);
    }
}

void wire_unpack(oato_dtype wire, float *x, const void *from, size_t n)
{
    quants_row(wire, from, (int64_t)n, x);
}

void wire_round(oato_dtype wire, float *x, size_t n)
{
    uint8_t packed[8 * WIRE_BLOCK * sizeof *x];
    for (size_t at = 0; at < n && wire != DT_F32; at += 8 * WIRE_BLOCK) {
        const size_t piece = n - at < 8 * WIRE_BLOCK ? n - at : 8 * WIRE_BLOCK;
        wire_pack(wire, packed, x + at, piece);
        wire_unpack(wire, x + at, packed, piece);
    }
}
